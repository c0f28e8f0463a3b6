"""A connection to another process that carries many requests at a time. It is made when it is first needed, and again
when it has ended.

    Unix socket    to another process of this machine. Who may enter the socket's directory may use it: no frame carries
                   a code, but the first one has to prove that its sender has the secret
    TCP            to another node, on its internal listener: an HTTP request with the codes that all of them have
                   (`POST /peer/v1/link`, its body how codes of frames are made, and a number chosen by chance) is
                   answered 101 with another such number, and from there on frames follow, each with a code of its own
                   (peer_auth.py)
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Callable
from contextlib import suppress
from functools import cache
from time import perf_counter
from typing import cast
from urllib.parse import urlsplit

from gateway.cluster.peer_auth import (
    CODE_BYTES,
    FRAME_CODES,
    NONCE_BYTES,
    FrameCodes,
    NotAuthentic,
    Secret,
    Stamp,
    check_code,
)
from gateway.cluster.peer_wire import Frames, Message, frame
from store.limits import KiB, MiB

HELLO = "hello"
"""The operation of the first frame over a Unix socket."""

PATH = "/peer/v1/"
LINK = "link"
STAMP_HEADER, HEAD_CODE_HEADER, CODE_HEADER = "MQ-Stamp", "MQ-Head-Code", "MQ-Code"
NONCE_HEADER = "MQ-Nonce"

MESSAGE_BYTES_MAX = 8 * MiB
"""Appends are gathered up to this size for one request; a single larger one goes alone."""

CONNECT_TIMEOUT_S = 2.0
IDLE_S = 15.0
"""A link to another node that was not used for so long is made anew: what is in between may have forgotten it, and
what is sent over such a one is lost without a word."""

_HEAD_BYTES_MAX = 16 * KiB


class LinkRefused(OSError):
    """There is no connection: nothing was asked."""


class NoLinks(LinkRefused):
    """The other end knows no links."""


class LinkLost(OSError):
    """The connection has ended, or took too long: what was asked may or may not have been done."""


@cache
def fastest_codes() -> str:
    """Which of FRAME_CODES takes the least time on this machine."""

    def taken_s(kind: str) -> float:
        codes, times = FrameCodes(bytes(CODE_BYTES), kind), []
        for _ in range(5):
            begun_s = perf_counter()
            codes.next(bytes(64 * KiB))
            times.append(perf_counter() - begun_s)
        return min(times)

    return min(FRAME_CODES, key=taken_s)


def switching(nonce: str, code: str) -> bytes:
    """The answer that begins a link."""
    return (
        f"HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: mq-link\r\n"
        f"{NONCE_HEADER}: {nonce}\r\n{CODE_HEADER}: {code}\r\n\r\n"
    ).encode()


class Link:
    """See the module. `bytes_max` bounds an answer. `stamp` is that of the next request."""

    def __init__(self, address: str, secret: Secret, *, bytes_max: int, stamp: Callable[[], Stamp]) -> None:
        self._address = address
        self._secret = secret
        self._stamp = stamp
        self._bytes_max = bytes_max
        self._making: asyncio.Task[_Connection] | None = None
        self._connection: _Connection | None = None

    async def ask(self, operation: str, message: Message, timeout_s: float) -> bytes:
        """The message that answers. Raises LinkRefused, LinkLost."""
        connection = self._connection
        if connection is None or not connection.is_usable(self._secret.current):
            connection = await self._connected()
        asked_s = asyncio.get_running_loop().time()
        try:
            async with asyncio.timeout(timeout_s):
                return await connection.ask(operation, message)
        except TimeoutError as error:
            if connection.heard_s < asked_s:  # no other answer either: whoever asks next is not to wait behind this
                connection.end()
            raise LinkLost(f"no answer within {timeout_s:.0f} s") from error

    async def make(self) -> None:
        """Have a connection, if there can be one, before it is needed."""
        with suppress(LinkRefused):
            await self._connected()

    async def _connected(self) -> _Connection:
        """Whoever needs a connection while one is being made has the outcome of that."""
        if self._making is None:
            self._making = asyncio.create_task(self._made(), name="link")
            self._making.add_done_callback(self._has_made)
        making = self._making
        try:
            return await asyncio.shield(making)
        except asyncio.CancelledError:
            task = asyncio.current_task()
            if making.cancelled() and (task is None or not task.cancelling()):
                raise LinkRefused(f"{self._address} is left") from None
            raise

    def _has_made(self, making: asyncio.Task[_Connection]) -> None:
        self._making = None
        if not making.cancelled():
            making.exception()  # seen, also when nobody waits any more

    async def _made(self) -> _Connection:
        secret = self._secret.current
        if (connection := self._connection) is not None:
            if connection.is_usable(secret):
                return connection
            connection.leave()
        connection = _Connection(self._bytes_max, secret)
        try:
            async with asyncio.timeout(CONNECT_TIMEOUT_S):
                await self._make(connection, secret)
        except BaseException as error:
            connection.end()
            if isinstance(error, LinkRefused) or not isinstance(error, (OSError, TimeoutError, NotAuthentic)):
                raise
            raise LinkRefused(f"{self._address}: {type(error).__name__} {error}") from error
        self._connection = connection
        return connection

    async def _make(self, connection: _Connection, secret: Secret) -> None:
        loop = asyncio.get_running_loop()
        if self._address.startswith("unix:"):
            await loop.create_unix_connection(lambda: connection, self._address.removeprefix("unix:"))
            connection.begin(None)
            connection.send(0, HELLO, (self._secret.proof(),))
            return
        at = urlsplit(self._address)
        await loop.create_connection(lambda: connection, at.hostname or "", at.port or 80)
        wish, path, stamp = f"{fastest_codes()} {secrets.token_hex(NONCE_BYTES)}", PATH + LINK, self._stamp()
        head_code = secret.head_code(stamp, path, len(wish))
        code = secret.request_code(head_code, wish.encode())
        headers = {
            "Host": at.netloc, "Content-Length": len(wish), STAMP_HEADER: stamp.text, HEAD_CODE_HEADER: head_code,
            CODE_HEADER: code,
        }  # fmt: skip
        lines = [f"POST {path} HTTP/1.1", *(f"{name}: {value}" for name, value in headers.items())]
        assert connection.transport is not None
        connection.transport.write("\r\n".join([*lines, "", wish]).encode())
        status, answered = await connection.http_answer
        if status != 101:
            raise NoLinks(f"{self._address}: status {status}")
        theirs = answered.get(NONCE_HEADER.lower(), "")
        check_code(secret.answer_code(code, 101, theirs.encode()), answered.get(CODE_HEADER.lower(), ""))
        connection.begin(secret.link_codes(wish, theirs))

    def close(self) -> None:
        """End it, and what waits for answers."""
        if self._making is not None:
            self._making.cancel()
        if self._connection is not None:
            self._connection.end()


class _Connection(asyncio.Protocol):
    def __init__(self, bytes_max: int, secret: Secret) -> None:
        self.transport: asyncio.Transport | None = None
        self.http_answer: asyncio.Future[tuple[int, dict[str, str]]] = asyncio.get_running_loop().create_future()
        """Its status and headers, of a connection that begins with a request."""

        self._secret = secret
        self._bytes_max = bytes_max
        self._frames: Frames | None = None
        self._head = b""
        self._codes: FrameCodes | None = None
        self._number = 0
        self._used_s = self.heard_s = asyncio.get_running_loop().time()
        self._waiting: dict[int, asyncio.Future[bytes]] = {}
        self._is_left = False

    def begin(self, codes: tuple[FrameCodes, FrameCodes] | None) -> None:
        """Frames follow. `codes`: of what is sent, and of what comes."""
        self._codes, come = (None, None) if codes is None else codes
        self._frames = Frames(self._bytes_max, come)

    def is_usable(self, secret: Secret) -> bool:
        """Whether it is there; to another node, also whether it was used of late, and made with the secret that is sent
        with now."""
        if self.transport is None or self.transport.is_closing():
            return False
        if self._codes is None:
            return True
        is_fresh = asyncio.get_running_loop().time() - self._used_s < IDLE_S
        return is_fresh and self._secret.is_same(secret)

    def end(self) -> None:
        if self.transport is not None:
            self.transport.abort()

    def leave(self) -> None:
        """End it when all that was asked is answered: nothing more is."""
        self._is_left = True
        if not self._waiting:
            self.end()

    def send(self, number: int, operation: str, message: Message) -> None:
        assert self.transport is not None
        self.transport.writelines(frame(number, operation, message, self._codes))

    async def ask(self, operation: str, message: Message) -> bytes:
        if self.transport is None or self.transport.is_closing():
            raise LinkRefused("the connection has ended")
        self._used_s = asyncio.get_running_loop().time()
        self._number = number = (self._number + 1) % 2**32
        answer: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()
        self._waiting[number] = answer
        self.send(number, operation, message)
        try:
            return await answer
        finally:
            self._waiting.pop(number, None)
            if self._is_left:
                self.leave()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        self.heard_s = asyncio.get_running_loop().time()
        if self._frames is None:
            self._begun(data)
            return
        try:
            found = self._frames.feed(data)
        except (ValueError, NotAuthentic):
            self.end()
            return
        for number, _, message in found:
            answer = self._waiting.get(number)  # who has given up has no place
            if answer is not None and not answer.done():
                answer.set_result(message)

    def _begun(self, data: bytes) -> None:
        """A piece of the answer to the request that a connection begins with; no frame comes before one was sent."""
        self._head += data
        head, end, _ = self._head.partition(b"\r\n\r\n")
        if self.http_answer.done() or (not end and len(self._head) <= _HEAD_BYTES_MAX):
            return
        try:
            first, *lines = head.decode("ascii").split("\r\n")
            fields = (line.partition(":") for line in lines)
            self.http_answer.set_result(
                (int(first.split(" ")[1]), {a.strip().lower(): b.strip() for a, _, b in fields})
            )
        except (ValueError, IndexError):
            self.http_answer.set_exception(LinkRefused("an answer that is no HTTP"))

    def connection_lost(self, exc: Exception | None) -> None:
        self.transport = None
        if not self.http_answer.done():
            self.http_answer.set_exception(LinkRefused(str(exc or "the connection has ended")))
            self.http_answer.exception()  # of a Unix socket nobody waits for one
        for answer in self._waiting.values():
            if not answer.done():
                answer.set_exception(LinkLost(str(exc or "the connection has ended")))
