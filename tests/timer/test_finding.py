"""timer/finding.py: units are found as if each were looked at, whatever their other bytes are."""

from __future__ import annotations

from random import Random

from tests.simdisk import SimDisk
from tests.timer.test_timer_log import opened
from timer.finding import DueUnits, Span, merged
from timer.timer_log import MAGIC_DEFAULT, UNIT_BYTES

BEGIN_MS = 1_800_000_000_000
DAY_MS = 86_400_000


def test_units_are_found_by_the_time_they_are_due_and_by_topic() -> None:
    log = opened(SimDisk(), file_units=1000)
    rng = Random(27)
    dues = [(BEGIN_MS + rng.randrange(400 * DAY_MS), rng.choice((7, 8, 263))) for _ in range(500)]
    for due_ms, topic_id in dues:
        log.append(-1, MAGIC_DEFAULT, due_ms, 0, 64, 0, topic_id, due_ms // 1000)
    [(_, chunk)] = log.chunks(0)
    for topic_ids in (None, {7}, {7, 8}, {263, 70_000}, set(range(1000)), set[int]()):
        of_topics = [topic_ids is None or topic_id in topic_ids for _, topic_id in dues]
        for span_ms in (1, 60_000, DAY_MS, 49 * DAY_MS, 50 * DAY_MS, 1000 * DAY_MS):
            from_ms = dues[0][0] - rng.randrange(span_ms)
            meant = [place for place, (due_ms, _) in enumerate(dues) if from_ms <= due_ms < from_ms + span_ms]
            found = DueUnits([Span(from_ms, from_ms + span_ms)], topic_ids).places(chunk)
            assert found == [place for place in meant if of_topics[place]], (topic_ids, span_ms)
            starts = [dues[rng.randrange(500)][0] - rng.randrange(span_ms) for _ in range(4)]
            spans = merged([Span(start, start + span_ms) for start in starts])
            assert DueUnits(spans, topic_ids).places(chunk) == [
                place
                for place, (due_ms, _) in enumerate(dues)
                if of_topics[place] and any(start <= due_ms < start + span_ms for start in starts)
            ], (topic_ids, spans)
    # So many times that no byte alone rules much out; in the end too many for both bytes together.
    for span_ms in (60_000, DAY_MS // 96, DAY_MS // 2):
        spans = [Span(BEGIN_MS + day * DAY_MS, BEGIN_MS + day * DAY_MS + span_ms) for day in range(400)]
        meant = [place for place, (due_ms, _) in enumerate(dues) if (due_ms - BEGIN_MS) % DAY_MS < span_ms]
        assert DueUnits(spans, None).places(chunk) == meant
        of_one = chunk[meant[0] * UNIT_BYTES :][:UNIT_BYTES]
        assert DueUnits(spans, None).places(of_one) == [0]
        assert DueUnits(spans, {8}).places(chunk) == [place for place in meant if dues[place][1] == 8]
    assert DueUnits([Span(0, 1 << 62)], None).places(chunk) == list(range(500))
    for topic_id, are_few in ((70_000, True), (8, False)):
        finder = DueUnits([Span(0, 1 << 62)], {topic_id})
        assert not finder.are_few, "nothing is known yet"
        finder.places(chunk)
        assert finder.are_few == are_few


def test_spans_that_touch_are_one() -> None:
    assert merged([Span(5, 7), Span(1, 3), Span(3, 4), Span(6, 9), Span(20, 21)]) == [
        Span(1, 4), Span(5, 9), Span(20, 21),
    ]  # fmt: skip
    assert merged([]) == []
