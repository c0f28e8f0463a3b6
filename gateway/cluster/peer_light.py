"""Who waits at light queues of another node, of which there may be many thousands.

    watch_light ──> light_ends     asked once: is there anything at or behind the offset it waits at? Those of one turn
                                   of the event loop, and those that come while it is asked, go together
                ──> changes        followed for the topic as others do (`Broker.watch`): which of its queues got records
                ──> light_news     the names that these records have: those that are waited for here are woken

The other node keeps nothing of who waits. What is not known wakes: an answer that fails, a node that was away, a queue
that has come further than NEWS_RECORDS_MAX since it was asked for.

    L1  `_next` of a queue: the records before it were looked at, for all who waited then. Who comes later is told by
        `light_ends` of what came before, and by `light_news` of what comes behind it
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import partial

from gateway.cluster.peer_wire import Head
from store.errors import StoreError
from store.types import LightWake, QueueKey
from store.watching import watch

NEWS_RECORDS_MAX = 10_000
"""Records of a queue whose names are asked for; when there are more, all who wait at its light queues look."""

ASKED_MAX = 1_000
"""Light queues in one request."""

LINGER_S = 30.0
"""How long a topic is followed at which nobody waits: who is woken mostly waits again."""

Look = Callable[[str, Head], Awaitable[tuple[Head, memoryview]]]
Watch = Callable[[int, Callable[[Mapping[QueueKey, int]], None]], Callable[[], None]]


class LightWatches:
    """Those of one other node. `look` asks it, `watch_topic` is its `Broker.watch`."""

    def __init__(self, look: Look, watch_topic: Watch) -> None:
        self._look = look
        self._watch_topic = watch_topic
        self._waiting: dict[QueueKey, dict[bytes, dict[object, LightWake]]] = {}
        self._topics: dict[int, Callable[[], None]] = {}  # those that are followed
        self._next: dict[QueueKey, int] = {}
        self._ends: dict[QueueKey, int] = {}
        self._asked: list[tuple[QueueKey, bytes, int | None, LightWake]] = []
        self._asking: asyncio.Task[None] | None = None
        self._reading: dict[QueueKey, asyncio.Task[None]] = {}

    def watch(self, queue: QueueKey, name: bytes, end: int | None, wake: LightWake) -> Callable[[], None]:
        """See `LightQueues.watch_light`."""
        call_off = watch(self._waiting.setdefault(queue, {}), name, wake)
        if queue.topic_id not in self._topics:
            self._topics[queue.topic_id] = self._watch_topic(queue.topic_id, partial(self._told, queue.topic_id))
            asyncio.get_running_loop().call_later(LINGER_S, self._let_go, queue.topic_id)
        self._asked.append((queue, name, end, wake))
        if self._asking is None or self._asking.done():
            self._asking = asyncio.create_task(self._ask(), name="ends of light queues")
        return call_off

    def close(self) -> None:
        """Follow nothing any more."""
        for call_off in self._topics.values():
            call_off()
        self._topics.clear()
        for task in (self._asking, *self._reading.values()):
            if task is not None:
                task.cancel()

    def _let_go(self, topic_id: int) -> None:
        """Follow a topic no more at which nobody waits now; else look again later."""
        if topic_id not in self._topics:
            return
        if any(self._waiting.get(queue) for queue in self._of_topic(topic_id)):
            asyncio.get_running_loop().call_later(LINGER_S, self._let_go, topic_id)
            return
        self._topics.pop(topic_id)()
        for queue in [queue for queue in self._next if queue.topic_id == topic_id]:
            del self._next[queue]
        for queue in self._of_topic(topic_id):
            del self._waiting[queue]

    def _of_topic(self, topic_id: int) -> list[QueueKey]:
        return [queue for queue in self._waiting if queue.topic_id == topic_id]

    def _wake_all(self, queue: QueueKey) -> None:
        for waiting in list(self._waiting.get(queue, {}).values()):
            for wake in list(waiting.values()):
                wake(None)

    async def _ask(self) -> None:
        await asyncio.sleep(0)  # who else comes in this turn comes along
        while self._asked:
            asked, self._asked = self._asked[:ASKED_MAX], self._asked[ASKED_MAX:]
            rows = [(queue, name.decode(), end) for queue, name, end, _ in asked]
            try:
                answered, _ = await self._look("light_ends", {"asked": rows})
                has_more: Sequence[bool] = answered["more"]
            except StoreError:
                has_more = [True] * len(asked)
            for (_, _, _, wake), is_woken in zip(asked, has_more, strict=True):
                if is_woken:
                    wake(None)

    def _told(self, topic_id: int, ends: Mapping[QueueKey, int]) -> None:
        if not ends:  # the topic is gone, or the node: who looks learns it
            for queue in self._of_topic(topic_id):
                self._wake_all(queue)
        for queue, end in ends.items():
            known = self._next.get(queue)
            if not self._waiting.get(queue):
                self._next[queue] = end
            elif known is None or end - known > NEWS_RECORDS_MAX:
                self._next[queue] = end
                self._wake_all(queue)
            elif end > known:
                self._ends[queue] = end
                if queue not in self._reading:
                    self._reading[queue] = task = asyncio.create_task(self._read(queue), name="news of light queues")
                    task.add_done_callback(partial(self._has_read, queue))

    def _has_read(self, queue: QueueKey, _: asyncio.Task[None]) -> None:
        del self._reading[queue], self._ends[queue]

    async def _read(self, queue: QueueKey) -> None:
        while (offset := self._next.get(queue)) is not None and offset < self._ends.get(queue, 0):
            try:
                answered, _ = await self._look("light_news", {"queue": queue, "offset": offset})
            except StoreError:
                self._next[queue] = self._ends[queue]
                self._wake_all(queue)
                return
            if self._next.get(queue) != offset:
                continue  # it was told to pass over some meanwhile, or that nobody waits
            self._next[queue] = max(answered["next"], offset + 1)
            waiting = self._waiting.get(queue, {})
            for name in answered["names"]:
                for wake in list(waiting.get(name.encode(), {}).values()):
                    wake(None)
