"""Memory of answers: one bound over all connections for what is made and not yet taken by its client.

An answer may be as large as its client asks, a client need not read it, and what is made waits in memory meanwhile. So
each answer asks how large it may be. It gets an eighth of what is free, for its caller and in all:

    free   64 MiB    8 MiB    1 MiB    0
    gets    8 MiB    1 MiB    128 KiB  64 KiB

What is read page by page (records, of which the client asks for more) gets smaller and is never refused for want of
memory, so a client that reads is served whatever others leave unread. Refusing instead would let clients
that do not read stop those that do; waiting would have, for the write timeout. Only what cannot be made smaller (one
large record or batch, a long list) is refused, with 503.

Invariants
    M1  what is counted exceeds the bound by at most what cannot be refused any more: the answer to something done, or
        one record in the middle of an answer
    M2  answers up to SMALL_BYTES are not counted: a connection's own buffer holds as much before it waits
    M3  one caller has at most half of the bound
    M4  MAKING_MAX answers at a time hold records that are read and not yet rendered, whatever their size; no answer
        keeps that turn while a client takes its bytes
"""

from __future__ import annotations

import asyncio

from aiohttp import web

from gateway.errors import OVERLOADED, RequestError
from gateway.surfaces.http.buffers_body import BuffersBody
from store.limits import KiB, MiB

SMALL_BYTES = 64 * KiB
"""The high-water mark of a connection's write buffer (asyncio's default)."""

WHOLE_BYTES_MAX = 4 * MiB
"""Answers that are rendered are sent whole, with their length, up to this size; larger ones in pieces."""

PAGE_BYTES_MAX = 4 * MiB
"""Values of one page of a list. It ends with the one that reaches this size, and says where the next page begins."""

RENDERED_FACTOR = 4
"""How much larger records may be expected to get by rendering: what is read for an answer is a quarter of its room."""

FREE_SHARE = 8
CALLER_SHARE = 2
MAKING_MAX = 4
RETRY_MS = 1000


class AnswerMemory:
    """What the answers of one server hold."""

    def __init__(self) -> None:
        self.held_bytes = 0
        self.refused_count = 0
        self.open: dict[int, Allowance] = {}
        """By the id of the request; for as long as the request lasts."""

        self.making = asyncio.Semaphore(MAKING_MAX)
        self.again = asyncio.Semaphore(1)
        """The turn of those who found no room for what they had read, to read it once more."""

        self._by_payer: dict[str, int] = {}

    def free_bytes(self, payer: str, bytes_max: int) -> int:
        """What this caller may still hold of `bytes_max`; less than nothing after what could not be refused."""
        return min(bytes_max - self.held_bytes, bytes_max // CALLER_SHARE - self._by_payer.get(payer, 0))

    def count(self, payer: str, change_bytes: int) -> None:
        """A caller's answers hold so much more, or less."""
        self.held_bytes += change_bytes
        held = self._by_payer.get(payer, 0) + change_bytes
        if held:
            self._by_payer[payer] = held
        else:
            self._by_payer.pop(payer, None)


class Allowance:
    """What one answer may hold. Whoever made it calls `release`; for requests the wrapper of all routes does."""

    __slots__ = ("_bytes_max", "_held_bytes", "_is_making", "_memory", "_payer", "is_ample", "must_send", "room_bytes")

    def __init__(self, memory: AnswerMemory, payer: str, bytes_max: int) -> None:
        self._memory = memory
        self._payer = payer
        self._bytes_max = bytes_max
        self._held_bytes = 0
        self._is_making = False
        self.room_bytes = SMALL_BYTES
        """What `begin` granted."""

        self.is_ample = False
        """Whether that was all that was wanted."""

        self.must_send = False
        """The answer tells of something done, so it is not refused."""

    def share(self, wanted_bytes: int) -> int:
        """How large an answer may be now; nothing is held for it."""
        free_bytes = self._memory.free_bytes(self._payer, self._bytes_max) + self._held_bytes
        return min(wanted_bytes, max(free_bytes // FREE_SHARE, SMALL_BYTES))

    def reserve(self, wanted_bytes: int) -> int:
        """As `share`, and held."""
        self.room_bytes = self.share(wanted_bytes)
        self.is_ample = self.room_bytes == wanted_bytes
        self._count(self.room_bytes)
        return self.room_bytes

    async def begin(self, wanted_bytes: int) -> int:
        """As `reserve`, for an answer whose records are about to be read: waits for the turn to (M4)."""
        if not self._is_making:
            await self._memory.making.acquire()
            self._is_making = True
        return self.reserve(wanted_bytes)

    def made(self) -> None:
        """Nothing is held any more beside the answer: others have their turn."""
        if self._is_making:
            self._is_making = False
            self._memory.making.release()

    def hold(self, size_bytes: int) -> bool:
        """The answer has this size, now exactly. False, and nothing changes, when there is no room for it."""
        if size_bytes <= SMALL_BYTES and not self._held_bytes:  # as nearly all are
            return True
        if size_bytes > max(self._held_bytes, SMALL_BYTES):
            free_bytes = self._memory.free_bytes(self._payer, self._bytes_max) + self._held_bytes
            if size_bytes > free_bytes and not self.must_send:
                self._memory.refused_count += 1
                return False
        self._count(size_bytes)
        return True

    def release(self) -> None:
        """The client has taken the answer, or is gone."""
        self.made()
        if self._held_bytes:
            self._count(0)

    def _count(self, size_bytes: int) -> None:
        counted_bytes = size_bytes if size_bytes > SMALL_BYTES else 0
        if counted_bytes != self._held_bytes:
            self._memory.count(self._payer, counted_bytes - self._held_bytes)
            self._held_bytes = counted_bytes


def no_room() -> RequestError:
    """The refusal of an answer that cannot be made smaller."""
    return RequestError(
        OVERLOADED, "Too many bytes of answers wait for their clients. Ask again.", True, None, RETRY_MS
    )


def size_of(response: web.StreamResponse) -> int:
    """The bytes of an answer whose body is in memory; 0 for one that writes it itself."""
    if response.__class__ is not web.Response:
        return 0
    body = response.body
    return len(body) if isinstance(body, bytes | BuffersBody) else 0
