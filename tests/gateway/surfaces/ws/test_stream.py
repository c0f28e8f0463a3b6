"""Stream mode over a coordinator that does what the test says: who is pushed what, and what is committed when.

Covers gateway.surfaces.ws.commits too.
"""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any

import pytest

from gateway.auth.access import OPEN, Permission
from gateway.groups.machines.membership import Share
from gateway.groups.protocol import TopicPartition
from gateway.surfaces.ws.protocol import partitions_of
from gateway.surfaces.ws.reader import FOLLOWED_PARTITIONS_MAX
from tests.gateway.surfaces.ws.talk import Frame, Server, Talk, subscribe, talking
from tests.waiting import until

STREAM: Frame = {"group": "g", "mode": "stream", "member": "m"}
P0 = TopicPartition("orders", 0)
P1 = TopicPartition("orders", 1)


def up_to(partition: int, offset: int, **fields: Any) -> Frame:
    fed = {"topic": "orders", "partition": partition, "offset": offset}
    return {"id": 9, "op": "ack", "sub": "s", "up_to": [fed], **fields}


async def joined(talk: Talk, **fields: Any) -> Frame:
    answer = await talk.ask(subscribe(**STREAM, **fields))
    assert answer["ok"], answer
    return answer


async def test_a_lone_member_gets_all_partitions_from_what_is_committed() -> None:
    async with talking({"orders": 2}) as talk:
        await talk.fill("orders", 30, partition=1)
        talk.groups.offsets[P1] = 20
        answer = await joined(talk)
        assert (answer["member"], answer["partitions"]) == ("m", {"orders": [0, 1]})
        assert answer["cursor"] == "orders:0=0;orders:1=20"
        assert [message["offset"] for message in await talk.messages(10)] == list(range(20, 30))


@pytest.mark.parametrize("change", ["more", "less"])
async def test_what_changes_while_the_answer_is_on_its_way_is_told_before_anything_is_sent(change: str) -> None:
    """Others have joined while it was found out where the group begins, as a node was away: the first thing that is
    heard of the group comes before anything is pushed. A client drops what is of partitions that it was not told of."""
    async with talking({"orders": 2}) as talk:
        await talk.fill("orders", 3)
        before, after = ([], [P0]) if change == "more" else ([P0, P1], [P0])
        join = talk.groups.join

        async def join_with_others(*given: Any, **named: Any) -> tuple[str, Share]:
            member, _ = await join(*given, **named)
            talk.groups.assign(member, *before)
            share = talk.groups.present[member].share
            talk.groups.assign(member, *after)
            return member, share

        talk.groups.join = join_with_others  # type: ignore[method-assign]
        answer = await joined(talk)
        assert answer["partitions"] == partitions_of(before)
        told = await talk.hear()
        assert (told["op"], told["partitions"]) == (
            ("assigned", {"orders": [0]}) if change == "more" else ("revoked", {"orders": [1]})
        )
        assert [message["offset"] for message in await talk.messages(3)] == [0, 1, 2]


async def test_an_ack_is_a_durable_commit_and_says_so_for_each_partition() -> None:
    async with talking({"orders": 2}) as talk:
        await talk.fill("orders", 10)
        await joined(talk)
        await talk.messages(10)
        await talk.hear()  # caught up
        talk.groups.hold = asyncio.Event()
        await talk.say(up_to(0, 4))
        await talk.quiet()
        talk.groups.hold.set()
        assert (await talk.hear())["results"] == [{"topic": "orders", "partition": 0, "ok": True}]
        assert talk.groups.offsets[P0] == 5
        await talk.answer({"id": 3, "op": "ack", "sub": "s", "cursor": "orders:0=7"})
        assert talk.groups.offsets[P0] == 7
        beyond = await talk.answer(up_to(0, 20))
        assert (beyond["results"][0]["ok"], talk.groups.offsets[P0]) == (True, 21)
        stranger = {"id": 4, "op": "ack", "sub": "s", "cursor": "payments:0=7;orders:0=8"}
        assert [result["ok"] for result in (await talk.answer(stranger))["results"]] == [False, True]
        assert talk.groups.offsets[P0] == 8


async def test_acks_that_wait_together_are_one_commit_and_the_last_one_counts() -> None:
    async with talking({"orders": 1}) as talk:
        await talk.fill("orders", 10)
        await joined(talk)
        await talk.messages(10)
        talk.groups.hold = asyncio.Event()
        await talk.say(*[up_to(0, n, id=n) for n in range(10)])
        talk.groups.hold.set()
        assert [(await talk.heard_id(n))["ok"] for n in range(10)] == [True] * 10
        assert talk.groups.offsets[P0] == 10
        assert len(talk.groups.commits) <= 2


async def test_an_ack_of_what_was_sent_under_a_former_ownership_does_not_take_the_group_back() -> None:
    """A member that hung finds the frames of then in its socket, when the group has come further and it owns again."""
    async with talking({"orders": 1}) as talk:
        await talk.fill("orders", 10)
        talk.groups.offsets[P0] = 7
        await joined(talk)
        await talk.messages(3)
        await talk.hear()  # caught up
        (result,) = (await talk.answer(up_to(0, 5)))["results"]
        assert (result["ok"], result["error_code"]) == (False, 40959)
        assert talk.groups.offsets[P0] == 7
        (result,) = (await talk.answer(up_to(0, 6)))["results"]
        assert result["ok"]
        await talk.answer({"id": 2, "op": "seek", "sub": "s", "to": {"orders": {"0": 4}}})
        (result,) = (await talk.answer(up_to(0, 4)))["results"]
        assert result["ok"], "the client went back of its own will"
        assert talk.groups.offsets[P0] == 5


async def test_a_partition_that_was_lost_does_not_take_the_acks_of_others_with_it() -> None:
    """The group has moved it on, and the member has not heard of that yet."""
    async with talking({"orders": 2}) as talk:
        await talk.fill("orders", 5, partition=0)
        await talk.fill("orders", 5, partition=1)
        await joined(talk)
        await talk.messages(10)
        member = talk.groups.present["m"]
        member.share = replace(member.share, assigned=member.share.assigned[:1])
        answer = await talk.answer({"id": 2, "op": "ack", "sub": "s", "cursor": "orders:0=3;orders:1=4"})
        assert [result["ok"] for result in answer["results"]] == [True, False]
        assert answer["results"][1]["error_code"] == 40959
        assert talk.groups.offsets == {P0: 3}


async def test_a_revoked_partition_is_released_once_what_was_sent_is_acked() -> None:
    async with talking({"orders": 2}) as talk:
        await talk.fill("orders", 5, partition=0)
        await talk.fill("orders", 5, partition=1)
        await joined(talk)
        await talk.messages(10)
        talk.groups.assign("m", P0, revoking=[P1])
        revoked = await talk.heard("revoked")
        assert (revoked["partitions"], revoked["drain_ms"]) == ({"orders": [1]}, 10_000)
        await talk.fill("orders", 5, partition=1, first=5)
        await talk.quiet()  # nothing more of it
        await talk.answer(up_to(1, 3))
        assert talk.groups.present["m"].share.revoking
        await talk.answer(up_to(1, 4))
        await until(lambda: not talk.groups.present["m"].share.revoking)
        assert talk.groups.offsets[P1] == 5
        await talk.fill("orders", 1, partition=0, first=5)
        assert (await talk.messages(1))[0]["partition"] == 0
        assert (await talk.answer(up_to(1, 4)))["results"][0]["error_code"] == 40959


async def test_release_says_that_nothing_more_is_acked() -> None:
    async with talking({"orders": 1}) as talk:
        await talk.fill("orders", 5)
        await joined(talk)
        await talk.messages(5)
        talk.groups.assign("m", revoking=[P0])
        await talk.heard("revoked")
        assert (await talk.ask({"id": 2, "op": "release", "sub": "s", "partitions": {"orders": [0]}}))["ok"]
        await until(lambda: not talk.groups.present["m"].share.revoking)
        assert P0 not in talk.groups.offsets


async def test_a_client_that_does_not_finish_is_waited_for_until_the_time_is_over(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("gateway.surfaces.ws.stream.DRAIN_MS", 20)
    async with talking({"orders": 1}) as talk:
        await talk.fill("orders", 5)
        await joined(talk)
        await talk.messages(5)
        talk.groups.assign("m", revoking=[P0])
        assert (await talk.heard("revoked"))["drain_ms"] == 20
        await until(lambda: not talk.groups.present["m"].share.revoking)


async def test_every_revocation_has_its_own_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """One that is taken back and comes again does not end when the first would have."""
    monkeypatch.setattr("gateway.surfaces.ws.stream.DRAIN_MS", 300)
    async with talking({"orders": 1}) as talk:
        await talk.fill("orders", 5)
        await joined(talk)
        await talk.messages(5)
        talk.groups.assign("m", revoking=[P0])
        await talk.heard("revoked")
        await asyncio.sleep(0.2)
        talk.groups.assign("m", P0)
        await talk.heard("assigned")
        talk.groups.assign("m", revoking=[P0])
        await talk.heard("revoked")
        await asyncio.sleep(0.15)  # the first is over now
        assert talk.groups.present["m"].share.revoking
        await until(lambda: not talk.groups.present["m"].share.revoking)


async def test_what_is_revoked_before_anything_was_sent_is_given_up_at_once() -> None:
    async with talking({"orders": 2}) as talk:
        await joined(talk)
        talk.groups.assign("m", P0, revoking=[("orders", 1)])
        assert (await talk.heard("revoked"))["partitions"] == {"orders": [1]}
        await until(lambda: not talk.groups.present["m"].share.revoking)


async def test_partitions_of_a_deleted_topic_are_lost_and_given_up() -> None:
    async with talking({"orders": 1, "other": 1}) as talk:
        await talk.fill("orders", 3)
        await talk.answer(subscribe(**STREAM, pattern=".*"))
        await talk.messages(3)
        talk.server.routes.remove(talk.server.routes.topic("other"))
        talk.groups.revoke_topic("m", "other")
        revoked = await talk.heard("revoked")
        assert (revoked["partitions"], revoked.get("lost")) == ({"other": [0]}, True)
        await until(lambda: not talk.groups.present["m"].share.revoking)


async def test_a_pattern_leaves_what_its_client_may_not_read() -> None:
    """Also when the group gives it, which has been told of other rights."""

    class OnlyGroups(type(OPEN)):  # type: ignore[misc]
        def allows(self, permission: Permission, *, topic: str | None = None, group: str | None = None) -> bool:
            return topic is None

    server = Server({"orders": 1})
    async with server.talk(OnlyGroups()) as talk:
        answer = await talk.ask(subscribe(**STREAM, pattern=".*"))
        assert (answer["ok"], answer["partitions"]) == (True, {})
        assert list(server.groups.present)
    await server.sessions.close()


async def test_a_connection_that_is_lost_while_it_joins_leaves_no_member() -> None:
    server = Server({"orders": 1})
    server.groups.hold_join = asyncio.Event()
    async with server.talk() as talk:
        saying = asyncio.create_task(talk.say(subscribe(**STREAM)))
        await asyncio.sleep(0.01)
        saying.cancel()
        await asyncio.sleep(0)
        server.groups.hold_join.set()
    assert not server.groups.present
    await server.sessions.close()


@pytest.mark.parametrize("fields", [{}, STREAM])
async def test_as_many_partitions_as_may_be_and_one_more(fields: Frame, monkeypatch: pytest.MonkeyPatch) -> None:
    assert FOLLOWED_PARTITIONS_MAX == 4096
    monkeypatch.setattr("gateway.surfaces.ws.session.FOLLOWED_PARTITIONS_MAX", 3)
    for count, is_taken in ((3, True), (4, False)):
        async with talking({"orders": count}) as talk:
            answer = await talk.ask(subscribe(**fields))
            assert answer["ok"] is is_taken
            if not is_taken:
                assert answer["error_code"] == 42950
                assert not talk.groups.present


async def test_a_revocation_that_is_taken_back_goes_on_where_it_was() -> None:
    async with talking({"orders": 1}) as talk:
        await talk.fill("orders", 5)
        await joined(talk)
        await talk.messages(5)
        talk.groups.assign("m", revoking=[P0])
        await talk.heard("revoked")
        await talk.fill("orders", 5, first=5)
        talk.groups.assign("m", P0)
        assert (await talk.heard("assigned"))["cursor"] == "orders:0=5"
        assert [message["offset"] for message in await talk.messages(5)] == list(range(5, 10))


async def test_what_another_has_already_is_lost() -> None:
    async with talking({"orders": 2}) as talk:
        await joined(talk)
        talk.groups.assign("m", P0)
        assert (await talk.heard("revoked"))["lost"]
        assert (await talk.answer(up_to(1, 0)))["results"][0]["error_code"] == 40959


async def test_a_member_that_was_put_out_joins_again_by_itself() -> None:
    async with talking({"orders": 1}) as talk:
        await joined(talk)
        await talk.heard("caught_up")  # before it pushes there is nothing to revoke: it has what it was told
        talk.groups.put_out("m")
        assert (await talk.heard("revoked"))["lost"]
        assert (await talk.heard("assigned"))["partitions"] == {"orders": [0]}
        assert "m" in talk.groups.present


async def test_another_process_of_the_same_name_ends_the_former_ones_subscription() -> None:
    server = Server({"orders": 1})
    async with server.talk() as former, server.talk() as latter:
        await joined(former)
        await joined(latter)
        error = await former.heard("revoked")
        assert error["lost"]
        error = await former.heard("error")
        assert (error["sub"], error["error_code"]) == ("s", 40959)
        assert "m" in server.groups.present
    await server.sessions.close()


async def test_unsubscribe_commits_what_was_acked_and_leaves() -> None:
    async with talking({"orders": 1}) as talk:
        await talk.fill("orders", 5)
        await joined(talk)
        await talk.messages(5)
        await talk.say(up_to(0, 2, id=None))
        assert (await talk.answer({"id": 2, "op": "unsubscribe", "sub": "s"}))["ok"]
        assert talk.groups.offsets[P0] == 3
        assert not talk.groups.present


async def test_auto_ack_commits_what_was_handed_over() -> None:
    async with talking({"orders": 1}) as talk:
        await talk.fill("orders", 5)
        await joined(talk, auto_ack=True)
        await talk.messages(5)
        await talk.hear()  # caught up: so the frame before is known to have been taken
        await talk.answer({"id": 2, "op": "unsubscribe", "sub": "s"})
        assert talk.groups.offsets[P0] == 5


@pytest.mark.parametrize(("seek_to", "committed"), [(None, 100), (2, 6)])
async def test_auto_ack_leaves_what_the_client_acked_beyond_the_end_until_it_seeks_back(
    seek_to: int | None, committed: int
) -> None:
    async with talking({"orders": 1}) as talk:
        await talk.fill("orders", 5)
        await joined(talk, auto_ack=True)
        await talk.messages(5)
        await talk.hear()
        assert (await talk.answer(up_to(0, 99)))["ok"]
        await talk.fill("orders", 1)
        await talk.messages(1)
        if seek_to is not None:
            await talk.answer({"id": 3, "op": "seek", "sub": "s", "to": {"orders": {"0": seek_to}}})
            await talk.messages(6 - seek_to)
            await talk.hear()
        await talk.answer({"id": 4, "op": "unsubscribe", "sub": "s"})
        assert talk.groups.offsets[P0] == committed


async def test_seek_moves_only_what_it_names_and_commits_nothing() -> None:
    async with talking({"orders": 2}) as talk:
        await talk.fill("orders", 10, partition=0)
        await talk.fill("orders", 3, partition=1)
        await joined(talk)
        await talk.messages(13)
        await talk.hear()
        answer = await talk.answer({"id": 2, "op": "seek", "sub": "s", "to": {"orders": {"0": 8}}})
        assert answer["cursor"] == "orders:0=8;orders:1=3"
        assert [message["offset"] for message in await talk.messages(2)] == [8, 9]
        assert (await talk.hear())["op"] == "caught_up"
        assert not talk.groups.offsets
        for to, code in (({"orders": {"7": 0}}, 40402), ({"orders": {"0": 11}}, 41601)):
            assert (await talk.ask({"id": 3, "op": "seek", "sub": "s", "to": to}))["error_code"] == code
        await talk.quiet()


@pytest.mark.parametrize(
    ("command", "words"),
    [
        ({"op": "ack", "sub": "s", "receipts": ["r1"]}, "commits offsets"),
        ({"op": "nack", "sub": "s", "receipts": ["r1"]}, "commits offsets"),
        ({"op": "ack", "sub": "s"}, "needs one of"),
    ],
)
async def test_what_belongs_to_another_mode_is_refused(command: Frame, words: str) -> None:
    async with talking({"orders": 1}) as talk:
        await joined(talk)
        await talk.hear()
        answer = await talk.ask({"id": 5, **command})
        assert (answer["error_code"], words in answer["message"]) == (422, True), answer
