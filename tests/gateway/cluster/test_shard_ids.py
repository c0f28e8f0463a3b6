"""Repeated sends of delayed records to a shard on a Kafka cluster in memory: each is accepted once, and answered as its
first was, whichever node owns the shard by then, and whether or not it was delivered.

Covers gateway.cluster.shard_ids.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from random import Random

import pytest

from gateway.brokers.base import AnswerLost
from gateway.cluster import shard_ids, shard_log
from gateway.cluster.mover import MoveConflict
from gateway.cluster.shard_ids import NamedPart, ShardIds
from store.errors import AlreadyStored, Corrupt, IdentityReused, Overloaded, StoreError, TooManyIds
from store.types import Acks, Identity, RequestPart
from tests.gateway.brokers.kafka.fake import not_paused, strangers_batch
from tests.gateway.cluster.timer_world import (
    IDS_MAX,
    NUMBER,
    WINDOW_MS,
    TimerNode,
    World,
    counts_of,
    ids_of,
    nodes,
)
from tests.timer.fakes import keyed_append
from timer.schedule import ScheduleId, decode_schedule_id

TOPIC = "mq.__timer"


@pytest.fixture(autouse=True)
def hurry(monkeypatch: pytest.MonkeyPatch) -> None:
    not_paused(monkeypatch)


def named(*names: bytes) -> Identity:
    return Identity(message_ids=[name.rjust(16) for name in names])


def request(name: bytes, count: int, first: int = 0) -> Identity:
    return Identity(request=RequestPart(name.rjust(16), b"content_", range(first, first + count)))


@dataclass
class Sent:
    """A send that may come again. `ids`: its answer, once it has had one."""

    schedules: list[tuple[int, bytes]]
    identity: Identity
    at_ms: int
    may_be_stored: bool = False
    ids: list[ScheduleId] = field(default_factory=list)

    @property
    def values(self) -> list[bytes]:
        return [value for _, value in self.schedules]

    async def to(self, node: TimerNode) -> bool | None:
        """Send it; whether it is a repeat by the answer; None: it has none."""
        try:
            answer = await node.accept(self.schedules, self.identity)
        except AlreadyStored as known:
            assert self.may_be_stored
            [found] = known.originals
            assert sorted(found) == list(range(len(self.schedules)))
            originals = [found[index].schedule for index in sorted(found)]
            ids = [ScheduleId(*one) for one in originals if one is not None]
            assert len(ids) == len(originals)
            assert self.ids in ([], ids), "another answer"
            self.ids = ids
            return True
        except AnswerLost:
            self.may_be_stored = True
            return None
        except Overloaded:
            return None
        assert not self.ids, "accepted twice"
        self.may_be_stored = True
        self.ids = ids_of(answer, self.schedules)
        return False


def sent(world: World, after_ms: int, identity: Identity, *values: bytes) -> Sent:
    now_ms = world.clock.now_ms()
    return Sent([(now_ms + after_ms, value) for value in values], identity, now_ms)


async def test_a_repeat_has_the_answer_of_its_first_before_and_behind_its_delivery_at_each_owner() -> None:
    world, (first, second) = await nodes(2)
    tenure = await first.take()
    by_ids = sent(world, 1_000, named(b"a", b"b"), b"a", b"b")
    by_request = sent(world, 2_000, request(b"r", 2), b"c", b"d")
    for one in (by_ids, by_request):
        assert await one.to(first) is False
        assert await one.to(first) is True
    await second.take()
    assert await by_ids.to(second) is True
    world.clock.step(1_000)
    await second.step()
    assert counts_of(await world.delivered()) == {b"a": 1, b"b": 1}
    assert await by_ids.to(second) is True, "delivered"
    tenure = await first.take()
    for one in (by_ids, by_request):
        assert await one.to(first) is True
    world.clock.step(2_000)
    await first.step()
    await tenure.save()
    log = world.kafka.log(TOPIC, NUMBER)
    taken = await second.take()
    assert taken.timer.recovery_outcome == "saved"
    for one in (by_ids, by_request):
        assert await one.to(second) is True, "the snapshot leaves nothing of the schedule, and a part has its id"
    await second.step()
    assert counts_of(await world.delivered()) == {b"a": 1, b"b": 1, b"c": 1, b"d": 1}
    world.clock.step(WINDOW_MS)
    by_ids.ids = []
    by_ids.schedules = [(world.clock.now_ms() + 500, value) for value in (b"a2", b"b2")]
    assert await by_ids.to(second) is False, "out of the window it is a new one"
    before = log.start
    world.clock.step(1_000)
    await second.step()
    await second.step()
    await taken.save()
    assert log.start > before, "and its first is given up"


@pytest.mark.parametrize("due_ms", [0, 1, 999, 1_000_000])
async def test_what_was_due_long_ago_is_delivered_at_once_and_once(due_ms: int) -> None:
    world, (first, second) = await nodes(2)
    await first.take()
    one = Sent([(due_ms, b"late")], named(b"late"), world.clock.now_ms())
    assert await one.to(first) is False
    await first.step()
    assert counts_of(await world.delivered()) == {b"late": 1}
    await second.take()
    assert await one.to(second) is True
    await second.step()
    assert counts_of(await world.delivered()) == {b"late": 1}


async def test_of_equal_sends_at_a_time_one_is_accepted() -> None:
    world, (first,) = await nodes(1)
    await first.take()
    sends = [sent(world, 1_000, named(b"a"), b"a") for _ in range(5)]
    for one in sends:
        one.may_be_stored = True
    told = await asyncio.gather(*[one.to(first) for one in sends])
    assert sorted(map(bool, told)) == [False, True, True, True, True]
    assert len({one.ids[0] for one in sends}) == 1


async def test_of_a_part_that_is_known_it_is_said_which_and_another_content_is_refused() -> None:
    world, (first, second) = await nodes(2)
    await first.take()
    assert await sent(world, 5_000, named(b"a"), b"a").to(first) is False
    assert await sent(world, 5_000, request(b"r", 2), b"b", b"c").to(first) is False
    await second.take()
    due_ms = world.clock.now_ms() + 5_000
    with pytest.raises(AlreadyStored) as known:
        await second.accept([(due_ms, b"x"), (due_ms, b"a")], named(b"x", b"a"))
    assert [list(found) for found in known.value.originals] == [[1]]
    with pytest.raises(AlreadyStored) as known:
        await second.accept([(due_ms, b"c"), (due_ms, b"d")], request(b"r", 2, first=1))
    assert [list(found) for found in known.value.originals] == [[0]]
    other = Identity(request=RequestPart(b"r".rjust(16), b"another_", range(2)))
    with pytest.raises(IdentityReused):
        await second.accept([(due_ms, b"b"), (due_ms, b"c")], other)


async def test_a_repeat_whose_key_is_taken_by_its_first_is_answered_as_a_repeat() -> None:
    world, (first, second) = await nodes(2)
    append = keyed_append([(world.clock.now_ms() + 9_000, b"1", b"k")])
    append.identity = named(b"a")
    tenure = await first.take()
    answer = await tenure.timer.schedule(append, acks=Acks.FLUSHED, keys=[b"k"])
    tenure = await second.take()
    await second.step()
    with pytest.raises(AlreadyStored) as known:
        await tenure.timer.schedule(append, acks=Acks.FLUSHED, keys=[b"k"])
    schedule = known.value.originals[0][0].schedule
    assert schedule is not None
    assert schedule.position == answer.position


async def test_ids_of_all_shards_of_a_node_are_bounded_together() -> None:
    world, (first,) = await nodes(1)
    await first.take()
    first.other_ids = IDS_MAX - 2
    assert await sent(world, 1_000, named(b"a", b"b"), b"a", b"b").to(first) is False
    with pytest.raises(TooManyIds):
        await sent(world, 1_000, named(b"c"), b"c").to(first)
    assert await sent(world, 1_000, Identity(), b"d").to(first) is False, "what has none needs no room"
    again = sent(world, 1_000, named(b"a"), b"a")
    again.may_be_stored = True
    assert await again.to(first) is True


async def test_parts_are_small_and_read_in_their_order(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shard_ids, "PART_BYTES", 500)
    monkeypatch.setattr(shard_ids, "READ_AT_ONCE", 2)
    world, (first, second) = await nodes(2)
    tenure = await first.take()
    sends = [sent(world, 1_000 + number, named(b"%d" % number), b"%d" % number) for number in range(20)]
    for number, one in enumerate(sends):
        assert await one.to(first) is False
        world.clock.step(1)
        await first.step()
        if number in (12, 17):
            await tenure.save()
    await second.take()
    assert second.tenure is not None
    assert len(second.tenure.log.ids._parts) > shard_ids.READ_AT_ONCE
    for one in sends:
        assert await one.to(second) is True


async def test_a_part_that_is_not_there_is_an_error_until_it_is_out_of_the_window() -> None:
    world, (first,) = await nodes(1)
    tenure = await first.take()
    assert await sent(world, 1_000, named(b"a"), b"a").to(first) is False
    ids = ShardIds(window_ms=WINDOW_MS, ids_max=10, all_count=lambda: 0)
    now_ms = world.clock.now_ms()
    with pytest.raises(Corrupt, match="no ids there"):
        await ids.load([(0, now_ms)], tenure.log.events, tenure.shard.queue, now_ms)
    await ids.load([(0, now_ms)], tenure.log.events, tenure.shard.queue, now_ms + WINDOW_MS + 1)
    assert ids.id_count == 0


async def test_a_send_that_ends_while_a_snapshot_is_written_is_in_a_part() -> None:
    """Its entry is behind what the snapshot covers, or its id in what it names, wherever the two meet."""
    for turns in range(30):
        world, (first, second) = await nodes(2)
        tenure = await first.take()
        await first.accept([(world.clock.now_ms() + 60_000, b"0")])
        await first.step()
        one = sent(world, 50_000, named(b"a"), b"a")
        sending = asyncio.create_task(one.to(first))
        for _ in range(turns):
            await asyncio.sleep(0)
        await first.step()
        await tenure.save()
        assert await sending is False
        await second.take()
        assert await one.to(second) is True, turns


async def test_two_snapshots_at_a_time_name_all_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    """As a node stops while it saves."""
    world, (first, second) = await nodes(2)
    tenure = await first.take()
    one, other = [sent(world, 50_000, named(name), name) for name in (b"a", b"b")]
    assert await one.to(first) is False
    await first.step()
    ids, go_on = tenure.log.ids, asyncio.Event()
    tell = ids.tell

    async def slow(put: Callable[[bytes], Awaitable[int]], before: int, now_ms: int) -> Sequence[NamedPart]:
        async def put_slowly(content: bytes) -> int:
            await go_on.wait()
            return await put(content)

        return await tell(put_slowly, before, now_ms)

    monkeypatch.setattr(ids, "tell", slow)
    saving = asyncio.create_task(tenure.save())
    await asyncio.sleep(0.01)
    monkeypatch.setattr(ids, "tell", tell)
    assert await other.to(first) is False
    await first.step()
    again = asyncio.create_task(tenure.save())
    await asyncio.sleep(0.01)
    go_on.set()
    await asyncio.gather(saving, again, return_exceptions=True)
    await second.take()
    assert (await one.to(second), await other.to(second)) == (True, True)


@pytest.mark.seeds(range(12), 300)
async def test_whatever_happens_no_send_is_accepted_twice(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Owners are replaced, killed in the middle of taking over, and go on as zombies; answers are lost."""
    monkeypatch.setattr(shard_log, "PART_BYTES", 400)
    monkeypatch.setattr(shard_ids, "PART_BYTES", 400)
    random = Random(seed)
    world, all_nodes = await nodes(3)
    await _take(all_nodes[0])
    sends: list[Sent] = []
    for number in range(120):
        node = random.choice(all_nodes)
        [event] = random.choices(
            ["new", "again", "run", "take", "killed", "save", "lost", "forget", "stranger"],
            [16, 24, 16, 5, 3, 4, 3, 1, 1],
        )
        if event == "new" and node.tenure is not None:
            count = random.randint(1, 3)
            values = [b"%d/%d" % (number, index) for index in range(count)]
            identity = named(*values) if random.random() < 0.7 else request(b"%d" % number, count)
            sends.append(sent(world, random.choice([1, 700, 3_000, 30_000]), identity, *values))
            await sends[-1].to(node)
        elif event == "again" and node.tenure is not None and sends:
            one = random.choice(sends[-15:])
            if world.clock.now_ms() - one.at_ms <= WINDOW_MS:
                await one.to(node)
        elif event == "run":
            world.clock.step(random.choice([0, 1, 300, 1_000, 2_500]))
            await node.step()
        elif event == "take":
            await _take(node)
        elif event == "killed":
            taking = asyncio.create_task(node.take())
            for _ in range(random.randrange(60)):
                await asyncio.sleep(0)
            taking.cancel()
            await asyncio.wait([taking])
            if not taking.cancelled():
                taking.exception()
            node.tenure = None
        elif event == "save" and node.tenure is not None:
            with suppress(StoreError, MoveConflict):
                await node.tenure.save()
        elif event == "lost":
            world.kafka.script.extend(random.choices(["lost", "dropped", 6], k=2))
        elif event == "forget":
            world.kafka.forget_producers()
        elif event == "stranger":
            world.kafka.log(TOPIC, NUMBER).append(strangers_batch())
        if not world.is_served:
            world.kafka.script.clear()
            await world.serve()
    world.kafka.script.clear()
    last = random.choice(all_nodes)
    await _take(last)
    for one in sends:
        if one.ids and world.clock.now_ms() - one.at_ms <= WINDOW_MS:
            assert await one.to(last) is True
    for _ in range(100):
        world.clock.step(500)
        await last.step()
        if not world.is_served:
            await world.serve()
        if not last.is_serving:
            await _take(last)
    told = await world.delivered()
    assert max(counts_of(told).values(), default=1) == 1, "twice"
    delivered = {decode_schedule_id(one.schedule_id): one.value for one in told}
    for one in sends:
        assert [delivered.get(id_) for id_ in one.ids] == (one.values if one.ids else []), "lost"


async def _take(node: TimerNode) -> None:
    """As a node does that tries again."""
    for _ in range(6):
        try:
            await node.take()
            return
        except (StoreError, MoveConflict):
            continue
    raise AssertionError("it cannot be read")
