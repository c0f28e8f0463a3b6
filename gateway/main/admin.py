"""Topics of the embedded broker, and whether it can take and deliver records."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import Protocol, Unpack

from gateway.api.quotas import TopicQuota
from gateway.brokers.base import ALONE
from gateway.brokers.local import LocalBroker
from gateway.brokers.none import NoBroker
from gateway.cluster.metadata import MetadataError
from gateway.main.no_store import NoStore
from gateway.routing.base import Attachment, TopicView
from gateway.routing.table import RouteTable
from gateway.settings.limits import Limits
from store import Store
from store.errors import Overloaded, StoreStopped, TopicExists
from store.topics import Changes, KeyForm, TopicChoices, TopicConfig
from timer.service import TimerService

log = logging.getLogger(__name__)

BROKER_NAME = ALONE


class Topics(Protocol):
    """Who makes and changes topics: the embedded broker, or the cluster it belongs to."""

    async def create_topic(self, name: str, partitions: int, **choices: Unpack[TopicChoices]) -> TopicView:
        """See `LocalBroker.create_topic`."""
        ...

    async def attach_topic(
        self, name: str, to: Attachment, room: Callable[[int], AbstractContextManager[None]]
    ) -> TopicView:
        """See `ClusterNode.attach_topic`."""
        ...

    async def configure_topic(self, name: str, changes: Changes) -> TopicView:
        """See `LocalBroker.configure_topic`."""
        ...

    async def grow_topic(self, name: str, partitions: int) -> TopicView:
        """See `LocalBroker.grow_topic`."""
        ...

    async def delete_topic(self, name: str) -> None:
        """See `LocalBroker.delete_topic`."""
        ...


class LocalAdmin:
    """Topics of the embedded broker, and whether it can take and deliver records. Fills `routes`, which the timer
    delivers by; of a node of a cluster (`is_node`) the cluster does that, once `topics` is its."""

    def __init__(
        self, store: Store | NoStore, timer: TimerService | None, limits: Limits, routes: RouteTable, *,
        name: str = BROKER_NAME, is_node: bool = False,
    ) -> None:  # fmt: skip
        """Of a node without a store there is no `timer` either."""
        self.routes = routes
        self._quota = TopicQuota(limits, self.routes)
        self.on_change: Callable[[], None] = lambda: None
        """Called after topics came, grew or went."""

        self.broker: LocalBroker | NoBroker
        self.topics: Topics
        if isinstance(store, NoStore) or timer is None:
            self.broker = NoBroker(name)
        else:
            self.topics = self.broker = LocalBroker(
                store,
                timer,
                name=name,
                on_topic=_ignore if is_node else self._add_routes,
                on_deleted=_ignore if is_node else self._remove,
            )
        self.timer_failure: str | None = None
        """Why no delayed record is delivered until a restart; None: they are."""

        for topic in store.topics():
            if not is_node and not topic.is_system:
                self._add_routes(topic)

    def _add_routes(self, topic: TopicView) -> None:
        self.routes.put(topic, self.broker)
        self.on_change()

    def _remove(self, topic: TopicView) -> None:
        self.routes.remove(topic)
        self.on_change()

    async def create_own_topic(self, name: str, partitions: int) -> TopicView:
        """See `gateway.groups.coordinator.context.OwnTopics`."""
        try:
            return await self.topics.create_topic(name, partitions, is_own=True)
        except TopicExists:
            return self.routes.topic(name)
        except MetadataError as error:
            raise Overloaded(f"topic {name} cannot be made now: {error}") from error

    async def create_topic(
        self, name: str, partitions: int, config: TopicConfig | None = None, json_keys: KeyForm | None = None
    ) -> TopicView:
        """See `gateway.api.topics.TopicAdmin`."""
        is_there = name in self.routes
        with self._quota.room_for(topics=int(not is_there), partitions=0 if is_there else partitions):
            return await self.topics.create_topic(name, partitions, config=config, json_keys=json_keys)

    async def attach_topic(self, name: str, to: Attachment) -> TopicView:
        """See `gateway.api.topics.TopicAdmin`."""
        is_new = name not in self.routes
        return await self.topics.attach_topic(
            name, to, lambda count: self._quota.room_for(topics=int(is_new), partitions=count)
        )

    async def configure_topic(self, name: str, changes: Changes) -> TopicView:
        """See `gateway.api.topics.TopicAdmin`."""
        return await self.topics.configure_topic(name, changes)

    async def grow_topic(self, name: str, partitions: int) -> TopicView:
        """See `gateway.api.topics.TopicAdmin`."""
        more = partitions - self.routes.topic(name).partitions
        with self._quota.room_for(topics=0, partitions=max(0, more)):
            return await self.topics.grow_topic(name, partitions)

    async def delete_topic(self, name: str) -> None:
        """See `gateway.api.topics.TopicAdmin`."""
        await self.topics.delete_topic(name)

    def brokers(self) -> Sequence[str]:
        """See `gateway.api.topics.TopicAdmin`."""
        return (self.broker.name,)

    def ready(self) -> Sequence[str]:
        """See `gateway.api.topics.TopicAdmin`."""
        reasons = list(self.broker.ready())
        if self.timer_failure is not None:
            reasons.append(self.timer_failure)
        return reasons

    async def run_timer(self, timer: TimerService) -> None:
        """Deliver delayed records until cancelled. When a disk has failed, stop delivering, but let reads go on."""
        try:
            await timer.run()
        except* (StoreStopped, OSError) as failures:
            cause = failures.exceptions[0]
            log.error("timer stopped, delayed records wait for a restart error=%r", cause, exc_info=cause)
            self.timer_failure = f"the timer has stopped: {type(cause).__name__}"


def pin(store: Store, needed_position: Callable[[], int | None]) -> None:
    """Have the log kept from a position on; None: from its end on."""

    def lowest_needed() -> int:
        position = needed_position()
        return store.end_position if position is None else position

    store.pin(lowest_needed)


def _ignore(_: TopicView) -> None:
    """The cluster tells of topics."""
