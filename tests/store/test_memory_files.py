"""Files that are nowhere but in memory."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from store.memory_files import MemoryFiles
from store.snapshot import Snapshot, SnapshotFiles

ROOT = Path("/nowhere")


def test_a_file_is_what_was_written_to_it_whoever_opens_it() -> None:
    files = MemoryFiles()
    files.make_dirs(ROOT)
    first = files.open(ROOT / "a", create=True)
    assert first.pwritev([b"one", b"two"], 2) == 6
    first.datasync()
    first.close()
    second = files.open(ROOT / "a")
    assert second.pread(10, 0) == b"\0\0onetwo"
    second.truncate(5)
    assert first.size() == 5, "closed by the one, and open by the other"
    files.open(ROOT / "below" / "b", create=True)
    assert files.list(ROOT) == ["a"]
    assert files.list(ROOT / "below") == ["b"]
    assert files.list(ROOT / "none") == []
    assert not ROOT.exists()


def test_what_is_not_there_cannot_be_opened_or_removed() -> None:
    files = MemoryFiles()
    for missing in (files.open, files.remove):
        with pytest.raises(FileNotFoundError, match="nowhere/a"):
            missing(ROOT / "a")


def test_a_file_goes_with_its_name_and_its_last_reader() -> None:
    def handles() -> int:
        return len(os.listdir("/proc/self/fd"))

    files, before = MemoryFiles(), handles()
    file = files.open(ROOT / "a", create=True)
    file.pwritev([b"x"], 0)
    files.remove(ROOT / "a")
    assert files.list(ROOT) == []
    assert (file.pread(1, 0), handles()) == (b"x", before + 1)
    del file
    assert handles() == before
    files.open(ROOT / "b", create=True)
    del files
    assert handles() == before


def test_holes_take_no_memory() -> None:
    file = MemoryFiles().open(ROOT / "a", create=True)
    file.pwritev([b"x"], 1 << 40)
    assert (file.size(), file.pread(4, 1 << 39)) == ((1 << 40) + 1, b"\0" * 4)


def test_snapshots_are_kept_in_it() -> None:
    files = MemoryFiles()
    for number in range(3):
        SnapshotFiles(ROOT, "some", files).save(Snapshot(number, b"%d" % number))
    assert SnapshotFiles(ROOT, "some", files).load() == Snapshot(2, b"2")
