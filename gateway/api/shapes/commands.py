"""Commands of a socket, as they come: one struct an op. What an op may do is in `gateway/surfaces/ws/commands.py`.

Where a command is what it says, its struct is what the socket works with; `subscribe`, `ack`, `seek` and `produce`
have a form of their own there, made by `gateway/surfaces/ws/parse.py`.
"""

from __future__ import annotations

from typing import Annotated, Literal

from msgspec import Meta, field

from gateway.api.shapes.base import PartitionNumber, Shape, chars, judged, one_of, whole
from gateway.api.shapes.groups import DelayMs, InvisibleMs, Place, Reason, Receipts
from gateway.api.shapes.schema import Schema
from gateway.codec.times import TIME_MS_MAX
from gateway.errors import DELAY_ILLEGAL, INVALID, LIMIT_ILLEGAL
from gateway.groups.machines.subscription import TOPICS_MAX
from gateway.groups.protocol import RECEIVE_MESSAGES_MAX
from gateway.settings.limits import IDEMPOTENCY_KEY_BYTES_MAX
from store.limits import LIGHT_NAME_BYTES_MAX
from store.types import OFFSET_MAX

ID_MAX = 2**53 - 1
"""Largest command id: the largest integer every JSON parser keeps exact."""

BATCH_MAX = RECEIVE_MESSAGES_MAX
SUB_CHARS_MAX = 64
UP_TO_MAX = 4096
NAME_CHARS_MAX = 249
"""Topics and groups."""

MEMBER_CHARS_MAX = 255
ROOM_CHARS_MAX = 100
TOKEN_CHARS_MAX = 16_384
FILTER_CHARS_MAX = 16_384
CLIENT_CHARS_MAX = 256

_OFFSET: Schema = {"type": "integer", "minimum": 0, "maximum": OFFSET_MAX}
_CURSOR: Schema = {"type": "string", "description": "Next offsets: `orders:0=101;orders:1=88`."}
_BY_TOPIC: Schema = {"type": "object", "additionalProperties": {"type": "object", "additionalProperties": _OFFSET}}
_AT_TIME: Schema = {
    "type": "object",
    "properties": {"timestamp": {"type": "integer", "minimum": 0, "maximum": TIME_MS_MAX}},
    "required": ["timestamp"],
    "additionalProperties": False,
}
_START: Schema = {"anyOf": [{"type": "string", "enum": ["earliest", "latest"]}, _CURSOR, _AT_TIME, _BY_TOPIC]}
_RECORDS: Schema = {
    "anyOf": [
        *(
            {"type": "array", "items": {"$ref": f"#/components/schemas/{form}Record"}}
            for form in ("Json", "Binary", "Text")
        ),
        {"type": "null"},
    ],
    "description": "As of `POST /topics/{topic}`; in binary frames with key_len and value_len.",
}


def _start(said: str) -> Schema:
    return {"anyOf": [_START, {"type": "null"}], "description": said}


RecordFormat = Annotated[Literal["json", "binary", "text", "batch"], one_of("json", "binary", "text", "batch")]
AcksName = Annotated[Literal["written", "flushed"], one_of("written", "flushed")]
ModeName = Annotated[Literal["reader", "stream", "queue"], one_of("reader", "stream", "queue")]
FormName = Annotated[Literal["json", "binary", "batch"], one_of("json", "binary", "batch")]
Seq = Annotated[int, whole(0, OFFSET_MAX)]
Sub = Annotated[str, chars(SUB_CHARS_MAX, "The subscription's name.")]
LongName = Annotated[str, chars(NAME_CHARS_MAX)]
Token = Annotated[str, chars(TOKEN_CHARS_MAX)]
ClientText = Annotated[str, chars(CLIENT_CHARS_MAX)]
Cursor = Annotated[str, chars(2**20, "Next offsets: `orders:0=101;orders:1=88`.")]
Credit = Annotated[int, whole(0, OFFSET_MAX)]


class Command(Shape, kw_only=True):
    """What every command has."""

    codes = {"id": INVALID}

    op: str
    id: Annotated[int, whole(0, ID_MAX, "Echoed by the answer. Without it there is none.")] | None = None


class OfSubscription(Command, kw_only=True):
    """A command about one subscription."""

    sub: Sub


class Hello(Command, kw_only=True):
    """Who one is, and what one understands. `resume` and `seen` take up a session that lost its connection."""

    codes = {**Command.codes, "seen": INVALID}

    client: ClientText | None = None
    binary: Annotated[bool | None, Meta(description="Binary frames may be sent, both ways.")] = None
    token: Token | None = None
    resume: Annotated[str, chars(CLIENT_CHARS_MAX, "The `session` of a connection that was lost.")] | None = None
    seen: Annotated[
        dict[str, Seq] | None, Meta(description="By subscription, the `seq` of the last frame taken in.")
    ] = None


class Auth(Command, kw_only=True):
    """Go on with a new token."""

    token: Token


class ProduceCommand(Command, kw_only=True):
    """Store records, which the codec judges."""

    codes = {**Command.codes, "partition": INVALID}

    topic: LongName
    records: Annotated[object, judged(_RECORDS)] = None
    partition: Annotated[int, whole(0, 2**31 - 1)] | None = None
    format: Annotated[RecordFormat | None, Meta(description="Of keys and values; json.")] = None
    acks: AcksName | None = None
    ack: Annotated[bool | None, Meta(description="false: no answer, unless it is refused.")] = None
    idempotency_key: (
        Annotated[str, chars(IDEMPOTENCY_KEY_BYTES_MAX, "By what a repeat of this command is recognised.")] | None
    ) = None


class SubscribeCommand(OfSubscription, kw_only=True):
    """Receive records."""

    codes = {**Command.codes, "credit": LIMIT_ILLEGAL, "credit_bytes": LIMIT_ILLEGAL, "batch": LIMIT_ILLEGAL}

    topics: Annotated[list[str], Meta(min_length=1, max_length=TOPICS_MAX)] | None = None
    pattern: (
        Annotated[str, chars(NAME_CHARS_MAX, "A regular expression over topic names, instead of `topics`.")] | None
    ) = None
    queue: (
        Annotated[
            str, chars(LIGHT_NAME_BYTES_MAX + 1, "A light queue of the topics, or `room/*`: all whose names begin so.")
        ]
        | None
    ) = None
    mode: ModeName | None = None
    group: LongName | None = None
    member: Annotated[str, chars(MEMBER_CHARS_MAX)] | None = None
    room: Annotated[str, chars(ROOM_CHARS_MAX, "The machine room that the member stands in.")] | None = None
    from_: Annotated[object, judged(_start("Where a reader begins; latest."))] = field(name="from", default=None)
    start: Annotated[
        object,
        judged(
            _start("Where a group begins that has never been there; latest in stream mode, earliest in queue mode.")
        ),
    ] = None
    epochs: dict[str, str] | None = None
    filter: Annotated[str, chars(FILTER_CHARS_MAX)] | None = None
    format: FormName | None = None
    credit: Credit | None = None
    credit_bytes: Credit | None = None
    auto_credit: bool | None = None
    auto_ack: bool | None = None
    invisible_ms: InvisibleMs | None = None
    batch: Annotated[int, whole(1, BATCH_MAX)] | None = None


class AckCommand(OfSubscription, kw_only=True):
    """Done with these: one of receipts, up_to and cursor."""

    codes = {**Command.codes, "up_to": INVALID}

    receipts: Receipts | None = None
    up_to: Annotated[list[Place], Meta(min_length=1, max_length=UP_TO_MAX)] | None = None
    cursor: Cursor | None = None


class Nack(OfSubscription, kw_only=True):
    """Not done: hand them out again after `delay_ms`, or the group's back-off."""

    codes = {**Command.codes, "delay_ms": DELAY_ILLEGAL}

    receipts: Receipts
    delay_ms: DelayMs | None = None
    reason: Reason | None = None


class Reject(OfSubscription, kw_only=True):
    """Never again."""

    receipts: Receipts
    reason: Reason | None = None


class Extend(OfSubscription, kw_only=True):
    """Keep them longer; without `invisible_ms`, as long as the first time."""

    receipts: Receipts
    invisible_ms: InvisibleMs | None = None


class Release(OfSubscription, kw_only=True):
    """Give up revoked partitions: nothing more of them is acked."""

    codes = {**Command.codes, "partitions": INVALID}

    partitions: Annotated[dict[str, list[PartitionNumber]], Meta(min_length=1)]


class SeekCommand(OfSubscription, kw_only=True):
    """Go on elsewhere."""

    to: Annotated[object, judged(_START)]


class Permit(OfSubscription, kw_only=True):
    """Add credit to a subscription."""

    codes = {**Command.codes, "messages": LIMIT_ILLEGAL, "bytes": LIMIT_ILLEGAL}

    messages: Credit | None = None
    bytes: Credit | None = None


class Pause(OfSubscription, kw_only=True):
    """Push nothing until `resume`."""


class Resume(OfSubscription, kw_only=True):
    """Push again."""


class Unsubscribe(OfSubscription, kw_only=True):
    """End a subscription."""


class Seen(Command, kw_only=True):
    """The last frame of each subscription that the client has taken in."""

    codes = {**Command.codes, "subs": INVALID}

    subs: dict[str, Seq]


class Ping(Command, kw_only=True):
    """Are you there?"""


COMMANDS: dict[str, type[Command]] = {
    "hello": Hello,
    "auth": Auth,
    "produce": ProduceCommand,
    "subscribe": SubscribeCommand,
    "ack": AckCommand,
    "nack": Nack,
    "reject": Reject,
    "extend": Extend,
    "release": Release,
    "seek": SeekCommand,
    "permit": Permit,
    "pause": Pause,
    "resume": Resume,
    "unsubscribe": Unsubscribe,
    "seen": Seen,
    "ping": Ping,
}
"""Every op."""
