"""The leases that one queue subscription holds: whose turn it is to be extended, and which are held too long. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from mq.message import Message

EXTEND_AT = 3
"""Leases are extended every third of their time: two extensions may fail before one ends."""
RETRY_S = 1.0
"""After an extension that failed."""
RECEIPTS_PER_COMMAND = 10_000


class Leases:
    """Messages that were received and are not settled, prefetched ones included, with when they came."""

    def __init__(self, lease_s: float, lease_max_s: float) -> None:
        self.lease_s = lease_s
        self.lease_max_s = lease_max_s
        self._since_s: dict[int, tuple[Message[Any], float]] = {}

    def __len__(self) -> int:
        return len(self._since_s)

    @property
    def interval_s(self) -> float:
        """Between extensions."""
        return self.lease_s / EXTEND_AT

    def add(self, messages: Iterable[Message[Any]], now_s: float) -> None:
        """These came, on lease."""
        since = self._since_s
        for message in messages:
            since[id(message)] = (message, now_s)

    def discard(self, message: Message[Any]) -> None:
        """The message is settled, or lost."""
        self._since_s.pop(id(message), None)

    def clear(self) -> None:
        """All are settled, or lost."""
        self._since_s.clear()

    def to_extend(self, now_s: float) -> list[Message[Any]]:
        """Those to be extended now: not those that are held for `lease_max_s` already, which may be stuck."""
        return [message for message, since_s in self._since_s.values() if now_s - since_s < self.lease_max_s]
