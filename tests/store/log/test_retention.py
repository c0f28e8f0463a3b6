"""store.log.retention: which log files may go."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from store.log.retention import LogFile, decide_expired

HOUR_MS = 3_600_000
NOW_MS = 100 * HOUR_MS
FILES = [LogFile(at, at + 100, NOW_MS - age * HOUR_MS) for at, age in ((0, 9), (100, 6), (200, 4), (300, 0))]
NO_PIN = 10**9


def starts(*, hours: int | None = None, kept_bytes: int | None = None, pin: int = NO_PIN) -> list[int]:
    retention_ms = None if hours is None else hours * HOUR_MS
    expired = decide_expired(
        FILES, now_ms=NOW_MS, retention_ms=retention_ms, retention_bytes=kept_bytes, pinned_position=pin
    )
    return [file.start for file in expired]


def test_without_limits_everything_stays() -> None:
    assert starts() == []


@pytest.mark.parametrize(
    ("hours", "expected"), [(10, []), (9, []), (8, [0]), (5, [0, 100]), (1, [0, 100, 200]), (0, [0, 100, 200])]
)
def test_old_files_go_and_the_newest_stays(hours: int, expected: list[int]) -> None:
    assert starts(hours=hours) == expected


@pytest.mark.parametrize(("kept_bytes", "expected"), [(400, []), (399, [0]), (250, [0, 100]), (0, [0, 100, 200])])
def test_files_beyond_the_size_go(kept_bytes: int, expected: list[int]) -> None:
    assert starts(kept_bytes=kept_bytes) == expected


@pytest.mark.parametrize(("pin", "expected"), [(0, []), (99, []), (100, [0]), (150, [0]), (200, [0, 100])])
def test_a_pinned_file_stays_and_so_does_all_behind_it(pin: int, expected: list[int]) -> None:
    assert starts(hours=5, pin=pin) == expected


@given(
    st.lists(st.integers(0, 20), max_size=8), st.integers(0, 20), st.integers(0, 900), st.integers(0, 900)
)  # fmt: skip
def test_what_goes_is_a_prefix_and_never_the_newest_file(ages: list[int], hours: int, kept: int, pin: int) -> None:
    files = [LogFile(n * 100, n * 100 + 100, NOW_MS - age * HOUR_MS) for n, age in enumerate(ages)]
    expired = decide_expired(
        files, now_ms=NOW_MS, retention_ms=hours * HOUR_MS, retention_bytes=kept, pinned_position=pin
    )
    assert expired == files[: len(expired)]
    assert not files or len(expired) < len(files)
    assert all(file.end <= pin for file in expired)
