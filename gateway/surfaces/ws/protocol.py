"""The words of the WebSocket protocol `mq.v1.json`, and the frames the server writes. Pure.

docs/websocket.md is the protocol; `gateway.surfaces.ws.commands` reads what clients say. Every text frame we send is
one JSON object: an answer echoes the `id` of its command, with `"ok": true|false`; what has no `id` is a push.

A binary frame (agreed on by `hello`) has a JSON header and raw bytes:

    0            4                  4 + header_len
    +------------+------------------+----------------
    | header_len | header (JSON)    | payload
    | u32 BE     |                  |
    +------------+------------------+----------------

A cursor names the next offset of partitions: `orders:0=101;orders:1=88`.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Iterable, Mapping, Sequence
from enum import IntEnum

import orjson

from gateway.codec import cursors
from gateway.errors import CURSOR_ILLEGAL, STALE_GENERATION, RequestError, bad_request

SUBPROTOCOL = "mq.v1.json"

TEXT, BINARY, PING = 0x1, 0x2, 0x9
"""Opcodes of frames."""

BATCH_DEFAULT = 256
CREDIT_DEFAULT = 1_000
"""Messages a subscription may be sent when its client does not say; less where the server's limit is lower."""

FRAME_BYTES_TARGET = 256 * 1024
"""A `messages` frame is closed before it would grow past this; one larger message goes alone."""

NO_SUCH_SUBSCRIPTION = 40450
ALREADY_SUBSCRIBED = 40960
CANNOT_RESUME = 40961
HELLO_ORDER = 40962
NOT_OWNER = STALE_GENERATION
EPOCH_CHANGED = 40953
TOO_MANY = 42950

_STORED = b'{"id":%d,"ok":true,"acks":"%b","offsets":[{"partition":%d,"offset":%d}]}'


class CloseCode(IntEnum):
    """Why the server ends a connection. Clients reconnect after 4000-4499 and must not after 4500-4999."""

    NORMAL = 1000
    UNSUPPORTED = 1003  # a binary frame, and hello did not agree on them
    TOO_LARGE = 1009
    INTERNAL = 1011
    SHUTDOWN = 4001
    NO_PONG = 4003
    AUTH_EXPIRED = 4005
    SLOW = 4008  # the send buffer stayed full for the write timeout
    TAKEN_OVER = 4009
    RATE_LIMITED = 4029
    BAD_FRAME = 4500
    UNAUTHORIZED = 4501
    FORBIDDEN = 4503
    LIMIT = 4504

    @property
    def keeps_session(self) -> bool:
        """Whether the client may come back and resume."""
        return 4000 <= self < 4500 and self is not CloseCode.SHUTDOWN


class BadFrame(Exception):
    """A frame that is no command at all (P2)."""


# ------------------------------------------------------------------------------------------------------- cursors

PARTITION_NUMBER = re.compile(r"0|[1-9][0-9]{0,8}")


def parse_cursor(cursor: str) -> dict[str, dict[int, int]]:
    """Topic -> partition -> next offset. Raises RequestError 400/40050; partitions may not repeat.

    A cursor with epochs is refused, so that none is ignored: sockets have a field of their own for them.
    """
    parsed = cursors.parse_cursor(cursor)
    if parsed.epochs:
        raise RequestError(CURSOR_ILLEGAL, "The cursor names epochs: say them in the field epochs, or leave them out.")
    return parsed.offsets


def cursor_of(next_offsets: Iterable[tuple[str, int, int]]) -> str:
    """The cursor of (topic, partition, next offset) triples."""
    return cursors.write_cursor(next_offsets, {})


# ---------------------------------------------------------------------------------------------- server to client


def reply(id_: int, fields: Mapping[str, object]) -> bytes:
    """The answer to a command that was done."""
    return orjson.dumps({"id": id_, "ok": True, **fields})


def stored_reply(id_: int, level: bytes, partition: int, offset: int) -> bytes:
    """`reply` to a produce of one record, with the fields that `sends.send` gives, as text. `level`: the name of the
    one that was reached."""
    return _STORED % (id_, level, partition, offset)


def refusal(id_: int, error: RequestError) -> bytes:
    """The answer to a command that was refused."""
    return orjson.dumps({"id": id_, "ok": False, **error_fields(error)})


def error_push(error: RequestError, *, sub: str | None = None) -> bytes:
    """Trouble that no command's answer can carry; with `sub`, the subscription it ends."""
    about = {} if sub is None else {"sub": sub}
    return orjson.dumps({"op": "error", **about, **error_fields(error)})


def error_fields(error: RequestError) -> dict[str, object]:
    """An error as a socket tells it; HTTP has a header for `retry_after_ms`."""
    fields = error.body()
    if error.retry_after_ms is not None:
        fields["retry_after_ms"] = error.retry_after_ms
    return fields


def messages_push(sub: str, seq: int, body: bytes, *, size_bytes: int, credit: int, credit_bytes: int | None) -> bytes:
    """A frame of messages that are encoded and joined already. `size_bytes`: what they cost of the byte credit; the
    others: what is left of it."""
    left = b"" if credit_bytes is None else b',"credit_bytes":%d' % credit_bytes
    return b'{"op":"messages","sub":%b,"seq":%d,"messages":[%b],"bytes":%d,"credit":%d%b}' % (
        orjson.dumps(sub), seq, body, size_bytes, credit, left,
    )  # fmt: skip


def batch_header(
    sub: str, seq: int, topic: str, partition: int, offset: int, next_offset: int, *,
    size_bytes: int, credit: int, credit_bytes: int | None,
) -> bytes:  # fmt: skip
    """The header of a `batch` frame: records from `offset` up to, not including, `next_offset`."""
    header: dict[str, object] = {
        "op": "batch",
        "sub": sub,
        "seq": seq,
        "topic": topic,
        "partition": partition,
        "offset": offset,
        "next_offset": next_offset,
        "count": next_offset - offset,
        "cursor": f"{topic}:{partition}={next_offset}",
        "bytes": size_bytes,
        "credit": credit,
    }
    if credit_bytes is not None:
        header["credit_bytes"] = credit_bytes
    return orjson.dumps(header)


def websocket_frame(opcode: int, payload: bytes) -> bytes:
    """One whole frame of a server, as RFC 6455 has it: neither masked nor compressed."""
    size, begin = len(payload), _FIN | opcode
    if size < _SIZE_U16:
        return bytes((begin, size)) + payload
    if size <= 0xFFFF:
        return _LONG.pack(begin, _SIZE_U16, size) + payload
    return _LONGEST.pack(begin, _SIZE_U64, size) + payload


def binary_frame(header: bytes, payload: bytes) -> bytes:
    """Header and payload as one binary frame."""
    return _HEADER_LEN.pack(len(header)) + header + payload


def split_binary(frame: bytes) -> tuple[dict[str, object], memoryview]:
    """The header and the payload of a binary frame. Raises BadFrame."""
    if len(frame) < _HEADER_LEN.size:
        raise BadFrame(f"A binary frame begins with 4 bytes of header length; this one has {len(frame)} in all.")
    (header_len,) = _HEADER_LEN.unpack_from(frame)
    end = _HEADER_LEN.size + header_len
    if end > len(frame):
        raise BadFrame(f"The header has {header_len} bytes by its length; the frame has {len(frame)} in all.")
    view = memoryview(frame)
    try:
        header = orjson.loads(view[_HEADER_LEN.size : end])
    except orjson.JSONDecodeError as error:
        raise BadFrame(f"The header is not JSON: {error}") from error
    if not isinstance(header, dict):
        raise BadFrame("The header of a binary frame is a JSON object.")
    return header, view[end:]


_HEADER_LEN = struct.Struct(">I")
_FIN, _SIZE_U16, _SIZE_U64 = 0x80, 126, 127
_LONG, _LONGEST = struct.Struct(">BBH"), struct.Struct(">BBQ")


def caught_up_push(sub: str, cursor: str) -> bytes:
    """Every partition of the subscription has reached its end once."""
    return orjson.dumps({"op": "caught_up", "sub": sub, "cursor": cursor})


def assigned_push(sub: str, generation: int | None, partitions: Partitions, cursor: str) -> bytes:
    """Messages of these partitions follow, from the cursor on."""
    about = {} if generation is None else {"generation": generation}
    return orjson.dumps({"op": "assigned", "sub": sub, **about, "partitions": partitions, "cursor": cursor})


def revoked_push(sub: str, generation: int | None, partitions: Partitions, drain_ms: int | None) -> bytes:
    """No message of these partitions follows. `drain_ms` None: they are another's already."""
    about: dict[str, object] = {} if generation is None else {"generation": generation}
    how: dict[str, object] = {"lost": True} if drain_ms is None else {"drain_ms": drain_ms}
    return orjson.dumps({"op": "revoked", "sub": sub, **about, "partitions": partitions, **how})


def auth_expiring_push(in_ms: int) -> bytes:
    """The caller's rights end then, unless `auth` brings new ones."""
    return orjson.dumps({"op": "auth_expiring", "in_ms": in_ms})


def goaway_push(reconnect_after_ms: int, session: str) -> bytes:
    """The server is about to close with SHUTDOWN."""
    return orjson.dumps(
        {"op": "goaway", "reason": "shutdown", "reconnect_after_ms": reconnect_after_ms, "resume": session}
    )


def pong(id_: int | None, now_ms: int) -> bytes:
    """The answer to a ping, with or without id."""
    about = {} if id_ is None else {"id": id_, "ok": True}
    return orjson.dumps({**about, "op": "pong", "ts": now_ms})


def bad_frame_push(error: BadFrame) -> bytes:
    """Sent before a connection is closed with BAD_FRAME."""
    return error_push(bad_request(str(error)))


Partitions = Mapping[str, Sequence[int]]
"""Topic -> partitions, as frames write them."""


def partitions_of(next_offsets: Iterable[tuple[str, int]]) -> dict[str, list[int]]:
    """(topic, partition) pairs as frames write them, in order."""
    by_topic: dict[str, list[int]] = {}
    for topic, partition in sorted(next_offsets):
        by_topic.setdefault(topic, []).append(partition)
    return by_topic
