"""Frames of the protocol `mq.v1.json` (docs/websocket.md). Pure.

Text is a JSON object; a binary frame is a JSON header and raw bytes:

    header_len u32 big-endian | header (JSON, UTF-8) | payload

One struct names every field that a frame of the server may have, so a frame is read in one pass by msgspec in C,
messages and receipts included; fields that are not named here are passed over. The payload of a `messages` frame holds
key, value, key, value, … end to end, each as long as its message says.
"""

from __future__ import annotations

from collections.abc import Sequence
from struct import Struct
from typing import Any

import msgspec

from mq.errors import Refused, Undecodable
from mq.message import Message, Receipt

_HEADER_LEN = Struct(">I")


class Result(msgspec.Struct):
    """What became of one receipt or partition."""

    ok: bool = False
    new_receipt: str | None = None
    error_code: int = 500
    error: str = "refused"


class State(msgspec.Struct):
    """What a resumed session has of a subscription."""

    mode: str = "reader"
    seq: int = 0
    partitions: dict[str, list[int]] = {}
    cursor: str = ""
    credit: int = 0
    paused: bool = False


class Limits(msgspec.Struct):
    """What the server takes."""

    max_frame: int = 1024 * 1024
    max_credit: int = 10_000
    max_records: int = 10_000


class Frame(msgspec.Struct):
    """A frame of the server: an answer (it has an `id`), or a push. `payload`: what follows a binary frame's header."""

    id: int | None = None
    ok: bool = False
    op: str | None = None
    sub: str | None = None

    seq: int = 0
    messages: list[Message[Any]] = []
    size_bytes: int = msgspec.field(name="bytes", default=0)
    topic: str = ""
    partition: int = 0
    offset: int = 0
    next_offset: int = 0
    count: int = 0

    offsets: list[Receipt] = []
    acks: str = "flushed"
    results: list[Result] = []

    partitions: dict[str, list[int]] = {}
    epochs: dict[str, str] | None = None
    cursor: str = ""
    lost: bool = False
    drain_ms: int = 10_000

    session: str | None = None
    resumed: bool = False
    ping_ms: int = 25_000
    grace_ms: int = 15_000
    limits: Limits | None = None
    subs: dict[str, State] = {}
    ended: dict[str, dict[str, Any]] = {}
    reconnect_after_ms: int = 0
    ts: int = 0

    error_code: int = 500
    message: str = "refused"
    retriable: bool = False
    details: Any = None
    validation_errors: list[str] = []
    retry_after_ms: int | None = None

    payload: bytes = msgspec.field(name="_payload", default=b"")

    def refusal(self) -> Refused:
        """The error that a frame with `error_code` stands for."""
        return Refused(
            self.message,
            self.error_code,
            retriable=self.retriable,
            details=self.details,
            validation_errors=tuple(self.validation_errors),
            retry_after_ms=self.retry_after_ms,
        )


_decoder = msgspec.json.Decoder(Frame)
_encoder = msgspec.json.Encoder()


def read_text(data: bytes | str) -> Frame:
    """A text frame. Raises Undecodable."""
    try:
        return _decoder.decode(data)
    except (msgspec.MsgspecError, RecursionError, UnicodeDecodeError) as error:
        raise Undecodable(f"a frame that is not understood: {error}") from None


def read_binary(data: bytes) -> Frame:
    """A binary frame, keys and values given to its messages. Raises Undecodable."""
    if len(data) < _HEADER_LEN.size:
        raise Undecodable("a binary frame without a header")
    end = _HEADER_LEN.size + _HEADER_LEN.unpack_from(data)[0]
    if end > len(data):
        raise Undecodable("a binary frame that ends within its header")
    frame = read_text(data[_HEADER_LEN.size : end])
    if frame.messages:
        _hand_out(frame.messages, data, end)
    else:
        frame.payload = data[end:]
    return frame


def _hand_out(messages: list[Message[Any]], data: bytes, at: int) -> None:
    """Cut the payload, which begins `at`, into keys and values. This is the loop of the receiving hot path: 0.3 us
    each."""
    for message in messages:
        length = message.key_len
        if length is not None:
            message.key_bytes = data[at : (at := at + length)]
        length = message.value_len
        if length is not None:
            message.value_bytes = data[at : (at := at + length)]
    if at != len(data):
        raise Undecodable("a payload that is not as long as its keys and values")


def write_text(fields: dict[str, object]) -> bytes:
    """A command."""
    return _encoder.encode(fields)


def write_binary(header: bytes, parts: Sequence[bytes]) -> bytes:
    """A binary frame; `parts` follow the header end to end."""
    return b"".join((_HEADER_LEN.pack(len(header)), header, *parts))
