"""Batches of producers that number them: how a batch writer repeats its work without storing anything twice. Pure.

A producer has a name, and gives its batches for one queue rising numbers; gaps are allowed. For each (producer, queue)
the newest number counts: a batch with a higher one is new, any other was stored before. The last SEQUENCES_KEPT are
kept with their offsets, so a repeat of one of them is told where the original is; a lower number than theirs is taken
for stored, place unknown. A number that certainly was never used (between two kept ones, or below all when fewer are
kept) comes too late to keep its place, and is refused rather than taken for a repeat.

This outlives the window of ids by far: a job that stopped days ago goes on where it was. A producer that has sent
nothing to a queue for `expiry_ms` is forgotten; from then on its numbers count as new.

Invariants
    S1  a batch is stored only if its number is higher than every stored one of its producer and queue
    S2  `add` takes every entry, in the order of the log; the same entries give the same table, and an entry it knows
        changes nothing
"""

from __future__ import annotations

import struct
from itertools import takewhile
from typing import NamedTuple

from store.errors import SequenceGone, TooManyIds
from store.types import Entry, Original, ProducerSequence, QueueKey

SEQUENCES_KEPT = 5
"""Batches of one producer and queue that are remembered with their offsets."""

_ROW = struct.Struct(">16sIIB")
_SENT = struct.Struct(">qqqq")


class Sent(NamedTuple):
    """One stored batch of a producer."""

    sequence: int
    base_offset: int
    position: int
    store_time_ms: int


Table = dict[tuple[bytes, QueueKey], tuple[Sent, ...]]


class ProducerTable:
    """The newest batches of each producer and queue. `producers_max` bounds those pairs."""

    def __init__(self, *, expiry_ms: int, producers_max: int) -> None:
        self._expiry_ms = expiry_ms
        self._producers_max = producers_max
        self._sent: Table = {}  # the one used last is the last one

    def __len__(self) -> int:
        """Pairs of a producer and a queue."""
        return len(self._sent)

    def find(self, queue: QueueKey, producer: ProducerSequence, now_ms: int) -> Original | None:
        """The first record of a batch that was stored before; None when it is new. An offset of None: it is too old.

        Raises SequenceGone for a number that was passed over.
        """
        sent = self._alive(producer.producer_id, queue, now_ms)
        if not sent or producer.sequence > sent[-1].sequence:
            return None
        for kept in sent:
            if kept.sequence == producer.sequence:
                return Original(queue, kept.base_offset, kept.position, kept.store_time_ms)
        if producer.sequence > sent[0].sequence or len(sent) < SEQUENCES_KEPT:
            raise SequenceGone(
                f"sequence {producer.sequence} was not used before {sent[-1].sequence} was; numbers must rise"
            )
        return Original(queue, None, sent[0].position, sent[0].store_time_ms)

    def _alive(self, producer_id: bytes, queue: QueueKey, now_ms: int) -> tuple[Sent, ...]:
        sent = self._sent.get((producer_id, queue), ())
        return sent if sent and now_ms - sent[-1].store_time_ms <= self._expiry_ms else ()

    def check_room(self, queue: QueueKey, producer: ProducerSequence, now_ms: int) -> None:
        """Raises TooManyIds when this is a new producer and no more can be remembered now."""
        if len(self._sent) < self._producers_max or (producer.producer_id, queue) in self._sent:
            return
        self._prune(now_ms)
        if len(self._sent) >= self._producers_max:
            oldest_ms = next(iter(self._sent.values()))[-1].store_time_ms
            raise TooManyIds(
                f"{len(self._sent)} producers are remembered, as many as may be",
                max(1, oldest_ms + self._expiry_ms + 1 - now_ms),
            )

    def add(self, entry: Entry, producer: ProducerSequence) -> None:
        """Remember a stored batch."""
        key = (producer.producer_id, entry.queue)
        sent = self._sent.pop(key, ())
        if sent and entry.store_time_ms - sent[-1].store_time_ms > self._expiry_ms:
            sent = ()
        if not sent or producer.sequence > sent[-1].sequence:
            new = Sent(producer.sequence, entry.base_offset, entry.position, entry.store_time_ms)
            sent = (*sent[1 - SEQUENCES_KEPT :], new)
        self._sent[key] = sent

    def _prune(self, now_ms: int) -> None:
        oldest_ms = now_ms - self._expiry_ms
        for key, _ in list(takewhile(lambda item: item[1][-1].store_time_ms < oldest_ms, self._sent.items())):
            del self._sent[key]

    def copy(self) -> Table:
        """The table as it is now; later changes do not reach it."""
        return dict(self._sent)

    def restore(self, table: Table) -> None:
        """Replace the table."""
        self._sent = table


def encode_table(table: Table) -> bytes:
    """The table in order: `producer id 16 bytes, topic id u32, queue id u32, count u8`, then `count` batches of
    `sequence, base offset, position, store time`, all i64, the oldest first."""
    parts = []
    for (producer_id, queue), sent in table.items():
        parts.append(_ROW.pack(producer_id, *queue, len(sent)))
        parts += [_SENT.pack(*one) for one in sent]
    return b"".join(parts)


def decode_table(content: bytes) -> Table:
    """What `encode_table` gave."""
    table: Table = {}
    at = 0
    while at < len(content):
        producer_id, topic_id, queue_id, count = _ROW.unpack_from(content, at)
        at += _ROW.size
        end = at + count * _SENT.size
        table[producer_id, QueueKey(topic_id, queue_id)] = tuple(map(Sent._make, _SENT.iter_unpack(content[at:end])))
        at = end
    return table
