"""A body that lies in several buffers, such as the batches of a read, sent without joining them.

aiohttp joins a body of bytes with its headers, so batches that are joined first are copied twice: at 8 MiB that is a
third of what a pull costs the server.
"""

from __future__ import annotations

from collections.abc import Sequence

from aiohttp.abc import AbstractStreamWriter
from aiohttp.payload import Payload

from store.limits import KiB
from store.types import Buffer

JOINED_BYTES_MAX = 64 * KiB
"""Bodies up to this size are joined: one small copy is cheaper than several buffers."""


class BuffersBody(Payload):
    """Buffers that do not change any more, sent one after another."""

    _value: Sequence[Buffer]

    def __init__(self, buffers: Sequence[Buffer]) -> None:
        super().__init__(buffers)
        self._size = sum(map(len, buffers))

    def __len__(self) -> int:
        return self._size or 0

    def decode(self, encoding: str = "utf-8", errors: str = "strict") -> str:
        """The body as text, for logs."""
        return self.joined().decode(encoding, errors)

    @property
    def buffers(self) -> Sequence[Buffer]:
        """What it lies in."""
        return self._value

    def joined(self) -> bytes:
        """The body in one piece: a copy."""
        return b"".join(self._value)

    async def write(self, writer: AbstractStreamWriter) -> None:
        """Hand all buffers to the connection, then wait until it has taken them. Only the connection has them then: an
        error of the wait refers to itself, so what this frame has would stay until the collector looks."""
        writer.send_headers()
        buffers, self._value = iter(self._value), ()
        for buffer in buffers:
            await writer.write(buffer, drain=False)  # type: ignore[call-arg]  # the abstract class lacks `drain`
        buffer = b""
        await writer.drain()


def body_of(buffers: Sequence[Buffer]) -> bytes | BuffersBody:
    """The buffers as a body for `web.Response`."""
    size = sum(map(len, buffers))
    return b"".join(buffers) if size <= JOINED_BYTES_MAX else BuffersBody(buffers)
