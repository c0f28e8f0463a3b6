"""timer/pending_file.py: counts are read back with their checkpoint, and never believed otherwise."""

from __future__ import annotations

from pathlib import Path
from random import Random

import pytest

from tests.simdisk import PowerCut, SimDisk
from timer.pending_counts import PendingCounts
from timer.pending_file import PendingFile

PATH = Path("/data/pending")
DUE_MS = 1_800_000_000_000


def counts_of(schedules: dict[int, int]) -> PendingCounts:
    """So many of each topic, a minute apart; every third one rolls."""
    counts = PendingCounts()
    for topic_id, count in schedules.items():
        for number in range(count):
            counts.add(topic_id, DUE_MS + 60_000 * number, rolls=number % 3 == 2)
    return counts


def facts(counts: PendingCounts | None) -> object:
    """All that counts say, to compare them."""
    if counts is None:
        return None
    minutes = [(part.is_merged, sorted(part.by_topic())) for part in (counts.due, counts.rolled)]
    return counts.total, counts.by_topic, minutes


COUNTS = counts_of({7: 3, 9: 200})


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
    assert facts(again.read(520, 11)) == facts(COUNTS)
    assert again.read(520, 12) is None
    assert again.read(572, 11) is None


def test_a_shorter_content_hides_the_longer_one_before_it() -> None:
    file = opened(SimDisk())
    file.write(COUNTS, 520, 11)
    file.write(PendingCounts(), 572, 12)
    assert facts(file.read(572, 12)) == facts(PendingCounts())
    assert file.read(520, 11) is None


def test_every_flipped_bit_makes_the_counts_unknown() -> None:
    disk = SimDisk()
    opened(disk).write(counts_of({7: 3}), 520, 11)
    for bit in range(len(disk.contents(PATH)) * 8):
        disk.flip(PATH, bit // 8, bit % 8)
        assert opened(disk).read(520, 11) is None
        disk.flip(PATH, bit // 8, bit % 8)


@pytest.mark.parametrize("seed", range(20))
def test_a_torn_write_is_not_believed(seed: int) -> None:
    disk = SimDisk()
    file = opened(disk)
    file.write(counts_of(dict.fromkeys(range(1, 200), 1)), 520, 11)
    disk.cut_power_at(1)
    with pytest.raises(PowerCut):
        file.write(counts_of(dict.fromkeys(range(1, 200), 2)), 520, 12)
    counts = opened(disk.crash(Random(seed))).read(520, 12)
    assert counts is None or set(counts.by_topic.values()) == {2}
