"""A copy of what a timer alone knows, made while a server writes to it or while none does.

The log says of a schedule that it was delivered only where the delivery is in the same log. Of what went to other nodes
the read mark says it: all slots before it are done for good. So who restores a node of a cluster needs the
checkpoint, and the timer log, to which the checkpoint belongs. The checkpoint is read first: what it says of the timer
log stays true while that grows, and units before the read mark are the only ones whose files are removed.

What a start finds is what a crash leaves: the wheel is built of the timer log, and `__timer` read on from the
checkpoint's queue offset, with all changes that the log has (timer/recovery.py).
"""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

from store.errors import Corrupt
from store.files import OsFiles
from timer.checkpoint import Checkpoint, CheckpointFile
from timer.timer_log import UNIT_BYTES, TimerLog, Unit
from timer.verify import DIRECTORY

CHECKPOINT, TIMER_LOG, KEYS = "checkpoint", "timerlog", "keys"
ATTEMPTS = 20
WAIT_S = 0.05
"""How often files are copied again that were changed meanwhile, and how long apart."""

_CHECKPOINT_BYTES = 8192


def copy_timer(root: Path, out: Path) -> Checkpoint | None:
    """Copy what the timer of a data directory knows into a directory that is made; its checkpoint, None when there is
    none yet. Raises Corrupt, FormatTooNew, OSError."""
    for attempt in range(ATTEMPTS):
        try:
            return _copied(root / DIRECTORY, out)
        except (Corrupt, FileNotFoundError):  # overtaken: a unit was being marked, or a file has expired
            if attempt == ATTEMPTS - 1:
                raise
            time.sleep(WAIT_S)
    raise AssertionError


def _copied(timer: Path, out: Path) -> Checkpoint | None:
    (out / TIMER_LOG).mkdir(parents=True, exist_ok=True)
    if not (timer / CHECKPOINT).exists():
        return None
    with (timer / CHECKPOINT).open("rb") as file:
        (out / CHECKPOINT).write_bytes(file.read(_CHECKPOINT_BYTES))
    checkpoint = checkpoint_in(out)
    if checkpoint is None:
        raise Corrupt(str(timer / CHECKPOINT), 0, "no slot of the timer's checkpoint is whole")
    for path in sorted((timer / TIMER_LOG).iterdir()):
        left = checkpoint.log_end - int(path.name)
        if left > 0:
            with path.open("rb") as file:
                (out / TIMER_LOG / path.name).write_bytes(file.read(left))
    if (timer / KEYS).exists():
        with (
            closing(sqlite3.connect(f"file:{timer / KEYS}?mode=ro", uri=True)) as source,
            closing(sqlite3.connect(out / KEYS)) as target,
        ):
            source.backup(target)
    for _ in units_in(out, checkpoint):
        pass  # each is checked
    return checkpoint


def checkpoint_in(directory: Path) -> Checkpoint | None:
    """The checkpoint that counts of a copied timer. Raises FormatTooNew, Corrupt."""
    file = CheckpointFile(OsFiles(), directory / CHECKPOINT)
    file.close()
    return file.latest


def units_in(directory: Path, checkpoint: Checkpoint) -> Iterator[Unit]:
    """The units of a copied timer log, as of its checkpoint. Raises Corrupt."""
    starts = sorted(int(path.name) for path in (directory / TIMER_LOG).iterdir())
    # Files have one size, and each begins at a multiple of it; of one file the size need not be known.
    file_bytes = starts[1] - starts[0] if len(starts) > 1 else sum(starts) or checkpoint.log_end
    timer_log = TimerLog(OsFiles(), directory / TIMER_LOG, file_units=max(file_bytes // UNIT_BYTES, 1))
    timer_log.open(checkpoint.log_end)
    try:
        for _, unit in timer_log.scan():
            yield unit
    finally:
        timer_log.close()
