"""A server on a real port, and clients (the `websockets` stack) whose connection can be cut after any byte."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import replace
from typing import Any

import orjson
import websockets
from aiohttp.test_utils import TestServer

from gateway.surfaces.ws.protocol import split_binary
from store import record_batch
from tests import contract
from tests.gateway.production_server import ProductionServer
from tests.gateway.surfaces.ws.memory import memory_gateway
from tests.gateway.surfaces.ws.scripted_groups import ScriptedGroups

Frame = dict[str, Any]


class Client:
    """One connection through a relay that counts what the server sends."""

    def __init__(self, socket: websockets.ClientConnection, relay: Relay) -> None:
        self._socket = socket
        self._relay = relay

    def cut_after(self, byte_count: int) -> None:
        """Cut the connection once the server has sent so many more bytes."""
        self._relay.left = byte_count

    async def say(self, command: Frame) -> None:
        with suppress(websockets.ConnectionClosed):
            await self._socket.send(orjson.dumps(command).decode())

    async def ask(self, command: Frame) -> Frame | None:
        await self.say(command)
        return await self.answer(command["id"])

    async def answer(self, id_: int) -> Frame | None:
        """The answer with this id; None when the connection is lost before it."""
        async for frame in self:
            if frame.get("id") == id_:
                return frame
        return None

    async def __aiter__(self) -> AsyncIterator[Frame]:
        with suppress(websockets.ConnectionClosed):
            async for data in self._socket:
                if isinstance(data, bytes):
                    header, payload = split_binary(data)
                    contract.check_frame(orjson.dumps(header))
                    yield {**header, "payload": bytes(payload)}
                else:
                    contract.check_frame(data)
                    yield orjson.loads(data)


class Relay:
    """Passes bytes on, until it has passed enough."""

    def __init__(self) -> None:
        self.left: int | None = None

    async def pump(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, *, counts: bool) -> None:
        with suppress(OSError):
            while data := await reader.read(1000):
                if counts and self.left is not None:
                    data = data[: self.left]
                    self.left -= len(data)
                writer.write(data)
                await writer.drain()
                if self.left == 0:
                    break
        writer.transport.abort()


class Wire:
    """A server and the way to it."""

    def __init__(self, server: TestServer) -> None:
        self._server = server

    async def fill(self, topic: str, count: int, chance: random.Random) -> None:
        """Store records whose value is their place in the partition, in batches of any size."""
        left = count
        while left:
            size = min(chance.randint(1, 30), left)
            records = [{"value": "x" * chance.randint(0, 60)} for _ in range(size)]
            partition = chance.randint(0, 1)
            async with websockets.connect(f"{self._url}/ws/v1") as socket:
                command = {"id": 1, "op": "produce", "topic": topic, "records": records, "partition": partition}
                await socket.send(orjson.dumps(command).decode())
                assert orjson.loads(await socket.recv())["ok"]
            left -= size

    @property
    def _url(self) -> str:
        return f"ws://127.0.0.1:{self._server.port}"

    @asynccontextmanager
    async def connected(self) -> AsyncIterator[Client]:
        relay = Relay()
        pumps: list[asyncio.Task[None]] = []

        async def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            there, back = await asyncio.open_connection("127.0.0.1", self._server.port)
            pumps.append(asyncio.create_task(relay.pump(reader, back, counts=False)))
            await relay.pump(there, writer, counts=True)
            back.transport.abort()

        listener = await asyncio.start_server(accept, "127.0.0.1", 0)
        port = listener.sockets[0].getsockname()[1]
        socket = await websockets.connect(f"ws://127.0.0.1:{port}/ws/v1", max_size=None, ping_interval=None)
        try:
            yield Client(socket, relay)
        finally:
            socket.transport.abort()
            listener.close()
            await asyncio.gather(*pumps, return_exceptions=True)

    @staticmethod
    def records(frame: Frame) -> list[tuple[int, int]]:
        """(partition, offset) of what a frame gives."""
        if frame["op"] == "messages":
            assert "payload" not in frame or len(frame["payload"]) == sum(
                (message["key_len"] or 0) + (message["value_len"] or 0) for message in frame["messages"]
            )
            return [(message["partition"], message["offset"]) for message in frame["messages"]]
        offsets = [
            record.offset for batch in record_batch.split(frame["payload"]) for record in record_batch.decode(batch)
        ]
        wanted = [offset for offset in offsets if frame["offset"] <= offset < frame["next_offset"]]
        assert len(wanted) == frame["count"]
        return [(frame["partition"], offset) for offset in wanted]


@asynccontextmanager
async def wired(topics: dict[str, int]) -> AsyncIterator[Wire]:
    """A server over a memory broker with these topics, on a free port."""
    gateway, _ = memory_gateway(topics)
    gateway = replace(gateway, groups=ScriptedGroups(gateway.routes_table, gateway.consumer, gateway.clock.now_ms()))
    server = ProductionServer(gateway)
    await server.start_server()
    try:
        yield Wire(server)
    finally:
        await server.close()
