"""What grows in each scenario, and which of its numbers is the cost."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import NamedTuple

from loadtest.growth import works
from loadtest.process import Running

FACTORS = (1, 10, 100)


class Scenario(NamedTuple):
    """One plot: `work` at `base` times each factor."""

    name: str
    title: str
    grows: str
    base: int
    work: Callable[[Running, int], Awaitable[works.Numbers]]
    cost: str
    """The number that is plotted, and whose growth is in the table."""

    unit: str

    def sizes(self) -> list[int]:
        """In the order of FACTORS."""
        return [self.base * factor for factor in FACTORS]


_EACH = "ms until shared out, for each member"
_CPU = "µs CPU of the server for each record"

SCENARIOS = (
    Scenario("single", "Single sends", "connections", 1, works.single, "cpu_us", _CPU),
    Scenario("batch", "Batches", "JSON records in a request", 10, works.batch, "cpu_us", _CPU),
    Scenario("stored", "Sending to a log that is there", "records stored", 10_000, works.stored, "cpu_us", _CPU),
    Scenario("consume", "Consuming from the start", "records read", 10_000, works.consume, "cpu_us", _CPU),
    Scenario("push", "Pushing to many", "sockets", 1, works.push, "cpu_us", "µs CPU of the server for each delivery"),
    Scenario("pending", "Delayed records that wait", "records pending", 10_000, works.pending, "cpu_us", _CPU),
    Scenario("topics", "Sending to many topics", "topics", 100, works.topics, "cpu_us", _CPU),
    Scenario("members", "Members of a group joining", "members", 1, works.members, "each_ms", _EACH),
    Scenario("consumers", "Queue mode", "consumers", 1, works.consumers, "cpu_us", _CPU),
    Scenario("idle", "Idle sockets", "sockets", 10, works.idle, "rss_kb", "kB of memory for each socket"),
)  # fmt: skip
