"""Changes of topics, decided and written one after the other. Topics that are made at the same time share an entry of
`__meta`, and with it one fdatasync.

    waiting   create a   create b   delete c   create d   create d
    entries   [create a, create b]  [delete c]  [create d]  the second is decided when the first one is there

All events of an entry are decided before the first of them is applied, so only such changes share one as have nothing
to do with each other: creations of topics with different names. The table tells how many come before each, for their
ids. Whoever asked is told when the entry is durable and all of it applied: until then no topic of it can be seen.

    crash                     what a restart finds
    before the append         none of them: no caller was answered
    during the append         all of the entry or, cut off as a torn tail, none
    after it, before `apply`  all of them: a caller without an answer may ask again, and is told that the topic is there
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from typing import NamedTuple

from store.errors import RecordTooLarge
from store.topics import Event, Topic
from store.uncancelled import uncancelled

CREATED_TOGETHER_MAX = 64
"""Topics whose creations share an entry: some 10 KiB, and a tenth of a millisecond to apply."""

Decide = Callable[[int], Event | Topic]
"""Decides a change on the table as it is, behind so many creations of the same entry; a topic: nothing is to change."""


class _Change(NamedTuple):
    creates: str | None
    decide: Decide
    told: asyncio.Future[tuple[Topic, bool]]


class TopicChanges:
    """The changes of one store. `write` has events durable and applied on return, and returns the topics as they are
    afterwards."""

    def __init__(self, write: Callable[[Sequence[Event]], Awaitable[Sequence[Topic]]]) -> None:
        self._write = write
        self._waiting: deque[_Change] = deque()
        self._taken: Sequence[_Change] = ()  # being written
        self._writing: asyncio.Task[None] | None = None

    async def make(self, decide: Decide, *, creates: str | None = None) -> tuple[Topic, bool]:
        """Decide → write → apply: the topic, and whether that changed it. `creates`: the name of the topic to be made.
        Goes to its end even when its caller is cancelled: an event that is in the log but not in the table would give
        its topic id away again. Raises what `decide` and `write` raise."""
        told: asyncio.Future[tuple[Topic, bool]] = asyncio.get_running_loop().create_future()
        self._waiting.append(_Change(creates, decide, told))
        if self._writing is None:
            self._writing = asyncio.create_task(self._write_all(), name="topic changes")
            self._writing.add_done_callback(self._ended)
        return await uncancelled(told)

    async def _write_all(self) -> None:
        try:
            while self._waiting:
                self._taken = self._take()
                await self._write_some(self._taken)
                self._taken = ()
        except asyncio.CancelledError:
            self._give_up()
            raise
        finally:
            self._writing = None

    def _ended(self, writing: asyncio.Task[None]) -> None:
        if self._writing is writing:  # it was cancelled before it began
            self._writing = None
            self._give_up()

    def _give_up(self) -> None:
        """When the loop ends all tasks are cancelled, this one too: who waits for it, uncancelled, would wait for ever.
        Of what was under way the outcome is unknown."""
        for change in (*self._taken, *self._waiting):
            change.told.cancel()
        self._taken = ()
        self._waiting.clear()

    def _take(self) -> list[_Change]:
        """The next creations of different names, or one change of another kind."""
        taken = [self._waiting.popleft()]
        names = {taken[0].creates}
        if None not in names:
            while self._waiting and len(taken) < CREATED_TOGETHER_MAX:
                name = self._waiting[0].creates
                if name is None or name in names:
                    break
                names.add(name)
                taken.append(self._waiting.popleft())
        return taken

    async def _write_some(self, changes: Sequence[_Change]) -> None:
        events: list[Event] = []
        decided: list[_Change] = []
        for change in changes:
            try:
                event = change.decide(len(events))
            except Exception as error:
                change.told.set_exception(error)
                continue
            if isinstance(event, Topic):
                change.told.set_result((event, False))
            else:
                events.append(event)
                decided.append(change)
        if not events:
            return
        try:
            topics = await self._write(events)
        except Exception as error:
            if isinstance(error, RecordTooLarge) and len(decided) > 1:  # a store with small files: each may well fit
                for change in decided:
                    await self._write_some([change])
                return
            for change in decided:
                change.told.set_exception(error)
            return
        for change, topic in zip(decided, topics, strict=True):
            change.told.set_result((topic, True))
