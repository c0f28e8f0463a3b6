"""Creating, changing and deleting topics: what surfaces ask of the owner of the broker."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from gateway.routing.base import Attachment, Routes, TopicView
from store.topics import Changes, KeyForm, TopicConfig


class TopicAdmin(Protocol):
    """Creating topics, and whether the broker can take records."""

    async def create_topic(
        self, name: str, partitions: int, config: TopicConfig | None = None, json_keys: KeyForm | None = None
    ) -> TopicView:
        """Create a topic, durable on return; one of the same shape (and `config` and `json_keys`, if given) is returned
        as it is. Without `json_keys` a new topic's keys are raw.

        Raises TopicExists, IllegalTopic, or another StoreError.
        """
        ...

    async def attach_topic(self, name: str, to: Attachment) -> TopicView:
        """Have a topic that is one of a Kafka cluster, which others write to as well; durable on return. One that is
        there and is that one is returned as it is.

        Raises UnknownBroker, IllegalTopic, TopicExists, BrokerLacks, BrokerRefuses, or another StoreError.
        """
        ...

    async def configure_topic(self, name: str, changes: Changes) -> TopicView:
        """Choose other settings, by the names of TopicConfig; None takes a choice back. Durable and in force on return.

        Raises UnknownQueue, IllegalTopic, or another StoreError.
        """
        ...

    async def grow_topic(self, name: str, partitions: int) -> TopicView:
        """Give a topic more partitions, durable on return; as many as it has changes nothing.

        Raises UnknownQueue, IllegalTopic, or another StoreError.
        """
        ...

    async def delete_topic(self, name: str) -> None:
        """Delete a topic and its records, durable on return. Raises UnknownQueue, or another StoreError."""
        ...

    def brokers(self) -> Sequence[str]:
        """The names of this node's own brokers."""
        ...

    def ready(self) -> Sequence[str]:
        """Why this broker cannot take records now; empty when it can."""
        ...


async def delete_before(routes: Routes, topic: str, partition: int, offset: int) -> None:
    """Give up the records of a partition before an offset, for good: they are not shown any more, and their bytes go
    with the log's files. Durable on return. Raises UnknownQueue."""
    for segment in routes.chain(topic, partition):
        before_offset = segment.to_physical(offset)
        if segment.physical_end is not None:
            before_offset = min(before_offset, segment.physical_end)
        if before_offset > segment.physical_start:
            await segment.broker.expire_queue(segment.queue, before_offset)
