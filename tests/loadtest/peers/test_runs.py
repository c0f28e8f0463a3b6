"""A run that is gone on with: what is there is not run again; other plans are refused."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Self

import orjson
import pytest

from loadtest.peers import __main__ as main
from loadtest.peers.peer import Durability, Peer
from loadtest.peers.plan import PARTS, Row, Step, Turn, turns
from loadtest.peers.registry import MODULES
from loadtest.peers.runs import OtherPlan, Runs
from loadtest.peers.session import Result
from tests.loadtest.peers.sleepers import WRITTEN, Sleeper

ABOUT = {"rounds": 2, "quick": True, "parts": ["workloads"], "steps": {}, "peers": {}, "versions": {"python": "3"}}
WINDOW = {"started_at": "now", "load_average": 0, "commit": "c"}
ONE = Turn(0, Step("batched", "batched", {"duration_s": 5}), Row("mq, or so", WRITTEN, "aiohttp, JSON"))


def about_of(runs: Runs) -> dict[str, object]:
    found: dict[str, object] = orjson.loads((runs.directory / "about.json").read_bytes())
    return found


def test_a_turn_is_done_when_its_result_is_there(tmp_path: Path) -> None:
    runs = Runs(tmp_path / "runs")
    runs.begin(ABOUT, WINDOW)
    assert not runs.is_done(ONE)
    runs.add(ONE, {"records_per_s": 5, "turn_s": 7.5})
    again = Runs(tmp_path / "runs")
    again.resume(ABOUT, WINDOW)
    assert again.is_done(ONE)
    assert not again.is_done(ONE._replace(number=1))
    (file,) = (tmp_path / "runs").glob("*-*.json")
    row = orjson.loads(file.read_bytes())
    assert row["records_per_s"] == 5
    assert {name: row[name] for name in ("round", "durability", "step", "peer", "level", "client")} == {
        "round": 0, "durability": "written", "step": "batched", "peer": "mq, or so", "level": "sometimes",
        "client": "aiohttp, JSON",
    }  # fmt: skip
    windows = about_of(again)["windows"]
    assert isinstance(windows, list)
    assert len(windows) == 2


def test_another_plan_is_not_mixed_in(tmp_path: Path) -> None:
    runs = Runs(tmp_path)
    runs.resume(ABOUT, WINDOW)
    with pytest.raises(OtherPlan, match="differ in rounds"):
        runs.resume({**ABOUT, "rounds": 3}, WINDOW)
    with pytest.raises(OtherPlan, match="differ in quick"):
        runs.resume({**ABOUT, "quick": False}, WINDOW)


def test_parts_may_be_added_and_none_is_given_up(tmp_path: Path) -> None:
    runs = Runs(tmp_path)
    runs.resume(ABOUT, WINDOW)
    runs.resume({**ABOUT, "parts": ["restart"], "steps": {"restart": {"byte_count": 1}}}, WINDOW)
    assert runs.parts == ["workloads", "restart"]
    runs.resume(ABOUT, WINDOW)
    assert runs.parts == ["workloads", "restart"]
    assert about_of(runs)["steps"] == {"restart": {"byte_count": 1}}


def test_beginning_takes_away_what_was_there(tmp_path: Path) -> None:
    runs = Runs(tmp_path)
    runs.begin(ABOUT, WINDOW)
    runs.add(ONE, {"turn_s": 1})
    runs.begin(ABOUT, WINDOW)
    assert not runs.is_done(ONE)


def test_how_long_a_turn_takes_is_learnt_from_its_like(tmp_path: Path) -> None:
    runs = Runs(tmp_path)
    runs.begin(ABOUT, WINDOW)
    assert runs.expected_s(ONE) == ONE.step.expected_s > 5
    runs.add(ONE._replace(row=Row("kafka", WRITTEN, "tool")), {"turn_s": 90})
    assert runs.expected_s(ONE) == 90
    runs.add(ONE._replace(number=1), {"turn_s": 20})
    assert runs.expected_s(ONE) == 20


def test_what_idle_servers_take_is_kept_with_the_window(tmp_path: Path) -> None:
    runs = Runs(tmp_path)
    runs.begin(ABOUT, WINDOW)
    runs.add_idle(Durability.SYNCED, {"kafka": 0.02})
    runs.add_idle(Durability.WRITTEN, {"kafka": 0.01})
    assert about_of(runs)["windows"] == [{**WINDOW, "idle": {"synced": {"kafka": 0.02}, "written": {"kafka": 0.01}}}]


class Clock:
    """Starting a fleet takes no time, and every turn 100 s."""

    def __init__(self) -> None:
        self.now_s = 0.0
        self.ran: list[str] = []
        self.fleet_count = 0

    def monotonic(self) -> float:
        return self.now_s

    def fleet(self, peers: Mapping[str, Peer], durability: Durability, tools: Path) -> Self:
        self.fleet_count += 1
        return self

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        pass

    def idle(self, for_s: float) -> dict[str, float]:
        return {}

    def result(self, turn: Turn) -> Result:
        self.now_s += 100
        self.ran.append(turn.stem)
        return {"records_per_s": 1.0}


def test_windows_go_on_where_the_last_one_ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock()
    monkeypatch.setattr(main, "Fleet", clock.fleet)
    monkeypatch.setattr(main.time, "monotonic", clock.monotonic)
    monkeypatch.setattr(main, "FLEET_START_S", 0)
    peers: dict[str, Peer] = {"sleeper": Sleeper("sleeper", {"push": ["tool", "library"]})}
    wanted = list(turns(peers, Durability.WRITTEN, rounds=4, quick=True))
    assert len(wanted) == 8
    counts = []
    while len(clock.ran) < len(wanted):
        before = len(clock.ran)
        runs = Runs(tmp_path)
        runs.resume(ABOUT, WINDOW)
        if before == 0:
            runs.add(wanted[0]._replace(number=9), {"turn_s": 100})  # so that it knows how long they take
            runs.add(wanted[2]._replace(number=9), {"turn_s": 100})
        try:
            main.run_fleet(peers, wanted, runs, tmp_path, main.Clock(minutes=6))
        except main.OutOfTime:
            counts.append(len(clock.ran) - before)
    assert counts == [3, 3]  # after the third 60 s are left, and a turn takes 100
    assert clock.ran == [one.stem for one in wanted]
    assert clock.fleet_count == 3


def test_nothing_is_started_when_all_is_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock()
    monkeypatch.setattr(main, "Fleet", clock.fleet)
    runs = Runs(tmp_path)
    runs.begin(ABOUT, WINDOW)
    runs.add(ONE, {"turn_s": 1})
    main.run_fleet({}, [ONE], runs, tmp_path, main.Clock(minutes=1))
    assert clock.fleet_count == 0


def test_what_is_not_asked_for_is_everything_and_a_quick_run_leaves_the_documents_alone() -> None:
    plain, quick = (
        main.options_of([]),
        main.options_of(["--quick", "--peers", "mq; kafka", "--parts", "topics; workloads"]),
    )
    assert (plain.peers, plain.parts) == (list(MODULES), list(PARTS))
    assert plain.out.parts[-2:] == ("docs", "benchmarks")
    assert (quick.peers, quick.parts) == (["mq", "kafka"], ["workloads", "topics"])
    assert main.options_of(["--quick"]).parts == ["workloads", "topics", "delayed"], "a restart needs a large log"
    assert "docs" not in quick.out.parts
    assert plain.runs != quick.runs
    with pytest.raises(SystemExit):
        main.options_of(["--peers", "mq;kafka"])
