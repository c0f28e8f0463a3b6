"""What consumers of queue mode have in their hands, and what they say about it: one ledger for sockets' subscriptions
and for event streams, and one way to settle. Nothing here does I/O but through `Groups`.

Both kinds of consumers send records on lease while their client settles earlier ones, and count what is out against its
credit. A record leaves the ledger when it is settled, or when its lease is over by this server's clock. A client may
settle elsewhere than where it received (a page that reads an event stream settles by HTTP), so `settle` tells all
consumers of the group. An extended lease has two receipts that are good, its first one and its newest.

Invariants
    H1  after `sweep` every record in a ledger is on lease, as far as this server has been told and its clock goes
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from itertools import repeat
from typing import NamedTuple

from gateway.api.shapes.answers import Worker
from gateway.api.shapes.commands import Nack, Reject
from gateway.api.shapes.groups import ExtendBody, NackBody, RejectBody
from gateway.api.workers import POLLED_GROUPS_MAX, Pollers
from gateway.groups.machines.copies import place_name
from gateway.groups.machines.receipts import RunReceipts
from gateway.groups.protocol import LEASE_OVER, Accepted, Groups, Run, Settled
from store.clock import Clock

REASON_DEFAULT = "rejected"
"""Of a dead letter whose consumer gave no reason."""

_NEVER_MS = 2**63 - 1


class Lease(NamedTuple):
    """One record in a consumer's hands. `place`: the topic, or light queue, in whose offsets it is. `receipt`: the
    newest; `frame` and `byte_count`: what its consumer noted."""

    place: str
    partition: int
    offset: int
    until_ms: int
    receipt: str
    frame: int
    byte_count: int


class _Piece(NamedTuple):
    """What the leases of records that went out together in one frame have in common. `offset`, `sizes`: of the first
    record, and of each; `newest`: the newest receipt, of a lease that was extended, which is a piece of its own."""

    place: str
    partition: int
    offset: int
    until_ms: int
    frame: int
    sizes: Sequence[int] | None
    newest: str | None = None

    def lease(self, index: int, first: str) -> Lease:
        """One of them, by its index and its first receipt."""
        return Lease(
            self.place, self.partition, self.offset + index, self.until_ms, self.newest or first, self.frame,
            self.size(index),
        )  # fmt: skip

    def size(self, index: int) -> int:
        return 0 if self.sizes is None else self.sizes[index]


_Held = tuple[_Piece, int]
"""A lease: its piece, and its index there."""


class Leases:
    """The records of one consumer. `on_done` is told of those that were settled, or whose leases are over, together:
    how many, and their bytes."""

    def __init__(self, on_done: Callable[[int, int], object], consumer: str = "") -> None:
        self._on_done = on_done
        self.consumer = consumer
        """Its name, for people who look."""

        self._runs: dict[str, tuple[RunReceipts, _Piece]] = {}
        """Runs of which none is done without the others, by what their receipts have in common. Whatever else happens
        to one of them, all runs are put among the others first (`_each`)."""

        self._run_count = 0
        self._leases: dict[str, _Held] = {}  # the others, by their first receipts
        self._first_of: dict[str | None, str] = {}  # first receipt by the newest, of those that were extended
        self.next_end_ms = _NEVER_MS
        """No lease ends before."""

    def __len__(self) -> int:
        return len(self._leases) + self._run_count

    def took(self, runs: Sequence[Run], sizes: Sequence[int] | None = None, frame: int = 0) -> None:
        """These go out, in this frame; `sizes`: the bytes of each record, where they count."""
        at = 0
        for run in runs:
            place, first, receipts = run.topic, run.offset, run.receipts
            if run.queue_offset is not None:
                place, first = place_name(place, run.queue), run.queue_offset
            end = at + len(receipts)
            own = None if sizes is None else sizes[at:end]
            piece = _Piece(place, run.partition, first, run.until_ms, frame, own)
            if isinstance(receipts, RunReceipts) and receipts.signed not in self._runs:
                self._runs[receipts.signed] = receipts, piece
                self._run_count += end - at
            else:
                if isinstance(receipts, RunReceipts):  # others of one run
                    before = self._runs.pop(receipts.signed)
                    self._run_count -= len(before[0])
                    self._put(*before)
                self._put(receipts, piece)
            self.next_end_ms = min(self.next_end_ms, run.until_ms)
            at = end

    def settled(self, results: Sequence[Settled]) -> Sequence[Settled]:
        """Receipts were settled, or found over. Returns those of them that are not here."""
        if isinstance(results, Accepted) and not self._first_of:
            return self._accepted(results)
        others: list[Settled] = []
        done: list[_Held] = []
        first_of = self._first_of
        self._each()
        for result in results:
            is_over = result.ok or result.error_code == LEASE_OVER
            held = self._drop(first_of.get(result.receipt, result.receipt)) if is_over else None
            if held is None:
                others.append(result)
            else:
                done.append(held)
        self._tell(done)
        return others

    def _accepted(self, results: Accepted) -> Sequence[Settled]:
        """All of these were settled, and no lease was extended."""
        receipts, take = results.receipts, self._leases.pop
        run = self._runs.get(receipts.signed) if isinstance(receipts, RunReceipts) else None
        if run is not None and run[0] == receipts:
            del self._runs[run[0].signed]
            count, sizes = len(receipts), run[1].sizes
            self._run_count -= count
            self._on_done(count, 0 if sizes is None else sum(sizes))
            return ()
        self._each()
        found = [take(receipt, None) for receipt in receipts]
        self._tell([held for held in found if held is not None])
        if None not in found:
            return ()
        return Accepted([receipt for receipt, held in zip(receipts, found, strict=True) if held is None])

    def _tell(self, done: Sequence[_Held]) -> None:
        """These have left."""
        if done:
            self._on_done(len(done), sum([piece.sizes[index] for piece, index in done if piece.sizes is not None]))

    def extended(self, results: Iterable[Settled], until_ms: int) -> list[Settled]:
        """Leases go on until then, or were found over. Returns those of them that are not here."""
        others: list[Settled] = []
        self._each()
        for result in results:
            if not result.ok or result.new_receipt is None:
                others += self.settled([result])
                continue
            first = self._first_of.pop(result.receipt, result.receipt)
            if (held := self._leases.get(first)) is None:
                others.append(result)
                continue
            piece, index = held
            self._first_of.pop(piece.newest, None)
            extended = _Piece(
                piece.place, piece.partition, piece.offset + index, until_ms, piece.frame, [piece.size(index)],
                result.new_receipt,
            )  # fmt: skip
            self._leases[first] = extended, 0
            self._first_of[result.new_receipt] = first
            self.next_end_ms = min(self.next_end_ms, until_ms)
        return others

    def receipts(self) -> list[str]:
        """Their receipts, first ones and newest."""
        self._each()
        return [*self._leases, *filter(None, self._first_of)]

    def up_to(self, place: str, partition: int, offset: int) -> list[str]:
        """The receipts of a partition's records, or of its light queue's, up to and including this offset."""
        self._each()
        return [
            piece.newest or first
            for first, (piece, index) in self._leases.items()
            if piece.offset + index <= offset and (piece.place, piece.partition) == (place, partition)
        ]

    def sweep(self, now_ms: int) -> None:
        """Let go of those whose leases are over."""
        if now_ms >= self.next_end_ms:
            self._each()
            over = [receipt for receipt, (piece, _) in self._leases.items() if piece.until_ms <= now_ms]
            self._tell([held for receipt in over if (held := self._drop(receipt)) is not None])
            self.next_end_ms = min((piece.until_ms for piece, _ in self._leases.values()), default=_NEVER_MS)

    def take_after(self, frame: int) -> list[Lease]:
        """Take out, and return, those of later frames; `on_done` is not told."""
        self._each()
        taken = {first: held for first, held in self._leases.items() if held[0].frame > frame}
        for first in taken:
            self._drop(first)
        return [piece.lease(index, first) for first, (piece, index) in taken.items()]

    def _put(self, receipts: Sequence[str], piece: _Piece) -> None:
        self._leases.update(zip(receipts, zip(repeat(piece), range(len(receipts))), strict=True))

    def _each(self) -> None:
        """Have each lease by itself."""
        if self._runs:
            for receipts, piece in self._runs.values():
                self._put(receipts, piece)
            self._runs.clear()
            self._run_count = 0

    def _drop(self, first: str) -> _Held | None:
        held = self._leases.pop(first, None)
        if held is not None and self._first_of:
            self._first_of.pop(held[0].newest, None)
        return held


class AllLeases:
    """Those of all consumers, by group; of those that poll over HTTP, who has how many."""

    def __init__(self) -> None:
        self._by_group: dict[str, list[Leases]] = {}
        self._pollers: dict[str, Pollers] = {}

    def pollers(self, group: str) -> Pollers:
        """The consumers of a group that poll over HTTP."""
        if (pollers := self._pollers.get(group)) is None:
            pollers = self._pollers[group] = Pollers()
            if len(self._pollers) > POLLED_GROUPS_MAX:
                del self._pollers[next(iter(self._pollers))]
        return pollers

    def workers(self, group: str, now_ms: int) -> list[Worker]:
        """Who works on the records of a group in queue mode."""
        connected = self._by_group.get(group, ())
        for leases in connected:
            leases.sweep(now_ms)
        polling = self._pollers[group].workers(now_ms) if group in self._pollers else []
        return [*(Worker(leases.consumer, len(leases), None) for leases in connected), *polling]

    def held(self, group: str) -> dict[str, str]:
        """The receipts that consumers of a group have, and who has which."""
        found = self._pollers[group].held() if group in self._pollers else {}
        for leases in self._by_group.get(group, ()):
            found |= dict.fromkeys(leases.receipts(), leases.consumer)
        return found

    def forget(self, group: str) -> None:
        """The group was deleted."""
        self._pollers.pop(group, None)

    def add(self, group: str, leases: Leases) -> None:
        """A consumer has begun."""
        self._by_group.setdefault(group, []).append(leases)

    def remove(self, group: str, leases: Leases) -> None:
        """A consumer has ended, if it had begun."""
        consumers = self._by_group.get(group, [])
        if leases in consumers:
            consumers.remove(leases)
        if not consumers:
            self._by_group.pop(group, None)

    def settled(self, group: str, results: Sequence[Settled], own: Leases | None = None) -> None:
        """Receipts were settled, or found over. Each belongs to one consumer at most. `own`: the ledger that is asked
        before all others."""
        if own is not None:
            results = own.settled(results)
        if results and group in self._pollers:
            results = self._pollers[group].settled(results)
        for leases in self._by_group.get(group, ()):
            if not results:
                break
            results = leases.settled(results)

    def extended(self, group: str, results: Sequence[Settled], until_ms: int) -> None:
        """Leases go on until then, or were found over."""
        if results and group in self._pollers:
            results = self._pollers[group].extended(results, until_ms)
        for leases in self._by_group.get(group, ()):
            if not results:
                break
            results = leases.extended(results, until_ms)

    def settled_up_to(self, group: str, topic: str, partition: int, offset: int) -> None:
        """All of a partition up to and including this offset were settled."""
        for leases in self._by_group.get(group, ()):
            leases.settled(Accepted(leases.up_to(topic, partition, offset)))


async def settle(
    groups: Groups,
    clock: Clock,
    everything: AllLeases,
    group: str,
    wanted: NackBody | Nack | RejectBody | Reject | ExtendBody,
    own: Leases | None = None,
) -> Sequence[Settled]:
    """Do what a consumer says about records in its hands, but for acks (acks.py); what became of each receipt, in the
    order asked. Rejections are durable on return. `own`: the ledger that is asked before all others. Raises as
    `Groups`."""
    receipts = wanted.receipts
    until_ms = None
    match wanted:
        case NackBody() | Nack():
            results = await groups.nack(group, receipts, delay_ms=wanted.delay_ms, reason=wanted.reason or "")
        case RejectBody() | Reject():
            results = await groups.reject(group, receipts, wanted.reason or REASON_DEFAULT)
        case ExtendBody():
            results = await groups.extend(group, receipts, wanted.invisible_ms)
            until_ms = clock.now_ms() + wanted.invisible_ms
    if until_ms is None:
        everything.settled(group, results, own)
    else:
        everything.extended(group, results if own is None else own.extended(results, until_ms), until_ms)
    return results
