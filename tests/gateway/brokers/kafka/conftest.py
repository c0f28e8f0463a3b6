"""A real Kafka and a real etcd, for the tests with servers."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack

import pytest

from loadtest.peers.fetch import TOOLS
from loadtest.peers.kafka import Kafka
from loadtest.peers.peer import Unavailable
from loadtest.peers.servers import Server as Peer
from tests.gateway.cluster.etcd_server import EtcdServer, etcd_server


@pytest.fixture(scope="module")
def kafka(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Peer]:
    peer = Kafka()
    with ExitStack() as stack:
        try:
            peer.prepare(TOOLS)
        except Unavailable as error:
            pytest.skip(str(error))
        yield stack.enter_context(peer.serve(TOOLS, tmp_path_factory.mktemp("kafka"), peer.levels[0]))


@pytest.fixture(scope="module")
def etcd(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EtcdServer]:
    with etcd_server(tmp_path_factory.mktemp("etcd")) as server:
        yield server
