"""Reading a partition over its chain of segments: what every reader above this file goes through, in the partition's
offsets.

A partition with one segment that begins at 0 is its queue, and a read of it costs what a read of the queue costs. With
several, or with a queue that held something else before:

    a read ends at the end of its segment, and the next one goes on in the next
    first offset   behind it nothing is missing: where retention has taken the front of a segment that is not the
                   first, what is before that is not shown any more either
    a time         is searched for segment by segment; the last record up to a time is the one before the first record
                   behind it
    taken over     a segment whose broker was away may end anywhere before the next one begins: who comes to the end of
                   its queue has it sealed, to be certain, and is given what is in the next segment, as if it had asked
                   for so many records there (gateway/cluster/move.py)
    retention      of sealed segments is told by `Broker.first_kept`, also while their broker cannot be reached: so what
                   is behind them can be read, and they themselves are an error, never skipped

Errors are those of the brokers, and UnknownQueue.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Awaitable, Sequence
from dataclasses import replace
from operator import attrgetter

from gateway.routing.base import Route, Routes
from store import record_batch
from store.types import Boundary, Bounds, Entry, ReadResult, ReadStatus

_START_OF = attrgetter("logical_start")


class PartitionReader:
    """Reads the partitions of the topics in a route table."""

    def __init__(self, routes: Routes) -> None:
        self._routes = routes

    async def read(
        self,
        topic: str,
        partition: int,
        offset: int,
        *,
        max_bytes: int,
        end_offset: int | None = None,
        tag_hashes: frozenset[int] | None = None,
    ) -> ReadResult:
        """As `Broker.read`, for a partition and in its offsets, also those in the batches."""
        chain = self._routes.chain(topic, partition)
        segment = chain[segment_at(chain, offset)]
        shift = segment.logical_start - segment.physical_start
        end = segment.physical_end
        if end_offset is not None:
            end = end_offset - shift if end is None else min(end, end_offset - shift)
        raw_keys = self._routes.topic(topic).raw_keys  # before the read: a later topic of this name may have others
        result: ReadResult | None = None
        if offset >= segment.logical_start:
            result = await segment.broker.read(
                segment.queue,
                offset - shift,
                max_bytes=max_bytes,
                end_offset=end,
                tag_hashes=tag_hashes,
            )
            if not result.entries and await self._is_over(segment, result, offset - shift):
                behind = segment.to_logical(segment.physical_end or 0)
                return await self.read(
                    topic,
                    partition,
                    behind,
                    max_bytes=max_bytes,
                    end_offset=None if end_offset is None else end_offset + behind - offset,
                    tag_hashes=tag_hashes,
                )
            for entry in result.entries:
                entry.raw_keys = raw_keys  # of its topic, never another: it may be others' entry as well
            if _is_whole(chain):
                return result
        low, high = await _bounds(chain)
        if offset < low or result is None:
            return ReadResult(ReadStatus.TOO_SMALL, [], low, high, low)
        status, entries, _, _, next_offset = result
        if status in (ReadStatus.EMPTY, ReadStatus.AT_END):  # the queue may have held something else
            status = ReadStatus.AT_END if high else ReadStatus.EMPTY
        next_offset += shift
        if segment.physical_end is not None:
            next_offset = min(next_offset, segment.physical_end + shift)
        if shift:
            entries = [shifted(entry, shift) for entry in entries]
        return ReadResult(status, entries, low, max(high, next_offset), next_offset)

    async def _is_over(self, segment: Route, result: ReadResult, physical: int) -> bool:
        """Whether a segment has nothing at an offset, or behind it, though it ends later."""
        end = segment.physical_end
        if end is None or physical >= end or result.next_offset >= end or result.status is ReadStatus.TOO_SMALL:
            return False
        return result.next_offset >= result.max_offset and physical >= await segment.broker.seal_queue(segment.queue)

    def bounds(self, topic: str, partition: int) -> Awaitable[Bounds]:
        """The first offset from which nothing is missing, and the one the next record gets. Each receive asks for those
        of all its partitions: it is no coroutine of its own, and `_is_whole` is in it."""
        chain = self._routes.chain(topic, partition)
        first = chain[0]
        if len(chain) == 1 and first.physical_end is None and first.logical_start == first.physical_start == 0:
            return first.broker.bounds(first.queue)
        return _bounds(chain)

    async def offset_for_time(
        self, topic: str, partition: int, time_ms: int, boundary: Boundary = Boundary.LOWER
    ) -> int:
        """Search by time; see `store.types.Boundary`. The answer lies within the partition's bounds."""
        chain = self._routes.chain(topic, partition)
        if _is_whole(chain):
            return await chain[0].broker.offset_for_time(chain[0].queue, time_ms, boundary)
        searched = boundary
        if boundary is Boundary.UPPER:
            time_ms, searched = time_ms + 1, Boundary.LOWER
        low, found = (await _bounds(chain)).min_offset, 0
        for segment in chain:
            at = await segment.broker.offset_for_time(segment.queue, time_ms, searched)
            at = max(at, segment.physical_start)
            found = segment.to_logical(at)
            if segment.physical_end is None or (
                at < segment.physical_end and at < (await segment.broker.bounds(segment.queue)).max_offset
            ):
                break
        return max(low, found - 1 if boundary is Boundary.UPPER else found)


def segment_at(chain: Sequence[Route], offset: int) -> int:
    """The index of the segment that holds an offset; the first one for offsets before it."""
    if len(chain) == 1:
        return 0
    return max(bisect_right(chain, offset, key=_START_OF) - 1, 0)


def _is_whole(chain: Sequence[Route]) -> bool:
    """Whether the partition is one queue and nothing else, offset for offset."""
    return len(chain) == 1 and chain[0].logical_start == chain[0].physical_start == 0


async def _bounds(chain: Sequence[Route]) -> Bounds:
    last = chain[-1]
    at, low, end = await first_shown(chain)
    return Bounds(chain[at].to_logical(low), last.to_logical(max(end, last.physical_start)))


async def first_shown(chain: Sequence[Route]) -> tuple[int, int, int]:
    """The index of the first segment from which nothing is missing, the first offset in its queue, and the end of the
    open one's queue."""
    last = chain[-1]
    own = await last.broker.bounds(last.queue)
    at, low = len(chain) - 1, max(own.min_offset, last.physical_start)
    while at and low == chain[at].physical_start:
        at -= 1
        segment = chain[at]
        assert segment.physical_end is not None
        low = min(max(await segment.broker.first_kept(segment.queue), segment.physical_start), segment.physical_end)
    return at, low, own.max_offset


def shifted(entry: Entry, shift: int) -> Entry:
    """An entry of a queue with the partition's offsets, in its batch too."""
    base_offset = entry.base_offset + shift
    batch = memoryview(record_batch.with_base_offset(entry.batch, base_offset))
    return replace(entry, base_offset=base_offset, batch=batch)
