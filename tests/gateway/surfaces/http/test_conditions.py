"""gateway/surfaces/http/conditions.py, through HTTP: sends that are stored at the offset they name, or not at all."""

from __future__ import annotations

import orjson
import pytest

from store import record_batch
from store.record_batch import Record
from tests.gateway.conftest import Client
from tests.gateway.fake_broker import FakeBroker

JSON = {"Content-Type": "application/vnd.kafka.json.v2+json"}
BATCH = {"Content-Type": "application/vnd.mq.batch"}
ONE = orjson.dumps({"records": [{"value": 1}]})
TWO = orjson.dumps({"records": [{"value": 1}, {"value": 2, "tag": "t"}]})
PATH = "/topics/orders/partitions/0"


async def send(client: Client, condition: str, data: bytes = ONE, path: str = PATH, **headers: str) -> tuple[int, int]:
    """Status and error code (0: none) of a send under a condition."""
    sent = {**JSON, **{name.replace("_", "-"): value for name, value in headers.items()}, "If-Match": condition}
    async with client.post(path, data=data, headers=sent) as response:
        answer = await response.json(content_type=None)
        return response.status, answer.get("error_code", 0)


@pytest.mark.parametrize("data", [ONE, TWO])
async def test_a_send_is_stored_at_the_end_it_names_and_nowhere_else(
    client: Client, broker: FakeBroker, data: bytes
) -> None:
    count = data.count(b"value")
    assert await send(client, '"0"', data) == (200, 0)
    assert await send(client, '"0"', data) == (412, 41250)
    assert await send(client, f'"{count + 1}"', data) == (412, 41250)
    assert await send(client, str(count), data) == (200, 0), "quotes are not needed"
    assert broker.stored_count == 2 * count


async def test_who_is_refused_is_told_where_the_partition_ends(client: Client) -> None:
    await client.post(PATH, data=TWO, headers=JSON)
    async with client.post(PATH, data=ONE, headers={**JSON, "If-Match": '"1"'}) as response:
        answer = await response.json()
    assert (answer["details"], answer["retriable"]) == ({"end_offset": 2}, False)


async def test_raw_batches_and_raw_messages(client: Client, broker: FakeBroker) -> None:
    batch = bytes(record_batch.encode([Record(None, b"1", 0), Record(None, b"2", 0)]))
    assert await send(client, '"0"', batch * 2, **BATCH) == (200, 0)
    assert await send(client, '"2"', batch, **BATCH) == (412, 41250)
    assert await send(client, '"4"', batch, **BATCH) == (200, 0)
    raw = "/mq/v1/topics/orders/messages?partition=0"
    assert await send(client, '"4"', b"x", raw) == (412, 41250)
    assert await send(client, '"6"', b"x", raw) == (201, 0)
    assert broker.stored_count == 7


@pytest.mark.parametrize("condition", ["*", '"-1"', '"a"', 'W/"1"', '"1", "2"', "", '"1', "1" * 19])
async def test_a_condition_is_one_offset(client: Client, broker: FakeBroker, condition: str) -> None:
    assert await send(client, condition) == (400, 400)
    assert broker.stored_count == 0


@pytest.mark.parametrize(
    ("path", "data"),
    [
        ("/topics/orders", ONE),
        ("/topics/orders", orjson.dumps({"records": [{"partition": 0}, {"partition": 1}]})),
        (PATH, orjson.dumps({"records": [{"value": 1, "delay_ms": 1000}]})),
        (PATH, orjson.dumps({"records": [{"value": 1, "msg_id": "m"}]})),
        ("/mq/v1/topics/orders/messages", b"x"),
        ("/mq/v1/topics/orders/messages:batch", b'{"value":1}\n'),
    ],
    ids=["no partition", "two partitions", "delayed", "msg_id", "raw without partition", "a stream"],
)
async def test_what_has_no_one_place_has_no_condition(
    client: Client, broker: FakeBroker, path: str, data: bytes
) -> None:
    assert await send(client, '"0"', data, path) == (422, 422)
    assert broker.stored_count == 0


async def test_records_may_name_their_partition_themselves(client: Client) -> None:
    data = orjson.dumps({"records": [{"partition": 1}, {"partition": 1}]})
    assert await send(client, '"0"', data, "/topics/orders") == (200, 0)
    assert await send(client, '"0"', data, "/topics/orders") == (412, 41250)
