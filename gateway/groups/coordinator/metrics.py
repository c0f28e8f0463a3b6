"""What the coordinator counts, for Prometheus. Lag needs the ends of partitions, so it is read at intervals, not when
somebody asks."""

from __future__ import annotations

from collections.abc import Iterator

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from gateway.groups.coordinator.offsets import LAG_METRIC
from gateway.groups.coordinator.service import Coordinator
from gateway.groups.machines.broadcast import is_lone


def coordinator_metrics(coordinator: Coordinator) -> Iterator[Metric]:
    """One reading."""
    table, stats = coordinator.table, coordinator.stats
    groups = [group for group in table.groups() if not is_lone(group.name)]
    yield GaugeMetricFamily("mq_groups", "Consumer groups.", value=len(groups))
    members = GaugeMetricFamily("mq_group_members", "Members in stream mode.", labels=("group",))
    in_flight = GaugeMetricFamily(
        "mq_inflight", "Records leased or given back in queue mode and not settled.", labels=("group",)
    )
    warnings = GaugeMetricFamily(
        "mq_group_warnings", "Warnings at how a group's partitions are shared out, of groups that have some.",
        labels=("group",),
    )  # fmt: skip
    for group in groups:
        parts = [group, *(table.get(name) for name in table.lone_groups(group.name))]
        members.add_metric((group.name,), sum(len(part.membership.members()) for part in parts))
        in_flight.add_metric((group.name,), group.open_count)
        if count := len({text for part in parts for text in part.membership.rooms.warnings}):
            warnings.add_metric((group.name,), count)
    yield members
    yield in_flight
    yield warnings
    lag = GaugeMetricFamily(
        LAG_METRIC, "Records a group has not consumed, seconds ago.", labels=("group", "topic", "partition")
    )
    lag.samples = coordinator.lags
    yield lag
    omitted = coordinator.omitted_lag_count
    yield GaugeMetricFamily("mq_group_lag_omitted", "Partitions whose lag is not shown.", value=omitted)
    count = len(table.light_offsets)
    yield GaugeMetricFamily("mq_group_light_offsets", "Offsets of groups in light queues.", value=count)
    for name, text, count in (
        ("rebalances", "Generations begun", stats.rebalance_count),
        (
            "expired_members",
            "Members put out for silence, or for not giving up a partition",
            stats.expired_member_count,
        ),
        ("delivered_records", "Records leased in queue mode", stats.delivered_count),
        ("redelivered_records", "Of those, leased before", stats.redelivered_count),
        ("settled_records", "Records settled in queue mode", stats.settled_count),
        ("retried_records", "Records sent to a retry topic through the timer", stats.retry_count),
        ("dead_letters", "Records sent to a dead-letter topic", stats.dead_letter_count),
        ("lost_records", "Records that retention took before a group had consumed them", stats.lost_count),
        ("events", "Events written", coordinator.log.event_count),
        ("event_appends", "Appends of events", coordinator.log.append_count),
        ("snapshots", "Snapshots saved", coordinator.log.snapshot_count),
    ):
        yield CounterMetricFamily(f"mq_group_{name}", f"{text} since start.", value=count)
