"""How long a record takes from its sender to a subscriber, at a fixed rate.

Sends follow the clock, not the answers: a server that falls behind cannot slow its own measurement down. The time of
a record counts from the moment at which it was due by the rate, waiting for a free connection included, and also what
this process was late by itself: how much that was is said beside it. Its collector does not look meanwhile: with 15,000
sockets here a look takes as long as what is measured.
"""

from __future__ import annotations

import asyncio
import gc
import time
from array import array
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from typing import Any, NamedTuple, Protocol

import aiohttp
import orjson

from gateway.main.garbage import collector_off
from loadtest.bench.raw_client import connect
from loadtest.bench.request import Request, RunFailed
from loadtest.stats import percentile

CONNECTIONS = 32
ARRIVAL_TIMEOUT_S = 5.0
TOPIC = "bench"
_TICK_S = 0.001

Receive = Callable[[], Awaitable[list[int]]]
"""The sequence numbers in the next piece that a server pushes. Raises RunFailed at its end."""


class Latency(NamedTuple):
    """Times from POST to push, in ms, and how many records they are of."""

    record_count: int
    p50_ms: float
    p99_ms: float
    max_ms: float
    send_late_p99_ms: float = 0.0
    """How late sends were by the clock; the others' times have it in them."""


class PushPath:
    """Connections to send on and a stream to receive on, of one server."""

    def __init__(self, url: str, receive: Receive, headers: Mapping[str, str], topic: str = TOPIC):
        self._url = url
        self._topic = topic
        self._receive_some = receive
        self._headers = headers
        self._next_sequence = 0

    async def run(self, rate: int, duration_s: float, arrival_timeout_s: float = ARRIVAL_TIMEOUT_S) -> Latency:
        """Send `rate` records a second. Raises RunFailed when one is refused, or does not arrive in time behind the
        last one's sending."""
        first = self._next_sequence
        count = max(int(rate * duration_s), 1)
        self._next_sequence += count
        due_s = array("d", bytes(8 * count))
        late_ms = array("d")
        took_ms = array("d")
        sending = _Senders()
        connections = [await self._connect(sending.answered) for _ in range(CONNECTIONS)]
        sending.free.extend(connections)
        receiving = asyncio.create_task(self._receive(first, count, due_s, took_ms))
        try:
            gc.collect()
            with collector_off():
                began_s = time.perf_counter()
                sent_count = 0
                while sent_count < count:
                    due_count = min(int((time.perf_counter() - began_s) * rate) + 1, count)
                    for number in range(sent_count, due_count):
                        due_s[number] = began_s + number / rate
                        sending.send(self._request(first + number))
                        late_ms.append((time.perf_counter() - due_s[number]) * 1000)
                    sent_count = due_count
                    await asyncio.sleep(_TICK_S)
                await asyncio.wait_for(receiving, arrival_timeout_s)
        except TimeoutError:
            raise RunFailed(f"{count - len(took_ms)} of {count} records did not arrive") from None
        finally:
            receiving.cancel()
            for connection in connections:
                connection.close()
        if sending.error_count:
            raise RunFailed(f"{sending.error_count} of {count} requests were refused")
        return Latency(count, percentile(took_ms, 50), percentile(took_ms, 99), max(took_ms), percentile(late_ms, 99))

    async def _connect(self, on_answer: Callable[[Any, int], None]) -> Sending:
        """A connection to send on."""
        return await connect(self._url, on_answer)

    def _request(self, sequence: int) -> object:
        """What a connection takes for a record."""
        body = orjson.dumps({"records": [{"key": f"k{sequence % 1000}", "value": {"sequence": sequence}}]})
        return Request("POST", f"/topics/{self._topic}", self._headers, body).encode(self._url)

    async def _receive(self, first: int, count: int, due_s: array[float], took_ms: array[float]) -> None:
        while len(took_ms) < count:
            sequences = await self._receive_some()
            now_s = time.perf_counter()
            for sequence in sequences:
                if sequence >= first:  # of an earlier run that failed otherwise
                    took_ms.append((now_s - due_s[sequence - first]) * 1000)


class Sending(Protocol):
    """A connection with one request under way at most; it says when that is answered, with an HTTP status."""

    def send(self, request: Any, /) -> None:
        """The request before must be answered."""

    def close(self) -> None:
        """At once."""


class _Senders:
    """Free connections, and requests that wait for one."""

    def __init__(self) -> None:
        self.free: deque[Sending] = deque()
        self.error_count = 0
        self._waiting: deque[object] = deque()

    def send(self, request: object) -> None:
        if self.free:
            self.free.popleft().send(request)
        else:
            self._waiting.append(request)

    def answered(self, connection: Sending, status: int) -> None:
        if status != 200:
            self.error_count += 1
        if status and self._waiting:
            connection.send(self._waiting.popleft())
        elif status:
            self.free.append(connection)


READER: Mapping[str, object] = {"from": "latest"}


@asynccontextmanager
async def our_push_path(
    session: aiohttp.ClientSession,
    url: str,
    headers: Mapping[str, str],
    mode: Mapping[str, object] = READER,
    topic: str = TOPIC,
) -> AsyncIterator[PushPath]:
    """Our server: a subscription of a topic whose credit returns by itself. `mode`: the fields of its kind."""
    subscribe = {"id": 1, "op": "subscribe", "sub": "b", "topics": [topic], "credit": 10_000, **mode}
    async with session.ws_connect(f"{url}/ws/v1") as socket:
        await socket.send_str(orjson.dumps(subscribe).decode())
        answer = orjson.loads(await socket.receive_str())
        if not answer["ok"]:
            raise RunFailed(answer["message"])
        yield PushPath(url, _frames(socket, _of_our_frame), headers, topic)


@asynccontextmanager
async def our_event_path(
    session: aiohttp.ClientSession, url: str, headers: Mapping[str, str]
) -> AsyncIterator[PushPath]:
    """Our server: Server-Sent Events of topic "bench"."""
    async with session.get(f"{url}/mq/v1/topics/bench/sse", headers={"Accept": "text/event-stream"}) as response:
        response.raise_for_status()

        async def receive() -> list[int]:
            line = await response.content.readline()
            if not line:
                raise RunFailed("the stream ended")
            return [orjson.loads(line[6:])["value"]["sequence"]] if line.startswith(b'data: {"topic"') else []

        yield PushPath(url, receive, headers)


@asynccontextmanager
async def bare_push_path(
    session: aiohttp.ClientSession, url: str, headers: Mapping[str, str]
) -> AsyncIterator[PushPath]:
    """The bare server, which sends every body on as it came."""
    async with session.ws_connect(f"{url}/ws/v1") as socket:
        yield PushPath(url, _frames(socket, _of_body), headers)


def _frames(socket: aiohttp.ClientWebSocketResponse, sequences_of: Callable[[bytes | str], list[int]]) -> Receive:
    async def receive() -> list[int]:
        frame = await socket.receive()
        if frame.type not in (aiohttp.WSMsgType.TEXT, aiohttp.WSMsgType.BINARY):
            raise RunFailed(f"the socket ended: {frame.type.name}")
        return sequences_of(frame.data)

    return receive


def _of_our_frame(frame: bytes | str) -> list[int]:
    push = orjson.loads(frame)
    return [message["value"]["sequence"] for message in push["messages"]] if push["op"] == "messages" else []


def _of_body(frame: bytes | str) -> list[int]:
    return [record["value"]["sequence"] for record in orjson.loads(frame)["records"]]
