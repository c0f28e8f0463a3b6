"""Cursors: how far a reader has come in all its partitions, as one short text that it can keep and send back.

    orders@16:0=101;orders:1=88;payments@17:0=5

Each part is `topic:partition=next offset`. The first part of a topic names its epoch, so that a cursor from before
the topic was deleted and made again is noticed, and not taken for an offset of the new one; epochs may be left out.
The JSON form of Wikimedia's KafkaSSE is read too: `[{"topic": "orders", "partition": 0, "offset": 101}, ...]`.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, field

import orjson

from gateway.errors import CURSOR_ILLEGAL, RequestError
from store.types import OFFSET_MAX

_CURSOR_PART = re.compile(r"([A-Za-z0-9._%-]{1,249})(?:@([0-9]{1,10}))?:([0-9]{1,9})=([0-9]{1,19})", re.ASCII)


@dataclass(slots=True)
class Cursor:
    """Next offsets by topic and partition, and the epochs of the topics that the cursor names them for."""

    offsets: dict[str, dict[int, int]] = field(default_factory=dict)
    epochs: dict[str, str] = field(default_factory=dict)


def write_cursor(next_offsets: Iterable[tuple[str, int, int]], epochs: dict[str, str]) -> str:
    """The cursor of (topic, partition, next offset) triples; `epochs` by topic."""
    named: set[str] = set()
    parts = []
    for topic, partition, offset in next_offsets:
        epoch = epochs.get(topic)
        if epoch is None or topic in named:
            parts.append(f"{topic}:{partition}={offset}")
        else:
            parts.append(f"{topic}@{epoch}:{partition}={offset}")
            named.add(topic)
    return ";".join(parts)


def parse_cursor(text: str) -> Cursor:
    """Read a cursor in either form. Raises RequestError 400/40050."""
    cursor = Cursor()
    if text.lstrip().startswith("["):
        for topic, epoch, partition, offset in _next_offsets_of_json(text):
            _add(cursor, topic, epoch, partition, offset)
        return cursor
    for part in text.split(";"):
        match = _CURSOR_PART.fullmatch(part.strip())
        if match is None:
            raise _illegal()
        _add(cursor, match[1], match[2], int(match[3]), int(match[4]))
    return cursor


def _next_offsets_of_json(text: str) -> Iterable[tuple[str, str | None, int, int]]:
    try:
        next_offsets = orjson.loads(text)
    except orjson.JSONDecodeError:
        raise _illegal() from None
    for item in next_offsets:
        if not isinstance(item, dict):
            raise _illegal()
        topic, partition, offset = item.get("topic"), item.get("partition"), item.get("offset")
        if not (isinstance(topic, str) and partition.__class__ is int and offset.__class__ is int):
            raise _illegal()
        if not (0 <= partition < 10**9 and 0 <= offset <= OFFSET_MAX):
            raise _illegal()
        yield topic, None, partition, offset


def _add(cursor: Cursor, topic: str, epoch: str | None, partition: int, offset: int) -> None:
    offsets = cursor.offsets.setdefault(topic, {})
    if partition in offsets or offset > OFFSET_MAX or (cursor.epochs.get(topic, epoch) not in (epoch, None) and epoch):
        raise _illegal()
    offsets[partition] = offset
    if epoch is not None:
        cursor.epochs[topic] = epoch


def _illegal() -> RequestError:
    return RequestError(
        CURSOR_ILLEGAL,
        "The cursor is not of the form topic@epoch:partition=offset;..., with each partition once.",
    )
