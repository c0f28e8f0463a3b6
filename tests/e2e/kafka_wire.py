"""One connection that speaks Kafka's protocol by hand, for requests that no client at hand sends."""

from __future__ import annotations

import asyncio
import struct
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from gateway.surfaces.kafka.apis import APIS
from gateway.surfaces.kafka.schema import Message, decode, encode


class Wire:
    """Requests and their responses, one at a time."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader, self._writer = reader, writer

    async def ask(self, key: int, version: int, request: Message) -> Any:
        """The response to one request."""
        api = APIS[key]
        answer = await self.exchange(key, version, bytes(encode(f"{api.name}Request", version, request)))
        return decode(f"{api.name}Response", version, answer, 5 if version >= api.flexible else 4)

    async def exchange(self, key: int, version: int, body: bytes) -> bytes:
        """The response to one request, its header included, as bytes."""
        head = struct.pack(">hhih", key, version, 7, -1) + (b"\0" if version >= APIS[key].flexible else b"")
        self._writer.write(struct.pack(">i", len(head) + len(body)) + head + body)
        (size,) = struct.unpack(">i", await self._reader.readexactly(4))
        return await self._reader.readexactly(size)


@asynccontextmanager
async def wire(address: str) -> AsyncIterator[Wire]:
    """A connection to "host:port"."""
    host, port = address.split(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    try:
        yield Wire(reader, writer)
    finally:
        writer.close()
