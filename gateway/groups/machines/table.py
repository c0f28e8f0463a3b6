"""All groups of a node as one machine: every event goes to the part it belongs to, and a snapshot holds them all.

A group is there from its first event until it is deleted. What it has in a topic goes with the topic.

    settings      what was configured, by name         Configured
    membership    members and their partitions         see `membership`
    progress      committed offsets, all groups'       see `progress`, `light_offsets`
    leases        queue mode, a topic each             see `topic_leases`, `leases`
                  in its light queues                  see `light_leases`
    documents     what others keep beside a group      DocumentPut

In one partition a group is in queue mode or not: where it is, its offset is that of the first record that is not done
(`stored`), and no other offset is committed there.

What groups keep is counted as it grows, so that it can be bounded (`size_bytes`, `open_count`): estimates of what
Python takes for it, measured on 64 bits. Bounds are looked at when something is decided, never when it is applied.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain
from typing import assert_never, get_args

import orjson

from gateway.groups.machines.broadcast import group_of, is_lone
from gateway.groups.machines.config import GroupConfig, with_changes
from gateway.groups.machines.errors import GroupError, UnknownGroup
from gateway.groups.machines.events import (
    AssignmentAsked,
    Barrier,
    Configured,
    DocumentPut,
    Event,
    Forgotten,
    Leased,
    LeaseEvent,
    LeaseMoved,
    LeasesBegun,
    LeasesSet,
    LightBegun,
    LightCommitted,
    LightForgotten,
    LightPosition,
    MemberJoined,
    MemberLeft,
    MembershipEvent,
    OffsetsCommitted,
    PartitionsAssigned,
    PartitionsReleased,
    QueueEvent,
    Rebalanced,
    Rejected,
    Settled,
)
from gateway.groups.machines.leases import PartitionLeases
from gateway.groups.machines.light_leases import LightLeases
from gateway.groups.machines.light_offsets import FORGOTTEN, LightOffsets, light_committed
from gateway.groups.machines.membership import Membership
from gateway.groups.machines.progress import (
    POSITION_BYTES,
    Found,
    LightKey,
    PartitionKey,
    Place,
    Progress,
    Stored,
)
from gateway.groups.machines.strategies.base import Assignment, Partition, Rooms, Strategy, StrategyContext
from gateway.groups.machines.strategies.registry import StrategyRegistry
from gateway.groups.machines.topic_leases import TopicLeases

log = logging.getLogger(__name__)

_LEASE_EVENTS = get_args(LeaseEvent)

DOCUMENT_BYTES = 250
"""What a document takes besides its key and its content."""

QUEUE_BYTES = 400
"""What queue mode in one topic takes besides its partitions."""


@dataclass(slots=True)
class Group:
    """Everything about one group but its committed offsets."""

    name: str
    config: GroupConfig
    membership: Membership
    settings: Mapping[str, object] = field(default_factory=dict)
    settings_bytes: int = 0
    queues: dict[int, TopicLeases] = field(default_factory=dict)
    """Queue mode, by topic id."""

    light: dict[int, LightLeases] = field(default_factory=dict)
    """Queue mode in light queues, by topic id."""

    light_epochs_bytes: int = 0
    """What those that were reset take, in all topics."""

    documents: dict[str, bytes] = field(default_factory=dict)
    documents_bytes: int = 0
    queue_partition_count: int = 0
    """Partitions in queue mode."""

    open_count: int = 0
    """Records leased or taken, and not done, in all partitions."""

    @property
    def size_bytes(self) -> int:
        """What it keeps but for committed offsets and open records, about."""
        queues_bytes = (len(self.queues) + len(self.light)) * QUEUE_BYTES
        queues_bytes += self.queue_partition_count * POSITION_BYTES + self.light_epochs_bytes
        return self.settings_bytes + self.documents_bytes + queues_bytes + self.membership.size_bytes

    def open_leases(self) -> Iterator[tuple[Place, PartitionLeases]]:
        """The partitions, and light queues, with open records."""
        for topic_id, queue in self.queues.items():
            for partition, leases in queue.open.items():
                yield PartitionKey(topic_id, partition), leases
        for topic_id, light in self.light.items():
            for (partition, name), leases in light.open.items():
                yield LightKey(topic_id, partition, name), leases

    def leased_count(self, now_ms: int) -> int:
        """Records in consumers' hands, in all partitions."""
        return sum(leases.leased_count(now_ms) for _, leases in self.open_leases())


class GroupTable:
    """The groups of one node, by name. Changes through `apply` alone."""

    def __init__(self, strategies: StrategyRegistry, context: StrategyContext | None = None) -> None:
        self._strategies = strategies
        self._context = context or StrategyContext()
        self._groups: dict[str, Group] = {}
        self._lone: dict[str, set[str]] = {}  # members of broadcasting groups, by group
        self.progress = Progress()
        self.light_offsets = LightOffsets()
        self._groups_bytes = 0
        self.open_count = 0
        """Records that groups have taken and not done, of all groups."""

    # What is

    def names(self) -> list[str]:
        """All groups, sorted; each member of a broadcasting group among them as `group/member`."""
        return sorted(self._groups)

    def groups(self) -> Iterable[Group]:
        """All groups, in no order."""
        return self._groups.values()

    def lone_groups(self, group: str) -> list[str]:
        """The members of a broadcasting group, present or not, as groups of their own."""
        return sorted(self._lone.get(group, ()))

    @property
    def lone_count(self) -> int:
        """Members of all broadcasting groups, present or not."""
        return sum(map(len, self._lone.values()))

    def __contains__(self, group: str) -> bool:
        return group in self._groups

    def __len__(self) -> int:
        """All groups; each member of a broadcasting group, present or not, counts as one."""
        return len(self._groups)

    def get(self, group: str) -> Group:
        """Raises UnknownGroup."""
        found = self._groups.get(group)
        if found is None:
            raise UnknownGroup(f"group {group} is not known: no consumer has used it")
        return found

    def get_or_new(self, group: str) -> Group:
        """The group, or an empty one, which is not in the table before its first event is applied."""
        found = self._groups.get(group)
        return self._made(group) if found is None else found

    def config(self, group: str) -> GroupConfig:
        """A group's settings, the defaults when there is none."""
        found = self._groups.get(group_of(group))
        return GroupConfig() if found is None else found.config

    def leases(self, group: str, key: Place) -> PartitionLeases | None:
        """A group's leases in a partition or light queue; None where it is not in queue mode."""
        found = self._groups.get(group)
        if isinstance(key, LightKey):
            light = None if found is None else found.light.get(key.topic_id)
            if found is None or light is None:
                return None
            return light.at(key.partition, key.name, found.config, self.light_offset(group, key))
        queue = None if found is None else found.queues.get(key.topic_id)
        if found is None or queue is None or key.partition >= queue.end:
            return None
        return queue.at(key.partition, found.config)

    def queue(self, group: str, topic_id: int) -> TopicLeases | None:
        """A group's leases in a topic; None where it is not in queue mode."""
        found = self._groups.get(group)
        return None if found is None else found.queues.get(topic_id)

    def opened(self, group: str, key: Place) -> PartitionLeases | None:
        """A group's leases in a partition or light queue with open records; None where there are none."""
        found = self._groups.get(group)
        if found is None:
            return None
        if isinstance(key, LightKey):
            light = found.light.get(key.topic_id)
            return None if light is None else light.open.get((key.partition, key.name))
        queue = found.queues.get(key.topic_id)
        return None if queue is None else queue.open.get(key.partition)

    def light(self, group: str, topic_id: int) -> LightLeases | None:
        """A group's leases in the light queues of a topic; None where it is not in queue mode."""
        found = self._groups.get(group)
        return None if found is None else found.light.get(topic_id)

    def light_offset(self, group: str, key: LightKey) -> int:
        """The first record of a light queue that a group is not done with; 0: it begins with the first there is."""
        return self.light_offsets.get(group, *key) or 0

    def queue_or_new(self, group: str, topic_id: int) -> TopicLeases:
        """The same, or an empty one, which is not in the table before its first event is applied."""
        return self.queue(group, topic_id) or TopicLeases(group, topic_id)

    def stored(self, group: str, key: PartitionKey) -> Stored:
        """How far a group is in a partition, with all three answers, in either mode."""
        queue = self.queue(group, key.topic_id)
        if queue is None or key.partition >= queue.end:
            return self.progress.lookup(group, key)
        return Found(queue.low_offset(key.partition), "", 0)

    def topic_ids(self, group: str) -> set[int]:
        """Topics in which a group has offsets or leases."""
        found = self._groups.get(group)
        return self.progress.topic_ids(group) | (set() if found is None else found.queues.keys())

    def light_topic_ids(self, group: str) -> set[int]:
        """Topics in whose light queues a group leases records."""
        found = self._groups.get(group)
        return set() if found is None else set(found.light)

    @property
    def size_bytes(self) -> int:
        """What all groups keep but for open records, about."""
        return self._groups_bytes + self.progress.size_bytes + self.light_offsets.size_bytes

    def size_of(self, group: str) -> int:
        """The same of one group."""
        found = self._groups.get(group)
        return self.progress.size_of(group) + (0 if found is None else found.size_bytes)

    # What shall be

    def strategy(self, config: GroupConfig, rooms: Rooms | None = None) -> Strategy | None:
        """The strategy of a group with these settings; `rooms`, those of its members. Raises ValueError when there is
        no such one, or its options are not what it takes."""
        if config.strategy is None:
            return None
        rooms = rooms or Rooms()
        context = replace(
            self._context, options=config.strategy_options, room_of_member=rooms.of_member, warn=rooms.warn
        )
        return self._strategies.make(config.strategy, context)

    def decide_prune(self, exists: Callable[[int], bool]) -> list[Forgotten]:
        """Forget what groups have in topics that are gone; topic ids are not reused, so it can never matter again."""
        events: list[Forgotten] = []
        for name in self.names():
            ids = self.topic_ids(name) | self.light_topic_ids(name)
            gone = sorted(topic_id for topic_id in ids if not exists(topic_id))
            if gone:
                events.append(Forgotten(name, tuple(gone)))
        return events

    def snapshot(
        self,
        names: Collection[str] | None = None,
        *,
        without: Collection[str] = (),
        light_of: Callable[[str], bool] | None = None,
    ) -> Iterable[Event]:
        """Events that lead an empty table to this state (but for times of members, which begin anew): the state as it
        is at this call, see `Progress.snapshot`. `names`: of these groups alone, and of
        nothing else; `without`: of all but these. `light_of`: with all offsets in light queues of these groups, also of
        those that have nothing else; None: of all groups, if no names are given."""
        parts: list[Iterable[Event]] = []
        if names is None and light_of is None:
            light_of = _is_any
        if names is None and without:
            names = [name for name in self.names() if name not in without]
        for name in self.names() if names is None else names:
            group = self._groups[name]
            parts.append([Configured(name, group.settings)])
            parts.append([DocumentPut(name, key, content) for key, content in sorted(group.documents.items())])
            parts.append(group.membership.snapshot())
            parts += [queue.snapshot() for queue in group.queues.values()]
            for topic_id, light in group.light.items():
                idle = {place: self.light_offset(name, LightKey(topic_id, *place)) for place in light.reset_places()}
                if light_of is None:
                    idle |= self.light_offsets.of_group(name, topic_id)
                parts.append(light.snapshot(idle))
                # A delete that a crash cut off leaves leases without a position; the events of the leases make one.
                gone = [
                    LightPosition(partition, name, queue, FORGOTTEN)
                    for partition, queue in sorted({*light.reset_places(), *light.open})
                    if self.light_offsets.get(name, topic_id, partition, queue) is None
                ]
                parts.append(light_committed(topic_id, gone, name))
        parts.append(self.progress.snapshot(names))
        if light_of is not None:
            parts.append(self.light_offsets.snapshot(light_of))
        return chain.from_iterable(parts)

    # What has been decided and written

    def apply(self, event: Event, now_ms: int) -> None:
        """Change the table; the only way it changes, live or at start. `now_ms` is monotonic time."""
        if isinstance(event, _LEASE_EVENTS) and self._has_applied(event):
            return
        if isinstance(event, Barrier):
            return
        if isinstance(event, LightCommitted | LightForgotten):
            self.light_offsets.apply(event)
            return
        if isinstance(event, Forgotten):
            self._forget(event)
            return
        group = self._groups.get(event.group)
        if group is None:
            group = self._groups[event.group] = self._made(event.group)
            if is_lone(group.name):
                self._lone.setdefault(group_of(group.name), set()).add(group.name)
        before = group.size_bytes
        self._apply(group, event, now_ms)
        self._groups_bytes += group.size_bytes - before

    def _apply(
        self,
        group: Group,
        event: MembershipEvent | OffsetsCommitted | QueueEvent | Configured | DocumentPut,
        now_ms: int,
    ) -> None:
        match event:
            case (
                MemberJoined()
                | MemberLeft()
                | AssignmentAsked()
                | Rebalanced()
                | PartitionsAssigned()
                | PartitionsReleased()
            ):
                group.membership.apply(event, now_ms)
            case OffsetsCommitted():
                self.progress.apply(event)
            case LightBegun():
                self._light_of(group, event.topic_id).begin(event)
            case Leased() | LeaseMoved() | Rejected() | Settled() | LeasesSet() if event.name:
                self._apply_light(group, event)
            case Leased() | LeaseMoved() | Rejected() | Settled() | LeasesSet() | LeasesBegun():
                queue = group.queues.get(event.topic_id)
                if queue is None:
                    queue = group.queues[event.topic_id] = TopicLeases(event.group, event.topic_id)
                end = queue.end
                self._apply_to_queue(group, queue, event)
                group.queue_partition_count += queue.end - end
            case Configured():
                group.settings, group.settings_bytes = event.settings, settings_bytes(event.settings)
                self._configure(group, with_changes(GroupConfig(), event.settings))
            case DocumentPut():
                group.documents_bytes -= document_bytes(event.key, group.documents.pop(event.key, None))
                if event.content is not None:
                    group.documents[event.key] = event.content
                    group.documents_bytes += document_bytes(event.key, event.content)
            case _:
                assert_never(event)

    # How it is worked out

    def _has_applied(self, event: LeaseEvent) -> bool:
        """Apply what nearly all events are: of leases in a partition that is in queue mode. They change no size but the
        count of open records. Whether it was one."""
        group = self._groups.get(event.group)
        queue = None if group is None or event.name else group.queues.get(event.topic_id)
        if group is None or queue is None or event.partition >= queue.end:
            return False
        self._apply_to_queue(group, queue, event)
        return True

    def _apply_to_queue(self, group: Group, queue: TopicLeases, event: LeaseEvent | LeasesBegun) -> None:
        more = queue.apply(event, group.config)
        group.open_count += more
        self.open_count += more

    def _light_of(self, group: Group, topic_id: int) -> LightLeases:
        light = group.light.get(topic_id)
        if light is None:
            light = group.light[topic_id] = LightLeases(group.name, topic_id)
        return light

    def _apply_light(self, group: Group, event: LeaseEvent) -> None:
        light = self._light_of(group, event.topic_id)
        key = LightKey(event.topic_id, event.partition, event.name)
        before_bytes = light.epochs_bytes
        changed = light.apply(event, group.config, self.light_offset(group.name, key))
        group.light_epochs_bytes += light.epochs_bytes - before_bytes
        group.open_count += changed.more
        self.open_count += changed.more
        self.light_offsets.put(group.name, *key, changed.low_offset)

    def _made(self, name: str) -> Group:
        config = self.config(name)
        rooms = Rooms(name)
        return Group(name, config, Membership(name, config, self._strategy_or_none_found(name, config, rooms), rooms))

    def _configure(self, group: Group, config: GroupConfig) -> None:
        """Change settings of a group, and of the members it has, when it is broadcasting. Those have its settings,
        whatever an event of their own says."""
        if is_lone(group.name):
            config = self.config(group.name)
        names = [group.name] if is_lone(group.name) else [group.name, *self.lone_groups(group.name)]
        for name in names:
            changed = self._groups[name]
            is_other_strategy = (config.strategy, config.strategy_options) != (
                changed.config.strategy,
                changed.config.strategy_options,
            )
            changed.config = config
            membership = changed.membership
            strategy = self._strategy_or_none_found(name, config, membership.rooms)
            membership.reconfigure(config, strategy, is_other_strategy=is_other_strategy)
            for _, leases in changed.open_leases():
                leases.reconfigure(config)

    def _forget_lone(self, name: str) -> None:
        if is_lone(name):
            others = self._lone[group_of(name)]
            others.remove(name)
            if not others:
                del self._lone[group_of(name)]

    def _strategy_or_none_found(self, name: str, config: GroupConfig, rooms: Rooms) -> Strategy | None:
        """A plug-in that was there when the group was configured may be gone: the group goes on with what it has."""
        try:
            return self.strategy(config, rooms)
        except (ValueError, ImportError, AttributeError) as error:
            log.error("group=%s its strategy cannot be made, assignments stay error=%s", name, error)
            return _Missing(str(config.strategy), str(error))

    def _forget(self, event: Forgotten) -> None:
        self.progress.apply(event)
        group = self._groups.get(event.group)
        if group is None:
            return
        before = group.size_bytes
        for topic_id in list(group.queues) if event.topic_ids is None else event.topic_ids:
            if (queue := group.queues.pop(topic_id, None)) is not None:
                open_count = sum(leases.open_count for leases in queue.open.values())
                group.open_count -= open_count
                self.open_count -= open_count
                group.queue_partition_count -= queue.end
        for topic_id in list(group.light) if event.topic_ids is None else event.topic_ids:
            if (light := group.light.pop(topic_id, None)) is not None:
                open_count = sum(leases.open_count for leases in light.open.values())
                group.open_count -= open_count
                self.open_count -= open_count
                group.light_epochs_bytes -= light.epochs_bytes
        if event.topic_ids is None:
            del self._groups[event.group]
            self._groups_bytes -= before
            self._forget_lone(event.group)
        else:
            self._groups_bytes += group.size_bytes - before


def settings_bytes(settings: Mapping[str, object]) -> int:
    """What settings take, about: several times their JSON."""
    return 5 * len(orjson.dumps(settings)) if settings else 0


def document_bytes(key: str, content: bytes | None) -> int:
    """What a document takes, about; nothing when there is none."""
    return 0 if content is None else DOCUMENT_BYTES + len(key) + len(content)


class _Missing:
    """Stands for a strategy that cannot be made; a membership keeps its assignment when a strategy raises."""

    def __init__(self, name: str, reason: str) -> None:
        self.name = name
        self._reason = reason

    def allocate(self, members: Sequence[str], partitions: Sequence[Partition], current: Assignment) -> Assignment:
        raise GroupError(self._reason)


def _is_any(group: str) -> bool:
    """Any group is meant."""
    return True
