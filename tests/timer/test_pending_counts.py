"""timer/pending_counts.py: what is due when is counted as if one by one, by topic as long as that takes few pages."""

from __future__ import annotations

from collections import Counter
from random import Random

import pytest

from timer import pending_counts
from timer.items import pack_item
from timer.pending_counts import MINUTE_MS, QUARTER_MS, PendingCounts, Span

BEGIN_MS = 20_000 * 86_400_000
Schedule = tuple[int, int, bool]  # topic id, due ms, whether it rolls


def counted(counts: PendingCounts, topic_ids: frozenset[int] | None, bounds_ms: list[int]) -> tuple[list[int], bool]:
    """What `counts` say of the times between bounds, and whether that is exact; not so when they do not know."""
    known = counts.times(topic_ids)
    if known is None:
        return [], False
    result = [0] * (len(bounds_ms) + 1)
    split: Counter[int] = Counter()
    for times in known[0]:
        for number, page in times.pages(known[1]):
            times.spread(number, page, bounds_ms, result, split)
    whole = pending_of(counts, topic_ids)
    assert sum(result) + split.total() == whole
    return result[1:-1], not split


def pending_of(counts: PendingCounts, topic_ids: frozenset[int] | None) -> int:
    return sum(count for topic_id, count in counts.by_topic.items() if topic_ids is None or topic_id in topic_ids)


@pytest.mark.parametrize("pages_max", [2, pending_counts.PAGES_MAX])
def test_counts_of_any_minutes_are_those_of_what_was_added_and_not_removed(
    pages_max: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pending_counts, "PAGES_MAX", pages_max)
    rng = Random(pages_max)
    counts = PendingCounts()
    pending: list[Schedule] = []
    exact_count = 0
    for _ in range(400):
        if pending and rng.random() < 0.4:
            topic_id, due_ms, rolls = pending.pop(rng.randrange(len(pending)))
            counts.remove(topic_id, due_ms, rolls=rolls)
        else:
            rolls = rng.random() < 0.3
            due_ms = BEGIN_MS + rng.randrange(300 * MINUTE_MS) + rolls * 2 * 86_400_000
            pending.append((rng.choice((7, 8, 9)), due_ms, rolls))
            counts.add(*pending[-1][:2], rolls=rolls)
        step_ms = rng.choice((MINUTE_MS, QUARTER_MS))
        bounds_ms = sorted(BEGIN_MS + step_ms * rng.randrange(4 * 1440) for _ in range(4))
        for topic_ids in (None, frozenset((7, 8)), frozenset((7, 8, 9, 10))):
            meant = [due_ms for topic_id, due_ms, _ in pending if topic_ids is None or topic_id in topic_ids]
            expected = [sum(bounds_ms[n] <= due_ms < bounds_ms[n + 1] for due_ms in meant) for n in range(3)]
            found, is_exact = counted(counts, topic_ids, bounds_ms)
            assert is_exact or step_ms == MINUTE_MS or counts.of_topics is None
            assert found == expected or not is_exact
            exact_count += is_exact
    assert exact_count > 400
    assert (counts.of_topics is None) == (pages_max == 2)
    assert counts.total == len(pending)
    assert sum(page[-1] for _, page in counts.of_all[True].pages(None)) == sum(rolls for _, _, rolls in pending)


def test_what_fired_leaves_its_minutes_and_empty_pages_take_no_memory() -> None:
    counts = PendingCounts()
    dues_ms = [BEGIN_MS + ms for ms in (0, 59_999, 60_000, 3_600_000)]
    for due_ms in dues_ms:
        counts.add(7, due_ms, rolls=False)
    items = [pack_item(due_ms, 64 * number, 0, due_ms // 1000, False) for number, due_ms in enumerate(dues_ms)]
    counts.remove_fired(7, items[:2])
    assert counted(counts, None, [BEGIN_MS, BEGIN_MS + MINUTE_MS, BEGIN_MS + 2 * MINUTE_MS]) == ([0, 1], True)
    counts.remove_fired(7, items[2:])
    assert counts.of_topics is not None
    assert (counts.total, *map(len, counts.of_all), *map(len, counts.of_topics)) == (0, 0, 0, 0, 0)


def test_the_next_ones_are_in_the_shortest_time_with_enough_of_them() -> None:
    counts = PendingCounts()
    for topic_id, minute, count in ((7, 0, 3), (7, 70, 4), (7, 65, 1), (8, 0, 2)):
        counts.add(topic_id, BEGIN_MS + minute * MINUTE_MS, rolls=False, count=count)
    counts.add(7, BEGIN_MS + 500 * MINUTE_MS, rolls=True)  # in the quarter from minute 495
    for least, end, is_all in (
        (1, 1, False),
        (5, 1, False),
        (6, 66, False),
        (7, 71, False),
        (11, 510, True),
        (12, 510, True),
    ):
        assert counts.next_ones(None, BEGIN_MS, least) == Span(BEGIN_MS + end * MINUTE_MS, is_all, is_all), least
    assert counts.next_ones(None, BEGIN_MS + 66 * MINUTE_MS, 1) == Span(BEGIN_MS + 71 * MINUTE_MS, False, False)
    assert counts.next_ones(frozenset((8,)), BEGIN_MS, 1) == Span(BEGIN_MS + MINUTE_MS, True, False)
    assert counts.next_ones(None, BEGIN_MS + 510 * MINUTE_MS, 1) == Span(BEGIN_MS + 510 * MINUTE_MS, True, False)


def test_topics_that_are_not_told_apart_are_looked_for_as_long_as_their_share_makes_it() -> None:
    counts = PendingCounts()
    for minute in range(100):
        counts.add(7, BEGIN_MS + minute * MINUTE_MS, rolls=False)
        counts.add(8, BEGIN_MS + minute * MINUTE_MS, rolls=False, count=9)
    counts.of_topics = None
    assert counts.next_ones(frozenset((7,)), BEGIN_MS, 5) == Span(BEGIN_MS + 5 * MINUTE_MS, False, False)
    assert counts.next_ones(frozenset((8,)), BEGIN_MS, 45) == Span(BEGIN_MS + 5 * MINUTE_MS, False, False)
    assert counts.next_ones(frozenset((9,)), BEGIN_MS, 1) == Span(BEGIN_MS + 100 * MINUTE_MS, True, False)
