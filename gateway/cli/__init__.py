"""The command `mq`: run a server, and use one from a shell. One file a command; this one puts them together.

Output for people goes to stdout as text, with `--json` as JSON, one object a line. Everything else (progress, errors,
logs) goes to stderr. Exit codes: 0 done, 1 refused or failed, 2 wrong usage, 3 no server reached, 130 interrupted.
docs/cli.md has all of it for users.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Annotated

import typer

from gateway.cli import (
    audit,
    bench,
    broker,
    cluster,
    complete,
    config,
    context,
    dump,
    group,
    index,
    offline,
    partition,
    recurring,
    schedule,
    send,
    serve,
    status,
    tail,
    token,
    topic,
)
from gateway.cli.client import CA_VARIABLE
from gateway.cli.terminal import CliError, print_error
from gateway.main.version import installed_version

INTERRUPTED = 130

app = typer.Typer(
    name="mq",
    help="A message queue: HTTP to send, WebSocket to consume, any delay.",
    epilog="Start with: mq serve --data ./data, then in another shell: mq topic create orders; mq send orders 1\n\n"
    "Exit codes: 0 done, 1 refused or failed, 2 wrong usage, 3 no server reached, 130 interrupted.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
    context_settings={"help_option_names": ["-h", "--help"]},
)
app.command("serve")(serve.serve)
app.add_typer(topic.app, name="topic")
app.add_typer(group.app, name="group")
app.add_typer(broker.app, name="broker")
app.add_typer(partition.app, name="partition")
app.add_typer(cluster.app, name="cluster")
app.add_typer(schedule.app, name="schedule")
app.add_typer(recurring.app, name="recurring")
app.command("send")(send.send)
app.command("tail")(tail.tail)
app.command("status")(status.status)
app.command("bench")(bench.bench)
app.add_typer(context.app, name="context")
app.command("dump")(dump.dump)
app.command("verify")(offline.verify)
app.command("repair")(offline.repair)
app.command("backup")(offline.backup)
app.command("restore")(offline.restore)
app.add_typer(index.app, name="index")
app.add_typer(token.app, name="token")
app.command("audit")(audit.audit)
app.add_typer(config.app, name="config")


def _print_version(is_asked: bool) -> None:
    if is_asked:
        typer.echo(f"mq {installed_version()}")
        raise typer.Exit


@app.callback()
def _for_every_command(
    ca: Annotated[
        Path | None,
        typer.Option(
            help="Certificates (PEM) to trust, when the server's is no public one. [dim]env: MQ_CA[/dim]",
            show_default=False,
        ),
    ] = None,
    context_name: Annotated[
        str | None,
        typer.Option(
            "--context",
            help="Use this server (see [b]mq context[/b]), whatever MQ_URL and MQ_TOKEN say. "
            "[dim]env: MQ_CONTEXT[/dim]",
            autocompletion=complete.context_names,
            show_default=False,
        ),
    ] = None,
    version: Annotated[
        bool, typer.Option("--version", help="Print the version and exit.", is_eager=True, callback=_print_version)
    ] = False,
) -> None:
    if context_name is not None:
        context.choose(context_name, os.environ)  # what `client.server_of` reads
    if ca is not None:
        os.environ[CA_VARIABLE] = str(ca)


def main() -> None:
    """Run the command line and exit."""
    try:
        app()
    except CliError as error:
        print_error(str(error))
        sys.exit(error.exit_code)
    except KeyboardInterrupt:
        sys.exit(INTERRUPTED)
