"""TLS from outside: connections that begin it and stall are counted and cut off, nobody renegotiates.

Covers gateway.surfaces.http.accepting and gateway.main.tls.
"""

from __future__ import annotations

import asyncio
import shutil
import socket
import ssl
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from unittest.mock import Mock

import aiohttp
import pytest
import uvloop

from gateway.main.garbage import collector_off
from gateway.main.loop_watch import Held, LoopWatch
from gateway.main.tls import ServerTls, TlsError
from gateway.settings.tls import TlsConfig
from gateway.surfaces.http import accepting
from gateway.surfaces.http.context import Gateway, GatewayStats
from loadtest.certificates import write_certificate
from loadtest.slowness import slowness
from tests.clock import FakeClock
from tests.gateway.fake_broker import fake_gateway
from tests.gateway.security.kit import served
from tests.waiting import PATIENCE_S, until

HEALTH = b"GET /healthz HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"
CONNECTIONS_MAX = 8


HELLOS = 300
TURN_S_MAX = 0.05


LOOPS = [asyncio.new_event_loop, uvloop.new_event_loop]
"""A server runs on uvloop, the other tests do not; TLS is each one's own."""


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


@asynccontextmanager
async def serving(directory: Path, connections_max: int) -> AsyncIterator[Served]:
    cert, key = directory / "cert.pem", directory / "key.pem"
    write_certificate(cert, key)
    gateway: Gateway = fake_gateway(FakeClock(), limits__connections_max=connections_max)[0]
    tls = ServerTls(TlsConfig(cert_file=cert, key_file=key))
    async with served(gateway, tls=tls) as port:
        yield Served(port, gateway.stats, ssl.create_default_context(cafile=str(cert)))


@pytest.fixture
async def server(tmp_path: Path) -> AsyncIterator[Served]:
    async with serving(tmp_path, CONNECTIONS_MAX) as one:
        yield one


FIRST = {
    "nothing": b"",
    "one byte": b"\x16",
    "half of a hello": b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(100),
}
"""What somebody may begin with who does not mean it."""


@pytest.mark.parametrize("first", FIRST.values(), ids=FIRST)
async def test_connections_that_begin_tls_and_stall_count_and_end(
    server: Served, monkeypatch: pytest.MonkeyPatch, first: bytes
) -> None:
    monkeypatch.setattr(accepting, "HANDSHAKE_TIMEOUT_S", 3.0)
    stalled = [await asyncio.open_connection("127.0.0.1", server.port) for _ in range(CONNECTIONS_MAX)]
    for _, writer in stalled:
        writer.write(first)
    await until(lambda: server.stats.connection_count == CONNECTIONS_MAX, pause_s=0.01)
    # One more is closed before anything of it is read.
    reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
    async with asyncio.timeout(2):
        assert await _ended(reader)
    writer.close()
    assert server.stats.connection_refused_count == 1
    # Their time is over soon, and there is room again.
    async with asyncio.timeout(PATIENCE_S):
        for reader, _ in stalled:
            assert await _ended(reader)
    await until(lambda: server.stats.connection_count == 0, pause_s=0.01)
    assert (await server.health()).startswith(b"HTTP/1.1 200")
    for _, writer in stalled:
        writer.close()


async def _ended(reader: asyncio.StreamReader) -> bool:
    try:
        return await reader.read() is not None
    except ConnectionError:
        return True


async def test_a_handshake_that_trickles_has_no_more_time(server: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(accepting, "HANDSHAKE_TIMEOUT_S", 0.5)
    reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
    ended = asyncio.ensure_future(_ended(reader))
    async with asyncio.timeout(5):
        for byte in FIRST["half of a hello"]:
            writer.write(bytes((byte,)))
            if (await asyncio.wait((ended,), timeout=0.05))[0]:
                break
        assert await ended
    writer.close()
    await until(lambda: server.stats.connection_count == 0, pause_s=0.01)


@pytest.mark.parametrize("new_loop", LOOPS)
def test_first_words_that_come_all_at_once_are_answered_a_few_a_turn(
    tmp_path: Path, new_loop: Callable[[], asyncio.AbstractEventLoop]
) -> None:
    async def run() -> list[Held]:
        loop = asyncio.get_running_loop()
        async with serving(tmp_path, 2 * HELLOS) as server:
            hello = hello_of(server.trusting)
            strangers = []
            for _ in range(HELLOS):
                strangers.append(one := socket.socket())
                one.setblocking(False)
                await loop.sock_connect(one, ("127.0.0.1", server.port))
            await until(lambda: server.stats.connection_count == HELLOS, pause_s=0.01)
            turns: list[Held] = []
            with (
                collector_off(),  # as a server's never looks at everything here: of all tests that is 180 ms
                LoopWatch(held_s=TURN_S_MAX * slowness(), on_work=turns.append).running(),
            ):
                await asyncio.sleep(0.05)
                for one in strangers:
                    one.send(hello)
                await asyncio.sleep(0)
                for one in strangers:
                    async with asyncio.timeout(PATIENCE_S):
                        assert await loop.sock_recv(one, 1) == b"\x16"
                    one.close()
            await until(lambda: server.stats.connection_count == 0, pause_s=0.01)
            return turns

    with asyncio.Runner(loop_factory=new_loop) as runner:
        assert runner.run(run()) == []


@pytest.mark.parametrize("new_loop", LOOPS)
def test_nobody_is_lost_who_comes_with_many(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, new_loop: Callable[[], asyncio.AbstractEventLoop]
) -> None:
    monkeypatch.setattr(accepting, "HANDSHAKE_TIMEOUT_S", PATIENCE_S)  # 300 handshakes on a slow machine

    async def run() -> None:
        async with serving(tmp_path, 2 * HELLOS) as server:
            answers = await asyncio.gather(*(server.health() for _ in range(HELLOS)))
            assert {answer[:12] for answer in answers} == {b"HTTP/1.1 200"}
            await until(lambda: server.stats.connection_count == 0, pause_s=0.01)

    with asyncio.Runner(loop_factory=new_loop) as runner:
        runner.run(run())


def hello_of(client: ssl.SSLContext) -> bytes:
    outgoing = ssl.MemoryBIO()
    with pytest.raises(ssl.SSLWantReadError):
        client.wrap_bio(ssl.MemoryBIO(), outgoing, server_hostname="localhost").do_handshake()
    return outgoing.read()


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
        writer.write(FIRST["half of a hello"])
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


def test_a_certificate_that_could_not_be_read_is_looked_at_again_though_it_is_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its owner has come later: no signature shows that. Why it is not in use is said once."""
    cert, key = tmp_path / "cert.pem", tmp_path / "key.pem"
    write_certificate(cert, key)
    tls = ServerTls(TlsConfig(cert_file=cert, key_file=key))
    tls.trusting()
    assert tls.reload() is False
    write_certificate(cert, key)
    with monkeypatch.context() as patch:
        patch.setattr("gateway.main.tls.read_file", Mock(side_effect=PermissionError(13, "Permission denied")))
        assert isinstance(tls.reload(), TlsError)
        assert tls.reload() is False
    assert tls.reload() is True
    assert tls.reload() is False
    write_certificate(cert, key)
    with monkeypatch.context() as patch:
        patch.setattr(ssl.SSLContext, "load_verify_locations", Mock(side_effect=ssl.SSLError("no start line")))
        assert isinstance(tls.reload(), TlsError)
    assert tls.reload() is True
