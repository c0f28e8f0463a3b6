"""What all commands share at the terminal: errors, progress, and the options that mean the same everywhere."""

from __future__ import annotations

import os
import re
import sys
from typing import Annotated

import orjson
import typer
from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, Progress, ProgressColumn, SpinnerColumn, TextColumn, TimeElapsedColumn

REFUSED = 1
USAGE = 2
UNREACHABLE = 3

Url = Annotated[str, typer.Option("--url", envvar="MQ_URL", help="The server.", show_default=True)]
URL_DEFAULT = "http://127.0.0.1:8082"

Json = Annotated[bool, typer.Option("--json", help="Print JSON, one object a line, for other programs.")]


class CliError(Exception):
    """What went wrong and what to do about it, in one line; the command ends with `exit_code`."""

    def __init__(self, message: str, exit_code: int = REFUSED) -> None:
        super().__init__(message)
        self.exit_code = exit_code


def print_error(message: str) -> None:
    """One line on stderr."""
    Console(stderr=True, highlight=False, soft_wrap=True).print(f"[red]error:[/red] {escaped(message)}")


def print_note(message: str) -> None:
    """One line on stderr that is no error."""
    Console(stderr=True, highlight=False, soft_wrap=True).print(f"[dim]{escaped(message)}[/dim]")


def print_json(shown: object) -> None:
    """One JSON object on a line of its own. Not flushed: there may be many."""
    print_line(orjson.dumps(shown).decode())


def print_line(text: str) -> None:
    """One line on stdout. Not flushed. Ends the command when nobody reads any more, as `head` does after enough."""
    try:
        sys.stdout.write(text + "\n")
    except BrokenPipeError:
        raise _output_closed() from None


def flush() -> None:
    """Let readers of stdout see what was printed. Ends the command when there is none any more."""
    try:
        sys.stdout.flush()
    except BrokenPipeError:
        raise _output_closed() from None


def _output_closed() -> typer.Exit:
    # Python flushes stdout once more when it exits, and would complain.
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return typer.Exit(0)


def escaped(text: str) -> str:
    """Text from elsewhere: no markup of ours, and no control characters that would move a terminal's cursor."""
    return escape(printable(text))


def printable(text: str) -> str:
    """The text with control characters written out."""
    if text.isprintable():
        return text
    return "".join(char if char.isprintable() else char.encode("unicode_escape").decode() for char in text)


def progress(*columns: ProgressColumn) -> Progress:
    """A progress bar on stderr that vanishes when done; nothing at all where stderr is not a terminal."""
    console = Console(stderr=True)
    return Progress(
        SpinnerColumn(),
        TextColumn("{task.description}"),
        BarColumn(),
        *columns,
        TimeElapsedColumn(),
        console=console,
        transient=True,
        disable=not console.is_terminal,
    )


_DURATION = re.compile(r"(\d+(?:\.\d+)?)(ms|s|m|h|d)")
_UNIT_MS = {"ms": 1, "s": 1000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}


def parse_duration_ms(text: str) -> int:
    """Milliseconds of `90s`, `1h30m`, `500ms`, `2d`. Raises ValueError."""
    parts = _DURATION.findall(text)
    if not parts or "".join(number + unit for number, unit in parts) != text:
        raise ValueError(f"{text!r} is not a duration such as 90s, 1h30m or 500ms")
    return round(sum(float(number) * _UNIT_MS[unit] for number, unit in parts))
