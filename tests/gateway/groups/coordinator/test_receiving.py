"""gateway.groups.coordinator (receiving, search): where a group begins, and what one receive takes."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Sequence

import pytest

from gateway.codec.tags import MESSAGE_GROUP_HEADER, TAG_HEADER
from gateway.groups.coordinator import receiving
from gateway.groups.coordinator.receiving import TOGETHER_RECORDS_MAX
from gateway.groups.coordinator.search import SCAN_RECORDS
from gateway.groups.machines.copies import retry_topic
from gateway.groups.machines.errors import GroupActive, IllegalRequest
from gateway.groups.machines.events import Event
from gateway.groups.machines.progress import Start, StartTime
from gateway.groups.machines.receipts import Receipt, Signer
from gateway.groups.protocol import Delivered, Receive, Received
from store.errors import DiskFull, StoreError
from store.types import Bounds
from tests.gateway.groups.coordinator.test_settling import G, receipts, receive, values
from tests.gateway.groups.coordinator.world import ORDERS, World, wanting, world
from tests.waiting import WOKEN_S, until


async def test_the_first_receive_fixes_where_all_partitions_begin() -> None:
    """Whatever that receive takes, and although later ones say something else."""
    async with world(partitions=2, values=[b"a", b"b"]) as made:
        await made.send(b"c", partition=1)
        assert len(await receive(made, max_messages=1, start=Start.FIRST)) == 1
        await made.kill()
        await made.start()
        assert sorted(filter(None, values(await receive(made, start=Start.LAST)))) in ([b"a", b"c"], [b"b", b"c"])


async def test_a_group_that_begins_at_the_end_misses_nothing_that_comes_later_in_any_partition() -> None:
    async with world(partitions=3, values=[b"old"]) as made:
        assert await receive(made, start=Start.LAST) == ()
        for partition in range(3):
            await made.send(b"%d" % partition, partition=partition)
        await made.kill()
        await made.start()
        assert sorted(filter(None, values(await receive(made, start=Start.LAST)))) == [b"0", b"1", b"2"]


async def test_partitions_that_are_added_later_begin_with_their_first_record() -> None:
    async with world(partitions=1, values=[b"old"]) as made:
        assert await receive(made, start=Start.LAST) == ()
        await made.broker.grow_topic("orders", 3)
        await made.send(b"new", partition=2)
        assert values(await receive(made, start=Start.LAST)) == [b"new"]


async def test_each_topic_begins_where_the_receive_says_that_first_names_it() -> None:
    async with world(partitions=1, values=[b"o"]) as made:
        await made.topic("refunds", 2)
        await made.send(b"r", topic="refunds", partition=1)
        assert values(await receive(made, "orders", start=Start.FIRST)) == [b"o"]
        assert await receive(made, "orders", "refunds", start=Start.LAST) == ()
        await made.send(b"r2", topic="refunds", partition=0)
        assert values(await receive(made, "refunds", start=Start.FIRST)) == [b"r2"]


async def test_a_group_can_begin_at_a_time_and_its_retries_come_all_the_same() -> None:
    async with world(partitions=1, values=[b"old"]) as made:
        made.clock.step(1000)
        now_ms = made.clock.now_ms()
        await made.send(b"new")
        (message,) = await receive(made, start=StartTime(now_ms))
        assert message.value == b"new"
        await made.groups.nack(G, [message.receipt], delay_ms=1000)
        await made.tick(1000)  # the copy is in the retry topic before the group has looked into it
        (again,) = await receive(made, start=StartTime(now_ms))
        assert (again.value, again.attempt) == (b"new", 2)


async def test_what_was_committed_before_wins_over_every_start() -> None:
    async with world(partitions=1, values=[b"1", b"2", b"3"]) as made:
        await made.groups.reset((await groups_with(made)), "orders", 1)
        assert values(await receive(made, start=Start.LAST)) == [b"2", b"3"]


async def groups_with(made: World) -> str:
    await made.groups.configure(G, {})
    return G


async def test_the_place_of_a_new_group_is_all_or_nothing_at_a_power_cut() -> None:
    for cut in range(1, 12):
        made = World()
        await made.start()
        await made.topic(partitions=4)
        await made.send(b"old", partition=3)
        made.disk.cut_power_at(cut)
        outcome = await asyncio.gather(receive(made, start=Start.LAST), return_exceptions=True)
        if made.disk.is_dark:
            await made.crash(cut)
        made.disk.cut_power_at(1_000_000_000)
        begun = made.groups.table.get(G).queue_partition_count if G in made.groups.table else 0
        assert begun in (0, 4), f"cut {cut}"
        assert begun == 4 or isinstance(outcome[0], StoreError | OSError)
        await made.send(b"new", partition=2)
        expected = [b"new"] if begun else []
        assert values(await receive(made, start=Start.LAST)) == expected, f"cut {cut}"
        await made.stop()


async def test_no_partition_starves_behind_one_that_always_has_more() -> None:
    async with world(partitions=3) as made:
        for partition in range(3):
            await made.send(*[b"%d" % partition] * 20, partition=partition)
        got = [(await receive(made, max_messages=1))[0].partition for _ in range(9)]
        assert sorted(got) == [0, 0, 0, 1, 1, 1, 2, 2, 2]


async def test_a_receive_that_waits_sees_partitions_and_retries_that_come_meanwhile() -> None:
    async with world(partitions=1) as made:
        running = asyncio.create_task(made.groups._follow_topics())
        waiting = asyncio.ensure_future(receive(made, wait_ms=60_000))
        for _ in range(20):
            await asyncio.sleep(0)
        await made.broker.grow_topic("orders", 2)
        made.groups.topics_changed()
        for _ in range(20):
            await asyncio.sleep(0)
        await made.send(b"1", partition=1)
        (message,) = await asyncio.wait_for(waiting, WOKEN_S)
        assert message.value == b"1"
        waiting = asyncio.ensure_future(receive(made, wait_ms=60_000))
        await made.groups.nack(G, [message.receipt], delay_ms=1000)
        made.groups.topics_changed()  # the retry topic has been made
        for _ in range(20):
            await asyncio.sleep(0)
        await made.tick(1000)
        assert (await asyncio.wait_for(waiting, WOKEN_S))[0].attempt == 2
        running.cancel()


async def test_a_filter_that_finds_little_goes_through_a_long_topic_in_steps() -> None:
    async with world(partitions=1) as made:
        for _ in range(3 * SCAN_RECORDS // 200):
            await made.send(*[b"x"] * 100, headers=[(TAG_HEADER, b"common")])
        await made.send(b"found", headers=[(TAG_HEADER, b"rare")])
        assert values(await receive(made, tags=frozenset(["rare"]), wait_ms=1000)) == [b"found"]
        (lag,) = await made.groups.lag(G)
        assert (lag.lag, lag.in_flight) == (1, 1), "what was filtered out is done"


async def test_records_that_are_withheld_are_passed_over_for_those_that_are_not() -> None:
    async with world(partitions=1) as made:
        await made.groups.configure(G, {"fifo": True})
        await made.send(*[b"a"] * 30, headers=[(MESSAGE_GROUP_HEADER, b"a")])
        await made.send(b"b", headers=[(MESSAGE_GROUP_HEADER, b"b")])
        assert values(await receive(made, max_messages=2)) == [b"a", b"b"]


async def test_records_that_expired_before_they_were_consumed_are_counted_and_passed_over() -> None:
    async with world(partitions=1, values=[b"1", b"2", b"3"]) as made:
        first = await receive(made, max_messages=1, invisible_ms=1000)
        await made.broker.configure_topic("orders", {"retention_ms": 1})
        await made.tick(10_000)
        await made.store._hide_expired(made.store.topics())
        await made.send(b"4")
        assert made.store.bounds(made.routes.writable("orders", 0).queue).min_offset == 3
        assert values(await receive(made)) == [b"4"]
        assert made.groups.stats.lost_count == 3
        assert [result.ok for result in await made.groups.ack(G, receipts(first))] == [True]


async def test_a_join_and_a_receive_at_once_never_both_win() -> None:
    for steps in range(15):
        async with world(partitions=2, values=[b"1"]) as made:
            await made.groups.ack(G, receipts(await receive(made)))
            await made.send(b"2")
            receiving = asyncio.ensure_future(receive(made))
            for _ in range(steps):
                await asyncio.sleep(0)
            joining = asyncio.ensure_future(made.groups.join(G, "m", ORDERS))
            received, joined = await asyncio.gather(receiving, joining, return_exceptions=True)
            assert isinstance(received, GroupActive) != isinstance(joined, GroupActive), f"{steps}: {received} {joined}"


async def test_a_topic_that_is_deleted_under_a_consumer_leaves_nothing_that_cannot_be_read_again() -> None:
    for steps in range(15):
        async with world(partitions=1, values=[b"1", b"2"]) as made:
            messages: tuple[Delivered, ...] = await receive(made)
            await made.broker.delete_topic("orders")
            pruning = asyncio.ensure_future(made.groups.stream.topics_changed())
            for _ in range(steps):
                await asyncio.sleep(0)
            acking = asyncio.ensure_future(made.groups.ack(G, receipts(messages)))
            await asyncio.gather(pruning, acking)
            await made.kill()
            await made.start()
            assert made.groups.table.get(G).queues == {}


async def test_receives_with_one_attempt_id_that_overlap_get_the_same_records() -> None:
    async with world(partitions=1, values=[b"1", b"2", b"3"]) as made:
        first, second = await asyncio.gather(*(receive(made, max_messages=2, attempt_id="w") for _ in range(2)))
        assert receipts(first) == receipts(second)


@pytest.mark.parametrize("is_settled", [True, False])
async def test_what_is_remembered_of_a_group_goes_with_it(is_settled: bool) -> None:
    async with world(partitions=1, values=[b"1"]) as made:
        (message,) = await receive(made)
        await made.groups.nack(G, [message.receipt], delay_ms=1000)
        await made.tick(1000)
        (again,) = await receive(made)
        groups = made.groups
        assert groups._search._origins
        if is_settled:
            await made.groups.ack(G, [again.receipt])
            assert groups._search._origins == {}, "nothing is open"
            await made.groups.delete(G)
            assert groups._receiving._next_lane == {}
        else:
            await made.broker.delete_topic(retry_topic(G))
            await made.groups.stream.topics_changed()
        assert groups._search._origins == {}
        assert (await made.groups.receive("other", wanting())).messages != ()


async def test_a_receive_of_many_records_of_one_partition_takes_some_in_each_turn(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    counts: list[int] = []
    sign_all = Signer.sign_all

    def counted(self: Signer, group: str, some: Sequence[Receipt]) -> list[str]:
        counts.append(sum(receipt.size for receipt in some))
        return sign_all(self, group, some)

    monkeypatch.setattr(Signer, "sign_all", counted)
    monkeypatch.setattr(receiving, "TAKEN_A_TURN", 100)
    sent = [b"%d" % number for number in range(250)]
    async with world(partitions=1) as made:
        await made.send(*sent)
        asked = [receive(made, max_messages=10_000, attempt_id="w") for _ in range(2)]
        one, other = await asyncio.gather(*asked)
        assert values(one) == values(other) == sent
        assert receipts(one) == receipts(other)
        assert max(counts) == 100
        assert sum(counts) == 2 * len(sent)
        assert await receive(made) == ()


# Receives that come together


async def together(made: World, count: int, **settings: object) -> list[tuple[Delivered, ...]]:
    return list(await asyncio.gather(*(receive(made, **settings) for _ in range(count))))


async def test_receives_that_come_together_look_once_and_are_leased_to_in_one_write() -> None:
    async with world(partitions=3) as made:
        for partition in range(3):
            await made.send(*[b"%d-%d" % (partition, number) for number in range(7)], partition=partition)
        assert len(await receive(made, max_messages=1)) == 1, "the group begins"
        looked: list[int] = []
        plain = made.groups._context.records.bounds

        def bounds(topic: str, partition: int) -> Awaitable[Bounds]:
            looked.append(partition)
            return plain(topic, partition)

        appends = made.groups.log.append_count
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(made.groups._context.records, "bounds", bounds)
            got = await together(made, 4, max_messages=5)
        assert [len(messages) for messages in got] == [5, 5, 5, 5]
        assert len({value for messages in got for value in values(messages)}) == 20
        assert sorted(looked[:3]) == [0, 1, 2]
        assert len(looked) <= 6, "each once, and again where something is taken"
        assert made.groups.log.append_count - appends == 1
        signed = [{receipt.rpartition(".")[0] for receipt in receipts(messages)} for messages in got]
        assert not any(one & other for at, one in enumerate(signed) for other in signed[at + 1 :]), (
            "who has a receipt cannot make those of others"
        )
        for messages in got:
            assert all(result.ok for result in await made.groups.ack(G, receipts(messages)))
        assert await receive(made) == ()


async def test_what_receives_take_together_is_what_they_would_take_one_after_the_other() -> None:
    """Counts and bytes are each one's own, and no record is passed over."""
    asked = [{"max_messages": 3}, {"max_bytes": 250}, {"max_messages": 1}, {"max_bytes": 1}, {"max_messages": 30}]
    async with world(partitions=1) as made:
        await made.send(*[b"%02d" % number + b"x" * 98 for number in range(12)])
        got = await asyncio.gather(*(receive(made, **settings) for settings in asked))
        assert [[message.offset for message in messages] for messages in got] == [
            [0, 1, 2], [3, 4], [5], [6], [7, 8, 9, 10, 11],
        ]  # fmt: skip
        assert [await receive(made) for _ in range(2)] == [(), ()]


@pytest.mark.parametrize("room", [0, 4, 5, 7, 8])
async def test_receives_that_come_together_keep_the_bound_on_open_records(room: int) -> None:
    """At the bound, below it and above, also when it goes through the middle of what one of them would get."""
    async with world(partitions=1) as made:
        await made.send(*[b"%d" % number for number in range(10)])
        await made.groups.configure(G, {"in_flight_max": 2 + room})
        first = await receive(made, max_messages=2)
        asked = [receive(made, max_messages=2) for _ in range(4)]
        got = [one for one in await asyncio.gather(*asked, return_exceptions=True) if isinstance(one, tuple)]
        taken = [message.offset for messages in got for message in messages]
        assert sorted(taken) == list(range(2, 2 + min(room, 8)))
        for messages in (first, *got):
            await made.groups.ack(G, receipts(messages))
        rest: list[int] = []
        while more := await receive(made):
            rest += [message.offset for message in more]
            await made.groups.ack(G, receipts(more))
        assert rest == list(range(2 + len(taken), 10)), "what there was no room for is handed out later"


async def test_so_many_receives_share_a_go(monkeypatch: pytest.MonkeyPatch) -> None:
    goes: list[int] = []
    async with world(partitions=1) as made:
        await made.send(*[b"%d" % number for number in range(50)])
        calls = made.groups._receiving._goes
        write = calls._write

        async def counted(key: tuple[str, tuple[str, ...]], requests: Sequence[Receive]) -> object:
            goes.append(sum(request.max_messages for request in requests))
            return await write(key, requests)

        monkeypatch.setattr(calls, "_write", counted)
        monkeypatch.setattr(calls, "_calls_max", 10)
        got = await asyncio.gather(*(receive(made, max_messages=count) for count in (5, 5, 1, 10, 9, 1)))
        assert [len(messages) for messages in got] == [5, 5, 1, 10, 9, 1]
        assert goes == [10, 1, 10, 10]
        assert TOGETHER_RECORDS_MAX == 1_000
        await receive(made, max_messages=TOGETHER_RECORDS_MAX + 1)
        assert len(goes) == 4, "it takes them some in each turn, by itself"


@pytest.mark.parametrize("count", [1, 3])
async def test_what_is_due_again_is_not_passed_over_for_what_is_new(count: int) -> None:
    """Neither in the partition of the new records nor in a retry topic, however many ask."""
    async with world(partitions=3) as made:
        for partition in range(3):
            await made.send(*[b"new"] * 100, partition=partition)
        first = await receive(made, max_messages=2)
        await made.groups.nack(G, [first[0].receipt], delay_ms=0)
        await made.groups.nack(G, [first[1].receipt], delay_ms=5_000)
        await made.tick(5_000)
        attempts = [
            message.attempt
            for _ in range(4 if count > 1 else 5)
            for messages in await together(made, count, max_messages=1)
            for message in messages
        ]
        assert sorted(attempts)[-2:] == [2, 2]


async def test_of_receives_that_come_together_any_may_be_cancelled_at_any_step() -> None:
    """What it would have got comes to who asks next, under its first attempt; the others get theirs."""
    for step in range(40):
        async with world(partitions=2) as made:
            for partition in range(2):
                await made.send(b"1", b"2", partition=partition)
            asking = [asyncio.ensure_future(receive(made, max_messages=1)) for _ in range(3)]
            for _ in range(step):
                await asyncio.sleep(0)
            asking[1].cancel()
            await asyncio.wait(asking)
            got = [message for one in asking if not one.cancelled() for message in one.result()]
            assert len(got) == sum(not one.cancelled() for one in asking) >= 2, f"step {step}"
            rest = await receive(made)
            assert len(got) + len(rest) == 4, f"step {step}"
            assert {message.attempt for message in (*got, *rest)} == {1}, f"step {step}"


async def test_an_error_of_a_go_is_told_to_each_and_takes_no_record() -> None:
    def refuse(events: Sequence[Event], *, flushed: bool = True) -> asyncio.Future[None]:
        refused: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        refused.set_exception(DiskFull("no room"))
        return refused

    async with world(partitions=1, values=[b"1", b"2"]) as made:
        assert len(await receive(made, max_messages=1)) == 1
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(made.groups._log, "write", refuse)
            outcomes = await asyncio.gather(*(receive(made) for _ in range(2)), return_exceptions=True)
        assert [type(outcome) for outcome in outcomes] == [DiskFull, DiskFull]
        assert values(await receive(made)) == [b"2"]


async def test_partitions_at_which_others_are_are_left_alone_or_waited_for_together() -> None:
    """An ack that is being written has its partition. Who receives meanwhile is neither held up by it while there is
    enough elsewhere, nor sent there by itself."""
    async with world(partitions=2) as made:
        for partition in range(2):
            await made.send(*[b"%d" % number for number in range(20)], partition=partition)
        assert len(await receive(made, max_messages=1)) == 1, "the group begins"
        context, log = made.groups._context, made.groups.log
        first, second = (context.key("orders", partition) for partition in range(2))
        for key, free in ((first, 1), (second, 0)):
            appends = log.append_count
            async with context.turns.of_leases(G, key), asyncio.timeout(WOKEN_S):
                got = await together(made, 3, max_messages=2)
            assert [{message.partition for message in messages} for messages in got] == [{free}] * 3
            assert log.append_count - appends == 1
        async with context.turns.of_leases(G, first, second):
            asking = [asyncio.ensure_future(receive(made, max_messages=2)) for _ in range(3)]
            for _ in range(20):
                await asyncio.sleep(0)
            assert not any(one.done() for one in asking)
            appends = log.append_count
        assert [len(messages) for messages in await asyncio.gather(*asking)] == [2, 2, 2]
        assert log.append_count - appends == 1, "all of them at once"


async def test_a_receive_may_be_told_what_it_gets_without_a_task() -> None:
    async with world(partitions=1, values=[b"%d" % number for number in range(5)]) as made:
        told: list[Received | None] = []
        appends = made.groups.log.append_count
        for _ in range(2):
            assert made.groups.begin_receive(G, wanting(max_messages=2), told.append)
        assert not told
        await until(lambda: len(told) == 2)
        assert made.groups.log.append_count - appends == 2, "one says where the group begins"
        got = [values(one.messages) for one in told if one is not None]
        assert got == [[b"0", b"1"], [b"2", b"3"]]
        assert [one.backlog for one in told if one is not None] == [1, 1]
        (again, *_), told[:] = told, []
        assert again is not None
        await made.groups.nack(G, [again.messages[0].receipt], delay_ms=0)
        for _ in range(3):
            assert made.groups.begin_receive(G, wanting(max_messages=1), told.append)
            await until(lambda: bool(told))
            assert told.pop() is None, "what is due again is for `receive` to find"
        assert len(await receive(made, max_messages=1)) == len(await receive(made, max_messages=1)) == 1
        assert made.groups.begin_receive(G, wanting(), told.append)
        await until(lambda: bool(told))
        assert told == [Received((), 0)], "there is nothing"
        assert not made.groups.begin_receive(G, wanting(attempt_id="a"), told.append)
        with pytest.raises(IllegalRequest):
            made.groups.begin_receive(G, wanting(max_messages=0), told.append)
        told.clear()
        assert made.groups.begin_receive(G, Receive(topics=("none",)), told.append)
        await until(lambda: bool(told))
        assert told == [None], "it is refused, as `receive` says why"
