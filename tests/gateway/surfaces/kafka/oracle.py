"""kafka-python's codec of Apache's definitions, for comparison: written by others, from the same source."""

from __future__ import annotations

from typing import Any

import kafka.protocol.admin
import kafka.protocol.consumer
import kafka.protocol.metadata
import kafka.protocol.producer
import kafka.protocol.sasl

_MODULES = (
    kafka.protocol.metadata, kafka.protocol.consumer, kafka.protocol.producer, kafka.protocol.admin, kafka.protocol.sasl
)  # fmt: skip


def message(name: str, version: int, content: bytes) -> Any:
    """What kafka-python reads from the bytes of a message without its header."""
    cls = next(getattr(module, name) for module in _MODULES if hasattr(module, name))
    return cls.decode(content, version=version, header=False)


def encoded(found: Any, version: int) -> bytes:
    """The bytes that kafka-python makes of what it has read."""
    found._header = None  # which decoding leaves unset
    return bytes(found.encode(version=version, header=False))
