"""The nodes of the cluster as Kafka clients know them: brokers by number, who leads a partition, who keeps a group.

Each node publishes where its Kafka listeners are reached (gateway/cluster/members.py). A client is told the addresses
of the listener that it is connected to, by the listener's name; a node without a listener of that name, or that is not
there, is no broker for it. The leader of a partition is the node that owns it, the leader epoch that of its open
segment. Requests about a partition or a group that is another node's are refused: the client looks again who has it.

A server that is alone is broker 0, at the address that it advertises, and leads every partition in epoch 0.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from typing import NamedTuple

from gateway.api.cluster import ALONE_NUMBER, GROUPS, Cluster, MemberView
from gateway.routing.base import Routes, TopicView
from gateway.settings.kafka import KafkaListener, parse_listener
from gateway.surfaces.kafka import errors
from gateway.surfaces.kafka.session import Session
from store.errors import UnknownQueue
from store.topics import epoch_of
from store.turns import others_turn

ANY_EPOCH = -1
"""The leader epoch of a client that knows none."""

NOBODY = -1
"""The number of the leader where there is none."""

PARTITIONS_PER_TURN = 1_000
"""Partitions that are looked up in one turn of the event loop, and written down when their topic lies as no other."""

_LISTENER_NOT_FOUND_FROM = 6
"""The version of Metadata from which clients know LISTENER_NOT_FOUND."""


class Node(NamedTuple):
    """A broker that a client can connect to."""

    number: int
    host: str
    port: int
    rack: str | None


class Place(NamedTuple):
    """Where a partition is: the number of the broker that owns it, and why it cannot be asked now (else NONE)."""

    owner: int
    epoch: int
    code: int


def nodes_of(session: Session) -> Mapping[str, Node]:
    """The brokers that this client can connect to, by the names of their nodes; this node is among them."""
    cluster = session.gateway.cluster
    own = session.advertised
    if cluster is None:
        return {"": Node(ALONE_NUMBER, own.host, own.port, session.gateway.config.room or None)}
    found = {}
    for name, member in sorted(cluster.members.items(), key=lambda item: item[1].number):
        at = _reached(member, session.listener) if cluster.is_there(name) else None
        if at is None and name == cluster.name:
            at = own
        if at is not None:
            found[name] = Node(member.number, at.host, at.port, member.room or None)
    return found


def _reached(member: MemberView, listener: str) -> KafkaListener | None:
    return next((one for text in member.kafka if (one := _parsed(text)) is not None and one.name == listener), None)


@lru_cache(maxsize=1_000)
def _parsed(text: str) -> KafkaListener | None:
    """The listener of a text that another node has published; None for one that is not understood."""
    try:
        return parse_listener(text)
    except ValueError:
        return None


class Places:
    """Where the partitions of topics are, for one Metadata response of a version."""

    def __init__(self, session: Session, version: int) -> None:
        self.nodes = nodes_of(session)
        self._cluster, self._routes = session.gateway.cluster, session.gateway.routes_table
        is_known = version >= _LISTENER_NOT_FOUND_FROM
        self._no_listener = errors.LISTENER_NOT_FOUND if is_known else errors.LEADER_NOT_AVAILABLE
        self._seen_count = 0

    async def of(self, view: TopicView) -> tuple[Place, ...]:
        """The places of a topic's partitions, in their order; with others' turns in between where they are looked up
        one by one."""
        if self._cluster is None:
            return (Place(ALONE_NUMBER, 0, errors.NONE),) * view.partitions
        places = []
        for partition in range(view.partitions):
            self._seen_count += 1
            if self._seen_count % PARTITIONS_PER_TURN == 0:
                await others_turn()
            try:
                places.append(self._place(self._cluster, view.name, partition))
            except UnknownQueue:  # the topic was deleted, or has another shape, within this request
                break
        return tuple(places)

    def _place(self, cluster: Cluster, topic: str, partition: int) -> Place:
        route = self._routes.writable(topic, partition)
        name, code = route.broker.served_by, errors.NONE
        if name not in self.nodes:
            code = self._no_listener if cluster.is_there(name) else errors.LEADER_NOT_AVAILABLE
        member = cluster.members.get(name)
        return Place(NOBODY if member is None else member.number, epoch_of(route.queue), code)


def leader_epoch(routes: Routes, topic: str, partition: int) -> int:
    """The epoch of a partition's leader. Raises UnknownQueue."""
    return epoch_of(routes.writable(topic, partition).queue)


def refusal(session: Session, topic: str, partition: int, epoch: int = ANY_EPOCH) -> int:
    """Why this node does not answer for a partition of which the client knows the leader's epoch: the error code.
    NONE when it does, and for a partition that is not there: who goes on finds that."""
    cluster = session.gateway.cluster
    if cluster is None:
        return errors.NONE
    try:
        route = session.gateway.routes_table.writable(topic, partition)
    except UnknownQueue:
        return errors.NONE
    if route.broker.served_by != cluster.name:
        return errors.NOT_LEADER
    own = epoch_of(route.queue)
    if epoch in (ANY_EPOCH, own):
        return errors.NONE
    return errors.FENCED_LEADER_EPOCH if epoch < own else errors.UNKNOWN_LEADER_EPOCH


def coordinator_of(session: Session, group: str) -> Node | None:
    """The broker that keeps a group. One that no node has yet becomes that of the node whose first request needs it:
    this one, or, while this one drains, the first that does not. None: the node that has it is no broker for this
    client now."""
    cluster = session.gateway.cluster
    nodes = nodes_of(session)
    if cluster is None:
        return next(iter(nodes.values()))
    owner = cluster.owner(GROUPS, group)
    if owner is None:
        takers = (name for name in (cluster.name, *nodes) if not cluster.members[name].draining)
        owner = next(takers, cluster.name)
    return nodes.get(owner)


def is_elsewhere(session: Session, group: str) -> bool:
    """Whether a group is another node's."""
    cluster = session.gateway.cluster
    return cluster is not None and cluster.owner(GROUPS, group) not in (None, cluster.name)
