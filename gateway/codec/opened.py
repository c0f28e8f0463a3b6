"""The records of a raw batch one by one, for what is decided of each: delays, light queues. Pure.

Headers with a meaning of ours become fields of the record: `mq-tag`, `mq-group`, `mq-schedule-key`; and where a client
may ask for them by header (`HEADER_DELAYS`, `HEADER_QUEUES`):

    mq-queues        light queues that it is in as well: a JSON array of names
    mq-delay-ms      so many milliseconds from now, in ASCII digits
    mq-deliver-at    epoch milliseconds in ASCII digits, or an RFC 3339 time
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import suppress
from operator import attrgetter

import orjson

from gateway.codec.records import ProduceRecord, parse_light_names
from gateway.codec.tags import (
    DELAY_HEADER,
    DELIVER_AT_HEADER,
    MESSAGE_GROUP_HEADER,
    QUEUES_HEADER,
    SCHEDULE_KEY_HEADER,
    TAG_HEADER,
    check_sent,
)
from gateway.codec.times import parse_time_ms
from gateway.errors import DELAY_ILLEGAL, RequestError
from store import record_batch
from store.types import Buffer

_PARTS = attrgetter("key", "value", "headers", "timestamp")
_DIGITS_MAX = 18


def opened(batch: Buffer, *, allowed: frozenset[str]) -> Iterator[ProduceRecord]:
    """The records of a batch that passed `record_batch.check`; `allowed`: the headers of ours that they may have.
    Raises RequestError for another one, and for a delay that is none."""
    for index, (key, value, headers, timestamp_ms) in enumerate(map(_PARTS, record_batch.decode(batch))):
        tag = group = schedule_key = delay_ms = deliver_at_ms = queues = None
        if headers:
            check_sent(headers, allowed)
            tag, headers = _taken(TAG_HEADER, headers)
            group, headers = _taken(MESSAGE_GROUP_HEADER, headers)
            schedule_key, headers = _taken(SCHEDULE_KEY_HEADER, headers)
            delay_ms, deliver_at_ms, headers = _delay_taken(headers, index)
            queues, headers = _queues_taken(headers)
        yield ProduceRecord(
            key, value, list(headers), None if timestamp_ms < 0 else timestamp_ms, None, tag, delay_ms, deliver_at_ms,
            None, group, schedule_key, queues,
        )  # fmt: skip


def _taken(name: str, headers: record_batch.Headers) -> tuple[str | None, record_batch.Headers]:
    """The text of one of our own headers, and the others; None, and all of them, when it is not there as text."""
    for index, (own, value) in enumerate(headers):
        if own == name and value is not None:
            with suppress(UnicodeDecodeError):
                return value.decode(), [*headers[:index], *headers[index + 1 :]]
    return None, headers


def _delay_taken(headers: record_batch.Headers, index: int) -> tuple[int | None, int | None, record_batch.Headers]:
    """The delay and the time of delivery that headers ask for, at most one of them, and the other headers."""
    asked = [(name, value) for name, value in headers if name in (DELAY_HEADER, DELIVER_AT_HEADER)]
    if not asked:
        return None, None, headers
    if len(asked) > 1:
        raise _illegal(index, f"{DELAY_HEADER}, {DELIVER_AT_HEADER}: give one of them, once")
    [(name, value)] = asked
    text = (value or b"").decode("ascii", "replace")
    others = [header for header in headers if header[0] != name]
    number = int(text) if text.isascii() and text.isdigit() and len(text) <= _DIGITS_MAX else None
    if name == DELAY_HEADER:
        if number is None:
            raise _illegal(index, f"{name}: must be milliseconds in ASCII digits")
        return number, None, others
    try:
        return None, parse_time_ms(text if number is None else number), others
    except ValueError as error:
        raise _illegal(index, f"{name}: {error}") from error


def _queues_taken(headers: record_batch.Headers) -> tuple[Sequence[bytes] | None, record_batch.Headers]:
    """The light queues that a header names, and the other headers. Raises RequestError."""
    asked = [value for name, value in headers if name == QUEUES_HEADER]
    if not asked:
        return None, headers
    names: object = None
    if len(asked) == 1:
        with suppress(orjson.JSONDecodeError):
            names = orjson.loads(asked[0] or b"")
    return parse_light_names(names), [header for header in headers if header[0] != QUEUES_HEADER]


def _illegal(index: int, rule: str) -> RequestError:
    return RequestError(DELAY_ILLEGAL, f"record {index}: headers: {rule}")
