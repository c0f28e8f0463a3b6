"""Waiting at the ends of partitions: one read that waits a partition, however many readers and consumers there are.

Who has read everything asks to be woken once when there is more. The first to ask starts a task that waits at that end;
it stays as long as somebody asks. This is below groups and api, because both wait: sockets, streams, long polls and
consumer instances through `gateway.api.read`, receives through the coordinator.

Who waits for all partitions of a topic, as a receive does, has no use for a task at each end: it is told which of them
have got records (`watch_topic`), by one call of a broker for each batch of appends, however many wait.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection
from functools import partial

from gateway.brokers.base import Broker
from gateway.routing.base import Routes
from gateway.routing.reading import PartitionReader
from store.errors import StoreError, UnknownQueue
from store.types import QueueKey, ReadStatus

WAIT_MS = 30_000
"""How long one wait at a partition's end lasts; it is renewed. Bounds what a lost wake-up could cost."""

Wake = Callable[[], None]


class TailWatcher:
    """The ends of all partitions with waiting callers."""

    def __init__(self, routes: Routes) -> None:
        self._routes = routes
        self._reader = PartitionReader(routes)
        self._tails: dict[tuple[str, int], _Tail] = {}  # by topic and partition
        self._topics: dict[int, _TopicTails] = {}  # by topic id

    def watch(self, topic: str, partition: int, end: int, wake: Wake) -> Callable[[], None]:
        """Call `wake` once, when the partition's end is not `end` any more, or cannot be told: its topic is gone, or a
        broker fails. The answer calls that off."""
        tail = self._tails.get((topic, partition))
        if tail is None:
            tail = self._tails[topic, partition] = _Tail(end)
            tail.task = asyncio.create_task(self._follow(topic, partition, tail), name="mq-tail-watcher")
            tail.task.add_done_callback(lambda _: self._tails.pop((topic, partition)).wake_all())
        token = object()
        if tail.end != end:
            asyncio.get_running_loop().call_soon(wake)  # not at once: the caller is in the middle of something
        else:
            tail.waiting[token] = wake
        return lambda: tail.call_off(token)

    def watch_topic(self, topic: str, wake: Wake) -> TopicWatch:
        """Call `wake` whenever partitions of a topic have got records; which, the answer tells. Close it. Raises
        UnknownQueue."""
        topic_id = self._routes.topic(topic).topic_id
        tails = self._topics.get(topic_id)
        if tails is None:
            tails = self._topics[topic_id] = _TopicTails(self._routes, topic, topic_id)
        return TopicWatch(tails, wake, lambda: self._topics.pop(topic_id, None))

    def is_end(self, topic: str, partition: int, offset: int) -> bool:
        """Whether this is known to be the end without a read; a wrong no costs a read."""
        tail = self._tails.get((topic, partition))
        return tail is not None and tail.end == offset

    async def close(self) -> None:
        """End all waits; who waits is woken."""
        for topic in list(self._topics.values()):
            topic.wake_all()
        tasks = [tail.task for tail in self._tails.values() if tail.task is not None]
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)

    async def _follow(self, topic: str, partition: int, tail: _Tail) -> None:
        try:
            while tail.is_wanted():
                # The answer is only a wake-up: everybody reads for himself, in his turn and as far as his credit goes.
                read = await self._reader.read(topic, partition, tail.end, max_bytes=1, wait_ms=WAIT_MS)
                if read.max_offset != tail.end or read.status not in (ReadStatus.AT_END, ReadStatus.EMPTY):
                    tail.end = read.max_offset
                    tail.wake_all()
                await asyncio.sleep(0)  # a server that shuts down answers waits at once: let it cancel us
        except StoreError:
            pass  # who is woken meets it again, and can say so


class _Tail:
    """Who waits at one end, and where it is."""

    __slots__ = ("_was_idle", "end", "task", "waiting")

    def __init__(self, end: int) -> None:
        self.end = end
        self.task: asyncio.Task[None] | None = None
        self.waiting: dict[object, Wake] = {}
        self._was_idle = False

    def is_wanted(self) -> bool:
        """False when nobody has waited for two turns: those who were woken have had time to come back."""
        was_idle, self._was_idle = self._was_idle, not self.waiting
        return bool(self.waiting) or not was_idle

    def call_off(self, token: object) -> None:
        self.waiting.pop(token, None)

    def wake_all(self) -> None:
        waiting, self.waiting = self.waiting, {}
        for wake in waiting.values():
            wake()


class TopicWatch:
    """What one reader is told of the ends of a topic's partitions."""

    __slots__ = ("_on_last", "_seen", "_tails", "wake")

    def __init__(self, tails: _TopicTails, wake: Wake, on_last: Callable[[], object]) -> None:
        self._tails = tails
        self._on_last = on_last
        self._seen = tails.count
        self.wake = wake
        tails.watches.add(self)

    def changed(self) -> list[int]:
        """Partitions that have got records since this was last asked, or the watch began."""
        seen, self._seen = self._seen, self._tails.count
        return self._tails.since(seen)

    def close(self) -> None:
        """Be told no more."""
        if self in self._tails.watches:
            self._tails.watches.remove(self)
            if not self._tails.watches:
                self._tails.close()
                self._on_last()


class _TopicTails:
    """Who waits for one topic, and which of its partitions got records when."""

    __slots__ = ("_call_offs", "_changed", "_forget_routes", "_routes", "_topic", "_topic_id", "count", "watches")

    def __init__(self, routes: Routes, topic: str, topic_id: int) -> None:
        self._routes = routes
        self._topic = topic
        self.count = 0  # of changes
        self._changed: dict[int, int] = {}  # partition → the number of its last change, the oldest first
        self.watches: set[TopicWatch] = set()
        self._topic_id = topic_id
        self._call_offs: dict[int, Callable[[], None]] = {}  # by the id of the broker that is watched
        self._forget_routes = routes.watch(topic, None, self._on_move)
        self._watch_brokers()

    def _watch_brokers(self) -> None:
        """Watch every broker that takes records of the topic, one that has taken some before included: what it got last
        may not be told yet."""
        for partition in range(self._routes.topic(self._topic).partitions):
            broker = self._routes.writable(self._topic, partition).broker
            if id(broker) not in self._call_offs:
                self._call_offs[id(broker)] = broker.watch(self._topic_id, partial(self._on_append, broker))

    def _on_move(self) -> None:
        """Partitions have another place: records may have come there before it was watched."""
        try:
            if self._routes.topic(self._topic).topic_id != self._topic_id:
                return  # the brokers tell that it is gone
            self._watch_brokers()
        except UnknownQueue:
            return
        self.count += 1
        for partition in range(self._routes.topic(self._topic).partitions):
            self._changed.pop(partition, None)
            self._changed[partition] = self.count
        self.wake_all()

    def _on_append(self, broker: Broker, queues: Collection[QueueKey]) -> None:
        for queue in queues:
            try:
                partition, _ = self._routes.locate(self._topic, broker, queue, None)
            except UnknownQueue:  # it is being deleted
                continue
            self.count += 1
            self._changed.pop(partition, None)
            self._changed[partition] = self.count
        self.wake_all()

    def since(self, count: int) -> list[int]:
        found = []
        for partition in reversed(self._changed):
            if self._changed[partition] <= count:
                break
            found.append(partition)
        return found

    def wake_all(self) -> None:
        for watch in list(self.watches):
            watch.wake()

    def close(self) -> None:
        self._forget_routes()
        for call_off in self._call_offs.values():
            call_off()
