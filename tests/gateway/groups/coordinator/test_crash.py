"""Groups at work on a disk that loses power at any moment, in both modes, against a model of a few lines.

Covers gateway.groups.coordinator.service, event_log, settling, copies, stream, offsets. What must hold:

    Q1  a record whose ack was answered is never handed out again, but for one whose nack the crash interrupted: it and
        its copy may both be there. (A late ack, of a delivery that was nacked or followed by another, is no such ack.)
    Q2  a record on lease is handed to nobody else before the lease ends; a kill -9 ends no lease (a power cut may)
    Q3  no record is lost: each is acked, a dead letter, or handed out in the end
    Q4  a rejected record is a dead letter in the end
    S1  a commit that was answered is there after any crash; what is there was committed
    S2  one owner for a partition in a generation, over all restarts; the generation never goes back
    S3  a member that was put out, or owns a partition no more, cannot commit there
    B1  a group that begins at the end gets every record that is sent after its first receive was answered, in whichever
        partition, also in those that are added later
    E1  a kill -9 changes nothing: the state after it is the state before, whatever was done to groups, by many at once
    L1  in the log itself: one owner a partition at any time, assigned once in a generation, generations only grow

Every run is a seed; a failure names it. `MQ_GROUP_RUNS` sets how many are tried.
"""

from __future__ import annotations

import asyncio
import os
from contextlib import suppress
from dataclasses import dataclass, field, replace
from random import Random

import pytest

from gateway.groups.machines.copies import dead_letter_topic
from gateway.groups.machines.errors import GroupError, StaleGeneration, UnknownMember
from gateway.groups.machines.events import (
    Event,
    LightCommitted,
    MemberLeft,
    PartitionsAssigned,
    PartitionsReleased,
    Rebalanced,
    decode_events,
    encode_event,
)
from gateway.groups.machines.membership import Share
from gateway.groups.machines.progress import Start
from gateway.groups.machines.strategies.base import Partition
from gateway.groups.protocol import Delivered, MemberKey, OffsetCommit, TopicPartition
from store import record_batch
from store.errors import StoreError, UnknownQueue
from store.topics import OFFSETS_QUEUE
from store.types import QueueKey
from tests.gateway.groups.coordinator.world import ORDERS, World, wanting
from tests.simdb import simulated_database
from tests.simdisk import PowerCut, SimDisk
from tests.store.kit import SMALL, abandon

RUNS = int(os.environ.get("MQ_GROUP_RUNS", "60"))
OPERATIONS = 50
PARTITIONS = 3
NOTHING = -1
PARTITIONS_MAX = 6
QUEUE, STREAM, LATE, SCRATCH = "q", "s", "late", "scratch"
SETTINGS = {"max_attempts": 4, "retry_through_timer_ms": 500, "drain_timeout_ms": 2_000, "session_timeout_ms": 3_000}


@dataclass
class Model:
    """What clients know."""

    sent: set[bytes] = field(default_factory=set)
    acked: set[bytes] = field(default_factory=set)
    maybe_acked: set[bytes] = field(default_factory=set)
    maybe_twice: set[bytes] = field(default_factory=set)
    rejected: set[bytes] = field(default_factory=set)
    on_lease: dict[bytes, int] = field(default_factory=dict)  # until when, as far as a kill -9 keeps it
    newest: dict[bytes, str] = field(default_factory=dict)  # the receipt of a value's last delivery, until given back
    held: list[Delivered] = field(default_factory=list)
    committed: dict[int, set[int]] = field(default_factory=dict)  # offsets that may be there, by partition
    members: dict[str, Share] = field(default_factory=dict)  # what each last heard
    owners: dict[tuple[Partition, int], str] = field(default_factory=dict)
    generation: int = 0
    late_sent: set[bytes] = field(default_factory=set)  # after the late group's first receive was answered
    late_got: set[bytes] = field(default_factory=set)
    has_late_begun: bool = False


class Run:
    """One random history; of records in a light queue and of leases there, if `inbox` names one."""

    def __init__(self, seed: int, inbox: str | None = None) -> None:
        self.rng = Random(seed)
        self.inbox = inbox
        self.world = World(SimDisk(), SMALL if inbox is None else replace(SMALL, index="rocksdb"))
        self.model = Model()
        self.number = 0
        self.committing = asyncio.Lock()

    async def begin(self) -> None:
        await self.world.start()
        await self.world.topic(partitions=PARTITIONS)
        for group in (QUEUE, STREAM):
            await self.world.groups.configure(group, {**SETTINGS, "fifo": False})

    async def live(self) -> None:
        rng = self.rng
        steps = [self.send, self.receive, self.ack, self.nack, self.reject, self.give_back, self.extend]
        steps += (self.join, self.leave, self.release, self.commit, self.tick, self.save, self.receive, self.ack)
        steps += (self.receive_late, self.grow, *[self.scratch] * 3)
        for _ in range(OPERATIONS):
            dice = rng.random()
            if dice < 0.06:
                before = self.state()
                await self.world.kill()
                if not await self.restart(is_power_cut=False):
                    assert self.state() == before, "E1"
            elif dice < 0.09:
                await self.world.stop()
                await self.restart(is_power_cut=False)
            elif dice < 0.2 and not self.world.disk.is_dark:
                self.world.disk.cut_power_at(rng.randrange(1, 25))
            else:
                work = [rng.choice(steps)() for _ in range(rng.choice((1, 1, 2, 4)))]
                outcomes = await asyncio.gather(*work, return_exceptions=True)
                for outcome in outcomes:
                    if isinstance(outcome, BaseException) and not isinstance(outcome, StoreError | OSError):
                        raise outcome
                if any(isinstance(outcome, StoreError | OSError) for outcome in outcomes):
                    assert self.world.disk.is_dark, outcomes
            if self.world.disk.is_dark:
                await abandon()
                self.world.disk = self.world.disk.crash(rng)
                await self.restart(is_power_cut=True)
            self.check_owners()

    async def restart(self, *, is_power_cut: bool) -> bool:
        """Start again; whether the power was cut before, or meanwhile."""
        model = self.model
        self.committing = asyncio.Lock()
        while True:
            try:
                await self.world.start()
                break
            except (StoreError, PowerCut):
                assert self.world.disk.is_dark
                await abandon()
                self.world.disk = self.world.disk.crash(self.rng)
                is_power_cut = True
        if is_power_cut:
            model.on_lease.clear()
            model.held.clear()  # leases may be gone, and given anew under the same numbers
        partitions = [TopicPartition("orders", number) for number in range(PARTITIONS)]
        for committed in await self.world.groups.committed(STREAM, partitions):
            found = NOTHING if committed.offset is None else committed.offset
            allowed = model.committed.get(committed.partition, {NOTHING})
            assert found in allowed, f"S1: {committed}, which is not one of {allowed}"
            model.committed[committed.partition] = {found}
        self.check_owners()
        return is_power_cut

    def check_owners(self) -> None:
        table = self.world.groups.table
        if STREAM not in table:
            return
        membership = table.get(STREAM).membership
        assert membership.generation >= self.model.generation, "S2: the generation went back"
        self.model.generation = membership.generation
        for member in membership.members():
            share = membership.share(member.member_id)
            for partition in (*share.assigned, *share.revoking):
                owner = membership.owner(partition)
                assert owner is not None
                before = self.model.owners.setdefault((partition, owner.generation), owner.member_id)
                assert before == owner.member_id, f"S2: {partition} in generation {owner.generation}"

    # ---- queue mode

    async def send(self) -> None:
        self.number += 1
        values = [b"%d.%d" % (self.number, index) for index in range(self.rng.randrange(1, 6))]
        is_late = self.model.has_late_begun
        partition = self.rng.randrange(self.world.routes.topic("orders").partitions)
        await self.world.send(*values, partition=partition, light=self.inbox)
        self.model.sent |= set(values)
        if is_late:
            self.model.late_sent |= set(values)

    async def receive_late(self) -> None:
        messages = (
            await self.world.groups.receive(LATE, wanting(start=Start.LAST, invisible_ms=500, queue=self.inbox))
        ).messages
        self.model.has_late_begun = True
        self.model.late_got |= {message.value for message in messages if message.value is not None}
        await self.world.groups.ack(LATE, [message.receipt for message in messages])

    async def grow(self) -> None:
        count = self.world.routes.topic("orders").partitions
        if count < PARTITIONS_MAX and self.rng.random() < 0.3:
            await self.world.broker.grow_topic("orders", count + 1)
            await self.world.groups.stream.topics_changed()

    async def scratch(self) -> None:
        """Anything at all to a group of which nothing is claimed, but that its events can be read again (E1)."""
        groups, rng = self.world.groups, self.rng
        with suppress(GroupError, UnknownQueue):
            match rng.randrange(10):
                case 0 | 1 | 2:
                    asked = wanting(
                        max_messages=rng.randrange(1, 20), invisible_ms=rng.choice((1, 1000)), queue=self.inbox
                    )
                    messages = (await groups.receive(SCRATCH, asked)).messages
                    receipts = [message.receipt for message in messages]
                    settle = rng.choice((groups.ack, groups.nack, groups.give_back))
                    await settle(SCRATCH, receipts)
                case 3:
                    commits = [OffsetCommit("orders", number, 0) for number in range(PARTITIONS)]
                    await groups.commit(SCRATCH, commits)
                case 4:
                    await groups.reset(SCRATCH, "orders", rng.choice((Start.FIRST, Start.LAST, 3)), force=True)
                case 5:
                    await groups.delete(SCRATCH)
                case 6:
                    changes = {"fifo": rng.random() < 0.5, "max_attempts": rng.randrange(1, 4), "backoff_ms": [0]}
                    await groups.configure(SCRATCH, changes | {"mode": rng.choice(("shared", "shared", "broadcast"))})
                case 7:
                    member_id, share = await groups.join(SCRATCH, rng.choice((None, "a")), ORDERS)
                    if rng.random() < 0.7:
                        await groups.leave(SCRATCH, MemberKey(member_id, share.generation))
                case 8 if self.inbox is None:
                    await groups.ack_up_to(SCRATCH, TopicPartition("orders", 0), 5)
                case 8:
                    await groups.light_offsets.commit(SCRATCH, "orders", self.inbox, {0: rng.randrange(6)})
                case _:
                    await groups.redrive(SCRATCH, 3)

    async def receive(self) -> None:
        asked = wanting(
            max_messages=self.rng.randrange(1, 8),
            invisible_ms=self.rng.choice((300, 3000)),
            attempt_id=self.rng.choice((None, None, "a", "b")),
            queue=self.inbox,
        )
        for message in (await self.world.groups.receive(QUEUE, asked)).messages:
            self.took(message, self.world.clock.now_ms(), is_repeated=asked.attempt_id is not None)

    def took(self, message: Delivered, now_ms: int, *, is_repeated: bool) -> None:
        model, value = self.model, message.value
        assert value is not None
        assert message.topic == "orders"
        assert value not in model.acked or value in model.maybe_twice, f"Q1: {value!r} was acked"
        if not is_repeated and value not in model.maybe_twice:
            assert model.on_lease.get(value, 0) <= now_ms, f"Q2: {value!r} is on lease"
        if not is_repeated:  # else it may have been given back since
            model.on_lease[value] = message.until_ms
            model.newest[value] = message.receipt
        model.held.append(message)

    def some_held(self) -> list[Delivered]:
        """Messages a consumer does something about; it may do so again later, or too late. Their leases may end now."""
        held = self.model.held
        messages = self.rng.sample(held, min(len(held), self.rng.randrange(1, 6)))
        for message in messages:
            assert message.value is not None
            self.model.on_lease.pop(message.value, None)
        return messages

    async def ack(self) -> None:
        messages = self.some_held()
        self.model.maybe_acked |= {message.value for message in messages if message.value is not None}
        results = await self.world.groups.ack(QUEUE, [message.receipt for message in messages])
        for message, result in zip(messages, results, strict=True):
            assert message.value is not None
            if result.ok and self.model.newest.get(message.value) == message.receipt:
                self.model.acked.add(message.value)

    async def nack(self) -> None:
        messages = self.some_held()
        self.freed(messages)
        values = {message.value for message in messages if message.value is not None}
        before = set(self.model.maybe_twice)
        self.model.maybe_twice |= values  # until it is answered
        delay_ms = self.rng.choice((0, 100, 1000, None))
        await self.world.groups.nack(QUEUE, [message.receipt for message in messages], delay_ms=delay_ms)
        self.model.maybe_twice -= values - before

    async def reject(self) -> None:
        messages = self.some_held()[:2]
        self.freed(messages)
        results = await self.world.groups.reject(QUEUE, [message.receipt for message in messages], "no")
        for message, result in zip(messages, results, strict=True):
            if result.ok:
                assert message.value is not None
                self.model.rejected.add(message.value)

    async def give_back(self) -> None:
        messages = self.some_held()
        self.freed(messages)
        values = {message.value for message in messages}
        self.model.held = [held for held in self.model.held if held.value not in values]  # their numbers come again
        await self.world.groups.give_back(QUEUE, [message.receipt for message in messages])

    async def extend(self) -> None:
        messages = self.some_held()
        results = await self.world.groups.extend(QUEUE, [message.receipt for message in messages], 1000)
        for message, result in zip(messages, results, strict=True):
            assert message.value is not None
            if result.new_receipt is not None and self.model.newest.get(message.value) == message.receipt:
                self.model.newest[message.value] = result.new_receipt
                self.model.held.append(message._replace(receipt=result.new_receipt))

    def freed(self, messages: list[Delivered]) -> None:
        """An ack of these deliveries from now on says nothing."""
        for message in messages:
            assert message.value is not None
            self.model.newest.pop(message.value, None)

    # ---- stream mode

    async def join(self) -> None:
        model, member_id = self.model, self.rng.choice("abc")
        known = model.members.get(member_id) if self.rng.random() < 0.5 else None
        try:
            _, share = await self.world.groups.join(
                STREAM, member_id, ORDERS, generation=None if known is None else known.generation
            )
        except (StaleGeneration, UnknownMember):
            model.members.pop(member_id, None)
        else:
            model.members[member_id] = share

    async def leave(self) -> None:
        if self.model.members:
            member_id = self.rng.choice(sorted(self.model.members))
            share = self.model.members.pop(member_id)
            with suppress(StaleGeneration, UnknownMember):
                await self.world.groups.leave(STREAM, MemberKey(member_id, share.generation))

    async def release(self) -> None:
        for member_id, known in list(self.model.members.items()):
            try:
                share = self.world.groups.heartbeat(STREAM, MemberKey(member_id, known.generation))
                partitions = [TopicPartition(p.topic, p.partition) for p in share.revoking]
                self.model.members[member_id] = await self.world.groups.release(
                    STREAM, MemberKey(member_id, share.generation), partitions
                )
            except (StaleGeneration, UnknownMember):
                self.model.members.pop(member_id, None)

    async def commit(self) -> None:
        async with self.committing:  # one at a time, so that the model knows what the last one was
            if self.model.members:
                await self.commit_one()

    async def commit_one(self) -> None:
        model, rng, groups = self.model, self.rng, self.world.groups
        member_id = rng.choice(sorted(model.members))
        known = model.members[member_id]
        partition = rng.randrange(PARTITIONS)
        view = self.world.routes.topic("orders")
        _, end = await self.world.broker.bounds(QueueKey(view.topic_id, partition))

        def may() -> bool:
            owner = groups.table.get(STREAM).membership.owner(Partition("orders", view.topic_id, partition))
            return owner is not None and owner.member_id == member_id and owner.generation <= known.generation

        might = may()
        before = model.committed.get(partition, {NOTHING})
        offset = rng.randint(0, end)
        model.committed[partition] = before | {offset}  # until it is answered
        try:
            commit = OffsetCommit("orders", partition, offset)
            await groups.commit(STREAM, [commit], MemberKey(member_id, known.generation))
        except (StaleGeneration, UnknownMember):
            model.committed[partition] = before
        else:
            # It may have been given the partition while the commit waited for its turn.
            assert might or may(), "S3: a stale owner has committed"
            model.committed[partition] = {offset}

    # ---- what happens by itself

    async def tick(self) -> None:
        await self.world.tick(self.rng.choice((100, 400, 1500)))

    async def save(self) -> None:
        await self.world.groups.log.save()

    # ---- the end

    async def end(self) -> None:
        """Everything is handed out and acked; then nothing may be missing (Q3, Q4)."""
        model = self.model
        final: set[bytes] = set()
        self.world.disk.cut_power_at(1_000_000_000)
        idle_count = 0
        while idle_count < 30:  # longer than the longest wait in the timer
            await self.world.tick(4000)
            asked = wanting(max_messages=500, queue=self.inbox)
            messages = (await self.world.groups.receive(QUEUE, asked)).messages
            for message in messages:
                self.took(message, self.world.clock.now_ms(), is_repeated=False)
                assert message.value is not None
                final.add(message.value)
            await self.world.groups.ack(QUEUE, [message.receipt for message in messages])
            model.acked |= {message.value for message in messages if message.value is not None}
            idle_count = 0 if messages else idle_count + 1
        if self.inbox is None:
            assert {lag.lag for lag in await self.world.groups.lag(QUEUE)} <= {0}
        else:
            self.check_inbox(self.inbox)
        for _ in range(30):
            self.world.clock.step(500)
            await self.receive_late()
        assert model.late_sent <= model.late_got, f"B1: {model.late_sent - model.late_got}"
        await self.check_log()
        dead_lettered: set[bytes | None] = set()
        if any(view.name == dead_letter_topic(QUEUE) for view in self.world.routes.topics()):
            dead_lettered = {value for value, _ in await self.world.records(dead_letter_topic(QUEUE))}
        assert model.sent <= final | model.maybe_acked | dead_lettered, (
            f"Q3: lost {model.sent - final - model.acked - dead_lettered}"
        )
        assert model.rejected <= dead_lettered, f"Q4: {model.rejected - dead_lettered}"
        await self.world.stop()

    def check_inbox(self, inbox: str) -> None:
        """All of it is done, and nothing but its offset is kept."""
        view, groups = self.world.routes.topic("orders"), self.world.groups
        for partition in range(view.partitions):
            low, high = self.world.store.light_bounds(QueueKey(view.topic_id, partition), inbox.encode())
            if low < high:
                assert groups.light_offsets.committed(QUEUE, "orders", partition, inbox) == high
        light = groups.table.light(QUEUE, view.topic_id)
        assert light is None or not light.open

    def state(self) -> list[bytes]:
        return [
            encode_event(  # offsets in light queues have no order
                replace(event, positions=tuple(sorted(event.positions))) if isinstance(event, LightCommitted) else event
            )
            for event in self.world.groups.table.snapshot()
        ]

    async def check_log(self) -> None:
        """L1, from the first event on: nothing of the log is gone on this disk."""
        owners: dict[Partition, str] = {}
        given: set[tuple[Partition, int]] = set()
        generation = 0
        for event in await self.events():
            if event.group != STREAM:
                continue
            match event:
                case Rebalanced():
                    assert event.generation >= generation, f"L1: {event}"
                    generation = event.generation
                case PartitionsAssigned():
                    for partition in event.partitions:
                        assert partition not in owners, f"L1: {partition} has an owner"
                        assert (partition, event.generation) not in given, f"L1: {partition} in {event.generation}"
                        owners[partition] = event.member_id
                        given.add((partition, event.generation))
                case PartitionsReleased():
                    for partition in event.partitions:
                        assert owners.pop(partition) == event.member_id, f"L1: {partition}"
                case MemberLeft():
                    owners = {partition: owner for partition, owner in owners.items() if owner != event.member_id}
                case _:
                    pass

    async def events(self) -> list[Event]:
        low, high = await self.world.broker.bounds(OFFSETS_QUEUE)
        assert low == 0
        found: list[Event] = []
        while low < high:
            read = await self.world.broker.read(OFFSETS_QUEUE, low, max_bytes=1 << 20)
            low = read.next_offset
            for entry in read.entries:
                found += decode_events(record.value for record in record_batch.decode(entry.batch))
        return found


async def one(seed: int, inbox: str | None) -> None:
    run = Run(seed, inbox)
    await run.begin()
    await run.live()
    await run.end()


@pytest.mark.parametrize("inbox", [None, "user/42"])
@pytest.mark.parametrize("first", range(0, RUNS, 20))
def test_no_crash_breaks_a_promise(first: int, inbox: str | None) -> None:
    for seed in range(first, min(first + 20, RUNS)):
        try:
            with simulated_database():
                asyncio.run(one(seed, inbox))
        except (AssertionError, GroupError, KeyError, ValueError, StoreError, OSError) as error:
            raise AssertionError(f"seed {seed}: {error!r}") from error
