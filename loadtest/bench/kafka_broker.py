"""`python -m loadtest.bench.kafka_broker`: partitions of mq that lie in Kafka, beside native clients on the same Kafka;
`kafka-broker.json`, `kafka-broker.md`.

One Apache Kafka and one node of mq, on one machine. The ways of a work are gone in turn, the order changing from round
to round, after a round that does not count and tells how many records librdkafka takes in RUN_S:

    in        batches to a partition in Kafka: prebuilt ones to mq over HTTP, of 1,000 records and of as many
              bytes as librdkafka's largest, and librdkafka to Kafka's port of mq; beside them the same to Kafka
              straight. Acknowledged by all replicas in sync (acks=all)
    out       what is there: over HTTP, by Kafka's port of mq, and from Kafka straight
    latency   single records at a steady rate, from POST to a WebSocket: of a partition in Kafka, and of one in the
              node's own store; beside both librdkafka on Kafka

Both servers and the client share the cores, and a record that goes through mq is handled by both servers. So beside the
rate stands what each of them takes of the processor for it.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

from rich.console import Console

from loadtest.bench import kafka_broker_work as works
from loadtest.bench import librdkafka
from loadtest.bench import parts as pages
from loadtest.bench.kafka_broker_work import Done, Run, Subjects
from loadtest.bench.parts import Goal, Part, Row, number
from loadtest.peers.fetch import TOOLS
from loadtest.peers.kafka import VERSION as KAFKA_VERSION
from loadtest.peers.peer import Unavailable
from loadtest.process import end_when_told

RESULTS = Path(__file__).parents[2] / "docs" / "benchmarks"
RUN_S, LATENCY_RUN_S = 2.0, 3.0
RATES = (200, 1_000)
SIZES = {100: "100 B", 1_000: "1 KB"}
FIRST_COUNT = {100: 300_000, 1_000: 50_000}
"""Records for librdkafka in the round that does not count."""

FILLED = {100: 4_000_000, 1_000: 500_000}
"""Records in the topic of `out`."""

COUNT_MIN = 1_000
SECONDS_MIN = 0.3
HTTP, LARGE, PORT = "mq, HTTP", "mq, HTTP, 1 MB batches", "mq, librdkafka"
RAW, RAW_LARGE, STRAIGHT = "Kafka, prebuilt bytes", "Kafka, prebuilt bytes, 1 MB batches", "Kafka, librdkafka"
THROUGH, EMBEDDED = "mq, in Kafka", "mq, in its store"

Prepare = Callable[[Subjects, str], None]


class Way(NamedTuple):
    """How records go; `make` and `drop` are for the topic of one run. `goal`: of its first value."""

    name: str
    run: Run
    make: Prepare | None = None
    drop: Prepare | None = None
    goal: Goal | None = None


class Work(NamedTuple):
    """What goes by several ways. A run has a value for each of `names`. The last way is what others are beside."""

    part: str
    names: tuple[str, ...]
    unit: str
    ways: tuple[Way, ...]
    size_bytes: int = 0
    seconds: float = RUN_S


class Options(NamedTuple):
    """How much of it. `until_s`: when no further round begins, by the monotonic clock."""

    rounds: int
    scale: float
    until_s: float

    def count(self, records: float) -> int:
        """So many records, at this scale."""
        return max(int(records * self.scale), COUNT_MIN)

    def seconds(self, work: Work) -> float:
        """How long a run of it is."""
        return max(work.seconds * self.scale, SECONDS_MIN)


def _in(size_bytes: int, goal: Goal) -> Work:
    moved, straight = (works.make_moved, works.drop_moved), (works.make_straight, works.drop_straight)
    ways: tuple[Way, ...] = (
        Way(HTTP, works.raw_in(size_bytes), *moved, goal),
        Way(PORT, works.client_in(size_bytes), *moved, goal),
        Way(RAW, works.raw_in_straight(size_bytes), *straight),
        Way(STRAIGHT, works.client_in(size_bytes, is_straight=True), *straight),
    )
    if (most := works.large_batch_records(size_bytes)) > works.BATCH_RECORDS:
        large = Way(LARGE, works.raw_in(size_bytes, most), *moved, goal)
        ways = (large, Way(RAW_LARGE, works.raw_in_straight(size_bytes, most), *straight), *ways)
    return Work("in", (f"records of {SIZES[size_bytes]} in",), "records/s", ways, size_bytes)


def _out(size_bytes: int, goal: Goal | None) -> Work:
    ways = (
        Way(HTTP, works.raw_out, goal=goal),
        Way(PORT, works.client_out(), goal=goal),
        Way(RAW, works.raw_out_straight),
        Way(STRAIGHT, works.client_out(is_straight=True)),
    )
    return Work("out", (f"records of {SIZES[size_bytes]} out",), "records/s", ways, size_bytes)


def _latency(rate: int) -> Work:
    ways = (
        Way(THROUGH, works.pushed(rate), works.make_moved, works.drop_moved, Goal(at_most=10.0)),
        Way(EMBEDDED, works.pushed(rate), works.make_own, works.drop_own),
        Way(STRAIGHT, works.client_end_to_end(rate), works.make_straight, works.drop_straight),
    )
    return Work("latency", (f"{rate:,}/s, p50", f"{rate:,}/s, p99"), "ms", ways, seconds=LATENCY_RUN_S)


WORKS = (
    _in(100, Goal(at_least=1e6, share=0.8)),
    _in(1_000, Goal(share=0.8)),
    _out(100, Goal(at_least=2.5e6)),
    _out(1_000, None),
    *(_latency(rate) for rate in RATES),
)
PARTS = {
    "in": "Records in, acknowledged by all replicas in sync",
    "out": "Records out",
    "latency": "Single records from end to end",
}

Rows = list[dict[str, Any]]


# ---- measuring -------------------------------------------------------------------------------------------------------


class Measured(NamedTuple):
    """One run: what came of it, the cores that each program used, those that were idle, and CPU seconds per million
    records."""

    done: Done
    cores: Mapping[str, float]
    idle_cores: float
    cpu_s: Mapping[str, float]


def _once(at: Subjects, way: Way, topic: str, count: int, seconds: float) -> Measured:
    began = {**at.cpu_s(), "the client": pages.own_cpu_s()}
    idle_s, began_s = pages.idle_cpu_s(), time.perf_counter()
    done = way.run(at, topic, count, seconds)
    wall_s = time.perf_counter() - began_s
    ended = {**at.cpu_s(), "the client": pages.own_cpu_s()}
    used = {name: ended[name] - began[name] for name in began}
    return Measured(
        done,
        {name: used_s / wall_s for name, used_s in used.items()},
        (pages.idle_cpu_s() - idle_s) / wall_s,
        {name: used_s / done.records * 1e6 for name, used_s in used.items()},
    )


class _Ways:
    """The rounds of one work."""

    def __init__(self, work: Work, options: Options) -> None:
        self.work = work
        self.found: dict[str, list[Measured]] = {way.name: [] for way in work.ways}
        self._options = options
        self._filled = ("", 0)
        size = work.size_bytes
        self._counts = {way.name: options.count(FIRST_COUNT.get(size, 0)) for way in work.ways}

    def prepare(self, at: Subjects) -> None:
        """Fill the topic that is read."""
        if self.work.part == "out":
            topic, size = f"filled-{self.work.size_bytes}", self.work.size_bytes
            works.make_moved(at, topic)
            self._filled = topic, works.fill(at, topic, size, self._options.count(FILLED[size]))

    def go(self, at: Subjects, round_: int, tell: Callable[[str], None]) -> None:
        """Each way once."""
        for way in self.work.ways if round_ % 2 else self.work.ways[::-1]:
            tell(f"round {round_} of {self._options.rounds}: {self.work.names[0]}, {way.name}")
            measured = self._on_its_topic(at, way, f"{self.work.part}-{round_}-{self.work.ways.index(way)}")
            if round_:
                self.found[way.name].append(measured)
            elif self.work.part == "in":
                self._counts[way.name] = self._options.count(measured.done.values[0] * RUN_S)

    def _on_its_topic(self, at: Subjects, way: Way, topic: str) -> Measured:
        if way.make is None or way.drop is None:
            filled, count = self._filled
            return _once(at, way, filled, count, self._options.seconds(self.work))
        topic = f"{topic}-{self.work.size_bytes or self.work.names[0].partition('/')[0].replace(',', '')}"
        way.make(at, topic)
        try:
            return _once(at, way, topic, self._counts[way.name], self._options.seconds(self.work))
        finally:
            way.drop(at, topic)

    def rows(self) -> Rows:
        """A row for each name and way, as JSON."""
        beside = self.work.ways[-1].name
        return [
            {
                "work": name, "way": way.name, "unit": self.work.unit,
                "values": [one.done.values[at] for one in self.found[way.name]],
                "beside": [] if way.name == beside else [one.done.values[at] for one in self.found[beside]],
                "goal": None if way.goal is None or at else way.goal._asdict(),
                "cores": [one.cores for one in self.found[way.name]],
                "idle_cores": [one.idle_cores for one in self.found[way.name]],
                "cpu_s": [one.cpu_s for one in self.found[way.name]],
            }
            for at, name in enumerate(self.work.names)
            for way in self.work.ways
        ]  # fmt: skip


def measured(at: Subjects, options: Options, chosen: Sequence[Work], tell: Callable[[str], None]) -> tuple[int, Rows]:
    """How many rounds there was time for, and the rows of all works."""
    every = [_Ways(work, options) for work in chosen]
    for one in every:
        tell(f"filling for {one.work.names[0]}")
        one.prepare(at)
    for round_ in range(options.rounds + 1):
        if round_ > 1 and time.monotonic() > options.until_s:
            break
        for one in every:
            one.go(at, round_, tell)
    return len(next(iter(every[0].found.values()))), [row for one in every for row in one.rows()]


# ---- the page --------------------------------------------------------------------------------------------------------

HEADINGS = ("work", "way", "measured", f"speed / {STRAIGHT}", "CPU s per million: mq", "Kafka", "client", "cores: mq",
            "Kafka", "client", "limit", "goal", "met")  # fmt: skip
ALIGNMENT = "|---|---|---:|---:|---:|---:|---:|---:|---:|---:|---|---|---|"
PROGRAMS = ("mq", "Kafka", "the client")


def row_of(row: Mapping[str, Any]) -> Row:
    """Its values and its goal, as all benchmarks have them."""
    goal = Goal(**row["goal"]) if row["goal"] else None
    return Row(row["work"], row["unit"], row["values"], row["beside"], goal)


def cells(row: Mapping[str, Any], core_count: int) -> tuple[str, ...]:
    """A row as HEADINGS has it."""
    own = row_of(row)
    cores = {name: median(one[name] for one in row["cores"]) for name in PROGRAMS}
    rounds = f" ({number(min(own.ours), own.unit)} - {number(max(own.ours), own.unit)})" if len(own.ours) > 1 else ""
    is_rate = row["unit"] == "records/s"
    goal = pages.goal_text(own.goal, own.unit).replace("the limit", "librdkafka's")
    return (
        row["work"],
        row["way"],
        number(median(own.ours), own.unit) + rounds,
        pages.shown_share(own.share()) if own.limit else "-",
        *(f"{median(one[name] for one in row['cpu_s']):.2f}" for name in PROGRAMS),
        *(f"{cores[name]:.2f}" for name in PROGRAMS),
        pages.limit(cores, median(row["idle_cores"]), core_count) if is_rate else "-",
        goal,
        pages.met(own.is_met()),
    )


def _core_count(part: Part) -> int:
    return int(str(part.conditions.get("cores") or os.cpu_count() or 1))


def misses(parts: Mapping[str, Part]) -> list[str]:
    """A line for each goal that was missed."""
    lines = []
    for part in parts.values():
        for row in part.rows:
            if row_of(row).is_met() is False:
                shown = cells(row, _core_count(part))
                lines.append(f"- {shown[0]}, {shown[1]}: {shown[2]}, {shown[3]} of librdkafka's own; the goal is")
                lines[-1] += f" {shown[11]}." + (f" Limit: {shown[10]}." if shown[10] != "-" else "")
    return lines


def as_markdown(parts: Mapping[str, Part]) -> str:
    """The page."""
    lines = [
        "# Kafka as a broker of mq: beside native clients on the same Kafka",
        "",
        "Made by `python -m loadtest.bench.kafka_broker` (`make bench-kafka-broker`); do not edit. One Apache Kafka of",
        "one node and one node of mq share this machine with the client: a record that goes through mq is handled by",
        "both servers. *mq, HTTP*: prebuilt RecordBatches of 1,000 records, the same bytes again and again, by"
        f" {works.CONNECTIONS}",
        f"connections; read by one connection, {works.FETCH_BYTES >> 20} MiB an answer. *1 MB batches*: the same with"
        " as many bytes a batch as librdkafka's largest",
        f"(its `batch.size`), {works.large_batch_records(100):,} records of 100 B; of 1 KB, 1,000 records are as large."
        " *mq, librdkafka*: `rdkafka_performance` with Kafka's port of mq.",
        "*Kafka, librdkafka*: the same program and settings with Kafka. *Kafka, prebuilt bytes*: what *mq, HTTP*",
        "sends, by Kafka's protocol. All are acknowledged by all replicas in sync (acks=all), one here, which Kafka",
        "does not sync to its disk; one partition. Topics that are written straight have Kafka's own settings, those",
        "of mq LogAppendTime. `out` reads the same topic by all ways. *limit*: what follows from the use of the cores.",
        "*latency*: from POST of a JSON record to a WebSocket of mq, of a partition in Kafka and of one in the node's",
        "own store (which syncs before it answers); beside both `produce` to `poll` of confluent-kafka. Medians of the",
        "rounds with the lowest and the highest; speeds are compared round by round.",
        "",
        *pages.condition_lines(parts),
    ]
    for name, part in parts.items():
        lines += ["", f"## {PARTS[name]}", "", f"| {' | '.join(HEADINGS)} |", ALIGNMENT]
        lines += [f"| {' | '.join(cells(row, _core_count(part)))} |" for row in part.rows]
    lines += ["", "## Goals that were missed", "", *(misses(parts) or ["None."])]
    return "\n".join(lines) + "\n"


def main() -> None:
    """Measure, print, and write the results; exit code 0 also when a goal was missed: it is a report."""
    end_when_told()
    parser = argparse.ArgumentParser(prog="python -m loadtest.bench.kafka_broker", description="Kafka as a broker.")
    parser.add_argument("--only", choices=[*PARTS], help="one part instead of all")
    parser.add_argument("--dir", type=Path, default=Path("/var/tmp"), help="where servers keep their files; a disk")
    parser.add_argument("--scale", type=float, default=1.0, help="more or fewer records")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--minutes", type=float, default=9.0, help="after which no round begins")
    parser.add_argument("--out", type=Path, default=RESULTS, help="where the results are written")
    asked = parser.parse_args()
    chosen = [asked.only] if asked.only else [*PARTS]
    console = Console(highlight=False, width=220)
    parts: dict[str, Part] = {}
    began_s = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="mq-bench-", dir=asked.dir) as directory:
        try:
            librdkafka.rdkafka_performance(TOOLS)
            with works.subjects(Path(directory)) as at, console.status("") as status:
                for number_, part in enumerate(chosen, 1):
                    until_s = began_s + asked.minutes * 60 * number_ / len(chosen)
                    conditions = pages.conditions(Path(directory), scale=asked.scale, kafka=KAFKA_VERSION)
                    others = pages.OtherPrograms()
                    options = Options(asked.rounds, asked.scale, until_s)
                    rounds, rows = measured(at, options, [one for one in WORKS if one.part == part], status.update)
                    conditions |= {"rounds": rounds, "memory": at.memory, "other_programs": others.said()}
                    parts = pages.write(
                        asked.out, "kafka-broker", [*PARTS], {part: Part(conditions, rows)}, as_markdown
                    )
        except Unavailable as error:
            sys.exit(f"not measured: {error}")
    console.print(as_markdown(parts), markup=False, soft_wrap=True)


if __name__ == "__main__":
    main()
