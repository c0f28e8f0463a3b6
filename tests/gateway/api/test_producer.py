"""gateway/api/producer.py"""

from __future__ import annotations

import asyncio
import zlib
from collections.abc import Sequence
from dataclasses import replace
from typing import cast

import pytest

from gateway.api.producer import KeysTaken, Producer, RequestIdentity
from gateway.brokers.base import AnswerLost, BrokerUnreachable, PartlyStored, all_stored
from gateway.codec.columns import Columns
from gateway.codec.records import Format, ProduceRecord, parse_records
from gateway.codec.tags import tag_hash
from gateway.errors import DELAY_ILLEGAL, RequestError
from gateway.routing.base import UnknownPartition
from gateway.routing.select import PartitionSelector
from gateway.routing.table import RouteTable, Segment
from gateway.surfaces.http.context import Gateway
from gateway.surfaces.rest_v2.produce import rendered_columns, rendered_receipts
from store import record_batch
from store.errors import (
    DiskFull,
    MalformedBatch,
    Overloaded,
    RecordTooLarge,
    SealedQueue,
    StoreError,
    StoreStopped,
    UnknownQueue,
)
from store.limits import BATCH_BYTES_MAX, RECORD_BYTES_MAX
from store.record_batch import Record
from store.topics import TopicConfig
from store.types import Acks, Append, Appended, Delay, Original, QueueKey, ScheduleKey
from tests.clock import START_MS, FakeClock
from tests.gateway.fake_broker import FakeBroker, FakeShard, fake_gateway
from tests.waiting import until
from timer.schedule import decode_schedule_id

DELAY_MS_MAX = 365 * 86_400_000


def record(value: bytes | None = b"1", key: bytes | None = None, **fields: object) -> ProduceRecord:
    empty = ProduceRecord(key, value, [], None, None, None, None, None)
    return empty._replace(**fields)


async def test_records_of_one_key_go_to_its_partition_in_their_order(gateway: Gateway, broker: FakeBroker) -> None:
    records = [record(b"%d" % number, b"k%d" % (number % 5)) for number in range(50)]
    receipts = await gateway.producer.produce("orders", records, json_values=False)
    assert [receipt.partition for receipt in receipts] == [zlib.crc32(item.key or b"") % 4 for item in records]
    for index, receipt in enumerate(receipts):
        entry = broker.entries[QueueKey(16, receipt.partition)][0]
        stored = list(record_batch.decode(entry.batch))[receipt.offset or 0]
        assert stored.value == records[index].value
        assert stored.offset == receipt.offset


@pytest.mark.parametrize("partition", [None, 2])
@pytest.mark.parametrize(
    "odd",
    [
        {}, {"timestamp_ms": 0}, {"timestamp_ms": 5}, {"headers": [("h", b"1")]}, {"tag": "t"}, {"message_group": "g"},
        {"value": None},
    ],
)  # fmt: skip
async def test_a_begun_batch_has_what_each_of_its_records_has(
    gateway: Gateway, broker: FakeBroker, clock: FakeClock, odd: dict[str, object], partition: int | None
) -> None:
    records = [record(b"%d" % number, None if partition is None else b"k") for number in range(3)]
    records[1] = records[1]._replace(**odd)  # type: ignore[arg-type]
    begun = gateway.producer.begin("orders", records, partition=partition, json_values=True, acks=None)
    await begun.outcome
    prepared = gateway.producer._prepare(
        gateway.routes_table.topic("orders"), records, begun.partition, clock.now_ms(), None, None
    )
    (append,) = broker.appends
    assert append.queue.queue_id == begun.partition
    assert partition is None or begun.partition == partition
    assert (append.record_count, append.json_values, begun.record_count) == (3, True, 3)
    assert list(append.tag_hashes) == ([0, tag_hash("t"), 0] if "tag" in odd else [])
    expected = record_batch.encode([stored for _, stored in prepared])
    assert append.batch == record_batch.with_base_offset(expected, 0)


async def test_a_topic_that_goes_while_its_records_are_stored_is_forgotten_and_they_are_answered(
    gateway: Gateway, broker: FakeBroker
) -> None:
    cast(RouteTable, gateway.routes_table).on_removed = gateway.producer.forget
    await gateway.producer.produce("orders", [record()], json_values=True)
    broker.hold = asyncio.Event()
    sending = asyncio.create_task(gateway.producer.produce("orders", [record()], json_values=True))
    await until(lambda: len(broker.appends) == 2)
    await broker.delete_topic("orders")
    broker.hold.set()
    (receipt,) = await sending
    assert receipt.offset is not None
    gateway.producer.count_by_topic("orders", 7)  # a worker tells it late
    assert (gateway.producer.record_counts, gateway.producer.record_count) == ({}, 2)


async def test_each_partition_gets_one_batch(gateway: Gateway, broker: FakeBroker) -> None:
    await gateway.producer.produce("orders", [record(key=b"%d" % n) for n in range(100)], json_values=True)
    assert len(broker.appends) == 4
    assert {append.queue.queue_id for append in broker.appends} == {0, 1, 2, 3}
    assert all(append.json_values for append in broker.appends)


async def test_keyless_records_of_a_request_stay_together_and_requests_take_turns(gateway: Gateway) -> None:
    seen = []
    for _ in range(5):
        receipts = await gateway.producer.produce("orders", [record(), record()], json_values=True)
        assert receipts[0].partition == receipts[1].partition
        assert receipts[1].offset == (receipts[0].offset or 0) + 1
        seen.append(receipts[0].partition)
    assert seen[:4] != [seen[0]] * 4
    assert sorted(seen[:4]) == [0, 1, 2, 3]
    assert seen[4] == seen[0]


async def test_a_records_partition_wins_over_the_requests_and_that_over_the_key(gateway: Gateway) -> None:
    records = [record(key=b"a", partition=3), record(key=b"a"), record()]
    receipts = await gateway.producer.produce("orders", records, partition=1, json_values=True)
    assert [receipt.partition for receipt in receipts] == [3, 1, 1]


@pytest.mark.parametrize("partition", [-1, 4, 2**40])
async def test_an_unknown_partition_stores_nothing(gateway: Gateway, broker: FakeBroker, partition: int) -> None:
    with pytest.raises(UnknownPartition):
        await gateway.producer.produce("orders", [record(), record(partition=partition)], json_values=True)
    with pytest.raises(UnknownPartition):
        await gateway.producer.produce("orders", [record()], partition=partition, json_values=True)
    assert broker.stored_count == 0


async def test_an_unknown_topic_is_said(gateway: Gateway) -> None:
    with pytest.raises(UnknownQueue):
        await gateway.producer.produce("nope", [record()], json_values=True)
    with pytest.raises(UnknownQueue):
        await gateway.producer.produce_batches("nope", bytes(record_batch.encode([Record(None, b"", 0)])))


async def test_timestamps_headers_and_tags_are_stored(gateway: Gateway, broker: FakeBroker) -> None:
    records = [record(timestamp_ms=7, headers=[("a", b"x")], tag="paid"), record()]
    receipts = await gateway.producer.produce("orders", records, partition=0, json_values=True)
    assert [receipt.timestamp_ms for receipt in receipts] == [7, START_MS]
    (append,) = broker.appends
    first, second = record_batch.decode(append.batch)
    assert (first.timestamp, list(first.headers)) == (7, [("a", b"x"), ("mq-tag", b"paid")])
    assert (second.timestamp, list(second.headers)) == (START_MS, [])
    assert append.tag_hashes == [tag_hash("paid"), 0]


async def test_a_request_without_tags_has_no_hashes(gateway: Gateway, broker: FakeBroker) -> None:
    await gateway.producer.produce("orders", [record()], json_values=True)
    assert broker.appends[0].tag_hashes == ()


async def test_delayed_records_go_to_the_timer_in_one_batch(gateway: Gateway, broker: FakeBroker) -> None:
    records = [
        record(b"1", delay_ms=1000, partition=2),
        record(b"2", partition=2),
        record(b"3", deliver_at_ms=START_MS + 5, partition=0, tag="t"),
    ]
    receipts = await gateway.producer.produce("orders", records, json_values=True)
    (append,) = broker.schedules
    assert append.delays == [Delay(START_MS + 1000, 16, 2), Delay(START_MS + 5, 16, 0)]
    assert [item.value for item in record_batch.decode(append.batch)] == [b"1", b"3"]
    assert append.json_values
    assert [(receipt.partition, receipt.offset, receipt.deliver_at_ms) for receipt in receipts] == [
        (2, None, START_MS + 1000),
        (2, 0, None),
        (0, None, START_MS + 5),
    ]
    ids = [decode_schedule_id(receipt.schedule_id or "") for receipt in (receipts[0], receipts[2])]
    assert [(item.due_ms, item[2]) for item in ids] == [(START_MS + 1000, 0), (START_MS + 5, 1)]
    assert ids[0].position == ids[1].position


@pytest.mark.parametrize("is_known", [True, False])
async def test_delayed_records_go_to_the_shards_of_their_partitions_and_keys_those_with_ids_if_all_nodes_know_that(
    gateway: Gateway, broker: FakeBroker, is_known: bool
) -> None:
    shards = {name: FakeShard(name) for name in ("0", "2", "key")}

    def shard(_topic_id: int, partition: int, key: str | None, has_ids: bool) -> FakeShard | None:
        return None if has_ids and not is_known else shards["key" if key else str(partition)]

    cast(RouteTable, gateway.routes_table).timers = shard
    records = [
        record(b"1", delay_ms=1000, partition=2),
        record(b"2", delay_ms=1000, partition=0, schedule_key="mine"),
        record(b"3", delay_ms=1000, partition=2),
        record(b"4", delay_ms=1000, partition=0, msg_id="a"),
    ]
    receipts = await gateway.producer.produce("orders", records, json_values=True)
    [(of_partition, keys)] = shards["2"].schedules
    assert [item.value for item in record_batch.decode(of_partition.batch)] == [b"1", b"3"]
    assert keys == ()
    [(of_key, keys)] = shards["key"].schedules
    assert [item.value for item in record_batch.decode(of_key.batch)] == [b"2"]
    assert keys == [b"mine"]
    with_ids = [append for append, _ in shards["0"].schedules] if is_known else broker.schedules
    assert len(with_ids) == 1
    assert len(shards["0"].schedules) + len(broker.schedules) == 1
    assert with_ids[0].identity is not None
    assert len(with_ids[0].identity.message_ids) == 1
    assert [item.value for item in record_batch.decode(with_ids[0].batch)] == [b"4"]
    assert [decode_schedule_id(receipt.schedule_id or "").position for receipt in receipts[:3]] == 3 * [1 << 48]


async def test_what_a_taken_key_refuses_is_refused_before_anything_is_stored_or_is_said_to_be_stored_in_part(
    gateway: Gateway,
) -> None:
    shards = {name: FakeShard(name) for name in ("none", "free", "taken")}
    shards["taken"].taken = {0: None}

    def shard(_topic_id: int, partition: int, key: str | None, has_ids: bool) -> FakeShard:
        return shards[key or "none"]

    cast(RouteTable, gateway.routes_table).timers = shard
    none, free, taken = (
        record(name.encode(), delay_ms=1000, partition=0, schedule_key=key)
        for name, key in (("none", None), ("free", "free"), ("taken", "taken"))
    )
    with pytest.raises(KeysTaken) as refused:
        await gateway.producer.produce("orders", [none, taken], json_values=True)
    assert list(refused.value.refusals) == [1]
    assert not shards["none"].schedules
    with pytest.raises(AnswerLost):
        await gateway.producer.produce("orders", [free, taken], json_values=True)
    assert [len(one.schedules) for one in shards.values()] == [0, 1, 0]


async def test_a_repeat_whose_due_time_has_come_meets_its_first_in_the_shard_that_has_it(
    gateway: Gateway, broker: FakeBroker, clock: FakeClock
) -> None:
    shard = FakeShard("0")
    cast(RouteTable, gateway.routes_table).timers = lambda *_: shard
    records = [record(b"1", deliver_at_ms=START_MS + 1000, partition=0, msg_id="a")]
    (first,) = await gateway.producer.produce("orders", records, json_values=True)
    clock.step(5000)
    shard.known = {0: Original(QueueKey(16, 0), None, 1 << 48, START_MS, ScheduleKey(START_MS + 1000, 1 << 48, 0))}
    records.append(record(b"2", partition=0))
    again, other = await gateway.producer.produce("orders", records, json_values=True)
    assert again == first._replace(duplicate=True, timestamp_ms=again.timestamp_ms)
    assert (other.offset, other.duplicate) == (0, False)
    for at_once in (record(b"3", partition=0, msg_id="b", delay_ms=0), record(b"4", partition=0, deliver_at_ms=1)):
        (receipt,) = await gateway.producer.produce("orders", [at_once], json_values=True)
        assert receipt.schedule_id is None, "the same whenever it is sent; without an id nobody asks"
    identity = RequestIdentity(b"request".ljust(16), b"contents", 0)
    shard.known = None
    (late,) = await gateway.producer.produce(
        "orders", [record(b"5", partition=0, deliver_at_ms=1)], json_values=True, identity=identity
    )
    assert late.schedule_id is not None


@pytest.mark.parametrize("fields", [{"delay_ms": 0}, {"deliver_at_ms": START_MS}, {"deliver_at_ms": 0}])
async def test_a_due_time_that_has_come_is_an_ordinary_send(
    gateway: Gateway, broker: FakeBroker, fields: dict[str, int]
) -> None:
    (receipt,) = await gateway.producer.produce("orders", [record(**fields)], json_values=True)
    assert (receipt.offset, receipt.schedule_id, receipt.deliver_at_ms) == (0, None, None)
    assert broker.schedules == []


async def test_the_longest_delay_is_the_timers_and_one_more_is_refused(clock: FakeClock) -> None:
    gateway, broker = fake_gateway(clock, timer__delay_max_ms=5000)
    await broker.create_topic("orders", 1)
    for fields in ({"delay_ms": 5000}, {"deliver_at_ms": START_MS + 5000}):
        await gateway.producer.produce("orders", [record(**fields)], json_values=True)
    stored = broker.stored_count
    for fields in ({"delay_ms": 5001}, {"deliver_at_ms": START_MS + 5001}, {"delay_ms": 10**40}, {"delay_ms": -1}):
        with pytest.raises(RequestError) as caught:
            await gateway.producer.produce("orders", [record(), record(**fields)], json_values=True)
        assert caught.value.error_code == DELAY_ILLEGAL
        assert caught.value.validation_errors[0].startswith("records[1].d")
    assert broker.stored_count == stored


async def test_a_year_is_the_default_limit_of_a_delay(gateway: Gateway) -> None:
    assert gateway.limits.delay_ms_max == DELAY_MS_MAX
    await gateway.producer.produce("orders", [record(delay_ms=DELAY_MS_MAX)], json_values=True)


async def test_the_requests_level_is_asked_for_and_the_reached_one_is_told(clock: FakeClock) -> None:
    gateway, broker = fake_gateway(clock, store__acks="written")
    await broker.create_topic("orders", 1)
    producer = gateway.producer
    batch = bytes(record_batch.encode([Record(None, b"", 0)]))
    assert (await producer.produce("orders", [record()], json_values=True))[0].acks is Acks.WRITTEN
    assert (await producer.produce("orders", [record()], json_values=True, acks=Acks.FLUSHED))[0].acks is Acks.FLUSHED
    assert (await producer.produce_batches("orders", batch))[0].acks is Acks.WRITTEN
    assert broker.acks == [Acks.WRITTEN, Acks.FLUSHED, Acks.WRITTEN]
    broker.reached = Acks.FLUSHED
    assert (await producer.produce("orders", [record(delay_ms=5)], json_values=True))[0].acks is Acks.FLUSHED


@pytest.mark.parametrize(
    "one",
    [
        record(b"1", b"k"),
        record(b"1"),
        record(None, None, timestamp_ms=7, headers=[("a", None)], tag="paid"),
        record(b"1", partition=3),
    ],
)
@pytest.mark.parametrize("partition", [None, 2])
async def test_the_short_way_of_one_record_does_what_the_long_way_does(
    clock: FakeClock, one: ProduceRecord, partition: int | None
) -> None:
    outcomes = []
    for records in ([one], [one, one._replace(delay_ms=1000)]):
        gateway, broker = fake_gateway(clock)
        await broker.create_topic("orders", 4)
        receipts = await gateway.producer.produce("orders", records, partition=partition, json_values=True)
        (append,) = broker.appends
        batch = bytes(append.batch)
        outcomes.append((receipts[0], append.queue, batch, list(append.tag_hashes), append.record_count))
        assert append.json_values
        assert gateway.producer.record_counts == {"orders": len(records)}
    assert outcomes[0] == outcomes[1]


async def test_a_store_error_passes_through(gateway: Gateway, broker: FakeBroker) -> None:
    broker.error = StoreStopped("gone")
    with pytest.raises(StoreStopped):
        await gateway.producer.produce("orders", [record()], json_values=True)


async def test_more_than_a_batch_holds_becomes_several_in_order(gateway: Gateway, broker: FakeBroker) -> None:
    records = [record(b"%d" % number * (RECORD_BYTES_MAX // 2)) for number in range(7)]
    assert sum(len(item.value or b"") for item in records) > BATCH_BYTES_MAX
    receipts = await gateway.producer.produce("orders", records, partition=0, json_values=False)
    assert [receipt.offset for receipt in receipts] == list(range(7))
    assert len(broker.appends) > 1
    values = [item.value for entry in broker.entries[QueueKey(16, 0)] for item in record_batch.decode(entry.batch)]
    assert values == [item.value for item in records]
    delayed = await gateway.producer.produce(
        "orders", [item._replace(delay_ms=9) for item in records], json_values=False
    )
    assert len(broker.schedules) > 1
    assert len({receipt.schedule_id for receipt in delayed}) == 7


@pytest.mark.parametrize("gives_way", [True, False])
async def test_many_records_give_way_to_others_only_where_their_order_does_not_count(
    gateway: Gateway, broker: FakeBroker, gives_way: bool
) -> None:
    many = [record(b"%d" % number) for number in range(record_batch.STEP_RECORDS + 1)]
    sending = gateway.producer.produce("orders", many, partition=0, json_values=False, gives_way=gives_way)
    first = asyncio.ensure_future(sending)
    await asyncio.sleep(0)
    await gateway.producer.produce("orders", [record(b"later")], partition=0, json_values=False)
    await first
    [one, other] = broker.entries[QueueKey(16, 0)]
    assert (one.record_count == 1) is gives_way
    assert one.record_count + other.record_count == len(many) + 1


async def test_raw_batches_are_stored_as_they_are(gateway: Gateway, broker: FakeBroker) -> None:
    batches = [record_batch.encode([Record(b"k", b"%d" % n, 5)] * (n + 1)) for n in range(3)]
    receipts = await gateway.producer.produce_batches("orders", b"".join(batches), partition=2)
    assert [(receipt.partition, receipt.offset, receipt.record_count) for receipt in receipts] == [
        (2, 0, 1),
        (2, 1, 2),
        (2, 3, 3),
    ]
    assert [bytes(append.batch) for append in broker.appends] == [bytes(batch) for batch in batches]
    assert not any(append.json_values for append in broker.appends)


async def test_raw_batches_without_a_partition_take_turns(gateway: Gateway) -> None:
    body = bytes(record_batch.encode([Record(b"k", b"1", 5)])) * 4
    receipts = await gateway.producer.produce_batches("orders", body)
    assert sorted(receipt.partition for receipt in receipts) == [0, 1, 2, 3]


async def test_raw_batches_carry_their_tags_into_the_index(gateway: Gateway, broker: FakeBroker) -> None:
    tagged = record_batch.encode([Record(None, b"1", 5, [("mq-tag", b"paid")])])
    await gateway.producer.produce_batches("orders", bytes(tagged))
    assert broker.appends[0].tag_hashes == [tag_hash("paid")]


@pytest.mark.parametrize("cut", [1, 30, 61, -1])
async def test_one_bad_raw_batch_refuses_all(gateway: Gateway, broker: FakeBroker, cut: int) -> None:
    good = bytes(record_batch.encode([Record(b"k", b"1", 5)]))
    with pytest.raises(MalformedBatch):
        await gateway.producer.produce_batches("orders", good + good[:cut])
    damaged = bytearray(good)
    damaged[-1] ^= 1
    with pytest.raises(MalformedBatch):
        await gateway.producer.produce_batches("orders", good + bytes(damaged))
    assert broker.stored_count == 0


async def test_an_empty_or_misplaced_raw_body_is_refused(gateway: Gateway, broker: FakeBroker) -> None:
    with pytest.raises(RequestError):
        await gateway.producer.produce_batches("orders", b"")
    with pytest.raises(UnknownPartition):
        await gateway.producer.produce_batches(
            "orders", bytes(record_batch.encode([Record(None, b"", 0)])), partition=4
        )
    assert broker.stored_count == 0


async def test_a_record_no_batch_can_hold_is_refused(gateway: Gateway) -> None:
    with pytest.raises(RecordTooLarge):
        await gateway.producer.produce("orders", [record(b"x" * BATCH_BYTES_MAX)], json_values=False)


async def test_what_was_sent_is_counted(gateway: Gateway) -> None:
    await gateway.producer.produce("orders", [record(), record(delay_ms=5)], json_values=True)
    await gateway.producer.produce_batches("orders", bytes(record_batch.encode([Record(None, b"", 0)] * 3)))
    assert gateway.producer.record_counts == {"orders": 5}
    assert gateway.producer.scheduled_count == 1
    assert gateway.producer.byte_count > 0


async def test_batches_are_stored_compressed_when_so_configured_and_read_the_same(clock: FakeClock) -> None:
    gateway, broker = fake_gateway(clock, compression="zstd")
    await broker.create_topic("orders", 1)
    records = parse_records(
        [{"value": {"number": number, "text": "x" * 50}} for number in range(200)], Format.JSON, raw_keys=False
    )
    await gateway.producer.produce("orders", records, json_values=True)
    [append] = broker.appends
    assert record_batch.is_compressed(append.batch)
    fetched = await gateway.consumer.fetch("orders", 0, 0, max_bytes=1)
    values = [record.value for entry in fetched.entries for record in record_batch.decode(entry.batch)]
    assert values == [record.value for record in records]


@pytest.mark.parametrize("compress", [False, True])
@pytest.mark.parametrize("partition", [None, 2])
@pytest.mark.parametrize("keys", [None, [b"%d" % (number % 7) for number in range(50)]])
async def test_columns_are_stored_and_answered_as_the_same_records_are(
    keys: list[bytes] | None, partition: int | None, compress: bool
) -> None:
    values = [None if number % 9 == 0 else b'{"n":%d}' % number for number in range(50)]
    columns = Columns(keys, values)
    records = [record(value, None if keys is None else keys[index]) for index, value in enumerate(values)]
    (one, ones), (other, others) = (
        fake_gateway(FakeClock(), compression="zstd" if compress else "none") for _ in range(2)
    )
    for made in (ones, others):
        await made.create_topic("orders", 4)
    for _ in range(2):  # the second time offsets do not begin at 0, and the round robin has moved on
        receipts = await one.producer.produce("orders", records, partition=partition, json_values=True)
        stored = await other.producer.produce_columns(
            "orders", columns, partition=partition, json_values=True, acks=None
        )
        assert stored is not None
        assert rendered_columns(stored, len(values)) == rendered_receipts(receipts)
    assert [replace(append, batch=bytes(append.batch)) for append in others.appends] == [
        replace(append, batch=bytes(append.batch)) for append in ones.appends
    ]
    assert other.producer.record_counts == one.producer.record_counts == {"orders": 100}
    assert other.producer.byte_count == one.producer.byte_count


async def test_columns_that_are_too_much_for_one_batch_or_a_topic_are_left_to_produce(
    gateway: Gateway, broker: FakeBroker
) -> None:
    async def produced(*values: bytes, topic: str = "orders") -> bool:
        columns = Columns(None, list(values))
        stored = await gateway.producer.produce_columns(topic, columns, partition=0, json_values=False, acks=None)
        return stored is not None

    half = b"x" * (BATCH_BYTES_MAX // 2)
    assert not await produced(half, half)
    assert broker.stored_count == 0
    await broker.create_topic("small", 1, config=TopicConfig(max_message_bytes=5))
    assert await produced(b"12345", b"1", topic="small")
    assert not await produced(b"123456", b"1", topic="small")
    assert broker.stored_count == 2
    with pytest.raises(UnknownQueue):
        await produced(b"1", topic="nope")
    with pytest.raises(UnknownPartition):
        await gateway.producer.produce_columns(
            "orders", Columns(None, [b"1"] * 2), partition=4, json_values=False, acks=None
        )


class TwoBrokers:
    """A gateway whose topic `orders` has partitions 0 and 1 on broker `fake`, 2 and 3 on `other`."""

    def __init__(self, clock: FakeClock) -> None:
        self.gateway, self.first = fake_gateway(clock)
        self.second = FakeBroker(clock)
        self.second.name = "other"
        self.routes = cast(RouteTable, self.gateway.routes_table)
        self.producer = Producer(
            self.routes, PartitionSelector(self.routes), clock=clock, limits=self.gateway.limits, acks=Acks.FLUSHED
        )

    async def start(self) -> None:
        await self.first.create_topic("orders", 4)
        for partition in (2, 3):
            topic_id = self.routes.topic("orders").topic_id
            self.routes.set_chain("orders", partition, (Segment(self.second, QueueKey(topic_id, partition)),))

    async def sent(self, how: str) -> int:
        """Send something that any partition may take, in one of the ways there are; where it went."""
        if how == "one":
            return (await self.producer.produce("orders", [record()], json_values=True))[0].partition
        if how == "many":
            return (await self.producer.produce("orders", [record(), record()], json_values=True))[1].partition
        if how == "selector":
            keyed = [record(key=b"0"), record(key=b"1")]
            receipts = await self.producer.produce("orders", keyed, json_values=True, selector="round_robin")
            return receipts[0].partition
        if how == "raw":
            return (await self.producer.produce_batches("orders", bytes(record_batch.encode([PLAIN]))))[0].partition
        columns = Columns(None, [b"1", b"2"])
        (stored,) = await self.producer.produce_columns(
            "orders", columns, partition=None, json_values=True, acks=None
        ) or [None]
        assert stored is not None
        return stored.partition


PLAIN = Record(None, b"1", START_MS)


@pytest.mark.parametrize("error", [BrokerUnreachable("refused"), DiskFull("full")])
@pytest.mark.parametrize("how", ["one", "many", "selector", "raw", "columns"])
async def test_what_any_partition_may_take_goes_to_another_broker_when_nothing_was_stored(
    how: str, error: StoreError
) -> None:
    world = TwoBrokers(FakeClock())
    await world.start()
    world.first.error = error
    partitions = [await world.sent(how) for _ in range(3)]
    assert set(partitions) <= {2, 3}
    assert world.second.append_count == 3
    assert world.routes.faults.is_reachable("local") is not isinstance(error, BrokerUnreachable)
    world.second.error = Overloaded("busy")
    with pytest.raises((BrokerUnreachable, DiskFull, Overloaded)):
        await world.sent(how)
    world.first.error = world.second.error = None
    assert await world.sent(how) in range(4)


@pytest.mark.parametrize(
    "sent",
    [record(key=b"2"), record(partition=0), record(msg_id="3"), record(message_group="2"), record(key=b"a")],
)
async def test_what_has_a_partition_waits_for_its_broker(sent: ProduceRecord) -> None:
    world = TwoBrokers(FakeClock())
    await world.start()
    (receipt,) = await world.producer.produce("orders", [sent], json_values=True)
    owner, other = (world.first, world.second) if receipt.partition < 2 else (world.second, world.first)
    owner.error = BrokerUnreachable("refused")
    for records in ([sent], [sent, sent]):
        with pytest.raises(BrokerUnreachable):
            await world.producer.produce("orders", records, json_values=True)
    assert other.append_count == 0


async def test_an_answer_that_was_lost_and_what_meets_a_move_are_not_sent_elsewhere() -> None:
    world = TwoBrokers(FakeClock())
    await world.start()
    world.first.error = SealedQueue("moves")
    with pytest.raises(SealedQueue):
        await world.sent("one")
    assert not world.routes.faults
    world.first.error = AnswerLost("lost")
    with pytest.raises(AnswerLost):
        await world.sent("one")
    assert world.routes.faults.unreachable() == ["local"]
    assert await world.sent("one") in (2, 3), "the next one avoids it"


class OneByOne(FakeBroker):
    """Stores the batches of a call one by one, as a Kafka cluster does."""

    async def append(self, appends: Sequence[Append], *, acks: Acks) -> list[Appended]:
        return await all_stored([super(OneByOne, self).append([append], acks=acks) for append in appends])


@pytest.mark.parametrize("columns", [False, True])
async def test_what_was_stored_of_a_call_of_which_one_partition_moves_is_not_sent_again(columns: bool) -> None:
    world = TwoBrokers(FakeClock())
    await world.start()
    kafka, topic_id = OneByOne(FakeClock()), world.routes.topic("orders").topic_id
    for partition in range(4):
        world.routes.set_chain("orders", partition, (Segment(kafka, QueueKey(topic_id, partition)),))
    kafka.sealed.add(QueueKey(topic_id, 2))
    keys = [b"%d" % number for number in range(40)]

    async def send() -> Sequence[object]:
        if columns:
            sent = Columns(list(keys), [b"1"] * len(keys))
            return (
                await world.producer.produce_columns("orders", sent, partition=None, json_values=True, acks=None) or ()
            )
        return await world.producer.produce("orders", [record(key=key) for key in keys], json_values=True)

    sending = asyncio.create_task(send())
    for _ in range(20):
        await asyncio.sleep(0)
    assert not sending.done()
    chain = (Segment(kafka, QueueKey(topic_id, 2), physical_end=0), Segment(world.second, QueueKey(topic_id, 9)))
    world.routes.set_chain("orders", 2, chain)
    assert await sending
    assert sum(append.record_count for append in (*kafka.appends, *world.second.appends)) == len(keys)
    assert {append.queue.queue_id for append in world.second.appends} == {9}


async def test_a_request_of_which_a_part_was_stored_has_an_unknown_outcome() -> None:
    world = TwoBrokers(FakeClock())
    await world.start()
    world.second.error = DiskFull("full")
    with pytest.raises(AnswerLost, match="a part of the request was stored"):
        await world.producer.produce("orders", [record(partition=0), record(partition=3)], json_values=True)
    world.first.error = DiskFull("full")
    with pytest.raises(DiskFull):
        await world.producer.produce("orders", [record(partition=0), record(partition=3)], json_values=True)


async def test_of_batches_that_are_stored_one_by_one_the_answer_says_what_is_known() -> None:
    async def stored(outcome: Appended | Exception) -> list[Appended]:
        if isinstance(outcome, Exception):
            raise outcome
        return [outcome]

    there, sealed, lost = Appended(1, 0, 1, Acks.FLUSHED), SealedQueue("moves"), AnswerLost("lost")
    assert await all_stored([stored(there), stored(there)]) == [there, there]
    with pytest.raises(PartlyStored) as partly:
        await all_stored([stored(there), stored(sealed)])
    assert (list(partly.value.answers), partly.value.error) == ([there, None], sealed)
    with pytest.raises(SealedQueue):
        await all_stored([stored(sealed), stored(DiskFull("full"))])
    with pytest.raises(AnswerLost, match="lost"):
        await all_stored([stored(sealed), stored(there), stored(lost)])
