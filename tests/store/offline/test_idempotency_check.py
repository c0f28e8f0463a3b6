"""What `mq verify` says of ids and sequences that do not agree with the log, and what `mq repair` makes of them."""

from __future__ import annotations

import struct
from collections.abc import Callable
from pathlib import Path

import orjson
import pytest
from crc32c import crc32c

from store.dedup.producers import Table, decode_table, encode_table
from store.errors import AlreadyStored
from store.files import OsFiles
from store.offline.repair import LOST_POSITION, repair
from store.offline.verify import verify
from store.snapshot import Snapshot, SnapshotFiles, decode_snapshot
from store.store import Store
from store.topics import TIMER_QUEUE
from store.types import Acks, Append, Delay, Identity, ProducerSequence, QueueKey, RequestPart
from tests.clock import FakeClock
from tests.store.kit import InlineExecutor, append_of
from tests.store.offline_kit import config_of, entries_of, open_at, overwrite

PRODUCER = b"p" * 16


def with_identity(queue: QueueKey, identity: Identity, record_count: int = 1) -> Append:
    plain = append_of(queue, [b"value"] * record_count)
    return Append(queue=queue, batch=plain.batch, record_count=record_count, identity=identity)


async def make(root: Path) -> QueueKey:
    """A closed store with every kind of identity, over three checkpoints and a restart."""
    store = await open_at(root)
    topic, _ = await store.create_topic("orders", 2)
    gone, _ = await store.create_topic("gone", 1)
    queue, other = QueueKey(topic.topic_id, 0), QueueKey(topic.topic_id, 1)
    for number in range(30):
        some = [b"%016d" % (3 * number + n) for n in range(3)]
        if number % 4 == 0:
            some[1] = bytes(16)
        await store.append([with_identity(queue, Identity(message_ids=some), 3)])
        part = RequestPart(b"r%015d" % number, b"12345678", (0, 1) if number % 2 else (0, 5))
        await store.append([with_identity(other, Identity(request=part), 2)])
        numbered = Identity(producer=ProducerSequence(PRODUCER, number))
        await store.append([with_identity(queue, numbered)], acks=Acks.WRITTEN)
        if number % 10 == 5:
            await store._save_checkpoint()
    await store.append([with_identity(QueueKey(gone.topic_id, 0), Identity(message_ids=[b"g" * 16]))])
    await store.delete_topic("gone")
    delayed = with_identity(TIMER_QUEUE, Identity(message_ids=[b"t" * 16]))
    delays = [Delay(1_000, topic.topic_id, 0, -1, 0)]
    await store.append(
        [Append(queue=TIMER_QUEUE, batch=delayed.batch, record_count=1, delays=delays, identity=delayed.identity)]
    )
    await store.close()
    store = await open_at(root)
    await store.append([with_identity(queue, Identity(message_ids=[b"last".ljust(16)]))])
    await store.close()
    return queue


def journal(root: Path) -> Path:
    """The only file of the journal."""
    [path] = (root / "dedup").iterdir()
    return path


def with_producers(root: Path, change: Callable[[Table], Table]) -> None:
    """Save another table as the newest."""
    newest = max(filter(None, (decode_snapshot(path.read_bytes()) for path in root.glob("producers.?"))))
    files = SnapshotFiles(root, "producers", OsFiles())
    files.load()
    files.save(Snapshot(newest[2].next_offset, encode_table(change(decode_table(newest[2].content)))))


async def test_what_is_remembered_of_sends_agrees_with_the_log(tmp_path: Path) -> None:
    await make(tmp_path)
    assert journal(tmp_path).stat().st_size > 0
    assert verify(tmp_path).findings == []


def _flip(root: Path) -> None:
    content = bytearray(journal(root).read_bytes())
    content[100] ^= 1
    journal(root).write_bytes(content)


def _another_id(root: Path) -> None:
    """An id of the first block is another one, and the CRC says it is right."""
    content = bytearray(journal(root).read_bytes())
    length = struct.unpack_from(">I", content, 4)[0]
    at = content.index(b"%016d" % 4)
    content[at : at + 16] = b"%016d" % 999
    struct.pack_into(">I", content, 0, crc32c(bytes(content[4 : 28 + length])))
    journal(root).write_bytes(content)


def _a_block_less(root: Path) -> None:
    """The marks count one block less than there is: the ids of its entries are missing."""
    slots = SnapshotFiles(root, "meta", OsFiles())
    newest = slots.load()
    assert newest is not None
    fields = orjson.loads(newest.content)
    length = struct.unpack_from(">I", journal(root).read_bytes(), 4)[0]
    fields["repeats"]["segments"][0][1] = 28 + length
    slots.save(Snapshot(newest.next_offset, orjson.dumps(fields)))


@pytest.mark.parametrize(
    ("spoil", "reason"),
    [
        (_flip, "does not match; nothing is lost"),
        (lambda root: journal(root).unlink(), "the file is missing; nothing is lost"),
        (lambda root: journal(root).write_bytes(journal(root).read_bytes()[:-1]), "bytes count, the file has"),
        (_another_id, "dedup/ has other ids or another position for this entry"),
        (_a_block_less, "the ids of this entry are not in dedup/"),
    ],
)
async def test_a_journal_that_contradicts_the_log_is_damage(
    spoil: Callable[[Path], None], reason: str, tmp_path: Path
) -> None:
    await make(tmp_path)
    spoil(tmp_path)
    report = verify(tmp_path)
    assert not report.is_clean
    assert any(reason in finding.reason for finding in report.findings), report.findings
    assert all("dedup" in finding.path for finding in report.findings)


async def test_rows_of_entries_that_are_not_there_are_damage(tmp_path: Path) -> None:
    await make(tmp_path)
    entry = next(entry for entry in entries_of(tmp_path) if entry.identity and entry.identity.message_ids)
    overwrite(tmp_path, entry.position + 8, bytes(100))
    reasons = [finding.reason for finding in verify(tmp_path).findings if "dedup" in finding.path]
    assert reasons == ["dedup/ has ids of an entry that is not in the log"]


async def test_sequences_that_contradict_the_log_are_damage(tmp_path: Path) -> None:
    queue = await make(tmp_path)

    def phantom(table: Table) -> Table:
        sent = table[PRODUCER, queue]
        return {(PRODUCER, queue): (*sent[1:], sent[-1]._replace(sequence=99, position=sent[-1].position + 8))}

    def forgotten(table: Table) -> Table:
        return {(PRODUCER, queue): table[PRODUCER, queue][:-1]}

    def moved(table: Table) -> Table:
        sent = table[PRODUCER, queue]
        return {(PRODUCER, queue): (*sent[:-1], sent[-1]._replace(base_offset=0))}

    whole = {path: path.read_bytes() for path in tmp_path.glob("producers.?")}
    for change, reason in (
        (phantom, "a producer's batch is remembered that the log does not have here"),
        (forgotten, "sequence 29 of a producer is stored here, but 28 is remembered as its last one"),
        (moved, "a producer is remembered with another batch than this entry holds"),
    ):
        with_producers(tmp_path, change)
        assert [finding.reason for finding in verify(tmp_path).findings] == [reason]
        for path in tmp_path.glob("producers.?"):
            path.unlink()
        for path, content in whole.items():
            path.write_bytes(content)
    for path in whole:
        path.write_bytes(b"\xff" + path.read_bytes()[1:])
    damaged = verify(tmp_path)
    assert "the last save of the producers' sequences is lost" in damaged.findings[-1].reason
    assert damaged.damage_count == len(whole) // 2 * 2 + 1


async def test_reading_lost_ids_from_the_log_again_shows_progress_and_is_saved(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    queue = await make(tmp_path)
    journal(tmp_path).unlink()
    for path in tmp_path.glob("producers.?"):
        path.unlink()
    monkeypatch.setattr("store.dedup.idempotency.PROGRESS_BYTES", 1000)
    told: list[tuple[int, int]] = []
    store = await Store.open(
        config_of(tmp_path),
        clock=FakeClock(),
        executor=InlineExecutor(),
        progress=lambda done, total: told.append((done, total)),
    )
    assert len(told) > 3
    assert told == sorted(told)
    assert {total for _, total in told} == {told[0][1]}
    assert told[-1][0] <= told[0][1]
    for identity in (Identity(message_ids=[b"%016d" % 3]), Identity(producer=ProducerSequence(PRODUCER, 7))):
        with pytest.raises(AlreadyStored):
            await store.append([with_identity(queue, identity)])
    await store.close()
    assert verify(tmp_path).findings == []


async def test_repair_keeps_sequences_also_of_lost_batches_and_the_snapshots_of_others(tmp_path: Path) -> None:
    root, out = tmp_path / "data", tmp_path / "out"
    queue = await make(root)
    others = SnapshotFiles(root, "groups", OsFiles(), is_private=True)
    others.save(Snapshot(7, b"progress"))
    (root / "torn.0").write_bytes(b"MQSS torn")
    last = [entry for entry in entries_of(root) if entry.identity and entry.identity.producer][-1]
    overwrite(root, last.position + 8, bytes(40))
    assert repair(config_of(root), out).lost_count == 1
    assert (out / "groups.1").read_bytes() == (root / "groups.1").read_bytes()
    assert (out / "groups.1").stat().st_mode & 0o777 == 0o600
    assert not (out / "torn.0").exists()
    newest = SnapshotFiles(out, "producers", OsFiles()).load()
    assert newest is not None
    sent = decode_table(newest.content)[PRODUCER, queue]
    assert [(one.sequence, one.position == LOST_POSITION) for one in sent[-2:]] == [(28, False), (29, True)]
    store = await open_at(out)
    await store.close()
    assert verify(out).findings == []
