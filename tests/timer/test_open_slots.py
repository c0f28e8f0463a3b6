"""Open slots against a sorted list, with memory for a handful of schedules only."""

from __future__ import annotations

import gc
import timeit
from random import Random

from tests.seeds import each_seed
from timer.items import Item, pack_item, slot_of
from timer.open_slots import OpenSlots

NOW_S = 1000


@each_seed(300)
def test_what_fires_is_what_a_sorted_list_would_fire(seed: int) -> None:
    rng = Random(seed)
    count_max = rng.choice((4, 9, 500))
    slots = OpenSlots(NOW_S, delivered_from=0, count_max=count_max)
    disk: dict[int, list[Item]] = {}  # the wheel: every schedule ever scheduled, by slot
    scheduled: set[Item] = set()
    fired: set[Item] = set()
    clock_ms = NOW_S * 1000
    for position in range(rng.randrange(20, 200)):
        clock_ms += rng.choice((0, 0, 5, 100, 900))
        fire_ms = clock_ms + rng.choice((-3000, -1, 0, 1, 50, 1500, 4000))
        slot_s = max(fire_ms // 1000, slots.read_mark_s)
        item = pack_item(fire_ms, position, rng.randrange(3), slot_s, False)
        disk.setdefault(slot_s, []).append(item)
        scheduled.add(item)
        if slot_s < slots.write_mark_s:
            slots.arrive(item, 0)
        if rng.random() < 0.5:
            _load(slots, disk, clock_ms, rng)
        opened = sorted(item for item in scheduled if slot_of(item) < slots.write_mark_s)
        for item in rng.sample(opened, min(3, len(opened))):
            is_waiting = slot_of(item) >= slots.read_mark_s and slots.is_waiting(item)
            assert is_waiting == (item not in fired)
            if is_waiting and rng.random() < 0.1:
                slots.withdraw(item)
                assert not slots.is_waiting(item)
                fired.add(item)
        owed = sorted(item for item in scheduled - fired if slot_of(item) < slots.write_mark_s)
        due = slots.pop_due(clock_ms, rng.choice((1, 2, 100)))
        assert due == owed[: len(due)], "nothing older may be left behind"
        if due and rng.random() < 0.2:
            slots.put_back(rng.sample(due, len(due)))
        else:
            slots.done(due)
            fired.update(due)
        slots.advance(clock_ms // 1000)
        assert slots.read_mark_s < slots.write_mark_s
        assert all(slot_of(item) >= slots.read_mark_s for item in scheduled - fired)
    clock_ms += 10_000
    while len(fired) < len(scheduled):
        _load(slots, disk, clock_ms, rng)
        before_count = slots.in_memory_count
        due = slots.pop_due(clock_ms, 7)
        assert slots.in_memory_count < before_count, "all of them may be withdrawn, but some were there"
        assert not fired & set(due)
        slots.done(due)
        fired.update(due)
        assert slots.in_memory_count <= count_max + count_max // 4 + 7
    _load(slots, disk, clock_ms, rng)
    slots.advance(clock_ms // 1000)
    assert slots.read_mark_s == clock_ms // 1000


def _load(slots: OpenSlots, disk: dict[int, list[Item]], clock_ms: int, rng: Random) -> None:
    """What the service does to open and load slots."""
    until_ms = clock_ms + 1000
    behind_count = rng.choice((1, 5, 1000))
    while True:
        if slots.is_behind(clock_ms - 100, behind_count):
            return
        load = slots.next_load(until_ms)
        if load is not None:
            chain = list(disk.get(load.slot_s, []))
            rng.shuffle(chain)
            for item in chain:
                load.offer(item)
            slots.finish(load)
            continue
        if not slots.has_room():
            return
        to_s = until_ms // 1000 + 1
        slot_s = min((s for s in disk if slots.write_mark_s <= s < to_s), default=None)
        if slot_s is None:
            slots.skip_to(to_s)
            return
        slots.open(slot_s, 0)


def test_it_is_behind_when_enough_is_in_memory_and_the_first_is_late_and_can_be_popped() -> None:
    slots = OpenSlots(NOW_S, delivered_from=0, count_max=100)
    load = slots.next_load(NOW_S * 1000)
    assert load is not None
    for record_index in range(3):
        load.offer(pack_item(NOW_S * 1000 + 5, 1, record_index, NOW_S, False))
    late_ms = NOW_S * 1000 + 6
    assert not slots.is_behind(late_ms, 0), "nothing is in memory"
    slots.finish(load)
    assert slots.is_behind(late_ms, 3)
    assert not slots.is_behind(late_ms, 4)
    assert not slots.is_behind(late_ms - 1, 3)
    slots.open(NOW_S + 1, 0)
    slots.arrive(pack_item(NOW_S * 1000 + 4, 2, 0, NOW_S, False), 0)
    assert slots.is_behind(late_ms, 3), "what is not loaded yet fires later"
    assert len(slots.pop_due(late_ms, 10)) == 4
    slots.arrive(pack_item(NOW_S * 1000 + 5, 3, 0, NOW_S, False), 0)
    slots.skip_to(NOW_S + 5)
    assert slots.is_behind(late_ms, 1)


def test_what_arrives_during_a_walk_is_met_once() -> None:
    slots = OpenSlots(NOW_S, delivered_from=0, count_max=100)
    load = slots.next_load(NOW_S * 1000 + 1000)
    assert load is not None
    seen = pack_item(NOW_S * 1000 + 5, 1, 0, NOW_S, False)
    late = pack_item(NOW_S * 1000 + 4, 2, 0, NOW_S, False)
    load.offer(seen)
    slots.arrive(late, 0)  # scheduled after the walk had begun: not in the chain it saw
    slots.finish(load)
    assert slots.pop_due(NOW_S * 1000 + 999, 10) == [late, seen]


def test_the_read_mark_waits_for_every_delivery_and_for_the_second_to_be_over() -> None:
    slots = OpenSlots(NOW_S, delivered_from=7, count_max=100)
    load = slots.next_load(NOW_S * 1000)
    assert load is not None
    load.offer(pack_item(NOW_S * 1000, 1, 0, NOW_S, False))
    slots.finish(load)
    slots.skip_to(NOW_S + 5)
    due = slots.pop_due(NOW_S * 1000, 10)
    slots.advance(NOW_S + 3)
    assert (slots.read_mark_s, slots.delivered_from(99)) == (NOW_S, 7)
    slots.done(due)
    slots.advance(NOW_S)
    assert slots.read_mark_s == NOW_S
    slots.advance(NOW_S + 3)
    assert (slots.read_mark_s, slots.delivered_from(99)) == (NOW_S + 3, 99)


def test_what_became_of_a_delivered_schedule_is_known_without_a_look_through_memory() -> None:
    def seconds_with(in_memory_count: int) -> float:
        slots = OpenSlots(NOW_S, delivered_from=0, count_max=1_000_000)
        load = slots.next_load(NOW_S * 1000)
        assert load is not None
        items = [pack_item(NOW_S * 1000 + n // 1000, n, 0, NOW_S, False) for n in range(in_memory_count + 1)]
        for item in items:
            load.offer(item)
        slots.finish(load)
        (first,) = slots.pop_due(NOW_S * 1000, 1)
        assert slots.is_waiting(first), "it is not delivered yet"
        slots.done([first])
        assert not slots.is_waiting(first)
        return min(timeit.repeat(lambda: slots.is_waiting(first), number=100, repeat=5))

    assert seconds_with(100_000) < 20 * seconds_with(10)


def test_schedules_in_memory_are_nothing_the_garbage_collector_looks_at() -> None:
    slots = OpenSlots(NOW_S, delivered_from=0, count_max=100_000)
    load = slots.next_load(NOW_S * 1000)
    assert load is not None
    gc.collect()
    before_count = len(gc.get_objects())
    for number in range(20_000):
        load.offer(pack_item(NOW_S * 1000 + number % 1000, number, 0, NOW_S, False))
    slots.finish(load)
    due = slots.pop_due(NOW_S * 1000 + 500, 10_000)
    assert len(due) == 10_000
    assert len(gc.get_objects()) - before_count < 100


def test_a_page_of_a_full_slot_is_its_smallest_part_and_the_rest_comes_later() -> None:
    """With enough schedules that pages are cut by samples, while a walk is under way and at its end."""
    rng = Random(5)
    items = [pack_item(NOW_S * 1000 + rng.randrange(1000), number, 0, NOW_S, False) for number in range(30_000)]
    slots = OpenSlots(NOW_S, delivered_from=0, count_max=24_000)
    popped: list[Item] = []
    for _ in range(100):
        if (load := slots.next_load(NOW_S * 1000 + 999)) is not None:
            for item in items:
                load.offer(item)
            slots.finish(load)
            assert slots.in_memory_count <= 24_000
        popped += (due := slots.pop_due(NOW_S * 1000 + 999, 1_000))
        slots.done(due)
    assert popped == sorted(items)
    assert slots.is_loaded


def test_what_overfills_memory_is_given_back_to_the_disk_a_part_at_a_time() -> None:
    slots = OpenSlots(NOW_S, delivered_from=0, count_max=16_000)
    load = slots.next_load(NOW_S * 1000 + 999)
    assert load is not None
    slots.finish(load)
    items = [pack_item(NOW_S * 1000 + 900 - number // 100, number, 0, NOW_S, False) for number in range(20_000)]
    fewest_count = 16_000
    for number, item in enumerate(items):
        slots.arrive(item, 0)
        if number >= 16_000:
            fewest_count = min(fewest_count, slots.in_memory_count)
        assert slots.in_memory_count <= 16_000
    assert fewest_count >= 14_000
    popped: list[Item] = []
    while len(popped) < len(items):
        if (load := slots.next_load(NOW_S * 1000 + 999)) is not None:
            for item in items:
                load.offer(item)
            slots.finish(load)
        popped += (due := slots.pop_due(NOW_S * 1000 + 999, 500))
        slots.done(due)
    assert popped == sorted(items)
