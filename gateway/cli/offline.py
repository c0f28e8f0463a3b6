"""`mq verify`, `mq repair`, `mq backup`, `mq restore`: check a data directory that no server has open; save what is
intact of a damaged one; copy one, also while a server uses it; put a copy in place.

Exit codes of `verify`: 0 clean, 1 damage found, 2 it could not be checked. Of the others: 0 done, 1 refused or failed.
"""

from __future__ import annotations

import os
import shutil
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import orjson
import typer
from rich.progress import DownloadColumn, TimeRemainingColumn

from gateway.cli.terminal import USAGE, CliError, Json, print_json, print_note, printable, progress, time_shown
from gateway.cli.trail import record
from store.errors import StoreError

if TYPE_CHECKING:
    from store.offline.backup import BackupReport
    from store.offline.verify import Finding, VerifyReport

DAMAGED = 1
CANNOT_CHECK = 2

Data = Annotated[Path, typer.Argument(help="The data directory; no server may be using it.", show_default=False)]


def verify(data: Data, as_json: Json = False) -> None:
    """Check every byte of a data directory: log, index, topics, ids, consumer groups, timer. Nothing is written.

    Exit code 0: clean (what a crash may leave is named, and is no damage). 1: damage; see [b]mq repair[/b]. 2: it could
    not be checked, for instance because a server is using it.

    [b]Examples[/b]

      mq verify ./data
      mq verify ./backup --json | jq -r 'select(.severity == "damage") | .reason'
    """
    try:
        report = _checked(data)
    except (StoreError, OSError) as error:
        raise CliError(f"cannot check {data}: {error}", CANNOT_CHECK) from error
    for finding in report.findings:
        if as_json:
            print_json(_fields(finding))
        else:
            typer.echo(printable(str(finding)))
    unnamed_count = report.finding_count - len(report.findings)
    summary: dict[str, object] = {
        "data": str(data),
        "clean": report.is_clean,
        "damage": report.damage_count,
        "leftovers": report.finding_count - report.damage_count,
        "entries": report.entry_count,
        "records": report.record_count,
        "partitions": report.queue_count,
        "log_begin": report.log_begin,
        "log_end": report.log_end,
        "index_checked": report.index_checked,
    }
    if as_json:
        print_json(summary)
    else:
        if unnamed_count:
            typer.echo(f"... and {unnamed_count:,} more")
        verdict = "clean" if report.is_clean else f"DAMAGED in {report.damage_count:,} places; see mq repair --help"
        typer.echo(
            f"{data}: {verdict} ({report.record_count:,} records in {report.queue_count:,} partitions, "
            f"{report.log_end - report.log_begin:,} bytes of log)"
        )
        if not report.index_checked:
            print_note("the index was not checked: there is none, or it is not one of files")
    raise typer.Exit(0 if report.is_clean else DAMAGED)


def repair(
    data: Data,
    out: Annotated[
        Path | None, typer.Option(help="The new data directory to make; must not exist.", show_default=False)
    ] = None,
    in_place: Annotated[
        bool,
        typer.Option("--in-place", help="Put the result in the place of DATA; what was there becomes DATA.damaged."),
    ] = False,
    config: Annotated[Path | None, typer.Option(help="The server's settings in TOML, if it has any.")] = None,
    as_json: Json = False,
) -> None:
    """Copy what is intact of a damaged data directory, and name every lost range of offsets.

    Intact records keep their offsets; a lost one is replaced by a tombstone (no key, no value, header [b]mq-lost[/b]).
    The damaged directory is only read.

    [b]Examples[/b]

      mq repair ./data --out ./data-repaired
      mq repair ./data --in-place
    """
    from gateway.api.trail_files import DIRECTORY as TRAIL_DIRECTORY
    from gateway.auth.config import DIRECTORY as AUTH_DIRECTORY
    from gateway.settings.config import ConfigError, load
    from store.offline.repair import repair as repair_store
    from store.offline.verify import offsets_text

    if (out is None) != in_place:
        raise CliError("say either --out NEWDIR or --in-place", USAGE)
    data = data.resolve()  # a link stays where it is, and leads to what takes the place
    target = data.with_name(f"{data.name}.repaired") if out is None else out
    aside = data.with_name(f"{data.name}.damaged")
    if in_place and aside.exists():
        raise CliError(f"{aside} is in the way: the result of an earlier repair?", USAGE)
    try:
        settings = load(file=config, environment=os.environ, flags={"data": data})
    except ConfigError as error:
        raise CliError(str(error), USAGE) from error
    with progress(DownloadColumn(), TimeRemainingColumn()) as bar:
        task = bar.add_task(f"repairing {data}", total=None)
        try:
            report = repair_store(
                settings.store, target, progress=lambda done, total: bar.update(task, completed=done, total=total)
            )
            for name in (AUTH_DIRECTORY, TRAIL_DIRECTORY):
                if (data / name).is_dir():
                    shutil.copytree(data / name, target / name, symlinks=True)
            if in_place:
                data.rename(aside)
                target.rename(data)
        except (StoreError, OSError) as error:
            raise CliError(f"cannot repair {data}: {error}") from error
    for lost in report.lost:
        if as_json:
            print_json({"topic": lost.topic, "partition": lost.queue.queue_id, "first": lost.first, "end": lost.end})
        else:
            where = "the partition now begins behind them" if lost.is_before_begin else "tombstones stand in for them"
            offsets = offsets_text(lost.first, lost.end)
            typer.echo(printable(f"lost: topic {lost.topic}, partition {lost.queue.queue_id}, {offsets}; {where}"))
    for note in report.notes:
        print_note(note)
    result = data if in_place else target
    if as_json:
        print_json({"out": str(result), "records": report.record_count, "lost": report.lost_count})
    else:
        typer.echo(f"{result}: {report.record_count:,} records kept, {report.lost_count:,} lost; verified")


def backup(
    data: Annotated[
        Path, typer.Argument(help="The data directory; a server may be using it.", show_default=False, file_okay=False)
    ],
    out: Annotated[Path, typer.Argument(help="The directory to make; must not exist.", show_default=False)],
    link_from: Annotated[
        Path | None,
        typer.Option(
            help="An earlier backup, or DATA itself: what it has of the log is linked, not copied. Same file system.",
            show_default=False,
            file_okay=False,
        ),
    ] = None,
    do_verify: Annotated[bool, typer.Option("--verify/--no-verify", help="Check the copy as `mq verify` does.")] = True,
    as_json: Json = False,
) -> None:
    """Copy a data directory, while a server uses it or not. The copy has everything acknowledged before this began.

    Topics, records, delayed records, consumer groups, ids of recent sends, tokens and rules, the trail of admin
    actions. Run it as the server's user: it reads the files, and asks no server. A backup is a data directory; [b]mq
    restore[/b] copies it back.

    [b]Examples[/b]

      mq backup ./data /backup/mq-$(date +%F)
      mq backup ./data /backup/mq-tuesday --link-from /backup/mq-monday
    """
    made = copied(data, out, link_from, do_verify=do_verify, doing="backing up")
    record(data, "backup.make", {"backup": str(out.resolve())})  # the copy's readers can read all records
    covered = time_shown(made.began_ms)
    if as_json:
        print_json({"out": str(out), "verified": do_verify, **asdict(made)})
        return
    typer.echo(
        f"{out}: has everything acknowledged before {covered}; {made.log_end - made.log_begin:,} bytes of log, "
        f"{made.linked_bytes:,} of them linked; {'verified' if do_verify else 'not verified'}"
    )


def restore(
    source: Annotated[
        Path, typer.Argument(metavar="BACKUP", help="What mq backup made.", show_default=False, file_okay=False)
    ],
    data: Annotated[Path, typer.Argument(help="The data directory to make; must not exist.", show_default=False)],
    do_verify: Annotated[
        bool, typer.Option("--verify/--no-verify", help="Check the result as `mq verify` does.")
    ] = True,
    as_json: Json = False,
) -> None:
    """Make a data directory from a backup. The backup stays as it is.

    Run it as the server's user, or as root: then everything belongs to the owner of the backup. The next start of the
    server builds the index and the timer's files from the log, some seconds for each GiB.

    [b]Examples[/b]

      mv ./data ./data.old; mq restore /backup/mq-monday ./data
    """
    from store.offline.backup import MANIFEST

    if not (source / MANIFEST).is_file():
        raise CliError(f"{source} has no {MANIFEST}: it is no backup, or one that was cut off")
    made = copied(source, data, None, do_verify=do_verify, doing="restoring")
    record(data, "backup.restore", {"backup": str(source.resolve())})
    if as_json:
        print_json({"data": str(data), "verified": do_verify, "log_begin": made.log_begin, "log_end": made.log_end})
    else:
        typer.echo(f"{data}: {made.log_end - made.log_begin:,} bytes of log; {'' if do_verify else 'not '}verified")
    if orjson.loads((source / MANIFEST).read_bytes()).get("index") == "rocksdb":
        print_note(f'the index was "rocksdb": before the start, mq index rebuild --data {data} --to rocksdb')


def _checked(data: Path) -> VerifyReport:
    """Everything that `mq verify` finds. Raises StoreError, OSError."""
    # Here, not at the top: a client command need not load the store.
    from gateway.main.offline import verify as verify_own
    from store.offline.verify import verify as verify_store
    from timer.verify import verify as verify_timer

    with progress(DownloadColumn(), TimeRemainingColumn()) as bar:
        task = bar.add_task(f"checking {data}", total=None)
        report = verify_store(data, progress=lambda done, total: bar.update(task, completed=done, total=total))
        for finding in verify_timer(data, log_end=report.log_end):
            report.add(finding)
        verify_own(data, report)
    return report


def copied(data: Path, out: Path, link_from: Path | None, *, do_verify: bool, doing: str) -> BackupReport:
    """A whole copy of a data directory under its final name, or none. Raises CliError."""
    from gateway.api.trail_files import DIRECTORY as TRAIL_DIRECTORY
    from gateway.auth.config import DIRECTORY as AUTH_DIRECTORY
    from gateway.main.file_handles import raised_limit
    from store.offline.backup import backup as backup_store

    partial = out.with_name(f"{out.name}.partial")
    if out.exists():
        raise CliError(f"{out} is in the way: name a directory that does not exist", USAGE)
    if partial.exists():
        raise CliError(f"{partial} is in the way: a backup that runs, or was killed; then remove it", USAGE)
    if out.resolve().is_relative_to(data.resolve()):
        raise CliError(f"{out} lies in {data}: name a directory elsewhere", USAGE)
    raised_limit()  # each file of the log is held open
    try:
        partial.mkdir(mode=0o700)
        with progress(DownloadColumn(), TimeRemainingColumn()) as bar:
            task = bar.add_task(f"{doing} {data}", total=None)
            for name in (AUTH_DIRECTORY, TRAIL_DIRECTORY):
                if (data / name).is_dir():
                    shutil.copytree(data / name, partial / name)
            made = backup_store(
                data,
                partial,
                link_from=link_from,
                progress=lambda done, total: bar.update(task, completed=done, total=total),
            )
        if os.geteuid() == 0:
            owner = data.stat()
            for path in [partial, *partial.rglob("*")]:
                os.chown(path, owner.st_uid, owner.st_gid)
        if do_verify and (damage := [one for one in _checked(partial).findings if one.severity.value == "damage"]):
            raise CliError(f"{partial}: the copy is damaged, as the original may be ({damage[0]}); see mq verify")
        partial.rename(out)
        _sync_directory(out.parent)
    except (StoreError, OSError) as error:
        shutil.rmtree(partial, ignore_errors=True)
        raise CliError(f"cannot copy {data}: {error}") from error
    except KeyboardInterrupt:
        shutil.rmtree(partial, ignore_errors=True)
        raise
    return made


def _sync_directory(path: Path) -> None:
    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def _fields(finding: Finding) -> dict[str, object]:
    return {**asdict(finding), "severity": finding.severity.value}
