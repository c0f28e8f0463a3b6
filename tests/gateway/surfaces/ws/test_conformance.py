"""docs/websocket.md, statement by statement, against a whole server: real store, real coordinator, real sockets.

What needs a clock, a slow disk or a peer of its own making is in the files beside this one, over fakes:

    frames, fields, limits n and n + 1          test_commands, test_fuzz, test_endpoint, test_session, test_in_flight
    credit K1 to K3                             test_credit, test_queue
    slow peers, pings, rates, rights            test_endpoint, test_write_watchdog
    sessions: what is seen, grace, takeover     test_sessions, test_journal
    stream: drains and losses in all orders     test_stream
    sockets whose URL says everything           test_short_forms
    a killed server, other client stacks        tests/e2e/test_websocket.py

Covers gateway.surfaces.ws.sends and gateway.surfaces.ws.settling above all.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from store import record_batch
from store.record_batch import Record
from tests.gateway.surfaces.ws.whole import Frame, Whole, whole

QUEUE: Frame = {"mode": "queue", "group": "g"}
STREAM: Frame = {"mode": "stream", "group": "g"}


@pytest.fixture
async def server(tmp_path: Path) -> AsyncIterator[Whole]:
    """With the topic `orders` of two partitions, ten records in the first."""
    async with whole(tmp_path, partitions=2) as server:
        await server.fill(10)
        yield server


def offsets(messages: list[Frame]) -> list[int]:
    return [message["offset"] for message in messages]


# ------------------------------------------------------------------------------------- rule 1: the three modes


async def test_readers_all_get_all_and_keep_their_own_place(server: Whole) -> None:
    async with server.peer() as one, server.peer() as other:
        for peer in (one, other):
            answer = await peer.subscribe()
            assert answer["mode"] == "reader"
            assert answer["partitions"] == {"orders": [0, 1]}
            assert answer["cursor"] == "orders:0=0;orders:1=0"
            assert offsets(await peer.messages(10)) == list(range(10))
        assert await one.refused("ack", sub="s", up_to=[{"topic": "orders", "partition": 0, "offset": 3}]) == 422


@pytest.mark.parametrize(
    ("start", "first"),
    [
        ("earliest", 0),
        ({"orders": {"0": 7}}, 7),
        ("orders:0=7;orders:1=0", 7),
        ({"timestamp": 0}, 0),
    ],
)
async def test_a_reader_begins_where_it_says(server: Whole, start: Any, first: int) -> None:
    async with server.peer() as peer:
        await peer.ok("subscribe", sub="s", topics=["orders"], **{"from": start})
        assert (await peer.messages(1))[0]["offset"] == first


async def test_latest_is_the_default_and_an_offset_out_of_range_is_told_with_the_bounds(server: Whole) -> None:
    async with server.peer() as peer:
        await peer.ok("subscribe", sub="s", topics=["orders"])
        await server.fill(1, first=10)
        assert (await peer.messages(1))[0]["value"] == 10
        answer = await peer.ask("subscribe", sub="t", topics=["orders"], **{"from": {"orders": {"0": 12}}})
        assert answer["error_code"] == 41601
        assert answer["details"]["beginning_offset"] == 0
        assert answer["details"]["end_offset"] == 11
        assert await peer.refused("subscribe", sub="t", topics=["orders"], **{"from": {"orders": {"2": 0}}}) == 40402


async def test_an_ack_past_the_end_is_kept_and_the_next_member_waits_for_that_record(server: Whole) -> None:
    """While it waits it is woken for each record before that one, and says nothing of them."""
    async with server.peer() as one:
        await one.subscribe(**STREAM)
        answer = await one.ok("ack", sub="s", cursor="orders:0=12;orders:1=0")
        assert [result["ok"] for result in answer["results"]] == [True, True]
    assert await server.committed("g") == 12
    async with server.peer() as two:
        assert (await two.subscribe(**STREAM))["cursor"] == "orders:0=12;orders:1=0"
        await two.next(op="caught_up")
        for first in (10, 11):
            await server.fill(1, first=first)
            await two.quiet(0.05)
        await server.fill(2, first=12)
        assert offsets(await two.messages(2)) == [12, 13]
    assert await server.committed("g") == 12


async def test_stream_shares_partitions_keeps_order_and_ack_is_a_commit(server: Whole) -> None:
    await server.fill(10, partition=1)
    async with server.peer() as one:
        answer = await one.subscribe(**STREAM, member="a")
        assert (answer["member"], answer["partitions"]) == ("a", {"orders": [0, 1]})
        assert answer["generation"] > 0
        messages = await one.messages(20)
        for partition in (0, 1):
            assert offsets([m for m in messages if m["partition"] == partition]) == list(range(10))
        answer = await one.ok("ack", sub="s", up_to=[{"topic": "orders", "partition": 0, "offset": 3}])
        assert answer["results"] == [{"topic": "orders", "partition": 0, "ok": True}]
        assert await server.committed("g") == 4
        await one.ok("ack", sub="s", cursor="orders:0=10;orders:1=10")
        assert (await server.committed("g"), await server.committed("g", 1)) == (10, 10)
        # A second member comes: one partition is revoked, and as all of it is acked it moves at once.
        async with server.peer() as two:
            await two.subscribe(**STREAM, member="b")
            revoked = await one.next(op="revoked")
            assert revoked["drain_ms"] > 0
            assigned = await two.next(op="assigned")
            assert assigned["partitions"] == revoked["partitions"]
            assert assigned["generation"] >= revoked["generation"]
            ((topic, (moved,)),) = assigned["partitions"].items()
            assert assigned["cursor"] == f"{topic}:{moved}=10", "behind what was committed"
            await server.fill(1, partition=moved, first=10)
            assert offsets(await two.messages(1)) == [10]
            answer = await one.ok("ack", sub="s", cursor=f"orders:{moved}=11")
            assert answer["results"][0]["error_code"] == 40959
        await one.next(op="assigned")  # the other has gone


async def test_queue_leases_each_record_to_one_and_settles_by_receipt(server: Whole) -> None:
    async with server.peer() as one, server.peer() as other:
        for peer in (one, other):
            assert (await peer.subscribe(**QUEUE, credit=5, invisible_ms=60_000))["credit"] == 5
        taken = [await one.messages(5), await other.messages(5)]
        assert sorted(offsets(taken[0]) + offsets(taken[1])) == list(range(10))
        message = taken[0][0]
        assert (message["attempt"], "receipt" in message, "visible_until" in message) == (1, True, True)
        # A receipt is the group's: it is good on any socket.
        first, second, third, fourth, fifth = [m["receipt"] for m in taken[0]]
        assert (await other.ok("ack", sub="s", receipts=[first]))["results"] == [{"receipt": first, "ok": True}]
        assert (await one.ok("ack", sub="s", receipts=[first]))["results"][0]["ok"], "acking twice is fine"
        extended = (await one.ok("extend", sub="s", receipts=[second], invisible_ms=90_000))["results"][0]
        assert extended["new_receipt"] != second
        stale = (await one.ok("ack", sub="s", receipts=[second, "what"]))["results"]
        assert [result.get("error_code") for result in stale] == [None, 40050], "of an extended one, both are good"
        assert (await one.ok("ack", sub="s", receipts=[extended["new_receipt"]]))["results"][0]["ok"]
        assert (await one.ok("nack", sub="s", receipts=[third], delay_ms=0, reason="later"))["results"][0]["ok"]
        again = (await one.messages(1))[0]
        assert (again["offset"], again["attempt"]) == (taken[0][2]["offset"], 2)
        assert (await one.ok("reject", sub="s", receipts=[fourth], reason="no such sku"))["results"][0]["ok"]
        dead = await server.call("GET", "topics/%25DLQ%25g")
        assert dead["partitions"]
        up_to = [{"topic": "orders", "partition": 0, "offset": 9}]
        assert (await one.ok("ack", sub="s", up_to=up_to))["results"][0]["count"] == 2, "of this subscription only"
        assert fifth


async def test_credit_returns_by_the_receipt_from_before_an_extend_too(server: Whole) -> None:
    async with server.peer() as peer:
        await peer.subscribe(**QUEUE, credit=1, invisible_ms=60_000)
        for use_newest in (False, True, False):
            (message,) = await peer.messages(1)
            receipts = [message["receipt"]]
            for _ in range(2):
                extended = await peer.ok("extend", sub="s", receipts=receipts[-1:], invisible_ms=90_000)
                receipts.append(extended["results"][0]["new_receipt"])
            settled = await peer.ok("ack", sub="s", receipts=[receipts[-1 if use_newest else 0]])
            assert settled["results"][0]["ok"]
        assert len(await peer.messages(1)) == 1


async def test_unsubscribe_releases_what_is_not_settled_at_once(server: Whole) -> None:
    async with server.peer() as one, server.peer() as other:
        await one.subscribe(**QUEUE)
        first = await one.messages(10)
        await one.ok("ack", sub="s", receipts=[first[0]["receipt"]])
        await one.ok("unsubscribe", sub="s")
        await other.subscribe(**QUEUE)
        assert sorted(offsets(await other.messages(9))) == sorted(offsets(first[1:]))
        await one.quiet()


async def test_patterns_take_in_topics_that_come_and_let_go_of_those_that_go(
    server: Whole, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Deleting one topic of many ends no subscription, in any mode."""
    monkeypatch.setattr("gateway.surfaces.ws.queue.PATTERN_WAIT_MS", 100)
    monkeypatch.setattr("gateway.surfaces.ws.sessions.REFRESH_S", 0.2)
    async with server.peer() as peer:
        await peer.subscribe("r", pattern="orders.*")
        await peer.subscribe("st", **STREAM, pattern="orders.*")
        await peer.subscribe("q", mode="queue", group="h", pattern="orders.*")
        for sub in ("r", "st", "q"):
            await peer.messages(10, sub=sub)
        await server.topic("orders-eu")
        await server.fill(3, topic="orders-eu")
        for sub in ("st", "r"):
            assert (await peer.next(op="assigned", sub=sub))["partitions"] == {"orders-eu": [0]}
        for sub in ("r", "st", "q"):
            assert {message["topic"] for message in await peer.messages(3, sub=sub)} == {"orders-eu"}
        await server.call("DELETE", "topics/orders-eu")
        for sub in ("st", "r"):
            revoked = await peer.next(op="revoked", sub=sub)
            assert (revoked["partitions"], revoked["lost"]) == ({"orders-eu": [0]}, True)
        await server.fill(1, first=10)
        for sub in ("r", "st", "q"):
            assert (await peer.messages(1, sub=sub))[0]["value"] == 10


async def test_a_topic_made_anew_is_not_read_under_old_offsets(server: Whole) -> None:
    async with server.peer() as peer:
        epochs = (await peer.subscribe())["epochs"]
        await peer.messages(10)
        await server.call("DELETE", "topics/orders")
        assert (await peer.next(op="error"))["error_code"] == 40401
        await server.topic("orders", 2)
        await server.fill(20)
        answer = await peer.ask("subscribe", sub="s", topics=["orders"], epochs=epochs, **{"from": "orders:0=10"})
        assert answer["error_code"] == 40953
        assert answer["details"]["partitions"][0] == {"partition": 0, "beginning_offset": 0, "end_offset": 20}
        await peer.subscribe("st", **STREAM)
        await peer.messages(20, sub="st")
        await server.call("DELETE", "topics/orders")
        assert (await peer.next(op="revoked", sub="st"))["lost"]
        await server.topic("orders", 2)
        await server.fill(20)
        assigned = await peer.next(op="assigned", sub="st")
        assert assigned["partitions"] == {"orders": [0, 1]}


async def test_a_filter_counts_and_shows_only_what_it_lets_through(server: Whole) -> None:
    await server.fill(5, first=10, tag="paid")
    await server.fill(5, first=15, tag="open")
    async with server.peer() as peer:
        for sub, fields in (("r", {}), ("st", STREAM), ("q", {"mode": "queue", "group": "h"})):
            await peer.subscribe(sub, filter="tag:paid||sent", credit=100, auto_credit=False, **fields)
            frame = await peer.next(op="messages", sub=sub)
            assert [message["tag"] for message in frame["messages"]] == ["paid"] * len(frame["messages"])
            assert frame["credit"] == 100 - len(frame["messages"])
        assert await peer.refused("subscribe", sub="x", topics=["orders"], filter="price > 3") == 42252


# ------------------------------------------------------------------------------------- rule 2 and 3: credit


@pytest.mark.parametrize("mode", [{}, STREAM, QUEUE])
async def test_without_credit_nothing_comes_and_permit_grants_exactly(server: Whole, mode: Frame) -> None:
    async with server.peer() as peer:
        await peer.subscribe(credit=0, auto_credit=False, **mode)
        await peer.quiet()
        await peer.ok("permit", sub="s", messages=3)
        assert len(await peer.messages(3)) == 3
        await peer.quiet()
        await peer.ok("permit", sub="s", messages=0)
        await peer.quiet(0.05)
        for command in ({"messages": 10_001}, {"messages": -1}, {"bytes": -1}):
            assert await peer.refused("permit", sub="s", **command) == 42253
        await peer.ok("pause", sub="s")
        await peer.ok("permit", sub="s", messages=2)
        await peer.quiet(0.05)
        await peer.ok("resume", sub="s")
        assert len(await peer.messages(2)) == 2


async def test_bytes_are_what_the_frame_says_and_one_message_goes_beyond_them_alone(server: Whole) -> None:
    async with server.peer() as peer:
        await peer.subscribe(credit_bytes=1, auto_credit=False)
        frame = await peer.next(op="messages")
        assert len(frame["messages"]) == 1
        assert frame["credit_bytes"] == 1 - frame["bytes"]
        await peer.quiet(0.05)
        await peer.ok("permit", sub="s", bytes=frame["bytes"] - 1)
        await peer.quiet(0.05)  # nothing is left, and something is in flight
        await peer.ok("permit", sub="s", bytes=1)
        assert offsets((await peer.next(op="messages"))["messages"]) == [1]


async def test_credit_in_queue_mode_returns_with_every_way_to_settle_and_with_the_end_of_a_lease(
    server: Whole,
) -> None:
    await server.fill(20, partition=1)
    async with server.peer() as peer:
        await peer.subscribe(**QUEUE, credit=1, invisible_ms=60_000)
        seen = set()
        for op in ("ack", "reject", "nack", "ack"):
            (message,) = await peer.messages(1)
            await peer.quiet(0.05)
            seen.add((message["partition"], message["offset"]))
            await peer.say(
                {
                    "op": op,
                    "sub": "s",
                    "receipts": [message["receipt"]],
                    **({"delay_ms": 60_000} if op == "nack" else {}),
                }
            )
        assert len(seen) == 4
        (message,) = await peer.messages(1)
        await peer.ok("extend", sub="s", receipts=[message["receipt"]], invisible_ms=1000)
        await peer.quiet(0.05)
        assert len(await peer.messages(1)) == 1  # a second later


# ------------------------------------------------------------------------------------- rule 4: sessions


async def test_leases_stay_with_the_session_and_nothing_is_sent_again(server: Whole) -> None:
    async with server.peer() as peer:
        session = (await peer.ok("hello"))["session"]
        await peer.subscribe(**QUEUE, batch=5)
        frames = [await peer.next(op="messages") for _ in range(2)]
        peer.cut()
    async with server.peer() as peer:
        answer = await peer.ok("hello", resume=session, seen={"s": 1})
        assert answer["resumed"] is True
        assert answer["subs"]["s"]["seq"] == 1
        receipt = frames[0]["messages"][0]["receipt"]
        assert (await peer.ok("ack", sub="s", receipts=[receipt]))["results"][0]["ok"]
        again = await peer.next(op="messages")
        assert again["seq"] == 2
        assert offsets(again["messages"]) == offsets(frames[1]["messages"])
        assert {message["attempt"] for message in again["messages"]} == {1}, "what was not seen does not count"
        await peer.quiet()


async def test_after_the_grace_what_was_handed_out_counts_and_the_session_is_unknown(tmp_path: Path) -> None:
    async with whole(tmp_path, ws_session_grace_ms=100) as server:
        await server.fill(3)
        async with server.peer() as peer:
            session = (await peer.ok("hello"))["session"]
            await peer.subscribe(**QUEUE)
            await peer.messages(3)
            peer.cut()
        async with server.peer() as other:
            await other.subscribe(**QUEUE)
            messages = await other.messages(3)
            assert {message["attempt"] for message in messages} == {2}
            async with server.peer() as peer:
                answer = await peer.ok("hello", resume=session)
                assert answer["resumed"] is False
                assert answer["session"] != session
                assert "subs" not in answer


@pytest.mark.parametrize("mode", [{}, STREAM])
async def test_a_seek_is_not_undone_by_an_older_seen(server: Whole, mode: Frame) -> None:
    async with server.peer() as peer:
        session = (await peer.ok("hello"))["session"]
        await peer.subscribe(batch=2, **mode)
        await peer.messages(10)
        await peer.ok("seek", sub="s", to={"orders": {"0": 8}})
        await peer.messages(2)
        peer.cut()
    async with server.peer() as peer:
        answer = await peer.ok("hello", resume=session, seen={"s": 1})
        assert answer["subs"]["s"]["cursor"] == "orders:0=8;orders:1=0"
        assert answer["subs"]["s"]["credit"] == 1000
        assert offsets(await peer.messages(2)) == [8, 9]
        await peer.next(op="caught_up")
        await peer.quiet()


async def test_caught_up_comes_again_after_a_seek_and_after_a_resume(server: Whole) -> None:
    async with server.peer() as peer:
        session = (await peer.ok("hello"))["session"]
        await peer.subscribe()
        assert (await peer.next(op="caught_up"))["cursor"] == "orders:0=10;orders:1=0"
        await peer.ok("seek", sub="s", to="latest")
        await peer.next(op="caught_up")
        seen = (await peer.next(op="messages"))["seq"]
        await server.fill(1, first=10)
        await peer.messages(1)
        peer.cut()
    async with server.peer() as peer:
        await peer.ok("hello", resume=session, seen={"s": seen + 1})
        await peer.next(op="caught_up")
        await peer.quiet()


async def test_ended_names_what_met_an_error_until_it_is_made_again(server: Whole) -> None:
    await server.topic("gone")
    async with server.peer() as peer:
        session = (await peer.ok("hello"))["session"]
        await peer.subscribe("t", topics=["gone"])
        await server.call("DELETE", "topics/gone")
        error = await peer.next(op="error", sub="t")
        peer.cut()
    for _ in range(2):  # the answer, too, may be lost
        async with server.peer() as peer:
            answer = await peer.ok("hello", resume=session)
            assert answer["ended"]["t"]["error_code"] == error["error_code"]
            assert answer["subs"] == {}
            peer.cut()
    async with server.peer() as peer:
        await peer.ok("hello", resume=session)
        await peer.subscribe("t")
        peer.cut()
    async with server.peer() as peer:
        answer = await peer.ok("hello", resume=session)
        assert (list(answer["ended"]), list(answer["subs"])) == ([], ["t"])


async def test_a_session_has_one_socket_and_the_older_one_is_closed_with_4009(server: Whole) -> None:
    async with server.peer() as older, server.peer() as newer:
        session = (await older.ok("hello"))["session"]
        await older.subscribe(**STREAM)
        answer = await newer.ok("hello", resume=session)
        assert answer["subs"]["s"]["partitions"] == {"orders": [0, 1]}
        assert await older.close_code() == 4009


async def test_a_goodbye_ends_the_session_at_once(server: Whole) -> None:
    async with server.peer() as peer:
        session = (await peer.ok("hello"))["session"]
        await peer.subscribe(**STREAM)
        await peer.socket.close(code=1000)
    async with server.peer() as peer:
        assert (await peer.ok("hello", resume=session))["resumed"] is False
        assert (await peer.subscribe(**STREAM))["partitions"] == {"orders": [0, 1]}


# ------------------------------------------------------------------------------------- rule 6: order


async def test_answers_and_pushes_mix_but_each_partition_is_in_order(server: Whole) -> None:
    async with server.peer() as peer:
        await peer.subscribe("a", batch=3)
        for number in range(50):
            records = [{"value": number, "partition": 1}]
            await peer.say({"id": number, "op": "produce", "topic": "orders", "records": records})
        answers = [await peer.next(id=number) for number in range(50)]
        assert [answer["offsets"][0]["offset"] for answer in answers] == list(range(50))
        assert {answer["acks"] for answer in answers} == {"flushed"}
        messages = await peer.messages(60, sub="a")
        for partition, count in ((0, 10), (1, 50)):
            assert offsets([m for m in messages if m["partition"] == partition]) == list(range(count))


async def test_a_produce_says_what_became_of_each_record(server: Whole) -> None:
    async with server.peer() as peer:
        records = [{"value": 1, "partition": 1}, {"value": 2, "delay_ms": 3_600_000}, {"key": "k", "value": None}]
        answer = await peer.ok("produce", topic="orders", records=records, acks="written")
        now, later, _ = answer["offsets"]
        assert (answer["acks"] in ("written", "flushed"), now["partition"], now["offset"]) == (True, 1, 0)
        assert later["offset"] is None
        assert later["deliver_at"] > 1_700_000_000_000
        assert later["schedule_id"]
        once = [{"value": 1, "msg_id": "a1"}]
        first = (await peer.ok("produce", topic="orders", records=once))["offsets"][0]
        again = (await peer.ok("produce", topic="orders", records=once))["offsets"][0]
        assert again == {**first, "duplicate": True}
        await peer.say({"op": "produce", "topic": "orders", "records": once, "ack": False})
        await peer.quiet(0.05)
        await peer.say({"op": "produce", "topic": "nosuch", "records": once, "ack": False})
        assert (await peer.next(op="error"))["error_code"] == 40401
        assert await peer.refused("produce", topic="orders", records=[{"value": 1}, {"valu": 2}]) == 422
        assert await peer.refused("produce", topic="__meta", records=once) == 40401


async def test_a_produce_with_an_idempotency_key_is_stored_once_in_text_in_binary_and_raw(server: Whole) -> None:
    async with server.peer(hello={"binary": True}) as peer:
        records = [{"value": n, "partition": n % 2} for n in range(4)] + [{"value": "later", "delay_ms": 3_600_000}]
        once = {"topic": "orders", "records": records, "idempotency_key": "k1"}
        first = (await peer.ok("produce", **once))["offsets"]
        again = (await peer.ok("produce", **once))["offsets"]
        assert again == [{**offset, "duplicate": True} for offset in first]
        other = (await peer.ok("produce", **{**once, "idempotency_key": "k2"}))["offsets"]
        assert not any("duplicate" in offset for offset in other)
        assert [offset["offset"] for offset in other[:4]] == [12, 2, 13, 3]
        header = {"op": "produce", "topic": "orders", "idempotency_key": "k3", "records": [{"value_len": 1}]}
        batch = bytes(record_batch.encode([Record(None, b"raw", 0)] * 3))
        raw = {"op": "produce", "topic": "orders", "idempotency_key": "k4", "partition": 1, "format": "batch"}
        for number, (fields, payload) in enumerate([(header, b"1"), (raw, batch)]):
            answers = []
            for id_ in (100 + number, 200 + number):
                await peer.say_binary({"id": id_, **fields}, payload)
                answers.append((await peer.next(id=id_))["offsets"])
            assert answers[1] == [{**offset, "duplicate": True} for offset in answers[0]]


# ------------------------------------------------------------------------------------- binary frames


@pytest.mark.parametrize("mode", [{}, STREAM, QUEUE])
async def test_binary_frames_in_every_mode_and_text_when_asked_for(server: Whole, mode: Frame) -> None:
    async with server.peer(hello={"binary": True}) as peer:
        await peer.say_binary(
            {"id": 1, "op": "produce", "topic": "orders", "partition": 1, "records": [{"key_len": 2, "value_len": 3}]},
            b"\x00\x01\xff\xfe\xfd",
        )
        assert (await peer.next(id=1))["offsets"] == [{"partition": 1, "offset": 0}]
        await peer.subscribe(**mode)
        messages, payload = [], b""
        while len(messages) < 11:
            frame = await peer.next(op="messages", sub="s")
            assert frame["bytes"] == len(frame["payload"])
            messages += frame["messages"]
            payload += frame["payload"]
        assert len(payload) == sum((m["key_len"] or 0) + (m["value_len"] or 0) for m in messages)
        assert b"\x00\x01\xff\xfe\xfd" in payload
        await peer.subscribe("j", format="json")
        everything = await peer.messages(11, sub="j")
        assert not any("key_len" in message for message in everything)
        (one,) = [message for message in everything if message["partition"] == 1]
        assert (one["key"], one["value_b64"]) == ("\x00\x01", "//79"), "bytes that are no JSON do not pass for it"


async def test_raw_batches_go_out_in_stream_mode_and_acks_commit_them(server: Whole) -> None:
    async with server.peer(hello={"binary": True}) as peer:
        await peer.subscribe(**STREAM, format="batch")
        frame = await peer.next(op="batch")
        assert (frame["offset"], frame["next_offset"], frame["count"]) == (0, 10, 10)
        await peer.ok("ack", sub="s", cursor=frame["cursor"])
        assert await server.committed("g") == 10
        for fields in (QUEUE, {"filter": "tag:a"}):
            assert await peer.refused("subscribe", sub="x", topics=["orders"], format="batch", **fields) == 422


# ------------------------------------------------------------------------------------- rule 7: closing


async def test_one_subscription_that_fails_leaves_the_others(server: Whole) -> None:
    await server.topic("gone")
    async with server.peer() as peer:
        await peer.subscribe("a", topics=["gone"])
        await peer.subscribe("b")
        await server.call("DELETE", "topics/gone")
        assert (await peer.next(op="error"))["sub"] == "a"
        assert len(await peer.messages(10, sub="b")) == 10
        assert await peer.refused("pause", sub="a") == 40450
        assert await peer.refused("subscribe", sub="b", topics=["orders"]) == 40960
