"""Being a node of a cluster: joined before requests are answered, left when the server stops."""

from __future__ import annotations

import asyncio
import logging
import secrets
import socket
import ssl
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any, ParamSpec, TypeVar

from gateway.api.cluster import GROUPS
from gateway.auth.operator_files import read_file
from gateway.cluster.etcd import EtcdConfig, EtcdMetadata
from gateway.cluster.members import CannotJoin, Member, check_node_name, join
from gateway.cluster.metadata import Unavailable
from gateway.cluster.node import ClusterNode
from gateway.cluster.peer_auth import Secret
from gateway.groups.coordinator.service import Coordinator
from gateway.groups.machines.errors import GroupElsewhere
from gateway.main.admin import LocalAdmin
from gateway.main.identity import cluster_id
from gateway.main.listener import address_of, listening_to_nodes, url_of
from gateway.main.tls import ServerTls
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

P = ParamSpec("P")
T = TypeVar("T")

SECRET_BYTES_MAX = 64 * KiB
"""Of the files with the cluster's secret and etcd's password."""

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
    )
    async with EtcdMetadata(etcd) as metadata:
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
            admin.broker, secret, clock, queues_of=store.queues_of, know=node.know, look_at=node.look_at
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


async def belonging(gateway: Gateway, groups: Coordinator, node: ClusterNode) -> Gateway:
    """The gateway as that of a node: its groups are its own by now, and it uses no others. Raises Unavailable."""
    for name in groups.names():
        if (owner := await node.claim(GROUPS, name)) != node.name:
            log.error("group belongs to another node; it is not served here group=%s node=%s", name, owner)
    return replace(
        gateway,
        cluster_id=node.cluster_id,
        cluster=node,
        groups=OwnGroups(groups, node),
    )


class OwnGroups:
    """`Groups`, of which a method that may begin to use a group refuses one that belongs to another node. Requests
    that name their group in the path never come so far: they are forwarded (surfaces/http/forwarding.py)."""

    def __init__(self, groups: Coordinator, cluster: ClusterNode) -> None:
        self._cluster = cluster
        checked = self._checked

        # What a group comes into being by, or is first asked by.
        self.configure, self.follow = checked(groups.configure), checked(groups.follow)
        self.join, self.begin_round = checked(groups.join), checked(groups.begin_round)
        self.committed, self.start_offset = checked(groups.committed), checked(groups.start_offset)
        self.commit, self.reset = checked(groups.commit), checked(groups.reset)
        self.receive, self.put_document = checked(groups.receive), checked(groups.put_document)

        # What is asked about a group, or done to it, after that.
        self.groups, self.names, self.describe = groups.groups, groups.names, groups.describe
        self.config, self.members, self.view = groups.config, groups.members, groups.view
        self.counts, self.leases, self.documents = groups.counts, groups.leases, groups.documents
        self.lag, self.lag_page, self.delete = groups.lag, groups.lag_page, groups.delete
        self.heartbeat, self.share_changed = groups.heartbeat, groups.share_changed
        self.release, self.leave = groups.release, groups.leave
        self.plan_state, self.assign, self.forget_offsets = groups.plan_state, groups.assign, groups.forget_offsets
        self.ack, self.ack_up_to, self.extend = groups.ack, groups.ack_up_to, groups.extend
        self.nack, self.give_back, self.reject = groups.nack, groups.give_back, groups.reject
        self.redrive, self.settle_letters = groups.redrive, groups.settle_letters
        self.settled_letters = groups.settled_letters

    def _checked(self, method: Callable[P, Coroutine[Any, Any, T]]) -> Callable[P, Coroutine[Any, Any, T]]:
        async def checked(*arguments: P.args, **named: P.kwargs) -> T:
            group = arguments[0] if arguments else named["group"]
            assert isinstance(group, str)
            owner = self._cluster.owner(GROUPS, group) or await self._cluster.claim(GROUPS, group)
            if owner != self._cluster.name:
                raise GroupElsewhere(
                    f"group {group} belongs to node {owner}: connect to {self._cluster.members[owner].url}"
                )
            return await method(*arguments, **named)

        return checked
