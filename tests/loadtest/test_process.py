"""Processes that announce themselves: started, stopped, and their failures told."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from loadtest.process import ProcessFailed, started
from tests.waiting import PATIENCE_S

POLITE = """
import signal, sys
signal.signal(signal.SIGTERM, lambda *_: sys.exit({code}))
print("a last word", file=sys.stderr, flush=True)
print("http://here", {pid}, flush=True)
signal.pause()
"""


def command(*, code: int = 0, pid: str = "''") -> list[str]:
    return [sys.executable, "-c", POLITE.format(code=code, pid=pid)]


def test_the_first_line_is_given_and_the_process_is_gone_afterwards(tmp_path: Path) -> None:
    with started(command(pid="__import__('os').getpid()"), tmp_path / "log") as running:
        url, pid = running
        os.kill(pid, 0)
    assert url.startswith("http://here")
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)


def test_a_stop_that_is_not_clean_is_told_with_the_end_of_the_log(tmp_path: Path) -> None:
    with (
        pytest.raises(ProcessFailed, match=r"exit code 3; its log ends with:\na last word"),
        started(command(code=3), tmp_path / "log"),
    ):
        pass


def test_a_process_that_dies_before_it_is_ready_is_told(tmp_path: Path) -> None:
    dying = [sys.executable, "-c", "import sys; sys.exit('no such disk')"]
    with (
        pytest.raises(ProcessFailed, match="exit code 1; its log ends with:\nno such disk"),
        started(dying, tmp_path / "log"),
    ):
        raise AssertionError("it never was ready")


def test_an_error_of_the_caller_passes_and_the_process_is_stopped(tmp_path: Path) -> None:
    pids: list[int] = []

    def fail() -> None:
        with started(command(pid="__import__('os').getpid()"), tmp_path / "log") as running:
            pids.append(running.pid)
            raise LookupError

    with pytest.raises(LookupError):
        fail()
    with pytest.raises(ProcessLookupError):
        os.kill(pids[0], 0)


def test_a_process_that_died_under_its_user_is_the_cause(tmp_path: Path) -> None:
    def use() -> None:
        with started(command(pid="__import__('os').getpid()"), tmp_path / "log") as running:
            pid = running.pid
            os.kill(pid, 9)
            os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)
            raise ConnectionResetError("what the user of the process sees")

    with pytest.raises(ProcessFailed, match="exit code -9"):
        use()


def test_the_cpu_time_of_a_process_is_known(tmp_path: Path) -> None:
    busy = [sys.executable, "-c", "print('x', flush=True)\nwhile True: pass"]
    deadline_s = time.monotonic() + PATIENCE_S

    def watch() -> None:
        with started(busy, tmp_path / "log") as running:
            before_s = running.cpu_s()
            while running.cpu_s() < before_s + 0.1:
                assert time.monotonic() < deadline_s

    with pytest.raises(ProcessFailed):  # it does not end by itself
        watch()


def test_a_program_that_is_told_to_end_takes_what_it_started_along(tmp_path: Path) -> None:
    script = f"""
from pathlib import Path
from loadtest.process import end_when_told, started
end_when_told()
with started({command(pid="__import__('os').getpid()")!r}, Path({str(tmp_path / "inner")!r})) as running:
    print(running.url, flush=True)
    while True:
        pass
"""
    process = subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
    assert process.stdout is not None
    pid = int(process.stdout.readline().split()[1])
    process.terminate()
    assert process.wait(PATIENCE_S) != 0
    process.stdout.close()
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)
