"""gateway.brokers.event_log: what is written is applied, kept, read back, and held against retention."""

from __future__ import annotations

import asyncio
from random import Random

import pytest

from gateway.brokers.event_log import _APPLIED_PER_LIVE_TURN, WRITE_BYTES, EventLog
from gateway.brokers.local import LocalBroker
from gateway.groups.coordinator.context import GROUP_EVENTS
from gateway.groups.machines.events import Barrier, DocumentPut, Event
from store import Store, record_batch
from store.errors import Corrupt, DiskFull, RecordTooLarge, StoreStopped
from store.files import Files
from store.limits import KiB
from store.record_batch import Record
from store.topics import OFFSETS_QUEUE
from store.types import Acks, Append, Source
from tests.clock import FakeClock
from tests.gateway.groups.coordinator.world import PlainTimer, inline
from tests.simdisk import Fault, SimDisk
from tests.store.kit import ROOT, abandon, open_store, with_settings
from tests.waiting import PATIENCE_S


class Machine:
    """The simplest there is: the last content of each document, in the order they came."""

    def __init__(self, files: Files) -> None:
        self.files = files
        self.clock = FakeClock()
        self.applied: list[Event] = []
        self.sources: list[Source] = []
        self.lost: list[int] = []
        self.state: dict[str, bytes] = {}
        self.store: Store
        self.log: EventLog[Event]

    async def start(self, **settings: int) -> int:
        self.applied, self.sources, self.state = [], [], {}
        self.store = await open_store(self.files, with_settings(**settings), self.clock)
        broker = LocalBroker(
            self.store, PlainTimer(self.store, self.clock), name="b", on_topic=lambda _: None, on_deleted=lambda _: None
        )
        self.log = EventLog(
            GROUP_EVENTS,
            broker,
            self.clock,
            GROUP_EVENTS.snapshot_files(ROOT, self.files, inline),
            apply=self._apply,
            whole_state=lambda: [put(key, content) for key, content in self.state.items()],
        )
        count = await self.log.replay(self.lost.append)
        self.running = asyncio.create_task(self.log.run())
        return count

    def _apply(self, event: Event, at: Source) -> None:
        self.applied.append(event)
        self.sources.append(at)
        if isinstance(event, DocumentPut) and event.content is not None:
            self.state[event.key] = event.content

    async def stop(self) -> None:
        self.running.cancel()
        await asyncio.wait([self.running])
        await self.log.close()
        await self.store.close()


def put(key: str, content: bytes) -> DocumentPut:
    return DocumentPut("g", key, content)


async def started(files: Files, **settings: int) -> Machine:
    machine = Machine(files)
    await machine.start(**settings)
    return machine


async def test_events_are_applied_in_the_order_of_the_calls_and_share_appends() -> None:
    machine = await started(SimDisk())
    futures = [machine.log.write([put(str(number), b"")]) for number in range(50)]
    assert machine.applied == [], "not before they are in the log"
    await asyncio.gather(*futures)
    assert machine.applied == [put(str(number), b"") for number in range(50)]
    assert machine.log.append_count < 5
    sources = machine.sources
    assert len(set(sources)) == 50, "each has a position of its own in the log"
    await machine.stop()
    machine.files.remove(ROOT / "groups.0") if "groups.0" in machine.files.list(ROOT) else None
    machine.files.remove(ROOT / "groups.1") if "groups.1" in machine.files.list(ROOT) else None
    await machine.start()
    assert machine.sources == sources, "which a start finds again"
    await machine.stop()


async def test_events_of_many_calls_are_applied_a_few_a_turn_and_a_snapshot_between_them_loses_none() -> None:
    disk = SimDisk()
    machine = await started(disk)
    calls = [machine.log.write([put(f"{number}{half}", b"") for half in "ab"]) for number in range(300)]
    most = before = 0
    saved_at: list[int] = []
    saving = []
    while not calls[-1].done():
        await asyncio.sleep(0)
        most, before = max(most, len(machine.applied) - before), len(machine.applied)
        if 0 < before < 600 and not saving:
            saved_at.append(before)
            saving.append(asyncio.create_task(machine.log.save()))
    assert machine.log.append_count <= 5
    assert most <= _APPLIED_PER_LIVE_TURN
    await saving[0]
    assert 0 < saved_at[0] < 600
    assert machine.log.snapshot_count == 1
    if machine.log.unsaved_count:
        assert machine.log.needed_position is not None, "the rest of the entry is in the log alone"
    await abandon()
    disk.kill()
    again = Machine(disk)
    await again.start()
    assert len(again.state) == 600
    await again.stop()


async def test_a_group_of_events_is_bounded_and_one_call_is_never_cut() -> None:
    machine = await started(SimDisk(), commit_log_file_bytes=16 * WRITE_BYTES)
    size = WRITE_BYTES // 3
    calls = [machine.log.write([put(f"{number}{half}", b"x" * (size // 2)) for half in "ab"]) for number in range(6)]
    await asyncio.gather(*calls)
    assert machine.log.append_count >= 3
    assert len(machine.applied) == 12
    await machine.stop()


@pytest.mark.parametrize("is_flushed", [True, False])
async def test_a_power_cut_takes_no_flushed_event_and_a_kill_takes_none(is_flushed: bool) -> None:
    disk = SimDisk()
    machine = await started(disk)
    await machine.log.write([put("first", b"1")])
    await machine.log.write([put("second", b"2")], flushed=is_flushed)
    await abandon()
    disk.kill()
    killed = Machine(disk)
    assert await killed.start() == 2
    await abandon()
    after = Machine(disk.crash(Random(1)))
    await after.start()
    assert after.state["first"] == b"1"
    assert not is_flushed or after.state["second"] == b"2"
    await after.stop()


async def test_a_restart_reads_only_what_is_behind_the_last_snapshot() -> None:
    disk = SimDisk()
    machine = await started(disk)
    for number in range(5):
        await machine.log.write([put("key", b"%d" % number)])
    await machine.log.save()
    assert (machine.log.unsaved_count, machine.log.snapshot_count) == (0, 1)
    await machine.log.save()  # nothing new: nothing is written
    assert machine.log.snapshot_count == 1
    await machine.log.write([put("key", b"5")])
    await abandon()
    disk.kill()
    again = Machine(disk)
    assert await again.start() == 1
    assert again.state == {"key": b"5"}
    await again.stop()
    last = Machine(disk)
    assert await last.start() == 0, "a clean stop leaves a snapshot"
    assert last.state == {"key": b"5"}
    await last.stop()


async def test_a_snapshot_is_never_ahead_of_the_log_after_a_power_cut() -> None:
    """Events that were only written must be made durable before a snapshot holds them."""
    for seed in range(20):
        disk = SimDisk()
        machine = await started(disk)
        await machine.log.write([put("key", b"1")], flushed=False)
        await machine.log.save()
        assert machine.applied[-1] == Barrier()
        await abandon()
        after = Machine(disk.crash(Random(seed)))
        await after.start()  # raises when the log ends before the snapshot
        assert after.state == {"key": b"1"}
        await after.stop()


async def test_every_step_of_a_snapshot_may_be_the_last() -> None:
    for step in range(1, 12):
        disk = SimDisk()
        machine = await started(disk)
        for number in range(3):
            await machine.log.write([put("key", b"%d" % number)])
        await machine.log.save()
        await machine.log.write([put("key", b"last")])
        disk.cut_power_at(step)
        await machine.log.save()
        await abandon()
        after = Machine(disk.crash(Random(step)))
        await after.start()
        assert after.state == {"key": b"last"}, f"step {step}"
        await after.stop()


async def test_a_snapshot_that_cannot_be_written_is_tried_again_and_costs_nothing() -> None:
    disk = SimDisk()
    machine = await started(disk)
    await machine.log.write([put("key", b"1")])
    disk.inject(Fault("datasync", path_part="groups."))
    await machine.log.save()
    assert (machine.log.snapshot_count, machine.log.unsaved_count) == (0, 1)
    assert machine.log.needed_position is not None
    await machine.log.save()
    assert machine.log.snapshot_count == 1
    await machine.stop()


async def test_retention_takes_no_event_that_is_in_no_snapshot() -> None:
    machine = await started(SimDisk(), retention_ms=1)
    machine.store.pin(
        lambda: machine.store.end_position if machine.log.needed_position is None else machine.log.needed_position
    )
    await machine.log.write([put("key", b"first")])
    topic, _ = await machine.store.create_topic("orders", 1)
    await fill(machine, topic.topic_id)
    machine.clock.step(10_000)
    await expire_all(machine)
    low, _ = machine.store.bounds(OFFSETS_QUEUE)
    assert low == 0, "the event is in the first file of the log, which has to stay"
    await machine.log.save()
    await expire_all(machine)
    assert machine.store.bounds(OFFSETS_QUEUE).min_offset > 0
    await abandon()
    assert isinstance(machine.files, SimDisk)
    machine.files.kill()
    again = Machine(machine.files)
    assert await again.start() == 0
    assert again.state == {"key": b"first"}
    await again.stop()


async def fill(machine: Machine, topic_id: int) -> None:
    """A few files of the log full of records."""
    for _ in range(30):
        batch = record_batch.encode([Record(None, b"x" * 8 * KiB, 0)])
        queue = OFFSETS_QUEUE._replace(topic_id=topic_id)
        await machine.store.append([Append(queue=queue, batch=batch, record_count=1)], acks=Acks.FLUSHED)


async def expire_all(machine: Machine) -> None:
    for _ in range(10):
        await machine.store.expire()


async def test_until_events_are_read_all_of_the_log_is_needed() -> None:
    machine = await started(SimDisk())
    await machine.log.write([put("key", b"1")])
    fresh = EventLog(
        GROUP_EVENTS,
        machine.log._broker,
        machine.clock,
        GROUP_EVENTS.snapshot_files(ROOT, machine.files, inline),
        apply=lambda event, at: None,
        whole_state=list,
    )
    assert fresh.needed_position == 0
    await fresh.replay(lambda _: None)
    assert fresh.needed_position == machine.log.needed_position
    await machine.stop()


async def test_lost_snapshots_of_a_log_that_has_expired_are_said_and_not_passed_over() -> None:
    disk = SimDisk()
    machine = await started(disk, retention_ms=1)
    await machine.log.write([put("key", b"first")])
    topic, _ = await machine.store.create_topic("orders", 1)
    await machine.log.save()
    await fill(machine, topic.topic_id)
    machine.clock.step(10_000)
    await expire_all(machine)
    await machine.stop()
    for path in [path for path in disk.paths() if "groups." in path]:
        disk.overwrite(path, 40, b"\xff\xff")
    with pytest.raises(Corrupt, match="restore"):
        await Machine(disk).start()
    await abandon()


async def test_an_event_of_a_newer_version_stops_the_start_instead_of_being_skipped() -> None:
    machine = await started(SimDisk())
    batch = record_batch.encode([Record(None, b'{"event": "rocket_launched", "group": "g"}', 0)])
    await machine.store.append([Append(queue=OFFSETS_QUEUE, batch=batch, record_count=1)], acks=Acks.FLUSHED)
    await abandon()
    assert isinstance(machine.files, SimDisk)
    machine.files.kill()
    with pytest.raises(Corrupt, match="newer version"):
        await Machine(machine.files).start()
    await abandon()


async def test_a_refused_append_changes_nothing_and_the_next_one_is_as_good_as_ever() -> None:
    machine = await started(SimDisk())
    disk = machine.files
    assert isinstance(disk, SimDisk)
    disk.capacity_bytes = disk.used_bytes()
    calls = [machine.log.write([put(str(number), b"x" * 1000)]) for number in range(100)]  # more than an entry takes
    outcomes = await asyncio.gather(*calls, return_exceptions=True)
    assert {type(outcome) for outcome in outcomes if outcome is not None} == {DiskFull}
    assert [event.key for event in machine.applied if isinstance(event, DocumentPut)] == [
        str(number) for number, outcome in enumerate(outcomes) if outcome is None
    ]
    before = dict(machine.state)
    disk.capacity_bytes += 1000 * KiB
    await machine.log.write([put("again", b"1")])
    assert machine.state == {**before, "again": b"1"}
    await machine.stop()


async def test_a_caller_that_is_cancelled_changes_nothing_about_what_is_written() -> None:
    machine = await started(SimDisk())
    waiting = asyncio.ensure_future(machine.log.write([put("key", b"1")]))
    waiting.cancel()
    await machine.log.write([put("other", b"2")])
    assert machine.state == {"key": b"1", "other": b"2"}
    await machine.stop()


async def test_what_is_too_large_for_an_entry_is_refused_alone() -> None:
    machine = await started(SimDisk())
    calls = [
        machine.log.write([put(str(number), b"x" * size)]) for number, size in enumerate((100, 100_000, 9_000, 9_000))
    ]
    outcomes = await asyncio.gather(*calls, return_exceptions=True)
    assert [type(outcome) for outcome in outcomes] == [type(None), RecordTooLarge, type(None), type(None)]
    assert list(machine.state) == ["0", "2", "3"]
    await machine.stop()


async def test_what_is_queued_at_a_stop_is_written() -> None:
    disk = SimDisk()
    machine = await started(disk)
    futures = [machine.log.write([put(str(number), b"")]) for number in range(10)]
    await machine.stop()
    assert all(future.done() for future in futures)
    again = await started(disk)
    assert len(again.state) == 10
    await again.stop()


async def test_what_comes_after_the_close_is_refused_and_does_not_wait() -> None:
    machine = await started(SimDisk())
    await machine.stop()
    with pytest.raises(StoreStopped):
        await asyncio.wait_for(machine.log.write([put("late", b"1")]), PATIENCE_S)


async def test_an_event_that_cannot_be_applied_stops_all_further_ones() -> None:
    machine = await started(SimDisk())

    def refuse(event: Event, at: Source) -> None:
        raise KeyError("state and log disagree")

    machine.log._apply = refuse
    with pytest.raises(StoreStopped):
        await machine.log.write([put("key", b"1")])
    with pytest.raises(KeyError):
        await machine.running
    with pytest.raises(StoreStopped):
        await machine.log.write([put("key", b"2")])
    await machine.log.close()  # saves nothing: memory is not what the log says
    assert machine.log.snapshot_count == 0
    await machine.store.close()
