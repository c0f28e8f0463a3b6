"""What the timer asks of others: the log it follows and appends to, and who runs its waits for the disk."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Protocol

from store.types import Acks, Append, Appended, Boundary, Bounds, Entry, QueueKey, ReadResult, Source


class Log(Protocol):
    """What the timer asks of the store. Only durable entries are seen through it."""

    @property
    def end_position(self) -> int:
        """Exclusive end of the dispatched log. An append called from now on lands at or after it."""
        ...

    def bounds(self, queue: QueueKey) -> Bounds: ...

    async def read(self, queue: QueueKey, offset: int, *, max_bytes: int) -> ReadResult: ...

    async def wait_for(self, queue: QueueKey, offset: int, timeout_ms: int) -> bool: ...

    async def read_entry(self, position: int) -> Entry: ...

    async def read_entries(self, positions: Sequence[int]) -> list[Entry]: ...

    async def offset_for_time(self, queue: QueueKey, time_ms: int, boundary: Boundary) -> int: ...

    async def sources_since(self, position: int) -> set[Source]:
        """Sources of all entries (those of `__timer` too) that lie at or after `position`."""
        ...

    async def yield_to_loop(self) -> None:
        """As Store.yield_to_loop: between two pieces of the timer's work."""
        ...

    async def append(self, appends: Sequence[Append], *, acks: Acks) -> list[Appended]:
        """As Store.append. When it raises UnknownQueue, RecordTooLarge, Overloaded or DiskFull, it has stored none of
        `appends`."""
        ...

    async def refuse_known(self, appends: Sequence[Append], *, acks: Acks) -> None:
        """As Store.refuse_known: raise AlreadyStored when an append would."""
        ...


Deliver = Callable[[Sequence[Append]], Awaitable[list[Appended]]]
"""Appends due records to their queues, durably; errors as `Log.append`."""

RunBlocking = Callable[[Callable[[], None]], Awaitable[None]]
"""Runs a function that waits for the disk without holding up the event loop."""
