"""Inboxes of mq, Redis Streams and NATS JetStream as raw sockets see them, for `queues.py`: the same work in the bytes
of each, prebuilt, so that a client costs little and alike.

             an inbox           a record in several                     a read                        pushed
    mq       a light queue      stored once, a row in each              GET …/queues/{queue}/records  a socket's reader
    Redis    a stream           MULTI, an XADD each, EXEC               XRANGE                        XREAD BLOCK
    NATS     a subject of one   an atomic batch, a message each; 960    a direct get of several       a consumer's push,
             stream             messages at most have one sync                                        or the subject's

All at the same level: a disk sync that covers all of it before the answer, and a record is in all its inboxes or none.
"""

from __future__ import annotations

import asyncio
import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import NamedTuple, Protocol, cast

import orjson
import psutil

from loadtest.bench.payloads import JSON_TYPE
from loadtest.bench.push_work import Frames, connect
from loadtest.bench.queues_store import READ_RECORDS, VALUE
from loadtest.bench.request import Request, RunFailed
from loadtest.peers import nats, redis
from loadtest.peers.fetch import TOOLS
from loadtest.peers.peer import Durability, Peer, WorkFailed
from loadtest.peers.replay import connected, http_answer
from loadtest.process import running_server

TOPIC = "bench"
SETTINGS = """
[store]
index = "rocksdb"
[limits]
ws_sockets_max = 50000
connections_max = 60000
"""
SUBSCRIBE_TIMEOUT_S = 120.0
SEQUENCE = re.compile(rb'"sequence":(\d+)')

Whole = Callable[[bytearray], int]
"""How many bytes at the start of a buffer answer a request wholly; 0 when more are to come. Raises WorkFailed."""


class Asked(NamedTuple):
    """A request, and what answers it."""

    request: bytes
    whole: Whole


class Closes(Protocol):
    """A socket on an inbox."""

    def close(self) -> None:
        """At once."""


Arrived = Callable[[list[int]], None]
"""Takes the sequence numbers of what a socket was pushed."""


class Inboxes(ABC):
    """A server with inboxes, each known by its number."""

    name: str
    pushes: Sequence[str]
    """In which ways a socket gets what comes into its inbox."""

    def __init__(self, endpoint: str, pids: Sequence[int], data: Path) -> None:
        self.host, _, port = endpoint.rpartition(":")
        self.port = int(port)
        self._processes = [psutil.Process(pid) for pid in pids]
        self._data = data

    def cpu_s(self) -> float:
        """CPU time so far."""
        times = [process.cpu_times() for process in self._processes]
        return float(sum(one.user + one.system for one in times))

    def rss_bytes(self) -> int:
        """Memory now."""
        return sum(process.memory_info().rss for process in self._processes)

    def disk_bytes(self) -> int:
        """What its files take."""
        return sum(file.stat().st_blocks * 512 for file in self._data.rglob("*") if file.is_file())

    def opening(self, number: int) -> Asked | None:
        """What a connection of this number says first."""
        return None

    @abstractmethod
    async def begin(self) -> None:
        """Make what holds the inboxes."""

    @abstractmethod
    def send(self, number: int, records: Sequence[Sequence[int]], value: bytes = VALUE) -> Asked:
        """Records, each into its inboxes, on the connection of this number."""

    @abstractmethod
    def read(self, number: int, inbox: int) -> Asked:
        """The first READ_RECORDS records of an inbox."""

    @abstractmethod
    async def listen(self, push: str, inbox: int, arrived: Arrived, local_address: str) -> Closes:
        """A socket of its own on an inbox, subscribed on return. Raises RunFailed."""

    async def ask(self, asked: Asked) -> None:
        """One request, on a connection of its own. Raises WorkFailed."""
        async with connected(self.host, self.port, 1) as (connection,):
            if (opening := self.opening(0)) is not None:
                connection.skip(await connection.answer(*opening))
            await connection.answer(*asked)


# ------------------------------------------------------------------------------------------------------------ ours


class Ours(Inboxes):
    """Light queues of one topic with one partition."""

    name = "mq"
    pushes = ("socket",)

    @property
    def url(self) -> str:
        return f"http://{self.host}:{self.port}"

    async def begin(self) -> None:
        body = orjson.dumps({"partitions": 1})
        request = Request("PUT", f"/mq/v1/topics/{TOPIC}", {"Content-Type": JSON_TYPE}, body).encode(self.url)
        await self.ask(Asked(request, partial(http_answer, status=b"201")))

    def send(self, number: int, records: Sequence[Sequence[int]], value: bytes = VALUE) -> Asked:
        each = (b",".join(b'"user/%d"' % inbox for inbox in inboxes) for inboxes in records)
        body = b",".join(b'{"value":%b,"queues":[%b]}' % (value, queues) for queues in each)
        request = Request("POST", f"/topics/{TOPIC}", {"Content-Type": JSON_TYPE}, b'{"records":[%b]}' % body)
        return Asked(request.encode(self.url), _stored)

    def read(self, number: int, inbox: int) -> Asked:
        target = f"/mq/v1/topics/{TOPIC}/queues/user%2F{inbox}/records?limit={READ_RECORDS}"
        return Asked(Request("GET", target).encode(self.url), _found)

    async def listen(self, push: str, inbox: int, arrived: Arrived, local_address: str) -> Frames:
        def decode(payload: bytes) -> int:
            pushed = orjson.loads(payload)
            if pushed.get("op") == "messages":
                arrived([message["value"]["sequence"] for message in pushed["messages"]])
            return 0

        socket = await connect(self.url, "/ws/v1", lambda _: None, decode, local_address)
        subscribe = {"op": "subscribe", "sub": "s", "topics": [TOPIC], "queue": f"user/{inbox}", "credit": 100}
        socket.say({"id": 1, **subscribe})
        async with asyncio.timeout(SUBSCRIBE_TIMEOUT_S):
            while socket.count < 2:  # its answer, and `caught_up`
                if b'"ok":false' in socket.last or socket.closed_with is not None:
                    why = (socket.closed_with or socket.last).decode(errors="replace")
                    raise RunFailed(f"inbox {inbox} has no subscription: {why}")
                await asyncio.sleep(0.01)
        return socket


def _stored(buffer: bytearray) -> int:
    size = http_answer(buffer)
    if size and re.search(rb'"error_code":\d', buffer):
        raise WorkFailed(bytes(buffer[:300]).decode(errors="replace"))
    return size


def _found(buffer: bytearray) -> int:
    size = http_answer(buffer)
    if size and b'"queue_offset"' not in buffer:
        raise WorkFailed("an inbox is empty")
    return size


@contextmanager
def ours(directory: Path) -> Iterator[Inboxes]:
    """A server of ours on an empty directory."""
    settings = directory / "mq.toml"
    settings.write_text(SETTINGS)
    with running_server(directory / "data", "--config", str(settings)) as running:
        yield Ours(running.url.removeprefix("http://"), [running.pid], directory / "data")


# ----------------------------------------------------------------------------------------------------------- Redis


def resp(*words: bytes) -> bytes:
    """A command as Redis takes it: an array of strings, each behind its length."""
    return b"*%d\r\n" % len(words) + b"".join(b"$%d\r\n%b\r\n" % (len(word), word) for word in words)


class RedisStreams(Inboxes):
    """A stream for each inbox."""

    name = "Redis Streams"
    pushes = ("XREAD BLOCK",)

    async def begin(self) -> None:
        """A stream is there once it has been sent to. It listens on 127.0.0.1 alone, and by default lets in no client
        of 127.0.0.2."""
        await self.ask(Asked(resp(b"CONFIG", b"SET", b"protected-mode", b"no"), partial(_lines, count=1)))

    def send(self, number: int, records: Sequence[Sequence[int]], value: bytes = VALUE) -> Asked:
        commands, lines = [], 0
        for inboxes in records:
            adds = [resp(b"XADD", b"user/%d" % inbox, b"*", b"v", value) for inbox in inboxes]
            if len(adds) == 1:
                commands.append(adds[0])
                lines += 2
            else:  # in all of them or none, after a crash too: an unfinished transaction is cut off
                commands += [resp(b"MULTI"), *adds, resp(b"EXEC")]
                lines += 1 + len(adds) + 1 + 2 * len(adds)
        return Asked(b"".join(commands), partial(_lines, count=lines))

    def read(self, number: int, inbox: int) -> Asked:
        return Asked(resp(b"XRANGE", b"user/%d" % inbox, b"-", b"+", b"COUNT", b"%d" % READ_RECORDS), _entries)

    async def listen(self, push: str, inbox: int, arrived: Arrived, local_address: str) -> Closes:
        loop = asyncio.get_running_loop()
        _, reader = await loop.create_connection(
            lambda: _StreamReader(b"user/%d" % inbox, arrived), self.host, self.port, local_addr=(local_address, 0)
        )
        return reader


class _StreamReader(asyncio.Protocol):
    """Asks for what comes behind the last entry, again and again."""

    def __init__(self, stream: bytes, arrived: Arrived) -> None:
        import hiredis

        self._stream, self._arrived, self._replies = stream, arrived, hiredis.Reader()
        self._transport: asyncio.Transport

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._ask(b"$")

    def _ask(self, after: bytes) -> None:
        self._transport.write(resp(b"XREAD", b"BLOCK", b"0", b"STREAMS", self._stream, after))

    def data_received(self, data: bytes) -> None:
        self._replies.feed(data)
        while (found := self._replies.gets()) is not False:
            if not isinstance(found, list):
                raise RunFailed(f"Redis refused: {found}")
            entries = found[0][1]
            self._arrived([int(cast(re.Match[bytes], SEQUENCE.search(fields[1]))[1]) for _, fields in entries])
            self._ask(entries[-1][0])

    def close(self) -> None:
        self._transport.abort()


def _lines(buffer: bytearray, *, count: int) -> int:
    if buffer.startswith(b"-") or b"\n-" in buffer:  # no line of another answer begins so
        raise WorkFailed(bytes(buffer[:200]).decode(errors="replace"))
    return len(buffer) if buffer.count(b"\n") == count else 0


def _entries(buffer: bytearray) -> int:
    import hiredis

    replies = hiredis.Reader()
    replies.feed(bytes(buffer))
    found = replies.gets()
    if found is False:
        return 0
    if not isinstance(found, list) or not found:
        raise WorkFailed(f"an inbox is empty: {found}")
    return len(buffer)


@contextmanager
def redis_streams(directory: Path) -> Iterator[Inboxes]:
    """A server on an empty directory. Raises Unavailable."""
    with _served(redis.PEERS[0], directory) as (endpoint, pids):
        yield RedisStreams(endpoint, pids, directory)


# ------------------------------------------------------------------------------------------------------------ NATS

_HELLO = b'CONNECT {"verbose":false,"pedantic":false,"headers":true}\r\n'
CONSUMER, CORE = "a consumer each", "core subscriptions"


class NatsInboxes(Inboxes):
    """A subject for each inbox, all of one stream in files."""

    name = "NATS JetStream"
    pushes = (CORE, CONSUMER)  # consumers stay for some seconds after their sockets

    def opening(self, number: int) -> Asked:
        return Asked(_HELLO + b"SUB %b 1\r\nPING\r\n" % _reply(number), nats.connected_bytes)

    async def begin(self) -> None:
        stream = {
            "name": TOPIC, "subjects": ["user.*"], "storage": "file", "num_replicas": 1, "retention": "limits",
            "discard": "old", "allow_atomic": True, "allow_direct": True,
        }  # fmt: skip
        body = orjson.dumps(stream)
        request = b"PUB $JS.API.STREAM.CREATE.%b %b %d\r\n%b\r\n" % (TOPIC.encode(), _reply(0), len(body), body)
        await self.ask(Asked(request, partial(nats.acknowledged_bytes, count=1)))

    def send(self, number: int, records: Sequence[Sequence[int]], value: bytes = VALUE) -> Asked:
        messages = [(b"user.%d" % inbox, value) for inboxes in records for inbox in inboxes]
        if len(messages) == 1:
            request = b"PUB %b %b %d\r\n%b\r\n" % (messages[0][0], _reply(number), len(value), value)
        else:
            request = nats.atomic_batch(_reply(number).decode(), messages)
        return Asked(request, partial(nats.acknowledged_bytes, count=1))

    def read(self, number: int, inbox: int) -> Asked:
        wanted = b'{"batch":%d,"seq":1,"next_by_subj":"user.%d"}' % (READ_RECORDS, inbox)
        head = b"PUB $JS.API.DIRECT.GET.%b %b %d\r\n" % (TOPIC.encode(), _reply(number), len(wanted))
        return Asked(head + wanted + b"\r\n", _messages)

    async def listen(self, push: str, inbox: int, arrived: Arrived, local_address: str) -> Closes:
        loop = asyncio.get_running_loop()
        subscriber = _Subscriber(inbox, arrived, has_consumer=push == CONSUMER)
        await loop.create_connection(lambda: subscriber, self.host, self.port, local_addr=(local_address, 0))
        async with asyncio.timeout(SUBSCRIBE_TIMEOUT_S):
            await subscriber.subscribed
        return subscriber


class _Subscriber(asyncio.Protocol):
    """A subscription to an inbox: to its subject, which is told of a message before it is stored, or to what a consumer
    of the stream delivers."""

    def __init__(self, inbox: int, arrived: Arrived, *, has_consumer: bool) -> None:
        self._inbox, self._arrived, self._has_consumer = inbox, arrived, has_consumer
        self._rest = b""
        self._transport: asyncio.Transport
        self.subscribed: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        inbox = self._inbox
        if not self._has_consumer:
            self._transport.write(_HELLO + b"SUB user.%d 1\r\nPING\r\n" % inbox)
            return
        config = {
            "deliver_subject": f"_PUSH.{inbox}", "filter_subject": f"user.{inbox}", "deliver_policy": "new",
            "ack_policy": "none", "replay_policy": "instant", "mem_storage": True, "num_replicas": 1,
        }  # fmt: skip
        body = orjson.dumps({"stream_name": TOPIC, "config": config})
        self._transport.write(
            _HELLO
            + b"SUB _PUSH.%d 1\r\nSUB _MADE.%d 2\r\n" % (inbox, inbox)
            + b"PUB $JS.API.CONSUMER.CREATE.%b _MADE.%d %d\r\n%b\r\n" % (TOPIC.encode(), inbox, len(body), body)
        )

    def data_received(self, data: bytes) -> None:
        data = self._rest + data
        end = data.rfind(b"\r\n") + 2  # a line that is not complete waits for its end; 1 where there is none
        if end < 2:
            self._rest = data
            return
        self._rest, lines = data[end:], data[:end]
        if b"PING\r\n" in lines:
            self._transport.write(b"PONG\r\n")
        if not self.subscribed.done():
            if b"-ERR" in lines or b'"error":' in lines:
                self.subscribed.set_exception(RunFailed(f"NATS refused: {lines[-300:]!r}"))
            elif (b"consumer_create_response" if self._has_consumer else b"PONG\r\n") in lines:
                self.subscribed.set_result(None)
        if sequences := SEQUENCE.findall(lines):
            self._arrived([int(one) for one in sequences])

    def close(self) -> None:
        self._transport.abort()


def _reply(number: int) -> bytes:
    return b"_INBOX.bench-%d" % number


def _messages(buffer: bytearray) -> int:
    """The end of a direct get of several is a status."""
    if b"NATS/1.0 204" in buffer and buffer.endswith(b"\r\n\r\n\r\n"):
        return len(buffer)
    if b"NATS/1.0 4" in buffer or b"NATS/1.0 5" in buffer or b"-ERR" in buffer:
        raise WorkFailed(bytes(buffer[:300]).decode(errors="replace"))
    return 0


@contextmanager
def nats_jetstream(directory: Path) -> Iterator[Inboxes]:
    """A server on an empty directory. Raises Unavailable."""
    with _served(nats.PEERS[0], directory) as (endpoint, pids):
        yield NatsInboxes(endpoint, pids, directory)


@contextmanager
def _served(peer: Peer, directory: Path) -> Iterator[tuple[str, Sequence[int]]]:
    peer.prepare(TOOLS)
    level = next(one for one in peer.levels if one.durability is Durability.SYNCED)
    with peer.serve(TOOLS, directory, level) as server:
        yield server.endpoint, server.pids


SERVERS = {Ours.name: ours, RedisStreams.name: redis_streams, NatsInboxes.name: nats_jetstream}
"""Each gives a server on a directory, until the block ends; Unavailable where it cannot be had."""
