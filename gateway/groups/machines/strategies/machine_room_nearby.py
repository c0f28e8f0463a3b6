"""Machine room nearby: partitions go to members of their own room; rooms without members are shared by all.

Within a room, and for what rooms without members hold, another strategy decides. With averagely:

    partitions 0-3 in room a, 4-5 in b, 6-8 in c; members a@1, a@2, b@1
    a@1: 0 1 6     a@2: 2 3 7     b@1: 4 5 8

A room without members, and members of a room (or of none) in which nothing lies, are each a warning.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence

from gateway.groups.machines.strategies.base import (
    Assignment,
    BrokerOf,
    Partition,
    RoomOf,
    Strategy,
    named,
    room_of_name,
)

log = logging.getLogger(__name__)


class MachineRoomNearby:
    """Keeps traffic inside machine rooms for as long as every room has a member."""

    name = "machine_room_nearby"

    def __init__(
        self,
        inner: Strategy,
        broker_of: BrokerOf,
        room_of_member: RoomOf = room_of_name,
        room_of_broker: RoomOf = room_of_name,
        warn: Callable[[str], None] = log.warning,
    ) -> None:
        self._inner = inner
        self._broker_of = broker_of
        self._room_of_member = room_of_member
        self._room_of_broker = room_of_broker
        self._warn = warn

    def allocate(self, members: Sequence[str], partitions: Sequence[Partition], current: Assignment) -> Assignment:
        """See `Strategy.allocate`."""
        members_of: dict[str, list[str]] = {}
        for member in members:
            members_of.setdefault(self._room_of_member(member), []).append(member)
        partitions_of: dict[str, list[Partition]] = {}
        for partition in partitions:
            partitions_of.setdefault(self._room_of_broker(self._broker_of(partition)), []).append(partition)
        if empty := partitions_of.keys() - members_of.keys():
            self._warn(f"rooms without a member, whose partitions members of all rooms share: {named(empty)}")
        elif idle := members_of.keys() - partitions_of.keys():
            found = [member for room in idle for member in members_of[room]]
            self._warn(f"members have nothing, as no partition lies in their rooms ({named(idle)}): {named(found)}")
        shares: dict[str, list[Partition]] = {member: [] for member in members}
        for room, inside in partitions_of.items():
            for member, share in self._inner.allocate(members_of.get(room, members), inside, current).items():
                shares[member] += share
        return shares
