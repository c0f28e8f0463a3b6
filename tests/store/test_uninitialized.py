"""Buffers that are not set beforehand: their size, and that they are like all others."""

from __future__ import annotations

import pytest

from store.uninitialized import uninitialized


@pytest.mark.parametrize("size", [0, 1, 4096, 1 << 20])
def test_a_buffer_has_its_size_and_takes_what_is_put_into_it(size: int) -> None:
    made = uninitialized(size)
    assert type(made) is bytearray
    assert len(made) == size
    made[:] = b"x" * size
    assert made == b"x" * size
    made += b"y"
    assert made[-1:] == b"y"
