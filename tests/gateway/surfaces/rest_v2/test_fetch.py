"""gateway.surfaces.rest_v2.fetch and gateway.surfaces.http.fetching, through HTTP."""

from __future__ import annotations

import asyncio
import tracemalloc
from typing import Any

import orjson
import pytest
from aiohttp import ClientPayloadError, web
from aiohttp.test_utils import make_mocked_request

from gateway.auth.access import Permission, forbidden
from gateway.codec.inflate import Inflater
from gateway.codec.records import Format, render_records_in_steps
from gateway.codec.tags import tag_hash
from gateway.codec.texts import KEPT_RECORDS_MIN
from gateway.surfaces.http.answers import PACK_BYTES_MIN, packed
from gateway.surfaces.http.context import Gateway
from gateway.surfaces.http.streaming import PIECE_RECORDS_MAX
from gateway.surfaces.rest_v2 import fetch
from gateway.surfaces.rest_v2.fetch import FILTERED_READS_MAX
from store import record_batch
from store.errors import Corrupt
from store.limits import MiB
from store.record_batch import Record, at_once
from store.types import Acks, Append, QueueKey, ReadResult, ReadStatus
from tests.clock import START_MS, FakeClock
from tests.gateway.conftest import Client
from tests.gateway.fake_broker import FakeBroker
from tests.waiting import WOKEN_S

PATH = "/topics/orders/partitions/0/records"
QUEUE = QueueKey(16, 0)
JSON = {"Accept": "application/vnd.kafka.json.v2+json"}
TEXT = {"Accept": "application/vnd.kafka.text.v2+json"}
BATCH = {"Accept": "application/vnd.mq.batch"}


async def send(broker: FakeBroker, *values: bytes, json_values: bool = True) -> None:
    batch = record_batch.encode([Record(None, value, 7) for value in values])
    append = Append(queue=QUEUE, batch=batch, record_count=len(values), json_values=json_values)
    await broker.append([append], acks=Acks.FLUSHED)


async def pull(
    client: Client, query: str = "", headers: dict[str, str] = JSON
) -> tuple[int, list[int], dict[str, str]]:
    """Status, offsets, and the Mq- headers without their prefix."""
    response = await client.get(PATH + query, headers=headers)
    records = await response.json(content_type=None)
    bounds = {name[3:]: value for name, value in response.headers.items() if name.startswith("Mq-")}
    return response.status, [record["offset"] for record in records] if response.status == 200 else [], bounds


@pytest.mark.parametrize(
    ("query", "end_offset"),
    [
        ("max_records=3", 5),
        ("end_offset=4", 4),
        ("end_offset=9&max_records=3", 5),
        ("max_records=3&filter=tag:x", None),
    ],
)
async def test_no_more_is_read_than_a_request_can_take(
    query: str, end_offset: int | None, client: Client, broker: FakeBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[object] = []
    read = broker.read

    async def noting(queue: QueueKey, offset: int, **options: Any) -> ReadResult:
        asked.append(options["end_offset"])
        return await read(queue, offset, **options)

    for _ in range(6):
        await send(broker, b"1", b"2")
    monkeypatch.setattr(broker, "read", noting)
    _, offsets, bounds = await pull(client, f"?offset=2&{query}")
    assert asked[0] == end_offset
    if end_offset is not None:
        assert offsets == list(range(2, end_offset))
        assert bounds["Next-Offset"] == str(end_offset)


async def test_records_and_where_to_go_on(client: Client, broker: FakeBroker) -> None:
    await send(broker, b"1", b'{"a":2}')
    response = await client.get(f"{PATH}?offset=0", headers=JSON)
    fields = {"topic": "orders", "partition": 0, "key": None, "timestamp": 7, "store_timestamp": START_MS}
    assert await response.json(content_type=None) == [
        {**fields, "value": 1, "offset": 0},
        {**fields, "value": {"a": 2}, "offset": 1},
    ]
    assert response.headers["Content-Type"] == "application/vnd.kafka.json.v2+json"
    assert response.headers["Mq-Next-Offset"] == "2"
    assert response.headers["Mq-Beginning-Offset"] == "0"
    assert response.headers["Mq-End-Offset"] == "2"
    assert response.headers["Mq-Epoch"] == "16"


@pytest.mark.parametrize("query", ["", "?offset=0", "?offset=earliest", "?offset=latest", "?offset=-5", "?timestamp=0"])
async def test_an_empty_partition_answers_an_empty_array(client: Client, query: str) -> None:
    bounds = {"Next-Offset": "0", "Beginning-Offset": "0", "End-Offset": "0", "Epoch": "16"}
    assert await pull(client, query) == (200, [], bounds)


@pytest.mark.parametrize(
    ("query", "offsets", "next_offset"),
    [
        ("", [0, 1, 2, 3, 4], 5),
        ("?offset=3", [3, 4], 5),
        ("?offset=5", [], 5),
        ("?offset=latest", [], 5),
        ("?offset=-2", [3, 4], 5),
        ("?offset=1&max_records=2", [1, 2], 3),
        ("?offset=1&end_offset=4", [1, 2, 3], 4),
        ("?offset=1&end_offset=4&max_records=2", [1, 2], 3),
        ("?offset=1&end_offset=1", [], 1),
        ("?offset=3&end_offset=1", [], 3),
        ("?offset=0&max_bytes=1", [0, 1, 2], 3),
        ("?timestamp=1700000000000", [0, 1, 2, 3, 4], 5),
        ("?timestamp=2023-11-14T22:13:20.001Z", [3, 4], 5),
        ("?timestamp=2030-01-01T00:00:00Z", [], 5),
    ],
)
async def test_ranges(
    client: Client, broker: FakeBroker, clock: FakeClock, query: str, offsets: list[int], next_offset: int
) -> None:
    await send(broker, b"0", b"1", b"2")
    clock.step(1)
    await send(broker, b"3", b"4")
    status, found, bounds = await pull(client, query)
    assert (status, found, bounds["Next-Offset"]) == (200, offsets, str(next_offset))


async def test_batches_come_whole_as_they_are_stored(client: Client, broker: FakeBroker) -> None:
    await send(broker, b"0", b"1", b"2")
    await send(broker, b"3")
    stored = [bytes(entry.batch) for entry in broker.entries[QUEUE]]
    for query, expected, next_offset in (
        ("?offset=1", stored, "4"),
        ("?offset=1&end_offset=2", stored[:1], "3"),
        ("?offset=3", stored[1:], "4"),
        ("?offset=1&max_bytes=1", stored[:1], "3"),
        ("?offset=4", [], "4"),
    ):
        response = await client.get(PATH + query, headers=BATCH)
        assert response.headers["Content-Type"] == "application/vnd.mq.batch"
        assert (await response.read(), response.headers["Mq-Next-Offset"]) == (b"".join(expected), next_offset)


async def test_the_form_is_the_accepts_unless_the_query_names_one(client: Client, broker: FakeBroker) -> None:
    await send(broker, b"\xff", json_values=False)
    for query, headers, content_type, value in (
        ("", {}, "application/vnd.kafka.binary.v2+json", "/w=="),
        ("", {"Accept": "application/json"}, "application/json", "/w=="),
        ("?format=json", {}, "application/vnd.kafka.json.v2+json", None),
        ("?format=text", BATCH, "application/vnd.kafka.text.v2+json", None),
    ):
        response = await client.get(PATH + query, headers=headers)
        (record,) = await response.json(content_type=None)
        assert (response.headers["Content-Type"], record["value"]) == (content_type, value)
        assert ("error_code" in record) is (value is None)


@pytest.mark.parametrize(
    ("path", "status", "code"),
    [
        ("/topics/nope/partitions/0/records", 404, 40401),
        ("/topics/__meta/partitions/0/records", 404, 40401),
        ("/topics/orders/partitions/4/records", 404, 40402),
        ("/topics/orders/partitions/x/records", 404, 404),
        (f"{PATH}?offset=first", 422, 422),
        (f"{PATH}?offset=", 422, 422),
        (f"{PATH}?offset=1&timestamp=1", 422, 422),
        (f"{PATH}?timestamp=soon", 400, 400),
        (f"{PATH}?offset=0&offset=1", 400, 400),
        (f"{PATH}?filter=price>5", 422, 42252),
        (f"{PATH}?max_byte=1", 422, 422),
        (f"{PATH}?timeout=60001", 422, 42253),
        (f"{PATH}?timeout=-1", 422, 42253),
        (f"{PATH}?timeout=x", 400, 400),
        (f"{PATH}?max_bytes=0", 422, 42253),
        (f"{PATH}?max_records=0", 422, 42253),
        (f"{PATH}?end_offset=-1", 422, 42253),
        (f"{PATH}?format=avro", 422, 42202),
        (f"{PATH}?offset=9&reset=middle", 422, 422),
        (f"{PATH}?offset=9", 416, 41601),
        (f"{PATH}?offset={10**17}", 416, 41601),
    ],
)
async def test_bad_requests_are_told_why(client: Client, path: str, status: int, code: int) -> None:
    response = await client.get(path, headers=JSON)
    assert (response.status, (await response.json())["error_code"]) == (status, code)


async def test_an_unacceptable_form_is_refused(client: Client) -> None:
    response = await client.get(PATH, headers={"Accept": "text/html"})
    assert (response.status, (await response.json())["error_code"]) == (406, 406)


@pytest.mark.parametrize(("offset", "where"), [(1, "below"), (6, "above")])
async def test_outside_its_bounds_a_pull_names_them_or_resets(
    client: Client, broker: FakeBroker, offset: int, where: str
) -> None:
    await send(broker, b"0", b"1", b"2")
    await send(broker, b"3", b"4")
    broker.min_offsets[QUEUE] = 3
    response = await client.get(f"{PATH}?offset={offset}", headers=JSON)
    answer = await response.json()
    assert (response.status, answer["error_code"]) == (416, 41601)
    assert answer["details"] == {"beginning_offset": 3, "end_offset": 5}
    assert where in answer["message"]
    assert (await pull(client, f"?offset={offset}&reset=earliest"))[:2] == (200, [3, 4])
    status, offsets, bounds = await pull(client, f"?offset={offset}&reset=latest")
    assert (status, offsets, bounds["Next-Offset"]) == (200, [], "5")


async def test_a_long_poll_wakes_with_the_first_record(client: Client, broker: FakeBroker, gateway: Gateway) -> None:
    await send(broker, b"0")
    waiting = asyncio.ensure_future(pull(client, "?offset=1&timeout=60000"))
    await broker.waiting.wait()
    assert gateway.stats.long_poll_count == 1
    await send(broker, b"1")
    status, offsets, bounds = await asyncio.wait_for(waiting, WOKEN_S)
    assert (status, offsets, bounds["Next-Offset"]) == (200, [1], "2")
    assert gateway.stats.long_poll_count == 0


async def test_a_long_poll_from_the_end_sees_only_what_comes(client: Client, broker: FakeBroker) -> None:
    await send(broker, b"0")
    waiting = asyncio.ensure_future(pull(client, "?offset=latest&timeout=60000"))
    await broker.waiting.wait()
    await send(broker, b"1")
    assert (await asyncio.wait_for(waiting, WOKEN_S))[1] == [1]


async def test_a_long_poll_does_not_wait_when_something_is_there(client: Client, broker: FakeBroker) -> None:
    await send(broker, b"0")
    assert (await asyncio.wait_for(pull(client, "?offset=0&timeout=60000"), WOKEN_S))[1] == [0]
    assert not broker.waiting.is_set()


async def test_a_long_poll_does_not_wait_for_what_it_excludes(client: Client, broker: FakeBroker) -> None:
    await send(broker, b"0")
    assert (await asyncio.wait_for(pull(client, "?offset=1&end_offset=1&timeout=60000"), WOKEN_S))[1] == []
    assert not broker.waiting.is_set()


async def test_a_long_poll_ends_empty_at_its_timeout(client: Client) -> None:
    status, offsets, bounds = await pull(client, "?offset=0&timeout=1")
    assert (status, offsets, bounds["Next-Offset"]) == (200, [], "0")


async def test_a_draining_server_answers_its_long_polls(client: Client, broker: FakeBroker, gateway: Gateway) -> None:
    waiting = asyncio.ensure_future(pull(client, "?offset=0&timeout=60000"))
    await broker.waiting.wait()
    gateway.draining.set()
    assert (await asyncio.wait_for(waiting, WOKEN_S))[:2] == (200, [])
    assert (await asyncio.wait_for(pull(client, "?offset=0&timeout=60000"), WOKEN_S))[:2] == (200, [])


async def test_large_limits_are_capped_not_refused(client: Client, broker: FakeBroker) -> None:
    await send(broker, b"0")
    assert (await pull(client, "?max_bytes=99999999999&max_records=99999999999"))[:2] == (200, [0])


async def test_a_reset_long_poll_waits_at_its_new_place(client: Client, broker: FakeBroker) -> None:
    await send(broker, b"0")
    waiting = asyncio.ensure_future(pull(client, "?offset=9&reset=latest&timeout=60000"))
    await broker.waiting.wait()
    await send(broker, b"1")
    assert (await asyncio.wait_for(waiting, WOKEN_S))[1] == [1]


async def test_corruption_is_an_error_that_hides_the_path(client: Client, broker: FakeBroker) -> None:
    broker.error = Corrupt("/data/commitlog/0", 77, "crc")
    response = await client.get(PATH, headers=JSON)
    assert (response.status, (await response.json())["error_code"]) == (500, 50002)
    assert "/data" not in await response.text()


async def test_what_was_pulled_is_counted(client: Client, broker: FakeBroker, gateway: Gateway) -> None:
    await send(broker, b"0", b"1")
    await pull(client, "?offset=1")
    assert gateway.stats.fetched_record_count == 1
    assert gateway.stats.fetched_byte_count > 0


async def test_many_megabytes_are_rendered_whole(client: Client, broker: FakeBroker) -> None:
    value = b'"' + b"x" * 400_000 + b'"'
    for _ in range(10):
        await send(broker, value)
    status, offsets, _ = await pull(client, "?offset=0&max_bytes=10000000")
    assert (status, offsets) == (200, list(range(10)))


@pytest.mark.parametrize("headers", [JSON, BATCH], ids=["json", "batches"])
@pytest.mark.parametrize(
    ("sizes", "query", "end"),
    [
        ([700_000] * 30, "max_bytes=67108864", 30),
        ([700_000] * 30, "max_bytes=14010000", 20),
        ([700_000] * 30, "max_bytes=67108864&end_offset=25", 25),
        ([700_000] * 30, "max_bytes=67108864&max_records=20&offset=2", 22),
        ([3_000_000, 10, 3_000_000, 3_000_000, 3_000_000], "max_bytes=9000500", 4),
        ([1000] * 9000, "max_bytes=67108864", 9000),
    ],
)
async def test_an_answer_in_pieces_is_the_answer_of_one_read(
    client: Client, broker: FakeBroker, headers: dict[str, str], sizes: list[int], query: str, end: int
) -> None:
    for number, size in enumerate(sizes):
        await send(broker, b'"%b"' % (b"%d" % (number % 10) * size))
    response = await client.get(f"{PATH}?{query}", headers=headers)
    body = await response.read()
    start = 2 if "&offset=2" in query else 0
    assert len(body) > 4 * MiB
    assert (response.status, response.headers["Mq-Next-Offset"]) == (200, str(end))
    if headers is BATCH:
        assert body == b"".join(bytes(entry.batch) for entry in broker.entries[QUEUE][start:end])
        assert response.headers["Content-Length"] == str(len(body))
    else:
        records = orjson.loads(body)
        assert [record["offset"] for record in records] == list(range(start, end))
        assert [len(record["value"]) for record in records] == sizes[start:end]


async def test_one_batch_of_many_records_is_cut_between_them(client: Client, broker: FakeBroker) -> None:
    values = [b'"%05d%b"' % (number, b"x" * 95) for number in range(60_000)]
    await send(broker, *values)
    response = await client.get(f"{PATH}?max_bytes=67108864&offset=3&end_offset=59000", headers=JSON)
    records = orjson.loads(await response.read())
    assert [int(record["value"][:5]) for record in records] == list(range(3, 59_000))
    assert response.headers["Mq-Next-Offset"] == "59000"


async def test_texts_end_with_the_last_record_there_is_room_for(gateway: Gateway, broker: FakeBroker) -> None:
    """Whatever pieces they come in: records from the first on as long as they fit, and at least one."""
    values = [b"%d" % 10 ** (number % 7) for number in range(60)]
    for first, last in ((0, 20), (20, 21), (21, 60)):
        await send(broker, *values[first:last])
    fetched = await gateway.consumer.fetch("orders", 0, 0, max_bytes=MiB)
    rendered = at_once(render_records_in_steps("orders", 0, fetched.entries, Format.JSON, start=0, stop=60))
    sizes = [len(orjson.dumps(one)) for one in rendered]
    kind = fetch.records_type(JSON["Accept"])
    for start in (0, 5, 19, 20, 21, 59):
        for count in range(1, 60 - start + 1):
            for missing in (0, 1):
                room_bytes = sum(sizes[start : start + count]) - missing
                pull = fetch._Pull("orders", 16, 0, kind, start, 60, MiB, 60, 0, None)
                texts, next_offset = await fetch._texts(gateway, pull, fetched.entries, 60, room_bytes)
                assert next_offset == max(start + count - missing, start + 1)
                assert b",".join([one.data for one in texts]) == b",".join(
                    [orjson.dumps(one) for one in rendered[start:next_offset]]
                )


async def test_what_was_pulled_before_is_not_rendered_again(
    client: Client, broker: FakeBroker, gateway: Gateway
) -> None:
    await send(broker, *[b"1"] * KEPT_RECORDS_MIN)
    answers = [await (await client.get(PATH, headers=JSON)).read() for _ in range(2)]
    assert answers[0] == answers[1]
    held_bytes = gateway.texts.held_bytes
    assert held_bytes > len(answers[0]) - 2
    lines = await client.get(PATH, headers={"Accept": "application/x-ndjson"})
    assert len((await lines.read()).splitlines()) == KEPT_RECORDS_MIN
    assert gateway.texts.held_bytes > held_bytes  # in another form


@pytest.mark.parametrize("query", ["max_bytes=67108864", "max_bytes=1048576", "max_bytes=67108864&filter=*"])
async def test_what_inflates_is_not_inflated_all_at_once(client: Client, broker: FakeBroker, query: str) -> None:
    """30 entries of some hundred bytes hold 120 MB of text."""
    batch = bytes(record_batch.compressed(record_batch.encode([Record(None, b"x" * 4_000_000, 7)])))
    assert len(batch) < 2000
    for _ in range(30):
        await broker.append([Append(queue=QUEUE, batch=batch, record_count=1, json_values=False)], acks=Acks.FLUSHED)
    tracemalloc.start()
    try:
        offset = 0
        while offset < 30:
            answer = await client.get(
                f"{PATH}?{query}&offset={offset}", headers={**TEXT, "Accept-Encoding": "identity"}
            )
            while await answer.content.read(MiB):
                pass
            assert answer.status == 200
            offset = int(answer.headers["Mq-Next-Offset"])
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 100 * MiB  # the client has its part in this process


@pytest.mark.parametrize("headers", [JSON, BATCH], ids=["json", "batches"])
@pytest.mark.parametrize("trouble", ["rotten", "expired", "made again", "rights"])
async def test_what_goes_wrong_in_the_middle_is_seen(
    client: Client, broker: FakeBroker, headers: dict[str, str], trouble: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for _ in range(40):
        await send(broker, b'"%b"' % (b"x" * 500_000))
    read = broker.read
    seen: list[int] = []

    async def failing(queue: QueueKey, offset: int, **settings: Any) -> ReadResult:
        is_again = offset in seen
        seen.append(offset)
        if not is_again or offset < 20:
            return await read(queue, offset, **settings)
        if trouble == "rotten":
            raise Corrupt("file", 5, "rotten")
        if trouble == "rights":
            raise forbidden(Permission.RECEIVE, "orders", None)
        if trouble == "made again":
            await broker.delete_topic("orders")
            await broker.create_topic("orders", 4)
            return ReadResult(ReadStatus.FOUND, [], 0, 40, offset)
        return ReadResult(ReadStatus.TOO_SMALL, [], 39, 40, 39)

    monkeypatch.setattr(broker, "read", failing)
    response = await client.get(f"{PATH}?max_bytes=67108864", headers=headers)
    assert (response.status, response.headers["Mq-Next-Offset"]) == (200, "40")
    with pytest.raises(ClientPayloadError):
        await response.read()


async def test_head_of_a_large_answer_is_its_headers(client: Client, broker: FakeBroker) -> None:
    for _ in range(40):
        await send(broker, b'"%b"' % (b"x" * 500_000))
    for headers in (JSON, BATCH):
        response = await client.head(f"{PATH}?max_bytes=67108864", headers=headers)
        assert (response.status, response.headers["Mq-Next-Offset"], await response.read()) == (200, "40", b"")


async def test_every_limit_of_a_pull_at_n_and_beyond(client: Client, broker: FakeBroker, gateway: Gateway) -> None:
    """What is asked for beyond a byte or record limit counts as the limit; beyond the longest wait it is refused."""
    limits = gateway.limits
    await send(broker, *[b"1"] * 3)
    for name, most in (("max_bytes", limits.fetch_bytes_max), ("max_records", limits.fetch_records_max)):
        for asked in (most, most + 1):
            assert (await pull(client, f"?offset=0&{name}={asked}"))[:2] == (200, [0, 1, 2])
    assert (await pull(client, f"?offset=0&timeout={limits.timeout_ms_max}"))[0] == 200
    assert (await pull(client, f"?offset=0&timeout={limits.timeout_ms_max + 1}"))[0] == 422


async def test_what_is_not_said_is_the_default(client: Client, broker: FakeBroker, gateway: Gateway) -> None:
    limits = gateway.limits
    value = b'"%b"' % (b"x" * (limits.fetch_bytes_default // 2))
    for _ in range(3):
        await send(broker, value)
    assert (await pull(client, "?offset=0"))[1] == [0], "a second entry would exceed fetch_bytes_default"
    response = await client.get(PATH + "?offset=0", headers=BATCH)
    assert len(await response.read()) > limits.fetch_bytes_default
    assert len(value) * 3 < limits.fetch_batch_bytes_default
    assert response.headers["Mq-Next-Offset"] == "3"


LINES = {"Accept": "application/x-ndjson"}


async def lines(client: Client, query: str = "", headers: dict[str, str] = LINES) -> list[dict[str, object]]:
    response = await client.get(PATH + query, headers=headers)
    assert response.status == 200, await response.text()
    return [orjson.loads(line) for line in (await response.read()).splitlines()]


async def send_tagged(client: Client, *tags: str | None) -> None:
    """One record a request, so one entry each; the value is the tag."""
    for tag in tags:
        record = {"value": tag} if tag is None else {"value": tag, "tag": tag}
        headers = {"Content-Type": "application/vnd.kafka.json.v2+json"}
        await client.post("/topics/orders/partitions/0", json={"records": [record]}, headers=headers)


async def test_lines_hold_a_whole_range_in_the_native_form(client: Client, broker: FakeBroker) -> None:
    await send(broker, b"1", b'{"a":\n2}', b"\xff", json_values=False)
    response = await client.get(PATH, headers=LINES)
    assert response.headers["Content-Type"] == "application/x-ndjson"
    assert (response.headers["Mq-Next-Offset"], response.headers["Mq-End-Offset"]) == ("3", "3")
    one, two, three = [orjson.loads(line) for line in (await response.read()).splitlines()]
    assert (one["value"], two["value"], three["value_b64"]) == (1, {"a": 2}, "/w==")
    assert one["message_id"] == "16-0-0"


@pytest.mark.parametrize(
    ("query", "offsets", "next_offset"),
    [
        ("", range(10), "10"),
        ("?offset=3&end_offset=7", range(3, 7), "7"),
        ("?offset=8&end_offset=100", range(8, 10), "100"),
        ("?max_records=4", range(4), "4"),
        ("?offset=10", range(0), "10"),
        ("?max_bytes=1", range(4), None),
    ],
)
async def test_a_stream_of_lines_ends_where_it_was_told(
    client: Client, broker: FakeBroker, query: str, offsets: range, next_offset: str | None
) -> None:
    for first in (0, 4, 7):
        await send(broker, *[b"%d" % number for number in range(first, {0: 4, 4: 7, 7: 10}[first])])
    response = await client.get(PATH + query, headers=LINES)
    records = [orjson.loads(line) for line in (await response.read()).splitlines()]
    assert [record["offset"] for record in records] == list(offsets)
    assert response.headers.get("Mq-Next-Offset") == next_offset


async def test_a_range_larger_than_any_piece_comes_whole(client: Client, broker: FakeBroker) -> None:
    count = PIECE_RECORDS_MAX * 2 + 5
    await send(broker, *[b"%d" % number for number in range(count)])
    await send(broker, b"1" * 100, b"2")
    assert [record["offset"] for record in await lines(client)] == list(range(count + 2))


async def test_lines_in_the_formats_of_the_rest_proxy(client: Client, broker: FakeBroker) -> None:
    await send(broker, b"1")
    (record,) = await lines(client, "?format=binary")
    assert (record["value"], "message_id" in record) == ("MQ==", False)


async def test_lines_wait_for_a_first_record(client: Client, broker: FakeBroker) -> None:
    waiting = asyncio.create_task(lines(client, "?timeout=20000"))
    await broker.waiting.wait()
    await send(broker, b"1")
    assert [record["offset"] for record in await waiting] == [0]


async def test_an_error_in_the_middle_is_a_line(
    client: Client, broker: FakeBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    await send(broker, b"1")
    await send(broker, b"2")
    monkeypatch.setattr(fetch, "PIECE_BYTES", 1)
    read = broker.read

    async def failing(queue: QueueKey, offset: int, **settings: object) -> object:
        if offset == 1:
            raise Corrupt("file", 5, "rotten")
        return await read(queue, offset, **settings)  # type: ignore[arg-type]

    monkeypatch.setattr(broker, "read", failing)
    record, error = await lines(client)
    assert record["offset"] == 0
    assert (error["error_code"], error["next_offset"]) == (50002, 1)


async def test_lines_out_of_bounds_are_refused_before_the_first(client: Client) -> None:
    response = await client.get(PATH + "?offset=5", headers=LINES)
    assert (response.status, (await response.json())["error_code"]) == (416, 41601)


async def test_head_of_a_stream_is_its_headers(client: Client, broker: FakeBroker) -> None:
    await send(broker, b"1")
    response = await client.head(PATH, headers=LINES)
    assert (response.status, response.headers["Mq-Next-Offset"], await response.read()) == (200, "1", b"")


async def test_only_records_with_a_wanted_tag(client: Client) -> None:
    await send_tagged(client, "paid", None, "open", "paid", "void")
    status, offsets, bounds = await pull(client, "?filter=tag:paid||void")
    assert (status, offsets, bounds["Next-Offset"]) == (200, [0, 3, 4], "5")
    assert (await pull(client, "?filter=tag:paid&max_records=1"))[1:] == ([0], {**bounds, "Next-Offset": "1"})
    assert (await pull(client, "?offset=1&filter=tag:paid&end_offset=3"))[1:] == ([], {**bounds, "Next-Offset": "3"})
    assert [record["offset"] for record in await lines(client, "?filter=tag:paid&max_records=2")] == [0, 3]
    assert (await pull(client, "?filter=tag:none"))[1:] == ([], bounds)


async def test_tags_of_equal_hash_are_told_apart(client: Client, broker: FakeBroker) -> None:
    """Whatever the index says, a record without the tag is not answered."""
    batch = record_batch.encode(
        [Record(None, b"1", 7, [("mq-tag", b"other")]), Record(None, b"2", 7, [("mq-tag", b"paid")])]
    )
    append = Append(queue=QUEUE, batch=batch, record_count=2, json_values=True, tag_hashes=[tag_hash("paid")] * 2)
    await broker.append([append], acks=Acks.FLUSHED)
    assert (await pull(client, "?filter=tag:paid"))[1] == [1]


async def test_a_filtered_long_poll_waits_for_a_match(client: Client, broker: FakeBroker) -> None:
    waiting = asyncio.create_task(pull(client, "?filter=tag:paid&timeout=20000"))
    await broker.waiting.wait()
    await send_tagged(client, "open", "open", "paid")
    status, offsets, bounds = await waiting
    assert (status, offsets, bounds["Next-Offset"]) == (200, [2], "3")


async def test_a_filtered_pull_looks_so_far_and_no_further(
    client: Client, broker: FakeBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    await send(broker, *[b"1"] * (FILTERED_READS_MAX + 5))
    reads = []

    async def slow(queue: QueueKey, offset: int, **_: object) -> ReadResult:
        reads.append(offset)
        return ReadResult(ReadStatus.NO_MATCH, [], 0, FILTERED_READS_MAX + 5, offset + 1)

    monkeypatch.setattr(broker, "read", slow)
    _, offsets, bounds = await pull(client, "?filter=tag:paid&timeout=60000")
    assert (offsets, bounds["Next-Offset"]) == ([], str(FILTERED_READS_MAX))
    assert len(reads) == FILTERED_READS_MAX + 1


async def test_raw_batches_with_a_filter_are_whole_entries_that_match(client: Client) -> None:
    await send_tagged(client, "open", "paid", "open")
    response = await client.get(PATH + "?filter=tag:paid", headers=BATCH)
    (batch,) = record_batch.split(await response.read())
    assert [record.offset for record in record_batch.decode(batch)] == [1]
    assert response.headers["Mq-Next-Offset"] in ("2", "3")


@pytest.mark.parametrize(
    ("accept", "coding"), [("gzip, deflate", "gzip"), ("zstd;q=1, gzip", "zstd"), ("zstd;q=0", None), ("br", None)]
)
async def test_large_answers_are_packed_when_asked(accept: str, coding: str | None) -> None:
    request = make_mocked_request("GET", "/", headers={"Accept-Encoding": accept})
    body = b"x" * PACK_BYTES_MIN
    response = await packed(request, web.Response(body=body))
    assert isinstance(response.body, bytes)
    assert response.headers.get("Content-Encoding") == coding
    assert response.headers["Vary"] == "Accept-Encoding"
    inflater = Inflater(coding, bytes_max=len(body)) if coding else None
    assert (b"".join(inflater.feed(response.body)) if inflater else response.body) == body


async def test_a_large_pull_is_packed(client: Client, broker: FakeBroker) -> None:
    await send(broker, b'"%s"' % (b"x" * PACK_BYTES_MIN))
    response = await client.get(PATH, headers={**JSON, "Accept-Encoding": "gzip"})
    assert response.headers["Content-Encoding"] == "gzip"
    assert len((await response.json(content_type=None))[0]["value"]) == PACK_BYTES_MIN


async def test_small_answers_and_raw_batches_are_never_packed(client: Client, broker: FakeBroker) -> None:
    await send(broker, b"1")
    assert "Content-Encoding" not in (await client.get(PATH, headers={**JSON, "Accept-Encoding": "gzip"})).headers
    await send(broker, b'"%s"' % (b"x" * PACK_BYTES_MIN))
    assert "Content-Encoding" not in (await client.get(PATH, headers={**BATCH, "Accept-Encoding": "gzip"})).headers


async def test_an_answer_is_packed_from_its_limit_on() -> None:
    request = make_mocked_request("GET", "/", headers={"Accept-Encoding": "gzip"})
    for size, is_packed in ((PACK_BYTES_MIN, True), (PACK_BYTES_MIN - 1, False)):
        response = await packed(request, web.Response(body=b"x" * size))
        assert ("Content-Encoding" in response.headers) is is_packed
