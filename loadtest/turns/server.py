"""A server that says how long the turns of its event loop were: `python -m loadtest.turns.server DATA REGISTRY INDEX`.

Its first line of output is its URL and its port for Kafka clients. To each line of input it answers with the longest
turn since the one before, as JSON: milliseconds of CPU time, what it was at, and how slow the machine is now. It ends
with its input.
"""

from __future__ import annotations

import asyncio
import json
import socket
import sys
import threading
from pathlib import Path

import uvloop

from gateway.main import wiring
from gateway.main.garbage import calm_collector
from gateway.main.loop_watch import Held, LoopWatch
from gateway.settings.config import build
from loadtest.slowness import slowness
from store.limits import MiB

BEAT_S = 0.002
HELD_S = 0.005


async def serve(data: Path, registry: str, index: str) -> None:
    """Run until the input ends. `registry`: the URL of a schema registry; `index`: where consume queues live."""
    loop = asyncio.get_running_loop()
    stopping = asyncio.Event()
    longest = Held(0.0, 0.0, "")

    def note(held: Held) -> None:
        nonlocal longest
        if min(held.length_s, held.cpu_s) > min(longest.length_s, longest.cpu_s):
            longest = held

    def answer() -> None:
        nonlocal longest
        for _ in sys.stdin:
            held, longest = longest, Held(0.0, 0.0, "")
            print(json.dumps([1000 * min(held.length_s, held.cpu_s), held.by, slowness()]), flush=True)
        loop.call_soon_threadsafe(stopping.set)

    with socket.create_server(("127.0.0.1", 0)) as free:
        kafka_port = free.getsockname()[1]
    config = build(
        {
            "data": data,
            "port": 0,
            "kafka.port": kafka_port,
            "registry.url": registry,
            "store.commit_log_file_bytes": 256 * MiB,
            "store.index": index,
            "compression": "zstd" if index == "rocksdb" else "none",  # light queues have no raw batches
            "store.disk_floor_bytes": 0,
            "limits.fetch_records_max": 100_000,
        }
    )
    calm_collector()
    with LoopWatch(beat_s=BEAT_S, idle_beat_s=BEAT_S, held_s=HELD_S, on_work=note).running():
        threading.Thread(target=answer, daemon=True).start()
        await wiring.run(config, announce=lambda url: print(url, kafka_port, flush=True), stopping=stopping)


if __name__ == "__main__":
    uvloop.run(serve(Path(sys.argv[1]), sys.argv[2], sys.argv[3]))
