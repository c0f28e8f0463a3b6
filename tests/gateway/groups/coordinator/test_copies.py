"""gateway.groups.coordinator.copies: retries and dead letters in batches, in topics made when first needed."""

from __future__ import annotations

from gateway.groups.coordinator.copies import BATCH_BYTES, Copy, CopyWriter, _cut, copied_from
from gateway.groups.coordinator.records import Stored
from gateway.groups.machines.copies import Origin, dead_letter_topic, origin_of, retry_copy, retry_topic
from gateway.groups.machines.progress import PartitionKey
from store import record_batch
from store.record_batch import DecodedRecord, Record
from tests.gateway.fake_broker import FakeShard
from tests.gateway.groups.coordinator.world import world

G = "billing"


def record(value: bytes) -> DecodedRecord:
    (decoded,) = record_batch.decode(bytes(record_batch.encode([Record(b"k", value, 1)])))
    return decoded


def test_copies_are_cut_into_batches_by_size_and_none_is_left_out() -> None:
    large = [Copy(Record(None, b"x" * (BATCH_BYTES // 3), 0), True) for _ in range(7)]
    parts = list(_cut(large))
    assert [len(part) for part in parts] == [2, 2, 2, 1]
    assert list(_cut([Copy(Record(None, b"x" * (2 * BATCH_BYTES), 0), True)])) != []
    assert list(_cut([])) == []


def test_the_first_place_is_kept_but_only_where_we_wrote_it() -> None:
    origin = Origin("orders", 1, 42, 3, True)
    copy = retry_copy(record(b"v"), origin)
    (decoded,) = record_batch.decode(bytes(record_batch.encode([copy])))
    stored = Stored(decoded, 7, 0, True, False)
    assert copied_from(G, retry_topic(G), PartitionKey(17, 0), stored, 4) == Origin("orders", 1, 42, 4, True)
    assert copied_from(G, "orders", PartitionKey(16, 0), stored, 4) == Origin("orders", 0, 7, 4, False), (
        "a sender's header says nothing"
    )


async def test_retries_go_to_partitions_as_configured_and_dead_letters_to_one() -> None:
    async with world() as made:
        await made.groups.configure(G, {"retry_partitions": 2})
        writer = CopyWriter(made.groups._context)
        copies = [Copy(retry_copy(record(b"%d" % n), Origin("orders", n, 0, 1, False)), True, n) for n in range(3)]
        await writer.retry_now(G, copies)
        assert [value for value, _ in await made.records(retry_topic(G), 0)] == [b"0", b"2"]
        assert [value for value, _ in await made.records(retry_topic(G), 1)] == [b"1"]
        await writer.dead_letter(G, copies)
        assert [value for value, _ in await made.records(dead_letter_topic(G))] == [b"0", b"1", b"2"]
        assert made.groups.stats.dead_letter_count == 3


async def test_retries_with_a_delay_go_to_the_shard_of_their_topic_when_there_is_one() -> None:
    async with world() as made:
        writer = CopyWriter(made.groups._context)
        shard = FakeShard("__timer/3")
        made.routes.timers = lambda *_: shard
        await writer.schedule(G, [Copy(retry_copy(record(b"1"), Origin("orders", 0, 0, 1, False)), True, due_ms=9)])
        [(append, _)] = shard.schedules
        assert [(delay.due_ms, delay.partition) for delay in append.delays] == [(9, 0)]
        assert made.groups.stats.retry_count == 1


def test_a_record_without_our_headers_is_no_copy() -> None:
    assert origin_of(record(b"v").headers) is None
