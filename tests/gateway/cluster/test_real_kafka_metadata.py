"""Metadata in a real Apache Kafka: topics that are not fit for it, snapshots that take the place of records, a topic
that is deleted, and three brokers whose leader is killed and frozen.

Covers gateway.cluster.kafka_metadata with gateway.brokers.kafka.links.
"""

from __future__ import annotations

import asyncio
import signal
import time
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

import pytest
from aiokafka.admin import AIOKafkaAdminClient, NewTopic
from aiokafka.structs import TopicPartition

from gateway.brokers.kafka.links import KEPT_SETTINGS, TOPIC_SETTINGS, KafkaAddress, Links
from gateway.cluster import metadata_log
from gateway.cluster.kafka_metadata import KafkaMetadata
from gateway.cluster.metadata import ABSENT, OtherMetadata
from store.limits import BATCH_BYTES_MAX
from tests.gateway.brokers.kafka.servers import KafkaServers, kafka_servers
from tests.gateway.cluster.etcd_server import free_port, ready
from tests.gateway.cluster.metadata_world import Counting
from tests.waiting import PATIENCE_S, until

pytestmark = pytest.mark.matrix

FIT = {
    **TOPIC_SETTINGS, **KEPT_SETTINGS, "min.insync.replicas": "1", "max.message.bytes": str(BATCH_BYTES_MAX),
}  # fmt: skip


def address(kafka: KafkaServers, *, replication: int = 1) -> KafkaAddress:
    return KafkaAddress(
        servers=tuple(kafka.endpoint.split(",")), replication=replication, min_insync=(1 + replication) // 2
    )


@asynccontextmanager
async def a_process(
    kafka: KafkaServers, topic: str, *, replication: int = 1
) -> AsyncIterator[tuple[KafkaMetadata, Links]]:
    links = Links(address(kafka, replication=replication))
    async with KafkaMetadata(links, topic) as metadata:
        yield metadata, links


@asynccontextmanager
async def administrator(kafka: KafkaServers) -> AsyncIterator[AIOKafkaAdminClient]:
    admin = AIOKafkaAdminClient(bootstrap_servers=kafka.endpoint)
    await admin.start()
    try:
        yield admin
    finally:
        await admin.close()


async def ended(metadata: KafkaMetadata, said: str) -> None:
    await asyncio.wait([metadata.running], timeout=PATIENCE_S)
    with pytest.raises(OtherMetadata, match=said):
        await metadata.running


@pytest.mark.parametrize(
    ("partitions", "changed", "said"),
    [
        (1, {}, None),
        (2, {}, "it has 2 partitions, and must have 1"),
        (1, {"cleanup.policy": "compact"}, "cleanup.policy is compact, and must be delete"),
        (1, {"retention.ms": "604800000"}, "retention.ms is 604800000, and must be -1"),
        (1, {"retention.bytes": "1000000"}, "retention.bytes is 1000000, and must be -1"),
        (1, {"unclean.leader.election.enable": "true"}, "unclean.leader.election.enable is true"),
        (1, {"message.timestamp.type": "CreateTime"}, "message.timestamp.type is CreateTime"),
    ],
)
async def test_a_topic_that_is_there_is_used_when_it_is_fit(
    real_kafka: KafkaServers, partitions: int, changed: dict[str, str], said: str | None
) -> None:
    topic = f"test-{free_port()}.__meta"
    async with administrator(real_kafka) as admin:
        await admin.create_topics([NewTopic(topic, partitions, 1, topic_configs={**FIT, **changed})])
    metadata = KafkaMetadata(Links(address(real_kafka)), topic)
    await metadata.__aenter__()
    if said is None:
        await ready(metadata)
        await metadata.__aexit__()
        return
    await ended(metadata, said)
    with pytest.raises(OtherMetadata, match="not fit"):
        await metadata.__aexit__()


async def test_a_snapshot_takes_the_place_of_records_and_the_next_process_reads_it(
    real_kafka: KafkaServers, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic = f"test-{free_port()}.__meta"
    monkeypatch.setattr(metadata_log, "PART_BYTES", 1_000)
    async with a_process(real_kafka, topic) as (metadata, links):
        await ready(metadata)
        for number in range(100):
            assert await metadata.compare_and_set({f"key/{number}": ABSENT}, {f"key/{number}": b"%d" % number * 30})
        at = metadata._state.next_offset
        await metadata._save()
        expected = await metadata.list("")
        assert len(expected.values) == 100
        assert (await links.bounds(topic, 0))[0] == at
        async with a_process(real_kafka, topic) as (other, _):
            await ready(other)
            assert await other.list("") == expected
            assert await other.compare_and_set({"key/0": expected.values["key/0"].revision}, {"key/0": None})
        assert await metadata.get("key/0") is None


async def test_a_topic_that_is_deleted_and_made_anew_stops_who_has_read_it(real_kafka: KafkaServers) -> None:
    topic = f"test-{free_port()}.__meta"
    metadata = KafkaMetadata(Links(address(real_kafka)), topic)
    await metadata.__aenter__()
    await ready(metadata)
    assert await metadata.compare_and_set({"a": ABSENT}, {"a": b"1"})
    async with administrator(real_kafka) as admin:
        await admin.delete_topics([topic])
        await until(lambda: not metadata._is_verified, pause_s=0.1)
        assert not metadata.running.done(), "it is away, for all that is known"
        async with a_process(real_kafka, topic) as (other, _):
            await ready(other)
            assert await other.get("a") is None
            await ended(metadata, "made anew")
            assert await other.compare_and_set({"a": ABSENT}, {"a": b"1"})
    with pytest.raises(OtherMetadata):
        await metadata.__aexit__()


async def test_a_topic_that_others_show_to_be_deleted_is_not_made_anew(real_kafka: KafkaServers) -> None:
    prefix = f"test-{free_port()}."
    for is_younger_there in (False, True):
        if is_younger_there:
            async with administrator(real_kafka) as admin:
                await admin.create_topics([NewTopic(f"{prefix}__offsets", 1, 1)])
                await admin.delete_topics([f"{prefix}__meta"])
        metadata = KafkaMetadata(Links(address(real_kafka)), f"{prefix}__meta", older_than=[f"{prefix}__offsets"])
        await metadata.__aenter__()
        if is_younger_there:
            await ended(metadata, "it was deleted")
            with pytest.raises(OtherMetadata, match="__offsets of the same prefix"):
                await metadata.__aexit__()
        else:
            await ready(metadata)
            await metadata.__aexit__()


async def test_a_leader_is_killed_and_another_one_frozen_and_what_was_told_holds(tmp_path: Path) -> None:
    topic = "mq.__meta"
    counting = Counting()
    is_over = False
    longest_s = 0.0

    async def count_on(metadata: KafkaMetadata) -> None:
        nonlocal longest_s
        begun_s = time.monotonic()
        while not is_over:
            if await counting.add(metadata):
                longest_s = max(longest_s, time.monotonic() - begun_s)
                begun_s = time.monotonic()
            else:
                await asyncio.sleep(0.01)

    with kafka_servers(tmp_path, brokers=3) as kafka:
        async with AsyncExitStack() as stack:
            made = [await stack.enter_async_context(a_process(kafka, topic, replication=3)) for _ in range(3)]
            processes = [metadata for metadata, _ in made]
            for metadata in processes:
                await ready(metadata)
            held = await stack.enter_async_context(processes[0].session("nodes/1", b"1", ttl_ms=5_000))
            tasks = [asyncio.create_task(count_on(metadata)) for metadata in processes]
            for harm in (signal.SIGKILL, signal.SIGSTOP):
                before = counting.added
                await until(lambda: counting.added > before + 100, pause_s=0.05)  # noqa: B023
                leader = made[0][1]._clients["appends"].cluster.leader_for_partition(TopicPartition(topic, 0))
                assert leader is not None
                broker = kafka.brokers[leader - 1]
                broker.signal(harm)
                before = counting.added
                await until(lambda: counting.added > before + 100, pause_s=0.05)  # noqa: B023
                if harm is signal.SIGKILL:
                    broker.kill()
                    broker.start()
                    broker.wait()
                else:
                    broker.signal(signal.SIGCONT)
            is_over = True
            await asyncio.gather(*tasks)
            for metadata in processes:
                found = await metadata.get("n")
                assert found is not None
                assert counting.added <= int(found.data) <= counting.added + counting.unknown
            await until(lambda: held.is_held, pause_s=0.05)
            print(
                f"\n{counting.added} changes, {counting.unknown} of unknown outcome, the slowest after"
                f" {longest_s:.1f} s, {held.loss_count} sessions lost"
            )
