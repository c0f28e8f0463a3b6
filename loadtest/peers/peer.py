"""What a peer is: a server that is started and stopped here, and the ways in which load reaches it.

A *work* is one kind of load (plan.py). A *way* is one client doing that work: the peer's own benchmark tool, the
Python client its users take, or prebuilt bytes replayed. A row of the scoreboard is one way of one peer at one level
of durability. Works are of one kind each, so rows of different kinds never meet in a table.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, AbstractContextManager
from enum import StrEnum
from pathlib import Path
from typing import NamedTuple, Protocol

from loadtest.peers.servers import Server


class Durability(StrEnum):
    """What an acknowledged send has behind it. Only rows of the same durability are compared."""

    WRITTEN = "written"
    """The operating system has it: a killed process loses nothing, a power failure may."""

    SYNCED = "synced"
    """A disk sync that covers it, before the answer."""


class Level(NamedTuple):
    """One setting of durability that a peer has."""

    name: str
    """Unique within the peer; shown where a peer has several levels of one durability."""

    durability: Durability
    about: str
    """The settings, and what an answer means with them."""

    workloads: Sequence[str] = ()
    """The only workloads that are measured at this level; all that the peer does when empty."""


Options = Mapping[str, float]
"""What a step asks for, by name (plan.py)."""

Numbers = Mapping[str, float]
"""What a step came to. Names that have a meaning for all workloads; a way may add others:

    records               records handled within the window
    records_per_s         the rate within the window
    took_s                the window, s
    began_s, ended_s      the window in `time.monotonic()`, which all processes share: CPU is taken between the two.
                          Without them it is the whole life of the client process, start-up included
    stored                records that the topic holds afterwards, warm-up included (`batched`); `records` if missing
    p50_ms, p99_ms, max_ms, accepted_per_s, made_per_s, mb_per_s
"""


class Way(NamedTuple):
    """One client doing a work. `run` takes the server's endpoint, a topic and the options of the step, and runs in a
    client process of its own (drive.py), child processes included. It raises WorkFailed, or what the client raises."""

    client: str
    run: Callable[[str, str, Options], Awaitable[Numbers]]


class Unavailable(Exception):
    """This peer cannot be had on this machine; the message says why, and what would help."""


class WorkFailed(Exception):
    """The peer did not do the work, or did it wrongly."""


class Client(Protocol):
    """The Python client that the peer's users would take: one connection, or a few. Values are 16 bytes or more."""

    async def create(self, topic: str) -> None:
        """Make a topic (stream, queue) with one partition; nothing where sending makes it."""

    async def send(self, topic: str, values: Sequence[bytes]) -> None:
        """One batch; acknowledged on return."""

    def read(self, topic: str) -> AsyncGenerator[Sequence[bytes]]:
        """Scan the topic from its start, then follow what is sent. Nothing is acknowledged. Never ends by itself."""

    def receive(self, topic: str) -> AsyncGenerator[Sequence[bytes]]:
        """Consume the topic as a work queue: what is yielded has been acknowledged record by record, and the peer has
        confirmed it as far as its protocol confirms at all. Never ends by itself."""

    async def drop(self, topic: str) -> None:
        """Delete the topic with what it holds, so that one step does not burden the next; nothing where that is not
        possible."""


class DelayingClient(Client, Protocol):
    """One whose peer can hold records back."""

    async def delay(self, topic: str, values: Sequence[bytes], due_ms: Sequence[int]) -> None:
        """One batch that is to be delivered at those times (epoch ms)."""


class Peer(ABC):
    """A server of the scoreboard."""

    name: str
    about: str
    """Version-independent settings, for the report."""

    levels: Sequence[Level]
    is_ours = False
    is_limit = False
    """A physical limit and not a queue (a bare HTTP handler): shown beside the others, never a ratio of ours."""

    warm_up_s = 1.0
    """How long a new server is loaded before the first round: until its speed no longer rises (JVMs: 20 s)."""

    delays_per_s = 20_000
    """How many delayed records a second it is given time to accept: they must all wait before the first is due."""

    @abstractmethod
    def prepare(self, tools: Path) -> str:
        """Get the programs into a directory, unless they are there; the version. Raises Unavailable."""

    @abstractmethod
    def serve(self, tools: Path, data: Path, level: Level) -> AbstractContextManager[Server]:
        """A server on an empty or a used data directory, until the block ends; it answers when the block begins."""

    @abstractmethod
    def ways(self, work: str) -> Sequence[Way]:
        """The ways in which this peer does a work, each with a `client` name of its own; empty when it cannot.

        A way removes the topics that it made, after its window. Those of `batched` stay, as `scan` reads them: the
        topic of the same client name or, when no client of that name sent one, that of the peer's first client. They
        are removed by the work `drop` (`work.drop`) at the end of the round, where a peer has a way of it.
        """


def by_python_client(
    connect: Callable[[str], AbstractAsyncContextManager[Client]],
    work: Callable[..., Awaitable[Numbers]],
    client: str,
) -> Way:
    """A way of the Python client: connect, do the work (a function of work.py), disconnect."""

    async def run(endpoint: str, topic: str, options: Options) -> Numbers:
        async with connect(endpoint) as connection:
            return await work(connection, topic, **options)

    return Way(client, run)
