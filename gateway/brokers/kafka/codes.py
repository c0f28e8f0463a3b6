"""Kafka's error codes by what the owner of a partition does about them. Pure.

again   the batch was not stored, or it is not known: the same bytes are sent again, behind a look at the metadata. One
        that was stored is answered with its offset, as Kafka knows the last five batches of a producer
doubt   another node may own the partition: nothing is acknowledged any more, and it is taken over anew
never   these bytes will not be stored. Their number is used up, so the partition is taken over anew as well
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import Enum
from typing import NamedTuple

NONE = 0
OFFSET_OUT_OF_RANGE, CORRUPT_MESSAGE, UNKNOWN_TOPIC, LEADER_NOT_AVAILABLE, NOT_LEADER = 1, 2, 3, 5, 6
MESSAGE_TOO_LARGE, COORDINATOR_LOADING, TOPIC_EXISTS = 10, 14, 36
OUT_OF_ORDER, DUPLICATE, STALE_EPOCH = 45, 46, 47
INVALID_RECORD, PRODUCER_FENCED = 87, 90
TOPIC_AUTHORIZATION, GROUP_AUTHORIZATION, CLUSTER_AUTHORIZATION, INVALID_TIMESTAMP = 29, 30, 31, 32

OF_THE_MOMENT = frozenset((UNKNOWN_TOPIC, LEADER_NOT_AVAILABLE, NOT_LEADER))
"""Another node may lead the partition: the metadata is looked at again."""

IN_DOUBT = frozenset((OUT_OF_ORDER, DUPLICATE, STALE_EPOCH, PRODUCER_FENCED))
NEVER = frozenset((CORRUPT_MESSAGE, MESSAGE_TOO_LARGE, INVALID_RECORD))

OF_RECORDS = NEVER | {INVALID_TIMESTAMP}
"""Of these a batch is refused for what is in it."""

REFUSALS = {
    UNKNOWN_TOPIC: "it does not exist there, or not any more",
    TOPIC_AUTHORIZATION: "mq's user in Kafka has not the right to it",
    GROUP_AUTHORIZATION: "mq's user in Kafka has not the right to the group",
    CLUSTER_AUTHORIZATION: "mq's user in Kafka has not the right to write idempotently",
    INVALID_TIMESTAMP: "it takes no records of these times",
    INVALID_RECORD: "it takes no such record, as one without a key when it is compacted",
    CORRUPT_MESSAGE: "it takes no such record, as one without a key when it is compacted",
}
"""What a code says of a topic that others write to, in words."""


class Stored(NamedTuple):
    """Where a batch is in the log, and when Kafka appended it."""

    base_offset: int
    time_ms: int


Outcome = Stored | int | None
"""What became of a batch: stored, an error code, or (None) an answer that was lost."""


class Verdict(Enum):
    """What to do about a batch that is not known to be stored."""

    AGAIN = "again"
    DOUBT = "doubt"
    NEVER = "never"


def judge(outcomes: Sequence[Outcome], never: frozenset[int] = NEVER) -> list[Stored | Verdict]:
    """What to do about each of some batches of one producer, which were sent in this order, one behind the other. A
    batch behind one that has to be sent again is out of order for no other reason than that. A code that is not known
    here is an error of the moment, such as a missing right: it is tried again."""
    judged: list[Stored | Verdict] = []
    is_behind_a_gap = False
    for outcome in outcomes:
        if isinstance(outcome, Stored):
            judged.append(outcome)
            continue
        if outcome in never:
            judged.append(Verdict.NEVER)
        elif outcome in IN_DOUBT and not (outcome == OUT_OF_ORDER and is_behind_a_gap):
            judged.append(Verdict.DOUBT)
        else:
            judged.append(Verdict.AGAIN)
        is_behind_a_gap = True
    return judged
