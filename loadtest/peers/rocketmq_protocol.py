"""RocketMQ's remoting protocol, as much as replaying one batch and pulling raw bytes needs. Pure.

Format (RocketMQ, RemotingCommand with JSON headers), big-endian:

    i32 length of what follows | i8 0: JSON | u24 length of the header | header | body

    header    {"code", "flag", "opaque", "extFields": {name: text}, ...}; code 0 of an answer: done
    batch     messages end to end: i32 size | i32 0 | i32 0 | i32 flag | i32 length, value | i16 length, properties
    property  name 0x01 value 0x02
"""

from __future__ import annotations

import re
import struct
from collections.abc import Sequence

import orjson

from loadtest.peers.peer import WorkFailed
from loadtest.peers.replay import Fetched
from store.types import Buffer

_SEND_BATCH, _PULL = 320, 11
_HAS_SUBSCRIPTION = 4
_GROUP = "scoreboard"

_LENGTH = struct.Struct(">i")
_LENGTHS = struct.Struct(">ii")
_MESSAGE = struct.Struct(">iiiii")
_SHORT = struct.Struct(">h")
_CODE = re.compile(rb'"code":(\d+)')
_NEXT = re.compile(rb'"nextBeginOffset":"(\d+)"')


def send_batch(topic: str, values: Sequence[bytes], now_ms: int) -> bytes:
    """A request to append messages to queue 0, as the Java client writes them, each with an id of its own."""
    fields = {"a": _GROUP, "b": topic, "c": "TBW102", "d": 1, "e": 0, "f": 0, "g": now_ms, "h": 0, "i": "", "j": 0}
    body = b"".join(_message(number, value) for number, value in enumerate(values))
    return _request(_SEND_BATCH, {**fields, "k": "false", "m": "true"}, body)


def sent_bytes(buffer: Buffer) -> int:
    """How many bytes of the buffer are the whole answer to one `send_batch`; 0 when it is not whole.

    Raises WorkFailed when it says that the messages were not stored, or not synced as they are to be.
    """
    size = _answer_bytes(buffer)
    if size:
        _header(buffer)
    return size


def pull(topic: str, offset: int, messages_max: int) -> bytes:
    """A request for so many messages of queue 0."""
    fields = {"consumerGroup": _GROUP, "topic": topic, "queueId": 0, "queueOffset": offset, "maxMsgNums": messages_max}
    options = {"sysFlag": _HAS_SUBSCRIPTION, "commitOffset": 0, "suspendTimeoutMillis": 0, "subscription": "*"}
    return _request(_PULL, {**fields, **options, "subVersion": 0, "expressionType": "TAG"}, b"")


def pulled(buffer: Buffer) -> Fetched | None:
    """What answers one `pull`, None when it is not whole. Messages are not read. Raises WorkFailed."""
    size = _answer_bytes(buffer)
    if not size:
        return None
    found = _NEXT.search(_header(buffer))
    if found is None:
        raise WorkFailed("an answer to a pull has no next offset")
    return Fetched(size, int(found[1]))


def _header(answer: Buffer) -> bytes:
    """Of a whole answer. Raises WorkFailed when it is an error."""
    _, header_size = _LENGTHS.unpack_from(answer)
    header = bytes(memoryview(answer)[_LENGTHS.size : _LENGTHS.size + header_size])
    code = _CODE.search(header)
    if code is None or code[1] != b"0":
        raise WorkFailed(f"the broker answered {header[:300].decode(errors='replace')}")
    return header


def _answer_bytes(buffer: Buffer) -> int:
    if len(buffer) < _LENGTH.size:
        return 0
    size: int = _LENGTH.unpack_from(buffer)[0] + _LENGTH.size
    return size if len(buffer) >= size else 0


def _request(code: int, fields: dict[str, object], body: bytes) -> bytes:
    texts = {name: str(value) for name, value in fields.items()}
    header = {"code": code, "flag": 0, "opaque": 1, "language": "OTHER", "version": 0, "extFields": texts}
    encoded = orjson.dumps({**header, "serializeTypeCurrentRPC": "JSON"})
    return _LENGTHS.pack(_LENGTH.size + len(encoded) + len(body), len(encoded)) + encoded + body


def _message(number: int, value: bytes) -> bytes:
    properties = b"UNIQ_KEY\x01%032X\x02WAIT\x01true\x02" % number
    size = _MESSAGE.size + len(value) + _SHORT.size + len(properties)
    return _MESSAGE.pack(size, 0, 0, 0, len(value)) + value + _SHORT.pack(len(properties)) + properties
