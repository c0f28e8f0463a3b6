"""gateway.groups.coordinator.handover and `Belonging`: a group goes from one node to another with all that it is, and a
crash at any step leaves it on one of the two."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from random import Random

import pytest

from gateway.groups.coordinator.handover import Moved
from gateway.groups.machines.config import BROADCAST
from gateway.groups.machines.errors import GroupElsewhere, GroupFull, GroupUnowned
from gateway.groups.machines.events import encode_event
from gateway.groups.protocol import MemberKey, OffsetCommit, TopicPartition
from tests.gateway.groups.coordinator.world import ORDERS, World, wanting, world
from tests.simdb import simulated_database
from tests.store.kit import SMALL

G = "billing"
P0 = TopicPartition("orders", 0)


class Owners:
    """Whose the group is, as both nodes know it."""

    def __init__(self, first: World, second: World) -> None:
        self.owner = first
        for made in (first, second):
            self.tell(made)

    def tell(self, made: World) -> None:
        made.groups.belonging.elsewhere = lambda group: None if self.owner is made else GroupElsewhere(group)

    def own(self, made: World) -> Callable[[], Awaitable[bool]]:
        async def own() -> bool:
            self.owner = made
            return True

        return own


@asynccontextmanager
async def nodes() -> AsyncIterator[tuple[World, World, Owners]]:
    """Two nodes with the same records."""
    records = [str(number).encode() for number in range(6)]
    async with world(values=records) as first, world(values=records) as second:
        yield first, second, Owners(first, second)


async def move(first: World, second: World, owners: Owners, group: str = G) -> Moved:
    async with first.groups.handover.leaving(group) as moved:
        assert await second.groups.handover.come(moved, owners.own(second))
        await first.groups.handover.gone(group)
    return moved


def state(made: World, group: str = G) -> list[bytes]:
    """What the group is, but for the keys of receipts."""
    names = [group, *made.groups.table.lone_groups(group)]
    events = [encode_event(event) for event in made.groups.table.snapshot(names)]
    return [event for event in events if b"receipt-key" not in event]


async def test_leases_receipts_waits_and_dead_letters_go_along() -> None:
    async with nodes() as (first, second, owners):
        await first.groups.configure(G, {"max_attempts": 3})
        a, b, c, d = (await first.groups.receive(G, wanting(max_messages=4))).messages
        await first.groups.ack(G, [a.receipt])
        await first.groups.nack(G, [b.receipt], delay_ms=500)
        await first.groups.put_document(G, "note", b"kept")
        before = state(first)
        moved = await move(first, second, owners)
        assert state(second) == before
        assert moved.size_bytes > 0
        assert G not in first.groups.table
        for refused in (first.groups.ack(G, [c.receipt]), first.groups.receive(G, wanting())):
            with pytest.raises(GroupElsewhere):
                await refused
        assert [one.ok for one in await second.groups.ack(G, [c.receipt])] == [True], "signed by the other node"
        assert [one.offset for one in (await second.groups.receive(G, wanting())).messages] == [4, 5]
        await second.tick(500)
        assert [one.offset for one in (await second.groups.receive(G, wanting())).messages] == [b.offset]
        await second.groups.reject(G, [d.receipt], "bad")
        assert len(await second.records("%DLQ%billing")) == 1
        assert second.groups.documents(G, "note") == [(G, "note", b"kept")]
        await second.stop()
        await second.start()
        owners.tell(second)
        assert [one.ok for one in await second.groups.ack(G, [c.receipt])] == [True], "known after a restart too"
        back = await move(second, first, owners)
        assert [one.ok for one in await first.groups.ack(G, [c.receipt])] == [True]
        assert back.events.count(b"receipt-key/") == 2


async def test_offsets_and_leases_in_light_queues_go_along() -> None:
    """Of a group that has nothing else, too; and who says where it is meanwhile waits, and is told where to."""
    configs = [replace(SMALL, index="rocksdb", root=SMALL.root / name) for name in ("n1", "n2")]
    with simulated_database():
        async with world(config=configs[0]) as first, world(config=configs[1]) as second:
            owners = Owners(first, second)
            for made in (first, second):
                await made.send(*(b"%d" % number for number in range(6)), light="a")
            light = first.groups.light_offsets
            await light.commit("phone", "orders", "a", {0: 2, 1: 0})
            await light.commit("other", "orders", "a", {0: 5})
            one, two = (await first.groups.receive("phone", wanting(queue="a", max_messages=2))).messages
            assert (one.queue_offset, two.queue_offset) == (2, 3), "from where the device is"
            await first.groups.ack("phone", [one.receipt])
            async with first.groups.handover.leaving("phone") as moved:
                late = asyncio.create_task(light.commit("phone", "orders", "b", {0: 0}))
                await asyncio.sleep(0)
                assert not late.done()
                assert await second.groups.handover.come(moved, owners.own(second))
                await first.groups.handover.gone("phone")
            with pytest.raises(GroupElsewhere):
                await late
            assert (light.count("phone"), light.count("other")) == (0, 1)
            there = second.groups.light_offsets
            assert [there.committed("phone", "orders", number, "a") for number in (0, 1)] == [3, 0]
            assert [row.ok for row in await second.groups.ack("phone", [two.receipt])] == [True]
            await second.stop()
            await second.start()
            owners.tell(second)
            there = second.groups.light_offsets
            assert [there.committed("phone", "orders", number, "a") for number in (0, 1)] == [4, 0]
            owners.owner = first
            await move(first, second, owners, "other")
            assert there.committed("other", "orders", 0, "a") == 5, "it has no settings, no members, no leases"


async def test_members_stay_and_offsets_too() -> None:
    async with nodes() as (first, second, owners):
        member, share = await first.groups.join(G, "m1", ORDERS)
        key = MemberKey(member, share.generation)
        await first.groups.commit(G, [OffsetCommit(*P0, 3)], key)
        waiting = asyncio.create_task(first.groups.share_changed(G, member, share))
        await asyncio.sleep(0)
        await move(first, second, owners)
        assert second.groups.heartbeat(G, key) == share, "the same generation, the same partitions"
        with pytest.raises(GroupElsewhere):
            await first.groups.commit(G, [OffsetCommit(*P0, 4)])
        assert waiting in (await asyncio.wait([waiting], timeout=1))[0], "who waits at the old node is told"
        assert waiting.exception() is not None
        await second.groups.commit(G, [OffsetCommit(*P0, 4)], key)
        assert [one.offset for one in await second.groups.committed(G, [P0])] == [4]
        await first.groups.stream.look()
        await first.groups.dead_letters.dead_letter_all()


async def test_a_broadcasting_group_goes_with_all_its_members() -> None:
    async with nodes() as (first, second, owners):
        await first.groups.configure(G, {"mode": BROADCAST})
        keys = []
        for name in ("m1", "m2"):
            member, share = await first.groups.join(G, name, ORDERS)
            keys.append(MemberKey(member, share.generation))
            await first.groups.commit(G, [OffsetCommit(*P0, len(keys))], keys[-1])
        before = state(first)
        await move(first, second, owners)
        assert state(second) == before
        assert first.groups.table.names() == []
        offsets = [(await second.groups.committed(G, [P0], member_id=name))[0].offset for name in ("m1", "m2")]
        assert offsets == [1, 2]


async def test_who_changes_something_meanwhile_waits_and_loses_nothing() -> None:
    async with nodes() as (first, second, owners):
        (one, two) = (await first.groups.receive(G, wanting(max_messages=2))).messages
        async with first.groups.handover.leaving(G) as moved:
            late = [
                asyncio.ensure_future(first.groups.ack(G, [one.receipt])),
                asyncio.create_task(first.groups.put_document(G, "late", b"1")),
                asyncio.create_task(first.groups.commit("another", [OffsetCommit(*P0, 1)])),
            ]
            await asyncio.wait(late[2:])
            assert not any(task.done() for task in late[:2])
            assert await second.groups.handover.come(moved, owners.own(second))
            await first.groups.handover.gone(G)
        assert [type(error) for error in await asyncio.gather(*late[:2], return_exceptions=True)] == [
            GroupElsewhere
        ] * 2
        assert [done.ok for done in await second.groups.ack(G, [one.receipt, two.receipt])] == [True, True]
        async with second.groups.handover.leaving(G):
            late = [asyncio.create_task(second.groups.put_document(G, "late", b"1"))]
            await asyncio.sleep(0)
        await late[0]  # it did not go
        assert second.groups.documents(G, "late") == [(G, "late", b"1")]


async def test_what_is_not_owned_in_the_end_is_forgotten() -> None:
    """The compare-and-set fails, there is no room, or the taker crashes: the group is where it was."""
    async with nodes() as (first, second, owners):
        await first.groups.commit(G, [OffsetCommit(*P0, 3)])
        before = state(first)

        async def lost() -> bool:
            return False

        async with first.groups.handover.leaving(G) as moved:
            assert not await second.groups.handover.come(moved, lost)
        assert (state(first), second.groups.table.names()) == (before, [])
        too_large = moved._replace(size_bytes=second.limits.group_bytes_max + 1)
        with pytest.raises(GroupFull):
            await second.groups.handover.come(too_large, owners.own(second))
        with pytest.raises(ValueError, match="other groups"):
            await second.groups.handover.come(moved._replace(group="another"), owners.own(second))
        assert second.groups.table.names() == []

        left: list[World] = []

        async def power_cut() -> bool:
            left.append(World(second.disk.crash(Random(24))))
            return False

        assert not await second.groups.handover.come(moved, power_cut)
        (after,) = left
        await after.start()
        owners.tell(after)
        assert after.groups.table.names() == [G], "it was written, and is not owned"
        await after.groups.handover.forget(G)
        assert after.groups.table.names() == []
        await after.stop()
        assert [one.offset for one in await first.groups.committed(G, [P0])] == [3]
        await move(first, second, owners)
        assert state(second) == before


async def test_an_empty_group_goes_too() -> None:
    """Its name belongs to a node, and should to one that stays."""
    async with nodes() as (first, second, owners):
        await move(first, second, owners)
        assert owners.owner is second


async def test_nothing_of_a_group_that_is_nobodys_is_written() -> None:
    async with nodes() as (first, _, _):
        await first.groups.configure(G, {"max_attempts": 3})
        first.groups.belonging.is_owned = lambda group: group != G
        for refused in (first.groups.receive(G, wanting()), first.groups.configure(G, {"max_attempts": 4})):
            with pytest.raises(GroupUnowned):
                await refused
        assert len((await first.groups.receive("another", wanting())).messages) == 6
        first.groups.belonging.is_owned = lambda group: True
        assert len((await first.groups.receive(G, wanting())).messages) == 6
