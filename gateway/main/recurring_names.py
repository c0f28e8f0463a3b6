"""Names of recurring schedules between the nodes of a cluster: let go of when their schedule was deleted.

Who has a name, a key of the metadata says (gateway/cluster/node.py); a request that may begin a schedule makes its name
this node's first (gateway/surfaces/http/forwarding.py).
"""

from __future__ import annotations

import asyncio
import logging

from gateway.api.cluster import RECURRING
from gateway.cluster.metadata import MetadataError
from gateway.cluster.node import ClusterNode
from gateway.recurring.service import RecurringSchedules
from store.uncancelled import to_its_end

log = logging.getLogger(__name__)

RELEASE_INTERVAL_S = 60.0
"""How often names are tried again that could not be let go of."""


class RecurringNames:
    """The names of the recurring schedules of a node of a cluster, which are read. Then `run`."""

    def __init__(self, recurring: RecurringSchedules, node: ClusterNode) -> None:
        self._recurring = recurring
        self._node = node
        self._unused = {name for name in node.owned(RECURRING, node.name) if recurring.table.find(name) is None}
        recurring.is_owned = self._is_owned
        recurring.on_deleted = self.release

    def _is_owned(self, name: str) -> bool:
        """Whether a name is this node's own; not one of a shard that is here."""
        return self._node.owner(RECURRING, name) == self._node.name and not self._node.is_sharded(RECURRING, name)

    async def run(self) -> None:
        """Let go of names that are in use no more, until cancelled."""
        while True:
            for name in sorted(self._unused):
                await self.release(name)
            await asyncio.sleep(RELEASE_INTERVAL_S)

    async def release(self, name: str) -> None:
        """Have a name of which there is no schedule here be no node's, so that the metadata forgets it and any node may
        begin one. When that cannot be done now, it is tried again. A `put` of it meanwhile waits, then meets
        RecurringUnowned."""
        await to_its_end(self._release(name))

    async def _release(self, name: str) -> None:
        node = self._node
        self._unused.add(name)
        try:
            async with self._recurring.leaving(name) as is_unused:
                if is_unused:
                    owner, revision = await node.owner_now(RECURRING, name)
                    if owner == node.name:
                        await node.disown(RECURRING, name, revision)
        except MetadataError as error:
            log.info("name of a deleted recurring schedule is kept for now schedule=%s error=%s", name, error)
        else:
            self._unused.discard(name)
