"""What a shard of delayed records knows of repeated sends, whichever node owns it.

    entry       has its identity among its blocks, as in the log of a node (timer_shard.py)
    part        a record of the shard with the key PART: the ids of entries (store/dedup/moved.py) that no part before
                it has. Written with each snapshot
    snapshot    names the parts of the window in the metadata (shard_log.py). A new owner reads these, and the entries
                behind the snapshot

Delayed records with an id belong to a shard by what is sent, never by when it comes (gateway/api/producer.py): so a
repeat meets its first, delivered or not.

Invariants
    N1  all that is in the window is known before the shard takes a send
    N2  the ids of an entry are in flight until they are known, so of equal sends one is stored
    N3  a part is named, or all of its rows are read again: they are of entries that the named snapshot does not cover
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from struct import error as StructError

from gateway.cluster.shard_log import PART_BYTES, ShardLog
from store import record_batch
from store.dedup.ids import Row, row_of
from store.dedup.journal import JournalDamaged
from store.dedup.known import KnownSends
from store.dedup.moved import decode_part, encode_part, first_part
from store.errors import Corrupt
from store.types import Entry, QueueKey

PART = b"ids"
"""The key of its record."""

READ_AT_ONCE = 8
"""Parts of PART_BYTES."""

NamedPart = tuple[int, int]
"""The offset of a part, and the time of the newest entry that it knows."""


class ShardIds(KnownSends):
    """See the module. `ids_max` bounds those of all shards of a node together, of which there are `all_count()`."""

    def __init__(self, *, window_ms: int, ids_max: int, all_count: Callable[[], int]) -> None:
        super().__init__(window_ms=window_ms, ids_max=ids_max, producer_expiry_ms=window_ms, producers_max=0)
        self._all_count = all_count
        self._rows: list[Row] = []  # that no part has
        self._parts: list[NamedPart] = []
        self._newest_ms = 0

    def _count_elsewhere(self) -> int:
        return self._all_count() - self.id_count

    def stored(self, entry: Entry) -> None:
        """Take in an entry of the log; entries come in order."""
        identity = entry.identity
        if identity is None or not (identity.message_ids or identity.request):
            return
        self._newest_ms = max(self._newest_ms, entry.store_time_ms)  # another leader's clock may be behind
        row = row_of(entry, identity)._replace(store_time_ms=self._newest_ms)
        self._index.add(row)
        self._rows.append(row)

    async def load(self, parts: Sequence[NamedPart], log: ShardLog, queue: QueueKey, now_ms: int) -> None:
        """Take in the parts that a snapshot names, before all entries behind it. Raises Corrupt, and what the log
        raises."""
        named = [part for part in parts if part[1] >= now_ms - self._window_ms]
        for first in range(0, len(named), READ_AT_ONCE):
            some = named[first : first + READ_AT_ONCE]
            contents = await asyncio.gather(*[_content(log, queue, offset) for offset, _ in some])
            for (offset, newest_ms), content in zip(some, contents, strict=True):
                try:
                    rows = decode_part(content).rows
                except (JournalDamaged, StructError) as error:
                    raise Corrupt(f"ids of a shard of {queue}", offset, str(error)) from error
                if rows is not None:
                    self._index.restore(rows)
                self._parts.append((offset, newest_ms))
                self._newest_ms = max(self._newest_ms, newest_ms)

    async def tell(self, put: Callable[[bytes], Awaitable[int]], before: int, now_ms: int) -> Sequence[NamedPart]:
        """Have parts tell of all entries before an offset, whose appends have all ended or are in flight; those of
        the window, in order. `put` appends a part, and says at which offset it is. Raises what it raises."""
        if in_flight := set(self._ids_in_flight.values()):
            await asyncio.wait(in_flight)
        oldest_ms = now_ms - self._window_ms
        rows = [row for row in self._rows if row.base_offset < before and row.store_time_ms >= oldest_ms]
        self._rows = [row for row in self._rows if row.base_offset >= before]
        try:
            while rows:
                some, _ = first_part(((row.base_offset, [row]) for row in rows), bytes_max=PART_BYTES)
                offset = await put(encode_part(some, {}))
                self._parts.append((offset, some[-1].store_time_ms))
                del rows[: len(some)]
        finally:
            self._rows = rows + self._rows
        self._parts = [part for part in self._parts if part[1] >= oldest_ms]
        return self._parts


async def _content(log: ShardLog, queue: QueueKey, offset: int) -> bytes:
    read = await log.read(queue, offset, max_bytes=1)
    for entry in read.entries[:1]:
        for record in record_batch.decode(entry.batch):
            if record.offset == offset and record.key == PART:
                return record.value or b""
    raise Corrupt(f"ids of a shard of {queue}", offset, "no ids there")
