"""Fixed limits and how they relate. What an operator may choose is in `store/config.py`.

Bytes are bounded wherever memory is at stake; counts only where a format has a field of that width.
"""

from __future__ import annotations

KiB = 1024
MiB = 1024 * KiB

RECORD_BYTES_MAX = 4 * MiB
"""Key + value + headers of one record."""

KEY_BYTES_MAX = 1 * KiB
TAG_BYTES_MAX = 128
HEADER_COUNT_MAX = 64
HEADERS_BYTES_MAX = 16 * KiB

LIGHT_NAMES_MAX = 64
"""Light queues that one record may be in."""

LIGHT_NAME_BYTES_MAX = 255
"""UTF-8 bytes of the name of a light queue: its length is one byte in the log."""

BATCH_BYTES_MAX = 8 * MiB
"""One RecordBatch as a client may send it; also what a compressed one may inflate to."""

BATCH_RECORDS_MAX = 100_000
"""Records of one RecordBatch. Bounds the work done for one batch between two turns of the event loop."""

ENTRY_BYTES_MAX = BATCH_BYTES_MAX + 6 * MiB
"""One commit-log entry: the batch and its extension (at most 56 bytes a record), header and padding."""

COMMIT_LOG_FILE_BYTES_MIN = 64 * KiB
"""Smallest configurable commit-log file; tests use it to see many rolls."""

OWN_RESERVE_BYTES_MAX = 8 * MiB
"""Most of the prepared log that is kept for the server's own notes."""

TOPIC_NAME_BYTES_MAX = 249
PARTITIONS_MAX = 1024

# A record that passes its own limit must fit a batch of its own, with room for the batch header.
assert RECORD_BYTES_MAX + 1 * KiB <= BATCH_BYTES_MAX
# The widest per-record extension is one delay, one tag hash, one message id and one place; see store/log/entry.py.
assert BATCH_RECORDS_MAX * 56 + 64 * KiB <= ENTRY_BYTES_MAX - BATCH_BYTES_MAX
