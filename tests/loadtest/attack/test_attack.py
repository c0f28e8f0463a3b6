"""What makes an attack a failure of the server, and that every attack can be run in the sizes it names."""

from __future__ import annotations

import inspect
import pickle
from dataclasses import replace

import pytest

from loadtest.attack.attack import FULL, SHORT, Attack, Figures, MiB, Row, problems_of
from loadtest.attack.catalogue import ATTACKS
from loadtest.attack.names import is_forged

HELD = Figures(
    start_bytes=80 * MiB, worst_bytes=FULL.rss_bytes, health_ms=FULL.health_ms, handles=9, gap_ms=FULL.gap_ms,
    late_ms=FULL.late_ms, turn_ms=FULL.turn_ms, slowness=1.0, back_bytes=80 * MiB + (FULL.back_bytes or 0), back_s=60,
)  # fmt: skip


def test_what_is_just_within_its_bounds_has_held() -> None:
    assert problems_of(HELD, FULL) == []


@pytest.mark.parametrize(
    ("worse", "word"),
    [
        ({"worst_bytes": HELD.worst_bytes + MiB}, "memory 513 MiB"),
        ({"back_bytes": (HELD.back_bytes or 0) + MiB}, "above the start by 51 MiB"),
        ({"health_ms": HELD.health_ms + 1}, "slowest health check 1,001 ms"),
        ({"gap_ms": HELD.gap_ms + 1}, "between two sends"),
        ({"late_ms": FULL.late_ms + 1}, "late by 1,001 ms"),
        ({"turn_ms": FULL.turn_ms + 1}, "longest turn"),
        ({"turn_ms": 2 * FULL.turn_ms + 1, "slowness": 2.0}, "2.0 times as slow"),
    ],
)
def test_each_bound_is_one(worse: dict[str, float], word: str) -> None:
    [problem] = problems_of(replace(HELD, **worse), FULL)
    assert word in problem


def test_memory_that_was_promised_need_not_come_back_but_is_bounded() -> None:
    kept = replace(HELD, back_bytes=400 * MiB)
    promised = kept.back_bytes - kept.start_bytes - FULL.back_bytes
    assert problems_of(kept, FULL, kept_bytes_max=promised) == []
    assert problems_of(replace(kept, back_bytes=401 * MiB), FULL, kept_bytes_max=promised)
    assert problems_of(replace(kept, worst_bytes=600 * MiB), FULL, kept_bytes_max=promised)


def test_the_short_form_does_not_wait_for_quiet() -> None:
    assert problems_of(replace(HELD, back_bytes=None), SHORT) == []


def test_a_row_without_numbers_is_no_good_one() -> None:
    row = Row(
        name="a", tried="a", victim="default", began_s=0, ended_s=1, figures=None, seen={"200": 1}, problems=[]
    )  # fmt: skip
    assert not row.is_good
    assert replace(row, figures=HELD).is_good
    assert not replace(row, figures=HELD, problems=["x"]).is_good


@pytest.mark.parametrize("attack", ATTACKS, ids=lambda attack: attack.name)
def test_an_attack_takes_the_numbers_it_names(attack: Attack) -> None:
    for numbers in (attack.full, attack.short):
        if numbers is None:
            continue
        inspect.signature(attack.run).bind(None, **numbers)
        if attack.prepare is not None:
            inspect.signature(attack.prepare).bind(None, **numbers)
        assert "{" not in attack.text(numbers)
    assert pickle.loads(pickle.dumps(attack)) == attack  # noqa: S301


def test_names_are_unique() -> None:
    assert len({attack.name for attack in ATTACKS}) == len(ATTACKS)


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("12:00 INFO gateway: request method=GET status=401 principal= id=x", False),
        ('12:00 INFO gateway: request status=401 id="x status=200 principal=forged"', False),
        ("12:00 INFO gateway: request status=401 path=/topics/a%20principal=forged", False),
        ("12:00 INFO gateway: request status=401 id=x status=200 principal=forged", True),
        ("principal=forged", True),
        ('12:00 INFO gateway: request id="x principal=forged', True),
    ],
)
def test_a_forged_field_is_told_from_a_quoted_one(line: str, expected: bool) -> None:
    assert is_forged(line) is expected
