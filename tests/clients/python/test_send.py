"""mq.send and mq.record: what is sent, in what company, and what becomes of it."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime
from typing import Any

import mq
import pytest
from mq.errors import ConnectionLost, MqError, QueueFull, Refused
from mq.middleware import Outgoing
from mq.send import COMMAND_RECORDS_MAX

from tests.clients.python.peer import Peer, connected, settle


@pytest.mark.behaviour(4)
async def test_sends_of_one_turn_travel_together_and_each_gets_its_own_receipt() -> None:
    peer = Peer()
    async with connected(peer) as client:
        before = peer.link.frame_count
        sends = [client.send("t", n) for n in range(COMMAND_RECORDS_MAX + 1)]
        first = await peer.link.take("produce")
        second = await peer.link.take("produce")
        assert [len(one["records"]) for one in (first, second)] == [COMMAND_RECORDS_MAX, 1]
        assert peer.link.frame_count - before == 2
        peer.link.stored(second, 5000)
        peer.link.stored(first, 100)
        assert [(await send).offset for send in sends] == [*range(100, 100 + COMMAND_RECORDS_MAX), 5000]


@pytest.mark.behaviour(3)
async def test_topics_levels_and_bytes_do_not_share_a_command_and_order_is_kept() -> None:
    peer = Peer()
    async with connected(peer) as client:
        sends = [client.send("a", 1), client.send("b", 2), client.send("a", b"3"), client.send("a", 4),
                 client.send("a", 5, acks="written")]  # fmt: skip
        commands = []
        for _ in range(5):
            commands.append(await peer.link.take("produce"))
            peer.link.stored(commands[-1])
        await asyncio.gather(*sends)
        of_a = [one for one in commands if one["topic"] == "a"]
        assert [one["records"][0].get("value", "bytes") for one in of_a] == [1, "bytes", 4, 5]
        assert [one.get("acks") for one in of_a] == [None, None, None, "written"]


async def test_a_send_may_be_a_task_and_part_of_a_group_and_is_not_waited_for_when_cancelled() -> None:
    peer = Peer()
    async with connected(peer) as client, asyncio.TaskGroup() as group:
        tasks = [group.create_task(client.send("t", n)) for n in range(3)]
        gone = client.send("t", "never")
        gone.cancel()
        late = client.send("t", 3)
        command = await peer.link.take("produce")
        assert [record["value"] for record in command["records"]] == [0, 1, 2, 3]
        late.cancel()
        peer.link.stored(command)
        assert [(await task).offset for task in tasks] == [0, 1, 2]


@pytest.mark.behaviour(12)
async def test_all_that_a_record_may_have_goes_on_the_wire_under_the_protocols_names() -> None:
    peer = Peer()
    async with connected(peer, idempotent=False) as client:
        client.send(
            "t", {"sku": 9}, key="u1", partition=2, headers={"trace": "abc", "raw": b"\xff", "none": None}, tag="paid",
            timestamp=datetime(2026, 1, 1, tzinfo=UTC), delay="15m", msg_id="m1", schedule_key="k", message_group="g",
        )  # fmt: skip
        client.send("t", None, key=7)
        client.send("t", "later", at=1_767_225_600.5)
        command = await peer.link.take("produce")
        assert command["records"] == [
            {"value": {"sku": 9}, "key": "u1", "partition": 2, "tag": "paid", "timestamp": 1_767_225_600_000,
             "headers": [{"key": "trace", "text": "abc"}, {"key": "raw", "value": "/w=="},
                         {"key": "none", "value": None}],
             "delay_ms": 900_000, "msg_id": "m1", "schedule_key": "k", "message_group": "g"},
            {"key": 7},
            {"value": "later", "deliver_at": 1_767_225_600_500},
        ]  # fmt: skip
        assert "idempotency_key" not in command
        client.send("t", b"\x00\x01", key=b"\xff")
        client.send("t", b"", key="text")
        client.send("t", None, key=b"k")
        command = await peer.link.take("produce")
        assert command["records"] == [
            {"key_len": 1, "value_len": 2}, {"key": "text", "value_len": 0}, {"key_len": 1},
        ]  # fmt: skip
        assert peer.link.payloads[command["id"]] == b"\xff\x00\x01k"


async def test_a_record_is_taken_as_it_is_when_it_is_sent() -> None:
    peer = Peer()
    async with connected(peer) as client:
        value = {"n": 1}
        send = client.send("t", value)
        value["n"] = 2
        command = await peer.link.take("produce")
        assert command["records"] == [{"value": {"n": 1}}]
        peer.link.stored(command)
        await send


async def test_what_cannot_be_sent_is_told_to_its_sender_alone() -> None:
    peer = Peer()
    async with connected(peer) as client:
        good = client.send("t", 1)
        for raises, options in [
            (TypeError, {"value": object()}), (TypeError, {"value": 1, "headers": {"a": 1}}),
            (MqError, {"value": 1, "delay": "soon"}), (MqError, {"value": 1, "delay": 1, "at": 2.0}),
            (MqError, {"value": 1, "schedule_key": "k"}),
        ]:  # fmt: skip
            with pytest.raises(raises):  # type: ignore[arg-type]
                client.send("t", **options)  # type: ignore[arg-type]
        command = await peer.link.take("produce")
        assert len(command["records"]) == 1
        peer.link.stored(command)
        await good


@pytest.mark.behaviour(8)
async def test_what_waits_is_bounded_at_n_and_n_plus_1_and_room_says_when_there_is_some() -> None:
    peer = Peer()
    async with connected(peer, pending_max=10) as client:
        sends = [client.send("t", n) for n in range(10)]
        assert client.is_full
        with pytest.raises(QueueFull, match=r"await client\.room"):
            client.send("t", 10)
        room = asyncio.ensure_future(client.room())
        command = await peer.link.take("produce")
        assert not room.done()
        peer.link.stored(command)
        await room
        assert not client.is_full
        await asyncio.gather(*sends)
        more = client.send("t", 11)
        peer.link.stored(await peer.link.take("produce"))
        await more


async def test_a_list_larger_than_the_bound_is_taken_when_it_is_alone() -> None:
    peer = Peer()
    async with connected(peer, pending_max=2) as client:
        many = client.send_many("t", [1, 2, 3])
        with pytest.raises(QueueFull):
            client.send("t", 4)
        peer.link.stored(await peer.link.take("produce"))
        assert len(await many) == 3


async def test_a_send_larger_than_a_frame_is_refused_here_as_it_would_end_the_connection_for_all() -> None:
    peer = Peer()
    async with connected(peer, {"limits": {"max_frame": 10_000, "max_records": 3}}) as client:
        with pytest.raises(MqError, match="bytes in one send"):
            client.send("t", "x" * 10_000)
        with pytest.raises(MqError, match="send several lists"):
            client.send_many("t", [1, 2, 3, 4])
        sends = [client.send("t", "x" * 1000) for _ in range(10)]  # together they would be too large, too
        commands = [await peer.link.take("produce") for _ in range(2)]
        assert [len(command["records"]) for command in commands] == [5, 5]
        for command in commands:
            peer.link.stored(command)
        await asyncio.gather(*sends)
        assert client.state == "open"


@pytest.mark.behaviour(5)
async def test_the_records_of_one_call_travel_in_one_command() -> None:
    peer = Peer()
    async with connected(peer) as client:
        client.send("t", 0)
        many = client.send_many("t", [1, mq.Record(2, key="k"), b"\xff", mq.Record(None)])
        first, second = await peer.link.take("produce"), await peer.link.take("produce")
        assert len(first["records"]) == 1
        assert second["records"] == [{"value_len": 1}, {"key": "k", "value_len": 1}, {"value_len": 1}, {}]
        assert peer.link.payloads[second["id"]] == b"12\xff"
        peer.link.stored(first)
        peer.link.stored(second, 7)
        assert [receipt.offset for receipt in await many] == [7, 8, 9, 10]
        assert await client.send_many("t", []) == []


@pytest.mark.behaviour(5)
async def test_one_bad_record_does_not_take_the_others_with_it() -> None:
    peer = Peer()
    async with connected(peer) as client:
        sends = [client.send("t", n) for n in range(4)]
        command = await peer.link.take("produce")
        peer.link.no(command, 422, "bad", validation_errors=["records[1].value: x", "records[3].value: x"])
        again = await peer.link.take("produce")
        assert [record["value"] for record in again["records"]] == [0, 2]
        assert again["idempotency_key"] != command["idempotency_key"]
        peer.link.stored(again)
        done = await asyncio.gather(*sends, return_exceptions=True)
        assert [type(one) for one in done] == [mq.Receipt, Refused, mq.Receipt, Refused]


async def test_a_refusal_that_names_no_record_is_found_by_sending_each_alone_and_one_of_the_topic_is_everybodys() -> (
    None
):
    peer = Peer()
    async with connected(peer) as client:
        sends = [client.send("t", n) for n in range(2)]
        peer.link.no(await peer.link.take("produce"), 40954, "taken")
        alone = [await peer.link.take("produce") for _ in range(2)]
        assert [one["records"] for one in alone] == [[{"value": 0}], [{"value": 1}]]
        peer.link.stored(alone[0])
        peer.link.no(alone[1], 40954, "taken")
        done = await asyncio.gather(*sends, return_exceptions=True)
        assert [type(one) for one in done] == [mq.Receipt, Refused]
        sends = [client.send("nosuch", n) for n in range(2)]
        peer.link.no(await peer.link.take("produce"), 40401, "no topic")
        done = await asyncio.gather(*sends, return_exceptions=True)
        assert [getattr(one, "code", None) for one in done] == [40401, 40401]
        assert not peer.link.has("produce")


@pytest.mark.behaviour(9)
async def test_what_the_server_cannot_take_for_now_is_sent_again_for_a_while() -> None:
    peer = Peer()
    async with connected(peer) as client:
        send = client.send("t", 1)
        command = await peer.link.take("produce")
        peer.link.no(command, 50750, "disk full", retriable=True, retry_after_ms=2_000)
        await settle()
        assert not peer.link.has("produce")
        await peer.pass_time(2.1)
        again = await peer.link.take("produce")
        assert again["idempotency_key"] == command["idempotency_key"]
        peer.link.stored(again)
        await send
        send = client.send("t", 2)
        for _ in range(200):
            if send.done():
                break
            if peer.link.has("produce"):
                peer.link.no(await peer.link.take("produce"), 42901, "slow down", retriable=True)
            await peer.pass_time(0.5)
        with pytest.raises(Refused, match="slow down"):
            await send


@pytest.mark.behaviour(6, 46)
async def test_an_idempotent_client_repeats_what_was_not_answered_under_the_same_key() -> None:
    peer = Peer()
    async with connected(peer) as client:
        sends = [client.send("t", n) for n in range(2)]
        command = await peer.link.take("produce")
        peer.link.end()
        await peer.again()
        again = await peer.link.take("produce")
        assert {**again, "id": 0} == {**command, "id": 0}
        peer.link.ok(again, acks="flushed", offsets=[{"partition": 0, "offset": n, "duplicate": True} for n in (4, 5)])
        assert [(one.offset, one.duplicate) for one in await asyncio.gather(*sends)] == [(4, True), (5, True)]


@pytest.mark.behaviour(7)
async def test_without_ids_a_lost_connection_is_told_and_with_ids_of_ones_own_it_is_not() -> None:
    peer = Peer()
    async with connected(peer, idempotent=False) as client:
        unsure = client.send("a", 1)
        named = client.send("b", 2, msg_id="order-77")
        await peer.link.take("produce")
        peer.link.end()
        await settle()
        waiting = client.send("a", 3)  # was never sent: it is safe
        with pytest.raises(ConnectionLost, match="1006"):
            await unsure
        await peer.again()
        for _ in range(2):
            peer.link.stored(await peer.link.take("produce"))
        await asyncio.gather(named, waiting)


async def test_when_the_server_remembers_no_more_ids_sends_go_on_without() -> None:
    peer = Peer()
    async with connected(peer) as client:
        send = client.send("t", 1)
        peer.link.no(await peer.link.take("produce"), 42950, "too many ids", retriable=True, retry_after_ms=1000)
        again = await peer.link.take("produce")
        assert "idempotency_key" not in again
        peer.link.end()
        with pytest.raises(ConnectionLost):
            await send


async def test_after_a_store_has_stopped_only_what_has_ids_is_sent_again() -> None:
    peer = Peer()
    async with connected(peer, idempotent=False) as client:
        send = client.send("t", 1)
        peer.link.no(await peer.link.take("produce"), 50350, "stopped", retriable=True)
        with pytest.raises(Refused, match="stopped"):
            await send


async def test_an_answer_that_has_not_a_receipt_for_each_record_closes_the_client() -> None:
    peer = Peer()
    async with connected(peer) as client:
        send = client.send("t", 1)
        peer.link.ok(await peer.link.take("produce"), acks="flushed", offsets=[])
        with pytest.raises(MqError, match="0 receipts for 1 records"):
            await send
        await settle()
        assert client.state == "closed"


@pytest.mark.behaviour(2, 10)
async def test_receipts_name_the_level_that_was_reached_the_schedule_and_the_repeat() -> None:
    peer = Peer()
    async with connected(peer) as client:
        sends = [client.send("t", 1, delay="1h"), client.send("t", 2)]
        command = await peer.link.take("produce")
        peer.link.ok(command, acks="written", offsets=[
            {"partition": 0, "offset": None, "schedule_id": "sA", "deliver_at": 1_767_225_600_000},
            {"partition": 1, "offset": 5, "duplicate": True},
        ])  # fmt: skip
        delayed, repeated = await asyncio.gather(*sends)
        assert (delayed.offset, delayed.schedule_id, delayed.deliver_at) == (
            None,
            "sA",
            datetime(2026, 1, 1, tzinfo=UTC),
        )
        assert (repeated.offset, repeated.duplicate, repeated.acks) == (5, True, "written")


@pytest.mark.behaviour(13)
async def test_close_waits_for_a_connection_that_comes_back_in_time() -> None:
    peer = Peer()
    async with connected(peer) as client:
        send = client.send("t", 1)
        await peer.link.take("produce")
        peer.link.end()
        await settle()
        closing = asyncio.ensure_future(client.close())
        await peer.again()
        peer.link.stored(await peer.link.take("produce"))
        await closing
        assert (await send).offset == 0


@pytest.mark.behaviour(13)
async def test_close_sends_what_waits_and_returns_with_its_receipts() -> None:
    peer = Peer()
    async with connected(peer) as client:
        send = client.send("t", 1)
        closing = asyncio.ensure_future(client.close())
        peer.link.stored(await peer.link.take("produce"))
        await closing
        assert (await send).offset == 0


async def test_raw_batches_go_as_they_are() -> None:
    peer = Peer()
    async with connected(peer) as client:
        send = client.send_raw("t", b"BATCHES", partition=3)
        command = await peer.link.take("produce")
        assert (command["format"], command["partition"], "records" in command) == ("batch", 3, False)
        assert peer.link.payloads[command["id"]] == b"BATCHES"
        peer.link.ok(command, offsets=[{"partition": 3, "offset": n, "record_count": 10} for n in (0, 10)])
        assert [(one.offset, one.record_count) for one in await send] == [(0, 10), (10, 10)]


async def passing(outgoing: Outgoing, following: Any) -> Any:
    await asyncio.sleep(0)
    return await following(outgoing)


async def test_sends_through_middleware_are_bounded_and_waited_for_as_others() -> None:
    peer = Peer()
    async with connected(peer, middleware=[passing], pending_max=2) as client:
        sends = [client.send("t", 1), client.send("t", 2)]
        assert client.is_full
        with pytest.raises(QueueFull, match="2 records"):
            client.send("t", 3)
        rooms = asyncio.ensure_future(client.room())
        flushing = asyncio.ensure_future(client.flush())
        command = await peer.link.take("produce")
        assert not rooms.done()
        peer.link.stored(command)
        await rooms
        await flushing
        assert [send.result().offset for send in sends] == [0, 1]
        client.send("t", 4)
        closing = asyncio.ensure_future(client.close())
        peer.link.stored(await peer.link.take("produce"))
        await closing


async def test_middleware_sees_what_is_sent_may_change_it_and_sees_what_became_of_it() -> None:
    peer = Peer()
    seen: list[Any] = []

    async def outer(outgoing: Outgoing, following: Any) -> Any:
        outgoing.records[0].headers = {"trace": "abc"}
        receipts = await following(outgoing)
        seen.append(("outer", receipts[0].offset))
        return receipts

    async def inner(outgoing: Outgoing, following: Any) -> Any:
        seen.append(("inner", outgoing.topic, outgoing.records[0].headers))
        return await following(outgoing)

    async with connected(peer, middleware=[outer, inner]) as client:
        send = client.send("t", 1)
        command = await peer.link.take("produce")
        assert command["records"][0]["headers"] == [{"key": "trace", "text": "abc"}]
        peer.link.stored(command, 9)
        assert (await send).offset == 9
        assert seen == [("inner", "t", {"trace": "abc"}), ("outer", 9)]
        send = client.send("t", 1)
        peer.link.no(await peer.link.take("produce"), 40401)
        with pytest.raises(Refused):
            await send
