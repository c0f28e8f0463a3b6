"""Makes pending_schedules.tar.xz: the data directory of a server that was killed with schedules pending.

The archive was made by the code of commit c6218a7, when a delay still named a queue, not a partition:

    git archive c6218a7 | tar x -C /tmp/old && cd /tmp/old && python .../tests/samples/pending_schedules.py ARCHIVE

The clock stands at START_MS when the first record is accepted, and at KILLED_MS when the server is killed.
"""

from __future__ import annotations

import asyncio
import sys
import tarfile
import tempfile
from pathlib import Path

from store import Store, record_batch
from store.config import StoreConfig
from store.files import OsFiles
from store.record_batch import Record
from store.topics import TIMER_QUEUE
from store.types import Acks, Append, Delay
from timer.config import TimerConfig
from timer.ports import OwnPartitions
from timer.schedule import ScheduleId
from timer.service import TimerService

PARTITIONS = 3
START_MS = 1_700_000_000_000
KILLED_MS = START_MS + 8_000
HOUR_MS = 3_600_000

# Value -> milliseconds after the start. Record n of a batch is for partition n % 3.
DELIVERED_BEFORE_THE_CHECKPOINT = {f"a{n}": 1_000 + n for n in range(6)}
DELIVERED_BEHIND_IT = {f"b{n}": 6_000 + n for n in range(6)}
PENDING = {f"c{n}": HOUR_MS + n // 4 for n in range(9)}
ROLLING = {f"d{n}": 120 * HOUR_MS + n for n in range(6)}
ACCEPTED_LAST = {f"e{n}": HOUR_MS for n in range(3)}  # the timer's own files know nothing of them
CANCELLED, MOVED = "c4", "c7"
MOVED_MS = 2 * HOUR_MS


def configs(root: Path) -> tuple[StoreConfig, TimerConfig]:
    """Small files."""
    mib = 1 << 20
    store = StoreConfig(root=root, commit_log_file_bytes=mib, extent_bytes=mib, disk_floor_bytes=0, retention_ms=None)
    return store, TimerConfig(root=root / "timer", timer_log_file_units=1_000)


class _Clock:
    def __init__(self) -> None:
        self.at_ms = START_MS

    def now_ms(self) -> int:
        return self.at_ms


async def _make(root: Path, archive: Path) -> None:
    clock = _Clock()
    store_config, timer_config = configs(root)
    store = await Store.open(store_config, clock=clock)
    timer = TimerService(timer_config, store, OsFiles(), clock, partitions=OwnPartitions(store))
    await timer.start()
    topic, _ = await store.create_topic("orders", PARTITIONS)

    async def accept(values: dict[str, int]) -> list[ScheduleId]:
        delays = [Delay(START_MS + ms, topic.topic_id, n % PARTITIONS) for n, ms in enumerate(values.values())]
        batch = record_batch.encode([Record(b"key", value.encode(), START_MS) for value in values])
        append = Append(queue=TIMER_QUEUE, batch=batch, record_count=len(values), delays=delays)
        accepted = await timer.schedule(append, acks=Acks.FLUSHED)
        return [ScheduleId(delay.due_ms, accepted.position, index) for index, delay in enumerate(delays)]

    async def pass_to(at_ms: int) -> None:
        clock.at_ms = at_ms
        while await timer.intake_step():
            pass
        while await timer.firing_step():
            pass

    await accept(DELIVERED_BEFORE_THE_CHECKPOINT)
    pending = dict(zip(PENDING, await accept(PENDING), strict=True))
    await accept(ROLLING)
    await accept(DELIVERED_BEHIND_IT)
    await pass_to(START_MS + 3_000)
    await timer.checkpoint()
    await timer.cancel(pending[CANCELLED])
    await timer.intake_step()
    await timer.move(pending[MOVED], START_MS + MOVED_MS)
    await pass_to(KILLED_MS)
    await accept(ACCEPTED_LAST)
    with tarfile.open(archive, "w:xz", preset=9) as tar:
        tar.add(root, ".", filter=_anonymous)
    await store.close()


def _anonymous(member: tarfile.TarInfo) -> tarfile.TarInfo:
    member.uid = member.gid = member.mtime = 0
    member.uname = member.gname = ""
    return member


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as directory:
        asyncio.run(_make(Path(directory), Path(sys.argv[1]).resolve()))
