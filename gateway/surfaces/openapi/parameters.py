"""Parameters of requests and headers of answers, by name. A name means the same everywhere, but for `SPECIAL`."""

from __future__ import annotations

from gateway.api.shapes.recurring import NAME_CHARS_MAX, NAME_PATTERN
from gateway.codec.times import TIME_MS_MAX
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
from store.limits import LIGHT_NAME_BYTES_MAX

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
        "queue": with_example(
            said(text(LIGHT_NAME_BYTES_MAX, least=1, pattern="^[^*]+$"), "A light queue's name, percent-encoded."), "u1"
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
        "schedule": said(text(least=1, pattern="^[^/]+$"), "A schedule id, as the receipt of a delayed record has it."),
        "recurring": with_example(
            said(text(NAME_CHARS_MAX, least=1, pattern=NAME_PATTERN), "A recurring schedule's name."), "daily-report"
        ),
        "connection": said(text(least=1), "A connection's name, as the list has it."),
        "session": said(text(least=1), "A session's name, as the list has it."),
        "token": said(text(least=1), "A token's id; never the token."),
        "cluster": said(text(least=1), "The cluster's id: `data[0].cluster_id` of `GET /v3/clusters`."),
        "broker": with_example(said(words("0"), "0: there is one broker."), "0"),
        "name": said(words("retention.ms", "max.message.bytes", "cleanup.policy"), "A setting."),
        "consumer": said(text(least=1), "A member's id."),
    }


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
                text(40, pattern='^("[0-9a-f]{1,32}"|[0-9a-f]{1,32})$'),
                "The partition's end offset: store this only if nothing was appended since. Of tokens and rules: the "
                "ETag of those that were seen.",
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
        "ETag": said(STRING, "Changes with what is answered: for `If-Match`."),
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
        "Mq-Missing-Nodes": said(
            STRING, "In a cluster: the nodes of which the answer has nothing. They did not answer."
        ),
        "Vary": STRING,
        "Content-Encoding": said(words("gzip", "zstd"), "Of large answers, for clients that ask."),
        "traceparent": STRING,
        "tracestate": STRING,
    }
