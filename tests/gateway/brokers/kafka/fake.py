"""A Kafka cluster in memory, for tests of gateway.brokers.kafka: logs of batches, what an idempotent producer may do,
and what goes wrong: answers that are lost, codes of the moment, a state of producers that is forgotten, writers that
nobody knows, and batches that arrive late."""

from __future__ import annotations

import asyncio
import struct
from collections import deque
from dataclasses import dataclass, field

import pytest

from gateway.brokers.kafka import broker, writer
from gateway.brokers.kafka.codes import (
    CORRUPT_MESSAGE,
    OFFSET_OUT_OF_RANGE,
    OUT_OF_ORDER,
    STALE_EPOCH,
    UNKNOWN_TOPIC,
    Outcome,
    Stored,
)
from gateway.brokers.kafka.port import Fetched, Refused, TopicPlan, Unreached
from gateway.brokers.kafka.repeats import Repeats
from store import record_batch
from store.record_batch import Record
from store.types import Buffer
from tests.clock import FakeClock

REPEATS_KNOWN = 5
APPENDED_MS = 1_800_000_000_000


@dataclass
class Producer:
    """What a partition knows of one producer."""

    epoch: int
    next_sequence: int
    recent: deque[tuple[int, int]] = field(default_factory=lambda: deque(maxlen=REPEATS_KNOWN))


@dataclass
class Log:
    """One partition. Each batch with its offset, as Kafka would keep it."""

    batches: list[tuple[int, bytes]] = field(default_factory=list)
    start: int = 0
    end: int = 0
    producers: dict[int, Producer] = field(default_factory=dict)
    leader_epoch: int = 7

    def append(self, batch: bytes, time_ms: int = APPENDED_MS) -> Outcome:
        """As a leader does for acks=all."""
        producer_id, epoch, first = record_batch.numbers_of(batch)
        count = record_batch.record_count(batch)
        if not _is_whole(batch):
            return CORRUPT_MESSAGE
        if producer_id >= 0:
            known = self.producers.get(producer_id)
            if known is not None:
                if epoch < known.epoch:
                    return STALE_EPOCH
                if epoch == known.epoch:
                    for sequence, offset in known.recent:
                        if sequence == first:
                            return Stored(offset, time_ms)
                expected = known.next_sequence if epoch == known.epoch else 0
                if first != expected:
                    return OUT_OF_ORDER
            if known is None or epoch > known.epoch:
                known = self.producers[producer_id] = Producer(epoch, 0)
            known.next_sequence = first + count
            known.recent.append((first, self.end))
        offset = self.end
        self.batches.append((offset, _dated(batch, offset, time_ms, self.leader_epoch)))
        self.end += count
        return Stored(offset, time_ms)

    def lose(self, end: int) -> None:
        """An unclean election: what is behind an offset is lost, and another node leads."""
        self.batches = [one for one in self.batches if one[0] + record_batch.record_count(one[1]) <= end]
        self.end = end if not self.batches else self.batches[-1][0] + record_batch.record_count(self.batches[-1][1])
        self.leader_epoch += 1


class FakeKafka:
    """`Kafka`. `script` has what becomes of the next batches: "lost" stores it and says nothing, "forgotten" also
    forgets all producers then, "dropped" neither stores nor says, a number is answered and nothing is stored.
    `is_away`: nothing answers; `has_no_leader`: no partition has one. While it `holds`, what it does with batches is
    said when it is told to, by `answer`."""

    def __init__(self) -> None:
        self.logs: dict[tuple[str, int], Log] = {}
        self.plans: dict[str, TopicPlan] = {}
        self.script: deque[str | int | None] = deque()
        self.sent: list[bytes] = []
        self.is_away = self.has_no_leader = self.holds = False
        self._held: deque[tuple[asyncio.Future[Outcome], Outcome]] = deque()
        self.fetches: list[tuple[int, int]] = []
        self._producer_id = 4000
        self.clock: FakeClock | None = None
        self.trouble: str | None = None

    async def check(self) -> None:
        pass

    def log(self, topic: str, partition: int) -> Log:
        return self.logs[topic, partition]

    async def lane(self, topic: str, partition: int) -> FakeLane | None:
        return None if self.has_no_leader else FakeLane(self, topic, partition)

    async def produce(self, topic: str, partition: int, batch: Buffer) -> Outcome:
        return await FakeLane(self, topic, partition).send(batch)

    def begun(self, topic: str, partition: int, batch: bytes) -> asyncio.Future[Outcome]:
        self.sent.append(batch)
        told: asyncio.Future[Outcome] = asyncio.get_running_loop().create_future()
        outcome = self._produced(topic, partition, batch)
        if self.holds:
            self._held.append((told, outcome))
        else:
            told.set_result(outcome)
        return told

    def answer(self, count: int = 1) -> None:
        """Say of the first batches of which nothing was said what became of them."""
        for _ in range(count):
            told, outcome = self._held.popleft()
            if not told.done():
                told.set_result(outcome)

    def _produced(self, topic: str, partition: int, batch: bytes) -> Outcome:
        scripted = self.script.popleft() if self.script else None
        if self.is_away or scripted == "dropped":
            return None
        if isinstance(scripted, int):
            return scripted
        if (log := self.logs.get((topic, partition))) is None:
            return UNKNOWN_TOPIC
        outcome = log.append(batch, APPENDED_MS if self.clock is None else self.clock.now_ms())
        if scripted == "forgotten":
            log.producers.clear()
        return None if scripted in ("lost", "forgotten") else outcome

    async def fetch(self, topic: str, partition: int, offset: int, *, max_bytes: int, wait_ms: int) -> Fetched:
        log = self._there(topic, partition)
        self.fetches.append((offset, max_bytes))
        if not log.start <= offset <= log.end:
            raise Refused(OFFSET_OUT_OF_RANGE, topic)
        found = b""
        for base_offset, batch in log.batches:
            if base_offset + record_batch.record_count(batch) <= offset:
                continue
            if found and len(found) + len(batch) > max_bytes:
                found += batch[: max(0, max_bytes - len(found))]  # cut short, as Kafka does
                break
            found += batch
        return Fetched(memoryview(bytearray(found)), log.start, log.end)

    async def bounds(self, topic: str, partition: int) -> tuple[int, int]:
        log = self._there(topic, partition)
        return log.start, log.end

    async def offset_at(self, topic: str, partition: int, time_ms: int) -> int | None:
        log = self._there(topic, partition)
        found = (offset for offset, batch in log.batches if record_batch.max_timestamp_ms(batch) >= time_ms)
        return next((max(offset, log.start) for offset in found), None)

    async def make_topic(self, plan: TopicPlan) -> None:
        if self.is_away:
            raise Unreached("away")
        self.plans[plan.name] = plan
        for partition in range(plan.partitions):
            self.logs.setdefault((plan.name, partition), Log())

    async def new_producer(self) -> int:
        if self.is_away:
            raise Unreached("away")
        self._producer_id += 1
        return self._producer_id

    async def delete_before(self, topic: str, partition: int, offset: int) -> None:
        log = self._there(topic, partition)
        log.start = max(log.start, offset)
        log.batches = [one for one in log.batches if one[0] + record_batch.record_count(one[1]) > log.start]

    async def close(self) -> None:
        pass

    def forget_producers(self) -> None:
        """The state of producers has expired."""
        for log in self.logs.values():
            log.producers.clear()

    def _there(self, topic: str, partition: int) -> Log:
        if self.is_away:
            raise Unreached("away")
        if (log := self.logs.get((topic, partition))) is None:
            raise Unreached("no leader")
        return log


class FakeLane:
    """`Lane`. Answers are there at once."""

    def __init__(self, kafka: FakeKafka, topic: str, partition: int) -> None:
        self._kafka, self._place = kafka, (topic, partition)

    def send(self, *parts: Buffer) -> asyncio.Future[Outcome]:
        return self._kafka.begun(*self._place, b"".join(parts))


def new_repeats(window_ms: int = 600_000) -> Repeats:
    """That knows nothing yet."""
    return Repeats(window_ms=window_ms, ids_max=10_000, producer_expiry_ms=86_400_000, producers_max=100)


def strangers_batch(count: int = 1) -> bytes:
    """A batch of somebody who knows nothing of mq."""
    return bytes(record_batch.encode([Record(None, b"a stranger's", 1) for _ in range(count)]))


def _dated(batch: bytes, offset: int, time_ms: int, leader_epoch: int) -> bytes:
    """As Kafka stores it: its offset, a leader epoch, and LogAppendTime with the time of the append."""
    made = bytearray(batch)
    struct.pack_into(">q", made, 0, offset)
    struct.pack_into(">i", made, 12, leader_epoch)
    (attributes,) = struct.unpack_from(">h", made, 21)
    struct.pack_into(">h", made, 21, attributes | 0x08)
    struct.pack_into(">q", made, record_batch.MAX_TIMESTAMP_AT, time_ms)
    record_batch._seal(made)
    return bytes(made)


def _is_whole(batch: bytes) -> bool:
    try:
        record_batch.check(batch)
    except record_batch.StoreError:
        return False
    return True


def not_paused(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is sent again is sent at once, and a tenure begins without a wait."""
    monkeypatch.setattr(writer, "PAUSE_S", 0.0)
    monkeypatch.setattr(writer, "PAUSE_MAX_S", 0.0)
    monkeypatch.setattr(broker, "START_FRESH_S", 0.0)
