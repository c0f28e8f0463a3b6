"""Which dead letters of a group are settled out of turn: sent back or purged one by one, before older ones. Pure.

How far a group's dead letters were sent back is its committed offset in their topic; what is settled behind it is kept
here, as ranges, in a document of the group (`KEY`): UTF-8 JSON, `[topic id, [[first, end], …]]`. Ranges rise and do not
touch. Once all before a range is settled the committed offset moves behind it, and the range goes.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable
from dataclasses import dataclass

import orjson

KEY = "dead-letters"
RANGES_MAX = 1_000
"""Ranges of one group: with 19 digits each they fit a document."""


@dataclass(frozen=True, slots=True)
class SettledLetters:
    """Offsets in the dead-letter topic of an id, as [first, end) ranges."""

    topic_id: int
    ranges: tuple[tuple[int, int], ...] = ()

    def __contains__(self, offset: int) -> bool:
        at = bisect_right(self.ranges, (offset, 1 << 63)) - 1
        return at >= 0 and offset < self.ranges[at][1]

    def count(self, low: int, high: int) -> int:
        """How many of [low, high) are settled."""
        return sum(max(min(end, high) - max(first, low), 0) for first, end in self.ranges)

    def following(self, offset: int) -> int:
        """The first offset from this one on that is not settled."""
        at = bisect_right(self.ranges, (offset, 1 << 63)) - 1
        return self.ranges[at][1] if at >= 0 and offset < self.ranges[at][1] else offset

    def with_offsets(self, offsets: Iterable[int]) -> SettledLetters:
        """With these settled too."""
        merged: list[list[int]] = []
        for first, end in sorted([*self.ranges, *((offset, offset + 1) for offset in offsets)]):
            if merged and first <= merged[-1][1]:
                merged[-1][1] = max(merged[-1][1], end)
            else:
                merged.append([first, end])
        return SettledLetters(self.topic_id, tuple((first, end) for first, end in merged))

    def behind(self, offset: int) -> SettledLetters:
        """Only what is at or behind this offset: the rest is known by the committed one."""
        return SettledLetters(
            self.topic_id, tuple((max(first, offset), end) for first, end in self.ranges if end > offset)
        )

    def encode(self) -> bytes | None:
        """The content of the document; None: none is needed."""
        return orjson.dumps([self.topic_id, self.ranges]) if self.ranges else None


def decode_settled(content: bytes | None, topic_id: int) -> SettledLetters:
    """What a document says of the topic of this id: nothing when it is of one that was there before."""
    if content is not None:
        its_topic_id, ranges = orjson.loads(content)
        if its_topic_id == topic_id:
            return SettledLetters(topic_id, tuple((first, end) for first, end in ranges))
    return SettledLetters(topic_id)
