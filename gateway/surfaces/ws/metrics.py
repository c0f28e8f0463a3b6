"""What sockets hold, for Prometheus: counted at each scrape, as nothing else needs the sums."""

from __future__ import annotations

from collections.abc import Iterator

from prometheus_client.core import GaugeMetricFamily, Metric

from gateway.surfaces.ws.commands import Mode
from gateway.surfaces.ws.sessions import Sessions


class SocketMetrics:
    """A collector over the sessions of one server."""

    def __init__(self, sessions: Sessions) -> None:
        self._sessions = sessions

    def collect(self) -> Iterator[Metric]:
        """One reading."""
        credit = dict.fromkeys(Mode, 0)
        for session in self._sessions.all():
            for subscription in session.subscriptions:
                credit[subscription.mode] += subscription.ledger.message_budget
        waiting = self._sessions.waiting_count
        sessions = GaugeMetricFamily(
            "mq_ws_sessions", "Sessions that have a socket, and that wait for their clients.", labels=("state",)
        )
        sessions.add_metric(("attached",), len(self._sessions) - waiting)
        sessions.add_metric(("waiting",), waiting)
        yield sessions
        left = GaugeMetricFamily("mq_ws_credit", "Messages that subscriptions may be sent now.", labels=("mode",))
        for mode, count in credit.items():
            left.add_metric((mode.value,), count)
        yield left
