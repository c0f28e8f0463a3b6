"""Headers with a meaning of ours; and tags, the one word that a reader may filter by: on the wire such a header, in the
index a 64-bit hash.

The hash decides cheaply that a record can *not* have a tag; equal hashes are checked against the header itself.
0 means "no tag", so no tag hashes to 0.
"""

from __future__ import annotations

from collections.abc import Generator, Sequence
from functools import lru_cache
from hashlib import blake2b

from gateway.errors import RECORD_PART_ILLEGAL, RequestError
from store import record_batch
from store.types import Buffer

TAG_HEADER = "mq-tag"
DELAY_HEADER = "mq-delay-ms"
DELIVER_AT_HEADER = "mq-deliver-at"
SCHEDULE_ID_HEADER = "mq-schedule-id"
SCHEDULE_KEY_HEADER = "mq-schedule-key"
QUEUES_HEADER = "mq-queues"
"""Light queues that a record is in as well, a JSON array of names. Only on its way: where a record asks for them by
header (`HEADER_DELAYS`), and while it waits to be delivered. Nobody is shown which other queues a record is in."""

MESSAGE_GROUP_HEADER = "mq-group"
"""Names the message group a record belongs to: a consumer group with `fifo` hands those out one after the other."""

RECURRING_HEADER = "mq-recurring"
"""Names the recurring schedule that sent the record; `mq-deliver-at` says for which due time."""

MISSED_HEADER = "mq-recurring-missed"
"""How many due times before it got no record."""

RESERVED_PREFIX = "mq-"
"""Header names that begin so are the server's own."""

SENT_HEADERS = frozenset((TAG_HEADER, MESSAGE_GROUP_HEADER))
"""Those of them that a sender gives its records: as fields where it sends JSON, as they are in raw batches. With any
other a raw batch is refused, as JSON is: what the server says of a record (when it was due, where it came from), no
client else may say."""

DELAYED_HEADERS = SENT_HEADERS | {SCHEDULE_KEY_HEADER}
"""The same, of records that are delayed."""

HEADER_QUEUES = SENT_HEADERS | {QUEUES_HEADER}
"""The same, of raw batches in topics with `mq_headers`."""

HEADER_DELAYS = DELAYED_HEADERS | {DELAY_HEADER, DELIVER_AT_HEADER, QUEUES_HEADER}
"""The same, of records that say by headers when they are to be delivered, and to which light queues: Kafka's, in topics
with `mq_headers`."""

_TAG_HEADER_BYTES = TAG_HEADER.encode()
_ATTRIBUTES_AT = 22  # low byte of the batch's attributes; its low bits name the compression
_COMPRESSED = 0x07


@lru_cache(maxsize=4096)
def tag_hash(tag: str) -> int:
    """A signed 64-bit hash of a tag, the same on every machine and in every version; never 0."""
    return int.from_bytes(blake2b(tag.encode(), digest_size=8).digest(), "big", signed=True) or 1


def text_of(headers: record_batch.Headers, wanted: str) -> str | None:
    """A header's value as text; None when there is none."""
    for name, value in headers:
        if name == wanted and value is not None:
            return value.decode("utf-8", "replace")
    return None


def batch_tag_hashes(batch: Buffer) -> Sequence[int]:
    """The tag hashes of a raw batch that passed `record_batch.check`; empty when no record has a tag."""
    if not batch[_ATTRIBUTES_AT] & _COMPRESSED and _TAG_HEADER_BYTES not in bytes(batch):
        return ()  # the usual case, without decoding a record
    hashes = [_record_tag_hash(record.headers) for record in record_batch.decode(batch)]
    return hashes if any(hashes) else ()


Sent = tuple[record_batch.BatchHeader, Sequence[int]]
"""A checked batch from a client: its header, and the tag hashes of its records, empty when none has a tag."""


def check_sent_in_steps(batch: Buffer, *, allowed: frozenset[str] = SENT_HEADERS) -> Generator[None, None, Sent]:
    """As `record_batch.check_in_steps` for a raw batch from a client, each record held to the limits of single ones and
    its headers to `allowed`; with it the batch's tag hashes. Decodes once.

    The generator raises MalformedBatch, RecordTooLarge, IllegalRecord, or RequestError for a header that only the
    server may set.
    """
    hashes: dict[int, int] = {}
    refusals: list[RequestError] = []

    def look_at(index: int, headers: record_batch.Headers) -> None:
        if not refusals:
            try:
                check_sent(headers, allowed)
            except RequestError as refusal:
                refusals.append(refusal)
        if hash_ := _record_tag_hash(headers):
            hashes[index] = hash_

    header = yield from record_batch.check_in_steps(batch, limited=True, on_headers=look_at)
    if refusals:
        raise refusals[0]
    return header, [hashes.get(index, 0) for index in range(header.record_count)] if hashes else ()


def check_sent(headers: record_batch.Headers, allowed: frozenset[str]) -> None:
    """Raises RequestError when a raw record has a header of ours that is not among these."""
    for name, _ in headers:
        if name.startswith(RESERVED_PREFIX) and name not in allowed:
            raise RequestError(
                RECORD_PART_ILLEGAL,
                f'headers: key "{name}" is reserved: names must not begin with "{RESERVED_PREFIX}", but for '
                f"{', '.join(sorted(allowed))}",
            )


def _record_tag_hash(headers: record_batch.Headers) -> int:
    for name, value in headers:
        if name == TAG_HEADER and value is not None:
            return tag_hash(value.decode("utf-8", "replace"))
    return 0
