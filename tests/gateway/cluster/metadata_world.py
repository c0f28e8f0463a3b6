"""Processes that keep their metadata in one Kafka in memory: it holds fetches as a real one does, and what becomes of
appends is up to chance."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from random import Random

from gateway.brokers.kafka.codes import LEADER_NOT_AVAILABLE, Outcome
from gateway.brokers.kafka.port import Fetched, TopicPlan
from gateway.cluster.kafka_metadata import KafkaMetadata
from gateway.cluster.metadata import ABSENT, MetadataError, OutcomeUnknown
from gateway.cluster.metadata_log import KEY, LogState, Snapshot, decode_command
from gateway.cluster.shard_log import SHARD_TOPICS
from store import record_batch
from store.types import Buffer
from tests.gateway.brokers.kafka.fake import FakeKafka, Log

TOPIC = "mq.__meta"
KEPT = {TOPIC, *(f"mq.{topic.name}" for topic in SHARD_TOPICS.values())}
PAUSE_S = 0.002


class LogKafka(FakeKafka):
    """With `random`, appends are lost, refused, stored without an answer, or stored much later, once more."""

    def __init__(self, random: Random | None = None) -> None:
        super().__init__()
        self.random = random
        self.late: list[bytes] = []
        self.is_writable = True
        self.logs[TOPIC, 0] = Log()

    @property
    def the_log(self) -> Log:
        return self.log(TOPIC, 0)

    async def produce(self, topic: str, partition: int, batch: Buffer) -> Outcome:
        await asyncio.sleep(0)
        if not self.is_writable:
            return LEADER_NOT_AVAILABLE
        if (random := self.random) is None:
            return await super().produce(topic, partition, batch)
        await asyncio.sleep(random.random() * PAUSE_S)
        if self.late and random.random() < 0.2:
            self.the_log.append(self.late.pop(random.randrange(len(self.late))))
        outcome = random.choice(["stored"] * 6 + ["lost", "dropped", "refused", "late"])
        if outcome == "late":
            self.late.append(bytes(batch))
            return None
        self.script.append({"stored": None, "refused": LEADER_NOT_AVAILABLE}.get(outcome, outcome))
        return await super().produce(topic, partition, batch)

    async def fetch(self, topic: str, partition: int, offset: int, *, max_bytes: int, wait_ms: int) -> Fetched:
        loop = asyncio.get_running_loop()
        until_s = loop.time() + wait_ms / 1000
        while True:
            found = await super().fetch(topic, partition, offset, max_bytes=max_bytes, wait_ms=wait_ms)
            if found.batches or loop.time() >= until_s:
                return found
            await asyncio.sleep(PAUSE_S)

    async def make_topic(self, plan: TopicPlan) -> None:
        assert plan.is_kept == (plan.name in KEPT)
        await super().make_topic(plan)

    def state(self) -> LogState:
        """What the log leads to, from its beginning."""
        log = self.the_log
        assert log.start == 0
        state = LogState()
        for _, batch in log.batches:
            for record in record_batch.decode(batch):
                if record.key == KEY:
                    state.apply(record.offset, decode_command(record.value))
        return state


def content_of(state: LogState) -> list[str]:
    """All that a state is."""
    return [part.content for part in Snapshot(state).parts()]


@asynccontextmanager
async def a_process(kafka: FakeKafka) -> AsyncIterator[KafkaMetadata]:
    async with KafkaMetadata(kafka, TOPIC) as metadata:
        yield metadata


async def killed(metadata: KafkaMetadata) -> None:
    """As `kill -9`: nothing more is sent, nothing is tidied up."""
    metadata.running.cancel()
    await asyncio.wait([metadata.running])


class Counting:
    """Processes that add to one number; what they were told."""

    def __init__(self) -> None:
        self.added = 0
        self.unknown = 0

    async def add(self, metadata: KafkaMetadata) -> bool:
        """Add 1; whether it was certainly done."""
        try:
            found = await metadata.get("n")
            revision, number = (ABSENT, 0) if found is None else (found.revision, int(found.data))
            done = await metadata.compare_and_set({"n": revision}, {"n": str(number + 1).encode()})
        except OutcomeUnknown:
            self.unknown += 1
            return False
        except MetadataError:
            return False
        self.added += done is not None
        return done is not None
