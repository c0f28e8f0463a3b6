"""How connections come in. Those with TLS are counted from their first moment, and let in a few a turn.

`create_server(ssl=…)` shows a connection only when its handshake is over. Thousands could begin one and stall, and
take every file handle past all limits; and hundreds of first words that arrive at once are signed for in one turn of
the event loop, a millisecond each. So sockets are accepted here:

    accept │ count, or close │ wait until the client's first record is here │ queue │ asyncio's handshake │ Connection
           └──────────────────────── HANDSHAKE_TIMEOUT_S for all of it ─────────────────────────┘

The first record is looked at, not read: the handshake reads it from the socket. The server's dear step, its signature,
answers that record, so BEGUN_A_TURN bounds it. A connection that is refused is closed without an answer: there is no
telling it why, short of a handshake.
"""

from __future__ import annotations

import asyncio
import errno
import logging
import select
import socket
import ssl
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from typing import Protocol, cast

from aiohttp import web

from gateway.auth.address import counted_as
from gateway.surfaces.http.connection import Connection, ConnectionLimiter
from store.limits import KiB

log = logging.getLogger(__name__)

HANDSHAKE_TIMEOUT_S = 10.0
"""How long a connection may take to agree on TLS."""

BEGUN_A_TURN = 8
ACCEPTED_A_TURN = 64
PARTIAL_POLL_S = 0.1
"""How often a first record that has come in part is looked at: the socket is readable all the while."""

NO_ROOM_PAUSE_S = 1.0
"""How long no connection is accepted when the system has no file handle or memory for one more."""

UNSENT_BYTES = 128 * KiB
"""What the kernel takes of an answer beyond what it may send now. Left alone it takes 2.2 MiB for a client that reads
nothing: 433 MiB for 200. What is under way to a client that reads is not bounded by this."""

_NOTSENT_LOWAT: int | None = getattr(socket, "TCP_NOTSENT_LOWAT", None)
_NO_ROOM = frozenset((errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM))
_RECORD_HEAD_BYTES = 5
_RECORD_BYTES_MAX = 1 << 14
_HANDSHAKE = b"\x16"
_ENDED = getattr(select, "POLLRDHUP", 0)


class Site(web.BaseSite):
    """Where a runner's connections come in: a bound socket, with TLS or without."""

    __slots__ = ("_connect", "_limiter", "_socket")

    def __init__(
        self,
        runner: web.BaseRunner,
        bound: socket.socket,
        connect: Callable[[], Connection],
        limiter: ConnectionLimiter,
        *,
        ssl_context: ssl.SSLContext | None,
        backlog: int,
    ) -> None:
        super().__init__(runner, ssl_context=ssl_context, backlog=backlog)
        self._socket = bound
        self._connect = connect
        self._limiter = limiter

    @property
    def name(self) -> str:
        """See web.BaseSite."""
        return str(self._socket.getsockname())

    async def start(self) -> None:
        """Accept connections from now on."""
        await super().start()
        if self._socket.family != socket.AF_UNIX and _NOTSENT_LOWAT is not None:
            self._socket.setsockopt(socket.IPPROTO_TCP, _NOTSENT_LOWAT, UNSENT_BYTES)  # theirs, too, that it accepts
        if self._ssl_context is None:
            loop = asyncio.get_running_loop()
            self._server = await loop.create_server(self._connect, sock=self._socket, backlog=self._backlog)
        else:
            accept = TlsAccept(self._socket, self._connect, self._limiter, self._ssl_context)
            self._server = cast(asyncio.Server, accept)  # which web.BaseSite only closes


class CountedProtocol(Protocol):
    """asyncio's protocol of a connection that is counted before it is made."""

    def let_in(self, address: str) -> None:
        """It is counted already; `connection_lost` or `give_up` takes it off."""
        ...

    def give_up(self) -> None:
        """Nothing came of it, so it is not counted any more. Nothing happens once it was made."""
        ...


class TlsAccept:
    """Accepts from a bound socket until closed. Used in the loop's thread."""

    def __init__(
        self, listener: socket.socket, connect: Callable[[], CountedProtocol], limiter: ConnectionLimiter,
        context: ssl.SSLContext,
    ) -> None:  # fmt: skip
        """`connect` makes the protocol of one connection: an `asyncio.Protocol` too."""
        self._loop = asyncio.get_running_loop()
        self._listener = listener
        self._connect = connect
        self._limiter = limiter
        self._context = context
        self._shaking: set[asyncio.Task[None]] = set()
        self._ready: deque[asyncio.Future[None]] = deque()
        self._resuming: asyncio.TimerHandle | None = None
        self._loop.add_reader(listener, self._accept)

    def close(self) -> None:
        """Accept no more connections, and end those whose handshake is not over."""
        if self._resuming is None:
            self._loop.remove_reader(self._listener)
        else:
            self._resuming.cancel()
        self._listener.close()
        for task in self._shaking:
            task.cancel()

    def _accept(self) -> None:
        for _ in range(ACCEPTED_A_TURN):
            try:
                accepted, peer = self._listener.accept()
            except (BlockingIOError, InterruptedError):
                return
            except OSError as error:
                if error.errno in _NO_ROOM:
                    log.warning(
                        "no connection is accepted for a while pause_ms=%d error=%s", NO_ROOM_PAUSE_S * 1000, error
                    )
                    self._loop.remove_reader(self._listener)
                    self._resuming = self._loop.call_later(NO_ROOM_PAUSE_S, self._resume)
                    return
                continue  # the client is gone already
            address = counted_as(str(peer[0]))
            if not self._limiter.enter(address):
                accepted.close()
                continue
            accepted.setblocking(False)
            task = self._loop.create_task(self._let_in(accepted, address))
            self._shaking.add(task)
            task.add_done_callback(self._shaking.discard)

    def _resume(self) -> None:
        self._resuming = None
        self._loop.add_reader(self._listener, self._accept)

    async def _let_in(self, accepted: socket.socket, address: str) -> None:
        """Shake hands on a connection that is counted."""
        connection = self._connect()
        connection.let_in(address)
        try:
            with suppress(OSError):  # ssl.SSLError, ConnectionError and TimeoutError are such
                async with asyncio.timeout(HANDSHAKE_TIMEOUT_S):
                    try:
                        await self._first_record(accepted)
                        await self._turn()
                    except BaseException:
                        accepted.close()
                        raise
                    await self._loop.connect_accepted_socket(  # which closes it when it fails
                        lambda: cast(asyncio.Protocol, connection),
                        accepted,
                        ssl=self._context,
                        ssl_handshake_timeout=HANDSHAKE_TIMEOUT_S,
                    )
        finally:
            connection.give_up()

    async def _first_record(self, accepted: socket.socket) -> None:
        """Wait until it has come whole, or something that is none, or the end."""
        is_readable = self._loop.create_future()
        self._loop.add_reader(accepted, _wake, is_readable)
        try:
            await is_readable
        finally:
            self._loop.remove_reader(accepted)
        while True:
            if _is_whole(accepted):
                return
            await asyncio.sleep(PARTIAL_POLL_S)

    async def _turn(self) -> None:
        begin = self._loop.create_future()
        self._ready.append(begin)
        if len(self._ready) == 1:
            self._loop.call_soon(self._begin_some)
        await begin

    def _begin_some(self) -> None:
        for _ in range(min(BEGUN_A_TURN, len(self._ready))):
            _wake(self._ready.popleft())
        if self._ready:
            self._loop.call_soon(self._begin_some)


def _wake(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)


def _is_whole(accepted: socket.socket) -> bool:
    """Whether nothing need be waited for any more: also when it is none, which is for TLS to refuse. Raises OSError."""
    head = accepted.recv(_RECORD_HEAD_BYTES, socket.MSG_PEEK)
    if head[:1] != _HANDSHAKE or _has_ended(accepted):
        return True
    if len(head) < _RECORD_HEAD_BYTES:
        return False
    wanted = _RECORD_HEAD_BYTES + min(int.from_bytes(head[3:], "big"), _RECORD_BYTES_MAX)
    return len(accepted.recv(wanted, socket.MSG_PEEK)) == wanted


def _has_ended(accepted: socket.socket) -> bool:
    """Whether the client sends no more. Where the system cannot say, its time ends."""
    poll = select.poll()
    poll.register(accepted, _ENDED)
    return bool(poll.poll(0))
