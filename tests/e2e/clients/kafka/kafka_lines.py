"""Python's Kafka clients for tests/e2e/test_kafka_clients.py: lines in, what is acknowledged or consumed out.

kafka_lines.py confluent|aiokafka|kafka-python produce ADDRESS TOPIC    sends each line of standard input; prints it
                                                                        when it is acknowledged
kafka_lines.py confluent|aiokafka|kafka-python consume ADDRESS TOPIC GROUP    prints what it consumes, until killed
"""

from __future__ import annotations

import asyncio
import sys
import time
from contextlib import suppress
from typing import Any

DELIVERY_MS = 90_000
SESSION_MS, HEARTBEAT_MS, COMMIT_MS = 6_000, 500, 200


def _confluent_produce(address: str, topic: str) -> None:
    import confluent_kafka

    failures = []

    def on_delivery(error: object, message: Any) -> None:
        if error is None:
            print(message.value().decode(), flush=True)
        else:
            failures.append(error)

    producer = confluent_kafka.Producer(
        {"bootstrap.servers": address, "enable.idempotence": True, "message.timeout.ms": DELIVERY_MS, "log_level": 0}
    )
    for line in sys.stdin:
        value = line.strip()
        producer.produce(topic, value, value, on_delivery=on_delivery)
        producer.poll(0)
    if producer.flush(DELIVERY_MS / 1000) or failures:
        sys.exit(f"not delivered: {failures[:3]}")


def _confluent_consume(address: str, topic: str, group: str) -> None:
    import confluent_kafka

    consumer: Any = confluent_kafka.Consumer(
        {
            "bootstrap.servers": address, "group.id": group, "auto.offset.reset": "earliest", "log_level": 0,
            "session.timeout.ms": SESSION_MS, "heartbeat.interval.ms": HEARTBEAT_MS,
            "auto.commit.interval.ms": COMMIT_MS, "enable.auto.offset.store": False,
        }
    )  # fmt: skip
    consumer.subscribe([topic])
    while True:
        message = consumer.poll(0.1)
        if message is not None and message.error() is None:
            print(message.value().decode(), flush=True)
            with suppress(confluent_kafka.KafkaException):  # the partition has gone to another member meanwhile
                consumer.store_offsets(message)


async def _aiokafka_produce(address: str, topic: str) -> None:
    import aiokafka

    producer = aiokafka.AIOKafkaProducer(
        bootstrap_servers=address, enable_idempotence=True, acks="all", request_timeout_ms=DELIVERY_MS
    )
    await producer.start()
    loop = asyncio.get_running_loop()
    sent: set[asyncio.Future[None]] = set()

    async def send(value: str) -> None:
        await (await producer.send(topic, value.encode(), value.encode()))
        print(value, flush=True)

    while line := await loop.run_in_executor(None, sys.stdin.readline):
        sent.add(asyncio.ensure_future(send(line.strip())))
    await asyncio.gather(*sent)
    await producer.stop()


async def _aiokafka_consume(address: str, topic: str, group: str) -> None:
    import aiokafka

    consumer = aiokafka.AIOKafkaConsumer(
        topic, bootstrap_servers=address, group_id=group, auto_offset_reset="earliest",
        session_timeout_ms=SESSION_MS, heartbeat_interval_ms=HEARTBEAT_MS, auto_commit_interval_ms=COMMIT_MS,
    )  # fmt: skip
    await consumer.start()
    async for message in consumer:
        print(message.value.decode(), flush=True)


def _pure_produce(address: str, topic: str) -> None:
    import kafka

    producer = kafka.KafkaProducer(
        bootstrap_servers=address, enable_idempotence=True, acks="all", delivery_timeout_ms=DELIVERY_MS
    )
    failures = []
    for line in sys.stdin:
        value = line.strip()
        sent = producer.send(topic, value.encode(), value.encode())
        sent.add_callback(lambda _, value=value: print(value, flush=True)).add_errback(failures.append)
    producer.flush(DELIVERY_MS / 1000)
    if failures:
        sys.exit(f"not delivered: {failures[:3]}")


def _pure_consume(address: str, topic: str, group: str) -> None:
    import kafka

    consumer = kafka.KafkaConsumer(
        topic, bootstrap_servers=address, group_id=group, auto_offset_reset="earliest", session_timeout_ms=SESSION_MS,
        heartbeat_interval_ms=HEARTBEAT_MS, auto_commit_interval_ms=COMMIT_MS,
    )  # fmt: skip
    while True:
        try:
            found = consumer.poll(500)
        except kafka.errors.KafkaError:  # this client passes on that no server is there now
            time.sleep(0.1)
            continue
        for messages in found.values():
            for message in messages:
                print(message.value.decode(), flush=True)


def main(library: str, way: str, *args: str) -> None:
    """See the module's docstring."""
    if library == "confluent":
        (_confluent_produce if way == "produce" else _confluent_consume)(*args)
    elif library == "kafka-python":
        (_pure_produce if way == "produce" else _pure_consume)(*args)
    else:
        asyncio.run((_aiokafka_produce if way == "produce" else _aiokafka_consume)(*args))


if __name__ == "__main__":
    main(*sys.argv[1:])
