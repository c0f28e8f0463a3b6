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

from gateway.cluster.peer_auth import Secret
from gateway.cluster.peer_link import HELLO
from gateway.cluster.peer_wire import Frame
from gateway.surfaces.peer.connection import LinkConnection
from gateway.surfaces.peer.server import BODY_BYTES_MAX, PeerService

log = logging.getLogger(__name__)


@asynccontextmanager
async def serving_links(service: PeerService, secret: Secret, bound: socket.socket) -> AsyncIterator[None]:
    """Answer on a listening Unix socket while the block runs."""
    open_now: set[LinkConnection] = set()
    proof = secret.proof()

    def is_first_good(first: Frame) -> bool:
        return first.operation == HELLO and hmac.compare_digest(first.message, proof)

    def refused(reason: str) -> None:
        service.refused_count += 1
        log.warning("a connection that is not of this server was refused error=%s", reason)

    def connect() -> LinkConnection:
        made = LinkConnection(service.done, BODY_BYTES_MAX, refused, is_first_good=is_first_good)
        open_now.add(made)
        made.on_lost = lambda _: open_now.discard(made)
        return made

    server = await asyncio.get_running_loop().create_unix_server(connect, sock=bound)
    try:
        yield
    finally:
        server.close()
        for connection in list(open_now):
            connection.end()
        service.close()
