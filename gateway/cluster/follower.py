"""Keeps a route table's chains as the metadata has them: whoever moves a partition, every node learns of it here.

A record that cannot be applied (of a newer version, or on a broker that nobody here knows) is logged, and the chain
stays as it was: what it still says is true, and appends to a queue that was sealed are refused there.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from contextlib import aclosing

from gateway.brokers.base import Broker
from gateway.cluster.metadata import Listing, Metadata, Value
from gateway.cluster.mover import PARTITIONS, Known, UnknownBroker, chain_of, key_of
from gateway.cluster.record import decode, encode
from gateway.routing.base import TopicView
from gateway.routing.table import RouteTable
from store.errors import UnknownQueue

log = logging.getLogger(__name__)


class ChainFollower:
    """The records of all partitions that have moved, applied to `routes`."""

    def __init__(self, metadata: Metadata, routes: RouteTable, broker_named: Callable[[str], Broker]) -> None:
        self._metadata = metadata
        self._routes = routes
        self._broker_named = broker_named
        self._values: dict[str, Value] = {}

    async def run(self) -> None:
        """Follow until cancelled."""
        async with aclosing(self._metadata.watch(PARTITIONS)) as watch:
            async for seen in watch:
                if isinstance(seen, Listing):
                    for key in self._values.keys() - seen.values.keys():
                        del self._values[key]
                for key, value in seen.values.items():
                    if value is None:
                        self._values.pop(key, None)
                    else:
                        self._note(key, value)

    def note(self, topic_id: int, partition: int, known: Known) -> None:
        """Apply what this node has written itself: it serves at once, not when the watch has come round."""
        self._note(key_of(topic_id, partition), Value(encode(known.record), known.revision))

    def topic_added(self, topic: TopicView) -> None:
        """Apply what is known of the partitions of a topic that this node has just learned of."""
        for partition in range(topic.partitions):
            if (value := self._values.get(key_of(topic.topic_id, partition))) is not None:
                self._apply(topic.topic_id, partition, value)

    def _note(self, key: str, value: Value) -> None:
        known = self._values.get(key)
        if known is not None and known.revision >= value.revision:
            return  # the watch is behind what this node did itself
        self._values[key] = value
        topic_id, _, partition = key.removeprefix(PARTITIONS).partition("/")
        self._apply(int(topic_id), int(partition), value)

    def _apply(self, topic_id: int, partition: int, value: Value) -> None:
        try:
            chain = chain_of(decode(value.data), self._broker_named)
            self._routes.set_chain(self._routes.by_id(topic_id).name, partition, chain)
        except UnknownQueue:
            pass  # not known here yet, or not any more
        except (ValueError, UnknownBroker) as error:
            log.error("partition's place not applied topic_id=%d partition=%d error=%s", topic_id, partition, error)
