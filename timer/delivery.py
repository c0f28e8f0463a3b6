"""From due schedules to appends: one batch for each partition. Pure.

The entry in which a delivered record travels names its *source*: the `__timer` entry and record index it was copied
from. A record that rolls is copied the same way, into another `__timer` entry, with its delay and origin. So each
accepted copy has exactly one source naming it once it is consumed, and a restart learns from the log which copies are
consumed.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import orjson

from store import record_batch
from store.light_names import LightNames
from store.log.entry import packed_sources, unpack_delay
from store.topics import TIMER_QUEUE
from store.types import Append, Delay
from timer.items import Item, source_row
from timer.ports import Due, Target, append_of
from timer.ready import FRAMING_BYTES, ROW_BYTES, is_json, rolls, row_columns, unpack_row
from timer.schedule import SCHEDULE_ID_BYTES

_ROLLING = Target(*TIMER_QUEUE)  # of what is delivered nowhere yet; nothing fires into the timer's own queue

_new = tuple.__new__  # a NamedTuple's own constructor takes three times as long


@dataclass(slots=True)
class Group:
    """Due records of one partition, or records that roll, in order: what becomes one batch."""

    target: Target
    size_bytes: int = 0
    items: list[Item] = field(default_factory=list)
    tails: list[bytes] = field(default_factory=list)  # of the records (store/record_batch.py)
    timestamps_ms: list[int] = field(default_factory=list)
    delays: list[Delay] = field(default_factory=list)  # filled when the group rolls
    tag_hashes: list[int] = field(default_factory=list)
    tagged: bool = False
    json_values: bool = True
    queues: list[Sequence[bytes]] = field(default_factory=list)  # light queues of each record; empty: of none

    @property
    def first_id(self) -> str:
        """The schedule id that the first record is delivered with; none where the group rolls."""
        return "" if self.delays else self.tails[0][-SCHEDULE_ID_BYTES:].decode()

    def append(self) -> Append:
        """The append to `__timer` of a group that rolls. Raises RecordTooLarge."""
        append = append_of(self.due(), TIMER_QUEUE)
        append.delays = self.delays
        return append

    def due(self) -> Due:
        """What is to be delivered. Raises RecordTooLarge."""
        return Due(
            self.target,
            record_batch.encode_tails(self.tails, self.timestamps_ms),
            len(self.tails),
            self.json_values,
            self.tag_hashes if self.tagged else (),
            packed_sources(b"".join(map(source_row, self.items))),
            LightNames.of(self.queues),
        )

    def halves(self) -> tuple[Group, Group]:
        """The same records as two groups of half the size."""
        middle = len(self.tails) // 2
        return self._part(0, middle), self._part(middle, len(self.tails))

    def _part(self, start: int, stop: int) -> Group:
        return Group(
            self.target,
            self.size_bytes // 2,
            self.items[start:stop],
            self.tails[start:stop],
            self.timestamps_ms[start:stop],
            self.delays[start:stop],
            self.tag_hashes[start:stop],
            self.tagged,
            self.json_values,
            self.queues[start:stop],
        )


class Grouping:
    """Sorts due records into groups. Groups of one partition follow each other in order."""

    def __init__(self, *, batch_bytes_max: int) -> None:
        self._batch_bytes_max = batch_bytes_max
        self._open: dict[tuple[int, int], Group] = {}
        self.firing: list[Group] = []
        self.rolling: list[Group] = []

    def add_alike(self, items: Sequence[Item], rows: Sequence[bytes]) -> bool:
        """Add due records, at least one, as the first: column by column, in half the time of `add` for each. False, and
        nothing is added, unless they are one group, and only fire, into no light queues."""
        assert not self._open
        size_bytes = sum(map(len, rows)) + FRAMING_BYTES * len(rows)
        topic_ids, partitions, timestamps_ms, tag_hashes, flags, more_bytes = row_columns(rows)
        target = Target(topic_ids[0], partitions[0])
        is_one = topic_ids.count(target.topic_id) == partitions.count(target.partition) == len(rows)
        # What rolls has `more`, and so has what names light queues.
        if any(more_bytes) or not is_one or size_bytes > self._batch_bytes_max:
            return False
        group = self._open[target] = Group(
            target,
            size_bytes,
            list(items),
            [row[ROW_BYTES:] for row in rows],
            list(timestamps_ms),
            tag_hashes=list(tag_hashes),
            tagged=any(tag_hashes),
            json_values=all(map(is_json, set(flags))),
        )
        self.firing.append(group)
        return True

    def add(self, item: Item, row: bytes) -> None:
        """Add one due record."""
        topic_id, partition, timestamp_ms, tag_hash, flags, more_bytes = unpack_row(row)
        is_rolling = rolls(flags)
        target = _ROLLING if is_rolling else (topic_id, partition)
        size_bytes = len(row) + FRAMING_BYTES
        group = self._open.get(target)
        if group is None or group.size_bytes + size_bytes > self._batch_bytes_max:
            group = self._open[target] = Group(_new(Target, target))
            (self.rolling if is_rolling else self.firing).append(group)
        group.size_bytes += size_bytes
        group.items.append(item)
        group.tails.append(row[ROW_BYTES + more_bytes :])
        group.timestamps_ms.append(timestamp_ms)
        group.tag_hashes.append(tag_hash)
        if tag_hash:
            group.tagged = True
        if not is_json(flags):
            group.json_values = False
        queues: Sequence[bytes] = ()
        if more_bytes:
            more = row[ROW_BYTES : ROW_BYTES + more_bytes]
            if is_rolling:
                group.delays.append(Delay._make(unpack_delay(more)))
            else:
                queues = [queue.encode() for queue in orjson.loads(more)]
        if queues and not group.queues:
            group.queues = [()] * (len(group.tails) - 1)
        if queues or group.queues:
            group.queues.append(queues)
