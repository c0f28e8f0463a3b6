"""A real server under a wall clock that lies: stepped, strobing, frozen, running 100,000 times too fast, 400 days on.

libfaketime stands between the server and the clock; monotonic time stays true. In each case: no record early by the
clock that the server saw, none lost, none twice, and no busy loop.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import AsyncIterator, Callable, Sequence
from pathlib import Path

import aiohttp
import orjson
import pytest

from tests.e2e.faked_clock import LIBRARIES, MISSING, FakedClock
from tests.e2e.server import SMALL_FILES, Server
from tests.waiting import PATIENCE_S

JSON_V2 = "application/vnd.kafka.json.v2+json"
HOUR_S, DAY_S = 3600, 86_400
CPU_SHARE_MAX = 0.5
"""Of one core. An idle server takes 0.02 of one; a busy loop takes all of it."""


class World:
    """A server and its clock."""

    def __init__(self, root: Path, settings: dict[str, str]) -> None:
        clock = FakedClock(root / "clock")
        self.set_clock = clock.set
        self.server = Server(root / "data", {**SMALL_FILES, **settings, **clock.environment})
        self.session = aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=PATIENCE_S))

    async def start(self) -> None:
        await self.server.start()
        await self._put_topic()

    async def _put_topic(self) -> None:
        async with self.session.put(f"{self.server.url}/mq/v1/topics/later", json={"partitions": 1}) as answer:
            assert answer.status in (200, 201), await answer.text()

    async def send(self, **fields: Sequence[int]) -> list[int]:
        """Records whose values are their numbers, with delay_ms or deliver_at; returns due times (0: sent at once)."""
        ((name, values),) = fields.items()
        records = [{"value": number, name: value} for number, value in enumerate(values)]
        async with self.session.post(
            f"{self.server.url}/topics/later",
            data=orjson.dumps({"records": records}),
            headers={"Content-Type": JSON_V2},
        ) as answer:
            assert answer.status == 200, await answer.text()
            return [place.get("deliver_at", 0) for place in orjson.loads(await answer.read())["offsets"]]

    async def delivered(self) -> list[tuple[int, int]]:
        """Value and store time of every delivered record, in order."""
        found: list[tuple[int, int]] = []
        offset = "0"
        while True:
            url = f"{self.server.url}/topics/later/partitions/0/records?offset={offset}"
            async with self.session.get(url, headers={"Accept": JSON_V2}) as answer:
                assert answer.status == 200, await answer.text()
                records = orjson.loads(await answer.read())
                offset = answer.headers["Mq-Next-Offset"]
            if not records:
                return found
            found += [(record["value"], record["store_timestamp"]) for record in records]

    async def values(self) -> list[int]:
        return [value for value, _ in await self.delivered()]

    async def until(self, holds: Callable[[list[int]], bool]) -> list[int]:
        """Wait until the delivered values are as wanted, and return them."""
        deadline_s = time.monotonic() + PATIENCE_S
        while not holds(values := await self.values()):
            assert time.monotonic() < deadline_s, f"after {PATIENCE_S} s only {len(values)}: {values[:20]}"
            await asyncio.sleep(0.05)
        return values

    async def pending_count(self) -> int:
        async with self.session.get(f"{self.server.url}/mq/v1/schedules?limit=1") as answer:
            total = (await answer.json())["total"]
            assert isinstance(total, int)
            return total

    async def idle(self, duration_s: float) -> float:
        """Let time pass; return the share of a core that the server took."""
        before_s = self.server.cpu_s()
        await asyncio.sleep(duration_s)
        return (self.server.cpu_s() - before_s) / duration_s

    async def metric(self, name: str) -> float:
        async with self.session.get(f"{self.server.url}/metrics") as answer:
            for line in (await answer.text()).splitlines():
                if line.startswith(name):
                    return float(line.split()[-1])
        raise AssertionError(f"no metric {name}")


@pytest.fixture
def settings() -> dict[str, str]:
    return {}


@pytest.fixture
async def world(tmp_path: Path, settings: dict[str, str]) -> AsyncIterator[World]:
    if not LIBRARIES:
        pytest.skip(MISSING)
    world = World(tmp_path, settings)
    try:
        await world.start()
        yield world
        assert await world.server.stop() == 0, world.server.log()
    finally:
        await world.session.close()
        await world.server.end()


def now_ms() -> int:
    return time.time_ns() // 1_000_000


async def test_a_clock_stepped_an_hour_forward_makes_due_what_it_has_passed(world: World) -> None:
    hour_ms = HOUR_S * 1000
    await world.send(delay_ms=[hour_ms + 600_000, hour_ms - 60_000, 60_000, hour_ms - 30_000])
    await asyncio.sleep(0.5)
    assert await world.values() == []
    world.set_clock(f"+{HOUR_S}")
    assert await world.until(lambda values: len(values) >= 3) == [2, 1, 3]
    assert await world.idle(2) < CPU_SHARE_MAX
    assert await world.values() == [2, 1, 3]
    world.set_clock(f"+{2 * HOUR_S}")
    assert await world.until(lambda values: len(values) >= 4) == [2, 1, 3, 0]
    assert await world.pending_count() == 0


@pytest.mark.parametrize(
    "settings",
    [
        pytest.param({}, id="", marks=pytest.mark.matrix),
        pytest.param({"MQ_TIMER_HEAP_COUNT_MAX": "4"}, id="with memory full"),
    ],
)
async def test_a_clock_stepped_an_hour_back_delays_what_was_due_and_loses_nothing(world: World) -> None:
    sent_ms = now_ms()
    due_ms = await world.send(delay_ms=[6000, 6500, 600, 7000])
    await world.until(lambda values: values == [2])
    world.set_clock(f"-{HOUR_S}")
    assert now_ms() < min(due for due in due_ms if due > sent_ms + 3000), "the machine is too slow for this test"
    assert await world.idle(8) < CPU_SHARE_MAX
    assert await world.values() == [2]
    await world.send(delay_ms=[1000])  # by the clock as it is now
    await world.until(lambda values: values == [2, 0])
    await world.server.kill()  # what it was in the middle of, it takes up again
    await world.server.start()
    assert await world.values() == [2, 0]
    assert await world.pending_count() == 3
    world.set_clock("+0")
    assert await world.until(lambda values: len(values) >= 5) == [2, 0, 0, 1, 3]
    assert await world.pending_count() == 0


async def test_a_strobing_clock_delivers_once_what_it_ever_reached_and_never_what_it_did_not(world: World) -> None:
    rng = random.Random(4)
    reached = [rng.randrange(500, 50 * 60_000) for _ in range(300)]
    beyond = [rng.randrange(70 * 60_000, 300 * 60_000) for _ in range(300)]
    await world.send(delay_ms=reached + beyond)
    before_s, started_s = world.server.cpu_s(), time.monotonic()
    for number in range(60):
        world.set_clock(rng.choice(("+0", f"+{HOUR_S}", f"-{HOUR_S}", "+5", "-1", "+1800")))
        if number % 10 == 5:
            await world.send(delay_ms=[1])  # it goes on accepting, whatever time it is
        await asyncio.sleep(0.1)
    world.set_clock(f"+{HOUR_S}")
    values = await world.until(lambda values: len(values) >= 306)
    cpu_share = (world.server.cpu_s() - before_s) / (time.monotonic() - started_s)
    assert cpu_share < CPU_SHARE_MAX, cpu_share
    assert sorted(values) == sorted([*range(300), *[0] * 6])
    assert await world.pending_count() == 300
    world.set_clock(f"+{6 * HOUR_S}")
    values = await world.until(lambda values: len(values) >= 606)
    assert sorted(values) == sorted([*range(600), *[0] * 6])
    assert await world.pending_count() == 0


async def test_while_the_clock_stands_still_nothing_becomes_due_and_nothing_spins(world: World) -> None:
    world.set_clock("2031-05-05 10:20:30")
    await asyncio.sleep(0.1)
    (next_ms,) = await world.send(delay_ms=[1])
    await world.send(deliver_at=[next_ms - 1, next_ms, next_ms - 5000, next_ms + 400])
    await world.until(lambda values: sorted(values) == [0, 2])
    assert await world.idle(3) < CPU_SHARE_MAX
    assert len(await world.values()) == 2
    assert await world.pending_count() == 3
    world.set_clock("2031-05-05 10:20:31")
    assert (await world.until(lambda values: len(values) >= 5))[2:] == [0, 1, 3]


@pytest.mark.matrix
@pytest.mark.parametrize(
    "settings",
    [{"MQ_STORE_RETENTION_MS": str(30 * DAY_S * 1000), "MQ_TIMER_ROLL_WINDOW_MS": str(2 * DAY_S * 1000)}],
)
async def test_a_fast_clock_takes_records_over_several_rolls_and_two_laps_of_the_wheel(world: World) -> None:
    rng = random.Random(5)
    world.set_clock("+0 x100000")  # a lap of seven days takes six seconds
    delays_ms = [rng.randrange(60_000, 15 * DAY_S * 1000) for _ in range(400)]
    due_ms = await world.send(delay_ms=delays_ms)
    # Its CPU time says nothing: libfaketime shortens the waits of epoll by the clock's speed.
    await world.until(lambda values: len(values) >= 400)
    delivered = await world.delivered()
    assert sorted(value for value, _ in delivered) == list(range(400))
    assert not [value for value, stored_ms in delivered if stored_ms < due_ms[value]], "early"
    assert await world.pending_count() == 0
    rolls = sum(delay_ms // (3 * DAY_S * 1000) for delay_ms in delays_ms)
    assert await world.metric("mq_schedule_rolled_total") >= rolls


@pytest.mark.parametrize("settings", [{"MQ_STORE_RETENTION_MS": str(3 * 365 * DAY_S * 1000)}])
async def test_after_400_days_of_downtime_everything_fires_at_once_oldest_first(world: World) -> None:
    rng = random.Random(6)
    soon_ms = [rng.randrange(60_000, DAY_S * 1000) for _ in range(1000)]  # before their first roll
    late_ms = [rng.randrange(DAY_S * 1000, 365 * DAY_S * 1000) for _ in range(2000)]
    due_ms = await world.send(delay_ms=soon_ms + late_ms)
    await asyncio.sleep(1.5)  # a checkpoint
    await world.server.kill()
    world.set_clock(f"+{400 * DAY_S}")
    await world.server.start()
    values = await world.until(lambda values: len(values) >= 3000)
    assert sorted(values) == list(range(3000))
    assert values[:1000] == sorted(range(1000), key=lambda value: due_ms[value])
    assert await world.pending_count() == 0
    assert await world.idle(1) < CPU_SHARE_MAX
