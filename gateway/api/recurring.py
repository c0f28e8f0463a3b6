"""Routes the records of recurring schedules as if a client had sent them."""

from __future__ import annotations

from collections.abc import Sequence

from gateway.api.producer import Producer
from gateway.codec.records import ProduceRecord
from gateway.errors import RequestError
from gateway.recurring.errors import Undeliverable
from gateway.routing.base import Routes
from store.errors import UnknownQueue
from store.record_batch import Record
from timer.ports import Target


class ProducerRouting:
    """See `gateway.recurring.service.RecordRouting`."""

    def __init__(self, producer: Producer, routes: Routes) -> None:
        self._producer = producer
        self._routes = routes

    def check(self, topic: str, record: ProduceRecord) -> None:
        """See `gateway.recurring.service.RecordRouting`."""
        try:
            refused = self._producer.refusals(topic, (record,))
        except UnknownQueue as error:
            raise Undeliverable(str(error)) from error
        if refused:
            raise Undeliverable(refused[0].message)

    def route(self, topic: str, records: Sequence[ProduceRecord]) -> tuple[Target, Sequence[Record]]:
        """See `gateway.recurring.service.RecordRouting`."""
        self.check(topic, records[0])
        try:
            prepared = self._producer.prepared(topic, records)
            topic_id = self._routes.topic(topic).topic_id
        except (UnknownQueue, RequestError) as error:
            raise Undeliverable(str(error)) from error
        return Target(topic_id, prepared[0][0]), [record for _, record in prepared]
