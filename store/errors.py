"""What can go wrong in the store, by what a caller can do about it.

StoreError
├── StoreStopped     an earlier I/O error or a shutdown: only a restart helps
├── DiskFull         no space: reads go on, sends may be retried once space is back
│   └── OutOfHandles the process has no file handle left: likewise
├── Overloaded       too many bytes wait for the writer: retry after a moment
│   ├── SealedQueue  the queue takes no more: its partition is moving, retry after a moment
│   └── PartitionLeft  delayed records are for a partition that has moved away, likewise
├── RecordTooLarge   one batch exceeds a limit: never retry
├── MalformedBatch   a batch given to us is not a valid RecordBatch v2: never retry
│   └── CorruptBatch     its CRC does not match: it was damaged on its way, or by its sender
├── IllegalRecord    a record in a batch breaks a limit of its key or headers
├── AlreadyStored    records of an append are known by their identity: names the originals
├── IdentityReused   an id came again with another content: never retry
├── SequenceGone     a producer's sequence number lies behind its newest, unused
│   ├── SequenceGap      a batch does not follow the one before of its producer
│   └── ProducerFenced   a newer epoch of the producer has sent
├── OffsetMoved      an append was to get an offset that others have taken by now
├── TooManyIds       the window of ids, or the table of producers, is full
├── UnknownQueue     no such queue (or topic) in this store
├── TopicExists      a topic of that name exists with another shape
├── IllegalTopic     a topic's name or shape breaks a rule
├── Corrupt          stored bytes fail their check; names file and position
├── IndexDamaged     a consume queue and the log disagree: it can be built again
├── NoLightQueues    the index of this store keeps no light queues
├── IndexRefused     the index is of the other kind, or half rebuilt                   (start refused)
├── BrokerLacks      the broker that a partition is on cannot do this; the message says what   (409)
├── BrokerRefuses    a Kafka cluster has refused this; the message says why                    (502)
├── StoreLocked      another process holds the data directory                          (start refused)
└── FormatTooNew     the data directory was written by a newer version                 (start refused)
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from store.types import Original


class StoreError(Exception):
    """Base of all errors the store raises on purpose."""


class StoreStopped(StoreError):
    """The store takes no more appends until the process is restarted. The outcome of a waiting append is unknown."""


class DiskFull(StoreError):
    """The disk has no room for the next append. Nothing of the refused append was stored."""


class OutOfHandles(DiskFull):
    """The process, or the system, can open no more files. Nothing of the refused append was stored. A kind of DiskFull
    because it is handled in the same way: nothing is lost, reads go on, and so do appends once a file can be opened."""

    retry_after_ms = 1000


class Overloaded(StoreError):
    """The bytes waiting for the writer reached their limit. Nothing was stored."""

    retry_after_ms = 1000


class SealedQueue(Overloaded):
    """The queue takes no more appends, for good; the records that follow go to another one. Nothing was stored."""


class PartitionLeft(Overloaded):
    """A delayed record with an id is for a partition that has moved away, or is about to. Nothing was stored."""


class RecordTooLarge(StoreError):
    """A batch is larger than the store accepts. Nothing was stored."""


class MalformedBatch(StoreError):
    """Bytes given as a RecordBatch are not one. Nothing was stored."""


class CorruptBatch(MalformedBatch):
    """The CRC of a batch does not match its bytes. Nothing was stored."""


class IllegalRecord(StoreError):
    """A record in a batch has a key, or headers, that a single record may not have. Nothing was stored."""


class AlreadyStored(StoreError):
    """Some records of an append were stored before, by what identifies them. Nothing of the append was stored.

    `originals[n][i]` is where record i of the n-th batch is; a batch of a sequenced producer is known as a whole, by
    record 0. They are as durable as the append asked for.
    """

    def __init__(self, originals: Sequence[Mapping[int, Original]]) -> None:
        super().__init__(f"{sum(map(len, originals))} records were stored before")
        self.originals = originals

    @property
    def last_position(self) -> int:
        """Where the last entry of this store begins that holds an original; -1: all came from other stores, durable."""
        own = (each.position for found in self.originals for each in found.values() if not each.is_moved)
        return max(own, default=-1)


class IdentityReused(StoreError):
    """The id of a request was used for another content. Nothing was stored."""


class SequenceGone(StoreError):
    """A producer's sequence number is below its newest one and was never used. Nothing was stored."""


class SequenceGap(SequenceGone):
    """A batch of numbered records does not follow the last one of its producer. Nothing was stored."""


class ProducerFenced(SequenceGone):
    """A batch is of an older epoch than its producer's last one. Nothing was stored."""


class OffsetMoved(StoreError):
    """The queue's next offset is not the expected one. Nothing was stored.

    Others have appended, if only what is still on its way to the disk: `next_offset` says how far.
    """

    def __init__(self, expected_offset: int, next_offset: int) -> None:
        super().__init__(f"the next offset is {next_offset}, not {expected_offset}")
        self.expected_offset = expected_offset
        self.next_offset = next_offset


class TooManyIds(StoreError):
    """No more ids can be remembered until older ones leave the window. Nothing was stored."""

    def __init__(self, message: str, retry_after_ms: int) -> None:
        super().__init__(message)
        self.retry_after_ms = retry_after_ms


class UnknownQueue(StoreError):
    """The topic or queue does not exist here."""


class TopicExists(StoreError):
    """A topic of this name exists and differs from what was asked for."""


class IllegalTopic(StoreError):
    """A topic name or its configuration breaks a rule; the message names the rule."""


class Corrupt(StoreError):
    """Stored bytes fail their check. They are neither skipped nor served."""

    def __init__(self, path: str, position: int, reason: str) -> None:
        super().__init__(f"{path}, position {position}: {reason}")
        self.path = path
        self.position = position
        self.reason = reason


class IndexDamaged(StoreError):
    """A consume queue lacks units it had made durable, or points to a wrong position. It holds no fact of its own: it
    is built again from the log when the store is opened, or by `mq index rebuild`."""


class IndexRefused(StoreError):
    """The index of a data directory cannot be opened as asked; the message says what to run or to set."""


class NoLightQueues(StoreError):
    """Light queues were named, or read, where the index does not keep them; the message says what to run. Nothing was
    stored."""


class BrokerLacks(StoreError):
    """The broker that a partition is on, or is to move to, cannot do what is asked; the message says what it is.
    Nothing was stored."""


class BrokerRefuses(StoreError):
    """The Kafka cluster that an attached topic is in has refused this, for a right that is missing, or as the topic is
    gone there; the message says which. Nothing was stored. `code`: Kafka's."""

    def __init__(self, message: str, code: int) -> None:
        super().__init__(message)
        self.code = code


class StoreLocked(StoreError):
    """Another process has this data directory open."""


class FormatTooNew(StoreError):
    """The data directory has a format this program does not know. Nothing was touched."""
