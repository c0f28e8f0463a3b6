"""Which partition a record goes to when the sender did not say.

    key           CRC-32 of the key, modulo the number of partitions; the way of records that have a key
    round_robin   one partition after the other, a step a request, so that a batch stays one batch; the way of others
    random        any partition
    room          round robin over the partitions on brokers of this gateway's machine room; over all if it has none,
                  with a warning in the log

Records of one key keep their order. CRC-32 is the function that librdkafka calls "consistent", so its clients, other
languages and Spark can compute it with what they have (zlib's crc32 runs at C speed; Java's murmur2 in Python would
cost more than all other work on a record). A request may ask for one of the other three by name, for its records with
a key too: then a key's order is not kept.

Brokers that are slow or failed are passed over (gateway/routing/fault.py): first choice is a partition on an available
broker, then on a reachable one, neither of them the broker that has just failed this very send, then the next in turn.
A partition of a key never moves for that: its order matters more than its latency.
"""

from __future__ import annotations

import logging
import zlib
from collections.abc import Callable, Sequence
from typing import Protocol

from gateway.routing.fault import LatencyFaults

log = logging.getLogger(__name__)

ROUND_ROBIN, RANDOM, ROOM = "round_robin", "random", "room"
SELECTORS = ("key", ROUND_ROBIN, RANDOM, ROOM)
"""Names a request may give. `key` is what happens without a name."""


class BrokerNames(Protocol):
    """Where partitions are."""

    @property
    def faults(self) -> LatencyFaults:
        """Which brokers answer slowly, or not at all."""
        ...

    def broker_name(self, topic: str, partition: int) -> str:
        """The broker that takes records of a partition now."""
        ...

    def room_of(self, broker: str) -> str:
        """The machine room of a broker; empty when it has none."""
        ...


class PartitionSelector:
    """Chooses partitions; remembers where the round robin of each topic stands.

    Without `brokers` no broker is avoided. `room` is this gateway's; `below(n)` is a random number in [0, n), `now_ms`
    a monotonic clock.
    """

    def __init__(
        self,
        brokers: BrokerNames | None = None,
        *,
        room: str = "",
        below: Callable[[int], int] = lambda count: 0,
        now_ms: Callable[[], float] = lambda: 0.0,
    ) -> None:
        self._brokers = brokers
        self._room = room
        self._below = below
        self._now_ms = now_ms
        self._turns: dict[str, int] = {}
        self._far: set[str] = set()
        """Topics of which nothing lies in this gateway's room, of which the log was told."""

    def for_key(self, key: bytes, count: int) -> int:
        """The partition of a key among `count`."""
        return zlib.crc32(key) % count

    def for_keys(self, keys: Sequence[bytes], count: int) -> list[int]:
        """The partition of each key, as `for_key`."""
        return [hashed % count for hashed in map(zlib.crc32, keys)]

    def next(self, topic: str, count: int, selector: str | None = None, *, failed_broker: str | None = None) -> int:
        """A partition for records without key, or of a request that names a selector. `failed_broker` has just failed
        an attempt to send them."""
        start = self._below(count) if selector == RANDOM else self._turns.get(topic, -1) + 1
        partition = start % count
        brokers = self._brokers
        if brokers is not None and (selector == ROOM or failed_broker is not None or brokers.faults):
            names = [brokers.broker_name(topic, (start + step) % count) for step in range(count)]
            if selector == ROOM:
                self._warn_if_far(topic, names, brokers)
            start += self._first_good(names, brokers, selector, failed_broker)
            partition = start % count
        if selector != RANDOM:
            self._turns[topic] = start
        return partition

    def forget(self, topic: str) -> None:
        """See `Selector.forget`."""
        self._turns.pop(topic, None)
        self._far.discard(topic)

    def _warn_if_far(self, topic: str, names: Sequence[str], brokers: BrokerNames) -> None:
        rooms = {brokers.room_of(name) for name in names}
        if self._room in rooms:
            self._far.discard(topic)
        elif topic not in self._far:
            self._far.add(topic)
            log.warning(
                "no partition lies in this room, all of them are used topic=%s room=%s there_are=%s",
                topic, self._room or "(none)", ",".join(sorted(room or "(none)" for room in rooms)),
            )  # fmt: skip

    def _first_good(
        self, names: Sequence[str], brokers: BrokerNames, selector: str | None, failed_broker: str | None
    ) -> int:
        """The index of the broker to take among those in turn."""
        faults = brokers.faults
        indexes: Sequence[int] = range(len(names))
        if selector == ROOM:
            indexes = [index for index in indexes if brokers.room_of(names[index]) == self._room] or indexes
        now_ms = self._now_ms()
        others = [index for index in indexes if names[index] != failed_broker]
        for index in others:
            if faults.is_available(names[index], now_ms):
                return index
        for index in others:
            if faults.is_reachable(names[index]):
                return index
        return (others or indexes)[0]
