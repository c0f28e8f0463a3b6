"""Moves between real stores: while records are sent and read, when movers stop half way, when the power fails.

Covers gateway.cluster.mover and gateway.cluster.follower.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from hashlib import blake2b
from itertools import product
from random import Random
from typing import NoReturn

import pytest

from gateway.brokers.base import BrokerUnreachable
from gateway.cluster.memory import MemoryMetadata
from gateway.cluster.metadata import OutcomeUnknown, Value
from gateway.cluster.move import TAKEN_OFFSETS
from gateway.cluster.mover import MoveConflict, Mover, UnknownBroker, key_of
from gateway.cluster.record import PartitionState, decode, encode
from store import record_batch
from store.errors import SealedQueue, UnknownQueue
from store.record_batch import Record
from store.types import ID_BYTES, Acks, Append, Boundary, Identity, ProducerSequence, QueueKey
from tests.clock import FakeClock
from tests.gateway.cluster.nodes import MOVE_ERRORS, NAMES, TOPIC, Cluster, settle
from tests.seeds import each_seed
from tests.store.kit import abandon
from tests.waiting import PATIENCE_S, WOKEN_S, until

RUNS = 8


@asynccontextmanager
async def cluster(partitions: int = 1, *, is_remote: bool = False) -> AsyncIterator[Cluster]:
    made = Cluster(partitions, is_remote=is_remote)
    await made.start()
    try:
        yield made
    except BaseException:
        await abandon()  # whatever failed: nothing is left that waits
        raise
    await made.stop()


async def test_offsets_go_on_over_moves_and_every_node_reads_the_same() -> None:
    async with cluster() as made:
        sent = []
        for number, to in enumerate(("n2", "n3", "n1", "n1")):
            for step in range(3):
                sent.append(f"{number}.{step}".encode())
                assert await made.send("n1", sent[-1]) == len(sent) - 1
            made.clock.step(1000)
            await made.nodes["n3"].mover.move(made.topic.topic_id, 0, to)
            await settle()
            for name in NAMES:
                assert made.nodes[name].routes.broker_name(TOPIC, 0) == to
                assert await made.read_all(name) == sent
        chain = made.nodes["n2"].routes.chain(TOPIC, 0)
        assert [segment.broker.name for segment in chain] == ["n1", "n2", "n3", "n1"], "to where it is, it stays"
        reader = made.nodes["n2"].reader
        now_ms = made.clock.now_ms()
        for back_ms, offset in ((4000, 0), (3000, 3), (2000, 6), (1000, 9)):
            assert await reader.offset_for_time(TOPIC, 0, now_ms - back_ms, Boundary.LOWER) == offset


async def test_moves_are_counted_by_how_they_ended_and_their_pauses_with_them() -> None:
    async with cluster() as made:
        mover, topic_id = made.nodes["n3"].mover, made.topic.topic_id
        for to in ("n2", "n1", "n1"):  # the last one is there already: no move
            await mover.move(topic_id, 0, to)
        with pytest.raises(UnknownBroker):
            await mover.move(topic_id, 0, "n9")
        assert (dict(mover.stats.outcomes), mover.moves) == ({"done": 2, "failed": 1}, {})
        assert sum(mover.stats.pause_counts) == 2
        assert mover.stats.pause_sum_ms > 0
        written = made.metadata.compare_and_set
        for refused, outcome in ((None, "conflict"), (asyncio.CancelledError(), "left")):

            async def refuse(*_: object, refused: BaseException | None = refused) -> None:
                if refused is not None:
                    raise refused

            made.metadata.compare_and_set = refuse  # type: ignore[method-assign,assignment]
            with pytest.raises((MoveConflict, asyncio.CancelledError)):
                await mover.move(topic_id, 0, "n2")
            assert mover.stats.outcomes[outcome] == 1
        made.metadata.compare_and_set = written  # type: ignore[method-assign]


async def test_of_two_moves_of_one_partition_each_says_by_itself_where_it_is_and_how_it_ended() -> None:
    """The first is cut off from the old broker behind its intent; the second takes it up, and is done before that
    ends."""
    async with cluster() as made:
        mover, topic_id = made.nodes["n3"].mover, made.topic.topic_id
        is_sealing, is_lost = asyncio.Event(), asyncio.Event()

        class CutOff:
            def __getattr__(self, call: str) -> object:
                return getattr(made.broker_named("n1"), call)

            async def leave_queue(self, *_: object, **__: object) -> NoReturn:
                is_sealing.set()
                await is_lost.wait()
                raise BrokerUnreachable("cut off")

        cut_off = CutOff()
        mover._broker_named = (  # type: ignore[assignment]
            lambda name: cut_off if name == "n1" and not is_sealing.is_set() else made.broker_named(name)
        )
        first = asyncio.create_task(mover.move(topic_id, 0, "n2"))
        await is_sealing.wait()
        assert (mover.moves[topic_id, 0].step, mover.move_count) == ("seal", 1)
        await mover.move(topic_id, 0, "n2")
        assert (mover.moves[topic_id, 0].step, mover.move_count) == ("seal", 1), "the first one goes on"
        assert mover.is_moving(topic_id, 0)
        is_lost.set()
        with pytest.raises(BrokerUnreachable):
            await first
        assert dict(mover.stats.outcomes) == {"done": 1, "left": 1}
        assert (mover.moves, mover.move_count, mover.is_moving(topic_id, 0)) == ({}, 0, False)


def id_of(value: bytes) -> Identity:
    return Identity(message_ids=[value.rjust(ID_BYTES, b".")])


@pytest.mark.parametrize("is_remote", [False, True])
async def test_a_send_that_is_repeated_behind_moves_is_stored_once(is_remote: bool) -> None:
    async with asyncio.timeout(PATIENCE_S), cluster(partitions=2, is_remote=is_remote) as made:

        def numbered(number: int) -> Identity:
            return Identity(producer=ProducerSequence(b"p" * ID_BYTES, number))

        await made.send("n1", b"elsewhere", 1, id_of(b"elsewhere"))
        sent: dict[bytes, int] = {}
        for number, to in enumerate(("n2", "n3", "n3", "n1", "n2")):
            value = b"%d" % number
            sent[value] = await made.send("n2", value, 0, id_of(value))
            value = b"numbered %d" % number
            sent[value] = await made.send("n3", value, 0, numbered(number))
            await made.nodes["n3"].mover.move(made.topic.topic_id, 0, to)
            await until(lambda to=to: all(made.nodes[n].routes.broker_name(TOPIC, 0) == to for n in NAMES))  # type: ignore[misc]
            for again, offset in sent.items():
                is_numbered = again.startswith(b"numbered")
                identity = numbered(int(again.split()[1])) if is_numbered else id_of(again)
                assert await made.send("n1", again, 0, identity) == offset
        assert await made.read_all("n2") == list(sent)
        assert await made.read_all("n1", 1) == [b"elsewhere"]


async def test_a_follower_tells_where_a_partition_is_about_to_go() -> None:
    async with cluster() as made:
        told: list[tuple[str, str]] = []
        node = made.nodes["n3"]
        node.follower._on_moving = lambda to: told.append((to, node.routes.broker_name(TOPIC, 0)))
        await made.nodes["n2"].mover.move(made.topic.topic_id, 0, "n2")
        await settle()
        assert told == [("n2", "n1")], "while it is where it was"


async def test_who_waits_at_the_end_is_woken_on_the_new_broker() -> None:
    async with cluster(partitions=2) as made, asyncio.timeout(WOKEN_S):
        node = made.nodes["n2"]
        woken, grown = asyncio.Event(), asyncio.Event()
        node.watcher.watch(TOPIC, 0, 0, grown.set)
        watch = node.watcher.watch_topic(TOPIC, woken.set)
        await settle()
        await node.mover.move(made.topic.topic_id, 0, "n3")
        await settle()
        watch.changed()
        woken.clear()
        await made.send("n1", b"1")
        await grown.wait()
        await woken.wait()
        assert watch.changed() == [0]
        watch.close()


async def test_who_is_behind_is_not_left_where_another_node_s_segment_ends() -> None:
    """A partition that has come from n2, and a node that begins to follow n2 when another partition goes there: n2 then
    tells where each of its queues ends, the sealed one among them."""
    async with asyncio.timeout(WOKEN_S), cluster(partitions=2, is_remote=True) as made:
        node, topic_id = made.nodes["n1"], made.topic.topic_id
        for number, to in enumerate(("n2", "n1", "n1")):
            await made.send("n1", b"%d" % number)
            await node.mover.move(topic_id, 0, to)
            await until(lambda to=to: node.routes.broker_name(TOPIC, 0) == to)  # type: ignore[misc]
        watch = node.watcher.watch_topic(TOPIC, lambda: None)
        node.watcher.watch(TOPIC, 0, 3, lambda: None)()  # a reader that is ahead, and goes away
        await node.mover.move(topic_id, 1, "n2")
        await until(lambda: node.routes.broker_name(TOPIC, 1) == "n2")
        watch.changed()
        await until(lambda: 0 in watch.changed())  # n2 has told its ends
        segment = node.routes.chain(TOPIC, 0)[1]
        assert (segment.broker.name, segment.logical_start, segment.physical_end) == ("n2", 1, 1)
        assert not node.watcher.is_end(TOPIC, 0, 2)
        woken = asyncio.Event()
        node.watcher.watch(TOPIC, 0, 2, woken.set)
        await woken.wait()
        watch.close()


async def test_a_move_that_was_left_anywhere_is_taken_up_with_any_target() -> None:
    """Cut off before each of its calls in turn, and finished by another node. Meanwhile it says where it is."""
    steps: list[str] = []
    for left_at in range(8):
        async with cluster() as made:
            await made.send("n1", b"before")
            calls = 0
            mover = made.nodes["n2"].mover

            def counted(name: str, cluster: Cluster = made, left_at: int = left_at, mover: Mover = mover) -> object:
                nonlocal calls
                calls += 1
                steps.append(mover.moves[cluster.topic.topic_id, 0].step)
                if calls > left_at:
                    raise RuntimeError("the mover dies")
                return cluster.broker_named(name)

            mover._broker_named = _dying(counted)  # type: ignore[assignment]
            try:
                await mover.move(made.topic.topic_id, 0, "n2")
            except RuntimeError:
                pass
            else:
                assert calls <= left_at
            known = await made.nodes["n3"].mover.known(made.topic.topic_id, 0)
            is_left = known.record.state is PartitionState.SEALING
            assert mover.moves == {}
            await settle()
            seen = made.nodes["n3"].follower.moving()
            assert seen == ({(made.topic.topic_id, 0): known} if is_left else {})
            done = await made.nodes["n3"].mover.move(made.topic.topic_id, 0, "n3")
            assert done.record.state is PartitionState.NORMAL
            assert done.record.epoch == known.record.epoch + 1, is_left
            await settle()
            assert made.nodes["n2"].follower.moving() == {}
            assert await made.send("n1", b"behind") == 1
            assert await made.read_all("n2") == [b"before", b"behind"]
    assert set(steps) == {"warm", "seal"}, "brokers' calls: of the intent and the commit only the metadata is told"


def _dying(named: object) -> object:
    """Brokers each of whose calls is counted."""

    class Counted:
        def __init__(self, name: str) -> None:
            self._name = name

        def __getattr__(self, call: str) -> object:
            return getattr(named(self._name), call)  # type: ignore[operator]

    return Counted


async def test_records_on_their_way_come_before_the_move_or_are_refused() -> None:
    async with cluster() as made:
        await made.pause("n3")
        before = [asyncio.create_task(made.send("n3", b"%d" % number)) for number in range(5)]
        await asyncio.sleep(0)  # they are accepted, and not written yet
        done = await made.nodes["n2"].mover.move(made.topic.topic_id, 0, "n2")
        assert await asyncio.gather(*before) == [0, 1, 2, 3, 4]
        assert done.record.open_segment.start == 5
        late = asyncio.create_task(made.send("n3", b"late"))
        await settle(50)
        assert not late.done(), "n3 does not know yet where to"
        made.resume("n3")
        assert await late == 5
        assert await made.read_all("n1") == [b"0", b"1", b"2", b"3", b"4", b"late"]


async def test_of_two_who_move_at_once_one_wins_and_the_other_is_told() -> None:
    async with cluster() as made:
        moves = [made.nodes[name].mover.move(made.topic.topic_id, 0, name) for name in ("n2", "n3")]
        results = await asyncio.gather(*moves, return_exceptions=True)
        assert [type(result) for result in results if isinstance(result, Exception)] in ([MoveConflict], [])
        await settle()
        assert await made.send("n1", b"1") == 0
        assert await made.read_all("n2") == [b"1"]


async def test_a_move_to_nowhere_changes_nothing() -> None:
    async with cluster() as made:
        mover = made.nodes["n1"].mover
        with pytest.raises(UnknownBroker):
            await mover.move(made.topic.topic_id, 0, "n9")
        with pytest.raises(UnknownQueue):
            await mover.move(999, 0, "n2")
        assert not (await made.metadata.list("")).values


async def test_a_segment_that_has_expired_is_taken_off_the_chain() -> None:
    async with cluster() as made:
        mover, topic_id = made.nodes["n1"].mover, made.topic.topic_id
        for value, to in ((b"a", "n2"), (b"b", "n3")):
            await made.send("n1", value)
            await mover.move(topic_id, 0, to)
            await settle()
        await made.send("n1", b"c")
        before = await mover.known(topic_id, 0)
        assert await mover.trim(topic_id, 0) == before
        first = before.record.segments[0]
        await made.nodes["n1"].broker.expire_queue(made.nodes["n1"].routes.chain(TOPIC, 0)[0].queue, 1)
        trimmed = await mover.trim(topic_id, 0)
        assert trimmed.record.segments == before.record.segments[1:]
        assert first.broker == "n1"
        await settle()
        assert await made.nodes["n2"].reader.bounds(TOPIC, 0) == (1, 3)
        assert await made.read_all("n2") == [b"b", b"c"]


class Doubtful(MemoryMetadata):
    """Says of some changes that nobody knows their outcome; `is_made` says what it was."""

    def __init__(self) -> None:
        super().__init__()
        self.answers: list[bool] = []

    async def compare_and_set(self, expected: Mapping[str, int], changes: Mapping[str, bytes | None]) -> int | None:
        is_made = self.answers.pop(0) if self.answers else None
        if is_made is None:
            return await super().compare_and_set(expected, changes)
        if is_made:
            await super().compare_and_set(expected, changes)
        raise OutcomeUnknown("the answer was lost")


@pytest.mark.parametrize("lost_at", [0, 1])
@pytest.mark.parametrize("is_made", [True, False])
async def test_after_an_unknown_outcome_the_record_is_read(lost_at: int, is_made: bool) -> None:
    async with cluster() as made:
        metadata = Doubtful()
        mover = made.nodes["n2"].mover
        mover._metadata = metadata
        if lost_at:
            metadata.answers = [True, is_made]
        else:
            metadata.answers = [is_made]
        if is_made:
            done = await mover.move(made.topic.topic_id, 0, "n2")
            found = await metadata.get(key_of(made.topic.topic_id, 0))
            assert found == Value(encode(done.record), done.revision)
        else:
            with pytest.raises(OutcomeUnknown):
                await mover.move(made.topic.topic_id, 0, "n2")
            done = await mover.move(made.topic.topic_id, 0, "n2")
        assert done.record.state is PartitionState.NORMAL


async def test_a_record_that_is_not_understood_leaves_the_chain_as_it_was(caplog: pytest.LogCaptureFixture) -> None:
    async with cluster() as made:
        before = made.nodes["n2"].routes.chain(TOPIC, 0)
        key = key_of(made.topic.topic_id, 0)
        await made.metadata.compare_and_set({key: 0}, {key: b'{"v":2}'})
        await settle()
        assert made.nodes["n2"].routes.chain(TOPIC, 0) == before
        assert "place not applied" in caplog.text


async def _away(*_: object, **__: object) -> NoReturn:
    raise BrokerUnreachable("away")


async def test_expired_segments_go_off_the_chain_and_those_behind_one_that_stays_are_not_asked_for() -> None:
    async with cluster() as made:
        topic_id, mover = made.topic.topic_id, made.nodes["n1"].mover
        for to in ("n2", "n3"):
            await made.send("n1", b"x")
            await mover.move(topic_id, 0, to)
            await settle()
        second = made.nodes["n2"].broker
        bounds, second.bounds = second.bounds, _away  # type: ignore[method-assign]
        assert len((await mover.trim(topic_id, 0)).record.segments) == 3
        await made.nodes["n1"].broker.expire_queue(QueueKey(topic_id, 0), 1)
        with pytest.raises(BrokerUnreachable):
            await mover.trim(topic_id, 0)
        second.bounds = bounds  # type: ignore[method-assign]
        assert [one.broker for one in (await mover.trim(topic_id, 0)).record.segments] == ["n2", "n3"]


async def test_the_log_says_which_move_was_left_where_and_why(caplog: pytest.LogCaptureFixture) -> None:
    async with cluster() as made:
        topic_id, mover = made.topic.topic_id, made.nodes["n3"].mover
        for name, operation in (("n2", "create_queue"), ("n1", "leave_queue")):
            with pytest.MonkeyPatch.context() as patch:
                patch.setattr(made.nodes[name].broker, operation, _away)
                with pytest.raises(BrokerUnreachable):
                    await mover.move(topic_id, 0, "n2")
            assert ("move left half way" in caplog.text) == (operation == "leave_queue")
        assert "from=n1 to=n2 step=seal error=BrokerUnreachable('away')" in caplog.text
        assert mover.stats.outcomes == {"failed": 1, "left": 1}
        with caplog.at_level("INFO"):
            await mover.move(topic_id, 0, "n2")
        assert f"partition moved topic_id={topic_id} partition=0 from=n1 to=n2" in caplog.text


@each_seed(RUNS)
async def test_records_stay_in_order_once_and_all_while_partitions_move_and_the_power_fails(seed: int) -> None:
    random = Random(seed)
    async with cluster() as made:
        acknowledged: dict[int, bytes] = {}
        unsure: set[bytes] = set()
        moves = 0

        async def send(count: int) -> None:
            for number in range(count):
                value = b"%d-%d-%d" % (random.randrange(1 << 40), number, count)
                unsure.add(value)
                for _ in range(1 + (random.random() < 0.3)):  # a client that did not get its answer sends again
                    offset = await made.send(random.choice(NAMES), value, 0, id_of(blake2b(value).digest()[:ID_BYTES]))
                    assert acknowledged.setdefault(offset, value) == value
                unsure.discard(value)

        async def move() -> None:
            nonlocal moves
            try:
                await made.nodes[random.choice(NAMES)].mover.move(made.topic.topic_id, 0, random.choice(NAMES))
                moves += 1
            except MOVE_ERRORS:
                pass

        for _ in range(6):
            stale = random.choice(NAMES)
            await made.pause(stale)  # it sends to where the partition was
            work = [asyncio.create_task(send(4)) for _ in range(3)] + [asyncio.create_task(move()) for _ in range(3)]
            await settle(random.randrange(120))
            if random.random() < 0.5:
                random.choice(work[3:]).cancel()  # a mover stops half way
            await settle(random.randrange(120))
            made.resume(stale)
            if random.random() < 0.4:
                await made.crash(random)
            else:
                await asyncio.wait(work[3:])
                await move()  # what was left is finished
                await asyncio.wait(work)
            for task in work:
                if task.done() and not task.cancelled() and (error := task.exception()) is not None:
                    raise error
            await move()
            await settle()
        await made.send("n1", b"last")
        found = await made.read_all(random.choice(NAMES))
        assert len(set(found)) == len(found), "a record twice"
        assert {offset: found[offset] for offset in acknowledged} == acknowledged
        assert set(found) - set(acknowledged.values()) - {b"last"} <= unsure
        assert moves > 3


async def test_partitions_move_between_nodes_over_http_while_all_send_and_read() -> None:
    async with asyncio.timeout(PATIENCE_S), cluster(partitions=2, is_remote=True) as made:
        acknowledged: dict[tuple[int, int], bytes] = {}
        is_sending, is_over = True, False

        async def send(via: str, partition: int) -> None:
            number = 0
            while is_sending:
                value = f"{via}-{partition}-{number}".encode()
                offset = await made.send(via, value, partition)
                assert acknowledged.setdefault((partition, offset), value) == value
                number += 1

        async def follow(via: str, partition: int, found: list[bytes]) -> None:
            reader = made.nodes[via].reader
            while not is_over or len(found) < (await reader.bounds(TOPIC, partition)).max_offset:
                read = await reader.read(TOPIC, partition, len(found), max_bytes=2000)
                if not read.entries:
                    await asyncio.sleep(0.002)
                for entry in read.entries:
                    records = list(record_batch.decode(entry.batch))
                    found += [record.value or b"" for record in records if record.offset >= len(found)]

        followed: dict[tuple[str, int], list[bytes]] = {(via, part): [] for via in NAMES for part in (0, 1)}
        async with asyncio.TaskGroup() as work:
            senders = [work.create_task(send(via, partition)) for via, partition in followed]
            for via, partition in followed:
                work.create_task(follow(via, partition, followed[via, partition]))
            for to in ("n2", "n3", "n1", "n3", "n2"):
                for partition in (0, 1):
                    await made.nodes[to].mover.move(made.topic.topic_id, partition, to)
                count = len(acknowledged)
                await until(lambda count=count: len(acknowledged) > count + 20, pause_s=0.001)  # type: ignore[misc]
            is_sending = False
            await asyncio.wait(senders)
            is_over = True
        for partition in (0, 1):
            theirs = {offset: value for (part, offset), value in acknowledged.items() if part == partition}
            everything = [theirs[offset] for offset in range(len(theirs))]
            for via in NAMES:
                assert followed[via, partition] == everything
                own = [value for value in everything if value.startswith(via.encode())]
                assert own == [f"{via}-{partition}-{number}".encode() for number in range(len(own))], "in order"


CLOCK_FAULTS: tuple[Callable[[FakeClock], object], ...] = (
    lambda clock: clock.step(20_000),
    lambda clock: clock.step(-20_000),
    lambda clock: clock.strobe(20_000),
)
"""What happens to the clock of one node: set on, set back, to and fro. The nodes' clocks may differ by 30 s."""


async def test_three_nodes_lose_nothing_in_three_rounds_in_which_the_clock_of_one_is_set() -> None:
    """In the middle of moves, over links and HTTP; records are sent again by who did not hear."""
    random = Random(24)
    async with asyncio.timeout(PATIENCE_S), cluster(partitions=2, is_remote=True) as made:
        acknowledged: dict[tuple[int, int], bytes] = {}

        async def send(via: str, partition: int, numbers: range) -> None:
            for number in numbers:
                value = f"{via}-{partition}-{number}".encode()
                for _ in range(1 + (random.random() < 0.3)):
                    identity = id_of(blake2b(value).digest()[:ID_BYTES])
                    offset = await made.send(random.choice(NAMES), value, partition, identity)
                    assert acknowledged.setdefault((partition, offset), value) == value

        async def move(partition: int) -> None:
            mover = made.nodes[random.choice(NAMES)].mover
            await mover.move(made.topic.topic_id, partition, random.choice(NAMES))

        for number, fault in enumerate(CLOCK_FAULTS):
            numbers = range(number * 20, number * 20 + 20)
            clock = made.nodes[random.choice(NAMES)].clock
            async with asyncio.TaskGroup() as work:
                for via, partition in product(NAMES, (0, 1)):
                    work.create_task(send(via, partition, numbers))
                for step in range(4):
                    moving = [work.create_task(move(partition)) for partition in (0, 1)]
                    if step == 1:
                        await settle(random.randrange(40))
                        fault(clock)
                    await asyncio.wait(moving)
            clock.set(0)
            clock.strobe(0)
        for partition in (0, 1):
            theirs = {offset: value for (part, offset), value in acknowledged.items() if part == partition}
            everything = [theirs[offset] for offset in range(len(theirs))]
            assert len(set(everything)) == len(NAMES) * 20 * len(CLOCK_FAULTS) == len(everything)
            for via in NAMES:
                assert await made.read_all(via, partition) == everything
                own = [value for value in everything if value.startswith(via.encode())]
                assert own == [f"{via}-{partition}-{number}".encode() for number in range(len(own))], "in order"


async def read_on(made: Cluster, via: str) -> list[tuple[int, bytes]]:
    """Offsets and values from the first one on, each read where the one before ended."""
    reader = made.nodes[via].reader
    at, high = await reader.bounds(TOPIC, 0)
    found = []
    while at < high:
        result = await reader.read(TOPIC, 0, at, max_bytes=1000)
        for entry in result.entries:
            found += [(r.offset, r.value or b"") for r in record_batch.decode(entry.batch) if r.offset >= at]
        assert result.next_offset > at
        at = result.next_offset
    return found


@pytest.mark.parametrize("is_remote", [False, True])
async def test_what_is_taken_over_from_a_broker_that_lives_is_neither_lost_nor_given_twice(is_remote: bool) -> None:
    """n1 is cut off and hears nothing: what it acknowledges meanwhile is read from it, until the first reader has come
    to its end."""
    async with asyncio.timeout(PATIENCE_S), cluster(is_remote=is_remote) as made:
        topic_id = made.topic.topic_id
        assert [await made.send("n1", b"%d" % number) for number in range(3)] == [0, 1, 2]
        await made.pause("n1")
        known = await made.nodes["n2"].mover.take_over(topic_id, 0, "n2")
        assert (await made.nodes["n2"].mover.take_over(topic_id, 0, "n2")) == known, "it is there already"
        await settle()
        assert await made.send("n1", b"3") == 3, "a stale writer"
        late = TAKEN_OFFSETS
        assert [await made.send("n3", value) for value in (b"a", b"b")] == [late, late + 1]
        everything = [*((number, b"%d" % number) for number in range(4)), (late, b"a"), (late + 1, b"b")]
        assert await read_on(made, "n3") == everything
        stale = made.nodes["n1"].routes.writable(TOPIC, 0)
        batch = record_batch.encode([Record(None, b"4", 0)])
        with pytest.raises(SealedQueue):
            await stale.broker.append([Append(queue=stale.queue, batch=batch, record_count=1)], acks=Acks.FLUSHED)
        made.resume("n1")
        await settle()
        assert await made.send("n1", b"c") == late + 2
        assert await read_on(made, "n1") == [*everything, (late + 2, b"c")]
        reader = made.nodes["n1"].reader
        assert await reader.offset_for_time(TOPIC, 0, made.clock.now_ms() + 1, Boundary.LOWER) == late + 3
        (first, *_) = known.record.segments
        assert (first.taken, first.end, decode(encode(known.record))) == (True, late, known.record)
        assert (await made.nodes["n3"].mover.trim(topic_id, 0)).record.segments == known.record.segments
        await made.nodes["n1"].broker.expire_queue(QueueKey(topic_id, 0), 4)
        assert len((await made.nodes["n3"].mover.trim(topic_id, 0)).record.segments) == 1
