"""CRCs of changed bytes are those that a look at all of them gives."""

from __future__ import annotations

import random

import pytest
from crc32c import crc32c

from store.crc import changed_crc
from store.limits import BATCH_BYTES_MAX
from tests.seeds import each_seed


@pytest.mark.parametrize("rest_bytes", [0, 1, 255, 256, 257, 65_535, 65_536, 65_793, 1_000_003, BATCH_BYTES_MAX])
def test_a_changed_head(rest_bytes: int) -> None:
    old, new, rest = b"an old head", b"and the new", bytes(rest_bytes)
    assert changed_crc(crc32c(old + rest), old, new, rest_bytes) == crc32c(new + rest)
    assert changed_crc(crc32c(old + rest), old, old, rest_bytes) == crc32c(old + rest)


@each_seed(5)
def test_any_head_and_any_rest(seed: int) -> None:
    rng = random.Random(seed)
    for _ in range(50):
        old, new = (rng.randbytes(size) for size in [rng.randrange(50)] * 2)
        rest = rng.randbytes(rng.choice((rng.randrange(10), rng.randrange(100_000))))
        assert changed_crc(crc32c(old + rest), old, new, len(rest)) == crc32c(new + rest)
        assert changed_crc(~crc32c(old + rest) & 0xFFFFFFFF, old, new, len(rest)) != crc32c(new + rest)
