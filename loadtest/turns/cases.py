"""What a client may send that is dear: the largest bodies, the most records, the oddest JSON, for every route.

Three kinds of cases:

    bombs      for every route that reads a body: JSON as large as its limit that is all brackets, numbers, escapes, …,
               bare and where the route expects its records, receipts or partitions
    plain      for every other route: the longest query and the most headers that aiohttp lets through
    largest    what is legal and as large as the limits allow: sends, reads, settling, socket frames, odd framing
"""

from __future__ import annotations

import asyncio
import base64
import gzip
import struct
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import Enum
from functools import partial
from urllib.parse import urlsplit

import aiohttp
import orjson
import zstandard
from yarl import URL

from gateway.main.routes import ROUTES
from gateway.settings.limits import Limits
from gateway.surfaces.http.media import BATCH_TYPE, LINES_TYPE
from gateway.surfaces.http.routes import Row
from gateway.surfaces.ws.commands import PERMISSIONS
from gateway.surfaces.ws.protocol import binary_frame
from loadtest.turns import registry
from loadtest.turns.kafka import create_topics, in_crowd, requests
from store import record_batch
from store.limits import BATCH_RECORDS_MAX, HEADER_COUNT_MAX, PARTITIONS_MAX, MiB
from store.record_batch import Record

RECORDS_MAX = 10_000
"""`limits.records_per_request_max`."""

JSON = "application/vnd.kafka.json.v2+json"
BINARY = "application/vnd.kafka.binary.v2+json"
V2 = "application/vnd.kafka.v2+json"
GROUPS = 100
TOPICS = 10
"""Of RECORDS_MAX partitions together."""

CROWD = 9_900
"""Topics of one partition, beside the others: with these nearly as many as a server may have."""

LIGHT = {"light-heads": (8_000, HEADER_COUNT_MAX - 1), "light-tiny": (RECORDS_MAX, 0)}
"""Topics of light queues, and how many records they have, with so many headers each."""

WIDEST = "widest"
"""A group that consumes PARTITIONS_MAX + RECORDS_MAX partitions."""

KEPT_MAX = 5_000
"""Partitions of them that fit into what is kept of a consumer instance."""

_STREAM_READ_S = 1.0  # how long an endless answer is listened to
_ANSWER_S = 30.0


HELD_MS_MAX = 50.0
"""What no turn may take of its thread's CPU time, whatever a client sends."""

LOOKED_MS_MAX = 10.0
"""What a turn may take where many partitions are looked at, or many groups are."""


class Size(Enum):
    """The largest body."""

    QUICK = 4 * MiB
    FULL = 16 * MiB


class Client:
    """Requests to one server. What comes back is read and dropped."""

    def __init__(self, url: str, kafka_port: int, session: aiohttp.ClientSession) -> None:
        self._url = url
        self._kafka_port = kafka_port
        self._session = session
        self.address = urlsplit(url).hostname, urlsplit(url).port
        self.cluster = ""

    async def send(
        self, method: str, path: str, body: bytes = b"", *, kind: str = JSON, headers: Mapping[str, str] | None = None
    ) -> bytes:
        """One request; the body of its answer. Raises RequestFailed for a status of 400 and more."""
        status, answer = await self._exchange(method, path, body, {"Content-Type": kind, **(headers or {})})
        if status >= 400:
            raise RequestFailed(f"{method} {path}: {status} {answer[:200]!r}")
        return answer

    async def outcome(
        self, method: str, path: str, body: bytes = b"", *, kind: str = JSON, headers: Mapping[str, str] | None = None
    ) -> str:
        """As `send`: the status, and the size of the answer or the code of its error."""
        status, answer = await self._exchange(method, path, body, {"Content-Type": kind, **(headers or {})})
        return f"{status} {len(answer)} B" if status < 400 else f"{status} {_code(answer)}"

    async def _exchange(self, method: str, path: str, body: bytes, headers: Mapping[str, str]) -> tuple[int, bytes]:
        url = URL(f"{self._url}{path}".replace("CLUSTER", self.cluster), encoded=True)
        async with self._session.request(method, url, data=body or None, headers=headers, compress=None) as answer:
            return answer.status, await answer.read()

    async def asked_as_kafka(self, data: bytes) -> str:
        """The same to the port for Kafka clients, whose first answer is waited for."""
        return await self.bytes_sent(data, port=self._kafka_port, first_wait_s=_ANSWER_S)

    async def bytes_sent(self, data: bytes, *, port: int | None = None, first_wait_s: float = _STREAM_READ_S) -> str:
        """Bytes over a connection of their own, until the server has nothing more to say for a while."""
        host, own_port = self.address
        reader, writer = await asyncio.open_connection(host, port or own_port)
        heard = 0
        try:
            writer.write(data)
            while chunk := await asyncio.wait_for(reader.read(1 << 20), _STREAM_READ_S if heard else first_wait_s):
                heard += len(chunk)
        except (TimeoutError, ConnectionError):
            pass
        finally:
            writer.close()
        return f"{heard} B"

    async def talk(self, frames: Sequence[str | bytes], *, path: str = "/ws/v1", deflate: bool = False) -> str:
        """Frames on a socket of their own, until the server has nothing more to say for a while."""
        count = 0
        async with self._session.ws_connect(f"{self._url}{path}", max_msg_size=0, compress=15 if deflate else 0) as ws:
            for frame in frames:
                await (ws.send_str(frame) if isinstance(frame, str) else ws.send_bytes(frame))
            try:
                while (await ws.receive(timeout=_STREAM_READ_S)).type in (
                    aiohttp.WSMsgType.TEXT,
                    aiohttp.WSMsgType.BINARY,
                ):
                    count += 1
            except TimeoutError:
                pass
        return f"{count} frames"

    async def close(self) -> None:
        """Done."""
        await self._session.close()


def _code(answer: bytes) -> object:
    try:
        return orjson.loads(answer)["error_code"]
    except (orjson.JSONDecodeError, KeyError, TypeError):
        return "?"


class RequestFailed(Exception):
    """A request that the preparation of a case needs was refused."""


Run = Callable[[Client], Awaitable[str]]
Make = Callable[[], bytes]
"""A body, made when it is sent: a thousand cases of 16 MiB take long to make and much room."""


@dataclass(frozen=True, slots=True)
class Case:
    """One thing to send. `route`: the name in the route table, or `socket OP`."""

    route: str
    name: str
    run: Run
    held_ms_max: float = HELD_MS_MAX
    is_in_crowd: bool = False
    """Whether CROWD topics are there. They take half a minute to make, and are there for all later cases."""

    is_light: bool = False
    """Whether it is of light queues: it has a server with an index in RocksDB, and LIGHT topics alone."""


BOMBS: dict[str, Callable[[int], bytes]] = {
    "brackets": lambda size: b"[" * size,
    "empty lists": lambda size: _list(b"[]", size),
    "empty objects": lambda size: _list(b"{}", size),
    "objects": lambda size: _list(b'{"a":{}}', size),
    "numbers": lambda size: _list(b"0", size),
    "floats": lambda size: _list(b"1.5e300", size),
    "strings": lambda size: _list(b'"a"', size),
    "digits": lambda size: b"1" * size,
    "escapes": lambda size: b'"%b"' % (b"\\u0001" * (size // 6)),
    "surrogates": lambda size: b'"%b"' % (b"\\ud83d\\ude00" * (size // 12)),
    "keys": lambda size: b"{%b}" % b",".join(b'"%07d":0' % number for number in range(size // 12)),
    "blanks": lambda size: b" " * size,
}
"""JSON values (one is none) of about so many bytes, each the worst of its kind for a parser or for its objects."""


def _list(item: bytes, size: int) -> bytes:
    return b"[%b]" % b",".join([item] * (size // (len(item) + 1)))


WRAPS: dict[str, tuple[str, ...]] = {
    "produce": ('{"records":[{"value":%s}]}', '{"records":%s}'),
    "produce_partition": ('{"records":[{"value":%s}]}', '{"records":%s}'),
    "v3_produce": ('{"value":{"type":"JSON","data":%s}}',),
    "v3_produce_batch": ('{"entries":[{"id":"1","value":{"type":"JSON","data":%s}}]}', '{"entries":%s}'),
    "produce_lines": ('{"value":%s}',),
    "subscribe": ('{"topics":%s}',),
    "assign": ('{"partitions":%s}',),
    "commit_offsets": ('{"offsets":%s}',),
    "committed_offsets": ('{"partitions":%s}',),
    "query_committed_offsets": ('{"partitions":%s}',),
    "seek": ('{"offsets":%s}',),
    "seek_to_beginning": ('{"partitions":%s}',),
    "seek_to_end": ('{"partitions":%s}',),
    "ack": ('{"receipts":%s}', '{"up_to":%s}'),
    "nack": ('{"receipts":%s}',),
    "reject": ('{"receipts":%s}',),
    "extend": ('{"receipts":%s}',),
}
"""Where a route looks for what is large."""

_KINDS = {"produce_lines": LINES_TYPE, "v3_produce": "application/json", "v3_produce_batch": "application/json"}


def cases(size: Size) -> Iterator[Case]:
    """All of them. Every route of the table and every op of a socket has one."""
    rows = {row.name: row for row in reversed(ROUTES)}  # of several paths the first
    deleting = [row for row in rows.values() if row.method == "DELETE"]
    for row in reversed(rows.values()):
        if row not in deleting:
            yield from _bombs_of(row, size.value) if row.reads_body else [_plain(row)]
    yield from _sends(size.value)
    yield from _framings()
    yield from _reads()
    yield from _schemas(size.value)
    yield from _queues()
    yield from _instances()
    yield from _sockets(size.value)
    headed = {name: make for name, make in BATCHES.items() if name.endswith("of many headers")}
    for name, what, request in requests(bytes(_tiny()), headed):
        yield Case(f"kafka {name}", what, partial(_as_kafka, request=request))
    yield from _crowd()
    yield from _light()
    for row in deleting:  # last: nothing is there any more for the others
        yield _plain(row)


async def _as_kafka(client: Client, request: Make) -> str:
    return await client.asked_as_kafka(request())


async def prepare(client: Client, size: Size) -> None:
    """Topics that the cases read and write: `orders` is small, `wide` has the most partitions, `tiny` the most records
    in a batch, `large` the most bytes, `heads` the most headers, compressed."""
    for topic, partitions in (
        ("orders", 1),
        ("wide", PARTITIONS_MAX),
        ("empty", PARTITIONS_MAX),
        ("tiny", 1),
        ("large", 1),
        ("heads", 1),
        ("busy", 1),
    ):
        await client.send("PUT", f"/mq/v1/topics/{topic}", b'{"partitions":%d}' % partitions, kind="application/json")
    for number in range(TOPICS):
        await client.send("PUT", f"/mq/v1/topics/m{number}", b'{"partitions":%d}' % (RECORDS_MAX // TOPICS),
                          kind="application/json")  # fmt: skip
    client.cluster = orjson.loads(await client.send("GET", "/v3/clusters"))["data"][0]["cluster_id"]
    tiny = bytes(_tiny())
    for _ in range(3):
        await client.send("POST", "/topics/tiny", tiny, kind=BATCH_TYPE)
    heads = bytes(record_batch.zstd_packed(_headed(), level=3))
    for _ in range(2):
        await client.send("POST", "/topics/heads", heads, kind=BATCH_TYPE)
    body = _records([{"value": "x" * 1000}] * (size.value // 2048))
    for _ in range(6 * MiB * 4 // len(body) + 2):
        await client.send("POST", "/topics/large", body)
    for topic, values in registry.HARMFUL.items():
        await client.send("PUT", f"/mq/v1/topics/{topic}", b'{"partitions":1}', kind="application/json")
        encoded = [{"value": base64.b64encode(value).decode()} for value in values()]
        await client.send("POST", f"/topics/{topic}", _records(encoded), kind=BINARY)
    every = _records([{"value": number, "partition": number % PARTITIONS_MAX} for number in range(RECORDS_MAX)])
    await client.send("POST", "/topics/wide", every)
    await client.send("POST", "/topics/busy", _records([{"value": number} for number in range(RECORDS_MAX)]))
    topics = ["wide", *(f"m{number}" for number in range(TOPICS))]
    await client.send(
        "POST", f"/mq/v1/groups/{WIDEST}/messages:receive", orjson.dumps({"topics": topics}), kind="application/json"
    )
    await client.send("POST", "/consumers/g", b'{"name":"i","format":"json","auto.offset.reset":"earliest"}', kind=V2)


async def prepare_crowd(client: Client) -> None:
    """CROWD topics, some of them with a record, and GROUPS groups."""
    for first in range(0, CROWD, RECORDS_MAX // 10):
        names = [f"crowd-{number}" for number in range(first, min(first + RECORDS_MAX // 10, CROWD))]
        await client.asked_as_kafka(create_topics(names))
        sent = _lines(lambda names=names: [{"value": 1}] * len(names))  # type: ignore[misc]
        await client.send("POST", f"/mq/v1/topics/{names[-1]}/messages:batch", sent, kind=LINES_TYPE)
    for number in range(GROUPS):
        wanted = orjson.dumps({"topics": [f"crowd-{CROWD - 1}"]})
        await client.send("POST", f"/mq/v1/groups/crowd-{number}/messages:receive", wanted, kind="application/json")


async def prepare_light(client: Client) -> None:
    """LIGHT topics, each with one batch, all of whose records are in the light queue `a`."""
    for topic, (record_count, header_count) in LIGHT.items():
        shape = b'{"partitions":1,"mq_headers":true}'
        await client.send("PUT", f"/mq/v1/topics/{topic}", shape, kind="application/json")
        headers = [("mq-queues", b'["a"]'), *((f"h{number}", b"1") for number in range(header_count))]
        sent = record_batch.encode([Record(b"k", b"1", 0, headers)] * record_count)
        await client.send("POST", f"/topics/{topic}", bytes(record_batch.zstd_packed(sent, level=3)), kind=BATCH_TYPE)


def _light() -> Iterator[Case]:
    """Reads of light queues: of a few kilobytes there may be half a million headers."""
    wanted = {"op": "subscribe", "id": 1, "sub": "s", "queue": "a", "from": "earliest", "credit": 10_000}
    for topic in LIGHT:
        path = f"/mq/v1/topics/{topic}/queues/a"
        of_topic = [_request("read_queue", topic, "GET", f"{path}/records?limit=1000", Accept="application/json")]
        of_topic.append(Case("follow_queue", topic, partial(_listened, path=f"{path}/sse?from=earliest")))
        for form in ("json", "binary"):
            frames = ['{"op":"hello","id":0,"binary":true}']
            frames.append(orjson.dumps({**wanted, "topics": [topic], "format": form, "batch": 10_000}).decode())
            of_topic.append(Case("socket subscribe", f"{topic} as {form}", _talker(frames)))
        yield from (replace(case, is_light=True) for case in of_topic)


def _crowd() -> Iterator[Case]:
    """What goes through all topics or groups when there are as many as may be; none of it may hold others up."""
    asked: tuple[tuple[str, str, str, str, bytes], ...] = (
        ("list_topics", "all", "GET", "/mq/v1/topics", b""),
        ("list_topics", "a page by size", "GET", "/mq/v1/topics?sort=records&limit=200", b""),
        ("topic_names", "all", "GET", "/topics", b""),
        ("v3_topics", "all", "GET", "/v3/clusters/CLUSTER/topics", b""),
        ("list_groups", "all", "GET", "/mq/v1/groups", b""),
        ("list_groups", "a page by lag", "GET", "/mq/v1/groups?sort=lag&limit=200", b""),
        ("list_schedules", "a page", "GET", "/mq/v1/schedules?limit=200", b""),
        ("metrics", "all", "GET", "/metrics", b""),
    )
    for route, name, method, path, body in asked:
        run = partial(_asked, method=method, path=path, body=body)
        yield Case(route, f"{name}, of 10,000 topics", run, held_ms_max=LOOKED_MS_MAX, is_in_crowd=True)
    for route in ("create_topic", "change_topic", "delete_topic"):
        run = partial(_administered, last=route)
        yield Case(route, "one, of 10,000 topics", run, held_ms_max=LOOKED_MS_MAX, is_in_crowd=True)
    names = [f"crowd-{number}" for number in range(97)]
    receive = orjson.dumps({"topics": names, "max_messages": 1, "start": "earliest"})
    yield Case(
        "receive", "from 97 of 10,000 topics",
        partial(_asked, method="POST", path="/mq/v1/groups/of-97/messages:receive", body=receive),
        held_ms_max=LOOKED_MS_MAX, is_in_crowd=True,
    )  # fmt: skip
    hello = '{"op":"hello","id":0}'
    for mode in ("stream", "queue"):
        join = {"op": "subscribe", "id": 1, "sub": "s", "topics": names, "mode": mode, "group": f"joins-{mode}"}
        yield Case(
            "socket subscribe", f"{mode}, to 97 of 10,000 topics", _talker([hello, orjson.dumps(join).decode()]),
            held_ms_max=LOOKED_MS_MAX, is_in_crowd=True,
        )  # fmt: skip
    for name, what, request in in_crowd([f"crowd-{number}" for number in range(CROWD)]):
        run = partial(_as_kafka, request=request)
        yield Case(f"kafka {name}", f"{what} 10,000 topics", run, held_ms_max=LOOKED_MS_MAX, is_in_crowd=True)


async def _administered(client: Client, last: str) -> str:
    """A topic is made, changed and deleted, up to this one."""
    outcome = ""
    for route, method, body in (
        ("create_topic", "PUT", b'{"partitions":1}'),
        ("change_topic", "PATCH", b'{"retention_ms":3600000}'),
        ("delete_topic", "DELETE", b""),
    ):
        outcome += await client.outcome(method, "/mq/v1/topics/one-more", body, kind="application/json") + "; "
        if route == last:
            break
    return outcome


async def _asked(client: Client, *, method: str, path: str, body: bytes) -> str:
    return await client.outcome(method, path, body, kind="application/json")


def path_of(row: Row, client: Client) -> str:
    """A path of this route that names what is there."""
    path = row.path
    for name, value in {
        "topic": "orders", "partition": "0", "group": "g", "instance": "i", "cluster": client.cluster, "offset": "0",
        "schedule": "x", "message_id": "16-0-0", "name": "retention.ms", "broker": "1", "consumer": "i",
        "file": "mq.js",
    }.items():  # fmt: skip
        path = path.replace(f"{{{name}}}", value)
    return path


def _bombs_of(row: Row, size: int) -> Iterator[Case]:
    size = min(size, row.body.bytes_max(Limits()) or size)  # 0: it reads a stream
    for wrap in ("%s", *WRAPS.get(row.name, ())):
        for name, bomb in BOMBS.items():
            yield Case(row.name, f"{name} in {wrap[:16]}", partial(_throw, row=row, wrap=wrap, bomb=bomb, size=size))


async def _throw(client: Client, row: Row, wrap: str, bomb: Callable[[int], bytes], size: int) -> str:
    body = wrap.encode().replace(b"%s", bomb(size - len(wrap)))
    return await client.outcome(row.method, path_of(row, client), body, kind=_KINDS.get(row.name, JSON))


def _plain(row: Row) -> Case:
    async def run(client: Client) -> str:
        if row.name.startswith("websocket"):
            return await client.talk(['{"op":"ping","id":1}'], path=f"{row.path}?topic=orders")
        query = "&".join(f"x{number}={number}" for number in range(600))
        headers = {f"X-{number}": "1" * 100 for number in range(60)}
        work = client.outcome(row.method, f"{path_of(row, client)}?{query}", headers=headers)
        try:
            return await asyncio.wait_for(work, _STREAM_READ_S)
        except TimeoutError:
            return "goes on"

    return Case(row.name, "600 parameters, 60 headers", run)


def _records(records: Sequence[Mapping[str, object]]) -> bytes:
    return orjson.dumps({"records": records})


def _request(
    route: str, name: str, method: str, path: str, body: bytes | Make = b"", kind: str = JSON, **headers: str
) -> Case:
    named = {key.replace("_", "-"): value for key, value in headers.items()}

    async def run(client: Client) -> str:
        outcome = await client.outcome(method, path, body() if callable(body) else body, kind=kind, headers=named)
        if outcome.startswith("404"):
            raise RequestFailed(f"{method} {path}: {outcome}, so the case shows nothing")
        return outcome

    return Case(route, name, run)


def _sends(size: int) -> Iterator[Case]:
    """The most records, in every form."""
    each = max(1, size // RECORDS_MAX - 100)
    text = base64.b64encode(bytes(each * 3 // 4 // 3 * 3)).decode()
    headers = [{"key": f"h{number}", "value": "YQ=="} for number in range(HEADER_COUNT_MAX)]
    every = range(RECORDS_MAX)
    many: dict[str, Callable[[], list[dict[str, object]]]] = {
        "records": lambda: [{"value": 1}] * RECORDS_MAX,
        "records over partitions": lambda: [{"value": 1, "key": f"k{number}"} for number in every],
        "texts": lambda: [{"value": "x" * each}] * RECORDS_MAX,
        "lists of numbers": lambda: [{"value": orjson.Fragment(_list(b"1", each))}] * RECORDS_MAX,
        "ids": lambda: [{"value": 1, "msg_id": f"m{number}"} for number in every],
        "tags and groups": lambda: [{"value": 1, "tag": "t", "message_group": "g"}] * RECORDS_MAX,
        "headers": lambda: [{"value": 1, "headers": headers}] * min(size // 2048, 5_000),  # more is too dear JSON
        "delays": lambda: [{"value": 1, "delay_ms": 600_000 + number} for number in every],
        "delays with keys": lambda: [
            {"value": 1, "delay_ms": 600_000, "schedule_key": f"s{number}"} for number in range(RECORDS_MAX // 2)
        ],
        "one bad at the end": lambda: [{"value": 1, "delay_ms": 1 - 2 * (n == RECORDS_MAX - 1)} for n in every],
        "all bad": lambda: [{"value": 1, "delay_ms": -1}] * RECORDS_MAX,
    }
    for name, records in many.items():
        body = partial(_rendered, records)
        yield _request("produce", name, "POST", "/topics/wide", body)
        yield _request("produce_partition", name, "POST", "/topics/orders/partitions/0", body)
        yield _request("produce_lines", name, "POST", "/mq/v1/topics/wide/messages:batch",
                       partial(_lines, records), LINES_TYPE)  # fmt: skip

    def binary() -> bytes:
        return _records([{"key": "a2V5", "value": text}] * RECORDS_MAX)

    def one() -> bytes:
        return _records([{"value": base64.b64encode(bytes(size // 2)).decode()}])

    def gzipped() -> bytes:
        return gzip.compress(binary())

    def squeezed() -> bytes:
        return zstandard.compress(_rendered(many["records over partitions"]))

    def bomb() -> bytes:
        return gzip.compress(b'{"records":[{"value":[%b]}]}' % (b" " * (size - 100)))

    yield _request("produce", "base64", "POST", "/topics/wide", binary, BINARY)
    yield _request("produce", "one of base64", "POST", "/topics/orders", one, BINARY)
    yield _request("produce", "gzip", "POST", "/topics/wide", gzipped, BINARY, Content_Encoding="gzip")
    yield _request("produce", "zstd", "POST", "/topics/wide", squeezed, Content_Encoding="zstd")
    yield _request("produce", "gzip of blanks", "POST", "/topics/orders", bomb, Content_Encoding="gzip")
    typed = {"type": "JSON", "data": 1}
    yield _request("v3_produce", "records", "POST", "/v3/clusters/CLUSTER/topics/wide/records",
                   orjson.dumps({"value": typed, "key": typed}) * RECORDS_MAX, "application/json")  # fmt: skip
    for count in (100, RECORDS_MAX):
        entries = [{"id": str(number), "value": typed} for number in range(count)]
        yield _request(
            "v3_produce_batch", f"{count} entries", "POST", "/v3/clusters/CLUSTER/topics/wide/records:batch",
            orjson.dumps({"entries": entries}), "application/json",
        )  # fmt: skip
    yield _request("produce_raw", "4 MiB", "POST", "/mq/v1/topics/orders/messages", bytes(4 * MiB - 1024), "text/plain")
    for name, batch in BATCHES.items():
        yield _request("produce", name, "POST", "/topics/orders", batch, BATCH_TYPE)
        yield _request("produce", f"{name}, delayed", "POST", "/topics/orders?delay_ms=600000", batch, BATCH_TYPE)


def _rendered(records: Callable[[], Sequence[Mapping[str, object]]]) -> bytes:
    return _records(records())


def _lines(records: Callable[[], Sequence[Mapping[str, object]]]) -> bytes:
    return b"\n".join(map(orjson.dumps, records()))


def _tiny() -> bytearray:
    return record_batch.encode([Record(None, b"1", 0, ())] * BATCH_RECORDS_MAX)


def _headed() -> bytearray:
    headers = [(f"h{number}", b"1") for number in range(HEADER_COUNT_MAX)]
    return record_batch.encode([Record(b"k", b"1", 0, headers)] * 8_000)


BATCHES: dict[str, Make] = {
    "batch of tiny records": lambda: bytes(_tiny()),
    "zstd batch of tiny records": lambda: bytes(record_batch.zstd_packed(_tiny(), level=3)),
    "batch of many headers": lambda: bytes(_headed()),
    "zstd batch of many headers": lambda: bytes(record_batch.zstd_packed(_headed(), level=3)),
    "100,000 batches of one": lambda: bytes(record_batch.encode([Record(None, b"1", 0, ())])) * 100_000,
    "batch of one large record": lambda: bytes(record_batch.encode([Record(None, bytes(4 * MiB - 4096), 0, ())])),
}
"""The largest raw batches, plain and compressed, and one that is many."""


def _framings() -> Iterator[Case]:
    """HTTP that is legal, and cut into pieces that cost more than they hold."""
    head = b"POST /topics/orders HTTP/1.1\r\nHost: localhost\r\nContent-Type: %b\r\n" % JSON.encode()
    chunked = head + b"Transfer-Encoding: chunked\r\n\r\n" + b"1\r\n \r\n" * (1 << 20) + b"0\r\n\r\n"
    yield Case("produce", "chunks of one byte", lambda client: client.bytes_sent(chunked))
    get = b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n"
    yield Case("healthz", "20,000 pipelined", lambda client: client.bytes_sent(get * 20_000))
    nothing = b"GET /%b HTTP/1.1\r\nHost: localhost\r\n\r\n" % (b"a/" * 3_000)
    yield Case("unmatched", "200 long paths pipelined", lambda client: client.bytes_sent(nothing * 200))
    lines = (
        b"GET / HTTP/1.1\r\nHost: localhost\r\n" + b"".join(b"a%d: 1\r\n" % number for number in range(700)) + b"\r\n"
    )
    yield Case("root", "700 headers, pipelined", lambda client: client.bytes_sent(lines * 100))
    small = _records([{"value": 1}])
    one = head + b"Content-Length: %d\r\n\r\n" % len(small) + small
    yield Case("produce", "10,000 pipelined", lambda client: client.bytes_sent(one * 10_000))


def _reads() -> Iterator[Case]:
    """The largest answers."""
    most = f"max_bytes={64 * MiB}&max_records=100000"
    for topic in ("tiny", "large", "heads", "busy"):
        path = f"/topics/{topic}/partitions/0/records?{most}"
        for accept in (JSON, BINARY, BATCH_TYPE, LINES_TYPE):
            yield _request("fetch", f"{topic} as {accept[-20:]}", "GET", path, Accept=accept)
        yield _request("fetch", f"{topic}, filtered", "GET", f"{path}&filter=tag:t", Accept=JSON)
        yield _request("fetch", f"{topic}, gzip", "GET", path, Accept=JSON, Accept_Encoding="gzip")
        yield _request("v1_messages", topic, "GET", f"/topics/{topic}/partitions/0/messages?offset=0&count=100000",
                       Accept="application/vnd.kafka.binary.v1+json")  # fmt: skip
        yield _request("find_messages", topic, "GET", f"/mq/v1/topics/{topic}/messages?key=none&limit=1000")
        yield Case("follow_topic", topic, partial(_listened, path=f"/mq/v1/topics/{topic}/sse?from=earliest"))
        yield _request("read_raw", topic, "GET", f"/mq/v1/topics/{topic}/partitions/0/messages/5")
    yield _request("find_messages", "of 1,024 partitions", "GET", "/mq/v1/topics/wide/messages?key=none&limit=1000")
    yield Case(
        "follow_topic", "all partitions", lambda client: _listened(client, "/mq/v1/topics/wide/sse?from=earliest")
    )
    for name, path in (
        ("topic_offsets", "/mq/v1/topics/wide/offsets?timestamp=1"), ("describe_topic", "/mq/v1/topics/wide"),
        ("partitions", "/topics/wide/partitions"), ("topic_metadata", "/topics/wide"),
        ("list_schedules", "/mq/v1/schedules?include=value&limit=1000"), ("list_topics", "/mq/v1/topics"),
        ("schedule_histogram", "/mq/v1/schedules:histogram?buckets=1000&from=0&to=9999999999999"),
        ("v3_partitions", "/v3/clusters/CLUSTER/topics/wide/partitions"), ("metrics", "/metrics"),
        ("openapi", "/openapi.json"), ("group_lag", f"/mq/v1/groups/{WIDEST}/lag"),
        ("v3_lags", f"/v3/clusters/CLUSTER/consumer-groups/{WIDEST}/lags"),
        ("list_topics", "/mq/v1/topics?sort=records&limit=200"), ("list_groups", "/mq/v1/groups?sort=dead&limit=200"),
        ("list_schedules", "/mq/v1/schedules?order=due&limit=200"),
        ("schedule_histogram", "/mq/v1/schedules:histogram?bounds=0,1,9999999999999"),
        ("list_routes", "/mq/v1/routes?limit=200"), ("stats", "/mq/v1/stats?points=minutes"),
    ):  # fmt: skip
        yield _request(name, "the largest", "GET", path)


async def _listened(client: Client, path: str) -> str:
    try:
        return await asyncio.wait_for(client.outcome("GET", path), 2 * _STREAM_READ_S)
    except TimeoutError:
        return "goes on"


def _schemas(size: int) -> Iterator[Case]:
    """By the schemas of a registry: the largest sends, and reads of what its senders have made to harm."""
    avro, schema = "application/vnd.kafka.avro.v2+json", "application/vnd.kafka.jsonschema.v2+json"
    each = "x" * max(1, size // RECORDS_MAX - 100)
    headers = [{"key": f"h{number}", "value": "YQ=="} for number in range(HEADER_COUNT_MAX)]
    deep = orjson.Fragment(b"[" * 200 + b"]" * 200)
    many: dict[str, tuple[str, int, Callable[[], list[dict[str, object]]]]] = {
        "texts by a schema": (avro, registry.TEXT, lambda: [{"value": each}] * RECORDS_MAX),
        "headers by a schema": (
            avro, registry.TEXT, lambda: [{"value": "x", "headers": headers}] * min(size // 2048, 5_000),
        ),
        "deep by a schema": (schema, registry.ANYTHING, lambda: [{"value": deep}] * 400),
        "one bad by a schema": (
            avro, registry.TEXT, lambda: [{"value": "x" if n < RECORDS_MAX - 1 else 1} for n in range(RECORDS_MAX)],
        ),
    }  # fmt: skip
    for name, (kind, number, records) in many.items():
        body = partial(_by_schema, number, records)
        yield _request("produce", name, "POST", "/topics/orders", body, kind)
    for topic in registry.HARMFUL:
        path = f"/topics/{topic}/partitions/0/records?offset=0"
        yield _request("fetch", f"{topic} by a schema", "GET", path, Accept=avro)


def _by_schema(number: int, records: Callable[[], Sequence[Mapping[str, object]]]) -> bytes:
    return orjson.dumps({"value_schema_id": number, "records": records()})


def _queues() -> Iterator[Case]:
    """Queue mode: the most records at once, and the most partitions."""

    def receive(topics: Sequence[str], group: str) -> Run:
        body = orjson.dumps(
            {"topics": topics, "max_messages": RECORDS_MAX, "max_bytes": 64 * MiB, "invisible_ms": 60_000}
        )
        path = f"/mq/v1/groups/{group}/messages:receive"
        return lambda client: client.outcome("POST", path, body, kind="application/json")

    async def many_groups(client: Client) -> str:
        asked = (receive(["empty"], f"many-{number}")(client) for number in range(1, GROUPS + 1))
        return ", ".join(set(await asyncio.gather(*asked)))

    yield Case("receive", "the most records", receive(["busy"], "first"))
    yield _request("group_leases", "of the most that were received", "GET", "/mq/v1/groups/first/leases?limit=200")
    yield Case("receive", "of the largest batch", receive(["tiny"], "second"))
    yield Case("receive", "of many headers", receive(["heads"], "second"))
    nothing = receive(["empty"], "many-0")
    yield Case("receive", "from 1,024 empty partitions", nothing, held_ms_max=LOOKED_MS_MAX)
    yield Case("receive", "for 100 groups at once", many_groups)  # a turn may hold several of the hundred
    yield Case("receive", "from 1,024 partitions", receive(["wide"], "third"), held_ms_max=LOOKED_MS_MAX)
    yield Case("receive", "from them again", receive(["wide"], "third"))
    for op, more in (("extend", {"invisible_ms": 60_000}), ("nack", {"delay_ms": 1}), ("reject", {}), ("ack", {})):
        yield Case(op, "the most receipts", _settler(op, more))
    yield _request("redrive", "the most", "POST", "/mq/v1/groups/reject/dlq:redrive", b"{}", "application/json")
    yield _request("dead_letters", "the most", "GET", "/mq/v1/groups/reject/dlq?limit=1000")
    yield _request("reset_offsets", "1,024 partitions", "POST", "/mq/v1/groups/third/offsets:reset",
                   b'{"topic":"wide","to":"earliest","force":true}', "application/json")  # fmt: skip


def _settler(op: str, more: Mapping[str, object]) -> Run:
    async def run(client: Client) -> str:
        body = orjson.dumps({"topics": ["busy"], "max_messages": RECORDS_MAX, "invisible_ms": 60_000})
        path = f"/mq/v1/groups/{op}/messages"
        received = orjson.loads(await client.send("POST", f"{path}:receive", body, kind="application/json"))
        receipts = [message["receipt"] for message in received["messages"]]
        settled = orjson.dumps({"receipts": receipts, **more})
        return f"{len(receipts)}: " + await client.outcome("POST", f"{path}:{op}", settled, kind="application/json")

    return run


def _instances() -> Iterator[Case]:
    """Consumer instances with the most partitions."""
    at = "/consumers/g/instances/i"
    every = [{"topic": "wide", "partition": number} for number in range(PARTITIONS_MAX)]
    more = [{"topic": f"m{number % TOPICS}", "partition": number // TOPICS} for number in range(RECORDS_MAX)]
    kept = more[:KEPT_MAX]
    yield _request("assign", "too many", "POST", f"{at}/assignments", orjson.dumps({"partitions": more}), V2)
    yield _request("assign", "the most", "POST", f"{at}/assignments", orjson.dumps({"partitions": kept}), V2)
    yield _request("assignments", "the most", "GET", f"{at}/assignments")
    yield _request(
        "instance_records", "of the most partitions", "GET", f"{at}/records?max_bytes={64 * MiB}", Accept=JSON
    )
    for name, path in (("seek_to_beginning", "positions/beginning"), ("seek_to_end", "positions/end")):
        yield _request(name, "the most", "POST", f"{at}/{path}", orjson.dumps({"partitions": kept * 2}), V2)
    offsets = orjson.dumps({"offsets": [{**one, "offset": 0} for one in kept * 2]})
    yield _request("seek", "the most", "POST", f"{at}/positions", offsets, V2)
    yield _request("commit_offsets", "10,000", "POST", f"{at}/offsets", offsets, V2)
    yield _request(
        "query_committed_offsets", "10,000", "POST", f"{at}/offsets:query", orjson.dumps({"partitions": more}), V2
    )
    yield _request("commit_offsets", "all", "POST", f"{at}/offsets", kind=V2)
    yield _request("assign", "1,024 partitions", "POST", f"{at}/assignments", orjson.dumps({"partitions": every}), V2)
    yield _request("instance_records", "of 1,024 partitions", "GET", f"{at}/records?max_bytes={64 * MiB}", Accept=JSON)
    yield _request("assign", "the largest batch", "POST", f"{at}/assignments",
                   b'{"partitions":[{"topic":"tiny","partition":0},{"topic":"large","partition":0}]}', V2)  # fmt: skip
    yield _request("instance_records", "of the largest batch", "GET", f"{at}/records?max_bytes={64 * MiB}", Accept=JSON)
    yield _request("assign", "many headers", "POST", f"{at}/assignments",
                   b'{"partitions":[{"topic":"heads","partition":0}]}', V2)  # fmt: skip
    yield _request("instance_records", "of many headers", "GET", f"{at}/records?max_bytes={64 * MiB}", Accept=JSON)
    yield _request("assign", "nothing", "POST", f"{at}/assignments", b'{"partitions":[]}', V2)
    yield _request("subscribe", "to 10,000 partitions", "POST", f"{at}/subscription", b'{"topic_pattern":"m."}', V2)
    yield _request("instance_records", "of 10,000 partitions", "GET", f"{at}/records?timeout=100", Accept=JSON)
    yield _request("instance_records", "of them again", "GET", f"{at}/records?timeout=100", Accept=JSON)
    yield _request("commit_offsets", "of them", "POST", f"{at}/offsets", kind=V2)
    yield _request("subscribe", "1,000 topics", "POST", f"{at}/subscription",
                   orjson.dumps({"topics": [f"t{number}" for number in range(1_000)]}), V2)  # fmt: skip
    yield _request("subscribe", "by pattern", "POST", f"{at}/subscription", b'{"topic_pattern":".*.*.*x"}', V2)


def _talker(frames: Sequence[str | bytes]) -> Run:
    return lambda client: client.talk(frames)


def _sockets(size: int) -> Iterator[Case]:
    """Every op, with the largest fields it has."""
    hello = '{"op":"hello","id":0,"binary":true}'
    subscribe = {"op": "subscribe", "id": 1, "sub": "s", "from": "earliest", "credit": 10_000}
    every = range(RECORDS_MAX)
    settled: dict[str, object] = {"sub": "s", "receipts": ["x" * 200] * RECORDS_MAX}
    many: dict[str, Callable[[], dict[str, object]]] = {
        "hello": lambda: {"seen": {f"s{number}": number for number in range(size // 20)}},
        "auth": lambda: {"token": "x" * 8000},
        "produce": lambda: {"topic": "wide", "records": [{"value": 1, "key": f"k{number}"} for number in every]},
        "subscribe": lambda: {"sub": "t", "topics": [f"t{number}" for number in range(size // 10)]},
        "seek": lambda: {"sub": "s", "to": {"offsets": {"wide": {str(n): 0 for n in range(PARTITIONS_MAX)}}}},
        **dict.fromkeys(("ack", "nack", "reject", "extend"), lambda: settled),
        "release": lambda: {"sub": "s", "partitions": {"wide": list(range(size // 10))}},
        **dict.fromkeys(("permit", "pause", "resume", "unsubscribe", "ping"), lambda: {"sub": "s"}),
        "seen": lambda: {"subs": {f"s{number}": number for number in range(size // 20)}},
    }
    assert many.keys() == PERMISSIONS.keys()

    async def command(client: Client, op: str) -> str:
        first = [] if op == "hello" else [hello, orjson.dumps({**subscribe, "topics": ["wide"]}).decode()]
        return await client.talk([*first, orjson.dumps({"op": op, "id": 2, **many[op]()}).decode()[:size]])

    async def throw(client: Client, bomb: Callable[[int], bytes], wrap: str) -> str:
        return await client.talk([wrap.replace("%s", bomb(size - len(wrap)).decode())])

    for op in many:
        yield Case(f"socket {op}", "the largest", partial(command, op=op))
    for name, bomb in BOMBS.items():
        value = '{"op":"produce","id":1,"topic":"orders","records":[{"value":%s}]}'
        yield Case("socket produce", f"{name} as a frame", partial(throw, bomb=bomb, wrap="%s"))
        yield Case("socket produce", f"{name} as a value", partial(throw, bomb=bomb, wrap=value))
    pings = "\n".join(['{"op":"ping"}'] * 9_999)
    yield Case("socket ping", "10,000 in a frame", lambda client: client.talk([pings]))
    yield Case("socket ping", "10,000 frames", lambda client: client.talk(['{"op":"ping"}'] * 10_000))
    yield Case("socket produce", "deflated bomb", lambda client: client.talk([hello, " " * (size - 1)], deflate=True))
    produce = orjson.dumps({"op": "produce", "id": 1, "topic": "orders", "format": "batch"})
    yield Case("socket produce", "the largest batch",
               lambda client: client.talk([hello, binary_frame(produce, bytes(_tiny()))]))  # fmt: skip
    header = orjson.dumps({"a": 0}) + b" " * (size - 100)
    yield Case("socket produce", "binary header of blanks",
               lambda client: client.talk([hello, struct.pack(">I", len(header)) + header]))  # fmt: skip
    for form in ("json", "binary", "batch"):
        for topic in ("tiny", "large", "heads", "wide"):
            wanted = orjson.dumps({**subscribe, "topics": [topic], "format": form, "batch": 10_000}).decode()
            yield Case("socket subscribe", f"{topic} as {form}", _talker([hello, wanted]))
    for mode in ("stream", "queue"):
        for topic in ("tiny", "heads"):
            group = {"mode": mode, "group": f"ws-{mode}"}
            wanted = orjson.dumps({**subscribe, "topics": ["wide", topic], **group}).decode()
            yield Case("socket subscribe", f"{mode} of {topic}", _talker([hello, wanted]))
