"""`mq bench`: how fast this machine can send to a server and read back from it.

One process, so it measures the client too; `make bench` and Locust (`make load`) measure a server more thoroughly.
Sends are JSON requests that wait for their answer, so each is as durable as `--acks` says. Reads take whole batches as
they are stored, from all partitions at once.
"""

from __future__ import annotations

import asyncio
import secrets
import time
from collections.abc import Callable, Coroutine, Iterator
from typing import TYPE_CHECKING, Annotated, NamedTuple

import orjson
import typer
from rich.progress import Progress, TaskID, TextColumn

from gateway.cli.client import Client, Server, connected, failure, path_segment, refused, server_of, session
from gateway.cli.complete import topic_names
from gateway.cli.send import AcksLevel, AcksOption
from gateway.cli.terminal import (
    URL_DEFAULT,
    CliError,
    Json,
    Url,
    number_of,
    print_json,
    print_note,
    print_table,
    progress,
    rows_of,
)

if TYPE_CHECKING:
    import aiohttp

JSON_RECORDS = "application/vnd.kafka.json.v2+json"
BATCHES = "application/vnd.mq.batch"
PARTITIONS = 4
READ_BYTES = 4 * 1024 * 1024


class Measured(NamedTuple):
    """One direction. Latencies are of requests, in seconds."""

    records: int
    bytes: int
    elapsed_s: float
    latencies_s: list[float]

    def shown(self) -> dict[str, float]:
        """In round numbers: records and bytes a second, and what half and 99 of 100 requests stayed below."""
        ordered = sorted(self.latencies_s) or [0.0]
        elapsed_s = max(self.elapsed_s, 1e-6)
        return {
            "records": self.records,
            "seconds": round(self.elapsed_s, 3),
            "records_per_s": round(self.records / elapsed_s),
            "mb_per_s": round(self.bytes / elapsed_s / 1e6, 1),
            "request_p50_ms": round(ordered[len(ordered) // 2] * 1000, 2),
            "request_p99_ms": round(ordered[min(len(ordered) - 1, len(ordered) * 99 // 100)] * 1000, 2),
        }


def bench(
    topic: Annotated[
        str | None,
        typer.Option(
            "--topic",
            "-t",
            help="Use this topic, and leave the records there. [dim]default: one that is deleted afterwards[/dim]",
            show_default=False,
            autocompletion=topic_names,
        ),
    ] = None,
    records: Annotated[int, typer.Option("--records", "-n", min=1, help="How many.")] = 100_000,
    size: Annotated[int, typer.Option("--size", "-s", min=1, max=1_000_000, help="Bytes of a value.")] = 100,
    batch: Annotated[int, typer.Option("--batch", "-b", min=1, max=10_000, help="Records of one request.")] = 500,
    connections: Annotated[int, typer.Option("--connections", "-c", min=1, max=1000, help="Requests at a time.")] = 8,
    acks: AcksOption = None,
    url: Url = URL_DEFAULT,
    as_json: Json = False,
) -> None:
    """Send records, read them back, and show how fast that was.

    [b]Examples[/b]

      mq bench
      mq bench --records 1000 --batch 1 --connections 32      # one record a request
      mq bench --size 1000 --acks written --json
    """
    plan = _Plan(topic or f"mq-bench-{secrets.token_hex(4)}", records, size, batch, connections, acks)
    sent, received = asyncio.run(_measured(server_of(url), plan, is_own=topic is None))
    if as_json:
        print_json({"send": sent.shown(), "receive": received.shown()})
        return
    there, back = sent.shown(), received.shown()
    cells = [(name.replace("_", " "), f"{there[name]:,}", f"{back[name]:,}") for name in there]
    print_table(("", "send", "receive"), cells)


class _Plan(NamedTuple):
    topic: str
    records: int
    size: int
    batch: int
    connections: int
    acks: AcksLevel | None


async def _measured(server: Server, plan: _Plan, *, is_own: bool) -> tuple[Measured, Measured]:
    """Both directions. A topic of our own is deleted whatever happens. Raises CliError."""
    path = f"/mq/v1/topics/{path_segment(plan.topic)}"
    async with connected(server.url) as client, session(server, timeout_s=None) as opened:
        if is_own:
            await client.put(path, {"partitions": PARTITIONS})
        try:
            starts = await _ends(client, path)
            with progress(TextColumn("{task.completed:,.0f} of {task.total:,.0f}")) as bar:
                sent = await _send(opened, server, plan, bar)
                received = await _receive(opened, server, plan, starts, await _ends(client, path), bar)
        finally:
            if is_own:
                await _delete(client, path)
    if received.records < sent.records:
        print_note(f"{sent.records - received.records:,} records were not read: has retention or a deletion cut in?")
    return sent, received


async def _delete(client: Client, path: str) -> None:
    try:
        await client.delete(path)
    except CliError as error:
        print_note(f"the topic of this run is left: {error}")


async def _ends(client: Client, path: str) -> dict[int, int]:
    rows = rows_of(await client.get(f"{path}/offsets"), "partitions")
    return {number_of(row["partition"]): number_of(row["end_offset"]) for row in rows}


async def _send(opened: aiohttp.ClientSession, server: Server, plan: _Plan, bar: Progress) -> Measured:
    """All records, `connections` requests at a time."""
    path = f"/topics/{path_segment(plan.topic)}" + ("" if plan.acks is None else f"?acks={plan.acks.value}")
    record = orjson.dumps({"value": "x" * plan.size})
    latencies_s: list[float] = []
    task = bar.add_task("sending", total=plan.records)

    def counts() -> Iterator[int]:
        left = plan.records
        while left > 0:
            yield min(plan.batch, left)
            left -= plan.batch

    waiting = counts()
    whole = _body(record, plan.batch)

    async def work() -> None:
        for count in waiting:
            body = whole if count == plan.batch else _body(record, count)
            began_s = time.perf_counter()
            await _answered(opened, server, "POST", path, body, JSON_RECORDS)
            latencies_s.append(time.perf_counter() - began_s)
            bar.update(task, advance=count)

    began_s = time.perf_counter()
    await _together(plan.connections, work)
    return Measured(plan.records, plan.records * plan.size, time.perf_counter() - began_s, latencies_s)


async def _receive(
    opened: aiohttp.ClientSession,
    server: Server,
    plan: _Plan,
    starts: dict[int, int],
    ends: dict[int, int],
    bar: Progress,
) -> Measured:
    """What was stored between the two, each partition by itself."""
    latencies_s: list[float] = []
    count = size_bytes = 0
    task = bar.add_task("reading", total=sum(ends.values()) - sum(starts.values()))
    waiting = iter(ends)

    async def work() -> None:
        for partition in waiting:
            await read(partition, starts.get(partition, 0), task)

    async def read(partition: int, offset: int, task: TaskID) -> None:
        nonlocal size_bytes, count
        records = f"/topics/{path_segment(plan.topic)}/partitions/{partition}/records"
        while offset < ends[partition]:
            began_s = time.perf_counter()
            path = f"{records}?offset={offset}&max_bytes={READ_BYTES}"
            following, length = await _answered(opened, server, "GET", path, None, BATCHES)
            latencies_s.append(time.perf_counter() - began_s)
            if following is None or following <= offset:
                break
            size_bytes += length
            count += min(following, ends[partition]) - offset
            bar.update(task, advance=following - offset)
            offset = following

    began_s = time.perf_counter()
    await _together(plan.connections, work)
    return Measured(count, size_bytes, time.perf_counter() - began_s, latencies_s)


async def _together(count: int, work: Callable[[], Coroutine[None, None, None]]) -> None:
    """So many at a time; the first failure ends all, and is the one that is told."""
    tasks = [asyncio.create_task(work()) for _ in range(count)]
    try:
        await asyncio.gather(*tasks)
    finally:
        for task in tasks:
            task.cancel()


async def _answered(
    opened: aiohttp.ClientSession, server: Server, method: str, path: str, body: bytes | None, media: str
) -> tuple[int | None, int]:
    """The next offset an answer names, if any, and the length of its body. Raises CliError."""
    import aiohttp

    headers = {"Content-Type": media} if body is not None else {"Accept": media}
    try:
        async with opened.request(method, server.url + path, data=body, headers=headers) as response:
            content = await response.read()
    except (aiohttp.ClientError, TimeoutError, OSError) as error:
        raise failure(server.url, error) from error
    if response.status >= 400:
        raise refused(orjson.loads(content))
    following = response.headers.get("Mq-Next-Offset")
    return None if following is None else int(following), len(content)


def _body(record: bytes, count: int) -> bytes:
    return b'{"records":[' + b",".join([record] * count) + b"]}"
