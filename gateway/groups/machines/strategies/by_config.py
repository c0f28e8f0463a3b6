"""By configuration: every member has a fixed list of partitions.

    c0 is given orders 0, c1 orders 1 and 2; partitions 0-3, members c0 and c2      c0: 0     c2: nothing

A partition that is on no list, or on the list of a member that is away, is not consumed until the member is back.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from gateway.groups.machines.strategies.base import Assignment, Partition


class ByConfig:
    """`lists` maps a member to (topic, partition number) pairs. Raises ValueError when a pair is on two lists."""

    name = "by_config"

    def __init__(self, lists: Mapping[str, Collection[tuple[str, int]]]) -> None:
        self._member_of: dict[tuple[str, int], str] = {}
        for member, pairs in lists.items():
            for pair in pairs:
                if self._member_of.setdefault(pair, member) != member:
                    raise ValueError(f"{pair} is given to {self._member_of[pair]} and to {member}")

    def allocate(self, members: Sequence[str], partitions: Sequence[Partition], current: Assignment) -> Assignment:
        """See `Strategy.allocate`."""
        shares: dict[str, list[Partition]] = {member: [] for member in members}
        for partition in partitions:
            member = self._member_of.get((partition.topic, partition.partition))
            if member in shares:
                shares[member].append(partition)
        return shares
