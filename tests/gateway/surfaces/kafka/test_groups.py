"""gateway.surfaces.kafka.groups over a real coordinator: rounds, static members, and members that go in a round."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest

from gateway.groups.machines.errors import StaleGeneration
from gateway.groups.machines.strategies.base import Partition
from gateway.groups.machines.subscription import Subscription
from gateway.groups.protocol import MemberKey, OffsetCommit
from gateway.surfaces.kafka import groups as module
from gateway.surfaces.kafka.errors import (
    FENCED_INSTANCE_ID,
    INCONSISTENT_PROTOCOL,
    MEMBER_ID_REQUIRED,
    NOT_COORDINATOR,
    REBALANCE_IN_PROGRESS,
    UNKNOWN_MEMBER_ID,
)
from gateway.surfaces.kafka.groups import (
    CONSUMER,
    JoinAsked,
    Joined,
    KafkaGroups,
    KafkaMember,
    Refused,
    assignment_of,
    subscription_bytes,
)
from tests.gateway.groups.coordinator.world import ORDERS, World, world
from tests.waiting import PATIENCE_S

G = "team"
REBALANCE_MS = 300


class Kafka:
    """A group's members as their clients see it."""

    def __init__(self, made: World) -> None:
        self.world = made
        self.groups = KafkaGroups(made.groups)

    def join(
        self,
        member_id: str = "",
        *,
        instance_id: str | None = None,
        protocols: tuple[str, ...] = ("range",),
        rebalance_ms: int = 60_000,
        needs_id: bool = False,
        group: str = G,
    ) -> asyncio.Task[Joined]:
        metadata = subscription_bytes(["orders"])
        member = KafkaMember(
            "c", "127.0.0.1", instance_id, rebalance_ms, CONSUMER, dict.fromkeys(protocols, metadata)
        )  # fmt: skip
        wish = Subscription(frozenset(["orders"]))
        asked = JoinAsked(group, member_id, 30_000, member, wish, frozenset(), needs_id)
        return asyncio.create_task(self.groups.join(asked))

    async def first(self, **settings: object) -> Joined:
        """A member alone, which has assigned both partitions to itself."""
        joined = await self.join(**settings)  # type: ignore[arg-type]
        await self.sync(joined, {joined.member_id: self.share(0, 1)})
        return joined

    async def two(self) -> tuple[Joined, Joined]:
        """Two members of one generation whose assignment is awaited, the leader first."""
        one = await self.first(rebalance_ms=REBALANCE_MS)
        second = self.join(rebalance_ms=REBALANCE_MS)
        await asyncio.sleep(0)
        leader = await self.join(one.member_id, rebalance_ms=REBALANCE_MS)
        return leader, await second

    def share(self, *numbers: int) -> bytes:
        routes = self.world.routes.topic("orders")
        return assignment_of([Partition("orders", routes.topic_id, number) for number in numbers])

    async def sync(
        self, joined: Joined, shares: dict[str, bytes] | None = None, instance_id: str | None = None
    ) -> bytes:
        return await self.groups.sync(G, MemberKey(joined.member_id, joined.generation), instance_id, shares or {})

    def heartbeat(self, joined: Joined, instance_id: str | None = None) -> None:
        self.groups.heartbeat(G, MemberKey(joined.member_id, joined.generation), instance_id)

    def members(self) -> list[str]:
        return [view.member.member_id for view in self.world.groups.describe(G).members]


@asynccontextmanager
async def _kafka() -> AsyncIterator[Kafka]:
    async with world() as made:
        kafka = Kafka(made)
        try:
            yield kafka
        finally:
            await kafka.groups.close()


@pytest.fixture(autouse=True)
def _impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "INITIAL_WAIT_S", 0.02)
    monkeypatch.setattr(module, "LOOK_S", 0.02)


async def test_a_new_member_comes_back_with_the_id_that_it_is_told() -> None:
    async with _kafka() as kafka:
        with pytest.raises(Refused) as told:
            await kafka.join(needs_id=True)
        assert told.value.code == MEMBER_ID_REQUIRED
        joined = await kafka.join(told.value.member_id, needs_id=True)
        assert (joined.member_id, joined.leader) == (told.value.member_id, told.value.member_id)
        with pytest.raises(Refused) as unknown:
            await kafka.join("never-given-out")
        assert unknown.value.code == UNKNOWN_MEMBER_ID


async def test_members_that_come_together_are_in_one_generation_and_the_leader_assigns() -> None:
    async with _kafka() as kafka:
        one, two = await asyncio.gather(kafka.join(), kafka.join())
        assert one.generation == two.generation == 1
        assert one.leader == two.leader == one.member_id
        assert ({name for name, _, _ in one.members}, two.members) == ({one.member_id, two.member_id}, ())
        follower = asyncio.create_task(kafka.sync(two))
        await asyncio.sleep(0.05)
        assert not follower.done()  # it waits for the leader
        shares = {one.member_id: kafka.share(0), two.member_id: kafka.share(1)}
        assert await kafka.sync(one, shares) == shares[one.member_id]
        assert await follower == shares[two.member_id]
        kafka.heartbeat(one)
        kafka.heartbeat(two)


async def test_a_round_waits_for_the_others_whose_heartbeats_tell_them() -> None:
    async with _kafka() as kafka:
        one = await kafka.first()
        newcomer = kafka.join()
        await asyncio.sleep(0.05)
        assert not newcomer.done()
        with pytest.raises(Refused) as told:
            kafka.heartbeat(one)
        assert told.value.code == REBALANCE_IN_PROGRESS
        again, came = await asyncio.gather(kafka.join(one.member_id), newcomer)
        assert again.generation == came.generation == one.generation + 1


async def test_who_does_not_join_again_in_time_is_put_out() -> None:
    async with _kafka() as kafka:
        one = await kafka.first(rebalance_ms=REBALANCE_MS)
        came = await kafka.join(rebalance_ms=REBALANCE_MS)
        assert (kafka.members(), came.leader) == ([came.member_id], came.member_id)
        assert one.member_id != came.member_id


async def test_a_member_that_leaves_in_a_round_is_not_waited_for() -> None:
    async with _kafka() as kafka:
        one = await kafka.first()
        newcomer = kafka.join()
        await asyncio.sleep(0.05)
        await kafka.groups.leave(G, one.member_id, None)
        came = await asyncio.wait_for(newcomer, 5)
        assert kafka.members() == [came.member_id]


async def test_a_client_that_goes_while_it_waits_is_not_in_the_generation() -> None:
    async with _kafka() as kafka:
        one = await kafka.first()
        gone = kafka.join()
        await asyncio.sleep(0.05)
        gone.cancel()
        await asyncio.wait([gone])
        again = await kafka.join(one.member_id)
        assert [name for name, _, _ in again.members] == [one.member_id] == kafka.members()


async def test_a_leader_that_does_not_assign_in_time_is_put_out() -> None:
    async with _kafka() as kafka:
        leader, follower = await kafka.two()
        with pytest.raises(Refused) as told:
            await asyncio.wait_for(kafka.sync(follower), PATIENCE_S)
        assert told.value.code == REBALANCE_IN_PROGRESS
        again = await kafka.join(follower.member_id, rebalance_ms=REBALANCE_MS)
        assert (again.leader, kafka.members()) == (follower.member_id, [follower.member_id])
        assert leader.generation < again.generation


async def test_who_waits_for_the_assignment_is_told_at_once_when_another_round_begins() -> None:
    async with _kafka() as kafka:
        one = await kafka.first()
        second = kafka.join()
        await asyncio.sleep(0)
        leader, two = await kafka.join(one.member_id), await second
        follower = asyncio.create_task(kafka.sync(two))
        await asyncio.sleep(0.05)
        newcomer = kafka.join()
        for waiting in (follower, asyncio.create_task(kafka.sync(leader))):
            with pytest.raises(Refused) as told:
                await asyncio.wait_for(waiting, PATIENCE_S)
            assert told.value.code == REBALANCE_IN_PROGRESS
        joined = await asyncio.gather(kafka.join(leader.member_id), kafka.join(two.member_id), newcomer)
        assert {one.generation for one in joined} == {leader.generation + 1}, "nobody was put out"
        assert sorted(kafka.members()) == sorted(one.member_id for one in joined)


async def test_a_static_member_that_comes_back_replaces_and_fences_the_former() -> None:
    async with _kafka() as kafka:
        before = await kafka.first(instance_id="pod-0", needs_id=True)  # a static one needs no id
        after = await asyncio.wait_for(kafka.join(instance_id="pod-0"), 5)  # the former is not waited for
        assert kafka.members() == [after.member_id] != [before.member_id]
        with pytest.raises(Refused) as fenced:
            kafka.heartbeat(before, "pod-0")
        assert fenced.value.code == FENCED_INSTANCE_ID
        with pytest.raises(Refused) as fenced:
            await kafka.sync(before, instance_id="pod-0")
        assert fenced.value.code == FENCED_INSTANCE_ID
        await kafka.groups.leave(G, "", "pod-0")  # an administrator names the instance alone
        assert kafka.world.groups.plan_state(G) is None


async def test_a_round_chooses_what_all_know_and_refuses_who_has_nothing_in_common() -> None:
    async with _kafka() as kafka:
        one = await kafka.first(protocols=("cooperative-sticky", "range"))
        newcomer = kafka.join(protocols=("range",))
        await asyncio.sleep(0.05)
        with pytest.raises(Refused) as refused:
            await kafka.join(protocols=("roundrobin",))
        assert refused.value.code == INCONSISTENT_PROTOCOL
        again, came = await asyncio.gather(
            kafka.join(one.member_id, protocols=("cooperative-sticky", "range")), newcomer
        )
        assert again.protocol_name == came.protocol_name == "range"


async def test_only_who_has_nothing_in_common_with_those_who_came_before_it_in_a_round_is_refused() -> None:
    async with _kafka() as kafka:
        good = [kafka.join(protocols=("range", "sticky")) for _ in range(2)]
        bad = [kafka.join(protocols=("roundrobin",))]
        joined = await asyncio.gather(*good)
        assert {one.protocol_name for one in joined} == {"range"}
        again = kafka.join(joined[0].member_id, protocols=("sticky",))
        await asyncio.sleep(0)
        bad += [kafka.join(protocols=("range",))]  # which all had in common before this round
        last = await kafka.join(joined[1].member_id, protocols=("range", "sticky"))
        assert last.protocol_name == (await again).protocol_name == "sticky"
        for one in bad:
            with pytest.raises(Refused) as refused:
                await asyncio.wait_for(one, PATIENCE_S)
            assert refused.value.code == INCONSISTENT_PROTOCOL
        assert len(kafka.members()) == 2


async def test_who_has_nothing_in_common_with_a_round_that_is_being_made_durable_is_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with _kafka() as kafka:
        begin_round, begins, is_durable = kafka.world.groups.begin_round, asyncio.Event(), asyncio.Event()

        async def slow(*asked: Any) -> Any:
            begins.set()
            await is_durable.wait()
            return await begin_round(*asked)

        monkeypatch.setattr(kafka.world.groups, "begin_round", slow)
        one = kafka.join(protocols=("range",))
        await asyncio.wait_for(begins.wait(), PATIENCE_S)
        with pytest.raises(Refused) as refused:
            await asyncio.wait_for(kafka.join(protocols=("sticky",)), PATIENCE_S)
        assert refused.value.code == INCONSISTENT_PROTOCOL
        is_durable.set()
        assert (await one).protocol_name == "range"


async def test_with_a_member_that_is_not_kafka_s_the_server_assigns() -> None:
    async with _kafka() as kafka:
        one = await kafka.first()
        _, share = await kafka.world.groups.join(G, "plain", ORDERS)
        assert share.assigned == ()  # the Kafka member has both until it has given one up
        with pytest.raises(Refused) as told:
            kafka.heartbeat(one)
        assert told.value.code == REBALANCE_IN_PROGRESS
        again = await asyncio.wait_for(kafka.join(one.member_id), 5)
        assert (again.leader, again.members) == ("mq", ())
        own = await kafka.sync(again)
        kafka.heartbeat(again)
        [plain] = [v.share for v in kafka.world.groups.describe(G).members if v.member.member_id == "plain"]
        [theirs] = plain.assigned
        assert own == kafka.share(1 - theirs.partition)
        given_up = OffsetCommit("orders", theirs.partition, 0)
        with pytest.raises(StaleGeneration):
            await kafka.world.groups.commit(G, [given_up], MemberKey(again.member_id, again.generation))


async def test_closing_tells_those_that_wait_to_look_for_another_server() -> None:
    async with _kafka() as kafka:
        await kafka.first()
        waiting = kafka.join()
        await asyncio.sleep(0.05)
        await kafka.groups.close()
        with pytest.raises(Refused) as told:
            await asyncio.wait_for(waiting, PATIENCE_S)
        assert told.value.code == NOT_COORDINATOR


async def test_what_was_kept_of_a_group_that_goes_is_forgotten_and_who_waits_in_it_is_told() -> None:
    async with _kafka() as kafka:
        one, two = await kafka.two()
        waits: list[Callable[[], asyncio.Task[Any]]] = [lambda: asyncio.create_task(kafka.sync(two)), kafka.join]
        for wait in waits:
            waiting = wait()
            await asyncio.sleep(0.05)
            kafka.groups.forget(G)
            with pytest.raises(Refused) as told:
                await asyncio.wait_for(waiting, PATIENCE_S)
            assert told.value.code == NOT_COORDINATOR
            assert kafka.groups._states == {}
        kafka.groups.forget(G)
        await kafka.sync(one, {one.member_id: kafka.share(0, 1)})  # as on the node that has it then: members go on


async def test_ids_that_were_given_out_and_not_come_back_with_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "PENDING_MAX", 2)
    async with _kafka() as kafka:
        given = []
        for _ in range(3):
            with pytest.raises(Refused) as told:
                await kafka.join(needs_id=True)
            assert told.value.code == MEMBER_ID_REQUIRED
            given.append(told.value.member_id)
        with pytest.raises(Refused) as unknown:  # n + 1: the first of them is forgotten
            await kafka.join(given[0], needs_id=True)
        assert unknown.value.code == UNKNOWN_MEMBER_ID
        one, two = await asyncio.gather(*(kafka.join(id_, needs_id=True) for id_ in given[1:]))
        assert sorted([one.member_id, two.member_id]) == sorted(given[1:])


async def test_of_groups_that_nobody_comes_into_nothing_is_kept_but_the_ids_that_were_given_out_last(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module, "PENDING_MAX", 2)
    async with _kafka() as kafka:
        given = []
        for number in range(3):
            with pytest.raises(Refused) as told:
                await kafka.join(needs_id=True, group=f"made-up-{number}")
            given.append(told.value.member_id)
        assert kafka.groups._states == {}
        assert list(kafka.groups._pending) == given[1:]
        with pytest.raises(Refused) as unknown:  # given out for another group
            await kafka.join(given[2], needs_id=True, group="made-up-1")
        assert unknown.value.code == UNKNOWN_MEMBER_ID
        assert (await kafka.join(given[2], needs_id=True, group="made-up-2")).member_id == given[2]
        with pytest.raises(Refused):
            await kafka.groups.leave("made-up-1", given[1], None)
        assert not kafka.groups._pending


async def test_a_cooperative_member_keeps_what_the_new_assignment_leaves_it() -> None:
    async with _kafka() as kafka:
        one = await kafka.first(protocols=("cooperative-sticky",))
        newcomer = kafka.join(protocols=("cooperative-sticky",))
        await asyncio.sleep(0)
        again = await kafka.join(one.member_id, protocols=("cooperative-sticky",))
        came = await newcomer
        leader, follower = (again, came) if again.leader == again.member_id else (came, again)
        # First round: what is to move goes to nobody, so that its owner gives it up.
        shares = {again.member_id: kafka.share(0), came.member_id: kafka.share()}
        await kafka.sync(leader, shares)
        assert await kafka.sync(follower) == shares[follower.member_id]
        kafka.heartbeat(again)
        # Second round: it goes to the newcomer; the other partition has never been anybody else's.
        joining = kafka.join(came.member_id, protocols=("cooperative-sticky",))
        await asyncio.sleep(0)
        again = await kafka.join(again.member_id, protocols=("cooperative-sticky",))
        came = await joining
        leader, follower = (again, came) if again.leader == again.member_id else (came, again)
        shares = {again.member_id: kafka.share(0), came.member_id: kafka.share(1)}
        await kafka.sync(leader, shares)
        assert await kafka.sync(follower) == shares[follower.member_id]
        for member, partition in ((again, 0), (came, 1)):
            key = MemberKey(member.member_id, member.generation)
            await kafka.world.groups.commit(G, [OffsetCommit("orders", partition, 0)], key)
            with pytest.raises(StaleGeneration):
                await kafka.world.groups.commit(G, [OffsetCommit("orders", 1 - partition, 0)], key)
