"""The command `mq`: run a server, and use one from a shell. One file a command; this one puts them together.

Output for people goes to stdout as text, with `--json` as JSON, one object a line. Everything else (progress, errors,
logs) goes to stderr. Exit codes: 0 done, 1 refused or failed, 2 wrong usage, 3 no server reached, 130 interrupted.
"""

from __future__ import annotations

import sys

import typer

from gateway.cli import dump, index, offline, schedule, send, serve, tail, topic
from gateway.cli.terminal import CliError, print_error

INTERRUPTED = 130

app = typer.Typer(
    name="mq",
    help="A message queue: HTTP to send, WebSocket to consume, any delay.",
    epilog="Start with: mq serve --data ./data, then in another shell: mq topic create orders; mq send orders 1",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
    context_settings={"help_option_names": ["-h", "--help"]},
)
app.command("serve")(serve.serve)
app.add_typer(topic.app, name="topic")
app.add_typer(schedule.app, name="schedule")
app.command("send")(send.send)
app.command("tail")(tail.tail)
app.command("dump")(dump.dump)
app.command("verify")(offline.verify)
app.command("repair")(offline.repair)
app.add_typer(index.app, name="index")


def main() -> None:
    """Run the command line and exit."""
    try:
        app()
    except CliError as error:
        print_error(str(error))
        sys.exit(error.exit_code)
    except KeyboardInterrupt:
        sys.exit(INTERRUPTED)
