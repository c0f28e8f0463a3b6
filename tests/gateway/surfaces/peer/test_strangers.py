"""The listener for other nodes, reached by those who do not have the secret: they connect and say nothing, send half a
head, announce large bodies, and the nodes are served meanwhile.

Covers gateway.main.listener.listening_to_nodes.
"""

from __future__ import annotations

import asyncio
import socket
import time
import tracemalloc
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager, suppress

import pytest

from gateway.brokers.local import LocalBroker
from gateway.cluster.peer import HEAD_CODE_HEADER, PATH, STAMP_HEADER, PeerBroker
from gateway.cluster.peer_auth import Secret
from gateway.main import listener as listener_module
from gateway.main.listener import listening_to_nodes
from gateway.settings.limits import Limits
from gateway.surfaces.peer.server import PeerService
from store.limits import MiB
from store.types import Acks, QueueKey
from tests.clock import FakeClock
from tests.gateway.groups.coordinator.world import PlainTimer
from tests.simdisk import SimDisk
from tests.store.kit import append_of, open_store
from tests.waiting import PATIENCE_S, until

SECRET = Secret(b"sixteen bytes!!!")
HANDLES = 8 * 16
CONNECTIONS_MAX, OF_ADDRESS_MAX = 16, 4
"""With so many handles."""

IDLE_S = 0.4
HEAD = f"POST {PATH}append HTTP/1.1\r\nHost: node\r\n"

Connection = tuple[asyncio.StreamReader, asyncio.StreamWriter]


class Node:
    """A node's internal listener, and another node that uses it."""

    def __init__(self, port: int, peer: PeerBroker, queue: QueueKey, service: PeerService) -> None:
        self.port, self.peer, self.queue, self.service = port, peer, queue, service

    async def connect(self, number: int) -> Connection:
        """From an address of its own."""
        return await asyncio.open_connection("127.0.0.1", self.port, local_addr=(f"127.0.1.{number}", 0))

    async def append(self) -> None:
        """By the other node."""
        async with asyncio.timeout(PATIENCE_S):
            await self.peer.append([append_of(self.queue, [b"a"])], acks=Acks.FLUSHED)


@asynccontextmanager
async def node() -> AsyncIterator[Node]:
    clock = FakeClock()
    async with AsyncExitStack() as stack:
        store = await open_store(SimDisk(), clock=clock)
        stack.push_async_callback(store.close)
        local = LocalBroker(
            store, PlainTimer(store, clock), name="n1", on_topic=lambda _: None, on_deleted=lambda _: None
        )
        topic = await local.create_topic("orders", 1)
        service = PeerService(local, SECRET, clock, queues_of=store.queues_of)
        listener = stack.enter_context(socket.create_server(("127.0.0.1", 0)))
        listener.setblocking(False)
        port = listener.getsockname()[1]
        await stack.enter_async_context(
            listening_to_nodes(service.application(), listener, Limits(), handle_limit=HANDLES, write_timeout_s=10)
        )
        peer = await stack.enter_async_context(PeerBroker("n1", f"http://127.0.0.1:{port}", SECRET, FakeClock()))
        yield Node(port, peer, QueueKey(topic.topic_id, 0), service)


async def ended(connection: Connection) -> bytes:
    """What was said until the end."""
    heard = b""
    with suppress(ConnectionError):
        async with asyncio.timeout(PATIENCE_S):
            heard = await connection[0].read(MiB)
    connection[1].transport.abort()
    return heard


async def is_open(connection: Connection) -> bool:
    try:
        async with asyncio.timeout(0.1):
            return bool(await connection[0].read(1) and False)
    except TimeoutError:
        return True


async def test_one_address_takes_a_share_of_the_connections_and_all_have_a_bound() -> None:
    async with node() as made:
        held = [await made.connect(1) for _ in range(OF_ADDRESS_MAX + 1)]
        assert (await ended(held.pop())).startswith(b"HTTP/1.1 503 "), "one too many of its address"
        assert all([await is_open(one) for one in held])
        await made.append()
        held += [await made.connect(2 + number) for number in range(CONNECTIONS_MAX - OF_ADDRESS_MAX - 1)]
        assert all([await is_open(one) for one in held])
        late = await made.connect(99)
        assert (await ended(late)).startswith(b"HTTP/1.1 503 "), "one too many of all"
        await made.append()
        for _, writer in held:
            writer.transport.abort()


@pytest.mark.parametrize("sent", ["", HEAD, f"{HEAD}Content-Length: 100\r\nX-A: "], ids=["nothing", "head", "header"])
async def test_who_says_nothing_or_half_of_it_is_ended_and_the_nodes_are_served(
    sent: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(listener_module, "NODES_KEEPALIVE_S", IDLE_S)
    async with node() as made:
        began_s = time.monotonic()
        held = [await made.connect(number % CONNECTIONS_MAX + 1) for number in range(CONNECTIONS_MAX)]
        for _, writer in held:
            writer.write(sent.encode())
        for one in held:
            await ended(one)
        assert time.monotonic() - began_s >= IDLE_S / 2
        await made.append()


async def test_a_body_of_a_stranger_takes_no_memory_and_few_lines_of_the_log(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(listener_module, "LINGERING_S", 0.5)
    size = 8 * MiB
    stamped = f"{STAMP_HEADER}: a 1 {FakeClock().now_ms()}\r\n{HEAD_CODE_HEADER}: 00\r\n"
    heads = {
        "without a secret": f"{HEAD}Content-Length: {size}\r\n\r\n",
        "with a wrong code": f"{HEAD}Content-Length: {size}\r\n{stamped}\r\n",
        "in chunks": f"{HEAD}Transfer-Encoding: chunked\r\n\r\n{size:x}\r\n",
    }
    async with node() as made:
        await made.append()
        tracemalloc.start()
        try:
            for head in heads.values():
                reader, writer = await made.connect(1)
                writer.write(head.encode())
                with suppress(ConnectionError, TimeoutError):
                    async with asyncio.timeout(PATIENCE_S):
                        for _ in range(size // MiB):
                            writer.write(bytes(MiB))
                            await writer.drain()
                assert (await reader.read(20)).startswith(b"HTTP/1.1 401 ")
                writer.transport.abort()
                await made.append()
            _, worst_bytes = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
        assert worst_bytes < 4 * MiB
        await until(lambda: made.service.refused_count == len(heads))
        assert len([line for line in caplog.messages if "not of this cluster" in line]) == 1
