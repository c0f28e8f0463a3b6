"""What the tests of the store share: an executor without threads, small files, quick appends and whole reads."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from concurrent.futures import Executor, Future
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import ParamSpec, TypeVar

from store.config import StoreConfig
from store.files import Files
from store.limits import KiB
from store.record_batch import Record, decode, encode
from store.store import Store
from store.types import Acks, Append, Appended, Entry, QueueKey
from tests.clock import START_MS, FakeClock

ROOT = Path("/data")
NEVER_MS = 24 * 3_600_000  # longer than any test

SMALL = StoreConfig(
    root=ROOT,
    commit_log_file_bytes=64 * KiB,
    extent_bytes=16 * KiB,
    disk_floor_bytes=0,
    consume_queue_file_units=40,
    flush_interval_ms=NEVER_MS,
    checkpoint_interval_ms=NEVER_MS,
)
"""Rolls often, flushes and checkpoints only when a test says so."""

P = ParamSpec("P")
T = TypeVar("T")


class InlineExecutor(Executor):
    """Runs each call at once, in the caller's thread: no races, the same run from the same seed."""

    def submit(self, fn: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> Future[T]:
        future: Future[T] = Future()
        settle(future, fn, *args, **kwargs)
        return future


def settle(future: Future[T], fn: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> None:
    """Make a call, and its outcome the future's."""
    try:
        future.set_result(fn(*args, **kwargs))
    except BaseException as error:
        future.set_exception(error)


async def open_store(files: Files, config: StoreConfig = SMALL, clock: FakeClock | None = None) -> Store:
    """A store without threads."""
    return await Store.open(config, files=files, clock=clock or FakeClock(), executor=InlineExecutor())


@asynccontextmanager
async def opened(files: Files, config: StoreConfig = SMALL, clock: FakeClock | None = None) -> AsyncIterator[Store]:
    """A store that is closed in the end."""
    store = await open_store(files, config, clock)
    try:
        yield store
    finally:
        await store.close()


async def abandon() -> None:
    """End all other tasks of this loop, as the end of a process does: nothing is flushed, nothing is closed."""
    others = asyncio.all_tasks() - {asyncio.current_task()}
    for task in others:
        task.cancel()
    if others:
        await asyncio.wait(others)


def age_unsynced(store: Store, intervals: float) -> None:
    """Let what was only written be older by so many flush intervals, and a millisecond: times are floats, and what was
    written within the same tick of the loop's clock would by their rounding be a little too young now and then."""
    writer, by_s = store._writer, intervals * store.config.flush_interval_ms / 1000 + 0.001
    if writer._unsynced_since is not None:
        writer._unsynced_since -= by_s
    if writer._flushing_since is not None:
        writer._flushing_since -= by_s
    writer._work.set()


def append_of(
    queue: QueueKey, values: Sequence[bytes], *, key: bytes | None = None, dated_ms: int = START_MS
) -> Append:
    """One batch with these values."""
    records = [Record(key, value, dated_ms) for value in values]
    return Append(queue=queue, batch=encode(records), record_count=len(records))


async def put(store: Store, queue: QueueKey, *values: bytes, acks: Acks = Acks.FLUSHED) -> Appended:
    """Append one batch and wait for its answer."""
    (answer,) = await store.append([append_of(queue, values)], acks=acks)
    return answer


async def entries_of(store: Store, queue: QueueKey, *, max_bytes: int = 64 * KiB) -> list[Entry]:
    """Every entry of a queue, read step by step as a consumer does."""
    entries: list[Entry] = []
    offset, max_offset = store.bounds(queue)
    while offset < max_offset:
        result = await store.read(queue, offset, max_bytes=max_bytes)
        assert result.entries
        assert result.entries[0].base_offset == offset, "a read begins where the last one ended"
        assert result.next_offset == result.entries[-1].next_offset
        entries += result.entries
        offset = result.next_offset
    return entries


async def values_of(store: Store, queue: QueueKey) -> list[bytes]:
    """The values of a queue in order; checks on the way that offsets are dense and batches agree with entries."""
    values = []
    offset = store.bounds(queue).min_offset
    for entry in await entries_of(store, queue):
        assert entry.queue == queue
        assert entry.base_offset == offset
        records = list(decode(entry.batch))
        assert len(records) == entry.record_count
        for record in records:
            assert record.offset == offset
            assert record.value is not None
            values.append(record.value)
            offset += 1
    assert offset == store.bounds(queue).max_offset
    return values


def with_settings(**settings: object) -> StoreConfig:
    """SMALL with some settings changed."""
    return replace(SMALL, **settings)  # type: ignore[arg-type]
