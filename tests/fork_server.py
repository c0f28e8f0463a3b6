"""Starts of `python -m gateway` at the price of a fork: 0.7 s of CPU time go into the import of its modules, and the
tests start servers by the hundred. So are the processes of pytest itself that run files side by side, as each would
import all files of tests, and what those import.

One process for each process of pytest has imported the modules, runs no thread and no event loop, and forks when one of
RUNNABLE is to be started, or, where it has imported tests, a process of pytest-xdist (WORKER). `subprocess` and asyncio
see no difference: the new process is a child of pytest as any other
(`_serve` says how), with the arguments, environment, directory, standard streams, session and process group that were
asked for. Whatever else is asked for gets a start of its own, by exec: another interpreter or its flags, a wrapper
such as strace, another directory, environment variables that a library may have read while it was imported, other
limits. So does what is started below EXECUTED.

Processes that were forked from one have the seed of `hash` in common, and libraries of which fewer pages count as
resident at first: tests of memory, of the start itself, and some of those that restart a server start below EXECUTED.
"""

from __future__ import annotations

import atexit
import ctypes
import gc
import importlib
import json
import os
import resource
import runpy
import shutil
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from types import FrameType, ModuleType
from typing import Any, NamedTuple, NoReturn

REPOSITORY = Path(__file__).resolve().parents[1]

RUNNABLE = frozenset({"gateway", "tests.gateway.cluster.node_process", "tests.e2e.group_client", "tests.crash.driver"})
"""Modules that are run in a fork."""

IMPORTED = ("gateway.cli", "gateway.main.wiring", "gateway.main.joined", "uvloop", "tests.gateway.cluster.node_process")
"""What the fork server imports; the rest comes with it."""

WORKER = ["-u", "-c", "import sys;exec(eval(sys.stdin.readline()))"]
"""The flags with which pytest-xdist starts a process."""

DIES_WITH_US = ("setpriv", "--pdeathsig", "KILL") if shutil.which("setpriv") else ()
"""A test that is killed leaves no server behind: this one dies with the thread that started it, or with the process
where it was forked."""

EXECUTED = ("env",)
"""A command in front of another that does nothing but execute it."""

READ_LATE = ("MQ_", "PYTEST_", "XDG_CONFIG_HOME", "JAVA_HOME", "PYSPARK_", "SPARK_")
"""Beginnings of the names of variables that no import reads: those of ours, and what Spark leaves in pytest."""

Handler = Callable[[int, FrameType | None], Any] | int | None
"""Of a signal."""

MESSAGE_BYTES_MAX = 200_000
PR_SET_PDEATHSIG = 1
PR_SET_CHILD_SUBREAPER = 36
CLONE_NEWNS = 0x0002_0000
LIMITS = [getattr(resource, name) for name in dir(resource) if name.startswith("RLIMIT_")]


class Order(NamedTuple):
    """A process that is to be forked."""

    module: str
    """`-c`: what is to be run is the first argument."""
    arguments: list[str]
    environment: dict[str, str]
    new_session: bool
    process_group: int
    """-1: that of the parent."""
    dies_with_us: bool
    parent: int


class ForkServer:
    """The side of pytest."""

    def __init__(self, tested: Sequence[str] = ()) -> None:
        self._tested = tested
        self._lock = threading.Lock()
        self._exec: Any = subprocess._fork_exec  # type: ignore[attr-defined]
        self._process: subprocess.Popen[bytes] | None = None
        self._socket: socket.socket | None = None
        self._environment, self._limits = _read_early(os.environ), _limits()
        self.forks = 0

    def fork_exec(
        self,
        args: Sequence[str | bytes], executables: Sequence[bytes], close_fds: bool, fds_to_keep: tuple[int, ...],
        cwd: str | bytes | os.PathLike[str] | None, environment: list[bytes] | None,
        p2cread: int, p2cwrite: int, c2pread: int, c2pwrite: int, errread: int, errwrite: int,
        errpipe_read: int, errpipe_write: int, restore_signals: bool, new_session: bool, process_group: int,
        gid: object, gids: object, uid: object, umask: int, preexec_fn: object, *rest: object,
    ) -> int:  # fmt: skip
        """In place of `subprocess._fork_exec`, with its arguments: the id of the new process."""
        plain = (close_fds, fds_to_keep, restore_signals, gid, gids, uid, umask, preexec_fn)
        if plain == (True, (errpipe_write,), True, None, None, None, -1, None):
            variables = os.environ if environment is None else _variables(environment)
            with self._lock:
                order = self._order([os.fsdecode(arg) for arg in args], cwd, variables, new_session, process_group)
                if order is not None:
                    streams = (p2cread, c2pwrite, errwrite)
                    return self._fork(order, [own if fd == -1 else fd for own, fd in enumerate(streams)])
        pid: int = self._exec(
            args, executables, close_fds, fds_to_keep, cwd, environment, p2cread, p2cwrite, c2pread, c2pwrite,
            errread, errwrite, errpipe_read, errpipe_write, restore_signals, new_session, process_group,
            gid, gids, uid, umask, preexec_fn, *rest,
        )  # fmt: skip
        return pid

    def _order(
        self, args: list[str], cwd: Any, variables: dict[str, str], new_session: bool, process_group: int
    ) -> Order | None:
        """None where a fork would not do."""
        dies_with_us = DIES_WITH_US != () and tuple(args[: len(DIES_WITH_US)]) == DIES_WITH_US
        interpreter, *flags = args[len(DIES_WITH_US) :] if dies_with_us else args
        if interpreter != sys.executable or not self._is_runnable(flags):
            return None
        if Path(os.fsdecode(cwd or ".")).resolve() != REPOSITORY:
            return None
        if _read_early(variables) != self._environment or _limits() != self._limits:
            return None
        if self._process is None:
            self._start()
        return Order(flags[1], flags[2:], dict(variables), new_session, process_group, dies_with_us, os.getpid())

    def _is_runnable(self, flags: list[str]) -> bool:
        if self._tested:
            return flags == WORKER
        return flags[:1] == ["-m"] and flags[1:2] != [] and flags[1] in RUNNABLE

    def _start(self) -> None:
        self._socket, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            self._lock.release()  # Popen comes back to `fork_exec`
            try:
                self._process = subprocess.Popen(
                    [sys.executable, "-m", "tests.fork_server", str(theirs.fileno()), *self._tested],
                    cwd=REPOSITORY, env=self._environment, pass_fds=[theirs.fileno()], stdin=subprocess.DEVNULL,
                    stdout=subprocess.DEVNULL if self._tested else None,
                )  # fmt: skip
            finally:
                self._lock.acquire()

    def _fork(self, order: Order, streams: list[int]) -> int:
        assert self._socket is not None
        _prctl(PR_SET_CHILD_SUBREAPER, 1)
        try:
            socket.send_fds(self._socket, [json.dumps(order).encode()], streams)
            pid = int(self._socket.recv(MESSAGE_BYTES_MAX))  # ValueError: the fork server is gone
        finally:
            _prctl(PR_SET_CHILD_SUBREAPER, 0)
        self.forks += 1
        return pid

    def close(self) -> None:
        """End the fork server; what it has forked runs on."""
        if self._process is not None and self._socket is not None:
            self._socket.close()
            self._process.wait()
            self._process = None


def install(tested: Sequence[str] = ()) -> Iterator[ForkServer]:
    """All processes that `subprocess` and asyncio start in this one, until it is resumed: RUNNABLE, or those of
    pytest-xdist that will run what is `tested`, files and folders."""
    server = ForkServer(tested)
    subprocess._fork_exec = server.fork_exec  # type: ignore[attr-defined]
    yield server
    subprocess._fork_exec = server._exec  # type: ignore[attr-defined]
    server.close()


def _variables(environment: list[bytes]) -> dict[str, str]:
    pairs = (os.fsdecode(each).partition("=") for each in environment)
    return {name: value for name, _, value in pairs}


def _read_early(variables: Any) -> dict[str, str]:
    return {name: value for name, value in variables.items() if not name.startswith(READ_LATE)}


def _limits() -> list[tuple[int, int]]:
    return [resource.getrlimit(limit) for limit in LIMITS]


def _prctl(option: int, value: int) -> None:
    if ctypes.CDLL(None, use_errno=True).prctl(option, value, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "prctl")


def _serve(requests: socket.socket, interrupted: Handler) -> Order | None:
    """Return in each new process with what it is to run, and in the fork server with None when pytest has ended.

    Each is the child of a process that ends at once. Pytest is the reaper of orphans meanwhile (`_fork`), so it
    becomes the parent, which waits for the process, and is told of its end, as if it had started it itself.
    """
    while True:
        message, streams, _, _ = socket.recv_fds(requests, MESSAGE_BYTES_MAX, 3)
        if not message:
            return None
        reading, writing = os.pipe()
        gate, gate_closed = os.pipe()
        if (between := os.fork()) == 0:
            if os.fork() != 0:
                os._exit(0)
            for fd in (requests.detach(), reading, gate_closed):
                os.close(fd)
            os.read(gate, 1)
            order = Order(*json.loads(message))
            _become(order, streams)
            signal.signal(signal.SIGINT, interrupted)
            os.write(writing, str(os.getpid()).encode())
            for fd in (writing, gate):
                os.close(fd)
            return order
        for fd in (writing, gate, *streams):
            os.close(fd)
        os.waitpid(between, 0)
        os.close(gate_closed)  # pytest is the parent now
        requests.send(os.read(reading, 100))
        os.close(reading)


def _compile_paths() -> None:
    """The patterns of all routes' paths, a third of what a start takes behind the imports: `re` keeps them."""
    build_application = importlib.import_module("gateway.main.application").build_application
    fakes = importlib.import_module("tests.gateway.fake_broker")
    build_application(fakes.fake_gateway(importlib.import_module("tests.clock").FakeClock())[0])


def _import_gateway() -> Handler:
    """The handler of SIGINT that it leaves."""
    for name in IMPORTED:
        importlib.import_module(name)
    importlib.import_module("gateway.plugins").plugins("")  # reads those of all packages, and keeps them
    _compile_paths()
    return signal.default_int_handler


def import_tests(files_and_folders: Sequence[str]) -> Handler:
    """As pytest does, so that asserts say what they have compared; the handler of SIGINT that tests/conftest.py leaves.
    What cannot be imported is tried again by those who are forked, and they say why.

    On a machine that has not run the tests this leaves bytecode, and what Hypothesis reads of all modules, on disk.
    """
    import pytest  # a second, which who starts servers need not wait for

    class Nothing:
        """Takes no test from what was imported."""

        @pytest.hookimpl(tryfirst=True)
        def pytest_pycollect_makeitem(self) -> list[pytest.Item]:
            return []

    flags = ["--collect-only", "-qq", "-n0", "-p", "no:cacheprovider"]
    pytest.main([*flags, *files_and_folders], plugins=[Nothing()])
    from hypothesis import HealthCheck, given, settings
    from hypothesis.strategies import text

    @settings(max_examples=50, database=None, derandomize=True, suppress_health_check=list(HealthCheck))
    @given(text())
    def read_what_all_searches_read(_: str) -> None:
        """Characters, and the constants in all modules: five seconds, or a third of one when they are on disk."""

    read_what_all_searches_read()
    gc.disable()  # as tests/conftest.py has it until tests are collected
    return signal.getsignal(signal.SIGINT)


def _become(order: Order, streams: list[int]) -> None:
    """What exec, and the interpreter before it runs a module, would have done."""
    for own, fd in enumerate(streams):
        os.dup2(fd, own)
        os.close(fd)
    _see_the_mounts_of(order.parent)
    if order.new_session:
        os.setsid()
    if order.process_group != -1:
        os.setpgid(0, order.process_group)
    if order.dies_with_us:
        _prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != order.parent:
            os.kill(os.getpid(), signal.SIGKILL)
    os.environ.clear()
    os.environ.update(order.environment)
    sys.argv = [order.module, *order.arguments]


def _see_the_mounts_of(pid: int) -> None:
    """Pytest may have come to mounts of its own (tests/crash/real_disk.py) after it has begun this process."""
    theirs = f"/proc/{pid}/ns/mnt"
    if os.readlink(theirs) == os.readlink("/proc/self/ns/mnt"):
        return
    fd = os.open(theirs, os.O_RDONLY)
    if ctypes.CDLL(None, use_errno=True).setns(fd, CLONE_NEWNS) != 0:
        raise OSError(ctypes.get_errno(), "setns")
    os.close(fd)
    os.chdir(REPOSITORY)  # it is the root now


def _main(fd: int, tested: Sequence[str]) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for pytest and for what was forked
    interrupted = import_tests(tested) if tested else _import_gateway()
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    gc.collect()
    gc.freeze()
    order = _serve(socket.socket(fileno=fd), interrupted)
    if order is None:
        return
    code: str | int | None = None
    try:
        if order.module == "-c":
            sys.modules["__main__"] = main = ModuleType("__main__")
            exec(order.arguments[0], vars(main))  # noqa: S102
        else:
            runpy.run_module(order.module, run_name="__main__", alter_sys=True)
    except SystemExit as ended:
        code = ended.code
    _exit(code)


def _exit(code: str | int | None) -> NoReturn:
    """As the interpreter does, but for freeing all that was imported: each page of it would be copied first."""
    threading._shutdown()  # type: ignore[attr-defined]
    atexit._run_exitfuncs()
    gc.collect()  # what is not awaited, and tasks that are pending, say so
    if isinstance(code, str):
        print(code, file=sys.stderr)
        code = 1
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code or 0)


if __name__ == "__main__":
    _main(int(sys.argv[1]), sys.argv[2:])
