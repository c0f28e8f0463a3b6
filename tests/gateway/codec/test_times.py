"""gateway/codec/times.py"""

from __future__ import annotations

import pytest

from gateway.codec.times import TIME_MS_MAX, parse_time_ms


@pytest.mark.parametrize(
    ("text", "time_ms"),
    [
        ("1970-01-01T00:00:00Z", 0),
        ("2026-01-01T00:01:30Z", 1_767_225_690_000),
        ("2026-01-01t00:01:30z", 1_767_225_690_000),
        ("2026-01-01 01:01:30+01:00", 1_767_225_690_000),
        ("2025-12-31T19:01:30.250-05:00", 1_767_225_690_250),
        ("2026-01-01T00:01:30.123456789Z", 1_767_225_690_124),
        ("2026-01-01T00:01:30.000000001Z", 1_767_225_690_001),
        ("9999-12-31T23:59:59.999Z", TIME_MS_MAX),
    ],
)
def test_rfc3339_is_epoch_ms_and_a_part_of_a_millisecond_never_makes_it_earlier(text: str, time_ms: int) -> None:
    assert parse_time_ms(text) == time_ms


@pytest.mark.parametrize("value", [0, 1, TIME_MS_MAX])
def test_an_integer_is_epoch_ms(value: int) -> None:
    assert parse_time_ms(value) == value


@pytest.mark.parametrize(
    "value",
    [
        -1,
        TIME_MS_MAX + 1,
        True,
        1.5,
        float("nan"),
        None,
        [],
        "",
        "1767225690000",
        "2026-01-01",
        "2026-01-01T00:01:30",
        "2026-01-01T00:01Z",
        "2026-13-01T00:00:00Z",
        "2026-02-29T00:00:00Z",
        "2026-01-01T24:00:00Z",
        "2026-01-01T00:00:60Z",
        "2026-01-01T00:00:00+24:00",
        "2026-01-01T00:00:00.1234567891Z",
        "1969-12-31T23:59:59Z",
        "9999-12-31T23:59:59.9999Z",
        "２０２６-01-01T00:00:00Z",
        "2026-01-01T00:00:00Z\n",
    ],
)
def test_anything_else_is_refused(value: object) -> None:
    with pytest.raises(ValueError):
        parse_time_ms(value)
