"""The timer's part of `mq verify`, and `mq dump` of its files: whole files pass, each kind of damage is told."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from store.files import OsFiles
from store.offline.verify import Finding, Severity
from timer.checkpoint import Checkpoint, CheckpointFile
from timer.dump import dump
from timer.pending_counts import PendingCounts
from timer.pending_file import PendingFile
from timer.timer_log import MAGIC_DEFAULT, UNIT_BYTES, TimerLog
from timer.verify import DIRECTORY, verify
from timer.wheel import SLOTS, Wheel

LOG_END = 10_000
UNITS = 100
FILE_UNITS = 40
FIRST_S = 1_800_000_000


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A data directory with the files of a timer that was closed: three log files, 34 slots, two checkpoints."""
    files, directory = OsFiles(), tmp_path / DIRECTORY
    directory.mkdir()
    timer_log = TimerLog(files, directory / "timerlog", file_units=FILE_UNITS)
    timer_log.open(0)
    wheel = Wheel(files, directory / "wheel")
    for number in range(UNITS):
        slot_s = FIRST_S + number // 3
        previous = wheel.add(slot_s, timer_log.end)
        timer_log.append(previous, MAGIC_DEFAULT, slot_s * 1000, number * 64, 64, 0, 16, slot_s)
    unwritten = timer_log.unwritten()
    timer_log.write(unwritten)
    timer_log.written(unwritten)
    wheel.flush()
    pending = PendingFile(files, directory / "pending")
    counts = PendingCounts()
    counts.add(16, FIRST_S * 1000, rolls=False, count=70)
    counts.add(17, FIRST_S * 1000, rolls=False, count=30)
    pending.write(counts, UNITS * UNIT_BYTES, UNITS)
    checkpoint = CheckpointFile(files, directory / "checkpoint")
    for write_mark_s in (FIRST_S, FIRST_S + 1):
        checkpoint.write(Checkpoint(UNITS * UNIT_BYTES, UNITS, FIRST_S, write_mark_s, 0, clean=True))
    for opened in (timer_log, wheel, checkpoint, pending):
        opened.close()
    return tmp_path


def findings(root: Path, *, log_end: int = LOG_END) -> list[Finding]:
    return list(verify(root, log_end=log_end))


def change(path: Path, at: int, content: bytes) -> None:
    with path.open("r+b") as file:
        file.seek(at)
        file.write(content)


def test_whole_files_and_no_files_have_no_findings(root: Path, tmp_path: Path) -> None:
    assert findings(root) == []
    assert findings(tmp_path / "elsewhere") == []


def test_everything_can_be_dumped(root: Path) -> None:
    units = [unit for file in sorted((root / DIRECTORY / "timerlog").iterdir()) for unit in dump(file)]
    assert [unit["position"] for unit in units] == [number * UNIT_BYTES for number in range(UNITS)]
    slots = list(dump(root / DIRECTORY / "wheel"))
    assert [slot["time_s"] for slot in slots] == list(range(FIRST_S, FIRST_S + 34))
    assert [slot["valid"] for slot in dump(root / DIRECTORY / "checkpoint")] == [True, True]
    state, *topics = dump(root / DIRECTORY / "pending")
    assert state == {"valid": True, "version": 2, "log_end": UNITS * UNIT_BYTES, "queue_offset": UNITS}
    assert topics == [{"topic_id": 16, "schedules": 70}, {"topic_id": 17, "schedules": 30}]


def flip_unit(directory: Path) -> Path:
    path = sorted((directory / "timerlog").iterdir())[1]
    change(path, 5 * UNIT_BYTES + 30, b"\xff")
    return path


def remove_file(directory: Path) -> Path:
    path = sorted((directory / "timerlog").iterdir())[1]
    path.unlink()
    return path


def cut_end(directory: Path) -> Path:
    path = sorted((directory / "timerlog").iterdir())[-1]
    path.write_bytes(path.read_bytes()[:-UNIT_BYTES])
    return path


def flip_slot(directory: Path) -> Path:
    change(directory / "wheel", FIRST_S % SLOTS * 32 + 10, b"\xff")
    return directory / "wheel"


@pytest.mark.parametrize("damage", [flip_unit, remove_file, cut_end, flip_slot])
def test_damage_is_told_with_its_cure(damage: Callable[[Path], Path], root: Path) -> None:
    damage(root / DIRECTORY)
    [finding] = findings(root)
    assert finding.severity is Severity.DAMAGE
    assert "delete the timer directory" in finding.reason


def test_units_that_point_behind_the_log_are_damage(root: Path) -> None:
    found = findings(root, log_end=UNITS * 64 - 1)
    assert [finding.position for finding in found] == [(UNITS - 1) * UNIT_BYTES]


def test_a_torn_checkpoint_slot_is_a_leftover(root: Path) -> None:
    change(root / DIRECTORY / "checkpoint", 20, b"\xff")
    assert [finding.severity for finding in findings(root)] == [Severity.LEFTOVER]
    change(root / DIRECTORY / "checkpoint", 20, b"\xfe")
    change(root / DIRECTORY / "checkpoint", 3000, b"\xff")
    assert len(findings(root)) == 1


@pytest.mark.parametrize("at", [0, 5, 10, 20, 27, 28, 33, 44, 52])
def test_counts_that_fail_their_check_are_a_leftover_wherever_they_were_changed(at: int, root: Path) -> None:
    path = root / DIRECTORY / "pending"
    change(path, at, b"\xff")
    assert [(finding.severity, finding.path) for finding in findings(root)] == [(Severity.LEFTOVER, str(path))]
    path.write_bytes(path.read_bytes()[:at])
    assert len(findings(root)) == bool(at), "an empty file was never written"


def test_what_lies_behind_the_checkpoint_is_not_looked_at(root: Path) -> None:
    last = sorted((root / DIRECTORY / "timerlog").iterdir())[-1]
    with last.open("ab") as file:
        file.write(b"torn")
    assert findings(root) == []
