"""gateway/surfaces/native/lookup.py, through HTTP."""

from __future__ import annotations

import base64
from typing import Any

import pytest

from gateway.api.shapes.queries import PAGE_ROWS_MAX
from gateway.api.shapes.search import TEXT_BYTES_MAX
from gateway.surfaces.http.context import Gateway
from gateway.surfaces.native import lookup
from store.errors import Corrupt
from tests.clock import START_MS, FakeClock
from tests.gateway.conftest import Client
from tests.gateway.fake_broker import FakeBroker

PATH = "/mq/v1/topics/orders/messages"
JSON = {"Content-Type": "application/vnd.kafka.json.v2+json"}


async def send(client: Client, *keys: str, partition: int = 0) -> None:
    records = [{"key": key, "value": number} for number, key in enumerate(keys)]
    path = f"/topics/orders/partitions/{partition}"
    assert (await client.post(path, json={"records": records}, headers=JSON)).status == 200


async def find(client: Client, query: str) -> tuple[list[tuple[int, int]], str | None]:
    response = await client.get(PATH + query)
    answer = await response.json()
    assert response.status == 200, answer
    return [(message["partition"], message["offset"]) for message in answer["messages"]], answer["next_cursor"]


async def test_a_message_by_its_id(client: Client) -> None:
    await send(client, "a", "b")
    response = await client.get("/mq/v1/messages/16-0-1")
    message = await response.json()
    assert (message["key"], message["value"], message["message_id"]) == ("b", 1, "16-0-1")
    raw = await client.get("/mq/v1/messages/16-0-1", headers={"Accept": "application/octet-stream"})
    assert (await raw.read(), raw.headers["Mq-Message-Id"]) == (b"1", "16-0-1")


@pytest.mark.parametrize("message_id", ["16-0-2", "16-4-0", "99-0-0", "hello", "16-0-01"])
async def test_a_message_that_is_not_there(client: Client, message_id: str) -> None:
    await send(client, "a", "b")
    response = await client.get(f"/mq/v1/messages/{message_id}")
    assert (response.status, (await response.json())["error_code"]) == (404, 40451)


async def test_a_message_that_retention_has_passed(client: Client, broker: FakeBroker) -> None:
    await send(client, "a", "b")
    broker.min_offsets = dict.fromkeys(broker.entries, 1)
    assert (await client.get("/mq/v1/messages/16-0-0")).status == 404
    assert (await client.get("/mq/v1/messages/16-0-1")).status == 200


async def test_messages_with_a_key_in_all_partitions(client: Client) -> None:
    await send(client, "a", "b", "a")
    await send(client, "a", partition=2)
    assert await find(client, "?key=a") == ([(0, 0), (0, 2), (2, 0)], None)
    assert await find(client, "?key=a&partition=2") == ([(2, 0)], None)
    assert await find(client, "?key=c") == ([], None)
    await client.post(PATH + "?key=a&partition=1", data=b"raw")
    assert (1, 0) in (await find(client, "?key=a"))[0]


async def test_pages_follow_each_other_without_loss(client: Client) -> None:
    await send(client, *["a", "b"] * 5)
    await send(client, "a", partition=3)
    seen: list[tuple[int, int]] = []
    cursor: str | None = ""
    while cursor is not None:
        page, cursor = await find(client, f"?key=a&limit=2&cursor={cursor}" if cursor else "?key=a&limit=2")
        assert len(page) <= 2
        seen += page
    assert seen == [(0, 0), (0, 2), (0, 4), (0, 6), (0, 8), (3, 0)]


async def test_a_search_stops_after_its_bytes(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lookup, "SEARCH_BYTES_MAX", 1)
    await send(client, "b")
    await send(client, "a")
    page, cursor = await find(client, "?key=a")
    assert (page, cursor) == ([], "orders@16:0=1")
    assert (await find(client, f"?key=a&cursor={cursor}"))[0] == [(0, 1)]


@pytest.mark.parametrize(
    ("query", "status", "code"),
    [
        ("", 422, 422),
        ("?key=a&partition=4", 404, 40402),
        (f"?key=a&limit={PAGE_ROWS_MAX + 1}", 422, 42253),
        ("?key=a&cursor=x", 400, 40050),
        ("?key=a&cursor=orders@99:0=1", 400, 40050),
        ("?key=a&cursor=orders@16:0=1;orders:1=1", 400, 40050),
        ("?keys=a", 422, 422),
    ],
)
async def test_bad_searches_are_told_why(client: Client, query: str, status: int, code: int) -> None:
    response = await client.get(PATH + query)
    assert (response.status, (await response.json())["error_code"]) == (status, code)


async def test_the_largest_page(client: Client) -> None:
    await send(client, "a")
    assert (await find(client, f"?key=a&limit={PAGE_ROWS_MAX}"))[0] == [(0, 0)]


SEARCH = "/mq/v1/topics/orders/messages:search"


async def search(client: Client, **body: object) -> tuple[int, Any]:
    """Status, and the answer: of an error its code."""
    response = await client.post(SEARCH, json=body)
    answer = await response.json()
    return response.status, answer["error_code"] if response.status >= 400 else answer


async def test_messages_are_searched_for_by_what_is_in_them(client: Client, clock: FakeClock) -> None:
    records = [
        {"key": "u1", "value": {"sku": 9, "note": "TimeOut"}, "tag": "paid"},
        {"key": "u2", "value": "nothing"},
        {"key": "u1", "value": 3, "headers": [{"key": "why", "text": "a timeout"}]},
    ]
    for partition in (0, 1):
        path = f"/topics/orders/partitions/{partition}"
        assert (await client.post(path, json={"records": records}, headers=JSON)).status == 200
        clock.step(1000)

    async def found(**body: object) -> list[tuple[int, int]]:
        status, answer = await search(client, **body)
        assert status == 200, answer
        assert answer["complete"] is (answer["next_cursor"] is None)
        return [(message["partition"], message["offset"]) for message in answer["messages"]]

    everything = [(partition, offset) for partition in (0, 1) for offset in range(3)]
    assert await found() == everything
    assert await found(text="timeout") == [(0, 0), (0, 2), (1, 0), (1, 2)]
    assert await found(text="TIMEOUT", partition=1) == [(1, 0), (1, 2)]
    assert await found(text="u2") == [(0, 1), (1, 1)]
    assert await found(text="no such") == []
    assert await found(tag="paid") == [(0, 0), (1, 0)]
    assert await found(key="u1", text="sku") == [(0, 0), (1, 0)]
    assert await found(partition=0, offset=2) == [(0, 2)]
    assert await found(**{"from": START_MS + 500}) == everything[3:]
    assert await found(to=START_MS + 500) == everything[:3]
    assert await found(**{"from": START_MS + 500, "to": START_MS + 501}) == []
    listed: list[tuple[int, int]] = []
    cursor = None
    for _ in range(len(everything) + 1):
        _, answer = await search(client, limit=1, **({} if cursor is None else {"cursor": cursor}))
        listed += [(message["partition"], message["offset"]) for message in answer["messages"]]
        cursor = answer["next_cursor"]
        if cursor is None:
            break
    assert listed == everything
    for body, code in (
        ({"limit": 0}, 42253), ({"limit": 201}, 42253), ({"text": ""}, 422),
        ({"text": "x" * (TEXT_BYTES_MAX + 1)}, 422),
        ({"offset": 1}, 422), ({"partition": 9}, 40402), ({"cursor": "x"}, 40050), ({"from": "soon"}, 422),
        ({"tag": "a|b"}, 42252), ({"x": 1}, 422),
    ):  # fmt: skip
        assert (await search(client, **body))[1] == code, body
    assert (await search(client, limit=200, text="x" * TEXT_BYTES_MAX))[0] == 200
    assert (await client.post(SEARCH.replace("orders", "nope"), json={})).status == 404


async def test_a_search_ends_after_so_much_and_one_runs_at_a_time(
    client: Client, broker: FakeBroker, gateway: Gateway, monkeypatch: pytest.MonkeyPatch
) -> None:
    await send(client, *"abc")
    await send(client, *"abc")
    monkeypatch.setattr(lookup, "SEARCH_BYTES_MAX", 1)
    _, answer = await search(client, text="no such")
    assert (answer["messages"], answer["scanned_records"], answer["complete"]) == ([], 3, False)
    assert answer["scanned_bytes"] > 0
    _, answer = await search(client, text="no such", cursor=answer["next_cursor"])
    _, answer = await search(client, text="no such", cursor=answer["next_cursor"])
    assert answer["complete"]
    gateway.searching.add("address 127.0.0.1")
    response = await client.post(SEARCH, json={})
    assert (response.status, response.headers["Retry-After"]) == (429, "1")
    gateway.searching.clear()
    broker.error = Corrupt("log", 0, "rotten")
    assert (await search(client))[0] == 500
    assert not gateway.searching


@pytest.mark.parametrize("part", ["x", "é", '"'])
async def test_of_a_large_value_its_beginning_is_shown(client: Client, part: str) -> None:
    for count in (lookup.SHOWN_VALUE_BYTES_MAX, lookup.SHOWN_VALUE_BYTES_MAX + 1):
        value = ("a" + part * count).encode()[:count] if part != "é" else b"a" + "é".encode() * (count // 2)
        await client.post("/mq/v1/topics/orders/messages?partition=0", data=value)
    _, answer = await search(client)
    sizes = [(len(message["value_text"].encode()), message.get("value_size")) for message in answer["messages"]]
    most = lookup.SHOWN_VALUE_BYTES_MAX
    if part == "é":
        assert sizes == [(most - 1, most + 1), (most - 1, most + 1)]
    else:
        assert sizes == [(most, None), (most, most + 1)]
    await client.post("/mq/v1/topics/orders/messages?partition=1", data=b"\xff" * (most + 1))
    _, answer = await search(client, partition=1)
    assert base64.b64decode(answer["messages"][0]["value_b64"]) == b"\xff" * most
    assert answer["messages"][0]["value_truncated"]
