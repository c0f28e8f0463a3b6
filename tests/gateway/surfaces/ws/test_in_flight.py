"""Unanswered commands of one socket: bounded in number and bytes, begun in order."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from gateway.surfaces.ws import in_flight
from gateway.surfaces.ws.in_flight import InFlight


async def test_as_many_as_may_be_and_one_more_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(in_flight, "WORK_COUNT_MAX", 3)
    begun: list[int] = []
    gates = [asyncio.Event() for _ in range(4)]

    async def work(number: int) -> None:
        begun.append(number)
        await gates[number].wait()

    one = InFlight(asyncio.create_task)
    for number in range(3):
        await one.start(work(number), 1)
    fourth = asyncio.create_task(one.start(work(3), 1))
    await asyncio.sleep(0.01)
    assert (begun, len(one), fourth.done()) == ([0, 1, 2], 3, False)
    gates[1].set()
    await fourth
    for gate in gates:
        gate.set()
    await one.settled()
    assert (begun, len(one)) == ([0, 1, 2, 3], 0)


async def test_bytes_up_to_the_limit_and_a_larger_one_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(in_flight, "WORK_BYTES_MAX", 100)
    gate = asyncio.Event()
    one = InFlight(asyncio.create_task)
    await one.start(wait(gate), 60)
    await one.start(wait(gate), 40)
    waiting = asyncio.create_task(one.start(wait(gate), 1))
    await asyncio.sleep(0.01)
    assert not waiting.done()
    gate.set()
    await waiting
    await one.settled()
    gate.clear()
    await one.start(wait(gate), 1000)
    assert len(one) == 1
    waiting = asyncio.create_task(one.start(wait(gate), 1))
    await asyncio.sleep(0.01)
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    gate.set()
    await one.settled()


async def wait(gate: asyncio.Event) -> Any:
    await gate.wait()


async def test_what_has_begun_by_itself_counts_until_it_is_done(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(in_flight, "WORK_COUNT_MAX", 2)
    one, futures = InFlight(asyncio.create_task), [asyncio.get_running_loop().create_future() for _ in range(2)]
    for future in futures:
        await one.room(10)
        one.hold(future, 10)
    waiting = [asyncio.create_task(work) for work in (one.room(1), one.settled())]
    await asyncio.sleep(0.01)
    assert (len(one), [task.done() for task in waiting]) == (2, [False, False])
    futures[1].set_exception(OSError())  # whoever holds it hears of that
    await waiting[0]
    assert (len(one), waiting[1].done()) == (1, False)
    futures[0].cancel()
    await waiting[1]
    assert not one
