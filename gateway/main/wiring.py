"""The only wiring: store, timer, broker, routes and HTTP put together, run, and stopped in order.

Starting is: listen and say "not ready", recover the store, recover the timer, take up the shards on Kafka clusters that
are this node's, answer requests, announce. From then on one task group holds everything that lives long; if one of its
tasks dies, the others are stopped and `serve` raises: recovery at the next start is the only way back. A failed disk is
no such death: the store then refuses records for good and goes on serving reads.

Stopping (SIGTERM, SIGINT): readiness off; after `drain_delay_ms` `draining` is set, so sockets tell their clients and
long polls answer; no new connections; requests that are being answered finish; timer and store are closed clean. A
second signal ends the process at once, as a crash would: nothing acknowledged is lost, and the next start recovers.
"""

from __future__ import annotations

import asyncio
import logging
import os
import random
import signal
import socket
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from time import monotonic_ns

from gateway.api.cluster import FIGURES
from gateway.api.figures import Figures
from gateway.api.producer import Producer
from gateway.api.read import Consumer
from gateway.api.recurring import ProducerRouting
from gateway.api.topic_figures import TopicFigures
from gateway.api.trail import Trail
from gateway.auth.administration import AccessFiles
from gateway.cluster.balancer import Balancer
from gateway.cluster.embedded import keeps_metadata
from gateway.cluster.members import check_alone, name_in
from gateway.cluster.node import ClusterNode
from gateway.cluster.peer_wire import Head
from gateway.cluster.shard_log import Shard
from gateway.codec.texts import TextCache
from gateway.groups.coordinator.metrics import coordinator_metrics
from gateway.groups.coordinator.service import Coordinator
from gateway.main import joined
from gateway.main.admin import BROKER_NAME, LocalAdmin, pin
from gateway.main.all_timers import AllTimers
from gateway.main.application import build_application
from gateway.main.clustering import belonging, checked, checked_kafka, clustered
from gateway.main.file_handles import within_handles
from gateway.main.garbage import calm_collector
from gateway.main.group_mirror import GroupMirror
from gateway.main.group_moves import GIVE_ERRORS, GroupMoves
from gateway.main.group_shards import GroupShards
from gateway.main.identity import cluster_id
from gateway.main.listener import (
    BACKLOG,
    address_of,
    advertised_kafka,
    answering_not_ready,
    bound_kafka_sockets,
    bound_socket,
    bound_sockets,
    listening,
    url_of,
)
from gateway.main.loop_watch import LoopWatch
from gateway.main.memory import give_back_forever, share_one_arena
from gateway.main.metrics import (
    Collector,
    MoveCollector,
    RecurringCollector,
    process_metrics,
    registry_of,
    store_metrics,
    text_metrics,
    timer_metrics,
    trail_metrics,
)
from gateway.main.no_store import NoStore
from gateway.main.notify import Notifier
from gateway.main.readings import Readings
from gateway.main.recurring_shards import AllRecurring
from gateway.main.recurring_shards import Tenure as RecurringTenure
from gateway.main.reload import AuthReloader, reload_forever
from gateway.main.schemas import opened_schemas
from gateway.main.shard_keeping import until_settled
from gateway.main.timer_shards import TimerShards
from gateway.main.tls import ServerTls
from gateway.main.version import installed_version
from gateway.main.workers import TopicFeed, Workers
from gateway.recurring.definitions import RECURRING_EVENTS
from gateway.recurring.service import RecurringSchedules, RecurringStats
from gateway.routing import selectors
from gateway.routing.delivery import RoutedPartitions
from gateway.routing.detector import Detector
from gateway.routing.fault import TABLES
from gateway.routing.select import PartitionSelector
from gateway.routing.table import RouteTable
from gateway.routing.tail_watcher import TailWatcher
from gateway.settings.config import GatewayConfig
from gateway.surfaces.http.admission import rates_of
from gateway.surfaces.http.application import uses_c_parser
from gateway.surfaces.http.connection import ConnectionLimiter
from gateway.surfaces.http.context import Gateway, GatewayStats
from gateway.surfaces.http.forwarding import Forwarder
from gateway.surfaces.http.starting import RecoveryProgress
from gateway.surfaces.kafka.server import serving_kafka
from gateway.surfaces.native.access import ACCESS_FILES
from gateway.surfaces.native.recurring import RECURRING
from gateway.surfaces.native.schedules import SCHEDULES
from gateway.surfaces.native.topics import TOPIC_FIGURES
from gateway.surfaces.peer.server import nothing
from gateway.surfaces.rest_v2.consumers import install_instances
from gateway.surfaces.rest_v2.instances.service import Instances
from store import Store
from store.clock import Clock, SystemClock
from store.files import Files, OsFiles
from timer.metrics import TimerMetrics
from timer.service import TimerService

log = logging.getLogger(__name__)


async def serve(config: GatewayConfig, *, announce: Callable[[str], None]) -> None:
    """Run a server until SIGTERM or SIGINT. `announce` gets its URL once it accepts connections.

    Raises StoreLocked, Corrupt, CannotJoin, MetadataError, ConfigError, PolicyError, TlsError, or OSError when it
    cannot start; an ExceptionGroup when one of its tasks died.
    """
    stopping = asyncio.Event()
    loop = asyncio.get_running_loop()
    signals = (signal.SIGTERM, signal.SIGINT)

    def stop() -> None:
        stopping.set()
        for number in signals:  # a second one kills at once: acknowledged records are durable
            loop.remove_signal_handler(number)
            signal.signal(number, signal.SIG_DFL)

    for number in signals:
        loop.add_signal_handler(number, stop)
    calm_collector()
    share_one_arena()
    _warn_of_exposure(config)
    begin = joined.run if config.cluster.join else run
    try:
        await begin(within_handles(config), announce=announce, stopping=stopping)
    finally:
        for number in signals:
            loop.remove_signal_handler(number)


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
    auth_reloader = AuthReloader(config, clock) if config.auth.enabled else None
    manager = Notifier(os.environ)
    async with AsyncExitStack() as parts:
        parts.enter_context(manager.beating())
        if config.workers:
            listeners = parts.enter_context(bound_sockets(config.host, config.port, config.workers))
        else:
            listeners = [parts.enter_context(bound_socket(config.host, config.port))]
        listener = listeners[0]
        own = config.cluster
        internal: socket.socket | None = None
        checked_kafka(own, own.node or "")
        if own.is_shared:
            checked(own)
            internal = parts.enter_context(bound_socket(own.internal_host, own.internal_port))
        kafka_sockets, kafka_warnings = parts.enter_context(bound_kafka_sockets(config))
        progress = RecoveryProgress()
        async with AsyncExitStack() as starting:
            for one in listeners:
                await starting.enter_async_context(answering_not_ready(config, one, progress, tls))
            routes = RouteTable(TABLES[config.latency_penalties])
            store: Store | NoStore
            timer: TimerService | None = None
            if own.no_store:
                store, is_node, name = NoStore(config.store), True, own.node or BROKER_NAME
            else:
                store = await parts.enter_async_context(_opened_store(config, files, clock, progress))
                starting.enter_context(_all_kept(store))
                is_only_node = own.is_only_node or (not own.is_shared and keeps_metadata(store))
                is_node = is_only_node or own.is_shared
                if not is_node:
                    check_alone(config.data, files)
                name = own.node or (name_in(config.data, files) if is_only_node else None) or BROKER_NAME
                timer = await parts.enter_async_context(_opened_timer(config, store, routes, files, clock, own=name))
            routes.rooms[name] = config.room
            admin = LocalAdmin(store, timer, config.limits, routes, name=name, is_node=is_node)
            node: ClusterNode | None = None
            if is_node:
                node = await parts.enter_async_context(
                    clustered(
                        config,
                        store,
                        admin,
                        clock,
                        listener=listener,
                        internal=internal,
                        kafka=advertised_kafka(config, kafka_sockets),
                        tls=tls,
                        progress=progress,
                        stopping=stopping,
                    )
                )
            trail = Trail(_trail_directory(config, files, parts), files, clock, monotonic_s=time.monotonic)
            parts.push_async_callback(trail.close)
            timers: TimerService | AllTimers
            if node is not None:
                metrics = TimerMetrics() if timer is None else timer.metrics
                timer_shards = TimerShards(
                    node, routes, clock, config.timer, broker=config.cluster.timers_broker,
                    directory=config.data, has_data=config.cluster.has_data,
                    window_ms=config.store.dedup_window_ms, ids_max=config.store.dedup_ids_max, metrics=metrics,
                )  # fmt: skip
                parts.push_async_callback(timer_shards.close)
                timers = AllTimers(timer, timer_shards, metrics)
            else:
                assert timer is not None
                timers = timer
            gateway, groups = build_gateway(config, store, timers, admin, clock, trail)
            await parts.enter_async_context(_opened_groups(groups, store, admin))
            if node is not None:
                group_moves = GroupMoves(groups, node)
                await group_moves.begin()
                group_shards = GroupShards(groups, node, broker=config.cluster.groups_broker)
                group_shards.begin()
                group_mirror = GroupMirror(groups, admin.routes, node.attached)
                gateway = belonging(gateway, groups, node, group_moves)
                forwarder = Forwarder(node, None if tls is None else tls.trusting())
                parts.push_async_callback(forwarder.close)
                gateway = replace(gateway, forwarder=forwarder)
            own_recurring: RecurringSchedules | None = None
            if isinstance(store, Store):
                own_recurring = build_recurring(gateway, store, admin)
                await parts.enter_async_context(_opened_recurring(own_recurring, store))
            recurring: RecurringSchedules | AllRecurring
            if node is not None:
                recurring = all_schedules = all_recurring(gateway, own_recurring, admin, node)
                parts.push_async_callback(all_schedules.close)
            else:
                assert own_recurring is not None
                recurring = own_recurring
        kafka_addresses = {name: address_of(bound) for name, bound in kafka_sockets.items()}
        gateway = replace(gateway, kafka_addresses=tuple(f"{name}://{at}" for name, at in kafka_addresses.items()))
        if auth_reloader is not None:
            gateway = replace(gateway, authenticator=auth_reloader.authenticator)
            auth_reloader.judge_by(groups.dead_letters.origins)
        loop_watch = LoopWatch()
        readings = Readings(gateway, store, timers, admin, groups, loop_watch)
        figures = Figures(readings, clock_ms=clock.now_ms, monotonic_ms=lambda: monotonic_ns() // 1_000_000)
        schemas = await parts.enter_async_context(opened_schemas(config.registry))
        gateway = replace(gateway, figures=figures, schemas=schemas)
        application = build_application(gateway)
        application[SCHEDULES] = timers
        application[RECURRING] = recurring
        if node is not None:
            gateway.metrics.register(MoveCollector(node))
            if node.attached:
                gateway.metrics.register(group_mirror)
            node.answers[FIGURES] = partial(_topic_figures, application[TOPIC_FIGURES])
        if auth_reloader is not None:
            application[ACCESS_FILES] = AccessFiles(config.auth, clock, partial(auth_reloader.reload_told, trail))
        gateway.metrics.register(RecurringCollector(recurring))
        instances = _restored_instances(gateway)
        groups.handover.on_came.append(instances.take_up)
        groups.handover.on_gone.append(instances.forget_group)
        install_instances(application, gateway, instances)
        gateway.metrics.register(loop_watch)
        parts.enter_context(loop_watch.running())
        async with asyncio.TaskGroup() as tasks:
            running = [
                tasks.create_task(groups.run(), name="groups"),
                tasks.create_task(recurring.run(), name="recurring schedules"),
                tasks.create_task(instances.run(), name="consumer instances"),
                tasks.create_task(trail.run(), name="trail"),
                tasks.create_task(reload_forever(auth_reloader, tls, trail), name="reload"),
                tasks.create_task(give_back_forever(), name="memory"),
                tasks.create_task(Detector(routes).run(), name="detector of unreachable brokers"),
                tasks.create_task(readings.run(), name="disk"),
                tasks.create_task(figures.run(), name="figures"),
            ]
            if isinstance(store, Store) and timer is not None:
                running += [
                    tasks.create_task(admin.run_timer(timer), name="timer"),
                    tasks.create_task(store.watch(), name="store"),
                ]
            if node is not None:
                balancer = Balancer(
                    node, routes, group_moves.give, GIVE_ERRORS,
                    moves_per_s=config.cluster.balance_moves_per_s, evens_out=config.cluster.balance,
                )  # fmt: skip
                running += [
                    tasks.create_task(node.run(), name="cluster"),
                    tasks.create_task(group_moves.run(), name="groups of others"),
                    tasks.create_task(group_shards.run(), name="groups on Kafka"),
                    tasks.create_task(timer_shards.run(), name="timers on Kafka"),
                    tasks.create_task(balancer.run(), name="balance"),
                    tasks.create_task(group_mirror.run(), name="groups told to Kafka"),
                ]
                await until_settled([group_shards, timer_shards, all_schedules], stopping)
            limiter = ConnectionLimiter(config.limits, gateway.stats, clock.now_ms)
            ssl_context = None if tls is None else tls.context
            if config.workers:
                assert isinstance(store, Store)
                workers = Workers(gateway, listeners, TopicFeed(admin, auth_reloader))
                gateway.metrics.register(workers)
                know = nothing if node is None else node.know
                taking = workers.serving(application, admin.broker, store, tasks, know=know)
            else:
                taking = listening(application, gateway, limiter, listener, tls)
            async with (
                taking,
                serving_kafka(
                    gateway,
                    limiter,
                    kafka_sockets,
                    ssl_context=ssl_context,
                    backlog=BACKLOG,
                    on_group_gone=groups.handover.on_gone,
                ),
            ):
                url = url_of(config.host, listener, tls)
                announce(url)
                manager.ready(url)
                for warning in kafka_warnings:
                    log.warning("%s", warning)
                for name, address in kafka_addresses.items():
                    log.info("accepting Kafka clients listener=%s address=%s", name, address)
                log.info(
                    "accepting url=%s data=%s acks=%s file_handles=%d connections_max=%d",
                    url, config.data if config.cluster.has_data else "none", config.store.acks.name.lower(),
                    files.handle_limit, config.limits.connections_max,
                )  # fmt: skip
                await stopping.wait()
                gateway.leaving.set()
                manager.stopping()
                log.info("stopping; a second signal stops at once")
                if node is not None:
                    await asyncio.gather(group_shards.save(), timer_shards.save(), all_schedules.save())
                    await node.give_kafka()
                await asyncio.sleep(config.drain_delay_ms / 1000)
                log.info("draining")
                gateway.draining.set()
            for task in running:
                task.cancel()
    log.info("stopped")


def _warn_of_exposure(config: GatewayConfig) -> None:
    """Log what the settings allow and the operator may not have intended."""
    if not config.auth.enabled and config.auth.tokens_path.exists():
        log.warning("there are tokens, but authentication is disabled: auth.enabled is off")
    if config.auth.enabled and not config.is_loopback and not config.tls.is_on:
        log.warning("tokens pass unencrypted beyond this machine: set tls.cert_file, or let a proxy speak TLS")


def build_gateway(
    config: GatewayConfig,
    store: Store | NoStore,
    timer: TimerService | AllTimers,
    admin: LocalAdmin,
    clock: Clock,
    trail: Trail | None = None,
) -> tuple[Gateway, Coordinator]:
    """The parts of one gateway over an open store and timer, and the coordinator of its groups, not started."""
    limits = config.limits
    stats = GatewayStats()
    texts = TextCache(limits.rendered_bytes_max)
    draining = asyncio.Event()
    tail_watcher = TailWatcher(admin.routes)
    groups = Coordinator(
        directory=config.data,
        files=store.files,
        broker=admin.broker,
        routes=admin.routes,
        tail_watcher=tail_watcher,
        own_topics=admin,
        clock=clock,
        monotonic_ms=lambda: monotonic_ns() // 1_000_000,
        draining=draining,
        limits=limits,
    )
    producer = Producer(
        admin.routes,
        PartitionSelector(
            admin.routes, room=config.room, below=random.randrange, now_ms=lambda: time.perf_counter() * 1000
        ),
        clock=clock,
        limits=limits,
        acks=config.store.acks,
        compress=config.compression == "zstd",
        selectors=selectors.load(selectors.installed()),
        store=store if isinstance(store, Store) else None,
    )
    admin.routes.on_removed = producer.forget
    sources = (
        lambda: store_metrics(store) if isinstance(store, Store) else (),
        lambda: timer_metrics(timer),
        lambda: coordinator_metrics(groups),
        lambda: process_metrics(limits),
        lambda: text_metrics(texts),
        lambda: () if trail is None else trail_metrics(trail.stats),
    )
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
        consumer=Consumer(admin.routes, tail_watcher),
        groups=groups,
        rates=rates_of(limits),
        trail=trail,
        stats=stats,
        texts=texts,
        metrics=registry_of(Collector(stats, producer, sources)),
        draining=draining,
    )
    return gateway, groups


def build_recurring(gateway: Gateway, store: Store, admin: LocalAdmin) -> RecurringSchedules:
    """The recurring schedules of one gateway over an open store, not started."""
    return RecurringSchedules(
        admin.broker,
        RECURRING_EVENTS.snapshot_files(gateway.config.data, store.files),
        store,
        RoutedPartitions(admin.routes, own=admin.broker.name),
        gateway.clock,
        routing=ProducerRouting(gateway.producer, admin.routes),
        count_max=gateway.limits.recurring_max,
    )


def all_recurring(
    gateway: Gateway, own: RecurringSchedules | None, admin: LocalAdmin, node: ClusterNode
) -> AllRecurring:
    """The recurring schedules of a node: its own, if it has a store, and those on Kafka."""
    stats = RecurringStats() if own is None else own.stats

    def tenure_of(shard: Shard) -> RecurringTenure:
        return RecurringTenure(
            shard, node.snapshots_of, admin.routes, gateway.clock,
            routing=ProducerRouting(gateway.producer, admin.routes),
            count_max=gateway.limits.recurring_max, window_ms=gateway.config.store.dedup_window_ms, stats=stats,
        )  # fmt: skip

    return AllRecurring(own, node, tenure_of, stats)


def _trail_directory(config: GatewayConfig, files: Files, parts: AsyncExitStack) -> Path | None:
    """Where the trail is kept, locked; None: nowhere here. Raises BlockingIOError when another server keeps its there,
    OSError."""
    if config.audit_directory is None:
        return config.data if config.cluster.has_data else None
    files.make_dirs(config.audit_directory)
    parts.callback(files.lock(config.audit_directory).close)
    return config.audit_directory


async def _topic_figures(figures: TopicFigures, head: Head) -> Head:
    return {"rows": await figures.rows(head["topics"])}


def _restored_instances(gateway: Gateway) -> Instances:
    instances = Instances(
        gateway.groups,
        gateway.consumer,
        gateway.routes_table,
        limits=gateway.limits,
        idle_timeout_ms=gateway.config.consumer_instance_timeout_ms,
        draining=gateway.draining,
        schemas=gateway.schemas,
    )
    instances.restore()
    return instances


@asynccontextmanager
async def _opened_store(
    config: GatewayConfig, files: Files, clock: Clock, progress: RecoveryProgress
) -> AsyncIterator[Store]:
    store = await Store.open(config.store, files=files, clock=clock, progress=progress.tell)
    try:
        yield store
    finally:
        await store.close()


@contextmanager
def _all_kept(store: Store) -> Iterator[None]:
    """Retention removes nothing until all who read of the log have said from where on they need it: the first may take
    long, and who comes after could miss what it has acknowledged."""
    is_over = False
    store.pin(lambda: store.end_position if is_over else 0)
    yield
    is_over = True


@asynccontextmanager
async def _opened_timer(
    config: GatewayConfig, store: Store, routes: RouteTable, files: Files, clock: Clock, *, own: str
) -> AsyncIterator[TimerService]:
    partitions = RoutedPartitions(routes, own=own)
    timer = TimerService(config.timer, store, files, clock, partitions=partitions)
    await timer.start()
    store.pin(lambda: timer.needed_position)
    try:
        yield timer
    finally:
        try:
            await timer.close()
        except OSError as error:  # its files are derived: the next start rebuilds them from the log
            log.error("timer not closed clean error=%s", error)


@asynccontextmanager
async def _opened_recurring(recurring: RecurringSchedules, store: Store) -> AsyncIterator[None]:
    pin(store, lambda: recurring.needed_position)  # before they are read: until then all of the log is needed
    await recurring.start()
    try:
        yield
    finally:
        await recurring.close()


@asynccontextmanager
async def _opened_groups(groups: Coordinator, store: Store | NoStore, admin: LocalAdmin) -> AsyncIterator[None]:
    if isinstance(store, Store):
        pin(store, lambda: groups.needed_position)  # likewise
    await groups.start()
    admin.on_change = groups.topics_changed
    try:
        yield
    finally:
        await groups.close()
