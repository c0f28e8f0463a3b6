"""One message, and how its consumer says what became of it.

A message is decoded straight from its frame: its fields are the protocol's, and the names below with an underscore are
filled in afterwards, frame by frame (mq/frames.py). Its value is decoded when it is first asked for.
"""

from __future__ import annotations

from base64 import b64decode
from collections.abc import Awaitable
from datetime import datetime
from typing import Annotated, Any, Generic, Protocol, TypeVar

import msgspec

from mq.errors import MqError
from mq.values import Body, Duration, instant, lenient, milliseconds, text_or_bytes

T = TypeVar("T")

_UNDECODED: Any = object()


class Receipt(msgspec.Struct, frozen=True):
    """What a stored record is known by."""

    partition: int | None = None
    offset: int | None = None
    """None while the record is scheduled."""
    schedule_id: str | None = None
    """Of a delayed record: what `client.schedules` takes."""
    deliver_at_ms: int | None = msgspec.field(name="deliver_at", default=None)
    """Of a delayed record: when it is due, epoch ms."""
    duplicate: bool = False
    """An earlier send has stored the record, and this is where."""
    record_count: int = 1
    """Of a raw batch: its records have the offsets from `offset` on."""
    acks: str = "flushed"
    """The durability reached: "flushed" (on disk) or "written" (survives a kill of the server, not a power failure)."""

    @property
    def deliver_at(self) -> datetime | None:
        """When the delayed record is due."""
        return None if self.deliver_at_ms is None else instant(self.deliver_at_ms)


class Source(Protocol):
    """What a message needs of the subscription that it came from."""

    def decode(self, body: Body) -> Any:
        """The value. Raises Undecodable."""
        ...

    def settle(self, op: str, message: Message[Any], fields: dict[str, object]) -> Awaitable[None]:
        """Send ack, nack, reject or extend; the awaitable ends when it is durable."""
        ...


class _Header(msgspec.Struct):
    key: str
    value: str | None = None


class Message(msgspec.Struct, Generic[T], eq=False):
    """A record as its consumer gets it."""

    topic: str
    partition: int
    offset: int
    timestamp_ms: int = msgspec.field(name="timestamp", default=0)
    """Event time, epoch ms."""
    store_timestamp_ms: int = msgspec.field(name="store_timestamp", default=0)
    """When the server stored it, epoch ms."""
    tag: str | None = None
    deliver_at_ms: int | None = msgspec.field(name="deliver_at", default=None)
    """Of a delayed message: when it was due, epoch ms."""
    schedule_id: str | None = None
    schedule_key: str | None = None
    message_group: str | None = None
    queue: str | None = None
    """Of an inbox: the light queue it came from."""
    queue_offset: int | None = None
    """Of an inbox: its offset there; `offset` is the partition's."""
    queues: list[str] = []
    """Of `room/*`: the light queues it is in whose names match."""
    attempt: int = 1
    """Which delivery this is, from 1; always 1 outside of queue mode."""
    receipt: str | None = None
    """Queue mode: what settles this delivery. Extending a lease renews it."""
    visible_until_ms: int | None = msgspec.field(name="visible_until", default=None)
    """Queue mode: when the lease ends, epoch ms by the server's clock. Extending a lease renews it."""
    wire_headers: list[_Header] | None = msgspec.field(name="headers", default=None)
    key_bytes: bytes | None = msgspec.field(name="_key", default=None)
    value_bytes: Body = msgspec.field(name="_value", default=None)
    """The body as it was sent."""
    is_lost: bool = msgspec.field(name="_lost", default=False)
    """Queue mode: the lease is known to be over; the message is another worker's."""
    is_settled: bool = msgspec.field(name="_settled", default=False)
    key_len: Annotated[int, msgspec.Meta(ge=0)] | None = None
    value_len: Annotated[int, msgspec.Meta(ge=0)] | None = None
    raw_key: bool = False
    _source: Any = None
    _decoded: Any = _UNDECODED

    def __repr__(self) -> str:
        held = "" if self.receipt is None else f", attempt={self.attempt}"
        return f"Message({self.id}, key={self.key!r}, value_bytes={self.value_bytes!r}{held})"

    @property
    def value(self) -> T:
        """The body as the type asked for; without one: JSON, else text, else bytes; None for a tombstone.

        Raises Undecodable.
        """
        value = self._decoded
        if value is _UNDECODED:
            source = self._source
            decoded = lenient(self.value_bytes) if source is None else source.decode(self.value_bytes)
            value = self._decoded = decoded
        return value  # type: ignore[no-any-return]

    @property
    def key(self) -> Any:
        """The key: text, else bytes; None without one. In a topic with JSON keys: what the JSON says."""
        if self.key_bytes is None:
            return None
        return text_or_bytes(self.key_bytes) if self.raw_key else lenient(self.key_bytes)

    @property
    def id(self) -> str:
        """Where the record is stored: topic, partition and offset. The same for each delivery."""
        return f"{self.topic}:{self.partition}:{self.offset}"

    @property
    def place(self) -> int:
        """What counts for its subscription: its offset in what is read."""
        return self.offset if self.queue_offset is None else self.queue_offset

    @property
    def headers(self) -> dict[str, str | bytes | None]:
        """The headers by name: text where it is UTF-8, else bytes."""
        return {
            header.key: None if header.value is None else text_or_bytes(b64decode(header.value))
            for header in self.wire_headers or ()
        }

    @property
    def timestamp(self) -> datetime:
        """Event time."""
        return instant(self.timestamp_ms)

    @property
    def deliver_at(self) -> datetime | None:
        """Of a delayed message: when it was due."""
        return None if self.deliver_at_ms is None else instant(self.deliver_at_ms)

    def ack(self) -> Awaitable[None]:
        """Done with it. Queue mode: the awaitable ends when that is durable, and raises LeaseLost if the lease was
        over; without awaiting it, the message comes again should the ack fail. Stream mode: the next commit covers the
        partition up to this message.
        """
        return self._settle("ack", {})

    def nack(self, delay: Duration | None = None, reason: str | None = None) -> Awaitable[None]:
        """Queue mode: not done; deliver it again after `delay`, or after the group's back-off."""
        return self._settle("nack", _given(delay_ms=delay, reason=reason))

    def reject(self, reason: str | None = None) -> Awaitable[None]:
        """Queue mode: never again; move it to the group's dead letters."""
        return self._settle("reject", _given(reason=reason))

    def extend(self, lease: Duration) -> Awaitable[None]:
        """Queue mode: keep it for this long from now. The client extends leases by itself; this is for longer ones."""
        return self._settle("extend", _given(invisible_ms=lease))

    def _settle(self, op: str, fields: dict[str, object]) -> Awaitable[None]:
        if self._source is None:
            raise MqError(f"{op}: this message came from no subscription")
        settled: Awaitable[None] = self._source.settle(op, self, fields)
        return settled


REASON_BYTES_MAX = 1024
"""The server's limit."""


def _given(
    *, delay_ms: Duration | None = None, invisible_ms: Duration | None = None, reason: str | None = None
) -> dict[str, object]:
    fields: dict[str, object] = {}
    if delay_ms is not None:
        fields["delay_ms"] = milliseconds(delay_ms, "delay")
    if invisible_ms is not None:
        fields["invisible_ms"] = milliseconds(invisible_ms, "lease")
    if reason is not None:
        fields["reason"] = reason.encode(errors="replace")[:REASON_BYTES_MAX].decode(errors="ignore")
    return fields
