"""The whole way of a record, on real data: HTTP in, WebSocket out, the timer, and a Spark job. `make demo`

    1  start a server on an empty folder and a free port
    2  send all flights of 2013 as JSON records keyed by airplane, and follow them over a WebSocket meanwhile
    3  schedule a "landed" record for some of them, two days of landings squeezed into ten seconds, and see them fire
       with --kafka the partitions of the flights move to a real Kafka meanwhile, and back (loadtest/demo_kafka.py)
    4  let Spark compute flights and mean delay of every airline from the topic, and compare with the file itself

Every record has an identity (its row in the file), so "lost" and "duplicated" are counted, not guessed. Exit code 0
means that every check held; 1 that one did not (it is named), or that something failed; 130 that it was interrupted.
Whatever happens, the server is stopped and its folder removed.
"""

from __future__ import annotations

import argparse
import asyncio
import math
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

import aiohttp
import orjson
import uvloop
from rich.box import SIMPLE
from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    ProgressColumn,
    Task,
    TaskID,
    TextColumn,
    TimeElapsedColumn,
)
from rich.table import Table
from rich.text import Text

from loadtest.checks import Deliveries, Lateness
from loadtest.demo_kafka import KAFKA_FAILURES, kafka_beside, move_there_and_back, records_there
from loadtest.flights import FLIGHT_COUNT, Carrier, Flights, Landing, Record
from loadtest.follower import DelayedMessage, Follower, FollowFailed, following
from loadtest.process import ProcessFailed, server
from loadtest.stats import percentile

PARTITIONS = 8
CONNECTIONS = 4
RECORDS_PER_REQUEST = 1_000
LANDINGS = 2_000
LANDINGS_WITHIN_MS = 10_000
LANDINGS_LEAD_MS = 1_500
"""From scheduling the landings to the first of them: time for all to be accepted before any is due."""

STALL_TIMEOUT_S = 20.0
SPARK_TIMEOUT_S = 300.0
FLIGHTS_MIN = 100
INTERRUPTED = 130

JSON_RECORDS = {"Content-Type": "application/vnd.kafka.json.v2+json"}


class DemoFailed(Exception):
    """The demo cannot go on. The message is for the person at the terminal."""


FAILURES = (DemoFailed, FollowFailed, ProcessFailed, aiohttp.ClientError, OSError, *KAFKA_FAILURES)
"""What can go wrong outside this program; anything else is a bug and shows its traceback."""


class Batch(NamedTuple):
    """One request: the rows of its records, and its body."""

    rows: Sequence[int]
    body: bytes


@dataclass(slots=True)
class Outcome:
    """What was seen, to be judged at the end."""

    flights: Deliveries[int] = field(default_factory=Deliveries)
    landings: Deliveries[int] = field(default_factory=Deliveries)
    stored: Lateness = field(default_factory=Lateness)
    arrived: Lateness = field(default_factory=Lateness)
    send_seconds: float = 0.0
    receive_seconds: float = 0.0
    carriers: list[Carrier] | None = None
    on_kafka_count: int | None = None


def main() -> None:
    """Run the demo and exit."""
    options = _options()
    console = Console(highlight=False)
    # A kill cleans up just as Ctrl-C does: asyncio turns SIGINT, and it alone, into a cancellation.
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background jobs begin with SIGINT ignored
    signal.signal(signal.SIGTERM, lambda *_: signal.raise_signal(signal.SIGINT))
    try:
        with data_directory(keep=options.keep) as data:
            is_good = run(
                console, data, flight_count=options.flights, with_spark=options.spark, with_kafka=options.kafka
            )
            if options.keep:
                console.print(f"The data is kept; serve it again with: mq serve --data {data}", soft_wrap=True)
    except (KeyboardInterrupt, asyncio.CancelledError):  # the latter when the loop had only just begun
        console.print("interrupted; stopped the server and removed its folder")
        sys.exit(INTERRUPTED)
    except FAILURES as failure:
        say_failed(console, failure)
        sys.exit(1)
    except ExceptionGroup as failures:
        expected, bugs = failures.split(FAILURES)
        if bugs is not None:
            raise
        assert expected is not None
        for one in _leaves(expected):
            say_failed(console, one)
        sys.exit(1)
    sys.exit(0 if is_good else 1)


def run(console: Console, data: Path, *, flight_count: int, with_spark: bool, with_kafka: bool) -> bool:
    """All four steps; whether every check held."""
    with console.status("reading the flights of 2013 ..."):
        flights = Flights.load(flight_count)
        records = flights.records()
        landings = flights.landings(LANDINGS, LANDINGS_WITHIN_MS)
        expected = flights.carriers()
    outcome = Outcome()
    with ExitStack() as stack:
        flags = stack.enter_context(kafka_beside(console, data / "kafka")) if with_kafka else ()
        url = stack.enter_context(server(data, *flags))
        console.print(f"server   {url}, an empty store, every answer after an fdatasync")
        uvloop.run(stream(console, url, records, landings, outcome, with_kafka=with_kafka))
        if with_spark:
            with console.status("Spark computes flights and mean delay of every airline ..."):
                outcome.carriers = spark_carriers(url)
    return report(console, outcome, expected)


# ------------------------------------------------------------------------------------------- send, follow, fire


async def stream(
    console: Console,
    url: str,
    records: Sequence[Record],
    landings: Sequence[Landing],
    outcome: Outcome,
    *,
    with_kafka: bool,
) -> None:
    """Steps 2 and 3: everything that goes over HTTP and the WebSocket."""
    async with aiohttp.ClientSession() as session:
        await create_topic(session, url, "flights")
        await create_topic(session, url, "landed")
        with progress_of(console) as progress:
            show = Shown(progress, outcome, len(records))
            async with following(session, url, ("flights", "landed"), show.take) as follower:
                async with asyncio.TaskGroup() as tasks:
                    tasks.create_task(send_flights(session, url, records, follower, show))
                    if with_kafka:
                        share = lambda: outcome.flights.sent_count / len(records)  # noqa: E731
                        tasks.create_task(move_there_and_back(console, session, url, "flights", PARTITIONS, share))
                if with_kafka:
                    outcome.on_kafka_count = await records_there(session, url, "flights")
                await schedule_landings(session, url, landings, follower, show)


async def create_topic(session: aiohttp.ClientSession, url: str, topic: str) -> None:
    async with session.put(f"{url}/mq/v1/topics/{topic}", json={"partitions": PARTITIONS}) as response:
        if response.status != 201:
            raise DemoFailed(f"creating topic {topic}: {response.status} {await response.text()}")


async def send_flights(
    session: aiohttp.ClientSession, url: str, records: Sequence[Record], follower: Follower, show: Shown
) -> None:
    """Send every flight over a few connections, then wait until the follower has them all."""
    started = time.monotonic()
    outcome = show.outcome
    batches = flight_batches(records)  # made as they are sent; the connections share one iterator

    async def send() -> None:
        for batch in batches:
            await post(session, f"{url}/topics/flights", batch.body)
            outcome.flights.sent(batch.rows)
            show.sent(len(batch.rows))

    async with asyncio.TaskGroup() as tasks:
        for _ in range(CONNECTIONS):
            tasks.create_task(send())
    outcome.send_seconds = time.monotonic() - started
    await follower.until(lambda: outcome.flights.is_complete, stall_timeout_s=STALL_TIMEOUT_S)
    outcome.receive_seconds = time.monotonic() - started


def flight_batches(records: Sequence[Record]) -> Iterator[Batch]:
    """Requests of RECORDS_PER_REQUEST flights: `{"records":[{"key":"N14228","value":{"row":0,...}}, ...]}`."""
    for first in range(0, len(records), RECORDS_PER_REQUEST):
        chunk = records[first : first + RECORDS_PER_REQUEST]
        encoded = [b'{"key":%b,"value":%b}' % (orjson.dumps(tail_number), value) for tail_number, value in chunk]
        yield Batch(range(first, first + len(chunk)), b'{"records":[%b]}' % b",".join(encoded))


async def schedule_landings(
    session: aiohttp.ClientSession, url: str, landings: Sequence[Landing], follower: Follower, show: Shown
) -> None:
    """Ask for a record at the moment of every landing, then wait until all have fired."""
    start_ms = time.time_ns() // 1_000_000 + LANDINGS_LEAD_MS
    show.landings_begin(len(landings))
    for first in range(0, len(landings), RECORDS_PER_REQUEST):
        batch = landing_batch(landings[first : first + RECORDS_PER_REQUEST], start_ms)
        await post(session, f"{url}/topics/landed", batch.body)
        show.outcome.landings.sent(batch.rows)
    await follower.until(lambda: show.outcome.landings.is_complete, stall_timeout_s=STALL_TIMEOUT_S)


def landing_batch(landings: Sequence[Landing], start_ms: int) -> Batch:
    """Delayed records: what differs from others is `deliver_at`, epoch milliseconds."""
    records = [
        {"key": landing.tail_number, "value": {"row": landing.row}, "deliver_at": start_ms + landing.after_ms}
        for landing in landings
    ]
    return Batch([landing.row for landing in landings], orjson.dumps({"records": records}))


async def post(session: aiohttp.ClientSession, url: str, body: bytes) -> None:
    """Send records. Returns when they are durable."""
    async with session.post(url, data=body, headers=JSON_RECORDS) as response:
        if response.status != 200:
            raise DemoFailed(f"sending to {url}: {response.status} {await response.text()}")
        if response.headers["Mq-Acks"] != "flushed":
            raise DemoFailed("the server answered before the records were durable")
        await response.read()


class Shown:
    """Takes the follower's messages into the outcome, and moves the bars."""

    def __init__(self, progress: Progress, outcome: Outcome, flight_count: int) -> None:
        self.outcome = outcome
        self._progress = progress
        self._sent = progress.add_task("flights sent over HTTP", total=flight_count)
        self._received = progress.add_task("received over WebSocket", total=flight_count)
        self._fired: TaskID | None = None

    def sent(self, count: int) -> None:
        self._progress.advance(self._sent, count)

    def landings_begin(self, count: int) -> None:
        self._fired = self._progress.add_task("landings fired", total=count)

    def take(self, messages: list[DelayedMessage], arrived_ms: int) -> None:
        """The messages of one frame."""
        outcome = self.outcome
        flight_count = 0
        for message in messages:
            row = message["value"]["row"]
            if message["topic"] == "flights":
                outcome.flights.received(row)
                flight_count += 1
            else:
                outcome.landings.received(row)
                outcome.stored.fired(message["deliver_at"], message["store_timestamp"])
                outcome.arrived.fired(message["deliver_at"], arrived_ms)
        self._progress.advance(self._received, flight_count)
        if self._fired is not None:
            self._progress.advance(self._fired, len(messages) - flight_count)


# ------------------------------------------------------------------------------------------------------- Spark


def spark_carriers(url: str) -> list[Carrier]:
    """The result of `loadtest/spark_job.py`, run against the server."""
    command = [sys.executable, "-m", "loadtest.spark_job", url]
    try:
        # Killed with its Java machine when this block is left early: that ends when its parent does.
        done = subprocess.run(command, capture_output=True, timeout=SPARK_TIMEOUT_S, check=False)
    except subprocess.TimeoutExpired:
        raise DemoFailed(f"the Spark job took longer than {SPARK_TIMEOUT_S:g} s") from None
    if done.returncode != 0:
        said = done.stderr.decode(errors="replace").strip()
        raise DemoFailed(f"the Spark job ended with exit code {done.returncode}:\n{said[-4000:]}")
    return [Carrier(*row) for row in orjson.loads(done.stdout)]


# ------------------------------------------------------------------------------------------------------ report


def report(console: Console, outcome: Outcome, expected: Sequence[Carrier]) -> bool:
    """Print what was seen. Every line with a condition is a check; whether all held."""
    flights, landings = outcome.flights, outcome.landings
    lost = len(flights.lost) + len(landings.lost)
    duplicated = flights.duplicate_count + landings.duplicate_count
    early = outcome.stored.early_count
    sent_rate = flights.sent_count / outcome.send_seconds
    received_rate = flights.received_count / outcome.receive_seconds
    lines = [
        Line("sent", f"{flights.sent_count:,}", f"{sent_rate:,.0f} records/s, durable", True),
        Line("received", f"{flights.received_count:,}", f"{received_rate:,.0f} records/s", flights.is_complete),
        Line("fired", f"{landings.received_count:,}", f"of {landings.sent_count:,} scheduled", landings.is_complete),
        Line("early", f"{early:,}", "fired before its time", early == 0),
        Line("lost", f"{lost:,}", "acknowledged, never received", lost == 0),
        Line("duplicated", f"{duplicated:,}", "received twice", duplicated == 0),
    ]
    if outcome.on_kafka_count is not None:
        about = "records lie in Kafka, the ones before and behind them do not"
        lines.append(Line("on Kafka", f"{outcome.on_kafka_count:,}", about, outcome.on_kafka_count > 0))
    if outcome.carriers is not None:
        is_equal = same_carriers(outcome.carriers, expected)
        about = f"flights and mean delay of {len(expected)} airlines"
        lines.append(Line("Spark equals direct", "yes" if is_equal else "no", about, is_equal))
        console.print(carriers_table(outcome.carriers))
    if landings.received_count:
        console.print(lateness_table(outcome))
    console.print(result_table(lines))
    failed = [line.what for line in lines if not line.holds]
    console.print(f"FAILED: {', '.join(failed)}" if failed else "All checks passed.")
    return not failed


class Line(NamedTuple):
    """One line of the last table."""

    what: str
    result: str
    about: str
    holds: bool


def same_carriers(computed: Sequence[Carrier], expected: Sequence[Carrier]) -> bool:
    """Whether two results agree in every number. The sums of delays are exact; only the division may round."""

    def same_mean(one: float | None, other: float | None) -> bool:
        if one is None or other is None:
            return one is other
        return math.isclose(one, other, rel_tol=1e-12)

    return len(computed) == len(expected) and all(
        one[:2] == other[:2] and same_mean(one.mean_arrival_delay_min, other.mean_arrival_delay_min)
        for one, other in zip(computed, expected, strict=True)
    )


def carriers_table(carriers: Sequence[Carrier]) -> Table:
    table = _table("Flights from New York in 2013, by Spark", ("airline", "flights", "mean delay (min)"))
    for name, flight_count, mean_min in carriers:
        table.add_row(name, f"{flight_count:,}", "-" if mean_min is None else f"{mean_min:.1f}")
    return table


def lateness_table(outcome: Outcome) -> Table:
    table = _table("How late the delayed records were (ms)", ("", "min", "p50", "p99", "max"))
    for name, lateness in (("stored in the topic", outcome.stored), ("here, over WebSocket", outcome.arrived)):
        late_ms = lateness.late_ms
        table.add_row(name, *(f"{percentile(late_ms, percent):,.0f}" for percent in (0, 50, 99, 100)))
    return table


def result_table(lines: Sequence[Line]) -> Table:
    table = _table("Result", ("", "", ""), right=(1,))
    for line in lines:
        table.add_row(line.what, line.result, line.about if line.holds else f"{line.about} - FAILED")
    return table


def _table(title: str, columns: Sequence[str], right: Sequence[int] | None = None) -> Table:
    """A table whose columns after the first are numbers, unless `right` says which are. What is neither a number nor in
    the first column is over several lines where the terminal is narrow."""
    numbers = range(1, len(columns)) if right is None else right
    table = Table(title=title, title_justify="left", box=SIMPLE, show_header=any(columns), pad_edge=False)
    for index, name in enumerate(columns):
        is_number = index in numbers
        table.add_column(name, justify="right" if is_number else "left", no_wrap=is_number or not index)
    return table


# ----------------------------------------------------------------------------------------------- small helpers


@contextmanager
def data_directory(*, keep: bool) -> Iterator[Path]:
    """A folder for the store, gone afterwards unless it is to be kept."""
    path = Path(tempfile.mkdtemp(prefix="mq-demo-"))
    try:
        yield path
    finally:
        if not keep:
            shutil.rmtree(path, ignore_errors=True)


class RateColumn(ProgressColumn):
    """Records a second, over the whole task once it is done."""

    def render(self, task: Task) -> Text:
        """The rate, once there is one."""
        rate = task.finished_speed or task.speed
        return Text("" if rate is None else f"{rate:,.0f}/s", justify="right")


def progress_of(console: Console) -> Progress:
    return Progress(
        TextColumn("{task.description:<24}"),
        BarColumn(bar_width=30),
        MofNCompleteColumn(),
        RateColumn(),
        TimeElapsedColumn(),
        console=console,
    )


def say_failed(console: Console, failure: BaseException) -> None:
    console.print(f"FAILED: {str(failure) or type(failure).__name__}", markup=False, soft_wrap=True)


def _leaves(group: BaseExceptionGroup[Exception]) -> Iterator[BaseException]:
    for failure in group.exceptions:
        if isinstance(failure, BaseExceptionGroup):
            yield from _leaves(failure)
        else:
            yield failure


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m loadtest.demo", description="The whole way of a record.")
    parser.add_argument(
        "--flights", type=int, default=FLIGHT_COUNT, metavar="N", help=f"send only the first N (of {FLIGHT_COUNT:,})"
    )
    parser.add_argument("--no-spark", dest="spark", action="store_false", help="leave the Spark job out")
    parser.add_argument("--kafka", action="store_true", help="have partitions move to a real Kafka meanwhile, and back")
    parser.add_argument("--keep", action="store_true", help="keep the server's folder and say where it is")
    options = parser.parse_args()
    if not FLIGHTS_MIN <= options.flights <= FLIGHT_COUNT:
        parser.error(f"--flights must be between {FLIGHTS_MIN} and {FLIGHT_COUNT}")
    return options


if __name__ == "__main__":
    main()
