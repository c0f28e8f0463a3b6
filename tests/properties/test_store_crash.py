"""Power cuts, kills and clean restarts at any moment, against a model of a few lines.

What must hold is in tests/properties/store_world.py (P1 to P3, P6, P7) and tests/properties/torture.py (P4, P5). More:
`make torture`, or MQ_TORTURE_STATES here; a failure names its seed, and what it was shrunk to can be put into `live`.
"""

from __future__ import annotations

import asyncio
import os
from collections import deque
from contextlib import suppress
from dataclasses import replace
from random import Random
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from store.config import StoreConfig
from store.data_format import raise_format
from store.index import file as file_index
from store.index.light import ROW, light_queue_of
from store.index.opening import ROCKSDB_DIRECTORY
from store.log.commit_log import CommitLog
from store.log.writer import Writer
from store.offline.index_rebuild import rebuild_index
from store.store import LIGHT_FORMAT
from store.types import Acks
from tests.properties.store_world import (
    SETTINGS,
    Call,
    Checkpoint,
    CreateTopic,
    DeleteTopic,
    Expire,
    GrowTopic,
    Kill,
    Model,
    Operation,
    PowerCut,
    Put,
    Reopen,
    Wait,
    World,
    some_operations,
)
from tests.properties.torture import (
    Died,
    Life,
    Round,
    Teller,
    as_python,
    available_cores,
    life_of,
    live,
    live_many,
    live_seed,
    recovered,
    shrunk,
)
from tests.simdb import rows_in, simulated_database
from tests.simdisk import SimDisk
from tests.store.kit import abandon

STATES = int(os.environ.get("MQ_TORTURE_STATES", "4000"))
PROCESSES = 1 if "PYTEST_XDIST_WORKER" in os.environ else available_cores()
"""Side by side with other files there is a process for each core already: those of its own would have to import all,
and live the next lives in vain when there were enough."""

FIRST_SEED = int(os.environ.get("MQ_TORTURE_SEED", "1"))
REBUILD_LIVES = int(os.environ.get("MQ_REBUILD_LIVES", "30"))


def test_no_power_cut_loses_or_invents_a_record() -> None:
    """The plain seeded loop: many states, one seed a life."""
    teller = Teller(FIRST_SEED)
    lives, count = live_many(FIRST_SEED, STATES, process_count=PROCESSES, told=teller)
    print(teller.line(lives, count))
    assert count.states >= STATES
    if STATES >= 1000:
        assert count.cuts_in_recovery > STATES / 20


def test_a_life_depends_on_nothing_but_its_seed() -> None:
    assert live_seed(3) == live_seed(3)
    assert life_of(3) == life_of(3) != life_of(4)


def test_indexes_are_synced_one_by_one_in_some_lives_and_together_in_others(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[int] = []

    def sync_all(disk: SimDisk, directory: object) -> None:
        calls.append(seed)
        original(disk, directory)  # type: ignore[arg-type]

    original = SimDisk.sync_all
    monkeypatch.setattr(SimDisk, "sync_all", sync_all)
    for seed in (1, 2, 3):
        live(life_of(seed))
    assert set(calls) == {3}
    assert file_index.SYNCED_EACH_MAX == 32, "the real setting is back"


def test_records_are_answered_while_a_flush_is_under_way_in_some_lives(monkeypatch: pytest.MonkeyPatch) -> None:
    answered: list[int] = []

    def answer(writer: Writer, *arguments: Any) -> None:
        if writer._flush is not None:
            answered.append(seed)
        original(writer, *arguments)

    original = Writer._answer
    monkeypatch.setattr(Writer, "_answer", answer)
    for seed in range(40):
        live(life_of(seed))
        if len(set(answered)) == 3:
            break
    assert len(set(answered)) == 3


def test_a_store_that_answers_before_its_fdatasync_dies_of_it_and_is_shrunk_to_little(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The torture can fail, and says why in a few operations."""

    def sync(log: CommitLog) -> None:
        log._dirty.clear()
        log.durable_position = log.end_position

    monkeypatch.setattr(CommitLog, "sync", sync)
    with pytest.raises(Died) as died:
        deque(map(live, map(life_of, range(1, 50))))
    least = shrunk(died.value)
    operations = [operation for one in least.life.rounds for operation in one.operations]
    assert isinstance(least.cause, type(died.value.cause))
    assert len(least.life.rounds) <= 3, least.life
    assert len(operations) <= 6, least.life
    with pytest.raises(Died):  # what is printed can be lived again
        live(eval(as_python(least.life), {**globals(), "Life": Life, "Round": Round}))  # noqa: S307


calls = st.builds(
    Call,
    st.lists(
        st.tuples(
            st.integers(0, 11), st.lists(st.integers(0, 4000), min_size=1, max_size=3).map(tuple)
        ),
        min_size=1,
        max_size=3,
    ).map(tuple),
    st.sampled_from(Acks),
)  # fmt: skip
histories = st.lists(
    st.one_of(
        st.builds(Put, st.lists(calls, min_size=1, max_size=3).map(tuple)),
        st.builds(Wait, st.sampled_from((0.5, 1.0))),
        st.builds(Checkpoint),
        st.builds(CreateTopic),
        st.builds(GrowTopic),
        st.builds(DeleteTopic),
        st.builds(Expire),
        st.builds(Reopen),
        st.builds(Kill),
        st.builds(PowerCut, st.integers(1, 30)),
    ),
    max_size=15,
)


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(history=histories, crash_seed=st.integers(0, 2**32))
def test_any_history_survives_a_power_cut(history: list[Operation], crash_seed: int) -> None:
    """The same against Hypothesis, which finds the odd histories and makes them short."""

    async def live_and_crash() -> None:
        rng = Random(crash_seed)
        world = World(SimDisk(), Model())
        await world.start(certain_count=0)
        await world.run([CreateTopic()])
        world, _ = await recovered(world.disk.crash(rng), world.model, rng)
        await world.run(history)
        for _ in range(3):
            await recovered(world.disk.crash(rng), world.model.copy(), rng)
            await abandon()

    asyncio.run(live_and_crash())


@pytest.mark.parametrize("seed", range(REBUILD_LIVES))
def test_an_index_of_light_queues_that_is_built_again_has_the_same_rows(seed: int) -> None:
    """Random sends, retention, kills and power cuts; then `mq index rebuild`, itself cut now and then and run again.
    The checks of every start are made as well (P10)."""
    with simulated_database():
        asyncio.run(_live_and_rebuild(Random(seed)))


async def _live_and_rebuild(rng: Random) -> None:
    config = replace(SETTINGS, index="rocksdb")
    world = World(SimDisk(), Model(), config)
    await world.start(certain_count=0)
    raise_format(config.root, world.disk, LIGHT_FORMAT)
    row_count = 0
    for number in range(4):
        operations = ([] if number else [CreateTopic()]) + some_operations(rng, rng.randrange(1, 60))
        light = tuple(tuple(rng.sample(range(8), rng.randrange(4))) for _ in range(3))
        send = Call(((rng.randrange(12), tuple(rng.choices(range(3000), k=3))),), Acks.FLUSHED, light)
        cut = [PowerCut(rng.randrange(1, 9)), Put((send,))] * rng.randrange(2)
        await world.run([*operations, Put((send,)), *cut])
        world, _ = await recovered(world.disk.crash(rng), world.model, rng, config)
        await world.store.close()
        disk = world.disk
        before = _light_rows(disk, config)
        row_count += len(before["light"])
        if rng.random() < 0.3:
            disk.cut_power_at(rng.randrange(1, 40))
        with suppress(OSError):
            rebuild_index(config, "rocksdb", files=disk)
        if disk.is_dark:
            disk = disk.crash(rng)
            rebuild_index(config, "rocksdb", files=disk)
        disk.cut_power_at(1 << 30)
        world = World(disk, world.model, config)
        await world.start(certain_count=world.model.durable_count)  # a checkpoint behind what a rebuild leaves to it
        await world.store.close()
        assert _light_rows(disk, config) == before
        await world.start(certain_count=world.model.durable_count)
    await abandon()
    assert row_count


def _light_rows(disk: SimDisk, config: StoreConfig) -> dict[str, dict[bytes, bytes]]:
    """The rows of the records that the log has, and the ends of their light queues."""
    log_start = min(map(int, disk.names_in(config.root / "commitlog")))
    families = rows_in(disk, config.root / ROCKSDB_DIRECTORY)
    rows = {key: value for key, value in families["light"].items() if ROW.unpack(value)[1] >= log_start}
    queues = {light_queue_of(key) for key in rows}
    return {"light": rows, "light_end": {key: end for key, end in families["light_end"].items() if key in queues}}
