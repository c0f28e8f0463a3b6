"""Sticky: balanced within one, and no balanced assignment moves fewer partitions."""

from __future__ import annotations

from itertools import combinations

from hypothesis import given
from hypothesis import strategies as st

from gateway.groups.machines.strategies.base import Partition, allocate
from gateway.groups.machines.strategies.sticky import Sticky


def partitions(*numbers: int) -> list[Partition]:
    return [Partition("T", 16, number) for number in numbers]


def test_the_worked_example() -> None:
    before = {"c0": partitions(0, 1, 2), "c1": partitions(3, 4, 5)}
    joined = allocate(Sticky(), ["c0", "c1", "c2"], partitions(*range(6)), before)
    assert joined == {
        "c0": tuple(partitions(0, 1)),
        "c1": tuple(partitions(3, 4)),
        "c2": tuple(partitions(2, 5)),
    }
    left = allocate(Sticky(), ["c1", "c2"], partitions(*range(6)), joined)
    assert left == {"c1": tuple(partitions(0, 3, 4)), "c2": tuple(partitions(1, 2, 5))}


@given(
    members=st.sets(st.sampled_from("abcde"), min_size=1),
    count=st.integers(0, 12),
    owners=st.lists(st.sampled_from("abcdefg"), min_size=15, max_size=15),
)
def test_it_is_balanced_keeps_as_much_as_any_balanced_one_and_is_then_at_rest(
    members: set[str], count: int, owners: list[str]
) -> None:
    every = partitions(*range(count))
    # Owners may have left, and partitions 12 to 14 are gone.
    current = {owner: partitions(*(n for n, o in enumerate(owners) if o == owner)) for owner in set(owners)}
    result = allocate(Sticky(), members, every, current)

    assert sorted(partition for share in result.values() for partition in share) == every
    sizes = [len(share) for share in result.values()]
    assert max(sizes) - min(sizes) <= 1

    held = {member: len(set(current.get(member, [])) & set(every)) for member in members}
    each, larger_count = divmod(count, len(members))
    best = max(
        sum(min(held[member], each + (member in larger)) for member in members)
        for larger in combinations(sorted(members), larger_count)
    )
    assert sum(len(set(result[member]) & set(current.get(member, []))) for member in members) == best
    assert allocate(Sticky(), members, every, result) == result
