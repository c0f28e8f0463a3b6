"""What an operator may choose about Kafka's protocol."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import NamedTuple

PORT_DEFAULT = 9092

_LISTENER = re.compile(r"([A-Za-z0-9_]+)://(\[[0-9A-Fa-f:]+\]|[^:/\[\]]+):([0-9]{1,5})")


class KafkaListener(NamedTuple):
    """Where Kafka clients connect, or are told to."""

    name: str
    host: str
    port: int


def parse_listener(text: str) -> KafkaListener:
    """The listener of a text like "EXTERNAL://mq.example.org:9094". Raises ValueError."""
    found = _LISTENER.fullmatch(text)
    if found is None or int(found[3]) > 65535:
        raise ValueError(f"{text!r} is no listener such as EXTERNAL://mq.example.org:9094")
    return KafkaListener(found[1], found[2].strip("[]"), int(found[3]))


@dataclass(frozen=True, slots=True, kw_only=True)
class KafkaConfig:
    """Kafka's wire protocol, for unmodified Kafka clients. TLS and authentication are as they are for HTTP."""

    enabled: bool = True
    """Off: no port for Kafka clients."""

    port: int | None = None
    """Port for Kafka clients, on `host`; 0 picks a free one. Not set: 9092 on a server that only this machine can
    reach, with a warning when that port is taken; none on any other server."""

    listeners: tuple[str, ...] = ()
    """Several ports in place of `kafka.port`, by name: INTERNAL://0.0.0.0:9092,EXTERNAL://0.0.0.0:9094."""

    advertised: tuple[str, ...] = ()
    """What clients of a listener are told to connect to, by the listener's name: EXTERNAL://mq.example.org:9094. A
    listener that is not here advertises the address by which a client has reached it; that of a node, the address it
    listens on, or for all addresses the host of `cluster.client_url`. `kafka.port` has the name KAFKA."""

    auto_create_topics: bool = True
    """Make a topic, of `partitions_default` partitions, when a client that may create it asks for it by name."""

    idle_timeout_ms: int = 600_000
    """A connection on which no request comes for so long is closed."""

    def __post_init__(self) -> None:
        if self.port is not None and not 0 <= self.port <= 65535:
            raise ValueError("kafka.port must be between 0 and 65535")
        if self.port is not None and self.listeners:
            raise ValueError("kafka.port and kafka.listeners contradict each other: choose one")
        if self.idle_timeout_ms < 1:
            raise ValueError("kafka.idle_timeout_ms must be positive")
        for name, texts in (("listeners", self.listeners), ("advertised", self.advertised)):
            try:
                names = [parse_listener(text).name for text in texts]
            except ValueError as error:
                raise ValueError(f"kafka.{name}: {error}") from error
            if len(set(names)) < len(names):
                raise ValueError(f"kafka.{name}: each name may occur once")
        if unknown := {parse_listener(text).name for text in self.advertised} - self.names:
            raise ValueError(f"kafka.advertised: there is no listener {', '.join(sorted(unknown))}")

    @property
    def names(self) -> set[str]:
        """The names of the listeners."""
        return {parse_listener(text).name for text in self.listeners} or {"KAFKA"}

    def listening_on(self, host: str, *, is_loopback: bool) -> list[KafkaListener]:
        """Where to listen, on a server whose own address is `host`."""
        if not self.enabled:
            return []
        if self.listeners:
            return [parse_listener(text) for text in self.listeners]
        if self.port is None and not is_loopback:
            return []
        return [KafkaListener("KAFKA", host, PORT_DEFAULT if self.port is None else self.port)]

    @property
    def is_asked_for(self) -> bool:
        """Whether a port that cannot be had is a reason not to start."""
        return self.port is not None or bool(self.listeners)

    def advertised_for(self, name: str) -> KafkaListener | None:
        """What is advertised to clients of a listener; None: what they have connected to."""
        return next((found for text in self.advertised if (found := parse_listener(text)).name == name), None)
