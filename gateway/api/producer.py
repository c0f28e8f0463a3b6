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
from collections import defaultdict, deque
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from hashlib import blake2b
from itertools import chain
from operator import attrgetter
from time import perf_counter, thread_time
from typing import NamedTuple, Protocol

import orjson

from gateway.api.errors import error_of
from gateway.api.turns import COUNTED_BYTES, in_turns
from gateway.brokers.base import ALONE, AnswerLost, Broker, PartlyStored, Scheduler
from gateway.codec.columns import Columns
from gateway.codec.opened import opened
from gateway.codec.records import BATCH_REFUSED, STEP_RECORDS, ProduceRecord
from gateway.codec.schedule_ids import with_node
from gateway.codec.tags import (
    HEADER_DELAYS,
    HEADER_QUEUES,
    MESSAGE_GROUP_HEADER,
    QUEUES_HEADER,
    SCHEDULE_KEY_HEADER,
    TAG_HEADER,
    check_sent_in_steps,
    tag_hash,
)
from gateway.errors import DELAY_ILLEGAL, OFFSET_MOVED, RECORD_TOO_LARGE, SCHEDULE_KEY_TAKEN, RequestError, invalid
from gateway.routing.base import Route, Routes, Selector, TopicView, UnknownPartition, place_of
from gateway.routing.holding import await_move, held_until_s
from gateway.routing.light import light_route
from gateway.routing.select import SELECTORS
from gateway.routing.selectors import CustomSelector, Selected
from gateway.settings.limits import Limits
from store import record_batch
from store.clock import Clock
from store.errors import (
    AlreadyStored,
    DiskFull,
    NoLightQueues,
    OffsetMoved,
    Overloaded,
    RecordTooLarge,
    SealedQueue,
    StoreError,
    UnknownQueue,
)
from store.light_names import LightNames
from store.limits import KiB, MiB
from store.record_batch import Headers, Record
from store.store import LIGHT_FORMAT
from store.topics import TIMER_QUEUE
from store.turns import others_turn, stretches
from store.types import (
    ID_BYTES,
    NO_ID,
    Acks,
    Append,
    Appended,
    Buffer,
    Delay,
    Identity,
    Original,
    ProducerSequence,
    QueueKey,
    RecordNumbers,
    RequestPart,
)
from timer.errors import ScheduleKeyTaken
from timer.schedule import ScheduleId, encode_schedule_id, encode_schedule_ids

_SEQUENCE_MAX = 2**31 - 1  # after it, an idempotent producer's numbers begin again
_BATCH_BYTES = 2 * KiB  # what a batch takes to check, however small it is
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
    """One batch, of records or raw, on its way to `partition`. `outcome` is the broker's; `started_s` is of
    `perf_counter`; records without a time of their own have `now_ms`."""

    outcome: asyncio.Future[list[Appended]]
    topic: str
    partition: int
    route: Route
    record_count: int
    batch_bytes: int
    started_s: float
    now_ms: int
    expected_offset: int | None = None
    """Of its first record, if all goes as it looks; None: not known."""


class KeysTaken(RequestError):
    """SCHEDULE_KEY_TAKEN for the records of a request at these indexes. Nothing of it was stored."""

    def __init__(self, taken: Mapping[int, ScheduleId | None], node: str | None = None) -> None:
        self.refusals = {
            request_index: RequestError(
                SCHEDULE_KEY_TAKEN,
                "schedule_key: a send that is under way has it"
                if schedule is None
                else f"schedule_key: the pending schedule {with_node(node, schedule.text)} has it",
            )
            for request_index, schedule in taken.items()
        }
        first = self.refusals[min(taken)]
        super().__init__(
            first.error_code,
            f"{first.message}. Nothing was stored.",
            validation_errors=[f"records[{index}].{one.message}" for index, one in self.refusals.items()],
        )


class TooLong(Exception):
    """To check a batch takes longer than one turn of the event loop should. Nothing was stored."""


class _Lane(NamedTuple):
    """Records of a request that go the same way, and their indexes in the request: to one partition now, or, with a
    delay each, to one timer (`partition` is -1 then). `keys`: their schedule keys, if any has one."""

    partition: int
    request_indexes: Sequence[int]
    records: Sequence[Record] = ()
    delays: Sequence[Delay] = ()
    keys: Sequence[bytes | None] = ()
    timer: Scheduler | None = None

    def only(self, kept: Sequence[int]) -> _Lane:
        """The records of these indexes."""
        delays = [self.delays[i] for i in kept] if self.delays else ()
        keys = [self.keys[i] for i in kept] if self.keys else ()
        return _Lane(
            self.partition, [self.request_indexes[i] for i in kept], [self.records[i] for i in kept], delays, keys,
            self.timer,
        )  # fmt: skip


_Lists = tuple[list[int], list[Record], list[Delay]]
"""A lane that is being filled: indexes, records, delays."""


class _Part(NamedTuple):
    """What of a lane is one append."""

    lane: _Lane
    route: Route
    append: Append


_Elsewhere = Callable[[Sequence[_Part]], list[_Part] | None]
"""The same parts for partitions of another broker; None: they cannot go there."""

_Known = Callable[[_Part, Mapping[int, Original]], _Part | None]
"""Is told what of a part an earlier send has stored, by the indexes of its records; returns the rest, if any."""


class EncodedColumns(NamedTuple):
    """Records of a request, encoded: a batch for each partition, and where it goes. Nothing is sent yet."""

    topic: str
    record_count: int
    parts: Sequence[_Part]
    elsewhere: _Elsewhere | None


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
    has_queues: bool = False

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


class HeldWrites(Protocol):
    """The store of this process, as far as a turn of the event loop sends to it."""

    def hold_writes(self) -> None:
        """See `store.store.Store`."""
        ...

    def write_held(self, meanwhile: Callable[[], None] | None = None, *, caller_count: int = 1) -> None:
        """See `store.store.Store`."""
        ...

    def when_gathered(self, call: Callable[[], None]) -> bool:
        """See `store.store.Store`."""
        ...

    def next_offset(self, queue: QueueKey) -> int:
        """See `store.store.Store`."""
        ...


class Producer:
    """Sends records to the topics of a route table. `acks` is the level for requests that do not say; `compress` packs
    the batches made here with zstd where that pays.

    Counters since start: `record_count`, delayed ones included; `record_counts` of these by topic, of those that there
    are; `scheduled_count` delayed ones alone; `byte_count`. `duplicate_count`: records that were sent again, in none of
    the others.
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
        selectors: Mapping[str, CustomSelector] | None = None,
        store: HeldWrites | None = None,
    ) -> None:
        """`selectors`: those of installed packages, by name. `store`: this process's own."""
        self._own_store = store
        self._selectors = selectors or {}
        self._routes = routes
        self._selector = selector
        self._clock = clock
        self._limits = limits
        self._acks = acks
        self._compress = compress
        self.record_count = 0
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
        gives_way: bool = False,
    ) -> list[Receipt]:
        """Send records; return one receipt each, in their order, once all are as durable as `acks` says.

        `partition` is for records that name none; else `selector`, or the topic's, says how it is chosen
        (gateway/routing/select.py).
        `json_values` promises that every key and value is JSON or null. With an `identity` or a `sequence` a repeat
        stores nothing twice; it waits for an equal request that is under way. With an `expected_offset` all is stored
        in one partition from that offset on, or nothing (412/41250). With `gives_way` others have their turns while
        many records are encoded: what is sent meanwhile may come first.
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
        selector = self.selector_of(view, selector)
        now_ms = self._clock.now_ms()
        if len(records) == 1 and records[0].delay_ms is None and records[0].deliver_at_ms is None:
            return [
                await self._produce_one(
                    view, records[0], partition, now_ms, json_values, acks, selector, identity, sequence,
                    expected_offset,
                )
            ]  # fmt: skip
        immediate, scheduled, duplicates_in_request = self._select(view, records, partition, now_ms, selector, identity)
        receipts: list[Receipt | None] = [None] * len(records)
        send = _Send(
            view, records, json_values, acks, identity, sequence, receipts,
            any(map(_TAG_OF, records)), any(map(_MSG_ID_OF, records)), any(map(_QUEUES_OF, records)),
        )  # fmt: skip
        if sequence is not None:
            _check_numbered(send, immediate, scheduled)
        # Delayed ones first, those with keys before others: what a timer refuses, it refuses before anything of the
        # request is stored.
        scheduled = sorted(scheduled, key=lambda lane: not lane.keys)
        parts: list[_Part] = []
        for part in chain.from_iterable(self._parts(send, lane) for lane in (*scheduled, *immediate)):
            if part is not None:
                parts.append(part)
            elif gives_way:
                await others_turn()
        if sequence is not None and len(parts) > 1:
            raise _not_one_batch()
        for part, answer in await self._store(
            topic,
            parts,
            acks,
            known=partial(self._answer_known, send),
            elsewhere=partial(self._free_elsewhere, send, partition, selector),
            expected_offset=expected_offset,
        ):
            self._answer(send, part, answer)
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
        nothing stored, for what only `produce` can do: what is too large for its topic, or for one batch. Once they are
        encoded the columns are not held any more."""
        encoded = self.encoded_columns(topic, columns, partition=partition, json_values=json_values)
        del columns
        return None if encoded is None else await self.store_columns(encoded, acks=acks)

    def encoded_columns(
        self, topic: str, columns: Columns, *, partition: int | None, json_values: bool
    ) -> EncodedColumns | None:
        """The first part of `produce_columns`. Nothing is sent."""
        view = self._routes.topic(topic)
        keys, values, quote = columns
        count = len(values)
        if view.config.selector is not None:
            return None
        bytes_max = view.config.max_message_bytes
        if bytes_max is not None and columns.bytes_max > bytes_max:
            return None
        elsewhere: _Elsewhere | None = None
        if partition is not None:
            _check_partition(view, partition)
        elif keys is None:
            partition = self._selector.next(topic, view.partitions)
            elsewhere = partial(self._elsewhere, view, None)
        lanes: Mapping[int, Sequence[int]]
        if partition is None:
            assert keys is not None
            lanes = _indexes_by_partition(keys, view.partitions, self._selector)
        else:
            lanes = {partition: range(count)}
        now_ms = self._clock.now_ms()
        parts = []
        for target, request_indexes in lanes.items():
            own_keys, own_values = keys, values
            if len(request_indexes) < count:
                own_keys = None if keys is None else [keys[request_index] for request_index in request_indexes]
                own_values = [values[request_index] for request_index in request_indexes]
            try:
                batch = record_batch.encode_columns(own_keys, own_values, now_ms, quote=quote)
            except RecordTooLarge:
                return None
            if self._compress:
                batch = record_batch.compressed(batch)
            route = self._routes.writable(topic, target)
            append = Append(queue=route.queue, batch=batch, record_count=len(request_indexes), json_values=json_values)
            parts.append(_Part(_Lane(target, request_indexes), route, append))
        return EncodedColumns(topic, count, parts, elsewhere)

    async def store_columns(self, encoded: EncodedColumns, *, acks: Acks | None) -> list[StoredBatch]:
        """The second part of `produce_columns`. Durable on return at the level that each of the answers says. Raises
        as it does."""
        topic, count, parts, elsewhere = encoded
        stored = [
            StoredBatch(lane.partition, lane.request_indexes, route.to_logical(answer.base_offset), answer.acks)
            for (lane, route, _), answer in await self._store(
                topic, parts, self._acks if acks is None else acks, elsewhere=elsewhere
            )
        ]
        self._count(topic, count)
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
        until_s: float | None = None
        is_second = False
        while True:
            try:
                (answer,) = await self._send(route, (append,), acks)
                break
            except AlreadyStored as known:
                self.duplicate_count += 1
                return self._known(view, route.broker, known.originals[0][0], record.timestamp_ms, acks)
            except SealedQueue:
                until_s = held_until_s() if until_s is None else until_s
                await await_move(self._routes, view.name, ((target, route),), until_s)
                route = self._routes.writable(view.name, target)
                append = replace(append, queue=route.queue)
                if expected_offset is not None:
                    append = replace(append, expected_offset=route.to_physical(expected_offset))
            except (Overloaded, DiskFull):
                is_free = partition is None and own is None and _is_free(record, selector) and not is_second
                moved = (
                    self._elsewhere(view, selector, [_Part(_Lane(target, (0,)), route, append)]) if is_free else None
                )
                if moved is None:
                    raise
                ((lane, route, append),) = moved
                target, is_second = lane.partition, True
        self._count(view.name, 1)
        self.byte_count += len(append.batch)
        return Receipt(target, route.to_logical(answer.base_offset), timestamp_ms, None, None, answer.acks)

    def refusals(self, topic: str, records: Sequence[ProduceRecord]) -> dict[int, RequestError]:
        """Which of these records `produce` refuses, by index, for what is wrong with them alone: larger than the topic
        takes, for a partition that is not there, due too late. For those who send the others without them."""
        view = self._routes.topic(topic)
        bytes_max = view.config.max_message_bytes
        now_ms = self._clock.now_ms()
        refused: dict[int, RequestError] = {}
        for request_index, record in enumerate(records):
            try:
                if bytes_max is not None:
                    _check_sizes((record,), bytes_max)
                if record.partition is not None:
                    _check_partition(view, record.partition)
                if record.delay_ms is not None or record.deliver_at_ms is not None:
                    self._due_ms(request_index, now_ms, record.delay_ms, record.deliver_at_ms)
                elif record.schedule_key is not None:
                    raise _not_delayed(request_index)
            except (RequestError, UnknownPartition) as error:
                refused[request_index] = error_of(error)
        return refused

    def prepared(self, topic: str, records: Sequence[ProduceRecord]) -> list[tuple[int, Record]]:
        """The partition that each of these records would go to now, and the record as it would be stored. Nothing is
        sent. Raises as `produce`."""
        view = self._routes.topic(topic)
        return self._prepare(view, records, None, self._clock.now_ms(), self.selector_of(view, None), None)

    def batch_partition(
        self, view: TopicView, record: ProduceRecord, partition: int | None
    ) -> tuple[int | None] | None:
        """The partition of a record that may go into one batch with those of other requests, in a tuple; (None,): any
        partition, one for all records of a `begin`. None for what only `produce` can do: delays, message ids, topics
        with limits or a selector of their own. Raises UnknownPartition."""
        key, _, _, _, own, _, delay_ms, deliver_at_ms, msg_id, group, schedule_key, queues = record
        if delay_ms is not None or deliver_at_ms is not None or msg_id is not None or schedule_key is not None:
            return None
        if view.config.max_message_bytes is not None or view.config.selector is not None:
            return None
        if partition is not None:
            _check_partition(view, partition)
        if own is None and (partition is not None or (key is None and group is None and not queues)):
            return (partition,)  # as `_target`
        return (self._target(view, record, partition, None),)

    def begin(
        self,
        topic: str,
        records: Sequence[ProduceRecord],
        *,
        partition: int | None,
        json_values: bool,
        acks: Acks | None,
    ) -> Begun:
        """Begin to store records of one `batch_partition`, as one batch; `finish` takes the broker's answer. Raises as
        `produce`; nothing was stored then."""
        view = self._routes.topic(topic)
        now_ms = self._clock.now_ms()
        keys, values, headers, *others = zip(*records, strict=True)
        if any(headers) or others != [(None,) * len(records)] * len(others):
            return self._begin_any(view, records, partition, json_values, acks, now_ms)
        # Nothing but keys and values: all of them go one way, and have one time.
        target = self._keyless(view, records[0], None, None) if partition is None else partition
        route = self._routes.writable(topic, target)
        batch = record_batch.encode_columns(keys, values, now_ms)
        append = Append(queue=route.queue, batch=batch, record_count=len(records), json_values=json_values)
        return self._begun(topic, target, route, append, acks, now_ms)

    def _begin_any(
        self,
        view: TopicView,
        records: Sequence[ProduceRecord],
        partition: int | None,
        json_values: bool,
        acks: Acks | None,
        now_ms: int,
    ) -> Begun:
        prepared = self._prepare(view, records, partition, now_ms, None, None)
        target = prepared[0][0]
        route = self._routes.writable(view.name, target)
        append = Append(
            queue=route.queue,
            batch=record_batch.encode([encoded for _, encoded in prepared]),
            record_count=len(records),
            json_values=json_values,
            tag_hashes=tuple(_tag_hashes(records, range(len(records)))),
        )
        if any(map(_QUEUES_OF, records)):
            self._check_light(view, (target,))
            append.light = LightNames.of([record.queues or () for record in records])
        return self._begun(view.name, target, route, append, acks, now_ms)

    def _begun(self, topic: str, target: int, route: Route, append: Append, acks: Acks | None, now_ms: int) -> Begun:
        started_s = perf_counter()
        expected = None if self._own_store is None else route.to_logical(self._own_store.next_offset(route.queue))
        outcome = route.broker.begin_append((append,), acks=self._acks if acks is None else acks)
        return Begun(outcome, topic, target, route, append.record_count, len(append.batch), started_s, now_ms, expected)

    def hold_writes(self) -> None:
        """What is begun before `write_held`, in the same turn of the event loop, is written together."""
        if self._own_store is not None:
            self._own_store.hold_writes()

    def write_held(self, meanwhile: Callable[[], None] | None = None, *, caller_count: int = 1) -> None:
        """Have what was begun written now where nothing is to be waited for: its outcome is there on return then.
        `meanwhile` is called while the disk works for it, if that is known; it must not raise. `caller_count`: how
        many wait for it."""
        if self._own_store is not None:
            self._own_store.write_held(meanwhile, caller_count=caller_count)

    def when_gathered(self, call: Callable[[], None]) -> bool:
        """Whether what is sent to this process's store waits for others in any case. If so `call` is called when it
        does no more, once. It must not raise."""
        return self._own_store is not None and self._own_store.when_gathered(call)

    def finish(self, begun: Begun) -> tuple[int, Acks]:
        """The offset of the first of the begun records, and how durable they are. Raises what the broker's answer
        raises."""
        try:
            (answer,) = begun.outcome.result()
        except StoreError as error:
            self._routes.failed(begun.route.broker, perf_counter() * 1000, error)
            raise
        ended_s = perf_counter()
        self._routes.answered(begun.route.broker, (ended_s - begun.started_s) * 1000, ended_s * 1000)
        self._count(begun.topic, begun.record_count)
        self.byte_count += begun.batch_bytes
        return begun.route.to_logical(answer.base_offset), answer.acks

    def _target(
        self, view: TopicView, record: ProduceRecord, partition: int | None, selector: str | None
    ) -> int | None:
        """The partition that a record, its request or its key names; None: any."""
        if record.partition is not None:
            _check_partition(view, record.partition)
            return record.partition
        if partition is not None:
            return partition
        if selector is None and record.message_group is not None:
            return self._selector.for_key(record.message_group.encode(), view.partitions)
        if selector is None and record.key is not None:
            return self._selector.for_key(record.key, view.partitions)
        if record.queues:  # so that a queue is in one partition, unless its records say otherwise
            return self._selector.for_key(record.queues[0], view.partitions)
        return None

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
        ((target, encoded),) = self._prepare(view, (record,), partition, now_ms, selector, identity)
        batch = record_batch.encode((encoded,))
        route = self._routes.writable(view.name, target)
        tag = record.tag
        append = Append(
            queue=route.queue,
            batch=batch,
            record_count=1,
            json_values=json_values,
            tag_hashes=() if tag is None else (tag_hash(tag),),
            identity=own,
        )
        if record.queues:
            self._check_light(view, (target,))
            append.light = LightNames.of((record.queues,))
        return target, encoded.timestamp_ms, route, append

    def _prepare(
        self,
        view: TopicView,
        records: Sequence[ProduceRecord],
        partition: int | None,
        now_ms: int,
        selector: str | None,
        identity: RequestIdentity | None,
    ) -> list[tuple[int, Record]]:
        """The partition of each record of a request, and the record as it is stored."""
        if partition is not None:
            _check_partition(view, partition)
        new = tuple.__new__  # a NamedTuple's own constructor takes three times as long
        keyless: int | None = None  # all records of a request that nothing gives a partition go to one
        prepared: list[tuple[int, Record]] = []
        for record in records:
            key, value, headers, timestamp_ms, _, tag, delay_ms, deliver_at_ms, _, group, schedule_key, _ = record
            target = self._target(view, record, partition, selector)
            if target is None and selector in self._selectors:
                target = self._next(view, selector, key, headers)
            elif target is None:
                if keyless is None:
                    keyless = self._keyless(view, record, selector, identity)
                target = keyless
            if tag is not None:
                headers = [*headers, (TAG_HEADER, tag.encode())]
            if group is not None:
                headers = [*headers, (MESSAGE_GROUP_HEADER, group.encode())]
            if schedule_key is not None:
                if delay_ms is None and deliver_at_ms is None:
                    raise _not_delayed(len(prepared))
                headers = [*headers, (SCHEDULE_KEY_HEADER, schedule_key.encode())]
            stored = new(Record, (key, value, now_ms if timestamp_ms is None else timestamp_ms, headers))
            prepared.append((target, stored))
        return prepared

    async def _send(
        self, route: Route, appends: Sequence[Append], acks: Acks, lane: _Lane | None = None
    ) -> list[Appended]:
        """Have the route's broker store appends, or schedule the one of a delayed lane, and tell the route table how it
        did. An expected offset is of this route."""
        broker = route.broker
        started_s = perf_counter()
        try:
            if lane is not None and lane.delays:
                timer = lane.timer or broker
                answers = [await timer.schedule(append, acks=acks, keys=lane.keys) for append in appends]
            else:
                answers = await broker.append(appends, acks=acks)
        except ScheduleKeyTaken as error:
            assert lane is not None
            taken = {lane.request_indexes[index]: id_ for index, id_ in error.taken.items()}
            raise KeysTaken(taken, _node_of(lane.timer or broker)) from None
        except OffsetMoved as moved:
            end_offset = route.to_logical(moved.next_offset)
            message = f"The partition ends at offset {end_offset} now. Nothing was stored."
            raise RequestError(OFFSET_MOVED, message, details={"end_offset": end_offset}) from None
        except StoreError as error:
            if lane is None or lane.timer is None:
                self._routes.failed(broker, perf_counter() * 1000, error)
            raise
        if lane is not None and lane.timer is not None:
            return answers  # which tells nothing of the broker
        ended_s = perf_counter()
        self._routes.answered(broker, (ended_s - started_s) * 1000, ended_s * 1000)
        return answers

    def _routed(self, topic: str, part: _Part) -> _Part:
        """The part on its way to where its partition is now."""
        route = self._routes.writable(topic, part.lane.partition)
        return part._replace(route=route, append=replace(part.append, queue=route.queue))

    async def _moved(self, topic: str, parts: Sequence[_Part], until_s: float) -> list[list[_Part]]:
        """The calls for parts whose partitions move, when they have. Raises as `await_move`."""
        await await_move(self._routes, topic, [(part.lane.partition, part.route) for part in parts], until_s)
        return _by_call([self._routed(topic, part) for part in parts])

    async def _store(
        self,
        topic: str,
        parts: Iterable[_Part],
        acks: Acks,
        *,
        known: _Known | None = None,
        elsewhere: _Elsewhere | None = None,
        expected_offset: int | None = None,
    ) -> list[tuple[_Part, Appended]]:
        """Send parts, those of one partition in their order and one call a broker (schedules one by one); what was
        stored, and where. A call that meets a partition which moves is held, and made again. `known` is told what an
        earlier send has stored of a part, and returns what is left of it. `elsewhere` is asked once for other
        partitions when a broker has refused parts and stored nothing of them. `expected_offset` is the partition's for
        the first record of the request. Errors that say that nothing was stored are true of all parts."""
        stored: list[tuple[_Part, Appended]] = []
        try:
            await self._store_into(stored, topic, parts, acks, known, elsewhere, expected_offset)
        except AnswerLost:
            raise
        except (KeysTaken, StoreError) as error:
            if stored:
                raise AnswerLost(f"a part of the request was stored, and another was not: {error}") from error
            raise
        return stored

    async def _store_into(
        self,
        stored: list[tuple[_Part, Appended]],
        topic: str,
        parts: Iterable[_Part],
        acks: Acks,
        known: _Known | None,
        elsewhere: _Elsewhere | None,
        expected_offset: int | None,
    ) -> None:
        """See `_store`."""
        calls = deque((call, False) for call in _by_call(parts))
        until_s: float | None = None
        while calls:
            call, is_second = calls.popleft()
            appends = [part.append for part in call]
            lane, route, append = call[0]
            if expected_offset is not None:
                # What is before these records was stored by an earlier try of the same request.
                expected = route.to_physical(expected_offset + lane.request_indexes[0])
                appends[0] = replace(append, expected_offset=expected)
            try:
                answers = await self._send(route, appends, acks, lane)
            except AlreadyStored as error:
                assert known is not None
                left = [
                    known(part, found) if found else part for part, found in zip(call, error.originals, strict=True)
                ]
                again = _by_call([part for part in left if part is not None])
            except PartlyStored as partly:
                if not isinstance(partly.error, SealedQueue) or expected_offset is not None:
                    raise
                told = zip(call, partly.answers, strict=True)
                stored += [(part, answer) for part, answer in told if answer is not None]
                rest = [part for part, answer in zip(call, partly.answers, strict=True) if answer is None]
                until_s = held_until_s() if until_s is None else until_s
                again = await self._moved(topic, rest, until_s)
            except SealedQueue:  # nothing of this call was stored
                until_s = held_until_s() if until_s is None else until_s
                again = await self._moved(topic, call, until_s)
            except (Overloaded, DiskFull):
                moved = None if elsewhere is None or is_second else elsewhere(call)
                if moved is None:
                    raise
                again, is_second = [moved], True
            else:
                again = []
                self.byte_count += sum([len(append.batch) for append in appends])
                stored += zip(call, answers, strict=True)
            calls.extendleft((one, is_second) for one in reversed(again))

    def _elsewhere(self, view: TopicView, selector: str | None, parts: Sequence[_Part]) -> list[_Part] | None:
        """Parts that may go to any partition, in one on another broker than the one that has just refused them; None
        when there is no other."""
        if selector in self._selectors:
            return None  # it has chosen for reasons of its own
        broker = parts[0].route.broker
        target = self._selector.next(view.name, view.partitions, selector, failed_broker=broker.name)
        route = self._routes.writable(view.name, target)
        if route.broker is broker:
            return None
        return [
            _Part(lane._replace(partition=target), route, replace(append, queue=route.queue))
            for lane, _, append in parts
        ]

    def _free_elsewhere(
        self, send: _Send, partition: int | None, selector: str | None, parts: Sequence[_Part]
    ) -> list[_Part] | None:
        """As `_elsewhere`, for parts of a request whose records may name partitions; None when one does."""
        if partition is not None or send.identity is not None or send.sequence is not None:
            return None
        for lane, _, _ in parts:
            if lane.delays or not all(_is_free(send.records[at], selector) for at in lane.request_indexes):
                return None
        return self._elsewhere(send.view, selector, parts)

    def _known(
        self,
        view: TopicView,
        broker: Broker,
        original: Original,
        timestamp_ms: int | None,
        acks: Acks,
        timer: Scheduler | None = None,
    ) -> Receipt:
        """The receipt of a record that an earlier send stored, as a broker says, or a timer of its own."""
        if timestamp_ms is None:
            timestamp_ms = original.store_time_ms
        if (schedule := original.schedule) is None:
            partition, offset = place_of(self._routes, view.name, broker, original)
            return Receipt(partition, offset, timestamp_ms, None, None, acks, True)
        return Receipt(
            original.queue.queue_id, None, timestamp_ms,
            with_node(_node_of(timer or broker), encode_schedule_id(*schedule)), schedule.due_ms, acks, True,
        )  # fmt: skip

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
        selector = self.selector_of(view, selector)
        if view.config.mq_headers and _may_name_queues(body):
            return await self._produce_with_queues(
                view, body, partition, acks, selector, identity=identity, sequence=sequence,
                expected_offset=expected_offset,
            )  # fmt: skip
        parts: list[_Part] = []
        unseen_bytes = record_count = 0
        for batch in record_batch.split(body):
            if sequence is not None and (partition is None or parts):
                raise _not_one_batch()
            if len(parts) == self._limits.records_per_request_max:
                raise too_many_batches(len(parts))
            unseen_bytes += max(len(batch), _BATCH_BYTES)
            if unseen_bytes > _TURN_BYTES:
                unseen_bytes = 0
                await others_turn()
            count, tag_hashes = await self.checked(topic, batch)
            target = self._next(view, selector) if partition is None else partition
            route = self._routes.writable(topic, target)
            request_indexes = range(record_count, record_count + count)
            own: Identity | None = None
            if identity is not None or sequence is not None:
                own = _Send(view, (), False, acks, identity, sequence, [], False, False).identity_of(request_indexes)
            record_count += count
            append = Append(queue=route.queue, batch=batch, record_count=count, tag_hashes=tag_hashes, identity=own)
            parts.append(_Part(_Lane(target, request_indexes), route, append))
        receipts: dict[int, BatchReceipt] = {}  # by the index of the first record

        def known(part: _Part, found: Mapping[int, Original]) -> None:
            original = found[min(found)]
            at, offset = place_of(self._routes, topic, part.route.broker, original)
            count = part.append.record_count
            receipts[part.lane.request_indexes[0]] = BatchReceipt(at, offset, count, acks, True)
            self.duplicate_count += count

        for (lane, route, append), answer in await self._store(
            topic,
            parts,
            acks,
            known=known,
            elsewhere=partial(self._elsewhere, view, selector) if partition is None and identity is None else None,
            expected_offset=expected_offset,
        ):
            offset = route.to_logical(answer.base_offset)
            receipts[lane.request_indexes[0]] = BatchReceipt(lane.partition, offset, append.record_count, answer.acks)
            self._count(topic, append.record_count)
        return [receipts[part.lane.request_indexes[0]] for part in parts]

    async def _produce_with_queues(
        self,
        view: TopicView,
        body: bytes,
        partition: int | None,
        acks: Acks,
        selector: str | None,
        *,
        identity: RequestIdentity | None,
        sequence: ProducerSequence | None,
        expected_offset: int | None,
    ) -> list[BatchReceipt]:
        """As `produce_batches`, of records that may name light queues by header: each batch is opened, and stored after
        the one before it."""
        batches: list[list[ProduceRecord]] = []
        for batch in record_batch.split(body):
            if len(batches) == self._limits.records_per_request_max or (sequence is not None and batches):
                raise _not_one_batch() if sequence is not None else too_many_batches(len(batches))
            await in_turns(check_sent_in_steps(batch, allowed=HEADER_QUEUES))
            records: list[ProduceRecord] = []
            for record in opened(batch, allowed=HEADER_QUEUES):
                records.append(record)
                if len(records) % STEP_RECORDS == 0:
                    await others_turn()
            batches.append(records)
        receipts: list[BatchReceipt] = []
        record_count = 0
        for records in batches:
            target = self._next(view, selector) if partition is None else partition
            first, *_ = await self.produce(
                view.name,
                records,
                partition=target,
                json_values=False,
                acks=acks,
                identity=None if identity is None else identity.at(record_count),
                sequence=sequence,
                expected_offset=None if expected_offset is None else expected_offset + record_count,
            )
            receipts.append(BatchReceipt(first.partition, first.offset, len(records), first.acks, first.duplicate))
            record_count += len(records)
        return receipts

    async def checked(self, topic: str, batch: Buffer) -> tuple[int, Sequence[int]]:
        """The number of records of a raw batch, and their tag hashes; of a large one with others' turns in between.
        Raises MalformedBatch, RecordTooLarge, IllegalRecord, UnknownQueue, RequestError."""
        header, tag_hashes = await in_turns(check_sent_in_steps(batch), is_counted=len(batch) >= COUNTED_BYTES)
        if (bytes_max := self._routes.topic(topic).config.max_message_bytes) is not None:
            await in_turns(_check_sizes_in_steps(bytes_max, batch))
        return header.record_count, tag_hashes

    def checked_at_once(self, topic: str, batch: Buffer) -> tuple[int, Sequence[int]]:
        """As `checked`, here and now. Raises TooLong, too, when it takes more than one step, or this turn is full."""
        return _checked_batch(self._routes.topic(topic), batch, is_short=True)

    def begin_batch(
        self,
        topic: str,
        partition: int | None,
        batch: Buffer,
        *,
        acks: Acks | None,
        is_numbered: bool,
        checked: tuple[int, Sequence[int]] | None = None,
        is_short: bool = False,
        is_given: bool = False,
    ) -> Begun:
        """Begin to send one raw batch to a partition, or to the topic's next; `finish_batch` takes the broker's answer.
        With `is_numbered` a repeat of a batch that an idempotent producer has numbered stores nothing twice. `checked`:
        what `checked` gave for the batch, which else is checked here and now; with `is_short` only if that takes one
        step, and this turn is not full. `is_given`: see `Append`. Raises as `produce_batches`, SequenceGone, TooLong;
        nothing was stored then."""
        view = self._routes.topic(topic)
        if partition is not None:
            _check_partition(view, partition)
        if checked is None:
            checked = _checked_batch(view, batch, is_short=is_short)
        count, tag_hashes = checked
        if partition is None:
            partition = self._next(view, self.selector_of(view, None))
        route = self._routes.writable(topic, partition)
        append = Append(
            queue=route.queue,
            batch=batch,
            record_count=count,
            tag_hashes=tag_hashes,
            identity=_identity_of_numbered(batch, count) if is_numbered else None,
            is_given=is_given,
        )
        started_s = perf_counter()
        outcome = route.broker.begin_append((append,), acks=self._acks if acks is None else acks)
        return Begun(outcome, topic, partition, route, count, len(batch), started_s, 0)

    async def produce_opened(
        self, topic: str, partition: int, batch: Buffer, *, acks: Acks | None
    ) -> Sequence[Receipt]:
        """Send the records of a raw batch to a partition, each when its headers say (topics with `mq_headers`); a
        receipt each, once all are as durable as `acks` says. A repeat of what an idempotent producer has numbered
        stores nothing twice, within the window of message ids. Raises as `produce`, MalformedBatch, IllegalRecord."""
        count = record_batch.check(batch, limited=True).record_count
        most = self._limits.records_per_request_max
        if count > most:
            raise RecordTooLarge(f"a batch of {count} records; a topic with mq.headers takes {most} at once")
        records: list[ProduceRecord] = []
        for record in opened(batch, allowed=HEADER_DELAYS):
            records.append(record)
            if len(records) % STEP_RECORDS == 0:
                await others_turn()
        producer_id, epoch, first = record_batch.numbers_of(batch)
        if producer_id >= 0 and epoch >= 0 and first >= 0:
            begin = f"kafka/{producer_id}/{epoch}/{partition}"
            records = [
                record._replace(msg_id=f"{begin}/{first + index & _SEQUENCE_MAX}")
                for index, record in enumerate(records)
            ]
        return await self.produce(topic, records, partition=partition, json_values=False, acks=acks, gives_way=True)

    def finish_batch(self, begun: Begun) -> BatchReceipt:
        """Where a begun batch is. Raises what the broker's answer raises."""
        outcome, topic, partition, route, count, batch_bytes, started_s, _, _ = begun
        try:
            (answer,) = outcome.result()
        except AlreadyStored as known:
            original = known.originals[0][0]
            partition, offset = place_of(self._routes, topic, route.broker, original)
            self.duplicate_count += count
            return BatchReceipt(partition, offset, count, self._acks, True)
        except StoreError as error:
            self._routes.failed(route.broker, perf_counter() * 1000, error)
            raise
        ended_s = perf_counter()
        self._routes.answered(route.broker, (ended_s - started_s) * 1000, ended_s * 1000)
        self._count(topic, count)
        self.byte_count += batch_bytes
        return BatchReceipt(partition, route.to_logical(answer.base_offset), count, answer.acks)

    def forget(self, topic: str) -> None:
        """A topic is gone: nothing is kept by its name."""
        self.record_counts.pop(topic, None)
        self._selector.forget(topic)

    def count_by_topic(self, topic: str, record_count: int) -> None:
        """Count records of a topic alone; of one that is gone, not at all."""
        if topic not in self.record_counts:
            try:
                self._routes.topic(topic)
            except UnknownQueue:
                return
        self.record_counts[topic] = self.record_counts.get(topic, 0) + record_count

    def _count(self, topic: str, record_count: int) -> None:
        self.record_count += record_count
        self.count_by_topic(topic, record_count)

    def selector_of(self, view: TopicView | None, selector: str | None) -> str | None:
        """The selector of a request, else of its topic; None: by key, as it is without a name. Raises RequestError for
        one that is not here."""
        name = view.config.selector if selector is None and view is not None else selector
        if name is None or name == "key":
            return None
        if name not in SELECTORS and name not in self._selectors:
            there_are = ", ".join((*SELECTORS, *self._selectors))
            raise invalid(f"selector: {name} is none that this server has installed; there are {there_are}")
        return name

    def _next(self, view: TopicView, selector: str | None, key: bytes | None = None, headers: Headers = ()) -> int:
        """The partition of a record, or of all that have neither key nor partition, that a selector chooses."""
        custom = self._selectors.get(selector or "")
        if custom is None:
            return self._selector.next(view.name, view.partitions, selector)
        brokers = tuple(self._routes.broker_name(view.name, partition) for partition in range(view.partitions))
        chosen = custom.select(Selected(view.name, key, headers, brokers))
        if type(chosen) is not int or not 0 <= chosen < view.partitions:
            raise RuntimeError(f"selector {selector} chose partition {chosen!r} of {view.partitions}")
        return chosen

    def _keyless(
        self, view: TopicView, record: ProduceRecord, selector: str | None, identity: RequestIdentity | None
    ) -> int:
        """The partition of records without key. Those with an id go by it, so that a repeat meets the same broker."""
        if selector is None and identity is not None:
            return zlib.crc32(identity.request_id) % view.partitions
        if selector is None and record.msg_id is not None:
            return zlib.crc32(record.msg_id.encode()) % view.partitions
        return self._next(view, selector)

    def _select(
        self,
        view: TopicView,
        records: Sequence[ProduceRecord],
        partition: int | None,
        now_ms: int,
        selector: str | None,
        identity: RequestIdentity | None,
    ) -> tuple[list[_Lane], list[_Lane], dict[int, int]]:
        """Give every record its partition and due time (P1): the lanes to be stored now, those to be scheduled, and the
        indexes of records whose msg_id an earlier one of this request has, with the index of that one."""
        by_partition: dict[int, _Lists] = {}
        by_timer: dict[tuple[Broker | None, Scheduler | None], _Lists] = {}  # of a broker, or a shard
        timers: dict[
            tuple[int, str | None, bool], _Lists
        ] = {}  # ... by partition, key, and whether it has an id: to look it up takes as long as all else
        duplicates_in_request: dict[int, int] = {}
        ids = [record.msg_id for record in records if record.msg_id is not None]
        seen: dict[str, int] | None = {} if len(set(ids)) < len(ids) else None
        prepared = self._prepare(view, records, partition, now_ms, selector, identity)
        new, topic_id = tuple.__new__, view.topic_id
        for request_index, (record, (target, stored)) in enumerate(zip(records, prepared, strict=True)):
            if (
                seen is not None
                and (msg_id := record.msg_id) is not None
                and (first := seen.setdefault(msg_id, request_index)) != request_index
            ):
                duplicates_in_request[request_index] = first
                continue
            if record.delay_ms is not None or record.deliver_at_ms is not None:
                due_ms = self._due_ms(request_index, now_ms, record.delay_ms, record.deliver_at_ms)
                has_ids = record.msg_id is not None or identity is not None
                if due_ms > now_ms or (
                    # A repeat is to meet its first also when that was due meanwhile: a shard knows it, no partition.
                    has_ids
                    and record.deliver_at_ms is not None
                    and self._routes.timer(topic_id, target, record.schedule_key, has_ids=True) is not None
                ):
                    at = target, record.schedule_key, has_ids
                    if (lists := timers.get(at)) is None:
                        shard = self._routes.timer(topic_id, target, record.schedule_key, has_ids=has_ids)
                        broker = self._routes.writable(view.name, target).broker if shard is None else None
                        timers[at] = lists = by_timer.setdefault((broker, shard), ([], [], []))
                    if record.queues:
                        stored = _with_queues(stored, record.queues)
                    lists[0].append(request_index)
                    lists[1].append(stored)
                    lists[2].append(new(Delay, (due_ms, topic_id, target, -1, 0)))
                    continue
            if (lists := by_partition.get(target)) is None:
                by_partition[target] = lists = ([], [], [])
            lists[0].append(request_index)
            lists[1].append(stored)
        return (
            [_Lane(target, *lists[:2]) for target, lists in by_partition.items()],
            [_Lane(-1, *lists, _schedule_keys(records, lists[0]), shard) for (_, shard), lists in by_timer.items()],
            duplicates_in_request,
        )

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

    def _parts(self, send: _Send, lane: _Lane) -> Iterator[_Part | None]:
        """The lane encoded as one append, or as several in order when one would break a limit. None after each step of
        long work."""
        partition = lane.delays[0].partition if lane.delays else lane.partition
        route = self._routes.writable(send.view.name, partition)
        for encoded in _encode(lane):
            if encoded is None:
                yield None
                continue
            own, batch = encoded
            if len(own.records) < len(lane.records) and any(lane.keys):
                raise RequestError(BATCH_REFUSED, "Records with a schedule_key must fit one batch: send fewer at once.")
            if self._compress and not own.delays:
                batch = record_batch.compressed(batch)
            append = Append(
                queue=TIMER_QUEUE if own.delays else route.queue,
                batch=batch,
                record_count=len(own.records),
                json_values=send.json_values,
                tag_hashes=_tag_hashes(send.records, own.request_indexes) if send.has_tags else (),
                delays=own.delays,
                identity=send.identity_of(own.request_indexes),
            )
            if send.has_queues:
                light = LightNames.of([send.records[index].queues or () for index in own.request_indexes])
                if light is not None:
                    self._check_light(send.view, {delay.partition for delay in own.delays} or {partition})
                    append.light = None if own.delays else light  # then in a header, until they are delivered
            yield _Part(own, route, append)

    def check_light(self, topic: str, record: ProduceRecord) -> None:
        """Raises NoLightQueues for a record that names light queues that could not be read, UnknownQueue,
        UnknownPartition."""
        if record.queues:
            view = self._routes.topic(topic)
            target = self._target(view, record, None, None)
            assert target is not None
            self._check_light(view, (target,))

    def _check_light(self, view: TopicView, partitions: Iterable[int]) -> None:
        """Raises NoLightQueues for a partition whose light queues could not be read, and before all nodes know them."""
        if behind := self._routes.lacking(LIGHT_FORMAT):
            raise NoLightQueues(
                f"node {behind[0]} runs a version of mq that knows no light queues: they can be used when all nodes "
                "have been upgraded"
            )
        for partition in partitions:
            light_route(self._routes, view.name, partition)[1].note_light()

    def _answer_known(self, send: _Send, part: _Part, found: Mapping[int, Original]) -> _Part | None:
        """Fill in the receipts of records that an earlier send has stored; the part with the others, if any."""
        lane = part.lane
        count = len(lane.records)
        if send.sequence is not None:
            found = _all_of(found[0], count)
        for index, original in found.items():
            request_index = lane.request_indexes[index]
            send.receipts[request_index] = self._known(
                send.view, part.route.broker, original, send.records[request_index].timestamp_ms, send.acks, lane.timer
            )
        if len(found) == count:
            return None
        left = lane.only([index for index in range(count) if index not in found])
        (rest,) = (part for part in self._parts(send, left) if part is not None)
        return rest

    def _answer(self, send: _Send, part: _Part, answer: Appended) -> None:
        """Fill in the receipts of records that are stored now."""
        lane, route, _ = part
        partition, request_indexes, records, delays, _, _ = lane
        new, receipts, reached = tuple.__new__, send.receipts, answer.acks
        if delays:
            self.scheduled_count += len(delays)
            node = _node_of(lane.timer or route.broker)
            ids = encode_schedule_ids([delay.due_ms for delay in delays], answer.position)
            for request_index, (_, _, timestamp_ms, _), (due_ms, _, target, _, _), schedule_id in zip(
                request_indexes, records, delays, ids, strict=True
            ):
                receipts[request_index] = new(
                    Receipt, (target, None, timestamp_ms, with_node(node, schedule_id), due_ms, reached, False)
                )
            return
        offset = route.to_logical(answer.base_offset)
        for request_index, (_, _, timestamp_ms, _) in zip(request_indexes, records, strict=True):
            receipts[request_index] = new(Receipt, (partition, offset, timestamp_ms, None, None, reached, False))
            offset += 1


def _node_of(broker: Scheduler) -> str | None:
    """The node by which the ids of a timer's schedules begin; None: of a server that is alone, or of a shard."""
    return None if broker.served_by == ALONE else broker.served_by


def _by_call(parts: Iterable[_Part]) -> list[list[_Part]]:
    """Parts by the call that each goes in: one a broker, and one for each of schedules."""
    by_call: dict[Broker | int, list[_Part]] = {}
    for number, part in enumerate(parts):
        by_call.setdefault(number if part.append.delays else part.route.broker, []).append(part)
    return list(by_call.values())


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


_QUEUES_HEADER_BYTES = QUEUES_HEADER.encode()
_TAG_OF = attrgetter("tag")
_QUEUES_OF = attrgetter("queues")
_MSG_ID_OF = attrgetter("msg_id")
_SCOPE = struct.Struct(">I")
_PRODUCER_ID = struct.Struct(">8sq")
assert _PRODUCER_ID.size == ID_BYTES
KAFKA_PRODUCER = b"kafka\0\0\0"
"""Begins the ids of producers of Kafka's protocol; those of others are hashes."""


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


def _with_queues(record: Record, queues: Sequence[bytes]) -> Record:
    """A record that waits to be delivered, with the light queues that it will be in (timer/ready.py)."""
    names = orjson.dumps([name.decode() for name in queues])
    return record._replace(headers=[*record.headers, (QUEUES_HEADER, names)])


def _schedule_keys(records: Sequence[ProduceRecord], request_indexes: Sequence[int]) -> Sequence[bytes | None]:
    """The schedule keys of a lane; none when no record of it has one."""
    keys = [None if (key := records[at].schedule_key) is None else key.encode() for at in request_indexes]
    return keys if any(keys) else ()


def _not_delayed(request_index: int) -> RequestError:
    rule = "schedule_key: names a schedule, so the record needs delay_ms or deliver_at"
    return invalid(rule, validation_errors=[f"records[{request_index}].{rule}"])


def _check_numbered(send: _Send, immediate: Sequence[_Lane], scheduled: Sequence[_Lane]) -> None:
    """Raises RequestError unless the records of a numbered producer can be one batch (P3)."""
    if scheduled:
        raise invalid("Mq-Sequence is not for delayed records; give them a msg_id, or the request an Idempotency-Key")
    if send.has_ids:
        raise invalid("Mq-Sequence and msg_id exclude each other")
    if len(immediate) > 1:
        raise _not_one_batch()


def _is_free(record: ProduceRecord, selector: str | None) -> bool:
    """Whether a record of a request that names no partition may go to any, and to another one when it is sent again."""
    if record.partition is not None or record.msg_id is not None:
        return False
    return selector is not None or (record.key is None and record.message_group is None and not record.queues)


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


def too_many_batches(count: int) -> RequestError:
    """The answer to more raw batches in one request than it may have."""
    return RequestError(BATCH_REFUSED, f"More than {count} batches in one request.")


def _may_name_queues(body: bytes) -> bool:
    """Whether a record of raw batches may have the header of light queues: what is compressed is opened to see."""
    return _QUEUES_HEADER_BYTES in body or any(map(record_batch.is_compressed, record_batch.split(body)))


def _not_one_batch() -> RequestError:
    return invalid("Mq-Sequence numbers one batch for one partition: name the partition, and send less at once")


def _indexes_by_partition(keys: Sequence[bytes], count: int, selector: Selector) -> dict[int, list[int]]:
    """The indexes of the records that go to each partition by their keys, partitions in the order they are met."""
    lanes: defaultdict[int, list[int]] = defaultdict(list)
    for request_index, target in enumerate(selector.for_keys(keys, count)):
        lanes[target].append(request_index)
    return lanes


def _tag_hashes(records: Sequence[ProduceRecord], request_indexes: Sequence[int]) -> Sequence[int]:
    """One hash a record of a batch; none when no record of it has a tag."""
    hashes = [0 if (tag := records[request_index].tag) is None else tag_hash(tag) for request_index in request_indexes]
    return hashes if any(hashes) else ()


def _identity_of_numbered(batch: Buffer, count: int) -> Identity | None:
    """The identity of a checked batch whose producer has numbered its records."""
    producer_id, epoch, first = record_batch.numbers_of(batch)
    if producer_id < 0 or epoch < 0 or first < 0:
        return None
    return Identity(numbers=RecordNumbers(_PRODUCER_ID.pack(KAFKA_PRODUCER, producer_id), epoch, first, count))


def _checked_batch(view: TopicView, batch: Buffer, *, is_short: bool) -> tuple[int, Sequence[int]]:
    """As `Producer.checked`, at once. Raises TooLong, too, when it is to be short and is not, or the turn is full."""
    if len(batch) < COUNTED_BYTES:
        return _checked_here(view, batch, is_short=is_short)
    turn = stretches()
    if is_short and turn.is_full:
        raise TooLong
    began_s = thread_time()
    try:
        return _checked_here(view, batch, is_short=is_short)
    finally:
        turn.spent(thread_time() - began_s)


def _checked_here(view: TopicView, batch: Buffer, *, is_short: bool) -> tuple[int, Sequence[int]]:
    steps = check_sent_in_steps(batch)
    while True:
        try:
            next(steps)
        except StopIteration as end:
            header, tag_hashes = end.value
            break
        if is_short:
            raise TooLong
    if (bytes_max := view.config.max_message_bytes) is not None:
        record_batch.at_once(_check_sizes_in_steps(bytes_max, batch))
    return header.record_count, tag_hashes


def _check_sizes_in_steps(bytes_max: int, batch: Buffer) -> Generator[None, None, None]:
    """Raises RequestError."""
    first = 0
    for piece in record_batch.decode_in_pieces(batch):
        _check_sizes(piece, bytes_max, first=first)
        first += len(piece)
        yield


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


def _check_sizes(records: Iterable[_Sized], bytes_max: int, *, first: int = 0) -> None:
    """Raises RequestError when a record is larger than its topic takes. `first`: the number of the first one."""
    for request_index, record in enumerate(records, first):
        size = len(record.key or b"") + len(record.value or b"")
        size += sum(len(name.encode()) + len(value or b"") for name, value in record.headers)
        if size > bytes_max:
            rule = f"has {size} bytes of key, value and headers; this topic takes {bytes_max}"
            raise RequestError(RECORD_TOO_LARGE, rule, validation_errors=[f"records[{request_index}]: {rule}"])


def _encode(lane: _Lane) -> Iterator[tuple[_Lane, bytearray] | None]:
    """The lane as one batch, or as several in order when one would break a limit. Never too large for one record. None
    after each step of long work."""
    while True:
        batch, count = yield from record_batch.encode_most_in_steps(lane.records)
        if count == len(lane.records):
            yield lane, batch
            return
        yield lane.only(range(count)), batch
        lane = lane.only(range(count, len(lane.records)))
