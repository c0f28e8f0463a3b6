"""Answers kept within a bound of memory, those used last; who asks for the same at once waits for one answer."""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Hashable
from typing import Generic, NamedTuple, TypeVar

from gateway.errors import OVERLOADED, RequestError

Value = TypeVar("Value")

FETCHES_MAX = 256
"""Questions under way at once, and those that wait to be asked."""

ENTRY_BYTES = 512
"""Of what one entry takes besides its texts."""


class Answer(NamedTuple, Generic[Value]):
    """What was answered, what it takes of memory, and for how long it is good; `fresh_s` None: for ever."""

    value: Value
    size_bytes: int
    fresh_s: float | None = None


class _Entry(NamedTuple, Generic[Value]):
    value: Value
    size_bytes: int
    until_s: float | None


class Kept(Generic[Value]):
    """Answers by key. A question that raises is asked again by the next caller."""

    def __init__(self, bytes_max: int, *, monotonic_s: Callable[[], float], fetches_max: int = FETCHES_MAX) -> None:
        self._bytes_max = bytes_max
        self._monotonic_s = monotonic_s
        self._fetches_max = fetches_max
        self._entries: OrderedDict[Hashable, _Entry[Value]] = OrderedDict()
        self._fetching: dict[Hashable, asyncio.Task[Value]] = {}
        self.size_bytes = 0

    def __len__(self) -> int:
        return len(self._entries)

    async def get(self, key: Hashable, fetch: Callable[[], Awaitable[Answer[Value]]]) -> Value:
        """The answer kept under a key, else the one that `fetch` gets. A caller that is cancelled leaves the others
        theirs. Raises what `fetch` raises; RequestError 503/50351 when too many questions are under way."""
        entry = self._entries.get(key)
        if entry is not None:
            if entry.until_s is None or self._monotonic_s() < entry.until_s:
                self._entries.move_to_end(key)
                return entry.value
            self._drop(key)
        task = self._fetching.get(key)
        if task is None:
            if len(self._fetching) >= self._fetches_max:
                raise RequestError(
                    OVERLOADED,
                    f"{self._fetches_max} questions to the schema registry are under way; try again.",
                    retriable=True,
                    retry_after_ms=1000,
                )
            task = self._fetching[key] = asyncio.create_task(self._fetch(key, fetch), name="schema registry")
            task.add_done_callback(_retrieve)
        return await asyncio.shield(task)

    async def _fetch(self, key: Hashable, fetch: Callable[[], Awaitable[Answer[Value]]]) -> Value:
        try:
            answer = await fetch()
        finally:
            del self._fetching[key]
        size_bytes = answer.size_bytes + ENTRY_BYTES
        if size_bytes <= self._bytes_max:
            until_s = None if answer.fresh_s is None else self._monotonic_s() + answer.fresh_s
            self._entries[key] = _Entry(answer.value, size_bytes, until_s)
            self.size_bytes += size_bytes
            while self.size_bytes > self._bytes_max:
                self._drop(next(iter(self._entries)))
        return answer.value

    async def close(self) -> None:
        """End what is under way."""
        tasks = list(self._fetching.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _drop(self, key: Hashable) -> None:
        self.size_bytes -= self._entries.pop(key).size_bytes


def _retrieve(task: asyncio.Task[Value]) -> None:
    """Its callers may all be gone; then nobody else asks for its error."""
    if not task.cancelled():
        task.exception()
