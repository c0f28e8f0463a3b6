"""The longest turns of the event loop: every route and op has its cases, and the dearest of them keep within the
limit.

`python -m loadtest.turns` runs all cases with the largest bodies; here are those that were longest.
"""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import cast

import pytest

from gateway.main.routes import ROUTES
from gateway.surfaces.ws.commands import PERMISSIONS
from loadtest.turns import Turn, measure, run
from loadtest.turns.cases import HELD_MS_MAX, LOOKED_MS_MAX, Case, Client, Size, cases

SHORT = {
    "produce": (
        "empty objects in %s",
        'objects in {"records":[{"v',
        'strings in {"records":%s}',
        "lists of numbers",
    ),
    "v3_produce_batch": ('objects in {"entries":[{"i', "100 entries"),
    "produce_lines": ("objects in %s", "records", "all bad"),
    "ack": ('empty lists in {"receipts":%s}', "the most receipts"),
    "assign": ('empty objects in {"partitions":%s', "the most"),
    "fetch": ("tiny as application/x-ndjson",),
    "follow_topic": ("tiny",),
    "receive": ("of the largest batch", "from 1,024 empty partitions", "for 100 groups", "from 1,024 partitions"),
    "seek": ("the most",),
    "seek_to_end": ("the most",),
    "instance_records": ("of the most partitions", "of the largest batch", "of 10,000 partitions"),
    "subscribe": ("to 10,000 partitions",),
    "socket produce": ("objects as a frame", "objects as a value", "the largest batch"),
    "socket subscribe": ("tiny as json", "light-heads as json"),
    "read_queue": ("light-heads",),
    "follow_queue": ("light-heads",),
    "group_lag": ("the largest",),
    "v3_lags": ("the largest",),
    "kafka OffsetCommit": ("the most",),
    "kafka DescribeConfigs": ("one topic again and again",),
    "kafka Metadata": ("one topic again and again",),
    "kafka DeleteTopics": ("that are not there",),
    "kafka Produce": ("the most partitions of no topic", "zstd batch of many headers"),
}
"""Names of cases begin so."""


def test_every_route_and_every_op_has_a_case() -> None:
    covered = {case.route for case in cases(Size.QUICK)}
    assert {row.name for row in ROUTES} <= covered
    assert {f"socket {op}" for op in PERMISSIONS} <= covered


def dearest(directory: Path, *, held_ms_max: float | None = None) -> list[Turn]:
    """The longest turns of the cases of SHORT."""
    seen: set[tuple[str, str]] = set()

    def wanted(case: Case) -> bool:
        for name in SHORT.get(case.route, ()):
            if name.startswith(case.name) or case.name.startswith(name):
                seen.add((case.route, name))
                return True
        return False

    turns = measure(size=Size.QUICK, wanted=wanted, directory=directory, held_ms_max=held_ms_max)
    assert seen == {(route, name) for route, names in SHORT.items() for name in names}
    return turns


def too_long(turns: list[Turn]) -> list[Turn]:
    return [turn for turn in turns if turn.scaled_ms > turn.held_ms_max]


@pytest.mark.matrix
def test_the_dearest_requests_leave_others_their_turn(tmp_path: Path) -> None:
    """Other tests run beside this one, so the tighter limit of some cases is for the long test."""
    assert too_long(dearest(tmp_path, held_ms_max=HELD_MS_MAX)) == []


@pytest.mark.long
def test_the_dearest_requests_keep_within_their_limits_on_a_quiet_machine(tmp_path: Path) -> None:
    assert too_long(dearest(tmp_path)) == []


@pytest.mark.long
def test_nothing_that_looks_at_many_topics_groups_or_partitions_holds_the_loop_for_10_ms(tmp_path: Path) -> None:
    """With 10,000 topics: lists, administration, Metadata, DescribeConfigs, joins, a receive from 97 of them."""
    turns = measure(size=Size.FULL, wanted=lambda case: case.held_ms_max == LOOKED_MS_MAX, directory=tmp_path)
    assert {turn.route for turn in turns} > {"receive", "list_topics", "list_groups", "kafka DescribeConfigs"}
    assert too_long(turns) == []


async def test_a_case_that_is_late_now_and_then_is_late(monkeypatch: pytest.MonkeyPatch) -> None:
    """One late turn of five is others' work beside it, two are not; a case whose first turn is in time is run once."""
    monkeypatch.setattr(run, "_SETTLING_S", 0)

    async def nothing(client: object) -> str:
        return "200"

    async def measured(*turns_ms: float, slowness: float = 1.0) -> tuple[float, int]:
        left = list(turns_ms)

        async def longest() -> tuple[float, str, float]:
            asked[0] += 1
            return (0.0, "", slowness) if asked[0] % 2 else (left.pop(0), "", 1.0)

        asked = [0]
        case = Case("produce", "one", nothing, held_ms_max=10)  # type: ignore[arg-type]
        turn = await run._run(cast(Client, None), case, lambda: asyncio.ensure_future(longest()), 10.0)
        return turn.ms, len(turns_ms) - len(left)

    assert await measured(10, 11, 11, 11, 11) == (10, 1)
    assert await measured(11, 3, 2, 10, 1) == (10, 5)
    assert await measured(11, 3, 2, 12, 1) == (11, 5)
    assert await measured(20, 21, slowness=2) == (20, 1)
    assert await measured(21, 3, 2, 22, 1, slowness=2) == (21, 5)
    assert (run.TRIES, run.LATE_MAX) == (5, 1)
