"""Looking at groups, some at a time: one group's line in a list, its open records, its lags. Changes nothing.

Each page costs what is on it, and a pass over what is before it: 20,000 open records, 100,000 partitions.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from itertools import islice

from gateway.groups.coordinator.context import Context
from gateway.groups.coordinator.dead_letters import DeadLetters
from gateway.groups.coordinator.offsets import Offsets
from gateway.groups.machines.broadcast import is_lone
from gateway.groups.machines.config import BROADCAST
from gateway.groups.machines.leases import PartitionLeases
from gateway.groups.machines.receipts import Signer
from gateway.groups.machines.table import Group
from gateway.groups.protocol import (
    GroupCounts,
    GroupState,
    GroupView,
    LagKey,
    LeaseKey,
    LeaseView,
    PartitionLag,
)

LAGS_A_TURN = 64
"""Partitions whose lag is worked out between two turns of the event loop."""


class Looking:
    """The views of all groups of one node."""

    def __init__(self, context: Context, offsets: Offsets, dead_letters: DeadLetters) -> None:
        self._context = context
        self._offsets = offsets
        self._dead_letters = dead_letters
        self.signer: Signer | None = None
        """Set before leases are asked for."""

    def names(self) -> list[str]:
        """See `Groups.names`."""
        return [name for name in self._context.table.names() if not is_lone(name)]

    def parts(self, group: str) -> list[Group]:
        """A group, and when it is broadcasting, each member of it. One that has only offsets in light queues is there,
        and empty. Raises UnknownGroup."""
        table = self._context.table
        is_only_light = group not in table and group in table.light_offsets.counts
        first = table.get_or_new(group) if is_only_light else table.get(group)
        return [first, *(table.get(name) for name in table.lone_groups(group))]

    def view(self, group: str) -> GroupView:
        """See `Groups.view`."""
        parts = self.parts(group)
        members = [member for part in parts for member in part.membership.members()]
        state: GroupState = "stable" if members else "empty"
        if any(part.membership.is_rebalancing for part in parts):
            state = "rebalancing"
        context = self._context
        table = context.table
        ids = set().union(*(table.topic_ids(part.name) | table.light_topic_ids(part.name) for part in parts))
        names = {name for topic_id in ids if (name := context.topic_name(topic_id)) is not None}
        wishes = {member.subscription for member in members}
        wanted = {name for wish in wishes for name in wish.topics}.union(*(part.membership.topics for part in parts))
        names |= {name for name in wanted if context.find_topic(name) is not None}
        return GroupView(group, state, parts[0].membership.generation, len(members), tuple(sorted(names)))

    async def counts(self, group: str) -> GroupCounts:
        """See `Groups.counts`."""
        parts = self.parts(group)
        return GroupCounts(
            member_count=sum(len(part.membership.members()) for part in parts),
            in_flight=sum(part.open_count for part in parts),
            dead=await self._dead_letters.count(group),
        )

    def leases(
        self,
        group: str,
        *,
        after: LeaseKey | None,
        limit: int,
        shows: Callable[[str], bool],
        held: Mapping[str, str],
    ) -> tuple[list[LeaseView], int]:
        """See `Groups.leases`."""
        assert self.signer is not None
        context = self._context
        state = context.table.get(group)
        open_: list[tuple[str, int, str, PartitionLeases]] = []
        total = 0
        for key, leases in state.open_leases():
            name = context.topic_name(key.topic_id)
            if name is not None and shows(name):
                open_.append((name, key.partition, key.name, leases))
                total += leases.open_count
        consumers = {
            (*receipt[:4], receipt.name): consumer
            for receipt, consumer in zip(self.signer.check_all(group, list(held)), held.values(), strict=True)
            if receipt is not None
        }
        rows: list[LeaseView] = []
        for name, partition, queue, leases in sorted(open_, key=lambda one: one[:3]):
            named = (name, partition, queue)
            if after is not None and named < after[:3]:
                continue
            behind = after.offset if after is not None and named == after[:3] else -1
            topic_id = context.routes.topic(name).topic_id
            _, _, records = leases.frozen()
            for record in islice((one for one in records if one[0] > behind), limit - len(rows)):
                offset, attempt, visible_at_ms, leased = record[:4]
                consumer = consumers.get((topic_id, partition, offset, attempt, queue))
                rows.append(LeaseView(name, partition, queue, offset, attempt, visible_at_ms, leased, consumer))
            if len(rows) == limit:
                break
        return rows, total

    async def lag_page(
        self, group: str, *, after: LagKey | None, limit: int, shows: Callable[[str], bool]
    ) -> tuple[list[PartitionLag], LagKey | None]:
        """See `Groups.lag_page`."""
        context = self._context
        context.table.get(group)
        names = [group]
        if context.table.config(group).mode == BROADCAST:
            names = context.table.lone_groups(group)
        of_topic: dict[str, list[str]] = {}
        for name in names:
            for view in self._offsets.topics_of(name):
                if shows(view.name):
                    of_topic.setdefault(view.name, []).append(name)
        rows: list[PartitionLag] = []
        last: LagKey | None = None
        for topic in sorted(of_topic):
            view_ = context.find_topic(topic)
            if view_ is None or (after is not None and topic < after.topic):
                continue
            first = after.partition if after is not None and topic == after.topic else 0
            for partition in range(first, view_.partitions):
                for name in of_topic[topic]:
                    key = LagKey(topic, partition, name)
                    if after is not None and key <= after:
                        continue
                    if len(rows) == limit:
                        return rows, last
                    rows.append(await self._offsets.lag_of(name, view_, partition))
                    last = key
                    if len(rows) % LAGS_A_TURN == 0:
                        await asyncio.sleep(0)
        return rows, None
