"""Check the files of a timer that no server has open; called by `mq verify` behind the store's own check.

They hold no fact of their own: a start that finds them damaged builds them again from the log. But it does not read all
of them, so damage is told here before a schedule that is due meets it. The cure is always the same: delete the timer's
directory while no server runs.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from store.offline.verify import Finding, Severity
from timer.dump import dump
from timer.key_index import check_file
from timer.wheel import SLOT_BYTES

DIRECTORY = "timer"
CHECKPOINT_BYTES = 60
SLOT_SPACING_BYTES = 4096
_CURE = "delete the timer directory, the next start builds it again"
_FINDINGS_MAX = 100  # of one file


def verify(root: Path, *, log_end: int) -> Iterator[Finding]:
    """What is wrong with the timer below a data directory whose commit log ends at `log_end`. Nothing is written."""
    directory = root / DIRECTORY
    if not directory.is_dir():
        return
    timer_log_end, is_wheel_complete = 0, False
    path = directory / "checkpoint"
    newest = 0
    content = path.read_bytes() if path.exists() else b""
    for slot in _checkpoint(path):
        at = _int(slot, "slot") * SLOT_SPACING_BYTES
        if not slot["valid"]:
            if any(content[at : at + SLOT_SPACING_BYTES]):
                yield Finding(Severity.LEFTOVER, str(path), at, "a slot fails its check; the other one counts")
            continue
        if any(content[at + CHECKPOINT_BYTES : at + SLOT_SPACING_BYTES]):
            yield Finding(Severity.LEFTOVER, str(path), at + CHECKPOINT_BYTES, "bytes behind a slot are not zero")
        if _int(slot, "generation") > newest:
            newest = _int(slot, "generation")
            timer_log_end, is_wheel_complete = _int(slot, "log_end"), bool(slot["clean"])
    yield from _pending(directory / "pending")
    yield from _keys(directory / "keys")
    yield from _timer_log(directory / "timerlog", timer_log_end, log_end)
    if is_wheel_complete and (directory / "wheel").exists():
        for slot in dump(directory / "wheel"):
            if "damage" in slot:
                yield _damage(directory / "wheel", _int(slot, "index") * SLOT_BYTES, f"{slot['damage']}: {_CURE}")


def _checkpoint(path: Path) -> Iterator[dict[str, object]]:
    try:
        yield from dump(path)
    except (FileNotFoundError, ValueError):  # never written, or both slots without their magic
        return


def _pending(path: Path) -> Iterator[Finding]:
    """Damage here costs nothing but the time of a count: it is not believed, and no fact is lost."""
    if not path.exists() or not path.stat().st_size:
        return  # never written
    try:
        [state, *_] = dump(path)
        is_valid = bool(state["valid"])
    except ValueError:
        is_valid = False
    if not is_valid:
        yield Finding(Severity.LEFTOVER, str(path), 0, "the counts fail their check; the next start counts again")


def _keys(path: Path) -> Iterator[Finding]:
    """A start believes a database that opens; so a damaged page is told here."""
    if path.exists():
        try:
            damage = check_file(path)
        except OSError as error:
            damage = str(error)
        if damage is not None:
            yield _damage(path, 0, f"{damage}: {_CURE}")


def _timer_log(directory: Path, end: int, log_end: int) -> Iterator[Finding]:
    """Units before the checkpointed end; what lies behind it is cut by the next start."""
    names = sorted(name.name for name in directory.iterdir() if name.name.isdecimal()) if directory.is_dir() else []
    position: int | None = None
    for name in names:
        path = directory / name
        if position is not None and int(name) != position and position < end:
            yield _damage(path, position, f"units before this file are missing: {_CURE}")
        position = int(name)
        count = 0
        for unit in dump(path):
            position = _int(unit, "position")
            if position >= end or count >= _FINDINGS_MAX:
                break
            if "damage" in unit:
                count += 1
                yield _damage(path, position, f"{unit['damage']}: {_CURE}")
            elif _int(unit, "entry_position") + _int(unit, "entry_size") > log_end:
                count += 1
                yield _damage(path, position, f"the unit points behind the end of the log, {log_end}: {_CURE}")
        position = int(name) + path.stat().st_size
    if end and (position is None or position < end):
        yield _damage(directory, position or 0, f"the timer log ends before its checkpoint, {end}: {_CURE}")


def _damage(path: Path, position: int, reason: str) -> Finding:
    return Finding(Severity.DAMAGE, str(path), position, reason)


def _int(fields: dict[str, object], name: str) -> int:
    value = fields[name]
    assert isinstance(value, int)
    return value
