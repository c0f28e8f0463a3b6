"""Records as JSON text without an object for each: what is read most.

    {"topic":"orders","key":"k","value":{"a":1},"partition":0,"offset":7,"timestamp":...,"store_timestamp":...}

Byte for byte what orjson makes of the objects of `render_records_in_steps`, in half the time: all records of an entry
whose keys and values are JSON are put as they are stored into one template. So are those that the timer has delivered:
the headers that it adds are two columns more. An entry with anything else in it (other headers, bytes that are no
JSON), and other formats, are rendered as objects.

What is at an offset never changes (C3), so the texts of a whole entry can be kept for the next reader (`TextCache`).
"""

from __future__ import annotations

import re
import string
from collections import OrderedDict
from collections.abc import Generator, Mapping, Sequence
from itertools import islice
from operator import attrgetter
from typing import NamedTuple, cast

import orjson

from gateway.codec.filters import TagFilter
from gateway.codec.message_ids import message_id_prefix
from gateway.codec.records import DUE_DIGITS_END, Format, are_shown_plainly, render_records_in_steps
from gateway.codec.tags import DELIVER_AT_HEADER, SCHEDULE_ID_HEADER
from store import record_batch
from store.types import Buffer, Entry, QueueKey

_HEADERS_OF = attrgetter("headers")
_KEY_OF = attrgetter("key")
_VALUE_OF = attrgetter("value")
_TIMESTAMP_OF = attrgetter("timestamp")
_ESCAPED = re.compile(rb'["\\\x00-\x1f]')  # what orjson does not copy from a string as it is
_USUAL = string.ascii_letters.encode() + b"0123456789-_.:/|#@ "  # a third of the time of a look for the others

KEPT_RECORDS_MIN = 16
"""Entries with fewer records are not kept: to render them costs little more than to find them."""

_LOOKED_AT = 256
"""Records that are decoded before the look whether they have headers, each of which takes as long as a record."""

_TEXTS_A_STEP = 256

_KEPT_BYTES = 600
"""What a kept text takes beside its bytes: its key, and its place in the table."""


class Texts(NamedTuple):
    """The JSON of records that follow each other, with one octet between each two."""

    data: bytes
    record_count: int

    @property
    def size(self) -> int:
        """Bytes of the records alone."""
        return len(self.data) - self.record_count + 1


class _Key(NamedTuple):
    """What the texts of a whole entry depend on. The queue and position are there because a name may get a new topic
    between the look at the route table and the read."""

    topic_id: int
    partition: int
    base_offset: int
    queue: QueueKey
    position: int
    raw_keys: bool
    has_ids: bool
    separator: bytes


class TextCache:
    """Texts of whole entries, at most `bytes_max` of them; the least recently used ones are let go first.

    It answers only who has just read the entry from the store, so what was deleted or has expired is not served from
    here, whatever is still kept of it.
    """

    def __init__(self, bytes_max: int) -> None:
        self._bytes_max = bytes_max
        self._kept: OrderedDict[_Key, Texts] = OrderedDict()
        self.held_bytes = 0

    def get(self, key: _Key) -> Texts | None:
        """What is kept under a key."""
        found = self._kept.get(key)
        if found is not None:
            self._kept.move_to_end(key)
        return found

    def keep(self, key: _Key, texts: Texts) -> None:
        """Keep the texts of an entry for which `get` had none."""
        size = len(texts.data) + _KEPT_BYTES
        if size > self._bytes_max:
            return
        self._kept[key] = texts
        self.held_bytes += size
        while self.held_bytes > self._bytes_max:
            _, oldest = self._kept.popitem(last=False)
            self.held_bytes -= len(oldest.data) + _KEPT_BYTES


def render_texts_in_steps(
    topic: str,
    partition: int,
    entries: Sequence[Entry],
    fmt: Format | None,
    *,
    separator: bytes,
    start: int,
    stop: int,
    topic_id: int,
    has_ids: bool,
    tag_filter: TagFilter | None = None,
    cache: TextCache | None = None,
) -> Generator[None, None, list[Texts]]:
    """As `render_records_in_steps`: the records as JSON without a line break in it. `separator` (one octet, no "%") is
    between those that are one `Texts`. `has_ids`: each has its `message_id`."""
    texts: list[Texts] = []
    for entry in entries:
        found = None
        if fmt is Format.JSON or fmt is None:
            found = _plain_texts(
                topic, partition, entry, start, stop,
                separator=separator, topic_id=topic_id, has_ids=has_ids, cache=cache,
            )  # fmt: skip
        if found is None:
            objects = yield from render_records_in_steps(
                topic, partition, (entry,), fmt,
                start=start, stop=stop, topic_id=topic_id if has_ids else None, tag_filter=tag_filter,
            )  # fmt: skip
            texts += yield from single_texts_in_steps(objects)
        elif tag_filter is None and found.record_count:  # tags are headers, and there are none
            texts.append(found)
    return texts


def lines_with_cursors(topic: str, partition: int, entry: Entry, start: int, stop: int) -> list[bytes] | None:
    """The records of an entry from one offset to before another, each as `render_records_in_steps` has it, and behind
    it its `cursor`: where one who has read it goes on. None where a look at each is needed, or would cost no more."""
    if entry.record_count < KEPT_RECORDS_MIN:
        return None
    texts = _made_texts(topic, partition, entry, start, stop, b"\n", None, has_cursors=True)
    return None if texts is None else texts.data.split(b"\n") if texts.record_count else []


def single_texts_in_steps(objects: Sequence[Mapping[str, object]]) -> Generator[None, None, list[Texts]]:
    """Rendered records as a text each."""
    texts: list[Texts] = []
    for at in range(0, len(objects), _TEXTS_A_STEP):
        if at:
            yield
        texts += [Texts(orjson.dumps(one), 1) for one in objects[at : at + _TEXTS_A_STEP]]
    return texts


def _plain_texts(
    topic: str,
    partition: int,
    entry: Entry,
    start: int,
    stop: int,
    *,
    separator: bytes,
    topic_id: int,
    has_ids: bool,
    cache: TextCache | None,
) -> Texts | None:
    """The texts of an entry; None when not all of its records are JSON without headers, or with those of the timer."""
    base = entry.base_offset
    if cache is None or entry.record_count < KEPT_RECORDS_MIN or start > base or stop < entry.next_offset:
        return _made_texts(topic, partition, entry, start, stop, separator, topic_id if has_ids else None)
    key = _Key(topic_id, partition, base, entry.queue, entry.position, entry.raw_keys, has_ids, separator)
    texts = cache.get(key)
    if texts is None:
        texts = _made_texts(topic, partition, entry, start, stop, separator, topic_id if has_ids else None)
        if texts is not None:
            cache.keep(key, texts)
    return texts


def _made_texts(
    topic: str,
    partition: int,
    entry: Entry,
    start: int,
    stop: int,
    separator: bytes,
    topic_id: int | None,
    *,
    has_cursors: bool = False,
) -> Texts | None:
    """As `_plain_texts`. One template for all records, and a column of it for each field that differs: a third of the
    time of a template for each."""
    base = entry.base_offset  # offsets of a batch are dense: what is behind `stop` need not be decoded
    first, end = max(start - base, 0), max(min(stop - base, entry.record_count), 0)
    count = end - first
    if count <= 0:
        return Texts(b"", 0)
    found = _columns(entry.batch, first, end) if 2 * count >= entry.record_count else None
    if found is None and (found := _decoded_columns(entry.batch, first, end)) is None:
        return None
    keys, values, times_ms, delayed = found
    if not are_shown_plainly(keys, values, json_values=entry.json_values, raw_keys=entry.raw_keys):
        return None
    quote = b""
    if entry.raw_keys:
        keys, quote = as_json_strings(keys)
    offsets = range(base + first, base + first + count)
    shown_topic = orjson.dumps(topic).replace(b"%", b"%%")
    is_same_time = times_ms[0] == times_ms[-1] and times_ms.count(times_ms[0]) == count

    def rendered(keys: Sequence[bytes | None], values: Sequence[bytes | None], quote: bytes) -> bytes:
        """Raises TypeError for a null."""
        is_keyless = not any(keys) and keys.count(None) == count
        head = b'{"topic":%b,"key":%b,"value":%%b,"partition":%d,"offset":%%d,'
        form = (head + b'"timestamp":%b,"store_timestamp":%d%b%b%b}') % (
            shown_topic,
            b"null" if is_keyless else b"%b%%b%b" % (quote, quote),
            partition,
            b"%d" % times_ms[0] if is_same_time else b"%d",
            entry.store_time_ms,
            b"" if topic_id is None
            else b',"message_id":"%b%%d"' % message_id_prefix(topic_id, partition).encode(),
            b"" if delayed is None else b',"deliver_at":%d,"schedule_id":"%b"',
            b',"cursor":%b:%d=%%d"' % (shown_topic[:-1], partition) if has_cursors else b"",
        )  # fmt: skip
        columns: list[Sequence[object]] = [] if is_keyless else [keys]
        columns += [values, offsets]
        if not is_same_time:
            columns.append(times_ms)
        if topic_id is not None:
            columns.append(offsets)
        if delayed is not None:
            columns += [delayed.dues_ms, delayed.ids]
        if has_cursors:
            columns.append(range(offsets.start + 1, offsets.stop + 1))
        return filled(form, columns, separator)

    try:
        return Texts(rendered(keys, values, quote), count)
    except TypeError:  # to look for nulls would take longer than to meet one
        shown_keys = [b"null" if key is None else b"%b%b%b" % (quote, key, quote) for key in keys]
        shown_values = [b"null" if value is None else value for value in values]
        return Texts(rendered(shown_keys, shown_values, b""), count)


class _Delayed(NamedTuple):
    """What the timer has added to records that it delivered."""

    dues_ms: Sequence[int]
    ids: Sequence[bytes]


class _Columns(NamedTuple):
    """Of records without headers, or with those alone that the timer adds."""

    keys: Sequence[bytes | None]
    values: Sequence[bytes | None]
    times_ms: Sequence[int]
    delayed: _Delayed | None


def _columns(batch: Buffer, first: int, end: int) -> _Columns | None:
    """Those of the records of these indexes, where they can be taken without the codec."""
    found = record_batch.alike_columns(batch)
    if found is None:
        return None
    keys, values, time_ms = found
    return _Columns(keys[first:end], values[first:end], [time_ms] * (end - first), None)


def _decoded_columns(batch: Buffer, first: int, end: int) -> _Columns | None:
    """The same of any batch; None when a record up to the last of them has other headers, or not all have them."""
    decoded = islice(record_batch.decode(batch), end)
    records: list[record_batch.DecodedRecord] = []
    dues_ms: list[int] = []
    ids: list[bytes] = []
    while some := list(islice(decoded, _LOOKED_AT)):
        headers = list(map(_HEADERS_OF, some))
        if any(headers):
            delayed = _delayed(headers)
            if delayed is None or len(ids) < len(records):
                return None
            dues_ms += delayed.dues_ms
            ids += delayed.ids
        elif ids:
            return None
        records += some
    del records[:first], dues_ms[:first], ids[:first]
    return _Columns(
        list(map(_KEY_OF, records)),
        list(map(_VALUE_OF, records)),
        list(map(_TIMESTAMP_OF, records)),
        _Delayed(dues_ms, ids) if ids else None,
    )


def _delayed(headers: Sequence[record_batch.Headers]) -> _Delayed | None:
    """What records say that have the timer's headers, in its order, and no others; None of any other."""
    try:
        found = [
            (due, schedule_id)
            for (first, due), (second, schedule_id) in headers
            if first == DELIVER_AT_HEADER and second == SCHEDULE_ID_HEADER
        ]
    except ValueError:
        return None
    if len(found) < len(headers):
        return None
    dues = [due for due, _ in found if due is not None and due.isdigit() and len(due) < DUE_DIGITS_END]
    ids = [schedule_id for _, schedule_id in found if schedule_id is not None]
    if not len(dues) == len(ids) == len(found) or b"".join(ids).translate(None, _USUAL):
        return None
    return _Delayed(list(map(int, dues)), ids)


def filled(form: bytes, columns: Sequence[Sequence[object]], separator: bytes) -> bytes:
    """A template filled with each row of columns, which are of one length, and what is between two of them. Raises
    TypeError for a null where it has `%b`."""
    count, width = len(columns[0]), len(columns)
    rows: list[object] = [None] * (width * count)
    for index, column in enumerate(columns):
        rows[index::width] = column
    return separator.join([form] * count) % tuple(rows)


def as_json_strings(keys: Sequence[bytes | None]) -> tuple[Sequence[bytes | None], bytes]:
    """Keys that are UTF-8 as JSON strings, and what is still to be put around each; None stays None."""
    present = b"".join(filter(None, keys))
    if present.translate(None, _USUAL) and _ESCAPED.search(present) is not None:
        if None not in keys and b"\\" not in present and b"\n" not in present:
            # One string for all: without a backslash in it, what a line break becomes is between two of them alone.
            return orjson.dumps(b"\n".join(cast(Sequence[bytes], keys)).decode())[1:-1].split(rb"\n"), b'"'
        # One call for all; no string has a line break in it, so those are between them.
        strings = orjson.dumps([None if key is None else key.decode() for key in keys], option=orjson.OPT_INDENT_2)
        return [None if one == b"null" else one for one in strings[len(b"[\n  ") : -len(b"\n]")].split(b",\n  ")], b""
    return keys, b'"'
