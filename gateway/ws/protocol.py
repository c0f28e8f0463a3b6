"""The WebSocket protocol `mq.v1.json`: text frames in, commands out; answers and pushes in, frames out. Pure.

A text frame from a client is one JSON object, a JSON array of objects, or objects on lines of their own. Each object
is a command; `op` names it. A command with an `id` (0 to 2^53 - 1) is answered by exactly one object that echoes it,
with `"ok": true|false`. Objects without `id` are pushes. Every frame we send is one JSON object.

    command      fields (* = required)                                     answer / effect
    hello        client, binary, resume, token                             session, limits, ping_ms, epoch
    produce      topic* records* partition format acks ack                 offsets; `"ack": false`: errors only
    subscribe    sub* topics* mode from epochs credit credit_bytes         partitions, epochs, cursor; then `messages`
                 auto_credit batch                                         and once `caught_up` pushes
    permit       sub* messages bytes                                       more credit
    pause        sub*                                                      no more messages from here on
    resume       sub*                                                      and on again
    unsubscribe  sub*                                                      no message of it follows the answer
    ping                                                                   a `pong` with the server's time

Invariants
    P1  what does not fit this table is refused and named; a field that is not in it never passes unseen
    P2  a frame that is no JSON object has no answer: it ends the connection (BAD_FRAME)
    P3  a refused command changes nothing, and the connection stays

A cursor names the next offset of partitions: `orders:0=101;orders:1=88`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum, IntEnum
from typing import NamedTuple, TypeVar

import orjson

from gateway.codec.records import Format
from gateway.codec.times import TIME_MS_MAX
from gateway.http.errors import LIMIT_ILLEGAL, RequestError, bad_request, invalid
from store.types import Acks

SUBPROTOCOL = "mq.v1.json"

ID_MAX = 2**53 - 1
"""Largest command id: the largest integer every JSON parser keeps exact."""

OFFSET_MAX = 2**63 - 1
SUB_CHARS_MAX = 64
TOPICS_PER_SUBSCRIPTION_MAX = 64
BATCH_DEFAULT = 256
BATCH_MAX = 10_000
CREDIT_DEFAULT = 1_000
"""Messages a subscription may be sent when its client does not say; less where the server's limit is lower."""

FRAME_BYTES_TARGET = 256 * 1024
"""A `messages` frame is closed before it would grow past this; one larger message goes alone."""

CURSOR_SYNTAX = 40050
NO_SUCH_SUBSCRIPTION = 40450
ALREADY_SUBSCRIBED = 40956
EPOCH_CHANGED = 40953
TOO_MANY = 42950


class CloseCode(IntEnum):
    """Why the server ends a connection. Clients reconnect after 4000-4499 and must not after 4500-4999."""

    NORMAL = 1000
    UNSUPPORTED = 1003  # a binary frame, and hello did not agree on them
    INTERNAL = 1011
    SHUTDOWN = 4001
    SLOW = 4008  # the send buffer stayed full for the write timeout
    BAD_FRAME = 4500


@dataclass(frozen=True, slots=True)
class Hello:
    """Ask what the server offers. `token` and `resume` are taken but have no effect yet (`resumed` is false)."""

    id: int | None
    client: str | None


@dataclass(frozen=True, slots=True)
class Produce:
    """Store records. `records` is checked by the codec that every surface shares."""

    id: int | None
    topic: str
    records: object
    partition: int | None
    format: Format
    acks: Acks | None
    ack: bool


class From(Enum):
    """Starting places that need no number."""

    EARLIEST = "earliest"
    LATEST = "latest"


class FromTime(NamedTuple):
    """Start at the first record stored at or after this time."""

    timestamp_ms: int


class FromOffsets(NamedTuple):
    """Start at these offsets: topic -> partition -> next offset. A partition that is not named starts at earliest."""

    offsets: Mapping[str, Mapping[int, int]]


Start = From | FromTime | FromOffsets


@dataclass(frozen=True, slots=True)
class Subscribe:
    """Read topics from `start` on, as far as credit goes. `credit` None: the default; `credit_bytes` None: no limit."""

    id: int | None
    sub: str
    topics: tuple[str, ...]
    start: Start
    epochs: Mapping[str, str]
    credit: int | None
    credit_bytes: int | None
    auto_credit: bool
    batch: int


@dataclass(frozen=True, slots=True)
class Permit:
    """Add credit to a subscription."""

    id: int | None
    sub: str
    messages: int
    bytes: int


@dataclass(frozen=True, slots=True)
class Pause:
    id: int | None
    sub: str


@dataclass(frozen=True, slots=True)
class Resume:
    id: int | None
    sub: str


@dataclass(frozen=True, slots=True)
class Unsubscribe:
    id: int | None
    sub: str


@dataclass(frozen=True, slots=True)
class Ping:
    id: int | None


Command = Hello | Produce | Subscribe | Permit | Pause | Resume | Unsubscribe | Ping


class BadFrame(Exception):
    """A text frame that is no command at all (P2)."""


# ---------------------------------------------------------------------------------------------- client to server


def parse_frame(text: str) -> list[dict[str, object]]:
    """The objects of one text frame, in order; empty for an empty array or blank lines. Raises BadFrame."""
    try:
        parsed = orjson.loads(text)
    except orjson.JSONDecodeError as whole:
        lines = [line for line in text.split("\n") if line.strip()]
        if len(lines) < 2:
            if not lines:
                return []
            raise BadFrame(f"The frame is not JSON: {whole}") from whole
        try:
            parsed = [orjson.loads(line) for line in lines]
        except orjson.JSONDecodeError as error:
            raise BadFrame(f"The frame is neither JSON nor JSON lines: {error}") from error
    objects = parsed if isinstance(parsed, list) else [parsed]
    for one in objects:
        if not isinstance(one, dict):
            raise BadFrame("A frame holds a JSON object, an array of objects, or objects on lines of their own.")
    return objects


def command_id(command: Mapping[str, object]) -> int | None:
    """The id that an answer to this object echoes; None when it has none that could be echoed."""
    value = command.get("id")
    return value if isinstance(value, int) and value.__class__ is int and 0 <= value <= ID_MAX else None


def parse_command(command: Mapping[str, object]) -> Command:
    """One command, every field checked (P1). Raises RequestError."""
    fields = _Fields(command)
    id_ = fields.integer("id", None, 0, ID_MAX)
    op = fields.required(fields.text("op", 64), "op")
    parse = _PARSERS.get(op)
    if parse is None:
        raise invalid(f"Unrecognized op: {op}")
    parsed = parse(id_, fields)
    fields.refuse_others()
    return parsed


_T = TypeVar("_T")


class _Fields:
    """The fields of one command; remembers which were asked for, so that the others can be refused."""

    __slots__ = ("_asked", "_command")

    def __init__(self, command: Mapping[str, object]) -> None:
        self._command = command
        self._asked: set[str] = set()

    def value(self, name: str) -> object:
        self._asked.add(name)
        return self._command.get(name)

    def required(self, value: _T | None, name: str) -> _T:
        if value is None:
            raise invalid(f"{name}: is required")
        return value

    def text(self, name: str, chars_max: int) -> str | None:
        value = self.value(name)
        if value is None:
            return None
        if not isinstance(value, str) or not 0 < len(value) <= chars_max:
            raise invalid(f"{name}: must be a string of 1 to {chars_max} characters")
        return value

    def flag(self, name: str, default: bool) -> bool:
        value = self.value(name)
        if value is None:
            return default
        if not isinstance(value, bool):
            raise invalid(f"{name}: must be true or false")
        return value

    def integer(self, name: str, default: int | None, low: int, high: int, code: int = 422) -> int | None:
        value = self.value(name)
        if value is None:
            return default
        if not isinstance(value, int) or isinstance(value, bool) or not low <= value <= high:
            raise RequestError(422, code, f"{name}: must be an integer between {low} and {high}")
        return value

    def count(self, name: str, default: int, low: int, high: int, code: int = 422) -> int:
        value = self.integer(name, default, low, high, code)
        assert value is not None
        return value

    def sub(self) -> str:
        return self.required(self.text("sub", SUB_CHARS_MAX), "sub")

    def refuse_others(self) -> None:
        for name in self._command:
            if name not in self._asked:
                raise invalid(f"Unrecognized field: {name}")


def _hello(id_: int | None, fields: _Fields) -> Hello:
    client = fields.text("client", 256)
    fields.flag("binary", False)
    fields.text("resume", 256)
    fields.text("token", 16_384)
    return Hello(id_, client)


def _produce(id_: int | None, fields: _Fields) -> Produce:
    topic = fields.required(fields.text("topic", 249), "topic")
    records = fields.value("records")
    partition = fields.integer("partition", None, 0, 2**31 - 1)
    format_name = fields.text("format", 16)
    acks_name = fields.text("acks", 16)
    ack = fields.flag("ack", True)
    try:
        format_ = Format.JSON if format_name is None else _FORMATS[format_name]
    except KeyError:
        raise invalid(f"format: must be one of {', '.join(_FORMATS)}") from None
    try:
        acks = None if acks_name is None else _ACKS[acks_name]
    except KeyError:
        raise invalid(f"acks: must be one of {', '.join(_ACKS)}") from None
    return Produce(id_, topic, records, partition, format_, acks, ack)


def _subscribe(id_: int | None, fields: _Fields) -> Subscribe:
    sub = fields.sub()
    topics = _topics(fields.value("topics"))
    mode = fields.text("mode", 16)
    if mode not in (None, "reader"):
        raise invalid("mode: only reader is offered")
    start = _start(fields.value("from"), topics)
    epochs = _epochs(fields.value("epochs"), topics)
    return Subscribe(
        id_,
        sub,
        topics,
        start,
        epochs,
        credit=fields.integer("credit", None, 0, OFFSET_MAX, LIMIT_ILLEGAL),
        credit_bytes=fields.integer("credit_bytes", None, 0, OFFSET_MAX, LIMIT_ILLEGAL),
        auto_credit=fields.flag("auto_credit", True),
        batch=fields.count("batch", BATCH_DEFAULT, 1, BATCH_MAX, LIMIT_ILLEGAL),
    )


def _permit(id_: int | None, fields: _Fields) -> Permit:
    sub = fields.sub()
    messages = fields.count("messages", 0, 0, OFFSET_MAX, LIMIT_ILLEGAL)
    return Permit(id_, sub, messages, fields.count("bytes", 0, 0, OFFSET_MAX, LIMIT_ILLEGAL))


_FORMATS = {"json": Format.JSON, "binary": Format.BINARY, "text": Format.TEXT}
_ACKS = {"written": Acks.WRITTEN, "flushed": Acks.FLUSHED}
_PARSERS: dict[str, Callable[[int | None, _Fields], Command]] = {
    "hello": _hello,
    "produce": _produce,
    "subscribe": _subscribe,
    "permit": _permit,
    "pause": lambda id_, fields: Pause(id_, fields.sub()),
    "resume": lambda id_, fields: Resume(id_, fields.sub()),
    "unsubscribe": lambda id_, fields: Unsubscribe(id_, fields.sub()),
    "ping": lambda id_, fields: Ping(id_),
}


def _topics(value: object) -> tuple[str, ...]:
    if not isinstance(value, list) or not 1 <= len(value) <= TOPICS_PER_SUBSCRIPTION_MAX:
        raise invalid(f"topics: must be an array of 1 to {TOPICS_PER_SUBSCRIPTION_MAX} topic names")
    if not all(isinstance(topic, str) for topic in value):
        raise invalid("topics: every topic name must be a string")
    if len(set(value)) != len(value):
        raise invalid("topics: names a topic twice")
    return tuple(value)


def _start(value: object, topics: Sequence[str]) -> Start:
    """The starting place as `from` writes it: a word, a cursor, a time, or offsets of partitions."""
    if value is None:
        return From.LATEST
    if isinstance(value, str):
        if value in ("earliest", "latest"):
            return From(value)
        return _offsets(parse_cursor(value), topics)
    if not isinstance(value, dict) or not value:
        raise invalid('from: must be "earliest", "latest", a cursor, {"timestamp": ms} or {topic: {partition: offset}}')
    # A topic may be called "timestamp" too; then its value is an object.
    if value.keys() == {"timestamp"} and not isinstance(value["timestamp"], dict):
        timestamp_ms = value["timestamp"]
        if timestamp_ms.__class__ is not int or not 0 <= timestamp_ms <= TIME_MS_MAX:
            raise invalid(f"from.timestamp: must be epoch milliseconds between 0 and {TIME_MS_MAX}")
        return FromTime(timestamp_ms)
    return _offsets({topic: _partition_offsets(topic, given) for topic, given in value.items()}, topics)


def _partition_offsets(topic: str, given: object) -> dict[int, int]:
    if not isinstance(given, dict):
        raise invalid(f"from.{topic}: must be an object of partition and offset")
    offsets = {}
    for partition, offset in given.items():
        # One spelling a partition: "01" and "1" would be two keys for one place.
        if not _PARTITION.fullmatch(partition):
            raise invalid(f"from.{topic}: {partition!r} is not a partition number")
        if offset.__class__ is not int or not 0 <= offset <= OFFSET_MAX:
            raise invalid(f"from.{topic}.{partition}: must be an offset of 0 or more")
        offsets[int(partition)] = offset
    return offsets


def _offsets(offsets: Mapping[str, Mapping[int, int]], topics: Sequence[str]) -> FromOffsets:
    for topic in offsets:
        if topic not in topics:
            raise invalid(f"from: names topic {topic}, which is not in topics")
    return FromOffsets(offsets)


def _epochs(value: object, topics: Sequence[str]) -> dict[str, str]:
    if value is None:
        return {}
    if not isinstance(value, dict) or not all(isinstance(epoch, str) for epoch in value.values()):
        raise invalid("epochs: must be an object of topic and epoch (a string)")
    for topic in value:
        if topic not in topics:
            raise invalid(f"epochs: names topic {topic}, which is not in topics")
    return value


# ------------------------------------------------------------------------------------------------------- cursors

_PARTITION = re.compile(r"0|[1-9][0-9]{0,8}")
_PLACE = re.compile(r"([^:;=]+):(0|[1-9][0-9]{0,8})=(0|[1-9][0-9]{0,18})")


def parse_cursor(cursor: str) -> dict[str, dict[int, int]]:
    """Topic -> partition -> next offset. Raises RequestError 400/40050; partitions may not repeat."""
    places: dict[str, dict[int, int]] = {}
    for part in cursor.split(";"):
        match = _PLACE.fullmatch(part)
        if match is None or int(match[3]) > OFFSET_MAX:
            raise RequestError(400, CURSOR_SYNTAX, "The cursor is not of the form topic:partition=offset;...")
        offsets = places.setdefault(match[1], {})
        if int(match[2]) in offsets:
            raise RequestError(400, CURSOR_SYNTAX, f"The cursor names partition {match[2]} of {match[1]} twice.")
        offsets[int(match[2])] = int(match[3])
    return places


def cursor_of(places: Iterable[tuple[str, int, int]]) -> str:
    """The cursor of (topic, partition, next offset) triples."""
    return ";".join(f"{topic}:{partition}={offset}" for topic, partition, offset in places)


# ---------------------------------------------------------------------------------------------- server to client


def reply(id_: int, fields: Mapping[str, object]) -> bytes:
    """The answer to a command that was done."""
    return orjson.dumps({"id": id_, "ok": True, **fields})


def refusal(id_: int, error: RequestError) -> bytes:
    """The answer to a command that was refused."""
    return orjson.dumps({"id": id_, "ok": False, **error.body()})


def error_push(error: RequestError, *, sub: str | None = None) -> bytes:
    """Trouble that no command's answer can carry; with `sub`, the subscription it ends."""
    about = {} if sub is None else {"sub": sub}
    return orjson.dumps({"op": "error", **about, **error.body()})


def messages_push(
    sub: str, messages: Sequence[bytes], *, size_bytes: int, credit: int, credit_bytes: int | None
) -> bytes:
    """Messages already encoded. `size_bytes`: what they cost of the byte credit; the others: what is left of it."""
    left = b"" if credit_bytes is None else b',"credit_bytes":%d' % credit_bytes
    return b'{"op":"messages","sub":%b,"messages":[%b],"bytes":%d,"credit":%d%b}' % (
        orjson.dumps(sub), b",".join(messages), size_bytes, credit, left,
    )  # fmt: skip


def caught_up_push(sub: str, cursor: str) -> bytes:
    """Every partition of the subscription has reached its end once."""
    return orjson.dumps({"op": "caught_up", "sub": sub, "cursor": cursor})


def goaway_push(reconnect_after_ms: int) -> bytes:
    """The server is about to close with SHUTDOWN."""
    return orjson.dumps({"op": "goaway", "reason": "shutdown", "reconnect_after_ms": reconnect_after_ms})


def pong(id_: int | None, now_ms: int) -> bytes:
    """The answer to a ping, with or without id."""
    about = {} if id_ is None else {"id": id_, "ok": True}
    return orjson.dumps({**about, "op": "pong", "ts": now_ms})


def bad_frame_push(error: BadFrame) -> bytes:
    """Sent before a connection is closed with BAD_FRAME."""
    return error_push(bad_request(str(error)))
