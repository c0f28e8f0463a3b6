"""Nodes of a cluster in one event loop: a real store each, on simulated disks, without threads. The metadata is in the
data directory of the first; every node has routes of its own, kept by a follower. Senders and readers use any."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import AsyncExitStack
from dataclasses import replace
from functools import partial
from random import Random

from aiohttp import web

from gateway.brokers.base import Broker
from gateway.brokers.local import LocalBroker
from gateway.cluster.embedded import EmbeddedMetadata
from gateway.cluster.follower import ChainFollower
from gateway.cluster.metadata import MetadataError
from gateway.cluster.mover import MoveConflict, Mover, UnknownBroker
from gateway.cluster.peer import PeerBroker
from gateway.cluster.peer_auth import Secret
from gateway.main.admin import pin
from gateway.routing.base import place_of
from gateway.routing.reading import PartitionReader
from gateway.routing.table import RouteTable
from gateway.routing.tail_watcher import TailWatcher
from gateway.surfaces.peer.server import PeerService
from store import Store, record_batch
from store.config import StoreConfig
from store.errors import AlreadyStored, SealedQueue
from store.light_names import LightNames
from store.record_batch import Record
from store.topics import Topic
from store.types import Acks, Append, Identity
from tests.clock import FakeClock
from tests.gateway.cluster.etcd_server import free_port
from tests.gateway.groups.coordinator.world import PlainTimer, inline
from tests.simdisk import SimDisk
from tests.store.kit import abandon, open_store, with_settings

NAMES = ("n1", "n2", "n3")
CONFIG = with_settings(commit_log_file_bytes=256 * 1024, extent_bytes=64 * 1024)
TOPIC = "orders"
SECRET = Secret(b"the secret of tests")


class NodeClock(FakeClock):
    """The clock of one node: that of all, and what this one is ahead by (`step`, `strobe`)."""

    def __init__(self, clock: FakeClock) -> None:
        super().__init__(0)
        self._clock = clock

    def now_ms(self) -> int:
        return self._clock.now_ms() + super().now_ms()


class Node:
    """One node: its store, and what it knows of all partitions."""

    def __init__(self, name: str, clock: FakeClock) -> None:
        self.name = name
        self.clock = NodeClock(clock)
        self.disk = SimDisk()
        self.store: Store
        self.broker: LocalBroker
        self.routes: RouteTable
        self.reader: PartitionReader
        self.watcher: TailWatcher
        self.mover: Mover
        self.follower: ChainFollower


class Cluster:
    """`start`, then `crash` as often as wanted, then `stop`."""

    def __init__(self, partitions: int = 1, *, is_remote: bool = False, config: StoreConfig = CONFIG) -> None:
        """`is_remote`: nodes reach each other over HTTP, as processes of their own would."""
        self.config = config
        self.is_remote = is_remote
        self._served = AsyncExitStack()
        self.clock = FakeClock()
        self.partitions = partitions
        self.nodes = {name: Node(name, self.clock) for name in NAMES}
        self.metadata: EmbeddedMetadata
        self.topic: Topic
        self.peers: dict[str, PeerBroker] = {}
        self._writing: asyncio.Task[None]
        self._following: dict[str, asyncio.Task[None]] = {}

    def broker_named(self, name: str, seen_from: str = "") -> Broker:
        if name not in self.nodes:
            raise UnknownBroker(f"no broker {name}")
        if self.is_remote and seen_from != name:
            return self.peers[name]
        return self.nodes[name].broker

    async def _serve(self, node: Node) -> None:
        service = PeerService(node.broker, SECRET, node.clock, queues_of=node.store.queues_of)
        runner = web.AppRunner(service.application(), shutdown_timeout=0.1)  # a long poll is not waited for
        await runner.setup()
        self._served.push_async_callback(runner.cleanup)
        await web.TCPSite(runner, "127.0.0.1", port := free_port()).start()
        peer = PeerBroker(node.name, f"http://127.0.0.1:{port}", SECRET, self.clock)
        self.peers[node.name] = await self._served.enter_async_context(peer)

    async def start(self) -> None:
        for node in self.nodes.values():
            config = replace(self.config, root=self.config.root / node.name)
            node.store = await open_store(node.disk, config, node.clock)
            timer = PlainTimer(node.store, node.clock)
            node.broker = LocalBroker(node.store, timer, name=node.name, on_topic=_ignore, on_deleted=_ignore)
            self.topic, _ = await node.store.create_topic(TOPIC, self.partitions)
            if self.is_remote:
                await self._serve(node)
        first = self.nodes["n1"]
        self.metadata = EmbeddedMetadata(
            first.store.config.root, first.disk, first.broker, first.clock, run_blocking=inline
        )
        metadata = self.metadata
        pin(first.store, lambda: metadata.needed_position)
        await metadata.start()
        self._writing = asyncio.create_task(metadata.run())
        for node in self.nodes.values():
            node.routes = RouteTable()
            named = partial(self.broker_named, seen_from=node.name)
            node.routes.put(self.topic, named("n1"))
            node.reader = PartitionReader(node.routes)
            node.watcher = TailWatcher(node.routes)
            node.mover = Mover(metadata, named, node.clock, home=lambda topic_id, partition: "n1", own=node.name)
            node.follower = ChainFollower(metadata, node.routes, named, own=node.name)
            self._following[node.name] = asyncio.create_task(node.follower.run())

    async def pause(self, name: str) -> None:
        """A node learns nothing from now on, until `resume`."""
        self._following[name].cancel()
        await asyncio.wait([self._following[name]])

    def resume(self, name: str) -> None:
        if self._following[name].done():
            self._following[name] = asyncio.create_task(self.nodes[name].follower.run())

    async def crash(self, random: Random) -> None:
        """The power of all nodes fails at once, or all are killed."""
        metadata = self.metadata
        metadata._write = _refuse
        await abandon()
        for node in self.nodes.values():
            if random.random() < 0.5:
                node.disk.kill()
            else:
                node.disk = node.disk.crash(random)
        await self.start()

    async def stop(self) -> None:
        for node in self.nodes.values():
            await node.watcher.close()
            await self.pause(node.name)
        await self._served.aclose()
        self._writing.cancel()
        await asyncio.wait([self._writing])
        await self.metadata.close()
        for node in self.nodes.values():
            await node.store.close()

    async def send(
        self,
        via: str,
        value: bytes,
        partition: int = 0,
        identity: Identity | None = None,
        queues: Sequence[bytes] = (),
    ) -> int:
        """Send one record through a node, again when its partition moves; its offset, or that of the original.
        `queues`: light ones."""
        node = self.nodes[via]
        while True:
            segment = node.routes.writable(TOPIC, partition)
            append = Append(
                queue=segment.queue,
                batch=record_batch.encode([Record(None, value, node.clock.now_ms())]),
                record_count=1,
                identity=identity,
                light=LightNames.of([queues]),
            )
            try:
                [appended] = await segment.broker.append([append], acks=Acks.FLUSHED)
            except SealedQueue:
                await asyncio.sleep(0)
            except AlreadyStored as known:
                at, offset = place_of(node.routes, TOPIC, segment.broker, known.originals[0][0])
                assert at == partition
                assert offset is not None
                return offset
            else:
                return segment.to_logical(appended.base_offset)

    async def read_all(self, via: str, partition: int = 0) -> list[bytes]:
        """The partition from its first offset on; every offset is there once."""
        reader = self.nodes[via].reader
        low, high = await reader.bounds(TOPIC, partition)
        found: list[bytes] = []
        offset = low
        while offset < high:
            result = await reader.read(TOPIC, partition, offset, max_bytes=1000)
            for entry in result.entries:
                for record in record_batch.decode(entry.batch):
                    if record.offset >= offset:
                        assert record.offset == low + len(found)
                        found.append(record.value or b"")
            assert result.next_offset > offset
            offset = result.next_offset
        return found


async def settle(turns: int = 20) -> None:
    """Let followers and writers have their turns."""
    for _ in range(turns):
        await asyncio.sleep(0)


MOVE_ERRORS = (MoveConflict, MetadataError)


async def _refuse(_: object) -> None:
    raise asyncio.CancelledError


def _ignore(_: object) -> None:
    pass
