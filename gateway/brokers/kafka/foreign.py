"""Batches of a Kafka topic that others write to, as mq's readers are given them. Pure.

What a fetch of such a topic has, and what becomes of it:

    a batch without holes          passes as it is, its CRC and its records checked. Of one that was sent in a
                                   transaction the mark of it is taken off; snappy is unpacked, as not all of mq's
                                   readers know it
    a batch with holes             (compaction), or one that unpacks to more than BATCH_BYTES_MAX or has more than
                                   BATCH_RECORDS_MAX: made anew, as batches without holes, its records at their offsets
    an aborted transaction         not shown. A fetch of what is committed says which producers' batches these are, from
                                   which offset on; they go up to the producer's next control batch
    a control batch                not shown, nor a batch without a record (compaction)
    message formats 0 and 1        an error: Kafka has written none since 0.11, and takes none since 4.0

Offsets are Kafka's own. So there are holes between the batches that are shown, and none within one.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from store import record_batch
from store.errors import BrokerLacks, Corrupt, MalformedBatch, RecordTooLarge, StoreError
from store.limits import BATCH_BYTES_MAX, BATCH_RECORDS_MAX, KiB, MiB
from store.record_batch import DecodedRecord, Record
from store.types import Buffer

FOREIGN_BYTES_MAX = 64 * MiB
"""What a compressed batch of others may unpack to."""

SHOWN_BYTES_MAX = 8 * MiB
"""Of what is made of one fetch at a time."""

_MAGIC_AT = 16
_MAGIC = struct.Struct(">b")
_OLDEST_MAGIC = 2


IN_LOOP_BYTES = 64 * KiB
"""More than that is opened in a thread; so is all that is compressed."""


class Shown(NamedTuple):
    """A batch without holes."""

    base_offset: int
    next_offset: int
    batch: bytes | bytearray


class Opened(NamedTuple):
    """What a fetch shows, in order, and the offset behind all that it has."""

    shown: Sequence[Shown]
    next_offset: int


def opened(
    body: Buffer, offset: int, aborted: Sequence[tuple[int, int]], *, where: str, bytes_max: int = SHOWN_BYTES_MAX
) -> Opened:
    """What is to be shown of batches laid end to end, the last of which may be cut short, fetched from an offset on: up
    to `bytes_max`, at least one batch. `aborted`: the producer and the first offset of each transaction there that was
    aborted. `where`: the partition, for people. What cannot be shown is an error when nothing is before it, else the
    end: Corrupt; RecordTooLarge for a record that no batch has room for; BrokerLacks for the old message formats."""
    shown: list[Shown] = []
    next_offset, size = offset, 0
    try:
        for batch, is_committed in _judged(_batches(body, where), aborted):
            base_offset, following = record_batch.offsets_of(batch)
            if following <= offset:
                continue
            if is_committed and record_batch.record_count(batch):
                for one in _shown(batch, max(base_offset, offset), where):
                    if size >= bytes_max:
                        return Opened(shown, next_offset)
                    shown.append(one)
                    next_offset = one.next_offset
                    size += len(one.batch)
            next_offset = following
    except StoreError:
        if not shown:
            raise
    return Opened(shown, next_offset)


def is_quick(body: Buffer) -> bool:
    """Whether to open batches laid end to end takes a moment only."""
    try:
        return len(body) <= IN_LOOP_BYTES and not any(map(record_batch.is_compressed, _batches(body, "")))
    except StoreError:
        return True


def _batches(body: Buffer, where: str) -> Iterator[memoryview]:
    """The whole batches. Raises BrokerLacks for the message formats of old."""
    at = 0
    while at + _MAGIC_AT < len(body):
        (magic,) = _MAGIC.unpack_from(body, at + _MAGIC_AT)
        if magic < _OLDEST_MAGIC:
            (offset,) = struct.unpack_from(">q", body, at)
            raise BrokerLacks(
                f"{where} has messages of format {magic} at offset {offset}, which Kafka has not written since 0.11:"
                " read on behind them"
            )
        batch = next(record_batch.whole_batches(memoryview(body)[at:]), None)
        if batch is None:
            return
        yield batch
        at += len(batch)


def _judged(batches: Iterator[memoryview], aborted: Sequence[tuple[int, int]]) -> Iterator[tuple[memoryview, bool]]:
    """Each batch, and whether it has records that are committed."""
    waiting = sorted(aborted, key=lambda one: one[1])
    producers: set[int] = set()  # whose transaction there was aborted
    at = 0
    for batch in batches:
        _, following = record_batch.offsets_of(batch)
        while at < len(waiting) and waiting[at][1] < following:
            producers.add(waiting[at][0])
            at += 1
        producer_id, _, _ = record_batch.numbers_of(batch)
        if not record_batch.is_of_records(batch):
            producers.discard(producer_id)
            yield batch, False
        else:
            yield batch, not (record_batch.is_transactional(batch) and producer_id in producers)


def _shown(batch: memoryview, offset: int, where: str) -> Iterator[Shown]:
    """What of a batch is shown, from an offset on."""
    base_offset, next_offset = record_batch.offsets_of(batch)
    try:
        if record_batch.record_count(batch) == next_offset - base_offset <= BATCH_RECORDS_MAX:
            try:
                plain = record_batch.plainly_sent(batch)
                record_batch.check(plain)
            except RecordTooLarge:
                pass  # in several, it may be read
            else:
                yield Shown(base_offset, next_offset, plain)
                return
        records = record_batch.decode_sparse(batch, bytes_max=FOREIGN_BYTES_MAX)
        for run in _runs(record for record in records if record.offset >= offset):
            yield from _packed(run)
    except MalformedBatch as error:
        raise Corrupt(where, base_offset, str(error)) from error
    except RecordTooLarge as error:
        raise RecordTooLarge(f"{where}, the batch at offset {base_offset}: {error}; read on behind it") from error


def _runs(records: Iterator[DecodedRecord]) -> Iterator[Sequence[DecodedRecord]]:
    """Records that follow each other, offset by offset, as many as a batch may have: of a large batch never all are
    in memory."""
    run: list[DecodedRecord] = []
    for record in records:
        if run and (record.offset != run[-1].offset + 1 or len(run) == BATCH_RECORDS_MAX):
            yield run
            run = []
        run.append(record)
    if run:
        yield run


def _packed(run: Sequence[DecodedRecord]) -> Iterator[Shown]:
    """Records in as few batches as hold them. Raises RecordTooLarge."""
    while run:
        records = [Record(one.key, one.value, one.timestamp, one.headers) for one in run]
        base_offset = run[0].offset
        try:
            batch, count = record_batch.at_once(record_batch.encode_most_in_steps(records))
        except RecordTooLarge as error:
            raise RecordTooLarge(
                f"the record at offset {base_offset} is larger than a batch may be, {BATCH_BYTES_MAX} bytes"
            ) from error
        yield Shown(base_offset, base_offset + count, record_batch.with_base_offset(batch, base_offset))
        run = run[count:]
