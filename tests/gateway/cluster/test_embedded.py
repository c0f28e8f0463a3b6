"""Embedded metadata over crashes: what was answered is there, what was not is there whole or not at all.

Covers gateway.cluster.embedded.
"""

from __future__ import annotations

import errno
from random import Random
from unittest.mock import patch

import pytest

from gateway.cluster import embedded
from gateway.cluster.embedded import CLUSTER_EVENTS, EmbeddedMetadata, decode_events, encode_event
from gateway.cluster.memory import Written
from gateway.cluster.metadata import ABSENT, MetadataError, OutcomeUnknown, Unavailable
from store.errors import Corrupt, StoreError
from tests.gateway.cluster.embedded_world import EmbeddedWorld
from tests.seeds import each_seed
from tests.simdisk import Fault
from tests.store.kit import abandon

RUNS = 15
STEPS = 25


async def write(metadata: EmbeddedMetadata, key: str, data: bytes | None) -> int | None:
    found = await metadata.get(key)
    return await metadata.compare_and_set({key: ABSENT if found is None else found.revision}, {key: data})


def test_events_survive_their_encoding() -> None:
    events = [
        Written(7, {"a": b"\x00\xff", "b": None}),
        Written(8, {"c": b""}, of_session=True),
        CLUSTER_EVENTS.barrier,
    ]
    assert decode_events(map(encode_event, events)) == events


@pytest.mark.parametrize("record", [None, b"[]", b"{}", b'{"revision":1,"changes":{"a":"!"},"of_session":false}',
                                    b'{"revision":1,"changes":{},"of_session":false,"later":1}'])  # fmt: skip
def test_an_event_that_is_not_understood_is_refused(record: bytes | None) -> None:
    with pytest.raises(ValueError, match="newer version"):
        decode_events([record])


async def test_a_restart_finds_values_and_revisions_with_and_without_a_snapshot() -> None:
    world = EmbeddedWorld()
    await world.start()
    assert await write(world.metadata, "a", b"1") == 1
    assert await write(world.metadata, "b", b"2") == 2
    assert await write(world.metadata, "b", None) == 3
    before = await world.metadata.list("")
    await world.kill()
    assert await world.metadata.list("") == before
    await world.stop()
    await world.start()
    assert await world.metadata.list("") == before
    assert await write(world.metadata, "b", b"2") == 4, "a delete's revision is not used again"
    await world.stop()


async def test_sessions_end_with_their_process() -> None:
    world = EmbeddedWorld()
    await world.start()
    held = world.metadata.session("nodes/n1", b"1", ttl_ms=1000)
    await held.__aenter__()  # and no exit: the process is killed
    await world.kill()
    assert await world.metadata.get("nodes/n1") is None
    revision = (await world.metadata.list("")).revision
    await world.kill()
    assert (await world.metadata.list("")).revision == revision
    held_again = world.metadata.session("nodes/n1", b"2", ttl_ms=1000)
    await held_again.__aenter__()
    assert await write(world.metadata, "a", b"1") == revision + 2
    await world.kill()
    assert await world.metadata.get("nodes/n1") is None
    assert await world.metadata.get("a") is not None
    await world.stop()
    await world.start()
    assert [*(await world.metadata.list("")).values] == ["a"]
    await world.stop()


async def test_a_full_disk_refuses_a_change_and_forgets_it() -> None:
    world = EmbeddedWorld()
    await world.start()
    await write(world.metadata, "a", b"1")
    world.disk.capacity_bytes = world.disk.used_bytes()
    with pytest.raises(Unavailable) as refused:
        await write(world.metadata, "a", bytes(400_000))
    assert not isinstance(refused.value, OutcomeUnknown)
    world.disk.capacity_bytes = None
    before = await world.metadata.list("")
    await world.kill()
    assert await world.metadata.list("") == before
    await world.stop()


async def test_after_an_io_error_nothing_is_said_until_a_restart() -> None:
    world = EmbeddedWorld()
    await world.start()
    await write(world.metadata, "a", b"1")
    world.disk.inject(Fault("datasync", errno.EIO))
    with pytest.raises(OutcomeUnknown):
        await write(world.metadata, "a", b"2")
    for refused in (world.metadata.get("a"), world.metadata.list(""), write(world.metadata, "b", b"")):
        with pytest.raises(Unavailable):
            await refused
    await world.kill()
    found = await world.metadata.get("a")
    assert found is not None
    assert found.data in (b"1", b"2")
    await world.stop()


async def test_lost_changes_refuse_the_start() -> None:
    world = EmbeddedWorld()
    await world.start()
    await write(world.metadata, "a", b"1")
    with pytest.raises(Corrupt, match="restore"):
        embedded._refuse_lost(1)
    await world.stop()


@each_seed(RUNS)
@patch.object(embedded, "SNAPSHOT_EVENTS", 5)
async def test_what_was_answered_survives_power_cuts(seed: int) -> None:
    """Random changes of two keys at once; killed, or the power cut at any call of the disk, also while it starts."""
    rng = Random(seed)
    world = EmbeddedWorld()
    await world.start()
    said: dict[str, tuple[bytes | None, int]] = {"a": (None, ABSENT), "b": (None, ABSENT)}
    latest = 0

    async def check(unsure: dict[str, bytes | None]) -> None:
        """All is as said; or, if a change was not answered, all of that change is made."""
        nonlocal latest
        listing = await world.metadata.list("")
        assert listing.revision >= latest
        latest = listing.revision
        found = {key: listing.values.get(key) for key in said}
        is_as_said = all(
            said[key] == (None, ABSENT) if value is None else (value.data, value.revision) == said[key]
            for key, value in found.items()
        ) or all(value is None and said[key][0] is None for key, value in found.items())
        if not is_as_said:
            assert unsure, (found, said)
            for key, value in found.items():
                if key in unsure:
                    assert (None if value is None else value.data) == unsure[key]
                else:
                    assert (None if value is None else value.data) == said[key][0]
        for key, value in found.items():
            said[key] = (None, ABSENT) if value is None else (value.data, value.revision)

    for step in range(STEPS):
        if rng.random() < 0.4:
            world.disk.cut_power_at(rng.randrange(1, 30))
        unsure: dict[str, bytes | None] = {}
        try:
            chosen = rng.sample(["a", "b"], rng.randrange(1, 3))
            unsure = {key: None if rng.random() < 0.2 else f"{seed}-{step}".encode() for key in chosen}
            revision = await world.metadata.compare_and_set({key: said[key][1] for key in chosen}, unsure)
            assert revision is not None
            assert revision > latest
            said.update({key: (data, ABSENT if data is None else revision) for key, data in unsure.items()})
            unsure = {}
            if rng.random() < 0.2:
                await world.kill()
        except (MetadataError, StoreError, OSError):
            assert world.disk.is_dark, "nothing but a power cut may fail"
        while world.disk.is_dark:
            await abandon()
            world.disk = world.disk.crash(rng)
            if rng.random() < 0.3:
                world.disk.cut_power_at(rng.randrange(1, 30))
            try:
                await world.start()
            except (StoreError, OSError):
                assert world.disk.is_dark
        world.disk.cut_power_at(1_000_000_000)
        await check(unsure)
    await world.stop()
