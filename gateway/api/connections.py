"""The connections that are open, for people who look, and to end one."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import count
from typing import Protocol


class OpenConnection(Protocol):
    """One connection of whatever protocol."""

    @property
    def kind(self) -> str:
        """What is spoken on it: http, websocket, kafka."""
        ...

    @property
    def principal(self) -> str | None:
        """Who sent the last request on it; None: it sent no credentials."""
        ...

    @property
    def peer(self) -> str:
        """The address and port it comes from."""
        ...

    def end(self) -> None:
        """End it at once. What was acknowledged stays."""
        ...


class Connections:
    """All of one server, each under a name that no other one gets while the server runs."""

    def __init__(self) -> None:
        self._numbers = count(1)
        self._open: dict[str, tuple[OpenConnection, int]] = {}
        self._names: dict[OpenConnection, str] = {}

    def __len__(self) -> int:
        return len(self._open)

    def opened(self, connection: OpenConnection, now_ms: int) -> None:
        """It begins now, epoch ms."""
        name = f"c{next(self._numbers)}"
        self._open[name] = connection, now_ms
        self._names[connection] = name

    def closed(self, connection: OpenConnection) -> None:
        """It has ended, if it had begun."""
        name = self._names.pop(connection, None)
        if name is not None:
            del self._open[name]

    def all(self) -> Iterator[tuple[str, OpenConnection, int]]:
        """Name, connection and when it began, the oldest first."""
        for name, (connection, since_ms) in self._open.items():
            yield name, connection, since_ms

    def end(self, name: str) -> bool:
        """End a connection; False when there is none of this name (any more)."""
        known = self._open.get(name)
        if known is None:
            return False
        known[0].end()
        return True
