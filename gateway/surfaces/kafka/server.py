"""The ports for Kafka clients: connections in, requests served, an orderly end."""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from functools import partial
from time import monotonic

from gateway.auth.access import NOBODY, OPEN
from gateway.settings.kafka import KafkaListener
from gateway.surfaces.http.accepting import TlsAccept
from gateway.surfaces.http.connection import ConnectionLimiter
from gateway.surfaces.http.context import Gateway
from gateway.surfaces.kafka.connection import KafkaConnection
from gateway.surfaces.kafka.groups import KafkaGroups
from gateway.surfaces.kafka.service import Service
from gateway.surfaces.kafka.session import Session
from store.limits import KiB

LOOK_INTERVAL_S = 1.0
"""How often connections whose clients take too long are looked for."""

END_INTERVAL_S = 0.02

SEND_BUFFER_BYTES = 128 * KiB
"""What the kernel takes of a response before its client does; Kafka's own default is 100 KiB. Left alone it takes 2.5
MiB at once for each client that reads nothing: a gigabyte of 400, and where it had to find that memory first, one write
held the event loop for 80 ms."""


@asynccontextmanager
async def serving_kafka(
    gateway: Gateway,
    limiter: ConnectionLimiter,
    sockets: Mapping[str, socket.socket],
    *,
    ssl_context: ssl.SSLContext | None,
    backlog: int,
    on_group_gone: list[Callable[[str], None]],
) -> AsyncIterator[None]:
    """Serve Kafka clients on bound sockets, by the name of their listener. `on_group_gone`: who is told of groups that
    go to other nodes. On leaving, accept no more, let requests that are being served end, and close all
    connections."""
    if not sockets:
        yield
        return
    loop = asyncio.get_running_loop()
    groups, service = KafkaGroups(gateway.groups), Service()
    on_group_gone.append(groups.forget)
    connections: set[KafkaConnection] = set()
    access = NOBODY if gateway.authenticator.is_required else OPEN

    def connect(name: str) -> KafkaConnection:
        def new_session(address: str, reached: KafkaListener) -> Session:
            return Session(gateway, groups, name, reached, address, access)

        return KafkaConnection(gateway, service, limiter, new_session, connections, limiter.read_turns)

    servers: list[asyncio.Server | TlsAccept] = []
    for name, bound in sockets.items():
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, SEND_BUFFER_BYTES)  # those that it accepts have the same
        if ssl_context is None:
            servers.append(await loop.create_server(partial(connect, name), sock=bound, backlog=backlog))
        else:
            servers.append(TlsAccept(bound, partial(connect, name), limiter, ssl_context))
    looking = loop.create_task(_look_forever(gateway, connections), name="kafka connections")
    try:
        yield
    finally:
        looking.cancel()
        for server in servers:
            server.close()
        until_s = monotonic() + gateway.config.shutdown_timeout_ms / 1000
        while connections and monotonic() < until_s:
            for connection in [one for one in connections if one.is_idle]:
                connection.close()
            await groups.close()
            await asyncio.sleep(END_INTERVAL_S)
        for connection in list(connections):
            connection.close()


async def _look_forever(gateway: Gateway, connections: set[KafkaConnection]) -> None:
    config = gateway.config
    while True:
        await asyncio.sleep(LOOK_INTERVAL_S)
        now_s = monotonic()
        for connection in list(connections):
            connection.look(
                now_s,
                body_timeout_s=config.body_timeout_ms / 1000,
                idle_timeout_s=config.kafka.idle_timeout_ms / 1000,
            )
