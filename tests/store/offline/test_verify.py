"""`mq verify`: silent about a whole store, also one that was killed; exact about a damaged one; writes nothing.

Flipped bits by the thousand are in tests/crash/test_bitflips.py.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from random import Random

import pytest
from crc32c import crc32c

from store.errors import FormatTooNew, StoreLocked
from store.offline.directory import NotAStore, log_files
from store.offline.verify import Severity, VerifyReport, offsets_text, verify
from store.snapshot import decode_snapshot
from store.types import Acks, Identity, ProducerSequence, QueueKey
from tests.store.kit import append_of, put
from tests.store.offline_kit import entries_of, make_store, open_at, overwrite


@pytest.mark.parametrize("kept_from", [None, 60])
async def test_a_closed_store_is_clean_and_untouched(tmp_path: Path, kept_from: int | None) -> None:
    root = tmp_path / "data"
    await make_store(root, kept_from=kept_from)
    before = state_of(root)
    report = verify(root)
    assert report.findings == []
    assert report.is_clean
    assert report.entry_count == len(entries_of(root)) == 121
    assert report.record_count == sum(entry.record_count for entry in entries_of(root))
    assert report.queue_count == 4
    assert report.checkpoint == report.log_end
    assert report.index_checked
    assert state_of(root) == before


async def test_entries_larger_than_what_is_read_at_once_are_checked_like_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As large entries are with the real window: 14 MiB at most, 8 MiB at once."""
    root = tmp_path / "data"
    await make_store(root)
    assert max(entry.size for entry in entries_of(root)) > 2048
    monkeypatch.setattr("store.offline.directory.WINDOW_BYTES", 1024)
    report = verify(root)
    assert report.findings == []
    assert report.entry_count == 121


async def test_a_trimmed_log_and_an_empty_store_are_clean(tmp_path: Path) -> None:
    await make_store(tmp_path / "trimmed", trimmed=True)
    report = verify(tmp_path / "trimmed")
    assert report.findings == []
    assert report.log_begin > 0
    await make_store(tmp_path / "empty", batch_count=0)
    assert verify(tmp_path / "empty").findings == []


async def test_deleted_topics_leave_no_findings(tmp_path: Path) -> None:
    root = tmp_path / "data"
    await make_store(root)
    store = await open_at(root)
    await store.delete_topic("orders")
    topic, _ = await store.create_topic("orders", 1)
    await put(store, QueueKey(topic.topic_id, 0), b"new life")
    await store.close()
    assert verify(root).findings == []


async def test_a_copy_of_a_running_store_has_leftovers_at_most(tmp_path: Path) -> None:
    """At any moment, checkpoints or not; a torn tail on top is still no damage."""
    root = tmp_path / "data"
    store = await open_at(root)
    topic, _ = await store.create_topic("orders", 2)
    rng = Random(1)
    for number in range(60):
        acks = rng.choice(list(Acks))
        await put(store, QueueKey(topic.topic_id, number % 2), rng.randbytes(rng.randrange(3000)), acks=acks)
        if number % 9 == 0:
            await store._save_checkpoint()
        if number % 7 == 0:
            copy = tmp_path / f"copy-{number}"
            shutil.copytree(root, copy)
            report = verify(copy)
            assert report.findings == []
            assert report.checkpoint <= report.log_end == store.end_position
            overwrite(copy, report.log_end, rng.randbytes(600))
            torn = verify(copy)
            assert torn.is_clean
            assert [finding.severity for finding in torn.findings] == [Severity.LEFTOVER]
            assert torn.log_end == report.log_end
    with pytest.raises(StoreLocked, match="in use by a server"):
        verify(root)
    await store.close()


@pytest.mark.parametrize("name", ["meta", "index", "producers"])
async def test_a_torn_snapshot_is_a_leftover_and_the_next_start_puts_it_right(tmp_path: Path, name: str) -> None:
    """Also where that start has nothing else to save."""
    [queue, *_] = await make_store(tmp_path)
    store = await open_at(tmp_path)
    for number in range(2):
        identity = Identity(producer=ProducerSequence(b"p" * 16, number))
        await store.append([replace(append_of(queue, [b"numbered"]), identity=identity)])
        await store._save_checkpoint()
    await store.close()
    generations = {path: decode_snapshot(path.read_bytes()) for path in tmp_path.glob(f"{name}.?")}
    assert len(generations) == 2
    older = min(generations, key=lambda path: (generations[path] or ())[1])
    older.write_bytes(older.read_bytes()[:-1])
    torn = verify(tmp_path).findings
    assert [(finding.severity, finding.path) for finding in torn] == [(Severity.LEFTOVER, str(older))]
    await (await open_at(tmp_path)).close()
    assert verify(tmp_path).findings == []


async def test_a_damaged_entry_names_its_place_and_its_offsets(tmp_path: Path) -> None:
    root = tmp_path / "data"
    await make_store(root)
    victim = entries_of(root)[40]
    overwrite(root, victim.position + 70, b"\xff\xff\xff")
    report = verify(root)
    assert not report.is_clean
    holes = [finding for finding in report.findings if finding.offsets is None]
    assert [(hole.position, hole.reason.split(":")[1].strip()) for hole in holes] == [
        (victim.position, "CRC does not match")
    ]
    [lost] = [finding for finding in report.findings if finding.offsets is not None]
    assert lost.offsets == (victim.base_offset, victim.next_offset)
    assert (lost.topic, lost.queue) == ("orders", victim.queue.queue_id)
    assert offsets_text(victim.base_offset, victim.next_offset) in str(lost)
    assert [offsets_text(3, 4), offsets_text(3, 6)] == ["offset 3", "offsets 3 to 5"]


async def test_the_lost_end_of_a_queue_is_known_from_the_index(tmp_path: Path) -> None:
    root = tmp_path / "data"
    await make_store(root)
    victim = entries_of(root)[-1]
    overwrite(root, victim.position, bytes(victim.size))
    report = verify(root)
    assert (victim.base_offset, victim.next_offset) in [finding.offsets for finding in report.findings]


def cut(path: Path) -> None:
    with path.open("r+b") as file:
        file.truncate(path.stat().st_size // 2)


def zero(path: Path) -> None:
    path.write_bytes(bytes(path.stat().st_size))


@pytest.mark.parametrize("change", [Path.unlink, cut, zero], ids=["deleted", "cut", "zeroed"])
@pytest.mark.parametrize("number", [0, 1])
async def test_a_log_file_that_is_not_whole_is_damage(
    change: Callable[[Path], None], number: int, tmp_path: Path
) -> None:
    root = tmp_path / "data"
    await make_store(root)
    change(sorted((root / "commitlog").iterdir())[number])
    assert not verify(root).is_clean


@pytest.mark.parametrize("change", [Path.unlink, cut, zero], ids=["deleted", "cut", "zeroed"])
async def test_index_files_that_contradict_the_log_are_damage(change: Callable[[Path], None], tmp_path: Path) -> None:
    root = tmp_path / "data"
    queues = await make_store(root)
    change(sorted((root / "consumequeue" / str(queues[1].topic_id) / "1").iterdir())[0])
    report = verify(root)
    assert not report.is_clean
    assert {(finding.topic, finding.queue) for finding in report.findings} == {("orders", 1)}


async def test_every_kind_of_disorder_is_told(tmp_path: Path) -> None:
    """Entries with right CRCs whose contents contradict each other: a bug of the writer would look like that."""
    root = tmp_path / "data"
    await make_store(root)
    first, second = [entry for entry in entries_of(root) if entry.queue.queue_id == 1][:2]
    reasons = " ".join(finding.reason for finding in rewritten(root, second.position, {40: 1}).findings)
    assert "store time is before" in reasons
    reasons = " ".join(finding.reason for finding in rewritten(root, second.position, {24: 1 << 40}).findings)
    assert "durable position" in reasons
    reasons = " ".join(finding.reason for finding in rewritten(root, second.position, {32: first.base_offset}).findings)
    assert "comes again" in reasons
    assert "the batch has" in reasons


def rewritten(root: Path, position: int, fields: dict[int, int]) -> VerifyReport:
    """What `verify` says with some i64 fields of an entry changed and its CRC made right; undone afterwards."""
    file = next(file for file in log_files(root)[0] if file.start <= position < file.end)
    original = file.path.read_bytes()
    content = bytearray(original)
    at = position - file.start
    for offset, value in fields.items():
        content[at + offset : at + offset + 8] = value.to_bytes(8)
    length = int.from_bytes(content[at : at + 4])
    content[at + 4 : at + 8] = crc32c(bytes(content[at + 8 : at + length])).to_bytes(4)
    file.path.write_bytes(content)
    try:
        return verify(root)
    finally:
        file.path.write_bytes(original)


async def test_progress_reaches_the_end(tmp_path: Path) -> None:
    root = tmp_path / "data"
    await make_store(root, batch_count=5)
    told: list[tuple[int, int]] = []
    report = verify(root, progress=lambda done, total: told.append((done, total)))
    assert told[-1] == (report.log_bytes, report.log_bytes)


async def test_what_cannot_be_checked_is_refused(tmp_path: Path) -> None:
    with pytest.raises(NotAStore):
        verify(tmp_path / "nothing")
    with pytest.raises(NotAStore):
        verify(tmp_path)
    root = tmp_path / "data"
    await make_store(root, batch_count=1)
    (root / "format").write_bytes(b"mq data format 99\n")
    with pytest.raises(FormatTooNew):
        verify(root)
    (root / "format").write_bytes(b"mq data fromat 1\n")
    assert not verify(root).is_clean


def state_of(root: Path) -> dict[str, tuple[bytes, int]]:
    return {
        str(path): (path.read_bytes() if path.is_file() else b"", path.stat().st_mtime_ns) for path in root.rglob("*")
    }
