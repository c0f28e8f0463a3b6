"""Embedded metadata over a real store on a simulated disk, without threads or real time."""

from __future__ import annotations

import asyncio

from gateway.brokers.local import LocalBroker
from gateway.cluster.embedded import EmbeddedMetadata
from gateway.cluster.memory import Written
from gateway.cluster.metadata import Unavailable
from gateway.main.admin import pin
from store import Store
from tests.clock import FakeClock
from tests.gateway.groups.coordinator.world import PlainTimer, inline
from tests.simdisk import SimDisk
from tests.store.kit import abandon, open_store, with_settings

CONFIG = with_settings(commit_log_file_bytes=8 * 1024 * 1024, extent_bytes=64 * 1024)
"""The largest change fits an entry."""


class EmbeddedWorld:
    """One node's life on a disk. `start`, then `stop` or `kill`, then `start` again."""

    def __init__(self, disk: SimDisk | None = None) -> None:
        self.disk = disk or SimDisk()
        self.clock = FakeClock()
        self.store: Store
        self.metadata: EmbeddedMetadata
        self._writing: asyncio.Task[None]

    async def start(self) -> None:
        self.store = await open_store(self.disk, CONFIG, self.clock)
        timer = PlainTimer(self.store, self.clock)
        broker = LocalBroker(self.store, timer, name="n1", on_topic=_ignore, on_deleted=_ignore)
        self.metadata = EmbeddedMetadata(CONFIG.root, self.disk, broker, self.clock, run_blocking=inline)
        pin(self.store, lambda: self.metadata.needed_position)
        await self.metadata.start()
        self._writing = asyncio.create_task(self.metadata.run())

    async def stop(self) -> None:
        """A clean stop."""
        self._writing.cancel()
        await asyncio.wait([self._writing])
        await self.metadata.close()
        await self.store.close()

    async def kill(self) -> None:
        """kill -9, and another start."""
        self.metadata._write = _refuse
        await abandon()
        self.disk.kill()
        await self.start()


async def _refuse(_: Written) -> None:
    raise Unavailable("the process was killed")


def _ignore(_: object) -> None:
    pass
