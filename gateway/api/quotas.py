"""How many topics and partitions there may be: each costs memory for good, and a right to create has no end
of its own.

What is being created counts already, so requests at the same moment do not pass the limit together. The server's own
topics (%RETRY%..., %DLQ%...) count, and are not refused: there are as many as groups may be.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Protocol

from gateway.errors import TOO_MANY, RequestError
from gateway.settings.limits import Limits


class Counted(Protocol):
    """Topics, counted as they come and go: with many topics, to count them for each new one would cost most of it."""

    @property
    def partition_count(self) -> int:
        """Partitions of all topics."""
        ...

    def __len__(self) -> int:
        """All topics."""
        ...


class TopicQuota:
    """The room for topics of one server."""

    def __init__(self, limits: Limits, there: Counted) -> None:
        self._limits = limits
        self._there = there
        self._coming_topics = self._coming_partitions = 0

    @contextmanager
    def room_for(self, *, topics: int, partitions: int) -> Iterator[None]:
        """Hold room for so many more until the block has created them. Raises RequestError 429."""
        there = self._there
        limits = self._limits
        if topics and len(there) + self._coming_topics + topics > limits.topics_max:
            raise _full("topics", limits.topics_max)
        count = there.partition_count + self._coming_partitions
        if partitions and count + partitions > limits.partitions_total_max:
            raise _full("partitions of all topics", limits.partitions_total_max)
        self._coming_topics += topics
        self._coming_partitions += partitions
        try:
            yield
        finally:
            self._coming_topics -= topics
            self._coming_partitions -= partitions


def _full(what: str, most: int) -> RequestError:
    message = f"There may be {most} {what} on this server; delete some first, or raise the limit (/mq/v1/limits)."
    return RequestError(TOO_MANY, message)
