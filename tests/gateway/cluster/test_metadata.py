"""What every store of metadata must do: the same tests for memory, a data directory, a real etcd (with TLS, a
password, and an endpoint at which nobody listens), a Kafka in memory and a real one.

Covers gateway.cluster.metadata, .memory, .embedded, .etcd and .kafka_metadata.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, aclosing

import pytest

from gateway.brokers.kafka.links import KafkaAddress, Links
from gateway.cluster import etcd as etcd_module
from gateway.cluster import kafka_metadata, metadata
from gateway.cluster.kafka_metadata import KafkaMetadata
from gateway.cluster.memory import MemoryMetadata
from gateway.cluster.metadata import ABSENT, Changes, Listing, Metadata, SessionTaken, TooLarge, Value
from tests.gateway.cluster.embedded_world import EmbeddedWorld
from tests.gateway.cluster.etcd_server import EtcdServer, etcd_metadata, free_port, ready
from tests.gateway.cluster.metadata_world import LogKafka, a_process
from tests.waiting import PATIENCE_S

STORES = ("memory", "embedded", "etcd", "kafka", pytest.param("real_kafka", marks=pytest.mark.matrix))


@pytest.fixture(params=STORES)
async def store(request: pytest.FixtureRequest) -> AsyncIterator[Metadata]:
    async with AsyncExitStack() as stack:
        if request.param == "memory":
            yield MemoryMetadata()
        elif request.param == "embedded":
            world = EmbeddedWorld()
            await world.start()
            yield world.metadata
            await world.stop()
        elif request.param == "kafka":
            yield await stack.enter_async_context(a_process(LogKafka()))
        elif request.param == "real_kafka":
            servers = request.getfixturevalue("real_kafka")
            links = Links(KafkaAddress(servers=(servers.endpoint,), replication=1, min_insync=1))
            own = await stack.enter_async_context(KafkaMetadata(links, f"test-{free_port()}.__meta"))
            await ready(own)  # it has made its topic
            yield own
        else:
            server: EtcdServer = request.getfixturevalue("etcd")
            yield await stack.enter_async_context(etcd_metadata(server))


async def put(store: Metadata, key: str, data: bytes) -> int:
    """Write a key, whatever it was."""
    found = await store.get(key)
    revision = await store.compare_and_set({key: ABSENT if found is None else found.revision}, {key: data})
    assert revision is not None
    return revision


async def test_a_key_is_written_read_and_deleted_at_rising_revisions(store: Metadata) -> None:
    assert await store.get("a") is None
    first = await store.compare_and_set({"a": ABSENT}, {"a": b"\x00one"})
    assert first is not None
    assert await store.get("a") == Value(b"\x00one", first)
    second = await store.compare_and_set({"a": first}, {"a": b""})
    assert second is not None
    assert second > first
    assert await store.get("a") == Value(b"", second)
    assert await store.compare_and_set({"a": second}, {"a": None}) is not None
    assert await store.get("a") is None
    again = await store.compare_and_set({"a": ABSENT}, {"a": b"two"})
    assert again is not None
    assert again > second + 1, "revisions are never used again (R3)"


async def test_a_change_needs_every_expectation_and_is_made_whole_or_not_at_all(store: Metadata) -> None:
    a, b = await put(store, "a", b"1"), await put(store, "b", b"1")
    for expected in ({"a": a, "b": b + 1}, {"a": ABSENT, "b": b}, {"a": a, "b": b, "c": b}):
        assert await store.compare_and_set(expected, {"a": b"2", "b": None}) is None
    assert (await store.list("")).values == {"a": Value(b"1", a), "b": Value(b"1", b)}
    both = await store.compare_and_set({"a": a, "b": b, "c": ABSENT}, {"a": b"2", "b": None, "c": b"3"})
    assert both is not None
    assert (await store.list("")).values == {"a": Value(b"2", both), "c": Value(b"3", both)}
    assert await store.compare_and_set({"a": both, "b": ABSENT}, {}) is not None, "expectations alone"
    with pytest.raises(ValueError, match="without an expectation"):
        await store.compare_and_set({"a": both}, {"b": b"blind"})


async def test_a_listing_has_the_keys_of_its_prefix_and_no_others(store: Metadata) -> None:
    for key in ("t/a", "t/b/c", "t", "t0", "s/z", "t/\u00fc", "t/\U0010ffff"):
        await put(store, key, key.encode())
    listing = await store.list("t/")
    assert {key: value.data for key, value in listing.values.items()} == {
        key: key.encode() for key in ("t/a", "t/b/c", "t/\u00fc", "t/\U0010ffff")
    }
    assert listing.revision >= max(value.revision for value in listing.values.values())
    assert len((await store.list("")).values) == 7
    assert not (await store.list("none/")).values


async def test_a_watcher_is_given_all_keys_and_then_every_change_in_order(store: Metadata) -> None:
    first = await put(store, "w/a", b"1")
    async with asyncio.timeout(PATIENCE_S), aclosing(store.watch("w/")) as watch:
        listing = await anext(watch)
        assert isinstance(listing, Listing)
        assert listing.values == {"w/a": Value(b"1", first)}
        await put(store, "x/a", b"not watched")
        revision: int | None = first
        for number in range(50):
            assert revision is not None
            other = ABSENT if number == 0 else revision
            changes = {"w/a": str(number).encode(), "w/b": b"b"}
            revision = await store.compare_and_set({"w/a": revision, "w/b": other}, changes)
        for number in range(50):
            seen = await anext(watch)
            assert isinstance(seen, Changes)
            assert seen.values == {"w/a": Value(str(number).encode(), seen.revision), "w/b": Value(b"b", seen.revision)}
        assert seen.revision == revision
        assert revision is not None
        gone = await store.compare_and_set({"w/a": revision}, {"w/a": None})
        assert await anext(watch) == Changes(gone, {"w/a": None})


async def test_of_changes_that_race_each_is_made_on_what_it_was_decided_on(store: Metadata) -> None:
    async def count() -> None:
        for _ in range(5):
            while True:
                found = await store.get("n")
                revision, number = (ABSENT, 0) if found is None else (found.revision, int(found.data))
                if await store.compare_and_set({"n": revision}, {"n": str(number + 1).encode()}) is not None:
                    break

    async with asyncio.timeout(PATIENCE_S):
        await asyncio.gather(*[count() for _ in range(6)])
    found = await store.get("n")
    assert found is not None
    assert found.data == b"30"


async def test_a_session_holds_its_key_while_it_lasts(store: Metadata, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(etcd_module, "CALL_TIMEOUT_S", 0.5)  # how long it waits for an earlier one, beside its ttl
    monkeypatch.setattr(kafka_metadata, "SESSION_WAIT_S", 0.5)
    async with asyncio.timeout(PATIENCE_S), aclosing(store.watch("nodes/")) as watch:
        await anext(watch)
        async with store.session("nodes/n1", b"here", ttl_ms=1000) as session:
            seen = await anext(watch)
            assert seen.values["nodes/n1"] == Value(b"here", seen.revision)
            assert session.is_held
            assert session.loss_count == 0
            with pytest.raises(SessionTaken):
                async with store.session("nodes/n1", b"me too", ttl_ms=1000):
                    pass
            assert session.is_held, "it outlives its time to live"
            assert await store.get("nodes/n1") == Value(b"here", seen.revision)
        assert (await anext(watch)).values == {"nodes/n1": None}
        async with store.session("nodes/n1", b"back", ttl_ms=1000):
            assert (await anext(watch)).values["nodes/n1"] is not None


async def test_limits_are_refused_at_one_beyond_and_change_nothing(store: Metadata) -> None:
    keys = [f"k{number}" for number in range(metadata.CAS_KEYS_MAX + 1)]
    longest = "k" * metadata.KEY_BYTES_MAX
    room = metadata.CAS_BYTES_MAX - 1
    for expected, changes in (
        (dict.fromkeys(keys, ABSENT), dict.fromkeys(keys, b"")),
        ({longest + "k": ABSENT}, {longest + "k": b""}),
        ({"b": ABSENT}, {"b": bytes(room + 1)}),
    ):
        with pytest.raises(TooLarge):
            await store.compare_and_set(expected, changes)
    assert not (await store.list("")).values
    keys.pop()
    assert await store.compare_and_set(dict.fromkeys(keys, ABSENT), dict.fromkeys(keys, b"")) is not None
    assert await store.compare_and_set({longest: ABSENT}, {longest: b""}) is not None
    assert await store.compare_and_set({"b": ABSENT}, {"b": bytes(room)}) is not None
    assert len((await store.list("")).values) == metadata.CAS_KEYS_MAX + 2
