"""Runs the attacks and writes what came of them; exit code 1 when one succeeded. See the package."""

from __future__ import annotations

import argparse
import sys
import tempfile
from datetime import UTC, datetime
from pathlib import Path

from loadtest.attack.attack import MiB, Row
from loadtest.attack.catalogue import ATTACKS
from loadtest.attack.report import turn, write
from loadtest.attack.run import Run
from loadtest.bench.machine import commit, facts
from loadtest.process import end_when_told

REPOSITORY = Path(__file__).resolve().parents[2]


def main() -> None:
    """See the package."""
    options = _options()
    chosen = [one for one in ATTACKS if not options.only or one.name in options.only.split("; ")]
    if not chosen:
        sys.exit(f"no attack is named {options.only}; there are: {'; '.join(one.name for one in ATTACKS)}")
    end_when_told()
    is_whole = not options.only and not options.short
    out = options.out or REPOSITORY / ("docs" if is_whole else "artifacts/attack")  # a part is no result
    about = {
        "started_at": datetime.now(UTC).isoformat(timespec="seconds"),
        "commit": commit(),
        "is_short": options.short,
        "machine": facts(options.dir),
    }
    with tempfile.TemporaryDirectory(prefix="mq-attack-", dir=options.dir) as directory:
        run = Run(Path(directory), is_short=options.short, tell=tell)
        run.attack(chosen)
    write(out, about, run.rows, run.curves)
    bad = [row.name for row in run.rows if not row.is_good]
    print(f"{len(run.rows) - len(bad)} of {len(run.rows)} attacks held; {out}", flush=True)
    if bad:
        sys.exit(f"failed: {'; '.join(bad)}")


def tell(row: Row) -> None:
    """A line, and one for each thing that did not hold."""
    figures = row.figures
    if figures is None:
        numbers = "no numbers"
    else:
        back = "" if figures.back_bytes is None else f", {figures.back_bytes / MiB:,.0f} after {figures.back_s:.0f} s"
        late = "" if figures.late_ms is None else f", late {figures.late_ms:,.0f} ms"
        numbers = (
            f"memory {figures.start_bytes / MiB:,.0f} to {figures.worst_bytes / MiB:,.0f} MiB{back}; health "
            f"{figures.health_ms:,.0f} ms, gap {figures.gap_ms:,.0f} ms{late}; turn "
            f"{turn(figures.turn_ms, figures.slowness)}; {figures.handles} handles"
        )
    print(
        f"{'good' if row.is_good else 'FAILED'}: {row.name}: {row.ended_s - row.began_s:.1f} s; {numbers}", flush=True
    )
    print(f"    {', '.join(f'{what} {count}' for what, count in row.seen.items())}", flush=True)
    for problem in row.problems:
        print(f"    {problem}", flush=True)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m loadtest.attack", description="Attacks on a server of its own.")
    parser.add_argument("--only", default="", help="names, with '; ' between them")
    parser.add_argument("--short", action="store_true", help="small numbers: seconds, as a test")
    parser.add_argument("--out", type=Path, help="a directory of documents; default: docs, or artifacts for a part")
    parser.add_argument("--dir", type=Path, default=Path("/var/tmp"), help="where data is put; a disk, not memory")
    return parser.parse_args()


if __name__ == "__main__":
    main()
