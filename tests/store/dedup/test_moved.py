"""Ids that go with a partition from one store to another: exported, imported, exported again; over restarts and power
cuts, and what happens to sends in between."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from random import Random

import pytest

from store import Store
from store.dedup import moved
from store.dedup.producers import Sent, Table
from store.errors import AlreadyStored, MalformedBatch, PartitionLeft, SequenceGap, TooManyIds
from store.offline.verify import verify
from store.topics import MOVED_IDS_QUEUE, TIMER_QUEUE
from store.types import (
    NO_ID,
    OFFSET_MAX,
    Acks,
    Append,
    Delay,
    Identity,
    Original,
    ProducerSequence,
    QueueKey,
    RecordNumbers,
    RequestPart,
    ScheduleKey,
)
from tests.clock import FakeClock
from tests.simdisk import SimDisk
from tests.store.kit import abandon, append_of, open_store, opened, with_settings
from tests.store.offline_kit import open_at

WINDOW_MS = 1000
CONFIG = with_settings(dedup_window_ms=WINDOW_MS, dedup_ids_max=40, producer_expiry_ms=10 * WINDOW_MS)
OLD, NEW, NEWER = QueueKey(16, 1), QueueKey(16, 1024 + 1), QueueKey(16, 2048 + 1)
PARTITION = QueueKey(16, 1)
PRODUCER, KAFKA_PRODUCER = b"p" * 16, b"k" * 16


def identified(queue: QueueKey, identity: Identity, count: int = 1, delays: Sequence[Delay] = ()) -> Append:
    batch = append_of(queue, [b"%d" % number for number in range(count)]).batch
    return Append(queue=queue, batch=batch, record_count=count, identity=identity, delays=delays)


def ids(*numbers: int) -> Identity:
    return Identity(message_ids=[b"%016d" % number if number else NO_ID for number in numbers])


def sequence(number: int) -> Identity:
    return Identity(producer=ProducerSequence(PRODUCER, number))


def numbers(first: int, count: int) -> Identity:
    return Identity(numbers=RecordNumbers(KAFKA_PRODUCER, 0, first, count))


def request(*indexes: int) -> Identity:
    return Identity(request=RequestPart(b"r" * 16, b"f" * 8, indexes))


async def topic_of(store: Store) -> None:
    topic, _ = await store.create_topic("t", 2)
    assert topic.topic_id == OLD.topic_id


async def originals(store: Store, append: Append) -> dict[int, Original]:
    with pytest.raises(AlreadyStored) as known:
        await store.append([append])
    return dict(known.value.originals[0])


async def place(store: Store, append: Append, index: int = 0) -> int | None:
    """The partition's offset of a record that is known from before a move."""
    original = (await originals(store, append))[index]
    assert original.is_moved
    assert original.queue == PARTITION
    return original.offset


async def tell(source: Store, target: Store, queue: QueueKey, into: QueueKey, shift: int, since: int = 0) -> int:
    while True:
        part = await source.export_ids(queue, into=into, shift=shift, since=since)
        if part.content:
            await target.import_ids(part.content)
        since = part.next_position
        if part.is_last:
            return since


async def test_ids_and_numbers_are_known_behind_a_move_and_the_next_one_and_a_restart() -> None:
    clock = FakeClock()
    disks = [SimDisk(), SimDisk(), SimDisk()]
    stores = [await open_store(disk, CONFIG, clock) for disk in disks]
    for store in stores:
        await topic_of(store)
    first, second, third = stores
    other = QueueKey(16, 0)
    await first.append([identified(other, ids(9))])
    await first.append([identified(OLD, ids(1, 0, 3), 3)])
    await first._save_checkpoint()  # these are in the journal, the others are not
    await first.append([identified(OLD, request(0, 2), 2)])
    for number in (4, 7):
        await first.append([identified(OLD, sequence(number))])
    await first.append([identified(OLD, numbers(0, 2), 2)])
    due = Delay(clock.now_ms() + 5000, *PARTITION)
    [accepted] = await first.append([identified(TIMER_QUEUE, ids(5, 6), 2, [Delay(1, 16, 0), due])])
    begin = await tell(first, second, OLD, NEW, 0)
    await first.append([identified(OLD, ids(8))])
    await second.create_queue(NEW)
    assert await first.seal_queue(OLD) == 10
    await tell(first, second, OLD, NEW, 0, begin)

    async def check(store: Store, queue: QueueKey) -> None:
        for number, offset in ((1, 0), (3, 2), (8, 9)):
            assert await place(store, identified(queue, ids(number))) == offset
        assert await place(store, identified(queue, request(0, 1, 2), 3), 2) == 4
        assert await place(store, identified(queue, sequence(4))) == 5
        assert await place(store, identified(queue, sequence(7))) == 6
        assert await place(store, identified(queue, numbers(0, 2), 2)) == 7
        with pytest.raises(SequenceGap):
            await store.append([identified(queue, numbers(5, 1))])
        [known] = (await originals(store, identified(TIMER_QUEUE, ids(6), 1, [due]))).values()
        assert (known.queue, known.schedule) == (PARTITION, ScheduleKey(due.due_ms, accepted.position, 1))

    await check(second, NEW)
    [answer] = await second.append([identified(NEW, ids(9))])
    assert answer.base_offset == 0, "another partition's ids stay where they are"
    await second.append([identified(NEW, numbers(2, 1))])
    for is_power_cut in (False, True):
        await abandon()
        if is_power_cut:
            disks[1] = disks[1].crash(Random(1))
        else:
            disks[1].kill()
        second = await open_store(disks[1], CONFIG, clock)
        await check(second, NEW)
        await second.close()
        second = await open_store(disks[1], CONFIG, clock)
        await check(second, NEW)
    await second.seal_queue(NEW)
    third = await open_store(disks[2].crash(Random(1)), CONFIG, clock)
    await third.create_queue(NEWER)
    await tell(second, third, NEW, NEWER, 10)
    await check(third, NEWER)
    assert await place(third, identified(NEWER, ids(9))) == 10
    assert await place(third, identified(NEWER, numbers(2, 1))) == 11
    clock.step(WINDOW_MS + 1)
    [answer] = await third.append([identified(NEWER, ids(1, 3), 2)])
    assert answer.base_offset == 0, "an id is known for the window from when its record was stored, and no longer"
    assert await place(third, identified(NEWER, sequence(7))) == 6, "numbers outlive it"
    await third._save_checkpoint()
    assert third.remembered[0] == 2
    await second.close()
    await third.close()


async def test_what_does_not_fit_one_part_comes_in_several_also_what_was_moved_before(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("store.store.PART_BYTES_MAX", 400)
    clock = FakeClock()
    async with opened(SimDisk(), CONFIG, clock) as first, opened(SimDisk(), CONFIG, clock) as second:
        for store in (first, second):
            await topic_of(store)
        for number in range(1, 11):
            await first.append([identified(OLD, ids(number))])
            if number == 5:
                await first._save_checkpoint()
        part = await first.export_ids(OLD, into=NEW, shift=0, since=0)
        assert not part.is_last
        await second.create_queue(NEW)
        await first.seal_queue(OLD)
        await tell(first, second, OLD, NEW, 0)
        written = second.bounds(MOVED_IDS_QUEUE)
        await tell(first, second, OLD, NEW, 0)  # the mover was killed, and another one does it again
        assert (second.remembered[0], second.bounds(MOVED_IDS_QUEUE)) == (10, written)
        await second.append([identified(NEW, ids(11))])
        await second.seal_queue(NEW)
        await first.create_queue(NEWER)
        await tell(second, first, NEW, NEWER, 10)
        for number in range(1, 12):
            known = (await originals(first, identified(NEWER, ids(number))))[0]
            assert known.offset == number - 1


def numbered(queue: QueueKey, producer: int, number: int) -> Append:
    return identified(queue, Identity(producer=ProducerSequence(b"%016d" % producer, number)))


async def test_the_numbers_of_many_producers_are_told_before_the_seal_in_parts_and_behind_it_only_what_came_since(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    clock, count = FakeClock(), 10
    monkeypatch.setattr(moved, "PRODUCERS_PER_PART", 3)
    async with opened(SimDisk(), CONFIG, clock) as first, opened(SimDisk(), CONFIG, clock) as second:
        for store in (first, second):
            await topic_of(store)
        for number in range(1, 8):  # more of each than are kept
            for producer in range(count):
                await first.append([numbered(OLD, producer, number)])
        await first.append([numbered(OLD, 0, 8)], acks=Acks.WRITTEN)
        part = await first.export_ids(OLD, into=NEW, shift=0, since=0)
        assert (len(moved.decode_part(part.content).producers), part.is_last) == (3, False)
        begin = await tell(first, second, OLD, NEW, 0)
        assert second.remembered[1] == count
        for number in (9, 10):
            await first.append([numbered(OLD, 4, number)])
        await first.seal_queue(OLD)
        part = await first.export_ids(OLD, into=NEW, shift=0, since=begin)
        assert [len(sent) for sent in moved.decode_part(part.content).producers.values()] == [5]
        assert part.is_last
        await second.create_queue(NEW)
        await tell(first, second, OLD, NEW, 0, begin)
        for producer in range(count):
            newest = {0: 8, 4: 10}.get(producer, 7)
            assert await place(second, numbered(NEW, producer, newest)) is not None
            assert (await originals(second, numbered(NEW, producer, 1)))[0].offset is None, "it is not known where"
        part = await first.export_ids(OLD, into=NEWER, shift=0, since=OFFSET_MAX)
        assert len(moved.decode_part(part.content).producers) == count, "who goes on with its own is told all at once"
        assert part.is_last
        await second.seal_queue(NEW)
        await first.create_queue(NEWER)
        await tell(second, first, NEW, NEWER, 73)  # those that came in one part have one position
        for producer in range(count):
            assert await place(first, numbered(NEWER, producer, {0: 8, 4: 10}.get(producer, 7))) is not None


def test_so_many_producers_are_in_a_part_and_those_of_one_position_in_no_two() -> None:
    def table(*positions: int) -> Table:
        return {
            (b"%016d" % number, OLD): (Sent(1, 0, 0, 0), Sent(2, 0, position, 0))
            for number, position in enumerate(positions)
        }

    count = moved.PRODUCERS_PER_PART
    whole = table(*range(count))
    assert moved.first_producers(whole, before=None) == (whole, None)
    assert moved.first_producers(whole, before=count + 7) == (whole, count + 7)
    told, following = moved.first_producers(table(*range(count, -1, -1)), before=None)
    assert (len(told), following) == (count, count)
    told, following = moved.first_producers(table(*range(9)), before=5)
    assert (len(told), following) == (5, 5)
    assert moved.first_producers(table(*[3] * (count + 1)), before=None)[1] is None
    told, following = moved.first_producers(table(*[3] * (count + 1), 4), before=None)
    assert (len(told), following) == (count + 1, 4)
    assert moved.first_producers({}, before=9) == ({}, 9)


async def test_a_delayed_record_with_an_id_is_refused_where_its_partition_has_left() -> None:
    delayed = identified(TIMER_QUEUE, ids(1), 1, [Delay(5, *PARTITION)])
    async with opened(SimDisk(), CONFIG) as store:
        await topic_of(store)
        await store.append([identified(TIMER_QUEUE, ids(2), 1, [Delay(5, *PARTITION)])])
        await store.seal_queue(OLD)
        with pytest.raises(PartitionLeft):
            await store.append([delayed])
        with pytest.raises(PartitionLeft):
            store.begin_append([delayed], acks=Acks.FLUSHED)
        with pytest.raises(AlreadyStored):
            await store.append([identified(TIMER_QUEUE, ids(2), 1, [Delay(5, *PARTITION)])])
        assert await store.append([identified(TIMER_QUEUE, ids(3), 1, [Delay(5, 16, 0)])])
        await store.create_queue(NEWER)
        assert await store.append([delayed])


async def test_only_what_no_power_cut_takes_is_told() -> None:
    disk = SimDisk()
    async with opened(disk, CONFIG) as store, opened(SimDisk(), CONFIG) as target:
        await topic_of(store)
        await topic_of(target)
        await store.append([identified(OLD, ids(1))], acks=Acks.WRITTEN)
        syncs = store.stats.sync_count
        await tell(store, target, OLD, NEW, 0)
        assert store.stats.sync_count > syncs
        await target.create_queue(NEW)
        assert await place(target, identified(NEW, ids(1))) == 0


async def test_ids_that_come_count_as_the_stores_own_and_one_too_many_is_refused() -> None:
    clock = FakeClock()
    async with opened(SimDisk(), CONFIG, clock) as source, opened(SimDisk(), CONFIG, clock) as target:
        for store in (source, target):
            await topic_of(store)
        await source.append([identified(OLD, ids(*range(1, 11)), 10)])
        await target.append([identified(QueueKey(16, 0), ids(*range(101, 131)), 30)])
        await tell(source, target, OLD, NEW, 0)
        assert target.remembered == (40, 0)
        with pytest.raises(TooManyIds):
            await target.append([identified(QueueKey(16, 0), ids(200))])
        await source.append([identified(OLD, ids(11))])
        with pytest.raises(TooManyIds):
            await tell(source, target, OLD, NEW, 0)
        clock.step(WINDOW_MS + 1)
        await target.append([identified(QueueKey(16, 0), ids(200))])


@pytest.mark.parametrize("content", [b"", b"\x00\x00", b"\x00\x00\x00\x04abcd", b"\x00\x00\x00\x00short"])
async def test_what_is_no_part_is_refused(content: bytes) -> None:
    async with opened(SimDisk(), CONFIG) as store:
        with pytest.raises(MalformedBatch):
            await store.import_ids(content)


async def test_what_came_from_others_passes_verify(tmp_path: Path) -> None:
    async with opened(SimDisk(), CONFIG) as source:
        await topic_of(source)
        await source.append([identified(OLD, ids(1))])
        await source.append([identified(OLD, sequence(1))])
        await source.seal_queue(OLD)
        target = await open_at(tmp_path)
        await topic_of(target)
        await target.create_queue(NEW)
        await tell(source, target, OLD, NEW, 0)
        await target.append([identified(NEW, sequence(2))])
        await target.close()
    assert verify(tmp_path).is_clean


def test_a_part_survives_its_encoding() -> None:
    part = moved.decode_part(moved.encode_part([], {}))
    assert part == (None, {})
