"""`mq broker`: the brokers of a cluster, and what is on them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

import typer

from gateway.api.shapes.queries import LIST_ROWS_MAX
from gateway.cli.client import Client, ask, path_segment
from gateway.cli.partition import Route, move_all
from gateway.cli.terminal import URL_DEFAULT, Json, Url, print_json, print_table, rows_of

app = typer.Typer(help="List, drain and add the brokers of a cluster.", no_args_is_help=True)

PATH = "/mq/v1/brokers"
Name = Annotated[str, typer.Argument(help="The broker.", show_default=False)]


@app.command("list")
def list_(url: Url = URL_DEFAULT, as_json: Json = False) -> None:
    """List all brokers: whether each is there, how quickly it answers, how many partitions it has.

    [b]Example[/b]

      mq broker list
    """
    rows = rows_of(ask(url, lambda client: client.get(PATH)), "brokers")
    if as_json:
        for row in rows:
            print_json(row)
        return
    cells = [
        (row["broker"], row["state"], row["partitions"], _ms(row["latency_ms"]), row["url"] or "") for row in rows
    ]  # fmt: skip
    print_table(("broker", "state", "partitions", "latency", "url"), cells)


@app.command("drain")
def drain(name: Name, url: Url = URL_DEFAULT, as_json: Json = False) -> None:
    """Move all partitions off a broker, and have none begin on it. Its older records stay on it, and are read from
    there until they expire; so do its groups and delayed records. Run it again to finish what failed.

    [b]Example[/b]

      mq broker drain n2
    """

    async def drained(client: Client) -> list[Route]:
        await client.patch(f"{PATH}/{path_segment(name)}", {"draining": True})
        return await _carry_out(client, name, draining=True)

    _tell(ask(url, drained), f"{name} has no open partition", as_json)


@app.command("add")
def add(name: Name, url: Url = URL_DEFAULT, as_json: Json = False) -> None:
    """Have partitions begin on a broker again, and move its share of those that there are to it.

    [b]Example[/b]

      mq broker add n3
    """

    async def added(client: Client) -> list[Route]:
        await client.patch(f"{PATH}/{path_segment(name)}", {"draining": False})
        return await _carry_out(client, name, draining=False)

    _tell(ask(url, added), f"{name} has its share", as_json)


async def _carry_out(client: Client, name: str, *, draining: bool) -> list[Route]:
    """Make the moves of the server's plan; where the partitions are then. Raises CliError."""
    path = f"{PATH}/{path_segment(name)}/plan?draining={str(draining).lower()}&limit={LIST_ROWS_MAX}"
    routes: list[Route] = []
    while moves := rows_of(await client.get(path), "moves"):
        routes += await move_all(client, [(row, str(row["to"])) for row in moves])
    return routes


def _tell(moved: Sequence[Route], done: str, as_json: bool) -> None:
    if as_json:
        for route in moved:
            print_json(route)
    else:
        typer.echo(f"{done}; partitions moved: {len(moved)}")


def _ms(latency_ms: object) -> str:
    return f"{latency_ms:.1f} ms" if isinstance(latency_ms, float | int) else ""
