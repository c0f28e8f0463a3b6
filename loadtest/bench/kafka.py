"""`python -m loadtest.bench.kafka`: Kafka's own clients against mq and against Apache Kafka; `kafka.json`, `kafka.md`.

The same client with the same settings does the same work with one server after the other, round by round, after a
round that does not count. Both servers run meanwhile; the one that is not asked is idle. Two levels:

    written   an answer means that the operating system has it: `--acks written`, and Kafka's default
    durable   a disk sync covers it before the answer: our default, and Kafka with a flush after every batch

Beside the rate stands the CPU time of the server's process: on a machine where other programs run, it says more.
"""

from __future__ import annotations

import argparse
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from statistics import median
from threading import Thread
from typing import Any, NamedTuple

import psutil
from rich.console import Console

from loadtest.bench import parts as pages
from loadtest.bench.librdkafka import rate_of, rdkafka_performance
from loadtest.bench.parts import Part, number, shown_times
from loadtest.peers.fetch import TOOLS, program
from loadtest.peers.kafka import TOOL_JAVA, Kafka
from loadtest.peers.kafka import VERSION as KAFKA_VERSION
from loadtest.peers.peer import Durability, Level, Unavailable, WorkFailed
from loadtest.peers.servers import free_port
from loadtest.process import end_when_told, running_server
from loadtest.stats import paired_ratio, percentile

RESULTS = Path(__file__).parents[2] / "docs" / "benchmarks"
LEVELS = {"written": Durability.WRITTEN, "durable": Durability.SYNCED}
OURS, KAFKA = "mq", "Apache Kafka"
TOOL_TIMEOUT_S = 300
LATENCY_RATE = 1_000
LATENCY_RUN_S = 5.0
MANY_PARTITIONS = 1_000
TOPIC_TIMEOUT_S = 120
GOALS = {"written": 1.0, "durable": 1.5}
"""What ours shall reach of Kafka's rate in workloads that produce; 1.0 in all others."""


class Side(NamedTuple):
    """One server under one name."""

    name: str
    endpoint: str
    pid: int

    def cpu_s(self) -> float:
        """CPU time of the server's process so far."""
        used = psutil.Process(self.pid).cpu_times()
        return float(used.user + used.system)


class Measured(NamedTuple):
    """One run: a rate, or milliseconds; and how many records that were."""

    value: float
    record_count: int


@dataclass(frozen=True, slots=True)
class Options:
    """How much of it."""

    directory: Path
    rounds: int
    scale: float

    def count(self, records: int) -> int:
        """So many records, at this scale."""
        return max(int(records * self.scale), 1_000)


class Work(NamedTuple):
    """One row. `run` does it once on a topic of its own that has `partitions`; `reads` what was filled before."""

    name: str
    client: str
    unit: str
    partitions: int
    run: Callable[[Side, str, Options], Measured]
    produces: bool = False
    reads_bytes: int = 0
    """The size of the records that it reads; 0: it reads none that were there before."""

    reads_count: int = 0


def _tool(command: Sequence[str]) -> str:
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=TOOL_TIMEOUT_S)
    if done.returncode:
        raise WorkFailed(f"{Path(command[0]).name}: {(done.stdout + done.stderr)[-500:]}")
    return done.stdout + done.stderr


def _c_produce(size_bytes: int, records: int) -> Callable[[Side, str, Options], Measured]:
    def run(side: Side, topic: str, options: Options) -> Measured:
        count = options.count(records)
        command = [rdkafka_performance(TOOLS), "-P", "-t", topic, "-s", str(size_bytes), "-c", str(count)]
        command += ["-b", side.endpoint, "-a", "-1", "-X", "linger.ms=5", "-X", "queue.buffering.max.messages=500000"]
        return Measured(rate_of(_tool(command), count), count)

    return run


def _c_consume(records: int) -> Callable[[Side, str, Options], Measured]:
    def run(side: Side, topic: str, options: Options) -> Measured:
        count = options.count(records)
        command = [rdkafka_performance(TOOLS), "-C", "-t", topic, "-p", "0", "-o", "beginning", "-c", str(count)]
        command += ["-b", side.endpoint, "-X", "queued.min.messages=1000000"]
        return Measured(rate_of(_tool(command), count), count)

    return run


def _java(tool: str, *arguments: str) -> str:
    java = [program("java", "default-jre-headless"), *TOOL_JAVA, "-cp", f"{TOOLS / f'kafka-{KAFKA_VERSION}'}/*"]
    return _tool([*java, f"org.apache.kafka.tools.{tool}", *arguments])


def _java_produce(size_bytes: int, records: int) -> Callable[[Side, str, Options], Measured]:
    def run(side: Side, topic: str, options: Options) -> Measured:
        count = options.count(records)
        said = _java(
            "ProducerPerformance", "--topic", topic, "--num-records", str(count), "--record-size", str(size_bytes),
            "--throughput", "-1", "--producer-props", f"bootstrap.servers={side.endpoint}", "acks=all",
        )  # fmt: skip
        rates = re.findall(r"([\d.]+) records/sec", said)
        if f"{count} records sent" not in said or not rates:
            raise WorkFailed(f"kafka-producer-perf-test: {said[-500:]}")
        return Measured(float(rates[-1]), count)

    return run


def _java_consume(records: int) -> Callable[[Side, str, Options], Measured]:
    def run(side: Side, topic: str, options: Options) -> Measured:
        count = options.count(records)
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
        return Measured(read_count / fetching_ms * 1_000, read_count)

    return run


def _python_produce(size_bytes: int, records: int) -> Callable[[Side, str, Options], Measured]:
    def run(side: Side, topic: str, options: Options) -> Measured:
        count, value = options.count(records), bytes(size_bytes)
        producer: Any = import_module("confluent_kafka").Producer(
            {"bootstrap.servers": side.endpoint, "acks": "all", "queue.buffering.max.messages": 1_000_000}
        )
        began_s = time.perf_counter()
        for number_ in range(count):
            producer.produce(topic, value)
            if number_ % 10_000 == 9_999:
                producer.poll(0)
        if producer.flush(TOOL_TIMEOUT_S):
            raise WorkFailed("confluent-kafka did not deliver all")
        return Measured(count / (time.perf_counter() - began_s), count)

    return run


def _latency(percent: float) -> Callable[[Side, str, Options], Measured]:
    """From `produce` to the consumer's `poll`, of single records at a steady rate."""

    def run(side: Side, topic: str, options: Options) -> Measured:
        kafka: Any = import_module("confluent_kafka")
        count = int(LATENCY_RATE * LATENCY_RUN_S * min(1.0, options.scale))
        consumer = kafka.Consumer({"bootstrap.servers": side.endpoint, "group.id": "latency", "fetch.wait.max.ms": 500})
        consumer.assign([kafka.TopicPartition(topic, 0, 0)])
        producer = kafka.Producer({"bootstrap.servers": side.endpoint, "acks": "all", "linger.ms": 0})
        producer.produce(topic, b"0")
        producer.flush(TOOL_TIMEOUT_S)
        while consumer.poll(1.0) is None:
            pass
        took_ms: list[float] = []

        def send() -> None:
            began_s = time.perf_counter()
            for number_ in range(count):
                due_s = began_s + number_ / LATENCY_RATE
                if (left_s := due_s - time.perf_counter()) > 0:
                    time.sleep(left_s)
                producer.produce(topic, str(time.perf_counter_ns()).encode())
                producer.poll(0)
            producer.flush(TOOL_TIMEOUT_S)

        sending = Thread(target=send)
        sending.start()
        until_s = time.monotonic() + TOOL_TIMEOUT_S
        while len(took_ms) < count and time.monotonic() < until_s:
            for message in consumer.consume(1_000, 0.001) or ():
                took_ms.append((time.perf_counter_ns() - int(message.value())) / 1e6)
        sending.join()
        consumer.close()
        if len(took_ms) < count:
            raise WorkFailed(f"{len(took_ms)} of {count} records came")
        return Measured(percentile(took_ms, percent), count)

    return run


WORKS = (
    Work("produce 100 B", "rdkafka_performance", "records/s", 1, _c_produce(100, 2_000_000), produces=True),
    Work("produce 1 KB", "rdkafka_performance", "records/s", 1, _c_produce(1_000, 500_000), produces=True),
    Work("produce 100 B to 1,000 partitions", "rdkafka_performance", "records/s", MANY_PARTITIONS,
         _c_produce(100, 1_000_000), produces=True),
    Work("consume 100 B", "rdkafka_performance", "records/s", 1, _c_consume(4_000_000), False, 100, 4_000_000),
    Work("consume 1 KB", "rdkafka_performance", "records/s", 1, _c_consume(1_000_000), False, 1_000, 1_000_000),
    Work("produce 100 B", "kafka-producer-perf-test", "records/s", 1, _java_produce(100, 1_000_000), produces=True),
    Work("produce 1 KB", "kafka-producer-perf-test", "records/s", 1, _java_produce(1_000, 200_000), produces=True),
    Work("consume 100 B", "kafka-consumer-perf-test", "records/s", 1, _java_consume(4_000_000), False, 100, 4_000_000),
    Work("produce 100 B", "confluent-kafka (Python)", "records/s", 1, _python_produce(100, 500_000), produces=True),
    Work("end to end at 1,000/s, p50", "confluent-kafka (Python)", "ms", 1, _latency(50)),
    Work("end to end at 1,000/s, p99", "confluent-kafka (Python)", "ms", 1, _latency(99)),
)  # fmt: skip


def _create(side: Side, topic: str, partitions: int) -> None:
    admin: Any = import_module("confluent_kafka.admin")
    client = admin.AdminClient({"bootstrap.servers": side.endpoint, "log_level": 0})
    client.create_topics([admin.NewTopic(topic, partitions, 1)])[topic].result(TOPIC_TIMEOUT_S)


def _delete(side: Side, topic: str) -> None:
    admin: Any = import_module("confluent_kafka.admin")
    client = admin.AdminClient({"bootstrap.servers": side.endpoint, "log_level": 0})
    client.delete_topics([topic])[topic].result(TOPIC_TIMEOUT_S)


@contextmanager
def sides(directory: Path, level: str) -> Iterator[list[Side]]:
    """Both servers at a level. Raises Unavailable."""
    kafka, port = Kafka(), free_port()
    kafka.prepare(TOOLS)
    (directory / "kafka").mkdir(parents=True)
    acks = "written" if level == "written" else "flushed"
    with (
        running_server(directory / "mq", "--acks", acks, "--kafka-port", str(port)) as ours,
        kafka.serve(TOOLS, directory / "kafka", Level(level, LEVELS[level], "")) as theirs,
    ):
        yield [Side(OURS, f"127.0.0.1:{port}", ours.pid), Side(KAFKA, theirs.endpoint, theirs.pids[0])]


Rows = list[dict[str, object]]


def measured(options: Options, level: str, workloads: Sequence[Work], tell: Callable[[str], None]) -> Rows:
    """All workloads at a level: rates and CPU seconds per million records of each server, a value a round."""
    found: dict[tuple[str, str, str], list[tuple[float, float]]] = {}
    with sides(options.directory / level, level) as both:
        for size_bytes, count in {(work.reads_bytes, work.reads_count) for work in workloads if work.reads_bytes}:
            for side in both:
                _create(side, f"filled-{size_bytes}", 1)
                _c_produce(size_bytes, count)(side, f"filled-{size_bytes}", options)
        for round_ in range(options.rounds + 1):
            for work in workloads:
                for side in both if round_ % 2 else reversed(both):
                    tell(f"{level}, round {round_} of {options.rounds}: {work.name}, {work.client}, {side.name}")
                    topic = f"filled-{work.reads_bytes}"
                    if not work.reads_bytes:
                        topic = f"work-{round_}-{WORKS.index(work)}"
                        _create(side, topic, work.partitions)
                    before_s = side.cpu_s()
                    value, record_count = work.run(side, topic, options)
                    cpu_s = (side.cpu_s() - before_s) / record_count * 1e6
                    if not work.reads_bytes:
                        _delete(side, topic)
                    if round_:
                        found.setdefault((work.name, work.client, side.name), []).append((value, cpu_s))
    rows: Rows = []
    for work in workloads:
        ours, theirs = found[work.name, work.client, OURS], found[work.name, work.client, KAFKA]
        rows.append(
            {
                "work": work.name, "client": work.client, "unit": work.unit, "produces": work.produces,
                "ours": [value for value, _ in ours], "theirs": [value for value, _ in theirs],
                "ours_cpu_s": [cpu_s for _, cpu_s in ours], "theirs_cpu_s": [cpu_s for _, cpu_s in theirs],
            }
        )  # fmt: skip
    return rows


HEADINGS = (
    "work", "client", "mq", "Kafka", "speed of mq / Kafka", "CPU s per million records: mq", "Kafka", "mq / Kafka",
    "goal", "met",
)  # fmt: skip
ALIGNMENT = "|---|---|---:|---:|---:|---:|---:|---:|---:|---|"


def cells(level: str, row: Mapping[str, Any]) -> tuple[str, ...]:
    """A row as HEADINGS has it."""
    is_rate = row["unit"] == "records/s"
    speed = paired_ratio(row["ours"], row["theirs"]) if is_rate else paired_ratio(row["theirs"], row["ours"])
    cpu = paired_ratio(row["ours_cpu_s"], row["theirs_cpu_s"])
    goal = GOALS[level] if row["produces"] else 1.0
    return (
        row["work"],
        row["client"],
        number(median(row["ours"]), row["unit"]),
        number(median(row["theirs"]), row["unit"]),
        shown_times(speed),
        f"{median(row['ours_cpu_s']):.2f}",
        f"{median(row['theirs_cpu_s']):.2f}",
        shown_times(cpu),
        f">= {goal:g}x",
        pages.met(speed.median >= goal),
    )


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
        "time of the server's process is not.",
        "",
    ]
    lines += pages.condition_lines(parts)
    for level, part in parts.items():
        lines += ["", f"## {level.capitalize()}", "", f"| {' | '.join(HEADINGS)} |", ALIGNMENT]
        lines += [f"| {' | '.join(cells(level, row))} |" for row in part.rows]
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
    parser.add_argument("--out", type=Path, default=RESULTS, help="where the results are written")
    asked = parser.parse_args()
    workloads = [work for work in WORKS if asked.only in f"{work.name}, {work.client}"]
    if not workloads:
        sys.exit(f"nothing is named like {asked.only!r}")
    console = Console(highlight=False, width=200)
    parts: dict[str, Part] = {}
    with tempfile.TemporaryDirectory(prefix="mq-bench-", dir=asked.dir) as directory:
        try:
            rdkafka_performance(TOOLS)
            for level in [asked.level] if asked.level else LEVELS:
                options = Options(Path(directory), asked.rounds, asked.scale)
                conditions = pages.conditions(
                    options.directory, rounds=asked.rounds, scale=asked.scale, kafka=KAFKA_VERSION
                )
                others = pages.OtherPrograms()
                with console.status(level) as status:
                    rows = measured(options, level, workloads, status.update)
                conditions["other_programs"] = others.said()
                parts = pages.write(asked.out, "kafka", [*LEVELS], {level: Part(conditions, rows)}, as_markdown)
        except Unavailable as error:
            sys.exit(f"not measured: {error}")
    console.print(as_markdown(parts), markup=False, soft_wrap=True)


if __name__ == "__main__":
    main()
