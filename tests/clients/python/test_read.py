"""mq.read, mq.partitioned and mq.subscription: readers."""

from __future__ import annotations

import asyncio
from typing import Any

import msgspec
import pytest
from mq.errors import MqError, Refused, Undecodable

from tests.clients.python.peer import Peer, connected, settle, subscribed


async def take(iterator: Any, count: int) -> list[int]:
    return [(await anext(iterator)).offset for _ in range(count)]


async def test_what_is_asked_for_goes_on_the_wire_under_the_protocols_names_and_nothing_else() -> None:
    peer = Peer()
    async with connected(peer) as client:
        client.read("t", start="earliest", tags=["a", "b"], credit=7)
        assert {**await subscribed(peer), "id": 0} == {
            "id": 0, "op": "subscribe", "sub": "s1", "mode": "reader", "topics": ["t"], "filter": "tag:a||b",
            "from": "earliest", "credit": 7, "auto_credit": False,
        }  # fmt: skip
        client.read(pattern="t.*", cursor="t:0=5")
        command = await subscribed(peer)
        assert (command["pattern"], command["from"], "topics" in command) == ("t.*", "t:0=5", False)
        client.read(["t", "u"], start=1_767_225_600.0)
        assert (await subscribed(peer))["from"] == {"timestamp": 1_767_225_600_000}
        for wrong in (
            {},
            {"topics": "t", "pattern": "t"},
            {"topics": "t", "start": "first"},
            {"topics": "t", "tags": "a"},
        ):
            with pytest.raises(MqError):
                client.read(**wrong)


async def test_messages_come_in_order_also_those_in_the_packet_of_the_answer() -> None:
    peer = Peer()
    async with connected(peer) as client:
        reader = client.read("t")
        command = await peer.link.take("subscribe")
        peer.link.ok(command, partitions={"t": [0]}, cursor="t:0=0", credit=1)
        peer.link.messages("s1", 1, range(3))
        peer.link.messages("s1", 2, [3])
        iterator = aiter(reader)
        assert await take(iterator, 4) == [0, 1, 2, 3]
        assert reader.cursor == "t:0=4"


async def test_credit_is_returned_as_frames_are_worked_off_and_never_before() -> None:
    peer = Peer()
    async with connected(peer) as client:
        iterator = aiter(client.read("t", credit=10))
        await subscribed(peer)
        peer.link.messages("s1", 1, range(4))
        peer.link.messages("s1", 2, range(4, 10))
        await settle()
        assert not peer.link.has("permit")
        await take(iterator, 4)
        assert not peer.link.has("permit")
        await take(iterator, 6)  # 4 are free: less than half
        assert not peer.link.has("permit")
        waiting = asyncio.ensure_future(anext(iterator))
        assert (await peer.link.take("permit"))["messages"] == 10
        peer.link.messages("s1", 3, [10])
        await waiting


@pytest.mark.behaviour(19)
async def test_a_session_that_is_resumed_goes_on_behind_the_last_frame_with_the_credit_that_is_due() -> None:
    peer = Peer()
    async with connected(peer) as client:
        iterator = aiter(client.read("t", credit=10))
        await subscribed(peer)
        peer.link.messages("s1", 1, range(6))
        await take(iterator, 6)
        waiting = asyncio.ensure_future(anext(iterator))
        await peer.link.take("permit")
        peer.link.end()  # the permit may not have arrived
        state = {"mode": "reader", "seq": 1, "partitions": {"t": [0]}, "cursor": "t:0=6", "credit": 4, "paused": False}
        hello = await peer.again(resumed=True, subs={"s1": state})
        assert (hello["resume"], hello["seen"]) == ("s1", {"s1": 1})
        assert (await peer.link.take("permit"))["messages"] == 6
        assert not peer.link.has("subscribe")
        peer.link.messages("s1", 2, [6])
        assert (await waiting).offset == 6


@pytest.mark.behaviour(20, 22)
async def test_without_its_session_it_subscribes_again_from_its_cursor_with_the_epochs_and_keeps_what_it_has() -> None:
    peer = Peer()
    async with connected(peer) as client:
        reader = client.read("t", start="earliest", credit=10)
        iterator = aiter(reader)
        await subscribed(peer)
        peer.link.messages("s1", 1, range(4))
        assert await take(iterator, 2) == [0, 1]
        peer.link.end()
        await peer.again()
        command = await subscribed(peer, cursor="t:0=4")
        assert (command["from"], command["epochs"], command["credit"]) == ("t:0=4", {"t": "7"}, 6)
        peer.link.messages("s1", 1, [4, 5])
        assert await take(iterator, 4) == [2, 3, 4, 5]
        assert reader.cursor == "t:0=6"


async def test_a_pattern_that_had_matched_nothing_is_read_from_the_first_record_when_its_session_was_lost() -> None:
    peer = Peer()
    async with connected(peer) as client:
        iterator = aiter(client.read(pattern="t.*", start="latest"))
        assert (await subscribed(peer))["from"] == "latest"
        peer.link.push(op="revoked", sub="s1", partitions={"t": [0]}, lost=True)
        await settle()
        peer.link.end()
        await peer.again()
        command = await subscribed(peer, cursor="t:0=0")
        assert command["from"] == "earliest"
        assert not command.get("epochs"), "a topic of that name is another one now"
        peer.link.messages("s1", 1, [0])
        assert await take(iterator, 1) == [0]


async def test_a_topic_of_a_pattern_that_was_made_again_is_read_from_its_first_record_and_others_go_on() -> None:
    peer = Peer()
    async with connected(peer) as client:
        reader = client.read(pattern="[tu]", start="earliest")
        iterator = aiter(reader)
        both: dict[str, Any] = {"partitions": {"t": [0], "u": [0]}, "epochs": {"t": "16", "u": "17"}}
        await subscribed(peer, cursor="t:0=5;u:0=7", **both)
        peer.link.messages("s1", 1, [5, 6])
        assert await take(iterator, 1) == [5]
        peer.link.end()
        await peer.again()
        refused = await peer.link.take("subscribe")
        assert (refused["from"], refused["epochs"]) == ("t:0=7;u:0=7", both["epochs"])
        peer.link.no(refused, 40953, details={"topic": "t", "epoch": "18"})
        again = await subscribed(peer, cursor="t:0=0;u:0=7", **both)
        assert (again["from"], again["epochs"]) == ("u:0=7", {"u": "17"})
        peer.link.messages("s1", 1, [0, 1])
        assert await take(iterator, 2) == [0, 1]
        assert reader.cursor == "u:0=7;t:0=2"


async def test_a_frame_that_is_missing_is_not_passed_over_and_one_that_comes_twice_is() -> None:
    peer = Peer()
    async with connected(peer) as client:
        iterator = aiter(client.read("t"))
        await subscribed(peer)
        peer.link.messages("s1", 1, [0])
        peer.link.messages("s1", 1, [0])
        peer.link.messages("s1", 2, [1])
        assert await take(iterator, 2) == [0, 1]
        peer.link.messages("s1", 4, [3])
        with pytest.raises(Undecodable, match="frame 4 of a subscription came after frame 2"):
            await anext(iterator)


@pytest.mark.behaviour(24, 25)
@pytest.mark.parametrize("code", [40953, 41601, 40401])
async def test_a_reader_gets_what_has_come_then_the_error_that_ended_it(code: int) -> None:
    peer = Peer()
    async with connected(peer) as client:
        iterator = aiter(client.read("t"))
        await subscribed(peer)
        peer.link.messages("s1", 1, [0])
        peer.link.push(op="error", sub="s1", error_code=code, message="over", details={"a": 1})
        await settle()
        assert await take(iterator, 1) == [0]
        with pytest.raises(Refused, match="over") as caught:
            await anext(iterator)
        assert (caught.value.code, caught.value.details) == (code, {"a": 1})
        assert client.state == "open"


async def test_a_subscription_that_is_refused_raises_where_it_is_used_and_one_that_may_work_later_is_tried_again() -> (
    None
):
    peer = Peer()
    async with connected(peer) as client:
        reader = client.read("t")
        peer.link.no(await peer.link.take("subscribe"), 40401)
        with pytest.raises(Refused):
            async with reader:
                pass
        again = client.read("t")
        peer.link.no(await peer.link.take("subscribe"), 42901, retriable=True, retry_after_ms=3000)
        await peer.pass_time(3.1)
        await subscribed(peer)
        await again.ready()


@pytest.mark.behaviour(27)
async def test_partitions_that_come_later_are_followed_and_those_that_are_deleted_forgotten() -> None:
    peer = Peer()
    assigned: list[Any] = []
    async with connected(peer) as client:
        reader = client.read(pattern="t.*", on_assigned=assigned.append)
        iterator = aiter(reader)
        await subscribed(peer)
        peer.link.push(op="assigned", sub="s1", partitions={"t": [1]}, cursor="t:1=0")
        peer.link.messages("s1", 1, [0], partition=1)
        assert await take(iterator, 1) == [0]
        assert reader.cursor == "t:0=0;t:1=1"
        peer.link.push(op="revoked", sub="s1", partitions={"t": [0]}, lost=True)
        await settle()
        assert reader.cursor == "t:1=1"
        assert assigned == [{"t": [0]}, {"t": [1]}]


@pytest.mark.behaviour(28)
async def test_caught_up_is_told_once_and_once_more_after_a_seek() -> None:
    peer = Peer()
    told: list[int] = []
    async with connected(peer) as client:
        reader = client.read("t", on_caught_up=lambda: told.append(1))
        await subscribed(peer)
        for _ in range(2):
            peer.link.push(op="caught_up", sub="s1", cursor="t:0=0")
        await settle()
        assert len(told) == 1
        seeking = asyncio.ensure_future(reader.seek("earliest"))
        peer.link.ok(await peer.link.take("seek"), cursor="t:0=0")
        await seeking
        peer.link.push(op="caught_up", sub="s1", cursor="t:0=0")
        await settle()
        assert len(told) == 2


@pytest.mark.behaviour(29)
async def test_seek_drops_what_waits_with_its_credit_and_the_rest_of_the_frame_in_hand() -> None:
    peer = Peer()
    async with connected(peer) as client:
        reader = client.read("t", credit=10)
        iterator = aiter(reader)
        await subscribed(peer)
        peer.link.messages("s1", 1, range(4))
        assert await take(iterator, 2) == [0, 1]
        seeking = asyncio.ensure_future(reader.seek({"t": {"0": 50}}))
        command = await peer.link.take("seek")
        assert command["to"] == {"t": {"0": 50}}
        peer.link.messages("s1", 2, [4, 5])
        peer.link.ok(command, sub="s1", cursor="t:0=50")
        await seeking
        assert reader.cursor == "t:0=50"
        peer.link.messages("s1", 3, [50, 51])
        assert await take(iterator, 2) == [50, 51]
        assert sum(command["messages"] for command in peer.link.commands if command["op"] == "permit") == 6


@pytest.mark.behaviour(31)
async def test_batches_are_whole_frames() -> None:
    peer = Peer()
    async with connected(peer) as client:
        reader = client.read("t")
        batches = reader.batches()
        await subscribed(peer)
        peer.link.messages("s1", 1, range(3))
        peer.link.messages("s1", 2, [3])
        assert [message.value for message in await anext(batches)] == [0, 1, 2]
        assert reader.cursor == "t:0=3"
        assert [message.value for message in await anext(batches)] == [3]


async def test_leaving_the_loop_ends_the_subscription() -> None:
    peer = Peer()
    async with connected(peer) as client:
        reader = client.read("t")

        async def first() -> int:
            async for message in reader:
                return message.offset
            raise AssertionError

        reading = asyncio.ensure_future(first())
        await subscribed(peer)
        peer.link.messages("s1", 1, [0])
        assert await reading == 0
        assert (await peer.link.take("unsubscribe"))["sub"] == "s1"
        with pytest.raises(MqError, match="another loop"):
            await anext(aiter(reader))


async def test_pause_outlives_the_connection() -> None:
    peer = Peer()
    async with connected(peer) as client:
        reader = client.read("t")
        await subscribed(peer)
        pausing = asyncio.ensure_future(reader.pause())
        peer.link.ok(await peer.link.take("pause"), sub="s1")
        await pausing
        peer.link.end()
        await peer.again()
        await subscribed(peer)
        await peer.link.take("pause")
        resuming = asyncio.ensure_future(reader.resume())
        peer.link.ok(await peer.link.take("resume"), sub="s1")
        await resuming


async def test_values_are_read_as_the_type_asked_for() -> None:
    class Point(msgspec.Struct):
        x: int

    peer = Peer()
    async with connected(peer) as client:
        iterator = aiter(client.read("t", as_=Point))
        await subscribed(peer)
        peer.link.messages("s1", 1, [0])
        message = await anext(iterator)
        with pytest.raises(Undecodable, match="the value is no Point"):
            _ = message.value
        message.value_bytes = b'{"x":3}'
        assert message.value == Point(3)
        with pytest.raises(MqError, match="read as a group"):
            message.ack()


async def test_an_error_in_a_hook_is_told_to_the_loop_and_the_frame_is_taken_in() -> None:
    peer = Peer()
    caught: list[Any] = []
    asyncio.get_running_loop().set_exception_handler(lambda loop, about: caught.append(about["exception"]))
    async with connected(peer) as client:
        iterator = aiter(client.read("t", on_assigned=lambda partitions: 1 / 0))
        await subscribed(peer)
        peer.link.messages("s1", 1, [0])
        assert await take(iterator, 1) == [0]
    assert [type(error) for error in caught] == [ZeroDivisionError]
