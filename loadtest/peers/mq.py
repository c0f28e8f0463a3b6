"""mq itself, as two rows: JSON for people with curl and browsers, and record batches for programs."""

from __future__ import annotations

import asyncio
import base64
import sys
from abc import ABC, abstractmethod
from collections.abc import AsyncGenerator, AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from http import HTTPStatus
from importlib.metadata import version
from pathlib import Path
from urllib.request import urlopen

import aiohttp
import orjson

from loadtest.bench.request import Request
from loadtest.peers.peer import Client, Durability, Peer
from loadtest.peers.servers import Server, free_port, running
from store.record_batch import Record, decode, encode, split

CREDIT = 10_000
TIMESTAMP_MS = 1_767_225_600_000
JSON_TYPE = "application/vnd.kafka.json.v2+json"
BINARY_TYPE = "application/vnd.kafka.binary.v2+json"
BATCH_TYPE = "application/vnd.mq.batch"


class _Client(ABC):
    """Sends over HTTP, reads over the WebSocket."""

    _delay_type = JSON_TYPE

    def __init__(self, session: aiohttp.ClientSession, url: str) -> None:
        self._session = session
        self._url = url

    async def create(self, topic: str) -> None:
        """One partition."""
        await self._asked("PUT", f"/mq/v1/topics/{topic}", orjson.dumps({"partitions": 1}), "application/json")

    @abstractmethod
    async def send(self, topic: str, values: Sequence[bytes]) -> None: ...

    @abstractmethod
    def read(self, topic: str) -> AsyncGenerator[Sequence[bytes]]: ...

    async def delay(self, topic: str, values: Sequence[bytes], due_ms: Sequence[int]) -> None:
        """One batch, in JSON."""
        shown = [self._shown(one) for one in values]
        records = [{"value": one, "deliver_at": due, "partition": 0} for one, due in zip(shown, due_ms, strict=True)]
        await self._asked("POST", f"/topics/{topic}", orjson.dumps({"records": records}), self._delay_type)

    def _shown(self, one: bytes) -> str:
        return one.decode()

    async def _asked(self, method: str, path: str, body: bytes, kind: str) -> None:
        async with self._session.request(
            method, self._url + path, data=body, headers={"Content-Type": kind}
        ) as response:
            answer = await response.read()
            if response.status >= 300:
                raise RuntimeError(f"{method} {path}: {response.status} {answer[:200]!r}")

    async def _frames(self, topic: str, **fields: object) -> AsyncIterator[aiohttp.WSMessage]:
        """What a subscription from the start of a topic brings."""
        async with self._session.ws_connect(f"{self._url}/ws/v1", max_msg_size=0) as socket:
            await socket.send_json({"id": 1, "op": "hello", "binary": "format" in fields})
            wanted = {"id": 2, "op": "subscribe", "sub": "s", "topics": [topic], "from": "earliest", "credit": CREDIT}
            await socket.send_json({**wanted, "auto_credit": True, **fields})
            async for frame in socket:
                if frame.type not in (aiohttp.WSMsgType.TEXT, aiohttp.WSMsgType.BINARY):
                    raise RuntimeError(f"the socket was closed: {frame.extra}")
                yield frame


class _SocketSender:
    """`produce` commands, many of them unanswered at a time."""

    def __init__(self, socket: aiohttp.ClientWebSocketResponse) -> None:
        self._socket = socket
        self._next_id = 0
        self._waiting: dict[int, asyncio.Future[None]] = {}
        self._receiver = asyncio.get_running_loop().create_task(self._receive())

    async def send(self, topic: str, one: bytes) -> None:
        self._next_id += 1
        done = self._waiting[self._next_id] = asyncio.get_running_loop().create_future()
        record = {"value": base64.b64encode(one).decode(), "partition": 0}
        command = {"id": self._next_id, "op": "produce", "topic": topic, "format": "binary", "records": [record]}
        await self._socket.send_str(orjson.dumps(command).decode())
        await done

    async def _receive(self) -> None:
        async for frame in self._socket:
            answer = orjson.loads(frame.data)
            done = self._waiting.pop(answer["id"])
            if answer["ok"]:
                done.set_result(None)
            else:
                done.set_exception(RuntimeError(str(answer)))
        for done in self._waiting.values():
            done.set_exception(RuntimeError("the socket was closed"))


class JsonClient(_Client):
    """JSON both ways."""

    async def send(self, topic: str, values: Sequence[bytes]) -> None:
        """One request."""
        records = [{"value": one.decode()} for one in values]
        await self._asked("POST", f"/topics/{topic}", orjson.dumps({"records": records}), JSON_TYPE)

    async def read(self, topic: str) -> AsyncGenerator[Sequence[bytes]]:
        """JSON frames."""
        async for frame in self._frames(topic):
            push = orjson.loads(frame.data)
            if push.get("op") == "messages":
                yield [message["value"].encode() for message in push["messages"]]
            elif push.get("ok") is False or push.get("op") == "error":
                raise RuntimeError(str(push))


class BatchClient(_Client):
    """Kafka record batches both ways; single records over a socket."""

    _delay_type = BINARY_TYPE

    def __init__(self, session: aiohttp.ClientSession, url: str) -> None:
        super().__init__(session, url)
        self._sender: _SocketSender | None = None

    async def send(self, topic: str, values: Sequence[bytes]) -> None:
        """One batch in one request; one record as a command on a socket."""
        if len(values) == 1:
            if self._sender is None:
                self._sender = _SocketSender(await self._session.ws_connect(f"{self._url}/ws/v1"))
            await self._sender.send(topic, values[0])
            return
        batch = encode([Record(None, one, TIMESTAMP_MS) for one in values])
        await self._asked("POST", f"/topics/{topic}/partitions/0", bytes(batch), BATCH_TYPE)

    def _shown(self, one: bytes) -> str:
        return base64.b64encode(one).decode()

    async def read(self, topic: str) -> AsyncGenerator[Sequence[bytes]]:
        """Binary frames of whole batches."""
        async for frame in self._frames(topic, format="batch"):
            if frame.type is aiohttp.WSMsgType.TEXT:
                push = orjson.loads(frame.data)
                if push.get("ok") is False or push.get("op") == "error":
                    raise RuntimeError(str(push))
                continue
            payload = memoryview(frame.data)[4 + int.from_bytes(frame.data[:4], "big") :]
            yield [record.value or b"" for batch in split(payload) for record in decode(batch)]


class Mq(Peer):
    """Ours."""

    is_ours = True
    can_delay = True

    def __init__(self, name: str, about: str, client: type[_Client], parts: Sequence[str]) -> None:
        self.name = name
        self.about = about
        self.parts = parts
        self._client = client

    def prepare(self, tools: Path) -> str:
        return version("mq-gateway")

    @contextmanager
    def serve(self, tools: Path, data: Path, durability: Durability) -> Iterator[Server]:
        port = free_port()
        acks = "flushed" if durability is Durability.SYNCED else "written"
        command = [sys.executable, "-m", "gateway", "serve", "--data", str(data / "mq"), "--port", str(port)]
        environment = {"PYTHONPATH": str(Path(__file__).resolve().parents[2])}
        url = f"http://127.0.0.1:{port}"
        command += ["--acks", acks]
        with running(url, [command], data, environment=environment, is_ready=lambda _: _is_ready(url)) as server:
            yield server

    @asynccontextmanager
    async def client(self, endpoint: str) -> AsyncIterator[Client]:
        async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as session:
            yield self._client(session, endpoint)

    def single(self, topic: str) -> Request | None:
        if self._client is not JsonClient:
            return None
        body = orjson.dumps({"records": [{"value": "x" * 100}]})
        return Request("POST", f"/topics/{topic}", {"Content-Type": JSON_TYPE}, body)


def _is_ready(url: str) -> bool:
    """Whether it has recovered. It listens before it has, and answers 503 until then."""
    try:
        with urlopen(f"{url}/ready") as answer:
            return bool(answer.status == HTTPStatus.OK)
    except OSError:
        return False


PEERS = (
    Mq(
        "mq",
        "JSON over HTTP, JSON frames over a WebSocket; aiohttp's client",
        JsonClient,
        ("works", "topics", "delayed"),
    ),
    Mq(
        "mq, record batches",
        "record batches over HTTP, single records and batch frames over a WebSocket; aiohttp's client",
        BatchClient,
        ("works", "restart"),
    ),
)
