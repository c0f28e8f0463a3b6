"""The seam between the gateway and whatever stores records: one embedded store today, other nodes or Kafka later.

Everything above this file speaks of topics and partitions; everything below, of physical queues. The translation
is `gateway/routing/`. A broker is addressed by its name only there.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Protocol, runtime_checkable

from store.errors import Overloaded, StoreError
from store.types import (
    Acks,
    Append,
    Appended,
    Boundary,
    Bounds,
    ExportedIds,
    LightRead,
    LightWake,
    QueueKey,
    ReadResult,
)

ALONE = "local"
"""The name of the broker of a server that is no node of a cluster."""


class BrokerUnreachable(Overloaded):
    """The broker cannot be reached, and was not asked. Nothing was stored. `away_s`: for how long it has not been
    reached, as far as is known here."""

    def __init__(self, message: str, away_s: float = 0.0) -> None:
        super().__init__(message)
        self.away_s = away_s


class AnswerLost(StoreError):
    """The broker was asked, and its answer did not arrive: it may or may not have been done."""


class PartlyStored(AnswerLost):
    """Of a call with several batches some were stored, as `answers` say; of those with None there nothing was, and
    `error` says why. Who cannot go on with the rest has an unknown outcome."""

    def __init__(self, answers: Sequence[Appended | None], error: StoreError) -> None:
        super().__init__(f"{sum(one is not None for one in answers)} of {len(answers)} batches were stored: {error}")
        self.answers = answers
        self.error = error


async def all_stored(begun: Sequence[Awaitable[list[Appended]]]) -> list[Appended]:
    """The answer to a call whose batches are stored one by one, when all are told, each alone in a list. Raises
    PartlyStored; what one raises when none was stored; AnswerLost when it is not known of one."""
    outcomes = await asyncio.gather(*begun, return_exceptions=True)
    errors = [outcome for outcome in outcomes if isinstance(outcome, BaseException)]
    stored = [None if isinstance(outcome, BaseException) else outcome[0] for outcome in outcomes]
    if not errors:
        return [one for one in stored if one is not None]
    unknown = [error for error in errors if isinstance(error, AnswerLost) or not isinstance(error, StoreError)]
    if unknown or len(errors) == len(outcomes):
        raise (unknown or errors)[0]
    [first, *_] = (error for error in errors if isinstance(error, StoreError))
    raise PartlyStored(stored, first) from first


class Scheduler(Protocol):
    """A timer that accepts delayed records: a broker's, or a shard of `__timer` (gateway/main/timer_shards.py)."""

    @property
    def name(self) -> str:
        """What it is known by."""
        ...

    @property
    def served_by(self) -> str:
        """The node that the ids of its schedules begin with; ALONE: they name none."""
        ...

    async def schedule(self, append: Append, *, acks: Acks, keys: Sequence[bytes | None] = ()) -> Appended:
        """See `Broker.schedule`."""
        ...


class Broker(Protocol):
    """A store plus timer that owns physical queues. Errors are those of `store.errors`."""

    @property
    def name(self) -> str:
        """What routing knows it by."""
        ...

    @property
    def served_by(self) -> str:
        """The node that answers clients for its queues, and keeps what `schedule` accepts: it has its broker's name. Of
        a Kafka cluster the node whose object this is."""
        ...

    async def append(self, appends: Sequence[Append], *, acks: Acks) -> list[Appended]:
        """Append batches, each to its queue, in the order given. Returns when all reached `acks`; the answers
        name the level reached. On an error the outcome of every batch of the call is unknown unless the error says
        that nothing was stored. With identities nothing is stored twice: AlreadyStored names what is known."""
        ...

    def begin_append(self, appends: Sequence[Append], *, acks: Acks) -> asyncio.Future[list[Appended]]:
        """As `append`: begun on return, when none of the batches was sent before. Raises at once what refuses them;
        what was sent before, the future says."""
        ...

    async def schedule(self, append: Append, *, acks: Acks, keys: Sequence[bytes | None] = ()) -> Appended:
        """Accept records that are to be delivered later: an append to `store.topics.TIMER_QUEUE` with a delay each.
        Returns when the schedules are as durable as `acks` says; (position, i) then identifies each schedule. `keys`:
        the schedule key of each record, if any has one. Raises as `append`; TooManySchedules or ScheduleKeyTaken with
        nothing stored."""
        ...

    async def read(
        self,
        queue: QueueKey,
        offset: int,
        *,
        max_bytes: int,
        end_offset: int | None = None,
        tag_hashes: frozenset[int] | None = None,
    ) -> ReadResult:
        """Whole entries from the one containing `offset` on: at least one if there is any, then up to `max_bytes`, and
        none that begins at or behind `end_offset`. With `tag_hashes`, entries in whose index
        units none of them occurs are passed over; what is returned may hold other records too (see `Store.read`)."""
        ...

    def watch(self, topic_id: int, wake: Callable[[Mapping[QueueKey, int]], None]) -> Callable[[], None]:
        """Call `wake` with the queues of a topic that have got records, whenever they have, and the offset that the
        next record of each gets; with none when the topic is gone or the broker cannot be reached; until the answer is
        called. It is called in the middle of something: it may only take note."""
        ...

    async def bounds(self, queue: QueueKey) -> Bounds:
        """The queue's first readable offset, and the one its next record gets. Raises UnknownQueue."""
        ...

    async def first_kept(self, queue: QueueKey) -> int:
        """The first offset that a sealed queue still has, as far as it is known: another node's answer may be some
        seconds old, and stands while that node cannot be reached. Raises UnknownQueue."""
        ...

    async def create_queue(self, queue: QueueKey) -> None:
        """Have a queue, empty and open; one that is there stays as it is. Durable on return."""
        ...

    async def seal_queue(self, queue: QueueKey) -> int:
        """Have a queue take no more records, for good: later appends raise SealedQueue. Returns the offset behind its
        last record, when all that was accepted before is stored. Durable on return; said again, answered the same."""
        ...

    async def export_ids(self, queue: QueueKey, *, into: QueueKey, shift: int, since: int) -> ExportedIds:
        """The next part of what is remembered of the sends to the partition of a queue, from log position `since` on,
        for `import_ids` of the broker that the partition moves to: ids, and the numbers of producers; OFFSET_MAX: the
        numbers alone, of all. `into`: the queue in which the partition goes on; `shift` added makes the queue's offsets
        the partition's."""
        ...

    async def import_ids(self, content: bytes) -> None:
        """Remember what the broker that a partition comes from has told. Durable on return; said again, it changes
        nothing. Raises TooManyIds."""
        ...

    async def expire_queue(self, queue: QueueKey, before_offset: int) -> None:
        """Give up the records of a queue before an offset. Durable on return."""
        ...

    async def offset_for_time(self, queue: QueueKey, time_ms: int, boundary: Boundary) -> int:
        """Search by time; see `store.types.Boundary`. The answer lies within the queue's bounds."""
        ...


class NodeBroker(Broker, Protocol):
    """The broker of a node: each of its queues is sealed once, for good."""

    async def leave_queue(self, queue: QueueKey, *, into: QueueKey, shift: int, since: int) -> tuple[int, ExportedIds]:
        """As `seal_queue`, then `export_ids`, in one call: a partition takes no records meanwhile. Durable on
        return; said again, the end is the same. Raises as both: then the queue may be sealed."""
        ...


@runtime_checkable
class LightQueues(Protocol):
    """What a broker can do with the light queues of its queues. `store.store.Store` says what its methods do."""

    async def light_bounds(self, queue: QueueKey, name: bytes) -> Bounds:
        """See `Store.light_bounds`."""
        ...

    async def read_light(
        self, queue: QueueKey, name: bytes, offset: int, *, max_records: int, max_bytes: int
    ) -> LightRead:
        """See `Store.read_light`."""
        ...

    async def light_names(self, queue: QueueKey, prefix: bytes, *, after: bytes, count: int) -> list[bytes]:
        """See `Store.light_names`."""
        ...

    def note_light(self) -> None:
        """See `Store.note_light`; of another node: before it takes anything that was said after this."""
        ...

    def watch_light(self, queue: QueueKey, name: bytes, end: int | None, wake: LightWake) -> Callable[[], None]:
        """Call `wake` as `Store.watch_light` does, and with None when it may not be told; at first also when its end is
        not `end`, within this call, and where it is told later than now. Until the answer is called."""
        ...
