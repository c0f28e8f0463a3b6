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
    """As `settle` of an ack, begun on return, for who does not cancel it: it is done, and told to the ledgers, whoever
    is gone by then. Raises, and the future, as `Groups.ack`."""
    acking = asyncio.ensure_future(groups.ack(group, receipts))
    acking.add_done_callback(partial(_acked, everything, group, own))
    return acking


def _acked(everything: AllLeases, group: str, own: Leases | None, acking: asyncio.Future[Sequence[Settled]]) -> None:
    if not acking.cancelled() and acking.exception() is None:
        everything.settled(group, acking.result(), own)
