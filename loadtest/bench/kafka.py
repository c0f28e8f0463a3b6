"""`python -m loadtest.bench.kafka`: Kafka's own clients against mq and against Apache Kafka; `kafka.json`, `kafka.md`.

The same client with the same settings does the same work with one server after the other, round by round, after a
round that does not count. Both servers run meanwhile; the one that is not asked is idle. Two levels:

    written   an answer means that the operating system has it: `--acks written`, and Kafka's default
    durable   a disk sync covers it before the answer: our default, and Kafka with a flush after every batch

Beside the rate stands the CPU time of the server's process: on a machine where other programs run, it says more. How
much of the cores server and client used says what a rate is limited by.

The round that does not count also tells how many records each work takes: as many as the slower server does in RUN_S,
and the same for both. So a run of all takes a quarter of an hour, however slow one of them is; `--minutes` ends it
after the round in which its time is over.
"""

from __future__ import annotations

import argparse
import os
import re
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from importlib import import_module
from itertools import product
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

import psutil
from rich.console import Console

from loadtest.bench import librdkafka
from loadtest.bench import parts as pages
from loadtest.bench.containment import memory_limited
from loadtest.bench.disk import forget_files
from loadtest.bench.parts import Part, limit, number, shown_times
from loadtest.peers.fetch import TOOLS, program
from loadtest.peers.kafka import TOOL_JAVA, Kafka
from loadtest.peers.kafka import VERSION as KAFKA_VERSION
from loadtest.peers.peer import Durability, Level, Unavailable, WorkFailed
from loadtest.peers.servers import free_port
from loadtest.process import end_when_told, running_server
from loadtest.stats import Spread, paired_ratio

RESULTS = Path(__file__).parents[2] / "docs" / "benchmarks"
LEVELS = {"written": Durability.WRITTEN, "durable": Durability.SYNCED}
OURS, KAFKA = "mq", "Apache Kafka"
LATENCY_RATE = 1_000
LATENCY_RUN_S = 5.0
RUN_S = 2.0
"""What a run takes of the slower server, without its client's start."""

WARM_COUNT_SHARE = 0.1
"""Of the records of a work, in the round that does not count."""

MANY_PARTITIONS = 1_000
COUNT_MIN = 1_000
GOALS = {"written": 1.0, "durable": 1.5}
"""What ours shall reach of Kafka's rate in workloads that produce; 1.0 in all others."""


class Side(NamedTuple):
    """One server under one name."""

    name: str
    endpoint: str
    pid: int
    directory: Path

    def cpu_s(self) -> float:
        """CPU time of the server's process so far."""
        used = psutil.Process(self.pid).cpu_times()
        return float(used.user + used.system)


class Used(NamedTuple):
    """What a run took: processor seconds of the server, of the client, and idle, and how long it was."""

    server_s: float
    client_s: float
    idle_s: float
    wall_s: float


@dataclass(frozen=True, slots=True)
class Options:
    """How much of it. `until_s`: when no further round begins, by the monotonic clock."""

    directory: Path
    rounds: int
    scale: float
    until_s: float

    def count(self, records: int) -> int:
        """So many records, at this scale."""
        return max(int(records * self.scale), COUNT_MIN)


Run = Callable[[Side, str, int], Sequence[float]]


class Work(NamedTuple):
    """One or more rows of one run. `run` does it once, with so many records, on a topic of its own that has
    `partitions`, and answers a rate or milliseconds for each of `names`."""

    names: tuple[str, ...]
    client: str
    unit: str
    partitions: int
    record_count: int
    run: Run
    produces: bool = False
    reads_bytes: int = 0
    """The size of the records that it reads; 0: it reads none that were there before."""

    is_from_disk: bool = False
    """The page cache has none of what it reads; else it has all."""


def _c_produce(size_bytes: int) -> Run:
    return lambda side, topic, count: [librdkafka.produce(side.endpoint, topic, size_bytes, count)]


def _c_consume(side: Side, topic: str, count: int) -> Sequence[float]:
    return [librdkafka.consume(side.endpoint, topic, count)]


def _java(tool: str, *arguments: str) -> str:
    java = [program("java", "default-jre-headless"), *TOOL_JAVA, "-cp", f"{TOOLS / f'kafka-{KAFKA_VERSION}'}/*"]
    return librdkafka.said([*java, f"org.apache.kafka.tools.{tool}", *arguments])


def _java_produce(size_bytes: int) -> Run:
    def run(side: Side, topic: str, count: int) -> Sequence[float]:
        said = _java(
            "ProducerPerformance", "--topic", topic, "--num-records", str(count), "--record-size", str(size_bytes),
            "--throughput", "-1", "--producer-props", f"bootstrap.servers={side.endpoint}", "acks=all",
        )  # fmt: skip
        rates = re.findall(r"([\d.]+) records/sec", said)
        if f"{count} records sent" not in said or not rates:
            raise WorkFailed(f"kafka-producer-perf-test: {said[-500:]}")
        return [float(rates[-1])]

    return run


def _java_consume(side: Side, topic: str, count: int) -> Sequence[float]:
    said = _java(
        "ConsumerPerformance", "--bootstrap-server", side.endpoint, "--topic", topic, "--messages", str(count),
        "--hide-header",
    )  # fmt: skip
    found = re.findall(r"^\d{4}-\d\d-\d\d .*$", said, re.MULTILINE)
    if not found:
        raise WorkFailed(f"kafka-consumer-perf-test: {said[-500:]}")
    fields = found[-1].split(", ")
    read_count, fetching_ms = int(fields[4]), float(fields[7])
    if read_count < count:
        raise WorkFailed(f"kafka-consumer-perf-test read {read_count} of {count}")
    return [read_count / fetching_ms * 1_000]


def _python_produce(size_bytes: int) -> Run:
    def run(side: Side, topic: str, count: int) -> Sequence[float]:
        value = bytes(size_bytes)
        producer: Any = import_module("confluent_kafka").Producer(
            {"bootstrap.servers": side.endpoint, "acks": "all", "queue.buffering.max.messages": 1_000_000}
        )
        began_s = time.perf_counter()
        for number_ in range(count):
            producer.produce(topic, value)
            if number_ % 10_000 == 9_999:
                producer.poll(0)
        if producer.flush(librdkafka.TOOL_TIMEOUT_S):
            raise WorkFailed("confluent-kafka did not deliver all")
        return [count / (time.perf_counter() - began_s)]

    return run


def _latency(side: Side, topic: str, count: int) -> Sequence[float]:
    return librdkafka.end_to_end(side.endpoint, topic, count, LATENCY_RATE)


_C, _JAVA_IN, _JAVA_OUT = "rdkafka_performance", "kafka-producer-perf-test", "kafka-consumer-perf-test"
_PYTHON = "confluent-kafka (Python)"
WORKS = (
    Work(("produce 100 B",), _C, "records/s", 1, 4_000_000, _c_produce(100), produces=True),
    Work(("produce 1 KB",), _C, "records/s", 1, 1_000_000, _c_produce(1_000), produces=True),
    Work(("produce 100 B to 1,000 partitions",), _C, "records/s", MANY_PARTITIONS, 1_000_000, _c_produce(100), True),
    Work(("consume 100 B",), _C, "records/s", 1, 4_000_000, _c_consume, reads_bytes=100),
    Work(("consume 1 KB",), _C, "records/s", 1, 400_000, _c_consume, reads_bytes=1_000),
    Work(("consume 1 KB from the disk",), _C, "records/s", 1, 1_000_000, _c_consume, False, 1_000, is_from_disk=True),
    Work(("produce 100 B",), _JAVA_IN, "records/s", 1, 2_000_000, _java_produce(100), produces=True),
    Work(("produce 1 KB",), _JAVA_IN, "records/s", 1, 500_000, _java_produce(1_000), produces=True),
    Work(("consume 100 B",), _JAVA_OUT, "records/s", 1, 4_000_000, _java_consume, reads_bytes=100),
    Work(("produce 100 B",), _PYTHON, "records/s", 1, 1_000_000, _python_produce(100), produces=True),
    Work(("end to end at 1,000/s, p50", "end to end at 1,000/s, p99"), _PYTHON, "ms", 1,
         int(LATENCY_RATE * LATENCY_RUN_S), _latency),
)  # fmt: skip


@contextmanager
def sides(directory: Path, level: str) -> Iterator[tuple[list[Side], str]]:
    """Both servers at a level, and how their memory is limited. Raises Unavailable."""
    kafka, port = Kafka(), free_port()
    kafka.prepare(TOOLS)
    (directory / "kafka").mkdir(parents=True)
    acks = "written" if level == "written" else "flushed"
    with (
        running_server(directory / "mq", "--acks", acks, "--kafka-port", str(port)) as ours,
        kafka.serve(TOOLS, directory / "kafka", Level(level, LEVELS[level], "")) as theirs,
        memory_limited("mq", [ours.pid]) as memory,
        memory_limited("kafka", theirs.pids),
    ):
        own = Side(OURS, f"127.0.0.1:{port}", ours.pid, directory / "mq")
        yield [own, Side(KAFKA, theirs.endpoint, theirs.pids[0], directory / "kafka")], memory


Rows = list[dict[str, object]]


@dataclass(slots=True)
class _Found:
    """The rounds of one work: values of each of its names, and what was used, of both servers."""

    values: dict[str, list[Sequence[float]]]
    used: dict[str, list[tuple[Used, int]]]


def _once(work: Work, side: Side, topic: str, count: int) -> tuple[Sequence[float], Used]:
    """One run of a work, on a topic that is there."""
    server_s, client_s, idle_s, began_s = side.cpu_s(), pages.own_cpu_s(), pages.idle_cpu_s(), time.perf_counter()
    values = work.run(side, topic, count)
    wall_s = time.perf_counter() - began_s
    return values, Used(side.cpu_s() - server_s, pages.own_cpu_s() - client_s, pages.idle_cpu_s() - idle_s, wall_s)


def _on_its_topic(work: Work, side: Side, round_: int, count: int) -> tuple[Sequence[float], Used]:
    if work.reads_bytes:
        topic = f"filled-{work.reads_bytes}"
        if work.is_from_disk:
            forget_files(side.directory)
        else:  # what other works have written meanwhile may have pushed it out of one server's memory, not the other's
            work.run(side, topic, count)
        return _once(work, side, topic, count)
    topic = f"work-{round_}-{WORKS.index(work)}"
    librdkafka.create_topic(side.endpoint, topic, work.partitions)
    try:
        if work.partitions > 1:
            librdkafka.write_to_each(side.endpoint, topic, work.partitions)
        return _once(work, side, topic, count)
    finally:
        librdkafka.delete_topic(side.endpoint, topic)


def measured(
    options: Options, level: str, workloads: Sequence[Work], tell: Callable[[str], None]
) -> tuple[dict[str, object], Rows]:
    """All workloads at a level: rates, CPU seconds per million records and shares of the cores, of each server, a value
    a round; before them how many rounds there were time for, and how memory was limited."""
    found = {work: _Found({OURS: [], KAFKA: []}, {OURS: [], KAFKA: []}) for work in workloads}
    counts = {work: options.count(int(work.record_count * WARM_COUNT_SHARE)) for work in workloads}
    with sides(options.directory / level, level) as (both, memory):
        # The most records of each size.
        filled = dict(sorted((work.reads_bytes, work.record_count) for work in workloads if work.reads_bytes))
        for (size_bytes, record_count), side in product(filled.items(), both):
            librdkafka.create_topic(side.endpoint, f"filled-{size_bytes}", 1)
            _c_produce(size_bytes)(side, f"filled-{size_bytes}", options.count(record_count))
        for round_ in range(options.rounds + 1):
            if round_ > 1 and time.monotonic() > options.until_s:
                break
            for work in workloads:
                rates = []
                for side in both if round_ % 2 else reversed(both):
                    said = f"{level}, round {round_} of {options.rounds}"
                    tell(f"{said}: {', '.join(work.names)}, {work.client}, {side.name}")
                    values, used = _on_its_topic(work, side, round_, counts[work])
                    rates.append(values[0])
                    if round_:
                        found[work].values[side.name].append(values)
                        found[work].used[side.name].append((used, counts[work]))
                if not round_:
                    most = options.count(work.record_count)
                    is_rate = work.unit == "records/s"
                    counts[work] = max(COUNT_MIN, min(most, int(min(rates) * RUN_S))) if is_rate else most
    known = {"rounds": len(found[workloads[0]].used[OURS]), "memory": memory}
    return known, [row for work in workloads for row in _rows_of(work, found[work])]


def _rows_of(work: Work, found: _Found) -> Rows:
    """A row for each name, as JSON."""
    rows: Rows = []
    for at, name in enumerate(work.names):
        row: dict[str, object] = {
            "work": name, "client": work.client, "unit": work.unit, "produces": work.produces,
            "record_count": found.used[OURS][0][1],
        }  # fmt: skip
        for side, prefix in ((OURS, "ours"), (KAFKA, "theirs")):
            row[prefix] = [values[at] for values in found.values[side]]
            row[f"{prefix}_cpu_s"] = [used.server_s / count * 1e6 for used, count in found.used[side]]
            row[f"{prefix}_cores"] = [used.server_s / used.wall_s for used, _ in found.used[side]]
            row[f"{prefix}_client_cores"] = [used.client_s / used.wall_s for used, _ in found.used[side]]
            row[f"{prefix}_idle_cores"] = [used.idle_s / used.wall_s for used, _ in found.used[side]]
        rows.append(row)
    return rows


HEADINGS = (
    "work", "client", "mq", "Kafka", "speed of mq / Kafka", "CPU s per million records: mq", "Kafka", "mq / Kafka",
    "cores: mq + client", "limit", "goal", "met",
)  # fmt: skip
ALIGNMENT = "|---|---|---:|---:|---:|---:|---:|---:|---:|---|---|---|"


def cells(level: str, row: Mapping[str, Any], core_count: int) -> tuple[str, ...]:
    """A row as HEADINGS has it."""
    speed = _speed(row)
    cpu = paired_ratio(row["ours_cpu_s"], row["theirs_cpu_s"])
    cores = limited = "-"  # of a row that was measured before they were noted
    if "ours_cores" in row:
        own_cores, client_cores = median(row["ours_cores"]), median(row["ours_client_cores"])
        cores = f"{own_cores:.2f} + {client_cores:.2f}"
        used = {"mq": own_cores, "the client": client_cores}
        limited = limit(used, median(row["ours_idle_cores"]), core_count) if row["unit"] == "records/s" else "-"
    return (
        row["work"],
        row["client"],
        number(median(row["ours"]), row["unit"]),
        number(median(row["theirs"]), row["unit"]),
        shown_times(speed),
        f"{median(row['ours_cpu_s']):.2f}",
        f"{median(row['theirs_cpu_s']):.2f}",
        shown_times(cpu),
        cores,
        limited,
        f">= {_goal(level, row):g}x",
        pages.met(speed.median >= _goal(level, row)),
    )


def _speed(row: Mapping[str, Any]) -> Spread:
    if row["unit"] == "records/s":
        return paired_ratio(row["ours"], row["theirs"])
    return paired_ratio(row["theirs"], row["ours"])


def _goal(level: str, row: Mapping[str, Any]) -> float:
    return GOALS[level] if row["produces"] else 1.0


def losses(parts: Mapping[str, Part]) -> list[str]:
    """A line for each row whose goal was missed."""
    lines = []
    for level, part in parts.items():
        for row in part.rows:
            speed, goal = _speed(row), _goal(level, row)
            if speed.median < goal:
                shown = cells(level, row, _cores(part))
                lines.append(
                    f"- {level}, {shown[0]}, {shown[1]}: {shown[4]} of Kafka's speed, the goal is {goal:g}x; "
                    f"{shown[7]} of its CPU time." + (f" Limit: {shown[9]}." if shown[9] != "-" else "")
                )
    return lines


def _cores(part: Part) -> int:
    return int(str(part.conditions.get("cores") or os.cpu_count() or 1))


def as_markdown(parts: Mapping[str, Part]) -> str:
    """The page."""
    lines = [
        "# Kafka's clients: mq beside Apache Kafka",
        "",
        "Made by `python -m loadtest.bench.kafka`; do not edit. The same client with the same settings does the same",
        "work with one server after the other, round by round. *written*: `--acks written` beside Kafka's default,",
        "which answers before anything is on disk. *durable*: our default beside Kafka with",
        "`log.flush.interval.messages=1`, a sync for every batch. Medians of the rounds, and of their ratios with the",
        "lowest and the highest round. Client and server share the cores, so a rate is often the client's; the CPU",
        "time of the server's process is not. *cores*: how many of them mq and the client used; *limit*: what follows",
        f"from that. A run has as many records as the slower server takes {RUN_S:g} s for, the same for both. Kafka",
        "runs with the heap, the collector and the flags of its own start script, and after a round that does not",
        "count; a topic of 1,000 partitions has a record in each before the clock runs. *consume* reads what was read",
        "once before the clock runs, so the page cache has it for both; *from the disk* what it has for neither. At",
        "the level *written* mq bounds what a power cut may take: it waits for the disk while 64 MiB, or what is half",
        "a second old, is not synced",
        "([why](../decisions/0026-what-is-only-written-does-not-wait-for-the-disk.md)). Kafka has no such bound.",
        "*memory*: each server is in a group of processes with this limit, as in a container: on a virtual machine",
        "the first touch of a page of memory costs many times the copy into it, and without a limit the server that",
        "runs at that moment pays.",
        "",
    ]
    lines += pages.condition_lines(parts)
    for level, part in parts.items():
        lines += ["", f"## {level.capitalize()}", "", f"| {' | '.join(HEADINGS)} |", ALIGNMENT]
        lines += [f"| {' | '.join(cells(level, row, _cores(part)))} |" for row in part.rows]
    lines += ["", "## Goals that were missed", "", *(losses(parts) or ["None."])]
    return "\n".join(lines) + "\n"


def main() -> None:
    """Measure, print, and write the results; exit code 0 also when a goal was missed: it is a report."""
    end_when_told()
    parser = argparse.ArgumentParser(
        prog="python -m loadtest.bench.kafka", description="Kafka's clients, both servers."
    )
    parser.add_argument("--only", default="", metavar="TEXT", help="workloads whose name or client has this")
    parser.add_argument("--level", choices=[*LEVELS], help="one level instead of both")
    parser.add_argument("--dir", type=Path, default=Path("/var/tmp"), help="where servers keep their files; a disk")
    parser.add_argument("--scale", type=float, default=1.0, help="more or fewer records")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--minutes", type=float, default=60.0, help="after which no round begins, of all levels")
    parser.add_argument("--out", type=Path, default=RESULTS, help="where the results are written")
    asked = parser.parse_args()
    workloads = [work for work in WORKS if asked.only in f"{', '.join(work.names)}, {work.client}"]
    if not workloads:
        sys.exit(f"nothing is named like {asked.only!r}")
    console = Console(highlight=False, width=200)
    parts: dict[str, Part] = {}
    with tempfile.TemporaryDirectory(prefix="mq-bench-", dir=asked.dir) as directory:
        try:
            librdkafka.rdkafka_performance(TOOLS)
            levels = [asked.level] if asked.level else [*LEVELS]
            began_s = time.monotonic()
            for at, level in enumerate(levels, 1):
                until_s = began_s + asked.minutes * 60 * at / len(levels)
                options = Options(Path(directory), asked.rounds, asked.scale, until_s)
                conditions = pages.conditions(
                    options.directory, rounds=asked.rounds, scale=asked.scale, kafka=KAFKA_VERSION
                )
                others = pages.OtherPrograms()
                with console.status(level) as status:
                    known, rows = measured(options, level, workloads, status.update)
                conditions.update(known)
                conditions["other_programs"] = others.said()
                parts = pages.write(asked.out, "kafka", [*LEVELS], {level: Part(conditions, rows)}, as_markdown)
        except Unavailable as error:
            sys.exit(f"not measured: {error}")
    console.print(as_markdown(parts), markup=False, soft_wrap=True)


if __name__ == "__main__":
    main()
