"""Averagely: each member gets a run of neighbouring partitions of each topic; the first members get one more.

8 partitions, 3 members       c0: 0 1 2     c1: 3 4 5     c2: 6 7
10 partitions, 4 members      c0: 0 1 2     c1: 3 4 5     c2: 6 7     c3: 8 9
2 partitions, 3 members       c0: 0         c1: 1         c2: nothing
"""

from __future__ import annotations

from collections.abc import Sequence

from gateway.groups.machines.strategies.base import Assignment, Partition, by_topic


class Averagely:
    """Equal runs, topic by topic. The default of the original, and the easiest to foresee."""

    name = "averagely"

    def allocate(self, members: Sequence[str], partitions: Sequence[Partition], current: Assignment) -> Assignment:
        """See `Strategy.allocate`."""
        shares: dict[str, list[Partition]] = {member: [] for member in members}
        for topic in by_topic(partitions):
            each, left_over = divmod(len(topic), len(members))
            begin = 0
            for index, member in enumerate(members):
                end = begin + each + (index < left_over)
                shares[member] += topic[begin:end]
                begin = end
        return shares
