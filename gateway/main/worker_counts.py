"""What a worker has counted since it last told, and adding it to the counts of the store's process. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from collections.abc import Set as AbstractSet
from typing import Any

from gateway.api.producer import Producer
from gateway.surfaces.http.context import GatewayStats, RouteStats

_PRODUCED = ("record_count", "byte_count", "scheduled_count", "duplicate_count")
_ANSWERED = (
    "fetched_record_count", "fetched_byte_count", "malformed_request_count", "connection_refused_count",
    "address_refused_count", "body_refused_count", "slow_close_count",
)  # fmt: skip


_NONE = RouteStats()


class Counts:
    """The counts of a worker. `take`, tell, and `put_back` when it could not be told."""

    def __init__(self, stats: GatewayStats, producer: Producer, routes: AbstractSet[str]) -> None:
        """`routes`: those that it answers by itself, but for what it passes on nevertheless (`passed_on`)."""
        self._stats = stats
        self._producer = producer
        self._routes = routes
        self._passed_on: dict[str, RouteStats] = {}
        self._told: dict[str, float] = {}
        self._before: dict[str, float] = {}

    def take(self) -> dict[str, Any]:
        """What has been added since it was last taken, as JSON fields, and what there is now."""
        now = self._flat()
        self._before, self._told = self._told, now
        added = {name: rise for name, count in now.items() if (rise := count - self._before.get(name, 0))}
        stats = self._stats
        return {"added": added, "connections": stats.connection_count, "long_polls": stats.long_poll_count}

    def put_back(self) -> None:
        """What was taken last was not told."""
        self._told = self._before

    def passed_on(self, route: str, status: int, elapsed_s: float) -> None:
        """A request of one of its routes is counted by the process that has answered it."""
        self._passed_on.setdefault(route, RouteStats()).answered(status, elapsed_s)

    def _flat(self) -> dict[str, float]:
        flat: dict[str, float] = {f"producer/{name}": getattr(self._producer, name) for name in _PRODUCED}
        flat |= {f"stats/{name}": getattr(self._stats, name) for name in _ANSWERED}
        flat |= {f"topic/{topic}": count for topic, count in self._producer.record_counts.items()}
        for name in self._routes & self._stats.routes.keys():
            all_, not_own = self._stats.routes[name], self._passed_on.get(name, _NONE)
            for status, count in all_.statuses.items():
                flat[f"status/{name}/{status}"] = count - not_own.statuses.get(status, 0)
            for at, (count, other) in enumerate(zip(all_.latency_counts, not_own.latency_counts, strict=True)):
                flat[f"bucket/{name}/{at}"] = count - other
            flat[f"seconds/{name}"] = all_.latency_sum_s - not_own.latency_sum_s
        return flat


def add(added: Mapping[str, float], stats: GatewayStats, producer: Producer) -> None:
    """Add what a worker has counted. Raises ValueError, AttributeError or IndexError for what is not understood."""
    for name, count in added.items():
        kind, _, rest = name.partition("/")
        if kind == "topic":
            producer.count_by_topic(rest, max(int(count), 0))  # one that was made again has begun anew
        elif kind in ("producer", "stats"):
            owner: Producer | GatewayStats = producer if kind == "producer" else stats
            setattr(owner, rest, getattr(owner, rest) + int(count))
        else:
            route_name, _, which = rest.partition("/")
            route = stats.routes.setdefault(route_name, RouteStats())
            if kind == "status":
                route.statuses[int(which)] = route.statuses.get(int(which), 0) + int(count)
            elif kind == "bucket":
                route.latency_counts[int(which)] += int(count)
            elif kind == "seconds":
                route.latency_sum_s += count
            else:
                raise ValueError(f"a count of an unknown kind: {name}")
