"""A forked process is to the one that asked for it what an executed one is."""

from __future__ import annotations

import asyncio
import ctypes
import os
import re
import resource
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

from tests import fork_server
from tests.fork_server import DIES_WITH_US, EXECUTED, IMPORTED, READ_LATE, REPOSITORY, WORKER, ForkServer
from tests.waiting import PATIENCE_S, until

MQ = (sys.executable, "-m", "gateway")
PR_GET_CHILD_SUBREAPER = 37
LOOKS = 20

READS = f"""
import importlib, os, sys
import wsgiref.handlers  # which copies all of them
class Environment(type(os.environ)):
    def __getitem__(self, name):
        if name.startswith({READ_LATE!r}):
            print(name)
        return super().__getitem__(name)
os.environ.__class__ = Environment
os.getenv("MQ_THIS_ONE")
for name in {IMPORTED!r}:
    importlib.import_module(name)
"""

DYING = """
import subprocess, sys, time
from tests import fork_server
installed = fork_server.install()
server = next(installed)
command = [*fork_server.DIES_WITH_US, sys.executable, "-m", "gateway", "serve", "--data", sys.argv[1], "--port", "0"]
process = subprocess.Popen(command, stdout=subprocess.PIPE)
process.stdout.readline()
print(server.forks, process.pid, server._process.pid, flush=True)
time.sleep(100)
"""


@pytest.fixture(scope="module")
def forks() -> Iterator[ForkServer]:
    """A fork server for these tests alone."""
    yield from fork_server.install()


@pytest.fixture(params=[(), EXECUTED], ids=["forked", "executed"])
def start(request: pytest.FixtureRequest, forks: ForkServer) -> Iterator[tuple[str, ...]]:
    """What stands before a command: both kinds of start pass the same tests."""
    before = forks.forks
    yield request.param
    assert forks.forks - before == (request.param == ())


def test_exit_codes_output_and_errors(forks: ForkServer) -> None:
    before = forks.forks
    done = subprocess.run([*MQ, "--version"], cwd=REPOSITORY, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout[:3], done.stderr) == (0, "mq ", "")
    done = subprocess.run([*MQ, "frobnicate"], cwd=REPOSITORY, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (2, "")
    assert "No such command 'frobnicate'" in done.stderr
    assert forks.forks == before + 2


def test_standard_input_and_environment(forks: ForkServer, tmp_path: Path) -> None:
    before = forks.forks
    for contexts in (tmp_path / "one", tmp_path / "two"):
        environment = {**os.environ, "XDG_CONFIG_HOME": str(contexts)}
        command = [*MQ, "context", "add", "there", "--url", "http://there", "--token", "-"]
        subprocess.run(command, cwd=REPOSITORY, env=environment, input=b"secret\n", check=True)
        assert "secret" in (contexts / "mq" / "contexts.json").read_text()
    assert forks.forks == before + 2


@contextmanager
def serving(data: Path, *start: str, **asked: Any) -> Iterator[subprocess.Popen[bytes]]:
    """A server that has started."""
    command = [*start, *MQ, "serve", "--data", str(data), "--port", "0"]
    environment = {**os.environ, "MQ_KAFKA_ENABLED": "false"}
    with subprocess.Popen(
        command, cwd=REPOSITORY, env=environment, stdout=subprocess.PIPE, **asked
    ) as process:  # fmt: skip
        try:
            assert process.stdout is not None
            assert process.stdout.readline().startswith(b"http://127.0.0.1:")
            yield process
        finally:
            process.kill()


def test_a_server_and_signals(start: tuple[str, ...], tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """Its parent is this process, and its first signal ends it in good order."""
    with serving(tmp_path / "data", *start, start_new_session=True) as process:
        assert process.poll() is None
        fields = Path(f"/proc/{process.pid}/stat").read_text().rpartition(")")[2].split()
        assert int(fields[1]) == os.getpid()
        assert os.getsid(process.pid) == os.getpgid(process.pid) == process.pid
        process.send_signal(signal.SIGINT)
        assert process.wait(PATIENCE_S) == 0
    assert "stopped" in capfd.readouterr().err, "what is not redirected is inherited"


def test_a_forked_server_has_the_files_of_an_executed_one(forks: ForkServer, tmp_path: Path) -> None:
    before = forks.forks
    assert _files(tmp_path / "forked") == _files(tmp_path / "executed", *EXECUTED)
    assert forks.forks == before + 1


def _files(data: Path, *start: str) -> list[str]:
    """Their names without numbers."""
    with serving(data, *start) as process:
        files = _open_files(process.pid)
        for _ in range(LOOKS):  # it reads of its own memory now and then, from a file that is open for a moment
            files &= _open_files(process.pid)
        names = [name for _, name in files] + [str(Path(f"/proc/{process.pid}/cwd").readlink())]
    return sorted(re.sub(r"[0-9]+", "", name.replace(str(data), "data")) for name in names)


def _open_files(pid: int) -> set[tuple[str, str]]:
    """Numbers and names."""
    files = set()
    for link in Path(f"/proc/{pid}/fd").iterdir():
        with suppress(FileNotFoundError):  # it was closed meanwhile
            files.add((link.name, str(link.readlink())))
    return files


async def test_asyncio_and_a_killed_server(start: tuple[str, ...], tmp_path: Path) -> None:
    process = await asyncio.create_subprocess_exec(
        *DIES_WITH_US, *start, *MQ, "serve", "--data", str(tmp_path / "data"), "--port", "0",
        cwd=REPOSITORY, stdout=asyncio.subprocess.PIPE,
    )  # fmt: skip
    assert process.stdout is not None
    assert (await process.stdout.readline()).startswith(b"http://")
    assert os.getpgid(process.pid) == os.getpgid(0)
    process.kill()
    assert await process.wait() == -signal.SIGKILL
    assert await process.stdout.read() == b""
    with pytest.raises(ProcessLookupError):
        os.kill(process.pid, 0)


@pytest.mark.skipif(not DIES_WITH_US, reason="no setpriv here")
def test_nothing_outlives_a_pytest_that_is_killed(tmp_path: Path) -> None:
    command = [sys.executable, "-c", DYING, str(tmp_path / "data")]
    with subprocess.Popen(command, cwd=REPOSITORY, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        said = process.stdout.readline()
        process.kill()
    forks, *pids = map(int, said.split())
    assert (forks, len(pids)) == (1, 2)
    asyncio.run(until(lambda: all(map(_is_gone, pids)), pause_s=0.01))


class OwnStart(Exception):
    """By exec."""


@pytest.mark.parametrize(
    "asked",
    [
        {"args": ["setsid", *MQ, "--version"]},
        {"args": [sys.executable, "-X", "dev", "-m", "gateway", "--version"]},
        {"args": [sys.executable, "-m", "json.tool"]},
        {"args": [sys.executable, "-m"]},
        {"args": ["/usr/bin/python3", "-m", "gateway", "--version"]},
        {"cwd": "/"},
        {"env": {**os.environ, "PYTHONMALLOC": "debug"}},
        {"env": {**os.environ, "LD_PRELOAD": "libfaketime.so.1"}},
        {"env": {}},
        {"preexec_fn": os.getpid},
        {"pass_fds": [0]},
        {"close_fds": False},
        {"umask": 0o77},
        {"restore_signals": False},
    ],
    ids=lambda asked: " ".join(map(str, asked.get("args", asked))).rpartition("/")[2],
)
def test_what_is_started_by_exec(forks: ForkServer, asked: dict[str, Any]) -> None:
    _is_executed(forks, asked)


def test_other_limits_are_had_by_exec(forks: ForkServer) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft - 1, hard))
    try:
        _is_executed(forks, {})
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def _is_executed(forks: ForkServer, asked: dict[str, Any]) -> None:
    def refuse(*_: object) -> int:
        raise OwnStart

    forks._exec, by_exec = refuse, forks._exec
    try:
        with pytest.raises(OwnStart):
            subprocess.Popen(**{"args": [*MQ, "--version"], "cwd": REPOSITORY, **asked})
    finally:
        forks._exec = by_exec


def test_no_variable_that_may_differ_is_read_by_an_import() -> None:
    done = subprocess.run([sys.executable, "-c", READS], cwd=REPOSITORY, capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["MQ_THIS_ONE"]


def test_the_fork_server_is_idle_and_goes_with_its_pytest(forks: ForkServer) -> None:
    assert forks._process is not None
    pid = forks._process.pid
    assert len(os.listdir(f"/proc/{pid}/task")) == 1, "a fork has one thread; what others held would be held for ever"
    assert len(os.listdir(f"/proc/{pid}/fd")) == 4, "its standard streams, and one to us"
    kept = ctypes.c_int(-1)
    assert ctypes.CDLL(None).prctl(PR_GET_CHILD_SUBREAPER, ctypes.byref(kept), 0, 0, 0) == 0
    assert kept.value == 0, "orphans of others are not ours"
    forks.close()
    assert _is_gone(pid)


def test_a_worker_of_pytest_finds_the_tests_imported() -> None:
    says = (
        "import gc, signal, sys; from tests.gateway.api import test_tasks as one;"
        "print(__name__, sys.argv[0], type(one.__loader__).__name__, gc.isenabled(), gc.get_freeze_count() > 0,"
        "signal.getsignal(signal.SIGINT).__name__)"
    )
    for forks in fork_server.install(["tests/gateway/api/test_tasks.py"]):
        done = subprocess.run(
            [sys.executable, *WORKER], input=f"{says!r}\n", cwd=REPOSITORY, capture_output=True, text=True, check=True
        )
        assert forks.forks == 1
    assert done.stderr == ""
    assert done.stdout.split() == ["__main__", "-c", "AssertionRewritingHook", "False", "True", "interrupted"]


def _is_gone(pid: int) -> bool:
    """Or nobody has waited for it yet."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except (FileNotFoundError, ProcessLookupError):
        return True
