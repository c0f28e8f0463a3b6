"""The slots between the read mark and the write mark, and which of their schedules are in memory. Pure.

    ... done for good ... | read mark   open slots   write mark | ... only on disk ...

The write mark is the barrier: a schedule hung into a slot before it is also given to `arrive`; a slot at or after it
is only on disk, and is opened by moving the mark past it and then walking its chain as it stood at that moment. So
every schedule of an open slot gets here exactly once: by the walk, or because it arrived after it.

All of it also hangs in the wheel, so memory is a cache and may be bounded: each open slot has a *bound*, and exactly
its schedules below the bound are in the heap (or fired). A slot too full to load at once is loaded in pages of its
smallest schedules; when arrivals overfill the heap, the latest are evicted by lowering bounds. Schedules compare by
(fire ms, entry position, record index): records due at one millisecond keep the order in which they were sent.

Invariants
    O1  read mark < write mark.
    O2  What is popped is below every bound: nothing on disk is older than what fires.
    O3  A bound never drops to or below a key popped from its slot: a walk cannot find a schedule a second time.
"""

from __future__ import annotations

import heapq
from bisect import bisect_left
from dataclasses import dataclass, field

from timer.schedule import SLOT_MS

Key = tuple[int, ...]
"""Compares with an Item by its first three fields; shorter keys sort before all they are a prefix of."""

_LOWEST: Key = ()
_COMPLETE: Key = (1 << 63,)
_POPPED_SINGLY_COUNT = 64  # beyond it, sorting the heap once costs less than popping each
_RUN_COUNT = 512  # items of a walk that are sorted at once, and
_MERGE_COUNT = 8192  # merged at once: the walk sorts as it goes, and no turn of it takes long


Item = tuple[int, int, int, int, bool]
"""One schedule of an open slot: (fire ms, entry position, record index, slot s, rolls). `fire ms` is its due time, or
the start of its slot when it only rolls there. A plain tuple: they sort faster, and garbage collection skips them."""


@dataclass(slots=True)
class _Slot:
    delivered_from: int  # every delivery out of this slot lies at or after it in the log
    bound: Key
    popped: Key = _LOWEST  # the largest key that has left the heap
    outstanding_count: int = 0  # in the heap, or popped and not done
    loading: bool = False
    arrivals: list[Item] = field(default_factory=list)  # at or above the bound, while a walk is under way
    withdrawn: set[Key] = field(default_factory=set)  # not to be popped, wherever they are


class Load:
    """One walk over a slot's chain, collecting the smallest schedules at or above its bound."""

    def __init__(self, slot_s: int, bound: Key, page_count: int) -> None:
        self.slot_s = slot_s
        self._from = bound
        self._page_count = page_count
        self._items: list[Item] = []
        self._run_from = 0  # where the last, unsorted run begins
        self._merged_count = 0  # before it, everything is one sorted run
        self._to = _COMPLETE

    def offer(self, item: Item) -> None:
        """Take an item of the chain, in any order."""
        if self._from <= item < self._to:
            items = self._items
            items.append(item)
            if len(items) - self._run_from == _RUN_COUNT:
                items[self._run_from :] = sorted(items[self._run_from :])
                self._run_from = len(items)
                if self._run_from - self._merged_count >= _MERGE_COUNT:
                    self._cut()

    def result(self) -> tuple[list[Item], Key]:
        """The page, sorted, and the key of the first schedule it leaves on disk."""
        self._cut()
        return self._items, self._to

    @property
    def started_from(self) -> Key:
        return self._from

    def _cut(self) -> None:
        self._items.sort()  # merges runs
        if len(self._items) > self._page_count:
            self._to = self._items[self._page_count][:3]
            del self._items[self._page_count :]
        self._run_from = self._merged_count = len(self._items)


class OpenSlots:
    """The open slots of one timer. Counts and marks are exact; memory is about `count_max` items and one page."""

    def __init__(self, read_mark_s: int, *, delivered_from: int, count_max: int) -> None:
        self.read_mark_s = read_mark_s
        self.write_mark_s = read_mark_s + 1
        self._count_max = count_max
        self._page_count = max(1, count_max // 4)
        self._heap: list[Item] = []
        self._is_sorted = True  # then it is a heap too, and what is due is its beginning
        self._slots: dict[int, _Slot] = {}
        self._order: list[int] = []  # heap of the open slots' seconds
        self._partial: set[int] = set()
        self._late: set[Key] = set()  # in the heap, though not above what was popped: came late, or put back
        self._leaving: set[Key] = set()  # popped last, and neither done nor put back yet
        # Schedules that were late when they arrived hang in the slot that was the read mark then, so this one, and
        # no later one, may hold some that were due before its second.
        self._add(read_mark_s, delivered_from, _LOWEST)

    def open(self, slot_s: int, delivered_from: int) -> None:
        """Open a slot that holds something; it is to be loaded next. No slot between the write mark and it does."""
        assert slot_s >= self.write_mark_s
        self.write_mark_s = slot_s + 1
        self._add(slot_s, delivered_from, (slot_s * SLOT_MS,))

    def skip_to(self, slot_s: int) -> None:
        """Move the write mark over slots that hold nothing."""
        self.write_mark_s = max(self.write_mark_s, slot_s)

    def arrive(self, item: Item, delivered_from: int) -> None:
        """Take a schedule just hung into an open slot."""
        slot_s = item[3]
        assert self.read_mark_s <= slot_s < self.write_mark_s
        slot = self._slots.get(slot_s)
        if slot is None:
            slot = self._add(slot_s, delivered_from, _COMPLETE)
        if item < slot.bound:
            slot.outstanding_count += 1
            self._push(item)
            if item[:3] <= slot.popped:
                self._late.add(item[:3])
            if len(self._heap) > self._count_max:
                self._evict()
        elif slot.loading:
            slot.arrivals.append(item)

    def next_load(self, until_ms: int) -> Load | None:
        """The walk to do next, if any: of the slot whose bound comes first, when it comes before `until_ms`."""
        if not self._partial:
            return None
        slot_s = min(self._partial, key=lambda partial_s: self._slots[partial_s].bound)
        slot = self._slots[slot_s]
        if slot.bound > (until_ms,):
            return None
        if len(self._heap) >= self._count_max // 2 and self._heap[0] < slot.bound:
            return None  # what is there fires first, and makes room
        slot.loading = True
        return Load(slot_s, slot.bound, self._page_count)

    def finish(self, load: Load) -> None:
        """Take the page of a finished walk."""
        slot = self._slots[load.slot_s]
        slot.loading = False
        arrivals, slot.arrivals = slot.arrivals, []
        if slot.bound != load.started_from:
            return  # schedules were evicted meanwhile: the walk has not seen them; the next one will
        items, slot.bound = load.result()
        items += [item for item in arrivals if item < slot.bound]
        slot.outstanding_count += len(items)
        self._heap += items
        self._sort()
        if slot.bound == _COMPLETE:
            self._partial.discard(load.slot_s)
        if len(self._heap) > self._count_max:
            self._evict()

    def pop_due(self, now_ms: int, count_max: int) -> list[Item]:
        """Take out what is due at `now_ms`, in order, at most `count_max`. Each is to be given to `done` or
        `put_back`."""
        heap = self._heap
        due: list[Item] = []
        limit = min(self._limit(), (now_ms + 1,))
        if not self._is_sorted:
            while heap and len(due) < min(count_max, _POPPED_SINGLY_COUNT) and heap[0] < limit:
                due.append(heapq.heappop(heap))
            if len(due) == _POPPED_SINGLY_COUNT and heap and heap[0] < limit:
                self._sort()
        if self._is_sorted:
            count = bisect_left(heap, limit, hi=min(len(heap), count_max - len(due)))
            due += heap[:count]
            del heap[:count]
        is_withdrawn = False
        self._leaving = {item[:3] for item in due}
        self._late -= self._leaving
        for slot_s, last in {item[3]: item for item in due}.items():  # of each slot the last one: it is the largest
            slot = self._slots[slot_s]
            is_withdrawn = is_withdrawn or bool(slot.withdrawn)
            if slot.popped < last:
                slot.popped = last[:3]
        if is_withdrawn:
            withdrawn = [item for item in due if item[:3] in self._slots[item[3]].withdrawn]
            self.done(withdrawn)
            gone = set(withdrawn)
            due = [item for item in due if item not in gone]
        return due

    def withdraw(self, item: Item) -> None:
        """Have a waiting schedule never popped from its slot, if that is open: something else has consumed it."""
        if (slot := self._slots.get(item[3])) is not None:
            slot.withdrawn.add(item[:3])

    def is_waiting(self, item: Item) -> bool:
        """Whether a schedule that hangs in a slot before the write mark is still to fire, or is leaving just now."""
        slot = self._slots.get(item[3])
        if slot is None or item[:3] in slot.withdrawn:
            return False
        key = item[:3]
        return key > slot.popped or key in self._late or key in self._leaving

    @property
    def withdrawn_count(self) -> int:
        """Schedules withdrawn from slots that are still open."""
        return sum(len(slot.withdrawn) for slot in self._slots.values())

    def put_back(self, items: list[Item]) -> None:
        """Return items that could not be delivered now."""
        for item in items:
            self._push(item)
        keys = {item[:3] for item in items}
        self._late |= keys
        self._leaving -= keys

    def done(self, items: list[Item]) -> None:
        """Items whose delivery (or roll, or drop) is durable."""
        slots = self._slots
        for item in items:
            slots[item[3]].outstanding_count -= 1
        self._leaving.difference_update(item[:3] for item in items)

    def advance(self, now_s: int) -> None:
        """Move the read mark past slots whose second is over and whose schedules are all done."""
        limit_s = min(now_s, self.write_mark_s - 1)
        order = self._order
        while order and order[0] < limit_s:
            slot = self._slots[order[0]]
            if slot.outstanding_count or slot.bound != _COMPLETE:
                limit_s = order[0]
                break
            del self._slots[heapq.heappop(order)]
        self.read_mark_s = max(self.read_mark_s, limit_s)

    def delivered_from(self, log_end: int) -> int:
        """Log position at or after which every delivery out of open slots lies; `log_end` when none is open."""
        return min((slot.delivered_from for slot in self._slots.values()), default=log_end)

    def next_fire_ms(self) -> int | None:
        """When the next schedule in memory is due."""
        return self._heap[0][0] if self._heap else None

    def has_room(self) -> bool:
        """Whether further slots should be opened: nothing waits to be loaded, and the heap is not half full."""
        return not self._partial and len(self._heap) < self._count_max // 2

    @property
    def is_loaded(self) -> bool:
        """Whether all schedules of open slots are in memory."""
        return not self._partial

    def is_full(self) -> bool:
        """Whether arrivals should wait: the heap is over its limit with schedules that fire at once."""
        return len(self._heap) > self._count_max

    @property
    def in_memory_count(self) -> int:
        return len(self._heap)

    def _add(self, slot_s: int, delivered_from: int, bound: Key) -> _Slot:
        slot = self._slots[slot_s] = _Slot(delivered_from, bound)
        heapq.heappush(self._order, slot_s)
        if bound != _COMPLETE:
            self._partial.add(slot_s)
        return slot

    def _push(self, item: Item) -> None:
        heap = self._heap
        if self._is_sorted and heap and item < heap[-1]:
            self._is_sorted = False
        heapq.heappush(heap, item)

    def _sort(self) -> None:
        """Quick when much of it is sorted: it mostly is, from the last time."""
        self._heap.sort()
        self._is_sorted = True

    def _limit(self) -> Key:
        return min((self._slots[slot_s].bound for slot_s in self._partial), default=_COMPLETE)

    def _evict(self) -> None:
        """Give the later half back to the disk. What O3 forbids to give back stays: it is overdue and fires next."""
        self._sort()
        kept = self._count_max // 2
        for item in self._heap[kept:]:
            slot_s = item[3]
            slot = self._slots[slot_s]
            if item < slot.popped or item[:3] == slot.popped:
                self._heap[kept] = item
                kept += 1
                continue
            slot.outstanding_count -= 1
            if item < slot.bound:
                slot.bound = item[:3]
                self._partial.add(slot_s)
        del self._heap[kept:]
