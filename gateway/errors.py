"""The error of a request, independent of any protocol: a code, a message, whether to retry.

Codes are published and never change their meaning. They are the numbers that REST Proxy clients know; a surface that
has statuses of its own maps codes to them once (`gateway/surfaces/http/statuses.py`). `gateway/api/errors.py` makes
these errors from those of the store, the timer and the groups.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

UNAUTHENTICATED = 40101
FORBIDDEN = 40301
MALFORMED = 400  # cannot be read at all, or has a value of the wrong type
INVALID = 422  # well-formed, and breaks a rule
CONFIG_CONSTRAINT = 40001  # `fetch.min.bytes` of a consumer instance
CURSOR_ILLEGAL = 40050
MESSAGE_NOT_FOUND = 40451
RECURRING_NOT_FOUND = 40452
TOKEN_NOT_FOUND = 40453
CONNECTION_NOT_FOUND = 40454  # or session
EPOCH_CHANGED = 40953
KEY_SCHEMA_MISSING = 42201
SCHEMA_FORMAT = 42202  # Avro, Protobuf, JSON Schema: without a registry, or without a schema for the values
JSON_UNFIT = 42203  # a key or value is not of its schema
SCHEMA_ILLEGAL = 42205
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
UNDECODABLE = 40801  # or the schema registry does not have a schema, or does not take it
GROUP_ACTIVE = 40952
TOPIC_SHAPE_DIFFERS = 40955
SEQUENCE_GONE = 40956
SCHEDULE_KEY_TAKEN = 40954
ALREADY_STORED = 40957
ACCESS_FIXED = 40958  # tokens and rules cannot be changed here
NO_LIGHT_QUEUES = 40963
BROKER_LACKS = 40964
TICKET_ELSEWHERE = 40965  # a one-time ticket is of another node of the cluster
STALE_GENERATION = 40959  # the caller owns this no more: join again
OFFSET_MOVED = 41250
CONDITION_MISSING = 42850
OFFSET_OUT_OF_RANGE = 41601
INTERNAL = 500
STORE_FAILURE = 50002
BROKER_REFUSES = 50250  # a Kafka cluster says no
REGISTRY_REFUSES = 50251  # the schema registry says no to this server
READ_ONLY = 50350  # draining, or stopped for good
OVERLOADED = 50351
REGISTRY_AWAY = 50352  # the schema registry does not answer
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
        error_code: int,
        message: str,
        retriable: bool = False,
        details: Details | None = None,
        retry_after_ms: int | None = None,
        validation_errors: Sequence[str] = (),
    ) -> None:
        super().__init__(message)
        self.error_code = error_code
        self.message = message
        self.retriable = retriable
        self.details = details
        self.retry_after_ms = retry_after_ms
        self.validation_errors = validation_errors

    @property
    def hides_cause(self) -> bool:
        """Whether the message says nothing of what went wrong, so that it belongs into the log."""
        return self.error_code in (INTERNAL, STORE_FAILURE)

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


def invalid(message: str, *, validation_errors: Sequence[str] = ()) -> RequestError:
    """A request whose shape is right and whose content breaks a rule: INVALID."""
    return RequestError(INVALID, message, validation_errors=validation_errors)


def bad_request(message: str) -> RequestError:
    """A request that cannot be read at all, or has a value of the wrong type: MALFORMED."""
    return RequestError(MALFORMED, message)


def draining() -> RequestError:
    """Nothing long is begun any more, because the server is about to stop: READ_ONLY."""
    message = "The server is about to stop; go on with another connection."
    return RequestError(READ_ONLY, message, retriable=True, retry_after_ms=1000)
