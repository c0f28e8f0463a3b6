"""One node of a cluster: it follows the metadata, keeps its own topics and routes as the metadata has them, knows the
brokers of the other nodes, and changes topics and moves partitions on request.

All of the metadata is watched at once, so changes come in the order in which they were made: a topic before the records
of its partitions, a broker before the chains that name it. What this node changes itself it applies at once.

    topic made           compare-and-set, then in the own store, then the nodes that are there are told to look. A node
                         that is asked for a topic that it does not know yet reads the metadata first (`know`)
    topic deleted        likewise; a node that was away deletes its queues when it is back
    move left half way   finished by the target's node after FINISH_AFTER_S, by any other one after three times that,
                         as soon as both brokers are there
    segments expired     taken off the chain by the owner of the partition
    begins on Kafka      a partition that never moved, of a topic that is to be on a Kafka cluster, is moved there by
                         its home, and who makes the topic waits for it. A home without a store has nothing to move: it
                         has the partition begin there, as does any other node when it has been away for TAKE_AFTER_S
    on a Kafka cluster   what this node owns and does not serve, as it was started again or is in doubt, it takes over
                         anew. Of a node that is away, one of the others, which all of them find out alike, takes each
                         partition over at once, any other one after TAKE_AFTER_S. A node that stops, or drains, has the
                         others take over what it owns (`give_kafka`); one that comes has them give it its share
                         (gateway/cluster/balancer.py)
    shards there         partitions of the system topics `__offsets`, `__timer` and `__recurring`, likewise, before all
                         others (gateway/main/group_shards.py, timer_shards.py, recurring_shards.py)

While the metadata cannot be reached nothing of this can be changed, and records come and go as before.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import (
    AbstractContextManager,
    AsyncExitStack,
    aclosing,
    asynccontextmanager,
    contextmanager,
    nullcontext,
    suppress,
)
from dataclasses import replace
from functools import partial
from typing import Any, Protocol, Unpack
from zlib import crc32

import orjson

from gateway.brokers.base import BrokerUnreachable, NodeBroker
from gateway.brokers.kafka.attached import AttachedBroker
from gateway.brokers.kafka.beside import Schedules, no_shards
from gateway.brokers.kafka.broker import KafkaBroker, kept_ms
from gateway.brokers.none import NoBroker
from gateway.cluster import attaching
from gateway.cluster.attaching import Attaching
from gateway.cluster.balance import fullest
from gateway.cluster.follower import ChainFollower
from gateway.cluster.members import (
    BROKERS,
    CLUSTER,
    FORMAT_UNSAID,
    FORMATS,
    NODES,
    OWNERS,
    SESSION_TTL_MS,
    CannotJoin,
    Member,
    check_known,
    decode_member,
    encode_format,
    encode_member,
    encode_session,
    format_in,
    process_in,
)
from gateway.cluster.metadata import (
    ABSENT,
    CAS_KEYS_MAX,
    Changes,
    Listing,
    Metadata,
    MetadataError,
    OutcomeUnknown,
    Unavailable,
    Value,
)
from gateway.cluster.move_slots import MOVES_MAX_DEFAULT, MoveSlots
from gateway.cluster.move_stats import MoveStats
from gateway.cluster.mover import (
    PARTITIONS,
    Known,
    Move,
    MoveConflict,
    Mover,
    StillThere,
    UnknownBroker,
    key_of,
    queue_of,
)
from gateway.cluster.peer import PeerBroker
from gateway.cluster.peer_auth import Secret
from gateway.cluster.peer_wire import Head
from gateway.cluster.record import PartitionState
from gateway.cluster.shard_log import SHARD_TOPICS, Shard, ShardLog, ShardSnapshots, shard_of
from gateway.cluster.timer_shard import shard_at
from gateway.cluster.topics import (
    COUNTERS,
    TOPICS,
    Counters,
    TopicRecord,
    decode_counters,
    decode_topic,
    encode_counters,
    encode_topic,
    grown,
    in_turn,
    key_of_topic,
    table_of,
)
from gateway.routing.base import Attachment, UnknownPartition
from gateway.routing.table import RouteTable, Segment
from store.clock import Clock
from store.config import StoreConfig
from store.data_format import VERSION as DATA_VERSION
from store.errors import BrokerLacks, StoreError, TopicExists, UnknownQueue
from store.topics import (
    FIRST_USER_TOPIC_ID,
    OFFSETS,
    RECURRING,
    RESERVED_PREFIXES,
    TIMER,
    Topic,
    TopicChoices,
    TopicTable,
    check_config,
)
from store.topics import Changes as TopicChanges
from store.types import QueueKey
from store.uncancelled import to_its_end
from store.waits import is_set_within
from timer.schedule import decode_schedule_id

log = logging.getLogger(__name__)

TELL_TIMEOUT_S = 1.0
"""How long the changer of a topic waits for another node to look at it."""

ASK_TIMEOUT_S = 5.0
"""How long another node may take to answer for a list."""

LOOK_INTERVAL_S = 1.0
FINISH_AFTER_S = 5.0
"""How long a move may take before another node takes it up. One takes milliseconds."""

TAKE_AFTER_S = 5.0
"""How long a node is away before any other one takes over what it owns on a Kafka cluster."""

TAKE_OWN_S = 10.0
"""How long a node that starts waits for Kafka to serve what it owns there."""

TAKEN_AT_ONCE = 16
"""Partitions on Kafka clusters; each waits for etcd and for Kafka. One that takes long holds up no others."""

NEXT_TAKE_AFTER_S = 0.05
"""Likewise, before the node that comes next does: a listing of the metadata is applied by then."""

NEXT_LOOK_INTERVAL_S = 0.05
"""How often it is looked whether that time is over."""

GIVEN_AT_ONCE = 2 * TAKEN_AT_ONCE
"""Partitions on Kafka clusters that a node stops to serve before another one has taken them over."""

VERIFY_INTERVAL_S = 10.0
"""How often it is written down how far those partitions are known."""

BEGIN_LOOK_S, BEGIN_LOOKS = 0.01, 1000
"""How often whoever makes a topic looks whether its partitions are on the Kafka cluster on which they begin; they are
certain to come."""

TRIM_INTERVAL_S = 60.0
SEGMENTS_A_TURN = 4_096
"""Of partitions that have moved, looked at between two turns of the event loop. They take 13 ms to decode as those of
one partition, 25 ms as one each of so many."""

TRIES_MAX = 5
"""Of a move that meets another one of the same partition."""

RETRY_S = 1.0
GROUPS = "groups"
NAME_SHARDS = {GROUPS: OFFSETS.topic_id, "recurring": RECURRING.topic_id}
"""The kinds of names that shards have, and the topics of those."""

TAKE, GIVE = "take", "give"
"""The operations between nodes that have one take over what the asking one owns on Kafka clusters, and give what it
owns there to the asking one."""

RECEIPTS = "receipts/"
"""Where nodes tell each other the keys that they sign receipts with."""

SHARED_RECEIPTS = RECEIPTS + "*"
"""The one of all nodes without a store: no node has this name."""

RECEIPT_KEY_BYTES = 32


class NameTaken(Exception):
    """Another process is this node: it has no store, and was away for longer than its session lasts."""


class KeptTopics(Protocol):
    """The topics that a process has itself: a store, or, in a gateway without one, `TopicsInMemory`."""

    @property
    def config(self) -> StoreConfig:
        """How long records are kept at most."""
        ...

    @property
    def next_topic_id(self) -> int:
        """See `Store.next_topic_id`."""
        ...

    def topics(self) -> Sequence[Topic]:
        """See `Store.topics`."""
        ...

    def topic(self, name: str) -> Topic:
        """See `Store.topic`."""
        ...

    async def put_topic(self, wanted: Topic) -> Topic:
        """See `Store.put_topic`."""
        ...

    async def delete_topic(self, name: str) -> Topic:
        """See `Store.delete_topic`."""
        ...


class ClusterNode:
    """See the module. `begin`, then `run` until cancelled; `close` at the end. `on_topics` is called after topics came,
    changed or went. `kafka`: the Kafka clusters that are brokers, by name, and `attached`, what of them others write to
    as well; `doubt` is set when one of them has a partition to be taken over anew.

    A gateway without a store has one of these too, which only follows (`follow`): without a broker of its own, or, in a
    worker of a node, with that node's under that node's name. It reaches what is on a Kafka cluster through the node
    that owns it."""

    def __init__(
        self,
        name: str,
        metadata: Metadata,
        broker: NodeBroker | None,
        secret: Secret,
        store: KeptTopics,
        routes: RouteTable,
        clock: Clock,
        *,
        on_topics: Callable[[], None],
        kafka: Mapping[str, KafkaBroker] | None = None,
        attached: Mapping[str, AttachedBroker] | None = None,
        doubt: asyncio.Event | None = None,
        moves_max: int = MOVES_MAX_DEFAULT,
    ) -> None:
        self.name = name
        self.kafka: Mapping[str, KafkaBroker] = kafka or {}
        self._doubt = doubt or asyncio.Event()
        self._taking: dict[tuple[int, int], asyncio.Task[None]] = {}  # over, of Kafka clusters
        self._taken_at_once = asyncio.Semaphore(TAKEN_AT_ONCE)
        self._giving: set[tuple[int, int]] = set()  # not to be taken over by this node
        self._away_since_s: dict[str, float] = {}
        self._metadata = metadata
        self._own = broker
        self._secret = secret
        self._store = store
        self._routes = routes
        self._clock = clock
        self._on_topics = on_topics
        self._peers: dict[str, PeerBroker] = {}
        self._opened = AsyncExitStack()
        own = "" if kafka is None else name  # who has no Kafka clusters owns nothing there
        self._follower = ChainFollower(metadata, routes, self.broker_named, own=own, on_moving=self._expect_appends)
        self._mover = Mover(metadata, self.broker_named, clock, home=self._home, own=name)
        self._slots = MoveSlots(metadata, name, moves_max)
        self.attached: Mapping[str, AttachedBroker] = attached or {}
        self._attaching = Attaching(self.attached, routes, self._nodes_first)
        self._topics: dict[str, TopicRecord] = {}
        self._by_id: dict[int, TopicRecord] = {}
        self._topic_revisions: dict[str, int] = {}  # deleted ones too, until the watch tells of it
        self._beginning: set[tuple[int, int]] = set()  # own partitions that are to go to a Kafka cluster
        self._is_to_begin = asyncio.Event()  # there are new ones of those
        self._turn = asyncio.Lock()  # of what changes topics here
        self._owners: dict[str, str] = {}
        self._owner_revisions: dict[str, int] = {}  # of what this node changed itself, until the watch tells of it
        self._nodes: dict[str, int] = {}  # those that are there, and the data formats they know
        self._formats: dict[str, int] = {}  # that they knew when they were last there
        self._seen_revision = 0
        self._process = ""  # what its session says; empty before it has one
        self._seen_moving_s: dict[tuple[int, int, int], float] = {}  # topic id, partition, revision
        self.cluster_id = ""
        """Set it before `begin`."""

        self.take_group: Callable[[str, bytes, int, int], Awaitable[bool]] = _no_groups
        """Takes a group that leaves another node; see `PeerBroker.take_group`. Set when there are groups here."""

        self.schedule_in_shard: Schedules = no_shards
        """Accepts delayed records of a shard that is here. Set when there may be any."""

        self.answers: dict[str, Callable[[Head], Awaitable[Head]]] = {TAKE: self._take_given, GIVE: self._give_asked}
        """What this node answers others beside a broker's operations (`ask_all`), by operation."""

        self.on_shards: list[Callable[[], None]] = []
        """Called when `shard` may say something else than before."""

        self.members: dict[str, Member] = {}
        """All brokers of the cluster, by name."""

        self.default_broker: str | None = None
        """The Kafka cluster on which the partitions of topics begin that are made here; None: on nodes."""

        self.groups_broker: str | None = None
        """The Kafka cluster on which shards of groups begin; None: only those that were begun are there."""

        self.timers_broker: str | None = None
        """Likewise, of delayed records."""

        self.blocked: str | None = None
        """Why this node could not move something the last time (gateway/cluster/balancer.py)."""

    async def find_cluster(self) -> str | None:
        """The id of the cluster that the metadata is of; None: no node has made one. Raises Unavailable."""
        found = await self._metadata.get(CLUSTER)
        return None if found is None else found.data.decode()

    # ---- following -------------------------------------------------------------------------------------------------

    async def begin(self) -> None:
        """Know the cluster as it is now. Raises Unavailable, OtherMetadata."""
        await self._see(await self._metadata.list(""))
        await self._seal_taken()

    def unknown_brokers(self) -> list[str]:
        """Brokers on which partitions have records, and of which neither the metadata nor the settings tell."""
        named = {one.broker for _, known in self._follower.moved() for one in known.record.segments}
        return sorted((named | self._attaching.names) - self.members.keys() - self.kafka.keys())

    async def run(self) -> None:
        """Follow, and look after what was left half way, until cancelled. Each of these waits for brokers or for the
        metadata, which may not answer for long, so none waits for another one."""
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self.follow(), name="cluster")
            tasks.create_task(self._keep_served(), name="partitions on Kafka")
            tasks.create_task(self._keep_begun(), name="partitions that begin on Kafka")
            tasks.create_task(self._keep_verified(), name="ends on Kafka")
            tasks.create_task(self._keep_finished(), name="moves that were left")
            tasks.create_task(self._keep_trimmed(), name="expired segments")
            tasks.create_task(self._follow_growth(), name="attached topics")

    async def close(self) -> None:
        """Leave the other nodes' brokers."""
        if taking := list(self._taking.values()):
            for task in taking:
                task.cancel()
            await asyncio.wait(taking)
        await self._opened.aclose()

    async def follow(self) -> None:
        """Follow until cancelled."""
        while True:
            try:
                async with aclosing(self._metadata.watch("")) as watch:
                    async for seen in watch:
                        await self._see(seen)
            except MetadataError as error:
                log.error("metadata cannot be followed, trying again error=%s", error)
            except (StoreError, UnknownBroker, OSError) as error:
                log.error("what the metadata says cannot be applied, trying again error=%s", error)
            await asyncio.sleep(RETRY_S)

    async def _see(self, seen: Listing | Changes) -> None:
        values, before = seen.values, set(self._nodes)
        if isinstance(seen, Listing):
            async with self._turn:  # no topic is half made then
                self._check_known(seen)
            for key in [key for key in self._owners if key not in values]:
                self._see_owner(key, None, seen.revision)
            newer = {key: own for key, own in self._owner_revisions.items() if own > seen.revision}
            self._owner_revisions = newer
            self._nodes = {}
            self._formats = {}
        for key, value in values.items():
            if key.startswith(BROKERS) and value is not None:
                await self._see_broker(key.removeprefix(BROKERS), value)
            elif key.startswith((NODES, FORMATS)):
                if key == NODES + self.name and value is not None and not self.has_store(self.name):
                    self._check_process(value)
                known = self._nodes if key.startswith(NODES) else self._formats
                name = key.partition("/")[2]
                if value is None:
                    known.pop(name, None)
                    self._doubt.set()  # its shards are taken over soon
                else:
                    known[name] = format_in(value.data)
                self._attaching.nodes_changed()
            elif key.startswith(OWNERS):
                self._see_owner(key, value, seen.revision)
        for name in sorted(self._nodes.keys() - before):
            log.info("node is there node=%s", name)
        for name in sorted(before - self._nodes.keys()):
            log.warning("node is away, its session has ended node=%s", name)
        self._see_formats()
        self._follower.see(seen)
        async with self._turn:
            await self._see_topics(seen)
        self._seen_revision = max(self._seen_revision, seen.revision)
        if any(key.startswith(PARTITIONS) for key in values):
            self._shards_changed()

    def _shards_changed(self) -> None:
        if self._follower.system_owners:
            for wake in self.on_shards:
                wake()

    def _check_process(self, session: Value) -> None:
        """A store keeps a second process from being this node; without one its session does. Raises NameTaken."""
        if self._process and process_in(session.data) != self._process:
            raise NameTaken(f"another process is node {self.name} by now")

    def _see_formats(self) -> None:
        """A broker that is to have nothing, and is not there, holds up no other."""
        formats = self._routes.formats
        formats.clear()
        for name, member in self.members.items():
            if name != self.name and (self.is_there(name) or not member.draining):
                formats[name] = self._nodes.get(name, self._formats.get(name, FORMAT_UNSAID))

    def _check_known(self, seen: Listing) -> None:
        """Raises OtherMetadata before anything of a listing is applied: what it does not have is deleted here."""
        revisions = self._topic_revisions
        topic_ids = [
            topic.topic_id
            for topic in self._store.topics()
            if topic.topic_id >= FIRST_USER_TOPIC_ID and revisions.get(topic.name, -1) <= seen.revision
        ]
        check_known(seen, self.cluster_id, seen_revision=self._seen_revision, topic_ids=topic_ids)

    def _see_owner(self, key: str, value: Value | None, revision: int) -> None:
        """Apply what the watch tells of an owner's key, unless this node has changed it since."""
        revision = revision if value is None else value.revision
        if (own := self._owner_revisions.get(key)) is not None:
            if revision < own:
                return
            del self._owner_revisions[key]
        if value is None:
            self._owners.pop(key, None)
        else:
            self._owners[key] = _node_of(value.data)

    async def _see_broker(self, name: str, value: Value) -> None:
        try:
            member = decode_member(name, value.data)
        except ValueError as error:
            log.error("broker not known broker=%s error=%s", name, error)
            return
        self.members[name] = member
        self._routes.rooms[name] = member.room
        if name == self.name:
            return
        if (peer := self._peers.get(name)) is not None:
            peer.reach_at(member.address)
            return
        peer = PeerBroker(name, member.address, self._secret, self._clock)
        self._peers[name] = await self._opened.enter_async_context(peer)
        log.info("broker known broker=%s address=%s", name, member.address)
        self._follower.apply_again()  # of some partitions it may have been heard before

    async def _see_topics(self, seen: Listing | Changes) -> None:
        for key, value in seen.values.items():
            if key.startswith(TOPICS):
                await self._put_topic(key.removeprefix(TOPICS), value, seen.revision)
        if isinstance(seen, Listing):
            there = {key.removeprefix(TOPICS) for key in seen.values if key.startswith(TOPICS)}
            own = {topic.name for topic in self._store.topics() if topic.topic_id >= FIRST_USER_TOPIC_ID}
            for name in (own | self._topics.keys()) - there:
                await self._put_topic(name, None, seen.revision)

    async def _put_topic(self, name: str, value: Value | None, revision: int) -> None:
        """Have a topic here as a revision has it. Holding the turn."""
        revision = revision if value is None else value.revision
        if self._topic_revisions.get(name, -1) >= revision:
            if name not in self._topics:
                self._topic_revisions.pop(name, None)  # deleted by this node, which now hears of it
            return
        if value is None:
            await self._drop_topic(name)
            self._topic_revisions.pop(name, None)
            return
        try:
            record = decode_topic(value.data)
        except ValueError as error:
            log.error("topic not known topic=%s error=%s", name, error)
            return
        if (before := self._topics.get(name)) is not None and before.topic.topic_id != record.topic.topic_id:
            await self._drop_topic(name)
        if record.attached is not None:
            with suppress(UnknownQueue):
                await self._store.delete_topic(name)  # one that was mq's own, when this node was last here
            self._routes.set_chains(record.topic, self._attaching.put(record))
            self._topics[name] = self._by_id[record.topic.topic_id] = record
            self._topic_revisions[name] = revision
            self._on_topics()
            return
        await self._know_brokers(name for _, brokers in record.homes for name in brokers)
        topic = await self._store.put_topic(record.topic)
        self._topics[name] = self._by_id[topic.topic_id] = record
        self._topic_revisions[name] = revision
        chains = []
        for partition in range(topic.partitions):
            chain = self._follower.known_chain(topic.topic_id, partition)
            home = self.broker_named(record.home_of(partition))
            chains.append((Segment(home, QueueKey(topic.topic_id, partition)),) if chain is None else chain)
            is_looked_after = home is self._own or not self.has_store(home.name)
            if is_looked_after and self.is_to_begin(topic.topic_id, partition):
                self._beginning.add((topic.topic_id, partition))
                self._is_to_begin.set()
        self._routes.set_chains(topic, chains)
        self._on_topics()

    async def _know_brokers(self, names: Iterable[str]) -> None:
        """Learn of brokers of which the watch has not told yet: this node was told of a topic by another one. Raises
        Unavailable."""
        for name in names:
            if name not in self.members and (found := await self._metadata.get(BROKERS + name)) is not None:
                await self._see_broker(name, found)

    async def _drop_topic(self, name: str) -> None:
        if (record := self._topics.pop(name, None)) is not None:
            self._by_id.pop(record.topic.topic_id, None)
            for kafka in self.kafka.values():
                kafka.forget_topic(record.topic.topic_id)
            if record.attached is not None:
                self._attaching.drop(record.topic.topic_id)
                self._routes.remove(record.topic)
        with suppress(UnknownQueue):
            self._routes.remove(await self._store.delete_topic(name))
        self._on_topics()

    # ---- brokers ---------------------------------------------------------------------------------------------------

    def broker_named(self, name: str) -> NodeBroker | KafkaBroker:
        """A broker of the cluster. Raises UnknownBroker."""
        if name == self.name and self._own is not None:
            return self._own
        if (kafka := self.kafka.get(name)) is not None:
            return kafka
        return self.peer(name)

    def _expect_appends(self, broker: str) -> None:
        if (peer := self._peers.get(broker)) is not None:  # sends that are held go there at once, when it has moved
            peer.expect_appends()

    def _nodes_first(self) -> list[PeerBroker]:
        """The brokers of other nodes, those that are there first."""
        return [self._peers[name] for name in sorted(self._peers, key=lambda name: (not self.is_there(name), name))]

    def peer(self, name: str) -> PeerBroker:
        """The broker of another node. Raises UnknownBroker."""
        if (peer := self._peers.get(name)) is None:
            raise UnknownBroker(f"there is no broker {name} in this cluster")
        return peer

    async def ask_all(
        self, operation: str, head: Mapping[str, object]
    ) -> tuple[Mapping[str, Mapping[str, Any]], Sequence[str]]:
        """What each other node answers to an operation of `answers`, and the nodes that do not."""
        names = sorted(name for name in self._peers if not self.is_gone(name))
        found = await asyncio.gather(*[self._asked(name, operation, head) for name in names])
        answers = {name: answer for name, answer in zip(names, found, strict=True) if answer is not None}
        return answers, [name for name in names if name not in answers]

    async def _asked(self, name: str, operation: str, head: Mapping[str, object]) -> Mapping[str, Any] | None:
        if self.is_there(name):
            try:
                async with asyncio.timeout(ASK_TIMEOUT_S):
                    return await self._peers[name].ask("ask", {"what": operation, **head})
            except (StoreError, TimeoutError) as error:
                log.warning("node does not answer node=%s operation=%s error=%r", name, operation, error)
        return None

    async def answer(self, head: Head) -> Head:
        """Answer another node. Raises UnknownQueue for what is not known here."""
        if (answer := self.answers.get(str(head["what"]))) is None:
            raise UnknownQueue(f"this node does not know the operation {head['what']}")
        return await answer(head)

    def is_there(self, name: str) -> bool:
        """Whether a node's session says that it is there; of this one it is certain, and of Kafka clusters it is taken
        for granted."""
        return name == self.name or name in self._nodes or name in self.kafka

    def is_gone(self, name: str) -> bool:
        """Whether a node is away that has no store: nothing waits for it, others have what it had."""
        return not self.is_there(name) and not self.has_store(name)

    def trouble(self, name: str) -> str | None:
        """Why a Kafka cluster was not reached the last time; None: it was, or it is none."""
        return None if (kafka := self.kafka.get(name)) is None else kafka.trouble

    @asynccontextmanager
    async def in_session(self, data: str) -> AsyncIterator[None]:
        """Be there for the other nodes while the block runs; no other process may give the same `data`. Raises
        SessionTaken, Unavailable."""
        key = NODES + self.name
        async with self._metadata.session(key, encode_session(data, DATA_VERSION), ttl_ms=SESSION_TTL_MS):
            self._process = data
            await self._keep_format()
            yield

    async def check_own_record(self, data: str) -> None:
        """This node has its session: nobody else can be it from now on, but somebody may have been meanwhile. Raises
        CannotJoin, Unavailable."""
        found = await self._metadata.get(BROKERS + self.name)
        if found is None or decode_member(self.name, found.data).data != data:
            raise CannotJoin(f"another process has started as node {self.name}: choose another --node")

    async def _keep_format(self) -> None:
        """Have the others know this program's data format while it is away."""
        key, data = FORMATS + self.name, encode_format(DATA_VERSION)
        with suppress(Unavailable):  # then it counts as one that does not say: the others use nothing new
            while (found := await self._metadata.get(key)) is None or found.data != data:
                await self._metadata.compare_and_set({key: _revision_of(found)}, {key: data})

    def _home(self, topic_id: int, partition: int) -> str:
        if topic_id in SHARD_TOPICS:
            return self.name  # of a shard that was not begun
        if (record := self._by_id.get(topic_id)) is None:
            raise UnknownQueue(f"topic id {topic_id} does not exist")
        return record.home_of(partition)

    def has_store(self, name: str) -> bool:
        """Whether partitions and groups can be on a node; one without a store owns what is on Kafka clusters alone."""
        return not (isinstance(self._own, NoBroker) if name == self.name else self._is_storeless(name))

    def _is_storeless(self, name: str) -> bool:
        return (member := self.members.get(name)) is not None and member.storeless

    def takers(self) -> list[str]:
        """The brokers that take partitions and groups: those that are there, have a store, and are not draining."""
        return [name for name in self._present_takers() if self.has_store(name)]

    def _present_takers(self) -> list[str]:
        """Likewise, of what is on Kafka clusters: whether they have a store or not."""
        return [name for name, member in self.members.items() if self.is_there(name) and not member.draining]

    def _homes(self, begins_on: str | None) -> list[str]:
        """The brokers on which new partitions begin: when all drain, on all that are there. On those without a store
        only what is to begin on a Kafka cluster. Raises BrokerUnreachable."""
        takers = self.takers() if begins_on is None else self._present_takers()
        there = [name for name in self.members if self.is_there(name)]
        if not (homes := takers or [name for name in there if begins_on is not None or self.has_store(name)]):
            raise BrokerUnreachable("no node with a store is there, and the topic does not begin on a Kafka cluster")
        return homes

    async def set_draining(self, name: str, draining: bool) -> None:
        """Have a broker drain from now on, or take its share of the partitions again (see gateway/cluster/balancer.py);
        durable on return. Raises UnknownBroker, Unavailable."""
        await self._change_member(name, draining=draining, balancing=not draining)

    async def set_balanced(self) -> None:
        """This broker has its share; durable on return. Raises Unavailable."""
        await self._change_member(self.name, balancing=False)

    async def _change_member(self, name: str, *, balancing: bool, draining: bool | None = None) -> None:
        key = BROKERS + name
        while True:
            if (found := await self._metadata.get(key)) is None:
                raise UnknownBroker(f"there is no broker {name} in this cluster")
            member = replace(decode_member(name, found.data), balancing=balancing)
            member = member if draining is None else replace(member, draining=draining)
            with suppress(OutcomeUnknown):
                if await self._metadata.compare_and_set({key: found.revision}, {key: encode_member(member)}):
                    self.members[name] = member
                    return

    # ---- topics ----------------------------------------------------------------------------------------------------

    async def know(self, topic_ids: Collection[int]) -> None:
        """Learn of topics that other nodes may have learned of before: read the metadata when one is not known here.
        Raises Unavailable. One that is nowhere stays unknown."""
        if all(topic_id < FIRST_USER_TOPIC_ID or topic_id in self._by_id for topic_id in topic_ids):
            return
        seen = await self._metadata.list(TOPICS)
        async with self._turn:
            for key, value in seen.values.items():
                await self._put_topic(key.removeprefix(TOPICS), value, seen.revision)

    async def look_at(self, name: str) -> None:
        """Apply what the metadata says of a topic now. Raises Unavailable."""
        seen = await self._metadata.list(key := key_of_topic(name))
        async with self._turn:
            await self._put_topic(name, seen.values.get(key), seen.revision)

    async def create_topic(self, name: str, partitions: int, **choices: Unpack[TopicChoices]) -> Topic:
        """As `LocalBroker.create_topic`, for all nodes. Partitions begin on the brokers that are there, in turn; a
        topic of the server's own on this node, or where others begin when it has no store."""
        if (config := choices.get("config")) is not None:
            check_config(config, retention_ms_max=self._store.config.retention_ms)

        return await self._create_topic(name, partitions, None, **choices)

    async def attach_topic(
        self, name: str, to: Attachment, room: Callable[[int], AbstractContextManager[None]]
    ) -> Topic:
        """Have a topic that is one of a Kafka cluster, for all nodes; one that is there is returned as it is. `room`
        keeps room for so many partitions. Raises UnknownBroker, IllegalTopic, TopicExists, BrokerLacks, BrokerRefuses,
        BrokerUnreachable."""
        moved = [known.record async for _, known in self._moved()]
        count = await self._attaching.partitions_of(name, to, moved)
        with room(0 if name in self._topics else count):
            return await self._create_topic(name, count, to)

    async def _create_topic(
        self, name: str, partitions: int, attached: Attachment | None, **choices: Unpack[TopicChoices]
    ) -> Topic:
        async def create() -> Topic:
            while True:
                found, record = await self._read_topic(name)
                counted = await self._metadata.get(COUNTERS)
                counters = Counters(self._store.next_topic_id) if counted is None else decode_counters(counted.data)
                table = table_of(record, counters.topic_id)
                decided = table.decide_create(name, partitions, self._clock.now_ms(), **choices)
                if isinstance(decided, Topic):
                    assert found is not None
                    assert record is not None
                    if record.attached != attached:
                        raise TopicExists(f"topic {name} exists, and is not the one that is asked for")
                    topic = await self._applied(name, found)
                    await self._begun_on_kafka(topic)
                    return topic
                topic = table.apply(decided)
                if attached is not None:
                    made = TopicRecord(topic, ((0, (attached.broker,)),), attached=attached)
                elif choices.get("is_own") and self.has_store(self.name):
                    made = TopicRecord(topic, ((0, (self.name,)),))
                else:
                    homes = in_turn(self._homes(self.default_broker), topic.topic_id)
                    made = TopicRecord(topic, ((0, homes),), self.default_broker)
                await self._make_on_kafka(made)
                numbers = encode_counters(Counters(table.next_id, counters.broker))
                expected = {COUNTERS: _revision_of(counted), key_of_topic(name): _revision_of(found)}
                if await self._set_topic(expected, made, {COUNTERS: numbers}):
                    await self._begun_on_kafka(topic)
                    return topic

        return await to_its_end(create())

    async def configure_topic(self, name: str, changes: TopicChanges) -> Topic:
        """As `LocalBroker.configure_topic`, for all nodes."""
        view = self._routes.topic(name)
        self._attaching.check_changes(view.topic_id, changes)
        check_config(view.config.changed(changes), retention_ms_max=self._store.config.retention_ms)
        return await self._change_topic(name, lambda table: table.decide_configure(name, changes))

    async def grow_topic(self, name: str, partitions: int) -> Topic:
        """As `LocalBroker.grow_topic`, for all nodes."""
        self._attaching.check_grow(self._routes.topic(name).topic_id)
        return await self._change_topic(name, lambda table: table.decide_grow(name, partitions))

    async def delete_topic(self, name: str) -> None:
        """As `LocalBroker.delete_topic`, for all nodes: one that is away deletes its records when it is back."""

        async def delete() -> None:
            key = key_of_topic(name)
            while True:
                found, record = await self._read_topic(name)
                table_of(record, FIRST_USER_TOPIC_ID).decide_delete(name)
                assert found is not None
                assert record is not None
                try:
                    revision = await self._metadata.compare_and_set({key: found.revision}, {key: None})
                except OutcomeUnknown:
                    if await self._metadata.get(key) is not None:
                        continue
                    revision = found.revision + 1
                if revision is not None:
                    break
            async with self._turn:
                await self._drop_topic(name)
                self._topic_revisions[name] = revision
            await self._tell(name)
            await self._forget_partitions(record.topic.topic_id)

        await to_its_end(delete())

    async def _change_topic(self, name: str, decide: Callable[..., object]) -> Topic:
        async def change() -> Topic:
            while True:
                found, record = await self._read_topic(name)
                if found is None or record is None:
                    raise UnknownQueue(f"topic {name} does not exist")
                table = table_of(record, FIRST_USER_TOPIC_ID)
                decided = decide(table)
                if isinstance(decided, Topic):
                    return await self._applied(name, found)
                topic = table.apply(decided)  # type: ignore[arg-type]
                homes = self._homes(record.begins_on) if record.attached is None else [record.attached.broker]
                changed = grown(record, topic, homes)
                if topic.partitions > record.topic.partitions:
                    await self._make_on_kafka(changed)
                if await self._set_topic({key_of_topic(name): found.revision}, changed, {}):
                    await self._begun_on_kafka(topic)
                    return topic

        return await to_its_end(change())

    async def _read_topic(self, name: str) -> tuple[Value | None, TopicRecord | None]:
        found = await self._metadata.get(key_of_topic(name))
        return found, None if found is None else decode_topic(found.data)

    async def _set_topic(self, expected: dict[str, int], record: TopicRecord, others: dict[str, bytes]) -> bool:
        """Whether the topic is so in the metadata, and then on all nodes that are there; if not, or if that is not
        known, the caller reads and decides again."""
        name, data = record.topic.name, encode_topic(record)
        try:
            revision = await self._metadata.compare_and_set(expected, {key_of_topic(name): data, **others})
        except OutcomeUnknown:
            return False
        if revision is None:
            return False
        await self._applied(name, Value(data, revision))
        await self._tell(name)
        return True

    async def _tell(self, name: str) -> None:
        """Have the nodes that are there look at a topic."""
        peers = [peer for other, peer in self._peers.items() if self.is_there(other)]
        await asyncio.gather(*[_tell(peer, name) for peer in peers])

    async def _applied(self, name: str, value: Value) -> Topic:
        async with self._turn:
            await self._put_topic(name, value, value.revision)
            if (record := self._topics.get(name)) is None:
                raise UnknownQueue(f"topic {name} does not exist")
            return record.topic

    async def _forget_partitions(self, topic_id: int) -> None:
        """Delete the records of a deleted topic's partitions; what is left by a failure does no harm."""
        with suppress(MetadataError):
            listing = await self._metadata.list(f"{PARTITIONS}{topic_id}/")
            keys = list(listing.values)
            for first in range(0, len(keys), CAS_KEYS_MAX):
                some = keys[first : first + CAS_KEYS_MAX]
                expected = {key: listing.values[key].revision for key in some}
                await self._metadata.compare_and_set(expected, dict.fromkeys(some))

    # ---- topics that begin on a Kafka cluster ----------------------------------------------------------------------

    def is_to_begin(self, topic_id: int, partition: int) -> bool:
        """Whether a partition is about to go from its home to the Kafka cluster that it is to begin on."""
        record = self._by_id.get(topic_id)
        return record is not None and record.begins_on is not None and not self._follower.has_moved(topic_id, partition)

    async def _make_on_kafka(self, record: TopicRecord) -> None:
        """Have the topic on the Kafka cluster on which its partitions are to begin, before it is one of mq. Raises
        BrokerLacks, BrokerUnreachable."""
        if (kafka := self.kafka.get(record.begins_on or "")) is not None:
            topic = record.topic
            kept = kept_ms(topic.config.retention_ms, self._store.config.retention_ms)
            await kafka.make_topic(topic.name, topic.partitions, kept)

    async def _begun_on_kafka(self, topic: Topic) -> None:
        """Wait until the partitions of a topic are there, but not for ever: a node that is away goes on with its own
        when it is back."""
        if topic.name not in self._topics or self._topics[topic.name].begins_on is None:
            return
        await self._begin_on_kafka(topic.topic_id)
        own = [(topic.topic_id, partition) for partition in range(topic.partitions)]
        for _ in range(BEGIN_LOOKS):
            moving = self._follower.moving()
            if not any(self.is_to_begin(*at) or at in moving for at in own):
                return
            await asyncio.sleep(BEGIN_LOOK_S)

    async def _begin_on_kafka(self, topic_id: int | None = None) -> None:
        """Have own partitions begin, of one topic or of all. Those that cannot do so now are tried again."""
        due = sorted(at for at in self._beginning if topic_id in (None, at[0]))
        self._beginning.difference_update(due)
        for first in range(0, len(due), TAKEN_AT_ONCE):
            await asyncio.gather(*[self._begin_partition(*at) for at in due[first : first + TAKEN_AT_ONCE]])
        self._beginning.update(at for at in due if self.is_to_begin(*at))

    async def _begin_partition(self, topic_id: int, partition: int) -> None:
        record = self._by_id.get(topic_id)
        if record is None or record.begins_on is None or not self.is_to_begin(topic_id, partition):
            return
        home = record.home_of(partition)
        if self.has_store(home):
            await self._finish(topic_id, partition, record.begins_on)
        elif home == self.name or self._is_away(home):
            with self._logged("partition cannot begin", topic_id, partition, record.begins_on):
                known = await self._mover.begin(topic_id, partition, record.begins_on)
                self._follower.note(topic_id, partition, known)

    def _is_away(self, name: str) -> bool:
        """Whether a node has been away for long enough for others to go on with what it owns."""
        since_s = self._away_since_s.get(name)
        return since_s is not None and asyncio.get_running_loop().time() - since_s >= TAKE_AFTER_S

    # ---- moves -----------------------------------------------------------------------------------------------------

    async def move(self, topic: str, partition: int, to: str) -> Known:
        """Move a partition to a broker, when not too many others move (gateway/cluster/move_slots.py); its record when
        it is there. Raises UnknownQueue, UnknownPartition, UnknownBroker, BrokerUnreachable, MovesBusy before anything
        was changed; MoveConflict; and what brokers and metadata raise: then the move is finished by some node as soon
        as it can be."""
        view = self._routes.topic(topic)
        if not 0 <= partition < view.partitions:
            raise UnknownPartition(f"partition {partition} of topic {topic} does not exist")
        self.broker_named(to)
        kafka = self.kafka.get(to)
        if kafka is None and not self.has_store(to):
            raise BrokerLacks(f"node {to} has no store (--no-store): partitions can be on Kafka clusters only")
        self._attaching.check_move(view.topic_id, to, None if kafka is None else kafka.kafka_topic(view.topic_id))
        if kafka is not None:
            if topic.startswith(RESERVED_PREFIXES):
                raise BrokerLacks(f"topic {topic} is the server's own: it stays on the nodes")
            known = await self._mover.known(view.topic_id, partition)
            is_on = known.record.to is None and known.record.open_segment.broker == to
            if is_on and known.record.owner != self.name and self.is_there(known.record.owner):
                return known
        return await to_its_end(self._move(view.topic_id, partition, to, is_capped=True))

    async def _move(self, topic_id: int, partition: int, to: str, *, is_capped: bool) -> Known:
        for left in reversed(range(TRIES_MAX)):
            try:
                async with self._slots.one(topic_id, partition) if is_capped else nullcontext() as slot:
                    known = await self._mover.move(topic_id, partition, to, slot)
            except MoveConflict:
                if not left:
                    raise
            else:
                self._follower.note(topic_id, partition, known)
                return known
        raise AssertionError

    def moves(self) -> dict[tuple[int, int], Move]:
        """The moves that are under way, by topic id and partition. Those of other nodes as far as is known here, and
        since they are."""
        now_s, now_ms = asyncio.get_running_loop().time(), self._clock.now_ms()
        found = {}
        for at, known in self._follower.moving().items():
            since_s = self._seen_moving_s.get((*at, known.revision), now_s)
            assert known.record.to is not None
            source = known.record.open_segment.broker
            found[at] = Move(source, known.record.to, "seal", now_ms - round((now_s - since_s) * 1000))
        return found | self._mover.moves

    @property
    def move_stats(self) -> MoveStats:
        """What the moves that this node makes count."""
        return self._mover.stats

    @property
    def own_move_count(self) -> int:
        """How many moves this node makes now."""
        return self._mover.move_count

    async def take_over(self, topic: str, partition: int, to: str | None) -> Known:
        """Go on with a partition without its broker, which is not there, on another one (None: the one with the fewest
        partitions of the topic); its record then. See gateway/cluster/move.py for what that means. Raises as `move`;
        StillThere."""
        view = self._routes.topic(topic)
        if not 0 <= partition < view.partitions:
            raise UnknownPartition(f"partition {partition} of topic {topic} does not exist")
        known = await self._mover.known(view.topic_id, partition)
        owner = known.record.open_segment.broker
        if owner in self.kafka:
            raise StillThere(f"broker {owner} is a Kafka cluster: move the partition, there is nothing to take over")
        if self.is_there(owner):
            raise StillThere(f"broker {owner} is there: move the partition")
        if to is None:
            counts = Counter(self._routes.broker_name(topic, number) for number in range(view.partitions))
            to = min(sorted(self.takers() or [self.name]), key=lambda name: counts[name])
        self.broker_named(to)
        if to not in self.kafka and not self.has_store(to):
            raise BrokerLacks(f"node {to} has no store (--no-store), and what is taken over goes to a node")
        known = await to_its_end(self._mover.take_over(view.topic_id, partition, to))
        self._follower.note(view.topic_id, partition, known)
        return known

    async def take_over_owned(self, kind: str, name: str) -> str:
        """Have a name that belongs to a node which is not there belong to this one, with nothing that it had; whose it
        was. Raises StillThere, Unavailable; BrokerLacks when this one has no store."""
        if not self.has_store(self.name):
            raise BrokerLacks(f"node {self.name} has no store (--no-store): ask a node that has one")
        while True:
            owner, revision = await self.owner_now(kind, name)
            if owner is not None and owner != self.name and self.is_there(owner):
                raise StillThere(f"node {owner} is there")
            if owner is None or owner == self.name or await self.own(kind, name, revision):
                return owner or self.name

    async def refresh(self, topic: str, partition: int) -> None:
        """Read where a partition is, as far as it can be read: the watch may be late."""
        with suppress(MetadataError, UnknownQueue, ValueError):
            topic_id = self._routes.topic(topic).topic_id
            self._follower.note(topic_id, partition, await self._mover.known(topic_id, partition))

    async def _follow_growth(self) -> None:
        """Have attached topics grow as they do in Kafka."""
        while True:
            await asyncio.sleep(attaching.GROWTH_INTERVAL_S)
            async for topic, count in self._attaching.grown():
                log.info("attached topic has more partitions topic=%s partitions=%d", topic.name, count)
                with suppress(MetadataError, StoreError):
                    await self._change_topic(topic.name, partial(_grown, topic.topic_id, count))

    async def _keep_served(self) -> None:
        """Take over partitions on Kafka clusters that no node serves."""
        loop = asyncio.get_running_loop()
        while True:
            interval_s = self._take_kafka(loop.time())
            await is_set_within(self._doubt, interval_s)
            self._doubt.clear()
            self._shards_changed()

    async def _keep_begun(self) -> None:
        """Have partitions begin on the Kafka clusters on which they are to."""
        while True:
            await self._begin_on_kafka()
            await is_set_within(self._is_to_begin, LOOK_INTERVAL_S)
            self._is_to_begin.clear()

    async def _keep_verified(self) -> None:
        """Write down how far own partitions on Kafka clusters are known."""
        while True:
            await asyncio.sleep(VERIFY_INTERVAL_S)
            await self._verify_kafka()

    async def _keep_finished(self) -> None:
        """Finish moves that were left, one after the other."""
        loop = asyncio.get_running_loop()
        while True:
            await asyncio.sleep(LOOK_INTERVAL_S)
            with suppress(MetadataError):
                await self._slots.tidy()
            now_s = loop.time()
            left = self._follower.moving()
            moves = [(*at, known.revision) for at, known in left.items()]
            self._seen_moving_s = {each: self._seen_moving_s.get(each, now_s) for each in moves}
            for (topic_id, partition), known in left.items():
                to, source = known.record.to, known.record.open_segment.broker
                assert to is not None
                is_near = to == self.name or (to in self.kafka and known.record.owner == self.name)
                after_s = FINISH_AFTER_S if is_near else 3 * FINISH_AFTER_S
                since_s = self._seen_moving_s[topic_id, partition, known.revision]
                if now_s - since_s >= after_s and self.is_there(source):
                    await self._finish(topic_id, partition, to if self.is_there(to) else source)

    async def _keep_trimmed(self) -> None:
        """Take expired segments off chains, and seal what was taken over."""
        while True:
            await self._seal_taken()
            await asyncio.sleep(TRIM_INTERVAL_S)
            async for (topic_id, partition), known in self._moved():
                first, *others = known.record.segments
                if others and known.record.owner == self.name and self.is_there(first.broker):
                    await self._trim(topic_id, partition)

    async def _moved(self) -> AsyncIterator[tuple[tuple[int, int], Known]]:
        """`ChainFollower.moved`; others have their turns meanwhile."""
        looked_at = 0
        for at, known in self._follower.moved():
            if looked_at >= SEGMENTS_A_TURN:
                looked_at = 0
                await asyncio.sleep(0)
            looked_at += len(known.record.segments)
            yield at, known

    async def take_own(self) -> None:
        """Serve what this node owns on Kafka clusters, before it is asked for it: a repeated send may name another
        partition than the one that knows its id. What takes longer, as Kafka does not answer, goes on behind that."""
        loop = asyncio.get_running_loop()
        until_s = loop.time() + TAKE_OWN_S
        self._take_kafka(loop.time())
        if taking := list(self._taking.values()):
            await asyncio.wait(taking, timeout=max(0.0, until_s - loop.time()))

    def _take_kafka(self, now_s: float) -> float:
        """Begin to take over the partitions on Kafka clusters that no node serves; when to look again, in seconds."""
        owned = self._follower.on_kafka()
        homes = {record.home_of(at) for topic_id, at in self._beginning if (record := self._by_id.get(topic_id))}
        owners = {known.record.owner for known in owned.values()} | homes
        away = {name for name in owners if not self.is_there(name)}
        self._away_since_s = {name: self._away_since_s.get(name, now_s) for name in away}
        interval_s = LOOK_INTERVAL_S
        due: list[tuple[int, int, str]] = []
        for at, known in sorted(owned.items()):  # shards first
            owner, broker = known.record.owner, known.record.open_segment.broker
            if broker not in self.kafka or self._mover.is_moving(*at) or at in self._taking or at in self._giving:
                continue
            if owner == self.name:
                is_due = not self._mover.is_at(*at, known.record, broker)
            else:
                is_next = owner in away and _next_owner(*at, self._present_takers() or [self.name]) == self.name
                after_s = NEXT_TAKE_AFTER_S if is_next else TAKE_AFTER_S
                is_due = owner in away and now_s - self._away_since_s[owner] >= after_s
                if is_next and not is_due:
                    interval_s = NEXT_LOOK_INTERVAL_S
            if is_due:
                due.append((*at, broker))
        for one in due:
            self._begin_to_take(*one)
        return interval_s

    def _begin_to_take(self, topic_id: int, partition: int, broker: str) -> asyncio.Task[None]:
        """Take over a partition on a Kafka cluster, behind others; what fails is tried again later."""

        async def take() -> None:
            try:
                async with self._taken_at_once:
                    is_done = await self._finish(topic_id, partition, broker)
            except Exception:
                log.exception("partition cannot be taken over topic_id=%d partition=%d", topic_id, partition)
                is_done = False
            finally:
                del self._taking[at]
            if is_done:
                self._doubt.set()  # there may be a new one meanwhile

        at = topic_id, partition
        if at not in self._taking:
            self._taking[at] = asyncio.create_task(take(), name=f"takes over {topic_id}/{partition}")
        return self._taking[at]

    def kafka_of(self, topic_id: int, partition: int) -> str | None:
        """The Kafka cluster on which a partition is, as far as is known here; None: on none. For nodes that do not own
        it its route leads to the one that does."""
        return self._follower.kafka_of(topic_id, partition)

    def owned_on_kafka(self) -> Counter[str]:
        """How many partitions and shards on Kafka clusters each node owns, as far as is known here."""
        return Counter(known.record.owner for known in self._follower.on_kafka().values())

    async def give_kafka(self) -> None:
        """Have the other nodes take over what this one owns on Kafka clusters, at once, as far as there are any that
        do. What nobody takes stays this node's. Sends to it are held meanwhile."""
        owned = self._to_give()
        takers = [name for name in self._present_takers() if name != self.name]
        if not owned or not takers:
            return
        by_taker: dict[str, list[tuple[int, int]]] = {}
        for at in sorted(owned):
            by_taker.setdefault(_next_owner(*at, takers), []).append(at)
        await self._give_all(by_taker, owned)

    def _to_give(self) -> dict[tuple[int, int], Known]:
        """What this node owns on Kafka clusters and gives to nobody yet."""
        return {
            at: known
            for at, known in self._follower.on_kafka().items()
            if known.record.owner == self.name and at not in self._giving
        }

    async def _give_asked(self, head: Head) -> Head:
        """Have another node take over what it asks for, of what this one owns."""
        asked, name = {(topic_id, partition) for topic_id, partition in head["partitions"]}, str(head["node"])
        owned = {at: known for at, known in self._to_give().items() if at in asked}
        if owned and name in self._present_takers():
            await self._give_all({name: sorted(owned)}, owned)
        return {}

    async def _give_all(
        self, by_taker: Mapping[str, Sequence[tuple[int, int]]], owned: Mapping[tuple[int, int], Known]
    ) -> None:
        self._giving |= owned.keys()
        try:
            await asyncio.gather(*[self._give(name, ats, owned) for name, ats in by_taker.items()])
        finally:
            self._giving -= owned.keys()
            self._doubt.set()

    def lacking_on_kafka(self) -> tuple[tuple[int, int], str] | None:
        """What this node is to take over next of what others own on Kafka clusters, by topic id and number, and its
        owner, so that it has its share of the shards of each kind, and of all other partitions; None: it has it."""
        kinds: dict[int, dict[str, list[tuple[int, int]]]] = {}
        for at, known in self._follower.on_kafka().items():
            kind = at[0] if at[0] in SHARD_TOPICS else FIRST_USER_TOPIC_ID
            kinds.setdefault(kind, {}).setdefault(known.record.owner, []).append(at)
        for _, of_owner in sorted(kinds.items()):
            counts = {owner: len(ats) for owner, ats in of_owner.items()}
            if (owner := fullest(counts, self.name, self._present_takers())) is not None:
                return max(of_owner[owner], key=lambda at: _weight(self.name, *at)), owner
        return None

    async def take_from(self, place: tuple[int, int], owner: str) -> bool:
        """Have another node give what it owns on a Kafka cluster to this one; whether this one owns it then."""
        await self._asked(owner, GIVE, {"node": self.name, "partitions": [place]})
        known = self._follower.on_kafka().get(place)
        return known is not None and known.record.owner == self.name

    async def _give(self, name: str, ats: Sequence[tuple[int, int]], owned: Mapping[tuple[int, int], Known]) -> None:
        async def stop(topic_id: int, partition: int) -> None:
            last = owned[topic_id, partition].record.open_segment
            if (kafka := self.kafka.get(last.broker)) is not None:
                await kafka.stop(queue_of(topic_id, partition, last))

        async def note(topic_id: int, partition: int) -> None:
            """Before this node takes over anew what it still owns."""
            with suppress(MetadataError, ValueError):
                self._follower.note(topic_id, partition, await self._mover.known(topic_id, partition))

        for first in range(0, len(ats), GIVEN_AT_ONCE):
            some = ats[first : first + GIVEN_AT_ONCE]
            await asyncio.gather(*[stop(*at) for at in some])
            self._shards_changed()
            answer = await self._asked(name, TAKE, {"node": self.name, "partitions": some})
            await asyncio.gather(*[note(*at) for at in some])
            if answer is None:
                return

    async def _take_given(self, head: Head) -> Head:
        """Take over what another node gives."""
        due = []
        for topic_id, partition in head["partitions"]:
            known = self._follower.on_kafka().get((topic_id, partition))
            if known is not None and known.record.owner == head["node"]:
                due.append((topic_id, partition, known.record.open_segment.broker))
        await asyncio.gather(*[self._begin_to_take(*one) for one in due if one[2] in self.kafka])
        return {}

    async def _verify_kafka(self) -> None:
        for (topic_id, partition), known in self._follower.on_kafka().items():
            if known.record.owner == self.name and not self._mover.is_moving(topic_id, partition):
                with suppress(MoveConflict, MetadataError, StoreError, UnknownBroker, ValueError):
                    if self._mover.unverified_end(topic_id, partition, known.record) is not None:
                        self._follower.note(topic_id, partition, await self._mover.verify(topic_id, partition))

    async def _finish(self, topic_id: int, partition: int, to: str) -> bool:
        """Whether a partition is on a broker now, as far as it can be told."""
        with self._logged("move that was left cannot be finished", topic_id, partition, to):
            await self._move(topic_id, partition, to, is_capped=False)
            return True
        return False

    @contextmanager
    def _logged(self, what: str, topic_id: int, partition: int, to: str) -> Iterator[None]:
        try:
            yield
        except (MoveConflict, MetadataError, StoreError, UnknownBroker, ValueError) as error:
            log.warning("%s topic_id=%d partition=%d to=%s error=%s", what, topic_id, partition, to, error)

    async def _seal_taken(self) -> None:
        """What was taken over while this node was away takes no more: others read it to its end, and go on."""
        async for _, known in self._moved():
            with suppress(StoreError, UnknownBroker):
                await self._mover.seal_taken(known.record, self.name)

    async def _trim(self, topic_id: int, partition: int) -> None:
        try:
            self._follower.note(topic_id, partition, await self._mover.trim(topic_id, partition))
        except (MoveConflict, MetadataError, StoreError, UnknownBroker, ValueError) as error:
            log.info("expired segments stay for now topic_id=%d partition=%d error=%s", topic_id, partition, error)

    # ---- shards ----------------------------------------------------------------------------------------------------

    @property
    def seen_revision(self) -> int:
        """Up to which revision the metadata was followed."""
        return self._seen_revision

    async def begin_shard(self, topic_id: int, shard: int, broker: str) -> None:
        """Have a shard of a system topic on a Kafka cluster, if there is none. Raises as `Mover.begin`."""
        if self.shard_owner(topic_id, shard) is None:
            known = await self._mover.begin(topic_id, shard, broker)
            self._follower.note(topic_id, shard, known)
            self._doubt.set()

    def shard_owner(self, topic_id: int, shard: int) -> str | None:
        """The node that owns a shard of a system topic; None: it was not begun."""
        return self._follower.system_owners.get((topic_id, shard))

    def shard(self, topic_id: int, shard: int) -> Shard | None:
        """A shard of a system topic that this node serves; None: it does not."""
        if self.shard_owner(topic_id, shard) != self.name:
            return None
        known = self._follower.known(topic_id, shard)
        chain = self._follower.known_chain(topic_id, shard)
        if known is None or chain is None or known.revision > self._seen_revision:  # a name may be some node's own yet
            return None
        kafka = chain[-1].broker
        if known.record.state is not PartitionState.NORMAL or not isinstance(kafka, KafkaBroker):
            return None
        return Shard(shard, chain, kafka, self._doubt.set) if kafka.serves(chain[-1].queue) else None

    def timer_owner(self, schedule: str) -> str | None:
        """The node that has the schedule of an id, by the shard that it names; None: it names none."""
        try:
            shard = shard_at(decode_schedule_id(schedule).position)
        except ValueError:
            return None
        return None if shard is None else self.shard_owner(TIMER.topic_id, shard)

    def snapshots_of(self, shard: Shard, log: ShardLog) -> ShardSnapshots:
        """Where the snapshots of a shard are."""

        async def verified() -> int:
            known = await self._mover.verify(*shard.queue)
            self._follower.note(*shard.queue, known)
            record = known.record
            is_own = queue_of(*shard.queue, record.open_segment) == shard.tenure
            return record.verified if is_own and record.state is PartitionState.NORMAL else 0

        return ShardSnapshots(shard.queue, log, self._metadata, self._clock, verified=verified)

    async def receipt_keys(self, own: Sequence[bytes]) -> list[bytes]:
        """The keys with which all nodes sign receipts of groups, after those of this one are told to the others: a
        receipt is good on whichever node its group is. Raises Unavailable."""
        key, data = RECEIPTS + self.name, orjson.dumps([one.hex() for one in own])
        while True:
            told = (await self._metadata.list(RECEIPTS)).values
            found = told.get(key)
            if not self.has_store(self.name) or (found is not None and found.data == data):
                return [bytes.fromhex(one) for value in told.values() for one in orjson.loads(value.data)]
            with suppress(OutcomeUnknown):
                await self._metadata.compare_and_set({key: _revision_of(found)}, {key: data})

    async def shared_receipt_key(self) -> bytes:
        """The key with which nodes without a store sign receipts of groups; the first of them makes it. So a receipt is
        good when its node is gone. Raises Unavailable."""
        while (found := await self._metadata.get(SHARED_RECEIPTS)) is None:
            data = orjson.dumps([secrets.token_hex(RECEIPT_KEY_BYTES)])
            with suppress(OutcomeUnknown):
                await self._metadata.compare_and_set({SHARED_RECEIPTS: ABSENT}, {SHARED_RECEIPTS: data})
        [key] = orjson.loads(found.data)
        return bytes.fromhex(key)

    def _shard_owner(self, kind: str, name: str) -> str | None:
        if not self._follower.system_owners:
            return None
        return self.shard_owner(NAME_SHARDS[kind], shard_of(name))

    def is_sharded(self, kind: str, name: str) -> bool:
        """Whether a name belongs to a shard, not to a node of its own."""
        return _owner_key(kind, name) not in self._owners and self._shard_owner(kind, name) is not None

    # ---- names that belong to one node -----------------------------------------------------------------------------

    def owner(self, kind: str, name: str) -> str | None:
        """The node to which a group or a recurring schedule belongs; None: to none, as far as is known here."""
        return self._owners.get(_owner_key(kind, name)) or self._shard_owner(kind, name)

    def owned(self, kind: str, node: str) -> list[str]:
        """The names of a kind that belong to a node, as far as is known here."""
        before = _owner_key(kind, "")
        return [
            key.removeprefix(before) for key, owner in self._owners.items() if owner == node and key.startswith(before)
        ]

    def owned_counts(self, kind: str) -> Counter[str]:
        """How many names of a kind each node has."""
        before = _owner_key(kind, "")
        return Counter(owner for key, owner in self._owners.items() if key.startswith(before))

    async def owner_now(self, kind: str, name: str) -> tuple[str | None, int]:
        """The node to which a name belongs, and the revision that says so. Raises Unavailable."""
        key = _owner_key(kind, name)
        found = await self._metadata.get(key)
        if found is None:
            return None, ABSENT
        self._note_owner(key, _node_of(found.data), found.revision)
        return self._owners[key], found.revision

    def _note_owner(self, key: str, node: str | None, revision: int) -> None:
        """Apply what this node has read or written itself: the watch may be behind."""
        if revision > self._seen_revision:
            self._owner_revisions[key] = revision
        if node is None:
            self._owners.pop(key, None)
        else:
            self._owners[key] = node

    async def own(self, kind: str, name: str, revision: int, *, is_unknown: bool = False) -> bool:
        """Have a name belong to this node from now on, if that was not written since a revision; also when it was
        this node's already, so that no node that goes by that revision can have it any more. Whether it belongs to this
        node now, durably: the answer is certain, however long that takes. Raises MetadataError: nothing was changed.
        `is_unknown`: another node may have made it its own since the revision, so there has to be an answer."""
        key = _owner_key(kind, name)
        data = orjson.dumps({"node": self.name})
        while True:
            try:
                if (written := await self._metadata.compare_and_set({key: revision}, {key: data})) is not None:
                    self._note_owner(key, self.name, written)
                    return True
            except OutcomeUnknown:
                is_unknown = True
            except MetadataError:
                if not is_unknown:
                    raise
            with suppress(MetadataError):  # whatever is answered meanwhile: it may be this node's by now
                owner, now = await self.owner_now(kind, name)
                if now != revision:
                    return owner == self.name
            await asyncio.sleep(RETRY_S)

    async def disown(self, kind: str, name: str, revision: int) -> None:
        """Have a name belong to none, if it was this node's at a revision and it was not written since. Nothing
        of it may be in use here, nor come into use before the return. The outcome is certain, however long that takes.
        Raises MetadataError: nothing was changed."""
        key = _owner_key(kind, name)
        is_unknown = False
        while True:
            try:
                if (written := await self._metadata.compare_and_set({key: revision}, {key: None})) is not None:
                    self._note_owner(key, None, written)
                    return
            except OutcomeUnknown:
                is_unknown = True
            except MetadataError:
                if not is_unknown:
                    raise
            with suppress(MetadataError):
                owner, now = await self.owner_now(kind, name)
                if owner is None:
                    self._note_owner(key, None, revision + 1)
                    return
                if now != revision:
                    return
            await asyncio.sleep(RETRY_S)

    def note_owner(self, kind: str, name: str, node: str, revision: int) -> None:
        """A name that was this node's at a revision belongs to another one since, as that one has said."""
        key = _owner_key(kind, name)
        if self._owners.get(key) == self.name:  # else the metadata has told of it already, or of what came after
            self._note_owner(key, node, revision + 1)

    async def look_up(self, kind: str, name: str) -> str | None:
        """As `owner`, by what the metadata says now, which the watch may not have told yet."""
        with suppress(Unavailable):
            return (await self.owner_now(kind, name))[0] or self._shard_owner(kind, name)
        return self.owner(kind, name)

    async def _claim_shard(self, kind: str, name: str, broker: str) -> str:
        while (owner := self.owner(kind, name)) is None:
            try:
                await self.begin_shard(NAME_SHARDS[kind], shard_of(name), broker)
            except (MoveConflict, UnknownBroker) as error:
                raise Unavailable(f"the shard of {name} ({kind}) is not begun: {error}") from error
        return owner

    async def claim(self, kind: str, name: str) -> str:
        """The node to which a name belongs; this one from now on, durably, if it belongs to none. Raises
        Unavailable."""
        broker = self.groups_broker if kind == GROUPS else self.timers_broker
        if broker is not None:
            return await self._claim_shard(kind, name, broker)
        key = _owner_key(kind, name)
        shard = NAME_SHARDS[kind], shard_of(name)
        free = {key: ABSENT, key_of(*shard): ABSENT}  # no name is both a node's own and one of a shard
        while (owner := self.owner(kind, name)) is None:
            with suppress(OutcomeUnknown):
                made = await self._metadata.compare_and_set(free, {key: orjson.dumps({"node": self.name})})
                if made is not None:
                    self._note_owner(key, self.name, made)
                    continue
            self._follower.note(*shard, await self._mover.known(*shard))
            if (found := await self._metadata.get(key)) is not None:
                self._note_owner(key, _node_of(found.data), found.revision)
        return owner


def _next_owner(topic_id: int, partition: int, takers: Collection[str]) -> str:
    """The node that takes a partition on a Kafka cluster over: all nodes that see the same ones there find the same
    one, and one node more or less changes few."""
    return max(takers, key=lambda name: (_weight(name, topic_id, partition), name))


def _weight(name: str, topic_id: int, partition: int) -> int:
    own = f"{partition}" if topic_id in SHARD_TOPICS else f"{topic_id}/{partition}"
    return crc32(f"{name}/{own}".encode())


async def _no_groups(_group: str, _events: bytes, _size_bytes: int, _revision: int) -> bool:
    return False


def _grown(topic_id: int, partitions: int, table: TopicTable) -> object:
    """What is to be done for the topic in a table to have so many partitions at least; nothing, when it is another one
    by now."""
    topic = table.all()[-1]
    if topic.topic_id != topic_id:
        return topic
    return table.decide_grow(topic.name, max(partitions, topic.partitions))


def _owner_key(kind: str, name: str) -> str:
    return f"{OWNERS}{kind}/{name}"


def _node_of(data: bytes) -> str:
    return str(orjson.loads(data)["node"])


def _revision_of(value: Value | None) -> int:
    return ABSENT if value is None else value.revision


async def _tell(peer: PeerBroker, name: str) -> None:
    with suppress(StoreError, TimeoutError):
        async with asyncio.timeout(TELL_TIMEOUT_S):
            await peer.look_at_topic(name)
