"""The workers of a server: gateway processes beside the store's, which share its port (gateway/main/worker.py says what
they do). Here they are started, told what they need, counted, and started again when they die.

Each has a listening socket of its own on the one port, so the kernel shares connections out. The sockets stay open
here: who connects while a worker is started again is answered when it runs. Workers reach this process at two Unix
sockets in a directory that only this user may enter: its broker, for sends and reads, and its HTTP, for all else.

    a worker dies             it is started again, at once or after a growing pause; its clients lose their connections,
                              and what was being answered. What was acknowledged is stored
    one dies before it runs   the server does not start
    this process is killed    the workers see the end of their pipe, and end
    this process stops        the workers stop taking connections and answer what they have, then the store is closed
"""

from __future__ import annotations

import asyncio
import logging
import pickle
import secrets
import shutil
import socket
import sys
import tempfile
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Iterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

from aiohttp import web
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from gateway.brokers.base import NodeBroker
from gateway.cluster.peer_auth import Secret
from gateway.cluster.peer_wire import Head
from gateway.cluster.topics import TopicRecord, encode_topic
from gateway.main.admin import LocalAdmin
from gateway.main.listener import bound_unix_socket, listening
from gateway.main.reload import AuthReloader
from gateway.main.worker import HTTP_SOCKET, STORE_SOCKET, Start
from gateway.main.worker_counts import add
from gateway.surfaces.http.connection import ConnectionLimiter
from gateway.surfaces.http.context import Gateway
from gateway.surfaces.peer.link import serving_links
from gateway.surfaces.peer.server import PeerService, nothing
from store import Store
from store.waits import is_set_within

log = logging.getLogger(__name__)

PAUSE_S, PAUSE_S_MAX = 0.1, 5.0
"""Before a worker is started again: doubled each time it dies within STEADY_S."""

STEADY_S = 30.0
STOP_EXTRA_S = 5.0
"""How long a worker may take to end beyond the time its requests have; then it is killed."""

ACCESS_TIMEOUT_S = 1.0
"""How long a change of rights waits for workers to know of it."""

TOPICS_PAUSE_S = 0.02
"""At most so often workers are told of topics: changes in between go together."""


class TopicFeed:
    """What workers are told of topics: which are new or changed since they last asked."""

    def __init__(self, admin: LocalAdmin, auth: AuthReloader | None) -> None:
        """Tells from now on; the admin's other listener goes on."""
        self._admin = admin
        before = admin.on_change

        def changed() -> None:
            before()
            self._changed.set()

        admin.on_change = changed
        if auth is not None:
            auth.on_change = self._access_changed
            auth.held_by_all = self._access_told
        self._token = secrets.token_hex(4)
        self._number = 0
        self._rows: dict[str, tuple[int, object]] = {}  # by name: the number of its last change, the topic
        self._gone = 0  # the number at which one was last deleted
        self._access = 0
        self._changed = asyncio.Event()
        self._held: dict[int, int] = {}  # by worker: the number of the rights that it goes by
        self._asked = asyncio.Event()

    def _access_changed(self) -> None:
        self._access += 1
        self._number += 1
        self._changed.set()

    async def _access_told(self) -> None:
        """Return when every worker goes by who may do what now; one that hangs is not waited for long."""
        with suppress(TimeoutError):
            async with asyncio.timeout(ACCESS_TIMEOUT_S):
                while any(held < self._access for held in self._held.values()):
                    await self._asked.wait()

    def forget(self, worker: int) -> None:
        """It has ended, and will know what there is when it is started again."""
        self._held.pop(worker, None)
        self._ask()

    def _ask(self) -> None:
        self._asked.set()
        self._asked = asyncio.Event()

    async def answer(self, head: Head) -> Head:
        """See `gateway.main.worker.Topics`."""
        is_known = head["token"] == self._token
        self._held[int(head["worker"])] = int(head["access"]) if is_known else 0
        self._ask()
        since = int(head["number"]) if is_known else -1
        self._look()
        if is_known and self._number <= since:
            await is_set_within(self._changed, min(int(head["wait_ms"]), 60_000) / 1000)
            await asyncio.sleep(TOPICS_PAUSE_S)
            self._look()
        # A worker of a node has them from the cluster's metadata.
        rows = [view for number, view in self._rows.values() if number > since] if head.get("with_topics", True) else []
        return {
            "token": self._token,
            "number": self._number,
            "access": self._access,
            "topics": [encode_topic(TopicRecord(view, ((0, ("",)),))).decode() for view in rows],  # type: ignore[arg-type]
            "names": list(self._rows) if self._gone > since else None,
        }

    def _look(self) -> None:
        self._changed.clear()
        rows = self._rows
        topics = self._admin.routes.topics()
        number = self._number + 1
        for view in topics:
            known = rows.get(view.name)
            if known is None or known[1] is not view:
                rows[view.name] = number, view
                self._number = number
        if len(rows) > len(topics):
            for name in rows.keys() - {view.name for view in topics}:
                del rows[name]
            self._number = self._gone = number


class Workers:
    """See the module."""

    def __init__(self, gateway: Gateway, listeners: Sequence[socket.socket], feed: TopicFeed) -> None:
        self._gateway = gateway
        self._config = gateway.config
        self._listeners = listeners
        self._feed = feed
        self._processes: dict[int, asyncio.subprocess.Process] = {}
        self._told: dict[int, Head] = {}  # by worker: what it last said
        self._restarts = dict.fromkeys(range(1, len(listeners) + 1), 0)
        self._steady = asyncio.Event()
        self._is_stopping = False
        self._start: Callable[[int], Start]

    @asynccontextmanager
    async def serving(
        self,
        application: web.Application,
        broker: NodeBroker,
        store: Store,
        tasks: asyncio.TaskGroup,
        *,
        know: Callable[[Collection[int]], Awaitable[None]] = nothing,
    ) -> AsyncIterator[None]:
        """Have all of them take connections while the block runs; `tasks` keep them, and fail when one ends before it
        has taken connections. `know`: see `PeerService`. Raises OSError."""
        gateway, clock = self._gateway, self._gateway.clock
        async with AsyncExitStack() as parts:
            directory = Path(tempfile.mkdtemp(prefix="mq-"))  # 0700; a data directory's path may be too long
            parts.callback(shutil.rmtree, directory, ignore_errors=True)
            secret = secrets.token_bytes(32)
            self._start = lambda number: Start(
                number=number,
                config=self._config,
                listener=self._listeners[number - 1].fileno(),
                directory=directory,
                secret=secret,
                cluster_id=gateway.cluster_id,
            )
            service = PeerService(
                broker, Secret(secret), clock, queues_of=store.queues_of, know=know,
                more={"topics": self._feed.answer, "counts": self._counted},
            )  # fmt: skip
            bound = parts.enter_context(bound_unix_socket(directory / STORE_SOCKET))
            await parts.enter_async_context(serving_links(service, Secret(secret), bound))
            # Its connections are few and its own; those of clients are counted where they come in.
            limits = replace(self._config.limits, connections_per_address_max=0)
            limiter = ConnectionLimiter(limits, gateway.stats, clock.now_ms)
            bound = parts.enter_context(bound_unix_socket(directory / HTTP_SOCKET))
            await parts.enter_async_context(listening(application, gateway, limiter, bound, is_relayed=True))
            parts.push_async_callback(self._stop)
            for number in self._restarts:
                tasks.create_task(self._keep(number), name=f"worker {number}")
            await self._steady.wait()
            yield

    async def _keep(self, number: int) -> None:
        loop = asyncio.get_running_loop()
        pause_s = PAUSE_S
        while not self._is_stopping:
            begun_s = loop.time()
            self._told.pop(number, None)
            try:
                process = self._processes[number] = await self._spawn(number)
            except OSError as error:  # memory or handles are short for a moment, as when a worker was killed for them
                if not self._steady.is_set():
                    raise
                pause_s = min(2 * pause_s, PAUSE_S_MAX)
                log.error("worker cannot be started yet worker=%d pause_ms=%d error=%s", number, pause_s * 1000, error)
                await asyncio.sleep(pause_s)
                continue
            if self._is_stopping:  # begun while the others were told to end; it has no clients yet
                with suppress(ProcessLookupError):
                    process.kill()
            status = await process.wait()
            self._feed.forget(number)
            if self._is_stopping:
                return
            if not self._steady.is_set():
                raise RuntimeError(f"worker {number} ended with status {status} before it took connections")
            self._restarts[number] += 1
            pause_s = PAUSE_S if loop.time() - begun_s >= STEADY_S else min(2 * pause_s, PAUSE_S_MAX)
            log.error(
                "worker ended, starting it again worker=%d pid=%d status=%d pause_ms=%d",
                number, process.pid, status, pause_s * 1000,
            )  # fmt: skip
            await asyncio.sleep(pause_s)

    async def _spawn(self, number: int) -> asyncio.subprocess.Process:
        start = self._start(number)
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "gateway.main.worker",
            stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.DEVNULL, pass_fds=(start.listener,),
        )  # fmt: skip
        said = pickle.dumps(start)
        assert process.stdin is not None
        process.stdin.write(len(said).to_bytes(4, "big") + said)
        return process

    async def _stop(self) -> None:
        """Have all end; kill those that do not."""
        self._is_stopping = True
        running = [process for process in self._processes.values() if process.returncode is None]
        for process in running:
            assert process.stdin is not None
            process.stdin.close()
        if not running:
            return
        timeout_s = self._config.shutdown_timeout_ms / 1000 + STOP_EXTRA_S
        _, late = await asyncio.wait([asyncio.create_task(each.wait()) for each in running], timeout=timeout_s)
        for process in running:
            if process.returncode is None:
                log.error("worker does not end and is killed pid=%d", process.pid)
                process.kill()
        if late:
            await asyncio.wait(late)

    async def _counted(self, head: Head) -> Head:
        """What a worker has counted, and that it runs."""
        number = int(head["worker"])
        if number in self._restarts:
            add(head.pop("added"), self._gateway.stats, self._gateway.producer)
            process = self._processes.get(number)
            if process is not None and process.pid == head["pid"]:
                self._told[number] = head
                if len(self._told) == len(self._restarts):
                    self._steady.set()
        return {}

    def collect(self) -> Iterator[Metric]:
        """For the registry: which workers run, and what each uses."""
        up = GaugeMetricFamily("mq_worker_up", "Whether a worker runs.", labels=("worker",))
        restarts = CounterMetricFamily("mq_worker_restarts", "How often a worker has died.", labels=("worker",))
        cpu = CounterMetricFamily("mq_worker_cpu_seconds", "CPU of a worker's process.", labels=("worker",))
        rss = GaugeMetricFamily("mq_worker_resident_bytes", "Memory of a worker's process.", labels=("worker",))
        connections = GaugeMetricFamily("mq_worker_connections", "A worker's open connections.", labels=("worker",))
        polls = GaugeMetricFamily("mq_worker_long_polls", "Long polls that wait in a worker.", labels=("worker",))
        for number, count in self._restarts.items():
            name = (str(number),)
            restarts.add_metric(name, count)
            told: dict[str, Any] | None = self._told.get(number)
            up.add_metric(name, int(told is not None))
            if told is not None:
                cpu.add_metric(name, told["cpu_s"])
                rss.add_metric(name, told["rss_bytes"])
                connections.add_metric(name, told["connections"])
                polls.add_metric(name, told["long_polls"])
        yield from (up, restarts, cpu, rss, connections, polls)
