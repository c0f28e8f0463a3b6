"""What every route takes and answers, by its name in the route table.

What all routes of a kind have in common (who may, how large, request ids, bodies that do not come) is added by
`document.py` from the route's row; a route's own errors are here. The words are the first lines of its handler's
docstring.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from gateway.surfaces.http.media import BATCH_TYPE, JSON_TYPE, LINES_TYPE, LINES_TYPES, V2_TYPE
from gateway.surfaces.openapi.shapes import (
    BYTES,
    STRING,
    Schema,
    array,
    either,
    integer,
    mapping,
    obj,
    ref,
    said,
    words,
)

EVENTS_TYPE = "text/event-stream"
OCTETS = "application/octet-stream"
ANY_TYPE = "*/*"
ANY_BYTES: Schema = said({}, "Bytes, of whatever type they were sent with.")
ITEMS = "x-item-schema"
"""In a media type of lines: the schema of each. OpenAPI 3.1 has no word for it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """One status. `content` is by content type; none: no body. The bodies of lines are described line by line."""

    description: str
    content: Mapping[str, Schema]
    headers: Sequence[str] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Body:
    """What a request carries, by content type."""

    content: Mapping[str, Schema]
    is_required: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class Operation:
    """One route. `errors` are its own error codes."""

    tag: str
    answers: Mapping[int, Answer]
    errors: Sequence[int] = ()
    body: Body | None = None
    headers: Sequence[str] = ()


TAGS: dict[str, str] = {
    "Send": "Records in, receipts out.",
    "Read": "Records by partition and offset, one by one, as a stream, or by key.",
    "Topics": "Topics and where their partitions begin and end.",
    "Delayed records": "What has been accepted and not been delivered yet.",
    "Recurring schedules": "Records that the server sends by itself, every so long or by a cron expression.",
    "Queue mode": "Records on lease, settled one by one: no membership, nothing to set up.",
    "Groups": "How far consumer groups are, and what they may do.",
    "Consumer instances": "As the REST Proxy v2 (and v1) has them.",
    "REST Proxy v3": "Clusters, topics, settings, records and groups in the shapes of Confluent's REST Proxy v3.",
    "Sockets": "Where a WebSocket begins; what is said on it is in `/asyncapi.json`.",
    "Access": "Who may come in, and do what: tokens and rules.",
    "Operations": "What runs, whether it runs, what it counts.",
}

EVENT = obj(
    {},
    {
        "id": said(STRING, "The next offset of every partition: a Last-Event-ID."),
        "event": words("message", "caught_up", "error", "goaway"),
        "data": said(STRING, "JSON: of `message` a Message (or with `format=` a Record), else what happened."),
        "retry": said(integer(0), "Milliseconds to wait before connecting again."),
    },
    description="One Server-Sent Event.",
)

STATS_EVENT = obj(
    {
        "event": words("stats", "goaway", "error"),
        "data": {
            **STRING,
            "contentMediaType": JSON_TYPE,
            "contentSchema": ref("StatsNow"),
            "description": "Of `stats`; else what happened.",
        },
    },
    description="One Server-Sent Event.",
)

# What a route may answer because of what it touches.
TOPIC = (40401,)
PARTITION = (404, 40401, 40402)
READS = (50002, 50250, 50350, 50351)
WRITES = (50002, 50250, 50350, 50351, 50750)
RECORDS = (422, 41350, 42250, 42251, 42950, 40402, 40954, 40963, 40964)
IDEMPOTENCY = (400, 422, 42254, 42950, 40957)
QUERY = (400, 422, 42253)
GROUP = (422, 409, 40405, 42950, 50350, 50351, 50750, 50002)
INSTANCE = (400, 422, 40403, 42950, 409, *WRITES)
LEASES = (400, *GROUP)
SCHEDULE = (400, 422, 40401, 404, 40450, 40950)
REGISTRY = (42202, 50251, 50352)
V3_TOPIC = (404, 40403)
V3_GROUP = (404, 40405, *READS)

KAFKA_JSON = "application/vnd.kafka.json.v2+json"
KAFKA_BINARY = "application/vnd.kafka.binary.v2+json"
KAFKA_TEXT = "application/vnd.kafka.text.v2+json"
BY_SCHEMA = tuple(f"application/vnd.kafka.{name}.v2+json" for name in ("avro", "jsonschema", "protobuf"))
"""What a schema registry is needed for."""

PULL_HEADERS = ("Mq-Next-Offset", "Mq-Beginning-Offset", "Mq-End-Offset", "Mq-Epoch", "Vary", "Content-Encoding")
OF_NODES = ("Mq-Missing-Nodes", "Vary", "Content-Encoding")
"""Of lists that all nodes of a cluster add to."""

RAW_HEADERS = (
    "Mq-Partition",
    "Mq-Offset",
    "Mq-Message-Id",
    "Mq-Timestamp",
    "Mq-Store-Timestamp",
    "Mq-Key",
    "Mq-Tag",
    "Mq-Tombstone",
    "Mq-Deliver-At",
    "Mq-Schedule-Id",
    "Mq-Schedule-Key",
    "Mq-Message-Group",
    "traceparent",
    "tracestate",
)


def _json(description: str, schema: Schema, *headers: str) -> Answer:
    return Answer(description=description, content={JSON_TYPE: schema}, headers=headers)


def _v2(description: str, schema: Schema) -> Answer:
    return Answer(description=description, content={V2_TYPE: schema, JSON_TYPE: schema})


def _nothing(description: str, *headers: str) -> Answer:
    return Answer(description=description, content={}, headers=headers)


def _raw(description: str, *headers: str) -> Answer:
    return Answer(description=description, content={ANY_TYPE: ANY_BYTES}, headers=(*RAW_HEADERS, *headers))


def lines(schema: Schema, description: str = "One JSON object a line.") -> Schema:
    """A body of lines, each of this shape."""
    return {**said(STRING, description), ITEMS: schema}


def _record_arrays(schema: Schema) -> dict[str, Schema]:
    return dict.fromkeys((KAFKA_JSON, KAFKA_BINARY, KAFKA_TEXT, *BY_SCHEMA, JSON_TYPE), schema)


def _body(schema: Schema, *, is_required: bool = True, types: Sequence[str] = (JSON_TYPE,)) -> Body:
    return Body(content=dict.fromkeys(types, schema), is_required=is_required)


_PRODUCE = Operation(
    tag="Send",
    body=Body(
        content={
            KAFKA_JSON: ref("JsonRecords"),
            KAFKA_BINARY: ref("BinaryRecords"),
            KAFKA_TEXT: ref("TextRecords"),
            **dict.fromkeys(BY_SCHEMA, ref("SchemaRecords")),
            JSON_TYPE: ref("BinaryRecords"),
            BATCH_TYPE: said(
                BYTES, "Kafka RecordBatches (v2), end to end; stored as they are, or with a delay record by record."
            ),
        }
    ),
    headers=("Idempotency-Key", "Mq-Producer", "Mq-Sequence", "If-Match", "Mq-Delay-Ms", "Mq-Deliver-At"),
    answers={
        200: Answer(
            description="Every record without an `error_code` is as safe as asked for.",
            content={
                V2_TYPE: {"anyOf": [ref("Offsets"), ref("BatchOffsets")]},
                JSON_TYPE: {"anyOf": [ref("Offsets"), ref("BatchOffsets")]},
            },
            headers=("Mq-Acks", "Idempotent-Replayed"),
        )
    },
    errors=(
        400,
        415,
        42201,
        42203,
        42205,
        42208,
        40801,
        40956,
        41250,
        *REGISTRY,
        *TOPIC,
        *RECORDS,
        *IDEMPOTENCY,
        *WRITES,
    ),
)

_OPS: dict[str, Operation] = {
    "root": Operation(
        tag="Operations",
        answers={
            200: Answer(
                description="Where to go on; `text/html` for browsers.",
                content={V2_TYPE: ref("Home"), JSON_TYPE: ref("Home"), "text/html": STRING},
                headers=("Vary",),
            ),
            304: _nothing("The page is as it was.", "Vary"),
        },
    ),
    "healthz": Operation(tag="Operations", answers={200: _json("It runs.", ref("Health"))}),
    "readyz": Operation(
        tag="Operations",
        answers={
            200: _json("Send it traffic.", ref("Ready")),
            503: _json("Do not: it is starting, stopping, or its disk has failed.", ref("NotReady")),
        },
    ),
    "metrics": Operation(
        tag="Operations",
        answers={200: Answer(description="Prometheus' text format.", content={"text/plain": STRING})},
    ),
    "audit": Operation(
        tag="Operations", answers={200: _json("A page of it.", ref("AuditPage"))}, errors=(*QUERY, 40050)
    ),
    "limits": Operation(tag="Operations", answers={200: _json("Limits by name.", ref("Limits"))}),
    "info": Operation(tag="Operations", answers={200: _json("What this is.", ref("Info"))}),
    "list_brokers": Operation(
        tag="Operations", answers={200: _json("Brokers.", ref("BrokerList"))}, errors=(*QUERY, *READS)
    ),
    "change_broker": Operation(
        tag="Operations",
        body=_body(ref("BrokerChanges")),
        answers={200: _json("As it is now.", ref("ShownBroker"))},
        errors=(400, 404, 422, *WRITES),
    ),
    "plan_broker": Operation(
        tag="Operations",
        answers={200: _json("The next moves.", ref("BrokerPlan"), "Vary", "Content-Encoding")},
        errors=(*QUERY, 404, 409, *READS),
    ),
    "list_moves": Operation(
        tag="Operations",
        answers={200: _json("A page of them.", ref("MovePage"), "Vary", "Content-Encoding")},
        errors=(*QUERY, 40050),
    ),
    "list_routes": Operation(
        tag="Operations",
        answers={200: _json("A page of partitions.", ref("RoutePage"), "Vary", "Content-Encoding")},
        errors=(*QUERY, 40050, *TOPIC),
    ),
    "list_topic_routes": Operation(
        tag="Operations",
        answers={200: _json("A page of partitions.", ref("RoutePage"), "Vary", "Content-Encoding")},
        errors=(*QUERY, 40050, *TOPIC),
    ),
    "attach_topic": Operation(
        tag="Operations",
        body=_body(ref("AttachTopic")),
        answers={201: _json("Attached.", ref("Topic")), 200: _json("It was.", ref("Topic"))},
        errors=(400, 404, 40955, 40964, 422, *WRITES),
    ),
    "detach_topic": Operation(
        tag="Operations",
        answers={204: _nothing("It is a topic of Kafka's alone.")},
        errors=(40964, *TOPIC, *WRITES),
    ),
    "move_partition": Operation(
        tag="Operations",
        body=_body(ref("MovePartition")),
        answers={200: _json("Where it is.", ref("ShownRoute"))},
        errors=(400, 404, 40964, 422, *PARTITION, *WRITES),
    ),
    "take_over_partition": Operation(
        tag="Operations",
        body=_body(ref("TakePartition")),
        answers={200: _json("Where it is.", ref("ShownRoute"))},
        errors=(400, 404, 409, 40964, 422, *PARTITION, *WRITES),
    ),
    "take_over_broker": Operation(
        tag="Operations",
        body=_body(ref("Takeover")),
        answers={200: _json("What was taken over.", ref("TakenOver"))},
        errors=(400, 404, 409, 422, *WRITES),
    ),
    "list_connections": Operation(
        tag="Operations",
        answers={200: _json("A page of them.", ref("ConnectionPage"), *OF_NODES)},
        errors=(*QUERY, 40050),
    ),
    "end_connection": Operation(tag="Operations", answers={204: _nothing("It has ended.")}, errors=(40454,)),
    "list_sessions": Operation(
        tag="Operations",
        answers={200: _json("A page of them.", ref("SessionPage"), *OF_NODES)},
        errors=(*QUERY, 40050),
    ),
    "end_session": Operation(tag="Operations", answers={204: _nothing("It has ended.")}, errors=(40454,)),
    "settings": Operation(
        tag="Operations",
        answers={200: _json("All of them.", ref("Settings"), "Vary", "Content-Encoding")},
        errors=QUERY,
    ),
    "list_tokens": Operation(
        tag="Access",
        answers={200: _json("A page of tokens.", ref("TokenPage"), "ETag", "Vary", "Content-Encoding")},
        errors=(*QUERY, 40050, 40958),
    ),
    "create_token": Operation(
        tag="Access",
        body=_body(ref("NewTokenWish")),
        headers=("If-Match",),
        answers={201: _json("The token.", ref("NewToken"))},
        errors=(400, 422, 42253, 40958, 41250, 50750),
    ),
    "revoke_token": Operation(
        tag="Access",
        headers=("If-Match",),
        answers={204: _nothing("It has ended.")},
        errors=(422, 40453, 40958, 41250, 50750),
    ),
    "get_rules": Operation(
        tag="Access",
        answers={200: _json("The rules.", ref("Rules"), "ETag", "Vary", "Content-Encoding")},
        errors=(*QUERY, 40958),
    ),
    "put_rules": Operation(
        tag="Access",
        body=_body(ref("RulesToPut")),
        headers=("If-Match",),
        answers={200: _json("The rules.", ref("Rules"), "ETag", "Vary", "Content-Encoding")},
        errors=(400, 422, 40958, 41250, 42850, 50750),
    ),
    "stats": Operation(
        tag="Operations",
        answers={200: _json("Figures over time.", ref("Stats"), "Vary", "Content-Encoding")},
        errors=QUERY,
    ),
    "stats_stream": Operation(
        tag="Operations",
        answers={200: Answer(description="One look a second.", content={EVENTS_TYPE: STATS_EVENT})},
        errors=(*QUERY, 42950),
    ),
    "me": Operation(tag="Operations", answers={200: _json("The caller.", ref("Me"))}, errors=QUERY),
    "openapi": Operation(tag="Operations", answers={200: _json("This document.", mapping({}), "Vary")}),
    "asyncapi": Operation(tag="Operations", answers={200: _json("The socket's document.", mapping({}), "Vary")}),
    "docs": Operation(
        tag="Operations", answers={200: Answer(description="A page to read.", content={"text/html": STRING})}
    ),
    "examples": Operation(
        tag="Operations",
        answers={
            200: Answer(description="A page to try the server with.", content={"text/html": STRING}),
            308: Answer(description="The same, with a slash at its end.", content={}, headers=("Location",)),
        },
    ),
    "console_file": Operation(
        tag="Operations",
        answers={
            200: Answer(
                description="A file of the web console.",
                content={
                    "text/html": STRING,
                    "text/javascript": STRING,
                    "text/css": STRING,
                    "image/svg+xml": STRING,
                    "image/png": BYTES,
                    "font/woff2": BYTES,
                },
            ),
            304: _nothing("As it was."),
        },
        errors=(404,),
    ),
    "example_file": Operation(
        tag="Operations",
        answers={
            200: Answer(
                description="A file of that page, or another page.",
                content={"text/html": STRING, "text/javascript": STRING},
            )
        },
        errors=(404,),
    ),
}

_TOPICS: dict[str, Operation] = {
    "brokers": Operation(tag="Topics", answers={200: _v2("One.", ref("Brokers"))}),
    "topic_names": Operation(tag="Topics", answers={200: _v2("Names.", ref("TopicNames"))}),
    "topic_metadata": Operation(tag="Topics", answers={200: _v2("The topic.", ref("TopicMetadata"))}, errors=(40403,)),
    "partitions": Operation(
        tag="Topics", answers={200: _v2("Its partitions.", ref("PartitionsMetadata"))}, errors=TOPIC
    ),
    "partition": Operation(
        tag="Topics", answers={200: _v2("The partition.", ref("PartitionMetadata"))}, errors=PARTITION
    ),
    "partition_offsets": Operation(
        tag="Topics", answers={200: _v2("Its bounds.", ref("PartitionOffsets"))}, errors=(*PARTITION, *READS)
    ),
    "list_topics": Operation(
        tag="Topics",
        answers={200: _json("Topics.", either(ref("Topics"), ref("TopicPage")), *OF_NODES)},
        errors=(*QUERY, 40050, *READS),
    ),
    "describe_topic": Operation(
        tag="Topics",
        answers={200: _json("The topic.", ref("TopicWithOffsets"), "Mq-Missing-Nodes")},
        errors=(*TOPIC, *READS),
    ),
    "create_topic": Operation(
        tag="Topics",
        body=_body(ref("NewTopic"), is_required=False),
        answers={
            200: _json("It is there already, in this shape.", ref("Topic")),
            201: _json("Created.", ref("Topic")),
        },
        errors=(400, 422, 40955, 42950, *WRITES),
    ),
    "change_topic": Operation(
        tag="Topics",
        body=_body(ref("TopicChanges")),
        answers={200: _json("As it is now.", ref("Topic"))},
        errors=(400, 422, 42950, *TOPIC, *WRITES),
    ),
    "admin_create_topic": Operation(
        tag="Topics",
        body=_body(ref("StrimziTopic")),
        answers={201: _nothing("Created, or there in this shape already.")},
        errors=(400, 422, 40002, 40955, 42950, *WRITES),
    ),
    "delete_topic": Operation(tag="Topics", answers={204: _nothing("Deleted.")}, errors=(*TOPIC, *WRITES)),
    "topic_offsets": Operation(
        tag="Topics",
        answers={200: _json("The bounds of all partitions.", ref("TopicOffsets"))},
        errors=(*QUERY, *TOPIC, *READS),
    ),
}

_SEND: dict[str, Operation] = {
    "produce": _PRODUCE,
    "produce_partition": replace(_PRODUCE, errors=(*_PRODUCE.errors, 404)),
    "produce_raw": Operation(
        tag="Send",
        body=Body(content={ANY_TYPE: said(ANY_BYTES, "The record's value.")}, is_required=False),
        headers=("Idempotency-Key", "If-Match", "Mq-Delay-Ms", "Mq-Deliver-At", "traceparent", "tracestate"),
        answers={
            201: _json("Stored.", ref("Receipt"), "Mq-Acks", "Idempotent-Replayed"),
            202: _json("Accepted, to be delivered later.", ref("Receipt"), "Mq-Acks", "Idempotent-Replayed"),
        },
        errors=(*QUERY, 41250, *TOPIC, *RECORDS, *IDEMPOTENCY, *WRITES),
    ),
    "produce_lines": Operation(
        tag="Send",
        body=Body(
            content={
                **dict.fromkeys(LINES_TYPES, lines(ref("LineRecord"), "One JSON record a line.")),
                JSON_TYPE: {ITEMS: ref("LineRecord"), "description": "The same."},
                "application/cloudevents-batch+json": said(array({}), "CloudEvents; each is judged alone."),
            }
        ),
        headers=("Idempotency-Key", "traceparent", "tracestate"),
        answers={
            200: Answer(
                description="A receipt for each line, in order.", content={LINES_TYPE: lines(ref("LineReceipt"))}
            )
        },
        errors=(*QUERY, 415, *TOPIC, *IDEMPOTENCY, 50350),
    ),
}

_READ: dict[str, Operation] = {
    "fetch": Operation(
        tag="Read",
        answers={
            200: Answer(
                description="Records from `offset` on; none when nothing came in time.",
                content={
                    **_record_arrays(ref("Records")),
                    LINES_TYPE: lines(ref("RecordLine")),
                    BATCH_TYPE: said(BYTES, "RecordBatches as they are stored. The first may begin before `offset`."),
                },
                headers=PULL_HEADERS,
            )
        },
        errors=(*QUERY, *PARTITION, 41601, 42252, *REGISTRY, *READS),
    ),
    "read_raw": Operation(
        tag="Read",
        answers={
            200: _raw("The record: its bytes, the rest in headers.", *PULL_HEADERS[:4]),
            204: _nothing("At the end of the partition, and nothing came in time.", *PULL_HEADERS[:4]),
        },
        errors=(*QUERY, *PARTITION, 41601, *READS),
    ),
    "read_queue": Operation(
        tag="Read",
        answers={200: _json("Records of a light queue.", ref("QueueRecords"), "Vary", "Content-Encoding")},
        errors=(*QUERY, *PARTITION, 40050, 40953, 40963, 42251, *READS),
    ),
    "follow_queue": Operation(
        tag="Read",
        headers=("Last-Event-ID",),
        answers={
            200: Answer(
                description="Records of a light queue as they come, for as long as the client stays.",
                content={EVENTS_TYPE: EVENT, LINES_TYPE: lines(ref("StreamLine"))},
            )
        },
        errors=(*QUERY, *PARTITION, 40050, 40953, 40963, 42251, 42950, *READS),
    ),
    "committed_in_queue": Operation(
        tag="Read",
        answers={200: _json("How far the group is.", ref("LightOffsets"))},
        errors=(*QUERY, *TOPIC, 40002, 40963, 42251, *READS),
    ),
    "commit_in_queue": Operation(
        tag="Read",
        answers={204: _nothing("Committed.")},
        errors=(*QUERY, *PARTITION, 40002, 40050, 40952, 40953, 40963, 41601, 42251, 42950, *READS, *WRITES),
    ),
    "forget_in_queue": Operation(
        tag="Read",
        answers={204: _nothing("Forgotten.")},
        errors=(*QUERY, *TOPIC, 40002, 40952, 42251, *WRITES),
    ),
    "get_queue": Operation(
        tag="Read",
        answers={200: _json("Where the light queue begins and ends.", ref("LightQueue"))},
        errors=(*TOPIC, 40963, 42251, *READS),
    ),
    "list_queues": Operation(
        tag="Read",
        answers={200: _json("A page of names.", ref("LightQueues"), "Vary", "Content-Encoding")},
        errors=(*QUERY, *TOPIC, 40050, 40963, *READS),
    ),
    "find_messages": Operation(
        tag="Read",
        answers={200: _json("A page of messages.", ref("FoundMessages"), "Vary", "Content-Encoding")},
        errors=(*QUERY, *PARTITION, 40050, *READS),
    ),
    "search_messages": Operation(
        tag="Read",
        body=_body(ref("Search"), is_required=False),
        answers={200: _json("A page of messages.", ref("SearchedMessages"), "Vary", "Content-Encoding")},
        errors=(400, 422, 42252, 42253, 42901, *PARTITION, 40050, *READS),
    ),
    "get_message": Operation(
        tag="Read",
        answers={
            200: Answer(
                description="The message; its bytes for `Accept: application/octet-stream`.",
                content={JSON_TYPE: ref("Message"), ANY_TYPE: ANY_BYTES},
                headers=RAW_HEADERS,
            )
        },
        errors=(40451, *READS),
    ),
    "follow_topic": Operation(
        tag="Read",
        headers=("Last-Event-ID",),
        answers={
            200: Answer(
                description="Records as they come, for as long as the client stays.",
                content={
                    EVENTS_TYPE: EVENT,
                    LINES_TYPE: lines(ref("StreamLine")),
                },
            )
        },
        errors=(*QUERY, *PARTITION, 40050, 40952, 40953, 41601, 42252, 42950, *READS),
    ),
}

_SCHEDULES: dict[str, Operation] = {
    "list_schedules": Operation(
        tag="Delayed records",
        answers={200: _json("A page of them.", ref("SchedulePage"), *OF_NODES)},
        errors=(*QUERY, *TOPIC, 40050, *READS),
    ),
    "schedule_histogram": Operation(
        tag="Delayed records",
        answers={
            200: _json("How many are due when.", either(ref("Histogram"), ref("HistogramOfBounds")), *OF_NODES),
        },
        errors=(*QUERY, *TOPIC, *READS),
    ),
    "change_schedules": Operation(
        tag="Delayed records",
        body=_body(ref("ScheduleBatch")),
        answers={200: _json("What became of each.", ref("ScheduleResults"))},
        errors=(400, 422, 42250, 42950, *WRITES),
    ),
    "get_schedule": Operation(
        tag="Delayed records",
        answers={200: _json("The schedule.", ref("Schedule"))},
        errors=(42253, *SCHEDULE, 50351, *READS),
    ),
    "cancel_schedule": Operation(
        tag="Delayed records",
        answers={204: _nothing("It will not be delivered.")},
        errors=(*SCHEDULE, *WRITES),
    ),
    "cancel_schedules": Operation(
        tag="Delayed records",
        answers={200: _json("How many there were.", ref("Cancelled"))},
        errors=(*QUERY, *TOPIC, *WRITES),
    ),
    "move_schedule": Operation(
        tag="Delayed records",
        body=_body(ref("Move")),
        answers={200: _json("Its new id and time.", ref("Moved"))},
        errors=(42250, *SCHEDULE, 42950, *WRITES),
    ),
    "fire_schedule": Operation(
        tag="Delayed records",
        answers={200: _json("Where it was delivered.", ref("Fired"))},
        errors=(*SCHEDULE, *WRITES),
    ),
}

_RECURRING: dict[str, Operation] = {
    "list_recurring": Operation(
        tag="Recurring schedules",
        answers={200: _json("A page of them.", ref("RecurringPage"), *OF_NODES)},
        errors=(*QUERY, *READS),
    ),
    "get_recurring": Operation(
        tag="Recurring schedules",
        answers={200: _json("The recurring schedule.", ref("Recurring"))},
        errors=(404, 40452),
    ),
    "put_recurring": Operation(
        tag="Recurring schedules",
        body=_body(ref("NewRecurring")),
        answers={
            200: _json("It was there; this is how it is now.", ref("Recurring")),
            201: _json("It is new.", ref("Recurring")),
        },
        errors=(400, 422, 404, *TOPIC, 40402, 40963, 41350, 42250, 42251, 42950, *WRITES),
    ),
    "delete_recurring": Operation(
        tag="Recurring schedules",
        answers={204: _nothing("It is gone.")},
        errors=(404, 40452, *WRITES),
    ),
    "pause_recurring": Operation(
        tag="Recurring schedules",
        answers={200: _json("It rests.", ref("Recurring"))},
        errors=(404, 40452, *WRITES),
    ),
    "resume_recurring": Operation(
        tag="Recurring schedules",
        answers={200: _json("It goes on.", ref("Recurring"))},
        errors=(404, 40452, *WRITES),
    ),
}

_LEASED = {200: _json("What became of each receipt.", ref("Results"))}

_GROUPS: dict[str, Operation] = {
    "receive": Operation(
        tag="Queue mode",
        body=_body(ref("Receive")),
        answers={
            200: Answer(
                description="Records on lease; an empty list when none came in time. "
                "With `Accept: application/octet-stream` and `max_messages` 1, the bytes of one.",
                content={JSON_TYPE: ref("Received"), ANY_TYPE: ANY_BYTES},
                headers=(*RAW_HEADERS, "Mq-Topic", "Mq-Receipt", "Mq-Delivery-Attempt", "Mq-Visible-Until"),
            ),
            204: _nothing("None came in time, and bytes were asked for."),
        },
        errors=(*LEASES, *TOPIC, 40952, 40963, 42251, 42252, 42253),
    ),
    "ack": Operation(
        tag="Queue mode",
        body=_body(ref("Ack")),
        answers={
            200: _json(
                "What became of each receipt; with `up_to`, how many.", {"anyOf": [ref("Results"), ref("Acked")]}
            )
        },
        errors=(*LEASES, 40401, 40402),
    ),
    "nack": Operation(tag="Queue mode", body=_body(ref("Nack")), answers=_LEASED, errors=(*LEASES, 42250)),
    "reject": Operation(tag="Queue mode", body=_body(ref("Reject")), answers=_LEASED, errors=LEASES),
    "extend": Operation(tag="Queue mode", body=_body(ref("Extend")), answers=_LEASED, errors=(*LEASES, 42253)),
    "list_groups": Operation(
        tag="Groups",
        answers={200: _json("Groups.", either(ref("GroupList"), ref("GroupPage")), *OF_NODES)},
        errors=(*QUERY, 40050, *READS),
    ),
    "list_light_groups": Operation(
        tag="Groups",
        answers={200: _json("A page of them.", ref("LightGroupPage"))},
        errors=(*QUERY, 40050, *READS),
    ),
    "group_light_offsets": Operation(
        tag="Groups",
        answers={200: _json("A page of them.", ref("LightPlacePage"), "Vary", "Content-Encoding")},
        errors=(*QUERY, 40050, 40405),
    ),
    "group_leases": Operation(
        tag="Groups",
        answers={200: _json("A page of them.", ref("LeasePage"), "Vary", "Content-Encoding")},
        errors=(*QUERY, 40050, 40405),
    ),
    "lag_history": Operation(
        tag="Groups",
        answers={200: _json("The lag over time.", ref("LagHistory"), "Vary", "Content-Encoding")},
        errors=(*QUERY, 40405),
    ),
    "settle_letters": Operation(
        tag="Groups",
        body=_body(ref("SettleLetters")),
        answers={200: _json("What became of each.", ref("LetterResults"))},
        errors=(400, *GROUP, 42253),
    ),
    "describe_group": Operation(tag="Groups", answers={200: _json("The group.", ref("Group"))}, errors=(40405, 50351)),
    "delete_group": Operation(tag="Groups", answers={204: _nothing("Forgotten.")}, errors=(*GROUP, 40952)),
    "configure_group": Operation(
        tag="Groups",
        body=_body(ref("GroupChanges"), is_required=False),
        answers={200: _json("All settings.", ref("GroupSettings"))},
        errors=(400, *GROUP, 40952),
    ),
    "group_lag": Operation(
        tag="Groups",
        answers={
            200: _json(
                "By partition, and in all.", either(ref("GroupLag"), ref("GroupLagPage")), "Vary", "Content-Encoding"
            )
        },
        errors=(*QUERY, 40050, 40405, *TOPIC, *READS),
    ),
    "reset_offsets": Operation(
        tag="Groups",
        body=_body(ref("Reset")),
        answers={200: _json("What moved, or would move.", ref("Moves"))},
        errors=(400, *GROUP, 40401, 40402, 40952),
    ),
    "dead_letters": Operation(
        tag="Groups",
        answers={200: _json("A page of them.", ref("DeadLetters"))},
        errors=(*QUERY, 40405, 50351, *READS),
    ),
    "redrive": Operation(
        tag="Groups",
        body=_body(ref("Redrive"), is_required=False),
        answers={200: _json("How many were sent back.", ref("Redriven"))},
        errors=(400, *GROUP, 42253),
    ),
}

_READ_RECORDS = {
    200: Answer(description="Records; none when none came in time.", content=_record_arrays(ref("Records")))
}
_DONE = {204: _nothing("Done.")}

_INSTANCES: dict[str, Operation] = {
    "create_instance": Operation(
        tag="Consumer instances",
        body=_body(either(ref("NewInstance"), {"type": "null"}), is_required=False, types=(V2_TYPE, JSON_TYPE)),
        answers={200: _v2("Created.", ref("Instance"))},
        errors=(*INSTANCE, 40001, 40902, 42202, 42204),
    ),
    "delete_instance": Operation(tag="Consumer instances", answers={204: _nothing("Forgotten.")}, errors=INSTANCE),
    "subscribe": Operation(
        tag="Consumer instances",
        body=_body(ref("Subscription"), types=(V2_TYPE, JSON_TYPE)),
        answers=_DONE,
        errors=(*INSTANCE, 40401, 40903, 40952),
    ),
    "subscription": Operation(
        tag="Consumer instances",
        answers={200: _v2("Topics.", ref("SubscribedTopics"))},
        errors=(*INSTANCE,),
    ),
    "unsubscribe": Operation(tag="Consumer instances", answers=_DONE, errors=INSTANCE),
    "assign": Operation(
        tag="Consumer instances",
        body=_body(ref("PartitionsToName"), types=(V2_TYPE, JSON_TYPE)),
        answers=_DONE,
        errors=(*INSTANCE, 40401, 40402, 40903),
    ),
    "assignments": Operation(
        tag="Consumer instances",
        answers={200: _v2("Partitions.", ref("AssignedPartitions"))},
        errors=(*INSTANCE,),
    ),
    "instance_records": Operation(
        tag="Consumer instances",
        answers=_READ_RECORDS,
        errors=(*INSTANCE, 40401, 40402, 40601, 40801, 40903, 42252, 42253, 40959, 40952, *REGISTRY),
    ),
    "v1_records": Operation(
        tag="Consumer instances",
        answers=_READ_RECORDS,
        errors=(*INSTANCE, 40401, 40402, 40601, 40801, 40901, 40903, 42252, 42253, 40959, 40952, *REGISTRY),
    ),
    "commit_offsets": Operation(
        tag="Consumer instances",
        body=_body(either(ref("OffsetsToCommit"), {"type": "null"}), is_required=False, types=(V2_TYPE, JSON_TYPE)),
        answers={
            200: _v2("Committed.", ref("NoErrors")),
            204: _nothing("Committed, for instances created with `enable.auto.commit`."),
        },
        errors=(*INSTANCE, 40401, 40402, 40406, 40952, 40959),
    ),
    "committed_offsets": Operation(
        tag="Consumer instances",
        answers={200: _v2("Offsets.", ref("CommittedOffsets"))},
        errors=(*INSTANCE, 40401, 40402, 42253),
    ),
    "query_committed_offsets": Operation(
        tag="Consumer instances",
        body=_body(ref("PartitionsToName"), types=(V2_TYPE, JSON_TYPE)),
        answers={200: _v2("Offsets.", ref("CommittedOffsets"))},
        errors=(*INSTANCE, 40401, 40402),
    ),
    "seek": Operation(
        tag="Consumer instances",
        body=_body(ref("Positions"), types=(V2_TYPE, JSON_TYPE)),
        answers=_DONE,
        errors=(*INSTANCE, 40401, 40402, 40903),
    ),
    "seek_to_beginning": Operation(
        tag="Consumer instances",
        body=_body(ref("PartitionsToName"), types=(V2_TYPE, JSON_TYPE)),
        answers=_DONE,
        errors=(*INSTANCE, 40401, 40402, 40903),
    ),
    "seek_to_end": Operation(
        tag="Consumer instances",
        body=_body(ref("PartitionsToName"), types=(V2_TYPE, JSON_TYPE)),
        answers=_DONE,
        errors=(*INSTANCE, 40401, 40402, 40903),
    ),
    "v1_messages": Operation(tag="Read", answers=_READ_RECORDS, errors=(*QUERY, *PARTITION, *REGISTRY, *READS)),
}


def _v3(answer: Answer, *errors: int, status: int = 200, body: Body | None = None) -> Operation:
    return Operation(tag="REST Proxy v3", answers={status: answer}, errors=(404, *errors), body=body)


_V3: dict[str, Operation] = {
    "v3_clusters": _v3(_json("One.", ref("V3Clusters"))),
    "v3_cluster": _v3(_json("The cluster.", ref("V3Cluster"))),
    "v3_brokers": _v3(_json("One.", ref("V3Brokers"))),
    "v3_broker": _v3(_json("The broker.", ref("V3Broker"))),
    "v3_broker_configs": _v3(_json("Defaults.", ref("V3BrokerConfigs"))),
    "v3_topics": _v3(_json("Topics.", ref("V3Topics"), "Vary", "Content-Encoding"), *QUERY, 40050),
    "v3_create_topic": _v3(
        _json("Created, or with `validate_only` found fit.", ref("V3Topic"), "Location"),
        400,
        422,
        40002,
        42950,
        *WRITES,
        status=201,
        body=_body(ref("V3NewTopic")),
    ),
    "v3_topic": _v3(_json("The topic.", ref("V3Topic")), *V3_TOPIC),
    "v3_change_topic": _v3(
        _json("As it is now.", ref("V3Topic")),
        400,
        422,
        40002,
        42950,
        *V3_TOPIC,
        *WRITES,
        body=_body(ref("V3TopicChanges")),
    ),
    "v3_delete_topic": _v3(_nothing("Deleted."), *V3_TOPIC, *WRITES, status=204),
    "v3_topic_configs": _v3(_json("All settings.", ref("V3TopicConfigs")), *V3_TOPIC),
    "v3_alter_topic_configs": _v3(
        _nothing("Chosen."), 400, 40002, *V3_TOPIC, *WRITES, status=204, body=_body(ref("V3ConfigChanges"))
    ),
    "v3_topic_config": _v3(_json("The setting.", ref("V3TopicConfig")), *V3_TOPIC),
    "v3_set_topic_config": _v3(
        _nothing("Chosen."), 400, 40002, *V3_TOPIC, *WRITES, status=204, body=_body(ref("V3ConfigValue"))
    ),
    "v3_reset_topic_config": _v3(_nothing("Taken back."), 40002, *V3_TOPIC, *WRITES, status=204),
    "v3_partitions": _v3(_json("Partitions.", ref("V3Partitions")), *V3_TOPIC),
    "v3_partition": _v3(_json("The partition.", ref("V3Partition")), *V3_TOPIC, 40402),
    "v3_partition_offset": _v3(_json("Its bounds.", ref("V3PartitionOffsets")), *V3_TOPIC, 40402, *READS),
    "v3_replicas": _v3(_json("One.", ref("V3Replicas")), *V3_TOPIC, 40402),
    "v3_produce": Operation(
        tag="REST Proxy v3",
        body=Body(content={JSON_TYPE: ref("V3Record")}),
        headers=("Idempotency-Key", "traceparent", "tracestate"),
        answers={
            200: Answer(
                description="A receipt for each record, a line each, in order, as they are stored.",
                content={JSON_TYPE: {ITEMS: ref("V3Receipt")}},
            )
        },
        errors=(*V3_TOPIC, *IDEMPOTENCY, 50350),
    ),
    "v3_produce_batch": Operation(
        tag="REST Proxy v3",
        body=_body(ref("V3Batch")),
        headers=("Idempotency-Key", "traceparent", "tracestate"),
        answers={207: _json("What became of each entry.", ref("V3BatchReceipts"))},
        errors=(42208, *V3_TOPIC, *IDEMPOTENCY),
    ),
    "v3_groups": _v3(_json("Groups.", ref("V3Groups"), *OF_NODES), 50351),
    "v3_group": _v3(_json("The group.", ref("V3Group")), *V3_GROUP),
    "v3_consumers": _v3(_json("Members.", ref("V3Consumers")), *V3_GROUP),
    "v3_consumer": _v3(_json("The member.", ref("V3Consumer")), *V3_GROUP),
    "v3_assignments": _v3(_json("Its partitions.", ref("V3Assignments")), *V3_GROUP),
    "v3_lag_summary": _v3(_json("The lag.", ref("V3LagSummary")), *V3_GROUP),
    "v3_lags": _v3(_json("Lags.", ref("V3Lags")), *V3_GROUP),
    "v3_lag": _v3(_json("The lag.", ref("V3Lag")), *V3_GROUP, 40401),
}

_UPGRADED = {101: _nothing("The socket is open.")}

_SOCKETS: dict[str, Operation] = {
    "issue_ticket": Operation(tag="Sockets", answers={200: _json("A ticket.", ref("Ticket"))}, errors=(42950,)),
    "websocket": Operation(tag="Sockets", answers=_UPGRADED, errors=(400, 42950, 50350)),
    "websocket_consume": Operation(
        tag="Sockets", answers=_UPGRADED, errors=(400, 422, 40050, 40401, 40402, 42252, 42253, 42950, 50350)
    ),
    "websocket_produce": Operation(
        tag="Sockets", answers=_UPGRADED, errors=(400, 422, 40401, 40402, 41350, 42251, 42950, 50350)
    ),
}

OPERATIONS: dict[str, Operation] = {
    **_SEND,
    **_READ,
    **_TOPICS,
    **_SCHEDULES,
    **_RECURRING,
    **_GROUPS,
    **_INSTANCES,
    **_V3,
    **_SOCKETS,
    **_OPS,
}
