"""What HTTP, event streams and sockets have in common: the same limits, at n and n + 1, one form of records, receipts
and cursors, one wait, the same words for what is not JSON, and every header that a server sends to programs is one that
pages may read. docs/architecture.md lists what these were before."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import aiohttp
import orjson
import pytest

from gateway.codec.json_text import parse_json
from gateway.errors import RequestError
from gateway.groups.machines.config import INVISIBLE_MS_MAX
from gateway.groups.machines.copies import REASON_BYTES_MAX
from gateway.groups.machines.leases import ATTEMPT_ID_BYTES_MAX
from gateway.groups.machines.subscription import TOPICS_MAX
from gateway.groups.protocol import RECEIPTS_MAX, RECEIVE_BYTES_MAX, RECEIVE_MESSAGES_MAX
from gateway.settings.limits import Limits
from gateway.surfaces.http.origins import EXPOSED
from gateway.surfaces.openapi.parameters import answer_headers
from store.types import OFFSET_MAX, RECORD_OFFSET_MAX
from tests.gateway.surfaces.ws.whole import Peer, Whole, whole
from tests.waiting import PATIENCE_S

DELAY_MS_MAX = Limits().delay_ms_max
GROUP = {"mode": "queue", "group": "g"}


@pytest.fixture
async def server(tmp_path: Path) -> AsyncIterator[Whole]:
    """With the topic `orders` of one partition and four records."""
    async with whole(tmp_path) as server:
        await server.fill(4)
        yield server


async def post(server: Whole, path: str, body: Any) -> tuple[int, Any]:
    async with server.session.post(f"/mq/v1/groups/g/{path}", json=body) as response:
        answer = await response.json(content_type=None)
        return answer.get("error_code", 0), answer


async def code(peer: Peer, op: str, **fields: Any) -> int:
    answer = await peer.ask(op, **fields)
    error_code: int = answer.get("error_code", 0)
    return error_code


@pytest.mark.parametrize("op", ["ack", "nack", "reject", "extend"])
async def test_receipts_of_one_request(server: Whole, op: str) -> None:
    more = {"invisible_ms": 5} if op == "extend" else {}
    async with server.peer() as peer:
        await peer.subscribe(**GROUP, credit=0)
        for count, expected in ((RECEIPTS_MAX, 0), (RECEIPTS_MAX + 1, 422)):
            receipts = ["r"] * count
            assert (await post(server, f"messages:{op}", {"receipts": receipts, **more}))[0] == expected
            assert await code(peer, op, sub="s", receipts=receipts, **more) == expected


async def test_how_long_a_record_may_wait_to_be_tried_again(server: Whole) -> None:
    """Longer than a lease may last: the wait is spent as a delayed record."""
    _, received = await post(server, "messages:receive", {"topics": ["orders"], "start": "earliest", "max_messages": 2})
    first, second = (message["receipt"] for message in received["messages"])
    async with server.peer() as peer:
        await peer.subscribe(**GROUP, credit=0)
        for too_long in (DELAY_MS_MAX + 1, -1):
            assert (await post(server, "messages:nack", {"receipts": [first], "delay_ms": too_long}))[0] == 42250
            assert await code(peer, "nack", sub="s", receipts=[second], delay_ms=too_long) == 42250
        assert DELAY_MS_MAX > INVISIBLE_MS_MAX
        _, answer = await post(server, "messages:nack", {"receipts": [first], "delay_ms": DELAY_MS_MAX})
        assert answer["results"] == [{"receipt": first, "ok": True}]
        answer = await peer.ok("nack", sub="s", receipts=[second], delay_ms=DELAY_MS_MAX)
        assert answer["results"] == [{"receipt": second, "ok": True}]
    pending = await server.call("GET", "schedules")
    assert pending["total"] == 2


async def test_what_one_receive_brings(server: Whole) -> None:
    for field, limit in (("max_messages", RECEIVE_MESSAGES_MAX), ("max_bytes", RECEIVE_BYTES_MAX)):
        for value, expected in ((limit, 0), (limit + 1, 42253)):
            assert (await post(server, "messages:receive", {"topics": ["orders"], field: value}))[0] == expected
    async with server.peer() as peer:
        assert await code(peer, "subscribe", sub="t", topics=["orders"], batch=RECEIVE_MESSAGES_MAX + 1) == 42253
        await peer.subscribe(mode="queue", group="h", credit=RECEIVE_MESSAGES_MAX, batch=RECEIVE_MESSAGES_MAX)
        assert len(await peer.messages(4)) == 4


async def test_topics_of_one_receive_or_subscription(server: Whole) -> None:
    names = [f"t{number}" for number in range(TOPICS_MAX + 1)]
    async with server.peer() as peer:
        for topics, expected in ((names[:-1], 40401), (names, 422)):
            assert (await post(server, "messages:receive", {"topics": topics}))[0] == expected
            assert await code(peer, "subscribe", sub="t", topics=topics) == expected


async def test_the_bytes_of_names_and_reasons(server: Whole) -> None:
    ask = {"topics": ["orders"], "start": "earliest", "max_messages": 1}
    for size, expected in ((ATTEMPT_ID_BYTES_MAX, 0), (ATTEMPT_ID_BYTES_MAX + 1, 422)):
        text = "é" * (size // 2) + "a" * (size % 2)
        got, answer = await post(server, "messages:receive", {**ask, "attempt_id": text})
        assert (got, len(answer.get("messages", "-"))) == (expected, 1)
    async with server.peer() as peer:
        await peer.subscribe(**GROUP, credit=0)
        for size, expected in ((REASON_BYTES_MAX, 0), (REASON_BYTES_MAX + 2, 422)):
            fields = {"receipts": ["r"], "reason": "é" * (size // 2)}
            for op in ("nack", "reject"):
                assert (await post(server, f"messages:{op}", fields))[0] == expected
                assert await code(peer, op, sub="s", **fields) == expected


async def test_the_largest_offset(server: Whole) -> None:
    async with server.peer() as peer:
        await peer.subscribe()
        for offset, status in ((OFFSET_MAX, 200), (OFFSET_MAX + 1, 400)):
            path = f"/topics/orders/partitions/0/records?offset=0&end_offset={offset}"
            assert (await server.session.get(path)).status == status
            assert await code(peer, "seek", sub="s", to=f"orders:0={offset}") == (41601 if status == 200 else 40050)


async def test_the_largest_offset_to_commit(server: Whole) -> None:
    """All of them name the last record that is done."""
    v2 = {"Content-Type": "application/vnd.kafka.v2+json"}
    async with server.session.post("/consumers/i", json={"name": "i"}, headers=v2) as made:
        instance = (await made.json(content_type=None))["base_uri"]
    async with server.peer() as peer:
        await peer.subscribe(mode="stream", group="s", credit=0)
        for offset, is_taken in ((RECORD_OFFSET_MAX, True), (RECORD_OFFSET_MAX + 1, False)):
            at = {"topic": "orders", "partition": 0, "offset": offset}
            async with server.session.post(f"{instance}/offsets", json={"offsets": [at]}, headers=v2) as response:
                assert response.ok is is_taken
            assert (await post(server, "messages:ack", {"up_to": at}))[0] == (0 if is_taken else 422)
            assert await code(peer, "ack", sub="s", up_to=[at]) == (0 if is_taken else 422)


LINES = {"Accept": "application/x-ndjson"}


async def followed(response: aiohttp.ClientResponse, count: int) -> list[dict[str, Any]]:
    """The next records of an event stream that comes as lines."""
    found: list[dict[str, Any]] = []
    async with asyncio.timeout(PATIENCE_S):
        while len(found) < count:
            line = orjson.loads(await response.content.readline())
            if "event" not in line:
                found.append(line)
    return found


async def test_a_cursor_of_one_surface_is_read_by_the_others(server: Whole) -> None:
    sse = "/mq/v1/topics/orders/sse"
    async with server.peer() as peer:
        cursor = (await peer.ok("subscribe", sub="s", topics=["orders"], **{"from": {"orders": {"0": 2}}}))["cursor"]
        assert [one["offset"] for one in await peer.messages(2)] == [2, 3]
        async with server.session.get(sse, headers={**LINES, "Last-Event-ID": cursor}) as response:
            (message, last) = await followed(response, 2)
            assert (message["offset"], last["offset"]) == (2, 3)
        cursor = message["cursor"].replace(f"@{message['message_id'].partition('-')[0]}", "")
        await peer.ok("subscribe", sub="t", topics=["orders"], **{"from": cursor})
        assert [one["offset"] for one in await peer.messages(1, sub="t")] == [3]
        for partition, status in ((999_999_999, 200), (1_000_000_000, 400)):
            cursor = f"orders:{partition}=0"
            async with server.session.get(sse, headers={**LINES, "Last-Event-ID": cursor}) as response:
                assert response.status == status
            refusal = await code(peer, "subscribe", sub=f"u{partition}", topics=["orders"], **{"from": cursor})
            assert (refusal == 40050) is (status == 400), refusal


async def test_a_receipt_is_shown_alike(server: Whole) -> None:
    """Of a record that is stored, then a repeat of it on each surface; of one that is delayed."""
    ways: list[dict[str, Any]] = []
    json = {"Content-Type": "application/vnd.kafka.json.v2+json"}
    lines = {"Content-Type": "application/x-ndjson"}
    async with server.peer() as peer:
        for record in ({"value": 1, "msg_id": "m"}, {"value": 1, "delay_ms": DELAY_MS_MAX, "msg_id": "later"}):
            async with server.session.post("/topics/orders", json={"records": [record]}, headers=json) as response:
                (first,) = (await response.json(content_type=None))["offsets"]
            async with server.session.post("/topics/orders", json={"records": [record]}, headers=json) as response:
                ways = (await response.json(content_type=None))["offsets"]
            path = "/mq/v1/topics/orders/messages:batch"
            async with server.session.post(path, data=orjson.dumps(record), headers=lines) as response:
                ways.append(orjson.loads((await response.read()).splitlines()[0]))
            ways += (await peer.ok("produce", topic="orders", records=[record]))["offsets"]
            expected = {name: value for name, value in first.items() if value is not None} | {"duplicate": True}
            for receipt in ways:
                assert expected.items() <= receipt.items()


async def test_a_record_is_shown_alike(server: Whole) -> None:
    """The native form, on every way out that has it. Sockets leave the message id out: it can be told from
    the rest."""
    sent = {"key": "k", "value": {"n": 1}, "tag": "t", "headers": [{"key": "h", "value": "AQ=="}], "timestamp": 7}
    async with server.session.post("/topics/orders", json={"records": [sent]}) as response:
        assert response.status == 200
    form = {"Accept": "application/json"}
    search = await server.call("GET", "topics/orders/messages?key=k")
    (found,) = search["messages"]
    assert {**sent, "topic": "orders", "partition": 0, "offset": 4}.items() <= found.items()
    shown = {"search": found}
    async with server.session.get(f"/mq/v1/messages/{found['message_id']}", headers=form) as response:
        shown["by id"] = await response.json()
    async with server.session.get("/topics/orders/partitions/0/records?offset=4", headers=LINES) as response:
        shown["lines"] = orjson.loads(await response.read())
    async with server.session.get("/mq/v1/topics/orders/sse?from=earliest", headers=LINES) as response:
        shown["event stream"] = (await followed(response, 5))[4]
    receive = {"topics": ["orders"], "start": "earliest", "max_messages": 5}
    shown["receive"] = (await server.call("POST", "groups/g/messages:receive", receive))["messages"][4]
    async with server.peer() as peer:
        await peer.subscribe("reader")
        shown["socket, reader"] = (await peer.messages(5, sub="reader"))[4]
        await peer.subscribe("queue", mode="queue", group="q")
        shown["socket, queue"] = (await peer.messages(5, sub="queue"))[4]
    for way, record in shown.items():
        wanted = found if not way.startswith("socket") else {k: v for k, v in found.items() if k != "message_id"}
        assert {name: record.get(name) for name in wanted} == wanted, way


async def test_everybody_who_waits_is_woken(server: Whole) -> None:
    wanted = {"topics": ["orders"], "start": "latest", "wait_ms": 20_000}
    sse = "/mq/v1/topics/orders/sse?from=latest"
    path = "/topics/orders/partitions/0/records?offset=4&timeout=20000"
    async with server.peer() as peer, server.session.get(sse, headers=LINES) as events:
        await peer.ok("subscribe", sub="s", topics=["orders"], **{"from": "latest"})
        pull = asyncio.ensure_future(server.session.get(path))
        receive = asyncio.ensure_future(post(server, "messages:receive", wanted))
        await peer.next(op="caught_up")
        await peer.quiet(0.2)
        assert not pull.done()
        assert not receive.done()
        await server.fill(1, first=4)
        assert [one["offset"] for one in await peer.messages(1)] == [4]
        assert [one["offset"] for one in await followed(events, 1)] == [4]
        async with asyncio.timeout(PATIENCE_S):
            assert [one["offset"] for one in await (await pull).json(content_type=None)] == [4]
            assert [one["offset"] for one in (await receive)[1]["messages"]] == [4]


async def test_what_another_surface_settles_gives_credit_back(server: Whole) -> None:
    """Of a socket by HTTP, and of an event stream by a socket."""
    async with server.peer() as peer:
        await peer.subscribe(**GROUP, credit=2, batch=2, auto_credit=True)
        held = [one["receipt"] for one in await peer.messages(2)]
        assert (await post(server, "messages:ack", {"receipts": held}))[0] == 0
        held = [one["receipt"] for one in await peer.messages(2)]
        assert await code(peer, "ack", sub="s", receipts=held) == 0
        await peer.ok("unsubscribe", sub="s")
        await server.fill(4, first=4)
        path = "/mq/v1/topics/orders/sse?group=g&ack=manual&credit=2"
        async with server.session.get(path, headers=LINES) as response:
            held = [one["receipt"] for one in await followed(response, 2)]
            await peer.subscribe(**GROUP, credit=0)
            assert await code(peer, "ack", sub="s", receipts=held) == 0
            assert [one["offset"] for one in await followed(response, 2)] == [6, 7]


async def test_what_is_given_out_is_counted_whichever_way_it_goes(server: Whole) -> None:
    """Records and bytes, as /metrics and /mq/v1/stats have them."""

    async def counted() -> tuple[float, float]:
        async with server.session.get("/metrics") as response:
            lines = dict(line.rsplit(" ", 1) for line in (await response.text()).splitlines() if line[:1] != "#")
        return float(lines["mq_fetch_records_total"]), float(lines["mq_fetch_bytes_total"])

    async def grown(since: tuple[float, float], count: int) -> tuple[float, float]:
        async with asyncio.timeout(PATIENCE_S):  # a stream counts what it has written
            while (now := await counted())[0] < since[0] + count:  # noqa: ASYNC110 - the server tells nobody
                await asyncio.sleep(0.01)
        assert now[0] == since[0] + count
        assert now[1] > since[1] + count * len('{"offset":0}')
        return now

    before = await counted()
    _, answer = await post(server, "messages:receive", {"topics": ["orders"], "max_messages": 2})
    assert len(answer["messages"]) == 2
    before = await grown(before, 2)
    path = "/mq/v1/topics/orders/sse"
    async with server.session.get(f"{path}?from=earliest", headers=LINES) as response:
        await followed(response, 4)
        before = await grown(before, 4)
    async with server.session.get(f"{path}?group=other&ack=manual&credit=3", headers=LINES) as response:
        await followed(response, 3)
        await grown(before, 3)


async def test_what_is_not_json_is_told_alike(server: Whole) -> None:
    with pytest.raises(RequestError) as refusal:
        parse_json(b"{")
    assert refusal.value.error_code == 400
    json = {"Content-Type": "application/json", "Accept": "*/*"}
    v2 = {"Content-Type": "application/vnd.kafka.json.v2+json"}
    for method, path, headers in (
        ("POST", "/topics/orders", v2),
        ("POST", "/consumers/g", {"Content-Type": "application/vnd.kafka.v2+json"}),
        ("POST", "/admin/topics", json),
        ("PUT", "/mq/v1/topics/new", json),
        ("POST", "/mq/v1/groups/g/messages:receive", json),
        ("POST", "/mq/v1/groups/g/messages:ack", json),
        ("POST", "/mq/v1/topics/orders/messages:batch", {"Content-Type": "application/cloudevents-batch+json"}),
    ):
        async with server.session.request(method, path, data=b"{", headers=headers) as response:
            answer = await response.json(content_type=None)
        assert (answer["error_code"], answer["message"]) == (400, refusal.value.message), path


def test_pages_may_read_every_header_that_is_declared() -> None:
    shown_by_browsers = {"Content-Encoding", "Vary"}  # the one is undone, the other for caches
    exposed = set(EXPOSED.split(", "))
    assert exposed == answer_headers().keys() - shown_by_browsers
    assert {"Mq-Delivery-Attempt", "Mq-Visible-Until", "Mq-End-Offset"} <= exposed
    assert "Mq-Attempt" not in exposed, "no answer has it"


async def test_pages_may_read_the_headers_of_a_record(server: Whole) -> None:
    """Of one that is looked up, one that is leased, and a read."""
    headers = {"Mq-Header-Shop": "7", "Content-Type": "application/octet-stream"}
    async with server.session.post("/mq/v1/topics/orders/messages", data=b"x", headers=headers) as response:
        stored = await response.json(content_type=None)
    raw = {"Accept": "application/octet-stream", "Origin": f"{server.session._base_url}".rstrip("/")}
    receive = {"topics": ["orders"], "start": "earliest", "max_messages": 1}
    for method, path, body, wanted in (
        ("GET", f"/mq/v1/messages/{stored['message_id']}", None, {"mq-header-shop"}),
        ("POST", "/mq/v1/groups/g/messages:receive", receive, {"mq-delivery-attempt", "mq-visible-until"}),
        ("GET", "/topics/orders/partitions/0/records?offset=0", None, {"mq-end-offset"}),
    ):
        accept = raw if "records" not in path else {**raw, "Accept": "application/vnd.kafka.binary.v2+json"}
        async with server.session.request(method, path, json=body, headers=accept) as response:
            assert response.status == 200, path
            exposed = response.headers["Access-Control-Expose-Headers"].lower().split(", ")
            sent = {name.lower() for name in response.headers if name.lower().startswith("mq-")}
        assert wanted <= sent <= set(exposed), path
