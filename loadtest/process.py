"""A program in a process of its own, which says on its first line of output where it can be reached.

`mq serve` does so, and so does the benchmark's bare server. Neither outlives the block that started it.
"""

from __future__ import annotations

import os
import selectors
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import NamedTuple

START_TIMEOUT_S = 30.0
STOP_TIMEOUT_S = 15.0
DYING_TIMEOUT_S = 0.5
LOG_TAIL_BYTES = 4000


class ProcessFailed(Exception):
    """The process did not start, or did not stop cleanly. The message ends with the last lines it logged."""


class Running(NamedTuple):
    """A program that can be reached at a URL."""

    url: str
    pid: int

    def cpu_s(self) -> float:
        """CPU time it has taken so far, all threads, kernel included."""
        fields = Path(f"/proc/{self.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")  # utime, stime; see proc(5)

    def rss_bytes(self) -> int:
        """Memory that it has now."""
        return int(Path(f"/proc/{self.pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


@contextmanager
def server(data: Path, *flags: str) -> Iterator[str]:
    """Run a server on a data directory and a free port; its URL. Its log goes to `server.log` in that directory."""
    with running_server(data, *flags) as running:
        yield running.url


@contextmanager
def running_server(data: Path, *flags: str, tree: Path | None = None) -> Iterator[Running]:
    """As `server`, with its process. `tree`: a checkout whose server it is to be; ours by default."""
    data.mkdir(parents=True, exist_ok=True)
    command = [sys.executable, "-m", "gateway", "serve", "--data", str(data.absolute()), "--port", "0", *flags]
    unlimited = {"MQ_LIMITS_CONNECTIONS_PER_ADDRESS_MAX": "0"}  # all of a load comes from one address
    with started(command, data / "server.log", unlimited, directory=tree) as running:
        yield running


@contextmanager
def started(
    command: Sequence[str], log: Path, environment: Mapping[str, str] | None = None, *, directory: Path | None = None
) -> Iterator[Running]:
    """Run a command until the block ends, in a directory; its URL is the first line it prints. Raises ProcessFailed.

    It is stopped by SIGTERM, and killed when that takes longer than STOP_TIMEOUT_S. It has a session of its own, so
    that Ctrl-C in a terminal reaches us alone and the stop stays orderly.
    """
    with log.open("wb") as stderr:
        process = subprocess.Popen(
            command,
            stdout=subprocess.PIPE,
            stderr=stderr,
            start_new_session=True,
            env={**os.environ, **(environment or {})},
            cwd=directory,
        )
    try:
        yield Running(_first_line(process, log), process.pid)
        is_running = process.poll() is None
    except Exception as error:
        if _is_dying(process):  # the block failed because the process is gone
            raise _failed(command, process.returncode, log) from error
        raise
    finally:
        _stop(process)
    if not is_running or process.returncode != 0:
        raise _failed(command, process.returncode, log)


def _first_line(process: subprocess.Popen[bytes], log: Path) -> str:
    assert process.stdout is not None
    deadline_s = time.monotonic() + START_TIMEOUT_S
    line = b""
    with selectors.DefaultSelector() as selector:
        selector.register(process.stdout, selectors.EVENT_READ)
        while not line.endswith(b"\n"):
            if not selector.select(max(deadline_s - time.monotonic(), 0)):
                raise ProcessFailed(f"the process said nothing within {START_TIMEOUT_S:g} s{log_tail(log)}")
            read = os.read(process.stdout.fileno(), 1024)
            if not read:
                raise ProcessFailed("the process ended before it was ready")
            line += read
    return line.decode().strip()


def _is_dying(process: subprocess.Popen[bytes]) -> bool:
    """Whether the process has ended. Its sockets and pipes close a moment before it can be waited for."""
    with suppress(subprocess.TimeoutExpired):
        process.wait(DYING_TIMEOUT_S)
    return process.returncode is not None


def _stop(process: subprocess.Popen[bytes]) -> None:
    process.terminate()
    try:
        process.wait(STOP_TIMEOUT_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
    finally:
        assert process.stdout is not None
        process.stdout.close()


def _failed(command: Sequence[str], exit_code: int, log: Path) -> ProcessFailed:
    return ProcessFailed(f"{' '.join(command[1:4])} ended with exit code {exit_code}{log_tail(log)}")


def end_when_told() -> None:
    """From now on SIGTERM ends this program as Ctrl-C does: blocks are left, and nothing they started stays."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("told to end"))


def log_tail(log: Path) -> str:
    """The end of a log, to put behind a message."""
    if not log.exists():
        return ""
    text = log.read_bytes()[-LOG_TAIL_BYTES:].decode(errors="replace").strip()
    return f"; its log ends with:\n{text}" if text else ""
