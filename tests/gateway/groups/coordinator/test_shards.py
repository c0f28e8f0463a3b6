"""gateway.groups.coordinator.shards: groups whose log another node takes over, on a Kafka cluster in memory."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace

import pytest

from gateway.cluster.shard_log import shard_of
from gateway.groups.machines.events import DocumentPut, encode_event
from store.errors import Overloaded, StoreError
from tests.gateway.cluster.shard_world import NUMBER, Node, nodes
from tests.gateway.groups.coordinator.world import World, wanting, world
from tests.simdb import simulated_database
from tests.store.kit import SMALL

G = "g0"
assert shard_of(G) == NUMBER


@asynccontextmanager
async def two_nodes() -> AsyncIterator[tuple[tuple[World, Node], tuple[World, Node]]]:
    """Two nodes with the same records, whose groups all belong to shards."""
    records = [str(number).encode() for number in range(6)]
    _, (one, two) = nodes(["n1", "n2"])
    async with world(values=records) as first, world(values=records) as second:
        for made in (first, second):
            made.groups.shards.set_sharded(lambda group: True)
        yield (first, one), (second, two)


async def take_up(made: World, node: Node) -> None:
    await node.own()
    await made.groups.shards.take_up(NUMBER, node.log, node.snapshots)


def state(made: World) -> list[bytes]:
    return [encode_event(event) for event in made.groups.table.snapshot([G])]


@pytest.mark.parametrize("saves", [False, True])
async def test_offsets_leases_and_receipts_are_on_the_node_that_takes_over(saves: bool) -> None:
    async with two_nodes() as ((first, one), (second, two)):
        await take_up(first, one)
        await first.groups.configure(G, {"max_attempts": 7})
        a, b, _ = (await first.groups.receive(G, wanting(max_messages=3))).messages
        await first.groups.ack(G, [a.receipt])
        await first.groups.put_document(G, "key", b"content")
        if saves:
            await first.groups.shards.save(NUMBER)
            await first.groups.put_document(G, "key", b"later")
        settled = second.groups.stats.settled_count
        await take_up(second, two)
        assert state(second) == state(first)
        assert second.groups.stats.settled_count == settled, "what is read is not what has happened"
        second.groups.shards.accept_receipts(first.groups.shards.receipt_keys)
        await second.groups.ack(G, [b.receipt])
        [d] = (await second.groups.receive(G, wanting(max_messages=1))).messages
        assert d.offset == 3, "three were handed out before, and are on lease"
        with pytest.raises(StoreError):
            await first.groups.put_document(G, "key", b"late")
        await take_up_again(first, one)
        assert state(first) == state(second)
        assert b"late" not in b"".join(state(first))


@pytest.mark.parametrize("saves", [False, True])
async def test_offsets_in_light_queues_are_in_the_log_of_their_shard(saves: bool) -> None:
    configs = [replace(SMALL, index="rocksdb", root=SMALL.root / name) for name in ("n1", "n2")]
    _, (one, two) = nodes(["n1", "n2"])
    with simulated_database():
        async with world(config=configs[0]) as first, world(config=configs[1]) as second:
            for made in (first, second):
                made.groups.shards.set_sharded(lambda group: group != "own")
                await made.send(b"0", b"1", b"2", light="a")
            await take_up(first, one)
            light, there = first.groups.light_offsets, second.groups.light_offsets
            await light.commit(G, "orders", "a", {0: 1})
            await light.commit("own", "orders", "a", {0: 2})
            if saves:
                await first.groups.shards.save(NUMBER)
            await light.commit(G, "orders", "b", {0: 0})
            await take_up(second, two)
            assert [there.committed(G, "orders", 0, name) for name in "ab"] == [1, 0]
            assert there.count("own") == 0
            await first.groups.shards.give_up(NUMBER)
            assert (light.count(G), light.count("own")) == (0, 1)
            await first.groups.log.save()
            await first.stop()
            await first.start()
            assert (first.groups.light_offsets.count(G), first.groups.light_offsets.count("own")) == (0, 1)


async def take_up_again(made: World, node: Node) -> None:
    await made.groups.shards.give_up(NUMBER)
    assert G not in made.groups.table
    await take_up(made, node)


async def test_a_shard_is_forgotten_when_those_who_have_a_turn_have_ended() -> None:
    async with two_nodes() as ((first, one), _):
        await take_up(first, one)
        await first.groups.put_document(G, "key", b"content")
        gone: list[str] = []
        first.groups.handover.on_gone.append(gone.append)
        async with first.groups._context.turns.of_group(G):
            giving_up = asyncio.create_task(first.groups.shards.give_up(NUMBER))
            for _ in range(20):
                await asyncio.sleep(0)
            assert not giving_up.done()
            with pytest.raises(Overloaded):  # what it decided is not written, to whichever tenure
                await first.groups._context.write([DocumentPut(G, "key", b"decided before")])
            assert G in first.groups.table
        await giving_up
        assert G not in first.groups.table
        assert gone == [G]


async def test_the_nodes_own_snapshot_has_no_group_of_a_shard() -> None:
    async with two_nodes() as ((first, one), _):
        first.groups.shards.set_sharded(lambda group: group == G)
        await take_up(first, one)
        await first.groups.put_document(G, "key", b"content")
        await first.groups.put_document("local", "key", b"content")
        own = {event.group for event in first.groups._log._whole_state()}
        assert own == {"local"}
