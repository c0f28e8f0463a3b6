"""A gateway process without a store, beside the store's (`mq serve --workers`): it takes clients' connections, answers
sends and reads itself, over the store's process as its broker (gateway/cluster/peer.py), and passes all else on to it.

    in      from its parent's pipe, once: what it is (`Start`). The end of that pipe is its order to stop, and comes too
            when its parent is killed
    topics  asked of the store's process, which answers when they change. A topic that is not known here is asked for
            there: a client that made one through another process may use it at once
    cluster a worker of a node follows the cluster's metadata itself: what is on other nodes it asks of them, not of its
            own process first. What is on its own node goes over the socket
    counts  told to the store's process each second, which adds them to its own: so they are of the whole server

Sends of one turn that go to the same partition are one batch, and the batches of all partitions that wait are one call
of the store's process: what a POST costs there is shared by all that come together here.
"""

from __future__ import annotations

import asyncio
import logging
import os
import pickle
import signal
import socket
import sys
import time
from contextlib import AsyncExitStack, suppress
from dataclasses import dataclass, replace
from pathlib import Path

import uvloop

from gateway.brokers.base import ALONE, BrokerUnreachable
from gateway.cluster.peer import PeerBroker
from gateway.cluster.peer_auth import Secret
from gateway.cluster.peer_wire import Head
from gateway.cluster.topics import decode_topic
from gateway.main import logs
from gateway.main.clustering import following
from gateway.main.garbage import calm_collector
from gateway.main.listener import listening
from gateway.main.memory import give_back_forever, resident_bytes, share_one_arena
from gateway.main.reload import AuthReloader
from gateway.main.schemas import opened_schemas
from gateway.main.storeless import OWN_ROUTES, reload_quietly, rows_of, storeless_gateway
from gateway.main.tls import ServerTls
from gateway.main.worker_counts import Counts
from gateway.routing.detector import Detector
from gateway.routing.fault import TABLES
from gateway.routing.table import RouteTable
from gateway.settings.config import GatewayConfig
from gateway.surfaces.http.application import application_of
from gateway.surfaces.http.connection import ConnectionLimiter
from gateway.surfaces.http.relaying import Relay
from store.clock import SystemClock
from store.errors import StoreError

log = logging.getLogger(__name__)

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

    def __init__(self, number: int, broker: PeerBroker, routes: RouteTable | None, auth: AuthReloader | None) -> None:
        """`routes` None: topics come from elsewhere, and only rights are followed."""
        self._worker = number
        self._broker = broker
        self._routes = routes
        self._auth = auth
        self._token, self._number, self._access = "", -1, 0

    async def step(self, wait_ms: int) -> None:
        """Apply what has changed; wait for it, if nothing has. Raises StoreError."""
        head = {
            "worker": self._worker, "token": self._token, "number": self._number, "access": self._access,
            "wait_ms": wait_ms, "with_topics": self._routes is not None,
        }  # fmt: skip
        answer = await self._broker.ask("topics", head, wait_ms=wait_ms)
        if self._routes is not None:
            self._apply(self._routes, answer)
        self._token, self._number = answer["token"], answer["number"]
        if self._auth is not None and answer["access"] != self._access:
            self._access = answer["access"]
            await self._auth.reload()

    def _apply(self, routes: RouteTable, answer: Head) -> None:
        known = {view.name: view for view in routes.topics()}
        for row in answer["topics"]:
            topic = decode_topic(row.encode()).topic
            if (before := known.get(topic.name)) is not None and before.topic_id != topic.topic_id:
                routes.remove(before)
            routes.put(topic, self._broker)
        there = set(answer["names"]) if answer["names"] is not None else known.keys()
        for name in known.keys() - there:
            routes.remove(known[name])

    async def run(self) -> None:
        """Follow until cancelled."""
        while True:
            try:
                await self.step(TOPICS_WAIT_MS)
            except StoreError as error:
                log.warning("topics cannot be followed, trying again error=%s", error)
                await asyncio.sleep(RETRY_S)


async def run(start: Start, stopping: asyncio.Event) -> None:
    """Be a worker until `stopping` is set."""
    config, clock = start.config, SystemClock()
    tls = ServerTls(config.tls) if config.tls.is_on else None
    auth = AuthReloader(config, clock) if config.auth.enabled else None
    listener = socket.socket(fileno=start.listener)
    listener.setblocking(False)
    routes = RouteTable(TABLES[config.latency_penalties])
    name = config.cluster.node or ALONE
    routes.rooms[name] = config.room
    async with AsyncExitStack() as parts:
        address = f"unix:{start.directory / STORE_SOCKET}"
        broker = await parts.enter_async_context(PeerBroker(name, address, Secret(start.secret), clock))
        relay = Relay(start.directory / HTTP_SOCKET)
        parts.push_async_callback(relay.close)
        node = None
        if config.cluster.node is not None:
            node = await parts.enter_async_context(
                following(config, routes, clock, name=name, broker=broker, cluster=start.cluster_id)
            )
        topics = Topics(start.number, broker, routes if node is None else None, auth)
        await topics.step(0)
        gateway = storeless_gateway(config, clock, routes, cluster_id=start.cluster_id)
        gateway = replace(gateway, schemas=await parts.enter_async_context(opened_schemas(config.registry)))
        stats = gateway.stats
        if auth is not None:
            gateway = replace(gateway, authenticator=auth.authenticator)
        own = OWN_ROUTES if gateway.rates is None else frozenset[str]()  # one process counts rates, for all
        counts = Counts(stats, gateway.producer, own)
        application = application_of(gateway, rows_of(relay, own, passed_on=counts.passed_on))
        limiter = ConnectionLimiter(config.limits, stats, clock.now_ms)
        async with asyncio.TaskGroup() as tasks:
            running = [
                tasks.create_task(topics.run(), name="topics"),
                tasks.create_task(reload_quietly(auth, tls), name="reload"),
                tasks.create_task(give_back_forever(), name="memory"),
            ]
            if node is not None:
                running.append(tasks.create_task(node.follow(), name="cluster"))
                running.append(tasks.create_task(Detector(routes).run(), name="detector of unreachable brokers"))
            async with listening(application, gateway, limiter, listener, tls, has_groups=False):
                running.append(tasks.create_task(_tell(broker, start.number, counts), name="counts"))
                log.info("worker accepting worker=%d", start.number)
                await stopping.wait()
                gateway.draining.set()
            for task in running:
                task.cancel()
        with suppress(StoreError):
            await _tell_once(broker, start.number, counts)


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
    logs.configure(start.config.logging_level, start.config.log_format)
    calm_collector()
    share_one_arena()
    uvloop.run(_main(start))


if __name__ == "__main__":
    main()
