"""A gateway process without a store, beside the store's (`mq serve --workers`): it takes clients' connections, answers
sends and reads itself, over the store's process as its broker (gateway/cluster/peer.py), and passes all else on to it.

    in      from its parent's pipe, once: what it is (`Start`). The end of that pipe is its order to stop, and comes too
            when its parent is killed
    topics  asked of the store's process, which answers when they change. A topic that is not known here is asked for
            there: whoever made one through another process may use it at once
    counts  told to the store's process each second, which adds them to its own: so they are of the whole server

Sends of one turn that go to the same partition are one batch, and the batches of all partitions that wait are one call
of the store's process: what a POST costs there is shared by all that come together here.
"""

from __future__ import annotations

import asyncio
import logging
import os
import pickle
import random
import signal
import socket
import sys
import time
from collections.abc import Set as AbstractSet
from contextlib import AsyncExitStack, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import cast

import uvloop
from aiohttp import web

from gateway.api.producer import Producer
from gateway.api.read import Consumer
from gateway.api.topics import TopicAdmin
from gateway.auth.access import Permission
from gateway.brokers.base import ALONE, BrokerUnreachable
from gateway.cluster.peer import PeerBroker
from gateway.cluster.peer_auth import Secret
from gateway.cluster.topics import decode_topic
from gateway.codec.texts import TextCache
from gateway.groups.protocol import Groups
from gateway.main import logs
from gateway.main.garbage import calm_collector
from gateway.main.listener import listening
from gateway.main.memory import give_back_forever, resident_bytes, share_one_arena
from gateway.main.reload import RELOAD_INTERVAL_S, AuthReloader
from gateway.main.routes import ROUTES
from gateway.main.tls import ServerTls
from gateway.main.version import installed_version
from gateway.main.worker_counts import Counts
from gateway.routing import selectors
from gateway.routing.fault import TABLES
from gateway.routing.select import PartitionSelector
from gateway.routing.table import RouteTable
from gateway.routing.tail_watcher import TailWatcher
from gateway.settings.config import GatewayConfig
from gateway.surfaces.http.admission import rates_of
from gateway.surfaces.http.application import application_of
from gateway.surfaces.http.connection import ConnectionLimiter
from gateway.surfaces.http.context import Gateway, GatewayStats
from gateway.surfaces.http.relaying import Relay
from gateway.surfaces.http.routes import Body, Handler, Row
from store.clock import SystemClock
from store.errors import StoreError, UnknownQueue
from store.topics import RESERVED_PREFIXES

log = logging.getLogger(__name__)

OWN_ROUTES = frozenset(
    ("produce", "produce_partition", "fetch", "produce_raw", "produce_lines", "read_raw", "v3_produce",
     "v3_produce_batch")
)  # fmt: skip
"""Names of the routes that a worker answers by itself."""

TOPICS_WAIT_MS = 25_000
COUNTS_INTERVAL_S = 1.0
RETRY_S = 0.2


@dataclass(frozen=True, slots=True, kw_only=True)
class Start:
    """What a worker is told by its parent."""

    number: int
    config: GatewayConfig
    listener: int
    """The handle of its listening socket, which its parent keeps open: who connects while it is started again waits."""

    directory: Path
    """Where the sockets of the store's process are."""

    secret: bytes
    cluster_id: str


STORE_SOCKET, HTTP_SOCKET = "store", "http"
"""In the directory: the store's process as a broker, and as a server."""


class Topics:
    """Keeps a route table as the store's process has it."""

    def __init__(self, number: int, broker: PeerBroker, routes: RouteTable, auth: AuthReloader | None) -> None:
        self._worker = number
        self._broker = broker
        self._routes = routes
        self._auth = auth
        self._token, self._number, self._access = "", -1, 0

    async def step(self, wait_ms: int) -> None:
        """Apply what has changed; wait for it, if nothing has. Raises StoreError."""
        head = {
            "worker": self._worker, "token": self._token, "number": self._number, "access": self._access,
            "wait_ms": wait_ms,
        }  # fmt: skip
        answer = await self._broker.ask("topics", head, wait_ms=wait_ms)
        known = {view.name: view for view in self._routes.topics()}
        for row in answer["topics"]:
            topic = decode_topic(row.encode()).topic
            if (before := known.get(topic.name)) is not None and before.topic_id != topic.topic_id:
                self._routes.remove(before)
            self._routes.put(topic, self._broker)
        there = set(answer["names"]) if answer["names"] is not None else known.keys()
        for name in known.keys() - there:
            self._routes.remove(known[name])
        self._token, self._number = answer["token"], answer["number"]
        if self._auth is not None and answer["access"] != self._access:
            self._access = answer["access"]
            await self._auth.reload()

    async def run(self) -> None:
        """Follow until cancelled."""
        while True:
            try:
                await self.step(TOPICS_WAIT_MS)
            except StoreError as error:
                log.warning("topics cannot be followed, trying again error=%s", error)
                await asyncio.sleep(RETRY_S)


def rows_of(relay: Relay, counts: Counts, own: AbstractSet[str]) -> list[Row]:
    """The route table of a worker that answers requests of these routes by itself."""

    async def relayed(gateway: Gateway, request: web.Request, _: bytes) -> web.StreamResponse:
        return await relay.answer(gateway, request)

    return [
        replace(row, handler=_own(row, relay, counts), action=None)
        if row.name in own
        else replace(row, handler=relayed, permission=Permission.PUBLIC, body=Body.NONE, action=None)
        for row in ROUTES
    ]


def _own(row: Row, relay: Relay, counts: Counts) -> Handler:
    handler = row.handler

    async def pass_on(gateway: Gateway, request: web.Request, body: bytes | None) -> web.StreamResponse:
        started_s = time.perf_counter()
        answer = await relay.answer(gateway, request, body)
        counts.passed_on(row.name, answer.status, time.perf_counter() - started_s)
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


async def run(start: Start, stopping: asyncio.Event) -> None:
    """Be a worker until `stopping` is set."""
    config, clock = start.config, SystemClock()
    tls = ServerTls(config.tls) if config.tls.is_on else None
    auth = AuthReloader(config, clock) if config.auth.enabled else None
    listener = socket.socket(fileno=start.listener)
    listener.setblocking(False)
    routes = RouteTable(TABLES[config.latency_penalties])
    routes.rooms[ALONE] = config.room
    async with AsyncExitStack() as parts:
        address = f"unix:{start.directory / STORE_SOCKET}"
        broker = await parts.enter_async_context(PeerBroker(ALONE, address, Secret(start.secret), clock))
        relay = Relay(start.directory / HTTP_SOCKET)
        parts.push_async_callback(relay.close)
        topics = Topics(start.number, broker, routes, auth)
        await topics.step(0)
        stats = GatewayStats()
        producer = Producer(
            routes,
            PartitionSelector(routes, room=config.room, below=random.randrange, now_ms=_monotonic_ms),
            clock=clock,
            limits=config.limits,
            acks=config.store.acks,
            compress=config.compression == "zstd",
            selectors=selectors.load(selectors.installed()),
        )
        gateway = Gateway(
            version=installed_version(),
            cluster_id=start.cluster_id,
            config=config,
            limits=config.limits,
            clock=clock,
            routes_table=routes,
            admin=cast(TopicAdmin, None),  # all that needs one is passed on, as what needs groups
            producer=producer,
            consumer=Consumer(routes, TailWatcher(routes)),
            groups=cast(Groups, None),
            rates=rates_of(config.limits),
            stats=stats,
            texts=TextCache(config.limits.rendered_bytes_max),
            draining=asyncio.Event(),
        )
        if auth is not None:
            gateway = replace(gateway, authenticator=auth.authenticator)
        own = OWN_ROUTES if gateway.rates is None else frozenset[str]()  # one process counts rates, for all
        counts = Counts(stats, producer, own)
        application = application_of(gateway, rows_of(relay, counts, own))
        limiter = ConnectionLimiter(config.limits, stats, clock.now_ms)
        async with asyncio.TaskGroup() as tasks:
            running = [
                tasks.create_task(topics.run(), name="topics"),
                tasks.create_task(_reload(auth, tls), name="reload"),
                tasks.create_task(give_back_forever(), name="memory"),
            ]
            async with listening(application, gateway, limiter, listener, tls, has_groups=False):
                running.append(tasks.create_task(_tell(broker, start.number, counts), name="counts"))
                log.info("worker accepting worker=%d", start.number)
                await stopping.wait()
                gateway.draining.set()
            for task in running:
                task.cancel()
        with suppress(StoreError):
            await _tell_once(broker, start.number, counts)


def _monotonic_ms() -> float:
    return time.perf_counter() * 1000


async def _tell(broker: PeerBroker, number: int, counts: Counts) -> None:
    while True:
        with suppress(BrokerUnreachable):
            await _tell_once(broker, number, counts)
        await asyncio.sleep(COUNTS_INTERVAL_S)


async def _tell_once(broker: PeerBroker, number: int, counts: Counts) -> None:
    taken = counts.take()
    rss_bytes = 0
    with suppress(OSError):
        rss_bytes = resident_bytes()
    head = {"worker": number, "pid": os.getpid(), "cpu_s": time.process_time(), "rss_bytes": rss_bytes, **taken}
    try:
        await broker.ask("counts", head)
    except StoreError:
        counts.put_back()
        raise


async def _reload(auth: AuthReloader | None, tls: ServerTls | None) -> None:
    while auth is not None or tls is not None:
        await asyncio.sleep(RELOAD_INTERVAL_S)
        if auth is not None:
            await auth.reload()
        if tls is not None:
            tls.reload()


async def _main(start: Start) -> None:
    loop = asyncio.get_running_loop()
    stopping = asyncio.Event()

    def told() -> None:
        if not os.read(0, 1):
            loop.remove_reader(0)
            stopping.set()

    loop.add_reader(0, told)
    await run(start, stopping)


def main() -> None:
    """The process of one worker."""
    for number in (signal.SIGINT, signal.SIGTERM):  # also sent to a whole process group: the parent says when
        signal.signal(number, signal.SIG_IGN)
    size = int.from_bytes(os.read(0, 4), "big")
    with os.fdopen(os.dup(0), "rb", buffering=0) as pipe:
        said = b""
        while len(said) < size:
            said += pipe.read(size - len(said)) or sys.exit(1)
    start: Start = pickle.loads(said)  # noqa: S301 -- of the parent's own pipe
    logs.configure(logging.getLevelNamesMapping()[start.config.log_level.upper()], start.config.log_format)
    calm_collector()
    share_one_arena()
    uvloop.run(_main(start))


if __name__ == "__main__":
    main()
