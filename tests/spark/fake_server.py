"""A small HTTP server that speaks the contract of the real one and can be told to misbehave.

For what a healthy server cannot show in a test: retention that has moved on, refusals, broken connections, a topic
deleted under a query. It keeps whole batches in memory. Faults are a list: each request takes the first one, if any.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import NamedTuple
from urllib.parse import parse_qs, unquote, urlsplit

from tests.spark.batches import Message, batch


class Answer(NamedTuple):
    """A fault: this status and body instead of the right ones."""

    status: int
    body: dict[str, object]
    headers: tuple[tuple[str, str], ...] = ()


DISCONNECT = "disconnect"
"""A fault: the connection is closed without an answer."""

CUT = "cut"
"""A fault: the right answer, but only half of its body arrives."""

LOST = "lost"
"""A fault: what was sent is stored, but the connection is closed without an answer."""

Fault = Answer | str


class _Stored(NamedTuple):
    base: int
    next: int
    time_ms: int
    body: bytes


@dataclass
class FakeTopic:
    """Batches by partition."""

    epoch: str
    partitions: list[list[_Stored]]
    beginning_offsets: list[int]

    def end(self, partition: int) -> int:
        stored = self.partitions[partition]
        return stored[-1].next if stored else self.beginning_offsets[partition]


@dataclass
class FakeServer:
    """The server's content; change it at will while it runs."""

    topics: dict[str, FakeTopic] = field(default_factory=dict)
    faults: list[Fault] = field(default_factory=list)
    post_faults: list[Fault] = field(default_factory=list)
    """The same for what is sent, before `faults`."""

    requests: list[str] = field(default_factory=list)
    tokens: list[str | None] = field(default_factory=list)
    sent: list[tuple[str, dict[str, str], bytes]] = field(default_factory=list)
    """Path, headers and body of each POST that was new."""

    connections: int = 0
    url: str = ""
    _epoch: int = 0

    def create(self, topic: str, partitions: int = 1) -> FakeTopic:
        """Create a topic, or replace it by a new one of the same name."""
        self._epoch += 1
        made = FakeTopic(str(self._epoch), [[] for _ in range(partitions)], [0] * partitions)
        self.topics[topic] = made
        return made

    def send(self, topic: str, partition: int, values: Sequence[bytes], *, time_ms: int = 0) -> None:
        """Append one batch."""
        stored = self.topics[topic]
        base = stored.end(partition)
        body = batch([Message(value=value, timestamp_ms=time_ms) for value in values], base)
        stored.partitions[partition].append(_Stored(base, base + len(values), time_ms, body))

    def trim(self, topic: str, partition: int, beginning: int) -> None:
        """Retention: drop the batches before `beginning`, which is the base of one."""
        stored = self.topics[topic]
        stored.partitions[partition] = [b for b in stored.partitions[partition] if b.base >= beginning]
        stored.beginning_offsets[partition] = beginning

    def answer(self, path: str) -> tuple[int, dict[str, str], bytes]:
        """The right answer to a GET."""
        parts = urlsplit(path)
        query = {name: values[0] for name, values in parse_qs(parts.query).items()}
        match [unquote(part) for part in parts.path.strip("/").split("/")]:
            case ["mq", "v1", "topics"]:
                return _json(200, {"topics": [{"topic": name} for name in self.topics]})
            case ["mq", "v1", "topics", name, "offsets"]:
                return self._offsets(name, query.get("timestamp"))
            case ["topics", name, "partitions", partition, "records"]:
                return self._records(name, int(partition), query)
            case _:
                return _json(404, {"error_code": 404, "message": "HTTP 404 Not Found", "retriable": False})

    def take(self, path: str, headers: dict[str, str], body: bytes) -> tuple[int, dict[str, str], bytes]:
        """The right answer to a POST. What has the same path and identity as an earlier one is a repeat."""
        identity = {name: value for name, value in headers.items() if name in _IDENTITY}
        is_repeat = any((path, identity) == (known, by) for known, by, _ in self.sent)
        if not is_repeat:
            self.sent.append((path, identity, body))
        receipt = {"partition": 0, "offset": 0, **({"duplicate": True} if is_repeat else {})}
        count = len(json.loads(body)["records"]) if "json" in headers["Content-Type"] else 1
        return _json(200, {"offsets": [receipt] * count})

    def _offsets(self, name: str, time_ms: str | None) -> tuple[int, dict[str, str], bytes]:
        topic = self.topics.get(name)
        if topic is None:
            return _json(404, {"error_code": 40401, "message": "Topic not found.", "retriable": False})
        rows = []
        for partition, stored in enumerate(topic.partitions):
            end = topic.end(partition)
            row = {"partition": partition, "beginning_offset": topic.beginning_offsets[partition], "end_offset": end}
            if time_ms is not None:
                row["offset_for_time"] = next((b.base for b in stored if b.time_ms >= int(time_ms)), end)
            rows.append(row)
        return _json(200, {"topic": name, "epoch": topic.epoch, "partitions": rows})

    def _records(self, name: str, partition: int, query: dict[str, str]) -> tuple[int, dict[str, str], bytes]:
        topic = self.topics.get(name)
        if topic is None:
            return _json(404, {"error_code": 40401, "message": "Topic not found.", "retriable": False})
        offset, stop, max_bytes = int(query["offset"]), int(query["end_offset"]), int(query["max_bytes"])
        beginning, end = topic.beginning_offsets[partition], topic.end(partition)
        if not beginning <= offset <= end:
            details = {"beginning_offset": beginning, "end_offset": end}
            return _json(416, {"error_code": 41601, "message": "out of range", "details": details})
        body, next_offset = b"", offset
        for stored in topic.partitions[partition]:
            if stored.next > offset and stored.base < stop and (not body or len(body) + len(stored.body) <= max_bytes):
                body += stored.body
                next_offset = stored.next
        headers = {
            "Content-Type": "application/vnd.mq.batch",
            "Mq-Next-Offset": str(next_offset),
            "Mq-Beginning-Offset": str(beginning),
            "Mq-End-Offset": str(end),
            "Mq-Epoch": topic.epoch,
        }
        return 200, headers, body


_IDENTITY = frozenset(("Mq-Producer", "Mq-Sequence", "Idempotency-Key"))


def _json(status: int, document: dict[str, object]) -> tuple[int, dict[str, str], bytes]:
    return status, {"Content-Type": "application/json"}, json.dumps(document).encode()


@contextmanager
def serving() -> Iterator[FakeServer]:
    """A fake server on a free port, until the context ends."""
    fake = FakeServer()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        disable_nagle_algorithm = True

        def setup(self) -> None:
            fake.connections += 1
            super().setup()

        def do_GET(self) -> None:
            self._answer(lambda: fake.answer(self.path))

        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            self._answer(lambda: fake.take(self.path, dict(self.headers.items()), body))

        def _answer(self, right: Callable[[], tuple[int, dict[str, str], bytes]]) -> None:
            fake.requests.append(self.path)
            fake.tokens.append(self.headers.get("Authorization"))
            faults = fake.post_faults if self.command == "POST" and fake.post_faults else fake.faults
            fault = faults.pop(0) if faults else None
            if fault in (DISCONNECT, LOST):
                if fault == LOST:
                    right()
                self.close_connection = True
                return
            if isinstance(fault, Answer):
                status, headers, body = _json(fault.status, fault.body)
                headers |= dict(fault.headers)
            else:
                status, headers, body = right()
            self.send_response(status)
            for name, value in headers.items():
                self.send_header(name, value)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            if fault == CUT:
                self.close_connection = True
                body = body[: len(body) // 2]
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            """Quiet."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    fake.url = f"http://127.0.0.1:{server.server_address[1]}"
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    try:
        yield fake
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
