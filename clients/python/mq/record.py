"""What is sent: one record, and how it goes on the wire. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import msgspec

from mq.errors import MqError
from mq.values import Duration, Instant, encode_headers, encode_json, epoch_ms, milliseconds


class Record(msgspec.Struct):
    """A record to be sent: `Record(value, key="u1", delay="15m")`. `value` and `key`: bytes, or anything JSON can say;
    a value of None is a tombstone. `delay` and `at` exclude each other."""

    value: Any
    key: Any = None
    partition: int | None = None
    headers: Mapping[str, str | bytes | None] | None = None
    tag: str | None = None
    timestamp: Instant | None = None
    """Event time; the server's time without it."""
    delay: Duration | None = None
    """Deliver so long after the server took it."""
    at: Instant | None = None
    """Deliver at this time; at once if it has passed."""
    msg_id: str | None = None
    """A second record of this id within the server's window (10 minutes) is not stored; its receipt is a duplicate."""
    schedule_key: str | None = None
    """Your name for the schedule of a delayed record, unique in its topic while it is pending."""
    message_group: str | None = None
    """Queues of a group with `fifo` deliver the messages of one message group one after the other."""
    queues: Sequence[str] | None = None
    """Light queues that it is in as well: inboxes, rooms."""


class Encoded(NamedTuple):
    """A record as it goes on the wire: a JSON object, and in a binary frame the key and value that follow the
    header."""

    text: bytes
    parts: tuple[bytes, ...]
    has_id: bool

    @property
    def size_bytes(self) -> int:
        """What it takes of a frame."""
        return len(self.text) + sum(map(len, self.parts))


class _Wire(msgspec.Struct, omit_defaults=True):
    """The protocol's names."""

    value: Any = None
    key: Any = None
    partition: int | None = None
    headers: list[dict[str, str | None]] | None = None
    tag: str | None = None
    timestamp: int | None = None
    delay_ms: int | None = None
    deliver_at: int | None = None
    msg_id: str | None = None
    schedule_key: str | None = None
    message_group: str | None = None
    queues: list[str] | None = None
    key_len: int | None = None
    value_len: int | None = None


BYTES = (bytes, bytearray, memoryview)


def encode_plain(value: object, key: object) -> Encoded:
    """A record of nothing but a value and a key, neither of them bytes: the usual one. Raises TypeError."""
    return Encoded(encode_json(_Wire(value, key)), (), False)


def encode(record: Record) -> Encoded:
    """Any record, as it is now: it may be changed afterwards. Raises MqError, TypeError."""
    value, key = record.value, record.key
    parts: tuple[bytes, ...] = ()
    wire = _Wire(
        partition=record.partition,
        headers=None if record.headers is None else encode_headers(record.headers),
        tag=record.tag,
        timestamp=None if record.timestamp is None else epoch_ms(record.timestamp, "timestamp"),
        delay_ms=None if record.delay is None else milliseconds(record.delay, "delay"),
        deliver_at=None if record.at is None else epoch_ms(record.at, "at"),
        msg_id=record.msg_id,
        schedule_key=record.schedule_key,
        message_group=record.message_group,
        queues=None if record.queues is None else list(record.queues),
    )
    if record.delay is not None and record.at is not None:
        raise MqError("delay and at exclude each other: say how long, or until when")
    if isinstance(record.queues, str):
        raise MqError(f"queues: must be a list of names, such as [{record.queues!r}]")
    if record.schedule_key is not None and record.delay is None and record.at is None:
        raise MqError("schedule_key names a delayed record: say delay or at too")
    if isinstance(value, BYTES) or isinstance(key, BYTES):
        if isinstance(key, BYTES):
            parts = (bytes(key),)
            wire.key_len = len(parts[0])
        else:
            wire.key = key
        if value is not None:
            body = bytes(value) if isinstance(value, BYTES) else encode_json(value)
            parts = (*parts, body)
            wire.value_len = len(body)
    else:
        wire.value, wire.key = value, key
    return Encoded(encode_json(wire), parts, record.msg_id is not None)
