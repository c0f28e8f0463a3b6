"""timer/pending_counts.py: what is due when is counted as if one by one, by topic as long as that takes few pages."""

from __future__ import annotations

from random import Random

import pytest

from timer import pending_counts
from timer.items import pack_item
from timer.pending_counts import MINUTE_MS, PendingCounts, end_of, spread

BEGIN = 29_000_000  # minutes of the epoch
Schedule = tuple[int, int, bool]  # topic id, minute, whether it rolls


def counted(counts: PendingCounts, topic_ids: frozenset[int] | None, bounds: list[int]) -> list[int]:
    """What `counts` say of the minutes between bounds."""
    result = [0] * (len(bounds) + 1)
    for hour, page in counts.due.pages(topic_ids):
        spread(hour, page, bounds, result)
    return result[1:-1]


@pytest.mark.parametrize("pages_max", [2, pending_counts.PAGES_MAX])
def test_counts_of_any_minutes_are_those_of_what_was_added_and_not_removed(
    pages_max: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pending_counts, "PAGES_MAX", pages_max)
    rng = Random(pages_max)
    counts = PendingCounts()
    pending: list[Schedule] = []
    for _ in range(400):
        if pending and rng.random() < 0.4:
            topic_id, minute, rolls = pending.pop(rng.randrange(len(pending)))
            counts.remove(topic_id, minute * MINUTE_MS + rng.randrange(MINUTE_MS), rolls=rolls)
        else:
            pending.append((rng.choice((7, 8, 9)), BEGIN + rng.randrange(300), rng.random() < 0.3))
            topic_id, minute, rolls = pending[-1]
            counts.add(topic_id, minute * MINUTE_MS + rng.randrange(MINUTE_MS), rolls=rolls)
        bounds = sorted(rng.sample(range(BEGIN - 5, BEGIN + 305), 4))
        for topic_ids in (None, frozenset((7, 8))):
            if counts.knows(topic_ids):
                meant = [minute for topic_id, minute, _ in pending if topic_ids is None or topic_id in topic_ids]
                expected = [sum(bounds[n] <= minute < bounds[n + 1] for minute in meant) for n in range(3)]
                assert counted(counts, topic_ids, bounds) == expected
    assert counts.due.is_merged == (pages_max == 2)
    assert counts.knows(None)
    assert counts.knows(frozenset((7, 8, 9)))
    assert counts.total == len(pending)
    assert sum(sum(page) // 2 for _, page in counts.rolled.pages(None)) == sum(rolls for _, _, rolls in pending)


def test_what_fired_leaves_its_minutes_and_empty_pages_take_no_memory() -> None:
    counts = PendingCounts()
    dues_ms = [BEGIN * MINUTE_MS + ms for ms in (0, 59_999, 60_000, 3_600_000)]
    for due_ms in dues_ms:
        counts.add(7, due_ms, rolls=False)
    items = [pack_item(due_ms, 64 * number, 0, due_ms // 1000, False) for number, due_ms in enumerate(dues_ms)]
    counts.remove_fired(7, items[:2])
    assert counted(counts, None, [BEGIN, BEGIN + 1, BEGIN + 2]) == [0, 1]
    counts.remove_fired(7, items[2:])
    assert (counts.total, counts.due.pages(None)) == (0, [])


def test_the_end_of_the_next_ones_is_the_first_minute_with_enough_before_it() -> None:
    counts = PendingCounts()
    for topic_id, minute, count in ((7, 0, 3), (7, 70, 4), (7, 65, 1), (8, 0, 2), (7, 500, 1)):
        counts.add(topic_id, (BEGIN + minute) * MINUTE_MS, rolls=False, count=count)
    pages = counts.due.pages(None)
    for least, end in ((1, 1), (5, 1), (6, 66), (7, 71), (11, 501), (12, 501)):
        assert end_of(pages, BEGIN, least) == (BEGIN + end, end == 501), least
    assert end_of(pages, BEGIN + 66, 1) == (BEGIN + 71, False)
    assert end_of(pages, BEGIN + 501, 1) == (BEGIN + 501, True)
