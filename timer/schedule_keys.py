"""Schedules by a key of their sender's, unique within a topic while the schedule is pending.

    claim   a send asks for its keys; they are its own until intake has met what it stored
    meet    intake schedules a copy with a key in the wheel: from here on the key's row names that copy
    commit  a checkpoint has the rows durable before itself

The key travels as a header of the record, through rolls and moves. A row says where its key led last, and nothing of
what became of the schedule: that the copy says (TimerState.standing_of). So a delivery or a cancellation touches no
row; rows go when their slot is done for good.

Invariants
    Y1  A key leads to at most one pending schedule: it is claimed, then looked for; who has it is decided under the
        lock under which deliveries and changes are (state.leaving). A copy that rolled or was moved keeps its key until
        intake meets the next one.
    Y2  A row may name what a power cut has taken from the log, or another record there. It is believed only when the
        record that it names has the key.
    Y3  The rows on disk (timer/key_rows.py) are never behind the checkpoint. When they are, or cannot be read, all
        files of the timer are made again from the log.
"""

from __future__ import annotations

import heapq
from collections.abc import Collection, Iterator, Sequence
from typing import NamedTuple

from store import record_batch
from store.errors import StoreError
from store.record_batch import Headers
from store.types import Entry, Source
from timer.changes import Standing
from timer.errors import ScheduleKeyTaken, TimerBusy
from timer.ports import TopicKey
from timer.ready import SCHEDULE_KEY_HEADER
from timer.record_cache import pick
from timer.schedule import ScheduleId
from timer.state import TimerState

_MARK = SCHEDULE_KEY_HEADER.encode()
_TRIES = 20
_HOLDERS_AT_ONCE = 64
"""Keys whose holders are checked in one hold of the lock, while deliveries wait: some milliseconds, with a read of the
log for each."""


class _Holder(NamedTuple):
    """The schedule that has a key: pending, or between two copies."""

    standing: Standing
    schedule: ScheduleId


class ScheduleKeys:
    """Gives keys to senders, and leads from a key to its schedule."""

    def __init__(self, state: TimerState) -> None:
        self._state = state
        self._claimed: set[TopicKey] = set()
        self._stored: list[tuple[int, Sequence[TopicKey]]] = []  # heap: claims, by the offset behind their records

    async def claim(self, keys: Sequence[TopicKey | None]) -> None:
        """Take the keys of an append's records, None for those without: all of them, or none. Raises ScheduleKeyTaken,
        TimerBusy while what was there at the start is not met yet, Corrupt, OSError."""
        await self._state.caught_up(self._state.queue_end_at_start)
        self.forget_met()
        taken: dict[int, ScheduleId | None] = {}
        wanted: dict[TopicKey, int] = {}
        for index, key in enumerate(keys):
            if key is None:
                continue
            if key in wanted or key in self._claimed:
                taken[index] = None
            else:
                wanted[key] = index
        self._claimed.update(wanted)
        try:
            for key, holder in (await self._holders(wanted)).items():
                taken[wanted[key]] = holder.schedule
            if taken:
                raise ScheduleKeyTaken(taken)
        except BaseException:
            self._claimed.difference_update(wanted)
            raise

    async def _holders(self, wanted: Collection[TopicKey]) -> dict[TopicKey, _Holder]:
        """The schedules that have some keys, which are claimed: no other schedule gets one of them meanwhile. So most
        of the work goes on beside deliveries, and only what was found is looked at without them, some at a time."""
        holders = {}
        found = list(await self._state.key_rows.find(wanted))
        for first in range(0, len(found), _HOLDERS_AT_ONCE):
            async with self._state.leaving:
                now = await self._state.key_rows.find(found[first : first + _HOLDERS_AT_ONCE])
                for key, source in now.items():
                    if (holder := await self._holder(key, source)) is not None:
                        holders[key] = holder
        return holders

    def give_back(self, keys: Sequence[TopicKey | None]) -> None:
        """Nothing was stored with claimed keys."""
        self._claimed.difference_update(key for key in keys if key is not None)

    def stored(self, keys: Sequence[TopicKey | None], end_offset: int) -> None:
        """The records with claimed keys are stored, before an offset of `__timer`."""
        heapq.heappush(self._stored, (end_offset, [key for key in keys if key is not None]))

    async def named(self, key: TopicKey) -> ScheduleId | None:
        """The pending schedule with a key. Raises TimerBusy, Corrupt, OSError."""
        state = self._state
        last: Source | None = None
        for _ in range(_TRIES):
            await state.caught_up()
            source = (await state.key_rows.find((key,))).get(key)
            if source is None or source == last:  # the next copy would have been met by now
                return None
            async with state.leaving:
                holder = await self._holder(key, source)
            if holder is None:
                return None
            if holder.standing is Standing.PENDING:
                return holder.schedule
            last = source
        raise TimerBusy("the schedule is being copied all the time; try again")

    def forget_met(self) -> None:
        """Let go of claims whose records intake has met."""
        while self._stored and self._stored[0][0] <= self._state.queue_offset:
            self._claimed.difference_update(heapq.heappop(self._stored)[1])

    async def _holder(self, key: TopicKey, source: Source) -> _Holder | None:
        """The schedule of the copy that a row names, if it still has the key (Y1, Y2)."""
        state = self._state
        position = state.timer_log.find(*source)
        if position is None:
            return None
        standing = state.standing_of(state.timer_log.read(position))
        if standing in (Standing.DELIVERED, Standing.UNKNOWN):
            return None
        try:
            picked = pick(source, await state.record_cache.get(source.position, (source.record_index,)))
        except StoreError:
            if standing is Standing.PENDING:
                raise
            return None  # so old that retention has taken it: the next copy was met long ago
        delay = picked.delay
        if TopicKey(delay.topic_id, key_of(picked.record.headers) or b"") != key:
            return None
        origin = source if delay.origin_position < 0 else Source(delay.origin_position, delay.origin_index)
        return _Holder(standing, ScheduleId(delay.due_ms, *origin))


def key_of(headers: Headers) -> bytes | None:
    """The schedule key of a record."""
    return next((value for name, value in headers if name == SCHEDULE_KEY_HEADER), None)


def keys_of(entry: Entry) -> Iterator[bytes | None] | None:
    """The schedule keys of the records of a `__timer` entry, one by one, decoded when they are asked for; None when it
    has none. Nearly all entries have none, and are not decoded."""
    if _MARK not in bytes(entry.batch):
        return None
    return (key_of(record.headers) for record in record_batch.decode(entry.batch))
