"""`mq group`: list, describe, configure, reset and delete consumer groups; their lag, live; their dead letters."""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import Mapping
from typing import Annotated
from urllib.parse import quote

import orjson
import typer
from rich.live import Live
from rich.table import Table

from gateway.cli.client import JSON, Client, ask, connected, path_segment
from gateway.cli.complete import group_names, topic_names
from gateway.cli.terminal import (
    URL_DEFAULT,
    USAGE,
    CliError,
    Json,
    Url,
    add_row,
    console,
    new_table,
    number_of,
    parse_duration_ms,
    print_json,
    print_table,
    rows_of,
    time_shown,
)

app = typer.Typer(help="Consumer groups: how far they are, and moving them.", no_args_is_help=True)

PATH = "/mq/v1/groups"

Group = Annotated[str, typer.Argument(help="The group's name.", show_default=False, autocompletion=group_names)]
Row = Mapping[str, object]


@app.command("list")
def list_(
    is_light: Annotated[bool, typer.Option("--light", help="Those with offsets in light queues, in pages.")] = False,
    prefix: Annotated[str, typer.Option("--prefix", help="With --light: what their names begin with.")] = "",
    url: Url = URL_DEFAULT,
    as_json: Json = False,
) -> None:
    """List all groups. Those that only keep offsets in light queues (a device each, maybe) are listed by --light alone.

    [b]Examples[/b]

      mq group list
      mq group list --light --prefix phone- | head
    """
    if is_light:
        ask(url, lambda client: _light_groups(client, prefix, as_json=as_json))
        return
    if prefix:
        raise CliError("--prefix goes with --light", USAGE)
    groups = rows_of(ask(url, lambda client: client.get(PATH)), "groups")
    if as_json:
        for group in groups:
            print_json(group)
        return
    if not groups:
        typer.echo("no groups yet: one begins with its first consumer, such as 'mq tail TOPIC --group NAME'")
        return
    shown = []
    for group in groups:
        topics = group["topics"]
        assert isinstance(topics, list)
        shown.append((group["group"], group["state"], group["member_count"], ", ".join(topics)))
    print_table(("group", "state", "members", "topics"), shown)


async def _light_groups(client: Client, prefix: str, *, as_json: bool) -> None:
    """Print them, a group a line, a page at a time: there may be a million."""
    query = f"?prefix={quote(prefix, safe='')}"
    while True:
        page = await client.get(f"/mq/v1/light-groups{query}")
        for group in rows_of(page, "groups"):
            if as_json:
                print_json(group)
            else:
                typer.echo(f"{group['group']}\t{group['light_offset_count']}")
        if page["next_cursor"] is None:
            return
        query = f"?prefix={quote(prefix, safe='')}&cursor={quote(str(page['next_cursor']), safe='')}"


@app.command("describe")
def describe(group: Group, url: Url = URL_DEFAULT, as_json: Json = False) -> None:
    """Show a group's state, its members with their partitions, and who has records on lease.

    [b]Example[/b]

      mq group describe billing
    """
    described = ask(url, lambda client: client.get(_path(group)))
    if as_json:
        print_json(described)
        return
    members, workers = rows_of(described, "members"), rows_of(described, "workers")
    typer.echo(
        f"{group}: {described['state']}, generation {described['generation']}; members: {len(members)}; "
        f"workers: {len(workers)}; records on lease: {sum(number_of(worker['leased']) for worker in workers)}"
    )
    if described["light_offset_count"]:
        typer.echo(f"offsets in light queues: {described['light_offset_count']}")
    for warning in rows_of(described, "warnings"):
        typer.echo(f"warning: {warning}")
    if workers:
        print_table(
            ("worker", "leased", "heard"),
            [(worker["consumer"], worker["leased"], _heard(worker["heard_ago_ms"])) for worker in workers],
        )
    if not members:
        return
    table = new_table("member", "wants", "has", "heard")
    for member in members:
        topics = member["topics"]
        assert isinstance(topics, list)
        pattern = member["topic_pattern"]
        wants = ", ".join([*topics, *([f"/{pattern}/"] if pattern else [])])
        has = ", ".join(f"{where['topic']}/{where['partition']}" for where in rows_of(member, "assigned"))
        leaving = ", ".join(f"{where['topic']}/{where['partition']}" for where in rows_of(member, "revoking"))
        add_row(
            table,
            member["member_id"],
            wants,
            f"{has} (giving up {leaving})" if leaving else has,
            _heard(member["heard_ago_ms"]),
        )
    console().print(table)


@app.command("lag")
def lag(
    group: Group,
    topics: Annotated[list[str] | None, typer.Option("--topic", "-t", help="Only this topic; repeatable.")] = None,
    once: Annotated[bool, typer.Option("--once", help="Print it once, for scripts.")] = False,
    interval: Annotated[float, typer.Option("--interval", "-i", min=0.1, help="Seconds between looks.")] = 1.0,
    url: Url = URL_DEFAULT,
    as_json: Json = False,
) -> None:
    """Watch how far a group is behind, partition by partition.

    `rate` is what it commits a second, `oldest` the age of the first record that is not done. With --json, or where
    the output is no terminal, it is printed once.

    [b]Examples[/b]

      mq group lag billing
      mq group lag billing --once --json | jq 'select(.lag > 1000)'
    """
    query = f"?topics={quote(','.join(topics), safe=',')}" if topics else ""
    path = f"{_path(group)}/lag{query}"
    if as_json:
        for row in rows_of(ask(url, lambda client: client.get(path)), "partitions"):
            print_json(row)
        return
    if once or not sys.stdout.isatty():
        console().print(_lag_table(ask(url, lambda client: client.get(path)), {}, 0.0))
        return
    asyncio.run(_watch(url, path, interval))


@app.command("reset")
def reset(
    group: Group,
    topic: Annotated[str, typer.Argument(help="The topic.", show_default=False, autocompletion=topic_names)],
    to: Annotated[
        str,
        typer.Option(
            "--to", metavar="WHERE", help="earliest; latest; an offset; a time (RFC 3339); or how long ago (15m)."
        ),
    ],
    partitions: Annotated[
        list[int] | None, typer.Option("--partition", "-p", help="Only this one; repeatable.")
    ] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only show what would be moved.")] = False,
    force: Annotated[bool, typer.Option("--force", help="Though members consume; they begin anew.")] = False,
    url: Url = URL_DEFAULT,
    as_json: Json = False,
) -> None:
    """Move a group to other offsets of a topic.

    [b]Examples[/b]

      mq group reset billing orders --to 15m --dry-run
      mq group reset billing orders --to earliest
    """
    body: dict[str, object] = {"topic": topic, "to": _where(to), "dry_run": dry_run, "force": force}
    if partitions:
        body["partitions"] = partitions
    answer = ask(url, lambda client: client.post(f"{_path(group)}/offsets:reset", orjson.dumps(body), JSON))
    if as_json:
        print_json(answer)
        return
    table = new_table("partition", "from", "to")
    for row in rows_of(answer, "partitions"):
        add_row(table, row["partition"], "-" if row["from"] is None else row["from"], row["to"])
    console().print(table)
    if dry_run:
        typer.echo("nothing was moved: this was a dry run", err=True)


@app.command("delete")
def delete(group: Group, url: Url = URL_DEFAULT) -> None:
    """Forget a group, its offsets and settings. Its dead letters stay.

    [b]Example[/b]

      mq group delete billing
    """
    ask(url, lambda client: client.delete(_path(group)))
    typer.echo("deleted")


@app.command("config")
def config(
    group: Group,
    changes: Annotated[
        list[str] | None, typer.Argument(metavar="[NAME=VALUE]...", help="What to change; null: back to the default.")
    ] = None,
    url: Url = URL_DEFAULT,
    as_json: Json = False,
) -> None:
    """Show a group's settings, or change some.

    [b]Examples[/b]

      mq group config billing
      mq group config billing max_attempts=5 backoff="1s 10s 1m"
    """
    if changes:
        wanted = dict(_change(text) for text in changes)
        settings: Row = ask(url, lambda client: client.patch(_path(group), wanted))
    else:
        described = ask(url, lambda client: client.get(_path(group)))
        shown = described.get("config")
        if not isinstance(shown, dict):
            raise CliError("the server's answer has no config; is it an mq server of this version?")
        settings = shown
    if as_json:
        print_json(settings)
        return
    table = new_table("setting", "value")
    for name, value in settings.items():
        add_row(table, name, value if isinstance(value, str) else orjson.dumps(value).decode())
    console().print(table)


@app.command("dlq")
def dlq(
    group: Group,
    count: Annotated[int, typer.Option("--count", "-n", min=1, max=1000, help="At most so many.")] = 20,
    url: Url = URL_DEFAULT,
    as_json: Json = False,
) -> None:
    """Show a group's dead letters: what it rejected, or failed at too often.

    [b]Example[/b]

      mq group dlq billing --json | jq .reason
    """
    answer = ask(url, lambda client: client.get(f"{_path(group)}/dlq?limit={count}"))
    letters = rows_of(answer, "messages")
    if as_json:
        for letter in letters:
            print_json(letter)
        return
    table = new_table("when", "from", "attempts", "reason")
    for letter in letters:
        where = f"{letter['topic']}/{letter['partition']}@{letter['topic_offset']}"
        add_row(table, _time(letter["dead_lettered_at"]), where, letter["delivery_attempts"], letter["reason"])
    console().print(table)
    typer.echo(f"{len(letters)} of {answer['total']}", err=True)


@app.command("redrive")
def redrive(
    group: Group,
    count: Annotated[int, typer.Option("--count", "-n", min=1, max=10_000, help="At most so many.")] = 100,
    url: Url = URL_DEFAULT,
) -> None:
    """Hand dead letters out again, the oldest first.

    [b]Example[/b]

      mq group redrive billing --count 10
    """
    body = orjson.dumps({"max_messages": count})
    answer = ask(url, lambda client: client.post(f"{_path(group)}/dlq:redrive", body, JSON))
    typer.echo(f"{answer['redriven']} redriven")


async def _watch(url: str, path: str, interval_s: float) -> None:
    """A table that is drawn anew until interrupted."""
    committed: dict[tuple[object, object], int] = {}
    looked_s = 0.0
    async with connected(url) as client:
        with Live(console=console(), auto_refresh=False, transient=False) as live:
            while True:
                answer = await client.get(path)
                now_s = time.monotonic()
                live.update(_lag_table(answer, committed, now_s - looked_s), refresh=True)
                looked_s = now_s
                for row in rows_of(answer, "partitions"):
                    committed[row["topic"], row["partition"]] = number_of(row["committed"] or 0)
                await asyncio.sleep(interval_s)


def _lag_table(answer: Row, committed_before: Mapping[tuple[object, object], int], elapsed_s: float) -> Table:
    """All partitions, and a line of totals. Rates are known from the second look on."""
    table = new_table(
        "topic", "partition", "committed", "end", "lag", "in flight", "delayed", "oldest", "rate", "owner"
    )
    now_ms = time.time() * 1000
    rates: list[float] = []
    rows = rows_of(answer, "partitions")
    for row in rows:
        before = committed_before.get((row["topic"], row["partition"]))
        rate = "-"
        if before is not None and elapsed_s > 0:
            rates.append(max(number_of(row["committed"] or 0) - before, 0) / elapsed_s)
            rate = f"{rates[-1]:,.0f}/s"
        oldest = row["oldest_unacked_ms"]
        add_row(
            table,
            row["topic"],
            row["partition"],
            "-" if row["committed"] is None else row["committed"],
            row["end"],
            row["lag"],
            row["in_flight"],
            row["delayed"],
            "-" if oldest is None else _age(now_ms - number_of(oldest)),
            rate,
            row["owner"] or "-",
        )
    table.add_section()
    total_rate = f"{sum(rates):,.0f}/s" if rates else "-"
    delayed = sum(number_of(row["delayed"]) for row in rows)
    add_row(table, "total", "", "", "", answer["total_lag"], answer["in_flight"], delayed, "", total_rate, "")
    return table


def _age(age_ms: float) -> str:
    seconds = max(age_ms, 0) / 1000
    for unit, length_s in (("d", 86_400), ("h", 3600), ("m", 60)):
        if seconds >= length_s:
            return f"{seconds / length_s:.1f} {unit}"
    return f"{seconds:.1f} s"


def _where(text: str) -> object:
    """The `to` of a reset, from what a person writes. Raises CliError."""
    if text in ("earliest", "latest"):
        return text
    if text.isascii() and text.isdigit():
        return int(text)
    try:
        return {"timestamp": max(0, int(time.time() * 1000) - parse_duration_ms(text))}
    except ValueError:
        return {"timestamp": text}


def _change(text: str) -> tuple[str, object]:
    """A setting and its value, JSON or plain text. Raises CliError."""
    name, equals, value = text.partition("=")
    if not equals or not name:
        raise CliError(f"{text} is not a change such as max_attempts=5", USAGE)
    try:
        return name, orjson.loads(value)
    except orjson.JSONDecodeError:
        return name, value


def _path(group: str) -> str:
    return f"{PATH}/{path_segment(group)}"


def _time(time_ms: object) -> str:
    return time_shown(time_ms) if isinstance(time_ms, int) else "-"


def _heard(ago_ms: object) -> str:
    return "connected" if ago_ms is None else f"{number_of(ago_ms) / 1000:.0f} s ago"
