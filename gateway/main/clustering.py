"""Being a node of a cluster: joined before requests are answered, left when the server stops."""

from __future__ import annotations

import asyncio
import logging
import secrets
import socket
import ssl
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import replace
from functools import partial
from pathlib import Path

from gateway.auth.operator_files import read_file
from gateway.brokers.kafka.beside import Beside
from gateway.brokers.kafka.broker import KafkaBroker
from gateway.brokers.kafka.links import Links
from gateway.cluster.etcd import EtcdConfig, EtcdMetadata
from gateway.cluster.members import CannotJoin, Member, check_node_name, join
from gateway.cluster.metadata import Unavailable
from gateway.cluster.node import ClusterNode
from gateway.cluster.peer_auth import Secret
from gateway.groups.coordinator.service import Coordinator
from gateway.main.admin import LocalAdmin
from gateway.main.group_moves import OwnGroups
from gateway.main.identity import cluster_id
from gateway.main.kafka_brokers import kafka_addresses
from gateway.main.listener import address_of, listening_to_nodes, url_of
from gateway.main.tls import ServerTls
from gateway.routing.table import RouteTable
from gateway.settings.cluster import ClusterConfig
from gateway.settings.config import ConfigError, GatewayConfig
from gateway.settings.tls import TlsConfig
from gateway.surfaces.http.context import Gateway
from gateway.surfaces.http.starting import RecoveryProgress
from gateway.surfaces.peer.server import PeerService
from store import Store
from store.clock import Clock
from store.limits import KiB

log = logging.getLogger(__name__)


SECRET_BYTES_MAX = 64 * KiB
"""Of the files with the cluster's secret and etcd's password."""

KAFKA_FOR_EVER_MS = -1
"""A retention of Kafka's topics."""

RETRY_S = 1.0


def checked(config: ClusterConfig) -> tuple[Secret, EtcdConfig]:
    """What a node needs to know the others and etcd by. Raises ConfigError."""
    assert config.node is not None
    assert config.secret_file is not None
    try:
        check_node_name(config.node)
        secret = Secret(_secret_in(config.secret_file))
        password = "" if config.etcd_password_file is None else _secret_in(config.etcd_password_file).decode()
        tls = ssl.create_default_context(cafile=config.etcd_ca_file) if config.etcd_ca_file is not None else None
    except (OSError, ValueError) as error:
        raise ConfigError(f"cluster: {error}") from error
    kafka_addresses(config.kafka, node=config.node)
    return secret, EtcdConfig(
        endpoints=config.etcd, prefix=config.prefix, user=config.etcd_user, password=password, tls=tls
    )


def _secret_in(file: Path) -> bytes:
    return read_file(file, SECRET_BYTES_MAX, may_be_pipe=True).strip()


def trusting_own(config: TlsConfig) -> ssl.SSLContext | None:
    """Whose certificates are trusted when a request is sent on to another node: public ones, and, as nodes often share
    one, this node's own. None: nodes speak no TLS to clients."""
    if config.cert_file is None:
        return None
    context = ssl.create_default_context()
    context.load_verify_locations(config.cert_file)
    return context


@asynccontextmanager
async def clustered(
    config: GatewayConfig,
    store: Store,
    admin: LocalAdmin,
    clock: Clock,
    *,
    listener: socket.socket,
    internal: socket.socket,
    tls: ServerTls | None,
    progress: RecoveryProgress,
    stopping: asyncio.Event,
) -> AsyncIterator[ClusterNode]:
    """A node of the cluster while the block runs: joined, its topics and routes as the metadata has them, and answering
    the other nodes. While etcd cannot be reached it waits, until `stopping`. Raises CannotJoin, SessionTaken,
    ConfigError."""
    own = config.cluster
    assert own.node is not None
    secret, etcd = checked(own)
    member = Member(
        name=own.node,
        number=0,
        data=cluster_id(config.data, store.files),
        address=own.internal_url or f"http://{address_of(internal)}",
        url=own.client_url or url_of(config.host, listener, tls),
        room=config.room,
        balancing=own.balance,
    )
    doubt = asyncio.Event()
    async with EtcdMetadata(etcd) as metadata, AsyncExitStack() as brokers:
        kafka: dict[str, KafkaBroker] = {}
        for name, address in kafka_addresses(own.kafka, node=own.node).items():
            kafka[name] = KafkaBroker(
                name, Links(address), clock,
                prefix=address.prefix,
                topic_of=admin.routes.by_id,
                retention_ms_of=partial(_retention_ms, store, admin.routes),
                on_doubt=doubt.set,
            )  # fmt: skip
            brokers.push_async_callback(kafka[name].close)
        node = ClusterNode(
            own.node, metadata, admin.broker, secret, store, admin.routes, clock,
            on_topics=lambda: admin.on_change(), kafka=kafka, doubt=doubt,
        )  # fmt: skip
        topics = [topic for topic in store.topics() if not topic.is_system]
        while True:
            try:
                membership = await join(
                    metadata, config.data, store.files, member, topics, next_topic_id=store.next_topic_id
                )
                node.cluster_id = membership.cluster
                await node.begin()
                break
            except Unavailable as error:
                progress.waits_for = "etcd"
                log.warning("waiting for etcd error=%s", error)
                with suppress(TimeoutError):
                    await asyncio.wait_for(stopping.wait(), RETRY_S)
                    raise CannotJoin("stopped while etcd could not be reached") from error
        admin.topics = node
        admin.routes.refresh_by = node.refresh
        beside = Beside(admin.broker, list(kafka.values()))
        service = PeerService(
            beside if kafka else admin.broker,
            secret,
            clock,
            queues_of=lambda topic_id: [*store.queues_of(topic_id), *beside.queues_of(topic_id)],
            know=node.know,
            look_at=node.look_at,
            take_group=lambda *group: node.take_group(*group),
        )
        try:
            async with (
                listening_to_nodes(
                    service.application(),
                    internal,
                    config.limits,
                    handle_limit=store.files.handle_limit,
                    write_timeout_s=config.ws_write_timeout_ms / 1000,
                ),
                node.in_session(secrets.token_hex(8)),
            ):
                log.info("node of a cluster node=%s cluster=%s internal=%s", own.node, node.cluster_id, member.address)
                yield node
        finally:
            await node.close()


def _retention_ms(store: Store, routes: RouteTable, topic_id: int) -> int:
    """How long a topic keeps its records, by its own setting or the server's."""
    own = routes.by_id(topic_id).config.retention_ms
    chosen = store.config.retention_ms if own is None else own
    return KAFKA_FOR_EVER_MS if chosen is None else chosen


def belonging(gateway: Gateway, groups: Coordinator, node: ClusterNode) -> Gateway:
    """The gateway as that of a node: it uses no groups but its own."""
    return replace(gateway, cluster_id=node.cluster_id, cluster=node, groups=OwnGroups(groups, node))
