"""RecordBatch v2, the form in which records travel and rest. Nothing else in the server knows this layout.

Format (Apache Kafka protocol guide, "Record Batch"), big-endian:

    0         8        12      16    17     21      23      27        35        43       51      53     57     61
    +---------+--------+-------+-----+------+-------+-------+---------+---------+--------+-------+------+------+----
    |baseOff  |length  |leader |magic|crc32c|attrib |last   |base     |max      |producer|prod.  |base  |count |rec
    |i64      |i32     |epoch  |i8=2 |u32   |i16    |offset |timestamp|timestamp|id i64  |epoch  |seq   |i32   |...
    |         |        |i32    |     |      |       |delta  |i64 ms   |i64 ms   |        |i16    |i32   |      |
    +---------+--------+-------+-----+------+-------+-------+---------+---------+--------+-------+------+------+----

    length counts the bytes after itself; the CRC covers everything from `attributes` on, so the base offset and
    the leader epoch may be patched without touching it. attributes: bits 0-2 compression, 3 timestamp type,
    4 transactional, 5 control.

Encoding and decoding of the records section is done by aiokafka's C extension; this module adds what it lacks for
bytes from strangers: every length checked before it is used, CRC with the hardware instruction, bounded inflation.

Invariants
    B1  a batch that passed `check` decodes completely, to `record_count` records with offset deltas 0, 1, 2, ...
    B2  nothing inflates to more than BATCH_BYTES_MAX
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from functools import lru_cache
from itertools import chain, islice, repeat
from typing import Any, NamedTuple, Protocol, TypeVar

import zstandard
from aiokafka.record.default_records import DefaultRecordBatch, DefaultRecordBatchBuilder
from crc32c import crc32c

from store.alike import are_alike, columns_of
from store.compression import NotUnpacked, TooLarge, unpack_lz4, unpack_snappy
from store.crc import changed_crc
from store.errors import CorruptBatch, IllegalRecord, MalformedBatch, RecordTooLarge, StoreError
from store.limits import (
    BATCH_BYTES_MAX,
    BATCH_RECORDS_MAX,
    HEADER_COUNT_MAX,
    HEADERS_BYTES_MAX,
    KEY_BYTES_MAX,
    RECORD_BYTES_MAX,
    KiB,
)
from store.types import Buffer

_HEADER = struct.Struct(">qiibIhiqqqhii")
HEADER_BYTES = 61
assert _HEADER.size == HEADER_BYTES
_PREFIX = struct.Struct(">qi")  # base offset, length
_BASE_OFFSET_AND_EPOCH = struct.Struct(">qii")
REBASED_BYTES = _BASE_OFFSET_AND_EPOCH.size
"""From the start of a batch: where the CRC does not look, and a base offset changes anything."""
_BASE_OFFSET = struct.Struct(">q")
_LAST_DELTA_AT = 23
_CRC = struct.Struct(">I")
_COUNT = struct.Struct(">i")
_ATTRIBUTES = struct.Struct(">h")

_NUMBERS = struct.Struct(">qhi")
_NUMBERS_AT = 43
_TIMESTAMP = struct.Struct(">q")
MAX_TIMESTAMP_AT = 35
_LENGTH = struct.Struct(">i")
_LENGTH_FROM = 8
_LENGTH_AT = 12  # bytes before the range that `length` counts
_CRC_AT = 17
_CRC_FROM = 21
_RECORD_BYTES_MIN = 7

_MAGIC = 2
_COMPRESSION_MASK = 0x07
_LOG_APPEND_TIME = 0x08
_TRANSACTIONAL = 0x10
_CONTROL = 0x20
_SNAPPY = 2
_UNPACK: dict[int, Callable[[Buffer, int], bytes | bytearray]] = {_SNAPPY: unpack_snappy, 3: unpack_lz4}
_ZSTD = 4
_ZSTD_LEVEL = 1  # 318 KB of flights as JSON: 13 % in 0.36 ms; levels 2 to 5 take longer and save no more
_ZSTD_WINDOW_BYTES_MAX = 8 * 1024 * 1024

_VARINTS_KEPT = 4096
"""Lengths, and differences of times and offsets, whose bytes are at hand: most are small."""

_NULL = b"\x01"
"""The length of a key or value that is null: -1."""

_STARTS_PIECE = 256
"""Records walked over one by one before it is looked again whether those that follow have one size."""

_ONE_SIZE_MIN = 16

STEP_ITEMS = 10_000
"""Records that are checked in one step, with as many headers at most: some milliseconds."""

PIECE_RECORDS = 250
"""Records that are decoded at a time, between others' turns."""

STEP_RECORDS = 1_000
"""Records that are encoded in one step: some milliseconds, when all have as many headers as they may."""

LONG_BYTES = 256 * KiB
"""Of a batch that is not compressed and may take several steps."""

ALIKE_COUNT_MIN = 128
"""Batches with fewer records are decoded at once: to compare them first gains little, and costs a fifth when they are
not alike."""

CHANGED_BYTES_MIN = 512 * KiB
"""Bytes of records from which on the CRC of a batch of which only the head changes is made without a look at them
(crc.py): that takes 6 to 17 us, a look at so much 20, and the caches."""

JOINED_COUNT_MIN, JOINED_COUNT_MAX = 100, 2_000
"""Smaller batches of columns are left to the codec: to look at their sizes takes as long. Larger ones are too: the
offset deltas of so many are kept as they are written."""

DISTINCT_SHARE = 4
"""A batch of columns is joined when its values have a size for each so many of them, or fewer: each size has its own
lengths, which are made for the batch."""

_DELTA_BYTES = ((64, 1), (64 << 7, 2))
"""Offset deltas below a bound take so many bytes."""
assert _DELTA_BYTES[-1][0] >= JOINED_COUNT_MAX

COMPRESS_BYTES_MIN = 4096
"""Batches below this size are never compressed."""

Headers = Sequence[tuple[str, bytes | None]]


class Record(NamedTuple):
    """One record to encode. `value` None is a tombstone. Timestamps are event time, ms since 1970 UTC."""

    key: bytes | None
    value: bytes | None
    timestamp_ms: int
    headers: Headers = ()


class DecodedRecord(Protocol):
    """What `decode` yields: attributes of the C codec's record objects."""

    @property
    def offset(self) -> int:
        """In its queue."""
        ...

    @property
    def timestamp(self) -> int:
        """Event time, epoch ms."""
        ...

    @property
    def key(self) -> bytes | None:
        """None: without one."""
        ...

    @property
    def value(self) -> bytes | None:
        """None: a tombstone."""
        ...

    @property
    def headers(self) -> Headers:
        """In the order of their sender."""
        ...


Result = TypeVar("Result")


class BatchHeader(NamedTuple):
    """The facts of one batch that routing and storing need."""

    size: int
    record_count: int
    base_offset: int
    base_timestamp_ms: int
    max_timestamp_ms: int


def encode(records: Sequence[Record]) -> bytearray:
    """Encode 1..n records as one uncompressed batch with base offset 0.

    Raises RecordTooLarge when the batch would exceed BATCH_BYTES_MAX or BATCH_RECORDS_MAX.
    """
    assert records, "a batch holds at least one record"
    builder = _builder(len(records))
    if _added(builder, records, 0) < len(records):
        raise _no_room()
    return _built(builder)


def encode_most_in_steps(records: Sequence[Record]) -> Generator[None, None, tuple[bytearray, int]]:
    """As `encode`, of as many of the first records as fit into one batch, and how many those are. It yields after each
    STEP_RECORDS: they may have half a million headers. The generator raises RecordTooLarge when not even one fits."""
    assert records, "a batch holds at least one record"
    most = min(len(records), BATCH_RECORDS_MAX)
    builder = _builder(most)
    count = 0
    while count < most:
        if count:
            yield
        wanted = min(STEP_RECORDS, most - count)
        added = _added(builder, records[count : count + wanted], count)
        count += added
        if added < wanted:
            break
    return _built(builder), count


def _added(builder: DefaultRecordBatchBuilder, records: Sequence[Record], first: int) -> int:
    """How many of these records had room in a batch, in which the first of them is the one at `first`."""
    append = builder.append
    for delta, (key, value, timestamp_ms, headers) in enumerate(records, first):
        if append(delta, timestamp_ms, key, value, headers if headers.__class__ is list else list(headers)) is None:
            return delta - first
    return len(records)


def encode_columns(
    keys: Sequence[bytes] | None, values: Sequence[bytes | None], timestamp_ms: int, *, quote: bytes = b""
) -> bytearray:
    """As `encode`, for records without headers that have one timestamp. `keys` None: none has a key. `quote`: what
    stands before and behind each value in its record."""
    assert values, "a batch holds at least one record"
    count = len(values)
    if JOINED_COUNT_MIN <= count <= JOINED_COUNT_MAX and (joined := _joined(keys, values, quote)) is not None:
        return _sealed(joined, count, timestamp_ms, timestamp_ms)
    if quote:
        values = [b"%b%b%b" % (quote, value or b"", quote) for value in values]
    builder = _builder(count)
    append = builder.append
    headers: list[tuple[str, bytes | None]] = []
    for delta, (key, value) in enumerate(zip(repeat(None, count) if keys is None else keys, values, strict=True)):
        if append(delta, timestamp_ms, key, value, headers) is None:
            raise _no_room()
    return _built(builder)


def _joined(keys: Sequence[bytes] | None, values: Sequence[bytes | None], quote: bytes) -> bytearray | None:
    """Room for a header, and behind it records of one time whose keys have one size, and whose values have few. None of
    other records, and where one is a tombstone. They are joined of columns:

        front             offset delta   key length   key   value length   value   front ...
        00 (no headers of the record before), length, 00 00 (attributes, time)
    """
    count = len(values)
    try:
        sizes = list(map(len, values))  # type: ignore[arg-type]
    except TypeError:
        return None
    distinct, key_sizes = set(sizes), set() if keys is None else set(map(len, keys))
    if len(distinct) * DISTINCT_SHARE > count or len(key_sizes) > 1:
        return None
    key_bytes = key_sizes.pop() if key_sizes else 0
    key_length = _NULL if keys is None else _varint_of(key_bytes)
    quoted_bytes = 2 * len(quote)
    lengths = {size: _varint_of(size + quoted_bytes) + quote for size in distinct}
    fronts: list[bytes] = []
    for last, delta_bytes in _DELTA_BYTES:
        fixed = 3 + delta_bytes + len(key_length) + key_bytes + len(quote)
        of_size = {
            size: b"%b\0%b\0\0" % (quote, _varint_of(fixed + len(length) + size)) for size, length in lengths.items()
        }
        fronts += _looked_up(of_size, sizes[len(fronts) : last])
    fronts[0] = bytes(HEADER_BYTES) + fronts[0][len(quote) + 1 :]
    columns: Sequence[Sequence[bytes | None]]
    if keys is None:  # that there is none, and the next length, are one part
        columns = fronts, _DELTAS, _looked_up({size: _NULL + one for size, one in lengths.items()}, sizes), values
    else:
        columns = fronts, _DELTAS, [key_length] * count, keys, _looked_up(lengths, sizes), values
    width = len(columns)
    parts: list[Any] = [quote + b"\0"] * (width * count + 1)
    for at, column in enumerate(columns):
        parts[at:-1:width] = column[:count]
    return bytearray().join(parts)


def _looked_up(found: Mapping[int, bytes], sizes: Sequence[int]) -> list[bytes]:
    """What there is for each size."""
    return [*found.values()] * len(sizes) if len(found) == 1 else list(map(found.__getitem__, sizes))


def record_tail(key: bytes | None, value: bytes | None, header_count: int, headers: bytes) -> bytes:
    """A record from the length of its key on: what is the same in whatever batch it is. `headers`: so many of
    `header_bytes`, joined."""
    key_length = _NULL if key is None else _varint_of(len(key))
    value_length = _NULL if value is None else _varint_of(len(value))
    return b"".join((key_length, key or b"", value_length, value or b"", _varint_of(header_count), headers))


def header_bytes(name: bytes, value: bytes | None) -> bytes:
    """One header, for `record_tail`; the name is UTF-8."""
    return b"".join((_varint_of(len(name)), name, _NULL if value is None else _varint_of(len(value)), value or b""))


def encode_tails(tails: Sequence[bytes], timestamps_ms: Sequence[int]) -> bytearray:
    """As `encode`, of records of which the tails are at hand (`record_tail`): the same bytes."""
    assert tails, "a batch holds at least one record"
    count = len(tails)
    _check_count(count)
    base_ms = timestamps_ms[0]
    fronts = {time_ms: b"\0" + _varint_of(time_ms - base_ms) for time_ms in set(timestamps_ms)}  # few have their own
    parts = [bytes(HEADER_BYTES)]
    for delta, (tail, time_ms) in enumerate(zip(tails, timestamps_ms, strict=True)):
        front, offset = fronts[time_ms], _varint_of(delta)
        parts += (_varint_of(len(front) + len(offset) + len(tail)), front, offset, tail)
    return _sealed(bytearray().join(parts), count, base_ms, max(timestamps_ms))


def _sealed(made: bytearray, count: int, base_ms: int, max_ms: int) -> bytearray:
    """A batch of so many records, for whose header there is room before them."""
    _HEADER.pack_into(
        made, 0, 0, len(made) - _LENGTH_AT, -1, _MAGIC, 0, 0, count - 1, base_ms, max_ms, -1, -1, -1, count
    )
    _seal(made)
    return _within_bounds(made)


def _builder(record_count: int) -> DefaultRecordBatchBuilder:
    _check_count(record_count)
    return DefaultRecordBatchBuilder(
        magic=2,
        compression_type=0,
        is_transactional=0,
        producer_id=-1,
        producer_epoch=-1,
        base_sequence=-1,
        batch_size=BATCH_BYTES_MAX,
    )


def _built(builder: DefaultRecordBatchBuilder) -> bytearray:
    return _within_bounds(builder.build())


def _check_count(record_count: int) -> None:
    if record_count > BATCH_RECORDS_MAX:
        raise RecordTooLarge(f"{record_count} records in one batch; the limit is {BATCH_RECORDS_MAX}")


def _within_bounds(batch: bytearray) -> bytearray:
    if len(batch) > BATCH_BYTES_MAX:
        raise RecordTooLarge(f"a batch of {len(batch)} bytes; the limit is {BATCH_BYTES_MAX}")
    return batch


def _no_room() -> RecordTooLarge:
    return RecordTooLarge(f"the records of one batch exceed {BATCH_BYTES_MAX} bytes")


def compressed(batch: bytearray) -> bytearray:
    """The same batch with its records section compressed by zstd, or the batch as it is when that does not pay: when it
    is small (a frame and its context cost more than they save) or does not shrink by a tenth."""
    if len(batch) < COMPRESS_BYTES_MIN or _compression(batch):
        return batch
    packed = zstd_packed(batch, level=_ZSTD_LEVEL)
    return batch if len(packed) * 10 > len(batch) * 9 else packed


def zstd_packed(batch: bytearray, *, level: int) -> bytearray:
    """The same uncompressed batch with its records section compressed by zstd, whether that pays or not."""
    made = batch[:HEADER_BYTES]
    with memoryview(batch) as view:
        made += zstandard.ZstdCompressor(level=level).compress(view[HEADER_BYTES:])
    (attributes,) = _ATTRIBUTES.unpack_from(made, _CRC_FROM)
    _ATTRIBUTES.pack_into(made, _CRC_FROM, attributes | _ZSTD)
    _seal(made)
    return made


def decode(batch: Buffer) -> Iterator[DecodedRecord]:
    """Iterate over the records of one batch that passed `check` (all stored ones have).

    Offsets are absolute: base offset + delta. Raises MalformedBatch if the bytes are not a checked batch.
    """
    return iter(DefaultRecordBatch(uncompressed(batch)))


def uncompressed(batch: Buffer) -> Buffer:
    """The batch with its records not compressed, itself if they are not. Raises as `decode`."""
    return _inflate(batch) if _compression(batch) else batch


def alike_columns(batch: Buffer) -> tuple[list[bytes | None], list[bytes | None], int] | None:
    """Keys and values of a batch that passed `check`, and the time of all of its records (epoch ms), where they are
    alike (store/alike.py) and of one time: a third of the work of `decode`. None: of any other batch, or a small or
    compressed one."""
    _, _, _, _, _, attributes, _, base_timestamp_ms, _, _, _, _, count = _HEADER.unpack_from(batch)
    if attributes or count < ALIKE_COUNT_MIN:
        return None
    columns = columns_of(batch, count)
    return None if columns is None else (columns.keys, columns.values, base_timestamp_ms + columns.time_delta_ms)


def decode_in_pieces(batch: Buffer) -> Iterator[list[DecodedRecord]]:
    """As `decode`, PIECE_RECORDS at a time: some milliseconds, when all have as many headers as they may."""
    records = islice(decode(batch), None)  # aiokafka's own goes on behind its end
    while piece := list(islice(records, PIECE_RECORDS)):
        yield piece


def record_starts(batch: Buffer) -> Iterator[Sequence[int]]:
    """Where the records of an uncompressed checked batch begin, for `decode_some`: in order, a piece of work for each
    sequence. Raises MalformedBatch."""
    at, left_count = HEADER_BYTES, record_count(batch)
    try:
        while left_count:
            starts: Sequence[int]
            starts, end = _starts_of_one_size(batch, at, left_count)
            if len(starts) < _ONE_SIZE_MIN:
                starts, end = _starts(batch, at, min(left_count, _STARTS_PIECE))
            yield starts
            at = end
            left_count -= len(starts)
    except IndexError as error:
        raise MalformedBatch(f"the records of a batch end behind its {len(batch)} bytes") from error


def _starts_of_one_size(batch: Buffer, at: int, count_max: int) -> tuple[range, int]:
    """As many records from one on as have its size, and where they end: those whose lengths have the same bytes, seen
    by a slice with a step for each byte instead of record by record."""
    body, length = _length(batch, at)
    size = body - at + length
    count = min(count_max, (len(batch) - at) // size)
    for place in range(at, body):
        same = bytes(batch[place : at + count * size : size])
        count -= len(same.lstrip(same[:1]))
    end = at + count * size
    return range(at, end, size), end


def _starts(batch: Buffer, at: int, count: int) -> tuple[list[int], int]:
    """Where records begin, one by one, and where the last one ends."""
    starts = []
    for _ in range(count):
        starts.append(at)
        body, length = _length(batch, at)
        at = body + length
    return starts, at


def _length(batch: Buffer, at: int) -> tuple[int, int]:
    """Where a record goes on behind its length, and how many bytes it has from there. Raises IndexError."""
    length = shift = 0
    while (byte := batch[at]) & 0x80:
        length |= (byte & 0x7F) << shift
        shift += 7
        at += 1
    return at + 1, (length | byte << shift) >> 1  # zigzag, and never negative


def decode_some(batch: Buffer, starts: Sequence[int], indexes: Sequence[int]) -> Iterator[DecodedRecord]:
    """As `decode`, for the records at these indexes of an uncompressed batch; `starts` as of `record_starts`."""
    view = memoryview(batch)
    last = len(starts) - 1
    parts = [view[starts[index] : starts[index + 1] if index < last else len(view)] for index in indexes]
    some = bytearray(b"".join((view[:HEADER_BYTES], *parts)))
    _LENGTH.pack_into(some, _LENGTH_FROM, len(some) - _LENGTH_AT)
    _COUNT.pack_into(some, HEADER_BYTES - _COUNT.size, len(indexes))
    return iter(DefaultRecordBatch(some))


def check(
    batch: Buffer, *, limited: bool = False, on_headers: Callable[[int, Headers], None] | None = None
) -> BatchHeader:
    """As `check_in_steps`, at once."""
    return at_once(check_in_steps(batch, limited=limited, on_headers=on_headers))


def at_once(steps: Generator[None, None, Result]) -> Result:
    """What a generator returns, its steps behind each other. Raises what it raises."""
    while True:
        try:
            next(steps)
        except StopIteration as end:
            result: Result = end.value
            return result


def check_in_steps(
    batch: Buffer, *, limited: bool = False, on_headers: Callable[[int, Headers], None] | None = None
) -> Generator[None, None, BatchHeader]:
    """Check one whole batch from outside: lengths, CRC, and that every record decodes (B1, B2).

    With `limited` every record is held to the limits of single ones (store/limits.py). `on_headers` is called with the
    index and the headers of each record that has any, so that who needs them need not decode again; it must not raise.
    It yields before the records of a batch that may be long and is not alike, after STEP_ITEMS records, and after
    STEP_ITEMS headers: a batch may have half a million. The generator raises MalformedBatch, RecordTooLarge when the
    batch breaks a size limit, or IllegalRecord.
    """
    size = len(batch)
    if size < HEADER_BYTES:
        raise MalformedBatch(f"{size} bytes are less than a batch header ({HEADER_BYTES} bytes)")
    if size > BATCH_BYTES_MAX:
        raise RecordTooLarge(f"a batch of {size} bytes; the limit is {BATCH_BYTES_MAX}")
    (
        base_offset, length, _, magic, _, attributes, last_delta,
        base_timestamp_ms, max_timestamp_ms, _, _, _, count,
    ) = _HEADER.unpack_from(batch)  # fmt: skip
    if magic != _MAGIC:
        raise MalformedBatch(f"magic byte {magic}; only RecordBatch v2 (magic 2) is accepted")
    if length + _LENGTH_AT != size:
        raise MalformedBatch(f"the batch says it has {length + _LENGTH_AT} bytes, but {size} were given")
    if attributes & (_TRANSACTIONAL | _CONTROL):
        raise MalformedBatch("transactional and control batches are not accepted")
    if not 1 <= count <= BATCH_RECORDS_MAX:
        raise MalformedBatch(f"{count} records in a batch; 1 to {BATCH_RECORDS_MAX} are accepted")
    if last_delta != count - 1:
        raise MalformedBatch(f"last offset delta {last_delta} does not fit {count} records")
    _check_crc(batch)
    plain = uncompressed(batch)
    if count * _RECORD_BYTES_MIN > len(plain) - HEADER_BYTES:
        raise MalformedBatch(f"{count} records cannot fit {len(plain) - HEADER_BYTES} bytes")
    if count < ALIKE_COUNT_MIN or not are_alike(plain, count):
        if may_be_long(batch):
            yield
        yield from _check_records(plain, base_offset, count, limited, on_headers)
    return BatchHeader(size, count, base_offset, base_timestamp_ms, max_timestamp_ms)


def may_be_long(batch: Buffer) -> bool:
    """Whether to check a batch may take several steps."""
    items_max = record_count(batch) * (1 + HEADER_COUNT_MAX) if len(batch) >= HEADER_BYTES else 0
    return items_max > 2 * STEP_ITEMS and (bool(_compression(batch)) or len(batch) > LONG_BYTES)


def split(body: Buffer) -> Iterator[memoryview]:
    """Cut a body of batches laid end to end into views of single batches. Lengths are checked, contents are not.

    Raises MalformedBatch when the last batch is cut short.
    """
    view = memoryview(body)
    position = 0
    while position < len(view):
        if len(view) - position < HEADER_BYTES:
            raise MalformedBatch(f"{len(view) - position} bytes left at byte {position} are less than a batch header")
        _, length = _PREFIX.unpack_from(view, position)
        end = position + _LENGTH_AT + length
        if length < HEADER_BYTES - _LENGTH_AT or end > len(view):
            raise MalformedBatch(f"the batch at byte {position} says it has {length + _LENGTH_AT} bytes")
        yield view[position:end]
        position = end


def rebased_head(batch: Buffer, base_offset: int) -> bytes:
    """The first REBASED_BYTES of the batch, with its base offset (and leader epoch 0) set; what follows stays as it
    is."""
    return _BASE_OFFSET_AND_EPOCH.pack(base_offset, len(batch) - _LENGTH_AT, 0)


def with_base_offset(batch: Buffer, base_offset: int) -> bytearray:
    """The batch with its base offset (and leader epoch 0) set; the CRC does not cover them.

    A bytearray is patched in place, anything else is copied.
    """
    patched = batch if isinstance(batch, bytearray) else bytearray(batch)
    patched[:REBASED_BYTES] = rebased_head(patched, base_offset)
    return patched


def head_with_base_offset(batch: Buffer, base_offset: int) -> bytes:
    """The first HEADER_BYTES of the batch `with_base_offset`."""
    with memoryview(batch) as view:
        return b"".join((rebased_head(view, base_offset), view[REBASED_BYTES:HEADER_BYTES]))


def record_count(batch: Buffer) -> int:
    """The number of records a batch claims to hold."""
    count: int = _COUNT.unpack_from(batch, HEADER_BYTES - _COUNT.size)[0]
    return count


def numbers_of(batch: Buffer) -> tuple[int, int, int]:
    """The producer id (-1: none), its epoch, and the number of the first record, as an idempotent producer gave
    them."""
    numbers: tuple[int, int, int] = _NUMBERS.unpack_from(batch, _NUMBERS_AT)
    return numbers


def numbered_head(batch: Buffer, producer_id: int, epoch: int, first: int) -> bytes:
    """The first HEADER_BYTES of the batch, whose CRC holds, as an idempotent producer sends it: of a producer and its
    epoch, its first record with this number. What follows stays as it is."""
    with memoryview(batch) as view:
        head = bytearray(view[:HEADER_BYTES])
        _NUMBERS.pack_into(head, _NUMBERS_AT, producer_id, epoch, first)
        _CRC.pack_into(head, _CRC_AT, _crc_of_head(view, head))
    return bytes(head)


def numbered(batch: Buffer, producer_id: int, epoch: int, first: int) -> bytes:
    """A copy of the batch with its `numbered_head`."""
    return b"".join((numbered_head(batch, producer_id, epoch, first), memoryview(batch)[HEADER_BYTES:]))


def undate(batch: memoryview) -> None:
    """Give the records of a batch their own times again, not that of its append (LogAppendTime), if its CRC holds: its
    head is changed where it is. Raises MalformedBatch."""
    _check_crc(batch)
    (attributes,) = _ATTRIBUTES.unpack_from(batch, _CRC_FROM)
    if attributes & _LOG_APPEND_TIME:
        head = bytearray(batch[:HEADER_BYTES])
        _ATTRIBUTES.pack_into(head, _CRC_FROM, attributes & ~_LOG_APPEND_TIME)
        _CRC.pack_into(head, _CRC_AT, _crc_of_head(batch, head))
        batch[:HEADER_BYTES] = head


def plainly_sent(batch: Buffer) -> bytearray:
    """A copy of the batch as if it had been sent in no transaction, if its CRC holds, and unpacked when it is packed by
    snappy. Raises MalformedBatch, RecordTooLarge."""
    made = bytearray(batch)
    _check_crc(made)
    if _compression(made) == _SNAPPY:
        made = _inflate(made)
    if is_transactional(made):
        (attributes,) = _ATTRIBUTES.unpack_from(made, _CRC_FROM)
        _ATTRIBUTES.pack_into(made, _CRC_FROM, attributes & ~_TRANSACTIONAL)
        _seal(made)
    return made


def decode_sparse(batch: Buffer, *, bytes_max: int) -> Iterator[DecodedRecord]:
    """The records of a batch from Kafka, of which there may be fewer than it has offsets, and which may unpack to
    `bytes_max`, if its CRC holds. Raises MalformedBatch, RecordTooLarge."""
    _check_crc(batch)
    plain = _inflate(batch, bytes_max) if _compression(batch) else batch
    try:
        yield from DefaultRecordBatch(plain)
    except Exception as error:  # of many types, MemoryError among them
        raise MalformedBatch(f"its records do not decode: {error}") from error


def marked(batch: Buffer, name: bytes, content: bytes) -> bytearray:
    """A copy of a checked batch whose first record has one more header, before all others. One that is compressed is
    packed by zstd then. Raises RecordTooLarge."""
    is_packed = is_compressed(batch)
    plain = _inflate(batch) if is_packed else batch
    at, headers_at, end = _first_record(plain)
    count, after = _varint(plain, headers_at)
    made = bytearray(plain[:at])
    header = _varint_of(len(name)) + name + _varint_of(len(content)) + content
    body_at = _length(plain, at)[0]
    parts: list[Buffer] = [plain[body_at:headers_at], _varint_of(count + 1), header, plain[after:end]]
    made += _varint_of(sum(map(len, parts)))
    for part in (*parts, plain[end:]):
        made += part
    _seal(made)
    if is_packed:
        made = zstd_packed(made, level=_ZSTD_LEVEL)
    if len(made) > BATCH_BYTES_MAX:
        raise RecordTooLarge(f"a batch of {len(made)} bytes with its ids; the limit is {BATCH_BYTES_MAX}")
    return made


def mark_of(batch: Buffer, name: bytes) -> bytes | None:
    """What the first header of a checked batch's first record says, if it has that name; an empty one for null."""
    if not is_marked(batch, name):
        return None
    plain = _inflate(batch) if is_compressed(batch) else batch
    found, _ = _mark(plain, _varint(plain, _first_record(plain)[1])[1])
    return found


def unmarked(batch: Buffer, name: bytes) -> Buffer:
    """A copy of the batch without the header that `marked` gave its first record, not compressed; the batch itself when
    it has none."""
    if not is_marked(batch, name):
        return batch
    plain = _inflate(batch) if is_compressed(batch) else batch
    at, headers_at, end = _first_record(plain)
    count, after = _varint(plain, headers_at)
    _, rest = _mark(plain, after)
    parts: list[Buffer] = [plain[_length(plain, at)[0] : headers_at], _varint_of(count - 1), plain[rest:end]]
    made = bytearray(plain[:at]) + _varint_of(sum(map(len, parts)))
    for part in (*parts, plain[end:]):
        made += part
    _seal(made)
    return made


_PEEK_BYTES = 4096


def is_marked(batch: Buffer, name: bytes) -> bool:
    """Whether the first header of a checked batch's first record has a name. Of a batch that is packed by zstd only the
    beginning is unpacked, as a rule."""
    if not is_compressed(batch):
        return _begins_with(batch, name)
    if _compression(batch) == _ZSTD:
        with memoryview(batch) as view, zstandard.ZstdDecompressor(
            max_window_size=_ZSTD_WINDOW_BYTES_MAX
        ).stream_reader(view[HEADER_BYTES:]) as reader:  # fmt: skip
            try:
                return _begins_with(bytes(HEADER_BYTES) + reader.read(_PEEK_BYTES), name)
            except IndexError:
                pass  # its key and value are longer
    return _begins_with(_inflate(batch), name)


def _begins_with(plain: Buffer, name: bytes) -> bool:
    """Raises IndexError when the bytes end before."""
    _, headers_at, _ = _first_record(plain)
    count, at = _varint(plain, headers_at)
    if count <= 0:
        return False
    size, at = _varint(plain, at)
    if size != len(name):
        return False
    plain[at + size - 1]
    return bytes(plain[at : at + size]) == name


def _mark(plain: Buffer, at: int) -> tuple[bytes, int]:
    """The content of the header there, and where it ends."""
    size, at = _varint(plain, at)
    size, at = _varint(plain, at + size)
    end = at + max(0, size)
    return bytes(plain[at:end]), end


def _first_record(plain: Buffer) -> tuple[int, int, int]:
    """Where the first record of an uncompressed batch begins, where the count of its headers is, and where it ends."""
    at, length = _length(plain, HEADER_BYTES)
    end = at + length
    at += 1  # attributes
    for _ in range(2):  # its deltas of time and offset
        at = _varint(plain, at)[1]
    for _ in range(2):  # key and value
        size, at = _varint(plain, at)
        at += max(0, size)
    return HEADER_BYTES, at, end


def _varint(plain: Buffer, at: int) -> tuple[int, int]:
    """A zigzag number, and where it ends. Raises IndexError."""
    number = shift = 0
    while (byte := plain[at]) & 0x80:
        number |= (byte & 0x7F) << shift
        shift += 7
        at += 1
    number |= byte << shift
    return (number >> 1) ^ -(number & 1), at + 1


@lru_cache(_VARINTS_KEPT)
def _varint_of(number: int) -> bytes:
    """A number, zigzag."""
    left, made = number << 1 if number >= 0 else ~(number << 1), bytearray()
    while left > 0x7F:
        made.append(left & 0x7F | 0x80)
        left >>= 7
    made.append(left)
    return bytes(made)


_DELTAS = tuple(map(_varint_of, range(JOINED_COUNT_MAX)))
"""Offset deltas as they are written."""


def is_of_records(batch: Buffer) -> bool:
    """False for a control batch, which has none of a user's."""
    return not _ATTRIBUTES.unpack_from(batch, _CRC_FROM)[0] & _CONTROL


def is_transactional(batch: Buffer) -> bool:
    """Whether the batch was sent in a transaction of its producer."""
    return bool(_ATTRIBUTES.unpack_from(batch, _CRC_FROM)[0] & _TRANSACTIONAL)


def offsets_of(batch: Buffer) -> tuple[int, int]:
    """The offset of the first record, and the one behind the last: a compacted batch may lack some between."""
    (base_offset,) = _BASE_OFFSET.unpack_from(batch)
    (last_delta,) = _LENGTH.unpack_from(batch, _LAST_DELTA_AT)
    return base_offset, base_offset + last_delta + 1


def stamp_of(batch: Buffer) -> tuple[int, int, int]:
    """What distinguishes a batch in a Kafka log from any other one that was ever at its offset: its base offset, the
    epoch of the leader that appended it, and its CRC."""
    base_offset, _, leader_epoch = _BASE_OFFSET_AND_EPOCH.unpack_from(batch)
    (crc,) = _CRC.unpack_from(batch, _CRC_AT)
    return base_offset, leader_epoch, crc


def whole_batches(body: Buffer) -> Iterator[memoryview]:
    """As `split`, without the last batch when it is cut short, as in the answer to a fetch."""
    view = memoryview(body)
    position = 0
    while position + HEADER_BYTES <= len(view):
        _, length = _PREFIX.unpack_from(view, position)
        end = position + _LENGTH_AT + length
        if length < HEADER_BYTES - _LENGTH_AT:
            raise MalformedBatch(f"the batch at byte {position} says it has {length + _LENGTH_AT} bytes")
        if end > len(view):
            return
        yield view[position:end]
        position = end


def max_timestamp_ms(batch: Buffer) -> int:
    """The highest event time of its records, as the batch says; -1 for bytes that are no batch."""
    if len(batch) < HEADER_BYTES:
        return -1
    timestamp_ms: int = _TIMESTAMP.unpack_from(batch, MAX_TIMESTAMP_AT)[0]
    return timestamp_ms


def is_compressed(batch: Buffer) -> bool:
    """True when the records section is compressed."""
    return _compression(batch) != 0


def is_zstd(batch: Buffer) -> bool:
    """True when it is compressed by zstd, which clients know since Kafka 2.1."""
    return len(batch) >= HEADER_BYTES and _compression(batch) == _ZSTD


def _compression(batch: Buffer) -> int:
    codec: int = _ATTRIBUTES.unpack_from(batch, _CRC_FROM)[0] & _COMPRESSION_MASK
    return codec


def _check_records(
    plain: Buffer,
    base_offset: int,
    count: int,
    limited: bool,
    on_headers: Callable[[int, Headers], None] | None,
) -> Generator[None, None, None]:
    """Decode every record once: bytes that pass here can be read by anyone, for ever."""
    may_be_large = len(plain) > RECORD_BYTES_MAX
    key_bytes_max = KEY_BYTES_MAX
    left = STEP_ITEMS
    end = base_offset + count
    expected = base_offset - 1
    try:
        records = chain(DefaultRecordBatch(plain))  # which itself may be iterated over only once
        for step in range(base_offset, end, STEP_ITEMS):
            # What the codec makes of a record takes 80 ns, each look at it some 20: so few as can be, steps by ranges.
            for expected, record in zip(range(step, min(step + STEP_ITEMS, end)), records, strict=False):
                if record.offset != expected:
                    raise MalformedBatch(
                        f"record {expected - base_offset} has offset delta {record.offset - base_offset}"
                    )
                headers = record.headers
                if headers or may_be_large or ((key := record.key) is not None and len(key) > key_bytes_max):
                    if headers and on_headers is not None:
                        on_headers(expected - base_offset, headers)
                    if limited:
                        _check_limits(record, expected - base_offset)
                    left -= len(headers)
                    if left <= 0:
                        left = STEP_ITEMS
                        yield
            if expected + 1 < end:
                yield
        next(records, None)  # the codec looks behind the last record for bytes that are left
    except StoreError:
        raise
    except Exception as error:  # the C codec reports bad bytes by errors of many types, MemoryError among them
        raise MalformedBatch(f"record {expected + 1 - base_offset} does not decode: {error}") from error
    if expected + 1 - base_offset != count:
        raise MalformedBatch(f"{expected + 1 - base_offset} records decode, the header says {count}")


def _check_limits(record: DecodedRecord, index: int) -> None:
    """Hold one record to the limits of single ones."""
    key, value, headers = record.key or b"", record.value or b"", record.headers
    if len(key) > KEY_BYTES_MAX:
        raise IllegalRecord(f"record {index}: the key has {len(key)} bytes; the limit is {KEY_BYTES_MAX}")
    if len(headers) > HEADER_COUNT_MAX:
        raise IllegalRecord(f"record {index}: {len(headers)} headers; the limit is {HEADER_COUNT_MAX}")
    headers_bytes = sum(len(name.encode()) + len(content or b"") for name, content in headers)
    if headers_bytes > HEADERS_BYTES_MAX:
        raise IllegalRecord(f"record {index}: {headers_bytes} bytes of headers; the limit is {HEADERS_BYTES_MAX}")
    size = len(key) + len(value) + headers_bytes
    if size > RECORD_BYTES_MAX:
        raise RecordTooLarge(f"record {index}: {size} bytes of key, value and headers; the limit is {RECORD_BYTES_MAX}")


def _inflate(batch: Buffer, bytes_max: int = BATCH_BYTES_MAX) -> bytearray:
    """The same batch with its records section uncompressed (B2), CRC and length made to fit."""
    codec = _compression(batch)
    with memoryview(batch) as view:
        packed = view[HEADER_BYTES:]
        budget = bytes_max - HEADER_BYTES
        records: bytes | bytearray
        try:
            if codec == _ZSTD:
                unpack = zstandard.ZstdDecompressor(max_window_size=_ZSTD_WINDOW_BYTES_MAX)
                if len(unpack.stream_reader(packed).read(budget + 1)) > budget:
                    raise RecordTooLarge(f"the batch inflates to more than {bytes_max} bytes")
                frame = unpack.decompressobj()  # unbounded, but says where the frame ends
                records = frame.decompress(packed)
                is_whole = frame.eof and not frame.unused_data
            elif codec == 1:
                member = zlib.decompressobj(wbits=31)
                records = member.decompress(packed, budget + 1)
                is_whole = member.eof and not member.unused_data
            elif codec in _UNPACK:
                records, is_whole = _UNPACK[codec](packed, budget), True
            else:
                raise MalformedBatch(f"compression codec {codec} is unknown; use none, gzip, snappy, lz4 or zstd")
        except TooLarge as error:
            raise RecordTooLarge(f"the batch inflates to more than {bytes_max} bytes") from error
        except (zstandard.ZstdError, zlib.error, NotUnpacked) as error:
            raise MalformedBatch(f"the records do not decompress: {error}") from error
        if len(records) > budget:
            raise RecordTooLarge(f"the batch inflates to more than {bytes_max} bytes")
        if not is_whole:
            # Other decoders would refuse it: one client could spoil a partition for all the others.
            raise MalformedBatch("the compressed records end too early or have bytes behind them")
        plain = bytearray(view[:HEADER_BYTES])
    plain += records
    (attributes,) = _ATTRIBUTES.unpack_from(plain, _CRC_FROM)
    _ATTRIBUTES.pack_into(plain, _CRC_FROM, attributes & ~_COMPRESSION_MASK)
    _seal(plain)
    return plain


def _check_crc(batch: Buffer) -> None:
    """Raises CorruptBatch."""
    (crc,) = _CRC.unpack_from(batch, _CRC_AT)
    with memoryview(batch) as view, view[_CRC_FROM:] as covered:
        if crc32c(covered) != crc:
            raise CorruptBatch("the batch's CRC-32C does not match its bytes")


def _crc_of_head(batch: memoryview, head: Buffer) -> int:
    """The CRC of a batch, whose own holds, with another head."""
    covered, rest = memoryview(head)[_CRC_FROM:], batch[HEADER_BYTES:]
    if len(rest) < CHANGED_BYTES_MIN:
        return crc32c(rest, crc32c(covered))
    (crc,) = _CRC.unpack_from(batch, _CRC_AT)
    return changed_crc(crc, batch[_CRC_FROM:HEADER_BYTES], covered, len(rest))


def _seal(batch: bytearray) -> None:
    """Make length and CRC fit the bytes of a batch."""
    _LENGTH.pack_into(batch, _LENGTH_FROM, len(batch) - _LENGTH_AT)
    with memoryview(batch) as view:
        _CRC.pack_into(batch, _CRC_AT, crc32c(view[_CRC_FROM:]))
