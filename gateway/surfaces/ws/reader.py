"""Reader mode: every subscription gets every record; the position is the client's, who finds it in each message's
cursor.

A reader follows its topics as they grow, and with a pattern the topics that come. What is new is read from its first
record, so nothing stored since it came into being is missed. The client is told of a partition before it is sent any of
it: it drops what is of others. What is new while no connection is attached, `state` says; what is new behind that, and
before messages are pushed, comes first then.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import NoReturn, Protocol

from gateway.api.read import AtTime, OffsetSpec
from gateway.auth.access import Access
from gateway.errors import PARTITION_NOT_FOUND, RequestError
from gateway.groups.machines.subscription import Subscription as Pattern
from gateway.groups.protocol import TopicPartition
from gateway.routing.base import Routes, TopicView
from gateway.surfaces.ws.commands import From, FromOffsets, FromTime, Mode, Start, Subscribe
from gateway.surfaces.ws.feed import Fed, FedPartition, Feed, epoch_changed
from gateway.surfaces.ws.outbox import Outbox
from gateway.surfaces.ws.protocol import TOO_MANY, assigned_push, partitions_of, revoked_push
from gateway.surfaces.ws.rights import wanted_topics
from store.errors import UnknownQueue
from store.types import Bounds

FOLLOWED_PARTITIONS_MAX = 4096
"""Partitions that the subscriptions of one socket follow."""


class Positions(Protocol):
    """Where readers may begin. `Consumer` says it of partitions."""

    async def check_epoch(self, topic: TopicView, epoch: str | None) -> None:
        """See `Consumer.check_epoch`."""
        ...

    async def bounds(self, topic: str, partition: int) -> Bounds:
        """See `Consumer.bounds`."""
        ...

    async def start_offset(self, topic: str, partition: int, spec: OffsetSpec) -> int:
        """See `Consumer.start_offset`."""
        ...


class Reader(Fed):
    """One subscription in reader mode."""

    mode = Mode.READER
    group: str | None = None

    def __init__(
        self,
        command: Subscribe,
        feed: Feed,
        *,
        routes: Routes,
        positions: Positions,
        access: Callable[[], Access],
        partitions_left: Callable[[], int],
    ) -> None:
        super().__init__(command, feed, routes=routes, access=access, partitions_left=partitions_left)
        self.queue = command.queue
        self._pattern = None if command.pattern is None else Pattern(pattern=command.pattern)
        self.positions = positions
        self._epochs: dict[str, str] = {}
        self._untold_gone: tuple[TopicPartition, ...] = ()  # since `state` was asked for
        self._untold_new: tuple[TopicPartition, ...] = ()  # likewise

    async def open(self) -> dict[str, object]:
        """Find the positions; the answer's fields. Raises RequestError, StoreError."""
        command = self._command
        start = From.LATEST if command.start is None else command.start
        topics = self._wanted_topics()
        if sum(topic.partitions for topic in topics) > self._partitions_left():
            raise too_many_partitions()
        for topic in topics:
            await self.positions.check_epoch(topic, command.epochs.get(topic.name))
        check_all_named(start, {topic.name: topic.partitions for topic in topics}, "from")
        for topic in topics:
            for partition in range(topic.partitions):
                key = TopicPartition(topic.name, partition)
                offset = await offset_at(self.positions, key, start, "earliest")
                fed = FedPartition(key, topic.topic_id, offset)
                await self._begin(fed)
                self.feed.add(fed)
        self._epochs = {topic.name: str(topic.topic_id) for topic in topics}
        return {"epochs": self._epochs, **self.state()}

    def topics(self) -> list[str]:
        """Topics it follows now."""
        return list(self._epochs)

    def partition_count(self) -> int:
        """How many it reads."""
        return len(self.feed.fed_partitions)

    def state(self) -> dict[str, object]:
        """What a client must know to go on, which it is about to be told."""
        self._untold_gone = self._untold_new = ()
        live = [fed for fed in self.feed.fed_partitions.values() if fed.is_live]
        return {"partitions": partitions_of(fed.key for fed in live), "cursor": self.feed.cursor_of(live)}

    async def push(self, outbox: Outbox) -> NoReturn:
        """Push for ever. Raises RequestError, StoreError, OutboxClosed."""
        self._outbox = outbox
        try:
            await self._tell_gone(self._untold_gone)
            here = self.feed.fed_partitions
            await self._tell_new([here[key] for key in self._untold_new if key in here])
            await self.feed.run(outbox)
        finally:
            self._outbox = None

    async def rewind(self, seen: int) -> None:
        """See `Feed.rewind`."""
        self.feed.rewind(seen)

    async def seek(self, to: Start) -> str:
        """Go on from elsewhere; the new cursor. Raises RequestError, StoreError."""
        await seek(self.feed, self.positions, to)
        return self.feed.cursor

    def is_current(self) -> bool:
        """Whether `refresh` would find nothing new. A pattern may always."""
        if self._pattern is not None:
            return False
        count = 0
        for name, epoch in self._epochs.items():  # of each of 15,000 sockets every 5 s
            try:
                topic = self._routes.topic(name)
            except UnknownQueue:
                return False
            if str(topic.topic_id) != epoch:
                return False
            count += topic.partitions
        return count == self.partition_count()

    async def refresh(self) -> None:
        """Topics may have grown, come or gone. Raises RequestError when there are too many."""
        topics = {topic.name: topic for topic in self._wanted_topics()} if self._pattern else self._named_topics()
        if self._pattern is not None:
            gone = [
                fed
                for fed in self.feed.fed_partitions.values()
                if fed.key.topic not in topics or topics[fed.key.topic].topic_id != fed.topic_id
            ]
            for fed in gone:
                self.feed.remove(fed)
            await self._tell_gone([fed.key for fed in gone])
        news = [
            (TopicPartition(topic.name, partition), topic.topic_id)
            for topic in topics.values()
            for partition in range(topic.partitions)
            if (topic.name, partition) not in self.feed.fed_partitions
        ]
        if len(news) > self._partitions_left():
            raise too_many_partitions()
        fed_partitions = [new for key, topic_id in news if (new := await self._new_fed(key, topic_id)) is not None]
        self._epochs = {topic.name: str(topic.topic_id) for topic in topics.values()}
        await self._tell_new(fed_partitions)
        for fed in fed_partitions:
            self.feed.add(fed)

    async def _tell_new(self, news: Sequence[FedPartition]) -> None:
        """Of partitions that are about to be pushed, or when there is a connection again. Raises OutboxClosed."""
        keys = [fed.key for fed in news]
        if self._outbox is None:
            self._untold_new += tuple(keys)
        elif keys:
            await self._outbox.put(assigned_push(self.name, None, partitions_of(keys), self.feed.cursor_of(news)))

    async def _tell_gone(self, keys: Sequence[TopicPartition]) -> None:
        """Likewise."""
        if self._outbox is None:
            self._untold_gone += tuple(keys)
        elif keys:
            await self._outbox.put(revoked_push(self.name, None, partitions_of(keys), None))

    async def _begin(self, fed: FedPartition) -> None:
        """A partition is about to be followed for the first time."""

    async def _new_fed(self, key: TopicPartition, topic_id: int) -> FedPartition | None:
        """Where a partition that came begins; None when its topic has gone again. Raises StoreError."""
        try:
            fed = FedPartition(key, topic_id, (await self.positions.bounds(*key)).min_offset)
            await self._begin(fed)
            return fed
        except UnknownQueue:
            if self._pattern is None:
                raise
            return None

    async def end(self) -> None:
        """Nothing else is kept for a reader."""

    def _wanted_topics(self) -> list[TopicView]:
        return wanted_topics(self._routes, self._command.topics, self._pattern, self._access)

    def _named_topics(self) -> dict[str, TopicView]:
        """The topics as they are. Raises UnknownQueue for one that is gone, RequestError for one that was made anew:
        a read says the same, and which of the two looks first is chance."""
        topics: dict[str, TopicView] = {}
        for name, epoch in self._epochs.items():
            topics[name] = self._routes.topic(name)
            if str(topics[name].topic_id) != epoch:
                raise epoch_changed(name)
        return topics


def too_many_partitions() -> RequestError:
    """The answer to one partition too many."""
    return RequestError(TOO_MANY, f"A socket may follow {FOLLOWED_PARTITIONS_MAX} partitions; use another one.")


def check_all_named(start: Start, partition_counts: Mapping[str, int], field: str) -> None:
    """Every partition that `from` names must exist. Raises RequestError."""
    if isinstance(start, FromOffsets):
        for topic, offsets in start.offsets.items():
            for partition in offsets:
                if partition >= partition_counts.get(topic, 0):
                    raise RequestError(
                        PARTITION_NOT_FOUND, f"{field}: topic {topic} has no partition {partition} here."
                    )


async def offset_at(positions: Positions, key: TopicPartition, start: Start, unnamed: str | int) -> int:
    """Where a partition starts; `unnamed` when `start` names offsets, but not its. Raises RequestError, StoreError."""
    spec: OffsetSpec
    match start:
        case From():
            spec = start.value
        case FromTime(timestamp_ms):
            spec = AtTime(timestamp_ms)
        case FromOffsets(offsets):
            spec = offsets.get(key.topic, {}).get(key.partition, unnamed)
    return await positions.start_offset(*key, spec)


async def seek(feed: Feed, positions: Positions, to: Start) -> None:
    """Move the positions of a feed; those that `to` does not name stay. Raises RequestError, and then none has
    moved."""
    fed_partitions = [fed for fed in feed.fed_partitions.values() if fed.is_live]
    if isinstance(to, FromOffsets):
        has = {fed.key for fed in fed_partitions}
        named = {TopicPartition(topic, number) for topic, offsets in to.offsets.items() for number in offsets}
        for topic, number in sorted(named - has):
            raise RequestError(
                PARTITION_NOT_FOUND, f"to: this subscription does not have partition {number} of {topic}."
            )
        fed_partitions = [fed for fed in fed_partitions if fed.key in named]
    offsets_of = {fed.key: await offset_at(positions, fed.key, to, fed.offset) for fed in fed_partitions}
    feed.seek({key: offset for key, offset in offsets_of.items() if key in feed.fed_partitions})
