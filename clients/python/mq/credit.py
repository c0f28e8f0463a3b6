"""Credit: how many messages the server may send ahead of the consumer. Pure.

    size    what may be here or on its way: the credit that was granted at first
    held    received, and not yet taken by the consumer
    free    taken, and not yet returned to the server

Invariant: what the server has left + what is on its way + held + free = size. So no credit is lost, and none is granted
twice, whatever happens to connections.
"""

from __future__ import annotations


class Window:
    """The account of one subscription, in messages."""

    def __init__(self, size: int) -> None:
        self.size = size
        self._held = 0
        self._free = 0

    def received(self, count: int) -> None:
        """Messages arrived."""
        self._held += count

    def taken(self, count: int) -> None:
        """The consumer is through with messages, or they were dropped."""
        self._held -= count
        self._free += count

    @property
    def is_due(self) -> bool:
        """Whether a command to return credit is worth it: half is free, or the server may have nothing left."""
        return self._free * 2 >= self.size or (self._held <= 0 and self._free > 0)

    def returned(self) -> int:
        """What to return now."""
        free, self._free = self._free, 0
        return free

    def opened(self) -> int:
        """What to grant a new subscription. Whole batches may have exceeded what was granted before."""
        self._free = 0
        return max(0, self.size - self._held)

    def resumed(self, left: int) -> None:
        """The subscription goes on with so much left at the server: what was returned last may not have arrived."""
        self._free = max(0, self.size - self._held - left)
