"""Whether two results of the scoreboard agree: the ranges of every row overlap.

Of five rounds each, two ranges of the same thing miss each other by chance once in 126 times; medians lie outside the
other's range far more often, so those would accuse a machine of what dice do. What was measured once has no range: it
is told, not judged.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import orjson

from loadtest.peers.report import LINES, Row, rows_of
from loadtest.stats import Spread, spread


class Difference(NamedTuple):
    """One row of both results."""

    work: str
    row: str
    first: Spread
    second: Spread
    has_ranges: bool  # more than one number on either side

    @property
    def agrees(self) -> bool:
        """Whether the ranges overlap."""
        return self.first.low <= self.second.high and self.second.low <= self.first.high


def differences(first: Path, second: Path) -> Iterator[Difference]:
    """Every row that has numbers in both files."""
    results = [orjson.loads(file.read_bytes())["results"] for file in (first, second)]
    for line in LINES:
        rows = [{(row.peer, row.durability): row for row in rows_of(one, line.step)} for one in results]
        for key, row in rows[0].items():
            other: Row | None = rows[1].get(key)
            values = [list(one.values(line.measure).values()) for one in (row, other) if one is not None]
            if len(values) == 2 and all(values):
                has_ranges = min(map(len, values)) > 1
                yield Difference(line.title, ", ".join(key), spread(values[0]), spread(values[1]), has_ranges)


def compare(first: Path, second: Path) -> int:
    """Print what does not agree and what was measured once; the exit code: 0 when there are rows to judge and
    all of them agree, 1 otherwise."""
    found = list(differences(first, second))
    judged = [one for one in found if one.has_ranges]
    for one in judged:
        if not one.agrees:
            print(f"{one.work}: {one.row}: {_shown(one.first)} against {_shown(one.second)}")
    for one in found:
        if not one.has_ranges:
            print(f"once: {one.work}: {one.row}: {one.first.median:,.4g} against {one.second.median:,.4g}")
    agreed_count = sum(one.agrees for one in judged)
    print(f"{agreed_count} of {len(judged)} rows agree: their ranges overlap")
    return 0 if judged and agreed_count == len(judged) else 1


def _shown(value: Spread) -> str:
    return f"{value.median:,.4g} ({value.low:,.4g} - {value.high:,.4g})"
