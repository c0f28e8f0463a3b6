"""Attacks by those who ask for much and take it slowly, or not at all."""

from __future__ import annotations

import asyncio
import random

import aiohttp
import orjson

from loadtest.attack.attack import Attack, MiB
from loadtest.attack.attacker import CLOSED, OPEN, Attacker, SetupFailed, status_of
from loadtest.bench.payloads import BATCH_TYPE, JSON_TYPE
from store.record_batch import encode_columns

TOPIC = "answers"
VALUE_BYTES = 1_000
BATCH_RECORDS = 1_000
RECEIVE_BYTES = 4_096
CREDIT_MAX = 10_000


async def fill(attacker: Attacker, *, mib: int, **others: int) -> None:
    """Store so much in one partition, and a little more."""
    await attacker.make_topic(TOPIC)
    dice = random.Random(mib)  # what compresses well is no large answer
    values = [orjson.dumps(dice.randbytes(VALUE_BYTES // 2).hex()) for _ in range(BATCH_RECORDS)]
    body = bytes(encode_columns(None, values, 1_767_225_600_000))
    for _ in range(mib * MiB // (VALUE_BYTES * BATCH_RECORDS) + 2):
        answer = await attacker.ask(
            "POST", f"/topics/{TOPIC}/partitions/0", body=body, headers={"Content-Type": BATCH_TYPE}
        )
        if answer.status != 200:
            raise SetupFailed(f"a batch was not stored: {answer.status} {answer.body[:200]!r}")


def fetch(mib: int) -> str:
    """The path that answers so much."""
    return f"/topics/{TOPIC}/partitions/0/records?offset=0&max_bytes={mib * MiB}"


async def unread_fetches(attacker: Attacker, *, fetches: int, mib: int, seconds: int) -> None:
    """Ask, and take no byte of the answer."""
    head = attacker.head("GET", fetch(mib), {"Accept": JSON_TYPE})
    await _unread(attacker, head, fetches, seconds)


async def unread_streams(attacker: Attacker, *, streams: int, mib: int, seconds: int) -> None:
    """Server-Sent Events and lines, from the first record on."""
    for accept in ("text/event-stream", "application/x-ndjson"):
        head = attacker.head("GET", f"/mq/v1/topics/{TOPIC}/sse?from=earliest", {"Accept": accept})
        await _unread(attacker, head, streams // 2, seconds)


async def _unread(attacker: Attacker, head: bytes, count: int, seconds: int) -> None:
    held = [await attacker.connect(number, receive_bytes=RECEIVE_BYTES) for number in range(count)]
    for connection in held:
        if connection is not None:
            connection[1].write(head)
            connection[1].transport.pause_reading()  # type: ignore[attr-defined]
    await asyncio.sleep(seconds)
    await asyncio.gather(*(_count_beginning(attacker, *connection) for connection in held if connection))


async def _count_beginning(attacker: Attacker, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """What an answer begins with; the rest is never read."""
    writer.transport.resume_reading()  # type: ignore[attr-defined]
    try:
        async with asyncio.timeout(1):
            attacker.saw(status_of(await reader.read(100)) or CLOSED)
    except TimeoutError:
        attacker.saw(OPEN)
    except ConnectionError:
        attacker.saw(CLOSED)
    finally:
        writer.transport.abort()


async def read_fetches(attacker: Attacker, *, fetches: int, mib: int, at_a_time: int) -> None:
    """Ask for as much, and read it all; 503 is an answer too."""

    async def one(_: int) -> None:
        answer = await attacker.ask("GET", fetch(mib), headers={"Accept": JSON_TYPE})
        if answer.status == 200 and not answer.body.rstrip().endswith(b"]"):
            attacker.wrong("an answer is cut off")

    await attacker.each(fetches, one, at_a_time=at_a_time)


async def unread_sockets(attacker: Attacker, *, sockets: int, mib: int, seconds: int) -> None:
    """Subscribe with all the credit there is, and read nothing."""
    subscribe = {
        "id": 1, "op": "subscribe", "sub": "s", "topics": [TOPIC], "from": "earliest",
        "credit": CREDIT_MAX, "credit_bytes": 64 * MiB,
    }  # fmt: skip
    held: list[aiohttp.ClientWebSocketResponse] = []
    for _ in range(sockets):
        # Its reader stops taking bytes at 64 KiB that its caller did not ask for.
        socket = await attacker.session.ws_connect("/ws/v1", max_msg_size=0, autoping=False, compress=0)
        await socket.send_str(orjson.dumps(subscribe).decode())
        held.append(socket)
    await asyncio.sleep(seconds)
    await asyncio.gather(*(_drain(attacker, socket) for socket in held))


async def _drain(attacker: Attacker, socket: aiohttp.ClientWebSocketResponse) -> None:
    """Count how it ended, behind what had come before."""
    try:
        async with asyncio.timeout(1):
            async for _ in socket:
                pass
    except TimeoutError:
        attacker.saw(OPEN)
    else:
        attacker.saw(f"socket closed with {socket.close_code}")


ATTACKS = (
    Attack(
        name="unread-fetches",
        tried="{fetches} JSON fetches of {mib} MiB, nothing read for {seconds} s",
        run=unread_fetches, prepare=fill,
        full={"fetches": 40, "mib": 64, "seconds": 20}, short={"fetches": 4, "mib": 4, "seconds": 1},
    ),
    Attack(
        name="read-fetches",
        tried="{fetches} JSON fetches of {mib} MiB, read to the end, {at_a_time} at a time",
        run=read_fetches, prepare=fill,
        full={"fetches": 8, "mib": 64, "at_a_time": 4}, short={"fetches": 2, "mib": 4, "at_a_time": 2},
    ),
    Attack(
        name="unread-sockets",
        tried="{sockets} WebSocket subscriptions to {mib} MiB with all credit, nothing read for {seconds} s",
        run=unread_sockets, prepare=fill,
        full={"sockets": 40, "mib": 64, "seconds": 15}, short={"sockets": 4, "mib": 4, "seconds": 1},
    ),
    Attack(
        name="unread-streams",
        tried="{streams} event streams of {mib} MiB, nothing read for {seconds} s",
        run=unread_streams, prepare=fill,
        full={"streams": 40, "mib": 64, "seconds": 12}, short={"streams": 2, "mib": 4, "seconds": 1},
    ),
)  # fmt: skip
