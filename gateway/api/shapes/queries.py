"""Query parameters, one struct for each set of them, with how each is shown in the API document."""

from __future__ import annotations

from typing import Annotated, Literal

from msgspec import Meta, field

from gateway.api.shapes.base import TIME_TEXT_SCHEMA as TIME_TEXT
from gateway.api.shapes.base import OpenShape, Shape, at_time, judged, one_of, up_to, whole
from gateway.api.shapes.commands import BATCH_MAX
from gateway.api.shapes.schema import Schema
from gateway.api.shapes.topics import SELECTOR_SCHEMA
from gateway.codec.times import TIME_MS_MAX
from gateway.groups.machines.config import INVISIBLE_MS_MAX
from gateway.groups.machines.copies import GROUP_NAME_BYTES_MAX
from gateway.settings.limits import Limits
from store.limits import TOPIC_NAME_BYTES_MAX
from store.types import OFFSET_MAX, RECORD_OFFSET_MAX

PAGE_ROWS_DEFAULT, PAGE_ROWS_MAX = 100, 1000
"""Rows of one page of schedules, of messages with a key, of dead letters."""

BUCKETS_DEFAULT, BUCKETS_MAX = 60, 1000
STREAM_CREDIT_DEFAULT, STREAM_CREDIT_MAX = 100, 1_000
"""Records on lease to an event stream in a group at a time."""

LIST_ROWS_MAX = 200
"""Rows of one page of topics, groups, leases, lags, tokens, connections."""

CURSOR_CHARS_MAX = 1024

TOPIC_SORTS = ("name", "partitions", "records", "appended_bytes", "in_records_s", "in_bytes_s", "pending")

GROUP_SORTS = ("name", "lag", "dead", "in_flight", "members")

GROUP_NAME: Schema = {
    "type": "string",
    "minLength": 1,
    "maxLength": GROUP_NAME_BYTES_MAX,
    "pattern": "^[A-Za-z0-9._%-]+$",
}


def _text(said: str | None = None, **rules: object) -> Meta:
    """A text that its reader judges by these rules of JSON Schema."""
    return judged({"type": "string", **rules, **({} if said is None else {"description": said})})


def _limited(limit: str, said: str, **rules: object) -> Meta:
    """A text of a record, which its reader holds to one of the server's `Limits`."""

    def schema(limits: Limits) -> Schema:
        return {"type": "string", "maxLength": getattr(limits, limit), **rules, "description": said}

    return judged(schema)


def _delay(limits: Limits) -> Schema:
    said = "Deliver so much later what has no delay of its own. Excludes deliver_at."
    return {"type": "integer", "minimum": 0, "maximum": limits.delay_ms_max, "description": said}


_FROM: Schema = {
    "anyOf": [
        {"type": "string", "enum": ["earliest", "latest"]},
        {"type": "integer", "minimum": 0, "maximum": TIME_MS_MAX},
        TIME_TEXT,
    ],
    "description": "Where to begin; `latest` by default. A Last-Event-ID wins. With a group: where that begins in a "
    "topic that is new to it; `earliest` by default.",
}
_NUMBER: Schema = {"type": "integer", "minimum": 0, "maximum": 999_999_999, "description": "This partition."}
_OFFSET_TEXT = "^(earliest|latest|-?[0-9]{1,18})$"

Acks = Annotated[
    Literal["written", "flushed"],
    one_of("written", "flushed", said="How safe the records are to be when it is answered."),
]
Selector = Annotated[str, judged(SELECTOR_SCHEMA)]
Format = Annotated[
    str,
    _text("Overrides the format that Accept names.", enum=["json", "binary", "text"]),
]
AnyFormat = Annotated[
    str,
    _text(
        "Overrides the format that Content-Type or Accept names. The last three need a schema registry.",
        enum=["json", "binary", "text", "avro", "jsonschema", "protobuf"],
    ),
]
DelayMs = Annotated[int, judged(_delay)]
DeliverAt = Annotated[int, at_time("Deliver then what has no delay of its own. Excludes delay_ms.")]
Wait = Annotated[int, up_to("timeout_ms_max", "Milliseconds to wait for a first record at the end.")]
WhereToStop = Annotated[int, whole(1, OFFSET_MAX, "Where to stop.")]
BytesWhereToStop = Annotated[
    int, whole(1, OFFSET_MAX, "Where to stop; at least one record is answered if there is any.")
]
Filter = Annotated[
    str,
    _text(
        "Only records with this tag, or one of several: `tag:paid||refunded`. `*`: all.",
        examples=["tag:paid||refunded"],
    ),
]
Reset = Annotated[
    Literal["earliest", "latest"],
    one_of("earliest", "latest", said="Where to go on when the offset is out of range; else 416."),
]
Tag = Annotated[str, _limited("tag_bytes_max", "A short text to filter by.", minLength=1, pattern="^[^|]*$")]
PartitionText = Annotated[int, judged(_NUMBER)]
Rows = Annotated[int, whole(1, PAGE_ROWS_MAX, f"Rows of one page; {PAGE_ROWS_DEFAULT} by default.")]
ListRows = Annotated[int, whole(1, LIST_ROWS_MAX, f"Rows of one page; {PAGE_ROWS_DEFAULT} by default.")]
ListCursor = Annotated[
    str, _text("The `next_cursor` of the page before, in the same order.", maxLength=CURSOR_CHARS_MAX)
]
Search = Annotated[
    str,
    Meta(
        min_length=1,
        max_length=TOPIC_NAME_BYTES_MAX,
        description="Only those whose name has this in it, in upper or lower case.",
    ),
]
Towards = Annotated[Literal["asc", "desc"], one_of("asc", "desc", said="By name `asc` by default, by a figure `desc`.")]
PointsOf = Annotated[
    Literal["seconds", "minutes"],
    one_of("seconds", "minutes", said="How far apart points are: close ones of the last minutes, or those of a day."),
]
Since = Annotated[int, at_time("From this time on.")]
Until = Annotated[int, at_time("Up to, not including, this time.")]
Topic = Annotated[str, _text("A topic's name.", minLength=1, maxLength=TOPIC_NAME_BYTES_MAX)]
Include = Annotated[Literal["value"], one_of("value", said="`value`: with the value.")]
RecordKey = Annotated[str, _text("Only of records with this key.")]
Flag = Annotated[Literal["true", "false", "1", "0"], one_of("true", "false", "1", "0")]


class NoQuery(Shape):
    """None: what is in the query of these routes would be ignored, a delay for example."""


class V3TopicsQuery(OpenShape):
    """Which topics, page by page. With none of these: all in one answer."""

    page_size: ListRows | None = None
    page_token: (
        Annotated[str, _text("What `metadata.next` of the page before names.", maxLength=CURSOR_CHARS_MAX)] | None
    ) = None


class ListTopicsQuery(Shape):
    """Which topics, page by page. With none of these: all in one answer, without their figures."""

    q: Search | None = None
    sort: (
        Annotated[
            Literal["name", "partitions", "records", "appended_bytes", "in_records_s", "in_bytes_s", "pending"],
            one_of(*TOPIC_SORTS, said="By name by default; by a figure: as it was up to 5 s ago."),
        ]
        | None
    ) = None
    order: Towards | None = None
    limit: ListRows | None = None
    cursor: ListCursor | None = None


class ListQuery(Shape):
    """Which rows, page by page."""

    q: Search | None = None
    limit: ListRows | None = None
    cursor: ListCursor | None = None


class MovesQuery(Shape):
    """Which moves, page by page."""

    limit: ListRows | None = None
    cursor: ListCursor | None = None


class TopicRoutesQuery(MovesQuery):
    """Which partitions of a topic, page by page."""


class ListRoutesQuery(TopicRoutesQuery):
    """Which partitions, page by page."""

    topic: Topic | None = None


class BrokerPlanQuery(Shape):
    """Which plan."""

    draining: Flag
    limit: ListRows | None = None


class PointsQuery(Shape):
    """Which points."""

    points: PointsOf = "seconds"


class SendQuery(Shape):
    """How the records of a request are sent."""

    acks: Acks | None = None
    format: AnyFormat | None = None
    selector: Selector | None = None
    delay_ms: DelayMs | None = None
    deliver_at: DeliverAt | None = None
    async_: Annotated[str, _text("Taken and not needed: what is answered is durable.")] | None = field(
        default=None, name="async"
    )


class SendRawQuery(Shape):
    """What a record has besides its value, which is the body."""

    key: Annotated[str, _limited("key_bytes_max", "The key, in UTF-8.")] | None = None
    tag: Tag | None = None
    partition: PartitionText | None = None
    timestamp: Annotated[int, at_time("Event time.")] | None = None
    delay_ms: DelayMs | None = None
    deliver_at: DeliverAt | None = None
    msg_id: Annotated[str, _limited("msg_id_bytes_max", "Sent again, it is stored once.", minLength=1)] | None = None
    message_group: (
        Annotated[str, _limited("message_group_bytes_max", "Its records go to one partition, in order.", minLength=1)]
        | None
    ) = None
    schedule_key: (
        Annotated[
            str,
            _limited(
                "schedule_key_bytes_max", "A name for its schedule, unique in its topic while pending.", minLength=1
            ),
        ]
        | None
    ) = None
    queues: Annotated[str, _text("Light queues that it is in as well, with commas between them.")] | None = None
    tombstone: (
        Annotated[
            Literal["true", "false"],
            one_of("true", "false", said="`true`: a record without a value; the body is empty."),
        ]
        | None
    ) = None
    acks: Acks | None = None
    selector: Selector | None = None


class SendLinesQuery(Shape):
    """How a stream of records is sent."""

    acks: Acks | None = None
    receipts: Annotated[
        Literal["all", "errors"],
        one_of("all", "errors", said="`errors`: only of refused records, and a last line with counts."),
    ] = "all"


class FetchQuery(Shape):
    """Which records, and how many at once."""

    offset: (
        Annotated[
            str,
            _text(
                "Where to begin: an offset, `earliest` (default), `latest`, -N for the last N.",
                maxLength=20,
                pattern=_OFFSET_TEXT,
            ),
        ]
        | None
    ) = None
    timestamp: (
        Annotated[int, at_time("A time instead of an offset: the first record stored at or after it.")] | None
    ) = None
    timeout: Wait = 0
    max_bytes: BytesWhereToStop | None = None
    max_records: WhereToStop | None = None
    end_offset: Annotated[int, whole(0, OFFSET_MAX, "Where to stop: the offset behind the last record wanted.")] = (
        OFFSET_MAX
    )
    reset: Reset | None = None
    format: AnyFormat | None = None
    filter: Filter | None = None


class ReadRawQuery(Shape):
    """How long to wait for a record."""

    timeout: Wait = 0


LightGroup = Annotated[str, _text("Where to begin without a cursor: where this group is.", minLength=1)]


class LightQuery(Shape):
    """Which records of a light queue."""

    cursor: Annotated[str, _text("Where to begin: the last pull's `next_cursor`.", maxLength=2**15)] | None = None
    from_: (
        Annotated[Literal["earliest", "latest"], one_of("earliest", "latest", said="Where to begin without a cursor.")]
        | None
    ) = field(default=None, name="from")
    group: LightGroup | None = None
    partition: Annotated[int, judged(_NUMBER)] | None = None
    timeout: Wait = 0
    limit: Rows = PAGE_ROWS_DEFAULT


class FollowLightQuery(Shape):
    """Where a stream of a light queue begins."""

    from_: (
        Annotated[Literal["earliest", "latest"], one_of("earliest", "latest", said="Where to begin; latest.")] | None
    ) = field(default=None, name="from")
    group: LightGroup | None = None
    last_event_id: Annotated[str, _text("As the header `Last-Event-ID`, for pages that come anew.")] | None = None


class LightGroupQuery(Shape):
    """How far which group is."""

    group: Annotated[str, _text("The group: a device, for instance.", minLength=1)]


class CommitLightQuery(Shape):
    """How far a group is."""

    group: Annotated[str, _text("The group: a device, for instance.", minLength=1)]
    cursor: Annotated[str, _text("Behind what is done: the `next_cursor` of a pull.", minLength=1, maxLength=2**15)]


class ListLightQuery(Shape):
    """Which light queues, groups with offsets in some, or offsets of one."""

    prefix: Annotated[str, _text("What their names begin with.")] | None = None
    limit: Rows = PAGE_ROWS_DEFAULT
    cursor: Annotated[str, _text("The `next_cursor` of the page before.", minLength=1)] | None = None


class FindQuery(Shape):
    """Which messages of a topic."""

    key: Annotated[str, _text("Whose messages to look for.")]
    partition: Annotated[int, judged(_NUMBER)] | None = None
    from_: Since | None = field(default=None, name="from")
    limit: Rows = PAGE_ROWS_DEFAULT
    cursor: Annotated[str, _text("The `next_cursor` of the page before.", minLength=1)] | None = None


class OffsetsQuery(Shape):
    """The offsets of a time."""

    timestamp: (
        Annotated[int, at_time("A time instead of an offset: the first record stored at or after it.")] | None
    ) = None
    boundary: Annotated[
        Literal["lower", "upper"],
        one_of(
            "lower",
            "upper",
            said="With `timestamp`: the first record stored at or after it (default), or the last one at or before it.",
        ),
    ] = "lower"


class FollowQuery(Shape):
    """What an event stream follows."""

    from_: Annotated[str, judged(_FROM)] | None = field(default=None, name="from")
    partitions: Annotated[str, _text("Only these, as in `0,3`.", pattern="^[0-9]{1,9}(,[0-9]{1,9})*$")] | None = None
    filter: Filter | None = None
    format: Format | None = None
    topics: Annotated[str, _text("Names, with commas between them.")] | None = None
    last_event_id: Annotated[str, _text("As the header Last-Event-ID: go on behind this event.")] | None = None
    reset: Reset | None = None
    group: (
        Annotated[str, judged({**GROUP_NAME, "description": "Hand out this group's records, on lease. With `ack`."})]
        | None
    ) = None
    ack: (
        Annotated[
            Literal["manual", "auto"],
            one_of("manual", "auto", said="Settle by receipt, or count as done when sent. With a group."),
        ]
        | None
    ) = None
    credit: (
        Annotated[
            int,
            whole(
                1,
                STREAM_CREDIT_MAX,
                f"Records on lease to this stream; {STREAM_CREDIT_DEFAULT} by default. With a group.",
            ),
        ]
        | None
    ) = None
    invisible_ms: Annotated[int, whole(1, INVISIBLE_MS_MAX, "How long a lease lasts. With a group.")] | None = None


# Schedules


class OneScheduleQuery(Shape):
    """How the path names a schedule."""

    topic: (
        Annotated[
            str,
            _text("The path names a schedule_key of this topic.", minLength=1, maxLength=TOPIC_NAME_BYTES_MAX),
        ]
        | None
    ) = None


class GetScheduleQuery(OneScheduleQuery):
    """What of it is shown."""

    include: Include | None = None


class ListSchedulesQuery(Shape):
    """Which schedules, page by page."""

    topic: Topic | None = None
    from_: Since | None = field(default=None, name="from")
    to: Until | None = None
    key: RecordKey | None = None
    limit: Rows = PAGE_ROWS_DEFAULT
    cursor: (
        Annotated[str, _text("The `next_cursor` of the page before, in the same order.", maxLength=CURSOR_CHARS_MAX)]
        | None
    ) = None
    include: Include | None = None
    order: Annotated[
        Literal["accepted", "due"],
        one_of("accepted", "due", said="As they were accepted (moved and rolled ones anew), or the first due first."),
    ] = "accepted"


class CancelSchedulesQuery(Shape):
    """Which schedules of a topic."""

    topic: Topic
    from_: Since | None = field(default=None, name="from")
    to: Until | None = None
    key: RecordKey | None = None


class ListRecurringQuery(Shape):
    """Which recurring schedules, page by page."""

    topic: Topic | None = None
    limit: Rows = PAGE_ROWS_DEFAULT
    cursor: Annotated[str, _text("The `next_cursor` of the page before.", minLength=1, maxLength=249)] | None = None
    include: Annotated[Literal["record"], one_of("record", said="`record`: with the records.")] | None = None


class AuditQuery(Shape):
    """Which lines of the trail, page by page."""

    from_: Since | None = field(default=None, name="from")
    to: Until | None = None
    principal: Annotated[str, _text("Only what this principal did.")] | None = None
    action: (
        Annotated[
            str,
            _text("Only this action, such as `topic.create`, or all of a kind: `topic`."),
        ]
        | None
    ) = None
    outcome: (
        Annotated[
            Literal["done", "refused", "failed", "unknown"],
            one_of("done", "refused", "failed", "unknown", said="Only with this outcome."),
        ]
        | None
    ) = None
    limit: Rows = PAGE_ROWS_DEFAULT
    cursor: Annotated[str, _text("The `next_cursor` of the page before.", minLength=1)] | None = None


class HistogramQuery(Shape):
    """Which stretch of time, in how many parts."""

    topic: Topic | None = None
    from_: Since | None = field(default=None, name="from")
    to: Until | None = None
    buckets: Annotated[int, whole(1, BUCKETS_MAX, f"{BUCKETS_DEFAULT} by default.")] | None = None
    bounds: (
        Annotated[
            str,
            _text(
                "Instead of the others: times in order, as in `1767225600000,1767312000000`, so that parts may be "
                "local days. `24x3600000` stands for 24 times, each an hour behind the one before. Counts between "
                f"whole minutes are at hand; for others every schedule is looked at. 2 to {BUCKETS_MAX + 1}.",
                pattern="^[0-9]{1,18}(,([0-9]{1,18}x)?[0-9]{1,18}){1,1000}$",
            ),
        ]
        | None
    ) = None


# Groups, and consumers of the REST Proxy, whose queries may have more than is known here


class ListGroupsQuery(Shape):
    """Which groups, page by page. With none of these: all in one answer, without what they have before them."""

    q: Search | None = None
    sort: (
        Annotated[
            Literal["name", "lag", "dead", "in_flight", "members"], one_of(*GROUP_SORTS, said="By name by default.")
        ]
        | None
    ) = None
    order: Towards | None = None
    limit: ListRows | None = None
    cursor: ListCursor | None = None


class ListLeasesQuery(Shape):
    """Which open records, page by page."""

    topic: Topic | None = None
    limit: ListRows = PAGE_ROWS_DEFAULT
    cursor: ListCursor | None = None


class LagQuery(Shape):
    """Which topics of a group; with `limit` or `cursor`, page by page."""

    topics: Annotated[str, _text("Names, with commas between them.")] | None = None
    limit: ListRows | None = None
    cursor: ListCursor | None = None


class DeadLettersQuery(Shape):
    """Which dead letters."""

    offset: Annotated[int, whole(0, RECORD_OFFSET_MAX, "From here on, instead of the first not sent back.")] | None = (
        None
    )
    limit: Rows = PAGE_ROWS_DEFAULT


class V1PollQuery(OpenShape):
    """How much a consumer instance reads at once."""

    timeout: Annotated[
        int,
        whole(-1, OFFSET_MAX, "Milliseconds to wait for a first record; the instance's setting by default."),
    ] = -1
    max_bytes: Annotated[
        int, whole(-1, OFFSET_MAX, "Of key, value and headers; at least one record comes if there is any.")
    ] = -1
    max_records: WhereToStop = OFFSET_MAX


class PollQuery(V1PollQuery):
    """The same, of some records."""

    filter: Filter | None = None


class CommitQuery(OpenShape):
    """Nothing that matters."""

    async_: Annotated[str, _text("Taken and not needed: what is answered is durable.")] | None = field(
        default=None, name="async"
    )


class CommittedQuery(OpenShape):
    """Whose offset; else the body says."""

    topic: Topic | None = None
    partition: Annotated[int, whole(0, 2**31 - 1, "Of this topic.")] | None = None


class V1MessagesQuery(OpenShape):
    """Which records of a partition."""

    offset: Annotated[int, whole(0, RECORD_OFFSET_MAX, "Where to begin.")]
    count: Annotated[int, whole(1, OFFSET_MAX, "How many records; 1 by default.")] = 1


# Sockets whose URL says everything

_Many = Annotated[int, Meta(ge=0)]


class ConsumeQuery(Shape):
    """A subscription."""

    topic: Annotated[str, _text("One or more, with commas between them.")] | None = None
    from_: Annotated[str, _text("As `from` of `subscribe`: earliest, latest, a time or a cursor.")] | None = field(
        default=None, name="from"
    )
    start: Annotated[str, _text("As `start` of `subscribe`, in a group.")] | None = None
    pattern: Annotated[str, _text("A regular expression over topic names, instead of `topic`.")] | None = None
    queue: Annotated[str, _text("A light queue of the topics, or `room/*`.", minLength=1)] | None = None
    mode: Annotated[str, _text("How records are consumed.", enum=["reader", "stream", "queue"])] | None = None
    group: Annotated[str, _text("The consumer group; its mode is `stream` unless `mode` says otherwise.")] | None = None
    member: Annotated[str, _text("The name of this member, in stream mode.")] | None = None
    room: Annotated[str, _text("The machine room that it stands in.")] | None = None
    filter: Filter | None = None
    credit: Annotated[_Many, Meta(description="Records that may be on their way.")] | None = None
    credit_bytes: Annotated[_Many, Meta(description="Bytes that may be on their way.")] | None = None
    batch: Annotated[int, whole(1, BATCH_MAX, "Records of one frame at most.")] | None = None
    invisible_ms: Annotated[int, whole(1, INVISIBLE_MS_MAX, "How long a lease lasts, in queue mode.")] | None = None
    auto_credit: Annotated[Flag, Meta(description="Credit returns by itself.")] | None = None
    auto_ack: Annotated[Flag, Meta(description="Records count as done when they are sent.")] | None = None


class ProduceQuery(Shape):
    """Where the frames of a socket go."""

    topic: Annotated[str, _text("Where the frames go.", minLength=1)]
    partition: Annotated[int, whole(0, 999_999_999, "This partition.")] | None = None
    key: Annotated[str, _limited("key_bytes_max", "The key, in UTF-8.")] | None = None
    tag: Tag | None = None
    queues: Annotated[str, _text("Light queues that they are in as well, with commas between them.")] | None = None
    acks: Acks | None = None
