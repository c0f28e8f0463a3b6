"""The Prometheus collector: reads the plain integers that the parts keep, at each scrape."""

from __future__ import annotations

import logging
import os
import resource
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import fields
from itertools import accumulate

from prometheus_client import CollectorRegistry
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric

from gateway.api.producer import Producer
from gateway.api.trail import TrailStats
from gateway.cluster.move_stats import OUTCOMES, PAUSE_BOUNDS_MS
from gateway.cluster.node import ClusterNode
from gateway.codec.texts import TextCache
from gateway.main.all_timers import AllTimers
from gateway.main.recurring_shards import AllRecurring
from gateway.recurring.service import RecurringSchedules
from gateway.settings.limits import Limits
from gateway.surfaces.http.context import LATENCY_BOUNDS_S, GatewayStats
from store import Store
from timer.metrics import LATENESS_BOUNDS_MS
from timer.service import TimerService

log = logging.getLogger(__name__)

Source = Callable[[], Iterable[Metric]]


class Collector:
    """All metrics of one server; `sources` are the parts below the gateway."""

    def __init__(self, stats: GatewayStats, producer: Producer, sources: Iterable[Source] = ()) -> None:
        self._stats = stats
        self._producer = producer
        self._sources = tuple(sources)

    def collect(self) -> Iterator[Metric]:
        """One reading of everything."""
        yield from self._requests()
        yield from self._records()
        yield from self._sockets()
        yield from self._kafka()
        for source in self._sources:
            yield from source()

    def _requests(self) -> Iterator[Metric]:
        requests = CounterMetricFamily("mq_http_requests", "Requests answered.", labels=("route", "code"))
        seconds = HistogramMetricFamily(
            "mq_http_request_seconds", "Time from a request's headers to its answer.", labels=("route",)
        )
        for name, route in self._stats.routes.items():
            for status, count in route.statuses.items():
                requests.add_metric((name, str(status)), count)
            seconds.add_metric((name,), histogram_buckets(LATENCY_BOUNDS_S, route.latency_counts), route.latency_sum_s)
        yield requests
        yield seconds
        yield CounterMetricFamily(
            "mq_http_malformed_requests", "Requests that were not HTTP.", value=self._stats.malformed_request_count
        )

    def _kafka(self) -> Iterator[Metric]:
        stats = self._stats.kafka
        requests = CounterMetricFamily("mq_kafka_requests", "Requests of Kafka clients answered.", labels=("api",))
        for name, count in stats.requests.items():
            requests.add_metric((name,), count)
        yield requests
        yield GaugeMetricFamily("mq_kafka_connections", "Kafka clients connected now.", value=stats.connection_count)
        yield CounterMetricFamily(
            "mq_kafka_malformed", "Connections ended because of what came on them.", value=stats.malformed_count
        )
        yield CounterMetricFamily(
            "mq_kafka_fetched_bytes", "Bytes fetched by Kafka clients.", value=stats.fetched_byte_count
        )

    def _records(self) -> Iterator[Metric]:
        producer = self._producer
        records = CounterMetricFamily("mq_produce_records", "Records accepted, delayed ones too.", labels=("topic",))
        for topic, count in producer.record_counts.items():
            records.add_metric((topic,), count)
        yield records
        yield CounterMetricFamily("mq_produce_bytes", "Bytes of accepted batches.", value=producer.byte_count)
        yield CounterMetricFamily("mq_produce_delayed_records", "Delayed records.", value=producer.scheduled_count)
        yield CounterMetricFamily(
            "mq_produce_duplicate_records", "Records sent again and not stored again.", value=producer.duplicate_count
        )
        stats = self._stats
        consumed = CounterMetricFamily("mq_consume_records", "Records delivered to clients.", labels=("way",))
        consumed.add_metric(("http",), stats.fetched_record_count)
        consumed.add_metric(("socket",), stats.ws_sent_message_count)
        consumed.add_metric(("kafka",), stats.kafka.fetched_record_count)
        yield consumed
        yield CounterMetricFamily("mq_fetch_records", "Records pulled over HTTP.", value=stats.fetched_record_count)
        yield CounterMetricFamily("mq_fetch_bytes", "Bytes pulled over HTTP.", value=stats.fetched_byte_count)
        yield GaugeMetricFamily("mq_long_polls", "Long polls waiting now.", value=stats.long_poll_count)
        yield GaugeMetricFamily("mq_streams", "Event streams open now.", value=stats.stream_count)
        yield GaugeMetricFamily("mq_receiving_bytes", "Request bodies in memory now.", value=stats.receiving_bytes)
        yield CounterMetricFamily(
            "mq_bodies_refused", "Bodies not read, for there was too much of others.", value=stats.body_refused_count
        )
        answers = stats.answers
        yield GaugeMetricFamily("mq_answering_bytes", "Answers in memory now, not yet taken.", value=answers.held_bytes)
        yield CounterMetricFamily(
            "mq_answers_refused", "Answers not sent, for there was too much of others.", value=answers.refused_count
        )
        yield CounterMetricFamily(
            "mq_slow_connections_closed",
            "Connections ended because their client took no byte of an answer.",
            value=stats.slow_close_count,
        )
        yield GaugeMetricFamily("mq_connections", "Connections open now.", value=stats.connection_count)
        refused = CounterMetricFamily(
            "mq_connections_refused",
            "Connections refused, for there were too many: of one address, or in all.",
            labels=("limit",),
        )
        refused.add_metric(("address",), stats.address_refused_count)
        refused.add_metric(("all",), stats.connection_refused_count - stats.address_refused_count)
        yield refused

    def _sockets(self) -> Iterator[Metric]:
        stats = self._stats
        yield GaugeMetricFamily("mq_ws_sockets", "Sockets open now.", value=stats.ws_socket_count)
        yield GaugeMetricFamily("mq_ws_subscriptions", "Subscriptions open now.", value=stats.ws_subscription_count)
        yield CounterMetricFamily("mq_ws_received_frames", "Frames from clients.", value=stats.ws_received_frame_count)
        yield CounterMetricFamily("mq_ws_sent_messages", "Records pushed.", value=stats.ws_sent_message_count)
        yield CounterMetricFamily("mq_ws_sent_bytes", "Bytes pushed.", value=stats.ws_sent_byte_count)
        yield CounterMetricFamily(
            "mq_ws_slow_closes", "Sockets closed because their peer took no bytes.", value=stats.ws_slow_close_count
        )


def histogram_buckets(bounds: Sequence[float], counts: Sequence[int]) -> list[tuple[str, float]]:
    """Prometheus' cumulative buckets from counts of single ones; the last count is of what is above every bound."""
    return list(zip([*map(str, bounds), "+Inf"], map(float, accumulate(counts)), strict=True))


def registry_of(collector: Collector) -> CollectorRegistry:
    """A registry with this collector alone: no global one, so two servers in a process do not mix."""
    registry = CollectorRegistry(auto_describe=False)
    registry.register(collector)
    return registry


def integers_of(owner: object, prefix: str) -> Iterator[Metric]:
    """A metric for every integer field of a dataclass of counters since start, `append_count` as `<prefix>_append`.

    For parts below the gateway, which know nothing of Prometheus. Names ending in `_max_ms` are gauges.
    """
    for item in fields(owner):  # type: ignore[arg-type]
        value = getattr(owner, item.name)
        if isinstance(value, int):
            name = f"{prefix}_{item.name.removesuffix('_count')}"
            text = f"{item.name.replace('_', ' ')} since start".capitalize()
            if item.name.endswith("_max_ms"):
                yield GaugeMetricFamily(name, text, value=value)
            else:
                yield CounterMetricFamily(name, text, value=value)


def process_metrics(limits: Limits) -> Iterator[Metric]:
    """Handles of the process, under the names that Prometheus' own clients give them, and the part for connections."""
    max_fds, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    yield GaugeMetricFamily("process_max_fds", "Files and sockets that may be open.", value=max_fds)
    yield GaugeMetricFamily("process_open_fds", "Files and sockets open now.", value=len(os.listdir("/proc/self/fd")))
    yield GaugeMetricFamily("mq_connections_max", "Connections that may be open.", value=limits.connections_max)


def text_metrics(texts: TextCache) -> Iterator[Metric]:
    """What is kept of rendered records."""
    yield GaugeMetricFamily(
        "mq_rendered_bytes", "Records rendered as JSON that are kept for others.", value=texts.held_bytes
    )


def trail_metrics(stats: TrailStats) -> Iterator[Metric]:
    """What the trail of admin actions counts."""
    yield CounterMetricFamily("mq_audit_written", "Lines of the trail that are on disk.", value=stats.written_count)
    yield CounterMetricFamily("mq_audit_lost", "Lines of the trail that are lost.", value=stats.lost_count)
    yield CounterMetricFamily(
        "mq_audit_suppressed", "Refused attempts that were only counted.", value=stats.suppressed_count
    )
    failing = int(stats.is_failing)
    yield GaugeMetricFamily("mq_audit_failing", "1 while the trail cannot be written.", value=failing)


def store_metrics(store: Store) -> Iterator[Metric]:
    """What the store counts."""
    yield from integers_of(store.stats, "mq_store")
    yield GaugeMetricFamily("mq_store_waiting_bytes", "Bytes accepted and not yet written.", value=store.waiting_bytes)
    yield GaugeMetricFamily("mq_store_log_end_bytes", "End of the readable log.", value=store.end_position)
    ids, producers = store.remembered
    yield GaugeMetricFamily("mq_store_dedup_ids", "Ids of recent sends that are remembered.", value=ids)
    yield GaugeMetricFamily("mq_store_producers", "Numbered producers that are remembered.", value=producers)
    rows, pending_bytes = store.light_counts
    yield CounterMetricFamily(
        "mq_store_light_rows", "Records that came into light queues since the start, once for each queue.", value=rows
    )
    yield GaugeMetricFamily(
        "mq_store_light_pending_bytes",
        "Memory that rows of light queues take until a checkpoint has written them.",
        value=pending_bytes,
    )
    failed = 0 if store.failure is None else 1
    yield GaugeMetricFamily("mq_store_failed", "1 when records are refused until a restart.", value=failed)


class RecurringCollector:
    """What the recurring schedules count, for a registry."""

    def __init__(self, recurring: RecurringSchedules | AllRecurring) -> None:
        self._recurring = recurring

    def collect(self) -> Iterator[Metric]:
        """One reading."""
        table = self._recurring.table
        yield GaugeMetricFamily("mq_recurring_schedules", "Recurring schedules.", value=len(table))
        waiting = len(table.owing) + len(self._recurring.troubles)
        yield GaugeMetricFamily(
            "mq_recurring_waiting", "Recurring schedules that are due and cannot be delivered now.", value=waiting
        )
        yield from integers_of(self._recurring.stats, "mq_recurring")


class MoveCollector:
    """What a node's moves count, for a registry."""

    def __init__(self, node: ClusterNode) -> None:
        self._node = node

    def collect(self) -> Iterator[Metric]:
        """One reading."""
        stats = self._node.move_stats
        moves = CounterMetricFamily(
            "mq_moves", "Moves of partitions that this node made, by how they ended.", labels=("outcome",)
        )
        for outcome in OUTCOMES:
            moves.add_metric((outcome,), stats.outcomes[outcome])
        yield moves
        yield GaugeMetricFamily("mq_moves_running", "Moves that this node makes now.", value=self._node.own_move_count)
        pauses = HistogramMetricFamily(
            "mq_move_pause_seconds", "Time in which a partition took no records, as it moved: from seal to commit."
        )
        buckets = histogram_buckets([bound / 1000 for bound in PAUSE_BOUNDS_MS], stats.pause_counts)
        pauses.add_metric((), buckets, stats.pause_sum_ms / 1000)
        yield pauses
        yield GaugeMetricFamily(
            "mq_balance_blocked",
            "1 while something cannot be moved off this node, or to it; `mq broker list` says why.",
            value=int(self._node.blocked is not None),
        )


def timer_metrics(timer: TimerService | AllTimers) -> Iterator[Metric]:
    """What the timer counts."""
    counts = timer.metrics
    yield from integers_of(counts, "mq_schedule")
    yield GaugeMetricFamily("mq_schedule_pending", "Delayed records not delivered yet.", value=timer.pending_count)
    yield GaugeMetricFamily("mq_schedule_read_lag_ms", "How far delivery is behind the clock.", value=timer.read_lag_ms)
    yield GaugeMetricFamily(
        "mq_schedule_write_lag_ms", "How far the open slots are behind the clock.", value=timer.write_lag_ms
    )
    by_topic = GaugeMetricFamily(
        "mq_schedule_pending_by_topic",
        "Delayed records scheduled, by the id of their topic.",
        labels=["topic_id"],
    )
    for topic_id, count in sorted(timer.pending_counts().items()):
        by_topic.add_metric([str(topic_id)], count)
    yield by_topic
    lateness = HistogramMetricFamily(
        "mq_schedule_fire_lateness_seconds", "Time from the due time to the durable delivery."
    )
    buckets = histogram_buckets([bound / 1000 for bound in LATENESS_BOUNDS_MS], counts.late_counts)
    lateness.add_metric((), buckets, counts.late_sum_ms / 1000)
    yield lateness
    lag = timer.intake_lag_count
    yield GaugeMetricFamily("mq_schedule_enqueue_lag", "Accepted records that are not in the wheel yet.", value=lag)
