"""gateway/surfaces/native/lookup.py, through HTTP."""

from __future__ import annotations

import pytest

from gateway.api.shapes.queries import PAGE_ROWS_MAX
from gateway.surfaces.native import lookup
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
