"""`mq topic`: create, list, describe, alter and delete topics; where their partitions are, begin and end."""

from __future__ import annotations

import sys
from typing import Annotated

import orjson
import typer

from gateway.cli.client import JSON, Client, ask, path_segment, query
from gateway.cli.complete import topic_names
from gateway.cli.terminal import (
    URL_DEFAULT,
    USAGE,
    CliError,
    Json,
    Url,
    number_of,
    parse_duration_ms,
    print_json,
    print_table,
    rows_of,
    time_ms,
)
from store.topics import KeyForm

app = typer.Typer(help="Create, list, describe, alter and delete topics.", no_args_is_help=True)

PATH = "/mq/v1/topics"
DEFAULT = "default"
"""What takes a choice back."""

NewName = Annotated[str, typer.Argument(help="The topic's name.", show_default=False)]
Name = Annotated[str, typer.Argument(help="The topic's name.", show_default=False, autocompletion=topic_names)]
Retention = Annotated[
    str | None,
    typer.Option(help=f"How long its records are shown: 12h, 7d; {DEFAULT}: as long as the server keeps them."),
]
MessageBytes = Annotated[str | None, typer.Option(help=f"Most bytes of one record, or {DEFAULT}.", metavar="BYTES")]


@app.command("create")
def create(
    name: NewName,
    partitions: Annotated[
        int | None,
        typer.Option("--partitions", "-p", min=1, help="How many. [dim]default: the server's, 4[/dim]"),
    ] = None,
    json_keys: Annotated[
        KeyForm | None,
        typer.Option(
            "--json-keys",
            help="How a key sent as a JSON string is stored: raw, as its UTF-8, or confluent, in quotes, as other "
            "REST proxies do; fixed for good. [dim]default: raw[/dim]",
        ),
    ] = None,
    retention: Retention = None,
    max_message_bytes: MessageBytes = None,
    url: Url = URL_DEFAULT,
    as_json: Json = False,
) -> None:
    """Create a topic. One that is there already with the same partitions is left as it is.

    [b]Example[/b]

      mq topic create orders --partitions 8 --retention 3d
    """
    body = _settings(partitions, retention, max_message_bytes)
    if json_keys is not None:
        body["json_keys"] = json_keys
    _shown(ask(url, lambda client: client.put(_path(name), body)), as_json)


@app.command("alter")
def alter(
    name: Name,
    partitions: Annotated[
        int | None, typer.Option("--partitions", "-p", min=1, help="More than now; keys may then get another one.")
    ] = None,
    retention: Retention = None,
    max_message_bytes: MessageBytes = None,
    selector: Annotated[
        str | None,
        typer.Option(help=f"How records that name no partition get one: key, round_robin, random, room; or {DEFAULT}."),
    ] = None,
    mq_headers: Annotated[
        bool | None,
        typer.Option(help="Let Kafka clients delay records by the headers mq-delay-ms and mq-deliver-at."),
    ] = None,
    url: Url = URL_DEFAULT,
    as_json: Json = False,
) -> None:
    """Give a topic more partitions, or other settings.

    [b]Examples[/b]

      mq topic alter orders --partitions 16
      mq topic alter orders --retention 12h --max-message-bytes 65536
    """
    body = _settings(partitions, retention, max_message_bytes)
    if selector is not None:
        body["selector"] = None if selector == DEFAULT else selector
    if mq_headers is not None:
        body["mq_headers"] = mq_headers
    if not body:
        options = "--partitions, --retention, --max-message-bytes, --selector or --mq-headers"
        raise CliError(f"say what to change: {options}", USAGE)
    _shown(ask(url, lambda client: client.patch(_path(name), body)), as_json)


@app.command("delete")
def delete(
    name: Name,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
    url: Url = URL_DEFAULT,
) -> None:
    """Delete a topic and its records, for good. Asks first; in a script say --yes.

    [b]Example[/b]

      mq topic delete orders
    """
    described = ask(url, lambda client: client.get(_path(name)))
    if "attached" in described:
        raise CliError(f"{name} is a topic of Kafka's, whose records stay there: mq topic detach {name}", USAGE)
    if not yes:
        count = sum(_record_count(row) for row in rows_of(described, "offsets"))
        if not sys.stdin.isatty():
            raise CliError(f"{name} has {count:,} records: --yes deletes it without asking", USAGE)
        if not typer.confirm(f"Delete {name} and its {count:,} records for good?"):
            raise CliError("nothing was deleted")
    ask(url, lambda client: client.delete(_path(name)))
    typer.echo(f"{name} deleted")


@app.command("attach")
def attach(
    name: NewName,
    broker: Annotated[
        str, typer.Option("--broker", help="The Kafka cluster, as the server's --broker names it.", show_default=False)
    ],
    kafka_name: Annotated[
        str | None, typer.Option("--name", help="Its name in Kafka. [dim]default: the same[/dim]", show_default=False)
    ] = None,
    mirror_groups: Annotated[
        bool, typer.Option("--mirror-groups", help="Tell Kafka what groups commit here, for its tools.")
    ] = False,
    url: Url = URL_DEFAULT,
    as_json: Json = False,
) -> None:
    """Have a topic that is one of a Kafka cluster, which others write to as well. Its records stay there, and are read
    and sent there: at least once, at Kafka's offsets, for as long as Kafka keeps them.

    [b]Example[/b]

      mq topic attach orders --broker kafka1 --name prod.orders
    """
    body: dict[str, object] = {"broker": broker, "name": kafka_name or name, "mirror_groups": mirror_groups}
    _shown(ask(url, lambda client: client.post(f"{_path(name)}/attach", orjson.dumps(body), JSON)), as_json)


@app.command("detach")
def detach(name: Name, url: Url = URL_DEFAULT, as_json: Json = False) -> None:
    """Have an attached topic no more. The topic in Kafka and its records stay; what groups have committed here is gone.

    [b]Example[/b]

      mq topic detach orders
    """
    ask(url, lambda client: client.post(f"{_path(name)}/detach", b"", JSON))
    if as_json:
        print_json({"topic": name, "detached": True})
    else:
        typer.echo(f"{name} detached")


@app.command("list")
def list_(url: Url = URL_DEFAULT, as_json: Json = False) -> None:
    """List all topics.

    [b]Example[/b]

      mq topic list --json
    """
    topics = rows_of(ask(url, lambda client: client.get(PATH)), "topics")
    if as_json:
        for topic in topics:
            print_json(topic)
    elif topics:
        cells = [(topic["topic"], topic["partitions"], topic["topic_id"]) for topic in topics]
        print_table(("topic", "partitions", "topic id"), cells)
    else:
        typer.echo("no topics yet: create one with 'mq topic create NAME'")


@app.command("describe")
def describe(name: Name, url: Url = URL_DEFAULT, as_json: Json = False) -> None:
    """Show a topic's settings, and its partitions with their first and next offsets.

    [b]Example[/b]

      mq topic describe orders
    """
    topic = ask(url, lambda client: client.get(_path(name)))
    if as_json:
        print_json(topic)
        return
    partitions = rows_of(topic, "offsets")
    record_count = sum(map(_record_count, partitions))
    chosen = _chosen(topic)
    typer.echo(", ".join([f"{topic['topic']}: {topic['partitions']} partitions", f"{record_count} records", *chosen]))
    print_table(
        ("partition", "first", "next", "records"),
        [(row["partition"], row["beginning_offset"], row["end_offset"], _record_count(row)) for row in partitions],
    )


@app.command("offsets")
def offsets(
    name: Name,
    at: Annotated[
        str | None,
        typer.Option(
            help="Also the first offset stored at or after this time: RFC 3339, or how long ago (15m).", metavar="TIME"
        ),
    ] = None,
    url: Url = URL_DEFAULT,
    as_json: Json = False,
) -> None:
    """Show where each partition begins and ends, and where it was at a time. With --json, one line a partition.

    [b]Examples[/b]

      mq topic offsets orders
      mq topic offsets orders --at 2h
    """
    query = "" if at is None else f"?timestamp={time_ms(at, '--at')}"
    partitions = rows_of(ask(url, lambda client: client.get(f"{_path(name)}/offsets{query}")), "partitions")
    if as_json:
        for row in partitions:
            print_json(row)
        return
    fields = ("partition", "beginning_offset", "end_offset", *(() if at is None else ("offset_for_time",)))
    headings = ("partition", "first", "next", "offset")[: len(fields)]
    print_table(headings, [[row[field] for field in fields] for row in partitions])


@app.command("queues")
def queues(
    name: Name,
    prefix: Annotated[str, typer.Option(help="Only those whose names begin so.")] = "",
    limit: Annotated[int, typer.Option(min=1, help="How many at most.")] = 100,
    cursor: Annotated[str | None, typer.Option(help="Go on behind the last page: what it said at its end.")] = None,
    url: Url = URL_DEFAULT,
    as_json: Json = False,
) -> None:
    """List light queues of a topic, a name a line, in the order of their bytes. They are read a page at a time: a topic
    may have millions.

    [b]Examples[/b]

      mq topic queues orders --prefix room/
      mq topic queues orders --limit 5000 > names
    """

    from gateway.api.shapes.queries import LIST_ROWS_MAX  # here: the shapes of all requests take most of a start

    async def listed(client: Client) -> str | None:
        left, after = limit, cursor
        while True:
            asked = query(prefix=prefix or None, limit=str(min(left, LIST_ROWS_MAX)), cursor=after)
            page = await client.get(f"{_path(name)}/queues{asked}")
            names = page["queues"]
            assert isinstance(names, list)
            for one in names:
                if as_json:
                    print_json({"queue": one})
                else:
                    typer.echo(one)
            left -= len(names)
            after = None if page["next_cursor"] is None else str(page["next_cursor"])
            if after is None or not left:
                return after

    if (following := ask(url, listed)) is not None:
        typer.echo(f"there are more: --cursor {following}", err=True)


@app.command("routes")
def routes(name: Name, url: Url = URL_DEFAULT, as_json: Json = False) -> None:
    """Show on which broker each partition is, and where its older records are. With --json, one line a partition.

    [b]Example[/b]

      mq topic routes orders
    """
    from gateway.api.shapes.queries import LIST_ROWS_MAX

    rows, _ = ask(url, lambda client: client.listed(f"{_path(name)}/routes", "partitions", page_rows=LIST_ROWS_MAX))
    if as_json:
        for row in rows:
            print_json(row)
        return
    cells = [
        (row["partition"], row["owner"], ", ".join(map(_segment, rows_of(row, "segments")))) for row in rows
    ]  # fmt: skip
    print_table(("partition", "owner", "segments"), cells)


def _segment(segment: dict[str, object]) -> str:
    end = segment["end_offset"]
    return f"{segment['broker']} {segment['first_offset']}-{'' if end is None else number_of(end) - 1}"


async def number_of_partitions(client: Client, name: str) -> int:
    """How many partitions a topic has. Raises CliError."""
    return number_of((await client.get(_path(name)))["partitions"])


_SETTINGS = ("retention_ms", "max_message_bytes", "selector", "mq_headers")


def _settings(partitions: int | None, retention: str | None, message_bytes: str | None) -> dict[str, object]:
    """A request's body from what was given. Raises CliError."""
    body: dict[str, object] = {} if partitions is None else {"partitions": partitions}
    try:
        if retention is not None:
            body["retention_ms"] = None if retention == DEFAULT else parse_duration_ms(retention)
        if message_bytes is not None:
            body["max_message_bytes"] = None if message_bytes == DEFAULT else int(message_bytes)
    except ValueError as error:
        raise CliError(str(error), USAGE) from error
    return body


def _shown(topic: dict[str, object], as_json: bool) -> None:
    if as_json:
        print_json(topic)
    else:
        typer.echo(", ".join([f"{topic['topic']}: {topic['partitions']} partitions", *_chosen(topic)]))


def _chosen(topic: dict[str, object]) -> list[str]:
    attached = topic.get("attached")
    of = [f"topic {attached['name']} of {attached['broker']}"] if isinstance(attached, dict) else []
    return of + [f"{setting} {topic[setting]}" for setting in topic if setting in _SETTINGS]


def _record_count(row: dict[str, object]) -> int:
    return number_of(row["end_offset"]) - number_of(row["beginning_offset"])


def _path(name: str) -> str:
    return f"{PATH}/{path_segment(name)}"
