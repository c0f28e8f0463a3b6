"""A stage beside the deliveries: what falls due soon is read and made ready before it is due.

Where due times are mixed within the accepted batches, every moment wants a few records of each of many entries. To read
and check a whole entry again for each moment costs more than all else that a delivery does, and what is due would wait
for it. So what is in memory and not at hand is kept by its entry, each schedule put there once, when it is due within
nine seconds. Twice a second the first of each entry are looked at. An entry of which something falls due within three
seconds is read, and rows (timer/ready.py) are made of all of it that falls due within six from then on: so each entry
is read once in three seconds. There may be a thousand of them at a time: then they are read a few at a time, as slowly
as half of the time until the first of their records is due allows. Entries that were read one after the other are used
up one after the other: they are wanted all at once the first time, and not again.

A delivery reads what is not at hand: what arrived since the last look, and all of it when so much is due that each
entry is wanted for much at once. When that is many records, those are read with them that are due next in the same
entries. Deliveries that are a little late have no more of the event loop than before: what was not made ready
meanwhile would stop them for longer, as they read an entry for every few records of it. When they are late by more than
that, nothing else is looked for ahead of them: that would only take the event loop from them, and the more so the more
is due.
"""

from __future__ import annotations

import asyncio
from collections.abc import Container, Sequence
from itertools import islice
from typing import NamedTuple

from timer.items import HIGHEST, Item, Key, fire_key, fire_ms_of, position_bytes, position_of
from timer.ready import FULL_SHARE, ROW_OVERHEAD_BYTES
from timer.state import TimerState

PREFETCH_MS = 6000
"""As far ahead records are made ready,"""

NEAR_MS = 3000
"""when something of their entry falls due so soon. It looks again after a sixth of that."""

PREFETCH_RECORDS_MAX = 120_000
"""With more due so soon, it looks half as far ahead, and half as far again."""

PREFETCH_INTERVAL_MS_MIN = 50
"""How often it looks when much is due."""

LATE_MS = 2000
"""Deliveries that are later than this have the event loop for themselves."""

LOOKED_COUNT = 1024
"""Schedules looked at between two turns of the event loop: a tenth of a millisecond."""

SORTED_COUNT = 256
"""Schedules put to their entries between two turns; as long."""

READ_ENTRIES = 8
"""Entries read and made ready at a time: two milliseconds or so."""

_REST_S_MAX = 0.02
"""How long it rests between two times at most."""


class Soon(NamedTuple):
    """How far ahead to look now; `near_ms`: what is due within it must be at hand."""

    ahead_ms: int
    near_ms: int


def look_ahead(state: TimerState, now_ms: int, count_max: int) -> Soon | None:
    """PREFETCH_MS, or a part of it when more than `count_max` is due within it; None when too much is due at once."""
    bytes_max = int(state.config.bodies_bytes_max * FULL_SHARE)
    count_max = min(count_max, bytes_max // (state.record_bytes + ROW_OVERHEAD_BYTES))
    ahead_ms = PREFETCH_MS
    while state.open.count_before(now_ms + 1 + ahead_ms) > count_max:
        if not ahead_ms:
            return None
        ahead_ms //= 2
    return Soon(ahead_ms, ahead_ms * NEAR_MS // PREFETCH_MS)


async def items_of(
    state: TimerState, items: Sequence[Item], positions: Container[int] | None = None
) -> dict[int, list[Item]]:
    """Some items by the position of their entry; of these entries alone, if any are given."""
    found: dict[int, list[Item]] = {}
    for number, item in enumerate(items, 1):
        position = position_of(item)
        if positions is None or position in positions:
            found.setdefault(position, []).append(item)
        if number % SORTED_COUNT == 0:
            await state.log.yield_to_loop()
    return found


class _Unready:
    """What is in memory, due soon and not at hand, by entry, so that no look goes through all of it: each schedule is
    put to its entry once. Some of it may have left memory meanwhile, or be at hand."""

    def __init__(self, state: TimerState) -> None:
        self._state = state
        self._by_entry: dict[bytes, list[Item]] = {}  # the first due of each list is its first
        self._given_up_count = 0

    async def look(self, until_ms: int) -> None:
        """Take in what falls due before a time and was not there before."""
        if self._given_up_count != self._state.ready.given_up_count:
            self.forget()
        news = self._state.open.news(until_ms)
        for at in range(0, len(news), SORTED_COUNT):
            for item in news[at : at + SORTED_COUNT]:
                self._add(item)
            await self._state.log.yield_to_loop()

    async def first_before(self, key: Key) -> list[tuple[Item, bytes]]:
        """The entries of which something fires before a key, the first one first, each behind what of it that is."""
        found: list[tuple[Item, bytes]] = []
        firsts = iter(self._by_entry.items())
        while some := list(islice(firsts, LOOKED_COUNT)):
            found += [(items[0], entry) for entry, items in some if items[0] < key]
            await self._state.log.yield_to_loop()
        found.sort()
        return found

    async def take(self, entry: bytes, until: Key, now: Key) -> list[Item]:
        """Remove what of an entry fires before `until`, and return what of it is still to be made ready. `now`: what
        fires before it may have left memory."""
        open_slots = self._state.open
        may_have_left = HIGHEST if open_slots.withdrawn_count else now
        items = self._by_entry.pop(entry)
        taken: set[Item] = set()
        for at in range(0, len(items), LOOKED_COUNT):
            if at:
                await self._state.log.yield_to_loop()
            for item in items[at : at + LOOKED_COUNT]:
                if item >= until:
                    self._add(item)
                elif item >= may_have_left or open_slots.is_waiting(item):
                    taken.add(item)
        return self._state.ready.missing(taken)

    def forget(self) -> None:
        """Look at all of it anew the next time, and until then at nothing."""
        self._by_entry.clear()
        self._state.open.forget_news()
        self._given_up_count = self._state.ready.given_up_count

    def _add(self, item: Item) -> None:
        entry = position_bytes(item)
        items = self._by_entry.get(entry)
        if items is None:
            self._by_entry[entry] = [item]
            return
        items.append(item)
        if item < items[0]:
            items[0], items[-1] = item, items[0]


class Prefetch:
    """Has the rows of what is due soon at hand, in `state.ready`."""

    def __init__(self, state: TimerState) -> None:
        self._state = state
        self._unready = _Unready(state)

    async def run(self) -> None:
        """Prefetch until cancelled. Raises StoreStopped."""
        while True:
            near_ms = await self.step()
            await asyncio.sleep(max(PREFETCH_INTERVAL_MS_MIN, near_ms // 6) / 1000)

    async def step(self) -> int:
        """Look once, and read what is not at hand; return how many ms ahead all of it is. Raises StoreStopped."""
        state, unready = self._state, self._unready
        now_ms = state.clock.now_ms()
        fire_ms = state.open.next_fire_ms()
        if fire_ms is not None and fire_ms < now_ms - LATE_MS:
            unready.forget()
            return 0
        soon = look_ahead(state, now_ms, PREFETCH_RECORDS_MAX)
        if soon is None:
            unready.forget()
            return 0
        # An entry's records are made ready up to so far ahead of when it is read, and it is read again when those are
        # used up. So entries that were read one after the other stay apart, and are not all wanted at once again.
        await unready.look(now_ms + 1 + soon.ahead_ms + soon.near_ms)
        entries = await unready.first_before(fire_key(now_ms + 1 + soon.near_ms))
        pieces = [entries[at : at + READ_ENTRIES] for at in range(0, len(entries), READ_ENTRIES)]
        for number, piece in enumerate(pieces):
            if number:
                slack_ms = fire_ms_of(piece[0][0]) - state.clock.now_ms() - soon.near_ms // 2
                await asyncio.sleep(max(0.0, min(slack_ms / 1000 / (len(pieces) - number), _REST_S_MAX)))
            read_ms = state.clock.now_ms()
            if read_ms > now_ms + soon.near_ms:
                return 0  # it is too slow: what is left is due
            if state.ready.is_full:
                break  # records are larger than those before
            until, now = fire_key(read_ms + 1 + soon.ahead_ms), fire_key(read_ms + 1)
            wanted = {int.from_bytes(entry): await unready.take(entry, until, now) for _, entry in piece}
            some = {position: items for position, items in wanted.items() if items}
            while some:
                for position in list(islice(some, await state.ready.read_ahead(some))):
                    del some[position]
            now = HIGHEST if state.open.withdrawn_count else fire_key(state.clock.now_ms() + 1)
            passed = [item for items in wanted.values() for item in items if item < now]
            state.ready.drop(
                [item for item in passed if not state.open.is_waiting(item)]
            )  # delivered or cancelled meanwhile
        return soon.near_ms
