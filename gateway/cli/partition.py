"""`mq partition`: move partitions between the brokers of a cluster."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

import orjson
import typer
from rich.progress import TextColumn

from gateway.cli.client import JSON, Client, ask, path_segment
from gateway.cli.complete import topic_names
from gateway.cli.terminal import URL_DEFAULT, USAGE, CliError, Json, Url, print_json, progress
from gateway.cli.topic import PATH, number_of_partitions

Route = dict[str, object]
"""A partition as `GET /mq/v1/routes` shows it."""

Accepted = Annotated[
    bool, typer.Option("--accept-offline", help="Go on without what only that broker has, until it is back.")
]

TAKEN = """Records that only the missing broker has cannot be read until it is back; readers of them get an error, and
nothing is skipped. New records go to another broker, at offsets 17,592,186,044,416 further on: none is given twice, and
lags count the gap until it is passed. Sends that are repeated over the takeover may be stored twice. When the broker is
back, it takes nothing for what was taken over, and what it has is read from it again; delayed records that wait there
are delivered then."""
"""What a takeover of partitions means."""

app = typer.Typer(help="Move partitions between the brokers of a cluster.", no_args_is_help=True)


@app.command("move")
def move(
    topic: Annotated[str, typer.Argument(help="The topic.", show_default=False, autocompletion=topic_names)],
    to: Annotated[str, typer.Option("--to", help="The broker that they are to be on.", show_default=False)],
    partitions: Annotated[
        list[int] | None, typer.Argument(help="Which.", show_default=False, metavar="[PARTITION]...")
    ] = None,
    is_all: Annotated[bool, typer.Option("--all", help="All partitions of the topic.")] = False,
    url: Url = URL_DEFAULT,
    as_json: Json = False,
) -> None:
    """Move partitions to a broker, one after the other. No record is copied: new ones go there, and those that are
    stored stay where they are and are read from there. Sends wait for some milliseconds.

    [b]Examples[/b]

      mq partition move orders 3 --to n2
      mq partition move orders --all --to n2
    """
    if bool(partitions) == is_all:
        raise CliError("say which partitions, or --all", USAGE)

    async def moved(client: Client) -> list[Route]:
        numbers = partitions or range(await number_of_partitions(client, topic))
        return await move_all(client, [({"topic": topic, "partition": number}, to) for number in numbers])

    for route in ask(url, moved):
        if as_json:
            print_json(route)
        else:
            typer.echo(f"{topic} partition {route['partition']} is on {route['owner']}")


@app.command("takeover")
def takeover(
    topic: Annotated[str, typer.Argument(help="The topic.", show_default=False, autocompletion=topic_names)],
    partition: Annotated[int, typer.Argument(help="Which.", show_default=False)],
    is_accepted: Accepted = False,
    to: Annotated[str | None, typer.Option("--to", help="The broker; else the one with the fewest.")] = None,
    url: Url = URL_DEFAULT,
    as_json: Json = False,
) -> None:
    """Go on with a partition whose broker is not there, on another one, and say what that means. The broker may come
    back: what it has is then read from it again.

    [b]Example[/b]

      mq partition takeover orders 3 --accept-offline
    """
    check_accepted(is_accepted)
    body = {"accept_offline": True, **({} if to is None else {"to": to})}
    path = f"{PATH}/{path_segment(topic)}/partitions/{partition}/takeover"
    route = ask(url, lambda client: client.post(path, orjson.dumps(body), JSON))
    if as_json:
        print_json(route)
    else:
        typer.echo(TAKEN)
        typer.echo(f"{topic} partition {route['partition']} is on {route['owner']}")


def check_accepted(is_accepted: bool) -> None:
    """Raises CliError, which says what a takeover means."""
    if not is_accepted:
        raise CliError(f"{TAKEN}\nIf that is right: --accept-offline", USAGE)


async def move_all(client: Client, moves: Sequence[tuple[Route, str]]) -> list[Route]:
    """Move partitions, each to its broker, one after the other; where they are then. Raises CliError."""
    routes = []
    with progress(TextColumn("{task.completed:,.0f} of {task.total:,.0f} partitions")) as bar:
        task = bar.add_task("moving", total=len(moves))
        for row, to in moves:
            path = f"{PATH}/{path_segment(str(row['topic']))}/partitions/{row['partition']}/move"
            routes.append(await client.post(path, orjson.dumps({"to": to}), JSON))
            bar.advance(task)
    return routes
