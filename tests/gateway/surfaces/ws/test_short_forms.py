"""`/ws/v1/consume` and `/ws/v1/produce`: a URL that subscribes, a URL that sends; on a whole server."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from aiohttp import WSServerHandshakeError

from gateway.api.shapes.queries import ConsumeQuery, ProduceQuery
from gateway.surfaces.ws.short_forms import SUB
from tests.gateway.surfaces.ws.whole import Whole, whole


@pytest.fixture
async def server(tmp_path: Path) -> AsyncIterator[Whole]:
    """With the topic `orders` of two partitions, ten records in the first."""
    async with whole(tmp_path, partitions=2) as server:
        await server.fill(10)
        yield server


@pytest.mark.parametrize("mode", ["stream", "queue"])
async def test_consume_by_url_alone(server: Whole, mode: str) -> None:
    query = f"topic=orders&group=g&mode={mode}&credit=4&start=earliest&auto_ack=true"
    async with server.peer(f"/ws/v1/consume?{query}") as peer:
        answer = await peer.next(id=0)
        assert (answer["ok"], answer["sub"], answer["mode"], answer["credit"]) == (True, SUB, mode, 4)
        messages = await peer.messages(10)
        assert sorted(message["offset"] for message in messages) == list(range(10))
        assert not any("receipt" in message for message in messages)
        await peer.ok("unsubscribe", sub="s")
    async with server.peer(f"/ws/v1/consume?{query}") as peer:
        await peer.next(id=0)
        await peer.next(op="caught_up") if mode == "stream" else None
        await peer.quiet()


async def test_consume_by_url_takes_every_parameter_of_subscribe(server: Whole) -> None:
    asked: set[str] = set()
    async with server.peer("/ws/v1/consume?topic=orders&queue=a") as peer:
        assert (await peer.next(id=0))["error_code"] == 40963, "its index is in files"
    asked.add("queue")
    for query, count in (
        ("topic=orders&from=earliest&batch=2&credit_bytes=100000&auto_credit=1", 10),
        ("pattern=ord.*&from=orders:0%3D4", 6),
        ("topic=orders&group=g2&start=0&member=m7&room=east", 10),
        ("topic=orders&group=g3&mode=queue&invisible_ms=60000&credit=100&auto_ack=0", 10),
        ("topic=orders&from=earliest&filter=tag:none", 0),
    ):
        asked |= {part.partition("=")[0] for part in query.split("&")}
        async with server.peer(f"/ws/v1/consume?{query}") as peer:
            answer = await peer.next(id=0)
            assert answer["ok"], answer
            assert len(await peer.messages(count)) == count
            if "member" in query:
                assert answer["member"] == "m7"
    assert asked == set(ConsumeQuery.__struct_encode_fields__)


async def test_produce_by_url_stores_frames_as_they_are(server: Whole) -> None:
    query = {"topic": "orders", "partition": "1", "key": "k", "tag": "t", "acks": "written"}
    assert query.keys() | {"queues"} == set(ProduceQuery.__struct_encode_fields__), "queues: test_light.py"
    async with server.peer("/ws/v1/produce?" + "&".join(map("=".join, query.items()))) as peer:
        await peer.socket.send_bytes(b"\xff\x00")
        await peer.socket.send_str('{"a":1}')
        for number in (1, 2):
            answer = await peer.next(n=number)
            assert (answer["ok"], answer["partition"], answer["offset"]) == (True, 1, number - 1)
    async with server.peer() as peer:
        await peer.subscribe(**{"from": {"orders": {"0": 10, "1": 0}}})
        one, two = await peer.messages(2)
        assert (one["value_b64"], one["key"], one["tag"]) == ("/wA=", "k", "t")
        assert two["value"] == {"a": 1}


@pytest.mark.parametrize(
    ("path", "status"),
    [
        ("/ws/v1/consume", 422),
        ("/ws/v1/consume?topic=nosuch", 404),
        ("/ws/v1/consume?topic=orders&credit=10001", 422),
        ("/ws/v1/consume?topic=orders&credit=x", 400),
        ("/ws/v1/consume?topic=orders&group=g&mode=reader", 422),
        ("/ws/v1/consume?topic=orders&colour=red", 422),
        ("/ws/v1/consume?topic=orders&auto_ack=perhaps", 422),
        ("/ws/v1/consume?topic=orders&from=%20", 400),
        ("/ws/v1/produce", 422),
        ("/ws/v1/produce?topic=nosuch", 404),
        ("/ws/v1/produce?topic=orders&partition=2", 404),
        ("/ws/v1/produce?topic=orders&partition=-1", 422),
        ("/ws/v1/produce?topic=orders&acks=none", 422),
        ("/ws/v1/produce?topic=orders&tag=a%7Cb", 422),
    ],
)
async def test_what_is_wrong_with_a_url_is_plain_http(server: Whole, path: str, status: int) -> None:
    with pytest.raises(WSServerHandshakeError) as refused:
        async with server.peer(path):
            pass
    assert refused.value.status == status
