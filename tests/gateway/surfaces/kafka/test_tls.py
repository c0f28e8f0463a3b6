"""Kafka's port with TLS: a connection counts before its handshake, and one that stalls is ended."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import pytest

from gateway.main.listener import BACKLOG, bound_socket
from gateway.main.tls import ServerTls
from gateway.settings.tls import TlsConfig
from gateway.surfaces.http import accepting
from gateway.surfaces.http.connection import ConnectionLimiter
from gateway.surfaces.http.context import GatewayStats
from gateway.surfaces.kafka.server import serving_kafka
from loadtest.certificates import write_certificate
from tests.clock import FakeClock
from tests.gateway.fake_broker import fake_gateway
from tests.waiting import PATIENCE_S, until

CONNECTIONS_MAX = 4
API_VERSIONS = b"\0\0\0\x0a" + b"\0\x12" + b"\0\0" + b"\0\0\0\7" + b"\xff\xff"


@asynccontextmanager
async def serving(directory: Path) -> AsyncIterator[tuple[int, GatewayStats, ssl.SSLContext]]:
    cert, key = directory / "cert.pem", directory / "key.pem"
    write_certificate(cert, key)
    gateway = fake_gateway(FakeClock(), limits__connections_max=CONNECTIONS_MAX)[0]
    limiter = ConnectionLimiter(gateway.limits, gateway.stats)
    tls = ServerTls(TlsConfig(cert_file=cert, key_file=key)).context
    with bound_socket("127.0.0.1", 0) as bound:
        port = bound.getsockname()[1]
        async with serving_kafka(
            gateway, limiter, {"KAFKA": bound}, ssl_context=tls, backlog=BACKLOG, on_group_gone=[]
        ):
            yield port, gateway.stats, ssl.create_default_context(cafile=str(cert))


async def _ended(reader: asyncio.StreamReader) -> None:
    async with asyncio.timeout(PATIENCE_S):
        with suppress(ConnectionError):
            assert await reader.read() == b""


async def test_connections_that_begin_tls_and_stall_count_and_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(accepting, "HANDSHAKE_TIMEOUT_S", 1.0)
    async with serving(tmp_path) as (port, stats, trusting):
        stalled = [await asyncio.open_connection("127.0.0.1", port) for _ in range(CONNECTIONS_MAX)]
        await until(lambda: stats.connection_count == CONNECTIONS_MAX, pause_s=0.01)
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        await _ended(reader)
        writer.close()
        assert stats.connection_refused_count == 1
        for reader, writer in stalled:
            await _ended(reader)
            writer.close()
        await until(lambda: stats.connection_count == 0, pause_s=0.01)
        reader, writer = await asyncio.open_connection("127.0.0.1", port, ssl=trusting, server_hostname="localhost")
        writer.write(API_VERSIONS)
        async with asyncio.timeout(PATIENCE_S):
            answer = await reader.readexactly(10)
        assert answer[4:] == b"\0\0\0\7" + b"\0\0", "the correlation id, and no error"
        assert stats.connection_count == stats.kafka.connection_count == 1
        writer.close()
        await until(lambda: stats.connection_count == 0, pause_s=0.01)
    assert stats.kafka.connection_count == 0
