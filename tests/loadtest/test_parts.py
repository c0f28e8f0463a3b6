"""The pages of the benchmarks: statistics from every run, goals that are missed, parts that are measured again."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path

import orjson
import pytest

from loadtest.bench import parts
from loadtest.bench.parts import Goal, Part, Row, cells, condition_lines, rows_of
from loadtest.peers import usage

ROW = Row("append", "records/s", [2e6, 3e6, 4e6], [4e6, 4e6, 16e6], Goal(at_least=1e6, share=0.6))


def test_the_share_is_the_median_of_the_rounds_ratios_and_not_the_ratio_of_the_medians() -> None:
    assert ROW.share() == (0.5, 0.25, 0.75)
    assert cells(ROW) == (
        "append", "3.00 M/s", "4.00 M/s", "50% (25% - 75%)", "-", "-", ">= 60% of the limit, >= 1.00 M/s", "**no**",
    )  # fmt: skip


def test_where_less_is_better_the_share_is_that_of_the_speed() -> None:
    row = Row("append over 10 queues", "us/record", [2.0], [1.0], Goal(share=0.5))
    assert row.share().median == 0.5
    assert row.is_met()
    assert cells(row)[1:4] == ("2 us/record, n = 1", "1 us/record", "50%")


@pytest.mark.parametrize(
    ("goal", "is_met"),
    [
        (Goal(at_least=3e6), True),
        (Goal(at_least=3e6 + 1), False),
        (Goal(at_most=3e6), True),
        (Goal(at_most=3e6 - 1), False),
        (Goal(share=0.5), True),
        (Goal(at_least=1, share=0.51), False),
        (None, None),
    ],
)
def test_a_goal_is_met_by_medians(goal: Goal | None, is_met: bool | None) -> None:
    row = ROW._replace(goal=goal)
    assert row.is_met() is is_met
    assert cells(row)[-1] == {True: "yes", False: "**no**", None: "-"}[is_met]


def test_cpu_is_shown_beside_that_of_kernel_threads() -> None:
    row = ROW._replace(cpu_us=[1.0, 2.0, 9.0], kernel_us=[0.125, 0.25, 0.5])
    assert cells(row)[4:6] == ("2.00 µs", "0.25 µs")


def page(of: Mapping[str, Part]) -> str:
    return "\n".join([*(" | ".join(cells(row)) for part in of.values() for row in rows_of(part)), *condition_lines(of)])


def test_a_part_that_is_measured_again_leaves_the_others_with_their_commit(tmp_path: Path) -> None:
    old = {
        name: Part({"commit": "aaa", "cores": 2}, parts.as_dicts([ROW._replace(work=name)])) for name in ("one", "two")
    }
    parts.write(tmp_path, "store", ["one", "two"], old, page)
    new = {"one": Part({"commit": "bbb", "cores": 2}, parts.as_dicts([ROW._replace(ours=[8e6] * 3)]))}
    parts.write(tmp_path, "store", ["one", "two"], new, page)
    assert (tmp_path / "store.md").read_text().splitlines() == [
        "append | 8.00 M/s | 4.00 M/s | 200% (50% - 200%) | - | - | >= 60% of the limit, >= 1.00 M/s | yes",
        "two | 3.00 M/s | 4.00 M/s | 50% (25% - 75%) | - | - | >= 60% of the limit, >= 1.00 M/s | **no**",
        "- cores: 2",
        "- **one**: commit bbb",
        "- **two**: commit aaa",
    ]
    assert list(orjson.loads((tmp_path / "store.json").read_bytes())["parts"]) == ["one", "two"]


def test_a_file_of_an_older_format_is_begun_anew(tmp_path: Path) -> None:
    (tmp_path / "store.json").write_bytes(orjson.dumps({"rows": [], "conditions": {}}))
    assert parts.read(tmp_path / "store.json", ["one"]) == {}
    assert list(parts.write(tmp_path, "store", ["one"], {"one": Part({}, [])}, page)) == ["one"]


def test_parts_that_there_are_no_more_are_dropped(tmp_path: Path) -> None:
    parts.write(tmp_path, "store", ["gone"], {"gone": Part({}, [])}, page)
    assert parts.read(tmp_path / "store.json", ["one"]) == {}


def test_what_other_programs_take_is_told_without_ours_and_the_kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    looks = iter(
        [
            usage.Look(10.0, 0, client_s=5.0, machine_s=50.0, disk_s=0, kernel_s={9: 1.0}, threads_s={}),
            usage.Look(20.0, 0, client_s=9.0, machine_s=58.0, disk_s=0, kernel_s={9: 2.0}, threads_s={}),
        ]
    )
    monkeypatch.setattr(usage, "look", lambda *_: next(looks))
    assert parts.OtherPrograms().said() == "30% of a core", "of 8 s ours took 4 and the kernel 1, in 10 s"


def test_a_child_of_ours_is_no_other_program() -> None:
    others = parts.OtherPrograms()
    subprocess.run([sys.executable, "-c", "import time\nwhile time.process_time() < 0.5: pass"], check=True)
    seen = usage.taken([others._first, others._look()], others._first.at_s, time.monotonic())
    assert seen.client_cpu_s >= 0.4, "the kernel counts in hundredths"


def test_what_limits_a_rate() -> None:
    assert parts.limit({"mq": 0.9, "the client": 0.5}, 0.1, 2) == "mq's thread"
    assert parts.limit({"mq": 0.3, "the client": 0.9}, 2.0, 4) == "the client's thread"
    assert parts.limit({"mq": 0.3, "the client": 0.4}, 1.2, 2) == "waiting: the disk, or the next answer"
    assert parts.limit({"mq": 0.3, "the client": 0.4}, 0.1, 2) == "the cores, taken mostly by other programs"
    assert parts.limit({"mq": 0.5, "Kafka": 0.9, "the client": 0.4}, 0.1, 2) == "the cores, taken mostly by Kafka"
