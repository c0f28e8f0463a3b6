"""mq.queue and mq.leases: messages on lease, settled together, extended by themselves."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from mq.errors import LeaseLost, MqError, Refused

from tests.clients.python.peer import Fields, Link, Peer, connected, settle, subscribed


def lease(peer: Peer, seconds: float = 30) -> Fields:
    until_ms = peer.clock.now_ms() + int(seconds * 1000)
    return {"receipt": lambda offset: f"r{offset}", "attempt": 1, "visible_until": until_ms}


def answered(link: Link, command: Fields, *, lost: tuple[str, ...] = (), new: str | None = None) -> None:
    results: list[Fields] = []
    for receipt in command["receipts"]:
        if receipt in lost:
            results.append({"receipt": receipt, "ok": False, "error_code": 40951, "error": "the lease is over"})
        else:
            results.append({"receipt": receipt, "ok": True, **({} if new is None else {"new_receipt": new + receipt})})
    link.ok(command, results=results)


async def test_what_is_asked_for_goes_on_the_wire() -> None:
    peer = Peer()
    async with connected(peer) as client:
        client.group("g").queue("t", lease="10s", prefetch=7, start="latest")
        assert {**await subscribed(peer), "id": 0} == {
            "id": 0, "op": "subscribe", "sub": "s1", "mode": "queue", "topics": ["t"], "group": "g", "start": "latest",
            "credit": 7, "invisible_ms": 10_000,
        }  # fmt: skip
        with pytest.raises(MqError, match="lease: must be at least 1s"):
            client.group("g").queue("t", lease="0.5s")


async def test_what_is_settled_in_one_turn_goes_in_one_command_and_each_gets_its_own_result() -> None:
    peer = Peer()
    async with connected(peer) as client:
        iterator = aiter(client.group("g").queue("t"))
        await subscribed(peer)
        peer.link.messages("s1", 1, range(6), **lease(peer))
        messages = [await anext(iterator) for _ in range(6)]
        settled = [
            messages[0].ack(), messages[1].ack(), messages[2].nack("3s", "later"), messages[3].nack("3s", "later"),
            messages[4].reject("never"), messages[5].extend("1m"),
        ]  # fmt: skip
        ack, nack = await peer.link.take("ack"), await peer.link.take("nack")
        reject, extend = await peer.link.take("reject"), await peer.link.take("extend")
        assert ack["receipts"] == ["r0", "r1"]
        assert (nack["receipts"], nack["delay_ms"], nack["reason"]) == (["r2", "r3"], 3000, "later")
        assert (reject["receipts"], reject["reason"]) == (["r4"], "never")
        assert (extend["receipts"], extend["invisible_ms"]) == (["r5"], 60_000)
        answered(peer.link, ack, lost=("r1",))
        answered(peer.link, extend, new="n")
        peer.link.no(nack, 50350, "no")
        answered(peer.link, reject)
        done = await asyncio.gather(*settled, return_exceptions=True)
        assert [type(one) for one in done] == [type(None), LeaseLost, Refused, Refused, type(None), type(None)]
        assert messages[5].receipt == "nr5"


async def test_a_reason_is_cut_to_what_the_server_takes() -> None:
    peer = Peer()
    async with connected(peer) as client:
        iterator = aiter(client.group("g").queue("t"))
        await subscribed(peer)
        peer.link.messages("s1", 1, [0], **lease(peer))
        (await anext(iterator)).reject("é" * 1000)
        reason = (await peer.link.take("reject"))["reason"]
        assert reason == "é" * 512


@pytest.mark.behaviour(41)
async def test_acks_that_were_not_answered_are_sent_again_on_the_next_connection() -> None:
    peer = Peer()
    async with connected(peer) as client:
        iterator = aiter(client.group("g").queue("t"))
        await subscribed(peer)
        peer.link.messages("s1", 1, [0], **lease(peer))
        acked = (await anext(iterator)).ack()
        await peer.link.take("ack")
        peer.link.end()
        await peer.again()
        await subscribed(peer)
        answered(peer.link, await peer.link.take("ack"))
        await acked


@pytest.mark.behaviour(39)
async def test_a_message_whose_lease_is_over_is_not_given() -> None:
    peer = Peer()
    lost: list[Any] = []
    async with connected(peer) as client:
        iterator = aiter(client.group("g").queue("t", lease="30s", on_lost=lost.append))
        await subscribed(peer)
        peer.link.messages("s1", 1, [0, 1], **lease(peer, 5))
        await settle()
        peer.clock.exact_ms += 5_001
        peer.link.messages("s1", 2, [2], **lease(peer))
        assert (await anext(iterator)).offset == 2
        assert [message.offset for message in lost] == [0, 1]
        with pytest.raises(LeaseLost):
            await lost[0].ack()


@pytest.mark.behaviour(45)
async def test_leases_of_all_that_is_held_are_extended_every_third_of_their_time() -> None:
    peer = Peer()
    async with connected(peer) as client:
        iterator = aiter(client.group("g").queue("t", lease="30s"))
        await subscribed(peer)
        peer.link.messages("s1", 1, range(4), **lease(peer))
        message = await anext(iterator)
        done = await anext(iterator)
        done.ack()
        await peer.pass_time(9.9)
        assert not peer.link.has("extend")
        await peer.pass_time(0.2)
        extend = await peer.link.take("extend")
        assert (extend["receipts"], extend["invisible_ms"]) == (["r0", "r2", "r3"], 30_000)  # prefetched ones too
        answered(peer.link, extend, new="n")
        await peer.pass_time(10)
        extend = await peer.link.take("extend")
        assert extend["receipts"] == ["nr0", "nr2", "nr3"]
        answered(peer.link, extend, new="m")
        await settle()
        message.ack()
        acks = [(await peer.link.take("ack"))["receipts"] for _ in range(2)]
        assert acks == [["r1"], ["mnr0"]]


@pytest.mark.behaviour(45)
async def test_an_extension_that_failed_is_tried_again_each_second() -> None:
    peer = Peer()
    async with connected(peer) as client:
        iterator = aiter(client.group("g").queue("t", lease="30s"))
        await subscribed(peer)
        peer.link.messages("s1", 1, [0], **lease(peer))
        await anext(iterator)
        await peer.pass_time(10.1)
        peer.link.no(await peer.link.take("extend"), 50350, retriable=True)
        await peer.pass_time(1.1)
        answered(peer.link, await peer.link.take("extend"))
        await settle()
        await peer.pass_time(5)
        assert not peer.link.has("extend")


@pytest.mark.behaviour(45)
async def test_a_lease_is_not_extended_beyond_its_maximum() -> None:
    peer = Peer()
    async with connected(peer) as client:
        iterator = aiter(client.group("g").queue("t", lease="30s", lease_max="25s"))
        await subscribed(peer)
        peer.link.messages("s1", 1, [0], **lease(peer))
        await anext(iterator)
        for _ in range(2):
            await peer.pass_time(10.1)
            answered(peer.link, await peer.link.take("extend"))
        await peer.pass_time(20)
        assert not peer.link.has("extend")


@pytest.mark.behaviour(45)
async def test_a_lease_that_is_lost_is_told_once_and_its_message_settled_no_more() -> None:
    peer = Peer()
    lost: list[Any] = []
    async with connected(peer) as client:
        iterator = aiter(client.group("g").queue("t", lease="30s", on_lost=lost.append))
        await subscribed(peer)
        peer.link.messages("s1", 1, range(3), **lease(peer))
        message = await anext(iterator)
        await peer.pass_time(10.1)
        answered(peer.link, await peer.link.take("extend"), lost=("r0", "r1"), new="n")
        await settle()
        assert [one.offset for one in lost] == [0, 1]
        assert message.is_lost
        with pytest.raises(LeaseLost, match="delivered again"):
            await message.ack()
        assert (await anext(iterator)).offset == 2
        assert not peer.link.has("ack")


async def test_what_waited_here_when_the_session_ended_is_dropped_but_not_after_a_restart_of_the_server() -> None:
    for away_s, expected in ((1, [0, 1]), (60, [1])):
        peer = Peer()
        async with connected(peer, {"grace_ms": 15_000}) as client:
            iterator = aiter(client.group("g").queue("t", lease="10m"))
            await subscribed(peer)
            peer.link.messages("s1", 1, [0], **lease(peer, 600))
            await settle()
            peer.link.end()
            await settle()
            peer.clock.exact_ms += away_s * 1000
            await peer.again()
            await subscribed(peer)
            peer.link.messages("s1", 1, [1], **lease(peer, 600))
            assert [(await anext(iterator)).offset for _ in expected] == expected


@pytest.mark.behaviour(44)
async def test_at_the_end_what_was_settled_goes_first_and_what_was_not_is_given_back() -> None:
    peer = Peer()
    async with connected(peer) as client:
        queue = client.group("g").queue("t")

        async def consume() -> None:
            async with queue as messages:
                async for message in messages:
                    message.ack()
                    break

        consuming = asyncio.ensure_future(consume())
        await subscribed(peer)
        peer.link.messages("s1", 1, range(3), **lease(peer))
        ack = await peer.link.take("ack")
        assert not peer.link.has("unsubscribe")
        answered(peer.link, ack)
        peer.link.ok(await peer.link.take("unsubscribe"))
        await consuming


async def test_who_stops_waiting_for_an_ack_does_not_disturb_the_end() -> None:
    peer = Peer()
    async with connected(peer) as client:
        queue = client.group("g").queue("t")
        await subscribed(peer)
        peer.link.messages("s1", 1, [0], **lease(peer))
        message = await queue.get()
        assert message is not None
        acking = asyncio.ensure_future(message.ack())
        ack = await peer.link.take("ack")
        acking.cancel()
        closing = asyncio.ensure_future(queue.aclose())
        await settle()
        assert not closing.done()
        answered(peer.link, ack)
        peer.link.ok(await peer.link.take("unsubscribe"))
        await closing


async def test_several_may_take_from_one_queue() -> None:
    peer = Peer()
    async with connected(peer) as client:
        queue = client.group("g").queue("t")
        await subscribed(peer)
        takers = [asyncio.ensure_future(queue.get()) for _ in range(3)]
        await settle()
        takers[0].cancel()
        await settle()
        peer.link.messages("s1", 1, range(2), **lease(peer))
        assert sorted(message.offset for message in await asyncio.gather(*takers[1:]) if message) == [0, 1]
        last = asyncio.ensure_future(queue.get())
        await settle()
        queue.stop()
        assert await last is None
        assert (await peer.link.take("pause"))["sub"] == "s1"


async def test_what_nobody_has_had_is_given_back_and_what_is_held_stays() -> None:
    peer = Peer()
    async with connected(peer) as client:
        queue = client.group("g").queue("t")
        await subscribed(peer)
        peer.link.messages("s1", 1, range(3), **lease(peer))
        held = await queue.get()
        assert held is not None
        queue.give_back()
        assert await queue.get() is None
        nack = await peer.link.take("nack")
        assert (nack["receipts"], nack["delay_ms"]) == (["r1", "r2"], 0)
        peer.link.messages("s1", 2, [3], **lease(peer))  # it was on its way
        assert (await peer.link.take("nack"))["receipts"] == ["r3"]
        assert queue.held_count == 1
        settled = held.ack()
        answered(peer.link, await peer.link.take("ack"))
        await settled
        assert queue.held_count == 0


async def test_more_messages_are_let_in_now_and_after_a_lost_session() -> None:
    peer = Peer()
    async with connected(peer) as client:
        queue = client.group("g").queue("t", prefetch=3)
        await subscribed(peer)
        queue.widen(2)
        assert (await peer.link.take("permit"))["messages"] == 2
        peer.link.end()
        await peer.again()
        queue.widen(1)  # while `subscribe` is on its way
        assert not peer.link.has("permit")
        assert (await subscribed(peer))["credit"] == 5
        assert (await peer.link.take("permit"))["messages"] == 1


async def test_more_messages_are_let_in_also_when_that_is_said_while_the_connection_is_lost() -> None:
    peer = Peer()
    async with connected(peer) as client:
        queue = client.group("g").queue("t", prefetch=3)
        await subscribed(peer)
        peer.link.end()
        await settle()
        queue.widen(2)
        state = {"mode": "queue", "seq": 0, "partitions": {}, "cursor": "", "credit": 3}
        await peer.again(resumed=True, subs={"s1": state})
        assert (await peer.link.take("permit"))["messages"] == 2


async def test_an_ack_that_waits_for_a_connection_comes_before_the_end_of_its_queue() -> None:
    peer = Peer()
    async with connected(peer) as client:
        queue = client.group("g").queue("t")
        await subscribed(peer)
        peer.link.messages("s1", 1, [0], **lease(peer))
        message = await queue.get()
        assert message is not None
        peer.link.end()
        await settle()
        acking = asyncio.ensure_future(message.ack())
        await queue.aclose()
        state = {"mode": "queue", "seq": 1, "partitions": {}, "cursor": "", "credit": 3}
        hello = await peer.again(resumed=True, subs={"s1": state})
        assert hello["seen"] == {"s1": 1}, "else its lease is given back"
        ack = await peer.link.take("ack")
        assert peer.link.has("unsubscribe")
        answered(peer.link, ack)
        await acking
        peer.link.end()
        assert (await peer.again())["seen"] == {}
