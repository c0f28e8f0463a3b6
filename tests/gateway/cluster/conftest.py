from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.gateway.brokers.kafka.servers import KafkaServers, kafka_servers
from tests.gateway.cluster.etcd_server import EtcdServer, etcd_server


@pytest.fixture(scope="session")
def etcd(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EtcdServer]:
    with etcd_server(tmp_path_factory.mktemp("etcd")) as server:
        yield server


@pytest.fixture(scope="module")
def real_kafka(tmp_path_factory: pytest.TempPathFactory) -> Iterator[KafkaServers]:
    with kafka_servers(tmp_path_factory.mktemp("kafka")) as servers:
        yield servers
