"""timer.prefetch: what of an entry is decoded before it is due."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence
from contextlib import suppress

import pytest

from store.errors import StoreStopped
from store.types import Entry
from tests.clock import START_MS, FakeClock
from tests.simdisk import SimDisk
from tests.timer.fakes import FakeLog, make_timer
from timer.firing import PIECE_RECORDS_MAX
from timer.items import Item, pack_item
from timer.prefetch import (
    LATE_MS,
    LOOKED_COUNT,
    NEAR_MS,
    PREFETCH_INTERVAL_MS_MIN,
    PREFETCH_MS,
    PREFETCH_RECORDS_MAX,
    READ_ENTRIES,
    SORTED_COUNT,
    Prefetch,
)
from timer.ready import ROW_OVERHEAD_BYTES
from timer.schedule import SLOT_MS
from timer.service import TimerService
from timer.timer_log import _BLOCK_UNITS

FAR = [(START_MS + 9_000_000, b"far")] * 2000
"""With so many others in its entry, a record is decoded alone."""


class Looking:
    """A timer whose records hang and are in memory; what is read for it is counted."""

    def __init__(self, **settings: int) -> None:
        self.clock = FakeClock()
        self.log = FakeLog(self.clock)
        # What is far is not in memory, although it rolls.
        chosen = {"roll_window_ms": 100_000, "open_ahead_ms": 8_000} | settings
        self.timer: TimerService = make_timer(self.log, SimDisk(), self.clock, **chosen)
        self.reads: list[int] = []
        self.positions: list[int] = []
        self.items: list[list[Item]] = []

    async def accept(self, *in_ms: int, others: Sequence[tuple[int, bytes]] = FAR) -> None:
        """One entry of records due in so many ms, and of others."""
        due = [(START_MS + ms, b"x") for ms in in_ms]
        position = (await self.log.accept([*due, *others])).position
        self.positions.append(position)
        self.items.append(
            [
                pack_item(due_ms, position, index, due_ms // SLOT_MS, False)
                for index, (due_ms, _) in enumerate([*due, *others])
            ]
        )

    async def start(self) -> Prefetch:
        await self.timer.start()
        while await self.timer.intake_step():
            pass
        await self.timer._firing.get(self.clock.now_ms() + SLOT_MS)
        state = self.timer._state
        read_entries = self.log.read_entries

        async def counted(positions: Sequence[int]) -> list[Entry]:
            self.reads.extend(positions)
            return await read_entries(positions)

        state.ready._reader._read_entries = counted
        return self.timer._prefetch

    def at_hand(self, entry: int, count: int) -> list[int]:
        """Which of the first records of an entry are ready."""
        missing = self.timer._state.ready.missing(self.items[entry])
        return [index for index in range(count) if self.items[entry][index] not in missing]


async def test_an_entry_of_which_something_is_due_soon_is_made_ready_for_all_of_it() -> None:
    looking = Looking()
    await looking.accept(0, NEAR_MS, NEAR_MS + 1, PREFETCH_MS, PREFETCH_MS + 1)
    await looking.accept(NEAR_MS + 1, PREFETCH_MS)
    ahead = await looking.start()
    assert await ahead.step() == NEAR_MS
    assert looking.at_hand(0, 5) == [0, 1, 2, 3]
    assert looking.at_hand(1, 2) == []
    assert looking.timer._state.open.in_memory_count == 7, "they stay"


async def test_an_entry_is_read_again_when_what_is_due_soon_is_not_at_hand() -> None:
    looking = Looking()
    end_ms, step_ms = 9_000, NEAR_MS // 2
    await looking.accept(*range(0, end_ms, 100))
    ahead = await looking.start()
    reads = []
    for _ in range(0, end_ms, step_ms):
        await looking.timer._firing.get(looking.clock.now_ms())
        await ahead.step()
        reads.append(len(looking.reads))
        looking.clock.step(step_ms)
        while await looking.timer._firing.go():
            pass
    assert reads == [1, 1, 1, 2, 2, 2]
    assert len(looking.log.delivered()) == end_ms // 100
    assert len(looking.reads) == 2, "no delivery had to read"


async def test_what_is_due_next_is_looked_for_although_deliveries_are_a_little_late() -> None:
    """Else it is not at hand when they have caught up, and they are late again for it."""
    looking = Looking()
    await looking.accept(0, LATE_MS + NEAR_MS)
    ahead = await looking.start()
    looking.clock.step(LATE_MS)
    assert await ahead.step() == NEAR_MS
    assert looking.at_hand(0, 2) == [0, 1]


async def test_nothing_is_looked_for_while_deliveries_are_late() -> None:
    looking = Looking()
    await looking.accept(0, LATE_MS + NEAR_MS)
    ahead = await looking.start()
    looking.clock.step(LATE_MS + 1)
    assert await ahead.step() == 0
    assert (looking.at_hand(0, 2), looking.reads) == ([], [])
    while await looking.timer._firing.go():
        pass
    assert len(looking.log.delivered()) == 1
    assert await ahead.step() == NEAR_MS
    assert 1 in looking.at_hand(0, 2)


@pytest.mark.parametrize(("count", "is_read_once"), [(PIECE_RECORDS_MAX, True), (PIECE_RECORDS_MAX - 1, False)])
async def test_when_much_was_not_looked_for_it_is_read_with_what_is_due_next(count: int, is_read_once: bool) -> None:
    looking = Looking()
    await looking.accept(*[0] * count, *[50] * 10)
    await looking.start()
    assert await looking.timer._firing.go() == count
    looking.clock.step(50)
    assert await looking.timer._firing.go() == 10
    assert len(looking.log.delivered()) == count + 10
    assert looking.reads == looking.positions * (1 if is_read_once else 2)


async def test_what_is_at_hand_does_not_wait_for_what_has_to_be_read() -> None:
    looking = Looking()
    await looking.accept(*[0] * PIECE_RECORDS_MAX)
    await looking.accept(NEAR_MS + 1)
    ahead = await looking.start()
    await ahead.step()
    looking.clock.step(NEAR_MS + 1)
    assert await looking.timer._firing.go() == PIECE_RECORDS_MAX
    assert looking.reads == looking.positions[:1]
    assert await looking.timer._firing.go() == 1
    assert looking.reads == looking.positions


async def test_slots_are_not_opened_while_deliveries_are_late_that_fill_two_goes() -> None:
    looking = Looking(fire_records_max=10, roll_window_ms=100_000)
    seconds = [0] * 20 + [30 * SLOT_MS] * 20 + [60 * SLOT_MS]
    await looking.accept(*seconds, others=())
    await looking.start()
    firing, state = looking.timer._firing, looking.timer._state
    looking.clock.step(60 * SLOT_MS)
    await firing.get(looking.clock.now_ms())
    assert state.open.in_memory_count == 20
    state.drained.clear()
    assert await firing.go() == 10
    assert state.drained.is_set(), "there may be room now"
    await firing.get(looking.clock.now_ms())
    assert state.open.in_memory_count == 10 + 20, "and it is opened no further than that"
    while True:
        await firing.get(looking.clock.now_ms())
        if not await firing.go():
            break
    assert [one.due_ms - START_MS for one in looking.log.delivered()] == seconds


async def test_seconds_whose_units_lie_side_by_side_are_walked_together() -> None:
    looking = Looking(roll_window_ms=100_000)
    block_count = 20
    await looking.accept(*(20_000 + number % 4 * SLOT_MS for number in range(block_count * _BLOCK_UNITS)), others=())
    await looking.start()
    await looking.timer.checkpoint()  # they are in a file
    timer_log, read_count = looking.timer._state.timer_log, 0
    read_block = timer_log._read_block

    def counted(position: int) -> None:
        nonlocal read_count
        read_count += 1
        read_block(position)

    timer_log._read_block = counted  # type: ignore[method-assign]
    looking.clock.step(18_000)
    await looking.timer._firing.get(looking.clock.now_ms())
    assert looking.timer._state.open.in_memory_count == block_count * _BLOCK_UNITS
    assert read_count <= 2 * block_count, "each file of 64 units ends a block"


async def test_what_arrived_since_the_last_look_is_read_when_it_is_due() -> None:
    looking = Looking()
    ahead = await looking.start()
    await ahead.step()
    await looking.accept(20)
    while await looking.timer.intake_step():
        pass
    looking.clock.step(20)
    assert await looking.timer._firing.go() == 1
    assert looking.reads == looking.positions
    assert len(looking.log.delivered()) == 1


@pytest.mark.parametrize(("over", "near_ms"), [(0, NEAR_MS), (1, 0)])
async def test_so_many_at_one_moment_are_made_ready_and_no_more(over: int, near_ms: int) -> None:
    looking = Looking()
    for count in (PREFETCH_RECORDS_MAX // 2, PREFETCH_RECORDS_MAX // 2 + over):
        await looking.accept(*[0] * count, others=())
    ahead = await looking.start()
    assert await ahead.step() == near_ms
    assert looking.at_hand(0, 1) == ([] if over else [0])


@pytest.mark.parametrize(("count", "share"), [(40, 1), (41, 2), (79, 2), (81, 4)])
async def test_more_than_it_may_make_ready_makes_it_look_less_far(
    count: int, share: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("timer.prefetch.PREFETCH_RECORDS_MAX", 40)
    looking = Looking()
    for number in range(count):
        await looking.accept(1 + number * PREFETCH_MS // count)
    ahead = await looking.start()
    assert await ahead.step() == NEAR_MS // share
    known = [number for number in range(count) if looking.at_hand(number, 1)]
    assert known == [number for number in range(count) if number * PREFETCH_MS // count < NEAR_MS // share]


@pytest.mark.parametrize(("over", "is_ready"), [(0, True), (1, False)])
async def test_it_makes_ready_no_more_than_memory_has_room_for(over: int, is_ready: bool) -> None:
    looking = Looking(bodies_bytes_max=50 * (200 + ROW_OVERHEAD_BYTES) * 5 // 3 + 1)
    await looking.accept(*[0] * (50 + over))
    ahead = await looking.start()
    looking.timer._state.record_bytes = 200
    await ahead.step()
    assert bool(looking.at_hand(0, 1)) is is_ready


async def test_it_stops_when_rows_are_larger_than_was_known() -> None:
    looking = Looking(bodies_bytes_max=60_000)
    for _ in range(3 * READ_ENTRIES):
        await looking.accept(1, others=[(START_MS + 2, b"x" * 5000)])
    ahead = await looking.start()
    await ahead.step()
    assert len(looking.reads) == READ_ENTRIES
    assert looking.at_hand(0, 2) == [0, 1], "and nothing is given up"


async def test_others_have_their_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    looking = Looking()
    count = 10 * LOOKED_COUNT
    for _ in range(10):
        await looking.accept(*[1] * LOOKED_COUNT, others=())
    for _ in range(4 * READ_ENTRIES):
        await looking.accept(2, others=())
    ahead = await looking.start()
    turns: list[int] = []
    rests: list[int] = []

    async def yield_to_loop() -> None:
        turns.append(len(looking.reads))

    async def rest(delay_s: float) -> None:
        if isinstance(delay_s, float):  # else it yields
            rests.append(len(looking.reads))

    looking.log.yield_to_loop = yield_to_loop  # type: ignore[method-assign]
    monkeypatch.setattr("timer.prefetch.asyncio.sleep", rest)
    await ahead.step()
    looks = -(-(count + 4 * READ_ENTRIES) // SORTED_COUNT) + 1  # put to their entries, then of these the first due
    assert turns[:looks] == [0] * looks, "while it looks"
    entry_count = len(looking.positions)
    assert rests == list(range(READ_ENTRIES, entry_count, READ_ENTRIES)), "it rests while it reads"


async def test_each_schedule_is_looked_at_once() -> None:
    looking = Looking(open_ahead_ms=2 * PREFETCH_MS)
    await looking.accept(*range(0, NEAR_MS + PREFETCH_MS, 10))
    ahead = await looking.start()
    ready, looked_at = looking.timer._state.ready, list[Item]()
    missing = ready.missing

    def counted(items: Iterable[Item]) -> list[Item]:
        looked_at.extend(items := list(items))
        return missing(items)

    ready.missing = counted  # type: ignore[method-assign]
    for _ in range(7):
        await ahead.step()
        looking.clock.step(NEAR_MS // 2)
        while await looking.timer._firing.go():
            pass
    assert len(looked_at) == len(set(looked_at)) == (NEAR_MS + PREFETCH_MS) // 10


@pytest.mark.parametrize("in_ms", [1, NEAR_MS, NEAR_MS + PREFETCH_MS])
async def test_what_arrives_behind_a_look_is_made_ready_by_the_next(in_ms: int) -> None:
    looking = Looking(open_ahead_ms=2 * PREFETCH_MS)
    await looking.accept(0, NEAR_MS + PREFETCH_MS + 1)
    ahead = await looking.start()
    await ahead.step()
    await looking.accept(0, in_ms)
    while await looking.timer.intake_step():
        pass
    await ahead.step()
    assert looking.at_hand(1, 2) == ([0, 1] if in_ms <= PREFETCH_MS else [0])


async def test_rows_that_were_given_up_are_made_again() -> None:
    looking = Looking()
    await looking.accept(1, 2)
    ahead = await looking.start()
    await ahead.step()
    ready = looking.timer._state.ready
    ready._bytes = ready._bytes_max
    await looking.accept(1)
    while await looking.timer.intake_step():
        pass
    ready._add(dict.fromkeys([b"another"], b"row"))
    assert looking.at_hand(0, 2) == []
    await ahead.step()
    assert (looking.at_hand(0, 2), looking.at_hand(1, 1)) == ([0, 1], [0])


async def test_what_was_evicted_and_came_back_is_made_ready() -> None:
    looking = Looking(heap_count_max=64)
    await looking.accept(*[500 + number for number in range(40)], others=())
    ahead = await looking.start()
    await ahead.step()
    await looking.accept(*[10] * 40, others=())
    while await looking.timer.intake_step():
        pass
    open_slots, ready = looking.timer._state.open, looking.timer._state.ready
    evicted = set(looking.items[0]).difference(open_slots.due_before(START_MS + SLOT_MS))
    assert evicted
    ready.drop(evicted)
    for _ in range(3):
        looking.clock.step(10)
        while await looking.timer._firing.go():
            pass
        await looking.timer._firing.get(looking.clock.now_ms())
        await ahead.step()
    there = open_slots.due_before(START_MS + SLOT_MS)
    assert evicted.intersection(there)
    assert ready.missing(there) == []


async def test_what_was_delivered_or_cancelled_meanwhile_is_not_made_ready() -> None:
    looking = Looking()
    await looking.accept(0, 1, 2, NEAR_MS)
    ahead = await looking.start()
    state = looking.timer._state
    await ahead._unready.look(START_MS + NEAR_MS)
    looking.clock.step(1)
    assert await looking.timer._firing.go() == 2
    state.ready.drop(looking.items[0])
    state.open.withdraw(looking.items[0][3])
    await ahead.step()
    assert looking.at_hand(0, 4) == [2]
    assert state.ready._rows.keys() == {looking.items[0][2]}


async def test_what_is_read_later_is_made_ready_as_much_further(monkeypatch: pytest.MonkeyPatch) -> None:
    """So entries that were read one after the other are not wanted again all at once."""
    looking = Looking(open_ahead_ms=2 * PREFETCH_MS)
    rest_ms = 300
    due_ms = [1, PREFETCH_MS, PREFETCH_MS + 1, PREFETCH_MS + rest_ms, PREFETCH_MS + rest_ms + 1]
    for _ in range(2 * READ_ENTRIES):
        await looking.accept(*due_ms)
    ahead = await looking.start()

    async def rest(delay_s: float) -> None:
        if isinstance(delay_s, float):  # else it yields
            looking.clock.step(rest_ms)

    monkeypatch.setattr("timer.prefetch.asyncio.sleep", rest)
    assert await ahead.step() == NEAR_MS
    assert looking.at_hand(0, 5) == [0, 1]
    assert looking.at_hand(READ_ENTRIES, 5) == [0, 1, 2, 3]


async def test_it_leaves_what_is_due_to_those_who_deliver(monkeypatch: pytest.MonkeyPatch) -> None:
    looking = Looking()
    for _ in range(3 * READ_ENTRIES):
        await looking.accept(1, others=())
    ahead = await looking.start()

    async def rest(delay_s: float) -> None:
        if isinstance(delay_s, float):  # else it yields
            looking.clock.step(NEAR_MS + 1)

    monkeypatch.setattr("timer.prefetch.asyncio.sleep", rest)
    assert await ahead.step() == 0, "it looks again at once"
    assert len(looking.reads) == READ_ENTRIES


async def test_what_cannot_be_read_is_left_to_those_who_deliver() -> None:
    looking = Looking()
    await looking.accept(1)
    looking.log.unreadable.add(looking.positions[0])
    ahead = await looking.start()
    await ahead.step()
    assert looking.at_hand(0, 1) == []
    looking.clock.step(1)
    assert await looking.timer._firing.go() == 1
    assert looking.timer.metrics.parked_count == 1


async def test_a_stopped_store_ends_it() -> None:
    looking = Looking()
    await looking.accept(1)
    ahead = await looking.start()

    async def stopped(positions: Sequence[int]) -> list[Entry]:
        raise StoreStopped("a disk has failed")

    looking.timer._state.ready._reader._read_entries = stopped
    with pytest.raises(StoreStopped):
        await ahead.run()


@pytest.mark.parametrize(("count", "interval_ms"), [(3, NEAR_MS // 6), (41, PREFETCH_INTERVAL_MS_MIN)])
async def test_it_looks_twice_a_second_and_more_often_when_much_is_due(
    count: int, interval_ms: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("timer.prefetch.PREFETCH_RECORDS_MAX", 40)
    looking = Looking()
    await looking.accept(*[0] * count)
    ahead = await looking.start()
    naps_s: list[float] = []

    async def nap(delay_s: float) -> None:
        if delay_s:
            naps_s.append(delay_s)
            raise asyncio.CancelledError

    monkeypatch.setattr("timer.prefetch.asyncio.sleep", nap)
    with suppress(asyncio.CancelledError):
        await ahead.run()
    assert naps_s == [interval_ms / 1000]


@pytest.mark.parametrize(("over", "reads_expected"), [(0, 4), (1, 8)])
async def test_an_entry_is_read_once_for_all_that_is_due_soon_if_memory_has_room(
    over: int, reads_expected: int
) -> None:
    due_count = 200
    looking = Looking(bodies_bytes_max=due_count * (200 + ROW_OVERHEAD_BYTES) * 5 // 3 + 1)
    due_ms = [10 + number // 4 % 2 * 400 for number in range(due_count + over)]
    for entry in range(4):
        await looking.accept(*due_ms[entry::4])
    await looking.start()
    looking.timer._state.record_bytes = 200
    for by_ms in (10, 400):
        while await looking.timer.firing_step():
            pass
        looking.clock.step(by_ms)
    while await looking.timer.firing_step():
        pass
    assert len(looking.log.delivered()) == due_count + over
    assert len(looking.reads) == reads_expected
