"""From partitions to the frames of one subscription, in the order of offsets: what reader and stream mode share.

One task goes round the partitions that have something to send. A partition that has come to its end leaves the round
until `Source.watch` wakes it. Nothing is read without credit, and what credit does not allow is dropped and read
again later, so a client that returns no credit costs no memory.

Partitions come and go while it runs (a rebalance); what of a partition has been put out before it goes is sent before.
A topic that is gone ends the subscription, unless a pattern or a group takes its partitions away: then they
just lie.

Invariants
    S1  messages of a partition are pushed in offset order, without a gap; each once
    S2  at most one read and its encoded messages are held, or one small record that has just come, whatever the client
        does
    S3  `caught_up` is pushed once, after every partition had nothing more for the first time; once more after a seek,
        and after a rewind
    S4  no message of a partition is put out after `remove` or `stop` of it has returned
    S5  a partition whose broker cannot be reached now, as while its node restarts, leaves the round for a while: the
        others go on, and so does it when the broker is back
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from time import monotonic
from typing import NoReturn, Protocol

from gateway.api.light import LightReader, Rendering
from gateway.api.read import Consumer, out_of_range
from gateway.auth.access import Access
from gateway.brokers.base import BrokerUnreachable
from gateway.errors import RequestError
from gateway.groups.protocol import TopicPartition
from gateway.routing.base import Routes
from gateway.routing.patience import AGAIN_S
from gateway.surfaces.http.context import GatewayStats
from gateway.surfaces.ws.commands import Form, Subscribe
from gateway.surfaces.ws.credit import Ledger
from gateway.surfaces.ws.frame_cache import EncodedRange, FrameCache, OutOfRange, Portion, TopicGone, Wanted
from gateway.surfaces.ws.journal import Frame, Journal
from gateway.surfaces.ws.outbox import Outbox
from gateway.surfaces.ws.protocol import (
    EPOCH_CHANGED,
    FRAME_BYTES_TARGET,
    batch_header,
    binary_frame,
    caught_up_push,
    cursor_of,
    messages_push,
)
from store.errors import UnknownQueue

log = logging.getLogger(__name__)

AT_ONCE_S = 0.005
"""How long partitions are served one after the other, before it is others' turn. One may take 25 ms: a large value of
small objects as JSON."""


class Source(Protocol):
    """What a subscription reads: partitions, or a light queue in each."""

    async def read(
        self, topic: str, topic_id: int, partition: int, offset: int, wanted: Wanted, *, count_max: int
    ) -> Portion:
        """See `FrameCache.read`."""
        ...

    def at_hand(self, topic: str, topic_id: int, partition: int, offset: int, wanted: Wanted) -> Portion | None:
        """As `read`, where that is known without one: a portion without ranges at the end. None: read."""
        ...

    def watch(self, topic: str, partition: int, end: int, wake: Callable[[], None]) -> Callable[[], None]:
        """See `Consumer.watch`. The answer may be called again, and after `wake`."""
        ...


class Partitions:
    """`Source` of whole partitions."""

    def __init__(self, frame_cache: FrameCache, consumer: Consumer) -> None:
        self.read, self.watch = frame_cache.read, consumer.watch
        self._kept, self._is_end = frame_cache.kept, consumer.is_end

    def at_hand(self, topic: str, topic_id: int, partition: int, offset: int, wanted: Wanted) -> Portion | None:
        """See `Source`."""
        if self._is_end(topic, partition, offset):
            return Portion((), offset)
        return self._kept(topic_id, partition, offset, wanted)


@dataclass(frozen=True, slots=True)
class Sources:
    """What all subscriptions of a server share."""

    partitions: Partitions
    light_reader: LightReader
    light_rendering: Rendering
    stats: GatewayStats


class FedPartition:
    """How far one partition has been sent."""

    __slots__ = (
        "call_off",
        "delivered",
        "is_away",
        "is_live",
        "is_ready",
        "key",
        "message_bytes",
        "next_message_bytes",
        "next_record_count",
        "number",
        "offset",
        "topic_id",
    )

    def __init__(self, key: TopicPartition, topic_id: int, offset: int) -> None:
        self.key = key
        self.topic_id = topic_id
        self.offset = offset
        self.delivered = offset  # before it, all has been taken by the transport
        self.is_live = True
        self.is_away = False  # its broker was not reached the last time
        self.is_ready = False  # waits for its turn
        self.number = 0
        self.next_message_bytes = 1  # of what is at `offset`, once known: credit for it must suffice
        self.next_record_count = 1  # the same; more than 1 for a RecordBatch
        self.message_bytes = 1  # about what a message has, once known
        self.call_off: Callable[[], None] | None = None  # of the tail it waits at, or did last

    def move(self, offset: int) -> None:
        """Go on from another offset."""
        self.offset = self.delivered = offset
        self.next_message_bytes = self.next_record_count = 1


class Feed:
    """Pushes while `run` runs. Everything else may be called while it does, or does not."""

    def __init__(
        self,
        name: str,
        source: Source,
        wanted: Wanted,
        ledger: Ledger,
        journal: Journal,
        *,
        stats: GatewayStats,
        check_topic: Callable[[str], None],
        outlives_topics: bool = False,
    ) -> None:
        """`check_topic` raises RequestError when the client may not read a topic. It is asked for each frame of what
        groups have written: who may read that, changes with what is written. `outlives_topics`: its owner removes the
        partitions of a topic that is gone."""
        self.name = name
        self.ledger = ledger
        self.journal = journal
        self.fed_partitions: dict[TopicPartition, FedPartition] = {}
        self.on_delivered: Callable[[], None] | None = None
        """Called whenever `delivered` of a partition has moved."""

        self._source = source
        self._stats = stats
        self._wanted = wanted
        self._check_topic = check_topic
        self._outlives_topics = outlives_topics
        self._changed: asyncio.Future[None] | None = None  # `run` waits for it; an Event would take 700 bytes
        self._ready: list[FedPartition] = []  # a deque likewise
        self._numbered: dict[int, FedPartition] = {}
        self._next_number = 0
        self._behind: set[FedPartition] | None = set()  # None once caught up

    # What is

    @property
    def cursor(self) -> str:
        """The next offset of every partition that is followed."""
        return self.cursor_of(fed for fed in self.fed_partitions.values() if fed.is_live)

    def cursor_of(self, fed_partitions: Iterable[FedPartition]) -> str:
        """The next offsets of these partitions."""
        return cursor_of((*fed.key, fed.offset) for fed in fed_partitions)

    # What changes

    def add(self, fed: FedPartition) -> None:
        """Follow one more partition."""
        assert fed.key not in self.fed_partitions
        self._give_number(fed)
        self.fed_partitions[fed.key] = fed
        self.go(fed)

    def go(self, fed: FedPartition) -> None:
        """Send what the partition has, from its offset on."""
        fed.is_live = True
        if self._behind is not None:
            self._behind.add(fed)
        self._call_off(fed)
        self._wake(fed)

    def stop(self, fed: FedPartition) -> None:
        """Send nothing more of this partition, until `go`."""
        fed.is_live = False
        self._call_off(fed)
        if fed.is_ready:
            fed.is_ready = False
            self._ready.remove(fed)
        if self._behind is not None and fed in self._behind:
            self._behind.remove(fed)
            if not self._behind:  # all others have been at their ends: one that looks again says so
                for other in self.fed_partitions.values():
                    if other.is_live:
                        self._call_off(other)
                        self._wake(other)
                        break

    def remove(self, fed: FedPartition) -> None:
        """Forget a partition."""
        self.stop(fed)
        del self.fed_partitions[fed.key], self._numbered[fed.number]

    def seek(self, offsets: Mapping[TopicPartition, int]) -> None:
        """Go on from other offsets."""
        for key, offset in offsets.items():
            fed = self.fed_partitions[key]
            del self._numbered[fed.number]
            self._give_number(fed)  # frames from before the seek are not its any more: no rewind undoes it
            fed.move(offset)
        self._behind = {fed for fed in self.fed_partitions.values() if fed.is_live}
        for fed in self._behind:
            self._call_off(fed)
            self._wake(fed)

    def rewind(self, seen: int) -> None:
        """Take back the frames after `seen`, as if they had never been sent. Raises Forgotten. Not while it runs.

        A seek that came after them stays where it went.
        """
        for frame in self.journal.rewind(seen):
            self.ledger.unsent(frame.message_count, frame.byte_count)
            fed = self._numbered.get(frame.fed_number)
            if fed is not None:
                fed.move(frame.start)
        self._behind = {fed for fed in self.fed_partitions.values() if fed.is_live}

    def credit_changed(self) -> None:
        """There may be more to send: permit, resume."""
        if self._changed is not None and not self._changed.done():
            self._changed.set_result(None)

    # Pushing

    async def run(self, outbox: Outbox) -> NoReturn:
        """Push for ever. Raises RequestError or StoreError when a partition cannot be read on."""
        self._ready = [fed for fed in self.fed_partitions.values() if fed.is_live]
        for fed in self.fed_partitions.values():
            fed.is_ready = fed.is_live
        began_s = monotonic()
        try:
            while True:
                if not self._ready or not self._fits(self._ready[0]):
                    self._changed = asyncio.get_running_loop().create_future()
                    await self._changed
                    began_s = monotonic()
                    continue
                fed = self._ready.pop(0)
                fed.is_ready = False
                await self._turn(fed, outbox)
                if monotonic() - began_s >= AT_ONCE_S:  # nothing in it waits while the client takes everything
                    await asyncio.sleep(0)
                    began_s = monotonic()
        finally:
            for fed in self.fed_partitions.values():
                self._call_off(fed)

    def _fits(self, fed: FedPartition) -> bool:
        return self.ledger.fits(fed.next_message_bytes, record_count=fed.next_record_count)

    async def _turn(self, fed: FedPartition, outbox: Outbox) -> None:
        """Send of one partition what is there and fits; then it waits at its end, or for its next turn."""
        key = fed.key
        topic, partition = key
        seq = self.journal.last
        portion = self._source.at_hand(topic, fed.topic_id, partition, fed.offset, self._wanted)
        if portion is None:
            try:
                portion = await self._source.read(
                    topic,
                    fed.topic_id,
                    partition,
                    fed.offset,
                    self._wanted,
                    count_max=self._count_max(fed),
                )
            except OutOfRange as error:
                raise out_of_range(*key, fed.offset, error.bounds) from None
            except BrokerUnreachable as error:
                self._try_again_later(fed, error)
                return
            except (UnknownQueue, TopicGone) as error:
                if self._outlives_topics:
                    self.stop(fed)
                    return
                if isinstance(error, UnknownQueue):
                    raise
                raise epoch_changed(topic) from None
            fed.is_away = False
        ranges, end = portion
        if ranges and topic.startswith("%"):
            self._check_topic(topic)
        for part in ranges:
            # A seek or a rebalance may have come in between.
            if not fed.is_live or part.start != fed.offset or not await self._push(fed, part, outbox):
                break
        if not fed.is_live or fed.is_ready:
            return
        if end is not None and fed.offset >= end:
            await self._at_end(fed, outbox)
            if fed.is_live and not fed.is_ready:
                fed.call_off = self._source.watch(*key, end, partial(self._wake, fed))
        else:
            self._make_ready(fed)
            if self.journal.last == seq:  # nothing was sent, as behind a filter: others have their turn
                await asyncio.sleep(0)

    def _try_again_later(self, fed: FedPartition, error: BrokerUnreachable) -> None:
        if not fed.is_live or fed.is_ready:
            return
        if not fed.is_away:
            fed.is_away = True
            log.warning("subscription=%s waits for %s partition %d: %s", self.name, *fed.key, error)
        self._call_off(fed)
        fed.call_off = asyncio.get_running_loop().call_later(AGAIN_S, self._wake, fed).cancel

    def _wake(self, fed: FedPartition) -> None:
        if fed.is_live and not fed.is_ready:
            self._make_ready(fed)
        self.credit_changed()

    def _make_ready(self, fed: FedPartition) -> None:
        fed.is_ready = True
        self._ready.append(fed)

    def _call_off(self, fed: FedPartition) -> None:
        """It does not wait at its end any more."""
        if fed.call_off is not None:
            fed.call_off()
            fed.call_off = None

    def _give_number(self, fed: FedPartition) -> None:
        fed.number = self._next_number
        self._next_number += 1
        self._numbered[fed.number] = fed

    def _count_max(self, fed: FedPartition) -> int:
        """How many messages to read: about what credit allows, for the rest would be encoded in vain."""
        count = self.ledger.message_budget
        byte_budget = self.ledger.byte_budget
        if byte_budget is not None:
            count = min(count, byte_budget // fed.message_bytes + 1)
        return max(count, 1)

    async def _at_end(self, fed: FedPartition, outbox: Outbox) -> None:
        if self._behind is not None:
            self._behind.discard(fed)
            if not self._behind:
                self._behind = None
                await outbox.put(caught_up_push(self.name, self.cursor))

    async def _push(self, fed: FedPartition, part: EncodedRange, outbox: Outbox) -> bool:
        """Send a range as far as credit goes; whether all of it went."""
        if not part.ends:  # a stretch that the filter left empty
            fed.move(part.stop)
            self._tell_delivered()
            return True
        is_whole = self._wanted.form is Form.BATCH
        count = self._count_of_batches(part) if is_whole else self._count_of_messages(part, outbox)
        size_bytes = part.size_bytes(count) if count else part.size_bytes(1)
        message_count = part.ends[count - 1] - part.start if is_whole and count else max(count, 1)
        fed.next_message_bytes = part.size_bytes(1)
        fed.next_record_count = part.ends[0] - part.start if is_whole else 1
        fed.message_bytes = part.size_bytes(len(part.ends)) // len(part.ends) + 1
        if not count or not self.ledger.fits(size_bytes, record_count=message_count):
            return False
        is_all = count == len(part.ends)
        stop = part.stop if is_all else part.ends[count - 1]
        self.ledger.sent(message_count, size_bytes, whole=is_whole)
        seq = self.journal.sent(Frame(fed.number, fed.offset, message_count, size_bytes))
        fed.offset = stop
        fed.next_message_bytes = fed.next_record_count = 1
        frame = self._frame(fed, part, count, seq, size_bytes)
        is_binary = self._wanted.form is not Form.JSON
        try:
            if not outbox.send_at_once(frame, is_binary=is_binary):
                await outbox.send(frame, is_binary=is_binary)
        finally:  # a connection that is lost meanwhile has had it; what the client did not see is rewound
            self.ledger.returned(message_count, size_bytes)
        if fed.offset == stop:
            fed.delivered = stop
            self._tell_delivered()
        self._stats.ws_sent_message_count += message_count
        self._stats.ws_sent_byte_count += len(frame)
        return is_all

    def _tell_delivered(self) -> None:
        if self.on_delivered is not None:
            self.on_delivered()

    def _frame(self, fed: FedPartition, part: EncodedRange, count: int, seq: int, size_bytes: int) -> bytes:
        ledger = self.ledger
        credit = ledger.messages.left
        credit_bytes = None if ledger.bytes is None else ledger.bytes.left
        if self._wanted.form is Form.BATCH:
            header = batch_header(
                self.name, seq, *fed.key, part.start, part.ends[count - 1],
                size_bytes=size_bytes, credit=credit, credit_bytes=credit_bytes,
            )  # fmt: skip
        else:
            body = part.body if count == len(part.ends) else part.body[: part.marks[count - 1]]
            header = messages_push(
                self.name, seq, body, size_bytes=size_bytes, credit=credit, credit_bytes=credit_bytes
            )
            if self._wanted.form is Form.JSON:
                return header
        payload = part.payload if count == len(part.ends) else part.payload[: part.payload_marks[count - 1]]
        return binary_frame(header, payload)

    def _count_of_messages(self, part: EncodedRange, outbox: Outbox) -> int:
        budget = self.ledger.message_budget
        if budget <= 0 or len(part.ends) == 1:
            return min(budget, 1)
        bytes_max = outbox.room(FRAME_BYTES_TARGET)
        byte_budget = self.ledger.byte_budget
        if byte_budget is not None:
            bytes_max = min(bytes_max, byte_budget)
        return part.count_within(budget, bytes_max)

    def _count_of_batches(self, part: EncodedRange) -> int:
        """Leading batches that fit, at least one: `fits` then says whether that may exceed the credit."""
        budget = self.ledger.message_budget
        byte_budget = self.ledger.byte_budget
        count = 1
        while (
            count < len(part.ends)
            and part.ends[count] - part.start <= budget
            and (byte_budget is None or part.payload_marks[count] <= byte_budget)
        ):
            count += 1
        return count


class Fed:
    """What subscriptions that are fed have in common, wherever their positions come from."""

    def __init__(
        self,
        command: Subscribe,
        feed: Feed,
        *,
        routes: Routes,
        access: Callable[[], Access],
        partitions_left: Callable[[], int],
    ) -> None:
        """`access`, `partitions_left`: the rights of the client, and how many more partitions its socket may follow, as
        they are at the time."""
        self.name = command.sub
        self.feed = feed
        self.ledger = feed.ledger
        self._command = command
        self._routes = routes
        self._access = access
        self._partitions_left = partitions_left
        self._outbox: Outbox | None = None  # of the connection, while there is one

    @property
    def is_named(self) -> bool:
        """Whether its topics are named. Those of a pattern come and go with the rights to them; see `refresh`."""
        return self._command.pattern is None

    @property
    def seq(self) -> int:
        """Number of the last frame."""
        return self.feed.journal.last

    def credit_changed(self) -> None:
        """Permit, pause or resume."""
        self.feed.credit_changed()

    def confirm(self, seen: int) -> None:
        """The client has taken in the frames up to this one."""
        self.feed.journal.confirm(seen)


def epoch_changed(topic: str) -> RequestError:
    """The answer when a topic is not the one that was subscribed to, but another one of its name."""
    return RequestError(EPOCH_CHANGED, f"Topic {topic} was deleted and made again.")
