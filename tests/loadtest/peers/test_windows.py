"""The scoreboard in several windows: what does not fit is left for the next one."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from loadtest.peers import __main__ as main
from loadtest.peers.mq import PEERS
from loadtest.peers.peer import Durability, Peer
from loadtest.peers.plan import Step, sessions
from loadtest.peers.runs import Runs
from loadtest.peers.session import Result

ABOUT = {"rounds": 2, "parts": ["works"], "steps": {}, "peers": {}, "versions": {}}
WINDOW = {"started_at": "now", "load_average": 0, "commit": "c"}


class Clock:
    """Every session takes 100 s."""

    def __init__(self) -> None:
        self.now_s = 0.0
        self.ran: list[tuple[str, str]] = []

    def monotonic(self) -> float:
        return self.now_s

    def session(
        self, peer: Peer, durability: Durability, part: str, tools: Path, *, quick: bool
    ) -> Iterator[tuple[Step, Result]]:
        self.now_s += 100
        self.ran.append((peer.name, durability))
        yield Step("batched", "batched"), {"records_per_s": 1.0}


def test_windows_go_on_where_the_last_one_ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock()
    monkeypatch.setattr(main, "session", clock.session)
    monkeypatch.setattr(main.time, "monotonic", clock.monotonic)
    chosen = {peer.name: peer for peer in PEERS}
    wanted = list(sessions(chosen, rounds=2, parts=["works"], quick=True))
    assert len(wanted) == 8
    window_counts = []
    while True:
        before = len(clock.ran)
        runs = Runs(tmp_path)
        runs.resume(ABOUT, WINDOW)
        is_complete = main._run(wanted, runs, chosen, tmp_path, quick=True, minutes=6)
        window_counts.append(len(clock.ran) - before)
        if is_complete:
            break
    assert window_counts == [3, 3, 2]  # after the third there are 60 s left, and a session takes 100
    assert clock.ran == [(one.peer, one.durability) for one in wanted]
    assert len(list(tmp_path.glob("*.done"))) == len(wanted)
