"""Our own ways, each for a moment, against a real server. One of them is in test_session.py with every push."""

from __future__ import annotations

import shutil
from collections.abc import Iterator

import pytest

from loadtest.peers.mq import PEERS
from loadtest.peers.plan import PARTS, long_workloads, workloads
from loadtest.peers.servers import Server

pytestmark = pytest.mark.matrix

MQ = PEERS[0]
SMALL = {
    "duration_s": 0.2, "warm_s": 0.1, "fill_s": 0.2, "count": 2_000, "spread_ms": 100, "accepted_per_s": 20_000,
    "byte_count": 2**20, "rate_per_s": 200, "connections": 4,
}  # fmt: skip
STEPS = {
    step.work: step for step in (*workloads(quick=True), *(long_workloads(part, quick=True) for part in PARTS[1:]))
}
WAYS = [(work, way.client) for work in STEPS for way in MQ.ways(work)]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    data = tmp_path_factory.mktemp("mq")
    written = next(level for level in MQ.levels if level.name == "written")
    with MQ.serve(data, data, written) as running:
        yield running


@pytest.mark.parametrize(("work", "client"), WAYS)
async def test_every_way_does_its_work(server: Server, work: str, client: str) -> None:
    if client == "wrk" and shutil.which("wrk") is None:
        pytest.skip("wrk is not installed")
    options = {name: SMALL[name] for name in STEPS[work].options}
    topic = f"{work}-{WAYS.index((work, client))}"
    if work == "delayed":
        options["accepted_per_s"] = SMALL["accepted_per_s"]
    if work == "scan":
        options["count"] = (await run("batched", client, server, topic, {"duration_s": 0.2, "warm_s": 0.1}))["stored"]
    if work == "topics":
        options["count"] = 20
    numbers = await run(work, client, server, topic, options)
    assert all(value >= 0 for value in numbers.values())
    if "began_s" in numbers:
        assert numbers["records"] > 0
        assert numbers["ended_s"] > numbers["began_s"]
    if work == "fill":
        assert await run("first_record", client, server, topic, {}) == {"records": 1}
    if work in ("scan", "fill"):
        await run("drop", "aiohttp, JSON", server, topic, {})


async def run(work: str, client: str, server: Server, topic: str, options: dict[str, float]) -> dict[str, float]:
    way = next(way for way in MQ.ways(work) if way.client == client)
    return dict(await way.run(server.endpoint, topic, options))
