"""One end of a link, that which answers: frames of many requests on one connection (gateway/cluster/peer_link.py)."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import cast

from gateway.cluster import peer_wire
from gateway.cluster.peer_auth import FrameCodes, NotAuthentic
from gateway.cluster.peer_wire import Frame, Frames, Message, frame
from store.errors import StoreError

log = logging.getLogger(__name__)

READS = frozenset(("read", "read_light"))
READS_AT_ONCE = 8
"""Reads of one link that are answered at a time, each with up to MESSAGE_BYTES_MAX, or one larger entry. More wait, as
do all while the other side does not take what it was answered: so their answers are not gathered in memory. What waits
for the disk has four threads, and what is in memory is answered within its turn."""


class LinkConnection(asyncio.Protocol):
    """Answers frames by `done`, each when it is ready. `is_first_good` judges the first frame of a connection whose
    other end is not known yet; None: it is. `codes`: of what comes, and of what is answered. `is_good`: whether the
    other end still belongs here."""

    def __init__(
        self,
        done: Callable[[str, bytes], Awaitable[Message]],
        bytes_max: int,
        refused: Callable[[str], None],
        *,
        is_first_good: Callable[[Frame], bool] | None = None,
        codes: tuple[FrameCodes, FrameCodes] | None = None,
        is_good: Callable[[], bool] = lambda: True,
    ) -> None:
        self._done = done
        self._refused = refused
        self._is_first_good = is_first_good
        self._is_good = is_good
        self._codes = None if codes is None else codes[1]
        self._frames = Frames(bytes_max, None if codes is None else codes[0])
        self._transport: asyncio.Transport | None = None
        self._serving: set[asyncio.Task[None]] = set()
        self._reading = asyncio.Semaphore(READS_AT_ONCE)
        self._is_taken = asyncio.Event()  # the other side takes its answers
        self._is_taken.set()
        self.on_lost: Callable[[Exception | None], None] = lambda error: None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """It may begin."""
        self._transport = cast(asyncio.Transport, transport)

    def connection_lost(self, exc: Exception | None) -> None:
        """What was begun comes to its end: it may be half done."""
        self._transport = None
        self._is_taken.set()
        self.on_lost(exc)

    def end(self) -> None:
        """End it, and what is under way."""
        if self._transport is not None:
            self._transport.close()
        for task in self._serving:
            task.cancel()

    def data_received(self, data: bytes) -> None:
        """Begin what is asked."""
        try:
            found = self._frames.feed(data)
        except (ValueError, NotAuthentic) as error:
            self._refuse(str(error))
            return
        for one in found:
            if self._is_first_good is not None:
                if not self._is_first_good(one):
                    self._refuse("the secret is another one")
                    return
                self._is_first_good = None
                continue
            if not self._is_good():
                self._refuse("its secret is not accepted any more")
                return
            task = asyncio.create_task(self._serve(one))
            self._serving.add(task)
            task.add_done_callback(self._serving.discard)

    def _refuse(self, reason: str) -> None:
        self._refused(reason)
        if self._transport is not None:
            self._transport.abort()

    async def _serve(self, one: Frame) -> None:
        if one.operation not in READS:
            await self._answer(one)
            return
        async with self._reading:
            await self._is_taken.wait()
            if self._transport is not None:
                await self._answer(one)

    async def _answer(self, one: Frame) -> None:
        try:
            answer = await self._done(one.operation, one.message)
        except Exception as error:  # the other side would wait for its answer
            log.exception("an operation failed operation=%s", one.operation)
            answer = peer_wire.pack(peer_wire.error_head(StoreError(repr(error))))
        if self._transport is not None:
            self._transport.writelines(frame(one.number, "", answer, self._codes))

    def pause_writing(self) -> None:
        """The other side does not take its answers: nothing more is read of it."""
        self._is_taken.clear()
        if self._transport is not None:
            self._transport.pause_reading()

    def resume_writing(self) -> None:
        """It does again."""
        self._is_taken.set()
        if self._transport is not None:
            self._transport.resume_reading()
