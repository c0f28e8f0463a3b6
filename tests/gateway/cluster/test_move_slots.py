"""How many partitions move at a time: never more than there are slots, whoever dies, freezes or is told late."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack, aclosing, asynccontextmanager, suppress
from random import Random

import orjson
import pytest

from gateway.cluster import move_slots
from gateway.cluster.members import NODES
from gateway.cluster.memory import MemoryMetadata
from gateway.cluster.metadata import ABSENT, Metadata, OutcomeUnknown, Unavailable
from gateway.cluster.move_slots import SLOTS, MovesBusy, MoveSlots
from gateway.cluster.mover import PARTITIONS, MoveConflict, key_of
from gateway.cluster.record import PartitionState, decode
from tests.gateway.cluster.nodes import NAMES, Cluster
from tests.store.kit import abandon
from tests.waiting import PATIENCE_S


@pytest.fixture(autouse=True)
def short_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(move_slots, "WAIT_S", 0.05)
    monkeypatch.setattr(move_slots, "LOOK_INTERVAL_S", 0.001)


@asynccontextmanager
async def cluster(partitions: int = 1) -> AsyncIterator[Cluster]:
    made = Cluster(partitions)
    await made.start()
    try:
        yield made
    except BaseException:
        await abandon()
        raise
    await made.stop()


async def slot_keys(metadata: Metadata) -> list[str]:
    return sorted((await metadata.list(SLOTS)).values)


async def leave(metadata: Metadata, node: str) -> None:
    """The node's session ends."""
    found = await metadata.get(NODES + node)
    assert found is not None
    assert await metadata.compare_and_set({NODES + node: found.revision}, {NODES + node: None})


async def come(metadata: Metadata, node: str) -> None:
    assert await metadata.compare_and_set({NODES + node: ABSENT}, {NODES + node: b"{}"})


@pytest.mark.parametrize("count", [1, 3])
async def test_as_many_are_held_as_there_are_and_one_more_waits_and_is_refused(count: int) -> None:
    metadata = MemoryMetadata()
    await come(metadata, "n1")
    await come(metadata, "n2")
    one, other = MoveSlots(metadata, "n1", count), MoveSlots(metadata, "n2", count)
    async with AsyncExitStack() as held:
        for number in range(count):
            await held.enter_async_context((one, other)[number % 2].one(16, number))
        for slots in (one, other):
            with pytest.raises(MovesBusy, match=f"{count} partitions move at a time"):
                async with slots.one(16, count):
                    raise AssertionError
        waiting = asyncio.create_task(_hold_once(other))
        await asyncio.sleep(0.01)
        assert not waiting.done()
        await held.aclose()
        await waiting
    assert await slot_keys(metadata) == []


async def _hold_once(slots: MoveSlots) -> None:
    async with slots.one(16, 99):
        pass


async def test_the_slot_of_a_node_that_is_gone_is_anybodys_and_of_one_that_is_there_nobodys() -> None:
    metadata = MemoryMetadata()
    await come(metadata, "n2")
    dead, alive = MoveSlots(metadata, "n2", 1), MoveSlots(metadata, "n1", 1)
    async with dead.one(16, 0):
        with pytest.raises(MovesBusy):
            await _hold_once(alive)
        await leave(metadata, "n2")
        async with alive.one(16, 1):
            value = (await metadata.list(SLOTS)).values[f"{SLOTS}0"]
            assert orjson.loads(value.data) == {"v": 1, "node": "n1", "topic_id": 16, "partition": 1}
    assert await slot_keys(metadata) == []


class _ComesBack(MemoryMetadata):
    """A node is there again right after it was looked for."""

    async def get(self, key: str) -> object:  # type: ignore[override]
        found = await super().get(key)
        if key == f"{NODES}n2" and found is None:
            await come(self, "n2")
        return found


async def test_a_node_that_comes_back_between_the_look_and_the_change_keeps_its_slot() -> None:
    metadata = _ComesBack()
    async with MoveSlots(metadata, "n2", 1).one(16, 0) as slot:
        with pytest.raises(MovesBusy):
            await _hold_once(MoveSlots(metadata, "n1", 1))
        found = await MemoryMetadata.get(metadata, slot.key)
        assert found is not None
        assert found.revision == slot.revision


@pytest.mark.parametrize("is_begun", [False, True])
async def test_a_frozen_mover_whose_slot_was_taken_changes_nothing_and_goes_on_with_another_one(
    is_begun: bool,
) -> None:
    """Before the intent, and between the intent and the commit."""
    async with cluster(2) as made:
        topic_id, metadata = made.topic.topic_id, made.metadata
        await come(metadata, "n2")
        frozen = MoveSlots(metadata, "n2", 1)
        broker = made.nodes["n2" if not is_begun else "n1"].broker
        name = "leave_queue" if is_begun else "create_queue"
        waits, goes_on = asyncio.Event(), asyncio.Event()
        plain = getattr(broker, name)

        async def freeze(*args: object, **named: object) -> object:
            waits.set()
            await goes_on.wait()
            return await plain(*args, **named)

        setattr(broker, name, freeze)

        async def move() -> None:
            async with frozen.one(topic_id, 0) as slot:
                await made.nodes["n2"].mover.move(topic_id, 0, "n2", slot)

        moving = asyncio.create_task(move())
        await waits.wait()
        await leave(metadata, "n2")
        async with MoveSlots(metadata, "n1", 1).one(topic_id, 1) as slot:
            before = await metadata.get(key_of(topic_id, 0))
            goes_on.set()
            with pytest.raises(MoveConflict):
                await moving
            assert await metadata.get(key_of(topic_id, 0)) == before
            assert (before is not None and decode(before.data).state is PartitionState.SEALING) == is_begun
            assert (await metadata.list(SLOTS)).values[slot.key].revision == slot.revision
        await come(metadata, "n2")
        await move()
        found = await metadata.get(key_of(topic_id, 0))
        assert found is not None
        assert decode(found.data).owner == "n2"
        assert await slot_keys(metadata) == [], "given back with the commit"


async def test_three_nodes_that_move_at_once_never_have_more_partitions_between_intent_and_commit() -> None:
    count, partitions = 2, 9
    async with cluster(partitions) as made:
        topic_id, metadata = made.topic.topic_id, made.metadata
        for name in NAMES:
            await come(metadata, name)
        sealing: dict[str, bool] = {}
        most: list[int] = []

        async def look() -> None:
            async with aclosing(metadata.watch(PARTITIONS)) as watch:
                async for seen in watch:
                    for key, value in seen.values.items():
                        assert value is not None
                        sealing[key] = decode(value.data).state is PartitionState.SEALING
                    most.append(sum(sealing.values()))

        slots = {name: MoveSlots(metadata, name, count) for name in NAMES}

        async def move(partition: int) -> None:
            name, to = NAMES[partition % 3], NAMES[1 + partition % 2]
            while True:
                with suppress(MovesBusy):
                    async with slots[name].one(topic_id, partition) as slot:
                        await made.nodes[name].mover.move(topic_id, partition, to, slot)
                    return

        looking = asyncio.create_task(look())
        async with asyncio.timeout(PATIENCE_S):
            await asyncio.gather(*[move(partition) for partition in range(partitions)])
        looking.cancel()
        assert len(sealing) == partitions
        assert max(most) == count
        assert await slot_keys(metadata) == []


class _Lossy(MemoryMetadata):
    """Answers to changes of slots are lost, whether the changes were made or not; or none is made."""

    def __init__(self, seed: int) -> None:
        super().__init__()
        self.random: Random | None = Random(seed)

    async def compare_and_set(self, expected: Mapping[str, int], changes: Mapping[str, bytes | None]) -> int | None:
        if self.random is None or not any(key.startswith(SLOTS) for key in changes):
            return await super().compare_and_set(expected, changes)
        kind = self.random.randrange(4)
        if kind == 0:
            raise Unavailable("away")
        done = None if kind == 1 else await super().compare_and_set(expected, changes)
        if kind < 3:
            raise OutcomeUnknown("lost")
        return done


@pytest.mark.parametrize("seed", range(20))
async def test_what_could_not_be_given_back_is_given_back_later_and_a_slot_in_use_is_kept(seed: int) -> None:
    metadata = _Lossy(seed)
    await come(metadata, "n1")
    slots = MoveSlots(metadata, "n1", 2)
    for _ in range(10):
        with suppress(Unavailable, MovesBusy):
            await _hold_once(slots)
        await slots.tidy()
    metadata.random = None
    await slots.tidy()
    assert await slot_keys(metadata) == []
    async with slots.one(16, 0) as slot:
        await MoveSlots(metadata, "n2", 2).tidy()
        slots._tidy_until_s = 0.0
        await slots.tidy()
        assert await slot_keys(metadata) == [slot.key]
        await MoveSlots(metadata, "n1", 2).tidy()  # as the node does when it is started again
        assert await slot_keys(metadata) == []


async def test_giving_back_waits_for_no_move_that_waits_for_a_slot(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(move_slots, "WAIT_S", 2 * PATIENCE_S)
    metadata = MemoryMetadata()
    await come(metadata, "n2")
    slots = MoveSlots(metadata, "n1", 1)
    async with MoveSlots(metadata, "n2", 1).one(16, 0):
        waiting = asyncio.create_task(_hold_once(slots))
        await asyncio.sleep(0.01)
        await asyncio.wait_for(slots.tidy(), PATIENCE_S)
        assert not waiting.done()
    await waiting
    assert await slot_keys(metadata) == []


class _Late(MemoryMetadata):
    """The first change is made when its caller has given up."""

    late: tuple[Mapping[str, int], Mapping[str, bytes | None]] | None = None

    async def compare_and_set(self, expected: Mapping[str, int], changes: Mapping[str, bytes | None]) -> int | None:
        if self.late is None and f"{SLOTS}0" in changes:
            self.late = expected, changes
            raise OutcomeUnknown("no answer")
        return await super().compare_and_set(expected, changes)


async def test_a_slot_that_is_taken_long_after_its_taker_gave_up_is_given_back(monkeypatch: pytest.MonkeyPatch) -> None:
    metadata = _Late()
    slots = MoveSlots(metadata, "n1", 1)
    with pytest.raises(OutcomeUnknown):
        await _hold_once(slots)
    await slots.tidy()
    assert metadata.late is not None
    assert await metadata.compare_and_set(*metadata.late)
    await slots.tidy()
    assert await slot_keys(metadata) == [f"{SLOTS}0"], "it was looked a moment ago"
    slots._tidy_until_s -= move_slots.TIDY_INTERVAL_S
    await slots.tidy()
    assert await slot_keys(metadata) == []
