from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.gateway.brokers.kafka.servers import KafkaServers, kafka_servers
from tests.gateway.cluster.etcd_server import EtcdServer, etcd_server


@pytest.fixture(scope="package")
def etcd(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EtcdServer]:
    """Ended with the last of these tests: idle, too, it takes processor time from others (50 heartbeats a second)."""
    with etcd_server(tmp_path_factory.mktemp("etcd")) as server:
        yield server


@pytest.fixture(scope="module")
def real_kafka(tmp_path_factory: pytest.TempPathFactory) -> Iterator[KafkaServers]:
    with kafka_servers(tmp_path_factory.mktemp("kafka")) as servers:
        yield servers
