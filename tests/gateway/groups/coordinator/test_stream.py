"""gateway.groups.coordinator.stream: members over a real store: hand-over, expiry, topics that come and go,
broadcasting."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from importlib.metadata import EntryPoint
from pathlib import Path

import pytest

from gateway.groups.coordinator.stream import NAMELESS
from gateway.groups.machines.config import BROADCAST
from gateway.groups.machines.errors import GroupActive, GroupFull, IllegalRequest, StaleGeneration, UnknownMember
from gateway.groups.machines.membership import ROOM_BYTES_MAX, Share
from gateway.groups.machines.progress import Start
from gateway.groups.machines.strategies.base import Partition
from gateway.groups.machines.strategies.registry import ENTRY_POINT_GROUP, StrategyRegistry, installed
from gateway.groups.machines.subscription import Subscription
from gateway.groups.protocol import MemberKey, OffsetCommit, TopicPartition
from tests.gateway.groups.coordinator.world import ORDERS, World, world
from tests.waiting import WOKEN_S

G = "billing"
P0, P1 = TopicPartition("orders", 0), TopicPartition("orders", 1)


def named(partitions: tuple[Partition, ...]) -> list[tuple[str, int]]:
    return [(partition.topic, partition.partition) for partition in partitions]


def assigned(made: World, member_id: str, group: str = G) -> list[tuple[str, int]]:
    return named(share_of(made, member_id, group).assigned)


def share_of(made: World, member_id: str, group: str = G) -> Share:
    views = made.groups.describe(group).members
    return next(view.share for view in views if view.member.member_id == member_id)


def key(member_id: str, share: Share) -> MemberKey:
    return MemberKey(member_id, share.generation)


async def test_members_that_come_together_share_one_rebalance() -> None:
    """A thousand took a thousand, each sharing out all partitions and telling all members before it."""
    async with world() as made:
        await made.groups.configure(G, {"members_max": 40})
        before = made.groups.log.append_count
        wishes = [made.groups.join(G, f"m{number:03}", ORDERS) for number in range(60)]
        outcomes = await asyncio.gather(*wishes, return_exceptions=True)
        assert [isinstance(outcome, GroupFull) for outcome in outcomes] == [False] * 40 + [True] * 20
        assert made.groups.log.append_count - before <= 2
        assert made.groups.stats.rebalance_count <= 2
        assert [share_of(made, "m000").generation, len(made.groups.describe(G).members)] == [1, 40]
        assert {*assigned(made, "m000"), *assigned(made, "m001")} == {P0, P1}
        await made.kill()
        await made.start()
        assert len(made.groups.describe(G).members) == 40


async def test_two_processes_that_come_together_under_one_name_are_told_apart() -> None:
    async with world() as made:
        (_, first), (_, second) = await asyncio.gather(*(made.groups.join(G, "m", ORDERS) for _ in range(2)))
        assert second.generation > first.generation
        with pytest.raises(StaleGeneration):
            made.groups.heartbeat(G, key("m", first))
        assert made.groups.heartbeat(G, key("m", second)) == second


async def test_one_that_is_refused_keeps_nobody_else_out() -> None:
    async with world() as made:
        good, bad, gone = (
            asyncio.ensure_future(made.groups.join(G, name, ORDERS, session_timeout_ms=timeout_ms))
            for name, timeout_ms in (("good", None), ("bad", 1), ("gone", None))
        )
        await asyncio.sleep(0)
        gone.cancel()
        outcomes = await asyncio.gather(good, bad, gone, return_exceptions=True)
        assert isinstance(outcomes[0], tuple)
        assert isinstance(outcomes[1], IllegalRequest)
        assert isinstance(outcomes[2], asyncio.CancelledError)


async def test_a_large_one_for_which_there_is_no_room_keeps_nobody_else_out() -> None:
    made = World()
    made.limits = replace(made.limits, group_bytes_max=20_000)
    await made.start()
    await made.topic()
    wishes = [("a", ORDERS), ("large", Subscription(frozenset(f"t{n}" for n in range(200)))), ("b", ORDERS)]
    outcomes = await asyncio.gather(*(made.groups.join(G, *wish) for wish in wishes), return_exceptions=True)
    assert [isinstance(outcome, GroupFull) for outcome in outcomes] == [False, True, False]
    await made.stop()


async def test_a_partition_moves_when_its_owner_has_drained_committed_and_released_it() -> None:
    async with world(values=[b"1", b"2"]) as made:
        groups = made.groups
        _, first = await groups.join(G, "m1", ORDERS)
        assert named(first.assigned) == [P0, P1]
        watching = asyncio.ensure_future(groups.share_changed(G, "m1", first))
        await asyncio.sleep(0)
        _, second = await groups.join(G, "m2", ORDERS)
        assert second.assigned == (), "it waits for the owner"
        told = await asyncio.wait_for(watching, WOKEN_S)
        (moving,) = named(told.revoking)
        assert groups.view(G).state == "rebalancing"
        await groups.commit(G, [OffsetCommit(*moving, 0)], key("m1", told))  # while it drains it may commit
        waiting = asyncio.ensure_future(groups.share_changed(G, "m2", second))
        await groups.release(G, key("m1", told), [TopicPartition(*moving)])
        assert named((await asyncio.wait_for(waiting, WOKEN_S)).assigned) == [moving]
        assert groups.view(G).state == "stable"
        with pytest.raises(StaleGeneration):
            await groups.commit(G, [OffsetCommit(*moving, 1)], key("m1", told))
        await groups.commit(G, [OffsetCommit(*moving, 0)], key("m2", share_of(made, "m2")))


async def test_a_commit_behind_a_release_that_is_being_written_is_refused() -> None:
    """Nothing a former owner commits may stand in the log behind the change of owners."""
    async with world(partitions=1, values=[b"1", b"2"]) as made:
        groups = made.groups
        _, share = await groups.join(G, "m1", ORDERS)
        leaving = asyncio.ensure_future(groups.leave(G, key("m1", share)))
        for _ in range(2):
            await asyncio.sleep(0)  # decided and queued, not yet written
        with pytest.raises(UnknownMember):
            await groups.commit(G, [OffsetCommit("orders", 0, 1)], key("m1", share))
        await leaving


async def test_who_is_silent_for_a_session_is_out_and_what_it_had_is_free() -> None:
    async with world() as made:
        groups = made.groups
        _, silent = await groups.join(G, "m1", ORDERS, session_timeout_ms=5_000)
        await groups.join(G, "m2", ORDERS, session_timeout_ms=60_000)
        await made.tick(5_000)
        assert assigned(made, "m1") != []  # n
        await made.tick(1)
        assert [view.member.member_id for view in groups.describe(G).members] == ["m2"]  # n + 1
        assert assigned(made, "m2") == [P0, P1]
        assert groups.stats.expired_member_count == 1
        with pytest.raises(UnknownMember):
            groups.heartbeat(G, key("m1", silent))


async def test_who_does_not_give_up_what_is_revoked_is_put_out() -> None:
    async with world() as made:
        groups = made.groups
        await groups.configure(G, {"drain_timeout_ms": 1_000})
        _, share = await groups.join(G, "m1", ORDERS)
        await groups.join(G, "m2", ORDERS)
        await made.tick(1_001)
        with pytest.raises(UnknownMember):
            groups.heartbeat(G, key("m1", share))
        assert assigned(made, "m2") == [P0, P1]


async def test_members_survive_a_restart_with_a_whole_session_to_be_heard_in_again() -> None:
    async with world() as made:
        _, share = await made.groups.join(G, "m1", ORDERS, session_timeout_ms=5_000)
        await made.tick(4_000)
        for end in (made.kill, made.stop):
            await end()
            await made.start()
            assert assigned(made, "m1") == [P0, P1]
            await made.tick(4_000)
            assert made.groups.heartbeat(G, key("m1", share)).generation == share.generation


async def test_a_process_that_comes_back_under_its_name_replaces_its_former_self() -> None:
    async with world() as made:
        _, former = await made.groups.join(G, "m1", ORDERS)
        _, same = await made.groups.join(G, "m1", ORDERS, generation=former.generation)
        assert same == former
        _, now = await made.groups.join(G, "m1", ORDERS)
        assert now.generation > former.generation
        with pytest.raises(StaleGeneration):
            await made.groups.commit(G, [OffsetCommit("orders", 0, 0)], key("m1", former))


async def test_topics_that_come_grow_and_go_are_shared_out() -> None:
    async with world(partitions=1) as made:
        groups = made.groups
        await groups.join(G, "m1", Subscription(pattern="o.*"))
        await made.topic("other", 1)
        await made.topic("unwanted", 1)
        await groups.stream.topics_changed()
        assert assigned(made, "m1") == [("orders", 0), ("other", 0)]
        assert groups.view(G).topics == ("orders", "other"), "what the pattern found"
        await made.broker.grow_topic("other", 2)
        await groups.stream.topics_changed()
        assert assigned(made, "m1") == [("orders", 0), ("other", 0), ("other", 1)]
        await made.broker.delete_topic("orders")
        assert groups.view(G).topics == ("other",)
        await groups.stream.topics_changed()
        await made.tick(0)
        assert assigned(made, "m1") == [("other", 0), ("other", 1)]
        await groups.leave(G, key("m1", share_of(made, "m1")))
        assert groups.view(G).topics == ()


async def test_offsets_of_a_deleted_topic_are_forgotten_and_one_of_the_same_name_begins_anew() -> None:
    async with world(partitions=1, values=[b"1"]) as made:
        await made.groups.commit(G, [OffsetCommit("orders", 0, 1)])
        await made.broker.delete_topic("orders")
        await made.groups.stream.topics_changed()
        await made.topic(partitions=1)
        assert [place.offset for place in await made.groups.committed(G, [P0])] == [None]
        assert [lag.committed for lag in await made.groups.lag(G)] == []


async def test_the_periodic_check_heals_what_no_event_told() -> None:
    async with world(partitions=1) as made:
        await made.groups.configure(G, {"rebalance_interval_ms": 5_000})
        _, share = await made.groups.join(G, "m1", ORDERS, session_timeout_ms=60_000)
        await made.tick(0)  # looked at: next in 5 s
        await made.broker.grow_topic("orders", 2)  # and nobody says so
        await made.tick(4_999)
        made.groups.heartbeat(G, key("m1", share))
        assert assigned(made, "m1") == [P0]
        await made.tick(1)
        assert assigned(made, "m1") == [P0, P1]


async def test_another_strategy_shares_out_anew_while_members_are_there() -> None:
    async with world(partitions=3) as made:
        groups = made.groups
        _, one = await groups.join(G, "m1", ORDERS)
        _, two = await groups.join(G, "m2", ORDERS)
        one = share_of(made, "m1")
        await groups.release(G, key("m1", one), [TopicPartition(*place) for place in named(one.revoking)])
        await groups.configure(G, {"strategy": "averagely_by_circle"})
        await groups.stream.topics_changed()
        for member_id in ("m1", "m2"):
            share = share_of(made, member_id)
            await groups.release(G, key(member_id, share), [TopicPartition(*p) for p in named(share.revoking)])
        assert (assigned(made, "m1"), assigned(made, "m2")) == ([("orders", 0), ("orders", 2)], [("orders", 1)])
        with pytest.raises(IllegalRequest):
            await groups.configure(G, {"strategy": "by_moon"})
        assert two.assigned == ()


async def test_a_group_of_the_original_keeps_its_consistent_hash_by_the_names_of_brokers() -> None:
    async with world(partitions=1) as made:  # on a broker called b
        groups = made.groups
        await made.topic("T", 8)
        await groups.configure(G, {"strategy": "consistent_hash"})
        for member_id in ("c0", "c1", "c2"):
            await groups.join(G, member_id, Subscription(frozenset(["T"])))
        for _ in range(2):
            for member_id in ("c0", "c1", "c2"):
                share = share_of(made, member_id)
                await groups.release(G, key(member_id, share), [TopicPartition(*p) for p in named(share.revoking)])
        shares = [[number for _, number in assigned(made, member_id)] for member_id in ("c0", "c1", "c2")]
        assert shares == [[3, 4, 6], [1, 2, 5], [0, 7]]


async def test_a_group_takes_partitions_by_the_rooms_of_nodes() -> None:
    async with world(partitions=4) as made:
        made.routes.rooms["b"] = "north"
        await made.groups.configure(G, {"strategy": "machine_room_nearby"})
        for member_id in ("north@m1", "south@m2"):
            await made.groups.join(G, member_id, ORDERS)
        assert [len(assigned(made, member_id)) for member_id in ("north@m1", "south@m2")] == [4, 0]


async def test_a_group_takes_partitions_by_the_rooms_that_members_say_and_warns_of_who_has_nothing() -> None:
    async with world(partitions=4) as made:
        made.routes.rooms["b"] = "north"
        await made.groups.configure(G, {"strategy": "machine_room_nearby"})
        _, first = await made.groups.join(G, "m1", ORDERS, room="north")
        await made.groups.join(G, "m2", ORDERS, room="south")
        await made.groups.join(G, "m3", ORDERS, room="x" * ROOM_BYTES_MAX)
        with pytest.raises(IllegalRequest, match="room"):
            await made.groups.join(G, "m4", ORDERS, room="x" * (ROOM_BYTES_MAX + 1))

        def seen() -> tuple[list[str], list[int], int]:
            members = made.groups.describe(G).members
            rooms = [view.member.room for view in members]
            warnings = made.groups.describe(G).warnings
            assert len(warnings) == 1
            assert "south" in warnings[0]
            return rooms, [len(view.share.assigned) for view in members], made.groups.describe(G).view.generation

        before = seen()
        assert before[:2] == (["north", "south", "x" * ROOM_BYTES_MAX], [4, 0, 0])
        await made.crash(1)  # a room is kept with its member
        made.routes.rooms["b"] = "north"
        await made.groups.stream.topics_changed()
        assert seen()[:2] == before[:2]
        _, share = await made.groups.join(G, "m1", ORDERS, room="south", generation=first.generation)
        assert share.generation > before[2], "another room is another assignment"
        assert made.groups.describe(G).warnings == (
            "rooms without a member, whose partitions members of all rooms share: north",
        )


async def test_a_strategy_of_an_installed_package_shares_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The whole way of a plug-in: an installed package with an entry point, and a group that names it."""
    package = tmp_path / "last_takes_all-1.0.dist-info"
    package.mkdir()
    (package / "METADATA").write_text("Metadata-Version: 2.1\nName: last-takes-all\nVersion: 1.0\n")
    (package / "entry_points.txt").write_text(f"[{ENTRY_POINT_GROUP}]\nlast_takes_all = last_takes_all:Strategy\n")
    (tmp_path / "last_takes_all.py").write_text(
        "class Strategy:\n"
        "    name = 'last_takes_all'\n"
        "    def __init__(self, context):\n"
        "        self.skipped = context.options.get('skip', [])\n"
        "    def allocate(self, members, partitions, current):\n"
        "        return {members[-1]: [p for p in partitions if p.partition not in self.skipped]}\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    plugins: list[EntryPoint] = list(installed())
    made = World()
    made.strategies = StrategyRegistry(plugins)
    await made.start()
    await made.topic()
    await made.groups.configure(G, {"strategy": "last_takes_all", "strategy_options": {"skip": [1]}})
    await made.groups.join(G, "m1", ORDERS)
    assert assigned(made, "m1") == [P0]
    await made.stop()
    made.strategies = StrategyRegistry()  # the package is gone at the next start
    await made.start()
    assert assigned(made, "m1") == [P0], "who has something keeps it"
    await made.stop()


async def test_a_member_can_compute_the_assignment() -> None:
    async with world() as made:
        groups = made.groups
        await groups.configure(G, {"strategy": None})
        _, leader = await groups.join(G, "m1", ORDERS, metadata=b"wants all")
        assert leader.is_asked
        await groups.join(G, "m2", ORDERS)
        leader = share_of(made, "m1")
        assert (leader.is_asked, leader.assigned) == (True, ())
        shares = {"m2": [TopicPartition("orders", 0), TopicPartition("orders", 1)]}
        with pytest.raises(StaleGeneration):
            await groups.stream.assign(G, key("m2", share_of(made, "m2")), shares, {})
        await groups.stream.assign(G, key("m1", leader), shares, {"m2": b"\x00note"})
        assert (assigned(made, "m1"), assigned(made, "m2")) == ([], [P0, P1])
        await made.kill()
        await made.start()
        assert share_of(made, "m2").note == b"\x00note"


async def test_in_a_broadcasting_group_everybody_has_everything_and_a_place_of_its_own() -> None:
    async with world(values=[b"1", b"2"]) as made:
        groups = made.groups
        await groups.configure(G, {"mode": BROADCAST})
        _, one = await groups.join(G, "one", ORDERS)
        _, two = await groups.join(G, "two", ORDERS)
        assert named(one.assigned) == named(two.assigned) == [P0, P1]
        await groups.commit(G, [OffsetCommit("orders", 0, 2)], key("one", one))
        assert await groups.start_offset(G, P0, Start.FIRST, member_id="one") == 2
        assert await groups.start_offset(G, P0, Start.FIRST, member_id="two") == 0
        with pytest.raises(IllegalRequest):
            await groups.committed(G, [P0])  # whose?
        assert [(lag.owner, lag.lag) for lag in await groups.lag(G) if lag.partition == 0] == [("one", 0), ("two", 2)]
        await groups.leave(G, key("one", one))
        await made.kill()
        await made.start()
        assert await made.groups.start_offset(G, P0, Start.FIRST, member_id="one") == 2
        assert made.groups.names() == [G]
        assert made.groups.view(G).member_count == 1


async def test_who_joins_a_broadcasting_group_without_a_name_leaves_no_place() -> None:
    async with world() as made:
        await made.groups.configure(G, {"mode": BROADCAST})
        for goes in ("leaves", "falls silent"):
            member_id, share = await made.groups.join(G, None, ORDERS, session_timeout_ms=1_000)
            assert member_id.startswith(NAMELESS)
            await made.groups.commit(G, [OffsetCommit("orders", 0, 0)], key(member_id, share))
            assert len(made.groups.table) == 2
            if goes == "leaves":
                await made.groups.leave(G, key(member_id, share))
            else:
                await made.tick(1_001)
            assert made.groups.table.names() == [G], goes


async def test_the_members_of_a_group_are_bounded_in_both_modes() -> None:
    async with world() as made:
        for mode in ("shared", BROADCAST):
            await made.groups.configure(mode, {"mode": mode, "members_max": 2})
            joins = [made.groups.join(mode, name, ORDERS) for name in ("a", "b", "c")]
            outcomes = await asyncio.gather(*joins, return_exceptions=True)
            assert [type(outcome) for outcome in outcomes] == [tuple, tuple, GroupFull], mode


async def test_a_reset_is_refused_while_members_are_in_unless_forced_which_puts_them_aside() -> None:
    async with world(values=[b"1", b"2"]) as made:
        groups = made.groups
        _, share = await groups.join(G, "m1", ORDERS)
        await groups.commit(G, [OffsetCommit("orders", 0, 2)], key("m1", share))
        with pytest.raises(GroupActive):
            await groups.reset(G, "orders", Start.FIRST)
        planned = await groups.reset(G, "orders", Start.FIRST, dry_run=True)
        assert [(move.before, move.after) for move in planned] == [(2, 0), (None, 0)]
        assert [place.offset for place in await groups.committed(G, [P0])] == [2]
        await groups.reset(G, "orders", Start.FIRST, force=True)
        with pytest.raises(UnknownMember):
            await groups.commit(G, [OffsetCommit("orders", 0, 2)], key("m1", share))
        _, again = await groups.join(G, "m1", ORDERS)
        assert again.generation > share.generation
        assert await groups.start_offset(G, P0, Start.LAST) == 0


async def test_a_change_of_mode_needs_an_empty_group() -> None:
    async with world() as made:
        _, share = await made.groups.join(G, "m1", ORDERS)
        with pytest.raises(GroupActive):
            await made.groups.configure(G, {"mode": BROADCAST})
        await made.groups.leave(G, key("m1", share))
        assert (await made.groups.configure(G, {"mode": BROADCAST})).mode == BROADCAST
