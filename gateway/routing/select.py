"""Which partition a record goes to when the sender did not say.

With a key: CRC-32 of the key, modulo the number of partitions. Records of one key keep their order, and it is the
function that librdkafka calls "consistent", so its clients, other languages and Spark can compute it with what they
have (zlib's crc32 runs at C speed; Java's murmur2 in Python would cost more than all other work on a record).

Without a key: round robin, one step a request, so that a batch stays one batch.
"""

from __future__ import annotations

import zlib


class PartitionSelector:
    """Chooses partitions; remembers where the round robin of each topic stands."""

    def __init__(self) -> None:
        self._turns: dict[str, int] = {}

    def for_key(self, key: bytes, count: int) -> int:
        """The partition of a key among `count`."""
        return zlib.crc32(key) % count

    def next(self, topic: str, count: int) -> int:
        """The next partition of a topic in turn."""
        turn = self._turns.get(topic, -1) + 1
        self._turns[topic] = turn
        return turn % count
