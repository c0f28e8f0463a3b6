"""What grows in each scenario, and which of its numbers is the cost."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import NamedTuple

from loadtest.growth import workloads
from loadtest.process import Running

FACTORS = (1, 10, 100)


class Scenario(NamedTuple):
    """One plot: `work` at `base` times each factor."""

    name: str
    title: str
    grows: str
    base: int
    work: Callable[[Running, int], Awaitable[workloads.Numbers]]
    cost: str
    """The number that is plotted, and whose growth is in the table."""

    unit: str

    def sizes(self) -> list[int]:
        """In the order of FACTORS."""
        return [self.base * factor for factor in FACTORS]


_EACH = "ms until shared out, for each member"
_CPU = "µs CPU of the server for each record"

SCENARIOS = (
    Scenario("single", "Single sends", "connections", 1, workloads.single, "cpu_us", _CPU),
    Scenario("batch", "Batches", "JSON records in a request", 10, workloads.batch, "cpu_us", _CPU),
    Scenario("stored", "Sending to a log that is there", "records stored", 10_000, workloads.stored, "cpu_us", _CPU),
    Scenario("consume", "Consuming from the start", "records read", 10_000, workloads.consume, "cpu_us", _CPU),
    Scenario(
        "push", "Pushing to many", "sockets", 1, workloads.push, "cpu_us", "µs CPU of the server for each delivery"
    ),
    Scenario("pending", "Delayed records that wait", "records pending", 10_000, workloads.pending, "cpu_us", _CPU),
    Scenario("topics", "Sending to many topics", "topics", 100, workloads.topics, "cpu_us", _CPU),
    Scenario("members", "Members of a group joining", "members", 1, workloads.members, "each_ms", _EACH),
    Scenario("consumers", "Queue mode", "consumers", 1, workloads.consumers, "cpu_us", _CPU),
    Scenario("idle", "Idle sockets", "sockets", 10, workloads.idle, "rss_kb", "kB of memory for each socket"),
)  # fmt: skip
