"""Sorted runs against one sorted list."""

from __future__ import annotations

from random import Random

import pytest

from tests.seeds import each_seed
from timer.items import HIGHEST, LOWEST, Item, fire_key, pack_item
from timer.runs import RUN_COUNT, Runs


def _item(rng: Random) -> Item:
    return pack_item(rng.randrange(1000), rng.randrange(50), rng.randrange(1 << 30), 5, False)


@each_seed(100)
def test_runs_hold_what_a_sorted_list_would_hold(seed: int) -> None:
    rng = Random(seed)
    runs = Runs()
    model: list[Item] = []
    for _ in range(60):
        match rng.randrange(7):
            case 0 | 1:
                added = sorted(_item(rng) for _ in range(rng.choice((0, 1, 30))))
                model += added
                runs.add(added)
            case 2:
                for _ in range(rng.choice((1, 20))):
                    model.append(item := _item(rng))
                    runs.push(item)
            case 3:
                others = Runs()
                others.add(added := sorted(_item(rng) for _ in range(5)))
                model += added
                runs.take_over(others)
                assert not others
            case 4:
                limit, count_max = fire_key(rng.randrange(1100)), rng.choice((1, 5, 40, 1000))
                expected = [item for item in sorted(model) if item < limit][:count_max]
                assert runs.take(limit, count_max) == expected
                model = sorted(model)[len(expected) :]
            case 5:
                limit = fire_key(rng.randrange(1100))
                expected = [item for item in sorted(model) if item < limit]
                first = rng.choice((LOWEST, fire_key(rng.randrange(1100))))
                assert sorted(runs.between(first, limit)) == [item for item in expected if item >= first]
                assert runs.count_below(limit) == len(expected)
            case _:
                key = runs.key_near(rng.randrange(100))
                assert sorted(runs.cut(key)) == sorted(item for item in model if item >= key)
                model = [item for item in model if item < key]
        model.sort()
        assert len(runs) == len(model)
        assert runs.first() == (model[0] if model else None)


@pytest.mark.parametrize("count", [RUN_COUNT - 1, RUN_COUNT, RUN_COUNT + 1])
def test_what_was_pushed_becomes_a_run_when_there_is_enough(count: int) -> None:
    rng = Random(1)
    runs = Runs()
    pushed = [_item(rng) for _ in range(count)]
    for item in pushed:
        runs.push(item)
    assert runs.take(HIGHEST, count) == sorted(pushed)


@pytest.mark.parametrize("count", [0, 1, 5_000, 40_000, 79_999])
def test_a_key_near_a_count_never_leaves_more_before_it_and_not_much_less(count: int) -> None:
    rng = Random(count)
    runs = Runs()
    items = [_item(rng) for _ in range(80_000)]
    for start in range(0, len(items), RUN_COUNT):
        runs.add(sorted(items[start : start + RUN_COUNT]))
    key = runs.key_near(count)
    before = sum(item < key for item in items)
    assert count * 0.9 <= before <= count


def test_no_operation_looks_at_all_there_is() -> None:
    """Counted in comparisons: to sort, merge or search everything takes at least one for each item."""
    compared_count = 0

    class Counted(bytes):
        def __lt__(self, other: bytes) -> bool:
            nonlocal compared_count
            compared_count += 1
            return bytes.__lt__(self, other)

        def __gt__(self, other: bytes) -> bool:
            nonlocal compared_count
            compared_count += 1
            return bytes.__gt__(self, other)

    count = 200_000
    runs = Runs()
    items = sorted(pack_item(n // 5, n, 0, 5, False) for n in range(count))
    for start in range(0, count, RUN_COUNT):
        runs.add([Counted(item) for item in items[start : start + RUN_COUNT]])
    for operation in (
        lambda: runs.take(HIGHEST, 20),
        lambda: runs.take(fire_key(100), 1000),
        lambda: runs.push(Counted(items[0])),
        lambda: runs.first(),
        lambda: runs.between(LOWEST, fire_key(1000)),
        lambda: runs.count_below(HIGHEST),
        lambda: runs.cut(fire_key(39_000)),
    ):
        compared_count = 0
        operation()
        assert compared_count < count // 20, "some for each of 200 runs"
    compared_count = 0
    runs.key_near(count // 2)
    assert compared_count < count // 4, "a few thousand samples are sorted"
