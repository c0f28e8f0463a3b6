"""What `push.py` measures: each work beside a bare aiohttp socket with frames of the same size, in turn.

    one subscriber   records from the log to one socket: JSON frames or stored RecordBatches
    fan-out          batches of 100 records to many readers of one partition; counted are deliveries
    idle             memory of sockets on which nothing happens

The client is a plain socket that counts frames by their headers. Only where a work says so it decodes them as well, and
hands each value to the program.
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
from loadtest.kernel_cpu import CpuMeter
from loadtest.process import Running
from store import record_batch

BATCH = 1_000
SINGLES_A_FRAME = 500
FAN_OUT_BATCH = 100
FAN_OUT_BATCHES = 60
TIMEOUT_S = 120.0
_CLOSE, _PING = 0x8, 0x9
"""Opcodes; see RFC 6455."""

SETTLE_S = 1.0
"""Until what a thousand handshakes left behind is gone."""


class Subscribing(NamedTuple):
    """One way to feed one subscriber: a topic and what it holds, and the format of the frames."""

    work: str
    topic: str
    form: str
    record_count: int
    goal_per_s: float


class Pushed(NamedTuple):
    """Records that one subscriber, or many, got in `took_s`. CPU times are of `wall_s`, which a tool's own start may
    make longer. `kernel_cpu_s`: of kernel threads (0: not measured)."""

    record_count: int
    took_s: float
    wall_s: float
    client_cpu_s: float
    server_cpu_s: float
    kernel_cpu_s: float = 0.0
    frame_count: int = 0
    frame_bytes: int = 0

    @property
    def per_s(self) -> float:
        return self.record_count / self.took_s


Decode = Callable[[bytes], int]
"""Makes values of a frame's payload; how many."""


def parse_json(payload: bytes) -> int:
    """Each value of a JSON frame as an object."""
    push = orjson.loads(payload)
    return len([message["value"] for message in push["messages"]]) if push.get("op") == "messages" else 0


def decode_batches(payload: bytes) -> int:
    """Each value of a frame of RecordBatches as bytes; text frames have none."""
    if payload.startswith(b"{"):
        return 0
    header_bytes = int.from_bytes(payload[:4], "big")
    batches = record_batch.split(memoryview(payload)[4 + header_bytes :])
    return sum(len([record.value for record in record_batch.decode(batch)]) for batch in batches)


class Frames(asyncio.Protocol):
    """A WebSocket client that counts frames and the bytes of their payloads, and looks at the beginning of the last one
    only, unless it is to decode them."""

    def __init__(self, on_frame: Callable[[Frames], None], decode: Decode | None = None) -> None:
        self.count = 0
        self.decoded_count = 0
        self._decode = decode
        self.byte_count = 0
        self.last = b""
        self.closed_with: bytes | None = None
        """The status code and reason that the server ended the socket with."""

        self.is_open = asyncio.get_running_loop().create_future()
        self._on_frame = on_frame
        self._buffer = bytearray()
        self._transport: asyncio.Transport

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)  # uvloop's is none by class

    def say(self, command: dict[str, object]) -> None:
        """Send a command."""
        data = orjson.dumps(command)
        header = bytes([0x81]) + (
            bytes([0x80 | len(data)]) if len(data) < 126 else b"\xfe" + len(data).to_bytes(2, "big")
        )
        self._transport.write(header + bytes(4) + data)  # masked with zeros

    def close(self) -> None:
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
            if buffer[at] & 0x0F == _CLOSE:
                self.closed_with = bytes(buffer[start : start + size])
                self._transport.close()
                return
            if buffer[at] & 0x0F == _PING:
                self._transport.write(bytes([0x8A, 0x80 | size]) + bytes(4) + buffer[start : start + size])
                at = start + size
                continue
            self.count += 1
            self.byte_count += size
            with memoryview(buffer) as view:
                self.last = bytes(view[start : start + min(size, 200)])
                if self._decode is not None:
                    self.decoded_count += self._decode(bytes(view[start : start + size]))
            at = start + size
            self._on_frame(self)
        del buffer[:at]


async def connect(
    url: str,
    path: str,
    on_frame: Callable[[Frames], None],
    decode: Decode | None = None,
    local_address: str | None = None,
) -> Frames:
    """Open a socket; `local_address`: from this one."""
    place = urlsplit(url)
    loop = asyncio.get_running_loop()
    transport, frames = await loop.create_connection(
        lambda: Frames(on_frame, decode),
        str(place.hostname),
        place.port or 80,
        local_addr=None if local_address is None else (local_address, 0),
    )
    key = base64.b64encode(os.urandom(16)).decode()
    transport.write(
        f"GET {path} HTTP/1.1\r\nHost: {place.netloc}\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n"
        f"Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: {key}\r\n\r\n".encode()
    )
    status = await frames.is_open
    if b" 101" not in status:
        raise RunFailed(f"no socket: {status!r}")
    return frames


async def one_subscriber(
    running: Running, work: Subscribing, batch: int, decode: Decode | None, idle_share: float
) -> Pushed:
    """From the first record to the last, through one socket, `batch` a frame. Raises RunFailed when what was decoded is
    not what was stored."""
    done = asyncio.Event()
    frames = await connect(
        running.url, "/ws/v1", lambda one: done.set() if one.last.startswith(b'{"op":"caught_up"') else None, decode
    )
    frames.say({"id": 1, "op": "hello", "binary": work.form != "json"})
    while frames.count < 1:  # noqa: ASYNC110 - its answer; nothing else comes unasked
        await asyncio.sleep(0.001)
    meter, client_before_s, began_s = CpuMeter(running.cpu_s, idle_share), time.process_time(), time.perf_counter()
    subscribe = {"op": "subscribe", "sub": "s", "topics": [work.topic], "from": "earliest", "format": work.form}
    frames.say({**subscribe, "credit": 10_000, "batch": batch})
    async with asyncio.timeout(TIMEOUT_S):
        await done.wait()
    took_s, client_s = time.perf_counter() - began_s, time.process_time() - client_before_s
    server_s, kernel_s = meter.taken_s()
    frames.close()
    if decode is not None and frames.decoded_count != work.record_count:
        raise RunFailed(f"{frames.decoded_count} records were decoded, not {work.record_count}")
    sent_count = frames.count - 2  # the answer to hello, and caught_up
    frame_bytes = frames.byte_count // sent_count
    return Pushed(work.record_count, took_s, took_s, client_s, server_s, kernel_s, sent_count, frame_bytes)


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


async def fan_out(running: Running, readers: int, idle_share: float) -> Pushed:
    """Deliveries to many readers of the topic `fan`."""
    body = raw_batch(range(FAN_OUT_BATCH))
    return await _fanned(running, readers, "/topics/fan/partitions/0", body, BATCH_TYPE, idle_share)


async def bare_fan_out(running: Running, readers: int, frame_bytes: int) -> Pushed:
    """The same number of frames of that size, from a server that sends on what it gets."""
    return await _fanned(running, readers, "/topics/fan", b"x" * frame_bytes, "application/octet-stream", 0.0)


async def _fanned(
    running: Running, readers: int, path: str, body: bytes, content_type: str, idle_share: float
) -> Pushed:
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
        meter, client_before_s, began_s = CpuMeter(running.cpu_s, idle_share), time.process_time(), time.perf_counter()
        for number in range(FAN_OUT_BATCHES):
            async with session.post(url + path, data=body, headers={"Content-Type": content_type}) as answer:
                if answer.status != 200:
                    raise RunFailed(await answer.text())
            # A few on their way, as with any paced producer.
            while arrived < readers * (number - 2):  # noqa: ASYNC110
                await asyncio.sleep(0.0005)
        await done.wait()
        took_s, client_s = time.perf_counter() - began_s, time.process_time() - client_before_s
        server_s, kernel_s = meter.taken_s()
    frame_bytes = (sockets[0].byte_count - first_bytes) // FAN_OUT_BATCHES
    for socket in sockets:
        socket.close()
    deliveries = readers * FAN_OUT_BATCHES * FAN_OUT_BATCH
    return Pushed(deliveries, took_s, took_s, client_s, server_s, kernel_s, wanted, frame_bytes)


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
