"""`mq send`: one record from the command line, or many from a file or stdin."""

from __future__ import annotations

import asyncio
import os
import sys
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import IO, Annotated

import orjson
import typer
from rich.progress import DownloadColumn, Progress, TaskID, TextColumn

from gateway.cli.client import Client, connected, path_segment
from gateway.cli.complete import topic_names
from gateway.cli.terminal import URL_DEFAULT, USAGE, CliError, Json, Url, duration_ms, print_json, progress, time_shown

REQUEST_RECORDS_MAX = 1000
REQUEST_RECORDS_FIRST = 10
"""Records without a key go to one partition a request. So the first requests are small, each twice the one before: a
file of a hundred lines reaches all partitions, and a large one costs a few requests more."""

REQUEST_BYTES_MAX = 4 * 1024 * 1024
"""Lines of one request; one longer line goes alone."""


class ValueFormat(StrEnum):
    """How a value is written at the terminal."""

    json = "json"
    text = "text"


class AcksLevel(StrEnum):
    """How safe a record is when its send is answered."""

    flushed = "flushed"
    written = "written"


AcksOption = Annotated[
    AcksLevel | None,
    typer.Option(help="Answer when flushed to disk, or only written. [dim]default: the server's[/dim]"),
]
TagOption = Annotated[str | None, typer.Option(help="A tag, for filters.")]
HeadersOption = Annotated[
    list[str] | None, typer.Option("--header", "-H", help="A header; repeatable.", metavar="NAME=VALUE")
]
PartitionOption = Annotated[
    int | None, typer.Option("--partition", "-p", min=0, help="Send to this one, whatever the key.")
]


@dataclass
class Sent:
    """What became of the records so far."""

    records: int = 0
    scheduled: int = 0
    acks: str = ""
    offsets: list[dict[str, object]] = field(default_factory=list)


def send(
    topic: Annotated[str, typer.Argument(help="Where to send.", show_default=False, autocompletion=topic_names)],
    value: Annotated[
        str | None, typer.Argument(help="The value; '-' reads one from each line of stdin.", show_default=False)
    ] = None,
    file: Annotated[
        Path | None, typer.Option("--file", "-f", help="Send one value from each line.", exists=True, dir_okay=False)
    ] = None,
    key: Annotated[str | None, typer.Option("--key", "-k", help="Records of one key keep their order.")] = None,
    key_field: Annotated[
        str | None, typer.Option(help="With JSON objects: the field whose value is the key.", metavar="NAME")
    ] = None,
    tag: TagOption = None,
    headers: HeadersOption = None,
    partition: PartitionOption = None,
    queues: Annotated[
        list[str] | None,
        typer.Option("--queue", help="A light queue that it is in as well; repeatable.", metavar="NAME"),
    ] = None,
    msg_id: Annotated[
        str | None,
        typer.Option(help="An id of your own: sent again with it within ten minutes, the record is stored once."),
    ] = None,
    delay: Annotated[str | None, typer.Option(help="Deliver after this time: 90s, 1h30m, 7d.", metavar="TIME")] = None,
    at: Annotated[
        str | None, typer.Option(help="Deliver at this time (RFC 3339): 2026-12-24T18:00:00Z.", metavar="TIME")
    ] = None,
    schedule_key: Annotated[
        str | None,
        typer.Option(help="With --delay or --at: a name of your own for the schedule, to cancel or move it by."),
    ] = None,
    format_: Annotated[ValueFormat, typer.Option("--format", help="What the values are.")] = ValueFormat.json,
    acks: AcksOption = None,
    url: Url = URL_DEFAULT,
    as_json: Json = False,
) -> None:
    """Send records to a topic, and wait until they are stored.

    [b]Examples[/b]

      mq send orders '{"sku": 9, "count": 1}' --key user-1
      mq send orders hello --format text --delay 90s
      mq send orders 1 --header trace=abc --partition 2 --msg-id order-77
      mq send chat '"hello"' --queue user/42 --queue room/7
      mq send flights --file flights.jsonl --key-field tailnum
      seq 100 | mq send numbers -
    """
    if (value is None) == (file is None):
        raise CliError("give either a VALUE ('-' for stdin) or --file", USAGE)
    if delay is not None and at is not None:
        raise CliError("--delay and --at exclude each other", USAGE)
    if key is not None and key_field is not None:
        raise CliError("--key and --key-field exclude each other", USAGE)
    if schedule_key is not None and (file is not None or value == "-"):
        raise CliError("--schedule-key names one schedule: give a VALUE", USAGE)
    if msg_id is not None and (file is not None or value == "-"):
        raise CliError("--msg-id names one record: give a VALUE", USAGE)
    common: dict[str, object] = {}
    if headers:
        common["headers"] = [parse_header(text) for text in headers]
    if partition is not None:
        common["partition"] = partition
    if queues:
        common["queues"] = queues
    if msg_id is not None:
        common["msg_id"] = msg_id
    if schedule_key is not None:
        common["schedule_key"] = schedule_key
    if key is not None:
        common["key"] = key
    if tag is not None:
        common["tag"] = tag
    if at is not None:
        common["deliver_at"] = at
    if delay is not None:
        common["delay_ms"] = duration_ms(delay, "--delay")
    encode = _Encoder(common, format_, key_field)
    is_spread = partition is None and key is None and key_field is None
    path = f"/topics/{path_segment(topic)}" + ("" if acks is None else f"?acks={acks.value}")
    started_s = time.monotonic()
    if file is not None:
        sent = _send_file(file, encode, path, url, is_spread)
    elif value == "-":
        sent = asyncio.run(_send_all(_requests(_lines(sys.stdin.buffer), encode, is_spread), path, url, format_))
    else:
        assert value is not None
        records = [encode(os.fsencode(value), "VALUE")]
        sent = asyncio.run(_send_all([(records, 0)], path, url, format_))
    _report(topic, sent, time.monotonic() - started_s, as_json)


class _Encoder:
    """From the bytes of a value to the bytes of a record object."""

    def __init__(self, common: dict[str, object], format_: ValueFormat, key_field: str | None) -> None:
        self.format = format_
        self._common = common
        self._key_field = key_field

    def __call__(self, content: bytes, where: str) -> bytes:
        """One record. `where` names its place in an error."""
        record = dict(self._common)
        if self.format is ValueFormat.text:
            try:
                record["value"] = content.decode()
            except UnicodeDecodeError as error:
                raise CliError(f"{where} is not UTF-8: {error}", USAGE) from error
            if self._key_field is not None:
                raise CliError("--key-field needs --format json", USAGE)
            return orjson.dumps(record)
        try:
            value = orjson.loads(content)
        except orjson.JSONDecodeError as error:
            raise CliError(f"{where} is not JSON ({error}): send it as it is with --format text", USAGE) from error
        if self._key_field is not None:
            if not isinstance(value, dict):
                raise CliError(f"{where} is not a JSON object, so it has no field {self._key_field}", USAGE)
            record["key"] = value.get(self._key_field)
        record["value"] = orjson.Fragment(content)  # digits and all as they were written
        return orjson.dumps(record)


def _lines(stream: IO[bytes]) -> Iterator[tuple[bytes, str]]:
    """The lines that are not blank, and what to call each in an error."""
    for number, line in enumerate(stream, 1):
        if content := line.rstrip(b"\r\n"):
            yield content, f"line {number}"


def parse_header(text: str) -> dict[str, str]:
    """A header from NAME=VALUE. Raises CliError."""
    name, equals, value = text.partition("=")
    if not equals or not name:
        raise CliError(f"--header {text}: use NAME=VALUE", USAGE)
    return {"key": name, "text": value}


def _requests(
    lines: Iterable[tuple[bytes, str]], encode: _Encoder, is_spread: bool
) -> Iterator[tuple[list[bytes], int]]:
    """Records grouped into requests, with the bytes they were made from. `is_spread`: over the partitions."""
    records: list[bytes] = []
    records_max = REQUEST_RECORDS_FIRST if is_spread else REQUEST_RECORDS_MAX
    size_bytes = read_bytes = 0
    for content, where in lines:
        record = encode(content, where)
        if records and (len(records) == records_max or size_bytes + len(record) > REQUEST_BYTES_MAX):
            yield records, read_bytes
            records_max = min(2 * records_max, REQUEST_RECORDS_MAX)
            records, size_bytes, read_bytes = [], 0, 0
        records.append(record)
        size_bytes += len(record)
        read_bytes += len(content) + 1
    if records:
        yield records, read_bytes


def _send_file(file: Path, encode: _Encoder, path: str, url: str, is_spread: bool) -> Sent:
    """All lines of a file, with a progress bar over its bytes."""
    with file.open("rb") as stream, progress(DownloadColumn(), TextColumn("{task.fields[rate]}")) as bar:
        task = bar.add_task(f"sending {file.name}", total=file.stat().st_size, rate="")
        return asyncio.run(_send_all(_requests(_lines(stream), encode, is_spread), path, url, encode.format, bar, task))


async def _send_all(
    requests: Iterable[tuple[list[bytes], int]],
    path: str,
    url: str,
    format_: ValueFormat,
    bar: Progress | None = None,
    task: TaskID | None = None,
) -> Sent:
    """One request after the other, so that records keep their order."""
    sent = Sent()
    started_s = time.monotonic()
    async with connected(url) as client:
        for records, read_bytes in requests:
            try:
                await _send_one(client, path, records, format_, sent)
            except CliError as error:
                if not sent.records:
                    raise
                raise CliError(f"{error}; {sent.records} records were sent", error.exit_code) from error
            if bar is not None and task is not None:
                rate = sent.records / max(time.monotonic() - started_s, 1e-3)
                bar.update(task, advance=read_bytes, rate=f"{sent.records:,} records, {rate:,.0f}/s")
    return sent


async def _send_one(client: Client, path: str, records: list[bytes], format_: ValueFormat, sent: Sent) -> None:
    body = b'{"records":[' + b",".join(records) + b"]}"
    answer = await client.post(path, body, f"application/vnd.kafka.{format_.value}.v2+json")
    offsets = answer.get("offsets")
    if not isinstance(offsets, list):
        raise CliError("the server's answer has no offsets; is it an mq server of this version?")
    refused = [offset for offset in offsets if offset.get("error_code") is not None]
    sent.records += len(offsets) - len(refused)
    sent.scheduled += sum(offset.get("schedule_id") is not None for offset in offsets)
    if refused:
        first = f"{refused[0]['error_code']}: {refused[0]['error']}"
        raise CliError(f"{len(refused)} of {len(offsets)} records of a request were refused, the first with {first}")
    if len(records) == 1:
        sent.offsets = offsets


def _report(topic: str, sent: Sent, elapsed_s: float, as_json: bool) -> None:
    if as_json:
        shown: dict[str, object] = {"topic": topic, "sent": sent.records, "scheduled": sent.scheduled}
        if sent.records == 1:
            shown |= {name: value for name, value in sent.offsets[0].items() if value is not None}
        print_json(shown)
    elif sent.records == 1:
        (receipt,) = sent.offsets
        if receipt.get("schedule_id") is not None:
            typer.echo(f"{topic}: due {time_shown(receipt['deliver_at'])}, schedule {receipt['schedule_id']}")
        else:
            typer.echo(f"{topic}: partition {receipt['partition']}, offset {receipt['offset']}")
    else:
        rate = sent.records / max(elapsed_s, 1e-3)
        waiting = f", {sent.scheduled:,} of them scheduled" if sent.scheduled else ""
        typer.echo(f"{topic}: {sent.records:,} records{waiting} in {elapsed_s:.1f} s, {rate:,.0f}/s")
