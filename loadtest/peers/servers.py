"""A peer's server as a process: started, waited for, measured, stopped or killed; never left behind."""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

import psutil

from loadtest.process import log_tail

START_TIMEOUT_S = 180.0
"""Some read all they have before they answer."""

STOP_TIMEOUT_S = 20.0
PF_EXITING = 0x4
"""Of the flags in /proc/PID/stat; see include/linux/sched.h."""

SIGKILL_BIT = 1 << (signal.SIGKILL - 1)


class Died(Exception):
    """The server did not start, or ended before it was told to. The message ends with what it logged."""


class Server:
    """The processes of one peer. `endpoint` is where clients find it."""

    def __init__(self, endpoint: str, processes: Sequence[subprocess.Popen[bytes]], log: Path) -> None:
        self.endpoint = endpoint
        self._processes = processes
        self._log = log

    def with_also(self, other: Server) -> Server:
        """This endpoint, with the processes of both: one peer made of two servers."""
        return Server(self.endpoint, [*self._processes, *other._processes], self._log)

    @property
    def pids(self) -> list[int]:
        """Its first processes; what they start is found from them."""
        return [process.pid for process in self._processes]

    def reset_peak(self) -> None:
        """From now on `peak_rss_bytes` is what is reached from now on."""
        for member in self._family():
            with suppress(OSError):
                Path(f"/proc/{member.pid}/clear_refs").write_text("5")  # see proc(5)

    def peak_rss_bytes(self) -> int:
        """The sum of what each process has reached at most."""
        peak_bytes = 0
        for member in self._family():
            with suppress(OSError):
                peak_bytes += _peak_rss_bytes(member.pid)
        return peak_bytes

    def check(self) -> None:
        """Raises Died when a process has ended, or has been killed and is about to end."""
        for process in self._processes:
            if process.poll() is None and _is_dying(process.pid):
                with suppress(subprocess.TimeoutExpired):
                    process.wait(STOP_TIMEOUT_S)
                if process.returncode is None:
                    raise Died(f"{_name(process)} was killed and does not end")
            if process.returncode is not None:
                raise Died(f"{_name(process)} ended with exit code {process.returncode}{log_tail(self._log)}")

    def kill(self) -> None:
        """kill -9, all of them."""
        for process in self._family():
            with suppress(psutil.NoSuchProcess):
                process.kill()
        for one in self._processes:
            one.wait()

    def stop(self) -> None:
        """SIGTERM; SIGKILL when that takes too long. Nothing of the family is left."""
        family = self._family()
        for process in reversed(self._processes):
            if process.poll() is None:
                process.send_signal(signal.SIGTERM)
        for process in self._processes:
            with suppress(subprocess.TimeoutExpired):
                process.wait(STOP_TIMEOUT_S)
        for member in family:
            with suppress(psutil.NoSuchProcess):
                member.kill()
        for process in self._processes:
            process.wait()

    def _family(self) -> list[psutil.Process]:
        found = []
        for process in self._processes:
            with suppress(psutil.NoSuchProcess):
                parent = psutil.Process(process.pid)
                found += [parent, *parent.children(recursive=True)]
        return found


@contextmanager
def running(
    endpoint: str,
    commands: Sequence[Sequence[str]],
    directory: Path,
    *,
    environment: Mapping[str, str] | None = None,
    is_ready: Callable[[Server], bool] | None = None,
) -> Iterator[Server]:
    """Start commands, wait until they are ready (the endpoint's port listens), stop them when the block ends.

    They log to `server.log` in the directory. Raises Died.
    """
    log = directory / "server.log"
    processes: list[subprocess.Popen[bytes]] = []
    server = Server(endpoint, processes, log)
    ready = is_ready or (lambda _: is_open(int(endpoint.rpartition(":")[2])))
    try:
        for command in commands:
            with log.open("ab") as output:
                processes.append(
                    subprocess.Popen(
                        command,
                        stdin=subprocess.DEVNULL,
                        stdout=output,
                        stderr=output,
                        start_new_session=True,
                        cwd=directory,
                        env={**os.environ, **(environment or {})},
                    )
                )
        wait_until(server, ready)
        yield server
    finally:
        server.stop()


def wait_until(server: Server, is_ready: Callable[[Server], bool]) -> None:
    """Raises Died when a process ends first, or it takes longer than START_TIMEOUT_S."""
    deadline_s = time.monotonic() + START_TIMEOUT_S
    while not is_ready(server):
        server.check()
        if time.monotonic() > deadline_s:
            raise Died(f"not ready after {START_TIMEOUT_S:g} s")
        time.sleep(0.05)


def is_open(port: int) -> bool:
    """Whether something listens on a port of this machine."""
    try:
        with socket.create_connection(("127.0.0.1", port), timeout=1) as connection:
            return bool(connection.getsockname() != connection.getpeername())  # a free port can connect to itself
    except OSError:
        return False


def free_port() -> int:
    """A port that no process listens on now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
    return port


def _name(process: subprocess.Popen[bytes]) -> str:
    arguments = process.args
    return Path(str(arguments[0] if isinstance(arguments, (list, tuple)) else arguments)).name


def _is_dying(pid: int) -> bool:
    """Whether a process is on its way out: it cannot be waited for until some ms after it was killed."""
    try:
        flags = int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[6])
        pending = re.findall(
            r"^(?:SigPnd|ShdPnd):\s*([0-9a-f]+)$", Path(f"/proc/{pid}/status").read_text(), re.MULTILINE
        )
    except (FileNotFoundError, ProcessLookupError):
        return True
    return bool(flags & PF_EXITING) or any(int(mask, 16) & SIGKILL_BIT for mask in pending)


def _peak_rss_bytes(pid: int) -> int:
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) * 1024
    return 0
