"""mq.record_batch: what the server's own codec writes, read without it."""

from __future__ import annotations

import contextlib
import gzip
import random
from struct import pack_into

import pytest
import zstandard
from mq.errors import Undecodable
from mq.record_batch import RawBatch, decode

from store import record_batch
from store.record_batch import Record


def batch(records: list[Record], base: int = 0) -> bytearray:
    encoded = bytearray(record_batch.encode(records))
    pack_into(">q", encoded, 0, base)
    return encoded


RECORDS = [
    Record(
        b"k%d" % n if n % 3 else None,
        b"v" * (n * 40) if n % 4 else None,
        1_700_000_000_000 + n * 977,
        [("h", b"x"), ("n", None)],
    )
    for n in range(50)
]


def test_every_field_of_a_record_comes_out_as_it_went_in() -> None:
    found = list(decode(bytes(batch(RECORDS, 1_000))))
    assert [record.offset for record in found] == list(range(1_000, 1_050))
    assert [(r.key, r.value, r.timestamp_ms, r.headers) for r in found] == [
        (r.key, r.value, r.timestamp_ms, list(r.headers)) for r in RECORDS
    ]


def test_records_below_the_offset_asked_for_are_left_out_over_several_batches() -> None:
    payload = bytes(batch(RECORDS, 0) + batch(RECORDS, 50))
    assert [record.offset for record in RawBatch("t", 0, 48, 100, payload).records()] == list(range(48, 100))


@pytest.mark.behaviour(31)
@pytest.mark.parametrize(("number", "pack"), [(1, gzip.compress), (4, zstandard.ZstdCompressor().compress)])
def test_compressed_batches_are_inflated(number: int, pack: object) -> None:
    plain = batch(RECORDS)
    assert callable(pack)
    packed = bytes(plain[:61]) + pack(bytes(plain[61:]))
    compressed = bytearray(packed)
    pack_into(">i", compressed, 8, len(compressed) - 12)
    pack_into(">h", compressed, 21, number)
    assert list(decode(bytes(compressed))) == list(decode(bytes(plain)))
    compressed[-5] ^= 0xFF
    with pytest.raises(Undecodable):
        list(decode(bytes(compressed)))
    pack_into(">h", compressed, 21, 2)
    with pytest.raises(Undecodable, match="snappy"):
        list(decode(bytes(compressed)))


def test_a_damaged_batch_is_read_or_undecodable_and_nothing_else() -> None:
    dice = random.Random(5)
    good = bytes(batch(RECORDS[:8]))
    for _ in range(2_000):
        damaged = bytearray(good[: dice.choice([len(good), dice.randrange(len(good))])])
        for _ in range(dice.randrange(3)):
            if damaged:
                damaged[dice.randrange(len(damaged))] = dice.randrange(256)
        with contextlib.suppress(Undecodable):
            list(decode(bytes(damaged)))
