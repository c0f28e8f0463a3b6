"""gateway.groups.coordinator.start_positions: where groups begin, so that nothing stored after they came is passed
over (C5)."""

from __future__ import annotations

import asyncio

import pytest

from gateway.groups.coordinator import start_positions
from gateway.groups.coordinator.start_positions import WISHES_MAX
from gateway.groups.machines.config import BROADCAST
from gateway.groups.machines.errors import GroupFull
from gateway.groups.machines.progress import Start, StartTime
from gateway.groups.machines.subscription import Subscription
from gateway.groups.protocol import MemberKey, OffsetCommit, TopicPartition
from tests.gateway.groups.coordinator.world import World, wanting, world
from tests.simdisk import Fault

G = "billing"
ALL = Subscription(pattern="orders.*")
P0, P1 = TopicPartition("orders", 0), TopicPartition("orders", 1)
EU = TopicPartition("orders-eu", 0)


async def latest(made: World, partition: TopicPartition, group: str = G) -> int:
    return await made.groups.start_offset(group, partition, Start.LAST)


async def received(made: World, *topics: str, group: str = G) -> list[bytes | None]:
    found = await made.groups.receive(group, wanting(*topics, start=Start.LAST))
    return [message.value for message in found.messages]


@pytest.mark.parametrize("after", ["nothing", "kill", "stop", "power cut"])
async def test_who_takes_over_before_the_first_commit_begins_where_the_first_one_did(after: str) -> None:
    async with world(values=[b"1", b"2"]) as made:
        assert await latest(made, P0) == 2
        await made.send(b"3")
        await made.send(b"4", partition=1)
        match after:
            case "kill":
                await made.kill()
                await made.start()
            case "stop":
                await made.stop()
                await made.start()
            case "power cut":
                await made.crash(seed=1)
        assert await latest(made, P0) == 2
        assert await latest(made, P1) == 0, "the first start was for all partitions of the topic"


async def test_a_time_is_fixed_as_well() -> None:
    async with world(values=[b"1"]) as made:
        made.clock.step(1000)
        at = StartTime(made.clock.now_ms())
        assert await made.groups.start_offset(G, P0, at) == 1
        await made.send(b"2")
        assert await latest(made, P0) == 1


async def test_a_partition_that_is_added_begins_with_its_first_record() -> None:
    async with world(values=[b"1"]) as made:
        assert await latest(made, P0) == 1
        await made.broker.grow_topic("orders", 3)
        await made.send(b"2", partition=2)
        assert await latest(made, TopicPartition("orders", 2)) == 0


@pytest.mark.parametrize("is_restarted", [False, True])
async def test_a_topic_that_came_after_a_pattern_begins_with_its_first_record(is_restarted: bool) -> None:
    async with world(values=[b"1"]) as made:
        await made.groups.join(G, "m1", ALL)
        await made.topic("orders-eu", 1)
        await made.send(b"2", topic="orders-eu")
        if is_restarted:
            await made.stop()
            await made.start()
        assert await latest(made, EU) == 0
        assert await latest(made, P0) == 1, "this one was there before"


async def test_a_topic_that_a_member_waits_for_begins_with_its_first_record() -> None:
    async with world() as made:
        await made.groups.join(G, "m1", Subscription(frozenset(["orders", "orders-eu"])))
        await made.topic("orders-eu", 1)
        await made.send(b"1", topic="orders-eu")
        await made.send(b"2")
        assert await latest(made, EU) == 0
        assert await latest(made, P0) == 1


async def test_a_topic_that_is_made_anew_begins_with_its_first_record() -> None:
    async with world(values=[b"1"]) as made:
        await made.groups.join(G, "m1", Subscription(frozenset(["orders"])))
        assert await latest(made, P0) == 1
        await made.broker.delete_topic("orders")
        await made.topic()
        await made.send(b"2")
        assert await latest(made, P0) == 0


async def test_a_pattern_that_comes_later_begins_at_the_end_of_what_is_there() -> None:
    async with world() as made:
        await made.groups.join(G, "m1", Subscription(pattern="orders"))
        await made.topic("orders-eu", 1)
        await made.send(b"1", topic="orders-eu")
        await made.groups.join(G, "m2", ALL)
        assert await latest(made, EU) == 1


async def test_queue_mode_follows_a_pattern_too() -> None:
    async with world(values=[b"old"]) as made:
        await made.groups.follow(G, ALL)
        assert await received(made, "orders") == []
        await made.topic("orders-eu", 1)
        await made.send(b"new", topic="orders-eu")
        await made.kill()
        await made.start()
        assert await received(made, "orders", "orders-eu") == [b"new"]


async def test_members_of_a_broadcasting_group_begin_each_for_itself() -> None:
    async with world(values=[b"1"]) as made:
        await made.groups.configure(G, {"mode": BROADCAST})
        for count, member_id in enumerate(("a", "b"), start=1):
            await made.groups.join(G, member_id, Subscription(frozenset(["orders"])))
            assert await made.groups.start_offset(G, P0, Start.LAST, member_id=member_id) == count
            await made.send(b"more")
        assert await made.groups.start_offset(G, P0, Start.LAST, member_id="a") == 1


async def test_a_member_without_a_name_leaves_no_place_behind_however_late_it_asks() -> None:
    async with world() as made:
        await made.groups.configure(G, {"mode": BROADCAST})
        member_id, share = await made.groups.join(G, None, Subscription(frozenset(["orders"])))
        assert await made.groups.start_offset(G, P0, Start.LAST, member_id=member_id) == 0
        await made.groups.leave(G, MemberKey(member_id, share.generation))
        assert await made.groups.start_offset(G, P0, Start.LAST, member_id=member_id) == 0
        assert made.groups.table.names() == [G]


async def test_a_place_to_begin_never_overtakes_a_commit() -> None:
    """A commit that is decided and not applied yet is seen, whichever turn of the loop the start comes in."""
    for steps in range(12):
        async with world(values=[b"1", b"2", b"3"]) as made:
            committing = asyncio.ensure_future(made.groups.commit(G, [OffsetCommit("orders", 0, 1)]))
            for _ in range(steps):
                await asyncio.sleep(0)
            await asyncio.gather(latest(made, P0), committing)
            assert await latest(made, P0) == 1


async def test_many_consumers_that_begin_at_once_write_one_place() -> None:
    async with world(values=[b"1"]) as made:
        begun = await asyncio.gather(*(latest(made, partition) for partition in (P0, P1) * 10))
        assert begun == [1, 0] * 10
        assert made.groups.log.event_count == 1


async def test_when_the_store_has_stopped_it_is_still_said_where_to_begin() -> None:
    async with world(values=[b"1"]) as made:
        made.disk.inject(Fault("datasync", path_part="commitlog", sticky=True))
        assert await latest(made, P0) == 1
        made.disk.faults.clear()
        await made.kill()
        await made.start()


async def test_a_group_remembers_so_many_names_and_patterns(monkeypatch: pytest.MonkeyPatch) -> None:
    assert WISHES_MAX >= 1000
    monkeypatch.setattr(start_positions, "WISHES_MAX", 3)
    async with world() as made:
        await made.groups.put_document(G, "another", b"does not count")
        await made.groups.join(G, "m1", Subscription(frozenset(["orders", "a"]), pattern="x.*"))
        await made.groups.join(G, "m1", Subscription(frozenset(["orders"]), pattern="x.*"))
        with pytest.raises(GroupFull):
            await made.groups.join(G, "m2", ALL)
        with pytest.raises(GroupFull):
            await made.groups.follow(G, ALL)


async def test_what_was_remembered_goes_with_the_group() -> None:
    async with world() as made:
        await made.groups.follow(G, ALL)
        await made.topic("orders-eu", 1)
        await made.send(b"1", topic="orders-eu")
        await made.groups.delete(G)
        assert await received(made, "orders-eu") == []
