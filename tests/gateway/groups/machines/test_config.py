"""Settings of a group and the text form of the back-off table."""

from __future__ import annotations

import pytest

from gateway.groups.machines.config import BACKOFF_STEPS_MAX, GroupConfig, parse_backoff
from gateway.groups.machines.errors import IllegalRequest


def test_a_back_off_table_is_a_text_of_waits() -> None:
    assert parse_backoff("250ms 10s 1m 2h 1d") == (250, 10_000, 60_000, 7_200_000, 86_400_000)
    assert len(parse_backoff("1s " * BACKOFF_STEPS_MAX)) == BACKOFF_STEPS_MAX


@pytest.mark.parametrize("text", ["", "10", "1 s", "-1s", "1s,2s", "1w", "366d", "1s " * (BACKOFF_STEPS_MAX + 1), "٣s"])
def test_what_is_not_a_back_off_table_is_refused(text: str) -> None:
    with pytest.raises(IllegalRequest):
        parse_backoff(text)


def test_the_default_table_is_that_of_the_original() -> None:
    assert len(GroupConfig().backoff_ms) == 16
    assert (GroupConfig().backoff_ms[0], GroupConfig().backoff_ms[-1]) == (10_000, 7_200_000)


@pytest.mark.parametrize(
    "fields",
    [
        {"session_timeout_ms": 999},
        {"session_timeout_ms": 1_800_001},
        {"backoff_ms": ()},
        {"invisible_ms": 0},
        {"invisible_ms": 43_200_001},
        {"max_attempts": 0},
        {"in_flight_max": 0},
    ],
)
def test_a_group_that_could_not_work_is_refused(fields: dict[str, int]) -> None:
    with pytest.raises(IllegalRequest):
        GroupConfig(**fields)  # type: ignore[arg-type]
