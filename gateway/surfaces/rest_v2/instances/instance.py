"""One consumer instance: what it wants, how far it has been read, and what of that its client is known to have.

Three offsets say everything about a partition, each the next record to come:

    committed   durable in the group; another member would begin here
    confirmed   the client has come back since it was handed what lies before: it has it
    next        delivered in answers up to here; the last of them may never have arrived

    call                        next   confirmed   committed
    subscribe (nothing stored)  0      0           -
    read, answers 0 to 9        10     0           -
    read, answers 10 to 19      20     10          10 (with auto commit, before the answer)
    the server is restarted     10     10          10: what may not have arrived is delivered again
    commit without a body       20     20          20 (also after a restart: the client says that it has it)

A restart may have cut an answer off, so the first read after it goes back to `confirmed`.

So automatic commits never run ahead of the client, as they do where reading commits: a record counts as read when the
client asks for more, commits, or deletes its instance. An answer that found no client does not count as delivered.

An instance either subscribes (a member of the group; the coordinator gives it partitions) or is assigned partitions by
its client. It is kept as a document with the group, so that it survives a restart.

Invariants
    I1  committed <= confirmed <= next, unless the client itself moves them (seek, commit of any offset)
    I2  partitions have a position if and only if they are the instance's own
    I3  what the client commits ahead of its reading stays committed until it reads past it, or seeks back
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import orjson

from gateway.errors import RequestError, invalid
from gateway.groups.machines.membership import Share
from gateway.groups.machines.strategies.base import Partition
from gateway.groups.machines.subscription import Subscription
from gateway.groups.protocol import OffsetCommit, TopicPartition
from gateway.surfaces.rest_v2.instances.settings import InstanceSettings, parse_settings, settings_as_json

ILLEGAL_STATE = 40903
DOCUMENT_BYTES_MAX = 64 * 1024
_GENERATION_MAX = 2**63 - 1
_DOCUMENT_VERSION = 1


@dataclass(slots=True)
class Position:
    """How far one partition is; see the module's docstring."""

    next_offset: int
    confirmed: int
    committed: int | None

    @property
    def is_clean(self) -> bool:
        """Whether nothing would be delivered twice if the partition moved on now."""
        return self.next_offset == self.confirmed and (self.committed is None or self.committed >= self.confirmed)


class Instance:
    """The state of one instance. It decides nothing about time and waits for nothing."""

    def __init__(self, group: str, name: str, settings: InstanceSettings) -> None:
        self.group = group
        self.name = name
        self.settings = settings
        self.wish: Subscription | None = None
        self.assigned: tuple[TopicPartition, ...] = ()
        self.generation: int | None = None
        self.positions: dict[Partition, Position] = {}
        self.revoking: frozenset[Partition] = frozenset()
        self.is_resumed = False
        """It was read back after a restart, and its client has not been heard since."""

        self._rotation = 0

    # What is wanted

    def subscribe(self, wish: Subscription) -> None:
        """Replace the subscription. Raises RequestError 409 when partitions are assigned, 422 when it is too long to be
        kept."""
        if self.assigned:
            raise _illegal_state("partitions are assigned to this instance; unassign them before subscribing")
        before, self.wish = self.wish, wish
        try:
            self._check_length()
        except RequestError:
            self.wish = before
            raise

    def assign(self, partitions: Sequence[TopicPartition]) -> None:
        """Replace the assignment; none ends it. Raises RequestError 409 when the instance subscribes, 422 when it is
        too long to be kept."""
        if self.wish is not None:
            raise _illegal_state("this instance subscribes to topics; delete its subscription before assigning")
        before, self.assigned = self.assigned, tuple(dict.fromkeys(partitions))
        try:
            self._check_length()
        except RequestError:
            self.assigned = before
            raise

    def unsubscribe(self) -> None:
        """Want nothing any more, by subscription or assignment."""
        self.wish = None
        self.assigned = ()
        self.generation = None
        self.revoking = frozenset()
        self.positions.clear()

    def topics(self, existing: Iterable[str]) -> list[str]:
        """The topics subscribed to; for a pattern, those of the existing ones that match."""
        if self.wish is None:
            return []
        return sorted(self.wish.topics | {topic for topic in existing if self.wish.matches(topic)})

    # What it has

    def own(self, partitions: Iterable[Partition]) -> list[Partition]:
        """These are the instance's partitions now. Forgets the others; returns those that need a position (I2)."""
        owned = sorted(set(partitions))
        self.positions = {
            topic_partition: self.positions[topic_partition]
            for topic_partition in owned
            if topic_partition in self.positions
        }
        return [topic_partition for topic_partition in owned if topic_partition not in self.positions]

    def own_share(self, share: Share) -> list[Partition]:
        """As `own`, by what the coordinator says."""
        self.generation = share.generation
        self.revoking = frozenset(share.revoking)
        return self.own((*share.assigned, *share.revoking))

    def begin(self, topic_partition: Partition, offset: int, committed: int | None) -> None:
        """Give a new partition its position."""
        self.positions[topic_partition] = Position(offset, offset, committed)

    def owned(self) -> list[TopicPartition]:
        """Its partitions, by topic and number, but for those it is to give up."""
        return sorted(TopicPartition(p.topic, p.partition) for p in self.positions if p not in self.revoking)

    def owned_topics(self) -> frozenset[str]:
        """The topics of its partitions."""
        return frozenset(topic_partition.topic for topic_partition in self.positions)

    def reading_order(self) -> list[Partition]:
        """The partitions to read; each call begins with the next one, so that none is starved."""
        topic_partitions = sorted(
            topic_partition for topic_partition in self.positions if topic_partition not in self.revoking
        )
        if not topic_partitions:
            return []
        self._rotation += 1
        first = self._rotation % len(topic_partitions)
        return topic_partitions[first:] + topic_partitions[:first]

    def partitions_of(self, named: Iterable[TopicPartition]) -> list[Partition]:
        """The partitions of these names. Raises RequestError 409 when one is not the instance's."""
        own = self._by_name()
        try:
            return [own[one] for one in named]
        except KeyError as error:
            topic, partition = error.args[0]
            raise _illegal_state(f"no current assignment for partition {partition} of topic {topic}") from None

    def _by_name(self) -> dict[TopicPartition, Partition]:
        return {TopicPartition(one.topic, one.partition): one for one in self.positions}

    # How far it is

    def delivered(self, ends: Mapping[Partition, int]) -> None:
        """Records up to these offsets are in an answer that is about to be sent."""
        for topic_partition, offset in ends.items():
            if topic_partition in self.positions:
                self.positions[topic_partition].next_offset = offset

    def ask_for_more(self) -> None:
        """The client reads on: it has everything it was handed, unless a restart may have cut the answer off."""
        if self.is_resumed:
            self.is_resumed = False
            for position in self.positions.values():
                position.next_offset = position.confirmed
        self.confirm()

    def confirm(self) -> None:
        """The client has everything it was handed."""
        self.is_resumed = False
        for position in self.positions.values():
            position.confirmed = position.next_offset

    def seek(self, topic_partition: Partition, offset: int) -> None:
        """Go on at this offset."""
        position = self.positions[topic_partition]
        position.next_offset = position.confirmed = offset
        if position.committed is not None and position.committed > offset:
            position.committed = None  # stands no more for what the client has (I3)

    def unsaved(self) -> list[OffsetCommit]:
        """What is confirmed and not committed. A position where nothing has been read yet is committed too: a group
        that begins at the end must not begin at a later end because another member takes over."""
        return [
            OffsetCommit(topic_partition.topic, topic_partition.partition, position.confirmed)
            for topic_partition, position in sorted(self.positions.items())
            if position.committed is None or position.committed < position.confirmed
        ]

    def committed(self, commits: Iterable[OffsetCommit]) -> None:
        """These are durable. Whoever commits an offset has the records before it."""
        own = self._by_name()
        for commit in commits:
            named = own.get(TopicPartition(commit.topic, commit.partition))
            if named is not None:
                position = self.positions[named]
                position.committed = commit.offset
                position.confirmed = max(position.confirmed, min(commit.offset, position.next_offset))

    # Kept across restarts

    def encode(self) -> bytes:
        """The document. Positions that make it too long are left out: the group's commits then say where to begin."""
        document = self._wanted(self.generation)
        positions = [
            (*topic_partition, position.next_offset, position.confirmed, position.committed)
            for topic_partition, position in self.positions.items()
        ]
        whole = orjson.dumps({**document, "positions": positions})
        return whole if len(whole) <= DOCUMENT_BYTES_MAX else orjson.dumps(document)

    def _check_length(self) -> None:
        """Raises RequestError 422 for a document that is too long now, or would be in some generation of the group."""
        if len(orjson.dumps(self._wanted(_GENERATION_MAX))) > DOCUMENT_BYTES_MAX:
            raise invalid(f"the topics of one instance have at most {DOCUMENT_BYTES_MAX} bytes together; use a pattern")

    def _wanted(self, generation: int | None) -> dict[str, object]:
        """The document without positions."""
        wish = self.wish
        return {
            "version": _DOCUMENT_VERSION,
            "settings": settings_as_json(self.settings),
            "topics": None if wish is None else sorted(wish.topics),
            "pattern": None if wish is None else wish.pattern,
            "visible": None if wish is None else wish.visible,
            "assigned": [(topic_partition.topic, topic_partition.partition) for topic_partition in self.assigned],
            "generation": generation,
            "positions": [],
        }


def decode_instance(group: str, name: str, content: bytes) -> Instance:
    """An instance as it was when its document was written. Raises ValueError for a document that is none."""
    document = orjson.loads(content)
    if document["version"] != _DOCUMENT_VERSION:
        raise ValueError(f"a document of version {document['version']}; this program knows {_DOCUMENT_VERSION}")
    instance = Instance(group, name, parse_settings(document["settings"])[1])
    if document["topics"] is not None:
        visible = document.get("visible")
        instance.wish = Subscription(
            frozenset(document["topics"]),
            document["pattern"],
            None if visible is None else (tuple(visible[0]), tuple(visible[1])),
        )
    instance.assigned = tuple(TopicPartition(*topic_partition) for topic_partition in document["assigned"])
    instance.generation = document["generation"]
    instance.is_resumed = True
    for topic, topic_id, partition, next_offset, confirmed, committed in document["positions"]:
        instance.positions[Partition(topic, topic_id, partition)] = Position(next_offset, confirmed, committed)
    return instance


def _illegal_state(what: str) -> RequestError:
    return RequestError(ILLEGAL_STATE, f"Illegal state: {what}.")
