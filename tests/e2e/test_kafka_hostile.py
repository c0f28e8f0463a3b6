"""What a Kafka port bears: bytes that are no requests, and many clients that say nothing. One real server."""

from __future__ import annotations

import asyncio
import os
import random
import struct
import time
from contextlib import suppress
from pathlib import Path

import aiohttp
import pytest

from gateway.surfaces.kafka.apis import API_VERSIONS, APIS, FETCH, METADATA, PRODUCE
from gateway.surfaces.kafka.schema import encode
from store.limits import MiB
from tests.e2e.kafka_wire import wire
from tests.e2e.server import Server
from tests.e2e.test_kafka import Kafka
from tests.e2e.test_kafka import serving as serving_kafka
from tests.fork_server import EXECUTED
from tests.gateway.surfaces.kafka.test_produce import fetch_request, produce_request
from tests.gateway.surfaces.kafka.test_schema import random_message
from tests.waiting import until

SEED = int(os.environ.get("MQ_TORTURE_SEED", str(random.randrange(2**32))))
FRAMES = 400
LONG_S = 600.0
AT_ONCE = 8
ANSWER_S = 2.0
GROWTH_BYTES_MAX = 64 * MiB
IDLE = 1_000
IDLE_BYTES_MAX = 16 * 1024
FILES_OF_ITS_OWN = 8
"""The server may open so many files meanwhile."""


def _frame(rng: random.Random) -> bytes:
    """A request as a client may send it."""
    api = rng.choice([api for api in APIS.values() if api.name not in ("JoinGroup", "SyncGroup")])
    version = rng.randint(api.min_version, api.max_version)
    if api.key == PRODUCE:
        body = produce_request(version)
    elif api.key == FETCH:
        body = fetch_request(version)
    else:
        body = bytes(
            encode(f"{api.name}Request", version, random_message(f"{api.name}Request", version, rng.randrange(10**6)))
        )
    head = struct.pack(">hhih", api.key, version, rng.randrange(2**31), 1) + b"f"
    return head + (b"\0" if version >= api.flexible else b"") + body


def _mangled(rng: random.Random) -> bytes:
    """Frames of one connection, some of them changed, cut, or with a length that is not theirs."""
    out = b""
    for _ in range(rng.randint(1, 4)):
        frame = bytearray(_frame(rng))
        way = rng.randrange(5)
        if way == 0:
            for _ in range(rng.randint(1, 8)):
                frame[rng.randrange(len(frame))] = rng.randrange(256)
        elif way == 1:
            frame = frame[: rng.randrange(len(frame))]
        elif way == 2:
            at = rng.randrange(len(frame))
            frame[at:at] = rng.choice((b"\xff" * 5, b"\x7f\xff\xff\xff", b"\x80\0\0\0", rng.randbytes(20)))
        size = len(frame) if rng.random() < 0.9 else rng.choice((0, -1, 2**31 - 1, len(frame) + 7))
        out += struct.pack(">i", size) + bytes(frame)
    return out


async def _send(address: str, content: bytes) -> None:
    host, port = address.split(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    with suppress(ConnectionError, TimeoutError):
        writer.write(content)
        writer.write_eof()
        async with asyncio.timeout(ANSWER_S):
            while await reader.read(65536):
                pass
    writer.close()


async def _health(server: Server) -> float:
    """How long an answer takes, s."""
    began_s = time.monotonic()
    async with aiohttp.ClientSession() as session, session.get(f"{server.url}/healthz") as answer:
        assert answer.status == 200
    return time.monotonic() - began_s


async def _fuzz(kafka: Kafka, frames: int, duration_s: float) -> int:
    """Send until both are over; how many connections that were."""
    rng, count, until_s = random.Random(SEED), 0, time.monotonic() + duration_s
    while count < frames or time.monotonic() < until_s:
        await asyncio.gather(*(_send(kafka.address, _mangled(rng)) for _ in range(AT_ONCE)))
        count += AT_ONCE
    return count


async def _bears(tmp_path: Path, frames: int, duration_s: float) -> None:
    print(f"seed {SEED}: repeat with MQ_TORTURE_SEED={SEED}")
    async with serving_kafka(tmp_path, under=EXECUTED) as kafka:
        await kafka.create("orders", 1)
        await _fuzz(kafka, 200, 0)
        before_bytes = kafka.server.rss_bytes()
        count = await _fuzz(kafka, frames, duration_s)
        print(f"{count} connections of up to four frames")
        await _health(kafka.server)
        assert kafka.server.rss_bytes() - before_bytes < GROWTH_BYTES_MAX, count
        # The frames may have deleted it, grown it, or set its settings; a client makes it in passing, then.
        assert await asyncio.to_thread(kafka.send, "orders", [b"after"])
        log = kafka.server.log()
        assert "Traceback" not in log, log[log.index("Traceback") - 300 :][:3_000]


async def test_frames_that_are_none_are_answered_or_end_their_connection(tmp_path: Path) -> None:
    await _bears(tmp_path, FRAMES, 0)


@pytest.mark.long
async def test_ten_minutes_of_frames_that_are_none(tmp_path: Path) -> None:
    await _bears(tmp_path, FRAMES, LONG_S)


@pytest.mark.matrix
async def test_a_thousand_clients_that_say_nothing(tmp_path: Path) -> None:
    async with serving_kafka(tmp_path, under=EXECUTED) as kafka:
        before_bytes, before_files = kafka.server.rss_bytes(), kafka.server.file_count()
        host, port = kafka.address.split(":")
        ask = struct.pack(">ihhih", 10, API_VERSIONS, 0, 1, -1)
        idle = [await asyncio.open_connection(host, int(port)) for _ in range(IDLE)]
        for reader, writer in idle:
            writer.write(ask)
            (size,) = struct.unpack(">i", await reader.readexactly(4))
            await reader.readexactly(size)
        each_bytes = (kafka.server.rss_bytes() - before_bytes) / IDLE
        print(f"{each_bytes / 1024:.1f} KiB for each of {IDLE} idle connections")
        assert each_bytes < IDLE_BYTES_MAX
        assert kafka.server.file_count() - before_files <= IDLE + FILES_OF_ITS_OWN
        async with wire(kafka.address) as client:
            assert (await client.ask(METADATA, 1, {"topics": []}))["brokers"]
        for _, writer in idle:
            writer.close()
        await until(lambda: kafka.server.file_count() <= before_files + FILES_OF_ITS_OWN, pause_s=0.05)
