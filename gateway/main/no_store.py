"""What a node without a store (`mq serve --no-store`) has in place of one: its topics in memory, as the metadata has
them. What it serves is on Kafka clusters, and nothing of it is on a disk here; caches are in memory (`files`)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from gateway.cluster.topics import TopicsInMemory
from store.config import StoreConfig
from store.errors import UnknownQueue
from store.memory_files import MemoryFiles
from store.types import QueueKey


class NoStore(TopicsInMemory):
    """See the module."""

    log_bytes = 0
    """See `Store.log_bytes`."""

    def __init__(self, config: StoreConfig) -> None:
        super().__init__(config)
        self.files = MemoryFiles()
        self.appended: Mapping[int, Sequence[int]] = {}
        """See `Store.appended`."""

    def queues_of(self, topic_id: int) -> list[QueueKey]:
        """See `Store.queues_of`: there are none."""
        raise UnknownQueue(f"topic id {topic_id} has no queues on a node without a store")
