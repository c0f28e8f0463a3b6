"""`make bench-spark`: the Spark connector beside its goals, its limit and its peers; writes docs/benchmarks/spark.*.

The limit is the same rows made in memory by a Python data source (loadtest/bench/spark_sources.py): reading a topic
can be no faster than Spark takes rows from Python. The peers are Parquet, and Spark's own Kafka source on a real
broker, where Maven has the connector for this version of Spark. Ours and the others take turns, a round each.
"""

from __future__ import annotations

import argparse
import itertools
import statistics
import tempfile
import time
import urllib.request
import uuid
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from datetime import UTC, datetime
from importlib import import_module
from pathlib import Path
from typing import Any, NamedTuple

import orjson
import pyarrow as pa
import pyspark
import pyspark_mq
from pyspark import cloudpickle
from pyspark.sql import DataFrame, SparkSession
from pyspark_mq.client import Client, Endpoint
from pyspark_mq.encode import encode
from rich.console import Console
from rich.table import Table

from loadtest.bench import machine, spark_sources
from loadtest.bench.spark_sources import CHUNK_ROWS, MemorySource, NullSink, TickSource, chunk
from loadtest.peers import kafka as peers_kafka
from loadtest.peers.fetch import jars
from loadtest.peers.peer import Durability, Unavailable
from loadtest.process import server

ROOT = Path(__file__).parents[2]
RESULTS = ROOT / "docs" / "benchmarks"
TOOLS = ROOT / "artifacts" / "peers"
SEVEN = "key binary, value binary, topic string, partition int, offset long, timestamp timestamp, timestampType int"
KAFKA_CONNECTOR = "4.2.0"
KAFKA_ARTIFACTS = (
    f"org.apache.spark:spark-sql-kafka-0-10_2.13:{KAFKA_CONNECTOR}",
    "org.apache.spark:spark-token-provider-kafka-0-10_2.13:4.0.0",
    "org.apache.kafka:kafka-clients:3.9.0",
    "org.apache.commons:commons-pool2:2.12.0",
)
"""The newest that Maven had when this was written: not that of Spark 4.3, and the part for Kerberos only of 4.0. They
work together for what is done here."""

PARTITIONS = 4
BATCH_ROWS = 5_000
MICRO_BATCHES = 30
JIT_ROUNDS = 4
"""Rounds of the first work that do not count: in these the JVM's compilers take up to a third of the two cores, from
whichever work happens to run."""


class Row(NamedTuple):
    """One line of the result. `better` says which way; goals are of the issue that asked for the connector."""

    work: str
    ours: float
    others: dict[str, float]
    unit: str
    goal: str = ""
    is_met: bool | None = None


class Bench:
    """One session, one server, the topics; each method measures one kind of work."""

    def __init__(self, spark: SparkSession, url: str, root: Path, *, count: int, rounds: int) -> None:
        self.spark, self.url, self.root, self.count, self.rounds = spark, url, root, count, rounds
        self.kafka: str | None = None
        self._topics = itertools.count(1)
        for source in (MemorySource, NullSink, TickSource):
            spark.dataSource.register(source)

    def topic(self, value_bytes: int, count: int) -> str:
        """A topic of so many records, in batches of BATCH_ROWS."""
        name = self.topic_name()
        create_topic(self.url, name)
        client = Client(Endpoint(urls=(self.url,)))
        for number, start in enumerate(range(0, count, CHUNK_ROWS)):
            rows = chunk(["key", "value"], value_bytes, start)
            for first in range(0, min(CHUNK_ROWS, count - start), BATCH_ROWS):
                batch = encode(rows.slice(first, BATCH_ROWS)).sealed(1_700_000_000_000)
                client.send_batch(name, number % PARTITIONS, batch, {})
        return name

    def topic_name(self) -> str:
        """A new one. It is in each row that is read, so all are as long as that of MemorySource."""
        name = f"t-{next(self._topics):04}"
        assert len(name) == len(spark_sources.TOPIC)
        return name

    def mq(self, topic: str, columns: str = "") -> DataFrame:
        """The topic as a table."""
        reader = self.spark.read.format("mq").options(url=self.url, subscribe=topic, minPartitions=PARTITIONS)
        return (reader.option("columns", columns) if columns else reader).load()

    def memory(self, schema: str, value_bytes: int, count: int) -> DataFrame:
        """As many rows out of nothing."""
        options = {"count": count, "tasks": PARTITIONS, "valueBytes": value_bytes}
        return self.spark.read.format("bench_memory").schema(schema).options(**options).load()

    def alternately(self, uncounted: int = 1, /, **works: Callable[[], float]) -> dict[str, float]:
        """The median of each, after so many rounds that do not count."""
        runs: dict[str, list[float]] = {name: [] for name in works}
        for _ in range(uncounted + self.rounds):
            for name, work in works.items():
                runs[name].append(work())
        return {name: statistics.median(found[uncounted:]) for name, found in runs.items()}

    def per_second(self, frame: Callable[[], DataFrame], amount: float) -> Callable[[], float]:
        """How much of a table passes in a second when nothing is done with it."""

        def run() -> float:
            table = frame()
            started_s = time.perf_counter()
            table.write.format("noop").mode("overwrite").save()
            return amount / (time.perf_counter() - started_s)

        return run

    def reads(self) -> Iterator[Row]:
        """Batch reads of 100-byte and of 1 KiB values."""
        count = self.count
        topic = self.topic(100, count)
        parquet = str(self.root / "parquet")
        self.mq(topic).write.mode("overwrite").parquet(parquet)
        works = {
            "mq": self.per_second(lambda: self.mq(topic), count),
            "memory": self.per_second(lambda: self.memory(SEVEN, 100, count), count),
            "parquet": self.per_second(lambda: self.spark.read.parquet(parquet), count),
        }
        if self.kafka is not None:
            copied = self.to_kafka(self.mq(topic, "key,value"))
            works["kafka"] = self.per_second(lambda: self.from_kafka(copied), count)
        found = self.alternately(JIT_ROUNDS, **works)
        share = found["mq"] / found["memory"]
        is_met = found["mq"] >= 1.3e6 and share >= 0.65
        yield _row("read, 7 columns, 100 B", found, "records/s", ">= 1,300,000 and 65 % of memory", is_met)
        works = {
            "mq": self.per_second(lambda: self.mq(topic, "value"), count),
            "memory": self.per_second(lambda: self.memory("value binary", 100, count), count),
            "parquet": self.per_second(lambda: self.spark.read.parquet(parquet).select("value"), count),
        }
        if self.kafka is not None:
            works["kafka"] = self.per_second(lambda: self.from_kafka(copied).select("value"), count)
        found = self.alternately(**works)
        yield _row("read, columns=value, 100 B", found, "records/s", ">= 2,000,000", found["mq"] >= 2e6)
        kilo = count // 5
        large = self.topic(1024, kilo)
        megabytes = kilo * 1024 / 1e6
        found = self.alternately(
            mq=self.per_second(lambda: self.mq(large, "value"), megabytes),
            memory=self.per_second(lambda: self.memory("value binary", 1024, kilo), megabytes),
        )
        yield _row("read, columns=value, 1 KiB", found, "MB/s", ">= 550", found["mq"] >= 550)

    def streams(self) -> Iterator[Row]:
        """Streaming at a million a trigger, and the cost of a micro-batch of one record."""
        count = self.count
        topic = self.topic(100, count)
        options = {"url": self.url, "subscribe": topic, "startingOffsets": "earliest"}

        def ours() -> float:
            stream = self.spark.readStream.format("mq").options(**options, maxOffsetsPerTrigger=1_000_000).load()
            return count / sum(self.batch_times_s(stream))

        works: dict[str, Callable[[], float]] = {"mq": ours}
        if self.kafka is not None:
            copied = self.to_kafka(self.mq(topic, "key,value"))
            kafka = {"kafka.bootstrap.servers": self.kafka, "subscribe": copied, "startingOffsets": "earliest"}

            def theirs() -> float:
                stream = self.spark.readStream.format("kafka").options(**kafka, maxOffsetsPerTrigger=1_000_000).load()
                return count / sum(self.batch_times_s(stream))

            works["kafka"] = theirs
        found = self.alternately(**works)
        yield _row("stream, 7 columns, 1,000,000 a trigger", found, "records/s", ">= 900,000", found["mq"] >= 9e5)

        def micro(stream: Callable[[], DataFrame]) -> Callable[[], float]:
            return lambda: 1000 * statistics.median(self.batch_times_s(stream())[3:])

        small = {"columns": "value", "assign": f'{{"{topic}":[0]}}', "maxOffsetsPerTrigger": "1", "url": self.url}
        near_end = count // PARTITIONS - MICRO_BATCHES
        small["startingOffsets"] = f'{{"{topic}":{{"0":{near_end}}}}}'
        found = self.alternately(
            mq=micro(lambda: self.spark.readStream.format("mq").options(**small).load()),
            **{
                "cheapest Python source": micro(
                    lambda: self.spark.readStream.format("bench_ticks").option("count", MICRO_BATCHES).load()
                )
            },
        )
        above = found["mq"] - found["cheapest Python source"]
        yield _row("a micro-batch of one record (less is better)", found, "ms", "<= 25 ms above", above <= 25)

    def batch_times_s(self, stream: DataFrame) -> list[float]:
        """Run a stream to its end; how long each of its batches with rows took."""
        checkpoint = self.root / uuid.uuid4().hex
        writer = stream.writeStream.format("noop").option("checkpointLocation", str(checkpoint))
        query = writer.trigger(availableNow=True).start()
        query.awaitTermination()
        return [one.durationMs["triggerExecution"] / 1000 for one in query.recentProgress if one.numInputRows]

    def writes(self) -> Iterator[Row]:
        """Key and value of 110 bytes together, out of memory."""
        count = self.count
        rows = self.memory("key binary, value binary", 100, count).cache()
        rows.count()

        def timed(save: Callable[[], None]) -> Callable[[], float]:
            def run() -> float:
                started_s = time.perf_counter()
                save()
                return count / (time.perf_counter() - started_s)

            return run

        def ours() -> None:
            name = self.topic_name()
            create_topic(self.url, name)
            rows.write.format("mq").options(url=self.url, topic=name).mode("append").save()

        works = {
            "mq": timed(ours),
            "thrown away in Python": timed(lambda: rows.write.format("bench_null").mode("append").save()),
            "parquet": timed(lambda: rows.write.mode("overwrite").parquet(str(self.root / "written"))),
        }
        if self.kafka is not None:

            def theirs() -> None:
                self.to_kafka(rows)

            works["kafka"] = timed(theirs)
        found = self.alternately(**works)
        yield _row("write, key and value, durable", found, "records/s", ">= 400,000", found["mq"] >= 4e5)

    def to_kafka(self, rows: DataFrame) -> str:
        """Written into a new topic of the broker."""
        assert self.kafka is not None
        name = self.topic_name()
        create_kafka_topic(self.kafka, name)
        rows.write.format("kafka").options(**{"kafka.bootstrap.servers": self.kafka, "topic": name}).save()
        return name

    def from_kafka(self, topic: str) -> DataFrame:
        """A topic of the broker as a table."""
        options = {"kafka.bootstrap.servers": self.kafka, "subscribe": topic, "minPartitions": PARTITIONS}
        return self.spark.read.format("kafka").options(**options).load()


def _row(work: str, found: dict[str, float], unit: str, goal: str, is_met: bool) -> Row:
    return Row(work, found["mq"], {name: value for name, value in found.items() if name != "mq"}, unit, goal, is_met)


def create_topic(url: str, name: str) -> None:
    """PARTITIONS partitions."""
    body = orjson.dumps({"partitions": PARTITIONS})
    request = urllib.request.Request(f"{url}/mq/v1/topics/{name}", body, method="PUT")
    with urllib.request.urlopen(request) as answer:
        answer.read()


def create_kafka_topic(broker: str, name: str) -> None:
    """PARTITIONS partitions."""
    admin: Any = import_module("confluent_kafka.admin")  # nobody needs it but who has the broker
    client = admin.AdminClient({"bootstrap.servers": broker})  # lives until all is done
    made = client.create_topics([admin.NewTopic(name, PARTITIONS, 1)])
    made[name].result(peers_kafka.CREATE_TIMEOUT_S)


HEADINGS = ("work", "ours", "beside", "goal", "met")


def cells(row: Row) -> tuple[str, str, str, str, str]:
    """A row for people."""
    beside = ", ".join(
        f"{name} {_short(value, row.unit)} ({row.ours / value:.0%})" for name, value in row.others.items()
    )
    return row.work, _short(row.ours, row.unit), beside, row.goal, "yes" if row.is_met else "**no**"


def _short(value: float, unit: str) -> str:
    if unit == "records/s":
        return f"{value / 1e6:.2f} M/s"
    return f"{value:.0f} {unit}"


def as_markdown(conditions: dict[str, object], rows: list[Row]) -> str:
    """One page: the table, what the words mean, the conditions."""
    lines = [
        "# The Spark connector, beside its goals, its limit and its peers",
        "",
        "Written by `make bench-spark`; the numbers for programs are in `spark.json`. Medians of rounds in which all",
        "take turns, once the JVM has compiled what they run; in brackets, ours as a share. One Spark session and one",
        "server on the same cores.",
        "",
        f"| {' | '.join(HEADINGS)} |",
        "|---|---:|---|---|---|",
        *(f"| {' | '.join(cells(row))} |" for row in rows),
        "",
        "- *memory*: the same rows made in memory by a Python data source and handed over as Arrow: what Spark takes",
        "  from Python at most. A task makes one batch and hands it over again and again. Ours costs more by what",
        "  fetching and decoding cost, on the same cores.",
        "- *parquet*: Spark's own reader and writer, in Java, without a hand-over from Python. It is the file format",
        "  that a job would use instead, not a queue; its writes are not synced.",
        "- *kafka*: Spark's own source and sink for Kafka, in Java, with a real broker on this machine that holds the",
        "  same records in as many partitions, and syncs each append as mq does.",
        "- *write*: each batch is answered after an fdatasync. *thrown away in Python*: the hand-over alone.",
        "- *stream*: records by the sum of the times of the batches, a checkpoint of each included.",
        "- *a micro-batch*: the time of one batch, median, beside a source that asks nobody anything.",
        "",
        "## Conditions",
        "",
        *(f"- {name.replace('_', ' ')}: {value}" for name, value in conditions.items()),
        "",
    ]
    return "\n".join(lines)


@contextmanager
def kafka(root: Path, tools: Path) -> Iterator[str]:
    """A real broker for the peers of the connector; where it is."""
    peer = peers_kafka.PEERS[0]
    peer.prepare(tools)
    with peer.serve(tools, root, Durability.SYNCED) as broker:
        yield broker.endpoint


def connector_jars(tools: Path) -> tuple[str, str]:
    """Spark's Kafka connector as a class path, or why there is none."""
    try:
        found = jars(tools, f"spark-kafka-{KAFKA_CONNECTOR}", KAFKA_ARTIFACTS, alone=True)
    except Unavailable as error:
        reason = str(error).partition(" cannot be had: ")[0]  # what follows names registries
        return "", f"not measured: Spark's Kafka connector cannot be had here ({reason})"
    broker = f"{peers_kafka.PEERS[0].about}; synced at each append"
    note = f"Spark's Kafka connector {KAFKA_CONNECTOR} (Maven lacks that of 4.3); {broker}"
    return ",".join(str(path) for path in sorted(found.glob("*.jar"))), note


def session(extra_jars: str) -> SparkSession:
    """As docs/spark.md recommends, on two cores."""
    pyspark_mq.prepare()
    cloudpickle.register_pickle_by_value(spark_sources)  # type: ignore[no-untyped-call]
    builder = SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false")
    builder = builder.config("spark.driver.memory", "4g").config("spark.sql.shuffle.partitions", "2")
    builder = builder.config("spark.python.unix.domain.socket.enabled", "true")
    builder = builder.config("spark.sql.session.timeZone", "UTC")
    if extra_jars:
        builder = builder.config("spark.jars", extra_jars)
    spark: SparkSession = builder.getOrCreate()
    spark.sparkContext.setLogLevel("ERROR")
    return spark


def main() -> None:
    """Measure, print, and write the results; exit code 0 also when a goal was missed: it is a report."""
    parser = argparse.ArgumentParser(prog="python -m loadtest.bench.spark", description="The Spark connector's speed.")
    parser.add_argument("--count", type=int, default=4_000_000, help="records of 100 bytes")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument(
        "--only",
        default="",
        metavar="NAME",
        help="reads, streams or writes: measures these again, among the results that are there",
    )
    parser.add_argument("--no-kafka", action="store_true", help="without Spark's Kafka source")
    parser.add_argument("--tools", type=Path, default=TOOLS, help="where Kafka's jars are kept")
    parser.add_argument("--dir", type=Path, default=Path("/var/tmp"), help="must be a disk, not memory")
    parser.add_argument("--out", type=Path, default=RESULTS, help="where the results are written")
    options = parser.parse_args()
    console = Console(highlight=False, width=160)
    extra_jars, kafka_note = "", "not asked for"
    tools = options.tools.resolve()
    if not options.no_kafka:
        extra_jars, kafka_note = connector_jars(tools)
    console.print(kafka_note)
    started = datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC")
    conditions: dict[str, object] = {
        "started": started,
        **machine.facts(options.dir),
        "pyspark": pyspark.__version__,
        "pyarrow": pa.__version__,
        "records": options.count,
        "rounds": options.rounds,
        "kafka": kafka_note,
    }
    rows: list[Row] = []
    with ExitStack() as stack:
        root = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="mq-spark-", dir=options.dir)))
        url = stack.enter_context(server(root / "mq"))
        bench = Bench(session(extra_jars), url, root, count=options.count, rounds=options.rounds)
        if extra_jars:
            (root / "kafka").mkdir()
            bench.kafka = stack.enter_context(kafka(root / "kafka", tools))
        for name, part in {"reads": bench.reads, "streams": bench.streams, "writes": bench.writes}.items():
            if options.only in name:
                for row in part():
                    console.print(*cells(row), sep=" | ")
                    rows.append(row)
        bench.spark.stop()
    table = Table(*HEADINGS, box=None, pad_edge=False)
    for row in rows:
        table.add_row(*cells(row))
    console.print(table)
    write_results(options.out, conditions, rows, again=options.only)


def write_results(out: Path, conditions: dict[str, object], rows: list[Row], *, again: str) -> None:
    """spark.json and spark.md; with `again`, what was measured then, these rows in their old places."""
    path = out / "spark.json"
    if again and path.exists():
        before = orjson.loads(path.read_bytes())
        new = {row.work: row for row in rows}
        rows = [new.get(row["work"]) or Row(**row) for row in before["rows"]]
        conditions = {**before["conditions"], f"{again}_measured_again": conditions["started"]}
    out.mkdir(parents=True, exist_ok=True)
    content = {"conditions": conditions, "rows": [row._asdict() for row in rows]}
    path.write_bytes(orjson.dumps(content, option=orjson.OPT_INDENT_2 | orjson.OPT_APPEND_NEWLINE))
    (out / "spark.md").write_text(as_markdown(conditions, rows))


if __name__ == "__main__":
    main()
