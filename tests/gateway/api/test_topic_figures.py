"""gateway.api.topic_figures: what each node counts of a topic that lies on nodes and on a Kafka cluster, by turns."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest

from gateway.api.topic_figures import TopicFigures
from gateway.brokers.base import Broker, BrokerUnreachable
from gateway.routing.base import Attachment
from gateway.routing.table import RouteTable, Segment
from store.topics import Topic
from store.types import Bounds, QueueKey

KEPT_FROM = 2
"""Of the records on Kafka the first two are gone."""


class Held:
    """A broker by what it holds of each queue; with a Kafka cluster's, the node that asks is `served_by`."""

    def __init__(self, name: str, served_by: str, bounds: dict[int, Bounds]) -> None:
        self.name, self.served_by, self._bounds = name, served_by, bounds
        self.is_away = False

    async def bounds(self, queue: QueueKey) -> Bounds:
        if self.is_away:
            raise BrokerUnreachable("away")
        return self._bounds[queue.queue_id]


NODES = ("n1", "n2")


def figures_of(asked: str, *, is_attached: bool = False) -> tuple[TopicFigures, RouteTable, Held]:
    """As node `asked` has it. Partition 0: five records on n1, then eight on Kafka, owned by n2. Partition 1: eight on
    Kafka, then three on n1."""
    on_kafka = {10: Bounds(KEPT_FROM, 8), 11: Bounds(KEPT_FROM, 8)}
    own = {name: Held(name, name, {0: Bounds(0, 5), 1: Bounds(0, 3), 10: Bounds(0, 8)}) for name in NODES}
    kafka = Held("kafka1", asked, on_kafka)

    def segment(broker: Held, queue: int, start: int, length: int | None) -> Segment:
        return Segment(cast(Broker, broker), QueueKey(16, queue), start, 0, length)

    owner = kafka if asked == "n2" else own["n2"]
    chains = [
        (segment(own["n1"], 0, 0, 5), segment(owner, 10, 5, None)),
        (segment(kafka, 11, 0, 8), segment(own["n1"], 1, 8, None)),
    ]
    routes = RouteTable()
    routes.set_chains(Topic(16, "orders", 2), chains)
    if is_attached:
        routes.attachments[16] = Attachment("kafka1", "theirs")
    nothing = SimpleNamespace(pending_by_topic=dict, appended=lambda _: (0, 0), topic_rate=lambda _: (0.0, 0.0))
    return TopicFigures(routes, cast(Any, nothing), own=asked), routes, kafka


@pytest.mark.parametrize(("asked", "records"), [("n1", 5 + 3 + 8 - KEPT_FROM), ("n2", 8 - KEPT_FROM)])
async def test_what_lies_on_kafka_is_counted_once_by_the_node_that_has_the_partition(asked: str, records: int) -> None:
    figures, _, _ = figures_of(asked)
    [(topic_id, counted, *_)] = await figures.rows(None)
    assert (topic_id, counted) == (16, records)


async def test_while_kafka_is_away_nothing_of_it_is_counted() -> None:
    figures, routes, kafka = figures_of("n1")
    kafka.is_away = True
    assert (await figures.of(routes.topics())).by_id[16].records == 5 + 3


async def test_topics_of_others_are_not_counted() -> None:
    figures, _, _ = figures_of("n2", is_attached=True)
    assert [row[1] for row in await figures.rows([16])] == [0]
