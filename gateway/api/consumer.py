"""Reading a partition: every way out (pull, long poll, socket) goes through here, in logical offsets.

A partition may be a chain of queues on several brokers. `routing/` names the queue that holds an offset; entries come
back with the partition's offsets, so nobody above this file knows about queues.
"""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple

from gateway.errors import invalid
from gateway.routing.base import Route, Routes, UnknownPartition
from store import record_batch
from store.types import OFFSET_MAX, Boundary, Bounds, Entry, ReadStatus


class Fetched(NamedTuple):
    """Whole entries, as `store.types.ReadResult`, in the partition's offsets."""

    entries: list[Entry]
    status: ReadStatus
    min_offset: int
    max_offset: int
    next_offset: int


class AtTime(NamedTuple):
    """An offset given by time: that of the first record stored at or after it."""

    time_ms: int


OffsetSpec = int | str | AtTime
"""An offset, counted from the end when negative; "earliest"; "latest"; such a number as a string; or a time."""


class Consumer:
    """Reads partitions of the topics in a route table."""

    def __init__(self, routes: Routes) -> None:
        self._routes = routes

    async def fetch(
        self,
        topic: str,
        partition: int,
        offset: int,
        *,
        max_bytes: int,
        wait_ms: int = 0,
        end_offset: int | None = None,
        tag_hashes: frozenset[int] | None = None,
    ) -> Fetched:
        """Whole entries from the one containing `offset` on: at least one if there is any, then up to `max_bytes`, and
        none that begins at or behind `end_offset`.

        At the partition's end waits up to `wait_ms` for the next entry, else answers at once; the status says why a
        read came back empty. With `tag_hashes`, entries without a record of such a tag are passed over (NO_MATCH when
        none had one, `next_offset` says how far was looked). Raises UnknownQueue, UnknownPartition, or another
        StoreError.
        """
        self._check(topic, partition)
        route = self._routes.readable(topic, partition, offset)
        read = await route.broker.read(
            route.queue,
            route.to_physical(offset),
            max_bytes=max_bytes,
            wait_ms=wait_ms,
            end_offset=None if end_offset is None else route.to_physical(end_offset),
            tag_hashes=tag_hashes,
        )
        to_logical = route.to_logical
        return Fetched(
            [_logical(entry, route) for entry in read.entries],
            read.status,
            to_logical(read.min_offset),
            to_logical(read.max_offset),
            to_logical(read.next_offset),
        )

    async def bounds(self, topic: str, partition: int) -> Bounds:
        """The first readable offset, and the one the next record will get. Raises as `fetch`."""
        self._check(topic, partition)
        first = self._routes.readable(topic, partition, 0)
        last = self._routes.writable(topic, partition)
        low = await first.broker.bounds(first.queue)
        high = low if last.queue == first.queue else await last.broker.bounds(last.queue)
        return Bounds(first.to_logical(low.min_offset), last.to_logical(high.max_offset))

    async def offset_for_time(self, topic: str, partition: int, time_ms: int) -> int:
        """The offset of the first record stored at or after `time_ms`; the end offset when there is none."""
        self._check(topic, partition)
        route = self._routes.readable(topic, partition, 0)
        return route.to_logical(await route.broker.offset_for_time(route.queue, time_ms, Boundary.LOWER))

    async def resolve_offset(self, topic: str, partition: int, spec: OffsetSpec) -> int:
        """The offset a reader who asked for `spec` begins at. Numbers from 0 on pass as they are, in bounds or not.

        Raises RequestError 422 for a string that is none of the forms, else as `fetch`.
        """
        if isinstance(spec, AtTime):
            return await self.offset_for_time(topic, partition, spec.time_ms)
        if isinstance(spec, str):
            if spec == "earliest":
                return (await self.bounds(topic, partition)).min_offset
            if spec == "latest":
                return (await self.bounds(topic, partition)).max_offset
            spec = _parse_offset(spec)
        if spec >= 0:
            self._check(topic, partition)
            return spec
        low, high = await self.bounds(topic, partition)
        return max(low, high + spec)

    def _check(self, topic: str, partition: int) -> None:
        count = self._routes.topic(topic).partitions
        if not 0 <= partition < count:
            raise UnknownPartition(f"topic={topic} has partitions 0 to {count - 1}, not {partition}")


def _parse_offset(text: str) -> int:
    digits = text.removeprefix("-")
    if not (digits.isascii() and digits.isdigit()) or len(digits) > 19 or int(digits) > OFFSET_MAX:
        raise invalid('offset: must be a number, -N for the last N records, "earliest" or "latest"')
    return int(text)


def _logical(entry: Entry, route: Route) -> Entry:
    """The entry with the partition's offsets, in its batch too. With one queue a partition they are the same."""
    base_offset = route.to_logical(entry.base_offset)
    if base_offset == entry.base_offset:
        return entry
    batch = memoryview(record_batch.with_base_offset(entry.batch, base_offset))
    return replace(entry, base_offset=base_offset, batch=batch)
