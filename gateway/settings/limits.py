"""What the gateway accepts from clients. Published at `/mq/v1/limits`; each limit is tested at n and n + 1.

What one record may hold is fixed by the store (`store/limits.py`) and repeated here so that there is one list.
"""

from __future__ import annotations

from dataclasses import dataclass

from store.limits import (
    BATCH_BYTES_MAX,
    BATCH_RECORDS_MAX,
    HEADER_COUNT_MAX,
    HEADERS_BYTES_MAX,
    KEY_BYTES_MAX,
    LIGHT_NAME_BYTES_MAX,
    LIGHT_NAMES_MAX,
    PARTITIONS_MAX,
    RECORD_BYTES_MAX,
    TAG_BYTES_MAX,
    TOPIC_NAME_BYTES_MAX,
    KiB,
    MiB,
)

DAY_MS = 86_400_000

MSG_ID_BYTES_MAX = 256
"""The id by which a repeated send of one record is recognised."""

IDEMPOTENCY_KEY_BYTES_MAX = 256
PRODUCER_NAME_BYTES_MAX = 128
MESSAGE_GROUP_BYTES_MAX = 128
SCHEDULE_KEY_BYTES_MAX = 256

RECURRING_RECORD_BYTES_MAX = 8 * KiB
"""What `recurring_record_bytes_max` can be set to: the record fits a small body however it is written."""

DELAY_MS_LIMIT = 100 * 366 * DAY_MS
"""What `delay_ms_max` can be set to. Longer delays are a mistake in units."""

ANSWERING_BYTES_MIN = 64 * MiB
"""Least `answering_bytes_max`: one record, and one batch, fit a caller's half however they are written."""

assert 6 * RECORD_BYTES_MAX + 1 * MiB <= ANSWERING_BYTES_MIN // 2  # text of control characters: six bytes each


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """Limits of one server. Sizes are of what arrives, before base64 or JSON is decoded, unless a record's."""

    body_bytes_max: int = 16 * MiB
    """Bytes of one request's body."""

    records_per_request_max: int = 10_000
    """Records of one JSON request; raw batches have `batch_records_max`."""

    receiving_bytes_max: int = 256 * MiB
    """Bytes of request bodies in memory, over all connections: those that are coming in, and those whose requests are
    not answered yet. A body that arrives with its head does not count."""

    answering_bytes_max: int = 128 * MiB
    """Bytes of answers in memory that their clients have not taken yet, over all connections; one caller has half of
    them. Near the bound answers with records get smaller; what cannot be smaller is refused."""

    rendered_bytes_max: int = 32 * MiB
    """Bytes of records rendered as JSON that are kept for others who read the same. 0: none."""

    batch_bytes_max: int = BATCH_BYTES_MAX
    """Bytes of one raw batch."""

    batch_records_max: int = BATCH_RECORDS_MAX
    """Records of one raw batch."""

    record_bytes_max: int = RECORD_BYTES_MAX
    """Key, value and headers of one record."""

    key_bytes_max: int = KEY_BYTES_MAX
    """Bytes of a key."""

    tag_bytes_max: int = TAG_BYTES_MAX
    """Bytes of a tag."""

    msg_id_bytes_max: int = MSG_ID_BYTES_MAX
    """Bytes of a `msg_id`."""

    idempotency_key_bytes_max: int = IDEMPOTENCY_KEY_BYTES_MAX
    """Bytes of an `Idempotency-Key`."""

    producer_name_bytes_max: int = PRODUCER_NAME_BYTES_MAX
    """Bytes of the name of a numbered producer."""

    message_group_bytes_max: int = MESSAGE_GROUP_BYTES_MAX
    """Bytes of a `message_group`."""

    schedule_key_bytes_max: int = SCHEDULE_KEY_BYTES_MAX
    """Bytes of a `schedule_key`."""

    light_queues_per_record_max: int = LIGHT_NAMES_MAX
    """Light queues that one record may be in."""

    light_queue_name_bytes_max: int = LIGHT_NAME_BYTES_MAX
    """Bytes of the name of a light queue."""

    header_count_max: int = HEADER_COUNT_MAX
    """Headers of one record."""

    headers_bytes_max: int = HEADERS_BYTES_MAX
    """Bytes of all headers of one record."""

    topic_name_bytes_max: int = TOPIC_NAME_BYTES_MAX
    """Bytes of a topic's name."""

    partitions_max: int = PARTITIONS_MAX
    """Of one topic."""

    topics_max: int = 10_000
    """Topics of one server."""

    partitions_total_max: int = 100_000
    """Partitions of all topics together."""

    delay_ms_max: int = 365 * DAY_MS
    """Longest delay of a record, from the server's clock."""

    recurring_max: int = 10_000
    """Recurring schedules of one server: they are kept in memory."""

    recurring_record_bytes_max: int = RECURRING_RECORD_BYTES_MAX
    """Key, value, headers and tag of the record of one."""

    timeout_ms_max: int = 60_000
    """Longest long poll."""

    fetch_bytes_default: int = 1 * MiB
    """Bytes of a JSON answer with records whose request does not say."""

    fetch_batch_bytes_default: int = 8 * MiB
    """The same of raw batches."""

    fetch_bytes_max: int = 64 * MiB
    """Most that a request may ask for."""

    fetch_records_max: int = 100_000
    """Records of one JSON answer: they are built in memory. Raw batches are bounded by bytes alone."""

    streams_max: int = 10_000
    """Streams of Server-Sent Events open at a time."""

    ws_frame_bytes_max: int = 16 * MiB
    """Bytes of a frame from a client."""

    ws_credit_max: int = 10_000
    """Messages that a subscription may be granted ahead."""

    ws_credit_bytes_max: int = 64 * MiB
    """Bytes, likewise."""

    ws_subscriptions_max: int = 64
    """Subscriptions of one socket."""

    ws_sockets_max: int = 10_000
    """Sockets open at a time."""

    consumer_instances_max: int = 10_000
    """REST Proxy consumer instances of one server."""

    groups_max: int = 10_000
    """Consumer groups of one server; each member of a broadcasting group, whose offsets are kept, counts as one."""

    group_in_flight_max: int = 20_000
    """Records that one group may have leased, or given back, and not settled, over all partitions."""

    in_flight_total_max: int = 100_000
    """Records that all groups together may have so. Each takes some 200 bytes, and a partition with any 1 KiB."""

    group_bytes_max: int = 16 * MiB
    """What the server keeps in memory for one group, about: 16 bytes a position (a partition that it consumes), 450 a
    partition that a member owns, 1.5 KiB a member, and what documents, settings and metadata take. What exists goes
    on; what would make it grow is refused."""

    groups_bytes_max: int = 64 * MiB
    """The same of all groups together."""

    requests_per_s_max: int = 0
    """Requests of one principal, or of one address where authentication is disabled. 0: any number."""

    request_bytes_per_s_max: int = 0
    """Bytes of request bodies, likewise."""

    connections_max: int = 12_000
    """Connections open at once, sockets included."""

    connections_per_address_max: int = 4096
    """Of them, from one address (IPv6: from one /64 network), so that no stranger takes all. 0: any number, for servers
    whose clients all come through one proxy."""

    def __post_init__(self) -> None:
        if not 0 < self.delay_ms_max <= DELAY_MS_LIMIT:
            raise ValueError(f"delay_ms_max must be between 1 and {DELAY_MS_LIMIT}")
        for name in ("requests_per_s_max", "request_bytes_per_s_max", "connections_per_address_max"):
            if getattr(self, name) < 0:
                raise ValueError(f"{name} must be at least 0")
        if self.receiving_bytes_max < self.body_bytes_max:
            raise ValueError("receiving_bytes_max must be at least body_bytes_max")
        if self.answering_bytes_max < ANSWERING_BYTES_MIN:
            raise ValueError(f"answering_bytes_max must be at least {ANSWERING_BYTES_MIN}")
        for name in (
            "connections_max", "groups_max", "group_in_flight_max", "in_flight_total_max", "group_bytes_max",
            "groups_bytes_max", "topics_max", "partitions_total_max", "recurring_max", "recurring_record_bytes_max",
        ):  # fmt: skip
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1")
        if self.recurring_record_bytes_max > RECURRING_RECORD_BYTES_MAX:
            raise ValueError(f"recurring_record_bytes_max must be at most {RECURRING_RECORD_BYTES_MAX}")
        if self.fetch_bytes_max < self.fetch_batch_bytes_default:
            raise ValueError("fetch_bytes_max must be at least fetch_batch_bytes_default")
        if not 0 <= self.timeout_ms_max <= 600_000:
            raise ValueError("timeout_ms_max must be between 0 and 600000")
