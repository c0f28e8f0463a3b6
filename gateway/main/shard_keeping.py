"""The shards of a system topic on a Kafka cluster, looked after by one node: each is looked at when the node says that
it may be another's by now, or this one's, and now and then while it is here. A node that has none does nothing."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from typing import Protocol

from gateway.cluster.metadata import MetadataError
from gateway.cluster.mover import MoveConflict, UnknownBroker
from gateway.cluster.node import TAKE_OWN_S, ClusterNode
from gateway.cluster.shard_log import SHARDS
from store.errors import StoreError
from store.topics import Topic
from store.waits import is_set_within

log = logging.getLogger(__name__)

HERE_S = 1.0
"""How often a shard that is here is looked at: whether a snapshot of it is due."""

RETRY_S = 1.0
SETTLE_LOOK_S = 0.02
"""How often a node that starts looks whether it may answer."""

ERRORS = (MoveConflict, MetadataError, StoreError, UnknownBroker, ValueError, OSError)


class Settling(Protocol):
    """Shards that a start waits for."""

    @property
    def is_settled(self) -> bool:
        """See `ShardKeeper.is_settled`."""
        ...


async def until_settled(all_shards: Sequence[Settling], stopping: asyncio.Event) -> None:
    """Return when all are settled, but do not wait long: who comes before that is told to come again."""
    loop = asyncio.get_running_loop()
    until_s = loop.time() + TAKE_OWN_S
    while not all(one.is_settled for one in all_shards) and loop.time() < until_s and not stopping.is_set():
        await is_set_within(stopping, SETTLE_LOOK_S)


class ShardKeeper:
    """`run` until cancelled. `look` takes a shard up, gives it up, or saves it; it may raise ERRORS, and is then called
    again. `is_here`: whether a shard was taken up. Shards begin on `broker`; None: none is begun."""

    def __init__(
        self,
        node: ClusterNode,
        topic: Topic,
        *,
        broker: str | None,
        look: Callable[[int], Awaitable[None]],
        is_here: Callable[[int], bool],
    ) -> None:
        self._node = node
        self._topic = topic
        self._broker = broker
        self._look = look
        self._is_here = is_here
        self._changed = [asyncio.Event() for _ in range(SHARDS)]

    def wake(self, shard: int | None = None) -> None:
        """Look at a shard now; None: at all."""
        for changed in self._changed if shard is None else (self._changed[shard],):
            changed.set()

    async def run(self) -> None:
        """Look after the shards. Raises what `look` raises that is none of ERRORS."""
        self._node.on_shards.append(self.wake)
        try:
            async with asyncio.TaskGroup() as tasks:
                if self._broker is not None:
                    tasks.create_task(self._begin_all(self._broker), name=f"shards of {self._topic.name}")
                for shard in range(SHARDS):
                    tasks.create_task(self._look_after(shard), name=f"shard {shard} of {self._topic.name}")
        finally:
            self._node.on_shards.remove(self.wake)

    @property
    def is_settled(self) -> bool:
        """Whether all shards are begun that are to be, and those of this node are here."""
        owners = {shard: self._node.shard_owner(self._topic.topic_id, shard) for shard in range(SHARDS)}
        return all(
            (self._broker is None) if owner is None else owner != self._node.name or self._is_here(shard)
            for shard, owner in owners.items()
        )

    async def _begin_all(self, broker: str) -> None:
        for some in (range(1), range(1, SHARDS)):  # the first one makes the topic
            await asyncio.gather(*[self._begin(shard, broker) for shard in some])

    async def _begin(self, shard: int, broker: str) -> None:
        while True:
            try:
                await self._node.begin_shard(self._topic.topic_id, shard, broker)
                return
            except MoveConflict:
                pass
            except ERRORS as error:
                log.warning(
                    "%s cannot be kept on Kafka yet shard=%d broker=%s error=%s",
                    self._topic.name, shard, broker, error,
                )  # fmt: skip
            await asyncio.sleep(RETRY_S)

    async def _look_after(self, shard: int) -> None:
        changed = self._changed[shard]
        while True:
            changed.clear()
            try:
                await self._look(shard)
            except ERRORS as error:
                log.error(
                    "a shard cannot be taken up, trying again topic=%s shard=%d error=%s",
                    self._topic.name, shard, error,
                )  # fmt: skip
                await asyncio.sleep(RETRY_S)
                continue
            await is_set_within(changed, HERE_S if self._is_here(shard) else None)
