"""What one receive may take from one partition: records whose wait or lease is over first, then new ones.

The retry topic of a group holds copies of records of many topics. A consumer gets those of the topics it names; the
others are taken and kept for who names theirs. What came from a light queue is of that queue (`Origin.place`). Where an
open copy came from is read once and remembered while the group has leases there.

Nothing is decided here: `Found` says what is there, `PartitionLeases.decide_receive` what becomes of it. The turn of
the partition's leases is the caller's.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from gateway.codec.tags import MESSAGE_GROUP_HEADER, TAG_HEADER, tag_hash, text_of
from gateway.groups.coordinator.context import Context
from gateway.groups.coordinator.records import Decoded, Part, Stored
from gateway.groups.machines.copies import origin_of
from gateway.groups.machines.leases import Fresh, Lease, PartitionLeases
from gateway.groups.machines.progress import Place, place_of
from gateway.routing.base import TopicView
from store.types import Bounds

SCAN_RECORDS = 2_000
"""Records passed over (filtered, withheld) in one look at a partition; then it is another one's turn."""


class Lane(NamedTuple):
    """One partition, or light queue of it, that a receive looks into. `is_retry`: of the group's own retry topic."""

    topic: str
    partition: int
    is_retry: bool
    key: Place


def lane_of(view: TopicView, is_retry: bool, partition: int, name: str = "") -> Lane:
    """A partition of a topic, or its light queue of this name."""
    return Lane(view.name, partition, is_retry, place_of(view.topic_id, partition, name))


class Wanted(NamedTuple):
    """What is looked for. `places`: topics, or light queues of them, as in `Origin.place`. `tags` None: all records.
    `room`: how many more records the group may have open."""

    places: Sequence[str]
    tags: frozenset[str] | None
    limit: int
    max_bytes: int
    room: int


@dataclass(slots=True)
class Found:
    """What one look at a partition found: records, those to take, and how far it has come."""

    fetched_to: int
    records: dict[int, Stored] = field(default_factory=dict)
    """By offset, of those that are looked at one by one."""

    parts: list[Part] = field(default_factory=list)
    """Of the others."""

    old: list[int] = field(default_factory=list)
    fresh: list[Fresh] | range = field(default_factory=list)
    """A range where nothing has to be known of them but their offsets."""

    lost: list[int] = field(default_factory=list)
    """Open records that retention took."""

    wanted_count: int = 0
    size_bytes: int = 0
    is_full: bool = False
    """There is more, but the group may have no more open."""

    def cut(self, room: int) -> None:
        """Take no more fresh records than there is room for."""
        if len(self.fresh) > room:
            first = self.fresh[room]
            self.fetched_to = first if isinstance(first, int) else first.offset
            self.fresh = self.fresh[:room]

    def parts_of(self, lease: Lease) -> Sequence[Part]:
        """The records of a lease."""
        if (stored := self.records.get(lease.offset)) is not None:
            return [stored.part()]
        end = lease.offset + lease.size
        return [part.up_to(end) for part in self.parts if part.base_offset < end]

    def take(self, offset: int, stored: Stored, size_bytes: int) -> None:
        """Remember a record that is to be leased."""
        self.records[offset] = stored
        self.wanted_count += 1
        self.size_bytes += size_bytes


class Search:
    """Looks for records of all groups of one node."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self._origins: dict[tuple[str, Place], dict[int, str]] = {}  # places of open records in retry topics

    def forget(self, group: str, key: Place) -> None:
        """The leases there began anew, or nothing is open there."""
        self._origins.pop((group, key), None)

    def forget_topics(self, group: str, topic_ids: Collection[int] | None) -> None:
        """The group has no leases there any more; None: in no topic."""
        for name, key in list(self._origins):
            if name == group and (topic_ids is None or key.topic_id in topic_ids):
                del self._origins[name, key]

    async def look(self, group: str, lane: Lane, leases: PartitionLeases, wanted: Wanted, now_ms: int) -> Found:
        """Records to lease: those that are ready again, then fresh ones. Raises what reading raises."""
        found = Found(leases.next_offset)
        bounds = await self._context.records.bounds_of(lane.topic, lane.key)
        await self._look_again(group, lane, leases, wanted, now_ms, bounds, found)
        if found.wanted_count < wanted.limit and bounds.max_offset > leases.next_offset:
            if wanted.room > 0:
                await self.read_new(group, lane, leases, wanted, bounds, found)
            else:
                found.is_full = True
        return found

    async def _look_again(
        self,
        group: str,
        lane: Lane,
        leases: PartitionLeases,
        wanted: Wanted,
        now_ms: int,
        bounds: Bounds,
        found: Found,
    ) -> None:
        """Open records that may be leased again."""
        records = self._context.records
        if lane.is_retry:
            places = await self._origins_of(group, lane, leases)
            ready = leases.ready(now_ms, wanted.limit, lambda offset: places.get(offset) in wanted.places)
        else:
            ready = leases.ready(now_ms, wanted.limit)
        for offset in ready:
            stored = await records.at(lane.topic, lane.key, offset)
            if stored is None:
                found.lost.append(offset)
                continue
            size = stored.size_bytes
            if found.wanted_count and found.size_bytes + size > wanted.max_bytes:
                break
            found.old.append(offset)
            found.take(offset, stored, size)
        if leases.low_offset < bounds.min_offset:
            found.lost += [offset for offset in leases.ready(now_ms, wanted.limit) if offset < bounds.min_offset]
            found.lost = list(dict.fromkeys(found.lost))

    async def _origins_of(self, group: str, lane: Lane, leases: PartitionLeases) -> dict[int, str]:
        """Where the open records of a retry topic came from: read at the first look, then kept by `_fresh`."""
        known = self._origins.get((group, lane.key))
        if known is None:
            known = {}
            for offset in leases.open_offsets():
                stored = await self._context.records.at(lane.topic, lane.key, offset)
                origin = None if stored is None else origin_of(stored.record.headers)
                known[offset] = lane.topic if origin is None else origin.place
            self._origins[group, lane.key] = known
        elif len(known) > 2 * leases.open_count + 64:
            for offset in known.keys() - leases.open_offsets():
                del known[offset]
        return known

    async def read_new(
        self, group: str, lane: Lane, leases: PartitionLeases, wanted: Wanted, bounds: Bounds, found: Found
    ) -> None:
        """Records the group has not been handed yet, filtered by tag. Copies were chosen before: no filter for them."""
        context = self._context
        if found.fetched_to < bounds.min_offset:
            if not lane.key.name:  # a light queue that comes back begins above where it ended: nothing was there
                context.stats.lost_count += bounds.min_offset - found.fetched_to
            found.fetched_to = bounds.min_offset
        tags = None if lane.is_retry else wanted.tags
        is_fifo = context.table.config(group).fifo
        if tags is None and not is_fifo and not lane.is_retry and not lane.key.name:
            # One entry after the other that is at hand, as nearly all are.
            while (entry := context.records.at_hand(lane.key, found.fetched_to)) is not None:
                if not _take_all(entry, wanted, found) or found.fetched_to >= bounds.max_offset:
                    return
        hashes = None if tags is None else frozenset(tag_hash(tag) for tag in tags)
        scan = _Scan(group, lane, leases, wanted, tags, is_fifo, set())
        passed = 0
        while passed < SCAN_RECORDS and found.fetched_to < bounds.max_offset:
            first = found.fetched_to
            before = found.wanted_count
            step = await context.records.step(lane.topic, lane.partition, first, tag_hashes=hashes, name=lane.key.name)
            for entry in step.entries:
                if not self._scan(scan, entry, found):
                    return
            if step.next_offset <= first and not step.entries:
                return
            found.fetched_to = max(found.fetched_to, step.next_offset)
            passed += found.fetched_to - first - (found.wanted_count - before)

    def _scan(self, scan: _Scan, entry: Decoded, found: Found) -> bool:
        """Go through one entry; False when there is enough."""
        group, lane, leases, wanted, tags, is_fifo, begun = scan
        if tags is None and not is_fifo and not lane.is_retry:
            return _take_all(entry, wanted, found)
        fresh = found.fresh
        assert isinstance(fresh, list)
        for offset in range(max(entry.base_offset, found.fetched_to), entry.next_offset):
            stored = entry.at(offset)
            headers = stored.record.headers
            if tags is not None and text_of(headers, TAG_HEADER) not in tags:
                found.fetched_to = offset + 1
                continue
            size = stored.size_bytes
            if found.wanted_count and found.size_bytes + size > wanted.max_bytes:
                return False
            message_group = text_of(headers, MESSAGE_GROUP_HEADER) if is_fifo else None
            attempts, is_held = 0, False
            if lane.is_retry:
                origin = origin_of(headers)
                place = lane.topic
                if origin is not None:
                    place, attempts = origin.place, origin.attempts
                    is_held = place not in wanted.places
                self._origins.setdefault((group, lane.key), {})[offset] = place
            fresh.append(Fresh(offset, message_group, attempts, is_held))
            is_withheld = message_group is not None and (message_group in begun or leases.is_withheld(message_group))
            if not is_held and not is_withheld:
                if message_group is not None:
                    begun.add(message_group)
                found.take(offset, stored, size)
            found.fetched_to = offset + 1
            if found.wanted_count == wanted.limit or len(fresh) == wanted.room:
                return False
        return True


def _take_all(entry: Decoded, wanted: Wanted, found: Found) -> bool:
    """Take the records of an entry as they come, as far as there is room; False when there is enough."""
    first = max(entry.base_offset, found.fetched_to)
    if isinstance(found.fresh, range) and found.fresh.stop < first:
        return False  # a takeover has left a gap: what is behind it comes with the next receive
    start = found.fresh.start if isinstance(found.fresh, range) else first
    end = min(entry.next_offset, first + wanted.limit - found.wanted_count, start + wanted.room)
    fitting = entry.end_of(first, wanted.max_bytes - found.size_bytes)
    taken = min(end, max(fitting, first if found.wanted_count else first + 1))
    if taken > first:
        found.parts.append(entry.part(first, taken))
        found.wanted_count += taken - first
        found.size_bytes += entry.bytes_of(first, taken)
    found.fresh, found.fetched_to = range(start, taken), taken
    return taken == end and found.wanted_count < wanted.limit and taken - start < wanted.room


class _Scan(NamedTuple):
    """What stays the same while one partition is gone through."""

    group: str
    lane: Lane
    leases: PartitionLeases
    wanted: Wanted
    tags: frozenset[str] | None
    is_fifo: bool
    begun: set[str]
    """Message groups of which a record has been found in this look."""
