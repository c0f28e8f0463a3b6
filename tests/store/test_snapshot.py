"""store.snapshot: a state is replaced whole or not at all."""

from __future__ import annotations

import struct
from pathlib import Path
from random import Random

import pytest
from crc32c import crc32c

from store.errors import FormatTooNew
from store.snapshot import MAGIC, Snapshot, SnapshotFiles, decode_snapshot
from tests.simdisk import Fault, Operation, SimDisk

ROOT = Path("/data")


def disk_and_files() -> tuple[SimDisk, SnapshotFiles]:
    disk = SimDisk()
    disk.make_dirs(ROOT)
    return disk, SnapshotFiles(ROOT, "meta", disk)


def test_nothing_saved_is_nothing_loaded() -> None:
    assert disk_and_files()[1].load() is None


def test_the_last_one_saved_is_loaded() -> None:
    disk, files = disk_and_files()
    for number in range(5):
        files.save(Snapshot(number, b"x" * (50 - 10 * number)))
        assert SnapshotFiles(ROOT, "meta", disk).load() == Snapshot(number, b"x" * (50 - 10 * number))
    again = SnapshotFiles(ROOT, "meta", disk)
    again.load()
    again.save(Snapshot(9, b""))
    assert SnapshotFiles(ROOT, "meta", disk).load() == Snapshot(9, b"")


def test_a_power_cut_at_any_call_leaves_the_old_state_or_the_new_one() -> None:
    seen = set[int]()
    for nth in range(1, 9):
        for seed in range(60):
            disk, files = disk_and_files()
            for number in (1, 2):
                files.save(Snapshot(number, bytes(2000)))
            disk.cut_power_at(nth)
            saved = 2
            try:
                for number in (3, 4):
                    files.save(Snapshot(number, b"new" * 500))
                    saved = number
            except OSError:
                pass
            found = SnapshotFiles(ROOT, "meta", disk.crash(Random(seed))).load()
            assert found is not None
            assert found.next_offset in (saved, saved + 1), "what was saved is durable"
            assert found.content == (bytes(2000) if found.next_offset <= 2 else b"new" * 500)
            seen.add(found.next_offset)
    assert seen >= {2, 3, 4}


def test_an_error_leaves_the_old_state_and_the_next_save_works() -> None:
    disk, files = disk_and_files()
    files.save(Snapshot(1, b"one"))
    operations: tuple[Operation, ...] = ("pwritev", "datasync", "create")
    for operation in operations:
        disk.inject(Fault(operation, drop_dirty=True))
    for number in range(3):
        with pytest.raises(OSError, match="simulated"):
            files.save(Snapshot(10 + number, b"bad"))
        assert SnapshotFiles(ROOT, "meta", disk.crash(Random(number))).load() == Snapshot(1, b"one")
    files.save(Snapshot(2, b"two"))
    assert SnapshotFiles(ROOT, "meta", disk.crash(Random(1))).load() == Snapshot(2, b"two")


def test_every_flipped_bit_makes_a_file_invalid_and_the_other_one_counts() -> None:
    disk, files = disk_and_files()
    files.save(Snapshot(1, b"one"))
    files.save(Snapshot(2, b"two"))
    newest = ROOT / "meta.0"
    for at in range(len(disk.contents(newest))):
        damaged = disk.crash(Random(0))
        damaged.flip(newest, at, at % 8)
        assert SnapshotFiles(ROOT, "meta", damaged).load() == Snapshot(1, b"one")


def test_a_newer_version_is_refused_and_not_taken_for_damage() -> None:
    disk, files = disk_and_files()
    files.save(Snapshot(1, b""))
    header = struct.pack(">4sIQqI", MAGIC, 2, 7, 5, 0)
    disk.overwrite(ROOT / "meta.1", 0, header + struct.pack(">I", crc32c(header)))
    with pytest.raises(FormatTooNew, match=r"version 2.*use a newer mq"):
        SnapshotFiles(ROOT, "meta", disk).load()


def test_short_and_foreign_bytes_are_no_snapshot() -> None:
    rng = Random(1)
    for size in range(80):
        assert decode_snapshot(bytes(size)) is None
        assert decode_snapshot(rng.randbytes(size)) is None
