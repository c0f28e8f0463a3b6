"""`mq broker`: the brokers of a cluster, and what is on them."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Annotated, Any

import orjson
import typer
from rich.progress import TextColumn

from gateway.cli.client import JSON, Client, ask, path_segment
from gateway.cli.partition import TAKEN, Accepted, check_accepted
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

TAKEN_GROUPS = """Its groups begin anew: their offsets, leases and settings are on the missing broker alone, and it
forgets them when it is back. They start where their consumers say; to set it: mq group reset."""

app = typer.Typer(help="List, drain and add the brokers of a cluster.", no_args_is_help=True)

PATH = "/mq/v1/brokers"
POLL_S = 0.3
"""How often it is asked how far a broker is."""

Row = Mapping[str, object]
"""A broker as `GET /mq/v1/brokers` shows it."""

Name = Annotated[str, typer.Argument(help="The broker.", show_default=False)]


@app.command("list")
def list_(url: Url = URL_DEFAULT, as_json: Json = False) -> None:
    """List all brokers: whether each is there, how quickly it answers, how many partitions it has open and
    sealed, how many groups.

    [b]Example[/b]

      mq broker list
    """
    rows = rows_of(ask(url, lambda client: client.get(PATH)), "brokers")
    if as_json:
        for row in rows:
            print_json(row)
        return
    cells = [
        (
            row["broker"], row["state"], row["partitions"], row["sealed_segments"],
            *("" if row.get(name) is None else row[name] for name in ("groups", "on_kafka")),
            _ms(row["latency_ms"]), row["url"] or "",
        )
        for row in rows
    ]  # fmt: skip
    print_table(("broker", "state", "partitions", "sealed", "groups", "on Kafka", "latency", "url"), cells)
    for row in rows:
        reasons = row["reasons"]
        for reason in reasons if isinstance(reasons, list) else ():
            print_note(f"{row['broker']}: {reason}")


@app.command("drain")
def drain(name: Name, url: Url = URL_DEFAULT, as_json: Json = False) -> None:
    """Have a broker give up its partitions and groups to the others, and take none, and wait until it has. Its older
    records stay on it, and are read from there until they expire; so do its delayed records. It goes on when this
    command is stopped.

    [b]Example[/b]

      mq broker drain n2
    """

    async def drained(client: Client) -> Row:
        row = await client.patch(f"{PATH}/{path_segment(name)}", {"draining": True})
        with progress(TextColumn("{task.completed:,.0f} of {task.total:,.0f} partitions and groups")) as bar:
            task = bar.add_task("draining", total=(total := _left(row)))
            while row["state"] != "drained":
                if row["state"] in ("offline", "stopped"):
                    raise CliError(f"{name} is {row['state']}: what is on it waits for it")
                if not await _takers(client):
                    raise CliError(f"no other broker can take the partitions of {name}")
                await asyncio.sleep(POLL_S)
                row = next(row for row in rows_of(await client.get(PATH), "brokers") if row["broker"] == name)
                total = max(total, _left(row))
                bar.update(task, total=total, completed=total - _left(row))
        return row

    row = ask(url, drained)
    if as_json:
        print_json(row)
    elif row["sealed_segments"]:
        typer.echo(f"{name} is drained; {row['sealed_segments']} older segments are read from it until they expire")
    else:
        typer.echo(f"{name} is drained, and has no records of the cluster")


@app.command("add")
def add(name: Name, url: Url = URL_DEFAULT, as_json: Json = False) -> None:
    """Have partitions begin on a broker again, and have it take its share of those that there are, some a second
    (`cluster.balance_moves_per_s`). It goes on when this command is stopped. A new node does it by itself.

    [b]Example[/b]

      mq broker add n3
    """

    async def added(client: Client) -> Row:
        row = await client.patch(f"{PATH}/{path_segment(name)}", {"draining": False})
        with progress(TextColumn("{task.completed:,.0f} of about {task.total:,.0f} partitions")) as bar:
            task = bar.add_task("taking its share", total=None)
            while row["balancing"]:
                rows = rows_of(await client.get(PATH), "brokers")
                row = next(row for row in rows if row["broker"] == name)
                if row["state"] in ("offline", "stopped"):
                    raise CliError(f"{name} is {row['state']}: it takes its share when it is back")
                nodes = [row for row in rows if row["kind"] != "kafka"]  # what is there is some node's
                takers = sum(row["state"] in ("up", "avoided") for row in nodes)
                share = sum(map(_share, nodes)) // max(takers, 1)
                bar.update(task, total=share, completed=_share(row))
                await asyncio.sleep(POLL_S)
        return row

    row = ask(url, added)
    if as_json:
        print_json(row)
    else:
        on_kafka = f", {row['on_kafka']} on Kafka clusters" if row.get("on_kafka") else ""
        typer.echo(f"{name} has its share: {row['partitions']} partitions on its broker{on_kafka}")


@app.command("takeover")
def takeover(name: Name, is_accepted: Accepted = False, url: Url = URL_DEFAULT, as_json: Json = False) -> None:
    """Go on with all partitions and groups of a broker that is not there, and say what that means. One that is there is
    drained instead.

    [b]Example[/b]

      mq broker takeover n2 --accept-offline
    """
    check_accepted(is_accepted)
    body = orjson.dumps({"accept_offline": True})
    path = f"{PATH}/{path_segment(name)}/takeover"
    taken: Mapping[str, Any] = ask(url, lambda client: client.post(path, body, JSON))
    if as_json:
        print_json(taken)
        return
    typer.echo(f"{TAKEN}\n{TAKEN_GROUPS}")
    typer.echo(
        f"taken over from {name}: {taken['partitions']} partitions, groups: {', '.join(taken['groups']) or 'none'}"
    )


async def _takers(client: Client) -> set[str]:
    """The brokers that partitions may be moved to."""
    rows = rows_of(await client.get(PATH), "brokers")
    return {str(row["broker"]) for row in rows if row["state"] in ("up", "avoided")}


def _left(row: Row) -> int:
    """What a broker that drains still has to give."""
    return _share(row) + number_of(row["groups"])


def _share(row: Row) -> int:
    """How many partitions and shards its node owns."""
    return number_of(row["partitions"]) + number_of(row.get("on_kafka") or 0)  # an older server does not say


def _ms(latency_ms: object) -> str:
    return f"{latency_ms:.1f} ms" if isinstance(latency_ms, float | int) else ""
