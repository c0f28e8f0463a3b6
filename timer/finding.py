"""Which units of the timer log are due in some time and for some topics, at the speed of C: a million of them in some
hundredths of a second. Pure.

A due time has eight bytes, a topic id four. Of each unit single bytes are compared first, those of many units in one
step: a byte that no wanted due time has rules its unit out. When so many times are wanted that neither byte 4 nor byte
5 alone would rule much out (days that begin at an odd minute, of a year), both are looked up together, which costs more
than a byte and a quarter of looking at the unit. What is left is looked at one by one.

    byte of the due time      3        4       5         of the topic id    2        3
    is the same for       49.7 days  4.7 h   65.5 s
"""

from __future__ import annotations

import struct
import sys
from bisect import bisect_right
from collections.abc import Collection, Iterable, Iterator, Sequence
from itertools import compress
from operator import itemgetter
from typing import NamedTuple

from timer.timer_log import DUE_AT, TOPIC_ID_AT, UNIT_BYTES

_DUE = struct.Struct(">q")
_TOPIC_ID = struct.Struct(">i")
_DUE_BYTES = (3, 4, 5)
_TOPIC_BYTES = (2, 3)
_BYTE_VALUES = 256
_WANTED_MAX = 128
"""Of the values of a byte: when more are wanted, looking at it costs more than it saves."""

_PAIR_AT = DUE_AT + 4
_PAIR_VALUES = 1 << 16
_PAIR_SHIFT = 16
_PAIRS_WANTED_MAX = _PAIR_VALUES // 4
"""Of the values of bytes 4 and 5 together: likewise."""

_FEW_SHARE = 1 / 16


class Span(NamedTuple):
    """A time: [from_ms, to_ms)."""

    from_ms: int
    to_ms: int


def merged(spans: Iterable[Span]) -> list[Span]:
    """The same times as spans that rise and do not overlap."""
    rising: list[Span] = []
    for span in sorted(spans):
        if rising and span.from_ms <= rising[-1].to_ms:
            rising[-1] = Span(rising[-1].from_ms, max(rising[-1].to_ms, span.to_ms))
        else:
            rising.append(span)
    return rising


class DueUnits:
    """Finds units that are due in one of some spans, which rise and do not overlap, for some topics (None: any)."""

    def __init__(self, spans: Sequence[Span], topic_ids: Collection[int] | None) -> None:
        self._starts_ms = [span.from_ms for span in spans]
        self._ends_ms = [span.to_ms for span in spans]
        self._topic_ids = topic_ids
        self._masks: list[tuple[int, bytes]] = []
        for byte in _DUE_BYTES:
            self._mask(DUE_AT + byte, _values_of(spans, 8 * (7 - byte), _BYTE_VALUES, _WANTED_MAX))
        is_masked = any(at >= _PAIR_AT for at, _ in self._masks)
        self._pairs = None if is_masked else _pairs_of(spans)
        if topic_ids is not None:
            for byte in _TOPIC_BYTES:
                self._mask(TOPIC_ID_AT + byte, {topic_id >> 8 * (3 - byte) & 255 for topic_id in topic_ids})
        self.are_few = False
        """Whether of the units that were last looked through nearly all were ruled out by their bytes, which takes next
        to no time."""

    def _mask(self, at: int, wanted: Collection[int] | None) -> None:
        """Rule out units whose byte at a place is none of these, unless they are too many (None)."""
        if wanted is not None and len(wanted) <= _WANTED_MAX:
            self._masks.append((at, bytes(value in wanted for value in range(_BYTE_VALUES))))

    def places(self, units: bytes) -> list[int]:
        """The places of those among units that are laid end to end. Nothing is checked."""
        count = len(units) // UNIT_BYTES
        places: Iterable[int] = range(count)
        masks = [units[at::UNIT_BYTES].translate(mask) for at, mask in self._masks]
        if self._pairs is not None and count > 1:  # of one place `itemgetter` makes no tuple
            pairs = bytearray(2 * count)
            pairs[::2], pairs[1::2] = units[_PAIR_AT::UNIT_BYTES], units[_PAIR_AT + 1 :: UNIT_BYTES]
            masks.append(bytes(itemgetter(*memoryview(pairs).cast("H"))(self._pairs)))
        if masks:
            mask = int.from_bytes(masks[0])
            for other in masks[1:]:
                mask &= int.from_bytes(other)
            left = mask.to_bytes(count)
            self.are_few = left.count(1) <= count * _FEW_SHARE
            places = _set_in(left) if self.are_few else compress(places, left)
        starts_ms, ends_ms, topic_ids = self._starts_ms, self._ends_ms, self._topic_ids
        due_at, topic_at = _DUE.unpack_from, _TOPIC_ID.unpack_from
        if topic_ids is not None:
            places = [place for place in places if topic_at(units, place * UNIT_BYTES + TOPIC_ID_AT)[0] in topic_ids]
        if len(starts_ms) == 1:
            from_ms, to_ms = starts_ms[0], ends_ms[0]
            return [place for place in places if from_ms <= due_at(units, place * UNIT_BYTES + DUE_AT)[0] < to_ms]
        found = []
        for place in places:
            due_ms = due_at(units, place * UNIT_BYTES + DUE_AT)[0]
            number = bisect_right(starts_ms, due_ms) - 1
            if number >= 0 and due_ms < ends_ms[number]:
                found.append(place)
        return found


def _set_in(mask: bytes) -> Iterator[int]:
    """Where a mask is 1. For one that is mostly 0 this is quicker than `compress`."""
    place = mask.find(1)
    while place >= 0:
        yield place
        place = mask.find(1, place + 1)


def _values_of(spans: Sequence[Span], shift: int, range_: int, wanted_max: int) -> set[int] | None:
    """The values (below `range_`, a power of 2) that what is above `shift` bits takes in some spans. None: more than
    `wanted_max`, as far as one can tell soon."""
    values: set[int] = set()
    for from_ms, to_ms in spans:
        first, last = from_ms >> shift, to_ms - 1 >> shift
        if last - first >= wanted_max:
            return None
        values.update(number & range_ - 1 for number in range(first, last + 1))
        if len(values) > wanted_max:
            return None
    return values


def _pairs_of(spans: Sequence[Span]) -> bytes | None:
    """Whether bytes 4 and 5 of a due time are wanted, by both as this machine reads two bytes; None: too many are."""
    values = _values_of(spans, _PAIR_SHIFT, _PAIR_VALUES, _PAIRS_WANTED_MAX)
    if values is None:
        return None
    pairs = bytearray(_PAIR_VALUES)
    for value in values:
        pairs[int.from_bytes(value.to_bytes(2, "big"), sys.byteorder)] = True
    return bytes(pairs)
