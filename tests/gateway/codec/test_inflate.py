"""gateway/codec/inflate.py: whole bodies pass, bombs and stumps do not."""

from __future__ import annotations

import gzip
import random
import zlib
from collections.abc import Callable

import pytest
import zstandard
from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.codec.inflate import (
    ENCODINGS,
    PIECE_BYTES_MAX,
    RATIO_FREE_BYTES,
    RATIO_MAX,
    BadEncoding,
    InflatedTooLarge,
    Inflater,
)
from store.limits import MiB


def bare_deflate(data: bytes) -> bytes:
    packer = zlib.compressobj(wbits=-15)
    return packer.compress(data) + packer.flush()


PACKERS: list[tuple[str, Callable[[bytes], bytes]]] = [
    ("gzip", gzip.compress),
    ("x-gzip", gzip.compress),
    ("deflate", zlib.compress),
    ("deflate", bare_deflate),
    ("zstd", zstandard.compress),
]
NOISE = random.Random(1).randbytes(200_000)


def inflated(encoding: str, packed: bytes, *, bytes_max: int = 10 * MiB, step: int = 10 * MiB) -> bytes:
    inflater = Inflater(encoding, bytes_max=bytes_max)
    parts = [part for at in range(0, len(packed), step) for part in inflater.feed(packed[at : at + step])]
    inflater.finish()
    return b"".join(parts)


def test_every_encoding_is_tried_here() -> None:
    assert {name for name, _ in PACKERS} == set(ENCODINGS)


@pytest.mark.parametrize(("encoding", "pack"), PACKERS)
@settings(max_examples=30)
@given(data=st.binary(max_size=2000), step=st.integers(1, 300))
def test_a_body_comes_out_as_it_was_however_it_arrives(
    encoding: str, pack: Callable[[bytes], bytes], data: bytes, step: int
) -> None:
    assert inflated(encoding, pack(data), step=step) == data


@pytest.mark.parametrize(("encoding", "pack"), PACKERS)
def test_a_stump_is_refused(encoding: str, pack: Callable[[bytes], bytes]) -> None:
    packed = pack(NOISE)
    for cut in (1, 2, 5, len(packed) // 2, len(packed) - 1, len(packed)):
        with pytest.raises(BadEncoding):
            inflated(encoding, packed[: len(packed) - cut])


@pytest.mark.parametrize(("encoding", "pack"), PACKERS)
def test_bytes_behind_the_end_are_refused(encoding: str, pack: Callable[[bytes], bytes]) -> None:
    with pytest.raises(BadEncoding):
        inflated(encoding, pack(NOISE) + b"junk")


@pytest.mark.parametrize("encoding", ["gzip", "deflate", "zstd"])
def test_what_is_not_packed_at_all_is_refused(encoding: str) -> None:
    with pytest.raises(BadEncoding):
        inflated(encoding, b"\xff\xfe this is plain")


def test_gzip_members_and_zstd_frames_follow_each_other() -> None:
    for pack, encoding in ((gzip.compress, "gzip"), (zstandard.compress, "zstd")):
        assert inflated(encoding, pack(b"one ") + pack(b"two"), step=3) == b"one two"


@pytest.mark.parametrize(("encoding", "pack"), PACKERS)
def test_the_budget_is_exact(encoding: str, pack: Callable[[bytes], bytes]) -> None:
    packed = pack(NOISE)
    assert inflated(encoding, packed, bytes_max=len(NOISE)) == NOISE
    with pytest.raises(InflatedTooLarge, match=str(len(NOISE) - 1)):
        inflated(encoding, packed, bytes_max=len(NOISE) - 1)


def test_the_ratio_is_capped_beyond_the_free_bytes() -> None:
    free = b"\0" * RATIO_FREE_BYTES
    assert inflated("gzip", gzip.compress(free)) == free
    with pytest.raises(InflatedTooLarge, match=f"{RATIO_MAX} times"):
        inflated("gzip", gzip.compress(b"\0" * (RATIO_FREE_BYTES * 2)))


@pytest.mark.parametrize(
    ("encoding", "pack", "size"),
    [
        ("gzip", gzip.compress, 64 * MiB),
        ("deflate", zlib.compress, 64 * MiB),
        ("zstd", zstandard.compress, 512 * MiB),
    ],
)
def test_a_bomb_is_stopped_at_its_first_piece(encoding: str, pack: Callable[[bytes], bytes], size: int) -> None:
    bomb = pack(bytes(size))
    inflater = Inflater(encoding, bytes_max=16 * MiB)
    sizes = []
    with pytest.raises(InflatedTooLarge):
        sizes += [len(piece) for piece in inflater.feed(bomb)]
    assert sum(sizes) <= 16 * MiB
    assert 16 * MiB >= PIECE_BYTES_MAX  # what one step may hold in memory


def test_a_zstd_window_beyond_what_decoders_must_support_is_refused() -> None:
    parameters = zstandard.ZstdCompressionParameters(window_log=27, write_content_size=False)
    packer = zstandard.ZstdCompressor(compression_params=parameters).compressobj()
    packed = packer.compress(NOISE) + packer.flush()
    with pytest.raises(BadEncoding):
        inflated("zstd", packed)
