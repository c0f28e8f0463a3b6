"""Waiting at the ends of partitions, however many readers and consumers do.

Who has read everything asks to be woken once when there is more. This is below groups and api, because both wait:
sockets, streams, long polls and consumer instances through `gateway.api.read`, receives through the coordinator.

A broker tells by one call for each batch of appends which queues of a topic have got records, and where they end now.
That call, and no task, wakes those who wait: for the embedded broker within the turn of the event loop that makes the
records readable.

    the first to wait in a topic   watches the brokers of its partitions, then asks where the end is: what came between
                                   its read and the watch was not notified
    a broker tells an end          of the partition's open segment: who waits at another one is woken. Where a sealed
                                   one ends its chain says, and no partition ends there: a broker that is watched anew
                                   tells the ends of all queues it has
    what was told may be wrong     (a partition has moved, a broker was away, an end went back) the end is asked for
    there is no waiter             the end is followed for a while: most come back, and need no read then
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from functools import partial

from gateway.brokers.base import Broker
from gateway.routing.base import Routes, topic_id_of
from gateway.routing.reading import PartitionReader
from store.errors import StoreError, UnknownQueue
from store.types import QueueKey

LOOK_S = 15.0
"""An end without a waiter is followed for so long at least, and twice as long at most."""

Wake = Callable[[], None]


class TailWatcher:
    """The ends of all partitions with waiting callers."""

    def __init__(self, routes: Routes) -> None:
        self._routes = routes
        self._topics: dict[int, _TopicTails] = {}  # by topic id

    def watch(self, topic: str, partition: int, end: int, wake: Wake) -> Callable[[], None]:
        """Call `wake` once, when the partition's end is not `end` any more, or cannot be told: its topic is gone, or a
        broker fails. Never within this call, but perhaps within one that appends: it may only take note. The answer
        calls that off."""
        try:
            return self._tails_of(topic).watch(partition, end, wake)
        except UnknownQueue:
            return asyncio.get_running_loop().call_soon(wake).cancel

    def watch_topic(self, topic: str, wake: Wake) -> TopicWatch:
        """Call `wake` whenever partitions of a topic have got records; which, the answer tells. Close it. Raises
        UnknownQueue."""
        return TopicWatch(self._tails_of(topic), wake)

    def is_end(self, topic: str, partition: int, offset: int) -> bool:
        """Whether this is known to be the end without a read; a wrong no costs a read."""
        topic_id = topic_id_of(self._routes, topic)
        tails = None if topic_id is None else self._topics.get(topic_id)
        return tails is not None and tails.is_end(partition, offset)

    async def close(self) -> None:
        """End all waits; who waits is woken."""
        for tails in list(self._topics.values()):
            tails.close()
            tails.wake_all()

    def _tails_of(self, topic: str) -> _TopicTails:
        topic_id = self._routes.topic(topic).topic_id
        tails = self._topics.get(topic_id)
        if tails is None:
            tails = _TopicTails(self._routes, topic, topic_id, lambda: self._topics.pop(topic_id, None))
            self._topics[topic_id] = tails
        return tails


class _Tail:
    """Who waits at one end, and where it is."""

    __slots__ = ("asking", "end", "is_doubted", "waiting", "was_idle")

    def __init__(self) -> None:
        self.end: int | None = None  # not known yet, or not any more
        self.is_doubted = False  # since it was last asked for
        self.asking: asyncio.Task[None] | None = None
        self.waiting: dict[object, tuple[int, Wake]] = {}
        self.was_idle = False

    def told(self, end: int) -> None:
        """The partition reaches to `end` at least."""
        if self.end is None or end > self.end:
            self.end = end
        if self.waiting:
            self._wake([token for token, (seen, _) in self.waiting.items() if seen != self.end])

    def wake_all(self) -> None:
        self._wake(list(self.waiting))

    def _wake(self, tokens: list[object]) -> None:
        for token in tokens:
            _, wake = self.waiting.pop(token)
            wake()


class TopicWatch:
    """What one reader is told of the ends of a topic's partitions."""

    __slots__ = ("_seen", "_tails", "wake")

    def __init__(self, tails: _TopicTails, wake: Wake) -> None:
        self._tails = tails
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
            self._tails.close_if_idle()


class _TopicTails:
    """Who waits for one topic or at the ends of its partitions, and which of these got records when."""

    __slots__ = (
        "_call_offs", "_changed", "_forget_routes", "_is_closed", "_looking", "_on_close", "_reader", "_routes",
        "_tails", "_topic", "_topic_id", "count", "watches",
    )  # fmt: skip

    def __init__(self, routes: Routes, topic: str, topic_id: int, on_close: Callable[[], object]) -> None:
        self._routes = routes
        self._reader = PartitionReader(routes)
        self._topic = topic
        self._topic_id = topic_id
        self._on_close = on_close
        self.count = 0  # of changes
        self._changed: dict[int, int] = {}  # partition → the number of its last change, the oldest first
        self.watches: set[TopicWatch] = set()
        self._tails: dict[int, _Tail] = {}  # by partition
        self._looking: asyncio.TimerHandle | None = None  # for ends without a waiter
        self._is_closed = False
        self._call_offs: dict[int, Callable[[], None]] = {}  # by the id of the broker that is watched
        self._forget_routes = routes.watch(topic, None, self._on_move)
        self._watch_brokers()

    # ---- ends

    def watch(self, partition: int, end: int, wake: Wake) -> Callable[[], None]:
        """See `TailWatcher.watch`."""
        tail = self._tails.get(partition)
        if tail is None:
            tail = self._tails[partition] = _Tail()
        tail.was_idle = False
        if tail.end is not None and end < tail.end:
            self._look_later()
            return asyncio.get_running_loop().call_soon(wake).cancel
        token = object()
        tail.waiting[token] = end, wake
        if tail.end != end:  # not known; or its reader is ahead of what was told
            self._doubt(partition, tail)

        def call_off() -> None:
            if tail.waiting.pop(token, None) is not None and not tail.waiting:
                self._look_later()

        return call_off

    def is_end(self, partition: int, offset: int) -> bool:
        tail = self._tails.get(partition)
        return tail is not None and tail.end == offset

    def _doubt(self, partition: int, tail: _Tail) -> None:
        """What was told of an end may be wrong: ask, for those who wait there."""
        tail.end = None
        tail.is_doubted = True
        if tail.waiting and tail.asking is None:
            tail.asking = asyncio.create_task(self._ask(partition, tail), name="mq-tail-watcher")

    async def _ask(self, partition: int, tail: _Tail) -> None:
        end: int | None = None
        try:
            while tail.is_doubted:
                tail.is_doubted, end = False, None
                if topic_id_of(self._routes, self._topic) == self._topic_id:
                    end = (await self._reader.bounds(self._topic, partition)).max_offset
        except StoreError:
            end = None  # who is woken meets it again, and can say so
        finally:
            tail.asking = None
            if end is None:
                tail.wake_all()
            else:
                tail.told(end)
            self._look_later()

    def _look_later(self) -> None:
        if self._looking is None and not self._is_closed:
            self._looking = asyncio.get_running_loop().call_later(LOOK_S, self._look)

    def _look(self) -> None:
        """Forget ends that had no waiter now and the last time."""
        self._looking = None
        for partition, tail in list(self._tails.items()):
            if tail.waiting or tail.asking is not None:
                tail.was_idle = False
            elif tail.was_idle:
                del self._tails[partition]
            else:
                tail.was_idle = True
                self._look_later()
        self.close_if_idle()

    # ---- brokers and routes

    def _watch_brokers(self) -> None:
        """Watch every broker that takes records of the topic, one that has taken some before included: what it got last
        may not be told yet."""
        for partition in range(self._routes.topic(self._topic).partitions):
            broker = self._routes.writable(self._topic, partition).broker
            if id(broker) not in self._call_offs:
                self._call_offs[id(broker)] = broker.watch(self._topic_id, partial(self._on_append, broker))

    def _on_move(self) -> None:
        """Partitions have another place: records may have come there before it was watched."""
        for partition, tail in list(self._tails.items()):
            self._doubt(partition, tail)
        try:
            if self._routes.topic(self._topic).topic_id != self._topic_id:
                return  # the brokers tell that it is gone
            self._watch_brokers()
        except UnknownQueue:
            return
        for partition in range(self._routes.topic(self._topic).partitions):
            self._note(partition)
        self.wake_watches()

    def _on_append(self, broker: Broker, ends: Mapping[QueueKey, int]) -> None:
        if not ends:
            for partition, tail in list(self._tails.items()):
                self._doubt(partition, tail)
        for queue, end in ends.items():
            try:
                partition, last = self._routes.locate(self._topic, broker, queue, end - 1 if end else None)
                open_from = self._routes.writable(self._topic, partition).logical_start
            except UnknownQueue:  # it is being deleted
                continue
            self._note(partition)
            if (at_end := self._tails.get(partition)) is not None and (last is None or last >= open_from):
                if last is None or (at_end.end is not None and last + 1 < at_end.end):
                    self._doubt(partition, at_end)
                elif last + 1 != at_end.end:
                    at_end.told(last + 1)
                    if not at_end.waiting:
                        self._look_later()
        self.wake_watches()

    # ---- topics

    def _note(self, partition: int) -> None:
        self.count += 1
        self._changed.pop(partition, None)
        self._changed[partition] = self.count

    def since(self, count: int) -> list[int]:
        found = []
        for partition in reversed(self._changed):
            if self._changed[partition] <= count:
                break
            found.append(partition)
        return found

    def wake_watches(self) -> None:
        for watch in list(self.watches):
            watch.wake()

    def wake_all(self) -> None:
        """All who wait for the topic, or at an end."""
        for tail in self._tails.values():
            tail.wake_all()
        self.wake_watches()

    # ---- the end

    def close_if_idle(self) -> None:
        if not self.watches and not self._tails:
            self.close()

    def close(self) -> None:
        self._is_closed = True
        if self._looking is not None:
            self._looking.cancel()
        for tail in self._tails.values():
            if tail.asking is not None:
                tail.asking.cancel()
        self._forget_routes()
        for call_off in self._call_offs.values():
            call_off()
        self._on_close()
