"""How far groups are in light queues: one number for each (group, light queue), and nothing else.

A reader of a light queue is often a device of its own, and there are as many of them as queues: a group that is only
this has no settings, no members and no object here but a number: how many offsets it has.

    topic id → partition u32 | group | 00 | name → offset    16 bytes and the names, in one dictionary a topic
    group → count

The number is the next offset to read. What is said last stands, also when it is less: a device may go back.
"""

from __future__ import annotations

import struct
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from itertools import chain, islice

from gateway.groups.machines.events import LightCommitted, LightForgotten, LightPosition
from gateway.groups.machines.progress import COMMITS_MAX

_PARTITION = struct.Struct(">I")
_NAME_BEGINS = b"\0"

KEYS_A_STRETCH = 20_000
"""Offsets of all groups that are looked at in one turn of the event loop: 2 ms."""

FORGOTTEN = -1
"""In place of an offset: nothing is known any more."""

LIGHT_POSITION_BYTES = 180
"""What one takes besides its names: a key, an integer, a place in a dictionary."""

LIGHT_GROUP_BYTES = 180
"""What a group takes besides its name."""


class LightOffsets:
    """Those of one node. Changes through `apply` alone."""

    def __init__(self) -> None:
        self._topics: dict[int, dict[bytes, int]] = {}
        self.counts: Counter[str] = Counter()
        """How many each group has, of those that have some."""
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
        more = [one for one in event.positions if one.offset != FORGOTTEN]
        keys = {_key(one.partition, one.group, one.name) for one in more}
        groups = {one.group for one in more if one.group not in self.counts}
        return sum(_position_bytes(key) for key in keys if key not in known) + sum(map(_group_bytes, groups))

    def apply(self, event: LightCommitted | LightForgotten) -> None:
        """Change the table; the only way it changes, live or at start."""
        if isinstance(event, LightForgotten):
            for key in self._topics.pop(event.topic_id, {}):
                self._is_gone(_position(key, 0).group, key)
            return
        for partition, group, name, offset in event.positions:
            self.put(group, event.topic_id, partition, name, offset)

    def put(self, group: str, topic_id: int, partition: int, name: str, offset: int) -> None:
        """One of them is this now; nothing, if it is FORGOTTEN."""
        key = _key(partition, group, name)
        offsets = self._topics.get(topic_id, {})
        if offset == FORGOTTEN:
            if offsets.pop(key, None) is not None:
                self._is_gone(group, key)
                if not offsets:
                    del self._topics[topic_id]
            return
        if key not in offsets:
            offsets = self._topics.setdefault(topic_id, offsets)
            if group not in self.counts:
                self.size_bytes += _group_bytes(group)
            self.counts[group] += 1
            self.size_bytes += _position_bytes(key)
        offsets[key] = offset

    def _is_gone(self, group: str, key: bytes) -> None:
        self.size_bytes -= _position_bytes(key)
        self.counts[group] -= 1
        if not self.counts[group]:
            del self.counts[group]
            self.size_bytes -= _group_bytes(group)

    def of_group(self, group: str, topic_id: int) -> dict[tuple[int, str], int]:
        """All of a group in a topic, by partition and name. Goes through those of all groups."""
        found = chain.from_iterable(self.stretches_of(group, topic_id))
        return {(one.partition, one.name): one.offset for one in found}

    def stretches_of(
        self, group: str, topic_id: int, *, key_count: int = KEYS_A_STRETCH
    ) -> Iterator[list[LightPosition]]:
        """The same, in stretches of so many offsets of all groups, of those that were there at the first one: who asks
        for the next stretch may let others have a turn first."""
        offsets = self._topics.get(topic_id, {}) if group in self.counts else {}
        keys = list(offsets)
        wanted = group.encode() + _NAME_BEGINS
        for first in range(0, len(keys), key_count):
            yield [
                _position(key, offsets[key])
                for key in keys[first : first + key_count]
                if key.startswith(wanted, _PARTITION.size) and key in offsets
            ]

    def topic_ids(self) -> list[int]:
        """Topics in which any group has one."""
        return sorted(self._topics)

    def decide_prune(self, exists: Callable[[int], bool]) -> list[LightForgotten]:
        """Forget those of topics that are gone."""
        return [LightForgotten(topic_id) for topic_id in sorted(self._topics) if not exists(topic_id)]

    def drop(self, is_meant: Callable[[str], bool]) -> Iterator[None]:
        """Have none of some groups any more. It is done in stretches of KEYS_A_STRETCH: who asks for the next one may
        let others have a turn first."""
        for topic_id in self.topic_ids():
            keys = list(self._topics.get(topic_id, {}))
            for first in range(0, len(keys), KEYS_A_STRETCH):
                for partition, group, name, _ in (_position(key, 0) for key in keys[first : first + KEYS_A_STRETCH]):
                    if is_meant(group):
                        self.put(group, topic_id, partition, name, FORGOTTEN)
                yield

    def snapshot(self, is_meant: Callable[[str], bool]) -> Iterable[LightCommitted]:
        """Events that lead an empty table to this state, as it is at this call, of some groups; they are made later,
        one by one."""
        return _events_of([(topic_id, dict(offsets)) for topic_id, offsets in sorted(self._topics.items())], is_meant)


def _events_of(
    topics: Iterable[tuple[int, dict[bytes, int]]], is_meant: Callable[[str], bool]
) -> Iterator[LightCommitted]:
    for topic_id, offsets in topics:
        positions = (_position(key, offset) for key, offset in offsets.items())
        yield from light_committed(topic_id, (position for position in positions if is_meant(position.group)))


def light_committed(topic_id: int, positions: Iterable[LightPosition], group: str = "") -> Iterator[LightCommitted]:
    """Events that say so, none too large. `group`: as `LightCommitted` has it."""
    left = iter(positions)
    while some := tuple(islice(left, COMMITS_MAX)):
        yield LightCommitted(topic_id, some, group)


def _position_bytes(key: bytes) -> int:
    return LIGHT_POSITION_BYTES + len(key)


def _group_bytes(group: str) -> int:
    return LIGHT_GROUP_BYTES + len(group.encode())


def _key(partition: int, group: str, name: str) -> bytes:
    return _PARTITION.pack(partition) + group.encode() + _NAME_BEGINS + name.encode()


def _position(key: bytes, offset: int) -> LightPosition:
    group, _, name = key[_PARTITION.size :].partition(_NAME_BEGINS)
    return LightPosition(_PARTITION.unpack_from(key)[0], group.decode(), name.decode(), offset)
