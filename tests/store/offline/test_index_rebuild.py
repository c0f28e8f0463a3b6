"""store.offline.index_rebuild and store.index.opening: one index for another, and never half of one.

The directory of these tests has a queue whose records have all expired (its max offset is known to the index only),
a queue that begins in the middle, and one that is whole.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from store.config import StoreConfig
from store.errors import Corrupt, IndexDamaged, IndexRefused, StoreLocked
from store.files import OsFiles
from store.index.base import Run
from store.index.opening import (
    FILE_DIRECTORY,
    KINDS,
    ROCKSDB_DIRECTORY,
    IndexKind,
    has_index,
    open_consume_queues,
    other_kind,
)
from store.limits import KiB
from store.offline import index_rebuild
from store.offline.index_rebuild import RebuildReport, rebuild_index
from store.store import Store
from store.topics import META_QUEUE
from store.types import Bounds, QueueKey
from tests.clock import FakeClock
from tests.store.kit import InlineExecutor, put, values_of, with_settings

Contents = dict[QueueKey, tuple[Bounds, list[Run]]]

pytestmark = pytest.mark.usefixtures("installed")


@pytest.fixture(scope="module")
def installed() -> None:
    pytest.importorskip("rocksdict")


@pytest.fixture
async def config(tmp_path: Path) -> StoreConfig:
    config = with_settings(root=tmp_path, retention_ms=None, retention_bytes=3 * 64 * KiB)
    store = await open_store(config)
    gone, _ = await store.create_topic("gone", 1)
    kept, _ = await store.create_topic("kept", 3)
    await put(store, QueueKey(gone.topic_id, 0), *[b"g" * 100] * 7)
    for number in range(300):
        await put(store, QueueKey(kept.topic_id, 0), *[b"k%d" % number * 100] * 3)
    await put(store, QueueKey(kept.topic_id, 1), b"last")
    assert await store.expire(file_count_max=100) > 0
    await store.close()
    return config


async def open_store(config: StoreConfig) -> Store:
    return await Store.open(config, clock=FakeClock(), executor=InlineExecutor())


def contents_of(config: StoreConfig, kind: IndexKind) -> Contents:
    """Everything an index of this kind says, for every queue there can be."""
    first_position = min(int(path.name) for path in (config.root / "commitlog").iterdir())
    queues = open_consume_queues(replace(config, index=kind), OsFiles(), first_position=first_position)
    try:
        keys = [META_QUEUE, *(QueueKey(topic_id, at) for topic_id in queues.topic_ids() for at in range(4))]
        bounds = {key: queues.bounds(key) for key in keys}
        return {key: (found, queues.runs(key, found[0], found[1] - found[0])) for key, found in bounds.items()}
    finally:
        queues.close()


def test_there_and_back_again(config: StoreConfig) -> None:
    before = contents_of(config, "file")
    expired = [bounds for bounds, _ in before.values() if bounds.min_offset == bounds.max_offset > 0]
    assert Bounds(7, 7) in expired, "the test needs a queue without records"
    begun = [bounds for bounds, _ in before.values() if 0 < bounds.min_offset < bounds.max_offset]
    assert begun, "the test needs a queue that begins in the middle"
    for kind in ("rocksdb", "rocksdb", "file", "file"):
        told: list[tuple[int, int]] = []
        report = rebuild_index(config, kind, progress=lambda done, total: told.append((done, total)))  # noqa: B023
        assert contents_of(config, kind) == before
        assert report.is_certain
        assert report.record_count == sum(high - low for (low, high), _ in before.values())
        assert report.entry_count == sum(len(runs) for _, runs in before.values())
        assert report.empty_queue_count == len(expired)
        assert told == sorted(told)
        assert told[-1][0] == told[-1][1] > 0
        assert [has_index(other, config.root, OsFiles()) for other in KINDS] == [other == kind for other in KINDS]
    assert not (config.root / ROCKSDB_DIRECTORY).exists()


async def test_rot_in_any_file_of_the_replaced_index_is_gone_afterwards(config: StoreConfig) -> None:
    rebuild_index(config, "rocksdb")
    sound = contents_of(config, "rocksdb")
    directory = config.root / ROCKSDB_DIRECTORY
    table = max(directory.glob("*.sst"), key=lambda path: path.stat().st_size)
    rotten = bytearray(table.read_bytes())
    rotten[len(rotten) // 4] ^= 1
    table.write_bytes(rotten)
    with pytest.raises(IndexDamaged):
        contents_of(config, "rocksdb")
    rebuild_index(config, "rocksdb")
    assert contents_of(config, "rocksdb") == sound


async def test_a_store_goes_on_with_the_new_index(config: StoreConfig) -> None:
    rebuild_index(config, "rocksdb")
    rebuild_index(config, "file")
    store = await open_store(config)
    gone = QueueKey(store.topic("gone").topic_id, 0)
    assert store.recovery.entry_count == 0, "the new index reaches the end of the log"
    assert (await put(store, gone, b"more")).base_offset == 7, "offsets are never used again"
    assert await values_of(store, gone) == [b"more"]
    await store.close()


async def test_what_the_old_index_had_not_flushed_is_found(config: StoreConfig) -> None:
    store = await open_store(config)
    queue = QueueKey(store.topic("kept").topic_id, 2)
    for number in range(40):
        await put(store, queue, b"%d" % number)
    store._lock.close()  # killed: nothing flushed, nothing closed
    rebuild_index(config, "rocksdb")
    rebuild_index(config, "file")
    assert contents_of(config, "file")[queue][0].max_offset >= 39, "all that a later entry knows to be durable"
    store = await open_store(config)
    assert await values_of(store, queue) == [b"%d" % number for number in range(40)]
    await store.close()


class Killed(Exception):
    """Stands for a kill -9."""


def killed_before(monkeypatch: pytest.MonkeyPatch, step: str, call: int = 1) -> Callable[[], None]:
    """End the rebuild before the `call`-th call of a function of it; returns what ends that again."""
    real = getattr(index_rebuild, step)
    calls = iter(range(1, 1_000))

    def dies(*args: object, **kwargs: object) -> object:
        if next(calls) >= call:
            raise Killed
        return real(*args, **kwargs)

    monkeypatch.setattr(index_rebuild, step, dies)
    return monkeypatch.undo


@pytest.mark.parametrize("to", KINDS)
@pytest.mark.parametrize("is_in_place", [False, True])
@pytest.mark.parametrize(
    ("step", "call"),
    [
        ("save_rebuild", 1),
        ("open_kind", 1),
        ("_flush", 1),
        ("_flush", 3),
        ("clear_rebuild", 1),
        ("remove_index", 1),
        ("last remove_index", 1),
    ],
)
def test_a_kill_leaves_the_old_index_or_is_noticed(
    config: StoreConfig, monkeypatch: pytest.MonkeyPatch, to: IndexKind, is_in_place: bool, step: str, call: int
) -> None:
    before = contents_of(config, "file")
    if is_in_place != (to == "file"):
        rebuild_index(config, "rocksdb")
    monkeypatch.setattr(index_rebuild, "PENDING_BYTES_MAX", 200)
    is_finished = step == "last remove_index" or (step == "remove_index" and not is_in_place)
    if step == "last remove_index":
        step, call = "remove_index", 1 + is_in_place  # what is replaced has been removed before
    restore = killed_before(monkeypatch, step, call)
    with pytest.raises(Killed):
        rebuild_index(config, to)
    restore()
    is_untouched = step == "save_rebuild" and is_in_place
    if is_finished or is_untouched:
        assert contents_of(config, to) == before
    else:
        with pytest.raises(IndexRefused, match="mq index rebuild"):
            contents_of(config, to)
    if not is_in_place:
        assert contents_of(config, other_kind(to)) == before, "the other kind is as it was"
    rebuild_index(config, to)
    assert contents_of(config, to) == before
    assert not list(config.root.glob("index-rebuild*"))


def test_rot_in_the_log_stops_a_rebuild_before_the_index_is_given_up(config: StoreConfig) -> None:
    before = contents_of(config, "file")
    first = min((config.root / "commitlog").iterdir())
    content = bytearray(first.read_bytes())
    content[5_000] ^= 1
    first.write_bytes(content)
    for kind in ("file", "rocksdb"):
        with pytest.raises(Corrupt) as raised:
            rebuild_index(config, kind)
        assert raised.value.path == str(first)
        assert contents_of(config, "file") == before
    assert not has_index("rocksdb", config.root, OsFiles()) or (config.root / FILE_DIRECTORY).exists()


def test_a_log_that_lost_its_end_is_not_indexed_as_if_it_were_whole(config: StoreConfig) -> None:
    last = max(path for path in (config.root / "commitlog").iterdir() if any(path.read_bytes()))
    last.write_bytes(bytes(last.stat().st_size))
    with pytest.raises(Corrupt):
        rebuild_index(config, "rocksdb")


async def test_not_beside_a_server(config: StoreConfig) -> None:
    store = await open_store(config)
    with pytest.raises(StoreLocked):
        rebuild_index(config, "rocksdb")
    await store.close()


def test_not_where_there_is_no_log(tmp_path: Path) -> None:
    with pytest.raises(IndexRefused, match="no commitlog"):
        rebuild_index(StoreConfig(root=tmp_path), "file")
    assert list(tmp_path.iterdir()) == []


def test_without_any_index_the_report_says_what_is_not_certain(config: StoreConfig) -> None:
    before = contents_of(config, "file")
    for name in ("index.0", "index.1"):
        (config.root / name).unlink(missing_ok=True)
    report = rebuild_index(config, "rocksdb")
    assert report == RebuildReport(
        "rocksdb", *report[1:4], empty_queue_count=0, checkpoint=report.checkpoint, is_certain=False
    )
    after = contents_of(config, "rocksdb")
    assert {key: found for key, found in after.items() if found[1]}.items() <= before.items()


def test_a_directory_of_the_other_kind_is_refused_with_the_command_to_run(config: StoreConfig) -> None:
    with pytest.raises(IndexRefused, match=r"mq index rebuild --data .* --to rocksdb"):
        contents_of(config, "rocksdb")
    assert not (config.root / ROCKSDB_DIRECTORY).exists(), "a refusal leaves nothing behind"
    rebuild_index(config, "rocksdb")
    with pytest.raises(IndexRefused, match=r"mq index rebuild --data .* --to file"):
        contents_of(config, "file")


def test_an_index_that_does_not_reach_the_log_is_damaged(config: StoreConfig) -> None:
    with pytest.raises(IndexDamaged):
        open_consume_queues(config, OsFiles(), first_position=1 << 40)


def test_a_kind_that_is_not_installed_names_its_extra(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "rocksdict", None)
    monkeypatch.delitem(sys.modules, "store.index.rocksdb", raising=False)
    with pytest.raises(IndexRefused, match=r"mq-gateway\[rocksdb\]"):
        open_consume_queues(StoreConfig(root=tmp_path, index="rocksdb"), OsFiles(), first_position=0)
