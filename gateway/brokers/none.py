"""The own broker of a node without a store (`cluster.no_store`): it has a name, and takes nothing. What the node serves
is on Kafka clusters.

A partition whose home is such a node, and that has not begun on Kafka yet, is a queue of this broker: a send to it is
held until it has begun, as one that moves. Logs of the server's own are empty here.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from typing import NoReturn

from store.errors import BrokerLacks, Overloaded, SealedQueue
from store.topics import FIRST_USER_TOPIC_ID
from store.types import Acks, Append, Appended, Boundary, Bounds, ExportedIds, QueueKey, ReadResult


class NoBroker:
    """See the module; a `NodeBroker`."""

    def __init__(self, name: str) -> None:
        self.name = self.served_by = name

    def ready(self) -> list[str]:
        """Why no record can be taken now: nothing here takes any at any time."""
        return []

    async def append(self, appends: Sequence[Append], *, acks: Acks) -> list[Appended]:
        """See `Broker.append`. Raises SealedQueue."""
        return await self.begin_append(appends, acks=acks)

    def begin_append(self, appends: Sequence[Append], *, acks: Acks) -> asyncio.Future[list[Appended]]:
        """See `Broker.begin_append`. Raises SealedQueue."""
        raise SealedQueue(f"queue {appends[0].queue} has not begun on Kafka yet, and node {self.name} has no store")

    async def schedule(self, append: Append, *, acks: Acks, keys: Sequence[bytes | None] = ()) -> Appended:
        """See `Broker.schedule`. Raises BrokerLacks."""
        raise BrokerLacks(
            f"node {self.name} has no store, so repeated sends of delayed records are not recognised: send them without"
            " msg_id, Idempotency-Key and producer"
        )

    async def read(
        self,
        queue: QueueKey,
        offset: int,
        *,
        max_bytes: int,
        end_offset: int | None = None,
        tag_hashes: frozenset[int] | None = None,
    ) -> ReadResult:
        """See `Broker.read`. Raises Overloaded."""
        self._not_begun(queue)

    def watch(self, topic_id: int, wake: Callable[[Mapping[QueueKey, int]], None]) -> Callable[[], None]:
        """See `Broker.watch`: nothing happens here."""
        return _nothing

    async def bounds(self, queue: QueueKey) -> Bounds:
        """See `Broker.bounds`: of a log of the server's own, that there is nothing. Raises Overloaded."""
        if queue.topic_id >= FIRST_USER_TOPIC_ID:
            self._not_begun(queue)
        return Bounds(0, 0)

    async def first_kept(self, queue: QueueKey) -> int:
        """See `Broker.first_kept`. Raises Overloaded."""
        self._not_begun(queue)

    async def offset_for_time(self, queue: QueueKey, time_ms: int, boundary: Boundary) -> int:
        """See `Broker.offset_for_time`. Raises Overloaded."""
        self._not_begun(queue)

    async def create_queue(self, queue: QueueKey) -> None:
        """See `Broker.create_queue`. Raises BrokerLacks."""
        self._lacks()

    async def leave_queue(self, queue: QueueKey, *, into: QueueKey, shift: int, since: int) -> tuple[int, ExportedIds]:
        """See `NodeBroker.leave_queue`. Raises BrokerLacks."""
        self._lacks()

    async def seal_queue(self, queue: QueueKey) -> int:
        """See `Broker.seal_queue`. Raises BrokerLacks."""
        self._lacks()

    async def export_ids(self, queue: QueueKey, *, into: QueueKey, shift: int, since: int) -> ExportedIds:
        """See `Broker.export_ids`. Raises BrokerLacks."""
        self._lacks()

    async def import_ids(self, content: bytes) -> None:
        """See `Broker.import_ids`. Raises BrokerLacks."""
        self._lacks()

    async def expire_queue(self, queue: QueueKey, before_offset: int) -> None:
        """See `Broker.expire_queue`. Raises BrokerLacks."""
        self._lacks()

    def _not_begun(self, queue: QueueKey) -> NoReturn:
        raise Overloaded(f"queue {queue} has not begun on Kafka yet, and node {self.name} has no store")

    def _lacks(self) -> NoReturn:
        raise BrokerLacks(f"node {self.name} has no store (--no-store): partitions can be on Kafka clusters only")


def _nothing() -> None:
    """There is nothing to call off."""
