"""timer.look_ahead: what of an entry is decoded before it is due."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import pytest

from store.types import Entry
from tests.clock import START_MS, FakeClock
from tests.simdisk import SimDisk
from tests.timer.fakes import FakeLog, make_timer
from timer.bodies import DECODED_OVERHEAD_BYTES
from timer.items import Item, pack_item
from timer.look_ahead import AHEAD_PER_GO_MAX, LOOK_AHEAD_MS, LOOK_AHEAD_RECORDS_MAX, LookAhead
from timer.open_slots import OpenSlots

NOW_MS = START_MS
SLOT_S = NOW_MS // 1000


def item(in_ms: int, position: int, index: int) -> Item:
    return pack_item(NOW_MS + in_ms, position, index, (NOW_MS + in_ms) // 1000, False)


def with_items(*items: Item) -> OpenSlots:
    """Slots of the next three seconds, all in memory."""
    slots = OpenSlots(SLOT_S, delivered_from=0, count_max=1_000_000)
    for slot_s in range(SLOT_S, SLOT_S + 3):
        if slot_s > SLOT_S:
            slots.open(slot_s, 0)
        load = slots.next_load((slot_s + 1) * 1000)
        assert load is not None
        for one in items:
            if int.from_bytes(one[20:24]) == slot_s:
                load.offer(one)
        slots.finish(load)
    return slots


def looking(slots: OpenSlots) -> tuple[LookAhead, list[None]]:
    turns: list[None] = []

    async def give_way() -> None:
        turns.append(None)
        await asyncio.sleep(0)

    return LookAhead(slots, give_way, turn_count=10), turns


HALF_MS = LOOK_AHEAD_MS // 2


async def test_what_is_due_soon_is_known_by_entry_and_told_once() -> None:
    slots = with_items(item(1, 100, 7), item(HALF_MS, 100, 3), item(LOOK_AHEAD_MS + 1, 100, 4), item(5, 200, 0))
    ahead, _ = looking(slots)
    await ahead.look(item(0, 100, 9), NOW_MS, count_max=100)
    assert set(ahead.take(100, [9])) == {9, 7, 3}
    assert ahead.take(100, [9]) == [9]
    assert set(ahead.take(200, [0])) == {0}
    assert ahead.take(300, [1, 2]) == [1, 2]
    assert slots.in_memory_count == 4, "they stay"


async def test_entries_are_told_from_half_as_far_to_as_far_spread_evenly() -> None:
    entries = range(100, 100 + 150_017 * 200, 150_017)
    slots = with_items(*(item(at_ms, entry, at_ms) for entry in entries for at_ms in range(0, LOOK_AHEAD_MS + 60, 50)))
    ahead, _ = looking(slots)
    await ahead.look(item(0, 9, 0), NOW_MS, count_max=10_000)
    far_ms = []
    for entry in entries:
        await ahead.look(item(0, 9, 0), NOW_MS, count_max=10_000)  # a go for each
        far_ms.append(max(ahead.take(entry, [])))
    far_ms.sort()
    assert far_ms[0] == HALF_MS
    assert far_ms[-1] == LOOK_AHEAD_MS
    assert HALF_MS + 200 < far_ms[100] < HALF_MS + 300


@pytest.mark.parametrize(("count", "is_room_left"), [(AHEAD_PER_GO_MAX - 1, True), (AHEAD_PER_GO_MAX, False)])
async def test_so_many_are_decoded_ahead_in_one_go_and_the_next_entry_has_its_turn_in_another(
    count: int, is_room_left: bool
) -> None:
    slots = with_items(*(item(1, 100, number) for number in range(1, count + 1)), item(1, 200, 1))
    ahead, _ = looking(slots)
    await ahead.look(item(0, 9, 0), NOW_MS, count_max=10_000)
    assert len(ahead.take(100, [0])) == count + 1, "those that are due do not count"
    assert list(ahead.take(200, [0])) == ([0, 1] if is_room_left else [0])
    await ahead.look(item(0, 9, 0), NOW_MS, count_max=10_000)
    assert list(ahead.take(200, [0])) == ([0] if is_room_left else [0, 1])


async def test_it_looks_again_when_something_behind_the_half_is_due() -> None:
    slots = with_items(item(10, 100, 1), item(LOOK_AHEAD_MS + 10, 100, 2))
    ahead, _ = looking(slots)
    await ahead.look(item(0, 9, 0), NOW_MS, count_max=100)
    assert set(ahead.take(100, [])) == {1}
    await ahead.look(item(HALF_MS, 9, 0), NOW_MS + LOOK_AHEAD_MS, count_max=100)
    assert ahead.take(100, []) == [], "the last look reached as far"
    await ahead.look(item(HALF_MS + 1, 9, 0), NOW_MS + LOOK_AHEAD_MS, count_max=100)
    assert set(ahead.take(100, [])) == {1, 2}


@pytest.mark.parametrize(("count", "ahead_ms"), [(40, LOOK_AHEAD_MS), (41, HALF_MS), (79, HALF_MS), (81, HALF_MS // 2)])
async def test_more_than_it_may_know_makes_it_look_less_far(count: int, ahead_ms: int) -> None:
    slots = with_items(*(item(1 + number * LOOK_AHEAD_MS // count, number, 0) for number in range(count)))
    ahead, _ = looking(slots)
    await ahead.look(item(0, 9, 0), NOW_MS, count_max=40)
    known = [number for number in range(count) if ahead._soon.get(number)]
    assert known == [number for number in range(count) if number * LOOK_AHEAD_MS // count <= ahead_ms]


async def test_when_much_is_due_at_once_it_looks_nowhere() -> None:
    slots = with_items(*(item(0, 100, number) for number in range(41)))
    ahead, _ = looking(slots)
    await ahead.look(item(0, 9, 0), NOW_MS, count_max=40)
    assert ahead.take(100, [5]) == [5]


async def test_others_have_their_turns() -> None:
    slots = with_items(*(item(number, 100, number) for number in range(95)))
    ahead, turns = looking(slots)
    await ahead.look(item(0, 9, 0), NOW_MS, count_max=LOOK_AHEAD_RECORDS_MAX)
    assert len(turns) == 9


@pytest.mark.parametrize(("over", "known"), [(0, LOOK_AHEAD_RECORDS_MAX), (1, 0)])
async def test_so_many_at_one_moment_are_known_and_no_more(over: int, known: int) -> None:
    slots = with_items(*(item(0, 100, number) for number in range(LOOK_AHEAD_RECORDS_MAX + over)))
    ahead, _ = looking(slots)
    await ahead.look(item(0, 9, 0), NOW_MS, count_max=LOOK_AHEAD_RECORDS_MAX)
    assert len(ahead.take(100, [])) == known


@pytest.mark.parametrize(("over", "reads_expected"), [(0, 4), (1, 8)])
async def test_an_entry_is_read_once_for_all_that_is_due_soon_if_memory_has_room(
    over: int, reads_expected: int
) -> None:
    clock = FakeClock()
    log = FakeLog(clock)
    due_count = 200
    timer = make_timer(log, SimDisk(), clock, bodies_bytes_max=4 * due_count * DECODED_OVERHEAD_BYTES)
    await timer.start()
    due_ms = [START_MS + 1001 + number // 4 % 2 * 400 for number in range(due_count + over)]
    later = [START_MS + 1700] * 200  # too many then
    for entry in range(4):
        due = [(at_ms, b"%d" % entry) for at_ms in due_ms[entry::4] + later[entry::4] * over]
        first = [(START_MS + 1000, b"first")] * (entry == 0)
        await log.accept([*first, *due, *[(START_MS + 9_000_000, b"far")] * 1000])
    while await timer.enqueue_step():
        pass
    reads: list[int] = []
    read_entries = timer._state.bodies._read_entries

    async def counted(positions: Sequence[int]) -> list[Entry]:
        reads.extend(positions)
        return await read_entries(positions)

    timer._state.bodies._read_entries = counted
    for by_ms in (1000, 1, 400):
        clock.step(by_ms)
        while await timer.dequeue_step():
            pass
    assert len(log.delivered()) == due_count + over + 1
    assert len(reads) == reads_expected


async def test_when_too_much_is_due_it_looks_once_for_all_entries() -> None:
    clock = FakeClock()
    log = FakeLog(clock)
    timer = make_timer(log, SimDisk(), clock, bodies_bytes_max=1, fire_records_max=30)
    await timer.start()
    for _ in range(60):
        await log.accept([(START_MS + 10, b"x")])
    while await timer.enqueue_step():
        pass
    looked_count = 0
    due_before = timer._state.open.due_before

    def counted(until_ms: int, count_max: int) -> list[Item] | None:
        nonlocal looked_count
        looked_count += 1
        return due_before(until_ms, count_max)

    timer._state.open.due_before = counted  # type: ignore[method-assign]
    clock.step(20)
    assert await timer.dequeue_step() == 30
    assert looked_count == LOOK_AHEAD_MS.bit_length() + 1, "a second, its halves down to none"
