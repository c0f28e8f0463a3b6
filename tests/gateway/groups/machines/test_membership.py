"""Membership by example: hand-over, fencing, expiry, assignment by a member. Beside it: test_membership_model.py."""

from __future__ import annotations

import logging
import time
from collections.abc import Sequence
from typing import cast

import pytest

from gateway.groups.machines.config import GroupConfig
from gateway.groups.machines.errors import GroupActive, GroupFull, IllegalRequest, StaleGeneration, UnknownMember
from gateway.groups.machines.events import (
    AssignmentAsked,
    MemberJoined,
    MemberLeft,
    MembershipEvent,
    PartitionsAssigned,
    Rebalanced,
    decode_events,
    encode_event,
)
from gateway.groups.machines.membership import (
    ASSIGNMENT_EXPIRED,
    DRAIN_EXPIRED,
    MEMBER_ID_BYTES_MAX,
    METADATA_BYTES_MAX,
    REPLACED,
    ROUND_EXPIRED,
    SESSION_EXPIRED,
    Join,
    Membership,
    PlanState,
)
from gateway.groups.machines.strategies.averagely import Averagely
from gateway.groups.machines.strategies.base import Assignment, Partition, Strategy
from gateway.groups.machines.strategies.sticky import Sticky
from gateway.groups.machines.subscription import Subscription
from loadtest.slowness import slowness
from tests.gateway.groups.machines.topic_view import FakeTopic

ORDERS = FakeTopic("orders", 16, 2)
P0, P1 = ORDERS.every()
WANTS = Subscription(frozenset(("orders",)))


class Group:
    """A membership with its shell's duties: what is decided is written and applied at once."""

    def __init__(self, strategy: Strategy | None, config: GroupConfig | None = None) -> None:
        self.config = config or GroupConfig()
        self.strategy = strategy
        self.machine = Membership("g", self.config, strategy)
        self.topics: list[FakeTopic] = [ORDERS]
        self.log: list[MembershipEvent] = []
        self.now_ms = 0

    def do(self, events: Sequence[MembershipEvent]) -> list[MembershipEvent]:
        for event in events:
            self.machine.apply(event, self.now_ms)
        self.log += events
        return list(events)

    def join(self, member_id: str, generation: int | None = None, wants: Subscription = WANTS) -> int:
        self.do(self.machine.decide_join(member_id, wants, self.topics, generation=generation))
        return self.machine.generation

    def release(self, member_id: str, *partitions: Partition) -> list[MembershipEvent]:
        generation = self.machine.generation
        return self.do(self.machine.decide_release(member_id, generation, partitions, self.topics))

    def assigned(self, member_id: str) -> tuple[Partition, ...]:
        return self.machine.share(member_id).assigned

    def revoking(self, member_id: str) -> tuple[Partition, ...]:
        return self.machine.share(member_id).revoking

    def pass_ms(self, ms: int) -> list[MembershipEvent]:
        self.now_ms += ms
        return self.do(self.machine.decide_expiry(self.topics, self.now_ms))

    def restarted(self) -> Membership:
        """A machine that has read the log."""
        machine = Membership("g", self.config, self.strategy)
        for event in decode_events([encode_event(event) for event in self.log]):
            machine.apply(cast(MembershipEvent, event), self.now_ms)
        return machine


@pytest.fixture
def group() -> Group:
    return Group(Sticky())


def test_a_partition_moves_by_revoke_drain_and_assign(group: Group) -> None:
    first = group.join("m1")
    assert group.assigned("m1") == (P0, P1)
    group.join("m2")
    assert (group.assigned("m1"), group.revoking("m1"), group.assigned("m2")) == ((P0,), (P1,), ())
    group.machine.check_owner("m1", first, [P1])  # what it drains it may commit
    group.release("m1", P1)
    assert group.assigned("m2") == (P1,)
    with pytest.raises(StaleGeneration):
        group.machine.check_owner("m1", group.machine.generation, [P1])
    group.machine.check_owner("m1", first, [P0])  # which never moved
    group.machine.check_owner("m2", group.machine.generation, [P1])


def test_hundreds_that_go_together_cost_what_each_has_and_not_what_the_group_has() -> None:
    """Each that left looked at every partition three times: with these numbers two seconds of the event loop."""
    members, wide = 1_000, FakeTopic("orders", 16, 10_000)
    group = Group(Averagely())
    group.topics = [wide]
    joins = [Join(f"m{number:04d}", WANTS, None, None, b"") for number in range(members)]
    events, _ = group.machine.decide_joins(joins, [wide])
    generation = group.do(events) and group.machine.generation
    left = [MemberLeft("g", f"m{number:04d}", "left") for number in range(members - 1)]
    began_s = time.thread_time()
    group.do(left)
    taken_s = time.thread_time() - began_s
    assert taken_s < 0.3 * slowness()
    assert group.assigned("m0999") == wide.every()[-10:]
    assert group.machine.share("m0999").generation == generation
    assert group.machine.assigned_count == 10


def test_only_what_is_revoked_can_be_released(group: Group) -> None:
    group.join("m1")
    group.join("m2")
    assert group.release("m1", P0) == []
    assert group.release("m2", P1) == []
    assert group.assigned("m1") == (P0,)


def test_a_leaving_member_frees_its_partitions_at_once(group: Group) -> None:
    group.join("m1")
    generation = group.join("m2")
    group.do(group.machine.decide_leave("m1", generation, group.topics))
    assert group.assigned("m2") == (P0, P1)
    with pytest.raises(UnknownMember):
        group.machine.check_owner("m1", generation, [P0])


def test_a_session_ends_after_its_timeout_and_not_before(group: Group) -> None:
    group.join("m1")
    generation = group.join("m2")
    group.pass_ms(20_000)
    group.machine.heartbeat("m2", generation, group.now_ms)
    assert group.machine.next_deadline_ms() == 30_000
    assert group.pass_ms(10_000) == []
    assert group.pass_ms(1)[0] == MemberLeft("g", "m1", SESSION_EXPIRED)
    assert group.assigned("m2") == (P0, P1)


def test_a_member_that_does_not_drain_is_put_out(group: Group) -> None:
    generation = group.join("m1")
    group.join("m2")
    for _ in range(6):
        group.machine.heartbeat("m1", generation, group.now_ms)
        group.machine.heartbeat("m2", group.machine.generation, group.now_ms)
        assert group.pass_ms(10_000) == []
    assert group.pass_ms(1)[0] == MemberLeft("g", "m1", DRAIN_EXPIRED)
    assert group.assigned("m2") == (P0, P1)


def test_a_process_that_is_replaced_under_its_id_is_refused(group: Group) -> None:
    before = group.join("m1")
    after = group.join("m1")  # says no generation: it is a new process
    assert group.log[-4:-2] == [
        MemberLeft("g", "m1", REPLACED),
        MemberJoined("g", "m1", ("orders",), None, 30_000, after),
    ]
    assert group.assigned("m1") == (P0, P1)
    with pytest.raises(StaleGeneration):
        group.machine.heartbeat("m1", before, 0)
    with pytest.raises(StaleGeneration):
        group.machine.check_owner("m1", before, [P0])
    with pytest.raises(StaleGeneration):
        group.join("m1", before)
    group.machine.check_owner("m1", after, [P0])


def test_a_member_that_comes_again_the_same_changes_nothing(group: Group) -> None:
    generation = group.join("m1")
    assert group.machine.decide_join("m1", WANTS, group.topics, generation=generation) == []


def test_a_generation_that_is_yet_to_come_is_refused(group: Group) -> None:
    generation = group.join("m1")
    with pytest.raises(StaleGeneration):
        group.machine.heartbeat("m1", generation + 1, 0)


def test_a_change_of_subscription_moves_only_what_it_must(group: Group) -> None:
    payments = FakeTopic("payments", 17, 1)
    group.topics.append(payments)
    generation = group.join("m1")
    assert group.assigned("m1") == (P0, P1)
    group.join("m1", generation, Subscription(pattern="(orders|pay.*)"))
    assert group.assigned("m1") == (P0, P1, *payments.every())
    group.machine.check_owner("m1", generation, [P0])
    group.join("m1", generation, Subscription(frozenset(("payments",))))
    assert (group.assigned("m1"), group.revoking("m1")) == (payments.every(), (P0, P1))


def test_the_periodic_check_finds_new_partitions_and_otherwise_nothing(group: Group) -> None:
    group.join("m1")
    assert group.machine.decide_rebalance(group.topics) == []
    group.topics = [FakeTopic("orders", 16, 3)]
    group.do(group.machine.decide_rebalance(group.topics))
    assert len(group.assigned("m1")) == 3
    assert group.machine.decide_rebalance(group.topics) == []


def test_a_topic_created_again_is_another_topic(group: Group) -> None:
    group.join("m1")
    group.topics = [FakeTopic("orders", 18, 1)]
    group.do(group.machine.decide_rebalance(group.topics))
    assert group.assigned("m1") == (Partition("orders", 18, 0),)
    assert group.revoking("m1") == (P0, P1)


class Broken:
    """A plug-in that fails when told to."""

    name = "broken"
    fails = False

    def allocate(self, members: Sequence[str], partitions: Sequence[Partition], current: Assignment) -> Assignment:
        if self.fails:
            raise RuntimeError("no luck")
        return Averagely().allocate(members, partitions, current)


def test_a_strategy_that_fails_leaves_the_assignment_as_it_is(caplog: pytest.LogCaptureFixture) -> None:
    strategy = Broken()
    group = Group(strategy)
    group.join("m1")
    strategy.fails = True
    with caplog.at_level(logging.ERROR):
        generation = group.join("m2")
    assert "group=g strategy=broken failed" in caplog.text
    assert group.assigned("m1") == (P0, P1)
    group.do(group.machine.decide_leave("m1", generation, group.topics))
    assert group.assigned("m2") == ()
    strategy.fails = False
    group.do(group.machine.decide_rebalance(group.topics))
    assert group.assigned("m2") == (P0, P1)


def test_limits_are_kept() -> None:
    group = Group(Sticky(), GroupConfig(members_max=1))
    group.join("m" * MEMBER_ID_BYTES_MAX)
    with pytest.raises(GroupFull):
        group.join("m2")
    machine = Membership("g", GroupConfig(), Sticky())
    for member_id in ("", "m" * (MEMBER_ID_BYTES_MAX + 1)):
        with pytest.raises(IllegalRequest):
            machine.decide_join(member_id, WANTS, [])
    assert machine.decide_join("m1", WANTS, [], metadata=b"x" * METADATA_BYTES_MAX)
    with pytest.raises(IllegalRequest):
        machine.decide_join("m1", WANTS, [], metadata=b"x" * (METADATA_BYTES_MAX + 1))
    for timeout_ms in (999, 1_800_001):
        with pytest.raises(IllegalRequest):
            machine.decide_join("m1", WANTS, [], session_timeout_ms=timeout_ms)


def test_a_group_with_members_is_not_deletable(group: Group) -> None:
    generation = group.join("m1")
    with pytest.raises(GroupActive):
        group.machine.check_deletable()
    group.do(group.machine.decide_leave("m1", generation, group.topics))
    group.machine.check_deletable()


def test_sessions_survive_a_restart_and_begin_anew(group: Group) -> None:
    generation = group.join("m1")
    group.join("m2")
    group.now_ms += 25_000
    machine = group.restarted()
    assert list(machine.snapshot()) == list(group.machine.snapshot())
    assert machine.share("m1") == group.machine.share("m1")
    assert machine.next_deadline_ms() == 55_000
    machine.check_owner("m1", generation, [P0, P1])


def test_a_member_can_compute_the_assignment() -> None:
    group = Group(None)
    group.join("m1")
    generation = group.join("m2")
    assert group.log[-1] == AssignmentAsked("g", generation, "m1")
    assert (group.machine.share("m1").is_asked, group.machine.share("m2").is_asked) == (True, False)
    shares = {"m1": (P1,), "m2": (P0,)}
    with pytest.raises(StaleGeneration):
        group.machine.decide_assign("m2", generation, shares, group.topics)
    events = group.machine.decide_assign("m1", generation, shares, group.topics, notes={"m2": b"\x00\xff"})
    group.do(events)
    assert events[0] == Rebalanced("g", generation, shares, {"m2": b"\x00\xff"})
    assert (group.assigned("m1"), group.assigned("m2")) == ((P1,), (P0,))
    assert group.machine.share("m2").note == b"\x00\xff"
    with pytest.raises(StaleGeneration):  # it has answered
        group.machine.decide_assign("m1", generation, shares, group.topics)
    assert list(group.restarted().snapshot()) == list(group.machine.snapshot())


def test_while_a_member_is_asked_eager_members_may_release_and_others_keep() -> None:
    group = Group(None)
    first = group.join("m1")
    group.do(group.machine.decide_assign("m1", first, {"m1": (P0, P1)}, group.topics))
    second = group.join("m2")
    assert group.revoking("m1") == (P0, P1)
    group.release("m1", P1)
    group.do(group.machine.decide_assign("m1", second, {"m1": (P0,), "m2": (P1,)}, group.topics))
    assert (group.assigned("m1"), group.revoking("m1"), group.assigned("m2")) == ((P0,), (), (P1,))
    group.machine.check_owner("m1", first, [P0])  # it never lost it


def test_a_leader_that_owes_its_answer_is_put_out() -> None:
    group = Group(None, GroupConfig(session_timeout_ms=100_000))
    group.join("m1")
    generation = group.join("m2")
    assert group.machine.next_deadline_ms() == 60_000
    assert group.pass_ms(60_000) == []
    events = group.pass_ms(1)
    assert events == [MemberLeft("g", "m1", ASSIGNMENT_EXPIRED), AssignmentAsked("g", generation + 1, "m2")]


@pytest.mark.parametrize(
    "shares",
    [{"m1": (P0,), "m2": (P0,)}, {"m3": (P0,)}, {"m1": (Partition("orders", 16, 2),)}],
    ids=["two owners", "a stranger", "no such partition"],
)
def test_an_illegal_assignment_of_a_leader_is_refused(shares: dict[str, tuple[Partition, ...]]) -> None:
    group = Group(None)
    group.join("m1")
    generation = group.join("m2")
    with pytest.raises(IllegalRequest):
        group.machine.decide_assign("m1", generation, shares, group.topics)
    with pytest.raises(IllegalRequest):
        group.machine.decide_assign("m1", generation, {}, group.topics, notes={"m3": b""})
    with pytest.raises(IllegalRequest):
        group.machine.decide_assign("m1", generation, {}, group.topics, notes={"m2": b"x" * (METADATA_BYTES_MAX + 1)})


def test_assigned_partitions_carry_the_generation_as_fencing_number(group: Group) -> None:
    group.join("m1")
    assert group.log[-1] == PartitionsAssigned("g", 1, "m1", (P0, P1))
    owner = group.machine.owner(P0)
    assert owner is not None
    assert (owner.member_id, owner.generation) == ("m1", 1)
    assert [member.member_id for member in group.machine.members()] == ["m1"]


def test_who_lost_a_partition_and_got_it_back_cannot_commit_what_it_did_before(group: Group) -> None:
    first = group.join("m1")
    group.join("m2")
    group.release("m1", P1)
    group.do(group.machine.decide_leave("m2", group.machine.generation, group.topics))
    assert group.assigned("m1") == (P0, P1)
    group.machine.check_owner("m1", first, [P0])
    with pytest.raises(StaleGeneration):
        group.machine.check_owner("m1", first, [P1])
    group.machine.check_owner("m1", group.machine.generation, [P1])


def test_nobody_commits_where_nobody_is_the_owner(group: Group) -> None:
    generation = group.join("m1")
    with pytest.raises(StaleGeneration):
        group.machine.check_owner("m1", generation, [P0, Partition("another", 99, 0)])


def test_releases_are_shared_out_without_asking_the_strategy_again(
    group: Group, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With 200 members each join is followed by as many releases."""
    group.join("m1")
    group.join("m2")
    monkeypatch.setattr(group.machine, "_wanted", None)
    group.release("m1", P1)
    assert group.assigned("m2") == (P1,)


def test_every_join_begins_a_generation_even_if_nothing_moves(group: Group) -> None:
    assert [group.join(member_id) for member_id in ("m1", "m2", "m3")] == [1, 2, 3]
    assert group.assigned("m3") == ()


def test_draining_begins_when_the_leader_has_said_what_moves() -> None:
    group = Group(None, GroupConfig(session_timeout_ms=500_000))
    first = group.join("m1")
    group.do(group.machine.decide_assign("m1", first, {"m1": (P0, P1)}, group.topics))
    second = group.join("m2")
    assert group.pass_ms(50_000) == []
    group.do(group.machine.decide_assign("m1", second, {"m1": (P0,), "m2": (P1,)}, group.topics))
    assert group.pass_ms(60_000) == []
    assert group.pass_ms(1)[0] == MemberLeft("g", "m1", DRAIN_EXPIRED)


# Members that plan


def _planners(*member_ids: str, generation: int | None = None) -> list[Join]:
    return [Join(member_id, WANTS, generation, plans=True) for member_id in member_ids]


def _round(group: Group, joins: list[Join], *leaving: str) -> list[MembershipEvent]:
    events, errors = group.machine.decide_joins(joins, group.topics, leaving=leaving, is_round=True)
    assert errors == [None] * len(joins)
    return group.do(events)


def test_while_all_members_plan_the_leader_is_asked_whatever_the_strategy(group: Group) -> None:
    _round(group, _planners("m1", "m2"))
    assert group.machine.plan_state() == PlanState(1, True, True, "m1")
    assert group.assigned("m1") == group.assigned("m2") == ()
    shares = {"m1": [P0], "m2": [P1]}
    group.do(group.machine.decide_assign("m1", 1, shares, group.topics, notes={"m2": b"yours"}))
    assert (group.assigned("m1"), group.assigned("m2")) == ((P0,), (P1,))
    assert group.machine.share("m2").note == b"yours"
    assert group.machine.plan_state() == PlanState(1, True, False, None)


def test_a_round_begins_a_generation_though_nothing_has_changed(group: Group) -> None:
    _round(group, _planners("m1"))
    assert group.machine.decide_joins(_planners("m1", generation=1), group.topics) == ([], [None])
    assert _round(group, _planners("m1", generation=1)) == [AssignmentAsked("g", 2, "m1")]


def test_who_is_not_in_a_round_is_put_out_and_its_partitions_wait_for_the_leader(group: Group) -> None:
    _round(group, _planners("m1", "m2"))
    group.do(group.machine.decide_assign("m1", 1, {"m1": [P0], "m2": [P1]}, group.topics))
    events = _round(group, _planners("m2", generation=1), "m1", "stranger")
    assert events == [MemberLeft("g", "m1", ROUND_EXPIRED), AssignmentAsked("g", 2, "m2")]
    assert group.assigned("m2") == ()  # nothing is known to stay until the leader has said so
    group.do(group.machine.decide_assign("m2", 2, {"m2": [P0]}, group.topics))
    assert group.assigned("m2") == (P0,)
    assert group.machine.owner(P1) is None  # not given: released by the assignment
    group.machine.check_owner("m2", 2, [P1])  # nobody has it since: what was done before may be committed


def test_one_member_that_does_not_plan_lets_the_strategy_decide(group: Group) -> None:
    _round(group, _planners("m1"))
    group.do(group.machine.decide_assign("m1", 1, {"m1": [P0, P1]}, group.topics))
    generation = group.join("plain")
    assert not group.machine.plan_state().is_planned
    assert (group.assigned("m1"), group.revoking("m1"), group.assigned("plain")) == ((P0,), (P1,), ())
    group.do(group.machine.decide_leave("plain", generation, group.topics))
    assert group.machine.plan_state() == PlanState(generation + 1, True, True, "m1")


def test_a_leader_that_plans_is_not_put_out_for_its_silence_about_the_assignment(group: Group) -> None:
    _round(group, _planners("m1"))
    group.now_ms = group.config.drain_timeout_ms + 1
    group.machine.heartbeat("m1", 1, group.now_ms)
    assert group.machine.decide_expiry(group.topics, group.now_ms) == []
    assert group.machine.next_deadline_ms() == group.now_ms + group.config.session_timeout_ms


def test_each_refusal_of_a_round_is_that_member_s_alone() -> None:
    group = Group(Sticky(), GroupConfig(members_max=2))
    events, errors = group.machine.decide_joins(_planners("m1", "m2", "m3"), group.topics, is_round=True)
    group.do(events)
    assert errors[:2] == [None, None]
    assert isinstance(errors[2], GroupFull)
    assert [member.member_id for member in group.machine.members()] == ["m1", "m2"]
    assert group.restarted().plan_state() == group.machine.plan_state()
