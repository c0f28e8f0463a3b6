"""Where the records of recurring schedules go: wherever a client's would."""

from __future__ import annotations

from collections.abc import Sequence

from gateway.api.producer import Producer
from gateway.codec.records import ProduceRecord
from gateway.errors import RequestError
from gateway.recurring.errors import NoPlace
from gateway.routing.base import Routes
from store.errors import UnknownQueue
from store.record_batch import Record
from timer.ports import Target


class SentPlacing:
    """See `gateway.recurring.service.Placing`."""

    def __init__(self, producer: Producer, routes: Routes) -> None:
        self._producer = producer
        self._routes = routes

    def check(self, topic: str, record: ProduceRecord) -> None:
        """See `gateway.recurring.service.Placing`."""
        try:
            refused = self._producer.refusals(topic, (record,))
        except UnknownQueue as error:
            raise NoPlace(str(error)) from error
        if refused:
            raise NoPlace(refused[0].message)

    def place(self, topic: str, records: Sequence[ProduceRecord]) -> tuple[Target, Sequence[Record]]:
        """See `gateway.recurring.service.Placing`."""
        self.check(topic, records[0])
        try:
            prepared = self._producer.prepared(topic, records)
            topic_id = self._routes.topic(topic).topic_id
        except (UnknownQueue, RequestError) as error:
            raise NoPlace(str(error)) from error
        return Target(topic_id, prepared[0][0]), [record for _, record in prepared]
