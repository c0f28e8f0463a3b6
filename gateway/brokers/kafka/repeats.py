"""What a node knows of repeated sends to the partitions that it owns on a Kafka cluster, and what of it is in Kafka.

    mark    a batch with an identity carries it in the first header of its first record, `mq-ids`: blocks as in the
            extension of an entry (store/log/entry.py). Both are stored together. Readers of mq do not see the header
    part    what a partition knew when it came, and, once a tenure is sealed, its producers' newest numbers: the value
            of a record of its own with the header `mq-ids` (store/dedup/moved.py). It belongs to no tenure
    fence   the one that opens a tenure names the offsets of the parts that count: {"v": 1, "ids": [58, 59]}

So a new owner has to read those parts, the tenures of the last window, and the last tenure from its beginning, as the
numbers of producers are known for longer than ids are. Offsets are the partition's everywhere.

Invariants
    K1  whatever is remembered stays true: of a tenure only what lies before its end, or is acknowledged, is taken in
    K2  before a tenure is served all of it is known (`is_known`)
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import count, islice
from operator import itemgetter
from struct import error as StructError

import orjson

from store.dedup.ids import Columns, Row
from store.dedup.journal import JournalDamaged
from store.dedup.known import KnownSends
from store.dedup.moved import PART_BYTES_MAX, Part, decode_part, encode_part, first_part, still_known
from store.dedup.producers import Sent
from store.errors import AlreadyStored, MalformedBatch
from store.topics import partition_of
from store.types import Append, ExportedIds, Identity, QueueKey

MARK = b"mq-ids"

PRODUCERS_PER_PART = 4_000


@dataclass(slots=True)
class _Partition:
    """What is known of one. `queue`: the tenure of which all is known, up to Kafka's offset `until`."""

    queue: QueueKey | None = None
    until: int = 0
    rows: list[tuple[int, Row]] = field(default_factory=list)  # with the offset in Kafka, in order
    parts: dict[int, Columns] = field(default_factory=dict)  # by their offset in Kafka


def encode_opening(offsets: Sequence[int]) -> bytes:
    """The value of the fence that opens a tenure."""
    return orjson.dumps({"v": 1, "ids": offsets})


def decode_opening(value: bytes | None) -> list[int]:
    """The offsets of the parts that count. Raises ValueError."""
    if value is None:
        return []
    fields = orjson.loads(value)
    if fields["v"] != 1:
        raise ValueError(f"the fence is of version {fields['v']}; this program knows 1")
    return list(fields["ids"])


class Repeats(KnownSends):
    """See the module."""

    def __init__(self, *, window_ms: int, ids_max: int, producer_expiry_ms: int, producers_max: int) -> None:
        super().__init__(
            window_ms=window_ms, ids_max=ids_max, producer_expiry_ms=producer_expiry_ms, producers_max=producers_max
        )
        self._partitions: dict[QueueKey, _Partition] = {}
        self._part_numbers = count()
        self._newest_ms = 0

    @property
    def window_ms(self) -> int:
        """How long ids are known."""
        return self._window_ms

    def known_until(self, queue: QueueKey) -> int | None:
        """Kafka's offset up to which a tenure is known here; None: it is not."""
        known = self._partitions.get(partition_of(queue))
        return None if known is None or known.queue != queue else known.until

    def is_known(self, queue: QueueKey, until: int) -> None:
        """All of a tenure is known up to an offset of Kafka."""
        known = self._of(partition_of(queue))
        known.queue, known.until = queue, until

    def forget(self, queue: QueueKey) -> None:
        """This node does not serve a tenure any more, and the partition has gone on elsewhere. What it was told of the
        partition stays: it may be on its way back already."""
        if self.known_until(queue) is not None:
            known = self._of(partition_of(queue))
            known.queue, known.rows = None, []

    def forget_topic(self, topic_id: int) -> None:
        """A topic is gone."""
        for partition in [each for each in self._partitions if each.topic_id == topic_id]:
            del self._partitions[partition]

    def _of(self, partition: QueueKey) -> _Partition:
        if (known := self._partitions.get(partition)) is None:
            known = self._partitions[partition] = _Partition()
        return known

    def refuse_known(self, appends: Sequence[Append], now_ms: int) -> None:
        """As `check`; what is known is said in offsets of the partition."""
        try:
            self.check(appends, now_ms)
        except AlreadyStored as known:
            raise AlreadyStored(
                [{at: one._replace(is_moved=True) for at, one in found.items()} for found in known.originals]
            ) from None

    # ---- taking in -------------------------------------------------------------------------------------------------

    def stored(self, queue: QueueKey, identity: Identity, *, at: int, offset: int, time_ms: int) -> None:
        """A batch of a tenure that is served was acknowledged, at an offset in Kafka, and one of the partition."""
        partition = partition_of(queue)
        self._newest_ms = time_ms = max(time_ms, self._newest_ms)  # another leader's clock may be behind
        if (row := self._numbers_of(partition, identity, at, offset, time_ms)) is not None:
            self._index.add(row)
            self._of(partition).rows.append((at, row))

    def _numbers_of(self, partition: QueueKey, identity: Identity, at: int, offset: int, time_ms: int) -> Row | None:
        """Take in a batch's number; the row of its ids, if it has any."""
        if identity.producer is not None:
            producer_id, sequence = identity.producer
            self._producers.add(partition, producer_id, Sent(sequence, ~offset, at, time_ms), is_durable=True)
        if not identity.message_ids and identity.request is None:
            return None
        return Row(at, offset, time_ms, partition, identity.message_ids, identity.request, b"")

    def read(self, queue: QueueKey, found: Iterable[tuple[Identity, int, int, int]]) -> None:
        """Take in batches of tenures of a partition that were read, in order: identity, offset in Kafka and in the
        partition, and time of each."""
        partition = partition_of(queue)
        known = self._of(partition)
        rows = [row for one in found if (row := self._numbers_of(partition, *one)) is not None]
        known.rows += [(row.position, row) for row in rows]
        if rows:
            self._moved.add(next(self._part_numbers), decode_part(encode_part(rows, {})))

    def decoded(self, content: bytes, now_ms: int) -> Part:
        """A part, if there is room for its ids. Raises TooManyIds, MalformedBatch."""
        try:
            part = decode_part(content)
        except (JournalDamaged, StructError) as error:
            raise MalformedBatch(f"the ids of a partition that moves are not understood: {error}") from error
        self._moved.prune(now_ms)
        if part.rows is not None:
            self._index.check_room(len(part.rows.ids) + len(part.rows.requests) + len(self._moved), now_ms)
        return part

    def told(self, queue: QueueKey, part: Part, *, at: int) -> None:
        """Take in a part that is in Kafka at an offset, in order."""
        partition = partition_of(queue)
        if part.rows is not None:
            self._moved.add(next(self._part_numbers), part)
            self._of(partition).parts[at] = part.rows
        for (producer_id, _), batches in part.producers.items():
            for sent in batches:
                self._producers.add(partition, producer_id, sent, is_durable=True)

    # ---- telling ---------------------------------------------------------------------------------------------------

    def parts_of(self, queue: QueueKey, now_ms: int) -> list[int]:
        """Where the parts of a partition are that say something of the window."""
        self.prune(now_ms)
        return sorted(self._of(partition_of(queue)).parts)

    def producers_of(self, queue: QueueKey) -> list[bytes]:
        """The newest numbers of a partition's producers, as parts."""
        partition = partition_of(queue)
        rows = iter(self._producers.leaving(partition, into=partition, shift=0).items())
        parts = []
        while some := dict(islice(rows, PRODUCERS_PER_PART)):
            parts.append(encode_part([], some))
        return parts

    def export(self, queue: QueueKey, *, into: QueueKey, since: int, is_sealed: bool, now_ms: int) -> ExportedIds:
        """See `Broker.export_ids`, of a tenure that is known; positions are offsets in Kafka."""
        self.prune(now_ms)
        partition = partition_of(queue)
        known = self._of(partition)
        found = [(at, [row]) for at, row in known.rows if at >= since]
        found += [
            (at, still_known(Part(rows, {}), oldest_ms=now_ms - self._window_ms))
            for at, rows in known.parts.items()
            if at >= since
        ]
        rows, following = first_part(sorted(found, key=itemgetter(0)), bytes_max=PART_BYTES_MAX)
        if following is not None:
            return ExportedIds(encode_part(rows, {}), following, is_last=False)
        producers = self._producers.leaving(partition, into=into, shift=0) if is_sealed else {}
        content = encode_part(rows, producers) if rows or producers else b""
        return ExportedIds(content, known.until, is_last=True)

    def prune(self, now_ms: int) -> None:
        """Let go of what is out of the window."""
        oldest_ms = now_ms - self._window_ms
        self._moved.prune(now_ms)
        for known in self._partitions.values():
            known.rows = [one for one in known.rows if one[1].store_time_ms >= oldest_ms]
            known.parts = {at: rows for at, rows in known.parts.items() if max(rows.times_ms) >= oldest_ms}
