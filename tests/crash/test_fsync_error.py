"""fdatasync fails under a real process: no ack afterwards, no second sync of that file, no loss after a restart.

Faults by strace, and the real thing: a file system on a backing store without room, where the kernel reports the error
once, drops the pages, and calls the next fsync a success. MQ_TORTURE_CYCLES=50 fails at more places.
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from store.offline.verify import verify
from tests.crash.driver import Promises, recovered_values
from tests.crash.real_disk import Driver, cycles, loop_disk, need, run, small_tmpfs


@pytest.mark.parametrize("sticky", ["", "+"])
def test_after_a_failed_fdatasync_nothing_is_acked_or_synced_again(sticky: str, tmp_path: Path) -> None:
    need("strace")
    for nth in range(2, 2 + cycles(3)):
        root = tmp_path / f"data-{nth}"
        promises = Promises()
        with Driver(root, promises.note, "--batches", "3") as first_life:
            first_life.until("done")
        log_file = next((root / "commitlog").iterdir())
        trace = tmp_path / f"trace-{nth}"
        strace = [
            "strace", "-f", "-qqq", "-o", str(trace), "-P", str(log_file),
            "-e", "trace=fdatasync,fsync,pwritev,pwrite64",
            "-e", f"inject=fdatasync,fsync:error=EIO:when={nth}{sticky}",
        ]  # fmt: skip
        sequence = str(promises.next_sequence)
        arguments = ["--batches", "300", "--first-sequence", sequence, "--thread-syncs"]
        with Driver(root, promises.note, *arguments, under=strace) as driver:
            while (line := driver.next_line()) is not None and not line.startswith("stopped"):
                pass
            if driver.lines[-1] == "done":
                assert nth > 10, "the fault never came"
                return  # this file is not synced more often than that
            assert not any(line.startswith("ok") for line in driver.drain()), "acked after a failed fdatasync"
            last_words = driver.lines[-2:]
        assert last_words[0].startswith("read "), "reads go on"
        assert "StoreStopped" in last_words[1]
        calls = re.findall(r"(fdatasync|fsync|pwritev|pwrite64)\(.*= (-?\d+)", trace.read_text())
        failed_at = next(number for number, (_, result) in enumerate(calls) if result == "-1")
        assert calls[failed_at + 1 :] == [], "the log was written or synced after its disk had failed"
        assert verify(root).is_clean
        promises.check(recovered_values(root))


@pytest.mark.parametrize("kind", ["ext4"])
def test_a_disk_that_lies_about_fsync_loses_nothing_acked(kind: str, tmp_path: Path) -> None:
    """The backing store is full: pages are dropped after one EIO, and the next fsync would succeed."""
    need(f"mkfs.{kind}")
    promises = Promises()
    with small_tmpfs(tmp_path, "12m") as backing:
        mkfs = ["-E", "lazy_itable_init=1,lazy_journal_init=1", "-J", "size=4"]
        with loop_disk(kind, backing, size="128M", mkfs=mkfs) as disk:
            root = disk.mount_point / "data"
            with Driver(root, promises.note) as driver:
                last_words = driver.until("stopped")
                assert "StoreStopped" in last_words
                assert driver.lines[-2].startswith("read "), "reads go on, also when the kernel has made all read-only"
                assert not any(line.startswith("ok") for line in driver.drain())
            run("mount", "-o", "remount,size=256m", backing)  # the disk is healed
            Path("/proc/sys/vm/drop_caches").write_text("1")  # what was never written is gone for good
            disk.unmount()
            disk.mount()
            assert verify(root).is_clean
            promises.check(recovered_values(root))
            with Driver(
                root, promises.note, "--batches", "5", "--first-sequence", str(promises.next_sequence)
            ) as driver:
                driver.until("done")
            promises.check(recovered_values(root))
    assert promises.acked_count > 50
    print(f"acked={promises.acked_count} lost=0")
