"""Curves: what is missing never passes for a number, and the longest turn is read from a histogram."""

from __future__ import annotations

import asyncio
import time

from prometheus_client import CollectorRegistry, generate_latest

from gateway.main.loop_watch import LoopWatch
from loadtest.attack.curves import Point, longest_turn_ms, loop_turns, middle, thinned, worst
from loadtest.attack.run import _longest

INFINITE = float("inf")


def test_the_worst_is_of_the_while_that_is_asked_for() -> None:
    points = [Point(0, 9), Point(1, 2), Point(2, 5), Point(3, 7)]
    assert worst(points, 1, 2) == 5
    assert worst(points, 4, 5) is None


def test_a_missing_point_is_no_number() -> None:
    assert worst([Point(1, 2), Point(2, None)], 0, 9) is None


def test_thinning_keeps_the_worst_of_each_second_and_a_gap_is_worse() -> None:
    points = [Point(0.1, 1), Point(0.5, 3), Point(0.9, 2), Point(1.1, 5), Point(1.2, None), Point(1.3, 6)]
    assert thinned(points) == [Point(0.5, 3), Point(1.2, None)]


async def test_turns_are_read_from_the_metrics_of_the_server() -> None:
    watch = LoopWatch(on_work=lambda _: None)
    registry = CollectorRegistry()
    registry.register(watch)
    assert set((loop_turns(generate_latest(registry).decode()) or {}).values()) == {0}
    with watch.running():
        await asyncio.sleep(0.03)
        end_s = time.thread_time() + 0.15
        while time.thread_time() < end_s:
            pass
        await asyncio.sleep(0.03)
    turns = loop_turns(generate_latest(registry).decode())
    assert turns is not None
    assert turns[0.1] == 0
    assert turns[INFINITE] == 1


def test_a_server_that_does_not_tell_has_no_turns() -> None:
    assert loop_turns("mq_connections 4.0\n") is None


def test_the_longest_turn_is_the_highest_bucket_that_grew() -> None:
    before = {0.05: 1.0, 0.1: 1.0, INFINITE: 2.0}
    assert longest_turn_ms(before, before) == 0
    assert longest_turn_ms(before, {0.05: 4.0, 0.1: 4.0, INFINITE: 5.0}) == 50
    assert longest_turn_ms(before, {0.05: 1.0, 0.1: 3.0, INFINITE: 4.0}) == 100
    assert longest_turn_ms(before, {0.05: 2.0, 0.1: 2.0, INFINITE: 4.0}) == INFINITE


def test_the_longest_turn_is_as_long_as_the_log_says_if_it_has_a_line_for_each() -> None:
    before, after = {0.05: 1.0, 0.1: 1.0, INFINITE: 1.0}, {0.05: 1.0, 0.1: 3.0, INFINITE: 3.0}
    lines = [f"event loop held ms=90 cpu_ms={cpu_ms} by=unknown count=1" for cpu_ms in (51, 63)]
    assert _longest(before, after, lines) == 63
    assert _longest(before, after, lines[:1]) == 100, "of the other one only the bound is known"
    assert _longest(before, after, []) == 100
    assert _longest(before, before, []) == 0
    assert _longest(before, None, lines) is None


def test_the_middle_of_a_while_is_of_what_was_to_be_had() -> None:
    points = [Point(1, 9.0), Point(2, 1.0), Point(3, None), Point(4, 3.0), Point(5, 2.0), Point(6, 9.0)]
    assert middle(points, 2, 5) == 2
    assert middle(points, 3, 3) is None
