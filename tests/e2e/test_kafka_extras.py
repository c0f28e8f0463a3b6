"""What mq has beyond Kafka, by Kafka's protocol, while the server is killed: delays that are sent again and survive a
kill, and a group of Kafka's and mq's members."""

from __future__ import annotations

import asyncio
import struct
import time
from functools import partial
from pathlib import Path
from typing import Any

import aiohttp
import confluent_kafka
import pytest
from aiokafka.record.default_records import DefaultRecordBatchBuilder

from gateway.surfaces.kafka.apis import PRODUCE
from tests.e2e.kafka_wire import Wire, wire
from tests.e2e.test_kafka import Kafka, serving
from tests.history import Recorder, Seen, check
from tests.waiting import until

WAIT_S = 30.0
PRODUCE_VERSION = 7


# ---- headers ---------------------------------------------------------------------------------------------------------


def _numbered(headers: list[tuple[str, bytes]], *, sequence: int) -> bytes:
    """A batch of one record, as an idempotent producer numbers it."""
    builder = DefaultRecordBatchBuilder(
        magic=2, compression_type=0, is_transactional=0, producer_id=77, producer_epoch=0, base_sequence=sequence,
        batch_size=10_000,
    )  # fmt: skip
    builder.append(0, int(time.time() * 1000), b"k", b"v%d" % sequence, headers)
    return bytes(builder.build())


async def _sent(client: Wire, topic: str, batch: bytes) -> tuple[int, int]:
    """Error code and offset."""
    name = topic.encode()
    body = struct.pack(">hhiih", -1, -1, 10_000, 1, len(name)) + name
    body += struct.pack(">iii", 1, 0, len(batch)) + batch
    answer = await client.exchange(PRODUCE, PRODUCE_VERSION, body)
    error_code, offset = struct.unpack_from(">hq", answer, 4 + 4 + 2 + len(name) + 4 + 4)
    return error_code, offset


async def test_delays_by_header_that_are_sent_again_named_and_kept_when_the_server_is_killed(tmp_path: Path) -> None:
    async with serving(tmp_path) as kafka, aiohttp.ClientSession() as session:
        await kafka.create("later", 1, mq_headers="true")

        async def named_count() -> int:
            """Schedules that are not due for a while."""
            query = {"topic": "later", "from": str(int(time.time() * 1000) + 60_000)}
            async with session.get(f"{kafka.server.url}/mq/v1/schedules", params=query) as answer:
                return len((await answer.json())["schedules"])

        due = str(int(time.time() * 1000) + 3_000).encode()
        first = _numbered([("mq-deliver-at", due)], sequence=0)
        named = _numbered([("mq-delay-ms", b"600000"), ("mq-schedule-key", b"remind-77")], sequence=1)
        async with wire(kafka.address) as client:
            for batch in (first, first, named, named):
                assert await _sent(client, "later", batch) == (0, -1)
            taken = _numbered([("mq-delay-ms", b"600000"), ("mq-schedule-key", b"remind-77")], sequence=2)
            assert (await _sent(client, "later", taken))[0] == 87
            assert await named_count() == 1
        await kafka.server.kill()
        await kafka.server.start()
        async with wire(kafka.address) as client:
            for batch in (first, named):  # as a client does that had no answer
                assert await _sent(client, "later", batch) == (0, -1)
            assert await named_count() == 1
            url = f"{kafka.server.url}/mq/v1/schedules/remind-77"
            async with session.delete(url, params={"topic": "later"}) as answer:
                assert answer.status == 204, await answer.text()
            assert await _sent(client, "later", taken) == (0, -1)  # its name is free again

        def consume() -> list[bytes]:
            with kafka.consumer("once", "later") as consumer:
                found = []
                until_s = time.monotonic() + WAIT_S
                while not found and time.monotonic() < until_s:
                    found += [message.value() for message in consumer.consume(10, 0.2)]
                return found + [message.value() for message in consumer.consume(10, 0.5)]

        assert await asyncio.to_thread(consume) == [b"v0"]


# ---- mixed groups ----------------------------------------------------------------------------------------------------

PARTITIONS = 4
TOPIC, GROUP = "mixed", "mixed"
KILLS = 2
BETWEEN_S = 4.0


class Mixed:
    """Two members of Kafka's and two of mq's in one group, over a server that is killed; and what all of them saw."""

    def __init__(self, kafka: Kafka) -> None:
        self.kafka = kafka
        self.history = Recorder()
        self.is_over = False
        self.got: set[str] = set()
        self.by_kafka = 0
        self.by_socket = 0

    def produce(self) -> None:
        """Send to all partitions, numbered, until it is over; then until all is acknowledged."""
        producer = self.kafka.producer(enable_idempotence=True, linger_ms=2, reconnect_backoff_max_ms=200)

        def delivered(send: Any, error: object, message: Any) -> None:
            assert error is None, error
            send.ok(time.monotonic() * 1000, message.offset())

        while not self.is_over:
            for number in range(PARTITIONS):
                send = self.history.send(self.history.value("k"), number, time.monotonic() * 1000)
                producer.produce(TOPIC, send.value.encode(), None, number, on_delivery=partial(delivered, send))
            producer.poll(0.01)
        assert producer.flush(WAIT_S) == 0

    def consume(self) -> None:
        """A member of Kafka's: each batch is committed before the next is asked for."""
        with self.kafka.consumer(GROUP, TOPIC, reconnect_backoff_max_ms=200) as consumer:
            while not self.is_over or len(self.got) < len(self.history.sends):
                for message in consumer.consume(50, 0.1):
                    if message.error() is None:
                        value = message.value().decode()
                        self.history.read(message.partition(), [Seen(message.offset(), value)])
                        self.got.add(value)
                        self.by_kafka += 1
                try:
                    consumer.commit(asynchronous=False)
                except confluent_kafka.KafkaException:  # nothing new, a rebalance, or no server
                    time.sleep(0.02)

    async def follow(self, session: aiohttp.ClientSession) -> None:
        """A member by WebSocket; it comes again when the server does."""
        while True:
            try:
                async with session.ws_connect(f"{self.kafka.server.url}/ws/v1", protocols=["mq.v1.json"]) as socket:
                    await self._follow(socket)
            except aiohttp.ClientError:
                await asyncio.sleep(0.05)

    async def _follow(self, socket: aiohttp.ClientWebSocketResponse) -> None:
        await socket.send_json({"op": "hello", "id": 1})
        await socket.send_json(
            {"op": "subscribe", "id": 2, "sub": "s", "mode": "stream", "group": GROUP, "topics": [TOPIC],
             "start": "earliest"}
        )  # fmt: skip
        async for message in socket:
            if message.type is not aiohttp.WSMsgType.TEXT:
                continue
            said = message.json()
            if said.get("op") == "revoked" and not said.get("lost"):
                await socket.send_json({"op": "release", "sub": "s", "partitions": said["partitions"]})
            elif said.get("op") == "messages":
                messages = said["messages"]
                number = messages[0]["partition"]
                seen = [Seen(one["offset"], one["value_text"]) for one in messages]
                self.history.read(number, seen)
                self.got |= {one.value for one in seen}
                self.by_socket += len(seen)
                up_to = [{"topic": TOPIC, "partition": number, "offset": messages[-1]["offset"]}]
                await socket.send_json({"id": 3, "op": "ack", "sub": "s", "up_to": up_to})

    def read_all(self) -> None:
        """The final read."""
        consumer = confluent_kafka.Consumer({"bootstrap.servers": self.kafka.address, "group.id": "all"})
        for number in range(PARTITIONS):
            place = confluent_kafka.TopicPartition(TOPIC, number, 0)
            _, end = consumer.get_watermark_offsets(place, timeout=WAIT_S)
            consumer.assign([place])
            found: list[Seen] = []
            while len(found) < end:
                found += [Seen(one.offset(), one.value().decode()) for one in consumer.consume(1_000, 1.0)]
            self.history.final_read(number, found)
        consumer.close()


@pytest.mark.matrix
async def test_a_mixed_group_while_the_server_is_killed(tmp_path: Path) -> None:
    async with serving(tmp_path) as kafka, aiohttp.ClientSession() as session:
        await kafka.create(TOPIC, PARTITIONS)
        mixed = Mixed(kafka)
        threads = [
            asyncio.create_task(asyncio.to_thread(work)) for work in (mixed.produce, mixed.consume, mixed.consume)
        ]
        sockets = [asyncio.create_task(mixed.follow(session)) for _ in range(2)]
        try:
            for _ in range(KILLS):
                await _both_at_work(mixed)
                await asyncio.sleep(BETWEEN_S)
                await kafka.server.kill()
                await kafka.server.start()
            await _both_at_work(mixed)
            mixed.is_over = True
            await asyncio.wait_for(asyncio.gather(*threads), 120)
        finally:
            mixed.is_over = True
            for task in sockets:
                task.cancel()
        await asyncio.to_thread(mixed.read_all)
        assert check(mixed.history) == []
        assert mixed.got == {send.value for send in mixed.history.sends}
        print(f"{len(mixed.history.sends)} records; by Kafka's members {mixed.by_kafka}, by mq's {mixed.by_socket}")


async def _both_at_work(mixed: Mixed) -> None:
    """Records come to members of both kinds."""
    by_kafka, by_socket = mixed.by_kafka, mixed.by_socket
    await until(lambda: mixed.by_kafka > by_kafka + 100 and mixed.by_socket > by_socket + 100, pause_s=0.05)
