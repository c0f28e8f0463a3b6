"""Consume queues in one RocksDB: for stores with more queues than directories and fsyncs can carry (100,000 and more).

    consumequeue.rocksdb/                 a database with two column families; integers are big-endian

    `default`, one row a record
      key    topic length i32 | 01 | topic | 01 | queue id i32 | 01 | offset i64
      value  position i64 | size i32 | tag hash i64 | store time ms i64

    `offset`, the bounds of each queue, and one row for the checkpoint
      key    topic length i32 | 01 | topic | 01 | "max" or "min" | 01 | queue id i32
      value  position i64 | offset i64     max: the last used offset; min: the first offset, where the log has its entry
      `CHECKPOINT_TOPIC`, "max", queue 0   position = the checkpoint

Rows of light queues are in two families of their own (store/index/light.py), which are made when there is the first.

The topic in a key is the topic id, four bytes. What belongs to a key prefix lies between `prefix 01` and `prefix 02`.

Units wait in memory, one item an entry, until `flush`; readers see both.

    R1  a flush writes rows, then the bounds that count them, then the checkpoint: few of them in one atomic batch,
        many in several, in this order. A crash leaves rows that no bound counts, never the reverse; they are never
        shown (I3), and the same keys will be written again. After a rebuild, all bounds and the checkpoint change in
        one batch, whatever its size
        Rows of light queues come before all of these
    R2  a row below a queue's min offset may be there or not

Batches are short and unsynced, and the log of the database is synced once at the end, because the binding holds the
interpreter's lock while it writes a batch and lets it go while it syncs: a batch with all rows of a flush, or one
that syncs, would stop the event loop for as long as it takes. Between batches there are pauses (pauses.py).
"""

from __future__ import annotations

import contextlib
import errno
import logging
import shutil
import struct
import time
from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import islice
from operator import attrgetter
from pathlib import Path
from typing import NamedTuple

from rocksdict import (
    BlockBasedOptions,
    Cache,
    ColumnFamily,
    DBCompactionStyle,
    DBCompressionType,
    Options,
    Rdict,
    ReadOptions,
    WriteBatch,
    WriteOptions,
)

from store.errors import IndexDamaged
from store.files import Files
from store.index.base import ENTRY_EXTENT, TAG_HASH, ConsumeQueues, Flush, Run
from store.index.light import LightRows
from store.index.pauses import with_pauses
from store.limits import MiB
from store.types import Bounds, Indexed, QueueKey

log = logging.getLogger(__name__)

_LENGTH = struct.Struct(">i")
_ID = struct.Struct(">I")  # of a topic, and of a queue
_OFFSET = struct.Struct(">q")
ROW = struct.Struct(">qiqq")  # the value of a record: UNIT, and the store time
_BOUND = struct.Struct(">qq")
assert ROW.size == 28
assert _BOUND.size == 16
_BEHIND_EXTENT = b"\xff" * (ROW.size - ENTRY_EXTENT.size + 1)  # an extent with this sorts behind all values with it
CTRL_1, CTRL_2 = b"\x01", b"\x02"

MULTI_GET_UNITS_MAX = 4
"""Reads of up to this many units look up each key; longer ones scan. Rows in cache: 1 unit 3.1 µs by key and 3.6 µs
by scan, 8 units 5.5 and 2.6 µs, 4,096 units 2,600 and 420 µs."""

BATCH_ROWS_MAX = 512
"""Rows of one write batch: about a millisecond during which the binding keeps other threads waiting."""

SWEEP_ROWS = 128
"""Bounds looked at in each flush, round and round, to free rows of expired entries in queues that are not read."""

_NO_TAGS = array("q")
PENDING_ENTRY_BYTES = 200  # one _Pending with its integers
REOPEN_FREE_BYTES = 128 * MiB  # opening the database writes what its log holds to tables

_DAMAGE_SIGNS = ("Corruption", "No such file", "does not exist")
"""In what the database says when it does not open: its files are changed or missing, and a rebuild helps."""

STALL_WAIT_S = 0.02
STALL_TRIES = 500

INDEX_BUFFER_BYTES = 64 * MiB
BOUNDS_BUFFER_BYTES = 16 * MiB
CACHE_BYTES = 64 * MiB

LIGHT_FAMILIES = frozenset(("light", "light_end"))


def queue_prefix(topic: bytes, queue_id: int) -> bytes:
    """What the keys of all rows of one queue begin with."""
    return _LENGTH.pack(len(topic)) + CTRL_1 + topic + CTRL_1 + _ID.pack(queue_id)


def index_key(topic: bytes, queue_id: int, offset: int) -> bytes:
    """The key of the row of one offset."""
    return queue_prefix(topic, queue_id) + CTRL_1 + _OFFSET.pack(offset)


def bound_key(topic: bytes, bound: bytes, queue_id: int) -> bytes:
    """The key of a queue's `max` or `min`."""
    return _LENGTH.pack(len(topic)) + CTRL_1 + topic + CTRL_1 + bound + CTRL_1 + _ID.pack(queue_id)


def topic_bytes(topic_id: int) -> bytes:
    """The topic in a key."""
    return _ID.pack(topic_id)


_CHECKPOINT_KEY = bound_key(b"CHECKPOINT_TOPIC", b"max", 0)
_BOUNDS_PREFIX = _LENGTH.pack(_ID.size)  # of all keys in `offset` but the checkpoint's
_MAX_AT = len(_BOUNDS_PREFIX) + 1 + _ID.size + 1
_MAX = b"max" + CTRL_1
_POSITION = attrgetter("position")
_BASE_OFFSET = attrgetter("base_offset")


class _Pending(NamedTuple):
    """What the index keeps of an entry until its rows are written."""

    base_offset: int
    next_offset: int
    position: int
    size: int
    store_time_ms: int
    tag_hashes: array[int]  # empty when no record has a tag


class _Begun(NamedTuple):
    """Where a queue begins and ends in the database at the time of a flush."""

    key: QueueKey
    min_position: int
    min_offset: int
    flushed_count: int


class _Queue:
    """One queue: units [min, flushed) are in the database, the ones after them in memory."""

    __slots__ = ("flushed_count", "key", "max_offset", "min_offset", "min_position", "pending", "prefix")

    def __init__(self, key: QueueKey) -> None:
        self.key = key
        self.prefix = queue_prefix(topic_bytes(key.topic_id), key.queue_id) + CTRL_1
        self.min_offset = self.flushed_count = self.max_offset = 0
        self.min_position = -1  # of the entry at min offset, or before it; min is right while the log begins before it
        self.pending: list[_Pending] = []

    def begin_at(self, offset: int) -> None:
        """Let an empty queue begin here. Raises IndexDamaged when it has units and ends before."""
        if self.min_offset != self.max_offset:
            raise IndexDamaged(f"{self.key} ends at offset {self.max_offset}, but {offset} is known")
        self.min_offset = self.flushed_count = self.max_offset = offset
        self.min_position = -1


_Work = tuple[_Queue, int]
"""A queue, and how many of its pending entries a flush writes. More may come behind them meanwhile; none goes."""


_Stretch = tuple[bytes, _Pending, int, int]
"""Offsets of an entry, from one to before another, whose rows are put in one batch; and what their keys begin with."""


def _prefix(work: _Work) -> bytes:
    return work[0].prefix


class RocksDbConsumeQueues(ConsumeQueues):
    """All queues in the database of one directory. Queues are opened when first touched.

    `advance_min` is lazy: a queue's min offset is corrected when it is asked for, or by the sweep of a later flush.
    """

    def __init__(self, directory: Path, files: Files, *, first_position: int, rebuild: bool = False) -> None:
        """Raises IndexDamaged when the database is corrupt, OSError when it cannot be opened for another reason."""
        self._path = directory
        self._files = files
        self._first_position = first_position
        self._database = self._open_database(rebuild)
        self._failure: OSError | None = None
        self._queues: dict[QueueKey, _Queue] = {}
        self._dirty: list[_Queue] = []  # those with pending units
        self._last_position = -1  # of the last entry added
        self._pending_bytes = 0
        self._sweep_key = _BOUNDS_PREFIX
        self._light = LightRows(lambda: self._database, BATCH_ROWS_MAX)
        self._is_rebuilding = rebuild  # until the first flush, what the database says of bounds does not count
        try:
            self._floors = dict(self._database.max_offsets()) if rebuild else {}
            self._durable_position = self._database.checkpoint()
            self._checkpoint = 0 if rebuild else self._durable_position
            if rebuild:
                self._light.clear()
        except BaseException:
            self._database.close()
            raise

    def _open_database(self, rebuild: bool) -> _Database:
        try:
            return _Database(self._path)
        except IndexDamaged:
            if not rebuild:
                raise
            shutil.rmtree(self._path)
            return _Database(self._path)

    @property
    def checkpoint(self) -> int:
        """See `ConsumeQueues.checkpoint`."""
        return self._checkpoint

    @property
    def durable_position(self) -> int:
        """See `ConsumeQueues.durable_position`."""
        return self._durable_position

    @property
    def pending_bytes(self) -> int:
        """See `ConsumeQueues.pending_bytes`."""
        return self._pending_bytes + self._light.pending_bytes

    @property
    def light(self) -> LightRows:
        """See `ConsumeQueues.light`."""
        return self._light

    def append(self, entry: Indexed) -> None:
        """See `ConsumeQueues.append`."""
        queue = self._queues.get(entry.queue) or self._queue(entry.queue)
        next_offset = entry.next_offset
        if next_offset <= queue.max_offset:
            return
        if entry.base_offset != queue.max_offset:
            queue.begin_at(entry.base_offset)
        tag_hashes = array("q", entry.tag_hashes) if entry.tag_hashes else _NO_TAGS
        if not queue.pending:
            self._dirty.append(queue)
        queue.pending.append(
            _Pending(entry.base_offset, next_offset, entry.position, entry.size, entry.store_time_ms, tag_hashes)
        )
        queue.max_offset = next_offset
        self._pending_bytes += PENDING_ENTRY_BYTES + len(tag_hashes) * tag_hashes.itemsize
        if entry.position > self._last_position:  # a rebuild adds what has expired last
            self._last_position = entry.position
        if entry.light is not None:
            self._light.append(entry)

    def finish_rebuild(self) -> None:
        """See `ConsumeQueues.finish_rebuild`."""
        for key, offset in self._floors.items():
            queue = self._queue(key)
            if queue.max_offset < offset:
                queue.begin_at(offset)
        self._floors = {}

    def max_offset(self, queue: QueueKey) -> int:
        """See `ConsumeQueues.max_offset`."""
        return self._queue(queue).max_offset

    def bounds(self, queue: QueueKey) -> Bounds:
        """See `ConsumeQueues.bounds`."""
        found = self._queue(queue)
        if found.min_position < self._first_position:
            self._correct_min(found)
        return Bounds(found.min_offset, found.max_offset)

    def max_offsets(self) -> dict[QueueKey, int]:
        """The max offset of every queue, as of the last flush."""
        return dict(self._database.max_offsets())

    def runs(
        self, queue: QueueKey, offset: int, unit_count: int, tag_hashes: frozenset[int] | None = None
    ) -> list[Run]:
        """See `ConsumeQueues.runs`."""
        found = self._queue(queue)
        end = offset + unit_count
        runs: list[Run] = []
        if offset < found.flushed_count:
            values = self._values(found, offset, min(end, found.flushed_count))
            at = 0
            while at < len(values):
                extent = values[at][: ENTRY_EXTENT.size]
                run_end = bisect_right(values, extent + _BEHIND_EXTENT, at)  # positions grow along a queue
                if tag_hashes is None or any(_tag_hash_of(value) in tag_hashes for value in values[at:run_end]):
                    position, size = ENTRY_EXTENT.unpack(extent)
                    runs.append(Run(position, size, offset + at))
                at = run_end
        if end > found.flushed_count:
            first = max(0, bisect_right(found.pending, offset, key=_BASE_OFFSET) - 1)
            for pending in islice(found.pending, first, None):
                if pending.base_offset >= end:
                    break
                if tag_hashes is None or _has_tag(pending, offset, end, tag_hashes):
                    runs.append(Run(pending.position, pending.size, max(offset, pending.base_offset)))
        return runs

    def store_time_ms(self, queue: QueueKey, offset: int) -> int | None:
        """See `ConsumeQueues.store_time_ms`."""
        found = self._queue(queue)
        if offset >= found.flushed_count:
            return found.pending[bisect_right(found.pending, offset, key=_BASE_OFFSET) - 1].store_time_ms
        time_ms: int = ROW.unpack(self._values(found, offset, offset + 1)[0])[3]
        return time_ms

    def advance_min(self, position: int) -> None:
        """See `ConsumeQueues.advance_min`."""
        self._first_position = position

    def topic_ids(self) -> set[int]:
        """See `ConsumeQueues.topic_ids`."""
        in_memory = {key.topic_id for key, queue in self._queues.items() if queue.max_offset}
        return in_memory if self._is_rebuilding else in_memory | self._database.topic_ids()

    def drop_topic(self, topic_id: int) -> None:
        """See `ConsumeQueues.drop_topic`."""
        for key in [key for key in self._queues if key.topic_id == topic_id]:
            self._pending_bytes -= _bytes_of(self._queues.pop(key).pending)
        self._dirty = [queue for queue in self._dirty if queue.key.topic_id != topic_id]
        self._floors = {key: offset for key, offset in self._floors.items() if key.topic_id != topic_id}
        topic = _ID.pack(topic_id)
        prefix = _LENGTH.pack(len(topic)) + CTRL_1 + topic
        batch = WriteBatch(raw_mode=True)
        batch.delete_range(prefix + CTRL_1, prefix + CTRL_2, self._database.index)
        batch.delete_range(prefix + CTRL_1, prefix + CTRL_2, self._database.offset)
        self._light.drop_topic(topic_id, batch)
        self._database.write(batch)

    def flush(self, checkpoint: int) -> Flush:
        """See `ConsumeQueues.flush`."""
        if self._failure is not None and self._failure.errno == errno.ENOSPC:
            self._reopen_if_there_is_room()
        if not self._is_rebuilding:
            try:
                self._sweep()
            except IndexDamaged as error:  # its readers are told
                log.warning("expired rows not freed error=%s", error)
        # Little is done here for each queue: there may be a hundred thousand, and the event loop stands still.
        if self._last_position < checkpoint:
            work = [(queue, len(queue.pending)) for queue in self._dirty]
        else:
            counted = [(queue, _count_before(queue.pending, checkpoint)) for queue in self._dirty]
            work = [(queue, count) for queue, count in counted if count]
        written_bytes = 0
        begun = self._begun_queues(work)
        light_work = self._light.begin_flush(checkpoint)
        is_rebuilding, pauses_s = self._is_rebuilding, self.pauses_s

        def run() -> None:
            nonlocal written_bytes
            if self._failure is not None:
                raise OSError(*self._failure.args)
            written_bytes = sum(_bytes_of(queue.pending[:count]) for queue, count in work)
            try:
                self._light.write(light_work, checkpoint, pauses_s)
                self._write(work, begun, checkpoint, pauses_s, is_rebuilding=is_rebuilding)
            except BlockingIOError:
                raise  # compaction is behind: the next flush may find room
            except OSError as error:
                self._failure = OSError(*error.args)
                raise

        def finish() -> None:
            self._checkpoint = self._durable_position = checkpoint
            self._is_rebuilding = False
            self._pending_bytes -= written_bytes
            for queue, count in work:
                queue.flushed_count = queue.pending[count - 1].next_offset
                del queue.pending[:count]
            self._dirty = [queue for queue in self._dirty if queue.pending]
            self._light.finish_flush(light_work)

        return Flush(run, finish)

    def close(self) -> None:
        """See `ConsumeQueues.close`."""
        self._database.close()

    # ---- queues --------------------------------------------------------------------------------------------------

    def _queue(self, key: QueueKey) -> _Queue:
        queue = self._queues.get(key)
        if queue is None:
            queue = self._queues[key] = self._open_queue(key)
        return queue

    def _open_queue(self, key: QueueKey) -> _Queue:
        queue = _Queue(key)
        if self._is_rebuilding:
            return queue
        max_key, min_key = (bound_key(topic_bytes(key.topic_id), bound, key.queue_id) for bound in (b"max", b"min"))
        last, first = self._database.bounds([max_key, min_key])
        if last is not None:
            queue.flushed_count = queue.max_offset = _BOUND.unpack(last)[1] + 1
        if first is not None:
            min_position, min_offset = _BOUND.unpack(first)
            if min_offset <= queue.max_offset:
                queue.min_position, queue.min_offset = min_position, min_offset
            else:  # it was raised past units that no flush had written: those are replayed, and it is found again
                queue.min_offset = queue.max_offset
        return queue

    def _correct_min(self, queue: _Queue) -> None:
        """Raise a queue's min offset to its first unit that points into the log; free the rows before it.

        A row that is not there has been freed before: it counts as expired.
        """
        low, high = queue.min_offset, queue.flushed_count
        while low < high:
            middle = (low + high) // 2
            if self._position(queue, middle) < self._first_position:
                low = middle + 1
            else:
                high = middle
        if low == queue.flushed_count:
            at = bisect_left(queue.pending, self._first_position, key=_POSITION)
            low = queue.pending[at].base_offset if at < len(queue.pending) else queue.max_offset
        position = self._position(queue, low) if low < queue.flushed_count else self._first_position
        has_moved = low > queue.min_offset
        queue.min_offset, queue.min_position = low, position
        if has_moved and not self._is_rebuilding:
            batch = WriteBatch(raw_mode=True)
            self._put_bound(batch, queue.key, b"min", position, low)
            batch.delete_range(queue.prefix, queue.prefix + _OFFSET.pack(low), self._database.index)
            try:
                self._database.write(batch)
            except OSError as error:  # it is found again by the same search
                log.warning("min offset not stored topic_id=%s queue=%s error=%s", *queue.key, error)

    def _sweep(self) -> None:
        keys = self._database.bound_keys(self._sweep_key, SWEEP_ROWS)
        self._sweep_key = keys[-1] + b"\0" if len(keys) == SWEEP_ROWS else _BOUNDS_PREFIX
        for key in filter(None, map(_queue_of_max, keys)):
            queue = self._queues.get(key) or self._open_queue(key)
            if queue.min_position < self._first_position:
                self._correct_min(queue)

    # ---- the database --------------------------------------------------------------------------------------------

    def _position(self, queue: _Queue, offset: int) -> int:
        value = self._database.value(queue.prefix + _OFFSET.pack(offset))
        position: int = -1 if value is None else ENTRY_EXTENT.unpack_from(value)[0]
        return position

    def _values(self, queue: _Queue, offset: int, end: int) -> list[bytes]:
        prefix = queue.prefix
        if end - offset <= MULTI_GET_UNITS_MAX:
            values = self._database.values([prefix + _OFFSET.pack(at) for at in range(offset, end)])
        else:
            values = self._database.values_between(prefix + _OFFSET.pack(offset), prefix + _OFFSET.pack(end))
        if len(values) < end - offset:
            raise IndexDamaged(f"{self._path}: units of {queue.key} from offset {offset} to {end} are missing")
        return values

    def _begun_queues(self, work: Sequence[_Work]) -> list[_Begun]:
        """Where those queues begin and end in the database whose `min` row a flush has to write as well: they may have
        begun at an offset of their own. After a rebuild those are all queues."""
        if self._is_rebuilding:
            queues = list(self._queues.values())
        else:
            queues = [queue for queue, _ in work if queue.flushed_count == queue.min_offset]
        return [
            _Begun(queue.key, max(queue.min_position, 0), queue.min_offset, queue.flushed_count) for queue in queues
        ]

    def _write(
        self, work: list[_Work], begun: Sequence[_Begun], checkpoint: int, pauses_s: float, *, is_rebuilding: bool
    ) -> None:
        """Write rows, then bounds and checkpoint, and make all of it durable (R1). Runs in a thread, and reads nothing
        of a queue that its owner may change meanwhile."""
        database = self._database
        work.sort(key=_prefix)  # neighbours in the order of keys are put in faster
        bounds = _bound_rows(work, begun)
        chunk: list[_Stretch] = []
        row_count = sum([queue.pending[count - 1].next_offset - queue.pending[0].base_offset for queue, count in work])
        for following in with_pauses(_chunks(work, BATCH_ROWS_MAX), pauses_s, -(-row_count // BATCH_ROWS_MAX)):
            if chunk:
                database.write_patiently(partial(_put_rows, chunk))
            chunk = following

        if not is_rebuilding:
            while len(bounds) > BATCH_ROWS_MAX:
                database.write_patiently(partial(_put_bounds, database, bounds[:BATCH_ROWS_MAX]))
                bounds = bounds[BATCH_ROWS_MAX:]

        def put_rest(batch: WriteBatch) -> None:
            _put_rows(chunk, batch)
            if is_rebuilding:
                batch.delete_range(b"", b"\xff", database.offset)
            _put_bounds(database, [*bounds, (_CHECKPOINT_KEY, _BOUND.pack(checkpoint, 0))], batch)

        database.write_patiently(put_rest)
        database.sync()

    def _put_bound(self, batch: WriteBatch, key: QueueKey, bound: bytes, position: int, offset: int) -> None:
        row_key = bound_key(topic_bytes(key.topic_id), bound, key.queue_id)
        batch.put(row_key, _BOUND.pack(position, offset), self._database.offset)

    def _reopen_if_there_is_room(self) -> None:
        """The database takes no more writes once its disk was full, until it is opened again."""
        if self._files.free_bytes(self._path.parent) < REOPEN_FREE_BYTES:
            return
        self._database.close()
        try:
            self._database = _Database(self._path)
        except OSError as error:
            self._failure = OSError(*error.args)
        else:
            self._failure = None
            log.info("consume queues take writes again path=%s", self._path)


class _Database:
    """The two column families, and the errors of the binding (it has one class for all) turned into ours.

    The binding closes a database only when every handle and iterator is gone, so none leaves this class for long.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        cache = Cache(CACHE_BYTES)
        index = _options(INDEX_BUFFER_BYTES, cache)
        index.set_compaction_style(DBCompactionStyle.universal())
        index.set_compression_type(DBCompressionType.lz4())
        index.set_bottommost_compression_type(DBCompressionType.zstd())
        self._light_options = partial(_light_options, cache)
        try:
            # A database of ours has its family; the options of `default` are those of the database.
            families = {"offset": _options(BOUNDS_BUFFER_BYTES, cache)}
            families |= {name: self._light_options(name) for name in LIGHT_FAMILIES & _families_in(path)}
            self._db = Rdict(str(path), index, column_families=families)
        except Exception as error:
            if any(sign in str(error) for sign in _DAMAGE_SIGNS):
                raise IndexDamaged(f"{path}: {error}") from error
            raise _os_error(error) from error
        self._offsets = self._db.get_column_family("offset")
        self._light: Rdict | None = None
        self._light_end: Rdict | None = None
        if families.keys() >= LIGHT_FAMILIES:
            self._open_light()
        self._write_options = WriteOptions()
        # Rather an error than a wait: the binding would keep all other threads waiting too.
        self._write_options.no_slowdown = True

    @property
    def index(self) -> ColumnFamily:
        """A handle for batches."""
        return self._handle("default")

    @property
    def offset(self) -> ColumnFamily:
        """A handle for batches."""
        return self._handle("offset")

    @property
    def has_light(self) -> bool:
        """See `LightDatabase`."""
        return self._light_end is not None

    def make_light(self) -> None:
        """See `LightDatabase`. Made when needed: a program that does not know these families cannot open a database
        with them. Raises OSError."""
        if self.has_light:
            return
        try:
            for name in sorted(LIGHT_FAMILIES - _families_in(self._path)):
                self._db.create_column_family(name, self._light_options(name))
        except Exception as error:
            raise _os_error(error) from error
        self._open_light()

    def _open_light(self) -> None:
        self._light = self._db.get_column_family("light")
        self._light_end = self._db.get_column_family("light_end")

    @property
    def light(self) -> ColumnFamily:
        """A handle for batches."""
        return self._handle("light")

    @property
    def light_end(self) -> ColumnFamily:
        """A handle for batches."""
        return self._handle("light_end")

    def light_rows(self, first: bytes, end: bytes, count: int) -> list[tuple[bytes, bytes]]:
        """See `LightDatabase`."""
        assert self._light is not None
        with self._reading():
            return list(islice(self._light.items(from_key=first, read_opt=_up_to(end)), count))  # type: ignore[arg-type]

    def light_ends(self, keys: list[bytes]) -> list[bytes | None]:
        """See `LightDatabase`."""
        assert self._light_end is not None
        with self._reading():
            found: list[bytes | None] = self._light_end.get(keys)  # type: ignore[assignment, arg-type]
            return found

    def light_end_keys(self, first: bytes, end: bytes, count: int) -> list[bytes]:
        """See `LightDatabase`."""
        assert self._light_end is not None
        with self._reading():
            return list(islice(self._light_end.keys(from_key=first, read_opt=_up_to(end)), count))  # type: ignore[arg-type]

    def write_patiently(self, fill: Callable[[WriteBatch], None], /) -> None:
        """Write a batch; when compaction is behind, wait for it, in a thread of its own, so that no other caller waits.
        Raises OSError."""
        tries_left = STALL_TRIES
        while True:
            batch = WriteBatch(raw_mode=True)  # a refused one cannot be used again
            fill(batch)
            try:
                return self.write(batch)
            except BlockingIOError:
                tries_left -= 1
                if not tries_left:
                    raise
            time.sleep(STALL_WAIT_S)

    def _handle(self, name: str) -> ColumnFamily:
        try:
            return self._db.get_column_family_handle(name)
        except Exception as error:
            raise _os_error(error) from error

    def value(self, key: bytes) -> bytes | None:
        with self._reading():
            found: bytes | None = self._db.get(key)
            return found

    def values(self, keys: list[bytes]) -> list[bytes]:
        """The values of these keys, without those that are not there."""
        with self._reading():
            found: list[bytes | None] = self._db.get(keys)  # type: ignore[assignment, arg-type]
            return [value for value in found if value is not None]

    def values_between(self, first: bytes, end: bytes) -> list[bytes]:
        """The values of [first, end). The bound keeps the scan out of whatever was deleted behind it."""
        with self._reading():
            return list(self._db.values(from_key=first, read_opt=_up_to(end)))

    def bounds(self, keys: list[bytes]) -> list[bytes | None]:
        with self._reading():
            found: list[bytes | None] = self._offsets.get(keys)  # type: ignore[assignment, arg-type]
            return found

    def checkpoint(self) -> int:
        with self._reading():
            return checkpoint_in(self._offsets)

    def bound_keys(self, first: bytes, count: int) -> list[bytes]:
        """Up to `count` keys of bounds from `first` on, the checkpoint's not among them."""
        with self._reading():
            keys: Iterator[bytes] = self._offsets.keys(from_key=first, read_opt=_up_to(_BOUNDS_PREFIX + CTRL_2))  # type: ignore[assignment]
            return list(islice(keys, count))

    def max_offsets(self) -> list[tuple[QueueKey, int]]:
        with self._reading():
            return list(max_offsets_in(self._offsets))

    def topic_ids(self) -> set[int]:
        """By one seek a topic."""
        found = set()
        keys = self.bound_keys(_BOUNDS_PREFIX, 1)
        while keys:
            topic = keys[0][len(_BOUNDS_PREFIX) + 1 :][: _ID.size]
            found.add(_ID.unpack(topic)[0])
            keys = self.bound_keys(_BOUNDS_PREFIX + CTRL_1 + topic + CTRL_2, 1)
        return found

    def write(self, batch: WriteBatch) -> None:
        """Apply a batch: survives kill -9, and a power cut after the next `sync`. Raises OSError; BlockingIOError
        when compaction is behind."""
        try:
            self._db.write(batch, self._write_options)
        except Exception as error:
            raise _os_error(error) from error

    def sync(self) -> None:
        """Make all batches so far durable. Raises OSError."""
        try:
            self._db.flush_wal(sync=True)
        except Exception as error:
            raise _os_error(error) from error

    def close(self) -> None:
        # After a failed write closing complains once more, and closes.
        for family in (self._offsets, self._light, self._light_end):
            with contextlib.suppress(Exception):
                if family is not None:
                    family.close()
        with contextlib.suppress(Exception):
            self._db.close()

    @contextlib.contextmanager
    def _reading(self) -> Iterator[None]:
        try:
            yield
        except Exception as error:
            raise IndexDamaged(f"{self._path}: reading failed ({error})") from error


def _options(buffer_bytes: int, cache: Cache) -> Options:
    tables = BlockBasedOptions()
    tables.set_block_cache(cache)
    options = Options(raw_mode=True)
    options.create_if_missing(True)
    options.create_missing_column_families(True)
    options.set_block_based_table_factory(tables)
    options.set_write_buffer_size(buffer_bytes)
    options.set_max_background_jobs(2)
    options.set_keep_log_file_num(4)
    options.set_max_log_file_size(MiB)
    return options


def _families_in(path: Path) -> set[str]:
    """The column families of a database; none where there is no database, or none that opens."""
    try:
        return set(Rdict.list_cf(str(path)))
    except Exception:  # the binding has one class of errors for all; opening says what is wrong
        return set()


def _light_options(cache: Cache, name: str) -> Options:
    """Of a family of light queues. The end of a queue that has none is asked for by each send to a new one: filters say
    so, of tables and of what is in memory (3.9 us a key became 3.0, one that is not there 1.9 and 0.5)."""
    tables = BlockBasedOptions()
    tables.set_block_cache(cache)
    options = _options(INDEX_BUFFER_BYTES if name == "light" else BOUNDS_BUFFER_BYTES, cache)
    options.set_compression_type(DBCompressionType.lz4())
    if name == "light_end":
        tables.set_bloom_filter(10, block_based=False)
        options.set_memtable_prefix_bloom_ratio(0.1)
        options.set_memtable_whole_key_filtering(True)
    options.set_block_based_table_factory(tables)
    return options


def _up_to(end: bytes) -> ReadOptions:
    options = ReadOptions()
    options.set_iterate_upper_bound(end)
    return options


def _os_error(error: Exception) -> OSError:
    message = str(error)
    if "stall" in message or "Incomplete" in message:
        return BlockingIOError(errno.EAGAIN, message)
    return OSError(errno.ENOSPC if "No space left" in message else errno.EIO, message)


def checkpoint_in(offsets: Rdict) -> int:
    """The checkpoint in the column family `offset`. Raises what reading raises."""
    found: bytes | None = offsets.get(_CHECKPOINT_KEY)
    position: int = 0 if found is None else _BOUND.unpack(found)[0]
    return position


def max_offsets_in(offsets: Rdict) -> Iterator[tuple[QueueKey, int]]:
    """The max offset of each queue in the column family `offset`. Raises what reading raises."""
    for row_key, value in offsets.items(from_key=_BOUNDS_PREFIX, read_opt=_up_to(_BOUNDS_PREFIX + CTRL_2)):
        if (key := _queue_of_max(row_key)) is not None:  # type: ignore[arg-type]
            yield key, _BOUND.unpack(value)[1] + 1


def _queue_of_max(key: bytes) -> QueueKey | None:
    """The queue whose `max` has this key; None for other keys."""
    if key[_MAX_AT:-5] != b"max":
        return None
    topic_id: int = _ID.unpack_from(key, len(_BOUNDS_PREFIX) + 1)[0]
    queue_id: int = _ID.unpack_from(key, len(key) - _ID.size)[0]
    return QueueKey(topic_id, queue_id)


def _put_rows(chunk: Sequence[_Stretch], batch: WriteBatch) -> None:
    pack_offset = _OFFSET.pack
    for prefix, entry, first, end in chunk:
        if entry.tag_hashes:
            hashes = entry.tag_hashes[first - entry.base_offset : end - entry.base_offset]
            for offset, tag_hash in zip(range(first, end), hashes, strict=True):
                row = ROW.pack(entry.position, entry.size, tag_hash, entry.store_time_ms)
                batch[prefix + pack_offset(offset)] = row
        else:
            row = ROW.pack(entry.position, entry.size, 0, entry.store_time_ms)
            for offset in range(first, end):
                batch[prefix + pack_offset(offset)] = row


def _put_bounds(database: _Database, rows: Sequence[tuple[bytes, bytes]], batch: WriteBatch) -> None:
    family = database.offset
    for key, value in rows:
        batch.put(key, value, family)


def _count_before(pending: list[_Pending], position: int) -> int:
    """How many entries lie before a log position; positions grow along a queue."""
    return bisect_left(pending, position, key=_POSITION)


def _bound_rows(work: Sequence[_Work], begun: Sequence[_Begun]) -> list[tuple[bytes, bytes]]:
    """The rows of bounds that a flush has to write."""
    rows = []
    written: dict[QueueKey, int] = {}  # ends of queues that begin with what is written, or are written at all
    if begun:
        written = {queue.key: queue.pending[count - 1].next_offset for queue, count in work}
    for key, min_position, min_offset, flushed_count in begun:
        end = written.get(key, flushed_count)
        assert min_offset <= end
        if end:
            rows.append(
                (bound_key(topic_bytes(key.topic_id), b"min", key.queue_id), _BOUND.pack(min_position, min_offset))
            )
            if key not in written:
                rows.append((bound_key(topic_bytes(key.topic_id), b"max", key.queue_id), _BOUND.pack(-1, end - 1)))
    for queue, count in work:
        last = queue.pending[count - 1]
        prefix = queue.prefix
        key_of_max = prefix[:_MAX_AT] + _MAX + prefix[_MAX_AT:-1]  # what bound_key makes, from parts that are there
        rows.append((key_of_max, _BOUND.pack(last.position, last.next_offset - 1)))
    return rows


def _chunks(work: Sequence[_Work], rows_max: int) -> Iterator[list[_Stretch]]:
    """The rows that a flush writes, as many at a time as a batch takes."""
    chunk: list[_Stretch] = []
    left = rows_max
    for queue, count in work:
        prefix = queue.prefix
        for entry in islice(queue.pending, count):
            first, end = entry.base_offset, entry.next_offset
            while end - first > left:
                chunk.append((prefix, entry, first, first + left))
                first += left
                yield chunk
                chunk, left = [], rows_max
            chunk.append((prefix, entry, first, end))
            left -= end - first
    yield chunk


def _tag_hash_of(value: bytes) -> int:
    tag_hash: int = TAG_HASH.unpack_from(value, ENTRY_EXTENT.size)[0]
    return tag_hash


def _has_tag(entry: _Pending, offset: int, end: int, tag_hashes: frozenset[int]) -> bool:
    if not entry.tag_hashes:
        return 0 in tag_hashes
    first = max(0, offset - entry.base_offset)
    return not tag_hashes.isdisjoint(entry.tag_hashes[first : end - entry.base_offset])


def _bytes_of(entries: Sequence[_Pending]) -> int:
    tag_count = sum([len(entry.tag_hashes) for entry in entries])
    return len(entries) * PENDING_ENTRY_BYTES + tag_count * _NO_TAGS.itemsize
