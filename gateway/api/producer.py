"""Sending records: every way in (HTTP, socket) goes through here.

Records are checked as a whole, given a partition each, encoded into one RecordBatch a partition, and appended;
delayed ones go to the broker's timer instead, all of a request in one batch. Records of one partition keep the order
of the request. Work is per batch wherever it can be.

What was sent before, by `msg_id`, request id or producer sequence, is not stored again: the broker refuses a batch that
holds a known record and names the originals (`AlreadyStored`); these become receipts, the rest is sent without them.

Invariants
    P1  nothing is appended or scheduled before every record of the request has a partition and a legal due time
    P2  a delay is never silently dropped: it is scheduled, due already (then an ordinary send), or refused
    P3  a request of a numbered producer is one batch of one partition, so that its number stands for all of it
"""

from __future__ import annotations

import asyncio
import struct
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from hashlib import blake2b
from operator import attrgetter
from time import perf_counter
from typing import NamedTuple, Protocol

from gateway.brokers.base import Broker
from gateway.codec.columns import Columns
from gateway.codec.records import ProduceRecord
from gateway.codec.tags import MESSAGE_GROUP_HEADER, TAG_HEADER, batch_tag_hashes, tag_hash
from gateway.errors import DELAY_ILLEGAL, OFFSET_MOVED, RECORD_TOO_LARGE, RequestError, invalid
from gateway.routing.base import Route, Routes, Selector, TopicView, UnknownPartition
from gateway.settings.limits import Limits
from store import record_batch
from store.clock import Clock
from store.errors import AlreadyStored, DiskFull, OffsetMoved, Overloaded, RecordTooLarge, StoreStopped
from store.limits import MiB
from store.record_batch import Record
from store.types import (
    ID_BYTES,
    NO_ID,
    Acks,
    Append,
    Appended,
    Delay,
    Identity,
    Original,
    ProducerSequence,
    RequestPart,
)
from timer.schedule import encode_schedule_id

_TURN_BYTES = 1 * MiB  # raw bytes that are checked between two turns of the event loop


class Receipt(NamedTuple):
    """What became of one record: its offset, or, while it waits to be delivered, its schedule.

    `timestamp_ms` is the record's event time, `acks` the level of durability reached. `duplicate`: an earlier send has
    stored the record, and this is where; the offset is None also when it was forgotten (numbered producers only).
    """

    partition: int
    offset: int | None
    timestamp_ms: int
    schedule_id: str | None
    deliver_at_ms: int | None
    acks: Acks
    duplicate: bool = False


class BatchReceipt(NamedTuple):
    """Where one raw batch went: the offset of its first record, and how many follow from there; see `Receipt`."""

    partition: int
    offset: int | None
    record_count: int
    acks: Acks
    duplicate: bool = False


class StoredBatch(NamedTuple):
    """Where records of one request went: those at `request_indexes` of it to `partition`, at offsets that ascend one by
    one from `base_offset`."""

    partition: int
    request_indexes: Sequence[int]
    base_offset: int
    acks: Acks


class RequestIdentity(NamedTuple):
    """By what a repeat of a request is recognised. Its records are numbered from `first_index`."""

    request_id: bytes
    fingerprint: bytes
    first_index: int = 0

    def at(self, first_index: int) -> RequestIdentity:
        """The identity of a stretch of the same request that begins at this record of it."""
        return self._replace(first_index=first_index)


class Begun(NamedTuple):
    """A record on its way to `partition`. `outcome` is the broker's; `started_s` is of `perf_counter`."""

    outcome: asyncio.Future[list[Appended]]
    topic: str
    partition: int
    route: Route
    batch_bytes: int
    started_s: float


class _Lane(NamedTuple):
    """The records of a request that go to one partition, and their indexes in the request."""

    partition: int
    records: list[Record]
    request_indexes: list[int]

    def only(self, kept: Sequence[int]) -> _Lane:
        """The records of these indexes."""
        return _Lane(self.partition, [self.records[i] for i in kept], [self.request_indexes[i] for i in kept])


class _Delayed(NamedTuple):
    """A record that waits: its index in the request, where it goes, and when."""

    request_index: int
    partition: int
    due_ms: int
    record: Record


class _Send(NamedTuple):
    """What holds for all records of one request."""

    view: TopicView
    records: Sequence[ProduceRecord]
    json_values: bool
    acks: Acks
    identity: RequestIdentity | None
    sequence: ProducerSequence | None
    receipts: list[Receipt | None]
    has_tags: bool
    has_ids: bool
    expected_offset: int | None = None

    def identity_of(self, request_indexes: Sequence[int]) -> Identity | None:
        """The identity of a batch of the records at these indexes."""
        message_ids: Sequence[bytes] = ()
        if self.has_ids:
            message_ids = _hashed_ids(
                self.view.topic_id, [self.records[request_index].msg_id for request_index in request_indexes]
            )
        elif self.identity is None and self.sequence is None:
            return None
        request: RequestPart | None = None
        if self.identity is not None:
            request_id, fingerprint, first_index = self.identity
            request = RequestPart(request_id, fingerprint, _shifted(request_indexes, first_index))
        return Identity(message_ids=message_ids, request=request, producer=self.sequence)


class Producer:
    """Sends records to the topics of a route table. `acks` is the level for requests that do not say; `compress` packs
    the batches made here with zstd where that pays.

    Counters since start: `record_counts` by topic, delayed ones included; `scheduled_count` those alone; `byte_count`.
    `duplicate_count`: records that were sent again, in none of the others.
    """

    def __init__(
        self,
        routes: Routes,
        selector: Selector,
        *,
        clock: Clock,
        limits: Limits,
        acks: Acks,
        compress: bool = False,
    ) -> None:
        self._routes = routes
        self._selector = selector
        self._clock = clock
        self._limits = limits
        self._acks = acks
        self._compress = compress
        self.record_counts: dict[str, int] = {}
        self.byte_count = 0
        self.scheduled_count = 0
        self.duplicate_count = 0

    async def produce(
        self,
        topic: str,
        records: Sequence[ProduceRecord],
        *,
        partition: int | None = None,
        json_values: bool,
        acks: Acks | None = None,
        selector: str | None = None,
        identity: RequestIdentity | None = None,
        sequence: ProducerSequence | None = None,
        expected_offset: int | None = None,
    ) -> list[Receipt]:
        """Send records; return one receipt each, in their order, once all are as durable as `acks` says.

        `partition` is for records that name none; else `selector`, or the topic's, says how it is chosen
        (gateway/routing/select.py).
        `json_values` promises that every key and value is JSON or null. With an `identity` or a `sequence` a repeat
        stores nothing twice; it waits for an equal request that is under way. With an `expected_offset` all is stored
        in one partition from that offset on, or nothing (412/41250).
        Raises RequestError or StoreError. Before the first write nothing was stored; a store error after it leaves
        the outcome open unless it says otherwise.
        """
        assert records
        view = self._routes.topic(topic)
        if acks is None:
            acks = self._acks
        if view.config.max_message_bytes is not None:
            _check_sizes(records, view.config.max_message_bytes)
        if expected_offset is not None:
            _check_conditional(records, partition, sequence)
        selector = _selector_of(view, selector)
        now_ms = self._clock.now_ms()
        if len(records) == 1 and records[0].delay_ms is None and records[0].deliver_at_ms is None:
            return [
                await self._produce_one(
                    view, records[0], partition, now_ms, json_values, acks, selector, identity, sequence,
                    expected_offset,
                )
            ]  # fmt: skip
        lanes, delayed, duplicates_in_request = self._assign(view, records, partition, now_ms, selector, identity)
        receipts: list[Receipt | None] = [None] * len(records)
        send = _Send(
            view, records, json_values, acks, identity, sequence, receipts,
            any(map(_TAG_OF, records)), any(map(_MSG_ID_OF, records)), expected_offset,
        )  # fmt: skip
        if sequence is not None:
            _check_numbered(send, lanes, delayed)
        if lanes:
            await self._append(send, lanes)
        if delayed:
            await self._schedule(send, delayed)
        for request_index, first in duplicates_in_request.items():
            original = receipts[first]
            assert original is not None
            receipts[request_index] = original._replace(duplicate=True)
        done = [receipt for receipt in receipts if receipt is not None]
        new_count = (
            sum(not receipt.duplicate for receipt in done) if send.has_ids or identity or sequence else len(done)
        )
        self._count(topic, new_count)
        self.duplicate_count += len(done) - new_count
        return done

    async def produce_columns(
        self, topic: str, columns: Columns, *, partition: int | None, json_values: bool, acks: Acks | None
    ) -> list[StoredBatch] | None:
        """As `produce`, for records that have nothing but a key and a value, in a third of the time. None, with
        nothing stored, for what only `produce` can do: what is too large for its topic, or for one batch."""
        view = self._routes.topic(topic)
        keys, values = columns
        if view.config.selector is not None:
            return None
        bytes_max = view.config.max_message_bytes
        if bytes_max is not None and columns.bytes_max > bytes_max:
            return None
        if partition is not None:
            _check_partition(view, partition)
        elif keys is None:
            partition = self._selector.next(topic, view.partitions)
        lanes: Mapping[int, Sequence[int]]
        if partition is None:
            assert keys is not None
            lanes = _indexes_by_partition(keys, view.partitions, self._selector)
        else:
            lanes = {partition: range(len(values))}
        now_ms = self._clock.now_ms()
        by_broker: dict[Broker, list[tuple[int, Route, Append]]] = {}
        size = 0
        for target, request_indexes in lanes.items():
            own_keys, own_values = keys, values
            if len(request_indexes) < len(values):
                own_keys = None if keys is None else [keys[request_index] for request_index in request_indexes]
                own_values = [values[request_index] for request_index in request_indexes]
            try:
                batch = record_batch.encode_columns(own_keys, own_values, now_ms)
            except RecordTooLarge:
                return None
            if self._compress:
                batch = record_batch.compressed(batch)
            size += len(batch)
            route = self._routes.writable(topic, target)
            append = Append(queue=route.queue, batch=batch, record_count=len(request_indexes), json_values=json_values)
            by_broker.setdefault(route.broker, []).append((target, route, append))
        if acks is None:
            acks = self._acks
        stored = []
        for sent in by_broker.values():
            answers = await self._send(sent[0][1], [append for _, _, append in sent], acks)
            for (target, route, _), answer in zip(sent, answers, strict=True):
                stored.append(StoredBatch(target, lanes[target], route.to_logical(answer.base_offset), answer.acks))
        self.byte_count += size
        self._count(topic, len(values))
        return stored

    async def _produce_one(
        self,
        view: TopicView,
        record: ProduceRecord,
        partition: int | None,
        now_ms: int,
        json_values: bool,
        acks: Acks,
        selector: str | None,
        identity: RequestIdentity | None,
        sequence: ProducerSequence | None,
        expected_offset: int | None,
    ) -> Receipt:
        """What the long way does for one record that is not delayed, in half the time: the commonest request."""
        own: Identity | None = None
        if record.msg_id is not None or identity is not None or sequence is not None:
            send = _Send(
                view, (record,), json_values, acks, identity, sequence, [],
                record.tag is not None, record.msg_id is not None,
            )  # fmt: skip
            own = send.identity_of((0,))
        target, timestamp_ms, route, append = self._one(
            view, record, partition, now_ms, json_values, selector, identity, own
        )
        if expected_offset is not None:
            append = replace(append, expected_offset=route.to_physical(expected_offset))
        try:
            (answer,) = await self._send(route, (append,), acks)
        except AlreadyStored as known:
            self.duplicate_count += 1
            return self._known(view, route.broker, known.originals[0][0], record.timestamp_ms, acks)
        self._count(view.name, 1)
        self.byte_count += len(append.batch)
        return Receipt(target, route.to_logical(answer.base_offset), timestamp_ms, None, None, answer.acks)

    def begin(
        self, topic: str, record: ProduceRecord, *, partition: int | None, json_values: bool, acks: Acks | None
    ) -> Begun | None:
        """Begin to send one record; `finish` takes the broker's answer. None, and nothing is begun, for what only
        `produce` can do: delays, message ids, topics with limits of their own. Raises as `produce`; nothing was
        stored then."""
        view = self._routes.topic(topic)
        _, _, _, _, _, _, delay_ms, deliver_at_ms, msg_id, _ = record
        if delay_ms is not None or deliver_at_ms is not None or msg_id is not None:
            return None
        if view.config.max_message_bytes is not None or view.config.selector is not None:
            return None
        target, _, route, append = self._one(
            view, record, partition, self._clock.now_ms(), json_values, None, None, None
        )
        started_s = perf_counter()
        outcome = route.broker.begin_append((append,), acks=self._acks if acks is None else acks)
        # A NamedTuple's own constructor takes three times as long.
        return tuple.__new__(Begun, (outcome, topic, target, route, len(append.batch), started_s))

    def finish(self, begun: Begun) -> tuple[int, Acks]:
        """The offset that a begun record has got, and how durable it is. Raises what the broker's answer raises."""
        outcome, topic, _, route, batch_bytes, started_s = begun
        (answer,) = outcome.result()
        ended_s = perf_counter()
        self._routes.answered(route.broker, (ended_s - started_s) * 1000, ended_s * 1000)
        self._count(topic, 1)
        self.byte_count += batch_bytes
        return route.to_logical(answer.base_offset), answer.acks

    def _one(
        self,
        view: TopicView,
        record: ProduceRecord,
        partition: int | None,
        now_ms: int,
        json_values: bool,
        selector: str | None,
        identity: RequestIdentity | None,
        own: Identity | None,
    ) -> tuple[int, int, Route, Append]:
        """The partition of one record, its event time, and what is to be appended where."""
        key, value, headers, timestamp_ms, target, tag, _, _, _, group = record
        if target is None:
            target = partition
        if target is not None:
            _check_partition(view, target)
        elif selector is None and group is not None:
            target = self._selector.for_key(group.encode(), view.partitions)
        elif selector is None and key is not None:
            target = self._selector.for_key(key, view.partitions)
        else:
            target = self._keyless(view, record, selector, identity)
        if tag is not None:
            headers = [*headers, (TAG_HEADER, tag.encode())]
        if group is not None:
            headers = [*headers, (MESSAGE_GROUP_HEADER, group.encode())]
        if timestamp_ms is None:
            timestamp_ms = now_ms
        batch = record_batch.encode((Record(key, value, timestamp_ms, headers),))
        route = self._routes.writable(view.name, target)
        append = Append(
            queue=route.queue,
            batch=batch,
            record_count=1,
            json_values=json_values,
            tag_hashes=() if tag is None else (tag_hash(tag),),
            identity=own,
        )
        return target, timestamp_ms, route, append

    async def _send(self, route: Route, appends: Sequence[Append], acks: Acks) -> list[Appended]:
        """Append to the route's broker, and tell the route table how it did. An expected offset is of this route."""
        broker = route.broker
        started_s = perf_counter()
        try:
            answers = await broker.append(appends, acks=acks)
        except (StoreStopped, DiskFull, Overloaded):
            self._routes.failed(broker, perf_counter() * 1000)
            raise
        except OffsetMoved as moved:
            end_offset = route.to_logical(moved.next_offset)
            message = f"The partition ends at offset {end_offset} now. Nothing was stored."
            raise RequestError(OFFSET_MOVED, message, details={"end_offset": end_offset}) from None
        ended_s = perf_counter()
        self._routes.answered(broker, (ended_s - started_s) * 1000, ended_s * 1000)
        return answers

    def _known(
        self, view: TopicView, broker: Broker, original: Original, timestamp_ms: int | None, acks: Acks
    ) -> Receipt:
        """The receipt of a record that an earlier send stored."""
        partition, offset = self._routes.locate(view.name, broker, original.queue, original.offset)
        if timestamp_ms is None:
            timestamp_ms = original.store_time_ms
        if (schedule := original.schedule) is None:
            return Receipt(partition, offset, timestamp_ms, None, None, acks, True)
        return Receipt(partition, None, timestamp_ms, encode_schedule_id(*schedule), schedule.due_ms, acks, True)

    async def produce_batches(
        self,
        topic: str,
        body: bytes,
        *,
        partition: int | None = None,
        acks: Acks | None = None,
        selector: str | None = None,
        identity: RequestIdentity | None = None,
        sequence: ProducerSequence | None = None,
        expected_offset: int | None = None,
    ) -> list[BatchReceipt]:
        """Send raw RecordBatches laid end to end, each whole to one partition; one receipt each.

        Raises MalformedBatch, RecordTooLarge, IllegalRecord, UnknownQueue, or as `produce`; all batches are checked
        before a write.
        """
        view = self._routes.topic(topic)
        if acks is None:
            acks = self._acks
        if partition is not None:
            _check_partition(view, partition)
        if not body:
            raise invalid("records must not be empty")
        if expected_offset is not None and (partition is None or sequence is not None):
            raise _not_conditional()
        selector = _selector_of(view, selector)
        partitions: list[int] = []
        starts: list[int] = []  # how many records of the request are before each batch
        by_broker: dict[Broker, list[tuple[int, Route, Append]]] = {}
        unseen_bytes = record_count = 0
        for request_index, batch in enumerate(record_batch.split(body)):
            if sequence is not None and (partition is None or request_index):
                raise _not_one_batch()
            unseen_bytes += len(batch)
            if unseen_bytes > _TURN_BYTES:
                unseen_bytes = 0
                await asyncio.sleep(0)
            header = record_batch.check(batch, limited=True)
            if view.config.max_message_bytes is not None:
                _check_sizes(record_batch.decode(batch), view.config.max_message_bytes)
            target = self._selector.next(topic, view.partitions, selector) if partition is None else partition
            partitions.append(target)
            starts.append(record_count)
            route = self._routes.writable(topic, target)
            own: Identity | None = None
            if identity is not None or sequence is not None:
                request_indexes = range(record_count, record_count + header.record_count)
                own = _Send(view, (), False, acks, identity, sequence, [], False, False).identity_of(request_indexes)
            record_count += header.record_count
            append = Append(
                queue=route.queue,
                batch=batch,
                record_count=header.record_count,
                tag_hashes=batch_tag_hashes(batch),
                identity=own,
            )
            by_broker.setdefault(route.broker, []).append((request_index, route, append))
        receipts: list[BatchReceipt | None] = [None] * len(partitions)
        for broker, stored in by_broker.items():
            while stored:
                appends = [append for _, _, append in stored]
                if expected_offset is not None:
                    request_index, route, append = stored[0]
                    expected = route.to_physical(expected_offset + starts[request_index])
                    appends[0] = replace(append, expected_offset=expected)
                try:
                    answers = await self._send(stored[0][1], appends, acks)
                except AlreadyStored as known:
                    for (request_index, _, append), found in zip(stored, known.originals, strict=True):
                        if found:
                            original = found[min(found)]
                            at, offset = self._routes.locate(topic, broker, original.queue, original.offset)
                            receipts[request_index] = BatchReceipt(at, offset, append.record_count, acks, True)
                            self.duplicate_count += append.record_count
                    stored = [one for one, found in zip(stored, known.originals, strict=True) if not found]
                    continue
                for (request_index, route, append), answer in zip(stored, answers, strict=True):
                    offset = route.to_logical(answer.base_offset)
                    receipts[request_index] = BatchReceipt(
                        partitions[request_index], offset, append.record_count, answer.acks
                    )
                    self._count(topic, append.record_count)
                    self.byte_count += len(append.batch)
                break
        return [receipt for receipt in receipts if receipt is not None]

    def _count(self, topic: str, record_count: int) -> None:
        self.record_counts[topic] = self.record_counts.get(topic, 0) + record_count

    def _keyless(
        self, view: TopicView, record: ProduceRecord, selector: str | None, identity: RequestIdentity | None
    ) -> int:
        """The partition of records without key. Those with an id go by it, so that a repeat meets the same broker."""
        if selector is None and identity is not None:
            return zlib.crc32(identity.request_id) % view.partitions
        if selector is None and record.msg_id is not None:
            return zlib.crc32(record.msg_id.encode()) % view.partitions
        return self._selector.next(view.name, view.partitions, selector)

    def _assign(
        self,
        view: TopicView,
        records: Sequence[ProduceRecord],
        partition: int | None,
        now_ms: int,
        selector: str | None,
        identity: RequestIdentity | None,
    ) -> tuple[list[_Lane], list[_Delayed], dict[int, int]]:
        """Give every record its partition and due time (P1). Last: the indexes of records whose msg_id an earlier one
        of this request has, and the index of that one."""
        count = view.partitions
        if partition is not None:
            _check_partition(view, partition)
        for_key = self._selector.for_key
        lanes: dict[int, _Lane] = {}
        delayed: list[_Delayed] = []
        duplicates_in_request: dict[int, int] = {}
        ids = [record.msg_id for record in records if record.msg_id is not None]
        seen: dict[str, int] | None = {} if len(set(ids)) < len(ids) else None
        new = tuple.__new__  # a NamedTuple's own constructor takes three times as long
        keyless = partition  # all records of a request that have neither key nor partition go to one partition
        for request_index, record in enumerate(records):
            key, value, headers, timestamp_ms, target, tag, delay_ms, deliver_at_ms, msg_id, group = record
            if target is not None:
                _check_partition(view, target)
            elif partition is not None:
                target = partition
            elif selector is None and group is not None:
                target = for_key(group.encode(), count)
            elif selector is None and key is not None:
                target = for_key(key, count)
            else:
                if keyless is None:
                    keyless = self._keyless(view, record, selector, identity)
                target = keyless
            if (
                seen is not None
                and msg_id is not None
                and (first := seen.setdefault(msg_id, request_index)) != request_index
            ):
                duplicates_in_request[request_index] = first
                continue
            if tag is not None:
                headers = [*headers, (TAG_HEADER, tag.encode())]
            if group is not None:
                headers = [*headers, (MESSAGE_GROUP_HEADER, group.encode())]
            encoded = new(Record, (key, value, now_ms if timestamp_ms is None else timestamp_ms, headers))
            if delay_ms is not None or deliver_at_ms is not None:
                due_ms = self._due_ms(request_index, now_ms, delay_ms, deliver_at_ms)
                if due_ms > now_ms:
                    delayed.append(new(_Delayed, (request_index, target, due_ms, encoded)))
                    continue
            lane = lanes.get(target)
            if lane is None:
                lanes[target] = lane = _Lane(target, [], [])
            lane.records.append(encoded)
            lane.request_indexes.append(request_index)
        return list(lanes.values()), delayed, duplicates_in_request

    def _due_ms(self, request_index: int, now_ms: int, delay_ms: int | None, deliver_at_ms: int | None) -> int:
        """When a delayed record is due by this server's clock; at or before `now_ms`: at once (P2)."""
        due_ms = now_ms + delay_ms if delay_ms is not None else deliver_at_ms
        assert due_ms is not None
        delay_ms_max = self._limits.delay_ms_max
        if (delay_ms is not None and delay_ms < 0) or due_ms - now_ms > delay_ms_max:
            field = "deliver_at" if delay_ms is None else "delay_ms"
            rule = f"{field}: a delay must be between 0 and {delay_ms_max} ms"
            raise RequestError(DELAY_ILLEGAL, rule, validation_errors=[f"records[{request_index}].{rule}"])
        return due_ms

    async def _append(self, send: _Send, lanes: Sequence[_Lane]) -> None:
        """Append each lane to its partition's queue, one call a broker, and fill in the receipts."""
        by_broker: dict[Broker, list[_Lane]] = {}
        for lane in lanes:
            by_broker.setdefault(self._routes.writable(send.view.name, lane.partition).broker, []).append(lane)
        for broker, rest in by_broker.items():
            while rest:
                rest = await self._append_to(broker, send, rest)

    async def _append_to(self, broker: Broker, send: _Send, lanes: Sequence[_Lane]) -> list[_Lane]:
        """One call of the broker. What is returned must be sent again: then nothing was stored, and the receipts of the
        records that had been stored before are filled in."""
        sent: list[tuple[_Lane, Route]] = []
        appends: list[Append] = []
        size = 0
        for lane in lanes:
            route = self._routes.writable(send.view.name, lane.partition)
            for part, batch in _encode(lane):
                if self._compress:
                    batch = record_batch.compressed(batch)
                size += len(batch)
                appends.append(
                    Append(
                        queue=route.queue,
                        batch=batch,
                        record_count=len(part.records),
                        json_values=send.json_values,
                        tag_hashes=_tag_hashes(send.records, part.request_indexes) if send.has_tags else (),
                        identity=send.identity_of(part.request_indexes),
                        # What is before these records was stored by an earlier try of the same request.
                        expected_offset=None
                        if send.expected_offset is None or appends
                        else route.to_physical(send.expected_offset + part.request_indexes[0]),
                    )
                )
                sent.append((part, route))
        if send.sequence is not None and len(appends) > 1:
            raise _not_one_batch()
        try:
            answers = await self._send(sent[0][1], appends, send.acks)
        except AlreadyStored as known:
            rest = []
            for (part, _), found in zip(sent, known.originals, strict=True):
                if send.sequence is not None:
                    found = _all_of(found[0], len(part.records))
                self._answer_known(send, broker, part.request_indexes, found)
                if len(found) < len(part.records):
                    rest.append(part.only([i for i in range(len(part.records)) if i not in found]) if found else part)
            return rest
        self.byte_count += size
        new = tuple.__new__
        receipts = send.receipts
        for (part, route), answer in zip(sent, answers, strict=True):
            partition = part.partition
            offset = route.to_logical(answer.base_offset)
            reached = answer.acks
            for request_index, (_, _, timestamp_ms, _) in zip(part.request_indexes, part.records, strict=True):
                receipts[request_index] = new(Receipt, (partition, offset, timestamp_ms, None, None, reached, False))
                offset += 1
        return []

    def _answer_known(
        self, send: _Send, broker: Broker, request_indexes: Sequence[int], found: Mapping[int, Original]
    ) -> None:
        for index, original in found.items():
            request_index = request_indexes[index]
            send.receipts[request_index] = self._known(
                send.view, broker, original, send.records[request_index].timestamp_ms, send.acks
            )

    async def _schedule(self, send: _Send, delayed: Sequence[_Delayed]) -> None:
        """Hand the delayed records to the timers of the brokers that own their partitions, one batch a broker."""
        by_broker: dict[Broker, list[_Delayed]] = {}
        routes = self._routes_of(send.view.name, delayed)
        for waiting in delayed:
            by_broker.setdefault(routes[waiting.partition].broker, []).append(waiting)
        for broker, all_waiting in by_broker.items():
            lane = _Lane(-1, [waiting.record for waiting in all_waiting], list(range(len(all_waiting))))
            parts = list(_encode(lane))
            while parts:
                part, batch = parts.pop(0)
                group = [all_waiting[index] for index in part.request_indexes]
                found = await self._schedule_to(broker, send, batch, group)
                if found and len(found) < len(group):
                    parts[:0] = _encode(part.only([i for i in range(len(group)) if i not in found]))

    async def _schedule_to(
        self, broker: Broker, send: _Send, batch: bytearray, group: Sequence[_Delayed]
    ) -> Mapping[int, Original]:
        """Schedule one batch and fill in the receipts, or fill in those of the records that had been accepted before
        and return these; then nothing was stored."""
        routes = self._routes_of(send.view.name, group)
        delays = [Delay(waiting.due_ms, *routes[waiting.partition].queue) for waiting in group]
        request_indexes = [waiting.request_index for waiting in group]
        try:
            answer = await broker.schedule(
                batch,
                delays,
                json_values=send.json_values,
                tag_hashes=_tag_hashes(send.records, request_indexes) if send.has_tags else (),
                acks=send.acks,
                identity=send.identity_of(request_indexes),
            )
        except AlreadyStored as known:
            self._answer_known(send, broker, request_indexes, known.originals[0])
            return known.originals[0]
        self.byte_count += len(batch)
        self.scheduled_count += len(group)
        new, receipts, position, reached = tuple.__new__, send.receipts, answer.position, answer.acks
        for index, (request_index, partition, due_ms, record) in enumerate(group):
            schedule_id = encode_schedule_id(due_ms, position, index)
            receipts[request_index] = new(
                Receipt, (partition, None, record.timestamp_ms, schedule_id, due_ms, reached, False)
            )
        return {}

    def _routes_of(self, topic: str, delayed: Iterable[_Delayed]) -> Mapping[int, Route]:
        """Where the partitions of delayed records lie now."""
        return {partition: self._routes.writable(topic, partition) for partition in {one.partition for one in delayed}}


def _hashed_ids(topic_id: int, ids: Iterable[str | None]) -> list[bytes]:
    """Message ids as the store knows them. A copy of a hash that has begun takes two thirds of the time of another."""
    begun = blake2b(_SCOPE.pack(topic_id), digest_size=ID_BYTES).copy
    hashed = []
    for id_ in ids:
        if id_ is None:
            hashed.append(NO_ID)
        else:
            one = begun()
            one.update(id_.encode())
            hashed.append(one.digest())
    return hashed


_TAG_OF = attrgetter("tag")
_MSG_ID_OF = attrgetter("msg_id")
_SCOPE = struct.Struct(">I")


def _shifted(request_indexes: Sequence[int], by: int) -> Sequence[int]:
    """The indexes counted from another one; a range when they follow each other one by one, as they nearly always
    do."""
    first = request_indexes[0] + by
    if request_indexes[-1] - request_indexes[0] == len(request_indexes) - 1:
        return range(first, first + len(request_indexes))
    return [request_index + by for request_index in request_indexes]


def _all_of(first: Original, count: int) -> dict[int, Original]:
    """The originals of a whole batch, of which the first is known."""
    if first.offset is None:
        return dict.fromkeys(range(count), first)
    return {index: first._replace(offset=first.offset + index) for index in range(count)}


def _check_numbered(send: _Send, lanes: Sequence[_Lane], delayed: Sequence[_Delayed]) -> None:
    """Raises RequestError unless the records of a numbered producer can be one batch (P3)."""
    if delayed:
        raise invalid("Mq-Sequence is not for delayed records; give them a msg_id, or the request an Idempotency-Key")
    if send.has_ids:
        raise invalid("Mq-Sequence and msg_id exclude each other")
    if len(lanes) > 1:
        raise _not_one_batch()


def _selector_of(view: TopicView, selector: str | None) -> str | None:
    """The selector of a request, else of its topic; None: by key, as it is without a name."""
    name = view.config.selector if selector is None else selector
    return None if name == "key" else name


def _check_conditional(
    records: Sequence[ProduceRecord], partition: int | None, sequence: ProducerSequence | None
) -> None:
    """Raises RequestError unless the records go to one partition that the request names, now, and are no repeats."""
    targets = {partition if record.partition is None else record.partition for record in records}
    is_delayed = any(record.delay_ms is not None or record.deliver_at_ms is not None for record in records)
    if len(targets) > 1 or None in targets or is_delayed or sequence is not None or any(map(_MSG_ID_OF, records)):
        raise _not_conditional()


def _not_conditional() -> RequestError:
    return invalid(
        "If-Match is for records of one partition that the request names, without delay, msg_id or Mq-Sequence; "
        "an Idempotency-Key may go with it"
    )


def _not_one_batch() -> RequestError:
    return invalid("Mq-Sequence numbers one batch for one partition: name the partition, and send less at once")


def _indexes_by_partition(keys: Sequence[bytes], count: int, selector: Selector) -> dict[int, list[int]]:
    """The indexes of the records that go to each partition by their keys, partitions in the order they are met."""
    for_key = selector.for_key
    lanes: dict[int, list[int]] = {}
    for request_index, target in enumerate([for_key(key, count) for key in keys]):
        if (request_indexes := lanes.get(target)) is None:
            lanes[target] = [request_index]
        else:
            request_indexes.append(request_index)
    return lanes


def _tag_hashes(records: Sequence[ProduceRecord], request_indexes: Sequence[int]) -> Sequence[int]:
    """One hash a record of a batch; none when no record of it has a tag."""
    hashes = [0 if (tag := records[request_index].tag) is None else tag_hash(tag) for request_index in request_indexes]
    return hashes if any(hashes) else ()


def _check_partition(view: TopicView, partition: int) -> None:
    if not 0 <= partition < view.partitions:
        raise UnknownPartition(f"topic={view.name} has partitions 0 to {view.partitions - 1}, not {partition}")


class _Sized(Protocol):
    """What takes room in a record."""

    @property
    def key(self) -> bytes | None: ...
    @property
    def value(self) -> bytes | None: ...
    @property
    def headers(self) -> record_batch.Headers: ...


def _check_sizes(records: Iterable[_Sized], bytes_max: int) -> None:
    """Raises RequestError when a record is larger than its topic takes."""
    for request_index, record in enumerate(records):
        size = len(record.key or b"") + len(record.value or b"")
        size += sum(len(name.encode()) + len(value or b"") for name, value in record.headers)
        if size > bytes_max:
            rule = f"has {size} bytes of key, value and headers; this topic takes {bytes_max}"
            raise RequestError(RECORD_TOO_LARGE, rule, validation_errors=[f"records[{request_index}]: {rule}"])


def _encode(lane: _Lane) -> Iterator[tuple[_Lane, bytearray]]:
    """The lane as one batch, or as several in order when one would break a limit. Never too large for one record."""
    try:
        yield lane, record_batch.encode(lane.records)
        return
    except RecordTooLarge:
        if len(lane.records) == 1:
            raise
    half = len(lane.records) // 2
    yield from _encode(_Lane(lane.partition, lane.records[:half], lane.request_indexes[:half]))
    yield from _encode(_Lane(lane.partition, lane.records[half:], lane.request_indexes[half:]))
