"""Light queues of a topic: one record in many small queues (docs/light-queues.md). Reads, and waiting for what comes.

A light queue is one per partition and name. A reader has all of them, with a next offset for each partition. They are
read where their partition is whole and this node's own; a send that names some is refused elsewhere, so that nothing is
accepted that could not be read.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import NamedTuple, Protocol, runtime_checkable

from gateway.api.turns import few_a_turn
from gateway.routing.base import Route, Routes
from store.errors import NoLightQueues
from store.turns import others_turn
from store.types import Bounds, LightRead, LightRecord, QueueKey

PARTITIONS_A_TURN = 64
"""Partitions looked at between two turns of the event loop: some 20 us each."""


@runtime_checkable
class LightQueues(Protocol):
    """What a broker can do with light queues. `store.store.Store` says what its methods do."""

    def light_bounds(self, queue: QueueKey, name: bytes) -> Bounds:
        """See `Store.light_bounds`."""
        ...

    async def read_light(
        self, queue: QueueKey, name: bytes, offset: int, *, max_records: int, max_bytes: int
    ) -> LightRead:
        """See `Store.read_light`."""
        ...

    def watch_light(self, queue: QueueKey, name: bytes, wake: Callable[[], None]) -> Callable[[], None]:
        """See `Store.watch_light`."""
        ...


class Found(NamedTuple):
    """Records of a light queue, in order for each partition, and where the next read begins in each."""

    records: Sequence[tuple[int, LightRecord]]
    """With their partitions."""

    next_offsets: Mapping[int, int]


def light_route(routes: Routes, topic: str, partition: int) -> tuple[Route, LightQueues]:
    """Where the light queues of a partition are. Raises NoLightQueues where they could not be read, UnknownQueue."""
    chain = routes.chain(topic, partition)
    route = chain[0]
    if len(chain) > 1 or route.logical_start or route.physical_start or not isinstance(route.broker, LightQueues):
        raise NoLightQueues(f"partition {partition} of topic {topic} is, or was, on another broker: no light queues")
    return route, route.broker


class LightReader:
    """Reads light queues of the topics in a route table."""

    def __init__(self, routes: Routes) -> None:
        self._routes = routes

    async def ends(self, topic: str, name: bytes, partitions: Iterable[int]) -> dict[int, int]:
        """The offset that the next record gets, of each partition. Raises NoLightQueues, UnknownQueue, IndexDamaged."""
        found = {}
        async for partition in few_a_turn(partitions, per_turn=PARTITIONS_A_TURN):
            route, broker = light_route(self._routes, topic, partition)
            found[partition] = broker.light_bounds(route.queue, name).max_offset
        return found

    async def read(
        self, topic: str, name: bytes, offsets: Mapping[int, int], *, max_records: int, max_bytes: int
    ) -> Found:
        """Records from these offsets on, by partition: up to `max_records`, and about `max_bytes` of batches, in all.
        Raises NoLightQueues, UnknownQueue, Corrupt, IndexDamaged."""
        records: list[tuple[int, LightRecord]] = []
        next_offsets = dict(offsets)
        for number, (partition, offset) in enumerate(offsets.items()):
            if number % PARTITIONS_A_TURN == PARTITIONS_A_TURN - 1:
                await others_turn()
            if len(records) >= max_records or max_bytes <= 0:
                break
            route, broker = light_route(self._routes, topic, partition)
            raw_keys = self._routes.topic(topic).raw_keys
            read = await broker.read_light(
                route.queue, name, offset, max_records=max_records - len(records), max_bytes=max_bytes
            )
            for record in read.records:
                record.entry.raw_keys = raw_keys  # of its topic, never another: it may be others' entry as well
                records.append((partition, record))
            max_bytes -= sum({record.entry.position: record.entry.size for record in read.records}.values())
            if read.records:
                next_offsets[partition] = read.next_offset
        return Found(records, next_offsets)

    @contextmanager
    def watching(self, topic: str, name: bytes, partitions: Iterable[int], wake: Callable[[], None]) -> Iterator[None]:
        """Within the block, call `wake` when the queue gets a record in one of these partitions, or may be gone."""
        call_offs = []
        try:
            for partition in partitions:
                route, broker = light_route(self._routes, topic, partition)
                call_offs.append(broker.watch_light(route.queue, name, wake))
            yield
        finally:
            for call_off in call_offs:
                call_off()
