"""How fast consumer groups are: receive and ack in queue mode, and a rebalance of many members. Prints medians.

    python -m loadtest.bench.groups [--records N] [--consumers N] [--partitions N]

Queue mode runs the coordinator over a real store on a real disk, with durable acks and without HTTP: what the
coordinator itself allows. Beside it, in the same run, the rate of small durable appends to the same store, each waiting
for the one before: the limit of a consumer that acks batch by batch.
"""

from __future__ import annotations

import argparse
import asyncio
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from statistics import median

import uvloop

from gateway.brokers.local import LocalBroker
from gateway.coordinator.api import Receive
from gateway.coordinator.service import Coordinator
from gateway.groups.config import GroupConfig
from gateway.groups.membership import Membership
from gateway.groups.progress import Start
from gateway.groups.strategies.base import StrategyContext
from gateway.groups.strategies.registry import StrategyRegistry
from gateway.groups.subscription import Subscription
from gateway.routing.table import RouteTable
from gateway.topics import TopicView
from store import Store, record_batch
from store.clock import SystemClock
from store.config import StoreConfig
from store.files import OsFiles
from store.limits import MiB
from store.record_batch import Record
from store.topics import Topic
from store.types import Acks, Append, Appended, QueueKey

BATCH = 32
VALUE_BYTES = 100
ROUNDS = 3


class _NoTimer:
    """Nothing is nacked here."""

    async def schedule(self, append: Append, *, acks: Acks) -> Appended:
        raise NotImplementedError


class Bench:
    """A store and a coordinator in a directory of their own."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.routes = RouteTable()

    def _place(self, topic: TopicView) -> None:
        self.routes.place(topic, self.broker)

    async def create_own_topic(self, name: str, partitions: int) -> TopicView:
        return await self.broker.create_topic(name, partitions, is_own=True)

    async def open(self) -> None:
        clock, files = SystemClock(), OsFiles()
        self.store = await Store.open(StoreConfig(root=self.root, extent_bytes=64 * MiB), files=files, clock=clock)
        self.broker = LocalBroker(
            self.store, _NoTimer(), name="b", on_topic=self._place, on_deleted=self.routes.remove
        )  # fmt: skip
        self.groups = Coordinator(
            directory=self.root,
            files=files,
            broker=self.broker,
            routes=self.routes,
            own_topics=self,
            clock=clock,
            monotonic_ms=lambda: time.monotonic_ns() // 1_000_000,
            draining=asyncio.Event(),
            in_flight_max=20_000,
        )
        await self.groups.start()
        self.running = asyncio.create_task(self.groups.run())

    async def close(self) -> None:
        self.running.cancel()
        await asyncio.wait([self.running])
        await self.groups.close()
        await self.store.close()

    async def fill(self, topic: Topic, count: int) -> None:
        per_batch = 1000
        for first in range(0, count, per_batch):
            records = [Record(None, b"x" * VALUE_BYTES, 0)] * min(per_batch, count - first)
            queue = QueueKey(topic.topic_id, first // per_batch % topic.partitions)
            append = Append(queue=queue, batch=record_batch.encode(records), record_count=len(records))
            await self.store.append([append], acks=Acks.WRITTEN)

    async def queue_mode(self, group: str, topic: str, count: int, consumers: int) -> float:
        """Records a second, received and acked by some consumers at once."""
        left = count

        async def consume() -> None:
            nonlocal left
            request = Receive(topics=(topic,), max_messages=BATCH, start=Start.FIRST, wait_ms=100)
            while left > 0:
                messages = (await self.groups.receive(group, request)).messages
                results = await self.groups.ack(group, [message.receipt for message in messages])
                assert all(result.ok for result in results)
                left -= len(messages)

        begin = time.perf_counter()
        await asyncio.gather(*(consume() for _ in range(consumers)))
        return count / (time.perf_counter() - begin)

    async def small_appends(self, queue: QueueKey, seconds: float = 1.0) -> float:
        """Durable appends a second, one after the other."""
        batch = bytes(record_batch.encode([Record(None, b"x" * 1000, 0)]))
        count, begin = 0, time.perf_counter()
        while time.perf_counter() - begin < seconds:
            await self.store.append([Append(queue=queue, batch=batch, record_count=1)], acks=Acks.FLUSHED)
            count += 1
        return count / seconds


def rebalance(members: int, partitions: int) -> dict[str, float]:
    """Seconds to decide and apply: all members' joins, one by one; the last join alone; one leave."""
    config = GroupConfig()
    membership = Membership("g", config, StrategyRegistry().make("sticky", StrategyContext()))
    topics: Sequence[TopicView] = [Topic(16, "orders", partitions)]
    wish = Subscription(frozenset(["orders"]))
    began = time.perf_counter()
    last = 0.0
    for number in range(members):
        at = time.perf_counter()
        member = f"m{number:04d}"
        for event in membership.decide_join(member, wish, topics):
            membership.apply(event, 0)
        for other in membership.members():  # everybody gives up at once what is to move
            share = membership.share(other.member_id)
            if share.revoking:
                released = membership.decide_release(other.member_id, share.generation, share.revoking, topics)
                for event in released:
                    membership.apply(event, 0)
        last = time.perf_counter() - at
    joined = time.perf_counter() - began
    at = time.perf_counter()
    first = membership.members()[0].member_id
    for event in membership.decide_leave(first, membership.generation, topics):
        membership.apply(event, 0)
    left = time.perf_counter() - at
    owned = sum(len(membership.share(member.member_id).assigned) for member in membership.members())
    assert owned == partitions
    return {"all joins": joined, "last join, with releases": last, "one leave": left}


async def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--records", type=int, default=100_000)
    parser.add_argument("--consumers", type=int, default=32)
    parser.add_argument("--partitions", type=int, default=8)
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="mq-bench-groups-") as directory:
        bench = Bench(Path(directory))
        await bench.open()
        topic = await bench.broker.create_topic("orders", asked.partitions)
        other = await bench.broker.create_topic("other", 1)
        await bench.fill(topic, asked.records)
        rates, limits = [], []
        for number in range(ROUNDS):
            limits.append(await bench.small_appends(QueueKey(other.topic_id, 0)))
            rates.append(await bench.queue_mode(f"g{number}", "orders", asked.records, asked.consumers))
        print(f"queue mode, receive + ack in batches of {BATCH}: {median(rates):,.0f} records/s")
        print(f"durable appends of 1 kB, one after the other:  {median(limits):,.0f}/s")
        stats = bench.groups.log
        print(f"events an append: {stats.event_count / max(stats.append_count, 1):.1f}")
        await bench.close()
    for members, partitions in ((200, 1000),):
        for name, seconds in rebalance(members, partitions).items():
            print(f"{members} members x {partitions} partitions, {name}: {seconds * 1000:,.1f} ms")


if __name__ == "__main__":
    uvloop.run(main())  # as the server does
