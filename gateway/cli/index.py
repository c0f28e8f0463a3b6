"""`mq index`: the index of a data directory, offline."""

from __future__ import annotations

import os
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer
from rich.progress import DownloadColumn, TimeRemainingColumn

from gateway.cli.terminal import USAGE, CliError, Json, print_json, print_note, progress
from store.errors import StoreError

app = typer.Typer(help="Rebuild a data directory's index. The server must not be running.", no_args_is_help=True)


class Kind(StrEnum):
    """Where the index lives."""

    FILE = "file"
    ROCKSDB = "rocksdb"


@app.callback()
def index() -> None:
    """Rebuild a data directory's index. The server must not be running."""


@app.command("rebuild")
def rebuild(
    data: Annotated[Path, typer.Option(help="The data directory.", exists=True, file_okay=False, envvar="MQ_DATA")],
    to: Annotated[Kind, typer.Option(help="[b]file[/b], or [b]rocksdb[/b] for more than some ten thousand queues.")],
    config: Annotated[Path | None, typer.Option(help="The server's settings in TOML, if it has any.")] = None,
    as_json: Json = False,
) -> None:
    """Build the index again from the log: of the other kind, or of the same kind when it is damaged.

    No record is touched. Interrupted at any point, it can be run again.

    [b]Examples[/b]

      mq index rebuild --data ./data --to rocksdb
      mq index rebuild --data ./data --to file
    """
    # Here, not at the top: a client command need not load the store.
    from gateway.settings.config import ConfigError, load
    from store.offline.index_rebuild import rebuild_index

    try:
        settings = load(file=config, environment=os.environ, flags={"data": data})
    except ConfigError as error:
        raise CliError(str(error), USAGE) from error
    with progress(DownloadColumn(), TimeRemainingColumn()) as bar:
        task = bar.add_task("reading the log", total=None)
        try:
            report = rebuild_index(
                settings.store,
                to.value,
                progress=lambda done, total: bar.update(task, completed=done, total=total),
            )
        except (StoreError, OSError) as error:
            raise CliError(f"cannot rebuild the index of {data}: {error}") from error
    if as_json:
        print_json(report._asdict())
    else:
        typer.echo(
            f"{data}: {report.kind} index of {report.record_count} records in {report.queue_count} queues; "
            f'start the server with index = "{report.kind}"'
        )
    if not report.is_certain:
        print_note("there was no old index to read: partitions whose records have all expired begin at offset 0 again")
