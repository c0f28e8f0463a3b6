"""gateway.surfaces.rest_v3.resources, records.py and gateway.surfaces.rest_v3.groups: the REST Proxy's v3 shapes."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import replace

import orjson
import pytest
from aiohttp.test_utils import TestServer
from yarl import URL

from gateway.api.shapes.queries import LIST_ROWS_MAX
from gateway.api.shapes.v3 import ENTRIES_MAX, ENTRY_ID_CHARS_MAX
from gateway.codec.records import ProduceRecord
from gateway.groups.machines.subscription import Subscription
from gateway.groups.protocol import MemberKey, OffsetCommit
from gateway.surfaces.http.context import Gateway
from tests.gateway.conftest import Client
from tests.gateway.fake_broker import FakeBroker
from tests.gateway.fake_groups import FakeGroups
from tests.gateway.production_server import ProductionServer

TOPIC = "/v3/clusters/c1/topics/orders"


GROUP = "/v3/clusters/c1/consumer-groups/billing"


@pytest.fixture
def groups(gateway: Gateway) -> FakeGroups:
    return FakeGroups(gateway.routes_table, gateway.consumer)


@pytest.fixture
async def client(
    gateway: Gateway, groups: FakeGroups, aiohttp_client: Callable[[TestServer], Awaitable[Client]]
) -> Client:
    named = replace(gateway, cluster_id="c1", groups=groups)  # type: ignore[arg-type]
    server = ProductionServer(named)
    await server.start_server()
    return await aiohttp_client(server)


@pytest.fixture
async def billing(gateway: Gateway, groups: FakeGroups) -> None:
    """Group `billing`: one member, with one of 101 records of partition 1 consumed and none of 10 of partition 0."""
    member_id, share = await groups.join("billing", "m1", Subscription(frozenset(["orders"])))
    record = ProduceRecord(None, b"x", [], None, None, None, None, None)
    for partition, count in ((0, 10), (1, 101)):
        await gateway.producer.produce("orders", [record] * count, partition=partition, json_values=False)
    await groups.commit("billing", [OffsetCommit("orders", 1, 1)], MemberKey(member_id, share.generation))


async def get(client: Client, path: str, status: int = 200) -> dict[str, object]:
    response = await client.get(path)
    answer: dict[str, object] = await response.json()
    assert response.status == status, answer
    return answer


@pytest.mark.parametrize(
    ("path", "kind", "fields"),
    [
        ("/v3/clusters/c1", "KafkaCluster", {"cluster_id": "c1"}),
        ("/v3/clusters/c1/brokers/0", "KafkaBroker", {"broker_id": 0, "host": "127.0.0.1"}),
        (TOPIC, "KafkaTopic", {"topic_name": "orders", "partitions_count": 4, "replication_factor": 1}),
        (f"{TOPIC}/configs/cleanup.policy", "KafkaTopicConfig", {"name": "cleanup.policy", "value": "delete"}),
        (f"{TOPIC}/configs/retention.ms", "KafkaTopicConfig", {"value": "604800000", "is_default": True}),
        (f"{TOPIC}/partitions/1", "KafkaPartition", {"partition_id": 1}),
        (f"{TOPIC}/partitions/1/offset", "KafkaPartitionWithOffsets", {"earliest_offset": 0, "latest_offset": 0}),
    ],
)
async def test_resources(client: Client, path: str, kind: str, fields: dict[str, object]) -> None:
    await check_resource(client, path, kind, fields)


@pytest.mark.parametrize(
    ("path", "kind", "fields"),
    [
        (GROUP, "KafkaConsumerGroup", {"state": "STABLE", "is_simple": False}),
        (f"{GROUP}/consumers/m1", "KafkaConsumer", {"consumer_id": "m1"}),
        (
            f"{GROUP}/lag-summary",
            "KafkaConsumerGroupLagSummary",
            {"max_lag": 100, "total_lag": 110, "max_lag_partition_id": 1, "max_lag_consumer_id": "m1"},
        ),
        (
            f"{GROUP}/lags/orders/partitions/1",
            "KafkaConsumerLag",
            {"current_offset": 1, "log_end_offset": 101, "lag": 100},
        ),
    ],
)
@pytest.mark.usefixtures("billing")
async def test_resources_of_a_group(client: Client, path: str, kind: str, fields: dict[str, object]) -> None:
    await check_resource(client, path, kind, fields)


async def check_resource(client: Client, path: str, kind: str, fields: dict[str, object]) -> None:
    resource = await get(client, path)
    assert resource["kind"] == kind
    assert fields.items() <= resource.items()
    metadata = resource["metadata"]
    assert isinstance(metadata, dict)
    assert metadata["self"].endswith(path)
    assert await get(client, f"/kafka{path}") != {}


@pytest.mark.parametrize(
    ("path", "kind", "count"),
    [
        ("/v3/clusters", "KafkaClusterList", 1),
        ("/v3/clusters/c1/brokers", "KafkaBrokerList", 1),
        ("/v3/clusters/c1/brokers/0/configs", "KafkaBrokerConfigList", 3),
        ("/v3/clusters/c1/topics", "KafkaTopicList", 1),
        (f"{TOPIC}/configs", "KafkaTopicConfigList", 4),
        (f"{TOPIC}/partitions", "KafkaPartitionList", 4),
        (f"{TOPIC}/partitions/0/replicas", "KafkaReplicaList", 1),
        ("/v3/clusters/c1/consumer-groups", "KafkaConsumerGroupList", 1),
        (f"{GROUP}/consumers", "KafkaConsumerList", 1),
        (f"{GROUP}/consumers/m1/assignments", "KafkaConsumerAssignmentList", 4),
        (f"{GROUP}/lags", "KafkaConsumerLagList", 4),
    ],
)
@pytest.mark.usefixtures("billing")
async def test_lists(client: Client, path: str, kind: str, count: int) -> None:
    page = await get(client, path)
    rows = page["data"]
    assert isinstance(rows, list)
    assert (page["kind"], len(rows)) == (kind, count)
    assert all(row["cluster_id"] == "c1" and row["metadata"]["self"] for row in rows)


async def test_topics_come_in_pages_of_which_each_names_the_next(client: Client) -> None:
    for name in ("a", "b", "c", "d"):
        assert (await client.post("/v3/clusters/c1/topics", json={"topic_name": name})).status == 201
    path, names = "/v3/clusters/c1/topics?page_size=2", list[list[str]]()
    while path:
        page = await get(client, path)
        assert isinstance(page["data"], list)
        assert isinstance(page["metadata"], dict)
        names.append([row["topic_name"] for row in page["data"]])
        path = "" if page["metadata"]["next"] is None else URL(page["metadata"]["next"]).path_qs
    assert names == [["a", "b"], ["c", "d"], ["orders"]]
    assert len((await get(client, "/v3/clusters/c1/topics"))["data"]) == 5  # type: ignore[arg-type]
    for size, code in ((LIST_ROWS_MAX, 200), (LIST_ROWS_MAX + 1, 422), (0, 422)):
        await get(client, f"/v3/clusters/c1/topics?page_size={size}", code)
    await get(client, "/v3/clusters/c1/topics?page_token=none", 400)


@pytest.mark.parametrize(
    ("path", "code"),
    [
        ("/v3/clusters/other", 404),
        ("/v3/clusters/other/topics/orders", 404),
        ("/v3/clusters/c1/brokers/1", 404),
        ("/v3/clusters/c1/topics/none", 40403),
        (f"{TOPIC}/partitions/4", 40402),
        (f"{TOPIC}/partitions/x", 404),
        (f"{TOPIC}/configs/compression.type", 404),
        ("/v3/clusters/c1/consumer-groups/none", 40405),
        (f"{GROUP}/consumers/none", 404),
        (f"{GROUP}/lags/orders/partitions/4", 404),
    ],
)
@pytest.mark.usefixtures("billing")
async def test_what_is_not_there(client: Client, path: str, code: int) -> None:
    assert (await get(client, path, 404))["error_code"] == code


async def test_a_topic_is_made_changed_and_deleted(client: Client, gateway: Gateway) -> None:
    names = "/v3/clusters/c1/topics"
    body = {"topic_name": "new", "partitions_count": 2, "configs": [{"name": "retention.ms", "value": "1000"}]}
    planned = await client.post(names, json={**body, "validate_only": True})
    assert (planned.status, (await planned.json())["partitions_count"]) == (201, 2)
    created = await client.post(names, json=body)
    assert (created.status, created.headers["Location"].endswith(f"{names}/new")) == (201, True)
    again = await client.post(names, json=body)
    assert (again.status, (await again.json())["error_code"]) == (400, 40002)
    grown = await client.patch(f"{names}/new", json={"partitions_count": 3})
    assert (grown.status, (await grown.json())["partitions_count"]) == (200, 3)
    assert (await client.patch(f"{names}/new", json={"partitions_count": 2})).status == 400
    assert (await get(client, f"{names}/new/configs/retention.ms"))["value"] == "1000"
    assert (await client.put(f"{names}/new/configs/max.message.bytes", json={"value": 500})).status == 204
    altered = {"data": [{"name": "retention.ms", "operation": "DELETE"}]}
    assert (await client.post(f"{names}/new/configs:alter", json=altered)).status == 204
    assert gateway.routes_table.topic("new").config.chosen() == {"max_message_bytes": 500}
    assert (await client.delete(f"{names}/new/configs/max.message.bytes")).status == 204
    assert gateway.routes_table.topic("new").config.chosen() == {}
    assert (await client.delete(f"{names}/new")).status == 204
    assert (await client.get(f"{names}/new")).status == 404


@pytest.mark.parametrize(
    ("path", "body", "status", "code"),
    [
        ("/v3/clusters/c1/topics", {"partitions_count": 1}, 422, 422),
        ("/v3/clusters/c1/topics", {"topic_name": "a", "partitions": 1}, 422, 422),
        ("/v3/clusters/c1/topics", {"topic_name": "a", "partitions_count": 0}, 422, 422),
        ("/v3/clusters/c1/topics", {"topic_name": "a!"}, 400, 40002),
        ("/v3/clusters/c1/topics", {"topic_name": "a", "configs": [{"name": "x", "value": 1}]}, 400, 40002),
        ("/v3/clusters/c1/topics", {"topic_name": "a", "configs": {}}, 400, 400),
        (f"{TOPIC}/configs:alter", {"data": [{"name": "retention.ms", "value": "-1"}]}, 400, 40002),
        (f"{TOPIC}/configs:alter", {"data": [{"name": "retention.ms", "value": "0"}]}, 400, 40002),
        (f"{TOPIC}/configs:alter", {"data": [{"name": "cleanup.policy", "value": "compact"}]}, 400, 40002),
        (f"{TOPIC}/configs:alter", {"data": [{"name": "retention.ms", "operation": "ADD"}]}, 400, 400),
        (f"{TOPIC}/configs:alter", {"data": "x"}, 400, 400),
    ],
)
async def test_bad_changes_are_told_why(
    client: Client, path: str, body: dict[str, object], status: int, code: int
) -> None:
    response = await client.post(path, json=body)
    assert (response.status, (await response.json())["error_code"]) == (status, code)


async def test_a_stream_of_records_has_a_receipt_each(client: Client, broker: FakeBroker) -> None:
    body = (
        b'{"partition_id":0,"key":{"type":"STRING","data":"k"},"value":{"type":"JSON","data":{"a":1}}}'
        b'{"value":{"type":"BINARY","data":"%"}}\n {"partition_id":9}{"partition_id":0,"delay_ms":5}'
    )
    response = await client.post(f"{TOPIC}/records", data=body)
    receipts = [orjson.loads(line) for line in (await response.read()).splitlines()]
    assert [receipt["error_code"] for receipt in receipts] == [200, 400, 40402, 200]
    assert (
        receipts[0].items()
        >= {
            "cluster_id": "c1",
            "topic_name": "orders",
            "partition_id": 0,
            "offset": 0,
            "key": {"type": "STRING", "size": 1},
            "value": {"type": "JSON", "size": 7},
        }.items()
    )
    assert (receipts[3]["offset"], "schedule_id" in receipts[3]) == (None, True)
    assert broker.stored_count == 2


async def test_one_record_has_one_json_document_as_its_answer(client: Client) -> None:
    response = await client.post(f"{TOPIC}/records", json={"value": {"type": "JSON", "data": 1}})
    assert (await response.json())["error_code"] == 200


async def test_a_batch_has_successes_and_failures(client: Client) -> None:
    entries = [
        {"id": "good", "partition_id": 0, "value": {"type": "STRING", "data": "x"}},
        {"id": "bad", "value": {"type": "AVRO", "data": "x"}},
        {"id": "worse", "partition_id": 9},
    ]
    response = await client.post(f"{TOPIC}/records:batch", json={"entries": entries})
    answer = await response.json()
    assert response.status == 207
    assert [(one["id"], one["offset"], one["value"]["type"]) for one in answer["successes"]] == [("good", 0, "STRING")]
    assert [(one["id"], one["error_code"]) for one in answer["failures"]] == [("bad", 400), ("worse", 40402)]


async def test_what_is_no_batch_is_refused_whole(client: Client, broker: FakeBroker) -> None:
    async def status(entries: object) -> tuple[int, int | None]:
        response = await client.post(f"{TOPIC}/records:batch", json={"entries": entries})
        return response.status, (await response.json()).get("error_code")

    for entries in ([], None, "x", [5], [{}], [{"id": ""}], [{"id": "a"}, {"id": "a"}]):
        assert await status(entries) == (422, 42208)
    assert await status([{"id": "i" * (ENTRY_ID_CHARS_MAX + 1)}]) == (422, 42208)
    assert await status([{"id": str(number)} for number in range(ENTRIES_MAX + 1)]) == (422, 42208)
    assert broker.stored_count == 0
    assert (await status([{"id": "i" * ENTRY_ID_CHARS_MAX}]))[0] == 207
    assert (await status([{"id": str(number)} for number in range(ENTRIES_MAX)]))[0] == 207
