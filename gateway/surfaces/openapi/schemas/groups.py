"""Consumer groups, and queue mode."""

from __future__ import annotations

from dataclasses import fields

from gateway.groups.machines.config import BROADCAST, SHARED, GroupConfig
from gateway.groups.machines.subscription import TOPICS_MAX
from gateway.groups.protocol import RECEIPTS_MAX, RECEIVE_BYTES_MAX, RECEIVE_MESSAGES_MAX
from gateway.settings.limits import Limits
from gateway.surfaces.openapi.schemas.shown import NATIVE_PARTS, SHOWN, native_record
from gateway.surfaces.openapi.shapes import (
    ANYTHING,
    BOOLEAN,
    COUNT,
    OFFSET,
    PARTITION,
    STRING,
    TIME,
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
    text,
    with_example,
    words,
)


def groups(limits: Limits) -> dict[str, Schema]:
    """Groups, leases, dead letters."""
    start = either(words("earliest", "latest"), obj({"timestamp": TIME}), {"type": "null"})
    receipts = array(STRING, least=1, most=RECEIPTS_MAX)
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
    reason = said(nullable(text(1024)), "At most 1,024 bytes.")
    return {
        "Receive": with_example(
            obj(
                {"topics": array(text(least=1), least=1, most=TOPICS_MAX)},
                {
                    "max_messages": said(nullable(integer(1, RECEIVE_MESSAGES_MAX)), "32 by default."),
                    "max_bytes": said(nullable(integer(1, RECEIVE_BYTES_MAX)), "1 MiB by default."),
                    "wait_ms": said(nullable(integer(0, limits.timeout_ms_max)), "For a first record; 0 by default."),
                    "invisible_ms": said(nullable(integer(1, 43_200_000)), "Of the lease; else the group's setting."),
                    "filter": nullable(STRING),
                    "attempt_id": said(
                        nullable(text(255, least=1)), "The same again: what an answer that was lost handed out."
                    ),
                    "consumer": said(nullable(text(255, least=1)), "Who asks; for people who look."),
                    "start": said(start, "Only for topics in which the group has never been; earliest by default."),
                },
            ),
            {"topics": ["orders"], "start": "earliest", "max_messages": 32, "wait_ms": 20_000},
        ),
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
            either(
                obj({"receipts": receipts}),
                obj({"up_to": obj({"topic": text(least=1), "partition": integer(0, 2**63 - 2), "offset": integer(0)})}),
            ),
            {"receipts": ["r1.AQAAABAA"]},
        ),
        "Nack": with_example(
            obj(
                {"receipts": receipts},
                {"delay_ms": nullable(integer(0, limits.delay_ms_max)), "reason": reason},
            ),
            {"receipts": ["r1.AQAAABAA"], "delay_ms": 5000, "reason": "db down"},
        ),
        "Reject": with_example(
            obj({"receipts": receipts}, {"reason": reason}), {"receipts": ["r1.AQAAABAA"], "reason": "no such sku"}
        ),
        "Extend": with_example(
            obj({"receipts": receipts, "invisible_ms": integer(1, 43_200_000)}),
            {"receipts": ["r1.AQAAABAA"], "invisible_ms": 60_000},
        ),
        "Results": obj({"results": array(result)}, description="One for each receipt, in order."),
        "Acked": obj({"acked": COUNT}),
        "GroupSummary": obj(group),
        "GroupList": obj({"groups": array(ref("GroupSummary"))}),
        "Group": obj({**group, "config": ref("GroupSettings"), "members": array(member)}),
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
        "Reset": with_example(
            obj(
                {
                    "topic": text(least=1),
                    "to": either(words("earliest", "latest"), integer(0, 2**63 - 2), obj({"timestamp": TIME})),
                },
                {
                    "partitions": nullable(array(integer(0, 2**63 - 2), least=1)),
                    "dry_run": said(BOOLEAN, "Tell, and change nothing."),
                    "force": said(BOOLEAN, "Put the members aside; they begin anew."),
                },
            ),
            {"topic": "orders", "to": {"timestamp": "2026-01-31T09:30:00Z"}, "dry_run": True},
        ),
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
        "Redrive": obj({}, {"max_messages": said(nullable(integer(1, 10_000)), "10,000 by default.")}),
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
