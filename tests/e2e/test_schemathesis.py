"""schemathesis, with all its checks, does to a real server whatever `/openapi.json` allows, and much that it forbids.

It must find nothing: no fault of the server (5xx), no status, type, header or body that is not declared, nothing taken
that the document forbids, nothing refused that it allows. Some 30 seconds a role; MQ_FUZZ_MINUTES (`make fuzz-api`)
goes on for longer. What cannot be said in a schema is named in `config_of`, with the reason.

The server asks everybody who they are. The whole is done as an operator who may do everything; then, more briefly, as
somebody who may only read one topic, and as a stranger: their refusals are to be as documented too, and nothing that
asks for credentials may be done without. Who may do what is in tests/gateway/security/test_matrix.py, for every route.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import sys
import time
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from gateway.auth.tokens import change_tokens, mint
from tests.e2e.server import SMALL_FILES, Server

Json = dict[str, Any]

MINUTES = float(os.environ.get("MQ_FUZZ_MINUTES", "0"))
OPERATOR = "operator"
ROLES: dict[str, tuple[list[str], int]] = {
    OPERATOR: (["admin"], 200 if MINUTES else 1),
    "reader": (["reader:topic:orders", "reader:group:billing"], 20 if MINUTES else 1),
    "stranger": ([], 20 if MINUTES else 1),
}
"""What each may do, and how many examples of each operation it tries. A stranger has no token."""

ASKING = {"MQ_AUTH_ENABLED": "true", "MQ_AUTH_FREE_FAILURES": "1000000"}
"""Each bad token is to be answered 401: an address does not have to wait after ten of them."""

PHASES = "examples,coverage,fuzzing,stateful" if MINUTES else "examples,fuzzing"
TIMEOUT_S = 300 + MINUTES * 180

NAMES = {
    "topic": ["orders", "events", "%DLQ%billing", "no-such-topic"],
    "group": ["billing", "shipping", "no-such-group"],
    "instance": ["c1", "c2"],
    "partition": [0, 1, 9],
    "recurring": ["daily-report", "poll", "no-such-schedule"],
}
"""What paths are made of, most of the time: names that are there, or may be, so that more is met than 404."""


ALWAYS = ["2xx", "3xx", "401", "403", "404", "406", "409", "429", "5xx"]
"""What may become of any request that its schema allows. 429: some of what is tried are bad tokens."""

WITH_INPUT = ["400", "412", "413", "416", "422", "428"]
"""And of one with a query, a body or a condition. 416: whether an offset is out of range depends on what is stored; 412
likewise; 428: some changes must have a condition.
422: limits are in bytes, a schema counts characters; names, patterns and filters have a grammar. 413: the size of a
whole record. 400: base64, times and cursors have a grammar too, and a `format=` says how a body is read."""


def without_input(document: Json) -> list[str]:
    """The operations that have nothing but a path and headers: they refuse nothing that fits its schema."""
    resolved = document["components"]["parameters"]
    found = []
    for item in document["paths"].values():
        for operation in item.values():
            if isinstance(operation, dict) and "operationId" in operation:
                keys = [one.get("$ref", "query").rpartition("/")[2] for one in operation.get("parameters", ())]
                request_indexes = {resolved[key]["in"] if key in resolved else key for key in keys}
                has_condition = "header.If-Match" in keys
                if "query" not in request_indexes and "requestBody" not in operation and not has_condition:
                    found.append(operation["operationId"])
    return found


def config_of(cluster_id: str, document: Json) -> str:
    """The settings of one run."""
    names = {**NAMES, "cluster": [cluster_id]}
    plain = without_input(document)
    assert {"topic_metadata", "delete_topic"} <= set(plain)
    assert not {"produce", "fetch"} & set(plain)
    lines = [
        "[checks.positive_data_acceptance]",
        f"expected-statuses = {ALWAYS + WITH_INPUT}",
        "[parameters]",
        *(f'"path.{name}" = {{ dictionary = "{name}", probability = 0.9 }}' for name in names),
        '"query.timeout" = { dictionary = "waits", probability = 1.0 }',
        # Records of a stream are judged one by one: the answer is 200, and a refusal is in the record's own line.
        *(
            f'[[operations]]\ninclude-path = "{path}"\nchecks.negative_data_rejection.enabled = false'
            for path in ("/v3/clusters/{cluster}/topics/{topic}/records", "/mq/v1/topics/{topic}/messages:batch")
        ),
        f"[[operations]]\ninclude-operation-id = {plain}",
        f"checks.positive_data_acceptance.expected-statuses = {ALWAYS}",
        *(f"[dictionaries.{name}]\nvalues = {values}" for name, values in {**names, "waits": [0, 1, 20]}.items()),
    ]
    return "\n".join(lines) + "\n"


@pytest.fixture
def schemathesis() -> str:
    found = shutil.which("schemathesis", path=str(Path(sys.executable).parent)) or shutil.which("schemathesis")
    assert found is not None, "install the dev extra"
    return found


def tokens_for(data: Path) -> dict[str, str]:
    """A token for each role, in the files of a server that has not begun yet."""
    made = {
        role: mint(role, scopes, now_ms=int(time.time() * 1000) - 1000) for role, (scopes, _) in ROLES.items() if scopes
    }
    (data / "auth").mkdir(parents=True)
    change_tokens(
        data / "auth" / "tokens.json", lambda tokens: tokens.update({record.id: record for _, record in made.values()})
    )
    return {role: token for role, (token, _) in made.items()}


async def prepare(url: str, token: str) -> str:
    """A few things to meet; answers the settings of a run."""
    async with aiohttp.ClientSession(url, headers={"Authorization": f"Bearer {token}"}) as session:
        for topic in ("orders", "events"):
            async with session.put(f"/mq/v1/topics/{topic}", json={"partitions": 2}) as answer:
                assert answer.status == 201
        for number in range(20):
            path = f"/mq/v1/topics/orders/messages?key=u1&tag=paid&partition={number % 2}"
            async with session.post(path, data=b'{"sku": 9}', headers={"Content-Type": "application/json"}) as answer:
                assert answer.status == 201
        daily = {"topic": "orders", "record": {"value": 1}, "cron": "@daily"}
        async with session.put("/mq/v1/recurring/daily-report", json=daily) as answer:
            assert answer.status == 201
        receive = {"topics": ["orders"], "start": "earliest", "max_messages": 2}
        async with session.post("/mq/v1/groups/billing/messages:receive", json=receive) as answer:
            assert answer.status == 200
        async with session.get("/openapi.json") as answer:
            document: Json = await answer.json()
        async with session.get("/v3/clusters") as answer:
            return config_of((await answer.json())["data"][0]["cluster_id"], document)


@pytest.mark.long
@pytest.mark.parametrize("role", ROLES)
async def test_nothing_is_found(tmp_path: Path, schemathesis: str, role: str) -> None:
    server = Server(tmp_path / "data", {**SMALL_FILES, "MQ_LIMITS_TIMEOUT_MS_MAX": "50", **ASKING})
    tokens = tokens_for(tmp_path / "data")
    await server.start()
    try:
        config = tmp_path / "schemathesis.toml"
        config.write_text(await prepare(server.url, tokens[OPERATOR]))
        command = [
            schemathesis, "--config-file", str(config), "run", f"{server.url}/openapi.json",
            "--checks", "all", "--phases", PHASES, "--max-examples", str(ROLES[role][1]), "--continue-on-failure",
            "--request-timeout", "20", "--no-color", "--workers", "1",
            # A socket begins with an upgrade, and an event stream does not end: neither is an exchange.
            "--exclude-path-regex", "^/ws/|/sse$", "--warnings", "off",
        ]  # fmt: skip
        if role in tokens:
            command += ["--header", f"Authorization: Bearer {tokens[role]}"]
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
