"""`mq broker`: the brokers of a cluster."""

from __future__ import annotations

import typer

from gateway.cli.client import ask
from gateway.cli.terminal import URL_DEFAULT, Json, Url, print_json, print_table, rows_of

app = typer.Typer(help="List the brokers of a cluster.", no_args_is_help=True)


@app.callback()
def _group() -> None:
    """Makes `list` a subcommand although it is the only one."""


@app.command("list")
def list_(url: Url = URL_DEFAULT, as_json: Json = False) -> None:
    """List all brokers: whether each is there, how quickly it answers, how many partitions it has.

    [b]Example[/b]

      mq broker list
    """
    rows = rows_of(ask(url, lambda client: client.get("/mq/v1/brokers")), "brokers")
    if as_json:
        for row in rows:
            print_json(row)
        return
    cells = [
        (row["broker"], row["state"], row["partitions"], _ms(row["latency_ms"]), row["url"] or "") for row in rows
    ]  # fmt: skip
    print_table(("broker", "state", "partitions", "latency", "url"), cells)


def _ms(latency_ms: object) -> str:
    return f"{latency_ms:.1f} ms" if isinstance(latency_ms, float | int) else ""
