"""What went wrong, as Kafka's error codes. What a client does with a code decides: one that it may retry says that
nothing was stored, or that the outcome is unknown."""

from __future__ import annotations

import logging

from gateway import errors
from gateway.brokers.base import BrokerUnreachable
from gateway.cluster.metadata import MetadataError
from gateway.errors import RequestError
from gateway.groups.machines import errors as groups
from gateway.routing.base import UnknownPartition
from store import errors as store

log = logging.getLogger(__name__)

NONE, UNKNOWN = 0, -1
OFFSET_OUT_OF_RANGE = 1
CORRUPT_MESSAGE = 2
"""Of a batch that was damaged on its way: the client sends it again."""

UNKNOWN_TOPIC_OR_PARTITION, LEADER_NOT_AVAILABLE, NOT_LEADER = 3, 5, 6
REPLICA_NOT_AVAILABLE = 9
"""Records that another node has, which cannot be reached: the client tries again."""

MESSAGE_TOO_LARGE, OFFSET_METADATA_TOO_LARGE = 10, 12
COORDINATOR_NOT_AVAILABLE, NOT_COORDINATOR, INVALID_TOPIC = 15, 16, 17
NOT_ENOUGH_REPLICAS = 19
"""Nothing was stored, and the client tries again: what is full or busy here."""

INVALID_REQUIRED_ACKS, ILLEGAL_GENERATION, INCONSISTENT_PROTOCOL, INVALID_GROUP_ID = 21, 22, 23, 24
UNKNOWN_MEMBER_ID, INVALID_SESSION_TIMEOUT, REBALANCE_IN_PROGRESS = 25, 26, 27
TOPIC_AUTHORIZATION_FAILED, GROUP_AUTHORIZATION_FAILED, CLUSTER_AUTHORIZATION_FAILED = 29, 30, 31
UNSUPPORTED_SASL_MECHANISM, ILLEGAL_SASL_STATE, UNSUPPORTED_VERSION, TOPIC_ALREADY_EXISTS = 33, 34, 35, 36
INVALID_PARTITIONS, INVALID_REPLICATION_FACTOR, INVALID_REPLICA_ASSIGNMENT, INVALID_CONFIG = 37, 38, 39, 40
NOT_CONTROLLER, INVALID_REQUEST = 41, 42
POLICY_VIOLATION, OUT_OF_ORDER_SEQUENCE, DUPLICATE_SEQUENCE, INVALID_PRODUCER_EPOCH = 44, 45, 46, 47
SECURITY_DISABLED, STORAGE_ERROR, SASL_AUTHENTICATION_FAILED = 54, 56, 58
NON_EMPTY_GROUP, GROUP_ID_NOT_FOUND, FETCH_SESSION_ID_NOT_FOUND = 68, 69, 70
LISTENER_NOT_FOUND, FENCED_LEADER_EPOCH, UNKNOWN_LEADER_EPOCH, UNSUPPORTED_COMPRESSION = 72, 74, 75, 76
MEMBER_ID_REQUIRED, GROUP_MAX_SIZE_REACHED, FENCED_INSTANCE_ID, GROUP_SUBSCRIBED_TO_TOPIC, INVALID_RECORD = (
    79,
    81,
    82,
    86,
    87,
)

MISMATCHED_ENDPOINT_TYPE, UNSUPPORTED_ENDPOINT_TYPE = 114, 115

CODES: dict[type[Exception], int] = {
    UnknownPartition: UNKNOWN_TOPIC_OR_PARTITION,
    store.UnknownQueue: UNKNOWN_TOPIC_OR_PARTITION,
    store.StoreStopped: STORAGE_ERROR,
    store.SealedQueue: NOT_LEADER,
    store.PartitionLeft: NOT_LEADER,
    store.Overloaded: NOT_ENOUGH_REPLICAS,
    BrokerUnreachable: REPLICA_NOT_AVAILABLE,
    store.DiskFull: NOT_ENOUGH_REPLICAS,
    store.TooManyIds: NOT_ENOUGH_REPLICAS,
    store.RecordTooLarge: MESSAGE_TOO_LARGE,
    store.CorruptBatch: CORRUPT_MESSAGE,
    store.MalformedBatch: INVALID_RECORD,
    store.IllegalRecord: INVALID_RECORD,
    store.BrokerLacks: INVALID_RECORD,
    store.ProducerFenced: INVALID_PRODUCER_EPOCH,
    store.SequenceGone: OUT_OF_ORDER_SEQUENCE,
    store.TopicExists: TOPIC_ALREADY_EXISTS,
    store.IllegalTopic: INVALID_REQUEST,
    store.NoLightQueues: INVALID_RECORD,
    store.StoreError: STORAGE_ERROR,
    groups.UnknownGroup: GROUP_ID_NOT_FOUND,
    groups.UnknownMember: UNKNOWN_MEMBER_ID,
    groups.StaleGeneration: ILLEGAL_GENERATION,
    groups.GroupActive: INCONSISTENT_PROTOCOL,
    groups.GroupFull: GROUP_MAX_SIZE_REACHED,
    groups.GroupUnavailable: NOT_COORDINATOR,  # not COORDINATOR_LOAD_IN_PROGRESS, which sarama does not know
    groups.GroupElsewhere: NOT_COORDINATOR,
    groups.IllegalRequest: INVALID_REQUEST,
    groups.GroupError: UNKNOWN,
    MetadataError: NOT_CONTROLLER,  # etcd cannot be reached: nothing that all nodes agree on can be changed
}
"""By the class of an error, or the nearest of its ancestors."""

REQUEST_CODES = {
    errors.DELAY_ILLEGAL: INVALID_RECORD,
    errors.SCHEDULE_KEY_TAKEN: INVALID_RECORD,
    errors.FORBIDDEN: TOPIC_AUTHORIZATION_FAILED,
    errors.RECORD_PART_ILLEGAL: INVALID_RECORD,
    errors.RECORD_TOO_LARGE: MESSAGE_TOO_LARGE,
    errors.TOO_MANY: POLICY_VIOLATION,
    errors.READ_ONLY: STORAGE_ERROR,
    errors.OVERLOADED: NOT_ENOUGH_REPLICAS,
    errors.INVALID: INVALID_REQUEST,
    errors.UNAUTHENTICATED: SASL_AUTHENTICATION_FAILED,
}


def code_of(error: Exception) -> int:
    """The error code that tells a client of an error. An unexpected one goes into the log."""
    if isinstance(error, store.BrokerRefuses):
        return error.code
    if isinstance(error, RequestError):
        found = REQUEST_CODES.get(error.error_code)
    else:
        found = next((CODES[cls] for cls in type(error).__mro__ if cls in CODES), None)
    if found is None or found == STORAGE_ERROR:
        log.error("a Kafka request failed: %s", error, exc_info=error if found is None else None)
    return UNKNOWN if found is None else found
