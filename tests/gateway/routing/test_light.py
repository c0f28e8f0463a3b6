"""gateway/routing/light.py, `LightTail`: no record is passed over, whatever comes when. Reads over segments, and tails
of partitions that move: tests/gateway/cluster/test_light_moves.py."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, cast

import pytest

from gateway.brokers.base import LightQueues
from gateway.routing.base import Routes
from gateway.routing.light import LightPartitionReader, LightTail
from store.errors import NoLightQueues
from store.types import Entry, LightRecord, LightWake, QueueKey

QUEUE = QueueKey(16, 0)


class Broker(LightQueues):
    """Tells what the test says. The queue ends at `end`."""

    def __init__(self) -> None:
        self.end = 5
        self.wakes: list[LightWake] = []

    def watch_light(self, queue: QueueKey, name: bytes, end: int | None, wake: LightWake) -> Callable[[], None]:
        if end != self.end:
            wake(None)
        self.wakes.append(wake)
        return lambda: self.wakes.remove(wake)

    def tell(self, record: LightRecord | None) -> None:
        for wake in list(self.wakes):
            wake(record)


class Table:
    """One partition, whose segment's offsets are the partition's less `shift`."""

    def __init__(self, broker: object, shift: int = 0) -> None:
        self._route = SimpleNamespace(
            broker=broker, queue=QUEUE, logical_start=shift, physical_start=0,
            to_physical=lambda offset: offset - shift,
        )  # fmt: skip
        self.moves: list[Callable[[], None]] = []

    def writable(self, topic: str, partition: int) -> Any:
        return self._route

    def topic(self, name: str) -> Any:
        return SimpleNamespace(raw_keys=True)

    def watch(self, topic: str, partition: int | None, wake: Callable[[], None]) -> Callable[[], None]:
        self.moves.append(wake)
        return lambda: self.moves.remove(wake)


def record(offset: int) -> LightRecord:
    return LightRecord(offset, Entry(0, 1, QUEUE, "orders", offset, 1, 1_000, True, b""), 0)


def tail_of(broker: object, end: int = 5, *, shift: int = 0) -> tuple[LightTail, Table]:
    table = Table(broker, shift)
    return LightPartitionReader(cast(Routes, table)).tail("orders", b"a", 0, end), table


class Reader:
    """Waits, and counts how often it is woken."""

    def __init__(self, tail: LightTail) -> None:
        self.woken = 0
        tail.wait(self.wake)

    def wake(self) -> None:
        self.woken += 1


async def test_a_record_that_finds_its_reader_waiting_is_at_hand_and_the_tail_stays() -> None:
    broker = Broker()
    tail, _ = tail_of(broker)
    for offset in (5, 6, 9):  # from 6 on no end is told: it may not be, where the queue was gone meanwhile
        reader = Reader(tail)
        broker.tell(record(offset))
        assert reader.woken == 1
        told = tail.take(5)
        assert told == record(offset)._replace(entry=told.entry if told else record(offset).entry)
        assert told is not None
        assert told.entry.raw_keys, "its topic's"
        assert tail.take(5) is None
    assert len(broker.wakes) == 1


async def test_of_two_records_none_is_at_hand_and_one_who_does_not_wait_is_woken_when_it_does() -> None:
    broker = Broker()
    tail, _ = tail_of(broker)
    reader = Reader(tail)
    broker.tell(record(5))
    broker.tell(record(6))
    assert (reader.woken, tail.take(5)) == (1, None)
    reader = Reader(tail)
    assert reader.woken == 0, "not within the call"
    broker.tell(record(7))
    assert (reader.woken, tail.take(5)) == (1, None), "there was more before it"
    await asyncio.sleep(0)
    assert reader.woken == 1
    tail.reading()
    broker.tell(record(8))  # while it is read
    reader = Reader(tail)
    await asyncio.sleep(0)
    assert (reader.woken, tail.take(8)) == (1, None)
    tail.reading()
    reader = Reader(tail)
    await asyncio.sleep(0)
    assert reader.woken == 0
    broker.tell(record(9))
    assert tail.take(9) is not None


async def test_who_is_behind_when_it_begins_is_given_nothing_that_comes_before_it_has_read() -> None:
    broker = Broker()
    tail, _ = tail_of(broker, 4)
    reader = Reader(tail)
    broker.tell(record(5))  # before its own turn of the event loop
    assert (reader.woken, tail.take(4)) == (1, None)


async def test_a_record_before_what_the_reader_asks_for_is_not_for_it() -> None:
    broker = Broker()
    tail, _ = tail_of(broker)
    Reader(tail)
    broker.tell(record(5))
    assert tail.take(6) is None


async def test_what_may_be_there_is_read() -> None:
    broker = Broker()
    tail, _ = tail_of(broker)
    reader = Reader(tail)
    broker.tell(None)
    assert (reader.woken, tail.take(5)) == (1, None)


async def test_offsets_are_the_partitions() -> None:
    broker = Broker()
    tail, _ = tail_of(broker, 105, shift=100)
    Reader(tail)
    broker.tell(record(5))
    told = tail.take(105)
    assert told is not None
    assert told.offset == 105


async def test_one_that_is_called_off_or_whose_partition_has_moved_hears_of_nothing() -> None:
    for is_moved in (False, True):
        broker = Broker()
        tail, table = tail_of(broker)
        reader = Reader(tail)
        broker.tell(record(5))
        if is_moved:
            table.moves[0]()
        else:
            tail()
        assert (tail.take(5), tail.is_on, broker.wakes, table.moves) == (None, False, [], [])
        assert reader.woken == 1
        tail()  # again: nothing
    broker = Broker()
    tail, table = tail_of(broker)
    reader = Reader(tail)
    table.moves[0]()
    assert reader.woken == 1, "it looks where the partition is"


async def test_a_broker_without_light_queues_is_refused() -> None:
    with pytest.raises(NoLightQueues):
        tail_of(object())
