"""Consumer groups, and queue mode."""

from __future__ import annotations

from dataclasses import fields

from gateway.api.shapes.groups import (
    AckReceipts,
    AckUpTo,
    ExtendBody,
    NackBody,
    ReceiveBody,
    RedriveBody,
    RejectBody,
    ResetBody,
)
from gateway.api.shapes.schema import schema_of
from gateway.groups.machines.config import BROADCAST, SHARED, GroupConfig
from gateway.settings.limits import Limits
from gateway.surfaces.openapi.schemas.shown import NATIVE_PARTS, SHOWN, native_record
from gateway.surfaces.openapi.shapes import (
    ANYTHING,
    BOOLEAN,
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
    with_example,
    words,
)


def groups(limits: Limits) -> dict[str, Schema]:
    """Groups, leases, dead letters."""
    result = either(
        obj({"receipt": STRING, "ok": exactly(True)}, {"new_receipt": said(STRING, "After extend: use this one.")}),
        obj(
            {"receipt": STRING, "ok": exactly(False), "error_code": {"enum": [40050, 40951]}, "error": STRING},
        ),
    )
    group = {
        "group": STRING,
        "state": words("empty", "stable", "rebalancing"),
        "generation": COUNT,
        "member_count": COUNT,
        "topics": array(STRING),
    }
    member = obj(
        {
            "member_id": STRING,
            "topics": array(STRING),
            "topic_pattern": nullable(STRING),
            "session_timeout_ms": COUNT,
            "heard_ago_ms": {"type": "integer"},
            "assigned": array(ref("TopicPartition")),
            "revoking": array(ref("TopicPartition")),
        }
    )
    worker = obj(
        {
            "consumer": said(STRING, "The name it gave, else who asked and from where; of a socket, its session."),
            "leased": said(COUNT, "Records in its hands."),
            "heard_ago_ms": said(nullable(COUNT), "null: it is connected."),
        },
        description="A consumer of queue mode.",
    )
    return {
        "Receive": schema_of(ReceiveBody, limits),
        "Delivered": native_record(
            {
                "message_id": nullable(STRING),
                "delivery_attempt": integer(1),
                "receipt": said(STRING, "What it is settled by, until `visible_until`."),
                "visible_until": TIME_MS,
            },
            {"message_group": STRING},
        ),
        "Received": obj(
            {
                "messages": array(ref("Delivered")),
                "backlog": said(COUNT, "Records of these topics that the group has not been handed yet."),
            }
        ),
        "Ack": with_example(
            either(schema_of(AckReceipts, limits), schema_of(AckUpTo, limits)), {"receipts": ["r1.AQAAABAA"]}
        ),
        "Nack": schema_of(NackBody, limits),
        "Reject": schema_of(RejectBody, limits),
        "Extend": schema_of(ExtendBody, limits),
        "Results": obj({"results": array(result)}, description="One for each receipt, in order."),
        "Acked": obj({"acked": COUNT}),
        "GroupSummary": obj(group),
        "GroupList": obj({"groups": array(ref("GroupSummary"))}),
        "Group": obj({**group, "config": ref("GroupSettings"), "members": array(member), "workers": array(worker)}),
        "GroupSettings": obj({item.name: _setting(item.name) for item in fields(GroupConfig)}),
        "GroupChanges": with_example(
            obj(
                {},
                {
                    **{item.name: nullable(_setting(item.name)) for item in fields(GroupConfig)},
                    "backoff_ms": nullable(either(array(integer(0, 31_536_000_000), least=1, most=64), STRING)),
                    "backoff": said(nullable(STRING), "backoff_ms as a text."),
                },
            ),
            {"max_attempts": 5, "backoff": "1s 10s 1m"},
        ),
        "GroupLag": obj(
            {
                "group": STRING,
                "total_lag": COUNT,
                "in_flight": COUNT,
                "partitions": array(
                    obj(
                        {
                            "topic": STRING,
                            "partition": PARTITION,
                            "committed": said(nullable(OFFSET), "null: nothing is."),
                            "metadata": STRING,
                            "beginning": OFFSET,
                            "end": OFFSET,
                            "lag": COUNT,
                            "lost": said(COUNT, "What retention took before it was consumed."),
                            "in_flight": COUNT,
                            "delayed": said(COUNT, "Given back, and not due yet."),
                            "oldest_unacked_ms": nullable(TIME_MS),
                            "owner": nullable(STRING),
                        }
                    )
                ),
            }
        ),
        "Reset": schema_of(ResetBody, limits),
        "Moves": obj(
            {
                "topic": STRING,
                "dry_run": BOOLEAN,
                "partitions": array(obj({"partition": PARTITION, "from": nullable(OFFSET), "to": OFFSET})),
            }
        ),
        "DeadLetters": obj(
            {
                "messages": array(
                    obj(
                        {
                            "offset": said(OFFSET, "In the dead-letter topic."),
                            "topic": said(nullable(STRING), "Where it came from."),
                            "partition": nullable(PARTITION),
                            "topic_offset": nullable(OFFSET),
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
        "Redrive": schema_of(RedriveBody, limits),
        "Redriven": obj({"redriven": COUNT}),
    }


def _setting(name: str) -> Schema:
    usual = getattr(GroupConfig(), name)
    if name == "mode":
        return words(SHARED, BROADCAST)
    if name == "strategy":
        return nullable(STRING)
    if isinstance(usual, bool):
        return BOOLEAN
    if isinstance(usual, int):
        return COUNT
    return array(COUNT) if isinstance(usual, tuple) else mapping(ANYTHING)
