"""Answers that are written piece by piece, for as long as it takes: large ones, NDJSON, Server-Sent Events.

S1  at most one piece waits in memory beside the transport's own buffer: a client that reads slowly slows its stream,
    and nothing else. It counts among the memory of all answers (`answer_memory.py`), which says how large it may be
S2  a client that takes no bytes for the write timeout is cut off (`connection.py`); streams say how to go on where they
    were
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import cast

from aiohttp import hdrs, web

from gateway.api.turns import in_turns
from gateway.codec.filters import TagFilter
from gateway.codec.records import Format, render_records_in_steps
from gateway.surfaces.http.admission import allowance_of
from gateway.surfaces.http.answer_memory import RENDERED_FACTOR, no_room
from gateway.surfaces.http.connection import Connection
from gateway.surfaces.http.context import Gateway
from store import record_batch
from store.limits import BATCH_BYTES_MAX, MiB
from store.types import Entry

PIECE_BYTES = 1 * MiB
FIELDS_BYTES = 128
"""Of a record as JSON, beside key and value; about."""

PIECE_RECORDS_MAX = 4096
"""Records rendered between two turns of the event loop (some 10 ms of work): an entry may hold 100,000."""


class StreamedAnswer:
    """An answer whose headers are sent by `begin`, whose body by `write`, whose end by `end`."""

    def __init__(
        self,
        gateway: Gateway,
        request: web.Request,
        *,
        content_type: str | None = None,
        headers: Mapping[str, str] | None = None,
        status: int = 200,
    ) -> None:
        """`content_type`: None where `headers` say it."""
        self._request = request
        self.allowance = allowance_of(gateway, request)
        self.response = web.StreamResponse(status=status, headers=headers)
        if content_type is not None:
            self.response.headers[hdrs.CONTENT_TYPE] = content_type

    @property
    def has_begun(self) -> bool:
        """Whether the status is sent: an error from here on can only be told in the body."""
        return self.response.prepared

    async def begin(self) -> None:
        """Send the headers."""
        if not self.response.prepared:
            await self.response.prepare(self._request)

    async def write(self, data: bytes, *, ahead_bytes: int = 0) -> None:
        """Hand bytes over, begun or not, and wait while the client does not take them. `ahead_bytes`: what else may
        wait in memory meanwhile.

        Raises ConnectionError when it is gone, or took nothing for the write timeout (S2). Raises RequestError 503 when
        there is no room for so many (S1).
        """
        allowance = self.allowance
        allowance.made()
        if not allowance.hold(len(data) + ahead_bytes):
            raise no_room()
        await self.begin()
        writer = self._request.writer
        await writer.write(data, drain=False)  # type: ignore[call-arg]  # the abstract class lacks `drain`
        del data  # aiohttp has copied it
        with suppress(ConnectionError):  # its traceback refers to itself, and would keep what callers have
            await writer.drain()
        allowance.hold(0)
        self.check_there()  # aiohttp does not tell who waited for it

    def check_there(self) -> None:
        """Raises ConnectionError when the client is gone."""
        transport = self._request.transport
        if transport is None or transport.is_closing():
            raise ConnectionResetError("the client is gone")

    @contextmanager
    def when_gone(self, call: Callable[[], object]) -> Iterator[None]:
        """Within the block, call something when the client is gone: who waits for what may be long in coming holds a
        place meanwhile. A connection may outlive thousands of streams."""

        def told(_: object) -> None:
            call()

        lost = cast(Connection, self._request.protocol).lost()
        lost.add_done_callback(told)
        try:
            yield
        finally:
            lost.remove_done_callback(told)

    async def end(self) -> web.StreamResponse:
        """The whole body is sent."""
        await self.begin()
        await self.response.write_eof()
        return self.response

    def gone(self) -> web.StreamResponse:
        """The answer when its client is gone: it is not sent, and nothing is logged."""
        self.abort()
        return self.response

    def abort(self) -> None:
        """Break the connection off: a body that ends so is seen to be incomplete."""
        if self._request.transport is not None:
            self._request.transport.abort()


async def rendered_pieces(
    topic: str,
    partition: int,
    entries: Sequence[Entry],
    fmt: Format | None,
    *,
    start: int,
    stop: int,
    topic_id: int | None = None,
    tag_filter: TagFilter | None = None,
    records_max: int = PIECE_RECORDS_MAX,
) -> AsyncIterator[tuple[list[dict[str, object]], int]]:
    """As `render_records_in_steps`, in pieces; with each the offset behind what it covers."""
    for covering, low, high in pieces(entries, start, stop, records_max):
        objects = await in_turns(
            render_records_in_steps(
                topic, partition, covering, fmt, start=low, stop=high, topic_id=topic_id, tag_filter=tag_filter
            )
        )
        yield objects, high


def records_at_once(entries: Sequence[Entry], room_bytes: int) -> int:
    """Records to render at a time: of one large entry about what there is room for, as its rest is decoded again."""
    if len(entries) != 1 or entries[0].size < room_bytes // RENDERED_FACTOR:
        return PIECE_RECORDS_MAX
    [entry] = entries
    record_bytes = entry.size // entry.record_count + FIELDS_BYTES
    return max(1, min(room_bytes // record_bytes, PIECE_RECORDS_MAX))


def pieces(
    entries: Sequence[Entry], start: int, stop: int, records_max: int = PIECE_RECORDS_MAX
) -> Iterator[tuple[list[Entry], int, int]]:
    """Stretches of [start, stop) to render between two turns of the event loop, and the entries that cover each. What
    is compressed is rendered by itself: a few kilobytes may inflate to BATCH_BYTES_MAX."""
    first = 0
    size = count = 0
    for index, entry in enumerate(entries, 1):
        size += BATCH_BYTES_MAX if record_batch.is_compressed(entry.batch) else entry.size
        count += entry.record_count
        is_last = index == len(entries)
        if size < PIECE_BYTES and count < records_max and not is_last:
            continue
        part = entries[first:index]
        low = max(start, part[0].base_offset)
        end = min(stop, part[-1].next_offset)
        stored_bytes = sum(entry.size for entry in part)  # an entry alone may have 8 MiB
        step = min(records_max, max(1, count * PIECE_BYTES // stored_bytes))
        while low < end:
            high = min(end, low + step)
            covering = [one for one in part if one.next_offset > low and one.base_offset < high]
            yield covering, low, high
            low = high
        first = index
        size = count = 0
