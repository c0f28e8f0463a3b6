"""The demo's verdict: every promise that is broken is named, and fails the demo."""

from __future__ import annotations

import io
from collections.abc import Callable

import orjson
import pytest
from rich.console import Console

from loadtest.demo import Line, Outcome, flight_batches, landing_batch, report, result_table, same_carriers
from loadtest.flights import Carrier, Flights, Landing, Record

CARRIERS = [Carrier("A", 3, 1.5), Carrier("B", 1, None)]


def good() -> Outcome:
    outcome = Outcome(send_seconds=1.0, receive_seconds=2.0, carriers=list(CARRIERS))
    outcome.flights.sent(range(10))
    outcome.landings.sent(range(3))
    for row in range(10):
        outcome.flights.received(row)
    for row in range(3):
        outcome.landings.received(row)
        outcome.stored.fired(1000, 1001)
        outcome.arrived.fired(1000, 1002)
    return outcome


def judged(outcome: Outcome) -> tuple[bool, str]:
    output = io.StringIO()
    held = report(Console(file=output, width=100, color_system=None), outcome, CARRIERS)
    return held, output.getvalue()


def test_a_good_run_passes() -> None:
    held, text = judged(good())
    assert held
    assert "All checks passed." in text
    assert "Spark equals direct   yes" in text


def test_numbers_are_whole_in_a_narrow_terminal() -> None:
    output = io.StringIO()
    about = "records lie in Kafka, the ones before and behind them on this machine, and more is said of it here"
    Console(file=output, width=80, color_system=None).print(result_table([Line("on Kafka", "97,000", about, True)]))
    assert "97,000" in output.getvalue()
    assert "said of it here" in " ".join(output.getvalue().split())


def lose_a_flight(outcome: Outcome) -> None:
    outcome.flights.sent([99])


def lose_a_landing(outcome: Outcome) -> None:
    outcome.landings.sent([99])


def receive_twice(outcome: Outcome) -> None:
    outcome.landings.received(0)


def fire_early(outcome: Outcome) -> None:
    outcome.stored.fired(1000, 999)


def spark_miscounts(outcome: Outcome) -> None:
    outcome.carriers = [CARRIERS[0]._replace(flight_count=4), CARRIERS[1]]


@pytest.mark.parametrize(
    ("spoil", "named"),
    [
        (lose_a_flight, "received, lost"),
        (lose_a_landing, "fired, lost"),
        (receive_twice, "duplicated"),
        (fire_early, "early"),
        (spark_miscounts, "Spark equals direct"),
    ],
)
def test_a_broken_promise_fails_and_is_named(spoil: Callable[[Outcome], None], named: str) -> None:
    outcome = good()
    spoil(outcome)
    held, text = judged(outcome)
    assert not held
    assert text.rstrip().endswith(f"FAILED: {named}")


@pytest.mark.parametrize(
    "other",
    [
        CARRIERS[:1],
        [CARRIERS[0]._replace(mean_arrival_delay_min=1.5000001), CARRIERS[1]],
        [CARRIERS[0], CARRIERS[1]._replace(mean_arrival_delay_min=0.0)],
        [CARRIERS[0]._replace(name="C"), CARRIERS[1]],
    ],
)
def test_results_that_differ_in_any_number_are_not_the_same(other: list[Carrier]) -> None:
    assert same_carriers(CARRIERS, list(CARRIERS))
    assert not same_carriers(other, CARRIERS)


def test_a_batch_names_its_rows_and_keys_its_records_by_airplane() -> None:
    first, second = flight_batches([Record("N1", b'{"row":0}')] * 1000 + [Record(None, b'{"row":1000}')])
    assert (first.rows, second.rows) == (range(1000), range(1000, 1001))
    assert first.body.startswith(b'{"records":[{"key":"N1","value":{"row":0}},{"key":"N1"')
    assert second.body == b'{"records":[{"key":null,"value":{"row":1000}}]}'


def test_a_landing_is_due_at_its_own_time() -> None:
    batch = landing_batch([Landing(7, "N1", 250)], 1_000_000)
    assert batch.body == b'{"records":[{"key":"N1","value":{"row":7},"deliver_at":1000250}]}'


def test_the_direct_computation_agrees_with_adding_up_row_by_row() -> None:
    flights = Flights.load(2_000)
    delays: dict[str, list[int]] = {}
    counts: dict[str, int] = {}
    for record in flights.records():
        flight = orjson.loads(record.json_value)
        counts[flight["carrier"]] = counts.get(flight["carrier"], 0) + 1
        if flight["arr_delay"] is not None:
            delays.setdefault(flight["carrier"], []).append(flight["arr_delay"])
    expected = {code: (count, sum(delays[code]) / len(delays[code])) for code, count in counts.items()}
    carriers = flights.carriers()
    assert sorted((count, mean) for _, count, mean in carriers) == sorted(expected.values())
    assert ("Hawaiian Airlines Inc.", *expected["HA"]) in carriers


def test_landings_are_in_order_and_fill_their_time() -> None:
    landings = Flights.load(3_000).landings(500, 10_000)
    times = [landing.after_ms for landing in landings]
    assert times == sorted(times)
    assert (times[0], times[-1], len({landing.row for landing in landings})) == (0, 10_000, 500)
