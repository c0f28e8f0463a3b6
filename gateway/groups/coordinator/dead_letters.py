"""Dead letters: records that were rejected, or failed too often, go to `%DLQ%group`, and back on request.

A record is finished when its consumer rejects it, nacks it for the last time, or falls silent on the last attempt. The
first two are dead-lettered at once, the third by `dead_letter_all`, which is called now and then and also tries again
what could not be copied (a full disk).
"""

from __future__ import annotations

import logging
from collections.abc import Sequence

from gateway.groups.coordinator.context import Context
from gateway.groups.coordinator.copies import Copy, CopyWriter, copied_from
from gateway.groups.coordinator.origins import Origins
from gateway.groups.coordinator.records import Stored
from gateway.groups.machines.copies import dead_letter, dead_letter_topic, origin_of, retry_copy
from gateway.groups.machines.errors import GroupElsewhere, GroupFull, IllegalRequest
from gateway.groups.machines.events import DocumentPut, Event
from gateway.groups.machines.progress import Commit, Found, PartitionKey, Place
from gateway.groups.machines.settled_letters import KEY, RANGES_MAX, SettledLetters, decode_settled
from gateway.groups.machines.table import document_bytes
from gateway.groups.protocol import REDRIVE_MAX, SETTLE_LETTERS_MAX
from store.errors import StoreError, StoreStopped
from store.uncancelled import to_its_end

log = logging.getLogger(__name__)

_LETTERS_PER_GO = 100
_REDRIVEN_PER_GO = 1_000


class DeadLetters:
    """The dead letters of all groups of one node."""

    def __init__(self, context: Context, copies: CopyWriter) -> None:
        self.origins = Origins(context)
        self._context = context
        self._copies = copies
        self._doomed: set[tuple[str, Place]] = set()  # where dead letters are, or will be

    def expect(self, group: str, key: Place) -> None:
        """A record there is finished, or has been delivered for the last time."""
        self._doomed.add((group, key))

    async def dead_letter(self, group: str, key: Place) -> None:
        """Copy what is finished into the dead-letter topic and settle it. What cannot be copied now is tried again."""
        if (group, key) not in self._doomed:
            return
        try:
            async with self._context.turns.of_leases(group, key):
                while await self._dead_letter_some(group, key):
                    pass
        except StoreStopped:
            raise
        except GroupElsewhere:
            self._doomed.discard((group, key))  # its node looks
        except StoreError as error:
            log.warning("dead letters wait group=%s partition=%s error=%s", group, key.partition, error)

    async def _dead_letter_some(self, group: str, key: Place) -> bool:
        context = self._context
        leases = context.table.leases(group, key)
        if leases is None or not leases.may_have_dead_letters:
            self._doomed.discard((group, key))
            return False
        topic = context.topic_name(key.topic_id)
        now_ms = context.clock.now_ms()
        letters = leases.dead_letters(now_ms, _LETTERS_PER_GO)
        if not letters or topic is None:
            return False
        copies: list[Copy] = []
        origins: set[str] = set()
        for letter in letters:
            stored = await context.records.at(topic, key, letter.offset)
            if stored is not None:
                origin = copied_from(group, topic, key, stored, letter.attempt)
                origins.add(origin.topic)
                letter_record = dead_letter(stored.record, origin, reason=letter.reason, now_ms=now_ms)
                copies.append(Copy.of(stored, letter_record))
        if copies:
            self.origins.note(group, origins)
            await self._copies.dead_letter(group, copies)
        await context.write(leases.decide_settle(letter.offset for letter in letters))
        return True

    async def dead_letter_all(self) -> None:
        """Look after everything that may have been delivered for the last time."""
        for group, key in list(self._doomed):
            await to_its_end(self.dead_letter(group, key))

    async def redrive(self, group: str, max_messages: int) -> int:
        """See `Groups.redrive`."""
        if not 1 <= max_messages <= REDRIVE_MAX:
            raise IllegalRequest(f"max_messages must be from 1 to {REDRIVE_MAX}, not {max_messages}")
        self._context.table.get(group)
        return await to_its_end(self._redrive(group, max_messages))

    async def _redrive(self, group: str, max_messages: int) -> int:
        """Dead letters go into the retry topic, so that no other group sees them again. How far that is, is the group's
        committed offset in its dead-letter topic; it is written when the copies are durable."""
        context = self._context
        name = dead_letter_topic(group)
        view = context.find_topic(name)
        if view is None:
            return 0
        count = 0
        for partition in range(view.partitions):
            key = PartitionKey(view.topic_id, partition)
            async with context.turns.of_leases(group, key):  # one redrive at a time
                low, high = await context.records.bounds(name, partition)
                stored = context.table.progress.lookup(group, key)
                at = max(stored.offset, low) if isinstance(stored, Found) else low
                while count < max_messages and at < high:
                    limit = min(max_messages - count, _REDRIVEN_PER_GO)
                    settled = self.settled(group) if partition == 0 else SettledLetters(view.topic_id)
                    copies, following = await self._revived(name, partition, at, limit, settled)
                    if copies:
                        await self._copies.retry_now(group, copies)
                    if following == at:
                        break
                    await self._commit(group, key, settled, following)
                    count += len(copies)
                    at = following
        return count

    async def _commit(self, group: str, key: PartitionKey, settled: SettledLetters, offset: int) -> None:
        """Write how far dead letters are settled in turn, and which ones behind that."""
        context = self._context
        offset = settled.following(offset)
        content = settled.behind(offset).encode()
        documents = context.table.get(group).documents
        events: list[Event] = [
            *context.table.progress.decide_commit(group, [Commit(key, offset)], context.clock.now_ms())
        ]
        more = document_bytes(KEY, content) - document_bytes(KEY, documents.get(KEY))
        if content != documents.get(KEY):
            events.append(DocumentPut(group, KEY, content))
        with context.room.for_bytes(group, more):
            await context.write(events)

    # Some of them

    def settled(self, group: str) -> SettledLetters:
        """See `Groups.settled_letters`."""
        context = self._context
        view = context.find_topic(dead_letter_topic(group))
        if view is None or group not in context.table:
            return SettledLetters(-1)
        return decode_settled(context.table.get(group).documents.get(KEY), view.topic_id)

    async def count(self, group: str) -> int:
        """Dead letters that are not settled."""
        context = self._context
        view = context.find_topic(name := dead_letter_topic(group))
        if view is None:
            return 0
        count = 0
        for partition in range(view.partitions):
            low, high = await context.records.bounds(name, partition)
            stored = context.table.progress.lookup(group, PartitionKey(view.topic_id, partition))
            first = max(stored.offset, low) if isinstance(stored, Found) else low
            count += high - min(first, high)
            if partition == 0:
                count -= self.settled(group).count(first, high)
        return count

    async def settle(self, group: str, offsets: Sequence[int], *, redrive: bool) -> list[bool]:
        """See `Groups.settle_letters`."""
        if not 1 <= len(offsets) <= SETTLE_LETTERS_MAX:
            raise IllegalRequest(f"1 to {SETTLE_LETTERS_MAX} dead letters are settled at once, not {len(offsets)}")
        self._context.table.get(group)
        return await to_its_end(self._settle(group, offsets, redrive))

    async def _settle(self, group: str, offsets: Sequence[int], redrive: bool) -> list[bool]:
        """As `_redrive`: the copies are durable before what says that these are settled."""
        context = self._context
        name = dead_letter_topic(group)
        view = context.find_topic(name)
        if view is None:
            return [False] * len(offsets)
        key = PartitionKey(view.topic_id, 0)
        async with context.turns.of_leases(group, key):
            low, high = await context.records.bounds(name, 0)
            stored = context.table.progress.lookup(group, key)
            first = max(stored.offset, low) if isinstance(stored, Found) else low
            settled = self.settled(group)
            there = {offset for offset in offsets if first <= offset < high and offset not in settled}
            if not there:
                return [False] * len(offsets)
            after = settled.with_offsets(there).behind(first)
            if len(after.ranges) > RANGES_MAX:
                raise GroupFull(
                    f"group={group} has {len(settled.ranges)} stretches of dead letters settled out of turn; settle "
                    "the oldest ones first"
                )
            if redrive:
                at = 0
                wanted = sorted(there)
                while at < len(wanted):
                    part = wanted[at : at + _LETTERS_PER_GO]
                    copies = [
                        copy for offset in part if (copy := await self._revived_at(name, key, offset)) is not None
                    ]
                    if copies:
                        await self._copies.retry_now(group, copies)
                    at += len(part)
            await self._commit(group, key, after, first)
        told: set[int] = set()
        answers = []
        for offset in offsets:  # one that is named twice was there once
            answers.append(offset in there and offset not in told)
            told.add(offset)
        return answers

    async def _revived(
        self, topic: str, partition: int, offset: int, limit: int, settled: SettledLetters | None = None
    ) -> tuple[list[Copy], int]:
        """Copies of up to `limit` dead letters from an offset on, with no attempts and without those that are settled,
        and where the next ones are."""
        step = await self._context.records.step(topic, partition, offset)
        copies: list[Copy] = []
        for entry in step.entries:
            for at in range(max(entry.base_offset, offset), entry.next_offset):
                if len(copies) == limit:
                    return copies, at
                if settled is not None and at in settled:
                    continue
                if (copy := _revived(entry.at(at))) is not None:
                    copies.append(copy)
        return copies, step.next_offset

    async def _revived_at(self, topic: str, key: PartitionKey, offset: int) -> Copy | None:
        stored = await self._context.records.at(topic, key, offset)
        return None if stored is None else _revived(stored)


def _revived(stored: Stored) -> Copy | None:
    """A copy of a dead letter with no attempts; None of a record that is no dead letter."""
    origin = origin_of(stored.record.headers)
    if origin is None:
        return None
    return Copy.of(stored, retry_copy(stored.record, origin._replace(attempts=0)), origin.partition)
