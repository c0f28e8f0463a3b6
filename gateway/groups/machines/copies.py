"""Copies of records that a group could not consume yet, or at all: what they carry, and where they came from.

    %RETRY%group   a record that waits longer than a moment: a delayed copy; consumed like any other when it is due
    %DLQ%group     a record that was rejected, or failed too often

Headers of a copy, all text; a copy of a copy keeps the first place:

    mq-origin-topic, mq-origin-partition, mq-origin-offset   the record it is a copy of
    mq-origin-deliver-at, mq-origin-schedule-id, mq-origin-schedule-key
                                                             what was written there if it came from the timer
    mq-origin-queue, mq-origin-queue-offset                  the light queue that it was received from, and where there
    mq-origin-keys                                           "raw", if that is how its topic has keys (store/topics.py)
    mq-attempts                                              deliveries so far
    mq-reason, mq-dead-lettered-at (epoch ms)                of a dead letter only

Key, value, timestamp, tag, message group and the sender's headers stay as they are.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import NamedTuple

from gateway.codec.tags import DELIVER_AT_HEADER, SCHEDULE_ID_HEADER, SCHEDULE_KEY_HEADER
from gateway.groups.machines.errors import IllegalRequest
from store.limits import TOPIC_NAME_BYTES_MAX
from store.record_batch import DecodedRecord, Headers, Record
from store.topics import RESERVED_PREFIXES, KeyForm, check_name

RETRY_PREFIX = "%RETRY%"
DEAD_LETTER_PREFIX = "%DLQ%"
GROUP_NAME_BYTES_MAX = TOPIC_NAME_BYTES_MAX - len(RETRY_PREFIX)
"""A group's own topics begin with a prefix and must still be names of topics."""

REASON_BYTES_MAX = 1024

ORIGIN_TOPIC = "mq-origin-topic"
ORIGIN_PARTITION = "mq-origin-partition"
ORIGIN_OFFSET = "mq-origin-offset"
ORIGIN_DELIVER_AT = "mq-origin-deliver-at"
ORIGIN_SCHEDULE_ID = "mq-origin-schedule-id"
ORIGIN_SCHEDULE_KEY = "mq-origin-schedule-key"
ORIGIN_KEYS = "mq-origin-keys"
ORIGIN_QUEUE = "mq-origin-queue"
ORIGIN_QUEUE_OFFSET = "mq-origin-queue-offset"
ATTEMPTS = "mq-attempts"
REASON = "mq-reason"
DEAD_LETTERED_AT = "mq-dead-lettered-at"

assert set(RESERVED_PREFIXES) >= {RETRY_PREFIX, DEAD_LETTER_PREFIX}

_OF_COPIES = frozenset(
    (ORIGIN_TOPIC, ORIGIN_PARTITION, ORIGIN_OFFSET, ORIGIN_DELIVER_AT, ORIGIN_SCHEDULE_ID, ORIGIN_SCHEDULE_KEY)
) | {ORIGIN_QUEUE, ORIGIN_QUEUE_OFFSET, ORIGIN_KEYS, ATTEMPTS, REASON, DEAD_LETTERED_AT}
_KEPT_AS = {
    DELIVER_AT_HEADER: ORIGIN_DELIVER_AT,
    SCHEDULE_ID_HEADER: ORIGIN_SCHEDULE_ID,
    SCHEDULE_KEY_HEADER: ORIGIN_SCHEDULE_KEY,  # a copy that waits takes the key of no schedule
}
_SHOWN_AS = {kept: shown for shown, kept in _KEPT_AS.items()}


class Origin(NamedTuple):
    """Where a record came from first, and how often it was delivered before. `raw_keys`: its topic's keys are.
    `queue`: the light queue it was received from, and its offset there."""

    topic: str
    partition: int
    offset: int
    attempts: int
    raw_keys: bool
    queue: str | None = None
    queue_offset: int | None = None

    @property
    def place(self) -> str:
        """What a consumer asks for to get it: the topic, or `topic/queue`."""
        return place_name(self.topic, self.queue)


@lru_cache(maxsize=4096)  # of names that may be: each receive and each ack asks twice
def check_group_name(group: str) -> None:
    """Raises IllegalRequest, or IllegalTopic, unless a group may have this name."""
    if len(group.encode()) > GROUP_NAME_BYTES_MAX:
        raise IllegalRequest(f"a group name has at most {GROUP_NAME_BYTES_MAX} bytes")
    check_name(group)


def place_name(topic: str, queue: str | None) -> str:
    """A topic, or a light queue of it: no topic's name has a slash."""
    return topic if queue is None else f"{topic}/{queue}"


def retry_topic(group: str) -> str:
    """The topic in which a group's records wait to be tried again."""
    return RETRY_PREFIX + group


def dead_letter_topic(group: str) -> str:
    """The topic of what a group gave up."""
    return DEAD_LETTER_PREFIX + group


def origin_of(headers: Headers) -> Origin | None:
    """Where a copy came from; None for a record that is no copy of ours."""
    found = {name: value for name, value in headers if name in _OF_COPIES and value is not None}
    try:
        return Origin(
            found[ORIGIN_TOPIC].decode(),
            int(found[ORIGIN_PARTITION]),
            int(found[ORIGIN_OFFSET]),
            int(found[ATTEMPTS]),
            found.get(ORIGIN_KEYS) == KeyForm.RAW.encode(),
            *((found[ORIGIN_QUEUE].decode(), int(found[ORIGIN_QUEUE_OFFSET])) if ORIGIN_QUEUE in found else ()),
        )
    except (KeyError, ValueError):
        return None


def shown_headers(headers: Headers) -> list[tuple[str, bytes | None]]:
    """The headers of a copy as its first record had them."""
    is_copy = any(name == ORIGIN_TOPIC for name, _ in headers)
    if not is_copy:
        return list(headers)
    shown: list[tuple[str, bytes | None]] = []
    for name, value in headers:
        if name in _SHOWN_AS:
            shown.append((_SHOWN_AS[name], value))
        elif name not in _OF_COPIES and name not in _KEPT_AS:
            shown.append((name, value))
    return shown


def retry_copy(record: DecodedRecord, origin: Origin) -> Record:
    """A copy to be tried again, `origin.attempts` deliveries after the first record was stored."""
    return _copy(record, origin, ())


def dead_letter(record: DecodedRecord, origin: Origin, *, reason: str, now_ms: int) -> Record:
    """A copy of what was given up, after `origin.attempts` deliveries."""
    words = reason.encode()[:REASON_BYTES_MAX].decode("utf-8", "ignore").encode()
    return _copy(record, origin, ((REASON, words), (DEAD_LETTERED_AT, b"%d" % now_ms)))


def _copy(record: DecodedRecord, origin: Origin, more: Sequence[tuple[str, bytes | None]]) -> Record:
    headers = [
        *((_KEPT_AS.get(name, name), value) for name, value in shown_headers(record.headers)),
        (ORIGIN_TOPIC, origin.topic.encode()),
        (ORIGIN_PARTITION, b"%d" % origin.partition),
        (ORIGIN_OFFSET, b"%d" % origin.offset),
        (ATTEMPTS, b"%d" % origin.attempts),
        *(
            ()
            if origin.queue is None
            else ((ORIGIN_QUEUE, origin.queue.encode()), (ORIGIN_QUEUE_OFFSET, b"%d" % (origin.queue_offset or 0)))
        ),
        *(((ORIGIN_KEYS, KeyForm.RAW.encode()),) if origin.raw_keys else ()),
        *more,
    ]
    return Record(record.key, record.value, record.timestamp, headers)
