"""Drives PyPI's kafka-bridge-client: a script of its own, see test_clients.py.

usage: bridge_driver.py URL TOPIC PROXY(strimzi|confluent)
"""

import asyncio
import base64
import sys

from kafka_bridge_client import KafkaBridgeConsumer, KafkaBridgeProducer


def produce(url: str, topic: str, values: list[int]) -> None:
    producer = KafkaBridgeProducer(url, timeout=10)
    half = len(values) // 2
    assert producer.sends(topic, [{"key": "k", "value": value} for value in values[:half]])
    assert producer.sends(topic, [{"key": "k", "value": b"%d" % value} for value in values[half:]], binary=True)


async def read(consumer: KafkaBridgeConsumer, count: int) -> list[int]:
    values: list[int] = []
    while len(values) < count:
        for record in await consumer.poll_records(max_bytes=100_000, timeout=2000):
            values.append(int(base64.b64decode(record["value"])))
    return values


async def main(url: str, topic: str, proxy: str) -> None:
    consumer = KafkaBridgeConsumer(
        topic,
        bootstrap_server=url,
        group_id=f"bridge-{proxy}",
        auto_offset_reset="earliest",
        enable_auto_commit=False,
        consumer_name="c1",
        proxy=proxy,
        sleep_interval_seconds=0,
    )
    produce(url, topic, list(range(10)))
    async with consumer:
        assert sorted(await read(consumer, 10)) == list(range(10))
        await consumer.commit()
        print("restart", flush=True)
        sys.stdin.readline()
        produce(url, topic, list(range(10, 20)))
        assert sorted(await read(consumer, 10)) == list(range(10, 20))
        await consumer.commit()
        assert await consumer.poll_records(max_bytes=100_000, timeout=10) == []
    print("done", flush=True)


asyncio.run(main(*sys.argv[1:]))
