"""Copies of a data directory that is in use: whole, consistent, and with everything that was stored before."""

from __future__ import annotations

import asyncio
import os
import threading
from dataclasses import replace
from pathlib import Path

import pytest

from store.errors import Corrupt, FormatTooNew
from store.files import OsFiles
from store.index.opening import Rebuild, load_rebuild, remove_index, save_rebuild
from store.offline import backup as module
from store.offline.backup import MANIFEST, backup
from store.offline.directory import NotAStore, log_files
from store.offline.index_rebuild import rebuild_index
from store.offline.verify import verify
from store.store import Store
from store.types import QueueKey
from tests.clock import FakeClock
from tests.store.kit import InlineExecutor, put
from tests.store.offline_kit import config_of, entries_of, make_store, open_at, overwrite, records_of


@pytest.fixture
def data(tmp_path: Path) -> Path:
    return tmp_path / "data"


@pytest.fixture
def out(tmp_path: Path) -> Path:
    (tmp_path / "out").mkdir()
    return tmp_path / "out"


def assert_clean(root: Path) -> None:
    """Nothing is damaged, and nothing left over but that the index is to be built."""
    report = verify(root)
    assert [str(finding) for finding in report.findings if "being built again" not in finding.reason] == []


@pytest.mark.parametrize("trimmed", [False, True], ids=["whole", "trimmed"])
@pytest.mark.parametrize("kept_from", [None, 100], ids=["units in files", "units in the snapshot"])
async def test_a_copy_of_a_closed_store_opens_with_the_same_records(
    data: Path, out: Path, trimmed: bool, kept_from: int | None
) -> None:
    queues = await make_store(data, trimmed=trimmed, kept_from=kept_from)
    before = {path: path.read_bytes() for path in data.rglob("*") if path.is_file()}
    report = backup(data, out)
    assert {path: path.read_bytes() for path in data.rglob("*") if path.is_file()} == before
    assert report.log_end - report.log_begin == report.copied_bytes > 0
    assert (out / MANIFEST).exists()
    assert not (out / "consumequeue").exists()
    assert_clean(out)
    assert await records_of(out, queues) == await records_of(data, queues)


async def test_ends_of_partitions_whose_records_have_all_expired_are_kept(data: Path, out: Path) -> None:
    store = await open_at(data)
    topic, _ = await store.create_topic("orders", 2)
    emptied, other = QueueKey(topic.topic_id, 0), QueueKey(topic.topic_id, 1)
    await put(store, emptied, b"first")
    store.config = replace(store.config, retention_bytes=64 * 1024)
    for _ in range(40):
        await put(store, other, os.urandom(8000))
    assert await store.expire(file_count_max=9)
    assert store.bounds(emptied) == (1, 1)
    backup(data, out)  # the store is open
    await store.close()
    copy = await open_at(out)
    assert copy.bounds(emptied) == (1, 1)
    assert copy.bounds(other).max_offset == 40
    await copy.close()


async def test_what_was_stored_before_is_in_the_copy_whatever_the_store_does_meanwhile(
    data: Path, out: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """At each step of the copy the store takes records, rolls files, saves checkpoints, loses its oldest file, gets and
    loses topics."""
    queues = await make_store(data, batch_count=40)
    loop = asyncio.get_running_loop()
    store = await Store.open(
        replace(config_of(data), retention_bytes=96 * 1024), clock=FakeClock(), executor=InlineExecutor()
    )
    for number in range(30):
        await put(store, queues[number % 3], os.urandom(3000))
    acknowledged = {queue: store.bounds(queue).max_offset for queue in queues}
    steps = 0
    removed = 0

    async def turn() -> None:
        nonlocal steps, removed
        steps += 1
        for number in range(4):
            await put(store, queues[number % 3], os.urandom(4000))
        if steps % 2:
            await store.create_topic(f"new-{steps}", 1)
        elif f"new-{steps - 1}" in {topic.name for topic in store.topics()}:
            await store.delete_topic(f"new-{steps - 1}")
        removed += await store.expire()
        await store._save_checkpoint()

    def meanwhile(*_: object) -> None:
        assert threading.current_thread() is not threading.main_thread()
        asyncio.run_coroutine_threadsafe(turn(), loop).result()

    for name in ("_newest", "_segments", "_write_state"):
        original = getattr(module, name)

        def stepping(*arguments: object, original: object = original) -> object:
            if steps < 40:
                meanwhile()
            return original(*arguments)  # type: ignore[operator]

        monkeypatch.setattr(module, name, stepping)
    monkeypatch.setattr(module, "COPY_BYTES", 8192)
    monkeypatch.setattr(module, "STATE_WAIT_S", 0.0)
    report = await asyncio.to_thread(backup, data, out, progress=meanwhile)
    assert steps > 40
    assert removed > 3
    assert log_files(data)[0][0].start > report.log_begin  # retention took a file that is in the copy
    await store.close()
    assert_clean(out)
    copied, original_records = await records_of(out, queues), await records_of(data, queues)
    for queue in queues:
        assert max(copied[queue]) + 1 >= acknowledged[queue]
        both = copied[queue].keys() & original_records[queue].keys()
        assert {offset: copied[queue][offset] for offset in both} == {o: original_records[queue][o] for o in both}


async def test_an_entry_that_is_half_written_is_left_out(data: Path, out: Path) -> None:
    queues = await make_store(data)
    *_, before, last = entries_of(data)
    for index in data.glob("index.[01]"):
        index.unlink()  # it would vouch for the last entry
    overwrite(data, last.position + last.size // 2, bytes(last.size - last.size // 2))
    report = backup(data, out)
    assert report.log_end == before.position + before.size
    assert_clean(out)
    assert last.base_offset not in (await records_of(out, queues))[last.queue]


async def test_an_entry_that_is_whole_when_it_is_read_again_is_no_damage(
    data: Path, out: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    await make_store(data)
    half = entries_of(data)[-2]
    original = module.judge
    path = log_files(data)[0][-1].path
    whole = path.read_bytes()
    overwrite(data, half.position + half.size // 2, bytes(8))
    reads = 0

    def judged(*arguments: object) -> object:
        nonlocal reads
        reads += 1
        if reads == 2:
            path.write_bytes(whole)
        return original(*arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(module, "judge", judged)
    backup(data, out)
    assert reads == 2
    assert_clean(out)


async def test_damage_near_the_end_of_the_log_is_refused_and_named(data: Path, out: Path) -> None:
    await make_store(data)
    entry = entries_of(data)[-2]
    overwrite(data, entry.position + 70, b"\xff\xfe\xfd")
    with pytest.raises(Corrupt, match=f"position {entry.position}"):
        backup(data, out)
    assert not (out / MANIFEST).exists()


async def test_a_torn_snapshot_is_left_out_and_two_torn_ones_are_refused(
    data: Path, out: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    await make_store(data)
    store = await open_at(data)
    await store.create_topic("more", 1)
    await store.close()
    older, newer = sorted(data.glob("meta.[01]"), key=lambda path: path.stat().st_mtime_ns)
    newer.write_bytes(newer.read_bytes()[:40])
    backup(data, out)
    assert not (out / newer.name).exists()
    assert_clean(out)
    older.write_bytes(b"")
    monkeypatch.setattr(module, "STATE_WAIT_S", 0.0)
    (tmp_path / "again").mkdir()
    with pytest.raises(Corrupt, match=r"meta\.0"):
        backup(data, tmp_path / "again")


async def test_whole_files_are_linked_to_an_earlier_copy_that_has_the_same(
    data: Path, out: Path, tmp_path: Path
) -> None:
    queues = await make_store(data)
    first = backup(data, out)
    store = await open_at(data)
    for _ in range(30):
        await put(store, queues[0], os.urandom(4000))
    await store.close()
    names = [path.name for path in sorted((out / "commitlog").iterdir())]
    os.utime(out / "commitlog" / names[1], ns=(1, 1))  # another history: written at another time
    later = tmp_path / "later"
    later.mkdir()
    report = backup(data, later, link_from=out)
    linked = [name for name in names if (later / "commitlog" / name).samefile(out / "commitlog" / name)]
    assert linked == [name for name in names[:-1] if name != names[1]]  # the last one was not full
    assert report.linked_bytes == sum((out / "commitlog" / name).stat().st_size for name in linked)
    assert report.linked_bytes + report.copied_bytes == report.log_end - report.log_begin > first.copied_bytes
    assert_clean(later)
    assert await records_of(later, queues) == await records_of(data, queues)
    assert_clean(out)  # opening the later one has written to no file of the first


async def test_a_copy_may_be_linked_to_the_directory_itself(data: Path, out: Path) -> None:
    queues = await make_store(data)
    report = backup(data, out, link_from=data)
    assert report.linked_bytes
    last = log_files(out)[0][-1].path
    assert not last.samefile(data / "commitlog" / last.name) or report.copied_bytes == 0
    assert await records_of(out, queues) == await records_of(data, queues)


async def test_an_index_in_rocksdb_is_rebuilt_from_what_the_copy_knows(data: Path, out: Path) -> None:
    queues = await make_store(data, trimmed=True)
    rebuild_index(config_of(data), "rocksdb")
    config = replace(config_of(data), index="rocksdb")
    store = await Store.open(config, clock=FakeClock(), executor=InlineExecutor())
    ends = [store.bounds(queue) for queue in queues]
    report = await asyncio.to_thread(backup, data, out)
    await store.close()
    assert report.index == "rocksdb"
    assert_clean(out)
    rebuild_index(replace(config, root=out), "rocksdb")
    copy = await Store.open(replace(config, root=out), clock=FakeClock(), executor=InlineExecutor())
    assert [copy.bounds(queue) for queue in queues] == ends
    await copy.close()


async def test_a_rebuild_of_the_index_that_was_cut_off_is_one_in_the_copy_too(data: Path, out: Path) -> None:
    queues = await make_store(data)
    rebuild = Rebuild("file", 64, dict.fromkeys(queues, 7))
    save_rebuild(data, OsFiles(), rebuild)
    remove_index("file", data, OsFiles())
    backup(data, out)
    assert load_rebuild(out, OsFiles()) == rebuild


async def test_what_is_no_data_directory_and_what_a_newer_program_wrote_are_refused(data: Path, out: Path) -> None:
    with pytest.raises(NotAStore):
        backup(data, out)
    await make_store(data, batch_count=1)
    (data / "format").write_bytes(b"mq data format 999\n")
    with pytest.raises(FormatTooNew):
        backup(data, out)


async def test_where_blocks_cannot_be_shared_bytes_are_copied(
    data: Path, out: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(*_: object) -> int:
        raise OSError(module._CANNOT_CLONE[0], "another file system")

    await make_store(data)
    monkeypatch.setattr(os, "copy_file_range", refused)
    backup(data, out)
    assert_clean(out)
