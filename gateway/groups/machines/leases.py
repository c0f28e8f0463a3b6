"""Queue mode: records of one partition leased one by one, to whichever member asks, until each is settled.

Every record before `next_offset` has been taken from the log. It is either open, and known here, or done, without a
trace: memory grows with what is open, which is bounded, and not with what has been consumed. `low_offset`, the first
open record (or `next_offset`), is the group's committed offset.

    offsets   100   101   102   103   104   105              open: 101 and 103          low_offset   101
              done  open  done  open  done  not yet taken    done needs no memory       next_offset  105

An open record is leased until a time, or waits for one:

    leased    attempt a, until t     ack: done.  nack: waits.  extend: a later t.  t passes: waiting, ready.
    waiting   after attempt a, until t     t passes: it may be leased again, as attempt a + 1
    finished  rejected, or waiting after the last attempt: never leased again; `dead_letters` names it until the shell
              has its copy in the dead-letter topic durably and says so (`decide_settle`); not an instant earlier

Nearly all records are leased once, with those beside them, and acked. So what one receive leases for the first time is
one run (`_Run`), with a bit for each record that is still open, and costs as much as one record. Whatever else befalls
a record of it (its lease is over, it is given back, rejected, extended without the others) needs a row of its own
(`_Open`): then each open record of the run gets one. Runs are how it is kept, and nothing else: no event, verdict or
order tells them from rows, and a test holds them against a machine that has rows alone.

FIFO by message group: of the open records of one group only the first may be leased; the others are withheld, also
while the first one waits. Records without a group are free.

A receive whose answer was lost is repeated with the same `attempt_id` and gets the leases it already has.

Times are wall clock, epoch ms: they are shown to clients, and signed, and survive a restart. Leases are events like all
else, so a restart neither delivers what is leased nor forgets an attempt. Only `Settled` (and a reset) must be durable
before it is answered (C5); the others may be written without waiting for the disk, and losing them repeats a delivery.

Invariants
    L1  A record has at most one lease at a time; each lease has its own attempt number, and they grow.
    L2  A record is done only after an ack, or after its copy is in the dead-letter topic, or if it was filtered out.
    L3  At most `in_flight_max` records are open.
    L4  Of one message group, records are leased in the order of their offsets.
"""

from __future__ import annotations

import heapq
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable, Iterator, Sequence, Set
from dataclasses import dataclass, field
from enum import Enum
from typing import ClassVar, NamedTuple, assert_never

from gateway.groups.machines.config import GroupConfig
from gateway.groups.machines.errors import IllegalRequest
from gateway.groups.machines.events import Leased, LeaseEvent, LeaseMoved, LeasesSet, OpenRecord, Rejected, Settled
from gateway.groups.machines.receipts import RUN_RECORDS_MAX, Receipt

EXHAUSTED = "max_attempts"
ATTEMPT_ID_BYTES_MAX = 255


class Fresh(NamedTuple):
    """A record not delivered before, as the shell found it in the log."""

    offset: int
    message_group: str | None = None
    attempt: int = 0
    """Deliveries it had before, when it is a copy of another record."""
    is_held: bool = False
    """Not for the present caller: it is taken, and kept for others."""


class Lease(NamedTuple):
    """One record in a consumer's hands, or `size` records that were leased together, the first one at `offset`."""

    offset: int
    attempt: int
    until_ms: int
    size: int = 1


class DeadLetter(NamedTuple):
    """A record to copy to the dead-letter topic, and why: `EXHAUSTED` or the consumer's words."""

    offset: int
    attempt: int
    reason: str


class Verdict(Enum):
    """What became of one receipt."""

    OK = "ok"
    EXPIRED = "expired"  # the lease has ended, by time, by nack, or because the record was leased again
    STALE = "stale"  # of a time before a reset, or of another partition


class Decision(NamedTuple):
    """A verdict for each receipt, in order (for each record of one that is a run), and the events to write before they
    are told."""

    verdicts: list[Verdict]
    events: list[LeaseEvent]


@dataclass(slots=True)
class _Open:
    """State of one open record. `visible_at_ms`: when its lease or its wait ends."""

    attempt: int = 0
    visible_at_ms: int = 0
    is_leased: bool = False
    message_group: str | None = None
    attempt_id: str | None = None
    rejected: str | None = None


@dataclass(slots=True)
class _Run:
    """Open records from `first` to before `end`, leased together for the first time until `until_ms`: those of which
    the bit is set, the lowest being that of `first`."""

    first: int
    end: int
    until_ms: int
    open_bits: int
    open_count: int

    ATTEMPT: ClassVar[int] = 1

    @property
    def low_offset(self) -> int:
        """The first that is open."""
        return self.first + (self.open_bits & -self.open_bits).bit_length() - 1

    def is_open(self, offset: int) -> bool:
        """Whether a record of its range is."""
        return bool(self.open_bits >> (offset - self.first) & 1)

    def are_open(self, offset: int, count: int) -> bool:
        """Whether a record of its range is, and those behind it, so many in all."""
        bits = (1 << count) - 1
        return self.open_bits >> (offset - self.first) & bits == bits

    def offsets(self) -> Iterator[int]:
        """Those that are open."""
        return (offset for offset in range(self.first, self.end) if self.is_open(offset))

    def done(self, offsets: Sequence[int]) -> None:
        """These, which are open, and in order, are not any more."""
        if offsets[-1] - offsets[0] == len(offsets) - 1:
            bits = ((1 << len(offsets)) - 1) << (offsets[0] - self.first)
        else:
            bits = sum(1 << (offset - self.first) for offset in offsets)
        if bits & ~self.open_bits:
            raise KeyError(f"not all of {offsets} are open")
        self.open_bits &= ~bits
        self.open_count -= len(offsets)


@dataclass(slots=True)
class _State:
    """All there is to know of one partition, and indexes of it."""

    epoch: int = 0
    next_offset: int = 0
    records: dict[int, _Open] = field(default_factory=dict)  # by offset
    lows: list[int] = field(default_factory=list)  # heap of offsets of `records`; may hold some that are done
    runs: dict[int, _Run] = field(default_factory=dict)  # by first offset
    run_firsts: list[int] = field(default_factory=list)  # those, in order
    run_open_count: int = 0  # records of all runs
    due: list[tuple[int, int]] = field(default_factory=list)
    """Heap of (when, offset), of records and of runs by their first one; may hold old times."""

    groups: dict[str, dict[int, None]] = field(default_factory=dict)  # message group → its open offsets, in order
    last: set[int] = field(default_factory=set)  # rejected, or delivered for the last time
    requests: dict[str, set[int]] = field(default_factory=dict)  # attempt id → offsets leased by it


class PartitionLeases:
    """The leases of one group in one partition, or in one light queue of it (`name`, and its offsets). With
    nothing open, all it knows is `epoch` and `next_offset`."""

    __slots__ = ("_config", "_name", "_partition_id", "_state")

    def __init__(
        self,
        group: str,
        topic_id: int,
        partition: int,
        config: GroupConfig,
        *,
        epoch: int = 0,
        next_offset: int = 0,
        name: str = "",
    ) -> None:
        self._partition_id = (group, topic_id, partition)
        self._name = name
        self._config = config
        self._state = _State(epoch, next_offset)

    def reconfigure(self, config: GroupConfig) -> None:
        """Go on with other settings."""
        self._config = config
        for run in list(self._state.runs.values()):  # one attempt may be all there are now
            self._give_rows(run)
        self._state.last = {offset for offset, record in self._state.records.items() if self._is_last(record)}
        self._make_times_anew()  # what was finished, and so is in the heap no more, may not be any more

    # What is

    @property
    def epoch(self) -> int:
        """Receipts of an earlier one are void."""
        return self._state.epoch

    @property
    def next_offset(self) -> int:
        """The next record to take from the log."""
        return self._state.next_offset

    @property
    def low_offset(self) -> int:
        """Everything before it is done: the group's committed offset in this partition."""
        state = self._state
        lows, records = state.lows, state.records
        while lows and lows[0] not in records:
            heapq.heappop(lows)
        low = lows[0] if lows else state.next_offset
        return min(low, state.runs[state.run_firsts[0]].low_offset) if state.run_firsts else low

    @property
    def open_count(self) -> int:
        """Records taken and not done."""
        return len(self._state.records) + self._state.run_open_count

    def open_offsets(self) -> Set[int]:
        """The records taken and not done."""
        state = self._state
        if not state.runs:
            return state.records.keys()
        return state.records.keys() | {offset for run in state.runs.values() for offset in run.offsets()}

    def leased_count(self, now_ms: int) -> int:
        """Records in a consumer's hands."""
        state = self._state
        of_runs = sum(run.open_count for run in state.runs.values() if run.until_ms > now_ms)
        return of_runs + sum(one.is_leased and one.visible_at_ms > now_ms for one in state.records.values())

    def waiting_count(self, now_ms: int) -> int:
        """Records that were given back and may not be delivered again yet."""
        return sum(not record.is_leased and record.visible_at_ms > now_ms for record in self._state.records.values())

    def is_withheld(self, message_group: str) -> bool:
        """Whether a fresh record of this message group has to wait for one before it."""
        return message_group in self._state.groups

    def message_group(self, offset: int) -> str | None:
        """The message group of an open record, when the group delivers by them."""
        record = self._state.records.get(offset)
        return None if record is None else record.message_group

    @property
    def room(self) -> int:
        """How many more records may be taken from the log now (L3)."""
        return max(self._config.in_flight_max - self.open_count, 0)

    def next_due_ms(self) -> int | None:
        """When the next lease or wait ends: until then, asking for old records again finds no new ones."""
        due, records, runs = self._state.due, self._state.records, self._state.runs
        self._drop_old_times(len(records) + len(runs))
        while due:
            visible_at_ms, offset = due[0]
            record, run = records.get(offset), runs.get(offset)
            if record is not None and record.visible_at_ms == visible_at_ms:
                return visible_at_ms
            if run is not None and run.until_ms == visible_at_ms:
                return visible_at_ms
            heapq.heappop(due)
        return None

    def dead_letters(self, now_ms: int, limit: int) -> list[DeadLetter]:
        """Open records that are finished, up to `limit`, lowest offset first: copy them, then `decide_settle`."""
        letters: list[DeadLetter] = []
        for offset in sorted(self._state.last):
            record = self._state.records[offset]
            if record.rejected is not None or record.visible_at_ms <= now_ms:
                letters.append(DeadLetter(offset, record.attempt, record.rejected or EXHAUSTED))
        return letters[:limit]

    @property
    def may_have_dead_letters(self) -> bool:
        """Whether it is worth asking for them, now or when a lease has ended."""
        return bool(self._state.last)

    # What shall be

    def ready(self, now_ms: int, limit: int, is_wanted: Callable[[int], bool] = lambda _: True) -> list[int]:
        """Offsets of open records that may be leased now and are wanted, the longest due first, up to `limit`."""
        state = self._state
        found: list[int] = []
        seen: set[int] = set()
        passed: list[tuple[int, int]] = []
        while state.due and state.due[0][0] <= now_ms and len(found) < limit:
            due_ms, offset = heapq.heappop(state.due)
            run = state.runs.get(offset)
            if run is not None and run.until_ms == due_ms:
                self._give_rows(run)
                continue
            # What is not ready now is not missed in the heap: a record with another time has another item, a finished
            # one is found by `dead_letters`, and a withheld one comes back when the one before it is done.
            # By an old time it would come before records that are due longer, and in another order after a restart.
            if offset not in seen and self._is_ready(offset, now_ms) and state.records[offset].visible_at_ms == due_ms:
                seen.add(offset)
                passed.append((due_ms, offset))
                if is_wanted(offset):
                    found.append(offset)
        for item in passed:  # nothing has been decided yet
            heapq.heappush(state.due, item)
        return found

    def decide_receive(
        self,
        old: Sequence[int],
        fresh: Sequence[Fresh] | range,
        *,
        fetched_to: int,
        limit: int,
        invisible_ms: int,
        now_ms: int,
        attempt_id: str | None = None,
        is_more: bool = False,
    ) -> tuple[list[Lease], list[LeaseEvent]]:
        """Lease up to `limit` records for `invisible_ms`: those in `old` that are ready (see `ready`), then fresh ones.

        `fresh` are the records from `next_offset` to before `fetched_to` that the consumer wants, in order; the others
        there are done by this. A range of them says no more than their offsets, and is leased as one. Fresh ones that
        are not leased (withheld, or over the limit) are kept for later.
        The leases may be answered once the events are applied. With an `attempt_id` that has leases still, those are
        the answer, and nothing else happens, unless it `is_more` of the same receive. Raises IllegalRequest for a bad
        `invisible_ms` or `attempt_id`, or more than `room`.
        """
        if attempt_id is not None and len(attempt_id.encode()) > ATTEMPT_ID_BYTES_MAX:
            raise IllegalRequest(f"an attempt_id has at most {ATTEMPT_ID_BYTES_MAX} bytes")
        if not 1 <= invisible_ms <= self._config.invisible_ms_max:
            raise IllegalRequest(f"invisible_ms must be from 1 to {self._config.invisible_ms_max}, not {invisible_ms}")
        if attempt_id is not None and not is_more and (leases := self.leases_of(attempt_id, now_ms)):
            return leases, []
        if len(fresh) > (room := self.room):
            raise IllegalRequest(f"{len(fresh)} records are more than the {room} that may be taken now")
        state = self._state
        offsets = [offset for offset in dict.fromkeys(old) if self._is_ready(offset, now_ms)][:limit] if old else []
        until_ms = now_ms + invisible_ms
        if isinstance(fresh, range):
            assert not fresh or state.next_offset <= fresh.start <= fresh.stop <= fetched_to
            if not offsets and fetched_to == state.next_offset:
                return [], []
            taken = tuple(fresh)
            leases = [Lease(offset, state.records[offset].attempt + 1, until_ms) for offset in offsets]
            leased = (*offsets, *taken[: limit - len(offsets)]) if offsets or len(taken) > limit else taken
            if len(leased) > len(offsets):
                leases.append(Lease(fresh.start, _Run.ATTEMPT, until_ms, len(leased) - len(offsets)))
            return leases, [
                Leased(*self._partition_id, fetched_to, taken, (), leased, until_ms, attempt_id, name=self._name)
            ]
        assert all(state.next_offset <= record.offset < fetched_to for record in fresh), "fresh records follow the old"
        is_fifo = self._config.fifo
        begun: set[str] = set()
        for record in fresh:
            if len(offsets) == limit:
                break
            if record.is_held:
                continue
            if is_fifo and record.message_group is not None:
                if record.message_group in state.groups or record.message_group in begun:
                    continue
                begun.add(record.message_group)
            offsets.append(record.offset)
        if not offsets and fetched_to == state.next_offset:
            return [], []
        message_groups = tuple(record.message_group for record in fresh) if is_fifo else ()
        taken = tuple(record.offset for record in fresh)
        before = {record.offset: record.attempt for record in fresh if record.attempt}
        had = tuple(record.attempt for record in fresh) if before else ()
        event = Leased(
            *self._partition_id,
            fetched_to,
            taken,
            message_groups,
            tuple(offsets),
            until_ms,
            attempt_id,
            had,
            self._name,
        )
        records = state.records
        attempts = (records[at].attempt if at in records else before.get(at, 0) for at in offsets)
        leases = [Lease(offset, attempt + 1, until_ms) for offset, attempt in zip(offsets, attempts, strict=True)]
        return leases, [event]

    def leases_of(self, attempt_id: str, now_ms: int) -> list[Lease]:
        """The leases a receive with this id got and still has."""
        records = self._state.records
        return [
            Lease(offset, records[offset].attempt, records[offset].visible_at_ms)
            for offset in sorted(self._state.requests.get(attempt_id, ()))
            if records[offset].is_leased and records[offset].visible_at_ms > now_ms
        ]

    def verdicts(self, receipts: Iterable[Receipt], now_ms: int) -> list[Verdict]:
        """What would become of receipts now, one verdict each."""
        return [self._verdict(receipt, now_ms) for receipt in receipts]

    def decide_ack(self, receipts: Iterable[Receipt], now_ms: int) -> Decision:
        """Records are consumed. They are done once the event is durable. Acking twice is fine."""
        return self._decide(
            receipts,
            now_ms,
            is_done_ok=True,
            event_of=lambda offsets: Settled(*self._partition_id, offsets, self._name),
        )

    def decide_ack_up_to(self, offset: int, now_ms: int) -> list[LeaseEvent]:
        """All records in consumers' hands up to and including `offset` are consumed."""
        state = self._state
        held = [at for at, record in state.records.items() if record.is_leased and record.visible_at_ms > now_ms]
        held += [at for run in state.runs.values() if run.until_ms > now_ms for at in run.offsets()]
        offsets = tuple(sorted(at for at in held if at <= offset))
        return [Settled(*self._partition_id, offsets, self._name)] if offsets else []

    def decide_give_back(self, receipts: Iterable[Receipt], now_ms: int) -> Decision:
        """Records never reached the consumer: ready at once, and the attempt does not count."""
        return self._decide(
            receipts,
            now_ms,
            event_of=lambda offsets: LeaseMoved(*self._partition_id, offsets, now_ms, False, True, self._name),
        )

    def decide_extend(self, receipts: Iterable[Receipt], invisible_ms: int, now_ms: int) -> Decision:
        """Leases end `invisible_ms` from now. Raises IllegalRequest."""
        if not 1 <= invisible_ms <= self._config.invisible_ms_max:
            raise IllegalRequest(f"invisible_ms must be from 1 to {self._config.invisible_ms_max}, not {invisible_ms}")
        return self._decide(
            receipts,
            now_ms,
            event_of=lambda offsets: LeaseMoved(
                *self._partition_id, offsets, now_ms + invisible_ms, True, name=self._name
            ),
        )

    def check_delay(self, delay_ms: int | None) -> None:
        """Raises IllegalRequest unless a nack may ask for this delay. How long it may be is the server's limit for any
        delayed record, which the caller has checked."""
        if delay_ms is not None and delay_ms < 0:
            raise IllegalRequest(f"delay_ms must not be negative: {delay_ms}")

    def decide_nack(
        self, receipts: Sequence[Receipt], now_ms: int, *, delay_ms: int | None = None, reason: str = ""
    ) -> Decision:
        """Records could not be consumed: to be delivered again after `delay_ms`, or after the wait that the group's
        back-off table has for the attempt. After the last attempt they are finished at once; the dead letter's reason
        is then `EXHAUSTED` and the consumer's words. Raises IllegalRequest."""
        self.check_delay(delay_ms)
        verdicts: list[Verdict] = []
        finished: set[int] = set()
        waiting: dict[int, list[int]] = {}
        for receipt in receipts:
            verdict = self._verdict(receipt, now_ms)
            verdicts.append(verdict)
            if verdict is Verdict.OK:
                wait_ms = self.backoff_ms(receipt.attempt) if delay_ms is None else delay_ms
                if receipt.attempt >= self._config.max_attempts:
                    wait_ms = 0
                    if reason:
                        finished.add(receipt.offset)
                        continue
                waiting.setdefault(now_ms + wait_ms, []).append(receipt.offset)
        events: list[LeaseEvent] = [
            LeaseMoved(*self._partition_id, tuple(sorted(set(offsets))), visible_at_ms, False, name=self._name)
            for visible_at_ms, offsets in waiting.items()
        ]
        if finished:
            events.append(Rejected(*self._partition_id, tuple(sorted(finished)), f"{EXHAUSTED}: {reason}", self._name))
        return Decision(verdicts, events)

    def decide_reject(self, receipts: Iterable[Receipt], reason: str, now_ms: int) -> Decision:
        """Records shall not be tried again: `dead_letters` names them from now on."""
        return self._decide(
            receipts, now_ms, event_of=lambda offsets: Rejected(*self._partition_id, offsets, reason, self._name)
        )

    def decide_settle(self, offsets: Iterable[int]) -> list[LeaseEvent]:
        """Copies of these records, in the dead-letter topic or the timer, are durable (or they are gone from the log):
        they are done."""
        settled = tuple(offset for offset in dict.fromkeys(offsets) if self._is_open(offset))
        return [Settled(*self._partition_id, settled, self._name)] if settled else []

    def decide_reset(self, next_offset: int, now_ms: int) -> list[LeaseEvent]:
        """Begin anew at an offset, at first use or by an operator: all leases end, all receipts are void. The epoch is
        a time, so that receipts from before a deletion of the group are void too."""
        return [LeasesSet(*self._partition_id, max(self._state.epoch + 1, now_ms), next_offset, (), self._name)]

    def snapshot(self) -> LeasesSet:
        """An event that leads an empty machine to this state."""
        return LeasesSet(*self._partition_id, *self.frozen(), self._name)

    def frozen(self) -> tuple[int, int, tuple[OpenRecord, ...]]:
        """Epoch, next offset and open records, as they are now: what an event of the state is made of."""
        records = [
            OpenRecord(
                offset,
                record.attempt,
                record.visible_at_ms,
                record.is_leased,
                record.message_group,
                record.attempt_id,
                record.rejected,
            )
            for offset, record in self._state.records.items()
        ]
        for run in self._state.runs.values():
            until_ms = run.until_ms
            records += [OpenRecord(at, _Run.ATTEMPT, until_ms, True, None, None, None) for at in run.offsets()]
        return self._state.epoch, self._state.next_offset, tuple(sorted(records))

    def backoff_ms(self, attempt: int) -> int:
        """The wait after a failed attempt (1-based)."""
        table = self._config.backoff_ms
        return table[min(attempt, len(table)) - 1]

    # What has been decided and written

    def apply(self, event: LeaseEvent) -> None:
        """Change the state; the only way it changes, live or at start."""
        state = self._state
        match event:
            case Leased():
                self._apply_leased(event)
            case LeaseMoved():
                for offset in self._without_runs_extended(event):
                    record = self._row(offset)
                    if event.uncounted:
                        record.attempt -= 1
                        if not self._is_last(record):  # there may be fewer attempts by now than it has had
                            state.last.discard(offset)
                    self._move(offset, record, event.visible_at_ms, is_leased=event.leased)
            case Rejected():
                for offset in event.offsets:
                    record = self._row(offset)
                    record.rejected = event.reason
                    record.is_leased = False
                    state.last.add(offset)
            case Settled():
                for run, offsets in self._by_run(event.offsets):
                    if run is None:
                        for offset in offsets:
                            self._remove(offset)
                    else:
                        self._settle(run, offsets)
            case LeasesSet():
                self._state = _State(event.epoch, event.next_offset)
                for offset, attempt, visible_at_ms, leased, message_group, attempt_id, rejected in event.open_records:
                    record = _Open(attempt, visible_at_ms, leased, message_group, attempt_id, rejected)
                    self._put(offset, record)
                    if attempt_id is not None:
                        self._state.requests.setdefault(attempt_id, set()).add(offset)
            case _:
                assert_never(event)

    def _apply_leased(self, event: Leased) -> None:
        state = self._state
        taken = event.fresh
        if (
            event.offsets == taken
            and taken
            and taken[-1] - taken[0] == len(taken) - 1
            and event.attempt_id is None
            and not any(event.attempts)
            and not any(event.message_groups)
            and self._config.max_attempts > _Run.ATTEMPT
            and RUN_RECORDS_MAX  # a test has none, to compare
        ):
            for first in range(taken[0], taken[-1] + 1, RUN_RECORDS_MAX):
                self._put_run(first, min(first + RUN_RECORDS_MAX, taken[-1] + 1), event.until_ms)
            state.next_offset = event.fetched_to
            return
        leased = set(event.offsets)
        groups: Iterable[str | None] = event.message_groups or (None,) * len(event.fresh)
        attempts = event.attempts or (0,) * len(event.fresh)
        for offset, message_group, attempt in zip(event.fresh, groups, attempts, strict=True):
            visible_at_ms = event.until_ms if offset in leased else 0  # spares a time in the heap that is old at once
            self._put(offset, _Open(attempt, visible_at_ms, False, message_group))
        state.next_offset = event.fetched_to
        fresh = set(event.fresh)
        for offset in event.offsets:
            record = self._row(offset)
            record.attempt += 1
            record.is_leased = True
            self._forget_request(offset, record)
            record.attempt_id = event.attempt_id
            if event.attempt_id is not None:
                state.requests.setdefault(event.attempt_id, set()).add(offset)
            if self._is_last(record):
                state.last.add(offset)
            if offset not in fresh:
                self._move(offset, record, event.until_ms, is_leased=True)

    # How it is worked out

    def _verdict(self, receipt: Receipt, now_ms: int, *, is_done_ok: bool = False) -> Verdict:
        state = self._state
        is_here = (receipt.topic_id, receipt.partition) == self._partition_id[1:]
        if not is_here or receipt.epoch != state.epoch or receipt.offset >= state.next_offset:
            return Verdict.STALE
        record = state.records.get(receipt.offset)
        if record is None:
            run = self._run_of(receipt.offset)
            if run is None:
                return Verdict.OK if is_done_ok else Verdict.EXPIRED
            return Verdict.OK if receipt.attempt == _Run.ATTEMPT and run.until_ms > now_ms else Verdict.EXPIRED
        if not record.is_leased or record.attempt != receipt.attempt or record.visible_at_ms <= now_ms:
            return Verdict.EXPIRED
        return Verdict.OK

    def _decide(
        self,
        receipts: Iterable[Receipt],
        now_ms: int,
        *,
        event_of: Callable[[tuple[int, ...]], LeaseEvent],
        is_done_ok: bool = False,
    ) -> Decision:
        verdicts: list[Verdict] = []
        receipts = list(receipts)
        if len(receipts) == 1 and self._is_leased_run(receipts[0], now_ms):  # as nearly all are
            offset, size = receipts[0].offset, receipts[0].size
            return Decision([Verdict.OK] * size, [event_of(tuple(range(offset, offset + size)))])
        offsets: set[int] = set()
        for receipt in receipts:
            offset, size = receipt.offset, receipt.size
            if self._is_leased_run(receipt, now_ms):
                verdicts += [Verdict.OK] * size
                offsets.update(range(offset, offset + size))
                continue
            for one in receipt.each():
                verdict = self._verdict(one, now_ms, is_done_ok=is_done_ok)
                verdicts.append(verdict)
                if verdict is Verdict.OK and self._is_open(one.offset):
                    offsets.add(one.offset)
        return Decision(verdicts, [event_of(tuple(sorted(offsets)))] if offsets else [])

    def _is_leased_run(self, receipt: Receipt, now_ms: int) -> bool:
        """Whether all of a receipt's records are open in a run, and on lease by it."""
        run = self._run_of(receipt.offset)
        return (
            run is not None
            and run.are_open(receipt.offset, receipt.size)
            and run.until_ms > now_ms
            and receipt.attempt == _Run.ATTEMPT
            and receipt.epoch == self._state.epoch
            and receipt[:2] == self._partition_id[1:]
        )

    def _is_ready(self, offset: int, now_ms: int) -> bool:
        record = self._state.records.get(offset)
        if record is None or record.visible_at_ms > now_ms:
            return False
        if record.rejected is not None or record.attempt >= self._config.max_attempts:
            return False
        return record.message_group is None or next(iter(self._state.groups[record.message_group])) == offset

    def _is_last(self, record: _Open) -> bool:
        return record.rejected is not None or record.attempt >= self._config.max_attempts

    def _is_open(self, offset: int) -> bool:
        return offset in self._state.records or self._run_of(offset) is not None

    def _run_of(self, offset: int) -> _Run | None:
        """The run in which a record is open."""
        state = self._state
        at = bisect_right(state.run_firsts, offset)
        if not at:
            return None
        run = state.runs[state.run_firsts[at - 1]]
        return run if offset < run.end and run.is_open(offset) else None

    def _by_run(self, offsets: Sequence[int]) -> Iterator[tuple[_Run | None, Sequence[int]]]:
        """Open records by the runs that they are in; None: they have rows."""
        if not self._state.runs:
            yield None, offsets
            return
        offsets = sorted(offsets)
        at = 0
        while at < len(offsets):
            run = self._run_of(offsets[at])
            end = at + 1 if run is None else bisect_left(offsets, run.end, at)
            yield run, offsets[at:end]
            at = end

    def _put_run(self, first: int, end: int, until_ms: int) -> None:
        state, count = self._state, end - first
        state.runs[first] = _Run(first, end, until_ms, (1 << count) - 1, count)
        state.run_firsts.append(first)
        state.run_open_count += count
        heapq.heappush(state.due, (until_ms, first))

    def _drop_run(self, run: _Run) -> None:
        state = self._state
        del state.runs[run.first]
        del state.run_firsts[bisect_left(state.run_firsts, run.first)]
        state.run_open_count -= run.open_count

    def _settle(self, run: _Run, offsets: Sequence[int]) -> None:
        run.done(offsets)
        self._state.run_open_count -= len(offsets)
        if not run.open_count:
            self._drop_run(run)

    def _give_rows(self, run: _Run) -> None:
        """Let each open record of a run have a row of its own."""
        self._drop_run(run)
        for offset in run.offsets():
            self._put(offset, _Open(_Run.ATTEMPT, run.until_ms, True))

    def _row(self, offset: int) -> _Open:
        """The row of an open record."""
        if (run := self._run_of(offset)) is not None:
            self._give_rows(run)
        return self._state.records[offset]

    def _without_runs_extended(self, event: LeaseMoved) -> Iterator[int]:
        """The records of an event, but for whole runs that go on as such: their leases are extended together."""
        for run, offsets in self._by_run(event.offsets):
            if run is not None and event.leased and not event.uncounted and len(offsets) == run.open_count:
                run.until_ms = event.visible_at_ms
                self._note_due(run.until_ms, run.first)
            else:
                yield from offsets

    def _put(self, offset: int, record: _Open) -> None:
        state = self._state
        state.records[offset] = record
        heapq.heappush(state.lows, offset)
        if len(state.lows) > 2 * len(state.records) + 64:  # the lowest one may stay for long
            state.lows = sorted(state.records)
        if self._is_last(record):
            state.last.add(offset)
        if record.message_group is not None:
            state.groups.setdefault(record.message_group, {})[offset] = None
        heapq.heappush(state.due, (record.visible_at_ms, offset))

    def _move(self, offset: int, record: _Open, visible_at_ms: int, *, is_leased: bool) -> None:
        record.visible_at_ms, record.is_leased = visible_at_ms, is_leased
        self._note_due(visible_at_ms, offset)

    def _note_due(self, visible_at_ms: int, offset: int) -> None:
        heapq.heappush(self._state.due, (visible_at_ms, offset))
        self._drop_old_times(len(self._state.records) + len(self._state.runs) + 64)  # extends must not grow it

    def _drop_old_times(self, old_max: int) -> None:
        """Make the heap anew if it holds more old times than these: cheaper than to pop them one by one."""
        due, records, runs = self._state.due, self._state.records, self._state.runs
        if len(due) > len(records) + len(runs) + old_max:
            self._make_times_anew()

    def _make_times_anew(self) -> None:
        due, records, runs = self._state.due, self._state.records, self._state.runs
        due[:] = [(record.visible_at_ms, offset) for offset, record in records.items()]
        due += [(run.until_ms, run.first) for run in runs.values()]
        heapq.heapify(due)

    def _remove(self, offset: int) -> None:
        state = self._state
        record = state.records.pop(offset)
        state.last.discard(offset)
        self._forget_request(offset, record)
        if record.message_group is not None:
            rest = state.groups[record.message_group]
            del rest[offset]
            if not rest:
                del state.groups[record.message_group]
            elif (first := next(iter(rest))) > offset:
                heapq.heappush(state.due, (state.records[first].visible_at_ms, first))

    def _forget_request(self, offset: int, record: _Open) -> None:
        if record.attempt_id is not None:
            offsets = self._state.requests[record.attempt_id]
            offsets.discard(offset)
            if not offsets:
                del self._state.requests[record.attempt_id]
