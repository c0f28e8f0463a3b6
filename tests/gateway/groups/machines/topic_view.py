"""A topic as the groups see it."""

from __future__ import annotations

from dataclasses import dataclass, field

from gateway.groups.machines.strategies.base import Partition
from store.topics import KeyForm, TopicConfig


@dataclass(frozen=True)
class FakeTopic:
    """Implements `gateway.routing.base.TopicView`."""

    name: str
    topic_id: int
    partitions: int
    config: TopicConfig = field(default_factory=TopicConfig)
    json_keys: KeyForm = KeyForm.RAW
    raw_keys: bool = True

    def every(self) -> tuple[Partition, ...]:
        """All its partitions."""
        return tuple(Partition(self.name, self.topic_id, number) for number in range(self.partitions))
