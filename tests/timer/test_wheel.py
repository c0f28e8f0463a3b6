"""The wheel file against a dictionary, the reference's vectors, and damage."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from store.errors import Corrupt
from tests.simdisk import SimDisk
from timer.wheel import EMPTY_CHAIN, NOWHERE, PAGE_BYTES, SLOTS, WHEEL_BYTES, Chain, Survey, Wheel

PATH = Path("/wheel")
SECOND = 1_700_003_600


def new_disk() -> SimDisk:
    return SimDisk()


def test_the_reference_vectors_hold() -> None:
    assert (SLOTS, WHEEL_BYTES) == (1_209_600, 38_707_200)
    disk = new_disk()
    wheel = Wheel(disk, PATH)
    assert wheel.add(SECOND, 0) == NOWHERE
    wheel.flush()
    assert SECOND % SLOTS == 515_600
    slot = disk.contents(PATH)[16_499_200 : 16_499_200 + 32]
    assert slot[:28].hex() == "000000006553ff10" + "00" * 16 + "00000001"


def test_the_next_lap_takes_the_place_and_the_first_reads_empty() -> None:
    wheel = Wheel(new_disk(), PATH)
    wheel.add(SECOND, 52)
    assert wheel.at(SECOND + SLOTS) == EMPTY_CHAIN
    assert wheel.add(SECOND + SLOTS, 104) == NOWHERE
    assert wheel.at(SECOND) == EMPTY_CHAIN
    assert wheel.at(SECOND + SLOTS) == Chain(104, 104, 1)


def test_a_survey_sees_what_is_in_the_file_though_pages_are_loaded_meanwhile() -> None:
    """It runs in a thread, and every send loads the page of its second."""
    disk = new_disk()
    wheel = Wheel(disk, PATH)
    for second in range(SECOND + 1_000, SECOND + 100_000, 10_000):
        wheel.add(second, second - SECOND)
    wheel.flush()
    wheel.close()

    class Busy(Wheel):
        def _peek(self, number: int) -> bytes | bytearray:
            for second in range(SECOND + 1_000, SECOND + 100_000, 10_000):
                self.at(second)
            return super()._peek(number)

    wheel = Busy(disk, PATH)
    wheel.add(SECOND, 1 << 40)
    assert wheel.survey(SECOND) == Survey(11, 1_000)


seconds = st.integers(SECOND, SECOND + 300) | st.integers(SECOND + SLOTS - 300, SECOND + SLOTS + 300)


@settings(print_blob=True, max_examples=60, deadline=None)
@given(st.lists(st.tuples(seconds, st.booleans()), max_size=60))
def test_the_wheel_agrees_with_a_dictionary_over_two_laps_and_restarts(holds: list[tuple[int, bool]]) -> None:
    disk = new_disk()
    wheel = Wheel(disk, PATH)
    model: dict[int, tuple[int, Chain]] = {}
    for number, (second, restart) in enumerate(holds):
        position = number * 52
        held, chain = model.get(second % SLOTS, (second, EMPTY_CHAIN))
        if held != second:
            chain = EMPTY_CHAIN
        assert wheel.add(second, position) == chain.last
        first = position if chain.first == NOWHERE else chain.first
        model[second % SLOTS] = (second, Chain(first, position, chain.unit_count + 1))
        if restart:
            wheel.flush()
            wheel.close()
            wheel = Wheel(disk, PATH)
    held_chains = dict(model.values())
    for second in {second for second, _ in holds}:
        assert wheel.at(second) == held_chains.get(second, EMPTY_CHAIN)
    found = []
    from_s = SECOND
    while (slot_s := wheel.next_occupied(from_s, SECOND + 400)) is not None:
        found.append(slot_s)
        from_s = slot_s + 1
    assert found == sorted(second for second in held_chains if second < SECOND + 400)
    later = [chain for second, chain in held_chains.items() if second >= SECOND + 200]
    survey = wheel.survey(SECOND + 200)
    assert survey.unit_count == sum(chain.unit_count for chain in later)
    assert survey.oldest == min((chain.first for chain in later), default=NOWHERE)


def test_a_released_unit_stays_in_its_chain_and_counts_no_more() -> None:
    wheel = Wheel(new_disk(), PATH)
    wheel.add(100, 0)
    wheel.add(100, 52)
    wheel.release(100)
    assert wheel.at(100) == Chain(0, 52, 1)
    wheel.release(100)
    assert wheel.at(100) == EMPTY_CHAIN
    assert wheel.next_occupied(90, 110) is None
    assert wheel.survey(100) == Survey(0, 0), "its files are still needed: the chain goes on from there"
    wheel.release(100 + SLOTS)  # another lap's
    assert wheel.add(100, 104) == 52
    assert wheel.at(100) == Chain(0, 104, 1)


def test_a_search_over_years_looks_at_two_laps_only() -> None:
    wheel = Wheel(new_disk(), PATH)
    wheel.add(SECOND, 0)
    assert wheel.next_occupied(SECOND, 10**12) == SECOND
    assert wheel.next_occupied(SECOND + 1, 10**12) is None


def test_flipped_bits_are_found_when_the_page_is_loaded() -> None:
    disk = new_disk()
    wheel = Wheel(disk, PATH)
    second = SLOTS * 1400  # the first slot of the file
    wheel.add(second, 52)
    wheel.flush()
    assert Wheel(disk, PATH).at(second) == Chain(52, 52, 1)
    for bit in range(32 * 8):
        disk.flip(PATH, bit // 8, bit % 8)
        with pytest.raises(Corrupt):
            Wheel(disk, PATH).at(second)
        with pytest.raises(Corrupt):
            Wheel(disk, PATH).survey(0)
        disk.flip(PATH, bit // 8, bit % 8)


def test_only_dirty_pages_are_written_and_neighbours_in_one_go() -> None:
    disk = new_disk()
    wheel = Wheel(disk, PATH)
    base = SLOTS * 1400
    for second in (base, base + 1, base + 128, base + 128 * 5):
        wheel.add(second, 0)
    wheel.flush()
    before = len(disk.calls)
    wheel.add(base + 2, 52)
    wheel.flush()
    written = [(call.position, call.size) for call in disk.calls if call.operation == "pwritev"]
    assert written == [(0, 2 * PAGE_BYTES), (5 * PAGE_BYTES, PAGE_BYTES), (0, PAGE_BYTES)]
    assert len(disk.calls) == before + 2


def test_a_reset_wheel_is_empty_and_its_file_untouched_until_the_flush() -> None:
    disk = new_disk()
    wheel = Wheel(disk, PATH)
    wheel.add(SLOTS, 0)
    wheel.flush()
    held = disk.contents(PATH)
    wheel.reset()
    assert wheel.at(SLOTS) == EMPTY_CHAIN
    assert disk.contents(PATH) == held
    wheel.add(SLOTS + 200, 52)
    wheel.flush()
    again = Wheel(disk, PATH)
    assert (again.at(SLOTS), again.at(SLOTS + 200)) == (EMPTY_CHAIN, Chain(52, 52, 1))
