"""How many schedules are pending: in all, by topic, and by when they are due.

Kept up by whatever adds or removes a pending schedule, so a count over time looks at no schedule. After a clean stop
it is read from its file (timer/pending_file.py); after a crash recovery counts the units that it hangs up again.

    near      those that wait in the slot of their due time: by the minute, an hour a page
    rolled    those that wait in an intermediate slot, as they are due later: by the quarter of an hour, a day a page
              (all time zones of today are whole quarters off)

    page      (topic id, number of the hour or day since the epoch) -> its counts, and their sum

Each is kept of all topics together, and by topic. A page that holds nothing is removed. When topics and times would
make more than PAGES_MAX pages, those by topic are given up until the next start.
"""

from __future__ import annotations

import heapq
from array import array
from bisect import bisect_right
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from operator import itemgetter
from typing import NamedTuple, TypeAlias

from timer.items import Item, fire_ms_of

MINUTE_MS = 60_000
QUARTER_MS = 15 * MINUTE_MS

PAGES_MAX = 65_536
"""Pages by topic, of what is near and of what has rolled each; a page takes some 400 bytes with its place in the table.
Of all topics together there are at most as many as the longest delay has days, and the roll window hours."""

ALL_TOPICS = 0
"""The topic id of what is kept of all topics together. No topic has it."""

Page: TypeAlias = "array[int]"
"""Counts, and their sum as the last one."""


class TimeCounts:
    """Counts by topic and time, in bins of one length."""

    def __init__(self, bin_ms: int, page_bins: int) -> None:
        self.bin_ms = bin_ms
        self.page_bins = page_bins
        self._pages: dict[tuple[int, int], Page] = {}

    def add(self, topic_id: int, due_ms: int, count: int) -> None:
        """Count so many more (or, below 0, less) of a topic at a time."""
        number, at = divmod(due_ms // self.bin_ms, self.page_bins)
        key = topic_id, number
        page = self._pages.get(key)
        if page is None:
            page = self._pages[key] = array("i", bytes(4 * (self.page_bins + 1)))
        page[at] += count
        page[-1] += count
        if not page[-1]:
            del self._pages[key]

    def __len__(self) -> int:
        """How many pages there are."""
        return len(self._pages)

    def pages(self, topic_ids: frozenset[int] | None) -> list[tuple[int, Page]]:
        """The pages of some topics (None: all) with their numbers, in no order."""
        return [
            (number, page)
            for (topic_id, number), page in self._pages.items()
            if topic_ids is None or topic_id in topic_ids
        ]

    def rows(self) -> list[tuple[int, int, Page]]:
        """All pages, with their topics and numbers."""
        return [(topic_id, number, page) for (topic_id, number), page in self._pages.items()]

    def restore(self, pages: Iterable[tuple[int, int, Sequence[int]]]) -> None:
        """Take over what `rows` told; the sums of the pages may be missing."""
        for topic_id, number, page in pages:
            counts = page[: self.page_bins]
            self._pages[topic_id, number] = array("i", [*counts, sum(counts)])

    def spread(self, number: int, page: Page, bounds_ms: Sequence[int], counts: list[int], split: Counter[int]) -> None:
        """Add a page to counts between bounds that rise: `counts[i]` is of what is before `bounds_ms[i]`, the last one
        of what is behind all. A bin in which a bound lies is added to `split` instead, by its start."""
        bin_ms = self.bin_ms
        first_ms = number * self.page_bins * bin_ms
        index = bisect_right(bounds_ms, first_ms)
        if index == len(bounds_ms) or bounds_ms[index] >= first_ms + self.page_bins * bin_ms:
            counts[index] += page[-1]
            return
        for at in range(self.page_bins):
            if page[at]:
                start_ms = first_ms + at * bin_ms
                index = bisect_right(bounds_ms, start_ms)
                if index == len(bounds_ms) or bounds_ms[index] >= start_ms + bin_ms:
                    counts[index] += page[at]
                else:
                    split[start_ms] += page[at]

    def bins(self, topic_ids: frozenset[int] | None, from_ms: int) -> Iterator[tuple[int, int, int]]:
        """Start, end and count of all bins that do not end before a time and are not empty. Page by page in order; of
        many topics there may be pages of one time."""
        pages = self.pages(topic_ids)
        from_number = from_ms // self.bin_ms // self.page_bins
        heap = [(number, at) for at, (number, _) in enumerate(pages) if number >= from_number]
        heapq.heapify(heap)  # most often few are asked for
        while heap:
            number, at = heapq.heappop(heap)
            page, first_ms = pages[at][1], number * self.page_bins * self.bin_ms
            for bin_ in range(max(0, from_ms - first_ms) // self.bin_ms, self.page_bins):
                if page[bin_]:
                    start_ms = first_ms + bin_ * self.bin_ms
                    yield start_ms, start_ms + self.bin_ms, page[bin_]


class Times(tuple[TimeCounts, TimeCounts]):
    """Counts of what is near and of what has rolled."""

    __slots__ = ()

    def __new__(cls) -> Times:
        """Both empty."""
        return super().__new__(cls, (TimeCounts(MINUTE_MS, 60), TimeCounts(QUARTER_MS, 96)))


class Span(NamedTuple):
    """A time up to `end_ms`: whether nothing is due later, and whether any in it has rolled."""

    end_ms: int
    is_all: bool
    has_rolled: bool


class PendingCounts:
    """The counts of one timer."""

    def __init__(self) -> None:
        self.total = 0
        self.by_topic: dict[int, int] = {}
        self.of_all = Times()
        self.of_topics: Times | None = Times()  # None: too many pages

    def add(self, topic_id: int, due_ms: int, *, rolls: bool, count: int = 1) -> None:
        """Count schedules more that are pending."""
        self.total += count
        self.by_topic[topic_id] = self.by_topic.get(topic_id, 0) + count
        self.of_all[rolls].add(ALL_TOPICS, due_ms, count)
        if self.of_topics is not None:
            self.of_topics[rolls].add(topic_id, due_ms, count)
            if len(self.of_topics[rolls]) > PAGES_MAX:
                self.of_topics = None

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

    def times(self, topic_ids: frozenset[int] | None) -> tuple[Times, frozenset[int] | None] | None:
        """What knows when schedules of some topics (None: all) are due, and what to ask it for; None: nothing does."""
        if topic_ids is None or all(topic_id in topic_ids for topic_id, count in self.by_topic.items() if count):
            return self.of_all, None
        return None if self.of_topics is None else (self.of_topics, topic_ids)

    def next_ones(self, topic_ids: frozenset[int] | None, from_ms: int, count_least: int) -> Span:
        """The time from a time on in which at least `count_least` of some topics are due, or all; it is not much longer
        than it must be. When it is not known when just these topics are due: as if their share were the same at all
        times."""
        if (known := self.times(topic_ids)) is None:
            meant = sum(self.by_topic.get(topic_id, 0) for topic_id in topic_ids or ())
            count_least = -(-count_least * self.total // max(meant, 1))
            known = self.of_all, None
        times, topic_ids = known
        count, end_ms, has_rolled = 0, from_ms, False
        for start_ms, stop_ms, some in heapq.merge(
            *(part.bins(topic_ids, from_ms) for part in times), key=itemgetter(0)
        ):
            if count >= count_least and start_ms >= end_ms:
                return Span(end_ms, False, has_rolled)
            count += some
            end_ms = max(end_ms, stop_ms)
            has_rolled = has_rolled or stop_ms - start_ms == QUARTER_MS
        return Span(end_ms, True, has_rolled)
