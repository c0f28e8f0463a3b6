"""Reading a partition: every way out (pull, long poll, socket) goes through here, in logical offsets.

A partition may be a chain of queues on several brokers: `routing/` reads it in the partition's offsets, so nobody above
it knows about queues.
"""

from __future__ import annotations

from typing import NamedTuple

from gateway.errors import invalid
from gateway.routing.base import Routes, UnknownPartition
from gateway.routing.reading import PartitionReader
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
        self._reader = PartitionReader(routes)

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
        status, entries, low, high, next_offset = await self._reader.read(
            topic, partition, offset, max_bytes=max_bytes, wait_ms=wait_ms, end_offset=end_offset, tag_hashes=tag_hashes
        )
        return Fetched(entries, status, low, high, next_offset)

    async def bounds(self, topic: str, partition: int) -> Bounds:
        """The first readable offset, and the one the next record will get. Raises as `fetch`."""
        self._check(topic, partition)
        return await self._reader.bounds(topic, partition)

    async def offset_for_time(
        self, topic: str, partition: int, time_ms: int, boundary: Boundary = Boundary.LOWER
    ) -> int:
        """LOWER: the offset of the first record stored at or after `time_ms`, the end offset when there is none. UPPER:
        of the last one stored at or before it, the first offset when there is none. Raises as `fetch`."""
        self._check(topic, partition)
        return await self._reader.offset_for_time(topic, partition, time_ms, boundary)

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
