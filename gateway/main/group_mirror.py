"""What groups have committed in attached topics, told to the Kafka cluster (`mq topic attach --mirror-groups`), so that
its tools see their lag: under the group's own name, as a consumer without a membership commits.

Best effort, and for people only: nothing of mq reads it. Each second what has changed is told, so Kafka may be a second
behind, and is further behind while it refuses, as it does for a name under which consumers of its own are. After a
restart everything is told once.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterator, Mapping

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.metrics_core import Metric

from gateway.api.turns import few_a_turn
from gateway.brokers.kafka.attached import AttachedBroker
from gateway.groups.coordinator.service import Coordinator
from gateway.groups.machines.progress import Found, PartitionKey
from gateway.routing.base import TopicView
from gateway.routing.table import RouteTable
from store.errors import StoreError, UnknownQueue

log = logging.getLogger(__name__)

INTERVAL_S = 1.0
AGAIN_S = 10.0
"""Before a group is told again whose commits were refused."""

_Of = tuple[str, int]  # group, topic id


class GroupMirror:
    """Tells Kafka clusters, by name, of groups. `run` until cancelled; `collect` is for a registry."""

    def __init__(self, groups: Coordinator, routes: RouteTable, brokers: Mapping[str, AttachedBroker]) -> None:
        self._groups = groups
        self._routes = routes
        self._brokers = brokers
        self._told: dict[_Of, Mapping[int, int]] = {}
        self._refused_until_s: dict[_Of, float] = {}
        self.told_count = self.refused_count = 0

    def collect(self) -> Iterator[Metric]:
        """One reading."""
        commits = CounterMetricFamily(
            "mq_mirrored_commits", "Offsets of groups told to Kafka, by how it ended.", labels=("outcome",)
        )
        commits.add_metric(("told",), self.told_count)
        commits.add_metric(("refused",), self.refused_count)
        yield commits
        yield GaugeMetricFamily(
            "mq_mirror_behind",
            "Groups, by topic, whose offsets Kafka has refused the last time.",
            value=len(self._refused_until_s),
        )

    async def run(self) -> None:
        """Tell of what has changed, each second."""
        while True:
            await asyncio.sleep(INTERVAL_S)
            mirrored = {
                topic_id: self._brokers[to.broker]
                for topic_id, to in self._routes.attachments.items()
                if to.mirror_groups and to.broker in self._brokers
            }
            if mirrored or self._told or self._refused_until_s:
                await self._tell(mirrored)

    async def _tell(self, mirrored: Mapping[int, AttachedBroker]) -> None:
        seen: set[_Of] = set()
        async for group in few_a_turn(self._groups.table.names()):
            for topic_id in self._groups.table.topic_ids(group) & mirrored.keys():
                seen.add((group, topic_id))
                await self._tell_of(group, topic_id, mirrored[topic_id])
        for gone in (self._told.keys() | self._refused_until_s.keys()) - seen:
            self._told.pop(gone, None)
            self._refused_until_s.pop(gone, None)

    async def _tell_of(self, group: str, topic_id: int, broker: AttachedBroker) -> None:
        of = group, topic_id
        now_s = asyncio.get_running_loop().time()
        if self._refused_until_s.get(of, 0.0) > now_s:
            return
        try:
            offsets = broker.as_kafka_has(topic_id, self._committed(group, self._routes.by_id(topic_id)))
            changed = {partition: offset for partition, offset in offsets.items() if self._had(of, partition) != offset}
            if not changed:
                return
            await broker.commit(topic_id, group, changed)
        except UnknownQueue:
            return  # detached meanwhile
        except StoreError as error:
            if of not in self._refused_until_s:
                log.warning("offsets are not told to Kafka group=%s error=%s", group, error)
            self._refused_until_s[of] = now_s + AGAIN_S
            self.refused_count += 1
        else:
            self._refused_until_s.pop(of, None)
            self._told[of] = offsets
            self.told_count += 1

    def _had(self, of: _Of, partition: int) -> int | None:
        return self._told.get(of, {}).get(partition)

    def _committed(self, group: str, view: TopicView) -> dict[int, int]:
        found: dict[int, int] = {}
        for partition in range(view.partitions):
            stored = self._groups.table.stored(group, PartitionKey(view.topic_id, partition))
            if isinstance(stored, Found):
                found[partition] = stored.offset
        return found
