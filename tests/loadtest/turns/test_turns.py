"""The longest turns of the event loop: every route and op has its cases, and the dearest of them keep within the
limit.

`python -m loadtest.turns` runs all cases with the largest bodies; here are those that were longest.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from gateway.main.routes import ROUTES
from gateway.surfaces.ws.commands import PERMISSIONS
from loadtest.turns import Turn, measure
from loadtest.turns.cases import Case, Size, cases

SHORT = {
    "produce": ("empty objects in %s", 'objects in {"records":[{"v', 'strings in {"records":%s}', "lists of numbers"),
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
    "socket subscribe": ("tiny as json",),
    "group_lag": ("the largest",),
    "v3_lags": ("the largest",),
    "kafka OffsetCommit": ("the most",),
    "kafka DescribeConfigs": ("one topic again and again",),
    "kafka Metadata": ("one topic again and again",),
    "kafka DeleteTopics": ("that are not there",),
    "kafka Produce": ("the most partitions of no topic",),
}
"""Names of cases begin so."""


ATTEMPTS = 3


def is_late(turn: Turn) -> bool:
    return turn.ms > turn.held_ms_max


def measured_again(turns: Sequence[Turn], directory: Path) -> Sequence[Turn]:
    wanted = {(turn.route, turn.case) for turn in turns}
    again = measure(size=Size.QUICK, wanted=lambda case: (case.route, case.name) in wanted, directory=directory)
    assert {(turn.route, turn.case) for turn in again} == wanted
    return again


def test_every_route_and_every_op_has_a_case() -> None:
    covered = {case.route for case in cases(Size.QUICK)}
    assert {row.name for row in ROUTES} <= covered
    assert {f"socket {op}" for op in PERMISSIONS} <= covered


def test_the_dearest_requests_leave_others_their_turn(tmp_path: Path) -> None:
    seen: set[tuple[str, str]] = set()

    def wanted(case: Case) -> bool:
        for name in SHORT.get(case.route, ()):
            if name.startswith(case.name) or case.name.startswith(name):
                seen.add((case.route, name))
                return True
        return False

    late = [turn for turn in measure(size=Size.QUICK, wanted=wanted, directory=tmp_path) if is_late(turn)]
    assert seen == {(route, name) for route, names in SHORT.items() for name in names}
    # Tests beside it take caches and cores, and a turn's CPU time grows by half: what is late by itself is so again.
    for _ in range(1, ATTEMPTS):
        if late:
            late = [turn for turn in measured_again(late, tmp_path) if is_late(turn)]
    assert late == []
