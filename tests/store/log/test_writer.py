"""store.log.writer: group commit, order, limits and refusals."""

from __future__ import annotations

import asyncio
import gc
import weakref
from collections.abc import AsyncIterator, Callable, Sequence
from concurrent.futures import Future
from contextlib import asynccontextmanager
from dataclasses import replace
from functools import partial
from random import Random

import pytest

from store.errors import DiskFull, Overloaded, RecordTooLarge, StoreError, StoreStopped
from store.limits import KiB, MiB
from store.log import writer
from store.log.commit_log import CommitLog
from store.log.entry import ALIGNMENT, entry_bytes
from store.log.pace import INLINE_BYTES_MAX, PAUSE_MS_MIN
from store.log.writer import (
    COPIED_BYTES_MAX,
    GATHER_TURNS,
    GIVEN_SHARE,
    GROUP_BYTES_MAX,
    SHARED_CALLERS_MIN,
    WRITEOUT_BYTES,
    WRITEOUT_PIECES_MAX,
    ZERO_GROUP_BYTES_MAX,
    Writer,
)
from store.store import YIELD_TURNS_MAX, Store
from store.types import Acks, Appended, Buffer, QueueKey, Source
from tests.clock import FakeClock
from tests.simdisk import Fault, SimDisk, SimFile
from tests.store.kit import (
    SMALL,
    InlineExecutor,
    P,
    T,
    abandon,
    age_unsynced,
    append_of,
    open_store,
    opened,
    put,
    settle,
    values_of,
    with_settings,
)
from tests.waiting import PATIENCE_S


async def test_appends_of_one_turn_share_one_sync_and_keep_their_order() -> None:
    disk = SimDisk()
    async with opened(disk) as store:
        topic, _ = await store.create_topic("t", 2)
        queues = [QueueKey(topic.topic_id, number) for number in (0, 1)]
        before = store.stats.sync_count
        answers = await asyncio.gather(*(put(store, queues[number % 2], b"%d" % number) for number in range(20)))
        assert store.stats.sync_count == before + 1
        assert [answer.base_offset for answer in answers] == [number // 2 for number in range(20)]
        positions = [answer.position for answer in answers]
        assert positions == sorted(positions)
        for start, queue in enumerate(queues):
            assert await values_of(store, queue) == [b"%d" % number for number in range(start, 20, 2)]


async def test_a_group_with_one_flushed_call_flushes_them_all() -> None:
    async with opened(SimDisk()) as store:
        topic, _ = await store.create_topic("t", 1)
        queue = QueueKey(topic.topic_id, 0)
        written, flushed = await asyncio.gather(
            put(store, queue, b"a", acks=Acks.WRITTEN), put(store, queue, b"b", acks=Acks.FLUSHED)
        )
        assert (written.acks, flushed.acks) == (Acks.FLUSHED, Acks.FLUSHED), "the level reached, not the one asked for"


@pytest.mark.parametrize(
    ("more_bytes", "acks", "operation"),
    [
        (0, Acks.FLUSHED, "pwritev"),
        (ALIGNMENT, Acks.FLUSHED, "allocate"),
        (0, Acks.WRITTEN, "allocate"),
    ],
)
async def test_zeros_are_written_ahead_of_synced_groups_up_to_the_limit_and_space_allocated_ahead_of_others(
    more_bytes: int, acks: Acks, operation: str
) -> None:
    disk = SimDisk()
    extent_bytes = 2 * ZERO_GROUP_BYTES_MAX
    config = with_settings(commit_log_file_bytes=8 * ZERO_GROUP_BYTES_MAX, extent_bytes=extent_bytes)
    async with opened(disk, config) as store:
        topic, _ = await store.create_topic("t", 1)
        value_bytes = ZERO_GROUP_BYTES_MAX - 200
        while True:
            append = append_of(QueueKey(topic.topic_id, 0), [bytes(value_bytes)])
            if entry_bytes(append, 1) == ZERO_GROUP_BYTES_MAX + more_bytes:
                break
            value_bytes += 1
        disk.calls.clear()
        for _ in range(2):  # the first one is within what is prepared
            await store.append([replace(append, batch=bytes(append.batch))], acks=acks)
        prepared = store._log.prepared_position
        before = prepared - extent_bytes
        grown = [call for call in disk.calls if "/commitlog/" in call.path and before <= call.position < prepared]
        assert {call.operation for call in grown} == {operation}
        assert sum(call.size for call in grown) == extent_bytes


class NotingExecutor(InlineExecutor):
    """Notes what the writer leaves to its thread."""

    def __init__(self) -> None:
        self.left: list[str] = []

    def submit(self, fn: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> Future[T]:
        if isinstance(getattr(fn, "__self__", None), Writer):
            self.left.append(getattr(fn, "__name__", ""))
        return super().submit(fn, *args, **kwargs)


class HoldingExecutor(InlineExecutor):
    """Leaves the writer's calls undone until they are let go."""

    def __init__(self) -> None:
        self.is_holding = False
        self.held: list[Callable[[], None]] = []
        self._came = asyncio.Event()

    def submit(self, fn: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> Future[T]:
        if not (self.is_holding and isinstance(getattr(fn, "__self__", None), Writer)):
            return super().submit(fn, *args, **kwargs)
        future: Future[T] = Future()
        self.held.append(partial(settle, future, fn, *args, **kwargs))
        self._came.set()
        return future

    async def next(self) -> None:
        """Return when there is a call to be let go."""
        async with asyncio.timeout(PATIENCE_S):
            await self._came.wait()

    def let_go(self, *, hold_on: bool = False) -> None:
        """Do what is held; with `hold_on` what comes later is held again."""
        self.is_holding = hold_on
        self._came.clear()
        held, self.held = self.held, []
        for call in held:
            call()


class SlowClock(FakeClock):
    """Moves on by itself whenever it is read."""

    step_ms = 0

    def now_ms(self) -> int:
        self.step(self.step_ms)
        return super().now_ms()


async def test_the_loop_writes_small_groups_and_leaves_syncs_large_groups_and_growth_to_the_thread() -> None:
    executor = NotingExecutor()
    config = with_settings(commit_log_file_bytes=8 * INLINE_BYTES_MAX, extent_bytes=2 * INLINE_BYTES_MAX)
    store = await Store.open(config, files=SimDisk(), clock=FakeClock(), executor=executor)
    topic, _ = await store.create_topic("t", 1)
    queue = QueueKey(topic.topic_id, 0)
    executor.left.clear()

    async def left(value_bytes: int, acks: Acks) -> list[str]:
        executor.left.clear()
        await put(store, queue, bytes(value_bytes), acks=acks)
        return executor.left

    assert await left(10, Acks.WRITTEN) == []
    assert await left(10, Acks.FLUSHED) == ["_sync"]
    assert await left(INLINE_BYTES_MAX, Acks.WRITTEN) == ["_write_and_sync"]
    assert await left(INLINE_BYTES_MAX, Acks.FLUSHED) == ["_write_and_sync"]
    ways = [await left(INLINE_BYTES_MAX // 4, Acks.WRITTEN) == [] for _ in range(80)]
    assert ways.count(False) >= 2, "rolls to the next file"
    assert ways.count(True) > ways.count(False)
    assert len(await values_of(store, queue)) == 84
    await store.close()


async def test_small_batches_are_kept_as_bytes_and_large_ones_as_views() -> None:
    async with opened(SimDisk()) as store:
        topic, _ = await store.create_topic("t", 1)
        queue = QueueKey(topic.topic_id, 0)
        frame = len(append_of(queue, [bytes(COPIED_BYTES_MAX - 100)]).batch) - (COPIED_BYTES_MAX - 100)
        for more, kind in ((0, bytes), (1, memoryview)):
            answer = await put(store, queue, bytes(COPIED_BYTES_MAX - frame + more))
            entry = await store.read_entry(answer.position)
            assert len(entry.batch) == COPIED_BYTES_MAX + more
            assert type(entry.batch) is kind


async def test_a_disk_that_holds_up_the_loop_is_left_to_the_thread_for_a_while() -> None:
    executor, clock = NotingExecutor(), SlowClock()
    store = await Store.open(with_settings(extent_bytes=32 * KiB), files=SimDisk(), clock=clock, executor=executor)
    topic, _ = await store.create_topic("t", 1)
    queue = QueueKey(topic.topic_id, 0)

    async def is_inline() -> bool:
        executor.left.clear()
        await put(store, queue, b"a", acks=Acks.WRITTEN)
        return not executor.left

    assert await is_inline()
    clock.step_ms = 500
    await put(store, queue, b"a", acks=Acks.WRITTEN)  # a stall
    clock.step_ms = 0
    assert not await is_inline()
    clock.step(PAUSE_MS_MIN)
    assert await is_inline()
    await store.close()


@asynccontextmanager
async def flushing(disk: SimDisk) -> AsyncIterator[tuple[Store, QueueKey, HoldingExecutor]]:
    """A store of which a flush is under way; one record was written before it."""
    executor = HoldingExecutor()
    store = await Store.open(SMALL, files=disk, clock=FakeClock(), executor=executor)
    topic, _ = await store.create_topic("t", 1)
    queue = QueueKey(topic.topic_id, 0)
    executor.is_holding = True
    await put(store, queue, b"before", acks=Acks.WRITTEN)
    age_unsynced(store, 0.5)
    await executor.next()
    yield store, queue, executor
    await store.close()


async def test_what_is_only_written_does_not_wait_for_a_flush_and_is_left_to_the_next() -> None:
    disk = SimDisk()
    async with flushing(disk) as (store, queue, executor):
        async with asyncio.timeout(PATIENCE_S):
            answer = await put(store, queue, b"beside", acks=Acks.WRITTEN)
        assert answer.acks is Acks.WRITTEN
        assert await values_of(store, queue) == [b"before", b"beside"]
        executor.let_go(hold_on=True)
        age_unsynced(store, 0.5)
        await executor.next()  # the flush of what came beside the first
        assert store._log.durable_position == answer.position, "it speaks for what was there when it began"
        executor.let_go()
    assert await found(disk, 0) == [b"before", b"beside"]


async def test_groups_that_wait_for_one_flush_have_one_timer(monkeypatch: pytest.MonkeyPatch) -> None:
    loop, alarms = asyncio.get_running_loop(), 0

    def counted(when: float, callback: Callable[..., object], *args: object) -> asyncio.TimerHandle:
        nonlocal alarms
        alarms += callback == store._writer._ring
        return call_at(when, callback, *args)

    call_at = loop.call_at
    async with opened(SimDisk()) as store:
        monkeypatch.setattr(loop, "call_at", counted)
        queue = QueueKey((await store.create_topic("t", 1))[0].topic_id, 0)
        for number in range(20):
            await put(store, queue, b"%d" % number, acks=Acks.WRITTEN)
            await asyncio.sleep(0)
        assert alarms == 1
        alarm = store._writer._alarm
        assert alarm is not None
    assert alarm.cancelled()


def held(store: Store, queue: QueueKey, *sent: tuple[bytes, Acks]) -> list[asyncio.Future[list[Appended]]]:
    """What is appended while writes are held; the state of its futures is that right after it."""
    store.hold_writes()
    begun = [store.begin_append([append_of(queue, [value])], acks=acks) for value, acks in sent]
    assert not any(one.done() for one in begun)
    store.write_held()
    return begun


async def test_what_is_held_and_only_written_is_there_at_once_as_one_group_and_flushed_in_time() -> None:
    disk = SimDisk()
    async with opened(disk) as store:
        queue = QueueKey((await store.create_topic("t", 1))[0].topic_id, 0)
        await asyncio.sleep(0)
        groups = store.stats.group_count
        begun = held(store, queue, (b"a", Acks.WRITTEN), (b"b", Acks.WRITTEN))
        assert [one.result()[0].base_offset for one in begun] == [0, 1]
        assert begun[0].result()[0].acks is Acks.WRITTEN
        assert store.stats.group_count == groups + 1
        assert await values_of(store, queue) == [b"a", b"b"]
        assert store._writer._alarm is not None, "nobody else looks when it is time to flush"
        store.write_held()  # nothing is held
        age_unsynced(store, 0.5)
        async with asyncio.timeout(PATIENCE_S):
            while store._log.durable_position < store._log.end_position:  # noqa: ASYNC110
                await asyncio.sleep(0)
        assert await found(disk, 0) == [b"a", b"b"]


async def test_what_is_held_waits_with_what_is_to_be_durable_and_behind_a_group_under_way() -> None:
    executor = HoldingExecutor()
    store = await Store.open(SMALL, files=SimDisk(), clock=FakeClock(), executor=executor)
    queue = QueueKey((await store.create_topic("t", 1))[0].topic_id, 0)
    executor.is_holding = True
    first = held(store, queue, (b"a", Acks.WRITTEN), (b"b", Acks.FLUSHED))
    await executor.next()
    later = held(store, queue, (b"c", Acks.WRITTEN))
    assert not any(one.done() for one in (*first, *later))
    executor.let_go()
    answers = [(await one)[0] for one in (*first, *later)]
    assert [(answer.base_offset, answer.acks) for answer in answers] == [
        (0, Acks.FLUSHED), (1, Acks.FLUSHED), (2, Acks.WRITTEN)
    ]  # fmt: skip
    assert await values_of(store, queue) == [b"a", b"b", b"c"]
    await store.close()


async def test_what_is_held_waits_for_the_disk_when_older_records_wait_for_a_whole_interval() -> None:
    async with opened(SimDisk()) as store:
        queue = QueueKey((await store.create_topic("t", 1))[0].topic_id, 0)
        held(store, queue, (b"a", Acks.WRITTEN))
        age_unsynced(store, 1.0)
        (late,) = held(store, queue, (b"b", Acks.WRITTEN))
        assert not late.done()
        assert (await late)[0].acks is Acks.FLUSHED


async def test_a_held_write_that_fails_stops_the_store() -> None:
    disk = SimDisk()
    store = await open_store(disk)
    queue = QueueKey((await store.create_topic("t", 1))[0].topic_id, 0)
    disk.faults.append(Fault("pwritev", path_part="commitlog"))
    begun = held(store, queue, (b"a", Acks.WRITTEN), (b"b", Acks.WRITTEN))
    for one in begun:
        with pytest.raises(StoreStopped):
            await one
    with pytest.raises(StoreStopped):
        await put(store, queue, b"later", acks=Acks.WRITTEN)
    async with asyncio.timeout(PATIENCE_S):
        with pytest.raises(StoreStopped):
            await store._tasks[0]
    await abandon()


async def test_after_a_flush_that_failed_nothing_that_is_held_is_answered() -> None:
    disk = SimDisk()
    async with flushing(disk) as (store, queue, executor):
        disk.faults.append(Fault("datasync", path_part="commitlog"))
        flush = store._writer._flush
        assert flush is not None
        executor.let_go()
        begun: list[asyncio.Future[list[Appended]]] = []
        flush.add_done_callback(lambda _: begun.extend(held(store, queue, (b"a", Acks.WRITTEN))))
        await asyncio.wait([flush])  # the writer itself has not looked yet
        with pytest.raises(StoreStopped):
            await begun[0]
        assert store.failure is not None


async def test_a_sync_waits_for_those_whom_the_last_one_has_answered() -> None:
    async with opened(SimDisk()) as store:
        queue = QueueKey((await store.create_topic("t", 1))[0].topic_id, 0)

        async def sender(count: int) -> None:
            for _ in range(count):
                await put(store, queue, b"x")

        before = store.stats.sync_count
        first = asyncio.create_task(sender(10))
        await asyncio.sleep(0)
        await asyncio.sleep(0)  # the first one's group has been taken
        await asyncio.gather(first, *(sender(10) for _ in range(7)))
        assert store.stats.sync_count - before <= 12, "not one for each half of them"


async def test_what_waits_for_that_is_told_once_before_the_next_group_is_taken() -> None:
    executor = HoldingExecutor()
    store = await Store.open(SMALL, files=SimDisk(), clock=FakeClock(), executor=executor)
    queue = QueueKey((await store.create_topic("t", 1))[0].topic_id, 0)
    told: list[int] = []
    await asyncio.sleep(0)
    assert not store.when_gathered(lambda: told.append(0)), "nothing is waited for"
    executor.is_holding = True
    begun = held(store, queue, (b"a", Acks.FLUSHED), (b"b", Acks.FLUSHED))
    await executor.next()
    assert not store.when_gathered(lambda: told.append(0)), "the disk works: what is sent now is made ready meanwhile"
    executor.let_go()
    await asyncio.wait(begun)

    def told_with_more() -> None:
        told.append(1)
        begun.append(store.begin_append([append_of(queue, [b"c"])], acks=Acks.FLUSHED))

    async with asyncio.timeout(PATIENCE_S):
        while not store.when_gathered(told_with_more):  # noqa: ASYNC110
            await asyncio.sleep(0)
        groups = store.stats.group_count
        begun += held(store, queue, (b"d", Acks.FLUSHED))
        assert not told
        await asyncio.wait(begun)
        while len(begun) < 4:  # noqa: ASYNC110
            await asyncio.sleep(0)
        await asyncio.wait(begun)
    assert told == [1]
    assert store.stats.group_count == groups + 1, "it came before the group was taken"
    assert await values_of(store, queue) == [b"a", b"b", b"d", b"c"]
    await store.close()


@pytest.mark.parametrize("caller_count", [SHARED_CALLERS_MIN - 1, SHARED_CALLERS_MIN])
async def test_so_many_callers_of_one_append_are_waited_for(caller_count: int) -> None:
    async with opened(SimDisk()) as store:
        queue = QueueKey((await store.create_topic("t", 1))[0].topic_id, 0)
        for count in (caller_count, 1):
            store.hold_writes()
            begun = store.begin_append([append_of(queue, [b"x"] * count)], acks=Acks.FLUSHED)
            store.write_held(caller_count=count)
            await begun
            turns_left = GATHER_TURNS
            while turns_left and not store.when_gathered(lambda: None):
                turns_left -= 1
                await asyncio.sleep(0)
            assert (turns_left > 0) is (count >= SHARED_CALLERS_MIN), "it counts for its own group"
            await asyncio.sleep(0.01)


async def test_what_is_told_when_a_store_stops_while_it_gathers() -> None:
    told: list[StoreError] = []
    async with opened(SimDisk()) as store:
        queue = QueueKey((await store.create_topic("t", 1))[0].topic_id, 0)
        begun = held(store, queue, (b"a", Acks.FLUSHED), (b"b", Acks.FLUSHED))
        await asyncio.wait(begun)

        def append_one_more() -> None:
            try:
                store.begin_append([append_of(queue, [b"c"])], acks=Acks.FLUSHED)
            except StoreError as error:
                told.append(error)

        async with asyncio.timeout(PATIENCE_S):
            while not store.when_gathered(append_one_more):  # noqa: ASYNC110
                await asyncio.sleep(0)
    assert [type(error) for error in told] == [StoreStopped]


@pytest.mark.parametrize("acks", [Acks.FLUSHED, Acks.WRITTEN])
async def test_there_is_time_for_something_else_while_the_disk_works_and_only_then(acks: Acks) -> None:
    executor = HoldingExecutor()
    store = await Store.open(SMALL, files=SimDisk(), clock=FakeClock(), executor=executor)
    queue = QueueKey((await store.create_topic("t", 1))[0].topic_id, 0)
    await asyncio.sleep(0)
    executor.is_holding = True
    seen: list[bool] = []
    store.hold_writes()
    begun = store.begin_append([append_of(queue, [b"a"])], acks=acks)
    store.write_held(lambda: seen.append(begun.done()))
    if acks is Acks.WRITTEN:
        assert begun.done()
    else:
        await executor.next()
        assert seen == [False]
    executor.let_go()
    await begun
    later = held(store, queue, (b"b", Acks.FLUSHED))
    await asyncio.wait(later)
    assert len(seen) == (acks is Acks.FLUSHED), "never for another group"
    await store.close()


async def found(disk: SimDisk, seed: int) -> list[bytes]:
    """The records of the topic that a power cut leaves."""
    async with opened(disk.crash(Random(seed))) as again:
        return await values_of(again, QueueKey(again.topic("t").topic_id, 0))


async def test_what_is_only_written_waits_for_the_disk_when_older_records_wait_for_a_whole_interval() -> None:
    async with flushing(SimDisk()) as (store, queue, executor):
        age_unsynced(store, 0.49)
        await put(store, queue, b"in time", acks=Acks.WRITTEN)
        age_unsynced(store, 0.02)
        late = asyncio.create_task(put(store, queue, b"late", acks=Acks.WRITTEN))
        await asyncio.sleep(0.02)
        assert not late.done()
        executor.let_go()
        assert (await late).acks is Acks.WRITTEN, "what was younger than the flush is young enough"
        age_unsynced(store, 1.0)
        assert (await put(store, queue, b"later", acks=Acks.WRITTEN)).acks is Acks.FLUSHED, "no flush had begun"


async def test_what_is_to_be_durable_waits_for_a_flush_and_is_synced_after_it() -> None:
    disk = SimDisk()
    async with flushing(disk) as (store, queue, executor):
        durable = asyncio.create_task(put(store, queue, b"durable"))
        written = asyncio.create_task(put(store, queue, b"with it", acks=Acks.WRITTEN))
        await asyncio.sleep(0.02)
        assert len(executor.held) == 1, "one sync at a time"
        assert not durable.done()
        executor.let_go(hold_on=True)
        await executor.next()
        assert not durable.done()
        executor.let_go()
        assert (await durable).acks is (await written).acks is Acks.FLUSHED
        assert await found(disk, 1) == [b"before", b"durable", b"with it"]


async def test_a_store_that_closes_waits_for_a_flush_and_syncs_what_came_beside_it() -> None:
    disk = SimDisk()
    async with flushing(disk) as (store, queue, executor):
        await put(store, queue, b"beside", acks=Acks.WRITTEN)
        closing = asyncio.create_task(store.close())
        await asyncio.sleep(0.02)
        assert not closing.done()
        executor.let_go()
        await closing
        assert await found(disk, 1) == [b"before", b"beside"]


async def test_after_a_flush_that_failed_nobody_is_answered_and_nothing_is_synced() -> None:
    disk = SimDisk()
    async with flushing(disk) as (store, queue, executor):
        disk.faults.append(Fault("datasync", path_part="commitlog"))
        durable = asyncio.create_task(put(store, queue, b"durable"))
        await asyncio.sleep(0)
        executor.let_go()
        disk.calls.clear()
        with pytest.raises(StoreStopped):
            await durable
        with pytest.raises(StoreStopped):
            await put(store, queue, b"later", acks=Acks.WRITTEN)
        assert store.failure is not None
        assert disk.calls == []


async def test_a_flush_that_fails_stops_a_store_that_nobody_writes_to() -> None:
    disk = SimDisk()
    async with flushing(disk) as (store, _, executor):
        disk.faults.append(Fault("datasync", path_part="commitlog"))
        executor.let_go()
        async with asyncio.timeout(PATIENCE_S):
            with pytest.raises(StoreStopped):
                await store._tasks[0]
        assert store.failure is not None


async def test_what_is_only_written_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    async with opened(SimDisk()) as store:
        topic, _ = await store.create_topic("t", 1)
        queue = QueueKey(topic.topic_id, 0)
        size = (await store.read_entry((await put(store, queue, b"x")).position)).size
        for limit, levels in ((2 * size, "WWFWWF"), (2 * size + 1, "WWWFWW")):
            monkeypatch.setattr(writer, "UNSYNCED_BYTES_MAX", limit)
            await put(store, queue, b"x")
            reached = [(await put(store, queue, b"x", acks=Acks.WRITTEN)).acks for _ in levels]
            assert "".join(level.name[0] for level in reached) == levels


async def test_an_entry_may_have_the_largest_size_and_not_a_byte_more() -> None:
    async with opened(SimDisk()) as store:
        topic, _ = await store.create_topic("t", 1)
        queue = QueueKey(topic.topic_id, 0)
        size, refused = SMALL.entry_bytes_max, False
        overhead = 0
        for value_bytes in range(size - 200, size):
            try:
                answer = await put(store, queue, bytes(value_bytes))
                overhead = max(overhead, (await store.read_entry(answer.position)).size)
                assert not refused, "a larger one was taken after a smaller one was refused"
            except RecordTooLarge:
                refused = True
        assert refused
        assert overhead == size
        assert len(await values_of(store, queue)) == store.bounds(queue).max_offset


async def test_bytes_that_wait_are_bounded_and_a_refusal_uses_up_no_offset() -> None:
    async with opened(SimDisk(), with_settings(append_bytes_max=10 * KiB)) as store:
        topic, _ = await store.create_topic("t", 1)
        queue = QueueKey(topic.topic_id, 0)
        results = await asyncio.gather(
            *(put(store, queue, b"%02d" % number + bytes(1000)) for number in range(30)), return_exceptions=True
        )
        refused = [result for result in results if isinstance(result, BaseException)]
        assert refused
        assert all(isinstance(error, Overloaded) for error in refused)
        assert Overloaded.retry_after_ms > 0
        taken = [number for number, result in enumerate(results) if not isinstance(result, BaseException)]
        assert [value[:2] for value in await values_of(store, queue)] == [b"%02d" % number for number in taken]
        assert store.waiting_bytes == 0
        assert (await put(store, queue, b"later")).base_offset == len(taken)


async def test_one_call_may_be_larger_than_what_may_wait() -> None:
    """Otherwise it could never be sent."""
    async with opened(SimDisk(), with_settings(append_bytes_max=100)) as store:
        topic, _ = await store.create_topic("t", 1)
        assert (await put(store, QueueKey(topic.topic_id, 0), bytes(5000))).base_offset == 0


async def test_a_cancelled_caller_leaves_the_others_and_its_record_alone() -> None:
    async with opened(SimDisk()) as store:
        topic, _ = await store.create_topic("t", 1)
        queue = QueueKey(topic.topic_id, 0)
        cancelled = asyncio.create_task(put(store, queue, b"a"))
        kept = asyncio.create_task(put(store, queue, b"b"))
        await asyncio.sleep(0)
        cancelled.cancel()
        assert (await kept).base_offset == 1
        assert await values_of(store, queue) == [b"a", b"b"]


async def test_a_batch_given_as_bytes_is_not_changed() -> None:
    async with opened(SimDisk()) as store:
        topic, _ = await store.create_topic("t", 1)
        queue = QueueKey(topic.topic_id, 0)
        await put(store, queue, b"first")
        append = append_of(queue, [b"a"])
        batch = bytes(append.batch)
        copy = bytes(batch)
        await store.append([type(append)(queue=queue, batch=batch, record_count=1)])
        assert batch == copy
        assert await values_of(store, queue) == [b"first", b"a"]


async def test_stopping_finishes_what_waits() -> None:
    disk = SimDisk()
    store = await open_store(disk)
    topic, _ = await store.create_topic("t", 1)
    queue = QueueKey(topic.topic_id, 0)
    waiting = [asyncio.create_task(put(store, queue, b"%d" % number)) for number in range(5)]
    await asyncio.sleep(0)
    await store.close()
    assert [(await task).base_offset for task in waiting] == list(range(5))
    with pytest.raises(StoreStopped, match="closing"):
        await put(store, queue, b"late")


def test_a_group_is_bounded() -> None:
    assert 0 < GROUP_BYTES_MAX <= SMALL.append_bytes_max


@pytest.mark.parametrize("acks", list(Acks))
@pytest.mark.parametrize("missing_bytes", [ALIGNMENT, 0])
async def test_the_disk_begins_with_a_piece_of_a_large_flushed_group_while_the_next_is_encoded(
    monkeypatch: pytest.MonkeyPatch, acks: Acks, missing_bytes: int
) -> None:
    begun: list[int] = []
    monkeypatch.setattr(SimFile, "begin_writeout", lambda _, position, size: begun.append(size))
    config = with_settings(commit_log_file_bytes=8 * WRITEOUT_BYTES, extent_bytes=4 * WRITEOUT_BYTES)
    async with opened(SimDisk(), config) as store:
        topic, _ = await store.create_topic("t", 1)
        queue = QueueKey(topic.topic_id, 0)
        frame_bytes = entry_bytes(append_of(queue, [bytes(WRITEOUT_BYTES)]), 1) - WRITEOUT_BYTES
        first = append_of(queue, [bytes(WRITEOUT_BYTES - frame_bytes - missing_bytes)])
        assert entry_bytes(first, 1) == WRITEOUT_BYTES - missing_bytes
        await store.append([first, append_of(queue, [bytes(INLINE_BYTES_MAX)])], acks=acks)  # too much for the loop
        is_begun = acks is Acks.FLUSHED and not missing_bytes
        assert begun == ([WRITEOUT_BYTES] if is_begun else [])
        assert [len(value) for value in await values_of(store, queue)][1] == INLINE_BYTES_MAX


@pytest.mark.parametrize("syncs_beside", [False, True])
@pytest.mark.parametrize("kind", [bytes, bytearray, memoryview, lambda batch: memoryview(bytes(batch))])
async def test_readers_get_from_memory_what_is_in_the_log_whatever_kind_of_buffer_it_came_in(
    kind: Callable[[bytearray], bytes], syncs_beside: bool
) -> None:
    disk = SimDisk()
    disk.syncs_beside = syncs_beside
    async with opened(disk, with_settings(commit_log_file_bytes=16 * INLINE_BYTES_MAX, extent_bytes=MiB)) as store:
        topic, _ = await store.create_topic("t", 1)
        queue = QueueKey(topic.topic_id, 0)
        store.watch_topic(topic.topic_id, lambda _: None)  # else they get large ones from the log
        for value_bytes in (10, 11, COPIED_BYTES_MAX, INLINE_BYTES_MAX // 2, 2 * INLINE_BYTES_MAX):
            append = append_of(queue, [b"a" * value_bytes])
            batch = kind(bytearray(append.batch))
            [answer] = await store.append([replace(append, batch=batch)], acks=Acks.FLUSHED)
            in_memory = store._tail[answer.position]
            assert in_memory == store._log.read_entry(answer.position)
            assert len(in_memory.batch) > value_bytes


async def test_a_buffer_that_its_owner_uses_again_once_it_is_written_changes_nothing_for_readers(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """As when whoever sent it was cancelled, and the buffer is that of the next request."""
    async with opened(SimDisk()) as store:
        topic, _ = await store.create_topic("t", 1)
        store.watch_topic(topic.topic_id, lambda _: None)  # else readers get it from the log
        append = append_of(QueueKey(topic.topic_id, 0), [b"a" * COPIED_BYTES_MAX])
        buffer = memoryview(bytearray(append.batch))
        write = CommitLog.write

        def write_and_use_again(log: CommitLog, position: int, buffers: Sequence[Buffer]) -> int:
            end = write(log, position, buffers)
            buffer[:] = bytes(len(buffer))
            return end

        monkeypatch.setattr(CommitLog, "write", write_and_use_again)
        [answer] = await store.append([replace(append, batch=buffer)], acks=Acks.FLUSHED)
        assert store._tail[answer.position] == store._log.read_entry(answer.position)


async def test_nothing_of_a_group_is_held_once_it_is_answered() -> None:
    """The writer waits for work without the appends of its last group, which may be large."""

    class Sources(list[Source]):
        """May have weak references. Readers are given them packed."""

    async with opened(SimDisk()) as store:
        topic, _ = await store.create_topic("t", 1)
        sources = Sources([Source(64, 0)])
        is_held = weakref.ref(sources)
        append = replace(append_of(QueueKey(topic.topic_id, 0), [b"v"]), sources=sources)
        await store.append([append], acks=Acks.FLUSHED)
        del append, sources
        for _ in range(3):
            await asyncio.sleep(0)
        gc.collect()
        assert is_held() is None


@pytest.mark.parametrize("before_bytes", [0, 70_000, 200_000])
async def test_a_view_that_is_given_is_kept_as_it_is_unless_it_is_a_small_part_of_its_memory(before_bytes: int) -> None:
    async with opened(SimDisk(), with_settings(commit_log_file_bytes=MiB, extent_bytes=MiB)) as store:
        topic, _ = await store.create_topic("t", 1)
        queue = QueueKey(topic.topic_id, 0)
        for value in (b"a", b"a" * 100_000):
            append = append_of(queue, [value])
            frame = bytearray(bytes(before_bytes) + append.batch)
            given = memoryview(frame)[before_bytes:]
            [answer] = await store.append([replace(append, batch=given, is_given=True)], acks=Acks.WRITTEN)
            kept = await store.read_entry(answer.position)
            assert kept == store._log.read_entry(answer.position)
            is_kept = len(value) > COPIED_BYTES_MAX and GIVEN_SHARE * len(given) >= len(frame)
            assert (isinstance(kept.batch, memoryview) and kept.batch.obj is frame) is is_kept


async def test_a_group_is_cut_into_few_pieces_however_large_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    begun: list[int] = []
    monkeypatch.setattr(SimFile, "begin_writeout", lambda _, position, size: begun.append(size))
    config = with_settings(commit_log_file_bytes=16 * MiB, extent_bytes=4 * MiB)
    async with opened(SimDisk(), config) as store:
        topic, _ = await store.create_topic("t", 1)
        queue = QueueKey(topic.topic_id, 0)
        for _ in range(2):  # the second one is within one file
            begun.clear()
            await store.append([append_of(queue, [bytes(50_000)]) for _ in range(100)], acks=Acks.FLUSHED)
        assert len(begun) == WRITEOUT_PIECES_MAX - 1
        assert min(begun) > WRITEOUT_BYTES


async def _turns_given(store: Store) -> int:
    """How many turns of the loop one `yield_to_loop` takes."""
    turn_count = 0

    async def turn() -> None:
        nonlocal turn_count
        while True:
            turn_count += 1
            await asyncio.sleep(0)

    turning = asyncio.create_task(turn())
    await store.yield_to_loop()
    turning.cancel()
    return turn_count


async def test_work_in_the_background_gives_several_turns_to_appends_that_somebody_waits_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("store.store.YIELD_S_MAX", 60.0)
    executor = HoldingExecutor()
    store = await Store.open(SMALL, files=SimDisk(), clock=FakeClock(), executor=executor)
    topic, _ = await store.create_topic("t", 1)
    monkeypatch.setattr(Writer, "_is_inline", lambda _writer, _size: False)
    append = append_of(QueueKey(topic.topic_id, 0), [b"a"])
    assert await _turns_given(store) == 1, "nothing is under way"
    for one, turn_count in (
        (append, YIELD_TURNS_MAX),
        (replace(append, sources=[Source(0, 0)]), 1),  # a delivery: the timer's own
    ):
        executor.is_holding = True
        under_way = store.begin_append([one], acks=Acks.FLUSHED)
        assert await _turns_given(store) == turn_count, "it waits to be taken"
        assert await _turns_given(store) == turn_count, "it is being written"
        behind = store.begin_append([append], acks=Acks.FLUSHED)
        assert await _turns_given(store) == YIELD_TURNS_MAX, "this one waits behind it"
        monkeypatch.setattr("store.store.YIELD_S_MAX", 0.0)
        assert await _turns_given(store) == 1, "the loop is busy: turns are long"
        monkeypatch.setattr("store.store.YIELD_S_MAX", 60.0)
        executor.let_go()
        await asyncio.gather(under_way, behind)
        assert await _turns_given(store) == 1, "all is answered"
    await store.close()


async def _put_for_ever(store: Store, queue: QueueKey) -> None:
    while True:
        await put(store, queue, b"a")


async def test_work_in_the_background_does_not_wait_for_appends_that_were_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("store.store.YIELD_S_MAX", 60.0)
    disk = SimDisk()
    store = await open_store(disk)
    topic, _ = await store.create_topic("t", 1)
    queue = QueueKey(topic.topic_id, 0)
    disk.capacity_bytes = disk.used_bytes()
    with pytest.raises(DiskFull):
        await _put_for_ever(store, queue)
    assert await _turns_given(store) == 1
    disk.capacity_bytes += 1 << 20
    disk.inject(Fault("datasync"))
    with pytest.raises(StoreStopped):
        await put(store, queue, b"a")
    assert await _turns_given(store) == 1
    await abandon()
