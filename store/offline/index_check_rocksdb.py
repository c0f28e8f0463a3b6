"""Compare a RocksDB index with the log it was made from, read-only: for `mq verify`. The extra `rocksdb` is needed.

The same two directions as in store/offline/index_check.py: every entry before the checkpoint has its rows, and no queue
counts offsets that the log does not have.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path

from rocksdict import AccessType, Options, Rdict

from store.errors import IndexDamaged
from store.index.opening import ROCKSDB_DIRECTORY
from store.index.rocksdb import ROW, checkpoint_in, index_key, max_offsets_in, topic_bytes
from store.offline.index_findings import WrongRanges, WrongUnits
from store.types import Bounds, Entry, QueueKey

_KEYS_PER_GET = 1024


class RocksDbIndexCheck:
    """Checks `consumequeue.rocksdb/`. Raises IndexDamaged when it cannot be opened."""

    def __init__(self, root: Path, *, log_begin: int) -> None:
        self._path = root / ROCKSDB_DIRECTORY
        self._log_begin = log_begin
        self._seen: dict[QueueKey, Bounds] = {}
        self._wrong = WrongRanges()
        self._scratch = tempfile.TemporaryDirectory(prefix="mq-verify-")  # for the database's own log lines
        try:
            families = {name: _options(self._scratch.name) for name in ("default", "offset")}
            self._db = Rdict(
                str(self._path),
                families["default"],
                column_families={"offset": families["offset"]},
                access_type=AccessType.read_only(),
            )
            offsets = self._db.get_column_family("offset")
            self.checkpoint = checkpoint_in(offsets)
            self.max_offsets = dict(max_offsets_in(offsets))
            del offsets
        except Exception as error:  # the binding has one class of errors for all
            self._scratch.cleanup()
            raise IndexDamaged(f"{self._path}: {error}") from error

    def expect(self, entry: Entry) -> None:
        """See `IndexCheck.expect`."""
        if entry.position >= self.checkpoint:
            return
        key = entry.queue
        seen = self._seen.get(key)
        self._seen[key] = Bounds(entry.base_offset if seen is None else seen.min_offset, entry.next_offset)
        hashes = entry.tag_hashes or [0] * entry.record_count
        expected = [ROW.pack(entry.position, entry.size, tag_hash, entry.store_time_ms) for tag_hash in hashes]
        topic = topic_bytes(key.topic_id)
        offsets = range(entry.base_offset, entry.next_offset)
        is_counted = entry.next_offset <= self.max_offsets.get(key, 0)
        for first in range(0, len(offsets), _KEYS_PER_GET):
            part = offsets[first : first + _KEYS_PER_GET]
            keys = [index_key(topic, key.queue_id, offset) for offset in part]
            found: list[bytes | None] = self._db.get(keys)  # type: ignore[assignment, arg-type]
            is_counted = is_counted and found == expected[first : first + _KEYS_PER_GET]
        if not is_counted:
            self._wrong.add(entry)

    def finish(self) -> Iterator[WrongUnits]:
        """See `IndexCheck.finish`."""
        for key, ranges in self._wrong.items():
            for wrong in ranges:
                reason = "index rows do not point to the entry that holds these records"
                yield WrongUnits(key, (wrong.first, wrong.end), str(self._path), 0, reason, False)
        for key, max_offset in self.max_offsets.items():
            seen = self._seen.get(key)
            if seen is None and self._log_begin:
                continue  # all its records have expired
            first = 0 if seen is None else seen.max_offset
            if first < max_offset:
                reason = "the log has no entries for these index rows"
                yield WrongUnits(key, (first, max_offset), str(self._path), 0, reason, True)

    def close(self) -> None:
        """See `IndexCheck.close`."""
        self._db.close()
        self._scratch.cleanup()


def _options(log_directory: str) -> Options:
    options = Options(raw_mode=True)
    options.set_db_log_dir(log_directory)
    return options
