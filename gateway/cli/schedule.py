"""`mq schedule`: list, show, cancel, move and fire delayed records."""

from __future__ import annotations

from typing import Annotated

import typer

from gateway.cli.client import JSON, ask, path_segment, query
from gateway.cli.complete import topic_names
from gateway.cli.terminal import (
    URL_DEFAULT,
    USAGE,
    CliError,
    Json,
    Url,
    duration_ms,
    print_json,
    print_table,
    time_shown,
    time_to_send,
)

app = typer.Typer(help="List, show, cancel, move and fire delayed records.", no_args_is_help=True)

PATH = "/mq/v1/schedules"

Id = Annotated[
    str,
    typer.Argument(
        metavar="ID",
        help="The schedule's id, from sending or listing; with --topic, its schedule key.",
        show_default=False,
    ),
]
OfTopic = Annotated[
    str | None,
    typer.Option("--topic", "-t", help="ID is the schedule key of one of this topic.", autocompletion=topic_names),
]
Topic = Annotated[str | None, typer.Option("--topic", "-t", help="Only of this topic.", autocompletion=topic_names)]
Key = Annotated[str | None, typer.Option("--key", "-k", help="Only with this key; with --topic.")]
From = Annotated[str | None, typer.Option("--from", help="Only due from this time on (RFC 3339 or epoch ms).")]
To = Annotated[str | None, typer.Option("--to", help="Only due before this time.")]


@app.command("list")
def list_(
    topic: Topic = None,
    key: Key = None,
    from_: From = None,
    to: To = None,
    limit: Annotated[int, typer.Option("--limit", "-n", min=1, help="At most so many.")] = 100,
    url: Url = URL_DEFAULT,
    as_json: Json = False,
) -> None:
    """List pending schedules in the order in which they were accepted.

    [b]Example[/b]

      mq schedule list --topic orders --to 2026-12-24T18:00:00Z
    """
    if key is not None and topic is None:
        raise CliError("--key needs --topic", USAGE)
    rows, first_page = ask(
        url, lambda client: client.listed(PATH, "schedules", limit, topic=topic, key=key, from_=from_, to=to)
    )
    if as_json:
        for row in rows:
            print_json(row)
        return
    shown = []
    for row in rows:
        sent_key = row.get("key", row.get("key_base64"))
        key_text = "-" if sent_key is None else sent_key
        shown.append((row["schedule_id"], row["topic"], row["partition"], time_shown(row["deliver_at"]), key_text))
    print_table(("id", "topic", "partition", "due", "key"), shown)
    if (total := first_page.get("total")) is not None:
        typer.echo(f"{len(rows)} of {total} pending", err=True)


@app.command("get")
def get(schedule_id: Id, topic: OfTopic = None, url: Url = URL_DEFAULT) -> None:
    """Print one pending schedule with its value, as JSON.

    [b]Examples[/b]

      mq schedule get sAAABi...

      mq schedule get remind-o-77 --topic orders
    """
    print_json(ask(url, lambda client: client.get(_path(schedule_id, topic=topic, include="value"))))


@app.command("cancel")
def cancel(
    schedule_id: Annotated[
        str | None,
        typer.Argument(
            metavar="[ID]", help="One schedule, by its id or, with --topic, its schedule key.", show_default=False
        ),
    ] = None,
    topic: Topic = None,
    key: Key = None,
    from_: From = None,
    to: To = None,
    url: Url = URL_DEFAULT,
) -> None:
    """Cancel one schedule, or those of a topic.

    [b]Examples[/b]

      mq schedule cancel sAAABi...

      mq schedule cancel remind-o-77 --topic orders

      mq schedule cancel --topic orders --key o-77
    """
    if schedule_id is None and topic is None:
        raise CliError("name one schedule by its id, or all of a topic with --topic", USAGE)
    if schedule_id is not None:
        if key is not None or from_ is not None or to is not None:
            raise CliError("--key, --from and --to choose among the schedules of a topic; an id needs none", USAGE)
        ask(url, lambda client: client.delete(_path(schedule_id, topic=topic)))
        typer.echo("cancelled")
        return
    answer = ask(url, lambda client: client.delete(PATH + query(topic=topic, key=key, from_=from_, to=to)))
    typer.echo(f"{answer['cancelled']} cancelled")


@app.command("move")
def move(
    schedule_id: Id,
    delay: Annotated[str | None, typer.Option("--delay", help="From now on: 90s, 1h30m, 2d.")] = None,
    at: Annotated[str | None, typer.Option("--at", help="An RFC 3339 time or epoch ms.")] = None,
    topic: OfTopic = None,
    url: Url = URL_DEFAULT,
) -> None:
    """Give a schedule another due time; prints its new id.

    [b]Example[/b]

      mq schedule move sAAABi... --delay 2h
    """
    body: dict[str, object]
    if at is not None and delay is None:
        body = {"deliver_at": time_to_send(at)}
    elif delay is not None and at is None:
        body = {"delay_ms": duration_ms(delay, "--delay")}
    else:
        raise CliError("say when: either --delay or --at", USAGE)
    typer.echo(ask(url, lambda client: client.patch(_path(schedule_id, topic=topic), body))["schedule_id"])


@app.command("fire")
def fire(schedule_id: Id, topic: OfTopic = None, url: Url = URL_DEFAULT) -> None:
    """Deliver a schedule now; prints where it went.

    [b]Example[/b]

      mq schedule fire sAAABi...
    """
    where = ask(url, lambda client: client.post(_path(schedule_id, ":fire", topic=topic), b"", JSON))
    typer.echo(f"{where['topic']} partition {where['partition']} offset {where['offset']}")


def _path(schedule_id: str, verb: str = "", **asked: str | None) -> str:
    return f"{PATH}/{path_segment(schedule_id)}{verb}{query(**asked)}"
