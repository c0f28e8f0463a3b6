"""store.light_names: what was packed is read back, record by record and name by name."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from store.light_names import NOT_ASSIGNED, LightNames, LightRow
from store.limits import LIGHT_NAME_BYTES_MAX, LIGHT_NAMES_MAX

NAMES = st.binary(min_size=1, max_size=LIGHT_NAME_BYTES_MAX).filter(lambda name: 0 not in name)
FEW_NAMES = (b"a", b"b", b"aa", b"ab", b"ba")
"""Of which some begin others, end to end."""
RECORDS = st.lists(st.lists(NAMES, max_size=4, unique=True), max_size=6)


@given(records=RECORDS)
def test_the_names_of_each_record_are_read_back(records: list[list[bytes]]) -> None:
    light = LightNames.of(records)
    if not any(records):
        assert light is None
        return
    assert light is not None
    assert light.of_records() == records
    distinct = list(dict.fromkeys(name for names in records for name in names))
    assert light.names == distinct
    assert light.record_counts() == [sum(name in names for names in records) for name in distinct]
    assert light.first_records() == [
        next(index for index, names in enumerate(records) if name in names) for name in distinct
    ]
    assert set(light.first_offsets) == {NOT_ASSIGNED}
    assert not light.is_assigned
    assert LightNames(memoryview(light.block)) == light


def test_each_name_counts_on_from_its_first_offset() -> None:
    light = LightNames.of([[b"a", b"b"], [], [b"b"], [b"b", b"a"]])
    assert light is not None
    assigned = light.assigned([7, 0])
    assert assigned.is_assigned
    assert assigned != light
    assert assigned.rows() == [
        LightRow(0, b"a", 7), LightRow(0, b"b", 0), LightRow(2, b"b", 1), LightRow(3, b"b", 2), LightRow(3, b"a", 8),
    ]  # fmt: skip
    assert assigned.has(LightRow(3, b"a", 8))
    for other in (LightRow(2, b"a", 8), LightRow(3, b"b", 8), LightRow(3, b"a", 7)):
        assert not assigned.has(other)


@given(records=st.lists(st.lists(st.sampled_from(FEW_NAMES), max_size=4, unique=True), min_size=1, max_size=8))
def test_a_batch_has_its_rows_and_no_other(records: list[list[bytes]]) -> None:
    light = LightNames.of(records)
    assume(light is not None)
    assert light is not None
    assigned = light.assigned([3 * number for number in range(len(light.names))])
    possible = set(itertools.product(range(-1, len(records) + 1), [*FEW_NAMES, b"none", b""], range(30)))
    assert {row for row in possible if assigned.has(LightRow(*row))} == set(assigned.rows())


def test_the_most_and_longest_names_fit() -> None:
    names = [bytes([1 + number]) * LIGHT_NAME_BYTES_MAX for number in range(LIGHT_NAMES_MAX)]
    light = LightNames.of([names])
    assert light is not None
    assert light.of_records() == [names]
    for illegal in ([*names, b"one more"], [b"a", b"a"], [b""], [b"x" * (LIGHT_NAME_BYTES_MAX + 1)]):
        with pytest.raises(AssertionError):
            LightNames.of([illegal])
