"""Records to send, in their forms, and the receipts for them."""

from __future__ import annotations

from gateway.codec.schema_parts import SCHEMA_ID_MAX, SchemaFormat, SubjectStrategy
from gateway.codec.times import TIME_MS_MAX
from gateway.settings.limits import Limits
from gateway.surfaces.openapi.shapes import (
    ANYTHING,
    BASE64,
    BOOLEAN,
    COUNT,
    OFFSET,
    PARTITION,
    STRING,
    TIME,
    TIME_MS,
    TIME_TEXT,
    Schema,
    array,
    either,
    exactly,
    integer,
    nullable,
    obj,
    ref,
    said,
    text,
    with_example,
    words,
)


def sent(limits: Limits) -> dict[str, Schema]:
    """Records and requests that hold them."""
    common = record_fields(limits)
    anything = said(ANYTHING, "Any JSON, stored as compact JSON. null: no key, or a tombstone.")
    texts: Schema = nullable(STRING)
    encoded = nullable(BASE64)
    lines = {
        "key": anything,
        "key_text": nullable(STRING),
        "key_b64": encoded,
        "value": anything,
        "value_text": nullable(STRING),
        "value_b64": encoded,
    }
    return {
        "V3Record": v3_record(limits),
        "HeaderToSend": either(
            obj({"key": text(least=1)}, {"value": nullable(BASE64)}),
            obj({"key": text(least=1), "text": STRING}),
        ),
        "JsonRecord": obj({}, {"key": anything, "value": anything, **common}),
        "BinaryRecord": obj({}, {"key": encoded, "value": encoded, **common}),
        "TextRecord": obj({}, {"key": texts, "value": texts, **common}),
        "SchemaRecord": obj(
            {},
            {
                "key": said(ANYTHING, "JSON by the keys' schema; null: no key."),
                "value": said(ANYTHING, "JSON by the values' schema; null: a tombstone."),
                **common,
            },
        ),
        "SchemaRecords": with_example(
            obj(
                {"records": array(ref("SchemaRecord"), least=1, most=limits.records_per_request_max)},
                {
                    f"{name}_schema{suffix}": nullable(kind)
                    for name in ("key", "value")
                    for suffix, kind in (
                        ("", said(STRING, "The schema, registered if it is new.")),
                        ("_id", said(integer(1, SCHEMA_ID_MAX), "Its id in the registry, instead.")),
                    )
                },
                description="In Avro, JSON Schema or Protobuf, by a schema registry.",
            ),
            {"value_schema_id": 5, "records": [{"value": {"sku": 9}}]},
        ),
        "LineRecord": said(
            obj({}, {**lines, **common}),
            "One line. Key and value each in one form: JSON, a plain string (`_text`), or base64 (`_b64`).",
        ),
        **{
            f"{form}Records": with_example(
                obj(
                    {"records": array(ref(f"{form}Record"), least=1, most=limits.records_per_request_max)},
                    {
                        name: said(ANYTHING, "Of old clients; ignored.")
                        for name in ("key_schema", "key_schema_id", "value_schema", "value_schema_id")
                    },
                ),
                {"records": example},
            )
            for form, example in (
                ("Json", [{"key": "u1", "value": {"sku": 9}}, {"value": "later", "delay_ms": 90_000, "tag": "paid"}]),
                ("Binary", [{"key": "dTE=", "value": "eyJza3UiOjl9"}]),
                ("Text", [{"key": "u1", "value": "paid"}]),
            )
        },
    }


def record_fields(limits: Limits) -> dict[str, Schema]:
    """What a record to send may have besides its key and value."""
    return {
        "partition": said(nullable(PARTITION), "Else the server chooses one."),
        "headers": nullable(array(ref("HeaderToSend"), most=limits.header_count_max)),
        "timestamp": said(nullable(integer(0, TIME_MS_MAX)), "Event time, epoch milliseconds."),
        "tag": said(nullable(text(limits.tag_bytes_max, least=1, pattern=r"^[^|]*$")), "A short text to filter by."),
        "delay_ms": said(nullable(integer(0, limits.delay_ms_max)), "Deliver later. Excludes deliver_at."),
        "deliver_at": said(nullable(TIME), "Deliver then, at once if it is past. Excludes delay_ms."),
        "msg_id": said(nullable(text(limits.msg_id_bytes_max, least=1)), "Sent again, it is stored once."),
        "message_group": said(
            nullable(text(limits.message_group_bytes_max, least=1)), "Its records go to one partition, in order."
        ),
        "schedule_key": said(
            nullable(text(limits.schedule_key_bytes_max, least=1)),
            "A name for the schedule of a delayed record, unique in its topic while it is pending.",
        ),
        "queues": said(
            nullable(
                array(
                    text(limits.light_queue_name_bytes_max, least=1, pattern=r"^[^*]*$"),
                    most=limits.light_queues_per_record_max,
                )
            ),
            "Light queues that it is in as well, each once (docs/light-queues.md).",
        ),
    }


def v3_record(limits: Limits) -> Schema:
    """A record to send by the REST Proxy's v3 API."""
    by_schema = {
        "subject_name_strategy": nullable(words(*(strategy.name for strategy in SubjectStrategy))),
        "subject": nullable(STRING),
        "schema_id": nullable(integer(1, SCHEMA_ID_MAX)),
        "schema_version": nullable(integer(1, SCHEMA_ID_MAX)),
        "schema": nullable(STRING),
    }
    ignored = dict.fromkeys(by_schema, ANYTHING)
    data = either(
        {"type": "null"},
        obj(
            {},
            {
                "type": nullable(words(*(fmt.name for fmt in SchemaFormat))),
                "data": said(ANYTHING, "JSON by the schema; null: no key, or a tombstone."),
                **by_schema,
            },
            description="By a schema registry: a schema with its type, an id, a version, or the subject's newest.",
        ),
        obj({"type": exactly("BINARY")}, {"data": nullable(BASE64), **ignored}),
        obj({"type": exactly("JSON")}, {"data": ANYTHING, **ignored}),
        obj({"type": exactly("STRING")}, {"data": nullable(STRING), **ignored}),
    )
    own = record_fields(limits)
    record = {
        "partition_id": nullable(PARTITION),
        "headers": nullable(array(obj({"name": text(least=1)}, {"value": nullable(BASE64)}), most=64)),
        "key": data,
        "value": data,
        "timestamp": nullable(TIME),
        **{field: own[field] for field in own if field not in ("partition", "headers", "timestamp")},
    }
    example = {"value": {"type": "JSON", "data": {"sku": 9}}, "key": {"type": "STRING", "data": "u1"}}
    return with_example(obj({}, record), example)


_DELAYED = {
    "schedule_id": said(STRING, "Of a delayed record: what it can be listed, moved and cancelled by."),
    "deliver_at": said(TIME_MS, "When a delayed record will be delivered, epoch milliseconds."),
}
_DUPLICATE = {"duplicate": said(exactly(True), "It was stored before; this is where.")}


def receipts() -> dict[str, Schema]:
    """What a send is answered with."""
    offset = said(nullable(OFFSET), "null for a delayed record, and for a repeat whose offset is forgotten.")
    native = {"message_id": STRING, **_DELAYED, **_DUPLICATE}
    v3 = {
        "cluster_id": STRING,
        "topic_name": STRING,
        "partition_id": PARTITION,
        "offset": offset,
        "timestamp": TIME_TEXT,
    }
    v3_sizes = {
        name: obj({"type": ANYTHING, "size": COUNT}, {"subject": STRING, "schema_id": COUNT, "schema_version": COUNT})
        for name in ("key", "value")
    }
    v3_more: dict[str, Schema] = {**v3_sizes, **_DELAYED, **_DUPLICATE}
    v3_error: dict[str, Schema] = {"error_code": integer(400, 50_999), "message": STRING}
    return {
        "Offsets": obj(
            {
                "offsets": array(
                    either(
                        obj(
                            {
                                "partition": PARTITION,
                                "offset": offset,
                                "error_code": {"type": "null"},
                                "error": {"type": "null"},
                            },
                            {**_DELAYED, **_DUPLICATE},
                        ),
                        obj(
                            {
                                "partition": {"type": "null"},
                                "offset": {"type": "null"},
                                "error_code": integer(400, 50_999),
                                "error": STRING,
                            },
                            description="This record was refused; the others were not touched.",
                        ),
                    )
                ),
                "key_schema_id": said(nullable(COUNT), "Of the schema that keys were serialized by."),
                "value_schema_id": said(nullable(COUNT), "Of the schema that values were serialized by."),
            },
            description="A receipt for each record, in order.",
        ),
        "BatchOffsets": obj(
            {"offsets": array(obj({"partition": PARTITION, "offset": offset, "record_count": COUNT}, _DUPLICATE))},
            description="A receipt for each batch, in order.",
        ),
        "Receipt": with_example(
            obj({"topic": STRING, "partition": PARTITION, "offset": offset, "timestamp": TIME_MS}, native),
            {"topic": "orders", "partition": 2, "offset": 105, "message_id": "16-2-105", "timestamp": 1767225600123},
        ),
        "LineReceipt": either(
            obj({"i": said(COUNT, "Which line."), "partition": PARTITION, "offset": offset}, native),
            obj(
                {"i": COUNT, "error_code": integer(400, 50_999), "error": STRING},
                {"retriable": BOOLEAN},
                description="This line was refused; the others were not touched.",
            ),
            obj({"count": COUNT, "error_count": COUNT}, description="The last line with receipts=errors."),
            obj(
                {"error_code": integer(400, 50_999), "error": STRING, "count": COUNT},
                description="The last line of a stream that ended early: `count` lines have their receipts.",
            ),
        ),
        "V3Receipt": either(
            obj({"error_code": exactly(200), **v3}, v3_more),
            obj(v3_error, description="This record was refused; the others were not touched."),
        ),
        "V3BatchReceipts": obj(
            {"successes": array(obj({"id": STRING, **v3}, v3_more)), "failures": array(obj({"id": STRING, **v3_error}))}
        ),
    }
