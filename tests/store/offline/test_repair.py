"""`mq repair`: what is intact keeps its offsets and positions, what is lost is named, the result is whole."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from random import Random

import pytest

from store.errors import StoreLocked
from store.index.opening import ROCKSDB_DIRECTORY, IndexKind
from store.limits import PARTITIONS_MAX, KiB
from store.offline.directory import NotAStore
from store.offline.index_rebuild import rebuild_index
from store.offline.repair import LOST_HEADER, LostRange, RepairImpossible, RepairReport, repair
from store.offline.verify import verify
from store.record_batch import Record as BatchRecord
from store.record_batch import encode, zstd_packed
from store.types import Append, Entry, QueueKey
from tests.store.kit import put
from tests.store.offline_kit import config_of, entries_of, make_store, open_at, overwrite, records_of


async def repaired(root: Path, out: Path, queues: list[QueueKey], damaged: list[Entry]) -> RepairReport:
    """Repair, and check all that must hold: `damaged` are the entries whose bytes were destroyed."""
    before = fingerprint(root)
    report = repair(config_of(root), out)
    assert fingerprint(root) == before, "the original was touched"
    assert verify(out).findings == []
    lost = {(entry.queue, offset) for entry in damaged for offset in range(entry.base_offset, entry.next_offset)}
    named = {(one.queue, offset) for one in report.lost for offset in range(one.first, one.end)}
    assert named == lost
    positions = {(entry.queue, entry.base_offset): entry.position for entry in entries_of(out)}
    for entry in entries_of(root):
        assert positions[entry.queue, entry.base_offset] == entry.position, "an intact entry has moved"
    return report


def fingerprint(root: Path) -> dict[str, bytes]:
    return {str(path.relative_to(root)): path.read_bytes() for path in sorted(root.rglob("*")) if path.is_file()}


async def check_records(
    out: Path, originals: dict[QueueKey, dict[int, tuple[bytes | None, list[str]]]], report: RepairReport
) -> None:
    """Each offset holds its record, or a tombstone when it was named as lost."""
    lost = {(one.queue, offset) for one in report.lost for offset in range(one.first, one.end)}
    for queue, records in (await records_of(out, list(originals))).items():
        assert list(records) == list(originals[queue]), "offsets have changed"
        for offset, record in records.items():
            if (queue, offset) in lost:
                assert record[0] is None
                assert record[1] in ([], [LOST_HEADER])
            else:
                assert record == originals[queue][offset]


async def test_a_whole_store_is_copied_as_it_is(tmp_path: Path) -> None:
    root, out = tmp_path / "data", tmp_path / "out"
    queues = await make_store(root)
    originals = await records_of(root, queues)
    report = await repaired(root, out, queues, [])
    assert report.hole_count == 0
    assert report.entry_count == 121
    await check_records(out, originals, report)


@pytest.mark.seeds(range(8), 100)
async def test_random_damage_loses_only_what_it_hits(seed: int, tmp_path: Path) -> None:
    rng = Random(seed)
    root, out = tmp_path / "data", tmp_path / "out"
    queues = await make_store(root, partitions=rng.choice((1, 3)))
    originals = await records_of(root, queues)
    entries = entries_of(root)
    damaged = []
    for _ in range(rng.choice((1, 1, 3, 6))):
        first = rng.randrange(1, len(entries))
        hit = entries[first : first + rng.choice((1, 1, 2, 9))]
        for entry in hit:
            overwrite(root, entry.position + rng.randrange(4, 60), rng.randbytes(rng.choice((1, 30))))
        damaged += hit
    lost = [entry for entry in entries if entry.position not in {intact.position for intact in entries_of(root)}]
    assert not set(map(id, lost)) - set(map(id, damaged))
    report = await repaired(root, out, queues, lost)
    await check_records(out, originals, report)


@pytest.mark.parametrize("size", [512, 4096, 40 * KiB])
async def test_zeroed_and_noisy_ranges(size: int, tmp_path: Path) -> None:
    for number, content in enumerate((bytes(size), Random(1).randbytes(size))):
        root, out = tmp_path / f"data-{number}", tmp_path / f"out-{number}"
        queues = await make_store(root)
        originals = await records_of(root, queues)
        entries = entries_of(root)
        overwrite(root, 20 * KiB, content)
        intact = {entry.position for entry in entries_of(root)}
        report = await repaired(root, out, queues, [entry for entry in entries if entry.position not in intact])
        await check_records(out, originals, report)


async def test_the_lost_end_of_a_partition_is_known_from_the_index(tmp_path: Path) -> None:
    root, out = tmp_path / "data", tmp_path / "out"
    queues = await make_store(root)
    originals = await records_of(root, queues)
    damaged = entries_of(root)[-4:]
    for entry in damaged:
        overwrite(root, entry.position + 8, b"\xff" * 20)
    report = await repaired(root, out, queues, damaged)
    await check_records(out, originals, report)
    store = await open_at(out)
    ends = {queue: store.bounds(queue).max_offset for queue in queues}
    assert ends == {queue: len(records) for queue, records in originals.items()}, "an offset would be given out again"
    await store.close()


async def test_a_long_lost_end_takes_several_entries_and_files(tmp_path: Path) -> None:
    root, out = tmp_path / "data", tmp_path / "out"
    [queue] = await make_store(root, batch_count=50, partitions=1)
    store = await open_at(root)
    for _ in range(10):
        await put(store, queue, *[b""] * 1000)
    await store.close()
    originals = await records_of(root, [queue])
    damaged = entries_of(root)[-10:]
    for entry in damaged:
        overwrite(root, entry.position + 20, b"\xff")
    report = await repaired(root, out, [queue], damaged)
    assert report.lost_count == 10_000
    await check_records(out, originals, report)


async def test_a_missing_and_a_cut_log_file(tmp_path: Path) -> None:
    for change in ("missing", "cut"):
        root, out = tmp_path / change, tmp_path / f"{change}-out"
        queues = await make_store(root)
        originals = await records_of(root, queues)
        entries = entries_of(root)
        victim = sorted((root / "commitlog").iterdir())[1]
        if change == "missing":
            victim.unlink()
        else:
            with victim.open("r+b") as file:
                file.truncate(30_000)
        intact = {entry.position for entry in entries_of(root)}
        report = await repaired(root, out, queues, [entry for entry in entries if entry.position not in intact])
        assert report.lost_count
        await check_records(out, originals, report)


async def test_a_topic_whose_creation_is_lost_is_known_from_its_records(tmp_path: Path) -> None:
    root, out = tmp_path / "data", tmp_path / "out"
    queues = await make_store(root)
    originals = await records_of(root, queues)
    creation = entries_of(root)[0]
    overwrite(root, creation.position + 12, b"\xff\xff")
    for name in ("meta.0", "meta.1"):
        (root / name).unlink(missing_ok=True)
    report = repair(config_of(root), out)
    assert verify(out).findings == []
    assert report.lost == [LostRange("__meta", creation.queue, 0, 1)]
    assert any("orders" in note for note in report.notes)
    assert await records_of(out, queues) == originals


async def test_tombstones_fit_even_the_smallest_and_the_best_compressed_records(tmp_path: Path) -> None:
    """A tombstone must not need more room than what was lost."""
    root, out = tmp_path / "data", tmp_path / "out"
    store = await open_at(root)
    topic, _ = await store.create_topic("orders", 1)
    queue = QueueKey(topic.topic_id, 0)
    batches = [encode([BatchRecord(None, None, 0)]), encode([BatchRecord(None, b"", 0)] * 3), packed(500)]
    for batch, count in zip(batches, (1, 3, 500), strict=True):
        for _ in range(3):
            await store.append([Append(queue=queue, batch=bytes(batch), record_count=count)])
    await store.close()
    originals = await records_of(root, [queue])
    damaged = [entry for number, entry in enumerate(entries_of(root)[1:]) if number % 3 == 1]
    for entry in damaged:
        overwrite(root, entry.position + 20, b"\xff")
    report = await repaired(root, out, [queue], damaged)
    await check_records(out, originals, report)


def packed(count: int) -> bytearray:
    """A batch of equal records as a client compresses it: a byte or two a record."""
    return zstd_packed(encode([BatchRecord(None, b"the same old value", 0)] * count), level=19)


async def test_a_trimmed_log_keeps_its_beginning(tmp_path: Path) -> None:
    root, out = tmp_path / "data", tmp_path / "out"
    queues = await make_store(root, trimmed=True)
    originals = await records_of(root, queues)
    assert min(min(records) for records in originals.values()) > 0
    entries = entries_of(root)
    damaged = entries[len(entries) // 2 : len(entries) // 2 + 2]
    for entry in damaged:
        overwrite(root, entry.position + 20, b"\xff")
    report = await repaired(root, out, queues, damaged)
    await check_records(out, originals, report)


async def test_a_store_with_a_rocksdb_index_gets_one_again(tmp_path: Path) -> None:
    pytest.importorskip("rocksdict")
    root, out = tmp_path / "data", tmp_path / "out"
    queues = await make_store(root)
    originals = await records_of(root, queues)
    rebuild_index(config_of(root), "rocksdb")
    damaged = [entries_of(root)[40], entries_of(root)[-1]]
    for entry in damaged:
        overwrite(root, entry.position + 20, b"\xff")
    report = await repaired(root, out, queues, damaged)
    assert (out / ROCKSDB_DIRECTORY).is_dir()
    rebuild_index(config_of(out), "file")
    await check_records(out, originals, report)


def _cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


def _noise(path: Path) -> None:
    path.write_bytes(b"\xa5" * 300)


@pytest.mark.parametrize(
    ("damage", "index"), [(Path.unlink, "file"), (_cut, "file"), (_noise, "file"), (_noise, "rocksdb")]
)
async def test_any_file_but_those_of_the_log_may_be_lost_and_no_record_goes(
    damage: Callable[[Path], None], index: IndexKind, tmp_path: Path
) -> None:
    root = tmp_path / "data"
    queues = await make_store(root, batch_count=9)
    originals = await records_of(root, queues)
    if index == "rocksdb":
        rebuild_index(config_of(root), "rocksdb")
    names = [path.relative_to(root) for path in sorted(root.rglob("*")) if path.is_file()]
    derived = [name for name in names if name.parts[0] not in ("commitlog", "lock")]
    assert {name.parts[0].partition(".")[0] for name in derived} >= {"consumequeue", "format", "meta"}
    for number, name in enumerate(derived):
        spoilt, out = tmp_path / f"spoilt{number}", tmp_path / f"out{number}"
        shutil.copytree(root, spoilt)
        damage(spoilt / name)
        report = await repaired(spoilt, out, queues, [])
        assert report.hole_count == 0, name
        if (out / ROCKSDB_DIRECTORY).is_dir():
            rebuild_index(config_of(out), "file")
        assert await records_of(out, queues) == originals, name


async def test_a_repaired_store_can_be_repaired_again_and_takes_appends(tmp_path: Path) -> None:
    root, out, again = tmp_path / "data", tmp_path / "out", tmp_path / "again"
    queues = await make_store(root)
    for number in (90, 91, 50):
        overwrite(root, entries_of(root)[number].position + 20, b"\xff")
    repair(config_of(root), out)
    store = await open_at(out)
    end = store.bounds(queues[0]).max_offset
    appended = await put(store, queues[0], b"new")
    assert appended.base_offset == end
    await store.close()
    overwrite(out, entries_of(out)[20].position + 20, b"\xff")
    report = repair(config_of(out), again)
    assert len(report.lost) == 1
    assert verify(again).findings == []


async def test_refusals(tmp_path: Path) -> None:
    root = tmp_path / "data"
    with pytest.raises(NotAStore):
        repair(config_of(root), tmp_path / "out")
    await make_store(root, batch_count=100)
    (tmp_path / "there").mkdir()
    with pytest.raises(FileExistsError):
        repair(config_of(root), tmp_path / "there")
    store = await open_at(root)
    with pytest.raises(StoreLocked):
        repair(config_of(root), tmp_path / "out")
    await store.close()
    with pytest.raises(RepairImpossible, match="config"):
        repair(replace(config_of(root), commit_log_file_bytes=128 * KiB), tmp_path / "out")


@pytest.mark.parametrize("lost_count", [1, 2])
async def test_a_further_queue_whose_creation_is_lost_is_no_reason_for_a_thousand_partitions(
    tmp_path: Path, lost_count: int
) -> None:
    root, out = tmp_path / "data", tmp_path / "out"
    store = await open_at(root)
    topic, _ = await store.create_topic("orders", 1)
    further = QueueKey(topic.topic_id, PARTITIONS_MAX)
    await store.create_queue(further)
    await put(store, further, b"kept")
    await store.close()
    for name in ("meta.0", "meta.1"):
        (root / name).unlink(missing_ok=True)
    lost = entries_of(root)[:2][-lost_count:]
    for entry in lost:
        overwrite(root, entry.position + 12, b"\xff\xff")
    await repaired(root, out, [further], lost)
    store = await open_at(out)
    assert store.topic("orders").partitions == 1
    assert store.bounds(further) == (0, 1)
    await store.close()
