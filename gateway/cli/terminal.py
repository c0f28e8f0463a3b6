"""What all commands share at the terminal: errors, tables, JSON, progress; options that mean the same everywhere.

Colours, and JSON over many lines, are for terminals; in a pipe or a file everything is plain, and JSON one object a
line. NO_COLOR takes the colours away.
"""

from __future__ import annotations

import json
import os
import re
import sys
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from functools import lru_cache
from typing import IO, Annotated, Any

import orjson
import typer
from rich.console import Console
from rich.highlighter import JSONHighlighter
from rich.markup import escape
from rich.progress import BarColumn, Progress, ProgressColumn, SpinnerColumn, TextColumn, TimeElapsedColumn
from rich.table import Table
from rich.text import Text

REFUSED = 1
USAGE = 2
UNREACHABLE = 3

PIPED_WIDTH = 400
"""Piped output has no width: lines may be as long as they are."""

NUMBERS = frozenset(
    ("partitions", "partition", "topic id", "first", "next", "records", "members", "committed", "end", "lag",
     "in flight", "delayed", "oldest", "rate", "attempts", "to", "leased", "offset")
)  # fmt: skip
"""Headings of columns that are aligned to the right."""

DEEP_RECURSION = 10_000
"""Of Python's stack, for values as deep as orjson reads (1,024 levels)."""

DURATION_MS_MAX = 1000 * 365 * 86_400_000
"""A thousand years: added to now it is still a date."""

ID_CHARS = 28
"""Characters of a schedule's id."""

Url = Annotated[
    str,
    typer.Option(
        "--url",
        help="The server. [dim]env: MQ_URL; default: the context's, else http://127.0.0.1:8082[/dim]",
        show_default=False,
    ),
]
URL_DEFAULT = ""
"""No flag: `client.server_of` looks at MQ_URL and the context."""

Json = Annotated[bool, typer.Option("--json", help="Print JSON, for other programs: one object a line in a pipe.")]


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
    """One JSON object: on a line of its own, or indented and coloured on a terminal. Not flushed: there may be many."""
    if not sys.stdout.isatty():
        print_line(json_text(shown))
        return
    lines = json_text(shown, is_indented=True).split("\n")
    print_styled(coloured_json("\n".join(map(printable, lines))))


def json_text(shown: object, *, is_indented: bool = False) -> str:
    """As JSON, however deep it is: a value of a record may be nested more deeply than orjson writes."""
    try:
        return orjson.dumps(shown, option=orjson.OPT_INDENT_2 if is_indented else None).decode()
    except orjson.JSONEncodeError:
        with _deep_stack():
            return json.dumps(shown, ensure_ascii=False, separators=(",", ":"))


def parsed_json(text: str) -> Any:
    """What a text in JSON says, however deep it is: in a frame a value is deeper than by itself."""
    try:
        return orjson.loads(text)
    except orjson.JSONDecodeError:
        with _deep_stack():
            return json.loads(text)


@contextmanager
def _deep_stack() -> Iterator[None]:
    limit = sys.getrecursionlimit()
    sys.setrecursionlimit(DEEP_RECURSION)
    try:
        yield
    finally:
        sys.setrecursionlimit(limit)


def coloured_json(text: str) -> Text:
    """JSON with the colours of its parts."""
    return JSONHighlighter()(Text(text))


def print_styled(text: Text) -> None:
    """Text with styles, for a terminal, as long as it is."""
    _console_of(sys.stdout).print(text, soft_wrap=True)


@lru_cache(maxsize=1)
def _console_of(stream: IO[str]) -> Console:
    """Made once: it looks at the terminal and the environment, which takes longer than a line."""
    return Console(file=stream, highlight=False)


def console() -> Console:
    """Where tables go: as wide as the terminal, or as they need in a pipe."""
    return Console(highlight=False, width=None if sys.stdout.isatty() else PIPED_WIDTH)


def new_table(*headings: str) -> Table:
    """An empty table."""
    table = Table(box=None, pad_edge=False, header_style="bold", show_header=any(headings))
    for heading in headings:
        min_width = ID_CHARS if heading == "id" else None  # whole on any terminal, to be copied
        table.add_column(heading, justify="right" if heading in NUMBERS else "left", no_wrap=True, min_width=min_width)
    return table


def add_row(table: Table, *cells: object) -> None:
    """A row of text from elsewhere."""
    table.add_row(*(escaped(str(cell)) for cell in cells))


def print_table(headings: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
    """A table of text from elsewhere."""
    table = new_table(*headings)
    for row in rows:
        add_row(table, *row)
    console().print(table)


def rows_of(answer: object, name: str) -> list[dict[str, object]]:
    """The list of this name in a server's answer. Raises CliError."""
    rows = answer.get(name) if isinstance(answer, dict) else None
    if not isinstance(rows, list):
        raise CliError(f"the server's answer has no {name}; is it an mq server of this version?")
    return rows


def number_of(value: object) -> int:
    """A number in a server's answer."""
    assert isinstance(value, int)
    return value


def print_line(text: str) -> None:
    """One line on stdout. Not flushed. Ends the command when the reader has closed the pipe, as `head` does. Raises
    CliError when it cannot be written, as on a full disk."""
    try:
        sys.stdout.write(text + "\n")
    except OSError as error:
        raise _output_closed(error) from None


def flush() -> None:
    """Let readers of stdout see what was printed, as `print_line`."""
    try:
        sys.stdout.flush()
    except OSError as error:
        raise _output_closed(error) from None


def _output_closed(error: OSError) -> Exception:
    # Python flushes stdout once more when it exits, and would complain.
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return typer.Exit(0) if isinstance(error, BrokenPipeError) else CliError(f"the output: {error.strerror}")


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
    duration_ms = sum(float(number) * _UNIT_MS[unit] for number, unit in parts)
    if duration_ms > DURATION_MS_MAX:
        raise ValueError(f"{text!r} is more than a thousand years")
    return round(duration_ms)


def duration_ms(text: str, option: str) -> int:
    """As `parse_duration_ms`, for the value of an option. Raises CliError."""
    try:
        return parse_duration_ms(text)
    except ValueError as error:
        raise CliError(f"{option}: {error}", USAGE) from None


def time_to_send(text: str) -> int | str:
    """A time as the server takes it: epoch ms as a number, anything else as it is, for the server to judge."""
    return int(text) if text.isascii() and text.isdigit() else text


def time_shown(time_ms: object, timespec: str = "milliseconds") -> str:
    """A time in a server's answer: epoch ms, in UTC. Raises OverflowError, ValueError for what no calendar has."""
    return datetime.fromtimestamp(number_of(time_ms) / 1000, UTC).isoformat(timespec=timespec)[:-6] + "Z"


def time_ms(text: str, option: str, others: str = "") -> int:
    """Epoch ms of a time, or of so long ago. `others`: what else the option takes. Raises CliError."""
    try:
        return max(0, int(time.time() * 1000) - parse_duration_ms(text))
    except ValueError:
        pass
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        raise CliError(
            f"{option} {text}: use {others}a time such as 2026-12-24T18:00:00Z, or how long ago (15m)", USAGE
        ) from None
    if moment.tzinfo is None:
        raise CliError(f"{option} {text}: a time needs its offset from UTC, such as {text}Z", USAGE)
    return max(0, int(moment.timestamp() * 1000))
