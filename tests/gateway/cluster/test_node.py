"""gateway.cluster.node over metadata in memory and a simulated disk: what is deleted, and what never is."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from gateway.api.cluster import GROUPS
from gateway.brokers.local import LocalBroker
from gateway.cluster.members import CLUSTER, OWNERS, join
from gateway.cluster.memory import MemoryMetadata
from gateway.cluster.metadata import Listing, OtherMetadata, OutcomeUnknown, Value
from gateway.cluster.node import ClusterNode
from gateway.cluster.peer_auth import Secret
from gateway.cluster.topics import COUNTERS, Counters, encode_counters
from gateway.routing.table import RouteTable
from store import Store
from store.topics import FIRST_USER_TOPIC_ID
from tests.clock import FakeClock
from tests.gateway.cluster.test_members import disk, own
from tests.gateway.groups.coordinator.world import PlainTimer
from tests.store.kit import open_store

ROOT = Path("/data")


@asynccontextmanager
async def joined(metadata: MemoryMetadata) -> AsyncIterator[tuple[ClusterNode, Store]]:
    """The only node of a cluster, and its store."""
    files, clock = disk(), FakeClock()
    store = await open_store(files, clock=clock)
    broker = LocalBroker(store, PlainTimer(store, clock), name="n1", on_topic=lambda _: None, on_deleted=lambda _: None)
    node = ClusterNode(
        "n1", metadata, broker, Secret(b"s" * 16), store, RouteTable(), clock, on_topics=lambda: None
    )  # fmt: skip
    member = await join(metadata, ROOT, files, own("n1"), [], next_topic_id=FIRST_USER_TOPIC_ID)
    node.cluster_id = member.cluster
    await node.begin()
    try:
        yield node, store
    finally:
        await node.close()
        await store.close()


def names(store: Store) -> list[str]:
    return [topic.name for topic in store.topics() if not topic.is_system]


async def test_a_topic_is_deleted_when_the_metadata_says_so_and_only_then() -> None:
    metadata = MemoryMetadata()
    async with joined(metadata) as (node, store):
        await node.create_topic("orders", 1)
        await node.create_topic("bills", 1)
        await node._see(listing := await metadata.list(""))
        later = listing.revision + 100
        cluster = listing.values[CLUSTER]
        young = Value(encode_counters(Counters(FIRST_USER_TOPIC_ID + 1, 1)), later)
        for other in (
            Listing(later, {}),  # lost
            Listing(later, {**listing.values, CLUSTER: Value(b"another", later)}),
            Listing(listing.revision - 1, {CLUSTER: cluster, COUNTERS: listing.values[COUNTERS]}),  # from a backup
            Listing(later, {CLUSTER: cluster, COUNTERS: young}),  # ... and much has happened since
        ):
            with pytest.raises(OtherMetadata):
                await node._see(other)
            assert names(store) == ["orders", "bills"]
        await metadata.compare_and_set(
            {"topics/orders": listing.values["topics/orders"].revision}, {"topics/orders": None}
        )
        await node._see(await metadata.list(""))
        assert names(store) == ["bills"]


class _Lossy(MemoryMetadata):
    """The answers to some changes are lost, whether they were made or not."""

    def __init__(self) -> None:
        super().__init__()
        self.losses: list[bool] = []

    async def compare_and_set(self, expected: Mapping[str, int], changes: Mapping[str, bytes | None]) -> int | None:
        if not self.losses:
            return await super().compare_and_set(expected, changes)
        if self.losses.pop(0):
            await super().compare_and_set(expected, changes)
        raise OutcomeUnknown("lost")


@pytest.mark.parametrize("losses", [[], [True], [False, True], [False, False]])
async def test_a_name_is_let_go_of_for_certain_and_what_the_watch_says_late_changes_nothing(
    losses: list[bool], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gateway.cluster.node.RETRY_S", 0)
    metadata = _Lossy()
    async with joined(metadata) as (node, _):
        assert await node.claim(GROUPS, "g") == "n1"
        claimed = await metadata.list("")
        _, revision = await node.owner_now(GROUPS, "g")
        metadata.losses = list(losses)
        await node.disown(GROUPS, "g", revision)
        assert node.owner(GROUPS, "g") is None
        gone = await metadata.list("")
        assert not any(key.startswith(OWNERS) for key in gone.values)
        await node._see(claimed)
        assert node.owner(GROUPS, "g") is None, "the watch is behind"
        assert await node.claim(GROUPS, "g") == "n1"
        await node._see(gone)
        assert node.owner(GROUPS, "g") == "n1", "likewise"
        await node._see(now := await metadata.list(""))
        assert node.owner(GROUPS, "g") == "n1"
        key = next(key for key in now.values if key.startswith(OWNERS))
        await metadata.compare_and_set({key: now.values[key].revision}, {key: b'{"node":"n2"}'})
        await node.disown(GROUPS, "g", now.values[key].revision)
        assert node.owner(GROUPS, "g") == "n2", "another node was faster"
        await node._see(await metadata.list(""))
        assert node._owner_revisions == {}, "nothing is kept"
