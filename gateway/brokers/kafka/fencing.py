"""Rules for a log that forgets its fence, or that strangers write to: a partition of a Kafka cluster.

Kafka refuses an older epoch of an idempotent producer only while it remembers the newer one, and it forgets by record
time. Whatever it forgets, a stranger's batch or a fence takes an offset, so an older owner sees a gap:

    position  an owner acknowledges only what lies where it must lie: behind what it has appended before
    order     and only when all that it has appended before is acknowledged
    end       a segment ends at the first batch that is not its epoch's, at latest at the fence that seals it. One that
              lies where it must not is not, either: a log that has forgotten a batch stores its repeat once more
    read      of an open segment a reader shows what is its epoch's, and stops at the first batch that is not

An owner that is in doubt says nothing more and takes its partition over anew.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Generic, NamedTuple, TypeVar

T = TypeVar("T")


class Batch(NamedTuple):
    """What of a batch in the log counts here. `epoch` None: a stranger's, or one without records, as a fence is."""

    base_offset: int
    record_count: int
    epoch: int | None

    @property
    def next_offset(self) -> int:
        """The offset behind it."""
        return self.base_offset + self.record_count


class Sent(NamedTuple):
    """A batch on its way, and the offset that it must get."""

    expected_offset: int
    record_count: int


class Tenure(Generic[T]):
    """The appends of one owner to one segment, from physical offset `start` on. Many may be on their way at once."""

    def __init__(self, start: int) -> None:
        self._next_sent = start
        self._next_acknowledged = start
        self._waiting: dict[int, tuple[int, T]] = {}  # stored behind what is not acknowledged yet, by offset
        self.is_in_doubt = False
        """Nothing is acknowledged any more; the partition has to be taken over anew."""

    def send(self, record_count: int) -> Sent:
        """Note an append that begins now."""
        sent = Sent(self._next_sent, record_count)
        self._next_sent += record_count
        return sent

    def stored(self, sent: Sent, base_offset: int, token: T) -> list[T]:
        """The log has stored a batch at an offset: the tokens of all appends that may be acknowledged now."""
        if base_offset != sent.expected_offset:
            self.is_in_doubt = True
        if self.is_in_doubt:
            return []
        self._waiting[base_offset] = (sent.record_count, token)
        ready = []
        while (found := self._waiting.pop(self._next_acknowledged, None)) is not None:
            self._next_acknowledged += found[0]
            ready.append(found[1])
        return ready


def own_end(batches: Sequence[Batch], start: int, epoch: int) -> int:
    """The offset behind the last batch of a segment's epoch, of batches in order from the segment's first on: for the
    seal, of all up to the fence; for a reader, of those it has read."""
    end = start
    for batch in batches:
        if batch.epoch != epoch:
            break
        end = batch.next_offset
    return end
