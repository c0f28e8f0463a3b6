"""The order of items, and what is read back out of them."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from store.log.entry import packed_sources
from store.types import Source
from timer.items import (
    HIGHEST,
    ITEM_BYTES,
    LOWEST,
    fire_counts,
    fire_key,
    fire_ms_of,
    item_of,
    pack_item,
    position_of,
    rolls_of,
    slot_bytes,
    slot_of,
    source_of,
    source_row,
    unpack_item,
)
from timer.timer_log import MAGIC_DEFAULT, MAGIC_ROLL, Unit

FIELDS = st.tuples(
    st.integers(0, (1 << 62)),
    st.integers(0, (1 << 62)),
    st.integers(0, (1 << 31) - 1),
    st.integers(0, (1 << 32) - 1),
    st.booleans(),
)


@given(FIELDS, FIELDS)
def test_items_are_in_the_order_of_fire_time_entry_and_record(one: tuple[int, ...], other: tuple[int, ...]) -> None:
    first, second = pack_item(*one), pack_item(*other)
    assert (first < second) == (one < other)
    assert LOWEST < first < HIGHEST
    assert (first < fire_key(other[0])) == (one[0] < other[0])


@given(FIELDS)
def test_an_item_says_what_it_was_made_of(fields: tuple[int, ...]) -> None:
    item = pack_item(*fields)
    assert len(item) == ITEM_BYTES
    assert unpack_item(item) == fields
    assert (fire_ms_of(item), slot_of(item)) == (fields[0], fields[3])
    assert int.from_bytes(slot_bytes(item)) == fields[3]
    assert source_of(item) == Source(fields[1], fields[2])
    assert (position_of(item), rolls_of(item)) == (fields[1], fields[4])
    assert list(packed_sources(source_row(item))) == [Source(fields[1], fields[2])]


def test_what_only_rolls_in_its_slot_fires_when_that_begins() -> None:
    unit = Unit(
        -1, MAGIC_ROLL, due_ms=99_000_000, entry_position=64, entry_size=80, record_index=3, topic_id=7, slot_s=5
    )
    assert unpack_item(item_of(unit)) == (5000, 64, 3, 5, True)
    assert unpack_item(item_of(unit._replace(magic=MAGIC_DEFAULT))) == (99_000_000, 64, 3, 5, False)


def test_items_are_counted_by_when_they_fire() -> None:
    items = [pack_item(fire_ms, number, 0, 0, False) for number, fire_ms in enumerate((7, 7, 9, 7))]
    assert fire_counts(items) == {7: 3, 9: 1}
