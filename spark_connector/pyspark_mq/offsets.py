"""Where a read begins and ends, and how it is cut into tasks. Pure: no I/O, no clock, no Spark.

Terms, as in Spark's Kafka source
    offsets     {topic: {partition: offset}}; an offset is the *next* one to read, so ranges are [start, end)
    bounds      what a partition holds at one moment: beginning (first readable) and end (the next to be written)
    epoch       identity of a topic; another epoch under the same name means that it was deleted and created again

Invariants (property tests in tests/spark/test_offsets.py)
    O1  the ranges of all tasks of a plan cover the planned ranges exactly once: no overlap, no gap
    O2  no planned range has more records than the given maximum, and none is empty
    O3  a rate limit never moves an offset back, never past the end, and never starves a partition for good
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from pyspark_mq.errors import OptionError

Offsets = dict[str, dict[int, int]]

RECORDS_PER_TASK_MAX = 1_000_000
RECORDS_PER_TASK_MIN = 50_000

GAP_MIN = 1 << 44
"""Offsets that a server of several nodes leaves out when it takes a partition over without the broker that had it. No
partition has so many records."""

EARLIEST = -2
"""Stands for the beginning of a partition in offsets given as JSON."""
LATEST = -1
"""Stands for the end of a partition in offsets given as JSON."""


class Bounds(NamedTuple):
    """First readable offset of a partition, the offset its next record will get, and the stretches between them, in
    order, that never had records."""

    beginning: int
    end: int
    gaps: tuple[tuple[int, int], ...] = ()


@dataclass(frozen=True, slots=True)
class TopicState:
    """A topic at one moment."""

    epoch: str
    partitions: Mapping[int, Bounds]


Topics = Mapping[str, TopicState]


class Range(NamedTuple):
    """Records [start, end) of one partition of one incarnation (`epoch`) of a topic."""

    topic: str
    partition: int
    start: int
    end: int
    epoch: str

    @property
    def record_count(self) -> int:
        return self.end - self.start

    def __str__(self) -> str:
        return f"{self.topic}/{self.partition} [{self.start}, {self.end})"


# --- which topics ---------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Subscribe:
    """All partitions of the topics named."""

    topics: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class SubscribePattern:
    """All partitions of every topic whose whole name matches, topics created later included."""

    regex: str


@dataclass(frozen=True, slots=True)
class Assign:
    """Exactly these partitions."""

    partitions: Mapping[str, tuple[int, ...]]


Selection = Subscribe | SubscribePattern | Assign


# --- where to begin and to end --------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Earliest:
    """The first readable offset."""


@dataclass(frozen=True, slots=True)
class Latest:
    """The offset of the next record."""


@dataclass(frozen=True, slots=True)
class Exact:
    """An offset for every partition; EARLIEST and LATEST are allowed in place of one."""

    offsets: Mapping[str, Mapping[int, int]]


@dataclass(frozen=True, slots=True)
class AtTime:
    """The first record stored at or after one time, for all partitions. Milliseconds since 1970 UTC."""

    time_ms: int


@dataclass(frozen=True, slots=True)
class AtTimes:
    """As AtTime, with a time for every partition."""

    times_ms: Mapping[str, Mapping[int, int]]


Edge = Earliest | Latest | Exact | AtTime | AtTimes

OffsetForTime = Callable[[str, int, int], int | None]
"""(topic, partition, time in ms) -> offset of the first record stored at or after it; None when there is none."""


def resolve_start(
    edge: Edge, topics: Topics, offset_for_time: OffsetForTime, *, no_match_is_latest: bool = False
) -> Offsets:
    """The offset every partition of `topics` begins at.

    A time that no record matches is an OptionError, unless `no_match_is_latest`.
    """

    def no_match(topic: str, partition: int, time_ms: int) -> int:
        if no_match_is_latest:
            return topics[topic].partitions[partition].end
        raise OptionError(
            f"no record of {topic}/{partition} was stored at or after {time_ms} ms; choose an earlier time, or set "
            'startingOffsetsByTimestampStrategy to "latest" to begin at the end of such a partition'
        )

    return _resolve(edge, topics, offset_for_time, no_match, "startingOffsets")


def resolve_end(edge: Edge, topics: Topics, offset_for_time: OffsetForTime) -> Offsets:
    """The offset every partition of `topics` ends before. A time that no record matches means the end."""

    def no_match(topic: str, partition: int, _time_ms: int) -> int:
        return topics[topic].partitions[partition].end

    return _resolve(edge, topics, offset_for_time, no_match, "endingOffsets")


def _resolve(
    edge: Edge,
    topics: Topics,
    offset_for_time: OffsetForTime,
    no_match: Callable[[str, int, int], int],
    option: str,
) -> Offsets:
    def at_time(topic: str, partition: int, time_ms: int) -> int:
        found = offset_for_time(topic, partition, time_ms)
        return no_match(topic, partition, time_ms) if found is None else found

    match edge:
        case Earliest():
            return beginning_offsets(topics)
        case Latest():
            return ends(topics)
        case AtTime(time_ms):
            return {t: {p: at_time(t, p, time_ms) for p in state.partitions} for t, state in topics.items()}
        case AtTimes(times_ms):
            _require_every_partition(times_ms, topics, f"{option}ByTimestamp")
            return {t: {p: at_time(t, p, times_ms[t][p]) for p in s.partitions} for t, s in topics.items()}
        case Exact(offsets):
            _require_every_partition(offsets, topics, option)
            return {t: {p: _exact(offsets[t][p], s.partitions[p]) for p in s.partitions} for t, s in topics.items()}


def _exact(offset: int, bounds: Bounds) -> int:
    if offset == EARLIEST:
        return bounds.beginning
    return bounds.end if offset == LATEST else offset


def _require_every_partition(given: Mapping[str, Mapping[int, int]], topics: Topics, option: str) -> None:
    """Offsets given as JSON must name the partitions that are read: all of them and no other, as for Kafka."""
    wanted = {(topic, partition) for topic, state in topics.items() for partition in state.partitions}
    named = {(topic, partition) for topic, partitions in given.items() for partition in partitions}
    if wanted == named:
        return
    missing = ", ".join(f"{t}/{p}" for t, p in sorted(wanted - named)) or "none"
    unknown = ", ".join(f"{t}/{p}" for t, p in sorted(named - wanted)) or "none"
    raise OptionError(
        f"{option} must name every partition that is read and no other. Missing: {missing}. Not read: {unknown}. "
        "Use -2 for the beginning and -1 for the end of a partition."
    )


def beginning_offsets(topics: Topics) -> Offsets:
    """The first readable offset of every partition."""
    return {t: {p: bounds.beginning for p, bounds in state.partitions.items()} for t, state in topics.items()}


def ends(topics: Topics) -> Offsets:
    """The end of every partition."""
    return {t: {p: bounds.end for p, bounds in state.partitions.items()} for t, state in topics.items()}


# --- from offsets to ranges -----------------------------------------------------------------------------------------


def clamp(wanted: Range, bounds: Bounds) -> tuple[Range, str | None]:
    """The part of a range that the partition still holds, and in words what is gone (None: nothing)."""
    start = min(max(wanted.start, bounds.beginning), bounds.end)
    end = min(max(wanted.end, start), bounds.end)
    kept = wanted._replace(start=start, end=end)
    if wanted.start >= bounds.beginning and wanted.end <= bounds.end:
        return kept, None
    return kept, (
        f"offsets [{wanted.start}, {wanted.end}) of {wanted.topic}/{wanted.partition} were asked for, but the server "
        f"has [{bounds.beginning}, {bounds.end})"
    )


def outside(wanted: Range, gaps: Iterable[tuple[int, int]]) -> Iterator[Range]:
    """The parts of a range that lie in no gap."""
    start = wanted.start
    for begin, end in gaps:
        if start < begin < wanted.end:
            yield wanted._replace(start=start, end=begin)
        start = max(start, min(end, wanted.end)) if begin < wanted.end else start
    if start < wanted.end:
        yield wanted._replace(start=start)


def find_gaps(beginning: int, end: int, first_from: Callable[[int], int]) -> Iterator[tuple[int, int]]:
    """The gaps between two offsets. `first_from` is asked for the first offset, from one on, that has a record, or for
    what is behind the last one: some 45 times a gap."""
    while end - beginning >= GAP_MIN:
        without = beginning + GAP_MIN // 2
        behind = first_from(without)
        if behind <= without:
            return
        records = beginning  # the last known to have a record, or the beginning
        while without - records > 1:
            middle = (records + without) // 2
            if first_from(middle) == middle:
                records = middle
            else:
                without = middle
        if records == beginning and first_from(beginning) != beginning:
            without = beginning
        yield without, behind
        beginning = behind


def counted(topics: Topics, offsets: Offsets) -> Offsets:
    """The same places in partitions, as if there were no gaps."""

    def count(offset: int, gaps: Iterable[tuple[int, int]]) -> int:
        return offset - sum(min(max(offset - begin, 0), end - begin) for begin, end in gaps)

    return {t: {p: count(o, topics[t].partitions[p].gaps) for p, o in ps.items()} for t, ps in offsets.items()}


def uncounted(topics: Topics, offsets: Offsets) -> Offsets:
    """The inverse of `counted`: never within a gap, nor right behind one."""

    def place(offset: int, gaps: Iterable[tuple[int, int]]) -> int:
        for begin, end in gaps:
            if offset > begin:
                offset += end - begin
        return offset

    return {t: {p: place(o, topics[t].partitions[p].gaps) for p, o in ps.items()} for t, ps in offsets.items()}


# --- from ranges to tasks -------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Split:
    """How ranges become Spark tasks. Counts are records, except `tasks_min`."""

    tasks_min: int | None = None
    """About as many tasks as this at least; then nothing is put together."""

    records_max: int = RECORDS_PER_TASK_MAX
    """No task reads more than this from one range."""

    records_min: int = RECORDS_PER_TASK_MIN
    """Ranges with fewer records share a task: below this a task costs more than reading its records."""


def plan(ranges: Iterable[Range], split: Split) -> list[tuple[Range, ...]]:
    """Cut large ranges and put small ones together: one tuple a task (O1, O2). Empty ranges are dropped."""
    wanted = [r for r in ranges if r.record_count > 0]
    counts = [math.ceil(r.record_count / split.records_max) for r in wanted]
    if split.tasks_min is not None and sum(counts) < split.tasks_min:
        counts = [max(pair) for pair in zip(counts, _in_proportion(wanted, split.tasks_min), strict=True)]
    pieces = [piece for r, count in zip(wanted, counts, strict=True) for piece in _even(r, count)]
    if split.tasks_min is not None:
        return [(piece,) for piece in pieces]
    return _together(pieces, min(split.records_min, split.records_max))


def _in_proportion(ranges: Sequence[Range], tasks_min: int) -> list[int]:
    """Share `tasks_min` among the ranges by their size.

    Ranges too small for more than one share stay whole and are counted out first, so that the large ones get the
    shares that are left.
    """
    total = sum(r.record_count for r in ranges)
    whole = [_shares(r, total, tasks_min) == 1 for r in ranges]
    rest = total - sum(r.record_count for r, small in zip(ranges, whole, strict=True) if small)
    rest_min = max(1, tasks_min - sum(whole))
    return [1 if small else _shares(r, rest, rest_min) for r, small in zip(ranges, whole, strict=True)]


def _shares(piece: Range, total: int, tasks: int) -> int:
    return max(1, round(piece.record_count / total * tasks))


def _even(whole: Range, count: int) -> list[Range]:
    """`count` pieces of a range that differ by at most one record; fewer when it has fewer records."""
    count = min(count, whole.record_count)
    cuts = [whole.start + whole.record_count * i // count for i in range(count + 1)]
    return [whole._replace(start=a, end=b) for a, b in itertools.pairwise(cuts)]


def _together(pieces: Iterable[Range], records_min: int) -> list[tuple[Range, ...]]:
    """Pieces with fewer than `records_min` records share a task until it has that many."""
    tasks: list[tuple[Range, ...]] = []
    open_task: list[Range] = []
    open_count = 0
    for piece in pieces:
        if piece.record_count >= records_min:
            tasks.append((piece,))
            continue
        open_task.append(piece)
        open_count += piece.record_count
        if open_count >= records_min:
            tasks.append(tuple(open_task))
            open_task, open_count = [], 0
    if open_task:
        tasks.append(tuple(open_task))
    return tasks


# --- rate limit -----------------------------------------------------------------------------------------------------


def backlog(start: Offsets, end: Offsets) -> int:
    """Records between two offsets. A partition that `start` does not name counts nothing."""
    return sum(max(0, to - start[t][p]) for t, ps in end.items() for p, to in ps.items() if p in start.get(t, {}))


def limited(start: Offsets, end: Offsets, records_max: int) -> Offsets:
    """Offsets between `start` and `end` that are about `records_max` records ahead, in proportion to the backlog of
    each partition (O3). `start` names every partition of `end`.

    Shares are rounded down, but a partition with a backlog always moves by one record at least; so the sum may
    exceed the limit by the number of partitions.
    """
    total = backlog(start, end)
    if total <= records_max:
        return {t: {p: max(to, start[t][p]) for p, to in ps.items()} for t, ps in end.items()}
    return {t: {p: _limited(start[t][p], to, records_max, total) for p, to in ps.items()} for t, ps in end.items()}


def _limited(start: int, end: int, records_max: int, total: int) -> int:
    waiting = end - start
    if waiting <= 0:
        return start
    return start + max(1, waiting * records_max // total)
