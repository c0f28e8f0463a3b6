"""A fleet: servers that stay up from step to step, and what becomes of them when they die."""

from __future__ import annotations

from contextlib import AbstractContextManager
from pathlib import Path

import pytest

from loadtest.peers import fleet as fleets
from loadtest.peers.fleet import Fleet
from loadtest.peers.peer import Durability, Level, Options, Peer
from loadtest.peers.plan import Row, Step, Turn
from loadtest.peers.servers import Died, Server
from tests.loadtest.peers.sleepers import WRITTEN, Sleeper, saying

BATCHED, SCAN, PUSH = Step("batched", "batched"), Step("scan", "scan"), Step("push", "push")


class Clients:
    """Client processes that answer by their work, and what they were asked."""

    def __init__(self) -> None:
        self.asked: list[tuple[str, str, str, str]] = []
        self.options: list[Options] = []
        self.answers = {"batched": '{"records": 70, "stored": 90}'}

    def command(self, row: Row, work: str, endpoint: str, topic: str, options: Options) -> list[str]:
        self.asked.append((row.client, work, endpoint, topic))
        self.options.append(options)
        return saying(self.answers.get(work, '{"records": 1}'))


@pytest.fixture
def clients(monkeypatch: pytest.MonkeyPatch) -> Clients:
    found = Clients()
    monkeypatch.setattr(fleets, "drive_command", found.command)
    return found


def turn(step: Step, client: str = "tool", number: int = 0, peer: str = "sleeper") -> Turn:
    return Turn(number, step, Row(peer, WRITTEN, client))


def written(tmp_path: Path, *peers: Peer) -> Fleet:
    return Fleet({peer.name: peer for peer in peers}, Durability.WRITTEN, tmp_path)


def test_all_servers_of_a_durability_stay_up_and_one_at_a_time_is_measured(tmp_path: Path, clients: Clients) -> None:
    one, two = Sleeper("one", {"push": ["tool"]}), Sleeper("two", {"push": ["tool"]})
    with written(tmp_path, one, two) as fleet:
        assert set(fleet.idle(0.1)) == {"one, sometimes", "two, sometimes"}
        for peer in ("one", "two", "one"):
            assert "failed" not in fleet.result(turn(PUSH, peer=peer))
        assert [len(one.started), len(two.started)] == [1, 1]
    assert [endpoint for _, _, endpoint, _ in clients.asked] == ["one:sometimes", "two:sometimes", "one:sometimes"]
    assert list((tmp_path / "data").iterdir()) == []


def test_a_new_server_is_warmed_up(tmp_path: Path, clients: Clients) -> None:
    peer = Sleeper("sleeper", {"batched": ["tool"], "scan": ["tool"]})
    peer.warm_up_s = 10
    with written(tmp_path, peer):
        pass
    assert [(work, topic) for _, work, _, topic in clients.asked] == [("batched", "warm-up"), ("scan", "warm-up")]
    assert clients.options == [{"duration_s": 6, "warm_s": 0}, {"duration_s": 4, "warm_s": 0, "count": 90}]


def test_a_server_that_died_is_started_anew_and_the_others_stay(tmp_path: Path, clients: Clients) -> None:
    one, two = Sleeper("one", {"push": ["tool"]}), Sleeper("two", {"push": ["tool"]})
    with written(tmp_path, one, two) as fleet:
        one.started[0].kill()
        assert "failed" not in fleet.result(turn(PUSH, peer="one"))
        assert [len(one.started), len(two.started)] == [2, 1]


def test_a_server_that_dies_in_a_step_fails_that_step_alone(tmp_path: Path, clients: Clients) -> None:
    peer = Sleeper("sleeper", {"push": ["tool"]}, ["sleep", "1"])
    with written(tmp_path, peer) as fleet:
        ordinary, fleets.drive_command = fleets.drive_command, lambda *_: saying('{"records": 5}', after_s=2)
        found = fleet.result(turn(PUSH))
        fleets.drive_command = ordinary
        assert list(found) == ["failed"]
        assert "sleep ended with exit code 0" in str(found["failed"])
        assert "failed" not in fleet.result(turn(PUSH))


def test_a_server_that_does_not_start_fails_its_steps_and_nobody_elses(tmp_path: Path, clients: Clients) -> None:
    broken = Sleeper("broken", {"push": ["tool"]}, ["no-such-program"])
    with written(tmp_path, broken, Sleeper("sleeper", {"push": ["tool"]})) as fleet:
        assert "no-such-program" in str(fleet.result(turn(PUSH, peer="broken"))["failed"])
        assert "failed" not in fleet.result(turn(PUSH))


def test_a_scan_goes_on_with_the_topic_of_the_same_client(tmp_path: Path, clients: Clients) -> None:
    workloads = {"batched": ["tool", "library"], "scan": ["library", "reader"], "drop": ["library"], "push": ["tool"]}
    with written(tmp_path, Sleeper("sleeper", workloads)) as fleet:
        clients.asked.clear()
        for one in (turn(BATCHED), turn(BATCHED, "library"), turn(SCAN, "library"), turn(SCAN, "reader")):
            fleet.result(one)
        assert [(client, topic) for client, _, _, topic in clients.asked] == [
            ("tool", "batched-0-tool"),
            ("library", "batched-0-library"),
            ("library", "batched-0-library"),
            ("reader", "batched-0-tool"),  # nobody of its name has sent one
        ]
        assert clients.options[-1]["count"] == 90
        clients.asked.clear()
        fleet.result(turn(PUSH))
        topics = [topic for _, work, _, topic in clients.asked if work == "drop"]
        assert sorted(topics) == ["batched-0-library", "batched-0-tool", "warm-up"]


def test_what_a_scan_needs_is_sent_again_when_the_server_is_new(tmp_path: Path, clients: Clients) -> None:
    peer = Sleeper("sleeper", {"batched": ["tool"], "scan": ["tool"]})
    with written(tmp_path, peer) as fleet:
        fleet.result(turn(BATCHED))
        peer.started[0].kill()
        clients.asked.clear()
        assert "failed" not in fleet.result(turn(SCAN))
        workloads = [work for _, work, _, topic in clients.asked if topic != "warm-up"]
        assert workloads == ["batched", "scan"]


def test_a_scan_of_what_could_not_be_sent_has_failed(tmp_path: Path, clients: Clients) -> None:
    clients.answers["batched"] = '{"failed": "refused"}'
    with written(tmp_path, Sleeper("sleeper", {"batched": ["tool"], "scan": ["tool"]})) as fleet:
        fleet.result(turn(BATCHED))
        assert fleet.result(turn(SCAN)) == {"failed": "batched by tool failed: nothing to go on with"}


def test_a_fleet_that_is_told_to_end_while_it_starts_leaves_nothing_behind(tmp_path: Path, clients: Clients) -> None:
    class Ending(Sleeper):
        """One that is starting when the program is told to end."""

        def serve(self, tools: Path, data: Path, level: Level) -> AbstractContextManager[Server]:
            raise SystemExit("told to end")

    first = Sleeper("first", {})
    fleet = written(tmp_path, first, Ending("second", {}))  # kept, so that not the garbage collector stops it
    with pytest.raises(SystemExit), fleet:
        pass
    with pytest.raises(Died):
        first.started[0].check()
