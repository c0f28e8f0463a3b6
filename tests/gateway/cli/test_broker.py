"""gateway.cli.broker"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from gateway.cli import broker
from gateway.cli.client import Client
from tests.gateway.cli.command import mq


class Answering:
    """A server whose brokers have the next rows at each question, and the last ones from then on."""

    def __init__(self, *states: list[dict[str, object]]) -> None:
        self._states = list(states)

    async def get(self, path: str) -> dict[str, object]:
        assert path == broker.PATH
        return {"brokers": self._states.pop(0) if len(self._states) > 1 else self._states[0]}

    async def patch(self, path: str, fields: dict[str, object]) -> dict[str, object]:
        name = path.rsplit("/", 1)[1]
        return next(row for row in (await self.get(broker.PATH))["brokers"] if row["broker"] == name)  # type: ignore[attr-defined]


def row(name: str, **fields: object) -> dict[str, object]:
    """A broker as a server shows it."""
    common = {"kind": "peer", "state": "up", "reasons": [], "latency_ms": None, "sealed_segments": 0, "url": None}
    return {"broker": name, **common, "partitions": 0, "groups": 0, "on_kafka": 0, "balancing": False, **fields}


def answered(monkeypatch: pytest.MonkeyPatch, server: Answering) -> None:
    """What commands of brokers ask is asked of this server."""

    def ask(url: str, request: Callable[[Client], Awaitable[Any]]) -> Any:
        async def asked() -> Any:
            return await request(server)  # type: ignore[arg-type]

        return asyncio.run(asked())

    monkeypatch.setattr(broker, "ask", ask)
    monkeypatch.setattr(broker, "POLL_S", 0)


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"partitions": 4}, "n2 has its share: 4 partitions on its broker\n"),
        ({"partitions": 4, "on_kafka": None}, "n2 has its share: 4 partitions on its broker\n"),
        ({"on_kafka": 7}, "n2 has its share: 0 partitions on its broker, 7 on Kafka clusters\n"),
    ],
)
def test_a_node_that_has_its_share_says_what_it_owns(
    monkeypatch: pytest.MonkeyPatch, fields: dict[str, object], said: str
) -> None:
    kafka, first = row("kafka1", kind="kafka", partitions=16), row("n1", on_kafka=8)
    answered(monkeypatch, Answering([kafka, first, row("n2", balancing=True)], [kafka, first, row("n2", **fields)]))
    result = mq("broker", "add", "n2")
    assert (result.returncode, result.stdout) == (0, said), result.stderr


def test_the_list_has_what_each_owns_on_kafka_and_an_older_server_does_not_say(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    older = row("n1")
    del older["on_kafka"]
    answered(monkeypatch, Answering([older, row("n2", on_kafka=43)]))
    result = mq("broker", "list")
    assert result.returncode == 0, result.stderr
    assert "on Kafka" in result.stdout
    assert "43" in result.stdout
