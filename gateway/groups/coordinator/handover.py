"""Groups that go from one node of a cluster to another: all that a group is, as the events of a snapshot.

    the node it leaves                       the node it goes to
    1  has all turns of the group; who wants
       to change something waits
    2  everything before is applied
    3  its events ─────────────────────────> 4  has all turns of the group too
                                             5  forgets what is left of an attempt before, writes the events, durable
                                             6  the owner's key says: this node (compare-and-set, on what 1 has read)
    7  forgets the group, lets go of the     7  lets go of the turns
       turns: who waited is told where it is

    crash                       what a restart finds
    before 6                    the group where it was; what is left on the other node is forgotten there at its start
    between 6 and 7             the group on the other node; what is left here is forgotten at the start
    answer of the other node    6 may have happened: the key says it. It is written again first, so that 6
    lost                        cannot happen from then on (gateway/cluster/node.py)

The key is the fence: the node that has it alone writes the group's events. Members keep their generations, their
partitions and a whole session to be heard in again; leases keep their times; receipts stay good, as the keys they were
signed with go along. What waits in the timer of the former node is delivered from there.
"""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from hashlib import sha256
from typing import NamedTuple

from gateway.groups.coordinator.context import Context
from gateway.groups.coordinator.light_offsets import LightProgress
from gateway.groups.coordinator.origins import Origins
from gateway.groups.machines.broadcast import group_of
from gateway.groups.machines.events import (
    Barrier,
    DocumentPut,
    Event,
    Forgotten,
    LightBegun,
    LightCommitted,
    decode_events,
    encode_event,
)
from gateway.groups.machines.progress import COMMITS_MAX
from gateway.groups.machines.receipts import Signer
from store.errors import NoLightQueues
from store.limits import MiB
from store.turns import others_turn
from store.uncancelled import to_its_end, uncancelled

log = logging.getLogger(__name__)

ENTRY_BYTES = 1 * MiB
"""Events are written in parts of about this size."""

RECEIPT_KEYS = "receipt-key/"
"""Of the names of the documents that keep, with a group, the keys of nodes it was on before."""


class Moved(NamedTuple):
    """All that a group is. `size_bytes`: what it takes in memory, about."""

    group: str
    size_bytes: int
    events: bytes
    """One a line."""


class Handover:
    """The groups of one node that leave, or come. `on_came` and `on_gone` are told of each, while its turns are
    held."""

    def __init__(self, context: Context, origins: Origins) -> None:
        self._context = context
        self._origins = origins
        self.signer: Signer
        """Set before anything is moved."""

        self.keys: Sequence[bytes] = ()
        """The keys of this node's own receipts."""

        self.on_came: list[Callable[[str], None]] = []
        self.on_gone: list[Callable[[str], None]] = []

    def start(self) -> None:
        """Take up what was read."""
        for group in self._context.table.groups():
            self._accept_receipts(group.documents)

    def took_up(self, groups: Iterable[str]) -> None:
        """Groups are here that were on another node: their log was read."""
        for group in groups:
            self._origins.expect(group)
            for tell in self.on_came:
                tell(group)

    def _accept_receipts(self, documents: dict[str, bytes]) -> None:
        self.signer.accept(content for key, content in documents.items() if key.startswith(RECEIPT_KEYS))

    @asynccontextmanager
    async def leaving(self, group: str) -> AsyncIterator[Moved]:
        """All that a group is, which may be nothing. It stays so while the block runs: who wants to change it waits.
        Raises what writing raises."""
        context = self._context
        table = context.table
        async with self._all_turns(group) as names:
            with context.belonging.leaving(group):
                await uncancelled(context.log.write([Barrier()], flushed=False))  # what was queued before is applied
                keys = [DocumentPut(group, RECEIPT_KEYS + _name_of(key), key) for key in self._own_keys(group)]
                records: list[bytes] = []
                events = table.snapshot([name for name in names if name in table])
                size_bytes = sum(table.size_of(name) for name in names)
                light = await self._light_offsets(group)
                await context.run_blocking(lambda: records.extend(map(encode_event, [*events, *keys, *light])))
                yield Moved(group, size_bytes, b"\n".join(records))

    async def _light_offsets(self, group: str) -> list[LightCommitted]:
        known = self._context.table.light_offsets
        found: list[LightCommitted] = []
        for topic_id in known.topic_ids():
            for stretch in known.stretches_of(group, topic_id):
                parts = range(0, len(stretch), COMMITS_MAX)
                found += [LightCommitted(topic_id, tuple(stretch[at : at + COMMITS_MAX]), group) for at in parts]
                await others_turn()
        return found

    def _own_keys(self, group: str) -> Sequence[bytes]:
        return self.keys if group in self._context.table else ()

    async def forget(self, group: str) -> None:
        """Have nothing of a group here, as it is another node's. Durable on return."""
        async with self._all_turns(group) as names:
            await self._forget(group, names)
        for tell in self.on_gone:
            tell(group)

    async def gone(self, group: str) -> None:
        """The same, of a group that is `leaving`."""
        await self._forget(group, [name for name in self._context.table.names() if group_of(name) == group])
        for tell in self.on_gone:
            tell(group)

    async def come(self, moved: Moved, own: Callable[[], Awaitable[bool]]) -> bool:
        """Take a group: write what it is, then have `own` say to all nodes that it is here; whether it did. Raises
        GroupFull, ValueError, and what writing raises: then it is not."""
        return await to_its_end(self._come(moved, own))

    async def _come(self, moved: Moved, own: Callable[[], Awaitable[bool]]) -> bool:
        context = self._context
        group = moved.group
        lines = moved.events.splitlines()
        events = decode_events(lines)
        if any(group_of(event.group) != group for event in events):
            raise ValueError(f"there are events of other groups than {group}")
        added_bytes = context.table.light_offsets.added_bytes
        light_bytes = sum(added_bytes(event) for event in events if isinstance(event, LightCommitted))
        if any(isinstance(event, LightCommitted | LightBegun) for event in events):
            with suppress(
                NoLightQueues
            ):  # its index keeps none: then it has only how far groups are in those of others
                context.note_light()
        async with self._all_turns(group) as names:
            await self._forget(group, names)
            is_own = False
            try:
                with context.room.for_bytes(group, moved.size_bytes), context.room.for_light(light_bytes):
                    for part in _parts(lines, events):
                        await uncancelled(context.log.write(part))
                is_own = await own()
            finally:
                if not is_own:
                    await self._forget(group, [name for name in context.table.names() if group_of(name) == group])
            if is_own:
                self._accept_receipts(context.table.get_or_new(group).documents)
                self._origins.expect(group)
                for tell in self.on_came:
                    tell(group)
            return is_own

    @asynccontextmanager
    async def _all_turns(self, group: str) -> AsyncIterator[list[str]]:
        """The turns of a group and of all its lone members; the names of both."""
        turns, table = self._context.turns, self._context.table
        async with AsyncExitStack() as held:
            await held.enter_async_context(turns.of_any(group))
            lone = table.lone_groups(group)
            for name in lone:
                await held.enter_async_context(turns.of_any(name))
            yield [group, *lone]

    async def _forget(self, group: str, names: Iterable[str]) -> None:
        context = self._context
        await LightProgress(context).delete(group)
        known = [name for name in names if name in context.table]
        if known:
            await uncancelled(context.log.write([Forgotten(name, None) for name in known]))
        for name in known:  # who waits looks, and learns where it is
            context.members_changed.happened(name)


def _name_of(key: bytes) -> str:
    """Says nothing of it."""
    return sha256(key).hexdigest()[:16]


def _parts(lines: Sequence[bytes], events: Sequence[Event]) -> Iterable[list[Event]]:
    part: list[Event] = []
    size = 0
    for line, event in zip(lines, events, strict=True):
        if part and size + len(line) > ENTRY_BYTES:
            yield part
            part, size = [], 0
        part.append(event)
        size += len(line)
    if part:
        yield part
