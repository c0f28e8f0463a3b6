"""Being a node of a cluster: joined before requests are answered, left when the server stops."""

from __future__ import annotations

import asyncio
import logging
import secrets
import socket
import ssl
import time
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import replace
from functools import partial

from gateway.brokers.base import NodeBroker
from gateway.brokers.kafka.attached import AttachedBroker
from gateway.brokers.kafka.attached_links import SharedLinks
from gateway.brokers.kafka.beside import Beside
from gateway.brokers.kafka.broker import FOR_EVER_MS, KafkaBroker, kept_ms
from gateway.brokers.kafka.links import KafkaAddress
from gateway.brokers.kafka.port import Rejected
from gateway.brokers.kafka.repeats import Repeats
from gateway.cluster.embedded import EmbeddedMetadata
from gateway.cluster.etcd import EtcdConfig, EtcdMetadata
from gateway.cluster.kafka_metadata import TOPIC as META_TOPIC
from gateway.cluster.kafka_metadata import KafkaMetadata
from gateway.cluster.members import SESSION_TTL_MS, CannotJoin, Member, NameInUse, check_node_name, join
from gateway.cluster.metadata import Metadata, Unavailable
from gateway.cluster.node import ClusterNode
from gateway.cluster.peer_auth import Secret
from gateway.cluster.peer_link import fastest_codes
from gateway.cluster.shard_log import SHARD_TOPICS
from gateway.cluster.topics import TopicsInMemory
from gateway.groups.coordinator.receipt_key import keep_key
from gateway.groups.coordinator.service import Coordinator
from gateway.main.admin import LocalAdmin, pin
from gateway.main.group_moves import GroupMoves, OwnGroups
from gateway.main.identity import cluster_id
from gateway.main.kafka_brokers import kafka_addresses
from gateway.main.listener import address_of, listening_to_nodes, url_of
from gateway.main.no_store import NoStore
from gateway.main.secret_files import etcd_files, kept_fresh, secret_in, secret_of
from gateway.main.timer_shards import ShardTimers
from gateway.main.tls import ServerTls
from gateway.routing.base import TopicView
from gateway.routing.table import RouteTable
from gateway.settings.cluster import ClusterConfig
from gateway.settings.config import ConfigError, GatewayConfig
from gateway.surfaces.http.context import Gateway
from gateway.surfaces.http.starting import RecoveryProgress
from gateway.surfaces.peer.server import PeerService
from store import Store
from store.clock import Clock
from store.errors import UnknownQueue
from store.types import QueueKey
from store.waits import is_set_within

log = logging.getLogger(__name__)

RETRY_S = 1.0
NAME_WAIT_S = 3 * SESSION_TTL_MS / 1000
"""How long a node without a store waits for another process of its name to be over."""

SECRET_BYTES = 32
"""Of the secret of a cluster of one node, which no one else is to know."""


def checked(config: ClusterConfig) -> tuple[Secret, EtcdConfig | None]:
    """What a node among several, or a gateway, needs to know the nodes and etcd by; None: it uses none. Raises
    ConfigError."""
    assert config.secret_file is not None
    try:
        if config.node is not None:
            check_node_name(config.node)
        secret = secret_of(config)
        if not config.etcd:
            return secret, None
        password = "" if config.etcd_password_file is None else secret_in(config.etcd_password_file).decode()
        tls = ssl.create_default_context(cafile=config.etcd_ca_file) if config.etcd_ca_file is not None else None
    except (OSError, ValueError) as error:
        raise ConfigError(f"cluster: {error}") from error
    return secret, EtcdConfig(
        endpoints=config.etcd, prefix=config.prefix, user=config.etcd_user, password=password, tls=tls
    )


def checked_kafka(config: ClusterConfig, node: str) -> dict[str, KafkaAddress]:
    """The Kafka clusters of a node, by name. Raises ConfigError."""
    clusters = kafka_addresses(config.kafka, node=node)
    chosen = {
        "default_broker": config.default_broker,
        "groups_broker": config.groups_broker,
        "timers_broker": config.timers_broker,
        "metadata_broker": config.metadata_broker,
    }
    for setting, name in chosen.items():
        if name is not None and name not in clusters:
            raise ConfigError(f"cluster.{setting}: {name} is no broker of cluster.kafka ({', '.join(clusters)})")
    return clusters


@asynccontextmanager
async def shared_metadata(
    config: ClusterConfig, *, on_lost: Callable[[], None] = lambda: None
) -> AsyncIterator[tuple[Metadata, Secret]]:
    """The metadata that nodes share, while the block runs, and the secret of their cluster. When this process must not
    go on with what it knows of it, `on_lost` is called, and leaving the block raises OtherMetadata. Raises
    ConfigError."""
    secret, etcd = checked(config)
    await asyncio.to_thread(fastest_codes)  # for the first link; it loads what takes a tenth of a second
    if etcd is not None:
        async with EtcdMetadata(etcd) as in_etcd, kept_fresh(config, secret, etcd_files(config, in_etcd, etcd)):
            yield in_etcd, secret
        return
    assert config.metadata_broker is not None
    address = checked_kafka(config, config.node or "")[config.metadata_broker]
    links = SharedLinks(address)  # of its own: its fetches wait
    shards = [address.prefix + topic.name for topic in SHARD_TOPICS.values()]
    metadata = KafkaMetadata(links, address.prefix + META_TOPIC, older_than=shards)
    async with metadata as in_kafka, kept_fresh(config, secret):
        await _let_in(config.metadata_broker, links)
        in_kafka.running.add_done_callback(lambda _: on_lost())
        yield in_kafka, secret


async def _let_in(name: str, kafka: KafkaBroker | SharedLinks) -> None:
    """Raises ConfigError when a Kafka cluster is reached, and does not let this server in."""
    try:
        await kafka.check()
    except Rejected as error:
        raise ConfigError(f"cluster.kafka: {name} does not let this server in: {error}") from error


@asynccontextmanager
async def _metadata_in(
    config: GatewayConfig, store: Store | NoStore, admin: LocalAdmin, clock: Clock, stopping: asyncio.Event
) -> AsyncIterator[tuple[Metadata, Secret]]:
    """The metadata of a node while the block runs, and the secret of its cluster: in etcd or Kafka, or, of an only
    node, in its own store. When the node must not go on with it, `stopping` is set, and leaving the block raises."""
    if config.cluster.is_shared:
        async with shared_metadata(config.cluster, on_lost=stopping.set) as shared:
            yield shared
        return
    assert isinstance(store, Store)
    own = EmbeddedMetadata(config.data, store.files, admin.broker, clock)
    pin(store, lambda: own.needed_position)
    await own.start()
    writing = asyncio.create_task(own.run(), name="metadata")
    writing.add_done_callback(lambda _: stopping.set())
    try:
        yield own, Secret(secrets.token_bytes(SECRET_BYTES))
    finally:
        writing.cancel()
        with suppress(asyncio.CancelledError):
            await writing
        await own.close()


@asynccontextmanager
async def clustered(
    config: GatewayConfig,
    store: Store | NoStore,
    admin: LocalAdmin,
    clock: Clock,
    *,
    listener: socket.socket,
    internal: socket.socket | None,
    kafka: tuple[str, ...],
    tls: ServerTls | None,
    progress: RecoveryProgress,
    stopping: asyncio.Event,
) -> AsyncIterator[ClusterNode]:
    """A node of the cluster while the block runs: joined, its topics and routes as the metadata has them, and answering
    the other nodes. `internal`: the listener for those; None: there are none, and its metadata is in its own data
    directory. `kafka`: where clients reach its Kafka listeners. While the metadata cannot be reached it waits, until
    `stopping`. Raises CannotJoin, SessionTaken, ConfigError, Corrupt."""
    own = config.cluster
    own_name = admin.broker.name
    url = own.client_url or url_of(config.host, listener, tls)
    member = Member(
        name=own_name,
        number=0,
        data=cluster_id(config.data, store.files),
        address=url if internal is None else own.internal_url or f"http://{address_of(internal)}",
        url=url,
        room=config.room,
        kafka=kafka,
        balancing=own.balance and not own.no_store,
        storeless=own.no_store,
    )
    doubt = asyncio.Event()
    async with (
        _metadata_in(config, store, admin, clock, stopping) as (metadata, secret),
        AsyncExitStack() as brokers,
    ):
        clusters: dict[str, KafkaBroker] = {}
        attached: dict[str, AttachedBroker] = {}
        for name, address in checked_kafka(own, own_name).items():
            links = SharedLinks(address)
            clusters[name] = KafkaBroker(
                name, links, clock,
                prefix=address.prefix,
                topic_of=partial(_topic_of, admin.routes),
                retention_ms_of=partial(_retention_ms, store, admin.routes),
                on_doubt=doubt.set,
                repeats=Repeats(
                    window_ms=config.store.dedup_window_ms,
                    ids_max=config.store.dedup_ids_max,
                    producer_expiry_ms=config.store.producer_expiry_ms,
                    producers_max=config.store.producers_max,
                ),
                timer=admin.broker,
            )  # fmt: skip
            attached[name] = AttachedBroker(name, links, timer=admin.broker)
            brokers.push_async_callback(clusters[name].close)
            brokers.push_async_callback(attached[name].close)
            await _let_in(name, clusters[name])
        node = ClusterNode(
            own_name, metadata, admin.broker, secret, store, admin.routes, clock,
            on_topics=lambda: admin.on_change(), kafka=clusters, attached=attached, doubt=doubt,
            moves_max=own.moves_max,
        )  # fmt: skip
        node.default_broker = own.default_broker
        topics = [topic for topic in store.topics() if not topic.is_system]
        name_until_s = time.monotonic() + NAME_WAIT_S
        while True:
            try:
                membership = await join(
                    metadata, config.data, store.files, member, topics, next_topic_id=store.next_topic_id
                )
                node.cluster_id = membership.cluster
                await node.begin()
                if unknown := node.unknown_brokers():
                    raise ConfigError(
                        f"partitions have records on {', '.join(unknown)}, which is no broker here: add it to "
                        f"cluster.kafka (--broker {unknown[0]}=kafka://HOST:PORT)"
                    )
                if own.no_store:
                    keep_key(config.data, store.files, await node.shared_receipt_key())
                break
            except NameInUse as error:
                if time.monotonic() > name_until_s:
                    raise CannotJoin(str(error)) from error
                progress.waits_for = "a process of the same name"
                await _pause(progress, stopping)
            except Unavailable as error:
                await _wait_for_metadata(own, error, progress, stopping)
        admin.topics = node
        admin.routes.refresh_by = node.refresh
        try:
            async with AsyncExitStack() as serving:
                if internal is not None:
                    beside = Beside(
                        admin.broker,
                        [*clusters.values(), *attached.values()],
                        lambda *append: node.schedule_in_shard(*append),
                    )
                    service = PeerService(
                        beside if clusters else admin.broker,
                        secret,
                        clock,
                        queues_of=lambda topic_id: _queues_of(store, beside, topic_id),
                        know=node.know,
                        look_at=node.look_at,
                        take_group=lambda *group: node.take_group(*group),
                        more={"ask": node.answer},
                    )
                    await serving.enter_async_context(
                        listening_to_nodes(
                            service.application(),
                            internal,
                            config.limits,
                            handle_limit=store.files.handle_limit,
                            write_timeout_s=config.ws_write_timeout_ms / 1000,
                        )
                    )
                process = secrets.token_hex(8)
                while True:  # the metadata may be away again by now
                    try:
                        await serving.enter_async_context(node.in_session(process))
                        break
                    except Unavailable as error:
                        await _wait_for_metadata(own, error, progress, stopping)
                if own.no_store:
                    await node.check_own_record(member.data)
                progress.waits_for = "Kafka"
                await node.take_own()
                log.info("node of a cluster node=%s cluster=%s internal=%s", own_name, node.cluster_id, member.address)
                yield node
        finally:
            await node.close()


@asynccontextmanager
async def following(
    config: GatewayConfig,
    routes: RouteTable,
    clock: Clock,
    *,
    name: str,
    broker: NodeBroker | None,
    cluster: str,
    on_lost: Callable[[], None] = lambda: None,
) -> AsyncIterator[ClusterNode]:
    """What a gateway without a store knows of its cluster while the block runs: nothing yet. `name` and `broker`: of
    the node whose worker it is. `cluster`: its id; empty: set it before `begin`. `on_lost`: see `shared_metadata`.
    Raises ConfigError."""
    async with shared_metadata(config.cluster, on_lost=on_lost) as (metadata, secret):
        kept = TopicsInMemory(config.store)
        node = ClusterNode(name, metadata, broker, secret, kept, routes, clock, on_topics=lambda: None)
        node.cluster_id = cluster
        routes.refresh_by = node.refresh
        routes.timers = ShardTimers(node, routes, None)
        try:
            yield node
        finally:
            await node.close()


async def known(config: ClusterConfig, node: ClusterNode, progress: RecoveryProgress, stopping: asyncio.Event) -> None:
    """Have a gateway know its cluster; wait for the metadata, and for the first node, until `stopping`. Raises
    CannotJoin then."""
    while True:
        try:
            if (cluster := await node.find_cluster()) is not None:
                node.cluster_id = cluster
                await node.begin()
                return
            progress.waits_for = "the first node of the cluster"
            log.warning("waiting for the first node of the cluster")
            await _pause(progress, stopping)
        except Unavailable as error:
            await _wait_for_metadata(config, error, progress, stopping)


async def _wait_for_metadata(
    config: ClusterConfig, error: Unavailable, progress: RecoveryProgress, stopping: asyncio.Event
) -> None:
    progress.waits_for = where = where_metadata_is(config)
    log.warning("waiting for %s error=%s", where, error)
    await _pause(progress, stopping)


async def _pause(progress: RecoveryProgress, stopping: asyncio.Event) -> None:
    """Before the next try. Raises CannotJoin when the server is to stop."""
    if await is_set_within(stopping, RETRY_S):
        raise CannotJoin(f"stopped while it waited for {progress.waits_for}")


def where_metadata_is(config: ClusterConfig) -> str:
    """What is waited for when the metadata cannot be reached."""
    return "etcd" if config.etcd else "Kafka"


def _queues_of(store: Store | NoStore, beside: Beside, topic_id: int) -> list[QueueKey]:
    """All queues of a topic that this node serves; an attached topic has none in the store. Raises UnknownQueue."""
    own = beside.queues_of(topic_id)
    try:
        return [*store.queues_of(topic_id), *own]
    except UnknownQueue:
        if not own:
            raise
        return own


def _topic_of(routes: RouteTable, topic_id: int) -> TopicView:
    return SHARD_TOPICS.get(topic_id) or routes.by_id(topic_id)


def _retention_ms(store: Store | NoStore, routes: RouteTable, topic_id: int) -> int:
    """How long a topic keeps its records, by its own setting or the server's."""
    if topic_id in SHARD_TOPICS:
        return FOR_EVER_MS  # what snapshots stand for is given up when they are there
    return kept_ms(routes.by_id(topic_id).config.retention_ms, store.config.retention_ms)


def belonging(gateway: Gateway, groups: Coordinator, node: ClusterNode, moves: GroupMoves) -> Gateway:
    """The gateway as that of a node: it uses no groups but its own."""
    return replace(gateway, cluster_id=node.cluster_id, cluster=node, groups=OwnGroups(groups, node, moves.release))
