"""Stages three to five of the timer: from the wheel into the partitions.

    dequeue get       open the slots the clock comes near, walk their chains
    dequeue message   take what is due, read its records
    dequeue put       deliver one batch for each partition (or append it again to `__timer`, when it rolls), flushed

A slot is opened `open_ahead_ms` early or more, so that its first millisecond is on time, and by a loop of its own: what
is due does not wait until the next, perhaps full, slot has been walked.

Invariants
    D1  A record is popped only when the clock says it is due.
    D2  A schedule is counted done only when its delivery, roll or drop is decided durably; until then its slot stays
        before the checkpoint's reach, and a restart takes it up again.
    D3  A loop that finds nothing to do waits: never for less than a millisecond, and longer and longer while the clock
        stands still.
    D4  What a partition's broker has refused waits apart, and what is due for the same partition waits behind it: the
        others go on. It waits in memory, as much as HELD_SHARE says; beyond it all wait.
    D5  Nothing waits behind a record that is refused for what it is: batches with it become smaller until it is alone,
        then it is tried now and then, for REFUSED_S, and dropped.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
from collections.abc import Awaitable, Callable, Iterator, Sequence
from heapq import heapify, heappop, heapreplace
from itertools import takewhile

from store.errors import DiskFull, Overloaded, RecordTooLarge, StoreError, StoreStopped, UnknownQueue
from store.limits import KiB, MiB
from store.types import Acks, Source
from store.uncancelled import to_its_end
from store.waits import is_set_within
from timer.delivery import Group, Grouping
from timer.items import Item, fire_ms_of, item_of, source_of
from timer.open_slots import Load
from timer.ports import Delivered, Partitions, Target
from timer.prefetch import LATE_MS, PREFETCH_RECORDS_MAX, items_of, look_ahead
from timer.ready import FRAMING_BYTES
from timer.schedule import SLOT_MS
from timer.state import TURN_UNITS, TimerState
from timer.timer_log import MAGIC_DELETE
from timer.wheel import NOWHERE

log = logging.getLogger(__name__)

RETRY_MS = 200
"""How long what was refused for lack of room waits."""

HELD_RETRY_MS_MAX = 5_000
"""How long what waits for a broker that is away waits at most before it is tried again."""

HELD_SHARE = 2
"""What waits for brokers that are away may be this part of `heap_count_max`."""

REFUSED_S = 600.0
"""How long a record is tried that the broker of its partition refuses for what it is: its settings may have changed
since it was accepted."""

REFUSED_RETRY_S = 60.0
"""How often."""

PIECE_RECORDS_MAX = 256
PIECE_BYTES_MAX = 48 * KiB
"""What one append delivers (a single larger record still goes), so that no append waits long behind it: the log
takes this and some small appends in one group without a thread (store/log/pace.py)."""

CATCH_UP_MS = 1000
CATCH_UP_RECORDS_MAX = 1024
CATCH_UP_BYTES_MAX = 1 * MiB
"""What one append delivers once the oldest due record is so late: fewer appends deliver more; others wait longer."""

BUSY_RECORDS_MIN = 48
"""Behind a go that delivers so many, 12,000 a second, the next one begins twice as far off: half as many syncs and
frames, for 2 ms more of lateness."""

TOGETHER_S = 4
"""When a slot is to be opened, those of so many seconds behind it are opened with it, if they are not large: what was
accepted together lies together."""

_SOON_SHARE = 8
"""Schedules in memory that are looked through for each record that is not at hand: a few microseconds."""

_POPPED_COUNT = 256  # between two turns of the event loop
_TAKEN_COUNT = 1024  # the same
_GROUPED_COUNT = 128
_IDLE_MS_MAX = 500
_STANDSTILL_MS_MAX = 32  # how rarely a clock is looked at that stands still just before something is due


_Put = Callable[[list[Group]], Awaitable[Sequence[Delivered]]]


class Firing:
    """Delivers what is due, oldest first."""

    def __init__(self, state: TimerState, partitions: Partitions) -> None:
        self._state = state
        self._partitions = partitions
        self._blocked = False  # the last delivery found no room on the disk or in the writer's queue
        self._waits_to_open = False  # slots, until what is late is delivered
        self._held: dict[Target, list[Item]] = {}  # due, for partitions that could not be reached (D4)
        self._held_count = 0
        self._retry_s = 0.0  # when it is tried again, by the event loop's clock
        self._retry_ms = RETRY_MS
        self._refused: list[Item] = []  # each alone, for what it is (D5); they count among those held
        self._refused_retry_s = 0.0
        self._refused_since_s: dict[Item, float] = {}
        self._records_max: dict[Target, int] = {}  # of a batch, where one was refused
        self._lost_targets: set[Target] = set()

    async def run(self) -> None:
        """Deliver until cancelled."""
        state = self._state
        time_s = asyncio.get_running_loop().time
        interval_s = state.config.fire_interval_ms / 1000
        looked_at_ms = -1
        standstill_ms = 1
        while True:
            state.wake.clear()
            started_s = time_s()
            if count := await to_its_end(self.go()):  # a stop between an append and its count leaves that wrong
                share = 2 if count >= BUSY_RECORDS_MIN else 1
                await asyncio.sleep(max(0, started_s + share * interval_s - time_s()))
                continue
            now_ms = state.clock.now_ms()
            standstill_ms = min(2 * standstill_ms, _STANDSTILL_MS_MAX) if now_ms == looked_at_ms else 1
            looked_at_ms = now_ms
            await is_set_within(state.wake, max(standstill_ms, self.idle_ms()) / 1000)

    async def run_get(self) -> None:
        """Open slots until cancelled."""
        state = self._state
        wait_ms = self._open_interval_ms()
        while True:
            state.drained.clear()
            await self.get(state.clock.now_ms())
            state.wake.set()
            await is_set_within(state.drained, wait_ms / 1000)

    def idle_ms(self) -> int:
        """How long nothing can become due, by a clock that may lie: so never long, and never 0."""
        if self._blocked:
            return RETRY_MS
        is_waiting = self._held or self._refused
        wait_ms = min(RETRY_MS, self._open_interval_ms()) if is_waiting else self._open_interval_ms()
        fire_ms = self._state.open.next_fire_ms()
        return wait_ms if fire_ms is None else max(1, min(wait_ms, fire_ms - self._state.clock.now_ms()))

    def _open_interval_ms(self) -> int:
        return min(_IDLE_MS_MAX, max(1, self._state.config.open_ahead_ms // 2))

    async def get(self, now_ms: int) -> None:
        """Open slots up to a little ahead of the clock, and load them as memory allows; none while intake catches
        up with the start, nor while deliveries are late that fill two goes: to walk what fires after them would take
        the event loop from them."""
        state = self._state
        if state.is_catching_up:
            return
        until_ms = now_ms + state.config.open_ahead_ms
        open_slots = state.open
        while True:
            late_ms = state.clock.now_ms() - LATE_MS
            # Two goes, so that the next one is full while more is loaded.
            self._waits_to_open = open_slots.is_behind(late_ms, 2 * state.config.fire_records_max)
            if self._waits_to_open:
                return
            loads: list[Load] = []
            count = 0
            while count < open_slots.page_count and (load := open_slots.next_load(until_ms + TOGETHER_S * SLOT_MS)):
                loads.append(load)
                count += state.wheel.at(load.slot_s).unit_count
            if loads:
                await self._walk(loads)
                continue
            if not open_slots.has_room():
                return
            to_s = until_ms // SLOT_MS + 1
            slot_s = state.wheel.next_occupied(open_slots.write_mark_s, to_s)
            if slot_s is None:
                open_slots.skip_to(to_s)
                return
            while slot_s is not None and count < open_slots.page_count:
                open_slots.open(slot_s, state.log.end_position)
                if slot_s * SLOT_MS <= now_ms:  # it is late: what fires after it can wait
                    break
                count += state.wheel.at(slot_s).unit_count
                slot_s = state.wheel.next_occupied(open_slots.write_mark_s, to_s + TOGETHER_S)

    async def _walk(self, loads: Sequence[Load]) -> None:
        """Walk the chains of open slots as they stand now, the newest unit of all of them first: where those of several
        seconds lie side by side, they are read together."""
        state = self._state
        read = state.timer_log.read
        lasts = [state.wheel.at(load.slot_s).last for load in loads]
        heads = [(-last, number) for number, last in enumerate(lasts) if last != NOWHERE]
        heapify(heads)
        for count in itertools.count(1):
            if not heads:
                break
            position, number = heads[0]
            unit = read(-position)
            assert unit.slot_s == loads[number].slot_s
            if unit.previous == NOWHERE:
                heappop(heads)
            else:
                heapreplace(heads, (-unit.previous, number))
            if not unit.magic & MAGIC_DELETE:
                loads[number].offer(item_of(unit))
            if count % TURN_UNITS == 0:
                await state.log.yield_to_loop()
        await state.log.yield_to_loop()
        for load in loads:
            state.open.finish(load)

    async def go(self) -> int:
        """Deliver what is due, up to one batch; return how many records have left memory, cancelled ones included."""
        state = self._state
        self._blocked = False
        self._release_held()
        async with state.leaving:
            left_count = 0
            due: list[Item] = []
            while (room_count := self._go_count_max() - len(due)) > 0:
                popped_count = state.open.in_memory_count
                popped = state.open.pop_due(state.clock.now_ms(), min(room_count, _POPPED_COUNT))
                popped_count -= state.open.in_memory_count
                left_count += popped_count
                due += self._unconsumed(popped)
                if popped_count < _POPPED_COUNT:
                    break
                await state.log.yield_to_loop()
            if due:
                items, rows, rest = await self._message(due)
                state.open.put_back(rest)
                left_count -= len(rest)
                late_ms = state.clock.now_ms() - fire_ms_of(due[0])
                for piece in _pieces(rows, is_late=late_ms > CATCH_UP_MS):
                    if self._blocked:  # what follows must not overtake it
                        state.open.put_back(items[piece])
                        left_count -= len(items[piece])
                        continue
                    grouping = await self._group(items[piece], rows[piece])
                    for groups, put in ((grouping.rolling, self._roll), (grouping.firing, self._deliver)):
                        left_count -= await self._put(groups, put)
            state.open.advance(state.clock.now_ms() // SLOT_MS)
        state.room.set()
        # If nothing has left, two loops would keep each other awake.
        if left_count and (self._waits_to_open or not state.open.is_loaded):
            state.drained.set()
        return left_count

    def _release_held(self) -> None:
        """Try again what waits apart: now and then; a little of it also when nothing else is due."""
        open_slots, now_s = self._state.open, asyncio.get_running_loop().time()
        if self._refused and now_s >= self._refused_retry_s:
            self._refused_since_s = {item: self._refused_since_s.get(item, now_s) for item in self._refused}
            open_slots.put_back(self._refused)
            self._held_count -= len(self._refused)
            self._refused = []
        for target in [target for target in self._held if self._partitions.has_moved(target)]:
            items = self._held.pop(target)
            open_slots.put_back(items)
            self._held_count -= len(items)
        if not self._held:
            self._retry_ms = RETRY_MS
            return
        next_ms = open_slots.next_fire_ms()
        is_idle = next_ms is None or next_ms > self._state.clock.now_ms()
        if now_s < self._retry_s and not (is_idle and self._held_count <= CATCH_UP_RECORDS_MAX):
            return
        self._retry_s = now_s + self._retry_ms / 1000
        self._retry_ms = min(2 * self._retry_ms, HELD_RETRY_MS_MAX)  # to read many records again is work
        for items in self._held.values():
            open_slots.put_back(items)
        self._held.clear()
        self._held_count = len(self._refused)

    def _hold(self, group: Group) -> None:
        """Have a group wait for its partition's broker (D4)."""
        if self._may_hold(group):
            self._held.setdefault(group.target, []).extend(group.items)

    def _may_hold(self, group: Group) -> bool:
        """Whether a group may wait apart, where it then counts; else all wait for it."""
        if self._held_count + len(group.items) > self._state.config.heap_count_max // HELD_SHARE:
            self._blocked = True
            self._state.open.put_back(group.items)
            return False
        self._held_count += len(group.items)
        return True

    def _refuse(self, group: Group, error: StoreError) -> int:
        """Go on without a group that is refused for what is in it (D5); how many records are tried again."""
        count = len(group.items)
        if count > 1:
            self._records_max[group.target] = count // 2
            self._hold(group)
            return count
        [item] = group.items
        now_s = asyncio.get_running_loop().time()
        if now_s - self._refused_since_s.get(item, now_s) >= REFUSED_S:
            del self._refused_since_s[item]
            self._drop(group, error)
            return 0
        if item not in self._refused_since_s:
            self._refused_since_s[item] = now_s
            log.error(
                "timer: a due record is refused, tried for %d s and then dropped, topic id=%d partition=%d: %s",
                REFUSED_S, *group.target, error,
            )  # fmt: skip
        if self._may_hold(group):
            if not self._refused:
                self._refused_retry_s = now_s + REFUSED_RETRY_S
            self._refused.append(item)
        return 1

    def _small_enough(self, group: Group) -> Iterator[Group]:
        """A group, or its parts where a batch of its partition was refused, what is refused apart (D5)."""
        count, known = len(group.items), self._refused_since_s
        is_small = count <= self._records_max.get(group.target, count)
        if count == 1 or (is_small and not (known and any(item in known for item in group.items))):
            yield group
            return
        for half in group.halves():
            yield from self._small_enough(half)

    def _is_taken(self, target: Target) -> None:
        """A partition has taken a batch: the next ones may be larger."""
        if (count := self._records_max.pop(target, 0)) and count < CATCH_UP_RECORDS_MAX:
            self._records_max[target] = 2 * count

    def _go_count_max(self) -> int:
        """How many records to take in one go, so that half of its bytes are enough by all appearances: when they are
        not, what was read of later ones is read in vain."""
        config = self._state.config
        return min(config.fire_records_max, max(1, config.fire_bytes_max // (2 * self._state.record_bytes or 1)))

    def _unconsumed(self, due: list[Item]) -> list[Item]:
        """What a change, or a delivery before the start, has not consumed. In the turn in which it was popped: a
        tombstone that is met from then on ends the claim on its copy, which would not be looked for again."""
        state = self._state
        consumed, changed = state.consumed_scheduled, state.changed
        if not consumed and not changed:
            return due
        gone = [item for item in due if (source := source_of(item)) in consumed or source in changed]
        if not gone:
            return due
        for item in gone:
            if consumed.pop(source_of(item), None) is not None:
                state.metrics.already_delivered_count += 1
        state.open.done(gone)
        state.ready.drop(gone)
        known = set(gone)
        return [item for item in due if item not in known]

    async def _message(self, due: list[Item]) -> tuple[list[Item], list[bytes], list[Item]]:
        """The rows of due items: those that were read, with their rows, in order, and the items that did not fit the
        bytes of one go.

        Each entry is read once for all its due records: in a busy second the records of one accepted batch lie
        scattered over `due`, and there may be more batches than memory is to hold.
        """
        state = self._state
        rows, size_bytes = await self._take_at_hand(due)
        first = len(rows)
        if first == len(due) or (first >= PIECE_RECORDS_MAX and 2 * first >= len(due)):
            # What is at hand does not wait until the rest is read.
            return due[:first], rows, due[first:]
        by_entry = await items_of(state, due[first:])
        positions = list(by_entry)
        wanted, count_max = by_entry, min(PREFETCH_RECORDS_MAX, _SOON_SHARE * (len(due) - first))
        now_ms = state.clock.now_ms()
        if len(due) - first >= PIECE_RECORDS_MAX and (soon := look_ahead(state, now_ms, count_max)) is not None:
            # Read once for what is due next as well: the goes that follow find it at hand.
            following = await items_of(state, state.open.due_before(now_ms + 1 + soon.ahead_ms), by_entry)
            wanted = {position: [*own, *following.get(position, ())] for position, own in by_entry.items()}
        ahead_count = 0
        found: dict[Item, bytes] = {}
        gone: set[Item] = set()  # parked
        for read_count, (position, own) in enumerate(by_entry.items()):
            if size_bytes >= state.config.fire_bytes_max:
                break
            if read_count == ahead_count:
                ahead_count += await state.ready.read_ahead(
                    {position: wanted[position] for position in positions[read_count:]}
                )
            try:
                own_rows = await state.ready.get(position, own)
            except StoreStopped:
                raise
            except StoreError as damage:
                # Never skipped: they keep their slots, and with them the read mark, until the entry can be read.
                state.metrics.parked_count += len(own)
                gone.update(own)
                log.error("timer: %d due records of entry %d cannot be read: %s", len(own), position, damage)
            else:
                found.update(zip(own, own_rows, strict=True))
                size_bytes += sum(map(len, own_rows)) + FRAMING_BYTES * len(own_rows)
        # What follows the first that was not read must not overtake it.
        read = list(takewhile(lambda item: item in found or item in gone, due[first:]))
        there = [item for item in read if item in found]
        if rows or there:
            state.record_bytes = size_bytes // (first + len(found))
        return (
            due[:first] + there,
            rows + [found[item] for item in there],
            [item for item in due[first + len(read) :] if item not in gone],
        )

    async def _take_at_hand(self, due: list[Item]) -> tuple[list[bytes], int]:
        """The rows up to the first item that was not made ready (timer/prefetch.py), or as many as have the bytes of
        one go; and their bytes."""
        row_of, bytes_max = self._state.ready.row_of, self._state.config.fire_bytes_max
        size_bytes = 0
        rows: list[bytes] = []
        for item in due:
            row = row_of(item)
            if row is None or size_bytes >= bytes_max:
                break
            rows.append(row)
            size_bytes += len(row) + FRAMING_BYTES
            if len(rows) % _TAKEN_COUNT == 0:
                await self._state.log.yield_to_loop()
        return rows, size_bytes

    async def _group(self, items: list[Item], rows: list[bytes]) -> Grouping:
        grouping = Grouping(batch_bytes_max=self._state.config.batch_bytes_max)
        if grouping.add_alike(items, rows):
            await self._state.log.yield_to_loop()
            return grouping
        for count, (item, row) in enumerate(zip(items, rows, strict=True), 1):
            grouping.add(item, row)
            if count % _GROUPED_COUNT == 0:
                await self._state.log.yield_to_loop()
        return grouping

    async def _put(self, groups: list[Group], put: _Put) -> int:
        """Store groups durably; return how many records have to be tried again later."""
        again_count = 0
        if self._held:
            for group in groups:
                if group.target in self._held:
                    self._hold(group)
                    again_count += len(group.items)
            groups = [group for group in groups if group.target not in self._held]
        if not groups:
            return again_count
        if self._records_max or self._refused_since_s:
            groups = [part for group in groups for part in self._small_enough(group)]
        state = self._state
        try:
            stored = await put(groups)
        except (Overloaded, DiskFull):
            self._blocked = True
            for group in groups:
                state.open.put_back(group.items)
                again_count += len(group.items)
            return again_count
        except (UnknownQueue, RecordTooLarge) as error:
            # None was stored, and one of them is to blame: find it by halves.
            if len(groups) == 1:
                if isinstance(error, UnknownQueue) or len(groups[0].items) == 1:
                    self._drop(groups[0], error)
                    return again_count
                groups = list(groups[0].halves())
            middle = len(groups) // 2
            again_count += await self._put(groups[:middle], put)
            return again_count + await self._put(groups[middle:], put)
        now_ms = state.clock.now_ms()
        for group, offsets in zip(groups, stored, strict=True):
            if offsets is None:
                self._hold(group)
                again_count += len(group.items)
                continue
            if isinstance(offsets, StoreError):
                again_count += self._refuse(group, offsets)
                continue
            if self._records_max:
                self._is_taken(group.target)
            if self._refused_since_s:
                for item in group.items:
                    self._refused_since_s.pop(item, None)
            self._leave(group)
            if group.delays:
                state.metrics.rolled_count += len(group.items)
            else:
                state.metrics.fired(now_ms, group.items)
                if state.awaited:
                    for item, offset in zip(group.items, offsets, strict=True):
                        self._answer(source_of(item), (group.target, offset))
            await state.log.yield_to_loop()
        return again_count

    async def _deliver(self, groups: Sequence[Group]) -> Sequence[Delivered]:
        """Have due groups stored in their partitions."""
        dues = []
        for group in groups:
            dues.append(group.due())
            await self._state.log.yield_to_loop()
        return await self._partitions.deliver(dues)

    async def _roll(self, groups: Sequence[Group]) -> Sequence[Delivered]:
        """Copy groups that roll to the head of the log."""
        appends = []
        for group in groups:
            appends.append(group.append())
            await self._state.log.yield_to_loop()
        await self._state.log.append(appends, acks=Acks.FLUSHED)
        return [()] * len(groups)

    def _answer(self, source: Source, delivered: tuple[Target, int] | UnknownQueue) -> None:
        """Tell who had a record fired now where it went, or that it could not be delivered."""
        waiting = self._state.awaited.get(source)
        if waiting is not None and not waiting.done():
            if isinstance(delivered, UnknownQueue):
                waiting.set_exception(delivered)
            else:
                waiting.set_result(delivered)

    def _drop(self, group: Group, error: StoreError) -> None:
        if not isinstance(error, UnknownQueue):
            log.error(
                "timer: dropping a record that cannot be delivered, schedule=%s topic id=%d partition=%d: %s",
                group.first_id, *group.target, error,
            )  # fmt: skip
        elif group.target not in self._lost_targets:
            self._lost_targets.add(group.target)
            log.warning(
                "timer: dropping records due for a partition that is gone, topic id=%d partition=%d", *group.target
            )
        self._leave(group)
        self._state.metrics.dropped_count += len(group.items)
        for item in group.items:
            self._answer(source_of(item), UnknownQueue(str(error)))

    def _leave(self, group: Group) -> None:
        self._state.open.done(group.items)
        self._state.ready.drop(group.items)
        pending = self._state.pending
        if group.delays:
            for delay in group.delays:
                pending.remove(delay.topic_id, delay.due_ms, rolls=True)
        else:
            pending.remove_fired(group.target.topic_id, group.items)


def _pieces(rows: Sequence[bytes], *, is_late: bool) -> Iterator[slice]:
    """Due records cut into what one append delivers."""
    count_max, bytes_max = PIECE_RECORDS_MAX, PIECE_BYTES_MAX
    if is_late:
        count_max, bytes_max = CATCH_UP_RECORDS_MAX, CATCH_UP_BYTES_MAX
    start = size_bytes = 0
    for stop, row in enumerate(rows, 1):
        size_bytes += len(row) + FRAMING_BYTES
        if stop - start == count_max or size_bytes >= bytes_max:
            yield slice(start, stop)
            start, size_bytes = stop, 0
    if start < len(rows):
        yield slice(start, len(rows))
