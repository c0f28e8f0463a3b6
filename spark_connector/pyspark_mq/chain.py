"""Where the records of batches begin.

Only a record's length says where the next one begins, so they are a chain, and to follow it in a Python loop costs more
than all columns together. A long one is therefore followed at hundreds of positions at once, by numpy:

    1. every so many octets a *head* is guessed, where records seem to begin: three in a row look like records, and
       the third is the head. Even when the first was none, their lengths lead to a record soon
    2. from all heads, and from the starts of all batches, the lengths are followed, a step of all of them at once
    3. what was found counts only if each of these chains arrives exactly at the next head or at the end of its batch,
       and if each batch has as many records as it says

Step 3 is the proof: chains that meet end to end are the one chain from the start of a batch to its end, whatever the
heads were guessed from. Where they do not meet the loop does it all, and it is also what says what is wrong.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import repeat
from math import isqrt

import numpy as np
import numpy.typing as npt

from pyspark_mq.errors import MalformedBody

Ints = npt.NDArray[np.int64]
Bytes = npt.NDArray[np.uint8]
Flags = npt.NDArray[np.bool_]

RECORD_BYTES_MIN = 7

RECORDS_MIN = 2_000
"""With fewer records the loop is as fast."""

RECORD_BYTES_MAX = 256
"""Where records are longer, on average, finding the heads takes longer than it saves."""

LANES_MIN = 32
"""With fewer chains side by side the loop is as fast."""

_CANDIDATES_MAX = 8  # for one head; more look like records only in data of another kind
_FAR = 1 << 32


class _Steps:
    """By the first two octets of a record, as a little-endian number: how far away the next one is; _FAR when two do
    not tell. A zig-zag varint, whose second octet counts 64; the 62 are its continuation bit less its own two octets.

    Made anew where it is sent to: tasks that bring this code with them do not bring the table.
    """

    def __init__(self) -> None:
        first, second = np.arange(1 << 16) & 0xFF, np.arange(1 << 16) >> 8
        one, two = 1 + (first >> 1), (first >> 1) + (second << 6) - 62
        self.by_octets: Ints = np.select([first < 0x80, second < 0x80], [one, two], _FAR)

    def __reduce__(self) -> tuple[type[_Steps], tuple[()]]:
        return _Steps, ()


_STEPS = _Steps()

_FIRST = tuple((n >> 1) - 62 for n in range(0x100))
_SECOND = tuple(n << 6 for n in range(0x80))
"""The same for the loop: what a first octet of two adds, and a second."""

_SHIFT_MAX = 28  # of the fifth octet: a length is an int32


def record_starts(buffer: bytes, starts: Ints, ends: Ints, counts: Ints) -> Ints:
    """Where each record begins, with its length. The counts[i] records of batch i fill buffer[starts[i]:ends[i]].

    Batches are in order, at least one. Raises MalformedBody when the records do not fill them, or IndexError.
    """
    too_many = np.flatnonzero(counts * RECORD_BYTES_MIN > ends - starts)
    if too_many.size:
        batch = too_many[0]
        raise MalformedBody(f"{counts[batch]} records cannot fit {ends[batch] - starts[batch]} bytes")
    count = int(counts.sum())
    record_bytes = int((ends - starts).sum()) // count
    if count >= RECORDS_MIN and record_bytes <= RECORD_BYTES_MAX:
        found = _side_by_side(np.frombuffer(buffer, dtype=np.uint8), starts, ends, counts)
        if found is not None:
            return found
    return np.fromiter(_one_by_one(buffer, starts, ends, counts), np.int64, count + 1)[:-1]


def _one_by_one(buffer: bytes, starts: Ints, ends: Ints, counts: Ints) -> Iterator[int]:
    """Where each record begins, then the end."""
    end = 0
    first, second = _FIRST, _SECOND
    for at, end, count in zip(starts.tolist(), ends.tolist(), counts.tolist(), strict=True):
        for _ in repeat(None, count):
            yield at
            size = buffer[at]
            if size >= 0x80:
                octet = buffer[at + 1]
                if octet < 0x80:  # two octets, as most have
                    at += first[size] + second[octet]
                    continue
                size += (octet - 1) << 7  # - 1: takes the continuation bit of the octet before out of the sum
                at, shift = at + 1, 14
                while octet >= 0x80:
                    if shift > _SHIFT_MAX:
                        raise MalformedBody("the length of a record has more than five octets")
                    at += 1
                    octet = buffer[at]
                    size += (octet - 1) << shift
                    shift += 7
            at += 1 + (size >> 1)
        if at != end:
            raise MalformedBody(f"the records of a batch end {at - end} bytes away from its end")
    yield end


def _side_by_side(octets: Bytes, starts: Ints, ends: Ints, counts: Ints) -> Ints | None:
    """As `_one_by_one` without the end; None when it could not be proved, or has lengths of three octets."""
    count = int(counts.sum())
    lane_records = isqrt(count // 16)  # more of them: more steps; fewer: more heads to find
    heads = np.union1d(starts, _heads(octets, starts, ends, int((ends - starts).sum()) // count, lane_records))
    if len(heads) < LANES_MIN:
        return None
    batch = np.searchsorted(starts, heads, side="right") - 1
    stops = ends[batch]
    stops[:-1] = np.where(batch[1:] == batch[:-1], heads[1:], stops[:-1])
    pairs = _pairs(octets)
    at, steps = heads, [heads]
    while (at < stops).any():
        if len(steps) > 8 * lane_records:  # records too unlike each other
            return None
        for _ in range(4):
            at = at + _STEPS.by_octets[pairs[np.minimum(at, len(pairs) - 1)]]
            steps.append(at)
    positions = np.array(steps)
    there = positions < stops  # chains that have arrived went on meanwhile, along the next one or into nowhere
    arrived = positions[np.count_nonzero(there, axis=0), np.arange(len(heads))]
    if (arrived != stops).any():
        return None
    found: Ints = positions.T[there.T]
    has_all = np.searchsorted(found, ends) - np.searchsorted(found, starts) == counts
    return found if has_all.all() else None


def _heads(octets: Bytes, starts: Ints, ends: Ints, record_bytes: int, lane_records: int) -> Ints:
    """Positions in the batches, about so many records apart, where records of about this size seem to begin."""
    start, lane, window = int(starts[0]), lane_records * record_bytes, 3 * record_bytes // 2
    count = max(0, (int(ends[-1]) - start - window - 2) // lane)
    looked_at = np.lib.stride_tricks.as_strided(octets[start:], (count, window + 2), (lane, 1)).reshape(-1)
    found = np.flatnonzero(_seem_to_begin(looked_at[:-2], looked_at[1:-1], looked_at[2:]))
    if len(found) > _CANDIDATES_MAX * count:
        return starts
    number, column = np.divmod(found, window + 2)
    at = start + number * lane + column
    limits = ends[np.searchsorted(starts, at, side="right") - 1]
    pairs = _pairs(octets)
    for _ in range(2):
        at = at + _STEPS.by_octets[pairs[at]]
        inside = np.flatnonzero(at <= limits - RECORD_BYTES_MIN)
        likely = inside[_seem_to_begin(*(octets[at[inside] + n] for n in range(3)))]
        at, number, limits = at[likely], number[likely], limits[likely]
    _, firsts = np.unique(number, return_index=True)
    return at[firsts]


def _seem_to_begin(first: Bytes, second: Bytes, third: Bytes) -> Flags:
    """Whether these octets may be a length, of one or two octets and not negative, and the attributes, which are 0."""
    short = (first >= 2 * (RECORD_BYTES_MIN - 1)) & (first < 0x80) & (second == 0)
    long = (first >= 0x80) & (second < 0x80) & (third == 0)
    seem: Flags = (short | long) & (first & 1 == 0)
    return seem


def _pairs(octets: Bytes) -> npt.NDArray[np.uint16]:
    """Each octet with the one behind it, as a little-endian number."""
    return np.ndarray((len(octets) - 1,), np.dtype("<u2"), octets, strides=(1,))
