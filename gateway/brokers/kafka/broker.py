"""A Kafka cluster as a broker. Partition p of topic t lies in partition p of the Kafka topic of the same name (behind
the cluster's prefix; `kafka_name` for names that Kafka does not take). Every tenure of an owner is a stretch of it, and
has a queue key of its own here, as an embedded queue has: (topic id, queue id of the epoch). Where the stretch is, and
whose, the partition's record says (gateway/cluster/record.py): this node learns it by `know`, and serves it when a move
has made it the owner (`serve`).

Batches pass as they are. What is done to them: the numbers of the tenure's producer are stamped on them when they are
sent, and what makes them recognisable as repeats is put into a header (repeats.py); when they are read, that is taken
off again, and so is the time at which Kafka has appended them (LogAppendTime, without which Kafka forgets its fences by
the records' own times).

    a fence      a record that takes an offset of its own between two tenures. `fence` appends the one that seals the
                 tenure before, and `own_end` says where that has ended: at the first batch that is not its own. `open`
                 appends the one that a tenure begins behind
    delays       are accepted by the owner's own timer, which delivers to where the partition is when they are due
    reads        of the served tenure: what is acknowledged. Of one that is over: up to its end. Of another one that is
                 open: its owner is asked, not this broker
    retention    is Kafka's own, by `retention.ms`; the first offset that it has is believed for some seconds
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from struct import error as StructError
from typing import Protocol

from gateway.brokers.base import AnswerLost, BrokerUnreachable, all_stored
from gateway.brokers.kafka.codes import OFFSET_OUT_OF_RANGE, Stored, Verdict, judge
from gateway.brokers.kafka.fencing import Batch, own_end
from gateway.brokers.kafka.port import Fetched, Kafka, Refused, TopicDiffers, TopicPlan, Unreached
from gateway.brokers.kafka.read_ahead import ReadAhead
from gateway.brokers.kafka.repeats import MARK, Repeats, decode_opening, encode_opening
from gateway.brokers.kafka.writer import FENCE_HEADER, FENCES, GIVE_UP_S, PAUSE_S, SEQUENCES, Writer, fence_batch
from store import record_batch
from store.clock import Clock
from store.dedup.ids import unpacked_queue
from store.dedup.moved import decode_part
from store.errors import (
    AlreadyStored,
    BrokerLacks,
    Corrupt,
    MalformedBatch,
    NoLightQueues,
    Overloaded,
    RecordTooLarge,
    SealedQueue,
    UnknownQueue,
)
from store.limits import MiB
from store.log.entry import decode_identity, encode_identity
from store.topics import FIRST_USER_TOPIC_ID, partition_of
from store.types import (
    Acks,
    Append,
    Appended,
    Boundary,
    Bounds,
    Entry,
    ExportedIds,
    Identity,
    QueueKey,
    ReadResult,
    ReadStatus,
)

log = logging.getLogger(__name__)

WAITING_BYTES_MAX = 64 * MiB
"""Bytes of batches that wait for Kafka; beyond it appends are refused."""

START_FRESH_S = 5.0
"""How long the first offset of a partition's log is believed."""

FETCH_WAIT_MS = 200
FETCH_TRIES = 10
"""Of records that are there: a leader that is new may not show them at once."""

FENCE_TRIES = 20
SCAN_BYTES = 4 * MiB
SCAN_STEP = 500
"""Batches that are looked at before others have a turn."""

CLOCK_SKEW_MS = 60_000
"""How much further back than the window is read: ids go by Kafka's clock, and the window ends by the own one."""

FOR_EVER_MS = -1
"""A retention of Kafka's topics."""

_KAFKA_PREFIXES = {"%RETRY%": "__retry", "%DLQ%": "__dlq"}

__all__ = ["FENCE_HEADER", "FOR_EVER_MS", "Fence", "KafkaBroker", "Place", "all_of", "kept_ms"]


class Timer(Protocol):
    """What of the own broker counts here."""

    @property
    def name(self) -> str:
        """See `Broker`."""
        ...

    async def schedule(self, append: Append, *, acks: Acks, keys: Sequence[bytes | None] = ()) -> Appended:
        """See `Broker.schedule`."""
        ...


class TopicOf(Protocol):
    """What of a topic counts here."""

    @property
    def name(self) -> str:
        """As clients name it."""
        ...

    @property
    def partitions(self) -> int:
        """How many."""
        ...


@dataclass(frozen=True, slots=True)
class Fence:
    """The producer, and its epoch, that a tenure begins with."""

    producer_id: int
    epoch: int


@dataclass(frozen=True, slots=True)
class Place:
    """Where a tenure lies: a stretch of a Kafka partition, and whose batches are its own. `end` None: it is open.
    `shift` added makes its offsets the partition's."""

    topic: str
    partition: int
    fence: Fence
    start: int
    end: int | None
    shift: int = 0


class KafkaBroker:
    """`Broker` over a Kafka cluster; see the module. `topic_of` finds a topic of mq by its id (UnknownQueue), and
    `retention_ms_of` how long it keeps records. `on_doubt` is called when a tenure must be taken over anew.
    `timer`: the own broker, which keeps delayed records."""

    def __init__(
        self,
        name: str,
        kafka: Kafka,
        clock: Clock,
        *,
        prefix: str,
        topic_of: Callable[[int], TopicOf],
        retention_ms_of: Callable[[int], int],
        on_doubt: Callable[[], None],
        repeats: Repeats,
        timer: Timer,
    ) -> None:
        self._name = name
        self._repeats = repeats
        self._timer = timer
        self._sealed: dict[QueueKey, int] = {}  # ends of tenures whose record does not say so yet
        self._kafka = kafka
        self._clock = clock
        self._prefix = prefix
        self._topic_of = topic_of
        self._retention_ms_of = retention_ms_of
        self._on_doubt = on_doubt
        self._places: dict[QueueKey, Place] = {}
        self._writers: dict[QueueKey, Writer] = {}
        self._watching: dict[int, dict[object, Callable[[Mapping[QueueKey, int]], None]]] = {}
        self._starts: dict[tuple[str, int], tuple[int, float]] = {}  # and until when it is believed
        self._waiting_bytes = 0
        self._ahead = ReadAhead()
        self._leaving: set[asyncio.Task[None]] = set()

    @property
    def name(self) -> str:
        """See `Broker.name`."""
        return self._name

    @property
    def served_by(self) -> str:
        """See `Broker`: the own broker."""
        return self._timer.name

    @property
    def trouble(self) -> str | None:
        """Why the cluster was not reached the last time; None: it was."""
        return self._kafka.trouble

    async def check(self) -> None:
        """See `Kafka.check`."""
        await self._kafka.check()

    async def close(self) -> None:
        """Serve nothing any more, and leave the cluster."""
        self._ahead.close()
        for writer in self._writers.values():
            await writer.close()
        await self._kafka.close()

    # ---- tenures ---------------------------------------------------------------------------------------------------

    def kafka_topic(self, topic_id: int) -> str:
        """The Kafka topic in which a topic's partitions lie."""
        return self._prefix + kafka_name(self._topic_of(topic_id).name)

    def know(self, queue: QueueKey, place: Place, *, is_sealing: bool = False) -> None:
        """Learn where a tenure lies, of the partition's record; that a move is about to seal it, or where it ended."""
        self._places[queue] = place
        writer = self._writers.get(queue)
        if place.end is not None:
            self._sealed.pop(queue, None)
            self._repeats.forget(queue)
        if writer is not None and place.end is not None:
            self._leave(queue, writer)
        elif writer is not None and is_sealing:
            writer.refuse()

    def _leave(self, queue: QueueKey, writer: Writer) -> None:
        if (place := self._places.get(queue)) is not None and place.end is None:
            self._places[queue] = replace(place, end=writer.end)  # of what may be read until its record is known
        del self._writers[queue]
        leaving = asyncio.get_running_loop().create_task(writer.close())
        self._leaving.add(leaving)
        leaving.add_done_callback(self._leaving.discard)

    def forget_topic(self, topic_id: int) -> None:
        """A topic is gone, or is being deleted."""
        self._repeats.forget_topic(topic_id)
        for queue in [queue for queue in self._places if queue.topic_id == topic_id]:
            if (writer := self._writers.get(queue)) is not None:
                self._leave(queue, writer)
            self._sealed.pop(queue, None)
            del self._places[queue]
        for wake in list(self._watching.get(topic_id, {}).values()):
            wake({})

    def serves(self, queue: QueueKey) -> bool:
        """Whether this node may append to a tenure."""
        writer = self._writers.get(queue)
        return writer is not None and writer.is_serving

    def has(self, queue: QueueKey) -> bool:
        """Whether a queue is a tenure on this cluster, served by this node or not."""
        return queue in self._places

    def queues_of(self, topic_id: int) -> list[QueueKey]:
        """The tenures of a topic that this node serves."""
        return [queue for queue in self._writers if queue.topic_id == topic_id]

    def served_end(self, queue: QueueKey) -> int | None:
        """The offset behind all that is acknowledged in a tenure that this node serves or did; None: it never did."""
        writer = self._writers.get(queue)
        return None if writer is None else writer.end

    def serve(self, queue: QueueKey, place: Place) -> None:
        """Be the owner of a tenure that is open, from there on."""
        self._places[queue] = place
        self._repeats.is_known(queue, place.start)
        for other in self.queues_of(queue.topic_id):  # the tenure before, of which the move says no more if it is empty
            if self._places[other].partition == place.partition:
                self._leave(other, self._writers[other])
        self._writers[queue] = Writer(
            self._kafka, place.topic, place.partition,
            producer_id=place.fence.producer_id, epoch=place.fence.epoch, start=place.start,
            on_acknowledged=lambda append, appended: self._acknowledged(queue, place, append, appended),
            on_stored=lambda end: self._wake(queue, end),
            on_doubt=self._on_doubt,
            on_freed=self._free,
        )  # fmt: skip

    def refuse(self, queue: QueueKey) -> None:
        """Append no more to a tenure."""
        if (writer := self._writers.get(queue)) is not None:
            writer.refuse()

    async def stop(self, queue: QueueKey) -> None:
        """Append no more to a tenure: it is about to be sealed. What is on its way is waited for, for a moment."""
        if (writer := self._writers.get(queue)) is not None:
            await writer.stop()

    async def new_producer(self) -> int:
        """The id of a producer that no other one has. Raises BrokerUnreachable."""
        try:
            return await self._kafka.new_producer()
        except (Unreached, Refused) as error:
            raise self._unreachable(error) from error

    async def fence(self, topic: str, partition: int, fence: Fence) -> int:
        """The offset of the fence with which a tenure begins: appended, or where it is since an earlier call. Behind it
        no batch of an older epoch is stored, as long as Kafka remembers it; and none is acknowledged, for good. Raises
        BrokerUnreachable when it is not certain to be there, SealedQueue when a newer one is."""
        return await self._put(topic, partition, fence_batch(fence.producer_id, fence.epoch, self._clock.now_ms()))

    async def _put(self, topic: str, partition: int, batch: bytes) -> int:
        """Append a record that is none of a user's. Raises BrokerUnreachable, SealedQueue."""
        for _ in range(FENCE_TRIES):
            outcome = await self._kafka.produce(topic, partition, batch)
            [verdict] = judge([outcome])
            if isinstance(verdict, Stored):
                return verdict.base_offset
            if verdict is not Verdict.AGAIN:
                raise SealedQueue(f"partition {partition} of {topic} has a newer owner: Kafka's error {outcome}")
            await asyncio.sleep(PAUSE_S)
        raise BrokerUnreachable(f"broker {self._name}: no fence could be written to partition {partition} of {topic}")

    async def open(
        self, queue: QueueKey, topic: str, partition: int, fence: Fence, *, after: QueueKey | None = None
    ) -> int:
        """Where a tenure begins whose fence is written: behind another one, which names what a later owner needs to
        recognise repeated sends. `after`: the tenure on the same Kafka partition that it follows, which is sealed;
        else all was told before (`import_ids`). Raises as `fence`; Corrupt."""
        if after is not None and after.topic_id >= FIRST_USER_TOPIC_ID:  # what is appended to shards has no ids
            await self._recall(after)
        offsets = self._repeats.parts_of(queue, self._clock.now_ms())
        for content in self._repeats.producers_of(queue):
            offsets.append(await self._put_part(topic, partition, content))
        opening = encode_opening(offsets)
        batch = fence_batch(fence.producer_id, fence.epoch, self._clock.now_ms(), opening=opening)
        return await self._put(topic, partition, batch) + 1

    async def _put_part(self, topic: str, partition: int, content: bytes) -> int:
        record = record_batch.Record(None, content, self._clock.now_ms(), [(MARK.decode(), None)])
        return await self._put(topic, partition, bytes(record_batch.encode([record])))

    def sealed(self, queue: QueueKey, end: int) -> None:
        """A tenure has ended there; its record does not say so yet."""
        self._sealed[queue] = end

    async def own_end(self, place: Place, *, since: int, until: int) -> int:
        """Where a tenure has ended, when `until` is the offset of a fence behind it: at the first batch that is not its
        own. `since`: an offset that is known to be within it. What Kafka has let go of behind that counts as its own:
        its offsets may have been acknowledged. Raises BrokerUnreachable, Corrupt."""
        end = since
        if end < until:
            self._starts.pop((place.topic, place.partition), None)  # the first offset of now counts
            end = min(max(end, await self._start(place)), until)
        while end < until:
            fetched = await self._fetched(place, end, SCAN_BYTES)
            batches = [_seen(batch, place) for batch in record_batch.whole_batches(fetched.batches)]
            batches = [batch for batch in batches if end < batch.next_offset and batch.base_offset < until]
            if not batches or batches[0].base_offset > end:  # it may begin before: logs begin within a batch, too
                break
            own = own_end(batches, end, place.fence.epoch)
            if own == end:
                break
            is_all = own == batches[-1].next_offset
            end = own
            if not is_all:
                break
        return end

    # ---- repeated sends --------------------------------------------------------------------------------------------

    async def _recall(self, queue: QueueKey) -> None:
        """Know all that makes repeats of sends to a tenure, which is over, recognisable: what is not known here is read
        from Kafka. Raises BrokerUnreachable, Corrupt."""
        place = self._place(queue)
        end = self._end_of(queue, place)
        assert end is not None
        until = self._repeats.known_until(queue)
        if until is not None:
            await self._recall_tenure(queue, replace(place, end=end), until)
        else:
            low = await self._start(place)
            since = await self._window_start(place)
            await self._recall_parts(queue, place, low)
            for other, its in sorted(self._places.items(), key=lambda item: item[1].start):
                is_same = partition_of(other) == partition_of(queue) and its.topic == place.topic
                its_end = end if other == queue else its.end
                if is_same and its_end is not None and (other == queue or its_end > since):
                    begin = its.start if other == queue else max(its.start, since)
                    await self._recall_tenure(queue, replace(its, end=its_end), begin)
        self._repeats.is_known(queue, end)

    async def _window_start(self, place: Place) -> int:
        since_ms = self._clock.now_ms() - self._repeats.window_ms - CLOCK_SKEW_MS
        try:
            found = await self._kafka.offset_at(place.topic, place.partition, since_ms)
        except (Unreached, Refused) as error:
            raise self._unreachable(error) from error
        return place.start if found is None else found

    async def _recall_parts(self, queue: QueueKey, place: Place, low: int) -> None:
        """Take in the parts that the fence before a tenure names. What Kafka has let go of is as old as its records."""
        at = place.start - 1
        if at < low:
            log.warning(
                "the beginning of a tenure has expired, and with it what its producers had sent before topic=%s"
                " partition=%d", place.topic, place.partition,
            )  # fmt: skip
            return
        for offset in decode_opening(await self._value_at(place, at)):
            if offset >= low:
                content = await self._value_at(place, offset)
                self._repeats.told(queue, decode_part(content or b""), at=offset)

    async def _value_at(self, place: Place, offset: int) -> bytes | None:
        """The value of the record of the server's own that lies at an offset. Raises BrokerUnreachable, Corrupt."""
        fetched = await self._fetched(place, offset, 1)
        batch = next(record_batch.whole_batches(fetched.batches))
        record_batch.undate(batch)
        [record] = record_batch.decode(batch)
        if record.offset != offset:
            where = f"topic {place.topic}, partition {place.partition} of {self._name}"
            raise Corrupt(where, offset, "no record of the server's own")
        return record.value

    async def _recall_tenure(self, queue: QueueKey, place: Place, begin: int) -> None:
        """Take in the ids of a tenure's batches from an offset on, up to its end, of those that Kafka still has."""
        assert place.end is not None
        if begin < place.end:
            begin = max(begin, await self._start(place))
        while begin < place.end:
            fetched = await self._fetched(place, begin, SCAN_BYTES)
            found: list[tuple[Identity, int, int, int]] = []
            for number, batch in enumerate(record_batch.whole_batches(fetched.batches)):
                at, following = record_batch.offsets_of(batch)
                if at >= place.end:
                    break
                if following <= begin:
                    continue
                entry = _entry(queue, place.topic, batch)
                if entry.identity is not None:
                    found.append((entry.identity, at, at + place.shift, entry.store_time_ms))
                begin = following
                if number % SCAN_STEP == SCAN_STEP - 1:
                    await asyncio.sleep(0)
            self._repeats.read(queue, found)

    def _acknowledged(self, queue: QueueKey, place: Place, append: Append, appended: Appended) -> None:
        at = appended.base_offset
        if append.identity is not None:
            self._repeats.stored(
                queue, append.identity, at=at, offset=at + place.shift, time_ms=appended.store_time_ms
            )  # fmt: skip
        if self._repeats.known_until(queue) is not None:
            self._repeats.is_known(queue, at + append.record_count)

    def _end_of(self, queue: QueueKey, place: Place) -> int | None:
        return self._sealed.get(queue) if place.end is None else place.end

    # ---- appends ---------------------------------------------------------------------------------------------------

    async def append(self, appends: Sequence[Append], *, acks: Acks) -> list[Appended]:
        """See `Broker.append`."""
        return await asyncio.shield(self.begin_append(appends, acks=acks))

    def begin_append(self, appends: Sequence[Append], *, acks: Acks) -> asyncio.Future[list[Appended]]:
        """See `Broker.begin_append`. `acks` is not asked: all replicas in sync have it."""
        if any(append.identity is not None for append in appends):
            return self._begin_once(appends)
        return all_of(self._begun(appends))

    def _begun(
        self, appends: Sequence[Append], settled: Sequence[asyncio.Future[Appended]] = ()
    ) -> list[asyncio.Future[list[Appended]]]:
        for append in appends:
            if append.light is not None:
                raise NoLightQueues("the partition is on a Kafka cluster, which has no light queues")
        self._check_served(appends)
        own = [_marked(append) for append in appends]
        size = sum(len(append.batch) for append in own)
        if self._waiting_bytes and self._waiting_bytes + size > WAITING_BYTES_MAX:
            raise Overloaded(f"{self._waiting_bytes} bytes wait for broker {self._name}; at most {WAITING_BYTES_MAX}")
        begun = []
        for number, append in enumerate(own):
            self._waiting_bytes += len(append.batch)
            begun.append(self._writers[append.queue].begin(append, settled[number] if settled else None))
        return begun

    def _begin_once(self, appends: Sequence[Append]) -> asyncio.Future[list[Appended]]:
        """Append batches with identities, if none is known; begun on return when all is new."""
        self._check_served(appends)
        new = self._resolved(appends)
        if not self._repeats.in_flight(new):
            try:
                return self._begin_new(appends, new)
            except AlreadyStored:
                pass  # said by the answer
        return asyncio.ensure_future(self._append_once(appends))

    async def _append_once(self, appends: Sequence[Append]) -> list[Appended]:
        """As `_begin_once`; equal batches that are under way are waited for."""
        loop = asyncio.get_running_loop()
        until_s = loop.time() + GIVE_UP_S
        new = self._resolved(appends)
        while waiters := self._repeats.in_flight(new):
            _, pending = await asyncio.wait(waiters, timeout=max(0.0, until_s - loop.time()))
            if pending:
                raise AnswerLost(f"broker {self._name}: it is not known yet what became of an equal send")
            new = self._resolved(appends)
        self._check_served(appends)  # who serves the partition now knows all of it
        return await self._begin_new(appends, new)

    def _resolved(self, appends: Sequence[Append]) -> Sequence[Append]:
        """The same for the partitions, whatever their tenures are."""
        keyed = [replace(append, queue=partition_of(append.queue)) for append in appends]
        return self._repeats.resolved(keyed, self._clock.now_ms())

    def _check_served(self, appends: Sequence[Append]) -> None:
        for append in appends:
            if not self.serves(append.queue):
                raise SealedQueue(f"queue {append.queue} of {self._name} is not served here, or not any more")

    def _begin_new(self, appends: Sequence[Append], new: Sequence[Append]) -> asyncio.Future[list[Appended]]:
        self._repeats.refuse_known(new, self._clock.now_ms())
        settled: list[asyncio.Future[Appended]] = [asyncio.get_running_loop().create_future() for _ in new]
        begun = self._begun(
            [replace(own, identity=one.identity) for own, one in zip(appends, new, strict=True)], settled
        )
        self._repeats.begin(new, asyncio.gather(*settled))
        return all_of(begun)

    def _free(self, size: int) -> None:
        self._waiting_bytes -= size

    async def schedule(self, append: Append, *, acks: Acks, keys: Sequence[bytes | None] = ()) -> Appended:
        """See `Broker.schedule`: by the own timer. Raises BrokerLacks for records with ids, as another owner of the
        partition could not recognise a repeat: shards of `__timer` do (gateway/cluster/shard_ids.py)."""
        if append.identity is not None:
            raise BrokerLacks(
                "the partition is on a Kafka cluster, where repeated sends of delayed records are recognised only with"
                " cluster.timers_broker, once all nodes have this version of mq: set it, or send them without msg_id,"
                " Idempotency-Key and producer"
            )
        return await self._timer.schedule(append, acks=acks, keys=keys)

    # ---- reads -----------------------------------------------------------------------------------------------------

    async def read(
        self,
        queue: QueueKey,
        offset: int,
        *,
        max_bytes: int,
        end_offset: int | None = None,
        tag_hashes: frozenset[int] | None = None,
    ) -> ReadResult:
        """See `Broker.read`. Tags are not looked at: entries hold what they hold."""
        place = self._place(queue)
        low, high = await self._bounds(queue, place)
        end = high if end_offset is None else min(high, end_offset)
        if offset < low:
            return ReadResult(ReadStatus.TOO_SMALL, [], low, high, low)
        if offset >= end:
            status = ReadStatus.TOO_LARGE if offset > high else ReadStatus.AT_END
            return ReadResult(status, [], low, high, min(offset, high))
        entries: list[Entry] = []
        size = 0
        fetched = await self._ahead.fetched((queue, offset), partial(self._fetched, place, offset, max_bytes))
        topic = self._topic_of(queue.topic_id).name
        for batch in record_batch.whole_batches(fetched.batches):
            base_offset, next_offset = record_batch.offsets_of(batch)
            if next_offset <= offset:
                continue
            if base_offset >= end or (entries and size + len(batch) > max_bytes):
                break
            if _seen(batch, place).epoch is None:
                break
            entries.append(_entry(queue, topic, batch))
            size += len(batch)
        if not entries:  # within the tenure there is nothing else
            raise Corrupt(
                f"topic {place.topic}, partition {place.partition} of {self._name}", offset, "not the tenure's"
            )
        next_offset = entries[-1].next_offset
        follow = partial(self._fetched, place, next_offset, max_bytes) if next_offset < end else None
        self._ahead.has_read((queue, offset), (queue, next_offset), max_bytes, follow)
        return ReadResult(ReadStatus.FOUND, entries, low, high, next_offset)

    async def _fetched(self, place: Place, offset: int, max_bytes: int) -> Fetched:
        """Batches from an offset on that is within the log. Raises BrokerUnreachable, Corrupt."""
        try:
            for _ in range(FETCH_TRIES):
                found = await self._kafka.fetch(
                    place.topic, place.partition, offset, max_bytes=max_bytes, wait_ms=FETCH_WAIT_MS
                )
                self._note_start(place, found.start)
                if found.batches:
                    return found
        except Refused as error:
            if error.code == OFFSET_OUT_OF_RANGE:
                self._starts.pop((place.topic, place.partition), None)
                where = f"topic {place.topic}, partition {place.partition} of {self._name}"
                raise Corrupt(where, offset, "Kafka does not have this offset any more") from error
            raise self._unreachable(error) from error
        except Unreached as error:
            raise self._unreachable(error) from error
        raise BrokerUnreachable(f"broker {self._name} does not show offset {offset} of {place.topic} yet")

    def watch(self, topic_id: int, wake: Callable[[Mapping[QueueKey, int]], None]) -> Callable[[], None]:
        """See `Broker.watch`: of the tenures that this node serves."""
        token = object()
        self._watching.setdefault(topic_id, {})[token] = wake

        def call_off() -> None:
            watching = self._watching.get(topic_id, {})
            watching.pop(token, None)
            if not watching:
                self._watching.pop(topic_id, None)

        return call_off

    def _wake(self, queue: QueueKey, end: int) -> None:
        for wake in list(self._watching.get(queue.topic_id, {}).values()):
            wake({queue: end})

    async def bounds(self, queue: QueueKey) -> Bounds:
        """See `Broker.bounds`."""
        return await self._bounds(queue, self._place(queue))

    async def first_kept(self, queue: QueueKey) -> int:
        """See `Broker.first_kept`."""
        place = self._place(queue)
        return max(place.start, await self._start(place))

    async def offset_for_time(self, queue: QueueKey, time_ms: int, boundary: Boundary) -> int:
        """See `Broker.offset_for_time`; by the time at which Kafka has appended. DATED: the tenure's first offset."""
        place = self._place(queue)
        low, high = await self._bounds(queue, place)
        if boundary is Boundary.DATED:
            return low
        try:
            found = await self._kafka.offset_at(place.topic, place.partition, time_ms + (boundary is Boundary.UPPER))
        except (Unreached, Refused) as error:
            raise self._unreachable(error) from error
        at = high if found is None else min(max(found, low), high)
        return at if boundary is Boundary.LOWER else max(low, at - 1)

    def _place(self, queue: QueueKey) -> Place:
        if (place := self._places.get(queue)) is None:
            raise UnknownQueue(f"queue {queue} of broker {self._name} is not known here")
        return place

    async def _bounds(self, queue: QueueKey, place: Place) -> Bounds:
        end = self._places.get(queue, place).end
        end = self.served_end(queue) if end is None else end
        if end is None:
            raise BrokerUnreachable(f"queue {queue} of broker {self._name} has no owner here yet")
        return Bounds(min(max(place.start, await self._start(place)), end), end)

    async def _start(self, place: Place) -> int:
        start, until_s = self._starts.get((place.topic, place.partition), (0, 0.0))
        if asyncio.get_running_loop().time() >= until_s:
            try:
                start, _ = await self._kafka.bounds(place.topic, place.partition)
            except (Unreached, Refused) as error:
                if not until_s:
                    raise self._unreachable(error) from error
            self._note_start(place, start)
        return start

    def _note_start(self, place: Place, start: int) -> None:
        self._starts[place.topic, place.partition] = start, asyncio.get_running_loop().time() + START_FRESH_S

    # ---- queues ----------------------------------------------------------------------------------------------------

    async def create_queue(self, queue: QueueKey) -> None:
        """Have the Kafka topic in which a tenure is to lie; one that is there is checked. Durable on return. Raises
        BrokerLacks when it differs, BrokerUnreachable."""
        topic_id, partition = partition_of(queue)
        topic = self._topic_of(topic_id)
        await self.make_topic(
            topic.name, max(topic.partitions, partition + 1), self._retention_ms_of(topic_id),
            is_kept=topic_id < FIRST_USER_TOPIC_ID,
        )  # fmt: skip

    async def make_topic(self, topic: str, partitions: int, retention_ms: int, *, is_kept: bool = False) -> None:
        """Have the Kafka topic of a topic of mq. `is_kept`: see `TopicPlan`. Raises as `create_queue`."""
        try:
            await self._kafka.make_topic(TopicPlan(self._prefix + kafka_name(topic), partitions, retention_ms, is_kept))
        except TopicDiffers as error:
            raise BrokerLacks(str(error)) from error
        except (Unreached, Refused) as error:
            raise self._unreachable(error) from error

    async def seal_queue(self, queue: QueueKey) -> int:
        """The end of a tenure that is over. One that is open is sealed by a move, with a fence. Raises Overloaded."""
        if (end := self._place(queue).end) is None:
            raise Overloaded(f"queue {queue} of broker {self._name} is sealed by a move only")
        return end

    async def export_ids(self, queue: QueueKey, *, into: QueueKey, shift: int, since: int) -> ExportedIds:
        """See `Broker.export_ids`. Of an open tenure that another node serves nothing, until it is sealed."""
        is_sealed = self._end_of(queue, self._place(queue)) is not None
        if is_sealed:
            await self._recall(queue)
        elif self._repeats.known_until(queue) is None:
            return ExportedIds(b"", since, is_last=True)
        now_ms = self._clock.now_ms()
        return self._repeats.export(queue, into=into, since=since, is_sealed=is_sealed, now_ms=now_ms)

    async def import_ids(self, content: bytes) -> None:
        """See `Broker.import_ids`: a record of its own in the Kafka partition, which the fence of the next tenure
        names. Raises TooManyIds, BrokerUnreachable."""
        part = self._repeats.decoded(content, self._clock.now_ms())
        queue = next(iter(part.producers))[1] if part.rows is None else unpacked_queue(part.rows.queues[0])
        topic_id, partition = partition_of(queue)
        at = await self._put_part(self.kafka_topic(topic_id), partition, content)
        self._repeats.told(queue, part, at=at)

    async def expire_queue(self, queue: QueueKey, before_offset: int) -> None:
        """See `Broker.expire_queue`."""
        place = self._place(queue)
        if before_offset <= place.start:
            return
        end = (await self._bounds(queue, place)).max_offset
        try:
            await self._kafka.delete_before(place.topic, place.partition, min(before_offset, end))
        except (Unreached, Refused) as error:
            raise self._unreachable(error) from error
        self._starts.pop((place.topic, place.partition), None)

    def _unreachable(self, error: Exception) -> BrokerUnreachable:
        return BrokerUnreachable(f"broker {self._name}: {error}")


def kafka_name(topic: str) -> str:
    """The name in Kafka of a topic of mq, which may have a %: `%RETRY%billing` is `__retry.billing`. No two topics have
    the same."""
    if "%" not in topic:
        return topic
    prefix = next((own for own in _KAFKA_PREFIXES if topic.startswith(own)), "")
    rest = topic.removeprefix(prefix)
    known = _KAFKA_PREFIXES.get(prefix, "__topic")
    return f"{known}.{rest}" if "%" not in rest else f"{known}-25.{rest.replace('-', '-2D').replace('%', '-25')}"


def kept_ms(own: int | None, servers: int | None) -> int:
    """`retention.ms` of a Kafka topic, of what was chosen for the topic and what for the server."""
    chosen = servers if own is None else own
    return FOR_EVER_MS if chosen is None else chosen


def _marked(append: Append) -> Append:
    """The append as it goes to Kafka: with its identity in it. A batch that looks as if it had one gets an empty one,
    which is taken off again. Raises RecordTooLarge."""
    identity = append.identity
    if identity is None and not record_batch.is_marked(append.batch, MARK):
        return append
    blocks = b"" if identity is None else encode_identity(identity)
    return replace(append, batch=record_batch.marked(append.batch, MARK, blocks))


def _seen(batch: memoryview, place: Place) -> Batch:
    """A batch of the log; without an epoch when it is not one of the tenure, or is a fence. A tenure's numbers go with
    its offsets: one whose number does not is a repeat that Kafka has stored once more, as it had forgotten the
    producer, or lies behind a batch that was lost. None of these was acknowledged."""
    base_offset, next_offset = record_batch.offsets_of(batch)
    producer_id, epoch, first = record_batch.numbers_of(batch)
    is_own = (producer_id, epoch) == (place.fence.producer_id, place.fence.epoch)
    is_own = is_own and record_batch.is_of_records(batch)
    is_fence = first < FENCES and next_offset == base_offset + 1 and is_own and _is_fence(batch)
    is_next = first == (FENCES + base_offset - place.start) % SEQUENCES
    return Batch(base_offset, next_offset - base_offset, epoch if is_own and is_next and not is_fence else None)


def _is_fence(batch: memoryview) -> bool:
    """Whether a batch of one record is a fence."""
    [record] = record_batch.decode(bytes(batch))
    return [name for name, _ in record.headers] == [FENCE_HEADER]


def _entry(queue: QueueKey, topic: str, batch: memoryview) -> Entry:
    """A batch as it was sent, in the same memory if that is all the same but for its head. Raises Corrupt."""
    base_offset, next_offset = record_batch.offsets_of(batch)
    try:
        store_time_ms = record_batch.max_timestamp_ms(batch)
        record_batch.undate(batch)
        blocks = record_batch.mark_of(batch, MARK)
        identity = decode_identity(blocks, next_offset - base_offset) if blocks else None
        whole = batch if blocks is None else record_batch.unmarked(batch, MARK)
    except (MalformedBatch, RecordTooLarge, IndexError, KeyError, StructError) as error:
        raise Corrupt(f"a batch of topic {topic} that Kafka has", base_offset, str(error)) from error
    return Entry(
        position=base_offset,
        size=len(batch),
        queue=queue,
        topic=topic,
        base_offset=base_offset,
        record_count=next_offset - base_offset,
        store_time_ms=store_time_ms,
        json_values=False,
        batch=memoryview(whole),
        identity=identity,
    )


def all_of(begun: Sequence[asyncio.Future[list[Appended]]]) -> asyncio.Future[list[Appended]]:
    """One answer for all. A batch is stored or refused by itself: while another partition of the call moves, too."""
    return begun[0] if len(begun) == 1 else asyncio.ensure_future(all_stored(begun))
