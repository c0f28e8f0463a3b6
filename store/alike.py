"""Whether the records of a batch are alike, found without an object a record.

To decode a batch of 9,000 records only to see that it decodes takes 1.5 ms, most of it for objects that are thrown
away. But what is sent in thousands often has one size: samples, fixed structures, all load tools. Then each field lies
at the same distance from the one before, and one slice with a step takes a byte of the field from every record:

    length  attributes  timestamp  offset  key     key  value   value  headers   length  attributes  ...
                        delta      delta   length       length         count
    ├─────────────────────────────── one record ───────────────────────────────┤
       A        0          ·         0      01     ·      C8      ·       0         A        0            byte by byte

A run of records is alike when the bytes of all lengths are those of its first record, which was taken apart with care,
timestamps take as many bytes in each, offsets count up, and none has attributes or headers. Such records decode, since
the first one does. A run ends where offset or timestamp take another byte; a batch whose runs are short is found out
after the first of them, and decoded record by record. Keys and values of a run lie where those of its first record do,
so they can be taken without the codec (`columns_of`).

The next batch of a producer often is laid out as its last ones were. So the layout of batches that were alike is kept
for a while (`_Layout`): one of the same size and count is alike if it has the same bytes where the fields' lengths are.

Varints are zigzag: 0, -1, 1, -2 are 0, 1, 2, 3; seven bits a byte, the lowest first, the top bit on all but the last.
"""

from __future__ import annotations

import struct
from ctypes import addressof, c_char
from functools import cache, lru_cache
from typing import NamedTuple

from store.limits import BATCH_RECORDS_MAX, KEY_BYTES_MAX, RECORD_BYTES_MAX, KiB
from store.types import Buffer

RUN_COUNT_MIN = 32
"""A run of fewer records, but for the last one, ends the search: the batch's records differ."""

RUNS_MAX = 8
"""A batch of more runs is decoded: each takes time of its own. Offsets grow by a byte twice, timestamps a few times."""

VIEWED_BYTES = 256
"""Bytes of a record, in the mean, from which on a view is looked at where it is. To take a byte of each record from a
view takes five times as long as from bytes: a batch of smaller records is copied first, one of larger records is looked
at in what it is a view of."""

COPIED_BYTES = 16 * KiB
"""A batch below this is copied in less time than it takes to find where in a bytearray it is."""

LAYOUTS_MAX = 64
"""Places that are known; then all are forgotten. A layout takes some 4 KiB for a run, whatever the batch."""

UNPACKED_COUNT = 1024
"""Records whose fields are taken in one call. What says where they lie takes 64 bytes each."""

_HEADER_BYTES = 61
_TO_FLAGS = bytes(128) + b"\1" * 128  # 1: another byte follows
_OFFSET_BYTES = ((1, 64), (2, 64 << 7), (3, 64 << 14))
"""Offset deltas below a bound take so many bytes."""
assert _OFFSET_BYTES[-1][1] >= BATCH_RECORDS_MAX


def are_alike(batch: Buffer, count: int) -> bool:
    """Whether an uncompressed batch is `count` records, end to end, with offset deltas 0, 1, 2, ..., without headers,
    keys and values within the limits of single records (store/limits.py), in runs of one size. False: it may be so."""
    return bool(_runs(*_seen(batch, count), count))


class Columns(NamedTuple):
    """The records of a batch, all of one time: so long after that of the batch (ms)."""

    keys: list[bytes | None]
    values: list[bytes | None]
    time_delta_ms: int


def columns_of(batch: Buffer, count: int) -> Columns | None:
    """Keys and values of a batch whose records are alike, as in `are_alike`, and of one time; None of any other."""
    data, begin, batch_end = _seen(batch, count)
    keys: list[bytes | None] = []
    values: list[bytes | None] = []
    runs = _runs(data, begin, batch_end, count)
    if not runs:
        return None
    batch_time_delta, _ = _varint(data, runs[0][2].time_from)
    for run_count, at, one in runs:
        size, time_from, time_end, key_from, key_bytes, value_from, value_bytes = one
        end = at + run_count * size
        if _varint(data, time_from)[0] != batch_time_delta:
            return None
        for place in range(time_from, time_end):
            if bytes(data[place:end:size]) != bytes((data[place],)) * run_count:
                return None
        key_end, value_end = key_from + max(0, key_bytes), value_from + max(0, value_bytes)
        layout = (
            f"{key_from - at}x{key_end - key_from}s{value_from - key_end}x{value_end - value_from}s"
            f"{at + size - value_end}x"
        )
        parts: list[bytes] = []
        for start in range(0, run_count, UNPACKED_COUNT):
            some = min(UNPACKED_COUNT, run_count - start)
            parts += _fields_of(layout, some).unpack_from(data, at + start * size)
        keys += [None] * run_count if key_bytes < 0 else parts[::2]
        values += [None] * run_count if value_bytes < 0 else parts[1::2]
    return Columns(keys, values, batch_time_delta)


@lru_cache(maxsize=8)
def _fields_of(layout: str, count: int) -> struct.Struct:
    """Those of so many records in one call: a third of the time of a call for each, and two thirds where it is made
    for them alone."""
    return struct.Struct("=" + layout * count)


def _seen(batch: Buffer, count: int) -> tuple[Buffer, int, int]:
    """Bytes from which single ones are taken fast, and from where to where the batch is there."""
    size = len(batch)
    if not isinstance(batch, memoryview):
        return batch, 0, size
    whole = batch.obj
    if isinstance(whole, bytearray) and size >= COPIED_BYTES and not batch.readonly:
        begin = addressof(c_char.from_buffer(batch)) - addressof(c_char.from_buffer(whole))
        return whole, begin, begin + size
    return bytes(batch) if size < VIEWED_BYTES * count else batch, 0, size


class _Record(NamedTuple):
    """The first record of a run: its size, where its fields lie in the data, and how long they are (-1: null)."""

    size: int
    time_from: int
    time_end: int
    key_from: int
    key_bytes: int
    value_from: int
    value_bytes: int


_Run = tuple[int, int, _Record]
"""Of how many records, where they begin, and the first one."""


def _runs(data: Buffer, begin: int, end: int, count: int) -> list[_Run]:
    """The runs of the batch from `begin` to `end` whose records are alike. None of any other batch."""
    place = begin, end, count
    layout = _layouts.get(place)
    if layout is not None and _is_laid_out(data, layout):
        return layout.runs
    runs = _found_runs(data, begin, end, count)
    if runs:
        is_seen_again = place in _layouts
        if len(_layouts) >= LAYOUTS_MAX and not is_seen_again:
            _layouts.clear()
        _layouts[place] = _layout_of(data, runs) if is_seen_again else None
    return runs


def _found_runs(data: Buffer, begin: int, end: int, count: int) -> list[_Run]:
    runs: list[_Run] = []
    at, delta = begin + _HEADER_BYTES, 0
    for _ in range(RUNS_MAX):
        try:
            run_count, first = _run(data, at, end, delta, count)
        except IndexError:  # the first record of the run ends behind all there is
            return []
        if run_count < min(RUN_COUNT_MIN, count - delta):
            return []
        runs.append((run_count, at, first))
        delta += run_count
        at += run_count * first.size
        if delta == count:
            return runs if at == end else []
    return []


def _run(data: Buffer, at: int, end: int, delta: int, count: int) -> tuple[int, _Record]:
    """How many records from the one at `at` on, whose offset delta is `delta`, are alike and end at `end` at the
    latest; and that one. No record when it is not as it must be. Raises IndexError when the data end before."""
    length, attributes_at = _varint(data, at)
    size = attributes_at + length - at
    _, offset_at = _varint(data, attributes_at + 1)
    offset_bytes, deltas_end = _offset_bytes_of(delta)
    key_at = offset_at + offset_bytes
    key_bytes, key_from = _varint(data, key_at)
    value_at = key_from + max(0, key_bytes)
    value_bytes, value_from = _varint(data, value_at)
    headers_at = value_from + max(0, value_bytes)
    first = _Record(size, attributes_at + 1, offset_at, key_from, key_bytes, value_from, value_bytes)
    if (
        headers_at + 1 != at + size
        or not -1 <= key_bytes <= KEY_BYTES_MAX
        or value_bytes < -1
        or max(0, key_bytes) + value_bytes > RECORD_BYTES_MAX
        or data[offset_at - 1] & 0x80
        or data[attributes_at]
        or data[headers_at]
    ):
        return 0, first
    alike = min(count, deltas_end) - delta
    alike = min(alike, (end - at) // size)
    for fixed in _fixed_of(first, at, key_at):
        alike = _led_by(bytes(data[fixed : at + alike * size : size]), data[fixed])
    for index in range(attributes_at + 1, offset_at):
        flags = bytes(data[index : at + alike * size : size]).translate(_TO_FLAGS)
        alike = _led_by(flags, index < offset_at - 1)
    for index, expected in zip(range(offset_at, key_at), _offsets(offset_bytes), strict=True):
        if bytes(data[index : at + alike * size : size]) != expected[delta : delta + alike]:
            return 0, first
    return alike, first


def _fixed_of(one: _Record, at: int, key_at: int) -> tuple[int, ...]:
    """Where the bytes of the record at `at` are that all of its run have: of lengths, attributes, and the number of
    headers. `key_at`: where the length of the key is."""
    value_at = one.key_from + max(0, one.key_bytes)
    return *range(at, one.time_from), *range(key_at, one.key_from), *range(value_at, one.value_from), at + one.size - 1


class _Layout(NamedTuple):
    """Which bytes a batch has, if its records lie where those of another one do. Each slice takes one byte of every
    record of a run."""

    runs: list[_Run]

    same: list[tuple[slice, bytes, int]]
    """This byte in each of so many records."""

    flags: list[tuple[slice, bytes, int]]
    """Of timestamps: the same where a byte is 1 if another one follows, else 0."""

    offsets: list[tuple[slice, bytes, int, int]]
    """What is in a column of `_offsets` from one index to another."""


_layouts: dict[tuple[int, int, int], _Layout | None] = {}
"""By where a batch is, and its number of records; None: one was there. A layout is made for the second one there: that
takes longer than it saves once, and some clients send batches of another size each time."""


def _layout_of(data: Buffer, runs: list[_Run]) -> _Layout:
    """That of a batch which is made of these."""
    layout, delta = _Layout(runs, [], [], []), 0
    for count, at, one in runs:

        def column(index: int, end: int = at + count * one.size, size: int = one.size) -> slice:
            return slice(index, end, size)

        offset_bytes, _ = _offset_bytes_of(delta)
        key_at = one.time_end + offset_bytes
        layout.same.extend((column(index), bytes((data[index],)), count) for index in _fixed_of(one, at, key_at))
        layout.flags.extend(
            (column(index), bytes((index < one.time_end - 1,)), count) for index in range(one.time_from, one.time_end)
        )
        layout.offsets.extend(
            (column(index), expected, delta, delta + count)
            for index, expected in zip(range(one.time_end, key_at), _offsets(offset_bytes), strict=True)
        )
        delta += count
    return layout


def _is_laid_out(data: Buffer, layout: _Layout) -> bool:
    """Whether a batch that is at the same place as the layout's has all of those bytes."""
    for column, byte, count in layout.same:
        if bytes(data[column]) != byte * count:
            return False
    for column, flag, count in layout.flags:
        if bytes(data[column]).translate(_TO_FLAGS) != flag * count:
            return False
    return all(bytes(data[column]) == expected[first:end] for column, expected, first, end in layout.offsets)


def _offset_bytes_of(delta: int) -> tuple[int, int]:
    """How many bytes an offset delta takes, and the first delta that takes more."""
    return next(bound for bound in _OFFSET_BYTES if delta < bound[1])


def _led_by(taken: bytes, byte: int) -> int:
    """How many bytes at the beginning are this one. Nearly always all are: to compare takes a thirtieth of the time of
    `lstrip`, which looks at one after the other."""
    alone = bytes((byte,))
    return len(taken) if taken == alone * len(taken) else len(taken) - len(taken.lstrip(alone))


def _varint(data: Buffer, at: int) -> tuple[int, int]:
    """A varint of at most five bytes, and where it ends. One that is longer: a value that no length can have, and the
    position behind a byte that has its top bit set."""
    value = shift = 0
    while (byte := data[at]) & 0x80:
        value |= (byte & 0x7F) << shift
        shift += 7
        at += 1
        if shift > 28:
            return -(1 << 40), at
    value |= byte << shift
    return (value >> 1) ^ -(value & 1), at + 1


@cache
def _offsets(byte_count: int) -> tuple[bytes, ...]:
    """The bytes of the offset deltas 0, 1, 2, ... that take so many bytes, each byte by itself; deltas
    before the first that takes so many bytes are not meaningful."""
    columns = []
    for index in range(byte_count):
        following = 0x80 if index < byte_count - 1 else 0
        values = range(0, 128, 2) if index == 0 else range(128)
        each = 1 if index == 0 else 64 << 7 * (index - 1)
        period = b"".join(bytes((value | following,)) * each for value in values)
        columns.append((period * (BATCH_RECORDS_MAX // len(period) + 1))[:BATCH_RECORDS_MAX])
    return tuple(columns)
