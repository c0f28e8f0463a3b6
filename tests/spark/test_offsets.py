"""Planning: what is covered, where it begins, and how fast a stream goes."""

from __future__ import annotations

import itertools
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark_mq.errors import OptionError
from pyspark_mq.offsets import (
    GAP_MIN,
    AtTime,
    AtTimes,
    Bounds,
    Earliest,
    Exact,
    Latest,
    Range,
    Split,
    TopicState,
    backlog,
    clamp,
    counted,
    find_gaps,
    limited,
    outside,
    plan,
    resolve_end,
    resolve_start,
    uncounted,
)

TOPICS = {"a": TopicState("1", {0: Bounds(5, 10), 1: Bounds(0, 7)}), "b": TopicState("2", {0: Bounds(0, 0)})}

ranges = st.lists(
    st.builds(
        lambda topic, partition, start, count: Range(topic, partition, start, start + count, "1"),
        st.sampled_from("ab"),
        st.integers(0, 3),
        st.integers(0, 10**6),
        st.integers(0, 500) | st.integers(0, 10**6),
    ),
    unique_by=lambda r: (r.topic, r.partition),
    max_size=8,
)
splits = st.builds(
    Split,
    tasks_min=st.none() | st.integers(1, 100),
    records_max=st.integers(1, 10**6).map(lambda n: max(n, 2000)),
    records_min=st.integers(1, 10**6),
)


@given(ranges, splits)
def test_tasks_cover_every_range_once_and_in_order(wanted: list[Range], split: Split) -> None:
    tasks = plan(wanted, split)
    pieces = [piece for task in tasks for piece in task]
    for whole in wanted:
        parts = [(p.start, p.end) for p in pieces if (p.topic, p.partition) == (whole.topic, whole.partition)]
        starts = [start for start, _ in sorted(parts)]
        ends = [end for _, end in sorted(parts)]
        assert [*starts, whole.end] == [whole.start, *ends], "they meet, and begin and end where the whole does"
    assert all(0 < piece.record_count <= split.records_max for piece in pieces)
    assert all(tasks)


@given(ranges, splits)
def test_min_partitions_is_met_about_and_keeps_tasks_apart(wanted: list[Range], split: Split) -> None:
    tasks = plan(wanted, split)
    total = sum(r.record_count for r in wanted)
    if split.tasks_min is None:
        small = [
            task for task in tasks if sum(p.record_count for p in task) < min(split.records_min, split.records_max)
        ]
        assert len(small) <= 1, "small ranges share tasks"
    else:
        assert all(len(task) == 1 for task in tasks)
        assert len(tasks) >= min(split.tasks_min, total) - len(wanted), "about: shares are rounded"


def test_a_large_range_takes_the_shares_and_small_ones_stay_whole() -> None:
    tasks = plan([Range("a", 0, 0, 10, "1"), Range("a", 1, 0, 990, "1")], Split(tasks_min=4))
    assert [(p.partition, p.start, p.end) for (p,) in tasks] == [(0, 0, 10), (1, 0, 330), (1, 330, 660), (1, 660, 990)]


def test_small_ranges_share_a_task_until_it_is_worth_one() -> None:
    tasks = plan([Range("a", p, 0, 40, "1") for p in range(5)], Split(records_min=100))
    assert [[piece.partition for piece in task] for task in tasks] == [[0, 1, 2], [3, 4]]


def no_time(topic: str, partition: int, time_ms: int) -> int | None:
    raise AssertionError("no search by time was needed")


def test_start_and_end_resolve_for_every_partition() -> None:
    def search(topic: str, partition: int, time_ms: int) -> int | None:
        return None if topic == "b" else time_ms + partition

    assert resolve_start(Earliest(), TOPICS, no_time) == {"a": {0: 5, 1: 0}, "b": {0: 0}}
    assert resolve_end(Latest(), TOPICS, no_time) == {"a": {0: 10, 1: 7}, "b": {0: 0}}
    exact = Exact({"a": {0: -2, 1: -1}, "b": {0: 0}})
    assert resolve_start(exact, TOPICS, no_time) == {"a": {0: 5, 1: 7}, "b": {0: 0}}
    assert resolve_end(AtTime(3), TOPICS, search) == {"a": {0: 3, 1: 4}, "b": {0: 0}}
    times = AtTimes({"a": {0: 6, 1: 1}, "b": {0: 9}})
    assert resolve_start(times, TOPICS, search, no_match_is_latest=True) == {"a": {0: 6, 1: 2}, "b": {0: 0}}
    with pytest.raises(OptionError, match=r"b/0.*startingOffsetsByTimestampStrategy"):
        resolve_start(times, TOPICS, search)


@pytest.mark.parametrize(
    ("offsets", "said"),
    [({"a": {0: 1}, "b": {0: 0}}, "Missing: a/1"), ({"a": {0: 1, 1: 1, 2: 1}, "b": {0: 0}}, "Not read: a/2")],
)
def test_offsets_must_name_every_partition_and_no_other(offsets: dict[str, dict[int, int]], said: str) -> None:
    with pytest.raises(OptionError, match=said):
        resolve_start(Exact(offsets), TOPICS, no_time)


@given(*[st.integers(0, 100)] * 4)
def test_clamping_keeps_what_is_there_and_says_what_is_not(start: int, count: int, beginning: int, held: int) -> None:
    wanted = Range("a", 0, start, start + count, "1")
    bounds = Bounds(beginning, beginning + held)
    kept, lost = clamp(wanted, bounds)
    inside = set(range(wanted.start, wanted.end)) & set(range(bounds.beginning, bounds.end))
    assert set(range(kept.start, kept.end)) == inside
    if len(inside) < count:
        assert lost is not None
        assert f"[{bounds.beginning}, {bounds.end})" in lost


@given(
    st.dictionaries(st.integers(0, 5), st.tuples(st.integers(0, 10**6), st.integers(-5, 10**6)), min_size=1),
    st.integers(1, 10**6),
)
def test_a_rate_limit_moves_forward_by_about_the_limit(waiting: dict[int, tuple[int, int]], records_max: int) -> None:
    start = {"a": {p: first for p, (first, _) in waiting.items()}}
    end = {"a": {p: first + count for p, (first, count) in waiting.items()}}
    reached = limited(start, end, records_max)
    assert backlog(start, reached) <= records_max + len(waiting)
    assert backlog(start, reached) >= min(records_max, backlog(start, end)) - len(waiting)
    for partition, (first, count) in waiting.items():
        assert first <= reached["a"][partition] <= max(first, first + count)
        assert reached["a"][partition] > first or count <= 0, "no partition starves"


def _server(stretches: list[tuple[int, int]]) -> tuple[int, Callable[[int], int], list[int]]:
    """A partition that has records in these stretches: its end, `first_from`, and what that was asked."""
    asked: list[int] = []

    def first_from(offset: int) -> int:
        asked.append(offset)
        return next((max(offset, begin) for begin, end in stretches if offset < end), stretches[-1][1])

    return stretches[-1][1], first_from, asked


@given(st.lists(st.integers(1, 5000), min_size=1, max_size=4), st.integers(0, 100))
def test_gaps_of_takeovers_are_found_with_few_questions(counts: list[int], beginning: int) -> None:
    stretches = []
    start = beginning
    for count in counts:
        stretches.append((start, start + count))
        start += GAP_MIN
    end, first_from, asked = _server(stretches)
    found = list(find_gaps(beginning, end, first_from))
    assert found == [(one[1], other[0]) for one, other in itertools.pairwise(stretches)]
    assert len(asked) <= 50 * len(found) + 1
    whole = Range("t", 0, beginning, end, "1")
    kept = list(outside(whole, found))
    assert [(one.start, one.end) for one in kept] == [each for each in stretches if each[0] < each[1]]
    assert sum(len(task) for task in plan(kept, Split())) <= 5
    topics = {"t": TopicState("1", {0: Bounds(beginning, end, tuple(found))})}
    at = beginning
    read = 0
    for _ in range(sum(counts) // 700 + 2):  # a rate limit passes gaps, and counts no offset of theirs
        places = counted(topics, {"t": {0: at}}), counted(topics, {"t": {0: end}})
        reached = max(at, uncounted(topics, limited(*places, 700))["t"][0])
        step = sum(one.record_count for one in outside(whole._replace(start=at, end=reached), found))
        assert step <= 700
        read, at = read + step, reached
    assert read == sum(counts)


@given(st.integers(-5, 60), st.integers(0, 60))
def test_what_lies_outside_of_gaps_is_all_that_does(start: int, length: int) -> None:
    gaps = ((5, 9), (9, 12), (40, 44))
    kept = list(outside(Range("t", 0, start, start + length, "1"), gaps))
    assert [at for one in kept for at in range(one.start, one.end)] == [
        at for at in range(start, start + length) if not any(begin <= at < end for begin, end in gaps)
    ]
    assert all(one.record_count for one in kept)
