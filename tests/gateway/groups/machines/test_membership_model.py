"""Members that join, hang, come back, and lie about their generation, against what a partition's owner may see.

The model is the other side: processes, each with what it was last told. A process works on a partition from being told
that it is assigned until it releases it; when its session ends it goes on, because it does not know. At any time

    one       of the processes whose session lives, at most one works on a partition
    fenced    a commit is accepted only from the last process that was assigned the partition, and only if it knows that
    lost      once everybody has been heard and has released what it should, every wanted partition has an owner
    replay    the log, and the snapshot, lead another machine to the same state
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import cast

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from gateway.groups.machines.config import GroupConfig
from gateway.groups.machines.errors import GroupError, StaleGeneration, UnknownMember
from gateway.groups.machines.events import MembershipEvent, PartitionsAssigned, decode_events, encode_event
from gateway.groups.machines.membership import Membership
from gateway.groups.machines.strategies.averagely import Averagely
from gateway.groups.machines.strategies.base import Partition, Strategy
from gateway.groups.machines.strategies.consistent_hash import ConsistentHash
from gateway.groups.machines.strategies.sticky import Sticky
from gateway.groups.machines.subscription import Subscription
from tests.gateway.groups.machines.topic_view import FakeTopic

CONFIG = GroupConfig(session_timeout_ms=10_000, drain_timeout_ms=15_000)
SUBSCRIPTIONS = [Subscription(frozenset(("a",))), Subscription(frozenset(("a", "b"))), Subscription(pattern="[ab]")]
STRATEGIES: list[Strategy | None] = [Sticky(), Averagely(), ConsistentHash(), None]


@dataclass
class Process:
    """A consumer: its id, the generation it last heard of, and what it works on."""

    member_id: str
    generation: int
    works_on: set[Partition] = field(default_factory=set)
    to_release: set[Partition] = field(default_factory=set)


class MembershipModel(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.now_ms = 0
        self.topics = [FakeTopic("a", 16, 3), FakeTopic("b", 17, 2)]
        self.log: list[bytes] = []
        self.processes: list[Process] = []
        self.of_session: dict[str, Process] = {}  # the process that joined last under an id
        self.last_assigned: dict[Partition, tuple[Process, int]] = {}  # and in which generation
        self.assigned_in: set[tuple[Partition, int]] = set()
        self.strategy: Strategy | None = STRATEGIES[0]
        self.machine = Membership("g", CONFIG, self.strategy)

    def write(self, events: list[MembershipEvent]) -> None:
        for event in events:
            self.log.append(encode_event(event))
            self.machine.apply(event, self.now_ms)
            if isinstance(event, PartitionsAssigned):
                for partition in event.partitions:
                    assert (partition, event.generation) not in self.assigned_in, "M2"
                    self.assigned_in.add((partition, event.generation))
                    self.last_assigned[partition] = (self.of_session[event.member_id], event.generation)

    def hear(self, process: Process) -> None:
        """A heartbeat, and what the process makes of the answer."""
        try:
            share = self.machine.heartbeat(process.member_id, process.generation, self.now_ms)
        except (UnknownMember, StaleGeneration):
            process.works_on.clear()
            process.to_release.clear()
            return
        process.generation = share.generation
        process.works_on |= set(share.assigned)
        process.to_release = set(share.revoking)
        if share.is_asked:
            names = [member.member_id for member in self.machine.members()]
            every = [partition for topic in self.topics for partition in topic.every()]
            shares = {name: tuple(every[index :: len(names)]) for index, name in enumerate(names)}
            self.write(self.machine.decide_assign(process.member_id, share.generation, shares, self.topics))

    def release(self, process: Process) -> None:
        released = process.to_release
        process.works_on -= released
        process.to_release = set()
        self.write(self.machine.decide_release(process.member_id, process.generation, sorted(released), self.topics))

    @precondition(lambda self: not self.log)
    @rule(strategy=st.sampled_from(STRATEGIES))
    def choose(self, strategy: Strategy | None) -> None:
        self.strategy = strategy
        self.machine = Membership("g", CONFIG, strategy)

    @rule(name=st.sampled_from(["m1", "m2", "m3", "m4"]), subscription=st.sampled_from(SUBSCRIPTIONS))
    def join(self, name: str, subscription: Subscription) -> None:
        process = Process(name, 0)
        events = self.machine.decide_join(name, subscription, self.topics)
        self.of_session[name] = process
        self.write(events)
        process.generation = self.machine.generation
        self.processes.append(process)

    @precondition(lambda self: self.processes)
    @rule(data=st.data(), subscription=st.sampled_from(SUBSCRIPTIONS))
    def join_again(self, data: st.DataObject, subscription: Subscription) -> None:
        process = data.draw(st.sampled_from(self.processes))
        if process.member_id in {member.member_id for member in self.machine.members()}:
            try:
                self.write(
                    self.machine.decide_join(
                        process.member_id, subscription, self.topics, generation=process.generation
                    )
                )
            except StaleGeneration:
                assert self.of_session[process.member_id] is not process

    @precondition(lambda self: self.processes)
    @rule(data=st.data())
    def heartbeat(self, data: st.DataObject) -> None:
        self.hear(data.draw(st.sampled_from(self.processes)))

    @precondition(lambda self: self.processes)
    @rule(data=st.data(), everything=st.booleans())
    def drain(self, data: st.DataObject, everything: bool) -> None:
        """With `everything` it releases what it was not asked for too, what others own included."""
        process = data.draw(st.sampled_from(self.processes))
        if everything:
            process.to_release = {partition for topic in self.topics for partition in topic.every()}
        try:
            self.release(process)
        except GroupError:
            assert not self.lives(process)

    @precondition(lambda self: self.processes)
    @rule(data=st.data())
    def leave(self, data: st.DataObject) -> None:
        process = data.draw(st.sampled_from(self.processes))
        try:
            self.write(self.machine.decide_leave(process.member_id, process.generation, self.topics))
        except GroupError:
            assert not self.lives(process)
        process.works_on.clear()
        self.processes.remove(process)

    @precondition(lambda self: self.processes)
    @rule(data=st.data(), number=st.integers(0, 4))
    def commit(self, data: st.DataObject, number: int) -> None:
        process = data.draw(st.sampled_from(self.processes))
        partition = [partition for topic in self.topics for partition in topic.every()][number]
        try:
            self.machine.check_owner(process.member_id, process.generation, [partition])
        except GroupError:
            assert partition not in process.works_on or not self.lives(process)
        else:
            last, generation = self.last_assigned[partition]
            assert last is process
            assert process.generation >= generation
            assert self.lives(process)

    @rule(ms=st.integers(1, 8_000))
    def time_passes(self, ms: int) -> None:
        self.now_ms += ms
        self.write(self.machine.decide_expiry(self.topics, self.now_ms))

    @rule(partitions=st.integers(2, 5))
    def topic_grows(self, partitions: int) -> None:
        self.topics[1] = FakeTopic("b", 17, max(self.topics[1].partitions, partitions))
        self.write(self.machine.decide_rebalance(self.topics))

    @rule(from_snapshot=st.booleans())
    def restart(self, from_snapshot: bool) -> None:
        before = list(self.machine.snapshot())
        if from_snapshot:
            self.log = [encode_event(event) for event in before]
        machine = Membership("g", CONFIG, self.strategy)
        for event in decode_events(self.log):
            machine.apply(cast(MembershipEvent, event), self.now_ms)
        assert list(machine.snapshot()) == before
        assert machine.generation == self.machine.generation
        self.machine = machine

    @rule()
    def settle(self) -> None:
        """Everybody is heard and releases; then nothing is missing, and nothing more to do."""
        for _ in range(4):
            for process in list(self.of_session.values()):
                if self.lives(process):
                    self.hear(process)
            for process in list(self.of_session.values()):
                if self.lives(process) and process.to_release:
                    self.release(process)
        assert self.machine.decide_rebalance(self.topics) == []
        wanted = {
            partition
            for topic in self.topics
            if any(member.subscription.matches(topic.name) for member in self.machine.members())
            for partition in topic.every()
        }
        if self.strategy is None:  # growth is the leader's to notice
            wanted = set()
        owned = {p for member in self.machine.members() for p in self.machine.share(member.member_id).assigned}
        assert wanted <= owned
        assert not any(self.machine.share(member.member_id).revoking for member in self.machine.members())

    def lives(self, process: Process) -> bool:
        return self.of_session.get(process.member_id) is process and any(
            member.member_id == process.member_id for member in self.machine.members()
        )

    @invariant()
    def at_most_one_living_process_works_on_a_partition(self) -> None:
        working = [partition for process in self.processes if self.lives(process) for partition in process.works_on]
        assert len(working) == len(set(working))


MembershipModel.TestCase.settings = settings(max_examples=150, stateful_step_count=40, deadline=None)
TestMembershipModel = MembershipModel.TestCase
