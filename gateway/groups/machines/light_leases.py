"""Queue mode of one group in the light queues of one topic: a machine for each queue with open records, and nothing for
the others, of which there may be millions.

    light queue (partition, name)   idle, or never received from   open        idle, after a reset
    machine                         -                              yes         -
    next                            as committed                   its own     as committed       see `light_offsets`
    epoch                           the topic's                    its own     kept here

How far the group is, is committed in `light_offsets` with each event: the first record that is not done, as for a
device that reads there. Where nothing is committed the group begins with the queue's first record.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import NamedTuple

from gateway.groups.machines.config import GroupConfig
from gateway.groups.machines.events import LeaseEvent, LeasesSet, LightBegun, OpenRecord, QueueEvent
from gateway.groups.machines.leases import PartitionLeases

LIGHT_EPOCH_BYTES = 250
"""What the epoch of a light queue that was reset takes besides its name."""

LightPlace = tuple[int, str]
"""Partition and name."""


class Changed(NamedTuple):
    """What an event made of a light queue: by how many its open records are more, and the first that is not done."""

    more: int
    low_offset: int


class LightLeases:
    """Those of one group in one topic. Changes through `apply` alone."""

    __slots__ = ("_epochs", "_group", "_topic_id", "epoch", "epochs_bytes", "open")

    def __init__(self, group: str, topic_id: int) -> None:
        self._group = group
        self._topic_id = topic_id
        self._epochs: dict[LightPlace, int] = {}
        self.epoch = 0
        """Of all queues that were not reset."""
        self.epochs_bytes = 0
        """What the epochs of the others take, about."""
        self.open: dict[LightPlace, PartitionLeases] = {}
        """Queues with open records."""

    def at(self, partition: int, name: str, config: GroupConfig, next_offset: int) -> PartitionLeases:
        """A queue's machine. Where nothing is open it is made for the moment, to decide by, and begins at
        `next_offset`."""
        leases = self.open.get((partition, name))
        if leases is None:
            epoch = self._epochs.get((partition, name), self.epoch)
            leases = PartitionLeases(
                self._group, self._topic_id, partition, config, epoch=epoch, next_offset=next_offset, name=name
            )
        return leases

    def decide_begin(self, now_ms: int) -> LightBegun:
        """The first receive. The epoch is a time, so that receipts from before a deletion of the group are void."""
        return LightBegun(self._group, self._topic_id, max(self.epoch + 1, now_ms))

    def snapshot(self, idle: Mapping[LightPlace, int]) -> Iterator[QueueEvent]:
        """Events that lead an empty machine to this state, as it is at this call; they are made later, one by one.
        `idle`: the committed offsets of queues; of those that were reset, at least."""
        states: list[tuple[LightPlace, tuple[int, int, tuple[OpenRecord, ...]]]] = [
            (place, (self._epochs.get(place, self.epoch), next_offset, ()))
            for place, next_offset in idle.items()
            if place not in self.open
        ]
        states += [(place, leases.frozen()) for place, leases in self.open.items()]
        return self._events_of(self.epoch, states)

    def reset_places(self) -> Collection[LightPlace]:
        """Queues that were reset."""
        return self._epochs.keys()

    def _events_of(
        self, epoch: int, states: Iterable[tuple[LightPlace, tuple[int, int, tuple[OpenRecord, ...]]]]
    ) -> Iterator[QueueEvent]:
        yield LightBegun(self._group, self._topic_id, epoch)
        for (partition, name), state in states:
            yield LeasesSet(self._group, self._topic_id, partition, *state, name)

    def begin(self, event: LightBegun) -> None:
        """Apply it: as at the first receive."""
        self.epoch = event.epoch

    def apply(self, event: LeaseEvent, config: GroupConfig, next_offset: int) -> Changed:
        """Change the state of one queue, whose committed offset is this; the only way it changes, live or at start."""
        place = (event.partition, event.name)
        leases = self.at(*place, config, next_offset)
        before = leases.open_count
        leases.apply(event)
        if isinstance(event, LeasesSet):
            self.epoch = self.epoch or event.epoch
            self._put_epoch(place, event.epoch)
        if leases.open_count:
            self.open[place] = leases
        else:
            self.open.pop(place, None)
        return Changed(leases.open_count - before, leases.low_offset)

    def _put_epoch(self, place: LightPlace, epoch: int) -> None:
        size_bytes = LIGHT_EPOCH_BYTES + len(place[1].encode())
        if self._epochs.pop(place, None) is not None:
            self.epochs_bytes -= size_bytes
        if epoch != self.epoch:
            self._epochs[place] = epoch
            self.epochs_bytes += size_bytes
