"""A peer that dies, or a step that fails, is a row marked failed and never a number."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from pathlib import Path
from threading import Thread
from urllib.request import urlopen

import orjson
import pytest

from loadtest.peers import servers
from loadtest.peers import session as sessions
from loadtest.peers.mq import PEERS
from loadtest.peers.peer import Client, Durability, Peer
from loadtest.peers.plan import PARTS, Step, steps
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


class KilledMq(Peer):
    """mq itself, killed by its own watcher as soon as the log has grown by some batches."""

    name = "mq, record batches"
    about = "killed"

    def prepare(self, tools: Path) -> str:
        return "1"

    @contextmanager
    def serve(self, tools: Path, data: Path, durability: Durability) -> Iterator[Server]:
        with PEERS[1].serve(tools, data, durability) as server:
            watcher = Thread(target=self._kill_in_the_middle, args=(server,))
            watcher.start()
            try:
                yield server
            finally:
                watcher.join()

    def _kill_in_the_middle(self, server: Server) -> None:
        topic = f"{server.endpoint}/mq/v1/topics/batched"
        deadline_s = time.monotonic() + 30
        while time.monotonic() < deadline_s:
            with suppress(OSError), urlopen(topic) as answer:
                if orjson.loads(answer.read())["offsets"][0]["end_offset"] >= 3_000:
                    break
        server.kill()

    @asynccontextmanager
    async def client(self, endpoint: str) -> AsyncIterator[Client]:
        raise NotImplementedError  # the client process makes its own, by the name
        yield


def ran(peer: Peer, tools: Path) -> dict[str, sessions.Result]:
    """The results of a quick session, by step."""
    found = sessions.session(peer, Durability.SYNCED, "works", tools, quick=True)
    return {step.name: result for step, result in found}


def test_a_real_server_that_is_killed_under_a_real_client_has_no_number(tmp_path: Path) -> None:
    results = ran(KilledMq(), tmp_path)
    assert len(results) >= 5
    for name, result in results.items():
        assert list(result) == ["failed"], name


def test_a_peer_that_is_killed_in_mid_run_has_failed_rows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    peer = SleepingPeer()

    def driven(name: str, endpoint: str, step: Step, options: object) -> dict[str, float]:
        if step.name == "consume":
            assert peer.server is not None
            peer.server.kill()
        return {"records": 1000.0, "records_per_s": 1.0}

    monkeypatch.setattr(sessions, "driven", driven)
    results = ran(peer, tmp_path)
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
            raise sessions.Failed("record 7 came twice")
        return {"records": 1.0}

    monkeypatch.setattr(sessions, "driven", driven)
    results = ran(SleepingPeer(), tmp_path)
    assert [name for name, result in results.items() if "failed" in result] == ["push_200"]


def test_a_client_process_says_why_it_failed(tmp_path: Path) -> None:
    """A real one, against a port where nobody listens."""
    with pytest.raises(sessions.Failed, match=r"refused|connect"):
        sessions.driven("mq", f"http://127.0.0.1:{servers.free_port()}", Step("batched", "batched"), {"duration_s": 1})


def test_a_server_that_does_not_start_is_told_with_its_log(tmp_path: Path) -> None:
    command = ["sh", "-c", "echo no room >&2; exit 3"]
    with pytest.raises(Died, match=r"exit code 3.*\n?no room"), running("127.0.0.1:1", [command], tmp_path):
        pass


def test_every_peer_has_a_row_of_its_own() -> None:
    assert len(peers()) >= len(MODULES)
    assert all(name == peer.name and peer.about for name, peer in peers().items())


def test_the_quick_plan_has_the_steps_of_the_real_one() -> None:
    for part in PARTS:
        quick, real = ([step.name for step in steps(part, PEERS[0], quick=is_quick)] for is_quick in (True, False))
        assert quick == real
