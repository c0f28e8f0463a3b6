"""The tests of REST, sockets, event streams, groups, retries, timers and the Python client, each server with its topics
on a real Apache Kafka (tests/kafka_only.py)."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from tests.e2e.server import REPOSITORY
from tests.gateway.brokers.kafka.servers import tools
from tests.kafka_only import NAME, NO_STORE

FILES = [
    *(f"tests/e2e/test_{name}.py" for name in (
        "consumers_kill9", "group_storms", "groups", "idempotency", "kafka", "kill9", "kombu", "many_keys",
        "python_client", "readme", "recurring_kill9", "stopping", "streams", "timer_clock", "timer_kill9",
        "unread_answers", "websocket",
    )),
    "tests/clients/python/test_behaviours.py",
]  # fmt: skip
TIMEOUT_S = 3_600


SMOKE = [
    f"tests/e2e/test_{name}.py"
    for name in ("groups", "kill9", "recurring_kill9", "streams", "timer_kill9", "websocket")
]
"""What servers without a store are asked for: each of their starts behind a kill waits for a session to end."""


@pytest.mark.matrix
@pytest.mark.parametrize(("broker", "files"), [("kafka", FILES), (NO_STORE, SMOKE)])
def test_the_served_tests_pass_with_kafka_as_the_only_broker(broker: str, files: list[str]) -> None:
    tools()
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *files],
        cwd=REPOSITORY,
        env={**environment, NAME: broker},
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        check=False,
    )
    print(done.stdout[-3_000:])
    assert done.returncode == 0, done.stdout[-30_000:] + done.stderr[-3_000:]
    if broker == "kafka":
        assert "not with Kafka as the only broker" in done.stdout, "the flag was heard"
