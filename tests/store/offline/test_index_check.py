"""`store.offline.index_check` and `store.offline.index_findings`: units against entries, in both directions, without
opening the index as a server would."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from store.errors import IndexDamaged
from store.files import OsFiles
from store.index.base import UNIT_BYTES
from store.index.counted import Counted, decode_counted
from store.index.opening import ROCKSDB_DIRECTORY
from store.index.pending import PendingUnits
from store.offline.index_check import FileIndexCheck, open_index_check
from store.offline.index_findings import NoIndexCheck, WrongUnits
from store.offline.index_rebuild import rebuild_index
from store.offline.verify import verify
from store.snapshot import SnapshotFiles
from store.types import Bounds
from tests.store.offline_kit import config_of, entries_of, make_store, overwrite


@pytest.fixture
async def root(tmp_path: Path) -> Path:
    await make_store(tmp_path / "data")
    return tmp_path / "data"


@pytest.fixture(params=[None, 0, 60])
async def any_root(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """With units in files, in the snapshot, and some here and some there."""
    await make_store(tmp_path / "data", kept_from=request.param)
    assert sum(len(one.kept) for one in counted_of(tmp_path / "data")) == {None: 0, 0: 120, 60: 60}[request.param]
    return tmp_path / "data"


def counted_of(root: Path) -> list[Counted]:
    snapshot = SnapshotFiles(root, "index", OsFiles()).load()
    assert snapshot is not None
    return list(decode_counted(snapshot.content))


def check(root: Path, *, counted: list[Counted] | None = None, skip: int | None = None) -> list[WrongUnits]:
    """What a check of the whole log says; `skip` leaves one entry out, as if it were lost."""
    entries = entries_of(root)
    end = entries[-1].position + entries[-1].size
    index = FileIndexCheck(root, counted or counted_of(root), checkpoint=end, log_begin=0)
    for number, entry in enumerate(entries):
        if number != skip:
            index.expect(entry)
    wrong = list(index.finish())
    index.close()
    return wrong


def test_an_index_that_agrees_is_not_mentioned(any_root: Path) -> None:
    assert check(any_root) == []


def test_kept_units_that_point_elsewhere_are_wrong(tmp_path: Path) -> None:
    asyncio.run(make_store(tmp_path, kept_from=60))
    counted = counted_of(tmp_path)
    number, victim = next((number, one) for number, one in enumerate(counted) if len(one.kept) > 3)
    cells = victim.kept.cells(len(victim.kept))
    cells[3 * 2 + 1] += 8  # the position of its third entry
    kept = PendingUnits.of_cells(cells, len(victim.kept), victim.bounds.max_offset)
    counted[number] = victim._replace(kept=kept)
    [wrong] = check(tmp_path, counted=counted)
    assert (wrong.queue, wrong.offsets) == (victim.key, (cells[3 * 2], cells[3 * 3]))
    assert not wrong.is_lost


@pytest.mark.parametrize("byte", range(UNIT_BYTES))
def test_every_byte_of_a_unit_counts(root: Path, byte: int) -> None:
    victim = [entry for entry in entries_of(root) if entry.queue.queue_id == 2 and entry.record_count == 3][5]
    offset = victim.base_offset + 1
    at = offset * UNIT_BYTES + byte
    files = sorted((root / "consumequeue" / str(victim.queue.topic_id) / "2").iterdir())
    path = next(path for path in reversed(files) if int(path.name) <= at)
    content = bytearray(path.read_bytes())
    content[at - int(path.name)] ^= 1
    path.write_bytes(content)
    [wrong] = check(root)
    assert (wrong.queue, wrong.offsets) == (victim.queue, (victim.base_offset, victim.next_offset))
    assert wrong.path == str(path)
    assert not wrong.is_lost


def test_counted_units_without_entries_are_lost_records(any_root: Path) -> None:
    root = any_root
    last = len(entries_of(root)) - 1
    victim = entries_of(root)[last]
    [wrong] = check(root, skip=last)
    assert (wrong.queue, wrong.offsets, wrong.is_lost) == (victim.queue, (victim.base_offset, victim.next_offset), True)
    first_of_queue = next(n for n, entry in enumerate(entries_of(root)) if entry.queue.queue_id == 1)
    [wrong] = check(root, skip=first_of_queue)
    assert wrong.offsets[0] == 0
    assert wrong.is_lost


def test_units_that_are_not_counted_are_wrong(root: Path) -> None:
    entries = entries_of(root)
    key = entries[-1].queue
    fewer = Bounds(0, entries[-1].base_offset)
    counted = [one._replace(bounds=fewer) if one.key == key else one for one in counted_of(root)]
    [wrong] = check(root, counted=counted)
    assert (wrong.queue, wrong.offsets) == (key, (entries[-1].base_offset, entries[-1].next_offset))


def test_without_a_snapshot_there_is_nothing_to_check(root: Path) -> None:
    index = open_index_check(root, None, log_begin=0)
    assert isinstance(index, NoIndexCheck)
    index.expect(entries_of(root)[0])
    assert list(index.finish()) == []
    index.close()


async def test_a_rocksdb_index_is_checked_in_both_directions_and_not_written(root: Path) -> None:
    rocksdict = pytest.importorskip("rocksdict")
    from store.index.rocksdb import index_key
    from store.offline.index_check_rocksdb import RocksDbIndexCheck

    rebuild_index(config_of(root), "rocksdb")
    before = state_of(root)
    assert verify(root).findings == []
    assert verify(root).index_checked
    assert state_of(root) == before, "the check has written"
    victim = [entry for entry in entries_of(root) if entry.queue.queue_id == 2][5]
    key = index_key(victim.queue.topic_id.to_bytes(4), 2, victim.base_offset)
    database = rocksdict.Rdict(str(root / ROCKSDB_DIRECTORY), rocksdict.Options(raw_mode=True))
    database[key] = database[key][:-1] + b"!"
    database.close()
    [wrong] = verify(root).findings
    assert (wrong.queue, wrong.offsets) == (2, (victim.base_offset, victim.next_offset))
    last = entries_of(root)[-1]
    overwrite(root, last.position, bytes(last.size))
    assert (last.base_offset, last.next_offset) in [finding.offsets for finding in verify(root).findings]
    (root / ROCKSDB_DIRECTORY / "CURRENT").write_bytes(b"nonsense")
    assert any("cannot be opened" in finding.reason for finding in verify(root).findings)
    with pytest.raises(IndexDamaged):
        RocksDbIndexCheck(root, log_begin=0)


def state_of(root: Path) -> dict[str, bytes]:
    return {str(path): path.read_bytes() for path in root.rglob("*") if path.is_file()}
