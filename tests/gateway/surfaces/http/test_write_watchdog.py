"""A peer that takes bytes slowly is waited for; one that takes none is given up, after the time that was set."""

from __future__ import annotations

import asyncio

from gateway.surfaces.http.write_watchdog import LOOKS, WriteWatchdog
from tests.waiting import PATIENCE_S

STEP_S = 0.005


async def looked(watchdog: WriteWatchdog, sizes: list[int]) -> None:
    """Let it look once at each of these sizes."""
    for size in sizes:
        waiting[0] = size
        await asyncio.sleep(STEP_S * 1.2)


waiting = [0]


def made(told: list[bool]) -> WriteWatchdog:
    return WriteWatchdog(lambda: waiting[0], timeout_s=STEP_S * LOOKS, on_timeout=lambda: told.append(True))


async def test_who_takes_a_byte_now_and_then_stays() -> None:
    told: list[bool] = []
    waiting[0] = 0
    watchdog = made(told)
    watchdog.begin()
    await looked(watchdog, [100, 100, 99, 99, 99, 98, 98, 97, 200, 199])
    watchdog.end()
    assert not told


async def test_who_takes_nothing_is_told_of_once() -> None:
    told: list[bool] = []
    waiting[0] = 100
    watchdog = made(told)
    watchdog.begin()
    async with asyncio.timeout(PATIENCE_S):
        while not told:  # noqa: ASYNC110
            await asyncio.sleep(STEP_S)
    await asyncio.sleep(STEP_S * LOOKS * 2)
    assert told == [True]
    watchdog.end()


async def test_nothing_waiting_is_no_stall_and_an_end_is_an_end() -> None:
    told: list[bool] = []
    waiting[0] = 0
    watchdog = made(told)
    watchdog.begin()
    await asyncio.sleep(STEP_S * LOOKS * 2)
    waiting[0] = 100
    watchdog.end()
    await asyncio.sleep(STEP_S * LOOKS * 2)
    assert not told
