"""One flipped bit, anywhere in any file of a store: found or healed, never served, never silently a loss. Contract C8.

CI flips some fifteen hundred bits; MQ_TORTURE_FLIPS=<count> flips more.
"""

from __future__ import annotations

import asyncio
import logging
import os
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from random import Random

import pytest

from store.errors import Corrupt, FormatTooNew, IndexDamaged, StoreError, UnknownQueue
from store.log.entry import durable_position_of
from store.types import QueueKey
from tests.simdisk import SimDisk
from tests.store.kit import ROOT, abandon, entries_of, open_store, put, values_of

FLIPS = int(os.environ.get("MQ_TORTURE_FLIPS", "1500"))
Found = dict[QueueKey, list[bytes]]
REFUSED = (Corrupt, IndexDamaged, FormatTooNew)


@pytest.fixture(autouse=True)
def quiet_log() -> None:
    logging.getLogger("store").setLevel(logging.CRITICAL)


def kind_of(path: str) -> str:
    """What kind of file this is: its directory below the root, or its name without the number."""
    return path.split("/")[2].partition(".")[0]


async def a_store(*, is_closed: bool) -> tuple[SimDisk, Found, int, int]:
    """A disk with a store of three log files; what is in it, where the log ends, and up to where its own entries
    attest that it was durable."""
    disk, rng = SimDisk(), Random(1)
    store = await open_store(disk)
    topic, _ = await store.create_topic("t", 3)
    queues = [QueueKey(topic.topic_id, number) for number in range(3)]
    for number in range(120):
        size = rng.randrange(10, 2400)
        await put(store, rng.choice(queues), *(b"%d:%d;" % (number, n) + rng.randbytes(size) for n in (0, 1)))
        if number % 30 == 20:
            await store._save_checkpoint()
    found = {queue: await values_of(store, queue) for queue in queues}
    end = store.end_position
    attested = 0
    for queue in queues:
        last = (await entries_of(store, queue))[-1]
        file = ROOT / "commitlog" / f"{last.position - last.position % (64 * 1024):020}"
        view = memoryview(disk.contents(file))
        attested = max(attested, durable_position_of(view, last.position % (64 * 1024)))
    if is_closed:
        await store.close()
        attested = end
    await abandon()
    disk.kill()
    for name in disk.paths():
        disk.open(Path(name)).datasync()
    return disk.crash(rng), found, end, attested


async def outcome(disk: SimDisk, expected: Found) -> str:
    """Open the damaged store and read everything: `healed`, `refused ...` or `lost`. A wrong record fails the test."""
    try:
        store = await open_store(disk)
    except REFUSED as error:
        _says_where(error)
        return "refused at start"
    results = {"healed"}
    for queue, values in expected.items():
        try:
            bounds = store.bounds(queue)
            got = await values_of(store, queue)
        except REFUSED as error:
            _says_where(error)
            results.add("refused at read")
            continue
        except UnknownQueue:
            results.add("lost")
            continue
        assert got == values[bounds.min_offset : bounds.max_offset], f"wrong records were served from {queue}"
        if len(got) < len(values):
            results.add("lost")
    await abandon()
    return max(results, key=["healed", "refused at read", "lost"].index)


def _says_where(error: StoreError) -> None:
    assert str(error)
    if isinstance(error, Corrupt):
        assert error.path.startswith(str(ROOT)), error
        assert error.position >= 0, error


def bits(disk: SimDisk, count: int, rng: Random) -> Iterator[tuple[str, int, int]]:
    """Random bits, spread evenly over the files, small files and file heads not forgotten."""
    paths = [path for path in disk.paths() if len(disk.contents(path))]
    for number in range(count):
        path = paths[number % len(paths)]
        size = len(disk.contents(path))
        yield path, rng.randrange(min(size, 200) if rng.random() < 0.1 else size), rng.randrange(8)


@pytest.mark.parametrize("is_closed", [True, False])
async def test_no_flipped_bit_is_served_or_loses_a_record_in_silence(is_closed: bool) -> None:
    disk, expected, end, attested = await a_store(is_closed=is_closed)
    outcomes = Counter[tuple[str, str]]()
    for path, at, bit in bits(disk, FLIPS // 2, Random(2)):
        damaged = disk.crash(Random(0))
        damaged.flip(path, at, bit)
        result = await outcome(damaged, expected)
        kind = kind_of(path)
        outcomes[kind, result] += 1
        where = f"{path}, byte {at}, bit {bit}: {result}"
        if kind == "commitlog":
            position = int(path.rpartition("/")[2]) + at
            if position < attested and result != "healed":
                assert result.startswith("refused"), where
            elif position >= end:
                assert result == "healed", where
        else:
            assert result != "lost", where
    print(*sorted(outcomes.items()), sep="\n")
    assert outcomes["commitlog", "refused at start"] + outcomes["commitlog", "refused at read"] > FLIPS // 20


@pytest.mark.parametrize("victim", ["index", "consumequeue"])
async def test_derived_files_may_be_deleted_or_zeroed_and_are_built_again(victim: str) -> None:
    disk, expected, _, _ = await a_store(is_closed=True)
    victims = [path for path in disk.paths() if kind_of(path) == victim]
    assert victims
    for path in victims:
        for change in ("delete", "zero", "cut"):
            damaged = disk.crash(Random(0))
            size = len(damaged.contents(path))
            if change == "delete":
                damaged.remove(Path(path))
            elif change == "zero":
                damaged.overwrite(path, 0, bytes(size))
            else:
                damaged.open(Path(path)).truncate(size // 2)
            result = await outcome(damaged, expected)
            allowed = {"healed", "refused at read"} if change == "zero" else {"healed"}
            assert result in allowed, f"{path}, {change}: {result}"


async def test_a_missing_or_swapped_log_file_is_refused() -> None:
    disk, expected, _, _ = await a_store(is_closed=True)
    files = [path for path in disk.paths() if "commitlog" in path]
    assert len(files) >= 3
    for path in files:
        damaged = disk.crash(Random(0))
        damaged.remove(Path(path))
        assert (await outcome(damaged, expected)).startswith("refused"), path
    swapped = disk.crash(Random(0))
    swapped.overwrite(files[0], 0, disk.contents(files[1]))
    swapped.overwrite(files[1], 0, disk.contents(files[0]))
    assert (await outcome(swapped, expected)).startswith("refused")


async def test_an_old_piece_of_the_log_put_back_is_refused() -> None:
    """A sector that a drive wrote to the wrong place: right CRC, wrong position."""
    disk, expected, end, _ = await a_store(is_closed=True)
    first = next(path for path in disk.paths() if "commitlog" in path)
    content = disk.contents(first)
    damaged = disk.crash(Random(0))
    middle = len(content) // 2 // 512 * 512
    damaged.overwrite(first, middle, content[: 16 * 512])
    assert end > len(content)
    assert (await outcome(damaged, expected)).startswith("refused")


def test_the_flips_reach_every_kind_of_file() -> None:
    disk = asyncio.run(a_store(is_closed=True))[0]
    kinds = {kind_of(path) for path, _, _ in bits(disk, FLIPS // 2, Random(2))}
    assert {"commitlog", "consumequeue", "index", "meta", "format"} <= kinds
