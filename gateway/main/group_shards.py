"""Consumer groups whose log is on a Kafka cluster: SHARDS partitions of the system topic `__offsets`, each owned by one
node, which has its groups. Where they are, and who takes them over, gateway/cluster/node.py says; how one is read and
written, gateway/cluster/shard_log.py; what is in memory of it, gateway/groups/coordinator/shards.py.

    a group    belongs to a node by its own name (a key of the metadata), as long as it has such a key: those that were
               there before. Any other one belongs to its shard, once that was begun
    begun      by the first node that is told to (`cluster.groups_broker`), for all nodes and for good
"""

from __future__ import annotations

import asyncio
import logging
from dataclasses import dataclass
from functools import partial

from gateway.cluster.node import GROUPS, ClusterNode
from gateway.cluster.shard_log import Shard, ShardLog, shard_of
from gateway.groups.coordinator.service import Coordinator
from gateway.main.shard_keeping import ShardKeeper
from store.errors import Overloaded
from store.topics import OFFSETS

log = logging.getLogger(__name__)

SAVE_INTERVAL_S = 30.0
SAVE_EVENTS_MAX = 50_000
"""Events behind the last snapshot after which the next one does not wait: what a takeover has to read."""

LAST_SAVE_S = 2.0
"""How long a stop waits for the last snapshots."""


@dataclass(slots=True)
class _Here:
    """A shard that was taken up."""

    shard: Shard
    saved_s: float


class GroupShards:
    """The shards of a node. `begin` before groups are used, then `run`."""

    def __init__(self, groups: Coordinator, node: ClusterNode, *, broker: str | None) -> None:
        self._groups = groups
        self._node = node
        self._broker = broker
        self._here: dict[int, _Here] = {}
        self._keeper = ShardKeeper(node, OFFSETS, broker=broker, look=self._look, is_here=self._here.__contains__)
        self._saving: list[asyncio.Task[None]] = []

    def begin(self) -> None:
        """Refuse groups of shards that are not here."""
        self._groups.shards.set_sharded(partial(self._node.is_sharded, GROUPS))
        belonging, node = self._groups.belonging, self._node
        node.groups_broker = self._broker
        elsewhere = belonging.elsewhere

        def refusal(group: str) -> Exception | None:
            if (error := elsewhere(group)) is not None:
                return error
            if node.is_sharded(GROUPS, group) and not self._is_here(shard_of(group)):
                return Overloaded(f"the log of group {group} is being taken over")
            return None

        belonging.elsewhere = refusal

    @property
    def is_settled(self) -> bool:
        """See `ShardKeeper.is_settled`."""
        return self._keeper.is_settled

    def _is_here(self, shard: int) -> bool:
        here = self._here.get(shard)
        return here is not None and here.shard.is_served

    async def run(self) -> None:
        """Take up what is this node's, and give up what is not any more, until cancelled."""
        await self._keeper.run()

    async def save(self) -> None:
        """Save a snapshot of every shard that is here, as another node is about to read them; does not wait long."""
        self._saving = [asyncio.create_task(self._groups.shards.save(shard)) for shard in self._here]
        if self._saving:
            await asyncio.wait(self._saving, timeout=LAST_SAVE_S)

    async def _look(self, number: int) -> None:
        groups = self._groups.shards
        if groups.failure is not None:
            raise RuntimeError("the events of a shard have stopped") from groups.failure
        found, here = self._node.shard(OFFSETS.topic_id, number), self._here.get(number)
        if here is not None and (found is None or found.tenure != here.shard.tenure):
            if found is None and here.shard.is_served:
                return  # a move is under way; it may come back to nothing
            del self._here[number]
            await groups.give_up(number)
        elif here is not None:
            await self._save_if_due(number, here)
            return
        if found is not None:
            groups.accept_receipts(await self._node.receipt_keys(groups.receipt_keys))
            events = ShardLog(found)
            await groups.take_up(number, events, self._node.snapshots_of(found, events))
            self._here[number] = _Here(found, asyncio.get_running_loop().time())

    async def _save_if_due(self, number: int, here: _Here) -> None:
        events, now_s = self._groups.shards.log_of(number), asyncio.get_running_loop().time()
        if events is not None and (now_s - here.saved_s >= SAVE_INTERVAL_S or events.unsaved_count >= SAVE_EVENTS_MAX):
            here.saved_s = now_s
            await self._groups.shards.save(number)
