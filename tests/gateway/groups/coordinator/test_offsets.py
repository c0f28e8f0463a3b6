"""gateway.groups.coordinator.offsets: commits, where to begin, lag and reset over a real store."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest

from gateway.groups.machines.errors import GroupActive, GroupFull, IllegalRequest, UnknownGroup
from gateway.groups.machines.progress import COMMIT_METADATA_BYTES_MAX, COMMITS_MAX, Start, StartTime
from gateway.groups.protocol import OffsetCommit, TopicPartition
from gateway.routing.base import UnknownPartition
from store.errors import UnknownQueue
from store.types import OFFSET_MAX
from tests.gateway.groups.coordinator.test_settling import receipts
from tests.gateway.groups.coordinator.world import ORDERS, World, wanting, world

G = "billing"
P0, P1 = TopicPartition("orders", 0), TopicPartition("orders", 1)


async def committed(made: World, group: str = G) -> list[int | None]:
    return [partition.offset for partition in await made.groups.committed(group, [P0, P1])]


async def test_what_was_committed_is_there_after_a_kill_and_after_a_stop() -> None:
    async with world(values=[b"1", b"2"]) as made:
        await made.groups.commit(G, [OffsetCommit("orders", 0, 1, "half-way")])
        await made.kill()
        await made.start()
        assert await committed(made) == [1, None]
        await made.groups.commit(G, [OffsetCommit("orders", 0, 2)])
        await made.stop()
        await made.start()
        assert await committed(made) == [2, None]
        assert (await made.groups.committed(G, [P0]))[0].metadata == ""


async def test_the_last_of_several_commits_at_once_is_what_stays() -> None:
    async with world(values=[b"1", b"2", b"3"]) as made:
        await made.groups.commit(G, [OffsetCommit("orders", 0, 1)])
        await asyncio.gather(
            made.groups.commit(G, [OffsetCommit("orders", 0, 3)]),
            made.groups.commit(
                G, [OffsetCommit("orders", 0, 1)]
            ),  # says what is known, but no longer when it is written
        )
        assert await committed(made) == [1, None]


async def test_a_commit_that_says_nothing_new_is_not_written() -> None:
    async with world(values=[b"1"]) as made:
        await made.groups.commit(G, [OffsetCommit("orders", 0, 1)])
        before = made.groups.log.event_count
        await made.groups.commit(G, [OffsetCommit("orders", 0, 1)])
        assert made.groups.log.event_count == before


async def test_what_no_record_can_have_is_not_committed() -> None:
    async with world(values=[b"1"]) as made:
        for offset in (-1, OFFSET_MAX + 1):
            with pytest.raises(IllegalRequest):
                await made.groups.commit(G, [OffsetCommit("orders", 0, offset)])
        with pytest.raises(UnknownPartition):
            await made.groups.commit(G, [OffsetCommit("orders", 2, 0)])
        with pytest.raises(UnknownQueue):
            await made.groups.commit(G, [OffsetCommit("nothing", 0, 0)])
        assert G not in made.groups.table


async def test_the_metadata_of_a_commit_is_bounded() -> None:
    async with world() as made:
        await made.groups.commit(G, [OffsetCommit("orders", 0, 0, "x" * COMMIT_METADATA_BYTES_MAX)])
        with pytest.raises(IllegalRequest):
            await made.groups.commit(G, [OffsetCommit("orders", 0, 0, "x" * (COMMIT_METADATA_BYTES_MAX + 1))])
        assert COMMITS_MAX >= 1000


async def test_a_commit_by_nobody_is_refused_where_a_member_owns_the_partition() -> None:
    async with world() as made:
        await made.groups.join(G, "m1", ORDERS)
        with pytest.raises(GroupActive):
            await made.groups.commit(G, [OffsetCommit("orders", 0, 0)])


async def test_a_commit_moves_queue_mode_too_but_not_while_records_are_on_lease() -> None:
    async with world(values=[b"1", b"2", b"3"]) as made:
        first = (await made.groups.receive(G, wanting(max_messages=1))).messages
        with pytest.raises(GroupActive):
            await made.groups.commit(G, [OffsetCommit("orders", 0, 2)])
        await made.groups.ack(G, receipts(first))
        await made.groups.commit(G, [OffsetCommit("orders", 0, 2)])
        assert [message.value for message in (await made.groups.receive(G, wanting())).messages] == [b"3"]


async def test_commits_and_receives_at_once_never_write_what_cannot_be_applied() -> None:
    """A commit that resets leases while a receive opens some: every order of the two must be readable at start."""
    for steps in range(12):
        async with world(partitions=1, values=[b"%d" % n for n in range(10)]) as made:
            await made.groups.ack(G, receipts((await made.groups.receive(G, wanting(max_messages=2))).messages))
            receiving = asyncio.ensure_future(made.groups.receive(G, wanting(max_messages=3)))
            for _ in range(steps):
                await asyncio.sleep(0)
            committing = asyncio.ensure_future(made.groups.commit(G, [OffsetCommit("orders", 0, 7)]))
            (received, outcome) = await asyncio.gather(receiving, committing, return_exceptions=True)
            assert not isinstance(received, BaseException)
            assert outcome is None or isinstance(outcome, GroupActive)
            await made.groups.ack(G, receipts(received.messages))
            await made.kill()
            await made.start()
            assert len((await made.groups.receive(G, wanting())).messages) in (0, 5)


@pytest.mark.parametrize("ending", ["kill", "stop"])
async def test_a_commit_past_the_end_is_kept_and_the_record_that_gets_the_offset_is_the_next_one(ending: str) -> None:
    """In both modes; what comes before that record is not the group's. Partition 1 is committed at its end."""
    async with world(values=[b"0", b"1"]) as made:
        await made.groups.receive("queue", wanting(start=Start.LAST))
        for group in (G, "queue"):
            await made.groups.commit(group, [OffsetCommit("orders", 0, 4), OffsetCommit("orders", 1, 0)])
        await (made.kill() if ending == "kill" else made.stop())
        await made.start()
        for group in (G, "queue"):
            assert await committed(made, group) == [4, 0]
            assert [await made.groups.start_offset(group, partition, Start.FIRST) for partition in (P0, P1)] == [4, 0]
            assert [(lag.lag, lag.lost) for lag in await made.groups.lag(group)] == [(0, 0), (0, 0)]
        await made.send(b"2", b"3")
        assert not (await made.groups.receive("queue", wanting())).messages
        assert [lag.lag for lag in await made.groups.lag(G)] == [0, 0]
        await made.send(b"4")
        (message,) = (await made.groups.receive("queue", wanting())).messages
        assert (message.offset, message.value) == (4, b"4")
        assert [lag.lag for lag in await made.groups.lag(G)] == [1, 0]
        assert await made.groups.start_offset(G, P0, Start.LAST) == 4


async def test_a_commit_below_what_retention_left_begins_with_the_first_record_there_is() -> None:
    async with world(values=[b"0", b"1", b"2"]) as made:
        await made.groups.commit(G, [OffsetCommit("orders", 0, 1)])
        await made.broker.configure_topic("orders", {"retention_ms": 1})
        made.clock.step(120_000)
        await made.store._hide_expired(made.store.topics())
        assert made.store.bounds(made.routes.writable("orders", 0).queue) == (3, 3)
        assert await made.groups.start_offset(G, P0, Start.LAST) == 3
        assert (await made.groups.lag(G))[0].lost == 2


async def test_where_to_start_and_a_stored_offset_wins() -> None:
    async with world(values=[b"1", b"2", b"3"]) as made:
        groups = made.groups
        assert await groups.start_offset("a", P0, Start.FIRST) == 0
        assert await groups.start_offset("b", P0, Start.LAST) == 3
        made.clock.step(1000)
        await made.send(b"4")
        assert await groups.start_offset("c", P0, StartTime(made.clock.now_ms())) == 3
        assert await groups.start_offset("d", P0, StartTime(made.clock.now_ms() + 1)) == 4
        await groups.commit(G, [OffsetCommit("orders", 0, 1)])
        assert await groups.start_offset(G, P0, Start.LAST) == 1


async def test_lag_counts_what_is_not_consumed_and_says_since_when() -> None:
    async with world(values=[b"1", b"2"]) as made:
        first_ms = made.clock.now_ms()
        made.clock.step(500)
        await made.send(b"3")
        await made.groups.commit(G, [OffsetCommit("orders", 0, 0)])
        (p0, p1) = await made.groups.lag(G)
        assert (p0.committed, p0.end, p0.lag, p0.oldest_unacked_ms) == (0, 3, 3, first_ms)
        assert (p1.committed, p1.lag, p1.oldest_unacked_ms) == (None, 0, None)
        await made.groups.commit(G, [OffsetCommit("orders", 0, 2)])
        (p0, _) = await made.groups.lag(G, ["orders"])
        assert (p0.lag, p0.oldest_unacked_ms) == (1, first_ms + 500)
        assert await made.groups.lag(G, ["other"]) == []
        with pytest.raises(UnknownGroup):
            await made.groups.lag("nobody")


async def test_a_reset_moves_offsets_and_leases_and_voids_receipts() -> None:
    async with world(values=[b"1", b"2", b"3"]) as made:
        groups = made.groups
        first = (await groups.receive(G, wanting())).messages
        with pytest.raises(GroupActive):
            await groups.reset(G, "orders", 1, partitions=[0])
        planned = await groups.reset(G, "orders", 1, partitions=[0], force=True)
        assert [(move.partition, move.before, move.after) for move in planned] == [(0, 0, 1)]
        assert [result.ok for result in await groups.ack(G, receipts(first))] == [False] * 3
        await made.kill()
        await made.start()
        assert [message.value for message in (await made.groups.receive(G, wanting())).messages] == [b"2", b"3"]
        with pytest.raises(UnknownPartition):
            await made.groups.reset(G, "orders", 0, partitions=[2])
        with pytest.raises(UnknownGroup):
            await made.groups.reset("nobody", "orders", 0)


@pytest.mark.parametrize(("to", "after"), [(Start.FIRST, 0), (Start.LAST, 3), (99, 3), (2, 2)])
async def test_where_a_reset_can_go(to: Start | int, after: int) -> None:
    async with world(partitions=1, values=[b"1", b"2", b"3"]) as made:
        await made.groups.commit(G, [OffsetCommit("orders", 0, 1)])
        (move,) = await made.groups.reset(G, "orders", to)
        assert (move.before, move.after) == (1, after)
        assert [partition.offset for partition in await made.groups.committed(G, [P0])] == [after]


async def test_a_deleted_group_is_forgotten_for_good() -> None:
    async with world(values=[b"1", b"2"]) as made:
        messages = (await made.groups.receive(G, wanting(max_messages=1))).messages
        with pytest.raises(GroupActive):
            await made.groups.delete(G)
        await made.groups.ack(G, receipts(messages))
        await made.groups.put_document(G, "note", b"x")
        await made.groups.delete(G)
        await made.kill()
        await made.start()
        assert (made.groups.names(), made.groups.documents(G)) == ([], [])
        with pytest.raises(UnknownGroup):
            await made.groups.delete(G)
        assert [m.value for m in (await made.groups.receive(G, wanting())).messages] == [b"1", b"2"]


async def test_offsets_that_are_taken_back_stay_so_after_a_kill() -> None:
    async with world(values=[b"1", b"2"]) as made:
        with pytest.raises(UnknownGroup):
            await made.groups.forget_offsets(G, "orders", [0])
        await made.groups.commit(G, [OffsetCommit("orders", 0, 1, "note"), OffsetCommit("orders", 1, 1)])
        for _ in range(2):  # once more does no harm
            await made.groups.forget_offsets(G, "orders", [0])
        assert await committed(made) == [None, 1]
        await made.kill()
        await made.start()
        assert await committed(made) == [None, 1]
        with pytest.raises(UnknownPartition):
            await made.groups.forget_offsets(G, "orders", [2])
        await made.groups.join(G, "m", ORDERS)
        with pytest.raises(GroupActive, match="consumes topic=orders"):
            await made.groups.forget_offsets(G, "orders", [1])


async def test_a_commit_that_is_under_way_does_not_come_back_when_its_offset_is_taken() -> None:
    async with world(values=[b"1", b"2"]) as made:
        await made.groups.configure(G, {})
        committing = asyncio.create_task(made.groups.commit(G, [OffsetCommit("orders", 0, 1)]))
        await asyncio.sleep(0)
        await made.groups.forget_offsets(G, "orders", [0])
        await committing
        assert await committed(made) == [None, None]


async def test_offsets_of_queue_mode_are_not_taken() -> None:
    async with world(values=[b"1", b"2"]) as made:
        await made.groups.receive(G, wanting(max_messages=2))
        with pytest.raises(GroupActive, match="queue mode"):
            await made.groups.forget_offsets(G, "orders", [0, 1])


async def test_a_server_has_a_bound_on_its_groups() -> None:
    made = World()
    made.limits = replace(made.limits, groups_max=2)
    await made.start()
    await made.topic()
    await made.groups.commit("one", [OffsetCommit("orders", 0, 0)])
    await made.groups.receive("two", wanting())  # n
    for work in (
        made.groups.commit("three", [OffsetCommit("orders", 0, 0)]),
        made.groups.receive("three", wanting()),
        made.groups.join("three", "m", ORDERS),
        made.groups.configure("three", {}),
        made.groups.put_document("three", "key", b""),
    ):
        with pytest.raises(GroupFull):
            await work  # n + 1
    await made.groups.delete("one")
    await made.groups.commit("three", [OffsetCommit("orders", 0, 0)])
    await made.stop()
