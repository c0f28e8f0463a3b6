"""What surfaces ask of the cluster that this node belongs to. A server that is alone has none."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any, Protocol

from gateway.cluster.mover import Step
from gateway.routing.base import Routes
from store.data_format import VERSION as DATA_VERSION


class MemberView(Protocol):
    """One broker of the cluster."""

    @property
    def name(self) -> str:
        """Its node's name."""
        ...

    @property
    def number(self) -> int:
        """What APIs that count brokers know it by."""
        ...

    @property
    def url(self) -> str:
        """Where clients reach its node."""
        ...

    @property
    def draining(self) -> bool:
        """Whether it is to have nothing."""
        ...

    @property
    def balancing(self) -> bool:
        """Whether it takes its share of the partitions."""
        ...

    @property
    def storeless(self) -> bool:
        """Whether its node has no store: nothing can be moved to it."""
        ...

    @property
    def room(self) -> str:
        """The machine room of its node; empty when it has none."""
        ...

    @property
    def kafka(self) -> Sequence[str]:
        """Where Kafka clients reach its node, by the names of its listeners: NAME://HOST:PORT."""
        ...


class MoveView(Protocol):
    """A move that is under way."""

    @property
    def source(self) -> str:
        """The broker that the partition is on."""
        ...

    @property
    def to(self) -> str:
        """The broker that it goes to."""
        ...

    @property
    def step(self) -> Step:
        """What the move is at."""
        ...

    @property
    def since_ms(self) -> int:
        """When it began; of another node's, since when it is known here."""
        ...


class Cluster(Protocol):
    """The brokers of the cluster, moves, and what belongs to one node."""

    @property
    def name(self) -> str:
        """This node's name."""
        ...

    @property
    def members(self) -> Mapping[str, MemberView]:
        """All brokers, by name."""
        ...

    @property
    def blocked(self) -> str | None:
        """Why this node could not move something off itself, or to itself, the last time; None: nothing is in the
        way."""
        ...

    @property
    def kafka(self) -> Collection[str]:
        """The brokers that are Kafka clusters."""
        ...

    def trouble(self, name: str) -> str | None:
        """Why a Kafka cluster was not reached the last time; None: it was, or it is none."""
        ...

    def is_there(self, name: str) -> bool:
        """Whether a broker's node runs, as far as its session tells."""
        ...

    def is_gone(self, name: str) -> bool:
        """Whether a node is away that has no store: nothing waits for it."""
        ...

    async def move(self, topic: str, partition: int, to: str) -> object:
        """Move a partition to a broker; durable on return. Raises UnknownQueue, UnknownPartition, UnknownBroker,
        MovesBusy, MoveConflict, and what brokers and metadata raise."""
        ...

    def moves(self) -> Mapping[tuple[int, int], MoveView]:
        """The moves that are under way, by topic id and partition."""
        ...

    def owned_counts(self, kind: str) -> Mapping[str, int]:
        """How many names of a kind each node has."""
        ...

    async def take_over(self, topic: str, partition: int, to: str | None) -> object:
        """Go on with a partition whose broker is not there, elsewhere (None: on the one with the fewest); durable on
        return. Raises as `move`; StillThere."""
        ...

    async def take_over_owned(self, kind: str, name: str) -> str:
        """Have a name whose node is not there belong to this one, with nothing of what it had; whose it was. Raises
        StillThere, Unavailable."""
        ...

    def kafka_of(self, topic_id: int, partition: int) -> str | None:
        """The Kafka cluster on which a partition is, whichever node owns it; None: on none."""
        ...

    def owned_on_kafka(self) -> Mapping[str, int]:
        """How many partitions and shards on Kafka clusters each node owns."""
        ...

    def owned(self, kind: str, node: str) -> list[str]:
        """The names of a kind that belong to a node."""
        ...

    async def set_draining(self, name: str, draining: bool) -> None:
        """Have a broker give up its partitions and groups, and take none, from now on; or take some again. Durable on
        return; it does so by itself. Raises UnknownBroker, Unavailable."""
        ...

    async def ask_all(
        self, operation: str, head: Mapping[str, object]
    ) -> tuple[Mapping[str, Mapping[str, Any]], Sequence[str]]:
        """What each other node answers to an operation between nodes, and the nodes that do not."""
        ...

    def owner(self, kind: str, name: str) -> str | None:
        """The node to which a name of a kind (GROUPS, RECURRING) belongs; None: to none."""
        ...

    def timer_owner(self, schedule: str) -> str | None:
        """The node that has the schedule of an id that names no node, but a shard of delayed records."""
        ...

    async def look_up(self, kind: str, name: str) -> str | None:
        """Likewise, by what the metadata says now."""
        ...

    async def claim(self, kind: str, name: str) -> str:
        """Likewise; to this node from now on, if it belonged to none. Raises Unavailable."""
        ...


FIGURES = "topic_figures"
"""The operation between nodes that asks what one has of topics (gateway/api/topic_figures.py)."""

GROUPS, RECURRING = "groups", "recurring"


ALONE_NUMBER = 0
"""The number of the broker of a server that is alone."""


def listed(cluster: Cluster, routes: Routes) -> list[MemberView]:
    """The brokers that lists have: all, but nodes without a store that are away and of which nothing is left: others
    own what they had on Kafka clusters, and no newer data format waits for them."""
    gone = {name for name in cluster.members if cluster.is_gone(name)}
    if gone:
        gone -= {*cluster.owned_on_kafka(), *routes.lacking(DATA_VERSION)}
    return [member for name, member in cluster.members.items() if name not in gone]


def broker_numbers(cluster: Cluster | None, routes: Routes) -> list[int]:
    """The numbers of all brokers, for APIs that count them."""
    return [ALONE_NUMBER] if cluster is None else sorted(member.number for member in listed(cluster, routes))


def own_number(cluster: Cluster | None) -> int:
    """The number of this node's broker."""
    return ALONE_NUMBER if cluster is None else cluster.members[cluster.name].number


def leader_of(cluster: Cluster | None, routes: Routes, topic: str, partition: int) -> int:
    """The number of the broker that takes a partition's records: this node's for one that it owns on a Kafka cluster.
    Raises UnknownQueue."""
    node = routes.writable(topic, partition).broker.served_by
    return ALONE_NUMBER if cluster is None else cluster.members[node].number
