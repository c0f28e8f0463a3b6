"""Sessions outlive connections: nothing that was seen is sent again, and nothing that was not is lost.

Covers gateway.surfaces.ws.feed and gateway.surfaces.ws.reader too, as far as they are rewound.
"""

from __future__ import annotations

import asyncio
import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.auth.access import OPEN, Permission, forbidden
from gateway.surfaces.ws.protocol import CloseCode
from gateway.surfaces.ws.session import Session
from gateway.surfaces.ws.sessions import Sessions
from tests.gateway.surfaces.ws.talk import Frame, Server, subscribe
from tests.gateway.surfaces.ws.wire import Wire, wired
from tests.waiting import PATIENCE_S, until

HELLO: Frame = {"id": 0, "op": "hello"}
STREAM: Frame = {"group": "g", "mode": "stream", "member": "m"}
QUEUE: Frame = {"group": "g", "mode": "queue"}


def resume(session: str, **seen: int) -> Frame:
    return {**HELLO, "resume": session, "seen": seen}


async def test_a_session_goes_on_behind_the_last_frame_that_was_seen() -> None:
    server = Server({"orders": 2})
    async with server.talk() as talk:
        session = (await talk.ask(HELLO))["session"]
        await talk.fill("orders", 30, partition=0)
        await talk.fill("orders", 20, partition=1)
        await talk.ask(subscribe(batch=10, credit=15, auto_credit=False))
        first = await talk.hear()
        await talk.hear()
    async with server.talk() as talk:
        answer = await talk.ask(resume(session, s=first["seq"]))
        assert answer["resumed"]
        state = answer["subs"]["s"]
        assert (state["seq"], state["credit"]) == (1, 5)
        second = await talk.hear()
        assert second["seq"] == 2
        assert len(second["messages"]) == 5
        offsets = {(m["partition"], m["offset"]) for frame in (first, second) for m in frame["messages"]}
        assert len(offsets) == 15
        await talk.quiet()
    await server.sessions.close()


async def test_a_frame_that_is_not_remembered_ends_the_subscription_and_says_so(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("gateway.surfaces.ws.session.FRAMES_MAX", 8)
    server = Server({"orders": 1})
    for seen, is_known in ((8, True), (7, False)):  # of 16 frames the last 8 are remembered
        async with server.talk() as talk:
            session = (await talk.ask(HELLO))["session"]
            await talk.ask(subscribe())
            await talk.hear()
            for n in range(16):
                await talk.fill("orders", 1, first=n)
                await talk.messages(1)
        async with server.talk() as talk:
            answer = await talk.ask(resume(session, s=seen))
            assert ("s" in answer["subs"]) is is_known
            assert ("s" in answer["ended"]) is not is_known
            if not is_known:
                assert answer["ended"]["s"]["error_code"] == 40961
                assert (await talk.ask(subscribe()))["ok"]
            talk.says_goodbye = True
        server = Server({"orders": 1})


async def test_what_was_confirmed_cannot_be_taken_back_and_what_was_not_sent_not_confirmed() -> None:
    server = Server({"orders": 1})
    async with server.talk() as talk:
        session = (await talk.ask(HELLO))["session"]
        await talk.fill("orders", 5)
        await talk.ask(subscribe(batch=1))
        await talk.messages(5)
        await talk.hear()
        assert (await talk.ask({"id": 5, "op": "seen", "subs": {"s": 6}}))["error_code"] == 422
        assert (await talk.ask({"id": 5, "op": "seen", "subs": {"s": 3}}))["ok"]
    async with server.talk() as talk:
        assert (await talk.ask(resume(session, s=2)))["ended"]["s"]["error_code"] == 40961
        talk.says_goodbye = True


async def test_a_session_that_is_taken_over_closes_the_former_socket_with_4009() -> None:
    server = Server({"orders": 1})
    leaving = asyncio.Event()
    former_closed = asyncio.Event()

    async def former() -> str:
        async with server.talk() as talk:
            session: str = (await talk.ask(HELLO))["session"]
            await talk.ask(subscribe(**STREAM))
            names.append(session)
            leaving.set()
            await until(lambda: talk.closed_with)
            assert talk.closed_with is CloseCode.TAKEN_OVER
        former_closed.set()
        return session

    names: list[str] = []
    task = asyncio.create_task(former())
    await leaving.wait()
    async with server.talk() as talk:
        answer = await talk.answer(resume(names[0]))
        assert answer["resumed"]
        assert former_closed.is_set()
        assert answer["subs"]["s"]["partitions"] == {"orders": [0]}
        await task
    assert "m" in server.groups.present
    await server.sessions.close()


async def test_a_member_stays_for_the_grace_and_is_gone_after_it() -> None:
    server = Server({"orders": 1}, ws_session_grace_ms=50)
    async with server.talk() as talk:
        session = (await talk.ask(HELLO))["session"]
        await talk.ask(subscribe(**STREAM))
    assert (server.sessions.waiting_count, list(server.groups.present)) == (1, ["m"])
    await until(lambda: not server.groups.present)
    assert len(server.sessions) == 0
    async with server.talk() as talk:
        answer = await talk.ask(resume(session))
        assert (answer["resumed"], "subs" in answer) == (False, False)
        assert answer["session"] != session
        talk.says_goodbye = True


@pytest.mark.parametrize(
    ("code", "says_goodbye", "stays"),
    [
        (None, False, True),
        (None, True, False),
        (CloseCode.SLOW, False, True),
        (CloseCode.NO_PONG, False, True),
        (CloseCode.AUTH_EXPIRED, False, True),
        (CloseCode.BAD_FRAME, False, False),
        (CloseCode.INTERNAL, False, False),
        (CloseCode.LIMIT, False, False),
    ],
)
async def test_how_a_connection_ends_says_whether_its_session_waits(
    code: CloseCode | None, says_goodbye: bool, stays: bool
) -> None:
    server = Server({"orders": 1})
    async with server.talk() as talk:
        await talk.ask(HELLO)
        await talk.ask(subscribe(**STREAM))
        talk.closed_with = code
        talk.says_goodbye = says_goodbye
    assert (server.sessions.waiting_count == 1) is stays
    assert ("m" in server.groups.present) is stays
    await server.sessions.close()


async def test_a_stopping_server_keeps_members_and_leases_for_the_next_start() -> None:
    server = Server({"orders": 1})
    async with server.talk() as talk:
        await talk.ask(HELLO)
        await talk.fill("orders", 3)
        await talk.ask(subscribe(**STREAM))
        await talk.answer(subscribe("q", group="g", mode="queue") | {"id": 2})
        await until(lambda: server.groups.leases)
        talk.closed_with = CloseCode.SHUTDOWN
    await server.sessions.close()
    assert "m" in server.groups.present
    assert server.groups.leases


async def test_who_never_said_hello_has_nothing_that_waits() -> None:
    server = Server({"orders": 1})
    async with server.talk() as talk:
        await talk.ask(subscribe(**STREAM))
    assert (len(server.sessions), server.groups.present) == (0, {})


async def test_somebody_else_cannot_take_a_session_up() -> None:
    class Other(type(OPEN)):  # type: ignore[misc]
        principal = "other"

    server = Server({"orders": 1})
    async with server.talk() as talk:
        session = (await talk.ask(HELLO))["session"]
        await talk.ask(subscribe())
    async with server.talk(Other()) as talk:
        assert not (await talk.ask(resume(session)))["resumed"]
        talk.says_goodbye = True
    assert server.sessions.waiting_count == 1
    await server.sessions.close()


async def test_hello_comes_first_and_once() -> None:
    server = Server({"orders": 1})
    async with server.talk() as talk:
        await talk.ask({"op": "ping"})
        assert (await talk.ask(HELLO))["error_code"] == 40962
    async with server.talk() as talk:
        assert (await talk.ask(HELLO))["ok"]
        assert (await talk.ask(HELLO))["error_code"] == 40962
        talk.says_goodbye = True


@pytest.mark.parametrize("waiting_max", [1, 2])
async def test_the_session_that_waits_longest_makes_room(waiting_max: int) -> None:
    server = Server({"orders": 1})
    server.sessions = Sessions(server.gateway, waiting_max=waiting_max)
    names = []
    for _ in range(2):
        async with server.talk() as talk:
            names.append((await talk.ask(HELLO))["session"])
            await talk.ask(subscribe())
    async with server.talk() as talk:
        assert (await talk.ask(resume(names[0])))["resumed"] is (waiting_max == 2)
        talk.says_goodbye = True
    await server.sessions.close()


async def test_a_reader_with_a_pattern_hears_of_topics_that_come_and_go_and_grow() -> None:
    server = Server({"orders": 1})
    async with server.talk() as talk:
        answer = await talk.ask(subscribe(pattern="orders.*"))
        assert answer["partitions"] == {"orders": [0]}
        await talk.hear()
        server.broker.add_topic("orders-eu", 1)
        await server.broker.grow_topic("orders", 2)
        server.broker.add_topic("other", 1)
        await talk.fill("orders-eu", 2)
        await talk.session.refresh()
        assert (await talk.hear())["partitions"] == {"orders": [1], "orders-eu": [0]}
        assert {message["topic"] for message in await talk.messages(2)} == {"orders-eu"}
        server.routes.remove(server.routes.topic("orders-eu"))
        await talk.session.refresh()
        assert (await talk.heard("revoked"))["partitions"] == {"orders-eu": [0]}
        await talk.quiet()


@pytest.mark.parametrize("comes", [True, False])
async def test_what_changes_for_a_reader_while_it_is_told_how_things_are_is_told_before_anything_of_it(
    comes: bool,
) -> None:
    """It was looked at since the answer to `hello` was made, as its node was asked for long. A client drops what is of
    partitions that it was not told of."""
    server = Server({"orders": 1, "orders-eu": 1})
    async with server.talk() as talk:
        session = (await talk.ask(HELLO))["session"]
        await talk.answer(subscribe(pattern="orders.*"))
        await talk.heard("caught_up")
    async with server.talk() as talk:
        answered = talk.conversation._answer

        async def slowly(id_: int | None, fields: Frame) -> None:
            talk.conversation._answer = answered  # type: ignore[method-assign]
            if comes:
                await server.broker.grow_topic("orders", 2)
            else:
                server.routes.remove(server.routes.topic("orders-eu"))
            await talk.session.refresh()
            await answered(id_, fields)

        talk.conversation._answer = slowly  # type: ignore[method-assign]
        answer = await talk.ask(resume(session))
        assert answer["subs"]["s"]["partitions"] == {"orders": [0], "orders-eu": [0]}
        told = await talk.hear()
        if comes:
            assert (told["op"], told["partitions"], told["cursor"]) == ("assigned", {"orders": [1]}, "orders:1=0")
        else:
            assert (told["op"], told["partitions"]) == ("revoked", {"orders-eu": [0]})
        await talk.heard("caught_up")
        await talk.fill("orders", 2, partition=1 if comes else 0)
        assert len(await talk.messages(2)) == 2
        await talk.quiet()
    await server.sessions.close()


class Ruled(type(OPEN)):  # type: ignore[misc]
    """Rights that a change of rules takes away."""

    denied: str | None = None

    def allows(self, permission: Permission, *, topic: str | None = None, group: str | None = None) -> bool:
        return permission is not Permission.RECEIVE or self.denied is None or self.denied not in (topic, group)

    def check(self, permission: Permission, *, topic: str | None = None, group: str | None = None) -> None:
        if not self.allows(permission, topic=topic, group=group):
            raise forbidden(permission, topic, group)


@pytest.mark.parametrize(
    ("asked", "denied"), [({}, "orders"), (STREAM, "orders"), (STREAM, "g"), (QUEUE, "orders"), (QUEUE, "g")]
)
async def test_a_subscription_ends_when_a_rule_takes_its_topic_or_group_away(asked: Frame, denied: str) -> None:
    server = Server({"orders": 1})
    rights = Ruled()
    async with server.talk(rights) as talk:
        await talk.fill("orders", 1)
        await talk.answer(subscribe(credit=10, **asked))
        rights.denied = denied
        await talk.session.refresh()
        while (ended := await talk.hear())["op"] != "error":
            pass
        assert (ended["sub"], ended["error_code"]) == ("s", 40301)
        assert not talk.session.subscriptions
        await talk.fill("orders", 1)
        await talk.quiet()
    await server.sessions.close()


@pytest.mark.parametrize("asked", [{}, STREAM, QUEUE], ids=["reader", "stream", "queue"])
async def test_a_session_for_which_nothing_has_changed_is_not_worked_on(
    monkeypatch: pytest.MonkeyPatch, asked: Frame
) -> None:
    """There may be 15,000, and all are looked at every few seconds."""
    server = Server({"orders": 1} | {f"other-{number}": 1 for number in range(5)})
    rights = Ruled()
    refreshed: list[str] = []
    original = Session.refresh

    async def refresh(session: Session) -> None:
        refreshed.append(session.name)
        await original(session)

    monkeypatch.setattr(Session, "refresh", refresh)
    async with server.talk(rights) as talk:
        await talk.answer(subscribe(credit=10, **asked))
        server.broker.add_topic("new", 1)
        monkeypatch.setattr(server.routes, "topics", lambda: pytest.fail("looked at all topics"))
        for _ in range(3):
            talk.session.refresh_soon()
            await asyncio.sleep(0)
        assert refreshed == []
        rights.denied = "orders"
        talk.session.refresh_soon()
        await until(lambda: not talk.session.subscriptions)
        assert refreshed == [talk.session.name]
    await server.sessions.close()


async def test_a_session_whose_topic_grows_is_worked_on() -> None:
    server = Server({"orders": 1})
    async with server.talk() as talk:
        await talk.answer(subscribe(credit=10))
        await server.broker.grow_topic("orders", 2)
        talk.session.refresh_soon()
        assert (await talk.heard("assigned"))["partitions"] == {"orders": [1]}
    await server.sessions.close()


@pytest.mark.parametrize(("is_there_again", "code"), [(False, 40401), (True, 40953)])
async def test_a_session_whose_topic_goes_hears_one_code_whether_it_looks_or_reads(
    is_there_again: bool, code: int
) -> None:
    server = Server({"orders": 1})
    for is_waiting in (False, True):
        async with server.talk() as talk:
            await talk.answer(subscribe(credit=10))
            if is_waiting:  # else its first read may be the first to find out
                await server.broker.waiting.wait()
            server.routes.remove(server.routes.topic("orders"))
            if is_there_again:
                server.broker.add_topic("orders", 1)
            talk.session.refresh_soon()
            assert (await talk.heard("error"))["error_code"] == code
        if not is_there_again:
            server.broker.add_topic("orders", 1)
    await server.sessions.close()


@settings(max_examples=25, deadline=None)
@given(
    st.integers(0, 2**32),
    st.sampled_from(["json", "binary", "batch"]),
    st.sampled_from(["reader", "stream", "queue"]),
)
def test_cuts_at_any_byte_repeat_nothing_and_lose_nothing(seed: int, form: str, mode: str) -> None:
    """A real socket through a wire that is cut after a random number of bytes, again and again."""
    form = "binary" if (mode, form) == ("queue", "batch") else form
    asyncio.run(asyncio.wait_for(_cut_and_resume(random.Random(seed), form, mode), PATIENCE_S))


async def _cut_and_resume(chance: random.Random, form: str, mode: str) -> None:
    count = 400
    group = {"reader": {}, "stream": STREAM, "queue": QUEUE}[mode]
    got: dict[int, list[int]] = {0: [], 1: []}
    session: str | None = None
    seen = 0
    async with wired({"orders": 2}) as wire:
        await wire.fill("orders", count, chance)
        while len(got[0]) + len(got[1]) < count:
            async with wire.connected() as client:
                hello: Frame = {**HELLO, "binary": form != "json"}
                if session is not None:
                    hello |= {"resume": session, "seen": {"s": seen}}
                answer = await client.ask(hello)
                if answer is None:
                    continue
                if not answer["resumed"]:
                    assert session is None, "cuts are shorter than the grace"
                    await client.say(subscribe(batch=chance.randint(1, 40), format=form, **group) | {"id": 7})
                    session = answer["session"]
                    answer = await client.answer(7)
                    assert answer is not None
                    assert answer["ok"], answer
                client.cut_after(chance.randint(1, 12_000))
                async for frame in client:
                    if frame["op"] not in ("messages", "batch"):
                        continue
                    assert frame["seq"] == seen + 1
                    seen = frame["seq"]
                    for partition, offset in Wire.records(frame):
                        if mode == "queue":
                            assert offset not in got[partition], "each once"
                        else:
                            assert offset == len(got[partition]), "each once, none left out"
                        got[partition].append(offset)
                    if len(got[0]) + len(got[1]) == count:
                        break
