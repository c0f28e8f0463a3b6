"""Reader mode, produce and what surrounds them, over the real producer and consumer and a broker in memory."""

from __future__ import annotations

import asyncio
from typing import Any

import orjson
import pytest

from gateway.settings.limits import Limits
from gateway.surfaces.ws.outbox import Closing
from gateway.surfaces.ws.protocol import CloseCode
from store.errors import Corrupt
from store.types import QueueKey
from tests.clock import START_MS
from tests.gateway.surfaces.ws.talk import Frame, subscribe, talking
from tests.waiting import until


async def test_hello_tells_the_limits() -> None:
    async with talking({}) as talk:
        answer = await talk.ask({"id": 1, "op": "hello", "client": "t", "resume": "sess_1"})
        assert (answer["id"], answer["ok"], answer["resumed"], answer["binary"]) == (1, True, False, False)
        assert answer["limits"]["max_subs"] == 64
        assert answer["ping_ms"] == 25_000


async def test_what_is_produced_comes_back_in_order_with_its_cursor() -> None:
    async with talking({"orders": 2}) as talk:
        records = [{"key": "k", "value": {"n": 1}, "tag": "paid", "headers": [{"key": "h", "text": "x"}]}]
        answer = await talk.ask({"id": 7, "op": "produce", "topic": "orders", "records": records, "partition": 1})
        assert answer == {"id": 7, "ok": True, "acks": "flushed", "offsets": [{"partition": 1, "offset": 0}]}
        answer = await talk.ask(subscribe())
        assert answer["partitions"] == {"orders": [0, 1]}
        assert answer["cursor"] == "orders:0=0;orders:1=0"
        assert answer["epochs"] == {"orders": "16"}
        (message,) = await talk.messages(1)
        assert message["key"] == "k"
        assert message["value"] == {"n": 1}
        assert message["tag"] == "paid"
        assert message["headers"] == [{"key": "h", "value": "eA=="}]
        assert (message["topic"], message["partition"], message["offset"]) == ("orders", 1, 0)
        assert message["cursor"] == "orders:1=1"
        assert await talk.hear() == {"op": "caught_up", "sub": "s", "cursor": "orders:0=0;orders:1=1"}


async def test_a_follower_is_woken_and_hears_caught_up_once() -> None:
    async with talking({"orders": 1}) as talk:
        await talk.say(subscribe(**{"from": "latest"}))
        await talk.hear()
        assert (await talk.hear())["op"] == "caught_up"
        for n in range(3):
            await talk.say({"op": "produce", "topic": "orders", "records": [{"value": n}], "ack": False})
            assert [message["value"] for message in await talk.messages(1)] == [n]
        await talk.quiet()


async def test_frames_hold_at_most_a_batch_and_the_target_of_bytes() -> None:
    async with talking({"orders": 1}) as talk:
        await talk.fill("orders", 600, per_batch=100)
        await talk.say(subscribe(batch=250))
        await talk.hear()
        frames = [await talk.hear() for _ in range(3)]
        assert [len(frame["messages"]) for frame in frames] == [250, 250, 100]
        assert [frame["credit"] for frame in frames] == [750, 750, 900]  # all returned once handed over
        large = [{"value": "x" * 100_000}] * 4
        await talk.ask({"op": "produce", "topic": "orders", "records": large, "ack": False})  # the answer: caught_up
        assert [len((await talk.hear())["messages"]) for _ in range(2)] == [2, 2]


@pytest.mark.parametrize("per_batch", [1, 7, 3000])
async def test_without_automatic_credit_only_permit_grants_more(per_batch: int) -> None:
    async with talking({"orders": 1}) as talk:
        await talk.fill("orders", 3000, per_batch=per_batch)
        await talk.say(subscribe(credit=5, auto_credit=False))
        await talk.hear()
        assert [message["offset"] for message in await talk.messages(5)] == list(range(5))
        await talk.quiet()
        await talk.say({"op": "permit", "sub": "s", "messages": 2000})
        assert [message["value"] for message in await talk.messages(2000)] == list(range(5, 2005))
        await talk.quiet()
        await talk.say({"op": "permit", "sub": "s", "messages": 0})
        await talk.quiet()
        await talk.say({"op": "permit", "sub": "s", "messages": 1})
        assert (await talk.messages(1))[0]["offset"] == 2005


@pytest.mark.parametrize("field", ["credit", "credit_bytes"])
async def test_credit_up_to_its_limit_is_granted_and_one_more_is_refused(field: str) -> None:
    limits = Limits()
    most = {"credit": limits.ws_credit_max, "credit_bytes": limits.ws_credit_bytes_max}[field]
    async with talking({"orders": 1}) as talk:
        refused = await talk.ask(subscribe(**{field: most + 1}))
        assert (refused["ok"], refused["error_code"]) == (False, 42253)
        assert (await talk.ask(subscribe(**{field: most})))["ok"]


async def test_bytes_are_counted_as_the_frame_says_and_a_large_message_goes_alone() -> None:
    async with talking({"orders": 1}) as talk:
        for size in (10, 10, 5000, 10):
            await talk.ask({"id": 1, "op": "produce", "topic": "orders", "records": [{"value": "x" * size}]})
        await talk.say(subscribe(credit=100, credit_bytes=500, auto_credit=False))
        await talk.hear()
        small = [await talk.hear()]
        assert len(small[0]["messages"]) == 2
        for frame in small:
            assert frame["bytes"] == sum(len(orjson.dumps(message)) for message in frame["messages"])
        in_flight = sum(frame["bytes"] for frame in small)
        assert small[0]["credit_bytes"] == 500 - in_flight
        await talk.quiet()
        await talk.say({"op": "permit", "sub": "s", "messages": 2, "bytes": in_flight - 1})
        await talk.quiet()
        await talk.say({"op": "permit", "sub": "s", "bytes": 1})
        large = await talk.hear()
        assert [message["offset"] for message in large["messages"]] == [2]
        assert large["credit_bytes"] == 500 - large["bytes"] < 0
        await talk.quiet()
        await talk.say({"op": "permit", "sub": "s", "bytes": large["bytes"]})
        assert [message["offset"] for message in await talk.messages(1)] == [3]


async def test_pause_stops_and_resume_goes_on() -> None:
    async with talking({"orders": 1}) as talk:
        await talk.say(subscribe(), {"op": "pause", "sub": "s"})
        await talk.hear()
        await talk.fill("orders", 10)
        await talk.quiet()
        assert (await talk.ask({"id": 2, "op": "resume", "sub": "s"}))["ok"]
        assert len(await talk.messages(10)) == 10


async def test_after_unsubscribe_nothing_comes_and_the_name_is_free() -> None:
    async with talking({"orders": 1}) as talk:
        await talk.say(subscribe())
        await talk.hear()
        assert (await talk.hear())["op"] == "caught_up"
        assert await talk.ask({"id": 2, "op": "unsubscribe", "sub": "s"}) == {"id": 2, "ok": True, "sub": "s"}
        await talk.fill("orders", 10)
        await talk.quiet()
        assert talk.gateway.stats.ws_subscription_count == 0
        assert (await talk.ask(subscribe()))["ok"]


@pytest.mark.parametrize(
    ("start", "first"),
    [
        ("earliest", 0),
        ({"timestamp": START_MS + 1}, 20),
        ({"orders": {"0": 17}}, 17),
        ("orders:0=30", 30),
        ({"orders": {}}, 0),
    ],
)
async def test_a_reader_begins_where_it_asked(start: Any, first: int) -> None:
    async with talking({"orders": 1}) as talk:
        await talk.fill("orders", 20)
        talk.broker.clock.step(1)
        await talk.fill("orders", 20, first=20)
        await talk.say(subscribe(**{"from": start}))
        await talk.hear()
        assert (await talk.messages(1))[0]["offset"] == first


async def test_order_holds_within_each_partition_and_none_starves() -> None:
    async with talking({"orders": 3}) as talk:
        for partition in range(3):
            await talk.fill("orders", 1200, per_batch=100, partition=partition)
        await talk.say(subscribe(batch=50))
        await talk.hear()
        seen: dict[int, list[int]] = {0: [], 1: [], 2: []}
        for message in await talk.messages(3600):
            seen[message["partition"]].append(message["offset"])
        assert seen == {partition: list(range(1200)) for partition in range(3)}
        assert (await talk.hear())["cursor"] == "orders:0=1200;orders:1=1200;orders:2=1200"


async def test_one_subscription_without_credit_does_not_hold_up_another() -> None:
    async with talking({"orders": 1}) as talk:
        await talk.fill("orders", 30)
        await talk.say(subscribe("starved", credit=0), subscribe("fed"))
        await talk.hear()
        await talk.hear()
        frame = await talk.hear()
        assert (frame["sub"], len(frame["messages"])) == ("fed", 30)


@pytest.mark.parametrize(
    ("command", "code"),
    [
        ({"op": "fly"}, 422),
        ({"op": "produce", "topic": "missing", "records": [{"value": 1}]}, 40401),
        ({"op": "produce", "topic": "orders", "records": []}, 422),
        ({"op": "produce", "topic": "orders"}, 422),
        ({"op": "produce", "topic": "orders", "records": {"value": 1}}, 400),
        ({"op": "produce", "topic": "orders", "records": [{"value": 1}, {"value": 1, "delay_ms": -1}]}, 42250),
        ({"op": "produce", "topic": "orders", "records": [{"value": 1, "delayms": 1}]}, 422),
        ({"op": "produce", "topic": "orders", "records": [{"value": 1}], "partition": 9}, 40402),
        ({"op": "produce", "topic": "orders", "records": [{"value": 1}] * 11}, 42208),
        ({"op": "subscribe", "sub": "s", "topics": ["missing"]}, 40401),
        ({"op": "subscribe", "sub": "s", "topics": ["orders"], "from": {"orders": {"0": 1}}}, 41601),
        ({"op": "subscribe", "sub": "s", "topics": ["orders"], "from": {"orders": {"1": 0}}}, 40402),
        ({"op": "subscribe", "sub": "s", "topics": ["orders"], "epochs": {"orders": "77"}}, 40953),
        ({"op": "subscribe", "sub": "s", "topics": ["orders"], "credit": 101}, 42253),
        ({"op": "permit", "sub": "nobody", "messages": 1}, 40450),
        ({"op": "unsubscribe", "sub": "nobody"}, 40450),
    ],
)
async def test_a_refused_command_stores_nothing_and_the_socket_stays(command: Frame, code: int) -> None:
    async with talking({"orders": 1}, limits=Limits(records_per_request_max=10, ws_credit_max=100)) as talk:
        answer = await talk.ask({"id": 5, **command})
        assert (answer["id"], answer["ok"], answer["error_code"]) == (5, False, code), answer
        assert "op" not in answer
        push = await talk.ask(command)
        assert (push["op"], push["error_code"]) == ("error", code)
        assert "id" not in push
        assert talk.broker.append_count == 0
        assert (await talk.ask({"id": 6, "op": "ping"}))["ok"]
        assert talk.gateway.stats.ws_subscription_count == 0


async def test_the_number_of_subscriptions_is_limited() -> None:
    async with talking({"orders": 1}, limits=Limits(ws_subscriptions_max=2)) as talk:
        for n in range(2):
            await talk.say({"id": n, "op": "subscribe", "sub": str(n), "topics": ["orders"], "credit": 0})
            assert (await talk.hear())["ok"]
        assert (await talk.ask({"id": 9, "op": "subscribe", "sub": "2", "topics": ["orders"]}))["error_code"] == 42950
        again = await talk.ask({"id": 9, "op": "subscribe", "sub": "1", "topics": ["orders"]})
        assert again["error_code"] == 40960


async def test_credit_beyond_the_limit_is_refused_at_n_plus_1() -> None:
    async with talking({"orders": 1}, limits=Limits(ws_credit_max=100)) as talk:
        assert (await talk.ask(subscribe(credit=99)))["ok"]
        assert (await talk.hear())["op"] == "caught_up"
        assert (await talk.ask({"id": 2, "op": "permit", "sub": "s", "messages": 1}))["ok"]
        assert (await talk.ask({"id": 3, "op": "permit", "sub": "s", "messages": 1}))["error_code"] == 42253


async def test_a_frame_that_is_no_command_ends_the_conversation() -> None:
    async with talking({}) as talk:
        with pytest.raises(Closing) as closing:
            await talk.conversation.take("{")
        assert closing.value.code is CloseCode.BAD_FRAME
        assert (await talk.hear())["op"] == "error"


@pytest.mark.parametrize("by_itself", [True, False])
async def test_produces_share_their_wait_and_keep_their_order(by_itself: bool) -> None:
    async with talking({"orders": 1}) as talk:
        talk.broker.hold = asyncio.Event()
        for n in range(20):
            key = {"idempotency_key": str(n)} if by_itself else {}
            await talk.say({"id": n, "op": "produce", "topic": "orders", "records": [{"value": n}], **key})
        # All are with the store before any is answered.
        await until(lambda: talk.broker.append_count == (20 if by_itself else 1))
        assert sum(append.record_count for append in talk.broker.appends) == 20
        await talk.quiet()
        talk.broker.hold.set()
        answers = [await talk.hear() for _ in range(20)]
        assert [(answer["id"], answer["offsets"][0]["offset"]) for answer in answers] == [(n, n) for n in range(20)]


async def test_unanswered_produces_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gateway.surfaces.ws.in_flight.WORK_BYTES_MAX", 150)
    async with talking({"orders": 1}) as talk:
        talk.broker.hold = asyncio.Event()
        produce = {"op": "produce", "topic": "orders", "records": [{"value": "x" * 30}]}
        await talk.say({"id": 1, **produce})
        second = asyncio.create_task(talk.say({"id": 2, **produce}))
        await talk.quiet()
        assert not second.done()
        talk.broker.hold.set()
        await second
        assert [(await talk.hear())["id"] for _ in range(2)] == [1, 2]


async def test_a_delayed_record_answers_with_its_schedule() -> None:
    async with talking({"orders": 1}) as talk:
        records = [{"value": 1, "delay_ms": 60_000}, {"value": 2}]
        answer = await talk.ask({"id": 1, "op": "produce", "topic": "orders", "records": records})
        delayed, immediate = answer["offsets"]
        assert delayed["offset"] is None
        assert delayed["deliver_at"] == START_MS + 60_000
        assert delayed["schedule_id"]
        assert immediate == {"partition": 0, "offset": 0}


async def test_retention_that_overtakes_a_reader_ends_its_subscription_with_the_bounds() -> None:
    async with talking({"orders": 1}) as talk:
        await talk.fill("orders", 100)
        await talk.say(subscribe(credit=10, auto_credit=False))
        await talk.hear()
        await talk.messages(10)
        await talk.quiet()  # what was read before is served; retention meets the next read
        talk.broker.min_offsets[QueueKey(16, 0)] = 50
        await talk.say({"op": "permit", "sub": "s", "messages": 10})
        error = await talk.hear()
        assert (error["op"], error["sub"], error.get("error_code")) == ("error", "s", 41601)
        assert error["details"]["beginning_offset"] == 50
        assert (await talk.ask({"id": 3, "op": "permit", "sub": "s"}))["error_code"] == 40450


async def test_a_read_that_fails_ends_only_its_subscription() -> None:
    async with talking({"orders": 1}) as talk:
        await talk.say(subscribe())
        await talk.hear()
        await talk.hear()
        talk.broker.error = Corrupt("commitlog/0", 17, "CRC")
        talk.broker.wake()
        error = await talk.hear()
        assert (error["op"], error["sub"], error["error_code"]) == ("error", "s", 50002)
        talk.broker.error = None
        assert (await talk.ask(subscribe()))["ok"]


async def test_go_away_waits_for_the_answers_of_produces() -> None:
    async with talking({"orders": 1}) as talk:
        talk.broker.hold = asyncio.Event()
        await talk.say(subscribe(), {"id": 2, "op": "produce", "topic": "orders", "records": [{"value": 1}]})
        leaving = asyncio.create_task(talk.conversation.go_away(1500))
        said: list[Frame] = []
        while not said or said[-1].get("op") != "goaway":
            said.append(await talk.hear())
        resume = talk.session.name
        assert said[-1] == {"op": "goaway", "reason": "shutdown", "reconnect_after_ms": 1500, "resume": resume}
        await talk.quiet()
        assert not leaving.done()
        talk.broker.hold.set()
        await leaving
        assert (await talk.hear())["id"] == 2
        await talk.quiet()
