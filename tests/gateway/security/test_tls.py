"""TLS from outside: what is no handshake, or ends in the middle of one, leaves nothing; nobody renegotiates.

Covers gateway.surfaces.http.connection and gateway.main.tls.
"""

from __future__ import annotations

import asyncio
import shutil
import ssl
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path

import aiohttp
import pytest

from gateway.main.tls import ServerTls
from gateway.settings.tls import TlsConfig
from gateway.surfaces.http.context import Gateway, GatewayStats
from loadtest.certificates import write_certificate
from tests.clock import FakeClock
from tests.gateway.fake_broker import fake_gateway
from tests.gateway.security.kit import served
from tests.waiting import PATIENCE_S, until

HEALTH = b"GET /healthz HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"
CONNECTIONS_MAX = 8


@dataclass
class Served:
    """A server that speaks TLS."""

    port: int
    stats: GatewayStats
    trusting: ssl.SSLContext

    async def health(self) -> bytes:
        """One request, sent in one go behind the handshake."""
        reader, writer = await asyncio.open_connection(
            "127.0.0.1", self.port, ssl=self.trusting, server_hostname="localhost"
        )
        writer.write(HEALTH)
        answer = await reader.read()
        writer.close()
        return answer


@pytest.fixture
async def server(tmp_path: Path) -> AsyncIterator[Served]:
    cert, key = tmp_path / "cert.pem", tmp_path / "key.pem"
    write_certificate(cert, key)
    gateway: Gateway = fake_gateway(FakeClock(), limits__connections_max=CONNECTIONS_MAX)[0]
    tls = ServerTls(TlsConfig(cert_file=cert, key_file=key))
    async with served(gateway, tls=tls) as port:
        yield Served(port, gateway.stats, ssl.create_default_context(cafile=str(cert)))


HALF_OF_A_HELLO = b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(100)


async def _ended(reader: asyncio.StreamReader) -> bool:
    try:
        return await reader.read() is not None
    except ConnectionError:
        return True


@pytest.mark.parametrize("sent", [HEALTH, b"\x00" * 1000, b"\x15\x03\x03\x00\x02\x02\x28"])
async def test_what_is_no_handshake_ends_and_leaves_nothing(server: Served, sent: bytes) -> None:
    for _ in range(3 * CONNECTIONS_MAX):
        reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
        writer.write(sent)
        async with asyncio.timeout(PATIENCE_S):
            assert await _ended(reader)
        writer.close()
        await until(lambda: server.stats.connection_count == 0, pause_s=0.01)
    assert (await server.health()).startswith(b"HTTP/1.1 200")


async def test_who_goes_in_the_middle_of_a_handshake_is_forgotten(server: Served) -> None:
    for _ in range(3 * CONNECTIONS_MAX):
        _, writer = await asyncio.open_connection("127.0.0.1", server.port)
        writer.write(HALF_OF_A_HELLO)
        writer.transport.abort()
        await until(lambda: server.stats.connection_count == 0, pause_s=0.01)
    assert server.stats.connection_refused_count == 0


@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3])
async def test_requests_right_behind_the_handshake_are_answered(server: Served, version: ssl.TLSVersion) -> None:
    server.trusting.minimum_version = server.trusting.maximum_version = version
    for _ in range(20):
        assert (await server.health()).startswith(b"HTTP/1.1 200")
    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(ssl=server.trusting)) as client:
        for _ in range(5):
            async with client.get(f"https://localhost:{server.port}/mq/v1/info") as answer:
                assert answer.status == 200
                assert server.stats.connection_count == 1
    await until(lambda: server.stats.connection_count == 0, pause_s=0.01)


@pytest.mark.skipif(shutil.which("openssl") is None, reason="no openssl on this machine, which alone can ask for it")
async def test_nobody_renegotiates(server: Served) -> None:
    """In TLS 1.2 a client could ask for one handshake after the other on one connection, each dear for the server."""
    process = await asyncio.create_subprocess_exec(
        "openssl", "s_client", "-connect", f"127.0.0.1:{server.port}", "-tls1_2",
        stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT,
    )  # fmt: skip
    said, _ = await asyncio.wait_for(process.communicate(b"R\n"), PATIENCE_S)
    assert b"RENEGOTIATING" in said
    assert b"no renegotiation" in said
