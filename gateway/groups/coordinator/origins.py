"""Which topics the dead letters of each group came from: their readers must be allowed to read those.

The letters say it themselves (`mq-origin-topic`). After a start they are read once, in the background; from then on
each topic is noted before the first letter from it is written. So nothing more is kept on disk, and no crash makes it
wrong:

    crash                                        what the next start finds
    after a topic is noted, before its letter    no letter, and the topic is not named
    after the letter                             the letter, which names the topic

A topic stays named until the next start, though retention may take its letters earlier.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Collection, Iterable

from gateway.groups.coordinator.context import Context
from gateway.groups.machines.copies import DEAD_LETTER_PREFIX, dead_letter_topic, origin_of
from store.errors import StoreError

log = logging.getLogger(__name__)


class Origins:
    """The origins of the dead letters of all groups of one node."""

    def __init__(self, context: Context) -> None:
        self.on_change: Callable[[], None] = lambda: None
        """Called when a group has dead letters from a topic more, before there is one of them, or has been read."""

        self._context = context
        self._of: dict[str, set[str]] = {}
        self._unread: set[str] = set()
        self._expected = asyncio.Event()

    def of(self, group: str) -> Collection[str] | None:
        """The topics; None while that is not known."""
        return None if group in self._unread else self._of.get(group, ())

    def note(self, group: str, topics: Iterable[str]) -> None:
        """Dead letters from these topics are about to be written."""
        known = self._of.setdefault(group, set())
        if not known.issuperset(topics := set(topics)):
            known |= topics
            self.on_change()

    def start(self) -> None:
        """Nothing is known of the letters that are there."""
        names = (topic.name for topic in self._context.routes.topics())
        self._unread = {name.removeprefix(DEAD_LETTER_PREFIX) for name in names if name.startswith(DEAD_LETTER_PREFIX)}

    def expect(self, group: str) -> None:
        """A group has come from another node, with its letters."""
        self._unread.add(group)
        self._expected.set()

    async def run(self) -> None:
        """Read all letters that were there at the start, and those of groups that come, until cancelled."""
        while True:
            self._expected.clear()
            await self.read()
            await self._expected.wait()

    async def read(self) -> None:
        """Read what is not known. What cannot be read stays unknown."""
        for group in sorted(self._unread):
            try:
                await self._read(group)
            except StoreError as error:
                log.warning("dead letters cannot be read, only those may who may read all group=%s %s", group, error)

    async def _read(self, group: str) -> None:
        name = dead_letter_topic(group)
        view = self._context.find_topic(name)
        for partition in range(0 if view is None else view.partitions):
            at, end = await self._context.records.bounds(name, partition)
            while at < end:
                step = await self._context.records.step(name, partition, at)
                origins = {origin_of(record.headers) for entry in step.entries for record in entry.records}
                if None in origins:
                    log.warning("dead letters without an origin, only those may read who may read all group=%s", group)
                    return
                self._of.setdefault(group, set()).update(origin.topic for origin in origins if origin is not None)
                if step.next_offset <= at:
                    break
                at = step.next_offset
                await asyncio.sleep(0)  # 256 KiB of records were decoded
        self._unread.discard(group)
        self.on_change()
