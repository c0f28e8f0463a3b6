"""gateway.groups.coordinator.lossy_replay: the server starts whatever `mq repair` could not save of the groups."""

from __future__ import annotations

import logging
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from gateway.groups.coordinator.lossy_replay import LossyReplay
from gateway.groups.machines.errors import GroupError
from gateway.groups.machines.events import Leased, LeasesSet, Settled
from gateway.groups.machines.progress import Start
from gateway.groups.machines.strategies.registry import StrategyRegistry
from gateway.groups.machines.table import GroupTable
from gateway.groups.protocol import MemberKey, OffsetCommit, TopicPartition
from store.files import OsFiles
from store.offline.repair import repair
from store.topics import OFFSETS_QUEUE
from tests.gateway.groups.coordinator.test_settling import receipts
from tests.gateway.groups.coordinator.world import ORDERS, World, wanting
from tests.store.offline_kit import config_of, entries_of, overwrite

JOBS, STREAM, P0 = "jobs", "stream", TopicPartition("orders", 0)
COUNT = 20


INBOXES = [None, "user/42"]
"""Records of the topic, or of a light queue of it."""


def at(root: Path, inbox: str | None) -> World:
    config = config_of(root) if inbox is None else replace(config_of(root), index="rocksdb")
    return World(OsFiles(), config)  # type: ignore[arg-type]  # a real disk: that is what is repaired


async def lived(root: Path, inbox: str | None) -> tuple[set[int], int, MemberKey]:
    """Leases, acks, members and commits, then a kill. The acked offsets, the committed one, a member."""
    made = at(root, inbox)
    await made.start()
    await made.topic(partitions=1)
    await made.send(*(b"%d" % number for number in range(COUNT)), light=inbox)
    acked: set[int] = set()
    for size in (4, 3, 5):
        messages = (await made.groups.receive(JOBS, wanting(max_messages=size, queue=inbox))).messages
        await made.groups.ack(JOBS, receipts(messages[::2]))
        await made.groups.nack(JOBS, receipts(messages[1:2]), delay_ms=10)
        acked |= {message.offset for message in messages[::2]}
    member_id, share = await made.groups.join(STREAM, "m1", ORDERS)
    assert await made.groups.start_offset(STREAM, P0, Start.FIRST) == 0
    for offset in (3, 7):
        await made.groups.commit(STREAM, [OffsetCommit("orders", 0, offset)], MemberKey(member_id, share.generation))
    made._writing.cancel()
    await made.store.close()  # without a snapshot of the groups, as after a kill
    return acked, 7, MemberKey(member_id, share.generation)


def offsets_entries(root: Path) -> list[Any]:
    return [entry for entry in entries_of(root) if entry.queue == OFFSETS_QUEUE]


@pytest.mark.parametrize("inbox", INBOXES)
async def test_whichever_entry_is_lost_the_server_starts_and_no_record_is_passed_over(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, inbox: str | None
) -> None:
    root = tmp_path / "data"
    acked, committed, member = await lived(root, inbox)
    entries = offsets_entries(root)
    assert len(entries) >= 10
    for number, entry in enumerate(entries):
        broken, out = tmp_path / f"broken{number}", tmp_path / f"out{number}"
        shutil.copytree(root, broken)
        overwrite(broken, entry.position + entry.size - 20, b"\xff" * 8)
        assert repair(config_of(broken), out).lost
        made = at(out, inbox)
        caplog.clear()
        with caplog.at_level(logging.WARNING):
            await made.start()
        assert "were lost in a repair" in caplog.text
        made.clock.step(60_000)
        with pytest.raises(GroupError):
            made.groups.heartbeat(STREAM, member)
        _, share = await made.groups.join(STREAM, "m1", ORDERS)
        assert share.generation > member.generation, "a generation that nobody had"
        assert await made.groups.start_offset(STREAM, P0, Start.FIRST) <= committed
        again = (await made.groups.receive(JOBS, wanting(max_messages=100, queue=inbox))).messages
        assert set(range(COUNT)) - acked <= {message.offset for message in again}
        results = await made.groups.ack(JOBS, receipts(again))
        assert all(result.ok for result in results)
        await made.stop()
        made = at(out, inbox)
        await made.start()
        assert (await made.groups.receive(JOBS, wanting(max_messages=100, queue=inbox))).messages == (), (
            "mended once, for good"
        )
        await made.stop()
        shutil.rmtree(broken)
        shutil.rmtree(out)


@pytest.mark.parametrize("inbox", INBOXES)
async def test_acks_after_a_mended_start_survive_a_kill(tmp_path: Path, inbox: str | None) -> None:
    root, out = tmp_path / "data", tmp_path / "out"
    await lived(root, inbox)
    overwrite(root, offsets_entries(root)[3].position + 80, b"\xff" * 8)
    repair(config_of(root), out)
    made = at(out, inbox)
    await made.start()
    made.clock.step(60_000)
    again = (await made.groups.receive(JOBS, wanting(max_messages=100, queue=inbox))).messages
    await made.groups.ack(JOBS, receipts(again))
    made._writing.cancel()
    await made.store.close()
    made = at(out, inbox)
    await made.start()
    assert (await made.groups.receive(JOBS, wanting(max_messages=100, queue=inbox))).messages == ()
    await made.stop()


def test_a_group_whose_first_lease_is_lost_begins_with_the_first_record() -> None:
    table = GroupTable(StrategyRegistry())
    lossy_replay = LossyReplay(table, 5)
    assert lossy_replay.begin() == []
    leased = Leased(JOBS, 16, 0, 10, (8, 9), (), (8, 9), 99)
    (begun,) = lossy_replay.kept(leased)
    assert begun == LeasesSet(JOBS, 16, 0, 5, 0, ())
    table.apply(begun, 0)
    assert not list(lossy_replay.kept(Settled(JOBS, 16, 0, (8,))))
