"""gateway.routing.tail_watcher: who waits at the ends of partitions is told by the brokers. See tests/gateway/surfaces/
ws/test_frame_cache.py for those who come back after each wake-up."""

from __future__ import annotations

import asyncio

import pytest

from gateway.brokers.base import BrokerUnreachable
from gateway.routing import tail_watcher
from gateway.routing.table import RouteTable, Segment
from gateway.routing.tail_watcher import TailWatcher
from store.record_batch import Record, encode
from store.types import Acks, Append, QueueKey
from tests.clock import FakeClock
from tests.gateway.fake_broker import FakeBroker, FakeTopic
from tests.gateway.groups.coordinator.world import world
from tests.waiting import WOKEN_S, until


async def test_all_who_watch_are_woken_by_the_append_and_nobody_who_has_gone() -> None:
    async with world(partitions=1) as made:
        watcher = TailWatcher(made.routes)
        woken: list[int] = []
        call_offs = [watcher.watch("orders", 0, 0, lambda n=n: woken.append(n)) for n in range(5)]  # type: ignore[misc]
        call_offs[4]()
        await asyncio.sleep(0)
        assert watcher.is_end("orders", 0, 0)
        await made.send(b"1")
        assert woken == [0, 1, 2, 3]
        assert watcher.is_end("orders", 0, 1)
        await made.send(b"2")
        assert woken == [0, 1, 2, 3]
        assert watcher.is_end("orders", 0, 2)


async def test_an_append_between_a_read_and_the_first_watch_is_told() -> None:
    async with world(partitions=1) as made:
        watcher = TailWatcher(made.routes)
        woken = asyncio.Event()
        await made.send(b"1")
        watcher.watch("orders", 0, 0, woken.set)
        assert not woken.is_set()
        await asyncio.wait_for(woken.wait(), WOKEN_S)
        woken.clear()
        watcher.watch("orders", 0, 1, woken.set)
        await asyncio.sleep(0)
        assert not woken.is_set()


async def test_an_end_that_nobody_waits_at_is_forgotten_after_a_while(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tail_watcher, "LOOK_S", 0.01)
    async with world(partitions=2) as made:
        watcher = TailWatcher(made.routes)
        call_offs = [watcher.watch("orders", partition, 0, lambda: None) for partition in range(2)]
        await made.send(b"1", partition=0)
        await until(lambda: not watcher.is_end("orders", 0, 1))
        assert watcher.is_end("orders", 1, 0)
        assert watcher._topics
        call_offs[1]()
        await until(lambda: not watcher._topics)
        assert not made.store._watching


async def test_the_end_is_asked_for_when_what_was_told_may_be_wrong() -> None:
    """A partition that moves, a broker that is away, and an end that went back: as after a power cut there."""
    brokers = [FakeBroker(FakeClock()) for _ in range(2)]
    routes = RouteTable()
    topic, queue = FakeTopic("orders", 16, 1), QueueKey(16, 0)
    routes.put(topic, brokers[0])
    watcher = TailWatcher(routes)
    woken: list[int] = []

    def watch(end: int) -> None:
        watcher.watch("orders", 0, end, lambda: woken.append(end))

    def told(broker: FakeBroker, end: int) -> None:
        for _, wake in broker.watching:
            wake({queue: end})

    watch(0)
    told(brokers[0], 5)
    assert (woken, watcher.is_end("orders", 0, 5)) == ([0], True)
    watch(5)
    told(brokers[0], 3)
    await until(lambda: watcher.is_end("orders", 0, 0))
    assert woken == [0, 5]
    watch(0)
    brokers[0].error = BrokerUnreachable("away")
    brokers[0].wake()
    await until(lambda: woken == [0, 5, 0])
    brokers[0].error = None
    watch(0)
    await until(lambda: watcher.is_end("orders", 0, 0))
    routes.set_chains(topic, [(Segment(brokers[0], queue, physical_end=0), Segment(brokers[1], queue))])
    assert not watcher.is_end("orders", 0, 0)
    await until(lambda: watcher.is_end("orders", 0, 0))
    assert woken == [0, 5, 0]
    told(brokers[1], 1)
    assert (woken, watcher.is_end("orders", 0, 1)) == ([0, 5, 0, 0], True)
    await watcher.close()
    assert not brokers[0].watching
    assert not brokers[1].watching


async def test_the_end_of_a_sealed_segment_is_not_taken_for_that_of_the_partition() -> None:
    """A broker that is watched anew tells the ends of all queues it has. Who has read a partition up to where a sealed
    one ends would wait there until the next record is sent, which may never be."""
    first, second = brokers = [FakeBroker(FakeClock()) for _ in range(2)]
    sealed, open_, other = QueueKey(16, 0), QueueKey(16, 1024), QueueKey(16, 1)
    routes = RouteTable()
    chain = Segment(first, sealed, physical_end=5), Segment(second, open_, 5)
    routes.set_chains(FakeTopic("orders", 16, 2), [chain, (Segment(first, other),)])
    await second.append([Append(queue=open_, batch=encode([Record(None, b"5", 0)]), record_count=1)], acks=Acks.FLUSHED)
    watcher = TailWatcher(routes)
    watch = watcher.watch_topic("orders", lambda: None)
    call_off = watcher.watch("orders", 0, 6, lambda: None)
    await until(lambda: watcher.is_end("orders", 0, 6))
    call_off()
    for broker in brokers:
        broker.wake()  # as when its node was away; nobody waits, so no end is asked for
    for _, wake in first.watching:
        wake({other: 0, sealed: 5})
    assert sorted(watch.changed()) == [0, 1], "who looks at all partitions that have got records looks once too often"
    assert not watcher.is_end("orders", 0, 5)
    woken = asyncio.Event()
    watcher.watch("orders", 0, 5, woken.set)
    await asyncio.wait_for(woken.wait(), WOKEN_S)
    assert watcher.is_end("orders", 0, 6)
    await watcher.close()


async def test_who_comes_with_another_end_is_woken_at_once_but_not_inside_the_call() -> None:
    async with world(partitions=1) as made:
        watcher = TailWatcher(made.routes)
        watcher.watch("orders", 0, 0, lambda: None)
        woken = asyncio.Event()
        watcher.watch("orders", 0, 7, woken.set)
        assert not woken.is_set()
        await asyncio.wait_for(woken.wait(), WOKEN_S)
        await watcher.close()


async def test_who_waits_for_a_topic_is_told_which_partitions_got_records() -> None:
    async with world(partitions=3) as made:
        watcher = TailWatcher(made.routes)
        woken: list[int] = []
        first, second = (watcher.watch_topic("orders", lambda n=n: woken.append(n)) for n in range(2))  # type: ignore[misc]
        await made.topic("others", 1)
        await made.send(b"1", partition=2)
        await made.send(b"1", topic="others")
        assert (sorted(woken), first.changed(), first.changed()) == ([0, 1], [2], [])
        await made.send(b"2", partition=0)
        await made.send(b"2", partition=2)
        await made.send(b"3", partition=2)
        assert (first.changed(), second.changed()) == ([2, 0], [2, 0])
        second.close()
        second.close()
        woken.clear()
        await made.broker.delete_topic("orders")
        assert (woken, first.changed()) == ([0], []), "the topic is gone"
        first.close()
        assert (watcher._topics, made.store._watching) == ({}, {})


async def test_a_partition_that_goes_away_wakes_too() -> None:
    async with world(partitions=1) as made:
        watcher = TailWatcher(made.routes)
        while_there, gone = asyncio.Event(), asyncio.Event()
        watcher.watch("orders", 0, 0, while_there.set)
        await asyncio.sleep(0)
        await made.broker.delete_topic("orders")
        await asyncio.wait_for(while_there.wait(), WOKEN_S)
        watcher.watch("orders", 0, 0, gone.set)
        await asyncio.wait_for(gone.wait(), WOKEN_S)


async def test_closing_ends_the_waits_those_too_that_have_not_begun() -> None:
    async with world(partitions=2) as made:
        watcher = TailWatcher(made.routes)
        woken: list[int] = []
        for partition in range(2):
            watcher.watch("orders", partition, 0, lambda n=partition: woken.append(n))  # type: ignore[misc]
            if not partition:
                await asyncio.sleep(0)
        await watcher.close()
        await asyncio.sleep(0)
        assert (sorted(woken), watcher._topics, made.store._watching) == ([0, 1], {}, {})
