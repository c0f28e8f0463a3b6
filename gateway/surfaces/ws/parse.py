"""What clients say: frames in, commands out. Pure.

A text frame is one JSON object, a JSON array of objects, or objects on lines of their own. Each object is a command;
`op` names it.

Invariants
    P1  what does not fit the table of ops is refused and named; a field that is not in it never passes unseen
    P2  a frame that is no JSON object has no answer: it ends the connection (BAD_FRAME)
    P3  a refused command changes nothing, and the connection stays
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TypeVar

import orjson

from gateway.codec.filters import parse_filter
from gateway.codec.records import Format
from gateway.codec.times import TIME_MS_MAX
from gateway.errors import DELAY_ILLEGAL, LIMIT_ILLEGAL, RequestError, invalid
from gateway.groups.machines.config import INVISIBLE_MS_MAX
from gateway.groups.machines.copies import REASON_BYTES_MAX
from gateway.groups.machines.subscription import TOPICS_MAX
from gateway.groups.protocol import RECEIPTS_MAX
from gateway.settings.limits import Limits
from gateway.surfaces.ws.commands import (
    PERMISSIONS,
    Ack,
    Auth,
    Command,
    Extend,
    Form,
    From,
    FromOffsets,
    FromTime,
    Hello,
    Mode,
    Nack,
    Pause,
    Permit,
    Ping,
    Produce,
    Reject,
    Release,
    Resume,
    Seek,
    Seen,
    Start,
    Subscribe,
    Unsubscribe,
    UpTo,
)
from gateway.surfaces.ws.protocol import BATCH_DEFAULT, BATCH_MAX, ID_MAX, PARTITION_NUMBER, BadFrame, parse_cursor
from store.types import OFFSET_MAX, Acks

COMMANDS_MAX = 10_000
"""Commands of one frame."""

SUB_CHARS_MAX = 64
RECEIPT_CHARS_MAX = 1024
UP_TO_MAX = 4096
NAME_CHARS_MAX = 249
"""Topics and groups."""

MEMBER_CHARS_MAX = 255
TOKEN_CHARS_MAX = 16_384


class TooManyCommands(Exception):
    """More commands in a frame than COMMANDS_MAX."""


def parse_frame(text: str) -> list[dict[str, object]]:
    """The objects of one text frame, in order; empty for an empty array or blank lines.

    Raises BadFrame, TooManyCommands.
    """
    try:
        parsed = orjson.loads(text)
    except orjson.JSONDecodeError as whole:
        if text.count("\n") > COMMANDS_MAX:
            raise TooManyCommands(f"more than {COMMANDS_MAX} lines in one frame") from None
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
    if len(objects) > COMMANDS_MAX:
        raise TooManyCommands(f"{len(objects)} commands in one frame; the limit is {COMMANDS_MAX}")
    for one in objects:
        if not isinstance(one, dict):
            raise BadFrame("A frame holds a JSON object, an array of objects, or objects on lines of their own.")
    return objects


def command_id(command: Mapping[str, object]) -> int | None:
    """The id that an answer to this object echoes; None when it has none that could be echoed."""
    value = command.get("id")
    return value if isinstance(value, int) and value.__class__ is int and 0 <= value <= ID_MAX else None


def parse_command(command: Mapping[str, object], limits: Limits) -> Command:
    """One command, every field checked (P1). Raises RequestError."""
    fields = _Fields(command, limits)
    id_ = fields.integer("id", None, 0, ID_MAX)
    op = fields.required(fields.text("op", 64), "op")
    parse = _PARSERS.get(op)
    if parse is None:
        raise invalid(f"Unrecognized op: {op}")
    parsed = parse(id_, fields)
    fields.refuse_others()
    return parsed


_T = TypeVar("_T")
_U = TypeVar("_U")


class _Fields:
    """The fields of one command; remembers which were asked for, so that the others can be refused."""

    __slots__ = ("_asked", "_command", "limits")

    def __init__(self, command: Mapping[str, object], limits: Limits) -> None:
        self._command = command
        self.limits = limits
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
            raise RequestError(code, f"{name}: must be an integer between {low} and {high}")
        return value

    def count(self, name: str, default: int, low: int, high: int, code: int = 422) -> int:
        value = self.integer(name, default, low, high, code)
        assert value is not None
        return value

    def choice(self, name: str, choices: Mapping[str, _T], default: _U) -> _T | _U:
        value = self.text(name, 16)
        if value is None:
            return default
        try:
            return choices[value]
        except KeyError:
            raise invalid(f"{name}: must be one of {', '.join(choices)}") from None

    def sub(self) -> str:
        return self.required(self.text("sub", SUB_CHARS_MAX), "sub")

    def refuse_others(self) -> None:
        for name in self._command:
            if name not in self._asked:
                raise invalid(f"Unrecognized field: {name}")


def _hello(id_: int | None, fields: _Fields) -> Hello:
    return Hello(
        id_,
        client=fields.text("client", 256),
        binary=fields.flag("binary", False),
        token=fields.text("token", TOKEN_CHARS_MAX),
        resume=fields.text("resume", 256),
        seen=_seqs(fields.value("seen"), "seen"),
    )


def _auth(id_: int | None, fields: _Fields) -> Auth:
    return Auth(id_, fields.required(fields.text("token", TOKEN_CHARS_MAX), "token"))


def _produce(id_: int | None, fields: _Fields) -> Produce:
    topic = fields.required(fields.text("topic", NAME_CHARS_MAX), "topic")
    records = fields.value("records")
    partition = fields.integer("partition", None, 0, 2**31 - 1)
    format_ = fields.choice("format", _FORMATS, Format.JSON)
    acks = fields.choice("acks", _ACKS, None)
    return Produce(id_, topic, records, partition, format_, acks, fields.flag("ack", True))


def _subscribe(id_: int | None, fields: _Fields) -> Subscribe:
    sub = fields.sub()
    pattern = fields.text("pattern", NAME_CHARS_MAX)
    topics = _topics(fields.value("topics"), pattern)
    group = fields.text("group", NAME_CHARS_MAX)
    mode = fields.choice("mode", _MODES, None)
    if mode is None:
        if group is not None:
            raise invalid('mode: say "stream" or "queue" with a group')
        mode = Mode.READER
    if (group is None) is not (mode is Mode.READER):
        raise invalid("group: is required in stream and queue mode, and has no place in reader mode")
    form = fields.choice("format", _FORMS, None)
    filter_ = parse_filter(fields.text("filter", 16_384))
    if form is Form.BATCH and (mode is Mode.QUEUE or filter_ is not None):
        raise invalid("format: batch is for reader and stream mode, without a filter")
    return Subscribe(
        id_,
        sub,
        topics,
        pattern,
        mode,
        group,
        member=fields.text("member", MEMBER_CHARS_MAX) if mode is Mode.STREAM else None,
        start=_start_of(mode, fields, topics if pattern is None else None),
        epochs=_epochs(fields.value("epochs"), topics) if mode is Mode.READER else {},
        filter=filter_,
        form=form,
        credit=fields.integer("credit", None, 0, OFFSET_MAX, LIMIT_ILLEGAL),
        credit_bytes=fields.integer("credit_bytes", None, 0, OFFSET_MAX, LIMIT_ILLEGAL),
        auto_credit=fields.flag("auto_credit", True),
        auto_ack=mode is not Mode.READER and fields.flag("auto_ack", False),
        invisible_ms=_invisible_ms(fields) if mode is Mode.QUEUE else None,
        batch=fields.count("batch", BATCH_DEFAULT, 1, BATCH_MAX, LIMIT_ILLEGAL),
    )


def _start_of(mode: Mode, fields: _Fields, topics: Sequence[str] | None) -> Start | None:
    if mode is Mode.READER:
        return _start(fields.value("from"), topics, "from")
    start = _start(fields.value("start"), topics, "start")
    if isinstance(start, FromOffsets):
        raise invalid('start: must be "earliest", "latest" or {"timestamp": ms}; seek goes to offsets')
    return start


def _ack(id_: int | None, fields: _Fields) -> Ack:
    sub = fields.sub()
    given = [name for name in ("receipts", "up_to", "cursor") if fields.value(name) is not None]
    if len(given) != 1:
        raise invalid("ack: needs one of receipts, up_to and cursor")
    if given == ["receipts"]:
        return Ack(id_, sub, _receipts(fields), ())
    if given == ["up_to"]:
        return Ack(id_, sub, (), _up_to(fields.value("up_to")))
    up_to = parse_cursor(fields.required(fields.text("cursor", 2**20), "cursor"))
    return Ack(id_, sub, (), tuple(UpTo(t, p, offset) for t, offsets in up_to.items() for p, offset in offsets.items()))


def _nack(id_: int | None, fields: _Fields) -> Nack:
    delay_ms = fields.integer("delay_ms", None, 0, fields.limits.delay_ms_max, DELAY_ILLEGAL)
    return Nack(id_, fields.sub(), _receipts(fields), delay_ms, _reason(fields))


def _reject(id_: int | None, fields: _Fields) -> Reject:
    return Reject(id_, fields.sub(), _receipts(fields), _reason(fields))


def _extend(id_: int | None, fields: _Fields) -> Extend:
    return Extend(id_, fields.sub(), _receipts(fields), _invisible_ms(fields))


def _release(id_: int | None, fields: _Fields) -> Release:
    sub = fields.sub()
    value = fields.value("partitions")
    if not isinstance(value, dict) or not value:
        raise invalid("partitions: must be an object of topic and partition numbers")
    for topic, numbers in value.items():
        if not isinstance(numbers, list) or not all(number.__class__ is int for number in numbers):
            raise invalid(f"partitions.{topic}: must be an array of partition numbers")
    return Release(id_, sub, value)


def _seek(id_: int | None, fields: _Fields) -> Seek:
    sub = fields.sub()
    to = _start(fields.value("to"), None, "to")
    if to is None:
        raise invalid("to: is required")
    return Seek(id_, sub, to)


def _permit(id_: int | None, fields: _Fields) -> Permit:
    sub = fields.sub()
    messages = fields.count("messages", 0, 0, OFFSET_MAX, LIMIT_ILLEGAL)
    return Permit(id_, sub, messages, fields.count("bytes", 0, 0, OFFSET_MAX, LIMIT_ILLEGAL))


def _seen(id_: int | None, fields: _Fields) -> Seen:
    return Seen(id_, _seqs(fields.required(fields.value("subs"), "subs"), "subs"))


_FORMATS: dict[str, Format | None] = {
    "json": Format.JSON,
    "binary": Format.BINARY,
    "text": Format.TEXT,
    "batch": None,
}
_ACKS = {"written": Acks.WRITTEN, "flushed": Acks.FLUSHED}
_MODES = {mode.value: mode for mode in Mode}
_FORMS = {form.value: form for form in Form}
_PARSERS: dict[str, Callable[[int | None, _Fields], Command]] = {
    "hello": _hello,
    "auth": _auth,
    "produce": _produce,
    "subscribe": _subscribe,
    "ack": _ack,
    "nack": _nack,
    "reject": _reject,
    "extend": _extend,
    "release": _release,
    "seek": _seek,
    "permit": _permit,
    "pause": lambda id_, fields: Pause(id_, fields.sub()),
    "resume": lambda id_, fields: Resume(id_, fields.sub()),
    "unsubscribe": lambda id_, fields: Unsubscribe(id_, fields.sub()),
    "seen": _seen,
    "ping": lambda id_, fields: Ping(id_),
}

assert PERMISSIONS.keys() == _PARSERS.keys()


def _topics(value: object, pattern: str | None) -> tuple[str, ...]:
    if value is None and pattern is not None:
        return ()
    if pattern is not None:
        raise invalid("topics: excludes pattern")
    if not isinstance(value, list) or not 1 <= len(value) <= TOPICS_MAX:
        raise invalid(f"topics: must be an array of 1 to {TOPICS_MAX} topic names")
    if not all(isinstance(topic, str) for topic in value):
        raise invalid("topics: every topic name must be a string")
    if len(set(value)) != len(value):
        raise invalid("topics: names a topic twice")
    return tuple(value)


def _receipts(fields: _Fields) -> tuple[str, ...]:
    value = fields.value("receipts")
    if not isinstance(value, list) or not 1 <= len(value) <= RECEIPTS_MAX:
        raise invalid(f"receipts: must be an array of 1 to {RECEIPTS_MAX} receipts")
    if not all(isinstance(receipt, str) and len(receipt) <= RECEIPT_CHARS_MAX for receipt in value):
        raise invalid(f"receipts: every receipt must be a string of at most {RECEIPT_CHARS_MAX} characters")
    return tuple(value)


def _up_to(value: object) -> tuple[UpTo, ...]:
    if not isinstance(value, list) or not 1 <= len(value) <= UP_TO_MAX:
        raise invalid(f'up_to: must be an array of 1 to {UP_TO_MAX} objects {{"topic", "partition", "offset"}}')
    up_to = []
    for item in value:
        if not isinstance(item, dict) or item.keys() != {"topic", "partition", "offset"}:
            raise invalid('up_to: every place is an object {"topic", "partition", "offset"}')
        topic, partition, offset = item["topic"], item["partition"], item["offset"]
        if not isinstance(topic, str) or partition.__class__ is not int or offset.__class__ is not int:
            raise invalid("up_to: topic must be a string, partition and offset integers")
        if not 0 <= partition < 2**31 or not 0 <= offset < OFFSET_MAX:
            raise invalid("up_to: partition and offset must not be negative, nor too large")
        up_to.append(UpTo(topic, partition, offset + 1))
    return tuple(up_to)


def _reason(fields: _Fields) -> str:
    value = fields.value("reason")
    if value is None:
        return ""
    if not isinstance(value, str) or len(value.encode()) > REASON_BYTES_MAX:
        raise invalid(f"reason: must be a string of at most {REASON_BYTES_MAX} bytes")
    return value


def _invisible_ms(fields: _Fields) -> int | None:
    return fields.integer("invisible_ms", None, 1, INVISIBLE_MS_MAX)


def _seqs(value: object, name: str) -> dict[str, int]:
    if value is None:
        return {}
    if not isinstance(value, dict) or not all(
        seq.__class__ is int and 0 <= seq <= OFFSET_MAX for seq in value.values()
    ):
        raise invalid(f"{name}: must be an object of subscription and seq")
    return value


def _start(value: object, topics: Sequence[str] | None, name: str) -> Start | None:
    """A position as `from` writes it: a word, a cursor, a time, or offsets of partitions. `topics` None: of any
    topic."""
    if value is None:
        return None
    if isinstance(value, str):
        if value in ("earliest", "latest"):
            return From(value)
        return _offsets(parse_cursor(value), topics, name)
    if not isinstance(value, dict) or not value:
        raise invalid(
            f'{name}: must be "earliest", "latest", a cursor, {{"timestamp": ms}} or {{topic: {{partition: offset}}}}'
        )
    # A topic may be called "timestamp" too; then its value is an object.
    if value.keys() == {"timestamp"} and not isinstance(value["timestamp"], dict):
        timestamp_ms = value["timestamp"]
        if timestamp_ms.__class__ is not int or not 0 <= timestamp_ms <= TIME_MS_MAX:
            raise invalid(f"{name}.timestamp: must be epoch milliseconds between 0 and {TIME_MS_MAX}")
        return FromTime(timestamp_ms)
    offsets = {topic: _partition_offsets(topic, given, name) for topic, given in value.items()}
    return _offsets(offsets, topics, name)


def _partition_offsets(topic: str, given: object, name: str) -> dict[int, int]:
    if not isinstance(given, dict):
        raise invalid(f"{name}.{topic}: must be an object of partition and offset")
    offsets = {}
    for partition, offset in given.items():
        # One spelling a partition: "01" and "1" would be two keys for one place.
        if not PARTITION_NUMBER.fullmatch(partition):
            raise invalid(f"{name}.{topic}: {partition!r} is not a partition number")
        if offset.__class__ is not int or not 0 <= offset <= OFFSET_MAX:
            raise invalid(f"{name}.{topic}.{partition}: must be an offset of 0 or more")
        offsets[int(partition)] = offset
    return offsets


def _offsets(offsets: Mapping[str, Mapping[int, int]], topics: Sequence[str] | None, name: str) -> FromOffsets:
    for topic in offsets:
        if topics is not None and topic not in topics:
            raise invalid(f"{name}: names topic {topic}, which is not in topics")
    return FromOffsets(offsets)


def _epochs(value: object, topics: Sequence[str]) -> dict[str, str]:
    if value is None:
        return {}
    if not isinstance(value, dict) or not all(isinstance(epoch, str) for epoch in value.values()):
        raise invalid("epochs: must be an object of topic and epoch (a string)")
    for topic in value:
        if topics and topic not in topics:
            raise invalid(f"epochs: names topic {topic}, which is not in topics")
    return value
