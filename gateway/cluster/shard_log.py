"""One shard of a system topic on a Kafka cluster, in one tenure of one node: of `__offsets`, the log of the groups that
belong to it, which a `gateway.brokers.event_log.EventLog` writes to and reads from; of `__recurring`, likewise; or of
`__timer` (timer_shard.py).

A shard is a partition with a record as any other one (topic id 2, 3 or 4; gateway/cluster/record.py): a chain of
tenures, the last one open, taken over with a fence. Clients do not see it, as no route table has it. It is addressed
here in the offsets of its chain, and appended to in the one tenure that this node served when it was made: never
through another node.

    an append's answer is lost    it is unknown whether the events are in the log: the tenure takes no more from then
                                  on, and the node takes the shard over anew, and reads it
    a snapshot                    is in the same log: records with the key SNAPSHOT, each a part of it, which are none
                                  of the events. The metadata says where

        shards/<topic id>/<shard>    {"v": 1, "next": 812, "first": 812, "end": 815, "bytes": 1200345, "crc": 4010,
                                      "ids": [[640, 1800000000000], [811, 1800000030000]]}

    next     the snapshot holds what the events before this offset have led to
    first    the offset of its first record, and `end` the one behind its last; others' records may lie between
    bytes    of its content, and `crc`, their CRC-32
    ids      where records are that know repeated sends, each with a time, ms (shard_ids.py); not there: there are none

Invariants
    S1  `next` in the metadata only grows, and all events before it, and all parts of the snapshot, were acknowledged
    S2  records are given up only when a snapshot behind them is in the metadata, and when the search for the end of the
        tenure begins behind them (`verified` in the shard's record)
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any
from zlib import crc32

import orjson

from gateway.brokers.base import AnswerLost
from gateway.brokers.kafka.broker import KafkaBroker
from gateway.cluster.metadata import ABSENT, Metadata, MetadataError
from gateway.cluster.mover import MoveConflict
from gateway.routing.reading import PartitionReader
from gateway.routing.table import Chain, RouteTable
from store import record_batch
from store.clock import Clock
from store.errors import Corrupt, Overloaded, SealedQueue, StoreError
from store.limits import KiB, MiB
from store.record_batch import Record
from store.snapshot import Snapshot
from store.topics import OFFSETS, RECURRING, TIMER, Topic
from store.types import Acks, Append, Appended, Bounds, QueueKey, ReadResult

SHARDS = 16
"""Never changed: it says to which shard a group belongs."""

SHARD_TOPICS = {topic.topic_id: Topic(topic.topic_id, topic.name, SHARDS) for topic in (TIMER, OFFSETS, RECURRING)}
"""The topics that have shards, as Kafka clusters have them, by id."""

SNAPSHOT = b"snapshot"
PART_BYTES = 512 * KiB
_READ_BYTES = 1 * MiB
SNAPSHOTS = "shards/"
"""Where the metadata says where snapshots are."""


def shard_of(name: str) -> int:
    """The shard to which a group or a recurring schedule belongs, if it is in one."""
    return crc32(name.encode()) % SHARDS


@dataclass(frozen=True, slots=True)
class Shard:
    """A shard in a tenure that this node serves. `on_doubt` is called when it must be taken over anew."""

    number: int
    chain: Chain
    kafka: KafkaBroker
    on_doubt: Callable[[], None]

    @property
    def tenure(self) -> QueueKey:
        """What tells it from every other tenure."""
        return self.chain[-1].queue

    @property
    def is_served(self) -> bool:
        """Whether it takes events."""
        return self.kafka.serves(self.tenure)

    @property
    def queue(self) -> QueueKey:
        """The topic, and its number there."""
        return QueueKey(self.tenure.topic_id, self.number)

    @property
    def topic_name(self) -> str:
        """Of the topic."""
        return SHARD_TOPICS[self.tenure.topic_id].name


class ShardLog:
    """`gateway.brokers.event_log.Log` of a shard."""

    def __init__(self, shard: Shard) -> None:
        self._shard = shard
        routes = RouteTable()
        self._topic = shard.topic_name
        routes.set_chains(Topic(shard.tenure.topic_id, self._topic, 1), [shard.chain])
        self._reader = PartitionReader(routes)

    async def append(self, appends: Sequence[Append], *, acks: Acks) -> list[Appended]:
        """See `Broker.append`. Raises Overloaded when nothing was stored, AnswerLost."""
        shard, opened = self._shard, self._shard.chain[-1]
        try:
            appended = await shard.kafka.append([replace(one, queue=opened.queue) for one in appends], acks=acks)
        except SealedQueue as error:
            raise Overloaded(
                f"shard {shard.number} of {self._topic} is being taken over; nothing was stored"
            ) from error
        except AnswerLost:
            shard.kafka.refuse(opened.queue)
            shard.on_doubt()
            raise
        return [one._replace(base_offset=opened.to_logical(one.base_offset)) for one in appended]

    async def read(self, queue: QueueKey, offset: int, *, max_bytes: int) -> ReadResult:
        """See `Broker.read`."""
        return await self._reader.read(self._topic, 0, offset, max_bytes=max_bytes)

    async def bounds(self, queue: QueueKey) -> Bounds:
        """See `Broker.bounds`."""
        return Bounds(*await self._reader.bounds(self._topic, 0))

    async def give_up_before(self, offset: int, *, verified: int) -> None:
        """Give up the records before an offset, those of the open segment before a physical one, `verified`, too (0:
        give up none). Segments that have none left are then taken off the chain, as of every partition. Raises what the
        broker raises."""
        for segment in self._shard.chain if verified else ():
            before = min(
                segment.to_physical(offset), verified if segment.physical_end is None else segment.physical_end
            )
            if isinstance(segment.broker, KafkaBroker):
                await segment.broker.expire_queue(segment.queue, before)


class ShardSnapshots:
    """`gateway.brokers.event_log.Snapshots` of a shard, in its log. `verified` writes down, and answers, the physical
    offset before which the end of the tenure is not looked for any more; 0: it is not known, or over."""

    def __init__(
        self,
        shard: QueueKey,
        log: ShardLog,
        metadata: Metadata,
        clock: Clock,
        *,
        verified: Callable[[], Awaitable[int]],
    ) -> None:
        self._verified = verified
        self._key = f"{SNAPSHOTS}{shard.topic_id}/{shard.queue_id}"
        self._queue = shard
        self._log = log
        self._metadata = metadata
        self._clock = clock
        self.ids: Sequence[tuple[int, int]] = ()
        """What the snapshot that was loaded says of where ids are: offsets and times."""

    async def load(self) -> Snapshot | None:
        """See `Snapshots.load`. Raises Unavailable."""
        if (value := await self._metadata.get(self._key)) is None:
            return None
        place = orjson.loads(value.data)
        self.ids = [(offset, time_ms) for offset, time_ms in place.get("ids", ())]
        name = str(place["next"]).encode()
        parts: list[bytes] = []
        offset = place["first"]
        while offset < place["end"]:
            read = await self._log.read(self._queue, offset, max_bytes=_READ_BYTES)
            if not read.entries:
                break
            for entry in read.entries:
                for record in record_batch.decode(entry.batch):
                    is_part = record.key == SNAPSHOT and record.headers == [("next", name)]
                    if is_part and place["first"] <= record.offset < place["end"]:
                        parts.append(record.value or b"")
            offset = read.next_offset
        content = b"".join(parts)
        if (len(content), crc32(content)) != (place["bytes"], place["crc"]):
            raise Corrupt(self._key, place["first"], "the snapshot is not whole")
        return Snapshot(place["next"], content)

    async def save(
        self,
        next_offset: int,
        content: Callable[[], bytes],
        *,
        needed: int | None = None,
        ids: Sequence[tuple[int, int]] = (),
    ) -> None:
        """See `Snapshots.save`. The metadata may be away: Overloaded. `needed`: records from this offset on are not
        given up, though the snapshot holds what they have led to. `ids`: what `ids` says when it is loaded."""
        whole = content()
        name = str(next_offset).encode()
        first = end = next_offset
        for number, at in enumerate(range(0, len(whole), PART_BYTES)):
            record = Record(SNAPSHOT, whole[at : at + PART_BYTES], self._clock.now_ms(), [("next", name)])
            append = Append(queue=self._queue, batch=record_batch.encode([record]), record_count=1)
            [appended] = await self._log.append([append], acks=Acks.FLUSHED)
            first = appended.base_offset if number == 0 else first
            end = appended.base_offset + 1
        place: dict[str, Any] = {
            "v": 1, "next": next_offset, "first": first, "end": end, "bytes": len(whole), "crc": crc32(whole),
        }  # fmt: skip
        if ids:
            place["ids"] = [list(part) for part in ids]
        try:
            is_newest = await self._set(place)
        except MetadataError as error:
            raise Overloaded(f"the snapshot of {self._key} cannot be named: {error}") from error
        if not is_newest:
            raise Overloaded(f"{self._key} has a newer snapshot: another node has it")
        with suppress(StoreError, MetadataError, MoveConflict, ValueError):  # the next one gives them up
            await self._log.give_up_before(
                next_offset if needed is None else min(next_offset, needed), verified=await self._verified()
            )

    async def _set(self, place: dict[str, Any]) -> bool:
        """Whether the metadata names this snapshot, and not a newer one."""
        while True:
            value = await self._metadata.get(self._key)
            if value is not None and (known := orjson.loads(value.data))["next"] >= place["next"]:
                return bool(known == place)
            revision = ABSENT if value is None else value.revision
            if (
                await self._metadata.compare_and_set({self._key: revision}, {self._key: orjson.dumps(place)})
                is not None
            ):
                return True
