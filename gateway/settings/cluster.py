"""What an operator may choose about several nodes."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

_SHARED = "cluster.etcd or cluster.metadata_broker"

MOVES_MAX_MAX = 100
"""Of `moves_max`: a move that looks for a slot reads all of them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterConfig:
    """Being one of several nodes, when `node` is given. See docs/cluster.md."""

    node: str | None = None
    """This node's name in the cluster, for good: its data directory keeps it. Not set, and a Kafka cluster to move
    partitions to: `local`."""

    join: bool = False
    """Serve a cluster's clients without being one of its nodes: a gateway without data, which passes on to the nodes
    what it is asked. Needs `cluster.etcd`, or `cluster.metadata_broker`, and `cluster.secret_file`."""

    no_store: bool = False
    """Be a node that keeps nothing on a disk: all that it serves is on Kafka clusters. Needs `cluster.etcd` or
    `cluster.metadata_broker`, and `cluster.default_broker`, `cluster.groups_broker` and `cluster.timers_broker`. See
    docs/kafka-broker.md."""

    etcd: tuple[str, ...] = ()
    """Endpoints of etcd, in which the nodes keep what they agree on: http://host:2379. Not set: see
    `cluster.metadata_broker`."""

    etcd_user: str | None = None
    """Whom to log in to etcd as."""

    etcd_password_file: Path | None = None
    """File with the password of `etcd_user`."""

    etcd_ca_file: Path | None = None
    """Certificates (PEM) to trust for https endpoints, when etcd's is no public one."""

    prefix: str = "mq/"
    """Before every key in etcd, so that several clusters share one etcd."""

    secret_file: Path | None = None
    """File with the cluster's secret, the same on all nodes: at least 16 bytes; 32 random ones are right."""

    internal_host: str = "127.0.0.1"
    """Address to listen on for the other nodes. Clients must not reach it."""

    internal_port: int = 8083
    """0 picks a free one."""

    internal_url: str | None = None
    """Where the other nodes reach that listener. Not set: http:// with its host and port."""

    client_url: str | None = None
    """Where clients, and the other nodes for what belongs to one node, reach this one. Not set: its host and port."""

    kafka: tuple[str, ...] = ()
    """Kafka clusters that partitions can be moved to: name=kafka://host:port,host:port?replication=3. The same on all
    nodes; a server that is to be the only one needs neither `node` nor `etcd`. See docs/kafka-broker.md."""

    metadata_broker: str | None = None
    """The Kafka cluster, by its name in `cluster.kafka`, in which the nodes keep what they agree on, in place of etcd.
    For good, and the same on all nodes. See docs/kafka-broker.md."""

    default_broker: str | None = None
    """The Kafka cluster, by its name in `cluster.kafka`, on which the partitions of topics begin that are made from now
    on. Not set: on nodes. The same on all nodes. See docs/kafka-broker.md."""

    groups_broker: str | None = None
    """The Kafka cluster, by its name in `cluster.kafka`, that keeps the consumer groups which are made from now on:
    when a node dies, others go on with them. For good, and the same on all nodes. See docs/kafka-broker.md."""

    timers_broker: str | None = None
    """The Kafka cluster, by its name in `cluster.kafka`, that keeps the delayed records which are accepted from now on:
    when a node dies, others deliver them. For good, and the same on all nodes. See docs/kafka-broker.md."""

    balance: bool = True
    """Whether this node, when it is new to the cluster, takes its share of the partitions by itself, and each time that
    it starts its share of what nodes own on Kafka clusters. `mq broker add` has it do so at any time."""

    balance_moves_per_s: int = 5
    """How many partitions it takes a second then, at most. Each move holds sends to that partition for some ms."""

    moves_max: int = 4
    """How many partitions move at a time in the whole cluster, by hand or as a node drains or comes. Further moves wait
    for up to 10 s, then they are refused (429). The same on all nodes: else the highest counts."""

    @property
    def is_only_node(self) -> bool:
        """Whether this is the one node of its cluster for good: it keeps in its own data directory where partitions
        are. A data directory that was such a node's stays one, whatever is set."""
        return bool(self.kafka) and not self.is_shared

    @property
    def is_shared(self) -> bool:
        """Whether what nodes agree on is kept where other nodes, too, can reach it."""
        return bool(self.etcd) or self.metadata_broker is not None

    @property
    def has_data(self) -> bool:
        """Whether the server has a data directory."""
        return not (self.join or self.no_store)

    def __post_init__(self) -> None:
        if not 0 <= self.internal_port <= 65535:
            raise ValueError("cluster.internal_port must be between 0 and 65535")
        if not 1 <= self.balance_moves_per_s <= 1000:
            raise ValueError("cluster.balance_moves_per_s must be between 1 and 1000")
        if not 1 <= self.moves_max <= MOVES_MAX_MAX:
            raise ValueError(f"cluster.moves_max must be between 1 and {MOVES_MAX_MAX}")
        if self.no_store:
            self._check_no_store()
        if self.join and self.node is not None:
            raise ValueError("cluster.join and cluster.node contradict each other: a gateway is no node; choose one")
        if self.etcd and self.metadata_broker is not None:
            raise ValueError(
                "cluster.etcd and cluster.metadata_broker contradict each other: what nodes agree on is in one of them"
            )
        if self.join and self.kafka and self.metadata_broker is None:
            raise ValueError("cluster.join and cluster.kafka contradict each other: a gateway has no broker of its own")
        for name in ("default_broker", "timers_broker", "metadata_broker"):
            if getattr(self, name) is not None and not self.kafka:
                raise ValueError(f"cluster.{name} needs cluster.kafka: it is one of the Kafka clusters there")
        if self.groups_broker is not None and not (self.kafka and self.is_shared):
            raise ValueError(
                f"cluster.groups_broker needs cluster.kafka and {_SHARED}: several nodes that share a cluster"
            )
        if self.is_only_node and not self.no_store:
            return
        if self.node is None and not self.join:
            if self.is_shared:
                where = "cluster.etcd" if self.etcd else "cluster.metadata_broker"
                raise ValueError(f"{where} needs cluster.node, a name for this node, or cluster.join")
            return
        which = "cluster.join" if self.join else "cluster.node"
        if not self.is_shared:
            raise ValueError(f"{which} needs {_SHARED}: where the nodes keep what they agree on")
        if self.secret_file is None:
            raise ValueError(f"{which} needs cluster.secret_file: the secret by which nodes know each other")
        if (self.etcd_user is None) != (self.etcd_password_file is None):
            raise ValueError("cluster.etcd_user and cluster.etcd_password_file go together")
        for url in (*self.etcd, self.internal_url, self.client_url):
            if url is not None and not url.startswith(("http://", "https://")):
                raise ValueError(f"cluster: {url!r} is no URL such as http://host:2379")

    def _check_no_store(self) -> None:
        """Raises ValueError that names all that a node without a store needs and does not have."""
        if self.join:
            raise ValueError(
                "cluster.no_store and cluster.join contradict each other: a gateway is no node; choose one"
            )
        needed = ("kafka", "default_broker", "groups_broker", "timers_broker")
        missing = [f"cluster.{name}" for name in needed if not getattr(self, name)]
        if not self.is_shared:
            missing.insert(0, _SHARED)
        if missing:
            raise ValueError(
                f"cluster.no_store needs {', '.join(missing)}: all that a node without a store serves is on Kafka"
                " clusters, and etcd or one of them says where"
            )
