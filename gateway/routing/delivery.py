"""Due records on their way into their partitions: the timer's side of routing (`timer.ports.Partitions`).

A schedule names its partition; in which queue of which broker that lies is looked up when it is due. So a record is
delivered once, whatever has moved since it was accepted:

    its partition is on the timer's own broker    the delivered entry names the copies that it consumes; a restart of
                                                  the timer learns them from the same log
    on another broker                             that log knows nothing of it. The copy, (broker, position, index), is
                                                  the record's message id there: sent again after a crash, or when the
                                                  answer was lost, it is found
    of a Kafka topic that others write to         likewise, but nothing is found there: it may be stored twice
    refused there for what a record is            told as that, of its batch alone: a partition that has refused one
                                                  gets its batches one by one, until it takes one
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
from gateway.brokers.kafka.codes import OF_RECORDS
from gateway.routing.base import Route, Routes, place_of
from gateway.routing.reading import PartitionReader
from gateway.routing.told import told
from store import record_batch
from store.errors import (
    AlreadyStored,
    BrokerRefuses,
    DiskFull,
    MalformedBatch,
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
from timer.ports import Delivered, Due, Target, append_of
from timer.ready import SCHEDULE_ID_HEADER

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
        self._refusing: set[Target] = set()
        self._waiting: dict[Target, Route] = {}  # where they were when something was not stored

    async def deliver(self, dues: Sequence[Due]) -> Sequence[Delivered]:
        """See `timer.ports.Partitions`. One call a broker; what one refuses does not hold up the others. The own one's
        lack of room is raised; another node's is None."""
        by_call: dict[tuple[Broker, Target | None], list[tuple[int, Due, Route]]] = {}
        for number, due in enumerate(dues):
            route = self._routes.writable(self._routes.by_id(due.target.topic_id).name, due.target.partition)
            alone = due.target if due.target in self._refusing else None
            by_call.setdefault((route.broker, alone), []).append((number, due, route))
        offsets: list[Delivered] = [None] * len(dues)
        refused: StoreError | None = None
        is_any_stored = False
        for (broker, alone), sent in by_call.items():
            try:
                stored: Sequence[Delivered]
                if alone is None:
                    stored = await self._store(broker, [(due, route) for _, due, route in sent])
                else:
                    stored = await self._store_each(broker, [(due, route) for _, due, route in sent])
            except PartlyStored as partly:
                is_any_stored = True
                for (number, due, route), answer in zip(sent, partly.answers, strict=True):
                    if answer is not None:
                        base = route.to_logical(answer.base_offset)
                        offsets[number] = range(base, base + due.record_count)
                if _is_for_good(partly.error):
                    self._refusing.update(due.target for number, due, _ in sent if offsets[number] is None)
                continue
            except NoLightQueues:  # said before anything was stored
                stored = await self._store_each(broker, [(due, route) for _, due, route in sent])
            except StoreError as error:
                if isinstance(error, UnknownQueue) or (isinstance(error, RecordTooLarge) and broker.name == self._own):
                    refused = error
                    continue
                if _is_for_good(error):
                    if len(sent) == 1:
                        offsets[sent[0][0]] = error
                    self._refusing.update(due.target for _, due, _ in sent)
                    continue
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
        for sent in by_call.values():
            for number, due, route in sent:
                if offsets[number] is None:
                    self._waiting[due.target] = route
                else:
                    self._waiting.pop(due.target, None)
        return offsets

    def has_moved(self, target: Target) -> bool:
        """See `timer.ports.Partitions`."""
        if (route := self._waiting.get(target)) is None:
            return False
        try:
            return self._routes.writable(self._routes.by_id(target.topic_id).name, target.partition) != route
        except UnknownQueue:
            return True

    async def offset_for_time(self, target: Target, time_ms: int) -> int:
        """See `timer.ports.Partitions`."""
        return await self._reader.offset_for_time(self._routes.by_id(target.topic_id).name, target.partition, time_ms)

    async def read(self, target: Target, offset: int, *, max_bytes: int) -> ReadResult:
        """See `timer.ports.Partitions`."""
        name = self._routes.by_id(target.topic_id).name
        return await self._reader.read(name, target.partition, offset, max_bytes=max_bytes)

    async def _store(self, broker: Broker, sent: _Sent) -> list[Sequence[int]]:
        appends = [self._append_of(due, route) for due, route in sent]
        try:
            answers = await told(self._routes, broker, broker.append(appends, acks=Acks.FLUSHED))
        except AlreadyStored as known:
            return await self._store_rest(broker, sent, known)
        bases = [route.to_logical(answer.base_offset) for (_, route), answer in zip(sent, answers, strict=True)]
        return [range(base, base + due.record_count) for (due, _), base in zip(sent, bases, strict=True)]

    async def _store_each(self, broker: Broker, sent: _Sent) -> list[Delivered]:
        """The same one by one: what names light queues waits until its partition has some again, nothing else does;
        what is refused for good says so, and what follows it in its partition is not tried now."""
        stored: list[Delivered] = []
        waiting: set[Target] = set()
        refusing = frozenset(self._refusing)
        for one in sent:
            target = one[0].target
            if target in waiting:
                stored.append(None)
                continue
            try:
                stored += await self._store(broker, [one])
                self._refusing.discard(target)
            except NoLightQueues as error:
                log.warning("due records wait topic_id=%d partition=%d: %s", *target, error)
                stored.append(None)
            except (Overloaded, DiskFull):
                waiting.add(target)
                stored.append(None)
            except StoreError as error:
                if target not in refusing or isinstance(error, UnknownQueue) or broker.name == self._own:
                    raise
                waiting.add(target)
                self._refusing.add(target)
                stored.append(error if _is_for_good(error) else None)
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


def _is_for_good(error: StoreError) -> bool:
    """Whether a batch was refused for what is in it."""
    if isinstance(error, BrokerRefuses):
        return error.code in OF_RECORDS
    return isinstance(error, (RecordTooLarge, MalformedBatch))


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
