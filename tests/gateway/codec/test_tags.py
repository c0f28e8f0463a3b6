"""gateway/codec/tags.py"""

from __future__ import annotations

import struct
import zlib

import pytest
from crc32c import crc32c

from gateway.codec.tags import (
    DELAYED_HEADERS,
    SENT_HEADERS,
    TAG_HEADER,
    batch_tag_hashes,
    check_sent_in_steps,
    tag_hash,
)
from gateway.errors import RequestError
from store import record_batch
from store.errors import MalformedBatch
from store.record_batch import HEADER_BYTES, Record

B2SUM_OF_PAID = "a3c17cdc93342873"  # printf paid | b2sum -l 64

PLAIN = Record(None, b"1", 5)
TAGGED = Record(None, b"2", 5, [("x", b"y"), (TAG_HEADER, b"paid")])


def test_hashes_are_64_bit_stable_and_never_the_mark_for_no_tag() -> None:
    assert tag_hash("paid") == int.from_bytes(bytes.fromhex(B2SUM_OF_PAID), "big", signed=True)
    hashes = {tag_hash(str(number)) for number in range(1000)}
    assert len(hashes) == 1000
    assert 0 not in hashes
    assert all(-(2**63) <= value < 2**63 for value in hashes)


def test_a_batch_without_tags_has_no_hashes() -> None:
    assert batch_tag_hashes(record_batch.encode([PLAIN, PLAIN])) == ()
    assert batch_tag_hashes(record_batch.encode([Record(b"mq-tag", b"mq-tag", 5)])) == ()


def test_a_batch_with_a_tag_has_one_hash_a_record() -> None:
    assert batch_tag_hashes(record_batch.encode([PLAIN, TAGGED])) == [0, tag_hash("paid")]


def test_tags_are_found_in_a_compressed_batch() -> None:
    packed = gzipped(record_batch.encode([TAGGED, PLAIN]))
    record_batch.check(packed)
    assert batch_tag_hashes(memoryview(packed)) == [tag_hash("paid"), 0]


def gzipped(batch: bytearray) -> bytes:
    """The batch as a producer with gzip on would have sent it."""
    compressor = zlib.compressobj(wbits=31)
    records = compressor.compress(bytes(batch[HEADER_BYTES:])) + compressor.flush()
    covered = struct.pack(">h", 1) + bytes(batch[23:HEADER_BYTES]) + records
    length = HEADER_BYTES - 12 + len(records)
    return bytes(batch[:8]) + struct.pack(">iib", length, 0, 2) + struct.pack(">I", crc32c(covered)) + covered


@pytest.mark.parametrize("is_packed", [False, True])
@pytest.mark.parametrize(
    ("names", "allowed", "refused"),
    [
        (["mq-tag", "mq-group", "other", "MQ-x"], SENT_HEADERS, None),
        (["mq-schedule-key"], SENT_HEADERS, "mq-schedule-key"),
        (["mq-schedule-key", "mq-tag"], DELAYED_HEADERS, None),
        (["other", "mq-deliver-at"], DELAYED_HEADERS, "mq-deliver-at"),
        (["mq-"], SENT_HEADERS, "mq-"),
    ],
)
def test_headers_of_ours_are_not_for_senders(
    names: list[str], allowed: frozenset[str], refused: str | None, is_packed: bool
) -> None:
    batch = record_batch.encode([PLAIN, Record(None, b"mq-x " * 50, 5, [(name, b"v") for name in names])])
    if is_packed:
        batch = bytearray(record_batch.compressed(batch))
    if refused is None:
        header, hashes = record_batch.at_once(check_sent_in_steps(batch, allowed=allowed))
        assert header == record_batch.check(batch)
        assert hashes == batch_tag_hashes(batch) == ([0, tag_hash("v")] if "mq-tag" in names else ())
    else:
        with pytest.raises(RequestError, match=f'"{refused}" is reserved'):
            record_batch.at_once(check_sent_in_steps(batch, allowed=allowed))
    batch_tag_hashes(batch)  # the server's own


def test_a_malformed_batch_is_told_before_a_header_of_ours() -> None:
    batch = record_batch.encode([Record(None, b"v", 5, [("mq-deliver-at", b"1")]), PLAIN])
    _put(batch, 57, ">i", 3)
    _put(batch, 23, ">i", 2)
    with pytest.raises(MalformedBatch):
        record_batch.at_once(check_sent_in_steps(batch))


def _put(batch: bytearray, at: int, form: str, value: int) -> None:
    """Change a field of a batch's header, and make its CRC fit."""
    struct.pack_into(form, batch, at, value)
    struct.pack_into(">I", batch, 17, crc32c(bytes(batch[21:])))
