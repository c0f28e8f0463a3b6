"""What the tests of the offline tools share: a closed store on a real disk, ways to damage it, and what is in it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from random import Random
from unittest.mock import patch

from store.config import StoreConfig
from store.index import file as file_index
from store.offline.directory import Found, log_files, pieces
from store.record_batch import decode
from store.store import Store
from store.types import Entry, QueueKey
from tests.clock import FakeClock
from tests.store.kit import SMALL, InlineExecutor, put

Record = tuple[bytes | None, list[str]]
"""Value and header names of one record."""


def config_of(root: Path) -> StoreConfig:
    """Small files, below a directory of the test."""
    return replace(SMALL, root=root)


async def open_at(root: Path) -> Store:
    """A store on the real disk, without threads."""
    return await Store.open(config_of(root), clock=FakeClock(), executor=InlineExecutor())


async def make_store(
    root: Path, *, batch_count: int = 120, partitions: int = 3, trimmed: bool = False, kept_from: int | None = None
) -> list[QueueKey]:
    """A closed store with one topic, `orders`, over several log files; the queues of the topic. Its index is in files,
    but for the units of batches from `kept_from` on: those are kept in the snapshot."""
    store = await open_at(root)
    if trimmed:
        store.config = replace(store.config, retention_bytes=128 * 1024)
    topic, _ = await store.create_topic("orders", partitions)
    queues = [QueueKey(topic.topic_id, number) for number in range(partitions)]
    rng = Random(1)
    for number in range(batch_count):
        if number == kept_from:
            await _save_all(store)
        values = [b"%d.%d;" % (number, n) + rng.randbytes(rng.randrange(1500)) for n in range(rng.randrange(1, 4))]
        await put(store, queues[number % partitions], *values)
    if trimmed:
        assert await store.expire(file_count_max=9)
    if kept_from is None:
        await _save_all(store)
    await store.close()
    return queues


async def _save_all(store: Store) -> None:
    with patch.object(file_index, "KEPT_BYTES_MAX", 0):
        await store._save_checkpoint()


async def records_of(root: Path, queues: Sequence[QueueKey]) -> dict[QueueKey, dict[int, Record]]:
    """Every record by offset, read as a consumer does."""
    store = await open_at(root)
    try:
        found: dict[QueueKey, dict[int, Record]] = {}
        for queue in queues:
            records = found[queue] = {}
            offset, end = store.bounds(queue)
            while offset < end:
                result = await store.read(queue, offset, max_bytes=1 << 20)
                for entry in result.entries:
                    for record in decode(entry.batch):
                        records[record.offset] = record.value, [name for name, _ in record.headers]
                offset = result.next_offset
        return found
    finally:
        await store.close()


def entries_of(root: Path) -> list[Entry]:
    """All intact entries of a log, in order. Their batches are copies."""
    return [
        replace(piece.entry, batch=memoryview(bytes(piece.entry.batch)))
        for file in log_files(root)[0]
        for piece in pieces(file)
        if isinstance(piece, Found)
    ]


def overwrite(root: Path, position: int, content: bytes) -> None:
    """Change bytes of the log."""
    file = next(file for file in log_files(root)[0] if file.start <= position < file.end)
    with file.path.open("r+b") as opened:
        opened.seek(position - file.start)
        opened.write(content)
