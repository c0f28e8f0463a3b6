"""Queue mode: records are handed to whoever asks, each under a lease with a receipt, and settled one by one.

    receiving     which records a consumer gets, and the wait for them (`search`: what there is in one partition)
    settling      ack, nack, extend, give back, reject
    dead_letters  what was rejected or failed too often, and its way back

Leases of one partition change under its turn. Events, and when they are durable:

    LeasesSet (first use)   flushed: where a group began must not move
    Leased, LeaseMoved      written: a kill -9 keeps them, a power cut may take the last ones; those records are
                            delivered again, perhaps under an attempt number that was used before
    Settled, Rejected       flushed before the answer (C5)

    crash                                        what a restart finds
    before the first use is durable              no position: nobody has got anything, and the next receive begins anew
    after it, before a lease is written          the position, in all partitions; the records as they were
    after the lease, before the answer           the lease; it ends by itself, or is asked for again by attempt_id
    before an ack is durable                     the lease, or its end: the record is delivered again
    after it, before the answer                  the ack; acking again is fine
    between a copy (retry, dead letter) and      both: the copy is durable first, so nothing is lost
    the settling of its record
    between a redriven copy and the offset       the copy, and the dead letter to redrive: it comes twice
    that says so
"""

from __future__ import annotations

import logging
from collections.abc import Sequence

from gateway.groups.coordinator.context import Context
from gateway.groups.coordinator.copies import CopyWriter
from gateway.groups.coordinator.dead_letters import DeadLetters
from gateway.groups.coordinator.offsets import Offsets
from gateway.groups.coordinator.receiving import Receiving
from gateway.groups.coordinator.search import Search
from gateway.groups.coordinator.settling import Settling
from gateway.groups.machines.copies import REASON_BYTES_MAX
from gateway.groups.machines.events import Leased, LeaseEvent, LeaseMoved, LeasesSet, Rejected
from gateway.groups.machines.events import Settled as SettledEvent
from gateway.groups.machines.progress import PartitionKey
from gateway.groups.machines.receipts import Signer
from gateway.groups.protocol import Settled
from store.uncancelled import to_its_end

log = logging.getLogger(__name__)


class QueueMode:
    """Leases of all groups of one node."""

    def __init__(
        self, context: Context, offsets: Offsets, copies: CopyWriter, signer: Signer, *, in_flight_max: int
    ) -> None:
        self._context = context
        self._search = Search(context)
        self.settling = Settling(context, copies, signer)
        self.receiving = Receiving(
            context, offsets, self._search, signer, give_back=self.settling.give_back, in_flight_max=in_flight_max
        )
        self.dead_letters = DeadLetters(context, copies)

    async def close(self) -> None:
        """End all waits."""
        await self.receiving.close()

    async def nack(
        self, group: str, receipts: Sequence[str], *, delay_ms: int | None = None, reason: str = ""
    ) -> list[Settled]:
        """See `Groups.nack`."""
        if reason:
            log.debug("nack group=%s count=%s reason=%s", group, len(receipts), reason[:REASON_BYTES_MAX])
        return await to_its_end(self._nack(group, receipts, delay_ms))

    async def _nack(self, group: str, receipts: Sequence[str], delay_ms: int | None) -> list[Settled]:
        results, keys = await self.settling.nack(group, receipts, delay_ms)
        for key in sorted(keys):
            await self.dead_letters.dead_letter(group, key)
        return results

    async def reject(self, group: str, receipts: Sequence[str], reason: str) -> list[Settled]:
        """See `Groups.reject`."""
        return await to_its_end(self._reject(group, receipts, reason))

    async def _reject(self, group: str, receipts: Sequence[str], reason: str) -> list[Settled]:
        results, keys = await self.settling.reject(group, receipts, reason)
        for key in sorted(keys):
            await self.dead_letters.dead_letter(group, key)
        return results

    def applied(self, event: LeaseEvent) -> None:
        """Leases have changed: tell who waits for it, and remember where dead letters may be."""
        context = self._context
        group, key = event.group, PartitionKey(event.topic_id, event.partition)
        leases = context.table.leases(group, key)
        if leases is not None and leases.may_have_dead_letters:
            self.dead_letters.expect(group, key)
        match event:
            case SettledEvent():
                context.stats.settled_count += len(event.offsets)
                self.receiving.settled(group)
            case LeaseMoved():
                context.leases_changed.happened(group)
            case LeasesSet():
                self._search.forget(group, key)
                context.leases_changed.happened(group)
            case Leased() | Rejected():
                pass

    def forgotten(self, group: str, keys: Sequence[PartitionKey], *, is_deleted: bool) -> None:
        """Leases are gone, with their topics or with the whole group: tell who waits."""
        for key in keys:
            self._search.forget(group, key)
        if is_deleted:
            self.receiving.forget(group)
        self._context.leases_changed.happened(group)
