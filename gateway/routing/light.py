"""Where the light queues of a partition are (docs/light-queues.md): with its broker, as long as it never had another. A
send that names some is refused elsewhere, so that nothing is accepted that could not be read.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Protocol, cast, runtime_checkable

from gateway.routing.base import Route, Routes
from store.errors import NoLightQueues
from store.types import Bounds, LightRead, QueueKey


@runtime_checkable
class LightQueues(Protocol):
    """What a broker can do with light queues. `store.store.Store` says what its methods do."""

    def light_bounds(self, queue: QueueKey, name: bytes) -> Bounds:
        """See `Store.light_bounds`."""
        ...

    def light_end(self, queue: QueueKey, name: bytes) -> int:
        """See `Store.light_end`."""
        ...

    async def read_light(
        self, queue: QueueKey, name: bytes, offset: int, *, max_records: int, max_bytes: int
    ) -> LightRead:
        """See `Store.read_light`."""
        ...

    def light_names(self, queue: QueueKey, prefix: bytes, *, after: bytes, count: int) -> list[bytes]:
        """See `Store.light_names`."""
        ...

    def note_light(self) -> None:
        """See `Store.note_light`."""
        ...

    def watch_light(self, queue: QueueKey, name: bytes, wake: Callable[[], None]) -> Callable[[], None]:
        """See `Store.watch_light`."""
        ...


def light_route(routes: Routes, topic: str, partition: int) -> tuple[Route, LightQueues]:
    """Where the light queues of a partition are. Raises NoLightQueues where they could not be read, UnknownQueue."""
    chain = routes.chain(topic, partition)
    route = chain[0]
    broker = route.broker
    if len(chain) > 1 or route.logical_start or route.physical_start or not _keeps_light(type(broker)):
        raise NoLightQueues(f"partition {partition} of topic {topic} is, or was, on another broker: no light queues")
    return route, cast(LightQueues, broker)


@cache
def _keeps_light(kind: type) -> bool:
    """Whether brokers of a kind are `LightQueues`: to look for its methods takes 20 us, and each push would ask."""
    return issubclass(kind, LightQueues)
