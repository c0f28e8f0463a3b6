"""Who works on a group's records in queue mode, for people who look (`mq group describe`): in memory, of this process.

Sockets and event streams keep a ledger each (lease.py). Consumers that poll over HTTP have none, so their receipts are
kept here until they are settled or their leases are over: those of a run as one, while none of them is settled without
the others.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from gateway.api.shapes.answers import Worker
from gateway.groups.machines.receipts import RunReceipts
from gateway.groups.protocol import LEASE_OVER, Accepted, Settled

SHOWN_MS = 300_000
"""How long a consumer without leases is shown after its last request."""

POLLERS_MAX = 1_000
"""Consumers of one group that are shown; beyond it the one longest silent is left out."""

POLLED_GROUPS_MAX = 10_000
"""Groups whose polling consumers are known; beyond it those of the one known for longest are forgotten. A receive may
name groups that will never be."""

SWEEP_COUNT = 10_000
"""Receipts, and runs of them, kept before those whose leases are over are looked for; then again when they have
doubled."""


class _Lease(NamedTuple):
    consumer: str
    until_ms: int


_NO_RUN = RunReceipts("", 0, 0), _Lease("", 0)
_new = tuple.__new__  # a NamedTuple's own constructor takes twice as long


class Pollers:
    """The consumers of one group that poll over HTTP. An ack `up_to` an offset, or by the first receipt of a lease that
    was extended, is noticed only when the lease would have ended."""

    def __init__(self) -> None:
        self._heard_ms: dict[str, int] = {}  # by consumer, the longest silent first
        self._leases: dict[str, _Lease] = {}  # by receipt
        self._runs: dict[str, tuple[RunReceipts, _Lease]] = {}  # by what the receipts have in common; none is in both
        self._sweep_count = SWEEP_COUNT

    def heard(self, consumer: str, now_ms: int) -> None:
        """It asks for records."""
        self._heard_ms.pop(consumer, None)
        self._heard_ms[consumer] = now_ms
        if len(self._heard_ms) > POLLERS_MAX:
            del self._heard_ms[next(iter(self._heard_ms))]

    def took(self, consumer: str, receipts: Sequence[str], until_ms: int, now_ms: int) -> None:
        """It was given these, until then."""
        self.heard(consumer, now_ms)
        lease = _new(_Lease, (consumer, until_ms))
        if isinstance(receipts, RunReceipts) and receipts.signed not in self._runs:
            self._runs[receipts.signed] = receipts, lease
        else:
            if isinstance(receipts, RunReceipts):  # others of one run, or the same once more
                self._leases |= dict.fromkeys(*self._runs.pop(receipts.signed))
            self._leases |= dict.fromkeys(receipts, lease)
        if len(self._leases) + len(self._runs) > self._sweep_count:
            self._sweep(now_ms)

    def settled(self, results: Sequence[Settled]) -> Sequence[Settled]:
        """Receipts were settled, or found over. Returns those that are not here."""
        take = self._take
        if isinstance(results, Accepted):
            receipts = results.receipts
            if isinstance(receipts, RunReceipts) and self._runs.get(receipts.signed, _NO_RUN)[0] == receipts:
                del self._runs[receipts.signed]
                return ()
            return Accepted([receipt for receipt in receipts if take(receipt) is None])
        return [
            result
            for result in results
            if not (result.ok or result.error_code == LEASE_OVER) or take(result.receipt) is None
        ]

    def extended(self, results: Iterable[Settled], until_ms: int) -> list[Settled]:
        """Leases go on until then, or were found over. Returns those that are not here."""
        others = []
        for result in results:
            lease = self._take(result.receipt)
            if lease is None:
                others.append(result)
            elif result.new_receipt is not None:
                self._leases[result.new_receipt] = _Lease(lease.consumer, until_ms)
        return others

    def held(self) -> dict[str, str]:
        """The receipts that were given out, and to whom."""
        held = {receipt: lease.consumer for receipt, lease in self._leases.items()}
        for receipts, lease in self._runs.values():
            held |= dict.fromkeys(receipts, lease.consumer)
        return held

    def workers(self, now_ms: int) -> list[Worker]:
        """Those that have records, or asked lately."""
        self._sweep(now_ms)
        leased = dict.fromkeys(self._heard_ms, 0)
        for lease in self._leases.values():
            leased[lease.consumer] = leased.get(lease.consumer, 0) + 1
        for receipts, lease in self._runs.values():
            leased[lease.consumer] = leased.get(lease.consumer, 0) + len(receipts)
        return [
            Worker(consumer, count, max(now_ms - self._heard_ms.get(consumer, 0), 0))
            for consumer, count in leased.items()
            if count or now_ms - self._heard_ms.get(consumer, 0) <= SHOWN_MS
        ]

    def _take(self, receipt: str) -> _Lease | None:
        """No longer keep a receipt. The others of its run are kept each by itself from then on."""
        lease = self._leases.pop(receipt, None)
        if lease is None and self._runs and (run := self._runs.pop(receipt.rpartition(".")[0], None)) is not None:
            self._leases |= dict.fromkeys(*run)
            lease = self._leases.pop(receipt, None)
        return lease

    def _sweep(self, now_ms: int) -> None:
        self._leases = {receipt: lease for receipt, lease in self._leases.items() if lease.until_ms > now_ms}
        self._runs = {signed: run for signed, run in self._runs.items() if run[1].until_ms > now_ms}
        self._sweep_count = max(SWEEP_COUNT, 2 * (len(self._leases) + len(self._runs)))
