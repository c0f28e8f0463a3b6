"""Batches of producers that number them: how a batch writer repeats its work without storing anything twice. Pure.

A producer has a name, and gives its batches for one queue rising numbers; gaps are allowed. For each (producer, queue)
the newest number counts: a batch with a higher one is new, any other was stored before. The last SEQUENCES_KEPT are
kept with their offsets, so a repeat of one of them is told where the original is; a lower number than theirs is taken
for stored, place unknown. A number that certainly was never used (between two kept ones, or below all when fewer are
kept) comes too late to keep its place, and is refused rather than taken for a repeat.

This outlives the window of ids by far: a job that stopped days ago goes on where it was. A producer that has sent
nothing to a queue for `expiry_ms` is forgotten; from then on its numbers count as new.

Producers of Kafka's protocol number records, not batches, and leave no gap (`RecordNumbers`). The number of such a
batch is made of its epoch (15 bits) and the number of its last record (31 bits), between them 17 bits that count how
often the latter has begun anew; so numbers rise, and the rules above hold (`batch_number`):

    epoch 0, records 0 to 9                          0<<48 |       9
    epoch 0, records 2,147,483,640 to 2,147,483,647  0<<48 | 2^31 - 1
    epoch 0, records 0 to 4                          0<<48 |     1<<31 | 4
    epoch 1, records 0 to 4                          1<<48 |       4

Invariants
    S1  a batch is stored only if its number is higher than every stored one of its producer and queue
    S2  `add` takes every entry, in the order of the log; the same entries give the same table, and an entry it knows
        changes nothing
    S3  `copy`, which is saved, has no batch that a power cut may take: repeated after it, the batch would be taken for
        stored. Such batches are kept apart until `confirm` says that the log is durable behind them
"""

from __future__ import annotations

import struct
from bisect import bisect_left
from collections.abc import Iterable
from itertools import takewhile
from operator import attrgetter
from typing import NamedTuple

from store.errors import ProducerFenced, SequenceGap, SequenceGone, TooManyIds
from store.topics import partition_of
from store.types import OFFSET_MAX, Original, ProducerSequence, QueueKey, RecordNumbers

SEQUENCES_KEPT = 5
"""Batches of one producer and queue that are remembered with their offsets."""

_ROW = struct.Struct(">16sIIB")
_SENT = struct.Struct(">qqqq")


_EPOCH_SHIFT = 48
_NUMBER_MAX = 2**31 - 1


def batch_number(numbers: RecordNumbers, newest: int | None) -> int:
    """The number of a batch whose producer's last batch for the queue has the number `newest`; None: it has none.

    A number up to `newest` is of a repeat. Raises SequenceGap, ProducerFenced.
    """
    _, epoch, first, count = numbers
    last = (first + count - 1) & _NUMBER_MAX
    if newest is None:  # unknown, or forgotten: a producer may begin anywhere
        return epoch << _EPOCH_SHIFT | last
    newest_epoch = newest >> _EPOCH_SHIFT
    if epoch < newest_epoch:
        raise ProducerFenced(f"epoch {epoch} of a producer that has sent in epoch {newest_epoch}")
    if epoch > newest_epoch:
        if first:
            raise SequenceGap(f"epoch {epoch} begins with record {first}, not 0")
        return epoch << _EPOCH_SHIFT | last
    if first == (newest + 1) & _NUMBER_MAX:
        return newest + count
    repeated = newest - ((newest - last) & _NUMBER_MAX)
    if newest - repeated > _NUMBER_MAX // 2 or repeated >> _EPOCH_SHIFT != epoch:
        raise SequenceGap(f"record {first} of a producer follows record {newest & _NUMBER_MAX}")
    return repeated


class Sent(NamedTuple):
    """One stored batch of a producer. A `base_offset` below 0 is the complement of the partition's offset: the batch
    was stored before its partition moved to this store, and `position` is that of the entry that says so."""

    sequence: int
    base_offset: int
    position: int
    store_time_ms: int


_Key = tuple[bytes, QueueKey]
Table = dict[_Key, tuple[Sent, ...]]
_POSITION = attrgetter("position")


class ProducerTable:
    """The newest batches of each producer and queue. `producers_max` bounds those pairs."""

    def __init__(self, *, expiry_ms: int, producers_max: int) -> None:
        self._expiry_ms = expiry_ms
        self._producers_max = producers_max
        self._sent: Table = {}  # the one used last is the last one; a row may be empty, if all of it is recent
        self._recent: dict[_Key, list[Sent]] = {}  # newer than those, in order, not known to be durable

    def __len__(self) -> int:
        """Pairs of a producer and a queue."""
        return len(self._sent)

    def find(self, queue: QueueKey, producer: ProducerSequence, now_ms: int) -> Original | None:
        """The first record of a batch that was stored before; None when it is new. An offset of None: it is too old.

        Raises SequenceGone for a number that was passed over.
        """
        last = self._last_alive(producer.producer_id, queue, now_ms)
        if last is None or producer.sequence > last.sequence:
            return None
        sent = self._all((producer.producer_id, queue))
        for kept in sent:
            if kept.sequence == producer.sequence:
                if kept.base_offset < 0:
                    partition, offset = partition_of(queue), ~kept.base_offset
                    return Original(partition, offset, kept.position, kept.store_time_ms, is_moved=True)
                return Original(queue, kept.base_offset, kept.position, kept.store_time_ms)
        if producer.sequence > sent[0].sequence or len(sent) < SEQUENCES_KEPT:
            raise SequenceGone(
                f"sequence {producer.sequence} was not used before {sent[-1].sequence} was; numbers must rise"
            )
        return Original(queue, None, sent[0].position, sent[0].store_time_ms)

    def newest(self, queue: QueueKey, producer_id: bytes, now_ms: int) -> int | None:
        """The highest number of a stored batch; None when none is known."""
        last = self._last_alive(producer_id, queue, now_ms)
        return None if last is None else last.sequence

    def _last_alive(self, producer_id: bytes, queue: QueueKey, now_ms: int) -> Sent | None:
        last = self._last((producer_id, queue))
        return last if last is not None and now_ms - last.store_time_ms <= self._expiry_ms else None

    def _last(self, key: _Key) -> Sent | None:
        """The last of `_all`."""
        newer = self._recent.get(key) or self._sent.get(key)
        return newer[-1] if newer else None

    def _all(self, key: _Key) -> tuple[Sent, ...]:
        sent = self._sent.get(key, ())
        recent = self._recent.get(key)
        return sent if recent is None else self._followed(sent, recent[-SEQUENCES_KEPT:])

    def _followed(self, sent: tuple[Sent, ...], newer: Iterable[Sent]) -> tuple[Sent, ...]:
        """What is kept of batches of one producer and queue."""
        for one in newer:
            if sent and one.store_time_ms - sent[-1].store_time_ms > self._expiry_ms:
                sent = ()
            sent = (*sent[1 - SEQUENCES_KEPT :], one)
        return sent

    def check_room(self, queue: QueueKey, producer: ProducerSequence, now_ms: int) -> None:
        """Raises TooManyIds when this is a new producer and no more can be remembered now."""
        if len(self._sent) < self._producers_max or (producer.producer_id, queue) in self._sent:
            return
        self._prune(now_ms)
        if len(self._sent) >= self._producers_max:
            oldest_ms = self._all(next(iter(self._sent)))[-1].store_time_ms
            raise TooManyIds(
                f"{len(self._sent)} producers are remembered, as many as may be",
                max(1, oldest_ms + self._expiry_ms + 1 - now_ms),
            )

    def add(self, queue: QueueKey, producer_id: bytes, new: Sent, *, is_durable: bool) -> None:
        """Remember a stored batch. `is_durable`: no power cut takes it."""
        key = (producer_id, queue)
        last = self._last(key)
        sent = self._sent.pop(key, ())
        if last is None or new.store_time_ms - last.store_time_ms > self._expiry_ms or new.sequence > last.sequence:
            if is_durable and key not in self._recent:
                sent = self._followed(sent, (new,))
            else:
                self._recent.setdefault(key, []).append(new)
        self._sent[key] = sent

    def confirm(self, until: int) -> None:
        """The log is durable up to this position."""
        for key, recent in list(self._recent.items()):
            count = bisect_left(recent, until, key=_POSITION)
            self._sent[key] = self._followed(self._sent[key], recent[:count])
            del recent[:count]
            if not recent:
                del self._recent[key]

    @property
    def has_unsaved(self) -> bool:
        """Whether there are batches that `copy` leaves out."""
        return bool(self._recent)

    def _prune(self, now_ms: int) -> None:
        oldest_ms = now_ms - self._expiry_ms
        for key in list(takewhile(lambda key: self._all(key)[-1].store_time_ms < oldest_ms, self._sent)):
            del self._sent[key]
            self._recent.pop(key, None)

    def copy(self) -> Table:
        """What is durable of the table now; later changes do not reach it."""
        return {key: sent for key, sent in self._sent.items() if sent} if self._recent else dict(self._sent)

    def leaving(self, queue: QueueKey, *, into: QueueKey, shift: int, since: int = 0, until: int = OFFSET_MAX) -> Table:
        """The batches of a queue before a position, for the queue in which its partition goes on: of the producers
        whose newest one lies at a position from `since` on. `shift`: what makes its offsets the partition's."""
        found: Table = {}
        for producer_id, own in self._sent:
            if own == queue:
                sent = [one for one in self._all((producer_id, own)) if one.position < until]
                if sent and sent[-1].position >= since:
                    found[producer_id, into] = tuple(
                        one if one.base_offset < 0 else one._replace(base_offset=~(one.base_offset + shift))
                        for one in sent
                    )
        return found

    def restore(self, table: Table) -> None:
        """Replace the table by one that is durable."""
        self._sent = table
        self._recent = {}


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
