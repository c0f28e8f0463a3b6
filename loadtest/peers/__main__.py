"""Runs the scoreboard and writes docs/benchmarks/peers.{json,md} and charts.

    python -m loadtest.peers [--peers mq,kafka] [--rounds 5] [--quick] [--restart-bytes 5368709120] [--out DIR]

A round takes every peer in turn, at every durability it has, each with a new server on an empty directory; so peers
that are compared were measured minutes apart, in every round anew. Every result is written to a file of its own at
once (artifacts/peers/runs); the report is made from those files and from nothing else.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

import orjson

from loadtest.bench.machine import facts, versions
from loadtest.bench.wrk_client import WrkClient
from loadtest.peers.peer import Durability, Peer, Unavailable
from loadtest.peers.plan import Step, plan
from loadtest.peers.registry import peers
from loadtest.peers.report import write_report
from loadtest.peers.servers import Died, Server, Usage

REPOSITORY = Path(__file__).resolve().parents[2]
DRIVE_TIMEOUT_S = 300.0


class Failed(Exception):
    """A step that yields no number."""


def main() -> None:
    """See the module."""
    options = _options()
    tools = REPOSITORY / "artifacts" / "peers"
    runs = options.runs
    shutil.rmtree(runs, ignore_errors=True)
    runs.mkdir(parents=True)
    wanted = {name: peer for name, peer in peers().items() if not options.peers or name in options.peers.split("; ")}
    here = dict[str, tuple[Peer, str]]()
    missing = dict[str, str]()
    for name, peer in wanted.items():
        try:
            here[name] = (peer, peer.prepare(tools))
            print(f"{name}: {here[name][1]}", flush=True)
        except Unavailable as error:
            missing[name] = str(error)
            print(f"{name}: left out: {error}", flush=True)
    about = {
        "started_at": datetime.now(UTC).isoformat(timespec="seconds"),
        "machine": facts(runs),
        "versions": dict(versions()),
        "rounds": options.rounds,
        "peers": {name: {"version": version, "about": peer.about} for name, (peer, version) in here.items()},
        "missing": missing,
        "steps": {step.name: dict(step.options) for step in plan(quick=options.quick)},
    }
    (runs / "about.json").write_bytes(orjson.dumps(about, option=orjson.OPT_INDENT_2))
    for number in range(options.rounds):
        for name, (peer, _) in here.items():
            for durability in peer.durabilities:
                for step, result in session(peer, durability, tools, quick=options.quick):
                    file = runs / f"{number}-{name.replace(' ', '_')}-{durability}-{step.name}.json"
                    shown = {"round": number, "peer": name, "durability": durability, "step": step.name, **result}
                    file.write_bytes(orjson.dumps(shown))
                    print(f"round {number}: {name}, {durability}, {step.name}: {_short(result)}", flush=True)
    if options.restart_bytes:
        for name, (peer, _) in here.items():
            result = restart(peer, tools, options.restart_bytes)
            shown = {"round": 0, "peer": name, "durability": Durability.UNSYNCED, "step": "restart", **result}
            (runs / f"0-{name.replace(' ', '_')}-restart.json").write_bytes(orjson.dumps(shown))
            print(f"{name}, restart: {_short(result)}", flush=True)
    write_report(runs, options.out)


def session(
    peer: Peer, durability: Durability, tools: Path, *, quick: bool
) -> Iterator[tuple[Step, dict[str, object]]]:
    """All steps with one server. A step that fails has a reason instead of numbers; a dead server fails the rest."""
    data = _empty(tools / "data")
    steps = [step for step in plan(quick=quick) if step.suits(peer)]
    left = list(steps)
    try:
        with peer.serve(tools, data, durability) as server:
            sent_count = 0
            for step in steps:
                server.check()
                options = dict(step.options)
                if step.name == "consume":
                    options["count"] = sent_count
                result = step_result(peer, server, step, options)
                if step.name == "batched":
                    sent_count = int(float(str(result.get("records", 0))))
                left.remove(step)
                yield step, result
    except (Died, Unavailable, OSError) as error:
        for step in left:
            yield step, {"failed": str(error)[:1000]}
    finally:
        shutil.rmtree(data, ignore_errors=True)


def step_result(peer: Peer, server: Server, step: Step, options: dict[str, float]) -> dict[str, object]:
    """Numbers of a step with what the server used for it, or `{"failed": why}`."""
    try:
        before = server.usage()
        if step.name == "single":
            numbers = _single(peer, server, options)
        else:
            if options.get("count") == 0:
                raise Failed("nothing was sent that could be read")
            numbers = _driven(peer.name, server.endpoint, step, options)
        server.check()
        return {**numbers, **_usage(before, server.usage(), numbers)}
    except (Failed, Died) as error:
        return {"failed": str(error)[:1000]}


def restart(peer: Peer, tools: Path, byte_count: int) -> dict[str, object]:
    """Fill, kill -9, start again: until the first record can be read (ms)."""
    data = _empty(tools / "data")
    try:
        with peer.serve(tools, data, Durability.UNSYNCED) as server:
            _driven(peer.name, server.endpoint, Step("fill", {}), {"byte_count": byte_count})
            server.kill()
        started_s = time.perf_counter()
        with peer.serve(tools, data, Durability.UNSYNCED) as server:
            up_s = time.perf_counter() - started_s
            _driven(peer.name, server.endpoint, Step("first_record", {}), {}, topic="fill")
            return {
                "up_ms": up_s * 1000,
                "first_record_ms": (time.perf_counter() - started_s) * 1000,
                "bytes": byte_count,
            }
    except (Failed, Died, OSError) as error:
        return {"failed": str(error)[:1000]}
    finally:
        shutil.rmtree(data, ignore_errors=True)


def _driven(
    peer_name: str, endpoint: str, step: Step, options: dict[str, float], *, topic: str | None = None
) -> dict[str, float]:
    command = [sys.executable, "-m", "loadtest.peers.drive", peer_name, endpoint, step.work]
    command += [topic or step.topic, orjson.dumps(options).decode()]
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, check=False, timeout=DRIVE_TIMEOUT_S, cwd=REPOSITORY
        )
    except subprocess.TimeoutExpired:
        raise Failed(f"not done after {DRIVE_TIMEOUT_S:g} s") from None
    lines = done.stdout.strip().splitlines()
    if not lines:
        raise Failed(f"the client ended with exit code {done.returncode}: {done.stderr[-500:]}")
    numbers: dict[str, float] = orjson.loads(lines[-1])
    if "failed" in numbers:
        raise Failed(str(numbers["failed"]))
    return numbers


def _single(peer: Peer, server: Server, options: dict[str, float]) -> dict[str, float]:
    wrk = WrkClient.find()
    request = peer.single("single")
    if wrk is None:
        raise Failed("wrk is not installed (apt-get install wrk)")
    assert request is not None
    _driven(peer.name, server.endpoint, Step("create", {}), {}, topic="single")
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


def _usage(before: Usage, after: Usage, numbers: dict[str, float]) -> dict[str, float]:
    cpu_s = after.cpu_s - before.cpu_s
    used = {"server_cpu_s": cpu_s, "server_peak_rss_mb": after.peak_rss_bytes / 1e6}
    if numbers.get("records"):
        used["server_cpu_s_per_million"] = cpu_s / numbers["records"] * 1e6
    return used


def _empty(directory: Path) -> Path:
    shutil.rmtree(directory, ignore_errors=True)
    directory.mkdir(parents=True)
    return directory


def _short(result: dict[str, object]) -> str:
    if "failed" in result:
        return f"FAILED: {str(result['failed'])[:160]}"
    return ", ".join(f"{name} {value:,.1f}" for name, value in result.items() if isinstance(value, (int, float)))


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--peers", default="", help="names, with '; ' between them; all by default")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--quick", action="store_true", help="small sizes: to see that everything works")
    parser.add_argument("--restart-bytes", type=int, default=0, help="also: kill -9 with a log of that size")
    parser.add_argument("--out", type=Path, default=REPOSITORY / "docs" / "benchmarks")
    parser.add_argument("--runs", type=Path, default=REPOSITORY / "artifacts" / "peers" / "runs")
    return parser.parse_args()


if __name__ == "__main__":
    os.environ.setdefault("PYTHONPATH", str(REPOSITORY))
    main()
