"""A shard of groups' events on a Kafka cluster in memory: what was acknowledged is read by whoever owns it next, and
what a former owner writes late is not.

Covers gateway.cluster.shard_log and `Mover.begin`.
"""

from __future__ import annotations

import asyncio
from random import Random

import pytest

from gateway.brokers.base import AnswerLost, Broker
from gateway.brokers.kafka import broker as kafka_broker
from gateway.brokers.kafka import writer as writing
from gateway.cluster import shard_log
from gateway.cluster.follower import ChainFollower
from gateway.cluster.mover import MoveConflict, UnknownBroker
from gateway.cluster.shard_log import SHARDS, shard_of
from gateway.routing.table import RouteTable
from store.errors import Overloaded, StoreError
from store.topics import OFFSETS
from tests.gateway.brokers.kafka.fake import strangers_batch
from tests.gateway.cluster.shard_world import NUMBER, Node, nodes

TOPIC = "mq.__offsets"


@pytest.fixture(autouse=True)
def hurry(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(writing, "PAUSE_S", 0.0)
    monkeypatch.setattr(writing, "PAUSE_MAX_S", 0.0)
    monkeypatch.setattr(writing, "GIVE_UP_LOOK_S", 0.0)


def test_groups_are_spread_over_the_shards_for_good() -> None:
    assert {shard_of(f"group-{number}") for number in range(200)} == set(range(SHARDS))
    assert [shard_of(name) for name in ("billing", "audit", "g0")] == [10, 9, 3]


async def test_a_new_owner_reads_what_was_acknowledged() -> None:
    kafka, (first, second) = nodes(["n1", "n2"])
    await first.take()
    assert kafka.plans[TOPIC].partitions == SHARDS
    assert kafka.plans[TOPIC].is_kept, "the defaults of the Kafka cluster expire nothing of it"
    await first.put("a", "b")
    await first.put("c")
    await second.take()
    assert second.state.keys() == {"a", "b", "c"}
    await second.put("d")
    await first.take()
    assert first.state.keys() == {"a", "b", "c", "d"}
    await first.end()
    await second.end()


async def test_a_takeover_reads_the_snapshot_and_what_is_behind_it_and_the_rest_is_given_up(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(shard_log, "PART_BYTES", 100)
    monkeypatch.setattr(kafka_broker, "START_FRESH_S", 0.0)
    kafka, (first, second) = nodes(["n1", "n2"])
    await first.take()
    for number in range(30):
        await first.put(str(number))
    await first.events.save()
    assert kafka.log(TOPIC, NUMBER).start > 20, "Kafka keeps no more than is needed"
    await first.put("behind")
    await second.take()
    assert second.state.keys() == {"behind", *map(str, range(30))}
    assert second.read_count < 30, "the parts of the snapshot, and one event"
    await second.events.save()
    await first.take()
    assert first.state == second.state
    await first.put("more")
    await first.events.save()
    trimmed = await first.mover.trim(OFFSETS.topic_id, NUMBER)
    assert len(trimmed.record.segments) == 1, "older tenures are off the chain"
    await first.take()
    assert first.state == {**second.state, "more": b"x"}
    await first.end()
    await second.end()


async def test_nothing_of_an_owner_that_was_replaced_counts_also_when_kafka_has_forgotten_its_fence() -> None:
    kafka, (first, second) = nodes(["n1", "n2"])
    await first.take()
    await first.put("a")
    await second.take()
    with pytest.raises(StoreError):
        await first.put("late")
    with pytest.raises(Overloaded):
        await first.put("later")
    await first.take()
    kafka.forget_producers()
    with pytest.raises(StoreError):
        await second.put("late too")
    assert "late" not in first.state
    with pytest.raises(StoreError):
        await first.put("in doubt")  # it finds what lies where its own should
    assert not first.shard.is_served
    await first.take()
    assert first.state.keys() == {"a"}
    await first.end()
    await second.end()


async def test_an_append_without_an_answer_gives_the_tenure_up_and_the_next_one_knows(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    kafka, (node,) = nodes(["n1"])
    await node.take()
    await node.put("a")
    monkeypatch.setattr(writing, "GIVE_UP_S", 0.02)
    kafka.script.extend(["lost"] + ["dropped"] * 100_000)
    with pytest.raises(AnswerLost):
        await node.put("perhaps")
    assert not node.shard.is_served
    assert node.doubts == 1
    with pytest.raises(Overloaded):
        await node.put("not stored")
    kafka.script.clear()
    await node.take()
    assert node.state.keys() == {"a", "perhaps"}
    await node.end()


async def test_a_snapshot_that_is_older_than_the_named_one_or_not_whole_is_not_named() -> None:
    kafka, (first, second) = nodes(["n1", "n2"])
    await first.take()
    await first.put("a")
    stale = first.snapshots
    await second.take()
    await second.put("b")
    await second.events.save()
    named = await second.snapshots.load()
    assert named is not None
    with pytest.raises(StoreError):
        await stale.save(1, lambda: b"of a former owner")
    assert await second.snapshots.load() == named
    kafka.is_away = True
    writing_off = asyncio.create_task(second.snapshots.save(named.next_offset + 1, lambda: b"half"))
    await asyncio.sleep(0.01)
    writing_off.cancel()
    await asyncio.wait([writing_off])
    kafka.is_away = False
    assert await second.snapshots.load() == named
    with pytest.raises(Overloaded):
        await second.snapshots.save(named.next_offset - 1, lambda: b"older")
    await first.end()
    await second.end()


async def test_one_of_two_begins_a_shard() -> None:
    _, (first, second) = nodes(["n1", "n2"])
    begun = await asyncio.gather(
        *(node.mover.begin(OFFSETS.topic_id, NUMBER, "kafka1") for node in (first, second)), return_exceptions=True
    )
    made = [one for one in begun if not isinstance(one, BaseException)]
    assert made
    assert all(isinstance(one, MoveConflict) for one in begun if isinstance(one, BaseException))
    for node in (first, second):
        assert (await node.mover.begin(OFFSETS.topic_id, NUMBER, "kafka1")).record == made[0].record


async def test_a_gateway_that_knows_no_kafka_cluster_knows_the_owner_of_a_shard(
    caplog: pytest.LogCaptureFixture,
) -> None:
    _, (node,) = nodes(["n1"])
    begun = await node.mover.begin(OFFSETS.topic_id, NUMBER, "kafka1")

    def unknown(name: str) -> Broker:
        raise UnknownBroker(name)

    follower = ChainFollower(node.metadata, RouteTable(), unknown)
    follower.note(OFFSETS.topic_id, NUMBER, begun)
    assert follower.system_owners == {(OFFSETS.topic_id, NUMBER): "n1"}
    assert not caplog.records


@pytest.mark.seeds(range(6), 200)
async def test_whatever_happens_what_was_acknowledged_is_there_and_what_was_refused_is_not(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shard_log, "PART_BYTES", 60)
    random = Random(seed)
    kafka, all_nodes = nodes(["n1", "n2", "n3"])
    acknowledged: set[str] = set()
    refused: set[str] = set()
    await all_nodes[0].take()
    begun = [all_nodes[0]]
    for number in range(80):
        node = random.choice(begun)
        match random.choices(["put", "take", "save", "forget", "stranger", "lost"], [12, 3, 2, 1, 1, 2])[0]:
            case "put":
                await _put(node, f"{number}", acknowledged, refused)
            case "take":
                await _take(taker := random.choice(all_nodes))
                begun = [*{*begun, taker}]
                begun.sort(key=lambda one: one.name)
            case "save":
                await node.events.save()
            case "forget":
                kafka.forget_producers()
            case "stranger":
                kafka.log(TOPIC, NUMBER).append(strangers_batch())
            case "lost":
                kafka.script.extend(random.choices(["lost", "dropped", 6], k=2))
    kafka.script.clear()
    last = random.choice(all_nodes)
    await _take(last)
    assert acknowledged <= last.state.keys()
    assert not refused & last.state.keys()
    for node in all_nodes:
        await node.end()


async def _put(node: Node, key: str, acknowledged: set[str], refused: set[str]) -> None:
    try:
        await node.put(key)
    except AnswerLost:
        pass
    except Overloaded:
        refused.add(key)
    else:
        acknowledged.add(key)


async def _take(node: Node) -> None:
    """As a node does that tries again: another one may have given up meanwhile what it was about to read."""
    for _ in range(5):
        try:
            await node.take()
            return
        except (StoreError, MoveConflict):
            continue
    raise AssertionError("it cannot be read")
