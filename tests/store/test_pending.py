"""Pending units against a plain list of entries."""

from __future__ import annotations

from collections.abc import Iterable

from hypothesis import given
from hypothesis import strategies as st

from store.index.pending import ROW_BYTES, Cells, Pending, PendingUnits

COUNTS = st.lists(st.integers(1, 2000), min_size=1, max_size=600)


def filled(counts: list[int], tagged: set[int], base: int = 0) -> tuple[PendingUnits, list[Pending], int]:
    """Units of entries with so many records each, the entries, and the bytes they are said to take."""
    units, entries, taken_bytes = PendingUnits(), list[Pending](), 0
    for number, count in enumerate(counts):
        hashes = [number * 7 + n for n in range(count)] if number in tagged else None
        entries.append(Pending(base, base + count, 1000 + number * 10, 5 + number, hashes))
        taken_bytes += units.add(base, 1000 + number * 10, 5 + number, hashes or ())
        base += count
    return units, entries, taken_bytes


def rows(found: Iterable[Cells | Pending]) -> list[Pending]:
    pending = map(Pending._make, found)
    return [one if one.tag_hashes is None else one._replace(tag_hashes=list(one.tag_hashes)) for one in pending]


@given(counts=COUNTS, tagged=st.sets(st.integers(0, 30)), data=st.data())
def test_entries_are_found_by_offset_and_cut_by_position(
    counts: list[int], tagged: set[int], data: st.DataObject
) -> None:
    units, entries, taken_bytes = filled(counts, tagged, base=data.draw(st.integers(0, 10**12)))
    end = entries[-1].next_offset
    offset = data.draw(st.integers(entries[0].base_offset, end - 1))
    assert rows(units.since(offset, end)) == [entry for entry in entries if entry.next_offset > offset]
    position = data.draw(st.integers(990, 1010 + len(counts) * 10))
    count = units.count_before(position)
    assert count == len([entry for entry in entries if entry.position < position])
    cut = units.end_of(count, end)
    assert cut == (entries[count].base_offset if count < len(entries) else end)
    assert rows(units.first(count, cut)) == entries[:count]
    removed_bytes = units.remove(count)
    assert rows(units.since(cut, end)) == entries[count:]
    assert len(units) == len(entries) - count
    assert removed_bytes + units.remove(len(units)) == taken_bytes


def test_what_a_flush_began_to_read_may_be_added_to_meanwhile() -> None:
    units, entries, _ = filled([3] * 700, {2})
    reading = units.first(650, units.end_of(650, 2100))
    found = [next(reading) for _ in range(300)]
    for number in range(500):
        units.add(2100 + number, 10**6 + number, 9)
    assert rows([*found, *reading]) == entries[:650]


def test_many_entries_are_added_like_one_after_the_other() -> None:
    units, entries, taken_bytes = filled([2, 5, 1], set())
    together = PendingUnits()
    assert (
        together.add_rows([cell for one in entries for cell in (one.base_offset, one.position, one.size)])
        == taken_bytes
    )
    assert rows(together.first(3, 8)) == rows(units.first(3, 8)) == entries


def test_an_entry_takes_the_same_memory_however_many_records_it_has() -> None:
    assert filled([1], set())[2] == filled([100_000], set())[2] == ROW_BYTES
    assert filled([10], {0})[2] == ROW_BYTES + 10 * 8


def test_tags_are_looked_for_among_the_offsets_asked_for_only() -> None:
    entry = Pending(10, 13, 0, 1, [7, 8, 9])
    assert entry.has_tag(frozenset({8}), 5, 12)
    assert not entry.has_tag(frozenset({9}), 5, 12)
    assert not entry.has_tag(frozenset({8}), 12, 20)
    assert entry._replace(tag_hashes=None).has_tag(frozenset({0}), 10, 11), "0 is the hash of no tag"
