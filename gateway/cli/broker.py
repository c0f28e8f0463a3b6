"""`mq broker`: the brokers of a cluster, and what is on them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

import typer

from gateway.api.shapes.queries import LIST_ROWS_MAX
from gateway.cli.client import Client, ask, path_segment
from gateway.cli.partition import Route, move_all
from gateway.cli.terminal import URL_DEFAULT, CliError, Json, Url, print_json, print_table, rows_of

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
        rows, _ = await client.listed("/mq/v1/routes", "partitions", page_rows=LIST_ROWS_MAX)
        counts = _counts(rows, await _takers(client))
        if not counts:
            raise CliError(f"no other broker can take the partitions of {name}")
        moves = []
        for row in rows:
            if row["owner"] == name:
                to = min(sorted(counts), key=lambda broker: counts[broker])
                counts[to] += 1
                moves.append((row, to))
        return await move_all(client, moves)

    _tell(ask(url, drained), f"{name} has no open partition", as_json)


@app.command("add")
def add(name: Name, url: Url = URL_DEFAULT, as_json: Json = False) -> None:
    """Have partitions begin on a broker again, and move its share of those that there are to it.

    [b]Example[/b]

      mq broker add n3
    """

    async def added(client: Client) -> list[Route]:
        await client.patch(f"{PATH}/{path_segment(name)}", {"draining": False})
        rows, _ = await client.listed("/mq/v1/routes", "partitions", page_rows=LIST_ROWS_MAX)
        counts = _counts(rows, await _takers(client))
        if name not in counts:
            raise CliError(f"{name} takes no partitions now: see mq broker list")
        moves = []
        share = len(rows) // len(counts)
        for row in rows:
            owner = str(row["owner"])
            if counts[name] < share and owner != name and counts.get(owner, 0) > share:
                counts[owner] -= 1
                counts[name] += 1
                moves.append((row, name))
        return await move_all(client, moves)

    _tell(ask(url, added), f"{name} has its share", as_json)


async def _takers(client: Client) -> set[str]:
    """The brokers that partitions may be moved to."""
    rows = rows_of(await client.get(PATH), "brokers")
    return {str(row["broker"]) for row in rows if row["state"] in ("up", "avoided")}


def _counts(rows: Sequence[Route], takers: set[str]) -> dict[str, int]:
    """How many of these partitions each taker has."""
    return {name: sum(row["owner"] == name for row in rows) for name in takers}


def _tell(moved: Sequence[Route], done: str, as_json: bool) -> None:
    if as_json:
        for route in moved:
            print_json(route)
    else:
        typer.echo(f"{done}; partitions moved: {len(moved)}")


def _ms(latency_ms: object) -> str:
    return f"{latency_ms:.1f} ms" if isinstance(latency_ms, float | int) else ""
