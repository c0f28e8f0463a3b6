"""A gateway that has no store: sends and reads it does itself, over brokers that are other processes; all else it
passes on. Workers are such gateways (worker.py), and gateways that join a cluster (joined.py)."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Callable
from collections.abc import Set as AbstractSet
from dataclasses import replace
from typing import Protocol, cast

from aiohttp import web

from gateway.api.producer import Producer
from gateway.api.read import Consumer
from gateway.api.topics import TopicAdmin
from gateway.auth.access import Permission
from gateway.codec.texts import TextCache
from gateway.groups.protocol import Groups
from gateway.main.reload import RELOAD_INTERVAL_S, AuthReloader
from gateway.main.routes import ROUTES
from gateway.main.tls import ServerTls
from gateway.main.version import installed_version
from gateway.routing import selectors
from gateway.routing.select import PartitionSelector
from gateway.routing.table import RouteTable
from gateway.routing.tail_watcher import TailWatcher
from gateway.settings.config import GatewayConfig
from gateway.surfaces.http.admission import rates_of
from gateway.surfaces.http.context import Gateway, GatewayStats
from gateway.surfaces.http.routes import Body, Handler, Row
from store.clock import Clock
from store.errors import UnknownQueue
from store.topics import RESERVED_PREFIXES

OWN_ROUTES = frozenset(
    ("produce", "produce_partition", "fetch", "produce_raw", "produce_lines", "read_raw", "v3_produce",
     "v3_produce_batch")
)  # fmt: skip
"""Names of the routes that such a gateway answers by itself."""

PassedOn = Callable[[str, int, float], None]
"""Is told of requests of these routes that were passed on all the same: the route's name, the status, the seconds."""


class Passes(Protocol):
    """Passes requests on. See `Relay` and `ToNodes`."""

    async def answer(self, gateway: Gateway, request: web.Request, body: bytes | None = None) -> web.StreamResponse:
        """What the process that it is passed on to answers. `body`: the request's, when it was read."""
        ...


def storeless_gateway(
    config: GatewayConfig, clock: Clock, routes: RouteTable, *, cluster_id: str, admin: TopicAdmin | None = None
) -> Gateway:
    """The parts of a gateway over the brokers of a route table. What needs groups is passed on, and, without `admin`,
    what needs that."""
    limits = config.limits
    producer = Producer(
        routes,
        PartitionSelector(routes, room=config.room, below=random.randrange, now_ms=_monotonic_ms),
        clock=clock,
        limits=limits,
        acks=config.store.acks,
        compress=config.compression == "zstd",
        selectors=selectors.load(selectors.installed()),
    )
    routes.on_removed = producer.forget
    return Gateway(
        version=installed_version(),
        cluster_id=cluster_id,
        started_ms=clock.now_ms(),
        config=config,
        limits=limits,
        clock=clock,
        routes_table=routes,
        admin=cast(TopicAdmin, admin),
        producer=producer,
        consumer=Consumer(routes, TailWatcher(routes)),
        groups=cast(Groups, None),
        rates=rates_of(limits),
        stats=GatewayStats(),
        texts=TextCache(limits.rendered_bytes_max),
        draining=asyncio.Event(),
    )


def rows_of(
    passes: Passes, own: AbstractSet[str], *, local: AbstractSet[str] = frozenset(), passed_on: PassedOn | None = None
) -> list[Row]:
    """The route table of a gateway that answers requests of the routes `own` by itself when it knows the topic, those
    of `local` always, and passes all others on: the node that answers them decides who may ask."""

    async def relayed(gateway: Gateway, request: web.Request, _: bytes) -> web.StreamResponse:
        return await passes.answer(gateway, request)

    def row_of(row: Row) -> Row:
        if row.name in local:
            return row
        if row.name in own:
            return replace(row, handler=_own(row, passes, passed_on), action=None)
        return replace(row, handler=relayed, permission=Permission.PUBLIC, body=Body.NONE, action=None)

    return [row_of(row) for row in ROUTES]


def _own(row: Row, passes: Passes, passed_on: PassedOn | None) -> Handler:
    handler = row.handler

    async def pass_on(gateway: Gateway, request: web.Request, body: bytes | None) -> web.StreamResponse:
        started_s = time.perf_counter()
        answer = await passes.answer(gateway, request, body)
        if passed_on is not None:
            passed_on(row.name, answer.status, time.perf_counter() - started_s)
        return answer

    async def own(gateway: Gateway, request: web.Request, body: bytes) -> web.StreamResponse:
        topic = request.match_info["topic"]
        read = None if row.body in (Body.STREAM, Body.NONE) else body
        if topic.startswith(RESERVED_PREFIXES) or topic not in cast(RouteTable, gateway.routes_table):
            return await pass_on(gateway, request, read)  # the rights to groups' own topics are known there
        try:
            return await handler(gateway, request, body)
        except UnknownQueue:  # perhaps it has grown, or was made anew: that is known there
            if row.body is Body.STREAM:
                raise
            return await pass_on(gateway, request, read)

    return own


async def reload_quietly(auth: AuthReloader | None, tls: ServerTls | None) -> None:
    """Look for changed files of rights and certificates until cancelled; there is no trail here to tell."""
    while auth is not None or tls is not None:
        await asyncio.sleep(RELOAD_INTERVAL_S)
        if auth is not None:
            await auth.reload()
        if tls is not None:
            tls.reload()


def _monotonic_ms() -> float:
    return time.perf_counter() * 1000
