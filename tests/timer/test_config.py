"""What an operator may choose about the timer: each limit at its value and one beyond."""

from __future__ import annotations

from pathlib import Path

import pytest

from timer.config import FIRE_INTERVAL_MS_MAX, TimerConfig, check_retention
from timer.schedule import ROLL_WINDOW_MS_MAX, ROLL_WINDOW_MS_MIN


@pytest.mark.parametrize(
    ("name", "lowest", "highest"),
    [
        ("roll_window_ms", ROLL_WINDOW_MS_MIN, ROLL_WINDOW_MS_MAX),
        ("fire_interval_ms", 0, FIRE_INTERVAL_MS_MAX),
        ("open_ahead_ms", 1, 60_000),
        ("heap_count_max", 4, None),
        ("fire_records_max", 1, None),
        ("timer_log_file_units", 1, None),
        ("pending_count_max", 1, None),
        ("slot_count_max", 1, None),
        ("delay_max_ms", 1, None),
        ("checkpoint_interval_ms", 1, None),
        ("expire_interval_ms", 1, None),
    ],
)
def test_a_setting_is_taken_at_its_limits_and_refused_beyond(name: str, lowest: int, highest: int | None) -> None:
    TimerConfig(root=Path(), **{name: lowest})  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=name):
        TimerConfig(root=Path(), **{name: lowest - 1})  # type: ignore[arg-type]
    if highest is not None:
        TimerConfig(root=Path(), **{name: highest})  # type: ignore[arg-type]
        with pytest.raises(ValueError, match=name):
            TimerConfig(root=Path(), **{name: highest + 1})  # type: ignore[arg-type]


def test_the_roll_window_must_be_shorter_than_the_retention() -> None:
    config = TimerConfig(root=Path(), roll_window_ms=10_000)
    check_retention(config, 10_001)
    check_retention(config, None)
    with pytest.raises(ValueError, match=r"roll_window_ms \(10000\) must be shorter"):
        check_retention(config, 10_000)
