"""The service of a broker over a Unix socket: frames of many requests on one connection (gateway/cluster/peer_link.py).

A request costs here a third of what it costs over HTTP; with workers before the store's process each one carries the
records of few clients, so this is most of what a send costs that process.
"""

from __future__ import annotations

import asyncio
import hmac
import logging
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import cast

from gateway.cluster import peer_wire
from gateway.cluster.peer_auth import Secret
from gateway.cluster.peer_link import HELLO
from gateway.cluster.peer_wire import Frame, Frames, frame
from gateway.surfaces.peer.server import BODY_BYTES_MAX, PeerService
from store.errors import StoreError

log = logging.getLogger(__name__)


@asynccontextmanager
async def serving_links(service: PeerService, secret: Secret, bound: socket.socket) -> AsyncIterator[None]:
    """Answer on a listening Unix socket while the block runs."""
    open_now: set[_Connection] = set()
    proof = secret.proof()
    loop = asyncio.get_running_loop()
    server = await loop.create_unix_server(lambda: _Connection(service, proof, open_now), sock=bound)
    try:
        yield
    finally:
        server.close()
        for connection in list(open_now):
            connection.end()
        service.close()


class _Connection(asyncio.Protocol):
    def __init__(self, service: PeerService, proof: bytes, open_now: set[_Connection]) -> None:
        self._service = service
        self._proof = proof
        self._open_now = open_now
        self._frames = Frames(BODY_BYTES_MAX)
        self._is_known = False
        self._transport: asyncio.Transport | None = None
        self._serving: set[asyncio.Task[None]] = set()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._open_now.add(self)

    def connection_lost(self, exc: Exception | None) -> None:
        self._transport = None
        self._open_now.discard(self)
        # What was begun comes to its end: it may be half done.

    def end(self) -> None:
        if self._transport is not None:
            self._transport.close()
        for task in self._serving:
            task.cancel()

    def data_received(self, data: bytes) -> None:
        try:
            found = self._frames.feed(data)
        except ValueError as error:
            self._refuse(str(error))
            return
        for one in found:
            if self._is_known:
                task = asyncio.create_task(self._serve(one))
                self._serving.add(task)
                task.add_done_callback(self._serving.discard)
            elif one.operation == HELLO and hmac.compare_digest(one.message, self._proof):
                self._is_known = True
            else:
                self._refuse("the secret is another one")
                return

    def _refuse(self, reason: str) -> None:
        self._service.refused_count += 1
        log.warning("a connection that is not of this server was refused error=%s", reason)
        if self._transport is not None:
            self._transport.abort()

    async def _serve(self, one: Frame) -> None:
        try:
            answer = await self._service.done(one.operation, one.message)
        except Exception as error:  # the other side would wait for its answer
            log.exception("an operation failed operation=%s", one.operation)
            answer = peer_wire.pack(peer_wire.error_head(StoreError(repr(error))))
        if self._transport is not None:
            self._transport.writelines(frame(one.number, "", answer))

    def pause_writing(self) -> None:
        """The other side does not take its answers: nothing more is read of it."""
        if self._transport is not None:
            self._transport.pause_reading()

    def resume_writing(self) -> None:
        if self._transport is not None:
            self._transport.resume_reading()
