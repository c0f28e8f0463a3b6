"""Recurring schedules."""

from __future__ import annotations

from gateway.api.shapes.recurring import RecurringBody
from gateway.api.shapes.schema import not_null, schema_of
from gateway.settings.limits import Limits
from gateway.surfaces.openapi.schemas.shown import NATIVE_PARTS, SHOWN_HEADERS
from gateway.surfaces.openapi.shapes import (
    BOOLEAN,
    COUNT,
    OFFSET,
    PARTITION,
    STRING,
    TIME_MS,
    Schema,
    array,
    integer,
    nullable,
    obj,
    ref,
    said,
)


def recurring(limits: Limits) -> dict[str, Schema]:
    """Recurring schedules, to make and as they are shown."""
    body = schema_of(RecurringBody, limits)
    asked = body["properties"]
    record = obj(
        {},
        {
            **NATIVE_PARTS,
            "headers": SHOWN_HEADERS,
            "partition": PARTITION,
            "tag": STRING,
            "message_group": STRING,
        },
    )
    row: dict[str, Schema] = {
        "name": STRING,
        "topic": STRING,
        "every_ms": asked["every_ms"],
        "anchor": nullable(TIME_MS),
        "cron": asked["cron"],
        "tz": asked["tz"],
        "missed": not_null(asked["missed"]) if "anyOf" in asked["missed"] else asked["missed"],
        "paused": BOOLEAN,
        "version": said(integer(1), "Each definition has another one, greater than all before."),
        "next_at": said(nullable(TIME_MS), "null: it rests, or is never due again."),
        "last_at": said(nullable(TIME_MS), "The last due time that has come."),
        "last_partition": nullable(PARTITION),
        "last_offset": said(nullable(OFFSET), "Where its record was delivered, if that is known."),
        "delivered_count": COUNT,
        "missed_count": said(COUNT, "Due times without a record of their own."),
        "created_at": TIME_MS,
        "updated_at": TIME_MS,
        "error": said(nullable(STRING), "Why it does not fire although it is due."),
    }
    return {
        "NewRecurring": body,
        "Recurring": obj(row, {"record": said(record, "For callers who may receive from the topic.")}),
        "RecurringPage": obj({"recurring": array(ref("Recurring")), "next_cursor": nullable(STRING)}),
    }
