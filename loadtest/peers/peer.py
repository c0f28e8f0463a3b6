"""What a peer is: a server that we start and stop, and a client that does the same work as everybody's."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import AsyncGenerator, Sequence
from contextlib import AbstractAsyncContextManager, AbstractContextManager
from enum import StrEnum
from pathlib import Path
from typing import Protocol

from loadtest.bench.request import Request
from loadtest.peers.servers import Server


class Durability(StrEnum):
    """What an acknowledged send has behind it."""

    SYNCED = "synced"
    """A disk sync that covers it, before the answer."""

    UNSYNCED = "unsynced"
    """The operating system has it: a killed process loses nothing, a power cut may. What most peers do by default."""


class Unavailable(Exception):
    """This peer cannot be had on this machine; the message says why, and what would help."""


class Client(Protocol):
    """One connection, or a few, of the client that the peer's users would take. Values are 8 bytes or more."""

    async def create(self, topic: str) -> None:
        """Make a topic (stream, queue) with one partition; nothing where sending makes it."""

    async def send(self, topic: str, values: Sequence[bytes]) -> None:
        """One batch; acknowledged on return."""

    def read(self, topic: str) -> AsyncGenerator[Sequence[bytes]]:
        """The topic from its start, in whatever pieces it comes, and then what is sent: it never ends by itself."""


class DelayingClient(Client, Protocol):
    """One whose peer can hold records back (`Peer.can_delay`)."""

    async def delay(self, topic: str, values: Sequence[bytes], due_ms: Sequence[int]) -> None:
        """One batch that is to be delivered at those times (epoch ms)."""


class Peer(ABC):
    """One row of the scoreboard."""

    name: str
    about: str
    """The client and the settings, for the report."""

    durabilities: Sequence[Durability] = tuple(Durability)
    is_ours = False
    can_delay = False
    delays_per_s = 4_000
    """How many delayed records a second it is given time to accept: they must all wait before the first is due."""

    parts: Sequence[str] = ("works", "topics", "delayed", "restart")
    """The parts of the plan that it takes part in."""

    @abstractmethod
    def prepare(self, tools: Path) -> str:
        """Get the programs into a directory, unless they are there; the version. Raises Unavailable."""

    @abstractmethod
    def serve(self, tools: Path, data: Path, durability: Durability) -> AbstractContextManager[Server]:
        """A server on an empty or a used data directory, until the block ends; it answers when the block begins."""

    @abstractmethod
    def client(self, endpoint: str) -> AbstractAsyncContextManager[Client]:
        """A client of a server."""

    def single(self, topic: str) -> Request | None:
        """One record of 100 bytes in one HTTP request; None for a peer that speaks no HTTP."""
        return None

    def url(self, endpoint: str) -> str:
        """Where that request goes."""
        return endpoint
