"""By machine room: only partitions on brokers of certain rooms are shared out, in equal runs.

A broker's room is what stands before the @ of its name. What is left over after equal runs is dealt out at the end, so
the runs themselves do not shift:

    8 partitions in room r, 3 members      c0: 0 1 6     c1: 2 3 7     c2: 4 5
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

from gateway.groups.machines.strategies.base import Assignment, BrokerOf, Partition, by_topic, room_of_name


class MachineRoom:
    """`rooms` are those this group consumes; partitions elsewhere are left to other groups."""

    name = "machine_room"

    def __init__(self, broker_of: BrokerOf, rooms: Collection[str]) -> None:
        self._broker_of = broker_of
        self._rooms = frozenset(rooms)

    def allocate(self, members: Sequence[str], partitions: Sequence[Partition], current: Assignment) -> Assignment:
        """See `Strategy.allocate`."""
        shares: dict[str, list[Partition]] = {member: [] for member in members}
        near = [partition for partition in partitions if room_of_name(self._broker_of(partition)) in self._rooms]
        for topic in by_topic(near):
            each = len(topic) // len(members)
            left_over = topic[each * len(members) :]
            for index, member in enumerate(members):
                shares[member] += topic[index * each : (index + 1) * each] + left_over[index : index + 1]
        return shares
