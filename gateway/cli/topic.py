"""`mq topic`: create, list and describe topics."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

from gateway.cli.client import connected, topic_path
from gateway.cli.terminal import URL_DEFAULT, CliError, Json, Url, escaped, print_json
from store.topics import KeyForm

app = typer.Typer(help="Create, list and describe topics.", no_args_is_help=True)

Name = Annotated[str, typer.Argument(help="The topic's name.", show_default=False)]


@app.command("create")
def create(
    name: Name,
    partitions: Annotated[
        int | None,
        typer.Option("--partitions", "-p", min=1, help="How many; fixed for good. [dim]default: the server's, 4[/dim]"),
    ] = None,
    json_keys: Annotated[
        KeyForm | None,
        typer.Option(
            "--json-keys",
            help="How a key sent as a JSON string is stored: raw, as its UTF-8, or confluent, in quotes, as other "
            "REST proxies do; fixed for good. [dim]default: raw[/dim]",
        ),
    ] = None,
    url: Url = URL_DEFAULT,
    as_json: Json = False,
) -> None:
    """Create a topic. One that is there already with the same partitions is left as it is.

    [b]Example[/b]

      mq topic create orders --partitions 8
    """
    wanted = {"partitions": partitions, "json_keys": json_keys}
    body = {name: choice for name, choice in wanted.items() if choice is not None}

    async def created() -> dict[str, object]:
        async with connected(url) as client:
            return await client.put(f"/mq/v1/topics/{topic_path(name)}", body)

    topic = asyncio.run(created())
    if as_json:
        print_json(topic)
    else:
        typer.echo(f"{topic['topic']}: {topic['partitions']} partitions")


@app.command("list")
def list_(url: Url = URL_DEFAULT, as_json: Json = False) -> None:
    """List all topics.

    [b]Example[/b]

      mq topic list --json
    """
    topics = _rows(asyncio.run(_get(url, "/mq/v1/topics")), "topics")
    if as_json:
        for topic in topics:
            print_json(topic)
        return
    if not topics:
        typer.echo("no topics yet: create one with 'mq topic create NAME'")
        return
    _print_table(topics, {"topic": "topic", "partitions": "partitions", "topic_id": "id"})


@app.command("describe")
def describe(name: Name, url: Url = URL_DEFAULT, as_json: Json = False) -> None:
    """Show a topic's partitions with their first and next offsets.

    [b]Example[/b]

      mq topic describe orders
    """
    topic = asyncio.run(_get(url, f"/mq/v1/topics/{topic_path(name)}"))
    if as_json:
        print_json(topic)
        return
    partitions = _rows(topic, "offsets")
    for row in partitions:
        row["records"] = _number(row["end_offset"]) - _number(row["beginning_offset"])
    record_count = sum(_number(row["records"]) for row in partitions)
    typer.echo(f"{topic['topic']}: {topic['partitions']} partitions, {record_count} records")
    columns = {"partition": "partition", "beginning_offset": "first", "end_offset": "next", "records": "records"}
    _print_table(partitions, columns)


async def _get(url: str, path: str) -> dict[str, object]:
    async with connected(url) as client:
        return await client.get(path)


def _rows(answer: Mapping[str, object], name: str) -> list[dict[str, object]]:
    rows = answer.get(name)
    if not isinstance(rows, list):
        raise CliError(f"the server's answer has no {name}; is it an mq server of this version?")
    return rows


def _number(value: object) -> int:
    assert isinstance(value, int)
    return value


def _print_table(rows: list[dict[str, object]], columns: Mapping[str, str]) -> None:
    table = Table(box=None, pad_edge=False)
    for field, heading in columns.items():
        table.add_column(heading, justify="left" if field == "topic" else "right", no_wrap=True)
    for row in rows:
        table.add_row(*(escaped(str(row[field])) for field in columns))
    console = Console(highlight=False)
    # Piped output has no width: let lines be as long as they are.
    console.print(table, width=None if console.is_terminal else 400)
