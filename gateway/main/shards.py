"""Shards of one system topic on a Kafka cluster, each owned by one node, which does something with it: taken up when a
shard is this node's, given up when it is not any more. Where they are, and who takes them over, gateway/cluster/node.py
says. `timer_shards.py` and `recurring_shards.py` say what is done with them; consumer groups, which share what is in
memory, have their own (group_shards.py).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar

from gateway.cluster.node import ClusterNode
from gateway.cluster.shard_log import SHARD_TOPICS, Shard
from gateway.main.shard_keeping import ERRORS, ShardKeeper
from store.uncancelled import to_its_end

log = logging.getLogger(__name__)

LAST_SAVE_S = 0.5
"""How long a stop waits for the last snapshots."""


class Tenure(Protocol):
    """A shard in a tenure of this node. `start`, then `run` until cancelled, then `end`."""

    shard: Shard

    async def start(self) -> None:
        """Read the shard. Raises what reading raises: then there is nothing to end."""
        ...

    async def run(self) -> None:
        """Work until cancelled. May raise anything: then the shard is to be taken over anew."""
        ...

    def leave(self) -> None:
        """The tenure is over: what waits for Kafka in `run` ends."""
        ...

    async def end(self) -> None:
        """Forget it all; the log has what is needed."""
        ...

    @property
    def is_save_due(self) -> bool:
        """Whether the next owner would have much to read."""
        ...

    async def save(self) -> None:
        """Save a snapshot. Raises what Kafka and the metadata raise: then the snapshot before counts."""
        ...


TenureT = TypeVar("TenureT", bound=Tenure)


@dataclass(slots=True)
class _Here(Generic[TenureT]):
    tenure: TenureT
    running: asyncio.Task[None]


class Shards(Generic[TenureT]):
    """The shards of a topic that are a node's: `tenure_of` makes what is done with one. `broker`: the Kafka cluster on
    which they are begun; None: only those that were begun are looked after. `run` until cancelled, then `close`."""

    def __init__(
        self, node: ClusterNode, topic_id: int, tenure_of: Callable[[Shard], TenureT], *, broker: str | None
    ) -> None:
        self._node = node
        self._topic_id = topic_id
        self._name = SHARD_TOPICS[topic_id].name
        self._tenure_of = tenure_of
        self._here: dict[int, _Here[TenureT]] = {}
        self._keeper = ShardKeeper(
            node, SHARD_TOPICS[topic_id], broker=broker, look=self._look, is_here=lambda shard: shard in self._here
        )

    def here(self) -> dict[int, TenureT]:
        """The shards that are here, by number."""
        found = sorted(self._here.items())
        return {number: here.tenure for number, here in found if here.tenure.shard.is_served}

    def get(self, shard: int) -> TenureT | None:
        """A shard; None while it is not here."""
        here = self._here.get(shard)
        return None if here is None or not here.tenure.shard.is_served else here.tenure

    def all_here(self) -> list[TenureT]:
        """Also those that another node has by now, until they are given up."""
        return [here.tenure for here in self._here.values()]

    @property
    def is_settled(self) -> bool:
        """See `ShardKeeper.is_settled`."""
        return self._keeper.is_settled

    async def run(self) -> None:
        """Take up what is this node's, and give up what is not any more, until cancelled."""
        await self._keeper.run()

    async def close(self) -> None:
        """Give up all."""
        await asyncio.gather(*[self._give_up(shard) for shard in list(self._here)])

    async def save(self) -> None:
        """Save every shard that is here, as another node is about to read them; does not wait long."""

        async def save(tenure: TenureT) -> None:
            try:
                await tenure.save()
            except ERRORS as error:
                log.info("no last snapshot topic=%s shard=%d error=%s", self._name, tenure.shard.number, error)

        saving = [asyncio.create_task(save(here.tenure)) for here in self._here.values()]
        if saving:
            _, late = await asyncio.wait(saving, timeout=LAST_SAVE_S)
            for task in late:
                task.cancel()

    async def _look(self, number: int) -> None:
        found, here = self._node.shard(self._topic_id, number), self._here.get(number)
        if here is None:
            if found is not None:
                await self._take_up(found)
            return
        shard = here.tenure.shard
        if here.running.done():
            if shard.is_served:  # what it could not go on after, the log may say
                shard.kafka.refuse(shard.tenure)
                shard.on_doubt()
        elif found is not None and found.tenure == shard.tenure:
            if here.tenure.is_save_due:
                await here.tenure.save()
            return
        elif found is None and shard.is_served:
            return  # a move is under way; it may come back to nothing
        await to_its_end(self._give_up(number))
        self._keeper.wake(number)

    async def _take_up(self, shard: Shard) -> None:
        """Read a shard, and have it run. Raises what reading raises: then it is not here."""
        tenure = self._tenure_of(shard)
        await tenure.start()
        running = asyncio.create_task(self._run(tenure), name=f"shard {shard.number} of {self._name} runs")
        running.add_done_callback(lambda _: self._keeper.wake(shard.number))
        self._here[shard.number] = _Here(tenure, running)

    async def _run(self, tenure: TenureT) -> None:
        try:
            await tenure.run()
        except* ERRORS as failures:
            log.error(
                "a shard has stopped topic=%s shard=%d error=%r",
                self._name, tenure.shard.number, failures.exceptions[0],
            )  # fmt: skip
        except* Exception:
            log.exception("a shard has stopped topic=%s shard=%d", self._name, tenure.shard.number)

    async def _give_up(self, number: int) -> None:
        """Forget a shard, which may be another node's by now."""
        here = self._here.pop(number)
        here.tenure.leave()
        here.running.cancel()
        await asyncio.wait([here.running])
        await here.tenure.end()
        log.info("given up topic=%s shard=%d", self._name, number)
