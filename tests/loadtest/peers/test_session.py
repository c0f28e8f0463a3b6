"""A server that dies, a client that fails or a number that is none is a row marked failed, never a number."""

from __future__ import annotations

import shutil
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from threading import Thread
from urllib.request import urlopen

import orjson
import psutil
import pytest

from loadtest.peers import session
from loadtest.peers.mq import PEERS
from loadtest.peers.plan import Row, Step
from loadtest.peers.servers import Died, Server, free_port, running
from loadtest.peers.session import Result, drive_command, step_result
from tests.loadtest.peers.sleepers import WRITTEN, Sleeper, saying
from tests.waiting import PATIENCE_S

MQ = PEERS[0]
SYNCED = MQ.levels[0]
TIMES = {"duration_s": 20.0, "warm_s": 0.2}


@contextmanager
def sleeping(directory: Path) -> Iterator[Server]:
    with running("nowhere", [["sleep", "60"]], directory, is_ready=lambda _: True) as server:
        yield server


def result(server: Server, command: list[str], data: Path, timeout_s: float = PATIENCE_S) -> Result:
    return step_result(server, command, data, timeout_s=timeout_s, is_paced=False)


def killed_in_the_middle(server: Server, topic: str) -> Thread:
    """Kill the real server as soon as the log has grown by some batches."""

    def kill() -> None:
        deadline_s = time.monotonic() + PATIENCE_S
        while time.monotonic() < deadline_s:
            with suppress(OSError), urlopen(f"{server.endpoint}/mq/v1/topics/{topic}") as answer:
                if orjson.loads(answer.read())["offsets"][0]["end_offset"] >= 1_000:
                    break
        server.kill()

    thread = Thread(target=kill)
    thread.start()
    return thread


@pytest.mark.parametrize(
    ("work", "client"),
    [
        ("batched", "aiohttp, record batches"),
        pytest.param("replay", "prebuilt bytes", marks=pytest.mark.matrix),
        pytest.param(
            "single",
            "wrk",
            marks=[
                pytest.mark.matrix,
                pytest.mark.skipif(shutil.which("wrk") is None, reason="wrk is not installed"),
            ],
        ),
    ],
)
def test_a_real_server_that_is_killed_under_a_real_client_has_no_number(tmp_path: Path, work: str, client: str) -> None:
    options = {**TIMES, "connections": 4} if work in ("replay", "single") else TIMES
    with MQ.serve(tmp_path, tmp_path, SYNCED) as server:
        killer = killed_in_the_middle(server, "t")
        began_s = time.monotonic()
        found = result(server, drive_command(Row("mq", SYNCED, client), work, server.endpoint, "t", options), tmp_path)
        killer.join()
    assert list(found) == ["failed"]
    assert time.monotonic() - began_s < 15, "nobody waits for the rest of the step"


@pytest.mark.matrix
def test_a_tool_that_ends_in_peace_gives_no_number_when_the_server_was_killed(tmp_path: Path) -> None:
    """The tool notices nothing: it says a rate and exits with 0, after the real server is gone."""
    with MQ.serve(tmp_path, tmp_path, SYNCED) as server:
        kill = f'import os; os.kill({server.pids[0]}, 9); print(\'{{"records_per_s": 100000, "records": 5}}\')'
        found = result(server, [sys.executable, "-c", kill], tmp_path)
    assert list(found) == ["failed"]
    assert "exit code -9" in str(found["failed"])


def test_a_step_has_numbers_and_what_the_window_took(tmp_path: Path) -> None:
    with sleeping(tmp_path) as server:
        found = result(server, saying('{"records": 10, "records_per_s": 5.5}', after_s=0.6), tmp_path)
    assert found["records_per_s"] == 5.5
    assert found["limit"] in ("latency", "disturbed", "disk"), "it does nothing; other tests may"
    assert 0.5 < float(str(found["window_s"])) < PATIENCE_S
    assert float(str(found["server_cpu_s"])) < 0.1
    assert float(str(found["server_peak_mb"])) > 0


def test_cpu_is_taken_between_the_two_ends_of_the_window_that_the_client_names(tmp_path: Path) -> None:
    told = """
import time
def burn(for_s):
    until = time.monotonic() + for_s
    while time.monotonic() < until: pass
burn(1)
began_s = time.monotonic()
time.sleep(1)
print('{"began_s": %f, "ended_s": %f}' % (began_s, time.monotonic()))
burn(1)
"""
    with sleeping(tmp_path) as server:
        found = result(server, [sys.executable, "-c", told], tmp_path)
    assert 1 <= float(str(found["window_s"])) < 5
    assert float(str(found["client_cpu_s"])) < 0.6, "of some 2 s in all"


@pytest.mark.parametrize(
    ("command", "why"),
    [
        (saying('{"failed": "record 7 came twice"}', exit_code=1), "record 7 came twice"),
        (saying('{"records_per_s": 5}', exit_code=3), "exit code 3"),
        (saying("Segmentation fault"), "no numbers"),
        (saying('{"records_per_s": null}'), "records_per_s is None"),
        (saying('{"records_per_s": 0}'), "records_per_s is 0"),
        (saying('{"p99_ms": -5}'), "p99_ms is -5"),
    ],
)
def test_a_client_that_fails_has_no_number(tmp_path: Path, command: list[str], why: str) -> None:
    with sleeping(tmp_path) as server:
        found = result(server, command, tmp_path)
    assert list(found) == ["failed"]
    assert why in str(found["failed"])


def test_a_client_that_hangs_is_killed_with_the_tools_it_started(tmp_path: Path) -> None:
    hanging = "import subprocess; subprocess.Popen(['sleep', '61.7']).wait()"
    with sleeping(tmp_path) as server:
        found = result(server, [sys.executable, "-c", hanging], tmp_path, timeout_s=1)
    assert found == {"failed": "not done after 1 s"}
    left = [one for one in psutil.process_iter(["cmdline", "status"]) if one.info["cmdline"] == ["sleep", "61.7"]]
    assert not left


def test_a_client_process_says_why_it_failed(tmp_path: Path) -> None:
    """A real one, against a port where nobody listens."""
    row = Row("mq", SYNCED, "aiohttp, JSON")
    with sleeping(tmp_path) as server:
        command = drive_command(row, "batched", f"http://127.0.0.1:{free_port()}", "t", TIMES)
        assert "connect" in str(result(server, command, tmp_path)["failed"]).lower()
        command = drive_command(row._replace(client="curl"), "batched", server.endpoint, "t", TIMES)
        assert "no client 'curl' for batched" in str(result(server, command, tmp_path)["failed"])


def test_a_server_that_does_not_start_is_told_with_its_log(tmp_path: Path) -> None:
    command = ["sh", "-c", "echo no room >&2; exit 3"]
    with pytest.raises(Died, match=r"exit code 3.*\n?no room"), running("127.0.0.1:1", [command], tmp_path):
        pass


@pytest.mark.matrix
def test_a_restart_kills_the_server_and_reads_again(tmp_path: Path) -> None:
    step = Step("restart", "fill", {"byte_count": 2**20})
    found = session.restart_result(MQ, Row("mq", SYNCED, "aiohttp, record batches"), tmp_path, step)
    assert float(str(found["first_record_ms"])) > float(str(found["up_ms"])) > 0
    assert not (tmp_path / "data" / "restart").exists()


def test_a_long_step_has_a_server_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    peer = Sleeper("sleeper", {})
    monkeypatch.setattr(session, "drive_command", lambda *_: saying('{"made_per_s": 7}'))
    found = session.long_result(peer, Row("sleeper", WRITTEN, "c"), tmp_path, Step("topics_10000", "topics"))
    assert found["made_per_s"] == 7
    with pytest.raises(Died):
        peer.started[0].check()


def test_a_failure_does_not_tell_where_the_checkout_lies() -> None:
    assert session.failure(OSError(f"open {session.REPOSITORY}/artifacts/x")) == {"failed": "open artifacts/x"}
