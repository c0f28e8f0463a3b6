"""gateway.main.shards: when a node that starts has what it is to have. The rest: test_no_store.py, and on a real Kafka
tests/gateway/brokers/kafka/test_timers_served.py."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import cast

import pytest

from gateway.cluster.node import ClusterNode
from gateway.cluster.shard_log import SHARDS
from gateway.main import shards
from gateway.main.shards import is_settled, until_settled
from store.topics import TIMER


def node_of(owners: dict[int, str]) -> ClusterNode:
    return cast(ClusterNode, SimpleNamespace(name="n1", shard_owner=lambda _, shard: owners.get(shard)))


@pytest.mark.parametrize(
    ("owners", "broker", "here", "expected"),
    [
        ({}, None, set(), True),  # of a cluster without shards
        ({}, "kafka1", set(), False),  # they are to be begun
        ({0: "n2", 1: "n1"}, None, set(), False),  # one is this node's
        ({0: "n2", 1: "n1"}, None, {1}, True),
        (dict.fromkeys(range(SHARDS - 1), "n2"), "kafka1", set(), False),
        (dict.fromkeys(range(SHARDS), "n2"), "kafka1", set(), True),
    ],
)
def test_a_node_is_settled_when_its_shards_are_here(
    owners: dict[int, str], broker: str | None, here: set[int], expected: bool
) -> None:
    assert is_settled(node_of(owners), TIMER.topic_id, broker, here.__contains__) is expected


async def test_a_start_waits_for_it_but_not_for_long(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shards, "LOOK_S", 0.001)
    one, stopping = SimpleNamespace(is_settled=False), asyncio.Event()
    waiting = asyncio.create_task(until_settled([one], stopping))
    await asyncio.sleep(0.01)
    assert not waiting.done()
    one.is_settled = True
    await waiting
    one.is_settled = False
    asyncio.get_running_loop().call_later(0.01, stopping.set)
    await until_settled([one], stopping)
    monkeypatch.setattr(shards, "TAKE_OWN_S", 0.01)
    await until_settled([one], asyncio.Event())
