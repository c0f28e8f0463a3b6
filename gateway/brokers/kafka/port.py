"""What the broker asks of a Kafka cluster: the port to `links.py`, and to the fake of the tests."""

from __future__ import annotations

import asyncio
from typing import NamedTuple, Protocol

from gateway.brokers.kafka.codes import Outcome
from store.types import Buffer


class Unreached(Exception):
    """The cluster, or the leader of a partition, does not answer now. It is not known whether it was done."""


class Refused(Exception):
    """The cluster has said no, with an error code."""

    def __init__(self, code: int, what: str) -> None:
        super().__init__(f"{what}: Kafka's error {code}")
        self.code = code


class Rejected(Exception):
    """The cluster is reached, and does not let us in: the text says why."""


class TopicDiffers(Exception):
    """A topic of the cluster is not as a partition of mq needs it; the text says in what."""


class Fetched(NamedTuple):
    """Whole batches behind each other, the last perhaps cut short, in memory that is the caller's; the first offset
    that the log has, and the one behind the last that may be read."""

    batches: memoryview
    start: int
    end: int


class TopicPlan(NamedTuple):
    """A topic that partitions of mq lie in. `is_kept`: it has exactly these partitions, and Kafka may expire nothing of
    it. `older_than`: topics that are made only when it is there; if one is, and it is not, it was deleted."""

    name: str
    partitions: int
    retention_ms: int
    is_kept: bool = False
    older_than: tuple[str, ...] = ()


class Lane(Protocol):
    """A connection to the leader of a partition. What goes over one arrives in the order in which it was sent, and
    nothing behind what does not; when it is lost, so is all that has no answer, and another one is asked for."""

    def send(self, *parts: Buffer) -> asyncio.Future[Outcome]:
        """Send a batch, which is these parts, at once, to all replicas in sync (acks=all); what became of it. Cancel it
        to hear no more. The parts are not copied: nobody changes them, whatever becomes of the batch."""
        ...


class Kafka(Protocol):
    """One Kafka cluster. Every method but `lane` and `produce` raises Unreached or Refused."""

    @property
    def trouble(self) -> str | None:
        """Why it was not reached the last time; None: it was."""
        ...

    async def check(self) -> None:
        """Look whether the cluster lets us in; one that is not reached is no reason to say no. Raises Rejected."""
        ...

    async def lane(self, topic: str, partition: int) -> Lane | None:
        """The way to the leader of a partition now; None: none is reached."""
        ...

    async def produce(self, topic: str, partition: int, batch: Buffer) -> Outcome:
        """Send one batch over a lane; what became of it."""
        ...

    async def fetch(self, topic: str, partition: int, offset: int, *, max_bytes: int, wait_ms: int) -> Fetched:
        """Batches from the one that holds an offset on, up to `max_bytes` and at least one; waits for it, but not
        longer than `wait_ms`."""
        ...

    async def bounds(self, topic: str, partition: int) -> tuple[int, int]:
        """The first offset of the log, and the one behind the last that may be read."""
        ...

    async def offset_at(self, topic: str, partition: int, time_ms: int) -> int | None:
        """The first offset that was appended at a time or later; None: there is none."""
        ...

    async def make_topic(self, plan: TopicPlan) -> None:
        """Have a topic; one that is there is checked. Raises TopicDiffers."""
        ...

    async def new_producer(self) -> int:
        """The id of a producer that no other one has."""
        ...

    async def delete_before(self, topic: str, partition: int, offset: int) -> None:
        """Give up the records before an offset."""
        ...

    async def close(self) -> None:
        """Leave the cluster."""
        ...
