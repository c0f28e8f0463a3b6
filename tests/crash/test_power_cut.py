"""The power fails under a store on real ext4 and XFS: nothing acked as flushed is lost, nothing else is served.

`xfs_io -x -c shutdown` drops everything that was not synced, as a power cut does; the journal is replayed by the next
mount. With a RocksDB index the database does I/O of its own on the same disk: it loses power with the rest. Torn pages:
before the cut, single pages of the unsynced tail are pushed to the disk, their neighbours are not.
MQ_TORTURE_CYCLES=300 runs more.
"""

from __future__ import annotations

import ctypes
import os
from pathlib import Path
from random import Random

import pytest

from store.index.opening import IndexKind
from store.offline.verify import verify
from tests.crash.driver import Promises, recovered_values
from tests.crash.real_disk import Driver, cycles, loop_disk, need

_PAGE_BYTES = 4096
_WRITE_AND_WAIT = 7  # SYNC_FILE_RANGE_WAIT_BEFORE | _WRITE | _WAIT_AFTER
_TAIL_PAGES = 100


def tear(log_directory: Path, rng: Random) -> None:
    """Push some pages around the log's tail to the disk, in no order, and none of the others."""
    libc = ctypes.CDLL(None, use_errno=True)
    libc.sync_file_range.argtypes = [ctypes.c_int, ctypes.c_int64, ctypes.c_int64, ctypes.c_uint]
    for path in sorted(log_directory.iterdir())[-2:]:
        fd = os.open(path, os.O_RDONLY)
        try:
            used = len(path.read_bytes().rstrip(b"\0"))
            first = max(0, used // _PAGE_BYTES - _TAIL_PAGES)
            for page in range(first, used // _PAGE_BYTES + 1):
                if rng.random() < 0.4:
                    libc.sync_file_range(fd, page * _PAGE_BYTES, _PAGE_BYTES, _WRITE_AND_WAIT)
        finally:
            os.close(fd)


def small_folios(log_directory: Path) -> None:
    """Forget cached pages, so that they come back one by one: the kernel writes large folios as a whole."""
    for path in log_directory.iterdir():
        fd = os.open(path, os.O_RDONLY)
        os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
        os.close(fd)


@pytest.mark.parametrize(("kind", "options"), [("ext4", "loop,commit=300"), ("ext4", "loop,commit=1"), ("xfs", "loop")])
@pytest.mark.parametrize("index", ["file", "rocksdb"])
def test_power_cuts_lose_nothing_that_was_flushed(kind: str, options: str, index: IndexKind, tmp_path: Path) -> None:
    need("xfs_io", f"mkfs.{kind}")
    seed = 1
    rng = Random(seed)
    promises = Promises()
    torn_tails = 0
    with loop_disk(kind, tmp_path, size="320M", options=options) as disk:
        root = disk.mount_point / "data"
        for cycle in range(10 * cycles(6)):
            if cycle >= cycles(6) and torn_tails:
                break  # on a machine with much else to do the first cuts may tear nothing
            is_torn = cycle % 2 == 1
            acks = "written" if is_torn else rng.choice(("flushed", "mixed"))
            arguments = ["--acks", acks, "--seed", str(cycle), "--first-sequence", str(promises.next_sequence)]
            arguments += ["--index", index]
            if is_torn:
                arguments += ["--flush-interval-ms", "60000"]
            with Driver(root, promises.note, *arguments) as driver:
                driver.until("ready")
                if is_torn:
                    small_folios(root / "commitlog")
                driver.until("ok", rng.randrange(1, 60))
                if is_torn:
                    tear(root / "commitlog", rng)
                disk.cut_power()
                driver.kill()
            disk.unmount()
            disk.mount()
            report = verify(root)
            assert report.is_clean, f"cycle {cycle}: {report.findings}"
            torn_tails += any("torn tail" in finding.reason for finding in report.findings)
            promises.check(recovered_values(root, index))
            after = verify(root)
            assert after.findings == [], f"cycle {cycle}: recovery left {after.findings}"
    assert promises.acked_count > 0
    assert torn_tails > 0, "no page was torn: the test has lost its bite"
    print(f"{kind} {options} {index}: seed={seed} acked={promises.acked_count} torn tails cut={torn_tails} lost=0")
