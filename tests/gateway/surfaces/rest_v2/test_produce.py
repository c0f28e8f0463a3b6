"""gateway/surfaces/rest_v2/produce.py, through HTTP."""

from __future__ import annotations

import base64

import orjson
import pytest

from gateway.surfaces.http.context import Gateway
from store import record_batch
from store.errors import DiskFull, Overloaded, RecordTooLarge, StoreStopped
from store.record_batch import Record
from store.types import Acks, QueueKey
from tests.clock import START_MS
from tests.contract import bad_records
from tests.gateway.conftest import Client
from tests.gateway.fake_broker import FakeBroker

JSON = {"Content-Type": "application/vnd.kafka.json.v2+json"}
BATCH = {"Content-Type": "application/vnd.mq.batch"}


def body(*records: object) -> bytes:
    return orjson.dumps({"records": records})


async def test_records_are_stored_and_answered_in_the_shape_of_v2(client: Client, broker: FakeBroker) -> None:
    response = await client.post(
        "/topics/orders", data=body({"value": {"a": 1}, "partition": 1}, {"partition": 1}), headers=JSON
    )
    assert response.status == 200
    assert response.headers["Content-Type"] == "application/vnd.kafka.v2+json"
    assert response.headers["Mq-Acks"] == "flushed"
    assert await response.json(content_type=None) == {
        "offsets": [
            {"partition": 1, "offset": 0, "error_code": None, "error": None},
            {"partition": 1, "offset": 1, "error_code": None, "error": None},
        ],
        "key_schema_id": None,
        "value_schema_id": None,
    }
    (append,) = broker.appends
    assert append.json_values
    assert [record.value for record in record_batch.decode(append.batch)] == [b'{"a":1}', None]


@pytest.mark.parametrize("path", ["/topics/orders/partitions/3", "/topics/orders/partitions/3/"])
async def test_the_partition_form(client: Client, broker: FakeBroker, path: str) -> None:
    response = await client.post(path, data=body({"key": "a", "value": 1}), headers=JSON)
    assert response.status == 200
    assert broker.appends[0].queue == QueueKey(16, 3)


@pytest.mark.parametrize(
    ("content_type", "query", "value", "stored"),
    [
        ("application/json", "", base64.b64encode(b"\x00\xff").decode(), b"\x00\xff"),
        ("application/vnd.kafka.v2+json", "", "AP8=", b"\x00\xff"),
        ("application/vnd.kafka.text.v2+json", "", "ä", "ä".encode()),
        ("application/json", "?format=json", {"a": 1}, b'{"a":1}'),
        ("application/json", "?format=text", "ä", "ä".encode()),
        ("application/vnd.kafka.json.v2+json", "?format=binary", "AP8=", b"\x00\xff"),
    ],
)
async def test_the_format_is_the_content_types_unless_the_query_names_one(
    client: Client, broker: FakeBroker, content_type: str, query: str, value: object, stored: bytes
) -> None:
    headers = {"Content-Type": content_type}
    response = await client.post(f"/topics/orders{query}", data=body({"value": value}), headers=headers)
    assert response.status == 200, await response.text()
    assert next(record_batch.decode(broker.appends[0].batch)).value == stored


async def test_a_base64_error_tells_how_to_send_json(client: Client) -> None:
    headers = {"Content-Type": "application/json"}
    response = await client.post("/topics/orders", data=body({"value": "plain text"}), headers=headers)
    answer = await response.json()
    assert (response.status, answer["error_code"]) == (400, 400)
    assert 'data="plain text" is not a valid base64 string' in answer["message"]
    assert "?format=json" in answer["message"]


async def test_a_delayed_record_has_a_schedule_id_instead_of_an_offset(client: Client, broker: FakeBroker) -> None:
    response = await client.post("/topics/orders", data=body({"value": 1, "delay_ms": 90_000}), headers=JSON)
    (item,) = (await response.json(content_type=None))["offsets"]
    assert item["offset"] is None
    assert item["deliver_at"] == START_MS + 90_000
    assert item["schedule_id"].startswith("s")
    assert broker.schedules[0].delays[0].due_ms == START_MS + 90_000


@pytest.mark.parametrize(
    ("query", "headers"),
    [
        ("?delay_ms=5000", {}),
        (f"?deliver_at={START_MS + 5000}", {}),
        ("?deliver_at=2023-11-14T22:13:25Z", {}),
        ("", {"Mq-Delay-Ms": "5000"}),
        ("", {"mq-deliver-at": str(START_MS + 5000)}),
    ],
)
async def test_a_request_delays_all_records_that_name_no_delay(
    client: Client, broker: FakeBroker, query: str, headers: dict[str, str]
) -> None:
    """Also among bad ones, of plain records alone, and with a partition."""
    sent = body({"value": 1}, {"key": "a", "value": 2}, {"value": 3, "delay_ms": 9000}, {"value": 4, "delay_ms": 0})
    response = await client.post(f"/topics/orders{query}", data=sent, headers={**JSON, **headers})
    offsets = (await response.json(content_type=None))["offsets"]
    delays = [item["deliver_at"] - START_MS if "deliver_at" in item else None for item in offsets]
    assert delays == [5000, 5000, 9000, None]
    with bad_records():
        response = await client.post(
            f"/topics/orders/partitions/2{query}", data=body({"value": 1}, {"tag": "|"}), headers={**JSON, **headers}
        )
    good, bad = (await response.json(content_type=None))["offsets"]
    assert (good["partition"], good["deliver_at"], bad["error_code"]) == (2, START_MS + 5000, 42251)
    response = await client.post(f"/topics/orders{query}", data=body({}, {}), headers={**JSON, **headers})
    assert all("schedule_id" in item for item in (await response.json(content_type=None))["offsets"])
    assert [len(append.delays) for append in broker.schedules] == [3, 1, 2]


@pytest.mark.parametrize(
    ("query", "headers", "status", "code"),
    [
        ("?delay_ms=-1", {}, 422, 42250),
        ("?delay_ms=soon", {}, 400, 400),
        ("?deliver_at=soon", {}, 400, 400),
        (f"?delay_ms={365 * 86_400_000 + 1}", {}, 422, 42250),
        ("?delay_ms=5&deliver_at=5", {}, 422, 42250),
        ("?delay_ms=5", {"Mq-Deliver-At": "5"}, 422, 42250),
        ("?delay_ms=5", {"Mq-Delay-Ms": "5"}, 400, 400),
        ("?delay=5", {}, 422, 422),
        ("?dealy_ms=5", {}, 422, 422),
        ("", {"Mq-Delay-Ms": ""}, 400, 400),
        ("?delay_ms=5", {"If-Match": '"0"'}, 422, 422),
    ],
)
@pytest.mark.parametrize("kind", ["json", "batch", "raw"])
async def test_a_delay_that_cannot_be_is_refused_and_never_ignored(
    client: Client, broker: FakeBroker, kind: str, query: str, headers: dict[str, str], status: int, code: int
) -> None:
    path = "/mq/v1/topics/orders/messages" if kind == "raw" else "/topics/orders/partitions/0"
    if kind == "raw" and "If-Match" in headers:
        query += "&partition=0"
    data = body({"value": 1}) if kind == "json" else bytes(record_batch.encode([Record(b"k", b"v", 5)]))
    response = await client.post(
        f"{path}{query}", data=data, headers={**(JSON if kind == "json" else BATCH), **headers}
    )
    answer = await response.json()
    assert (response.status, answer["error_code"]) == (status, code), answer
    assert broker.stored_count == 0


async def test_async_is_taken_and_not_needed(client: Client, broker: FakeBroker) -> None:
    response = await client.post("/topics/orders?async=true", data=body({"value": 1}), headers=JSON)
    assert (response.status, response.headers["Mq-Acks"], broker.stored_count) == (200, "flushed", 1)


@pytest.mark.parametrize(("query", "headers"), [("?delay_ms=5000", {}), ("", {"Mq-Deliver-At": str(START_MS + 5000)})])
async def test_raw_batches_with_a_delay_are_scheduled_record_by_record(
    client: Client, broker: FakeBroker, query: str, headers: dict[str, str]
) -> None:
    """By their keys, with their tags and times; an answer for each. A time that is past means at once."""
    tagged = Record(b"k", b"2", 6, [("mq-tag", b"paid"), ("a", b"b")])
    first = record_batch.encode([Record(b"k", b"1", 5), tagged])
    second = record_batch.compressed(record_batch.encode([Record(None, None, 7, [("mq-tag", b"\xff")])]))
    data = bytes(first) + bytes(second)
    response = await client.post(f"/topics/orders{query}", data=data, headers={**BATCH, **headers})
    offsets = (await response.json(content_type=None))["offsets"]
    assert response.status == 200
    assert [(item["offset"], item["deliver_at"]) for item in offsets] == [(None, START_MS + 5000)] * 3
    assert len({item["schedule_id"] for item in offsets}) == 3
    assert offsets[0]["partition"] == offsets[1]["partition"]
    [append] = broker.schedules
    records = list(record_batch.decode(append.batch))
    assert [(record.key, record.value, record.timestamp) for record in records] == [
        (b"k", b"1", 5),
        (b"k", b"2", 6),
        (None, None, 7),
    ]
    assert sorted(records[1].headers) == sorted(tagged.headers)
    assert records[2].headers == [("mq-tag", b"\xff")]
    assert [delay.due_ms for delay in append.delays] == [START_MS + 5000] * 3
    assert [bool(tag_hash) for tag_hash in append.tag_hashes] == [False, True, False]
    response = await client.post("/topics/orders/partitions/1?deliver_at=5", data=data, headers=BATCH)
    offsets = (await response.json(content_type=None))["offsets"]
    assert [(item["partition"], item["offset"]) for item in offsets] == [(1, 0), (1, 1), (1, 2)]


async def test_so_many_records_of_raw_batches_can_be_delayed_and_not_one_more(
    client: Client, broker: FakeBroker, gateway: Gateway
) -> None:
    count = gateway.limits.records_per_request_max
    for extra, status in ((0, 200), (1, 422)):
        data = bytes(record_batch.encode([Record(None, b"v", 5)] * (count + extra)))
        response = await client.post("/topics/orders?delay_ms=5", data=data, headers=BATCH)
        assert response.status == status
    assert [len(append.delays) for append in broker.schedules] == [count]


@pytest.mark.parametrize(
    "path",
    [
        "/mq/v1/topics/orders/messages:batch",
        "/v3/clusters/{}/topics/orders/records",
        "/v3/clusters/{}/topics/orders/records:batch",
    ],
)
async def test_streams_and_batches_of_entries_take_a_delay_only_in_their_records(
    client: Client, broker: FakeBroker, path: str
) -> None:
    cluster = (await (await client.get("/v3/clusters")).json())["data"][0]["cluster_id"]
    for query, headers in (("?delay_ms=5", {}), ("", {"Mq-Delay-Ms": "5"})):
        sent = {"Content-Type": "application/json", **headers}
        response = await client.post(path.format(cluster) + query, data=b"{}", headers=sent)
        assert (response.status, (await response.json())["error_code"]) == (422, 422)
    assert broker.stored_count == 0


@pytest.mark.parametrize(
    ("query", "level"), [("", Acks.FLUSHED), ("?acks=written", Acks.WRITTEN), ("?acks=flushed", Acks.FLUSHED)]
)
async def test_the_level_can_be_chosen_and_is_named(
    client: Client, broker: FakeBroker, query: str, level: Acks
) -> None:
    response = await client.post(f"/topics/orders{query}", data=body({"value": 1}), headers=JSON)
    assert broker.acks == [level]
    assert response.headers["Mq-Acks"] == level.name.lower()


async def test_raw_batches(client: Client, broker: FakeBroker) -> None:
    batches = [bytes(record_batch.encode([Record(b"k", b"v", 5)] * count)) for count in (2, 3)]
    response = await client.post("/topics/orders/partitions/1", data=b"".join(batches), headers=BATCH)
    assert await response.json(content_type=None) == {
        "offsets": [
            {"partition": 1, "offset": 0, "record_count": 2},
            {"partition": 1, "offset": 2, "record_count": 3},
        ]
    }
    assert response.headers["Mq-Acks"] == "flushed"
    assert [bytes(append.batch) for append in broker.appends] == batches


@pytest.mark.parametrize(
    ("path", "headers", "data", "status", "code"),
    [
        ("/topics/nope", JSON, body({"value": 1}), 404, 40401),
        ("/topics/__timer", JSON, body({"value": 1}), 404, 40401),
        ("/topics/nope", BATCH, b"", 404, 40401),
        ("/topics/nope", JSON, b"{", 404, 40401),
        ("/topics/orders/partitions/4", JSON, body({"value": 1}), 404, 40402),
        ("/topics/orders/partitions/4", BATCH, b"x" * 61, 404, 40402),
        ("/topics/orders/partitions/x", JSON, body({"value": 1}), 404, 404),
        ("/topics/orders/partitions/-1", JSON, body({"value": 1}), 404, 404),
        ("/topics/orders", JSON, body({"value": 1, "partition": 4}), 404, 40402),
        ("/topics/orders", JSON, body({"value": 1, "partition": -1}), 404, 40402),
        ("/topics/orders", JSON, b"", 400, 400),
        ("/topics/orders", JSON, b"{", 400, 400),
        ("/topics/orders", JSON, b'{"records":1}', 400, 400),
        ("/topics/orders", JSON, b'{"records":[]}', 422, 422),
        ("/topics/orders", JSON, b"{}", 422, 422),
        ("/topics/orders", JSON, body({"value": 1, "dealy_ms": 5}), 422, 422),
        ("/topics/orders", JSON, body(*[{}] * 10_001), 422, 42208),
        ("/topics/orders", JSON, body({"value": 1}, {"value": 1, "dealy_ms": 5}), 422, 422),
        ("/topics/orders", JSON, body({"value": 1}, 1), 400, 400),
        ("/topics/orders", JSON, body({"value": 1, "delay_ms": -1}), 422, 42250),
        ("/topics/orders", JSON, body({"value": 1, "delay_ms": 365 * 86_400_000 + 1}), 422, 42250),
        ("/topics/orders", JSON, body({"value": 1, "delay_ms": -1}, {"value": 1, "partition": 4}), 422, 42250),
        ("/topics/orders/partitions/4", JSON, body({"value": 1}, {"value": 1, "tag": "|"}), 404, 40402),
        ("/topics/orders", {**JSON, "Idempotency-Key": "k"}, body({"value": 1}, {"partition": 4}), 404, 40402),
        ("/topics/orders", {**JSON, "Mq-Producer": "p", "Mq-Sequence": "1"}, body({}, {"partition": 4}), 404, 40402),
        ("/topics/orders/partitions/0", {**JSON, "If-Match": '"0"'}, body({}, {"tag": "|"}), 422, 42251),
        ("/topics/orders", JSON, b'{"records":[{"value":1,"delay_ms":1e400}]}', 400, 400),
        ("/topics/orders", JSON, b'{"records":[{"value":1,"delay_ms":NaN}]}', 400, 400),
        ("/topics/orders", JSON, body({"value": 1, "deliver_at": "soon"}), 422, 42250),
        ("/topics/orders", JSON, body({"value": 1, "tag": "a|b"}), 422, 42251),
        ("/topics/orders", JSON, body({"key": "k" * 1025}), 422, 42251),
        ("/topics/orders", JSON, body({"value": "v" * (4 * 1024 * 1024 - 1)}), 413, 41350),
        ("/topics/orders?acks=none", JSON, body({"value": 1}), 422, 422),
        ("/topics/orders?format=avro", JSON, body({"value": 1}), 422, 42202),
        ("/topics/orders", {"Content-Type": "application/vnd.kafka.avro.v2+json"}, b"{}", 422, 42202),
        ("/topics/orders?acks=written&acks=flushed", JSON, body({"value": 1}), 400, 400),
        ("/topics/orders", BATCH, b"", 422, 422),
        ("/topics/orders", BATCH, b"x" * 100, 400, 400),
        ("/topics/orders", {"Content-Type": "text/plain"}, body({"value": 1}), 415, 415),
        ("/topics/orders", {**JSON, "Accept": "text/html"}, body({"value": 1}), 406, 406),
        ("/topics/orders", {**JSON, "Content-Encoding": "br"}, b"x", 415, 415),
        ("/topics/orders", {**JSON, "Content-Encoding": "gzip"}, b"x", 400, 400),
    ],
)  # fmt: skip
async def test_bad_requests_are_told_why_and_store_nothing(
    client: Client, broker: FakeBroker, path: str, headers: dict[str, str], data: bytes, status: int, code: int
) -> None:
    response = await client.post(path, data=data, headers=headers)
    answer = await response.json()
    assert (response.status, answer["error_code"]) == (status, code), answer
    assert answer["request_id"] == response.headers["X-Request-Id"]
    assert answer["retriable"] is False
    assert broker.stored_count == 0


BAD = (
    ({"value": 1, "partition": 4}, 40402),
    ({"value": 1, "partition": -1}, 40402),
    ({"value": 1, "partition": "a"}, 400),
    ({"value": "v" * 101}, 41350),
    ({"key": "k" * 1025}, 42251),
    ({"value": 1, "tag": "a|b"}, 42251),
    ({"value": 1, "headers": [{"key": "mq-tag", "text": "x"}]}, 42251),
    ({"value": 1, "headers": [{"key": "a", "value": "&"}]}, 400),
    ({"value": 1, "delay_ms": -1}, 42250),
    ({"value": 1, "deliver_at": "soon"}, 42250),
    ({"value": 1, "delay_ms": 365 * 86_400_000 + 1}, 42250),
    ({"value": 1, "timestamp": -1}, 422),
    ({"value": 1, "msg_id": ""}, 42251),
)


async def test_a_bad_record_fails_in_its_own_place_and_the_others_are_stored(
    client: Client, broker: FakeBroker
) -> None:
    """Among two good ones each, one of them delayed. A request of bad ones alone is refused, and says all of it."""
    await client.put("/mq/v1/topics/small", json={"partitions": 4, "max_message_bytes": 100})
    response = await client.post("/topics/small", data=body(*[record for record, _ in BAD]), headers=JSON)
    answer = await response.json()
    codes = [code for _, code in BAD]
    assert (response.status, [item["error_code"] for item in answer["details"]["offsets"]]) == (404, codes)
    assert broker.stored_count == 0
    sent: list[object] = []
    for number, (record, _) in enumerate(BAD):
        sent += [{"key": "a", "value": number}, record, {"value": number, "partition": 3, "delay_ms": 5}]
    with bad_records():
        response = await client.post("/topics/small", data=body(*sent), headers=JSON)
    offsets = (await response.json(content_type=None))["offsets"]
    assert (response.status, response.headers["Mq-Acks"]) == (200, "flushed")
    assert [item["offset"] for item in offsets[0::3]] == list(range(len(BAD)))
    assert len({item["schedule_id"] for item in offsets[2::3]}) == len(BAD)
    assert all(item["error_code"] is item["error"] is None for item in offsets[0::3] + offsets[2::3])
    for item, code in zip(offsets[1::3], codes, strict=True):
        assert (item["partition"], item["offset"], item["error_code"]) == (None, None, code)
        assert item["error"]
    assert broker.stored_count == 2 * len(BAD)


@pytest.mark.parametrize("fmt", ["binary", "text"])
async def test_a_value_that_is_not_in_the_format_fails_alone(client: Client, broker: FakeBroker, fmt: str) -> None:
    headers = {"Content-Type": f"application/vnd.kafka.{fmt}.v2+json", "traceparent": f"00-{'1' * 32}-{'1' * 16}-01"}
    with bad_records():
        response = await client.post("/topics/orders", data=body({"value": "AA=="}, {"value": 1}), headers=headers)
    offsets = (await response.json(content_type=None))["offsets"]
    assert [item["error_code"] for item in offsets] == [None, 400]
    (append,) = broker.appends
    assert [name for name, _ in next(record_batch.decode(append.batch)).headers] == ["traceparent"]


async def test_an_error_of_the_store_still_fails_the_whole_request(client: Client, broker: FakeBroker) -> None:
    broker.error = DiskFull("x")
    response = await client.post("/topics/orders", data=body({"value": 1}, {"partition": 9}), headers=JSON)
    assert response.status == 507


async def test_a_send_without_content_type_is_refused(client: Client, broker: FakeBroker) -> None:
    response = await client.post("/topics/orders", data=body({"value": 1}), skip_auto_headers=["Content-Type"])
    assert response.status == 415
    assert broker.stored_count == 0


async def test_limits_at_n(client: Client) -> None:
    for data in (
        body(*[{}] * 10_000),
        body({"value": "v" * (4 * 1024 * 1024 - 2)}),
        body({"key": "k" * 1022}),
        body({"value": 1, "delay_ms": 365 * 86_400_000}),
    ):
        response = await client.post("/topics/orders", data=data, headers=JSON)
        assert response.status == 200, await response.text()


@pytest.mark.parametrize("chunked", [False, True])
async def test_the_body_limit_holds_at_n_and_n_plus_1(client: Client, gateway: Gateway, chunked: bool) -> None:
    limit = gateway.limits.body_bytes_max

    async def parts(size: int):  # type: ignore[no-untyped-def]
        for start in range(0, size, 1 << 20):
            yield (
                (b'{"records":[{"value":1}]}' + b" " * (1 << 20))[: min(1 << 20, size - start)]
                if start == 0
                else (b" " * min(1 << 20, size - start))
            )

    for size, status in ((limit, 200), (limit + 1, 413)):
        data = parts(size) if chunked else b"".join([part async for part in parts(size)])
        response = await client.post("/topics/orders", data=data, headers=JSON)
        assert response.status == status
        assert (await response.json(content_type=None)).get("error_code") == (413 if status == 413 else None)


@pytest.mark.parametrize(
    ("error", "status", "code", "retry_after"),
    [
        (StoreStopped("x"), 503, 50350, None),
        (DiskFull("x"), 507, 50750, "5"),
        (Overloaded("x"), 503, 50351, "1"),
        (RecordTooLarge("x"), 413, 41350, None),
    ],
)
async def test_store_errors_have_their_answers(
    client: Client, broker: FakeBroker, error: Exception, status: int, code: int, retry_after: str | None
) -> None:
    broker.error = error
    response = await client.post("/topics/orders", data=body({"value": 1}), headers=JSON)
    answer = await response.json()
    assert (response.status, answer["error_code"]) == (status, code)
    assert response.headers.get("Retry-After") == retry_after
    assert answer["retriable"] is (status != 413)


async def test_the_connection_is_usable_after_a_refusal(client: Client, broker: FakeBroker) -> None:
    for data, status in ((b"{", 400), (body({"value": 1}), 200), (b"[]", 400), (body({"value": 1}), 200)):
        response = await client.post("/topics/orders", data=data, headers=JSON)
        await response.read()
        assert response.status == status
    assert broker.stored_count == 2


@pytest.mark.parametrize("path", ["/topics/chosen", "/mq/v1/topics/chosen/messages?key=a"])
async def test_a_topic_names_its_selector_and_a_request_another(client: Client, broker: FakeBroker, path: str) -> None:
    """By the key where nothing is said; in turn where the topic says so; a request has the last word."""

    async def partitions(query: str = "") -> list[int]:
        broker.appends.clear()
        for _ in range(4):
            data = body({"key": "a", "value": 1}) if path == "/topics/chosen" else b"x"
            at = path + (query and ("&" if "?" in path else "?") + query)
            assert (await client.post(at, data=data, headers=JSON)).status in (200, 201)
        return [append.queue.queue_id for append in broker.appends]

    await client.put("/mq/v1/topics/chosen", json={"partitions": 4})
    by_key = await partitions()
    assert len(set(by_key)) == 1
    assert await partitions("selector=key") == by_key
    assert sorted(await partitions("selector=round_robin")) == [0, 1, 2, 3]
    async with client.patch("/mq/v1/topics/chosen", json={"selector": "round_robin"}) as response:
        assert (await response.json())["selector"] == "round_robin"
    assert sorted(await partitions()) == [0, 1, 2, 3]
    assert await partitions("selector=key") == by_key
    assert (await client.patch("/mq/v1/topics/chosen", json={"selector": None})).status == 200
    assert await partitions() == by_key
    for wrong in ("fastest", 1, ""):
        assert (await client.patch("/mq/v1/topics/chosen", json={"selector": wrong})).status == 422


async def test_batches_go_by_the_topics_selector_too(client: Client, broker: FakeBroker) -> None:
    await client.put("/mq/v1/topics/chosen", json={"partitions": 4, "selector": "round_robin"})
    batch = bytes(record_batch.encode([Record(b"a", b"v", 0)]))
    for _ in range(2):
        assert (await client.post("/topics/chosen", data=batch * 2, headers=BATCH)).status == 200
    many = body(*({"key": "a", "value": number} for number in range(3)))
    assert (await client.post("/topics/chosen", data=many, headers=JSON)).status == 200
    assert [append.queue.queue_id for append in broker.appends] == [0, 1, 2, 3, 0], "a request's records stay one batch"


async def test_a_request_has_so_many_raw_batches_and_no_more(
    client: Client, gateway: Gateway, broker: FakeBroker
) -> None:
    count = gateway.limits.records_per_request_max
    batch = bytes(record_batch.encode([Record(None, b"1", 0)]))
    response = await client.post("/topics/orders/partitions/0", data=batch * (count + 1), headers=BATCH)
    assert (response.status, (await response.json())["error_code"]) == (422, 42208)
    assert not broker.appends
    response = await client.post("/topics/orders/partitions/0", data=batch * count, headers=BATCH)
    assert response.status == 200
    assert sum(append.record_count for append in broker.appends) == count
