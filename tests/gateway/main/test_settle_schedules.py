"""gateway.main.cluster_backup: schedules whose records other nodes have already, and directories that are no nodes'."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

import pytest

from gateway.brokers.local import LocalBroker
from gateway.cluster.metadata import Listing, Value
from gateway.cluster.record import PartitionRecord, SegmentRecord, encode
from gateway.main.cluster_backup import NoBackup, _on_kafka, directories, read_backup, settle_schedules
from gateway.routing.delivery import message_id_of
from gateway.settings.config import GatewayConfig, load
from store import Store, record_batch
from store.record_batch import Record
from store.topics import TIMER_QUEUE
from store.types import Acks, Append, Delay, Source

DUE_MS = 5_000


def configured(root: Path) -> GatewayConfig:
    config = load(environment={}, flags={"data": root})
    small = replace(config.store, commit_log_file_bytes=4 << 20, extent_bytes=1 << 19, disk_floor_bytes=0)
    return replace(config, store=small)


async def accepted(config: GatewayConfig, dues_ms: Iterable[int]) -> list[Source]:
    """Schedules in the log of a directory."""
    delays = [Delay(due_ms, 16, 0) for due_ms in dues_ms]
    store = await Store.open(config.store)
    try:
        append = Append(
            queue=TIMER_QUEUE,
            batch=record_batch.encode([Record(None, b"x", 1)] * len(delays)),
            record_count=len(delays),
            json_values=True,
            delays=delays,
        )
        (appended,) = await store.append([append], acks=Acks.FLUSHED)
        return [Source(appended.position, index) for index in range(len(delays))]
    finally:
        await store.close()


async def consumed(config: GatewayConfig) -> set[Source]:
    store = await Store.open(config.store)
    try:
        return await store.sources_since(0)
    finally:
        await store.close()


async def test_what_another_node_has_is_consumed_once_and_nothing_else(tmp_path: Path) -> None:
    config = configured(tmp_path / "data")
    here, there, later, others = await accepted(config, [DUE_MS, DUE_MS, DUE_MS + 1, DUE_MS])
    ids = {message_id_of(b"n1", there), message_id_of(b"n1", later), message_id_of(b"n2", others)}
    assert await settle_schedules(config, "n1", ids, DUE_MS) == 1
    assert await consumed(config) == {there}
    assert here not in await consumed(config)
    assert await settle_schedules(config, "n1", ids, DUE_MS) == 0, "it is consumed already"
    assert await settle_schedules(config, "n1", ids, DUE_MS + 1) == 1
    assert await consumed(config) == {there, later}


def test_what_is_no_backup_and_no_node_is_named(tmp_path: Path) -> None:
    with pytest.raises(NoBackup, match=r"has no cluster\.json"):
        read_backup(tmp_path)
    (tmp_path / "cluster.json").write_text('{"v": 2}')
    (tmp_path / "metadata.json").write_text('{"v": 1, "values": {}}')
    with pytest.raises(NoBackup, match="newer version"):
        read_backup(tmp_path)
    with pytest.raises(NoBackup, match="no data directory of a node"):
        directories([tmp_path])
    assert LocalBroker  # what a node has of all this is in tests/gateway/cluster/test_cluster_backup.py


def test_a_backup_says_how_much_of_the_cluster_is_on_kafka_and_so_not_in_it() -> None:
    on_node = SegmentRecord(start=0, broker="n1", queue=(16, 0), end=5)
    on_kafka = SegmentRecord(start=5, broker="kafka1", queue=("mq.orders", 0), physical=5, epoch=1, pid=4001, end=9)
    back = SegmentRecord(start=9, broker="n1", queue=(16, 4096), epoch=2)
    open_there = replace(on_kafka, end=None)
    records = {
        "partitions/16/0": [on_node, on_kafka, back],
        "partitions/2/3": [replace(open_there, start=0)],
        "partitions/16/1": [replace(on_node, end=None)],
    }
    values = {
        key: Value(encode(PartitionRecord(epoch=segments[-1].epoch, owner="n1", segments=tuple(segments))), 7)
        for key, segments in records.items()
    }
    assert _on_kafka(Listing(7, {**values, "brokers/n1": Value(b"{}", 1)})) == 2
