"""A peer's own benchmark tool as a client: a child process of the client process.

Most tools send a number of records and then say a rate, start-up and slow first batches included. Here such a tool is
told to send without an end, and a window is cut out of its run by what the server has counted at both its ends. So
it is with a tool that consumes, by what is left.
"""

from __future__ import annotations

import asyncio
import os
import tempfile
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import BinaryIO

from loadtest.peers.peer import Numbers, Options, WorkFailed

START_TIMEOUT_S = 30.0
"""From the start of a tool to its first record."""

LOOK_S = 0.02
OUTPUT_BYTES = 2_000
"""How much of the end of its output is shown when a tool has failed."""

Counted = Callable[[], Awaitable[int]]
"""How many records of the work the server counts now."""


class Running:
    """A tool at work."""

    def __init__(self, name: str, process: asyncio.subprocess.Process, output: BinaryIO) -> None:
        self._name = name
        self._process = process
        self._output = output

    @property
    def is_alive(self) -> bool:
        """Whether it has not ended."""
        return self._process.returncode is None

    def check(self) -> None:
        """Raises WorkFailed when it has ended."""
        if not self.is_alive:
            raise self.failed(f"ended with exit code {self._process.returncode}")

    def failed(self, why: str) -> WorkFailed:
        """With the end of what it has printed."""
        return WorkFailed(f"{self._name} {why}: {self.output()[-OUTPUT_BYTES:].strip()}")

    def output(self) -> str:
        """What it has printed, both ways."""
        self._output.seek(0)
        return self._output.read().decode(errors="replace")

    async def end(self) -> str:
        """Wait for its end; its output. Raises WorkFailed unless the exit code is 0."""
        if await self._process.wait():
            self.check()
        return self.output()


@asynccontextmanager
async def running(command: Sequence[str], environment: Mapping[str, str] | None = None) -> AsyncGenerator[Running]:
    """Run a tool until the block ends; then it is killed."""
    with tempfile.TemporaryFile() as output:  # a full pipe would stop it
        process = await asyncio.create_subprocess_exec(
            *command,
            stdin=asyncio.subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            env={**os.environ, **(environment or {})},
        )
        try:
            yield Running(Path(command[0]).name, process, output)
        finally:
            if process.returncode is None:
                process.kill()
            await process.wait()


async def ran(command: Sequence[str], environment: Mapping[str, str] | None = None) -> str:
    """Run a tool to its end; what it printed. Raises WorkFailed."""
    async with running(command, environment) as tool:
        return await tool.end()


async def window(
    command: Sequence[str], counted: Counted, options: Options, environment: Mapping[str, str] | None = None
) -> Numbers:
    """The rate of a tool that does not end: for `duration_s`, from `warm_s` after its first record on.

    Raises WorkFailed.
    """
    before = await counted()
    async with running(command, environment) as tool:
        deadline_s = time.monotonic() + START_TIMEOUT_S
        while await counted() == before:
            tool.check()
            if time.monotonic() > deadline_s:
                raise tool.failed(f"did nothing for {START_TIMEOUT_S:g} s")
            await asyncio.sleep(LOOK_S)
        await asyncio.sleep(options["warm_s"])
        first, began_s = await _look(counted)
        await asyncio.sleep(options["duration_s"])
        last, ended_s = await _look(counted)
        tool.check()
        if last == first:
            raise tool.failed("did nothing within the window")
    took_s = ended_s - began_s
    return {
        "records": last - first,
        "records_per_s": (last - first) / took_s,
        "took_s": took_s,
        "began_s": began_s,
        "ended_s": ended_s,
        "stored": await counted(),
    }


async def drained(tool: Running, left: Counted, *, count: int, warm_share: float, duration_s: float) -> Numbers:
    """The rate at which a tool consumes `count` records: until none is left, or for `duration_s`.

    The clock begins when more than `warm_share` of them are gone. Raises WorkFailed.
    """
    looks: list[tuple[int, float]] = []
    deadline_s = time.monotonic() + START_TIMEOUT_S
    while not looks or (looks[-1][0] and looks[-1][1] - looks[0][1] < duration_s):
        tool.check()
        look = await _look(left)
        if count - look[0] > warm_share * count:
            looks.append(look)
        elif look[1] > deadline_s:
            raise tool.failed(f"had consumed {count - look[0]:,} of {count:,} records after {START_TIMEOUT_S:g} s")
        await asyncio.sleep(LOOK_S)
    (first, began_s), (last, ended_s) = looks[0], looks[-1]
    if last >= first:
        raise WorkFailed("all was consumed between two looks: too few to take a time")
    took_s = ended_s - began_s
    return {
        "records": first - last,
        "records_per_s": (first - last) / took_s,
        "took_s": took_s,
        "began_s": began_s,
        "ended_s": ended_s,
    }


async def _look(counted: Counted) -> tuple[int, float]:
    """The count, and the middle of the time it took to get it: a busy server answers late."""
    asked_s = time.monotonic()
    count = await counted()
    return count, (asked_s + time.monotonic()) / 2
