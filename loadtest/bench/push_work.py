"""What `push.py` measures: each work beside a bare aiohttp socket with frames of the same size, in turn.

    one subscriber   records from the log to one socket: JSON frames or stored RecordBatches
    fan-out          batches of 100 records to many readers of one partition; counted are deliveries
    idle             memory of sockets on which nothing happens

The client only counts frames by their headers, so the server is what is measured.
"""

from __future__ import annotations

import asyncio
import base64
import os
import time
from collections.abc import Callable
from typing import NamedTuple, cast
from urllib.parse import urlsplit

import aiohttp
import orjson

from loadtest.bench.payloads import BATCH_TYPE, JSON_TYPE, json_body, raw_batch
from loadtest.bench.request import RunFailed
from loadtest.process import Running

BATCH = 1_000
SINGLES_A_FRAME = 500
FAN_OUT_BATCH = 100
FAN_OUT_BATCHES = 60
TIMEOUT_S = 120.0
SETTLE_S = 1.0
"""Until what a thousand handshakes left behind is gone."""


class Rate(NamedTuple):
    """Records a second, and how many of them a second of the server's CPU time is worth."""

    per_s: float
    per_cpu_s: float
    frame_count: int
    frame_bytes: int


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


async def one_subscriber(running: Running, topic: str, form: str, record_count: int, batch: int) -> Rate:
    """From the first record to the last, through one socket, `batch` a frame."""
    done = asyncio.Event()
    frames = await connect(
        running.url, "/ws/v1", lambda one: done.set() if one.last.startswith(b'{"op":"caught_up"') else None
    )
    frames.say({"id": 1, "op": "hello", "binary": form != "json"})
    before_cpu_s, began_s = running.cpu_s(), time.perf_counter()
    subscribe = {"op": "subscribe", "sub": "s", "topics": [topic], "from": "earliest", "format": form}
    frames.say({**subscribe, "credit": 10_000, "batch": batch})
    async with asyncio.timeout(TIMEOUT_S):
        await done.wait()
    took_s = time.perf_counter() - began_s
    cpu_s = running.cpu_s() - before_cpu_s
    frames.close()
    sent_count = frames.count - 2
    return Rate(record_count / took_s, record_count / max(cpu_s, 0.01), sent_count, frames.byte_count // sent_count)


async def bare_frames(url: str, frame_count: int, frame_bytes: int) -> float:
    """Seconds that so many frames of that size take through one bare socket."""
    done = asyncio.Event()
    began_s = time.perf_counter()
    frames = await connect(
        url,
        f"/ws/frames?count={frame_count}&size={frame_bytes}",
        lambda one: done.set() if one.count >= frame_count else None,
    )
    async with asyncio.timeout(TIMEOUT_S):
        await done.wait()
    frames.close()
    return time.perf_counter() - began_s


async def fan_out(running: Running, readers: int) -> Rate:
    """Deliveries a second to many readers of the topic `fan`."""
    body = raw_batch(range(FAN_OUT_BATCH))
    return await _fanned(running, readers, "/topics/fan/partitions/0", body, BATCH_TYPE)


async def bare_fan_out(running: Running, readers: int, frame_bytes: int) -> Rate:
    """The same number of frames of that size, from a server that sends on what it gets."""
    return await _fanned(running, readers, "/topics/fan", b"x" * frame_bytes, "application/octet-stream")


async def _fanned(running: Running, readers: int, path: str, body: bytes, content_type: str) -> Rate:
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

    url = running.url
    sockets = [await connect(url, "/ws/v1", on_frame) for _ in range(readers)]
    if content_type == BATCH_TYPE:
        for socket in sockets:
            socket.say({"op": "subscribe", "sub": "s", "topics": ["fan"], "credit": 10_000})
        while any(socket.count < 1 for socket in sockets):  # noqa: ASYNC110
            await asyncio.sleep(0.01)
    first_bytes = sockets[0].byte_count
    is_counting = True
    async with aiohttp.ClientSession() as session, asyncio.timeout(TIMEOUT_S):
        before_cpu_s, began_s = running.cpu_s(), time.perf_counter()
        for number in range(FAN_OUT_BATCHES):
            async with session.post(url + path, data=body, headers={"Content-Type": content_type}) as answer:
                if answer.status != 200:
                    raise RunFailed(await answer.text())
            # A few on their way, as with any paced producer.
            while arrived < readers * (number - 2):  # noqa: ASYNC110
                await asyncio.sleep(0.0005)
        await done.wait()
        took_s = time.perf_counter() - began_s
        cpu_s = running.cpu_s() - before_cpu_s
    frame_bytes = (sockets[0].byte_count - first_bytes) // FAN_OUT_BATCHES
    for socket in sockets:
        socket.close()
    deliveries = readers * FAN_OUT_BATCHES * FAN_OUT_BATCH
    return Rate(deliveries / took_s, deliveries / max(cpu_s, 0.01), wanted, frame_bytes)


async def idle_bytes(running: Running, socket_count: int, *, says_hello: bool) -> float:
    """Memory of one of so many idle sockets: what the process has grown by, divided by their number."""
    await _one_socket(running.url)
    before_bytes = running.rss_bytes()
    sockets = [await connect(running.url, "/ws/v1", lambda _: None) for _ in range(socket_count)]
    if says_hello:
        for socket in sockets:
            socket.say({"id": 1, "op": "hello"})
        while any(socket.count < 1 for socket in sockets):  # noqa: ASYNC110
            await asyncio.sleep(0.05)
    await asyncio.sleep(SETTLE_S)
    grown_bytes = running.rss_bytes() - before_bytes
    for socket in sockets:
        socket.close()
    return grown_bytes / socket_count


async def _one_socket(url: str) -> None:
    """What the first socket of a server makes once is not counted."""
    (await connect(url, "/ws/v1", lambda _: None)).close()
    await asyncio.sleep(SETTLE_S)


async def fill(url: str, topic: str, record_count: int, form: str) -> None:
    """Make a topic and store records: as JSON in batches (`json`), one by one (`single`), or as RecordBatches."""
    async with aiohttp.ClientSession() as session:
        async with session.put(f"{url}/mq/v1/topics/{topic}", json={"partitions": 1}) as answer:
            answer.raise_for_status()
        if form == "single":
            await _fill_singly(session, url, topic, record_count)
            return
        path = f"{url}/topics/{topic}" if form == "json" else f"{url}/topics/{topic}/partitions/0"
        body = json_body(range(BATCH)) if form == "json" else raw_batch(range(BATCH))
        for _ in range(record_count // BATCH):
            content_type = JSON_TYPE if form == "json" else BATCH_TYPE
            async with session.post(path, data=body, headers={"Content-Type": content_type}) as answer:
                answer.raise_for_status()


async def _fill_singly(session: aiohttp.ClientSession, url: str, topic: str, record_count: int) -> None:
    """Each record in a command, and so in a RecordBatch, of its own."""
    record = orjson.loads(json_body([0]))["records"][0]
    command = orjson.dumps({"op": "produce", "topic": topic, "records": [record], "ack": False})
    async with session.ws_connect(f"{url}/ws/v1") as socket:
        for _ in range(record_count // SINGLES_A_FRAME):
            await socket.send_str(b"\n".join([command] * SINGLES_A_FRAME).decode())
        await socket.send_json({"id": 1, "op": "subscribe", "sub": "s", "topics": [topic], "from": "earliest"})
        count = 0
        while count < record_count:
            count += len(orjson.loads(await socket.receive_str(timeout=TIMEOUT_S)).get("messages", []))
