"""Calls that come while others are being written share the next go: a thousand members that join one group, or leave
it, are a few rebalances, not a thousand."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Generic, TypeVar

TOLD_A_TURN = 50
"""Callers that get their answers in one turn of the event loop: each goes on with some 0.1 ms of work."""

Asked = TypeVar("Asked")
Answer = TypeVar("Answer")


class Goes(Generic[Asked, Answer]):
    """Calls of one kind, of all groups. `write` does those of one go and gives the answer, or the refusal, of each."""

    def __init__(
        self, write: Callable[[str, Sequence[Asked]], Awaitable[Sequence[Answer | Exception]]], *, calls_max: int
    ) -> None:
        """`calls_max`: in one go."""
        self._write = write
        self._calls_max = calls_max
        self._waiting: dict[str, list[tuple[str, Asked, asyncio.Future[Answer]]]] = {}  # by group
        self._writing: dict[str, asyncio.Task[None]] = {}

    async def ask(self, group: str, member_id: str, asked: Asked) -> Answer:
        """Have a call of a member done. Raises what `write` raises, for all of a go or for this one."""
        told: asyncio.Future[Answer] = asyncio.get_running_loop().create_future()
        self._waiting.setdefault(group, []).append((member_id, asked, told))
        if group not in self._writing:
            self._writing[group] = asyncio.create_task(self._write_all(group), name="groups members' calls")
        return await told

    async def _write_all(self, group: str) -> None:
        try:
            while waiting := [call for call in self._waiting.pop(group, ()) if not call[2].done()]:
                going: dict[str, tuple[Asked, asyncio.Future[Answer]]] = {}
                for member_id, asked, told in waiting:  # the second process under one member id comes after the first
                    if member_id in going or len(going) == self._calls_max:
                        self._waiting.setdefault(group, []).append((member_id, asked, told))
                    else:
                        going[member_id] = asked, told
                try:
                    answers = await self._write(group, [asked for asked, _ in going.values()])
                except Exception as error:
                    answers = [error] * len(going)
                for number, ((_, told), answer) in enumerate(zip(going.values(), answers, strict=True), 1):
                    if number % TOLD_A_TURN == 0:
                        await asyncio.sleep(0)
                    if told.done():  # its caller was cancelled
                        continue
                    if isinstance(answer, Exception):
                        told.set_exception(answer)
                    else:
                        told.set_result(answer)
        finally:
            del self._writing[group]
