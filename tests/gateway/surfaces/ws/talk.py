"""A socket's conversation without a socket: the real producer and consumer over a broker in memory."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

import orjson

from gateway.auth.access import OPEN, Access
from gateway.surfaces.http.context import Gateway
from gateway.surfaces.ws.conversation import Conversation
from gateway.surfaces.ws.outbox import Outbox
from gateway.surfaces.ws.protocol import CloseCode, split_binary
from gateway.surfaces.ws.rights import Rights
from gateway.surfaces.ws.session import Session
from gateway.surfaces.ws.sessions import Sessions
from tests import contract
from tests.gateway.fake_broker import FakeBroker
from tests.gateway.surfaces.ws.memory import memory_gateway
from tests.gateway.surfaces.ws.scripted_groups import ScriptedGroups
from tests.waiting import PATIENCE_S, until

Frame = dict[str, Any]


class Server:
    """One gateway with its sessions and groups; sockets come and go."""

    def __init__(self, topics: dict[str, int], **options: Any) -> None:
        self.gateway, self.broker = memory_gateway(topics, **options)
        self.routes = self.gateway.routes_table
        self.groups = ScriptedGroups(self.routes, self.gateway.consumer, self.gateway.clock.now_ms())
        self.gateway = replace(self.gateway, groups=self.groups)
        self.sessions = Sessions(self.gateway)

    @asynccontextmanager
    async def talk(self, access: Access = OPEN) -> AsyncIterator[Talk]:
        """One connection; leaving the block cuts it."""
        started: list[asyncio.Task[Any]] = []
        async with asyncio.TaskGroup() as tasks:

            def start(work: Any) -> asyncio.Task[Any]:
                started.append(tasks.create_task(work))
                return started[-1]

            talk = Talk(self, start, access)
            yield talk
            talk.outbox.close()
            for task in started:
                task.cancel()
        await talk.conversation.end(talk.closed_with, said_goodbye=talk.says_goodbye)


class Talk:
    """One connection and what it says, frame by frame."""

    def __init__(self, server: Server, start: Any, access: Access) -> None:
        self.server = server
        self.gateway: Gateway = server.gateway
        self.broker: FakeBroker = server.broker
        self.groups = server.groups
        self.said: asyncio.Queue[Frame] = asyncio.Queue()
        self.closed_with: CloseCode | None = None
        self.says_goodbye = False
        self.takes: asyncio.Event | None = None  # while set and not is_set(), the transport takes nothing
        self.outbox = Outbox(self._write, bytes_max=1 << 20, write_at_once=self._write_at_once, start=start)
        self.rights = Rights(access, self.gateway.clock, warn=lambda in_ms: None, close=self._close)
        self.conversation = Conversation(
            self.gateway,
            server.sessions,
            self.outbox,
            start,
            rights=self.rights,
            address="192.0.2.1",
            close=self._close,
            frame_bytes_max=1 << 24,
        )
        self._messages: list[Frame] = []
        self.frames: list[Frame] = []
        """Pushes that came before an `answer`, in order."""

    @property
    def session(self) -> Session:
        return self.conversation.session

    def _close(self, code: CloseCode) -> None:
        self.closed_with = code

    def _write_at_once(self, frame: bytes, is_binary: bool) -> bool:
        if self.takes is None:
            self._take(frame, is_binary)
        return self.takes is None

    async def _write(self, frame: bytes, is_binary: bool) -> None:
        if self.takes is not None:
            await self.takes.wait()
        self._take(frame, is_binary)

    def _take(self, frame: bytes, is_binary: bool) -> None:
        if is_binary:
            header, payload = split_binary(frame)
            contract.check_frame(orjson.dumps(header))
            self.said.put_nowait({**header, "payload": bytes(payload)})
        else:
            contract.check_frame(frame)
            self.said.put_nowait(orjson.loads(frame))

    async def say(self, *commands: Frame) -> None:
        for command in commands:
            await self.conversation.take(orjson.dumps(command).decode())

    async def hear(self) -> Frame:
        async with asyncio.timeout(PATIENCE_S):
            return await self.said.get()

    async def ask(self, command: Frame) -> Frame:
        await self.say(command)
        return await self.hear()

    async def answer(self, command: Frame) -> Frame:
        """The answer to a command with id, whatever is pushed before it."""
        await self.say(command)
        while True:
            frame = await self.hear()
            if frame.get("id") == command["id"]:
                return frame
            self.frames.append(frame)
            if frame.get("op") == "messages":
                self._messages += frame["messages"]

    async def heard_id(self, id_: int) -> Frame:
        """The next answer with this id, whatever is pushed before it."""
        while True:
            frame = await self.hear()
            if frame.get("id") == id_:
                return frame

    async def messages(self, count: int) -> list[Frame]:
        """The next `count` messages, from as many frames as it takes; other pushes are not expected."""
        while len(self._messages) < count:
            frame = await self.hear()
            assert frame["op"] == "messages", frame
            self._messages += frame["messages"]
        taken, self._messages = self._messages[:count], self._messages[count:]
        return taken

    async def heard(self, op: str) -> Frame:
        """The next push of this kind; messages before it are kept for `messages`."""
        while True:
            frame = await self.hear()
            if frame.get("op") == op:
                return frame
            assert frame.get("op") in ("messages", "caught_up"), frame
            self._messages += frame.get("messages", [])

    async def quiet(self) -> None:
        """Nothing more is said, although everything that can run has run."""
        for _ in range(50):
            await asyncio.sleep(0)
        assert self.said.empty(), self.said.get_nowait()
        assert not self._messages

    async def fill(self, topic: str, count: int, *, per_batch: int = 10, partition: int = 0, first: int = 0) -> None:
        for at in range(first, first + count, per_batch):
            records = [{"value": n} for n in range(at, min(at + per_batch, first + count))]
            await self.say({"op": "produce", "topic": topic, "partition": partition, "records": records, "ack": False})
        await until(lambda: not self.conversation.in_flight)


@asynccontextmanager
async def talking(topics: dict[str, int], **options: Any) -> AsyncIterator[Talk]:
    """A server with one connection."""
    server = Server(topics, **options)
    try:
        async with server.talk() as talk:
            yield talk
    finally:
        await server.sessions.close()


def subscribe(sub: str = "s", **fields: Any) -> Frame:
    start = "start" if "group" in fields else "from"
    topics = {} if "pattern" in fields else {"topics": ["orders"]}
    return {"id": 1, "op": "subscribe", "sub": sub, **topics, start: "earliest", **fields}
