"""Sockets of a whole server in this process: real store, real coordinator, real connections (aiohttp's client)."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import orjson
from aiohttp import WSMsgType

from gateway.surfaces.ws.protocol import binary_frame, split_binary
from tests.gateway.main.test_wiring import config_of, serving
from tests.waiting import PATIENCE_S

Frame = dict[str, Any]


class Ended(Exception):
    """The connection is over."""


class Peer:
    """One socket. Frames wait in the order they came until they are asked for."""

    def __init__(self, socket: aiohttp.ClientWebSocketResponse) -> None:
        self.socket = socket
        self._waiting: list[Frame] = []
        self._next_id = 100

    async def say(self, *commands: Frame) -> None:
        for command in commands:
            await self.socket.send_str(orjson.dumps(command).decode())

    async def say_binary(self, header: Frame, payload: bytes) -> None:
        await self.socket.send_bytes(binary_frame(orjson.dumps(header), payload))

    async def ask(self, op: str, **fields: Any) -> Frame:
        """The answer to a command; it gets an id."""
        self._next_id += 1
        await self.say({"id": self._next_id, "op": op, **fields})
        return await self.next(id=self._next_id)

    async def ok(self, op: str, **fields: Any) -> Frame:
        answer = await self.ask(op, **fields)
        assert answer["ok"], answer
        return answer

    async def refused(self, op: str, **fields: Any) -> int:
        """The error code of a command that must not be done."""
        answer = await self.ask(op, **fields)
        assert answer["ok"] is False, answer
        assert answer["message"]
        assert isinstance(answer["retriable"], bool)
        code: int = answer["error_code"]
        return code

    async def subscribe(self, sub: str = "s", **fields: Any) -> Frame:
        """Of `orders` from its beginning, unless the fields say otherwise."""
        begin = "start" if "group" in fields else "from"
        wanted = {} if "pattern" in fields else {"topics": ["orders"]}
        return await self.ok("subscribe", sub=sub, **{begin: "earliest", **wanted, **fields})

    async def next(self, **wanted: Any) -> Frame:
        """The first frame with these fields; others before it keep waiting. Raises Ended."""
        for number, frame in enumerate(self._waiting):
            if wanted.items() <= frame.items():
                return self._waiting.pop(number)
        while True:
            frame = await self._receive()
            if wanted.items() <= frame.items():
                return frame
            self._waiting.append(frame)

    async def messages(self, count: int, sub: str = "s") -> list[Frame]:
        """The next messages of a subscription, at least so many."""
        found: list[Frame] = []
        while len(found) < count:
            found += (await self.next(op="messages", sub=sub))["messages"]
        return found

    async def quiet(self, seconds: float = 0.1) -> None:
        """Nothing waits, and nothing comes for a while."""
        assert not self._waiting, self._waiting
        try:
            frame = await asyncio.wait_for(self._receive(), seconds)
        except TimeoutError:
            return
        raise AssertionError(frame)

    async def close_code(self) -> int | None:
        """The code of the server's close."""
        try:
            while True:
                self._waiting.append(await self._receive())
        except Ended:
            return self.socket.close_code

    def cut(self) -> None:
        """Lose the connection without a word."""
        assert self.socket._response.connection is not None
        assert self.socket._response.connection.transport is not None
        self.socket._response.connection.transport.abort()

    async def _receive(self) -> Frame:
        message = await self.socket.receive(PATIENCE_S)
        if message.type is WSMsgType.TEXT:
            frame: Frame = orjson.loads(message.data)
            return frame
        if message.type is WSMsgType.BINARY:
            header, payload = split_binary(message.data)
            return {**header, "payload": bytes(payload)}
        raise Ended


class Whole:
    """A running server."""

    def __init__(self, session: aiohttp.ClientSession) -> None:
        self.session = session

    @asynccontextmanager
    async def peer(self, path: str = "/ws/v1", *, hello: Frame | None = None) -> AsyncIterator[Peer]:
        """One socket; it is closed as a client does at the end."""
        async with self.session.ws_connect(path, max_msg_size=0) as socket:
            peer = Peer(socket)
            if hello is not None:
                await peer.ok("hello", **hello)
            yield peer

    async def call(self, method: str, path: str, body: Any = None) -> Any:
        async with self.session.request(method, f"/mq/v1/{path}", json=body) as response:
            content = await response.read()
            assert response.status < 300, content
            return orjson.loads(content) if content else None

    async def topic(self, name: str = "orders", partitions: int = 1) -> None:
        await self.call("PUT", f"topics/{name}", {"partitions": partitions})

    async def fill(self, count: int, topic: str = "orders", partition: int = 0, first: int = 0, **fields: Any) -> None:
        """Store records whose values count from `first`."""
        records = [{"value": number, **fields} for number in range(first, first + count)]
        async with self.session.post(f"/topics/{topic}/partitions/{partition}", json={"records": records}) as response:
            assert response.status == 200, await response.text()

    async def committed(self, group: str, partition: int = 0) -> int | None:
        lags = await self.call("GET", f"groups/{group}/lag")
        for lag in lags["partitions"]:
            if lag["partition"] == partition:
                offset: int | None = lag["committed"]
                return offset
        return None


@asynccontextmanager
async def whole(root: Path, *, partitions: int = 1, **settings: object) -> AsyncIterator[Whole]:
    """A server with the topic `orders`."""
    async with serving(config_of(root, **settings)) as session:
        server = Whole(session)
        await server.topic("orders", partitions)
        yield server
