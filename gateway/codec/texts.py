"""Records as JSON text, one text a record, without an object for each: what is read most.

    {"topic":"orders","key":"k","value":{"a":1},"partition":0,"offset":7,"timestamp":...,"store_timestamp":...}

Byte for byte what orjson makes of the objects of `render_records`, in half the time: keys and values that are JSON are
put as they are stored into a template of their entry. An entry with anything else in it (headers, bytes that are no
JSON), and other formats, are rendered as objects.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from itertools import islice
from operator import attrgetter

import orjson

from gateway.codec.filters import TagFilter
from gateway.codec.message_ids import message_id_prefix
from gateway.codec.records import Format, are_shown_plainly, render_records
from store import record_batch
from store.types import Entry

_HEADERS_OF = attrgetter("headers")
_ESCAPED = re.compile(rb'["\\\x00-\x1f]')  # what orjson does not copy from a string as it is


def render_texts(
    topic: str,
    partition: int,
    entries: Sequence[Entry],
    fmt: Format | None,
    *,
    start: int,
    stop: int,
    topic_id: int | None = None,
    tag_filter: TagFilter | None = None,
) -> list[bytes]:
    """As `render_records`; each record as JSON without a line break in it."""
    texts: list[bytes] = []
    for entry in entries:
        found = None
        if fmt is Format.JSON or fmt is None:
            found = _plain_texts(topic, partition, entry, start, stop, topic_id)
        if found is None:
            objects = render_records(
                topic, partition, (entry,), fmt, start=start, stop=stop, topic_id=topic_id, tag_filter=tag_filter
            )
            found = list(map(orjson.dumps, objects))
        elif tag_filter is not None:
            continue  # tags are headers, and there are none
        texts += found
    return texts


def _plain_texts(
    topic: str, partition: int, entry: Entry, start: int, stop: int, topic_id: int | None
) -> list[bytes] | None:
    """The texts of an entry; None when not all of its records are JSON without headers."""
    base = entry.base_offset  # offsets of a batch are dense: what is behind `stop` need not be decoded
    records = list(islice(record_batch.decode(entry.batch), max(start - base, 0), max(stop - base, 0)))
    if any(map(_HEADERS_OF, records)):
        return None
    keys = [record.key for record in records]
    values = [record.value for record in records]
    if not are_shown_plainly(keys, values, json_values=entry.json_values, raw_keys=entry.raw_keys):
        return None
    shown_keys: Sequence[bytes | None] = _as_json_strings(keys) if entry.raw_keys else keys
    before = b'{"topic":%b,"key":' % orjson.dumps(topic).replace(b"%", b"%%")
    between = b'"partition":%d,"offset":' % partition
    after = b'"store_timestamp":%d' % entry.store_time_ms
    null = b"null"
    if topic_id is None:
        form = b'%b%%b,"value":%%b,%b%%d,"timestamp":%%d,%b}' % (before, between, after)
        return [
            form % (null if key is None else key, null if value is None else value, record.offset, record.timestamp)
            for record, key, value in zip(records, shown_keys, values, strict=True)
        ]
    prefix = message_id_prefix(topic_id, partition).encode()
    form = b'%b%%b,"value":%%b,%b%%d,"timestamp":%%d,%b,"message_id":"%b%%d"}' % (before, between, after, prefix)
    return [
        form % (null if key is None else key, null if value is None else value, offset, record.timestamp, offset)
        for record, key, value in zip(records, shown_keys, values, strict=True)
        for offset in (record.offset,)
    ]


def _as_json_strings(keys: Sequence[bytes | None]) -> list[bytes]:
    """Keys that are UTF-8 as JSON strings, or null."""
    if _ESCAPED.search(b" ".join(filter(None, keys))) is None:
        return [b"null" if key is None else b'"%b"' % key for key in keys]
    # One call for all; no string has a line break in it, so those are between them.
    strings = orjson.dumps([None if key is None else key.decode() for key in keys], option=orjson.OPT_INDENT_2)
    return strings[len(b"[\n  ") : -len(b"\n]")].split(b",\n  ")
