"""Calls that come while others are being written share the next go: a thousand members that join one group, or leave
it, are a few rebalances, not a thousand; receives that come together look at the partitions once."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Hashable, Sequence
from typing import Generic, Protocol, TypeVar

TOLD_A_TURN = 50
"""Callers that get their answers in one turn of the event loop: each goes on with some 0.1 ms of work."""

Key = TypeVar("Key", bound=Hashable)
Asked = TypeVar("Asked")
Answer = TypeVar("Answer")
Told = TypeVar("Told", contravariant=True)


class Waiter(Protocol[Told]):
    """What gets the answer to a call: a future, or an object that needs none."""

    def done(self) -> bool:
        """Whether it waits no more."""
        ...

    def set_result(self, answer: Told, /) -> None:
        """Told in the turn of the event loop in which the go ended. Raises nothing."""
        ...

    def set_exception(self, error: Exception, /) -> None:
        """Likewise."""
        ...


_Call = tuple[str | None, Asked, Waiter[Answer]]
"""Of which member, what it asks for, and what gets the answer."""


class Goes(Generic[Key, Asked, Answer]):
    """Calls of one kind, of all groups. Those with the same key (a group, or what of it) share a go: `write` does them,
    and gives the answer, or the refusal, of each."""

    def __init__(
        self,
        write: Callable[[Key, Sequence[Asked]], Awaitable[Sequence[Answer | Exception]]],
        *,
        calls_max: int,
        count_of: Callable[[Asked], int] = lambda _: 1,
        undo: Callable[[Key, Answer], Awaitable[None]] | None = None,
        gathers: bool = False,
    ) -> None:
        """`calls_max`: in one go, each counted as so many by `count_of`. `undo`: what was done for a caller that was
        cancelled meanwhile, before the next go. `gathers`: the first go waits a turn of the event loop for those that
        have arrived meanwhile, which costs less than a go more."""
        self._write = write
        self._calls_max = calls_max
        self._count_of = count_of
        self._undo = undo
        self._gathers = gathers
        self._waiting: dict[Key, list[_Call[Asked, Answer]]] = {}
        self._writing: dict[Key, asyncio.Task[None]] = {}

    async def ask(self, key: Key, member_id: str, asked: Asked) -> Answer:
        """Have a call of a member done. Raises what `write` raises, for all of a go or for this one."""
        told: asyncio.Future[Answer] = asyncio.get_running_loop().create_future()
        self.begin(key, member_id, asked, told)
        return await told

    def begin(self, key: Key, member_id: str | None, asked: Asked, told: Waiter[Answer]) -> None:
        """The same, for who is told of it. None: of no member, so that others of the same may be in one go with it."""
        self._waiting.setdefault(key, []).append((member_id, asked, told))
        if key not in self._writing:
            self._writing[key] = asyncio.create_task(self._write_all(key), name="groups calls")

    async def _write_all(self, key: Key) -> None:
        try:
            if self._gathers:
                await asyncio.sleep(0)
            while waiting := [call for call in self._waiting.pop(key, ()) if not call[2].done()]:
                going = self._take(key, waiting)
                try:
                    answers = await self._write(key, [asked for asked, _ in going])
                except Exception as error:
                    answers = [error] * len(going)
                for number, ((_, told), answer) in enumerate(zip(going, answers, strict=True), 1):
                    if number % TOLD_A_TURN == 0:
                        await asyncio.sleep(0)
                    if isinstance(answer, Exception):
                        if not told.done():  # its caller may have been cancelled
                            told.set_exception(answer)
                    elif not told.done():
                        told.set_result(answer)
                    elif self._undo is not None:
                        await self._undo(key, answer)
        finally:
            del self._writing[key]

    def _take(self, key: Key, waiting: Sequence[_Call[Asked, Answer]]) -> list[tuple[Asked, Waiter[Answer]]]:
        """What goes now; the rest waits for the next go."""
        going: list[tuple[Asked, Waiter[Answer]]] = []
        members: set[str] = set()
        count = 0
        for call in waiting:
            member_id, asked, told = call
            is_second = member_id in members  # the second process under one member id comes after the first
            count += 0 if is_second else self._count_of(asked)
            if is_second or (going and count > self._calls_max):
                self._waiting.setdefault(key, []).append(call)
                continue
            if member_id is not None:
                members.add(member_id)
            going.append((asked, told))
        return going
