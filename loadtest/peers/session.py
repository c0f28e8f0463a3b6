"""One step: a client process against a server that is up, and what it came to. Numbers or a reason, never both.

{"records": 410000, "records_per_s": 101234.5, "server_cpu_s": 1.4, "limit": "client", ...}
{"failed": "java ended with exit code -9; its log ends with: ..."}
"""

from __future__ import annotations

import math
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import IO

import orjson

from loadtest.peers.peer import Options, Peer, Unavailable
from loadtest.peers.plan import Row, Step
from loadtest.peers.servers import Died, Server
from loadtest.peers.usage import Look, device_of, limit, look, taken

REPOSITORY = Path(__file__).resolve().parents[2]
REASON_CHARS_MAX = 1000
LOOK_EVERY_S = 0.25
POLL_S = 0.02

Result = Mapping[str, object]


class Failed(Exception):
    """A step that yields no number."""


def step_result(server: Server, command: Sequence[str], data: Path, *, timeout_s: float, is_paced: bool) -> Result:
    """Run a client process; its numbers with what the window took, or `{"failed": why}`. `data`: where the server's
    files are."""
    try:
        server.check()
        server.reset_peak()
        began_s = time.monotonic()
        numbers, looks = driven(command, server, data, timeout_s=timeout_s)
        server.check()  # a client that ends in peace proves nothing about the server
        used = taken(looks, numbers.get("began_s", -math.inf), numbers.get("ended_s", math.inf))
        return {
            **numbers,
            "window_s": used.wall_s,
            "server_cpu_s": used.server_cpu_s,
            "client_cpu_s": used.client_cpu_s,
            "kernel_cpu_s": used.kernel_cpu_s,
            "others_cpu_s": used.others_cpu_s,
            "disk_busy_s": used.disk_busy_s,
            "server_thread_s": used.server_thread_s,
            "server_peak_mb": server.peak_rss_bytes() / 1e6,
            "limit": limit(used, is_paced=is_paced),
            "step_s": time.monotonic() - began_s,
        }
    except (Failed, Died) as error:
        return failure(error)


def driven(
    command: Sequence[str], server: Server, data: Path, *, timeout_s: float
) -> tuple[dict[str, float], list[Look]]:
    """What the client process says (drive.py), and looks at the machine while it ran.

    It ends, with all that it started, when the server does. Raises Failed, Died.
    """
    device = device_of(data)
    with tempfile.TemporaryFile() as said, tempfile.TemporaryFile() as complained:
        client = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=said,
            stderr=complained,
            start_new_session=True,
            cwd=REPOSITORY,
            env={**os.environ, "PYTHONPATH": str(REPOSITORY)},
        )
        try:
            looks = [look(time.monotonic(), server.pids, [client.pid], device)]
            deadline_s = time.monotonic() + timeout_s
            while not _has_ended(client.pid):
                server.check()
                if time.monotonic() > deadline_s:
                    raise Failed(f"not done after {timeout_s:g} s")
                if time.monotonic() - looks[-1].at_s >= LOOK_EVERY_S:
                    looks.append(look(time.monotonic(), server.pids, [client.pid], device))
                time.sleep(POLL_S)
            looks.append(look(time.monotonic(), server.pids, [client.pid], device))
        finally:
            with suppress(ProcessLookupError):
                os.killpg(client.pid, signal.SIGKILL)  # its tools, and itself if it still runs
            client.wait()
        return _numbers(said, complained, client.returncode), looks


def restart_result(peer: Peer, row: Row, tools: Path, step: Step) -> Result:
    """Fill, kill -9, start again: until the first record can be read (ms). A server of its own."""
    data = empty(tools / "data" / "restart")
    try:
        with peer.serve(tools, data, row.level) as server:
            command = drive_command(row, "fill", server.endpoint, "fill", dict(step.options))
            filled, _ = driven(command, server, data, timeout_s=step.timeout_s)
            server.check()
            server.kill()
        started_s = time.monotonic()
        with peer.serve(tools, data, row.level) as server:
            up_s = time.monotonic() - started_s
            command = drive_command(row, "first_record", server.endpoint, "fill", {})
            driven(command, server, data, timeout_s=step.timeout_s)
            server.check()
            return {
                "up_ms": up_s * 1000,
                "first_record_ms": (time.monotonic() - started_s) * 1000,
                "fill_mb_per_s": filled["mb_per_s"],
                "server_peak_mb": server.peak_rss_bytes() / 1e6,
            }
    except (Failed, Died, Unavailable, OSError) as error:
        return failure(error)
    finally:
        shutil.rmtree(data, ignore_errors=True)


def long_result(peer: Peer, row: Row, tools: Path, step: Step) -> Result:
    """A long step with a server of its own."""
    data = empty(tools / "data" / step.name)
    try:
        with peer.serve(tools, data, row.level) as server:
            command = drive_command(row, step.work, server.endpoint, step.name, dict(step.options))
            return step_result(server, command, data, timeout_s=step.timeout_s, is_paced=step.is_paced)
    except (Died, Unavailable, OSError) as error:
        return failure(error)
    finally:
        shutil.rmtree(data, ignore_errors=True)


def drive_command(row: Row, work: str, endpoint: str, topic: str, options: Options) -> list[str]:
    """A client process for one way."""
    drive = [sys.executable, "-m", "loadtest.peers.drive"]
    return [*drive, row.peer, row.client, work, endpoint, topic, orjson.dumps(options).decode()]


def failure(error: Exception) -> Result:
    """The reason as it is reported: without the path of the checkout."""
    return {"failed": str(error).replace(f"{REPOSITORY}/", "")[:REASON_CHARS_MAX]}


def empty(directory: Path) -> Path:
    """That directory, made anew."""
    shutil.rmtree(directory, ignore_errors=True)
    directory.mkdir(parents=True)
    return directory


def _has_ended(pid: int) -> bool:
    """Whether a child has ended. It is not waited for, so that its CPU time can still be read."""
    return os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None


def _numbers(said: IO[bytes], complained: IO[bytes], exit_code: int) -> dict[str, float]:
    """The last line of what a client process printed. Raises Failed."""
    said.seek(0)
    complained.seek(0)
    lines = said.read().strip().splitlines()
    try:
        numbers = orjson.loads(lines[-1])
    except (IndexError, orjson.JSONDecodeError):
        complaint = complained.read()[-500:].decode(errors="replace")
        raise Failed(f"the client ended with exit code {exit_code} and no numbers: {complaint}") from None
    if "failed" in numbers:
        raise Failed(str(numbers["failed"]))
    if exit_code != 0:
        raise Failed(f"the client ended with exit code {exit_code}")
    for name, number in numbers.items():
        if not isinstance(number, (int, float)) or not math.isfinite(number) or number < 0:
            raise Failed(f"the client says that {name} is {number}")
        if name.endswith("_per_s") and number == 0:
            raise Failed(f"the client says that {name} is 0")
    return dict(numbers)
