"""`python -m loadtest.bench.push`: how fast sockets are fed, beside a bare aiohttp socket with frames of the same size.

    one subscriber, JSON     records of 85 bytes from the log to one socket, 256 a frame
    one subscriber, batches  the same as stored RecordBatches
    fan-out                  batches of 100 records to 1,000 readers of one partition; counted are deliveries

The client only counts frames by their headers, so the server is what is measured. Each of ours is run beside the bare
server with frames of the size that ours had, in turn; the ratio says how much of what a socket can take we use.
"""

from __future__ import annotations

import argparse
import asyncio
import base64
import os
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple, cast
from urllib.parse import urlsplit

import aiohttp
import orjson
import uvloop
from rich.console import Console
from rich.table import Table

from loadtest.bench.payloads import BATCH_TYPE, raw_batch
from loadtest.bench.request import RunFailed
from loadtest.bench.scenarios import bare_server
from loadtest.process import server

JSON_RECORDS = 300_000
BATCH_RECORDS = 3_000_000
BATCH = 1_000
READERS = 1_000
FAN_OUT_BATCH = 100
FAN_OUT_BATCHES = 60
TIMEOUT_S = 60.0


class Row(NamedTuple):
    """One measurement; `bare` is the same number of frames of the same size from the bare server."""

    work: str
    rate: float
    bare: float
    goal: float


class Frames(asyncio.Protocol):
    """A WebSocket client that counts frames and the bytes of their payloads, and looks at the last one only."""

    def __init__(self, on_frame: Callable[[Frames], None]) -> None:
        self.count = 0
        self.byte_count = 0
        self.last = b""
        self.is_open = asyncio.get_running_loop().create_future()
        self._on_frame = on_frame
        self._buffer = bytearray()
        self._transport: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)  # uvloop's is none by class

    def say(self, command: dict[str, object]) -> None:
        """Send a command."""
        data = orjson.dumps(command)
        header = bytes([0x81]) + (
            bytes([0x80 | len(data)]) if len(data) < 126 else b"\xfe" + len(data).to_bytes(2, "big")
        )
        assert self._transport is not None
        self._transport.write(header + bytes(4) + data)  # masked with zeros

    def close(self) -> None:
        if self._transport is not None:
            self._transport.abort()

    def data_received(self, data: bytes) -> None:
        buffer = self._buffer
        buffer += data
        at = 0
        if not self.is_open.done():
            end = buffer.find(b"\r\n\r\n")
            if end < 0:
                return
            self.is_open.set_result(bytes(buffer[:12]))
            at = end + 4
        while len(buffer) - at >= 2:
            size, start = buffer[at + 1], at + 2
            if size == 126:
                size, start = int.from_bytes(buffer[at + 2 : at + 4], "big"), at + 4
            elif size == 127:
                size, start = int.from_bytes(buffer[at + 2 : at + 10], "big"), at + 10
            if len(buffer) < start + size:
                break
            self.count += 1
            self.byte_count += size
            self.last = bytes(buffer[start : start + min(size, 200)])
            at = start + size
            self._on_frame(self)
        del buffer[:at]


async def connect(url: str, path: str, on_frame: Callable[[Frames], None]) -> Frames:
    """Open a socket."""
    place = urlsplit(url)
    loop = asyncio.get_running_loop()
    transport, frames = await loop.create_connection(lambda: Frames(on_frame), str(place.hostname), place.port or 80)
    key = base64.b64encode(os.urandom(16)).decode()
    transport.write(
        f"GET {path} HTTP/1.1\r\nHost: {place.netloc}\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n"
        f"Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: {key}\r\n\r\n".encode()
    )
    status = await frames.is_open
    if b" 101" not in status:
        raise RunFailed(f"no socket: {status!r}")
    return frames


async def one_subscriber(url: str, bare: str, form: str, record_count: int, goal: float) -> Row:
    """From the first record to the last, through one socket."""
    done = asyncio.Event()
    frames = await connect(url, "/ws/v1", lambda one: done.set() if one.last.startswith(b'{"op":"caught_up"') else None)
    frames.say({"id": 1, "op": "hello", "binary": form != "json"})
    began_s = time.perf_counter()
    frames.say({"op": "subscribe", "sub": "s", "topics": [form], "from": "earliest", "format": form, "credit": 10_000})
    async with asyncio.timeout(TIMEOUT_S):
        await done.wait()
    took_s = time.perf_counter() - began_s
    frames.close()
    sent_count, size = frames.count - 2, frames.byte_count // (frames.count - 2)
    bare_s = await _bare(bare, sent_count, size)
    return Row(f"one subscriber, {form}", record_count / took_s, record_count / bare_s, goal)


async def _bare(bare: str, frame_count: int, size: int) -> float:
    done = asyncio.Event()
    began_s = time.perf_counter()
    frames = await connect(
        bare,
        f"/ws/frames?count={frame_count}&size={size}",
        lambda one: done.set() if one.count >= frame_count else None,
    )
    async with asyncio.timeout(TIMEOUT_S):
        await done.wait()
    frames.close()
    return time.perf_counter() - began_s


async def fan_out(url: str, bare: str, readers: int) -> Row:
    """Deliveries a second to many readers of one partition."""
    ours_s, size = await _fanned(url, readers, "/topics/fan/partitions/0", raw_batch(range(FAN_OUT_BATCH)), BATCH_TYPE)
    bare_s, _ = await _fanned(bare, readers, "/topics/fan", b"x" * size, "application/octet-stream")
    deliveries = readers * FAN_OUT_BATCHES * FAN_OUT_BATCH
    return Row(f"fan-out to {readers:,} readers", deliveries / ours_s, deliveries / bare_s, 500_000)


async def _fanned(url: str, readers: int, path: str, body: bytes, content_type: str) -> tuple[float, int]:
    """Seconds from the first POST to the last frame of the last reader; bytes of a frame."""
    wanted = readers * FAN_OUT_BATCHES
    arrived = 0
    done = asyncio.Event()
    is_counting = False

    def on_frame(_: Frames) -> None:
        nonlocal arrived
        if is_counting:
            arrived += 1
            if arrived >= wanted:
                done.set()

    sockets = [await connect(url, "/ws/v1", on_frame) for _ in range(readers)]
    is_ours = content_type == BATCH_TYPE
    if is_ours:
        for socket in sockets:
            socket.say({"op": "subscribe", "sub": "s", "topics": ["fan"], "credit": 10_000})
        while any(socket.count < 1 for socket in sockets):  # noqa: ASYNC110
            await asyncio.sleep(0.01)
    is_counting = True
    async with aiohttp.ClientSession() as session, asyncio.timeout(TIMEOUT_S):
        began_s = time.perf_counter()
        for number in range(FAN_OUT_BATCHES):
            async with session.post(url + path, data=body, headers={"Content-Type": content_type}) as answer:
                if answer.status != 200:
                    raise RunFailed(await answer.text())
            # A few on their way, as with any paced producer.
            while arrived < readers * (number - 2):  # noqa: ASYNC110
                await asyncio.sleep(0.0005)
        await done.wait()
        took_s = time.perf_counter() - began_s
    size = sockets[0].byte_count // sockets[0].count
    for socket in sockets:
        socket.close()
    return took_s, size


async def _fill(url: str, topic: str, record_count: int) -> None:
    body = raw_batch(range(BATCH)) * 10
    async with aiohttp.ClientSession() as session:
        async with session.put(f"{url}/mq/v1/topics/{topic}", json={"partitions": 1}) as answer:
            answer.raise_for_status()
        for _ in range(record_count // BATCH // 10):
            async with session.post(
                f"{url}/topics/{topic}/partitions/0", data=body, headers={"Content-Type": BATCH_TYPE}
            ) as answer:
                answer.raise_for_status()


async def measure(directory: Path, scale: float, readers: int) -> list[Row]:
    """All rows, on a fresh server."""
    json_count, batch_count = (
        int(JSON_RECORDS * scale) // 10_000 * 10_000,
        int(BATCH_RECORDS * scale) // 10_000 * 10_000,
    )
    with server(directory / "data", "--acks", "written") as url, bare_server(directory) as bare:
        await _fill(url, "json", json_count)
        await _fill(url, "batch", batch_count)
        await _fill(url, "fan", 0)
        return [
            await one_subscriber(url, bare, "json", json_count, 100_000),
            await one_subscriber(url, bare, "batch", batch_count, 1_000_000),
            await fan_out(url, bare, readers),
        ]


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description="How fast sockets are fed.")
    parser.add_argument("--directory", type=Path, help="where the servers keep their files; default: a temporary one")
    parser.add_argument("--scale", type=float, default=1.0, help="more or fewer records")
    parser.add_argument("--readers", type=int, default=READERS)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=options.directory) as directory:
        rows = uvloop.run(measure(Path(directory), options.scale, options.readers))
    table = Table("work", "records/s", "bare socket", "of bare", "goal", "met")
    for row in rows:
        met = "yes" if row.rate >= row.goal else "no"
        table.add_row(
            row.work, f"{row.rate:,.0f}", f"{row.bare:,.0f}", f"{row.rate / row.bare:.0%}", f"{row.goal:,.0f}", met
        )
    Console().print(table)


if __name__ == "__main__":
    main()
