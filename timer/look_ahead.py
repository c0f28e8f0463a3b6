"""Which records of an entry fall due soon: they are decoded together with those that are due now.

Where due times are mixed within the accepted batches, every moment wants a few records of each of many entries. To read
and check a whole entry again for each moment costs more than all else that a delivery does. So, about twice a second,
the schedules in memory are looked through up to a second ahead; who reads an entry then knows what else of it to
decode.

What arrives in between is not known here, and is read when it is due.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection

from timer.items import LOWEST, Item, Key, fire_key, source_of
from timer.open_slots import OpenSlots

LOOK_AHEAD_MS = 1000
"""Entries are decoded half as far ahead, to as far."""

LOOK_AHEAD_RECORDS_MAX = 20_000
"""With more due so soon, it looks half as far ahead, and half as far again."""

AHEAD_PER_GO_MAX = 1000
"""Records decoded before they are due while those that are wait for it: some milliseconds. Entries that are left get
their turn when they are read next, for what is due then."""

_SPREAD = 0x9E3779B1  # Knuth's multiplicative hash


class LookAhead:
    """What is due soon, by entry. For one caller at a time."""

    def __init__(self, open_slots: OpenSlots, give_way: Callable[[], Awaitable[None]], *, turn_count: int) -> None:
        """`turn_count`: schedules looked at between two calls of `give_way`."""
        self._open = open_slots
        self._give_way = give_way
        self._turn_count = turn_count
        self._soon: dict[int, list[Item]] = {}  # by entry position
        self._looked_at_ms = self._ahead_ms = 0
        self._again: Key = LOWEST
        self._room_count = 0  # records that may still be decoded ahead in this go

    async def look(self, newest_due: Item, now_ms: int, *, count_max: int) -> None:
        """Begin a go; look again, if what is due lies behind the first half of what was looked at last. At `count_max`
        schedules at most."""
        self._room_count = AHEAD_PER_GO_MAX
        if newest_due < self._again:
            return
        soon: dict[int, list[Item]] = {}
        self._soon = soon
        ahead_ms = LOOK_AHEAD_MS
        while (items := self._open.due_before(now_ms + 1 + ahead_ms, count_max)) is None:
            if not ahead_ms:
                return  # so much is due that each entry is wanted for much at once
            ahead_ms //= 2
        self._looked_at_ms, self._ahead_ms = now_ms, ahead_ms
        self._again = fire_key(now_ms + 1 + ahead_ms // 2)
        for number, item in enumerate(items, 1):
            soon.setdefault(source_of(item).position, []).append(item)
            if number % self._turn_count == 0:
                await self._give_way()

    def take(self, position: int, indexes: Collection[int]) -> Collection[int]:
        """These record indexes of an entry, and once those that are due soon: for each entry up to another time, so
        that they are not all to be read again at the same one."""
        if self._room_count <= 0 or (soon := self._soon.pop(position, None)) is None:
            return indexes
        share = 64 + (position * _SPREAD >> 16) % 65  # of 128
        until = fire_key(self._looked_at_ms + 1 + self._ahead_ms * share // 128)
        wanted = {*indexes, *(source_of(item).record_index for item in soon if item < until)}
        self._room_count -= len(wanted) - len(indexes)
        return wanted
