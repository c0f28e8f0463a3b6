"""C9: on a full disk sends are refused, while acks, commits and deletions go on; and everything resumes by itself."""

from __future__ import annotations

import pytest

from gateway.groups.machines.copies import dead_letter_topic
from gateway.groups.protocol import OffsetCommit
from store.errors import DiskFull
from store.limits import OWN_RESERVE_BYTES_MAX, KiB
from tests.gateway.groups.coordinator.test_settling import G, committed, receipts, receive
from tests.gateway.groups.coordinator.world import World
from tests.simdisk import SimDisk
from tests.store.kit import with_settings

FLOOR_BYTES = 100 * KiB


async def filled() -> tuple[World, int]:
    """A server whose disk has come to its floor, and how many records it took."""
    made = World(SimDisk(capacity_bytes=700 * KiB), with_settings(disk_floor_bytes=FLOOR_BYTES))
    await made.start()
    await made.topic()
    count = 0
    while True:
        try:
            await made.send(b"x" * 1000)
        except DiskFull:
            return made, count
        count += 1


async def put_documents(made: World, count: int, size: int) -> None:
    for number in range(count):
        await made.groups.put_document(G, f"big{number}", b"d" * size)


async def test_acks_commits_and_deletions_go_on_when_sends_are_refused() -> None:
    made, count = await filled()
    first = await receive(made, max_messages=1000)
    assert len(first) == count
    for start in range(0, count, 20):  # many small ones: beyond what was prepared, into the floor
        results = await made.groups.ack(G, receipts(first[start : start + 20]))
        assert all(result.ok for result in results)
    assert await committed(made) == count
    for offset in range(50):
        await made.groups.commit("other", [OffsetCommit("orders", 1, 0), OffsetCommit("orders", 0, offset)])
        with pytest.raises(DiskFull):
            await made.send(b"y" * 1000)
    await made.groups.delete("other")
    await made.broker.delete_topic("orders")
    await made.stop()
    await made.start()
    assert "other" not in made.groups.table
    await made.stop()


async def test_what_needs_a_copy_waits_and_nothing_is_lost() -> None:
    made, _ = await filled()
    first, second, third = await receive(made, max_messages=3)
    assert (await made.groups.nack(G, [first.receipt], delay_ms=5000))[0].ok  # in place: the timer takes nothing
    assert (await made.groups.reject(G, [second.receipt], "no"))[0].ok
    assert (await made.groups.ack(G, [third.receipt]))[0].ok
    assert await committed(made) == 0
    assert made.disk.capacity_bytes is not None
    made.disk.capacity_bytes += 500 * KiB
    await made.tick(5000)
    assert [value for value, _ in await made.records(dead_letter_topic(G))] == [second.value]
    assert (await receive(made, max_messages=1))[0].offset == 0
    await made.send(b"again")
    await made.stop()


async def test_when_the_reserve_is_used_up_too_nothing_changes_and_it_is_said() -> None:
    made, _ = await filled()
    (message,) = await receive(made, max_messages=1)
    made.disk.capacity_bytes = made.disk.used_bytes()
    with pytest.raises(DiskFull):
        await put_documents(made, 100, 10 * KiB)
    leases = next(leases for _, leases in made.groups.table.get(G).open_leases())
    before = leases.snapshot()
    while True:  # small ones fit a little longer
        try:
            await made.groups.extend(G, [message.receipt], 30_000)
        except DiskFull:
            break
        before = leases.snapshot()
    assert leases.snapshot() == before
    await made.kill()
    made.disk.capacity_bytes += 500 * KiB
    await made.start()
    assert (await made.groups.ack(G, [message.receipt]))[0].ok
    await made.stop()


def test_the_reserve_is_a_part_of_what_is_prepared() -> None:
    assert with_settings(extent_bytes=64 * 1024 * KiB).own_reserve_bytes == OWN_RESERVE_BYTES_MAX
    assert with_settings(extent_bytes=16 * KiB).own_reserve_bytes == 4 * KiB
