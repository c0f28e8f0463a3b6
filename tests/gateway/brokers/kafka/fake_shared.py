"""A Kafka cluster in memory in which others write too, for tests of attached topics: batches of every codec, holes,
transactions that are open, committed or aborted, rights that are missing, topics that go."""

from __future__ import annotations

import asyncio
import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from aiokafka.record.default_records import DefaultRecordBatchBuilder

from gateway.brokers.kafka.attached_links import Committed, Limits
from gateway.brokers.kafka.codes import OFFSET_OUT_OF_RANGE, UNKNOWN_TOPIC, Outcome
from gateway.brokers.kafka.port import Refused, TopicPlan, Unreached
from store import record_batch
from tests.gateway.brokers.kafka.fake import FakeKafka, Log

NONE, GZIP, SNAPPY, LZ4, ZSTD = range(5)
CODECS = (NONE, GZIP, SNAPPY, LZ4, ZSTD)
CONTROL = 0x20

Row = tuple[bytes | None, bytes | None]


def foreign_batch(
    rows: Mapping[int, Row],
    *,
    codec: int = NONE,
    producer_id: int = -1,
    is_transactional: bool = False,
    offset_count: int | None = None,
    time_ms: int = 1_000,
) -> bytearray:
    """A batch with these records at these offset deltas. `offset_count`: offsets that it has, where there are more
    behind the last record."""
    builder = DefaultRecordBatchBuilder(
        magic=2, compression_type=codec, is_transactional=int(is_transactional), producer_id=producer_id,
        producer_epoch=0, base_sequence=0, batch_size=1 << 30,
    )  # fmt: skip
    for delta, (key, value) in rows.items():
        builder.append(delta, time_ms + delta, key, value, [("h", b"1"), ("null", None)])
    batch = bytearray(builder.build())
    if offset_count is not None:
        struct.pack_into(">i", batch, 23, offset_count - 1)
        record_batch._seal(batch)
    return batch


def emptied_batch(offset_count: int) -> bytearray:
    """What compaction leaves of a batch all of whose records are gone."""
    batch = foreign_batch({0: (b"k", b"v")}, offset_count=offset_count)[: record_batch.HEADER_BYTES]
    struct.pack_into(">i", batch, 57, 0)
    record_batch._seal(batch)
    return batch


def marker(producer_id: int) -> bytearray:
    """A control batch: the end of a transaction."""
    batch = foreign_batch({0: (b"\0\0\0\0", b"")}, producer_id=producer_id, is_transactional=True)
    (attributes,) = struct.unpack_from(">h", batch, 21)
    struct.pack_into(">h", batch, 21, attributes | CONTROL)
    record_batch._seal(batch)
    return batch


@dataclass
class SharedLog(Log):
    """One partition, with its transactions: (producer, first offset, offset of its marker)."""

    aborted: list[tuple[int, int, int]] = field(default_factory=list)
    open_since: dict[int, int] = field(default_factory=dict)

    def put(self, batch: bytearray) -> int:
        """Append what a stranger has sent; its offset."""
        offset, following = self.end, self.end + struct.unpack_from(">i", batch, 23)[0] + 1
        struct.pack_into(">q", batch, 0, offset)
        if record_batch.is_transactional(batch) and record_batch.is_of_records(batch):
            self.open_since.setdefault(record_batch.numbers_of(batch)[0], offset)
        self.batches.append((offset, bytes(batch)))
        self.end = following
        return offset

    def send(self, *rows: Row, codec: int = NONE) -> int:
        return self.put(foreign_batch(dict(enumerate(rows)), codec=codec))

    def end_transaction(self, producer_id: int, *, commit: bool) -> None:
        since = self.open_since.pop(producer_id)
        at = self.put(marker(producer_id))
        if not commit:
            self.aborted.append((producer_id, since, at))

    @property
    def stable_end(self) -> int:
        return min(self.open_since.values(), default=self.end)

    def append(self, batch: bytes, time_ms: int = -1) -> Outcome:
        """As a leader does where records keep their own times (CreateTime)."""
        before = len(self.batches)
        outcome = super().append(batch, -1)
        if len(self.batches) > before:
            offset, _ = self.batches[-1]
            self.batches[-1] = offset, bytes(record_batch.with_base_offset(bytes(batch), offset))
        return outcome


class FakeSharedKafka(FakeKafka):
    """`SharedKafka`. `refused`: topics and groups to which mq's user has no right, and the code."""

    def __init__(self) -> None:
        super().__init__()
        self.refused: dict[str, int] = {}
        self.ends_asked = self.fetched = 0
        self.left: list[str] = []
        self.fetches_left: int | None = None
        self.taken = Limits(1_000_000, needs_keys=False)
        self.commits: list[tuple[str, str, dict[int, int]]] = []

    def make(self, topic: str, partitions: int = 1) -> SharedLog:
        for partition in range(partitions):
            self.logs.setdefault((topic, partition), SharedLog())
        return self.shared(topic, 0)

    def drop(self, topic: str) -> None:
        self.logs = {at: log for at, log in self.logs.items() if at[0] != topic}

    def shared(self, topic: str, partition: int) -> SharedLog:
        log = self.logs[topic, partition]
        assert isinstance(log, SharedLog)
        return log

    async def make_topic(self, plan: TopicPlan) -> None:
        raise AssertionError("nothing of others is made")

    async def partition_count(self, topic: str) -> int:
        if topic in self.refused:
            raise Refused(self.refused[topic], topic)
        if self.is_away:
            self._there(topic, 0)
        count = sum(name == topic for name, _ in self.logs)
        if not count:
            raise Refused(UNKNOWN_TOPIC, topic)
        return count

    async def limits(self, topic: str) -> Limits:
        self._check(topic)
        return self.taken

    async def fetch_committed(self, topic: str, partition: int, offset: int, *, max_bytes: int) -> Committed:
        self._check(topic)
        self._there(topic, partition)
        self.fetched += 1
        if self.fetches_left is not None:
            self.fetches_left -= 1
            if self.fetches_left < 0:
                raise Unreached("tired")
        log = self.shared(topic, partition)
        if not log.start <= offset <= log.end:
            raise Refused(OFFSET_OUT_OF_RANGE, topic)
        found, last = b"", offset
        for base_offset, batch in log.batches:
            following = record_batch.offsets_of(batch)[1]
            if following <= offset or base_offset >= log.stable_end:
                continue
            if found and len(found) + len(batch) > max_bytes:
                found += batch[: max(0, max_bytes - len(found))]
                break
            found, last = found + batch, following
        aborted = [(who, first) for who, first, at in log.aborted if first < last and at >= offset]
        return Committed(found, log.start, log.stable_end, aborted)

    async def starts(self, topic: str, partitions: Sequence[int]) -> Mapping[int, int]:
        self._check(topic)
        return {partition: self._there(topic, partition).start for partition in partitions}

    async def stable_ends(self, topic: str, partitions: Sequence[int]) -> Mapping[int, int]:
        self._check(topic)
        self.ends_asked += 1
        for partition in partitions:
            self._there(topic, partition)
        return {partition: self.shared(topic, partition).stable_end for partition in partitions}

    async def committed_at(self, topic: str, partition: int, time_ms: int) -> int | None:
        return await self.offset_at(topic, partition, time_ms)

    async def by_leader(self, topic: str, partitions: Sequence[int]) -> Sequence[Sequence[int]]:
        return [partitions]

    async def wait_for_more(self, topic: str, ends: Mapping[int, int], *, wait_ms: int) -> Mapping[int, int]:
        for _ in range(wait_ms // 5):
            if (now := await self.stable_ends(topic, list(ends))) != ends:
                return now
            await asyncio.sleep(0.005)
        return ends

    async def leave(self, topic: str) -> None:
        self.left.append(topic)

    async def commit(self, group: str, topic: str, offsets: Mapping[int, int]) -> None:
        if self.is_away:
            self._there(topic, 0)
        if group in self.refused:
            raise Refused(self.refused[group], group)
        self.commits.append((group, topic, dict(offsets)))

    def _check(self, topic: str) -> None:
        if topic in self.refused:
            raise Refused(self.refused[topic], topic)
