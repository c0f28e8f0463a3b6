"""Due records on their way into their partitions: the timer's side of routing (`timer.ports.Partitions`).

A schedule names its partition; in which queue of which broker that lies is looked up when it is due. So a record is
delivered once, whatever has moved since it was accepted:

    its partition is on the timer's own broker    the delivered entry names the copies that it consumes; a restart of
                                                  the timer learns them from the same log
    on another broker                             that log knows nothing of it. The copy, (broker, position, index), is
                                                  the record's message id there: sent again after a crash, or when the
                                                  answer was lost, it is found
    of a Kafka topic that others write to         likewise, but nothing is found there: it may be stored twice
    on the own one again, after a move            both: the other broker may have stored it, and has told its ids when
                                                  the partition came back
"""

from __future__ import annotations

import logging
import struct
from collections.abc import Sequence
from dataclasses import replace
from hashlib import blake2b

from gateway.brokers.base import Broker, PartlyStored
from gateway.routing.base import Route, Routes, place_of
from gateway.routing.reading import PartitionReader
from gateway.routing.told import told
from store import record_batch
from store.errors import (
    AlreadyStored,
    DiskFull,
    NoLightQueues,
    Overloaded,
    RecordTooLarge,
    StoreError,
    TooManyIds,
    UnknownQueue,
)
from store.light_names import LightNames
from store.record_batch import Record
from store.types import ID_BYTES, Acks, Append, Identity, ReadResult, Source
from timer.delivery import SCHEDULE_ID_HEADER
from timer.ports import Due, Target, append_of

log = logging.getLogger(__name__)

_SOURCE = struct.Struct(">qI")

_Sent = list[tuple[Due, Route]]


class RoutedPartitions:
    """`timer.ports.Partitions` over a route table, for the timer of the broker called `own`; or of a shard of
    `__timer`, which is no broker (`is_shard`): then the schedule is the record's message id, as it may have been copied
    before it is known what became of an earlier delivery."""

    def __init__(self, routes: Routes, *, own: str, is_shard: bool = False) -> None:
        self._routes = routes
        self._is_shard = is_shard
        self._reader = PartitionReader(routes)
        self._own = own

    async def deliver(self, dues: Sequence[Due]) -> list[Sequence[int] | None]:
        """See `timer.ports.Partitions`. One call a broker; what one refuses does not hold up the others. The own one's
        lack of room is raised; another node's is None."""
        by_broker: dict[Broker, list[tuple[int, Due, Route]]] = {}
        for number, due in enumerate(dues):
            route = self._routes.writable(self._routes.by_id(due.target.topic_id).name, due.target.partition)
            by_broker.setdefault(route.broker, []).append((number, due, route))
        offsets: list[Sequence[int] | None] = [None] * len(dues)
        refused: StoreError | None = None
        is_any_stored = False
        for broker, sent in by_broker.items():
            try:
                stored: Sequence[Sequence[int] | None] = await self._store(
                    broker, [(due, route) for _, due, route in sent]
                )
            except PartlyStored as partly:
                is_any_stored = True
                for (number, due, route), answer in zip(sent, partly.answers, strict=True):
                    if answer is not None:
                        base = route.to_logical(answer.base_offset)
                        offsets[number] = range(base, base + due.record_count)
                continue
            except (UnknownQueue, RecordTooLarge) as error:
                if isinstance(error, RecordTooLarge) and all(self._is_kafkas(due) for _, due, _ in sent):
                    log.error("due records wait, Kafka does not take them, cancel them or let it: %s", error)
                    continue
                refused = error
                continue
            except NoLightQueues:  # said before anything was stored
                stored = await self._store_each(broker, [(due, route) for _, due, route in sent])
            except StoreError as error:
                if broker.name != self._own or isinstance(error, TooManyIds):
                    continue  # perhaps another node has stored them: sent again, they are found by their ids
                if not isinstance(error, (Overloaded, DiskFull)):
                    raise
                refused = error
                continue
            is_any_stored = True
            for (number, _, _), its_offsets in zip(sent, stored, strict=True):
                offsets[number] = its_offsets
        if refused is not None and not is_any_stored:
            raise refused
        return offsets

    async def offset_for_time(self, target: Target, time_ms: int) -> int:
        """See `timer.ports.Partitions`."""
        return await self._reader.offset_for_time(self._routes.by_id(target.topic_id).name, target.partition, time_ms)

    async def read(self, target: Target, offset: int, *, max_bytes: int) -> ReadResult:
        """See `timer.ports.Partitions`."""
        name = self._routes.by_id(target.topic_id).name
        return await self._reader.read(name, target.partition, offset, max_bytes=max_bytes)

    def _is_kafkas(self, due: Due) -> bool:
        """Whether it is one record for a topic of a Kafka cluster, where a limit may be lowered after it was
        accepted."""
        return due.record_count == 1 and self._routes.attached(due.target.topic_id) is not None

    async def _store(self, broker: Broker, sent: _Sent) -> list[Sequence[int]]:
        appends = [self._append_of(due, route) for due, route in sent]
        try:
            answers = await told(self._routes, broker, broker.append(appends, acks=Acks.FLUSHED))
        except AlreadyStored as known:
            return await self._store_rest(broker, sent, known)
        bases = [route.to_logical(answer.base_offset) for (_, route), answer in zip(sent, answers, strict=True)]
        return [range(base, base + due.record_count) for (due, _), base in zip(sent, bases, strict=True)]

    async def _store_each(self, broker: Broker, sent: _Sent) -> list[Sequence[int] | None]:
        """The same one by one: what names light queues waits until its partition has some again, nothing else does."""
        stored: list[Sequence[int] | None] = []
        for one in sent:
            try:
                stored += await self._store(broker, [one])
            except (NoLightQueues, Overloaded, DiskFull) as error:
                log.warning("due records wait topic_id=%d partition=%d: %s", *one[0].target, error)
                stored.append(None)
        return stored

    async def _store_rest(self, broker: Broker, sent: _Sent, known: AlreadyStored) -> list[Sequence[int]]:
        """Store what of it is new; where all of it is."""
        found_offsets: list[dict[int, int]] = []
        rest: _Sent = []
        for (due, route), originals in zip(sent, known.originals, strict=True):
            topic = self._routes.by_id(due.target.topic_id).name
            found = {}
            for index, original in originals.items():
                _, offset = place_of(self._routes, topic, broker, original)
                assert offset is not None
                found[index] = offset
            found_offsets.append(found)
            if len(found) < due.record_count:
                rest.append((only(due, [index for index in range(due.record_count) if index not in found]), route))
        stored = iter(await self._store(broker, rest) if rest else ())
        offsets: list[Sequence[int]] = []
        for (due, _), found in zip(sent, found_offsets, strict=True):
            new = iter(next(stored) if len(found) < due.record_count else ())
            offsets.append([found[index] if index in found else next(new) for index in range(due.record_count)])
        return offsets

    def _append_of(self, due: Due, route: Route) -> Append:
        append = append_of(due, route.queue)
        is_own = route.broker.name == self._own
        if is_own and route.queue.queue_id == due.target.partition:  # it has never moved
            return append
        own = self._own.encode()
        if self._is_shard:
            message_ids = [_hashed(id_ + own) for id_ in schedule_ids_of(due)]
        else:
            message_ids = [message_id_of(own, source) for source in due.sources]
        return replace(append, sources=due.sources if is_own else (), identity=Identity(message_ids=message_ids))


def message_id_of(broker: bytes, source: Source) -> bytes:
    """The message id of the record that a copy in the timer of a broker (its name) becomes on another broker."""
    return _hashed(_SOURCE.pack(*source) + broker)


def _hashed(name: bytes) -> bytes:
    return blake2b(name, digest_size=ID_BYTES, person=b"mq-schedule").digest()


def schedule_ids_of(due: Due) -> list[bytes]:
    """The schedules of due records, which their headers name: of each the last one of that name is the timer's."""
    return [dict(record.headers)[SCHEDULE_ID_HEADER] or b"" for record in record_batch.decode(due.batch)]


def only(due: Due, indexes: Sequence[int]) -> Due:
    """Some of the records of a batch."""
    records = list(record_batch.decode(due.batch))
    some = [records[index] for index in indexes]
    return due._replace(
        batch=record_batch.encode([Record(one.key, one.value, one.timestamp, one.headers) for one in some]),
        record_count=len(indexes),
        tag_hashes=[due.tag_hashes[index] for index in indexes] if due.tag_hashes else (),
        sources=[due.sources[index] for index in indexes],
        light=None if due.light is None else LightNames.of([due.light.of_records()[index] for index in indexes]),
    )
