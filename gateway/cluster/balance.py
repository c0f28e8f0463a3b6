"""Which partitions to move so that a broker has none, or its share of them. Pure.

No plan is kept: it is made anew of where partitions are. So it is carried out in parts, and a node that was stopped
half way, or met another one who moved partitions, asks again.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import NamedTuple

Partition = tuple[str, int]
"""A topic and a number."""


class NoTaker(Exception):
    """No broker can take the partitions now."""


class PlannedMove(NamedTuple):
    """A partition, where it is and where it is to be."""

    topic: str
    partition: int
    source: str
    to: str


class Plan(NamedTuple):
    """The first moves of a plan, and how many it has in all."""

    moves: list[PlannedMove]
    total: int


def plan_drain(on: Mapping[str, Sequence[Partition]], name: str, takers: Collection[str], limit: int) -> Plan:
    """Have no partition on a broker: each goes to the taker that then has the fewest. `on`: the partitions on each
    broker. Raises NoTaker when there is no other taker."""
    counts = {taker: len(on.get(taker, ())) for taker in sorted(takers) if taker != name}
    leaving = on.get(name, ())
    if leaving and not counts:
        raise NoTaker(f"no other broker can take the partitions of {name}")
    moves = []
    for topic, partition in leaving[:limit]:
        to = min(counts, key=counts.__getitem__)
        counts[to] += 1
        moves.append(PlannedMove(topic, partition, name, to))
    return Plan(moves, len(leaving))


def plan_share(on: Mapping[str, Sequence[Partition]], name: str, takers: Collection[str], limit: int) -> Plan:
    """Have as many partitions on a broker as each taker would have of all: those of the fullest takers go to it."""
    left = {taker: list(on.get(taker, ())) for taker in takers}
    counts = {broker: len(partitions) for broker, partitions in on.items()}
    moves: list[PlannedMove] = []
    total = 0
    while (source := fullest(counts, name, takers)) is not None:
        topic, partition = left[source].pop()
        counts[source] -= 1
        counts[name] = counts.get(name, 0) + 1
        total += 1
        if len(moves) < limit:
            moves.append(PlannedMove(topic, partition, source, name))
    return Plan(moves, total)


def fullest(counts: Mapping[str, int], name: str, takers: Collection[str]) -> str | None:
    """The taker of which a broker takes the next one, so that it has its share: all, by the takers and itself, rounded
    down. None: it has it, or no taker has more than that."""
    others = sorted({*takers} - {name})
    share = sum(counts.values()) // (len(others) + 1)
    source = max(others, key=lambda taker: counts.get(taker, 0), default=None)
    if source is None or counts.get(name, 0) >= share or counts.get(source, 0) <= share:
        return None
    return source
