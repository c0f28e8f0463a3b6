"""What a caller may not see looks, in every way in, like what is not there; lists and patterns leave it out.

The caller may do everything to topics `mine*` and to the group `shared`, in which others consume the topic `theirs`.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path

import aiohttp
import orjson
import pytest

from gateway.main import reload
from gateway.surfaces.ws import sessions
from tests.gateway.security.test_server import client_of, config_of, running, token_for, until

HIDDEN, MISSING = "theirs", "nobodys"
V2 = {"Content-Type": "application/vnd.kafka.v2+json", "Accept": "application/vnd.kafka.json.v2+json"}
NATIVE = {"Content-Type": "application/json"}


@dataclass
class World:
    """A server, somebody who may do everything, and the caller."""

    url: str
    root: aiohttp.ClientSession
    caller: aiohttp.ClientSession

    async def asked(self, method: str, path: str, body: object = None, headers: object = None) -> tuple[int, str]:
        """The caller's request: status and body."""
        data = None if body is None else orjson.dumps(body)
        async with self.caller.request(method, path, data=data, headers=headers) as answer:  # type: ignore[arg-type]
            return answer.status, await answer.text()


@pytest.fixture(autouse=True)
def _look_often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reload, "RELOAD_INTERVAL_S", 0.02)
    monkeypatch.setattr(sessions, "REFRESH_S", 0.05)


@pytest.fixture
async def world(tmp_path: Path) -> AsyncIterator[World]:
    config = config_of(tmp_path)
    admin, _ = token_for(config, "admin", "admin")
    mine, _ = token_for(config, "mine", "admin:topic:mine*", "admin:group:shared", "admin:group:mine*")
    async with running(config) as url, client_of(url, admin) as root, client_of(url, mine) as caller:
        for topic in ("mine", HIDDEN):
            assert (await root.put(f"/mq/v1/topics/{topic}", json={"partitions": 1})).status == 201
            assert (await root.post(f"/topics/{topic}", data=b'{"records":[{"value":"of %s"}]}' % topic.encode())).ok
        yield World(url, root, caller)


async def ids(world: World, topic: str) -> tuple[int, str]:
    """A topic's id, and that of a schedule of it."""
    topic_id = (await (await world.root.get(f"/mq/v1/topics/{topic}")).json())["topic_id"]
    later = b'{"records":[{"value":1,"delay_ms":600000,"schedule_key":"k"}]}'
    answer = await (await world.root.post(f"/topics/{topic}", data=later)).json()
    return topic_id, answer["offsets"][0]["schedule_id"]


def ways(topic: str, topic_id: int, schedule: str, cluster: str) -> list[tuple[str, str, object, object]]:
    """Every way in that names a topic, or something of it: method, path, body, headers."""
    partition = f"/topics/{topic}/partitions/0"
    v3 = f"/v3/clusters/{cluster}/topics/{topic}"
    native = f"/mq/v1/topics/{topic}"
    of_topic = [{"topic": topic, "partition": 0}]
    instance = "/consumers/mine/instances/i"
    cursor = f"{topic}@{topic_id}:0=0"
    return [
        ("POST", f"/topics/{topic}", {"records": [{"value": 1}]}, None),
        ("POST", partition, {"records": [{"value": 1}]}, None),
        ("GET", f"{partition}/records", None, None),
        ("GET", f"{partition}/messages?offset=0", None, None),
        *(("GET", path, None, None) for path in (f"/topics/{topic}", partition, f"{partition}/offsets", native)),
        ("GET", f"/topics/{topic}/partitions", None, None),
        *(("GET", path, None, None) for path in (v3, f"{v3}/configs", f"{v3}/partitions", f"{v3}/partitions/0")),
        ("POST", f"{v3}/records", {"value": {"type": "JSON", "data": 1}}, NATIVE),
        ("POST", f"{v3}/records:batch", {"entries": [{"id": "1", "value": {"type": "JSON", "data": 1}}]}, NATIVE),
        ("DELETE", v3, None, None),
        ("PATCH", v3, {"partitions_count": 2}, NATIVE),
        ("PUT", native, {"partitions": 1}, NATIVE),
        ("PATCH", native, {"partitions": 2}, NATIVE),
        ("DELETE", native, None, None),
        ("POST", "/admin/topics", {"topic_name": topic, "partitions_count": 1}, NATIVE),
        ("POST", f"/v3/clusters/{cluster}/topics", {"topic_name": topic, "partitions_count": 1}, NATIVE),
        ("GET", f"{native}/offsets", None, None),
        ("POST", f"{native}/messages", {"a": 1}, NATIVE),
        ("POST", f"{native}/messages:batch", {"value": 1}, {"Content-Type": "application/x-ndjson"}),
        ("GET", f"{native}/partitions/0/messages/0", None, None),
        ("GET", f"{native}/messages?key=a", None, None),
        ("GET", f"{native}/messages?key=a&cursor={cursor}", None, None),
        ("GET", f"{native}/sse", None, None),
        ("GET", f"{native}/sse?group=mine&ack=auto", None, None),
        ("GET", f"/mq/v1/topics/mine/sse?topics=mine,{topic}", None, None),
        ("GET", f"/mq/v1/topics/mine/sse?topics=mine,{topic}&last_event_id={cursor}", None, None),
        ("GET", f"/mq/v1/messages/{topic_id}-0-0", None, None),
        *((method, f"/mq/v1/schedules/{schedule}", body, NATIVE)
          for method, body in (("GET", None), ("DELETE", None), ("PATCH", {"delay_ms": 1}))),
        ("POST", f"/mq/v1/schedules/{schedule}:fire", None, None),
        *((method, f"/mq/v1/schedules/k?topic={topic}", body, NATIVE)
          for method, body in (("GET", None), ("DELETE", None), ("PATCH", {"delay_ms": 1}))),
        ("POST", f"/mq/v1/schedules/k:fire?topic={topic}", None, None),
        ("GET", f"/mq/v1/schedules?topic={topic}", None, None),
        ("DELETE", f"/mq/v1/schedules?topic={topic}", None, None),
        ("GET", f"/mq/v1/schedules:histogram?topic={topic}", None, None),
        ("POST", "/mq/v1/groups/mine/messages:receive", {"topics": ["mine", topic]}, NATIVE),
        ("POST", "/mq/v1/groups/mine/messages:ack", {"up_to": {**of_topic[0], "offset": 0}}, NATIVE),
        ("POST", "/mq/v1/groups/shared/offsets:reset", {"topic": topic, "to": "earliest"}, NATIVE),
        ("GET", f"/mq/v1/groups/shared/lag?topics={topic}", None, None),
        ("GET", f"/v3/clusters/{cluster}/consumer-groups/shared/lags/{topic}/partitions/0", None, None),
        ("POST", f"{instance}/subscription", {"topics": [topic]}, V2),
        ("POST", f"{instance}/assignments", {"partitions": of_topic}, V2),
        ("POST", f"{instance}/offsets", {"offsets": [{**of_topic[0], "offset": 0}]}, V2),
        ("POST", f"{instance}/offsets:query", {"partitions": of_topic}, V2),
        ("GET", f"{instance}/offsets?topic={topic}&partition=0", None, V2),
        ("POST", f"{instance}/positions", {"offsets": [{**of_topic[0], "offset": 0}]}, V2),
        ("POST", f"{instance}/positions/beginning", {"partitions": of_topic}, V2),
        ("POST", f"{instance}/positions/end", {"partitions": of_topic}, V2),
        ("GET", f"{instance}/topics/{topic}", None, V2),
    ]  # fmt: skip


def commands(topic: str, topic_id: int) -> list[dict[str, object]]:
    """The same over a socket, one command a connection."""
    subscribe = {"op": "subscribe", "id": 1, "sub": "s"}
    return [
        {"op": "produce", "id": 1, "topic": topic, "records": [{"value": 1}]},
        {**subscribe, "topics": [topic]},
        {**subscribe, "topics": ["mine", topic], "mode": "stream", "group": "mine"},
        {**subscribe, "topics": ["mine", topic], "mode": "queue", "group": "mine"},
        {**subscribe, "topics": [topic], "epochs": {topic: str(topic_id)}},
        {**subscribe, "topics": ["mine"], "from": {"offsets": {topic: {"0": 0}}}},
    ]


def without(text: str, *names: object) -> str:
    """An answer without the names that were asked for, and what differs from request to request."""
    fields = orjson.loads(text) if text.startswith("{") else {"text": text}
    fields.pop("request_id", None)
    shown = orjson.dumps(fields).decode()
    for name in names:
        shown = shown.replace(str(name), "NAME")
    return shown


async def test_what_is_hidden_looks_like_what_is_not_there(world: World) -> None:
    cluster = orjson.loads((await world.asked("GET", "/v3/clusters"))[1])["data"][0]["cluster_id"]
    hidden_id, hidden_schedule = await ids(world, HIDDEN)
    # Of nothing that is there: a topic id that none has, and a schedule id that is none any more.
    assert (await world.root.put("/mq/v1/topics/short-lived", json={"partitions": 1})).status == 201
    missing_id, missing_schedule = await ids(world, "short-lived")
    assert (await world.root.delete(f"/mq/v1/schedules/{missing_schedule}")).status == 204
    assert (await world.root.delete("/mq/v1/topics/short-lived")).status == 204
    settings = {"name": "i", "format": "json", "auto.offset.reset": "earliest"}
    assert (await world.asked("POST", "/consumers/mine", settings, V2))[0] == 200
    await world.root.post("/mq/v1/groups/shared/messages:receive", json={"topics": [HIDDEN]}, headers=NATIVE)
    differing = []
    hidden = ways(HIDDEN, hidden_id, hidden_schedule, cluster)
    missing = ways(MISSING, missing_id, missing_schedule, cluster)
    for seen, unseen in zip(hidden, missing, strict=True):
        status, text = await world.asked(*seen)
        told = status, without(text, HIDDEN, hidden_id, hidden_schedule)
        status, text = await world.asked(*unseen)
        expected = status, without(text, MISSING, missing_id, missing_schedule)
        if told != expected or told[0] >= 500:
            differing.append((seen[:2], told, expected))
    assert differing == []
    for command, other in zip(commands(HIDDEN, hidden_id), commands(MISSING, missing_id), strict=True):
        answers = []
        for one, names in ((command, (HIDDEN, hidden_id)), (other, (MISSING, missing_id))):
            async with world.caller.ws_connect("/ws/v1") as socket:
                await socket.send_json(one)
                answers.append(without(await socket.receive_str(), *names))
        assert answers[0] == answers[1], command


async def test_the_state_of_a_schedule_is_told_to_nobody_else(world: World) -> None:
    """Pending, delivered, cancelled, never there: all the same to who may not see the topic."""
    _, pending = await ids(world, HIDDEN)
    told = set()
    for change in ("", ":fire", "delete"):
        if change == ":fire":
            assert (await world.root.post(f"/mq/v1/schedules/{pending}:fire")).status == 200
        if change == "delete":
            later = b'{"records":[{"value":1,"delay_ms":600000}]}'
            answer = await (await world.root.post(f"/topics/{HIDDEN}", data=later)).json()
            pending = answer["offsets"][0]["schedule_id"]
            assert (await world.root.delete(f"/mq/v1/schedules/{pending}")).status == 204
        for method, path, body in (
            ("GET", f"/mq/v1/schedules/{pending}", None),
            ("DELETE", f"/mq/v1/schedules/{pending}", None),
            ("PATCH", f"/mq/v1/schedules/{pending}", {"delay_ms": 1}),
            ("POST", f"/mq/v1/schedules/{pending}:fire", None),
        ):
            status, text = await world.asked(method, path, body, NATIVE)
            told.add((status, without(text)))
    assert len(told) == 1
    assert next(iter(told))[0] == 404


async def test_a_recurring_schedule_of_a_hidden_topic_is_not_there(world: World) -> None:
    daily = {"record": {"value": 1}, "cron": "@daily"}
    path = "/mq/v1/recurring"
    assert (await world.root.put(f"{path}/hidden", json={"topic": HIDDEN, **daily})).status == 201
    assert (await world.asked("PUT", f"{path}/own", {"topic": "mine", **daily}, NATIVE))[0] == 201
    for method, verb in (("GET", ""), ("DELETE", ""), ("POST", ":pause"), ("POST", ":resume")):
        told = [without((await world.asked(method, f"{path}/{name}{verb}"))[1]) for name in ("hidden", "nowhere")]
        assert told[0] == told[1]
        assert "40452" in told[0]
    status, text = await world.asked("GET", path)
    assert status == 200
    assert [row["name"] for row in orjson.loads(text)["recurring"]] == ["own"]
    assert (await world.asked("GET", f"{path}?topic={HIDDEN}"))[0] == 403
    # Its name is taken, which the caller learns; not for which topic.
    for topic in ("mine", HIDDEN, MISSING):
        status, text = await world.asked("PUT", f"{path}/hidden", {"topic": topic, **daily}, NATIVE)
        assert status == 403
        assert topic == HIDDEN or HIDDEN not in text
    assert (await world.root.get(f"{path}/hidden")).status == 200


async def test_lists_and_groups_show_no_hidden_topic(world: World) -> None:
    """Somebody else consumes both topics in a group that the caller may see."""
    settings = {"name": "others", "format": "json", "auto.offset.reset": "earliest"}
    assert (await world.root.post("/consumers/shared", json=settings, headers=V2)).status == 200
    at = "/consumers/shared/instances/others"
    assert (await world.root.post(f"{at}/subscription", json={"topics": ["mine", HIDDEN]}, headers=V2)).status == 204
    assert (await world.root.get(f"{at}/records?timeout=2000", headers=V2)).status == 200
    assert (await world.root.post(f"{at}/offsets", headers=V2)).status == 200
    cluster = orjson.loads((await world.asked("GET", "/v3/clusters"))[1])["data"][0]["cluster_id"]
    group = f"/v3/clusters/{cluster}/consumer-groups/shared"
    for path in (
        "/topics", "/mq/v1/topics", "/mq/v1/schedules", "/mq/v1/groups", "/mq/v1/groups/shared",
        "/mq/v1/groups/shared/lag", group, f"{group}/consumers", f"{group}/consumers/others",
        f"{group}/consumers/others/assignments", f"{group}/lags", f"{group}/lag-summary",
        f"/v3/clusters/{cluster}/topics", f"{at}/subscription", f"{at}/assignments",
    ):  # fmt: skip
        status, text = await world.asked("GET", path, headers=V2 if path.startswith("/consumers") else None)
        assert status == 200, (path, text)
        assert HIDDEN not in text, path
    # It may not be read through the others' instance either, and the refusal does not name it.
    status, text = await world.asked("GET", f"{at}/records?timeout=100", None, V2)
    assert status == 403
    assert HIDDEN not in text


async def test_a_pattern_of_an_instance_finds_what_its_reader_may_read(world: World) -> None:
    settings = {"name": "i", "format": "json", "auto.offset.reset": "earliest"}
    assert (await world.asked("POST", "/consumers/mine", settings, V2))[0] == 200
    at = "/consumers/mine/instances/i"
    assert await world.asked("POST", f"{at}/subscription", {"topic_pattern": ".*"}, V2) == (204, "")
    assert (await world.root.put("/mq/v1/topics/mine-2", json={"partitions": 1})).status == 201
    assert (await world.root.put("/mq/v1/topics/theirs-2", json={"partitions": 1})).status == 201
    for topic in ("mine-2", "theirs-2"):
        await world.root.post(f"/topics/{topic}", data=b'{"records":[{"value":"of %s"}]}' % topic.encode())
    read: list[object] = []

    async def has_both() -> bool:
        status, text = await world.asked("GET", f"{at}/records?timeout=200", None, V2)
        assert status == 200, text
        read.extend(record["value"] for record in orjson.loads(text))
        return len(read) >= 2

    await until(has_both)
    assert sorted(map(str, read)) == ["of mine", "of mine-2"]
    assert orjson.loads((await world.asked("GET", f"{at}/subscription", None, V2))[1]) == {"topics": ["mine", "mine-2"]}
    described = await (await world.root.get("/mq/v1/groups/mine")).json()
    assert {one["topic"] for one in described["members"][0]["assigned"]} == {"mine", "mine-2"}


@pytest.mark.parametrize("mode", ["reader", "stream", "queue"])
async def test_a_pattern_of_a_socket_finds_what_its_client_may_read(world: World, mode: str) -> None:
    async with world.caller.ws_connect("/ws/v1") as socket:
        more = {"from": "earliest"} if mode == "reader" else {"group": "mine", "start": "earliest"}
        subscribe = {"op": "subscribe", "id": 1, "sub": "s", "pattern": ".*", "mode": mode, **more}
        await socket.send_json(subscribe)
        answer = await socket.receive_json()
        assert answer.get("ok"), answer
        for topic in ("mine-2", "theirs-2"):
            assert (await world.root.put(f"/mq/v1/topics/{topic}", json={"partitions": 1})).status == 201
            await world.root.post(f"/topics/{topic}", data=b'{"records":[{"value":"of %s"}]}' % topic.encode())
        values: set[str] = set()
        heard = orjson.dumps(answer).decode()
        async with asyncio.timeout(20):
            while values != {"of mine", "of mine-2"}:
                text = await socket.receive_str()
                heard += text
                pushed = orjson.loads(text)
                assert pushed["op"] != "error", pushed
                values |= {message["value"] for message in pushed.get("messages", ())}
        assert HIDDEN not in heard


# Dead letters


async def rejected(world: World, topic: str) -> None:
    """The record of this topic becomes a dead letter of `shared`."""
    receive = {"topics": [topic], "start": "earliest"}
    answer = await world.root.post("/mq/v1/groups/shared/messages:receive", json=receive, headers=NATIVE)
    receipts = [message["receipt"] for message in (await answer.json())["messages"]]
    assert len(receipts) == 1
    settled = {"receipts": receipts, "reason": "no"}
    assert (await world.root.post("/mq/v1/groups/shared/messages:reject", json=settled, headers=NATIVE)).status == 200


DLQ = "%25DLQ%25shared"
DEAD_LETTERS: list[tuple[str, str, object, object]] = [
    ("GET", "/mq/v1/groups/shared/dlq", None, None),
    ("GET", f"/topics/{DLQ}/partitions/0/records", None, None),
    ("GET", f"/topics/{DLQ}/partitions/0/messages?offset=0", None, None),
    ("GET", f"/topics/{DLQ}/partitions/0/offsets", None, None),
    ("GET", f"/mq/v1/topics/{DLQ}/partitions/0/messages/0", None, None),
    ("GET", f"/mq/v1/topics/{DLQ}/messages?key=a", None, None),
    ("POST", "/mq/v1/groups/mine/messages:receive", {"topics": ["%DLQ%shared"], "start": "earliest"}, NATIVE),
    ("POST", "/mq/v1/groups/shared/dlq:redrive", {}, NATIVE),
]
"""Every way to them over HTTP that ends; the last one takes them away."""


async def test_dead_letters_are_read_by_who_may_read_where_they_came_from(world: World) -> None:
    await rejected(world, "mine")
    for way in DEAD_LETTERS[:-1]:
        status, text = await world.asked(*way)
        assert status == 200, (way, text)
    assert "%DLQ%shared" in (await world.asked("GET", "/topics"))[1]
    await rejected(world, HIDDEN)
    for way in DEAD_LETTERS:
        status, text = await world.asked(*way)
        assert status == 403, (way, text)
        assert HIDDEN not in text
    assert "%DLQ%shared" not in (await world.asked("GET", "/topics"))[1]
    for way in DEAD_LETTERS:
        async with world.root.request(way[0], way[1], data=way[2] and orjson.dumps(way[2]), headers=way[3]) as answer:  # type: ignore[arg-type]
            assert answer.status == 200, (way, await answer.text())


@pytest.mark.parametrize("mode", ["reader", "stream", "queue", "sse", "instance"])
async def test_who_follows_dead_letters_is_cut_off_before_the_first_that_is_not_theirs(world: World, mode: str) -> None:
    await rejected(world, "mine")
    heard = ""
    if mode == "instance":
        settings = {"name": "i", "format": "json", "auto.offset.reset": "earliest"}
        assert (await world.asked("POST", "/consumers/mine", settings, V2))[0] == 200
        at = "/consumers/mine/instances/i"
        assert (await world.asked("POST", f"{at}/subscription", {"topics": ["%DLQ%shared"]}, V2))[0] == 204
        assert "of mine" in (await world.asked("GET", f"{at}/records?timeout=2000", None, V2))[1]
        polling = asyncio.ensure_future(world.asked("GET", f"{at}/records?timeout=20000", None, V2))
        await asyncio.sleep(0.1)
        await rejected(world, HIDDEN)
        status, heard = await polling
        assert status == 403
    elif mode == "sse":
        async with world.caller.get(f"/mq/v1/topics/{DLQ}/sse?from=earliest") as stream:
            async with asyncio.timeout(20):
                while "of mine" not in heard:
                    heard += (await stream.content.readany()).decode()
                await rejected(world, HIDDEN)
                heard += (await stream.content.read()).decode()
        assert "40301" in heard
    else:
        async with world.caller.ws_connect("/ws/v1") as socket:
            subscribe = {"op": "subscribe", "id": 1, "sub": "s", "topics": ["%DLQ%shared"], "mode": mode}
            more = {"from": "earliest"} if mode == "reader" else {"group": "mine", "start": "earliest"}
            await socket.send_json({**subscribe, **more})
            async with asyncio.timeout(20):
                while "of mine" not in heard:
                    heard += await socket.receive_str()
                await rejected(world, HIDDEN)
                while "40301" not in heard:
                    heard += await socket.receive_str()
    assert f"of {HIDDEN}" not in heard
    assert HIDDEN not in heard.replace(f"of {HIDDEN}", "")
