"""CRC-32C with numpy alone, against the package that uses the processor's instruction."""

from __future__ import annotations

import random

import pytest
from crc32c import crc32c
from hypothesis import given
from hypothesis import strategies as st
from pyspark_mq import checksum


@given(st.binary(max_size=300), st.integers(0, 2**32 - 1))
def test_short_bytes(data: bytes, before: int) -> None:
    assert checksum.by_columns(data, before) == crc32c(data, before)


@pytest.mark.parametrize("size", [2047, 2048, 2049, 3 * 2048 - 1, 100_000, 1 << 20])
def test_long_bytes(size: int) -> None:
    data = random.Random(size).randbytes(size)
    assert checksum.by_columns(data, 0) == crc32c(data)
    assert checksum.by_columns(memoryview(data)[7:], 99) == crc32c(data[7:], 99)


def test_the_instruction_is_used_where_it_is() -> None:
    assert checksum.crc32c is crc32c
