"""What is known of sends, and which are under way: whether a batch with an identity is a repeat. In memory: over a stop
`Idempotency` keeps it for a store, and for a partition on a Kafka cluster its records do.

Between the check and the append lies no turn of the event loop, and what was appended counts as in flight until its
outcome is known, whether or not its caller still waits: of any number of equal sends one is stored.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence

from store.dedup.ids import DedupIndex
from store.dedup.moved import MovedIds
from store.dedup.producers import ProducerTable, batch_number
from store.errors import AlreadyStored
from store.types import NO_ID, Append, Appended, Identity, Original, ProducerSequence, QueueKey

Waiter = asyncio.Future[list[Appended]]
_InFlight = dict[int, Waiter]  # by sequence


class KnownSends:
    """The identities of one broker. All methods belong to the event loop."""

    def __init__(self, *, window_ms: int, ids_max: int, producer_expiry_ms: int, producers_max: int) -> None:
        self._window_ms = window_ms
        self._new_index: Callable[[], DedupIndex] = lambda: DedupIndex(window_ms=window_ms, ids_max=ids_max)
        self._index = self._new_index()
        self._producers = ProducerTable(expiry_ms=producer_expiry_ms, producers_max=producers_max)
        self._moved = MovedIds(window_ms)
        self._ids_in_flight: dict[bytes, Waiter] = {}
        self._producers_in_flight: dict[tuple[bytes, QueueKey], _InFlight] = {}

    @property
    def id_count(self) -> int:
        """Ids remembered now."""
        return len(self._index) + len(self._moved)

    @property
    def producer_count(self) -> int:
        """Pairs of a producer and a queue remembered now."""
        return len(self._producers)

    def resolved(self, appends: Sequence[Append], now_ms: int) -> Sequence[Append]:
        """The batches with the numbers that their producers' records stand for, as things are now; what is in flight
        counts as stored. Raises SequenceGap, ProducerFenced."""
        return [
            append
            if (identity := append.identity) is None or identity.numbers is None
            else self._resolved(append, now_ms)
            for append in appends
        ]

    def _resolved(self, append: Append, now_ms: int) -> Append:
        identity = append.identity
        assert identity is not None
        assert identity.numbers is not None
        producer_id = identity.numbers.producer_id
        newest = self._producers.newest(append.queue, producer_id, now_ms)
        if (sequences := self._producers_in_flight.get((producer_id, append.queue))) is not None:
            newest = max(sequences) if newest is None else max(newest, *sequences)
        producer = ProducerSequence(producer_id, batch_number(identity.numbers, newest))
        return append.identified(
            Identity(message_ids=identity.message_ids, request=identity.request, producer=producer)
        )

    def following(self, append: Append, now_ms: int) -> Append | None:
        """The batch with its number, if it has nothing but numbers, its producer is known, and it is behind all that
        this one has sent: it is new then, waits for nothing, and needs no more room. Nearly every batch of Kafka's
        producers is so. None: `resolved`, `in_flight` and `check` say. Raises SequenceGap, ProducerFenced."""
        identity = append.identity
        if identity is None or (numbers := identity.numbers) is None or identity.message_ids or identity.request:
            return None
        producer_id, queue = numbers.producer_id, append.queue
        stored = self._producers.newest(queue, producer_id, now_ms)
        if stored is None:
            return None
        newest = max((stored, *self._producers_in_flight.get((producer_id, queue), ())))
        number = batch_number(numbers, newest)
        if number <= newest:
            return None
        return append.identified(Identity(producer=ProducerSequence(producer_id, number)))

    def in_flight(self, appends: Sequence[Append]) -> set[Waiter]:
        """The calls under way that must be answered before it can be said whether these batches are known."""
        waiters: set[Waiter] = set()
        for append in appends:
            identity = append.identity
            if identity is None:
                continue
            ids = _ids_of(identity)
            if ids and self._ids_in_flight and not self._ids_in_flight.keys().isdisjoint(ids):
                waiters.update(self._ids_in_flight[id_] for id_ in ids if id_ in self._ids_in_flight)
            if (producer := identity.producer) is not None:
                sequences = self._producers_in_flight.get((producer.producer_id, append.queue), {})
                if sequences and producer.sequence <= max(sequences):
                    waiters.update(sequences.values())
        return {waiter for waiter in waiters if not waiter.done()}

    def check(self, appends: Sequence[Append], now_ms: int) -> None:
        """Raises AlreadyStored when a record is known, IdentityReused, SequenceGone, TooManyIds. Else all are new."""
        originals: list[Mapping[int, Original]] = []
        id_count = 0
        for append in appends:
            found: dict[int, Original] = {}
            if (identity := append.identity) is not None:
                found = self._index.find(identity, now_ms)
                if self._moved:
                    found = self._moved.find(append, now_ms) | found
                id_count += len(identity.message_ids) + (identity.request is not None)
                if identity.producer is not None:
                    original = self._producers.find(append.queue, identity.producer, now_ms)
                    if original is not None:
                        found[0] = original
            originals.append(found)
        if any(originals):
            raise AlreadyStored(originals)
        if id_count:
            self._index.check_room(id_count + len(self._ids_in_flight) + self._count_elsewhere(), now_ms)
        for append in appends:
            if append.identity is not None and append.identity.producer is not None:
                self._producers.check_room(append.queue, append.identity.producer, now_ms)

    def _count_elsewhere(self) -> int:
        """Ids that are known besides those of the index."""
        return len(self._moved)

    def begin(self, appends: Sequence[Append], outcome: Waiter) -> None:
        """Batches went to the writer: in flight until the outcome is known."""
        ids: list[bytes] = []
        numbered: list[tuple[QueueKey, ProducerSequence]] = []
        for append in appends:
            if (identity := append.identity) is not None:
                ids += _ids_of(identity)
                if identity.producer is not None:
                    numbered.append((append.queue, identity.producer))
        self._ids_in_flight.update(dict.fromkeys(ids, outcome))
        self._ids_in_flight.pop(NO_ID, None)
        for queue, producer in numbered:
            self._producers_in_flight.setdefault((producer.producer_id, queue), {})[producer.sequence] = outcome

        def end(_: Waiter) -> None:
            if not outcome.cancelled():
                outcome.exception()  # its caller may have gone
            for id_ in ids:  # in flight by this outcome alone: who met one of them there has waited
                self._ids_in_flight.pop(id_, None)
            for queue, producer in numbered:
                key = (producer.producer_id, queue)
                sequences = self._producers_in_flight.get(key, {})
                if sequences.get(producer.sequence) is outcome:
                    del sequences[producer.sequence]
                    if not sequences:
                        del self._producers_in_flight[key]

        outcome.add_done_callback(end)


def _ids_of(identity: Identity) -> Sequence[bytes]:
    if identity.request is None:
        return identity.message_ids
    return [*identity.message_ids, identity.request.request_id]
