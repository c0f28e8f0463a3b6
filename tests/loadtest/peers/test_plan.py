"""What is measured, and in which order."""

from __future__ import annotations

from collections import Counter

from loadtest.peers.mq import PEERS
from loadtest.peers.peer import Durability
from loadtest.peers.plan import PARTS, long_turns, long_workloads, options_of, sizes, turns, workloads
from loadtest.peers.registry import MODULES
from loadtest.peers.report import LINES, OURS
from tests.loadtest.peers.sleepers import Sleeper

TWO = {
    "mq": PEERS[0],
    "other": Sleeper("other", {"batched": ["tool", "library"], "push": ["library"], "delayed": ["library"]}),
}


def test_a_work_is_done_by_all_rows_one_after_the_other_and_another_one_begins_in_each_round() -> None:
    found = list(turns(TWO, Durability.WRITTEN, rounds=2, quick=False))
    batched = [(one.number, one.row.peer, one.row.client) for one in found if one.step.name == "batched"]
    ours = [("mq", "aiohttp, record batches"), ("mq", "aiohttp, JSON")]
    theirs = [("other", "tool"), ("other", "library")]
    assert batched == [(0, *row) for row in ours + theirs] + [(1, *row) for row in [*ours[1:], *theirs, *ours[:1]]]
    positions = [number for number, one in enumerate(found) if one.step.name == "batched" and one.number == 0]
    assert positions == list(range(positions[0], positions[0] + 4))


def test_what_only_reads_is_measured_in_one_class_of_durability() -> None:
    reads = {
        durability: {one.step.name for one in turns(TWO, durability, rounds=1, quick=False)} & {"scan", "fetch"}
        for durability in Durability
    }
    assert reads == {Durability.WRITTEN: {"scan", "fetch"}, Durability.SYNCED: set()}


def test_no_two_turns_share_a_file() -> None:
    found = [one for durability in Durability for one in turns(TWO, durability, rounds=2, quick=False)]
    found += long_turns(TWO, PARTS, quick=False)
    assert max(Counter(one.stem for one in found).values()) == 1


def test_long_works_come_once_ours_at_every_level_and_a_peers_at_its_loosest() -> None:
    found = [(one.step.name, one.row.peer, one.row.level.name) for one in long_turns(TWO, PARTS, quick=False)]
    assert found == [
        ("topics_10000", "mq", "flushed"),
        ("topics_10000", "mq", "written"),
        ("delayed_million", "mq", "flushed"),
        ("delayed_million", "mq", "written"),
        ("delayed_million", "other", "sometimes"),
        ("restart", "mq", "flushed"),
        ("restart", "mq", "written"),
    ]
    assert {name for name, _, _ in found} == {long_workloads(part, quick=True).name for part in PARTS[1:]}
    assert not list(long_turns(TWO, ["workloads"], quick=False))


def test_a_full_run_has_steady_states_of_five_seconds_and_a_quick_one_the_same_steps() -> None:
    quick, full = workloads(quick=True), workloads(quick=False)
    assert [step.name for step in quick] == [step.name for step in full]
    assert all(step.options["duration_s"] >= 5 for step in full if step.work != "delayed")
    assert sizes(PARTS, quick=True).keys() == sizes(PARTS, quick=False).keys()


def test_a_peer_accepts_delayed_records_as_fast_as_it_says() -> None:
    step = next(step for step in workloads(quick=False) if step.work == "delayed")
    assert options_of(step, TWO["other"])["accepted_per_s"] == TWO["other"].delays_per_s
    assert options_of(long_workloads("delayed", quick=False), TWO["other"])["accepted_per_s"] == 20_000


def test_every_table_names_a_row_of_ours_that_is_measured() -> None:
    steps = {
        step.name: step.work for step in (*workloads(quick=True), *(long_workloads(p, quick=True) for p in PARTS[1:]))
    }
    for line in LINES:
        assert line.ours in [way.client for way in PEERS[0].ways(steps[line.step])], line.title
    assert {line.step for line in LINES} == steps.keys()
    assert OURS in MODULES
