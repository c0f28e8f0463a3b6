"""gateway/main/garbage.py: no look of the collector at more than what came lately, and nothing leaks for it."""

from __future__ import annotations

import gc
import sys
from collections.abc import Iterator

import pytest

from gateway.main import garbage
from gateway.main.garbage import GROWN_BUSY_MIN, GROWN_IDLE, Thawing, calm_collector, collector_off


class Cycle:
    """Garbage that no reference count frees."""

    alive = 0

    def __init__(self) -> None:
        self.me = self
        Cycle.alive += 1

    def __del__(self) -> None:
        Cycle.alive -= 1


@pytest.fixture
def calm(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    thresholds, callbacks = gc.get_threshold(), gc.callbacks[:]
    monkeypatch.setattr(garbage, "ALLOCATIONS", 1_000)
    Cycle.alive = 0
    calm_collector()
    yield
    gc.callbacks[:] = callbacks
    gc.unfreeze()
    gc.set_threshold(*thresholds)
    gc.collect()
    gc.freeze()  # as tests/conftest.py did it


@pytest.mark.usefixtures("calm")
def test_the_collector_never_looks_at_what_has_stayed_for_long() -> None:
    largest = 0

    def look(phase: str, info: dict[str, int]) -> None:
        nonlocal largest
        if phase == "start":
            largest = max(largest, sum(len(gc.get_objects(number)) for number in range(info["generation"] + 1)))

    gc.callbacks.insert(0, look)
    kept = [[number] for number in range(50_000)]
    assert 1_000 < largest < 1_500, "each object once"
    assert gc.get_freeze_count() > len(kept) - 1_500


@pytest.mark.usefixtures("calm")
def test_garbage_goes_soon_and_what_was_frozen_when_there_is_time() -> None:
    for _ in range(20_000):
        Cycle()
    assert Cycle.alive < 5_000
    thawing = Thawing()
    kept = [Cycle() for _ in range(max(GROWN_IDLE, gc.get_freeze_count() // 10) + 5_000)]
    count = Cycle.alive
    kept.clear()
    gc.collect()
    assert Cycle.alive > count - 10_000, "it is frozen"
    assert count > GROWN_IDLE
    assert not thawing.look(is_idle=False)
    assert thawing.look(is_idle=True)
    assert Cycle.alive == 0
    assert not thawing.look(is_idle=True)


@pytest.mark.usefixtures("calm")
def test_a_busy_server_thaws_when_there_is_twice_as_much(monkeypatch: pytest.MonkeyPatch) -> None:
    count = 3 * GROWN_BUSY_MIN
    monkeypatch.setattr(gc, "get_freeze_count", lambda: count)
    block_count = 0
    monkeypatch.setattr(sys, "getallocatedblocks", lambda: block_count)
    monkeypatch.setattr(garbage._Came, "count", 0)
    monkeypatch.setattr(gc, "unfreeze", lambda: None)
    monkeypatch.setattr(gc, "freeze", lambda: None)
    thawing = Thawing()
    count, block_count, garbage._Came.count = 6 * GROWN_BUSY_MIN - 1, 3 * GROWN_BUSY_MIN, 3 * GROWN_BUSY_MIN
    assert not thawing.look(is_idle=False)
    count, block_count, garbage._Came.count = count + 1, 6 * GROWN_BUSY_MIN, 6 * GROWN_BUSY_MIN
    assert thawing.look(is_idle=False)


@pytest.mark.usefixtures("calm")
def test_what_replaces_what_was_frozen_is_looked_at_in_time() -> None:
    waiting = [[number] for number in range(5_000)]
    for _ in range(4):
        garbage.look_at_young()
        assert len(gc.get_objects(0)) < 1_000
        for number in range(900):  # each one that comes takes a frozen one's place: the collector's count stays
            waiting[number] = [number]
    garbage.look_at_young()
    assert len(gc.get_objects(0)) + len(gc.get_objects(1)) < 1_000


def test_what_is_frozen_is_not_counted_where_no_collector_is_calm(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where a server is part of another program: a million objects that are none of its own take 100 ms to count."""
    counted: list[None] = []
    monkeypatch.setattr(gc, "callbacks", [])  # another test of this process may have run a server that left its own
    monkeypatch.setattr(gc, "get_freeze_count", lambda: counted.append(None) or 0)
    assert not Thawing().look(is_idle=True)
    assert counted == []


@pytest.mark.usefixtures("calm")
def test_what_is_frozen_is_not_counted_while_memory_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    block_count, counted = 40 * GROWN_BUSY_MIN, 0

    def count() -> int:
        nonlocal counted
        counted += 1
        return 30 * GROWN_BUSY_MIN  # to count so many takes three seconds

    monkeypatch.setattr(gc, "get_freeze_count", count)
    monkeypatch.setattr(sys, "getallocatedblocks", lambda: block_count)
    monkeypatch.setattr(garbage._Came, "count", 0)
    thawing = Thawing()
    for step in (0, -5 * GROWN_IDLE, 3 * GROWN_IDLE, GROWN_IDLE):
        block_count += step
        assert not thawing.look(is_idle=True)
        assert not thawing.look(is_idle=False)
    assert counted == 1, "at the beginning"
    block_count += 3 * GROWN_BUSY_MIN
    garbage._Came.count += 3 * GROWN_BUSY_MIN
    assert not thawing.look(is_idle=True)
    assert counted == 2
    assert not thawing.look(is_idle=True)
    assert counted == 2, "it is known that nothing was frozen"


@pytest.mark.parametrize("was_enabled", [True, False])
def test_the_collector_is_off_within_the_block_and_then_as_before(was_enabled: bool) -> None:
    before = gc.isenabled()
    try:
        (gc.enable if was_enabled else gc.disable)()
        with collector_off():
            assert not gc.isenabled()
        assert gc.isenabled() is was_enabled
    finally:
        (gc.enable if before else gc.disable)()


@pytest.mark.usefixtures("calm")
def test_what_is_frozen_is_not_counted_for_blocks_that_are_no_objects(monkeypatch: pytest.MonkeyPatch) -> None:
    """15,000 sockets: a million blocks came, and for each million of them the loop stood still for what is frozen to be
    counted."""
    monkeypatch.setattr(garbage, "GROWN_BUSY_MIN", 20_000)
    counted = 0
    count_frozen = gc.get_freeze_count

    def count() -> int:
        nonlocal counted
        counted += 1
        return 10_000

    monkeypatch.setattr(gc, "get_freeze_count", count)
    thawing = Thawing()
    kept = [(b"%d" % number) * 2 for number in range(50_000)]
    garbage.look_at_young()
    assert not thawing.look(is_idle=False)
    assert counted == 1, "at the beginning"
    before = count_frozen()
    objects = [[number] for number in kept]
    garbage.look_at_young()
    assert count_frozen() - before > 20_000
    assert not thawing.look(is_idle=False)
    assert counted == 2, "so many objects there may be"
    del objects
