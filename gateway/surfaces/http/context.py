"""What every handler of one server has at hand, under one typed key of the application."""

from __future__ import annotations

import asyncio
from bisect import bisect_left
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Protocol

from aiohttp import ClientWebSocketResponse, web
from prometheus_client import CollectorRegistry
from yarl import URL

from gateway.api.cluster import Cluster
from gateway.api.connections import Connections
from gateway.api.figures import Figures, no_figures
from gateway.api.lease import AllLeases
from gateway.api.light import Rendering
from gateway.api.producer import Producer
from gateway.api.read import Consumer
from gateway.api.schemas import Schemas
from gateway.api.topics import TopicAdmin
from gateway.api.trail import Trail
from gateway.auth.authenticator import Anybody, Authenticator
from gateway.auth.rates import Rates
from gateway.codec.texts import TextCache
from gateway.groups.protocol import Groups
from gateway.routing.base import Routes
from gateway.settings.config import GatewayConfig
from gateway.settings.limits import Limits
from gateway.surfaces.http.answer_memory import AnswerMemory
from store.clock import Clock

LATENCY_BOUNDS_S = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)
"""Upper bounds (inclusive) of the latency buckets; one more bucket holds everything above."""


@dataclass(slots=True)
class RouteStats:
    """Requests of one route that were answered."""

    statuses: dict[int, int] = field(default_factory=dict)
    latency_counts: list[int] = field(default_factory=lambda: [0] * (len(LATENCY_BOUNDS_S) + 1))
    latency_sum_s: float = 0.0

    def answered(self, status: int, elapsed_s: float, count: int = 1) -> None:
        """Count one answer, or some that took equally long."""
        self.statuses[status] = self.statuses.get(status, 0) + count
        self.latency_counts[bisect_left(LATENCY_BOUNDS_S, elapsed_s)] += count
        self.latency_sum_s += elapsed_s * count


@dataclass(slots=True)
class KafkaStats:
    """Counters of Kafka's protocol."""

    requests: dict[str, int] = field(default_factory=dict)
    """Answered requests, by their name in Kafka's protocol."""

    connection_count: int = 0
    """Open now; they are among the gateway's."""

    malformed_count: int = 0
    """Connections ended because of what came on them."""

    fetched_record_count: int = 0
    fetched_byte_count: int = 0

    malformed_quiet_until_s: float = 0.0
    """When the next line about them may be logged, monotonic."""

    def answered(self, name: str) -> None:
        """Count one answer."""
        self.requests[name] = self.requests.get(name, 0) + 1


@dataclass(slots=True)
class GatewayStats:
    """Counters of the gateway, plain integers on the event loop; `/metrics` reads them."""

    routes: dict[str, RouteStats] = field(default_factory=dict)
    """By the route's name in the route table."""

    open_connections: Connections = field(default_factory=Connections)
    """Connections, for people who look."""

    malformed_request_count: int = 0
    """Requests that were not HTTP."""

    connection_count: int = 0
    """Connections open now."""

    connection_refused_count: int = 0
    """Connections closed at once because there were too many."""

    address_refused_count: int = 0
    """Of them, those of an address that has too many of its own."""

    receiving_bytes: int = 0
    """Of request bodies in memory now; see `Limits.receiving_bytes_max`."""

    body_refused_count: int = 0
    """Bodies that were not read because there were too many bytes of others."""

    answers: AnswerMemory = field(default_factory=AnswerMemory)
    """What answers that are not yet taken hold."""

    slow_close_count: int = 0
    """Connections ended because their peer took no byte of an answer."""

    fetched_record_count: int = 0
    fetched_byte_count: int = 0
    long_poll_count: int = 0
    """Long polls waiting now."""

    stream_count: int = 0
    """Streams of Server-Sent Events (or lines) open now."""

    ws_socket_count: int = 0
    """Sockets open now."""

    ws_subscription_count: int = 0
    """Subscriptions of the open sockets."""

    ws_received_frame_count: int = 0
    ws_sent_message_count: int = 0
    ws_sent_byte_count: int = 0
    ws_slow_close_count: int = 0
    """Sockets closed because their peer took no bytes."""

    kafka: KafkaStats = field(default_factory=KafkaStats)


class Forwards(Protocol):
    """See `gateway/surfaces/http/forwarding.py`."""

    async def answer(
        self, gateway: Gateway, request: web.Request, body: bytes | None, node: str, *, is_part: bool = False
    ) -> web.StreamResponse:
        """What a node of the cluster answers to this request; `is_part`: for itself alone. Raises RequestError,
        ConnectionError."""
        ...

    async def ask(self, request: web.Request, node: str, target: URL, body: bytes = b"", *, timeout_s: float) -> bytes:
        """The JSON that a node answers for itself alone to a request like this one. Raises RequestError."""
        ...

    async def connect(self, node: str, token: str | None) -> ClientWebSocketResponse:
        """A socket to a node, on which it speaks for itself alone. Raises RequestError."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Gateway:
    """The parts of one running server."""

    config: GatewayConfig
    limits: Limits
    clock: Clock
    routes_table: Routes
    admin: TopicAdmin
    producer: Producer
    consumer: Consumer
    groups: Groups
    stats: GatewayStats
    texts: TextCache
    """Records that were rendered before, for their next readers."""

    light_rendering: Rendering = field(default_factory=Rendering)
    """Shows records of light queues."""

    draining: asyncio.Event
    """Set when the server is about to stop: say so to clients, and begin nothing long."""

    leaving: asyncio.Event = field(default_factory=asyncio.Event)
    """Set before that: not ready for more, but all goes on for `drain_delay_ms`."""

    authenticator: Authenticator = field(default_factory=Anybody)
    leases: AllLeases = field(default_factory=AllLeases)
    """What sockets and event streams have delivered to consumers of groups."""

    on_group_deleted: list[Callable[[str], None]] = field(default_factory=list)
    """Called with the name of a group that a request has deleted."""

    rates: Rates | None = None
    """None: there are no limits of rate."""

    trail: Trail | None = None
    """None: nothing of what is administered is recorded."""

    schemas: Schemas | None = None
    """None: there is no schema registry, and what needs one is refused."""

    metrics: CollectorRegistry = field(default_factory=lambda: CollectorRegistry(auto_describe=False))
    figures: Figures = field(default_factory=no_figures)
    """What runs through the server, lately."""

    cluster: Cluster | None = None
    """What this node belongs to; None: it is alone."""

    forwarder: Forwards | None = None
    """Sends requests on to other nodes of the cluster."""

    searching: set[str] = field(default_factory=set)
    """Who looks through a topic now: once at a time."""

    version: str = "unknown"
    cluster_id: str = "unknown"
    """The name of the data directory; see `gateway/main/identity.py`."""

    started_ms: int = 0
    """When this process began to answer, epoch ms."""

    kafka_addresses: tuple[str, ...] = ()
    """Where it listens for Kafka clients: NAME://HOST:PORT."""


GATEWAY = web.AppKey("gateway", Gateway)
