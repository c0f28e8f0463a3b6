"""Records as they are read: in the REST Proxy's formats and in the native form, leased, dead or scheduled."""

from __future__ import annotations

from collections.abc import Mapping

from gateway.surfaces.openapi.shapes import (
    ANYTHING,
    BASE64,
    COUNT,
    OFFSET,
    PARTITION,
    STRING,
    TIME_MS,
    Schema,
    array,
    either,
    exactly,
    integer,
    mapping,
    nullable,
    obj,
    ref,
    said,
    words,
)

MISSING_NODES = {
    "missing_nodes": said(array(STRING), "In a cluster: the nodes that did not answer. What they have is not here.")
}
_HEADERS = array(obj({"key": STRING, "value": nullable(BASE64)}))
_POSITION = {"topic": STRING, "partition": PARTITION, "offset": OFFSET}
_TIMES = {"timestamp": said(TIME_MS, "Event time."), "store_timestamp": said(TIME_MS, "When it was stored.")}
SHOWN = {
    "headers": _HEADERS,
    "tag": STRING,
    "deliver_at": said(nullable(TIME_MS), "When it was due, if it was delayed."),
    "schedule_id": STRING,
    "schedule_key": STRING,
}
NATIVE_PARTS = {
    "key": said(ANYTHING, "Where its bytes are JSON, or there is none (null)."),
    "key_text": said(STRING, "Where the key's bytes are UTF-8 and not JSON."),
    "key_b64": said(BASE64, "Where they are neither."),
    "value": said(ANYTHING, "Where its bytes are JSON, or there is none (null: a tombstone)."),
    "value_text": STRING,
    "value_b64": BASE64,
}


_QUEUE = {
    "queue": said(STRING, "The light queue's name."),
    "queue_offset": said(OFFSET, "There; `offset` is the partition's."),
}
_IN_QUEUE = {"message_id": STRING, **_QUEUE}


def native_record(required: Mapping[str, Schema], optional: Mapping[str, Schema] | None = None) -> Schema:
    """A record in the native form."""
    return obj({**_POSITION, **_TIMES, **required}, {**NATIVE_PARTS, **SHOWN, **(optional or {})})


def shown() -> dict[str, Schema]:
    """Records, messages and lines."""
    record = obj(
        {**_POSITION, **_TIMES, "key": ANYTHING, "value": ANYTHING},
        {
            **SHOWN,
            "key_b64": BASE64,
            "value_b64": BASE64,
            "error_code": said(exactly(40801), "It does not decode in the format asked for."),
            "error": STRING,
        },
        description="Key and value as JSON, base64 or text, or JSON by a schema: as the format says.",
    )
    cursor = said(STRING, "The next offset of every partition.")
    error_event = {"error_code": integer(400, 50_999), "message": STRING, "details": nullable(mapping(ANYTHING))}
    events: dict[str, tuple[str, dict[str, Schema]]] = {
        "connected": ("The stream has begun.", {"epochs": mapping(STRING)}),
        "caught_up": ("Nothing more is stored; once.", {}),
        "heartbeat": ("Nothing has happened for 15 s.", {}),
        "error": ("The stream cannot go on, and ends.", error_event),
        "goaway": ("The server stops: connect again.", {"reason": STRING, "reconnect_after_ms": COUNT}),
    }
    return {
        "Record": record,
        "Records": array(ref("Record")),
        "Message": native_record({"message_id": STRING}),
        "RecordLine": either(
            ref("Message"),
            said(ref("Record"), "With `format=`."),
            obj(
                {"error_code": integer(400, 50_999), "error": STRING, "next_offset": OFFSET},
                description="The last line of a range that could not be read to its end.",
            ),
        ),
        "StreamLine": either(
            native_record({"message_id": STRING, "cursor": cursor}),
            native_record({**_IN_QUEUE, "cursor": cursor}),
            obj(
                {**_POSITION, **_TIMES, "key": ANYTHING, "value": ANYTHING, "cursor": cursor},
                {
                    **SHOWN,
                    "key_b64": BASE64,
                    "value_b64": BASE64,
                    "error_code": exactly(40801),
                    "error": STRING,
                },
                description="With `format=`.",
            ),
            *(
                obj({"event": exactly(name), **named, "cursor": cursor}, description=description)
                for name, (description, named) in events.items()
            ),
            ref("Delivered"),
            native_record({"message_id": nullable(STRING), "delivery_attempt": integer(1)}, {"message_group": STRING}),
            obj(
                {"event": words("heartbeat", "goaway", "error")},
                {"reason": STRING, "error_code": integer(0), "message": STRING, "details": ANYTHING},
                description="With `group=`, where nothing has a cursor.",
            ),
        ),
        "QueueRecords": obj(
            {
                "records": array(
                    native_record(_IN_QUEUE),
                ),
                "next_cursor": said(STRING, "Send it back as `cursor`, at the end too."),
            }
        ),
        "LightQueues": obj(
            {
                "queues": said(array(STRING), "Names, in the order of their bytes. Some may have no record left."),
                "next_cursor": said(nullable(STRING), "Send it back as `cursor`; null at the end."),
            }
        ),
        "LightQueue": obj(
            {
                "topic": STRING,
                "queue": STRING,
                "record_count": COUNT,
                "partitions": array(
                    obj({"partition": integer(0), "beginning_offset": OFFSET, "end_offset": OFFSET}),
                ),
            }
        ),
        "LightOffsets": obj(
            {
                "group": STRING,
                "topic": STRING,
                "queue": STRING,
                "cursor": said(nullable(STRING), "Where the group reads on; null: it has never said."),
                "partitions": array(
                    obj({"partition": integer(0), "committed": OFFSET, "end_offset": OFFSET, "lag": COUNT}),
                ),
            }
        ),
        "FoundMessages": obj(
            {
                "messages": array(ref("Message")),
                "next_cursor": said(nullable(STRING), "Send it back as `cursor`; null at the end."),
            }
        ),
    }


def searched() -> dict[str, Schema]:
    """What a search through a topic finds."""
    cut = {"value_truncated": exactly(True), "value_size": said(COUNT, "Of the whole value, in bytes.")}
    return {
        "SearchedMessages": obj(
            {
                "messages": array(native_record({"message_id": STRING}, cut)),
                "scanned_records": COUNT,
                "scanned_bytes": COUNT,
                "complete": said({"type": "boolean"}, "Nothing is left to look through."),
                "next_cursor": said(nullable(STRING), "Search on with it; null: complete."),
            }
        )
    }


def leased() -> dict[str, Schema]:
    """Records of queue mode, and what became of their receipts."""
    result = either(
        obj({"receipt": STRING, "ok": exactly(True)}, {"new_receipt": said(STRING, "After extend: use this one.")}),
        obj(
            {"receipt": STRING, "ok": exactly(False), "error_code": {"enum": [40050, 40951]}, "error": STRING},
        ),
    )
    return {
        "Delivered": native_record(
            {
                "message_id": nullable(STRING),
                "delivery_attempt": integer(1),
                "receipt": said(STRING, "What it is settled by, until `visible_until`."),
                "visible_until": TIME_MS,
            },
            {"message_group": STRING, **_QUEUE},
        ),
        "Received": obj(
            {
                "messages": array(ref("Delivered")),
                "backlog": said(COUNT, "Records of these topics that the group has not been handed yet."),
            }
        ),
        "Results": obj({"results": array(result)}, description="One for each receipt, in order."),
        "DeadLetters": obj(
            {
                "messages": array(
                    obj(
                        {
                            "offset": said(OFFSET, "In the dead-letter topic."),
                            "topic": said(nullable(STRING), "Where it came from."),
                            "partition": nullable(PARTITION),
                            "topic_offset": nullable(OFFSET),
                            "queue": said(nullable(STRING), "The light queue it was received from, if it was."),
                            "delivery_attempts": nullable(COUNT),
                            "reason": nullable(STRING),
                            "dead_lettered_at": nullable(TIME_MS),
                            "timestamp": TIME_MS,
                        },
                        {**NATIVE_PARTS, **SHOWN},
                    )
                ),
                "next_offset": nullable(OFFSET),
                "total": {"type": "integer"},
            }
        ),
    }


def _batch_results() -> list[Schema]:
    done: dict[str, Schema] = {"schedule_id": STRING, "ok": exactly(True)}
    failed = {"schedule_id": STRING, "ok": exactly(False), "error_code": integer(400, 50_999), "error": STRING}
    moved = {"new_schedule_id": said(STRING, "The old one is gone."), "deliver_at": TIME_MS}
    fired = {"topic": nullable(STRING), "partition": PARTITION, "offset": OFFSET}
    return [obj(done), obj({**done, **moved}), obj({**done, **fired}), obj(failed)]


def schedules() -> dict[str, Schema]:
    """Delayed records that are pending, and the record of a recurring schedule."""
    row: dict[str, Schema] = {
        "schedule_id": STRING,
        "topic": said(nullable(STRING), "null: it was deleted."),
        "partition": PARTITION,
        "tag": nullable(STRING),
        "schedule_key": said(nullable(STRING), "Its sender's name for it."),
        "deliver_at": TIME_MS,
        "created_at": said(nullable(TIME_MS), "When it was accepted."),
        "timestamp": TIME_MS,
        "size": COUNT,
        "state": exactly("pending"),
    }
    parts = {
        "key": said(ANYTHING, "Where it is JSON, or there is none."),
        "key_base64": BASE64,
        "value": said(ANYTHING, "With include=value."),
        "value_base64": BASE64,
        "queues": said(array(STRING), "Light queues that it will be in as well."),
    }
    recurring = {**NATIVE_PARTS, "headers": _HEADERS, "partition": PARTITION, "tag": STRING, "message_group": STRING}
    recurring["queues"] = array(STRING)
    return {
        "RecurringRecord": obj({}, recurring),
        "Schedule": obj(row, parts),
        "ScheduleResults": obj({"results": array(either(*_batch_results()))}),
        "SchedulePage": obj(
            {
                "schedules": array(ref("Schedule")),
                "next_cursor": nullable(STRING),
                "total": said(nullable(COUNT), "Exact; null where it would have to be counted each time."),
            },
            MISSING_NODES,
        ),
    }
