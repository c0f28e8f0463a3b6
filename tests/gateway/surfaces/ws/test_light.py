"""gateway/surfaces/ws/light.py, sse/light_stream.py and http/light.py: light queues pushed, and how far groups are,
through a whole server with an index in RocksDB."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any
from urllib.parse import quote

import orjson
import pytest

from gateway.api import light
from gateway.api.light import LightReader, check_light, names_begin
from gateway.auth.scopes import Rights, parse_scope
from gateway.brokers.local import LocalBroker
from gateway.errors import RequestError
from gateway.routing.light import LightTail
from gateway.surfaces.sse.topic_stream import HEARTBEAT_MS
from gateway.surfaces.ws.light import LightStream
from store import record_batch
from store.record_batch import Record
from tests.gateway.surfaces.native.test_light import QUEUES, ROCKSDB, read, rows, send
from tests.gateway.surfaces.ws.whole import Whole, whole
from tests.waiting import PATIENCE_S


@pytest.fixture
async def server(tmp_path: Path) -> AsyncIterator[Whole]:
    """With the topic `orders` of one partition."""
    async with whole(tmp_path, **ROCKSDB) as server:
        yield server


def places(messages: list[dict[str, Any]]) -> list[tuple[int, Any]]:
    return [(message["queue_offset"], message["value"]) for message in messages]


async def offsets(server: Whole, group: str, name: str = "a") -> dict[str, Any]:
    async with server.session.get(f"{QUEUES}/{quote(name, safe='')}/offsets", params={"group": group}) as response:
        answer: dict[str, Any] = await response.json(content_type=None)
        return answer


async def test_a_reader_is_pushed_what_comes_into_its_queue_and_nothing_else(server: Whole) -> None:
    await send(server, ["user/42", "b"], ["b"])
    async with server.peer(hello={"binary": True}) as peer:
        await peer.subscribe("b", queue="user/42")
        frame = await peer.next(op="messages", sub="b")
        [message] = frame["messages"]
        assert (message["value_len"], frame["payload"]) == (1, b"0")
        assert (message["queue"], message["queue_offset"], message["cursor"]) == ("user/42", 0, "orders:0=1")
        await peer.next(op="caught_up")
        await peer.ok("unsubscribe", sub="b")
        answer = await peer.subscribe(queue="user/42", format="json")
        assert answer["cursor"] == "orders:0=0"
        [first] = await peer.messages(1)
        assert (first["queue"], first["queue_offset"], first["offset"], first["cursor"]) == (
            "user/42", 0, 0, "orders:0=1",
        )  # fmt: skip
        assert "queues" not in first
        await peer.next(op="caught_up")
        await send(server, ["b"], ["user/42"])
        assert places(await peer.messages(1)) == [(1, 1)]
        await peer.ok("seek", sub="s", to="orders:0=0")
        assert places(await peer.messages(2)) == [(0, 0), (1, 1)]
    async with server.peer() as peer:
        await peer.subscribe(queue="user/42", **{"from": "orders:0=1"})
        assert places(await peer.messages(1)) == [(1, 1)]
        await peer.subscribe("new", queue="new", **{"from": "latest"})
        await peer.next(op="caught_up", sub="new")
        await send(server, None, ["new"])
        assert places(await peer.messages(1, "new")) == [(5, 1)], "it begins at the partition's offset"
        assert await peer.refused("subscribe", sub="t", topics=["orders"], queue="a", **{"from": "orders:0=7"}) == 41601


@pytest.mark.parametrize("form", ["json", "binary"])
async def test_what_is_pushed_as_it_comes_is_what_a_read_gives_and_takes_none(
    server: Whole, form: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    reads = 0

    async def counted(broker: LocalBroker, *of: Any, **more: Any) -> Any:
        nonlocal reads
        reads += 1
        return await read_light(broker, *of, **more)

    read_light = LocalBroker.read_light
    monkeypatch.setattr(LocalBroker, "read_light", counted)
    sends: list[tuple[list[Any], dict[str, Any]]] = [
        ([["b"], ["a", "b"], None], {"key": "k", "tag": "t"}),  # the first of its queue, behind the place it waits at
        ([["a"]], {"headers": [{"key": "h", "value": "AQ=="}]}),
        ([["a"]], {"timestamp": 7}),
        ([["a"]], {}),
    ]
    async with server.peer(hello={"binary": True}) as peer:
        await peer.subscribe(queue="a", format=form)
        await peer.next(op="caught_up")
        before, pushed = reads, []
        for queues, fields in sends:
            await send(server, *queues, **fields)
            frame = await peer.next(op="messages")
            pushed.append((frame["messages"], frame["bytes"], frame["credit"], frame.get("payload")))
        assert reads == before
        await send(server, ["a"], ["a"])  # two at once are read
        assert sum([len(frame["messages"]) for frame in [await peer.next(op="messages")]]) == 2
        assert reads == before + 1
        again = []
        for [message], *_ in pushed:
            await peer.ok("seek", sub="s", to=f"orders:0={message['queue_offset']}")
            found = []
            while len(found) < 2:  # what is behind it comes along, as much as was before it
                frame = await peer.next(op="messages")
                found += frame["messages"]
            again.append(found[0])
            await peer.next(op="caught_up")
            while peer._waiting:
                peer._waiting.pop()
        assert again == [message for [message], *_ in pushed]
        assert [message["queue_offset"] for message in again] == [1, 2, 3, 4]


async def test_nobody_is_told_for_a_subscription_that_has_ended(server: Whole, monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[LightTail] = []
    came = LightTail._came
    monkeypatch.setattr(LightTail, "_came", lambda tail, record: (told.append(tail), came(tail, record)))

    async def told_by_a_send() -> int:
        told.clear()
        await send(server, ["a"])
        return len(told)

    async with server.peer(hello={}) as peer:
        await peer.subscribe("s1", queue="a", **{"from": "latest"})
        await peer.subscribe("s2", queue="a", credit=1, auto_credit=False, **{"from": "latest"})
        await peer.subscribe("s3", queue="a", **{"from": "latest"})
        for sub in ("s1", "s2", "s3"):
            await peer.next(op="caught_up", sub=sub)
        assert await told_by_a_send() == 3
        await peer.messages(1, "s2")
        await peer.ok("unsubscribe", sub="s3")
        assert await told_by_a_send() == 2, "who has no credit is told, and reads when it has some"
        await peer.ok("permit", sub="s2", messages=5)
        assert len(await peer.messages(1, "s2")) == 1
        await peer.ok("seek", sub="s1", to="orders:0=0")
        assert len(await peer.messages(4, "s1")) == 4
        assert await told_by_a_send() == 2
        peer.cut()
    async with asyncio.timeout(PATIENCE_S):
        while await told_by_a_send():  # noqa: ASYNC110
            await asyncio.sleep(0.01)


async def test_a_session_goes_on_behind_what_its_client_has_seen(server: Whole) -> None:
    async with server.peer() as peer:
        hello = await peer.ok("hello")
        await peer.subscribe(queue="a")
        await send(server, ["a"])
        assert places(await peer.messages(1)) == [(0, 0)]
        await send(server, ["a"])
        await peer.messages(1)
        peer.cut()
    async with server.peer(hello={"resume": hello["session"], "seen": {"s": 1}}) as peer:
        assert places(await peer.messages(1)) == [(1, 0)]
        await send(server, ["a"])
        assert places(await peer.messages(1)) == [(2, 0)]


async def test_a_client_without_credit_is_sent_nothing_and_loses_nothing(server: Whole) -> None:
    await send(server, *[["a"]] * 5)
    async with server.peer() as peer:
        await peer.subscribe(queue="a", credit=2, auto_credit=False)
        assert places(await peer.messages(2)) == [(0, 0), (1, 1)]
        await peer.quiet()
        await peer.ok("permit", sub="s", messages=3)
        assert places(await peer.messages(3)) == [(2, 2), (3, 3), (4, 4)]


async def test_a_queue_of_many_partitions_is_pushed_from_all(tmp_path: Path) -> None:
    async with whole(tmp_path, partitions=3, **ROCKSDB) as server, server.peer() as peer:
        await peer.subscribe(queue="a")
        for partition in range(3):
            await send(server, ["a"], ["a"], path=f"/topics/orders/partitions/{partition}")
        found = await peer.messages(6)
        assert sorted((one["partition"], one["queue_offset"]) for one in found) == [
            (partition, offset) for partition in range(3) for offset in range(2)
        ]


async def test_a_wildcard_follows_queues_that_come_later(server: Whole) -> None:
    await send(server, ["room/1"], ["user/1"], None)
    async with server.peer(hello={"binary": True}) as peer:
        await peer.subscribe(queue="room/*", format="json")
        await send(server, ["room/2", "user/1", "room/1"], ["user/2"])
        found = await peer.messages(2)
        assert [(one["offset"], one["queues"]) for one in found] == [(0, ["room/1"]), (3, ["room/2", "room/1"])]
        assert found[-1]["cursor"] == "orders:0=4", "a cursor of the partition"
        await peer.subscribe("again", queue="room/*", **{"from": "orders:0=1"})
        frame = await peer.next(op="messages", sub="again")
        assert ([one["offset"] for one in frame["messages"]], frame["payload"]) == ([3], b"0")


async def test_what_goes_with_a_light_queue(server: Whole) -> None:
    async with server.peer(hello={"binary": True}) as peer:
        for fields in (
            {"queue": "a*b"}, {"queue": "*"}, {"queue": ""}, {"queue": "a", "format": "batch"},
            {"queue": "a", "filter": "tag = 'x'"}, {"queue": "a/*", "mode": "queue", "group": "g"},
            {"queue": "a/*", "mode": "stream", "group": "g"},
            {"queue": "a", "mode": "queue", "group": "g", "start": {"timestamp": 1}},
            {"queue": "a", "mode": "stream", "group": "g", "member": "m"},
            {"queue": "a", "mode": "stream", "group": "g", "room": "r"},
            {"queue": "a", "from": {"timestamp": 1}},
        ):  # fmt: skip
            code = await peer.refused("subscribe", sub="s", topics=["orders"], **fields)
            assert str(code).startswith("422"), fields
        assert await peer.refused("subscribe", sub="s", pattern="o.*", queue="a") == 422


async def test_a_group_goes_on_where_it_was_on_every_way_out(tmp_path: Path) -> None:
    async with whole(tmp_path, **ROCKSDB) as server:
        await send(server, *[["a"]] * 6)
        assert (await offsets(server, "phone"))["cursor"] is None
        async with server.peer() as peer:
            await peer.subscribe(queue="a", mode="stream", group="phone")
            found = await peer.messages(6)
            answer = await peer.ok("ack", sub="s", cursor=found[1]["cursor"])
            assert answer["results"][0]["ok"] is True
            assert await peer.refused("ack", sub="s", cursor="orders:0=99") == 41601
            assert await peer.refused("ack", sub="s", cursor="orders:1=0") == 422
        assert (await offsets(server, "phone"))["partitions"] == [
            {"partition": 0, "committed": 2, "end_offset": 6, "lag": 4}
        ]
        assert (await offsets(server, "laptop"))["partitions"] == [], "each device has its own"
        assert [offset for offset, _, _ in await rows(server, "a", "?group=phone")] == [2, 3, 4, 5]
    async with whole(tmp_path, **ROCKSDB) as server:
        known = await offsets(server, "phone")
        assert known["cursor"].endswith(":0=2")
        async with server.peer() as peer:
            await peer.subscribe(queue="a", mode="stream", group="phone", auto_ack=True)
            assert [one["queue_offset"] for one in await peer.messages(4)] == [2, 3, 4, 5]
        async with asyncio.timeout(PATIENCE_S):
            while True:
                if (await offsets(server, "phone"))["partitions"][0]["committed"] == 6:
                    break
                await asyncio.sleep(0.05)
        async with server.session.put(
            f"{QUEUES}/a/offsets", params={"group": "phone", "cursor": known["cursor"]}
        ) as response:
            assert response.status == 204
        assert (await offsets(server, "phone"))["partitions"][0]["committed"] == 2, "a device may go back"
        async with server.session.get("/mq/v1/groups") as response:
            assert (await response.json(content_type=None))["groups"] == [], "it is in no list of groups"
        async with server.session.delete(f"{QUEUES}/a/offsets", params={"group": "phone"}) as response:
            assert response.status == 204
        assert (await offsets(server, "phone"))["cursor"] is None


async def test_what_is_delivered_is_committed_once_and_a_socket_to_which_nothing_comes_does_nothing(
    server: Whole, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gateway.surfaces.ws.light.AUTO_COMMIT_MS", 10)
    looked = 0
    commit_delivered = LightStream._commit_delivered

    async def counted(stream: LightStream) -> None:
        nonlocal looked
        looked += 1
        await commit_delivered(stream)

    monkeypatch.setattr(LightStream, "_commit_delivered", counted)

    async def committed(count: int) -> None:
        async with asyncio.timeout(PATIENCE_S):
            while True:
                if [one["committed"] for one in (await offsets(server, "phone"))["partitions"]] == [count]:
                    return
                await asyncio.sleep(0.01)

    async with server.peer() as peer:
        await peer.subscribe(queue="a", mode="stream", group="phone", auto_ack=True)
        await peer.next(op="caught_up")
        for count in (1, 2):
            await send(server, ["a"])
            await peer.messages(1)
            await committed(count)
            await asyncio.sleep(0.05)
            assert looked == count
        await send(server, ["b"])
        await peer.quiet()
        assert looked == 2


async def test_what_groups_keep_goes_with_the_topic_and_has_a_bound(tmp_path: Path) -> None:
    async with whole(tmp_path, **ROCKSDB, **{"limits.groups_bytes_max": 800}) as server:
        await send(server, ["a"])
        for group, status in (("g1", 204), ("g2", 204), ("g3", 429), ("g1", 204)):
            async with server.session.put(
                f"{QUEUES}/a/offsets", params={"group": group, "cursor": "orders:0=1"}
            ) as response:
                assert response.status == status, await response.text()
        await server.call("DELETE", "topics/orders")
        await server.topic()
        await send(server, ["a"])
        async with asyncio.timeout(PATIENCE_S):
            while True:  # what the other topic had is forgotten soon
                async with server.session.put(
                    f"{QUEUES}/a/offsets", params={"group": "g3", "cursor": "orders:0=1"}
                ) as response:
                    if response.status == 204:
                        break
                await asyncio.sleep(0.05)
        assert (await offsets(server, "g1"))["cursor"] is None


async def test_a_subscription_in_queue_mode_leases_from_one_inbox(tmp_path: Path) -> None:
    queue_mode = {"queue": "a", "mode": "queue", "group": "g"}
    async with whole(tmp_path, **ROCKSDB) as server:
        await send(server, ["a"], ["b"], ["a"], ["a"])
        async with server.peer(hello={"binary": True}) as peer:
            await peer.subscribe(format="json", **queue_mode)
            first, _, third = await peer.messages(3)
            assert [(one["queue"], one["queue_offset"], one["offset"], one["attempt"]) for one in (first, third)] == [
                ("a", 0, 0, 1), ("a", 2, 3, 1),
            ]  # fmt: skip
            answer = await peer.ok("ack", sub="s", cursor="orders:0=2")
            assert answer["results"][0]["count"] == 2, "in its own offsets"
            await peer.ok("nack", sub="s", receipts=[third["receipt"]], delay_ms=0)
            [again] = await peer.messages(1)
            assert (again["queue_offset"], again["attempt"]) == (2, 2)
            await peer.ok("unsubscribe", sub="s")
            await peer.subscribe("b", **queue_mode)
            frame = await peer.next(op="messages", sub="b")
            [message] = frame["messages"]
            assert (message["queue"], message["queue_offset"], message["attempt"]) == ("a", 2, 3), "it was released"
            assert frame["payload"] == b"3"
            await peer.ok("ack", sub="b", receipts=[message["receipt"]])
            await send(server, ["b"], ["a"])
            frame = await peer.next(op="messages", sub="b")
            assert [one["queue_offset"] for one in frame["messages"]] == [3]
        assert (await offsets(server, "g"))["partitions"][0]["committed"] == 3


async def test_groups_that_only_keep_offsets_are_listed_in_pages_and_deleted(tmp_path: Path) -> None:
    async with whole(tmp_path, **ROCKSDB) as server:
        await send(server, ["a", "b"])
        await server.topic("other")
        await send(server, ["a"], path="/topics/other")
        said = [(f"phone-{number}", "orders", "a") for number in range(5)]
        said += [("phone-3", "orders", "b"), ("phone-3", "other", "a"), ("phone-33", "orders", "a")]
        for group, topic, name in [*said, ("web", "orders", "a")]:
            path = f"/mq/v1/topics/{topic}/queues/{name}/offsets"
            async with server.session.put(path, params={"group": group, "cursor": f"{topic}:0=1"}) as response:
                assert response.status == 204
        first = await server.call("GET", "light-groups?prefix=phone-&limit=4")
        assert [(one["group"], one["light_offset_count"]) for one in first["groups"]] == [
            ("phone-0", 1), ("phone-1", 1), ("phone-2", 1), ("phone-3", 3),
        ]  # fmt: skip
        rest = await server.call("GET", f"light-groups?prefix=phone-&limit=4&cursor={quote(first['next_cursor'])}")
        assert ([one["group"] for one in rest["groups"]], rest["next_cursor"]) == (["phone-33", "phone-4"], None)
        described = await server.call("GET", "groups/phone-3")
        assert (described["state"], described["light_offset_count"], described["members"]) == ("empty", 3, [])
        assert (await server.call("GET", "groups"))["groups"] == []
        await server.call("DELETE", "groups/phone-3")
        async with server.session.get("/mq/v1/groups/phone-3") as response:
            assert response.status == 404
        await server.call("PATCH", "groups/phone-33", {"max_attempts": 2})
        await server.call("DELETE", "groups/phone-33")
        async with server.session.delete("/mq/v1/groups/phone-33") as response:
            assert response.status == 404
    async with whole(tmp_path, **ROCKSDB) as server:
        found = await server.call("GET", "light-groups")
        assert [one["group"] for one in found["groups"]] == ["phone-0", "phone-1", "phone-2", "phone-4", "web"]
        assert (await offsets(server, "phone-3"))["partitions"] == []
        assert (await offsets(server, "phone-2"))["partitions"][0]["committed"] == 1


async def test_where_a_group_is_in_light_queues_comes_in_pages(tmp_path: Path) -> None:
    async with whole(tmp_path, partitions=2, **ROCKSDB) as server:
        await server.topic("news", partitions=1)
        names = [f"user/{number}" for number in range(7)]
        for partition in (0, 1):
            await send(server, names, ["user/1"], path=f"/topics/orders/partitions/{partition}")
        await send(server, ["user/1"], path="/topics/news")
        said = [("orders", name, "orders:0=1;orders:1=0") for name in names] + [("news", "user/1", "news:0=1")]
        for topic, name, cursor in said:
            path = f"/mq/v1/topics/{topic}/queues/{quote(name, safe='')}/offsets"
            for group in ("workers", "other"):
                async with server.session.put(path, params={"group": group, "cursor": cursor}) as response:
                    assert response.status == 204, await response.text()
        seen: list[tuple[Any, ...]] = []
        cursor = ""
        while True:
            page = await server.call("GET", f"groups/workers/light-offsets?limit=4{cursor}")
            assert len(page["offsets"]) <= 4
            seen += [
                tuple(row[name] for name in ("topic", "queue", "partition", "committed", "end_offset", "lag"))
                for row in page["offsets"]
            ]
            if page["next_cursor"] is None:
                break
            cursor = f"&cursor={page['next_cursor']}"
        assert seen == [("news", "user/1", 0, 1, 1, 0)] + [
            ("orders", name, partition, 1 - partition, end, end - 1 + partition)
            for name in names
            for partition in (0, 1)
            for end in [2 if name == "user/1" else 1]
        ]
        page = await server.call("GET", "groups/workers/light-offsets?prefix=user/3")
        assert [(row["queue"], row["partition"]) for row in page["offsets"]] == [("user/3", 0), ("user/3", 1)]
        assert (await server.call("GET", "groups/workers/light-offsets?prefix=room"))["offsets"] == []
        for what, status, code in (("none/light-offsets", 404, 40405), ("workers/light-offsets?cursor=x", 400, 40050)):
            async with server.session.get(f"/mq/v1/groups/{what}") as response:
                assert (response.status, (await response.json(content_type=None))["error_code"]) == (status, code)
        await server.call("DELETE", "topics/news")
        assert (await server.call("GET", "groups/workers/light-offsets?limit=1"))["offsets"][0]["topic"] == "orders"


async def test_a_page_of_lags_is_shown_without_those_of_a_node_that_stands_still(
    server: Whole, monkeypatch: pytest.MonkeyPatch
) -> None:
    await send(server, ["a", "b"])
    for name in ("a", "b"):
        path = f"{QUEUES}/{name}/offsets"
        async with server.session.put(path, params={"group": "phone", "cursor": "orders:0=0"}) as response:
            assert response.status == 204
    asks = LightReader.end_and_lag

    async def asks_in_vain(reader: LightReader, topic: str, name: bytes, *rest: int) -> tuple[int, int]:
        if name == b"a":
            await asyncio.sleep(PATIENCE_S)
        return await asks(reader, topic, name, *rest)

    monkeypatch.setattr(LightReader, "end_and_lag", asks_in_vain)
    monkeypatch.setattr(light, "LAGS_WAIT_S", 0.1)
    rows = (await server.call("GET", "groups/phone/light-offsets"))["offsets"]
    assert [(row["queue"], row["committed"], row["end_offset"], row["lag"]) for row in rows] == [
        ("a", 0, None, None), ("b", 0, 1, 1),
    ]  # fmt: skip


async def test_an_event_stream_of_a_queue(server: Whole) -> None:
    await send(server, ["user/42"], ["b"])
    path = f"{QUEUES}/user%2F42/sse"
    async with server.session.get(f"{path}?from=earliest") as response:
        assert response.headers["Content-Type"] == "text/event-stream"
        text = await until(response, "event: caught_up")
        assert '"queue":"user/42","queue_offset":0' in text
        await send(server, ["user/42"])
        text = await until(response, '"queue_offset":1')
        last_id = [line for line in text.split("\n") if line.startswith("id: ")][-1][4:]
        assert last_id.endswith(":0=2")
    await send(server, ["user/42"])
    async with server.session.get(path, headers={"Last-Event-ID": last_id}) as response:
        text = await until(response, '"queue_offset":')
        assert '"queue_offset":2' in text
    async with server.session.get(path, headers={"Accept": "application/x-ndjson"}) as response:
        first = orjson.loads(await response.content.readline())
        assert first["event"] == "connected"
        assert orjson.loads(await response.content.readline())["event"] == "caught_up"
        await send(server, ["user/42"])
        assert orjson.loads(await response.content.readline())["queue_offset"] == 3
    async with asyncio.timeout(HEARTBEAT_MS / 2000):  # before anything would be written
        while b"mq_streams 0.0" not in await (await server.session.get("/metrics")).read():  # noqa: ASYNC110
            await asyncio.sleep(0.01)


async def until(response: Any, wanted: str) -> str:
    """What comes, up to the event with this in it."""
    text = ""
    async with asyncio.timeout(PATIENCE_S):
        while wanted not in text:
            text += (await response.content.readline()).decode()
        return text + (await response.content.readline()).decode()


async def test_a_topic_lists_its_queues_a_page_at_a_time(tmp_path: Path) -> None:
    async with whole(tmp_path, partitions=2, **ROCKSDB) as server:
        names = sorted([f"room/{number}" for number in range(7)] + ["zoo", "é"], key=str.encode)
        await send(server, *[[name] for name in names], ["room/1"])
        await send(server, ["room/1"], path="/topics/orders/partitions/0")
        await send(server, ["room/1"], path="/topics/orders/partitions/1")
        seen: list[str] = []
        query: dict[str, Any] = {"limit": 4}
        pages = 0
        while True:
            async with server.session.get(QUEUES, params=query) as response:
                page = await response.json(content_type=None)
            pages += 1
            seen += page["queues"]
            if page["next_cursor"] is None:
                break
            query["cursor"] = page["next_cursor"]
        assert (seen, pages) == (names, 3)
        async with server.session.get(QUEUES, params={"prefix": "room/"}) as response:
            assert (await response.json(content_type=None))["queues"] == names[:7]
        async with server.session.get(QUEUES, params={"cursor": "!"}) as response:
            assert response.status == 400
        async with server.session.get(f"{QUEUES}/room%2F1") as response:
            shown = await response.json(content_type=None)
        assert shown["record_count"] == 4
        assert {one["partition"] for one in shown["partitions"]} == {0, 1}
        async with server.session.get(f"{QUEUES}/nobody") as response:
            assert (await response.json(content_type=None))["partitions"] == []


async def test_a_delayed_record_is_in_its_queues_when_it_is_due(tmp_path: Path) -> None:
    async with whole(tmp_path, **ROCKSDB) as server, server.peer() as peer:
        await peer.subscribe(queue="a", credit=100)
        code, answer = await send(server, ["a", "b"], ["b"], None, delay_ms=400)
        assert code == 0
        schedule = answer["offsets"][0]["schedule_id"]
        pending = await server.call("GET", f"schedules/{schedule}")
        assert pending["queues"] == ["a", "b"], pending
        assert await rows(server, "a") == []
        [message] = await peer.messages(1)
        assert (message["queue_offset"], message["value"]) == (0, 0)
        assert "headers" not in message, "who else got it is nobody's business"
        assert [(offset, value) for offset, _, value in await rows(server, "b")] == [(0, 0), (1, 1)]
        await send(server, ["a"], delay_ms=0)
        assert places(await peer.messages(1)) == [(1, 0)]


async def test_a_recurring_record_is_in_its_queues(tmp_path: Path) -> None:
    async with whole(tmp_path, **ROCKSDB) as server, server.peer() as peer:
        await peer.subscribe(queue="a")
        body = {"topic": "orders", "every_ms": 1000, "record": {"value": 1, "queues": ["a"]}}
        await server.call("PUT", "recurring/beat", body)
        assert (await server.call("GET", "recurring/beat"))["record"]["queues"] == ["a"]
        assert (await peer.messages(1))[0]["queue"] == "a"
    async with (
        whole(tmp_path / "files") as server,
        server.session.put("/mq/v1/recurring/beat", json=body) as response,
    ):
        assert (await response.json(content_type=None))["error_code"] == 40963


async def test_every_way_in_names_queues(server: Whole) -> None:
    async with server.session.post(
        "/mq/v1/topics/orders/messages", params={"queues": "a,b"}, data=b"raw", headers={"Content-Type": "text/plain"}
    ) as response:
        assert response.status == 201, await response.text()
    async with server.session.ws_connect("/ws/v1/produce?topic=orders&queues=a") as socket:
        await socket.send_str("5")
        assert orjson.loads((await socket.receive()).data)["ok"] is True
    async with server.peer(hello={"binary": True}) as peer:
        await peer.say_binary(
            {"id": 1, "op": "produce", "topic": "orders", "records": [{"value_len": 1, "queues": ["a"]}]}, b"7"
        )
        assert (await peer.next(id=1))["ok"] is True
    async with server.session.post(
        "/mq/v1/topics/orders/messages:batch",
        data=b'{"value": 9, "queues": ["a"]}\n',
        headers={"Content-Type": "application/x-ndjson"},
    ) as response:
        assert response.status == 200, await response.text()
    _, answer = await read(server, "a")
    assert [one["queue_offset"] for one in answer["records"]] == [0, 1, 2, 3]
    _, answer = await read(server, "b")
    assert [one["value_text"] for one in answer["records"]] == ["raw"]


async def test_a_raw_batch_names_queues_by_header_where_the_topic_says_so(server: Whole) -> None:
    def batch(*names: bytes | None) -> bytes:
        headers: list[list[tuple[str, bytes | None]]] = [
            [] if name is None else [("mq-queues", name)] for name in names
        ]
        return bytes(record_batch.encode([Record(None, b"1", 1, [("own", b"x"), *own]) for own in headers]))

    async def post(body: bytes, **headers: str) -> tuple[int, Any]:
        path = "/topics/orders/partitions/0"
        async with server.session.post(
            path, data=body, headers={"Content-Type": "application/vnd.mq.batch", **headers}
        ) as response:
            answer = await response.json(content_type=None)
            return answer.get("error_code", 0), answer

    assert (await post(batch(b'["a"]')))[0] == 42251, "reserved"
    await server.call("PATCH", "topics/orders", {"mq_headers": True})
    for bad in (b"a", b"[]", b'["a","a"]', b'["a*"]', b"[1]", b'["a"'):
        assert (await post(batch(bad)))[0] == 42251, bad
    sent = batch(b'["a","b"]', None) + batch(b'["a"]')
    for is_repeat in (False, True):
        code, answer = await post(sent, **{"Idempotency-Key": "k1"})
        assert code == 0, answer
        assert [(one["offset"], one["record_count"]) for one in answer["offsets"]] == [(0, 2), (2, 1)]
        assert [one.get("duplicate", False) for one in answer["offsets"]] == [is_repeat, is_repeat]
    code, answer = await post(bytes(record_batch.compressed(bytearray(batch(*[b'["zipped"]'] * 500)))))
    assert code == 0, answer
    _, answer = await read(server, "a")
    assert [(one["queue_offset"], one["offset"]) for one in answer["records"]] == [(0, 0), (1, 2)]
    assert [header["key"] for header in answer["records"][0]["headers"]] == ["own"]
    _, answer = await read(server, "zipped")
    assert len(answer["records"]) == 100


def test_a_wildcard_takes_the_right_to_all_that_it_may_find() -> None:
    class Holder:
        def __init__(self, *allow: str, deny: tuple[str, ...] = ()) -> None:
            self.rights = Rights(tuple(map(parse_scope, allow)), tuple(map(parse_scope, deny)))

        def check(self, permission: Any, *, topic: str | None = None, group: str | None = None) -> None:
            if not self.rights.allows(permission, topic, group):
                raise RequestError(40301, "no")

        def scopes(self) -> Any:
            return self.rights.allow, self.rights.deny

    cases: list[tuple[Holder, str, bool]] = [
        (Holder("receive:topic:orders"), "room/*", True),
        (Holder("receive:topic:orders/room/*"), "room/*", True),
        (Holder("receive:topic:orders/room/*"), "room/7", True),
        (Holder("receive:topic:orders/room/7"), "room/*", False),
        (Holder("receive:topic:orders/room/7"), "room/7", True),
        (Holder("receive:topic:orders/room/*"), "ro*", False),
        (Holder("receive:topic:orders", deny=("receive:topic:orders/room/7",)), "room/*", False),
        (Holder("receive:topic:orders", deny=("receive:topic:orders/user/*",)), "room/*", True),
        (Holder("receive:topic:orders", deny=("receive:topic:orders/r*",)), "room/*", False),
    ]
    for holder, name, is_allowed in cases:
        access: Any = holder
        if is_allowed:
            check_light(access, "orders", name)
            continue
        with pytest.raises(RequestError) as refused:
            check_light(access, "orders", name)
        assert refused.value.error_code == 40301
    assert names_begin("room/*") == b"room/"
    assert names_begin("room/7") is None
