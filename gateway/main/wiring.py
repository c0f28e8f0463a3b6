"""The only wiring: store, timer, broker, routes and HTTP put together, run, and stopped in order.

Starting is: listen and say "not ready", recover the store, recover the timer, answer requests, announce. From then on
one task group holds everything that lives long; if one of its tasks dies, the others are stopped and `serve` raises:
recovery at the next start is the only way back. A failed disk is no such death: the store then refuses records for good
and goes on serving reads.

Stopping (SIGTERM, SIGINT): readiness off; after `drain_delay_ms` `draining` is set, so sockets tell their clients and
long polls answer; no new connections; requests that are being answered finish; timer and store are closed clean. A
second signal ends the process at once, as a crash would: nothing acknowledged is lost, and the next start recovers.
"""

from __future__ import annotations

import asyncio
import gc
import logging
import random
import signal
import socket
import ssl
import time
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from dataclasses import replace
from time import monotonic_ns

from aiohttp import web
from aiohttp.http_exceptions import HttpProcessingError
from prometheus_client.core import GaugeMetricFamily, HistogramMetricFamily, Metric

from gateway.api.consumer import Consumer
from gateway.api.producer import Producer
from gateway.api.quotas import TopicQuota
from gateway.auth.authenticator import PolicyAuthenticator
from gateway.auth.policy import PolicyFiles
from gateway.brokers.local import LocalBroker
from gateway.groups.coordinator.metrics import coordinator_metrics
from gateway.groups.coordinator.service import Coordinator
from gateway.main.identity import cluster_id
from gateway.main.metrics import Collector, histogram_buckets, integers_of, registry_of
from gateway.main.tls import ServerTls
from gateway.main.version import installed_version
from gateway.routing.base import TopicView
from gateway.routing.select import PartitionSelector
from gateway.routing.table import RouteTable
from gateway.settings.config import GatewayConfig
from gateway.settings.limits import Limits
from gateway.surfaces.http.admission import rates_of
from gateway.surfaces.http.answers import RequestIds
from gateway.surfaces.http.application import build_application, origins_of, uses_c_parser
from gateway.surfaces.http.connection import Connection, Door, Site
from gateway.surfaces.http.context import Gateway, GatewayStats
from gateway.surfaces.http.starting import RecoveryProgress, build_starting_application
from gateway.surfaces.native.schedules import SCHEDULES
from gateway.surfaces.rest_v2.consumers import INSTANCES
from gateway.surfaces.rest_v2.fast_path import Express
from gateway.surfaces.rest_v2.instances.service import Instances
from store import Store
from store.clock import Clock, SystemClock
from store.errors import StoreStopped, TopicExists
from store.files import Files, OsFiles
from store.topics import Changes, TopicConfig
from timer.metrics import LATENESS_BOUNDS_MS
from timer.service import TimerService

log = logging.getLogger(__name__)

BROKER_NAME = "local"
BACKLOG = 1024
LINGERING_S = 5.0
"""How long what a client still sends is read and dropped after it was refused, so that it gets to see the answer."""

MALFORMED_LOG_INTERVAL_S = 60.0
"""How often a line about them is written."""

RELOAD_INTERVAL_S = 1.0
"""How often tokens, access rules, keys and certificates are looked at for changes."""

_GC_ALLOCATIONS = 50_000
"""Tracked objects that may come into being before the collector looks at the young ones."""


async def serve(config: GatewayConfig, *, announce: Callable[[str], None]) -> None:
    """Run a server until SIGTERM or SIGINT. `announce` gets its URL once it accepts connections.

    Raises StoreLocked, Corrupt, PolicyError, TlsError, or OSError when it cannot start; an ExceptionGroup when one of
    its tasks died.
    """
    stopping = asyncio.Event()
    loop = asyncio.get_running_loop()
    signals = (signal.SIGTERM, signal.SIGINT)

    def stop() -> None:
        stopping.set()
        for number in signals:  # from now on they kill: what is acknowledged needs no farewell
            loop.remove_signal_handler(number)
            signal.signal(number, signal.SIG_DFL)

    for number in signals:
        loop.add_signal_handler(number, stop)
    calm_collector()
    try:
        await run(config, announce=announce, stopping=stopping)
    finally:
        for number in signals:
            loop.remove_signal_handler(number)


def calm_collector() -> None:
    """Make the cyclic garbage collector look less often, and never at what was loaded before the start.

    A batch of 1,000 records is some 5,000 tracked objects that die by reference count; with Python's defaults the
    collector walked them again and again: half of the CPU time of such a request (8.7 ms, now 4.3 ms).
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(_GC_ALLOCATIONS, 20, 20)


async def run(
    config: GatewayConfig,
    *,
    announce: Callable[[str], None],
    stopping: asyncio.Event,
    files: Files | None = None,
    clock: Clock | None = None,
) -> None:
    """As `serve`, until `stopping` is set."""
    if not uses_c_parser():
        raise RuntimeError("aiohttp runs without its C parser; install a wheel or a compiler, then reinstall aiohttp")
    files = files or OsFiles()
    clock = clock or SystemClock()
    tls = ServerTls(config.tls) if config.tls.is_on else None
    guard = Guard(config, clock) if config.auth.enabled else None
    _warn_of_exposure(config)
    async with AsyncExitStack() as parts:
        listener = parts.enter_context(_bound(config))
        progress = RecoveryProgress()
        async with _starting(config, listener, progress, tls):
            store = await parts.enter_async_context(_opened_store(config, files, clock, progress))
            timer = await parts.enter_async_context(_opened_timer(config, store, files, clock))
            store.pin(lambda: timer.needed_position)
            admin = LocalAdmin(store, timer, config.limits)
            gateway, groups = build_gateway(config, store, timer, admin, clock)
            await parts.enter_async_context(_opened_groups(groups, store, admin))
        if guard is not None:
            gateway = replace(gateway, authenticator=guard.authenticator)
        application = build_application(gateway)
        application[SCHEDULES] = timer
        application[INSTANCES] = instances = _restored_instances(gateway)
        async with asyncio.TaskGroup() as tasks:
            running = [
                tasks.create_task(admin.run_timer(), name="timer"),
                tasks.create_task(store.watch(), name="store"),
                tasks.create_task(groups.run(), name="groups"),
                tasks.create_task(instances.run(), name="consumer instances"),
                tasks.create_task(_reload(guard, tls), name="reload"),
            ]
            async with listening(application, gateway, listener, tls):
                url = _url(config.host, listener, tls)
                announce(url)
                log.info("accepting url=%s data=%s acks=%s", url, config.data, config.store.acks.name.lower())
                await stopping.wait()
                gateway.leaving.set()
                log.info("stopping; a second signal stops at once")
                await asyncio.sleep(config.drain_delay_ms / 1000)
                log.info("draining")
                gateway.draining.set()
            for task in running:
                task.cancel()
    log.info("stopped")


class Guard:
    """Who may come in, from files that are read again when they change."""

    def __init__(self, config: GatewayConfig, clock: Clock) -> None:
        self._files = PolicyFiles(config.auth)
        policy = self._files.load()
        if not policy.tokens and policy.jwt is None:
            log.warning("nobody can get in yet: make a token with 'mq token create', or set auth.jwt_issuer")
        self.authenticator = PolicyAuthenticator(
            policy,
            clock=clock,
            now_ms=lambda: monotonic_ns() // 1_000_000,
            token_in_query=config.auth.token_in_query,
            free_failures=config.auth.free_failures,
        )

    async def reload(self) -> None:
        """Let what the files say now hold."""
        policy = await asyncio.to_thread(self._files.reload)
        if policy is not None:
            self.authenticator.replace(policy)


async def _reload(guard: Guard | None, tls: ServerTls | None) -> None:
    while guard is not None or tls is not None:
        await asyncio.sleep(RELOAD_INTERVAL_S)
        if guard is not None:
            await guard.reload()
        if tls is not None:
            tls.reload()


def _warn_of_exposure(config: GatewayConfig) -> None:
    """Say in the log what the settings allow and somebody may not have meant."""
    if not config.auth.enabled and config.auth.tokens_path.exists():
        log.warning("tokens are there and nobody is asked for one: auth.enabled is off")
    if config.auth.enabled and not config.is_loopback and not config.tls.is_on:
        log.warning("tokens pass unencrypted beyond this machine: set tls.cert_file, or let a proxy speak TLS")


class LocalAdmin:
    """Topics of the embedded broker, and whether it can take and deliver records."""

    def __init__(self, store: Store, timer: TimerService, limits: Limits) -> None:
        self.routes = RouteTable()
        self._quota = TopicQuota(limits, self.routes.topics)
        self.on_change: Callable[[], None] = lambda: None
        """Called after topics came, grew or went."""

        self.broker = LocalBroker(store, timer, name=BROKER_NAME, on_topic=self._place, on_deleted=self._remove)
        self._timer = timer
        self._timer_failure: str | None = None
        for topic in store.topics():
            if not topic.is_system:
                self._place(topic)

    def _place(self, topic: TopicView) -> None:
        self.routes.place(topic, self.broker)
        self.on_change()

    def _remove(self, topic: TopicView) -> None:
        self.routes.remove(topic)
        self.on_change()

    async def create_own_topic(self, name: str, partitions: int) -> TopicView:
        """See `gateway.groups.coordinator.context.OwnTopics`."""
        try:
            return await self.broker.create_topic(name, partitions, is_own=True)
        except TopicExists:
            return self.routes.topic(name)

    async def create_topic(self, name: str, partitions: int, config: TopicConfig | None = None) -> TopicView:
        """See `gateway.surfaces.http.context.TopicAdmin`."""
        is_there = name in self.routes
        with self._quota.room_for(topics=int(not is_there), partitions=0 if is_there else partitions):
            return await self.broker.create_topic(name, partitions, config=config)

    async def configure_topic(self, name: str, changes: Changes) -> TopicView:
        """See `gateway.surfaces.http.context.TopicAdmin`."""
        return await self.broker.configure_topic(name, changes)

    async def grow_topic(self, name: str, partitions: int) -> TopicView:
        """See `gateway.surfaces.http.context.TopicAdmin`."""
        more = partitions - self.routes.topic(name).partitions
        with self._quota.room_for(topics=0, partitions=max(0, more)):
            return await self.broker.grow_topic(name, partitions)

    async def delete_topic(self, name: str) -> None:
        """See `gateway.surfaces.http.context.TopicAdmin`."""
        await self.broker.delete_topic(name)

    def ready(self) -> Sequence[str]:
        """See `gateway.surfaces.http.context.TopicAdmin`."""
        reasons = list(self.broker.ready())
        if self._timer_failure is not None:
            reasons.append(self._timer_failure)
        return reasons

    async def run_timer(self) -> None:
        """Deliver delayed records until cancelled. When a disk has failed, stop delivering, but let reads go on."""
        try:
            await self._timer.run()
        except* (StoreStopped, OSError) as failures:
            cause = failures.exceptions[0]
            log.error("timer stopped, delayed records wait for a restart error=%r", cause, exc_info=cause)
            self._timer_failure = f"the timer has stopped: {type(cause).__name__}"


def build_gateway(
    config: GatewayConfig, store: Store, timer: TimerService, admin: LocalAdmin, clock: Clock
) -> tuple[Gateway, Coordinator]:
    """The parts of one gateway over an open store and timer, and the coordinator of its groups, not started."""
    limits = config.limits
    stats = GatewayStats()
    draining = asyncio.Event()
    groups = Coordinator(
        directory=config.data,
        files=store.files,
        broker=admin.broker,
        routes=admin.routes,
        own_topics=admin,
        clock=clock,
        monotonic_ms=lambda: monotonic_ns() // 1_000_000,
        draining=draining,
        in_flight_max=limits.group_in_flight_max,
        groups_max=limits.groups_max,
    )
    producer = Producer(
        admin.routes,
        PartitionSelector(admin.routes, below=random.randrange, now_ms=lambda: time.perf_counter() * 1000),
        clock=clock,
        limits=limits,
        acks=config.store.acks,
        compress=config.compression == "zstd",
    )
    sources = (lambda: store_metrics(store), lambda: timer_metrics(timer), lambda: coordinator_metrics(groups))
    gateway = Gateway(
        version=installed_version(),
        cluster_id=cluster_id(config.data, store.files),
        started_ms=clock.now_ms(),
        config=config,
        limits=limits,
        clock=clock,
        routes_table=admin.routes,
        admin=admin,
        producer=producer,
        consumer=Consumer(admin.routes),
        groups=groups,
        rates=rates_of(limits),
        stats=stats,
        metrics=registry_of(Collector(stats, producer, sources)),
        draining=draining,
    )
    return gateway, groups


def _restored_instances(gateway: Gateway) -> Instances:
    instances = Instances(
        gateway.groups,
        gateway.consumer,
        gateway.routes_table,
        limits=gateway.limits,
        idle_timeout_ms=gateway.config.consumer_instance_timeout_ms,
        draining=gateway.draining,
    )
    instances.restore()
    return instances


def store_metrics(store: Store) -> Iterator[Metric]:
    """What the store counts."""
    yield from integers_of(store.stats, "mq_store")
    yield GaugeMetricFamily("mq_store_waiting_bytes", "Bytes accepted and not yet written.", value=store.waiting_bytes)
    yield GaugeMetricFamily("mq_store_log_end_bytes", "End of the readable log.", value=store.end_position)
    ids, producers = store.remembered
    yield GaugeMetricFamily("mq_store_dedup_ids", "Ids of recent sends that are remembered.", value=ids)
    yield GaugeMetricFamily("mq_store_producers", "Numbered producers that are remembered.", value=producers)
    failed = 0 if store.failure is None else 1
    yield GaugeMetricFamily("mq_store_failed", "1 when records are refused until a restart.", value=failed)


def timer_metrics(timer: TimerService) -> Iterator[Metric]:
    """What the timer counts."""
    counts = timer.metrics
    yield from integers_of(counts, "mq_schedule")
    yield GaugeMetricFamily("mq_schedule_pending", "Delayed records not delivered yet.", value=timer.pending_count)
    yield GaugeMetricFamily("mq_schedule_read_lag_ms", "How far delivery is behind the clock.", value=timer.read_lag_ms)
    yield GaugeMetricFamily(
        "mq_schedule_write_lag_ms", "How far the open slots are behind the clock.", value=timer.write_lag_ms
    )
    by_topic = GaugeMetricFamily(
        "mq_schedule_pending_by_topic",
        "Delayed records hung into the wheel, by the id of their topic.",
        labels=["topic_id"],
    )
    for topic_id, count in sorted(timer.pending_counts().items()):
        by_topic.add_metric([str(topic_id)], count)
    yield by_topic
    lateness = HistogramMetricFamily(
        "mq_schedule_fire_lateness_seconds", "Time from the due time to the durable delivery."
    )
    buckets = histogram_buckets([bound / 1000 for bound in LATENESS_BOUNDS_MS], counts.late_counts)
    lateness.add_metric((), buckets, counts.late_sum_ms / 1000)
    yield lateness
    lag = timer.enqueue_lag_count
    yield GaugeMetricFamily("mq_schedule_enqueue_lag", "Accepted records that are not in the wheel yet.", value=lag)


@asynccontextmanager
async def _opened_store(
    config: GatewayConfig, files: Files, clock: Clock, progress: RecoveryProgress
) -> AsyncIterator[Store]:
    store = await Store.open(config.store, files=files, clock=clock, progress=progress.tell)
    try:
        yield store
    finally:
        await store.close()


@asynccontextmanager
async def _opened_timer(config: GatewayConfig, store: Store, files: Files, clock: Clock) -> AsyncIterator[TimerService]:
    timer = TimerService(config.timer, store, files, clock)
    await timer.start()
    try:
        yield timer
    finally:
        try:
            await timer.close()
        except OSError as error:  # its files are derived: the next start rebuilds them from the log
            log.error("timer not closed clean error=%s", error)


@asynccontextmanager
async def _opened_groups(groups: Coordinator, store: Store, admin: LocalAdmin) -> AsyncIterator[None]:
    def needed_position() -> int:
        position = groups.needed_position
        return store.end_position if position is None else position

    store.pin(needed_position)  # before they are read: until then all of the log is needed
    await groups.start()
    admin.on_change = groups.topics_changed
    try:
        yield
    finally:
        await groups.close()


@contextmanager
def _bound(config: GatewayConfig) -> Iterator[socket.socket]:
    """A listening socket. Bound before anything is opened: who connects meanwhile waits, or is told to."""
    family, kind, protocol, _, address = socket.getaddrinfo(
        config.host, config.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
    )[0]
    with socket.socket(family, kind, protocol) as listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(address)
        listener.listen(BACKLOG)
        listener.setblocking(False)
        yield listener


def _url(host: str, listener: socket.socket, tls: ServerTls | None) -> str:
    port = listener.getsockname()[1]
    scheme = "http" if tls is None else "https"
    return f"{scheme}://[{host}]:{port}" if ":" in host else f"{scheme}://{host}:{port}"


@asynccontextmanager
async def _starting(
    config: GatewayConfig, listener: socket.socket, progress: RecoveryProgress, tls: ServerTls | None
) -> AsyncIterator[None]:
    """Answer that the server is not ready, until the block ends."""
    runner = web.AppRunner(
        build_starting_application(progress),
        handle_signals=False,
        access_log=None,
        auto_decompress=False,
        keepalive_timeout=0,  # nobody is to stay with an application that goes away
        shutdown_timeout=config.shutdown_timeout_ms / 1000,
    )
    await runner.setup()
    try:
        await web.SockSite(runner, listener.dup(), ssl_context=_context(tls)).start()
        yield
    finally:
        await runner.cleanup()


def _context(tls: ServerTls | None) -> ssl.SSLContext | None:
    return None if tls is None else tls.context


@asynccontextmanager
async def listening(
    application: web.Application, gateway: Gateway, listener: socket.socket, tls: ServerTls | None = None
) -> AsyncIterator[None]:
    """Answer requests; on leaving, stop accepting and let running requests finish."""
    config = gateway.config
    runner = web.AppRunner(application, handle_signals=False, shutdown_timeout=config.shutdown_timeout_ms / 1000)
    await runner.setup()
    server = runner.server
    assert server is not None
    door = Door(config.limits, gateway.stats)
    request_ids = RequestIds()
    express = Express(gateway, origins_of(config), request_ids)
    protocol_log = _protocol_log(gateway.stats)

    def connect() -> Connection:
        return Connection(
            server,
            door,
            request_ids,
            express,
            access_log=None,
            auto_decompress=False,
            keepalive_timeout=config.keepalive_timeout_ms / 1000,
            lingering_time=LINGERING_S,
            logger=protocol_log,
        )

    try:
        await Site(runner, listener, connect, ssl_context=_context(tls), backlog=BACKLOG).start()
        yield
    finally:
        await runner.cleanup()


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
