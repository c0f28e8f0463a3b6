"""Consistent hash: members and partitions lie on a ring; a partition goes to the next member on it.

Each member lies on the ring `virtual_nodes` times, as "member-0", "member-1" and so on. A place on the ring is the
first four bytes of the MD5 of a text, big-endian. A partition's text is that of the original's message queue, so a
group that moves here from the original with its member ids and broker names keeps its assignment:

    members c0 c1 c2, partitions 0-7 of topic T on broker b       c0: 3 4 6     c1: 1 2 5     c2: 0 7

When a member comes or goes only its own partitions move; in return shares differ a lot in size.
"""

from __future__ import annotations

import hashlib
from bisect import bisect_left
from collections.abc import Sequence

from gateway.groups.machines.strategies.base import Assignment, BrokerOf, Partition, no_broker

VIRTUAL_NODES = 10


class ConsistentHash:
    """The ring is built anew for each call: 200 members cost 2,000 hashes, some 2 ms."""

    name = "consistent_hash"

    def __init__(self, broker_of: BrokerOf = no_broker, virtual_nodes: int = VIRTUAL_NODES) -> None:
        if virtual_nodes < 1:
            raise ValueError("virtual_nodes must be at least 1")
        self._broker_of = broker_of
        self._virtual_nodes = virtual_nodes

    def allocate(self, members: Sequence[str], partitions: Sequence[Partition], current: Assignment) -> Assignment:
        """See `Strategy.allocate`."""
        ring = {point(f"{member}-{node}"): member for member in members for node in range(self._virtual_nodes)}
        points = sorted(ring)
        shares: dict[str, list[Partition]] = {member: [] for member in members}
        for partition in partitions:
            at = bisect_left(points, point(self._text(partition)))
            shares[ring[points[at % len(points)]]].append(partition)
        return shares

    def _text(self, partition: Partition) -> str:
        broker = self._broker_of(partition)
        return f"MessageQueue [topic={partition.topic}, brokerName={broker}, queueId={partition.partition}]"


def point(text: str) -> int:
    """Where a text lies on the ring: 0 to 2³² - 1."""
    return int.from_bytes(hashlib.md5(text.encode(), usedforsecurity=False).digest()[:4], "big")
