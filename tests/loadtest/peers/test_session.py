"""A peer that dies, or a step that fails, is a row marked failed and never a number."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path

import pytest

from loadtest.peers import __main__ as main
from loadtest.peers import servers
from loadtest.peers.peer import Client, Durability, Peer
from loadtest.peers.plan import Step, plan
from loadtest.peers.registry import MODULES, peers
from loadtest.peers.servers import Died, Server, running


class SleepingPeer(Peer):
    """A server that does nothing."""

    name = "sleeper"
    about = "sleep"

    def __init__(self) -> None:
        self.server: Server | None = None

    def prepare(self, tools: Path) -> str:
        return "1"

    @contextmanager
    def serve(self, tools: Path, data: Path, durability: Durability) -> Iterator[Server]:
        with running("nowhere", [["sleep", "60"]], data, is_ready=lambda _: True) as server:
            self.server = server
            yield server

    @asynccontextmanager
    async def client(self, endpoint: str) -> AsyncIterator[Client]:
        raise NotImplementedError
        yield


def test_a_peer_that_is_killed_in_mid_run_has_failed_rows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    peer = SleepingPeer()

    def driven(name: str, endpoint: str, step: Step, options: object) -> dict[str, float]:
        if step.name == "consume":
            assert peer.server is not None
            peer.server.kill()
        return {"records": 1000.0, "records_per_s": 1.0}

    monkeypatch.setattr(main, "_driven", driven)
    results = {step.name: result for step, result in main.session(peer, Durability.SYNCED, tmp_path, quick=True)}
    assert results["batched"]["records_per_s"] == 1.0
    assert "server_cpu_s" in results["batched"]
    after = [name for name in results if name not in ("batched", "single")]
    assert len(after) >= 4
    for name in after:
        assert list(results[name]) == ["failed"], name
    assert "exit code -9" in str(results["consume"]["failed"])


def test_a_client_that_fails_fails_its_step_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def driven(name: str, endpoint: str, step: Step, options: object) -> dict[str, float]:
        if step.name == "push_200":
            raise main.Failed("record 7 came twice")
        return {"records": 1.0}

    monkeypatch.setattr(main, "_driven", driven)
    results = {
        step.name: result for step, result in main.session(SleepingPeer(), Durability.SYNCED, tmp_path, quick=True)
    }
    assert [name for name, result in results.items() if "failed" in result] == ["push_200"]


def test_a_client_process_says_why_it_failed(tmp_path: Path) -> None:
    """A real one, against a port where nobody listens."""
    with pytest.raises(main.Failed, match=r"refused|connect"):
        main._driven("mq", f"http://127.0.0.1:{servers.free_port()}", Step("batched", {}), {"duration_s": 1})


def test_a_server_that_does_not_start_is_told_with_its_log(tmp_path: Path) -> None:
    command = ["sh", "-c", "echo no room >&2; exit 3"]
    with pytest.raises(Died, match=r"exit code 3.*\n?no room"), running("127.0.0.1:1", [command], tmp_path):
        pass


def test_every_peer_has_a_row_of_its_own() -> None:
    assert len(peers()) >= len(MODULES)
    assert all(name == peer.name and peer.about for name, peer in peers().items())


def test_the_quick_plan_has_the_steps_of_the_real_one() -> None:
    assert [step.name for step in plan(quick=True)] == [step.name for step in plan(quick=False)]
