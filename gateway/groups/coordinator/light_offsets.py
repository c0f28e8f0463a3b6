"""Committed offsets of groups in light queues: written to the log of all groups' events, together with them, and read
from memory. There is nothing to decide: what is said last stands, so no turn is taken.

    crash                                          what a restart finds
    before the commit is durable                   the offset before
    after it is durable, before its answer         the commit
"""

from __future__ import annotations

from collections.abc import Mapping

from gateway.groups.coordinator.context import Context
from gateway.groups.machines.copies import check_group_name
from gateway.groups.machines.events import LightCommitted, LightPosition
from gateway.groups.machines.light_offsets import FORGOTTEN
from store.uncancelled import uncancelled


class LightProgress:
    """See `gateway.groups.protocol.LightOffsets`."""

    def __init__(self, context: Context) -> None:
        self._context = context

    def committed(self, group: str, topic: str, partition: int, name: str) -> int | None:
        """See `LightOffsets.committed`."""
        check_group_name(group)
        key = self._context.key(topic, partition)
        return self._context.table.light_offsets.get(group, *key, name)

    async def commit(self, group: str, topic: str, name: str, offsets: Mapping[int, int]) -> None:
        """See `LightOffsets.commit`."""
        check_group_name(group)
        context = self._context
        keys = [(context.key(topic, partition), offset) for partition, offset in sorted(offsets.items())]
        if not keys:
            return
        positions = tuple(LightPosition(key.partition, group, name, offset) for key, offset in keys)
        event = LightCommitted(keys[0][0].topic_id, positions)
        with context.room.for_light(context.table.light_offsets.added_bytes(event)):
            await uncancelled(context.log.write([event]))

    async def forget(self, group: str, topic: str, name: str) -> None:
        """See `LightOffsets.forget`."""
        check_group_name(group)
        view = self._context.routes.topic(topic)
        known = self._context.table.light_offsets
        partitions = range(view.partitions)
        has_some = [one for one in partitions if known.get(group, view.topic_id, one, name) is not None]
        await self.commit(group, topic, name, dict.fromkeys(has_some, FORGOTTEN))
