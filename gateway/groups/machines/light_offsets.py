"""How far groups are in light queues: one number for each (group, light queue), and nothing else.

A reader of a light queue is often a device of its own, and there are as many of them as queues: a group that is only
this has no settings, no members, no object here, and counts in no list of groups.

    topic id → partition u32 | group | 00 | name → offset    16 bytes and the names, in one dictionary a topic

The number is the next offset to read. What is said last stands, also when it is less: a device may go back.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable, Iterator
from itertools import islice

from gateway.groups.machines.events import LightCommitted, LightForgotten, LightPosition
from gateway.groups.machines.progress import COMMITS_MAX

_PARTITION = struct.Struct(">I")
_NAME_BEGINS = b"\0"

FORGOTTEN = -1
"""In place of an offset: nothing is known any more."""

LIGHT_POSITION_BYTES = 180
"""What one takes besides its names: a key, an integer, a place in a dictionary."""


class LightOffsets:
    """Those of one node. Changes through `apply` alone."""

    def __init__(self) -> None:
        self._topics: dict[int, dict[bytes, int]] = {}
        self._bytes: dict[int, int] = {}  # of each topic
        self.size_bytes = 0
        """What they take, about."""

    def __len__(self) -> int:
        return sum(map(len, self._topics.values()))

    def get(self, group: str, topic_id: int, partition: int, name: str) -> int | None:
        """The next offset that a group reads; None: it has never said."""
        return self._topics.get(topic_id, {}).get(_key(partition, group, name))

    def added_bytes(self, event: LightCommitted) -> int:
        """How much more they would take with this."""
        known = self._topics.get(event.topic_id, {})
        keys = {_key(one.partition, one.group, one.name) for one in event.positions if one.offset != FORGOTTEN}
        return sum(LIGHT_POSITION_BYTES + len(key) for key in keys if key not in known)

    def apply(self, event: LightCommitted | LightForgotten) -> None:
        """Change the table; the only way it changes, live or at start."""
        if isinstance(event, LightForgotten):
            if self._topics.pop(event.topic_id, None) is not None:
                self.size_bytes -= self._bytes.pop(event.topic_id)
            return
        topic_id, more = event.topic_id, 0
        offsets = self._topics.setdefault(topic_id, {})
        for partition, group, name, offset in event.positions:
            key = _key(partition, group, name)
            is_known = key in offsets
            if offset != FORGOTTEN:
                offsets[key] = offset
                more += 0 if is_known else LIGHT_POSITION_BYTES + len(key)
            elif is_known:
                del offsets[key]
                more -= LIGHT_POSITION_BYTES + len(key)
        self.size_bytes += more
        self._bytes[topic_id] = self._bytes.get(topic_id, 0) + more
        if not offsets:
            del self._topics[topic_id], self._bytes[topic_id]

    def decide_prune(self, exists: Callable[[int], bool]) -> list[LightForgotten]:
        """Forget those of topics that are gone."""
        return [LightForgotten(topic_id) for topic_id in sorted(self._topics) if not exists(topic_id)]

    def snapshot(self) -> Iterable[LightCommitted]:
        """Events that lead an empty table to this state, as it is at this call; they are made later, one by one."""
        return _events_of([(topic_id, dict(offsets)) for topic_id, offsets in sorted(self._topics.items())])


def _events_of(topics: Iterable[tuple[int, dict[bytes, int]]]) -> Iterator[LightCommitted]:
    for topic_id, offsets in topics:
        left = iter(offsets.items())
        while some := tuple(_position(key, offset) for key, offset in islice(left, COMMITS_MAX)):
            yield LightCommitted(topic_id, some)


def _key(partition: int, group: str, name: str) -> bytes:
    return _PARTITION.pack(partition) + group.encode() + _NAME_BEGINS + name.encode()


def _position(key: bytes, offset: int) -> LightPosition:
    group, _, name = key[_PARTITION.size :].partition(_NAME_BEGINS)
    return LightPosition(_PARTITION.unpack_from(key)[0], group.decode(), name.decode(), offset)
