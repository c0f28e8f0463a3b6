"""What a node moves by itself: off itself, when it is to drain; to itself, when it is new or was added again.

    drain    others take over what it owns on Kafka clusters; its partitions go to the brokers that take some, each to
             the one with the fewest; then its groups, likewise. Whatever cannot go now is tried again
    share    while it has fewer partitions than its share (all of them, by the brokers that take some, rounded down), it
             takes one from the broker with the most, so many a second at most. Groups stay where they are
    Kafka    likewise of what other nodes own on Kafka clusters, and not only when it is new: others have taken over
             what it owned when it was last there. It does so when it has been there for STEADY_S: each that comes to
             it takes nothing for some ms, and a node that is started again and again is to have none

A share is taken once: what is moved by hand afterwards stays where it was moved to. Queues that have expired are
not used again (docs/decisions/0050-several-brokers.md).
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Awaitable, Callable
from math import inf

from gateway.cluster.balance import NoTaker, Partition, PlannedMove, plan_drain, plan_share
from gateway.cluster.metadata import MetadataError
from gateway.cluster.move_slots import MovesBusy
from gateway.cluster.mover import MoveConflict, UnknownBroker
from gateway.cluster.node import GROUPS, ClusterNode
from gateway.routing.base import Routes, UnknownPartition
from store.errors import StoreError, UnknownQueue

log = logging.getLogger(__name__)

INTERVAL_S = 1.0
MOVES_MAX = 1_000
"""Of one look."""

STEADY_S = 30.0
"""How long a node is there before it takes its share of what is on Kafka clusters, and before it tries again."""

PARTITIONS_A_TURN = 2_000
"""Partitions looked at between two turns of the event loop."""

Give = Callable[[str, str], Awaitable[None]]
"""Gives a group to a node."""


class Balancer:
    """`run` until cancelled. `give` gives a group of this node to another one. `evens_out`: whether this node takes its
    share of what is on Kafka clusters each time that it starts."""

    def __init__(
        self,
        node: ClusterNode,
        routes: Routes,
        give: Give,
        give_errors: tuple[type[Exception], ...],
        *,
        moves_per_s: int,
        evens_out: bool = False,
    ) -> None:
        self._node = node
        self._routes = routes
        self._give = give
        self._give_errors = give_errors
        self._moves_per_s = moves_per_s
        self._evens_out = evens_out
        self._takes_from_s = inf  # its share of what is on Kafka clusters

    async def run(self) -> None:
        """Move what is to be moved, now and then."""
        loop = asyncio.get_running_loop()
        if self._evens_out:
            self._takes_from_s = loop.time() + STEADY_S
        while True:
            member = self._node.members[self._node.name]
            self._node.blocked = None
            if member.draining:
                await self.drain()
            elif member.balancing or loop.time() >= self._takes_from_s:
                await self.take_share()
            await asyncio.sleep(INTERVAL_S)

    async def drain(self) -> None:
        """Move everything off this node that can be moved now."""
        own = self._node.name
        await self._node.give_kafka()
        try:
            moves, _ = plan_drain(await self._partitions(), own, self._node.takers(), MOVES_MAX)
        except NoTaker as error:
            self._failed(str(error))
            return
        for move in moves:
            await self._moved(move)
        groups = self._node.owned_counts(GROUPS)
        for group in self._node.owned(GROUPS, own):
            if (to := self._fewest(groups)) is None:
                break
            try:
                await self._give(group, to)
            except self._give_errors as error:
                self._failed(f"group {group} cannot go to {to}: {error}")
            else:
                groups[to] += 1

    async def take_share(self) -> None:
        """Take partitions until this node has its share, or something is in the way; then say that it has."""
        own = self._node.name
        takers = {*self._node.takers(), own}
        is_asked = self._node.members[own].balancing
        if is_asked and self._node.has_store(own):
            while moves := plan_share(await self._partitions(), own, takers, 1).moves:
                if not self._node.members[own].balancing or not await self._moved(moves[0]):
                    return
                await asyncio.sleep(1 / self._moves_per_s)
        if self._node.blocked is None and await self._take_on_kafka() and is_asked:
            try:
                await self._node.set_balanced()
            except MetadataError as error:
                self._failed(f"it cannot be written that {own} has its share: {error}")

    async def _take_on_kafka(self) -> bool:
        """Take over what others own on Kafka clusters until this node has its share; False when something is in the
        way."""
        while (wanted := self._node.lacking_on_kafka()) is not None:
            place, owner = wanted
            if self._node.members[self._node.name].draining:
                return False
            if not await self._node.take_from(place, owner):
                self._failed(f"partition {place[1]} of topic id {place[0]} on Kafka is not given by {owner}")
                self._takes_from_s = asyncio.get_running_loop().time() + STEADY_S
                return False
            await asyncio.sleep(1 / self._moves_per_s)
        self._takes_from_s = inf
        return True

    async def _moved(self, planned: PlannedMove) -> bool:
        """Make a move; False when something is in the way."""
        topic, partition, _, to = planned
        try:
            await self._node.move(topic, partition, to)
        except (UnknownQueue, UnknownPartition):
            return True  # deleted meanwhile
        except (MoveConflict, MovesBusy, MetadataError, StoreError, UnknownBroker, ValueError) as error:
            self._failed(f"partition {partition} of {topic} cannot go to {to}: {error}")
            return False
        return True

    def _fewest(self, counts: Counter[str]) -> str | None:
        takers = [name for name in self._node.takers() if name != self._node.name]
        return min(sorted(takers), key=lambda name: counts[name], default=None)

    def _failed(self, reason: str) -> None:
        self._node.blocked = reason
        log.warning("not balanced: %s", reason)

    async def _partitions(self) -> dict[str, list[Partition]]:
        """The partitions whose open segment is on each broker."""
        of_broker: dict[str, list[Partition]] = {}
        seen = 0
        for view in self._routes.topics():
            for partition in range(view.partitions):
                try:
                    name = self._routes.writable(view.name, partition).broker.name
                except UnknownQueue:  # deleted meanwhile
                    break
                at = view.topic_id, partition
                if self._node.kafka_of(*at) is not None or self._node.is_to_begin(*at):  # no node's share
                    continue
                of_broker.setdefault(name, []).append((view.name, partition))
                seen += 1
                if seen % PARTITIONS_A_TURN == 0:
                    await asyncio.sleep(0)
        return of_broker
