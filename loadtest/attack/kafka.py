"""Attacks on the port for Kafka clients: the dearest requests, answers that are not read, requests that stay half."""

from __future__ import annotations

import asyncio
import time
from contextlib import suppress

from loadtest.attack import answers
from loadtest.attack.attack import Attack
from loadtest.attack.attacker import CLOSED, NO_ANSWER, NOT_TRIED, OPEN, Attacker
from loadtest.turns.kafka import TOPIC, fetch, framed, requests
from store.limits import PARTITIONS_MAX
from store.record_batch import Record, encode

MB = 1_000_000
PIECE = bytes(65_536)
ANSWERED = "answered"
TIMEOUT_S = 30.0


async def make_topics(attacker: Attacker, **_: int) -> None:
    """What the requests name."""
    await attacker.make_topic(TOPIC, PARTITIONS_MAX)
    await attacker.make_topic("orders")


async def dear_requests(attacker: Attacker, *, times: int, at_a_time: int, seconds: int) -> None:
    """Each of the requests that name as much as one may, on a connection of its own."""
    made = [request() for _, _, request in requests(bytes(encode([Record(None, b"1", 0)] * 10_000)))] * times
    until_s = time.monotonic() + seconds

    async def one(number: int) -> None:
        if time.monotonic() > until_s:
            attacker.saw(NOT_TRIED)
            return
        connection = await attacker.connect(number, port=attacker.target.kafka_port)
        if connection is None:
            return
        reader, writer = connection
        try:
            async with asyncio.timeout(TIMEOUT_S):
                writer.write(made[number])
                size = int.from_bytes(await reader.readexactly(4), "big")
                await reader.readexactly(size)
                attacker.saw(ANSWERED)
        except TimeoutError:
            attacker.saw(NO_ANSWER)
        except (ConnectionError, asyncio.IncompleteReadError):
            attacker.saw(CLOSED)
        finally:
            writer.transport.abort()

    await attacker.each(len(made), one, at_a_time=at_a_time)


async def unread_answers(attacker: Attacker, *, connections: int, fetches: int, mib: int, seconds: int) -> None:
    """Fetch again and again, and take no byte of it."""
    sent = fetch(answers.TOPIC, 1) * fetches
    held = [
        await attacker.connect(number, receive_bytes=answers.RECEIVE_BYTES, port=attacker.target.kafka_port)
        for number in range(connections)
    ]
    for connection in held:
        if connection is not None:
            connection[1].write(sent)
            connection[1].transport.pause_reading()  # type: ignore[attr-defined]
    await asyncio.sleep(seconds)
    for connection in held:
        if connection is not None:
            attacker.saw(CLOSED if connection[1].transport.is_closing() else OPEN)
            connection[1].transport.abort()


async def half_requests(attacker: Attacker, *, connections: int, announced_mb: int, sent_mb: int, seconds: int) -> None:
    """Announce a request, send part of it, and wait."""
    head = framed(0, b"", 3)[4:]

    async def one(number: int) -> None:
        connection = await attacker.connect(number, port=attacker.target.kafka_port)
        if connection is None:
            return
        reader, writer = connection
        try:
            with suppress(TimeoutError):
                async with asyncio.timeout(seconds):
                    writer.write((announced_mb * MB).to_bytes(4, "big") + head)
                    for _ in range(sent_mb * MB // len(PIECE)):
                        writer.write(PIECE)
                        await writer.drain()
                    await reader.read(1)
                    attacker.saw(CLOSED)
                    return
            attacker.saw(OPEN)
        except ConnectionError:
            attacker.saw(CLOSED)
        finally:
            writer.transport.abort()

    await asyncio.gather(*map(one, range(connections)))


ATTACKS = (
    Attack(
        name="kafka-requests",
        tried="Kafka requests that name 20,000 topics, partitions or groups, each kind {times} times, {at_a_time} at a "
        "time, within {seconds} s",
        run=dear_requests, prepare=make_topics,
        full={"times": 20, "at_a_time": 16, "seconds": 40}, short=None,
    ),
    Attack(
        name="kafka-unread",
        tried="{connections} Kafka connections that fetch 1 MiB of {mib} {fetches} times, nothing read for {seconds} s",
        run=unread_answers, prepare=answers.fill,
        full={"connections": 400, "fetches": 64, "mib": 64, "seconds": 15},
        short={"connections": 8, "fetches": 8, "mib": 4, "seconds": 1},
    ),
    Attack(
        name="kafka-uploads",
        tried="{connections} Kafka connections that announce {announced_mb} MB, send {sent_mb} MB and wait for "
        "{seconds} s",
        run=half_requests,
        full={"connections": 100, "announced_mb": 16, "sent_mb": 8, "seconds": 20},
        short={"connections": 10, "announced_mb": 16, "sent_mb": 2, "seconds": 1},
    ),
)  # fmt: skip
