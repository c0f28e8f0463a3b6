"""gateway.surfaces.native.topics, gateway.surfaces.rest_v2.topics and gateway.codec.topic_configs, through HTTP; what
they ask of gateway.api.topics."""

from __future__ import annotations

import pytest

from gateway.brokers.local import LocalBroker
from gateway.surfaces.http import caller
from gateway.surfaces.http.context import Gateway
from store import record_batch
from store.errors import BrokerLacks
from store.record_batch import Record
from store.types import Acks, Append, QueueKey
from tests.clock import START_MS, FakeClock
from tests.gateway.conftest import Client
from tests.gateway.fake_broker import FakeBroker
from tests.gateway.groups.coordinator.world import PlainTimer
from tests.simdisk import SimDisk
from tests.store.kit import open_store

V2 = "application/vnd.kafka.v2+json"


async def get(client: Client, path: str) -> tuple[int, str, object]:
    response = await client.get(path)
    return response.status, response.headers["Content-Type"], await response.json(content_type=None)


def replica(number: int) -> dict[str, object]:
    return {"partition": number, "leader": 0, "replicas": [{"broker": 0, "leader": True, "in_sync": True}]}


async def send(broker: FakeBroker, count: int) -> None:
    batch = record_batch.encode([Record(None, b"1", 5)] * count)
    await broker.append([Append(queue=QueueKey(16, 1), batch=batch, record_count=count)], acks=Acks.FLUSHED)


async def test_v2_metadata_has_the_shapes_old_clients_read(client: Client, broker: FakeBroker) -> None:
    await broker.create_topic("alpha", 1)
    metadata = {"name": "alpha", "configs": {"cleanup.policy": "delete"}, "partitions": [replica(0)]}
    assert (await get(client, "/"))[:2] == (200, V2)  # old clients probe it
    assert await get(client, "/brokers") == (200, V2, {"brokers": [0]})
    assert await get(client, "/topics") == (200, V2, ["alpha", "orders"])
    assert await get(client, "/topics/alpha") == (200, V2, metadata)
    assert await get(client, "/topics/orders/partitions") == (200, V2, [replica(number) for number in range(4)])
    assert await get(client, "/topics/orders/partitions/3") == (200, V2, replica(3))
    await send(broker, 5)
    offsets = {"beginning_offset": 0, "end_offset": 5}
    assert await get(client, "/topics/orders/partitions/1/offsets") == (200, V2, offsets)
    response = await client.post("/")
    assert response.status == 200


@pytest.mark.parametrize(
    ("path", "code"),
    [
        ("/topics/nope", 40403),
        ("/topics/nope/partitions", 40401),
        ("/topics/nope/partitions/0", 40401),
        ("/topics/nope/partitions/0/offsets", 40401),
        ("/topics/orders/partitions/4", 40402),
        ("/topics/orders/partitions/4/offsets", 40402),
        ("/topics/orders/partitions/x", 404),
        ("/topics/orders/partitions/x/offsets", 404),
        ("/mq/v1/topics/nope", 40401),
        ("/mq/v1/topics/nope/offsets", 40401),
        ("/mq/v1/topics/__meta", 40401),
        ("/topics/a%2Fb", 40403),
        ("/topics/..%2F..%2Fetc", 40403),
    ],
)
async def test_what_is_not_there_has_its_own_code(client: Client, path: str, code: int) -> None:
    response = await client.get(path)
    assert (response.status, (await response.json())["error_code"]) == (404, code)


async def test_a_topic_is_created_once_and_described(client: Client, broker: FakeBroker) -> None:
    shape = {"topic": "new", "topic_id": 17, "partitions": 2, "json_keys": "raw"}
    for status in (201, 200):
        response = await client.put("/mq/v1/topics/new", json={"partitions": 2})
        assert (response.status, await response.json()) == (status, shape)
    response = await client.put("/mq/v1/topics/new")
    assert (response.status, await response.json()) == (200, shape)
    _, _, described = await get(client, "/mq/v1/topics/new")
    bounds = [{"partition": number, "beginning_offset": 0, "end_offset": 0} for number in range(2)]
    figures = {"records": 0, "appended_bytes": 0, "in_records_s": 0.0, "in_bytes_s": 0.0, "pending": 0}
    assert described == {**shape, **figures, "offsets": bounds}
    _, _, listed = await get(client, "/mq/v1/topics")
    assert listed == {"topics": [shape, {**shape, "topic": "orders", "topic_id": 16, "partitions": 4}]}


@pytest.mark.parametrize("body", [b"", b"{}", b' {"partitions":null}'])
async def test_a_topic_has_four_partitions_unless_its_creator_says(client: Client, body: bytes) -> None:
    response = await client.put("/mq/v1/topics/new", data=body)
    assert (response.status, (await response.json())["partitions"]) == (201, 4)


async def test_another_shape_is_a_conflict(client: Client, gateway: Gateway) -> None:
    response = await client.put("/mq/v1/topics/orders", json={"partitions": 5})
    assert (response.status, (await response.json())["error_code"]) == (409, 40955)
    assert gateway.routes_table.topic("orders").partitions == 4


@pytest.mark.parametrize(
    ("path", "body", "status"),
    [
        ("new", b"{", 400),
        ("new", b"[]", 400),
        ("new", b"4", 400),
        ("new", b'{"partition":4}', 422),
        ("new", b'{"partitions":0}', 422),
        ("new", b'{"partitions":-1}', 422),
        ("new", b'{"partitions":1025}', 422),
        ("new", b'{"partitions":true}', 422),
        ("new", b'{"partitions":1.0}', 422),
        ("new", b'{"partitions":"4"}', 422),
        ("a%20b", b"", 422),
        ("__new", b"", 422),
        ("new", b" " * (64 * 1024 + 1), 413),
    ],
)
async def test_a_bad_creation_creates_nothing(
    client: Client, gateway: Gateway, path: str, body: bytes, status: int
) -> None:
    response = await client.put(f"/mq/v1/topics/{path}", data=body)
    assert (response.status, (await response.json())["error_code"]) == (status, status)
    assert [view.name for view in gateway.routes_table.topics()] == ["orders"]


async def test_the_most_partitions(client: Client) -> None:
    response = await client.put("/mq/v1/topics/wide", json={"partitions": 1024})
    assert response.status == 201


async def test_a_refused_accept_creates_nothing(client: Client, gateway: Gateway) -> None:
    response = await client.put("/mq/v1/topics/new", headers={"Accept": "text/html"})
    assert response.status == 406
    assert len(gateway.routes_table.topics()) == 1


async def test_offsets_by_time(client: Client, broker: FakeBroker) -> None:
    await send(broker, 5)
    _, _, plain = await get(client, "/mq/v1/topics/orders/offsets")
    assert isinstance(plain, dict)
    assert (plain["topic"], plain["epoch"]) == ("orders", "16")
    assert plain["partitions"][1] == {"partition": 1, "beginning_offset": 0, "end_offset": 5}
    for time, offset in ((START_MS, 0), (START_MS + 1, 5), ("2020-01-01T00:00:00Z", 0)):
        _, _, timed = await get(client, f"/mq/v1/topics/orders/offsets?timestamp={time}")
        assert isinstance(timed, dict)
        assert timed["partitions"][1]["offset_for_time"] == offset
    for time, offset in ((START_MS - 1, 0), (START_MS, 4), (START_MS + 1, 4)):
        _, _, timed = await get(client, f"/mq/v1/topics/orders/offsets?timestamp={time}&boundary=upper")
        assert isinstance(timed, dict)
        assert timed["partitions"][1]["offset_for_time"] == offset


@pytest.mark.parametrize(
    ("query", "status"), [("timestamp=x", 400), ("time=1", 422), ("timestamp=-1", 400), ("timestamp=1&boundary=x", 422)]
)
async def test_bad_times_are_refused(client: Client, query: str, status: int) -> None:
    response = await client.get(f"/mq/v1/topics/orders/offsets?{query}")
    assert response.status == status


async def test_a_topic_grows_and_never_shrinks(client: Client) -> None:
    response = await client.patch("/mq/v1/topics/orders", json={"partitions": 6})
    assert (response.status, (await response.json())["partitions"]) == (200, 6)
    assert (await client.get("/topics/orders/partitions/5")).status == 200
    for body, status, code in (({"partitions": 3}, 422, 422), ({}, 422, 422), ({"partitions": "x"}, 422, 422)):
        response = await client.patch("/mq/v1/topics/orders", json=body)
        assert (response.status, (await response.json())["error_code"]) == (status, code)
    response = await client.patch("/mq/v1/topics/nope", json={"partitions": 6})
    assert (response.status, (await response.json())["error_code"]) == (404, 40401)


async def test_a_deleted_topic_is_gone_and_its_name_free(client: Client) -> None:
    assert (await client.delete("/mq/v1/topics/orders")).status == 204
    assert (await client.get("/mq/v1/topics/orders")).status == 404
    assert (await client.delete("/mq/v1/topics/orders")).status == 404
    assert (await client.put("/mq/v1/topics/orders", json={"partitions": 2})).status == 201


async def test_a_topic_has_settings_of_its_own(client: Client, gateway: Gateway) -> None:
    path = "/mq/v1/topics/small"
    created = await client.put(path, data=b'{"partitions":1,"max_message_bytes":100,"retention_ms":1000}')
    assert created.status == 201
    assert (await created.json()).items() >= {"max_message_bytes": 100, "retention_ms": 1000}.items()
    assert (await client.put(path, data=b'{"max_message_bytes":100,"retention_ms":1000}')).status == 200
    assert (await client.put(path, data=b'{"max_message_bytes":101}')).status == 409
    changed = await client.patch(path, data=b'{"max_message_bytes":null}')
    shape = {"topic": "small", "topic_id": 17, "partitions": 1, "json_keys": "raw", "retention_ms": 1000}
    assert await changed.json() == shape
    metadata = await (await client.get("/topics/small")).json()
    assert metadata["configs"] == {"cleanup.policy": "delete", "retention.ms": "1000"}
    for bad in (b'{"retention_ms":0}', b'{"retention_ms":"1"}', b'{"max_message_bytes":4194305}', b"{}", b'{"x":1}'):
        assert (await client.patch(path, data=bad)).status == 422


async def test_a_topic_refuses_records_beyond_its_own_limit(client: Client) -> None:
    await client.put("/mq/v1/topics/small", data=b'{"max_message_bytes":100}')
    own = len("content-type") + len("a")
    for size, status in ((100 - own, 201), (101 - own, 413)):
        response = await client.post("/mq/v1/topics/small/messages", data=b"x" * size, headers={"Content-Type": "a"})
        assert response.status == status


@pytest.mark.parametrize(
    ("body", "status"),
    [
        (b'{"topic_name":"new","partitions_count":2,"replication_factor":1}', 201),
        (b'{"topic_name":"new"}', 201),
        (b'{"topic_name":"new","config":{"retention.ms":5}}', 201),
        (b'{"topic_name":"orders","partitions_count":2}', 409),
        (b'{"topic_name":"new","partitions_count":0}', 422),
        (b'{"topic_name":5}', 422),
        (b'{"name":"new"}', 422),
        (b'{"topic_name":"new","config":{"cleanup.policy":"compact"}}', 400),
        (b'{"topic_name":"new","config":[]}', 400),
        (b"[]", 400),
    ],
)
async def test_strimzis_way_to_create_a_topic(client: Client, body: bytes, status: int) -> None:
    assert (await client.post("/admin/topics", data=body)).status == status


async def test_lists_show_what_may_be_described(
    client: Client, broker: FakeBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    await broker.create_topic("secret", 1)

    class Some:
        def allows(self, permission: object, *, topic: str) -> bool:
            return topic != "secret"

    monkeypatch.setattr(caller, "access_of", lambda request: Some())
    assert await (await client.get("/topics")).json() == ["orders"]
    listed = await (await client.get("/mq/v1/topics")).json()
    assert [topic["topic"] for topic in listed["topics"]] == ["orders"]


async def test_the_form_of_keys_is_chosen_once(client: Client) -> None:
    created = await client.put("/mq/v1/topics/shared", json={"json_keys": "confluent"})
    assert (created.status, (await created.json())["json_keys"]) == (201, "confluent")
    for same in ({}, {"json_keys": None}, {"json_keys": "confluent"}):
        assert (await client.put("/mq/v1/topics/shared", json=same)).status == 200
    assert (await client.put("/mq/v1/topics/shared", json={"json_keys": "raw"})).status == 409
    for wrong in ("quoted", 1, ["raw"]):
        refused = await client.put("/mq/v1/topics/other", json={"json_keys": wrong})
        message = (await refused.json())["message"]
        assert (refused.status, message) == (422, 'json_keys: must be "raw" or "confluent"')
    refused = await client.patch("/mq/v1/topics/shared", json={"json_keys": "raw"})
    assert (refused.status, (await refused.json())["message"]) == (422, "Unrecognized field: json_keys")


async def test_a_topic_of_kafka_says_whose_it_is_and_is_let_go_of(client: Client, broker: FakeBroker) -> None:
    answer = await client.post("/mq/v1/topics/theirs/attach", json={"broker": "kafka1", "name": "prod.orders"})
    attached = {"broker": "kafka1", "name": "prod.orders", "mirror_groups": False, "sends": "at_least_once"}
    shown = {"topic": "theirs", "topic_id": 17, "partitions": 2, "json_keys": "raw", "attached": attached}
    assert (answer.status, await answer.json()) == (201, shown)
    again = await client.post("/mq/v1/topics/theirs/attach", json={"broker": "kafka1", "mirror_groups": True})
    assert (again.status, (await again.json())["attached"]) == (
        200, {"broker": "kafka1", "name": "theirs", "mirror_groups": True, "sends": "at_least_once"},
    )  # fmt: skip
    listed = await (await client.get("/mq/v1/topics")).json()
    assert [one["topic"] for one in listed["topics"] if "attached" in one] == ["theirs"]
    assert (await client.post("/mq/v1/topics/theirs/detach")).status == 204
    assert (await client.get("/mq/v1/topics/theirs")).status == 404
    own = await client.post("/mq/v1/topics/orders/detach")
    assert (own.status, (await own.json())["error_code"]) == (409, 40964)


@pytest.mark.parametrize(
    "body", [{}, {"broker": ""}, {"broker": "k" * 33}, {"broker": "k", "name": "n" * 250}, {"broker": "k", "mirror": 1}]
)
async def test_what_cannot_be_attached_is_refused(client: Client, body: dict[str, object]) -> None:
    assert (await client.post("/mq/v1/topics/theirs/attach", json=body)).status in (400, 422)
    assert (await client.get("/mq/v1/topics/theirs")).status == 404


async def test_a_server_without_a_kafka_cluster_attaches_nothing() -> None:
    disk, clock = SimDisk(), FakeClock()
    store = await open_store(disk, clock=clock)
    broker = LocalBroker(store, PlainTimer(store, clock), name="n1", on_topic=lambda _: None, on_deleted=lambda _: None)
    with pytest.raises(BrokerLacks, match="--broker"):
        await broker.attach_topic("theirs", None, None)
    await store.close()
