"""What is done with each server, in this order, and how large."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from loadtest.peers.peer import Peer

_OF_BATCHED = {"consume": "batched"}
"""Steps that go on with the topic of another."""


@dataclass(frozen=True, slots=True)
class Step:
    """One line of the scoreboard: a work and its size."""

    name: str
    options: Mapping[str, float]

    @property
    def work(self) -> str:
        """The function of work.py."""
        return self.name.partition("_")[0] if self.name.startswith(("push", "topics")) else self.name

    @property
    def topic(self) -> str:
        """A topic of its own, or the one it goes on with."""
        return _OF_BATCHED.get(self.name, self.name)

    def suits(self, peer: Peer) -> bool:
        """Whether this peer can do it at all."""
        if self.name == "single":
            return peer.single("t") is not None
        if self.name == "delayed":
            return peer.can_delay
        if self.name == "topics_many":
            return self.options["count"] <= peer.topics_max
        return True


def plan(*, quick: bool) -> Sequence[Step]:
    """Sizes of the real run, or small ones."""
    duration_s = 1.0 if quick else 4.0
    return (
        Step("single", {"connections": 32, "duration_s": duration_s}),
        Step("batched", {"duration_s": duration_s}),
        Step("consume", {}),
        Step("push_200", {"rate_per_s": 200, "duration_s": duration_s}),
        Step("push_2000", {"rate_per_s": 2_000, "duration_s": duration_s}),
        Step("delayed", {"count": 2_000 if quick else 20_000}),
        Step("topics_few", {"count": 10}),
        Step("topics_many", {"count": 100 if quick else 1_000}),
    )
