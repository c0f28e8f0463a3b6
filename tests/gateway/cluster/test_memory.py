"""Metadata in memory: what the port's common tests do not see.

Covers gateway.cluster.memory.
"""

from __future__ import annotations

import asyncio
from contextlib import aclosing

import pytest

from gateway.cluster import memory
from gateway.cluster.memory import Keyspace, MemoryMetadata, Written
from gateway.cluster.metadata import ABSENT, Listing, Unavailable, Value


def test_the_events_of_a_snapshot_lead_to_the_same_space() -> None:
    keyspace = Keyspace()
    for event in (
        Written(1, {"a": b"1", "b": b"1"}),
        Written(2, {"n": b"2"}, of_session=True),
        Written(3, {"b": None, "c": b"3"}),
        Written(4, {"c": None}),
    ):
        keyspace.apply(event)
    again = Keyspace()
    for event in keyspace.events():
        again.apply(event)
    assert (again.values, again.session_keys, again.revision) == (keyspace.values, {"n"}, 4)


async def test_a_watcher_that_does_not_keep_up_is_given_all_keys_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory, "WATCH_BACKLOG_MAX", 3)
    store = MemoryMetadata()
    async with aclosing(store.watch("")) as watch:
        await anext(watch)
        revision: int | None = ABSENT
        for number in range(4):
            assert revision is not None
            revision = await store.compare_and_set({"a": revision}, {"a": str(number).encode()})
        assert await anext(watch) == Listing(4, {"a": Value(b"3", 4)})
        await store.compare_and_set({"b": ABSENT}, {"b": b""})
        assert (await anext(watch)).values == {"b": Value(b"", 5)}


async def test_a_change_that_cannot_be_written_is_not_made() -> None:
    async def refuse(event: Written) -> None:
        raise Unavailable("no")

    store = MemoryMetadata(write=refuse)
    with pytest.raises(Unavailable):
        await store.compare_and_set({"a": ABSENT}, {"a": b"1"})
    assert await store.get("a") is None


async def test_a_change_is_made_to_its_end_although_its_caller_is_cancelled() -> None:
    gate = asyncio.Event()

    async def write(event: Written) -> None:
        await gate.wait()
        store.apply(event)

    store = MemoryMetadata(write=write)
    changing = asyncio.create_task(store.compare_and_set({"a": ABSENT}, {"a": b"1"}))
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    changing.cancel()
    gate.set()
    with pytest.raises(asyncio.CancelledError):
        await changing
    assert await store.get("a") == Value(b"1", 1)
