"""Parameters of requests and headers of answers, by name. A name means the same everywhere, but for `SPECIAL`."""

from __future__ import annotations

from gateway.api.shapes.commands import BATCH_MAX
from gateway.api.shapes.queries import (
    BUCKETS_DEFAULT,
    BUCKETS_MAX,
    PAGE_ROWS_DEFAULT,
    PAGE_ROWS_MAX,
    STREAM_CREDIT_DEFAULT,
    STREAM_CREDIT_MAX,
)
from gateway.codec.times import TIME_MS_MAX
from gateway.groups.machines.config import INVISIBLE_MS_MAX
from gateway.groups.machines.copies import GROUP_NAME_BYTES_MAX
from gateway.settings.limits import Limits
from gateway.surfaces.openapi.shapes import (
    PARTITION,
    STRING,
    TIME_TEXT,
    Schema,
    either,
    exactly,
    integer,
    said,
    text,
    with_example,
    words,
)
from store.limits import TOPIC_NAME_BYTES_MAX
from store.types import OFFSET_MAX

FORMAT = words("json", "binary", "text")
_TIME = either(integer(0, TIME_MS_MAX), TIME_TEXT)
_FLAG = words("true", "false")
_FILTER = with_example(
    said(STRING, "Only records with this tag, or one of several: `tag:paid||refunded`. `*`: all."), "tag:paid||refunded"
)
_START = either(words("earliest", "latest"), integer(0, TIME_MS_MAX), TIME_TEXT)


def path_parameters() -> dict[str, Schema]:
    """The parts of paths."""
    return {
        "topic": with_example(said(text(249, least=1, pattern="^[A-Za-z0-9._%-]+$"), "A topic's name."), "orders"),
        "partition": with_example(said(PARTITION, "A partition's number."), 0),
        "group": with_example(
            said(text(GROUP_NAME_BYTES_MAX, least=1, pattern="^[A-Za-z0-9._%-]+$"), "A group's name."), "billing"
        ),
        "instance": with_example(said(text(255, least=1), "A consumer instance's name."), "c1"),
        "offset": with_example(
            said(
                text(20, pattern="^(earliest|latest|-?[0-9]{1,18})$"),
                "An offset; `earliest`, `latest`, or -N for the last N.",
            ),
            "0",
        ),
        "file": with_example(said(text(least=1), "A file of the page's."), "mq.js"),
        "message_id": with_example(said(text(least=1), "`<epoch>-<partition>-<offset>`."), "16-2-105"),
        "schedule": said(
            text(least=1, pattern="^[^:/]+$"), "A schedule id, as the receipt of a delayed record has it."
        ),
        "cluster": said(text(least=1), "The cluster's id: `data[0].cluster_id` of `GET /v3/clusters`."),
        "broker": with_example(said(words("0"), "0: there is one broker."), "0"),
        "name": said(words("retention.ms", "max.message.bytes", "cleanup.policy"), "A setting."),
        "consumer": said(text(least=1), "A member's id."),
    }


def query_parameters(limits: Limits) -> dict[str, Schema]:
    """What may stand behind the question mark."""
    delay = integer(0, limits.delay_ms_max)
    return {
        "acks": said(words("written", "flushed"), "How safe the records are to be when it is answered."),
        "selector": said(
            words("key", "round_robin", "random", "room"), "How the partition of records that name none is chosen."
        ),
        "format": said(FORMAT, "Overrides the format that Content-Type or Accept names."),
        "offset": said(
            text(20, pattern="^(earliest|latest|-?[0-9]{1,18})$"),
            "Where to begin: an offset, `earliest` (default), `latest`, -N for the last N.",
        ),
        "timestamp": said(_TIME, "A time instead of an offset: the first record stored at or after it."),
        "boundary": said(
            words("lower", "upper"),
            "With `timestamp`: the first record stored at or after it (default), or the last one at or before it.",
        ),
        "timeout": said(integer(0, limits.timeout_ms_max), "Milliseconds to wait for a first record at the end."),
        "max_bytes": said(integer(1, OFFSET_MAX), "Where to stop; at least one record is answered if there is any."),
        "max_records": said(integer(1, OFFSET_MAX), "Where to stop."),
        "end_offset": said(integer(0, OFFSET_MAX), "Where to stop: the offset behind the last record wanted."),
        "reset": said(words("earliest", "latest"), "Where to go on when the offset is out of range; else 416."),
        "filter": _FILTER,
        "key": said(text(limits.key_bytes_max), "The key, in UTF-8."),
        "tag": said(text(limits.tag_bytes_max, least=1, pattern=r"^[^|]*$"), "A short text to filter by."),
        "partition": said(PARTITION, "This partition."),
        "delay_ms": said(delay, "Deliver so much later what has no delay of its own. Excludes deliver_at."),
        "deliver_at": said(_TIME, "Deliver then what has no delay of its own. Excludes delay_ms."),
        "msg_id": said(text(limits.msg_id_bytes_max, least=1), "Sent again, it is stored once."),
        "message_group": said(
            text(limits.message_group_bytes_max, least=1), "Its records go to one partition, in order."
        ),
        "schedule_key": said(
            text(limits.schedule_key_bytes_max, least=1), "A name for its schedule, unique in its topic while pending."
        ),
        "tombstone": said(_FLAG, "`true`: a record without a value; the body is empty."),
        "receipts": said(words("all", "errors"), "`errors`: only of refused records, and a last line with counts."),
        "limit": said(integer(1, PAGE_ROWS_MAX), f"Rows of one page; {PAGE_ROWS_DEFAULT} by default."),
        "cursor": said(text(least=1), "The `next_cursor` of the page before."),
        "from": said(_TIME, "From this time on."),
        "to": said(_TIME, "Up to, not including, this time."),
        "buckets": said(integer(1, BUCKETS_MAX), f"{BUCKETS_DEFAULT} by default."),
        "include": said(words("value"), "`value`: with the value."),
        "partitions": said(text(pattern=r"^[0-9]{1,9}(,[0-9]{1,9})*$"), "Only these, as in `0,3`."),
        "topics": said(STRING, "Names, with commas between them."),
        "last_event_id": said(STRING, "As the header Last-Event-ID: go on behind this event."),
        "async": said(STRING, "Taken and not needed: what is answered is durable."),
        "topic": said(text(TOPIC_NAME_BYTES_MAX, least=1), "A topic's name."),
        "count": said(integer(1, OFFSET_MAX), "How many records; 1 by default."),
        "pattern": said(STRING, "A regular expression over topic names, instead of `topic`."),
        "mode": said(words("reader", "stream", "queue"), "How records are consumed."),
        "group": said(STRING, "The consumer group; its mode is `stream` unless `mode` says otherwise."),
        "member": said(STRING, "The name of this member, in stream mode."),
        "start": said(STRING, "As `start` of `subscribe`, in a group."),
        "credit": said(integer(0), "Records that may be on their way."),
        "credit_bytes": said(integer(0), "Bytes that may be on their way."),
        "batch": said(integer(1, BATCH_MAX), "Records of one frame at most."),
        "invisible_ms": said(integer(1, INVISIBLE_MS_MAX), "How long a lease lasts, in queue mode."),
        "ack": said(words("manual", "auto"), "How records of a group are settled."),
        "auto_credit": said(words("true", "false", "1", "0"), "Credit returns by itself."),
        "auto_ack": said(words("true", "false", "1", "0"), "Records count as done when they are sent."),
    }


def special_parameters(limits: Limits) -> dict[str, dict[str, Schema]]:
    """Query parameters that mean something else on one route, by the route's name."""
    wait = said(integer(-1, OFFSET_MAX), "Milliseconds to wait for a first record; the instance's setting by default.")
    poll = {
        "timeout": wait,
        "max_bytes": said(
            integer(-1, OFFSET_MAX), "Of key, value and headers; at least one record comes if there is any."
        ),
    }
    return {
        "instance_records": poll,
        "v1_records": poll,
        "v1_messages": {"offset": said(integer(0, OFFSET_MAX), "Where to begin.")},
        "produce_raw": {"timestamp": said(_TIME, "Event time.")},
        "find_messages": {"key": said(STRING, "Whose messages to look for.")},
        **{
            name: {"topic": said(text(TOPIC_NAME_BYTES_MAX, least=1), "The path names a schedule_key of this topic.")}
            for name in ("get_schedule", "cancel_schedule", "move_schedule", "fire_schedule")
        },
        "list_schedules": {"key": said(STRING, "Only of records with this key."), "cursor": _DIGITS},
        "cancel_schedules": {"key": said(STRING, "Only of records with this key.")},
        "follow_topic": {
            "from": said(
                _START,
                "Where to begin; `latest` by default. A Last-Event-ID wins. With a group: where that begins in a topic "
                "that is new to it; `earliest` by default.",
            ),
            "group": said(
                text(GROUP_NAME_BYTES_MAX, least=1, pattern="^[A-Za-z0-9._%-]+$"),
                "Hand out this group's records, on lease. With `ack`.",
            ),
            "ack": said(words("manual", "auto"), "Settle by receipt, or count as done when sent. With a group."),
            "credit": said(
                integer(1, STREAM_CREDIT_MAX),
                f"Records on lease to this stream; {STREAM_CREDIT_DEFAULT} by default. With a group.",
            ),
            "invisible_ms": said(integer(1, INVISIBLE_MS_MAX), "How long a lease lasts. With a group."),
        },
        "websocket_consume": {
            "topic": said(STRING, "One or more, with commas between them."),
            "from": said(STRING, "As `from` of `subscribe`: earliest, latest, a time or a cursor."),
        },
        "websocket_produce": {"topic": said(text(least=1), "Where the frames go.")},
        "dead_letters": {"offset": said(integer(0, OFFSET_MAX), "From here on, instead of the first not sent back.")},
        "committed_offsets": {"partition": said(integer(0, 2**31 - 1), "Of this topic.")},
    }


_DIGITS = text(18, pattern="^[0-9]{1,18}$")

REQUIRED_QUERY = {
    "find_messages": ("key",),
    "cancel_schedules": ("topic",),
    "v1_messages": ("offset",),
    "websocket_produce": ("topic",),
}
"""Query parameters that a route cannot do without, by its name."""


def request_headers(limits: Limits) -> dict[str, Schema]:
    """Headers that mean something here beyond HTTP's own."""
    return {
        "Idempotency-Key": with_example(
            said(
                text(least=1),
                f"Names this request, up to {limits.idempotency_key_bytes_max} characters: sent again it is stored "
                "once.",
            ),
            '"b3c1"',
        ),
        "Mq-Producer": said(text(limits.producer_name_bytes_max, least=1), "A batch writer's name; with Mq-Sequence."),
        "Mq-Sequence": said(
            text(19, pattern="^[0-9]{1,19}$"), "The number it gives to this batch for this partition; numbers rise."
        ),
        "Mq-Delay-Ms": said(text(18, pattern="^[0-9]{1,18}$"), "As `delay_ms` in the query."),
        "Mq-Deliver-At": said(_TIME, "As `deliver_at` in the query."),
        "If-Match": with_example(
            said(
                text(20, pattern='^("[0-9]{1,18}"|[0-9]{1,18})$'),
                "The partition's end offset: store this only if nobody has appended since.",
            ),
            '"104"',
        ),
        "traceparent": said(STRING, "W3C Trace Context; becomes a header of the records. A malformed one is dropped."),
        "tracestate": said(STRING, "With traceparent."),
        "Last-Event-ID": said(STRING, "The id of the last event that was taken in: go on behind it."),
        "X-Request-Id": said(
            STRING, "Repeated in the answer, if it is ASCII and has at most 128 characters; else one is made up."
        ),
    }


def answer_headers() -> dict[str, Schema]:
    """Headers of answers."""
    number = text(pattern="^[0-9]+$")
    return {
        "X-Request-Id": said(STRING, "The client's own, or one that the server made up; it is in the server's log."),
        "Retry-After": said(number, "Seconds."),
        "WWW-Authenticate": said(STRING, "How to say who one is."),
        "Allow": said(STRING, "The methods of the path."),
        "Location": said(STRING, "Where what was created is."),
        "Mq-Acks": said(words("written", "flushed"), "How safe the records are."),
        "Mq-Next-Offset": said(number, "Where to go on."),
        "Mq-Beginning-Offset": said(number, "The first offset there is."),
        "Mq-End-Offset": said(number, "The offset the next record will get."),
        "Mq-Epoch": said(number, "Changes when the topic is deleted and made again."),
        "Mq-Partition": number,
        "Mq-Offset": number,
        "Mq-Message-Id": STRING,
        "Mq-Timestamp": said(number, "Event time, epoch milliseconds."),
        "Mq-Store-Timestamp": said(number, "When it was stored, epoch milliseconds."),
        "Mq-Key": said(STRING, "Percent-encoded where HTTP would not take it."),
        "Mq-Tag": STRING,
        "Mq-Tombstone": said(exactly("true"), "The record has no value."),
        "Mq-Deliver-At": STRING,
        "Mq-Schedule-Id": STRING,
        "Mq-Schedule-Key": STRING,
        "Mq-Message-Group": STRING,
        "Mq-Topic": STRING,
        "Mq-Receipt": said(STRING, "What the record is settled by."),
        "Mq-Delivery-Attempt": said(number, "From 1."),
        "Mq-Visible-Until": said(number, "When the lease ends, epoch milliseconds."),
        "Idempotent-Replayed": said(exactly("true"), "Everything in this request had been stored before."),
        "Vary": STRING,
        "Content-Encoding": said(words("gzip", "zstd"), "Of large answers, for clients that ask."),
        "traceparent": STRING,
        "tracestate": STRING,
    }
