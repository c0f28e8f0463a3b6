"""Acks without a task for each: the go of their group writes them, and the ledgers (lease.py) are told when it has."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from functools import partial

from gateway.api.lease import AllLeases, Leases
from gateway.groups.protocol import Groups, Settled


def begin_ack(
    groups: Groups, everything: AllLeases, group: str, receipts: Sequence[str], own: Leases | None = None
) -> asyncio.Future[Sequence[Settled]]:
    """Acknowledge records, begun on return; the future has what became of each receipt, in the order asked, and is done
    when the acks are durable. They are written, and the ledgers told, also when nobody waits any more: wait for it with
    `uncancelled`. `own`: the ledger that is asked before all others. Raises, and the future, as `Groups.ack`."""
    acking = asyncio.ensure_future(groups.ack(group, receipts))
    acking.add_done_callback(partial(_acked, everything, group, own))
    return acking


def _acked(everything: AllLeases, group: str, own: Leases | None, acking: asyncio.Future[Sequence[Settled]]) -> None:
    if not acking.cancelled() and acking.exception() is None:
        everything.settled(group, acking.result(), own)
