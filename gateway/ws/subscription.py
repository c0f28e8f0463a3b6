"""One subscription of a socket in reader mode: from the partitions of its topics to `messages` frames.

Every partition has a task. It waits, holding nothing, until there is a record past its place; then it takes its turn
(one partition at a time), reads, and sends as much as credit allows. What credit does not allow is dropped and read
again later, so a client that returns no credit costs no memory.

Reader mode knows no acks: the place is the client's, who finds it in the `cursor` of every message.

Invariants
    S1  messages of a partition are pushed in offset order, without a gap; each once
    S2  at most one read and its encoded messages are in memory, whatever the client does
    S3  `caught_up` is pushed once, after every partition had nothing more for the first time
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import NoReturn, Protocol

import orjson

from gateway.codec.records import render_records
from gateway.consumer import Fetched
from gateway.http.context import GatewayStats
from gateway.http.errors import OFFSET_OUT_OF_RANGE, RequestError
from gateway.ws.credit import Ledger
from gateway.ws.outbox import Outbox
from gateway.ws.protocol import FRAME_BYTES_TARGET, caught_up_push, cursor_of, messages_push
from store.types import Entry, ReadStatus

FETCH_BYTES = 256 * 1024
"""Of one read; at least one whole entry, which may be larger."""

RENDER_COUNT_MAX = 1024
"""Messages rendered at a time (about 4 ms of work): an entry may hold 100,000 records."""

WAIT_MS = 30_000
"""How long one wait at a partition's end lasts; it is renewed. Bounds what a lost wake-up could cost."""


class Fetch(Protocol):
    """`gateway.consumer.Consumer.fetch`."""

    async def __call__(
        self, topic: str, partition: int, offset: int, *, max_bytes: int, wait_ms: int = 0
    ) -> Fetched: ...


class Place:
    """How far one partition has been sent."""

    __slots__ = ("cursor_prefix", "next_message_bytes", "offset", "partition", "topic")

    def __init__(self, topic: str, partition: int, offset: int) -> None:
        self.topic = topic
        self.partition = partition
        self.offset = offset
        self.next_message_bytes = 1  # of the message at `offset`, once known: credit for it must suffice
        self.cursor_prefix = f"{topic}:{partition}="


class Subscription:
    """Pushes until `run` is cancelled. `permit`, `pause` and `resume` may be called while it runs."""

    def __init__(
        self,
        name: str,
        places: Sequence[Place],
        *,
        fetch: Fetch,
        ledger: Ledger,
        batch: int,
        outbox: Outbox,
        stats: GatewayStats,
    ) -> None:
        """`batch`: messages in one frame at most. The outbox must be running, or nothing is ever handed over."""
        self.name = name
        self._places = places
        self._fetch = fetch
        self._ledger = ledger
        self._batch = batch
        self._outbox = outbox
        self._stats = stats
        self._turn = asyncio.Lock()  # fair: partitions with data take turns
        self._credit_changed = asyncio.Event()
        self._behind = set(places)

    @property
    def cursor(self) -> str:
        """The next offset of every partition."""
        return cursor_of((place.topic, place.partition, place.offset) for place in self._places)

    async def run(self) -> NoReturn:
        """Push for ever. Raises an ExceptionGroup of RequestError or StoreError when a partition cannot be read on."""
        async with asyncio.TaskGroup() as partitions:
            for place in self._places:
                partitions.create_task(self._follow(place))
        raise AssertionError("a partition has no last record")

    def permit(self, message_count: int, byte_count: int) -> None:
        """Add credit. Raises CreditRefused; then nothing has changed."""
        self._ledger.permit(message_count, byte_count)
        self._credit_changed.set()

    def pause(self) -> None:
        self._ledger.pause()

    def resume(self) -> None:
        self._ledger.resume()
        self._credit_changed.set()

    async def _follow(self, place: Place) -> NoReturn:
        while True:
            async with self._turn:
                while not self._ledger.fits(place.next_message_bytes):
                    self._credit_changed.clear()
                    await self._credit_changed.wait()
                fetched = await self._fetch(place.topic, place.partition, place.offset, max_bytes=FETCH_BYTES)
                if fetched.status in (ReadStatus.TOO_SMALL, ReadStatus.TOO_LARGE):
                    raise out_of_range(place, fetched.min_offset, fetched.max_offset)
                await self._push(place, fetched)
            if place.offset >= fetched.max_offset:
                await self._caught_up(place)
                # The answer is only a wake-up: it is read again when this partition has its turn and credit (S2).
                await self._fetch(place.topic, place.partition, place.offset, max_bytes=1, wait_ms=WAIT_MS)
                await asyncio.sleep(0)  # a server that shuts down answers waits at once: let it cancel us

    async def _caught_up(self, place: Place) -> None:
        if place in self._behind:
            self._behind.remove(place)
            if not self._behind:
                await self._outbox.put(caught_up_push(self.name, self.cursor))

    async def _push(self, place: Place, fetched: Fetched) -> None:
        """Send what was fetched from the place's offset on, as far as credit goes."""
        while place.offset < fetched.next_offset and self._ledger.fits(place.next_message_bytes):
            stop = place.offset + self._render_count(fetched.entries)
            entries = [
                entry for entry in fetched.entries if entry.next_offset > place.offset and entry.base_offset < stop
            ]
            messages = render_records(place.topic, place.partition, entries, None, start=place.offset, stop=stop)
            assert messages, f"{place.cursor_prefix}{place.offset} is missing in what was read for it"
            assert messages[0]["offset"] == place.offset, f"{place.cursor_prefix}{place.offset} is missing"
            for next_offset, message in enumerate(messages, place.offset + 1):
                message["cursor"] = f"{place.cursor_prefix}{next_offset}"
            await self._push_encoded(place, [orjson.dumps(message) for message in messages])

    async def _push_encoded(self, place: Place, messages: list[bytes]) -> None:
        """Send messages that begin at the place's offset, in frames, as far as credit goes."""
        ledger = self._ledger
        while messages:
            place.next_message_bytes = len(messages[0])
            if not ledger.fits(place.next_message_bytes):
                return
            count, size_bytes = self._cut(messages)
            ledger.sent(count, size_bytes)
            frame = messages_push(
                self.name,
                messages[:count],
                size_bytes=size_bytes,
                credit=ledger.messages.left,
                credit_bytes=None if ledger.bytes is None else ledger.bytes.left,
            )
            del messages[:count]
            place.offset += count
            place.next_message_bytes = 1
            await self._outbox.send(frame)
            ledger.handed_over(count, size_bytes)
            self._stats.ws_sent_message_count += count
            self._stats.ws_sent_byte_count += len(frame)

    def _cut(self, messages: Sequence[bytes]) -> tuple[int, int]:
        """How many of the leading messages go into the next frame, and their bytes: at least the first."""
        count_max = min(self._batch, self._ledger.message_budget)
        credit = self._ledger.bytes
        bytes_max = FRAME_BYTES_TARGET if credit is None else min(FRAME_BYTES_TARGET, credit.left)
        size_bytes = 0
        count = 0
        for message in messages[:count_max]:
            if count and size_bytes + len(message) > bytes_max:
                break
            size_bytes += len(message)
            count += 1
        return count, size_bytes

    def _render_count(self, entries: Sequence[Entry]) -> int:
        """How many messages to render: about what credit allows, for the rest would be rendered in vain."""
        count = min(RENDER_COUNT_MAX, self._ledger.message_budget)
        credit = self._ledger.bytes
        if credit is not None:
            record_count = sum(entry.record_count for entry in entries)
            record_bytes = sum(len(entry.batch) for entry in entries) // record_count + 1
            count = min(count, credit.left // record_bytes + 1)
        return max(count, 1)


def out_of_range(place: Place, beginning_offset: int, end_offset: int) -> RequestError:
    """The answer when a place is not within its partition's bounds (which then are in the details)."""
    return RequestError(
        416,
        OFFSET_OUT_OF_RANGE,
        f"Offset {place.offset} of partition {place.partition} of {place.topic} is out of range.",
        details={
            "topic": place.topic,
            "partition": place.partition,
            "beginning_offset": beginning_offset,
            "end_offset": end_offset,
        },
    )
