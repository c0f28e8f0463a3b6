"""store.record_batch: what passes `check` can be read by anyone for ever; everything else is refused."""

from __future__ import annotations

import gzip
import struct
import tracemalloc
import zlib
from collections.abc import Callable, Mapping, Sequence
from itertools import chain
from random import Random

import cramjam
import pytest
import zstandard
from aiokafka.record.default_records import _DefaultRecordBatchPy
from crc32c import crc32c
from hypothesis import given
from hypothesis import strategies as st

from store import record_batch
from store.errors import CorruptBatch, IllegalRecord, MalformedBatch, RecordTooLarge, StoreError
from store.limits import (
    BATCH_BYTES_MAX,
    BATCH_RECORDS_MAX,
    HEADER_COUNT_MAX,
    HEADERS_BYTES_MAX,
    KEY_BYTES_MAX,
    RECORD_BYTES_MAX,
    MiB,
)
from store.record_batch import (
    HEADER_BYTES,
    PIECE_RECORDS,
    STEP_RECORDS,
    DecodedRecord,
    Record,
    at_once,
    check,
    decode,
    decode_some,
    encode,
    encode_columns,
    encode_most_in_steps,
    encode_tails,
    header_bytes,
    record_starts,
    record_tail,
    split,
    with_base_offset,
)
from store.types import Buffer

NONE, GZIP, SNAPPY, LZ4, ZSTD = range(5)
CRC_AT, CRC_FROM, LENGTH_AT, LAST_DELTA_AT, COUNT_AT = 17, 21, 8, 23, 57

Fields = tuple[int, int, bytes | None, bytes | None, list[tuple[str, bytes | None]]]


def sample(count: int = 5) -> bytes:
    """A batch with every feature: keys, tombstones, headers with and without values, own timestamps."""
    return bytes(
        encode(
            [
                Record(
                    None if n % 3 == 0 else b"key %d" % n,
                    None if n % 4 == 3 else b"value %d" % n,
                    1_700_000_000_000 + n * n,
                    [("mq-tag", b"red"), ("empty", b""), ("null", None)] if n % 2 else (),
                )
                for n in range(count)
            ]
        )
    )


def fields(batch: Buffer) -> list[Fields]:
    """Everything a reader can learn from a batch."""
    return [(r.offset, r.timestamp, r.key, r.value, list(r.headers)) for r in decode(batch)]


def rebuilt(
    batch: bytes, *, codec: int | None = None, records: bytes | None = None, patches: Mapping[int, bytes] | None = None
) -> bytes:
    """The batch with other records, codec or header bytes (position: bytes), with length and CRC that fit."""
    changed = bytearray(batch[:HEADER_BYTES]) + (batch[HEADER_BYTES:] if records is None else records)
    if codec is not None:
        struct.pack_into(">h", changed, CRC_FROM, codec)
    struct.pack_into(">i", changed, LENGTH_AT, len(changed) - 12)
    for at, patch in (patches or {}).items():
        changed[at : at + len(patch)] = patch
    struct.pack_into(">I", changed, CRC_AT, crc32c(bytes(changed[CRC_FROM:])))
    return bytes(changed)


def compressed(batch: bytes, codec: int) -> bytes:
    """The same batch as a client that compresses would send it."""
    body = batch[HEADER_BYTES:]
    packed = gzip.compress(body) if codec == GZIP else zstandard.ZstdCompressor(write_checksum=True).compress(body)
    return rebuilt(batch, codec=codec, records=packed)


records_of_any_shape = st.lists(
    st.builds(
        Record,
        st.none() | st.binary(max_size=40),
        st.none() | st.binary(max_size=200),
        st.integers(0, 4_000_000_000_000),
        st.lists(st.tuples(st.text(max_size=10), st.none() | st.binary(max_size=20)), max_size=4),
    ),
    min_size=1,
    max_size=30,
)


@given(records_of_any_shape, st.integers(0, 2**62))
def test_what_is_encoded_passes_and_decodes_to_the_same_records(records: Sequence[Record], base_offset: int) -> None:
    batch = with_base_offset(encode(records), base_offset)
    header = check(batch)
    assert (header.size, header.record_count, header.base_offset) == (len(batch), len(records), base_offset)
    assert header.base_timestamp_ms == records[0].timestamp_ms
    assert header.max_timestamp_ms == max(record.timestamp_ms for record in records)
    assert fields(batch) == [
        (base_offset + n, r.timestamp_ms, r.key, r.value, list(r.headers)) for n, r in enumerate(records)
    ]
    assert record_batch.record_count(batch) == len(records)


def tails_of(records: Sequence[Record]) -> list[bytes]:
    return [
        record_tail(
            record.key,
            record.value,
            len(record.headers),
            b"".join(header_bytes(name.encode(), value) for name, value in record.headers),
        )
        for record in records
    ]


@given(records_of_any_shape)
def test_a_batch_of_tails_is_the_batch_of_the_records(records: Sequence[Record]) -> None:
    assert encode_tails(tails_of(records), [record.timestamp_ms for record in records]) == encode(records)


def test_a_batch_of_tails_is_held_to_the_limits_of_a_batch() -> None:
    records = [Record(None, b"%d" % number, number % 3) for number in range(BATCH_RECORDS_MAX)]
    tails, times_ms = tails_of(records), [record.timestamp_ms for record in records]
    assert encode_tails(tails, times_ms) == encode(records)
    with pytest.raises(RecordTooLarge, match=str(BATCH_RECORDS_MAX)):
        encode_tails([*tails, tails[0]], [*times_ms, 0])
    largest = next(decode(batch_of_size(BATCH_BYTES_MAX)))
    value = largest.value
    assert value is not None
    assert len(encode_tails([record_tail(None, value, 0, b"")], [0])) == BATCH_BYTES_MAX
    with pytest.raises(RecordTooLarge, match=str(BATCH_BYTES_MAX)):
        encode_tails([record_tail(None, value + b"x", 0, b"")], [0])


@given(records_of_any_shape)
def test_an_independent_decoder_reads_the_same(records: Sequence[Record]) -> None:
    batch = bytes(encode(records))
    slow = _DefaultRecordBatchPy(batch)
    assert slow.validate_crc()
    assert fields(batch) == [(r.offset, r.timestamp, r.key, r.value, list(r.headers)) for r in slow]


@pytest.mark.parametrize("codec", [GZIP, ZSTD])
@given(records=records_of_any_shape)
def test_compressed_batches_are_accepted_and_stay_compressed(codec: int, records: Sequence[Record]) -> None:
    plain = bytes(encode(records))
    packed = compressed(plain, codec)
    assert check(packed)._replace(size=0) == check(plain)._replace(size=0)
    assert fields(packed) == fields(plain)
    assert fields(with_base_offset(packed, 77))[0][0] == 77


@pytest.mark.parametrize("kind", [bytes, bytearray, memoryview])
def test_buffers_of_every_kind_are_taken(kind: Callable[[bytes], Buffer]) -> None:
    for batch in (sample(), compressed(sample(), ZSTD)):
        assert check(kind(batch)).record_count == 5
        assert fields(kind(batch)) == fields(sample())
        assert len(with_base_offset(kind(batch), 1)) == len(batch)
        assert [bytes(part) for part in split(kind(batch))] == [batch]


@pytest.mark.parametrize("codec", [NONE, GZIP, ZSTD])
def test_every_changed_byte_is_refused_or_changes_nothing(codec: int) -> None:
    """Base offset and leader epoch are ours to set and not under the CRC; they are the only bytes that may change."""
    batch = sample() if codec == NONE else compressed(sample(), codec)
    expected, harmless = [f[1:] for f in fields(batch)], set[int]()
    rng = Random(codec)
    for at in range(len(batch)):
        for bit in {0, 7, rng.randrange(1, 7)}:
            changed = bytearray(batch)
            changed[at] ^= 1 << bit
            try:
                check(changed)
            except (MalformedBatch, RecordTooLarge):
                continue
            assert [f[1:] for f in fields(changed)] == expected, f"byte {at}, bit {bit}"
            harmless.add(at)
    assert harmless <= {*range(8), *range(12, 16)}


@pytest.mark.parametrize("codec", [NONE, GZIP, ZSTD])
def test_every_cut_and_every_extension_is_refused(codec: int) -> None:
    batch = sample() if codec == NONE else compressed(sample(), codec)
    for size in range(len(batch)):
        with pytest.raises(MalformedBatch):
            check(batch[:size])
    with pytest.raises(MalformedBatch):
        check(batch + b"\0")


def test_damage_behind_a_right_crc_is_refused_or_reads_the_same_to_everyone() -> None:
    """A broken or hostile client computes the CRC over its nonsense: B1 must hold all the same."""
    rng, batch, passed_count = Random(4), sample(8), 0
    for _ in range(6_000):
        changed = bytearray(batch)
        for _ in range(rng.choice((1, 1, 2, 4))):
            changed[rng.randrange(CRC_FROM + 2, len(batch))] = rng.randrange(256)
        nonsense = rebuilt(bytes(changed))
        try:
            header = check(nonsense)
        except (MalformedBatch, RecordTooLarge):
            continue
        passed_count += 1
        got = fields(nonsense)
        assert [f[0] for f in got] == list(range(header.base_offset, header.base_offset + header.record_count))
        assert got == [
            (r.offset, r.timestamp, r.key, r.value, list(r.headers)) for r in _DefaultRecordBatchPy(nonsense)
        ]
    assert passed_count > 100, "or the test proves nothing"


def test_random_bytes_are_refused() -> None:
    rng = Random(5)
    for size in [*range(80), 500, 5000]:
        with pytest.raises(MalformedBatch):
            check(rng.randbytes(size))


@pytest.mark.parametrize(
    ("patches", "reason"),
    [
        ({16: b"\1"}, "magic byte 1"),
        ({8: struct.pack(">i", -1)}, "says it has 11 bytes"),
        ({8: struct.pack(">i", 2**31 - 1)}, "the batch says"),
        ({21: struct.pack(">h", 0x10)}, "transactional"),
        ({21: struct.pack(">h", 0x20)}, "control"),
        ({57: struct.pack(">i", 0)}, "0 records"),
        ({57: struct.pack(">i", -1)}, "-1 records"),
        ({57: struct.pack(">i", 2**31 - 1)}, "records in a batch"),
        ({57: struct.pack(">i", 4)}, "last offset delta 4"),
        ({23: struct.pack(">i", 6), 57: struct.pack(">i", 7)}, "does not decode"),
        ({23: struct.pack(">i", 3), 57: struct.pack(">i", 4)}, "decode"),
        ({23: struct.pack(">i", 9_999), 57: struct.pack(">i", 10_000)}, "cannot fit"),
    ],
)
def test_a_header_that_lies_is_refused_with_the_reason(patches: dict[int, bytes], reason: str) -> None:
    with pytest.raises(MalformedBatch, match=reason):
        check(rebuilt(sample(), patches=patches))


def test_offset_deltas_with_a_hole_are_refused() -> None:
    one = bytes(encode([Record(None, b"a", 0)]))[HEADER_BYTES:]
    two = bytes(encode([Record(None, b"a", 0)] * 3))[HEADER_BYTES:]
    hole = rebuilt(sample(2), records=one + two[2 * len(one) :])
    with pytest.raises(MalformedBatch, match="offset delta 2"):
        check(hole)


@pytest.mark.parametrize("codec", [5, 7])
def test_codecs_that_nobody_knows_are_refused(codec: int) -> None:
    with pytest.raises(MalformedBatch, match=f"codec {codec} is unknown"):
        check(rebuilt(sample(), codec=codec))


@pytest.mark.parametrize(
    ("codec", "pack"), [(SNAPPY, cramjam.snappy.compress_raw), (LZ4, cramjam.lz4.compress)], ids=["snappy", "lz4"]
)
def test_lz4_and_snappy_are_read(codec: int, pack: Callable[[bytes], object]) -> None:
    plain = bytes(sample())
    packed = rebuilt(sample(), codec=codec, records=bytes(memoryview(pack(plain[HEADER_BYTES:]))))  # type: ignore[arg-type]
    check(packed)
    assert [record.value for record in decode(packed)] == [record.value for record in decode(plain)]


@pytest.mark.parametrize("codec", [GZIP, SNAPPY, LZ4, ZSTD])
def test_a_stream_that_is_not_compressed_at_all_is_refused(codec: int) -> None:
    with pytest.raises(MalformedBatch, match="decompress"):
        check(rebuilt(sample(), codec=codec))


@pytest.mark.parametrize("codec", [GZIP, ZSTD])
@pytest.mark.parametrize("change", ["cut 1", "cut 4", "junk", "second stream"])
def test_an_incomplete_or_overlong_compressed_stream_is_refused(codec: int, change: str) -> None:
    """The bytes are served as they came: a stream that only this decoder reads would stop every other consumer."""
    packed = compressed(sample(), codec)
    stream = packed[HEADER_BYTES:]
    streams = {
        "cut 1": stream[:-1],
        "cut 4": stream[:-4],
        "junk": stream + b"junk",
        "second stream": stream + stream,
    }
    with pytest.raises(MalformedBatch):
        check(rebuilt(packed, records=streams[change]))


def bomb(codec: int, size: int) -> bytes:
    """`size` zero bytes as a compressed records section."""
    if codec == GZIP:
        packer = zlib.compressobj(9, wbits=31)
        return b"".join([*(packer.compress(bytes(MiB)) for _ in range(size // MiB)), packer.flush()])
    with_size = zstandard.ZstdCompressor()
    return with_size.compress(bytes(size))


@pytest.mark.parametrize("codec", [GZIP, ZSTD])
def test_a_bomb_is_refused_without_being_inflated(codec: int) -> None:
    batch = rebuilt(sample(), codec=codec, records=bomb(codec, 256 * MiB))
    tracemalloc.start()
    with pytest.raises(RecordTooLarge, match="inflates"):
        check(batch)
    _, peak_bytes = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak_bytes < 3 * BATCH_BYTES_MAX


def test_a_zstd_window_beyond_the_budget_is_refused() -> None:
    parameters = zstandard.ZstdCompressionParameters(window_log=27)
    packer = zstandard.ZstdCompressor(compression_params=parameters).compressobj()
    stream = packer.compress(Random(1).randbytes(MiB)) + packer.flush()
    with pytest.raises(MalformedBatch, match="decompress"):
        check(rebuilt(sample(), codec=ZSTD, records=stream))


def batch_of_size(size: int) -> bytes:
    """A valid batch of one record of exactly `size` bytes, made without the encoder's own limit."""
    value = bytes(size - HEADER_BYTES - 15)
    while True:
        attributes_to_key = b"\0\0\0\1"  # attributes, timestamp delta, offset delta, key length -1
        body = attributes_to_key + varint(len(value)) + value + b"\0"
        records = varint(len(body)) + body
        missing = size - HEADER_BYTES - len(records)
        if missing == 0:
            return rebuilt(bytes(encode([Record(None, b"", 0)])), records=records)
        value += bytes(missing)


def varint(number: int) -> bytes:
    """Zigzag varint of a number >= 0."""
    number <<= 1
    out = bytearray()
    while number > 0x7F:
        out.append(number & 0x7F | 0x80)
        number >>= 7
    out.append(number)
    return bytes(out)


def test_a_batch_may_have_the_largest_size_and_not_a_byte_more() -> None:
    largest = batch_of_size(BATCH_BYTES_MAX)
    assert check(largest).size == BATCH_BYTES_MAX
    with pytest.raises(RecordTooLarge, match=str(BATCH_BYTES_MAX)):
        check(batch_of_size(BATCH_BYTES_MAX + 1))


@pytest.mark.parametrize("codec", [GZIP, ZSTD])
def test_a_batch_may_inflate_to_the_largest_size_and_not_a_byte_more(codec: int) -> None:
    assert check(compressed(batch_of_size(BATCH_BYTES_MAX), codec)).record_count == 1
    with pytest.raises(RecordTooLarge, match="inflates"):
        check(compressed(batch_of_size(BATCH_BYTES_MAX + 1), codec))


def test_a_batch_may_hold_the_largest_number_of_records_and_not_one_more() -> None:
    record = Record(None, None, 0)
    assert check(encode([record] * BATCH_RECORDS_MAX)).record_count == BATCH_RECORDS_MAX
    with pytest.raises(RecordTooLarge, match=str(BATCH_RECORDS_MAX)):
        encode([record] * (BATCH_RECORDS_MAX + 1))


def test_as_many_records_as_fit_are_encoded_and_none_of_them_twice() -> None:
    third = bytes(BATCH_BYTES_MAX // 3)
    records = [Record(b"%d" % number, third, 0) for number in range(5)]
    counts = []
    while records:
        batch, count = at_once(encode_most_in_steps(records))
        assert [record.key for record in decode(batch)] == [record.key for record in records[:count]]
        counts.append(count)
        records = records[count:]
    assert counts == [2, 2, 1]
    assert at_once(encode_most_in_steps([Record(None, None, 0)] * (BATCH_RECORDS_MAX + 1)))[1] == BATCH_RECORDS_MAX
    with pytest.raises(RecordTooLarge):
        at_once(encode_most_in_steps([Record(None, bytes(BATCH_BYTES_MAX), 0)] * 2))


@pytest.mark.parametrize(("count", "steps"), [(STEP_RECORDS, 0), (STEP_RECORDS + 1, 1), (3 * STEP_RECORDS, 2)])
def test_others_have_their_turn_while_many_records_are_encoded(count: int, steps: int) -> None:
    records = [Record(b"%d" % number, b"v", number, [("h", b"1")]) for number in range(count)]
    encoding = encode_most_in_steps(records)
    for _ in range(steps):
        next(encoding)
    with pytest.raises(StopIteration) as end:
        next(encoding)
    assert end.value.value == (encode(records), count)


def test_encode_refuses_records_that_do_not_fit_one_batch() -> None:
    value = bytes(BATCH_BYTES_MAX // 2)
    with pytest.raises(RecordTooLarge):
        encode([Record(None, value, 0), Record(None, value, 0)])
    with pytest.raises(RecordTooLarge):
        encode([Record(None, bytes(BATCH_BYTES_MAX), 0)])


def test_split_cuts_a_body_into_its_batches() -> None:
    parts = [sample(1), sample(7), compressed(sample(3), ZSTD)]
    assert [bytes(part) for part in split(b"".join(parts))] == parts
    assert list(split(b"")) == []


@pytest.mark.parametrize("length", [-1, 0, HEADER_BYTES - 13, 10_000, 2**31 - 1])
def test_split_refuses_lengths_that_cannot_be(length: int) -> None:
    body = bytearray(sample() + sample())
    struct.pack_into(">i", body, len(sample()) + LENGTH_AT, length)
    with pytest.raises(MalformedBatch, match=f"batch at byte {len(sample())}"):
        list(split(body))


def test_split_refuses_a_batch_that_is_cut_short() -> None:
    body = sample() + sample()
    for size in range(len(sample()) + 1, len(body)):
        with pytest.raises(MalformedBatch):
            list(split(body[:size]))


@pytest.mark.parametrize("kind", [bytes, bytearray, memoryview])
def test_a_new_base_offset_is_patched_where_the_crc_does_not_look(kind: Callable[[bytes], Buffer]) -> None:
    batch = kind(sample())
    patched = with_base_offset(batch, 2**40)
    assert check(patched).base_offset == 2**40
    assert patched[CRC_AT:] == sample()[CRC_AT:]
    assert (patched is batch) == (kind is bytearray), "a bytearray is patched in place, anything else is left alone"


def test_a_batch_that_shrinks_is_compressed_and_reads_the_same() -> None:
    records = [
        Record(b"k%d" % number, b'{"carrier": "UA", "delay": %d}' % number, 7, [("a", b"b")]) for number in range(500)
    ]
    plain = encode(records)
    packed = record_batch.compressed(bytearray(plain))
    assert len(packed) < len(plain) // 2
    assert record_batch.is_compressed(packed)
    header = check(packed)
    assert (header.record_count, header.size) == (500, len(packed))
    moved = record_batch.with_base_offset(packed, 1000)
    expected = [(1000 + place, r.key, r.value, r.timestamp_ms, list(r.headers)) for place, r in enumerate(records)]
    assert [(r.offset, r.key, r.value, r.timestamp, list(r.headers)) for r in decode(moved)] == expected
    assert record_batch.compressed(packed) is packed


def test_a_batch_is_left_alone_when_compressing_does_not_pay() -> None:
    def of_size(size: int, fill: bytes) -> bytearray:
        empty = len(encode([Record(None, b"x" * 1000, 0)])) - 1000
        batch = encode([Record(None, (fill * size)[: size - empty - 1], 0)])
        assert abs(len(batch) - size) <= 2
        return batch

    below = of_size(record_batch.COMPRESS_BYTES_MIN - 3, b"a")
    assert record_batch.compressed(below) is below
    assert record_batch.is_compressed(record_batch.compressed(of_size(record_batch.COMPRESS_BYTES_MIN + 3, b"a")))
    noise = encode([Record(None, Random(1).randbytes(10_000), 0)])
    assert record_batch.compressed(noise) is noise


def limited(*records: Record, pack: bool = False) -> None:
    """Check records as one batch of a stranger's, alone and behind others that are fine."""
    for before in ([], [Record(b"k", b"v", 0)] * 5):
        batch = encode([*before, *records])
        check(batch)
        check(record_batch.zstd_packed(batch, level=1) if pack else batch, limited=True)


@pytest.mark.parametrize("pack", [False, True])
def test_each_record_of_a_limited_batch_is_held_to_the_limits_of_one(pack: bool) -> None:
    def refused(record: Record, error: type[StoreError] = IllegalRecord) -> None:
        with pytest.raises(error, match=r"record [05]: .* limit is "):
            limited(record, pack=pack)

    limited(Record(bytes(KEY_BYTES_MAX), b"v", 0), pack=pack)
    refused(Record(bytes(KEY_BYTES_MAX + 1), b"v", 0))
    many = [("h", b"")] * HEADER_COUNT_MAX
    limited(Record(None, None, 0, many), pack=pack)
    refused(Record(None, None, 0, [*many, ("h", None)]))
    limited(Record(None, b"v", 0, [("ä", bytes(HEADERS_BYTES_MAX - 2))]), pack=pack)
    refused(Record(None, b"v", 0, [("ä", bytes(HEADERS_BYTES_MAX - 1))]))
    limited(Record(b"key", bytes(RECORD_BYTES_MAX - 5), 0, [("h", b"1")]), pack=pack)
    refused(Record(b"key", bytes(RECORD_BYTES_MAX - 4), 0, [("h", b"1")]), RecordTooLarge)
    refused(Record(None, bytes(RECORD_BYTES_MAX + 1), 0), RecordTooLarge)


def _varied(count: int) -> list[Record]:
    return [
        Record(b"k" * number, b"v" * (number * 97), number, [("h", b"x")] if number % 3 else ())
        for number in range(count)
    ]


def _of_one_size(count: int, value_bytes: int = 100) -> list[Record]:
    return [Record(None, b"%d" % (number % 10) * value_bytes, 1) for number in range(count)]


@pytest.mark.parametrize(
    "records",
    [
        _varied(300),
        _of_one_size(1),
        _of_one_size(15),
        _of_one_size(16),
        _of_one_size(500),
        [*_varied(60), *_of_one_size(400), *_varied(30), *_of_one_size(40, 60), *_of_one_size(40, 61)],
        [*_of_one_size(300), Record(None, b"longer" * 40, 1)],
    ],
    ids=["varied", "one", "few", "one size", "runs", "mixed", "the last differs"],
)
def test_some_records_are_decoded_as_with_the_others(records: Sequence[Record]) -> None:
    whole = encode(records)
    for batch in (whole, bytes(whole), memoryview(bytes(whole))):
        starts = list(chain.from_iterable(record_starts(batch)))
        decoded = [_plain(one) for one in decode(batch)]
        assert len(starts) == len(decoded)
        last = len(decoded) - 1
        for indexes in ([0], [last], [0, last // 2, last], list(range(last + 1)), [last // 2, last // 3]):
            some = [_plain(one) for one in decode_some(batch, starts, indexes)]
            assert some == [decoded[index] for index in indexes]


def test_where_records_start_is_not_looked_for_behind_the_batch() -> None:
    batch = encode([Record(None, b"v" * 100, 1)] * 3)
    with pytest.raises(MalformedBatch):
        list(record_starts(batch[:-150]))


def _plain(record: DecodedRecord) -> tuple[object, ...]:
    return record.offset, record.timestamp, record.key, record.value, list(record.headers)


@pytest.mark.parametrize(("headers_each", "steps"), [(0, 1), (9, 18)])
def test_a_batch_of_many_headers_is_checked_in_steps(headers_each: int, steps: int) -> None:
    headers = [(f"h{number}", b"1") for number in range(headers_each)]
    records = [Record(None, b"%d" % number, 0, headers) for number in range(2 * record_batch.STEP_ITEMS - 1)]
    batch = record_batch.encode(records)
    before = record_batch.may_be_long(batch)  # a step without a record
    assert sum(1 for _ in record_batch.check_in_steps(batch)) == steps + before
    assert record_batch.check(batch).record_count == len(records)


@pytest.mark.parametrize(
    ("count", "value", "is_packed", "is_long"),
    [
        (307, b"x" * 1000, False, False),
        (308, b"x" * 1000, False, True),
        (308, b"x" * 100, False, False),
        (308, b"x" * 100, True, True),
        (307, b"x" * 100, True, False),
    ],
)
def test_what_may_take_several_steps_is_known_beforehand(
    count: int, value: bytes, is_packed: bool, is_long: bool
) -> None:
    batch = record_batch.encode([Record(None, value, 0, ())] * count)
    if is_packed:
        batch = bytearray(record_batch.zstd_packed(batch, level=1))
    assert record_batch.may_be_long(batch) is is_long
    assert not record_batch.may_be_long(b"too short")
    alike = list(record_batch.check_in_steps(batch))
    differing = record_batch.encode([Record(None, value + b"x" * (number % 2), 0, ()) for number in range(count)])
    assert (alike, len(list(record_batch.check_in_steps(differing)))) == ([], is_long and not is_packed)


@pytest.mark.parametrize("codec", [None, "zstd", "gzip"])
@pytest.mark.parametrize("value", [b"v", None, b"x" * 20_000, bytes(Random(1).randbytes(20_000))])
def test_a_mark_is_put_on_a_batch_and_taken_off_again(codec: str | None, value: bytes | None) -> None:
    headers: list[tuple[str, bytes | None]] = [("a", b"1"), ("b", None)]
    records = [Record(None, value, 1_000, headers), Record(b"k", b"w", 2_000), Record(b"", b"", 1_500)]
    plain = record_batch.encode(records)
    batch = plain
    if codec == "zstd":
        batch = record_batch.zstd_packed(plain, level=1)
    elif codec == "gzip":
        packed = zlib.compressobj(wbits=31)
        batch = plain[:61] + packed.compress(plain[61:]) + packed.flush()
        batch[22] |= 1
        record_batch._seal(batch)
    content = bytes(range(256)) * 3
    marked = record_batch.marked(batch, b"mq-x", content)
    record_batch.check(marked)
    assert record_batch.is_compressed(marked) == (codec is not None)
    first, *rest = list(record_batch.decode(marked))
    assert list(first.headers) == [("mq-x", content), *headers]
    assert [(one.key, one.value, one.timestamp, one.offset) for one in rest] == [
        (b"k", b"w", 2_000, 1),
        (b"", b"", 1_500, 2),
    ]
    assert record_batch.mark_of(marked, b"mq-x") == content
    assert record_batch.mark_of(marked, b"mq-y") is record_batch.mark_of(batch, b"mq-x") is None
    assert record_batch.unmarked(marked, b"mq-x") == plain
    assert record_batch.unmarked(batch, b"mq-x") is batch


@pytest.mark.parametrize("count", [1, PIECE_RECORDS, PIECE_RECORDS + 1, 3 * PIECE_RECORDS])
def test_pieces_are_the_whole_in_order(count: int) -> None:
    batch = record_batch.encode([Record(None, b"%d" % number, 0, ()) for number in range(count)])
    pieces = list(record_batch.decode_in_pieces(batch))
    assert [record.offset for piece in pieces for record in piece] == list(range(count))
    assert max(map(len, pieces)) <= PIECE_RECORDS
    assert len(pieces) == -(-count // PIECE_RECORDS)


def test_a_mark_that_makes_a_batch_too_large_is_refused() -> None:
    batch = record_batch.encode([Record(None, b"v" * (BATCH_BYTES_MAX - 200), 1)])
    with pytest.raises(RecordTooLarge):
        record_batch.marked(batch, b"mq-x", b"c" * 200)


def test_only_the_head_of_a_batch_changes_when_it_is_numbered() -> None:
    batch = encode([Record(b"k", b"v" * 1_000, 5)] * 3)
    head = record_batch.numbered_head(memoryview(batch), 4001, 7, 90)
    whole = record_batch.numbered(batch, 4001, 7, 90)
    assert whole == head + batch[record_batch.HEADER_BYTES :]
    assert record_batch.numbers_of(whole) == (4001, 7, 90)
    assert record_batch.check(whole).record_count == 3
    assert record_batch.numbers_of(batch)[0] == -1, "the batch itself is as it was"


@pytest.mark.parametrize("records_bytes", [record_batch.CHANGED_BYTES_MIN - 1, record_batch.CHANGED_BYTES_MIN])
def test_the_checksum_of_a_changed_head_is_that_of_the_whole_batch(records_bytes: int) -> None:
    value = bytes(records_bytes - (len(encode([Record(None, bytes(records_bytes), 5)])) - HEADER_BYTES - records_bytes))
    batch = encode([Record(None, value, 5)])
    assert len(batch) == HEADER_BYTES + records_bytes
    numbered = record_batch.numbered(batch, 4001, 7, 90)
    assert record_batch.check(numbered).record_count == 1
    record_batch._ATTRIBUTES.pack_into(batch, record_batch._CRC_FROM, record_batch._LOG_APPEND_TIME)
    record_batch._seal(batch)
    undated = bytearray(batch)
    record_batch.undate(memoryview(undated))
    assert record_batch.check(undated).record_count == 1
    assert undated[record_batch._CRC_FROM : record_batch._CRC_FROM + 2] == bytes(2)
    assert undated[HEADER_BYTES:] == batch[HEADER_BYTES:]


def test_what_is_damaged_in_memory_is_not_made_good_when_it_is_numbered() -> None:
    batch = encode([Record(None, bytes(record_batch.CHANGED_BYTES_MIN), 5)])
    record_batch.check(batch)
    batch[-100] ^= 1
    with pytest.raises(CorruptBatch):
        record_batch.check(record_batch.numbered(batch, 4001, 7, 90))


@pytest.mark.parametrize("count", [1, 63, 64, 65, 99, 100, 101, 400, 1_999, 2_000, 2_001, 8_193])
@pytest.mark.parametrize("key_bytes", [None, 0, 63, 64, 200])
@pytest.mark.parametrize("quote", [b"", b'"'])
def test_columns_are_encoded_as_the_same_records_are(count: int, key_bytes: int | None, quote: bytes) -> None:
    """Joined or by the codec, and where offset deltas and lengths take another byte."""
    random = Random(count)
    keys = None if key_bytes is None else [random.randbytes(key_bytes) for _ in range(count)]
    for sizes in ([100], [0], range(55, 70), range(8_180, 8_200) if count < 500 else [62], range(2, 400)):
        values = [bytes(random.choice(sizes)) for _ in range(count)]
        same = [
            Record(None if keys is None else keys[at], quote + value + quote, 7, []) for at, value in enumerate(values)
        ]
        assert encode_columns(keys, values, 7, quote=quote) == encode(same)


def test_so_are_columns_of_keys_of_many_sizes_and_with_tombstones() -> None:
    keys, values = [b"k" * (at % 3) for at in range(200)], [None if at % 9 == 0 else b"v" for at in range(200)]
    for own_keys, own_values in ((keys, [b"v"] * 200), (keys, values), (None, values), ([b"k"] * 200, values)):
        same = [Record(None if own_keys is None else own_keys[at], value, 7, []) for at, value in enumerate(own_values)]
        assert encode_columns(own_keys, own_values, 7) == encode(same)


def test_columns_too_large_for_a_batch_are_refused() -> None:
    for count in (4, 400):
        with pytest.raises(RecordTooLarge):
            encode_columns(None, [bytes(BATCH_BYTES_MAX // count)] * count, 7)
