"""PerfTest's output: a rate a second, of which the first are its warm-up."""

from __future__ import annotations

import pytest

from loadtest.peers.peer import WorkFailed
from loadtest.peers.rabbitmq import Report, reports, window

PRODUCERS = """id: test-050113-750, starting producer #0
id: test-050113-750, starting producer #0, channel #0
id: test-050113-750, time 1.000 s, sent: 13737 msg/s, confirmed: 9752 msg/s, nacked: 0 msg/s, ...
id: test-050113-750, time 2.000 s, sent: 6619 msg/s, confirmed: 6000 msg/s, nacked: 0 msg/s, ...
id: test-050113-750, time 3.500 s, sent: 12462 msg/s, confirmed: 8000 msg/s, nacked: 0 msg/s, ...
test stopped (Reached time limit)
id: test-050113-750, sending rate avg: 11892 msg/s
id: test-050113-750, receiving rate avg: 0 msg/s
"""
CONSUMER = """id: test-050122-885, starting consumer #0
id: test-050122-885, time 1.001 s, received: 12991 msg/s, min/median/75th/95th/99th consumer latency: 1/2/3/4/5 µs
id: test-050122-885, time 2.003 s, received: 15278 msg/s, min/median/75th/95th/99th consumer latency: 1/2/3/4/5 µs
"""


def test_each_line_is_a_rate_since_the_line_before() -> None:
    assert reports(PRODUCERS, "confirmed") == [Report(1.0, 9752), Report(2.0, 6000), Report(3.5, 8000)]
    assert reports(CONSUMER, "received") == [Report(1.001, 12991), Report(2.003, 15278)]
    assert reports(CONSUMER, "confirmed") == []


def test_the_window_begins_behind_the_warm_up_and_ends_with_the_last_line() -> None:
    numbers = window(reports(PRODUCERS, "confirmed"), warm_s=1.0, zero_s=100.0)
    assert (numbers["records"], numbers["took_s"]) == (6_000 + 12_000, 2.5)
    assert numbers["records_per_s"] == pytest.approx(7_200)
    assert (numbers["began_s"], numbers["ended_s"]) == (101.0, 103.5)
    assert numbers["stored"] == 9_752 + 6_000 + 12_000


def test_seconds_in_which_nothing_was_left_do_not_count() -> None:
    found = [Report(1.0, 500), Report(2.0, 1_000), Report(3.0, 1_000), Report(4.0, 0), Report(5.0, 0)]
    assert window(found, warm_s=1.0, zero_s=0.0)["records_per_s"] == pytest.approx(1_000)


@pytest.mark.parametrize("found", [[], [Report(1.0, 0)], [Report(1.0, 5), Report(2.0, 5)]])
def test_too_few_rates_are_a_failure(found: list[Report]) -> None:
    with pytest.raises(WorkFailed, match="no two rates"):
        window(found, warm_s=2.0, zero_s=0.0)
