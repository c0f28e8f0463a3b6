"""The commands of a socket, as values: what a client can ask for. Pure.

`parse.py` makes them of frames, `conversation.py` does them. Most are the structs of `gateway/api/shapes/commands.py`
as they come; here are those whose fields mean something together. The table of ops and their fields is in
docs/websocket.md; `PERMISSIONS` has every op.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from typing import NamedTuple

from gateway.api.shapes.commands import (
    Auth,
    Extend,
    Hello,
    Nack,
    Pause,
    Permit,
    Ping,
    Reject,
    Release,
    Resume,
    Seen,
    Unsubscribe,
)
from gateway.auth.access import Permission
from gateway.codec.filters import TagFilter
from gateway.codec.records import Format
from store.types import Acks


class Mode(Enum):
    """How records are consumed."""

    READER = "reader"
    STREAM = "stream"
    QUEUE = "queue"


class Form(Enum):
    """What the frames of a subscription look like."""

    JSON = "json"
    BINARY = "binary"
    BATCH = "batch"


class From(Enum):
    """Starting positions that need no number."""

    EARLIEST = "earliest"
    LATEST = "latest"


class FromTime(NamedTuple):
    """Start at the first record stored at or after this time."""

    timestamp_ms: int


class FromOffsets(NamedTuple):
    """Start at these offsets: topic -> partition -> next offset."""

    offsets: Mapping[str, Mapping[int, int]]


Start = From | FromTime | FromOffsets


class UpTo(NamedTuple):
    """Everything of a partition up to, not including, `next_offset` is done."""

    topic: str
    partition: int
    next_offset: int


@dataclass(frozen=True, slots=True)
class Produce:
    """Store records. `records` is checked by the codec that every surface shares. `format` None: raw batches."""

    id: int | None
    topic: str
    records: object
    partition: int | None
    format: Format | None
    acks: Acks | None
    ack: bool
    idempotency_key: str | None = None


@dataclass(frozen=True, slots=True)
class Subscribe:
    """Read topics as far as credit goes. `credit` None: the default; `credit_bytes` None: no limit; `start` None: not
    given; `form` None: what hello agreed on. `queue`: of the topics, only what is in this light queue, or, with `*`
    behind it, in those whose names begin so."""

    id: int | None
    sub: str
    topics: tuple[str, ...]
    pattern: str | None
    queue: str | None
    mode: Mode
    group: str | None
    member: str | None
    start: Start | None
    epochs: Mapping[str, str]
    filter: TagFilter | None
    form: Form | None
    credit: int | None
    credit_bytes: int | None
    auto_credit: bool
    auto_ack: bool
    invisible_ms: int | None
    batch: int
    room: str


@dataclass(frozen=True, slots=True)
class Ack:
    """Done with these. One of the two is empty."""

    id: int | None
    sub: str
    receipts: tuple[str, ...]
    up_to: tuple[UpTo, ...]


Settle = Ack | Nack | Reject | Extend


@dataclass(frozen=True, slots=True)
class Seek:
    """Go on elsewhere."""

    id: int | None
    sub: str
    to: Start


Command = (
    Hello | Auth | Produce | Subscribe | Ack | Nack | Reject | Extend | Release | Seek | Permit | Pause | Resume
    | Unsubscribe | Seen | Ping
)  # fmt: skip

PERMISSIONS: dict[str, Permission | None] = {
    "hello": None,
    "auth": None,
    "produce": Permission.SEND,  # topic
    "subscribe": Permission.RECEIVE,  # topics and group
    "ack": Permission.RECEIVE,  # the subscription's group
    "nack": Permission.RECEIVE,
    "reject": Permission.RECEIVE,
    "extend": Permission.RECEIVE,
    "release": Permission.RECEIVE,
    "seek": Permission.RECEIVE,  # the subscription's topics and group
    "permit": None,  # what follows concerns a subscription that was allowed
    "pause": None,
    "resume": None,
    "unsubscribe": None,
    "seen": None,
    "ping": None,
}
"""What each op asks for. Of the ops without a right none shows or changes a record."""
