"""Light queues of a topic: one record in many small queues (docs/light-queues.md). Reads, and waiting for what comes.

A light queue is one per partition and name. A reader has all of them, with a next offset for each partition, wherever
their partitions are (gateway/routing/light.py).
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from heapq import nsmallest
from itertools import groupby
from typing import NamedTuple

from gateway.api.read import out_of_range
from gateway.api.turns import COUNTED_BYTES, few_a_turn, in_turns
from gateway.auth.access import Access, Permission, forbidden
from gateway.codec.records import parse_light_name, render_record
from gateway.groups.protocol import Groups, LightPlace
from gateway.routing.base import Routes, TopicView
from gateway.routing.light import LightPartitionReader
from store.errors import StoreError
from store.record_batch import (
    PIECE_RECORDS,
    STEP_ITEMS,
    DecodedRecord,
    decode,
    decode_some,
    is_compressed,
    record_count,
    record_starts,
    uncompressed,
)
from store.turns import others_turn
from store.types import Bounds, Buffer, Entry, LightRecord

PARTITIONS_A_TURN = 64
"""Partitions looked at between two turns of the event loop: some 20 us each."""

LAGS_WAIT_S = 2.0
"""How long a page of lags waits for nodes that do not answer: they may stand still, and there may be one a row."""


class Found(NamedTuple):
    """Records of a light queue, in order for each partition, and where the next read begins in each."""

    records: Sequence[tuple[int, LightRecord]]
    """With their partitions."""

    next_offsets: Mapping[int, int]


class LightReader:
    """Reads light queues of the topics in a route table."""

    def __init__(self, routes: Routes) -> None:
        self._reader = reader = LightPartitionReader(routes)
        self.bounds, self.end, self.stretches, self.read_one = reader.bounds, reader.end, reader.stretches, reader.read
        self.tail = reader.tail

    async def ends(self, topic: str, name: bytes, partitions: Iterable[int]) -> dict[int, int]:
        """The offset that the next record gets at least, of each partition. Raises as `LightPartitionReader`."""
        found = {}
        async for partition in few_a_turn(partitions, per_turn=PARTITIONS_A_TURN):
            found[partition] = await self.end(topic, name, partition)
        return found

    async def end_and_lag(self, topic: str, name: bytes, partition: int, offset: int) -> tuple[int, int]:
        """The offset behind the queue's last record in a partition, and how many records there are from an offset on:
        fewer than the difference where the partition has moved. Raises as `ends`."""
        stretches = await self.stretches(topic, name, partition)
        end = stretches[-1].max_offset if stretches else await self.end(topic, name, partition)
        return end, sum(max(high - max(offset, low), 0) for low, high in stretches)

    async def ends_and_lags(self, places: Sequence[LightPlace]) -> list[tuple[int, int] | None]:
        """`end_and_lag` of each place, of a page of them at once: looking at a local one takes some 40 us. None: the
        node that has it does not answer within LAGS_WAIT_S, or there are no light queues where it is now."""

        async def of_one(place: LightPlace) -> tuple[int, int] | None:
            try:
                return await self.end_and_lag(place.topic, place.queue.encode(), place.partition, place.committed)
            except StoreError:
                return None

        tasks = [asyncio.create_task(of_one(place)) for place in places]
        try:
            if tasks:
                await asyncio.wait(tasks, timeout=LAGS_WAIT_S)
            return [task.result() if task.done() else None for task in tasks]
        finally:
            for task in tasks:
                task.cancel()

    async def names(self, topic: TopicView, prefix: bytes, *, after: bytes, count: int) -> list[bytes]:
        """Up to `count` names behind `after` that begin with `prefix`, of queues that have rows in any partition, in
        the order of their bytes. Raises as `ends`."""
        found: set[bytes] = set()
        async for partition in few_a_turn(range(topic.partitions), per_turn=PARTITIONS_A_TURN):
            found |= await self._reader.names(topic.name, partition, prefix, after=after, count=count)
            if len(found) > count:
                found = set(nsmallest(count, found))
        return sorted(found)

    async def read(
        self, topic: str, name: bytes, offsets: Mapping[int, int], *, max_records: int, max_bytes: int
    ) -> Found:
        """Records from these offsets on, by partition: up to `max_records`, and about `max_bytes` of batches, in all.
        Raises as `ends`, Corrupt."""
        records: list[tuple[int, LightRecord]] = []
        next_offsets = dict(offsets)
        for number, (partition, offset) in enumerate(offsets.items()):
            if number % PARTITIONS_A_TURN == PARTITIONS_A_TURN - 1:
                await others_turn()
            if len(records) >= max_records or max_bytes <= 0:
                break
            read = await self.read_one(
                topic, name, partition, offset, max_records=max_records - len(records), max_bytes=max_bytes
            )
            records += [(partition, record) for record in read.records]
            max_bytes -= sum({record.entry.position: record.entry.size for record in read.records}.values())
            if read.records:
                next_offsets[partition] = read.next_offset
        return Found(records, next_offsets)

    @contextmanager
    def watching(self, topic: str, name: bytes, partitions: Iterable[int], wake: Callable[[], None]) -> Iterator[None]:
        """Within the block, call `wake` when the queue may have got a record in one of these partitions, or be gone.
        Who reads at its beginning misses none."""
        call_offs = []
        try:
            for partition in partitions:
                call_offs.append(self._reader.follow(topic, name, partition, wake))
            yield
        finally:
            for call_off in call_offs:
                call_off()


class _Opened(NamedTuple):
    """An entry whose records can be looked up: all are decoded, where they are few; else it is known where they begin.
    The headers of all may take a hundred times the bytes of the entry."""

    batch: Buffer
    records: Sequence[DecodedRecord] | None
    starts: Sequence[int]

    def at(self, indexes: Sequence[int]) -> Iterable[DecodedRecord]:
        """The records at these indexes."""
        if self.records is None:
            return decode_some(self.batch, self.starts, indexes)
        return [self.records[index] for index in indexes]


def _open_in_steps(batch: Buffer) -> Generator[None, None, _Opened]:
    if record_count(batch) <= PIECE_RECORDS:
        return _Opened(batch, list(decode(batch)), ())
    batch = uncompressed(batch)
    starts: list[int] = []
    left = STEP_ITEMS
    for piece in record_starts(batch):
        starts += piece
        left -= len(piece)
        if left <= 0:
            left = STEP_ITEMS
            yield
    return _Opened(batch, None, starts)


class Rendering:
    """Records of light queues as all surfaces show them. Keeps the entry open that it met last: one entry is in many
    queues, and their readers come one after the other."""

    def __init__(self) -> None:
        self._entry: Entry | None = None
        self._opened: _Opened | None = None  # of that entry
        self._opening = asyncio.Lock()

    async def of(
        self, topic: str, name: bytes, records: Iterable[tuple[int, LightRecord]], *, topic_id: int | None
    ) -> list[dict[str, object]]:
        """Objects for orjson, as of `render_record`, with the queue and the offset there. `topic_id`: with message
        ids."""
        shown: list[dict[str, object]] = []
        shown_name = name.decode()
        async for partition, one, record in self.decoded(records):
            shown.append(self.shown(topic, shown_name, partition, one, record, topic_id=topic_id))
        return shown

    @staticmethod
    def shown(
        topic: str, name: str, partition: int, one: LightRecord, record: DecodedRecord, *, topic_id: int | None
    ) -> dict[str, object]:
        """One object of `of`."""
        item = render_record(topic, partition, record, one.entry, None, topic_id=topic_id)
        item["queue"] = name
        item["queue_offset"] = one.offset
        return item

    async def decoded(
        self, records: Iterable[tuple[int, LightRecord]]
    ) -> AsyncIterator[tuple[int, LightRecord, DecodedRecord]]:
        """Records, each with its partition before it and behind it what is in it. Others have their turn between
        PIECE_RECORDS, and while a large entry is opened."""
        left = PIECE_RECORDS
        for _, of_entry in groupby(records, key=lambda one: (one[1].entry.queue, one[1].entry.position)):
            run = list(of_entry)
            opened = await self._open(run[0][1].entry)
            for first in range(0, len(run), PIECE_RECORDS):
                some = run[first : first + PIECE_RECORDS]
                if len(some) > left:
                    left = PIECE_RECORDS
                    await others_turn()
                left -= len(some)
                found = opened.at([record.record_index for _, record in some])
                for (partition, record), decoded in zip(some, found, strict=True):
                    yield partition, record, decoded

    def decoded_at_once(self, one: LightRecord) -> DecodedRecord | None:
        """What is in a record, if its entry is open or small."""
        opened = self._open_at_once(one.entry)
        if opened is None:
            return None
        [record] = opened.at([one.record_index])
        return record

    def _open_at_once(self, entry: Entry) -> _Opened | None:
        opened = self._kept(entry)
        batch = entry.batch
        if opened is None and len(batch) < COUNTED_BYTES and not is_compressed(batch):  # to count it takes as long
            opened = self._opened = _Opened(batch, list(decode(batch)), ())
            self._entry = entry
        return opened

    async def _open(self, entry: Entry) -> _Opened:
        if (opened := self._open_at_once(entry)) is not None:
            return opened
        async with self._opening:  # who waits finds it open
            if (opened := self._kept(entry)) is None:
                opened = await in_turns(_open_in_steps(entry.batch), is_counted=True)
                self._entry, self._opened = entry, opened
            return opened

    def _kept(self, entry: Entry) -> _Opened | None:
        kept = self._entry  # of two brokers, entries may be at the same position
        is_same = kept is not None and (kept.queue, kept.position) == (entry.queue, entry.position)
        return self._opened if is_same else None


async def commit_light(
    groups: Groups, routes: Routes, group: str, topic: str, name: bytes, offsets: Mapping[int, int]
) -> None:
    """Say how far a group is in a light queue, by partition; not beyond its end. Durable on return. Raises
    NoLightQueues, UnknownQueue, IndexDamaged, RequestError, GroupError, and what writing raises."""
    reader = LightPartitionReader(routes)
    for partition, offset in offsets.items():
        end = await reader.end(topic, name, partition)
        if offset > end:
            bounds = await reader.bounds(topic, name, partition)
            raise out_of_range(topic, partition, offset, Bounds(bounds.min_offset, end))
    await groups.light_offsets.commit(group, topic, name.decode(), offsets)


def names_begin(name: str) -> bytes | None:
    """What names of several light queues begin with (`room/*`); None: it is one name. Raises RequestError."""
    if not name.endswith("*"):
        return None
    return parse_light_name(name[:-1])


def check_light(access: Access, topic: str, name: str) -> None:
    """Raises RequestError unless the light queue, or all those of a name with `*`, may be received from: a right that
    is denied for one of them denies them all."""
    access.check(Permission.RECEIVE, topic=f"{topic}/{name}")
    if name.endswith("*"):
        begin = f"{topic}/{name[:-1]}"
        for scope in access.scopes()[1]:
            if Permission.RECEIVE in scope.permissions and scope.kind != "group" and scope.pattern.startswith(begin):
                raise forbidden(Permission.RECEIVE, f"{topic}/{name}", None)


def check_receives(access: Access, topics: Sequence[str], queue: str | None) -> None:
    """Raises RequestError unless these topics, or of them this light queue, may be received from."""
    for topic in topics:
        if queue is None:
            access.check(Permission.RECEIVE, topic=topic)
        else:
            check_light(access, topic, queue)
