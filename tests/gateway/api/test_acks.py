"""gateway/api/acks.py: an ack is done, and the ledgers are told, whether or not anybody waits."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import cast

from gateway.api.acks import begin_ack
from gateway.api.lease import AllLeases, Leases
from gateway.groups.protocol import Accepted, Groups, Settled
from store.errors import DiskFull
from tests.gateway.api.test_lease import message


class Acking:
    """Groups whose acks the test answers."""

    def __init__(self) -> None:
        self.told: asyncio.Future[Sequence[Settled]] = asyncio.get_running_loop().create_future()

    def ack(self, group: str, receipts: Sequence[str]) -> asyncio.Future[Sequence[Settled]]:
        return self.told


def begun() -> tuple[Acking, Leases, asyncio.Future[Sequence[Settled]]]:
    groups, everything, own = Acking(), AllLeases(), Leases(lambda *_: None)
    own.took([message(0, count=2)])
    everything.add("g", own)
    return groups, own, begin_ack(cast(Groups, groups), everything, "g", own.receipts(), own)


async def test_the_ledger_is_told_before_who_waits() -> None:
    groups, own, acking = begun()
    seen: list[int] = []
    acking.add_done_callback(lambda _: seen.append(len(own)))
    groups.told.set_result(Accepted(own.receipts()))
    await asyncio.sleep(0)
    assert seen == [0]


async def test_what_was_refused_or_cut_off_stays_on_lease() -> None:
    groups, own, acking = begun()
    groups.told.set_exception(DiskFull("no room"))
    await asyncio.wait([acking])
    assert (len(own), type(acking.exception())) == (2, DiskFull)
    groups, own, acking = begun()
    acking.cancel()
    await asyncio.sleep(0)
    assert len(own) == 2
