"""Queue mode of one group in one topic: a machine for each partition with open records, two numbers for all others.

A group that consumes a topic of 1,024 partitions has records out in a few of them. What has to be known of the others
is where the group is and which receipts are void, and both are nothing for a partition that has given nothing yet:

    partition   0        1        2        3        4 … 1023      of group g
                open     idle     begun    reset    begun
    machine     yes      -        -        -        -             `PartitionLeases`, made when a record is leased there,
                                                                  gone when the last open one is done
    next        -        10       -        7                      0 where it is left out
    epoch       -        -        -        12                     the topic's (5) where it is left out

A receipt of an idle partition is judged as before: it is of a record before `next`, which is done, or of another epoch.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterator, Sequence

from gateway.groups.machines.config import GroupConfig
from gateway.groups.machines.events import LeaseEvent, LeasesBegun, LeasesSet, OpenRecord
from gateway.groups.machines.leases import PartitionLeases


class TopicLeases:
    """The leases of one group in one topic. Changes through `apply` alone."""

    __slots__ = ("_epoch", "_epochs", "_group", "_next_offsets", "_topic_id", "end", "open")

    def __init__(self, group: str, topic_id: int) -> None:
        self._group = group
        self._topic_id = topic_id
        self._epoch = 0
        self._next_offsets = array("q")  # of idle partitions
        self._epochs = array("q")  # 0: the topic's
        self.end = 0
        """Partitions before it are in queue mode; later ones were added, and were not asked for yet."""
        self.open: dict[int, PartitionLeases] = {}
        """Partitions with open records."""

    # What is

    def at(self, partition: int, config: GroupConfig) -> PartitionLeases:
        """A partition's machine. Where nothing is open it is made for the moment, to decide by: what is decided is for
        `apply` here."""
        leases = self.open.get(partition)
        if leases is None:
            epoch = _at(self._epochs, partition) or self._epoch
            next_offset = _at(self._next_offsets, partition)
            leases = PartitionLeases(
                self._group, self._topic_id, partition, config, epoch=epoch, next_offset=next_offset
            )
        return leases

    def next_offset(self, partition: int) -> int:
        """The next record to take from the log."""
        leases = self.open.get(partition)
        return _at(self._next_offsets, partition) if leases is None else leases.next_offset

    def low_offset(self, partition: int) -> int:
        """Everything before it is done: the group's committed offset."""
        leases = self.open.get(partition)
        return _at(self._next_offsets, partition) if leases is None else leases.low_offset

    # What shall be

    def decide_begin(self, first: int, next_offsets: Sequence[int], now_ms: int) -> LeasesBegun:
        """Begin at these offsets in the partitions from `first` on: 0, or `end` for those that were added.

        From 0 on, all leases end, all receipts are void. The epoch is a time, so that receipts from before a deletion
        of the group are void too."""
        assert first in (0, self.end), "partitions begin in order"
        last_epoch = max(self._epoch, max(self._epochs, default=0), *(one.epoch for one in self.open.values()), 0)
        return LeasesBegun(
            self._group,
            self._topic_id,
            self._epoch if first else max(last_epoch + 1, now_ms),
            first,
            first + len(next_offsets),
            _without_last_zeros(next_offsets),
        )

    def snapshot(self) -> Iterator[LeaseEvent | LeasesBegun]:
        """Events that lead an empty machine to this state: as it is at this call, though they are made one by one,
        later and in another thread."""
        frozen = [(partition, leases.frozen()) for partition, leases in self.open.items()]
        return self._events_of(self._epoch, self.end, self._next_offsets[:], self._epochs[:], frozen)

    def _events_of(
        self,
        epoch: int,
        end: int,
        next_offsets: array[int],
        epochs: array[int],
        frozen: Sequence[tuple[int, tuple[int, int, tuple[OpenRecord, ...]]]],
    ) -> Iterator[LeaseEvent | LeasesBegun]:
        for partition, _ in frozen:
            _put(next_offsets, partition, 0)
            _put(epochs, partition, 0)
        yield LeasesBegun(self._group, self._topic_id, epoch, 0, end, _without_last_zeros(next_offsets))
        for partition, own_epoch in enumerate(epochs):
            if own_epoch:
                next_offset = _at(next_offsets, partition)
                yield LeasesSet(self._group, self._topic_id, partition, own_epoch, next_offset, ())
        for partition, state in frozen:
            yield LeasesSet(self._group, self._topic_id, partition, *state)

    # What has been decided and written

    def apply(self, event: LeaseEvent | LeasesBegun, config: GroupConfig) -> int:
        """Change the state; the only way it changes, live or at start. By how many the open records are more."""
        if isinstance(event, LeasesBegun):
            return self._begin(event)
        partition = event.partition
        leases = self.at(partition, config)
        before = leases.open_count
        leases.apply(event)
        open_count = leases.open_count
        if partition >= self.end:
            self.end = partition + 1
        if isinstance(event, LeasesSet):
            self._epoch = self._epoch or event.epoch
            _put(self._epochs, partition, 0 if event.epoch == self._epoch else event.epoch)
        if open_count:
            self.open[partition] = leases
        else:
            self.open.pop(partition, None)
            _put(self._next_offsets, partition, leases.next_offset)
        return open_count - before

    def _begin(self, event: LeasesBegun) -> int:
        gone_count = 0
        if event.first == 0:
            gone_count = sum(leases.open_count for leases in self.open.values())
            self.open = {}
            self._next_offsets, self._epochs = array("q"), array("q")
            self._epoch = event.epoch
        self._epoch = self._epoch or event.epoch
        self.end = max(self.end, event.end)
        if event.next_offsets:
            self._next_offsets.extend([0] * (event.first - len(self._next_offsets)))
            self._next_offsets[event.first :] = array("q", event.next_offsets)
        return -gone_count


def _without_last_zeros(numbers: Sequence[int]) -> tuple[int, ...]:
    count = len(numbers)
    while count and not numbers[count - 1]:
        count -= 1
    return tuple(numbers[:count])


def _at(numbers: array[int], partition: int) -> int:
    return numbers[partition] if partition < len(numbers) else 0


def _put(numbers: array[int], partition: int, number: int) -> None:
    if partition >= len(numbers):
        if not number:
            return
        numbers.extend([0] * (partition + 1 - len(numbers)))
    numbers[partition] = number
