"""gateway.recurring.rule: when recurring schedules are due, through every change of a zone's clocks."""

from __future__ import annotations

from datetime import UTC, datetime
from itertools import islice
from random import Random
from zoneinfo import ZoneInfo

import pytest

from gateway.recurring.rule import Rule, zone_of

BERLIN = ZoneInfo("Europe/Berlin")


def ms(text: str, zone: ZoneInfo | None = None) -> int:
    moment = datetime.fromisoformat(text)
    return round((moment if moment.tzinfo else moment.replace(tzinfo=zone or UTC)).timestamp()) * 1000


def dues(cron: str, start: str, count: int, zone: str = "Europe/Berlin") -> list[str]:
    rule = Rule(cron=cron, zone=zone)
    found = islice(rule.dues(ms(start)), count)
    return [datetime.fromtimestamp(due_ms / 1000, zone_of(zone)).isoformat()[5:] for due_ms in found]


@pytest.mark.parametrize(
    ("cron", "start", "expected"),
    [
        # The clock is put forward from 02:00 to 03:00 on 29 March 2026.
        ("30 2 * * *", "2026-03-28T12:00Z", ["03-29T03:00:00+02:00", "03-30T02:30:00+02:00"]),
        ("0,30 2 * * *", "2026-03-28T12:00Z", ["03-29T03:00:00+02:00", "03-30T02:00:00+02:00"]),
        ("30 * * * *", "2026-03-29T00:00Z", ["03-29T01:30:00+01:00", "03-29T03:30:00+02:00"]),
        ("*/30 2 * * *", "2026-03-29T00:00Z", ["03-30T02:00:00+02:00", "03-30T02:30:00+02:00"]),
        # It is put back from 03:00 to 02:00 on 25 October 2026.
        ("30 2 * * *", "2026-10-24T12:00Z", ["10-25T02:30:00+02:00", "10-26T02:30:00+01:00"]),
        ("30 * * * *", "2026-10-25T00:00Z", ["10-25T02:30:00+02:00", "10-25T02:30:00+01:00", "10-25T03:30:00+01:00"]),
        ("*/30 2 * * *", "2026-10-25T00:10Z", ["10-25T02:30:00+02:00", "10-25T02:00:00+01:00", "10-25T02:30:00+01:00"]),
        # A start between the two passes of 02:30 does not go back to the first one.
        ("30 2 * * *", "2026-10-25T00:45Z", ["10-26T02:30:00+01:00"]),
        ("45 2 * * *", "2026-10-25T01:15Z", ["10-26T02:45:00+01:00"]),
        ("@daily", "2026-10-24T12:00Z", ["10-25T00:00:00+02:00", "10-26T00:00:00+01:00"]),
        ("@HOURLY", "2026-06-01T12:00Z", ["06-01T15:00:00+02:00"]),
    ],
)
def test_cron_follows_the_clocks_of_its_zone_as_debian_does(cron: str, start: str, expected: list[str]) -> None:
    assert dues(cron, start, len(expected)) == expected


def test_cron_in_utc_knows_no_changes() -> None:
    assert dues("30 2 * * *", "2026-03-28T12:00Z", 2, "UTC") == ["03-29T02:30:00+00:00", "03-30T02:30:00+00:00"]


@pytest.mark.parametrize("cron", ["30 2 * * *", "*/20 1-3 * * *", "15,45 2,3 * * *", "0 * * * *", "0 0 * * MON"])
@pytest.mark.parametrize("zone", ["Europe/Berlin", "America/New_York", "Australia/Lord_Howe", "America/Santiago"])
def test_due_times_rise_and_are_the_same_from_wherever_one_begins(cron: str, zone: str) -> None:
    rule = Rule(cron=cron, zone=zone)
    start_ms, end_ms = ms("2026-01-01"), ms("2027-01-01")
    all_ms = []
    for due_ms in rule.dues(start_ms):
        if due_ms > end_ms:
            break
        all_ms.append(due_ms)
    assert all_ms == sorted(set(all_ms))
    rng = Random(1)
    turns = [due_ms for due_ms in all_ms if datetime.fromtimestamp(due_ms / 1000, ZoneInfo(zone)).hour < 4]
    for due_ms in rng.sample(turns, 40):
        assert rule.due_after(due_ms - 1) == due_ms
        later = [other for other in all_ms if other > due_ms]
        assert rule.due_after(due_ms) == (later[0] if later else rule.due_after(end_ms))


def test_every_is_elapsed_time_from_its_anchor() -> None:
    rule = Rule(every_ms=7_000, anchor_ms=10_000)
    assert list(islice(rule.dues(0), 3)) == [10_000, 17_000, 24_000], "the anchor itself is a due time"
    assert rule.due_after(9_999) == 10_000
    assert rule.due_after(10_000) == 17_000
    assert rule.due_after(16_999) == 17_000
    assert [rule.count_between(0, until_ms) for until_ms in (9_999, 10_000, 17_000, 23_999)] == [0, 1, 2, 2]
    assert rule.count_between(10_000, 24_000) == 2
    assert Rule(cron="@daily").count_between(0, 1) is None


@pytest.mark.parametrize(
    ("rule", "said"),
    [
        (Rule(cron="* * * *"), "five fields"),
        (Rule(cron="* * * * * *"), "five fields"),
        (Rule(cron=""), "five fields"),
        (Rule(cron="@reboot"), "five fields"),
        (Rule(cron="60 * * * *"), "Bad minute"),
        (Rule(cron="* * * * noday"), "Bad day-of-week"),
        (Rule(cron="0 0 30 2 *"), "Bad day-of-month"),
        (Rule(cron="0 0 */31 * 1#5"), "never due"),
        (Rule(cron="@daily", zone="Nowhere/At_All"), "not a time zone"),
        (Rule(cron="@daily", zone="../../etc/passwd"), "not a time zone"),
        (Rule(cron="@daily", zone="America"), "not a time zone"),
        (Rule(cron="@daily", zone=""), "not a time zone"),
    ],
)
def test_a_rule_that_is_none_is_refused(rule: Rule, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        rule.check(ms("2026-01-01"))


@pytest.mark.parametrize("cron", ["* * * * *", "*/5 9-17 * * MON-FRI", "0 0 L * *", "@weekly", " 0 9 * * * "])
def test_what_cron_can_say_is_taken(cron: str) -> None:
    Rule(cron=cron, zone="Europe/Berlin").check(ms("2026-01-01"))
