"""`make bench-spark`: the Spark connector beside its goals, its limit and its peers; writes docs/benchmarks/spark.*.

The limit is the same rows made in memory by a Python data source (loadtest/bench/spark_sources.py): reading a topic
can be no faster than Spark takes rows from Python. The peers are Parquet, and Spark's own Kafka source and sink on a
real broker, where Maven has the connector for this version of Spark. Ours and the others take turns, a round each.

A topic that is read has the same batches on both sides: BATCH_ROWS records each, in the same partitions. What is
written is synced on both sides, batch by batch, and a batch is as large (KAFKA_SINK).
"""

from __future__ import annotations

import itertools
import statistics
import tempfile
import time
import urllib.request
import uuid
from argparse import ArgumentParser
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
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
from pyspark_mq.sending import BATCH_BYTES
from rich.console import Console

from loadtest.bench import parts as pages
from loadtest.bench import spark_sources
from loadtest.bench.parts import Part, met, number, shown_share
from loadtest.bench.payloads import BATCH_TYPE
from loadtest.bench.spark_sources import CHUNK_ROWS, MemorySource, NullSink, TickSource, chunk
from loadtest.peers import kafka as peers_kafka
from loadtest.peers.fetch import TOOLS, jars
from loadtest.peers.peer import Durability, Unavailable
from loadtest.process import end_when_told, server
from loadtest.stats import paired_ratio
from store.record_batch import record_count

ROOT = Path(__file__).parents[2]
RESULTS = ROOT / "docs" / "benchmarks"
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

KAFKA_SINK = {"kafka.batch.size": BATCH_BYTES, "kafka.linger.ms": 100, "kafka.max.request.size": 8 * BATCH_BYTES}
"""Options of Spark's Kafka sink with which a batch carries what a request of ours carries. The producer waits for a
batch to fill, 100 ms at most; a request has a batch of each partition. Its default is 16 KiB, sent at once."""

KAFKA_TIMEOUT_S = 60
LAYOUT_BYTES = 8 * 1024 * 1024
"""How much of a partition is looked at to see how many records its batches have."""

KAFKA_LIKE_OURS, KAFKA_DEFAULT = "kafka, batches of 1 MiB", "kafka, its default of 16 KiB"

PARTITIONS = 4
BATCH_ROWS = 5_000
MICRO_BATCHES = 30
JIT_ROUNDS = 4
"""Rounds of the first work that do not count: in these the JVM's compilers take up to a third of the two cores, from
whichever work happens to run."""


class Row(NamedTuple):
    """One line of the result: by name, a value a round; ours is "mq". Goals are of the issue that asked for the
    connector."""

    work: str
    unit: str
    values: Mapping[str, Sequence[float]]
    goal: str = ""
    is_met: bool | None = None
    note: str = ""


class Bench:
    """One session, one server, the topics; each method measures one kind of work."""

    def __init__(self, spark: SparkSession, url: str, root: Path, *, count: int, rounds: int) -> None:
        self.spark, self.url, self.root, self.count, self.rounds = spark, url, root, count, rounds
        self.kafka: KafkaTopics | None = None
        self._topics = itertools.count(1)
        for source in (MemorySource, NullSink, TickSource):
            spark.dataSource.register(source)

    def topic(self, value_bytes: int, count: int, *, also_kafka: bool = False) -> str:
        """A topic of so many records, in batches of BATCH_ROWS; and its twin of the same name in Kafka, if there is
        one. Raises WrongLayout when either has other batches."""
        name = self.topic_name()
        create_topic(self.url, name)
        kafka = self.kafka if also_kafka else None
        if kafka is not None:
            kafka.create(name)
        client = Client(Endpoint(urls=(self.url,)))
        for partition, rows in _layout(value_bytes, count):
            client.send_batch(name, partition, encode(rows).sealed(1_700_000_000_000), {})
            if kafka is not None:
                kafka.send(name, partition, rows)
        check_layout(name, batch_records(read_partition(self.url, name)))
        if kafka is not None:
            kafka.flush()
            check_layout(f"Kafka's {name}", batch_records(kafka.partition(name)))
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

    def alternately(self, uncounted: int = 1, /, **workloads: Callable[[], float]) -> dict[str, list[float]]:
        """What each came to, round by round, after so many rounds that do not count."""
        runs: dict[str, list[float]] = {name: [] for name in workloads}
        for _ in range(uncounted + self.rounds):
            for name, work in workloads.items():
                runs[name].append(work())
        return {name: found[uncounted:] for name, found in runs.items()}

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
        topic = self.topic(100, count, also_kafka=True)
        parquet = str(self.root / "parquet")
        self.mq(topic).write.mode("overwrite").parquet(parquet)
        workloads = {
            "mq": self.per_second(lambda: self.mq(topic), count),
            "memory": self.per_second(lambda: self.memory(SEVEN, 100, count), count),
            "parquet": self.per_second(lambda: self.spark.read.parquet(parquet), count),
        }
        if self.kafka is not None:
            workloads["kafka"] = self.per_second(lambda: self.from_kafka(topic), count)
        found = self.alternately(JIT_ROUNDS, **workloads)
        share = paired_ratio(found["mq"], found["memory"]).median
        is_met = statistics.median(found["mq"]) >= 1.3e6 and share >= 0.65
        yield Row("read, 7 columns, 100 B", "records/s", found, ">= 1,300,000 and 65 % of memory", is_met)
        workloads = {
            "mq": self.per_second(lambda: self.mq(topic, "value"), count),
            "memory": self.per_second(lambda: self.memory("value binary", 100, count), count),
            "parquet": self.per_second(lambda: self.spark.read.parquet(parquet).select("value"), count),
        }
        if self.kafka is not None:
            workloads["kafka"] = self.per_second(lambda: self.from_kafka(topic).select("value"), count)
        found = self.alternately(**workloads)
        is_met = statistics.median(found["mq"]) >= 2e6
        yield Row("read, columns=value, 100 B", "records/s", found, ">= 2,000,000", is_met)
        kilo = count // 5
        large = self.topic(1024, kilo)
        megabytes = kilo * 1024 / 1e6
        found = self.alternately(
            mq=self.per_second(lambda: self.mq(large, "value"), megabytes),
            memory=self.per_second(lambda: self.memory("value binary", 1024, kilo), megabytes),
        )
        is_met = statistics.median(found["mq"]) >= 550
        yield Row("read, columns=value, 1 KiB", "MB/s", found, ">= 550", is_met)

    def streams(self) -> Iterator[Row]:
        """Streaming at a million a trigger, and the cost of a micro-batch of one record."""
        count = self.count
        topic = self.topic(100, count, also_kafka=True)
        options = {"url": self.url, "subscribe": topic, "startingOffsets": "earliest"}

        def ours() -> float:
            stream = self.spark.readStream.format("mq").options(**options, maxOffsetsPerTrigger=1_000_000).load()
            return count / sum(self.batch_times_s(stream))

        workloads: dict[str, Callable[[], float]] = {"mq": ours}
        if self.kafka is not None:
            kafka = {"kafka.bootstrap.servers": self.kafka.endpoint, "subscribe": topic, "startingOffsets": "earliest"}

            def theirs() -> float:
                stream = self.spark.readStream.format("kafka").options(**kafka, maxOffsetsPerTrigger=1_000_000).load()
                return count / sum(self.batch_times_s(stream))

            workloads["kafka"] = theirs
        found = self.alternately(JIT_ROUNDS, **workloads)
        is_met = statistics.median(found["mq"]) >= 9e5
        yield Row("stream, 7 columns, 1,000,000 a trigger", "records/s", found, ">= 900,000", is_met)

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
        pairs = zip(found["mq"], found["cheapest Python source"], strict=True)
        above_ms = statistics.median(ours - cheapest for ours, cheapest in pairs)
        note = f"{above_ms:.0f} ms above the cheapest"
        yield Row("a micro-batch of one record, less is better", "ms", found, "<= 25 ms above", above_ms <= 25, note)

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

        def timed(save: Callable[[], None], record_count: int = count) -> Callable[[], float]:
            def run() -> float:
                started_s = time.perf_counter()
                save()
                return record_count / (time.perf_counter() - started_s)

            return run

        written: dict[str, str] = {}

        def ours() -> None:
            name = written["mq"] = self.topic_name()
            create_topic(self.url, name)
            rows.write.format("mq").options(url=self.url, topic=name).mode("append").save()

        def to_kafka(label: str, frame: DataFrame, options: Mapping[str, str | int]) -> Callable[[], float]:
            assert self.kafka is not None
            kafka, frame_count = self.kafka, frame.count()

            def run() -> float:
                name = written[label] = self.topic_name()
                kafka.create(name)
                given: dict[str, str | int] = {**options, "kafka.bootstrap.servers": kafka.endpoint, "topic": name}
                return timed(lambda: frame.write.format("kafka").options(**given).save(), frame_count)()

            return run

        workloads = {
            "mq": timed(ours),
            "thrown away in Python": timed(lambda: rows.write.format("bench_null").mode("append").save()),
            "parquet": timed(lambda: rows.write.mode("overwrite").parquet(str(self.root / "written"))),
        }
        if self.kafka is not None:
            few = self.memory("key binary, value binary", 100, count // 10).cache()  # a sync for each 16 KiB
            workloads[KAFKA_LIKE_OURS] = to_kafka(KAFKA_LIKE_OURS, rows, KAFKA_SINK)
            workloads[KAFKA_DEFAULT] = to_kafka(KAFKA_DEFAULT, few, {})
        found = self.alternately(2, **workloads)
        sizes = {"mq": batch_records(read_partition(self.url, written["mq"]))}
        if self.kafka is not None:
            sizes |= {
                name: batch_records(self.kafka.partition(written[name])) for name in (KAFKA_LIKE_OURS, KAFKA_DEFAULT)
            }
        note = ", ".join(f"{name} {statistics.mean(counts):,.0f}" for name, counts in sizes.items())
        is_met = statistics.median(found["mq"]) >= 4e5
        yield Row("write, key and value, durable", "records/s", found, ">= 400,000", is_met, f"records a batch: {note}")

    def from_kafka(self, topic: str) -> DataFrame:
        """A topic of the broker as a table."""
        assert self.kafka is not None
        options: dict[str, str | int] = {
            "kafka.bootstrap.servers": self.kafka.endpoint,
            "subscribe": topic,
            "minPartitions": PARTITIONS,
        }
        return self.spark.read.format("kafka").options(**options).load()


class KafkaTopics:
    """Topics of a broker, with batches of BATCH_ROWS records; its files are below `data`."""

    def __init__(self, endpoint: str, data: Path) -> None:
        kafka: Any = import_module("confluent_kafka")  # needed only where the broker is
        admin: Any = import_module("confluent_kafka.admin")
        self.endpoint = endpoint
        self._data = data
        self._new_topic = admin.NewTopic
        client = {"bootstrap.servers": endpoint, "log_level": 0}  # else each says that the broker has stopped
        self._admin: Any = admin.AdminClient(client)
        # A batch is sent when it has BATCH_ROWS records: never for its size, never for its age.
        settings = {"batch.num.messages": BATCH_ROWS, "batch.size": 2**24, "linger.ms": 60_000, "acks": "all"}
        self._producer: Any = kafka.Producer({**client, **settings})
        self._failures: list[str] = []

    def create(self, name: str) -> None:
        """PARTITIONS partitions."""
        self._admin.create_topics([self._new_topic(name, PARTITIONS, 1)])[name].result(KAFKA_TIMEOUT_S)

    def send(self, name: str, partition: int, rows: pa.RecordBatch) -> None:
        """One batch of rows with a key and a value."""
        keys, values = rows.column("key").to_pylist(), rows.column("value").to_pylist()
        for key, value in zip(keys, values, strict=True):
            self._producer.produce(name, value, key, partition, on_delivery=self._delivered)
        self._producer.flush(KAFKA_TIMEOUT_S)

    def flush(self) -> None:
        """Raises WrongLayout when a record was refused."""
        self._producer.flush(KAFKA_TIMEOUT_S)
        if self._failures:
            raise WrongLayout(f"Kafka refused {len(self._failures)} records: {self._failures[0]}")

    def partition(self, name: str) -> bytes:
        """The beginning of partition 0, as its file has it."""
        with (self._data / "kafka" / f"{name}-0" / f"{0:020}.log").open("rb") as file:
            return file.read(LAYOUT_BYTES)

    def _delivered(self, error: object, _: object) -> None:
        if error is not None:
            self._failures.append(str(error))


class WrongLayout(Exception):
    """A topic does not have the batches it was to have; reading it would be another work."""


def _layout(value_bytes: int, count: int) -> Iterator[tuple[int, pa.RecordBatch]]:
    """So many rows in batches of BATCH_ROWS, each with the partition it goes to."""
    for index, start in enumerate(range(0, count, CHUNK_ROWS)):
        rows = chunk(["key", "value"], value_bytes, start)
        for first in range(0, min(CHUNK_ROWS, count - start), BATCH_ROWS):
            yield index % PARTITIONS, rows.slice(first, BATCH_ROWS)


def read_partition(url: str, topic: str) -> bytes:
    """The beginning of partition 0, as batches."""
    target = f"{url}/topics/{topic}/partitions/0/records?offset=0&max_bytes={LAYOUT_BYTES}"
    request = urllib.request.Request(target, headers={"Accept": BATCH_TYPE})
    with urllib.request.urlopen(request) as answer:
        body: bytes = answer.read()
    return body


def batch_records(data: bytes) -> list[int]:
    """How many records each RecordBatch of some bytes has; one that is cut at the end does not count, nor do the zeros
    behind the last one."""
    counts, at = [], 0
    while at + 12 <= len(data) and (size := 12 + int.from_bytes(data[at + 8 : at + 12], "big")) > 12:
        if at + size > len(data):
            break
        counts.append(record_count(memoryview(data)[at : at + size]))
        at += size
    return counts


def check_layout(topic: str, counts: Sequence[int]) -> None:
    """Raises WrongLayout unless all batches have BATCH_ROWS records."""
    if set(counts) != {BATCH_ROWS}:
        raise WrongLayout(f"{topic} has batches of {sorted(set(counts))} records, not of {BATCH_ROWS}")


def create_topic(url: str, name: str) -> None:
    """PARTITIONS partitions."""
    body = orjson.dumps({"partitions": PARTITIONS})
    request = urllib.request.Request(f"{url}/mq/v1/topics/{name}", body, method="PUT")
    with urllib.request.urlopen(request) as answer:
        answer.read()


HEADINGS = ("work", "ours", "beside", "goal", "met")


def cells(row: Row) -> tuple[str, str, str, str, str]:
    """A row for people."""
    ours = row.values["mq"]
    beside = ", ".join(
        f"{name} {number(statistics.median(values), row.unit)}: {shown_share(paired_ratio(ours, values))}"
        for name, values in row.values.items()
        if name != "mq"
    )
    work = f"{row.work} ({row.note})" if row.note else row.work
    return work, number(statistics.median(ours), row.unit), beside, row.goal, met(row.is_met)


def as_markdown(parts: Mapping[str, Part]) -> str:
    """One page: the table, what the words mean, the conditions."""
    lines = [
        "# The Spark connector, beside its goals, its limit and its peers",
        "",
        "Written by `make bench-spark`; every run is in `spark.json`. Medians of rounds in which all take turns, once",
        "the JVMs have compiled what they run; behind each, ours as a share of it: the median of the rounds' ratios,",
        "and their range. One Spark session and one server on the same cores.",
        "",
        f"| {' | '.join(HEADINGS)} |",
        "|---|---:|---|---|---|",
        *(f"| {' | '.join(cells(Row(**row)))} |" for part in parts.values() for row in part.rows),  # type: ignore
        "",
        "- *memory*: the same rows made in memory by a Python data source and passed on as Arrow: what Spark takes",
        "  from Python at most. A task makes one batch and passes it on again and again. Ours costs more by what",
        "  fetching and decoding cost, on the same cores.",
        "- *parquet*: Spark's own reader and writer, in Java, without a hand-over from Python. It is the file format",
        "  that a job would use instead, not a queue; its writes are not synced.",
        "- *kafka*: Spark's own source and sink for Kafka, in Java, with a real broker on this machine that syncs each",
        f"  append as mq does. Topics that are read have the same records in batches of {BATCH_ROWS:,} on both sides,",
        "  in as many partitions; both are checked before anything is measured.",
        f"- *write*: each batch is answered after an fdatasync. *{KAFKA_LIKE_OURS}*: with",
        f"  {', '.join(f'{name}={value}' for name, value in KAFKA_SINK.items())}.",
        f"  *{KAFKA_DEFAULT}*: as the sink comes, with a tenth of the records.",
        "  *thrown away in Python*: the hand-over alone.",
        "- *stream*: records by the sum of the times of the batches, a checkpoint of each included.",
        "- *a micro-batch*: the time of one batch, median, beside a source that makes no request.",
        "",
        "## Conditions",
        "",
        *pages.condition_lines(parts),
        "",
    ]
    return "\n".join(lines)


@contextmanager
def kafka(root: Path, tools: Path) -> Iterator[KafkaTopics]:
    """A real broker for the peers of the connector, which syncs each append."""
    (peer,) = peers_kafka.PEERS
    peer.prepare(tools)
    level = next(one for one in peer.levels if one.durability is Durability.SYNCED)
    root.mkdir()
    with peer.serve(tools, root, level) as broker:
        yield KafkaTopics(broker.endpoint, root)


def connector_jars(tools: Path) -> tuple[str, str]:
    """Spark's Kafka connector as a class path, or why there is none."""
    try:
        found = jars(tools, f"spark-kafka-{KAFKA_CONNECTOR}", KAFKA_ARTIFACTS, alone=True)
    except Unavailable as error:
        reason = str(error).partition(" cannot be had: ")[0]  # what follows names registries
        return "", f"not measured: Spark's Kafka connector cannot be had here ({reason})"
    broker = f"Apache Kafka {peers_kafka.VERSION}, one broker, log.flush.interval.messages=1"
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


PARTS = ("reads", "streams", "writes")


def main() -> None:
    """Measure, print, and write the results; exit code 0 also when a goal was missed: it is a report."""
    end_when_told()
    parser = ArgumentParser(prog="python -m loadtest.bench.spark", description="The Spark connector's speed.")
    parser.add_argument("--count", type=int, default=4_000_000, help=f"records, a multiple of {CHUNK_ROWS}")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--only", default="", choices=("", *PARTS), help="measures this part again")
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
    with ExitStack() as stack:
        root = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="mq-spark-", dir=options.dir)))
        url = stack.enter_context(server(root / "mq"))
        bench = Bench(session(extra_jars), url, root, count=options.count, rounds=options.rounds)
        if extra_jars:
            bench.kafka = stack.enter_context(kafka(root / "kafka", tools))
        for name, part in zip(PARTS, (bench.reads, bench.streams, bench.writes), strict=True):
            if options.only in ("", name):
                conditions = pages.conditions(
                    root,
                    pyspark=pyspark.__version__,
                    pyarrow=pa.__version__,
                    records=options.count,
                    rounds=options.rounds,
                    kafka=kafka_note,
                )
                others, rows = pages.OtherPrograms(), []
                for row in part():
                    console.print(*cells(row), sep=" | ")
                    rows.append(row)
                conditions["other_programs"] = others.said()
                new = {name: Part(conditions, [row._asdict() for row in rows])}
                pages.write(options.out, "spark", PARTS, new, as_markdown)
        bench.spark.stop()


if __name__ == "__main__":
    main()
