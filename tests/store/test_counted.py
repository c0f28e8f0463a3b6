"""What an index in files counts, to bytes and back."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from store.errors import IndexDamaged
from store.index.counted import (
    NOTHING_KEPT,
    Row,
    as_unfinished,
    decode_bounds,
    decode_counted,
    encode_counted,
    first_position_of,
    is_unfinished,
)
from store.index.pending import Pending, PendingUnits
from store.types import Bounds, QueueKey

KEY = QueueKey(7, 3)


def kept_of(base: int, counts: list[tuple[int, bool]]) -> tuple[PendingUnits, list[Pending], int]:
    """Entries of so many records, some with tags; the same as a list; and where they end."""
    units, entries = PendingUnits(), list[Pending]()
    for number, (count, is_tagged) in enumerate(counts):
        hashes = [-number - at for at in range(count)] if is_tagged else None
        units.add(base, 100 * number, 9 + number, hashes or ())
        entries.append(Pending(base, base + count, 100 * number, 9 + number, hashes))
        base += count
    return units, entries, base


def rows_of(units: PendingUnits, end: int) -> list[Pending]:
    found = [] if not units else [Pending._make(one) for one in units.first(len(units), end)]
    return [one if one.tag_hashes is None else one._replace(tag_hashes=list(one.tag_hashes)) for one in found]


QUEUE = st.tuples(
    st.integers(0, 2**32 - 1),
    st.integers(0, 10**12),
    st.lists(st.tuples(st.integers(1, 300), st.booleans()), max_size=12),
)


@given(first_position=st.integers(0, 2**62), queues=st.lists(QUEUE, max_size=6))
def test_what_was_counted_is_read_again(
    first_position: int, queues: list[tuple[int, int, list[tuple[int, bool]]]]
) -> None:
    rows, expected = [], []
    for number, (topic_id, base, counts) in enumerate(queues):
        units, entries, end = kept_of(base, counts)
        key, bounds = QueueKey(topic_id, number), Bounds(base // 2, end)
        rows.append(Row(key, bounds, len(units), units.cells(len(units))))
        expected.append((key, bounds, base, entries))
    content = encode_counted(first_position, rows)
    assert first_position_of(content) == first_position
    found = list(decode_counted(content))
    assert [(one.key, one.bounds, one.files_end, rows_of(one.kept, one.bounds.max_offset)) for one in found] == expected
    assert list(decode_bounds(content)) == [(key, bounds) for key, bounds, _, _ in expected]
    for one, (_, _, counts) in zip(found, queues, strict=True):
        assert one.kept.byte_count == kept_of(0, counts)[0].byte_count


def test_the_bytes_are_those_of_the_format_page() -> None:
    units = PendingUnits()
    units.add(5, 64, 32)
    units.add(6, 96, 40, (1, -1))
    content = encode_counted(16, [Row(KEY, Bounds(2, 8), 2, units.cells(2)), Row(KEY, Bounds(0, 1), 0, NOTHING_KEPT)])
    assert content == b"".join(
        (
            bytes.fromhex("0000000000000010 00000002"),
            bytes.fromhex("00000007 00000003 0000000000000002 0000000000000008 00000002 00000008"),
            bytes.fromhex("00000007 00000003 0000000000000000 0000000000000001 00000000 00000000"),
            b"".join(cell.to_bytes(8, signed=True) for cell in (5, 64, 32, 6, 96, -40, 1, -1)),
        )
    )


def test_an_index_that_is_being_built_again_still_tells_its_bounds() -> None:
    content = encode_counted(16, [Row(KEY, Bounds(2, 8), 0, NOTHING_KEPT)])
    assert not is_unfinished(content)
    unfinished = as_unfinished(content)
    assert is_unfinished(unfinished)
    assert first_position_of(unfinished) == -1
    assert list(decode_bounds(unfinished)) == [(KEY, Bounds(2, 8))]


@pytest.mark.parametrize(
    "change", [lambda c: c[:-1], lambda c: c + bytes(8), lambda c: c[:8] + b"\x00\x00\x00\x09" + c[12:]]
)
def test_another_format_is_refused(change: object) -> None:
    units = PendingUnits()
    units.add(5, 64, 32)
    content = encode_counted(16, [Row(KEY, Bounds(2, 6), 1, units.cells(1))])
    assert callable(change)
    with pytest.raises(IndexDamaged, match="another format"):
        list(decode_counted(change(content)))
