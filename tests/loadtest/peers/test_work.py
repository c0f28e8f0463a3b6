"""The works of the scoreboard, done by a client in memory: they count right, and what is wrong is a failure."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, Sequence

import pytest

from loadtest.peers import work
from loadtest.peers.work import WorkFailed, number_of, value


class MemoryClient:
    """A perfect peer, unless told otherwise."""

    def __init__(self, *, lose: int = 0, double: int = 0, early_ms: int = 0) -> None:
        self.topics: dict[str, list[bytes]] = {}
        self._lose = lose
        self._double = double
        self._early_ms = early_ms
        self._timers: list[asyncio.Task[None]] = []

    async def create(self, topic: str) -> None:
        self.topics[topic] = []

    async def send(self, topic: str, values: Sequence[bytes]) -> None:
        await asyncio.sleep(0)
        kept = [one for one in values if not self._lose or number_of(one) != self._lose]
        self.topics[topic] += kept + [one for one in kept if self._double and number_of(one) == self._double]

    async def read(self, topic: str) -> AsyncGenerator[Sequence[bytes]]:
        at = 0
        while True:
            values = self.topics[topic][at : at + 700]
            at += len(values)
            if values:
                yield values
            else:
                await asyncio.sleep(0.001)

    async def delay(self, topic: str, values: Sequence[bytes], due_ms: Sequence[int]) -> None:
        for one, due in zip(values, due_ms, strict=True):
            self._timers.append(asyncio.create_task(self._later(topic, one, due - self._early_ms)))

    async def _later(self, topic: str, one: bytes, due_ms: int) -> None:
        await asyncio.sleep(max(due_ms / 1000 - time.time() + 0.001, 0))
        self.topics[topic].append(one)


def test_a_value_has_its_number_and_its_size() -> None:
    assert number_of(value(123)) == 123
    assert (len(value(2**60)), len(value(1, 1024))) == (work.VALUE_BYTES, 1024)
    with pytest.raises(WorkFailed, match="never sent"):
        number_of(b"another's record")


async def test_what_was_sent_in_batches_is_consumed_once() -> None:
    client = MemoryClient()
    sent = await work.batched(client, "t", duration_s=0.05)
    assert sent["records"] == len(client.topics["t"])
    assert sent["records"] % work.BATCH_RECORDS == 0
    read = await work.consume(client, "t", count=int(sent["records"]))
    assert read["records"] == sent["records"]


async def test_a_record_that_comes_twice_is_a_failure() -> None:
    client = MemoryClient(double=7)
    sent = await work.batched(client, "t", duration_s=0.01)
    with pytest.raises(WorkFailed, match="record 7 came twice"):
        await work.consume(client, "t", count=int(sent["records"]))


async def test_a_record_that_never_comes_is_a_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(work, "STALL_TIMEOUT_S", 0.1)
    client = MemoryClient(lose=7)
    sent = await work.batched(client, "t", duration_s=0.01)
    with pytest.raises(WorkFailed, match="nothing came"):
        await work.consume(client, "t", count=int(sent["records"]))


async def test_push_measures_every_record() -> None:
    measured = await work.push(MemoryClient(), "t", rate_per_s=200, duration_s=0.2)
    assert measured["records"] == 40
    assert 0 <= measured["p50_ms"] <= measured["p99_ms"] <= measured["max_ms"]


async def test_delayed_records_are_measured_from_their_due_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(work, "DELAY_AHEAD_MS", 100)
    monkeypatch.setattr(work, "DELAY_SPREAD_MS", 50)
    measured = await work.delayed(MemoryClient(), "t", count=200)
    assert measured["records"] == 200
    assert measured["p50_ms"] >= 0


async def test_a_delayed_record_that_is_early_is_a_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(work, "DELAY_AHEAD_MS", 200)
    monkeypatch.setattr(work, "DELAY_SPREAD_MS", 50)
    client = MemoryClient(early_ms=1000)
    with pytest.raises(WorkFailed, match="early"):
        await work.delayed(client, "t", count=200)


async def test_topics_are_made_and_sent_to() -> None:
    client = MemoryClient()
    await work.topics(client, "many", count=20)
    assert len(client.topics) == 20
    assert sum(map(len, client.topics.values())) == 2_000 + 20


async def test_a_fill_that_would_take_too_long_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(work, "FILL_JUDGED_AFTER_S", 0)
    with pytest.raises(ExceptionGroup) as caught:
        await work.fill(MemoryClient(), "t", byte_count=2**30, within_s=1e-6)
    assert "it would take" in str(caught.value.exceptions[0])


async def test_a_log_is_filled_and_read_again() -> None:
    client = MemoryClient()
    await work.fill(client, "t", byte_count=2 * work.LARGE_BATCH_RECORDS * work.LARGE_VALUE_BYTES)
    assert sum(map(len, client.topics["t"])) == 2 * work.LARGE_BATCH_RECORDS * work.LARGE_VALUE_BYTES
    assert await work.first_record(client, "t") == {"records": 1}
