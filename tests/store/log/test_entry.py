"""store.log.entry: what was encoded decodes to the same, and nothing else passes for an entry."""

from __future__ import annotations

import struct
from dataclasses import replace
from random import Random

import pytest
from crc32c import crc32c
from hypothesis import given
from hypothesis import strategies as st

from store.log.entry import (
    ALIGNMENT,
    BLANK_BYTES,
    HEADER_BYTES,
    Blank,
    Damage,
    decode_entry,
    decode_headers,
    durable_position_of,
    encode_blank,
    encode_entry,
    entry_bytes,
    entry_length,
    padded,
)
from store.record_batch import Record, encode
from store.types import NO_ID, Append, Delay, Entry, Identity, ProducerSequence, QueueKey, RequestPart, Source

I64 = st.integers(-(2**63), 2**63 - 1)
U32 = st.integers(0, 2**32 - 1)
QUEUE = QueueKey(16, 3)


def encoded(append: Append, *, topic: bytes = b"orders", position: int = 4096, base_offset: int = 7) -> bytes:
    """The bytes of one entry as they stand in the log."""
    buffers = encode_entry(
        append,
        append.batch,
        topic=topic,
        position=position,
        durable_position=4000,
        base_offset=base_offset,
        store_time_ms=1_700_000_000_000,
    )
    return b"".join(buffers)


def plain(size: int = 10) -> Append:
    return Append(queue=QUEUE, batch=encode([Record(b"k", bytes(size), 1)]), record_count=1)


def decoded(content: bytes, at: int = 0, position: int = 4096) -> Entry:
    found = decode_entry(memoryview(content), at, position)
    assert isinstance(found, Entry), found
    return found


@given(
    st.lists(I64, max_size=5),
    st.lists(st.builds(Delay, I64, U32, U32, I64, U32), max_size=5),
    st.lists(st.builds(Source, I64, U32), max_size=5),
    st.booleans(),
    st.binary(min_size=1, max_size=300),
    st.text(min_size=1, max_size=60),
)
def test_everything_in_an_append_comes_back(
    tag_hashes: list[int], delays: list[Delay], sources: list[Source], json_values: bool, batch: bytes, topic: str
) -> None:
    append = Append(
        queue=QUEUE,
        batch=batch,
        record_count=5,
        json_values=json_values,
        tag_hashes=tag_hashes,
        delays=delays,
        sources=sources,
    )
    content = encoded(append, topic=topic.encode())
    assert len(content) == entry_bytes(append, len(topic.encode())) == entry_length(content)
    assert len(content) % ALIGNMENT == 0
    entry = decoded(content + b"behind")
    assert entry == Entry(
        4096, len(content), QUEUE, topic, 7, 5, 1_700_000_000_000, json_values,
        memoryview(batch), tag_hashes or (), delays or (), sources or (),
    )  # fmt: skip
    assert entry.next_offset == 12
    assert durable_position_of(memoryview(content), 0) == 4000


def test_the_header_on_disk_is_the_documented_one() -> None:
    """Written by hand from the module's table; changing either breaks every store there is."""
    batch = bytes(range(13))
    body = struct.pack(">BBHIqqqqIII", 1, 1, 2, 0, 8, 0, 5, 99, 16, 3, 1) + b"ab" + batch
    length = 8 + len(body)
    by_hand = struct.pack(">II", length, crc32c(body)) + body + bytes(-length % 8)
    append = Append(queue=QUEUE, batch=batch, record_count=1, json_values=True)
    buffers = encode_entry(
        append, batch, topic=b"ab", position=8, durable_position=0, base_offset=5, store_time_ms=99
    )  # fmt: skip
    assert b"".join(buffers) == by_hand


def test_every_flipped_bit_is_damage() -> None:
    content = encoded(plain())
    length = struct.unpack(">I", content[:4])[0]
    for at in range(length):
        for bit in range(8):
            changed = bytearray(content)
            changed[at] ^= 1 << bit
            found = decode_entry(memoryview(changed), 0, 4096)
            assert isinstance(found, Damage), f"byte {at}, bit {bit}"
            assert found.position == 4096


def test_headers_are_taken_of_exactly_the_entries_that_decode() -> None:
    """Whatever one bit does: the scan by headers stops where the scan by entries does, or at an extension."""
    sizes = (3, 40, 11)
    content = b""
    for size in sizes:
        content += encoded(plain(size), position=4096 + len(content))
    first = decoded(content).size
    starts = (0, first, first + decoded(content, first, 4096 + first).size)
    for bit in range(first * 8, starts[2] * 8):
        flipped = bytearray(content)
        flipped[bit // 8] ^= 1 << bit % 8
        view = memoryview(bytes(flipped))
        found = [header.position for header in decode_headers(view, 0, 4096)]
        if isinstance(decode_entry(view, first, 4096 + first), Entry):  # padding
            assert len(found) == len(sizes)
        else:
            assert found == [4096]
    assert decode_headers(memoryview(content), first, 4096 + first + 8) == [], "they belong elsewhere"
    assert decode_headers(memoryview(content), first, 4096 + first)[0].position == 4096 + first
    for end in range(len(content)):
        cut = memoryview(content)[:end]
        whole = [at for at in starts if isinstance(decode_entry(cut, at, 4096 + at), Entry)]
        assert [header.position - 4096 for header in decode_headers(cut, 0, 4096)] == whole
    assert decode_headers(memoryview(encoded(replace(plain(), tag_hashes=[7]))), 0, 4096) == []
    assert decode_headers(memoryview(encode_blank(4096, 64, 0)), 0, 4096) == []
    assert decode_headers(memoryview(bytes(200)), 0, 4096) == []


def test_every_cut_is_damage() -> None:
    content = encoded(plain())
    for size in range(struct.unpack(">I", content[:4])[0]):
        assert isinstance(decode_entry(memoryview(content)[:size], 0, 4096), Damage)


def test_an_entry_at_another_position_is_damage() -> None:
    """Copied, misplaced, or left from an older life of the file."""
    content = encoded(plain())
    for position in (0, 4088, 4104, 2**40):
        assert isinstance(decode_entry(memoryview(content), 0, position), Damage)
    assert decoded(bytes(64) + content, at=64).position == 4096


@pytest.mark.parametrize("size", [0, 1, HEADER_BYTES - 1, HEADER_BYTES, 5000])
def test_zeros_never_parse_and_say_that_they_are_zeros(size: int) -> None:
    found = decode_entry(memoryview(bytes(size)), 0, 0)
    assert isinstance(found, Damage)
    assert found.is_zero


def test_noise_is_damage_and_not_taken_for_unwritten_space() -> None:
    rng = Random(1)
    for _ in range(500):
        found = decode_entry(memoryview(rng.randbytes(rng.randrange(1, 300))), 0, 4096)
        assert isinstance(found, Damage)
        assert not found.is_zero


@pytest.mark.parametrize("length", [1, HEADER_BYTES, 2**31, 2**32 - 1])
def test_a_length_is_checked_before_it_is_used(length: int) -> None:
    content = bytearray(encoded(plain()))
    struct.pack_into(">I", content, 0, length)
    assert isinstance(decode_entry(memoryview(content), 0, 4096), Damage)


def test_a_blank_marker_covers_the_rest_of_a_file() -> None:
    marker = encode_blank(960, 64_576, 128)
    assert len(marker) <= BLANK_BYTES
    assert decode_entry(memoryview(marker + bytes(100)), 0, 960) == Blank(960, 64_576)
    assert durable_position_of(memoryview(marker), 0) == 128
    for at in range(len(marker)):
        changed = bytearray(marker)
        changed[at] ^= 1
        found = decode_entry(memoryview(changed), 0, 960)
        assert not isinstance(found, Entry)
        if at >= 4:  # the length is checked by the scan: it must reach the end of the file
            assert isinstance(found, Damage), at


@given(st.integers(0, 10**9))
def test_padding_is_the_least_that_aligns(size: int) -> None:
    assert padded(size) % ALIGNMENT == 0
    assert 0 <= padded(size) - size < ALIGNMENT


@pytest.mark.parametrize(
    "identity",
    [
        Identity(message_ids=[b"a" * 16, NO_ID, b"b" * 16]),
        Identity(request=RequestPart(b"r" * 16, b"f" * 8, [4, 5, 6])),
        Identity(request=RequestPart(b"r" * 16, b"f" * 8, [4, 6, 9])),
        Identity(producer=ProducerSequence(b"p" * 16, 2**63 - 1)),
        Identity(message_ids=[NO_ID] * 3, request=RequestPart(b"r" * 16, b"f" * 8, [0, 1, 2])),
    ],
)
def test_an_identity_reads_back(identity: Identity) -> None:
    batch = encode([Record(None, b"x", 1)] * 3)
    append = Append(queue=QueueKey(16, 0), batch=batch, record_count=3, tag_hashes=[1, 2, 3], identity=identity)
    buffers = encode_entry(
        append, batch, topic=b"t", position=0, durable_position=0, base_offset=0, store_time_ms=1
    )  # fmt: skip
    written = b"".join(buffers)
    assert len(written) == entry_bytes(append, 1)
    entry = decode_entry(memoryview(written), 0, 0)
    assert isinstance(entry, Entry)
    read = entry.identity
    assert read is not None
    assert list(read.message_ids) == list(identity.message_ids)
    assert read.producer == identity.producer
    assert (read.request is None) == (identity.request is None)
    if read.request is not None and identity.request is not None:
        assert read.request[:2] == identity.request[:2]
        assert list(read.request.request_indexes) == list(identity.request.request_indexes)
