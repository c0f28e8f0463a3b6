"""One session: a server, its clients, and what each step came to. A step yields numbers or a reason, never both.

{"records": 410000, "records_per_s": 101234.5, "client_cpu_s": 2.1, "server_cpu_s": 1.4, ...}
{"failed": "java ended with exit code -9; its log ends with: ..."}
"""

from __future__ import annotations

import asyncio
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from pathlib import Path

import orjson

from loadtest.bench.request import RunFailed
from loadtest.bench.wrk_client import WrkClient
from loadtest.peers.peer import Durability, Peer, Unavailable
from loadtest.peers.plan import STEP_TIMEOUT_S, Step, steps
from loadtest.peers.servers import Died, Server, Usage

REPOSITORY = Path(__file__).resolve().parents[2]
REASON_CHARS_MAX = 1000

Result = Mapping[str, object]


class Failed(Exception):
    """A step that yields no number."""


def session(
    peer: Peer, durability: Durability, part: str, tools: Path, *, quick: bool
) -> Iterator[tuple[Step, Result]]:
    """All steps of a part with one server. A dead server fails the step it died in, and all that were to follow."""
    data = empty(tools / "data")
    left = list(steps(part, peer, quick=quick))
    try:
        if part == "restart":
            for step in list(left):
                left.remove(step)
                yield step, restart(peer, durability, tools, step)
            return
        with peer.serve(tools, data, durability) as server:
            sent_count = 0
            for step in list(left):
                server.check()
                options = dict(step.options)
                if step.work == "consume":
                    options["count"] = sent_count
                result = step_result(peer, server, step, options)
                if step.name == "batched":
                    sent_count = int(float(str(result.get("records", 0))))
                left.remove(step)
                yield step, result
    except (Died, Unavailable, OSError) as error:
        for step in left:
            yield step, _failed(error)
    finally:
        shutil.rmtree(data, ignore_errors=True)


def step_result(peer: Peer, server: Server, step: Step, options: dict[str, float]) -> Result:
    """Numbers of a step with what the server used for it, or `{"failed": why}`."""
    try:
        before = server.usage()
        if step.work == "single":
            numbers = _single(peer, server, options)
        else:
            if options.get("count") == 0:
                raise Failed("nothing was sent that could be read")
            numbers = driven(peer.name, server.endpoint, step, options)
        server.check()
        return {**numbers, **_usage(before, server.usage(), numbers)}
    except (Failed, Died, RunFailed) as error:
        return _failed(error)


def _failed(error: Exception) -> Result:
    """The reason as it is reported: where the checkout lies is nobody's business."""
    return {"failed": str(error).replace(f"{REPOSITORY}/", "")[:REASON_CHARS_MAX]}


def restart(peer: Peer, durability: Durability, tools: Path, step: Step) -> Result:
    """Fill, kill -9, start again: until the first record can be read (ms)."""
    data = empty(tools / "data")
    fill = Step("fill", "fill", timeout_s=step.timeout_s)
    try:
        with peer.serve(tools, data, durability) as server:
            filled = driven(peer.name, server.endpoint, fill, dict(step.options))
            server.kill()
        started_s = time.perf_counter()
        with peer.serve(tools, data, durability) as server:
            up_s = time.perf_counter() - started_s
            driven(peer.name, server.endpoint, Step("first_record", "first_record", topic="fill"), {})
            return {
                "up_ms": up_s * 1000,
                "first_record_ms": (time.perf_counter() - started_s) * 1000,
                "fill_mb_per_s": filled["mb_per_s"],
                "server_peak_rss_mb": server.usage().peak_rss_bytes / 1e6,
            }
    except (Failed, Died, OSError) as error:
        return _failed(error)
    finally:
        shutil.rmtree(data, ignore_errors=True)


def driven(peer_name: str, endpoint: str, step: Step, options: Mapping[str, float]) -> dict[str, float]:
    """What the client process says (drive.py). Raises Failed."""
    command = [sys.executable, "-m", "loadtest.peers.drive", peer_name, endpoint, step.work]
    command += [step.topic or step.name, orjson.dumps(options).decode()]
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, check=False, timeout=step.timeout_s, cwd=REPOSITORY
        )
    except subprocess.TimeoutExpired:
        raise Failed(f"not done after {step.timeout_s:g} s") from None
    lines = done.stdout.strip().splitlines()
    if not lines:
        raise Failed(f"the client ended with exit code {done.returncode}: {done.stderr[-500:]}")
    numbers: dict[str, float] = orjson.loads(lines[-1])
    if "failed" in numbers:
        raise Failed(str(numbers["failed"]))
    return numbers


def empty(directory: Path) -> Path:
    """That directory, made anew."""
    shutil.rmtree(directory, ignore_errors=True)
    directory.mkdir(parents=True)
    return directory


def _single(peer: Peer, server: Server, options: dict[str, float]) -> dict[str, float]:
    wrk = WrkClient.find()
    request = peer.single("single")
    if wrk is None:
        raise Failed("wrk is not installed (apt-get install wrk)")
    assert request is not None
    driven(peer.name, server.endpoint, Step("single", "create", timeout_s=STEP_TIMEOUT_S), {})
    load = asyncio.run(
        wrk.drive(
            peer.url(server.endpoint),
            request,
            connections=int(options["connections"]),
            duration_s=options["duration_s"],
        )
    )
    if load.error_count:
        raise Failed(f"{load.error_count} of {load.request_count} requests failed")
    return {
        "records": load.request_count,
        "records_per_s": load.request_count / load.duration_s,
        "p50_ms": load.p50_ms,
        "p99_ms": load.p99_ms,
    }


def _usage(before: Usage, after: Usage, numbers: Mapping[str, float]) -> dict[str, float]:
    cpu_s = after.cpu_s - before.cpu_s
    used = {"server_cpu_s": cpu_s, "server_peak_rss_mb": after.peak_rss_bytes / 1e6}
    if numbers.get("records"):
        used["server_cpu_s_per_million"] = cpu_s / numbers["records"] * 1e6
    return used
