"""Consume queues, one suite for every kind: what `store.index.base` promises, whatever lies below.

A test gets `index`: a factory that opens the index of its directory, as a store does: with the replay of the log
behind the checkpoint, and built again from the whole log when it is damaged.
"""

from __future__ import annotations

import contextlib
import errno
import tempfile
from bisect import bisect_left
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from random import Random

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule, run_state_machine_as_test

from store.errors import IndexDamaged
from store.files import File, Files, OsFiles
from store.index import file as file_index
from store.index import pauses
from store.index.base import UNIT_BYTES, ConsumeQueues, Run, search_time
from store.index.counted import Counted, decode_counted
from store.index.file import (
    KEPT_BYTES_MAX,
    KEPT_LOG_SHARE,
    KEPT_QUEUE_BYTES_MAX,
    LONG_RUN_UNITS,
    SYNCED_EACH_MAX,
    FileConsumeQueues,
)
from store.index.opening import ROCKSDB_DIRECTORY
from store.index.pending import ROW_BYTES
from store.limits import MiB
from store.offline.index_rebuild import PENDING_BYTES_MAX
from store.snapshot import SnapshotFiles
from store.types import Boundary, Bounds, Entry, QueueKey
from tests.simdisk import Fault, SimDisk

KINDS = ["file", "kept", "rocksdb"]
"""Files; files of whose units the snapshot keeps all it can; and the database."""

FILE_UNITS = 7  # small: most ranges cross files
ROOT = Path("/data")
Q = QueueKey(3, 0)
Q2 = QueueKey(3, 1)
OTHER_TOPIC = QueueKey(4, 0)


class Log:
    """Stands for the commit log: gives entries their positions and offsets, and remembers them."""

    def __init__(self) -> None:
        self.entries: list[Entry] = []
        self.end = 0
        self.first_position = 0
        self._max_offsets: dict[QueueKey, int] = {}

    def entry(
        self, queue: QueueKey = Q, count: int = 1, *, tags: Sequence[int] = (), time_ms: int = 1_700_000_000_000
    ) -> Entry:
        base = self._max_offsets.get(queue, 0)
        self._max_offsets[queue] = base + count
        size = 64 + 8 * count
        entry = Entry(self.end, size, queue, "t", base, count, time_ms, False, memoryview(b""), tags)
        self.entries.append(entry)
        self.end += size
        return entry

    def since(self, position: int) -> list[Entry]:
        return [entry for entry in self.entries if entry.position >= max(position, self.first_position)]


Open = Callable[..., ConsumeQueues]


def opened(
    kind: str, root: Path, *, first_position: int = 0, rebuild: bool = False, files: Files | None = None
) -> ConsumeQueues:
    files = files or OsFiles()
    if kind != "rocksdb":
        return FileConsumeQueues(root, files, file_units=FILE_UNITS, first_position=first_position, rebuild=rebuild)
    rocksdb = pytest.importorskip("store.index.rocksdb")
    queues: ConsumeQueues = rocksdb.RocksDbConsumeQueues(
        root / ROCKSDB_DIRECTORY, files, first_position=first_position, rebuild=rebuild
    )
    return queues


def reopened(kind: str, root: Path, log: Log, files: Files | None = None) -> ConsumeQueues:
    """Open as a store does after any stop: what the index had flushed, and the log behind that."""
    try:
        queues = opened(kind, root, first_position=log.first_position, files=files)
        for entry in log.since(queues.checkpoint):
            queues.append(entry)
    except IndexDamaged:
        queues = opened(kind, root, first_position=log.first_position, rebuild=True, files=files)
        for entry in log.since(0):
            queues.append(entry)
        queues.finish_rebuild()
    return queues


@pytest.fixture(params=KINDS)
def kind(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    name: str = request.param
    if name == "kept":
        monkeypatch.setattr(file_index, "KEPT_LOG_SHARE", 1)
    elif name == "file":
        monkeypatch.setattr(file_index, "KEPT_BYTES_MAX", 0)
    return name


@pytest.fixture
def index(kind: str, tmp_path: Path) -> Iterator[Open]:
    made: list[ConsumeQueues] = []

    def open_(log: Log | None = None, **arguments: bool | int) -> ConsumeQueues:
        for queues in made:
            queues.close()
        made[:] = [opened(kind, tmp_path, **arguments) if log is None else reopened(kind, tmp_path, log)]  # type: ignore[arg-type]
        return made[0]

    yield open_
    for queues in made:
        queues.close()


def flush(queues: ConsumeQueues, checkpoint: int) -> None:
    under_way = queues.flush(checkpoint)
    under_way.run()
    under_way.finish()


def waiting_bytes(queues: ConsumeQueues) -> int:
    """What no flush has counted; what a snapshot keeps stays in memory, but waits for nothing."""
    return queues.pending_bytes - sum(one.kept.byte_count for one in counted_by(queues))


def counted_by(queues: ConsumeQueues) -> list[Counted]:
    """What the newest snapshot says, of an index in files."""
    if not isinstance(queues, FileConsumeQueues):
        return []
    snapshot = SnapshotFiles(queues._directory.parent, "index", queues._files).load()
    return [] if snapshot is None else list(decode_counted(snapshot.content))


def runs_of(entries: Sequence[Entry], offset: int, count: int) -> list[Run]:
    """What `runs` has to answer, from the entries of one queue."""
    end = offset + count
    return [
        Run(entry.position, entry.size, max(offset, entry.base_offset))
        for entry in entries
        if entry.base_offset < end and entry.next_offset > offset
    ]


# ---- appending and reading -------------------------------------------------------------------------------------------


def test_a_queue_that_never_held_a_record_is_empty(index: Open) -> None:
    queues = index()
    assert queues.topic_ids() == set()
    assert queues.bounds(Q) == Bounds(0, 0)
    assert queues.max_offset(Q) == 0
    assert queues.runs(Q, 0, 0) == []
    assert queues.topic_ids() == set(), "looking has made something"
    assert queues.checkpoint == 0
    assert waiting_bytes(queues) == 0


@pytest.mark.parametrize("flushed", [0, 1, 2, 3])
def test_every_range_is_found_wherever_its_units_are(index: Open, flushed: int) -> None:
    log, queues = Log(), index()
    entries = [log.entry(count=count) for count in (1, 9, 2)]
    for number, entry in enumerate(entries):
        queues.append(entry)
        queues.append(log.entry(Q2, 3))
        if number + 1 == flushed:
            flush(queues, log.end)
    assert queues.bounds(Q) == Bounds(0, 12)
    for offset in range(12):
        for count in range(1, 12 - offset + 1):
            assert queues.runs(Q, offset, count) == runs_of(entries, offset, count), (offset, count)


def test_long_runs_and_long_ranges(index: Open) -> None:
    log, queues = Log(), index()
    entries = [log.entry(count=count) for count in (5_000, 1, 1, 4_096, 3)]
    for entry in entries[:4]:
        queues.append(entry)
    flush(queues, log.end)
    queues.append(entries[4])
    for offset, count in [(0, 9_101), (4_999, 3), (5_000, 2), (4_998, 4_103), (17, 4), (9_097, 4)]:
        assert queues.runs(Q, offset, count) == runs_of(entries, offset, count)


@pytest.mark.parametrize("length", [LONG_RUN_UNITS - 1, LONG_RUN_UNITS, 1_000])
def test_runs_of_one_length_are_found_from_anywhere(index: Open, length: int) -> None:
    log, queues = Log(), index()
    lengths = [length] * 9 + [length + 1, 1, length, length, length - 1, 2 * length, length, length]
    entries = [log.entry(count=count) for count in lengths]
    for entry in entries:
        queues.append(entry)
    flush(queues, log.end)
    end = sum(lengths)
    random = Random(length)
    for _ in range(300):
        offset = random.randrange(end)
        for _ in range(random.randrange(1, 5)):  # reads that follow each other
            count = min(random.choice([1, length - 1, length, length + 1, 2_000, 4_096]), end - offset)
            assert queues.runs(Q, offset, count) == runs_of(entries, offset, count), (offset, count)
            offset = min(offset + count, end - 1)


def test_who_reads_on_through_long_entries_reads_two_units_of_each(monkeypatch: pytest.MonkeyPatch) -> None:
    log, disk = Log(), SimDisk()
    disk.make_dirs(ROOT)
    queues = FileConsumeQueues(ROOT, disk, file_units=100_000, first_position=0)
    entries = [log.entry(count=1_000) for _ in range(40)]
    for entry in entries:
        queues.append(entry)
    flush(queues, log.end)
    units = 0
    original = FileConsumeQueues._read_files

    def counted(self: FileConsumeQueues, directory: Path, offset: int, count: int) -> bytes:
        nonlocal units
        units += count
        return original(self, directory, offset, count)

    monkeypatch.setattr(FileConsumeQueues, "_read_files", counted)
    for offset in range(0, 40_000 - 4_096, 4_096):
        assert queues.runs(Q, offset, 4_096) == runs_of(entries, offset, 4_096)
    assert units < 4_096 + 8 * 13, "all units once, of the first look-up"


def test_runs_of_equal_and_of_other_lengths_follow_each_other(index: Open) -> None:
    log, queues = Log(), index()
    entries = [log.entry(count=count) for count in (3, 3, 3, 7, 2, 2, 1, 1, 6, 12, 4, 3, 3)]
    for entry in entries:
        queues.append(entry)
    flush(queues, log.end)
    for offset in range(50):
        for count in range(1, 51 - offset):
            assert queues.runs(Q, offset, count) == runs_of(entries, offset, count), (offset, count)


def test_a_hole_is_refused(index: Open) -> None:
    log, queues = Log(), index()
    queues.append(log.entry(count=5))
    log.entry(count=1)
    with pytest.raises(IndexDamaged):
        queues.append(log.entry(count=2))
    assert queues.bounds(Q) == Bounds(0, 5)


def test_an_entry_is_indexed_once_however_often_it_is_replayed(index: Open) -> None:
    log, queues = Log(), index()
    entries = [log.entry(count=3), log.entry(count=2)]
    for entry in (*entries, *entries):
        queues.append(entry)
    flush(queues, log.end)
    for entry in entries:
        queues.append(entry)
    assert waiting_bytes(queues) == 0
    assert queues.bounds(Q) == Bounds(0, 5)
    assert queues.runs(Q, 0, 5) == runs_of(entries, 0, 5)


def test_many_entries_at_once_are_indexed_as_one_by_one(index: Open) -> None:
    log, queues = Log(), index()
    entries = [log.entry(count=1 + number % 3, tags=(9,) * (1 + number % 3) * (number == 5)) for number in range(12)]
    others = [log.entry(Q2, count=2) for _ in range(3)]
    queues.extend(Q, entries[:4])
    queues.extend(Q2, others)
    queues.extend(Q, entries[2:9])  # some of them again
    queues.extend(Q, entries[9:])
    assert queues.bounds(Q2) == Bounds(0, 6)
    end = entries[-1].next_offset
    assert queues.bounds(Q) == Bounds(0, end)
    assert queues.runs(Q, 0, end) == runs_of(entries, 0, end)
    assert queues.runs(Q, 0, end, frozenset([9])) == [Run(entries[5].position, entries[5].size, entries[5].base_offset)]
    skipped = log.entry()
    with pytest.raises(IndexDamaged):
        queues.extend(Q, [log.entry()])
    queues.extend(Q, [skipped])


def test_a_queue_begins_where_the_log_still_has_it(index: Open) -> None:
    log, queues = Log(), index()
    log.entry(count=500)
    log.first_position = log.end
    entries = [log.entry(count=4), log.entry(count=4)]
    queues.append(entries[0])
    assert queues.bounds(Q) == Bounds(500, 504)
    flush(queues, log.end)
    queues = index(log)
    queues.append(entries[1])
    assert queues.bounds(Q) == Bounds(500, 508)
    assert queues.runs(Q, 500, 8) == runs_of(entries, 500, 8)


def test_only_entries_with_a_wanted_tag_hash_are_named(index: Open) -> None:
    log, queues = Log(), index()
    entries = [log.entry(count=3, tags=[7, -8, 7]), log.entry(count=2), log.entry(count=8, tags=[9] * 8)]
    for is_flushed in (False, True):
        for entry in entries:
            queues.append(entry)
        if is_flushed:
            flush(queues, log.end)
        for tags, wanted in [({7}, [0]), ({-8, 9}, [0, 2]), ({0}, [1]), ({1}, []), (set(), [])]:
            expected = runs_of([entries[at] for at in wanted], 0, 13)
            assert queues.runs(Q, 0, 13, frozenset(tags)) == expected, (tags, is_flushed)
        assert queues.runs(Q, 2, 1, frozenset({-8})) == [], "only the tags of the offsets asked for count"
        assert queues.runs(Q, 1, 1, frozenset({-8})) == runs_of(entries, 1, 1)


def test_many_queues_keep_apart(index: Open) -> None:
    log, queues = Log(), index()
    keys = [QueueKey(topic_id, queue_id) for topic_id in (1, 2, 255, 256, 1 << 24) for queue_id in range(100)]
    random = Random(1)
    entries: dict[QueueKey, list[Entry]] = {key: [] for key in keys}
    for step in range(1_500):
        key = random.choice(keys)
        entries[key].append(log.entry(key, random.randint(1, 5)))
        queues.append(entries[key][-1])
        if step in (500, 1_000):
            flush(queues, log.end)
    for _ in range(2):
        for key in keys:
            count = entries[key][-1].next_offset if entries[key] else 0
            assert queues.bounds(key) == Bounds(0, count)
            assert queues.runs(key, 0, count) == runs_of(entries[key], 0, count)
        queues = index(log)


# ---- flushing, reopening ---------------------------------------------------------------------------------------------


def test_what_was_flushed_is_there_after_reopening_and_nothing_else(index: Open) -> None:
    log, queues = Log(), index()
    entries = [log.entry(count=10, tags=range(10)), log.entry(count=1)]
    queues.append(entries[0])
    flush(queues, log.end - entries[1].size)
    queues.append(entries[1])
    queues = index()
    assert queues.checkpoint == entries[1].position
    assert queues.bounds(Q) == Bounds(0, 10), "the unit behind the checkpoint was only in memory"
    assert queues.runs(Q, 0, 10) == runs_of(entries, 0, 10)
    assert queues.runs(Q, 0, 10, frozenset({4})) == runs_of(entries, 0, 10)


def test_units_behind_the_checkpoint_stay_in_memory(index: Open) -> None:
    log, queues = Log(), index()
    entries = [log.entry(count=10), log.entry(count=20), log.entry(count=3)]
    for entry in entries:
        queues.append(entry)
    flush(queues, entries[1].position)
    assert queues.pending_bytes > 0
    assert queues.runs(Q, 0, 33) == runs_of(entries, 0, 33)
    assert index().bounds(Q) == Bounds(0, 10)
    queues = index(log)
    assert queues.runs(Q, 0, 33) == runs_of(entries, 0, 33)
    flush(queues, log.end)
    assert waiting_bytes(queues) == 0
    assert index().bounds(Q) == Bounds(0, 33)


def test_units_behind_the_checkpoint_stay_in_memory_though_an_older_one_came_last(index: Open) -> None:
    """As at the end of a rebuild, which adds what stands for queues whose records have all expired."""
    log, queues = Log(), index()
    expired, *entries = log.entry(Q2), log.entry(count=10), log.entry(count=20)
    for entry in (*entries, expired):
        queues.append(entry)
    flush(queues, entries[1].position)
    assert index().bounds(Q) == Bounds(0, 10)


def test_a_log_cut_behind_the_checkpoint_may_go_on_differently(index: Open) -> None:
    log, queues = Log(), index()
    kept = log.entry(count=4)
    for entry in (kept, log.entry(count=9), log.entry(count=9)):
        queues.append(entry)
    under_way = queues.flush(kept.position + kept.size)
    under_way.run()  # and killed before it was told so
    queues = index()
    other = replace(kept, position=kept.position + kept.size, base_offset=4, record_count=2, size=1_000)
    queues.append(other)
    assert queues.bounds(Q) == Bounds(0, 6)
    assert queues.runs(Q, 0, 6) == runs_of([kept, other], 0, 6)
    flush(queues, other.position + other.size)
    queues = index()
    assert queues.bounds(Q) == Bounds(0, 6)
    assert queues.runs(Q, 0, 6) == runs_of([kept, other], 0, 6)


def test_appends_and_reads_go_on_during_a_flush(index: Open) -> None:
    log, queues = Log(), index()
    entries = [log.entry(count=10)]
    queues.append(entries[0])
    under_way = queues.flush(log.end)
    for step in (None, under_way.run, under_way.finish):
        if step is not None:
            step()
        entries.append(log.entry(count=5))
        queues.append(entries[-1])
        count = entries[-1].next_offset
        assert queues.bounds(Q) == Bounds(0, count)
        assert queues.runs(Q, 0, count) == runs_of(entries, 0, count)
    flush(queues, log.end)
    queues = index()
    assert queues.runs(Q, 0, 25) == runs_of(entries, 0, 25)


@pytest.mark.parametrize("has_run", [False, True])
def test_a_flush_that_nobody_finishes_is_made_up_for_by_the_next_one(index: Open, has_run: bool) -> None:
    """Whoever waits for it may be cancelled before it has begun, and after it has run."""
    log, queues = Log(), index()
    entries = [log.entry(count=3), log.entry(count=2)]
    other = log.entry(Q2, 3)
    queues.append(entries[0])
    queues.append(other)
    given_up = queues.flush(log.end)
    if has_run:
        given_up.run()
    queues.append(entries[1])
    flush(queues, log.end)
    assert waiting_bytes(queues) == 0
    queues = index(log)
    assert queues.checkpoint == log.end
    assert queues.runs(Q, 0, 5) == runs_of(entries, 0, 5)
    assert queues.runs(Q2, 0, 3) == runs_of([other], 0, 3)


def test_pending_bytes_are_those_no_finished_flush_has_covered(index: Open) -> None:
    log, queues = Log(), index()
    queues.append(log.entry(count=10, tags=range(10)))
    first = queues.pending_bytes
    assert first > 0
    under_way = queues.flush(log.end)
    queues.append(log.entry(count=10, tags=range(10)))
    under_way.run()
    assert queues.pending_bytes == 2 * first
    under_way.finish()
    assert waiting_bytes(queues) == first
    flush(queues, log.end)
    assert waiting_bytes(queues) == 0


class _FailingFile:
    """A file whose writes fail while `is_full` is set."""

    is_full = False

    def __init__(self, file: File) -> None:
        self._file = file

    def pwritev(self, buffers: Sequence[bytes], position: int) -> int:
        if _FailingFile.is_full:
            raise OSError(errno.ENOSPC, "No space left on device")
        return self._file.pwritev(buffers, position)

    def __getattr__(self, name: str) -> object:
        return getattr(self._file, name)


def _fill_disk(kind: str, monkeypatch: pytest.MonkeyPatch) -> Callable[[bool], None]:
    """A switch for a full disk, below whatever the kind writes with. Set before the index is opened."""
    if kind != "rocksdb":
        real_open = OsFiles.open
        monkeypatch.setattr(OsFiles, "open", lambda *args, **kwargs: _FailingFile(real_open(*args, **kwargs)))
        return lambda is_full: monkeypatch.setattr(_FailingFile, "is_full", is_full)
    rocksdb = pytest.importorskip("store.index.rocksdb")

    class FullRdict:
        """As the real one: once a write has failed, all fail until the database is opened again."""

        is_full = False

        def __init__(self, *args: object, **kwargs: object) -> None:
            self._db = real_class(*args, **kwargs)
            self._has_failed = False

        def write(self, *args: object) -> None:
            self._has_failed |= FullRdict.is_full
            if self._has_failed:
                raise Exception("IO error: No space left on device: While appending to file")
            self._db.write(*args)

        def __getattr__(self, name: str) -> object:
            return getattr(self._db, name)

    real_class = rocksdb.Rdict
    monkeypatch.setattr(rocksdb, "Rdict", FullRdict)
    monkeypatch.setattr(OsFiles, "free_bytes", lambda self, path: 0 if FullRdict.is_full else 1 << 40)
    return lambda is_full: setattr(FullRdict, "is_full", is_full)


def test_a_failed_flush_loses_nothing_and_the_next_one_makes_up_for_it(
    index: Open, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    set_full = _fill_disk(kind, monkeypatch)
    log, queues = Log(), index()
    entries = [log.entry(count=10), log.entry(count=10)]
    queues.append(entries[0])
    set_full(True)
    for _ in range(2):
        with pytest.raises(OSError, match="No space left") as raised:
            queues.flush(log.end).run()
        assert raised.value.errno == errno.ENOSPC
        assert queues.checkpoint == 0
        assert queues.runs(Q, 0, 10) == runs_of(entries, 0, 10)
    queues.append(entries[1])
    set_full(False)
    flush(queues, log.end)
    assert waiting_bytes(queues) == 0
    assert queues.checkpoint == log.end
    queues = index()
    assert queues.runs(Q, 0, 20) == runs_of(entries, 0, 20)


# ---- the log's beginning moves ---------------------------------------------------------------------------------------


def test_min_offset_is_the_first_unit_in_the_log(index: Open) -> None:
    log, queues = Log(), index()
    entries = [log.entry(count=5) for _ in range(8)]
    for entry in entries:
        queues.append(entry)
    flush(queues, log.end)
    for first in range(8):
        queues.advance_min(entries[first].position)
        assert queues.bounds(Q) == Bounds(5 * first, 40)
        rest = 40 - 5 * first
        assert queues.runs(Q, 5 * first, rest) == runs_of(entries, 5 * first, rest)
    flush(queues, log.end)
    log.first_position = entries[7].position
    assert index(log).bounds(Q) == Bounds(35, 40)


def test_files_go_only_behind_a_snapshot_that_does_not_count_them(index: Open) -> None:
    log, queues = Log(), index()
    entries = [log.entry(count=5) for _ in range(8)]
    for entry in entries:
        queues.append(entry)
    flush(queues, log.end)
    log.first_position = entries[5].position
    queues.advance_min(log.first_position)
    assert index(first_position=log.first_position).bounds(Q) == Bounds(25, 40), "no IndexDamaged: nothing is missed"
    queues = index(log)
    flush(queues, log.end)
    assert index(first_position=log.first_position).runs(Q, 25, 15) == runs_of(entries, 25, 15)


def test_a_queue_whose_units_have_all_expired_keeps_its_max_offset(index: Open) -> None:
    log, queues = Log(), index()
    queues.append(log.entry(count=30))
    queues.append(log.entry(Q2, 1))
    flush(queues, log.end)
    queues.advance_min(log.end)
    assert queues.bounds(Q) == Bounds(30, 30)
    assert queues.bounds(Q2) == Bounds(1, 1)
    flush(queues, log.end)
    log.first_position = log.end
    queues = index(log)
    assert queues.bounds(Q) == Bounds(30, 30)
    following = log.entry(count=2)
    queues.append(following)
    assert queues.bounds(Q) == Bounds(30, 32)
    flush(queues, log.end)
    queues = index(log)
    assert queues.bounds(Q) == Bounds(30, 32)
    assert queues.runs(Q, 30, 2) == runs_of([following], 30, 2)


def test_min_offset_moves_into_what_is_still_in_memory(index: Open) -> None:
    log, queues = Log(), index()
    entries = [log.entry(count=5) for _ in range(4)]
    for entry in entries[:2]:
        queues.append(entry)
    flush(queues, log.end)
    for entry in entries[2:]:
        queues.append(entry)
    queues.advance_min(entries[2].position)
    assert queues.bounds(Q) == Bounds(10, 20)
    assert queues.runs(Q, 10, 10) == runs_of(entries, 10, 10)


def test_a_min_offset_in_what_no_flush_has_written_is_found_again(index: Open) -> None:
    log, queues = Log(), index()
    entries = [log.entry(count=5) for _ in range(4)]
    for entry in entries:
        queues.append(entry)
    queues.advance_min(entries[2].position)
    assert queues.bounds(Q) == Bounds(10, 20)
    queues = index(log)  # the log still has what was given up; nothing was flushed
    queues.advance_min(entries[2].position)
    assert queues.bounds(Q) == Bounds(10, 20)
    assert queues.runs(Q, 10, 10) == runs_of(entries, 10, 10)


def test_a_log_that_lost_its_beginning_while_the_index_was_closed(index: Open) -> None:
    log, queues = Log(), index()
    entries = [log.entry(count=50) for _ in range(4)]
    for entry in entries:
        queues.append(entry)
    flush(queues, log.end)
    log.first_position = entries[3].position
    queues = index(log)
    assert queues.bounds(Q) == Bounds(150, 200)
    assert queues.runs(Q, 150, 50) == runs_of(entries, 150, 50)


# ---- topics ----------------------------------------------------------------------------------------------------------


def test_topics_are_known_by_their_units(index: Open) -> None:
    log, queues = Log(), index()
    queues.append(log.entry(Q))
    queues.append(log.entry(OTHER_TOPIC))
    assert queues.topic_ids() == {3, 4}
    flush(queues, log.end)
    assert queues.topic_ids() == {3, 4}
    assert index(log).topic_ids() == {3, 4}


def test_a_dropped_topic_is_gone_and_its_neighbours_are_not(index: Open, kind: str) -> None:
    log, queues = Log(), index()
    kept = {key: log.entry(key, 20) for key in (QueueKey(2, 0), OTHER_TOPIC)}
    for entry in (*kept.values(), log.entry(Q, 20), log.entry(Q2, 20)):
        queues.append(entry)
    flush(queues, log.end)
    queues.append(log.entry(Q, 5))
    queues.drop_topic(3)
    queues.drop_topic(77)  # one that never was
    assert queues.pending_bytes == (2 * ROW_BYTES if kind == "kept" else 0), "what is kept of the others"
    assert queues.topic_ids() == {2, 4}
    flush(queues, log.end)
    for _ in range(2):
        assert queues.topic_ids() == {2, 4}
        assert queues.bounds(Q) == queues.bounds(Q2) == Bounds(0, 0)
        for key, entry in kept.items():
            assert queues.runs(key, 0, 20) == runs_of([entry], 0, 20)
        queues = index()


# ---- damage ----------------------------------------------------------------------------------------------------------


def test_a_rebuild_finds_every_unit_and_every_max_offset_again(index: Open) -> None:
    log, queues = Log(), index()
    expired = log.entry(Q2, 33)
    entries = [log.entry(count=5), log.entry(count=6)]
    for entry in (expired, *entries):
        queues.append(entry)
    flush(queues, log.end)
    log.first_position = entries[0].position
    for _ in range(2):  # the first one is interrupted before its flush
        queues = index(first_position=log.first_position, rebuild=True)
        assert queues.checkpoint == 0
        assert queues.bounds(Q) == Bounds(0, 0)
        for entry in log.since(0):
            queues.append(entry)
        queues.finish_rebuild()
    for _ in range(2):
        assert queues.bounds(Q) == Bounds(0, 11)
        assert queues.bounds(Q2) == Bounds(33, 33)
        assert queues.runs(Q, 0, 11) == runs_of(entries, 0, 11)
        flush(queues, log.end)
        queues = index(log)


def test_a_rebuild_notices_that_the_log_has_lost_records(index: Open) -> None:
    log, queues = Log(), index()
    for entry in (log.entry(count=5), log.entry(count=6)):
        queues.append(entry)
    flush(queues, log.end)
    queues = index(rebuild=True)
    queues.append(log.entries[0])
    with pytest.raises(IndexDamaged):
        queues.finish_rebuild()


def test_a_rebuild_in_files_that_is_cut_off_is_begun_again() -> None:
    """Files that are made anew may keep their size in a power cut and lose their bytes: what was counted is wrong."""
    log = Log()
    for number in range(30):
        log.entry(count=1 + number % 3)
    last = log.entries[-1].next_offset
    cut_count = 0
    for seed in range(400):
        rng = Random(seed)
        disk = SimDisk()
        queues = reopened("file", ROOT, log, disk)
        flush(queues, log.end)
        queues.close()
        for path in [path for path in disk.paths() if "/consumequeue/" in path and rng.random() < 0.7]:
            disk.remove(Path(path))
        disk.sync_dir(ROOT / "consumequeue" / str(Q.topic_id) / str(Q.queue_id))
        for _ in range(rng.choice((1, 1, 2))):
            disk.cut_power_at(rng.randrange(1, 30))
            with contextlib.suppress(OSError):
                flush(reopened("file", ROOT, log, disk), log.end)
            cut_count += disk.is_dark
            disk = disk.crash(rng)
        queues = reopened("file", ROOT, log, disk)
        assert queues.runs(Q, 0, last) == runs_of(log.entries, 0, last), f"seed {seed}"
        flush(queues, log.end)
        assert queues.bounds(Q) == Bounds(0, last)
    assert cut_count > 200


# ---- time ------------------------------------------------------------------------------------------------------------


def by_time(queues: ConsumeQueues, log: Log, time_ms: int, boundary: Boundary) -> int:
    """The search as a store does it: from the index to the entry and its store time."""
    positions = [entry.position for entry in log.entries]

    search = search_time(queues.bounds(Q), time_ms, boundary)
    try:
        offset = next(search)
        while True:
            [run] = queues.runs(Q, offset, 1)
            offset = search.send(log.entries[bisect_left(positions, run.position)].store_time_ms)
    except StopIteration as found:
        return int(found.value)


@pytest.mark.parametrize("entry_count", [1, 2, 4, 5])
@pytest.mark.parametrize(("time_ms", "lower", "upper"), [(10, 0, 2), (20, 3, 2), (30, 3, 4), (5, 0, 0), (40, 5, 4)])
def test_search_by_time(index: Open, entry_count: int, time_ms: int, lower: int, upper: int) -> None:
    log, queues = Log(), index()
    for number, entry_time_ms in enumerate([10, 10, 10, 30, 30]):
        queues.append(log.entry(time_ms=entry_time_ms))
        if number + 1 == entry_count:
            flush(queues, log.end)
    assert by_time(queues, log, time_ms, Boundary.LOWER) == lower
    assert by_time(queues, log, time_ms, Boundary.UPPER) == upper


def test_an_index_that_knows_store_times_knows_them_of_every_offset(index: Open, kind: str) -> None:
    log, queues = Log(), index()
    for number in range(30):
        queues.append(log.entry(count=1 + number % 3, time_ms=1000 + number))
        if number == 17:
            flush(queues, log.end)
    times = {
        offset: entry.store_time_ms for entry in log.entries for offset in range(entry.base_offset, entry.next_offset)
    }
    known = {offset: queues.store_time_ms(Q, offset) for offset in times}
    assert known == (times if kind == "rocksdb" else dict.fromkeys(times)), "files leave it to the log"


def test_search_by_time_over_long_runs_of_equal_times(index: Open) -> None:
    log, queues = Log(), index()
    for time_ms, entry_count in ((100, 40), (200, 1), (300, 60)):
        for _ in range(entry_count):
            queues.append(log.entry(count=3, time_ms=time_ms))
        flush(queues, log.end)
    found = {
        time_ms: (by_time(queues, log, time_ms, Boundary.LOWER), by_time(queues, log, time_ms, Boundary.UPPER))
        for time_ms in (99, 100, 150, 200, 300, 301)
    }
    assert found == {99: (0, 0), 100: (0, 119), 150: (120, 119), 200: (120, 122), 300: (123, 302), 301: (303, 302)}
    queues.advance_min(log.entries[20].position)
    assert by_time(queues, log, 100, Boundary.LOWER) == 60
    assert by_time(queues, log, 50, Boundary.UPPER) == 60


# ---- what the snapshot keeps -----------------------------------------------------------------------------------------


def units_in_files(disk: SimDisk) -> int:
    return sum(len(disk.contents(path)) for path in disk.paths() if "/consumequeue/" in path) // UNIT_BYTES


@pytest.mark.parametrize("more", [0, 1])
def test_a_flush_keeps_a_part_of_what_the_log_grew_by_and_writes_all_beyond_it(more: int) -> None:
    disk, log = SimDisk(), Log()
    disk.make_dirs(ROOT)
    queues = reopened("file", ROOT, log, disk)
    entries = [log.entry(QueueKey(3, number % 5)) for number in range(20)]
    for entry in entries:
        queues.append(entry)
    log.end = 20 * ROW_BYTES * KEPT_LOG_SHARE - more
    flush(queues, log.end)
    assert units_in_files(disk) == (20 if more else 0)
    assert sum(len(one.kept) for one in counted_by(queues)) == (0 if more else 20)
    flush(queues, log.end)
    assert units_in_files(disk) == 20, "the log did not grow: nothing may be kept"
    assert waiting_bytes(queues) == 0
    for entry in entries:
        assert opened("file", ROOT, files=disk.crash(Random(1))).bounds(entry.queue) == Bounds(0, 4)


@pytest.mark.parametrize("more", [0, 1])
def test_a_flush_keeps_few_units_whatever_the_log_grew_by(more: int, monkeypatch: pytest.MonkeyPatch) -> None:
    assert 24 * MiB == KEPT_BYTES_MAX < PENDING_BYTES_MAX, "or a rebuild would flush for every entry"
    monkeypatch.setattr(file_index, "KEPT_BYTES_MAX", 7 * ROW_BYTES)
    disk, log = SimDisk(), Log()
    disk.make_dirs(ROOT)
    queues = reopened("file", ROOT, log, disk)
    for number in range(7 + more):
        queues.append(log.entry(QueueKey(3, number)))
    log.end = 1 << 40
    flush(queues, log.end)
    assert units_in_files(disk) == (8 if more else 0)


@pytest.mark.parametrize("tag_count", [0, 10])
@pytest.mark.parametrize("more", [0, 1])
def test_a_queue_with_much_to_keep_is_written_and_the_others_are_not(more: int, tag_count: int) -> None:
    disk, log = SimDisk(), Log()
    disk.make_dirs(ROOT)
    queues = reopened("file", ROOT, log, disk)
    fitting = (KEPT_QUEUE_BYTES_MAX - 8 * tag_count) // ROW_BYTES
    queues.append(log.entry(Q, tag_count or 1, tags=range(tag_count)))
    for _ in range(fitting + more - 1):
        queues.append(log.entry(Q))
    queues.append(log.entry(Q2, 500))
    log.end = 1 << 40
    flush(queues, log.end)
    kept = {one.key: len(one.kept) for one in counted_by(queues)}
    assert kept == {Q: 0 if more else fitting, Q2: 1}
    assert units_in_files(disk) == (0 if not more else fitting + more + max(0, tag_count - 1))
    after = opened("file", ROOT, files=disk.crash(Random(1)))
    for key in (Q, Q2):
        entries = [entry for entry in log.entries if entry.queue == key]
        count = entries[-1].next_offset
        assert after.runs(key, 0, count) == runs_of(entries, 0, count)
        tagged = [entry for entry in entries if 5 in entry.tag_hashes]
        assert after.runs(key, 0, count, frozenset({5})) == tagged_runs_of(tagged)
    assert after.pending_bytes == queues.pending_bytes


def tagged_runs_of(entries: Sequence[Entry]) -> list[Run]:
    return [Run(entry.position, entry.size, entry.base_offset) for entry in entries]


# ---- everything, in any order ----------------------------------------------------------------------------------------


class Machine(RuleBasedStateMachine):
    """Any history of one index against the list of entries it was given."""

    kind = ""

    @initialize()
    def open(self) -> None:
        self.directory = tempfile.TemporaryDirectory(prefix="mq-index-")
        self.root = Path(self.directory.name)
        self.log = Log()
        self.dropped: set[int] = set()
        self.topics = [1, 2]
        self.queues = opened(self.kind, self.root)

    @rule(topic=st.integers(0, 1), queue_id=st.integers(0, 2), count=st.integers(1, 12), tag=st.integers(0, 3))
    def append(self, topic: int, queue_id: int, count: int, tag: int) -> None:
        tags = [tag + at % 2 for at in range(count)] if tag else ()
        self.queues.append(self.log.entry(QueueKey(self.topics[topic], queue_id), count, tags=tags))

    @rule(back=st.integers(0, 3))
    def flush(self, back: int) -> None:
        """To the end of the log, or to an entry before it that is not behind an earlier checkpoint."""
        ends = [entry.position for entry in self.log.entries[len(self.log.entries) - back :]] if back else []
        flush(self.queues, max(self.queues.checkpoint, min(ends, default=self.log.end)))

    @rule()
    def flush_and_kill(self) -> None:
        """The flush is done, but its owner never hears of it."""
        self.queues.flush(self.log.end).run()
        self.reopen()

    @rule()
    def reopen(self) -> None:
        self.queues.close()
        self.queues = reopened(self.kind, self.root, self.log)
        for topic_id in self.queues.topic_ids() & self.dropped:
            self.queues.drop_topic(topic_id)

    @rule(share=st.floats(0, 1))
    def advance_min(self, share: float) -> None:
        """To an entry before the checkpoint, as retention does."""
        positions = [entry.position for entry in self.log.entries if entry.position < self.queues.checkpoint]
        if positions:
            position = max(self.log.first_position, positions[int(share * (len(positions) - 1))])
            self.log.first_position = position
            self.queues.advance_min(position)

    @rule(topic=st.integers(0, 1))
    def drop(self, topic: int) -> None:
        self.queues.drop_topic(self.topics[topic])
        self.dropped.add(self.topics[topic])
        self.topics[topic] = max(self.topics) + 1  # ids are never used again

    @invariant()
    def is_what_was_appended(self) -> None:
        if not hasattr(self, "log"):
            return
        for topic_id in self.topics:
            for queue_id in range(3):
                key = QueueKey(topic_id, queue_id)
                entries = [entry for entry in self.log.entries if entry.queue == key]
                high = entries[-1].next_offset if entries else 0
                kept = [entry for entry in entries if entry.position >= self.log.first_position]
                low = kept[0].base_offset if kept else high
                assert self.queues.bounds(key) == Bounds(low, high)
                assert self.queues.runs(key, low, high - low) == runs_of(kept, low, high - low)
                middle = (low + high) // 2
                assert self.queues.runs(key, middle, high - middle) == runs_of(kept, middle, high - middle)
                tagged = [entry for entry in kept if 2 in entry.tag_hashes]
                assert self.queues.runs(key, low, high - low, frozenset({2})) == runs_of(tagged, low, high - low)
        assert not self.queues.topic_ids() & self.dropped

    def teardown(self) -> None:
        if hasattr(self, "queues"):
            self.queues.close()
            self.directory.cleanup()


def test_any_history_of_operations(kind: str) -> None:
    if kind == "rocksdb":
        pytest.importorskip("rocksdict")
    machine = type("MachineOfKind", (Machine,), {"kind": kind})
    run_state_machine_as_test(
        machine,
        settings=settings(
            max_examples=20 if kind == "rocksdb" else 60,
            stateful_step_count=30,
            deadline=None,
            derandomize=True,
            database=None,
            suppress_health_check=list(HealthCheck),
        ),
    )


# ---- what only the database has --------------------------------------------------------------------------------------


def test_keys_of_the_database() -> None:
    rocksdb = pytest.importorskip("store.index.rocksdb")
    assert rocksdb.index_key(b"T", 0, 7).hex(" ", 1).replace(" ", "") == "0000000101540100000000010000000000000007"
    assert rocksdb.bound_key(b"T", b"max", 0).hex() == "0000000101540" + "16d61780100000000"
    assert rocksdb.index_key(b"T", 0, 255) < rocksdb.index_key(b"T", 0, 256) < rocksdb.index_key(b"T", 1, 0)


def test_a_flush_frees_expired_rows_of_queues_that_nobody_asks_for(tmp_path: Path) -> None:
    rocksdb = pytest.importorskip("store.index.rocksdb")
    log, queues = Log(), opened("rocksdb", tmp_path)
    for queue_id in range(3 * rocksdb.SWEEP_ROWS):
        queues.append(log.entry(QueueKey(1, queue_id), 2))
    flush(queues, log.end)
    queues.close()
    queues = opened("rocksdb", tmp_path, first_position=log.end)
    for _ in range(9):  # each queue has two bounds
        flush(queues, log.end)
    queues.close()
    database = rocksdb._Database(tmp_path / ROCKSDB_DIRECTORY)
    try:
        assert database.values_between(b"", b"\xff") == []
        assert set(database.max_offsets()) == {(QueueKey(1, queue_id), 2) for queue_id in range(3 * rocksdb.SWEEP_ROWS)}
    finally:
        database.close()


def test_rows_that_no_bound_counts_are_never_shown(tmp_path: Path) -> None:
    rocksdb = pytest.importorskip("store.index.rocksdb")
    log, queues = Log(), opened("rocksdb", tmp_path)
    queues.append(log.entry(count=3))
    flush(queues, log.end)
    queues.close()
    database = rocksdb._Database(tmp_path / ROCKSDB_DIRECTORY)
    batch = rocksdb.WriteBatch(raw_mode=True)
    for offset in (3, 4):  # a flush that was killed between its rows and its bounds
        batch[rocksdb.index_key(b"\0\0\0\3", 0, offset)] = bytes(28)
    database.write(batch)
    database.close()
    queues = opened("rocksdb", tmp_path)
    try:
        assert queues.bounds(Q) == Bounds(0, 3)
        queues.append(log.entry(count=2))
        flush(queues, log.end)
        assert queues.runs(Q, 0, 5) == runs_of(log.entries, 0, 5)
    finally:
        queues.close()


def test_a_flush_of_the_database_ends_with_a_sync_of_all_that_it_wrote(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The log may go before the checkpoint then, and with it what a lost checkpoint is made from."""
    rocksdb = pytest.importorskip("store.index.rocksdb")
    calls: list[str] = []

    class Heard:
        def __init__(self, *args: object, **kwargs: object) -> None:
            self._db = real_class(*args, **kwargs)

        def write(self, *args: object) -> None:
            calls.append("write")
            self._db.write(*args)

        def flush_wal(self, *, sync: bool) -> None:
            calls.append("sync" if sync else "flush")
            self._db.flush_wal(sync=sync)

        def __getattr__(self, name: str) -> object:
            return getattr(self._db, name)

    real_class = rocksdb.Rdict
    monkeypatch.setattr(rocksdb, "Rdict", Heard)
    monkeypatch.setattr(rocksdb, "BATCH_ROWS_MAX", 10)
    monkeypatch.setattr(pauses.time, "sleep", lambda _: calls.append("pause"))
    log, queues = Log(), opened("rocksdb", tmp_path)
    for count in (20, 1, 1, 13):
        queues.append(log.entry(count=count))
    calls.clear()
    queues.flush(log.end).run()
    assert calls == ["write"] * 4 + ["sync"]
    queues.pauses_s = 60
    calls.clear()
    queues.flush(log.end).run()
    assert [call for call in calls if call != "pause"] == ["write"] * 4 + ["sync"]
    assert calls.count("pause") == 3, "so that others have their turn"
    queues.close()
    queues = opened("rocksdb", tmp_path)
    assert queues.runs(Q, 0, 35) == runs_of(log.entries, 0, 35)
    queues.close()


def test_a_row_that_is_missing_is_damage(tmp_path: Path) -> None:
    rocksdb = pytest.importorskip("store.index.rocksdb")
    log, queues = Log(), opened("rocksdb", tmp_path)
    queues.append(log.entry(count=30))
    flush(queues, log.end)
    queues.close()
    database = rocksdb._Database(tmp_path / ROCKSDB_DIRECTORY)
    batch = rocksdb.WriteBatch(raw_mode=True)
    del batch[rocksdb.index_key(b"\0\0\0\3", 0, 20)]
    database.write(batch)
    database.close()
    queues = opened("rocksdb", tmp_path)
    try:
        assert queues.runs(Q, 0, 20) == runs_of(log.entries, 0, 20)
        for offset, count in ((0, 30), (20, 1)):
            with pytest.raises(IndexDamaged):
                queues.runs(Q, offset, count)
    finally:
        queues.close()


def test_a_corrupt_database_is_built_again(tmp_path: Path) -> None:
    log, queues = Log(), opened("rocksdb", tmp_path)
    queues.append(log.entry(count=30))
    flush(queues, log.end)
    queues.close()
    (tmp_path / ROCKSDB_DIRECTORY / "CURRENT").write_bytes(b"rot\n")
    with pytest.raises(IndexDamaged):
        opened("rocksdb", tmp_path)
    queues = reopened("rocksdb", tmp_path, log)
    try:
        assert queues.runs(Q, 0, 30) == runs_of(log.entries, 0, 30)
    finally:
        queues.close()


@pytest.mark.parametrize("queue_count", [1, SYNCED_EACH_MAX, SYNCED_EACH_MAX + 1])
@pytest.mark.parametrize("kind", ["file", "kept"], indirect=True)
def test_what_a_flush_counts_outlives_a_power_cut_whatever_one_before_it_left_unsynced(
    kind: str, queue_count: int
) -> None:
    """A flush that fails before its sync leaves directories that look as if they were there for good."""
    disk, log = SimDisk(), Log()
    disk.make_dirs(ROOT)
    entries = [log.entry(QueueKey(3, number), 2) for number in range(queue_count)]
    disk.inject(Fault("datasync", path_part="consumequeue" if kind == "file" else "index"))
    with pytest.raises(OSError, match="simulated"):
        flush(reopened("file", ROOT, log, disk), log.end)
    disk.faults.clear()
    disk.kill()
    queues = reopened("file", ROOT, log, disk)
    flush(queues, log.end)
    for seed in range(20):
        after = opened("file", ROOT, files=disk.crash(Random(seed)))  # raises IndexDamaged when it lacks something
        for entry in entries:
            assert after.runs(entry.queue, 0, 2) == [Run(entry.position, entry.size, 0)]
