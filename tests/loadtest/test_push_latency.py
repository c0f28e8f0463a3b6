"""loadtest/bench/push_latency.py: what is late counts, whoever it is that is late."""

from __future__ import annotations

import asyncio
import gc
import time
from collections.abc import Callable
from typing import Any

import pytest

from loadtest.bench import push_latency
from loadtest.bench.push_latency import PushPath

RATE = 200
STALL_S = 0.3


class Answering:
    """A connection to a server that pushes and answers at once."""

    def __init__(self, pushed: asyncio.Queue[int], on_answer: Callable[[Any, int], None]) -> None:
        self._pushed = pushed
        self._on_answer = on_answer

    def send(self, sequence: int) -> None:
        self._pushed.put_nowait(sequence)
        self._on_answer(self, 200)

    def close(self) -> None:
        """Nothing is open."""


class Clock:
    """The system's, but for the time in which this process stands still."""

    stood_s = 0.0

    def perf_counter(self) -> float:
        return time.perf_counter() + self.stood_s


class Path(PushPath):
    """The process stands still once, for STALL_S, while the record `stall_at` is sent."""

    def __init__(self, stall_at: int, clock: Clock) -> None:
        self._clock = clock
        self._pushed: asyncio.Queue[int] = asyncio.Queue()
        self._stall_at = stall_at
        self.had_collector: set[bool] = set()
        super().__init__("", self._next, {})

    async def _next(self) -> list[int]:
        return [await self._pushed.get()]

    async def _connect(self, on_answer: Callable[[Any, int], None]) -> Answering:
        return Answering(self._pushed, on_answer)

    def _request(self, sequence: int) -> object:
        self.had_collector.add(gc.isenabled())
        if sequence == self._stall_at:
            self._clock.stood_s = STALL_S
        return sequence


@pytest.mark.parametrize("stall_at", [10, RATE // 2])
async def test_a_client_that_stops_is_late_with_all_that_was_due_meanwhile(
    stall_at: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = Clock()
    monkeypatch.setattr(push_latency, "time", clock)
    path = Path(stall_at, clock)
    latency = await path.run(RATE, 1.0)
    assert latency.record_count == RATE
    assert latency.max_ms >= STALL_S * 1000
    assert latency.p99_ms >= STALL_S * 900, "some sixty were due meanwhile, and two would do"
    assert latency.send_late_p99_ms >= STALL_S * 900
    assert path.had_collector == {False}
    assert gc.isenabled()
