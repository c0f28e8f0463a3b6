"""Slots, rolls and schedule ids; the roll vectors of the reference."""

from __future__ import annotations

import base64

import pytest
from hypothesis import given
from hypothesis import strategies as st

from timer.schedule import (
    LAP_SLOTS,
    ROLL_WINDOW_MS_MAX,
    ROLL_WINDOW_MS_MIN,
    decode_schedule_id,
    encode_schedule_id,
    encode_schedule_ids,
    slot_for,
)

WINDOW_MS = 172_800_000
MARK_MS = 1_700_000_000_000


@pytest.mark.parametrize(
    ("ahead_s", "slot_ahead_s", "rolls"),
    [(172_799, 172_799, False), (172_800, 86_400, True), (230_399, 86_400, True), (230_400, 172_800, True)],
)
def test_the_reference_vectors_of_rolling_hold(ahead_s: int, slot_ahead_s: int, rolls: bool) -> None:
    placement = slot_for(MARK_MS + ahead_s * 1000, MARK_MS, WINDOW_MS)
    assert placement == (MARK_MS // 1000 + slot_ahead_s, rolls)


@pytest.mark.parametrize("due_ms", [1_700_003_600_000, 1_700_003_600_001])
def test_the_reference_vectors_of_rounding_share_the_second_they_lie_in(due_ms: int) -> None:
    """The reference takes a tick off an aligned due time and loses its milliseconds; here the slot is the second, and
    the due time stays in the unit."""
    assert slot_for(due_ms, due_ms - 5_000, WINDOW_MS) == (1_700_003_600, False)


def test_the_worked_examples_of_the_header_hold() -> None:
    hour_ms = 3_600_000
    assert slot_for(MARK_MS + 50 * hour_ms, MARK_MS, 48 * hour_ms) == (MARK_MS // 1000 + 24 * 3600, True)
    assert slot_for(MARK_MS + 71 * hour_ms, MARK_MS, 48 * hour_ms) == (MARK_MS // 1000 + 48 * 3600, True)


@given(st.integers(0, 10**13), st.integers(0, 10**12), st.integers(ROLL_WINDOW_MS_MIN, ROLL_WINDOW_MS_MAX))
def test_every_slot_is_within_a_lap_and_a_roll_gets_nearer(ahead_ms: int, mark_s: int, window_ms: int) -> None:
    mark_ms = mark_s * 1000
    slot_s, rolls = slot_for(mark_ms + ahead_ms, mark_ms, window_ms)
    assert mark_s <= slot_s < mark_s + LAP_SLOTS
    assert slot_s <= (mark_ms + ahead_ms) // 1000
    assert rolls == (ahead_ms >= window_ms)
    if rolls:
        assert slot_s > mark_s


def test_a_slot_holds_exactly_its_thousand_milliseconds() -> None:
    assert [slot_for(MARK_MS + ahead, MARK_MS, WINDOW_MS).slot_s - MARK_MS // 1000 for ahead in (0, 999, 1000)] == [
        0,
        0,
        1,
    ]


@given(st.integers(0, 2**63 - 1), st.integers(0, 2**63 - 1), st.integers(0, 2**31 - 1))
def test_an_id_says_what_was_put_in(due_ms: int, position: int, record_index: int) -> None:
    text = encode_schedule_id(due_ms, position, record_index)
    assert len(text) == 28
    assert decode_schedule_id(text) == (due_ms, position, record_index)


@given(st.lists(st.integers(0, 2**63 - 1), max_size=9), st.integers(0, 2**63 - 1))
def test_ids_of_an_entry_are_those_of_its_records(dues_ms: list[int], position: int) -> None:
    each = [encode_schedule_id(due_ms, position, index) for index, due_ms in enumerate(dues_ms)]
    assert encode_schedule_ids(dues_ms, position) == each


@given(st.text())
def test_any_text_is_an_id_or_a_value_error(text: str) -> None:
    with pytest.raises(ValueError, match="not a schedule id"):
        decode_schedule_id(text)


def test_other_spellings_of_an_id_are_refused() -> None:
    text = encode_schedule_id(1_700_000_000_123, 4096, 3)
    last = text[-1]
    alias = chr(ord(last) + 1)  # differs only in the two bits that no byte uses
    assert base64.urlsafe_b64decode(text[1:-1] + alias + "=") == base64.urlsafe_b64decode(text[1:] + "=")
    negative = "s" + base64.urlsafe_b64encode(b"\xff" * 20).rstrip(b"=").decode()
    for other in (text[:-1] + alias, text + "=", text[1:], "S" + text[1:], text + "A", " " + text, negative):
        with pytest.raises(ValueError, match="not a schedule id"):
            decode_schedule_id(other)
