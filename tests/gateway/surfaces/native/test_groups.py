"""gateway/surfaces/native/groups.py and gateway.api.render, through HTTP on a whole server: groups as resources,
queue mode."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from gateway.api.shapes.queries import PAGE_ROWS_MAX
from gateway.groups.machines.copies import REASON_BYTES_MAX
from gateway.groups.machines.leases import ATTEMPT_ID_BYTES_MAX
from gateway.groups.machines.subscription import TOPICS_MAX
from gateway.groups.protocol import RECEIPTS_MAX, RECEIVE_BYTES_MAX, RECEIVE_MESSAGES_MAX, REDRIVE_MAX
from tests.gateway.main.test_wiring import config_of, serving
from tests.waiting import WOKEN_S

Json = Any


class Caller:
    """What a client of queue mode does."""

    def __init__(self, session: aiohttp.ClientSession) -> None:
        self.session = session

    async def call(self, method: str, path: str, body: Json = None, **headers: str) -> tuple[int, Json]:
        async with self.session.request(method, f"/mq/v1/{path}", json=body, headers=headers) as response:
            content = await response.read()
            return response.status, await response.json(content_type=None) if content else None

    async def ok(self, method: str, path: str, body: Json = None) -> Json:
        status, answer = await self.call(method, path, body)
        assert status in (200, 201, 204), answer
        return answer

    async def send(self, *records: Json, topic: str = "orders") -> None:
        async with self.session.post(f"/topics/{topic}", json={"records": list(records)}) as response:
            assert response.status == 200, await response.text()

    async def receive(self, group: str = "g", **fields: Json) -> list[Json]:
        body = {"topics": ["orders"], "start": "earliest", **fields}
        messages = (await self.ok("POST", f"groups/{group}/messages:receive", body))["messages"]
        assert isinstance(messages, list)
        return messages

    async def settle(self, verb: str, messages: list[Json], group: str = "g", **fields: Json) -> list[Json]:
        body = {"receipts": [message["receipt"] for message in messages], **fields}
        results = (await self.ok("POST", f"groups/{group}/messages:{verb}", body))["results"]
        assert [result["receipt"] for result in results] == body["receipts"]
        assert isinstance(results, list)
        return results


@pytest.fixture
async def caller(tmp_path: Path) -> AsyncIterator[Caller]:
    """Of a server with the topic `orders` of 1 partition."""
    async with serving(config_of(tmp_path)) as session:
        caller = Caller(session)
        await caller.ok("PUT", "topics/orders", {"partitions": 1})
        yield caller


# Queue mode


async def test_records_are_received_and_acked_one_by_one(caller: Caller) -> None:
    await caller.send(
        {"key": "u1", "value": {"sku": 9}, "tag": "paid", "headers": [{"key": "trace", "text": "abc"}]}, {"value": 2}
    )
    first, second = await caller.receive()
    assert (first["topic"], first["partition"], first["offset"], first["message_id"]) == ("orders", 0, 0, "16-0-0")
    assert (first["key"], first["value"], first["tag"]) == ("u1", {"sku": 9}, "paid")
    assert first["headers"] == [{"key": "trace", "value": "YWJj"}]
    assert (first["delivery_attempt"], second["value"]) == (1, 2)
    assert first["visible_until"] > first["store_timestamp"]
    assert await caller.receive() == []
    for _ in range(2):  # acking twice is fine
        assert await caller.settle("ack", [second, first]) == [
            {"receipt": second["receipt"], "ok": True},
            {"receipt": first["receipt"], "ok": True},
        ]
    lag = await caller.ok("GET", "groups/g/lag")
    assert (lag["total_lag"], lag["in_flight"], lag["partitions"][0]["committed"]) == (0, 0, 2)


async def test_a_receive_waits_for_the_first_record(caller: Caller) -> None:
    assert await caller.receive(wait_ms=50) == []
    waiting = asyncio.create_task(caller.receive(wait_ms=20_000))
    await asyncio.sleep(0.1)
    await caller.send({"value": 1})
    assert [message["value"] for message in await asyncio.wait_for(waiting, WOKEN_S)] == [1]


async def test_what_a_receive_takes(caller: Caller) -> None:
    await caller.send(*({"value": number, "tag": "even" if number % 2 == 0 else "odd"} for number in range(6)))
    assert [message["value"] for message in await caller.receive(max_messages=2)] == [0, 1]
    assert len(await caller.receive(max_bytes=1)) == 1
    assert [message["value"] for message in await caller.receive("h", filter="tag:even")] == [0, 2, 4]
    again = await caller.receive("h2", attempt_id="a1", max_messages=2)
    assert await caller.receive("h2", attempt_id="a1", max_messages=2) == again
    assert await caller.receive("late", start="latest") == []
    assert len(await caller.receive("timed", start={"timestamp": "2020-01-01T00:00:00Z"})) == 6


async def test_a_new_group_gets_what_was_there_before_it_unless_it_says_otherwise(caller: Caller) -> None:
    await caller.send({"value": 1})
    body = {"topics": ["orders"]}
    assert len((await caller.ok("POST", "groups/new/messages:receive", body))["messages"]) == 1
    await caller.ok("PUT", "topics/wide", {"partitions": 3})
    await caller.send({"value": "old", "partition": 0}, {"value": "old", "partition": 2}, topic="wide")
    late = {"topics": ["wide"], "start": "latest", "max_messages": 1}
    assert (await caller.ok("POST", "groups/late/messages:receive", late))["messages"] == []
    await caller.send({"value": "new", "partition": 1}, {"value": "new", "partition": 2}, topic="wide")
    got = [(await caller.ok("POST", "groups/late/messages:receive", late))["messages"] for _ in range(3)]
    assert [[message["value"] for message in messages] for messages in got] == [["new"], ["new"], []]


async def test_nack_reject_extend_and_a_bad_receipt(caller: Caller) -> None:
    await caller.send({"value": 1}, {"value": 2}, {"value": 3})
    again, never, longer = await caller.receive(invisible_ms=30_000)
    assert (await caller.settle("nack", [again], delay_ms=0, reason="db down"))[0]["ok"]
    (retried,) = await caller.receive()
    assert (retried["value"], retried["delivery_attempt"]) == (1, 2)
    (extended,) = await caller.settle("extend", [longer], invisible_ms=60_000)
    assert extended["ok"]
    assert extended["new_receipt"] != longer["receipt"]
    (late,) = await caller.settle("ack", [again])
    assert (late["ok"], late["error_code"]) == (False, 40951)
    assert (await caller.settle("ack", [{"receipt": extended["new_receipt"]}]))[0]["ok"]
    (bad,) = await caller.settle("ack", [{"receipt": "nonsense"}])
    assert (bad["ok"], bad["error_code"]) == (False, 40050)
    (foreign,) = await caller.settle("ack", [retried], group="other")
    assert (foreign["ok"], foreign["error_code"]) == (False, 40050)
    assert (await caller.settle("reject", [never], reason="no such sku"))[0]["ok"]

    letters = await caller.ok("GET", "groups/g/dlq")
    assert (letters["total"], letters["next_offset"]) == (1, None)
    (letter,) = letters["messages"]
    assert (letter["topic"], letter["partition"], letter["topic_offset"], letter["value"]) == ("orders", 0, 1, 2)
    assert (letter["reason"], letter["delivery_attempts"]) == ("no such sku", 1)
    assert letter["dead_lettered_at"] >= letter["timestamp"]
    assert await caller.ok("POST", "groups/g/dlq:redrive", {"max_messages": 10}) == {"redriven": 1}
    (redriven,) = await caller.receive(wait_ms=5000)
    assert (redriven["topic"], redriven["offset"], redriven["value"]) == ("orders", 1, 2)
    assert (await caller.ok("GET", "groups/g/dlq"))["total"] == 0


async def test_all_up_to_an_offset_are_acked(caller: Caller) -> None:
    await caller.send(*({"value": number} for number in range(5)))
    assert len(await caller.receive()) == 5
    up_to = {"topic": "orders", "partition": 0, "offset": 2}
    assert await caller.ok("POST", "groups/g/messages:ack", {"up_to": up_to}) == {"acked": 3}
    assert (await caller.ok("GET", "groups/g/lag"))["partitions"][0]["committed"] == 3


async def test_one_record_as_its_bytes(caller: Caller) -> None:
    body = bytes(range(256))
    path = "/mq/v1/topics/orders/messages?key=u1&tag=paid"
    async with caller.session.post(path, data=body, headers={"Content-Type": "image/png"}) as response:
        assert response.status == 201
    octets = {"Accept": "application/octet-stream"}
    asked = {"topics": ["orders"], "start": "earliest", "max_messages": 1}
    async with caller.session.post("/mq/v1/groups/g/messages:receive", json=asked, headers=octets) as response:
        assert (response.status, await response.read()) == (200, body)
        headers = response.headers
        assert (headers["Content-Type"], headers["Mq-Key"], headers["Mq-Tag"]) == ("image/png", "u1", "paid")
        assert (headers["Mq-Topic"], headers["Mq-Offset"], headers["Mq-Delivery-Attempt"]) == ("orders", "0", "1")
        assert headers["X-Content-Type-Options"] == "nosniff"
    assert (await caller.settle("ack", [{"receipt": headers["Mq-Receipt"]}]))[0]["ok"]
    async with caller.session.post("/mq/v1/groups/g/messages:receive", json=asked, headers=octets) as response:
        assert (response.status, await response.read()) == (204, b"")
    asked["max_messages"] = 2
    status, answer = await caller.call("POST", "groups/g/messages:receive", asked, **octets)
    assert (status, answer["error_code"]) == (422, 42253)


async def test_leases_and_receipts_survive_a_restart(tmp_path: Path) -> None:
    config = config_of(tmp_path)
    async with serving(config) as session:
        caller = Caller(session)
        await caller.ok("PUT", "topics/orders", {"partitions": 1})
        await caller.send({"value": 1}, {"value": 2})
        messages = await caller.receive()
    async with serving(config) as session:
        caller = Caller(session)
        assert await caller.receive() == []
        assert all(result["ok"] for result in await caller.settle("ack", messages))
        assert (await caller.ok("GET", "groups/g/lag"))["total_lag"] == 0


# Requests that break a rule


async def refused(caller: Caller, path: str, body: Json) -> tuple[int, int]:
    status, answer = await caller.call("POST", f"groups/g/{path}", body)
    return status, answer["error_code"] if status >= 400 else 0


async def test_a_receive_that_breaks_a_rule(caller: Caller) -> None:
    for change, expected in (
        ({"topics": []}, (422, 422)),
        ({"topics": "orders"}, (422, 422)),
        ({"topics": [1]}, (422, 422)),
        ({"topics": ["nope"]}, (404, 40401)),
        ({"topics": ["orders"] * TOPICS_MAX}, (200, 0)),
        ({"topics": ["orders"] * (TOPICS_MAX + 1)}, (422, 422)),
        ({"max_messages": RECEIVE_MESSAGES_MAX}, (200, 0)),
        ({"max_messages": RECEIVE_MESSAGES_MAX + 1}, (422, 42253)),
        ({"max_messages": 0}, (422, 42253)),
        ({"max_messages": "1"}, (422, 422)),
        ({"max_bytes": RECEIVE_BYTES_MAX}, (200, 0)),
        ({"max_bytes": RECEIVE_BYTES_MAX + 1}, (422, 42253)),
        ({"wait_ms": 60_001}, (422, 42253)),
        ({"wait_ms": -1}, (422, 42253)),
        ({"invisible_ms": 0}, (422, 42253)),
        ({"invisible_ms": 43_200_000}, (200, 0)),
        ({"invisible_ms": 43_200_001}, (422, 42253)),
        ({"attempt_id": "a" * ATTEMPT_ID_BYTES_MAX}, (200, 0)),
        ({"attempt_id": "a" * (ATTEMPT_ID_BYTES_MAX + 1)}, (422, 422)),
        ({"consumer": ""}, (422, 422)),
        ({"filter": "colour:red"}, (422, 42252)),
        ({"start": "first"}, (422, 422)),
        ({"start": {"timestamp": "soon"}}, (422, 422)),
        ({"max_mesages": 1}, (422, 422)),
    ):
        assert await refused(caller, "messages:receive", {"topics": ["orders"], **change}) == expected, change


async def test_settling_that_breaks_a_rule(caller: Caller) -> None:
    for path, body, expected in (
        ("messages:ack", {}, (422, 422)),
        ("messages:ack", {"receipts": []}, (422, 422)),
        ("messages:ack", {"receipts": [1]}, (422, 422)),
        ("messages:ack", {"receipts": ["r"] * RECEIPTS_MAX}, (200, 0)),
        ("messages:ack", {"receipts": ["r"] * (RECEIPTS_MAX + 1)}, (422, 422)),
        ("messages:ack", {"up_to": {"topic": "orders"}}, (422, 422)),
        ("messages:ack", {"up_to": {"topic": "orders", "partition": -1, "offset": 0}}, (422, 422)),
        ("messages:ack", {"receipts": ["r"], "up_to": {}}, (422, 422)),
        ("messages:nack", {"receipts": ["r"], "delay_ms": -1}, (422, 42250)),
        ("messages:nack", {"receipts": ["r"], "delay_ms": 365 * 86_400_000 + 1}, (422, 42250)),
        ("messages:nack", {"receipts": ["r"], "dealy_ms": 1}, (422, 422)),
        ("messages:reject", {"receipts": ["r"], "reason": "x" * REASON_BYTES_MAX}, (200, 0)),
        ("messages:reject", {"receipts": ["r"], "reason": "x" * (REASON_BYTES_MAX + 1)}, (422, 422)),
        ("messages:extend", {"receipts": ["r"]}, (422, 422)),
        ("messages:extend", {"receipts": ["r"], "invisible_ms": None}, (422, 422)),
        ("messages:extend", {"receipts": ["r"], "invisible_ms": 0}, (422, 42253)),
        ("dlq:redrive", {"max_messages": REDRIVE_MAX}, (200, 0)),
        ("dlq:redrive", {"max_messages": REDRIVE_MAX + 1}, (422, 42253)),
        ("offsets:reset", {"topic": "orders"}, (422, 422)),
        ("offsets:reset", {"topic": "orders", "to": "first"}, (422, 422)),
        ("offsets:reset", {"topic": "orders", "to": -1}, (422, 422)),
        ("offsets:reset", {"topic": "orders", "to": 0, "partitions": []}, (422, 422)),
        ("offsets:reset", {"topic": "orders", "to": 0, "partitions": [9]}, (404, 40402)),
        ("offsets:reset", {"topic": "orders", "to": 0, "dry_run": "yes"}, (422, 422)),
        ("offsets:reset", [], (400, 400)),
    ):
        await caller.receive()  # the group is there
        assert await refused(caller, path, body) == expected, (path, str(body)[:80])


# Groups


async def test_an_unknown_group(caller: Caller) -> None:
    for method, path, body in (
        ("GET", "groups/nope", None),
        ("DELETE", "groups/nope", None),
        ("GET", "groups/nope/lag", None),
        ("GET", "groups/nope/dlq", None),
    ):
        status, answer = await caller.call(method, path, body)
        assert (status, answer["error_code"]) == (404, 40405), path


async def test_settings_are_changed_and_kept(tmp_path: Path) -> None:
    config = config_of(tmp_path)
    changes = {"max_attempts": 2, "backoff": "1s 5s", "invisible_ms": 5000, "fifo": True}
    async with serving(config) as session:
        caller = Caller(session)
        changed = await caller.ok("PATCH", "groups/g", changes)
        assert (changed["max_attempts"], changed["backoff_ms"], changed["fifo"]) == (2, [1000, 5000], True)
        for bad in ({"max_attemps": 1}, {"max_attempts": 0}, {"backoff": "soon"}, {"fifo": 1}):
            status, answer = await caller.call("PATCH", "groups/g", bad)
            assert (status, answer["error_code"]) == (422, 422)
    async with serving(config) as session:
        caller = Caller(session)
        described = await caller.ok("GET", "groups/g")
        assert (described["config"], described["members"]) == (changed, [])
        assert [group["group"] for group in (await caller.ok("GET", "groups"))["groups"]] == ["g"]
        assert (await caller.ok("PATCH", "groups/g", {"max_attempts": None}))["max_attempts"] == 16


async def test_too_many_attempts_make_a_dead_letter(caller: Caller) -> None:
    await caller.ok("PATCH", "groups/g", {"max_attempts": 2})
    await caller.send({"value": 1})
    for _ in range(2):
        await caller.settle("nack", await caller.receive(), delay_ms=0)
    assert await caller.receive() == []
    letters = await caller.ok("GET", "groups/g/dlq")
    assert [letter["delivery_attempts"] for letter in letters["messages"]] == [2]


async def test_the_words_of_the_last_nack_stay_with_the_dead_letter(caller: Caller) -> None:
    await caller.ok("PATCH", "groups/g", {"max_attempts": 2})
    await caller.send({"value": 1}, {"value": 2})
    await caller.settle("nack", await caller.receive(), delay_ms=0, reason="first")
    spoken, silent = await caller.receive()
    await caller.settle("nack", [spoken], reason="KeyError: 'sku'")
    await caller.settle("nack", [silent])
    letters = (await caller.ok("GET", "groups/g/dlq"))["messages"]
    reasons = {letter["value"]: letter["reason"] for letter in letters}
    assert reasons == {1: "max_attempts: KeyError: 'sku'", 2: "max_attempts"}


async def test_who_has_records_in_hand_is_shown(caller: Caller) -> None:
    await caller.send(*({"value": number} for number in range(5)))
    ann = await caller.receive(consumer="ann", max_messages=3)
    await caller.receive(max_messages=1)
    assert await caller.receive("other", topics=["orders"], consumer="elsewhere", start="latest") == []

    async def shown() -> dict[str, int]:
        workers = (await caller.ok("GET", "groups/g"))["workers"]
        assert all(worker["heard_ago_ms"] >= 0 for worker in workers)
        return {worker["consumer"]: worker["leased"] for worker in workers}

    assert await shown() == {"ann": 3, "anonymous@127.0.0.1": 1}
    await caller.settle("ack", ann[:1])
    await caller.settle("extend", ann[1:2], invisible_ms=60_000)
    await caller.settle("nack", ann[2:], delay_ms=60_000)
    assert await shown() == {"ann": 1, "anonymous@127.0.0.1": 1}
    async with caller.session.ws_connect("/ws/v1") as socket:
        await socket.send_json(
            {
                "id": 1,
                "op": "subscribe",
                "sub": "mails",
                "group": "g",
                "mode": "queue",
                "topics": ["orders"],
                "credit": 9,
            }
        )
        while (await socket.receive_json()).get("op") != "messages":
            pass
        workers = (await caller.ok("GET", "groups/g"))["workers"]
        (connected,) = [worker for worker in workers if worker["heard_ago_ms"] is None]
        assert connected["leased"] == 1
        assert connected["consumer"].endswith("(mails)")
    assert await caller.receive("gone", start="latest") == []
    assert len((await caller.ok("GET", "groups/gone"))["workers"]) == 1
    await caller.ok("DELETE", "groups/gone")
    await caller.ok("PATCH", "groups/gone", {"max_attempts": 2})
    assert (await caller.ok("GET", "groups/gone"))["workers"] == []


async def test_dead_letters_come_in_pages(caller: Caller) -> None:
    await caller.send(*({"value": number} for number in range(5)))
    await caller.settle("reject", await caller.receive())
    page = await caller.ok("GET", "groups/g/dlq?limit=2")
    assert ([letter["value"] for letter in page["messages"]], page["next_offset"], page["total"]) == ([0, 1], 2, 5)
    page = await caller.ok("GET", "groups/g/dlq?limit=9&offset=2")
    assert ([letter["value"] for letter in page["messages"]], page["next_offset"]) == ([2, 3, 4], None)
    assert (await caller.call("GET", f"groups/g/dlq?limit={PAGE_ROWS_MAX}"))[0] == 200
    assert (await caller.call("GET", f"groups/g/dlq?limit={PAGE_ROWS_MAX + 1}"))[0] == 422


async def test_lag_reset_and_deletion_with_a_member(caller: Caller) -> None:
    await caller.ok("PUT", "topics/other", {"partitions": 1})
    await caller.send(*({"value": number} for number in range(5)))
    consumers = "/consumers/g"
    async with caller.session.post(consumers, json={"name": "c1", "format": "json"}) as response:
        assert response.status == 200
    wish = {"topics": ["orders", "other"]}
    async with caller.session.post(f"{consumers}/instances/c1/subscription", json=wish) as response:
        assert response.status == 204
    described = await caller.ok("GET", "groups/g")
    (member,) = described["members"]
    assert (member["member_id"], member["topics"], member["revoking"]) == ("c1", ["orders", "other"], [])
    assert member["assigned"] == [{"topic": "orders", "partition": 0}, {"topic": "other", "partition": 0}]
    lag = await caller.ok("GET", "groups/g/lag")
    assert [(row["topic"], row["owner"]) for row in lag["partitions"]] == [("orders", "c1"), ("other", "c1")]
    lag = await caller.ok("GET", "groups/g/lag?topics=other")
    assert [row["topic"] for row in lag["partitions"]] == ["other"]

    reset = {"topic": "orders", "to": 2, "partitions": [0]}
    plan = await caller.ok("POST", "groups/g/offsets:reset", {**reset, "dry_run": True})
    assert (plan["dry_run"], [(row["partition"], row["to"]) for row in plan["partitions"]]) == (True, [(0, 2)])
    status, answer = await caller.call("POST", "groups/g/offsets:reset", reset)
    assert (status, answer["error_code"]) == (409, 40952)
    status, answer = await caller.call("DELETE", "groups/g")
    assert (status, answer["error_code"]) == (409, 40952)
    await caller.ok("POST", "groups/g/offsets:reset", {**reset, "force": True})
    async with caller.session.get(f"{consumers}/instances/c1/records?timeout=0") as response:
        assert [record["value"] for record in await response.json(content_type=None)] == [2, 3, 4]
    async with caller.session.delete(f"{consumers}/instances/c1") as response:
        assert response.status == 204
    reset["to"] = {"timestamp": 0}
    moved = await caller.ok("POST", "groups/g/offsets:reset", reset)
    assert [row["to"] for row in moved["partitions"]] == [0]
    assert (await caller.call("DELETE", "groups/g"))[0] == 204
    assert (await caller.ok("GET", "groups"))["groups"] == []


async def test_deleting_a_group_ends_its_instances(caller: Caller) -> None:
    async with caller.session.post("/consumers/g", json={"name": "c1"}) as response:
        assert response.status == 200
    await caller.ok("PATCH", "groups/g", {"max_attempts": 3})
    assert (await caller.call("DELETE", "groups/g"))[0] == 204
    async with caller.session.get("/consumers/g/instances/c1/records") as response:
        assert response.status == 404
