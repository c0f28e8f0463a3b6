"""A limit, not a queue: aiohttp and uvloop, parsing the same JSON and storing nothing."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib.metadata import version
from pathlib import Path

from loadtest.bench.request import Request
from loadtest.peers import replay
from loadtest.peers.mq import JSON_TYPE, SINGLE_BODY
from loadtest.peers.peer import Durability, Level, Numbers, Options, Peer, Way
from loadtest.peers.servers import Server, running


async def _single(url: str, topic: str, options: Options) -> Numbers:
    request = Request("POST", f"/topics/{topic}", {"Content-Type": JSON_TYPE}, SINGLE_BODY)
    return await replay.single(url, request, **options)


class Bare(Peer):
    """The same server beside both durabilities, measured with the fleet of each."""

    name = "bare aiohttp"
    about = "a handler that parses the JSON of the request and answers a constant, aiohttp and uvloop"
    levels = (
        Level("beside synced", Durability.SYNCED, "stores nothing"),
        Level("beside written", Durability.WRITTEN, "stores nothing"),
    )
    is_limit = True

    def prepare(self, tools: Path) -> str:
        return version("aiohttp")

    @contextmanager
    def serve(self, tools: Path, data: Path, level: Level) -> Iterator[Server]:
        log = data / "server.log"

        def has_told(server: Server) -> bool:
            """Whether its first line is there: its URL."""
            first, end, _ = log.read_text().partition("\n")
            if end:
                server.endpoint = first
            return bool(end)

        command = [sys.executable, "-m", "loadtest.bench.bare_server"]
        environment = {"PYTHONPATH": str(Path(__file__).resolve().parents[2])}
        with running("", [command], data, environment=environment, is_ready=has_told) as server:
            yield server

    def ways(self, work: str) -> Sequence[Way]:
        return (Way("wrk", _single),) if work == "single" else ()


PEERS = (Bare(),)
