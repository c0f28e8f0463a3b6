"""CRC-32C with numpy alone, against the package that uses the processor's instruction."""

from __future__ import annotations

import pickle
import random
import sys

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


def test_the_instruction_is_used_where_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    """Found out anew after pickling: an executor may not have the package that the driver has."""
    assert checksum.crc32c(b"123456789", 0) == 0xE3069283
    assert checksum.crc32c._way is crc32c  # type: ignore[attr-defined]
    sent = pickle.dumps(checksum.crc32c)
    monkeypatch.setitem(sys.modules, "crc32c", None)
    arrived = pickle.loads(sent)  # noqa: S301 - our own
    assert arrived(b"123456789", 0) == 0xE3069283
    assert arrived._way is checksum.by_columns
