"""gateway/surfaces/native/raw.py, acks.py and tracing.py, through HTTP: the same bytes in and out."""

from __future__ import annotations

import asyncio
from base64 import b64encode

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from multidict import CIMultiDict

from gateway.codec.records import ProduceRecord
from gateway.surfaces.http.context import Gateway
from gateway.surfaces.http.send_options import acks_named, name_of_acks
from gateway.surfaces.http.tracing import TRACESTATE_CHARS_MAX, traced
from gateway.surfaces.native.raw import add_record_headers
from store import record_batch
from store.limits import HEADER_COUNT_MAX, HEADERS_BYTES_MAX, KEY_BYTES_MAX, RECORD_BYTES_MAX
from store.types import Acks
from tests.clock import START_MS
from tests.gateway.conftest import Client
from tests.gateway.fake_broker import FakeBroker

SEND = "/mq/v1/topics/orders/messages"
READ = "/mq/v1/topics/orders/partitions/0/messages"
PARENT = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


def stored(broker: FakeBroker) -> list[record_batch.DecodedRecord]:
    return [record for append in broker.appends for record in record_batch.decode(append.batch)]


async def test_a_body_of_any_type_comes_back_as_it_was(client: Client) -> None:
    body = bytes(range(256))
    sent = await client.post(SEND + "?partition=0", data=body, headers={"Content-Type": "image/x-odd; a=b"})
    receipt = {"topic": "orders", "partition": 0, "offset": 0, "message_id": "16-0-0", "timestamp": START_MS}
    assert (sent.status, await sent.json(), sent.headers["Mq-Acks"]) == (201, receipt, "flushed")
    read = await client.get(f"{READ}/0")
    assert (read.status, await read.read()) == (200, body)
    expected = {
        "Content-Type": "image/x-odd; a=b",
        "Mq-Offset": "0",
        "Mq-Partition": "0",
        "Mq-Message-Id": "16-0-0",
        "Mq-Timestamp": str(START_MS),
        "Mq-Next-Offset": "1",
        "Mq-End-Offset": "1",
        "Mq-Epoch": "16",
        "X-Content-Type-Options": "nosniff",
    }
    assert expected.items() <= dict(read.headers).items()
    assert "sandbox" in read.headers["Content-Security-Policy"]
    assert "Mq-Key" not in read.headers


async def test_what_a_record_has_besides_its_value(client: Client, broker: FakeBroker) -> None:
    query = "?partition=0&key=%C3%A4%2B&tag=paid&timestamp=2026-01-01T00:00:00Z"
    headers = {"Mq-Header-Trace": "a%00b c", "traceparent": PARENT, "tracestate": "v=1"}
    sent = await client.post(SEND + query, data=b"x", headers=headers)
    assert sent.status == 201
    (record,) = stored(broker)
    assert (record.key, record.value, record.timestamp) == ("ä+".encode(), b"x", 1767225600000)
    assert ("trace", b"a\0b c") in record.headers
    assert ("traceparent", PARENT.encode()) in record.headers
    read = await client.get(f"{READ}/0")
    expected = {
        "Mq-Key": "%C3%A4+",
        "Mq-Tag": "paid",
        "Mq-Timestamp": "1767225600000",
        "traceparent": PARENT,
        "tracestate": "v=1",
    }
    assert expected.items() <= dict(read.headers).items()
    assert read.headers["Mq-Header-trace"] == "a%00b c"


async def test_a_delayed_message_is_accepted_and_has_a_schedule(client: Client, broker: FakeBroker) -> None:
    sent = await client.post(SEND + "?delay_ms=500&partition=2", data=b"x")
    receipt = await sent.json()
    assert sent.status == 202
    assert (receipt["partition"], receipt["offset"], receipt["deliver_at"]) == (2, None, START_MS + 500)
    assert receipt["schedule_id"].startswith("s")
    assert "message_id" not in receipt
    assert len(broker.schedules) == 1


async def test_a_tombstone_has_no_body_and_comes_back_as_one(client: Client) -> None:
    assert (await client.post(SEND + "?partition=0&tombstone=true")).status == 201
    read = await client.get(f"{READ}/0")
    assert (await read.read(), read.headers["Mq-Tombstone"]) == (b"", "true")
    assert (await client.post(SEND + "?partition=0")).status == 201  # an empty value is no tombstone
    assert "Mq-Tombstone" not in (await client.get(f"{READ}/1")).headers
    assert (await client.post(SEND + "?tombstone=true", data=b"x")).status == 422


@pytest.mark.parametrize(
    ("query", "headers", "status", "code"),
    [
        ("?dealy_ms=5", {}, 422, 422),
        ("?delay_ms=-5", {}, 422, 42250),
        ("?delay_ms=x", {}, 400, 400),
        ("?delay_ms=5&deliver_at=5", {}, 422, 42250),
        ("?delay_ms=99999999999999", {}, 422, 42250),
        ("?partition=4", {}, 404, 40402),
        ("?partition=-1", {}, 404, 40402),
        ("?tag=", {}, 422, 42251),
        ("?tag=a%7Cb", {}, 422, 42251),
        ("?acks=none", {}, 422, 422),
        ("?tombstone=maybe", {}, 422, 422),
        ("?timestamp=soon", {}, 400, 400),
        ("", {"Mq-Header-mq-tag": "x"}, 422, 42251),
        ("", {"Mq-Header-%0A": "x"}, 422, 42251),
        ("", {"Accept": "text/html"}, 406, 406),
        ("", {"ce-specversion": "1.0"}, 400, 400),
        ("", {"Content-Type": "application/cloudevents+json"}, 400, 400),
    ],
)
async def test_bad_sends_are_told_why_and_store_nothing(
    client: Client, broker: FakeBroker, query: str, headers: dict[str, str], status: int, code: int
) -> None:
    response = await client.post(SEND + query, data=b"x", headers=headers)
    assert (response.status, (await response.json())["error_code"]) == (status, code)
    assert broker.stored_count == 0


async def test_keys_headers_and_records_have_their_limits(client: Client, broker: FakeBroker) -> None:
    async def status(query: str = "", size: int = 1, headers: dict[str, str] | None = None) -> int:
        sent = {"Content-Type": "a", **(headers or {})}
        return (await client.post(SEND + query, data=b"x" * size, headers=sent)).status

    assert await status("?key=" + "k" * KEY_BYTES_MAX) == 201
    assert await status("?key=" + "k" * (KEY_BYTES_MAX + 1)) == 422
    own = len("content-type") + len("a")
    assert await status(size=RECORD_BYTES_MAX - own) == 201
    assert await status(size=RECORD_BYTES_MAX - own + 1) == 413
    many = {f"Mq-Header-h{number}": "" for number in range(HEADER_COUNT_MAX - 1)}
    assert await status(headers=many) == 201
    assert await status(headers={**many, "Mq-Header-one-more": ""}) == 422
    large = {f"Mq-Header-h{number}": "x" * 4096 for number in range(3)}
    left = HEADERS_BYTES_MAX - own - 3 * 4098 - len("last")
    assert await status(headers={**large, "Mq-Header-last": "x" * left}) == 201
    assert await status(headers={**large, "Mq-Header-last": "x" * (left + 1)}) == 422


async def test_reading_at_the_end_waits_and_then_has_nothing(client: Client, broker: FakeBroker) -> None:
    empty = await client.get(f"{READ}/0")
    assert (empty.status, empty.headers["Mq-Next-Offset"]) == (204, "0")
    waiting = asyncio.create_task(client.get(f"{READ}/0?timeout=20000"))
    await broker.waiting.wait()
    await client.post(SEND + "?partition=0", data=b"now")
    assert await (await waiting).read() == b"now"
    assert await (await client.get(f"{READ}/latest")).read() == b""
    assert await (await client.get(f"{READ}/-1")).read() == b"now"


async def test_reading_beyond_the_bounds_is_told_the_bounds(client: Client) -> None:
    response = await client.get(f"{READ}/1")
    assert response.status == 416
    assert (await response.json())["details"] == {"beginning_offset": 0, "end_offset": 0}
    assert (await client.get(f"{READ}/first")).status == 422
    assert (await client.get("/mq/v1/topics/orders/partitions/4/messages/0")).status == 404
    assert (await client.get("/mq/v1/topics/none/partitions/0/messages/0")).status == 404


async def test_a_drained_server_waits_no_more(client: Client, gateway: Gateway) -> None:
    gateway.draining.set()
    assert (await client.get(f"{READ}/0?timeout=60000")).status == 204


async def test_cloud_events_in_binary_mode(client: Client, broker: FakeBroker) -> None:
    headers = {
        "ce-id": "1",
        "ce-source": "/a",
        "ce-specversion": "1.0",
        "ce-type": "t",
        "ce-partitionkey": "pk",
        "Content-Type": "application/json",
    }
    assert (await client.post(SEND + "?partition=0", data=b'{"a":1}', headers=headers)).status == 201
    (record,) = stored(broker)
    assert record.key == b"pk"
    assert ("ce_id", b"1") in record.headers
    read = await client.get(f"{READ}/0")
    assert headers.items() <= dict(read.headers).items()


async def test_cloud_events_in_structured_mode(client: Client, broker: FakeBroker) -> None:
    event = b'{"id":"1","source":"/a","specversion":"1.0","type":"t",  "partitionkey":"pk","data":{}}'
    headers = {"Content-Type": "application/cloudevents+json; charset=utf-8"}
    assert (await client.post(SEND + "?partition=0", data=event, headers=headers)).status == 201
    assert stored(broker)[0].key == b"pk"
    read = await client.get(f"{READ}/0")
    assert (await read.read(), read.headers["Content-Type"]) == (event, headers["Content-Type"])


async def test_a_key_in_the_query_wins_over_the_events(client: Client, broker: FakeBroker) -> None:
    headers = {"ce-id": "1", "ce-source": "/a", "ce-specversion": "1.0", "ce-type": "t", "ce-partitionkey": "pk"}
    await client.post(SEND + "?partition=0&key=mine", data=b"", headers=headers)
    assert stored(broker)[0].key == b"mine"


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(st.tuples(st.text(max_size=20), st.one_of(st.none(), st.binary(max_size=30)))))
def test_no_header_of_a_record_breaks_an_answer(headers: list[tuple[str, bytes | None]]) -> None:
    answer: CIMultiDict[str] = CIMultiDict()
    clean = [(name.encode("utf-8", "replace").decode(), value) for name, value in headers]
    add_record_headers(answer, [*clean, ("content-type", b"a\r\nX-Evil: 1"), ("mq-tag", b"\r\n")])
    for name, value in answer.items():
        assert name.isascii()
        assert "\r" not in name + value
        assert "\n" not in name + value
        assert value.isascii()
    assert "Content-Type" not in answer
    assert answer["Mq-Tag"] == "%0D%0A"


async def test_a_repeat_with_a_key_says_so(client: Client) -> None:
    headers = {"Idempotency-Key": '"k1"'}
    assert "Idempotent-Replayed" not in (await client.post(SEND, data=b"x", headers=headers)).headers


async def test_a_trace_of_a_send_in_json_comes_back_with_its_records(client: Client) -> None:
    sent = {"records": [{"value": 1, "partition": 0}, {"value": 2, "partition": 0}]}
    kind = {"Content-Type": "application/vnd.kafka.json.v2+json", "traceparent": PARENT}
    assert (await client.post("/topics/orders", json=sent, headers=kind)).status == 200
    for offset in (0, 1):
        assert (await client.get(f"{READ}/{offset}")).headers["traceparent"] == PARENT
    (first, _) = await (await client.get("/topics/orders/partitions/0/records")).json(content_type=None)
    assert first["headers"] == [{"key": "traceparent", "value": b64encode(PARENT.encode()).decode()}]


@pytest.mark.parametrize(
    "parent",
    [
        "ff-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01",
        "00-00000000000000000000000000000000-b7ad6b7169203331-01",
        "00-0af7651916cd43dd8448eb211c80319c-0000000000000000-01",
        "00-0AF7651916CD43DD8448EB211C80319C-b7ad6b7169203331-01",
        "hello",
    ],
)
async def test_a_malformed_trace_is_dropped(client: Client, broker: FakeBroker, parent: str) -> None:
    assert (await client.post(SEND, data=b"x", headers={"traceparent": parent, "tracestate": "a=1"})).status == 201
    assert {name for name, _ in stored(broker)[0].headers} == {"content-type"}


async def test_a_trace_state_has_a_limit(client: Client, broker: FakeBroker) -> None:
    for size in (TRACESTATE_CHARS_MAX, TRACESTATE_CHARS_MAX + 1):
        await client.post(SEND, data=b"x", headers={"traceparent": PARENT, "tracestate": "x" * size})
    assert [any(name == "tracestate" for name, _ in record.headers) for record in stored(broker)] == [True, False]


def test_a_record_with_a_trace_of_its_own_keeps_it() -> None:
    own = ProduceRecord(None, b"", [("Traceparent", b"mine")], None, None, None, None, None)
    assert traced(own, [("traceparent", b"theirs")]) is own


def test_acks_have_two_names() -> None:
    assert [acks_named(name) for name in (None, "written", "flushed")] == [None, Acks.WRITTEN, Acks.FLUSHED]
    assert [name_of_acks(level) for level in Acks] == ["written", "flushed"]
