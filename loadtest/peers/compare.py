"""Whether two results of the scoreboard agree.

`compare`, of two whole runs: the ranges of every row overlap. Of five rounds each, two ranges of the same thing miss
each other by chance once in 126 times; medians lie outside the other's range far more often, so those would accuse a
machine of what dice do. Overlap alone says little where ranges are wide: the ratio of the medians stands beside it.
What was measured once has no range: it is told, not judged.

`directions`, of a whole run and a quick one: both say of each compared row whether mq is ahead. Where the whole run
does not tell (its range holds 1), the quick one is not judged; nor are the long workloads, whose quick form has another
size: a restart with 64 MiB says nothing of one with 5 GiB.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import orjson

from loadtest.peers.plan import PARTS, long_workloads
from loadtest.peers.report import LINES, Ratio, limits_of, ratios, rows_of
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


class Direction(NamedTuple):
    """Ours beside one row, in both results."""

    work: str
    row: str
    full: Ratio
    quick: Ratio

    @property
    def agrees(self) -> bool:
        """Whether both medians are on the same side of 1."""
        return (self.full.value.median > 1) == (self.quick.value.median > 1)


def differences(first: Path, second: Path) -> Iterator[Difference]:
    """Every row that has numbers in both files."""
    results = [_read(file)["results"] for file in (first, second)]
    for line in LINES:
        rows = [{row.key: row for row in rows_of(one, line.step)} for one in results]
        for key in rows[0].keys() & rows[1].keys():
            values = [list(one[key].values(line.measure).values()) for one in rows]
            if all(values):
                has_ranges = min(map(len, values)) > 1
                yield Difference(line.title, key, spread(values[0]), spread(values[1]), has_ranges)


def directions_of(full: Path, quick: Path) -> Iterator[Direction]:
    """Every row that is compared with ours in both files, at the same size."""
    other_size = {long_workloads(part, quick=True).name for part in PARTS[1:]}
    found: list[dict[tuple[str, str], Ratio]] = []
    for document in map(_read, (full, quick)):
        compared = ratios(document["results"], limits_of(document))
        found.append(
            {
                (line.title, f"{row.durability}: {row.key}"): ratio
                for line, row, ratio in compared
                if line.step not in other_size
            }
        )
    for (work, row), ratio in found[0].items():
        if (work, row) in found[1]:
            yield Direction(work, row, ratio, found[1][work, row])


def compare(first: Path, second: Path) -> int:
    """Print every row; the exit code: 0 when there are rows to judge and all of them agree, 1 otherwise."""
    found = sorted(differences(first, second))
    judged = [one for one in found if one.has_ranges]
    for one in found:
        verdict = "once" if not one.has_ranges else "agrees" if one.agrees else "DIFFERS"
        times = one.second.median / one.first.median
        print(f"{verdict}: {one.work}: {one.row}: {_shown(one.first)} against {_shown(one.second)}, {times:.2f}x")
    agreed_count = sum(one.agrees for one in judged)
    print(f"{agreed_count} of {len(judged)} rows agree: their ranges overlap")
    return 0 if judged and agreed_count == len(judged) else 1


def directions(full: Path, quick: Path) -> int:
    """Print what is level and what disagrees; the exit code: 0 when there are rows to judge and all agree, else 1."""
    found = list(directions_of(full, quick))
    judged = [one for one in found if not one.full.is_level]
    for one in found:
        if one.full.is_level:
            print(f"level: {one.work}, {one.row}: {_shown(one.full.value)}, quick {_shown(one.quick.value)}")
        elif not one.agrees:
            print(f"DISAGREES: {one.work}, {one.row}: {_shown(one.full.value)}, quick {_shown(one.quick.value)}")
    agreed_count = sum(one.agrees for one in judged)
    print(f"{agreed_count} of {len(judged)} rows agree on who is ahead; {len(found) - len(judged)} are level")
    return 0 if judged and agreed_count == len(judged) else 1


def _read(file: Path) -> Mapping[str, Any]:
    document: Mapping[str, Any] = orjson.loads(file.read_bytes())
    return document


def _shown(value: Spread) -> str:
    if value.low == value.high:
        return f"{value.median:,.4g}"
    return f"{value.median:,.4g} ({value.low:,.4g} - {value.high:,.4g})"
