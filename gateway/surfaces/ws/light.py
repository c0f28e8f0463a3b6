"""A light queue as the source of a subscription: what a reader of partitions is to partitions, in the queue's own
offsets. Only who waits costs anything: nothing is kept for a queue.

With a group, how far it is in the queue is kept (gateway/groups/machines/light_offsets.py): there are no members, and
a subscriber begins where the group is.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from typing import Any, NoReturn

from gateway.api.light import LightReader, Rendering, commit_light
from gateway.api.read import AtTime, Consumer, OffsetSpec, out_of_range
from gateway.codec.records import split_lines
from gateway.errors import RequestError, invalid
from gateway.groups.machines.errors import GroupError
from gateway.groups.protocol import Groups
from gateway.routing.base import Routes, TopicView, topic_id_of
from gateway.routing.light import LightTail
from gateway.surfaces.ws.commands import Form, Mode, Subscribe, UpTo
from gateway.surfaces.ws.commits import AUTO_COMMIT_MS
from gateway.surfaces.ws.feed import FedPartition, Feed
from gateway.surfaces.ws.frame_cache import (
    FETCH_BYTES,
    RENDER_COUNT_MAX,
    EncodedRange,
    Portion,
    TopicGone,
    Wanted,
    binary_message,
    cut_in_ranges,
    gap,
    one_message,
)
from gateway.surfaces.ws.reader import Reader
from store.errors import StoreError
from store.record_batch import DecodedRecord
from store.types import Bounds, LightRecord

log = logging.getLogger(__name__)


class LightSource:
    """Reads one light queue of topics, in all their partitions."""

    __slots__ = ("_consumer", "_name", "_reader", "_rendering", "_routes", "_shown_name", "_tails")

    def __init__(
        self,
        name: bytes,
        reader: LightReader,
        rendering: Rendering,
        consumer: Consumer,
        routes: Routes,
    ) -> None:
        self._name = name
        self._shown_name = name.decode()
        self._tails: dict[tuple[str, int], LightTail] = {}  # by topic and partition
        self._reader = reader
        self._rendering = rendering
        self._consumer = consumer
        self._routes = routes

    # Frames

    def at_hand(self, topic: str, topic_id: int, partition: int, offset: int, wanted: Wanted) -> Portion | None:
        """See `Source`: one small record that has just come. All else is for `read`."""
        tail = self._tails.get((topic, partition))
        one = None if tail is None else tail.take(offset)
        if one is None or topic_id_of(self._routes, topic) != topic_id:
            return None
        record = self._rendering.decoded_at_once(one)
        if record is None:
            return None
        payload = None
        if wanted.form is Form.JSON:
            message = self._rendering.shown(topic, self._shown_name, partition, one, record, topic_id=None)
        else:
            message, payload = self._in_binary(topic, partition, one, record)
        message["cursor"] = f"{topic}:{partition}={one.offset + 1}"
        made = one_message(one.offset, message, payload)
        return Portion((made,) if one.offset == offset else (gap(offset, one.offset), made), one.offset + 1)

    def watch(self, topic: str, partition: int, end: int, wake: Callable[[], None]) -> Callable[[], None]:
        """See `Source`. Who is woken, and comes back, is told of what came meanwhile."""
        tail = self._tails.get((topic, partition))
        if tail is None or not tail.is_on:
            try:
                tail = self._tails[topic, partition] = self._reader.tail(topic, self._name, partition, end)
            except StoreError:  # who is woken meets it again, and can say so
                return asyncio.get_running_loop().call_soon(wake).cancel
        tail.wait(wake)
        return tail

    async def read(
        self, topic: str, topic_id: int, partition: int, offset: int, wanted: Wanted, *, count_max: int
    ) -> Portion:
        """As `FrameCache.read`. An offset that retention has passed goes on at the first one that is kept."""
        if (tail := self._tails.get((topic, partition))) is not None:
            tail.reading()
        read = await self._reader.read_one(
            topic,
            self._name,
            partition,
            offset,
            max_records=min(count_max, wanted.batch, RENDER_COUNT_MAX),
            max_bytes=FETCH_BYTES,
        )
        if self._routes.topic(topic).topic_id != topic_id:
            raise TopicGone(topic)
        ranges: list[EncodedRange] = []
        start = read.records[0].offset if read.records else read.next_offset
        if start > offset:
            ranges.append(gap(offset, start))
        if read.records:
            messages: list[dict[str, object]]
            payloads: list[bytes] | None = None
            records = [(partition, record) for record in read.records]
            if wanted.form is Form.JSON:
                messages = await self._rendering.of(topic, self._name, records, topic_id=None)
            else:
                messages, payloads = [], []
                async for _, one, record in self._rendering.decoded(records):
                    message, payload = self._in_binary(topic, partition, one, record)
                    messages.append(message)
                    payloads.append(payload)
            ends = [record.offset + 1 for record in read.records]
            for message, end in zip(messages, ends, strict=True):
                message["cursor"] = f"{topic}:{partition}={end}"
            ranges += cut_in_ranges(start, ends[-1], ends, split_lines(messages), payloads, wanted.batch)
        return Portion(ranges, read.max_offset)

    def _in_binary(
        self, topic: str, partition: int, one: LightRecord, record: DecodedRecord
    ) -> tuple[dict[str, object], bytes]:
        message, payload = binary_message(topic, partition, record, one.entry)
        message["queue"] = self._shown_name
        message["queue_offset"] = one.offset
        return message, payload

    # Positions

    async def check_epoch(self, topic: TopicView, epoch: str | None) -> None:
        """See `Consumer.check_epoch`."""
        await self._consumer.check_epoch(topic, epoch)

    async def bounds(self, topic: str, partition: int) -> Bounds:
        """Of the first record, and the lowest that the next one may get."""
        low, _ = await self._reader.bounds(topic, self._name, partition)
        return Bounds(low, await self._reader.end(topic, self._name, partition))

    async def start_offset(self, topic: str, partition: int, spec: OffsetSpec, reset: str | None = None) -> int:
        """Where a reader begins who asks for `spec`; what retention has passed becomes the first one that is kept.
        Raises RequestError, and as `bounds`."""
        low, high = await self.bounds(topic, partition)
        if isinstance(spec, AtTime):
            raise invalid('from: a light queue is read from "earliest", "latest" or a cursor')
        if isinstance(spec, str):
            return low if spec == "earliest" else high
        if spec > high:
            raise out_of_range(topic, partition, spec, (low, high))
        return max(spec, low)


class LightStream(Reader):
    """A subscription that begins where its group is in a light queue, and says how far it has come."""

    mode = Mode.STREAM

    def __init__(self, command: Subscribe, feed: Feed, *, groups: Groups, **of_reader: Any) -> None:
        super().__init__(command, feed, **of_reader)
        assert command.group is not None
        assert command.queue is not None
        self.group = self._group = command.group
        self._queue_name = command.queue.encode()
        self._groups = groups
        self._auto = command.auto_ack
        self._committed: dict[tuple[str, int], int] = {}
        self._delivered: asyncio.Future[None] | None = None  # `keep` waits for it
        if self._auto:
            feed.on_delivered = self._note_delivery

    async def _begin(self, fed: FedPartition) -> None:
        topic, partition = fed.key
        known = self._groups.light_offsets.committed(self._group, topic, partition, self._queue_name.decode())
        if known is not None:
            low, _ = await self.positions.bounds(topic, partition)
            fed.move(max(known, low))
        self._committed[fed.key] = fed.offset

    async def keep(self) -> NoReturn:
        """With `auto_ack`, commit what was delivered, AUTO_COMMIT_MS later at most. Without deliveries, do nothing: to
        look each second, 15,000 sockets would need a third of a core. Raises RequestError, GroupError, StoreError."""
        half_s = AUTO_COMMIT_MS / 2000
        while True:
            self._delivered = asyncio.get_running_loop().create_future()
            if not self._auto or not self._news():
                await self._delivered
            await asyncio.sleep(half_s)
            await self._commit_delivered()
            await asyncio.sleep(half_s)

    def _note_delivery(self) -> None:
        if self._delivered is not None and not self._delivered.done():
            self._delivered.set_result(None)

    async def end(self) -> None:
        """Commit what was delivered, with `auto_ack`."""
        try:
            await self._commit_delivered()
        except (RequestError, GroupError, StoreError) as error:
            log.info("group=%s could not commit in a light queue: %s", self.group, error)

    async def ack(self, up_to: Sequence[UpTo]) -> Sequence[RequestError | None]:
        """Commit; durable on return. Raises RequestError, GroupError, StoreError."""
        offsets: dict[str, dict[int, int]] = {}
        for topic, partition, offset in up_to:
            if (topic, partition) not in self._committed:
                raise invalid(f"ack: this subscription does not have partition {partition} of {topic}")
            offsets.setdefault(topic, {})[partition] = offset
        for topic, of_topic in offsets.items():
            await commit_light(self._groups, self._routes, self._group, topic, self._queue_name, of_topic)
            self._committed.update(((topic, partition), offset) for partition, offset in of_topic.items())
        return [None] * len(up_to)

    def _news(self) -> list[UpTo]:
        """What was delivered and is not committed."""
        return [
            UpTo(*key, fed.delivered)
            for key, fed in self.feed.fed_partitions.items()
            if fed.delivered > self._committed.get(key, fed.delivered)
        ]

    async def _commit_delivered(self) -> None:
        if self._auto and (news := self._news()):
            await self.ack(news)
