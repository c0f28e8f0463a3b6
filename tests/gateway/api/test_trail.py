"""gateway.api.trail: what waits for whom, a disk that fails, and attempts that are only counted."""

from __future__ import annotations

import asyncio
import errno
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from unittest.mock import Mock

import orjson
import pytest

from gateway.api import trail as trails
from gateway.api.trail import REFUSED_BURST_MAX, REFUSED_PER_S_MAX, WAITING_MAX, Trail
from gateway.api.trail_files import Act, Outcome, Ring
from store.files import Files
from tests.clock import START_MS, FakeClock
from tests.simdisk import Fault, SimDisk
from tests.waiting import PATIENCE_S, until

DATA = Path("/data")


def act(name: str, *, outcome: Outcome = "done", action: str = "topic.create") -> Act:
    return Act(action=action, principal="ann", outcome=outcome, object={"topic": name})


def unstarted(files: Files, monotonic: FakeClock | None = None) -> Trail:
    seconds = monotonic or FakeClock()
    return Trail(DATA, files, FakeClock(), monotonic_s=lambda: seconds.now_ms() / 1000, gather_s=0.01)


@asynccontextmanager
async def running(trail: Trail) -> AsyncIterator[Trail]:
    task = asyncio.create_task(trail.run())
    try:
        yield trail
    finally:
        task.cancel()
        await asyncio.wait([task])
        await trail.close()


async def rows(trail: Trail) -> list[dict[str, object]]:
    return (await trail.page(lambda row: True, cursor=None, limit=10_000)).rows[::-1]


async def topics(trail: Trail) -> list[object]:
    return [row["object"]["topic"] if row["object"] else row["action"] for row in await rows(trail)]  # type: ignore[index]


async def test_an_answer_waits_until_its_line_is_durable() -> None:
    disk = SimDisk()
    async with running(unstarted(disk)) as trail:
        await asyncio.gather(*(trail.recorded(act(f"t{number}")) for number in range(50)))
        assert disk.is_clean()
        found = await rows(trail)
    assert [row["time_ms"] for row in found] == [START_MS] * 50
    assert trail.stats.written_count == 50


async def test_nobody_waits_for_schedules_and_refusals_and_they_are_written_soon() -> None:
    async with running(unstarted(SimDisk())) as trail:
        assert trail.record(act("s", action="schedule.cancel")) is None
        assert trail.record(act("r", outcome="refused")) is None
        await until(lambda: trail.stats.written_count == 2)
        assert sorted(map(str, await topics(trail))) == ["r", "s"]


async def test_a_stop_writes_what_waits() -> None:
    trail = Trail(DATA, disk := SimDisk(), FakeClock(), monotonic_s=lambda: 0.0, gather_s=1000)
    async with running(trail):
        trail.record(act("s", action="schedule.fire"))
    assert await topics(unstarted(disk)) == ["s"]


async def test_a_full_disk_stops_no_action_and_the_trail_says_what_it_lacks(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(trails, "RETRY_S", 0.01)
    disk = SimDisk()
    async with running(unstarted(disk)) as trail:
        await trail.recorded(act("before"))
        disk.inject(Fault("pwritev", errno=errno.ENOSPC, sticky=True))
        with caplog.at_level(logging.WARNING):
            async with asyncio.timeout(10):
                for number in range(WAITING_MAX + 5):
                    trail.record(act(f"t{number}"))
                await trail.recorded(act("one more"))
            assert trail.stats.is_failing
            assert trail.stats.lost_count == 6
            disk.faults.clear()
            await until(lambda: trail.stats.written_count == 1 + WAITING_MAX + 1)
        found = await rows(trail)
    assert not trail.stats.is_failing
    assert len(found) == 1 + WAITING_MAX + 1
    assert (found[-1]["action"], found[-1]["details"]) == ("trail.lost", {"count": 6})
    assert caplog.text.count("cannot be written") == 1
    assert caplog.text.count("is written again") == 1


async def test_a_line_that_cannot_be_made_is_lost_and_the_trail_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    async with running(unstarted(SimDisk())) as trail:
        with monkeypatch.context() as patch:
            patch.setattr(Ring, "append", Mock(side_effect=TypeError("no JSON")))
            await trail.recorded(act("a"))
        await trail.recorded(act("b"))
        found = await rows(trail)
    assert trail.stats.lost_count == 1
    assert {row["action"] for row in found} == {"topic.create", "trail.lost"}


async def test_a_disk_that_hangs_keeps_no_answer_for_long(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trails, "ANSWER_WAIT_S", 0.05)
    trail = unstarted(SimDisk())  # nobody writes
    async with asyncio.timeout(PATIENCE_S):
        await trail.recorded(act("t"))
    await trail.close()


async def test_of_many_refusals_so_many_are_written_and_the_others_counted() -> None:
    seconds = FakeClock()
    trail = unstarted(SimDisk(), seconds)
    for number in range(REFUSED_BURST_MAX + 7):
        trail.record(act(f"r{number}", outcome="refused"))
    assert trail.stats.suppressed_count == 7
    trail.record(act("done"))
    seconds.step(1000)
    for number in range(REFUSED_PER_S_MAX + 1):
        trail.record(act(f"later{number}", outcome="refused"))
    await trail.close()
    found = await rows(trail)
    assert trail.stats.suppressed_count == 8
    assert len(found) == REFUSED_BURST_MAX + 1 + REFUSED_PER_S_MAX + 1
    assert [row["details"] for row in found if row["action"] == "trail.suppressed"] == [{"count": 7}]


async def test_without_a_directory_lines_are_printed_and_nothing_is_kept(
    capfdbinary: pytest.CaptureFixture[bytes],
) -> None:
    disk = SimDisk()
    async with running(Trail(None, disk, FakeClock(), monotonic_s=lambda: 0.0, gather_s=0.01)) as trail:
        await trail.recorded(act("t"))
        trail.record(act("s", action="schedule.fire"))
        await until(lambda: trail.stats.written_count == 2)
        assert await rows(trail) == []
    printed = [orjson.loads(line) for line in capfdbinary.readouterr().out.splitlines()]
    assert [(one["object"]["topic"], one["time_ms"]) for one in printed] == [("t", START_MS), ("s", START_MS)]
    assert disk.list(DATA) == []
