"""`mq config`: what a server would run with, and whether it would start."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

from gateway.cli.terminal import USAGE, CliError, Json, escaped, print_json

app = typer.Typer(help="Check and show a server's settings.", no_args_is_help=True)

Data = Annotated[Path | None, typer.Option(help="Directory of the store.", file_okay=False)]
Config = Annotated[Path | None, typer.Option(help="Settings in TOML; MQ_* variables win over it.")]


@app.command("check")
def check(data: Data = None, config: Config = None) -> None:
    """Say whether a server would accept these settings, and the files they name. Nothing is opened or written.

    [b]Example[/b]

      mq config check --config /etc/mq.toml && systemctl restart mq
    """
    # Here, not at the top: a client command need not load the server.
    from gateway.auth.policy import PolicyError, PolicyFiles
    from gateway.main.clustering import checked, checked_kafka
    from gateway.main.tls import ServerTls, TlsError
    from gateway.schemas.registry import Registry
    from gateway.settings.config import ConfigError, load

    try:
        settings = load(file=config, environment=os.environ, flags={"data": data})
        if settings.tls.is_on:
            ServerTls(settings.tls)
        PolicyFiles(settings.auth).load()
        if settings.registry.url is not None:
            Registry(settings.registry)
        checked_kafka(settings.cluster, settings.cluster.node or "")
        if settings.cluster.is_shared:
            checked(settings.cluster)
    except (ConfigError, PolicyError, TlsError) as error:
        raise CliError(str(error), USAGE) from error
    except (OSError, ValueError) as error:
        raise CliError(f"registry.ca_file: {error}", USAGE) from error
    typer.echo("fine")


@app.command("show")
def show(data: Data = None, config: Config = None, as_json: Json = False) -> None:
    """Show every setting, its value, and where that came from.

    Secrets are in files of their own, which settings only name, so the output holds no secret.

    [b]Examples[/b]

      mq config show --config /etc/mq.toml
      mq config show --data ./data --json | jq 'select(.source != "default")'
    """
    from gateway.settings.config import ConfigError, Given, build, gather, plain, settings_of

    try:
        given = gather(file=config, environment=os.environ, flags={"data": data})
        settings = settings_of(build({name: value for name, (value, _) in given.items()}))
    except ConfigError as error:
        raise CliError(str(error), USAGE) from error
    rows = [(name, value, given.get(name, Given(None, "default")).source) for name, value in settings.items()]
    if as_json:
        for name, value, source in rows:
            print_json({"setting": name, "value": plain(value), "source": source})
        return
    table = Table(box=None, pad_edge=False)
    for heading in ("setting", "value", "source"):
        table.add_column(heading, no_wrap=True)
    for name, value, source in rows:
        shown = plain(value)
        table.add_row(name, escaped("" if shown is None else str(shown)), escaped(source))
    console = Console(highlight=False)
    console.print(table, width=None if console.is_terminal else 400)
