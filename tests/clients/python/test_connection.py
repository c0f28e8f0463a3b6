"""mq.connection and mq.protocol: one conversation over as many sockets as it takes."""

from __future__ import annotations

import asyncio
from typing import Any

import mq
import pytest
from mq.client import Client
from mq.connection import HELLO_S
from mq.errors import Closed, ConnectionLost, MqError
from mq.protocol import may_reconnect, wait_s

from tests.clients.python.peer import Peer, connected, settle


async def test_connect_says_hello_and_returns_with_the_answer() -> None:
    peer = Peer()
    client = Client(lambda: peer, clock=lambda: peer.clock, name="shop", token="secret")
    opening = asyncio.ensure_future(client._open())
    await settle()
    assert not opening.done()
    hello = await peer.welcome()
    assert (hello["op"], hello["binary"], hello["client"]) == ("hello", True, "shop")
    assert "resume" not in hello
    assert await opening is client
    assert (peer.tokens, client.state) == (["secret"], "open")
    await client.close()
    assert (client.state, peer.link.closed_with) == ("closed", 1000)
    with pytest.raises(Closed):
        client.send("t", 1)


@pytest.mark.behaviour(14)
async def test_it_waits_for_a_server_that_is_not_up_yet() -> None:
    peer = Peer()
    peer.refusals = [ConnectionLost("connection refused")] * 5
    states: list[Any] = []
    client = Client(
        lambda: peer, clock=lambda: peer.clock, on_state=lambda state, why: states.append((state, str(why)))
    )
    opening = asyncio.ensure_future(client._open())
    for _ in range(200):
        await peer.pass_time(1)
        if peer.links:
            break
    assert not opening.done()
    await peer.welcome()
    await opening
    assert len(peer.tokens) == 6
    assert states.count(("waiting", "connection refused")) == 5
    await client.close()


@pytest.mark.behaviour(15)
def test_waits_are_spread_over_the_whole_time_and_bounded() -> None:
    assert [wait_s(failures, 1.0) for failures in (1, 2, 3, 20, 10_000)] == [0.5, 1.0, 2.0, 30.0, 30.0]
    assert wait_s(5, 0.0) == 0.0
    assert wait_s(1, 0.5) == 0.25


@pytest.mark.behaviour(17)
def test_it_never_reconnects_from_4500_on() -> None:
    assert all(may_reconnect(code) for code in (1000, 1001, 1006, 1011, 1012, 4000, 4001, 4009, 4499))
    assert not any(may_reconnect(code) for code in (4500, 4501, 4999, 1002, 1003, 1007, 1009))


@pytest.mark.behaviour(17)
async def test_a_code_from_4500_on_closes_the_client_for_good() -> None:
    peer = Peer()
    async with connected(peer) as client:
        reader = client.read("t")
        send = client.send("t", 1)
        await settle()
        peer.link.end(4501, "bad token")
        await settle()
        with pytest.raises(Closed, match=r"4501 \(bad token\)"):
            await send
        with pytest.raises(Closed) as caught:
            async for _ in reader:
                pass
        assert caught.value.code == 4501
        with pytest.raises(Closed):
            client.send("t", 2)
        await peer.pass_time(100)
        assert len(peer.links) == 1


async def test_a_close_code_counts_also_when_a_frame_could_not_be_written_any_more() -> None:
    peer = Peer()
    async with connected(peer) as client:
        peer.link.closed_with = 4501  # from here on nothing can be written, and the code is on its way
        client.send("t", 1).cancel()
        client.send("t", 2).add_done_callback(lambda send: send.exception())
        await settle()
        peer.link.end(4501, "revoked")
        await settle()
        assert client.state == "closed"
        assert len(peer.links) == 1


async def test_a_hello_that_is_refused_for_good_raises() -> None:
    peer = Peer()
    client = Client(lambda: peer, clock=lambda: peer.clock)
    opening = asyncio.ensure_future(client._open())
    await settle()
    peer.link.no(await peer.link.take("hello"), 40962)
    with pytest.raises(Closed):
        await opening


async def test_a_hello_that_is_not_answered_is_given_up_and_tried_again() -> None:
    peer = Peer()
    client = Client(lambda: peer, clock=lambda: peer.clock)
    opening = asyncio.ensure_future(client._open())
    await settle()
    await peer.pass_time(HELLO_S + 1)
    for _ in range(5):
        await peer.pass_time(1)
    assert len(peer.links) == 2
    await peer.welcome()
    await opening
    await client.close()


async def test_a_peer_that_died_without_a_word_shows_by_silence() -> None:
    peer = Peer()
    reasons: list[str] = []
    async with connected(peer, {"ping_ms": 1000}, on_state=lambda state, why: reasons.append(str(why))):
        await peer.pass_time(HELLO_S + 0.6)  # the first look; from then on twice in each interval
        await peer.link.take("ping")
        for _ in range(5):
            await peer.pass_time(1)
        assert any("nothing was heard" in reason for reason in reasons)
        await settle()
        await peer.again()


@pytest.mark.behaviour(16)
async def test_a_goaway_is_honoured_nothing_more_is_sent_and_the_wait_is_as_told() -> None:
    peer = Peer()
    async with connected(peer) as client:
        peer.link.push(op="goaway", reason="shutdown", reconnect_after_ms=60_000, resume="s1")
        await settle()
        send = client.send("t", 1)
        await settle()
        assert not peer.link.has("produce")
        peer.link.end(4001)
        await settle()
        await peer.pass_time(59)
        assert len(peer.links) == 1
        await peer.pass_time(2)
        assert len(peer.links) == 2
        await peer.welcome()
        peer.link.stored(await peer.link.take("produce"))
        assert (await send).offset == 0


@pytest.mark.behaviour(18)
async def test_a_token_function_is_asked_for_each_connection_and_before_the_end() -> None:
    peer = Peer()
    tokens = iter(["one", "two", "three"])

    async def token() -> str:
        return next(tokens)

    async with connected(peer, token=token):
        peer.link.push(op="auth_expiring", in_ms=60_000)
        renewal = await peer.link.take("auth")
        assert renewal["token"] == "two"
        peer.link.ok(renewal, expires_at=None)
        peer.link.end()
        await peer.again()
        assert peer.tokens == ["one", "three"]


async def test_a_token_that_cannot_be_had_is_tried_again() -> None:
    peer = Peer()
    asked = 0

    def token() -> str:
        nonlocal asked
        asked += 1
        if asked == 1:
            raise OSError("the vault is down")
        return "good"

    client = Client(lambda: peer, clock=lambda: peer.clock, token=token)
    opening = asyncio.ensure_future(client._open())
    await peer.pass_time(1)
    await peer.pass_time(1)
    await peer.welcome()
    await opening
    assert peer.tokens == ["good"]
    await client.close()


async def test_a_session_that_was_taken_over_is_not_resumed() -> None:
    peer = Peer()
    async with connected(peer):
        peer.link.end(4009)
        assert "resume" not in await peer.again()
        peer.link.end(4000)
        assert (await peer.again())["resume"] == "s2"


@pytest.mark.parametrize("data", [b"nonsense", b"[]", b'{"id":"x"}', b'{"op":"messages","sub":5}'])
async def test_a_frame_that_is_none_closes_the_client_with_the_reason(data: bytes) -> None:
    peer = Peer()
    async with connected(peer) as client:
        peer.link.push_bytes(data, is_binary=False)
        await settle()
        assert client.state == "closed"
        with pytest.raises(MqError, match="not understood"):
            client.send("t", 1)


async def test_pushes_of_an_unknown_kind_and_of_subscriptions_that_are_gone_are_passed_over() -> None:
    peer = Peer()
    async with connected(peer) as client:
        peer.link.push(op="news", about={"x": 1})
        peer.link.messages("s99", 1, [1])
        peer.link.push(op="error", sub="s99", error_code=40401, message="gone")
        peer.link.push(id=999, ok=True)
        await settle()
        assert client.state == "open"


async def test_an_error_in_the_applications_hook_reaches_the_loop_not_the_connection() -> None:
    peer = Peer()
    caught: list[Any] = []
    asyncio.get_running_loop().set_exception_handler(lambda loop, about: caught.append(about["exception"]))

    def hook(state: str, why: Exception | None) -> None:
        raise RuntimeError("mine")

    async with connected(peer, on_state=hook) as client:
        assert client.state == "open"
    assert caught
    assert all(isinstance(error, RuntimeError) for error in caught)


async def test_a_client_that_is_not_open_or_open_twice_says_what_to_do() -> None:
    client = mq.connect("http://127.0.0.1:1")
    with pytest.raises(MqError, match="not open yet: async with"):
        client.send("t", 1)
    with pytest.raises(MqError, match="looks like http"):
        await mq.connect("orders")
    peer = Peer()
    async with connected(peer) as client:
        with pytest.raises(MqError, match="make another"):
            await client._open()


async def test_a_connection_whose_task_is_cancelled_lets_nobody_wait() -> None:
    peer = Peer()
    async with connected(peer) as client:
        send = client.send("t", 1)
        reading = asyncio.ensure_future(anext(aiter(client.read("t"))))
        await settle()
        assert client._connection._running is not None
        client._connection._running.cancel()  # as asyncio.run does with all tasks
        for waiting in (send, reading):
            with pytest.raises((Closed, StopAsyncIteration)):
                await waiting


async def test_close_while_waiting_for_a_server_ends_at_once() -> None:
    peer = Peer()
    peer.refusals = [ConnectionLost("refused")] * 100
    client = Client(lambda: peer, clock=lambda: peer.clock)
    opening = asyncio.ensure_future(client._open())
    await settle()
    opening.cancel()
    await asyncio.wait({opening})
    assert client.state == "closed"
