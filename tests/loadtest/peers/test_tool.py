"""A peer's own tool as a client: the window is cut out by what the server counts, and an end in it is a failure."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable
from itertools import chain, count, repeat

import pytest

from loadtest.peers import tool
from loadtest.peers.peer import WorkFailed

ENDLESS = ("sleep", "60")
SHORT = {"warm_s": 0.0, "duration_s": 0.05}


def counted(values: Iterable[int]) -> Callable[[], Awaitable[int]]:
    found = iter(values)

    async def one() -> int:
        return next(found)

    return one


async def test_the_rate_is_of_what_the_server_counted_within_the_window() -> None:
    before, first, at_begin, at_end, afterwards = 5, 6, 1_000, 3_000, 3_500
    numbers = await tool.window(ENDLESS, counted([before, first, at_begin, at_end, afterwards]), SHORT)
    assert numbers["records"] == 2_000
    assert numbers["records_per_s"] == pytest.approx(2_000 / numbers["took_s"])
    assert numbers["took_s"] == pytest.approx(numbers["ended_s"] - numbers["began_s"])
    assert numbers["took_s"] >= SHORT["duration_s"]
    assert numbers["stored"] == afterwards


async def test_a_tool_that_ends_is_a_failure_with_what_it_printed() -> None:
    with pytest.raises(WorkFailed, match="sh ended with exit code 3: no such topic"):
        await tool.window(["sh", "-c", "echo no such topic >&2; exit 3"], counted(repeat(0)), SHORT)


async def test_a_tool_that_ends_within_its_window_is_a_failure() -> None:
    with pytest.raises(WorkFailed, match="ended with exit code 0"):
        await tool.window(["true"], counted(count()), SHORT)


async def test_a_tool_that_stands_still_is_a_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(WorkFailed, match="did nothing within the window"):
        await tool.window(ENDLESS, counted(chain([0], repeat(7))), SHORT)
    monkeypatch.setattr(tool, "START_TIMEOUT_S", 0.0)
    with pytest.raises(WorkFailed, match="did nothing for 0 s"):
        await tool.window(ENDLESS, counted(repeat(0)), SHORT)


async def test_what_is_consumed_is_timed_from_behind_the_warm_up_until_nothing_is_left() -> None:
    left = counted([1_000, 1_000, 900, 700, 300, 0])
    async with tool.running(ENDLESS) as consumer:
        numbers = await tool.drained(consumer, left, count=1_000, warm_share=0.25, duration_s=60)
    assert numbers["records"] == 700
    assert numbers["records_per_s"] == pytest.approx(700 / numbers["took_s"])


async def test_a_consumer_that_takes_long_is_stopped() -> None:
    async with tool.running(ENDLESS) as consumer:
        numbers = await tool.drained(consumer, counted(count(999, -1)), count=1_000, warm_share=0.0, duration_s=0.05)
    assert 0 < numbers["records"] < 900
    assert numbers["took_s"] >= 0.05


async def test_what_cannot_be_timed_is_a_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    async with tool.running(ENDLESS) as consumer:
        with pytest.raises(WorkFailed, match="between two looks"):
            await tool.drained(consumer, counted([0]), count=1_000, warm_share=0.25, duration_s=60)
        monkeypatch.setattr(tool, "START_TIMEOUT_S", 0.0)
        with pytest.raises(WorkFailed, match="had consumed 0 of 1,000 records after 0 s"):
            await tool.drained(consumer, counted(repeat(1_000)), count=1_000, warm_share=0.0, duration_s=60)


async def test_a_run_to_the_end_gives_what_was_printed_and_an_environment() -> None:
    assert await tool.ran(["sh", "-c", "echo $TOPIC"], {"TOPIC": "orders"}) == "orders\n"
    with pytest.raises(WorkFailed, match="sh ended with exit code 1"):
        await tool.ran(["sh", "-c", "exit 1"])
