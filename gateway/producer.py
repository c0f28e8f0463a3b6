"""Sending records: every way in (HTTP, socket) goes through here.

Records are checked as a whole, given a partition each, encoded into one RecordBatch a partition, and appended;
delayed ones go to the broker's timer instead, all of a request in one batch. Records of one partition keep the order
of the request. Work is per batch wherever it can be.

Invariants
    P1  nothing is appended or scheduled before every record of the request has a partition and a legal due time
    P2  a delay is never silently dropped: it is scheduled, due already (then an ordinary send), or refused
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from operator import attrgetter
from typing import NamedTuple

from gateway.brokers.base import Broker
from gateway.codec.records import ProduceRecord
from gateway.codec.tags import TAG_HEADER, batch_tag_hashes, tag_hash
from gateway.http.errors import DELAY_ILLEGAL, RequestError, UnknownPartition, invalid
from gateway.limits import Limits
from gateway.topics import Route, Routes, Selector, TopicView
from store import record_batch
from store.clock import Clock
from store.errors import RecordTooLarge
from store.limits import MiB
from store.record_batch import Record
from store.types import Acks, Append, Delay
from timer.schedule import encode_schedule_id

_TURN_BYTES = 1 * MiB  # raw bytes that are checked between two turns of the event loop


class Receipt(NamedTuple):
    """What became of one record: its offset, or, while it waits to be delivered, its schedule.

    `timestamp_ms` is the record's event time, `acks` the level of durability reached.
    """

    partition: int
    offset: int | None
    timestamp_ms: int
    schedule_id: str | None
    deliver_at_ms: int | None
    acks: Acks


class BatchReceipt(NamedTuple):
    """Where one raw batch went: the offset of its first record, and how many follow from there."""

    partition: int
    offset: int
    record_count: int
    acks: Acks


class _Lane(NamedTuple):
    """The records of a request that go to one partition, and their places in the request."""

    partition: int
    records: list[Record]
    places: list[int]


class _Delayed(NamedTuple):
    """A record that waits: its place in the request, where it goes, and when."""

    place: int
    partition: int
    due_ms: int
    record: Record


class Producer:
    """Sends records to the topics of a route table. `acks` is the level for requests that do not say; `compress` packs
    the batches made here with zstd where that pays.

    Counters since start: `record_counts` by topic, delayed ones included; `scheduled_count` those alone; `byte_count`.
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

    async def produce(
        self,
        topic: str,
        records: Sequence[ProduceRecord],
        *,
        partition: int | None = None,
        json_values: bool,
        acks: Acks | None = None,
    ) -> list[Receipt]:
        """Send records; return one receipt each, in their order, once all are as durable as `acks` says.

        `partition` is for records that name none. `json_values` promises that every key and value is JSON or null.
        Raises RequestError or StoreError. Before the first write nothing was stored; a store error after it leaves
        the outcome open unless it says otherwise.
        """
        assert records
        view = self._routes.topic(topic)
        if acks is None:
            acks = self._acks
        now_ms = self._clock.now_ms()
        if len(records) == 1 and records[0].delay_ms is None and records[0].deliver_at_ms is None:
            return [await self._produce_one(view, records[0], partition, now_ms, json_values, acks)]
        lanes, delayed = self._place(view, records, partition, now_ms)
        receipts: list[Receipt | None] = [None] * len(records)
        if lanes:
            await self._append(view, lanes, records, json_values, acks, receipts)
        if delayed:
            await self._schedule(view, delayed, records, json_values, acks, receipts)
        self._count(topic, len(records))
        self.scheduled_count += len(delayed)
        return [receipt for receipt in receipts if receipt is not None]

    async def _produce_one(
        self,
        view: TopicView,
        record: ProduceRecord,
        partition: int | None,
        now_ms: int,
        json_values: bool,
        acks: Acks,
    ) -> Receipt:
        """What the long way does for one record that is not delayed, in half the time: the commonest request."""
        key, value, headers, timestamp_ms, target, tag, _, _ = record
        if target is None:
            target = partition
        if target is not None:
            _check_partition(view, target)
        elif key is not None:
            target = self._selector.for_key(key, view.partitions)
        else:
            target = self._selector.next(view.name, view.partitions)
        if tag is not None:
            headers = [*headers, (TAG_HEADER, tag.encode())]
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
        )
        (answer,) = await route.broker.append((append,), acks=acks)
        self._count(view.name, 1)
        self.byte_count += len(batch)
        return Receipt(target, route.to_logical(answer.base_offset), timestamp_ms, None, None, answer.acks)

    async def produce_batches(
        self, topic: str, body: bytes, *, partition: int | None = None, acks: Acks | None = None
    ) -> list[BatchReceipt]:
        """Send raw RecordBatches laid end to end, each whole to one partition; one receipt each.

        Raises MalformedBatch, RecordTooLarge, UnknownQueue, or as `produce`; all batches are checked before a write.
        """
        view = self._routes.topic(topic)
        if partition is not None:
            _check_partition(view, partition)
        if not body:
            raise invalid("records must not be empty")
        partitions: list[int] = []
        by_broker: dict[Broker, list[tuple[int, Route, Append]]] = {}
        unseen_bytes = 0
        for place, batch in enumerate(record_batch.split(body)):
            unseen_bytes += len(batch)
            if unseen_bytes > _TURN_BYTES:
                unseen_bytes = 0
                await asyncio.sleep(0)
            header = record_batch.check(batch)
            target = self._selector.next(topic, view.partitions) if partition is None else partition
            partitions.append(target)
            route = self._routes.writable(topic, target)
            append = Append(
                queue=route.queue,
                batch=batch,
                record_count=header.record_count,
                tag_hashes=batch_tag_hashes(batch),
            )
            by_broker.setdefault(route.broker, []).append((place, route, append))
        receipts: list[BatchReceipt | None] = [None] * len(partitions)
        for broker, placed in by_broker.items():
            answers = await broker.append([append for _, _, append in placed], acks=acks or self._acks)
            for (place, route, append), answer in zip(placed, answers, strict=True):
                offset = route.to_logical(answer.base_offset)
                receipts[place] = BatchReceipt(partitions[place], offset, append.record_count, answer.acks)
                self._count(topic, append.record_count)
        self.byte_count += len(body)
        return [receipt for receipt in receipts if receipt is not None]

    def _count(self, topic: str, record_count: int) -> None:
        self.record_counts[topic] = self.record_counts.get(topic, 0) + record_count

    def _place(
        self, view: TopicView, records: Sequence[ProduceRecord], partition: int | None, now_ms: int
    ) -> tuple[list[_Lane], list[_Delayed]]:
        """Give every record its partition and due time (P1)."""
        name = view.name
        count = view.partitions
        if partition is not None:
            _check_partition(view, partition)
        for_key = self._selector.for_key
        lanes: dict[int, _Lane] = {}
        delayed: list[_Delayed] = []
        new = tuple.__new__  # a NamedTuple's own constructor takes three times as long
        keyless = partition  # all records of a request that have neither key nor partition go to one partition
        for place, record in enumerate(records):
            key, value, headers, timestamp_ms, target, tag, delay_ms, deliver_at_ms = record
            if target is not None:
                _check_partition(view, target)
            elif partition is not None:
                target = partition
            elif key is not None:
                target = for_key(key, count)
            else:
                if keyless is None:
                    keyless = self._selector.next(name, count)
                target = keyless
            if tag is not None:
                headers = [*headers, (TAG_HEADER, tag.encode())]
            encoded = new(Record, (key, value, now_ms if timestamp_ms is None else timestamp_ms, headers))
            if delay_ms is not None or deliver_at_ms is not None:
                due_ms = self._due_ms(place, now_ms, delay_ms, deliver_at_ms)
                if due_ms > now_ms:
                    delayed.append(_Delayed(place, target, due_ms, encoded))
                    continue
            lane = lanes.get(target)
            if lane is None:
                lanes[target] = lane = _Lane(target, [], [])
            lane.records.append(encoded)
            lane.places.append(place)
        return list(lanes.values()), delayed

    def _due_ms(self, place: int, now_ms: int, delay_ms: int | None, deliver_at_ms: int | None) -> int:
        """When a delayed record is due by this server's clock; at or before `now_ms`: at once (P2)."""
        due_ms = now_ms + delay_ms if delay_ms is not None else deliver_at_ms
        assert due_ms is not None
        delay_ms_max = self._limits.delay_ms_max
        if (delay_ms is not None and delay_ms < 0) or due_ms - now_ms > delay_ms_max:
            field = "deliver_at" if delay_ms is None else "delay_ms"
            rule = f"{field}: a delay must be between 0 and {delay_ms_max} ms"
            raise RequestError(422, DELAY_ILLEGAL, rule, validation_errors=[f"records[{place}].{rule}"])
        return due_ms

    async def _append(
        self,
        view: TopicView,
        lanes: Sequence[_Lane],
        records: Sequence[ProduceRecord],
        json_values: bool,
        acks: Acks,
        receipts: list[Receipt | None],
    ) -> None:
        """Append each lane to its partition's queue, one call a broker, and fill in the receipts."""
        by_broker: dict[Broker, tuple[list[Append], list[tuple[_Lane, Route]]]] = {}
        tagged = any(map(_TAG_OF, records))
        for lane in lanes:
            route = self._routes.writable(view.name, lane.partition)
            appends, sent = by_broker.setdefault(route.broker, ([], []))
            for part, batch in _encode(lane):
                if self._compress:
                    batch = record_batch.compressed(batch)
                self.byte_count += len(batch)
                appends.append(
                    Append(
                        queue=route.queue,
                        batch=batch,
                        record_count=len(part.records),
                        json_values=json_values,
                        tag_hashes=_tag_hashes(records, part.places) if tagged else (),
                    )
                )
                sent.append((part, route))
        new = tuple.__new__
        for broker, (appends, sent) in by_broker.items():
            answers = await broker.append(appends, acks=acks)
            for (part, route), answer in zip(sent, answers, strict=True):
                partition = part.partition
                offset = route.to_logical(answer.base_offset)
                reached = answer.acks
                for place, (_, _, timestamp_ms, _) in zip(part.places, part.records, strict=True):
                    receipts[place] = new(Receipt, (partition, offset, timestamp_ms, None, None, reached))
                    offset += 1

    async def _schedule(
        self,
        view: TopicView,
        delayed: Sequence[_Delayed],
        records: Sequence[ProduceRecord],
        json_values: bool,
        acks: Acks,
        receipts: list[Receipt | None],
    ) -> None:
        """Hand the delayed records to the timers of the brokers that own their partitions, one batch a broker."""
        by_broker: dict[Broker, list[_Delayed]] = {}
        for waiting in delayed:
            by_broker.setdefault(self._routes.writable(view.name, waiting.partition).broker, []).append(waiting)
        for broker, all_waiting in by_broker.items():
            lane = _Lane(-1, [waiting.record for waiting in all_waiting], list(range(len(all_waiting))))
            for part, batch in _encode(lane):
                self.byte_count += len(batch)
                group = [all_waiting[place] for place in part.places]
                delays = []
                for waiting in group:
                    queue = self._routes.writable(view.name, waiting.partition).queue
                    delays.append(Delay(waiting.due_ms, queue.topic_id, queue.queue_id))
                tag_hashes = _tag_hashes(records, [waiting.place for waiting in group])
                answer = await broker.schedule(batch, delays, json_values=json_values, tag_hashes=tag_hashes, acks=acks)
                for index, waiting in enumerate(group):
                    schedule_id = encode_schedule_id(waiting.due_ms, answer.position, index)
                    receipts[waiting.place] = Receipt(
                        waiting.partition, None, waiting.record.timestamp_ms, schedule_id, waiting.due_ms, answer.acks
                    )


_TAG_OF = attrgetter("tag")


def _tag_hashes(records: Sequence[ProduceRecord], places: Sequence[int]) -> Sequence[int]:
    """One hash a record of a batch; none when no record of it has a tag."""
    hashes = [0 if (tag := records[place].tag) is None else tag_hash(tag) for place in places]
    return hashes if any(hashes) else ()


def _check_partition(view: TopicView, partition: int) -> None:
    if not 0 <= partition < view.partitions:
        raise UnknownPartition(f"topic={view.name} has partitions 0 to {view.partitions - 1}, not {partition}")


def _encode(lane: _Lane) -> Iterator[tuple[_Lane, bytearray]]:
    """The lane as one batch, or as several in order when one would break a limit. Never too large for one record."""
    try:
        yield lane, record_batch.encode(lane.records)
        return
    except RecordTooLarge:
        if len(lane.records) == 1:
            raise
    half = len(lane.records) // 2
    yield from _encode(_Lane(lane.partition, lane.records[:half], lane.places[:half]))
    yield from _encode(_Lane(lane.partition, lane.records[half:], lane.places[half:]))
