"""gateway/surfaces/native/ndjson.py and produce_stream.py, through HTTP: a receipt a line, in order, whatever
happens."""

from __future__ import annotations

import asyncio
import gzip
from collections.abc import AsyncIterator
from unittest.mock import Mock

import aiohttp
import orjson
import pytest

from gateway.codec.native import DOCUMENT_BYTES_MAX
from gateway.surfaces.http.context import Gateway
from gateway.surfaces.http.produce_stream import GROUP_RECORDS_MAX
from store import record_batch
from store.errors import DiskFull
from tests.clock import START_MS
from tests.gateway.conftest import Client
from tests.gateway.fake_broker import FakeBroker

PATH = "/mq/v1/topics/orders/messages:batch"
LINES = {"Content-Type": "application/x-ndjson"}


async def send(
    client: Client, body: bytes | AsyncIterator[bytes], query: str = "", **headers: str
) -> tuple[int, list[dict[str, object]]]:
    response = await client.post(PATH + query, data=body, headers={**LINES, **headers})
    return response.status, [orjson.loads(line) for line in (await response.read()).splitlines()]


async def test_a_receipt_for_each_line(client: Client, broker: FakeBroker) -> None:
    body = b'{"value":1,"partition":0}\n\n{"value_b64":"AAE=","partition":1}\r\n{"value":3,"partition":0,"delay_ms":5}'
    status, receipts = await send(client, body)
    assert status == 200
    assert receipts[:2] == [
        {"i": 0, "partition": 0, "offset": 0, "message_id": "16-0-0"},
        {"i": 1, "partition": 1, "offset": 0, "message_id": "16-1-0"},
    ]
    assert (receipts[2]["i"], receipts[2]["offset"], receipts[2]["deliver_at"]) == (2, None, START_MS + 5)
    assert broker.stored_count == 3


async def test_bad_lines_have_bad_receipts_and_the_others_are_stored(client: Client, broker: FakeBroker) -> None:
    lines = [b'{"value":%d,"partition":0}' % number for number in range(50)]
    lines[7] = b"nope"
    lines[20] = b'{"value":1,"partition":9}'  # only the producer notices
    lines[33] = b'{"value":1,"delay_ms":99999999999999}'
    lines[49] = b'{"dealy_ms":1}'
    status, receipts = await send(client, b"\n".join(lines))
    assert status == 200
    assert [receipt["i"] for receipt in receipts] == list(range(50))
    bad = {receipt["i"]: receipt["error_code"] for receipt in receipts if "error_code" in receipt}
    assert bad == {7: 400, 20: 40402, 33: 42250, 49: 422}
    assert broker.stored_count == 46
    values = [int(record.value or b"") for append in broker.appends for record in record_batch.decode(append.batch)]
    assert values == [number for number in range(50) if number not in (7, 20, 33, 49)]


async def test_more_lines_than_a_group_keep_their_order(client: Client, broker: FakeBroker) -> None:
    count = GROUP_RECORDS_MAX * 2 + 1
    _, receipts = await send(client, b"".join(b'{"value":%d,"partition":0}\n' % number for number in range(count)))
    assert [(receipt["i"], receipt["offset"]) for receipt in receipts] == [(number, number) for number in range(count)]
    assert max(append.record_count for append in broker.appends) <= GROUP_RECORDS_MAX


async def test_receipts_come_while_the_body_is_still_sent(client: Client) -> None:
    first_receipt = asyncio.Event()

    async def body() -> AsyncIterator[bytes]:
        yield b'{"value":1,"partition":0}\n'
        await first_receipt.wait()
        yield b'{"value":2,"partition":0}\n'

    response = await client.post(PATH, data=body(), headers=LINES)
    assert orjson.loads(await response.content.readline())["offset"] == 0
    first_receipt.set()
    assert orjson.loads(await response.content.readline())["offset"] == 1
    assert await response.content.readline() == b""


async def test_a_line_beyond_the_limit_is_one_bad_receipt(client: Client, broker: FakeBroker) -> None:
    body = b'{"value":1}\n' + b"x" * (DOCUMENT_BYTES_MAX + 1) + b'\n{"value":2}\n'
    _, receipts = await send(client, body)
    assert [receipt.get("error_code") for receipt in receipts] == [None, 41350, None]


async def test_errors_only_ends_with_a_summary(client: Client) -> None:
    _, receipts = await send(client, b'{"value":1}\nnope\n{"value":2}\n', "?receipts=errors")
    assert [receipt.get("i") for receipt in receipts] == [1, None]
    assert receipts[-1] == {"count": 3, "error_count": 1}


async def test_a_packed_body_is_inflated_as_it_comes(client: Client, broker: FakeBroker) -> None:
    body = gzip.compress(b'{"value":1}\n' * 100)
    status, receipts = await send(client, body, **{"Content-Encoding": "gzip"})
    assert (status, len(receipts), broker.stored_count) == (200, 100, 100)


async def test_a_body_that_breaks_off_says_so_behind_the_receipts(client: Client, broker: FakeBroker) -> None:
    sent = asyncio.Event()
    packed = gzip.compress(b'{"value":1}\n')

    async def body() -> AsyncIterator[bytes]:
        yield packed
        await sent.wait()
        yield packed[:-3]

    headers = {**LINES, "Content-Encoding": "gzip"}
    response = await client.post(PATH, data=body(), headers=headers)
    assert orjson.loads(await response.content.readline())["i"] == 0
    sent.set()
    rest = [orjson.loads(line) for line in (await response.read()).splitlines()]
    assert rest[-1]["error_code"] == 400
    assert rest[-1]["count"] == broker.stored_count


async def test_a_bomb_is_refused(client: Client, broker: FakeBroker) -> None:
    body = gzip.compress(b" " * 50_000_000)
    status, receipts = await send(client, body, **{"Content-Encoding": "gzip"})
    assert (status, receipts[0]["error_code"], broker.stored_count) == (413, 413, 0)


async def test_a_store_error_is_every_lines_receipt(client: Client, broker: FakeBroker) -> None:
    broker.error = DiskFull("full")
    status, receipts = await send(client, b'{"value":1}\n{"value":2}\n')
    assert status == 200
    assert [(receipt["error_code"], receipt["retriable"]) for receipt in receipts] == [(50750, True)] * 2


async def test_a_server_that_drains_ends_the_stream_and_says_how_far_it_came(client: Client, gateway: Gateway) -> None:
    async def body() -> AsyncIterator[bytes]:
        yield b'{"value":1,"partition":0}\n'
        await asyncio.Event().wait()

    response = await client.post(PATH, data=body(), headers=LINES)
    await response.content.readline()
    gateway.draining.set()
    last = orjson.loads(await response.content.readline())
    assert (last["error_code"], last["count"]) == (50350, 1)


async def test_an_array_of_events(client: Client, broker: FakeBroker) -> None:
    event = {"id": "1", "source": "/a", "specversion": "1.0", "type": "t", "partitionkey": "k"}
    body = orjson.dumps([event, {**event, "type": ""}])
    status, receipts = await send(client, body, **{"Content-Type": "application/cloudevents-batch+json"})
    assert (status, [receipt.get("error_code") for receipt in receipts]) == (200, [None, 400])
    (record,) = record_batch.decode(broker.appends[0].batch)
    assert (record.key, orjson.loads(record.value or b"")) == (b"k", event)


async def test_an_array_with_an_event_that_cannot_be_written_again_is_refused(
    client: Client, broker: FakeBroker
) -> None:
    event = b'{"id":"1","source":"/a","specversion":"1.0","type":"t","data":%b}'
    body = b"[%b,%b]" % (event % b"1", event % (b"[" * 255 + b"]" * 255))
    status, [refusal] = await send(client, body, **{"Content-Type": "application/cloudevents-batch+json"})
    assert (status, refusal["error_code"], broker.stored_count) == (422, 422, 0)


async def test_a_bug_in_the_middle_of_the_receipts_breaks_them_off(
    client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An answer has begun: another one would be read as a part of it."""
    begun = asyncio.Event()

    async def body() -> AsyncIterator[bytes]:
        yield b'{"value":1}\n'
        await begun.wait()
        yield b'{"value":2}\n'

    response = await client.post(PATH, data=body(), headers=LINES)
    assert orjson.loads(await response.content.readline())["offset"] == 0
    monkeypatch.setattr("gateway.surfaces.native.ndjson.parse_documents", Mock(side_effect=ZeroDivisionError))
    begun.set()
    with pytest.raises(aiohttp.ClientError):
        await response.content.read()


@pytest.mark.parametrize(
    ("path", "headers", "status"),
    [
        (PATH, {"Content-Type": "text/plain"}, 415),
        (PATH + "?receipts=none", LINES, 422),
        (PATH + "?acks=all", LINES, 422),
        (PATH + "?ack=1", LINES, 422),
        (PATH, {**LINES, "Content-Encoding": "br"}, 415),
        ("/mq/v1/topics/none/messages:batch", LINES, 404),
        (PATH, {"Content-Type": "application/cloudevents-batch+json"}, 400),
    ],
)
async def test_bad_requests_are_told_why(
    client: Client, broker: FakeBroker, path: str, headers: dict[str, str], status: int
) -> None:
    response = await client.post(path, data=b'{"value":1}\n', headers=headers)
    assert response.status == status
    assert broker.stored_count == 0


async def test_an_empty_body_has_no_receipts(client: Client) -> None:
    assert await send(client, b"") == (200, [])
