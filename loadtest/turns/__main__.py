"""All cases, as a table: `python -m loadtest.turns [--quick] [--only TEXT]`. Exit code 1 when a turn was too long.

Milliseconds are of the thread's CPU time; limits are for a machine of slowness 1 (loadtest/slowness.py), which stands
behind them: 60 ms on a machine that is 1.5 times as slow are 40.
"""

from __future__ import annotations

import argparse
import sys

from loadtest.turns.cases import HELD_MS_MAX, LOOKED_MS_MAX, Size
from loadtest.turns.run import Turn, measure


def main() -> None:
    """See the package."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="bodies of a quarter of the size")
    parser.add_argument("--only", default="", help="cases whose route or name contains this")
    options = parser.parse_args()
    turns = measure(
        size=Size.QUICK if options.quick else Size.FULL,
        wanted=lambda case: options.only in f"{case.route} {case.name}",
        tell=_tell,
    )
    print(f"\nThe longest turn of each route; none may take {HELD_MS_MAX:g} ms, of many partitions {LOOKED_MS_MAX:g}\n")
    seen: set[str] = set()
    for turn in turns:
        if turn.route not in seen:
            seen.add(turn.route)
            print(f"{_length(turn)}  {turn.route:24} {turn.case:32} {turn.by}")
    late = [turn for turn in turns if turn.scaled_ms > turn.held_ms_max]
    for turn in late:
        print(f"too long: {_length(turn)}  {turn.route} {turn.case}, of {turn.held_ms_max:g} ms")
    sys.exit(int(bool(late)))


def _tell(turn: Turn) -> None:
    print(f"{_length(turn)}  {turn.route:24} {turn.case:32} {turn.outcome:14} {turn.by}", flush=True)


def _length(turn: Turn) -> str:
    return f"{turn.ms:8.1f} ms / {turn.slowness:.2f} = {turn.scaled_ms:5.1f}"


if __name__ == "__main__":
    main()
