"""store.log.pace: when the event loop writes by itself."""

from __future__ import annotations

from store.log.pace import INLINE_BYTES_MAX, INLINE_MS_MAX, PAUSE_MS_MAX, PAUSE_MS_MIN, Pace

NOW_MS = 1_700_000_000_000
SLOW_MS = 16 * int(INLINE_MS_MAX)  # one such write is too slow


def test_a_group_may_have_the_largest_size_and_not_a_byte_more() -> None:
    pace = Pace()
    assert pace.is_inline(INLINE_BYTES_MAX, NOW_MS)
    assert not pace.is_inline(INLINE_BYTES_MAX + 1, NOW_MS)


def test_quick_writes_with_a_slow_one_now_and_then_go_on_inline() -> None:
    pace = Pace()
    for number in range(1000):
        pace.wrote(SLOW_MS // 2 if number % 20 == 0 else 1, NOW_MS + number)
        assert pace.is_inline(1, NOW_MS + number)


def test_a_stall_pauses_at_once_and_slow_writes_after_a_while() -> None:
    stalled = Pace()
    stalled.wrote(SLOW_MS - 1, NOW_MS)
    assert stalled.is_inline(1, NOW_MS)
    stalled = Pace()
    stalled.wrote(SLOW_MS, NOW_MS)
    assert not stalled.is_inline(1, NOW_MS)
    throttled = Pace()
    writes = 0
    while throttled.is_inline(1, NOW_MS):
        throttled.wrote(int(INLINE_MS_MAX) + 2, NOW_MS)
        writes += 1
    assert 10 < writes < 30


def pause_ms_of(pace: Pace, now_ms: int) -> int:
    """How long the pause is that a stall brings at this time."""
    pace.wrote(SLOW_MS, now_ms)
    low, high = 0, 2 * PAUSE_MS_MAX
    while low < high:
        middle = (low + high) // 2
        if pace.is_inline(1, now_ms + middle):
            high = middle
        else:
            low = middle + 1
    return low


def test_pauses_grow_while_the_disk_stays_slow_and_begin_anew_after_it_was_quick() -> None:
    pace, now_ms, pauses = Pace(), NOW_MS, []
    for _ in range(9):
        pauses.append(pause_ms_of(pace, now_ms))
        now_ms += pauses[-1]
    assert pauses[:3] == [PAUSE_MS_MIN, 2 * PAUSE_MS_MIN, 4 * PAUSE_MS_MIN]
    assert pauses[-2:] == [PAUSE_MS_MAX, PAUSE_MS_MAX]
    assert pause_ms_of(pace, now_ms + PAUSE_MS_MAX) == PAUSE_MS_MIN


def test_a_clock_that_is_set_back_ends_the_pause() -> None:
    pace = Pace()
    pace.wrote(-3_600_000, NOW_MS)
    pace.wrote(SLOW_MS, NOW_MS)
    assert not pace.is_inline(1, NOW_MS + 1)
    assert pace.is_inline(1, NOW_MS - 3_600_000)
