"""What a receive that has found nothing waits for: records in its topics or light queues, and changes of leases."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Sequence

from gateway.groups.coordinator.context import Context
from gateway.groups.coordinator.search import Lane, lane_of
from gateway.routing.base import TopicView
from gateway.routing.light import LightPartitionReader
from gateway.routing.tail_watcher import TopicWatch

Topics = Sequence[tuple[TopicView, bool]]
"""The topics of a receive, and whether each is the group's own retry topic."""


class Waiting:
    """What wakes one receive."""

    def __init__(self, context: Context, queue: str | None) -> None:
        self._context = context
        self._name = queue or ""
        self._watched: Topics = ()
        self._watches: list[tuple[TopicView, bool, TopicWatch]] = []
        self._call_offs: list[Callable[[], None]] = []  # of light queues
        self._changed: dict[Lane, None] = {}  # light queues that got records
        self.waiter: asyncio.Future[None]  # from the first `renew` on

    def wake(self) -> None:
        """Something may have changed."""
        if not self.waiter.done():
            self.waiter.set_result(None)

    def renew(self) -> asyncio.Future[None]:
        """The waiter from here on."""
        self.waiter = asyncio.get_running_loop().create_future()
        return self.waiter

    def watches(self, topics: Topics) -> bool:
        """Whether it is told of what these get."""
        return list(topics) == list(self._watched)

    def watch(self, topics: Topics) -> None:
        """Be told of these topics from here on, and of no others. Raises as `light_route`."""
        self.close()
        for view, is_retry in topics:
            if self._name and not is_retry:
                for partition in range(view.partitions):
                    self._watch_light(lane_of(view, False, partition, self._name))
            else:
                watch = self._context.tail_watcher.watch_topic(view.name, self.wake)
                self._watches.append((view, is_retry, watch))
        self._watched = topics

    def _watch_light(self, lane: Lane) -> None:
        def got() -> None:
            self._changed[lane] = None
            self.wake()

        reader = LightPartitionReader(self._context.routes)
        self._call_offs.append(reader.follow(lane.topic, self._name.encode(), lane.partition, got))

    def changed(self) -> list[Lane]:
        """Partitions and light queues that got records since this was last asked."""
        light, self._changed = self._changed, {}
        return [
            *light,
            *self._changed_partitions(),
        ]

    def _changed_partitions(self) -> Iterator[Lane]:
        return (
            lane_of(view, is_retry, partition)
            for view, is_retry, watch in self._watches
            for partition in watch.changed()
            if partition < view.partitions
        )

    def close(self) -> None:
        """Be told no more."""
        for _, _, watch in self._watches:
            watch.close()
        self._watches = []
        while self._call_offs:
            self._call_offs.pop()()
        self._watched = ()
