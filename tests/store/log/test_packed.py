"""Packed rows behave as the tuple of their rows, and are nothing to the garbage collector."""

from __future__ import annotations

import gc
import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from store.log.packed import Packed
from store.types import Source

LAYOUT = struct.Struct(">qI")
ROWS = st.lists(st.builds(Source, st.integers(-(2**63), 2**63 - 1), st.integers(0, 2**32 - 1)), max_size=8)


def packed(rows: list[Source]) -> Packed[Source]:
    return Packed(b"".join(LAYOUT.pack(*row) for row in rows), LAYOUT, Source._make)


@given(ROWS, st.integers(-9, 9), st.integers(-9, 9))
def test_packed_rows_are_a_sequence_of_the_rows(rows: list[Source], start: int, stop: int) -> None:
    several = packed(rows)
    assert list(several) == rows
    assert several == rows
    assert several[start:stop] == rows[start:stop]
    assert len(several) == len(rows)
    assert bool(several) == bool(rows)
    for index in range(-len(rows), len(rows)):
        assert several[index] == rows[index]
        assert isinstance(several[index], Source)
    with pytest.raises(IndexError):
        several[len(rows)]


def test_other_rows_are_not_equal() -> None:
    rows = [Source(1, 2), Source(3, 4)]
    assert packed(rows) != rows[:1]
    assert packed(rows) != [Source(1, 2), Source(3, 5)]
    assert packed(rows) != 7


def test_steps_are_refused() -> None:
    with pytest.raises(ValueError, match="steps"):
        packed([Source(1, 2)])[::2]


def test_the_garbage_collector_has_one_object_to_look_at_however_many_rows() -> None:
    def objects(count: int) -> int:
        gc.collect()
        before = len(gc.get_objects())
        kept = Packed(bytes(LAYOUT.size * count), LAYOUT, Source._make)
        gc.collect()
        found = len(gc.get_objects()) - before
        assert len(kept) == count
        return found

    assert objects(10_000) - objects(10) <= 2
