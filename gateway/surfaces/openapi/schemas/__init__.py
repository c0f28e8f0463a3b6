"""The shapes of bodies, by name. Requests depend on the server's limits; answers do not.

Where a limit is in bytes and a schema can only count characters, the schema allows what might fit; the server judges.
"""

from __future__ import annotations

from dataclasses import fields

from gateway.settings.limits import Limits
from gateway.surfaces.openapi.schemas.groups import groups
from gateway.surfaces.openapi.schemas.instances import instances
from gateway.surfaces.openapi.schemas.recurring import recurring
from gateway.surfaces.openapi.schemas.schedules import schedules
from gateway.surfaces.openapi.schemas.sent import receipts, sent
from gateway.surfaces.openapi.schemas.shown import shown
from gateway.surfaces.openapi.schemas.topics import topics
from gateway.surfaces.openapi.schemas.v3 import v3
from gateway.surfaces.openapi.shapes import (
    ANYTHING,
    BOOLEAN,
    COUNT,
    PARTITION,
    STRING,
    TIME_MS,
    Schema,
    array,
    exactly,
    integer,
    mapping,
    nullable,
    obj,
    ref,
    said,
    with_example,
    words,
)


def schemas(limits: Limits) -> dict[str, Schema]:
    """All of them."""
    return {
        **_shared(),
        **sent(limits),
        **receipts(),
        **shown(),
        **topics(limits),
        **instances(limits),
        **groups(limits),
        **schedules(limits),
        **recurring(limits),
        **v3(limits),
        **_operations(),
    }


def _shared() -> dict[str, Schema]:
    return {
        "Error": obj(
            {"error_code": said(integer(400, 50_999), "See the table of errors."), "message": STRING},
            {
                "request_id": said(STRING, "As in X-Request-Id; it is in the server's log."),
                "retriable": said(BOOLEAN, "Whether the same request may succeed later."),
                "details": mapping(ANYTHING),
                "validation_errors": said(array(STRING), "One text for each part that breaks a rule."),
            },
        ),
        "TopicPartition": obj({"topic": STRING, "partition": PARTITION}),
    }


def _operations() -> dict[str, Schema]:
    return {
        "Health": obj({"status": exactly("ok")}),
        "Ready": obj({"status": exactly("ok"), "reasons": array(STRING, most=0)}),
        "NotReady": obj({"status": exactly("unavailable"), "reasons": array(STRING, least=1)}),
        "Limits": obj({item.name: {"type": "integer"} for item in fields(Limits)}),
        "Info": obj(
            {
                "name": exactly("mq"),
                "version": STRING,
                "cluster_id": said(STRING, "Made with the data directory, and kept."),
                "started_ms": TIME_MS,
            }
        ),
        "Home": said(mapping(STRING), "The name and version of the server, and paths to go on at."),
        "AuditPage": obj({"entries": array(ref("AuditEntry")), "next_cursor": nullable(STRING)}),
        "AuditEntry": obj(
            {
                "time_ms": TIME_MS,
                "action": with_example(STRING, "topic.create"),
                "principal": said(STRING, "Who: `server` did it by itself, `os:…` is a user of its machine."),
                "outcome": said(
                    words("done", "refused", "failed", "unknown"), "`unknown`: the caller had gone before the answer."
                ),
                "object": said(mapping(STRING), "To what it was done, by kind."),
                "details": mapping(ANYTHING),
                "token_id": nullable(STRING),
                "address": nullable(STRING),
                "status": nullable(COUNT),
                "error_code": nullable(COUNT),
                "error": nullable(STRING),
                "request_id": nullable(STRING),
            }
        ),
        "Ticket": obj({"ticket": STRING, "expires_in": said(COUNT, "Seconds. It is good once.")}),
    }
