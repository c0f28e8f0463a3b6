"""All groups of a node as one machine: every event goes to the part it belongs to, and a snapshot holds them all.

A group is there from its first event until it is deleted. What it has in a topic goes with the topic.

    settings      what was configured, by name         Configured
    membership    members and their partitions         see `membership`
    progress      committed offsets, all groups'       see `progress`
    leases        queue mode, a partition each         see `leases`
    documents     what others keep beside a group      DocumentPut

In one partition a group is in queue mode or not: where it has leases, its place is the first record that is not done
(`stored`), and no other offset is committed there.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import assert_never

from gateway.groups.machines.broadcast import group_of, is_lone, lone_group
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
    LeaseMoved,
    LeasesSet,
    MemberJoined,
    MemberLeft,
    OffsetsCommitted,
    PartitionsAssigned,
    PartitionsReleased,
    Rebalanced,
    Rejected,
    Settled,
)
from gateway.groups.machines.leases import PartitionLeases
from gateway.groups.machines.membership import Membership
from gateway.groups.machines.progress import Found, PartitionKey, Progress, Stored
from gateway.groups.machines.strategies.base import Assignment, Partition, Strategy, StrategyContext
from gateway.groups.machines.strategies.registry import StrategyRegistry

log = logging.getLogger(__name__)


@dataclass(slots=True)
class Group:
    """Everything about one group but its committed offsets."""

    name: str
    config: GroupConfig
    membership: Membership
    settings: Mapping[str, object] = field(default_factory=dict)
    leases: dict[PartitionKey, PartitionLeases] = field(default_factory=dict)
    documents: dict[str, bytes] = field(default_factory=dict)

    @property
    def open_count(self) -> int:
        """Records handed out or taken, and not done, in all partitions."""
        return sum(leases.open_count for leases in self.leases.values())


class GroupTable:
    """The groups of one node, by name. Changes through `apply` alone."""

    def __init__(self, strategies: StrategyRegistry, context: StrategyContext | None = None) -> None:
        self._strategies = strategies
        self._context = context or StrategyContext()
        self._groups: dict[str, Group] = {}
        self.progress = Progress()

    # What is

    def names(self) -> list[str]:
        """All groups, sorted; each member of a broadcasting group among them as `group/member`."""
        return sorted(self._groups)

    def groups(self) -> Iterable[Group]:
        """All groups, in no order."""
        return self._groups.values()

    def lone_groups(self, group: str) -> list[str]:
        """The members of a broadcasting group, present or not, as groups of their own."""
        first = lone_group(group, "")
        return sorted(name for name in self._groups if name.startswith(first))

    def __contains__(self, group: str) -> bool:
        return group in self._groups

    def __len__(self) -> int:
        """All groups; each member of a broadcasting group, present or not, counts as one."""
        return len(self._groups)

    def get(self, group: str) -> Group:
        """Raises UnknownGroup."""
        found = self._groups.get(group)
        if found is None:
            raise UnknownGroup(f"nobody has consumed in group {group}")
        return found

    def get_or_new(self, group: str) -> Group:
        """The group, or an empty one, which is not in the table before its first event is applied."""
        found = self._groups.get(group)
        return self._made(group) if found is None else found

    def config(self, group: str) -> GroupConfig:
        """A group's settings, the defaults when there is none."""
        found = self._groups.get(group_of(group))
        return GroupConfig() if found is None else found.config

    def leases(self, group: str, key: PartitionKey) -> PartitionLeases | None:
        """A group's leases in a partition; None where it is not in queue mode."""
        found = self._groups.get(group)
        return None if found is None else found.leases.get(key)

    def stored(self, group: str, key: PartitionKey) -> Stored:
        """How far a group is in a partition, with all three answers, in either mode."""
        leases = self.leases(group, key)
        return self.progress.lookup(group, key) if leases is None else Found(leases.low_offset, "", 0)

    def topic_ids(self, group: str) -> set[int]:
        """Topics in which a group has offsets or leases."""
        found = self._groups.get(group)
        of_leases = () if found is None else found.leases
        return self.progress.topic_ids(group) | {key.topic_id for key in of_leases}

    # What shall be

    def strategy(self, config: GroupConfig) -> Strategy | None:
        """The strategy of a group with these settings. Raises ValueError when there is no such one, or its options are
        not what it takes."""
        if config.strategy is None:
            return None
        return self._strategies.make(config.strategy, replace(self._context, options=config.strategy_options))

    def decide_prune(self, exists: Callable[[int], bool]) -> list[Forgotten]:
        """Forget what groups have in topics that are gone; topic ids are not reused, so it can never matter again."""
        events: list[Forgotten] = []
        for name in self.names():
            gone = sorted(topic_id for topic_id in self.topic_ids(name) if not exists(topic_id))
            if gone:
                events.append(Forgotten(name, tuple(gone)))
        return events

    def snapshot(self) -> Iterator[Event]:
        """Events that lead an empty table to this state (but for times of members, which begin anew)."""
        for name in self.names():
            group = self._groups[name]
            yield Configured(name, group.settings)
            for key, content in sorted(group.documents.items()):
                yield DocumentPut(name, key, content)
            yield from group.membership.snapshot()
            for leases in group.leases.values():
                yield leases.snapshot()
        yield from self.progress.snapshot()

    # What has been decided and written

    def apply(self, event: Event, now_ms: int) -> None:
        """Change the table; the only way it changes, live or at start. `now_ms` is monotonic time."""
        if isinstance(event, Barrier):
            return
        if isinstance(event, Forgotten):
            self._forget(event)
            return
        group = self._groups.get(event.group)
        if group is None:
            group = self._groups[event.group] = self._made(event.group)
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
            case Leased() | LeaseMoved() | Rejected() | Settled() | LeasesSet():
                key = PartitionKey(event.topic_id, event.partition)
                leases = group.leases.get(key)
                if leases is None:
                    leases = group.leases[key] = PartitionLeases(event.group, *key, group.config)
                leases.apply(event)
            case Configured():
                group.settings = event.settings
                self._configure(group, with_changes(GroupConfig(), event.settings))
            case DocumentPut():
                if event.content is None:
                    group.documents.pop(event.key, None)
                else:
                    group.documents[event.key] = event.content
            case _:
                assert_never(event)

    # How it is worked out

    def _made(self, name: str) -> Group:
        config = self.config(name)
        return Group(name, config, Membership(name, config, self._strategy_or_none_found(name, config)))

    def _configure(self, group: Group, config: GroupConfig) -> None:
        """Change settings of a group, and of the members it has, when it is broadcasting."""
        names = [group.name] if is_lone(group.name) else [group.name, *self.lone_groups(group.name)]
        for name in names:
            changed = self._groups[name]
            is_other_strategy = (config.strategy, config.strategy_options) != (
                changed.config.strategy,
                changed.config.strategy_options,
            )
            changed.config = config
            changed.membership.reconfigure(
                config, self._strategy_or_none_found(name, config), is_other_strategy=is_other_strategy
            )
            for leases in changed.leases.values():
                leases.reconfigure(config)

    def _strategy_or_none_found(self, name: str, config: GroupConfig) -> Strategy | None:
        """A plug-in that was there when the group was configured may be gone: the group goes on with what it has."""
        try:
            return self.strategy(config)
        except (ValueError, ImportError, AttributeError) as error:
            log.error("group=%s its strategy cannot be made, assignments stay error=%s", name, error)
            return _Missing(str(config.strategy), str(error))

    def _forget(self, event: Forgotten) -> None:
        self.progress.apply(event)
        group = self._groups.get(event.group)
        if group is None:
            return
        if event.topic_ids is None:
            del self._groups[event.group]
            return
        gone = set(event.topic_ids)
        group.leases = {key: leases for key, leases in group.leases.items() if key.topic_id not in gone}


class _Missing:
    """Stands for a strategy that cannot be made; a membership keeps its assignment when a strategy raises."""

    def __init__(self, name: str, reason: str) -> None:
        self.name = name
        self._reason = reason

    def allocate(self, members: Sequence[str], partitions: Sequence[Partition], current: Assignment) -> Assignment:
        raise GroupError(self._reason)
