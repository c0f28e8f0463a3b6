"""A real Apache Kafka of one broker, or of three and a controller, in small heaps: each a process that tests kill,
freeze and start again."""

from __future__ import annotations

import signal
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cache
from pathlib import Path

import pytest

from loadtest.peers.fetch import TOOLS, said
from loadtest.peers.kafka import CLUSTER_ID, Kafka, java_command
from loadtest.peers.peer import Unavailable
from loadtest.peers.servers import Server, is_open, wait_until
from tests.e2e.server import DIES_WITH_US
from tests.gateway.cluster.etcd_server import free_port

HEAP = "384m"
JAVA = (f"-Xmx{HEAP}", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1")
CONTROLLER = 100
"""The node id of a controller of its own."""

COMMON = {
    "controller.listener.names": "CONTROLLER",
    "inter.broker.listener.name": "PLAINTEXT",
    "group.initial.rebalance.delay.ms": "0",
    "log.segment.delete.delay.ms": "1000",
    "offsets.topic.num.partitions": "4",
    "auto.create.topics.enable": "false",
}
ROUTED_LOG = """rootLogger.level=warn
rootLogger.appenderRef.c.ref=c
appender.c.type=Console
appender.c.name=c
appender.c.layout.type=PatternLayout
"""


@cache
def tools() -> Path:
    """Kafka's programs. Skips the test when they cannot be had."""
    try:
        Kafka().prepare(TOOLS)
    except Unavailable as error:
        pytest.skip(str(error))
    return TOOLS


class KafkaNode:
    """One process: `start`, then whatever is done to it, then `end`."""

    def __init__(
        self, directory: Path, node: int, settings: Mapping[str, str], *, ports: Sequence[int], logs: Path | None = None
    ) -> None:
        """`ports`: those that are open when it is there. `logs`: where its records are, if not in its directory."""
        self._directory, self._ports = directory, ports
        self._logs = logs or directory / "logs"
        self._process: subprocess.Popen[bytes] | None = None
        self._server: Server | None = None
        directory.mkdir(parents=True, exist_ok=True)
        own = {**COMMON, "node.id": str(node), "log.dirs": str(self._logs), **settings}
        self._settings = directory / "server.properties"
        self._settings.write_text("".join(f"{name}={value}\n" for name, value in own.items()))
        (directory / "log4j2.properties").write_text(ROUTED_LOG)
        self._java = java_command(tools(), (*JAVA, f"-Dlog4j2.configurationFile={directory / 'log4j2.properties'}"))

    def format(self, *more: str) -> None:
        """Make its storage."""
        told = said(
            [*self._java, "kafka.tools.StorageTool", "format", "-t", CLUSTER_ID, "-c", str(self._settings), *more]
        )
        assert (self._logs / "meta.properties").exists(), told

    def start(self) -> None:
        """Begin; `wait` until it is there."""
        log = self._directory / "server.log"
        with log.open("ab") as output:
            command = [*DIES_WITH_US, *self._java, "kafka.Kafka", str(self._settings)]
            self._process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=output, stderr=output)
        self._server = Server("", [self._process], log)

    def wait(self) -> None:
        """Return when it accepts connections. Raises Died."""
        assert self._server is not None
        wait_until(self._server, lambda _: all(map(is_open, self._ports)))

    @property
    def is_running(self) -> bool:
        """Whether its process is there."""
        return self._process is not None and self._process.poll() is None

    def signal(self, number: signal.Signals) -> None:
        """Freeze it, or have it go on."""
        assert self._process is not None
        self._process.send_signal(number)

    def kill(self) -> None:
        """kill -9."""
        if self._server is not None:
            self._server.kill()


class KafkaServers:
    """A cluster: its brokers, and where clients find them."""

    def __init__(self, nodes: Sequence[KafkaNode], brokers: Sequence[KafkaNode], endpoint: str) -> None:
        self.nodes, self.brokers, self.endpoint = nodes, brokers, endpoint


@contextmanager
def kafka_servers(
    directory: Path,
    *,
    brokers: int = 1,
    settings: Mapping[str, str] | None = None,
    formatted: Sequence[str] = (),
    listener: str = "PLAINTEXT",
    logs: Mapping[int, Path] | None = None,
    ports: Mapping[int, int] | None = None,
    advertised: Mapping[int, str] | None = None,
) -> Iterator[KafkaServers]:
    """A Kafka cluster while the block runs: one process, or so many brokers and a controller. `listener`: the protocol
    of the one that clients use (brokers use PLAINTEXT among themselves). `formatted`: more for the storage's making.
    `logs`: where brokers have their records, `ports`: where clients reach them, `advertised`: where those are told to
    do so; all by node."""
    is_one = brokers == 1
    controller = free_port()
    replicas = str(min(3, brokers))
    common = {
        "controller.quorum.voters": f"{1 if is_one else CONTROLLER}@127.0.0.1:{controller}",
        "listener.security.protocol.map": "CONTROLLER:PLAINTEXT,PLAINTEXT:PLAINTEXT,CLIENTS:" + listener,
        "offsets.topic.replication.factor": replicas,
        "transaction.state.log.replication.factor": replicas,
        "transaction.state.log.min.isr": "1",
        **(settings or {}),
    }
    nodes: list[KafkaNode] = []
    endpoints = []
    if not is_one:
        own = {**common, "process.roles": "controller", "listeners": f"CONTROLLER://127.0.0.1:{controller}"}
        own.pop("inter.broker.listener.name", None)
        nodes.append(KafkaNode(directory / "controller", CONTROLLER, own, ports=[controller]))
    for node in range(1, brokers + 1):
        port, internal = (ports or {}).get(node) or free_port(), free_port()
        listeners = f"CLIENTS://127.0.0.1:{port},PLAINTEXT://127.0.0.1:{internal}"
        address = (advertised or {}).get(node, f"127.0.0.1:{port}")
        own = {
            **common,
            "process.roles": "broker,controller" if is_one else "broker",
            "listeners": listeners + (f",CONTROLLER://127.0.0.1:{controller}" if is_one else ""),
            "advertised.listeners": f"CLIENTS://{address},PLAINTEXT://127.0.0.1:{internal}",
        }
        nodes.append(KafkaNode(directory / str(node), node, own, ports=[port, internal], logs=(logs or {}).get(node)))
        endpoints.append(address)
    try:
        for one in nodes:
            one.format(*formatted)
            one.start()
        for one in nodes:
            one.wait()
        yield KafkaServers(nodes, nodes if is_one else nodes[1:], ",".join(endpoints))
    finally:
        for one in nodes:
            one.kill()
