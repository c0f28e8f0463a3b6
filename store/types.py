"""The words of the store: queues, offsets, positions, and what an append or a read answers.

Terms
    offset    index of a record in a queue; 0-based, dense, never reused
    position  byte position in the commit log; the log is one address space over all its files
    entry     one commit-log envelope holding one RecordBatch of one queue

Nothing here does I/O.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from enum import Enum, IntEnum
from typing import TYPE_CHECKING, NamedTuple, NewType, Protocol

if TYPE_CHECKING:
    from store.light_names import LightNames

OFFSET_MAX = 2**63 - 1
"""The largest offset that a read may name."""

RECORD_OFFSET_MAX = OFFSET_MAX - 1
"""The largest offset of a record: the one behind it is an offset, too."""

Buffer = bytes | bytearray | memoryview

Position = NewType("Position", int)


class QueueKey(NamedTuple):
    """A physical queue of this store. Topic ids are never reused, so neither is a key."""

    topic_id: int
    queue_id: int


class Acks(IntEnum):
    """How safe a record is when its append is answered. Ordered: a higher level includes the lower."""

    WRITTEN = 1  # in the operating system's hands: survives kill -9, not a power cut
    FLUSHED = 2  # covered by a successful fdatasync: survives a power cut


class Boundary(Enum):
    """Which offset a search by time returns: the first at or after the time, or the last at or before it. DATED: where
    a search by the records' own time begins, as no record before it is dated at or after the time."""

    LOWER = "lower"
    UPPER = "upper"
    DATED = "dated"


class Delay(NamedTuple):
    """When one record of a `__timer` entry is due, and the partition it is for: whose queue, is found when it is due.

    `origin_position`/`origin_index` name the entry that first accepted the record; they stay the same
    when the record rolls, so a schedule id stays valid. -1 means: this entry itself.
    """

    due_ms: int
    topic_id: int
    partition: int
    origin_position: int = -1
    origin_index: int = 0


class Source(NamedTuple):
    """The schedule a delivered record came from: the accepting entry and the record's index in it."""

    position: int
    record_index: int


ID_BYTES = 16
"""Width of every id by which a repeated send is recognised: a hash of what the sender said, and of its scope."""

NO_ID = bytes(ID_BYTES)
"""Stands for a record without a message id."""

FINGERPRINT_BYTES = 8
NO_FINGERPRINT = bytes(FINGERPRINT_BYTES)
"""Of a request whose content is not compared."""


class RequestPart(NamedTuple):
    """The records of one batch as a part of a request that may be sent again: `request_indexes[i]` is the index of
    record i in the request, ascending. A repeat must have the same fingerprint."""

    request_id: bytes
    fingerprint: bytes
    request_indexes: Sequence[int]


class ProducerSequence(NamedTuple):
    """The number that a named producer gave to one batch for one queue; its numbers rise from batch to batch."""

    producer_id: bytes
    sequence: int


class RecordNumbers(NamedTuple):
    """The numbers that a producer of Kafka's protocol gave to the records of one batch for one queue: from
    `first` on, without a gap behind the batch before, from 0 on in each `epoch`. After 2^31 - 1 comes 0."""

    producer_id: bytes
    epoch: int
    first: int
    record_count: int


@dataclass(slots=True, kw_only=True)  # as Append
class Identity:
    """By what a repeated send of a batch is recognised. `message_ids` has one id a record, or NO_ID, or is empty.
    `numbers` becomes `producer` when the batch is appended: what they mean depends on the batch before."""

    message_ids: Sequence[bytes] = ()
    request: RequestPart | None = None
    producer: ProducerSequence | None = None
    numbers: RecordNumbers | None = None


class ScheduleKey(NamedTuple):
    """What the id of a schedule is made of; see timer/schedule.py."""

    due_ms: int
    position: int
    record_index: int


class Original(NamedTuple):
    """Where an earlier send of a record put it. `offset` None: it was accepted as `schedule` (`queue` is topic and
    partition then), or (batches of a sequenced producer only) it is so old that its offset is forgotten.
    `is_moved`: it was stored before its partition moved to this store. `queue` is topic and partition, `offset` the
    partition's, and `position` of the log of the store that has it."""

    queue: QueueKey
    offset: int | None
    position: int  # of its entry
    store_time_ms: int
    schedule: ScheduleKey | None = None
    is_moved: bool = False


class ExportedIds(NamedTuple):
    """A part of what a store remembers of the sends to a partition: `content` for the store that the partition moves to
    (store/dedup/moved.py), empty when there is nothing. The next part begins at `next_position` of the log."""

    content: bytes
    next_position: int
    is_last: bool


@dataclass(slots=True, kw_only=True)  # none is changed; but a frozen one takes three times as long to make
class Append:
    """One RecordBatch to append to one queue; all of it is stored, or none.

    `batch` is a whole RecordBatch v2 that `store.record_batch` made or checked. The store sets its base offset: in
    place in a bytearray, which then belongs to the store, in a copy of anything else. With `is_given` a view of one is
    the store's, too, with the bytearray: nobody else reads or writes it from now on. `tag_hashes` has one hash a
    record, or is empty when no record has a tag. `json_values` promises that every value is valid JSON or null, and
    every key as well if the keys of the topic are JSON (store/topics.py).
    With an `identity` it is stored only if none of its records is known by it; see `Store.append`. With an
    `expected_offset` only if that is the offset its first record gets. `light` names the light queues of its records;
    the store assigns their offsets there.
    """

    queue: QueueKey
    batch: Buffer
    record_count: int
    json_values: bool = False
    tag_hashes: Sequence[int] = ()
    delays: Sequence[Delay] = ()
    sources: Sequence[Source] = ()
    identity: Identity | None = None
    expected_offset: int | None = None
    light: LightNames | None = None
    is_given: bool = False

    def identified(self, identity: Identity) -> Append:
        """A copy with this identity; `replace` takes twice as long."""
        made = object.__new__(Append)
        made.queue, made.batch, made.record_count = self.queue, self.batch, self.record_count
        made.json_values, made.tag_hashes, made.light = self.json_values, self.tag_hashes, self.light
        made.delays, made.sources = self.delays, self.sources
        made.expected_offset, made.is_given = self.expected_offset, self.is_given
        made.identity = identity
        return made


class Appended(NamedTuple):
    """The answer to an append: where it is, when it was stored, and the level of durability reached."""

    position: int
    base_offset: int
    store_time_ms: int
    acks: Acks


@dataclass(slots=True)  # as Append
class Entry:
    """One entry as read from the log, CRC checked. `batch` is a RecordBatch or a view of it, base offset patched in;
    where nobody follows its queue the writer publishes it with the batch's head alone, which no reader gets.
    `raw_keys`: its topic's keys are raw (store/topics.py); the log does not say, a reader of a topic sets it."""

    position: int
    size: int  # bytes of the entry in the log, padding included
    queue: QueueKey
    topic: str
    base_offset: int
    record_count: int
    store_time_ms: int
    json_values: bool
    batch: bytes | memoryview
    tag_hashes: Sequence[int] = field(default=())
    delays: Sequence[Delay] = field(default=())
    sources: Sequence[Source] = field(default=())
    identity: Identity | None = None
    raw_keys: bool = False
    light: LightNames | None = None

    @property
    def next_offset(self) -> int:
        """The offset after the last record of this entry."""
        return self.base_offset + self.record_count


class Indexed(Protocol):
    """What the index needs to know of an entry."""

    @property
    def position(self) -> int:
        """In the log."""
        ...

    @property
    def size(self) -> int:
        """Bytes in the log, padding included."""
        ...

    @property
    def queue(self) -> QueueKey:
        """Whose records it holds."""
        ...

    @property
    def base_offset(self) -> int:
        """Of its first record."""
        ...

    @property
    def next_offset(self) -> int:
        """Behind its last record."""
        ...

    @property
    def record_count(self) -> int:
        """How many."""
        ...

    @property
    def store_time_ms(self) -> int:
        """Epoch ms; never falls along a queue."""
        ...

    @property
    def tag_hashes(self) -> Sequence[int]:
        """One a record; empty when no record has a tag."""
        ...

    @property
    def light(self) -> LightNames | None:
        """The light queues of its records."""
        ...


class ReadStatus(Enum):
    """Why a read returned what it did."""

    FOUND = "found"
    EMPTY = "empty"  # the queue has never held a record
    AT_END = "at_end"  # offset == max: nothing yet, ask again later
    TOO_SMALL = "too_small"  # offset < min: retention has passed it
    TOO_LARGE = "too_large"  # offset > max
    NO_MATCH = "no_match"  # there are records, none with an asked-for tag; go on at next_offset


class ReadResult(NamedTuple):
    """Whole entries from `offset` on, with the queue's bounds from the same snapshot.

    The first entry is the one that *contains* the asked offset, so it may begin before it.
    `next_offset` is where the following read begins: after the last entry, or the nearest legal offset.
    """

    status: ReadStatus
    entries: list[Entry]
    min_offset: int
    max_offset: int
    next_offset: int


class LightRecord(NamedTuple):
    """A record of a light queue: its offset there, and where it is."""

    offset: int
    entry: Entry
    record_index: int


LightWake = Callable[[LightRecord | None], None]
"""Called with the next record of a light queue, or with None: there may be one, or several."""


class LightRead(NamedTuple):
    """Records of a light queue, with its end at the same moment. The following read begins at `next_offset`."""

    records: list[LightRecord]
    max_offset: int
    next_offset: int


class Bounds(NamedTuple):
    """First readable offset, and the offset the next record will get."""

    min_offset: int
    max_offset: int
