"""How far a subscription is in each of its partitions. Pure.

    committed <= done <= given <= next        each is the offset of the next record in question

    next        records below it were received (a reader goes on there after a lost session)
    given       … were given to the consumer
    done        … were worked off by it
    committed   … are known to be committed (stream)

Only a seek goes back.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator

from mq.errors import Undecodable

Partitions = dict[str, list[int]]
"""Topic -> partitions, as frames write them."""

_NEXT_OFFSET = re.compile(r"([^:;=]+):(\d+)=(\d+)")


class Progress:
    """One partition. `frames`: how many of its frames wait here or are being worked off."""

    __slots__ = (
        "committed",
        "done",
        "drain_by_s",
        "frames",
        "given",
        "is_gone",
        "is_revoked",
        "next",
        "partition",
        "topic",
    )

    def __init__(self, topic: str, partition: int, next_offset: int) -> None:
        self.topic = topic
        self.partition = partition
        self.next = self.given = self.done = self.committed = next_offset
        self.frames = 0
        self.is_revoked = False
        """To be given up as soon as everything that came is done."""
        self.drain_by_s = 0.0
        """Until when that may take, on the monotonic clock."""
        self.is_gone = False
        """Another member's, or deleted: nothing of it may be committed."""

    def seek(self, offset: int, *, commits: bool) -> None:
        """Begin at another offset. With `commits` the next commit tells the group."""
        self.next = self.given = self.done = offset
        self.committed = -1 if commits else offset

    def rejoin(self, offset: int) -> None:
        """The group goes on at `offset` after this client was away. What the group was not told any more was given here
        already, unless the group was set back behind what it had committed."""
        if offset < self.committed or offset > self.given:
            self.seek(offset, commits=False)
        else:
            self.next = self.committed = offset
            self.done = max(self.done, offset)
        self.is_revoked = False


class ProgressTable:
    """The partitions of a subscription."""

    def __init__(self) -> None:
        self._progress: dict[tuple[str, int], Progress] = {}

    def __iter__(self) -> Iterator[Progress]:
        return iter(list(self._progress.values()))

    def __len__(self) -> int:
        return len(self._progress)

    def get(self, topic: str, partition: int) -> Progress | None:
        """The partition, if the subscription has it."""
        return self._progress.get((topic, partition))

    def add(self, topic: str, partition: int, next_offset: int) -> Progress:
        """Begin a partition."""
        progress = self._progress[topic, partition] = Progress(topic, partition, next_offset)
        return progress

    def drop(self, progress: Progress) -> None:
        """Forget a partition for good."""
        progress.is_gone = True
        self._progress.pop((progress.topic, progress.partition), None)

    def of(self, partitions: Partitions) -> list[Progress]:
        """Those of these partitions that are here."""
        return [progress for progress in self if progress.partition in partitions.get(progress.topic, ())]


def write_cursor(partitions: Iterable[Progress], offset_of: Callable[[Progress], int]) -> str:
    """`orders:0=101;orders:1=88`."""
    return ";".join(f"{progress.topic}:{progress.partition}={offset_of(progress)}" for progress in partitions)


def read_cursor(cursor: str) -> list[tuple[str, int, int]]:
    """Topic, partition and next offset of each partition that a cursor names. Raises Undecodable."""
    next_offsets: list[tuple[str, int, int]] = []
    for written in cursor.split(";") if cursor else ():
        match = _NEXT_OFFSET.fullmatch(written)
        if match is None:
            raise Undecodable(f"{written!r} is not `topic:partition=offset`")
        next_offsets.append((match[1], int(match[2]), int(match[3])))
    return next_offsets


def partitions_of(assigned: Iterable[Progress]) -> Partitions:
    """Partitions as frames write them."""
    partitions: Partitions = {}
    for progress in assigned:
        partitions.setdefault(progress.topic, []).append(progress.partition)
    return partitions
