"""Queue mode in light queues, through a whole server: what is leased from one, settled, tried again and given up."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest

from tests.gateway.surfaces.native.test_light import QUEUES, ROCKSDB, WAIT_MS, send
from tests.gateway.surfaces.ws.whole import Whole, whole
from tests.waiting import PATIENCE_S

GROUP = "/mq/v1/groups/workers"


@pytest.fixture
async def server(tmp_path: Path) -> AsyncIterator[Whole]:
    """With the topic `orders` of one partition."""
    async with whole(tmp_path, **ROCKSDB) as server:
        yield server


async def call(server: Whole, what: str, **body: Any) -> dict[str, Any]:
    async with server.session.post(f"{GROUP}/messages:{what}", json=body) as response:
        answer: dict[str, Any] = await response.json(content_type=None)
        return answer


async def receive(server: Whole, queue: str | None, **body: Any) -> list[dict[str, Any]]:
    named = {} if queue is None else {"queue": queue}
    answer = await call(server, "receive", topics=["orders"], **named, **body)
    assert "messages" in answer, answer
    messages: list[dict[str, Any]] = answer["messages"]
    return messages


async def settle(server: Whole, what: str, messages: list[dict[str, Any]], **body: Any) -> list[bool]:
    answer = await call(server, what, receipts=[message["receipt"] for message in messages], **body)
    return [result["ok"] for result in answer["results"]]


def places(messages: list[dict[str, Any]]) -> list[tuple[Any, int, Any, int]]:
    return [
        (message["queue"], message["queue_offset"], message["value"], message["delivery_attempt"])
        for message in messages
    ]


async def offset_of(server: Whole, name: str) -> tuple[int, int] | None:
    """The offset, and the lag."""
    path = f"{QUEUES}/{quote(name, safe='')}/offsets"
    async with server.session.get(path, params={"group": "workers"}) as response:
        rows = (await response.json(content_type=None))["partitions"]
        return (rows[0]["committed"], rows[0]["lag"]) if rows else None


async def test_records_of_one_inbox_are_leased_and_acked_by_themselves(server: Whole) -> None:
    await send(server, ["a", "b"], ["b"], None, ["a"])
    first = await receive(server, "a")
    assert places(first) == [("a", 0, 0, 1), ("a", 1, 3, 1)]
    assert [message["offset"] for message in first] == [0, 3]
    assert first[0]["message_id"].endswith("-0-0")
    assert await receive(server, "a") == []
    assert places(await receive(server, "b")) == [("b", 0, 0, 1), ("b", 1, 1, 1)], "its own leases"
    assert [message["value"] for message in await receive(server, None)] == [0, 1, 2, 3], "and so has the topic"
    assert await settle(server, "ack", first[1:]) == [True]
    assert await offset_of(server, "a") == (0, 2), "the first one is not done"
    assert await settle(server, "ack", first) == [True, True], "acking twice is fine"
    assert await offset_of(server, "a") == (2, 0)
    await send(server, ["a"])
    assert places(await receive(server, "a")) == [("a", 2, 0, 1)]
    async with server.session.get(f"{GROUP}/leases") as response:
        rows = (await response.json(content_type=None))["leases"]
    assert [(row["queue"], row["offset"]) for row in rows if row["queue"] is not None] == [("a", 2), ("b", 0), ("b", 1)]
    async with server.session.get(f"{GROUP}/leases", params={"limit": 5}) as response:
        page = await response.json(content_type=None)
    async with server.session.get(f"{GROUP}/leases", params={"cursor": page["next_cursor"]}) as response:
        rest = (await response.json(content_type=None))["leases"]
    assert page["leases"] + rest == rows


async def test_what_is_not_acked_comes_again_and_ends_as_a_dead_letter(server: Whole) -> None:
    await server.session.patch(GROUP, json={"max_attempts": 3})
    await send(server, ["a"], ["b"])
    messages = await receive(server, "a", invisible_ms=60_000)
    assert await settle(server, "nack", messages, delay_ms=1) == [True]
    messages = await receive(server, "a", wait_ms=WAIT_MS)
    assert places(messages) == [("a", 0, 0, 2)], "in its queue, as the second attempt"
    assert await settle(server, "extend", messages, invisible_ms=1) == [True]
    messages = await receive(server, "a", wait_ms=WAIT_MS)
    assert places(messages) == [("a", 0, 0, 3)], "its lease was over"
    assert await settle(server, "nack", messages, reason="no") == [True]
    assert await receive(server, "a") == []
    assert await offset_of(server, "a") == (1, 0)
    async with server.session.get(f"{GROUP}/dlq") as response:
        [letter] = (await response.json(content_type=None))["messages"]
    assert (letter["topic"], letter["partition"], letter["topic_offset"], letter["queue"]) == ("orders", 0, 0, "a")
    assert letter["reason"] == "max_attempts: no"
    async with server.session.post(f"{GROUP}/dlq:redrive", json={}) as response:
        assert (await response.json(content_type=None))["redriven"] == 1
    assert places(await receive(server, "b")) == [("b", 1, 1, 1)], "another inbox does not get it"
    assert await receive(server, None, max_messages=10) != [], "nor the topic"
    again = await receive(server, "a")
    assert places(again) == [("a", 0, 0, 1)]
    assert await settle(server, "nack", again, delay_ms=0) == [True]
    again = await receive(server, "a", wait_ms=WAIT_MS)
    assert places(again) == [("a", 0, 0, 2)]
    assert await settle(server, "reject", again, reason="never") == [True]


async def test_a_long_wait_is_spent_in_the_queue_and_its_record_comes_back_there(server: Whole) -> None:
    await server.session.patch(GROUP, json={"retry_through_timer_ms": 1})
    await send(server, ["a"])
    assert await settle(server, "nack", await receive(server, "a"), delay_ms=50) == [True]
    assert await receive(server, None) != [], "no copy of it was made"
    assert places(await receive(server, "a", wait_ms=WAIT_MS)) == [("a", 0, 0, 2)]


async def test_who_waits_is_woken_by_its_queue(server: Whole) -> None:
    waiting = asyncio.create_task(receive(server, "a", wait_ms=WAIT_MS))
    late = asyncio.create_task(receive(server, "late", wait_ms=WAIT_MS, start="latest"))
    async with asyncio.timeout(PATIENCE_S):
        await send(server, ["b"])
        while await offset_of(server, "late") is None:
            await send(server, ["b"])  # until it has begun
        assert not waiting.done()
        await send(server, ["late", "a"])
        (_, at, _, _), *_ = places(await waiting)
        assert places(await late) == [("late", at, 0, 1)]


async def test_a_group_that_begins_with_the_end_misses_nothing_from_then_on(server: Whole) -> None:
    await send(server, ["a"])
    assert await receive(server, "a", start="latest") == []
    await send(server, ["a"], ["c"])
    assert places(await receive(server, "a", start="latest")) == [("a", 1, 0, 1)]
    assert places(await receive(server, "c")) == [("c", 2, 1, 1)]


async def test_leases_and_attempts_are_there_after_a_restart(tmp_path: Path) -> None:
    async with whole(tmp_path, **ROCKSDB) as server:
        await send(server, ["a"], ["a"], ["a"])
        messages = await receive(server, "a", max_messages=2, invisible_ms=600_000)
        assert await settle(server, "ack", messages[1:]) == [True]
        asked = await receive(server, "a", attempt_id="x", invisible_ms=600_000)
        assert places(asked) == [("a", 2, 2, 1)]
    async with whole(tmp_path, **ROCKSDB) as server:
        assert await receive(server, "a") == []
        assert await receive(server, "a", attempt_id="x") == asked
        assert await settle(server, "nack", messages[:1], delay_ms=0) == [True]
        assert places(await receive(server, "a")) == [("a", 0, 0, 2)]
        assert await settle(server, "ack", messages[:1]) == [False]
        assert await offset_of(server, "a") == (0, 3)


async def test_offsets_are_not_said_over_leases_and_a_reset_voids_receipts(server: Whole) -> None:
    await send(server, ["a"], ["a"])
    messages = await receive(server, "a")
    offsets = f"{QUEUES}/a/offsets"
    async with server.session.put(offsets, params={"group": "workers", "cursor": "orders:0=0"}) as response:
        assert response.status == 204, "that is where it is"
    async with server.session.put(offsets, params={"group": "workers", "cursor": "orders:0=1"}) as response:
        assert response.status == 409
    assert await settle(server, "ack", messages) == [True, True]
    async with server.session.put(offsets, params={"group": "workers", "cursor": "orders:0=0"}) as response:
        assert response.status == 204
    again = await receive(server, "a")
    assert places(again) == [("a", 0, 0, 1), ("a", 1, 1, 1)]
    assert await settle(server, "ack", messages) == [False, False], "of a time before"
    assert await settle(server, "ack", again[:1]) == [True]
    async with server.session.delete(offsets, params={"group": "workers"}) as response:
        assert response.status == 409


async def test_a_group_with_records_of_a_queue_on_lease_is_not_deleted(server: Whole) -> None:
    await send(server, ["a"])
    messages = await receive(server, "a")
    async with server.session.delete(GROUP) as response:
        assert response.status == 409
    assert await settle(server, "ack", messages) == [True]
    async with server.session.get(GROUP) as response:
        assert (await response.json(content_type=None))["topics"] == ["orders"]
    async with server.session.delete(GROUP) as response:
        assert response.status == 204
    assert await settle(server, "ack", messages) == [False]


async def test_what_a_receive_of_a_queue_may_ask_for(server: Whole) -> None:
    cases: list[dict[str, Any]] = [
        {"queue": "room/*"}, {"queue": ""}, {"queue": "a", "filter": "x"}, {"queue": "a", "start": {"timestamp": 1}},
    ]  # fmt: skip
    for case in cases:
        assert "error_code" in await call(server, "receive", topics=["orders"], **case), case


async def test_an_index_in_files_refuses_it(tmp_path: Path) -> None:
    async with whole(tmp_path) as server:
        assert (await call(server, "receive", topics=["orders"], queue="a"))["error_code"] == 40963


async def test_a_queue_of_several_partitions_is_leased_from_all(tmp_path: Path) -> None:
    async with whole(tmp_path, partitions=3, **ROCKSDB) as server:
        for partition in range(3):
            await send(server, ["a"], path=f"/topics/orders/partitions/{partition}")
        messages = [*await receive(server, "a", max_messages=2), *await receive(server, "a")]
        assert sorted(message["partition"] for message in messages) == [0, 1, 2]
        assert await settle(server, "ack", messages) == [True] * 3
        assert await receive(server, "a") == []


async def test_nothing_is_kept_of_a_queue_of_which_nothing_is_out_but_its_offset(server: Whole) -> None:
    names = [f"user/{number}" for number in range(20)]
    await send(server, *[[name] for name in names])
    for name in names:
        assert await receive(server, "nobody/" + name) == []
    async with server.session.get("/metrics") as response:
        assert "mq_group_light_offsets 0.0" in (await response.text())
    for name in names:
        assert await settle(server, "ack", await receive(server, name)) == [True]
    async with server.session.get("/metrics") as response:
        text = await response.text()
    assert "mq_group_light_offsets 20.0" in text
    assert 'mq_inflight{group="workers"} 0.0' in text
