"""Committed offsets: the three answers, where to start, lag, reset."""

from __future__ import annotations

from typing import cast

import pytest

from gateway.groups.machines.errors import GroupActive, IllegalRequest
from gateway.groups.machines.events import (
    CommittedOffset,
    Forgotten,
    OffsetsCommitted,
    ProgressEvent,
    decode_events,
    encode_event,
)
from gateway.groups.machines.progress import (
    COMMIT_METADATA_BYTES_MAX,
    COMMITS_MAX,
    Absent,
    Commit,
    Found,
    Lag,
    Move,
    PartitionBounds,
    PartitionKey,
    Progress,
    Start,
    StartTime,
    Stored,
    Unavailable,
    lag_of,
    where_to_start,
)
from store.types import OFFSET_MAX, Bounds

K0, K1, GONE = PartitionKey(16, 0), PartitionKey(16, 1), PartitionKey(17, 0)
BOUNDS = Bounds(40, 900)
NOW_MS = 1_767_225_600_000


def found(offset: int) -> Found:
    return Found(offset, "", NOW_MS)


def opened(*commits: Commit, group: str = "g") -> Progress:
    progress = Progress()
    for event in progress.decide_commit(group, commits, NOW_MS):
        progress.apply(event)
    progress.open()
    return progress


@pytest.mark.parametrize(
    ("stored", "start", "is_retry_topic", "expected"),
    [
        (found(0), Start.LAST, False, 40),
        (found(100), Start.FIRST, False, 100),
        (found(100), Start.LAST, False, 100),
        (found(100), StartTime(5), False, 100),
        (found(900), Start.FIRST, False, 900),
        (found(901), Start.FIRST, False, 901),
        (found(OFFSET_MAX), Start.LAST, False, OFFSET_MAX),
        (found(39), Start.LAST, False, 40),
        (Absent(), Start.FIRST, False, 40),
        (Absent(), Start.LAST, False, 900),
        (Absent(), StartTime(5), False, 512),
        (Absent(), Start.FIRST, True, 40),
        (Absent(), Start.LAST, True, 40),
        (Absent(), StartTime(5), True, 900),
        (Unavailable("down"), Start.FIRST, False, Unavailable("down")),
        (Unavailable("down"), Start.LAST, True, Unavailable("down")),
    ],
)
def test_where_a_group_starts(
    stored: Stored, start: Start | StartTime, is_retry_topic: bool, expected: int | Unavailable
) -> None:
    assert where_to_start(stored, start, PartitionBounds(BOUNDS, 512), is_retry_topic=is_retry_topic) == expected


def test_an_error_never_moves_an_offset() -> None:
    no_bounds = Unavailable("broker away")
    assert where_to_start(found(100), Start.FIRST, no_bounds) == no_bounds
    assert where_to_start(Absent(), Start.FIRST, no_bounds) == no_bounds
    assert isinstance(where_to_start(Absent(), StartTime(5), PartitionBounds(BOUNDS)), Unavailable)


def test_a_lookup_tells_absent_from_not_known_yet() -> None:
    progress = Progress()
    assert isinstance(progress.lookup("g", K0), Unavailable)
    progress.open()
    assert progress.lookup("g", K0) == Absent()
    assert opened(Commit(K0, 7, "m")).lookup("g", K0) == Found(7, "m", NOW_MS)


def test_a_commit_changes_nothing_until_it_is_applied() -> None:
    progress = opened(Commit(K0, 7))
    events = progress.decide_commit("g", [Commit(K0, 8), Commit(K1, 1)], NOW_MS + 1)
    assert progress.lookup("g", K0) == found(7)
    assert events == [
        OffsetsCommitted("g", (CommittedOffset(16, 0, 8, "", NOW_MS + 1), CommittedOffset(16, 1, 1, "", NOW_MS + 1)))
    ]


def test_a_commit_of_what_is_known_writes_nothing_and_one_back_is_kept() -> None:
    progress = opened(Commit(K0, 7))
    assert progress.decide_commit("g", [Commit(K0, 7)], NOW_MS + 1) == []
    assert progress.decide_commit("g", [Commit(K0, 7, "m")], NOW_MS + 1) != []
    for event in progress.decide_commit("g", [Commit(K0, 3)], NOW_MS):
        progress.apply(event)
    assert progress.lookup("g", K0) == found(3)


def test_a_commit_has_limits() -> None:
    progress = opened()
    for good in (Commit(K0, 0), Commit(K0, OFFSET_MAX), Commit(K0, 1, "m" * COMMIT_METADATA_BYTES_MAX)):
        assert progress.decide_commit("g", [good], NOW_MS)
    for bad in (Commit(K0, -1), Commit(K0, OFFSET_MAX + 1), Commit(K0, 1, "m" * (COMMIT_METADATA_BYTES_MAX + 1))):
        with pytest.raises(IllegalRequest):
            progress.decide_commit("g", [bad], NOW_MS)
    assert progress.decide_commit("g", [Commit(K0, 1)] * COMMITS_MAX, NOW_MS)
    with pytest.raises(IllegalRequest):
        progress.decide_commit("g", [Commit(K0, 1)] * (COMMITS_MAX + 1), NOW_MS)


@pytest.mark.parametrize(
    ("stored", "expected"),
    [
        (found(100), Lag(100, 900, 800, 0)),
        (found(900), Lag(900, 900, 0, 0)),
        (found(10), Lag(10, 900, 860, 30)),
        (found(950), Lag(950, 900, 0, 0)),
        (Absent(), Lag(None, 900, 700, 0)),
    ],
)
def test_lag_counts_what_can_still_be_read(stored: Found | Absent, expected: Lag) -> None:
    assert lag_of(stored, BOUNDS, 200) == expected


def test_a_reset_is_planned_then_decided() -> None:
    progress = opened(Commit(K0, 100))
    places = {K0: PartitionBounds(BOUNDS, 512), K1: PartitionBounds(Bounds(0, 10), 10)}
    assert progress.plan_reset("g", Start.FIRST, places) == [Move(K0, 100, 40), Move(K1, None, 0)]
    assert progress.plan_reset("g", Start.LAST, places) == [Move(K0, 100, 900), Move(K1, None, 10)]
    assert progress.plan_reset("g", StartTime(5), places) == [Move(K0, 100, 512), Move(K1, None, 10)]
    moves = progress.plan_reset("g", 100, places)
    assert moves == [Move(K0, 100, 100), Move(K1, None, 10)]
    assert progress.lookup("g", K1) == Absent()  # so far it was all dry
    with pytest.raises(GroupActive):
        progress.decide_reset("g", moves, member_count=1, force=False, now_ms=NOW_MS)
    for force, member_count in ((True, 1), (False, 0)):
        assert progress.decide_reset("g", moves, member_count=member_count, force=force, now_ms=NOW_MS) == [
            OffsetsCommitted("g", (CommittedOffset(16, 1, 10, "", NOW_MS),))
        ]
    assert progress.decide_reset("g", moves[:1], member_count=0, force=False, now_ms=NOW_MS) == []


def test_a_reset_is_refused_while_something_is_not_known() -> None:
    with pytest.raises(IllegalRequest):
        opened().plan_reset("g", StartTime(5), {K0: PartitionBounds(BOUNDS)})
    with pytest.raises(IllegalRequest):
        Progress().plan_reset("g", Start.FIRST, {K0: PartitionBounds(BOUNDS)})


def test_groups_and_topics_are_forgotten() -> None:
    progress = opened(Commit(K0, 1), Commit(GONE, 2))
    assert progress.topic_ids("g") == {16, 17}
    progress.apply(Forgotten("g", (17,)))
    assert (progress.lookup("g", K0), progress.lookup("g", GONE)) == (found(1), Absent())
    progress.apply(Forgotten("g", None))
    assert (progress.groups(), progress.topic_ids("g")) == ([], set())


def test_a_topic_created_again_begins_anew() -> None:
    progress = opened(Commit(K0, 5))
    assert progress.lookup("g", PartitionKey(18, 0)) == Absent()


def test_a_snapshot_leads_to_the_same_state_in_bounded_events() -> None:
    many = [Commit(PartitionKey(16, number), number) for number in range(COMMITS_MAX)]
    progress = opened(*many)
    progress.apply(OffsetsCommitted("g", (CommittedOffset(20, 0, 1, "m", NOW_MS),)))
    written = [encode_event(event) for event in progress.snapshot()]
    assert len(written) == 2
    again = Progress()
    for event in decode_events(written):
        again.apply(cast(ProgressEvent, event))
    assert again.committed("g") == progress.committed("g")
