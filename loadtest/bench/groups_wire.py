"""Queue mode over the wire, for `loadtest.bench.groups`: consumers that receive and ack batches by HTTP and WebSocket.
Topics that are made, for `loadtest.bench.trees`.

The client does as little as Python can: requests are made once, or from the receipts cut out of an answer's bytes, and
answers are not parsed. It has one core, the server the other. Beside it, frames that a bare socket server sends back.
"""

from __future__ import annotations

import asyncio
import base64
import os
import re
import time
from collections.abc import Callable
from typing import cast
from urllib.parse import urlsplit

from loadtest.bench.request import RunFailed

TIMEOUT_S = 120.0
_RECEIPT = re.compile(rb'"receipt":"([^"]+)"')
_LENGTH = re.compile(rb"(?i)content-length: *([0-9]+)")


class _Stream(asyncio.Protocol):
    """A connection whose bytes are cut into answers by `cut`, which returns the end of the first, or 0."""

    def __init__(self, cut: Callable[[bytearray], int], on_answer: Callable[[_Stream, bytes], None]) -> None:
        self._cut = cut
        self._on_answer = on_answer
        self._buffer = bytearray()
        self.transport: asyncio.Transport

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        self._buffer += data
        while end := self._cut(self._buffer):
            answer = bytes(self._buffer[:end])
            del self._buffer[:end]
            self._on_answer(self, answer)


def _http_answer(buffer: bytearray) -> int:
    head = buffer.find(b"\r\n\r\n")
    if head < 0:
        return 0
    length = _LENGTH.search(buffer, 0, head)
    end = head + 4 + (int(length[1]) if length else 0)
    return end if len(buffer) >= end else 0


def _frame(buffer: bytearray) -> int:
    if len(buffer) < 2:
        return 0
    size, start = buffer[1], 2
    if size == 126:
        size, start = int.from_bytes(buffer[2:4], "big"), 4
    elif size == 127:
        size, start = int.from_bytes(buffer[2:10], "big"), 10
    return start + size if len(buffer) >= start + size else 0


async def over_http(url: str, group: str, topic: str, count: int, consumers: int, batch: int) -> float:
    """Records a second, each consumer on a connection of its own: receive, ack, receive …"""
    place = urlsplit(url)

    def request(what: str, body: bytes) -> bytes:
        head = f"POST /mq/v1/groups/{group}/messages:{what} HTTP/1.1\r\nHost: {place.netloc}\r\n"
        return f"{head}Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n".encode() + body

    receive = request("receive", b'{"topics":["%s"],"max_messages":%d,"wait_ms":100}' % (topic.encode(), batch))
    done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    left = count

    def on_answer(stream: _Stream, answer: bytes) -> None:
        nonlocal left
        if not answer.startswith(b"HTTP/1.1 200"):
            _fail(done, answer)
        elif b'{"results":' in answer:
            left -= answer.count(b'"ok":true')
            if left <= 0 and not done.done():
                done.set_result(None)
            stream.transport.write(receive)
        elif receipts := _RECEIPT.findall(answer):
            stream.transport.write(request("ack", b'{"receipts":["' + b'","'.join(receipts) + b'"]}'))
        else:
            stream.transport.write(receive)

    loop = asyncio.get_running_loop()
    streams = []
    for _ in range(consumers):
        _, stream = await loop.create_connection(
            lambda: _Stream(_http_answer, on_answer), str(place.hostname), place.port or 80
        )
        streams.append(stream)
    return await _run(streams, lambda stream: stream.transport.write(receive), done, count)


async def over_websocket(url: str, group: str, topic: str, count: int, consumers: int, batch: int) -> float:
    """Records a second, each consumer with a subscription of its own, acking every frame it gets."""
    done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    left = count
    opened = asyncio.Semaphore(0)

    def on_answer(stream: _Stream, answer: bytes) -> None:
        nonlocal left
        if answer.startswith(b"HTTP/1.1 101"):
            opened.release()
        elif b'"ok":false' in answer or answer.startswith(b"HTTP/1.1"):
            _fail(done, answer)
        elif receipts := _RECEIPT.findall(answer):
            if b'"op":"messages"' in answer[:60]:
                ack = b'{"id":1,"op":"ack","sub":"s","receipts":["' + b'","'.join(receipts) + b'"]}'
                stream.transport.write(_masked(ack))
            else:
                left -= len(receipts)
                if left <= 0 and not done.done():
                    done.set_result(None)

    streams = await _sockets(url, "/ws/v1", consumers, on_answer, opened)
    subscribe = (
        b'{"id":0,"op":"subscribe","sub":"s","topics":["%s"],"mode":"queue","group":"%s","batch":%d,"credit":%d,'
        b'"auto_credit":true}' % (topic.encode(), group.encode(), batch, 2 * batch)
    )
    return await _run(streams, lambda stream: stream.transport.write(_masked(subscribe)), done, count)


async def make_topics(url: str, prefix: str, count: int, connections: int) -> float:
    """Topics a second that are made, each by a request of its own."""
    place = urlsplit(url)
    done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    numbers = iter(range(count))
    left = count

    def ask(stream: _Stream) -> None:
        for number in numbers:
            head = f"PUT /mq/v1/topics/{prefix}-{number} HTTP/1.1\r\nHost: {place.netloc}\r\n"
            body = '{"partitions":1}'
            head += f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
            stream.transport.write(head.encode() + body.encode())
            return

    def on_answer(stream: _Stream, answer: bytes) -> None:
        nonlocal left
        if not answer.startswith(b"HTTP/1.1 201"):
            _fail(done, answer)
        left -= 1
        if not left and not done.done():
            done.set_result(None)
        ask(stream)

    loop = asyncio.get_running_loop()
    streams = []
    for _ in range(connections):
        _, stream = await loop.create_connection(
            lambda: _Stream(_http_answer, on_answer), str(place.hostname), place.port or 80
        )
        streams.append(stream)
    return await _run(streams, ask, done, count)


async def echoes(url: str, count: int, consumers: int, size_bytes: int) -> float:
    """Frames a second that a bare socket server takes and sends back, one at a time on each socket."""
    done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    left = count
    opened = asyncio.Semaphore(0)
    frame = b"\x82" + _masked(bytes(size_bytes))[1:]

    def on_answer(stream: _Stream, answer: bytes) -> None:
        nonlocal left
        if answer.startswith(b"HTTP/1.1 101"):
            opened.release()
            return
        left -= 1
        if left <= 0 and not done.done():
            done.set_result(None)
        stream.transport.write(frame)

    streams = await _sockets(url, "/ws/echo", consumers, on_answer, opened)
    return await _run(streams, lambda stream: stream.transport.write(frame), done, count)


async def _sockets(
    url: str, path: str, count: int, on_answer: Callable[[_Stream, bytes], None], opened: asyncio.Semaphore
) -> list[_Stream]:
    """Open sockets, one after the other; `on_answer` releases `opened` for each."""
    place = urlsplit(url)
    streams = []
    for _ in range(count):
        _, stream = await asyncio.get_running_loop().create_connection(
            lambda: _Stream(_first_http_then_frames(), on_answer), str(place.hostname), place.port or 80
        )
        key = base64.b64encode(os.urandom(16)).decode()
        stream.transport.write(
            f"GET {path} HTTP/1.1\r\nHost: {place.netloc}\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n"
            f"Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: {key}\r\n\r\n".encode()
        )
        await opened.acquire()
        streams.append(stream)
    return streams


def _first_http_then_frames() -> Callable[[bytearray], int]:
    is_first = True

    def cut(buffer: bytearray) -> int:
        nonlocal is_first
        if not is_first:
            return _frame(buffer)
        end = _http_answer(buffer)
        is_first = not end
        return end

    return cut


def _masked(data: bytes) -> bytes:
    """A text frame, masked with zeros."""
    size = bytes([0x80 | len(data)]) if len(data) < 126 else b"\xfe" + len(data).to_bytes(2, "big")
    return b"\x81" + size + bytes(4) + data


def _fail(done: asyncio.Future[None], answer: bytes) -> None:
    if not done.done():
        done.set_exception(RunFailed(answer[:500].decode(errors="replace")))


async def _run(
    streams: list[_Stream], begin: Callable[[_Stream], None], done: asyncio.Future[None], count: int
) -> float:
    began_s = time.perf_counter()
    for stream in streams:
        begin(stream)
    try:
        async with asyncio.timeout(TIMEOUT_S):
            await done
    finally:
        for stream in streams:
            stream.transport.abort()
    return count / (time.perf_counter() - began_s)
