"""The simulated disk does what its header says: a harness that is too kind proves nothing."""

from __future__ import annotations

import errno
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from random import Random

import pytest

from tests.simdisk import UNIT_BYTES, Fault, PowerCut, SimDisk, SimFile

ROOT = Path("/d")
PATH = ROOT / "f"
SEEDS = range(300)


def disk_with(content: bytes) -> tuple[SimDisk, SimFile]:
    """A disk with one durable file."""
    disk = SimDisk()
    disk.make_dirs(ROOT)
    file = disk.open(PATH, create=True)
    file.pwritev([content], 0)
    file.datasync()
    disk.sync_dir(ROOT)
    assert disk.is_clean()
    return disk, file


def test_what_was_synced_survives_every_crash() -> None:
    disk, _ = disk_with(b"a" * 2000)
    for seed in SEEDS:
        assert disk.crash(Random(seed)).contents(PATH) == b"a" * 2000


def test_unsynced_units_are_lost_kept_or_garbage_each_on_its_own() -> None:
    disk, file = disk_with(b"a" * 4 * UNIT_BYTES)
    file.pwritev([b"b" * 2 * UNIT_BYTES, b"c" * UNIT_BYTES], UNIT_BYTES)
    patterns = Counter[str]()
    for seed in SEEDS:
        content = disk.crash(Random(seed)).contents(PATH)
        assert len(content) == 4 * UNIT_BYTES
        units = [content[at : at + UNIT_BYTES] for at in range(0, len(content), UNIT_BYTES)]
        assert units[0] == b"a" * UNIT_BYTES, "a unit nobody wrote to does not change"
        patterns["".join(chr(unit[0]) if len(set(unit)) == 1 else "?" for unit in units)] += 1
    assert {"aaaa", "abbc", "abac", "aaba"} <= patterns.keys(), "none, all, and any mix"
    assert any("?" in pattern for pattern in patterns), "garbage"


def test_a_sync_covers_what_was_there_when_it_began_and_leaves_the_rest_to_the_next() -> None:
    disk, file = disk_with(b"a" * UNIT_BYTES)
    file.pwritev([b"b" * UNIT_BYTES], UNIT_BYTES)
    mark = file.mark()
    file.pwritev([b"c" * UNIT_BYTES], 2 * UNIT_BYTES)
    file.pwritev([b"d" * UNIT_BYTES], 0)
    file.datasync_until(mark)
    seen = Counter(disk.crash(Random(seed)).contents(PATH)[UNIT_BYTES : 2 * UNIT_BYTES] for seed in SEEDS)
    assert seen == {b"b" * UNIT_BYTES: len(SEEDS)}
    sizes = Counter(len(disk.crash(Random(seed)).contents(PATH)) for seed in SEEDS)
    assert {2 * UNIT_BYTES, 3 * UNIT_BYTES} == sizes.keys(), "what came later may be lost"
    assert len({bytes(disk.crash(Random(seed)).contents(PATH)[:UNIT_BYTES]) for seed in SEEDS}) > 1
    file.datasync_until(mark)
    assert not disk.is_clean(), "an old mark covers nothing more"
    file.datasync()
    assert disk.is_clean()
    assert disk.crash(Random(0)).contents(PATH) == b"d" * UNIT_BYTES + b"b" * UNIT_BYTES + b"c" * UNIT_BYTES


def test_garbage_never_reaches_bytes_nobody_changed() -> None:
    """Synced neighbours in the same unit, and synced bytes that are written again, stay as they are."""
    disk, file = disk_with(b"a" * UNIT_BYTES)
    file.pwritev([b"b" * 100], 200)
    file.pwritev([b"a" * 150], 0)
    damaged = set[bytes]()
    for seed in SEEDS:
        content = disk.crash(Random(seed)).contents(PATH)
        assert content[:200] == b"a" * 200
        assert content[300:] == b"a" * 212
        damaged.add(content[200:300])
    assert len(damaged - {b"a" * 100, b"b" * 100}) > 10


def test_a_unit_written_twice_may_hold_the_first_version() -> None:
    disk, file = disk_with(b"a" * UNIT_BYTES)
    file.pwritev([b"1"], 10)
    file.pwritev([b"2"], 10)
    seen = {disk.crash(Random(seed)).contents(PATH)[10:11] for seed in SEEDS}
    assert {b"a", b"1", b"2"} <= seen


def test_growth_may_be_lost_though_the_data_was_kept_and_the_other_way_round() -> None:
    disk, file = disk_with(b"a" * 100)
    file.pwritev([b"b" * 1000], 100)
    sizes, grown_but_empty = set[int](), False
    for seed in SEEDS:
        content = disk.crash(Random(seed)).contents(PATH)
        sizes.add(len(content))
        grown_but_empty |= content == b"a" * 100 + bytes(1000)
    assert {100, 1100} <= sizes
    assert len(sizes) > 3, "growth may stop half way"
    assert min(sizes) == 100
    assert grown_but_empty


def test_truncation_is_certain_only_after_a_sync() -> None:
    disk, file = disk_with(b"a" * 2000)
    file.truncate(700)
    assert {700, 2000} <= {len(disk.crash(Random(seed)).contents(PATH)) for seed in SEEDS}
    file.datasync()
    assert disk.is_clean()
    assert {len(disk.crash(Random(seed)).contents(PATH)) for seed in SEEDS} == {700}


def test_bytes_cut_off_read_as_zeros_when_the_file_grows_again() -> None:
    disk, file = disk_with(b"a" * 1024)
    file.truncate(0)
    file.truncate(1024)
    assert file.pread(1024, 0) == bytes(1024)
    assert {b"a" * 512, bytes(512)} <= {disk.crash(Random(seed)).contents(PATH)[:512] for seed in SEEDS}
    file.datasync()
    assert disk.crash(Random(1)).contents(PATH) == bytes(1024)


def test_names_are_certain_only_after_the_directory_was_synced() -> None:
    disk, _ = disk_with(b"a")
    disk.open(ROOT / "new", create=True).datasync()
    disk.remove(PATH)
    assert {tuple(disk.crash(Random(seed)).list(ROOT)) for seed in SEEDS} == {(), ("f",), ("new",), ("f", "new")}
    disk.sync_dir(ROOT)
    assert {tuple(disk.crash(Random(seed)).list(ROOT)) for seed in SEEDS} == {("new",)}


def test_a_removed_directory_comes_back_or_not_and_a_gone_one_has_no_files() -> None:
    disk, _ = disk_with(b"a")
    disk.make_dirs(ROOT / "sub")
    disk.open(ROOT / "sub" / "g", create=True).datasync()
    disk.sync_dir(ROOT / "sub")
    with pytest.raises(OSError, match="not empty"):
        disk.remove_dir(ROOT / "sub")
    disk.remove(ROOT / "sub" / "g")
    disk.remove_dir(ROOT / "sub")
    assert disk.list(ROOT) == ["f"]

    def left(seed: int) -> tuple[bool, bool]:
        after = disk.crash(Random(seed))
        return "sub" in after.list(ROOT), bool(after.list(ROOT / "sub"))

    assert {left(seed) for seed in SEEDS} == {(False, False), (True, False), (True, True)}
    disk.sync_dir(ROOT)
    assert {left(seed) for seed in SEEDS} == {(False, False)}


def test_a_lost_removal_brings_the_old_bytes_back() -> None:
    disk, file = disk_with(b"old")
    file.pwritev([b"new"], 0)
    disk.remove(PATH)
    disk.open(PATH, create=True).pwritev([b"another"], 0)
    contents = set()
    for seed in SEEDS:
        after = disk.crash(Random(seed))
        contents.add(after.contents(PATH) if after.paths() else None)
    assert {None, b"", b"old", b"new", b"another"} <= contents


def test_a_crash_leaves_the_disk_it_was_drawn_from_alone() -> None:
    disk, file = disk_with(b"a" * 600)
    file.pwritev([b"b" * 600], 0)
    after = disk.crash(Random(1))
    after.open(PATH).pwritev([b"z" * 600], 0)
    after.open(PATH).datasync()
    assert file.pread(600, 0) == b"b" * 600
    file.datasync()
    assert disk.contents(PATH) == b"b" * 600
    assert after.contents(PATH) == b"z" * 600


def test_disks_that_share_durable_bytes_do_not_see_each_other_write() -> None:
    disk, _ = disk_with(b"a" * 600)
    one, two = disk.crash(Random(1)), disk.crash(Random(2))
    one.open(PATH).pwritev([b"1"], 0)
    one.open(PATH).datasync()
    two.flip(PATH, 1, 0)
    assert (disk.contents(PATH)[:2], one.contents(PATH)[:2], two.contents(PATH)[:2]) == (b"aa", b"1a", b"a`")
    assert two.crash(Random(1)).contents(PATH)[:2] == b"a`"


def test_the_same_seed_gives_the_same_disk() -> None:
    disk, file = disk_with(b"a" * 5000)
    file.pwritev([b"b" * 5000], 100)
    assert disk.crash(Random(7)).contents(PATH) == disk.crash(Random(7)).contents(PATH)


@pytest.mark.parametrize("code", [errno.EIO, errno.ENOSPC])
def test_a_fault_strikes_at_its_nth_call_once_or_for_ever(code: int) -> None:
    disk, file = disk_with(b"a")
    once = disk.inject(Fault("pwritev", code, nth=2))
    file.pwritev([b"1"], 0)
    with pytest.raises(OSError, match="simulated") as caught:
        file.pwritev([b"2"], 0)
    assert caught.value.errno == code
    assert file.pwritev([b"3"], 0) == 1
    assert once.hit_count == 1
    disk.inject(Fault("datasync", code, nth=2, sticky=True))
    file.datasync()
    for _ in range(3):
        with pytest.raises(OSError, match="simulated"):
            file.datasync()


def test_a_fault_may_be_bound_to_a_path_and_leave_a_partial_write() -> None:
    disk, file = disk_with(b"a" * 8)
    other = disk.open(ROOT / "other", create=True)
    disk.inject(Fault("pwritev", path_part="other", partial_bytes=3))
    file.pwritev([b"b"], 0)
    with pytest.raises(OSError, match="simulated"):
        other.pwritev([b"12", b"345"], 0)
    assert other.pread(9, 0) == b"123"


@pytest.mark.parametrize("operation", ["open", "create", "pread", "truncate", "size", "list", "remove", "sync_dir"])
def test_any_operation_can_fail_and_then_has_no_effect(operation: str) -> None:
    disk, file = disk_with(b"abc")
    disk.inject(Fault(operation, sticky=True))  # type: ignore[arg-type]
    calls: dict[str, Callable[[], object]] = {
        "open": lambda: disk.open(PATH),
        "create": lambda: disk.open(ROOT / "new", create=True),
        "pread": lambda: file.pread(1, 0),
        "truncate": lambda: file.truncate(1),
        "size": file.size,
        "list": lambda: disk.list(ROOT),
        "remove": lambda: disk.remove(PATH),
        "sync_dir": lambda: disk.sync_dir(ROOT),
    }
    with pytest.raises(OSError, match="simulated"):
        calls[operation]()
    assert disk.paths() == [str(PATH)]
    assert disk.contents(PATH) == b"abc"


def test_a_failed_sync_that_drops_pages_lies_ever_after() -> None:
    disk, file = disk_with(b"a" * 10)
    file.pwritev([b"b" * 10], 0)
    disk.inject(Fault("datasync", drop_dirty=True))
    with pytest.raises(OSError, match="simulated"):
        file.datasync()
    file.datasync()  # claims success
    assert file.pread(10, 0) == b"b" * 10
    assert disk.crash(Random(1)).contents(PATH) == b"a" * 10


def test_a_full_disk_stores_what_fits_and_allows_overwriting() -> None:
    disk, file = disk_with(b"a" * 100)
    disk.capacity_bytes = 150
    assert disk.free_bytes(ROOT) == 50
    with pytest.raises(OSError, match="No space") as caught:
        file.pwritev([b"b" * 80], 100)
    assert caught.value.errno == errno.ENOSPC
    assert file.size() == 150
    assert disk.calls[-1].error == errno.ENOSPC
    file.pwritev([b"c" * 150], 0)
    disk.capacity_bytes = 200
    file.pwritev([b"d" * 50], 150)
    assert disk.free_bytes(ROOT) == 0
    disk.remove(PATH)
    assert disk.free_bytes(ROOT) == 200


def test_the_power_can_fail_inside_any_call_and_nothing_comes_after() -> None:
    disk, file = disk_with(b"a")
    disk.cut_power_at(2)
    file.pwritev([b"b"], 0)
    with pytest.raises(PowerCut):
        file.datasync()
    for call in (file.datasync, file.size, lambda: file.pread(1, 0), lambda: disk.list(ROOT)):
        with pytest.raises(PowerCut):
            call()
    assert {disk.crash(Random(seed)).contents(PATH) for seed in SEEDS} >= {b"a", b"b"}
    assert disk.crash(Random(1)).list(ROOT) == ["f"], "the disk after the cut has power again"


def test_the_effect_of_the_call_that_was_cut_is_unsynced() -> None:
    disk, file = disk_with(b"a")
    disk.cut_power_at(1)
    with pytest.raises(PowerCut):
        file.pwritev([b"b"], 0)
    assert {disk.crash(Random(seed)).contents(PATH) for seed in SEEDS} >= {b"a", b"b"}


def test_kill_ends_handles_and_locks_but_keeps_the_page_cache() -> None:
    disk, file = disk_with(b"a")
    disk.lock(ROOT)
    with pytest.raises(BlockingIOError):
        disk.lock(ROOT)
    file.pwritev([b"b"], 0)
    disk.kill()
    with pytest.raises(OSError, match="Bad file descriptor"):
        file.pread(1, 0)
    assert disk.open(PATH).pread(1, 0) == b"b"
    disk.lock(ROOT).close()
    disk.lock(ROOT)


def test_the_call_log_names_changing_calls_in_order_with_their_errors() -> None:
    disk, file = disk_with(b"a")
    disk.calls.clear()
    disk.inject(Fault("datasync"))
    file.pread(1, 0)
    file.pwritev([b"bc"], 5)
    with pytest.raises(OSError, match="simulated"):
        file.datasync()
    disk.sync_dir(ROOT)
    assert [(c.operation, c.path, c.position, c.size, c.error) for c in disk.calls] == [
        ("pwritev", "/d/f", 5, 2, 0),
        ("datasync", "/d/f", 0, 0, errno.EIO),
        ("sync_dir", "/d", 0, 0, 0),
    ]
