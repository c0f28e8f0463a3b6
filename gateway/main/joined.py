"""A gateway that serves a cluster without being one of its nodes (`mq serve --join`): it has no data, no partitions and
no groups. Sends and reads it does itself over the nodes' brokers, as a node does for partitions of others; all else it
passes on, to the node that has what is asked for, or to any one.

    start        answers 503 until it has read the metadata and knows of a node; waits for that as long as it takes
    etcd down    goes on with what it knows, as when the metadata is in Kafka and that is away. Cut off from it alone,
                 while nodes have it: 503 for sends to a partition that has moved meanwhile
    nodes down   sends go to brokers that answer, as on a node; what a node has alone is 503. /readyz says when there is
                 none at all
    stop         as a server's: no new connections, and what is being answered is

It holds nothing that is lost with it: kill it at any time, and run as many as are needed.
"""

from __future__ import annotations

import asyncio
import logging
import os
import secrets
from collections.abc import Callable, Sequence
from contextlib import AsyncExitStack
from dataclasses import replace
from typing import cast

from gateway.api.topics import TopicAdmin
from gateway.cluster.node import ClusterNode
from gateway.main.clustering import checked, following, known
from gateway.main.listener import answering_not_ready, bound_socket, listening, url_of
from gateway.main.memory import give_back_forever
from gateway.main.metrics import Collector, process_metrics, registry_of, text_metrics
from gateway.main.notify import Notifier
from gateway.main.reload import AuthReloader
from gateway.main.schemas import opened_schemas
from gateway.main.storeless import OWN_ROUTES, reload_quietly, rows_of, storeless_gateway
from gateway.main.tls import ServerTls
from gateway.routing.detector import Detector
from gateway.routing.fault import TABLES
from gateway.routing.table import RouteTable
from gateway.settings.config import GatewayConfig
from gateway.surfaces.http.application import application_of
from gateway.surfaces.http.connection import ConnectionLimiter
from gateway.surfaces.http.forwarding import Forwarder, ToNodes
from gateway.surfaces.http.starting import RecoveryProgress
from store.clock import Clock, SystemClock

log = logging.getLogger(__name__)

LOCAL_ROUTES = frozenset(("healthz", "readyz", "metrics", "limits", "info"))
"""Names of the routes that are about this process: answered here, whatever the nodes do."""


class GatewayReadiness:
    """Whether a gateway can serve; all else that `TopicAdmin` can do, nodes do."""

    def __init__(self, node: ClusterNode) -> None:
        self._node = node

    def brokers(self) -> Sequence[str]:
        """It has none of its own."""
        return ()

    def ready(self) -> Sequence[str]:
        """See `TopicAdmin.ready`."""
        is_any = any(self._node.is_there(name) for name in self._node.members)
        return () if is_any else ("no node of the cluster is there",)


async def run(
    config: GatewayConfig, *, announce: Callable[[str], None], stopping: asyncio.Event, clock: Clock | None = None
) -> None:
    """Serve until `stopping` is set. `announce` gets the URL once connections are answered. Raises CannotJoin,
    ConfigError, PolicyError, TlsError, OSError when it cannot start; an ExceptionGroup when one of its tasks died."""
    clock = clock or SystemClock()
    tls = ServerTls(config.tls) if config.tls.is_on else None
    auth = AuthReloader(config, clock) if config.auth.enabled else None
    checked(config.cluster)
    manager = Notifier(os.environ)
    routes = RouteTable(TABLES[config.latency_penalties])
    name = f"gateway/{secrets.token_hex(4)}"  # no node's: those have no slash
    async with AsyncExitStack() as parts:
        parts.enter_context(manager.beating())
        listener = parts.enter_context(bound_socket(config.host, config.port))
        following_ = following(config, routes, clock, name=name, broker=None, cluster="", on_lost=stopping.set)
        node = await parts.enter_async_context(following_)
        progress = RecoveryProgress()
        async with answering_not_ready(config, listener, progress, tls):
            await known(config.cluster, node, progress, stopping)
        forwarder = Forwarder(node, None if tls is None else tls.trusting())
        parts.push_async_callback(forwarder.close)
        admin = cast(TopicAdmin, GatewayReadiness(node))
        gateway = storeless_gateway(config, clock, routes, cluster_id=node.cluster_id, admin=admin)
        sources = (lambda: process_metrics(config.limits), lambda: text_metrics(gateway.texts))
        gateway = replace(gateway, metrics=registry_of(Collector(gateway.stats, gateway.producer, sources)))
        gateway = replace(gateway, schemas=await parts.enter_async_context(opened_schemas(config.registry)))
        if auth is not None:
            gateway = replace(gateway, authenticator=auth.authenticator)
        application = application_of(gateway, rows_of(ToNodes(node, forwarder), OWN_ROUTES, local=LOCAL_ROUTES))
        limiter = ConnectionLimiter(config.limits, gateway.stats, clock.now_ms)
        async with asyncio.TaskGroup() as tasks:
            running = [
                tasks.create_task(node.follow(), name="cluster"),
                tasks.create_task(Detector(routes).run(), name="detector of unreachable brokers"),
                tasks.create_task(reload_quietly(auth, tls), name="reload"),
                tasks.create_task(give_back_forever(), name="memory"),
            ]
            async with listening(application, gateway, limiter, listener, tls, has_groups=False):
                url = url_of(config.host, listener, tls)
                announce(url)
                manager.ready(url)
                log.info("gateway accepting url=%s cluster=%s nodes=%d", url, node.cluster_id, len(node.members))
                await stopping.wait()
                gateway.leaving.set()
                manager.stopping()
                await asyncio.sleep(config.drain_delay_ms / 1000)
                gateway.draining.set()
            for task in running:
                task.cancel()
    log.info("stopped")
