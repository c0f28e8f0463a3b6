"""Tags: the one word that a reader may filter by. On the wire a record header, in the index a 64-bit hash.

The hash decides cheaply that a record can *not* have a tag; equal hashes are checked against the header itself.
0 means "no tag", so no tag hashes to 0.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from hashlib import blake2b

from store import record_batch
from store.types import Buffer

TAG_HEADER = "mq-tag"
DELIVER_AT_HEADER = "mq-deliver-at"
SCHEDULE_ID_HEADER = "mq-schedule-id"
SCHEDULE_KEY_HEADER = "mq-schedule-key"
MESSAGE_GROUP_HEADER = "mq-group"
"""Names the message group a record belongs to: a consumer group with `fifo` hands those out one after the other."""

RESERVED_PREFIX = "mq-"
"""Header names that begin so are the server's own."""

_TAG_HEADER_BYTES = TAG_HEADER.encode()
_ATTRIBUTES_AT = 22  # low byte of the batch's attributes; its low bits name the compression
_COMPRESSED = 0x07


@lru_cache(maxsize=4096)
def tag_hash(tag: str) -> int:
    """A signed 64-bit hash of a tag, the same on every machine and in every version; never 0."""
    return int.from_bytes(blake2b(tag.encode(), digest_size=8).digest(), "big", signed=True) or 1


def batch_tag_hashes(batch: Buffer) -> Sequence[int]:
    """The tag hashes of a raw batch that passed `record_batch.check`; empty when no record has a tag."""
    if not batch[_ATTRIBUTES_AT] & _COMPRESSED and _TAG_HEADER_BYTES not in bytes(batch):
        return ()  # the usual case, without decoding a record
    hashes = [_record_tag_hash(record.headers) for record in record_batch.decode(batch)]
    return hashes if any(hashes) else ()


def _record_tag_hash(headers: record_batch.Headers) -> int:
    for name, value in headers:
        if name == TAG_HEADER and value is not None:
            return tag_hash(value.decode("utf-8", "replace"))
    return 0
