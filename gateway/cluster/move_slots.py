"""How many partitions move at a time, over the whole cluster: a move takes one of so many slots before it begins.

    moves/<number>    {"v": 1, "node": "n1", "topic_id": 16, "partition": 3}: numbers from 0, below `cluster.moves_max`

Both changes of a move, intent and commit, name the revision of its slot as well as that of the partition's record, so
a move that has lost its slot changes nothing any more: no clock and no session is relied on. The commit gives the slot
back in the same change.

    mover killed                            its slot is anybody's from when its session has ended
    ... but it was only frozen, or cut off  its next change fails; it takes another slot, and goes on
    a slot could not be given back          the node does that later (`tidy`); after a restart, at once
    a slot is taken after its taker gave    likewise: it did not hear what became of its change, which came late. Each
    up                                      node looks for such slots every TIDY_INTERVAL_S

A move that was left half way is finished without a slot, as its partition takes no records: by one node, one at a time.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass

import orjson

from gateway.cluster.members import NODES
from gateway.cluster.metadata import ABSENT, Metadata, MetadataError, OutcomeUnknown, Value

log = logging.getLogger(__name__)

SLOTS = "moves/"
MOVES_MAX_DEFAULT = 4
WAIT_S = 10.0
"""How long a move waits for a slot. One takes milliseconds."""

LOOK_INTERVAL_S = 0.05
TIDY_INTERVAL_S = 10.0
"""How often a node looks for slots that it holds and does not use, when it does not know of any."""


class MovesBusy(Exception):
    """As many partitions move as may at a time. Nothing was changed."""

    retry_after_ms = 1000


@dataclass(slots=True)
class Slot:
    """The right to make one move; of `revision` in the metadata, ABSENT when it was given back."""

    key: str
    revision: int


class MoveSlots:
    """The slots of a cluster, as node `own` takes them."""

    def __init__(self, metadata: Metadata, own: str, count: int) -> None:
        self._metadata = metadata
        self._own = own
        self._count = count
        self._held: set[str] = set()
        self._turn = asyncio.Lock()  # one of this node's moves looks for a slot at a time, first come first served
        self._tidy_until_s = 0.0

    @asynccontextmanager
    async def one(self, topic_id: int, partition: int) -> AsyncIterator[Slot]:
        """Hold a slot while the block runs. Raises MovesBusy after WAIT_S, Unavailable."""
        until_s = asyncio.get_running_loop().time() + WAIT_S
        data = orjson.dumps({"v": 1, "node": self._own, "topic_id": topic_id, "partition": partition})
        slot = None
        with suppress(TimeoutError):
            async with asyncio.timeout_at(until_s):
                await self._turn.acquire()
            try:
                while True:
                    slot = await self._taken(data)
                    if slot is not None or asyncio.get_running_loop().time() >= until_s:
                        break
                    await asyncio.sleep(LOOK_INTERVAL_S)
            finally:
                self._turn.release()
        if slot is None:
            raise MovesBusy(
                f"{self._count} partitions move at a time in this cluster (cluster.moves_max), and others have been "
                f"moving for {WAIT_S:.0f} s. Nothing was changed."
            )
        try:
            yield slot
        finally:
            self._held.discard(slot.key)
            if slot.revision != ABSENT:
                await self._give_back(slot.key, slot.revision)

    async def tidy(self) -> None:
        """Give back what this node holds and does not use: of a process before, or whose end the metadata did not
        hear. Costs nothing when it was looked of late and all was heard since; a move that waits for a slot takes such
        ones itself. Raises MetadataError."""
        now_s = asyncio.get_running_loop().time()
        if now_s < self._tidy_until_s or self._turn.locked():
            return
        async with self._turn:
            self._tidy_until_s = now_s + TIDY_INTERVAL_S
            try:
                found = (await self._metadata.list(SLOTS)).values
            except MetadataError:
                self._tidy_until_s = 0.0
                raise
            for key, value in found.items():
                if _node_of(value) == self._own and key not in self._held:
                    await self._give_back(key, value.revision)

    async def _give_back(self, key: str, revision: int) -> None:
        try:
            await self._metadata.compare_and_set({key: revision}, {key: None})
        except MetadataError as error:
            self._tidy_until_s = 0.0
            log.info("slot of a move is given back later slot=%s error=%s", key, error)

    async def _taken(self, data: bytes) -> Slot | None:
        """A slot that is this node's from now on. Holding the turn."""
        found = (await self._metadata.list(SLOTS)).values
        for number in range(self._count):
            key = f"{SLOTS}{number}"
            value = found.get(key)
            expected = {key: ABSENT if value is None else value.revision}
            if key in self._held:
                continue
            if value is not None and (holder := _node_of(value)) != self._own:
                if await self._metadata.get(NODES + holder) is not None:
                    continue
                expected[NODES + holder] = ABSENT
            try:
                revision = await self._metadata.compare_and_set(expected, {key: data})
            except OutcomeUnknown:
                self._tidy_until_s = 0.0
                raise
            if revision is not None:
                self._held.add(key)
                return Slot(key, revision)
        return None


def _node_of(value: Value) -> str:
    return str(orjson.loads(value.data)["node"])
