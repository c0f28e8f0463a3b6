"""The table of ids: every id that was put is found, and no other."""

from __future__ import annotations

from random import Random

import pytest

from store.dedup import id_table
from store.dedup.id_table import IdTable
from store.types import NO_ID


def ids_of(*numbers: int) -> list[bytes]:
    return [number.to_bytes(16, "little") for number in numbers]


def found(table: IdTable, *numbers: int) -> list[tuple[int, int]]:
    return list(table.find(ids_of(*numbers)))


@pytest.mark.parametrize("ids_max", [0, 1, 64, 1_000, 10_000])
def test_all_that_were_put_are_found_and_no_others(ids_max: int) -> None:
    random = Random(ids_max)
    numbers = random.sample(range(1, 2**62), 1_000)
    table = IdTable(ids_max)
    for at in range(0, 1_000, 7):
        table.put(ids_of(*numbers[at : at + 7]), range(at, min(at + 7, 1_000)))
    assert found(table, *numbers) == list(enumerate(range(1_000)))
    assert found(table, *(number + 2**64 for number in numbers), *(number << 64 for number in numbers)) == []
    assert found(table) == []


def test_what_looks_like_an_id_across_two_entries_is_none() -> None:
    table = IdTable(1)
    first, second = ids_of(1 << 64 | 2, 3 << 64 | 4)
    table.put([first, second], [5, 6])
    across = [(first + (5).to_bytes(8) + second)[at : at + 16] for at in range(1, 24)]
    assert list(table.find(across)) == []
    table.put([across[8]], [7])
    assert list(table.find([across[8], first])) == [(0, 7), (1, 5)]


def test_an_id_that_is_put_again_has_both_numbers_in_their_order() -> None:
    table = IdTable(4)
    table.put(ids_of(5, 6), [1, 2])
    table.put(ids_of(5), [9])
    assert found(table, 6, 5) == [(0, 2), (1, 1), (1, 9)]


def test_no_id_takes_no_room_and_is_never_found() -> None:
    table = IdTable(1)
    table.put([NO_ID, *ids_of(5), NO_ID, NO_ID], [0, 1, 2, 3])
    assert list(table.find([NO_ID, *ids_of(5)])) == [(1, 1)]


def test_ids_and_numbers_are_as_many() -> None:
    with pytest.raises(ValueError, match="shorter"):
        IdTable(4).put(ids_of(5, 6), [1])


def test_a_sweep_lets_go_of_lower_numbers_some_chains_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(id_table, "SWEPT_AT_ONCE", 3)
    table = IdTable(250)  # eight chains
    numbers = range(1, 201)
    table.put(ids_of(*numbers), numbers)
    left = []
    for before in (101, 101, 101, 201, 201, 201):
        table.sweep(before)
        left.append(len(found(table, *numbers)))
    assert left == sorted(left, reverse=True)
    assert 100 < left[1] < left[0] < 200
    assert left[2] == 100
    assert left[5] == 0
    table.put(ids_of(7), [300])
    assert found(table, 7, 8) == [(0, 300)]


def test_ids_whose_chain_is_known_are_not_more_than_a_chains_share() -> None:
    """That senders know nothing of chains: ids whose ends are alike fill no chain more than others do."""
    table = IdTable(32_000)
    table.put([number.to_bytes(8) + bytes(8) for number in range(1, 32_001)], range(32_000))
    assert max(map(len, table._chains)) < 24 * 100
