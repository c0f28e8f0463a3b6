"""mq itself: JSON for people with curl and browsers, record batches for programs, queue mode over both transports."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, aclosing, asynccontextmanager, contextmanager
from http import HTTPStatus
from importlib.metadata import version
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit
from urllib.request import urlopen

import aiohttp
import orjson

from loadtest.bench.request import Request
from loadtest.peers import replay, work
from loadtest.peers.peer import Durability, Level, Numbers, Options, Peer, Way, WorkFailed, by_python_client
from loadtest.peers.servers import Server, free_port, running
from store.record_batch import decode, encode_columns, split

CREDIT = 10_000
TIMESTAMP_MS = 1_767_225_600_000
JSON_TYPE = "application/vnd.kafka.json.v2+json"
BATCH_TYPE = "application/vnd.mq.batch"
SINGLE_BODY = orjson.dumps({"records": [{"value": "x" * 100}]})
GROUP = "scoreboard"
RECEIVE_RECORDS = 32
RECEIVE_WAIT_MS = 1_000
CONSUMERS = 16
"""Consumers of a work queue at a time, over HTTP: one alone waits for the disk with every ack."""

SOCKET_BATCH, SOCKET_CREDIT = 512, 4_096
FETCH_BYTES = 2**20
FETCH_RECORDS = 1_000_000

JSON = "aiohttp, JSON"
BATCHES = "aiohttp, record batches"
SOCKET = "WebSocket"


class JsonClient:
    """JSON: sends over HTTP, reads over the WebSocket, receives and acks over HTTP."""

    def __init__(self, session: aiohttp.ClientSession, url: str) -> None:
        self._session = session
        self._url = url

    async def create(self, topic: str) -> None:
        """One partition."""
        await self._asked("PUT", f"/mq/v1/topics/{topic}", orjson.dumps({"partitions": 1}), "application/json")

    async def drop(self, topic: str) -> None:
        """With all that it holds."""
        await self._asked("DELETE", f"/mq/v1/topics/{topic}", b"", "application/json")

    async def send(self, topic: str, values: Sequence[bytes]) -> None:
        """One request."""
        records = [{"value": one.decode()} for one in values]
        await self._asked("POST", f"/topics/{topic}", orjson.dumps({"records": records}), JSON_TYPE)

    async def post(self, request: Request) -> None:
        """A prebuilt request."""
        await self._asked(request.method, request.target, request.body, request.headers["Content-Type"])

    async def delay(self, topic: str, values: Sequence[bytes], due_ms: Sequence[int]) -> None:
        """One request."""
        records = [
            {"value": one.decode(), "deliver_at": due, "partition": 0} for one, due in zip(values, due_ms, strict=True)
        ]
        await self._asked("POST", f"/topics/{topic}", orjson.dumps({"records": records}), JSON_TYPE)

    async def read(self, topic: str) -> AsyncGenerator[Sequence[bytes]]:
        """JSON frames."""
        async with aclosing(self._frames(topic)) as frames:
            async for frame in frames:
                push = _push_of(frame)
                if push.get("op") == "messages":
                    yield [message["value"].encode() for message in push["messages"]]

    async def receive(self, topic: str) -> AsyncGenerator[Sequence[bytes]]:
        """Several consumers of one group, each on a connection of its own: receive 32, ack them, receive again."""
        done: asyncio.Queue[Sequence[bytes]] = asyncio.Queue(CONSUMERS)
        path = f"/mq/v1/groups/{GROUP}/messages:"
        wanted = {"topics": [topic], "max_messages": RECEIVE_RECORDS, "wait_ms": RECEIVE_WAIT_MS}
        request = orjson.dumps({**wanted, "start": "earliest"})

        async def consumer() -> None:
            while True:
                answer = orjson.loads(await self._asked("POST", f"{path}receive", request, "application/json"))
                if messages := answer["messages"]:
                    receipts = orjson.dumps({"receipts": [message["receipt"] for message in messages]})
                    _check_acks(orjson.loads(await self._asked("POST", f"{path}ack", receipts, "application/json")))
                    await done.put([message["value"].encode() for message in messages])

        consumers = [asyncio.create_task(consumer()) for _ in range(CONSUMERS)]
        try:
            while True:
                piece = asyncio.ensure_future(done.get())
                await asyncio.wait([piece, *consumers], return_when=asyncio.FIRST_COMPLETED)
                for ended in consumers:
                    if ended.done():
                        ended.result()
                yield await piece
        finally:
            for one in consumers:
                one.cancel()

    async def _asked(self, method: str, path: str, body: bytes, kind: str) -> bytes:
        async with self._session.request(
            method, self._url + path, data=body, headers={"Content-Type": kind}
        ) as response:
            answer = await response.read()
            if response.status >= 300:
                raise WorkFailed(f"{method} {path}: {response.status} {answer[:200]!r}")
            return answer

    async def _frames(self, topic: str, **fields: object) -> AsyncGenerator[aiohttp.WSMessage]:
        """What a subscription from the start of a topic brings."""
        async with self._session.ws_connect(f"{self._url}/ws/v1", max_msg_size=0) as socket:
            await socket.send_json({"id": 1, "op": "hello", "binary": "format" in fields})
            wanted = {"id": 2, "op": "subscribe", "sub": "s", "topics": [topic], "from": "earliest", "credit": CREDIT}
            await socket.send_json({**wanted, "auto_credit": True, **fields})
            async for frame in socket:
                if frame.type not in (aiohttp.WSMsgType.TEXT, aiohttp.WSMsgType.BINARY):
                    raise WorkFailed(f"the socket was closed: {frame.extra}")
                yield frame
        raise WorkFailed("the socket was closed")


class SocketClient(JsonClient):
    """Receives and acks over one WebSocket."""

    async def receive(self, topic: str) -> AsyncGenerator[Sequence[bytes]]:
        """A subscription in queue mode. A frame is acked as a whole; it is yielded when the acks are confirmed."""
        async with self._session.ws_connect(f"{self._url}/ws/v1", max_msg_size=0) as socket:
            await socket.send_json({"id": 1, "op": "hello"})
            wanted = {"id": 2, "op": "subscribe", "sub": "s", "topics": [topic], "mode": "queue", "group": GROUP}
            await socket.send_json({**wanted, "start": "earliest", "batch": SOCKET_BATCH, "credit": SOCKET_CREDIT})
            waiting: dict[int, Sequence[bytes]] = {}
            next_id = 3
            async for frame in socket:
                push = _push_of(frame)
                if push.get("op") == "messages":
                    messages = push["messages"]
                    waiting[next_id] = [message["value"].encode() for message in messages]
                    ack = {"id": next_id, "op": "ack", "sub": "s", "receipts": [one["receipt"] for one in messages]}
                    await socket.send_str(orjson.dumps(ack).decode())
                    next_id += 1
                elif "results" in push:
                    _check_acks(push)
                    yield waiting.pop(push["id"])
        raise WorkFailed("the socket was closed")


class BatchClient(JsonClient):
    """Kafka record batches both ways; single records over a WebSocket."""

    def __init__(self, session: aiohttp.ClientSession, url: str) -> None:
        super().__init__(session, url)
        self._sender: _SocketSender | None = None

    async def send(self, topic: str, values: Sequence[bytes]) -> None:
        """One batch in one request; one record as a command on a socket."""
        if len(values) == 1:
            if self._sender is None:  # the first record is sent alone, so there is one socket
                socket = await self._session.ws_connect(f"{self._url}/ws/v1")
                await socket.send_json({"id": 0, "op": "hello", "binary": True})
                _push_of(await socket.receive())
                self._sender = _SocketSender(socket)
            await self._sender.send(topic, values[0])
            return
        await self._asked("POST", f"/topics/{topic}/partitions/0", _batch(values), BATCH_TYPE)

    async def read(self, topic: str) -> AsyncGenerator[Sequence[bytes]]:
        """Binary frames of whole batches."""
        async with aclosing(self._frames(topic, format="batch")) as frames:
            async for frame in frames:
                if frame.type is aiohttp.WSMsgType.TEXT:
                    _push_of(frame)
                    continue
                payload = memoryview(frame.data)[4 + int.from_bytes(frame.data[:4], "big") :]
                yield [record.value or b"" for batch in split(payload) for record in decode(batch)]


class _SocketSender:
    """`produce` commands in binary frames, many of them unanswered at a time."""

    def __init__(self, socket: aiohttp.ClientWebSocketResponse) -> None:
        self._socket = socket
        self._next_id = 0
        self._waiting: dict[int, asyncio.Future[None]] = {}
        self._receiver = asyncio.get_running_loop().create_task(self._receive())

    async def send(self, topic: str, one: bytes) -> None:
        self._next_id += 1
        done = self._waiting[self._next_id] = asyncio.get_running_loop().create_future()
        record = {"key_len": None, "value_len": len(one), "partition": 0}
        header = orjson.dumps({"id": self._next_id, "op": "produce", "topic": topic, "records": [record]})
        await self._socket.send_bytes(len(header).to_bytes(4, "big") + header + one)
        await done

    async def _receive(self) -> None:
        async for frame in self._socket:
            answer = orjson.loads(frame.data)
            done = self._waiting.pop(answer["id"])
            if answer["ok"]:
                done.set_result(None)
            else:
                done.set_exception(WorkFailed(str(answer)))
        for done in self._waiting.values():
            done.set_exception(WorkFailed("the socket was closed"))


def _push_of(frame: aiohttp.WSMessage) -> dict[str, Any]:
    push: dict[str, Any] = orjson.loads(frame.data)
    if push.get("ok") is False or push.get("op") == "error":
        raise WorkFailed(str(push))
    return push


def _check_acks(answer: dict[str, Any]) -> None:
    for result in answer["results"]:
        if not result["ok"]:
            raise WorkFailed(f"an ack was refused: {result}")


def _batch(values: Sequence[bytes]) -> bytes:
    return bytes(encode_columns(None, values, TIMESTAMP_MS))


@asynccontextmanager
async def _session(url: str) -> AsyncIterator[aiohttp.ClientSession]:
    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as session:
        yield session


def _connect(client: type[JsonClient]) -> Callable[[str], AbstractAsyncContextManager[JsonClient]]:
    @asynccontextmanager
    async def connected(url: str) -> AsyncIterator[JsonClient]:
        async with _session(url) as session:
            yield client(session, url)

    return connected


async def _single(url: str, topic: str, options: Options) -> Numbers:
    """wrk: a JSON value of 100 characters in one request."""
    request = Request("POST", f"/topics/{topic}", {"Content-Type": JSON_TYPE}, SINGLE_BODY)
    async with _connect(JsonClient)(url) as client:
        await client.create(topic)
        found = await replay.single(url, request, **options)
        await client.drop(topic)
    return found


async def _replay(url: str, topic: str, options: Options) -> Numbers:
    """One record batch, again and again."""
    place = urlsplit(url)
    assert place.hostname is not None
    assert place.port is not None
    async with _connect(JsonClient)(url) as client:
        await client.create(topic)
        found = await replay.replay(
            place.hostname,
            place.port,
            request=_prebuilt(topic).encode(url),
            whole=replay.http_answer,
            records=work.BATCH_RECORDS,
            connections=options["connections"],
            duration_s=options["duration_s"],
            warm_s=options["warm_s"],
        )
        await client.drop(topic)
    return found


async def _fetch(url: str, topic: str, options: Options) -> Numbers:
    """Batches as they are stored, up to 1 MiB a request."""
    place = urlsplit(url)
    assert place.hostname is not None
    assert place.port is not None

    def ask(offset: int) -> bytes:
        target = f"/topics/{topic}/partitions/0/records?offset={offset}&max_bytes={FETCH_BYTES}"
        return Request("GET", target, {"Accept": BATCH_TYPE}).encode(url)

    async with _connect(JsonClient)(url) as client:
        await client.create(topic)
        request = _prebuilt(topic)
        batches = iter(range(FETCH_RECORDS // work.BATCH_RECORDS))

        async def sender() -> None:
            for _ in batches:
                await client.post(request)

        await asyncio.gather(*(sender() for _ in range(work.IN_FLIGHT)))
        found = await replay.fetch(
            place.hostname,
            place.port,
            request=ask,
            whole=replay.http_records,
            count=FETCH_RECORDS,
            duration_s=options["duration_s"],
            warm_s=options["warm_s"],
        )
        await client.drop(topic)
    return found


def _prebuilt(topic: str) -> Request:
    batch = _batch([work.value(number) for number in range(work.BATCH_RECORDS)])
    return Request("POST", f"/topics/{topic}/partitions/0", {"Content-Type": BATCH_TYPE}, batch)


class Mq(Peer):
    """Ours."""

    name = "mq"
    about = "one process, aiohttp and uvloop; the Python client is aiohttp's"
    levels = (
        Level("flushed", Durability.SYNCED, "--acks flushed: an fdatasync covers the record before the answer"),
        Level("written", Durability.WRITTEN, "--acks written: pwrite before the answer, fdatasync later"),
    )
    is_ours = True

    def prepare(self, tools: Path) -> str:
        return version("mq-gateway")

    @contextmanager
    def serve(self, tools: Path, data: Path, level: Level) -> Iterator[Server]:
        port = free_port()
        command = [sys.executable, "-m", "gateway", "serve", "--data", str(data / "mq"), "--port", str(port)]
        command += ["--acks", level.name]
        environment = {"PYTHONPATH": str(Path(__file__).resolve().parents[2])}
        url = f"http://127.0.0.1:{port}"
        with running(url, [command], data, environment=environment, is_ready=lambda _: _is_ready(url)) as server:
            yield server

    def ways(self, work_name: str) -> Sequence[Way]:
        return _WAYS.get(work_name, ())


def _is_ready(url: str) -> bool:
    """Whether it has recovered. It listens before it has, and answers 503 until then."""
    try:
        with urlopen(f"{url}/ready") as answer:
            return bool(answer.status == HTTPStatus.OK)
    except OSError:
        return False


def _both(run: Callable[..., Awaitable[Numbers]]) -> tuple[Way, Way]:
    return (
        by_python_client(_connect(BatchClient), run, BATCHES),
        by_python_client(_connect(JsonClient), run, JSON),
    )


def _json(run: Callable[..., Awaitable[Numbers]]) -> tuple[Way]:
    return (by_python_client(_connect(JsonClient), run, JSON),)


_WAYS: Mapping[str, Sequence[Way]] = {
    "single": (Way("wrk", _single),),
    "replay": (Way("prebuilt bytes", _replay),),
    "fetch": (Way("raw bytes", _fetch),),
    "batched": _both(work.batched),
    "scan": _both(work.scan),
    "receive": (*_json(work.receive), by_python_client(_connect(SocketClient), work.receive, SOCKET)),
    "singles": _both(work.singles),
    "push": _both(work.push),
    "delayed": _json(work.delayed),
    "topics": _json(work.topics),
    "fill": _both(work.fill)[:1],
    "first_record": _both(work.first_record)[:1],
    "drop": _json(work.drop),
}
PEERS = (Mq(),)
