"""How much topics hold and get: exactly for a few, and as it was some seconds ago for all of them, to sort by.

What all hold is added up over every partition, a tenth of a second for 100,000: in turns of the event loop, at
most once in SNAPSHOT_MS, and only when a request asks for them.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from time import monotonic
from typing import NamedTuple

from gateway.api.figures import Figures
from gateway.api.read import Consumer
from gateway.routing.base import TopicView
from store.errors import UnknownQueue

SNAPSHOT_MS = 5_000
PARTITIONS_A_TURN = 256
"""Partitions looked at between two turns of the event loop: 2 us each."""


class TopicFigure(NamedTuple):
    """One topic: `records` readable now; `appended_bytes` since the server started; rates of the last seconds; delayed
    records to come."""

    records: int
    appended_bytes: int
    in_records_s: float
    in_bytes_s: float
    pending: int


class TopicFigures:
    """The figures of one server's topics. `monotonic_s` is for the age of the snapshot."""

    def __init__(self, consumer: Consumer, figures: Figures, *, monotonic_s: Callable[[], float] = monotonic) -> None:
        self._consumer = consumer
        self._figures = figures
        self._monotonic_s = monotonic_s
        self._snapshot: Mapping[int, TopicFigure] = {}
        self._good_until_s = float("-inf")
        self._making = asyncio.Lock()

    async def of(self, views: Sequence[TopicView]) -> dict[int, TopicFigure]:
        """As it is now, by topic id. A topic that is deleted meanwhile is left out."""
        found: dict[int, TopicFigure] = {}
        pending = self._figures.pending_by_topic()
        seen = 0
        for view in views:
            records = 0
            try:
                for partition in range(view.partitions):
                    bounds = await self._consumer.bounds(view.name, partition)
                    records += bounds.max_offset - bounds.min_offset
                    seen += 1
                    if seen % PARTITIONS_A_TURN == 0:
                        await asyncio.sleep(0)
            except UnknownQueue:
                continue
            _, size = self._figures.appended(view.topic_id)
            rate = self._figures.topic_rate(view.topic_id)
            found[view.topic_id] = TopicFigure(records, size, *rate, pending.get(view.topic_id, 0))
        return found

    async def lately(self, views: Sequence[TopicView]) -> Mapping[int, TopicFigure]:
        """As it was up to SNAPSHOT_MS ago, by topic id. `views`: all topics."""
        async with self._making:  # who comes meanwhile gets what is being made
            if self._monotonic_s() >= self._good_until_s:
                self._snapshot = await self.of(views)
                self._good_until_s = self._monotonic_s() + SNAPSHOT_MS / 1000
        return self._snapshot
