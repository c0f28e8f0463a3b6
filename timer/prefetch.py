"""A stage beside the deliveries: what falls due soon is read and decoded before it is due.

Where due times are mixed within the accepted batches, every moment wants a few records of each of many entries. To read
and check a whole entry again for each moment costs more than all else that a delivery does, and what is due would wait
for it. So, some four times a second, the schedules in memory are looked through up to a second ahead. An entry of which
something falls due in the first half of that, and is not at hand, is read, and decoded for all of it.

A delivery decodes what is not at hand: what arrived since the last look, and all of it when so much is due that each
entry is wanted for much at once. When that is many records, those are decoded with them that are due next in the same
entries. While deliveries are late, nothing else is looked for ahead of them: that would only take the event loop from
them, and the more so the more is due.
"""

from __future__ import annotations

import asyncio
from itertools import islice
from typing import NamedTuple

from timer.items import fire_key, source_of
from timer.record_cache import DECODED_OVERHEAD_BYTES
from timer.state import TURN_UNITS, TimerState

PREFETCH_MS = 1000
"""As far ahead entries are decoded; it looks again after a quarter of it."""

PREFETCH_RECORDS_MAX = 20_000
"""With more due so soon, it looks half as far ahead, and half as far again."""

PREFETCH_INTERVAL_MS_MIN = 50
"""How often it looks when much is due."""

LATE_MS = 100
"""Deliveries that are later than this have the event loop for themselves."""


class Soon(NamedTuple):
    """What is in memory and due within `ahead_ms`: the indexes of the records by the position of their entry, and of
    these the ones due in the first half."""

    ahead_ms: int
    indexes: dict[int, list[int]]
    near: dict[int, list[int]]


async def due_soon(state: TimerState, now_ms: int, count_max: int) -> Soon | None:
    """What falls due within PREFETCH_MS, or within a part of that when it is more than `count_max`; None when too much
    is due at once."""
    # So many that they take a quarter of what bodies may: of an entry of which a quarter is wanted, all is.
    bytes_max = state.config.bodies_bytes_max // 4
    count_max = min(count_max, bytes_max // (state.record_bytes + DECODED_OVERHEAD_BYTES))
    ahead_ms = PREFETCH_MS
    while (items := state.open.due_before(now_ms + 1 + ahead_ms, count_max)) is None:
        if not ahead_ms:
            return None
        ahead_ms //= 2
    half = fire_key(now_ms + 1 + ahead_ms // 2)
    soon = Soon(ahead_ms, {}, {})
    for number, item in enumerate(items, 1):
        position, index = source_of(item)
        soon.indexes.setdefault(position, []).append(index)
        if item < half:
            soon.near.setdefault(position, []).append(index)
        if number % TURN_UNITS == 0:
            await state.log.yield_to_loop()
    return soon


class Prefetch:
    """Has the records of what is due soon at hand, in `state.bodies`."""

    def __init__(self, state: TimerState) -> None:
        self._state = state

    async def run(self) -> None:
        """Prefetch until cancelled. Raises StoreStopped."""
        while True:
            ahead_ms = await self.step()
            await asyncio.sleep(max(PREFETCH_INTERVAL_MS_MIN, ahead_ms // 4) / 1000)

    async def step(self) -> int:
        """Look once, and read what is not at hand; return how many ms ahead. Raises StoreStopped."""
        state = self._state
        yield_to_loop = state.log.yield_to_loop
        now_ms = state.clock.now_ms()
        fire_ms = state.open.next_fire_ms()
        if fire_ms is not None and fire_ms < now_ms - LATE_MS:
            return 0
        soon = await due_soon(state, now_ms, PREFETCH_RECORDS_MAX)
        if soon is None:
            return 0
        ahead_ms, indexes = soon.ahead_ms, soon.indexes
        entries = iter(soon.near.items())
        while some := list(islice(entries, TURN_UNITS)):
            if state.clock.now_ms() > now_ms + ahead_ms // 2:
                break  # it is too slow, and what is left is due
            wanted = {
                position: indexes[position] for position, near in some if not state.record_cache.has(position, near)
            }
            while wanted:
                for position in list(islice(wanted, await state.record_cache.read_ahead(wanted))):
                    del wanted[position]
            await yield_to_loop()
        return ahead_ms
