"""Who is in a cluster: its brokers, those of them that are there now, and which names belong to which node.

    cluster               the cluster's id, made by the node that was first
    brokers/<name>        {"v": 1, "number": 0, "data": id of its data directory, "address": where nodes reach it,
                           "url": where clients do, "draining": it is to have nothing, "balancing": it is to take its
                           share of the partitions (written when true), "storeless": it has no store, so nothing can
                           be on it (written when true), "room": the machine room it stands in, "kafka": where Kafka
                           clients reach its listeners, NAME://HOST:PORT (written when there are any)}. Stays when the
                           node is gone: partitions may be on it
    nodes/<name>          a session: there while the node's process is
    formats/<name>        {"v": 1, "data": 3}: the newest data format that the node's program knew when it was last
                          there. While it is there, its session says so: a program from before this does not, and knows
                          FORMAT_UNSAID. Keys of their own, as such a program does not understand a broker's record with
                          more in it (later ones do, and keep it)
    owners/<kind>/<name>  the node that a consumer group or a recurring schedule belongs to

The data directory says which cluster it is of, and as which node (`membership.0` and `.1`, store/snapshot.py). So a
directory never serves two clusters, or one without it: what it knows of its partitions is true only together with the
cluster's metadata.

A node without a store has no directory that says this. `data` is its process then, and its name is free for another
process as soon as its session has ended.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any, NamedTuple

import orjson

from gateway.cluster.metadata import ABSENT, Listing, Metadata, OtherMetadata, Unavailable
from gateway.cluster.record import NODE_NAME_CHARS_MAX
from gateway.cluster.topics import (
    COUNTERS,
    Counters,
    TopicRecord,
    decode_counters,
    encode_counters,
    encode_topic,
    key_of_topic,
)
from store.errors import StoreError
from store.files import Files
from store.snapshot import Snapshot, SnapshotFiles
from store.topics import Topic

CLUSTER, BROKERS, NODES, OWNERS, FORMATS = "cluster", "brokers/", "nodes/", "owners/", "formats/"
SESSION_TTL_MS = 5_000
"""How long after its last word a node counts as being there."""

VERSION = 1
FORMAT_UNSAID = 2
"""The data format of programs that do not say theirs."""

_NODE_NAME = re.compile(rf"[a-z0-9-]{{1,{NODE_NAME_CHARS_MAX}}}", re.ASCII)
_FILE = "membership"


class NameInUse(Unavailable):
    """Another process without a store is this node, or was until its session ends."""


class CannotJoin(StoreError):
    """This node and this cluster do not go together; the text says why and what to do."""


class Membership(NamedTuple):
    """Of which cluster a data directory is, and as which node."""

    cluster: str
    node: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Member:
    """A broker of the cluster; `number` is what APIs that count brokers know it by."""

    name: str
    number: int
    data: str
    address: str
    url: str
    draining: bool = False
    balancing: bool = False
    storeless: bool = False
    room: str = ""
    kafka: tuple[str, ...] = ()
    more: tuple[tuple[str, Any], ...] = ()
    """Fields that a newer program wrote: kept when this one changes the record."""


_KNOWN = frozenset(field.name for field in fields(Member)) - {"name", "more"}


def check_node_name(name: str) -> None:
    """Raises ValueError."""
    if not _NODE_NAME.fullmatch(name):
        raise ValueError(f"a node's name is 1 to {NODE_NAME_CHARS_MAX} of the characters a-z 0-9 -, not {name!r}")


def encode_member(member: Member) -> bytes:
    """The JSON of a member."""
    written = dict(member.more) | {
        "v": VERSION, "number": member.number, "data": member.data, "address": member.address, "url": member.url,
        "draining": member.draining, "room": member.room,
    }  # fmt: skip
    if member.balancing:
        written["balancing"] = True
    if member.storeless:
        written["storeless"] = True
    if member.kafka:
        written["kafka"] = member.kafka
    return orjson.dumps(written)


def decode_member(name: str, data: bytes) -> Member:
    """The member of its JSON. Raises ValueError."""
    try:
        found = orjson.loads(data)
        if found.pop("v") != VERSION:
            raise ValueError("of another version")
        more = tuple((field, found.pop(field)) for field in sorted(found.keys() - _KNOWN))
        found["kafka"] = tuple(map(str, found.get("kafka", ())))
        return Member(name=name, more=more, **found)
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise ValueError(f"the record of broker {name} is not understood: {error!r}") from error


def encode_session(process: str, data_format: int) -> bytes:
    """What a node's session says: which process it is, and the newest data format that this knows."""
    return orjson.dumps({"v": 1, "process": process, "data": data_format})


def process_in(data: bytes) -> str:
    """The process that a session says."""
    return str(orjson.loads(data)["process"])


def encode_format(data_format: int) -> bytes:
    """What is kept of a node's data format while it is away."""
    return orjson.dumps({"v": 1, "data": data_format})


def format_in(data: bytes) -> int:
    """The data format that a session, or what is kept of it, says."""
    try:
        return int(orjson.loads(data).get("data", FORMAT_UNSAID))
    except (ValueError, TypeError, AttributeError):
        return FORMAT_UNSAID


def membership_of(root: Path, files: Files) -> Membership | None:
    """What an open data directory says; None: it is of no cluster. Raises FormatTooNew."""
    snapshot = SnapshotFiles(root, _FILE, files).load()
    return None if snapshot is None else Membership(**orjson.loads(snapshot.content))


def name_in(root: Path, files: Files) -> str | None:
    """The node whose data directory it is; None: of no node."""
    membership = membership_of(root, files)
    return None if membership is None else membership.node


def check_alone(root: Path, files: Files) -> None:
    """Raises CannotJoin when a data directory is of a cluster: alone it would answer wrongly."""
    if (membership := membership_of(root, files)) is not None:
        raise CannotJoin(
            f"{root} belongs to node {membership.node} of cluster {membership.cluster}: start it with "
            f"--node {membership.node} and --etcd"
        )


async def join(
    metadata: Metadata, root: Path, files: Files, own: Member, topics: Sequence[Topic], *, next_topic_id: int
) -> Membership:
    """Be a broker of the cluster, and say so in the data directory; durable on return. The first node makes the
    cluster, of the topics it has; its data directory's id becomes the cluster's. Every other one comes with none.
    `own`: its number is given here. Raises CannotJoin, ValueError, Unavailable, NameInUse.

    crash                             what the next start finds
    before the compare-and-set        nothing, or topics that the same node adds again
    between it and the directory      a broker of this name and data: it joins once more
    """
    before = membership_of(root, files)
    while True:
        listing = await metadata.list("")
        found = listing.values.get(CLUSTER)
        cluster = None if found is None else found.data.decode()
        _check(root, before, cluster, own, has_topics=bool(topics))
        counters = _counters_of(listing, next_topic_id)
        if before is None and cluster in (None, own.data):
            await _add_topics(metadata, listing, own.name, topics)
            counters = replace(counters, topic_id=max(counters.topic_id, next_topic_id))
        elif any(topic.topic_id >= counters.topic_id for topic in topics):
            # What the metadata does not have would be deleted here: it must be certain that it was deleted there.
            raise CannotJoin(f"the metadata is older than {root}, which has topics that it never heard of")
        membership = Membership(cluster or own.data, own.name)
        key = BROKERS + own.name
        if (known := listing.values.get(key)) is None:
            member = replace(own, number=counters.broker)
            counters = replace(counters, broker=counters.broker + 1)
        else:
            earlier = decode_member(own.name, known.data)
            if earlier.data != own.data and not (own.storeless and earlier.storeless):
                raise CannotJoin(f"another data directory is node {own.name} of this cluster: choose another --node")
            if own.storeless and NODES + own.name in listing.values:
                raise NameInUse(f"another process is node {own.name}: it has to end, or choose another --node")
            member = replace(own, number=earlier.number, draining=earlier.draining, balancing=earlier.balancing)
        changes = {
            CLUSTER: membership.cluster.encode(), COUNTERS: encode_counters(counters), key: encode_member(member)
        }  # fmt: skip
        expected = {key: _revision(listing, key) for key in changes}
        if own.storeless:
            expected[NODES + own.name] = ABSENT
        if await metadata.compare_and_set(expected, changes) is not None:
            if membership != before:
                SnapshotFiles(root, _FILE, files).save(Snapshot(0, orjson.dumps(membership._asdict())))
            return membership


def check_known(listing: Listing, cluster: str, *, seen_revision: int, topic_ids: Iterable[int]) -> None:
    """Whether metadata that is listed anew can be that of before: what it does not have is deleted here, and metadata
    that was lost, or restored from a backup, has not deleted it. `topic_ids`: of topics that it should know. Raises
    OtherMetadata."""
    found = listing.values.get(CLUSTER)
    if found is None or found.data.decode() != cluster:
        raise OtherMetadata(f"the metadata knows nothing of cluster {cluster}, to which this node belongs")
    if listing.revision < seen_revision:
        raise OtherMetadata(f"the metadata is older (revision {listing.revision}) than it was ({seen_revision})")
    newest = _counters_of(listing, 0).topic_id
    if any(topic_id >= newest for topic_id in topic_ids):
        raise OtherMetadata("the metadata is older than this node's topics: it never heard of one of them")


async def _add_topics(metadata: Metadata, listing: Listing, home: str, topics: Sequence[Topic]) -> None:
    for topic in topics:
        if (key := key_of_topic(topic.name)) not in listing.values:
            await metadata.compare_and_set({key: ABSENT}, {key: encode_topic(TopicRecord(topic, ((0, (home,)),)))})


def _check(root: Path, before: Membership | None, cluster: str | None, own: Member, *, has_topics: bool) -> None:
    if before is None:
        if has_topics and cluster not in (None, own.data):
            raise CannotJoin(f"{root} has topics of its own: only the first node of a cluster may bring some")
    elif before.node != own.name:
        raise CannotJoin(f"{root} belongs to node {before.node}, not {own.name}: start it with --node {before.node}")
    elif cluster is None:
        raise CannotJoin(f"{root} belongs to cluster {before.cluster}, of which the metadata knows nothing")
    elif before.cluster != cluster:
        raise CannotJoin(f"{root} belongs to cluster {before.cluster}; the metadata is that of {cluster}")


def _counters_of(listing: Listing, next_topic_id: int) -> Counters:
    found = listing.values.get(COUNTERS)
    return Counters(next_topic_id) if found is None else decode_counters(found.data)


def _revision(listing: Listing, key: str) -> int:
    found = listing.values.get(key)
    return ABSENT if found is None else found.revision
