"""lz4 and snappy: what clients write is read, within the budget, and nothing behind it."""

from __future__ import annotations

import struct
from contextlib import suppress

import cramjam
import pytest
from hypothesis import given
from hypothesis import strategies as st

from store.compression import NotUnpacked, TooLarge, unpack_lz4, unpack_snappy

CONTENT = b"the same words again and again " * 4000


def _java(content: bytes, block_bytes: int = 1000) -> bytes:
    blocks = [
        bytes(cramjam.snappy.compress_raw(content[at : at + block_bytes])) for at in range(0, len(content), block_bytes)
    ]
    return b"\x82SNAPPY\0" + struct.pack(">ii", 1, 1) + b"".join(struct.pack(">i", len(one)) + one for one in blocks)


PACKED = [
    (unpack_lz4, bytes(cramjam.lz4.compress(CONTENT))),
    (unpack_snappy, bytes(cramjam.snappy.compress_raw(CONTENT))),
    (unpack_snappy, _java(CONTENT)),
]


@pytest.mark.parametrize(("unpack", "packed"), PACKED)
def test_content_fits_its_budget_exactly_and_not_one_byte_less(unpack: object, packed: bytes) -> None:
    assert callable(unpack)
    assert unpack(packed, len(CONTENT)) == CONTENT
    assert unpack(memoryview(packed), 2 * len(CONTENT)) == CONTENT
    with pytest.raises(TooLarge):
        unpack(packed, len(CONTENT) - 1)


@pytest.mark.parametrize(("unpack", "packed"), PACKED)
def test_what_is_cut_or_has_bytes_behind_it_is_refused(unpack: object, packed: bytes) -> None:
    assert callable(unpack)
    for bad in (packed[:-1], packed[: len(packed) // 2], packed + b"x", b"", packed + packed[16:][:3]):
        with pytest.raises(NotUnpacked):
            unpack(bad, 2 * len(CONTENT))


def test_a_second_lz4_frame_is_refused() -> None:
    frame = bytes(cramjam.lz4.compress(b"one"))
    with pytest.raises(NotUnpacked):
        unpack_lz4(frame + frame, 1000)


@given(st.binary(max_size=200), st.integers(0, 2))
def test_bytes_of_strangers_raise_nothing_else(content: bytes, which: int) -> None:
    unpack, packed = PACKED[which]
    for bad in (content, packed[:40] + content):
        with suppress(NotUnpacked, TooLarge):
            unpack(bad, 100_000)
