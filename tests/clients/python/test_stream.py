"""mq.stream: a member of a group, what it commits, and how it gives partitions up."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from mq.errors import MqError, Refused

from tests.clients.python.peer import Link, Peer, connected, settle, subscribed
from tests.clients.python.test_read import take


async def committed(link: Link, *, ok: bool = True) -> str:
    """Answer the next commit; its cursor."""
    command = await link.take("ack")
    results = [{"ok": ok, "error_code": 40959, "error": "not the owner"} for _ in command["cursor"].split(";")]
    link.ok(command, results=results)
    await settle(3)
    return str(command["cursor"])


async def test_what_is_asked_for_goes_on_the_wire() -> None:
    peer = Peer()
    async with connected(peer) as client:
        stream = client.group("billing").stream("t", start="earliest", member="one", room="east")
        assert {**await subscribed(peer), "id": 0} == {
            "id": 0, "op": "subscribe", "sub": "s1", "mode": "stream", "topics": ["t"], "group": "billing",
            "member": "one", "room": "east", "start": "earliest", "credit": 2000, "auto_credit": False,
        }  # fmt: skip
        assert stream.member == "one"
        assert client.group("billing").stream("t").member.startswith("py-")
        with pytest.raises(MqError, match="commit: "):
            client.group("billing").stream("t", commit="sometimes")  # type: ignore[call-overload]


@pytest.mark.behaviour(32)
async def test_what_the_consumer_is_done_with_is_committed_and_not_what_it_has_in_hand() -> None:
    peer = Peer()
    async with connected(peer) as client:
        stream = client.group("g").stream("t", commit_interval="10s")
        iterator = aiter(stream)
        await subscribed(peer)
        peer.link.messages("s1", 1, range(5))
        await take(iterator, 3)
        await peer.pass_time(10)
        assert await committed(peer.link) == "t:0=2"
        await peer.pass_time(10)
        assert not peer.link.has("ack")  # nothing new
        await take(iterator, 1)
        committing = asyncio.ensure_future(stream.commit())
        assert await committed(peer.link) == "t:0=3"
        await committing
        await take(iterator, 1)
        waiting = asyncio.ensure_future(anext(iterator))  # asking for the next one
        await peer.pass_time(10)
        assert await committed(peer.link) == "t:0=5"
        peer.link.messages("s1", 2, [5])
        await waiting


@pytest.mark.behaviour(33)
async def test_leaving_the_loop_commits_what_is_done_and_the_message_in_hand_only_if_it_was_acked() -> None:
    for is_acked, expected in ((False, "t:0=1"), (True, "t:0=2")):
        peer = Peer()
        async with connected(peer) as client:
            stream = client.group("g").stream("t")

            async def consume(stream: Any = stream, is_acked: bool = is_acked) -> None:
                async with stream as messages:
                    async for message in messages:
                        if message.offset == 1:
                            if is_acked:
                                message.ack()
                            break

            consuming = asyncio.ensure_future(consume())
            await subscribed(peer)
            peer.link.messages("s1", 1, range(4))
            assert await committed(peer.link) == expected
            peer.link.ok(await peer.link.take("unsubscribe"))
            await consuming


async def test_manual_commits_what_is_acked_up_to_there() -> None:
    peer = Peer()
    async with connected(peer) as client:
        stream = client.group("g").stream("t", commit="manual")
        iterator = aiter(stream)
        await subscribed(peer)
        peer.link.messages("s1", 1, range(5))
        messages = [await anext(iterator) for _ in range(4)]
        committing = asyncio.ensure_future(stream.commit())
        await settle()
        assert not peer.link.has("ack")
        await committing
        messages[1].ack()
        messages[0].ack()  # done already
        committing = asyncio.ensure_future(stream.commit())
        assert await committed(peer.link) == "t:0=2"
        await committing
        with pytest.raises(MqError, match="no leases"):
            messages[3].nack()


async def test_a_commit_that_is_refused_raises() -> None:
    peer = Peer()
    async with connected(peer) as client:
        stream = client.group("g").stream("t")
        iterator = aiter(stream)
        await subscribed(peer)
        peer.link.messages("s1", 1, range(2))
        await take(iterator, 2)
        committing = asyncio.ensure_future(stream.commit())
        await committed(peer.link, ok=False)
        with pytest.raises(Refused, match="not the owner"):
            await committing


@pytest.mark.behaviour(20, 36)
async def test_after_a_restart_of_the_server_nothing_is_given_twice_and_what_was_done_is_committed_again() -> None:
    peer = Peer()
    async with connected(peer) as client:
        stream = client.group("g").stream("t", commit_interval="10s")
        iterator = aiter(stream)
        await subscribed(peer)
        peer.link.messages("s1", 1, range(6))
        assert await take(iterator, 3) == [0, 1, 2]
        peer.link.end()
        await peer.again()
        command = await subscribed(peer, cursor="t:0=0")  # nothing had been committed
        assert command["member"] == stream.member
        peer.link.messages("s1", 1, range(8))  # everything comes again
        assert await take(iterator, 5) == [3, 4, 5, 6, 7]
        await peer.pass_time(10)
        assert await committed(peer.link) == "t:0=7"


async def test_a_group_that_was_set_back_while_away_is_followed_back() -> None:
    peer = Peer()
    async with connected(peer) as client:
        stream = client.group("g").stream("t", commit_interval="10s")
        iterator = aiter(stream)
        await subscribed(peer, cursor="t:0=5")
        peer.link.messages("s1", 1, range(5, 9))
        await take(iterator, 2)
        peer.link.end()
        await peer.again()
        await subscribed(peer, cursor="t:0=1")
        peer.link.messages("s1", 1, range(1, 4))
        assert await take(iterator, 3) == [1, 2, 3]
        await peer.pass_time(10)
        assert await committed(peer.link) == "t:0=3"


@pytest.mark.behaviour(34)
async def test_a_partition_that_is_revoked_is_finished_committed_and_then_released() -> None:
    peer = Peer()
    told: list[Any] = []
    async with connected(peer) as client:
        stream = client.group("g").stream("t", on_revoked=lambda partitions, lost: told.append((partitions, lost)))
        iterator = aiter(stream)
        await subscribed(peer, {"t": [0, 1]}, "t:0=0;t:1=0")
        peer.link.messages("s1", 1, range(3))
        await take(iterator, 1)
        peer.link.push(op="revoked", sub="s1", generation=2, partitions={"t": [0]}, drain_ms=10_000)
        await settle()
        assert told == [({"t": [0]}, False)]
        assert not peer.link.has("release")
        await take(iterator, 2)
        assert not peer.link.has("release")  # the last one is in hand
        waiting = asyncio.ensure_future(anext(iterator))
        assert await committed(peer.link) == "t:0=3"
        assert (await peer.link.take("release"))["partitions"] == {"t": [0]}
        peer.link.messages("s1", 2, [0], partition=1)
        assert (await waiting).partition == 1
        await peer.pass_time(20)
        assert told == [({"t": [0]}, False)]


async def test_a_partition_of_which_nothing_is_here_is_released_at_once_and_one_that_is_too_slow_is_lost() -> None:
    peer = Peer()
    told: list[Any] = []
    async with connected(peer) as client:
        stream = client.group("g").stream("t", on_revoked=lambda partitions, lost: told.append((partitions, lost)))
        iterator = aiter(stream)
        await subscribed(peer, {"t": [0, 1]}, "t:0=0;t:1=0")
        peer.link.messages("s1", 1, range(3))
        await take(iterator, 1)
        peer.link.push(op="revoked", sub="s1", partitions={"t": [0, 1]}, drain_ms=10_000)
        assert (await peer.link.take("release"))["partitions"] == {"t": [1]}
        await peer.pass_time(10.1)
        assert told == [({"t": [0, 1]}, False), ({"t": [0]}, True)]
        waiting = asyncio.ensure_future(anext(iterator))  # the rest of the frame is another's
        await settle()
        assert not waiting.done()
        waiting.cancel()


@pytest.mark.behaviour(35)
async def test_what_waits_of_a_lost_partition_is_dropped_and_nothing_of_it_committed() -> None:
    peer = Peer()
    told: list[Any] = []
    async with connected(peer) as client:
        stream = client.group("g").stream(
            "t", credit=10, commit_interval="10s", on_revoked=lambda partitions, lost: told.append((partitions, lost))
        )
        iterator = aiter(stream)
        await subscribed(peer, {"t": [0, 1]}, "t:0=0;t:1=0")
        peer.link.messages("s1", 1, range(4))
        peer.link.messages("s1", 2, range(4, 8))
        message = await anext(iterator)
        peer.link.push(op="revoked", sub="s1", partitions={"t": [0]}, lost=True)
        await settle()
        assert told == [({"t": [0]}, True)]
        message.ack()
        waiting = asyncio.ensure_future(anext(iterator))
        await peer.pass_time(10)
        assert not peer.link.has("ack")
        assert sum(command["messages"] for command in peer.link.commands if command["op"] == "permit") == 8
        peer.link.messages("s1", 3, [0], partition=1)
        assert (await waiting).partition == 1


async def test_a_revocation_that_began_while_away_commits_what_is_done_and_gives_the_rest_up() -> None:
    peer = Peer()
    told: list[Any] = []
    async with connected(peer) as client:
        stream = client.group("g").stream("t", on_revoked=lambda partitions, lost: told.append((partitions, lost)))
        iterator = aiter(stream)
        await subscribed(peer)
        peer.link.messages("s1", 1, range(4))
        await take(iterator, 2)
        peer.link.end()
        state = {"mode": "stream", "seq": 1, "partitions": {}, "cursor": "", "credit": 1996}
        await peer.again(resumed=True, subs={"s1": state})
        assert (await peer.link.take("ack"))["cursor"] == "t:0=1"
        assert told == [({"t": [0]}, True)]
        peer.link.push(op="revoked", sub="s1", partitions={"t": [0]}, drain_ms=10_000)
        assert (await peer.link.take("release"))["partitions"] == {"t": [0]}


async def test_a_partition_that_comes_back_after_all_goes_on_without_a_gap() -> None:
    peer = Peer()
    async with connected(peer) as client:
        iterator = aiter(client.group("g").stream("t"))
        await subscribed(peer)
        peer.link.messages("s1", 1, range(3))
        await take(iterator, 1)
        peer.link.push(op="revoked", sub="s1", partitions={"t": [0]}, drain_ms=10_000)
        peer.link.push(op="assigned", sub="s1", partitions={"t": [0]}, cursor="t:0=3")
        await settle()
        peer.link.messages("s1", 2, [3])
        assert await take(iterator, 3) == [1, 2, 3]
        assert not peer.link.has("release")


async def test_a_member_whose_name_was_taken_ends_with_the_reason() -> None:
    peer = Peer()
    async with connected(peer) as client:
        iterator = aiter(client.group("g").stream("t", member="one"))
        await subscribed(peer)
        peer.link.messages("s1", 1, range(3))
        await settle()
        peer.link.end()
        await peer.again(resumed=True, subs={}, ended={"s1": {"error_code": 40959, "message": "another took the name"}})
        with pytest.raises(Refused, match="another took the name"):
            await anext(iterator)
        assert not peer.link.has("subscribe")
