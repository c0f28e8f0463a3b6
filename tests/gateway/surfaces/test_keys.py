"""One key is one key, whatever way it came and goes out: every way in beside every way out, on a whole server."""

from __future__ import annotations

import asyncio
import base64
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from typing import Any

import aiohttp
import orjson
import pytest

from store import record_batch
from store.record_batch import Record
from tests.gateway.main.test_wiring import config_of, serving
from tests.gateway.surfaces.ws.whole import Peer
from tests.samples import unpack

Client = aiohttp.ClientSession
TOPIC = "orders"
V2_JSON, V2_TEXT, V2_BINARY = (f"application/vnd.kafka.{form}v2+json" for form in ("json.", "text.", "binary."))
BATCH = "application/vnd.mq.batch"
LINES = "application/x-ndjson"
YEARS_MS = 100 * 365 * 24 * 3600 * 1000


async def _ok(response: aiohttp.ClientResponse) -> bytes:
    body = await response.read()
    assert response.status < 300, (response.status, body)
    return body


async def _post(client: Client, path: str, body: object, content_type: str) -> bytes:
    data = body if isinstance(body, bytes) else orjson.dumps(body)
    return await _ok(await client.post(path, data=data, headers={"Content-Type": content_type}))


async def _v2(client: Client, key: str, number: int, content_type: str, **fields: object) -> None:
    shown = base64.b64encode(key.encode()).decode() if content_type == V2_BINARY else key
    value: object = {V2_JSON: number, V2_TEXT: str(number)}.get(content_type)
    if value is None:
        value = base64.b64encode(str(number).encode()).decode()
    await _post(client, f"/topics/{TOPIC}", {"records": [{"key": shown, "value": value, **fields}]}, content_type)


async def _columns(client: Client, key: str, number: int) -> None:
    await _post(client, f"/topics/{TOPIC}", {"records": [{"key": key, "value": number}] * 2}, V2_JSON)


async def _raw(client: Client, key: str, number: int) -> None:
    params = {"key": key}
    await _ok(await client.post(f"/mq/v1/topics/{TOPIC}/messages", params=params, data=str(number).encode()))


async def _lines(client: Client, record: Mapping[str, object]) -> None:
    await _post(client, f"/mq/v1/topics/{TOPIC}/messages:batch", record, LINES)


async def _event(client: Client, key: str, number: int) -> None:
    event = {"specversion": "1.0", "id": "1", "source": "/s", "type": "t", "partitionkey": key, "data": number}
    await _post(client, f"/mq/v1/topics/{TOPIC}/messages:batch", [event], "application/cloudevents-batch+json")


async def _v3(client: Client, key: str, number: int, kind: str, *, batch: bool) -> None:
    data = base64.b64encode(key.encode()).decode() if kind == "BINARY" else key
    record = {"key": {"type": kind, "data": data}, "value": {"type": "JSON", "data": number}}
    cluster = orjson.loads(await _ok(await client.get("/v3/clusters")))["data"][0]["cluster_id"]
    path = f"/v3/clusters/{cluster}/topics/{TOPIC}/records"
    if batch:
        await _post(client, f"{path}:batch", {"entries": [{"id": "1", **record}]}, "application/json")
    else:
        await _post(client, path, record, "application/json")


async def _used(client: Client) -> dict[int, int]:
    """End offsets of the partitions that hold records."""
    rows = orjson.loads(await _ok(await client.get(f"/mq/v1/topics/{TOPIC}/offsets")))["partitions"]
    return {row["partition"]: row["end_offset"] for row in rows if row["end_offset"]}


async def _all_there(client: Client) -> dict[int, int]:
    """As `_used`, as soon as what every way in sends is there: one is delayed, one sends two."""
    while sum((used := await _used(client)).values()) <= len(WAYS_IN):  # noqa: ASYNC110
        await asyncio.sleep(0.01)
    return used


async def _batch(client: Client, key: str, number: int) -> None:
    batch = bytes(record_batch.encode([Record(key.encode(), str(number).encode(), 0)]))
    (partition,) = await _used(client)  # a batch may have many keys, so its sender says where it goes
    await _post(client, f"/topics/{TOPIC}/partitions/{partition}", batch, BATCH)


async def _socket(client: Client, record: Mapping[str, object]) -> None:
    async with client.ws_connect("/ws/v1") as socket:
        await Peer(socket).ok("produce", topic=TOPIC, records=[record])


async def _socket_binary(client: Client, key: str, number: int, *, in_header: bool) -> None:
    async with client.ws_connect("/ws/v1") as socket:
        peer = Peer(socket)
        await peer.ok("hello", binary=True)
        value = str(number).encode()
        record = {"value_len": len(value), **({"key": key} if in_header else {"key_len": len(key.encode())})}
        payload = value if in_header else key.encode() + value
        await peer.say_binary({"id": 1, "op": "produce", "topic": TOPIC, "records": [record]}, payload)
        assert (await peer.next(id=1))["ok"]


async def _socket_url(client: Client, key: str, number: int) -> None:
    async with client.ws_connect("/ws/v1/produce", params={"topic": TOPIC, "key": key}) as socket:
        await socket.send_str(str(number))
        assert orjson.loads((await socket.receive()).data)["ok"]


Send = Callable[[Client, str, int], Awaitable[None]]
JSON_WAYS_IN: dict[str, Send] = {
    "v2 json": lambda client, key, number: _v2(client, key, number, V2_JSON),
    "v2 json, with a field": lambda client, key, number: _v2(client, key, number, V2_JSON, tag="t"),
    "v2 json, delayed": lambda client, key, number: _v2(client, key, number, V2_JSON, delay_ms=20),
    "v2 json, several": _columns,
    "lines": lambda client, key, number: _lines(client, {"key": key, "value": number}),
    "lines, value as text": lambda client, key, number: _lines(client, {"key": key, "value_text": str(number)}),
    "v3 json": lambda client, key, number: _v3(client, key, number, "JSON", batch=False),
    "v3 batch, json": lambda client, key, number: _v3(client, key, number, "JSON", batch=True),
    "socket": lambda client, key, number: _socket(client, {"key": key, "value": number}),
    "socket, value_b64": lambda client, key, number: _socket(
        client, {"key": key, "value_b64": base64.b64encode(str(number).encode()).decode()}
    ),
    "socket, binary, key in the header": lambda client, key, number: _socket_binary(
        client, key, number, in_header=True
    ),
}
BYTES_WAYS_IN: dict[str, Send] = {
    "v2 text": lambda client, key, number: _v2(client, key, number, V2_TEXT),
    "v2 binary": lambda client, key, number: _v2(client, key, number, V2_BINARY),
    "raw": _raw,
    "lines, key_text": lambda client, key, number: _lines(client, {"key_text": key, "value": number}),
    "lines, key_b64": lambda client, key, number: _lines(
        client, {"key_b64": base64.b64encode(key.encode()).decode(), "value": number}
    ),
    "event": _event,
    "v3 string": lambda client, key, number: _v3(client, key, number, "STRING", batch=False),
    "v3 binary": lambda client, key, number: _v3(client, key, number, "BINARY", batch=True),
    "raw batch": _batch,
    "socket, key_b64": lambda client, key, number: _socket(
        client, {"key_b64": base64.b64encode(key.encode()).decode(), "value": number}
    ),
    "socket, binary": lambda client, key, number: _socket_binary(client, key, number, in_header=False),
    "socket, by URL": _socket_url,
}
WAYS_IN = JSON_WAYS_IN | BYTES_WAYS_IN


async def _fetched(client: Client, partition: int, form: str, path: str = "records?offset=0") -> list[Any]:
    accept = {"Accept": f"application/vnd.kafka.{form}.v2+json"}
    return list(
        orjson.loads(await _ok(await client.get(f"/topics/{TOPIC}/partitions/{partition}/{path}", headers=accept)))
    )


async def _fetched_binary(client: Client, partition: int) -> list[Any]:
    return [{"key": base64.b64decode(record["key"]).decode()} for record in await _fetched(client, partition, "binary")]


async def _found(client: Client, partition: int) -> list[Any]:
    path = f"/mq/v1/topics/{TOPIC}/messages?key=u1&partition={partition}"
    return list(orjson.loads(await _ok(await client.get(path)))["messages"])


async def _one_by_one(client: Client, partition: int) -> list[Any]:
    return [
        orjson.loads(await _ok(await client.get(f"/mq/v1/messages/{record['message_id']}")))
        for record in await _found(client, partition)
    ]


async def _instance(client: Client, partition: int) -> list[Any]:
    made = await _post(client, "/consumers/i", {"format": "json", "auto.offset.reset": "earliest"}, V2_JSON)
    base = f"/consumers/i/instances/{orjson.loads(made)['instance_id']}"
    await _post(client, f"{base}/assignments", {"partitions": [{"topic": TOPIC, "partition": partition}]}, V2_JSON)
    accept = {"Accept": V2_JSON}
    found = orjson.loads(await _ok(await client.get(f"{base}/records?timeout=1000", headers=accept)))
    await _ok(await client.delete(base, headers={"Content-Type": V2_JSON}))
    return list(found)


async def _received(client: Client, partition: int) -> list[Any]:
    wanted = {"topics": [TOPIC], "max_messages": 100, "start": "earliest", "wait_ms": 100}
    body = await _post(client, "/mq/v1/groups/receivers/messages:receive", wanted, "application/json")
    messages = list(orjson.loads(body)["messages"])
    await _post(
        client,
        "/mq/v1/groups/receivers/messages:nack",
        {"receipts": [message["receipt"] for message in messages], "delay_ms": 0},
        "application/json",
    )
    return messages


async def _subscribed(client: Client, partition: int, **fields: object) -> list[Any]:
    async with client.ws_connect("/ws/v1") as socket:
        peer = Peer(socket)
        await peer.subscribe(**(fields or {"from": {TOPIC: {str(partition): 0}}}))
        return await peer.messages(len(WAYS_IN) + 1)


async def _subscribed_binary(client: Client, partition: int, **fields: object) -> list[Any]:
    """What a client makes of messages whose keys are in the payload."""
    found: list[Any] = []
    async with client.ws_connect("/ws/v1") as socket:
        peer = Peer(socket)
        await peer.ok("hello", binary=True)
        await peer.subscribe(**fields)
        while len(found) <= len(WAYS_IN):
            frame = await peer.next(op="messages")
            at = 0
            for message in frame["messages"]:
                assert message["raw_key"] is True
                found.append({"key": frame["payload"][at : at + message["key_len"]].decode()})
                at += message["key_len"] + message["value_len"]
    return found


async def _events(client: Client, partition: int) -> list[Any]:
    found: list[Any] = []
    async with client.get(f"/mq/v1/topics/{TOPIC}/sse?from=earliest") as response:
        while len(found) < len(WAYS_IN) + 1:
            line = await asyncio.wait_for(response.content.readline(), 20)
            if line.startswith(b"data: ") and b'"value' in line:
                found.append(orjson.loads(line[6:]))
    return found


WAYS_OUT: dict[str, Callable[[Client, int], Awaitable[list[Any]]]] = {
    "v2 json": lambda client, partition: _fetched(client, partition, "json"),
    "v2 text": lambda client, partition: _fetched(client, partition, "text"),
    "v2 binary": _fetched_binary,
    "v1": lambda client, partition: _fetched(client, partition, "json", "messages?offset=0&count=100"),
    "search": _found,
    "by id": _one_by_one,
    "instance": _instance,
    "receive": _received,
    "socket reader": _subscribed,
    "socket stream": lambda client, partition: _subscribed(client, partition, mode="stream", group="s"),
    "socket queue": lambda client, partition: _subscribed(client, partition, mode="queue", group="q"),
    "socket reader, binary": _subscribed_binary,
    "socket queue, binary": lambda client, partition: _subscribed_binary(client, partition, mode="queue", group="b"),
    "sse": _events,
}


async def test_a_key_is_the_same_on_every_way_in_and_out(tmp_path: Path) -> None:
    async with serving(config_of(tmp_path)) as client:
        await client.put(f"/mq/v1/topics/{TOPIC}", json={"partitions": 16})
        for number, send in enumerate(WAYS_IN.values()):
            await send(client, "u1", number)
        (partition,) = await _all_there(client)
        records = await _fetched_values(client, partition)
        assert {record["value"] for record in records} == set(range(len(WAYS_IN)))
        for name, read in WAYS_OUT.items():
            assert [record["key"] for record in await read(client, partition)] == ["u1"] * (len(WAYS_IN) + 1), name


async def _fetched_values(client: Client, partition: int) -> list[Any]:
    """Records as JSON; an event's value is its `data`."""
    records = await _fetched(client, partition, "json")
    return [
        {**record, "value": record["value"]["data"] if isinstance(record["value"], dict) else record["value"]}
        for record in records
    ]


@pytest.mark.parametrize(
    ("key", "stored", "shown"),
    [
        ("u1", b"u1", "u1"),
        ("", b"", ""),
        ('ü"\\\n', 'ü"\\\n'.encode(), 'ü"\\\n'),
        (7, b"7", "7"),
        (True, b"true", "true"),
        ({"b": [1, None]}, b'{"b":[1,null]}', '{"b":[1,null]}'),
        (None, None, None),
    ],
)
async def test_what_is_no_string_is_stored_as_its_json_and_shown_as_a_string(
    tmp_path: Path, key: object, stored: bytes | None, shown: str | None
) -> None:
    async with serving(config_of(tmp_path)) as client:
        await client.put(f"/mq/v1/topics/{TOPIC}", json={"partitions": 1})
        for count in (1, 2):  # alone, and as columns
            await _post(client, f"/topics/{TOPIC}", {"records": [{"key": key, "value": 1}] * count}, V2_JSON)
        await _lines(client, {"key": key, "value": 1})
        in_base64 = None if stored is None else base64.b64encode(stored).decode()
        assert [record["key"] for record in await _fetched(client, 0, "binary")] == [in_base64] * 4
        assert [record["key"] for record in await _fetched(client, 0, "json")] == [shown] * 4
        assert [record["key"] for record in await _received(client, 0)] == [shown] * 4


async def test_a_raw_key_that_is_no_text_comes_in_base64(tmp_path: Path) -> None:
    async with serving(config_of(tmp_path)) as client:
        await client.put(f"/mq/v1/topics/{TOPIC}", json={"partitions": 1})
        await _lines(client, {"key_b64": "/w==", "value": 1})
        (record,) = await _fetched(client, 0, "json")
        assert (record["key"], record["key_b64"], record["value_b64"], record["error_code"]) == (
            None, "/w==", "MQ==", 40801,
        )  # fmt: skip
        (message,) = await _received(client, 0)
        assert (message["key_b64"], message["value"]) == ("/w==", 1)
        assert "key" not in message


async def test_confluent_keys_keep_their_quotes(tmp_path: Path) -> None:
    async with serving(config_of(tmp_path)) as client:
        await client.put(f"/mq/v1/topics/{TOPIC}", json={"partitions": 1, "json_keys": "confluent"})
        for number, send in enumerate(WAYS_IN.values()):
            await send(client, "u1", number)
        await _all_there(client)
        keys = [record["key"] for record in await _fetched(client, 0, "binary")]
        quoted, bare = (base64.b64encode(key).decode() for key in (b'"u1"', b"u1"))
        assert (keys.count(quoted), keys.count(bare)) == (len(JSON_WAYS_IN) + 1, len(BYTES_WAYS_IN))
        forms = [record.get("key", record.get("key_text")) for record in await _received(client, 0)]
        assert forms == ["u1"] * (len(WAYS_IN) + 1)


async def test_a_copy_of_a_record_keeps_the_form_of_its_key(tmp_path: Path) -> None:
    """Topics of a group hold records of topics with either form."""
    async with serving(config_of(tmp_path)) as client:
        for topic, form in (("r", "raw"), ("c", "confluent")):
            await client.put(f"/mq/v1/topics/{topic}", json={"partitions": 1, "json_keys": form})
            await _post(client, f"/topics/{topic}", {"records": [{"key": "7", "value": topic}]}, V2_JSON)
            await _post(client, f"/topics/{topic}", {"records": [{"key": 7, "value": topic}]}, V2_JSON)
        wanted = {"topics": ["r", "c"], "max_messages": 10, "start": "earliest", "wait_ms": 5000}
        group = "/mq/v1/groups/g"
        shown = {("r", "7"), ("c", "7"), ("c", 7)}
        for delay_ms in (0, 1500, None):  # at once, through the timer, as dead letters
            seen: list[tuple[str, object]] = []
            receipts: list[str] = []
            while len(seen) < 4:
                body = await _post(client, f"{group}/messages:receive", wanted, "application/json")
                messages = orjson.loads(body)["messages"]
                seen += [(message["value"], message["key"]) for message in messages]
                receipts += [message["receipt"] for message in messages]
            assert (set(seen), len(seen)) == (shown, 4)
            verb, more = ("reject", {"reason": "no"}) if delay_ms is None else ("nack", {"delay_ms": delay_ms})
            await _post(client, f"{group}/messages:{verb}", {"receipts": receipts, **more}, "application/json")
        letters: list[Any] = []
        while len(letters) < 4:
            letters = orjson.loads(await _ok(await client.get(f"{group}/dlq")))["messages"]
        assert {(letter["value"], letter["key"]) for letter in letters} == shown


async def test_topics_of_an_older_version_keep_their_keys_and_partitions(tmp_path: Path) -> None:
    config = config_of(unpack("before-0029", tmp_path), **{"store.retention_ms": YEARS_MS})
    async with serving(config) as client:
        assert orjson.loads(await _ok(await client.get(f"/mq/v1/topics/{TOPIC}")))["json_keys"] == "confluent"
        await _v2(client, "u1", 10, V2_JSON)
        await _raw(client, "u1", 11)
        by_number: dict[int, tuple[int, object]] = {}
        while not by_number.keys() >= {1, 2, 3, 4, 6, 8, 10}:  # overdue ones are delivered at once
            for partition in range(4):
                for record in await _fetched(client, partition, "json"):
                    if (value := record["value"]) is not None:
                        number = value["n"] if isinstance(value, dict) else value
                        by_number[number] = (partition, record["key"])
        of_u1 = by_number[1]
        assert of_u1[1] == "u1"
        assert by_number[6] == by_number[10] == of_u1, "the same key goes where it went"
        assert (by_number[2][1], by_number[3][1], by_number[4][1]) == (7, {"a": 1}, 'ü"x')
        assert by_number[8] == (3, "u1")
        (letter,) = orjson.loads(await _ok(await client.get("/mq/v1/groups/billing/dlq")))["messages"]
        assert (letter["key"], letter["value"]) == (7, {"n": 2})
        again: dict[int, Any] = {}
        wanted = {"topics": [TOPIC], "max_messages": 10, "wait_ms": 1000}
        while not again.keys() >= {1, 5}:
            body = await _post(client, "/mq/v1/groups/billing/messages:receive", wanted, "application/json")
            for message in orjson.loads(body)["messages"]:
                value = message["value"]
                again[value["n"] if isinstance(value, dict) else value] = message
        assert (again[1]["key"], again[5]["key_text"]) == ("u1", "u1")
        assert (again[1]["delivery_attempt"], again[5]["delivery_attempt"]) == (2, 2)
