"""Ranges of partitions as they go into frames, encoded once for all sockets that follow them.

What is at an offset never changes (C3), so an encoded range is good for every reader that stands at its first offset
and wants the same form, filter and size. A thousand followers of one partition share one read and one encoding; what is
their own (name, number, credit) is put around it by the frame.

    range of 3 messages     body  {..},{..},{..}     marks: where each message ends in the body
                            a client with credit for 2 gets body[:marks[1]]

Invariants
    E1  a range has at least one message, or is the empty stretch that a filter left
    E2  the cache holds at most CACHE_BYTES_MAX; what a client's credit cut short is not kept
"""

from __future__ import annotations

import asyncio
from bisect import bisect_right
from collections import OrderedDict
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from operator import add
from typing import NamedTuple

import orjson

from gateway.api.read import Consumer, Fetched
from gateway.api.turns import COUNTED_BYTES, in_turns
from gateway.codec.filters import TagFilter
from gateway.codec.records import STEP_ITEMS, add_headers, render_records_in_steps, split_lines
from gateway.codec.texts import lines_with_cursors
from gateway.surfaces.ws.commands import Form
from gateway.surfaces.ws.protocol import FRAME_BYTES_TARGET
from store import record_batch
from store.types import Entry, ReadStatus

FETCH_BYTES = 256 * 1024
"""Of one read; at least one whole entry, which may be larger."""

BATCH_FRAME_BYTES = 1024 * 1024
"""RecordBatches of one frame; at least one."""

RENDER_COUNT_MAX = 1024
"""Messages rendered at a time (about 4 ms of work): an entry may hold 100,000 records."""

RENDERS_A_READ_MAX = 2
"""Of one read, one after the other: enough for all small records of FETCH_BYTES, which are not read again then."""

CACHE_BYTES_MAX = 16 * 1024 * 1024
"""Frames are kept for readers who follow close behind others: a server with a single reader uses none of them."""


@dataclass(frozen=True, slots=True)
class Wanted:
    """What a subscription's frames are made of. Subscriptions that want the same share ranges."""

    form: Form
    batch: int
    filter: TagFilter | None = None
    queues_begin: bytes | None = None
    """Only records in light queues whose names begin so."""

    _hash: int = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "_hash", hash((self.form, self.batch, self.filter, self.queues_begin)))

    def __hash__(self) -> int:  # of every key that is looked up
        return self._hash

    @property
    def is_all(self) -> bool:
        """Whether every record is wanted."""
        return self.filter is None and self.queues_begin is None


class EncodedRange(NamedTuple):
    """Offsets [start, stop) of a partition, encoded.

    `ends[i]` is the offset behind message i, `marks[i]` where it ends in `body`. Binary: `payload` and `payload_marks`
    likewise. Whole batches: the body is empty, the payload the batches, and there is one mark a batch.
    """

    start: int
    stop: int
    ends: Sequence[int]
    body: bytes
    marks: Sequence[int]
    payload: bytes
    payload_marks: Sequence[int]

    def size_bytes(self, count: int) -> int:
        """What the first `count` messages cost of the byte credit."""
        if not count:
            return 0
        return self.payload_marks[count - 1] if self.payload_marks else self.marks[count - 1] - (count - 1)

    def count_within(self, count_max: int, bytes_max: int | None) -> int:
        """How many messages fit; at least the first, if any may go."""
        count = min(len(self.ends), count_max)
        if bytes_max is not None:
            while count > 1 and self.size_bytes(count) > bytes_max:
                count -= 1
        return count


class Portion(NamedTuple):
    """What was read from one offset on: ranges that follow each other, and the partition's end if it was looked at. The
    offset may be beyond that end: a group may commit an offset that no record has yet."""

    ranges: Sequence[EncodedRange]
    end: int | None


class OutOfRange(Exception):
    """Retention has passed the offset."""

    def __init__(self, fetched: Fetched) -> None:
        super().__init__(f"not within {fetched.min_offset} to {fetched.max_offset}")
        self.bounds = fetched.min_offset, fetched.max_offset


class TopicGone(Exception):
    """The topic of that name is another one now."""


_Key = tuple[int, int, int, Wanted]


class FrameCache:
    """Reads and encodes for all sockets of a server."""

    def __init__(
        self, consumer: Consumer, topic_id_of: Callable[[str], int], cache_bytes_max: int = CACHE_BYTES_MAX
    ) -> None:
        """`topic_id_of` raises UnknownQueue for a name that no topic has."""
        self._consumer = consumer
        self._topic_id_of = topic_id_of
        self._bytes_max = cache_bytes_max
        self._bytes = 0
        self._cache: OrderedDict[_Key, EncodedRange] = OrderedDict()
        self._reading: dict[_Key, asyncio.Event | None] = {}  # None: nobody else waits for it

    async def read(
        self, topic: str, topic_id: int, partition: int, offset: int, wanted: Wanted, *, count_max: int
    ) -> Portion:
        """What follows from `offset` on. `count_max`: messages the client may be sent, where that is less than a frame.

        Raises OutOfRange, TopicGone, or what fetch raises.
        """
        is_shared = count_max >= wanted.batch or wanted.form is Form.BATCH
        key = topic_id, partition, offset, wanted
        while True:
            if (found := self.kept(*key)) is not None:
                return found
            if not is_shared or key not in self._reading:
                break
            done = self._reading[key] = self._reading[key] or asyncio.Event()
            await done.wait()  # another reader is reading it now
        if is_shared:
            self._reading[key] = None
        try:
            fetched = await self._consumer.fetch(
                topic,
                partition,
                offset,
                max_bytes=BATCH_FRAME_BYTES if wanted.form is Form.BATCH else FETCH_BYTES,
                tag_hashes=None if wanted.filter is None else wanted.filter.hashes,
            )
            if self._topic_id_of(topic) != topic_id:  # names come again, ids do not: so it was, too, when we read
                raise TopicGone(topic)
            if fetched.status is ReadStatus.TOO_SMALL:
                raise OutOfRange(fetched)
            if fetched.status is ReadStatus.TOO_LARGE:
                return Portion((), fetched.max_offset)
            if fetched.entries and fetched.entries[0].base_offset > offset and wanted.is_all:
                # A takeover has left a gap: it is as empty as what a filter leaves.
                return Portion((gap(offset, fetched.entries[0].base_offset),), fetched.max_offset)
            ranges = await _frame_cache(topic, partition, offset, fetched, wanted, min(RENDER_COUNT_MAX, count_max))
            if is_shared:
                for _ in range(1, RENDERS_A_READ_MAX):
                    if not ranges or ranges[-1].stop >= fetched.next_offset:
                        break
                    await asyncio.sleep(0)
                    ranges += await _frame_cache(topic, partition, ranges[-1].stop, fetched, wanted, RENDER_COUNT_MAX)
                for made in ranges:
                    self._keep((topic_id, partition, made.start, wanted), made)
            return Portion(ranges, fetched.max_offset)
        finally:
            if is_shared and (awaited := self._reading.pop(key)) is not None:
                awaited.set()

    def kept(self, topic_id: int, partition: int, offset: int, wanted: Wanted) -> Portion | None:
        """The same without a read; None: there must be one."""
        key = topic_id, partition, offset, wanted
        found = self._cache.get(key)
        if found is None:
            return None
        self._cache.move_to_end(key)
        return Portion((found,), None)

    def _keep(self, key: _Key, made: EncodedRange) -> None:
        if key in self._cache:
            self._bytes -= _memory_bytes(self._cache.pop(key))
        self._cache[key] = made
        self._bytes += _memory_bytes(made)
        while self._bytes > self._bytes_max:
            _, oldest = self._cache.popitem(last=False)
            self._bytes -= _memory_bytes(oldest)


_MARK_BYTES = 40  # of one integer in a list
_RANGE_BYTES = 500


def _memory_bytes(made: EncodedRange) -> int:
    mark_count = len(made.ends) + len(made.marks) + len(made.payload_marks)
    return _RANGE_BYTES + len(made.body) + len(made.payload) + _MARK_BYTES * mark_count


async def _frame_cache(
    topic: str, partition: int, offset: int, fetched: Fetched, wanted: Wanted, count_max: int
) -> list[EncodedRange]:
    """Encode what was fetched, from `offset` on, in ranges of at most a frame."""
    if wanted.form is Form.BATCH:
        return [_whole(offset, fetched.entries)] if fetched.entries else []
    stop = offset + count_max if wanted.is_all else fetched.next_offset
    entries = [entry for entry in fetched.entries if entry.next_offset > offset and entry.base_offset < stop]
    is_counted = not (  # one small record takes less than the rest of its push
        len(entries) == 1 and entries[0].record_count == 1 and len(entries[0].batch) < COUNTED_BYTES
    )
    stop = min(stop, fetched.next_offset)
    if wanted.form is Form.JSON and wanted.is_all:
        if not is_counted:
            steps = render_records_in_steps(topic, partition, entries, None, start=offset, stop=stop)
            (message,) = record_batch.at_once(steps)
            assert message["offset"] == offset, f"{topic}:{partition}={offset} is missing"
            message["cursor"] = f"{topic}:{partition}={stop}"
            return [one_message(offset, message, None)]
        lines, ends = await in_turns(_render_all(topic, partition, entries, offset, stop), is_counted=True)
        assert not entries or (ends and ends[0] == offset + 1), f"{topic}:{partition}={offset} is missing"
        return cut_in_ranges(offset, stop, ends, lines, None, wanted.batch)
    if wanted.queues_begin is not None:
        messages, payloads = await in_turns(
            _render_queues(topic, partition, entries, offset, stop, wanted), is_counted=is_counted
        )
    elif wanted.form is Form.JSON:
        messages = await in_turns(
            render_records_in_steps(topic, partition, entries, None, start=offset, stop=stop, tag_filter=wanted.filter),
            is_counted=is_counted,
        )
        payloads = None
    else:
        messages, payloads = await in_turns(
            _render_binary(topic, partition, entries, offset, stop, wanted.filter), is_counted=is_counted
        )
    if len(messages) > count_max:  # of a filtered stretch: the rest is read again
        del messages[count_max:]
        stop = _offset_of(messages[-1]) + 1
    ends = _with_cursors(topic, partition, messages)
    if wanted.is_all:
        assert not entries or (ends and ends[0] == offset + 1), f"{topic}:{partition}={offset} is missing"
    return cut_in_ranges(offset, stop, ends, split_lines(messages), payloads, wanted.batch)


def _with_cursors(topic: str, partition: int, messages: Sequence[dict[str, object]]) -> list[int]:
    """Give messages their cursors; the offsets behind them."""
    prefix = f"{topic}:{partition}="
    ends = [_offset_of(message) + 1 for message in messages]
    for message, end in zip(messages, ends, strict=True):
        message["cursor"] = f"{prefix}{end}"
    return ends


def _render_all(
    topic: str, partition: int, entries: Sequence[Entry], start: int, stop: int
) -> Generator[None, None, tuple[list[bytes], list[int]]]:
    """All records from one offset to before another as JSON, and the offset behind each; in steps as
    `render_records_in_steps`, which renders what cannot be written as text at once."""
    lines: list[bytes] = []
    ends: list[int] = []
    others: list[Entry] = []
    for entry in (*entries, None):
        own = None if entry is None else lines_with_cursors(topic, partition, entry, start, stop)
        if entry is not None and own is None:
            others.append(entry)
            continue
        if others:
            messages = yield from render_records_in_steps(topic, partition, others, None, start=start, stop=stop)
            ends += _with_cursors(topic, partition, messages)
            lines += split_lines(messages)
            others = []
            if entry is not None:
                yield
        if entry is not None and own:
            first = max(entry.base_offset, start) + 1
            ends += range(first, first + len(own))
            lines += own
    return lines, ends


def _offset_of(message: dict[str, object]) -> int:
    offset = message["offset"]
    assert isinstance(offset, int)
    return offset


def gap(start: int, stop: int) -> EncodedRange:
    """A stretch without a message."""
    return EncodedRange(start, stop, (), b"", (), b"", ())


def one_message(offset: int, message: dict[str, object], payload: bytes | None) -> EncodedRange:
    """What `cut_in_ranges` makes of a single message."""
    body = orjson.dumps(message)
    marks = [len(body)]
    if payload is None:
        return EncodedRange(offset, offset + 1, [offset + 1], body, marks, b"", [])
    return EncodedRange(offset, offset + 1, [offset + 1], body, marks, payload, [len(payload)])


def cut_in_ranges(
    start: int, stop: int, ends: list[int], messages: list[bytes], payloads: list[bytes] | None, batch: int
) -> list[EncodedRange]:
    """Ranges of at most `batch` messages and about FRAME_BYTES_TARGET; the last one reaches to `stop`."""
    ranges: list[EncodedRange] = []
    first = 0
    while first < len(messages):
        some = slice(first, first + batch)
        marks = [end + commas for commas, end in enumerate(accumulate(map(len, messages[some])))]
        payload_marks = [] if payloads is None else list(accumulate(map(len, payloads[some])))
        sizes = marks if payloads is None else list(map(add, marks, payload_marks))
        count = max(1, bisect_right(sizes, FRAME_BYTES_TARGET))
        del marks[count:], payload_marks[count:]
        at = first + count
        end = stop if at == len(messages) else ends[at - 1]
        ranges.append(
            EncodedRange(
                start,
                end,
                ends[first:at],
                b",".join(messages[first:at]),
                marks,
                b"" if payloads is None else b"".join(payloads[first:at]),
                payload_marks,
            )
        )
        start = end
        first = at
    if not ranges and stop > start:
        ranges.append(gap(start, stop))
    return ranges


def _whole(offset: int, entries: Sequence[Entry]) -> EncodedRange:
    marks: list[int] = []
    position = 0
    for entry in entries:
        position += len(entry.batch)
        marks.append(position)
    ends = [entry.next_offset for entry in entries]
    return EncodedRange(offset, ends[-1], ends, b"", (), b"".join([entry.batch for entry in entries]), marks)


def _render_queues(
    topic: str, partition: int, entries: Sequence[Entry], start: int, stop: int, wanted: Wanted
) -> Generator[None, None, tuple[list[dict[str, object]], list[bytes] | None]]:
    """The records in light queues whose names begin as wanted, each with those names; in binary, their payloads."""
    begin = wanted.queues_begin
    assert begin is not None
    messages: list[dict[str, object]] = []
    payloads: list[bytes] = []
    is_json = wanted.form is Form.JSON
    for entry in entries:
        if entry.light is None or not any(name.startswith(begin) for name in entry.light.names):
            continue
        names_of = entry.light.of_records()
        shown: Sequence[dict[str, object]]
        bodies: Sequence[bytes] = ()
        if is_json:
            shown = yield from render_records_in_steps(
                topic, partition, (entry,), None, start=start, stop=stop, tag_filter=wanted.filter
            )
        else:
            shown, bodies = yield from _render_binary(topic, partition, (entry,), start, stop, wanted.filter)
        for number, message in enumerate(shown):
            names = names_of[_offset_of(message) - entry.base_offset]
            matching = [name.decode() for name in names if name.startswith(begin)]
            if matching:
                message["queues"] = matching
                messages.append(message)
                if not is_json:
                    payloads.append(bodies[number])
    return messages, None if is_json else payloads


def _render_binary(
    topic: str, partition: int, entries: Sequence[Entry], start: int, stop: int, tag_filter: TagFilter | None
) -> Generator[None, None, tuple[list[dict[str, object]], list[bytes]]]:
    """Records as headers of a binary frame, and the bytes of key and value of each; in steps as
    `render_records_in_steps`."""
    messages: list[dict[str, object]] = []
    payloads: list[bytes] = []
    left_items = STEP_ITEMS
    for entry in entries:
        for record in record_batch.decode(entry.batch):
            if record.offset >= stop:
                break
            headers = record.headers
            left_items -= 1 + len(headers)
            if left_items <= 0:
                left_items = STEP_ITEMS
                yield
            if record.offset < start or (tag_filter is not None and not tag_filter.wants(headers)):
                continue
            message, payload = binary_message(topic, partition, record, entry)
            payloads.append(payload)
            messages.append(message)
    return messages, payloads


def binary_message(
    topic: str, partition: int, record: record_batch.DecodedRecord, entry: Entry
) -> tuple[dict[str, object], bytes]:
    """A record as the header of a binary frame has it, and the bytes of its key and value."""
    message: dict[str, object] = {
        "topic": topic,
        "partition": partition,
        "offset": record.offset,
        "timestamp": record.timestamp,
        "store_timestamp": entry.store_time_ms,
    }
    payload = binary_parts(message, record.key, record.value, raw_key=entry.raw_keys)
    if headers := record.headers:
        add_headers(message, headers)
    return message, payload


def binary_parts(message: dict[str, object], key: bytes | None, value: bytes | None, *, raw_key: bool) -> bytes:
    """Put the lengths of key and value into a message of a binary frame, and whether the key is a raw one; their
    bytes."""
    message["key_len"] = None if key is None else len(key)
    if raw_key and key is not None:
        message["raw_key"] = True
    message["value_len"] = None if value is None else len(value)
    return (key or b"") + (value or b"")
