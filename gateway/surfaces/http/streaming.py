"""Answers that are written piece by piece, for as long as it takes: NDJSON and Server-Sent Events.

S1  at most one piece waits in memory beside the transport's own buffer: a client that reads slowly slows its stream,
    and nothing else
S2  a client that takes no bytes for the write timeout is cut off; streams say how to go on where they were
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping, Sequence

from aiohttp import hdrs, web

from gateway.codec.filters import TagFilter
from gateway.codec.records import Format, render_records
from gateway.surfaces.http.context import Gateway
from store.limits import MiB
from store.types import Entry

PIECE_BYTES = 1 * MiB
PIECE_RECORDS_MAX = 4096
"""Records rendered between two turns of the event loop (some 10 ms of work): an entry may hold 100,000."""


class StreamedAnswer:
    """An answer whose headers are sent by `begin`, whose body by `write`, whose end by `end`."""

    def __init__(
        self, gateway: Gateway, request: web.Request, *, content_type: str, headers: Mapping[str, str] | None = None
    ) -> None:
        self._request = request
        self._write_timeout_s = gateway.config.ws_write_timeout_ms / 1000
        self.response = web.StreamResponse(headers={**(headers or {}), hdrs.CONTENT_TYPE: content_type})

    @property
    def has_begun(self) -> bool:
        """Whether the status is sent: an error from here on can only be told in the body."""
        return self.response.prepared

    async def begin(self) -> None:
        """Send the headers."""
        if not self.response.prepared:
            await self.response.prepare(self._request)

    async def write(self, data: bytes) -> None:
        """Hand bytes over, begun or not, and wait while the client does not take them.

        Raises ConnectionError when it is gone, or took nothing for the write timeout (S2).
        """
        await self.begin()
        try:
            async with asyncio.timeout(self._write_timeout_s):
                await self.response.write(data)
        except TimeoutError:
            self.abort()
            raise ConnectionResetError("the client takes no bytes") from None

    async def end(self) -> web.StreamResponse:
        """The whole body is sent."""
        await self.begin()
        async with asyncio.timeout(self._write_timeout_s):
            await self.response.write_eof()
        return self.response

    def gone(self) -> web.StreamResponse:
        """The answer when its client is gone: there is nobody to tell, and nothing to log."""
        self.abort()
        return self.response

    def abort(self) -> None:
        """Break the connection off: a body that ends so is seen to be incomplete."""
        if self._request.transport is not None:
            self._request.transport.abort()


def rendered_pieces(
    topic: str,
    partition: int,
    entries: Sequence[Entry],
    fmt: Format | None,
    *,
    start: int,
    stop: int,
    topic_id: int | None = None,
    tag_filter: TagFilter | None = None,
) -> Iterator[tuple[list[dict[str, object]], int]]:
    """As `render_records`, in pieces that leave others their turn; with each the offset behind what it covers."""
    for covering, low, high in pieces(entries, start, stop):
        objects = render_records(
            topic, partition, covering, fmt, start=low, stop=high, topic_id=topic_id, tag_filter=tag_filter
        )
        yield objects, high


def pieces(entries: Sequence[Entry], start: int, stop: int) -> Iterator[tuple[list[Entry], int, int]]:
    """Stretches of [start, stop) to render between two turns of the event loop, and the entries that cover each."""
    first = 0
    size = count = 0
    for index, entry in enumerate(entries, 1):
        size += entry.size
        count += entry.record_count
        is_last = index == len(entries)
        if size < PIECE_BYTES and count < PIECE_RECORDS_MAX and not is_last:
            continue
        part = entries[first:index]
        low = max(start, part[0].base_offset)
        end = min(stop, part[-1].next_offset)
        step = min(PIECE_RECORDS_MAX, max(1, count * PIECE_BYTES // (size + 1)))  # an entry alone may have 8 MiB
        while low < end:
            high = min(end, low + step)
            covering = [one for one in part if one.next_offset > low and one.base_offset < high]
            yield covering, low, high
            low = high
        first = index
        size = count = 0
