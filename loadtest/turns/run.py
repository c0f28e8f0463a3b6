"""Runs cases against a server of its own and keeps the longest turn of each."""

from __future__ import annotations

import asyncio
import json
import sys
import tempfile
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import NamedTuple

import aiohttp

from loadtest.turns.cases import Case, Client, Size, cases, prepare, prepare_crowd, prepare_light
from loadtest.turns.registry import answering

TRIES, LATE_MAX = 5, 1
"""A case over its limit is run again, to so many times in all, and may be over it in LATE_MAX of them: what shares the
cores lengthens a turn's CPU time now and then. What is over the limit by itself is so again."""

_SETTLING_S = 0.03  # what follows an answer is of the same turn
_START_TIMEOUT_S = 60.0
_CASE_TIMEOUT_S = 120.0

Ask = Callable[[], asyncio.Future[tuple[float, str, float]]]
"""The longest turn since it was asked last: milliseconds, what it was at; and the slowness of the machine now."""


class Turn(NamedTuple):
    """The longest turn of one case: CPU milliseconds, what the loop was at (as far as it was seen), and what became of
    the request. Of a case that was run TRIES times, the longest but LATE_MAX."""

    route: str
    case: str
    ms: float
    by: str
    outcome: str
    held_ms_max: float
    """What it may have been on a machine of slowness 1."""
    slowness: float
    """Of the machine during this case (loadtest/slowness.py): one that is slow, or busy with other things, makes no
    case late."""

    @property
    def scaled_ms(self) -> float:
        """CPU milliseconds on a machine of slowness 1."""
        return self.ms / self.slowness


def measure(
    *,
    size: Size = Size.FULL,
    wanted: Callable[[Case], bool] = lambda _: True,
    tell: Callable[[Turn], None] = lambda _: None,
    directory: Path | None = None,
    held_ms_max: float | None = None,
) -> list[Turn]:
    """Run all cases, or those that are `wanted`, on a server in a temporary directory (below `directory`); the longest
    turn of each, the longest first. `tell` is called with each as it comes. `held_ms_max`: one limit for all cases, in
    place of each one's own. Raises RuntimeError when the server ends."""
    with tempfile.TemporaryDirectory(dir=directory, prefix="turns-") as data:
        return asyncio.run(_measure(Path(data), size, wanted, tell, held_ms_max))


async def _measure(
    data: Path, size: Size, wanted: Callable[[Case], bool], tell: Callable[[Turn], None], held_ms_max: float | None
) -> list[Turn]:
    turns: list[Turn] = []
    for is_light in (False, True):
        own = [case for case in cases(size) if case.is_light is is_light and wanted(case)]
        if not own:
            continue
        place = data / ("rocksdb" if is_light else "file")
        place.mkdir()
        async with (
            answering() as registry,
            _server(place, registry, index=place.name) as (url, kafka_port, longest),
            aiohttp.ClientSession() as session,
        ):
            client = Client(url, kafka_port, session)
            await (prepare_light(client) if is_light else prepare(client, size))
            is_crowded = False
            for case in own:
                if case.is_in_crowd and not is_crowded:
                    is_crowded = True
                    await prepare_crowd(client)
                turns.append(turn := await _run(client, case, longest, held_ms_max or case.held_ms_max))
                tell(turn)
            await client.close()
    return sorted(turns, key=lambda turn: -turn.scaled_ms)


async def _run(client: Client, case: Case, longest: Ask, limit_ms: float) -> Turn:
    turns: list[Turn] = []
    while not turns or (len(turns) < TRIES and turns[0].scaled_ms > limit_ms):
        _, _, slowness_before = await longest()
        try:
            async with asyncio.timeout(_CASE_TIMEOUT_S):
                outcome = await case.run(client)
        except TimeoutError:
            outcome = "no answer"
        except (aiohttp.ClientError, ConnectionError) as error:
            outcome = type(error).__name__
        await asyncio.sleep(_SETTLING_S)
        ms, by, slowness_after = await longest()
        slowness = max(slowness_before, slowness_after)
        turns.append(Turn(case.route, case.name, ms, by, outcome, limit_ms, slowness))
    return sorted(turns, key=lambda turn: -turn.scaled_ms)[LATE_MAX if len(turns) == TRIES else 0]


@asynccontextmanager
async def _server(data: Path, registry: str, *, index: str) -> AsyncIterator[tuple[str, int, Ask]]:
    """The URL of a running server with this kind of index, its port for Kafka clients, and what asks it for the longest
    turn."""
    with (data / "server.log").open("wb") as errors:
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "loadtest.turns.server", str(data / "data"), registry, index,
            stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE, stderr=errors,
        )  # fmt: skip
    assert process.stdin is not None
    assert process.stdout is not None
    stdin, stdout = process.stdin, process.stdout

    async def ask() -> tuple[float, str, float]:
        stdin.write(b"\n")
        answer = await stdout.readline()
        if not answer:
            raise RuntimeError(f"the server has ended: {(data / 'server.log').read_text()[-4000:]}")
        ms, by, slowness = json.loads(answer)
        return float(ms), str(by), float(slowness)

    try:
        url, _, kafka_port = (await asyncio.wait_for(stdout.readline(), _START_TIMEOUT_S)).decode().partition(" ")
        if not url:
            raise RuntimeError(f"the server did not start: {(data / 'server.log').read_text()}")
        yield url, int(kafka_port), lambda: asyncio.ensure_future(ask())
    finally:
        stdin.close()
        try:
            await asyncio.wait_for(process.wait(), _START_TIMEOUT_S)
        except TimeoutError:
            process.kill()
            await process.wait()
