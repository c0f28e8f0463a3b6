"""All peers by name, in the order of the report. A peer's module is imported when the peer is asked for."""

from __future__ import annotations

from importlib import import_module

from loadtest.peers.peer import Peer

MODULES = {
    "mq": "mq",
    "bare aiohttp": "bare",
    "kafka": "kafka",
    "rocketmq": "rocketmq",
    "nats": "nats",
    "rabbitmq": "rabbitmq",
    "rabbitmq streams": "rabbitmq",
    "redis streams": "redis",
    "nsqd": "nsq",
    "beanstalkd": "beanstalkd",
    "strimzi bridge": "bridge",
}


def peer_of(name: str) -> Peer:
    """The peer of a name. Raises KeyError."""
    module = import_module(f"loadtest.peers.{MODULES[name]}")
    found: Peer = {peer.name: peer for peer in module.PEERS}[name]
    return found
