"""gateway.groups.coordinator.settling and gateway.groups.coordinator.dead_letters: leases, retries and dead letters
over a real store."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest

from gateway.codec.tags import MESSAGE_GROUP_HEADER, TAG_HEADER
from gateway.groups.machines.config import INVISIBLE_MS_LIMIT
from gateway.groups.machines.copies import REASON_BYTES_MAX, dead_letter_topic
from gateway.groups.machines.errors import GroupActive, GroupFull, IllegalRequest, UnknownGroup
from gateway.groups.machines.progress import Start
from gateway.groups.protocol import (
    LEASE_OVER,
    RECEIPT_ILLEGAL,
    RECEIPTS_MAX,
    RECEIVE_BYTES_MAX,
    RECEIVE_MESSAGES_MAX,
    REDRIVE_MAX,
    Delivered,
    MemberKey,
    Receive,
    TopicPartition,
)
from store.errors import DiskFull, UnknownQueue
from tests.gateway.groups.coordinator.world import ORDERS, World, wanting, world
from tests.waiting import WOKEN_S, until
from timer.errors import TooManySchedules

G = "billing"


def values(messages: tuple[Delivered, ...]) -> list[bytes | None]:
    return [message.value for message in messages]


def receipts(messages: tuple[Delivered, ...]) -> list[str]:
    return [message.receipt for message in messages]


async def committed(made: World) -> int | None:
    """How far the group is in the first partition of the first topic."""
    return (await made.groups.lag(G))[0].committed


async def receive(made: World, *topics: str, **settings: object) -> tuple[Delivered, ...]:
    return (await made.groups.receive(G, wanting(*topics, **settings))).messages


async def test_records_are_handed_out_once_and_acked() -> None:
    async with world(values=[b"1", b"2", b"3"]) as made:
        first = await made.groups.receive(G, wanting(max_messages=2))
        assert (values(first.messages), first.backlog) == ([b"1", b"2"], 1)
        assert [message.attempt for message in first.messages] == [1, 1]
        rest = await receive(made)
        assert values(rest) == [b"3"]
        assert await receive(made) == ()
        results = await made.groups.ack(G, [*receipts(first.messages), *receipts(rest), "r1.bad"])
        assert [(result.ok, result.error_code) for result in results] == [(True, None)] * 3 + [(False, RECEIPT_ILLEGAL)]
        assert [result.ok for result in await made.groups.ack(G, receipts(rest))] == [True]  # twice is fine
        (lag, _) = await made.groups.lag(G)
        assert (lag.committed, lag.lag, lag.in_flight) == (3, 0, 0)


async def test_a_lease_that_ends_is_handed_out_again_and_its_receipt_is_over() -> None:
    async with world(values=[b"1"]) as made:
        (first,) = await receive(made, invisible_ms=1000)
        await made.tick(1000)
        (again,) = await receive(made)
        assert (again.attempt, again.offset) == (2, 0)
        (result,) = await made.groups.ack(G, [first.receipt])
        assert (result.ok, result.error_code) == (False, LEASE_OVER)


async def test_a_new_group_begins_where_it_says_and_stays_there() -> None:
    async with world(values=[b"old"]) as made:
        assert await receive(made, start=Start.LAST) == ()
        await made.send(b"new")
        await made.kill()
        await made.start()
        assert values(await receive(made, start=Start.FIRST)) == [b"new"]


async def test_a_waiting_receive_is_woken_by_a_record_a_nack_and_the_end_of_a_lease() -> None:
    async with world(values=[b"1"]) as made:
        (first,) = await receive(made, invisible_ms=1000)

        async def woken_by(change: object) -> tuple[Delivered, ...]:
            waiting = asyncio.ensure_future(receive(made, wait_ms=60_000, invisible_ms=1000))
            for _ in range(20):
                await asyncio.sleep(0)
            assert not waiting.done()
            await change  # type: ignore[misc]
            return await asyncio.wait_for(waiting, WOKEN_S)

        (again,) = await woken_by(made.groups.nack(G, [first.receipt], delay_ms=0))
        assert again.attempt == 2
        assert values(await woken_by(made.send(b"2", partition=1))) == [b"2"]
        await made.groups.extend(G, [again.receipt], 30)
        waiting = asyncio.ensure_future(receive(made, wait_ms=60_000))
        await asyncio.sleep(0)
        made.clock.step(30)  # the wait is real; what it waits for is read from the clock
        (third,) = await asyncio.wait_for(waiting, WOKEN_S)
        assert (third.value, third.attempt) == (b"1", 3)


async def test_a_receive_waits_no_longer_than_asked_and_ends_when_the_server_drains() -> None:
    async with world() as made:
        assert await asyncio.wait_for(receive(made, wait_ms=20), WOKEN_S) == ()
        made.draining.set()
        assert await asyncio.wait_for(receive(made, wait_ms=60_000), WOKEN_S) == ()


async def test_a_cancelled_receive_gives_back_what_it_had_leased() -> None:
    async with world(values=[b"1"]) as made:
        waiting = asyncio.ensure_future(receive(made))
        await until(lambda: made.groups.log.append_count == 2)  # the place of the group; the lease is under way
        assert not waiting.done()
        waiting.cancel()
        await asyncio.wait([waiting])
        assert waiting.cancelled()
        (message,) = await receive(made)
        assert message.attempt == 1


async def test_every_await_of_a_receive_may_be_cancelled() -> None:
    """At whatever step the caller goes away: the records are there, under their first attempt, or were answered."""
    for step in range(60):
        async with world(partitions=2) as made:
            for partition in range(2):
                await made.send(b"1", partition=partition)
            waiting = asyncio.ensure_future(receive(made))
            for _ in range(step):
                await asyncio.sleep(0)
            waiting.cancel()
            await asyncio.wait([waiting])
            again = await receive(made)
            if waiting.cancelled():
                assert [message.attempt for message in again] == [1, 1], f"step {step}"
            else:
                assert again == ()


async def test_a_receive_cancelled_before_its_leases_are_written_takes_none_from_who_comes_next() -> None:
    """It gave back what it had only decided: by then the lease of another consumer, whose record went out twice."""
    async with world(partitions=1) as made:
        assert await receive(made) == ()  # the group begins
        await made.send(b"1")
        with made.groups.belonging.leaving(G):  # writes wait
            first = asyncio.ensure_future(receive(made))
            await asyncio.sleep(0.05)
            second = asyncio.ensure_future(receive(made))
            await asyncio.sleep(0.05)
            first.cancel()
        await asyncio.wait([first])
        assert first.cancelled()
        assert values(await second) == [b"1"]
        assert await receive(made) == ()


async def test_tags_filter_what_a_group_gets_and_the_rest_is_done() -> None:
    async with world(partitions=1) as made:
        for number in range(6):
            await made.send(b"%d" % number, headers=[(TAG_HEADER, b"odd" if number % 2 else b"even")])
        messages = await receive(made, tags=frozenset(["odd"]))
        assert [(message.value, message.tag) for message in messages] == [(b"1", "odd"), (b"3", "odd"), (b"5", "odd")]
        await made.groups.ack(G, receipts(messages))
        assert [(lag.committed, lag.lag) for lag in await made.groups.lag(G)] == [(6, 0)]


async def test_a_repeated_receive_gets_the_leases_it_has() -> None:
    async with world(values=[b"1", b"2"]) as made:
        await made.send(b"3", partition=1)
        first = await receive(made, max_messages=2, attempt_id="w-1")
        again = await receive(made, max_messages=2, attempt_id="w-1")
        assert [(m.offset, m.partition, m.receipt) for m in again] == [
            (m.offset, m.partition, m.receipt) for m in first
        ]
        assert len(await receive(made, attempt_id="w-2")) == 1


async def test_an_answer_is_bounded_in_bytes_but_never_empty_for_it() -> None:
    async with world(values=[b"x" * 100, b"y" * 100, b"z" * 100]) as made:
        assert len(await receive(made, max_bytes=1)) == 1
        assert len(await receive(made, max_bytes=199)) == 1
        assert len(await receive(made, max_bytes=100)) == 1


async def test_records_of_one_message_group_come_one_after_the_other() -> None:
    async with world(partitions=1) as made:
        await made.groups.configure(G, {"fifo": True})
        for value, name in ((b"a1", b"a"), (b"a2", b"a"), (b"b1", b"b")):
            await made.send(value, headers=[(MESSAGE_GROUP_HEADER, name)])
        first = await receive(made)
        assert [(message.value, message.message_group) for message in first] == [(b"a1", "a"), (b"b1", "b")]
        await made.groups.nack(G, [first[0].receipt], delay_ms=10_000)  # long, and yet in place: order counts
        assert await receive(made) == ()
        await made.tick(10_000)
        (again,) = await receive(made)
        assert (again.value, again.attempt, again.topic) == (b"a1", 2, "orders")
        await made.groups.ack(G, [again.receipt])
        assert values(await receive(made)) == [b"a2"]


async def test_a_long_wait_is_spent_in_the_timer_and_the_record_comes_back_as_itself() -> None:
    async with world(values=[b"1", b"2"]) as made:
        first, second = await receive(made)
        results = await made.groups.nack(G, [first.receipt], delay_ms=5000)
        assert [result.ok for result in results] == [True]
        await made.groups.ack(G, [second.receipt])
        (lag, *_) = [lag for lag in await made.groups.lag(G) if lag.topic == "orders"]
        assert (lag.committed, lag.in_flight, lag.delayed) == (2, 0, 0), "the copy holds nothing back"
        await made.tick(4999)
        assert await receive(made) == ()
        await made.tick(1)
        (again,) = await receive(made)
        assert (again.topic, again.partition, again.offset, again.value, again.attempt) == ("orders", 0, 0, b"1", 2)
        assert again.headers == []
        await made.groups.nack(G, [again.receipt], delay_ms=5000)
        await made.tick(5000)
        (third,) = await receive(made)
        assert (third.topic, third.offset, third.attempt) == ("orders", 0, 3)
        assert (await made.groups.ack(G, [third.receipt]))[0].ok
        assert [result.ok for result in await made.groups.ack(G, [first.receipt])] == [True]  # done, in its place


async def test_the_threshold_between_waiting_in_place_and_in_the_timer() -> None:
    async with world(values=[b"1", b"2"]) as made:
        first, second = await receive(made)
        await made.groups.nack(G, [first.receipt], delay_ms=999)
        assert made.groups.stats.retry_count == 0
        await made.groups.nack(G, [second.receipt], delay_ms=1000)
        assert made.groups.stats.retry_count == 1


async def test_when_the_timer_takes_nothing_a_record_waits_in_place() -> None:
    async with world(values=[b"1"]) as made:
        (first,) = await receive(made)
        made.timer.error = TooManySchedules("full")
        assert (await made.groups.nack(G, [first.receipt], delay_ms=5000))[0].ok
        await made.tick(5000)
        (again,) = await receive(made)
        assert (again.topic, again.attempt) == ("orders", 2)


async def test_a_consumer_gets_retries_of_the_topics_it_names_only() -> None:
    async with world(values=[b"order"]) as made:
        await made.topic("refunds", 1)
        await made.send(b"refund", topic="refunds")
        both = await receive(made, "orders", "refunds")
        await made.groups.nack(G, receipts(both), delay_ms=2000)
        await made.tick(2000)
        assert values(await receive(made, "refunds")) == [b"refund"]
        assert values(await receive(made, "refunds")) == []
        await made.kill()  # what belongs to whom is not remembered, but read
        await made.start()
        assert values(await receive(made, "refunds")) == []
        assert values(await receive(made, "orders")) == [b"order"]


async def test_a_rejected_record_is_in_the_dead_letter_topic_with_its_reason() -> None:
    async with world(values=[b"1", b"2"]) as made:
        first, second = await receive(made)
        assert (await made.groups.reject(G, [first.receipt], "bad schema"))[0].ok
        await made.groups.ack(G, [second.receipt])
        ((value, headers),) = await made.records(dead_letter_topic(G))
        assert value == b"1"
        assert headers == {
            "mq-origin-topic": b"orders",
            "mq-origin-partition": b"0",
            "mq-origin-offset": b"0",
            "mq-origin-keys": b"raw",
            "mq-attempts": b"1",
            "mq-reason": b"bad schema",
            "mq-dead-lettered-at": b"%d" % made.clock.now_ms(),
        }
        assert await committed(made) == 2


async def test_after_the_last_attempt_a_record_is_a_dead_letter_however_it_ended() -> None:
    async with world(values=[b"nacked", b"silent", b"retried"]) as made:
        await made.groups.configure(G, {"max_attempts": 2})
        first = await receive(made, invisible_ms=1000)
        await made.groups.nack(G, receipts(first)[:2], delay_ms=0)
        await made.groups.nack(G, receipts(first)[2:], delay_ms=2000)
        nacked, _silent = await receive(made, invisible_ms=1000)
        await made.groups.nack(G, [nacked.receipt])
        assert [value for value, _ in await made.records(dead_letter_topic(G))] == [b"nacked"]
        await made.tick(2000)
        (retried,) = await receive(made)
        assert retried.attempt == 2
        await made.groups.nack(G, [retried.receipt])
        letters = await made.records(dead_letter_topic(G))
        assert [value for value, _ in letters] == [b"nacked", b"silent", b"retried"]
        assert {headers["mq-attempts"] for _, headers in letters} == {b"2"}
        assert {headers["mq-reason"] for _, headers in letters} == {b"max_attempts"}
        assert {headers["mq-origin-topic"] for _, headers in letters} == {b"orders"}
        assert await receive(made) == ()


async def test_dead_letters_are_sent_back_to_this_group_with_attempts_at_nought() -> None:
    async with world(values=[b"1", b"2", b"3"]) as made:
        await made.groups.reject(G, receipts(await receive(made)), "no")
        assert await made.groups.redrive(G, 2) == 2
        again = await receive(made)
        assert [(m.value, m.topic, m.offset, m.attempt) for m in again] == [
            (b"1", "orders", 0, 1),
            (b"2", "orders", 1, 1),
        ]
        await made.kill()
        await made.start()
        assert await made.groups.redrive(G, 100) == 1
        assert await made.groups.redrive(G, 100) == 0
        assert (await made.groups.receive("other", wanting())).backlog == 0
        with pytest.raises(UnknownGroup):
            await made.groups.redrive("nobody", 1)


async def test_what_was_given_back_comes_at_once_and_does_not_count() -> None:
    async with world(values=[b"1"]) as made:
        (first,) = await receive(made)
        await made.groups.give_back(G, [first.receipt])
        (again,) = await receive(made)
        assert again.attempt == 1


async def test_an_extended_lease_lasts_longer_under_a_new_receipt() -> None:
    async with world(values=[b"1"]) as made:
        (first,) = await receive(made, invisible_ms=1000)
        (result,) = await made.groups.extend(G, [first.receipt], 5000)
        await made.tick(4999)
        assert await receive(made) == ()
        assert result.new_receipt is not None
        assert (await made.groups.ack(G, [result.new_receipt]))[0].ok


async def test_everything_up_to_an_offset_is_acked() -> None:
    async with world(values=[b"1", b"2", b"3"]) as made:
        await receive(made)
        assert await made.groups.ack_up_to(G, TopicPartition("orders", 0), 1) == 2
        assert await committed(made) == 2
        assert await made.groups.ack_up_to("nobody", TopicPartition("orders", 0), 1) == 0


async def test_a_group_has_a_bound_on_what_is_out_over_all_partitions() -> None:
    made = World()
    made.limits = replace(made.limits, group_in_flight_max=4)
    await made.start()
    await made.topic()
    for partition in (0, 1):
        await made.send(b"1", b"2", b"3", partition=partition)
    first = await receive(made)
    assert len(first) == 4  # n
    with pytest.raises(GroupFull):
        await receive(made)  # n + 1
    waiting = asyncio.ensure_future(receive(made, wait_ms=60_000))
    for _ in range(20):
        await asyncio.sleep(0)
    await made.groups.ack(G, [first[0].receipt])
    assert len(await asyncio.wait_for(waiting, WOKEN_S)) == 1
    await made.stop()


async def test_the_bound_holds_for_receives_at_the_same_time() -> None:
    made = World()
    made.limits = replace(made.limits, group_in_flight_max=4)
    await made.start()
    await made.topic(partitions=8)
    for partition in range(8):
        await made.send(b"1", b"2", b"3", partition=partition)
    answers = await asyncio.gather(*(receive(made, max_messages=3) for _ in range(8)), return_exceptions=True)
    assert sum(len(answer) for answer in answers if isinstance(answer, tuple)) == 4
    await made.stop()


async def test_a_topic_that_was_deleted_takes_its_leases_along() -> None:
    async with world(values=[b"1"]) as made:
        (first,) = await receive(made)
        await made.broker.delete_topic("orders")
        await made.groups.stream.topics_changed()
        assert [result.error_code for result in await made.groups.ack(G, [first.receipt])] == [LEASE_OVER]
        with pytest.raises(UnknownQueue):
            await receive(made)
        await made.topic()
        assert await receive(made) == ()


async def test_a_group_is_in_one_mode_at_a_time() -> None:
    async with world(values=[b"1"]) as made:
        (first,) = await receive(made)
        with pytest.raises(GroupActive):
            await made.groups.join(G, "m", ORDERS)
        await made.groups.ack(G, [first.receipt])
        await made.groups.join(G, "m", ORDERS)
        with pytest.raises(GroupActive):
            await receive(made)


@pytest.mark.parametrize(("name", "limit"), [("max_messages", RECEIVE_MESSAGES_MAX), ("max_bytes", RECEIVE_BYTES_MAX)])
async def test_what_a_receive_asks_for_has_limits(name: str, limit: int) -> None:
    async with world() as made:
        for good in (1, limit):
            assert await receive(made, **{name: good}) == ()
        for bad in (0, limit + 1):
            with pytest.raises(IllegalRequest):
                await receive(made, **{name: bad})


async def test_other_limits_of_queue_mode() -> None:
    async with world(values=[b"1"]) as made:
        (first,) = await receive(made)
        with pytest.raises(IllegalRequest):
            await made.groups.receive(G, Receive(topics=()))
        with pytest.raises(IllegalRequest):
            await receive(made, invisible_ms=43_200_001)
        assert len(await made.groups.ack(G, ["x"] * RECEIPTS_MAX)) == RECEIPTS_MAX
        with pytest.raises(IllegalRequest):
            await made.groups.ack(G, ["x"] * (RECEIPTS_MAX + 1))
        with pytest.raises(IllegalRequest):
            await made.groups.reject(G, [first.receipt], "r" * (REASON_BYTES_MAX + 1))
        assert (await made.groups.reject(G, [first.receipt], "r" * REASON_BYTES_MAX))[0].ok
        assert await made.groups.redrive(G, REDRIVE_MAX) == 1
        for bad in (0, REDRIVE_MAX + 1):
            with pytest.raises(IllegalRequest):
                await made.groups.redrive(G, bad)


async def test_receipts_survive_a_restart_and_are_one_groups_own() -> None:
    async with world(values=[b"1", b"2"]) as made:
        first, second = await receive(made)
        await made.stop()
        await made.start()
        assert await receive(made) == ()
        assert [result.error_code for result in await made.groups.ack("other", [first.receipt])] == [RECEIPT_ILLEGAL]
        assert (await made.groups.ack(G, [first.receipt]))[0].ok
        await made.kill()
        await made.start()
        assert (await made.groups.ack(G, [second.receipt]))[0].ok
        assert await committed(made) == 2


async def test_a_receipt_that_is_named_twice_counts_once() -> None:
    async with world(values=[b"1"]) as made:
        (first,) = await receive(made)
        results = await made.groups.nack(G, [first.receipt, first.receipt], delay_ms=2000)
        assert [result.ok for result in results] == [True, True]
        await made.tick(2000)
        assert len(await receive(made)) == 1


async def test_both_receipts_of_an_extended_lease_mean_one_record() -> None:
    async with world(values=[b"1"]) as made:
        (first,) = await receive(made)
        (extended,) = await made.groups.extend(G, [first.receipt], 5000)
        assert extended.new_receipt is not None
        results = await made.groups.nack(G, [first.receipt, extended.new_receipt], delay_ms=2000)
        assert [result.ok for result in results] == [True, True]
        await made.tick(2000)
        assert len(await receive(made)) == 1


@pytest.mark.parametrize("max_attempts", [2, 3])
async def test_fewer_attempts_end_a_record_that_is_out_whether_or_not_it_is_given_back(max_attempts: int) -> None:
    async with world(values=[b"1"]) as made:
        await made.groups.configure(G, {"backoff_ms": [0]})
        for _ in range(3):
            (out,) = (await made.groups.receive(G, wanting(invisible_ms=60_000))).messages
            if out.attempt < 3:
                await made.groups.nack(G, [out.receipt])
        await made.groups.configure(G, {"max_attempts": max_attempts})
        await made.groups.give_back(G, [out.receipt])  # its last attempt does not count
        await made.tick(60_000)
        again = (await made.groups.receive(G, wanting())).messages
        if max_attempts == 3:
            assert values(again) == [b"1"]
            return
        assert not again
        assert len(await made.records(dead_letter_topic(G))) == 1


async def test_more_attempts_bring_back_what_could_not_be_dead_lettered(monkeypatch: pytest.MonkeyPatch) -> None:
    async def refused(*_: object) -> None:
        raise DiskFull("full")

    async with world(values=[b"1"]) as made:
        await made.groups.configure(G, {"max_attempts": 1})
        await made.groups.receive(G, wanting(invisible_ms=1_000))
        with monkeypatch.context() as patch:
            patch.setattr(made, "create_own_topic", refused)
            await made.tick(2_000)
            assert not (await made.groups.receive(G, wanting())).messages
            await made.groups.configure(G, {"max_attempts": 2})
        assert values((await made.groups.receive(G, wanting())).messages) == [b"1"]


async def test_a_lease_may_be_set_to_last_so_long_and_no_longer() -> None:
    async with world(values=[b"1"]) as made:
        longest = {"invisible_ms_max": INVISIBLE_MS_LIMIT, "invisible_ms": INVISIBLE_MS_LIMIT}
        await made.groups.configure(G, longest)
        assert len((await made.groups.receive(G, wanting())).messages) == 1
        with pytest.raises(IllegalRequest, match="invisible_ms_max"):
            await made.groups.configure(G, {"invisible_ms_max": INVISIBLE_MS_LIMIT + 1})


async def test_members_of_a_broadcasting_group_have_its_settings_after_a_restart() -> None:
    async with world() as made:
        await made.groups.configure(G, {"mode": "broadcast", "session_timeout_ms": 600_000})
        _, share = await made.groups.join(G, "one", ORDERS)
        await made.groups.leave(G, MemberKey("one", share.generation))
        await made.stop()
        await made.start()
        await made.groups.join(G, "one", ORDERS)
        assert made.groups.members(G)["one"].session_timeout_ms == 600_000
