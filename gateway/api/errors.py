"""The one place where errors of the store, the timer and the groups become what a caller is told.

An error is looked up along its class's ancestors, so a new leaf without a row of its own gets its parent's answer.
"""

from __future__ import annotations

from typing import NamedTuple

from gateway.brokers.base import AnswerLost, BrokerUnreachable
from gateway.cluster.balance import NoTaker
from gateway.cluster.metadata import OutcomeUnknown, Unavailable
from gateway.cluster.move import ChainFull
from gateway.cluster.move_slots import MovesBusy
from gateway.cluster.mover import MoveConflict, StillThere, UnknownBroker
from gateway.errors import (
    ALREADY_STORED,
    BROKER_LACKS,
    BROKER_REFUSES,
    DISK_FULL,
    GROUP_ACTIVE,
    GROUP_NOT_FOUND,
    INTERNAL,
    INVALID,
    KEY_REUSED,
    MEMBER_NOT_FOUND,
    NO_LIGHT_QUEUES,
    OFFSET_MOVED,
    OVERLOADED,
    PARTITION_NOT_FOUND,
    READ_ONLY,
    RECORD_PART_ILLEGAL,
    RECORD_TOO_LARGE,
    RECURRING_NOT_FOUND,
    SCHEDULE_KEY_TAKEN,
    SEQUENCE_GONE,
    STALE_GENERATION,
    STORE_FAILURE,
    TOO_MANY,
    TOPIC_NOT_FOUND,
    TOPIC_SHAPE_DIFFERS,
    RequestError,
)
from gateway.groups.machines.errors import (
    GroupActive,
    GroupError,
    GroupFull,
    GroupUnavailable,
    IllegalRequest,
    StaleGeneration,
    UnknownGroup,
    UnknownMember,
)
from gateway.recurring.errors import TooManyRecurring, UnknownRecurring
from gateway.routing.base import UnknownPartition
from store.errors import (
    AlreadyStored,
    BrokerLacks,
    BrokerRefuses,
    Corrupt,
    CorruptBatch,
    DiskFull,
    FormatTooNew,
    IdentityReused,
    IllegalRecord,
    IllegalTopic,
    IndexDamaged,
    IndexRefused,
    MalformedBatch,
    NoLightQueues,
    OffsetMoved,
    OutOfHandles,
    Overloaded,
    PartitionLeft,
    ProducerFenced,
    RecordTooLarge,
    SealedQueue,
    SequenceGap,
    SequenceGone,
    StoreError,
    StoreLocked,
    StoreStopped,
    TooManyIds,
    TopicExists,
    UnknownQueue,
)
from timer.errors import ScheduleKeyTaken, TimerBusy, TooManySchedules


class _Answer(NamedTuple):
    """How one class of store errors is answered; `message` None: the error's own text is fit for strangers."""

    error_code: int
    retriable: bool = False
    message: str | None = None
    retry_after_ms: int | None = None


_MOVING = _Answer(OVERLOADED, True, "The partition is moving. Nothing was stored.", SealedQueue.retry_after_ms)

ANSWERS: dict[type[Exception], _Answer] = {
    StoreStopped: _Answer(
        READ_ONLY,
        True,
        "The store has stopped until it is restarted; whether this was stored is unknown.",
    ),
    OutOfHandles: _Answer(
        OVERLOADED, True, "The server can open no more files now. Nothing was stored.", OutOfHandles.retry_after_ms
    ),
    DiskFull: _Answer(DISK_FULL, True, "The disk is full. Nothing was stored.", retry_after_ms=5000),
    Overloaded: _Answer(
        OVERLOADED, True, "Too many bytes wait to be written. Nothing was stored.", Overloaded.retry_after_ms
    ),
    SealedQueue: _MOVING,
    PartitionLeft: _MOVING,
    BrokerUnreachable: _Answer(
        OVERLOADED, True, "The partition's broker cannot be reached. Nothing was stored.", Overloaded.retry_after_ms
    ),
    AnswerLost: _Answer(
        READ_ONLY, True, "The answer of the partition's broker was lost; whether this was stored is unknown."
    ),
    Unavailable: _Answer(
        OVERLOADED, True, "The cluster's metadata cannot be reached. Nothing was changed.", Overloaded.retry_after_ms
    ),
    OutcomeUnknown: _Answer(
        READ_ONLY, True, "The cluster's metadata cannot be reached; whether this was changed is unknown."
    ),
    UnknownBroker: _Answer(404),
    NoTaker: _Answer(409),
    BrokerLacks: _Answer(BROKER_LACKS),
    BrokerRefuses: _Answer(BROKER_REFUSES),
    ChainFull: _Answer(409),
    StillThere: _Answer(409),
    MoveConflict: _Answer(OVERLOADED, True, "The partition is being moved by others.", Overloaded.retry_after_ms),
    MovesBusy: _Answer(TOO_MANY, True, retry_after_ms=MovesBusy.retry_after_ms),
    TimerBusy: _Answer(OVERLOADED, True, retry_after_ms=TimerBusy.retry_after_ms),
    TooManySchedules: _Answer(
        TOO_MANY,
        True,
        "Too many delayed records are pending. Nothing was stored.",
        TooManySchedules.retry_after_ms,
    ),
    TooManyIds: _Answer(
        TOO_MANY, True, "Too many ids of recent sends are remembered. Nothing was stored.", retry_after_ms=1000
    ),
    IdentityReused: _Answer(KEY_REUSED),
    NoLightQueues: _Answer(NO_LIGHT_QUEUES),
    SequenceGone: _Answer(SEQUENCE_GONE),
    SequenceGap: _Answer(SEQUENCE_GONE),
    ProducerFenced: _Answer(SEQUENCE_GONE),
    OffsetMoved: _Answer(OFFSET_MOVED),
    AlreadyStored: _Answer(ALREADY_STORED),
    ScheduleKeyTaken: _Answer(SCHEDULE_KEY_TAKEN),
    UnknownRecurring: _Answer(RECURRING_NOT_FOUND, message="There is no such recurring schedule."),
    TooManyRecurring: _Answer(TOO_MANY),
    UnknownGroup: _Answer(GROUP_NOT_FOUND),
    UnknownMember: _Answer(MEMBER_NOT_FOUND),
    StaleGeneration: _Answer(STALE_GENERATION),
    GroupActive: _Answer(GROUP_ACTIVE),
    GroupFull: _Answer(TOO_MANY, True, retry_after_ms=1000),
    GroupUnavailable: _Answer(OVERLOADED, True, retry_after_ms=200),
    IllegalRequest: _Answer(INVALID),
    GroupError: _Answer(409),
    RecordTooLarge: _Answer(RECORD_TOO_LARGE),
    MalformedBatch: _Answer(400),
    CorruptBatch: _Answer(400),
    IllegalRecord: _Answer(RECORD_PART_ILLEGAL),
    UnknownQueue: _Answer(TOPIC_NOT_FOUND, message="Topic not found."),
    UnknownPartition: _Answer(PARTITION_NOT_FOUND, message="Partition not found."),
    TopicExists: _Answer(TOPIC_SHAPE_DIFFERS),
    IllegalTopic: _Answer(INVALID),
    # The file's path is for the operator: it is in the log, not in the answer.
    Corrupt: _Answer(STORE_FAILURE, message="Stored records fail their check; the server's log names the place."),
    IndexDamaged: _Answer(STORE_FAILURE, message="An index fails its check; the server's log names the place."),
    FormatTooNew: _Answer(STORE_FAILURE, message="The store holds something that only a newer version understands."),
    IndexRefused: _Answer(STORE_FAILURE, message="The index of the store cannot be opened as configured."),
    StoreLocked: _Answer(READ_ONLY, True, "The store is in use by another process."),
    StoreError: _Answer(STORE_FAILURE, message="The store could not do this."),
    Exception: _Answer(INTERNAL, message="Internal Server Error"),
}


def error_of(error: Exception) -> RequestError:
    """The answer for any exception. Callers log the cause of those that hide it (`RequestError.hides_cause`)."""
    if isinstance(error, RequestError):
        return error
    answer = next(ANSWERS[cls] for cls in type(error).__mro__ if cls in ANSWERS)
    return RequestError(
        answer.error_code,
        str(error) if answer.message is None else answer.message,
        retriable=answer.retriable,
        retry_after_ms=error.retry_after_ms if isinstance(error, TooManyIds) else answer.retry_after_ms,
    )
