"""What is done with each server, in this order, and how large; and the order of all sessions of a run.

A session is one server on an empty directory and the steps of one part of the plan. The parts:

    works      every work at its ordinary size; in every round, at every durability
    topics     10,000 topics                                 these three are long: once, ours at every durability,
    delayed    a million delayed records                     a peer's at the loosest that it has
    restart    kill -9 with 5 GiB in the log
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from loadtest.peers.peer import Durability, Peer

STEP_TIMEOUT_S = 240.0
RESTART_BYTES = 5 * 2**30
TOPICS_COUNT = 10_000
DELAYED_COUNT = 1_000_000
DELAYED_ACCEPTED_PER_S = 20_000
"""A peer that accepts them more slowly has failed: they must all wait before the first is due."""

DELAYED_SPREAD_MS = 60_000
"""A million records fall due within this: 17,000 a second, so that lateness is not only the speed of the reader."""

PARTS = ("works", "topics", "delayed", "restart")
PART_EXPECTED_S = {"works": 30.0, "topics": 70.0, "delayed": 120.0, "restart": 100.0}
"""How long a session takes, until one of this run has told better."""


@dataclass(frozen=True, slots=True)
class Step:
    """One line of the scoreboard: a work (a function of work.py, or `single` and `restart`) and its size."""

    name: str
    work: str
    options: Mapping[str, float] = field(default_factory=dict)
    topic: str = ""
    """A topic of another step to go on with; its own when empty."""

    timeout_s: float = STEP_TIMEOUT_S


class Session(NamedTuple):
    """One server, one part of the plan."""

    number: int
    peer: str
    durability: Durability
    part: str

    @property
    def stem(self) -> str:
        """What the names of its files begin with."""
        return f"{self.number}-{self.peer.replace(' ', '_')}-{self.durability}-{self.part}"


def steps(part: str, peer: Peer, *, quick: bool) -> Sequence[Step]:
    """The steps of a part that a peer can do at all; none when it has nothing in it."""
    return [step for step in _steps(part, peer, quick=quick) if _suits(step, peer)]


def sessions(peers: Mapping[str, Peer], *, rounds: int, parts: Sequence[str], quick: bool) -> Iterator[Session]:
    """All sessions of a run in their order. Within a round every peer has its turn, A B A B."""
    for number in range(rounds if "works" in parts else 0):
        for name, peer in peers.items():
            for durability in peer.durabilities:
                yield Session(number, name, durability, "works")
    for part in PARTS[1:]:
        for name, peer in peers.items():
            if part not in parts or part not in peer.parts or not steps(part, peer, quick=quick):
                continue
            for durability in peer.durabilities if peer.is_ours else peer.durabilities[-1:]:
                yield Session(0, name, durability, part)


def sizes(*, quick: bool) -> Mapping[str, Mapping[str, float]]:
    """The options of all steps, for the report."""
    every = (step for part in PARTS for step in _steps(part, None, quick=quick))
    return {step.name: dict(step.options) for step in every if step.options}


def _steps(part: str, peer: Peer | None, *, quick: bool) -> Sequence[Step]:
    duration_s = 1.0 if quick else 3.0
    accepted_per_s = Peer.delays_per_s if peer is None else peer.delays_per_s
    match part:
        case "works":
            return (
                Step("single", "single", {"connections": 32, "duration_s": duration_s}),
                Step("batched", "batched", {"duration_s": duration_s}),
                Step("consume", "consume", topic="batched"),
                Step("push_200", "push", {"rate_per_s": 200, "duration_s": duration_s}),
                Step("push_2000", "push", {"rate_per_s": 2_000, "duration_s": duration_s}),
                Step("delayed", "delayed", {"count": 2_000 if quick else 20_000, "accepted_per_s": accepted_per_s}),
                Step("topics_10", "topics", {"count": 10}),
            )
        case "topics":
            return (Step("topics_10000", "topics", {"count": 1_000 if quick else TOPICS_COUNT}),)
        case "delayed":
            count, spread_ms = (20_000, 1_000) if quick else (DELAYED_COUNT, DELAYED_SPREAD_MS)
            options = {"count": count, "spread_ms": spread_ms, "accepted_per_s": DELAYED_ACCEPTED_PER_S}
            return (Step("delayed_million", "delayed", options),)
        case _:
            return (Step("restart", "restart", {"byte_count": 2**26 if quick else RESTART_BYTES}),)


def _suits(step: Step, peer: Peer) -> bool:
    if step.work == "single":
        return peer.single("t") is not None
    return step.work != "delayed" or peer.can_delay
