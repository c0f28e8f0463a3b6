"""The workloads of the scoreboard, done by a client in memory: they count right, and what is wrong is a failure."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, Sequence

import pytest

from loadtest.peers import work
from loadtest.peers.work import Window, WorkFailed, number_of, value


class MemoryClient:
    """A perfect peer, unless told otherwise."""

    def __init__(self, *, lose: int = 0, double: int = 0, early_ms: int = 0, piece: int = 700) -> None:
        self.topics: dict[str, list[bytes]] = {}
        self.dropped: list[str] = []
        self._lose = lose
        self._double = double
        self._early_ms = early_ms
        self._piece = piece
        self._timers: list[asyncio.Task[None]] = []

    async def create(self, topic: str) -> None:
        self.topics[topic] = []

    async def drop(self, topic: str) -> None:
        self.dropped.append(topic)

    async def send(self, topic: str, values: Sequence[bytes]) -> None:
        await asyncio.sleep(0)
        kept = [one for one in values if not self._lose or number_of(one) != self._lose]
        self.topics[topic] += kept + [one for one in kept if self._double and number_of(one) == self._double]

    async def read(self, topic: str) -> AsyncGenerator[Sequence[bytes]]:
        at = 0
        while True:
            values = self.topics[topic][at : at + self._piece]
            at += len(values)
            await asyncio.sleep(0.0001 if values else 0.001)
            if values:
                yield values

    async def receive(self, topic: str) -> AsyncGenerator[Sequence[bytes]]:
        async for values in self.read(topic):
            yield values

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


def test_a_batch_counts_with_its_share_of_the_window(monkeypatch: pytest.MonkeyPatch) -> None:
    now_s = 100.0
    monkeypatch.setattr(work.time, "monotonic", lambda: now_s)
    window = Window(warm_s=1, duration_s=4)  # from 101 to 105
    for sent_s, answered_s in [(99, 100.9), (100.5, 101.5), (102, 103), (104, 108), (105, 106)]:
        now_s = answered_s
        window.count(1000, sent_s)
    found = window.numbers()
    assert found["records"] == 0 + 500 + 1000 + 250 + 0
    assert found["records_per_s"] == 1750 / 4
    assert (found["began_s"], found["ended_s"]) == (101, 105)


def test_a_window_in_which_nothing_was_acknowledged_has_no_number() -> None:
    with pytest.raises(WorkFailed, match="nothing was acknowledged"):
        Window(0, 1).numbers()


async def test_what_was_sent_in_batches_is_scanned_whole() -> None:
    client = MemoryClient()
    sent = await work.batched(client, "t", duration_s=0.05, warm_s=0.02)
    assert sent["stored"] == len(client.topics["t"])
    assert 0 < sent["records"] < sent["stored"], "the warm-up is stored and not counted"
    assert sent["records_per_s"] == pytest.approx(sent["records"] / sent["took_s"], rel=0.01)
    count = int(sent["stored"])
    read = await work.scan(client, "t", count=count, duration_s=0.05, warm_s=0.02)
    assert read["passes"] >= 1
    assert read["records"] > 0
    assert read["ended_s"] - read["began_s"] >= read["took_s"] >= 0.05
    assert client.dropped == [], "the topic is left to those that come after"


async def test_a_scan_goes_on_until_the_time_is_over() -> None:
    client = MemoryClient(piece=10)
    client.topics["t"] = [value(number) for number in range(100)]
    read = await work.scan(client, "t", count=100, duration_s=0.2, warm_s=0)
    assert read["passes"] > 1
    assert read["records"] > 100


async def test_a_topic_that_comes_in_one_piece_has_no_rate() -> None:
    client = MemoryClient()
    client.topics["t"] = [value(number) for number in range(100)]
    with pytest.raises(WorkFailed, match="one piece"):
        await work.scan(client, "t", count=100, duration_s=0.05, warm_s=0)


async def test_a_record_that_comes_twice_is_a_failure() -> None:
    client = MemoryClient(double=7)
    sent = await work.batched(client, "t", duration_s=0.01, warm_s=0)
    with pytest.raises(WorkFailed, match="record 7 came twice"):
        await work.scan(client, "t", count=int(sent["stored"]), duration_s=0.01, warm_s=0)


async def test_a_record_that_never_comes_is_a_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(work, "STALL_TIMEOUT_S", 0.1)
    client = MemoryClient(lose=7)
    sent = await work.batched(client, "t", duration_s=0.01, warm_s=0)
    with pytest.raises(WorkFailed, match="nothing came"):
        await work.scan(client, "t", count=int(sent["stored"]), duration_s=0.01, warm_s=0)


async def test_a_value_of_somebody_else_is_a_failure() -> None:
    client = MemoryClient(piece=10)
    client.topics["t"] = [value(number) for number in range(99)] + [b"another's record, not one of ours"]
    with pytest.raises(WorkFailed, match="never sent"):
        await work.scan(client, "t", count=100, duration_s=0.01, warm_s=0)


async def test_a_queue_is_filled_to_its_bound_and_received_until_it_is_empty() -> None:
    client = MemoryClient()
    found = await work.receive(client, "t", count=2_500, fill_s=10, duration_s=10)
    assert len(client.topics["t"]) == 2_500
    assert found["records"] == 2_500 - 700, "what the clock began with is not counted"
    assert client.dropped == ["t"]


async def test_a_queue_is_filled_and_received_for_as_long_as_it_may_be() -> None:
    client = MemoryClient(piece=1)
    found = await work.receive(client, "t", count=10**9, fill_s=0.02, duration_s=0.05)
    assert found["records"] < len(client.topics["t"]) < 10**9
    assert 0.05 <= found["took_s"] < 10


async def test_a_queue_is_filled_with_one_batch_also_when_the_time_for_it_is_over_at_once() -> None:
    client = MemoryClient()
    found = await work.receive(client, "t", count=10**9, fill_s=0, duration_s=10)
    assert len(client.topics["t"]) == work.BATCH_RECORDS
    assert found["records"] == work.BATCH_RECORDS - 700


async def test_single_records_go_to_all_topics() -> None:
    client = MemoryClient()
    found = await work.singles(client, "s", duration_s=0.05, warm_s=0.01)
    lengths = [len(values) for values in client.topics.values()]
    assert len(lengths) == work.SINGLES_TOPICS
    assert max(lengths) - min(lengths) <= 1
    assert 0 < found["records"] <= sum(lengths)
    assert sorted(client.dropped) == sorted(client.topics)


async def test_push_measures_every_record_behind_the_warm_up() -> None:
    measured = await work.push(MemoryClient(), "t", rate_per_s=200, duration_s=0.2, warm_s=0.1)
    assert measured["records"] == 40
    assert 0 <= measured["p50_ms"] <= measured["p99_ms"] <= measured["max_ms"]


async def test_delayed_records_are_measured_from_their_due_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(work, "DELAY_AHEAD_MS", 100)
    client = MemoryClient()
    measured = await work.delayed(client, "t", count=200, spread_ms=50, accepted_per_s=4_000)
    assert measured["records"] == 200
    assert measured["p50_ms"] >= 0
    assert client.dropped == ["t"]


async def test_a_delayed_record_that_is_early_is_a_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(work, "DELAY_AHEAD_MS", 200)
    client = MemoryClient(early_ms=1000)
    with pytest.raises(WorkFailed, match="early"):
        await work.delayed(client, "t", count=200, spread_ms=50, accepted_per_s=4_000)


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
