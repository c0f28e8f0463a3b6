"""Requests that are wrong, each for one reason, and what a server must have for them.

A case is asked in every version of its request that Kafka and mq serve, with names of its own in each. Most have one
request; where the last of several counts, all their answers are compared.

Not here are two requests that Kafka 4.1.0 never answers: Produce without records (null), and AlterConfigs that names a
topic twice.
"""

from __future__ import annotations

import time
import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, NamedTuple

from gateway.surfaces.kafka import apis
from gateway.surfaces.kafka.groups import assignment_of, subscription_bytes
from gateway.surfaces.kafka.schema import Message
from store import record_batch
from store.record_batch import Record

ORDERS, LIMITED, PACKED, GONE = "orders", "limited", "packed", "no-topic"
PARTITIONS, FIRST, END = 2, 2, 5
"""Of ORDERS; where its partition 0 begins and ends."""

LIMIT = 1_000
"""`max.message.bytes` of LIMITED."""

LIVE, LEFT = "live", "left"
"""Groups: one with a member that consumes ORDERS, one without, which has an offset committed."""

CONSUMER, RANGE = "consumer", "range"
MEMBER = "no-member"
SESSION_MS = 300_000
ALL, ONE = -1, 1
TOPIC, BROKER = 2, 4
LATEST = -1


@dataclass
class Place:
    """What a case is asked of. `name` is its own, for this version alone."""

    version: int
    name: str
    is_kafka: bool
    member: str = ""
    generation: int = 0
    users: dict[str, bytes] = field(default_factory=dict)
    """What says who somebody is, by SASL's PLAIN."""

    @property
    def number(self) -> int:
        """A producer's id of its own."""
        return 1_000_000 + zlib.crc32(self.name.encode())


class Asked(NamedTuple):
    """A request, of another kind than the case's when it says so."""

    message: Message
    key: int | None = None
    version: int = 0
    is_silent: bool = False
    """Nothing is answered to it."""

    answered_in: int | None = None
    """The version of the answer, where it is another one."""


class Case(NamedTuple):
    """`user`: who asks, of a server that wants to know; None: nobody has said it."""

    name: str
    key: int
    asked: Callable[[Place], Sequence[Message | Asked]]
    is_secured: bool = False
    since: int = 0
    """The first version in which it is asked."""

    user: str | None = "nobody"


CASES: list[Case] = []
SECURED = dict[str, Any](is_secured=True)


def case(name: str, key: int, *messages: Message | Callable[[Place], Message | Asked], **more: Any) -> None:
    """One more case, of requests that are the same in every version, or made for it."""

    def asked(place: Place) -> Sequence[Message | Asked]:
        return [one(place) if callable(one) else one for one in messages]

    CASES.append(Case(name, key, asked, **more))


def batch(*values: bytes, producer: int = -1, epoch: int = -1, first: int = -1) -> bytearray:
    """Records of now, as a producer of that id and epoch numbers them."""
    now_ms = int(time.time() * 1000)
    made = record_batch.encode([Record(None, value, now_ms) for value in values or (b"v",)])
    return bytearray(record_batch.numbered(made, producer, epoch, first))


def packed() -> bytearray:
    """A record that zstd packs."""
    return record_batch.zstd_packed(batch(bytes(10_000)), level=1)


def sealed(made: bytearray, at: int, content: bytes) -> bytearray:
    """A batch with other bytes in its header, and a CRC that is right again."""
    made[at : at + len(content)] = content
    return bytearray(record_batch.numbered(made, *record_batch.numbers_of(made)))


# ------------------------------------------------------------------------------------------------------ Produce


def produced(
    records: bytes | None,
    topic: str = ORDERS,
    partition: int = 1,
    *,
    acks: int = ALL,
    transactional_id: str | None = None,
) -> Message:
    partitions = [{"index": partition, "records": records}]
    topics = [{"name": topic, "partition_data": partitions}]
    return {"transactional_id": transactional_id, "acks": acks, "timeout_ms": 10_000, "topic_data": topics}


def numbered(*sent: tuple[int, int]) -> list[Callable[[Place], Message]]:
    """Batches of one record by one producer: the epoch and the number of each."""
    return [
        lambda place, epoch=epoch, first=first: produced(batch(producer=place.number, epoch=epoch, first=first))  # type: ignore[misc]
        for epoch, first in sent
    ]


ATTRIBUTES_AT, LAST_DELTA_AT, MAGIC_AT, CRC_AT = 21, 23, 16, 17


def _damaged() -> bytearray:
    made = batch()
    made[CRC_AT] ^= 1
    return made


def _too_large(more: int) -> Callable[[Place], Message]:
    """Kafka's limit is of a batch, mq's of a record: one of it, or one byte more."""

    def made(place: Place) -> Message:
        value_bytes = LIMIT - (len(batch(bytes(LIMIT - 70))) - (LIMIT - 70)) if place.is_kafka else LIMIT
        sent = batch(bytes(value_bytes + more))
        assert not place.is_kafka or len(sent) == LIMIT + more
        return produced(sent, LIMITED, 0)

    return made


def _silently(message: Message) -> list[Callable[[Place], Asked]]:
    """With acks=0, and then whether the connection goes on."""
    return [
        lambda _: Asked({**message, "acks": 0}, is_silent=True),
        lambda _: Asked({}, apis.API_VERSIONS, 0),
    ]


case("produce: good", apis.PRODUCE, lambda _: produced(batch(b"a", b"b"), acks=ONE, topic=LIMITED, partition=0))
case("produce: unknown topic", apis.PRODUCE, lambda _: produced(batch(), GONE))
case("produce: unknown partition", apis.PRODUCE, lambda _: produced(batch(), partition=PARTITIONS))
case("produce: negative partition", apis.PRODUCE, lambda _: produced(batch(), partition=-1))
case("produce: illegal topic name", apis.PRODUCE, lambda _: produced(batch(), "a/b"))
case("produce: empty records", apis.PRODUCE, lambda _: produced(b""))
case("produce: two batches", apis.PRODUCE, lambda _: produced(bytes(batch() + batch())))
case("produce: half a batch", apis.PRODUCE, lambda _: produced(bytes(batch()[:-1])))
case("produce: half a header", apis.PRODUCE, lambda _: produced(bytes(batch()[:30])))
case("produce: corrupt CRC", apis.PRODUCE, lambda _: produced(_damaged()))
case("produce: message format 1", apis.PRODUCE, lambda _: produced(sealed(batch(), MAGIC_AT, b"\x01")))
case("produce: message format 3", apis.PRODUCE, lambda _: produced(sealed(batch(), MAGIC_AT, b"\x03")))
case("produce: unknown compression", apis.PRODUCE, lambda _: produced(sealed(batch(), ATTRIBUTES_AT, b"\0\x07")))
case("produce: gzip that is none", apis.PRODUCE, lambda _: produced(sealed(batch(), ATTRIBUTES_AT, b"\0\x01")))
case("produce: zstd", apis.PRODUCE, lambda _: produced(packed(), PACKED, 1))
case("produce: wrong count", apis.PRODUCE, lambda _: produced(sealed(batch(b"a", b"b"), LAST_DELTA_AT, b"\0\0\0\x05")))
case("produce: control batch", apis.PRODUCE, lambda _: produced(sealed(batch(), ATTRIBUTES_AT, b"\0\x20")))
case("produce: transactional batch", apis.PRODUCE, lambda place: produced(
    sealed(batch(producer=place.number, epoch=0, first=0), ATTRIBUTES_AT, b"\0\x10")))  # fmt: skip
case("produce: transaction", apis.PRODUCE, lambda place: produced(batch(), transactional_id=place.name))
case("produce: far in the future", apis.PRODUCE, lambda _: produced(
    record_batch.encode([Record(None, b"v", int(time.time() * 1000) + 10 * 86_400_000)])))  # fmt: skip
case("produce: largest message", apis.PRODUCE, _too_large(0))
case("produce: message too large", apis.PRODUCE, _too_large(1))
case("produce: acks=2", apis.PRODUCE, lambda _: produced(batch(), acks=2))
case("produce: acks=-2", apis.PRODUCE, lambda _: produced(batch(), acks=-2))
case("produce: good, acks=0", apis.PRODUCE, *_silently(produced(batch(), LIMITED, 0)))
case("produce: unknown topic, acks=0", apis.PRODUCE, *_silently(produced(batch(), GONE)))
case("produce: corrupt CRC, acks=0", apis.PRODUCE, *_silently(produced(_damaged())))
case("produce: numbers begin with a gap", apis.PRODUCE, *numbered((0, 5)))
case("produce: a gap of numbers", apis.PRODUCE, *numbered((0, 0), (0, 2)))
case("produce: a repeat", apis.PRODUCE, *numbered((0, 0), (0, 0)))
case("produce: old epoch", apis.PRODUCE, *numbered((1, 0), (0, 1)))
case("produce: new epoch that does not begin at 0", apis.PRODUCE, *numbered((0, 0), (1, 1)))
case("produce: repeat of a batch of six before", apis.PRODUCE, *numbered(*((0, number) for number in range(7)), (0, 0)))

# ------------------------------------------------------------------------------------------------------ Fetch


def fetched(
    topic: str = ORDERS, partition: int = 0, offset: int = FIRST, *, epoch: int = -1, session: tuple[int, int] = (0, -1)
) -> Message:
    partitions = [{"partition": partition, "current_leader_epoch": epoch, "fetch_offset": offset,
                   "partition_max_bytes": 1 << 20}]  # fmt: skip
    return {
        "max_wait_ms": 0, "min_bytes": 0, "max_bytes": 1 << 20, "session_id": session[0], "session_epoch": session[1],
        "topics": [{"topic": topic, "partitions": partitions}],
    }  # fmt: skip


case("fetch: good", apis.FETCH, fetched())
case("fetch: packed by zstd", apis.FETCH, fetched(PACKED, offset=0))
case("fetch: the end", apis.FETCH, fetched(offset=END))
case("fetch: unknown topic", apis.FETCH, fetched(GONE))
case("fetch: unknown partition", apis.FETCH, fetched(partition=PARTITIONS))
case("fetch: negative partition", apis.FETCH, fetched(partition=-1))
case("fetch: behind the end", apis.FETCH, fetched(offset=END + 1))
case("fetch: before the first", apis.FETCH, fetched(offset=FIRST - 1))
case("fetch: negative offset", apis.FETCH, fetched(offset=-1))
case("fetch: later leader epoch", apis.FETCH, fetched(epoch=1_000))
case("fetch: a new session", apis.FETCH, fetched(session=(0, 0)))
case("fetch: the end of an unknown session", apis.FETCH, fetched(session=(99, -1)))
case("fetch: instead of an unknown session", apis.FETCH, fetched(session=(99, 0)))
case("fetch: unknown session", apis.FETCH, fetched(session=(99, 1)))
case("fetch: no session, and an epoch", apis.FETCH, fetched(session=(0, 1)))

# ------------------------------------------------------------------------------------------------------ offsets


def listed(time_ms: int, topic: str = ORDERS, partition: int = 0, *, epoch: int = -1, twice: bool = False) -> Message:
    one = {"partition_index": partition, "current_leader_epoch": epoch, "timestamp": time_ms}
    return {"replica_id": -1, "topics": [{"name": topic, "partitions": [one] * (1 + twice)}]}


case("list offsets: latest", apis.LIST_OFFSETS, listed(LATEST))
case("list offsets: earliest", apis.LIST_OFFSETS, listed(-2))
case("list offsets: latest time", apis.LIST_OFFSETS, listed(-3))
case("list offsets: earliest local", apis.LIST_OFFSETS, listed(-4))
case("list offsets: latest tiered", apis.LIST_OFFSETS, listed(-5))
case("list offsets: unknown special", apis.LIST_OFFSETS, listed(-7))
case("list offsets: behind all times", apis.LIST_OFFSETS, listed(1 << 50))
case("list offsets: of an empty partition", apis.LIST_OFFSETS, listed(0, LIMITED, 1))
case("list offsets: latest time of an empty partition", apis.LIST_OFFSETS, listed(-3, LIMITED, 1))
case("list offsets: unknown topic", apis.LIST_OFFSETS, listed(LATEST, GONE))
case("list offsets: unknown partition", apis.LIST_OFFSETS, listed(LATEST, partition=PARTITIONS))
case("list offsets: later leader epoch", apis.LIST_OFFSETS, listed(LATEST, epoch=1_000))
case("list offsets: a partition twice", apis.LIST_OFFSETS, listed(LATEST, twice=True))


def epoch_asked(epoch: int, topic: str = ORDERS, partition: int = 0, *, current: int = -1) -> Message:
    one = {"partition": partition, "current_leader_epoch": current, "leader_epoch": epoch}
    return {"replica_id": -1, "topics": [{"topic": topic, "partitions": [one]}]}


case("end of an epoch: the first", apis.OFFSET_FOR_LEADER_EPOCH, epoch_asked(0))
case("end of an epoch: unknown topic", apis.OFFSET_FOR_LEADER_EPOCH, epoch_asked(0, GONE))
case("end of an epoch: unknown partition", apis.OFFSET_FOR_LEADER_EPOCH, epoch_asked(0, partition=PARTITIONS))
case("end of an epoch: later than all", apis.OFFSET_FOR_LEADER_EPOCH, epoch_asked(1_000))
case("end of an epoch: later leader epoch", apis.OFFSET_FOR_LEADER_EPOCH, epoch_asked(0, current=1_000))


def deleted_before(offset: int, topic: str = ORDERS, partition: int = 0) -> Message:
    one = {"partition_index": partition, "offset": offset}
    return {"topics": [{"name": topic, "partitions": [one]}], "timeout_ms": 10_000}


case("delete records: good", apis.DELETE_RECORDS, deleted_before(FIRST))
case("delete records: before the first", apis.DELETE_RECORDS, deleted_before(FIRST - 1))
case("delete records: behind the end", apis.DELETE_RECORDS, deleted_before(END + 1))
case("delete records: negative", apis.DELETE_RECORDS, deleted_before(-2))
case("delete records: unknown topic", apis.DELETE_RECORDS, deleted_before(0, GONE))
case("delete records: unknown partition", apis.DELETE_RECORDS, deleted_before(0, partition=PARTITIONS))

# ------------------------------------------------------------------------------------------------------ nodes


def named(*topics: str, **more: Any) -> Message:
    return {"topics": [{"name": topic} for topic in topics], "allow_auto_topic_creation": False, **more}


case("metadata: good", apis.METADATA, named(ORDERS))
case("metadata: unknown topic", apis.METADATA, named(GONE))
case("metadata: illegal name", apis.METADATA, named("a/b"))
case("metadata: empty name", apis.METADATA, named(""))
case("metadata: too long a name", apis.METADATA, named("x" * 250))
case("metadata: a topic twice", apis.METADATA, named(ORDERS, ORDERS))
case("cluster: good", apis.DESCRIBE_CLUSTER, {})
case("cluster: of controllers", apis.DESCRIBE_CLUSTER, {"endpoint_type": 2})
case("cluster: unknown kind of node", apis.DESCRIBE_CLUSTER, {"endpoint_type": 9})


def coordinator(kind: int, name: str = LIVE) -> Callable[[Place], Message]:
    return lambda place: {"key": name, "key_type": kind, "coordinator_keys": [name]}


case("coordinator: good", apis.FIND_COORDINATOR, coordinator(0))
case("coordinator: of a group without a name", apis.FIND_COORDINATOR, coordinator(0, ""))
case("coordinator: of a transaction", apis.FIND_COORDINATOR, coordinator(1))
case("coordinator: unknown kind", apis.FIND_COORDINATOR, coordinator(9))
case("versions: good", apis.API_VERSIONS, {"client_software_name": "a", "client_software_version": "1"})
case(
    "versions: illegal name of a client",
    apis.API_VERSIONS,
    {"client_software_name": "-", "client_software_version": ""},
)
case("versions: a version of the future", apis.API_VERSIONS, lambda _: Asked(
    {"client_software_name": "a", "client_software_version": "1"}, apis.API_VERSIONS, 99, answered_in=0))  # fmt: skip

for one in (
    Asked(produced(b""), apis.PRODUCE, 2),
    Asked(fetched(), apis.FETCH, 3),
    Asked(listed(LATEST), apis.LIST_OFFSETS, 0),
    Asked({"group_id": LIVE, "member_id": MEMBER, "generation_id": 1}, apis.HEARTBEAT, 99),
):
    case(f"versions: request {one.key} in version {one.version}", apis.API_VERSIONS, lambda _, one=one: one, since=3)


def started(**more: Any) -> Message:
    return {"transactional_id": None, "transaction_timeout_ms": 60_000, **more}


case("producer id: good", apis.INIT_PRODUCER_ID, started())
case("producer id: an id without an epoch", apis.INIT_PRODUCER_ID, started(producer_id=5))
case("producer id: an epoch without an id", apis.INIT_PRODUCER_ID, started(producer_epoch=5))
case("producer id: with the one before", apis.INIT_PRODUCER_ID, started(producer_id=5, producer_epoch=0))
case("producer id: empty transactional id", apis.INIT_PRODUCER_ID, started(transactional_id=""))
case("producer id: transactional", apis.INIT_PRODUCER_ID, lambda place: started(transactional_id=place.name))

# ------------------------------------------------------------------------------------------------------ groups


def joined(group: str, **more: Any) -> Message:
    return {
        "group_id": group, "session_timeout_ms": 30_000, "rebalance_timeout_ms": 30_000, "member_id": "",
        "protocol_type": CONSUMER, "protocols": [{"name": RANGE, "metadata": subscription_bytes([ORDERS])}], **more,
    }  # fmt: skip


def own_join(**more: Any) -> Callable[[Place], Message]:
    return lambda place: joined(place.name, **more)


case("join: no group", apis.JOIN_GROUP, joined(""))
case("join: session timeout too short", apis.JOIN_GROUP, own_join(session_timeout_ms=1))
case("join: session timeout too long", apis.JOIN_GROUP, own_join(session_timeout_ms=1_800_001))
case("join: unknown member", apis.JOIN_GROUP, own_join(member_id=MEMBER))
case("join: unknown member of a group that lives", apis.JOIN_GROUP, joined(LIVE, member_id=MEMBER))
case("join: no protocols", apis.JOIN_GROUP, own_join(protocols=[], member_id=""))
case("join: no protocol type", apis.JOIN_GROUP, own_join(protocol_type=""))
case("join: another protocol", apis.JOIN_GROUP, joined(LIVE, protocols=[{"name": "odd", "metadata": b""}]))
case("join: another protocol type", apis.JOIN_GROUP, joined(LIVE, protocol_type="connect"))
case("join: unknown static member", apis.JOIN_GROUP, own_join(member_id=MEMBER, group_instance_id="static"))


def with_member(
    message: Message, *, member: str | None = None, more: int = 0, **others: Any
) -> Callable[[Place], Message]:
    """The live group's member and generation, unless others are wanted."""
    return lambda place: {
        "group_id": LIVE,
        "member_id": place.member if member is None else member,
        "generation_id": place.generation + more,
        **message, **others,
    }  # fmt: skip


def _assigned(place: Place) -> Message:
    assignment = {"member_id": place.member, "assignment": assignment_of([])}
    return {"assignments": [assignment], "protocol_type": CONSUMER, "protocol_name": RANGE}


def synced(**more: Any) -> Callable[[Place], Message]:
    return lambda place: with_member(_assigned(place), **more)(place)


for name, key, made in (
    ("sync", apis.SYNC_GROUP, synced),
    ("heartbeat", apis.HEARTBEAT, lambda **more: with_member({}, **more)),
):
    case(f"{name}: good", key, made())
    case(f"{name}: no group", key, made(group_id=""))
    case(f"{name}: unknown group", key, made(group_id=GONE))
    case(f"{name}: group without members", key, made(group_id=LEFT, member=MEMBER))
    case(f"{name}: unknown member", key, made(member=MEMBER))
    case(f"{name}: no member", key, made(member=""))
    case(f"{name}: older generation", key, made(more=-1))
    case(f"{name}: later generation", key, made(more=1))
    case(f"{name}: unknown static member", key, made(group_instance_id="static"))
case("sync: another protocol", apis.SYNC_GROUP, lambda place: {**synced()(place), "protocol_name": "odd"})
case("sync: another protocol type", apis.SYNC_GROUP, lambda place: {**synced()(place), "protocol_type": "connect"})


def leaving(member: str, group: str = LIVE, instance: str | None = None) -> Message:
    return {"group_id": group, "member_id": member, "members": [{"member_id": member, "group_instance_id": instance}]}


case("leave: no group", apis.LEAVE_GROUP, leaving(MEMBER, ""))
case("leave: unknown group", apis.LEAVE_GROUP, leaving(MEMBER, GONE))
case("leave: unknown member", apis.LEAVE_GROUP, leaving(MEMBER))
case("leave: unknown static member", apis.LEAVE_GROUP, leaving("", instance="static"))


def committed(topic: str = ORDERS, partition: int = 0, offset: int = 3, text: str | None = "") -> Message:
    one = {"partition_index": partition, "committed_offset": offset, "committed_metadata": text}
    return {"topics": [{"name": topic, "partitions": [one]}]}


def commit(
    message: Message, *, member: str | None = None, more: int = 0, group: str = LIVE
) -> Callable[[Place], Message]:
    return lambda place: {
        "group_id": group, "member_id": place.member if member is None else member,
        "generation_id_or_member_epoch": place.generation + more, **message,
    }  # fmt: skip


def alone(message: Message, group: str | None = None) -> Callable[[Place], Message]:
    """A commit of nobody's: in a group of its own, unless another is named."""
    return lambda place: {
        "group_id": place.name if group is None else group, "member_id": "", "generation_id_or_member_epoch": -1,
        **message,
    }  # fmt: skip


case("commit: good", apis.OFFSET_COMMIT, commit(committed()))
case("commit: without members", apis.OFFSET_COMMIT, alone(committed()))
case("commit: no group", apis.OFFSET_COMMIT, alone(committed(), ""))
case("commit: unknown topic", apis.OFFSET_COMMIT, alone(committed(GONE)))
case("commit: unknown partition", apis.OFFSET_COMMIT, alone(committed(partition=PARTITIONS)))
case("commit: negative offset", apis.OFFSET_COMMIT, alone(committed(offset=-1)))
case("commit: behind the end", apis.OFFSET_COMMIT, alone(committed(offset=1_000)))
case("commit: no text", apis.OFFSET_COMMIT, alone(committed(text=None)))
case("commit: longest text", apis.OFFSET_COMMIT, alone(committed(text="x" * 4_096)))
case("commit: too long a text", apis.OFFSET_COMMIT, alone(committed(text="x" * 4_097)))
case("commit: unknown group with a generation", apis.OFFSET_COMMIT, lambda place: commit(
    committed(), member=MEMBER, group=place.name)(place))  # fmt: skip
case("commit: unknown member", apis.OFFSET_COMMIT, commit(committed(), member=MEMBER))
case("commit: older generation", apis.OFFSET_COMMIT, commit(committed(), more=-1))
case("commit: later generation", apis.OFFSET_COMMIT, commit(committed(), more=1))
case("commit: nobody's in a group that lives", apis.OFFSET_COMMIT, alone(committed(), LIVE))
case("commit: nobody's, where no member is, in a group that lives", apis.OFFSET_COMMIT, alone(committed(PACKED), LIVE))
case("commit: unknown static member", apis.OFFSET_COMMIT, lambda place: {
    **commit(committed())(place), "group_instance_id": "static"}, since=7)  # fmt: skip


def wanted(topic: str | None = ORDERS, partition: int = 0, group: str = LEFT) -> Message:
    topics = None if topic is None else [{"name": topic, "partition_indexes": [partition]}]
    return {"group_id": group, "topics": topics, "groups": [{"group_id": group, "topics": topics}]}


case("committed: good", apis.OFFSET_FETCH, wanted())
case("committed: nothing", apis.OFFSET_FETCH, wanted(partition=1))
case("committed: no group", apis.OFFSET_FETCH, wanted(group=""))
case("committed: unknown group", apis.OFFSET_FETCH, wanted(group=GONE))
case("committed: unknown topic", apis.OFFSET_FETCH, wanted(GONE))
case("committed: unknown partition", apis.OFFSET_FETCH, wanted(partition=PARTITIONS))


def forgotten(group: str, topic: str = ORDERS, partition: int = 0) -> Message:
    return {"group_id": group, "topics": [{"name": topic, "partitions": [{"partition_index": partition}]}]}


case("forget offsets: no group", apis.OFFSET_DELETE, forgotten(""))
case("forget offsets: unknown group", apis.OFFSET_DELETE, forgotten(GONE))
case("forget offsets: unknown topic", apis.OFFSET_DELETE, forgotten(LEFT, GONE))
case("forget offsets: unknown partition", apis.OFFSET_DELETE, forgotten(LEFT, partition=PARTITIONS))
case("forget offsets: of a topic that is consumed", apis.OFFSET_DELETE, forgotten(LIVE))
case("describe groups: no group", apis.DESCRIBE_GROUPS, {"groups": [""]})
case("describe groups: unknown group", apis.DESCRIBE_GROUPS, {"groups": [GONE]})
case("describe groups: without members", apis.DESCRIBE_GROUPS, {"groups": [LEFT]})
case("delete groups: no group", apis.DELETE_GROUPS, {"groups_names": [""]})
case("delete groups: unknown group", apis.DELETE_GROUPS, {"groups_names": [GONE]})
case("delete groups: with members", apis.DELETE_GROUPS, {"groups_names": [LIVE]})
case("list groups: unknown state", apis.LIST_GROUPS, {"states_filter": ["Odd"]}, since=4)

# ------------------------------------------------------------------------------------------------------ topics


def created(name: str | None = None, **more: Any) -> Callable[[Place], Message]:
    request = {name: more.pop(name) for name in ("validate_only",) if name in more}
    times = more.pop("times", 1)

    def made(place: Place) -> Message:
        topic = {"name": place.name if name is None else name, "num_partitions": 1, "replication_factor": 1, **more}
        return {"topics": [topic] * times, "timeout_ms": 10_000, **request}

    return made


case("create: an existing topic", apis.CREATE_TOPICS, created(ORDERS))
case("create: an existing topic, only asked", apis.CREATE_TOPICS, created(ORDERS, validate_only=True))
case("create: no name", apis.CREATE_TOPICS, created(""))
case("create: illegal name", apis.CREATE_TOPICS, created("a/b"))
case("create: a dot", apis.CREATE_TOPICS, created("."))
case("create: too long a name", apis.CREATE_TOPICS, created("x" * 250))
case("create: no partitions", apis.CREATE_TOPICS, created(num_partitions=0))
case("create: negative partitions", apis.CREATE_TOPICS, created(num_partitions=-2))
case("create: no replicas", apis.CREATE_TOPICS, created(replication_factor=0))
case("create: too many replicas", apis.CREATE_TOPICS, created(replication_factor=3))
case("create: unknown setting", apis.CREATE_TOPICS, created(configs=[{"name": "odd", "value": "1"}]))
case("create: illegal setting", apis.CREATE_TOPICS, created(configs=[{"name": "retention.ms", "value": "odd"}]))
case("create: negative setting", apis.CREATE_TOPICS, created(configs=[{"name": "max.message.bytes", "value": "-1"}]))
case(
    "create: a setting without a value", apis.CREATE_TOPICS, created(configs=[{"name": "retention.ms", "value": None}])
)
case("create: a topic twice", apis.CREATE_TOPICS, created(times=2))
case("create: assigned and counted", apis.CREATE_TOPICS, created(
    assignments=[{"partition_index": 0, "broker_ids": [1]}]))  # fmt: skip
case("create: assigned to a stranger", apis.CREATE_TOPICS, created(
    num_partitions=-1, replication_factor=-1, assignments=[{"partition_index": 0, "broker_ids": [99]}]))  # fmt: skip
case("create: assigned with a gap", apis.CREATE_TOPICS, lambda place: created(
    num_partitions=-1, replication_factor=-1, assignments=[{"partition_index": 1, "broker_ids": [int(place.is_kafka)]}]
)(place))  # fmt: skip
case("create: assigned to nobody", apis.CREATE_TOPICS, created(
    num_partitions=-1, replication_factor=-1, assignments=[{"partition_index": 0, "broker_ids": []}]))  # fmt: skip
case("delete: unknown topic", apis.DELETE_TOPICS, {"topic_names": [GONE], "timeout_ms": 10_000})
case("delete: illegal name", apis.DELETE_TOPICS, {"topic_names": ["a/b"], "timeout_ms": 10_000})
case("delete: a topic twice", apis.DELETE_TOPICS, {"topic_names": [GONE, GONE], "timeout_ms": 10_000})


def grown(count: int, name: str = ORDERS, times: int = 1, assignments: Any = None) -> Message:
    return {"topics": [{"name": name, "count": count, "assignments": assignments}] * times, "timeout_ms": 10_000}


case("grow: unknown topic", apis.CREATE_PARTITIONS, grown(2, GONE))
case("grow: to fewer", apis.CREATE_PARTITIONS, grown(1))
case("grow: to as many", apis.CREATE_PARTITIONS, grown(PARTITIONS))
case("grow: to a negative number", apis.CREATE_PARTITIONS, grown(-1))
case("grow: too few assigned", apis.CREATE_PARTITIONS, lambda place: grown(
    4, assignments=[{"broker_ids": [int(place.is_kafka)]}]))  # fmt: skip
case("grow: assigned to a stranger", apis.CREATE_PARTITIONS, grown(3, assignments=[{"broker_ids": [99]}]))
case("grow: a topic twice", apis.CREATE_PARTITIONS, grown(3, times=2))


def resource(
    name: str = ORDERS, kind: int = TOPIC, configs: Sequence[Message] = (), times: int = 1, *, is_whole: bool = False
) -> Message:
    """`is_whole`: of AlterConfigs, which knows no operations."""
    configs = [{field: value for field, value in each.items() if not is_whole or field != "config_operation"}
               for each in configs]  # fmt: skip
    one = {"resource_type": kind, "resource_name": name, "configs": configs}
    return {"resources": [one] * times}


def looked_up(name: str, kind: int = TOPIC, keys: Sequence[str] | None = None) -> Message:
    return {"resources": [{"resource_type": kind, "resource_name": name, "configuration_keys": keys}]}


case("settings: unknown topic", apis.DESCRIBE_CONFIGS, looked_up(GONE))
case("settings: illegal name", apis.DESCRIBE_CONFIGS, looked_up("a/b"))
case("settings: no name", apis.DESCRIBE_CONFIGS, looked_up(""))
case("settings: unknown node", apis.DESCRIBE_CONFIGS, looked_up("99", BROKER))
case("settings: a node that is no number", apis.DESCRIBE_CONFIGS, looked_up("odd", BROKER))
case("settings: unknown kind", apis.DESCRIBE_CONFIGS, looked_up("odd", 99))
case("settings: unknown setting", apis.DESCRIBE_CONFIGS, looked_up(ORDERS, keys=["odd"]))


def setting(name: str, value: str | None, operation: int = 0) -> Message:
    return {"name": name, "value": value, "config_operation": operation}


RETENTION = setting("retention.ms", "86400000")
for name, key in (("replace settings", apis.ALTER_CONFIGS), ("change settings", apis.INCREMENTAL_ALTER_CONFIGS)):
    altered = partial(resource, is_whole=key == apis.ALTER_CONFIGS)
    case(f"{name}: unknown topic", key, altered(GONE, configs=[RETENTION]))
    case(f"{name}: illegal name", key, altered("a/b", configs=[RETENTION]))
    case(f"{name}: no name", key, altered("", configs=[RETENTION]))
    case(f"{name}: unknown kind", key, altered("odd", 99, [RETENTION]))
    case(f"{name}: unknown node", key, altered("99", BROKER, [RETENTION]))
    case(f"{name}: unknown setting", key, altered(configs=[setting("odd", "1")]))
    case(f"{name}: illegal value", key, altered(configs=[setting("retention.ms", "odd")]))
    case(f"{name}: negative value", key, altered(configs=[setting("max.message.bytes", "-1")]))
    case(f"{name}: no value", key, altered(configs=[setting("retention.ms", None)]))
    case(f"{name}: a setting twice", key, altered(configs=[RETENTION, setting("retention.ms", "90000000")]))
case("change settings: a topic twice", apis.INCREMENTAL_ALTER_CONFIGS, resource(configs=[RETENTION], times=2))
case("change settings: unknown operation", apis.INCREMENTAL_ALTER_CONFIGS, resource(
    configs=[setting("retention.ms", "1", 9)]))  # fmt: skip
case("change settings: append to what is no list", apis.INCREMENTAL_ALTER_CONFIGS, resource(
    configs=[setting("retention.ms", "1", 2)]))  # fmt: skip
case("change settings: append to a list", apis.INCREMENTAL_ALTER_CONFIGS, resource(
    configs=[setting("cleanup.policy", "delete", 2)]))  # fmt: skip

# ------------------------------------------------------------------------------------------------------ rights


ANY = 1
FILTER = {
    "resource_type_filter": ANY, "resource_name_filter": None, "pattern_type_filter": ANY, "principal_filter": None,
    "host_filter": None, "operation": ANY, "permission_type": ANY,
}  # fmt: skip
RULE = {
    "resource_type": TOPIC, "resource_name": ORDERS, "resource_pattern_type": 3, "principal": "User:x", "host": "*",
    "operation": 3, "permission_type": 3,
}  # fmt: skip

case("rules: no authentication", apis.DESCRIBE_ACLS, FILTER)
case("make rules: no authentication", apis.CREATE_ACLS, {"creations": [RULE]})
case("delete rules: no authentication", apis.DELETE_ACLS, {"filters": [FILTER]})
case("sasl: not asked for", apis.SASL_HANDSHAKE, {"mechanism": "PLAIN"})
case("sasl: not asked for, a password", apis.SASL_AUTHENTICATE, {"auth_bytes": b"\0u\0p"})

PLAIN = Asked({"mechanism": "PLAIN"}, apis.SASL_HANDSHAKE, 1)
case("sasl: unknown mechanism", apis.SASL_HANDSHAKE, {"mechanism": "ODD"}, user=None, **SECURED)
case("sasl: a password before the mechanism", apis.SASL_AUTHENTICATE, {"auth_bytes": b"\0u\0p"}, user=None, **SECURED)
case(
    "sasl: wrong password",
    apis.SASL_AUTHENTICATE,
    lambda _: PLAIN,
    {"auth_bytes": b"\0root\0wrong"},
    user=None,
    **SECURED,
)
case("sasl: no password", apis.SASL_AUTHENTICATE, lambda _: PLAIN, {"auth_bytes": b"\0root\0"}, user=None, **SECURED)
case(
    "sasl: not what the mechanism says",
    apis.SASL_AUTHENTICATE,
    lambda _: PLAIN,
    {"auth_bytes": b"odd"},
    user=None,
    **SECURED,
)
case(
    "sasl: good",
    apis.SASL_AUTHENTICATE,
    lambda _: PLAIN,
    lambda place: {"auth_bytes": place.users["nobody"]},
    user=None,
    **SECURED,
)
case("sasl: a password twice", apis.SASL_AUTHENTICATE, {"auth_bytes": b"\0u\0p"}, **SECURED)
case("unknown client: metadata", apis.METADATA, named(ORDERS), user=None, **SECURED)
case("unknown client: produce", apis.PRODUCE, lambda _: produced(batch()), user=None, **SECURED)
case(
    "unknown client: versions",
    apis.API_VERSIONS,
    {"client_software_name": "a", "client_software_version": "1"},
    user=None,
    **SECURED,
)

case("denied: produce", apis.PRODUCE, lambda _: produced(batch()), **SECURED)
case("denied: produce, unknown topic", apis.PRODUCE, lambda _: produced(batch(), GONE), **SECURED)
case("denied: produce, acks=0", apis.PRODUCE, *_silently(produced(batch())), **SECURED)
case(
    "denied: produce, transaction",
    apis.PRODUCE,
    lambda place: produced(batch(), transactional_id=place.name),
    **SECURED,
)
case("denied: fetch", apis.FETCH, fetched(), **SECURED)
case("denied: fetch, unknown topic", apis.FETCH, fetched(GONE), **SECURED)
case("denied: list offsets", apis.LIST_OFFSETS, listed(LATEST), **SECURED)
case("denied: end of an epoch", apis.OFFSET_FOR_LEADER_EPOCH, epoch_asked(0), **SECURED)
case("denied: delete records", apis.DELETE_RECORDS, deleted_before(0), **SECURED)
case("denied: metadata", apis.METADATA, named(ORDERS), **SECURED)
case("denied: metadata, unknown topic", apis.METADATA, named(GONE), **SECURED)
case(
    "denied: metadata, a topic that would be made",
    apis.METADATA,
    named(GONE, allow_auto_topic_creation=True),
    **SECURED,
)
case("denied: metadata of all", apis.METADATA, lambda place: {"topics": [] if place.version == 0 else None}, **SECURED)
case("denied: cluster", apis.DESCRIBE_CLUSTER, {}, **SECURED)
case("denied: coordinator", apis.FIND_COORDINATOR, coordinator(0), **SECURED)
case("denied: coordinator of a transaction", apis.FIND_COORDINATOR, coordinator(1), **SECURED)
case("denied: producer id", apis.INIT_PRODUCER_ID, started(), **SECURED)
case("denied: join", apis.JOIN_GROUP, joined(LEFT), **SECURED)
case("denied: sync", apis.SYNC_GROUP, lambda _: {"group_id": LEFT, "member_id": MEMBER, "generation_id": 1,
     "protocol_type": CONSUMER, "protocol_name": RANGE, "assignments": []}, **SECURED)  # fmt: skip
case("denied: heartbeat", apis.HEARTBEAT, {"group_id": LEFT, "member_id": MEMBER, "generation_id": 1}, **SECURED)
case("denied: leave", apis.LEAVE_GROUP, leaving(MEMBER, LEFT), **SECURED)
case("denied: commit", apis.OFFSET_COMMIT, alone(committed(), LEFT), **SECURED)
case("denied: committed", apis.OFFSET_FETCH, wanted(), **SECURED)
case(
    "denied: all that is committed",
    apis.OFFSET_FETCH,
    lambda place: wanted(None if place.version > 1 else ORDERS),
    **SECURED,
)
case("denied: forget offsets", apis.OFFSET_DELETE, forgotten(LEFT), **SECURED)
case("denied: describe groups", apis.DESCRIBE_GROUPS, {"groups": [LEFT]}, **SECURED)
case("denied: list groups", apis.LIST_GROUPS, {}, **SECURED)
case("denied: delete groups", apis.DELETE_GROUPS, {"groups_names": [LEFT]}, **SECURED)
case("denied: create", apis.CREATE_TOPICS, created(), **SECURED)
case("denied: create, an existing topic", apis.CREATE_TOPICS, created(ORDERS), **SECURED)
case("denied: delete", apis.DELETE_TOPICS, {"topic_names": [ORDERS], "timeout_ms": 10_000}, **SECURED)
case("denied: delete, unknown topic", apis.DELETE_TOPICS, {"topic_names": [GONE], "timeout_ms": 10_000}, **SECURED)
case("denied: grow", apis.CREATE_PARTITIONS, grown(3), **SECURED)
case("denied: settings", apis.DESCRIBE_CONFIGS, looked_up(ORDERS), **SECURED)
case(
    "denied: settings of a node",
    apis.DESCRIBE_CONFIGS,
    lambda place: looked_up(str(int(place.is_kafka)), BROKER),
    **SECURED,
)
case("denied: replace settings", apis.ALTER_CONFIGS, resource(configs=[RETENTION], is_whole=True), **SECURED)
case("denied: change settings", apis.INCREMENTAL_ALTER_CONFIGS, resource(configs=[RETENTION]), **SECURED)
case("denied: rules", apis.DESCRIBE_ACLS, FILTER, **SECURED)
case("denied: make rules", apis.CREATE_ACLS, {"creations": [RULE]}, **SECURED)
case("denied: delete rules", apis.DELETE_ACLS, {"filters": [FILTER]}, **SECURED)
