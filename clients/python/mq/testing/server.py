"""A server in memory, as far as the client can tell: topics, delays, readers, streams and queues, over the frames of
the protocol. One node, nothing on disk, no rights; a connection that is cut loses its session.

It is a transport (mq/transport.py): `Fake` dials it in place of the network. `cut()` cuts every connection.
"""

from __future__ import annotations

import asyncio
import heapq
import itertools
import re
import zlib
from base64 import b64decode, b64encode
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import unquote

import msgspec

from mq.clock import Timer
from mq.errors import Refused
from mq.frames import _HEADER_LEN, write_binary
from mq.message import Message
from mq.progress import read_cursor
from mq.testing.recurring import FakeRecurring
from mq.transport import CUT, Response, Socket

Fields = dict[str, Any]

EPOCH_MS = 1_767_225_600_000
"""When a fake begins: 2026-01-01."""
_KEPT = ("tag", "message_group", "schedule_key", "queues")
"""Fields of a record that are kept as they were sent."""

MAX_ATTEMPTS = 16
BACKOFF_MS = (1_000, 5_000, 10_000, 30_000, 60_000, 120_000, 180_000)
BATCH = 256
FOREVER_MS = 1_000 * 365 * 86_400_000


class FakeClock:
    """Time that stands still until it is moved."""

    def __init__(self) -> None:
        self.exact_ms: float = EPOCH_MS
        self._calls: list[tuple[float, int, _Call]] = []
        self._numbers = itertools.count()

    def now_ms(self) -> int:
        """Epoch milliseconds."""
        return int(self.exact_ms)

    def monotonic_s(self) -> float:
        """Seconds since some moment."""
        return self.exact_ms / 1000

    def later(self, delay_s: float, call: Callable[[], object]) -> Timer:
        """Call after this many seconds."""
        to_come = _Call(call)
        heapq.heappush(self._calls, (self.exact_ms + delay_s * 1000, next(self._numbers), to_come))
        return to_come

    def run_next(self, until_ms: float) -> bool:
        """Move on to the next call that is due by then, and make it. False: there is none."""
        while self._calls and self._calls[0][0] <= until_ms:
            at_ms, _, to_come = heapq.heappop(self._calls)
            if not to_come.is_cancelled:
                self.exact_ms = max(self.exact_ms, at_ms)
                to_come.call()
                return True
        return False


class _Call:
    def __init__(self, call: Callable[[], object]) -> None:
        self.call = call
        self.is_cancelled = False

    def cancel(self) -> None:
        """Let it not come."""
        self.is_cancelled = True


@dataclass(slots=True)
class Stored:
    """A record. `fields`: as the protocol shows it."""

    partition: int
    offset: int
    key: bytes | None
    value: bytes | None
    fields: Fields
    queues: tuple[str, ...] = ()
    """Light queues that it is in."""

    def as_message(self, topic: str) -> Message[Any]:
        """As a consumer gets it."""
        place = {"topic": topic, "partition": self.partition, "offset": self.offset}
        message = msgspec.convert({**self.fields, **place}, Message[Any])
        message.key_bytes, message.value_bytes, message.raw_key = self.key, self.value, True
        return message


@dataclass(slots=True)
class Source:
    """The records of a partition, or of a light queue of it, the first one at offset `first`."""

    records: list[Stored]
    first: int = 0

    @property
    def end(self) -> int:
        """The offset behind its last record."""
        return self.first + len(self.records)

    def from_offset(self, offset: int) -> list[Stored]:
        """Its records from there on."""
        return self.records[max(offset - self.first, 0) :]


@dataclass(slots=True)
class Topic:
    """Its records, by partition."""

    name: str
    epoch: str
    partitions: list[list[Stored]]
    ids: dict[str, Stored] = field(default_factory=dict)
    light: dict[tuple[int, str], Source] = field(default_factory=dict)
    """Light queues, by partition and name."""

    def source(self, partition: int, queue: str | None) -> Source:
        """A partition, or a light queue of it."""
        records = self.partitions[partition]
        if queue is None:
            return Source(records)
        return self.light.get((partition, queue)) or Source([], len(records))


@dataclass(slots=True)
class Waiting:
    """A delayed record."""

    id: str
    topic: str
    partition: int
    deliver_at: int
    record: tuple[bytes | None, bytes | None, Fields]
    state: str = "pending"


@dataclass(slots=True, eq=False)
class Lease:
    """A record of a group that is not done: on lease, or waiting for its next attempt."""

    topic: str
    record: Stored
    attempt: int = 0
    until_ms: float = 0.0
    queue: str | None = None
    """The light queue that it is received from, if it is, and its offset there."""
    queue_offset: int = 0
    receipts: set[str] = field(default_factory=set)
    sub: _Sub | None = None
    """Which consumer has it; None: no consumer."""


class _Group:
    """A consumer group: for queues what is on lease and where new records begin; for streams what is committed, and who
    has which partition; of light queues both."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.next: dict[tuple[str, int], int] = {}
        self.leases: list[Lease] = []
        self.committed: dict[tuple[str, int], int] = {}
        self.light_next: dict[tuple[str, int, str], int] = {}
        self.light_committed: dict[tuple[str, int, str], int] = {}
        self.owners: dict[tuple[str, int], _Sub] = {}
        self.giving_up: dict[tuple[str, int], _Sub] = {}
        self.members: list[_Sub] = []
        self.subs: list[_Sub] = []
        self.max_attempts = MAX_ATTEMPTS
        self.backoff_ms: tuple[int, ...] = BACKOFF_MS


class _Sub:
    """A subscription of a socket."""

    def __init__(self, socket: FakeSocket, command: Fields) -> None:
        self.socket = socket
        self.name: str = command["sub"]
        self.mode: str = command["mode"]
        self.command = command
        self.group: _Group | None = None
        self.credit: int = command.get("credit", 1000)
        self.seq = 0
        self.is_paused = False
        self.is_caught_up = False
        self.next: dict[tuple[str, int], int] = {}
        named: str | None = command.get("queue")
        self.begin = None if named is None or not named.endswith("*") else named[:-1]
        """Of a wildcard: what the names of light queues begin with."""
        self.queue = None if self.begin is not None else named
        """The light queue it reads."""
        self.tags: set[str] | None = None
        if (filter_ := command.get("filter")) is not None:
            self.tags = set(filter_.removeprefix("tag:").split("||"))

    def wants(self, record: Stored) -> bool:
        if self.begin is not None and not self.matching(record):
            return False
        return self.tags is None or record.fields.get("tag") in self.tags

    def matching(self, record: Stored) -> list[str]:
        """With a wildcard: the light queues of a record that it is for."""
        return [] if self.begin is None else [name for name in record.queues if name.startswith(self.begin)]

    def about(self, record: Stored, offset: int) -> Fields:
        """What a message says of light queues; `offset`: of the record in what is read."""
        if self.queue is not None:
            return {"queue": self.queue, "queue_offset": offset}
        return {} if self.begin is None else {"queues": self.matching(record)}


class FakeSocket:
    """One connection."""

    def __init__(self, server: Server) -> None:
        self.server = server
        self.subs: dict[str, _Sub] = {}
        self._frames: asyncio.Queue[tuple[bytes, bool] | None] = asyncio.Queue()
        self.code = CUT

    async def send(self, data: bytes, is_binary: bool) -> None:
        """A frame of the client."""
        payload = b""
        if is_binary:
            end = _HEADER_LEN.size + _HEADER_LEN.unpack_from(data)[0]
            data, payload = data[_HEADER_LEN.size : end], data[end:]
        self.server.take(self, msgspec.json.decode(data), payload)

    async def run(self, text: Callable[[bytes], object], binary: Callable[[bytes], object]) -> tuple[int, str]:
        """Pass on frames until the end."""
        while (frame := await self._frames.get()) is not None:
            self.server.activity += 1
            (binary if frame[1] else text)(frame[0])
        return self.code, ""

    async def close(self, code: int) -> None:
        """The client goes."""
        self.server.leave(self)

    def push(self, fields: Fields) -> None:
        """Send a text frame."""
        self.server.activity += 1
        self._frames.put_nowait((msgspec.json.encode(fields), False))

    def push_binary(self, frame: bytes) -> None:
        """Send a binary frame."""
        self.server.activity += 1
        self._frames.put_nowait((frame, True))

    def end(self, code: int) -> None:
        """Close it from the server's side."""
        self.code = code
        self._frames.put_nowait(None)


class Server:
    """The state of it, and what every command does to it."""

    def __init__(self) -> None:
        self.clock = FakeClock()
        self.topics: dict[str, Topic] = {}
        self.schedules: dict[str, Waiting] = {}
        self.groups: dict[str, _Group] = {}
        self.recurring = FakeRecurring(self.clock.now_ms, self.clock.later, self.topic, self._fire_recurring)
        self.activity = 0
        """Counts what happens."""
        self._sockets: list[FakeSocket] = []
        self._numbers = itertools.count(1)
        self._answers: dict[str, Fields] = {}

    # ------------------------------------------------------------------------------------------------- as a transport

    async def open_socket(self, token: str | None) -> Socket:
        """A connection."""
        socket = FakeSocket(self)
        self._sockets.append(socket)
        return socket

    async def request(
        self, method: str, path: str, query: Mapping[str, str], body: bytes | None, token: str | None
    ) -> Response:
        """One of the HTTP routes that the client uses."""
        self.activity += 1
        given = msgspec.json.decode(body) if body else {}
        parts = [unquote(part) for part in path.removeprefix("/mq/v1/").split("/")]
        try:
            answer = _ROUTES[method, parts[0], len(parts)](self, parts[1:], dict(query), given)
        except KeyError:
            return Response(404, msgspec.json.encode({"error_code": 404, "message": f"no route {method} {path}"}))
        except Refused as error:
            body = msgspec.json.encode({"error_code": error.code, "message": error.args[0]})
            return Response(error.code if error.code < 1000 else error.code // 100, body)
        return Response(204, b"") if answer is None else Response(200, msgspec.json.encode(answer))

    async def close(self) -> None:
        """The client goes."""

    def cut(self) -> None:
        """Cut every connection, as a network does. Clients come back by themselves."""
        for socket in list(self._sockets):
            socket.end(CUT)
            self.leave(socket)

    def leave(self, socket: FakeSocket) -> None:
        """A connection is gone: its members leave, and its leases go back."""
        if socket in self._sockets:
            self._sockets.remove(socket)
            for sub in list(socket.subs.values()):
                self._unsubscribe(sub)

    # --------------------------------------------------------------------------------------------------------- topics

    def create_topic(self, name: str, partitions: int = 1) -> Topic:
        """Create a topic, or find it."""
        if name not in self.topics:
            self.topics[name] = Topic(name, str(next(self._numbers)), [[] for _ in range(partitions)])
        return self.topics[name]

    def topic(self, name: str) -> Topic:
        """Raises Refused 40401."""
        if name not in self.topics:
            raise Refused(f"Topic {name} not found: create it with client.topics.create, or Fake({name!r})", 40401)
        return self.topics[name]

    def _put_topic(self, parts: list[str], query: Fields, body: Fields) -> Fields:
        return self._shown_topic(self.create_topic(parts[0], body.get("partitions") or 1))

    def _get_topic(self, parts: list[str], query: Fields, body: Fields) -> Fields:
        return self._shown_topic(self.topic(parts[0]))

    def _list_topics(self, parts: list[str], query: Fields, body: Fields) -> Fields:
        return {"topics": [self._shown_topic(topic) for topic in self.topics.values()]}

    def _delete_topic(self, parts: list[str], query: Fields, body: Fields) -> None:
        del self.topics[self.topic(parts[0]).name]

    @staticmethod
    def _shown_topic(topic: Topic) -> Fields:
        return {"topic": topic.name, "partitions": len(topic.partitions), "epoch": topic.epoch}

    # ------------------------------------------------------------------------------------------------------- commands

    def take(self, socket: FakeSocket, command: Fields, payload: bytes) -> None:
        """One command of a socket."""
        self.activity += 1
        id_ = command.get("id")
        try:
            answer = getattr(self, f"_do_{command['op']}")(socket, command, payload)
        except Refused as error:
            answer = {
                "ok": False,
                "error_code": error.code,
                "message": str(error.args[0]).removesuffix(f" [{error.code}]"),
                "validation_errors": list(error.validation_errors),
            }
        else:
            answer = {"ok": True, **(answer or {})}
        if id_ is not None:
            socket.push({"id": id_, **answer})
        elif command["op"] == "ping":
            socket.push(answer)
        self._deliver()

    def _do_hello(self, socket: FakeSocket, command: Fields, payload: bytes) -> Fields:
        limits = {"max_frame": 16 * 1024 * 1024, "max_credit": 10_000, "max_records": 10_000}
        return {"session": "fake", "resumed": False, "ping_ms": FOREVER_MS, "grace_ms": 15_000, "limits": limits}

    def _do_ping(self, socket: FakeSocket, command: Fields, payload: bytes) -> Fields:
        return {"op": "pong", "ts": self.clock.now_ms()}

    def _do_produce(self, socket: FakeSocket, command: Fields, payload: bytes) -> Fields:
        topic = self.topic(command["topic"])
        if (key := command.get("idempotency_key")) in self._answers:
            known = self._answers[key]
            return {**known, "offsets": [{**offset, "duplicate": True} for offset in known["offsets"]]}
        if "records" not in command:
            raise Refused("this server in memory takes no raw batches", 422)
        records = list(_records(command["records"], payload))
        for index, (_, _, fields) in enumerate(records):  # all are checked before any is stored
            if (partition := fields.get("partition", 0)) >= len(topic.partitions):
                text = f"records[{index}].partition: {partition} not found"
                raise Refused(text, 40402, validation_errors=(text,))
            if (name := fields.get("schedule_key")) and self._by_key(topic.name, name):
                text = f"records[{index}].schedule_key: a pending schedule has it"
                raise Refused(text, 40954, validation_errors=(text,))
        offsets = [self._store(topic, *record) for record in records]
        answer: Fields = {"acks": command.get("acks", "flushed"), "offsets": offsets}
        if key is not None:
            self._answers[key] = answer
        return answer

    def _store(self, topic: Topic, key: bytes | None, value: bytes | None, fields: Fields) -> Fields:
        now_ms = self.clock.now_ms()
        msg_id = fields.get("msg_id")
        if msg_id is not None and msg_id in topic.ids:
            first = topic.ids[msg_id]
            return {"partition": first.partition, "offset": first.offset, "duplicate": True}
        partition = fields.get("partition")
        if partition is None:
            chosen = fields["queues"][0].encode() if key is None and fields.get("queues") else key
            partition = (0 if chosen is None else zlib.crc32(chosen)) % len(topic.partitions)
        due_ms = fields.get("deliver_at", now_ms + fields["delay_ms"] if "delay_ms" in fields else now_ms)
        shown: Fields = {name: fields[name] for name in _KEPT if name in fields}
        if "headers" in fields:
            shown["headers"] = [_shown_header(header) for header in fields["headers"]]
        shown["timestamp"] = fields.get("timestamp", now_ms)
        if due_ms > now_ms:
            waiting = Waiting(f"s{next(self._numbers)}", topic.name, partition, due_ms, (key, value, shown))
            self.schedules[waiting.id] = waiting
            self.clock.later((due_ms - now_ms) / 1000, lambda: self._due(waiting, due_ms))
            return {"partition": partition, "offset": None, "schedule_id": waiting.id, "deliver_at": due_ms}
        stored = self._append(topic, partition, key, value, shown)
        if msg_id is not None:
            topic.ids[msg_id] = stored
        return {"partition": partition, "offset": stored.offset}

    def _append(self, topic: Topic, partition: int, key: bytes | None, value: bytes | None, shown: Fields) -> Stored:
        records = topic.partitions[partition]
        shown = {**shown, "store_timestamp": self.clock.now_ms()}
        queues = tuple(shown.pop("queues", None) or ())
        stored = Stored(partition, len(records), key, value, shown, queues)
        for name in queues:
            topic.light.setdefault((partition, name), Source([], stored.offset)).records.append(stored)
        records.append(stored)
        return stored

    # ------------------------------------------------------------------------------------------------------ schedules

    def _due(self, waiting: Waiting, due_ms: int) -> None:
        if waiting.state == "pending" and waiting.deliver_at == due_ms:
            self._fire(waiting)
            self._deliver()

    def _fire(self, waiting: Waiting) -> Fields:
        waiting.state = "delivered"
        key, value, shown = waiting.record
        shown = {**shown, "deliver_at": waiting.deliver_at, "schedule_id": waiting.id}
        stored = self._append(self.topic(waiting.topic), waiting.partition, key, value, shown)
        return {"topic": waiting.topic, "partition": stored.partition, "offset": stored.offset}

    def _by_key(self, topic: str, key: str) -> Waiting | None:
        for one in self.schedules.values():
            if one.topic == topic and one.record[2].get("schedule_key") == key and one.state == "pending":
                return one
        return None

    def _pending(self, name: str, query: Fields) -> Waiting:
        topic = query.get("topic")
        waiting = self._by_key(topic, name) if topic is not None else self.schedules.get(name)
        if waiting is None or waiting.state == "cancelled":
            raise Refused("There is no such schedule.", 40450)
        if waiting.state == "delivered":
            raise Refused("The schedule was delivered already.", 40950)
        return waiting

    @staticmethod
    def _shown_schedule(waiting: Waiting, with_value: bool = False) -> Fields:
        key, value, shown = waiting.record
        row = {"schedule_id": waiting.id, "topic": waiting.topic, "partition": waiting.partition, "state": "pending",
               "deliver_at": waiting.deliver_at, "tag": shown.get("tag"), "schedule_key": shown.get("schedule_key"),
               "key": None if key is None else key.decode(errors="replace")}  # fmt: skip
        if with_value:
            row["value"] = None if value is None else _lenient(value)
        return row

    def _list_schedules(self, parts: list[str], query: Fields, body: Fields) -> Fields:
        since, until = int(query.get("from", 0)), int(query.get("to", FOREVER_MS))
        found = [
            self._shown_schedule(one)
            for one in self.schedules.values()
            if one.state == "pending" and query.get("topic", one.topic) == one.topic and since <= one.deliver_at < until
        ]
        return {"schedules": found, "next_cursor": None, "total": len(found)}

    def _get_schedule(self, parts: list[str], query: Fields, body: Fields) -> Fields:
        return self._shown_schedule(self._pending(parts[0], query), with_value=True)

    def _cancel_schedule(self, parts: list[str], query: Fields, body: Fields) -> None:
        self._pending(parts[0], query).state = "cancelled"

    def _move_schedule(self, parts: list[str], query: Fields, body: Fields) -> Fields:
        waiting = self._pending(parts[0], query)
        del self.schedules[waiting.id]
        waiting.id = f"s{next(self._numbers)}"
        now_ms = self.clock.now_ms()
        due_ms = waiting.deliver_at = body["deliver_at"] if "deliver_at" in body else now_ms + body["delay_ms"]
        self.schedules[waiting.id] = waiting
        self.clock.later(max(0, due_ms - now_ms) / 1000, lambda: self._due(waiting, due_ms))
        return {"schedule_id": waiting.id, "deliver_at": due_ms}

    def _fire_schedule(self, parts: list[str], query: Fields, body: Fields) -> Fields:
        name = parts[0]
        if not name.endswith(":fire"):
            raise KeyError(name)
        fired = self._fire(self._pending(name.removesuffix(":fire"), query))
        self._deliver()
        return fired

    # ------------------------------------------------------------------------------------------ recurring schedules

    def _fire_recurring(self, topic: str, key: bytes | None, value: bytes | None, fields: Fields) -> tuple[int, int]:
        to = self.topic(topic)
        partition = fields.pop("partition", (0 if key is None else zlib.crc32(key)) % len(to.partitions))
        stored = self._append(to, partition, key, value, fields)
        self._deliver()
        return stored.partition, stored.offset

    def _list_recurring(self, parts: list[str], query: Fields, body: Fields) -> Fields:
        return self.recurring.list(query.get("topic"))

    def _get_recurring(self, parts: list[str], query: Fields, body: Fields) -> Fields:
        return self.recurring.get(parts[0])

    def _put_recurring(self, parts: list[str], query: Fields, body: Fields) -> Fields:
        return self.recurring.put(parts[0], body)

    def _delete_recurring(self, parts: list[str], query: Fields, body: Fields) -> None:
        self.recurring.delete(parts[0])

    def _pause_recurring(self, parts: list[str], query: Fields, body: Fields) -> Fields:
        name, _, verb = parts[0].rpartition(":")
        if verb not in ("pause", "resume"):
            raise KeyError(parts[0])
        return self.recurring.pause(name, verb == "pause")

    # ------------------------------------------------------------------------------------------------- subscriptions

    def _do_subscribe(self, socket: FakeSocket, command: Fields, payload: bytes) -> Fields:
        if command.get("format") == "batch":
            raise Refused("this server in memory has no raw batches", 422)
        sub = _Sub(socket, command)
        topics = self._topics_of(sub)
        answer: Fields = {"sub": sub.name, "mode": sub.mode, "epochs": {topic.name: topic.epoch for topic in topics}}
        if sub.mode != "reader" and sub.begin is not None:
            raise Refused("mode: light queues are read by name in stream and queue mode", 422)
        if sub.mode == "reader":
            for (topic, partition), offset in self._from(topics, command.get("from", "latest"), sub.queue).items():
                sub.next[topic, partition] = offset
            answer |= self._shown(sub, sub.next)
        elif sub.queue is not None:
            answer |= self._of_light_queue(sub, topics, sub.queue)
        else:
            group = sub.group = self.groups.setdefault(command["group"], _Group(command["group"]))
            group.subs.append(sub)
            start = command.get("start") or ("earliest" if sub.mode == "queue" else "latest")
            where = group.next if sub.mode == "queue" else group.committed
            for place, offset in self._from(topics, start).items():
                where.setdefault(place, offset)
            if sub.mode == "stream":
                group.members.append(sub)
                answer |= {"member": command.get("member"), **self._shown(sub, {})}
        socket.subs[sub.name] = sub
        if sub.group is not None and sub.mode == "stream" and sub.queue is None:
            # After the answer, so that the first assignment is a push.
            asyncio.get_running_loop().call_soon(self._rebalance, sub.group)
        return answer

    def _of_light_queue(self, sub: _Sub, topics: list[Topic], queue: str) -> Fields:
        """A group in a light queue: it has no members, and begins where it is."""
        group = sub.group = self.groups.setdefault(sub.command["group"], _Group(sub.command["group"]))
        group.subs.append(sub)
        start = sub.command.get("start") or ("earliest" if sub.mode == "queue" else "latest")
        where = group.light_next if sub.mode == "queue" else group.light_committed
        begins = self._from(topics, start, queue)
        if sub.mode == "queue":
            for (topic, number), offset in begins.items():
                where.setdefault((topic, number, queue), offset)
            return self._shown(sub, begins)
        sub.next = {place: where.get((*place, queue), offset) for place, offset in begins.items()}
        return self._shown(sub, sub.next)

    def _topics_of(self, sub: _Sub) -> list[Topic]:
        if (pattern := sub.command.get("pattern")) is not None:
            return [one for one in self.topics.values() if re.fullmatch(pattern, one.name) and one.name[0] != "%"]
        return [self.topic(name) for name in sub.command["topics"]]

    def _from(self, topics: list[Topic], start: Any, queue: str | None = None) -> dict[tuple[str, int], int]:
        offsets: dict[tuple[str, int], int] = {}
        if isinstance(start, str) and start not in ("earliest", "latest"):
            start_at = {(topic, partition): offset for topic, partition, offset in read_cursor(start)}
        elif isinstance(start, dict) and "timestamp" not in start:
            start_at = {(name, int(number)): at for name, numbers in start.items() for number, at in numbers.items()}
        else:
            start_at = {}
        for topic in topics:
            for number in range(len(topic.partitions)):
                source = topic.source(number, queue)
                if start_at:
                    offset = start_at.get((topic.name, number), source.first)
                    if offset > source.end:
                        raise Refused(f"offset {offset} is out of range: the end is {source.end}", 41601)
                elif isinstance(start, dict) and queue is not None:
                    raise Refused("a light queue is read from its beginning, its end or a cursor", 422)
                elif isinstance(start, dict):
                    offset = sum(one.fields["store_timestamp"] < start["timestamp"] for one in source.records)
                else:
                    offset = source.first if start == "earliest" else source.end
                offsets[topic.name, number] = offset
        return offsets

    @staticmethod
    def _shown(sub: _Sub, places: dict[tuple[str, int], int]) -> Fields:
        partitions: dict[str, list[int]] = {}
        for topic, number in places:
            partitions.setdefault(topic, []).append(number)
        cursor = ";".join(f"{topic}:{number}={offset}" for (topic, number), offset in places.items())
        return {"partitions": partitions, "cursor": cursor, "credit": sub.credit}

    def _sub(self, socket: FakeSocket, command: Fields) -> _Sub:
        if command["sub"] not in socket.subs:
            raise Refused("this socket has no such subscription", 40450)
        return socket.subs[command["sub"]]

    def _do_unsubscribe(self, socket: FakeSocket, command: Fields, payload: bytes) -> None:
        self._unsubscribe(self._sub(socket, command))

    def _unsubscribe(self, sub: _Sub) -> None:
        sub.socket.subs.pop(sub.name, None)
        group = sub.group
        if group is None:
            return
        group.subs.remove(sub)
        for lease in group.leases:
            if lease.sub is sub:
                lease.sub = None
                lease.until_ms = self.clock.exact_ms
        if sub in group.members:
            group.members.remove(sub)
            for place in [place for place, owner in group.owners.items() if owner is sub]:
                del group.owners[place]
                group.giving_up.pop(place, None)
            self._rebalance(group)
        self._deliver()

    def _do_pause(self, socket: FakeSocket, command: Fields, payload: bytes) -> None:
        self._sub(socket, command).is_paused = True

    def _do_resume(self, socket: FakeSocket, command: Fields, payload: bytes) -> None:
        self._sub(socket, command).is_paused = False

    def _do_permit(self, socket: FakeSocket, command: Fields, payload: bytes) -> None:
        self._sub(socket, command).credit += command.get("messages", 0)

    def _do_seen(self, socket: FakeSocket, command: Fields, payload: bytes) -> None:
        """Nothing is remembered here."""

    def _do_seek(self, socket: FakeSocket, command: Fields, payload: bytes) -> Fields:
        sub = self._sub(socket, command)
        moved = {
            place: to
            for place, to in self._from(self._topics_of(sub), command["to"], sub.queue).items()
            if place in sub.next
        }
        sub.next |= moved
        sub.is_caught_up = False
        return {"sub": sub.name, "cursor": self._shown(sub, moved)["cursor"]}

    # -------------------------------------------------------------------------------------------------------- streams

    def _rebalance(self, group: _Group) -> None:
        """Share the partitions out evenly; those that move are asked back first."""
        members = group.members
        places = sorted({place for member in members for place in self._from(self._topics_of(member), "latest")})
        for index, place in enumerate(places):
            wanted = members[index % len(members)]
            owner = group.owners.get(place)
            if owner is None:
                self._assign(group, place, wanted)
            elif owner is not wanted and place not in group.giving_up:
                group.giving_up[place] = wanted
                owner.next.pop(place, None)
                owner.socket.push({"op": "revoked", "sub": owner.name, "generation": 1, "drain_ms": 10_000,
                                   "partitions": {place[0]: [place[1]]}})  # fmt: skip
                self.clock.later(10, lambda place=place: self._released(group, place))  # type: ignore[misc]
        self._deliver()

    def _assign(self, group: _Group, place: tuple[str, int], member: _Sub) -> None:
        group.owners[place] = member
        offset = group.committed.setdefault(place, 0)
        member.next[place] = offset
        member.is_caught_up = False
        member.socket.push({"op": "assigned", "sub": member.name, "generation": 1, "partitions": {place[0]: [place[1]]},
                            "cursor": f"{place[0]}:{place[1]}={offset}"})  # fmt: skip

    def _released(self, group: _Group, place: tuple[str, int]) -> None:
        wanted = group.giving_up.pop(place, None)
        if wanted is not None:
            group.owners.pop(place, None)
            if wanted in group.members:
                self._assign(group, place, wanted)
            self._rebalance(group)

    def _do_release(self, socket: FakeSocket, command: Fields, payload: bytes) -> None:
        sub = self._sub(socket, command)
        assert sub.group is not None
        for topic, numbers in command["partitions"].items():
            for number in numbers:
                if sub.group.owners.get((topic, number)) is sub:
                    self._released(sub.group, (topic, number))

    # --------------------------------------------------------------------------------------------------------- queues

    def _do_ack(self, socket: FakeSocket, command: Fields, payload: bytes) -> Fields:
        sub = self._sub(socket, command)
        group = sub.group
        assert group is not None
        if "cursor" in command:
            results: list[Fields] = []
            for topic, number, offset in read_cursor(command["cursor"]):
                if sub.queue is not None:
                    group.light_committed[topic, number, sub.queue] = offset
                    results.append({"ok": True})
                    continue
                is_owner = group.owners.get((topic, number)) is sub
                if is_owner:
                    group.committed[topic, number] = offset
                results.append(
                    {"ok": True} if is_owner else {"ok": False, "error_code": 40959, "error": "not the owner"}
                )
            return {"results": results}
        return {"results": [self._settle(group, receipt, group.leases.remove) for receipt in command["receipts"]]}

    def _do_nack(self, socket: FakeSocket, command: Fields, payload: bytes) -> Fields:
        group = self._sub(socket, command).group
        assert group is not None

        def nack(lease: Lease) -> None:
            if lease.attempt >= group.max_attempts:
                self._bury(group, lease, command.get("reason", "max_attempts"))
                return
            backoff = group.backoff_ms[min(lease.attempt, len(group.backoff_ms)) - 1]
            lease.until_ms = self.clock.exact_ms + command.get("delay_ms", backoff)
            lease.sub = None
            lease.receipts.clear()
            self._deliver_at(lease.until_ms)

        return {"results": [self._settle(group, receipt, nack) for receipt in command["receipts"]]}

    def _do_reject(self, socket: FakeSocket, command: Fields, payload: bytes) -> Fields:
        group = self._sub(socket, command).group
        assert group is not None

        def reject(lease: Lease) -> None:
            self._bury(group, lease, command.get("reason", "rejected"))

        return {"results": [self._settle(group, receipt, reject) for receipt in command["receipts"]]}

    def _do_extend(self, socket: FakeSocket, command: Fields, payload: bytes) -> Fields:
        group = self._sub(socket, command).group
        assert group is not None
        results = []
        for receipt in command["receipts"]:
            new = f"r{next(self._numbers)}"

            def extend(lease: Lease, new: str = new) -> None:
                lease.until_ms = self.clock.exact_ms + command.get("invisible_ms", 30_000)
                lease.receipts.add(new)
                self._deliver_at(lease.until_ms)

            result = self._settle(group, receipt, extend, is_done=False)
            results.append({**result, "new_receipt": new} if result["ok"] else result)
        return {"results": results}

    def _settle(self, group: _Group, receipt: str, how: Callable[[Lease], object], *, is_done: bool = True) -> Fields:
        for lease in group.leases:
            if receipt in lease.receipts and lease.sub is not None and lease.until_ms > self.clock.exact_ms:
                lease.sub.credit += is_done
                how(lease)
                return {"receipt": receipt, "ok": True}
        return {"receipt": receipt, "ok": False, "error_code": 40951, "error": "the lease is over"}

    def _bury(self, group: _Group, lease: Lease, reason: str) -> None:
        """To the dead letters."""
        if lease in group.leases:
            group.leases.remove(lease)
        record = lease.record
        header = {"key": "mq-reason", "value": b64encode(reason.encode()).decode()}
        shown = {**record.fields, "headers": [*record.fields.get("headers", ()), header]}
        self._append(self.create_topic(f"%DLQ%{group.name}"), 0, record.key, record.value, shown)

    def _deliver_at(self, at_ms: float) -> None:
        self.clock.later(max(0.0, at_ms - self.clock.exact_ms) / 1000, self._deliver)

    # ------------------------------------------------------------------------------------------------------- delivery

    def _deliver(self) -> None:
        """Send each subscription what there is for it, as far as their credit goes."""
        for socket in list(self._sockets):
            for sub in list(socket.subs.values()):
                if sub.mode != "queue":
                    self._deliver_places(sub)
        for group in list(self.groups.values()):
            self._deliver_queue(group)

    def _deliver_places(self, sub: _Sub) -> None:
        if sub.mode == "reader" and sub.command.get("pattern") is not None:
            for place in self._from(self._topics_of(sub), "earliest"):
                if place not in sub.next:
                    sub.next[place] = 0
                    sub.socket.push({"op": "assigned", "sub": sub.name, "partitions": {place[0]: [place[1]]},
                                     "cursor": f"{place[0]}:{place[1]}=0"})  # fmt: skip
        if sub.is_paused:
            return
        for (name, number), offset in list(sub.next.items()):
            if name not in self.topics:
                continue
            source = self.topics[name].source(number, sub.queue)
            offset = max(offset, source.first)
            while sub.credit > 0 and offset < source.end:
                some = source.from_offset(offset)[: min(BATCH, sub.credit)]
                wanted = [(one, sub.about(one, at)) for at, one in enumerate(some, offset) if sub.wants(one)]
                offset = sub.next[name, number] = offset + len(some)
                sub.credit -= len(wanted)
                self._push(sub, name, wanted)
        is_at_end = all(
            self.topics[t].source(n, sub.queue).end <= o for (t, n), o in sub.next.items() if t in self.topics
        )
        if sub.next and is_at_end and not sub.is_caught_up:
            sub.is_caught_up = True
            sub.socket.push({"op": "caught_up", "sub": sub.name, "cursor": self._shown(sub, sub.next)["cursor"]})

    def _deliver_queue(self, group: _Group) -> None:
        now_ms = self.clock.exact_ms
        for lease in list(group.leases):
            if lease.until_ms <= now_ms and lease.sub is not None:  # its lease is over
                lease.sub.credit += 1
                lease.sub = None
                lease.receipts.clear()
            if lease.sub is None and lease.attempt >= group.max_attempts and lease.until_ms <= now_ms:
                self._bury(group, lease, "max_attempts")
        for place in [*group.next]:
            topic = self.topics.get(place[0])
            for record in topic.partitions[place[1]][group.next[place] :] if topic is not None else ():
                group.leases.append(Lease(place[0], record, until_ms=now_ms))
            if topic is not None:
                group.next[place] = len(topic.partitions[place[1]])
        for name, number, queue in [*group.light_next]:
            if name in self.topics:
                source = self.topics[name].source(number, queue)
                at = max(group.light_next[name, number, queue], source.first)
                for queue_offset, record in enumerate(source.from_offset(at), at):
                    group.leases.append(Lease(name, record, 0, now_ms, queue, queue_offset))
                group.light_next[name, number, queue] = source.end
        batches: dict[_Sub, list[tuple[str, Stored, Fields]]] = {}
        for lease in group.leases:
            if lease.sub is not None or lease.until_ms > now_ms:
                continue
            takers = [one for one in group.subs if one.mode == "queue" and one.credit > 0 and not one.is_paused]
            taker = next((one for one in takers if lease.topic in {topic.name for topic in self._topics_of(one)}
                          and one.queue == lease.queue and one.wants(lease.record)), None)  # fmt: skip
            if taker is None:
                continue
            group.subs.append(group.subs.pop(group.subs.index(taker)))  # in turn
            taker.credit -= 1
            receipt = f"r{next(self._numbers)}"
            lease.attempt += 1
            lease.sub = taker
            lease.receipts = {receipt}
            lease.until_ms = now_ms + taker.command.get("invisible_ms", 30_000)
            self._deliver_at(lease.until_ms)
            about = {"receipt": receipt, "attempt": lease.attempt, "visible_until": int(lease.until_ms),
                     **taker.about(lease.record, lease.queue_offset)}  # fmt: skip
            batches.setdefault(taker, []).append((lease.topic, lease.record, about))
        for taker, some in batches.items():
            for name in {name for name, _, _ in some}:
                self._push(taker, name, [(record, about) for topic, record, about in some if topic == name])

    def _push(self, sub: _Sub, topic: str, records: list[tuple[Stored, Fields]]) -> None:
        if not records:
            return
        sub.seq += 1
        messages, parts = [], []
        for record, about in records:
            messages.append(
                {
                    "topic": topic, "partition": record.partition, "offset": record.offset, **record.fields, **about,
                    "raw_key": True, "key_len": None if record.key is None else len(record.key),
                    "value_len": None if record.value is None else len(record.value),
                }
            )  # fmt: skip
            parts += [part for part in (record.key, record.value) if part is not None]
        size_bytes = sum(map(len, parts))
        header = {"op": "messages", "sub": sub.name, "seq": sub.seq, "messages": messages, "bytes": size_bytes}
        sub.socket.push_binary(write_binary(msgspec.json.encode(header), parts))

    # --------------------------------------------------------------------------------------------------------- groups

    def _get_lag(self, parts: list[str], query: Fields, body: Fields) -> Fields:
        group = self.groups.get(parts[0])
        if group is None:
            raise Refused(f"Group {parts[0]} not found.", 40403)
        behind = [
            len(self.topics[topic].partitions[number]) - offset
            for (topic, number), offset in (group.committed | group.next).items()
            if topic in self.topics
        ]
        return {"group": group.name, "total_lag": sum(behind) + len(group.leases)}

    def _patch_group(self, parts: list[str], query: Fields, body: Fields) -> Fields:
        group = self.groups.setdefault(parts[0], _Group(parts[0]))
        group.max_attempts = body.get("max_attempts", group.max_attempts)
        group.backoff_ms = tuple(body.get("backoff_ms", group.backoff_ms))
        return {"group": group.name, "max_attempts": group.max_attempts, "backoff_ms": list(group.backoff_ms)}

    def _delete_group(self, parts: list[str], query: Fields, body: Fields) -> None:
        if self.groups.pop(parts[0], None) is None:
            raise Refused(f"Group {parts[0]} not found.", 40403)


_ROUTES: dict[tuple[str, str, int], Callable[[Server, list[str], Fields, Fields], Fields | None]] = {
    ("GET", "topics", 1): Server._list_topics,
    ("GET", "topics", 2): Server._get_topic,
    ("PUT", "topics", 2): Server._put_topic,
    ("DELETE", "topics", 2): Server._delete_topic,
    ("GET", "schedules", 1): Server._list_schedules,
    ("GET", "schedules", 2): Server._get_schedule,
    ("DELETE", "schedules", 2): Server._cancel_schedule,
    ("PATCH", "schedules", 2): Server._move_schedule,
    ("POST", "schedules", 2): Server._fire_schedule,
    ("GET", "recurring", 1): Server._list_recurring,
    ("GET", "recurring", 2): Server._get_recurring,
    ("PUT", "recurring", 2): Server._put_recurring,
    ("DELETE", "recurring", 2): Server._delete_recurring,
    ("POST", "recurring", 2): Server._pause_recurring,
    ("GET", "groups", 3): Server._get_lag,
    ("PATCH", "groups", 2): Server._patch_group,
    ("DELETE", "groups", 2): Server._delete_group,
}


def _records(records: list[Fields], payload: bytes) -> Iterator[tuple[bytes | None, bytes | None, Fields]]:
    """Key, value and the other fields of each record."""
    at = 0
    for fields in records:
        key = None if (given := fields.get("key")) is None else _as_bytes(given)
        value = msgspec.json.encode(fields["value"]) if fields.get("value") is not None else None
        if (length := fields.get("key_len")) is not None:
            key, at = payload[at : at + length], at + length
        if (length := fields.get("value_len")) is not None:
            value, at = payload[at : at + length], at + length
        yield key, value, fields


def _as_bytes(key: Any) -> bytes:
    return key.encode() if isinstance(key, str) else msgspec.json.encode(key)


def _lenient(value: bytes) -> Any:
    try:
        return msgspec.json.decode(value)
    except msgspec.DecodeError:
        return value.decode(errors="replace")


def _shown_header(header: Fields) -> Fields:
    if "text" in header:
        return {"key": header["key"], "value": b64encode(header["text"].encode()).decode()}
    if header.get("value") is not None:
        b64decode(header["value"])
    return {"key": header["key"], "value": header.get("value")}
