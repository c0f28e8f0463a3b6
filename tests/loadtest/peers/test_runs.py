"""A run that is gone on with: what is there is not run again, what was cut off is; other plans are refused."""

from __future__ import annotations

from pathlib import Path

import orjson
import pytest

from loadtest.peers import session
from loadtest.peers.peer import Durability, Peer
from loadtest.peers.plan import PART_EXPECTED_S, PARTS, Session, Step, sessions
from loadtest.peers.registry import peers
from loadtest.peers.runs import OtherPlan, Runs

ABOUT = {"rounds": 2, "parts": ["works"], "steps": {}, "peers": {}, "versions": {"python": "3"}}
WINDOW = {"started_at": "now", "load_average": 0, "commit": "c"}
ONE = Session(0, "mq, record batches", Durability.SYNCED, "works")


def test_a_session_is_done_when_all_of_it_is_there(tmp_path: Path) -> None:
    runs = Runs(tmp_path / "runs")
    runs.begin(ABOUT, WINDOW)
    runs.add(ONE, Step("batched", "batched"), {"records_per_s": 5})
    again = Runs(tmp_path / "runs")
    again.resume(ABOUT, WINDOW)
    assert not again.is_done(ONE)  # cut off after its first step
    again.add(ONE, Step("batched", "batched"), {"records_per_s": 6})
    again.complete(ONE, 33.0)
    last = Runs(tmp_path / "runs")
    last.resume(ABOUT, WINDOW)
    assert last.is_done(ONE)
    (result,) = [orjson.loads(file.read_bytes()) for file in (tmp_path / "runs").glob("*-*.json")]
    assert result["records_per_s"] == 6
    assert len(orjson.loads((tmp_path / "runs" / "about.json").read_bytes())["windows"]) == 3


def test_another_plan_is_not_mixed_in(tmp_path: Path) -> None:
    runs = Runs(tmp_path)
    runs.resume(ABOUT, WINDOW)
    with pytest.raises(OtherPlan, match="differ in rounds"):
        runs.resume({**ABOUT, "rounds": 3}, WINDOW)


def test_parts_may_be_added_and_none_is_given_up(tmp_path: Path) -> None:
    runs = Runs(tmp_path)
    runs.resume(ABOUT, WINDOW)
    runs.resume({**ABOUT, "parts": ["restart"]}, WINDOW)
    assert runs.parts == ["works", "restart"]
    runs.resume(ABOUT, WINDOW)
    assert runs.parts == ["works", "restart"]


def test_beginning_takes_away_what_was_there(tmp_path: Path) -> None:
    runs = Runs(tmp_path)
    runs.begin(ABOUT, WINDOW)
    runs.complete(ONE, 1)
    runs.begin(ABOUT, WINDOW)
    assert not runs.is_done(ONE)


def test_how_long_a_session_takes_is_learnt_from_its_like(tmp_path: Path) -> None:
    runs = Runs(tmp_path)
    runs.begin(ABOUT, WINDOW)
    assert runs.expected_s(ONE) == PART_EXPECTED_S["works"]
    runs.complete(ONE._replace(peer="kafka"), 90)
    assert runs.expected_s(ONE) == 90
    runs.complete(ONE._replace(number=1), 20)
    assert runs.expected_s(ONE) == 20


def test_rounds_take_turns_and_the_long_parts_come_once_at_the_end() -> None:
    found = list(sessions(peers(), rounds=2, parts=PARTS, quick=False))
    works = [one for one in found if one.part == "works"]
    assert found[: len(works)] == works
    assert [(one.peer, one.durability) for one in works if one.number == 0] == [
        (one.peer, one.durability) for one in works if one.number == 1
    ]
    restarts = {(one.peer, one.durability) for one in found if one.part == "restart"}
    assert ("mq, record batches", Durability.SYNCED) in restarts
    assert ("kafka", Durability.UNSYNCED) in restarts
    assert ("kafka", Durability.SYNCED) not in restarts
    assert not [one for one in found if one.part == "delayed" and not peers()[one.peer].can_delay]
    assert len({one.stem for one in found}) == len(found)


def test_a_peer_is_in_every_part_unless_it_says_otherwise() -> None:
    assert tuple(Peer.parts) == PARTS


def test_a_failure_does_not_tell_where_the_checkout_lies() -> None:
    assert session._failed(OSError(f"open {session.REPOSITORY}/artifacts/x")) == {"failed": "open artifacts/x"}
