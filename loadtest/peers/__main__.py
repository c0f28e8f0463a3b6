"""Runs the scoreboard and writes docs/benchmarks/peers.{json,md} and charts.

    python -m loadtest.peers [--peers 'mq; kafka'] [--rounds 5] [--quick] [--parts 'workloads; topics']
    python -m loadtest.peers --resume --minutes 18        again and again, in quiet windows, until all is measured
    python -m loadtest.peers --compare A/peers.json B/peers.json
    python -m loadtest.peers --direction FULL/peers.json QUICK/peers.json

For each durability all servers are started once and warmed; then round by round each work is done by every row in turn
(fleet.py). The long workloads come last, each with a server of its own. Every result is written to a file of its own at
once (runs.py); the report is made from those files and from nothing else.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path

from loadtest.bench.machine import commit, facts, versions
from loadtest.peers.compare import compare, directions
from loadtest.peers.fleet import Fleet
from loadtest.peers.peer import Durability, Peer, Unavailable
from loadtest.peers.plan import FLEET_START_S, PARTS, QUICK_PARTS, Turn, long_turns, sizes, turns
from loadtest.peers.registry import MODULES, peer_of
from loadtest.peers.report import write_report
from loadtest.peers.runs import OtherPlan, Runs
from loadtest.peers.session import REPOSITORY, Result, long_result, restart_result
from loadtest.process import end_when_told

QUICK_ROUNDS, FULL_ROUNDS = 1, 5
IDLE_S = 5.0
SHOWN_CHARS = 160
SHOWN = ("records_per_s", "p50_ms", "p99_ms", "made_per_s", "accepted_per_s", "first_record_ms")


class OutOfTime(Exception):
    """The next turn would end after the time that was given."""


class Clock:
    """The time that a window has."""

    def __init__(self, minutes: float) -> None:
        self._deadline_s = time.monotonic() + minutes * 60

    def check(self, needed_s: float) -> None:
        """Raises OutOfTime."""
        if time.monotonic() + needed_s > self._deadline_s:
            raise OutOfTime


def main() -> None:
    """See the module. Exit code 0 when all was run, 3 when turns are left to be run with --resume."""
    options = options_of(sys.argv[1:])
    if options.compare:
        sys.exit(compare(*options.compare))
    if options.direction:
        sys.exit(directions(*options.direction))
    end_when_told()
    tools = REPOSITORY / "artifacts" / "peers"
    peers, versions_of, missing = _prepared(options.peers, tools)
    rounds = options.rounds or (QUICK_ROUNDS if options.quick else FULL_ROUNDS)
    machine = facts(tools)
    about = {
        "rounds": rounds,
        "quick": options.quick,
        "parts": options.parts,
        "steps": sizes(options.parts, quick=options.quick),
        "versions": dict(versions()),
        "peers": {name: _about(peer, versions_of[name]) for name, peer in peers.items()},
        "missing": missing,
        "machine": machine,
    }
    window = {
        "started_at": datetime.now(UTC).isoformat(timespec="seconds"),
        "load_average": machine["load_average"],
        "slowness": machine["slowness"],
        "commit": commit(),
    }
    runs = Runs(options.runs)
    try:
        (runs.resume if options.resume else runs.begin)(about, window)
    except OtherPlan as error:
        sys.exit(str(error))
    clock = Clock(options.minutes)
    try:
        if "workloads" in runs.parts:
            for durability in Durability:
                run_fleet(peers, list(turns(peers, durability, rounds=rounds, quick=options.quick)), runs, tools, clock)
        run_long(peers, list(long_turns(peers, runs.parts, quick=options.quick)), runs, tools, clock)
    except OutOfTime:
        write_report(options.runs, options.runs)
        print(f"the rest: --resume; the report so far: {options.runs / 'peers.md'}")
        sys.exit(3)
    write_report(options.runs, options.out)


def run_fleet(peers: Mapping[str, Peer], wanted: Sequence[Turn], runs: Runs, tools: Path, clock: Clock) -> None:
    """The turns of one durability that are not there yet. Raises OutOfTime."""
    left = [turn for turn in wanted if not runs.is_done(turn)]
    if not left:
        return
    durability = left[0].row.level.durability
    expected_min = sum(map(runs.expected_s, left)) / 60
    print(
        f"{durability}: {len(left)} of {len(wanted)} results are to come, in about {expected_min:.0f} min", flush=True
    )
    clock.check(FLEET_START_S + runs.expected_s(left[0]))
    began_s = time.monotonic()
    with Fleet({name: peers[name] for name in {turn.row.peer: None for turn in wanted}}, durability, tools) as fleet:
        print(f"{durability}: all servers are up and warm after {time.monotonic() - began_s:.0f} s", flush=True)
        runs.add_idle(durability, fleet.idle(IDLE_S))
        for turn in left:
            clock.check(runs.expected_s(turn))
            _measured(turn, runs, fleet.result)


def run_long(peers: Mapping[str, Peer], wanted: Sequence[Turn], runs: Runs, tools: Path, clock: Clock) -> None:
    """Turns with a server of their own that are not there yet. Raises OutOfTime."""
    for turn in wanted:
        if not runs.is_done(turn):
            clock.check(runs.expected_s(turn))
            _measured(turn, runs, lambda turn: _long(peers[turn.row.peer], turn, tools))


def _long(peer: Peer, turn: Turn, tools: Path) -> Result:
    run = restart_result if turn.step.name == "restart" else long_result
    return run(peer, turn.row, tools, turn.step)


def _measured(turn: Turn, runs: Runs, run: Callable[[Turn], Result]) -> None:
    """Run a turn, keep and tell what it came to."""
    began_s = time.monotonic()
    result = {**run(turn), "turn_s": time.monotonic() - began_s}
    runs.add(turn, result)
    row = turn.row
    print(
        f"round {turn.number}: {turn.step.name}: {row.peer}, {row.level.name}, {row.client}: {_short(result)}",
        flush=True,
    )


def _prepared(names: Sequence[str], tools: Path) -> tuple[dict[str, Peer], dict[str, str], dict[str, str]]:
    """Peers that can be had; their versions; those that cannot be had, with the reason."""
    here = dict[str, Peer]()
    found = dict[str, str]()
    missing = dict[str, str]()
    tools.mkdir(parents=True, exist_ok=True)
    for name in names:
        peer = peer_of(name)
        try:
            found[name] = peer.prepare(tools)
            here[name] = peer
            print(f"{name}: {found[name]}", flush=True)
        except Unavailable as error:
            missing[name] = str(error)
            print(f"{name}: left out: {error}", flush=True)
    return here, found, missing


def _about(peer: Peer, version: str) -> dict[str, object]:
    """What the report says of a peer."""
    levels = {level.name: {"durability": level.durability, "about": level.about} for level in peer.levels}
    return {"version": version, "about": peer.about, "levels": levels, "is_limit": peer.is_limit}


def _short(result: Result) -> str:
    if "failed" in result:
        return f"FAILED: {str(result['failed'])[:SHOWN_CHARS]}"
    shown = ", ".join(f"{name} {result[name]:,.1f}" for name in SHOWN if name in result)
    return f"{shown}; {result.get('limit', '')}; {result['turn_s']:.1f} s"


def _parts(text: str) -> list[str]:
    parts = text.split("; ")
    if unknown := [part for part in parts if part not in PARTS]:
        raise argparse.ArgumentTypeError(f"no part {', '.join(unknown)}; there are: {'; '.join(PARTS)}")
    return [part for part in PARTS if part in parts]


def _names(text: str) -> list[str]:
    names = text.split("; ")
    if unknown := [name for name in names if name not in MODULES]:
        raise argparse.ArgumentTypeError(f"no peer {', '.join(unknown)}; there are: {'; '.join(MODULES)}")
    return names


def options_of(arguments: Sequence[str]) -> argparse.Namespace:
    """What the command line asks for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--peers", type=_names, default=list(MODULES), help="names, with '; ' between them; all by default"
    )
    parser.add_argument("--rounds", type=int, default=0, help=f"{FULL_ROUNDS} by default, {QUICK_ROUNDS} with --quick")
    parser.add_argument(
        "--parts", type=_parts, help=f"of {'; '.join(PARTS)}; all by default, with --quick all but the restart"
    )
    parser.add_argument("--quick", action="store_true", help="short steps, one round: to see that everything works")
    parser.add_argument("--resume", action="store_true", help="go on: what is in --runs is not run again")
    parser.add_argument("--minutes", type=float, default=float("inf"), help="begin nothing that would end later")
    parser.add_argument("--compare", type=Path, nargs=2, metavar="JSON", help="whether two results agree; runs nothing")
    parser.add_argument(
        "--direction", type=Path, nargs=2, metavar=("FULL", "QUICK"), help="whether both say who is ahead; runs nothing"
    )
    parser.add_argument("--out", type=Path, help="docs/benchmarks; artifacts/peers/quick with --quick")
    parser.add_argument("--runs", type=Path, help="artifacts/peers/runs; artifacts/peers/quick-runs with --quick")
    options = parser.parse_args(arguments)
    options.parts = options.parts or list(QUICK_PARTS if options.quick else PARTS)
    artifacts = REPOSITORY / "artifacts" / "peers"
    options.out = options.out or (artifacts / "quick" if options.quick else REPOSITORY / "docs" / "benchmarks")
    options.runs = options.runs or artifacts / ("quick-runs" if options.quick else "runs")
    return options


if __name__ == "__main__":
    main()
