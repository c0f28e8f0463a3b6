"""Committed offsets of groups in light queues: written to the log of all groups' events, together with them, and read
from memory. There is nothing to decide: what is said last stands, so no turn is taken. But where the group leases
records of the topic's light queues, a commit is a reset of its leases in this one, as in a partition.

    crash                                          what a restart finds
    before the commit is durable                   the offset before
    after it is durable, before its answer         the commit
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from heapq import nsmallest
from itertools import chain

from gateway.groups.coordinator.context import Context
from gateway.groups.machines.copies import check_group_name
from gateway.groups.machines.errors import GroupActive
from gateway.groups.machines.events import Event, LightCommitted, LightPosition
from gateway.groups.machines.light_leases import LIGHT_EPOCH_BYTES
from gateway.groups.machines.light_offsets import FORGOTTEN
from gateway.groups.machines.progress import COMMITS_MAX, LightKey
from gateway.groups.protocol import LightPlace
from store.turns import others_turn
from store.uncancelled import to_its_end, uncancelled

FEW_GROUPS = 10_000
"""Groups that are gone through in the event loop, in a millisecond; more are in a thread."""

SORTED_A_TURN = 3_000
"""Offsets that are sorted in one turn of the event loop, where all of them are of the group: 10 ms."""


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
        if context.table.light(group, keys[0][0].topic_id) is not None:
            await to_its_end(self._reset(group, [(LightKey(*key, name), offset) for key, offset in keys]))
            return
        positions = tuple(LightPosition(key.partition, group, name, offset) for key, offset in keys)
        event = LightCommitted(keys[0][0].topic_id, positions, group)
        context.note_light()
        with context.room.for_light(context.table.light_offsets.added_bytes(event)):
            await context.write([event])

    def count(self, group: str) -> int:
        """See `LightOffsets.count`."""
        return self._context.table.light_offsets.counts.get(group, 0)

    async def places(
        self, group: str, prefix: str, *, after: LightPlace | None, count: int, shows: Callable[[str], bool]
    ) -> list[LightPlace]:
        """See `LightOffsets.places`."""
        known = self._context.table.light_offsets
        names = {topic_id: self._context.topic_name(topic_id) for topic_id in known.topic_ids()}
        topics = sorted((name, topic_id) for topic_id, name in names.items() if name is not None and shows(name))
        found: list[LightPlace] = []
        for topic, topic_id in topics:
            if after is not None and topic < after.topic:
                continue
            for stretch in known.stretches_of(group, topic_id, key_count=SORTED_A_TURN):
                some = (LightPlace(topic, one.name, one.partition, one.offset) for one in stretch)
                wanted = (
                    one for one in some if one.queue.startswith(prefix) and (after is None or one[:3] > after[:3])
                )
                found = nsmallest(count, chain(found, wanted))
                await others_turn()
            if len(found) == count:
                break
        return found

    async def groups(self, prefix: str, *, after: str, count: int) -> list[tuple[str, int]]:
        """See `LightOffsets.groups`."""
        counts = self._context.table.light_offsets.counts
        names = list(counts)
        found: list[str] = []

        def look() -> None:
            found.extend(nsmallest(count, (name for name in names if name > after and name.startswith(prefix))))

        if len(names) <= FEW_GROUPS:
            look()
        else:
            await self._context.run_blocking(look)
        return [(name, counts[name]) for name in found if name in counts]

    async def delete(self, group: str) -> None:
        """The group is deleted: forget all it has. Durable on return; a crash before that may leave some."""
        context = self._context
        known = context.table.light_offsets
        for topic_id in known.topic_ids():
            for stretch in known.stretches_of(group, topic_id):
                for first in range(0, len(stretch), COMMITS_MAX):
                    gone = tuple(one._replace(offset=FORGOTTEN) for one in stretch[first : first + COMMITS_MAX])
                    await uncancelled(context.log.write([LightCommitted(topic_id, gone, group)]))
                await others_turn()

    async def _reset(self, group: str, moves: Sequence[tuple[LightKey, int]]) -> None:
        context = self._context
        async with context.turns.of_leases(group, *(key for key, _ in moves)):
            now_ms = context.clock.now_ms()
            events: list[Event] = []
            for key, offset in moves:
                leases = context.table.leases(group, key)
                if leases is None or leases.low_offset == max(offset, 0):
                    continue  # the group was deleted, or is there
                if leases.leased_count(now_ms):
                    raise GroupActive(f"group={group} has records on lease in light queue {key.name}; ack those")
                events += leases.decide_reset(max(offset, 0), now_ms)
            more = sum(LIGHT_EPOCH_BYTES + len(key.name.encode()) for key, _ in moves)
            with context.room.for_bytes(group, more):
                await context.write(events)

    async def forget(self, group: str, topic: str, name: str) -> None:
        """See `LightOffsets.forget`."""
        check_group_name(group)
        view = self._context.routes.topic(topic)
        known = self._context.table.light_offsets
        partitions = range(view.partitions)
        has_some = [one for one in partitions if known.get(group, view.topic_id, one, name) is not None]
        await self.commit(group, topic, name, dict.fromkeys(has_some, FORGOTTEN))
