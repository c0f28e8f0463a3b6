"""gateway/surfaces/native/light.py and gateway/api/light.py, through HTTP over a store with an index in RocksDB."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest

from gateway.api.light import PARTITIONS_A_TURN
from gateway.codec.v3_records import _OWN
from gateway.surfaces.http.connection import Client
from gateway.surfaces.http.fast_path import FastPath, Plain
from store.limits import LIGHT_NAME_BYTES_MAX, LIGHT_NAMES_MAX
from tests.gateway.surfaces.ws.whole import Whole, whole
from tests.waiting import PATIENCE_S

ROCKSDB: dict[str, Any] = {"store.index": "rocksdb"}
QUEUES = "/mq/v1/topics/orders/queues"
WAIT_MS = min(int(PATIENCE_S * 1000), 60_000)
"""A long poll may wait so long at most."""


@pytest.fixture
async def server(tmp_path: Path) -> AsyncIterator[Whole]:
    """With the topic `orders` of one partition."""
    async with whole(tmp_path, **ROCKSDB) as server:
        yield server


async def send(server: Whole, *queues: Any, path: str = "/topics/orders", **fields: Any) -> tuple[int, Any]:
    """A record for each element, in those light queues; its value is its place."""
    records = [{"value": number, "queues": own, **fields} for number, own in enumerate(queues)]
    async with server.session.post(path, json={"records": records}) as response:
        answer = await response.json(content_type=None)
        return answer.get("error_code", 0), answer


async def read(server: Whole, name: str, query: str = "") -> tuple[int, Any]:
    async with server.session.get(f"{QUEUES}/{quote(name, safe='')}/records{query}") as response:
        answer = await response.json(content_type=None)
        return answer.get("error_code", 0), answer


async def rows(server: Whole, name: str, query: str = "") -> list[tuple[int, int, Any]]:
    """Offset in the queue, offset in the partition, and value of each record."""
    code, answer = await read(server, name, query)
    assert code == 0, answer
    return [(record["queue_offset"], record["offset"], record["value"]) for record in answer["records"]]


async def test_one_record_is_in_several_inboxes_and_each_is_read_by_itself(server: Whole) -> None:
    assert (await send(server, ["user/42", "room/7"], None, ["room/7"]))[0] == 0
    assert (await send(server, ["user/42"]))[0] == 0
    assert await rows(server, "user/42") == [(0, 0, 0), (1, 3, 0)]
    assert await rows(server, "room/7") == [(0, 0, 0), (1, 2, 2)]
    assert await rows(server, "user/43") == []
    _, answer = await read(server, "user/42", "?limit=1")
    [record] = answer["records"]
    assert record["queue"] == "user/42"
    assert record["message_id"].endswith("-0-0")
    assert "queues" not in record, "who else got it is nobody's business"
    assert await rows(server, "user/42", f"?cursor={quote(answer['next_cursor'])}") == [(1, 3, 0)]
    _, end = await read(server, "user/42", f"?cursor={quote(answer['next_cursor'])}")
    assert await rows(server, "user/42", f"?cursor={quote(end['next_cursor'])}") == []
    _, latest = await read(server, "user/42", "?from=latest")
    assert latest["records"] == []
    await send(server, ["user/42"])
    assert await rows(server, "user/42", f"?cursor={quote(latest['next_cursor'])}") == [(2, 4, 0)]


async def test_a_reader_at_the_end_waits_for_its_queue(server: Whole) -> None:
    await send(server, ["a"])
    _, end = await read(server, "a")
    cursor = quote(end["next_cursor"])
    assert await rows(server, "a", f"?timeout=1&cursor={cursor}") == []
    waiting = asyncio.create_task(rows(server, "a", f"?timeout={WAIT_MS}&cursor={cursor}"))
    new = asyncio.create_task(rows(server, "new", f"?timeout={WAIT_MS}&from=latest"))
    await asyncio.sleep(0)
    await send(server, ["b"])
    assert not waiting.done()
    await send(server, ["new", "a"])
    async with asyncio.timeout(PATIENCE_S):
        assert await waiting == [(1, 2, 0)]
        assert await new in ([(2, 2, 0)], []), "or it began to wait behind it"


async def test_a_queue_is_over_several_partitions_and_its_cursor_names_them_all(tmp_path: Path) -> None:
    async with whole(tmp_path, partitions=PARTITIONS_A_TURN + 2, **ROCKSDB) as server:
        for partition in (0, PARTITIONS_A_TURN + 1):
            assert (await send(server, ["a"], ["a"], path=f"/topics/orders/partitions/{partition}"))[0] == 0
        await send(server, ["a"], key="somewhere")
        await send(server, *[["a"], ["b", "a"], ["a"]])
        seen: list[tuple[int, int]] = []
        query = "?limit=2"
        while (answer := (await read(server, "a", query))[1])["records"]:
            seen += [(record["partition"], record["queue_offset"]) for record in answer["records"]]
            query = f"?limit=2&cursor={quote(answer['next_cursor'])}"
        assert len(seen) == len(set(seen)) == 8
        _, receipts = await send(server, ["c"], ["c"])
        assert len({offset["partition"] for offset in receipts["offsets"]}) == 1, "the name's own partition"
        partition = receipts["offsets"][0]["partition"]
        assert len(await rows(server, "c", f"?partition={partition}")) == 2
        assert await rows(server, "c", f"?partition={(partition + 1) % PARTITIONS_A_TURN}") == []


async def test_the_limits_of_names_are_the_same_on_every_surface(server: Whole) -> None:
    most = [f"q{number}" for number in range(LIGHT_NAMES_MAX)]
    longest = "é" * (LIGHT_NAME_BYTES_MAX // 2) + "x"
    assert len(longest.encode()) == LIGHT_NAME_BYTES_MAX
    cases: list[tuple[object, bool]] = [
        (most, True), ([*most, "more"], False), ([longest], True), ([longest + "x"], False), ([], False),
        (["a", "a"], False), ([""], False), (["a\n"], False), (["a\0b"], False), (["room/*"], False), ("a", False),
        ([7], False),
    ]  # fmt: skip
    async with server.session.get("/v3/clusters") as response:
        cluster = (await response.json(content_type=None))["data"][0]["cluster_id"]
    for queues, is_legal in cases:
        expected = 0 if is_legal else 42251
        code, answer = await send(server, queues)
        assert code == expected, answer
        async with server.session.post(
            f"/v3/clusters/{cluster}/topics/orders/records",
            json={"value": {"type": "JSON", "data": 1}, "queues": queues},
        ) as response:
            assert (await response.json(content_type=None))["error_code"] == (200 if is_legal else 42251)
        async with server.peer(hello={}) as peer:
            answer = await peer.ask("produce", topic="orders", records=[{"value": 1, "queues": queues}])
            assert answer.get("error_code", 0) == expected, answer
    assert "queues" in _OWN
    assert len(await rows(server, "q63")) == 3
    assert (await read(server, longest + "x"))[0] == 42251


async def test_a_repeated_send_is_in_its_queues_once(server: Whole) -> None:
    for _ in range(2):
        await send(server, ["a"], msg_id="m1")
    assert await rows(server, "a") == [(0, 0, 0)]


async def test_sends_that_come_together_are_one_batch_with_the_queues_of_each(
    server: Whole, monkeypatch: pytest.MonkeyPatch
) -> None:
    taken: list[bytes] = []
    take = FastPath.take

    def noting(self: FastPath, meaning: Plain, data: bytes, start: int, client: Client) -> bool:
        is_taken = take(self, meaning, data, start, client)
        taken.extend([data[start:]] if is_taken else [])
        return is_taken

    monkeypatch.setattr(FastPath, "take", noting)
    json_type = {"Content-Type": "application/vnd.kafka.json.v2+json"}

    async def post(number: int) -> None:
        queues = b',"queues":["a","q%d"]' % number if number % 3 else b""
        body = b'{"records":[{"value":%d%s}]}' % (number, queues)
        async with server.session.post("/topics/orders", data=body, headers=json_type) as response:
            assert response.status == 200, await response.text()

    await asyncio.gather(*map(post, range(30)))
    assert len(taken) == 30, "they take the fast path"
    found = await rows(server, "a")
    assert [offset for offset, _, _ in found] == list(range(found[0][0], found[0][0] + 20))
    assert sorted(value for _, _, value in found) == [number for number in range(30) if number % 3]
    for number in (1, 29):
        [(_, at, value)] = await rows(server, f"q{number}")
        assert (value, at) in [(value, at) for _, at, value in found]
        assert value == number
    assert await rows(server, "q3") == []


async def test_a_cursor_of_another_topic_and_one_of_its_past(server: Whole) -> None:
    await send(server, ["a"])
    _, answer = await read(server, "a")
    assert (await read(server, "a", "?cursor=others:0=1"))[0] == 40050
    assert (await read(server, "a", "?cursor=orders:5=1"))[0] == 40050
    await server.call("DELETE", "topics/orders")
    await server.topic()
    assert (await read(server, "a", f"?cursor={quote(answer['next_cursor'])}"))[0] == 40953
    assert await rows(server, "a") == []


async def test_an_index_in_files_refuses_them(tmp_path: Path) -> None:
    async with whole(tmp_path) as server:
        code, answer = await send(server, ["a"])
        assert code == 40963
        assert "mq index rebuild" in answer["message"]
        assert str(tmp_path) not in answer["message"]
        assert (await read(server, "a"))[0] == 40963
        assert (await send(server, None))[0] == 0
