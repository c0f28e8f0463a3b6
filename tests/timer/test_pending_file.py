"""timer/pending_file.py: counts are read back with their checkpoint, and never believed otherwise."""

from __future__ import annotations

from pathlib import Path
from random import Random

import pytest

from tests.simdisk import PowerCut, SimDisk
from timer.pending_file import PendingFile

PATH = Path("/data/pending")
COUNTS = {7: 3, 9: 1 << 40, 12: 0}


def opened(disk: SimDisk) -> PendingFile:
    disk.make_dirs(PATH.parent)
    made = PendingFile(disk, PATH)
    disk.sync_dir(PATH.parent)
    return made


def test_counts_are_read_back_for_their_checkpoint_only() -> None:
    disk = SimDisk()
    assert opened(disk).read(0, 0) is None
    opened(disk).write(COUNTS, 520, 11)
    again = opened(disk.crash(Random(0)))
    assert again.read(520, 11) == COUNTS
    assert again.read(520, 12) is None
    assert again.read(572, 11) is None


def test_a_shorter_content_hides_the_longer_one_before_it() -> None:
    file = opened(SimDisk())
    file.write(COUNTS, 520, 11)
    file.write({}, 572, 12)
    assert file.read(572, 12) == {}
    assert file.read(520, 11) is None


def test_every_flipped_bit_makes_the_counts_unknown() -> None:
    disk = SimDisk()
    opened(disk).write({7: 3}, 520, 11)
    for bit in range(len(disk.contents(PATH)) * 8):
        disk.flip(PATH, bit // 8, bit % 8)
        assert opened(disk).read(520, 11) in (None, {7: 3} if 48 <= bit < 64 else None)
        disk.flip(PATH, bit // 8, bit % 8)


@pytest.mark.parametrize("seed", range(20))
def test_a_torn_write_is_not_believed(seed: int) -> None:
    disk = SimDisk()
    file = opened(disk)
    file.write(dict.fromkeys(range(200), 1), 520, 11)
    disk.cut_power_at(1)
    with pytest.raises(PowerCut):
        file.write(dict.fromkeys(range(200), 2), 520, 12)
    counts = opened(disk.crash(Random(seed))).read(520, 12)
    assert counts is None or set(counts.values()) == {2}
