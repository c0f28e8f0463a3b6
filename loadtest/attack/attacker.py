"""The attacker's hands: raw connections and HTTP to one victim, from many addresses of this machine.

It runs in a process of its own, so that what it costs to attack does not slow down those who watch, and so that it can
be killed when it has won or its time is over. Everything goes to 127.0.0.0/8.
"""

from __future__ import annotations

import asyncio
import resource
import socket
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from typing import NamedTuple

import aiohttp
import orjson

from loadtest.attack.victim import Target

ADDRESSES = 100
"""127.0.1.1 to 127.0.1.100: no bound on one address spares the others."""

TIMEOUT_S = 60.0
PROBLEMS_MAX = 5
CLOSED, OPEN, NO_ANSWER = "connection closed", "left open", "no answer"
NOT_TRIED = "not tried in time"
JSON = {"Content-Type": "application/json"}

Connection = tuple[asyncio.StreamReader, asyncio.StreamWriter]


class Answer(NamedTuple):
    """Status 0: there was none."""

    status: int
    body: bytes


class Heard(NamedTuple):
    """All that was said on a connection. `is_over`: the server ended it, and not our patience."""

    said: bytes
    is_over: bool = True

    @property
    def status(self) -> str | None:
        """That it begins with."""
        return status_of(self.said)

    @property
    def word(self) -> str:
        """For counting."""
        return self.status or (CLOSED if self.is_over else NO_ANSWER)


class Attacker:
    """What attacks are written with. It notes what it sees; `wrong` is what no server may do."""

    def __init__(self, target: Target, session: aiohttp.ClientSession) -> None:
        self.target = target
        self.session = session
        self.seen: Counter[str] = Counter()
        self.problems: list[str] = []
        self._tls = target.trusting()

    def saw(self, what: str | int, count: int = 1) -> None:
        """Count an answer: a status, or a word."""
        self.seen[str(what)] += count

    def wrong(self, what: str) -> None:
        """Note what must not have been."""
        if len(self.problems) < PROBLEMS_MAX:
            self.problems.append(what)

    # ---------------------------------------------------------------------------------------------- connections

    async def connect(
        self,
        number: int = 0,
        *,
        receive_bytes: int | None = None,
        is_plain: bool = False,
        port: int | None = None,
    ) -> Connection | None:
        """A connection from one of many addresses; None when it is refused, which is counted.

        `receive_bytes`: of the buffer for what comes in. `is_plain`: no TLS, whatever the victim speaks.
        `port`: another one than that of HTTP.
        """
        made = socket.socket()
        made.setblocking(False)
        try:
            if receive_bytes is not None:
                made.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_bytes)
            made.bind((f"127.0.1.{1 + number % ADDRESSES}", 0))
            async with asyncio.timeout(TIMEOUT_S):
                await asyncio.get_running_loop().sock_connect(made, (self.target.host, port or self.target.port))
                tls = None if is_plain else self._tls
                limit = receive_bytes or 2**16
                return await asyncio.open_connection(
                    sock=made, ssl=tls, server_hostname=None if tls is None else "localhost", limit=limit
                )
        except (OSError, TimeoutError) as error:
            made.close()
            self.saw(CLOSED if isinstance(error, ConnectionError) else type(error).__name__)
            return None

    async def talk(self, sent: bytes, *, number: int = 0, timeout_s: float = 10.0) -> Heard:
        """What is said to these bytes until the connection ends."""
        connection = await self.connect(number)
        if connection is None:
            return Heard(b"")
        reader, writer = connection
        heard = bytearray()
        try:
            async with asyncio.timeout(timeout_s):
                writer.write(sent)
                while chunk := await reader.read(2**16):
                    heard += chunk
        except TimeoutError:
            return Heard(bytes(heard), is_over=False)
        except ConnectionError:
            pass
        finally:
            writer.transport.abort()
        return Heard(bytes(heard))

    async def trickle(
        self, number: int, first: bytes, *, seconds: float, more: bytes, is_plain: bool = False
    ) -> float | None:
        """Send a beginning, then a little each second, until the server ends it; after how many seconds it did."""
        connection = await self.connect(number, is_plain=is_plain)
        if connection is None:
            return 0.0
        reader, writer = connection
        began_s = time.monotonic()
        try:
            writer.write(first)
            while (passed_s := time.monotonic() - began_s) < seconds:
                with suppress(TimeoutError):
                    async with asyncio.timeout(1.0):
                        heard = await reader.read(2**12)
                        self.saw(status_of(heard) or CLOSED)
                        return passed_s
                writer.write(more)
        except ConnectionError:
            self.saw(CLOSED)
            return time.monotonic() - began_s
        finally:
            writer.transport.abort()
        self.saw(OPEN)
        return None

    # ----------------------------------------------------------------------------------------------------- HTTP

    def head(
        self, method: str, path: str, headers: Mapping[str, str] | None = None, *, is_stranger: bool = False
    ) -> bytes:
        """The head of a raw request, with the administrator's token where there is one."""
        known = {} if is_stranger else self.target.credentials()
        lines = {"Host": f"localhost:{self.target.port}", **known, **(headers or {})}
        text = "".join(f"{name}: {value}\r\n" for name, value in lines.items())
        return f"{method} {path} HTTP/1.1\r\n{text}\r\n".encode()

    async def ask(
        self,
        method: str,
        path: str,
        *,
        body: bytes | None = None,
        headers: Mapping[str, str] | None = None,
        timeout_s: float = TIMEOUT_S,
    ) -> Answer:
        """One request, whose status is counted."""
        answer = Answer(0, b"")
        with suppress(aiohttp.ClientError, TimeoutError, OSError):
            timeout = aiohttp.ClientTimeout(total=timeout_s)
            async with self.session.request(method, path, data=body, headers=headers, timeout=timeout) as response:
                answer = Answer(response.status, await response.read())
        self.saw(answer.status or NO_ANSWER)
        if answer.status >= 500 and answer.status not in (503, 507):
            self.wrong(f"{method} {path}: {answer.status} {answer.body[:100]!r}")
        return answer

    async def make_topic(self, name: str, partitions: int = 1) -> None:
        """Raises SetupFailed."""
        body = orjson.dumps({"partitions": partitions})
        async with self.session.put(f"/mq/v1/topics/{name}", data=body, headers=JSON) as response:
            if response.status >= 300:
                raise SetupFailed(f"topic {name}: {response.status} {await response.text()}")

    async def delete_topic(self, name: str) -> None:
        """Whether it is there or not. Raises SetupFailed."""
        async with self.session.delete(f"/mq/v1/topics/{name}") as response:
            if response.status >= 300 and response.status != 404:
                raise SetupFailed(f"topic {name}: {response.status} {await response.text()}")

    async def each(self, count: int, one: Callable[[int], Awaitable[object]], *, at_a_time: int) -> None:
        """`one(number)` for every number below `count`."""
        numbers = iter(range(count))

        async def some() -> None:
            for number in numbers:
                await one(number)

        async with asyncio.TaskGroup() as tasks:
            for _ in range(min(at_a_time, count)):
                tasks.create_task(some())


class SetupFailed(Exception):
    """What the attack needs could not be made."""


def status_of(heard: bytes) -> str | None:
    """The status that an answer begins with."""
    return heard[9:12].decode() if heard.startswith(b"HTTP/1.") else None


def raise_handle_limit() -> None:
    """The attacker's connections are handles of its own process."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = 65_536 if hard == resource.RLIM_INFINITY else hard
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, wanted), hard))
