"""What a subscription's last frames were, so that a resumed session goes on exactly behind the last one seen. Pure.

Frames of a subscription are numbered from 1. For each the journal keeps where its partition was before it and what it
cost, in 32 bytes; what it held is in the log. Older ones than the last FRAMES_MAX are forgotten, some at a time.

    sent        1 p0@0   2 p0@10   3 p1@0   4 p0@20
    seen 2      rewind(2) = [4 p0@20, 3 p1@0]: p0 goes on at 20, p1 at 0, and the next frame is 3

Invariants
    J1  after rewind(n) the journal is as if the frames after n had never been sent
    J2  a frame that is forgotten was sent more than FRAMES_MAX frames ago, or confirmed
"""

from __future__ import annotations

from array import array
from typing import NamedTuple

FRAMES_MAX = 4096
"""Frames that are remembered."""


class Forgotten(Exception):
    """Frames after this one are not remembered any more, or it was never sent."""


class Frame(NamedTuple):
    """One frame: the number of its partition in the feed, the offset before it, what it cost."""

    fed_number: int
    start: int
    message_count: int
    byte_count: int


_FIELDS = len(Frame._fields)


class Journal:
    """The last frames of one subscription. With `frames_max` 0 it only counts."""

    __slots__ = ("_first", "_frames", "_frames_max", "last")

    def __init__(self, frames_max: int = FRAMES_MAX) -> None:
        self.last = 0
        """Number of the last frame."""

        self._frames_max = frames_max
        self._first = 1  # number of the oldest frame in `_frames`; last + 1 when there is none
        self._frames = array("q")

    def sent(self, frame: Frame) -> int:
        """Remember a frame; its number."""
        self.last += 1
        self._frames.extend(frame)
        # Many at a time: an array moves what is behind when its head is cut.
        if self.last - self._first >= self._frames_max + self._frames_max // 8:
            self._forget(self.last - self._frames_max)
        return self.last

    def confirm(self, seen: int) -> None:
        """The client has seen the frames up to this one. Raises Forgotten for one that was never sent."""
        if seen > self.last:
            raise Forgotten(f"frame {seen} was never sent; the last one was {self.last}")
        self._forget(seen)

    def rewind(self, seen: int) -> list[Frame]:
        """Take back the frames after `seen`; them, the last one first. Raises Forgotten, and then nothing changed."""
        if not self._first - 1 <= seen <= self.last:
            raise Forgotten(f"frame {seen} is not remembered; {self._first - 1} to {self.last} are")
        numbers = self._frames
        cut = (seen - self._first + 1) * _FIELDS
        frames = [Frame(*numbers[at : at + _FIELDS]) for at in range(len(numbers) - _FIELDS, cut - 1, -_FIELDS)]
        del numbers[cut:]
        self.last = seen
        return frames

    def _forget(self, upto: int) -> None:
        count = max(upto - self._first + 1, 0)
        del self._frames[: count * _FIELDS]
        self._first += count
