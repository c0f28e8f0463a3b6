"""Delayed records."""

from __future__ import annotations

from gateway.api.shapes.schedules import MoveBy, MoveTo
from gateway.api.shapes.schema import schema_of
from gateway.settings.limits import Limits
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
    nullable,
    obj,
    ref,
    said,
    with_example,
)


def schedules(limits: Limits) -> dict[str, Schema]:
    """Schedules, and what becomes of them."""
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
    }
    return {
        "Schedule": obj(row, parts),
        "SchedulePage": obj(
            {
                "schedules": array(ref("Schedule")),
                "next_cursor": nullable(STRING),
                "total": said(nullable(COUNT), "Exact; null where it would have to be counted each time."),
            }
        ),
        "Cancelled": obj({"cancelled": COUNT}),
        "Move": with_example(
            either(schema_of(MoveTo, limits), schema_of(MoveBy, limits)),
            {"delay_ms": 60_000},
            {"deliver_at": "2026-01-31T09:30:00Z"},
        ),
        "Moved": obj({"schedule_id": said(STRING, "The new id; the old one is gone."), "deliver_at": TIME_MS}),
        "Fired": obj({"topic": nullable(STRING), "partition": PARTITION, "offset": OFFSET}),
        "Histogram": obj({"from": TIME_MS, "bucket_ms": COUNT, "counts": array(COUNT), "total": COUNT}),
    }
