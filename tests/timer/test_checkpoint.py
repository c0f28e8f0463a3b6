"""The two-slot checkpoint: the newest whole slot counts, whatever a power cut does to the other."""

from __future__ import annotations

import struct
from pathlib import Path
from random import Random

import pytest
from crc32c import crc32c

from store.errors import FormatTooNew
from tests.seeds import each_seed
from tests.simdisk import PowerCut, SimDisk
from timer.checkpoint import Checkpoint, CheckpointFile

PATH = Path("/checkpoint")


def state(number: int) -> Checkpoint:
    return Checkpoint(52 * number, number, 1_700_000_000 + number, 1_700_000_001 + number, 64 + number, number % 2 == 0)


def test_a_new_file_has_no_checkpoint() -> None:
    assert CheckpointFile(SimDisk(), PATH).latest is None


@each_seed(100)
def test_a_power_cut_while_writing_leaves_the_old_or_the_new_one(seed: int) -> None:
    disk = SimDisk()
    file = CheckpointFile(disk, PATH)
    disk.sync_dir(PATH.parent)
    for number in range(1 + seed % 5):
        file.write(state(number))
    disk.cut_power_at(1 + seed % 2)
    with pytest.raises(PowerCut):
        file.write(state(9))
    again = CheckpointFile(disk.crash(Random(seed)), PATH)
    assert again.latest in (state(seed % 5), state(9))
    again.write(state(10))
    assert again.latest == state(10)


def test_a_damaged_slot_gives_way_to_the_older_one_and_two_to_none() -> None:
    disk = SimDisk()
    file = CheckpointFile(disk, PATH)
    for number in range(4):
        file.write(state(number))
    disk.flip(PATH, 20, 3)  # generation 4, at byte 0
    assert CheckpointFile(disk, PATH).latest == state(2)
    disk.flip(PATH, 4096 + 20, 3)
    assert CheckpointFile(disk, PATH).latest is None


def test_a_version_of_the_future_is_refused() -> None:
    disk = SimDisk()
    CheckpointFile(disk, PATH).write(state(1))
    slot = bytearray(disk.contents(PATH)[4096 : 4096 + 56])
    slot[4:6] = struct.pack(">H", 2)
    disk.overwrite(PATH, 4096, bytes(slot) + struct.pack(">I", crc32c(slot)))
    with pytest.raises(FormatTooNew, match=r"version 2.*use a newer mq"):
        CheckpointFile(disk, PATH)
