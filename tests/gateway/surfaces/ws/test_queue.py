"""Queue mode: leases in and settled, credit until then, and nothing forgotten."""

from __future__ import annotations

import asyncio
from typing import Any, NoReturn

import orjson
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.api.lease import REASON_DEFAULT
from gateway.cluster.metadata import Unavailable
from gateway.groups import protocol
from gateway.groups.machines.errors import GroupElsewhere, GroupFull
from gateway.groups.machines.progress import Start, StartTime
from gateway.groups.protocol import Receive, Received
from gateway.surfaces.ws import queue
from gateway.surfaces.ws.protocol import CloseCode
from gateway.surfaces.ws.queue import RECEIVE_WAIT_MS
from tests.clock import START_MS, FakeClock
from tests.gateway.surfaces.ws.talk import Frame, Server, subscribe, talking
from tests.waiting import until

QUEUE: Frame = {"group": "g", "mode": "queue"}


def settle(op: str, *messages: Frame, **fields: Any) -> Frame:
    return {"id": 9, "op": op, "sub": "s", "receipts": [message["receipt"] for message in messages], **fields}


async def test_messages_carry_receipt_and_attempt_and_each_settling_answers_for_each_receipt() -> None:
    async with talking({"orders": 1}) as talk:
        await talk.fill("orders", 5)
        answer = await talk.ask(subscribe(**QUEUE, invisible_ms=7000))
        assert answer["partitions"] == {"orders": [0]}
        messages = await talk.messages(5)
        assert [message["attempt"] for message in messages] == [1] * 5
        assert messages[0]["visible_until"] == START_MS + 7000
        answer = await talk.ask(settle("ack", messages[0], messages[0], {"receipt": "r999"}, {"receipt": "?"}))
        assert [result["ok"] for result in answer["results"]] == [True, True, False, False]
        assert [result.get("error_code") for result in answer["results"]] == [None, None, 40951, 40050]
        assert (await talk.ask(settle("reject", messages[1], reason="bad")))["results"][0]["ok"]
        assert talk.groups.rejected == {("orders", 0, 1): "bad"}
        answer = await talk.ask(settle("extend", messages[2], invisible_ms=60_000))
        extended = answer["results"][0]["new_receipt"]
        assert talk.groups.leases[extended].until_ms == START_MS + 60_000
        await talk.say(settle("nack", messages[3], delay_ms=0, reason="later", id=None))
        (again,) = await talk.messages(1)
        assert (again["offset"], again["attempt"]) == (3, 2)
        answer = await talk.ask(
            {"id": 4, "op": "ack", "sub": "s", "up_to": [{"topic": "orders", "partition": 0, "offset": 3}]}
        )
        assert answer["results"] == [{"topic": "orders", "partition": 0, "ok": True, "count": 2}]
        assert talk.groups.held() == {("orders", 0, 4)}


@pytest.mark.parametrize(
    ("said", "start"),
    [({}, Start.FIRST), ({"start": "latest"}, Start.LAST), ({"start": {"timestamp": 5}}, StartTime(5))],
)
async def test_a_group_begins_at_the_first_record_unless_the_client_says_otherwise(
    said: Frame, start: Start | StartTime
) -> None:
    async with talking({"orders": 1}) as talk:
        await talk.ask(subscribe(**QUEUE, **said))
        await until(lambda: talk.groups.starts != [])
        assert talk.groups.starts[0] == start


async def test_credit_comes_back_when_a_message_is_settled() -> None:
    async with talking({"orders": 1}) as talk:
        await talk.fill("orders", 10)
        await talk.ask(subscribe(**QUEUE, credit=3))
        first = await talk.messages(3)
        await talk.quiet()
        await talk.say(settle("ack", first[0], id=None))
        assert (await talk.messages(1))[0]["offset"] == 3
        await talk.quiet()
        await talk.say(settle("reject", first[1], id=None), settle("nack", first[2], id=None))
        assert [message["offset"] for message in await talk.messages(2)] in ([2, 4], [4, 2], [4, 5])
        await talk.quiet()


async def test_a_rejection_without_a_reason_has_the_one_it_has_by_http() -> None:
    async with talking({"orders": 1}) as talk:
        await talk.fill("orders", 1)
        await talk.ask(subscribe(**QUEUE))
        assert (await talk.ask(settle("reject", *await talk.messages(1))))["results"][0]["ok"]
        assert talk.groups.rejected == {("orders", 0, 0): REASON_DEFAULT}


async def test_what_is_settled_elsewhere_gives_its_credit_back_too() -> None:
    async with talking({"orders": 1}) as talk:
        await talk.fill("orders", 3)
        await talk.ask(subscribe(**QUEUE, credit=1))
        (first,) = await talk.messages(1)
        await talk.quiet()
        results = await talk.groups.ack("g", [first["receipt"]])
        talk.gateway.leases.settled("g", results)  # as a request by HTTP does
        (second,) = await talk.messages(1)
        assert second["offset"] == 1
        await talk.quiet()
        await talk.ask({"id": 5, "op": "unsubscribe", "sub": "s"})
        await until(lambda: not talk.gateway.leases._by_group)


async def test_an_ack_whose_group_has_gone_to_another_node_is_not_refused_but_closes_the_socket() -> None:
    """Its client comes back, and sends the ack again to where the group is."""
    async with talking({"orders": 1}) as talk:
        await talk.fill("orders", 1)
        await talk.ask(subscribe(**QUEUE, credit=1))
        (message,) = await talk.messages(1)

        async def gone(*_: object, **__: object) -> NoReturn:
            raise GroupElsewhere("group g belongs to node n2")

        for op, method in (("ack", "ack"), ("extend", "extend"), ("reject", "reject")):
            talk.closed_with = None
            setattr(talk.groups, method, gone)
            await talk.say(settle(op, message, **({"invisible_ms": 5000} if op == "extend" else {})))
            await until(lambda: talk.closed_with is CloseCode.SHUTDOWN)
        assert talk.said.empty()


async def test_a_group_that_cannot_be_owned_while_the_metadata_is_away_is_refused_and_the_socket_stays_open() -> None:
    async with talking({"orders": 1}) as talk:

        async def away(*_: object, **__: object) -> NoReturn:
            raise Unavailable("etcd cannot be reached")

        talk.groups.receive = away  # type: ignore[method-assign, assignment]
        await talk.ask(subscribe(**QUEUE, credit=1))
        frame = await talk.hear()
        assert (frame["op"], frame["error_code"]) == ("error", 50351), frame
        assert talk.closed_with is None


async def test_while_there_is_more_a_receive_does_not_wait_whatever_it_finds() -> None:
    async with talking({"orders": 1}) as talk:
        waits: list[int] = []
        receive = talk.groups.receive

        async def receiving(group: str, request: Receive) -> Received:
            waits.append(request.wait_ms)
            if len(waits) == 3:
                raise GroupFull("as many as it may")
            received = await receive(group, request)
            return Received(received.runs, backlog=len(waits) < 3)

        talk.groups.receive = receiving  # type: ignore[method-assign]
        await talk.fill("orders", 5)
        await talk.ask(subscribe(**QUEUE, batch=2))
        assert [message["offset"] for message in await talk.messages(5)] == [0, 1, 2, 3, 4]
        await talk.fill("orders", 1, first=5)
        talk.groups.wake()
        assert (await talk.messages(1))[0]["offset"] == 5
        await talk.quiet()
        assert waits == [RECEIVE_WAIT_MS, 0, 0, *[RECEIVE_WAIT_MS] * 3]


async def test_acks_are_answered_in_whichever_way_their_answers_leave(monkeypatch: pytest.MonkeyPatch) -> None:
    server = Server({"orders": 1})
    async with server.talk() as talk:
        await talk.fill("orders", 3)
        assert (await talk.answer(subscribe(**QUEUE, credit=3)))["ok"]
        first, second, third = await talk.messages(3)
        assert (await talk.answer(settle("ack", first)))["results"] == [{"receipt": first["receipt"], "ok": True}]
        with monkeypatch.context() as patch:  # the client reads slowly
            patch.setattr(talk.outbox, "send_at_once", lambda frame, is_binary=False: False)
            assert (await talk.answer(settle("ack", second)))["results"] == [{"receipt": second["receipt"], "ok": True}]
            strange = await talk.answer({"id": 9, "op": "ack", "sub": "s", "receipts": ["none"]})
            assert [result["ok"] for result in strange["results"]] == [False]

        async def refused(group: str, receipts: object) -> NoReturn:
            raise GroupFull("as many as it may")

        with monkeypatch.context() as patch:
            patch.setattr(talk.groups, "ack", refused)
            assert (await talk.answer(settle("ack", third)))["ok"] is False
        await talk.say({"op": "ack", "sub": "s", "receipts": [third["receipt"]]})  # it asks for no answer
        await until(lambda: len(server.groups.done) == 3)
        await talk.quiet()
        assert not len(talk.conversation.in_flight)


async def test_an_ack_whose_client_is_gone_is_done_and_told_to_the_ledger() -> None:
    server = Server({"orders": 1})
    async with server.talk() as talk:
        hello = await talk.answer({"id": 0, "op": "hello"})
        await talk.fill("orders", 1)
        assert (await talk.answer(subscribe(**QUEUE, credit=1)))["ok"]
        (message,) = await talk.messages(1)
        talk.groups.hold = asyncio.Event()
        await talk.say(settle("ack", message))
        await asyncio.sleep(0)
        asyncio.get_running_loop().call_later(0.01, talk.groups.hold.set)  # the socket ends meanwhile
    assert server.groups.done == {("orders", 0, 0)}
    async with server.talk() as talk:
        resumed = await talk.answer({"id": 0, "op": "hello", "resume": hello["session"], "seen": {"s": 1}})
        assert resumed["subs"]["s"]["credit"] == 1, "what it had is settled"
        talk.says_goodbye = True
    await server.sessions.close()


async def test_a_lease_that_is_over_gives_its_credit_back() -> None:
    async with talking({"orders": 1}) as talk:
        await talk.fill("orders", 2)
        await talk.ask(subscribe(**QUEUE, credit=1, invisible_ms=5))
        assert (await talk.messages(1))[0]["offset"] == 0
        await talk.quiet()
        clock = talk.gateway.clock
        assert isinstance(clock, FakeClock)
        clock.step(6)
        assert (await talk.messages(1))[0]["offset"] == 1


async def test_without_automatic_credit_an_ack_grants_nothing() -> None:
    async with talking({"orders": 1}) as talk:
        await talk.fill("orders", 10)
        await talk.ask(subscribe(**QUEUE, credit=2, auto_credit=False))
        messages = await talk.messages(2)
        await talk.ask(settle("ack", *messages))
        await talk.quiet()
        await talk.say({"op": "permit", "sub": "s", "messages": 3})
        assert len(await talk.messages(3)) == 3
        await talk.quiet()


async def test_what_does_not_fit_the_byte_credit_is_given_back_at_once() -> None:
    async with talking({"orders": 1}) as talk:
        await talk.fill("orders", 4)
        await talk.ask(subscribe(**QUEUE, credit_bytes=400, auto_credit=False))
        frame = await talk.hear()
        assert frame["credit_bytes"] >= 0
        sent = len(frame["messages"])
        assert 0 < sent < 4
        await until(lambda: len(talk.groups.leases) == sent)
        assert all(talk.groups.attempts[("orders", 0, n)] == 0 for n in range(sent, 4))


@pytest.mark.parametrize("fields", [{}, {"credit_bytes": 1 << 24}])
async def test_a_frame_ends_where_the_next_message_would_be_too_much(
    monkeypatch: pytest.MonkeyPatch, fields: Frame
) -> None:
    """Whether or not the size of each is counted; a frame that holds all is written without a look at each."""
    async with talking({"orders": 1}) as talk:
        await talk.fill("orders", 6)
        await talk.ask(subscribe(**QUEUE))
        size = {len(orjson.dumps(one)) for one in await talk.messages(6)}.pop()
    for target, counts in ((6 * size, [6]), (6 * size - 1, [5, 1]), (2 * size, [2, 2, 2]), (1, [1] * 6)):
        monkeypatch.setattr(queue, "FRAME_BYTES_TARGET", target)
        async with talking({"orders": 1}) as talk:
            await talk.fill("orders", 6)
            await talk.ask(subscribe(**QUEUE, **fields))
            frames = [await talk.hear() for _ in counts]
            assert [len(frame["messages"]) for frame in frames] == counts
            assert [frame["bytes"] for frame in frames] == [count * size for count in counts]
            assert [one["offset"] for frame in frames for one in frame["messages"]] == list(range(6))
            assert frames[-1]["credit"] == frames[0]["credit"] + counts[0] - 6


async def test_unsubscribe_releases_what_is_not_settled() -> None:
    async with talking({"orders": 1}) as talk:
        await talk.fill("orders", 4)
        await talk.ask(subscribe(**QUEUE))
        messages = await talk.messages(4)
        await talk.say(settle("ack", messages[1], id=None))
        assert (await talk.answer({"id": 2, "op": "unsubscribe", "sub": "s"}))["ok"]
        assert not talk.groups.leases
        assert talk.groups.done == {("orders", 0, 1)}


@pytest.mark.parametrize("how", ["ack", "unsubscribe"])
async def test_more_than_one_call_takes_is_settled_and_released(monkeypatch: pytest.MonkeyPatch, how: str) -> None:
    monkeypatch.setattr(queue, "RECEIPTS_MAX", 3)
    monkeypatch.setattr(protocol, "RECEIPTS_MAX", 3)
    async with talking({"orders": 1}) as talk:
        await talk.fill("orders", 7)
        await talk.ask(subscribe(**QUEUE))
        await talk.messages(7)
        if how == "ack":
            assert (await talk.answer({"id": 5, "op": "ack", "sub": "s", "cursor": "orders:0=7"}))["ok"]
            assert len(talk.groups.done) == 7
        else:
            assert (await talk.answer({"id": 2, "op": "unsubscribe", "sub": "s"}))["ok"]
        assert not talk.groups.leases


async def test_auto_ack_settles_what_was_handed_over_and_shows_no_receipt() -> None:
    async with talking({"orders": 1}) as talk:
        await talk.fill("orders", 300)
        await talk.ask(subscribe(**QUEUE, auto_ack=True, credit=50))
        messages = await talk.messages(300)
        assert not any("receipt" in message for message in messages)
        await until(lambda: len(talk.groups.done) == 300)


async def test_pause_ends_a_wait_and_resume_begins_it_again() -> None:
    async with talking({"orders": 1}) as talk:
        await talk.ask(subscribe(**QUEUE))
        await talk.quiet()
        await talk.ask({"id": 2, "op": "pause", "sub": "s"})
        await talk.fill("orders", 2)
        talk.groups.wake()
        await talk.quiet()
        await talk.ask({"id": 3, "op": "resume", "sub": "s"})
        assert len(await talk.messages(2)) == 2


async def test_tags_and_patterns_choose_what_is_received() -> None:
    async with talking({"orders": 1, "orders-eu": 1, "other": 1}) as talk:
        for topic in ("orders", "orders-eu", "other"):
            records = [{"value": 1, "tag": "a"}, {"value": 2, "tag": "b"}, {"value": 3}]
            await talk.ask({"id": 1, "op": "produce", "topic": topic, "records": records})
        await talk.ask(subscribe(**QUEUE, pattern="orders.*", filter="tag:a||c"))
        assert [wish.pattern for wish in talk.groups.followed] == ["orders.*"]
        assert [(m["topic"], m["value"]) for m in await talk.messages(2)] == [("orders", 1), ("orders-eu", 1)]
        await talk.quiet()


async def test_acks_are_answered_only_when_they_are_durable() -> None:
    async with talking({"orders": 1}) as talk:
        await talk.fill("orders", 3)
        await talk.ask(subscribe(**QUEUE))
        messages = await talk.messages(3)
        talk.groups.hold = asyncio.Event()
        await talk.say(*[settle("ack", message, id=n) for n, message in enumerate(messages)])
        await talk.quiet()
        talk.groups.hold.set()
        assert [(await talk.hear())["id"] for _ in range(3)] == [0, 1, 2]


steps = st.lists(
    st.one_of(
        st.tuples(st.just("produce"), st.integers(1, 8)),
        st.tuples(st.sampled_from(["ack", "nack", "reject", "extend"]), st.integers(0, 5)),
        st.tuples(st.just("permit"), st.integers(0, 4)),
        st.tuples(st.sampled_from(["pause", "resume"]), st.just(0)),
        st.tuples(st.just("cut"), st.integers(0, 3)),
    ),
    max_size=25,
)


class Client:
    """What a client of one queue subscription could count itself."""

    def __init__(self, credit: int, auto: bool) -> None:
        self.auto = auto
        self.granted = credit
        self.unreturned = 0
        self.held: dict[str, Frame] = {}
        self.seen = 0
        self.session: str | None = None

    def took(self, frame: Frame) -> None:
        assert frame["seq"] == self.seen + 1, "each frame once, in order"
        self.seen = frame["seq"]
        for message in frame["messages"]:
            assert message["receipt"] not in self.held
            self.held[message["receipt"]] = message
            self.unreturned += 1
        assert self.unreturned <= self.granted
        assert frame["credit"] >= 0


@settings(max_examples=80, deadline=None)
@given(st.booleans(), st.integers(0, 6), steps)
def test_never_more_than_granted_and_nothing_is_forgotten(
    auto: bool, credit: int, steps: list[tuple[str, int]]
) -> None:
    """Connections are cut with frames on their way; the client resumes with what it saw."""
    asyncio.run(_run(Client(credit, auto), credit, [*steps, ("cut", 1)]))


async def _run(client: Client, credit: int, steps: list[tuple[str, int]]) -> None:
    server = Server({"orders": 1})
    produced = 0
    while steps:
        async with server.talk() as talk:
            hello: Frame = {"id": 0, "op": "hello"}
            if client.session is not None:
                hello |= {"resume": client.session, "seen": {"s": client.seen}}
            answer = await talk.answer(hello)
            if client.session is None:
                fields = subscribe(**QUEUE, credit=credit, auto_credit=client.auto)
                assert (await talk.answer(fields))["ok"]
            else:
                assert answer["resumed"]
                state = answer["subs"]["s"]
                assert (state["seq"], state["credit"]) == (client.seen, client.granted - client.unreturned)
            client.session = answer["session"]
            while steps:
                step, number = steps.pop(0)
                if step == "produce":
                    await talk.fill("orders", number, first=produced)
                    produced += number
                    server.groups.wake()
                elif step == "permit":
                    await talk.answer({"id": 1, "op": "permit", "sub": "s", "messages": number})
                    client.granted += number
                elif step in ("pause", "resume"):
                    await talk.answer({"id": 1, "op": step, "sub": "s"})
                elif step != "cut" and client.held:
                    receipt = list(client.held)[number % len(client.held)]
                    command = {"id": 2, "op": step, "sub": "s", "receipts": [receipt]}
                    (result,) = (await talk.answer(command))["results"]
                    assert result["ok"]
                    message = client.held.pop(receipt)
                    if step == "extend":
                        client.held[result["new_receipt"]] = message
                    elif client.auto:
                        client.unreturned -= 1
                for _ in range(30):
                    await asyncio.sleep(0)
                while not talk.said.empty():
                    talk.frames.append(talk.said.get_nowait())
                frames, talk.frames = talk.frames, []
                is_cut = step == "cut"
                if not is_cut and steps and steps[0][0] == "cut":
                    is_cut, number = True, steps.pop(0)[1]
                if is_cut:  # the last `number` frames are on their way for ever
                    frames = frames[: max(len(frames) - number, 0)]
                for frame in frames:
                    client.took(frame)
                if is_cut:
                    break
    groups = server.groups
    on_lease = {("orders", 0, message["offset"]) for message in client.held.values()}
    assert on_lease <= groups.held(), "what the client holds is leased to it, across all cuts"
    assert groups.held() | groups.done <= {("orders", 0, n) for n in range(produced)}
    async with server.talk() as talk:
        await talk.answer({"id": 0, "op": "hello", "resume": client.session, "seen": {"s": client.seen}})
        assert groups.held() >= on_lease
        talk.says_goodbye = True
    assert not groups.held(), "an end releases everything"
    await server.sessions.close()
