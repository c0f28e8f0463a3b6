"""One node as a process: a store on a real disk, and its broker for the other nodes. Prints `ready`; SIGTERM closes it.

python -m tests.gateway.cluster.node_process DIRECTORY NAME PORT PARTITIONS
"""

from __future__ import annotations

import asyncio
import signal
import sys
from pathlib import Path

from aiohttp import web

from gateway.brokers.local import LocalBroker
from gateway.cluster.peer_auth import Secret
from gateway.surfaces.peer.server import PeerService
from store import Store
from store.clock import SystemClock
from store.config import StoreConfig
from store.types import Acks, Append, Appended

SECRET = Secret(b"the secret of real nodes in tests")
TOPIC = "orders"


class NoTimer:
    """Nothing is delayed here."""

    async def schedule(self, append: Append, *, acks: Acks, keys: object = ()) -> Appended:
        raise NotImplementedError


async def main(directory: Path, name: str, port: int, partitions: int) -> None:
    stopping = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stopping.set)
    config = StoreConfig(
        root=directory, commit_log_file_bytes=4 * 1024 * 1024, extent_bytes=512 * 1024, disk_floor_bytes=0,
        checkpoint_interval_ms=200,
    )  # fmt: skip
    store = await Store.open(config)
    await store.create_topic(TOPIC, partitions)
    broker = LocalBroker(store, NoTimer(), name=name, on_topic=lambda _: None, on_deleted=lambda _: None)
    service = PeerService(broker, SECRET, SystemClock(), queues_of=store.queues_of)
    runner = web.AppRunner(service.application(), shutdown_timeout=1)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", port).start()
    sys.stdout.write("ready\n")
    sys.stdout.flush()
    await stopping.wait()
    await runner.cleanup()
    await store.close()


if __name__ == "__main__":
    asyncio.run(main(Path(sys.argv[1]), sys.argv[2], int(sys.argv[3]), int(sys.argv[4])))
