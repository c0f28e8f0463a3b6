"""Stages three to five of the timer: from the wheel into the target queues.

    dequeue get       open the slots the clock comes near, walk their chains
    dequeue message   take what is due, read its records
    dequeue put       append one batch for each target queue (or again to `__timer`, when it rolls), flushed

A slot is opened up to `open_ahead_ms` early, so that its first millisecond is on time, and by a loop of its own: what
is due does not wait until the next, perhaps full, slot has been walked.

Invariants
    D1  A record is popped only when the clock says it is due.
    D2  A schedule is counted done only when its delivery, roll or drop is decided durably; until then its slot stays
        before the checkpoint's reach, and a restart takes it up again.
    D3  A loop that finds nothing to do waits: never for less than a millisecond, and longer and longer while the clock
        stands still.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterator, Sequence

from store.errors import DiskFull, Overloaded, RecordTooLarge, StoreError, StoreStopped, UnknownQueue
from store.limits import MiB
from store.types import Acks, Append, Appended, QueueKey, Source
from timer.delivery import Group, Grouping, Picked, pick
from timer.open_slots import Item, Load
from timer.ports import Deliver
from timer.schedule import SLOT_MS
from timer.state import TURN_UNITS, TimerState, item_of, wait
from timer.timer_log import MAGIC_DELETE
from timer.wheel import NOWHERE

log = logging.getLogger(__name__)

RETRY_MS = 200
"""How long what was refused for lack of room waits."""

_TURN_RECORDS = 512  # records looked at between two turns of the event loop
_PIECE_RECORDS = 1024  # what one append delivers at most, so that nobody's append waits long behind it; and its bytes:
_PIECE_BYTES = 1 * MiB
_IDLE_MS_MAX = 500
_STANDSTILL_MS_MAX = 32  # how rarely a clock is looked at that stands still just before something is due


class Dequeueing:
    """Delivers what is due, oldest first."""

    def __init__(self, state: TimerState, deliver: Deliver | None) -> None:
        self._state = state
        self._deliver = deliver or self._append_flushed
        self._blocked = False  # the last delivery found no room on the disk or in the writer's queue
        self._lost_targets: set[QueueKey] = set()

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
            if await self.go():
                await asyncio.sleep(max(0, started_s + interval_s - time_s()))
                continue
            now_ms = state.clock.now_ms()
            standstill_ms = min(2 * standstill_ms, _STANDSTILL_MS_MAX) if now_ms == looked_at_ms else 1
            looked_at_ms = now_ms
            await wait(state.wake, max(standstill_ms, self.idle_ms()))

    async def run_get(self) -> None:
        """Open slots until cancelled."""
        state = self._state
        wait_ms = self._open_interval_ms()
        while True:
            state.drained.clear()
            await self.get(state.clock.now_ms())
            state.wake.set()
            await wait(state.drained, wait_ms)

    def idle_ms(self) -> int:
        """How long nothing can become due, by a clock that may lie: so never long, and never 0."""
        if self._blocked:
            return RETRY_MS
        wait_ms = self._open_interval_ms()
        fire_ms = self._state.open.next_fire_ms()
        return wait_ms if fire_ms is None else max(1, min(wait_ms, fire_ms - self._state.clock.now_ms()))

    def _open_interval_ms(self) -> int:
        return min(_IDLE_MS_MAX, max(1, self._state.config.open_ahead_ms // 2))

    async def get(self, now_ms: int) -> None:
        """Open slots up to a little ahead of the clock, and load them as memory allows."""
        state = self._state
        until_ms = now_ms + state.config.open_ahead_ms
        open_slots = state.open
        while True:
            load = open_slots.next_load(until_ms)
            if load is not None:
                await self._walk(load)
                continue
            if not open_slots.has_room():
                return
            to_s = until_ms // SLOT_MS + 1
            slot_s = state.wheel.next_occupied(open_slots.write_mark_s, to_s)
            if slot_s is None:
                open_slots.skip_to(to_s)
                return
            open_slots.open(slot_s, state.log.end_position)

    async def _walk(self, load: Load) -> None:
        """Walk the chain of an open slot, newest to oldest, as it stands now."""
        state = self._state
        position = state.wheel.at(load.slot_s).last
        read = state.timer_log.read
        offer = load.offer
        walked_count = 0
        while position != NOWHERE:
            unit = read(position)
            assert unit.slot_s == load.slot_s
            position = unit.previous
            walked_count += 1
            if walked_count % TURN_UNITS == 0:
                await asyncio.sleep(0)
            if unit.magic & MAGIC_DELETE:
                continue
            offer(item_of(unit))
        state.open.finish(load)

    async def go(self) -> int:
        """Deliver what is due, up to one batch; return how many records have left memory, cancelled ones included."""
        state = self._state
        self._blocked = False
        async with state.leaving:
            left_count = state.open.in_memory_count
            due = state.open.pop_due(state.clock.now_ms(), state.config.fire_records_max)
            left_count -= state.open.in_memory_count
            due = self._unconsumed(due)
            if due:
                picked, rest = await self._message(due)
                state.open.put_back(rest)
                left_count -= len(rest)
                for piece in _pieces(picked):
                    if self._blocked:  # what follows must not overtake it
                        state.open.put_back([chosen.item for chosen in piece])
                        left_count -= len(piece)
                        continue
                    grouping = Grouping(batch_bytes_max=state.config.batch_bytes_max)
                    for chosen in piece:
                        grouping.add(chosen)
                    for groups, put in ((grouping.rolling, self._append_flushed), (grouping.firing, self._deliver)):
                        left_count -= await self._put(groups, put)
            state.open.advance(state.clock.now_ms() // SLOT_MS)
        state.room.set()
        if left_count and not state.open.is_loaded:  # if nothing has left, two loops would keep each other awake
            state.drained.set()
        return left_count

    def _unconsumed(self, due: list[Item]) -> list[Item]:
        """What a change, or a delivery before the start, has not consumed. In the turn in which it was popped: a
        tombstone that is met from then on ends the claim on its copy, which nobody would look for again."""
        state = self._state
        consumed, changed = state.consumed_hung, state.changed
        if not consumed and not changed:
            return due
        gone = [item for item in due if item[1:3] in consumed or item[1:3] in changed]
        if not gone:
            return due
        for item in gone:
            if consumed.pop(Source(item[1], item[2]), None) is not None:
                state.metrics.already_delivered_count += 1
        state.open.done(gone)
        known = set(gone)
        return [item for item in due if item not in known]

    async def _message(self, due: list[Item]) -> tuple[list[Picked], list[Item]]:
        """Read the records of due items, in order; also the items that did not fit the bytes of one go.

        Each entry is decoded once for all its due records: in a busy second the records of one accepted batch lie
        scattered over `due`, and there may be more batches than memory is to hold.
        """
        state = self._state
        by_entry: dict[int, list[int]] = {}  # places in `due`
        found: list[Picked | None] = [None] * len(due)
        gone: set[int] = set()  # parked
        for number, item in enumerate(due):
            if (numbers := by_entry.get(item[1])) is not None:
                numbers.append(number)
            else:
                by_entry[item[1]] = [number]
            if number % _TURN_RECORDS == 0:
                await asyncio.sleep(0)
        positions = list(by_entry)
        size_bytes = turn_count = ahead_count = 0
        for count, (position, numbers) in enumerate(by_entry.items()):
            if size_bytes >= state.config.fire_bytes_max:
                break
            if count == ahead_count:
                ahead_count += await state.bodies.read_ahead(positions[count:])
            try:
                body = await state.bodies.get(position)
                for number in numbers:
                    chosen = found[number] = pick(due[number], body)
                    size_bytes += chosen[5]
            except StoreStopped:
                raise
            except StoreError as damage:
                # Never skipped: they keep their slots, and with them the read mark, until the entry can be read.
                state.metrics.parked_count += len(numbers)
                gone.update(numbers)
                log.error("timer: %d due records of entry %d cannot be read: %s", len(numbers), position, damage)
                continue
            turn_count += len(numbers) + len(body.records) // 4
            if turn_count >= _TURN_RECORDS:
                turn_count = 0
                await asyncio.sleep(0)
        picked: list[Picked] = []
        for number, chosen_or_none in enumerate(found):
            if number in gone:
                continue
            if chosen_or_none is None:  # what follows must not overtake it
                return picked, [later for at, later in enumerate(due[number:], number) if at not in gone]
            picked.append(chosen_or_none)
        return picked, []

    async def _put(self, groups: list[Group], put: Deliver) -> int:
        """Append groups durably; return how many records have to be tried again later."""
        if not groups:
            return 0
        state = self._state
        try:
            appends = []
            for group in groups:
                appends.append(group.append())
                await asyncio.sleep(0)
            appendeds = await put(appends)
        except (Overloaded, DiskFull):
            self._blocked = True
            again_count = 0
            for group in groups:
                state.open.put_back(group.items)
                again_count += len(group.items)
            return again_count
        except (UnknownQueue, RecordTooLarge) as error:
            # None was stored, and one of them is to blame: find it by halves.
            if len(groups) == 1:
                if isinstance(error, UnknownQueue) or len(groups[0].items) == 1:
                    self._drop(groups[0], error)
                    return 0
                groups = list(groups[0].halves())
            middle = len(groups) // 2
            again_count = await self._put(groups[:middle], put)
            return again_count + await self._put(groups[middle:], put)
        now_ms = state.clock.now_ms()
        for group, appended in zip(groups, appendeds, strict=True):
            self._leave(group)
            if group.delays:
                state.metrics.rolled_count += len(group.items)
            else:
                state.metrics.fired(now_ms, group.items)
                if state.awaited:
                    for index, source in enumerate(group.sources):
                        self._answer(source, (group.queue, appended.base_offset + index))
        return 0

    def _answer(self, source: Source, delivered: tuple[QueueKey, int] | UnknownQueue) -> None:
        """Tell who had a record fired now where it went, or that it could not be delivered."""
        waiting = self._state.awaited.get(source)
        if waiting is not None and not waiting.done():
            if isinstance(delivered, UnknownQueue):
                waiting.set_exception(delivered)
            else:
                waiting.set_result(delivered)

    def _drop(self, group: Group, error: StoreError) -> None:
        if isinstance(error, RecordTooLarge):
            log.error("timer: dropping a record that cannot be delivered, entry=%d: %s", group.items[0][1], error)
        elif group.queue not in self._lost_targets:
            self._lost_targets.add(group.queue)
            log.warning("timer: dropping records due for a queue that is gone, topic id=%d queue=%d", *group.queue)
        self._leave(group)
        self._state.metrics.dropped_count += len(group.items)
        for source in group.sources:
            self._answer(source, UnknownQueue(str(error)))

    async def _append_flushed(self, appends: Sequence[Append]) -> list[Appended]:
        return await self._state.log.append(appends, acks=Acks.FLUSHED)

    def _leave(self, group: Group) -> None:
        self._state.open.done(group.items)
        self._state.hung_count -= len(group.items)
        counts = self._state.pending_counts
        if group.delays:
            for delay in group.delays:
                counts[delay.topic_id] -= 1
        else:
            counts[group.queue.topic_id] -= len(group.items)


def _pieces(picked: list[Picked]) -> Iterator[list[Picked]]:
    """Due records cut into what one append delivers."""
    start = size_bytes = 0
    for number, chosen in enumerate(picked):
        size_bytes += chosen[5]
        if number - start + 1 == _PIECE_RECORDS or size_bytes >= _PIECE_BYTES:
            yield picked[start : number + 1]
            start, size_bytes = number + 1, 0
    if start < len(picked):
        yield picked[start:]
