"""schemathesis, with all its checks, does to a real server whatever `/openapi.json` allows, and much that it forbids.

It must find nothing: no fault of the server (5xx), no status, type, header or body that is not declared, nothing taken
that the document forbids, nothing refused that it allows. Some 30 seconds in CI; MQ_FUZZ_MINUTES (`make fuzz-api`)
goes on for longer. What cannot be said in a schema is named in `config_of`, with the reason.

The server asks nobody who they are: with authentication it would soon answer 429, as it does to whoever tries one bad
token after another. Who may do what is in tests/gateway/security/test_matrix.py, for every route.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import sys
from pathlib import Path

import aiohttp
import pytest

from tests.e2e.server import SMALL_FILES, Server

MINUTES = float(os.environ.get("MQ_FUZZ_MINUTES", "0"))
EXAMPLES = 200 if MINUTES else 2
PHASES = "examples,coverage,fuzzing,stateful" if MINUTES else "examples,fuzzing"
TIMEOUT_S = 300 + MINUTES * 180

NAMES = {
    "topic": ["orders", "events", "%DLQ%billing", "no-such-topic"],
    "group": ["billing", "shipping", "no-such-group"],
    "instance": ["c1", "c2"],
    "partition": [0, 1, 9],
}
"""What paths are made of, most of the time: names that are there, or may be, so that more is met than 404."""


def config_of(cluster_id: str) -> str:
    """The settings of one run."""
    names = {**NAMES, "cluster": [cluster_id]}
    lines = [
        "[checks.positive_data_acceptance]",
        # 416: whether an offset is out of range depends on what is stored. 422: limits are in bytes, a schema counts
        # characters; names, patterns and filters have a grammar. 413: the size of a whole record. 400: base64, times
        # and cursors have a grammar too, and a `format=` says how a body is read.
        'expected-statuses = ["2xx", "3xx", "400", "401", "403", "404", "406", "409", "413", "416", "422", "5xx"]',
        "[parameters]",
        *(f'"path.{name}" = {{ dictionary = "{name}", probability = 0.9 }}' for name in names),
        '"query.timeout" = { dictionary = "waits", probability = 1.0 }',
        # Records of a stream are judged one by one: the answer is 200, and a refusal is in the record's own line.
        *(
            f'[[operations]]\ninclude-path = "{path}"\nchecks.negative_data_rejection.enabled = false'
            for path in ("/v3/clusters/{cluster}/topics/{topic}/records", "/mq/v1/topics/{topic}/messages:batch")
        ),
        *(f"[dictionaries.{name}]\nvalues = {values}" for name, values in {**names, "waits": [0, 1, 20]}.items()),
    ]
    return "\n".join(lines) + "\n"


@pytest.fixture
def schemathesis() -> str:
    found = shutil.which("schemathesis", path=str(Path(sys.executable).parent)) or shutil.which("schemathesis")
    assert found is not None, "install the dev extra"
    return found


async def prepare(url: str) -> str:
    """A few things to meet; answers the cluster's id."""
    async with aiohttp.ClientSession(url) as session:
        for topic in ("orders", "events"):
            async with session.put(f"/mq/v1/topics/{topic}", json={"partitions": 2}) as answer:
                assert answer.status == 201
        for number in range(20):
            path = f"/mq/v1/topics/orders/messages?key=u1&tag=paid&partition={number % 2}"
            async with session.post(path, data=b'{"sku": 9}', headers={"Content-Type": "application/json"}) as answer:
                assert answer.status == 201
        receive = {"topics": ["orders"], "start": "earliest", "max_messages": 2}
        async with session.post("/mq/v1/groups/billing/messages:receive", json=receive) as answer:
            assert answer.status == 200
        async with session.get("/v3/clusters") as answer:
            cluster_id: str = (await answer.json())["data"][0]["cluster_id"]
            return cluster_id


async def test_nothing_is_found(tmp_path: Path, schemathesis: str) -> None:
    server = Server(tmp_path / "data", {**SMALL_FILES, "MQ_LIMITS_TIMEOUT_MS_MAX": "50"})
    await server.start()
    try:
        cluster_id = await prepare(server.url)
        config = tmp_path / "schemathesis.toml"
        config.write_text(config_of(cluster_id))
        command = [
            schemathesis, "--config-file", str(config), "run", f"{server.url}/openapi.json",
            "--checks", "all", "--phases", PHASES, "--max-examples", str(EXAMPLES), "--continue-on-failure",
            "--request-timeout", "20", "--no-color", "--workers", "1",
            # A socket begins with an upgrade, and an event stream does not end: neither is an exchange.
            "--exclude-path-regex", "^/ws/|/sse$", "--warnings", "off",
        ]  # fmt: skip
        # CI always tries the same; whoever has more time tries something new.
        command += ["--max-time", str(int(MINUTES * 60))] if MINUTES else ["--generation-deterministic"]
        process = await asyncio.create_subprocess_exec(
            *command, cwd=tmp_path, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT
        )
        try:
            said = (await asyncio.wait_for(process.communicate(), TIMEOUT_S))[0].decode()
        finally:
            if process.returncode is None:
                process.kill()
        summary = said[said.rfind("= SUMMARY =") :]
        print(summary)
        assert process.returncode == 0, said
        assert "Tested: 1" in summary or "Tested: 9" in summary, "it has tested (about a hundred) operations"
    finally:
        await server.end()
