"""gateway/main/listener.py: who may connect while the server starts."""

from __future__ import annotations

import asyncio
import socket
from pathlib import Path

import pytest

from gateway.main.listener import (
    address_of,
    advertised_kafka,
    answering_not_ready,
    bound_kafka_sockets,
    bound_socket,
)
from gateway.settings import kafka as kafka_settings
from gateway.settings.config import build
from gateway.surfaces.http.starting import RecoveryProgress
from tests.waiting import PATIENCE_S


async def test_connections_are_bounded_before_the_store_is_open(tmp_path: Path) -> None:
    """Recovery opens files: who says nothing must not have their handles."""
    config = build({"data": tmp_path, "port": 0, "limits.connections_max": 3, "limits.connections_per_address_max": 2})
    with bound_socket(config.host, config.port) as listener:
        port = listener.getsockname()[1]
        async with answering_not_ready(config, listener, RecoveryProgress(), None):
            held = [await asyncio.open_connection("127.0.0.1", port) for _ in range(2)]
            await asyncio.sleep(0.05)
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            async with asyncio.timeout(PATIENCE_S):
                assert (await reader.read()).startswith(b"HTTP/1.1 503 ")
            writer.close()
            held.pop()[1].close()

            async def is_let_in() -> bool:
                reader, writer = await asyncio.open_connection("127.0.0.1", port)
                writer.write(b"GET /healthz HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
                answer = await reader.read()
                writer.close()
                return answer.startswith(b"HTTP/1.1 200")

            async with asyncio.timeout(PATIENCE_S):
                while True:
                    if await is_let_in():
                        break
                    await asyncio.sleep(0.01)
            held.pop()[1].close()


def test_a_port_for_kafka_clients_that_is_taken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        monkeypatch.setattr(kafka_settings, "PORT_DEFAULT", port)
        with bound_kafka_sockets(build({"data": tmp_path, "port": 0})) as (bound, warnings):
            assert bound == {}  # nobody asked for it: the server starts without
            assert f"127.0.0.1:{port}" in warnings[0]
        for asked in ({"kafka.port": port}, {"kafka.listeners": ["A://127.0.0.1:0", f"B://127.0.0.1:{port}"]}):
            config = build({"data": tmp_path, "port": 0, **asked})
            with pytest.raises(OSError, match=f"Kafka listener 127.0.0.1:{port}"), bound_kafka_sockets(config):
                pass
    with bound_kafka_sockets(build({"data": tmp_path, "port": 0})) as (bound, warnings):
        assert ({name: address_of(one) for name, one in bound.items()}, warnings) == (
            {"KAFKA": f"127.0.0.1:{port}"},
            [],
        )
    for nothing in ({"kafka.enabled": False}, {"host": "0.0.0.0", "auth.enabled": True}):
        with bound_kafka_sockets(build({"data": tmp_path, "port": 0, **nothing})) as (bound, warnings):
            assert (bound, warnings) == ({}, [])


@pytest.mark.parametrize(
    ("client_url", "host"),
    [("https://mq.example.org:8443", "mq.example.org"), ("http://[::1]:8082", "[::1]"), (None, socket.gethostname())],
)
def test_a_node_publishes_what_it_advertises_or_where_it_listens(
    tmp_path: Path, client_url: str | None, host: str
) -> None:
    chosen: dict[str, object] = {"kafka.advertised": ("OUTSIDE://outside.example.org:9094",), "insecure_no_auth": True}
    if client_url is not None:
        chosen["cluster.client_url"] = client_url
    listeners = ("INSIDE://127.0.0.1:0", "OUTSIDE://127.0.0.1:0", "ALL://0.0.0.0:0")
    config = build({"data": tmp_path, "kafka.listeners": listeners, **chosen})
    with bound_kafka_sockets(config) as (bound, _):
        ports = {name: one.getsockname()[1] for name, one in bound.items()}
        assert advertised_kafka(config, bound) == (
            f"INSIDE://127.0.0.1:{ports['INSIDE']}",
            "OUTSIDE://outside.example.org:9094",
            f"ALL://{host}:{ports['ALL']}",
        )
