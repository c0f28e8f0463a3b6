"""A process that writes to a store until something happens to it, and says line by line what it was promised.

    python -m tests.crash.driver ROOT [--acks flushed|written|mixed] [--batches N] [--pause] ...

Lines on stdout, each written after the fact:

    ready                                  the store is open and its topic is there
    ok QUEUE OFFSET SEQUENCE COUNT ACKS    records SEQUENCE.. of that queue are stored from OFFSET on, at that level
    full                                   an append was refused: no room, nothing stored; it is tried again
    read COUNT                             so many records of all queues were read back and are whole
    unreadable REASON                      a stopped store could not be read back
    stopped REASON                         the store takes no more appends, or would not open
    done                                   all batches are written, the store is closed

Every value names its queue and sequence number and carries a checksum, so that whatever is read later can be held
against what was promised (`Promises`). Sequence numbers grow over all lives of a store: give `--first-sequence`.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
import zlib
from collections.abc import Iterable
from pathlib import Path
from random import Random

from store.config import StoreConfig
from store.errors import DiskFull, StoreError
from store.files import OsFiles
from store.index.opening import IndexKind
from store.light_names import LightNames
from store.limits import KiB
from store.record_batch import Record, decode, encode
from store.store import Store
from store.types import Acks, Append, QueueKey

TOPIC = "crash"
PARTITIONS = 3
FULL_PAUSE_S = 0.05
Values = dict[int, list[bytes]]


def config_of(
    root: Path, *, flush_interval_ms: int = 200, checkpoint_interval_ms: int = 50, index: IndexKind = "file"
) -> StoreConfig:
    """Small files, so that a short run rolls, makes directories entries and moves its checkpoint many times."""
    return StoreConfig(
        root=root,
        commit_log_file_bytes=512 * KiB,
        extent_bytes=128 * KiB,
        disk_floor_bytes=0,
        flush_interval_ms=flush_interval_ms,
        checkpoint_interval_ms=checkpoint_interval_ms,
        consume_queue_file_units=200,
        tail_bytes_max=64 * KiB,
        index=index,
    )


def value_of(queue: int, sequence: int, size: int) -> bytes:
    """A value that says where it belongs; nothing else has the same bytes."""
    head = b"%d:%d:" % (queue, sequence)
    body = head + Random(sequence).randbytes(size)
    return body + b":%08x" % zlib.crc32(body)


def sequence_of(value: bytes, queue: int) -> int:
    """The sequence number in a value. AssertionError when the value is not whole or belongs elsewhere."""
    body, colon, checksum = value[:-9], value[-9:-8], value[-8:]
    assert colon == b":", f"not one of our values: {value[:40]!r}"
    assert int(checksum, 16) == zlib.crc32(body), f"a corrupt body was served: {value[:40]!r}"
    said_queue, sequence, _ = body.split(b":", 2)
    assert int(said_queue) == queue, f"a record of queue {int(said_queue)} was served from queue {queue}"
    return int(sequence)


class Promises:
    """What drivers were promised, and what was seen after their ends; `check` raises AssertionError on a broken one."""

    def __init__(self) -> None:
        self.next_sequence = 0
        self.acked_count = 0
        self._flushed: dict[tuple[int, int], int] = {}  # (queue, offset) -> sequence
        self._shown: dict[int, list[int]] = {queue: [] for queue in range(PARTITIONS)}

    def note(self, line: str) -> None:
        """Take in one line of a driver."""
        word, *fields = line.split(" ")
        if word != "ok":
            return
        queue, offset, sequence, count = map(int, fields[:4])
        self.next_sequence = max(self.next_sequence, sequence + count)
        self.acked_count += count
        if fields[4] == Acks.FLUSHED.name:
            for number in range(count):
                known = self._flushed.setdefault((queue, offset + number), sequence + number)
                assert known == sequence + number, f"offset {offset + number} of queue {queue} was given out twice"

    def check(self, values: Values) -> None:
        """Hold what a recovered store shows against all promises: kept, in order, nothing changed, nothing twice."""
        for queue, found in values.items():
            sequences = [sequence_of(value, queue) for value in found]
            assert len(set(sequences)) == len(sequences), "a record was served at two offsets"
            before = self._shown[queue]
            assert sequences[: len(before)] == before, f"what queue {queue} had shown after a recovery has changed"
            self._shown[queue] = sequences
            # What nobody knew the end of may be there: its number must not be used again.
            self.next_sequence = max([self.next_sequence, *(number + 1 for number in sequences)])
        for (queue, offset), sequence in self._flushed.items():
            sequences = self._shown[queue]
            assert offset < len(sequences), f"LOST: offset {offset} of queue {queue}, which ends at {len(sequences)}"
            assert sequences[offset] == sequence, f"offset {offset} of queue {queue} holds another record"


async def read_values(store: Store) -> Values:
    """Every value of every queue, by reads as a consumer does them."""
    topics = [topic for topic in store.topics() if topic.name == TOPIC]
    if not topics:
        return {}
    values: Values = {}
    for queue in range(PARTITIONS):
        found = values[queue] = []
        key = QueueKey(topics[0].topic_id, queue)
        offset = store.bounds(key).min_offset
        while offset < store.bounds(key).max_offset:
            result = await store.read(key, offset, max_bytes=256 * KiB)
            for entry in result.entries:
                for record in decode(entry.batch):
                    assert record.offset == offset, "offsets have a gap"
                    assert record.value is not None
                    found.append(record.value)
                    offset += 1
    return values


def recovered_values(root: Path, index: IndexKind = "file") -> Values:
    """Open the store in this process, read everything, close it."""

    async def read() -> Values:
        store = await Store.open(config_of(root, index=index))
        try:
            return await read_values(store)
        finally:
            await store.close()

    return asyncio.run(read())


def say(*words: object) -> None:
    """One line, at once: whoever reads it may cut the power a moment later."""
    sys.stdout.write(" ".join(map(str, words)) + "\n")
    sys.stdout.flush()


class ThreadSynced(OsFiles):
    """The real file system, on a system that syncs nothing without a thread."""

    def background_sync(self) -> None:
        return None


async def drive(root: Path, options: argparse.Namespace) -> None:
    """Open, append until told otherwise, close."""
    config = config_of(root, flush_interval_ms=options.flush_interval_ms, index=options.index)
    try:
        store = await Store.open(config, files=ThreadSynced() if options.thread_syncs else None)
        topic, _ = await store.create_topic(TOPIC, PARTITIONS)
    except (StoreError, OSError) as error:
        say("stopped", repr(error))
        return
    say("ready")
    rng = Random(options.seed)
    sequences = iter(range(options.first_sequence, 1 << 62))
    levels = {"flushed": [Acks.FLUSHED], "written": [Acks.WRITTEN], "mixed": list(Acks)}[options.acks]
    try:
        for number in range(options.batches):
            await asyncio.gather(
                *(
                    append(store, topic.topic_id, queue, rng, sequences, rng.choice(levels))
                    for queue in range(PARTITIONS)
                )
            )
            if options.read_every and number % options.read_every == 0:
                await read_back(store)
        await store.close()
        say("done")
    except (StoreError, OSError) as error:
        try:
            await read_back(store)
        except (StoreError, OSError) as unreadable:
            say("unreadable", repr(unreadable))
        say("stopped", repr(error))


async def append(store: Store, topic_id: int, queue: int, rng: Random, sequences: Iterable[int], acks: Acks) -> None:
    """Append one batch; while the disk is full, say so, prove that reads work, and try again."""
    numbers = [number for number, _ in zip(sequences, range(rng.choice((1, 1, 2, 8))), strict=False)]
    records = [Record(None, value_of(queue, number, rng.choice((10, 300, 6000))), 0) for number in numbers]
    names = [[b"all", b"light/%d" % (number % 5)] if number % 3 else [] for number in numbers]
    light = LightNames.of(names) if store.config.index == "rocksdb" else None  # `mq verify` compares their rows
    while True:
        try:
            [appended] = await store.append(
                [
                    Append(
                        queue=QueueKey(topic_id, queue), batch=encode(records), record_count=len(records), light=light
                    )
                ],
                acks=acks,
            )
        except DiskFull:
            say("full")
            if queue == 0:
                await read_back(store)
            await asyncio.sleep(FULL_PAUSE_S)
            continue
        say("ok", queue, appended.base_offset, numbers[0], len(numbers), appended.acks.name)
        return


async def read_back(store: Store) -> None:
    """Read everything; a record that is not whole ends the process."""
    values = await read_values(store)
    for queue, found in values.items():
        for value in found:
            sequence_of(value, queue)
    say("read", sum(map(len, values.values())))


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("root", type=Path)
    parser.add_argument("--acks", choices=("flushed", "written", "mixed"), default="flushed")
    parser.add_argument("--batches", type=int, default=1 << 40)
    parser.add_argument("--first-sequence", type=int, default=0)
    parser.add_argument("--flush-interval-ms", type=int, default=200)
    parser.add_argument("--index", choices=("file", "rocksdb"), default="file")
    parser.add_argument("--read-every", type=int, default=0)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--thread-syncs", action="store_true", help="sync by system calls that strace sees")
    options = parser.parse_args()
    asyncio.run(drive(options.root, options))


if __name__ == "__main__":
    main()
