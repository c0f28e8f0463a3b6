"""store.log (commit_log, recovery): files, rolls, blank markers, torn tails and rot, without a store around them."""

from __future__ import annotations

import contextlib
import errno
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from random import Random

import pytest

from store.config import StoreConfig
from store.errors import Corrupt, DiskFull, StoreStopped
from store.files import OsFiles
from store.limits import KiB
from store.log.commit_log import CommitLog, Group, Span
from store.log.entry import BLANK_BYTES, Blank, Damage, Header, encode_entry, entry_bytes
from store.log.recovery import RecoveryReport, recover
from store.record_batch import Record, encode
from store.types import Append, Entry, QueueKey
from tests.simdisk import Fault, SimDisk
from tests.waiting import PATIENCE_S

ROOT = Path("/data/commitlog")
FILE_BYTES = 64 * KiB
EXTENT_BYTES = 16 * KiB
QUEUE = QueueKey(16, 0)


def open_log(disk: SimDisk) -> CommitLog:
    log = CommitLog(ROOT, disk, file_bytes=FILE_BYTES, extent_bytes=EXTENT_BYTES, disk_floor_bytes=0)
    log.open()
    return log


def write(log: CommitLog, number: int, size: int = 1000, *, sync: bool = True) -> Span:
    """Append one entry as the writer does."""
    append = Append(queue=QUEUE, batch=encode([Record(None, b"%d;" % number + bytes(size), 0)]), record_count=1)
    needed = entry_bytes(append, 1)
    position = log.position_for(log.end_position, needed)
    log.prepare(position + needed)
    buffers = encode_entry(
        append,
        append.batch,
        topic=b"t",
        position=position,
        durable_position=log.durable_position,
        base_offset=number,
        store_time_ms=number,
    )
    log.write(position, buffers)
    if sync:
        log.sync()
    return Span(position, needed)


def recovered(disk: SimDisk, checkpoint: int = 0) -> tuple[CommitLog, list[int], RecoveryReport]:
    """The log after recovery, the numbers of its entries, and the report."""
    numbers: list[int] = []
    log = open_log(disk)
    report = recover(log, checkpoint, lambda entries: numbers.extend(entry.base_offset for entry in entries))
    return log, numbers, report


def written(count: int, size: int = 1000) -> tuple[SimDisk, CommitLog, list[Span]]:
    disk = SimDisk()
    log = open_log(disk)
    return disk, log, [write(log, number, size) for number in range(count)]


def test_an_empty_log_recovers_to_an_empty_log() -> None:
    log, numbers, report = recovered(SimDisk())
    assert (numbers, log.end_position, report.entry_count, report.cut_bytes) == ([], 0, 0, 0)


def test_entries_are_read_one_by_one_and_in_spans() -> None:
    _, log, spans = written(150)
    assert [log.read_entry(span.position).base_offset for span in spans] == list(range(150))
    for some in (spans, spans[::3], spans[::-1], spans[40:41], []):
        assert [entry.position for entry in log.read_spans(some)] == [span.position for span in some]
        cached = log.cached_spans(some)
        assert cached is not None
        assert [entry.position for entry in cached] == [span.position for span in some]
    with pytest.raises(Corrupt):
        log.cached_spans([Span(spans[3].position + 8, spans[3].size)])
    assert log.cached_spans([Span(10 * FILE_BYTES, 100)]) is None, "what is wrong is for read_spans to say"
    size = spans[7].size
    assert log.cached_entry(spans[7].position, bytes_max=size) == log.read_entry(spans[7].position)
    assert log.cached_entry(spans[7].position, bytes_max=size - 1) is None
    assert log.cached_entry(10 * FILE_BYTES, bytes_max=size) is None, "what is wrong is for read_entry to say"
    assert log.cached_entry(spans[-1].position + spans[-1].size, bytes_max=size) is None
    with pytest.raises(Corrupt):
        log.read_entry(spans[3].position + 8)
    with pytest.raises(Corrupt):
        log.read_entry(10 * FILE_BYTES)


def test_no_entry_spans_files_and_a_blank_marker_fills_the_rest() -> None:
    disk, log, spans = written(150)
    assert len(disk.names_in(ROOT)) > 2
    assert all(span.position // FILE_BYTES == (span.position + span.size - 1) // FILE_BYTES for span in spans)
    found = [item for item in log.scan(0) if not isinstance(item, Damage)]
    blanks = [item for item in found if isinstance(item, Blank)]
    assert [item.position for item in found if isinstance(item, Entry)] == [span.position for span in spans]
    assert len(blanks) == log.end_position // FILE_BYTES
    assert all((blank.position + blank.size) % FILE_BYTES == 0 for blank in blanks)


def test_room_for_a_blank_marker_is_always_left() -> None:
    log = open_log(SimDisk())
    assert log.position_for(0, FILE_BYTES - BLANK_BYTES) == 0
    assert log.position_for(8, FILE_BYTES - BLANK_BYTES) == FILE_BYTES
    assert log.position_for(FILE_BYTES - BLANK_BYTES, 8) == FILE_BYTES


def test_space_is_zero_and_durable_before_it_is_written() -> None:
    disk, log, _ = written(5)
    assert log.prepared_position == EXTENT_BYTES
    content = disk.contents(ROOT / disk.names_in(ROOT)[0])
    assert len(content) == EXTENT_BYTES
    assert not any(content[log.end_position :])
    assert disk.is_clean()


def test_zeros_are_written_in_pieces_and_made_durable_by_one_sync(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("store.log.commit_log._ZERO_WRITE_BYTES", 5 * KiB)
    disk = SimDisk()
    log = open_log(disk)
    log.prepare(1)
    calls = [(call.operation, call.size) for call in disk.calls if call.path.endswith(f"/{0:020}")]
    written = [("pwritev", 5 * KiB)] * 3 + [("pwritev", 1 * KiB)]
    assert [call for call in calls if call[0] in ("pwritev", "datasync")] == [*written, ("datasync", 0)]
    assert disk.contents(ROOT / disk.names_in(ROOT)[0]) == bytes(EXTENT_BYTES)
    for number in range(20):
        write(log, number)
    assert recovered(disk)[1] == list(range(20))


@pytest.mark.parametrize("piece", range(4))
def test_a_disk_that_is_full_or_fails_between_two_pieces_of_zeros(piece: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("store.log.commit_log._ZERO_WRITE_BYTES", 5 * KiB)
    for seed in range(20):
        disk, log, _ = written(5)
        prepared = log.prepared_position
        disk.inject(Fault("pwritev", errno.ENOSPC, nth=piece + 1))
        with pytest.raises(DiskFull):
            log.prepare(prepared + 1)
        assert log.prepared_position == prepared, "a part of a step is none"
        after = disk.crash(Random(seed))
        again, numbers, _ = recovered(after)
        assert numbers == list(range(5))
        write(again, 5)
        assert recovered(after)[1] == list(range(6))
        log.prepare(prepared + 1)  # there is room again
        assert log.prepared_position == prepared + EXTENT_BYTES
        disk.inject(Fault("pwritev", nth=piece + 1))
        with pytest.raises(StoreStopped):
            log.prepare(log.prepared_position + 1)
        assert recovered(disk.crash(Random(seed)))[1] == list(range(5))


def test_allocated_space_is_as_good_as_zeros_and_comes_in_larger_steps() -> None:
    disk = SimDisk()
    log = open_log(disk)
    log.prepare(1, zero=False)
    assert log.prepared_position == EXTENT_BYTES
    log.prepare(FILE_BYTES + 1, zero=False)
    assert log.prepared_position == FILE_BYTES + EXTENT_BYTES, "into the next file"
    assert disk.is_clean()
    assert {call.operation for call in disk.calls if call.path.startswith(f"{ROOT}/")} == {
        "create", "allocate", "datasync",
    }  # fmt: skip
    for number in range(20):
        write(log, number)
    assert recovered(disk)[1] == list(range(20))


def test_where_a_large_step_has_no_room_a_small_one_may(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("store.log.commit_log._ZERO_BYTES", 2 * KiB)
    disk = SimDisk(capacity_bytes=5 * KiB)
    log = open_log(disk)
    log.prepare(3 * KiB, zero=False)
    assert log.prepared_position == 4 * KiB
    with pytest.raises(DiskFull):
        log.prepare(4 * KiB + 1, zero=False)
    disk.capacity_bytes = None
    disk.inject(Fault("allocate"))
    with pytest.raises(StoreStopped):
        log.prepare(4 * KiB + 1, zero=False)


@pytest.mark.parametrize("zero", [True, False])
def test_a_step_below_the_floor_is_no_larger_than_what_sends_leave(zero: bool, tmp_path: Path) -> None:
    config = StoreConfig(root=tmp_path)
    disk = SimDisk(capacity_bytes=config.disk_floor_bytes)
    log = CommitLog(
        ROOT, disk,
        file_bytes=config.commit_log_file_bytes,
        extent_bytes=config.extent_bytes,
        disk_floor_bytes=config.disk_floor_bytes,
    )  # fmt: skip
    log.open()
    with pytest.raises(DiskFull):
        log.prepare(1, zero=zero)
    log.prepare(1, zero=zero, below_floor=True)
    assert 0 < log.prepared_position <= config.own_reserve_bytes


@pytest.mark.parametrize("zero", [True, False])
def test_the_name_of_a_file_that_found_no_room_at_first_is_durable_once_it_is_used(zero: bool) -> None:
    for seed in range(20):
        disk = SimDisk()
        log = open_log(disk)
        write(log, 0)
        disk.inject(Fault("pwritev" if zero else "allocate", errno.ENOSPC, path_part=f"{FILE_BYTES:020}"))
        with contextlib.suppress(DiskFull):  # what is only allocated is tried once more by writing zeros
            log.prepare(FILE_BYTES + 1, zero=zero)
        log.prepare(FILE_BYTES + 1, zero=zero)
        number = 1
        while log.end_position < FILE_BYTES:
            write(log, number)
            number += 1
        assert recovered(disk.crash(Random(seed)))[1] == list(range(number)), "a lost name takes the file with it"


def test_headers_stop_where_an_entry_needs_a_closer_look() -> None:
    _, log, spans = written(150)
    groups = list(log.scan_groups(0))
    assert isinstance(groups[-1], Damage)
    entries = [entry for group in groups if isinstance(group, Group) for entry in group.entries]
    whole = [found for found in log.scan(0) if isinstance(found, Entry)]
    assert len(entries) == len(spans)
    for entry, same in zip(entries, whole, strict=True):
        assert isinstance(entry, Header)
        for name in ("position", "size", "queue", "base_offset", "next_offset", "record_count", "store_time_ms"):
            assert getattr(entry, name) == getattr(same, name)
        assert entry.tag_hashes == same.tag_hashes
    blanks = [found for found in groups if isinstance(found, Blank)]
    assert blanks == [found for found in log.scan(0) if isinstance(found, Blank)]


def test_recovery_writes_only_that_again_which_may_not_be_durable() -> None:
    disk, log, spans = written(40)
    last = write(log, 40, sync=False)
    recovered(disk)
    rewritten = [call.position for call in disk.calls if call.operation == "pwritev"][-1]
    assert rewritten == spans[-1].position + spans[-1].size == last.position, "the last entry says what was durable"


def test_scanning_from_any_entry_finds_the_rest() -> None:
    _, log, spans = written(100)
    for number in range(0, 100, 7):
        found = [item for item in log.scan(spans[number].position) if isinstance(item, Entry)]
        assert [entry.base_offset for entry in found] == list(range(number, 100))
    found = [item for item in log.scan(0, end=spans[50].position) if isinstance(item, Entry)]
    assert len(found) == 50


@pytest.mark.parametrize("checkpoint_at", [0, 1, 50, 99])
def test_recovery_begins_at_the_checkpoint(checkpoint_at: int) -> None:
    disk, _, spans = written(100)
    log, numbers, report = recovered(disk, spans[checkpoint_at].position)
    assert numbers == list(range(checkpoint_at, 100))
    assert report.from_position == spans[checkpoint_at].position
    assert report.end_position == log.end_position == log.durable_position == spans[-1].position + spans[-1].size
    assert report.cut_reason is None


def test_a_torn_tail_is_cut_zeroed_and_written_over() -> None:
    disk, log, spans = written(20)
    torn = [write(log, number, 3000, sync=False) for number in (20, 21)]
    path = ROOT / disk.names_in(ROOT)[0]
    disk.overwrite(path, torn[0].position + 500, b"garbage")
    log, numbers, report = recovered(disk)
    assert numbers == list(range(20))
    assert report.cut_bytes > 0
    assert report.cut_reason
    assert log.end_position == spans[-1].position + spans[-1].size
    assert not any(disk.contents(path)[log.end_position :])
    write(log, 20)
    assert recovered(disk)[1] == list(range(21))


def test_rot_before_an_entry_that_knows_better_is_refused() -> None:
    disk, _, spans = written(20)
    path = ROOT / disk.names_in(ROOT)[0]
    for span in (spans[0], spans[7], spans[17]):
        damaged = disk.crash(Random(0))
        damaged.flip(path, span.position + 100, 3)
        with pytest.raises(Corrupt, match="had been durable") as caught:
            recovered(damaged)
        assert caught.value.position == span.position
        assert caught.value.path == str(path)
        assert damaged.contents(path)[: span.position] == disk.contents(path)[: span.position], "nothing was changed"


def test_a_log_file_that_is_missing_foreign_or_too_large_is_refused() -> None:
    disk, _, _ = written(200)
    names = disk.names_in(ROOT)
    missing = disk.crash(Random(0))
    missing.remove(ROOT / names[1])
    foreign = disk.crash(Random(0))
    foreign.open(ROOT / "notes.txt", create=True)
    large = disk.crash(Random(0))
    large.open(ROOT / names[0]).truncate(FILE_BYTES + 1)
    for damaged in (missing, foreign, large):
        with pytest.raises(Corrupt):
            open_log(damaged)


def test_a_checkpoint_behind_the_log_is_refused() -> None:
    disk, log, _ = written(5)
    with pytest.raises(Corrupt, match="missing or cut"):
        recovered(disk, log.prepared_position + 8)


def test_recovery_is_idempotent() -> None:
    disk, log, _ = written(30)
    write(log, 30, 5000, sync=False)
    for seed in range(50):
        after = disk.crash(Random(seed))
        first = recovered(after)[1]
        assert first[:30] == list(range(30))
        assert recovered(after.crash(Random(seed)))[1] == first


def test_a_full_disk_is_told_apart_from_a_broken_one() -> None:
    disk, log, _ = written(5)
    disk.capacity_bytes = disk.used_bytes()
    with pytest.raises(DiskFull, match="free some space"):
        log.prepare(log.prepared_position + 1)
    disk.capacity_bytes = None
    write(log, 5, 20_000 // 2)
    disk.inject(Fault("pwritev"))
    with pytest.raises(StoreStopped):
        log.prepare(log.prepared_position + 1)
    with pytest.raises(StoreStopped):
        write(log, 6, 10)
    with pytest.raises(StoreStopped):
        log.sync()


def test_the_oldest_file_can_be_removed_while_it_is_read() -> None:
    disk, log, spans = written(200)
    reading = log.scan(0)
    next(reading)
    log.remove_first()
    assert log.first_position == FILE_BYTES
    assert disk.is_clean()
    assert len(log.starts()) == len(disk.names_in(ROOT))
    with pytest.raises(Corrupt):
        log.read_entry(spans[0].position)
    again, numbers, _ = recovered(disk)
    assert again.first_position == FILE_BYTES
    assert numbers == [n for n, span in enumerate(spans) if span.position >= FILE_BYTES]


def test_threads_that_prepare_side_by_side_share_the_work_and_none_waits_for_ever(tmp_path: Path) -> None:
    log = CommitLog(tmp_path, OsFiles(), file_bytes=256 * KiB, extent_bytes=16 * KiB, disk_floor_bytes=0)
    log.open()
    wanted = [position * KiB for position in (700, 16, 300, 1, 512)]
    with ThreadPoolExecutor(len(wanted)) as pool:
        for future in [pool.submit(log.prepare, position) for position in wanted]:
            future.result(timeout=PATIENCE_S)
    assert log.prepared_position == 704 * KiB, "whole steps, and none twice"
    sizes = [path.stat().st_size for path in sorted(tmp_path.iterdir())]
    assert sizes == [256 * KiB, 256 * KiB, 192 * KiB]
    log.close()


def test_a_failed_write_out_is_final_like_a_failed_write() -> None:
    disk, log, spans = written(3)
    log.begin_writeout(spans[0].position, spans[0].size)
    disk.inject(Fault("begin_writeout"))
    with pytest.raises(StoreStopped):
        log.begin_writeout(spans[1].position, spans[1].size)
    with pytest.raises(StoreStopped):
        log.sync()
