"""Being a node of a cluster: joined before requests are answered, left when the server stops."""

from __future__ import annotations

import asyncio
import logging
import secrets
import socket
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import replace

from gateway.cluster.etcd import EtcdConfig, EtcdMetadata
from gateway.cluster.members import CannotJoin, Member, check_node_name, join
from gateway.cluster.metadata import Unavailable
from gateway.cluster.node import ClusterNode
from gateway.cluster.peer_auth import Secret
from gateway.groups.coordinator.service import Coordinator
from gateway.main.admin import LocalAdmin
from gateway.main.group_moves import OwnGroups
from gateway.main.identity import cluster_id
from gateway.main.listener import address_of, listening_to_nodes, url_of
from gateway.main.secret_files import kept_fresh, secret_in, secret_of
from gateway.main.tls import ServerTls
from gateway.settings.cluster import ClusterConfig
from gateway.settings.config import ConfigError, GatewayConfig
from gateway.surfaces.http.context import Gateway
from gateway.surfaces.http.starting import RecoveryProgress
from gateway.surfaces.peer.server import PeerService
from store import Store
from store.clock import Clock

log = logging.getLogger(__name__)


RETRY_S = 1.0


def checked(config: ClusterConfig) -> tuple[Secret, EtcdConfig]:
    """What a node needs to know the others and etcd by. Raises ConfigError."""
    assert config.node is not None
    assert config.secret_file is not None
    try:
        check_node_name(config.node)
        secret = secret_of(config)
        password = "" if config.etcd_password_file is None else secret_in(config.etcd_password_file).decode()
        tls = ssl.create_default_context(cafile=config.etcd_ca_file) if config.etcd_ca_file is not None else None
    except (OSError, ValueError) as error:
        raise ConfigError(f"cluster: {error}") from error
    return secret, EtcdConfig(
        endpoints=config.etcd, prefix=config.prefix, user=config.etcd_user, password=password, tls=tls
    )


@asynccontextmanager
async def clustered(
    config: GatewayConfig,
    store: Store,
    admin: LocalAdmin,
    clock: Clock,
    *,
    listener: socket.socket,
    internal: socket.socket,
    kafka: tuple[str, ...],
    tls: ServerTls | None,
    progress: RecoveryProgress,
    stopping: asyncio.Event,
) -> AsyncIterator[ClusterNode]:
    """A node of the cluster while the block runs: joined, its topics and routes as the metadata has them, and answering
    the other nodes. `kafka`: where clients reach its Kafka listeners. While etcd cannot be reached it waits, until
    `stopping`. Raises CannotJoin, SessionTaken, ConfigError."""
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
        kafka=kafka,
        balancing=own.balance,
    )
    async with EtcdMetadata(etcd) as metadata, kept_fresh(own, secret, metadata, etcd):
        node = ClusterNode(
            own.node, metadata, admin.broker, secret, store, admin.routes, clock, on_topics=lambda: admin.on_change()
        )
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
        service = PeerService(
            admin.broker,
            secret,
            clock,
            queues_of=store.queues_of,
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


def belonging(gateway: Gateway, groups: Coordinator, node: ClusterNode) -> Gateway:
    """The gateway as that of a node: it uses no groups but its own."""
    return replace(gateway, cluster_id=node.cluster_id, cluster=node, groups=OwnGroups(groups, node))
