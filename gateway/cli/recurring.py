"""`mq recurring`: records that the server sends by itself, every so long or by a cron expression."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated

import orjson
import typer

from gateway.cli.client import JSON, ask, path_segment
from gateway.cli.complete import recurring_names, topic_names
from gateway.cli.send import HeadersOption, PartitionOption, TagOption, ValueFormat, parse_header
from gateway.cli.terminal import (
    URL_DEFAULT,
    USAGE,
    CliError,
    Json,
    Url,
    duration_ms,
    number_of,
    print_json,
    print_table,
    time_shown,
    time_to_send,
)

app = typer.Typer(
    help="Send records by a rule: make, list, show, pause, resume and delete recurring schedules.", no_args_is_help=True
)

PATH = "/mq/v1/recurring"


class MissedPolicy(StrEnum):
    """What becomes of due times that have passed."""

    once = "once"
    all = "all"


Name = Annotated[str, typer.Argument(help="The schedule's name.", show_default=False, autocompletion=recurring_names)]


@app.command("put")
def put(
    name: Annotated[str, typer.Argument(help="A name of your own; one of this name is replaced.", show_default=False)],
    topic: Annotated[str, typer.Argument(help="Where to send.", show_default=False, autocompletion=topic_names)],
    value: Annotated[str, typer.Argument(help="The value of each record.", show_default=False)],
    every: Annotated[str | None, typer.Option(help="So often: 30s, 1h30m, 7d.", metavar="TIME")] = None,
    cron: Annotated[
        str | None, typer.Option(help="Five fields (minute hour day month weekday), or @daily etc.")
    ] = None,
    tz: Annotated[str | None, typer.Option(help="With --cron: a time zone. [dim]default: UTC[/dim]")] = None,
    anchor: Annotated[
        str | None,
        typer.Option(help="With --every: count from this time (RFC 3339 or epoch ms). [dim]default: now[/dim]"),
    ] = None,
    missed: Annotated[
        MissedPolicy, typer.Option(help="When several due times have passed: one record, or one for each.")
    ] = MissedPolicy.once,
    paused: Annotated[
        bool | None, typer.Option("--paused/--active", help="Let it rest. [dim]default: as it was[/dim]")
    ] = None,
    key: Annotated[str | None, typer.Option("--key", "-k", help="The key of each record.")] = None,
    tag: TagOption = None,
    headers: HeadersOption = None,
    partition: PartitionOption = None,
    format_: Annotated[ValueFormat, typer.Option("--format", help="What the value is.")] = ValueFormat.json,
    url: Url = URL_DEFAULT,
) -> None:
    """Have a record sent again and again; prints when it is due next.

    [b]Examples[/b]

      mq recurring put daily-report reports '{"kind": "daily"}' --cron '30 2 * * *' --tz Europe/Berlin

      mq recurring put poll jobs '{}' --every 5m --missed all
    """
    if (every is None) == (cron is None):
        raise CliError("say when: either --every or --cron", USAGE)
    record: dict[str, object] = {"key": key, "tag": tag, "partition": partition}
    if headers:
        record["headers"] = [parse_header(text) for text in headers]
    if format_ is ValueFormat.text:
        record["value_text"] = value
    else:
        try:
            record["value"] = orjson.loads(value)
        except orjson.JSONDecodeError as error:
            raise CliError(f"VALUE is not JSON ({error}): send it as it is with --format text", USAGE) from error
    body: dict[str, object] = {"topic": topic, "record": record, "cron": cron, "tz": tz, "missed": missed.value}
    if anchor is not None:
        body["anchor"] = time_to_send(anchor)
    if every is not None:
        body["every_ms"] = duration_ms(every, "--every")
    if paused is not None:
        body["paused"] = paused
    _say(ask(url, lambda client: client.put(_path(name), body)))


@app.command("list")
def list_(
    topic: Annotated[
        str | None, typer.Option("--topic", "-t", help="Only of this topic.", autocompletion=topic_names)
    ] = None,
    url: Url = URL_DEFAULT,
    as_json: Json = False,
) -> None:
    """List recurring schedules by name.

    [b]Example[/b]

      mq recurring list --topic reports
    """
    rows, _ = ask(url, lambda client: client.listed(PATH, "recurring", topic=topic))
    if as_json:
        for row in rows:
            print_json(row)
        return
    shown = [
        (row["name"], row["topic"], _rule(row), _next(row), row["delivered_count"], row["missed_count"]) for row in rows
    ]
    print_table(("name", "topic", "when", "next", "delivered", "missed"), shown)


@app.command("get")
def get(name: Name, url: Url = URL_DEFAULT) -> None:
    """Print one recurring schedule with its record, as JSON.

    [b]Example[/b]

      mq recurring get daily-report
    """
    print_json(ask(url, lambda client: client.get(_path(name))))


@app.command("pause")
def pause(name: Name, url: Url = URL_DEFAULT) -> None:
    """Let a recurring schedule rest: nothing is sent, and nothing missed.

    [b]Example[/b]

      mq recurring pause daily-report
    """
    _say(ask(url, lambda client: client.post(_path(name, ":pause"), b"", JSON)))


@app.command("resume")
def resume(name: Name, url: Url = URL_DEFAULT) -> None:
    """Let a recurring schedule go on with the next due time.

    [b]Example[/b]

      mq recurring resume daily-report
    """
    _say(ask(url, lambda client: client.post(_path(name, ":resume"), b"", JSON)))


@app.command("delete")
def delete(name: Name, url: Url = URL_DEFAULT) -> None:
    """Delete a recurring schedule. What it has sent stays.

    [b]Example[/b]

      mq recurring delete daily-report
    """
    ask(url, lambda client: client.delete(_path(name)))
    typer.echo(f"{name}: deleted")


def _path(name: str, verb: str = "") -> str:
    return f"{PATH}/{path_segment(name)}{verb}"


def _say(row: dict[str, object]) -> None:
    typer.echo(f"{row['name']}: {_rule(row)}, next {_next(row)}")


def _rule(row: dict[str, object]) -> str:
    if row["every_ms"] is None:
        return f"{row['cron']} {row['tz']}"
    every_ms = number_of(row["every_ms"])
    for unit, unit_ms in (("d", 86_400_000), ("h", 3_600_000), ("m", 60_000), ("s", 1_000)):
        if every_ms % unit_ms == 0:
            return f"every {every_ms // unit_ms}{unit}"
    return f"every {every_ms}ms"


def _next(row: dict[str, object]) -> str:
    if row["paused"]:
        return "paused"
    return "never" if row["next_at"] is None else time_shown(row["next_at"], "seconds")
