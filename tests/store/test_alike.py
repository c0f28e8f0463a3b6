"""Records that are alike pass without being decoded; whatever passes so decodes, byte for byte as it was sent."""

from __future__ import annotations

import random
import struct
import time
from collections import deque
from contextlib import suppress
from itertools import chain

import pytest
from aiokafka.record import util

from loadtest.slowness import slowness
from store import alike, record_batch
from store.alike import (
    COPIED_BYTES,
    LAYOUTS_MAX,
    RUN_COUNT_MIN,
    UNPACKED_COUNT,
    VIEWED_BYTES,
    _offsets,
    are_alike,
    columns_of,
)
from store.errors import IllegalRecord, MalformedBatch, RecordTooLarge
from store.limits import BATCH_RECORDS_MAX, KEY_BYTES_MAX
from store.record_batch import Record, encode
from store.types import Buffer
from tests.seeds import each_seed

COUNT = 300


@pytest.fixture(autouse=True)
def no_layouts(monkeypatch: pytest.MonkeyPatch) -> None:
    """No test finds what another one has left."""
    monkeypatch.setattr(alike, "_layouts", {})


def _batch(count: int, *, key: bytes | None = None, value: bytes | None = b"v" * 20, step_ms: int = 0) -> bytearray:
    return encode([Record(key, value, 1_000 + number * step_ms) for number in range(count)])


def _within(batch: Buffer, *, before: bytes = b"before", behind: Buffer = b"") -> memoryview:
    """A batch in the middle of what has arrived."""
    arrived = bytearray(before) + batch + behind
    return memoryview(arrived)[len(before) : len(before) + len(batch)]


def _decodes(batch: bytearray) -> bool:
    """Whether it passes the check of each record; lengths and checksum are made to fit its bytes."""
    record_batch._LENGTH.pack_into(batch, 8, len(batch) - 12)
    count = record_batch.record_count(batch)
    with suppress(MalformedBatch, RecordTooLarge, IllegalRecord):
        deque(record_batch._check_records(batch, 0, count, True, None), maxlen=0)
        return True
    return False


@pytest.mark.parametrize("count", [1, 64, 65, 8_193])
@pytest.mark.parametrize(("key", "value"), [(None, b"v" * 20), (b"key", None), (b"", b""), (b"k" * 70, b"v" * 150)])
def test_records_of_one_size_are_alike(count: int, key: bytes | None, value: bytes | None) -> None:
    assert are_alike(_batch(count, key=key, value=value), count)
    assert are_alike(memoryview(_batch(count, key=key, value=value, step_ms=1)), count)
    assert are_alike(memoryview(_batch(count, key=key, value=bytes(VIEWED_BYTES), step_ms=1)), count)


@pytest.mark.parametrize("count", [1, 64, 65, 8_193])
@pytest.mark.parametrize(
    ("key", "value"), [(None, b"v" * 20), (b"key", None), (b"", b""), (None, None), (b"k" * 70, b"v" * 150)]
)
def test_keys_and_values_of_records_that_are_alike_are_those_that_decode(
    count: int, key: bytes | None, value: bytes | None
) -> None:
    for view in (bytearray, memoryview):
        columns = columns_of(view(_batch(count, key=key, value=value)), count)
        assert columns == ([key] * count, [value] * count, 0)
    large = None if value is None else bytes(VIEWED_BYTES)
    assert columns_of(memoryview(_batch(count, key=key, value=large)), count) == ([key] * count, [large] * count, 0)
    if count > 1:
        assert columns_of(_batch(count, key=key, value=value, step_ms=1), count) is None


def test_columns_are_of_batches_that_need_no_codec() -> None:
    numbered = [Record(b"%05d" % number, b"%07d" % number, 1_000) for number in range(COUNT)]
    keys, values = [one.key for one in numbered], [one.value for one in numbered]
    batch = encode(numbered)
    assert record_batch.alike_columns(batch) == (keys, values, 1_000)
    of_append = batch.copy()  # the time of their append is theirs, whatever they say themselves
    record_batch._ATTRIBUTES.pack_into(of_append, record_batch._CRC_FROM, record_batch._LOG_APPEND_TIME)
    assert record_batch.alike_columns(of_append) is None
    assert record_batch.alike_columns(encode(numbered[: record_batch.ALIKE_COUNT_MIN])) is not None
    assert record_batch.alike_columns(encode(numbered[: record_batch.ALIKE_COUNT_MIN - 1])) is None
    assert record_batch.alike_columns(record_batch.zstd_packed(batch, level=1)) is None
    assert record_batch.alike_columns(encode([*numbered, Record(b"k", b"v", 1_000, [("h", b"1")])])) is None


@pytest.mark.parametrize("more", [-1, 0, 1, UNPACKED_COUNT, UNPACKED_COUNT + 1])
def test_columns_taken_in_several_calls_are_in_order(more: int) -> None:
    """The first 64 records are a run by themselves: their offsets take a byte."""
    numbered = [Record(b"%05d" % number, b"%07d" % number, 1_000) for number in range(64 + UNPACKED_COUNT + more)]
    assert record_batch.alike_columns(encode(numbered)) == (
        [one.key for one in numbered], [one.value for one in numbered], 1_000,
    )  # fmt: skip


def test_offsets_are_those_of_varints_up_to_the_most_records_of_a_batch() -> None:
    for byte_count, low, high in ((1, 0, 64), (2, 64, 8_192), (3, 8_192, BATCH_RECORDS_MAX)):
        columns = _offsets(byte_count)
        for delta in {low, low + 1, (low + high) // 2, high - 1, *range(low, high, 997)}:
            varint = bytearray()
            util.encode_varint_py(delta, varint.append)
            assert bytes(column[delta] for column in columns) == varint


def test_long_varints_and_many_runs_cost_little() -> None:
    endless = _batch(2) + b"\xff" * 8_000_000
    for at in (61, 62, 63, 64, 65, 66):  # length, attributes, timestamp, offset, key, value
        hostile = endless.copy()
        hostile[at : at + 1_000] = b"\xff" * 1_000
        began_s = time.process_time()
        assert not are_alike(hostile, 100_000)
        taken_s = time.process_time() - began_s
        assert taken_s < 0.2 * slowness()
    runs = [Record(None, b"v" * (1 + number // RUN_COUNT_MIN % 2), 0) for number in range(64 * RUN_COUNT_MIN)]
    assert not are_alike(encode(runs), len(runs))
    assert are_alike(encode(runs[: 2 * RUN_COUNT_MIN]), 2 * RUN_COUNT_MIN)


def test_a_key_is_held_to_its_limit() -> None:
    assert are_alike(_batch(COUNT, key=bytes(KEY_BYTES_MAX)), COUNT)
    assert not are_alike(_batch(COUNT, key=bytes(KEY_BYTES_MAX + 1)), COUNT)


def test_what_is_not_alike_is_left_to_the_decoder() -> None:
    sizes = [Record(None, bytes(number % 7), 0) for number in range(COUNT)]
    headers = [Record(None, b"v", 0, [("h", b"1")])] * COUNT
    backwards = [Record(None, b"v", -(10**12) * number) for number in range(COUNT)]
    for records in (sizes, headers, backwards):
        batch = encode(records)
        assert not are_alike(batch, COUNT)
        assert record_batch.check(batch).record_count == COUNT


def test_records_that_are_missing_or_left_over() -> None:
    batch = _batch(COUNT)
    assert not are_alike(batch, COUNT - 1)
    assert not are_alike(batch, COUNT + 1)
    assert not are_alike(batch + b"\0", COUNT)
    assert not are_alike(batch[:-1], COUNT)


@pytest.mark.parametrize("value_bytes", [20, VIEWED_BYTES])
def test_a_batch_ends_where_its_view_does(value_bytes: int) -> None:
    batch = _batch(COUNT, value=b"v" * value_bytes)
    size = (len(batch) - 61) // COUNT
    assert are_alike(_within(batch, behind=batch), COUNT)
    for cut in (1, size - 1, size, size + 1):
        assert not are_alike(_within(batch[:-cut], behind=batch[-cut:]), COUNT), "the rest of it is behind it"
        assert not are_alike(_within(batch + batch[-cut:]), COUNT)
    assert are_alike(memoryview(_within(batch)), COUNT), "a view of a view"


@each_seed(20)
def test_whatever_passes_decodes(seed: int) -> None:
    rng = random.Random(seed)
    passed = taken = 0
    for _ in range(100):
        count = rng.choice((40, 70, 130))
        value = rng.choice((None, b"v" * rng.randrange(2 * VIEWED_BYTES)))
        batch = _batch(count, key=rng.choice((None, b"k")), value=value, step_ms=rng.choice((0, 1, 100)))
        size = (len(batch) - 61) // count
        for _ in range(rng.randint(1, 3)):
            at = 61 + rng.randrange(len(batch) - 61)
            new = rng.choice((0, 1, 0x7F, 0x80, 0xFF, rng.randrange(256)))
            for place in rng.choice(((at,), range(61 + (at - 61) % size, len(batch), size))):  # in one, or in each
                batch[place] = new
        behind = rng.randbytes(rng.choice((0, 100)))
        if rng.random() < 0.2:
            cut = rng.randrange(62, len(batch))
            behind = batch[cut:] + behind
            del batch[cut:]
        is_alike = are_alike(batch, count)
        within = _within(batch, before=rng.randbytes(rng.randrange(100)), behind=behind)
        columns = columns_of(batch, count)
        for view in (memoryview(batch), memoryview(bytes(batch)), within, within.toreadonly()):
            assert are_alike(view, count) is is_alike
            assert columns_of(view, count) == columns
        if is_alike:
            passed += 1
            assert _decodes(batch)
            decoded = list(record_batch.decode(batch))
            if columns is not None:
                taken += 1
                assert columns.keys == [record.key for record in decoded]
                assert columns.values == [record.value for record in decoded]
                base_ms = record_batch._HEADER.unpack_from(batch)[7]
                assert {base_ms + columns.time_delta_ms} == {record.timestamp for record in decoded}
        else:
            assert columns is None
    assert passed > 5
    assert taken > 2


def test_a_batch_that_is_alike_is_refused_for_a_wrong_checksum() -> None:
    batch = _batch(COUNT)
    (crc,) = struct.unpack_from(">I", batch, 17)
    struct.pack_into(">I", batch, 17, crc ^ 1)
    with pytest.raises(MalformedBatch):
        record_batch.check(batch)


def test_a_number_that_is_not_its_own() -> None:
    deltas = chain((63, 64), (8_191, 8_192))
    for delta in deltas:  # one number that is not its own
        other = encode([Record(None, b"v" * 20, 1_000)] * (delta + 1))
        place = len(other) - 22 - 1 - (1 if delta < 64 else 2 if delta < 8_192 else 3)
        other[place] ^= 2
        assert not are_alike(other, delta + 1)
        assert not _decodes(other)


@pytest.mark.parametrize("key", [None, b"key"])
def test_a_batch_that_is_laid_out_as_another_one_is_alike_by_the_same_bytes(key: bytes | None) -> None:
    """Each byte of a batch is changed in turn: with a layout in mind the answer is what it is without."""
    count = 66  # two runs
    batch = _batch(count, key=key, value=b"value", step_ms=1)
    for _ in range(2):
        assert are_alike(batch, count)
    layouts = dict(alike._layouts)
    assert [layout is None for layout in layouts.values()] == [False]
    passed = 0
    for at in range(len(batch)):
        for changed in {0, 2, 0x80, 0xFF, batch[at] ^ 1, batch[at] ^ 0x80} - {batch[at]}:
            other = batch.copy()
            other[at] = changed
            alike._layouts.clear()
            afresh = are_alike(other, count)
            alike._layouts.clear()
            alike._layouts.update(layouts)
            assert are_alike(other, count) is afresh
            passed += afresh
    assert passed > count * len(b"value")  # keys, values and timestamps may be any


@pytest.mark.parametrize("value_bytes", [1, VIEWED_BYTES])
def test_layouts_are_of_a_place(value_bytes: int) -> None:
    """A batch is laid out as another one at the same place of what has arrived, or it is looked at anew."""
    count = COPIED_BYTES // value_bytes
    batch = _batch(count, value=bytes(value_bytes))
    for before in (b"", b"12345678", b"123456789", b""):
        for _ in range(3):
            assert are_alike(_within(batch, before=before, behind=b"behind"), count)
    assert [layout is None for layout in alike._layouts.values()] == [False] * 3
    assert columns_of(_within(batch, before=b"12345678"), count) == ([None] * count, [bytes(value_bytes)] * count, 0)
    assert not are_alike(_within(batch[:-1], before=b"12345678", behind=b"1"), count)


def test_layouts_are_bounded_and_of_batches_that_come_again() -> None:
    for count in range(1, LAYOUTS_MAX + 1):
        assert are_alike(_batch(count), count)
    assert list(alike._layouts.values()) == [None] * LAYOUTS_MAX
    assert are_alike(_batch(1), 1)
    assert len([one for one in alike._layouts.values() if one is not None]) == 1
    assert are_alike(_batch(LAYOUTS_MAX + 1), LAYOUTS_MAX + 1)
    assert list(alike._layouts.values()) == [None]


def test_the_time_of_columns_is_that_of_their_batch() -> None:
    """Not of the batch whose layout it has."""
    count = 60
    for time_delta_ms in (1, 2, 1, 3):
        batch = _batch(count)
        for place in range(61 + 2, len(batch), (len(batch) - 61) // count):
            batch[place] = 2 * time_delta_ms
        assert columns_of(batch, count) == ([None] * count, [b"v" * 20] * count, time_delta_ms)
    assert len(alike._layouts) == 1
