"""Peers that need no programs: their servers sleep, and their clients are small programs."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from loadtest.peers.peer import Durability, Level, Numbers, Options, Peer, Way
from loadtest.peers.servers import Server, running

SYNCED = Level("always", Durability.SYNCED, "sleeps soundly")
WRITTEN = Level("sometimes", Durability.WRITTEN, "dozes")


async def _never(endpoint: str, topic: str, options: Options) -> Numbers:
    raise NotImplementedError  # client processes are replaced in the tests that use these peers


class Sleeper(Peer):
    """A server that does nothing; `clients` by work."""

    about = "sleep"
    levels = (SYNCED, WRITTEN)

    def __init__(self, name: str, clients: dict[str, Sequence[str]], command: Sequence[str] = ("sleep", "60")) -> None:
        self.name = name
        self.started: list[Server] = []
        self._clients = clients
        self._command = command

    def prepare(self, tools: Path) -> str:
        return "1"

    @contextmanager
    def serve(self, tools: Path, data: Path, level: Level) -> Iterator[Server]:
        with running(f"{self.name}:{level.name}", [self._command], data, is_ready=lambda _: True) as server:
            self.started.append(server)
            server.check()
            yield server

    def ways(self, work: str) -> Sequence[Way]:
        return [Way(client, _never) for client in self._clients.get(work, ())]


def saying(text: str, *, after_s: float = 0.0, exit_code: int = 0) -> list[str]:
    """A client process that prints a line and ends."""
    return [sys.executable, "-c", f"import sys, time\ntime.sleep({after_s})\nprint({text!r})\nsys.exit({exit_code})"]
