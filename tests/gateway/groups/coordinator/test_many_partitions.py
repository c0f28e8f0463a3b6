"""gateway.groups.coordinator (receiving, context): groups × partitions cost memory and turns of the event loop by what
is in consumers' hands, not by what there is; and everything a group may keep has a bound."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Awaitable
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

import pytest

from gateway.groups.coordinator import receiving
from gateway.groups.coordinator.context import STRETCH_PARTITIONS, Context
from gateway.groups.coordinator.offsets import FEW, Offsets
from gateway.groups.coordinator.receiving import PROMISING_MAX
from gateway.groups.machines.errors import GroupFull
from gateway.groups.machines.progress import PartitionKey, Start
from gateway.groups.machines.subscription import Subscription
from gateway.groups.machines.table import DOCUMENT_BYTES
from gateway.groups.protocol import OffsetCommit, TopicPartition
from store.types import Bounds
from tests.gateway.groups.coordinator.test_settling import G, receipts, receive, values
from tests.gateway.groups.coordinator.world import ORDERS, World, wanting, world
from tests.waiting import WOKEN_S, until


@asynccontextmanager
async def limited(partitions: int = 2, **limits: int) -> AsyncIterator[World]:
    made = World()
    made.limits = replace(made.limits, **limits)
    await made.start()
    await made.topic(partitions=partitions)
    try:
        yield made
    finally:
        await made.stop()


async def test_only_partitions_with_records_in_hands_have_a_machine() -> None:
    async with world(partitions=300, values=[b"1", b"2"]) as made:
        before = made.groups.log.event_count
        messages = await receive(made)
        queue = made.groups.table.queue(G, made.routes.topic("orders").topic_id)
        assert queue is not None
        assert (list(queue.open), queue.end) == ([0], 300)
        assert made.groups.log.event_count - before == 2, "one for where it begins, one for the records"
        await made.groups.ack(G, receipts(messages))
        assert queue.open == {}
        for _ in range(2):
            assert [result.ok for result in await made.groups.ack(G, receipts(messages))] == [True, True], "again"
            await made.kill()
            await made.start()
        assert await receive(made) == ()
        await made.send(b"3")
        assert values(await receive(made)) == [b"3"]


async def test_a_commit_of_many_partitions_is_looked_up_in_stretches_and_one_that_comes_later_counts(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with world(partitions=STRETCH_PARTITIONS + 1) as made:
        turn = 0
        looked: Counter[int] = Counter()
        key = Context.key

        def counted(context: Context, topic: str, partition: int) -> PartitionKey:
            looked[turn] += 1
            return key(context, topic, partition)

        async def count() -> None:
            nonlocal turn
            while True:
                await asyncio.sleep(0)
                turn += 1

        monkeypatch.setattr(Context, "key", counted)
        counting = asyncio.ensure_future(count())
        every = [OffsetCommit("orders", number, 1) for number in range(STRETCH_PARTITIONS + 1)]
        await asyncio.gather(made.groups.commit(G, every), made.groups.commit(G, [OffsetCommit("orders", 0, 2)]))
        counting.cancel()
        assert max(looked.values()) == STRETCH_PARTITIONS
        both = await made.groups.committed(G, [TopicPartition("orders", number) for number in range(2)])
        assert [one.offset for one in both] == [2, 1]


async def test_a_receipt_from_before_a_reset_is_void_whatever_was_dropped_meanwhile() -> None:
    async with world(values=[b"1"]) as made:
        first = await receive(made)
        await made.groups.ack(G, receipts(first))
        await made.groups.reset(G, "orders", 0, partitions=[0])
        await made.kill()
        await made.start()
        second = await receive(made)
        assert (values(second), second[0].attempt) == ([b"1"], 1)
        assert [result.ok for result in await made.groups.ack(G, receipts(first))] == [False]
        assert [result.ok for result in await made.groups.ack(G, receipts(second))] == [True]


async def test_a_reset_of_all_partitions_is_one_event() -> None:
    async with world(partitions=300, values=[b"1"]) as made:
        old = await receive(made)
        before = made.groups.log.event_count
        await made.groups.reset(G, "orders", Start.FIRST, force=True)
        assert made.groups.log.event_count - before <= 2
        assert [result.ok for result in await made.groups.ack(G, receipts(old))] == [False]
        await made.kill()
        await made.start()
        assert values(await receive(made)) == [b"1"]


async def test_who_waits_is_woken_by_any_partition_and_looks_at_no_other() -> None:
    looked: set[int] = set()

    async with world(partitions=300) as made:
        records = made.groups._context.records
        plain = records.bounds

        def bounds(topic: str, partition: int) -> Awaitable[Bounds]:
            looked.add(partition)
            return plain(topic, partition)

        waiting = asyncio.ensure_future(receive(made, wait_ms=60_000))
        await until(lambda: bool(made.groups._context.tail_watcher._topics))
        for _ in range(50):
            await asyncio.sleep(0)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(records, "bounds", bounds)
            await made.send(b"1", partition=288)
            assert values(await asyncio.wait_for(waiting, WOKEN_S)) == [b"1"]
        assert looked == {288}
        assert made.groups._context.tail_watcher._topics == {}
        assert made.store._watching == {}


async def test_nothing_that_comes_while_a_receive_begins_to_wait_is_passed_over() -> None:
    for steps in range(60):
        async with world(partitions=FEW + 1) as made:
            await receive(made)
            waiting = asyncio.ensure_future(receive(made, wait_ms=60_000))
            for _ in range(steps):
                await asyncio.sleep(0)
            await made.send(b"1", partition=7)
            assert values(await asyncio.wait_for(waiting, WOKEN_S)) == [b"1"], f"{steps}"


async def test_what_a_settled_record_makes_room_for_is_found_by_who_waits() -> None:
    async with limited(partitions=100, group_in_flight_max=1) as made:
        await made.send(b"1", partition=3)
        await made.send(b"2", partition=90)
        (first,) = await receive(made)
        waiting = asyncio.ensure_future(receive(made, wait_ms=60_000))
        for _ in range(50):
            await asyncio.sleep(0)
        await made.groups.ack(G, [first.receipt])
        assert len(await asyncio.wait_for(waiting, WOKEN_S)) == 1


async def test_receives_of_many_partitions_take_turns() -> None:
    """However many begin at once, between two goes of the event loop only one of them looks at a stretch. Those with an
    attempt id look by themselves."""
    looked_per_go: list[int] = [0]

    async with world(partitions=2 * STRETCH_PARTITIONS) as made:
        await receive(made)
        records = made.groups._context.records
        plain = records.bounds

        def bounds(topic: str, partition: int) -> Awaitable[Bounds]:
            looked_per_go[-1] += 1
            return plain(topic, partition)

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(records, "bounds", bounds)
            receives = asyncio.gather(*(receive(made, attempt_id=f"w{number}") for number in range(10)))
            while not receives.done():
                await asyncio.sleep(0)
                looked_per_go.append(0)
        assert sum(looked_per_go) == 10 * 2 * STRETCH_PARTITIONS
        assert max(looked_per_go) == STRETCH_PARTITIONS


async def test_all_partitions_with_records_have_their_turn_and_count_as_backlog(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert PROMISING_MAX >= 1024
    monkeypatch.setattr(receiving, "PROMISING_MAX", 2)
    async with world(partitions=5) as made:
        for partition in range(5):
            await made.send(b"%d" % partition, partition=partition)
        received = await made.groups.receive(G, wanting(max_messages=1))
        assert received.backlog == 4
        rest = [value for _ in range(4) for value in values(await receive(made, max_messages=1))]
        assert len({*rest, received.messages[0].value}) == 5


async def test_where_a_group_begins_in_many_topics_is_one_entry_and_many_stretches() -> None:
    """Each partition took a lease object and an event, without a pause."""
    asked_per_go: list[int] = [0]
    plain = Offsets.where

    async def where(self: Offsets, *asked: Any) -> int:
        asked_per_go[-1] += 1
        return await plain(self, *asked)

    async with world(partitions=1) as made:
        names = [f"t{number}" for number in range(5)]
        for name in names:
            await made.topic(name, 1024)
        events, appends = made.groups.log.event_count, made.groups.log.append_count
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(Offsets, "where", where)
            done = asyncio.ensure_future(receive(made, *names))
            while not done.done():
                await asyncio.sleep(0)
                asked_per_go.append(0)
        assert await done == ()
        assert (sum(asked_per_go), max(asked_per_go)) == (5 * 1024, STRETCH_PARTITIONS)
        assert (made.groups.log.event_count - events, made.groups.log.append_count - appends) == (5, 1)


# Bounds


async def test_all_groups_together_have_a_bound_on_what_is_out() -> None:
    async with limited(in_flight_total_max=3) as made:
        await made.send(b"1", b"2")
        first = await receive(made)
        assert len((await made.groups.receive("other", wanting())).messages) == 1  # n
        with pytest.raises(GroupFull, match="in_flight_total_max"):
            await made.groups.receive("third", wanting())  # n + 1
        await made.groups.ack(G, receipts(first))
        assert len((await made.groups.receive("third", wanting())).messages) == 2
        await made.groups.delete(G)
        await made.kill()
        await made.start()
        assert made.groups.table.open_count == 3


@pytest.mark.parametrize("setting", ["group_bytes_max", "groups_bytes_max"])
async def test_what_groups_keep_has_a_bound(setting: str) -> None:
    size = DOCUMENT_BYTES + len("key") + 100
    async with limited(partitions=100, **{setting: size}) as made:
        await made.groups.put_document(G, "key", b"x" * 100)  # n
        with pytest.raises(GroupFull, match=setting):
            await made.groups.put_document(G, "key", b"x" * 101)  # n + 1
        for more in (
            made.groups.receive(G, wanting()),
            made.groups.join(G, "m", ORDERS),
            made.groups.commit(G, [OffsetCommit("orders", 99, 1)]),
            made.groups.start_offset(G, TopicPartition("orders", 0), Start.FIRST),
            made.groups.follow(G, Subscription(pattern="x.*")),
            made.groups.configure(G, {"strategy_options": {"x": "y" * 1000}}),
        ):
            with pytest.raises(GroupFull, match=setting):
                await more
        await made.groups.put_document(G, "key", b"")
        await made.groups.put_document(G, "key", b"x" * 100)
        await made.groups.put_document(G, "key", None)
        assert made.groups.table.size_bytes == made.groups.table.size_of(G) == 0


async def test_what_is_there_goes_on_when_there_is_no_room_for_more() -> None:
    async with limited(partitions=10) as made:
        await made.send(b"1", b"2")
        await made.groups.commit("streaming", [OffsetCommit("orders", 0, 1)])
        await receive(made, max_messages=1)
        size = made.groups.table.size_bytes
        await made.stop()
        made.limits = replace(made.limits, groups_bytes_max=1, group_bytes_max=1)
        await made.start()
        assert made.groups.table.size_bytes == size
        await made.groups.commit("streaming", [OffsetCommit("orders", 0, 2)])
        await made.groups.ack(G, receipts(await receive(made)))
        with pytest.raises(GroupFull):
            await made.groups.commit("streaming", [OffsetCommit("orders", 9, 2)])


async def test_the_bound_holds_for_calls_at_the_same_time() -> None:
    size = DOCUMENT_BYTES + len("k0") + 100
    async with limited(groups_bytes_max=4 * size) as made:
        puts = [made.groups.put_document(f"g{number}", "k0", b"x" * 100) for number in range(8)]
        outcomes = await asyncio.gather(*puts, return_exceptions=True)
        assert sum(outcome is None for outcome in outcomes) == 4


async def test_what_groups_keep_is_counted_the_same_however_they_came_to_it() -> None:
    async with world(partitions=10, values=[b"1", b"2"]) as made:
        await receive(made)
        await made.groups.join("streaming", "m", ORDERS)
        await made.groups.join("streaming", "n", ORDERS, metadata=b"x" * 100)
        await made.groups.commit("committing", [OffsetCommit("orders", 3, 1, "why"), OffsetCommit("orders", 1, 1)])
        await made.groups.configure("committing", {"strategy_options": {"x": 1}})
        table = made.groups.table
        sizes = {name: table.size_of(name) for name in table.names()}
        assert all(sizes.values())
        assert table.size_bytes == sum(sizes.values())
        await made.kill()
        await made.start()
        assert {name: made.groups.table.size_of(name) for name in made.groups.table.names()} == sizes
        await made.stop()  # and from a snapshot
        await made.start()
        assert {name: made.groups.table.size_of(name) for name in made.groups.table.names()} == sizes
        for name in sizes:
            if name == "streaming":
                await made.groups.reset(name, "orders", 0, force=True)
        await made.broker.delete_topic("orders")
        await made.groups.stream.topics_changed()
        for name in sizes:
            await made.groups.delete(name)
        assert (made.groups.table.size_bytes, made.groups.table.open_count) == (0, 0)
