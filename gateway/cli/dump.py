"""`mq dump`: print a file of the store or the timer as JSON lines, without a server."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import suppress
from itertools import islice
from pathlib import Path
from typing import Annotated

import typer
from rich.progress import TextColumn

from gateway.cli.terminal import USAGE, CliError, flush, print_json, progress

PROGRESS_ROWS = 1000


def dump(
    file: Annotated[
        Path,
        typer.Argument(help="A file below a server's data directory.", exists=True, dir_okay=False, show_default=False),
    ],
    values: Annotated[
        bool, typer.Option("--values", help="With a commit log: the records of every entry too.")
    ] = False,
    count: Annotated[int | None, typer.Option("-n", "--count", min=1, help="Stop after so many lines.")] = None,
) -> None:
    """Print a file of a data directory as JSON lines: log, index, ids, snapshots, timer, trail.

    The file is read as it is; damage is printed, not hidden. No server is needed, and one may be running. The key that
    signs receipts is not printed, and the files of a RocksDB index are RocksDB's own.

    [b]Examples[/b]

      mq dump data/commitlog/00000000000000000000 -n 5
      mq dump data/commitlog/00000000000000000000 --values | jq .topic | sort | uniq -c
    """
    rows = _rows(file, values)
    quiet = sys.stdout.isatty()  # rows on the screen are progress enough
    with progress(TextColumn("{task.completed:,} lines")) as bar:
        task = bar.add_task(f"reading {file.name}", total=None, visible=not quiet)
        for number, row in enumerate(islice(rows, count), 1):
            print_json(row)
            if not quiet and number % PROGRESS_ROWS == 0:
                bar.update(task, completed=number)
    flush()


def _rows(file: Path, values: bool) -> Iterator[dict[str, object]]:
    """What the part that owns the file says is in it."""
    # Here, not at the top: most commands need no store.
    from gateway.main.offline import dump as dump_own_file
    from store.offline.dump import dump as dump_store_file
    from timer.dump import dump as dump_timer_file

    for dump_file in (dump_timer_file, dump_own_file):
        try:
            with suppress(ValueError):
                return dump_file(file)
        except PermissionError as error:
            raise CliError(str(error), USAGE) from error
    try:
        return dump_store_file(file, values=values)
    except ValueError:
        raise CliError(
            f"{file} is not a file of a data directory that could be printed (see docs/formats.md)", USAGE
        ) from None
