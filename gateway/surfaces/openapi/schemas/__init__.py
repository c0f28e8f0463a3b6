"""The shapes of bodies, by name. Those of requests and of most answers are made of the structs of `gateway/api/shapes`;
what is written here and in the modules beside it is rendered or judged by hand.

Where a limit is in bytes and a schema can only count characters, the schema allows what might fit; the server judges.
"""

from __future__ import annotations

from dataclasses import fields
from types import ModuleType

from msgspec import Struct

from gateway.api.shapes import access, answers, consumers, groups, recurring, schedules, search, server, topics, v3
from gateway.api.shapes.answers import Answer
from gateway.api.shapes.schema import schema_of
from gateway.settings.limits import Limits
from gateway.surfaces.openapi.schemas import shown
from gateway.surfaces.openapi.schemas.sent import receipts, sent
from gateway.surfaces.openapi.schemas.settings import settings
from gateway.surfaces.openapi.shapes import (
    ANYTHING,
    BOOLEAN,
    COUNT,
    STRING,
    TIME_MS,
    Schema,
    array,
    either,
    integer,
    mapping,
    nullable,
    obj,
    ref,
    said,
    with_example,
    words,
)

_BODIES: dict[str, type[Struct]] = {
    "NewTopic": topics.NewTopicBody,
    "BrokerChanges": topics.BrokerBody,
    "MovePartition": topics.MovePartitionBody,
    "AttachTopic": topics.AttachTopicBody,
    "Takeover": topics.TakeoverBody,
    "TakePartition": topics.TakePartitionBody,
    "TopicChanges": topics.TopicChangesBody,
    "StrimziTopic": topics.StrimziTopicBody,
    "PartitionsToName": consumers.PartitionsBody,
    "OffsetsToCommit": consumers.CommitBody,
    "Positions": consumers.PositionsBody,
    "Receive": groups.ReceiveBody,
    "Nack": groups.NackBody,
    "Reject": groups.RejectBody,
    "Extend": groups.ExtendBody,
    "Reset": groups.ResetBody,
    "Redrive": groups.RedriveBody,
    "NewTokenWish": access.NewTokenBody,
    "RulesToPut": access.RulesBody,
    "Search": search.SearchBody,
    "SettleLetters": groups.SettleLettersBody,
    "ScheduleBatch": schedules.BatchBody,
    "NewRecurring": recurring.RecurringBody,
    "V3NewTopic": topics.V3NewTopicBody,
    "V3TopicChanges": topics.V3TopicChangesBody,
    "V3ConfigValue": topics.V3ConfigValueBody,
    "V3ConfigChanges": topics.V3ConfigChangesBody,
    "V3Batch": v3.V3BatchBody,
}


def schemas(limits: Limits) -> dict[str, Schema]:
    """All of them."""
    return {name: schema for part in parts(limits) for name, schema in part.items()}


def parts(limits: Limits) -> list[dict[str, Schema]]:
    """All of them, by where they come from; no two have a name in common."""
    return [
        {name: schema_of(shape, limits) for name, shape in _BODIES.items()},
        *(
            {name: schema_of(shape, limits) for name, shape in _answers(module)}
            for module in (answers, recurring, server, v3)
        ),
        _choices(limits),
        _others(),
        sent(limits),
        receipts(),
        shown.shown(),
        shown.searched(),
        shown.leased(),
        shown.schedules(),
        settings(),
    ]


def _answers(module: ModuleType) -> list[tuple[str, type[Answer]]]:
    """The answers that a module has; those that only others are made of have no component of their own."""
    own = [one for one in vars(module).values() if isinstance(one, type) and one.__module__ == module.__name__]
    bases = (Answer, answers.ListPage, v3.Resource, v3.Page, v3.Config, v3.OfPartition, v3.OfConsumer)
    return [(one.__name__, one) for one in own if issubclass(one, Answer) and one not in bases]


def _choices(limits: Limits) -> dict[str, Schema]:
    """Bodies that are one of two shapes."""

    def either_of(*shapes: type[Struct]) -> Schema:
        return either(*(schema_of(shape, limits) for shape in shapes))

    return {
        "Subscription": with_example(
            either_of(consumers.TopicsBody, consumers.PatternBody),
            {"topics": ["orders"]},
            {"topic_pattern": "orders-.*"},
        ),
        "Ack": with_example(either_of(groups.AckReceipts, groups.AckUpTo), {"receipts": ["r2.AgAAABAA.0"]}),
        "Move": with_example(
            either_of(schedules.MoveTo, schedules.MoveBy), {"delay_ms": 60_000}, {"deliver_at": "2026-01-31T09:30:00Z"}
        ),
    }


def _others() -> dict[str, Schema]:
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
        "Limits": obj({item.name: {"type": "integer"} for item in fields(Limits)}),
        "Home": said(mapping(STRING), "The name and version of the server, and paths to go on at."),
        "RecurringPage": obj(
            {"recurring": array(ref("Recurring")), "next_cursor": nullable(STRING)}, shown.MISSING_NODES
        ),
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
        "TopicNames": array(STRING),
        "PartitionsMetadata": array(ref("PartitionMetadata")),
        "NoErrors": array(ANYTHING, most=0),
    }
