"""The only wiring: store, timer, broker, routes and HTTP put together, run, and stopped in order.

Starting is: listen and say "not ready", recover the store, recover the timer, answer requests, announce. From then on
one task group holds everything that lives long; if one of its tasks dies, the others are stopped and `serve` raises:
recovery at the next start is the only way back. A failed disk is no such death: the store then refuses records for good
and goes on serving reads.

Stopping (SIGTERM, SIGINT): readiness off and `draining` set, so sockets tell their clients and long polls answer; no
new connections; requests that are being answered finish; timer and store are closed clean.
"""

from __future__ import annotations

import asyncio
import gc
import logging
import signal
import socket
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from importlib.metadata import PackageNotFoundError
from importlib.metadata import version as package_version

from aiohttp import web
from aiohttp.http_exceptions import HttpProcessingError
from prometheus_client.core import GaugeMetricFamily, HistogramMetricFamily, Metric

from gateway.brokers.local import LocalBroker
from gateway.config import GatewayConfig
from gateway.consumer import Consumer
from gateway.http.application import build_application, uses_c_parser
from gateway.http.context import Gateway, GatewayStats
from gateway.http.metrics import Collector, histogram_buckets, integers_of, registry_of
from gateway.http.schedules import SCHEDULES
from gateway.http.starting import RecoveryProgress, build_starting_application
from gateway.producer import Producer
from gateway.routing.select import PartitionSelector
from gateway.routing.table import RouteTable
from gateway.topics import TopicView
from store import Store
from store.clock import Clock, SystemClock
from store.errors import StoreStopped
from store.files import Files, OsFiles
from timer.metrics import LATENESS_BOUNDS_MS
from timer.service import TimerService

log = logging.getLogger(__name__)

DISTRIBUTION = "mq-gateway"
BROKER_NAME = "local"
BACKLOG = 1024
LINGERING_S = 5.0
"""How long what a client still sends is read and dropped after it was refused, so that it gets to see the answer."""

MALFORMED_LOG_INTERVAL_S = 60.0
"""How often a line about them is written."""

GC_ALLOCATIONS = 50_000
"""Tracked objects that may come into being before the collector looks at the young ones."""


async def serve(config: GatewayConfig, *, announce: Callable[[str], None]) -> None:
    """Run a server until SIGTERM or SIGINT. `announce` gets its URL once it accepts connections.

    Raises StoreLocked, Corrupt, or OSError when it cannot start; an ExceptionGroup when one of its tasks died.
    """
    stopping = asyncio.Event()
    loop = asyncio.get_running_loop()
    signals = (signal.SIGTERM, signal.SIGINT)
    for number in signals:
        loop.add_signal_handler(number, stopping.set)
    _calm_collector()
    try:
        await run(config, announce=announce, stopping=stopping)
    finally:
        for number in signals:
            loop.remove_signal_handler(number)


def _calm_collector() -> None:
    """Make the cyclic garbage collector look less often, and never at what was loaded before the start.

    A batch of 1,000 records is some 5,000 tracked objects that die by reference count; with Python's defaults the
    collector walked them again and again: half of the CPU time of such a request (8.7 ms, now 4.3 ms).
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(GC_ALLOCATIONS, 20, 20)


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
    async with AsyncExitStack() as parts:
        listener = parts.enter_context(_bound(config))
        progress = RecoveryProgress()
        async with _starting(config, listener, progress):
            store = await parts.enter_async_context(_opened_store(config, files, clock, progress))
            timer = await parts.enter_async_context(_opened_timer(config, store, files, clock))
        store.pin(lambda: timer.needed_position)
        admin = LocalAdmin(store, timer)
        gateway = build_gateway(config, store, timer, admin, clock)
        async with asyncio.TaskGroup() as tasks:
            running = [
                tasks.create_task(admin.run_timer(), name="timer"),
                tasks.create_task(store.watch(), name="store"),
            ]
            async with _listening(gateway, timer, listener):
                url = _url(config.host, listener)
                announce(url)
                log.info("accepting url=%s data=%s acks=%s", url, config.data, config.store.acks.name.lower())
                await stopping.wait()
                log.info("draining")
                gateway.draining.set()
            for task in running:
                task.cancel()
    log.info("stopped")


class LocalAdmin:
    """Topics of the embedded broker, and whether it can take and deliver records."""

    def __init__(self, store: Store, timer: TimerService) -> None:
        self.routes = RouteTable()
        self.broker = LocalBroker(store, timer, name=BROKER_NAME, on_topic=self._place, on_deleted=self.routes.remove)
        self._timer = timer
        self._timer_failure: str | None = None
        for topic in store.topics():
            if not topic.is_system:
                self._place(topic)

    def _place(self, topic: TopicView) -> None:
        self.routes.place(topic, self.broker)

    async def create_topic(self, name: str, partitions: int) -> TopicView:
        """See `gateway.http.context.TopicAdmin`."""
        return await self.broker.create_topic(name, partitions)

    async def grow_topic(self, name: str, partitions: int) -> TopicView:
        """See `gateway.http.context.TopicAdmin`."""
        return await self.broker.grow_topic(name, partitions)

    async def delete_topic(self, name: str) -> None:
        """See `gateway.http.context.TopicAdmin`."""
        await self.broker.delete_topic(name)

    def ready(self) -> Sequence[str]:
        """See `gateway.http.context.TopicAdmin`."""
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


def build_gateway(config: GatewayConfig, store: Store, timer: TimerService, admin: LocalAdmin, clock: Clock) -> Gateway:
    """The parts of one gateway over an open store and timer."""
    limits = config.limits
    stats = GatewayStats()
    producer = Producer(
        admin.routes,
        PartitionSelector(),
        clock=clock,
        limits=limits,
        acks=config.store.acks,
        compress=config.compression == "zstd",
    )
    sources = (lambda: store_metrics(store), lambda: timer_metrics(timer))
    return Gateway(
        version=installed_version(),
        config=config,
        limits=limits,
        clock=clock,
        routes_table=admin.routes,
        admin=admin,
        producer=producer,
        consumer=Consumer(admin.routes),
        stats=stats,
        metrics=registry_of(Collector(stats, producer, sources)),
        draining=asyncio.Event(),
    )


def store_metrics(store: Store) -> Iterator[Metric]:
    """What the store counts."""
    yield from integers_of(store.stats, "mq_store")
    yield GaugeMetricFamily("mq_store_waiting_bytes", "Bytes accepted and not yet written.", value=store.waiting_bytes)
    yield GaugeMetricFamily("mq_store_log_end_bytes", "End of the readable log.", value=store.end_position)
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


def installed_version() -> str:
    """The version of the installed distribution."""
    try:
        return package_version(DISTRIBUTION)
    except PackageNotFoundError:  # run from a source tree
        return "unknown"


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


def _url(host: str, listener: socket.socket) -> str:
    port = listener.getsockname()[1]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


@asynccontextmanager
async def _starting(config: GatewayConfig, listener: socket.socket, progress: RecoveryProgress) -> AsyncIterator[None]:
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
        await web.SockSite(runner, listener.dup()).start()
        yield
    finally:
        await runner.cleanup()


@asynccontextmanager
async def _listening(gateway: Gateway, timer: TimerService, listener: socket.socket) -> AsyncIterator[None]:
    """Answer requests; on leaving, stop accepting and let running requests finish."""
    config = gateway.config
    application = build_application(gateway)
    application[SCHEDULES] = timer
    runner = web.AppRunner(
        application,
        handle_signals=False,
        access_log=None,
        auto_decompress=False,
        keepalive_timeout=config.keepalive_timeout_ms / 1000,
        lingering_time=LINGERING_S,
        shutdown_timeout=config.shutdown_timeout_ms / 1000,
        logger=_protocol_log(gateway.stats),
    )
    await runner.setup()
    try:
        await web.SockSite(runner, listener, backlog=BACKLOG).start()
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
