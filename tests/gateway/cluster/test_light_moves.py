"""Light queues of partitions that move between nodes: read on any node, over all segments, while records are sent,
movers stop half way, and the power fails.

Covers gateway.routing.light, gateway.cluster.peer_light, gateway.surfaces.peer.light.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from dataclasses import replace
from hashlib import blake2b
from random import Random

import pytest

from gateway.api.light import LightReader
from gateway.brokers.base import BrokerUnreachable
from gateway.cluster import peer_light
from gateway.cluster.move import TAKEN_OFFSETS
from store import record_batch
from store.errors import NoLightQueues, SealedQueue, UnknownQueue
from store.record_batch import Record
from store.types import ID_BYTES, Acks, Append, Bounds, Identity
from tests.gateway.cluster.nodes import CONFIG, MOVE_ERRORS, NAMES, TOPIC, Cluster, settle
from tests.seeds import each_seed
from tests.simdb import simulated_database
from tests.store.kit import abandon
from tests.waiting import PATIENCE_S, WOKEN_S, until

RUNS = 12
QUEUES = [b"user/1", b"user/2", b"room/1"]


@asynccontextmanager
async def cluster(*, is_remote: bool = False) -> AsyncIterator[Cluster]:
    with simulated_database():
        made = Cluster(2, is_remote=is_remote, config=replace(CONFIG, index="rocksdb"))
        await made.start()
        try:
            yield made
        except BaseException:
            await abandon()
            raise
        await made.stop()


async def rows(made: Cluster, via: str, name: bytes, *, begin: int = 0, count: int = 3) -> list[tuple[int, int, bytes]]:
    """Of each record its offset in the queue, in the partition, and its value; each read begins where the one before
    ended."""
    reader = LightReader(made.nodes[via].routes)
    found: list[tuple[int, int, bytes]] = []
    offset = begin
    while True:
        read = await reader.read_one(TOPIC, name, 0, offset, max_records=count, max_bytes=2000)
        for own, entry, index in read.records:
            record = list(record_batch.decode(entry.batch))[index]
            found.append((own, record.offset, record.value or b""))
        assert read.next_offset >= offset
        if not read.records:
            assert read.next_offset == read.max_offset
            return found
        offset = read.next_offset


async def move(made: Cluster, to: str) -> None:
    await made.nodes["n3"].mover.move(made.topic.topic_id, 0, to)
    await until(lambda: all(made.nodes[name].routes.broker_name(TOPIC, 0) == to for name in NAMES))


@pytest.mark.parametrize("is_remote", [False, True])
async def test_a_light_queue_is_read_over_its_segments_on_every_node(is_remote: bool) -> None:
    async with asyncio.timeout(PATIENCE_S), cluster(is_remote=is_remote) as made:
        sent: dict[bytes, list[tuple[int, int, bytes]]] = {name: [] for name in QUEUES}

        async def send(names: list[bytes], **own: int) -> None:
            value = b"%d" % sum(map(len, sent.values()))
            offset = await made.send("n2", value, queues=names)
            for name in names:
                sent[name].append((own[name.decode().replace("/", "")], offset, value))

        user1, user2, room = QUEUES
        await send([user1], user1=0)
        await send([user1, user2], user1=1, user2=1)
        await move(made, "n2")
        await send([user2], user2=2)
        await send([user1], user1=3)
        await send([user1], user1=4)
        await move(made, "n3")
        await move(made, "n1")
        await send([room], room1=5)
        await send([user1], user1=6)
        for via in NAMES:
            for name in QUEUES:
                assert await rows(made, via, name) == sent[name], "offsets jump to those of the segment, in order"
                for at, row in enumerate(sent[name]):
                    assert await rows(made, via, name, begin=row[0]) == sent[name][at:]
            reader = LightReader(made.nodes[via].routes)
            assert await reader.stretches(TOPIC, user1, 0) == [Bounds(0, 2), Bounds(3, 5), Bounds(6, 7)]
            assert await reader.bounds(TOPIC, user1, 0) == (0, 7)
            assert await reader.bounds(TOPIC, user2, 0) == (1, 3)
            assert await reader.end(TOPIC, user2, 0) == 7, "nothing in the open segment: the partition's"
            assert await reader.bounds(TOPIC, b"none", 0) == (7, 7)
            listed = await reader.names(made.topic, b"", after=b"", count=10)
            assert listed == sorted(QUEUES)
            assert await reader.names(made.topic, b"user/", after=b"user/1", count=10) == [user2]
            assert await reader.names(made.topic, b"", after=b"", count=1) == [room]
            found = await reader.read(TOPIC, user1, {0: 1, 1: 0}, max_records=100, max_bytes=1 << 20)
            assert [(at, record.offset) for at, record in found.records] == [(0, 1)], "of one segment"
            assert found.next_offsets == {0: 2, 1: 0}
            # `room/*` is a filter over the partition.
            read = await made.nodes[via].reader.read(TOPIC, 0, 5, max_bytes=1 << 20)
            assert [entry.light and list(entry.light.names) for entry in read.entries] == [[room], [user1]]


@pytest.mark.parametrize("is_remote", [False, True])
async def test_segments_that_have_expired_are_not_shown_and_not_asked(is_remote: bool) -> None:
    async with asyncio.timeout(PATIENCE_S), cluster(is_remote=is_remote) as made:
        for number in range(3):
            await made.send("n1", b"%d" % number, queues=[b"a", b"b"][: 1 + number % 2])
        await move(made, "n2")
        await made.send("n1", b"3", queues=[b"a"])
        first = made.nodes["n3"].routes.chain(TOPIC, 0)[0]
        await made.nodes["n1"].broker.expire_queue(first.queue, 2)
        reader = LightReader(made.nodes["n2"].routes)
        assert [row[2] for row in await rows(made, "n2", b"a")] == [b"2", b"3"]
        assert await reader.bounds(TOPIC, b"b", 0) == (4, 4), "its only record is gone"
        await made.nodes["n1"].broker.expire_queue(first.queue, 3)
        if is_remote:
            made.peers["n1"]._first_kept.clear()  # the answer is believed for some seconds
        assert await rows(made, "n2", b"a") == [(3, 3, b"3")]
        assert await reader.bounds(TOPIC, b"a", 0) == (3, 4)
        await made.nodes["n2"].mover.trim(made.topic.topic_id, 0)
        await settle()
        assert await rows(made, "n2", b"a") == [(3, 3, b"3")]


async def test_a_segment_that_cannot_be_reached_is_an_error_and_what_is_behind_it_is_read() -> None:
    async with asyncio.timeout(PATIENCE_S), cluster(is_remote=True) as made:
        await made.send("n1", b"0", queues=[b"a"])
        await move(made, "n2")
        await made.send("n1", b"1", queues=[b"a"])
        made.peers["n1"].reach_at("http://127.0.0.1:1")
        reader = LightReader(made.nodes["n3"].routes)
        with pytest.raises(BrokerUnreachable):
            await reader.read_one(TOPIC, b"a", 0, 0, max_records=1, max_bytes=1)
        assert await rows(made, "n3", b"a", begin=1) == [(1, 1, b"1")]
        assert await reader.end(TOPIC, b"a", 0) == 2


@pytest.mark.parametrize("is_remote", [False, True])
async def test_who_waits_is_woken_wherever_the_partition_is(is_remote: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    async with asyncio.timeout(WOKEN_S), cluster(is_remote=is_remote) as made:
        reader = LightReader(made.nodes["n3"].routes)
        for to in ("n1", "n2", "n3"):
            await move(made, to)
            for number in range(3):
                end = await reader.end(TOPIC, b"a", 0)
                woken, other, left = asyncio.Event(), asyncio.Event(), asyncio.Event()
                tail = reader.tail(TOPIC, b"a", 0, end)
                tail.wait(woken.set)
                at_other = reader.tail(TOPIC, b"b", 0, await reader.end(TOPIC, b"b", 0))
                at_other.wait(other.set)
                left_tail = reader.tail(TOPIC, b"a", 0, end)
                left_tail.wait(left.set)
                left_tail()
                await asyncio.sleep(0.05)
                assert not woken.is_set() or (is_remote and number == 0), "at first all are woken, to look"
                if number == 2:
                    monkeypatch.setattr(peer_light, "NEWS_RECORDS_MAX", 0)  # too far behind: all look
                await made.send("n1", b"1", queues=[b"a"])
                await woken.wait()
                if number:
                    assert other.is_set() == (number == 2 and is_remote and to != "n3")
                assert not left.is_set()
                told = tail.take(end)
                assert (told is None) == is_remote or to == "n3"
                if told is not None:
                    read = await reader.read_one(TOPIC, b"a", 0, end, max_records=9, max_bytes=9)
                    assert read.records == [told], "in the partition's offsets, wherever its segment begins"
                at_other()
                tail()
                monkeypatch.undo()
        # Behind: said at once, though not within the call.
        late = asyncio.Event()
        tail = reader.tail(TOPIC, b"a", 0, await reader.end(TOPIC, b"a", 0) - 1)
        tail.wait(late.set)
        assert not late.is_set()
        await late.wait()
        # Another place: it is off.
        moved = asyncio.Event()
        tail.reading()
        tail.wait(moved.set)
        await move(made, "n2")
        await moved.wait()
        assert not tail.is_on
        # Who follows goes along.
        followed = asyncio.Event()
        with reader.watching(TOPIC, b"a", [0], followed.set):
            for to in ("n1", "n2"):
                await move(made, to)
                await followed.wait()  # it may have got some
                await made.send("n1", b"0", queues=[b"b"])  # the first record of a queue is said to all
                await asyncio.sleep(0.1)
                followed.clear()
                await made.send("n1", b"1", queues=[b"b"])
                await asyncio.sleep(0.1)
                assert not followed.is_set()
                await made.send("n1", b"2", queues=[b"a"])
                await followed.wait()


async def test_a_topic_that_goes_wakes_who_waits_on_another_node() -> None:
    async with asyncio.timeout(WOKEN_S), cluster(is_remote=True) as made:
        reader = LightReader(made.nodes["n3"].routes)
        woken = asyncio.Event()
        reader.tail(TOPIC, b"a", 0, 0).wait(woken.set)
        await asyncio.sleep(0.1)
        await made.nodes["n1"].store.delete_topic(TOPIC)
        await woken.wait()
        with pytest.raises(UnknownQueue):
            await reader.end(TOPIC, b"a", 0)


async def test_a_node_with_its_index_in_files_refuses_and_nothing_is_stored() -> None:
    with simulated_database():
        made = Cluster(1, is_remote=True)
        await made.start()
        with pytest.raises(NoLightQueues):
            await made.send("n2", b"0", queues=[b"a"])
        with pytest.raises(NoLightQueues):
            await LightReader(made.nodes["n2"].routes).end(TOPIC, b"a", 0)
        assert await made.send("n2", b"0") == 0
        await made.stop()


@pytest.mark.parametrize("is_remote", [False, True])
async def test_what_a_broker_that_was_taken_over_has_acknowledged_is_read(is_remote: bool) -> None:
    async with asyncio.timeout(PATIENCE_S), cluster(is_remote=is_remote) as made:
        await made.send("n1", b"0", queues=[b"a"])
        await made.pause("n1")
        await made.nodes["n2"].mover.take_over(made.topic.topic_id, 0, "n2")
        await settle()
        assert await made.send("n1", b"1", queues=[b"a"]) == 1, "a stale writer"
        await made.send("n3", b"2", queues=[b"a"])
        expected = [(0, 0, b"0"), (1, 1, b"1"), (TAKEN_OFFSETS, TAKEN_OFFSETS, b"2")]
        assert await rows(made, "n3", b"a") == expected
        stale = made.nodes["n1"].routes.writable(TOPIC, 0)
        batch = record_batch.encode([Record(None, b"3", 0)])
        with pytest.raises(SealedQueue):
            await stale.broker.append([Append(queue=stale.queue, batch=batch, record_count=1)], acks=Acks.FLUSHED)
        assert await LightReader(made.nodes["n3"].routes).stretches(TOPIC, b"a", 0) == [
            Bounds(0, 2),
            Bounds(TAKEN_OFFSETS, TAKEN_OFFSETS + 1),
        ]


@each_seed(RUNS)
async def test_no_offset_of_a_light_queue_has_two_records_and_none_is_lost_over_moves_and_power_cuts(
    seed: int,
) -> None:
    """Senders and readers on all nodes; C3 and C1 over the chain."""
    random = Random(seed)
    async with cluster() as made:
        acknowledged: dict[bytes, tuple[int, tuple[bytes, ...]]] = {}  # by value: its offset, its queues
        sent: dict[bytes, tuple[bytes, ...]] = {}
        shown: dict[tuple[bytes, int], tuple[int, bytes]] = {}
        moves = 0

        def see(name: bytes, found: Iterable[tuple[int, int, bytes]]) -> None:
            for own, offset, value in found:
                assert shown.setdefault((name, own), (offset, value)) == (offset, value), "C3"

        async def send(count: int) -> None:
            for _ in range(count):
                value = b"%d" % random.randrange(1 << 60)
                queues = sent[value] = tuple(random.sample(QUEUES, random.randrange(3)))
                identity = Identity(message_ids=[blake2b(value).digest()[:ID_BYTES]])
                for _ in range(1 + (random.random() < 0.3)):
                    offset = await made.send(random.choice(NAMES), value, 0, identity, queues)
                    assert acknowledged.setdefault(value, (offset, queues)) == (offset, queues)

        async def shift() -> None:
            nonlocal moves
            try:
                await made.nodes[random.choice(NAMES)].mover.move(made.topic.topic_id, 0, random.choice(NAMES))
                moves += 1
            except MOVE_ERRORS:
                pass

        async def look() -> None:
            name = random.choice(QUEUES)
            see(name, await rows(made, random.choice(NAMES), name, count=random.choice((1, 10))))

        for _ in range(6):
            stale = random.choice(NAMES)
            await made.pause(stale)
            work = [asyncio.create_task(one) for one in (send(4), send(4), send(4), shift(), shift(), look(), look())]
            await settle(random.randrange(120))
            if random.random() < 0.5:
                work[3].cancel()
            await settle(random.randrange(120))
            made.resume(stale)
            if random.random() < 0.4:
                await made.crash(random)
            else:
                await asyncio.wait(work[3:5])
                await shift()
                await asyncio.wait(work)
                if random.random() < 0.5:
                    await made.nodes[random.choice(NAMES)].store._save_checkpoint()
            for task in work:
                if task.done() and not task.cancelled() and (error := task.exception()) is not None:
                    raise error
            await shift()
            await settle()
        await made.send("n1", b"last", queues=QUEUES)
        for name in QUEUES:
            found = await rows(made, random.choice(NAMES), name)
            see(name, found)
            assert found == sorted(found), "in the order of the partition"
            assert found[-1][2] == b"last"
            values = [value for _, _, value in found[:-1]]
            assert len(set(values)) == len(values)
            assert {value for value, (_, queues) in acknowledged.items() if name in queues} <= set(values), "C1"
            assert all(name in sent[value] for value in values)
            assert {value: offset for _, offset, value in found}.items() >= {
                (value, offset) for value, (offset, queues) in acknowledged.items() if name in queues
            }
            of_stretches = [
                offset
                for begin, end in await LightReader(made.nodes["n2"].routes).stretches(TOPIC, name, 0)
                for offset in range(begin, end)
            ]
            assert [own for own, _, _ in found] == of_stretches, "dense in each segment"
        assert moves > 3
