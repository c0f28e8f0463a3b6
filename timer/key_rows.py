"""Where schedule keys lead: rows in memory until a checkpoint has committed them, then in the index on disk.

meet ──> met ──(take)──> being committed ──(committed)──> index          find looks at all three, newest first
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Mapping

from store.types import Source
from timer.ports import KeyIndex, KeyRow, RunBlocking, TopicKey

ROWS_BEFORE_COMMIT = 16_384
"""So many rows ask for a checkpoint before its time: of a second they could be 60,000, at 400 bytes each."""


class KeyRows:
    """The rows: in memory until a checkpoint has committed them, then in the index."""

    def __init__(self, index: KeyIndex, run_blocking: RunBlocking) -> None:
        self._index = index
        self._run_blocking = run_blocking
        self._met: dict[TopicKey, KeyRow] = {}
        self._committing: dict[TopicKey, KeyRow] = {}
        self._commit_count = 0
        self.are_many = asyncio.Event()
        """Set while there are many rows to take."""

    @property
    def is_used(self) -> bool:
        """Whether there is or was any row."""
        return bool(self._met or self._committing) or self._index.is_used

    def meet(self, key: TopicKey, source: Source, slot_s: int) -> None:
        """A copy is in the wheel: its key leads to it."""
        self._met[key] = KeyRow(source, slot_s)
        if len(self._met) == ROWS_BEFORE_COMMIT:
            self.are_many.set()

    async def find(self, keys: Collection[TopicKey]) -> dict[TopicKey, Source]:
        """Where keys lead, as intake has met it. Raises OSError."""
        found: dict[TopicKey, Source] = {}
        if self._index.is_used and keys:
            commit_count = -1
            while commit_count != self._commit_count:  # else rows may have left memory behind our back
                commit_count = self._commit_count

                def look() -> None:
                    nonlocal found
                    found = self._index.find(keys)

                await self._run_blocking(look)
        for key in keys:
            if (row := self._met.get(key) or self._committing.get(key)) is not None:
                found[key] = row.source
        return found

    def take(self) -> dict[TopicKey, KeyRow]:
        """The rows to commit next, which count meanwhile; again with those of a commit that failed."""
        self._committing = {**self._committing, **self._met} if self._committing else self._met
        self._met = {}
        self.are_many.clear()
        return self._committing

    def commit(self, rows: Mapping[TopicKey, KeyRow], queue_offset: int, before_s: int | None) -> None:
        """Have rows on disk, see `KeyIndex.commit`; waits for it. Raises OSError."""
        self._index.commit(rows, queue_offset, before_s=before_s)

    def committed(self) -> None:
        """What `take` gave is durable, and the caller's now."""
        self._committing = {}
        self._commit_count += 1
