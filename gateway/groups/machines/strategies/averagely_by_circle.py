"""Averagely by circle: the partitions of each topic are dealt out like cards.

8 partitions, 3 members       c0: 0 3 6     c1: 1 4 7     c2: 2 5
"""

from __future__ import annotations

from collections.abc import Sequence

from gateway.groups.machines.strategies.base import Assignment, Partition, by_topic


class AveragelyByCircle:
    """Partition j of a topic goes to member j modulo the number of members."""

    name = "averagely_by_circle"

    def allocate(self, members: Sequence[str], partitions: Sequence[Partition], current: Assignment) -> Assignment:
        """See `Strategy.allocate`."""
        topics = by_topic(partitions)
        return {
            member: [partition for topic in topics for partition in topic[index :: len(members)]]
            for index, member in enumerate(members)
        }
