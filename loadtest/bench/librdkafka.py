"""librdkafka as a client that is measured: its own load tool, `rdkafka_performance`, built from Debian's source
package, and what it prints; and records one by one with a clock, through confluent-kafka."""

from __future__ import annotations

import re
import shutil
import subprocess
import time
from collections.abc import Container, Sequence
from importlib import import_module
from pathlib import Path
from threading import Thread
from typing import Any

from loadtest.peers.fetch import FETCH_TIMEOUT_S, TOOLS, program
from loadtest.peers.peer import Unavailable, WorkFailed
from loadtest.stats import percentile

TOOL_TIMEOUT_S = 300
TOPIC_TIMEOUT_S = 120
READY = b"ready"
"""The record behind which times are taken; there may be others before it."""

_SOURCES = """Types: deb-src
URIs: {archive}
Suites: {suite}
Components: main
Signed-By: /usr/share/keyrings/debian-archive-keyring.gpg
"""
_STEPS = (
    "mkdir -p lists/partial",
    "apt-get {options} update",
    "apt-get {options} source --download-only librdkafka",
    "tar xzf librdkafka_*.orig.tar.gz",
    "cd librdkafka-*/ && ./configure --disable-gssapi --disable-curl --disable-lz4-ext --enable-static",
    "cd librdkafka-*/ && make -C src librdkafka.a && make -C examples rdkafka_performance",
)
_PRODUCED = re.compile(r"(\d+) messages produced.*?(\d+) delivered", re.DOTALL)
_RATE = re.compile(r"(\d+) msgs/s")


def _archive() -> tuple[str, str]:
    """(URI, suite) of the archive that this machine's own Debian packages come from. Raises Unavailable."""
    suite = re.search(r"VERSION_CODENAME=(\w+)", Path("/etc/os-release").read_text())
    listed = subprocess.run(
        ["apt-get", "indextargets", "--format", "$(REPO_URI) $(RELEASE) $(COMPONENT)", "Created-By: Packages"],
        capture_output=True, text=True, check=False, timeout=FETCH_TIMEOUT_S,
    ).stdout.splitlines()  # fmt: skip
    for uri, release, component in (line.split() for line in listed):
        if suite and (release, component) == (suite[1], "main"):
            return uri, release
    raise Unavailable("rdkafka_performance is built from Debian's source package, and this is not Debian")


def rdkafka_performance(tools: Path) -> str:
    """The program. Raises Unavailable."""
    binary = tools / "bin" / "rdkafka_performance"
    if binary.exists():
        return str(binary)
    for name, package in (("apt-get", "apt"), ("gcc", "gcc"), ("make", "make")):
        program(name, package)
    archive, suite = _archive()
    building = tools / "librdkafka.new"
    shutil.rmtree(building, ignore_errors=True)
    building.mkdir(parents=True)
    (building / "src.sources").write_text(_SOURCES.format(archive=archive, suite=suite))
    places = (f"sourcelist={building}/src.sources", "sourceparts=-")
    options = " ".join(f"-o Dir::Etc::{place}" for place in places) + f" -o Dir::State::lists={building}/lists"
    for step in _STEPS:
        done = subprocess.run(
            ["bash", "-c", step.format(options=options)], cwd=building, capture_output=True, text=True, check=False,
            timeout=FETCH_TIMEOUT_S,
        )  # fmt: skip
        if done.returncode:
            raise Unavailable(f"rdkafka_performance cannot be built: {step}: {(done.stdout + done.stderr)[-300:]}")
    [built] = building.glob("librdkafka-*/examples/rdkafka_performance")
    binary.parent.mkdir(parents=True, exist_ok=True)
    built.rename(binary)
    shutil.rmtree(building)
    return str(binary)


def rate_of(output: str, count: int) -> float:
    """Messages a second of a whole run, of what the tool prints in the end. Raises WorkFailed when it did less."""
    produced, rates = _PRODUCED.findall(output), _RATE.findall(output)
    if not rates or (produced and int(produced[-1][1]) < count):
        raise WorkFailed(f"rdkafka_performance: {output[-500:]}")
    return float(rates[-1])


def said(command: Sequence[str], *, ended_by: Container[int] = (0,)) -> str:
    """What a load tool prints. Raises WorkFailed unless it ended with one of these codes."""
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=TOOL_TIMEOUT_S)
    if done.returncode not in ended_by:
        told = [line for line in (done.stdout + done.stderr).splitlines() if "|CONFWARN|" not in line]
        raise WorkFailed(f"{Path(command[0]).name} ended with {done.returncode}: {' '.join(told)[-2000:]}")
    return done.stdout + done.stderr


def create_topic(endpoint: str, topic: str, partitions: int) -> None:
    """Of one replica, with the server's own settings."""
    admin: Any = import_module("confluent_kafka.admin")
    client = admin.AdminClient({"bootstrap.servers": endpoint, "log_level": 0})
    client.create_topics([admin.NewTopic(topic, partitions, 1)])[topic].result(TOPIC_TIMEOUT_S)


def write_to_each(endpoint: str, topic: str, partitions: int) -> None:
    """A record to each partition: what a first one costs is no part of a rate, and who sends bytes has a topic that is
    ready. Raises WorkFailed."""
    kafka: Any = import_module("confluent_kafka")
    producer = kafka.Producer({"bootstrap.servers": endpoint, "acks": "all", "log_level": 0})
    for partition in range(partitions):
        producer.produce(topic, b"first", partition=partition)
    if producer.flush(TOOL_TIMEOUT_S):
        raise WorkFailed("not every partition took a record")


def delete_topic(endpoint: str, topic: str) -> None:
    """With all that it holds."""
    admin: Any = import_module("confluent_kafka.admin")
    client = admin.AdminClient({"bootstrap.servers": endpoint, "log_level": 0})
    client.delete_topics([topic])[topic].result(TOPIC_TIMEOUT_S)


def produce(endpoint: str, topic: str, size_bytes: int, count: int) -> float:
    """Records a second of so many to a topic, which all replicas have. Raises WorkFailed, Unavailable."""
    command = [rdkafka_performance(TOOLS), "-P", "-t", topic, "-s", str(size_bytes), "-c", str(count)]
    command += ["-b", endpoint, "-a", "-1", "-X", "linger.ms=5", "-X", "queue.buffering.max.messages=500000"]
    # It ends with 1 also when it counted one message less as sent than as delivered: what was delivered says all.
    return rate_of(said(command, ended_by=(0, 1)), count)


def consume(endpoint: str, topic: str, count: int) -> float:
    """Records a second of the first so many of partition 0. Raises WorkFailed, Unavailable."""
    command = [rdkafka_performance(TOOLS), "-C", "-t", topic, "-p", "0", "-o", "beginning", "-c", str(count)]
    command += ["-b", endpoint, "-X", "queued.min.messages=1000000"]
    return rate_of(said(command), count)


def end_to_end(endpoint: str, topic: str, count: int, rate: int) -> tuple[float, float]:
    """From `produce` to the consumer's `poll`, of so many single records at a steady rate: p50 and p99, in ms. Raises
    WorkFailed."""
    kafka: Any = import_module("confluent_kafka")
    consumer = kafka.Consumer({"bootstrap.servers": endpoint, "group.id": "latency", "fetch.wait.max.ms": 500})
    consumer.assign([kafka.TopicPartition(topic, 0, 0)])
    producer = kafka.Producer({"bootstrap.servers": endpoint, "acks": "all", "linger.ms": 0})
    producer.produce(topic, READY)
    producer.flush(TOOL_TIMEOUT_S)
    while (message := consumer.poll(1.0)) is None or message.value() != READY:
        pass
    took_ms: list[float] = []

    def send() -> None:
        began_s = time.perf_counter()
        for number_ in range(count):
            due_s = began_s + number_ / rate
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
    return percentile(took_ms, 50), percentile(took_ms, 99)
