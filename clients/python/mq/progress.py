"""How far a subscription is in each of its partitions. Pure.

    committed <= done <= given <= next        each is the offset of the next record in question

    next        records below it were received (a reader goes on there after a lost session)
    given       … were handed to the consumer
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

_PLACE = re.compile(r"([^:;=]+):(\d+)=(\d+)")


class Place:
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


class Places:
    """The partitions of a subscription."""

    def __init__(self) -> None:
        self._places: dict[tuple[str, int], Place] = {}

    def __iter__(self) -> Iterator[Place]:
        return iter(list(self._places.values()))

    def __len__(self) -> int:
        return len(self._places)

    def get(self, topic: str, partition: int) -> Place | None:
        """The partition, if the subscription has it."""
        return self._places.get((topic, partition))

    def add(self, topic: str, partition: int, next_offset: int) -> Place:
        """Begin a partition."""
        place = self._places[topic, partition] = Place(topic, partition, next_offset)
        return place

    def drop(self, place: Place) -> None:
        """Forget a partition for good."""
        place.is_gone = True
        self._places.pop((place.topic, place.partition), None)

    def of(self, partitions: Partitions) -> list[Place]:
        """Those of these partitions that are here."""
        return [place for place in self if place.partition in partitions.get(place.topic, ())]


def write_cursor(places: Iterable[Place], offset_of: Callable[[Place], int]) -> str:
    """`orders:0=101;orders:1=88`."""
    return ";".join(f"{place.topic}:{place.partition}={offset_of(place)}" for place in places)


def read_cursor(cursor: str) -> list[tuple[str, int, int]]:
    """Topic, partition and next offset of each place that a cursor names. Raises Undecodable."""
    places: list[tuple[str, int, int]] = []
    for written in cursor.split(";") if cursor else ():
        match = _PLACE.fullmatch(written)
        if match is None:
            raise Undecodable(f"{written!r} is not a place of a cursor")
        places.append((match[1], int(match[2]), int(match[3])))
    return places


def partitions_of(places: Iterable[Place]) -> Partitions:
    """Places as frames write them."""
    partitions: Partitions = {}
    for place in places:
        partitions.setdefault(place.topic, []).append(place.partition)
    return partitions
