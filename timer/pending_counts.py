"""How many schedules are pending: in all, by topic, and by the minute in which they are due.

Kept up by whatever adds or removes a pending schedule, so a count over time looks at no schedule. After a clean stop
it is read from its file (timer/pending_file.py); after a crash recovery counts the units that it hangs up again.

The minutes of one hour are a page, of 300 bytes:

    (topic id, hour) -> 60 counts, and their sum

A page that holds nothing is removed. When topics and hours would make more than PAGES_MAX pages, the pages of all
topics are merged, and what is due when is known for all topics together only, until the next start.
"""

from __future__ import annotations

from array import array
from bisect import bisect_right
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import TypeAlias

from timer.items import Item, fire_ms_of

MINUTE_MS = 60_000
PAGE_MINUTES = 60
PAGES_MAX = 65_536
"""Pages by topic, of some 400 bytes with their place in the table. Of all topics together there are at most as many as
the longest delay has hours."""

ALL_TOPICS = 0
"""The topic id of merged pages. No topic has it."""

_SUM = PAGE_MINUTES  # the place of a page's sum

Hour: TypeAlias = "array[int]"
"""The 60 minutes of an hour, and their sum."""


class MinuteCounts:
    """Counts by topic and minute."""

    def __init__(self) -> None:
        self._pages: dict[tuple[int, int], Hour] = {}
        self._is_merged = False

    def add(self, topic_id: int, minute: int, count: int) -> None:
        """Count so many more (or, below 0, less) of a topic in a minute of the epoch."""
        hour = minute // PAGE_MINUTES
        key = (ALL_TOPICS, hour) if self._is_merged else (topic_id, hour)
        page = self._pages.get(key)
        if page is None:
            if len(self._pages) >= PAGES_MAX and not self._is_merged:
                self._merge()
                self.add(topic_id, minute, count)
                return
            page = self._pages[key] = array("i", bytes(4 * (PAGE_MINUTES + 1)))
        page[minute % PAGE_MINUTES] += count
        page[_SUM] += count
        if not page[_SUM]:
            del self._pages[key]

    def _merge(self) -> None:
        pages, self._pages, self._is_merged = self._pages, {}, True
        for (_, hour), page in pages.items():
            for at in range(PAGE_MINUTES):
                if page[at]:
                    self.add(ALL_TOPICS, hour * PAGE_MINUTES + at, page[at])

    @property
    def is_merged(self) -> bool:
        """Whether all topics are counted together."""
        return self._is_merged

    def pages(self, topic_ids: frozenset[int] | None) -> list[tuple[int, Hour]]:
        """The pages of some topics (None: all) with their hours, in no order. Of all topics when they are merged."""
        if topic_ids is None or self._is_merged:
            return [(hour, page) for (_, hour), page in self._pages.items()]
        return [(hour, page) for (topic_id, hour), page in self._pages.items() if topic_id in topic_ids]

    def by_topic(self) -> list[tuple[int, int, Hour]]:
        """All pages, with their topics and hours."""
        return [(topic_id, hour, page) for (topic_id, hour), page in self._pages.items()]

    def restore(self, pages: Iterable[tuple[int, int, Sequence[int]]], *, is_merged: bool) -> None:
        """Become what `by_topic` and `is_merged` told; the sums of the pages may be missing."""
        self._is_merged = is_merged
        for topic_id, hour, page in pages:
            counts = page[:PAGE_MINUTES]
            self._pages[topic_id, hour] = array("i", [*counts, sum(counts)])


class PendingCounts:
    """The counts of one timer."""

    def __init__(self) -> None:
        self.total = 0
        self.by_topic: dict[int, int] = {}
        self.due = MinuteCounts()
        self.rolled = MinuteCounts()
        """Of these, those that wait in an intermediate slot; by the minute in which they are due all the same."""

    def add(self, topic_id: int, due_ms: int, *, rolls: bool, count: int = 1) -> None:
        """Count schedules more that are pending."""
        self.total += count
        self.by_topic[topic_id] = self.by_topic.get(topic_id, 0) + count
        minute = due_ms // MINUTE_MS
        self.due.add(topic_id, minute, count)
        if rolls:
            self.rolled.add(topic_id, minute, count)

    def remove(self, topic_id: int, due_ms: int, *, rolls: bool, count: int = 1) -> None:
        """Count schedules less that were counted so."""
        self.add(topic_id, due_ms, rolls=rolls, count=-count)

    def remove_fired(self, topic_id: int, items: Sequence[Item]) -> None:
        """Count less what has fired: one step for each minute, and nearly always that is one."""
        first_minute, last_minute = fire_ms_of(min(items)) // MINUTE_MS, fire_ms_of(max(items)) // MINUTE_MS
        if first_minute == last_minute:
            minutes = {first_minute: len(items)}
        else:
            minutes = Counter(fire_ms_of(item) // MINUTE_MS for item in items)
        for minute, count in minutes.items():
            self.remove(topic_id, minute * MINUTE_MS, rolls=False, count=count)

    def knows(self, topic_ids: frozenset[int] | None) -> bool:
        """Whether what is due when is known of just these topics."""
        if topic_ids is None or not self.due.is_merged:
            return True
        return all(topic_id in topic_ids for topic_id, count in self.by_topic.items() if count)


def spread(hour: int, page: Hour, bounds: Sequence[int], counts: list[int]) -> None:
    """Add a page to counts between bounds, minutes that rise: `counts[i]` is of what is before `bounds[i]`, the last
    one of what is behind all."""
    first = hour * PAGE_MINUTES
    index = bisect_right(bounds, first)
    if index == len(bounds) or bounds[index] >= first + PAGE_MINUTES:
        counts[index] += page[_SUM]
        return
    for at in range(PAGE_MINUTES):
        counts[bisect_right(bounds, first + at)] += page[at]


def end_of(pages: list[tuple[int, Hour]], from_minute: int, count_least: int) -> tuple[int, bool]:
    """A minute before which at least `count_least` are due from a minute on, or all; and whether it is all. It is the
    first such minute, or of many topics one of the same hour."""
    count, end = 0, from_minute
    for hour, page in sorted(pages, key=lambda of_hour: of_hour[0]):
        first = hour * PAGE_MINUTES
        if first + PAGE_MINUTES <= from_minute:
            continue
        for at in range(max(0, from_minute - first), PAGE_MINUTES):
            if page[at]:
                if count >= count_least and first + at >= end:
                    return end, False
                count += page[at]
                end = max(end, first + at + 1)
    return end, True
