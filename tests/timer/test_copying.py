"""timer.copying: a copy of a timer's checkpoint and log, while they change."""

from __future__ import annotations

from pathlib import Path

import pytest

from store.errors import Corrupt
from store.files import OsFiles
from timer.checkpoint import Checkpoint, CheckpointFile
from timer.copying import CHECKPOINT, TIMER_LOG, checkpoint_in, copy_timer, units_in
from timer.timer_log import UNIT_BYTES, TimerLog
from timer.verify import DIRECTORY

FILE_UNITS = 4


def timer_of(root: Path, count: int, *, said: int | None = None) -> Checkpoint:
    """A timer log of so many units, and a checkpoint that says so of `said` of them."""
    directory = root / DIRECTORY
    directory.mkdir(parents=True)
    timer_log = TimerLog(OsFiles(), directory / TIMER_LOG, file_units=FILE_UNITS)
    timer_log.reset()
    for number in range(count):
        timer_log.append(-1, 1, 1_000 * number, number, 64, 0, 16, number)
    timer_log.write(timer_log.unwritten())
    timer_log.close()
    checkpoint = Checkpoint((count if said is None else said) * UNIT_BYTES, 7, 2, 3, 0, clean=False)
    file = CheckpointFile(OsFiles(), directory / CHECKPOINT)
    file.write(checkpoint)
    file.close()
    return checkpoint


@pytest.mark.parametrize(("count", "said"), [(3, 3), (4, 4), (9, 9), (9, 6), (0, 0)])
def test_units_up_to_the_checkpoint_are_copied(tmp_path: Path, count: int, said: int) -> None:
    checkpoint = timer_of(tmp_path / "data", count, said=said)
    out = tmp_path / "copy"
    assert copy_timer(tmp_path / "data", out) == checkpoint
    assert checkpoint_in(out) == checkpoint
    assert [unit.slot_s for unit in units_in(out, checkpoint)] == list(range(said))


def test_files_before_the_read_mark_may_be_gone(tmp_path: Path) -> None:
    checkpoint = timer_of(tmp_path / "data", 6)
    (first, second) = sorted((tmp_path / "data" / DIRECTORY / TIMER_LOG).iterdir())
    first.unlink()
    assert copy_timer(tmp_path / "data", tmp_path / "copy") == checkpoint
    assert [unit.slot_s for unit in units_in(tmp_path / "copy", checkpoint)] == [4, 5]
    assert second.exists()


def test_damage_is_an_error_and_a_timer_that_never_was_is_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("timer.copying.WAIT_S", 0)
    timer_of(tmp_path / "data", 3)
    (path,) = (tmp_path / "data" / DIRECTORY / TIMER_LOG).iterdir()
    path.write_bytes(path.read_bytes()[:UNIT_BYTES] + b"x" * UNIT_BYTES * 2)
    with pytest.raises(Corrupt):
        copy_timer(tmp_path / "data", tmp_path / "copy")
    (tmp_path / "none").mkdir()
    assert copy_timer(tmp_path / "none", tmp_path / "nothing") is None
