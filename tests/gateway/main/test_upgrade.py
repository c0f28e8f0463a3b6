"""Data directories of older versions (tests/samples/versions): what they hold is there, and fires once."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import NamedTuple

import pytest

from gateway.auth.policy import PolicyFiles
from gateway.groups.protocol import Receive, TopicPartition
from gateway.main import offline
from gateway.main.admin import BROKER_NAME, LocalAdmin
from gateway.main.wiring import build_gateway, build_recurring
from gateway.recurring.service import RecurringSchedules
from gateway.routing.delivery import RoutedPartitions
from gateway.routing.table import RouteTable
from gateway.settings.config import build
from gateway.surfaces.http.context import Gateway
from store import Store, record_batch
from store.data_format import BASE_VERSION, VERSION
from store.errors import FormatTooNew
from store.files import OsFiles
from store.offline.verify import verify
from store.store import LIGHT_FORMAT
from store.types import LightRecord, QueueKey
from tests.clock import FakeClock
from tests.samples.versions import (
    COMMITS,
    DEVICE,
    DUE_AFTER_MS,
    HERE,
    INBOX,
    LATER_AFTER_MS,
    Sample,
    settings_of,
    unpack_version,
)
from timer.service import TimerService


class Life(NamedTuple):
    """One run of a server on a data directory."""

    gateway: Gateway
    store: Store
    timer: TimerService
    recurring: RecurringSchedules

    async def pass_to(self, clock: FakeClock, at_ms: int) -> None:
        clock.set(at_ms)
        while await self.timer.intake_step() or await self.timer.firing_step():
            pass

    async def values(self) -> dict[int, list[str]]:
        topic = self.store.topic("orders")
        values: dict[int, list[str]] = {}
        for partition in range(topic.partitions):
            read = await self.store.read(QueueKey(topic.topic_id, partition), 0, max_bytes=1 << 20)
            values[partition] = [
                (record.value or b"").decode().strip('"')
                for entry in read.entries
                for record in record_batch.decode(entry.batch)
            ]
        return values

    async def inbox(self) -> list[str]:
        """Values in the light queue of the sample."""
        return [
            (list(record_batch.decode(entry.batch))[index].value or b"").decode().strip('"')
            for _, entry, index in await self._read_inbox()
        ]

    async def light_offsets(self) -> list[int]:
        """The offsets there."""
        return [offset for offset, _, _ in await self._read_inbox()]

    async def _read_inbox(self) -> list[LightRecord]:
        queue = QueueKey(self.store.topic("orders").topic_id, 0)
        return (await self.store.read_light(queue, INBOX.encode(), 0, max_records=100, max_bytes=1 << 20)).records


@asynccontextmanager
async def life(root: Path, clock: FakeClock, commit: str) -> AsyncIterator[Life]:
    config = build({"data": root, **settings_of(commit)})
    store = await Store.open(config.store, clock=clock)
    routes = RouteTable()
    timer = TimerService(config.timer, store, OsFiles(), clock, partitions=RoutedPartitions(routes, own=BROKER_NAME))
    await timer.start()
    admin = LocalAdmin(store, timer, config.limits, routes)
    gateway, groups = build_gateway(config, store, timer, admin, clock)
    await groups.start()
    recurring = build_recurring(gateway, store, admin)
    await recurring.start()
    running = asyncio.create_task(groups.run())
    try:
        yield Life(gateway, store, timer, recurring)
    finally:
        running.cancel()
        await asyncio.wait([running])
        await groups.close()
        await recurring.close()
        await timer.close()
        await store.close()


async def left_to(gateway: Gateway, group: str) -> list[str]:
    """Values that a group has not acknowledged."""
    received = await gateway.groups.receive(group, Receive(topics=("orders",), max_messages=100))
    return sorted((message.value or b"").decode().strip('"') for message in received.messages)


async def check(running: Life, sample: Sample, root: Path) -> None:
    """All is there that the older version was given."""
    assert await running.values() == sample.records
    assert running.timer.pending_count == len(sample.due) + len(sample.later)
    if sample.committed is not None:
        (committed,) = await running.gateway.groups.committed("stream", [TopicPartition("orders", 0)])
        assert committed.offset == sample.committed
    if sample.left is not None:
        assert await left_to(running.gateway, "work") == sorted(sample.left)
    if sample.schedule_key is not None:
        topic_id = running.store.topic("orders").topic_id
        assert await running.timer.named(topic_id, sample.schedule_key.encode()) is not None
    if sample.inbox is not None:
        assert await running.inbox() == sample.inbox
        committed_there = running.gateway.groups.light_offsets.committed
        first = (await running.light_offsets())[0]
        assert committed_there(DEVICE, "orders", 0, INBOX) == first + 1
    assert running.recurring.table.names() == ([] if sample.recurring is None else [sample.recurring])
    tokens = PolicyFiles(running.gateway.config.auth).load().tokens
    assert {token.principal: token.id for token in tokens.values()} == (
        {} if sample.token_id is None else {"ann": sample.token_id}
    )


def test_every_sample_is_small_and_has_its_commit() -> None:
    archives = sorted(HERE.glob("*.tar.xz"))
    assert {archive.name.partition(".")[0] for archive in archives} == set(COMMITS)
    assert all(archive.stat().st_size < 200_000 for archive in archives)


@pytest.mark.parametrize("commit", COMMITS)
@pytest.mark.parametrize("lost", ["nothing", "all that is derived"])
async def test_what_an_older_version_left_is_there_and_fires_once(tmp_path: Path, commit: str, lost: str) -> None:
    sample = unpack_version(commit, tmp_path)
    root = tmp_path / "data"
    if lost != "nothing":
        shutil.rmtree(root / "timer")
        shutil.rmtree(root / "consumequeue.rocksdb", ignore_errors=True)
        shutil.rmtree(root / "consumequeue", ignore_errors=True)  # not there while all is kept in the snapshot
        for path in root.glob("index.*"):
            path.unlink()
    clock = FakeClock(sample.made_ms + 60_000)
    async with life(root, clock, commit) as running:
        await running.pass_to(clock, sample.made_ms + 61_000)
        await check(running, sample, root)
        version = BASE_VERSION if sample.inbox is None else LIGHT_FORMAT
        assert (root / "format").read_bytes() == b"mq data format %d\n" % version
        offsets_before = [] if sample.inbox is None else await running.light_offsets()
    clock = FakeClock(sample.made_ms + 2 * DUE_AFTER_MS)
    async with life(root, clock, commit) as running:
        await running.pass_to(clock, clock.now_ms())
        due = await running.values()
        assert sorted(value for values in due.values() for value in values if value.startswith("due")) == sample.due
        assert running.timer.pending_count == len(sample.later)
        if sample.inbox is not None:
            assert await running.inbox() == [*sample.inbox, sample.due[0]]
            assert await running.light_offsets() == [*offsets_before, offsets_before[-1] + 1]
        await running.pass_to(clock, sample.made_ms + LATER_AFTER_MS + 60_000)
        fired = await running.values()
    for _ in range(2):
        async with life(root, clock, commit) as running:
            await running.pass_to(clock, clock.now_ms() + 60_000)
            assert await running.values() == fired
            assert running.timer.pending_count == 0
    everything = sorted(value for values in fired.values() for value in values)
    before = [value for values in sample.records.values() for value in values]
    assert everything == sorted([*before, *sample.due, *sample.later])
    report = verify(root)
    offline.verify(root, report)
    assert report.findings == []


@pytest.mark.parametrize("commit", list(COMMITS)[-1:])
async def test_a_directory_of_a_newer_version_is_refused_and_left_as_it_is(tmp_path: Path, commit: str) -> None:
    unpack_version(commit, tmp_path)
    root = tmp_path / "data"
    (root / "format").write_bytes(b"mq data format %d\n" % (VERSION + 1))
    before = {path: (path.stat().st_mtime_ns, path.stat().st_size) for path in root.rglob("*") if path.is_file()}
    with pytest.raises(FormatTooNew, match=f"format {VERSION + 1}; this program knows {VERSION}: use a newer mq"):
        async with life(root, FakeClock(), commit):
            pass
    with pytest.raises(FormatTooNew):
        verify(root)
    assert before == {path: (path.stat().st_mtime_ns, path.stat().st_size) for path in before}
