"""Schedules that an older version left pending are delivered once each, to their partitions (tests/samples)."""

from __future__ import annotations

import shutil
import tarfile
from pathlib import Path

import pytest

from gateway.main.admin import BROKER_NAME, LocalAdmin
from gateway.routing.delivery import RoutedPartitions
from gateway.routing.table import RouteTable
from gateway.settings.limits import Limits
from store import Store, record_batch
from store.files import OsFiles
from store.types import QueueKey
from tests.clock import FakeClock
from tests.samples import pending_schedules as sample
from timer.service import TimerService

ARCHIVE = Path(sample.__file__).with_suffix(".tar.xz")
ALL = {
    **sample.DELIVERED_BEFORE_THE_CHECKPOINT,
    **sample.DELIVERED_BEHIND_IT,
    **sample.PENDING,
    **sample.ROLLING,
    **sample.ACCEPTED_LAST,
}
DUE_BEFORE_IT = {*sample.PENDING, *sample.ACCEPTED_LAST} - {sample.MOVED}


async def delivered(root: Path, clock: FakeClock, *due_ms: int) -> dict[int, list[str]]:
    """The values of each partition after a life of the server at some times."""
    store_config, timer_config = sample.configs(root)
    store = await Store.open(store_config, clock=clock)
    routes = RouteTable()
    partitions = RoutedPartitions(routes, own=BROKER_NAME)
    timer = TimerService(timer_config, store, OsFiles(), clock, partitions=partitions)
    await timer.start()
    LocalAdmin(store, timer, Limits(), routes)
    for at_ms in due_ms:
        clock.set(at_ms)
        while await timer.intake_step() or await timer.firing_step():
            pass
    topic = store.topic("orders")
    values: dict[int, list[str]] = {}
    for partition in range(topic.partitions):
        entries = (await store.read(QueueKey(topic.topic_id, partition), 0, max_bytes=1 << 20)).entries
        values[partition] = [
            (record.value or b"").decode() for entry in entries for record in record_batch.decode(entry.batch)
        ]
    assert timer.pending_count == 0
    await timer.close()
    await store.close()
    return values


@pytest.mark.parametrize("lost", ["nothing", "the timer's files"])
async def test_what_an_older_version_left_pending_is_delivered_once(tmp_path: Path, lost: str) -> None:
    with tarfile.open(ARCHIVE) as archive:
        archive.extractall(tmp_path, filter="data")
    if lost == "the timer's files":
        shutil.rmtree(tmp_path / "timer")
    hour_ms = sample.HOUR_MS
    times = [sample.START_MS + ms for ms in (hour_ms + 10, 2 * hour_ms, 60 * hour_ms, 121 * hour_ms)]
    first = await delivered(tmp_path, FakeClock(sample.KILLED_MS), *times)
    for partition, values in first.items():
        expected = [value for value in ALL if int(value[1:]) % 3 == partition and value != sample.CANCELLED]
        assert sorted(values) == sorted(expected)
        if sample.MOVED in values:  # due an hour after those it was accepted with
            assert values.index(sample.MOVED) > max(values.index(value) for value in values if value in DUE_BEFORE_IT)
    again = await delivered(tmp_path, FakeClock(times[-1]), times[-1] + 10 * hour_ms)
    assert again == first
