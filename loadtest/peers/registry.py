"""All peers, in the order of the report."""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module
from importlib.util import find_spec

from loadtest.peers.peer import Peer

MODULES = ("mq", "kafka", "rocketmq", "nats", "rabbitmq", "redis", "nsq", "beanstalkd", "bridge")


def peers() -> Mapping[str, Peer]:
    """By name. Their client libraries are imported only when a client is made."""
    found: dict[str, Peer] = {}
    for module in MODULES:
        if find_spec(f"loadtest.peers.{module}") is None:
            continue
        found.update((peer.name, peer) for peer in import_module(f"loadtest.peers.{module}").PEERS)
    return found
