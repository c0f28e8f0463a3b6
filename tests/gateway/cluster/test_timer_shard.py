"""A shard of delayed records on a Kafka cluster in memory: each is delivered once, and not early, whoever owns the
shard, stops, dies or goes on as a zombie.

Covers gateway.cluster.timer_shard, timer.saved and gateway.main.timer_shards.Tenure.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import suppress
from random import Random

import pytest

from gateway.brokers.base import AnswerLost
from gateway.brokers.kafka.codes import MESSAGE_TOO_LARGE, Outcome
from gateway.cluster import shard_log
from gateway.cluster.mover import MoveConflict
from gateway.cluster.timer_shard import shard_at
from gateway.routing.delivery import RoutedPartitions
from store.errors import Overloaded, StoreError
from store.types import Acks
from tests.gateway.brokers.kafka.fake import not_paused, strangers_batch
from tests.gateway.cluster.timer_world import (
    NUMBER,
    WINDOW_MS,
    Delivered,
    TimerNode,
    World,
    counts_of,
    ids_of,
    nodes,
)
from tests.timer.fakes import keyed_append
from timer.changes import Standing
from timer.errors import ScheduleKeyTaken
from timer.ports import Due
from timer.schedule import ScheduleId, decode_schedule_id

TOPIC = "mq.__timer"
QUICK = [*range(10), 245, 312]
"""The last two find a snapshot that forgets claims."""


@pytest.fixture(autouse=True)
def hurry(monkeypatch: pytest.MonkeyPatch) -> None:
    not_paused(monkeypatch)


def later(world: World, *after_ms: int) -> list[tuple[int, bytes]]:
    return [(world.clock.now_ms() + ms, b"%d" % ms) for ms in after_ms]


async def test_what_one_owner_accepted_the_next_one_delivers_at_its_time() -> None:
    world, (first, second) = await nodes(2)
    await first.take()
    accepted = later(world, 1_000, 5_000, 90_000)
    answer = await first.accept(accepted)
    assert shard_at(answer.position) == NUMBER
    world.clock.step(1_000)
    await first.step()
    assert counts_of(await world.delivered()) == {b"1000": 1}
    await second.take()
    for _ in range(200):
        world.clock.step(500)
        await second.step()
        await first.step()  # it knows of nothing
    told = await world.delivered()
    assert counts_of(told) == {b"1000": 1, b"5000": 1, b"90000": 1}
    assert [one.schedule_id for one in told] == [one.text for one in ids_of(answer, accepted)], "rolls keep the id"
    assert all(0 <= one.stored_ms - one.due_ms < 1000 for one in told)


async def test_a_schedule_is_found_cancelled_and_moved_by_its_id_at_whichever_owner() -> None:
    world, (first, second) = await nodes(2)
    await first.take()
    accepted = later(world, 10_000, 11_000, 12_000)
    kept, moved, gone = ids_of(await first.accept(accepted), accepted)
    tenure = await second.take()
    await second.step()
    assert (await tenure.timer.cancel(gone)).standing is Standing.PENDING
    await second.step()
    outcome = await tenure.timer.move(moved, world.clock.now_ms() + 30_000)
    tenure = await first.take()
    await first.step()
    assert (await tenure.timer.find(gone))[0] is Standing.UNKNOWN
    assert (await tenure.timer.find(moved))[0] is Standing.UNKNOWN
    assert (await tenure.timer.find(outcome.schedule))[0] is Standing.PENDING
    assert (await tenure.timer.cancel(gone)).standing is Standing.UNKNOWN
    for _ in range(60):
        world.clock.step(1_000)
        await first.step()
    assert [decode_schedule_id(one.schedule_id) for one in await world.delivered()] == [kept, outcome.schedule]
    assert (await tenure.timer.cancel(kept)).standing is Standing.DELIVERED


async def test_a_takeover_reads_the_snapshot_and_what_is_behind_it_and_the_rest_is_given_up(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(shard_log, "PART_BYTES", 300)
    world, (first, second) = await nodes(2)
    tenure = await first.take()
    for number in range(50):
        await first.accept(later(world, 100 + number))
    keyed = later(world, 15_000)
    await first.accept(keyed)
    world.clock.step(200)
    await first.step()
    world.clock.step(2_000)
    await first.step()
    await first.step()
    await tenure.save()
    log = world.kafka.log(TOPIC, NUMBER)
    assert log.start > 40, "the bodies of what was delivered are given up"
    await first.accept(later(world, 16_000))
    before = len(world.kafka.fetches)
    taken = await second.take()
    assert taken.timer.recovery_outcome == "saved"
    await second.step()
    assert taken.timer.pending_count == 2
    assert len(world.kafka.fetches) - before < 30
    for _ in range(40):
        world.clock.step(1_000)
        await second.step()
    assert counts_of(await world.delivered()) == {b"%d" % (100 + n): 1 for n in range(50)} | {b"15000": 1, b"16000": 1}


async def test_what_a_zombie_was_about_to_deliver_is_not_delivered_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    """It has claimed, and is frozen before it sends."""
    world, (first, second) = await nodes(2)
    go_on, is_frozen = asyncio.Event(), asyncio.Event()
    deliver = RoutedPartitions.deliver

    async def frozen(self: RoutedPartitions, dues: Sequence[Due]) -> list[Sequence[int] | None]:
        is_frozen.set()
        await go_on.wait()
        return await deliver(self, dues)

    await first.take()
    await first.accept(later(world, 1_000))
    await first.step()
    monkeypatch.setattr(RoutedPartitions, "deliver", frozen)
    world.clock.step(1_000)
    zombie = asyncio.create_task(first.step())
    await is_frozen.wait()
    monkeypatch.setattr(RoutedPartitions, "deliver", deliver)
    taken = await second.take()
    await second.step()
    assert counts_of(await world.delivered()) == {b"1000": 1}
    assert taken.timer.metrics.fired_count == 1
    go_on.set()
    await zombie
    assert counts_of(await world.delivered()) == {b"1000": 1}
    with pytest.raises(AnswerLost):
        await first.accept(later(world, 1))
    world.clock.step(1_000)
    await first.step()
    assert counts_of(await world.delivered()) == {b"1000": 1}


async def test_a_claim_that_is_older_than_ids_are_known_is_looked_for_in_its_partition() -> None:
    """All nodes were away for long after one had delivered, and before it could say so."""
    world, (first, second) = await nodes(2)
    await first.take()
    await first.accept(later(world, 1_000, 1_001))
    world.clock.step(1_001)
    await first.step()
    assert len(await world.delivered()) == 2
    world.clock.step(10 * WINDOW_MS)
    world.target._repeats.prune(world.clock.now_ms())
    await second.take()
    await second.step()
    assert counts_of(await world.delivered()) == {b"1000": 1, b"1001": 1}
    assert second.tenure is not None
    assert second.tenure.timer.metrics.fired_count == 2, "as it found them"


async def test_what_was_claimed_cannot_be_cancelled_before_it_is_known_what_became_of_it() -> None:
    world, (first, second) = await nodes(2)
    await first.take()
    accepted = later(world, 1_000)
    [schedule] = ids_of(await first.accept(accepted), accepted)
    world.clock.step(1_000)
    await first.step()
    tenure = await second.take()
    while await tenure.timer.intake_step():
        pass
    with pytest.raises(Overloaded, match="being delivered"):
        await tenure.timer.cancel(schedule)
    await second.step()
    assert (await tenure.timer.cancel(schedule)).standing is Standing.DELIVERED


async def test_nothing_waits_behind_a_record_that_its_kafka_topic_refuses_and_it_can_be_cancelled(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Each refusal costs the partition its tenure: so it is seldom tried."""
    world, (first,) = await nodes(1)
    produced, refused = world.kafka._produced, 0

    def picky(topic: str, partition: int, batch: bytes) -> Outcome:
        nonlocal refused
        if topic == "mq.orders" and b"large" in batch:
            refused += 1
            return MESSAGE_TOO_LARGE
        return produced(topic, partition, batch)

    monkeypatch.setattr(world.kafka, "_produced", picky)
    tenure = await first.take()
    accepted = later(world, *[1_000] * 21)
    accepted = [(due_ms, b"large" if number == 13 else b"%d" % number) for number, (due_ms, _) in enumerate(accepted)]
    ids = ids_of(await first.accept(accepted), accepted)
    world.clock.step(1_000)
    for _ in range(80):
        await first.step()
        if not world.is_served:
            await world.serve()
    assert [one.value for one in await world.delivered()] == [b"%d" % number for number in range(21) if number != 13]
    assert refused < 8, "by halves, then not before a minute is over"
    assert tenure.timer.pending_count == 1
    assert (await tenure.timer.cancel(ids[13])).standing is Standing.PENDING, "it is known not to be there"
    await first.step()
    assert tenure.timer.pending_count == 0


async def test_a_schedule_key_is_taken_also_at_the_next_owner() -> None:
    world, (first, second) = await nodes(2)
    tenure = await first.take()
    due_ms = world.clock.now_ms() + 9_000
    append = keyed_append([(due_ms, b"1", b"a"), (due_ms, b"2", b"b")])
    await tenure.timer.schedule(append, acks=Acks.FLUSHED, keys=[b"a", b"b"])
    await first.step()
    await tenure.save()
    third = keyed_append([(due_ms, b"3", b"c")])
    await tenure.timer.schedule(third, acks=Acks.FLUSHED, keys=[b"c"])
    taken = await second.take()
    await second.step()
    for key in (b"a", b"b", b"c"):
        with pytest.raises(ScheduleKeyTaken):
            await taken.timer.schedule(keyed_append([(due_ms, b"4", key)]), acks=Acks.FLUSHED, keys=[key])


class History:
    """What was answered: by value, the times at which each schedule may be delivered; None: at none."""

    def __init__(self) -> None:
        self.due_ms: dict[bytes, set[int]] = {}
        self.surely: set[bytes] = set()  # delivered once, else at most once
        self.never: set[bytes] = set()
        self.ids: dict[bytes, ScheduleId] = {}

    def check(self, told: Sequence[Delivered]) -> None:
        counts = counts_of(told)
        assert max(counts.values(), default=1) == 1, "twice"
        assert not self.surely - counts.keys(), "lost"
        assert not self.never & counts.keys(), "cancelled"
        for one in told:
            assert one.due_ms in self.due_ms[one.value]
            assert one.stored_ms >= one.due_ms, "early"


@pytest.mark.seeds(QUICK, 500)
async def test_whatever_happens_each_is_delivered_once_and_not_early(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shard_log, "PART_BYTES", 400)
    random = Random(seed)
    world, all_nodes = await nodes(3)
    history = History()
    await all_nodes[0].take()
    frozen: dict[TimerNode, asyncio.Event] = {}  # between a claim and its delivery
    stepping: dict[TimerNode, asyncio.Task[None]] = {}
    freezes: TimerNode | None = None
    deliver = RoutedPartitions.deliver

    async def delivering(self: RoutedPartitions, dues: Sequence[Due]) -> list[Sequence[int] | None]:
        nonlocal freezes
        if freezes is not None and stepping.get(freezes) is asyncio.current_task():
            frozen[freezes] = go_on = asyncio.Event()
            freezes = None
            await go_on.wait()
        return await deliver(self, dues)

    monkeypatch.setattr(RoutedPartitions, "deliver", delivering)

    async def step(node: TimerNode) -> None:
        """One that is frozen goes on with what it was doing when it is woken."""
        stepping[node] = task = asyncio.create_task(node.step())
        while not task.done() and node not in frozen:  # noqa: ASYNC110
            await asyncio.sleep(0)

    async def wake(node: TimerNode) -> None:
        frozen.pop(node).set()
        await stepping[node]

    number = 0
    for _ in range(70):
        node = random.choice(all_nodes)
        event = random.choices(
            ["accept", "run", "take", "stop", "save", "change", "forget", "stranger", "lost", "freeze", "wake", "long"],
            [14, 24, 5, 3, 3, 6, 1, 1, 2, 2, 2, 1],
        )[0]
        if node in frozen and event not in ("wake", "long"):
            if event == "take":  # it is killed, and started again
                stepping[node].cancel()
                del frozen[node]
                await _take(node)
            continue
        if event == "accept" and node.tenure is not None:
            delays_ms = random.choices([0, 1, 500, 1500, 4000, 9000, 30_000, 70_000], k=random.randint(1, 4))
            schedules = []
            for delay_ms in delays_ms:
                schedules.append((world.clock.now_ms() + delay_ms + 1, b"%d" % number))
                number += 1
            for due_ms, value in schedules:
                history.due_ms[value] = {due_ms}
            try:
                answer = await node.accept(schedules)
            except AnswerLost:
                pass
            except Overloaded:
                history.never.update(value for _, value in schedules)
            else:
                history.surely.update(value for _, value in schedules)
                history.ids.update(
                    (value, id_) for (_, value), id_ in zip(schedules, ids_of(answer, schedules), strict=True)
                )
        elif event == "run":
            world.clock.step(random.choice([0, 1, 300, 1000, 2500]))
            await step(node)
        elif event == "take":
            await _take(node)
        elif event == "stop" and node.is_serving:
            assert node.tenure is not None
            with suppress(StoreError, MoveConflict):
                await node.tenure.save()
                await node.tenure.end()
            node.tenure = None
            await _take(random.choice([one for one in all_nodes if one not in frozen]))
        elif event == "save" and node.tenure is not None:
            with suppress(StoreError, MoveConflict):
                await node.tenure.save()
        elif event == "change" and node.tenure is not None and history.ids:
            await _change(node, random, world, history)
        elif event == "forget":
            world.kafka.forget_producers()
        elif event == "stranger":
            world.kafka.log(TOPIC, NUMBER).append(strangers_batch())
        elif event == "lost":
            world.kafka.script.extend(random.choices(["lost", "dropped", 6], k=2))
        elif event == "freeze":
            freezes = node
        elif event == "wake" and node in frozen:
            await wake(node)
        elif event == "long":  # nobody wakes up in the middle of a send after so long
            for one in frozen:
                stepping[one].cancel()
            frozen.clear()
            for one in all_nodes:
                one.tenure = None
            world.clock.step(random.choice([WINDOW_MS // 2, 3 * WINDOW_MS]))
            world.target._repeats.prune(world.clock.now_ms())
            await _take(random.choice(all_nodes))
        if not world.is_served:
            world.kafka.script.clear()
            await world.serve()
    world.kafka.script.clear()
    freezes = None
    for node in list(frozen):
        await wake(node)
    last = random.choice(all_nodes)
    await _take(last)
    for _ in range(180):
        world.clock.step(500)
        await last.step()
        if not world.is_served:
            await world.serve()
        if not last.is_serving:
            await _take(last)
    history.check(await world.delivered())


async def _take(node: TimerNode) -> None:
    """As a node does that tries again: another one may have given up meanwhile what it was about to read."""
    for _ in range(6):
        try:
            await node.take()
            return
        except (StoreError, MoveConflict):
            continue
    raise AssertionError("it cannot be read")


async def _change(node: TimerNode, random: Random, world: World, history: History) -> None:
    assert node.tenure is not None
    value = random.choice(sorted(history.ids))
    schedule = history.ids[value]
    due_ms = world.clock.now_ms() + random.choice([100, 3_000, 40_000])
    is_cancel = random.random() < 0.5
    timer = node.tenure.timer
    for _ in range(20):  # else it waits for the intake
        if not await timer.intake_step():
            break
    if timer.intake_lag_count:
        return
    try:
        outcome = await (timer.cancel(schedule) if is_cancel else timer.move(schedule, due_ms))
    except AnswerLost:
        del history.ids[value]
        if is_cancel:
            history.surely.discard(value)
        else:
            history.due_ms[value].add(due_ms)
    except StoreError:
        pass
    else:
        if outcome.standing is Standing.PENDING:
            del history.ids[value]
            if is_cancel:
                history.surely.discard(value)
                history.never.add(value)
            else:
                history.due_ms[value] = {due_ms}
                history.ids[value] = outcome.schedule
