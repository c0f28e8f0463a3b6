"""What clients saw, and a checker that says which promises were broken. In the manner of Jepsen's kafka workload.

Every value is unique (`Recorder.value`), so an observation points back to the one send it can come from. A send ends

    ok     the server said it is stored; it must be found, at the offset it was given
    fail   the server said that nothing was stored; it must never be found
    info   nobody knows (connection lost, 503, killed): it may be found or not, but at most once

An observation is one record seen in a read. The last read of each partition, from its beginning to its end after
all faults are over, is marked `final`: what is not in there is gone.

Anomalies
    lost-write            acked, below the end of the final read, but not in it
    unseen                acked, at or beyond the end of the final read
    phantom               seen, but never sent to this partition
    aborted-read          seen, though its send failed
    duplicate             one value at two offsets
    inconsistent-offsets  one offset with two values, or a value at another offset than its ack said
    reordered             a send that ended before another began has the higher offset; or a read that goes back
    gap                   an offset is missing inside a read, or before the first offset of a final one
    corrupt-body          a body that fails its own checksum
    early                 a delayed record seen before its due time
    late                  a delayed record stored later than allowed (only when `lateness_ms_max` is given)

Offsets are per partition. Times are the recorder's monotonic milliseconds, except due and store times (UTC).
"""

from __future__ import annotations

import json
import zlib
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from heapq import heapify, heappop
from typing import NamedTuple

Json = str | int | float | bool | None
CHECKSUM = "checksum"


class Outcome(Enum):
    """How a send ended, for its client."""

    OK = "ok"
    FAIL = "fail"
    INFO = "info"


class Anomaly(NamedTuple):
    """One broken promise."""

    kind: str
    partition: int
    detail: str


@dataclass(slots=True)
class Send:
    """One record sent. Born `info`: a client that dies never says how it ended."""

    value: str
    partition: int
    begun_ms: float
    ended_ms: float = float("inf")
    outcome: Outcome = Outcome.INFO
    offset: int | None = None
    due_ms: int | None = None

    def ok(self, ended_ms: float, offset: int | None = None) -> None:
        """Stored; `offset` is None for a delayed record, whose offset is not known yet."""
        self.ended_ms, self.outcome, self.offset = ended_ms, Outcome.OK, offset

    def fail(self, ended_ms: float) -> None:
        """Certainly not stored."""
        self.ended_ms, self.outcome = ended_ms, Outcome.FAIL


class Seen(NamedTuple):
    """One record as a read returned it. `store_time_ms` is when the server stored it, if it told."""

    offset: int
    value: str
    is_intact: bool = True
    store_time_ms: int | None = None


class Read(NamedTuple):
    """The records of one read, in the order they came. `begin_offset` is where a final read had to begin."""

    partition: int
    seen: Sequence[Seen]
    is_final: bool = False
    begin_offset: int = 0


class Recorder:
    """Collects a history. One per test run; clients in one event loop share it."""

    def __init__(self) -> None:
        self.sends: list[Send] = []
        self.reads: list[Read] = []
        self._counts: Counter[str] = Counter()

    def value(self, client: str) -> str:
        """A value nobody else will send."""
        self._counts[client] += 1
        return f"{client}-{self._counts[client]}"

    def send(self, value: str, partition: int, begun_ms: float, *, due_ms: int | None = None) -> Send:
        """Record that a send begins; the caller ends it with `ok` or `fail`, or leaves it `info`."""
        send = Send(value, partition, begun_ms, due_ms=due_ms)
        self.sends.append(send)
        return send

    def read(self, partition: int, seen: Sequence[Seen]) -> None:
        """Record what one read returned."""
        if seen:
            self.reads.append(Read(partition, seen))

    def final_read(self, partition: int, seen: Sequence[Seen], *, begin_offset: int = 0) -> None:
        """Record the read of a whole partition after all faults are over."""
        self.reads.append(Read(partition, seen, is_final=True, begin_offset=begin_offset))

    def count(self, outcome: Outcome) -> int:
        """Sends that ended so."""
        return sum(send.outcome is outcome for send in self.sends)


def seal(body: Mapping[str, Json]) -> dict[str, Json]:
    """The body with a checksum of its other fields, so that each record can be judged on its own."""
    return {**body, CHECKSUM: _checksum(body)}


def is_intact(body: object) -> bool:
    """True when a body sealed by `seal` came back as it was."""
    if not isinstance(body, dict) or CHECKSUM not in body:
        return False
    return bool(_checksum({name: value for name, value in body.items() if name != CHECKSUM}) == body[CHECKSUM])


def check(history: Recorder, *, lateness_ms_max: int | None = None) -> list[Anomaly]:
    """Every anomaly in a history; empty means that all promises were kept."""
    sends = {(send.partition, send.value): send for send in history.sends}
    assert len(sends) == len(history.sends), "a value was sent twice: the history proves nothing"
    found: list[Anomaly] = []
    value_at: dict[tuple[int, int], str] = {}
    offset_of: dict[tuple[int, str], int] = {}
    for send in history.sends:
        if send.outcome is Outcome.OK and send.offset is not None:
            found += _claim(value_at, send.partition, send.offset, send.value)
    judged: set[tuple[int, int, str]] = set()
    for read in history.reads:
        found += _order_in(read)
        for seen in read.seen:
            if not seen.is_intact:
                found.append(Anomaly("corrupt-body", read.partition, f"offset {seen.offset}: {seen.value}"))
            shown = (read.partition, seen.offset, seen.value)
            if shown in judged:
                continue
            judged.add(shown)
            found += _claim(value_at, *shown)
            first = offset_of.setdefault((read.partition, seen.value), seen.offset)
            if first != seen.offset:
                found.append(Anomaly("duplicate", read.partition, f"{seen.value} at offsets {first} and {seen.offset}"))
            found += _origin(read.partition, seen, sends.get((read.partition, seen.value)), lateness_ms_max)
    found += _missing(history)
    found += _real_time_order(history.sends, offset_of)
    return found


def _claim(value_at: dict[tuple[int, int], str], partition: int, offset: int, value: str) -> Iterable[Anomaly]:
    """An ack or a read says that this value is at this offset; nobody may have said otherwise."""
    before = value_at.setdefault((partition, offset), value)
    if before != value:
        yield Anomaly("inconsistent-offsets", partition, f"offset {offset} is {before}, then {value}")


def _origin(partition: int, seen: Seen, send: Send | None, lateness_ms_max: int | None) -> Iterable[Anomaly]:
    """Whether a record may exist at all, and by now."""
    if send is None:
        yield Anomaly("phantom", partition, f"offset {seen.offset}: {seen.value} was never sent here")
        return
    if send.outcome is Outcome.OK and send.offset not in (None, seen.offset):
        yield Anomaly("inconsistent-offsets", partition, f"{seen.value}: acked {send.offset}, seen at {seen.offset}")
    if send.outcome is Outcome.FAIL:
        yield Anomaly("aborted-read", partition, f"offset {seen.offset}: {seen.value} was refused")
    if send.due_ms is not None and seen.store_time_ms is not None:
        late_ms = seen.store_time_ms - send.due_ms
        if late_ms < 0:
            yield Anomaly("early", partition, f"{seen.value} came {-late_ms} ms before it was due")
        elif lateness_ms_max is not None and late_ms > lateness_ms_max:
            yield Anomaly("late", partition, f"{seen.value} came {late_ms} ms after it was due")


def _order_in(read: Read) -> Iterable[Anomaly]:
    """Offsets of one read go up by one."""
    if not read.seen:
        return
    first = read.seen[0].offset
    if read.is_final and first != read.begin_offset:
        yield Anomaly("gap", read.partition, f"the partition begins at {read.begin_offset}, the read at {first}")
    last = first
    for seen in read.seen[1:]:
        if seen.offset == last + 1:
            pass
        elif seen.offset <= last:
            yield Anomaly("reordered", read.partition, f"offset {seen.offset} was read after {last}")
        else:
            yield Anomaly("gap", read.partition, f"offsets {last + 1} to {seen.offset - 1} are missing in a read")
        last = seen.offset


def _missing(history: Recorder) -> Iterable[Anomaly]:
    """Acked sends that the final reads do not have."""
    values: dict[int, set[str]] = {}
    ends: dict[int, int] = {}
    for read in history.reads:
        if read.is_final:
            values.setdefault(read.partition, set()).update(seen.value for seen in read.seen)
            end = read.seen[-1].offset + 1 if read.seen else read.begin_offset
            ends[read.partition] = max(end, ends.get(read.partition, 0))
    for send in history.sends:
        if send.outcome is not Outcome.OK or send.value in values.get(send.partition, ()):
            continue
        is_beyond = send.offset is not None and send.offset >= ends.get(send.partition, 0)
        where = f"at offset {send.offset}" if send.offset is not None else f"due {send.due_ms}"
        yield Anomaly("unseen" if is_beyond else "lost-write", send.partition, f"{send.value}, acked {where}")


def _real_time_order(sends: Sequence[Send], offset_of: Mapping[tuple[int, str], int]) -> Iterable[Anomaly]:
    """A send that ended before another one began must have the lower offset. Delayed records have their own order."""
    by_partition: dict[int, list[tuple[Send, int]]] = {}
    for send in sends:
        offset = send.offset if send.offset is not None else offset_of.get((send.partition, send.value))
        if offset is not None and send.due_ms is None:
            by_partition.setdefault(send.partition, []).append((send, offset))
    for partition, stored in by_partition.items():
        stored.sort(key=lambda pair: pair[0].begun_ms)
        running = [(send.ended_ms, offset, send.value) for send, offset in stored]
        heapify(running)
        highest, highest_value = -1, ""
        for send, offset in stored:
            while running and running[0][0] < send.begun_ms:
                _, ended_offset, ended_value = heappop(running)
                if ended_offset > highest:
                    highest, highest_value = ended_offset, ended_value
            if offset < highest:
                detail = f"{send.value} at offset {offset} began after {highest_value} at {highest} had ended"
                yield Anomaly("reordered", partition, detail)


def _checksum(body: Mapping[str, Json]) -> int:
    return zlib.crc32(json.dumps(body, sort_keys=True, separators=(",", ":")).encode())
