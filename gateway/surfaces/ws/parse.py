"""What clients say: frames in, commands out. Pure.

A text frame is one JSON object, a JSON array of objects, or objects on lines of their own. Each object is a command;
`op` names it.

Invariants
    P1  what does not fit the table of ops is refused and named; a field that is not in it never passes unseen
    P2  a frame that is no JSON object has no answer: it ends the connection (BAD_FRAME)
    P3  a refused command changes nothing, and the connection stays
"""

from __future__ import annotations

from collections.abc import Generator, Mapping, Sequence
from typing import Any, cast

import orjson

from gateway.api.light import names_begin
from gateway.api.shapes.base import load
from gateway.api.shapes.commands import (
    COMMANDS,
    ID_MAX,
    AckCommand,
    ProduceCommand,
    SeekCommand,
    SubscribeCommand,
)
from gateway.codec.filters import parse_filter
from gateway.codec.json_steps import STEP_BYTES, parse_in_steps
from gateway.codec.records import Format, parse_light_name, unrecognized
from gateway.codec.times import TIME_MS_MAX
from gateway.errors import RequestError, invalid
from gateway.settings.limits import Limits
from gateway.surfaces.ws.commands import (
    PERMISSIONS,
    Ack,
    Command,
    Form,
    From,
    FromOffsets,
    FromTime,
    Mode,
    Produce,
    Seek,
    Start,
    Subscribe,
    UpTo,
)
from gateway.surfaces.ws.protocol import BATCH_DEFAULT, PARTITION_NUMBER, BadFrame, parse_cursor
from store.types import OFFSET_MAX, Acks

assert PERMISSIONS.keys() == COMMANDS.keys()

COMMANDS_MAX = 10_000
"""Commands of one frame."""


class TooManyCommands(Exception):
    """More commands in a frame than COMMANDS_MAX."""


def parse_frame_in_steps(text: str) -> Generator[None, None, list[dict[str, object]]]:
    """As `parse_frame`, which is what the generator returns, of a frame that may be large."""
    if len(text) <= STEP_BYTES:
        return parse_frame(text)
    data = text.encode()
    try:
        parsed = yield from parse_in_steps(data, "frame", elements_max=COMMANDS_MAX)
    except RequestError as whole:
        count = data.count(b"\n")
        if count > COMMANDS_MAX:
            raise TooManyCommands(f"more than {COMMANDS_MAX} lines in one frame") from None
        if not count:
            if not data.strip():
                return []
            raise BadFrame(whole.message) from None
        lines: list[object] = []
        for line in data.split(b"\n"):
            if line.strip():
                try:
                    lines.append((yield from parse_in_steps(line, "line")))
                except RequestError as error:
                    raise BadFrame(f"The frame is neither JSON nor JSON lines: {error.message}") from None
                yield
        parsed = lines
    try:
        return _commands_of(parsed)
    except (BadFrame, TooManyCommands):
        if isinstance(parsed, list):
            count = max(1, len(parsed) * STEP_BYTES // len(data))
            while parsed:  # to free millions of objects takes as long as to make them
                del parsed[-count:]
                yield
        raise


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
    return _commands_of(parsed)


def _commands_of(parsed: object) -> list[dict[str, object]]:
    objects: list[Any] = parsed if isinstance(parsed, list) else [parsed]
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
    op = command.get("op")
    shape = COMMANDS.get(op) if isinstance(op, str) else None
    if shape is None:
        raise invalid("op: is required" if op is None else f"Unrecognized op: {str(op)[:64]}")
    taken = load(shape, command, limits)
    match taken:
        case ProduceCommand():
            return _produce(taken)
        case SubscribeCommand():
            return _subscribe(taken)
        case AckCommand():
            return _ack(taken)
        case SeekCommand():
            to = _start(taken.to, None, "to")
            if to is None:
                raise invalid("to: is required")
            return Seek(taken.id, taken.sub, to)
    return cast(Command, taken)


def _produce(taken: ProduceCommand) -> Produce:
    acks = None if taken.acks is None else Acks[taken.acks.upper()]
    format_ = None if taken.format == "batch" else Format(taken.format or "json")
    return Produce(
        taken.id,
        taken.topic,
        taken.records,
        taken.partition,
        format_,
        acks,
        taken.ack is not False,
        taken.idempotency_key,
    )


_OF_MODES: dict[str, tuple[Mode, ...]] = {
    "from_": (Mode.READER,),
    "epochs": (Mode.READER,),
    "start": (Mode.STREAM, Mode.QUEUE),
    "auto_ack": (Mode.STREAM, Mode.QUEUE),
    "member": (Mode.STREAM,),
    "room": (Mode.STREAM,),
    "invisible_ms": (Mode.QUEUE,),
}
"""Fields that not every mode has."""


def _subscribe(taken: SubscribeCommand) -> Subscribe:
    topics = _topics(taken)
    if taken.mode is None and taken.group is not None:
        raise invalid('mode: say "stream" or "queue" with a group')
    mode = Mode(taken.mode or "reader")
    if (taken.group is None) is not (mode is Mode.READER):
        raise invalid("group: is required in stream and queue mode, and has no place in reader mode")
    for name, modes in _OF_MODES.items():
        if mode not in modes and getattr(taken, name) is not None:
            raise unrecognized(name.removesuffix("_"))
    form = None if taken.format is None else Form(taken.format)
    filter_ = parse_filter(taken.filter)
    if taken.queue is not None:
        _check_queue(taken, mode)
    if form is Form.BATCH and (mode is Mode.QUEUE or filter_ is not None):
        raise invalid("format: batch is for reader and stream mode, without a filter")
    return Subscribe(
        taken.id,
        taken.sub,
        topics,
        taken.pattern,
        taken.queue,
        mode,
        taken.group,
        member=taken.member,
        start=_start_of(mode, taken, topics if taken.pattern is None else None),
        epochs=_epochs(taken.epochs or {}, topics),
        filter=filter_,
        form=form,
        credit=taken.credit,
        credit_bytes=taken.credit_bytes,
        auto_credit=taken.auto_credit is not False,
        auto_ack=taken.auto_ack or False,
        invisible_ms=taken.invisible_ms,
        batch=BATCH_DEFAULT if taken.batch is None else taken.batch,
        room=taken.room or "",
    )


def _check_queue(taken: SubscribeCommand, mode: Mode) -> None:
    """Raises RequestError unless these fields go with a light queue."""
    assert taken.queue is not None
    is_many = names_begin(taken.queue) is not None
    if not is_many:
        parse_light_name(taken.queue)
        if taken.filter is not None:
            raise invalid("filter: not with one light queue")
    if taken.pattern is not None:
        raise invalid("pattern: not with a light queue, which is of topics that are named")
    if taken.format == "batch":
        raise invalid("format: light queues come message by message")
    if is_many and mode is not Mode.READER:
        raise invalid("mode: light queues are read by name in stream and queue mode")
    if taken.member is not None:
        raise invalid("member: a group has no members in a light queue")
    if taken.room is not None:
        raise invalid("room: a group has no members in a light queue")
    if mode is Mode.QUEUE and isinstance(taken.start, Mapping):
        raise invalid('start: a light queue is begun at "earliest" or "latest"')


def _start_of(mode: Mode, taken: SubscribeCommand, topics: Sequence[str] | None) -> Start | None:
    if mode is Mode.READER:
        return _start(taken.from_, topics, "from")
    start = _start(taken.start, topics, "start")
    if isinstance(start, FromOffsets):
        raise invalid('start: must be "earliest", "latest" or {"timestamp": ms}; seek goes to offsets')
    return start


def _ack(taken: AckCommand) -> Ack:
    if sum(given is not None for given in (taken.receipts, taken.up_to, taken.cursor)) != 1:
        raise invalid("ack: needs one of receipts, up_to and cursor")
    if taken.receipts is not None:
        return Ack(taken.id, taken.sub, tuple(taken.receipts), ())
    if taken.up_to is not None:
        up_to = [UpTo(one.topic, one.partition, one.offset + 1) for one in taken.up_to]
    else:
        cursor = parse_cursor(taken.cursor or "")
        up_to = [UpTo(topic, number, to) for topic, offsets in cursor.items() for number, to in offsets.items()]
    return Ack(taken.id, taken.sub, (), tuple(up_to))


def _topics(taken: SubscribeCommand) -> tuple[str, ...]:
    if taken.pattern is not None:
        if taken.topics is not None:
            raise invalid("topics: excludes pattern")
        return ()
    if taken.topics is None:
        raise invalid("topics: is required, or pattern")
    if len(set(taken.topics)) != len(taken.topics):
        raise invalid("topics: names a topic twice")
    return tuple(taken.topics)


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
        # One spelling a partition: "01" and "1" would be two keys for one partition.
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


def _epochs(epochs: dict[str, str], topics: Sequence[str]) -> dict[str, str]:
    for topic in epochs:
        if topics and topic not in topics:
            raise invalid(f"epochs: names topic {topic}, which is not in topics")
    return epochs
