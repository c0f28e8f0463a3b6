"""gateway.cluster.node over metadata in memory and a simulated disk: what is deleted, and what never is."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from gateway.brokers.local import LocalBroker
from gateway.cluster.members import CLUSTER, join
from gateway.cluster.memory import MemoryMetadata
from gateway.cluster.metadata import Listing, OtherMetadata, Value
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
