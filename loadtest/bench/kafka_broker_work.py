"""What is done with partitions of mq that lie in Kafka, and with the same Kafka straight; see kafka_broker.py.

Batches of `raw` works are made once, of BATCH_RECORDS records or of LARGE_BATCH_BYTES, so a client's cost is per batch.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from functools import partial
from http import HTTPStatus
from pathlib import Path
from typing import NamedTuple
from urllib.parse import urlsplit

import aiohttp
import psutil
import uvloop

from loadtest.bench import librdkafka
from loadtest.bench.containment import memory_limited
from loadtest.bench.payloads import BATCH_TYPE, JSON_TYPE
from loadtest.bench.push_latency import Latency, our_push_path
from loadtest.bench.request import Request, RunFailed
from loadtest.peers import kafka_protocol, replay
from loadtest.peers.fetch import TOOLS
from loadtest.peers.kafka import Kafka
from loadtest.peers.peer import Numbers, WorkFailed
from loadtest.peers.servers import free_port
from loadtest.process import running_server
from store.record_batch import encode_columns

BROKER = "kafka1"
BATCH_RECORDS = 1_000
LARGE_BATCH_BYTES, FRAMING_BYTES = 1_000_000, 11
"""What librdkafka puts into a batch at most, as it is by default (`batch.size`); and what a record of 100 B has beside
its value, at most."""

ANSWER_TIMEOUT_S, ARRIVAL_TIMEOUT_S = 60.0, 60.0
"""How long a slow machine may take for what it is asked; and for records that were sent, which is part of the times
that are measured."""

RETRY_S = 0.2
CONNECTIONS = 8
"""On which prebuilt batches go in. Kafka answers those of one connection in order, one at a time."""

FETCH_BYTES = 1 << 20
"""Of an answer; librdkafka asks for as many."""


class Subjects(NamedTuple):
    """The servers: where mq is by HTTP and by Kafka's protocol, and where Kafka is. `memory`: how it is limited."""

    url: str
    port: str
    kafka: str
    mq_pid: int
    kafka_pid: int
    memory: str

    def cpu_s(self) -> dict[str, float]:
        """CPU time of each server so far."""
        pids = {"mq": self.mq_pid, "Kafka": self.kafka_pid}
        times = {name: psutil.Process(pid).cpu_times() for name, pid in pids.items()}
        return {name: float(used.user + used.system) for name, used in times.items()}


@contextmanager
def subjects(directory: Path) -> Iterator[Subjects]:
    """A Kafka of one node, and a node of mq that has it as a broker. Raises Unavailable, Died."""
    peer, port = Kafka(), free_port()
    peer.prepare(TOOLS)
    (directory / "kafka").mkdir(parents=True)
    with peer.serve(TOOLS, directory / "kafka", peer.levels[0]) as kafka:
        broker = f"{BROKER}=kafka://{kafka.endpoint}?replication=1&min_insync=1"
        flags = ("--kafka-port", str(port), "--broker", broker, "--log-level", "warning")
        with (
            running_server(directory / "mq", *flags) as mq,
            memory_limited("mq", [mq.pid]) as memory,
            memory_limited("kafka", kafka.pids),
        ):
            yield Subjects(mq.url, f"127.0.0.1:{port}", kafka.endpoint, mq.pid, kafka.pids[0], memory)


# ---- topics ----------------------------------------------------------------------------------------------------------


async def _asked(url: str, method: str, path: str, body: object = None) -> None:
    """Have it done. A Kafka that takes long to make a topic is waited for."""
    until_s = time.monotonic() + ANSWER_TIMEOUT_S
    async with aiohttp.ClientSession() as session:
        while True:
            async with session.request(method, url + path, json=body) as answer:
                if answer.status < 300:
                    return
                if answer.status != HTTPStatus.SERVICE_UNAVAILABLE or time.monotonic() > until_s:
                    raise WorkFailed(f"{method} {path}: {await answer.text()}")
            await asyncio.sleep(RETRY_S)


async def _make(url: str, topic: str, *, is_moved: bool) -> None:
    await _asked(url, "PUT", f"/mq/v1/topics/{topic}", {"partitions": 1})
    if is_moved:
        await _asked(url, "POST", f"/mq/v1/topics/{topic}/partitions/0/move", {"to": BROKER})


def make_moved(at: Subjects, topic: str) -> None:
    """A topic of mq whose one partition is in Kafka."""
    uvloop.run(_make(at.url, topic, is_moved=True))


def drop_moved(at: Subjects, topic: str) -> None:
    """Here and there: mq leaves Kafka's topic."""
    uvloop.run(_asked(at.url, "DELETE", f"/mq/v1/topics/{topic}"))
    librdkafka.delete_topic(at.kafka, topic)


def make_own(at: Subjects, topic: str) -> None:
    """A topic of mq in its own store."""
    uvloop.run(_make(at.url, topic, is_moved=False))


def drop_own(at: Subjects, topic: str) -> None:
    """With all that it holds."""
    uvloop.run(_asked(at.url, "DELETE", f"/mq/v1/topics/{topic}"))


def make_straight(at: Subjects, topic: str) -> None:
    """A topic of Kafka's alone, as Kafka makes it, with one record."""
    librdkafka.create_topic(at.kafka, topic, 1)
    librdkafka.write_to_each(at.kafka, topic, 1)


def drop_straight(at: Subjects, topic: str) -> None:
    """With all that it holds."""
    librdkafka.delete_topic(at.kafka, topic)


def _place(endpoint: str) -> tuple[str, int]:
    host, _, port = endpoint.rpartition(":")
    return host, int(port)


def large_batch_records(size_bytes: int) -> int:
    """Of records with values of that size, so many are LARGE_BATCH_BYTES, and no more."""
    return LARGE_BATCH_BYTES // (size_bytes + FRAMING_BYTES)


def _sent(url: str, topic: str, size_bytes: int, records: int = BATCH_RECORDS) -> bytes:
    headers = {"Content-Type": BATCH_TYPE}
    return Request("POST", f"/topics/{topic}/partitions/0", headers, _batch(size_bytes, records)).encode(url)


def _batch(size_bytes: int, records: int) -> bytes:
    """Now is its time: Kafka refuses, or soon expires, what looks old."""
    return bytes(encode_columns(None, [bytes(size_bytes)] * records, time.time_ns() // 1_000_000))


def fill(at: Subjects, topic: str, size_bytes: int, count: int) -> int:
    """At least so many records in a topic of mq, in batches as they are sent raw; how many."""
    batches = -(-count // BATCH_RECORDS)

    async def send() -> None:
        request = _sent(at.url, topic, size_bytes)
        async with replay.connected(*_place(urlsplit(at.url).netloc), 1) as (connection,):
            for _ in range(batches):
                connection.skip(await connection.answer(request, replay.http_answer))

    uvloop.run(send())
    return batches * BATCH_RECORDS


# ---- in, and out: records and the rate of each run -------------------------------------------------------------------


class Done(NamedTuple):
    """Of one run: values in the work's unit, and the records that it moved."""

    values: tuple[float, ...]
    records: float


Run = Callable[[Subjects, str, int, float], Done]
"""Of one way: with a topic, so many records, or for so many seconds."""


def _ran(run: Awaitable[Numbers]) -> Done:
    async def whole() -> Numbers:
        return await run

    numbers = uvloop.run(whole())
    return Done((numbers["records_per_s"],), numbers["records"])


def raw_in(size_bytes: int, records: int = BATCH_RECORDS) -> Run:
    """Prebuilt batches of so many records to mq over HTTP."""

    def run(at: Subjects, topic: str, _: int, seconds: float) -> Done:
        request, whole = _sent(at.url, topic, size_bytes, records), replay.http_answer
        sending = partial(replay.replay, request=request, whole=whole, records=records, connections=CONNECTIONS)
        return _ran(sending(*_place(urlsplit(at.url).netloc), duration_s=seconds, warm_s=0.0))

    return run


def raw_in_straight(size_bytes: int, records: int = BATCH_RECORDS) -> Run:
    """The same batches to Kafka."""

    def run(at: Subjects, topic: str, _: int, seconds: float) -> Done:
        request, whole = kafka_protocol.produce(topic, _batch(size_bytes, records)), kafka_protocol.produced_bytes
        sending = partial(replay.replay, request=request, whole=whole, records=records, connections=CONNECTIONS)
        return _ran(sending(*_place(at.kafka), duration_s=seconds, warm_s=0.0))

    return run


def client_in(size_bytes: int, *, is_straight: bool = False) -> Run:
    """rdkafka_performance to Kafka's port of mq, or to Kafka."""

    def run(at: Subjects, topic: str, count: int, _: float) -> Done:
        endpoint = at.kafka if is_straight else at.port
        return Done((librdkafka.produce(endpoint, topic, size_bytes, count),), count)

    return run


def raw_out(at: Subjects, topic: str, count: int, seconds: float) -> Done:
    """Batches as they are stored, from mq over HTTP by one connection."""

    def ask(offset: int) -> bytes:
        target = f"/topics/{topic}/partitions/0/records?offset={offset}&max_bytes={FETCH_BYTES}"
        return Request("GET", target, {"Accept": BATCH_TYPE}).encode(at.url)

    reading = partial(replay.fetch, request=ask, whole=replay.http_records, count=count)
    return _ran(reading(*_place(urlsplit(at.url).netloc), duration_s=seconds, warm_s=0.0))


def raw_out_straight(at: Subjects, topic: str, count: int, seconds: float) -> Done:
    """The same from Kafka."""

    def ask(offset: int) -> bytes:
        return kafka_protocol.fetch(topic, offset, FETCH_BYTES)

    reading = partial(replay.fetch, request=ask, whole=kafka_protocol.fetched, count=count)
    return _ran(reading(*_place(at.kafka), duration_s=seconds, warm_s=0.0))


def client_out(*, is_straight: bool = False) -> Run:
    """rdkafka_performance from Kafka's port of mq, or from Kafka."""

    def run(at: Subjects, topic: str, count: int, _: float) -> Done:
        return Done((librdkafka.consume(at.kafka if is_straight else at.port, topic, count),), count)

    return run


# ---- from end to end -------------------------------------------------------------------------------------------------


def pushed(rate: int) -> Run:
    """Single records from POST to a WebSocket of mq: p50, p99."""

    def run(at: Subjects, topic: str, _: int, seconds: float) -> Done:
        found = uvloop.run(_push(at.url, topic, rate, seconds))
        return Done((found.p50_ms, found.p99_ms), found.record_count)

    return run


async def _push(url: str, topic: str, rate: int, seconds: float) -> Latency:
    async with aiohttp.ClientSession() as session, our_push_path(
        session, url, {"Content-Type": JSON_TYPE}, topic=topic
    ) as path:  # fmt: skip
        try:
            return await path.run(rate, seconds, ARRIVAL_TIMEOUT_S)
        except RunFailed as error:
            raise WorkFailed(str(error)) from error


def client_end_to_end(rate: int) -> Run:
    """Single records from `produce` to `poll` of confluent-kafka, straight to Kafka: p50, p99."""

    def run(at: Subjects, topic: str, _: int, seconds: float) -> Done:
        count = max(1, int(rate * seconds))
        return Done(librdkafka.end_to_end(at.kafka, topic, count, rate), count)

    return run
