"""A gateway in memory for the tests of sockets."""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from gateway.surfaces.http.context import Gateway
from tests.clock import FakeClock
from tests.gateway.fake_broker import FakeBroker, fake_gateway


class FirstPartition:
    """Keys by CRC-32 as everywhere; records without key go to partition 0."""

    def for_key(self, key: bytes, count: int) -> int:
        return zlib.crc32(key) % count

    def for_keys(self, keys: Sequence[bytes], count: int) -> list[int]:
        return [self.for_key(key, count) for key in keys]

    def next(self, topic: str, count: int, selector: str | None = None) -> int:
        return 0


def memory_gateway(
    topics: dict[str, int], *, origins: tuple[str, ...] = (), write_timeout_ms: int = 10_000, **settings: Any
) -> tuple[Gateway, FakeBroker]:
    """A gateway over a fresh fake broker with these topics and partition counts."""
    gateway, broker = fake_gateway(
        FakeClock(), selector=FirstPartition(), ws_write_timeout_ms=write_timeout_ms, **settings
    )
    for name, partitions in topics.items():
        broker.add_topic(name, partitions)
    return replace(gateway, config=replace(gateway.config, allowed_origins=origins)), broker
