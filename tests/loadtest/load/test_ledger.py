"""The ledger against plain sets: what is lost, what came twice, and that merging ledgers is as having had one."""

from __future__ import annotations

import orjson
from hypothesis import given
from hypothesis import strategies as st

from loadtest.load.ledger import LOG, QUEUE, Ledger, Ranges, RecordId

NUMBERS = st.integers(0, 40)
SPANS = st.lists(st.tuples(NUMBERS, st.integers(1, 8)).map(lambda pair: (pair[0], pair[0] + pair[1])), max_size=25)


@given(SPANS, SPANS)
def test_ranges_are_a_set(spans: list[tuple[int, int]], others: list[tuple[int, int]]) -> None:
    ranges, numbers = Ranges(), set[int]()
    for start, end in spans:
        assert ranges.add(start, end) == len(numbers & set(range(start, end)))
        numbers |= set(range(start, end))
    assert [number for start, end in ranges for number in range(start, end)] == sorted(numbers)
    assert len(ranges) == len(numbers)
    bounds = [bound for pair in ranges for bound in pair]
    assert bounds == sorted(set(bounds))  # disjoint, and neighbours are one
    other, other_numbers = Ranges(), set[int]()
    for start, end in others:
        other.add(start, end)
        other_numbers |= set(range(start, end))
    assert list(ranges.without(other)) == sorted(numbers - other_numbers)


EVENTS = st.lists(st.tuples(st.booleans(), st.sampled_from("ab"), NUMBERS, st.integers(0, 2)), max_size=40)


@given(EVENTS)
def test_ledgers_of_several_processes_are_merged_into_what_one_would_know(
    events: list[tuple[bool, str, int, int]],
) -> None:
    whole = Ledger()
    parts = [Ledger() for _ in range(3)]
    for is_send, sender, number, process in events:
        for ledger in (whole, parts[process]):
            if is_send:
                ledger.acknowledge(sender, number, number + 1)
            else:
                ledger.consume(LOG, RecordId(sender, number))
    merged = Ledger()
    for part in parts:
        told = orjson.loads(orjson.dumps(part.packed()))  # as another process gets it
        merged.merge(told["acknowledged"], told["consumed"], told["twice"])
    assert set(merged.lost(LOG)) == set(whole.lost(LOG))
    assert merged.twice.get(LOG, 0) == whole.twice.get(LOG, 0)
    assert merged.acknowledged_count == whole.acknowledged_count
    assert merged.is_complete(LOG) == (not set(whole.lost(LOG)))


def test_ways_are_kept_apart() -> None:
    ledger = Ledger()
    ledger.acknowledge("a", 0, 3)
    assert ledger.consume(LOG, RecordId("a", 1))
    assert ledger.consume(QUEUE, RecordId("a", 1))
    assert not ledger.consume(QUEUE, RecordId("a", 1))
    assert list(ledger.lost(QUEUE)) == [RecordId("a", 0), RecordId("a", 2)]
    assert ledger.twice == {LOG: 0, QUEUE: 1}
