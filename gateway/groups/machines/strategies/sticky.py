"""Sticky: shares differ by at most one, and as few partitions as possible move.

    6 partitions, c0: 0 1 2, c1: 3 4 5; c2 joins          c0: 0 1     c1: 3 4     c2: 2 5
    then c0 leaves                                        c1: 0 3 4   c2: 1 2 5

With P partitions and M members, P mod M members have one more than the others. Those that hold most now get the larger
shares; every member keeps what fits, the smallest first; the rest goes to those who lack some. No balanced assignment
keeps more, because each member keeps min(what it holds, its share), and the larger shares go where they keep most.
"""

from __future__ import annotations

from collections.abc import Sequence

from gateway.groups.machines.strategies.base import Assignment, Partition


class Sticky:
    """Balances over all topics of members with the same subscription, not topic by topic."""

    name = "sticky"

    def allocate(self, members: Sequence[str], partitions: Sequence[Partition], current: Assignment) -> Assignment:
        """See `Strategy.allocate`."""
        free = set(partitions)
        held: dict[str, list[Partition]] = {}
        for member in members:
            held[member] = sorted(free.intersection(current.get(member, ())))
            free.difference_update(held[member])

        each, larger_count = divmod(len(partitions), len(members))
        most_first = sorted(members, key=lambda member: (-len(held[member]), member))
        shares: dict[str, list[Partition]] = {}
        for index, member in enumerate(most_first):
            size = each + (index < larger_count)
            shares[member] = held[member][:size]
            free.update(held[member][size:])

        waiting = sorted(free, reverse=True)
        for index, member in enumerate(most_first):
            while len(shares[member]) < each + (index < larger_count):
                shares[member].append(waiting.pop())
        return shares
