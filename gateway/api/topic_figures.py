"""How much topics hold and get: exactly for a few, and as it was some seconds ago for all of them, to sort by.

What all hold is added up over every partition, a tenth of a second for 100,000: in turns of the event loop, at
most once in SNAPSHOT_MS, and only when a request asks for them. In a cluster it is one question to each node, which
counts what it has itself, and what of its partitions lies on Kafka clusters: while Kafka does not answer, nothing of
that. Topics that others write to as well are not counted: their offsets have holes.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from operator import add
from time import monotonic
from typing import NamedTuple

from gateway.api.figures import Figures
from gateway.routing.base import Route, Routes, TopicView
from store.errors import StoreError, UnknownQueue

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


ASKED_AT_ONCE = 32
"""Segments on Kafka clusters that are asked for at a time."""

Row = Sequence[float]
"""A topic's id and figures, for another node."""

Others = Callable[[Sequence[int] | None], Awaitable[tuple[Sequence[Sequence[Row]], Sequence[str]]]]
"""What each other node of the cluster has of topics (None: of all), and which nodes do not answer."""


async def _no_others(_: Sequence[int] | None) -> tuple[Sequence[Sequence[Row]], Sequence[str]]:
    return (), ()


class Summed(NamedTuple):
    """The figures of topics, by id, and the nodes that did not answer: what they have is not in them."""

    by_id: Mapping[int, TopicFigure]
    missing: Sequence[str]


class TopicFigures:
    """The figures of one server's topics; in a cluster each node counts what is on its own broker (`own`), and the node
    that is asked adds up. `monotonic_s` is for the age of the snapshot."""

    def __init__(
        self,
        routes: Routes,
        figures: Figures,
        *,
        own: str,
        others: Others = _no_others,
        monotonic_s: Callable[[], float] = monotonic,
    ) -> None:
        self._routes = routes
        self._figures = figures
        self._own = own
        self._others = others
        self._monotonic_s = monotonic_s
        self._snapshot = Summed({}, ())
        self._good_until_s = float("-inf")
        self._making = asyncio.Lock()

    async def of(self, views: Sequence[TopicView]) -> Summed:
        """As it is now. A topic that is deleted meanwhile is left out."""
        return await self._summed(views, [view.topic_id for view in views])

    async def lately(self, views: Sequence[TopicView]) -> Summed:
        """As it was up to SNAPSHOT_MS ago. `views`: all topics."""
        async with self._making:  # who comes meanwhile gets what is being made
            if self._monotonic_s() >= self._good_until_s:
                self._snapshot = await self._summed(views, None)
                self._good_until_s = self._monotonic_s() + SNAPSHOT_MS / 1000
        return self._snapshot

    async def rows(self, topic_ids: Sequence[int] | None) -> list[Row]:
        """What this node has of topics, for another node."""
        views: Sequence[TopicView] = self._routes.topics()
        if topic_ids is not None:
            wanted = frozenset(topic_ids)
            views = [view for view in views if view.topic_id in wanted]
        return [(topic_id, *figure) for topic_id, figure in (await self._own_part(views)).items()]

    async def _summed(self, views: Sequence[TopicView], topic_ids: Sequence[int] | None) -> Summed:
        sums, (others, missing) = await asyncio.gather(self._own_part(views), self._others(topic_ids))
        for rows in others:
            for number, (topic_id, *more) in enumerate(rows, 1):
                if (known := sums.get(int(topic_id))) is not None:
                    sums[int(topic_id)] = TopicFigure(*map(add, known, more))
                if number % PARTITIONS_A_TURN == 0:
                    await asyncio.sleep(0)
        return Summed(sums, missing)

    async def _own_part(self, views: Sequence[TopicView]) -> dict[int, TopicFigure]:
        found: dict[int, TopicFigure] = {}
        pending = self._figures.pending_by_topic()
        seen = 0
        for view in views:
            records = 0
            on_kafka: list[Route] = []
            is_attached = self._routes.attached(view.topic_id) is not None
            try:
                for partition in range(view.partitions):
                    chain = self._routes.chain(view.name, partition)
                    is_owned = chain[-1].broker.served_by == self._own and not is_attached
                    for segment in chain:
                        if segment.broker.name == self._own:
                            records += await _held(segment)
                        elif is_owned and segment.broker.served_by == self._own:  # a Kafka cluster's
                            on_kafka.append(segment)
                    seen += 1
                    if seen % PARTITIONS_A_TURN == 0:
                        await asyncio.sleep(0)
            except UnknownQueue:
                continue
            for first in range(0, len(on_kafka), ASKED_AT_ONCE):
                records += sum(await asyncio.gather(*map(_held_there, on_kafka[first : first + ASKED_AT_ONCE])))
            _, size = self._figures.appended(view.topic_id)
            rate = self._figures.topic_rate(view.topic_id)
            found[view.topic_id] = TopicFigure(records, size, *rate, pending.get(view.topic_id, 0))
        return found


async def _held_there(segment: Route) -> int:
    """As `_held`, of a Kafka cluster, which may be away."""
    try:
        return await _held(segment)
    except StoreError:
        return 0


async def _held(segment: Route) -> int:
    """How many records of a segment its broker has. One that was taken over ends behind what there is of it."""
    bounds = await segment.broker.bounds(segment.queue)
    end = bounds.max_offset if segment.physical_end is None else min(segment.physical_end, bounds.max_offset)
    return max(0, end - max(bounds.min_offset, segment.physical_start))
