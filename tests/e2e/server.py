"""A real server process: start it on a free port, kill it, start it again on the same data."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from tests.fork_server import DIES_WITH_US, REPOSITORY

START_TIMEOUT_S = 180.0

SMALL_FILES = {
    "MQ_STORE_COMMIT_LOG_FILE_BYTES": str(4 * 1024 * 1024),
    "MQ_STORE_EXTENT_BYTES": str(512 * 1024),
    "MQ_STORE_CONSUME_QUEUE_FILE_UNITS": "1000",
    "MQ_STORE_CHECKPOINT_INTERVAL_MS": "200",
    "MQ_STORE_DISK_FLOOR_BYTES": "0",
}
"""Settings that make a short run see many rolls and checkpoints."""


class Server:
    """`mq serve` as a process of its own."""

    more: Callable[[Path, Mapping[str, str]], Mapping[str, str]] = staticmethod(lambda _data, _given: {})
    """Settings that a run of the tests adds, by a server's data directory and own settings (tests/kafka_only.py)."""

    def __init__(
        self, data: Path, environment: dict[str, str] | None = None, *, port: int = 0, under: Sequence[str] = ()
    ) -> None:
        """`under`: a command that runs it. What has no store (MQ_CLUSTER_JOIN, MQ_CLUSTER_NO_STORE) writes no data
        there, only its log beside it."""
        self._data = data
        self._port = port
        self.under = under
        """May be changed between two runs."""
        self._environment = environment or {}
        self._process: asyncio.subprocess.Process | None = None
        self.url = ""

    async def start(self) -> None:
        """Return when it accepts connections. Fails with its standard error when it does not start."""
        errors = (self._data.parent / "server.log").open("ab")
        environment = {name: value for name, value in os.environ.items() if not name.startswith("MQ_")}
        environment |= {**self.more(self._data, self._environment), **self._environment}
        has_data = environment.keys().isdisjoint(("MQ_CLUSTER_JOIN", "MQ_CLUSTER_NO_STORE"))
        given = ("--data", str(self._data)) if has_data else ()
        self._process = await asyncio.create_subprocess_exec(
            *DIES_WITH_US, *self.under,
            sys.executable, "-m", "gateway", "serve", *given, "--port", str(self._port),
            cwd=REPOSITORY,
            env=environment,
            stdout=asyncio.subprocess.PIPE,
            stderr=errors,
        )  # fmt: skip
        errors.close()
        assert self._process.stdout is not None
        line = await asyncio.wait_for(self._process.stdout.readline(), START_TIMEOUT_S)
        self.url = line.decode().strip()
        assert self.url.startswith(("http://", "https://")), f"the server did not start: {line!r}\n{self.log()}"

    async def kill(self) -> None:
        """kill -9."""
        assert self._process is not None
        self._process.kill()
        assert await self._process.wait() == -signal.SIGKILL, f"it had died before\n{self.log()}"

    async def stop(self) -> int:
        """SIGTERM; returns the exit code."""
        assert self._process is not None
        self._process.terminate()
        return await asyncio.wait_for(self._process.wait(), START_TIMEOUT_S)

    @property
    def pid(self) -> int:
        """Of the running process."""
        assert self._process is not None
        return self._process.pid

    def signal(self, number: int) -> None:
        """Send a signal."""
        assert self._process is not None
        self._process.send_signal(number)

    async def ended(self) -> int:
        """Wait for the end of the process; its exit code, or minus the signal that killed it."""
        assert self._process is not None
        return await asyncio.wait_for(self._process.wait(), START_TIMEOUT_S)

    async def end(self) -> None:
        """Leave no process behind, whatever happened."""
        if self._process is not None and self._process.returncode is None:
            self._process.kill()
            await self._process.wait()

    def cpu_s(self) -> float:
        """CPU seconds that the running process has taken."""
        assert self._process is not None
        fields = Path(f"/proc/{self._process.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")  # utime and stime

    def rss_bytes(self) -> int:
        """Memory of the running process."""
        assert self._process is not None
        pages = int(Path(f"/proc/{self._process.pid}/statm").read_text().split()[1])
        return pages * os.sysconf("SC_PAGE_SIZE")

    def file_count(self) -> int:
        """Files and sockets that the running process has open."""
        assert self._process is not None
        return len(os.listdir(f"/proc/{self._process.pid}/fd"))

    def log(self) -> str:
        """What all runs wrote to standard error."""
        return (self._data.parent / "server.log").read_text()
