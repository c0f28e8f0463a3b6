"""What nodes say to each other, as bytes: a JSON head, then record batches as they are.

    0         4                4 + length
    +---------+----------------+---------+---------+---
    |length   |head, JSON      |batch    |batch    |...
    |u32      |                |         |         |
    +---------+----------------+---------+---------+---

The head names the size of each batch. Ids are hexadecimal in it. An error is {"error": its class, "args": [...]}.

Over TCP a message is the body of an HTTP request, or of its answer. Over a link (a Unix socket, or a connection that
began as an HTTP request, see peer_link.py) it stands in a frame, of which one connection carries many at a time; an
answer has the number of its request, and no name. Over TCP each frame ends with a code (peer_auth.py):

    0         4         8         9
    +---------+---------+---------+------------------+-------------+-----------+
    |length of all behind it      |the operation's   |message      |code       |
    |u32      |number   |length u8|name, ASCII       |             |or none    |
    +---------+---------+---------+------------------+-------------+-----------+
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

import orjson

from gateway.brokers.base import AnswerLost
from gateway.cluster.peer_auth import FrameCodes
from store import errors as store_errors
from store.errors import AlreadyStored, BrokerRefuses, Corrupt, MalformedBatch, OffsetMoved, StoreError, TooManyIds
from store.light_names import LightNames
from store.types import (
    Acks,
    Append,
    Appended,
    Buffer,
    Delay,
    Entry,
    Identity,
    LightRead,
    LightRecord,
    Original,
    ProducerSequence,
    QueueKey,
    ReadResult,
    ReadStatus,
    RecordNumbers,
    RequestPart,
    ScheduleKey,
    Source,
)
from timer.errors import ScheduleKeyTaken, TimerBusy, TooManySchedules
from timer.schedule import ScheduleId

_LENGTH = struct.Struct(">I")
_FRAME = struct.Struct(">IIB")
_BEHIND_LENGTH = _FRAME.size - _LENGTH.size
Head = dict[str, Any]
Message = Sequence[Buffer]
"""A message in parts, as it is sent."""


class Frame(NamedTuple):
    """A message on a connection that carries many."""

    number: int
    operation: str
    message: bytes


def frame(number: int, operation: str, message: Message, codes: FrameCodes | None = None) -> Sequence[Buffer]:
    """The bytes of a frame, in parts; with a code, if those of the connection are given."""
    name = operation.encode()
    size = _BEHIND_LENGTH + len(name) + sum(map(len, message)) + (0 if codes is None else codes.size)
    head = _FRAME.pack(size, number, len(name)) + name
    if codes is None:
        return (head, *message)
    whole = b"".join((head, *message))
    return (whole, codes.next(whole))


class Frames:
    """Takes frames out of what a connection brings. `bytes_max` bounds one. `codes`: of the frames of the connection,
    if they have some."""

    def __init__(self, bytes_max: int, codes: FrameCodes | None = None) -> None:
        self._bytes_max = bytes_max
        self._codes = codes
        self._behind_message = 0 if codes is None else codes.size
        self._held = bytearray()

    def feed(self, data: bytes) -> list[Frame]:
        """The frames that are whole by now. Raises ValueError for what is none, NotAuthentic."""
        held = self._held
        held += data
        found: list[Frame] = []
        start = 0
        while len(held) - start >= _FRAME.size:
            length, number, name_length = _FRAME.unpack_from(held, start)
            if not _BEHIND_LENGTH + name_length + self._behind_message <= length <= self._bytes_max:
                raise ValueError(f"a frame of {length} bytes")
            end = start + _LENGTH.size + length
            if len(held) < end:
                break
            at, message_end = start + _FRAME.size, end - self._behind_message
            with memoryview(held) as view:
                if self._codes is not None:
                    self._codes.check(view[start:message_end], bytes(view[message_end:end]))
                name = bytes(view[at : at + name_length]).decode()
                found.append(Frame(number, name, bytes(view[at + name_length : message_end])))
            start = end
        if start:  # not taken out of `held`: who looks at this thread's stack meanwhile may keep a view of it
            self._held = held[start:]
        return found


def pack(head: Head, batches: Sequence[Buffer] = ()) -> Message:
    """One message."""
    encoded = orjson.dumps(head, default=_plain)
    return (_LENGTH.pack(len(encoded)) + encoded, *batches)


def _plain(value: object) -> list[object]:
    """orjson takes tuples, and none of a class of its own."""
    if isinstance(value, tuple):
        return list(value)
    raise TypeError


def unpack(message: bytes) -> tuple[Head, memoryview]:
    """The head, and the batches behind each other. Raises ValueError."""
    if len(message) < _LENGTH.size:
        raise ValueError("a message without a head")
    end = _LENGTH.size + _LENGTH.unpack_from(message)[0]
    head = orjson.loads(memoryview(message)[_LENGTH.size : end])
    if len(message) < end or not isinstance(head, dict):
        raise ValueError("a message without a head")
    return head, memoryview(message)[end:]


class Batches:
    """Takes batches off the end of a message, one after the other."""

    def __init__(self, rest: memoryview) -> None:
        self._rest = rest

    def take(self, size: int) -> bytes:
        """Raises ValueError when there is not so much."""
        return bytes(self.view(size))

    def view(self, size: int) -> memoryview:
        """As `take`, without a copy: the whole message stays in memory as long as this does."""
        if not 0 <= size <= len(self._rest):
            raise ValueError("a message that is cut off")
        batch, self._rest = self._rest[:size], self._rest[size:]
        return batch


# ---- appends -------------------------------------------------------------------------------------------------------


def append_head(append: Append) -> Head:
    """All of an append but its `append_parts`."""
    head: Head = {"queue": append.queue, "size": len(append.batch), "count": append.record_count}
    if append.json_values:
        head["json"] = True
    if append.light is not None:
        head["light"] = len(append.light.block)
    if append.tag_hashes:
        head["tags"] = list(append.tag_hashes)
    if append.delays:
        head["delays"] = append.delays
    if append.sources:
        head["sources"] = append.sources
    if append.expected_offset is not None:
        head["expected"] = append.expected_offset
    if (identity := append.identity) is not None:
        request, producer, numbers = identity.request, identity.producer, identity.numbers
        head["identity"] = {
            "ids": [message_id.hex() for message_id in identity.message_ids],
            "request": request and [request.request_id.hex(), request.fingerprint.hex(), list(request.request_indexes)],
            "producer": producer and [producer.producer_id.hex(), producer.sequence],
            "numbers": numbers and [numbers.producer_id.hex(), numbers.epoch, numbers.first, numbers.record_count],
        }
    return head


def append_parts(append: Append) -> list[Buffer]:
    """What of an append is behind the heads: its batch, and the names of light queues."""
    return [append.batch] if append.light is None else [append.batch, append.light.block]


def append_of(head: Head, batches: Batches) -> Append:
    """The append of a head, its parts taken. Raises ValueError, TypeError, KeyError."""
    identity: Identity | None = None
    if (fields := head.get("identity")) is not None:
        request, producer, numbers = fields["request"], fields["producer"], fields["numbers"]
        identity = Identity(
            message_ids=[bytes.fromhex(message_id) for message_id in fields["ids"]],
            request=request and RequestPart(bytes.fromhex(request[0]), bytes.fromhex(request[1]), request[2]),
            producer=producer and ProducerSequence(bytes.fromhex(producer[0]), producer[1]),
            numbers=numbers and RecordNumbers(bytes.fromhex(numbers[0]), *numbers[1:]),
        )
    return Append(
        queue=QueueKey(*head["queue"]),
        batch=batches.view(head["size"]),
        record_count=head["count"],
        json_values=head.get("json", False),
        tag_hashes=head.get("tags", ()),
        delays=[Delay(*delay) for delay in head.get("delays", ())],
        sources=[Source(*source) for source in head.get("sources", ())],
        identity=identity,
        expected_offset=head.get("expected"),
        light=LightNames(batches.take(head["light"])) if "light" in head else None,
    )


def appended_of(fields: Sequence[int]) -> Appended:
    """Where a batch was stored, of its JSON."""
    position, base_offset, store_time_ms, acks = fields
    return Appended(position, base_offset, store_time_ms, Acks(acks))


# ---- reads ---------------------------------------------------------------------------------------------------------


def read_message(result: ReadResult) -> Message:
    """The message of what a read found: all of one queue."""
    head: Head = {
        "status": result.status.value,
        "min": result.min_offset,
        "max": result.max_offset,
        "next": result.next_offset,
    }
    return _with_entries(head, result.entries)


def _with_entries(head: Head, entries: Sequence[Entry]) -> Message:
    """A message with entries of one queue. What made them recognisable as repeats, and delays, stay behind. An entry is
    a row, as a read may find hundreds of small ones; the names of light queues are behind all batches."""
    light = {number: entry.light.block for number, entry in enumerate(entries) if entry.light is not None}
    head |= {
        "queue": entries[0].queue if entries else None,
        "topic": entries[0].topic if entries else None,
        "rows": [
            (
                entry.position, entry.size, entry.base_offset, entry.record_count, entry.store_time_ms,
                entry.json_values, len(entry.batch), list(entry.tag_hashes) if entry.tag_hashes else None,
                list(entry.sources) if entry.sources else None,
            )
            for entry in entries
        ],
    }  # fmt: skip
    if light:
        head["light"] = [(number, len(block)) for number, block in light.items()]
    return pack(head, [*(entry.batch for entry in entries), *light.values()])


def read_result(head: Head, rest: memoryview) -> ReadResult:
    """What a read found, of its message. Raises ValueError, TypeError, KeyError."""
    entries = _entries_of(head, rest)
    return ReadResult(ReadStatus(head["status"]), entries, head["min"], head["max"], head["next"])


def light_message(read: LightRead) -> Message:
    """The message of records of a light queue."""
    entries = {record.entry.position: record.entry for record in read.records}
    numbers = {position: number for number, position in enumerate(entries)}
    rows = [(record.offset, numbers[record.entry.position], record.record_index) for record in read.records]
    return _with_entries({"max": read.max_offset, "next": read.next_offset, "records": rows}, list(entries.values()))


def light_read(head: Head, rest: memoryview) -> LightRead:
    """Records of a light queue, of their message. Raises ValueError, TypeError, KeyError."""
    entries = _entries_of(head, rest)
    records = [LightRecord(offset, entries[number], index) for offset, number, index in head["records"]]
    return LightRead(records, head["max"], head["next"])


def _entries_of(head: Head, rest: memoryview) -> list[Entry]:
    batches = Batches(rest)
    entries: list[Entry] = []
    if rows := head["rows"]:
        queue, topic = QueueKey(*head["queue"]), head["topic"]
        for position, size, base_offset, record_count, store_time_ms, json_values, batch_bytes, tags, sources in rows:
            entries.append(
                Entry(
                    position=position,
                    size=size,
                    queue=queue,
                    topic=topic,
                    base_offset=base_offset,
                    record_count=record_count,
                    store_time_ms=store_time_ms,
                    json_values=json_values,
                    batch=batches.take(batch_bytes),
                    tag_hashes=tags or (),
                    sources=[Source(*source) for source in sources] if sources else (),
                )
            )
        for number, size in head.get("light", ()):
            entries[number].light = LightNames(batches.take(size))
    return entries


# ---- errors --------------------------------------------------------------------------------------------------------


def _original_fields(original: Original) -> list[object]:
    return list(original)


def _original(fields: Sequence[Any]) -> Original:
    queue, offset, position, store_time_ms, schedule, *is_moved = fields  # nodes before 0.3 say nothing of moves
    return Original(QueueKey(*queue), offset, position, store_time_ms, schedule and ScheduleKey(*schedule), *is_moved)


def _indexed(pairs: Iterable[tuple[int, Any]]) -> list[list[Any]]:
    return [[index, value] for index, value in pairs]


_SPECIAL: dict[type[StoreError], tuple[Callable[[Any], list[Any]], Callable[[list[Any]], StoreError]]] = {
    AlreadyStored: (
        lambda error: [_indexed((i, _original_fields(o)) for i, o in found.items()) for found in error.originals],
        lambda args: AlreadyStored([{index: _original(fields) for index, fields in found} for found in args]),
    ),
    OffsetMoved: (
        lambda error: [error.expected_offset, error.next_offset],
        lambda args: OffsetMoved(*args),
    ),
    TooManyIds: (
        lambda error: [str(error), error.retry_after_ms],
        lambda args: TooManyIds(*args),
    ),
    BrokerRefuses: (
        lambda error: [str(error), error.code],
        lambda args: BrokerRefuses(*args),
    ),
    Corrupt: (
        lambda error: [error.path, error.position, error.reason],
        lambda args: Corrupt(*args),
    ),
    ScheduleKeyTaken: (
        lambda error: [_indexed(error.taken.items())],
        lambda args: ScheduleKeyTaken({index: taken and ScheduleId(*taken) for index, taken in args[0]}),
    ),
}
"""Errors that say more than a text."""

_PLAIN: dict[str, type[StoreError]] = {
    error.__name__: error
    for error in (*vars(store_errors).values(), TooManySchedules, TimerBusy, AnswerLost)
    if isinstance(error, type) and issubclass(error, StoreError) and error not in _SPECIAL
}


def error_head(error: StoreError) -> Head:
    """The JSON of an error; of one that is not the store's or the timer's own, that of its nearest ancestor that is."""
    for cls in type(error).__mro__:
        if cls in _SPECIAL:
            return {"error": cls.__name__, "args": _SPECIAL[cls][0](error)}
        if cls.__name__ in _PLAIN:
            return {"error": cls.__name__, "args": [str(error)]}
    raise TypeError(f"{type(error).__name__} is no error of the store")


def error_of(head: Head) -> StoreError:
    """The error of its JSON; a plain StoreError for one that only a newer node knows. Raises ValueError, TypeError,
    KeyError."""
    name, args = head["error"], head["args"]
    for cls, (_, make) in _SPECIAL.items():
        if cls.__name__ == name:
            return make(args)
    return _PLAIN.get(name, StoreError)(*args)


def malformed(error: Exception) -> MalformedBatch:
    """What is answered for a message that is not understood."""
    return MalformedBatch(f"a request of a node is not understood: {error!r}")
