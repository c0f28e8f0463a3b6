"""Runs the scoreboard and writes docs/benchmarks/peers.{json,md} and charts.

    python -m loadtest.peers [--peers 'mq; kafka'] [--rounds 5] [--quick] [--parts 'works; topics']
    python -m loadtest.peers --resume --minutes 18        again and again, in quiet windows, until all is measured
    python -m loadtest.peers --compare A/peers.json B/peers.json

A round takes every peer in turn, at every durability it has, each with a new server on an empty directory; so peers
that are compared were measured minutes apart, in every round anew. Every result is written to a file of its own at
once (runs.py); the report is made from those files and from nothing else.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from datetime import UTC, datetime
from pathlib import Path

from loadtest.bench.machine import commit, facts, versions
from loadtest.peers.compare import compare
from loadtest.peers.peer import Peer, Unavailable
from loadtest.peers.plan import PARTS, Session, sessions, sizes
from loadtest.peers.registry import peers
from loadtest.peers.report import write_report
from loadtest.peers.runs import OtherPlan, Runs
from loadtest.peers.session import REPOSITORY, Result, session
from loadtest.process import end_when_told

ESTIMATE = """In full, on two cores: about 70 minutes, estimated from quick runs: 35 for five rounds of the works, 10
for 10,000 topics, 10 for a million delayed records, 15 for 5 GiB. Every start says how long the rest may take, by the
sessions that were measured so far. --quick: about 8 minutes a round."""
SHOWN_CHARS = 160


def main() -> None:
    """See the module. Exit code 0 when all was run, 3 when windows are left to be run with --resume."""
    options = _options()
    if options.compare:
        sys.exit(compare(*options.compare))
    end_when_told()
    tools = REPOSITORY / "artifacts" / "peers"
    here, missing = _prepared(options.peers, tools)
    about = {
        "rounds": options.rounds,
        "parts": [part for part in PARTS if part in options.parts],
        "steps": sizes(quick=options.quick),
        "versions": dict(versions()),
        "peers": {name: {"version": version, "about": peer.about} for name, (peer, version) in here.items()},
        "missing": missing,
        "machine": facts(tools),
    }
    window = {
        "started_at": datetime.now(UTC).isoformat(timespec="seconds"),
        "load_average": round(os.getloadavg()[0], 2),
        "commit": commit(),
    }
    runs = Runs(options.runs)
    try:
        (runs.resume if options.resume else runs.begin)(about, window)
    except OtherPlan as error:
        sys.exit(str(error))
    chosen = {name: peer for name, (peer, _) in here.items()}
    wanted = list(sessions(chosen, rounds=options.rounds, parts=runs.parts, quick=options.quick))
    is_complete = _run(wanted, runs, chosen, tools, quick=options.quick, minutes=options.minutes)
    write_report(options.runs, options.out if is_complete else options.runs)
    if not is_complete:
        print(f"the rest: --resume; the report so far: {options.runs / 'peers.md'}")
        sys.exit(3)


def _run(
    wanted: list[Session], runs: Runs, chosen: dict[str, Peer], tools: Path, *, quick: bool, minutes: float
) -> bool:
    """Sessions that are not there yet, while there is time; whether all are there now."""
    left = [one for one in wanted if not runs.is_done(one)]
    expected_min = sum(map(runs.expected_s, left)) / 60
    print(f"{len(wanted) - len(left)} of {len(wanted)} sessions are there; the rest: about {expected_min:.0f} min")
    deadline_s = time.monotonic() + minutes * 60
    for one in left:
        if time.monotonic() + runs.expected_s(one) > deadline_s:
            return False
        began_s = time.monotonic()
        for step, result in session(chosen[one.peer], one.durability, one.part, tools, quick=quick):
            runs.add(one, step, result)
            print(f"round {one.number}: {one.peer}, {one.durability}, {step.name}: {_short(result)}", flush=True)
        runs.complete(one, time.monotonic() - began_s)
        print(f"    took {time.monotonic() - began_s:.0f} s", flush=True)
    return True


def _prepared(names: str, tools: Path) -> tuple[dict[str, tuple[Peer, str]], dict[str, str]]:
    """Peers that can be had, with their versions; those that cannot, with the reason."""
    here = dict[str, tuple[Peer, str]]()
    missing = dict[str, str]()
    tools.mkdir(parents=True, exist_ok=True)
    for name, peer in peers().items():
        if names and name not in names.split("; "):
            continue
        try:
            here[name] = (peer, peer.prepare(tools))
            print(f"{name}: {here[name][1]}", flush=True)
        except Unavailable as error:
            missing[name] = str(error)
            print(f"{name}: left out: {error}", flush=True)
    return here, missing


def _short(result: Result) -> str:
    if "failed" in result:
        return f"FAILED: {str(result['failed'])[:SHOWN_CHARS]}"
    return ", ".join(f"{name} {value:,.1f}" for name, value in result.items() if isinstance(value, (int, float)))


def _parts(text: str) -> list[str]:
    parts = text.split("; ")
    if unknown := [part for part in parts if part not in PARTS]:
        raise argparse.ArgumentTypeError(f"no part {', '.join(unknown)}; there are: {'; '.join(PARTS)}")
    return parts


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=f"{__doc__}\n{ESTIMATE}", formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--peers", default="", help="names, with '; ' between them; all by default")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--parts", type=_parts, default=list(PARTS), help=f"of {'; '.join(PARTS)}; all by default")
    parser.add_argument("--quick", action="store_true", help="small sizes: to see that everything works")
    parser.add_argument("--resume", action="store_true", help="go on: what is in --runs is not run again")
    parser.add_argument("--minutes", type=float, default=float("inf"), help="begin nothing that would end later")
    parser.add_argument("--compare", type=Path, nargs=2, metavar="JSON", help="whether two results agree; runs nothing")
    parser.add_argument("--out", type=Path, default=REPOSITORY / "docs" / "benchmarks")
    parser.add_argument("--runs", type=Path, default=REPOSITORY / "artifacts" / "peers" / "runs")
    return parser.parse_args()


if __name__ == "__main__":
    os.environ.setdefault("PYTHONPATH", str(REPOSITORY))
    main()
