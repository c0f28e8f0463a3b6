"""The command `mq`: run a server, and use one from a shell. One file a command; this one puts them together.

Output for people goes to stdout as text, with `--json` as JSON, one object a line. Everything else (progress, errors,
logs) goes to stderr. Exit codes: 0 done, 1 refused or failed, 2 wrong usage, 3 no server reached, 130 interrupted.
docs/cli.md has all of it for users.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Annotated

import orjson
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
from gateway.cli.terminal import USAGE, CliError, print_error
from gateway.main.version import installed_version

INTERRUPTED = 130

COMMANDS: dict[str, Callable[..., None] | typer.Typer] = {
    "serve": serve.serve,
    "topic": topic.app,
    "group": group.app,
    "broker": broker.app,
    "partition": partition.app,
    "cluster": cluster.app,
    "schedule": schedule.app,
    "recurring": recurring.app,
    "send": send.send,
    "tail": tail.tail,
    "status": status.status,
    "bench": bench.bench,
    "context": context.app,
    "dump": dump.dump,
    "verify": offline.verify,
    "repair": offline.repair,
    "backup": offline.backup,
    "restore": offline.restore,
    "index": index.app,
    "token": token.app,
    "audit": audit.audit,
    "config": config.app,
}
"""In the order in which `mq --help` shows them."""


def command_line(*names: str) -> typer.Typer:
    """`mq` with the commands of these names."""
    made = typer.Typer(
        name="mq",
        help="A message queue: HTTP to send, WebSocket to consume, any delay.",
        epilog="Start with: mq serve --data ./data, then in another shell: mq topic create orders; mq send orders 1\n\n"
        "Exit codes: 0 done, 1 refused or failed, 2 wrong usage, 3 no server reached, 130 interrupted.",
        no_args_is_help=True,
        pretty_exceptions_enable=False,
        rich_markup_mode="rich",
        context_settings={"help_option_names": ["-h", "--help"]},
    )
    made.callback()(_for_every_command)
    for name in names:
        command = COMMANDS[name]
        if isinstance(command, typer.Typer):
            made.add_typer(command, name=name)
        else:
            made.command(name)(command)
    return made


def _print_version(is_asked: bool) -> None:
    if is_asked:
        typer.echo(f"mq {installed_version()}")
        raise typer.Exit


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


app = command_line(*COMMANDS)


def main() -> None:
    """Run the command line and exit."""
    # To put all seventy together takes typer a tenth of a second: where the first word says which, it has only that.
    named = [word for word in sys.argv[1:2] if word in COMMANDS]
    try:
        (command_line(*named) if named else app)()
    except CliError as error:
        print_error(str(error))
        sys.exit(error.exit_code)
    except (orjson.JSONEncodeError, UnicodeEncodeError) as error:  # no UTF-8, or a number that no field has room for
        print_error(f"an argument cannot be sent: {error}")
        sys.exit(USAGE)
    except KeyboardInterrupt:
        sys.exit(INTERRUPTED)
