"""A connection to another process of this machine that carries many requests at a time, over a Unix socket.

It is made when it is first needed, and again when it has ended. Who may enter the socket's directory may use it: no
request carries a code, but the first frame has to prove that its sender has the secret.
"""

from __future__ import annotations

import asyncio
from typing import cast

from gateway.cluster.peer_auth import Secret
from gateway.cluster.peer_wire import Frames, frame

HELLO = "hello"
"""The operation of the first frame."""


class LinkRefused(OSError):
    """There is no connection: nothing was asked."""


class LinkLost(OSError):
    """The connection has ended, or took too long: what was asked may or may not have been done."""


class Link:
    """See the module. `bytes_max` bounds an answer."""

    def __init__(self, path: str, secret: Secret, *, bytes_max: int) -> None:
        self._path = path
        self._hello = secret.proof()
        self._bytes_max = bytes_max
        self._making = asyncio.Lock()
        self._connection: _Connection | None = None

    async def ask(self, operation: str, message: bytes) -> bytes:
        """The message that answers. Raises LinkRefused, LinkLost."""
        connection = self._connection
        if connection is None or connection.transport is None:
            connection = await self._connected()
        return await connection.ask(operation, message)

    async def _connected(self) -> _Connection:
        async with self._making:
            if (connection := self._connection) is not None and connection.transport is not None:
                return connection
            loop = asyncio.get_running_loop()
            try:
                _, connection = await loop.create_unix_connection(lambda: _Connection(self._bytes_max), self._path)
            except OSError as error:
                raise LinkRefused(f"{self._path}: {error}") from error
            connection.send(0, HELLO, self._hello)
            self._connection = connection
            return connection

    def close(self) -> None:
        """End it, and what waits for answers."""
        if self._connection is not None and self._connection.transport is not None:
            self._connection.transport.abort()


class _Connection(asyncio.Protocol):
    def __init__(self, bytes_max: int) -> None:
        self.transport: asyncio.Transport | None = None
        self._frames = Frames(bytes_max)
        self._number = 0
        self._waiting: dict[int, asyncio.Future[bytes]] = {}

    def send(self, number: int, operation: str, message: bytes) -> None:
        assert self.transport is not None
        self.transport.writelines(frame(number, operation, message))

    async def ask(self, operation: str, message: bytes) -> bytes:
        if self.transport is None:
            raise LinkRefused("the connection has ended")
        self._number = number = (self._number + 1) % 2**32
        answer: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()
        self._waiting[number] = answer
        self.send(number, operation, message)
        try:
            return await answer
        finally:
            self._waiting.pop(number, None)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        try:
            found = self._frames.feed(data)
        except ValueError:
            assert self.transport is not None
            self.transport.abort()
            return
        for number, _, message in found:
            answer = self._waiting.get(number)  # who has given up has no place
            if answer is not None and not answer.done():
                answer.set_result(message)

    def connection_lost(self, exc: Exception | None) -> None:
        self.transport = None
        for answer in self._waiting.values():
            if not answer.done():
                answer.set_exception(LinkLost(str(exc or "the connection has ended")))
