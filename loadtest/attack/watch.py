"""Watches a victim from outside: its memory and file handles, how fast it answers /healthz, the turns of its loop."""

from __future__ import annotations

import asyncio
import os
import time
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

import aiohttp

from loadtest.attack.attack import MiB
from loadtest.attack.curves import Curves, Point, longest_turn_ms, loop_turns
from loadtest.slowness import slowness

SAMPLE_INTERVAL_S = 0.05
HEALTH_INTERVAL_S = 0.05
TURNS_INTERVAL_S = 5.0
TIMEOUT_S = 10.0
SLOWNESS_INTERVAL_S = 1.0


class NotMeasured(Exception):
    """There are no numbers, for this reason: the victim has died, or the attack could not be prepared."""


class Memory(NamedTuple):
    """Of a process, now and at most since it was last reset."""

    rss_bytes: int
    peak_bytes: int


def memory(pid: int) -> Memory:
    """Raises NotMeasured."""
    try:
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    except OSError as error:
        raise NotMeasured("the server has ended") from error
    found = {name: text.split() for name, _, text in (line.partition(":") for line in lines)}
    if "VmRSS" not in found:  # it is dead, and its exit code was not collected yet
        raise NotMeasured("the server has ended")
    return Memory(int(found["VmRSS"][0]) * 1024, int(found["VmHWM"][0]) * 1024)


def reset_peak(pid: int) -> bool:
    """Count the peak of memory from here on; whether this system can. See proc(5), clear_refs."""
    with suppress(OSError):
        Path(f"/proc/{pid}/clear_refs").write_text("5")
        return True
    return False


class Watch:
    """Fills curves until cancelled. It sends its own requests on connections that it had before any attack."""

    def __init__(self, session: aiohttp.ClientSession, pid: int, curves: Curves, began_s: float) -> None:
        self._session = session
        self._pid = pid
        self._curves = curves
        self._began_s = began_s

    def memory(self) -> Memory:
        """Raises NotMeasured when the victim has died."""
        return memory(self._pid)

    async def sample(self) -> None:
        """Until the victim dies."""
        with suppress(NotMeasured, OSError):
            while True:
                self._curves.rss_mib.append(self._point(self.memory().rss_bytes / MiB))
                self._curves.handles.append(self._point(len(os.listdir(f"/proc/{self._pid}/fd"))))
                await asyncio.sleep(SAMPLE_INTERVAL_S)

    async def check_health(self) -> None:
        """An answer other than 200, or none, is a point without a value."""
        while True:
            asked_s = time.monotonic()
            is_healthy = await self._answer("/healthz") is not None
            took_ms = (time.monotonic() - asked_s) * 1000
            self._curves.health_ms.append(self._point(took_ms if is_healthy else None))
            await asyncio.sleep(HEALTH_INTERVAL_S)

    async def count_turns(self) -> None:
        """Nothing where the server does not tell."""
        before = await self.turns()
        while before is not None:
            await asyncio.sleep(TURNS_INTERVAL_S)
            after = await self.turns()
            if after is not None:
                self._curves.turn_ms.append(self._point(longest_turn_ms(before, after)))
                before = after

    async def feel_slowness(self) -> None:
        """How slow the machine is."""
        while True:
            self._curves.slowness.append(self._point(slowness()))
            await asyncio.sleep(SLOWNESS_INTERVAL_S)

    async def turns(self) -> dict[float, float] | None:
        """Turns of its event loop so far, by bucket."""
        text = await self._answer("/metrics")
        return None if text is None else loop_turns(text)

    async def _answer(self, path: str) -> str | None:
        with suppress(aiohttp.ClientError, TimeoutError, OSError):
            async with self._session.get(path, timeout=_TIMEOUT) as response:
                text = await response.text()
                return text if response.status == 200 else None
        return None

    def _point(self, value: float | None) -> Point:
        return Point(time.monotonic() - self._began_s, value)


_TIMEOUT = aiohttp.ClientTimeout(total=TIMEOUT_S)
