"""The tests of a server with Kafka as its only broker of records: with MQ_E2E_BROKER=kafka each server that
tests/e2e/server.py starts makes its topics on one real Apache Kafka, under a prefix of its own.

    MQ_E2E_BROKER=kafka .venv/bin/python -m pytest tests/e2e/test_groups.py
    MQ_E2E_BROKER=no_store ...    the same, each server without a store: the metadata is in a real etcd, and the data
                                  directory that a test gives is not made

What proves something of the node's own store is marked `embedded`, with the reason, and left out then; the end of the
run says which and why.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from functools import partial
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from tests.gateway.cluster.etcd_server import EtcdServer

NAME = "MQ_E2E_BROKER"
NO_STORE = "no_store"
ASKED = "PYTEST_E2E_BROKER"
"""The same for the workers of a run: a server refuses a setting that it does not know."""

MARK = "embedded"
SMALL = {"log.index.size.max.bytes": "1048576", "broker.heartbeat.interval.ms": "500"}


def take_from_environment() -> None:
    """Note what was asked for, before anything is started."""
    if NAME in os.environ:
        os.environ[ASKED] = os.environ.pop(NAME)
    assert os.environ.get(ASKED) in (None, "kafka", NO_STORE), f"{NAME} can be kafka or {NO_STORE}"


def is_asked_for() -> bool:
    """Whether servers are to have Kafka as their broker."""
    return ASKED in os.environ


def left_out(items: list[pytest.Item]) -> dict[pytest.Item, str]:
    """The tests that prove something of a node's own store, and why."""
    marked = {item: item.get_closest_marker(MARK) for item in items}
    return {item: str(mark.args[0]) for item, mark in marked.items() if mark is not None}


def serving(directory: Path) -> Iterator[None]:
    """Have servers begin their topics on a Kafka, which is started when the first one needs it."""
    from tests.e2e.server import Server
    from tests.gateway.brokers.kafka.servers import kafka_servers
    from tests.gateway.cluster.etcd_server import etcd_server

    with ExitStack() as stack:
        kafka = stack.enter_context(kafka_servers(directory, settings=SMALL))
        more: Mapping[str, str] = {}
        if os.environ[ASKED] == NO_STORE:
            (directory / "etcd").mkdir()
            more = _without_store(stack.enter_context(etcd_server(directory / "etcd")), directory)
        Server.more = partial(_settings, kafka.endpoint, more)
        try:
            yield
        finally:
            Server.more = staticmethod(lambda _data, _given: {})


def _without_store(etcd: EtcdServer, directory: Path) -> Mapping[str, str]:
    (directory / "secret").write_bytes(b"the secret of nodes in tests")
    return {
        "MQ_CLUSTER_NO_STORE": "true",
        "MQ_CLUSTER_NODE": "n1",
        "MQ_CLUSTER_INTERNAL_PORT": "0",
        "MQ_CLUSTER_GROUPS_BROKER": "kafka1",
        "MQ_CLUSTER_SECRET_FILE": str(directory / "secret"),
        "MQ_CLUSTER_ETCD": ",".join(etcd.config.endpoints),
        "MQ_CLUSTER_ETCD_CA_FILE": str(etcd.ca_file),
    }


def _settings(endpoint: str, more: Mapping[str, str], data: Path, given: Mapping[str, str]) -> dict[str, str]:
    if any(name.startswith(("MQ_CLUSTER_", "MQ_WORKERS")) for name in given):
        return {}
    prefix = sha256(str(data).encode()).hexdigest()[:12]
    return {
        "MQ_CLUSTER_KAFKA": f"kafka1=kafka://{endpoint}?replication=1&min_insync=1&prefix={prefix}.",
        "MQ_CLUSTER_DEFAULT_BROKER": "kafka1",
        "MQ_CLUSTER_TIMERS_BROKER": "kafka1",
        **({**more, "MQ_CLUSTER_PREFIX": f"{prefix}/"} if more else {}),
    }
