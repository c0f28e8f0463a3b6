"""One store with many light queues, in a process of its own: `python -m loadtest.bench.queues_store DIR COMMAND ...`.

    fill QUEUES ROWS FAN_OUT   append until there are so many rows, spread over the queues; then a checkpoint
    serve QUEUES               open, read random queues, and go on appending until killed

Each says what it measured as one JSON line. The parent kills `serve`, and opens it again: that is the recovery.
"""

from __future__ import annotations

import asyncio
import os
import random
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import orjson

from gateway.main.garbage import calm_collector
from loadtest.stats import percentile
from store import Store
from store.config import StoreConfig
from store.light_names import LightNames
from store.record_batch import Record, encode
from store.types import Acks, Append, QueueKey

APPENDS_AT_ONCE = 8
ROWS_AN_APPEND = 2_048
VALUE = b'{"text":"hello, how are you today?","from":"user/1234567"}'
READS = 2_000
READ_RECORDS = 10
TIMESTAMP_MS = 1_767_225_600_000
LATE_APPENDS = 10


def names_of(queue_count: int, fan_out: int, seed: int) -> Iterator[list[bytes]]:
    """The light queues of each record, for ever: first each queue once, then any."""
    for first in range(0, queue_count - fan_out + 1, fan_out):
        yield [b"user/%d" % number for number in range(first, first + fan_out)]
    for some in any_of(queue_count, fan_out, seed):
        yield [b"user/%d" % number for number in some]


def any_of(queue_count: int, fan_out: int, seed: int) -> Iterator[list[int]]:
    """So many of the queues, by number, for ever: far apart, and none twice."""
    choose = random.Random(seed).randrange
    stride = queue_count // fan_out
    while True:
        first = choose(queue_count)
        yield [(first + step * stride) % queue_count for step in range(fan_out)]


async def opened(directory: Path) -> tuple[Store, QueueKey]:
    """The store, and the queue of its one topic."""
    store = await Store.open(StoreConfig(root=directory, index="rocksdb"))
    topic, _ = await store.create_topic("bench", 1)
    return store, QueueKey(topic.topic_id, 0)


async def append_rows(store: Store, queue: QueueKey, names: Iterator[list[bytes]], row_count: int, fan_out: int) -> int:
    """Append durably until there are so many rows more; how many there are."""
    record_count = max(ROWS_AN_APPEND // fan_out, 1)
    left = -(-row_count // (record_count * fan_out))

    async def some() -> None:
        nonlocal left
        while left > 0:
            left -= 1
            own = [next(names) for _ in range(record_count)]
            batch = encode([Record(None, VALUE, TIMESTAMP_MS)] * record_count)
            append = Append(
                queue=queue, batch=batch, record_count=record_count, json_values=True, light=LightNames.of(own)
            )
            await store.append([append], acks=Acks.FLUSHED)

    count = left * record_count * fan_out
    await asyncio.gather(*(some() for _ in range(APPENDS_AT_ONCE)))
    return count


async def read_randomly(store: Store, queue: QueueKey, queue_count: int) -> list[float]:
    """How long each read of the last records of a random queue takes, in ms."""
    choose, took_ms = random.Random(7), []
    for _ in range(READS):
        name = b"user/%d" % choose.randrange(queue_count)
        began_s = time.perf_counter()
        end = store.light_bounds(queue, name).max_offset
        await store.read_light(queue, name, max(end - READ_RECORDS, 0), max_records=READ_RECORDS, max_bytes=1 << 20)
        took_ms.append((time.perf_counter() - began_s) * 1000)
    return took_ms


def rss_bytes() -> int:
    """Memory of this process."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def say(**figures: object) -> None:
    """One line for the parent."""
    sys.stdout.buffer.write(orjson.dumps(figures) + b"\n")
    sys.stdout.flush()


async def fill(directory: Path, queue_count: int, row_count: int, fan_out: int) -> None:
    """See above. `rows_per_s` is until all is on disk, the index too; `answered_per_s` until the last send was."""
    store, queue = await opened(directory)
    began_s, cpu_before_s = time.perf_counter(), time.process_time()
    count = await append_rows(store, queue, names_of(queue_count, fan_out, 1), row_count, fan_out)
    answered_s = time.perf_counter() - began_s
    peak_bytes = rss_bytes()
    await store.close()
    took_s = time.perf_counter() - began_s
    say(
        rows_per_s=count / took_s, answered_per_s=count / answered_s,
        cpu_us=(time.process_time() - cpu_before_s) / count * 1e6, rss_bytes=peak_bytes,
    )  # fmt: skip


async def serve(directory: Path, queue_count: int) -> None:
    """See above."""
    began_s = time.perf_counter()
    store, queue = await opened(directory)
    open_s = time.perf_counter() - began_s
    cold_ms = await read_randomly(store, queue, queue_count)
    warm_ms = await read_randomly(store, queue, queue_count)
    names = names_of(queue_count, 8, 2)
    for _ in range(LATE_APPENDS):
        await append_rows(store, queue, names, ROWS_AN_APPEND, 8)
    say(
        open_s=open_s, rss_bytes=rss_bytes(), cold_p99_ms=percentile(cold_ms, 99), p99_ms=percentile(warm_ms, 99),
        p50_ms=percentile(warm_ms, 50),
    )  # fmt: skip
    while True:
        await append_rows(store, queue, names, ROWS_AN_APPEND, 8)


def main() -> None:
    """Run a command until it ends, or is killed; the collector as in a server."""
    calm_collector()
    directory, command, *numbers = sys.argv[1:]
    if command == "fill":
        queue_count, row_count, fan_out = map(int, numbers)
        asyncio.run(fill(Path(directory), queue_count, row_count, fan_out))
    else:
        asyncio.run(serve(Path(directory), int(numbers[0])))


if __name__ == "__main__":
    main()
