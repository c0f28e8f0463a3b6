"""The slots between the read mark and the write mark, and which of their schedules are in memory. Pure.

    ... done for good ... | read mark   open slots   write mark | ... only on disk ...

The write mark is the barrier: a schedule scheduled in a slot before it is also given to `arrive`; a slot at or after it
is only on disk, and is opened by moving the mark past it and then walking its chain as it stood at that moment. So
every schedule of an open slot gets here exactly once: by the walk, or because it arrived after it.

All of it also is in the wheel, so memory is a cache and may be bounded: each open slot has a *bound*, and exactly
its schedules below the bound are in memory (or fired). A slot too full to load at once is loaded in pages of its
smallest schedules; when arrivals overfill memory, the latest are evicted by lowering bounds. Schedules compare by
(fire ms, entry position, record index): records due at one millisecond keep the order in which they were sent.

Nothing here takes time by how much is in memory: what is loaded, due or evicted is handled run by run (timer/runs.py).

Invariants
    O1  read mark < write mark.
    O2  What is popped is below every bound: nothing on disk is older than what fires.
    O3  A bound never drops to or below a key popped from its slot: a walk cannot find a schedule a second time.
"""

from __future__ import annotations

import heapq
from collections import Counter
from dataclasses import dataclass, field

from timer.items import HIGHEST, LOWEST, Item, Key, fire_key, fire_ms_of, slot_bytes, slot_of
from timer.runs import RUN_COUNT, Runs
from timer.schedule import SLOT_MS

_PAGE_SHARE = 4  # a page is this part of what memory holds at most;
_EVICTED_SHARE = 16  # this part of it is evicted at once


@dataclass(slots=True)
class _Slot:
    delivered_from: int  # every delivery out of this slot lies at or after it in the log
    bound: Key
    popped: Key = LOWEST  # the largest item that has left memory
    outstanding_count: int = 0  # in memory, or popped and not done
    loading: bool = False
    arrived: list[Item] = field(default_factory=list)  # at or above the bound, while a walk is under way
    withdrawn: set[Item] = field(default_factory=set)  # not to be popped, wherever they are


class Load:
    """One walk over a slot's chain, collecting the smallest schedules at or above its bound."""

    def __init__(self, slot_s: int, bound: Key, page_count: int) -> None:
        self.slot_s = slot_s
        self.started_from = bound
        self._page_count = page_count
        self._unsorted: list[Item] = []
        self._page = Runs()
        self._to = HIGHEST

    def offer(self, item: Item) -> None:
        """Take an item of the chain, in any order."""
        if self.started_from <= item < self._to:
            self._unsorted.append(item)
            if len(self._unsorted) == RUN_COUNT:
                self._add()
                if len(self._page) > self._page_count + self._page_count // 4:
                    self._cut()

    def result(self) -> tuple[Runs, Key]:
        """The page, and the key of the first schedule it leaves on disk."""
        self._add()
        self._cut()
        return self._page, self._to

    def _add(self) -> None:
        self._unsorted.sort()
        self._page.add(self._unsorted)
        self._unsorted = []

    def _cut(self) -> None:
        if len(self._page) > self._page_count:
            self._to = self._page.key_near(self._page_count)
            self._page.cut(self._to)


class OpenSlots:
    """The open slots of one timer. Counts and marks are exact; memory is about `count_max` items and one page."""

    def __init__(self, read_mark_s: int, *, delivered_from: int, count_max: int) -> None:
        self.read_mark_s = read_mark_s
        self.write_mark_s = read_mark_s + 1
        self._count_max = count_max
        self.page_count = max(1, count_max // _PAGE_SHARE)
        """What one walk brings into memory at most."""
        self._memory = Runs()
        self._slots: dict[int, _Slot] = {}
        self._order: list[int] = []  # heap of the open slots' seconds
        self._partial: set[int] = set()
        self._late: set[Item] = set()  # in memory, though not above what was popped: came late, or put back
        self._leaving: set[Item] = set()  # popped, and neither done nor put back yet
        self._told_until = LOWEST  # what is in memory below it was told by `news`, or will be the next time:
        self._untold: list[Item] = []
        # Schedules that were late when they arrived are in the slot that was the read mark then, so this one, and
        # no later one, may hold some that were due before its second.
        self._add(read_mark_s, delivered_from, LOWEST)

    def open(self, slot_s: int, delivered_from: int) -> None:
        """Open a slot that holds something; it is to be loaded next. No slot between the write mark and it does."""
        assert slot_s >= self.write_mark_s
        self.write_mark_s = slot_s + 1
        self._add(slot_s, delivered_from, fire_key(slot_s * SLOT_MS))

    def skip_to(self, slot_s: int) -> None:
        """Move the write mark over slots that hold nothing."""
        self.write_mark_s = max(self.write_mark_s, slot_s)

    def arrive(self, item: Item, delivered_from: int) -> None:
        """Take a schedule just scheduled in an open slot."""
        slot_s = slot_of(item)
        assert self.read_mark_s <= slot_s < self.write_mark_s
        slot = self._slots.get(slot_s)
        if slot is None:
            slot = self._add(slot_s, delivered_from, HIGHEST)
        if item < slot.bound:
            slot.outstanding_count += 1
            self._memory.push(item)
            if item < self._told_until:
                self._untold.append(item)
            if item <= slot.popped:
                self._late.add(item)
            if len(self._memory) > self._count_max:
                self._evict()
        elif slot.loading:
            slot.arrived.append(item)

    def next_load(self, until_ms: int) -> Load | None:
        """The walk to do next, if any: of the slot whose bound comes first, when it comes before `until_ms`, of those
        that are not walked just now."""
        waiting = [slot_s for slot_s in self._partial if not self._slots[slot_s].loading]
        if not waiting:
            return None
        slot_s = min(waiting, key=lambda partial_s: self._slots[partial_s].bound)
        slot = self._slots[slot_s]
        if slot.bound > fire_key(until_ms):
            return None
        if len(self._memory) >= self._count_max // 2:
            first = self._memory.first()
            if first is not None and first < slot.bound:
                return None  # what is there fires first, and makes room
        slot.loading = True
        return Load(slot_s, slot.bound, self.page_count)

    def finish(self, load: Load) -> None:
        """Take the page of a finished walk."""
        slot = self._slots[load.slot_s]
        slot.loading = False
        arrived, slot.arrived = slot.arrived, []
        if slot.bound != load.started_from:
            return  # schedules were evicted meanwhile: the walk has not seen them; the next one will
        page, slot.bound = load.result()
        page.add(sorted(item for item in arrived if item < slot.bound))
        slot.outstanding_count += len(page)
        self._untold += page.between(LOWEST, self._told_until)
        self._memory.take_over(page)
        if slot.bound == HIGHEST:
            self._partial.discard(load.slot_s)
        if len(self._memory) > self._count_max:
            self._evict()

    def pop_due(self, now_ms: int, count_max: int) -> list[Item]:
        """Take out what is due at `now_ms`, in order, at most `count_max`. Each is to be given to `done` or
        `put_back`."""
        due = self._memory.take(min(self._limit(), fire_key(now_ms + 1)), count_max)
        self._leaving.update(due)
        if self._late:
            self._late.difference_update(due)
        is_withdrawn = False
        lasts = dict(zip(map(slot_bytes, due), due, strict=True))  # of each slot the last one: it is the largest
        for last in lasts.values():
            slot = self._slots[slot_of(last)]
            is_withdrawn = is_withdrawn or bool(slot.withdrawn)
            slot.popped = max(slot.popped, last)
        if is_withdrawn:
            withdrawn = [item for item in due if item in self._slots[slot_of(item)].withdrawn]
            self.done(withdrawn)
            gone = set(withdrawn)
            due = [item for item in due if item not in gone]
        return due

    def count_before(self, until_ms: int) -> int:
        """How much of what is in memory is due before `until_ms`."""
        return self._memory.count_below(fire_key(until_ms))

    def due_before(self, until_ms: int) -> list[Item]:
        """What is in memory and due before `until_ms`, in no order."""
        return self._memory.between(LOWEST, fire_key(until_ms))

    def news(self, until_ms: int) -> list[Item]:
        """What is in memory and due before `until_ms`, in no order, and was not told before; what left memory and came
        back, and what left it since it came, may be told as well."""
        told, self._untold = self._untold, []
        until = fire_key(until_ms)
        if until > self._told_until:
            told += self._memory.between(self._told_until, until)
            self._told_until = until
        return told

    def forget_news(self) -> None:
        """Tell all of it anew, when asked again; until then nothing is noted."""
        self._told_until, self._untold = LOWEST, []

    def withdraw(self, item: Item) -> None:
        """Have a waiting schedule never popped from its slot, if that is open: something else has consumed it."""
        if (slot := self._slots.get(slot_of(item))) is not None:
            slot.withdrawn.add(item)

    def is_waiting(self, item: Item) -> bool:
        """Whether a schedule that is in a slot before the write mark is still to fire, or is leaving just now."""
        slot = self._slots.get(slot_of(item))
        if slot is None or item in slot.withdrawn:
            return False
        return item > slot.popped or item in self._late or item in self._leaving

    @property
    def withdrawn_count(self) -> int:
        """Schedules withdrawn from slots that are still open."""
        return sum(len(slot.withdrawn) for slot in self._slots.values())

    def put_back(self, items: list[Item]) -> None:
        """Return items that could not be delivered now, in any order: what has waited apart came bit by bit."""
        self._memory.add(sorted(items))
        self._late.update(items)
        self._leaving.difference_update(items)

    def done(self, items: list[Item]) -> None:
        """Items whose delivery (or roll, or drop) is durable."""
        for slot, count in Counter(map(slot_bytes, items)).items():
            self._slots[int.from_bytes(slot)].outstanding_count -= count
        self._leaving.difference_update(items)

    def advance(self, now_s: int) -> None:
        """Move the read mark past slots whose second is over and whose schedules are all done."""
        limit_s = min(now_s, self.write_mark_s - 1)
        order = self._order
        while order and order[0] < limit_s:
            slot = self._slots[order[0]]
            if slot.outstanding_count or slot.bound != HIGHEST:
                limit_s = order[0]
                break
            del self._slots[heapq.heappop(order)]
        self.read_mark_s = max(self.read_mark_s, limit_s)

    def delivered_from(self, log_end: int) -> int:
        """Log position at or after which every delivery out of open slots lies; `log_end` when none is open."""
        return min((slot.delivered_from for slot in self._slots.values()), default=log_end)

    def next_fire_ms(self) -> int | None:
        """When the next schedule in memory is due."""
        first = self._memory.first()
        return None if first is None else fire_ms_of(first)

    def is_behind(self, late_ms: int, count_least: int) -> bool:
        """Whether so many schedules are in memory, and the first was due before `late_ms` and can be popped: whatever
        could be loaded now fires after it."""
        if len(self._memory) < count_least:
            return False
        first = self._memory.first()
        return first is not None and first < min(fire_key(late_ms), self._limit())

    def has_room(self) -> bool:
        """Whether further slots should be opened: nothing waits to be loaded, and memory is not half full."""
        return not self._partial and len(self._memory) < self._count_max // 2

    @property
    def is_loaded(self) -> bool:
        """Whether all schedules of open slots are in memory."""
        return not self._partial

    def is_full(self) -> bool:
        """Whether arrivals should wait: memory is over its limit with schedules that fire at once."""
        return len(self._memory) > self._count_max

    @property
    def in_memory_count(self) -> int:
        """Schedules in memory."""
        return len(self._memory)

    def _add(self, slot_s: int, delivered_from: int, bound: Key) -> _Slot:
        slot = self._slots[slot_s] = _Slot(delivered_from, bound)
        heapq.heappush(self._order, slot_s)
        if bound != HIGHEST:
            self._partial.add(slot_s)
        return slot

    def _limit(self) -> Key:
        return min((self._slots[slot_s].bound for slot_s in self._partial), default=HIGHEST)

    def _evict(self) -> None:
        """Give the latest back to the disk. What O3 forbids to give back stays: it is overdue and fires next."""
        evicted_count = max(1, self._count_max // _EVICTED_SHARE)
        if len(self._memory) - len(self._late) < evicted_count:
            return
        stays: list[Item] = []
        key = self._memory.key_near(self._count_max - evicted_count)
        self._told_until = min(self._told_until, key)
        for item in self._memory.cut(key):
            slot_s = slot_of(item)
            slot = self._slots[slot_s]
            if item <= slot.popped:
                stays.append(item)
                continue
            slot.outstanding_count -= 1
            if item < slot.bound:
                slot.bound = item
                self._partial.add(slot_s)
        stays.sort()
        self._memory.add(stays)
