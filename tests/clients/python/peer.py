"""A server that does what a test says, in place of the network, and a clock that stands still."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from typing import Any

import msgspec
from mq.client import Client
from mq.errors import ConnectionLost
from mq.frames import write_binary
from mq.testing.server import FakeClock
from mq.transport import CUT, Response

Fields = dict[str, Any]
TURNS = 30


async def settle(turns: int = TURNS) -> None:
    """Let everything happen that can."""
    for _ in range(turns):
        await asyncio.sleep(0)


class Link:
    """One connection, from the server's side."""

    def __init__(self) -> None:
        self.commands: list[Fields] = []
        """What the client sent and the test has not taken."""
        self.payloads: dict[int, bytes] = {}
        self.frame_count = 0
        self.closed_with: int | None = None
        self._frames: asyncio.Queue[tuple[bytes, bool] | tuple[int, str]] = asyncio.Queue()

    async def send(self, data: bytes, is_binary: bool) -> None:
        if self.closed_with is not None:
            raise ConnectionLost("closed")
        self.frame_count += 1
        payload = b""
        if is_binary:
            end = 4 + int.from_bytes(data[:4], "big")
            data, payload = data[4:end], data[end:]
        command = msgspec.json.decode(data)
        self.commands.append(command)
        if payload:
            self.payloads[command["id"]] = payload

    async def run(self, text: Callable[[bytes], object], binary: Callable[[bytes], object]) -> tuple[int, str]:
        while True:
            frame = await self._frames.get()
            match frame:
                case (bytes() as data, bool() as is_binary):
                    (binary if is_binary else text)(data)
                case (int() as code, str() as reason):
                    return code, reason

    async def close(self, code: int) -> None:
        self.closed_with = code

    async def take(self, op: str) -> Fields:
        """The next command of this kind; those before it stay."""
        for _ in range(TURNS):
            for command in self.commands:
                if command["op"] == op:
                    self.commands.remove(command)
                    return command
            await asyncio.sleep(0)
        raise AssertionError(f"no {op} in {self.commands}")

    def has(self, op: str) -> bool:
        return any(command["op"] == op for command in self.commands)

    def push(self, **fields: Any) -> None:
        self._frames.put_nowait((msgspec.json.encode(fields), False))

    def push_bytes(self, data: bytes, is_binary: bool = True) -> None:
        self._frames.put_nowait((data, is_binary))

    def ok(self, command: Fields, **fields: Any) -> None:
        self.push(id=command["id"], ok=True, **fields)

    def no(self, command: Fields, code: int, message: str = "no", **fields: Any) -> None:
        self.push(id=command["id"], ok=False, error_code=code, message=message, **fields)

    def stored(self, command: Fields, first: int = 0, partition: int = 0) -> None:
        """Answer a produce."""
        count = len(command["records"])
        self.ok(command, acks="flushed", offsets=[{"partition": partition, "offset": first + n} for n in range(count)])

    def messages(self, sub: str, seq: int, offsets: list[int] | range, partition: int = 0, **about: Any) -> None:
        """Messages whose values are their offsets."""
        values = [str(offset).encode() for offset in offsets]
        listed = [
            {"topic": "t", "partition": partition, "offset": offset, "timestamp": 1, "store_timestamp": 1,
             "key_len": None, "value_len": len(value), **_each(about, offset)}
            for offset, value in zip(offsets, values, strict=True)
        ]  # fmt: skip
        header = {"op": "messages", "sub": sub, "seq": seq, "messages": listed, "bytes": 1, "credit": 1}
        self.push_bytes(write_binary(msgspec.json.encode(header), values))

    def end(self, code: int = CUT, reason: str = "") -> None:
        self._frames.put_nowait((code, reason))


def _each(about: Fields, offset: int) -> Fields:
    return {name: value(offset) if callable(value) else value for name, value in about.items()}


class Peer:
    """The transport."""

    def __init__(self) -> None:
        self.clock = FakeClock()
        self.links: list[Link] = []
        self.tokens: list[str | None] = []
        self.refusals: list[Exception] = []
        """What the next dials raise."""
        self.requests: list[tuple[str, str, dict[str, str], bytes | None]] = []
        self.responses: list[Response] = []

    @property
    def link(self) -> Link:
        return self.links[-1]

    async def open_socket(self, token: str | None) -> Link:
        self.tokens.append(token)
        if self.refusals:
            raise self.refusals.pop(0)
        self.links.append(Link())
        return self.link

    async def request(
        self, method: str, path: str, query: Mapping[str, str], body: bytes | None, token: str | None
    ) -> Response:
        self.requests.append((method, path, dict(query), body))
        return self.responses.pop(0)

    async def close(self) -> None:
        pass

    async def welcome(self, **fields: Any) -> Fields:
        """Answer the hello of the newest connection."""
        hello = await self.link.take("hello")
        self.link.ok(hello, **{"session": f"s{len(self.links)}", "resumed": False, "ping_ms": 10**12, **fields})
        await settle(3)
        return hello

    async def again(self, **fields: Any) -> Fields:
        """Let the time to the next connection pass, and answer its hello."""
        links = len(self.links)
        for _ in range(100):
            await settle(3)
            if len(self.links) > links:
                return await self.welcome(**fields)
            await self.pass_time(1)
        raise AssertionError("no new connection")

    async def pass_time(self, seconds: float) -> None:
        await settle(10)
        until_ms = self.clock.exact_ms + seconds * 1000
        while self.clock.run_next(until_ms):
            await settle(3)
        self.clock.exact_ms = until_ms
        await settle(3)


@asynccontextmanager
async def connected(peer: Peer, welcome: Fields | None = None, **options: Any) -> AsyncIterator[Client]:
    """A client of the peer, open."""
    client = Client(lambda: peer, clock=lambda: peer.clock, **options)
    opening = asyncio.ensure_future(client._open())
    await settle(3)
    await peer.welcome(**(welcome or {}))
    await opening
    try:
        yield client
    finally:
        closing = asyncio.ensure_future(client.close())
        for _ in range(100):
            await settle(3)
            if closing.done():
                break
            for link in peer.links[-1:]:  # whatever waits for an answer at the end gets none
                link.end(4999)
        await closing


async def subscribed(peer: Peer, partitions: Fields | None = None, cursor: str = "t:0=0", **fields: Any) -> Fields:
    """Answer the next subscribe."""
    command = await peer.link.take("subscribe")
    shown = {"partitions": partitions or {"t": [0]}, "cursor": cursor, "epochs": {"t": "7"}, "credit": 1}
    peer.link.ok(command, sub=command["sub"], mode=command["mode"], **{**shown, **fields})
    await settle(3)
    return command
