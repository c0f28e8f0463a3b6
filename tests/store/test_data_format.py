"""store.data_format: a directory of a newer program is not touched."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from random import Random

import pytest

from store.data_format import BASE_VERSION, VERSION, check_format, raise_format
from store.errors import Corrupt, FormatTooNew
from tests.simdisk import SimDisk

ROOT = Path("/data")
PATH = ROOT / "format"
STAMP = b"mq data format %d\n" % BASE_VERSION


def empty_disk() -> SimDisk:
    disk = SimDisk()
    disk.make_dirs(ROOT)
    return disk


def test_a_new_directory_is_stamped_durably_and_accepted_ever_after() -> None:
    disk = empty_disk()
    check_format(ROOT, disk)
    assert disk.contents(PATH) == STAMP
    assert disk.is_clean()
    check_format(ROOT, disk)


def test_a_newer_directory_is_refused_and_left_alone() -> None:
    disk = empty_disk()
    disk.open(PATH, create=True).pwritev([b"mq data format %d\n" % (VERSION + 1)], 0)
    disk.calls.clear()
    with pytest.raises(FormatTooNew, match="newer"):
        check_format(ROOT, disk)
    assert disk.calls == []


@pytest.mark.parametrize("content", [b"hello", b"mq data format", b"mq data format x\n", b"mq data format -1\n"])
def test_anything_else_is_corrupt(content: bytes) -> None:
    disk = empty_disk()
    disk.open(PATH, create=True).pwritev([content], 0)
    with pytest.raises(Corrupt, match="format stamp"):
        check_format(ROOT, disk)


def test_a_crash_while_stamping_is_no_reason_to_refuse() -> None:
    """Garbage in the one sector of a file whose name was not durable yet is left out: no drive writes half a sector."""
    for nth in range(1, 4):
        for seed in range(40):
            disk = empty_disk()
            disk.cut_power_at(nth)
            with pytest.raises(OSError, match="power cut"):
                check_format(ROOT, disk)
            after = disk.crash(Random(seed))
            left = after.contents(PATH) if after.paths() else b""
            if STAMP.startswith(left) or not left.strip(b"\0"):
                check_format(ROOT, after)
                assert after.contents(PATH) == STAMP


def test_an_older_directory_is_stamped_anew_before_anything_else_and_across_crashes() -> None:
    for nth in range(1, 7):
        for seed in range(40):
            disk = empty_disk()
            old = disk.open(PATH, create=True)
            old.pwritev([b"mq data format 1\n"], 0)
            old.datasync()
            disk.sync_dir(ROOT)
            disk.cut_power_at(nth)
            with suppress(OSError):
                check_format(ROOT, disk)
            after = disk.crash(Random(seed))
            left = after.contents(PATH) if after.paths() else b""
            if left == b"mq data format 1\n" or STAMP.startswith(left) or not left.strip(b"\0"):
                check_format(ROOT, after)
                assert after.contents(PATH) == STAMP
                assert after.is_clean()
            else:
                assert nth == 5, "only the sync of the new stamp's one sector may leave garbage"


def test_a_version_is_raised_before_what_needs_it_and_never_lowered() -> None:
    for nth in range(1, 7):
        for seed in range(20):
            disk = empty_disk()
            check_format(ROOT, disk)
            disk.cut_power_at(nth)
            with suppress(OSError):
                raise_format(ROOT, disk, VERSION)
            after = disk.crash(Random(seed))
            left = after.contents(PATH) if after.paths() else b""
            if left.startswith(STAMP[:-2]) or not left.strip(b"\0"):
                check_format(ROOT, after)
                raise_format(ROOT, after, VERSION)
                assert after.contents(PATH) == b"mq data format %d\n" % VERSION
                after.calls.clear()
                raise_format(ROOT, after, BASE_VERSION)
                check_format(ROOT, after)
                assert after.calls == []
