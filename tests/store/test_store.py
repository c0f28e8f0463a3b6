"""store.store: the facade as the gateway and the timer use it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import replace
from functools import partial
from pathlib import Path
from random import Random
from threading import Event

import pytest

from store import Store, StoreConfig
from store.errors import IllegalTopic, StoreLocked, StoreStopped, UnknownQueue
from store.files import OsFiles
from store.index.file import FileConsumeQueues
from store.limits import KiB, MiB
from store.log.entry import ALIGNMENT, entry_bytes
from store.log.writer import COPIED_BYTES_MAX
from store.offline.verify import verify
from store.record_batch import Record, encode
from store.store import CHECKPOINT_STEPS_MAX, FLUSHED_FILE_LOG_BYTES, INLINE_READ_BYTES_MAX
from store.topics import META_QUEUE, OFFSETS_QUEUE, TIMER_QUEUE, KeyForm, Topic, TopicConfig
from store.types import Acks, Append, Boundary, Bounds, QueueKey, ReadStatus, Source
from tests.clock import START_MS, FakeClock
from tests.simdisk import SimDisk, SimFile
from tests.store.kit import (
    SMALL,
    InlineExecutor,
    P,
    T,
    abandon,
    append_of,
    entries_of,
    open_store,
    opened,
    put,
    settle,
    values_of,
    with_settings,
)
from tests.waiting import PATIENCE_S, until


class TellingExecutor(InlineExecutor):
    """Sets an event after each call."""

    def __init__(self) -> None:
        self.called = asyncio.Event()

    def submit(self, fn: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> Future[T]:
        future = super().submit(fn, *args, **kwargs)
        self.called.set()
        return future


async def queue_of(store: Store, name: str = "orders", partitions: int = 2) -> QueueKey:
    topic, _ = await store.create_topic(name, partitions)
    return QueueKey(topic.topic_id, 0)


async def test_what_was_appended_is_read_back_also_after_a_restart() -> None:
    disk = SimDisk()
    async with opened(disk) as store:
        queue = await queue_of(store)
        first = await put(store, queue, b"a", b"b")
        second = await put(store, queue, b"c")
        assert (first.base_offset, second.base_offset) == (0, 2)
        assert first.acks is Acks.FLUSHED
        assert first.store_time_ms == START_MS
        assert await values_of(store, queue) == [b"a", b"b", b"c"]
    async with opened(disk) as store:
        assert await values_of(store, queue) == [b"a", b"b", b"c"]
        assert store.recovery.entry_count == 0, "a clean stop leaves nothing to scan"
        assert (await put(store, queue, b"d")).base_offset == 3


async def test_statuses_and_next_offsets() -> None:
    async with opened(SimDisk()) as store:
        queue = await queue_of(store)
        empty = await store.read(queue, 0, max_bytes=1000)
        assert (empty.status, empty.entries, empty.next_offset) == (ReadStatus.EMPTY, [], 0)
        await put(store, queue, b"a", b"b", b"c")
        await put(store, queue, b"d")
        inside = await store.read(queue, 1, max_bytes=1)
        assert inside.status is ReadStatus.FOUND
        assert [entry.base_offset for entry in inside.entries] == [0], "the entry that holds the offset, whole"
        assert (inside.min_offset, inside.max_offset, inside.next_offset) == (0, 4, 3)
        everything = await store.read(queue, 0, max_bytes=MiB)
        assert (len(everything.entries), everything.next_offset) == (2, 4)
        assert (await store.read(queue, 4, max_bytes=1)).status is ReadStatus.AT_END
        beyond = await store.read(queue, 5, max_bytes=1)
        assert (beyond.status, beyond.next_offset) == (ReadStatus.TOO_LARGE, 4)
        before = await store.read(queue, -1, max_bytes=1)
        assert (before.status, before.next_offset) == (ReadStatus.TOO_SMALL, 0)


async def test_a_read_returns_at_least_one_entry_and_then_stays_below_max_bytes() -> None:
    async with opened(SimDisk()) as store:
        queue = await queue_of(store)
        for _ in range(6):
            await put(store, queue, bytes(1000))
        size = (await entries_of(store, queue))[0].size
        for max_bytes, count in ((0, 1), (1, 1), (size, 1), (2 * size - 1, 1), (2 * size, 2), (100 * size, 6)):
            assert len((await store.read(queue, 0, max_bytes=max_bytes)).entries) == count, max_bytes


async def test_a_read_takes_no_entry_that_begins_at_or_behind_its_end_but_at_least_one() -> None:
    async with opened(SimDisk()) as store:
        queue = await queue_of(store)
        for _ in range(4):
            await put(store, queue, b"a", b"b", b"c")
        ends = {None: 12, 100: 12, 12: 12, 10: 12, 9: 9, 4: 6, 3: 3, 1: 3, 0: 3, -5: 3}
        for end_offset, next_offset in ends.items():
            read = await store.read(queue, 1, max_bytes=MiB, end_offset=end_offset)
            assert read.next_offset == next_offset == read.entries[-1].next_offset, end_offset
            assert read.entries[0].base_offset == 0
            assert (read.min_offset, read.max_offset) == (0, 12)
        assert (await store.read(queue, 12, max_bytes=1, end_offset=3)).status is ReadStatus.AT_END


@pytest.mark.parametrize(("more_bytes", "calls"), [(0, ["pread_cached"]), (ALIGNMENT, ["pread"])])
async def test_the_loop_reads_so_many_bytes_itself_and_leaves_more_to_a_thread(
    more_bytes: int, calls: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    config = with_settings(commit_log_file_bytes=8 * INLINE_READ_BYTES_MAX, tail_bytes_max=0)
    async with opened(SimDisk(), config) as store:
        queue = await queue_of(store)
        value_bytes = INLINE_READ_BYTES_MAX - 200
        while True:
            append = append_of(queue, [bytes(value_bytes)])
            if entry_bytes(append, len("orders")) == INLINE_READ_BYTES_MAX + more_bytes:
                break
            value_bytes += 1
        await store.append([append])
        seen: list[str] = []
        for name in ("pread", "pread_cached"):
            original = getattr(SimFile, name)

            def noted(
                self: SimFile, size: int, position: int, name: str = name, original: Callable[..., object] = original
            ) -> object:
                if "/commitlog/" in str(self.path):
                    seen.append(name)
                return original(self, size, position)

            monkeypatch.setattr(SimFile, name, noted)
        (entry,) = (await store.read(queue, 0, max_bytes=1)).entries
        assert entry.size == INLINE_READ_BYTES_MAX + more_bytes
        assert seen[:1] == calls


async def test_reads_agree_whether_they_come_from_memory_or_from_the_log() -> None:
    disk = SimDisk()
    async with opened(disk, with_settings(tail_bytes_max=3 * KiB)) as store:
        queue = await queue_of(store)
        for number in range(120):
            await put(store, queue, b"%d" % number, bytes(number * 20))
        mixed = await entries_of(store, queue)
    async with opened(disk) as store:
        from_log = await entries_of(store, queue)
    assert from_log == mixed
    assert len(disk.list(SMALL.root / "commitlog")) > 2


async def test_what_watchers_were_just_told_of_reads_as_all_else() -> None:
    """Whoever is woken reads it at once: it is at hand, without a look into the index."""
    async with opened(SimDisk()) as store:
        queue = await queue_of(store)
        call_off = store.watch_topic(queue.topic_id, lambda _: None)

        async def read_all() -> list[object]:
            return [
                await store.read(queue, offset, max_bytes=max_bytes, end_offset=end_offset, tag_hashes=tags)
                for offset in range(store.bounds(queue).max_offset + 2)
                for end_offset in (None, offset, offset + 1, 100)
                for tags in (None, frozenset[int](), frozenset({9}))
                for max_bytes in (1, MiB)
            ]

        async def check() -> None:
            at_hand = await read_all()
            told, store._told = store._told, {}
            assert await read_all() == at_hand
            store._told = told

        await put(store, queue, b"a")
        await put(store, queue, b"b", b"c")
        assert list(store._told) == [queue]
        await check()
        both = [Append(queue=queue, batch=encode([Record(None, b"d", 1)]), record_count=1) for _ in range(2)]
        await store.append(both)  # two entries are told of at once
        await check()
        call_off()
        await put(store, queue, b"f")  # nobody is told of this one
        assert list(store._told) == [queue]
        await check()
        store.watch_topic(queue.topic_id, lambda _: None)
        await put(store, queue, b"g")
        await store.delete_topic("orders")
        with pytest.raises(UnknownQueue):
            await store.read(queue, 6, max_bytes=MiB)


def sent_of(queue: QueueKey, value: bytes) -> Append:
    """A batch as it comes from outside: bytes that are not the store's."""
    return replace(append_of(queue, [value]), batch=bytes(encode([Record(None, value, START_MS)])))


@pytest.mark.parametrize("acks", list(Acks))
async def test_a_large_batch_is_copied_for_those_alone_who_follow_its_queue(acks: Acks) -> None:
    async with opened(SimDisk(), with_settings(tail_bytes_max=MiB)) as store:
        queue, other = [QueueKey((await queue_of(store)).topic_id, number) for number in range(2)]
        values = [b"%d" % number * (COPIED_BYTES_MAX + number) for number in range(5)]
        await store.append([sent_of(queue, values[0])], acks=acks)
        await put(store, queue, b"small", acks=acks)
        assert [entry.record_count for entry in store._tail.values()] == [1], "the small one"
        assert await values_of(store, queue) == [values[0], b"small"]
        await store.append([sent_of(queue, values[1]), sent_of(other, values[1])], acks=acks)
        assert [entry.queue for entry in store._tail.values()] == [queue, queue], "who has read near its end follows it"
        at_end = await store.read(other, store.bounds(other).max_offset, max_bytes=1)
        assert at_end.status is ReadStatus.AT_END
        await store.append([sent_of(other, values[2])], acks=acks)
        assert [entry.queue for entry in store._tail.values()] == [queue, queue, other], "so does who waits there"
        assert await values_of(store, queue) == [values[0], b"small", values[1]]
        assert await values_of(store, other) == values[1:3]
        store._followed.clear()
        call_off = store.watch_topic(queue.topic_id, lambda _: None)
        await store.append([sent_of(queue, values[3])], acks=acks)
        call_off()
        await store.append([sent_of(queue, values[4])], acks=acks)
        assert len(store._tail) == 4, "as those who watch its topic"
        assert await values_of(store, queue) == [values[0], b"small", values[1], *values[3:]]


async def test_who_begins_to_follow_while_a_large_batch_is_written_reads_all_of_it() -> None:
    value = bytes(2 * COPIED_BYTES_MAX)
    turns = 0
    is_late = False
    while not is_late:  # than its publishing: from each turn of the event loop before on
        async with opened(SimDisk()) as store:
            queue = await queue_of(store)
            appended = store.begin_append([sent_of(queue, value)], acks=Acks.FLUSHED)
            for _ in range(turns):
                await asyncio.sleep(0)
            is_late = appended.done()
            ends: list[dict[QueueKey, int]] = []
            store.watch_topic(queue.topic_id, lambda own, ends=ends: ends.append(dict(own)))  # type: ignore[misc]
            await appended
            assert is_late or ends == [{queue: 1}]
            assert await values_of(store, queue) == [value]
        turns += 1
    assert turns > 2


async def test_what_was_applied_when_it_was_written_is_not_kept_in_memory_for_readers() -> None:
    async with opened(SimDisk()) as store:
        queue = await queue_of(store)
        await put(store, OFFSETS_QUEUE, b"an event")
        await put(store, queue, b"a")
        assert [entry.queue for entry in store._tail.values()] == [queue]
        assert await values_of(store, OFFSETS_QUEUE) == [b"an event"]


async def test_what_is_old_is_not_kept_in_memory_for_readers(monkeypatch: pytest.MonkeyPatch) -> None:
    """32 MiB of an idle server's 150 were this, and small parts of them kept whole arenas of free memory."""
    monkeypatch.setattr("store.store.TAIL_KEPT_S", 0.2)
    monkeypatch.setattr("store.store.TAIL_ENTRIES_PER_STEP", 7)
    async with opened(SimDisk()) as store:
        queue = await queue_of(store)
        values = [b"%d" % number for number in range(20)]
        for value in values:
            await put(store, queue, value)
        store.watch_topic(queue.topic_id, lambda _: None)
        await put(store, queue, b"told")
        assert store._tail_order
        assert store._told
        await until(lambda: not store._tail)
        assert not store._told
        assert store._tail_bytes == 0
        assert await values_of(store, queue) == [*values, b"told"]
        await put(store, queue, b"next")
        assert await values_of(store, queue) == [*values, b"told", b"next"]


async def test_unknown_queues_are_refused_everywhere_and_nothing_is_stored() -> None:
    async with opened(SimDisk()) as store:
        queue = await queue_of(store, partitions=1)
        end = store.end_position
        for unknown in (QueueKey(queue.topic_id, 1), QueueKey(queue.topic_id + 1, 0), QueueKey(queue.topic_id, -1)):
            with pytest.raises(UnknownQueue):
                await put(store, unknown, b"a")
            with pytest.raises(UnknownQueue):
                await store.append([append_of(queue, [b"good"]), append_of(unknown, [b"bad"])])
            with pytest.raises(UnknownQueue):
                await store.read(unknown, 0, max_bytes=1)
            with pytest.raises(UnknownQueue):
                store.bounds(unknown)
            with pytest.raises(UnknownQueue):
                await store.wait_for(unknown, 0, 10)
            with pytest.raises(UnknownQueue):
                await store.offset_for_time(unknown, 0, Boundary.LOWER)
        assert store.end_position == end
        assert store.bounds(queue) == Bounds(0, 0)


async def test_a_waiting_reader_is_woken_by_the_first_record() -> None:
    async with opened(SimDisk()) as store:
        queue = await queue_of(store)
        other = queue._replace(queue_id=1)
        waiting = [asyncio.create_task(store.wait_for(queue, 0, 60_000)) for _ in range(3)]
        await put(store, other, b"elsewhere")
        assert not any(task.done() for task in waiting)
        await put(store, queue, b"a")
        assert await asyncio.gather(*waiting) == [True, True, True]
        assert await store.wait_for(queue, 0, 0), "what is there needs no wait"
        assert not await store.wait_for(queue, 1, 0)
        assert not await store.wait_for(queue, 1, 1), "time is up"


async def test_closing_wakes_waiting_readers_and_refuses_appends() -> None:
    store = await open_store(SimDisk())
    queue = await queue_of(store)
    waiting = asyncio.create_task(store.wait_for(queue, 0, 60_000))
    await asyncio.sleep(0)
    await store.close()
    assert await waiting is False
    with pytest.raises(StoreStopped):
        await put(store, queue, b"a")


async def test_store_time_never_goes_back_when_the_clock_does_not_even_across_a_restart() -> None:
    disk, clock = SimDisk(), FakeClock()
    times = []
    async with opened(disk, clock=clock) as store:
        queue = await queue_of(store)
        for step_ms in (1000, -3_600_000, 5, 7_200_000):
            clock.step(step_ms)
            times.append((await put(store, queue, b"a")).store_time_ms)
    disk.kill()
    clock.step(-10_000_000)
    async with opened(disk, clock=clock) as store:
        times.append((await put(store, queue, b"a")).store_time_ms)
    assert times == sorted(times)
    assert times[0] == START_MS + 1000


async def test_search_by_time_on_both_boundaries() -> None:
    disk, clock = SimDisk(), FakeClock(0)
    async with opened(disk, clock=clock) as store:
        queue = await queue_of(store)
        for time_ms, values in ((10, [b"a", b"b"]), (10, [b"c"]), (30, [b"d", b"e"])):
            clock.set(time_ms)
            await put(store, queue, *values)
        await check_times(store, queue)
    async with opened(disk, clock=clock) as store:
        await check_times(store, queue)


async def check_times(store: Store, queue: QueueKey) -> None:
    """Times 10 10 10 30 30 at offsets 0 to 4: the example of store/index/base.py."""
    expected = {5: (0, 0), 10: (0, 2), 20: (3, 2), 30: (3, 4), 40: (5, 4)}
    for time_ms, (lower, upper) in expected.items():
        assert await store.offset_for_time(queue, time_ms, Boundary.LOWER) == lower, time_ms
        assert await store.offset_for_time(queue, time_ms, Boundary.UPPER) == upper, time_ms


async def test_written_acks_are_answered_without_a_sync_and_survive_a_kill() -> None:
    disk = SimDisk()
    store = await open_store(disk)
    queue = await queue_of(store)
    await put(store, queue, b"first")
    synced = sum(call.operation == "datasync" for call in disk.calls)
    answer = await put(store, queue, b"a", acks=Acks.WRITTEN)
    assert answer.acks is Acks.WRITTEN
    assert sum(call.operation == "datasync" for call in disk.calls) == synced
    assert (await put(store, queue, b"b")).acks is Acks.FLUSHED
    await put(store, queue, b"c", acks=Acks.WRITTEN)
    await abandon()
    disk.kill()
    async with opened(disk) as again:
        assert await values_of(again, queue) == [b"first", b"a", b"b", b"c"]


async def test_only_written_records_are_synced_after_the_flush_interval() -> None:
    disk, executor = SimDisk(), TellingExecutor()
    config = with_settings(flush_interval_ms=5)
    store = await Store.open(config, files=disk, clock=FakeClock(), executor=executor)
    queue = await queue_of(store)
    await put(store, queue, b"a", acks=Acks.WRITTEN)
    executor.called.clear()
    disk.calls.clear()
    async with asyncio.timeout(PATIENCE_S):
        await executor.called.wait()
    assert [call.operation for call in disk.calls] == ["datasync"]
    async with opened(disk.crash(Random(0))) as again:
        assert await values_of(again, queue) == [b"a"]
    await put(store, queue, b"b", acks=Acks.WRITTEN)  # the time that it is due is not that of what comes behind
    await put(store, queue, b"c")
    await put(store, queue, b"d", acks=Acks.WRITTEN)
    executor.called.clear()
    async with asyncio.timeout(PATIENCE_S):
        await executor.called.wait()
    async with opened(disk.crash(Random(0))) as again:
        assert await values_of(again, queue) == [b"a", b"b", b"c", b"d"]
    await store.close()


async def test_two_processes_cannot_open_one_directory() -> None:
    disk = SimDisk()
    async with opened(disk):
        with pytest.raises(StoreLocked):
            await open_store(disk)
    async with opened(disk):
        pass


async def test_a_topic_that_was_made_elsewhere_is_here_as_it_is_there() -> None:
    disk = SimDisk()
    wanted = Topic(40, "orders", 2, 7, TopicConfig(max_message_bytes=100), KeyForm.CONFLUENT)
    async with opened(disk) as store:
        own = await queue_of(store, "orders")
        await put(store, own, b"of another topic of this name")
        assert await store.put_topic(wanted) == wanted
        assert store.next_topic_id == 41
        with pytest.raises(UnknownQueue):
            store.bounds(own)
        await put(store, QueueKey(40, 1), b"1")
        grown = replace(wanted, partitions=3, config=TopicConfig())
        assert await store.put_topic(grown) == grown == await store.put_topic(grown)
        with pytest.raises(IllegalTopic):
            await store.put_topic(wanted)
    disk.kill()
    async with opened(disk) as store:
        assert store.topic("orders") == grown
        assert await values_of(store, QueueKey(40, 1)) == [b"1"]
        assert store.next_topic_id == 41


async def test_a_deleted_topic_that_is_made_again_is_empty() -> None:
    disk = SimDisk()
    async with opened(disk) as store:
        queue = await queue_of(store)
        await put(store, queue, b"old")
        waiting = asyncio.create_task(store.wait_for(queue, 1, 60_000))
        await asyncio.sleep(0)
        await store.delete_topic("orders")
        with pytest.raises(UnknownQueue):
            await waiting
        with pytest.raises(UnknownQueue):
            await store.read(queue, 0, max_bytes=1)
        again = await queue_of(store)
        assert again.topic_id > queue.topic_id
        assert store.bounds(again) == Bounds(0, 0)
        await put(store, again, b"new")
    disk.kill()
    async with opened(disk) as store:
        assert await values_of(store, again) == [b"new"]
        with pytest.raises(UnknownQueue):
            store.bounds(queue)


async def test_retention_by_age_raises_the_min_offset_and_keeps_what_is_pinned() -> None:
    disk, clock = SimDisk(), FakeClock()
    async with opened(disk, with_settings(retention_ms=10_000), clock) as store:
        queue = await queue_of(store)
        pinned = [0]
        store.pin(lambda: pinned[0])
        for number in range(60):
            clock.step(1000)
            await put(store, queue, b"%d" % number + bytes(4000))
        assert await store.expire(file_count_max=99) == 0, "a pin holds everything behind it"
        pinned[0] = store.end_position
        assert await store.expire() == 1
        removed = 1 + await store.expire(file_count_max=99)
        assert removed >= 2
        low, high = store.bounds(queue)
        assert 0 < low < high == 60
        assert (await store.read(queue, 0, max_bytes=1)).status is ReadStatus.TOO_SMALL
        assert [value[:2] for value in await values_of(store, queue)] == [b"%d" % n for n in range(low, 60)]
    async with opened(disk) as store:
        assert store.bounds(queue) == Bounds(low, high)
        assert store.topic("orders").topic_id == queue.topic_id, "topics outlive the log they were made in"


async def test_retention_waits_for_what_a_power_cut_may_still_take() -> None:
    """Else the log is cut below the start that a snapshot told, and what it is given next is taken for expired."""
    disk, config = SimDisk(), with_settings(retention_bytes=64 * KiB)
    store = await open_store(disk, config)
    queue = await queue_of(store)
    for _ in range(60):
        await put(store, queue, bytes(4000), acks=Acks.WRITTEN)
    assert await store.expire(file_count_max=9) == 0, "no flush has covered these files"
    await abandon()
    for seed in range(20):
        after = disk.crash(Random(seed))
        store = await open_store(after, config)
        low = store.bounds(queue).max_offset
        for _ in range(60):
            await put(store, queue, b"kept" + bytes(4000))
        await abandon()
        after.kill()
        async with opened(after, config) as store:
            assert store.bounds(queue) == Bounds(0, low + 60)
    async with opened(disk.crash(Random(0)), config) as store:
        for _ in range(60):
            await put(store, queue, bytes(4000))
        assert await store.expire(file_count_max=9) > 0, "durable"


async def test_tag_filters_pass_over_entries_in_the_index() -> None:
    async with opened(SimDisk()) as store:
        queue = await queue_of(store)
        for tags in ((1, 1), (2, 2), (1, 2), (3, 3)):
            batch = encode([Record(None, b"x", 0)] * 2)
            await store.append([Append(queue=queue, batch=batch, record_count=2, tag_hashes=tags)])

        async def found(*tags: int) -> list[int]:
            result = await store.read(queue, 0, max_bytes=MiB, tag_hashes=frozenset(tags))
            assert result.next_offset == 8, "passing over is progress"
            return [entry.base_offset for entry in result.entries]

        assert await found(1) == [0, 4]
        assert await found(2) == [2, 4]
        assert await found(2, 3) == [2, 4, 6]
        assert await found(9) == []
        none = await store.read(queue, 0, max_bytes=MiB, tag_hashes=frozenset({9}))
        assert none.status is ReadStatus.NO_MATCH


async def test_delivered_schedules_can_be_learned_from_the_log() -> None:
    disk = SimDisk()
    async with opened(disk) as store:
        queue = await queue_of(store)
        await put(store, queue, b"plain")
        middle = store.end_position
        batch = encode([Record(None, b"x", 0)])
        sources = [Source(8, 0), Source(8, 3)]
        await store.append([Append(queue=queue, batch=batch, record_count=1, sources=sources)])
        assert await store.sources_since(0) == await store.sources_since(middle) == set(sources)
        assert await store.sources_since(store.end_position) == set()
    async with opened(disk) as store:
        assert await store.sources_since(middle) == set(sources)


async def test_an_entry_can_be_read_by_its_position() -> None:
    disk = SimDisk()
    async with opened(disk) as store:
        answer = await put(store, TIMER_QUEUE, b"delayed")
        assert (await store.read_entry(answer.position)).queue == TIMER_QUEUE
    async with opened(disk) as store:
        assert (await store.read_entry(answer.position)).position == answer.position


async def test_an_entry_is_at_hand_when_it_is_in_memory_and_not_large(monkeypatch: pytest.MonkeyPatch) -> None:
    async with opened(SimDisk(), with_settings(tail_bytes_max=3 * KiB)) as store:
        queue = await queue_of(store)
        positions = [(await put(store, queue, b"%d" % number, bytes(1000))).position for number in range(9)]
        whole = await store.read_entries(positions)
        assert len(store._tail) in range(1, 9)
        assert [store.entry_at_hand(position) for position in positions] == whole
        monkeypatch.setattr("store.store.INLINE_READ_BYTES_MAX", whole[0].size)
        assert store.entry_at_hand(positions[0]) == whole[0]
        monkeypatch.setattr("store.store.INLINE_READ_BYTES_MAX", whole[0].size - 1)
        assert store.entry_at_hand(positions[0]) is None
        assert store.entry_at_hand(positions[-1]) == whole[-1], "it is kept for readers at the tail"
        monkeypatch.undo()
        monkeypatch.setattr(SimFile, "pread_cached", lambda *_: None)
        assert store.entry_at_hand(positions[0]) is None


async def test_the_real_disk_and_real_threads(tmp_path: Path) -> None:
    """The same with nothing simulated: default executors, default file sizes but for the extent."""
    config = StoreConfig(root=tmp_path, extent_bytes=MiB, disk_floor_bytes=0)
    store = await Store.open(config, files=OsFiles())
    queue = await queue_of(store)
    answers = await asyncio.gather(*(put(store, queue, b"%d" % number) for number in range(500)))
    assert [answer.base_offset for answer in answers] == list(range(500)), "offsets follow the order of the calls"
    assert store.stats.sync_count < 250, "one fdatasync answers many"
    await store.close()
    store = await Store.open(config)
    assert await values_of(store, queue) == [b"%d" % number for number in range(500)]
    assert store.bounds(META_QUEUE).max_offset == 1
    await store.close()


async def test_a_checkpoint_whose_caller_is_cancelled_before_it_began_is_saved_whole(tmp_path: Path) -> None:
    """Its snapshot counted units that nobody had written, when the cut-off flush had taken them along."""
    root = tmp_path / "data"
    config = StoreConfig(root=root, disk_floor_bytes=0)
    store = await Store.open(config)
    topic, _ = await store.create_topic("t", 1)
    queue = QueueKey(topic.topic_id, 0)
    await put(store, queue, *(b"%d" % number for number in range(10)))
    release = Event()
    store._index_executor.submit(release.wait)  # the thread is busy
    saving = asyncio.ensure_future(store._save_checkpoint())
    await asyncio.sleep(0.01)
    saving.cancel()
    await asyncio.sleep(0.01)
    was_left = saving.done()
    release.set()
    assert not was_left, "what was begun goes on, and is waited for"
    await asyncio.wait([saving])
    assert saving.cancelled()
    assert store._queues.checkpoint == store.end_position
    await store.close()
    assert verify(root).findings == []
    store = await Store.open(config)
    assert await values_of(store, queue) == [b"%d" % number for number in range(10)]
    await store.close()


async def test_a_topic_change_whose_caller_is_cancelled_is_made_whole() -> None:
    """Its event is on the way into the log: in the log and not in the table, it would give its topic id away again."""
    disk = SimDisk()
    async with opened(disk) as store:
        for name in ("first", "second"):
            creating = asyncio.ensure_future(store.create_topic(name, 1))
            await asyncio.sleep(0)
            await asyncio.sleep(0)
            creating.cancel()
            await asyncio.wait([creating])
            assert creating.cancelled()
        topic_ids = {name: store.topic(name).topic_id for name in ("first", "second")}
        assert topic_ids["second"] == topic_ids["first"] + 1
        queue = QueueKey(topic_ids["second"], 0)
        waiting = asyncio.ensure_future(store.wait_for(queue, 0, 60_000))
        await asyncio.sleep(0)
        deleting = asyncio.ensure_future(store.delete_topic("second"))
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        deleting.cancel()
        await asyncio.wait([deleting])
        assert deleting.cancelled()
        with pytest.raises(UnknownQueue):
            await waiting
        created, _ = await store.create_topic("third", 1)
        assert created.topic_id == topic_ids["first"] + 2
    async with opened(disk) as store:
        assert [topic.name for topic in store.topics() if topic.topic_id >= topic_ids["first"]] == ["first", "third"]


@pytest.mark.parametrize("file_count", [0, 1, 100_000])
async def test_the_log_grows_by_more_between_checkpoints_the_more_files_each_has_to_write(
    monkeypatch: pytest.MonkeyPatch, file_count: int
) -> None:
    step_bytes = 64 * KiB
    config = with_settings(checkpoint_log_bytes=step_bytes, commit_log_file_bytes=64 * MiB, extent_bytes=MiB)
    store = await open_store(SimDisk(), config)
    topic, _ = await store.create_topic("t", 1)
    queue = QueueKey(topic.topic_id, 0)
    monkeypatch.setattr(FileConsumeQueues, "pending_file_count", file_count)
    expected = min(step_bytes + file_count * FLUSHED_FILE_LOG_BYTES, CHECKPOINT_STEPS_MAX * step_bytes)
    while store.end_position - store._queues.checkpoint < expected:
        assert not store._is_checkpoint_due(0.0)
        await put(store, queue, bytes(1000))
    assert store._is_checkpoint_due(0.0)
    await store.close()


class LateExecutor(InlineExecutor):
    """Runs calls when it is told to."""

    def __init__(self) -> None:
        self.waiting: list[Callable[[], object]] = []

    def submit(self, fn: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> Future[T]:
        future: Future[T] = Future()
        self.waiting.append(partial(settle, future, fn, *args, **kwargs))
        return future


async def test_a_read_whose_file_expires_while_it_waits_is_told_where_to_go_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(SimFile, "pread_cached", lambda *_: None)
    config = with_settings(retention_bytes=64 * KiB, tail_bytes_max=1)
    store = await open_store(SimDisk(), config)
    topic, _ = await store.create_topic("t", 1)
    queue = QueueKey(topic.topic_id, 0)
    for _ in range(300):
        await put(store, queue, bytes(1000))
    late = store._read_executor = LateExecutor()
    reading = asyncio.ensure_future(store.read(queue, 0, max_bytes=KiB))
    await asyncio.sleep(0)
    assert len(late.waiting) == 1
    assert await store.expire(file_count_max=9)
    late.waiting.pop()()
    result = await reading
    assert result.status is ReadStatus.TOO_SMALL
    assert result.next_offset == result.min_offset == store.bounds(queue).min_offset > 0
    await store.close()
