"""store.files: one contract, kept by the real disk and by the simulated one that all crash tests stand on."""

from __future__ import annotations

import errno
import fcntl
import os
import subprocess
import sys
from pathlib import Path
from random import Random

import pytest

from store import Store
from store import files as files_module
from store.config import StoreConfig
from store.errors import StoreLocked
from store.files import File, Files, LinkRefused, OsFiles
from store.limits import MiB
from store.offline.directory import locked
from tests.simdisk import SimDisk


@pytest.fixture(params=["os", "sim"])
def files(request: pytest.FixtureRequest, tmp_path: Path) -> Files:
    if request.param == "os":
        return OsFiles()
    disk = SimDisk()
    disk.make_dirs(tmp_path)
    return disk


@pytest.fixture
def file(files: Files, tmp_path: Path) -> File:
    return files.open(tmp_path / "f", create=True)


def test_a_missing_file_is_opened_only_with_create(files: Files, tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        files.open(tmp_path / "f")
    files.open(tmp_path / "f", create=True).pwritev([b"abc"], 0)
    assert files.open(tmp_path / "f", create=True).pread(9, 0) == b"abc", "create keeps what is there"
    with pytest.raises(FileNotFoundError):
        files.open(tmp_path / "missing" / "f", create=True)


def test_reads_are_short_only_at_the_end(file: File) -> None:
    file.pwritev([b"abcdef"], 0)
    assert file.pread(3, 0) == b"abc"
    assert file.pread(10, 4) == b"ef"
    assert file.pread(10, 6) == b""
    assert file.pread(10, 600) == b""
    assert file.pread(0, 0) == b""


def test_what_the_system_has_in_memory_is_read_without_waiting(file: File) -> None:
    file.pwritev([b"abcdef"], 0)
    cached = file.pread_cached(3, 2)
    assert cached is not None
    assert bytes(cached) == b"cde"
    assert file.pread_cached(7, 0) is None, "not all of it is there"
    assert file.pread_cached(1, 600) is None


@pytest.mark.parametrize("code", [errno.EAGAIN, errno.EOPNOTSUPP])
def test_what_would_have_to_wait_for_the_disk_is_left(
    code: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = OsFiles().open(tmp_path / "f", create=True)
    file.pwritev([b"abc"], 0)

    def refuse(*_: object) -> int:
        raise OSError(code, os.strerror(code))

    monkeypatch.setattr(os, "preadv", refuse)
    assert file.pread_cached(3, 0) is None
    monkeypatch.setattr(files_module, "_RWF_NOWAIT", 0)  # other systems
    assert file.pread_cached(3, 0) is None
    assert file.pread(3, 0) == b"abc"


def test_buffers_of_every_kind_are_written_end_to_end(file: File) -> None:
    assert file.pwritev([b"ab", bytearray(b"cd"), memoryview(b"xefx")[1:3], b""], 1) == 6
    assert file.pread(10, 0) == b"\0abcdef"
    assert file.pwritev([], 0) == 0
    assert file.size() == 7


def test_more_buffers_than_one_system_call_takes_are_written(file: File) -> None:
    count = 3 * files_module.IOV_MAX + 1
    assert file.pwritev([b"%06d" % n for n in range(count)], 0) == 6 * count
    assert file.pread(6 * count, 0) == b"".join(b"%06d" % n for n in range(count))


def test_overwriting_keeps_the_rest_and_a_buffer_may_be_reused(file: File) -> None:
    buffer = bytearray(b"aaaa")
    file.pwritev([buffer], 0)
    buffer[:] = b"zzzz"
    file.pwritev([b"b"], 1)
    file.datasync()
    assert file.pread(4, 0) == b"abaa"


def test_truncate_cuts_and_extends_with_zeros(file: File) -> None:
    file.pwritev([b"abcdef"], 0)
    file.truncate(2)
    assert (file.size(), file.pread(9, 0)) == (2, b"ab")
    file.truncate(4)
    assert (file.size(), file.pread(9, 0)) == (4, b"ab\0\0")


def test_list_names_files_and_directories_sorted_and_nothing_below(files: Files, tmp_path: Path) -> None:
    files.make_dirs(tmp_path / "b" / "deep")
    for name in ("c", "a", "b/inner"):
        files.open(tmp_path / name, create=True)
    assert files.list(tmp_path) == ["a", "b", "c"]
    assert files.list(tmp_path / "b") == ["deep", "inner"]
    assert files.list(tmp_path / "none") == []


def test_make_dirs_makes_parents_and_may_be_repeated(files: Files, tmp_path: Path) -> None:
    files.make_dirs(tmp_path / "x" / "y" / "z")
    files.make_dirs(tmp_path / "x" / "y" / "z")
    files.open(tmp_path / "x" / "y" / "z" / "f", create=True)
    assert files.list(tmp_path / "x" / "y") == ["z"]


def test_a_removed_file_is_gone_but_readable_by_who_has_it_open(files: Files, file: File, tmp_path: Path) -> None:
    file.pwritev([b"abc"], 0)
    files.remove(tmp_path / "f")
    files.sync_dir(tmp_path)
    assert files.list(tmp_path) == []
    assert file.pread(3, 0) == b"abc"
    with pytest.raises(FileNotFoundError):
        files.remove(tmp_path / "f")


def test_allocated_space_reads_as_zeros_and_makes_the_file_longer(file: File) -> None:
    file.pwritev([b"abc"], 0)
    file.allocate(3, 5000)
    file.datasync()
    assert file.size() == 5003
    assert file.pread(6000, 0) == b"abc" + bytes(5000)


def test_only_an_empty_directory_can_be_removed(files: Files, tmp_path: Path) -> None:
    files.make_dirs(tmp_path / "x" / "y")
    files.open(tmp_path / "x" / "y" / "f", create=True)
    for directory in (tmp_path / "x", tmp_path / "x" / "y"):
        with pytest.raises(OSError, match="not empty"):
            files.remove_dir(directory)
    files.remove(tmp_path / "x" / "y" / "f")
    files.remove_dir(tmp_path / "x" / "y")
    files.sync_dir(tmp_path / "x")
    assert files.list(tmp_path / "x") == []
    with pytest.raises(FileNotFoundError):
        files.remove_dir(tmp_path / "x" / "y")
    with pytest.raises(FileNotFoundError):
        files.open(tmp_path / "x" / "y" / "f", create=True)


def test_sync_dir_of_a_missing_directory_is_an_error(files: Files, tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        files.sync_dir(tmp_path / "none")


def test_a_lock_is_held_until_closed(files: Files, tmp_path: Path) -> None:
    held = files.lock(tmp_path)
    with pytest.raises(BlockingIOError):
        files.lock(tmp_path)
    held.close()
    files.lock(tmp_path).close()


def test_a_lock_does_not_go_with_its_file(tmp_path: Path) -> None:
    held = OsFiles().lock(tmp_path)
    (tmp_path / "lock").unlink()
    with pytest.raises(BlockingIOError):
        OsFiles().lock(tmp_path)
    held.close()
    OsFiles().lock(tmp_path).close()


def test_a_version_that_locks_only_the_file_is_kept_out_and_keeps_out(tmp_path: Path) -> None:
    held = OsFiles().lock(tmp_path)
    with (tmp_path / "lock").open() as file:
        with pytest.raises(BlockingIOError):
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        held.close()
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        with pytest.raises(BlockingIOError):
            OsFiles().lock(tmp_path)


def test_free_bytes_is_a_number_of_bytes(files: Files, tmp_path: Path) -> None:
    assert files.free_bytes(tmp_path) > 0


def test_a_closed_file_cannot_be_used_and_may_be_closed_again(file: File) -> None:
    file.close()
    file.close()
    with pytest.raises(OSError, match="Bad file descriptor") as caught:
        file.pread(1, 0)
    assert caught.value.errno == errno.EBADF


def test_short_writes_and_reads_of_the_system_are_finished(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A signal, a quota or a network file system may make any call do less than asked."""
    file = OsFiles().open(tmp_path / "f", create=True)
    pwritev, pwrite, pread = os.pwritev, os.pwrite, os.pread
    monkeypatch.setattr(os, "pwritev", lambda fd, buffers, at: pwritev(fd, [b"".join(buffers)[:5]], at))
    monkeypatch.setattr(os, "pwrite", lambda fd, rest, at: pwrite(fd, rest[:3], at))
    monkeypatch.setattr(os, "pread", lambda fd, size, at: pread(fd, min(size, 4), at))
    content = bytes(range(200))
    assert file.pwritev([content[:90], content[90:]], 7) == 200
    assert file.pread(300, 7) == content


def test_another_process_cannot_take_the_lock(tmp_path: Path) -> None:
    held = OsFiles().lock(tmp_path)
    program = "import sys; from pathlib import Path; from store.files import OsFiles; OsFiles().lock(Path(sys.argv[1]))"
    command = [sys.executable, "-c", program, str(tmp_path)]
    refused = subprocess.run(command, capture_output=True, text=True, check=False)
    assert "BlockingIOError" in refused.stderr
    held.close()
    assert subprocess.run(command, check=False).returncode == 0


def test_make_dirs_syncs_each_parent_it_adds_a_name_to(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    files, synced = OsFiles(), list[Path]()
    monkeypatch.setattr(OsFiles, "sync_dir", lambda _, directory: synced.append(directory))
    files.make_dirs(tmp_path / "x" / "y")
    assert synced == [tmp_path, tmp_path / "x"]


def test_datasync_reaches_the_system(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    synced = list[int]()
    monkeypatch.setattr(os, "fdatasync", synced.append)
    OsFiles().open(tmp_path / "f", create=True).datasync()
    assert len(synced) == 1


def test_a_write_out_changes_nothing_that_can_be_read_and_errors_pass_through(files: Files, tmp_path: Path) -> None:
    file = files.open(tmp_path / "f", create=True)
    file.pwritev([b"abcdef" * 1000], 0)
    file.begin_writeout(0, 4000)
    file.begin_writeout(4000, 10_000)
    file.datasync()
    assert file.pread(6000, 0) == b"abcdef" * 1000
    assert file.size() == 6000
    if isinstance(files, OsFiles):
        with pytest.raises(OSError, match="Invalid argument"):
            file.begin_writeout(-1, 1)


def test_directories_made_without_a_sync_may_be_lost_until_everything_is_synced() -> None:
    disk = SimDisk()
    disk.make_dirs(Path("/d/x"), sync=False)
    disk.open(Path("/d/x/f"), create=True).datasync()
    disk.sync_dir(Path("/d/x"))
    after = [disk.crash(Random(seed)) for seed in range(50)]
    assert {(*crashed.list(Path("/d")), *crashed.list(Path("/d/x"))) for crashed in after} == {(), ("x", "f")}
    assert not disk.is_clean()
    disk.sync_all(Path("/d"))
    assert disk.is_clean()
    assert {tuple(disk.crash(Random(seed)).list(Path("/d/x"))) for seed in range(50)} == {("f",)}


def test_make_dirs_leaves_the_sync_to_its_caller_if_told_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(OsFiles, "sync_dir", lambda *_: pytest.fail("not asked for"))
    OsFiles().make_dirs(tmp_path / "x" / "y", sync=False)
    assert (tmp_path / "x" / "y").is_dir()


def test_files_open_when_sockets_have_taken_every_other_handle(tmp_path: Path) -> None:
    program = """
import errno, os, resource, sys
from pathlib import Path
from store.files import SPARE_HANDLES, OsFiles
directory = Path(sys.argv[1])
files = OsFiles()
files.open(directory / "first", create=True).close()  # from here on there are spare ones
taken = []
try:
    while True:
        taken.append(os.dup(0))
except OSError as error:
    assert error.errno == errno.EMFILE
for _ in range(3):  # a file that is closed again gives its handle back
    files.open(directory / "f", create=True).close()
    files.sync_dir(directory)
opened = []
try:
    while True:
        opened.append(files.open(directory / f"f{len(opened)}", create=True))
except OSError as error:
    assert error.errno == errno.EMFILE
assert len(opened) == SPARE_HANDLES, len(opened)
for fd in taken:
    os.close(fd)
assert files.open(directory / "f", create=True).size() == 0
assert files.handle_limit == 100
"""
    limited = ["prlimit", "--nofile=100:100", sys.executable, "-c", program, str(tmp_path)]
    subprocess.run(limited, check=True)


# Symbolic links


def _config(root: Path) -> StoreConfig:
    return StoreConfig(root=root, commit_log_file_bytes=4 * MiB, extent_bytes=MiB, disk_floor_bytes=0)


async def _run(root: Path) -> None:
    """One life of a store, with a topic."""
    store = await Store.open(_config(root))
    await store.create_topic("orders", 1)
    await store.close()


LINKED = [
    "lock", "format", "meta.1", "commitlog", "commitlog/00000000000000000000", "dedup", "consumequeue",
    "consumequeue/16", "consumequeue/16/0", "consumequeue/1/0/00000000000000000000", "index.0", "timer", "timer/keys",
    "timer/timerlog", "timer/timerlog/00000000000000000000", "audit", "audit/actions-00000001.jsonl",
]  # fmt: skip


@pytest.mark.parametrize("name", LINKED)
async def test_a_link_in_a_data_directory_is_refused_and_what_it_leads_to_left_alone(tmp_path: Path, name: str) -> None:
    root, elsewhere = tmp_path / "data", tmp_path / "elsewhere"
    await _run(root)
    path = root / name
    path.parent.mkdir(parents=True, exist_ok=True)
    if path.exists():
        path.rename(elsewhere)
    else:
        elsewhere.mkdir()
    before = {found: found.stat().st_mtime_ns for found in (elsewhere, *elsewhere.rglob("*"))}
    path.symlink_to(elsewhere)
    said = rf"{name} is a symbolic link.*or let the data directory as a whole be a link"
    if name.count("/") > 2:  # found when it is opened
        with pytest.raises(LinkRefused, match=said):
            OsFiles().open(path)
    else:
        with pytest.raises(LinkRefused, match=said):
            await _run(root)
        with pytest.raises(LinkRefused), locked(root):
            pass
    assert before == {found: found.stat().st_mtime_ns for found in before}
    assert path.is_symlink()


@pytest.mark.parametrize("name", ["lock", "format", "commitlog/00000000000000000000"])
async def test_a_link_to_nowhere_makes_no_file_there(tmp_path: Path, name: str) -> None:
    root = tmp_path / "data"
    (root / name).parent.mkdir(parents=True)
    (root / name).symlink_to(tmp_path / "made")
    with pytest.raises(LinkRefused):
        await _run(root)
    with pytest.raises(LinkRefused):
        OsFiles().open(root / name, create=True)
    assert not (tmp_path / "made").exists()


async def test_a_data_directory_that_is_a_link_works_and_is_locked_under_all_its_names(tmp_path: Path) -> None:
    disk = tmp_path / "disk"
    disk.mkdir()
    (tmp_path / "data").symlink_to(disk)
    (tmp_path / "again").symlink_to("data")
    await _run(tmp_path / "data")
    store = await Store.open(_config(tmp_path / "again"))
    assert store.topic("orders").partitions == 1
    with pytest.raises(StoreLocked):
        await Store.open(_config(disk))
    await store.close()


async def test_files_of_people_may_be_links_and_what_cannot_be_read_is_not_ours(tmp_path: Path) -> None:
    root = tmp_path / "data"
    (root / "auth").mkdir(parents=True)
    (root / "auth" / "tokens.json").symlink_to("..data/tokens.json")  # as Kubernetes mounts it
    (root / ".snapshot").symlink_to(tmp_path)
    (root / "lost+found").mkdir(mode=0)
    await _run(root)
