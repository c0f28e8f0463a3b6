"""gateway/main/loop_watch.py"""

from __future__ import annotations

import asyncio
import logging
import sys
import threading
import time
import weakref
from collections.abc import Callable
from types import SimpleNamespace

import pytest

from gateway.main.loop_watch import BOUNDS_S, HELD_S, IDLE_BEAT_S, IDLE_BEATS, Held, LoopWatch, doing
from gateway.surfaces.http import conditions
from tests.waiting import PATIENCE_S, until

LONG_S = 3 * HELD_S


def burn(cpu_s: float = LONG_S) -> None:
    """Use the CPU for so long."""
    end_s = time.thread_time() + cpu_s
    while time.thread_time() < end_s:
        pass


def counted(watch: LoopWatch, cause: str) -> tuple[float, float]:
    """Turns, and seconds of all of them."""
    (metric,) = watch.collect()
    found = {
        sample.name: sample.value
        for sample in metric.samples
        if sample.labels["cause"] == cause and sample.labels.get("le", "+Inf") == "+Inf"
    }
    return found["mq_loop_held_seconds_bucket"], found["mq_loop_held_seconds_sum"]


async def watched(work: Callable[[], object], watch: LoopWatch) -> None:
    """Do this in one turn of a watched loop."""
    with watch.running():
        await asyncio.sleep(0.03)
        work()
        await asyncio.sleep(0.03)


async def test_a_turn_that_works_too_long_is_counted_and_told() -> None:
    told: list[Held] = []
    watch = LoopWatch(on_work=told.append)
    await watched(burn, watch)
    count, sum_s = counted(watch, "work")
    assert count == len(told) == 1
    assert sum_s >= LONG_S - 0.02
    assert told[0].cpu_s >= LONG_S
    assert "(burn)" not in told[0].by  # a test is none of our packages: what is named is the server's own line


async def test_a_turn_that_only_waits_is_told_apart() -> None:
    told: list[Held] = []
    watch = LoopWatch(on_work=told.append)
    await watched(lambda: threading.Event().wait(LONG_S), watch)
    assert counted(watch, "wait")[0] >= 1
    assert counted(watch, "work") == (0, 0.0)
    assert told == []


async def test_short_turns_are_no_work_however_many() -> None:
    watch = LoopWatch()
    with watch.running():
        for _ in range(20):
            burn(0.01)
            await asyncio.sleep(0)
    assert counted(watch, "work") == (0, 0.0)


async def test_an_idle_loop_is_woken_less_often_and_its_long_turns_are_found_all_the_same() -> None:
    for phase in range(4):  # of the time between two beats, in which the turn begins
        told: list[Held] = []
        watch = LoopWatch(beat_s=0.002, on_work=told.append)
        with watch.running():
            assert watch.beat_s == 0.002
            await until(lambda watch=watch: watch.beat_s == IDLE_BEAT_S)  # type: ignore[misc]
            assert watch._idle_count >= IDLE_BEATS
            burn(IDLE_BEAT_S / 10)  # little work leaves it so
            await asyncio.sleep(IDLE_BEAT_S + phase * IDLE_BEAT_S / 4)
            assert watch.beat_s == IDLE_BEAT_S
            burn(2 * HELD_S)
            await until(lambda told=told: bool(told))  # type: ignore[misc]
            assert watch.beat_s == 0.002
        assert told[0].length_s >= 2 * HELD_S - 0.02
        assert counted(watch, "work")[0] == 1


async def test_what_is_done_now_and_then_does_not_keep_a_loop_from_being_idle() -> None:
    beat_s = 0.002
    watch = LoopWatch(beat_s=beat_s)
    with watch.running():
        async with asyncio.timeout(30):
            while watch.beat_s != IDLE_BEAT_S:
                burn(2 * beat_s)
                await asyncio.sleep(IDLE_BEATS * beat_s / 2)  # it is never idle for IDLE_BEATS behind each other
            while watch.beat_s != beat_s:  # all the time does
                burn(2 * beat_s)
                await asyncio.sleep(0)


async def test_a_line_names_the_route_and_comes_now_and_then(caplog: pytest.LogCaptureFixture) -> None:
    row = SimpleNamespace(name="produce")

    async def endpoint(request: object) -> object:
        if row.name:  # so that it is one of its variables
            burn()
        return request

    with caplog.at_level(logging.WARNING), LoopWatch().running():
        for _ in range(3):
            await asyncio.sleep(0.03)
            await endpoint(None)
        await asyncio.sleep(0.03)
    lines = [record.getMessage() for record in caplog.records if record.name == "gateway.main.loop_watch"]
    assert len(lines) == 1, lines
    assert "event loop held ms=" in lines[0]
    assert "by=route produce" in lines[0]
    assert lines[0].endswith("count=1")


def test_a_stack_is_named_by_its_innermost_line_of_ours() -> None:
    seen: list[str] = []

    class Spy:
        def __contains__(self, _: object) -> bool:
            seen.append(doing(sys._getframe()))
            return False

    def _take_one(op: object) -> None:
        conditions.expected_offset(SimpleNamespace(headers=Spy()))  # type: ignore[arg-type]

    for op, purpose in (("ack", "socket op ack "), ("made up\n", "socket "), (5, "socket ")):
        _take_one(op)
        assert seen.pop().startswith(f"{purpose}gateway/surfaces/http/conditions.py:")
    assert doing(sys._getframe()) == "outside of this program"


class Large:
    """What a function has while it works."""


async def test_what_a_long_turn_had_is_let_go_of_with_it() -> None:
    known: list[weakref.ref[Large]] = []

    def work() -> None:
        large = Large()
        known.append(weakref.ref(large))
        burn()

    watch = LoopWatch(on_work=lambda _: None)
    with watch.running():
        await asyncio.sleep(0.03)
        work()
        watch._held_s = 10 * PATIENCE_S  # it looks at no other turn
        await until(lambda: known[0]() is None, pause_s=0.001)


async def test_it_ends_with_its_block() -> None:
    watch = LoopWatch(on_work=lambda _: None)
    async with asyncio.timeout(PATIENCE_S):
        await watched(lambda: None, watch)
    burn()
    await asyncio.sleep(0.03)
    assert counted(watch, "work") == (0, 0.0)
    assert sorted(BOUNDS_S) == list(BOUNDS_S)
