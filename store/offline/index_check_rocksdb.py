"""Compare a RocksDB index with the log it was made from, read-only: for `mq verify`. The extra `rocksdb` is needed.

The same two directions as in store/offline/index_check.py: every entry before the checkpoint has its rows, and no queue
counts offsets that the log does not have. Rows of light queues are compared one by one, and counted.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from itertools import groupby
from pathlib import Path

from rocksdict import AccessType, Options, Rdict

from store.errors import IndexDamaged
from store.index.light import ROW as LIGHT_ROW
from store.index.light import end_of, light_queue_of, offset_of, queue_of, row_key
from store.index.opening import ROCKSDB_DIRECTORY
from store.index.rocksdb import LIGHT_FAMILIES, ROW, checkpoint_in, index_key, max_offsets_in, topic_bytes
from store.light_names import LightNames
from store.offline.index_findings import WrongRanges, WrongUnits
from store.types import Bounds, Entry, QueueKey

_KEYS_PER_GET = 1024


class RocksDbIndexCheck:
    """Checks `consumequeue.rocksdb/`. Raises IndexDamaged when it cannot be opened."""

    def __init__(self, root: Path, *, log_begin: int, log_start: int = 0) -> None:
        """`log_start`: retention has given up what is before it, and may have freed rows of light queues."""
        self._path = root / ROCKSDB_DIRECTORY
        self._log_begin = log_begin
        self._light_begin = max(log_begin, log_start)
        self._light_counts: dict[QueueKey, int] = {}
        self._wrong_light: set[QueueKey] = set()
        self._seen: dict[QueueKey, Bounds] = {}
        self._wrong = WrongRanges()
        self._scratch = tempfile.TemporaryDirectory(prefix="mq-verify-")  # for the database's own log lines
        try:
            names = {"offset", *LIGHT_FAMILIES & set(Rdict.list_cf(str(self._path)))}
            self._db = Rdict(
                str(self._path),
                _options(self._scratch.name),
                column_families={name: _options(self._scratch.name) for name in names},
                access_type=AccessType.read_only(),
            )
            has_light = names >= LIGHT_FAMILIES
            self._light = self._db.get_column_family("light") if has_light else None
            self._light_end = self._db.get_column_family("light_end") if has_light else None
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
        if entry.light is not None and entry.light.is_assigned and entry.position >= self._light_begin:
            self._expect_light(entry, entry.light)

    def _expect_light(self, entry: Entry, light: LightNames) -> None:
        rows = light.rows()
        self._light_counts[entry.queue] = self._light_counts.get(entry.queue, 0) + len(rows)
        keys = [row_key(entry.queue, row.name, row.offset) for row in rows]
        values = [LIGHT_ROW.pack(entry.base_offset + row.record_index, entry.position, entry.size) for row in rows]
        if self._light is None or self._light.get(keys) != values:  # type: ignore[arg-type]
            self._wrong_light.add(entry.queue)

    def _unknown_light(self) -> set[QueueKey]:
        """The queues that have other rows of light queues than the log says, or whose ends do not follow from them."""
        if self._light is None or self._light_end is None:
            return set(self._light_counts)
        counts: dict[QueueKey, int] = {}
        wrong: set[QueueKey] = set()
        for light_queue, rows in groupby(self._light.items(), key=_light_queue_of):
            queue = queue_of(light_queue)
            end = 0
            for key, value in rows:
                _, position, _ = LIGHT_ROW.unpack(value)
                if position < self.checkpoint:  # what lies behind it may be left from a flush that did not end
                    end = offset_of(key) + 1  # type: ignore[arg-type]
                    counts[queue] = counts.get(queue, 0) + (position >= self._light_begin)
            stored: bytes | None = self._light_end.get(light_queue)
            if end and (stored is None or end_of(stored) < end):
                wrong.add(queue)
        for end_key in self._light_end.keys():  # noqa: SIM118
            first = next(iter(self._light.keys(from_key=end_key)), b"")
            if light_queue_of(first) != end_key:  # type: ignore[arg-type]
                wrong.add(queue_of(end_key))  # type: ignore[arg-type]
        known = self._light_counts
        return wrong | {queue for queue in counts.keys() | known.keys() if counts.get(queue, 0) != known.get(queue, 0)}

    def finish(self) -> Iterator[WrongUnits]:
        """See `IndexCheck.finish`."""
        for key, ranges in self._wrong.items():
            for wrong in ranges:
                reason = "index rows do not point to the entry that holds these records"
                yield WrongUnits(key, (wrong.first, wrong.end), str(self._path), 0, reason, False)
        for key in sorted(self._wrong_light | self._unknown_light()):
            own = self._seen.get(key, Bounds(0, 0))
            reason = "rows of light queues do not agree with the records that name them"
            yield WrongUnits(key, (own.min_offset, own.max_offset), str(self._path), 0, reason, False)
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
        for family in (self._light, self._light_end):
            if family is not None:
                family.close()
        self._db.close()
        self._scratch.cleanup()


def _light_queue_of(row: tuple[object, object]) -> bytes:
    return light_queue_of(row[0])  # type: ignore[arg-type]


def _options(log_directory: str) -> Options:
    options = Options(raw_mode=True)
    options.set_db_log_dir(log_directory)
    return options
