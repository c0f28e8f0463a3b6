"""RocksDB does its own I/O, which the simulated disk does not see: it is killed, cut and spoiled as a real process.

    kill -9     at the Nth system call of a kind, injected by strace, in the middle of what the database does: its files
                are then what they were between two calls
    rot         any file of the database removed, cut or changed at rest

Power cuts on real file systems are in test_power_cut.py, with both kinds of index. In all of them the log is the truth:
what was flushed is served, in order, nothing else, and after a start the index agrees with the log (`mq verify`).
MQ_TORTURE_CYCLES=300 runs more.
"""

from __future__ import annotations

import shutil
from pathlib import Path
from random import Random

import pytest

from store.errors import IndexDamaged
from store.index.opening import ROCKSDB_DIRECTORY
from store.offline.index_rebuild import rebuild_index
from store.offline.verify import verify
from tests.crash.driver import Promises, config_of, recovered_values
from tests.crash.real_disk import Driver, cycles, need

ROCKSDB = ("--index", "rocksdb")
CALLS = ("write", "pwrite64", "fdatasync", "fsync", "rename", "unlink", "openat", "fallocate", "ftruncate")


def test_kill_9_between_any_two_calls_leaves_an_index_that_agrees_with_the_log(tmp_path: Path) -> None:
    need("strace")
    seed = 1
    rng = Random(seed)
    promises = Promises()
    root = tmp_path / "data"
    kills = 0
    for cycle in range(cycles(12)):
        arguments = ["--first-sequence", str(promises.next_sequence), "--seed", str(cycle), "--batches", "150"]
        call = rng.choice(CALLS)
        strace = ["strace", "-f", "-qqq", "-o", "/dev/null", "-e", f"trace={call}"]
        strace += ["-e", f"inject={call}:signal=KILL:when={int(2 ** rng.uniform(0, 7))}"]
        with Driver(root, promises.note, *ROCKSDB, *arguments, under=strace) as driver:
            kills += "done" not in driver.drain()
        if root.exists() and (root / "commitlog").exists():
            assert verify(root).is_clean, f"cycle {cycle}: {call}"
        promises.check(recovered_values(root, "rocksdb"))
        report = verify(root)
        assert report.index_checked
        assert report.findings == [], f"cycle {cycle}: {call}: recovery left {report.findings}"
    assert kills >= cycles(12) // 3, "the kills came too late"
    assert promises.acked_count > 100
    print(
        f"rocksdb kill -9 at system calls: seed={seed} cycles={cycles(12)} kills={kills} acked={promises.acked_count}"
    )


@pytest.mark.parametrize("clean", [True, False])
def test_rot_in_any_file_of_the_database_is_healed_or_refused(clean: bool, tmp_path: Path) -> None:
    """Refused: before a wrong record is served; and then `mq index rebuild` heals it."""
    seed = 2
    rng = Random(seed)
    promises = Promises()
    root = tmp_path / "data"
    with Driver(root, promises.note, *ROCKSDB, "--batches", "60") as driver:
        driver.until("done") if clean else driver.until("ok", 120)
    whole = tmp_path / "whole"
    shutil.copytree(root, whole)
    healed = refused = 0
    for _ in range(cycles(30)):
        shutil.rmtree(root)
        shutil.copytree(whole, root)
        path = rng.choice(sorted(path for path in (root / ROCKSDB_DIRECTORY).iterdir() if path.is_file()))
        _spoil(path, rng)
        try:
            values = recovered_values(root, "rocksdb")
        except IndexDamaged:
            rebuild_index(config_of(root, index="rocksdb"), "rocksdb")
            promises.check(recovered_values(root, "rocksdb"))
            refused += 1
        else:
            promises.check(values)
            healed += 1
    print(f"rocksdb rot: seed={seed} healed={healed} refused={refused} wrong=0")
    assert healed > 0


def _spoil(path: Path, rng: Random) -> None:
    content = bytearray(path.read_bytes())
    kind = rng.choice(("remove", "cut", "flip", "zero"))
    if kind == "remove":
        path.unlink()
        return
    if not content:
        return
    at = rng.randrange(len(content))
    if kind == "cut":
        del content[at:]
    elif kind == "flip":
        content[at] ^= 1 << rng.randrange(8)
    else:
        content[at : at + 4096] = bytes(len(content[at : at + 4096]))
    path.write_bytes(content)
