"""The history checker flags each anomaly it knows, and nothing in a clean history."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.history import Outcome, Recorder, Seen, check, is_intact, seal

KINDS = {
    "lost-write",
    "unseen",
    "phantom",
    "aborted-read",
    "duplicate",
    "inconsistent-offsets",
    "reordered",
    "gap",
    "corrupt-body",
    "early",
    "late",
}


def clean() -> Recorder:
    """Two clients, two partitions, one send of unknown outcome that made it and one that did not."""
    history = Recorder()
    for time_ms, (partition, value, offset) in enumerate([(0, "a-1", 0), (0, "b-1", 1), (1, "a-2", 0), (0, "a-3", 3)]):
        history.send(value, partition, time_ms * 10).ok(time_ms * 10 + 5, offset)
    history.send("b-2", 0, 12)  # killed before the answer, stored
    history.send("b-3", 1, 22)  # killed before the answer, not stored
    history.send("b-4", 1, 50).fail(51)
    history.send("d-1", 1, 5, due_ms=1000).ok(6)
    history.read(0, [Seen(1, "b-1"), Seen(2, "b-2")])
    history.final_read(0, [Seen(0, "a-1"), Seen(1, "b-1"), Seen(2, "b-2"), Seen(3, "a-3")])
    history.final_read(1, [Seen(0, "a-2"), Seen(1, "d-1", store_time_ms=1010)])
    return history


def acked_but_overwritten(history: Recorder) -> None:
    history.send("x-1", 0, 12).ok(61, 2)


def acked_but_missing(history: Recorder) -> None:
    history.send("x-1", 1, 60, due_ms=2000).ok(61)


def acked_beyond_the_end(history: Recorder) -> None:
    history.send("x-1", 0, 60).ok(61, 4)


def never_sent(history: Recorder) -> None:
    history.read(0, [Seen(4, "ghost")])


def sent_to_another_partition(history: Recorder) -> None:
    history.read(1, [Seen(7, "a-1")])


def refused_but_stored(history: Recorder) -> None:
    history.read(1, [Seen(2, "b-4")])


def stored_twice(history: Recorder) -> None:
    history.read(0, [Seen(4, "a-1")])


def delayed_fired_twice(history: Recorder) -> None:
    history.read(1, [Seen(2, "d-1", store_time_ms=1020)])


def another_value_at_an_offset(history: Recorder) -> None:
    history.read(0, [Seen(1, "b-2")])


def the_ack_named_another_offset(history: Recorder) -> None:
    history.sends[0].offset = 9


def later_send_before_an_earlier_one(history: Recorder) -> None:
    history.sends[1].begun_ms, history.sends[1].ended_ms = 100, 101


def a_read_that_goes_back(history: Recorder) -> None:
    history.read(0, [Seen(1, "b-1"), Seen(0, "a-1")])


def a_hole_in_a_read(history: Recorder) -> None:
    history.read(0, [Seen(0, "a-1"), Seen(2, "b-2")])


def a_hole_at_the_beginning(history: Recorder) -> None:
    history.reads[-1] = history.reads[-1]._replace(begin_offset=-1)


def a_damaged_body(history: Recorder) -> None:
    history.read(0, [Seen(0, "a-1", is_intact=False)])


def fired_early(history: Recorder) -> None:
    history.sends[-1].due_ms = 1011


def fired_late(history: Recorder) -> None:
    history.sends[-1].due_ms = 959


@pytest.mark.parametrize(
    ("break_it", "kinds"),
    [
        (acked_but_overwritten, {"lost-write", "inconsistent-offsets"}),
        (acked_but_missing, {"lost-write"}),
        (acked_beyond_the_end, {"unseen"}),
        (never_sent, {"phantom"}),
        (sent_to_another_partition, {"phantom"}),
        (refused_but_stored, {"aborted-read"}),
        (stored_twice, {"duplicate", "inconsistent-offsets"}),
        (delayed_fired_twice, {"duplicate"}),
        (another_value_at_an_offset, {"duplicate", "inconsistent-offsets"}),
        (the_ack_named_another_offset, {"inconsistent-offsets", "reordered"}),
        (later_send_before_an_earlier_one, {"reordered"}),
        (a_read_that_goes_back, {"reordered"}),
        (a_hole_in_a_read, {"gap"}),
        (a_hole_at_the_beginning, {"gap"}),
        (a_damaged_body, {"corrupt-body"}),
        (fired_early, {"early"}),
        (fired_late, {"late"}),
    ],
)
def test_the_checker_flags_each_anomaly(break_it: Callable[[Recorder], None], kinds: set[str]) -> None:
    history = clean()
    break_it(history)
    found = {anomaly.kind for anomaly in check(history, lateness_ms_max=50)}
    assert found == kinds
    assert found <= KINDS


def test_a_clean_history_has_no_anomaly() -> None:
    history = clean()
    assert check(history, lateness_ms_max=50) == []
    assert [history.count(outcome) for outcome in Outcome] == [5, 1, 2]


def test_a_send_of_unknown_outcome_may_be_stored_or_not_but_counts_once() -> None:
    history = Recorder()
    history.send("a-1", 0, 1)
    history.final_read(0, [])
    assert check(history) == []
    history.final_read(0, [Seen(0, "a-1")])
    assert check(history) == []
    history.read(0, [Seen(1, "a-1")])
    assert "duplicate" in {anomaly.kind for anomaly in check(history)}


def test_values_are_unique_per_client() -> None:
    history = Recorder()
    assert [history.value("a"), history.value("a"), history.value("b")] == ["a-1", "a-2", "b-1"]


def test_a_value_sent_twice_is_an_error_of_the_test_itself() -> None:
    history = Recorder()
    history.send("a-1", 0, 1)
    history.send("a-1", 0, 2)
    with pytest.raises(AssertionError, match="sent twice"):
        check(history)


def test_a_sealed_body_shows_any_change() -> None:
    body = seal({"tailnum": "N14228", "delay": 11, "id": "a-1"})
    assert is_intact(body)
    assert not is_intact({**body, "delay": 12})
    assert not is_intact({**body, "extra": 1})
    assert not is_intact({name: value for name, value in body.items() if name != "tailnum"})
    assert not is_intact({"id": "a-1"})
    assert not is_intact("a-1")


def test_a_long_history_is_checked_without_comparing_everything_with_everything() -> None:
    """Under a second; a quadratic checker would not end within the patience of CI."""
    history = Recorder()
    for offset in range(100_000):
        history.send(f"a-{offset}", 0, offset).ok(offset + 0.5, offset)
    history.final_read(0, [Seen(offset, f"a-{offset}") for offset in range(100_000)])
    assert check(history) == []
