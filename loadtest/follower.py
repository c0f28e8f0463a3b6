"""A WebSocket consumer: follows topics from their beginning and returns its credit as it goes.

    C {"id":1,"op":"subscribe","sub":"demo","topics":[...],"mode":"reader","from":"earliest","credit":8000,...}
    S {"op":"messages","sub":"demo","messages":[{"topic","partition","offset","key","value",...}, ...],"credit":7744}
    C {"op":"permit","sub":"demo","messages":256}

The server sends no more than the credit allows, so a consumer that falls behind is never flooded.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from typing import Protocol, TypedDict

import aiohttp
import orjson

CREDIT = 8_000
SUB = "demo"


class Message(TypedDict):
    """What the demo uses of a message. Times are epoch ms."""

    topic: str
    value: dict[str, int]
    store_timestamp: int


class DelayedMessage(Message):
    """A message that was delivered when it fell due."""

    deliver_at: int


class FollowFailed(Exception):
    """The server ended the subscription or the socket."""


class OnMessages(Protocol):
    """Takes the messages of one frame, and when it arrived (epoch ms)."""

    def __call__(self, messages: list[DelayedMessage], arrived_ms: int, /) -> None: ...


class Follower:
    """Hands every message to a function; see `following`."""

    def __init__(self, socket: aiohttp.ClientWebSocketResponse, on_messages: OnMessages) -> None:
        self._socket = socket
        self._on_messages = on_messages
        self._arrived = asyncio.Event()

    async def subscribe(self, topics: Sequence[str]) -> None:
        """Ask for the topics from their beginning."""
        await self._send(
            {
                "id": 1,
                "op": "subscribe",
                "sub": SUB,
                "topics": list(topics),
                "mode": "reader",
                "from": "earliest",
                "credit": CREDIT,
                "auto_credit": False,
            }
        )
        answer = orjson.loads(await self._socket.receive_str())
        if not answer["ok"]:
            raise FollowFailed(answer["message"])

    async def run(self) -> None:
        """Take messages until cancelled. Raises FollowFailed when the server sends no more."""
        async for frame in self._socket:
            arrived_ms = time.time_ns() // 1_000_000
            push = orjson.loads(frame.data)
            if push["op"] == "messages":
                self._on_messages(push["messages"], arrived_ms)
                self._arrived.set()
                await self._send({"op": "permit", "sub": SUB, "messages": len(push["messages"])})
            elif push["op"] in ("error", "goaway"):
                raise FollowFailed(f"the server ended the subscription: {push}")
        raise FollowFailed(f"the server closed the socket with code {self._socket.close_code}")

    async def until(self, done: Callable[[], bool], *, stall_timeout_s: float) -> None:
        """Wait until `done`, or until nothing has arrived for so long: the caller then sees what is missing."""
        with suppress(TimeoutError):
            while not done():
                self._arrived.clear()
                await asyncio.wait_for(self._arrived.wait(), stall_timeout_s)

    async def _send(self, command: dict[str, object]) -> None:
        await self._socket.send_str(orjson.dumps(command).decode())


@asynccontextmanager
async def following(
    session: aiohttp.ClientSession, url: str, topics: Sequence[str], on_messages: OnMessages
) -> AsyncIterator[Follower]:
    """Follow topics while the block runs. Raises an ExceptionGroup of FollowFailed when the server ends it."""
    async with session.ws_connect(f"{url}/ws/v1", max_msg_size=0) as socket:
        follower = Follower(socket, on_messages)
        await follower.subscribe(topics)
        async with asyncio.TaskGroup() as tasks:
            running = tasks.create_task(follower.run())
            yield follower
            running.cancel()
