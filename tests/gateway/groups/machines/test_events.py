"""Every event reads back as it was written, and its written form is what the module's docstring shows."""

from __future__ import annotations

from typing import get_args

import orjson
import pytest

from gateway.groups.machines import events
from gateway.groups.machines.events import (
    AssignmentAsked,
    Barrier,
    CommittedOffset,
    Configured,
    DocumentPut,
    Event,
    Forgotten,
    Leased,
    LeaseMoved,
    LeasesBegun,
    LeasesSet,
    LightBegun,
    LightCommitted,
    LightForgotten,
    LightPosition,
    MemberJoined,
    MemberLeft,
    OffsetsCommitted,
    OpenRecord,
    PartitionsAssigned,
    PartitionsReleased,
    Rebalanced,
    Rejected,
    Settled,
    decode_events,
    encode_event,
)
from gateway.groups.machines.strategies.base import Partition

P0, P1, Q0 = Partition("orders", 16, 0), Partition("orders", 16, 1), Partition("pay", 17, 0)
EXAMPLES: list[Event] = [
    MemberJoined("g", "m1", ("orders",), None, 30_000, 3, b"\x00\xff"),
    MemberJoined("g", "m1", (), "a.*", 30_000, 3),
    MemberJoined("g", "m1", (), "a.*", 30_000, 3, b"", (("a*", "b"), ("ab",))),
    MemberLeft("g", "m1", "left"),
    AssignmentAsked("g", 4, "m1"),
    Rebalanced("g", 4, {"m1": (P0, Q0), "m2": ()}, {"m1": b"note"}),
    PartitionsAssigned("g", 4, "m1", (P0, P1)),
    PartitionsReleased("g", "m1", (P0, Q0)),
    OffsetsCommitted("g", (CommittedOffset(16, 0, 1042, "meta", 1_767_225_600_000),)),
    Forgotten("g", (16, 17)),
    Forgotten("g", None),
    Leased("g", 16, 0, 104, (102, 103), ("a", None), (100, 102), 1_767_225_600_000, "w1-1"),
    LeaseMoved("g", 16, 0, (100,), 1_767_225_600_000, False),
    Rejected("g", 16, 0, (100,), "bad schema"),
    Settled("g", 16, 0, (100, 102)),
    Leased("g", 16, 0, 104, (102, 103), (), (102,), 1_767_225_600_000, None, (3, 0)),
    LeaseMoved("g", 16, 0, (100,), 1_767_225_600_000, False, True),
    Configured("g", {"fifo": True, "backoff_ms": [1, 2]}),
    DocumentPut("g", "instance/1", b"\x00"),
    DocumentPut("g", "instance/1", None),
    Barrier(),
    LeasesBegun("g", 16, 2, 0, 4, (0, 104)),
    LeasesSet("g", 16, 0, 2, 104, (OpenRecord(100, 1, 5, True, "a", "w1-1", None),)),
    LightCommitted(16, (LightPosition(0, "phone", "user/42", 7), LightPosition(1, "phone", "user/42", -1))),
    LightForgotten(16),
    LightBegun("g", 16, 2),
    Leased("g", 16, 0, 104, (102,), (), (102,), 1_767_225_600_000, name="user/42"),
    LeasesSet("g", 16, 0, 2, 104, (), "user/42"),
]


def test_events_read_back_as_they_were_written() -> None:
    assert decode_events([encode_event(event) for event in EXAMPLES]) == EXAMPLES


def test_every_kind_of_event_has_an_example() -> None:
    assert {type(event) for event in EXAMPLES} == set(get_args(events.Event))


def test_partitions_are_written_by_topic() -> None:
    written = orjson.loads(encode_event(PartitionsAssigned("billing", 7, "m1", (P0, P1, Q0))))
    assert written == {
        "event": "partitions_assigned",
        "group": "billing",
        "generation": 7,
        "member_id": "m1",
        "partitions": [["orders", [[16, 0], [16, 1]]], ["pay", [[17, 0]]]],
    }


@pytest.mark.parametrize(
    "value",
    [
        None,
        b"",
        b"[]",
        b"{}",
        b'{"event": "member_flew"}',
        b'{"event": "member_left", "group": "g"}',
        b'{"event": "member_left", "group": "g", "member_id": "m", "reason": "r", "since": 1}',
        b'{"event": "partitions_released", "group": "g", "member_id": "m", "partitions": 1}',
    ],
)
def test_what_is_not_understood_is_not_skipped(value: bytes | None) -> None:
    with pytest.raises(ValueError, match="not understood"):
        decode_events([value])
