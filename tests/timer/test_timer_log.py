"""The timer log: layout, reading before and after writing, cuts, damage, expiry."""

from __future__ import annotations

import contextlib
import errno
import os
from collections.abc import Sequence
from pathlib import Path
from random import Random

import pytest
from crc32c import crc32c

from store.errors import Corrupt
from store.files import File
from store.types import Buffer
from tests.simdisk import Fault, Operation, SimDisk
from timer.timer_log import MAGIC_DEFAULT, MAGIC_DELETE, UNIT_BYTES, TimerLog, Unit

DIRECTORY = Path("/data/timerlog")


def opened(disk: SimDisk, end: int = 0, *, file_units: int = 4) -> TimerLog:
    log = TimerLog(disk, DIRECTORY, file_units=file_units)
    log.open(end)
    return log


def unit(number: int) -> Unit:
    return Unit(
        number * 52 - 52, MAGIC_DEFAULT, 1_700_003_600_000 + number, 100 * number, 107, number, 84, 1_700_003_600
    )


def fill(log: TimerLog, numbers: range) -> None:
    for number in numbers:
        log.append(*unit(number))


def save(log: TimerLog) -> None:
    unwritten = log.unwritten()
    log.write(unwritten)
    log.written(unwritten)


def test_a_unit_is_52_bytes_in_the_documented_order() -> None:
    disk = SimDisk()
    log = opened(disk)
    fill(log, range(2))
    save(log)
    content = disk.contents(DIRECTORY / ("0" * 20))
    facts = bytes.fromhex(
        "00000034 0000000000000000 00000001 0000018bd01c5681 0000000000000064 0000006b 00000001 00000054"
    )
    facts += bytes.fromhex("6553ff10")
    assert content[52:100] == facts
    assert content[100:104] == crc32c(facts, 52).to_bytes(4, "big")


@pytest.mark.parametrize("count_max", [1, 3, 10, 11])
def test_a_chain_is_walked_in_parts_newest_first(count_max: int) -> None:
    log = opened(SimDisk())
    fill(log, range(7))
    save(log)
    fill(log, range(7, 10))
    walked: list[Unit] = []
    position = 9 * UNIT_BYTES
    while position >= 0:
        units, position = log.walk(position, count_max)
        assert 0 < len(units) <= count_max
        walked += units
    assert walked == [unit(number) for number in reversed(range(10))]


def test_units_read_the_same_before_and_after_they_are_written_and_after_a_restart() -> None:
    disk = SimDisk()
    log = opened(disk)
    fill(log, range(11))
    assert [log.read(number * UNIT_BYTES) for number in range(11)] == [unit(number) for number in range(11)]
    save(log)
    fill(log, range(11, 13))
    for number in Random(1).sample(range(13), 13):
        assert log.read(number * UNIT_BYTES) == unit(number)
    save(log)
    assert disk.list(DIRECTORY) == [f"{start:020d}" for start in (0, 208, 416, 624)]
    again = opened(disk, 13 * UNIT_BYTES)
    assert list(again.scan()) == [(number * UNIT_BYTES, unit(number)) for number in range(13)]


@pytest.mark.parametrize("seed", range(40))
def test_after_a_power_cut_everything_before_the_saved_end_is_there_and_the_rest_is_void(seed: int) -> None:
    disk = SimDisk()
    log = opened(disk)
    fill(log, range(6))
    save(log)
    fill(log, range(6, 15))
    unwritten = log.unwritten()
    disk.cut_power_at(1 + seed % 8)
    with contextlib.suppress(OSError):
        log.write(unwritten)
    log = opened(disk.crash(Random(seed)), 6 * UNIT_BYTES)
    assert [found for _, found in log.scan()] == [unit(number) for number in range(6)]
    fill(log, range(6, 9))
    save(log)
    assert [found for _, found in log.scan()] == [unit(number) for number in range(9)]


@pytest.mark.parametrize("operation", ["create", "pwritev", "datasync", "sync_dir"])
@pytest.mark.parametrize("seed", range(5))
def test_a_write_that_failed_is_as_durable_when_it_is_tried_again(operation: Operation, seed: int) -> None:
    disk = SimDisk()
    log = opened(disk)
    fill(log, range(3))
    disk.inject(Fault(operation, errno.ENOSPC, path_part="timerlog"))
    with pytest.raises(OSError, match=os.strerror(errno.ENOSPC)):
        log.write(log.unwritten())
    save(log)
    log = opened(disk.crash(Random(seed)), 3 * UNIT_BYTES)
    assert [found for _, found in log.scan()] == [unit(number) for number in range(3)]


def test_every_flipped_bit_is_found() -> None:
    disk = SimDisk()
    log = opened(disk)
    fill(log, range(2))
    save(log)
    path = DIRECTORY / ("0" * 20)
    for bit in range(UNIT_BYTES * 8):
        disk.flip(path, UNIT_BYTES + bit // 8, bit % 8)
        with pytest.raises(Corrupt, match="position 52"):
            opened(disk, 2 * UNIT_BYTES).read(UNIT_BYTES)
        disk.flip(path, UNIT_BYTES + bit // 8, bit % 8)


def test_a_unit_in_another_place_zeros_and_odd_positions_are_not_units() -> None:
    disk = SimDisk()
    log = opened(disk)
    fill(log, range(3))
    save(log)
    path = DIRECTORY / ("0" * 20)
    disk.overwrite(path, 0, disk.contents(path)[52:104])
    disk.overwrite(path, 104, bytes(52))
    log = opened(disk, 3 * UNIT_BYTES)
    for position in (0, 104, 51, 156, 10**9):
        with pytest.raises(Corrupt):
            log.read(position)


def test_missing_bytes_and_files_are_refused() -> None:
    disk = SimDisk()
    log = opened(disk)
    fill(log, range(9))
    save(log)
    for end in (10 * UNIT_BYTES, 13 * UNIT_BYTES):
        with pytest.raises(Corrupt):
            opened(disk, end)
    disk.remove(DIRECTORY / f"{208:020d}")
    with pytest.raises(Corrupt):
        opened(disk, 9 * UNIT_BYTES)


def test_expiry_removes_whole_files_below_the_mark_and_never_the_last() -> None:
    disk = SimDisk()
    log = opened(disk)
    fill(log, range(12))
    save(log)
    assert log.expire(7 * UNIT_BYTES) == 1
    assert log.start == 4 * UNIT_BYTES
    with pytest.raises(Corrupt):
        log.read(0)
    assert log.expire(12 * UNIT_BYTES) == 1
    assert [found for _, found in log.scan()] == [unit(number) for number in range(8, 12)]
    again = opened(disk.crash(Random(0)), 12 * UNIT_BYTES)
    assert again.start == 8 * UNIT_BYTES


def test_a_cut_log_goes_on_from_the_cut() -> None:
    disk = SimDisk()
    log = opened(disk)
    fill(log, range(10))
    save(log)
    log.cut(5 * UNIT_BYTES)
    fill(log, range(5, 6))
    save(log)
    assert [found.record_index for _, found in log.scan()] == list(range(6))
    assert [found.record_index for _, found in opened(disk, 6 * UNIT_BYTES).scan()] == list(range(6))


def test_a_mark_is_seen_at_once_and_durable_with_the_next_write() -> None:
    disk = SimDisk()
    log = opened(disk)
    fill(log, range(6))
    save(log)
    fill(log, range(6, 8))
    log.mark(2 * UNIT_BYTES, MAGIC_DEFAULT | MAGIC_DELETE)
    log.mark(7 * UNIT_BYTES, MAGIC_DEFAULT | MAGIC_DELETE)
    marked = {2, 7}

    def magics(log: TimerLog) -> set[int]:
        return {number for number in range(8) if log.read(number * UNIT_BYTES).magic & MAGIC_DELETE}

    assert magics(log) == marked
    unwritten = log.unwritten()
    log.write(unwritten)
    log.mark(3 * UNIT_BYTES, MAGIC_DEFAULT | MAGIC_DELETE)  # while the write is under way
    log.written(unwritten)
    assert log.unwritten_bytes == UNIT_BYTES
    assert magics(log) == {*marked, 3}
    assert magics(opened(disk.crash(Random(0)), 8 * UNIT_BYTES)) == marked
    save(log)
    assert log.unwritten_bytes == 0
    assert magics(opened(disk.crash(Random(0)), 8 * UNIT_BYTES)) == {*marked, 3}


@pytest.mark.parametrize("start", [0, 4])
def test_units_are_found_by_their_record_and_by_their_due_time(start: int) -> None:
    log = opened(SimDisk())
    fill(log, range(11))
    save(log)
    log.expire(start * UNIT_BYTES)
    fill(log, range(11, 13))
    for number in range(13):
        wanted = unit(number)
        position = log.find(wanted.entry_position, wanted.record_index)
        assert position == (number * UNIT_BYTES if number >= start else None)
        found = [match for match in log.search_due(wanted.due_ms) if match is not None]
        of_that_time = [other for other in range(start, 13) if unit(other).due_ms == wanted.due_ms]
        assert found == [(other * UNIT_BYTES, unit(other)) for other in reversed(of_that_time)]
    assert log.find(unit(5).entry_position, 10**6) is None
    assert log.find(-1, 0) is None
    assert [match for match in log.search_due(1) if match is not None] == []
    read = b"".join(chunk for _, chunk in log.chunks(6 * UNIT_BYTES))
    assert len(read) == 7 * UNIT_BYTES


class CountingDisk(SimDisk):
    """Counts what is read and written of timer-log files."""

    def __init__(self) -> None:
        super().__init__()
        self.reads = self.writes = 0

    def open(self, path: Path, *, create: bool = False) -> File:
        """See Files."""
        file = super().open(path, create=create)
        read, write = file.pread, file.pwritev

        def pread(size: int, position: int) -> bytes:
            self.reads += 1
            return read(size, position)

        def pwritev(buffers: Sequence[Buffer], position: int) -> int:
            self.writes += 1
            return write(buffers, position)

        file.pread, file.pwritev = pread, pwritev  # type: ignore[method-assign]
        return file


@pytest.mark.parametrize("order", [1, -1], ids=["forwards", "backwards"])
def test_who_reads_on_and_on_reads_files_in_blocks(order: int) -> None:
    disk = CountingDisk()
    log = opened(disk, file_units=600)
    fill(log, range(1_000))
    save(log)
    fill(log, range(1_000, 1_010))
    for number in range(1_010)[::order]:
        assert log.read(number * UNIT_BYTES) == unit(number)
    assert disk.reads <= 1_000 // 78 + 3


def test_marks_side_by_side_are_written_together() -> None:
    disk = CountingDisk()
    log = opened(disk, file_units=600)
    fill(log, range(1_000))
    save(log)
    disk.writes = 0
    marked = [*range(100, 300), 302, *range(598, 602), 999]
    for number in [*marked, 1_003]:
        if number == 1_003:
            fill(log, range(1_000, 1_010))
        log.mark(number * UNIT_BYTES, MAGIC_DELETE)
    save(log)
    assert disk.writes == 1 + 5, "what is new; and five runs, as one lies in two files"
    again = opened(disk, 1_010 * UNIT_BYTES, file_units=600)
    for number in range(1_010):
        is_marked = number in marked or number == 1_003
        assert again.read(number * UNIT_BYTES) == unit(number)._replace(
            magic=MAGIC_DELETE if is_marked else MAGIC_DEFAULT
        )
