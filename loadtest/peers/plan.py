"""What is measured, how large, and in which order.

Parts of a run:

    workloads      all ordinary workloads, in every round, with all servers of a durability up at once (fleet.py)
    topics     10,000 topics                                 these three are long: once, each with a server of its own,
    delayed    a million delayed records                     ours at every level, a peer's at the loosest that it has
    restart    kill -9 with 5 GiB in the log

Within a round each work is done by one row after the other, so rows that are compared are seconds apart. The row that
begins is another one in every round.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from loadtest.peers.peer import Durability, Level, Peer

STEP_TIMEOUT_S = 120.0
LONG_TIMEOUT_S = 600.0
OVERHEAD_S = 5.0
"""How long a step takes beside its window, until one of this run has told better."""

FLEET_START_S = 120.0
PARTS = ("workloads", "topics", "delayed", "restart")
QUICK_PARTS = PARTS[:-1]
"""A quick run has no log large enough for a restart to say anything, and starting all peers again takes two minutes."""

RESTART_BYTES = 5 * 2**30
TOPICS_COUNT = 10_000
DELAYED_COUNT = 1_000_000
DELAYED_ACCEPTED_PER_S = 20_000
"""A peer that accepts a million more slowly has failed: they must all wait before the first is due."""

DELAYED_SPREAD_MS = 60_000
"""A million records fall due within this: 17,000 a second, so that lateness is not only the speed of the reader."""

PUSH_RATE_PER_S = 2_000
"""No server and no client here is busy with it: how long one record takes, not how many there can be."""

ONLY_READ = ("scan", "fetch")
"""Works that write nothing inside their window: measured in one class of durability, the one that is written."""

KEPT = {"scan": "batched"}
"""Works that go on with what another one has left: its topic."""


@dataclass(frozen=True, slots=True)
class Step:
    """One table of the scoreboard: a work and its size."""

    name: str
    work: str
    options: Mapping[str, float] = field(default_factory=dict)
    timeout_s: float = STEP_TIMEOUT_S
    is_paced: bool = False
    """Sent on a timetable: it cannot be faster."""

    @property
    def expected_s(self) -> float:
        """How long it may take, guessed."""
        return sum(self.options.get(name, 0.0) for name in ("duration_s", "warm_s", "fill_s")) + OVERHEAD_S


class Row(NamedTuple):
    """One way of one peer at one level."""

    peer: str
    level: Level
    client: str


class Turn(NamedTuple):
    """A row's turn at a step, in one round. What it comes to is one file (runs.py)."""

    number: int
    step: Step
    row: Row

    @property
    def stem(self) -> str:
        """The name of its file."""
        parts = (self.row.level.durability, str(self.number), self.step.name)
        return "-".join(_word(part) for part in (*parts, self.row.peer, self.row.level.name, self.row.client))


def workloads(*, quick: bool) -> Sequence[Step]:
    """The steps of the part `workloads`, in their order."""
    time = {"duration_s": 1.0, "warm_s": 0.2} if quick else {"duration_s": 5.0, "warm_s": 0.5}
    queue = {"duration_s": time["duration_s"], "fill_s": 1.0 if quick else 6.0, "count": 250_000}
    delayed = {"count": 2_500, "spread_ms": 1_000} if quick else {"count": 20_000, "spread_ms": 5_000}
    return (
        Step("single", "single", {"connections": 32, **time}),
        Step("replay", "replay", {"connections": 4, **time}),
        Step("fetch", "fetch", time),
        Step("batched", "batched", time),
        Step("scan", "scan", time),
        Step("receive", "receive", queue),
        Step("singles", "singles", time),
        Step("push", "push", {"rate_per_s": PUSH_RATE_PER_S, **time}, is_paced=True),
        Step("delayed", "delayed", delayed, is_paced=True),
    )


def long_workloads(part: str, *, quick: bool) -> Step:
    """The one step of a long part."""
    match part:
        case "topics":
            return Step("topics_10000", "topics", {"count": 1_000 if quick else TOPICS_COUNT}, LONG_TIMEOUT_S)
        case "delayed":
            count, spread_ms = (20_000, 1_000) if quick else (DELAYED_COUNT, DELAYED_SPREAD_MS)
            options = {"count": count, "spread_ms": spread_ms, "accepted_per_s": DELAYED_ACCEPTED_PER_S}
            return Step("delayed_million", "delayed", options, LONG_TIMEOUT_S, is_paced=True)
        case _:
            return Step("restart", "fill", {"byte_count": 2**26 if quick else RESTART_BYTES}, LONG_TIMEOUT_S)


def turns(peers: Mapping[str, Peer], durability: Durability, *, rounds: int, quick: bool) -> Iterator[Turn]:
    """The turns of a fleet, in their order."""
    steps = [step for step in workloads(quick=quick) if durability is Durability.WRITTEN or step.work not in ONLY_READ]
    for number in range(rounds):
        for step in steps:
            rows = rows_of(peers, step.work, durability)
            first = number % len(rows) if rows else 0
            yield from (Turn(number, step, row) for row in rows[first:] + rows[:first])


def long_turns(peers: Mapping[str, Peer], parts: Sequence[str], *, quick: bool) -> Iterator[Turn]:
    """Once each: ours at every level, a peer's at its loosest; with the first client that can."""
    for part in PARTS[1:]:
        if part not in parts:
            continue
        step = long_workloads(part, quick=quick)
        for name, peer in peers.items():
            ways = peer.ways(step.work)
            for level in peer.levels if peer.is_ours else _loosest(peer):
                if ways:
                    yield Turn(0, step, Row(name, level, ways[0].client))


def rows_of(peers: Mapping[str, Peer], work: str, durability: Durability) -> list[Row]:
    """All rows of a work at a durability."""
    return [
        Row(name, level, way.client)
        for name, peer in peers.items()
        for level in peer.levels
        if level.durability is durability and work in (level.workloads or (work,))
        for way in peer.ways(work)
    ]


def options_of(step: Step, peer: Peer) -> dict[str, float]:
    """The options of a step for a peer."""
    if step.work == "delayed" and "accepted_per_s" not in step.options:
        return {**step.options, "accepted_per_s": peer.delays_per_s}
    return dict(step.options)


def sizes(parts: Sequence[str], *, quick: bool) -> Mapping[str, Mapping[str, float]]:
    """The options of all steps, for the report."""
    steps = list(workloads(quick=quick)) if "workloads" in parts else []
    steps += [long_workloads(part, quick=quick) for part in PARTS[1:] if part in parts]
    return {step.name: dict(step.options) for step in steps}


def _loosest(peer: Peer) -> Sequence[Level]:
    """The last of those that are written, but for levels that are there for one work alone."""
    levels = [level for level in peer.levels if not level.workloads]
    written = [level for level in levels if level.durability is Durability.WRITTEN]
    return (written or levels)[-1:]


def _word(text: str) -> str:
    return re.sub(r"[^A-Za-z0-9]+", "_", text).strip("_")
