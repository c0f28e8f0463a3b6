"""Keeps a route table's chains as the metadata has them: each node learns here of partitions that any node has moved.

A record that cannot be applied (of a newer version, or on a broker that is not known here) is logged, and the chain
stays as it was: what it still says is true, and appends to a queue that was sealed are refused there.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from contextlib import aclosing, suppress

from gateway.brokers.base import Broker
from gateway.cluster.metadata import ABSENT, Changes, Listing, Metadata, Value
from gateway.cluster.mover import PARTITIONS, Known, UnknownBroker, chain_of, key_of
from gateway.cluster.record import PartitionState, decode, encode
from gateway.routing.table import Chain, RouteTable
from store.errors import UnknownQueue
from store.topics import FIRST_USER_TOPIC_ID

log = logging.getLogger(__name__)


class ChainFollower:
    """The records of all partitions that have moved, applied to `routes` of node `own`. `on_moving` is told of each
    broker that a partition is about to move to."""

    def __init__(
        self,
        metadata: Metadata,
        routes: RouteTable,
        broker_named: Callable[[str], Broker],
        *,
        own: str = "",
        on_moving: Callable[[str], None] = lambda _: None,
    ) -> None:
        self._metadata = metadata
        self._routes = routes
        self._broker_named = broker_named
        self._own = own
        self._on_moving = on_moving
        self._values: dict[str, Value] = {}
        self._not_applied: set[str] = set()
        self._moving: dict[str, Known] = {}
        self._on_kafka: dict[str, Known] = {}
        self.system_owners: dict[tuple[int, int], str] = {}
        """Of partitions of the server's own topics, which no route table has: the owner by topic id and number."""

    async def run(self) -> None:
        """Follow until cancelled."""
        async with aclosing(self._metadata.watch(PARTITIONS)) as watch:
            async for seen in watch:
                self.see(seen)

    def see(self, seen: Listing | Changes) -> None:
        """Apply what a watch tells of partitions; it may tell of more."""
        if isinstance(seen, Listing):
            for key in self._values.keys() - seen.values.keys():
                self._forget(key)
        for key, value in seen.values.items():
            if not key.startswith(PARTITIONS):
                continue
            if value is None:
                self._forget(key)
            else:
                self._note(key, value)

    def note(self, topic_id: int, partition: int, known: Known) -> None:
        """Apply what this node has written or read itself: it serves at once, not when the watch has come round."""
        if known.revision != ABSENT:
            self._note(key_of(topic_id, partition), Value(encode(known.record), known.revision))

    def apply_again(self) -> None:
        """Apply what could not be: brokers are known now that were not."""
        for key in list(self._not_applied):
            self._apply(key, self._values[key])

    def known(self, topic_id: int, partition: int) -> Known | None:
        """The record of a partition that has moved, as far as it is known; None for any other one. Raises
        ValueError."""
        value = self._values.get(key_of(topic_id, partition))
        return None if value is None else Known(decode(value.data), value.revision)

    def has_moved(self, topic_id: int, partition: int) -> bool:
        """Whether a partition has a record of its own, as far as is known."""
        return key_of(topic_id, partition) in self._values

    def known_chain(self, topic_id: int, partition: int) -> Chain | None:
        """The chain of a partition that has moved, as far as it is known; None for any other one."""
        if (value := self._values.get(key_of(topic_id, partition))) is None:
            return None
        return self._chain(topic_id, partition, value)

    def moved(self) -> Iterator[tuple[tuple[int, int], Known]]:
        """The partitions that have moved by now, by topic id and number, and their records as of when each is looked
        at: they are many, and decoding takes time. Those that are gone then, or not understood, are left out."""
        for key in list(self._values):
            if (value := self._values.get(key)) is not None:
                try:
                    record = decode(value.data)
                except ValueError:
                    continue
                yield _named(key), Known(record, value.revision)

    def moving(self) -> dict[tuple[int, int], Known]:
        """The records of the partitions that a move of is under way, by topic id and number. Looks at none of the
        others."""
        return {_named(key): known for key, known in self._moving.items()}

    def on_kafka(self) -> dict[tuple[int, int], Known]:
        """The records of the partitions whose open segment is on a Kafka cluster, and that do not move."""
        return {_named(key): known for key, known in self._on_kafka.items()}

    def kafka_of(self, topic_id: int, partition: int) -> str | None:
        """The Kafka cluster on which the open segment of a partition is, whichever node owns it; None: on none."""
        key = key_of(topic_id, partition)
        if (known := self._on_kafka.get(key) or self._moving.get(key)) is None:
            return None
        last = known.record.open_segment
        return None if last.pid is None else last.broker

    def _forget(self, key: str) -> None:
        self._values.pop(key, None)
        self.system_owners.pop(_named(key), None)
        self._not_applied.discard(key)
        self._moving.pop(key, None)
        self._on_kafka.pop(key, None)

    def _note(self, key: str, value: Value) -> None:
        known = self._values.get(key)
        if known is not None and known.revision >= value.revision:
            return  # the watch is behind what this node did itself
        self._values[key] = value
        self._apply(key, value)

    def _apply(self, key: str, value: Value) -> None:
        self._not_applied.discard(key)
        self._moving.pop(key, None)
        self._on_kafka.pop(key, None)
        topic_id, partition = _named(key)
        if topic_id < FIRST_USER_TOPIC_ID:
            with suppress(ValueError):
                self.system_owners[topic_id, partition] = decode(value.data).owner
            if not self._own:
                return  # a gateway without Kafka clusters reads nothing of it
        if (chain := self._chain(topic_id, partition, value)) is None:
            self._not_applied.add(key)
            return
        if (record := decode(value.data)).state is PartitionState.SEALING:
            self._moving[key] = Known(record, value.revision)
            self._on_moving(record.to or "")
        elif record.open_segment.pid is not None:
            self._on_kafka[key] = Known(record, value.revision)
        with suppress(UnknownQueue):  # not known here yet, or not any more
            self._routes.set_chain(self._routes.by_id(topic_id).name, partition, chain)

    def _chain(self, topic_id: int, partition: int, value: Value) -> Chain | None:
        try:
            return chain_of(topic_id, partition, decode(value.data), self._broker_named, own=self._own)
        except (ValueError, UnknownBroker) as error:
            log.error("partition's place not applied topic_id=%d partition=%d error=%s", topic_id, partition, error)
            return None


def _named(key: str) -> tuple[int, int]:
    """The topic id and the number of a partition's key."""
    topic_id, _, partition = key.removeprefix(PARTITIONS).partition("/")
    return int(topic_id), int(partition)
