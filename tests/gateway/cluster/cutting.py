"""A relay in front of an address that can be cut in one direction: what is sent that way is held, and arrives late.

As a packet filter that drops one direction does it (TCP sends again what was dropped, so it comes after the cut): an
answer is lost though the request was carried out, or a request is carried out long after its sender gave up. Needs no
rights over the machine's network.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from enum import Enum
from types import TracebackType
from typing import Self
from urllib.parse import urlsplit

PIECE_BYTES = 65536


class Direction(Enum):
    """What is held: what clients send, or what they are answered."""

    REQUESTS = "requests"
    ANSWERS = "answers"


class Relay:
    """Relays to `url` while the block runs; clients use the relay's own `url`. Connections may be half way cut."""

    def __init__(self, url: str) -> None:
        self._target = urlsplit(url)
        self._open = {direction: asyncio.Event() for direction in Direction}
        self._server: asyncio.Server | None = None
        self._connections: set[asyncio.Task[None]] = set()
        self.held_count = 0
        """Pieces that had to wait for the end of a cut: a cut that holds nothing tests nothing."""
        self.url = ""

    async def __aenter__(self) -> Self:
        for event in self._open.values():
            event.set()
        self._server = await asyncio.start_server(self._accept, "127.0.0.1", 0)
        port = self._server.sockets[0].getsockname()[1]
        self.url = f"{self._target.scheme}://localhost:{port}"
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._server is not None
        self._server.close()
        for task in self._connections:
            task.cancel()
        await asyncio.gather(*self._connections, return_exceptions=True)

    def cut(self, direction: Direction) -> None:
        """Hold what goes in a direction, until `mend`."""
        self._open[direction].clear()

    def mend(self) -> None:
        """Let everything go on, first what was held."""
        for event in self._open.values():
            event.set()

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._connections.add(task)
        try:
            there, back = await asyncio.open_connection(self._target.hostname, self._target.port)
        except OSError:
            writer.close()
        else:
            ways = [
                asyncio.create_task(self._pass_on(reader, back, Direction.REQUESTS)),
                asyncio.create_task(self._pass_on(there, writer, Direction.ANSWERS)),
            ]
            try:
                await asyncio.gather(*ways)
            finally:
                for way in ways:
                    way.cancel()
                for end in (writer, back):
                    end.close()
        finally:
            self._connections.discard(task)

    async def _pass_on(self, source: asyncio.StreamReader, to: asyncio.StreamWriter, direction: Direction) -> None:
        """Until the source ends: its end is passed on too, in its turn."""
        with suppress(OSError):
            while piece := await source.read(PIECE_BYTES):
                self.held_count += not self._open[direction].is_set()
                await self._open[direction].wait()
                to.write(piece)
                await to.drain()
            await self._open[direction].wait()
        with suppress(OSError, RuntimeError):
            to.close()
