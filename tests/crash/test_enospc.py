"""A full disk, for real: sends are refused, reads go on, sends resume by themselves once there is room.

MQ_TORTURE_CYCLES=12 fills and frees the disk more often.
"""

from __future__ import annotations

from pathlib import Path
from random import Random

import pytest

from store.offline.verify import verify
from tests.crash.driver import Promises, recovered_values
from tests.crash.real_disk import Driver, cycles, loop_disk, need, run, small_tmpfs

PIECE_BYTES_MIN = 300 << 10  # what is freed must hold an extent of the log, or nothing can resume


def fill_and_free(root: Path, ballast: Path, *, room_bytes: int) -> None:
    """Let a driver fill a disk of about `room_bytes`; give it some room, again and again, from a ballast file."""
    promises = Promises()
    rng = Random(1)
    rounds = min(cycles(4), room_bytes // PIECE_BYTES_MIN // 2)
    piece = room_bytes // (2 * rounds)
    ballast.write_bytes(bytes(piece * rounds))
    with Driver(root, promises.note) as driver:
        for number in range(rounds, 0, -1):
            driver.until("full")
            assert driver.until("read").split(" ")[1] != "0", "reads go on while the disk is full"
            with ballast.open("r+b") as file:
                file.truncate(piece * (number - 1))
            driver.until("ok", rng.randrange(1, 4))  # without a restart
        driver.until("full")
        driver.kill()
    assert verify(root).is_clean
    promises.check(recovered_values(root))
    print(f"acked={promises.acked_count} rounds={rounds} lost=0")


def test_a_full_tmpfs_refuses_sends_serves_reads_and_resumes(tmp_path: Path) -> None:
    need()
    with small_tmpfs(tmp_path, "8m") as directory:
        fill_and_free(directory / "data", directory / "ballast", room_bytes=8 << 20)


@pytest.mark.parametrize("kind", ["ext4"])
def test_a_full_file_system_refuses_sends_serves_reads_and_resumes(kind: str, tmp_path: Path) -> None:
    need(f"mkfs.{kind}")
    with loop_disk(kind, tmp_path, size="16M", mkfs=["-m", "0"]) as disk:
        fill_and_free(disk.mount_point / "data", disk.mount_point / "ballast", room_bytes=10 << 20)
        run("sync", "-f", disk.mount_point)
