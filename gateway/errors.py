"""What a client is told when a request cannot be done, and the one place where store errors become that.

    RequestError            one answer: status, error_code, message, and whether the same request may succeed later
    UnknownPartition        the topic is there, the partition is not

`error_code` is the HTTP status, or five digits that begin with it. A store error is looked up along its class's
ancestors, so a new leaf without a row of its own still gets its parent's answer.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

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
from store.errors import (
    AlreadyStored,
    Corrupt,
    DiskFull,
    FormatTooNew,
    IdentityReused,
    IllegalRecord,
    IllegalTopic,
    IndexDamaged,
    IndexRefused,
    MalformedBatch,
    OffsetMoved,
    Overloaded,
    RecordTooLarge,
    SequenceGone,
    StoreError,
    StoreLocked,
    StoreStopped,
    TooManyIds,
    TopicExists,
    UnknownQueue,
)
from timer.errors import TimerBusy, TooManySchedules

UNAUTHENTICATED = 40101
FORBIDDEN = 40301
INVALID = 422  # the answer is well-formed JSON that breaks a rule
CURSOR_ILLEGAL = 40050
MESSAGE_NOT_FOUND = 40451
EPOCH_CHANGED = 40953
DELAY_ILLEGAL = 42250
RECORD_PART_ILLEGAL = 42251  # tag, key or header
LIMIT_ILLEGAL = 42253
KEY_REUSED = 42254  # an Idempotency-Key with another content
RECORD_TOO_LARGE = 41350
TOPIC_NOT_FOUND = 40401
PARTITION_NOT_FOUND = 40402
TOPIC_METADATA_NOT_FOUND = 40403
GROUP_NOT_FOUND = 40405
MEMBER_NOT_FOUND = 40406  # or its session is over: join again
UNDECODABLE = 40801
GROUP_ACTIVE = 40952
TOPIC_SHAPE_DIFFERS = 40955
SEQUENCE_GONE = 40956
ALREADY_STORED = 40957
STALE_GENERATION = 40959  # the caller owns this no more: join again
OFFSET_MOVED = 41250
OFFSET_OUT_OF_RANGE = 41601
STORE_FAILURE = 50002
READ_ONLY = 50350  # draining, or stopped for good
OVERLOADED = 50351
RATE_LIMITED = 42901
TOO_MANY = 42950
DISK_FULL = 50750

Details = Mapping[str, object]


class RequestError(Exception):
    """A request that was refused. Unless the message says otherwise nothing of it was stored.

    `retriable`: the same request may succeed later. `retry_after_ms`: when to try again. `validation_errors`: one
    text for each part of the request that breaks a rule.
    """

    def __init__(
        self,
        status: int,
        error_code: int,
        message: str,
        retriable: bool = False,
        details: Details | None = None,
        retry_after_ms: int | None = None,
        validation_errors: Sequence[str] = (),
    ) -> None:
        super().__init__(message)
        self.status = status
        self.error_code = error_code
        self.message = message
        self.retriable = retriable
        self.details = details
        self.retry_after_ms = retry_after_ms
        self.validation_errors = validation_errors

    def body(self, request_id: str | None = None) -> dict[str, object]:
        """The JSON object of the answer. Sockets have no request id; they leave it out."""
        body: dict[str, object] = {"error_code": self.error_code, "message": self.message}
        if request_id is not None:
            body["request_id"] = request_id
        body["retriable"] = self.retriable
        if self.details is not None:
            body["details"] = self.details
        if self.validation_errors:
            body["validation_errors"] = list(self.validation_errors)
        return body


class UnknownPartition(UnknownQueue):
    """The topic exists, but has no partition of this number."""


class _Answer(NamedTuple):
    """How one class of store errors is answered; `message` None: the error's own text is fit for strangers."""

    status: int
    error_code: int
    retriable: bool = False
    message: str | None = None
    retry_after_ms: int | None = None


ANSWERS: dict[type[Exception], _Answer] = {
    StoreStopped: _Answer(
        503,
        READ_ONLY,
        True,
        "The store has stopped until it is restarted; whether this was stored is unknown.",
    ),
    DiskFull: _Answer(507, DISK_FULL, True, "The disk is full. Nothing was stored.", retry_after_ms=5000),
    Overloaded: _Answer(
        503, OVERLOADED, True, "Too many bytes wait to be written. Nothing was stored.", Overloaded.retry_after_ms
    ),
    TimerBusy: _Answer(503, OVERLOADED, True, retry_after_ms=TimerBusy.retry_after_ms),
    TooManySchedules: _Answer(
        429,
        TOO_MANY,
        True,
        "Too many delayed records are pending. Nothing was stored.",
        TooManySchedules.retry_after_ms,
    ),
    TooManyIds: _Answer(
        429, TOO_MANY, True, "Too many ids of recent sends are remembered. Nothing was stored.", retry_after_ms=1000
    ),
    IdentityReused: _Answer(422, KEY_REUSED),
    SequenceGone: _Answer(409, SEQUENCE_GONE),
    OffsetMoved: _Answer(412, OFFSET_MOVED),
    AlreadyStored: _Answer(409, ALREADY_STORED),
    UnknownGroup: _Answer(404, GROUP_NOT_FOUND),
    UnknownMember: _Answer(404, MEMBER_NOT_FOUND),
    StaleGeneration: _Answer(409, STALE_GENERATION),
    GroupActive: _Answer(409, GROUP_ACTIVE),
    GroupFull: _Answer(429, TOO_MANY, True, retry_after_ms=1000),
    GroupUnavailable: _Answer(503, OVERLOADED, True, retry_after_ms=200),
    IllegalRequest: _Answer(422, INVALID),
    GroupError: _Answer(409, 409),
    RecordTooLarge: _Answer(413, RECORD_TOO_LARGE),
    MalformedBatch: _Answer(400, 400),
    IllegalRecord: _Answer(422, RECORD_PART_ILLEGAL),
    UnknownQueue: _Answer(404, TOPIC_NOT_FOUND, message="Topic not found."),
    UnknownPartition: _Answer(404, PARTITION_NOT_FOUND, message="Partition not found."),
    TopicExists: _Answer(409, TOPIC_SHAPE_DIFFERS),
    IllegalTopic: _Answer(422, INVALID),
    # The file's path is for the operator: it is in the log, not in the answer.
    Corrupt: _Answer(500, STORE_FAILURE, message="Stored records fail their check; the server's log names the place."),
    IndexDamaged: _Answer(500, STORE_FAILURE, message="An index fails its check; the server's log names the place."),
    FormatTooNew: _Answer(
        500, STORE_FAILURE, message="The store holds something that only a newer version understands."
    ),
    IndexRefused: _Answer(500, STORE_FAILURE, message="The index of the store cannot be opened as configured."),
    StoreLocked: _Answer(503, READ_ONLY, True, "The store is in use by another process."),
    StoreError: _Answer(500, STORE_FAILURE, message="The store could not do this."),
    Exception: _Answer(500, 500, message="Internal Server Error"),
}


def error_of(error: Exception) -> RequestError:
    """The answer for any exception. Statuses from 500 on hide the cause, so callers log it."""
    if isinstance(error, RequestError):
        return error
    answer = next(ANSWERS[cls] for cls in type(error).__mro__ if cls in ANSWERS)
    return RequestError(
        answer.status,
        answer.error_code,
        str(error) if answer.message is None else answer.message,
        retriable=answer.retriable,
        retry_after_ms=error.retry_after_ms if isinstance(error, TooManyIds) else answer.retry_after_ms,
    )


def invalid(message: str, *, validation_errors: Sequence[str] = ()) -> RequestError:
    """A request whose shape is right and whose content breaks a rule: 422/422."""
    return RequestError(422, INVALID, message, validation_errors=validation_errors)


def bad_request(message: str) -> RequestError:
    """A request that cannot be read at all, or has a value of the wrong type: 400/400."""
    return RequestError(400, 400, message)


def draining() -> RequestError:
    """Nothing long is begun any more, because the server is about to stop: 503/50350."""
    message = "The server is about to stop; go on with another connection."
    return RequestError(503, READ_ONLY, message, retriable=True, retry_after_ms=1000)
