"""What consumers say about records in their hands: done, not done, never, or not yet.

Acks of a group that come while one write is under way share the next, and with it one fdatasync. A wait that is long is
spent in the timer, as a copy; a short one, or when the timer takes nothing, in place. In a light queue all are spent in
place: copies for many of them would stand in one another's way.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, Mapping, Sequence

from gateway.groups.coordinator.context import Context
from gateway.groups.coordinator.copies import Copy, CopyWriter, copied_from
from gateway.groups.coordinator.dead_letters import DeadLetters
from gateway.groups.machines.copies import REASON_BYTES_MAX, retry_copy
from gateway.groups.machines.errors import IllegalRequest
from gateway.groups.machines.events import Event
from gateway.groups.machines.events import Settled as SettledEvent
from gateway.groups.machines.leases import Decision, PartitionLeases, Verdict
from gateway.groups.machines.progress import PartitionKey, Place, place_of
from gateway.groups.machines.receipts import Receipt, Signer, in_short
from gateway.groups.protocol import LEASE_OVER, RECEIPT_ILLEGAL, RECEIPTS_MAX, Accepted, Settled, TopicPartition
from store.errors import StoreError, StoreStopped
from store.uncancelled import to_its_end

log = logging.getLogger(__name__)

Verdicts = Sequence[Verdict | None]
"""What became of receipts, in their order; None for what was no receipt."""

_Receipts = Sequence[Receipt | None]
_Ack = tuple[Sequence[str], _Receipts, asyncio.Future[Sequence[Settled]]]
_Placed = tuple[int, Receipt]
"""A receipt, and the index of its verdict; the others of a run have those behind it."""


class Settling:
    """Settles records of all groups of one node."""

    def __init__(self, context: Context, copies: CopyWriter, dead_letters: DeadLetters, signer: Signer) -> None:
        self._context = context
        self._copies = copies
        self._dead_letters = dead_letters
        self._signer = signer
        self._acks: dict[str, list[_Ack]] = {}
        self._acking: dict[str, asyncio.Task[None]] = {}

    def ack(self, group: str, receipts: Sequence[str]) -> asyncio.Future[Sequence[Settled]]:
        """See `Groups.ack`. No coroutine: it is begun on return, and to wait for it takes no task."""
        parsed = self._parsed_runs(group, receipts)
        told: asyncio.Future[Sequence[Settled]] = asyncio.get_running_loop().create_future()
        self._acks.setdefault(group, []).append((in_short(receipts, parsed), parsed, told))
        if group not in self._acking:
            self._acking[group] = asyncio.create_task(self._write_acks(group))
        return told

    async def _write_acks(self, group: str) -> None:
        """Write the acks that wait, all in one go; those that come meanwhile are the next go."""
        try:
            await asyncio.sleep(0)  # with those that have arrived meanwhile: a turn costs less than a write
            while waiting := self._acks.pop(group, None):
                receipts = [receipt for _, parsed, _ in waiting for receipt in parsed]
                try:
                    verdicts = await self._decide(group, receipts, PartitionLeases.decide_ack, flushed=True)
                except Exception as error:
                    for _, _, told in waiting:
                        if not told.done():  # its caller may have been cancelled
                            told.set_exception(error)
                else:
                    at = 0
                    for texts, _, told in waiting:
                        end = at + len(texts)
                        if not told.done():
                            told.set_result(_results(texts, verdicts[at:end]))
                        at = end
        finally:
            del self._acking[group]

    async def ack_up_to(self, group: str, topic_partition: TopicPartition, offset: int) -> int:
        """See `Groups.ack_up_to`."""
        return await to_its_end(self._ack_up_to(group, self._context.key(*topic_partition), offset))

    async def _ack_up_to(self, group: str, key: PartitionKey, offset: int) -> int:
        context = self._context
        async with context.turns.of_leases(group, key):
            leases = context.table.leases(group, key)
            if leases is None:
                return 0
            events = leases.decide_ack_up_to(offset, context.clock.now_ms())
            await context.write(events)
            return sum(len(event.offsets) for event in events if isinstance(event, SettledEvent))

    async def extend(self, group: str, receipts: Sequence[str], invisible_ms: int) -> Sequence[Settled]:
        """See `Groups.extend`."""
        parsed = self._parsed(group, receipts)
        until_ms = 0

        def decide(leases: PartitionLeases, own: Sequence[Receipt], now_ms: int) -> Decision:
            nonlocal until_ms
            until_ms = now_ms + invisible_ms
            return leases.decide_extend(own, invisible_ms, now_ms)

        verdicts = await to_its_end(self._decide(group, parsed, decide, flushed=False))
        results = list(_results(receipts, verdicts))
        extended = [
            (at, receipt._replace(until_ms=until_ms))
            for at, receipt in enumerate(parsed)
            if receipt is not None and results[at].ok
        ]
        signed = self._signer.sign_all(group, [receipt for _, receipt in extended])
        for (at, _), text in zip(extended, signed, strict=True):
            results[at] = results[at]._replace(new_receipt=text)
        return results

    async def give_back(self, group: str, receipts: Sequence[str]) -> None:
        """See `Groups.give_back`."""
        parsed = self._parsed_runs(group, receipts)
        await to_its_end(self._decide(group, parsed, PartitionLeases.decide_give_back, flushed=False))

    async def reject(self, group: str, receipts: Sequence[str], reason: str) -> Sequence[Settled]:
        """See `Groups.reject`."""
        return await to_its_end(self._reject(group, receipts, reason))

    async def _reject(self, group: str, receipts: Sequence[str], reason: str) -> Sequence[Settled]:
        if len(reason.encode()) > REASON_BYTES_MAX:
            raise IllegalRequest(f"a reason has at most {REASON_BYTES_MAX} bytes")
        parsed = self._parsed(group, receipts)
        verdicts = await self._decide(
            group, parsed, lambda leases, own, now_ms: leases.decide_reject(own, reason, now_ms), flushed=True
        )
        await self._dead_letter(group, _by_key(parsed))
        return _results(receipts, verdicts)

    async def nack(
        self, group: str, receipts: Sequence[str], *, delay_ms: int | None = None, reason: str = ""
    ) -> Sequence[Settled]:
        """See `Groups.nack`."""
        if len(reason.encode()) > REASON_BYTES_MAX:
            raise IllegalRequest(f"a reason has at most {REASON_BYTES_MAX} bytes")
        return await to_its_end(self._nack(group, receipts, delay_ms, reason))

    async def _nack(self, group: str, receipts: Sequence[str], delay_ms: int | None, reason: str) -> Sequence[Settled]:
        context = self._context
        parsed = self._parsed(group, receipts)
        await asyncio.sleep(0)  # of the most receipts each of the three parts takes some 20 ms
        by_key = _by_key(parsed)
        verdicts: list[Verdict | None] = [None] * len(parsed)
        async with context.turns.of_leases(group, *by_key):
            now_ms = context.clock.now_ms()
            going = await self._send_off(group, by_key, delay_ms, now_ms)
            await asyncio.sleep(0)
            events: list[Event] = []
            for key, own in by_key.items():
                leases = context.table.leases(group, key)
                if leases is None:
                    _note_stale(verdicts, own)
                    continue
                gone = going.get(key, set())
                _note(verdicts, own, leases.verdicts(_receipts(own), now_ms))
                rest = [(at, receipt) for at, receipt in own if receipt.offset not in gone]
                decision = leases.decide_nack(_receipts(rest), now_ms, delay_ms=delay_ms, reason=reason)
                _note(verdicts, rest, decision.verdicts)
                events += [*leases.decide_settle(gone), *decision.events]
            await context.write(events, flushed=bool(going))
        await self._dead_letter(group, by_key)
        return _results(receipts, verdicts)

    async def _dead_letter(self, group: str, keys: Iterable[Place]) -> None:
        """What is finished now (rejected, or nacked for the last time) goes to the dead letters."""
        for key in sorted(keys):
            await self._dead_letters.dead_letter(group, key)

    async def _send_off(
        self,
        group: str,
        by_key: Mapping[Place, Sequence[_Placed]],
        delay_ms: int | None,
        now_ms: int,
    ) -> dict[Place, set[int]]:
        """Give the timer copies of the records that have a long time to wait; their offsets, if it takes them."""
        context = self._context
        going: dict[Place, set[int]] = {}
        copies: list[Copy] = []
        for key, own in by_key.items():
            if (leases := context.table.leases(group, key)) is not None:
                leases.check_delay(delay_ms)
                for offset, copy in await self._copies_of(group, key, leases, _receipts(own), delay_ms, now_ms):
                    going.setdefault(key, set()).add(offset)
                    copies.append(copy)
        if copies:
            try:
                await self._copies.schedule(group, copies)
            except StoreStopped:
                raise
            except StoreError as error:
                log.warning("retries wait in place group=%s count=%s error=%s", group, len(copies), error)
                return {}
        return going

    async def _copies_of(
        self,
        group: str,
        key: Place,
        leases: PartitionLeases,
        receipts: Sequence[Receipt],
        delay_ms: int | None,
        now_ms: int,
    ) -> list[tuple[int, Copy]]:
        """Copies of the records that are to wait in the timer, by offset."""
        config = self._context.table.config(group)
        topic = self._context.topic_name(key.topic_id)
        if topic is None or key.name:
            return []
        found: dict[int, Copy] = {}  # an extended lease has two receipts
        for receipt, verdict in zip(receipts, leases.verdicts(receipts, now_ms), strict=True):
            wait_ms = leases.backoff_ms(receipt.attempt) if delay_ms is None else delay_ms
            if (
                verdict is not Verdict.OK
                or wait_ms < config.retry_through_timer_ms
                or receipt.attempt >= config.max_attempts
                or leases.message_group(receipt.offset) is not None
                or receipt.offset in found
            ):
                continue
            stored = await self._context.records.at(topic, key, receipt.offset)
            if stored is not None:
                origin = copied_from(group, topic, key, stored, receipt.attempt)
                record = retry_copy(stored.record, origin)
                found[receipt.offset] = Copy.of(stored, record, origin.partition, now_ms + wait_ms)
        return list(found.items())

    def _parsed(self, group: str, receipts: Sequence[str]) -> _Receipts:
        """The receipts in texts; None for what is no receipt of this group."""
        _check_count(receipts)
        return self._signer.check_all(group, receipts)

    def _parsed_runs(self, group: str, receipts: Sequence[str]) -> _Receipts:
        """The same, with one receipt for those of a run."""
        _check_count(receipts)
        return self._signer.check_runs(group, receipts)

    async def _decide(
        self,
        group: str,
        parsed: _Receipts,
        decide: Callable[[PartitionLeases, Sequence[Receipt], int], Decision],
        *,
        flushed: bool,
    ) -> Verdicts:
        """Decide receipts of many partitions, and write the events of all in one go."""
        context = self._context
        by_key = _by_key(parsed)
        verdicts: list[Verdict | None] = [None] * _record_count(parsed)
        async with context.turns.of_leases(group, *by_key):
            now_ms = context.clock.now_ms()
            events: list[Event] = []
            for key, own in by_key.items():
                leases = context.table.leases(group, key)
                if leases is None:
                    _note_stale(verdicts, own)
                else:
                    decision = decide(leases, _receipts(own), now_ms)
                    _note(verdicts, own, decision.verdicts)
                    events += decision.events
            await context.write(events, flushed=flushed)
        return verdicts


def _check_count(receipts: Sequence[str]) -> None:
    if len(receipts) > RECEIPTS_MAX:
        raise IllegalRequest(f"at most {RECEIPTS_MAX} receipts at once")


def _record_count(parsed: _Receipts) -> int:
    return sum([1 if receipt is None else receipt.size for receipt in parsed])


def _by_key(parsed: _Receipts) -> dict[Place, list[_Placed]]:
    """The receipts of each partition or light queue, and where they stand."""
    by_key: dict[Place, list[_Placed]] = {}
    at = 0
    for receipt in parsed:
        if receipt is None:
            at += 1
            continue
        key = place_of(receipt.topic_id, receipt.partition, receipt.name)
        if (own := by_key.get(key)) is None:
            own = by_key[key] = []
        own.append((at, receipt))
        at += receipt.size
    return by_key


def _receipts(own: Iterable[_Placed]) -> list[Receipt]:
    return [receipt for _, receipt in own]


def _note(verdicts: list[Verdict | None], own: Sequence[_Placed], decided: Sequence[Verdict]) -> None:
    taken = 0
    for at, receipt in own:
        verdicts[at : at + receipt.size] = decided[taken : taken + receipt.size]
        taken += receipt.size


def _note_stale(verdicts: list[Verdict | None], own: Sequence[_Placed]) -> None:
    _note(verdicts, own, [Verdict.STALE] * _record_count(_receipts(own)))


def _results(texts: Sequence[str], verdicts: Verdicts) -> Sequence[Settled]:
    if verdicts.count(Verdict.OK) == len(texts):
        return Accepted(texts)
    results: list[Settled] = []
    for text, verdict in zip(texts, verdicts, strict=True):
        if verdict is Verdict.OK:
            results.append(Settled(text, True))
        elif verdict is None:
            results.append(Settled(text, False, RECEIPT_ILLEGAL, "this is not a receipt of this group"))
        else:
            results.append(Settled(text, False, LEASE_OVER, "the lease is over; the record is, or was, another's"))
    return results
