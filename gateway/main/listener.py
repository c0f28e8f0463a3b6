"""The listening socket: answered from the first moment, "not ready" until the store is open, then by every surface."""

from __future__ import annotations

import errno
import logging
import socket
import ssl
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import ExitStack, asynccontextmanager, contextmanager
from dataclasses import replace
from ipaddress import ip_address
from pathlib import Path

from aiohttp import web
from aiohttp.http_exceptions import HttpProcessingError
from yarl import URL

from gateway.main.tls import ServerTls
from gateway.settings.config import GatewayConfig
from gateway.settings.limits import Limits
from gateway.surfaces.http.accepting import Site
from gateway.surfaces.http.answers import RequestIds
from gateway.surfaces.http.application import origins_of
from gateway.surfaces.http.connection import Connection, ConnectionLimiter
from gateway.surfaces.http.context import Gateway, GatewayStats
from gateway.surfaces.http.fast_path import FastPath
from gateway.surfaces.http.relaying import naming_clients
from gateway.surfaces.http.starting import RecoveryProgress, build_starting_application
from gateway.surfaces.native.ndjson import plain_lines
from gateway.surfaces.native.plain import PlainAcks, PlainMessages, PlainReceives, PlainTopics
from gateway.surfaces.rest_v2.plain import V2Batches, V2Pulls, V2Records
from gateway.surfaces.rest_v3.records import plain_records

BACKLOG = 1024
LINGERING_S = 5.0
"""How long what a client still sends is read and dropped after it was refused, so that it gets to see the answer."""


NODES_CONNECTIONS_MAX = 512
"""Connections of the listener for other nodes: each of them keeps a few. At most one in NODES_SHARE of the handles."""

NODES_SHARE = 8
NODES_ADDRESS_SHARE = 4
"""One address has at most one in so many of them."""

NODES_KEEPALIVE_S = 30.0
"""How long a connection of another node may be idle, and a stranger's may take for a head. Nodes end theirs after half
of it, so none is ended under a request."""

MALFORMED_LOG_INTERVAL_S = 60.0
"""How often a line about them is written."""


@contextmanager
def bound_sockets(host: str, port: int, count: int) -> Iterator[list[socket.socket]]:
    """Listening sockets of one address, of which each gets a share of the connections. Raises OSError, also when others
    would have to share the address: a second server must not take part of the first one's clients."""
    with ExitStack() as stack:
        with bound_socket(host, port) as first:
            port = first.getsockname()[1]
        yield [stack.enter_context(bound_socket(host, port, is_shared=True)) for _ in range(count)]


@contextmanager
def bound_socket(host: str, port: int, *, is_shared: bool = False) -> Iterator[socket.socket]:
    """A listening socket. Bound before anything is opened: who connects meanwhile waits, or is told to.

    Raises OSError.
    """
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
    except ValueError as error:  # a label that is too long, a null character
        raise OSError(errno.EINVAL, f"host {host[:100]!r} is no host name") from error
    with socket.socket(family, kind, protocol) as listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if is_shared:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        listener.bind(address)
        listener.listen(BACKLOG)
        listener.setblocking(False)
        yield listener


@contextmanager
def bound_unix_socket(path: Path) -> Iterator[socket.socket]:
    """A listening Unix socket, whose path must be short. Raises OSError."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as listener:
        listener.bind(str(path))
        listener.listen(BACKLOG)
        listener.setblocking(False)
        yield listener


@contextmanager
def bound_kafka_sockets(config: GatewayConfig) -> Iterator[tuple[dict[str, socket.socket], list[str]]]:
    """The listening sockets for Kafka clients, by the name of their listener. One that is not configured is left
    out, with a warning, when its port is taken. Raises OSError."""
    with ExitStack() as stack:
        bound: dict[str, socket.socket] = {}
        warnings: list[str] = []
        for listener in config.kafka_listeners:
            try:
                bound[listener.name] = stack.enter_context(bound_socket(listener.host, listener.port))
            except OSError as error:
                if config.kafka.is_asked_for:
                    reason = error.strerror or str(error)
                    raise OSError(error.errno, f"Kafka listener {listener.host}:{listener.port}: {reason}") from error
                where = f"{listener.host}:{listener.port}: {error.strerror}"
                warnings.append(f"no port for Kafka clients: {where}; set kafka.port, or kafka.enabled = false")
        yield bound, warnings


def address_of(bound: socket.socket) -> str:
    """The address of a listening socket as HOST:PORT."""
    host, port = bound.getsockname()[:2]
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def advertised_kafka(config: GatewayConfig, bound: Mapping[str, socket.socket]) -> tuple[str, ...]:
    """Where Kafka clients reach each listener of a node, as the other nodes tell them: NAME://HOST:PORT. Not chosen:
    the address that it listens on; when that is all addresses, the host of `cluster.client_url`, or this machine's
    name."""
    found = []
    for name, one in bound.items():
        chosen = config.kafka.advertised_for(name)
        host, port = one.getsockname()[:2]
        if chosen is not None:
            host, port = chosen.host, chosen.port
        elif ip_address(host).is_unspecified:
            host = URL(config.cluster.client_url or "").host or socket.gethostname()
        found.append(f"{name}://[{host}]:{port}" if ":" in host else f"{name}://{host}:{port}")
    return tuple(found)


def url_of(host: str, listener: socket.socket, tls: ServerTls | None) -> str:
    """Where a client on this machine finds the server."""
    port = listener.getsockname()[1]
    scheme = "http" if tls is None else "https"
    return f"{scheme}://[{host}]:{port}" if ":" in host else f"{scheme}://{host}:{port}"


@asynccontextmanager
async def answering_not_ready(
    config: GatewayConfig, listener: socket.socket, progress: RecoveryProgress, tls: ServerTls | None
) -> AsyncIterator[None]:
    """Answer that the server is not ready, until the block ends."""
    runner = web.AppRunner(
        build_starting_application(progress),
        handle_signals=False,
        shutdown_timeout=config.shutdown_timeout_ms / 1000,
    )
    await runner.setup()
    server = runner.server
    assert server is not None
    limiter = ConnectionLimiter(config.limits, GatewayStats())  # recovery opens files: no stranger takes their handles
    request_ids = RequestIds()

    def connect() -> Connection:
        return Connection(
            server,
            limiter,
            request_ids,
            access_log=None,
            auto_decompress=False,
            keepalive_timeout=0,  # no connection stays with an application that goes away
            write_timeout_s=config.ws_write_timeout_ms / 1000,
        )

    try:
        await Site(runner, listener.dup(), connect, limiter, ssl_context=_context(tls), backlog=BACKLOG).start()
        yield
    finally:
        await runner.cleanup()


def _context(tls: ServerTls | None) -> ssl.SSLContext | None:
    return None if tls is None else tls.context


@asynccontextmanager
async def listening(
    application: web.Application,
    gateway: Gateway,
    limiter: ConnectionLimiter,
    listener: socket.socket,
    tls: ServerTls | None = None,
    *,
    has_groups: bool = True,
    is_relayed: bool = False,
) -> AsyncIterator[None]:
    """Answer requests; on leaving, stop accepting and let running requests finish. `has_groups`: whether the groups are
    this process's own. `is_relayed`: its clients are workers, which name theirs."""
    config = gateway.config
    runner = web.AppRunner(application, handle_signals=False, shutdown_timeout=config.shutdown_timeout_ms / 1000)
    await runner.setup()
    server = runner.server
    assert server is not None
    request_ids = RequestIds()
    if is_relayed:
        server.request_factory = naming_clients(server.request_factory)
    fast_path = fast_path_of(gateway, request_ids, has_groups=has_groups and gateway.cluster is None)
    protocol_log = _protocol_log(gateway.stats)

    def connect() -> Connection:
        return Connection(
            server,
            limiter,
            request_ids,
            fast_path,
            access_log=None,
            auto_decompress=False,
            keepalive_timeout=config.keepalive_timeout_ms / 1000,
            lingering_time=LINGERING_S,
            logger=protocol_log,
            write_timeout_s=config.ws_write_timeout_ms / 1000,
        )

    try:
        await Site(runner, listener, connect, limiter, ssl_context=_context(tls), backlog=BACKLOG).start()
        yield
    finally:
        await runner.cleanup()


@asynccontextmanager
async def listening_to_nodes(
    application: web.Application, listener: socket.socket, limits: Limits, *, handle_limit: int, write_timeout_s: float
) -> AsyncIterator[None]:
    """Answer the other nodes of the cluster until the block ends. Whoever reaches the listener may connect, so its
    connections are bounded as those of clients are, but by themselves: neither keep out the others. `handle_limit`: of
    this process."""
    runner = web.AppRunner(application, handle_signals=False, shutdown_timeout=1)
    await runner.setup()
    server = runner.server
    assert server is not None
    connections_max = max(1, min(NODES_CONNECTIONS_MAX, handle_limit // NODES_SHARE))
    own = replace(
        limits,
        connections_max=connections_max,
        connections_per_address_max=max(1, connections_max // NODES_ADDRESS_SHARE),
    )
    stats = GatewayStats()
    limiter = ConnectionLimiter(own, stats)
    request_ids = RequestIds()
    protocol_log = _protocol_log(stats)

    def connect() -> Connection:
        return Connection(
            server,
            limiter,
            request_ids,
            access_log=None,
            keepalive_timeout=NODES_KEEPALIVE_S,
            lingering_time=LINGERING_S,
            logger=protocol_log,
            write_timeout_s=write_timeout_s,
        )

    try:
        await Site(runner, listener, connect, limiter, ssl_context=None, backlog=BACKLOG).start()
        yield
    finally:
        await runner.cleanup()


def fast_path_of(gateway: Gateway, request_ids: RequestIds, *, has_groups: bool = True) -> FastPath:
    """The fast path of a server, for the plain requests of every surface that has some. Where a group may be another
    process's (not `has_groups`), groups and new topics are for the normal path, which asks that."""
    return FastPath(
        gateway,
        origins_of(gateway.config),
        request_ids,
        records=(
            V2Records(gateway.limits), PlainMessages(gateway.limits), plain_lines(gateway), plain_records(gateway)
        ),
        batches=(V2Batches(),),
        calls=(PlainReceives(gateway), PlainAcks(gateway)) if has_groups else (),
        puts=(PlainTopics(gateway),) if has_groups else (),
        gets=(V2Pulls(gateway),),
    )  # fmt: skip


def _protocol_log(stats: GatewayStats) -> logging.Logger:
    """aiohttp's log of a server, without a traceback for every client that does not speak HTTP."""
    made = logging.Logger(f"{__name__}.http")
    made.parent = logging.getLogger(__name__)
    made.setLevel(logging.DEBUG)  # where aiohttp puts some of them; they are to be counted all the same
    made.addFilter(_MalformedRequests(stats))
    return made


class _MalformedRequests(logging.Filter):
    """Counts malformed requests, and lets one line through now and then instead of a traceback each."""

    def __init__(self, stats: GatewayStats) -> None:
        super().__init__()
        self._stats = stats
        self._quiet_until_s = 0.0

    def filter(self, record: logging.LogRecord) -> bool:
        """Whether a line is written."""
        error = record.exc_info[1] if record.exc_info else None
        if not isinstance(error, HttpProcessingError):
            return True
        self._stats.malformed_request_count += 1
        if record.created < self._quiet_until_s:
            return False
        self._quiet_until_s = record.created + MALFORMED_LOG_INTERVAL_S
        record.msg, record.args = (
            "malformed requests count=%s last=%s",
            (
                self._stats.malformed_request_count,
                type(error).__name__,
            ),
        )
        record.levelno, record.levelname = logging.WARNING, "WARNING"
        record.exc_info = record.exc_text = None
        return True
