"""By machine room: only partitions on brokers of certain rooms are shared out, in equal runs.

A broker's room is a setting of its node, or what stands before the @ of its name. What is left over after equal runs is
dealt out at the end, so the runs themselves do not shift:

    8 partitions in room r, 3 members      c0: 0 1 6     c1: 2 3 7     c2: 4 5

When no partition at all lies in these rooms, all are shared out, with a warning: a misspelt room, or brokers that were
moved, must not stop a group.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Sequence

from gateway.groups.machines.strategies.base import (
    Assignment,
    BrokerOf,
    Partition,
    RoomOf,
    by_topic,
    named,
    room_of_name,
)

log = logging.getLogger(__name__)


class MachineRoom:
    """`rooms` are those this group consumes; partitions elsewhere are left to other groups."""

    name = "machine_room"

    def __init__(
        self,
        broker_of: BrokerOf,
        rooms: Collection[str],
        room_of_broker: RoomOf = room_of_name,
        warn: Callable[[str], None] = log.warning,
    ) -> None:
        self._broker_of = broker_of
        self._rooms = frozenset(rooms)
        self._room_of_broker = room_of_broker
        self._warn = warn

    def allocate(self, members: Sequence[str], partitions: Sequence[Partition], current: Assignment) -> Assignment:
        """See `Strategy.allocate`."""
        shares: dict[str, list[Partition]] = {member: [] for member in members}
        found = [self._room_of_broker(self._broker_of(partition)) for partition in partitions]
        near = [partition for partition, room in zip(partitions, found, strict=True) if room in self._rooms]
        if not near and partitions:
            self._warn(
                f"no partition of some topics lies in the rooms of this group ({named(self._rooms)}; they are in "
                f"{named(found)}): its members share those of all rooms"
            )
        for topic in by_topic(near or partitions):
            each = len(topic) // len(members)
            left_over = topic[each * len(members) :]
            for index, member in enumerate(members):
                shares[member] += topic[index * each : (index + 1) * each] + left_over[index : index + 1]
        return shares
