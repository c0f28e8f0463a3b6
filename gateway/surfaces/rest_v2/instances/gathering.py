"""Collecting the records of one answer, over several partitions, within bounds.

The size of a record is that of its key, value and headers. At least one record is taken if there is any, however large;
after that the next one that would exceed `bytes_max` or `count_max` ends the collecting.

A record that does not decode in the instance's format never blocks its reader: it is shown with its bytes in base64, or
left out, or (`fail`) it refuses the read in which it would be the first one.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence

import orjson

from gateway.codec.filters import TagFilter
from gateway.codec.records import Format, render_record
from gateway.errors import UNDECODABLE, RequestError
from gateway.groups.machines.strategies.base import Partition
from gateway.surfaces.http.media import AnyFormat
from gateway.surfaces.rest_v2.instances.settings import OnDecodeError
from gateway.surfaces.rest_v2.schema_records import Shown
from store import record_batch
from store.types import Entry

Reserve = Callable[[int], int]
"""How many of so many bytes of records there is memory for now. `int`: for all."""


class Gathering:
    """Records of one answer, and how far each partition has been read for it."""

    def __init__(
        self,
        fmt: AnyFormat,
        on_decode_error: OnDecodeError,
        *,
        bytes_max: int,
        count_max: int,
        tag_filter: TagFilter | None = None,
        reserve: Reserve = int,
    ) -> None:
        """`reserve` is called once, when there is a record to take; `bytes_max` then is what it says."""
        self.ends: dict[Partition, int] = {}
        """Next offset by partition, of those that were read at all."""

        self.count = 0
        self.size_bytes = 0
        self.is_full = False
        self._fmt = fmt
        self._on_decode_error = on_decode_error
        self.bytes_max = bytes_max
        self._count_max = count_max
        self._reserve: Reserve | None = reserve
        self.tag_filter = tag_filter
        self._shown: dict[Partition, tuple[list[bytes], int]] = {}

    @property
    def bytes_left(self) -> int:
        """Of `bytes_max`; at least 1."""
        return max(self.bytes_max - self.size_bytes, 1)

    @property
    def count_left(self) -> int:
        """Records that there is room for."""
        return self._count_max - self.count

    def records(self) -> list[bytes]:
        """What was taken, as JSON, partition by partition, in the order of offsets."""
        return [record for shown, _ in self._shown.values() for record in shown]

    def take_in_steps(
        self, topic_partition: Partition, start: int, entries: Sequence[Entry], shown: Shown | None = None
    ) -> Generator[None, None, int]:
        """Take records of entries from `start` on. Returns the next offset; `is_full` when it stopped before the end.
        In a schema format `shown` has their keys and values, and those that it does not have are left.

        It yields after each piece of a large entry. The generator raises RequestError 408/40801 for a record that does
        not decode, when that is what the instance wants.
        """
        taken, size_bytes = self._shown.get(topic_partition, ([], 0))
        next_offset = start
        before_bytes = self.size_bytes
        if self._reserve is not None and entries:
            self.bytes_max = self._reserve(self.bytes_max)
            self._reserve = None
        try:
            for entry in entries:
                if (
                    entry.next_offset > next_offset
                    and not self.is_full
                    and (shown is None or entry.base_offset < shown.stop)
                ):
                    next_offset = yield from self._take_entry(topic_partition, next_offset, entry, taken, shown)
        finally:
            self.ends[topic_partition] = next_offset
            self._shown[topic_partition] = (taken, size_bytes + self.size_bytes - before_bytes)
        return next_offset

    def passed(self, topic_partition: Partition, next_offset: int) -> None:
        """There is nothing wanted before `next_offset`."""
        self.ends[topic_partition] = next_offset

    def drop(self, topic_partition: Partition) -> None:
        """The partition is another's now: its records are not to be delivered here."""
        self.ends.pop(topic_partition, None)
        shown, size_bytes = self._shown.pop(topic_partition, ([], 0))
        self.count -= len(shown)
        self.size_bytes -= size_bytes
        self.is_full = self.is_full and self.count > 0

    def _take_entry(
        self, topic_partition: Partition, start: int, entry: Entry, taken: list[bytes], shown: Shown | None
    ) -> Generator[None, None, int]:
        for piece in record_batch.decode_in_pieces(entry.batch):
            if piece[0].offset > entry.base_offset:
                yield
            for record in piece:
                offset = record.offset
                if offset < start:
                    continue
                if shown is not None and offset >= shown.stop:
                    return offset
                headers = record.headers
                if self.tag_filter is not None and not self.tag_filter.wants(headers):
                    continue
                key, value = record.key, record.value
                size_bytes = len(key or b"") + len(value or b"")
                if headers:
                    size_bytes += sum(len(name.encode()) + len(content or b"") for name, content in headers)
                if shown is not None:
                    # A few bytes of a schema format may stand for many of JSON.
                    size_bytes = max(size_bytes, shown.sizes[offset])
                if self.count and self.size_bytes + size_bytes > self.bytes_max:
                    self.is_full = True
                    return offset
                item = self._item(topic_partition, record, entry, shown)
                if "error_code" in item and self._on_decode_error is not OnDecodeError.INLINE:
                    if self._on_decode_error is OnDecodeError.SKIP:
                        continue
                    if self.count:
                        self.is_full = True
                        return offset
                    raise _undecodable(topic_partition, offset, self._fmt)
                taken.append(orjson.dumps(item))
                self.count += 1
                self.size_bytes += size_bytes
                if self.count >= self._count_max:
                    self.is_full = True
                    return offset + 1
        return entry.next_offset

    def _item(
        self, topic_partition: Partition, record: record_batch.DecodedRecord, entry: Entry, shown: Shown | None
    ) -> dict[str, object]:
        topic, partition = topic_partition.topic, topic_partition.partition
        if isinstance(self._fmt, Format):
            return render_record(topic, partition, record, entry, self._fmt)
        assert shown is not None
        return render_record(topic, partition, record, entry, None, fields=shown.fields[record.offset])


def _undecodable(topic_partition: Partition, offset: int, fmt: AnyFormat) -> RequestError:
    return RequestError(
        UNDECODABLE,
        f"value deserialization error for format {fmt.value}: the record at offset {offset} of partition "
        f"{topic_partition.partition} of {topic_partition.topic} is not {fmt.value}. Seek behind it, read it with a "
        'binary instance, or create the instance with "on.decode.error": "inline" or "skip".',
        details={"topic": topic_partition.topic, "partition": topic_partition.partition, "offset": offset},
    )
