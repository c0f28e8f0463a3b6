"""What an allocation strategy is: a pure function from members and partitions to an assignment.

    members      distinct, sorted; all of them subscribe to all of the partitions
    partitions   distinct, sorted by topic, topic id, number; several topics may be among them
    current      who holds what now (or is about to); strategies without memory ignore it
    assignment   member → its partitions; a member left out has none

A strategy is deterministic: equal arguments give an equal assignment, and an assignment given back as `current` comes
out unchanged. Otherwise every periodic check would move partitions. `allocate` here is how a strategy is called: it
puts the arguments in order and refuses a result that gives a partition to two members.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from typing import NamedTuple, Protocol

log = logging.getLogger(__name__)

_NAMED_MAX = 10


class Partition(NamedTuple):
    """One partition of one topic. A topic that is deleted and created again has a new id, so these differ."""

    topic: str
    topic_id: int
    partition: int


Assignment = Mapping[str, Sequence[Partition]]

BrokerOf = Callable[[Partition], str]
"""The name of the broker a partition lies on."""

RoomOf = Callable[[str], str]
"""The machine room of a broker, by its name, or of a member, by its id; empty when it has none."""


class IllegalAssignment(ValueError):
    """A strategy, or a member that computed an assignment, gave a partition away twice, or to a member that may not
    have it."""


class Strategy(Protocol):
    """One way to share partitions among members. See the module's docstring for the terms."""

    @property
    def name(self) -> str:
        """What a group is configured by."""
        ...

    def allocate(self, members: Sequence[str], partitions: Sequence[Partition], current: Assignment) -> Assignment:
        """Every partition to one member; `current` is who has what now. Members and partitions come sorted."""
        ...


def room_of_name(name: str) -> str:
    """The room in a name of the form `room@name`; empty when it has none."""
    room, at, _ = name.partition("@")
    return room if at else ""


class Rooms:
    """The machine rooms of the members of one group, and what its strategy had to warn of the last time."""

    def __init__(self, group: str = "") -> None:
        self._group = group
        self._said: Mapping[str, str] = {}
        self._found: list[str] = []
        self.warnings: tuple[str, ...] = ()
        """For people: why members have nothing, or what lies in other rooms."""

    def of_member(self, member: str) -> str:
        """The room that a member has said; else what stands before the @ of its id."""
        return self._said.get(member) or room_of_name(member)

    def warn(self, text: str) -> None:
        """Have something to say about the assignment that is made."""
        self._found.append(text)

    def begin(self, said: Mapping[str, str]) -> None:
        """An assignment is made anew, for members that have said these rooms."""
        self._said = said
        self._found.clear()

    def end(self) -> None:
        """It is made: what was warned of stays until the next one, and the log has what is new."""
        for text in sorted({*self._found}.difference(self.warnings)):
            log.warning("group=%s %s", self._group, text)
        self.warnings = tuple(sorted({*self._found}))


def no_broker(_partition: Partition) -> str:
    """For one node: all partitions lie on one broker without a name."""
    return ""


@dataclass(frozen=True, slots=True, kw_only=True)
class StrategyContext:
    """What a strategy may know beyond its arguments, given once, when it is made."""

    broker_of: BrokerOf = no_broker
    room_of_broker: RoomOf = room_of_name
    room_of_member: RoomOf = room_of_name
    warn: Callable[[str], None] = log.warning
    """Says what is odd about the assignment that is being made: the log has it, and whoever looks at the group."""

    options: Mapping[str, object] = field(default_factory=dict)
    """The group's settings for the strategy, as in its JSON."""


Factory = Callable[[StrategyContext], Strategy]
"""What a plug-in offers. Raises ValueError when the options are not what the strategy needs."""


def allocate(
    strategy: Strategy, members: Iterable[str], partitions: Iterable[Partition], current: Assignment
) -> dict[str, tuple[Partition, ...]]:
    """Ask a strategy; members without partitions are in the answer too. Raises IllegalAssignment, or what it raises."""
    sorted_members, sorted_partitions = sorted(set(members)), sorted(set(partitions))
    if not sorted_members or not sorted_partitions:
        return dict.fromkeys(sorted_members, ())
    given = strategy.allocate(sorted_members, sorted_partitions, current)
    check(given, sorted_members, sorted_partitions)
    return {member: tuple(sorted(given.get(member, ()))) for member in sorted_members}


def check(assignment: Assignment, members: Iterable[str], partitions: Iterable[Partition]) -> None:
    """Raises IllegalAssignment unless each partition given away is a known one, given once, to one of `members`."""
    known_members, free = set(members), set(partitions)
    for member, given in assignment.items():
        if member not in known_members:
            raise IllegalAssignment(f"{member} is not a member")
        for partition in given:
            if partition not in free:
                raise IllegalAssignment(f"{partition} is given to {member}, but it is unknown or given away already")
            free.remove(partition)


def named(names: Iterable[str]) -> str:
    """Some of these names, for a line of the log."""
    return ",".join(sorted({name or "(none)" for name in names})[:_NAMED_MAX])


def by_topic(partitions: Sequence[Partition]) -> list[list[Partition]]:
    """Sorted partitions cut into topics: the strategies of the original share out one topic at a time."""
    return [list(group) for _, group in groupby(partitions, key=lambda partition: partition[:2])]
