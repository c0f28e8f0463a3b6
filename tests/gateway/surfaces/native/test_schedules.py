"""gateway/surfaces/native/schedules.py, through HTTP, over a real store and timer."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from aiohttp.test_utils import TestServer

from gateway.api.shapes.queries import BUCKETS_MAX, PAGE_ROWS_MAX
from gateway.api.shapes.schedules import SCHEDULES_PER_BATCH_MAX
from gateway.codec.times import TIME_MS_MAX
from gateway.main.admin import BROKER_NAME, LocalAdmin
from gateway.main.application import build_application
from gateway.main.wiring import build_gateway
from gateway.routing.delivery import RoutedPartitions
from gateway.routing.table import RouteTable
from gateway.settings.config import build
from gateway.settings.limits import SCHEDULE_KEY_BYTES_MAX, Limits
from gateway.surfaces.native.schedules import SCHEDULES
from store import Store
from store.files import OsFiles
from tests.clock import START_MS, FakeClock
from tests.gateway.conftest import Client
from tests.gateway.production_server import ProductionServer
from timer import schedules
from timer.service import TimerService

PATH = "/mq/v1/schedules"
SETTINGS: dict[str, object] = {
    "store.commit_log_file_bytes": 16 * 1024 * 1024,
    "store.extent_bytes": 1024 * 1024,
    "store.disk_floor_bytes": 0,
    "timer.roll_window_ms": 60_000,
}


@pytest.fixture
def settings() -> dict[str, object]:
    return {}


@pytest.fixture
async def client(
    tmp_path: Path,
    clock: FakeClock,
    settings: dict[str, object],
    aiohttp_client: Callable[[TestServer], Awaitable[Client]],
) -> AsyncIterator[Client]:
    """A client of a server with the topic `orders` of 2 partitions, whose timer runs."""
    config = build({"data": tmp_path, **SETTINGS, **settings})
    files = OsFiles()
    store = await Store.open(config.store, files=files, clock=clock)
    routes = RouteTable()
    timer = TimerService(config.timer, store, files, clock, partitions=RoutedPartitions(routes, own=BROKER_NAME))
    await timer.start()
    admin = LocalAdmin(store, timer, Limits(), routes)
    await admin.create_topic("orders", 2)
    gateway, _ = build_gateway(config, store, timer, admin, clock)
    application = build_application(gateway)
    application[SCHEDULES] = timer
    running = asyncio.create_task(timer.run())
    yield await aiohttp_client(ProductionServer(gateway, application))
    running.cancel()
    await asyncio.wait([running])
    await timer.close()
    await store.close()


async def send(client: Client, *delays_ms: int, key: str = "k") -> list[str]:
    """Delayed records whose value is their place; their schedule ids."""
    records = [{"key": key, "value": number, "delay_ms": delay_ms} for number, delay_ms in enumerate(delays_ms)]
    headers = {"Content-Type": "application/vnd.kafka.json.v2+json"}
    response = await client.post("/topics/orders", json={"records": records}, headers=headers)
    return [offset["schedule_id"] for offset in (await response.json(content_type=None))["offsets"]]


async def ask(client: Client, method: str, path: str, **options: Any) -> tuple[int, Any]:
    """Status, and the body: of an error its code, of an empty answer None."""
    response = await client.request(method, PATH + path, **options)
    if response.status == 204:
        return 204, None
    body = await response.json(content_type=None)
    return response.status, body["error_code"] if response.status >= 400 else body


async def test_a_schedule_is_shown_listed_and_counted(client: Client) -> None:
    first, second = await send(client, 5_000, 90_000)
    status, shown = await ask(client, "GET", f"/{second}?include=value")
    assert status == 200
    assert shown == {
        "schedule_id": second,
        "topic": "orders",
        "partition": shown["partition"],
        "key": "k",
        "tag": None,
        "schedule_key": None,
        "deliver_at": START_MS + 90_000,
        "created_at": START_MS,
        "timestamp": START_MS,
        "size": 2,
        "state": "pending",
        "value": 1,
    }
    _, page = await ask(client, "GET", "?topic=orders&limit=1")
    assert ([row["schedule_id"] for row in page["schedules"]], page["total"]) == ([first], 2)
    assert "value" not in page["schedules"][0]
    _, page = await ask(client, "GET", f"?topic=orders&cursor={page['next_cursor']}")
    assert [row["schedule_id"] for row in page["schedules"]] == [second]
    assert page["next_cursor"] is None
    for query, ids, total in (
        ("", [first, second], 2),
        (f"?to={START_MS + 6_000}", [first], 1),
        (f"?from={START_MS + 6_000}", [second], 1),
        (f"?from={START_MS + 6_000}&to={START_MS + 6_000}", [], 0),
        ("?topic=orders&key=k", [first, second], 2),
        ("?topic=orders&key=k&limit=1", [first], None),
        ("?topic=orders&key=other", [], 0),
    ):
        _, page = await ask(client, "GET", query)
        assert ([row["schedule_id"] for row in page["schedules"]], page["total"]) == (ids, total), query
    _, counted = await ask(client, "GET", f":histogram?to={START_MS + 120_000}&buckets=12")
    assert counted == {
        "from": START_MS,
        "bucket_ms": 10_000,
        "counts": [1, 0, 0, 0, 0, 0, 0, 0, 0, 1, 0, 0],
        "total": 2,
        "overdue": 0,
        "rolled": 1,  # behind the roll window of 60 s
    }
    bounds = [START_MS, START_MS + 5_000, START_MS + 5_001, START_MS + 90_000]
    _, counted = await ask(client, "GET", f":histogram?topic=orders&bounds={','.join(map(str, bounds))}")
    assert counted == {"bounds": bounds, "counts": [0, 1, 0], "total": 1, "overdue": 0, "rolled": 1}
    minute = START_MS - START_MS % 60_000
    _, counted = await ask(client, "GET", f":histogram?bounds={minute},3x60000,1x0,{minute + 600_000}")
    assert (await ask(client, "GET", f":histogram?bounds=1,{BUCKETS_MAX}x0"))[0] == 200
    bounds = [minute + 60_000 * number for number in (0, 1, 2, 3, 3, 10)]
    dues_ms = [START_MS + 5_000, START_MS + 90_000]
    counts = [sum(one <= due_ms < other for due_ms in dues_ms) for one, other in pairwise(bounds)]
    assert counted == {"bounds": bounds, "counts": counts, "total": 2, "overdue": 0, "rolled": 1}


async def test_the_first_due_come_first_page_by_page(
    client: Client, clock: FakeClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    delays_ms = (9_000, 5_000, 90_000, 5_000, 7_000)
    ids = await send(client, *delays_ms)
    in_order = sorted(range(5), key=lambda number: (delays_ms[number], number))

    async def listed(query: str, limit: int) -> list[int]:
        found: list[int] = []
        cursor = ""
        while True:
            _, page = await ask(client, "GET", f"?order=due&limit={limit}{query}{cursor}")
            assert len(page["schedules"]) <= limit
            found += [ids.index(row["schedule_id"]) for row in page["schedules"]]
            if page["next_cursor"] is None:
                return found
            cursor = f"&cursor={page['next_cursor']}"

    for least, most in ((1, 1), (1, 2), (1, 4), (2, 5), (schedules.DUE_WINDOW_LEAST, schedules.DUE_WINDOW_MAX)):
        monkeypatch.setattr(schedules, "DUE_WINDOW_LEAST", least)
        monkeypatch.setattr(schedules, "DUE_WINDOW_MAX", most)
        for limit in (1, 2, 5, 1000):
            assert await listed("", limit) == in_order
    assert await listed(f"&from={START_MS + 7_000}&to={START_MS + 90_000}", 1) == [4, 0]
    assert await listed("&topic=orders&key=k", 2) == in_order
    assert await listed("&topic=orders&key=other", 2) == []
    _, page = await ask(client, "GET", "?order=due&limit=1")
    assert (await ask(client, "DELETE", f"/{ids[3]}"))[0] == 204  # it is in what was found for the next pages
    _, page = await ask(client, "GET", f"?order=due&limit=1&cursor={page['next_cursor']}")
    assert [row["schedule_id"] for row in page["schedules"]] == [ids[4]]
    assert (await ask(client, "DELETE", f"/{ids[1]}"))[0] == 204
    clock.step(5_001)  # what was found is too old now
    assert await listed("", 2) == [4, 0, 2]


async def test_many_are_changed_at_once_and_each_is_answered(client: Client) -> None:
    ids = await send(client, *(60_000 + number for number in range(6)))
    unknown = "s" + "A" * 27

    async def batch(**body: object) -> tuple[int, Any]:
        status, answer = await ask(client, "POST", ":batch", json=body)
        return status, answer["results"] if status == 200 else answer

    status, results = await batch(action="cancel", schedule_ids=[ids[0], unknown, "x", ids[0], ids[1]])
    assert status == 200
    assert [(result["ok"], result.get("error_code")) for result in results] == [
        (True, None), (False, 40450), (False, 40450), (False, 40450), (True, None),
    ]  # fmt: skip
    assert [result["schedule_id"] for result in results] == [ids[0], unknown, "x", ids[0], ids[1]]
    status, (moved,) = await batch(action="move", schedule_ids=[ids[2]], delay_ms=90_000)
    assert (status, moved["deliver_at"]) == (200, START_MS + 90_000)
    assert (await ask(client, "GET", f"/{moved['new_schedule_id']}"))[0] == 200
    assert (await ask(client, "GET", f"/{ids[2]}"))[0] == 404
    status, fired = await batch(action="fire", schedule_ids=ids[3:5])
    assert status == 200
    assert sorted(result["offset"] for result in fired) == [0, 1]
    assert {result["topic"] for result in fired} == {"orders"}
    status, (late,) = await batch(action="cancel", schedule_ids=[ids[3]])
    assert (late["ok"], late["error_code"]) == (False, 40950)
    _, page = await ask(client, "GET", "?order=due")
    assert [row["schedule_id"] for row in page["schedules"]] == [ids[5], moved["new_schedule_id"]]
    for body, answer in (
        ({"action": "cancel", "schedule_ids": []}, (422, 422)),
        ({"action": "cancel", "schedule_ids": ["x"] * SCHEDULES_PER_BATCH_MAX}, (200, None)),
        ({"action": "cancel", "schedule_ids": ["x"] * (SCHEDULES_PER_BATCH_MAX + 1)}, (422, 422)),
        ({"action": "cancel", "schedule_ids": ["x" * 64]}, (200, None)),
        ({"action": "cancel", "schedule_ids": ["x" * 65]}, (422, 422)),
        ({"action": "cancel", "schedule_ids": ["x"], "delay_ms": 1}, (422, 422)),
        ({"action": "move", "schedule_ids": ["x"]}, (422, 422)),
        ({"action": "move", "schedule_ids": ["x"], "delay_ms": 1, "deliver_at": 1}, (422, 422)),
        ({"action": "move", "schedule_ids": ["x"], "delay_ms": 31_536_000_000}, (200, None)),
        ({"action": "move", "schedule_ids": ["x"], "delay_ms": 31_536_000_001}, (422, 42250)),
        ({"action": "move", "schedule_ids": ["x"], "deliver_at": START_MS + 31_536_000_001}, (422, 42250)),
        ({"action": "move", "schedule_ids": ["x"], "deliver_at": "soon"}, (422, 42250)),
        ({"action": "drop", "schedule_ids": ["x"]}, (422, 422)),
    ):
        status, told = await batch(**body)
        assert (status, None if status == 200 else told) == answer, str(body)[:80]


@pytest.mark.parametrize(
    ("settings", "delays_ms"),
    [({"timer.pending_count_max": 2}, (5_000, 90_000)), ({"timer.slot_count_max": 2}, (3_000, 3_001))],
    ids=["pending", "in one second"],
)
async def test_a_bound_is_answered_429_but_a_repeat_as_what_it_is(client: Client, delays_ms: tuple[int, int]) -> None:
    async def post(*records: dict[str, object]) -> tuple[int, str | None, Any]:
        headers = {"Content-Type": "application/vnd.kafka.json.v2+json"}
        response = await client.post("/topics/orders", json={"records": records}, headers=headers)
        return response.status, response.headers.get("Retry-After"), await response.json(content_type=None)

    first, second = ({"value": 1, "delay_ms": delay_ms, "msg_id": str(delay_ms)} for delay_ms in delays_ms)
    _, _, accepted = await post(first, second)
    status, retry_after, refused = await post({"value": 1, "delay_ms": 3_500})
    assert (status, retry_after, refused["error_code"]) == (429, "5", 42950)
    status, _, repeated = await post(second)
    assert (status, repeated["offsets"][0]["schedule_id"]) == (200, accepted["offsets"][1]["schedule_id"])
    assert (await ask(client, "GET", ""))[1]["total"] == 2
    await ask(client, "DELETE", f"/{accepted['offsets'][0]['schedule_id']}")
    await ask(client, "GET", "")  # which waits until the cancelled one is off the wheel
    assert (await post({"value": 1, "delay_ms": 3_500}))[0] == 200


@pytest.mark.parametrize("settings", [{"timer.slot_count_max": 1}])
async def test_a_move_to_a_full_second_is_answered_429(client: Client) -> None:
    stays, moves = await send(client, 3_000, 4_000)
    assert await ask(client, "PATCH", f"/{moves}", json={"delay_ms": 3_500}) == (429, 42950)
    assert (await ask(client, "GET", f"/{moves}"))[0] == (await ask(client, "GET", f"/{stays}"))[0] == 200


async def test_cancelling_answers_exactly(client: Client) -> None:
    near, far, due = await send(client, 5_000, 90_000, 1)
    assert await ask(client, "DELETE", f"/{near}") == (204, None)
    assert await ask(client, "DELETE", f"/{near}") == (404, 40450)
    assert await ask(client, "GET", f"/{near}") == (404, 40450)
    status, fired = await ask(client, "POST", f"/{far}:fire")
    assert (status, fired["topic"], fired["offset"]) == (200, "orders", 0)
    for method, path in (("DELETE", ""), ("GET", ""), ("POST", ":fire")):
        assert await ask(client, method, f"/{far}{path}") == (409, 40950)
    assert await ask(client, "PATCH", f"/{far}", json={"delay_ms": 5}) == (409, 40950)
    assert (await ask(client, "GET", f"/{due}"))[0] == 200
    for nothing in ("x", "s" + "A" * 27, near[:-1] + "!"):
        assert await ask(client, "DELETE", f"/{nothing}") == (404, 40450)


async def test_moving_gives_a_new_id(client: Client) -> None:
    (old,) = await send(client, 5_000)
    status, moved = await ask(client, "PATCH", f"/{old}", json={"deliver_at": "2023-11-14T22:14:20Z"})
    assert (status, moved["deliver_at"]) == (200, START_MS + 60_000)
    assert await ask(client, "GET", f"/{old}") == (404, 40450)
    status, shown = await ask(client, "GET", f"/{moved['schedule_id']}")
    assert (status, shown["deliver_at"], shown["created_at"]) == (200, START_MS + 60_000, None)
    _, again = await ask(client, "PATCH", f"/{moved['schedule_id']}", json={"delay_ms": 1_000})
    assert again["deliver_at"] == START_MS + 1_000


async def test_bulk_cancel_needs_a_topic_and_takes_what_is_meant(client: Client) -> None:
    await send(client, 1_000, 2_000, 3_000)
    await send(client, 4_000, key="o-77")
    assert await ask(client, "DELETE", "") == (422, 422)
    assert await ask(client, "DELETE", "?topic=nothing") == (404, 40401)
    assert await ask(client, "DELETE", "?topic=orders&key=o-77") == (200, {"cancelled": 1})
    assert await ask(client, "DELETE", f"?topic=orders&to={START_MS + 2_001}") == (200, {"cancelled": 2})
    assert await ask(client, "DELETE", "?topic=orders") == (200, {"cancelled": 1})
    assert (await ask(client, "GET", ""))[1]["total"] == 0


@pytest.mark.parametrize(
    ("method", "path", "body", "answer"),
    [
        ("GET", "?limit=0", None, (422, 42253)),
        ("GET", f"?limit={PAGE_ROWS_MAX + 1}", None, (422, 42253)),
        ("GET", "?cursor=x", None, (400, 40050)),
        ("GET", "?include=all", None, (422, 422)),
        ("GET", "?from=yesterday", None, (400, 400)),
        ("GET", "?order=size", None, (422, 422)),
        ("GET", "?order=due&cursor=1", None, (400, 40050)),
        ("GET", "?order=due&cursor=1.x", None, (400, 40050)),
        ("GET", "?cursor=1.1", None, (400, 40050)),
        ("GET", "?key=k", None, (422, 422)),
        ("GET", ":histogram?bounds=1", None, (422, 42253)),
        ("GET", ":histogram?bounds=1,2&buckets=1", None, (422, 422)),
        ("GET", ":histogram?bounds=2,1", None, (422, 422)),
        ("GET", f":histogram?bounds={TIME_MS_MAX - 1},2x1", None, (422, 422)),
        ("GET", ":histogram?bounds=1,x", None, (400, 400)),
        ("GET", ":histogram?bounds=1,2x", None, (400, 400)),
        ("GET", ":histogram?bounds=1,1x2x3", None, (400, 400)),
        ("GET", ":histogram?bounds=2x1,5", None, (400, 400)),
        ("GET", ":histogram?bounds=1,0x5", None, (422, 42253)),
        ("GET", f":histogram?bounds=1,2,{BUCKETS_MAX}x0", None, (422, 42253)),
        ("GET", f":histogram?bounds=1,{'9' * 18}x1", None, (422, 42253)),
        ("GET", f":histogram?bounds={','.join(map(str, range(BUCKETS_MAX + 2)))}", None, (422, 42253)),
        ("GET", ":histogram?from=10&to=10", None, (422, 422)),
        ("GET", f":histogram?buckets={BUCKETS_MAX + 1}", None, (422, 42253)),
        ("PATCH", "/ID", b"", (400, 400)),
        ("PATCH", "/ID", b"[]", (400, 400)),
        ("PATCH", "/ID", b'{"delay_ms":1,"deliver_at":1}', (400, 400)),
        ("PATCH", "/ID", b'{"delay_ms":-1}', (422, 42250)),
        ("PATCH", "/ID", b'{"delay_ms":true}', (422, 42250)),
        ("PATCH", "/ID", b'{"delay_ms":31536000001}', (422, 42250)),
        ("PATCH", "/ID", b'{"deliver_at":"soon"}', (422, 42250)),
    ],
)
async def test_what_is_illegal(
    client: Client, method: str, path: str, body: bytes | None, answer: tuple[int, int]
) -> None:
    (schedule,) = await send(client, 5_000)
    assert await ask(client, method, path.replace("ID", schedule), data=body) == answer


async def send_keyed(client: Client, *records: dict[str, object], path: str = "/topics/orders") -> tuple[int, Any]:
    headers = {"Content-Type": "application/vnd.kafka.json.v2+json"}
    response = await client.post(path, json={"records": list(records)}, headers=headers)
    body = await response.json(content_type=None)
    return response.status, body["offsets"] if response.status == 200 else body


async def test_a_schedule_is_shown_moved_and_cancelled_by_its_senders_key(client: Client) -> None:
    named = {"value": 1, "delay_ms": 60_000, "schedule_key": "remind/77 \u00e4"}
    _, (receipt,) = await send_keyed(client, named)
    by_key = "/remind%2F77%20%C3%A4"
    status, shown = await ask(client, "GET", f"{by_key}?topic=orders&include=value")
    assert (status, shown["schedule_id"], shown["schedule_key"], shown["value"]) == (
        200, receipt["schedule_id"], "remind/77 \u00e4", 1,
    )  # fmt: skip
    status, moved = await ask(client, "PATCH", f"{by_key}?topic=orders", json={"delay_ms": 90_000})
    assert (status, moved["deliver_at"]) == (200, START_MS + 90_000)
    status, shown = await ask(client, "GET", f"{by_key}?topic=orders")
    assert (status, shown["schedule_id"]) == (200, moved["schedule_id"])
    assert await ask(client, "GET", by_key) == (404, 40450)  # no schedule id
    assert await ask(client, "GET", "/other?topic=orders") == (404, 40450)
    assert await ask(client, "GET", f"{by_key}?topic=nowhere") == (404, 40401)
    assert await ask(client, "DELETE", f"{by_key}?topic=orders") == (204, None)
    assert await ask(client, "DELETE", f"{by_key}?topic=orders") == (404, 40450)
    status, (again,) = await send_keyed(client, named)
    assert (status, again["error_code"]) == (200, None)
    status, fired = await ask(client, "POST", f"{by_key}:fire?topic=orders")
    assert (status, fired["topic"]) == (200, "orders")
    assert await ask(client, "GET", f"{by_key}?topic=orders") == (404, 40450)
    read = await client.get(f"/topics/orders/partitions/{fired['partition']}/records?offset=0")
    (message,) = await read.json(content_type=None)
    assert (message["schedule_key"], message["schedule_id"]) == ("remind/77 \u00e4", message["schedule_id"])


async def test_a_key_that_is_taken_refuses_its_record_alone_where_records_are_refused_alone(client: Client) -> None:
    first = {"value": 1, "delay_ms": 60_000, "schedule_key": "k"}
    _, (receipt,) = await send_keyed(client, first)
    status, error = await send_keyed(client, first)
    assert (status, error["error_code"]) == (409, 40954)
    assert receipt["schedule_id"] in error["message"]
    status, offsets = await send_keyed(
        client,
        {"value": 2},
        first,
        {"value": 3, "delay_ms": 60_000, "schedule_key": "l"},
        first | {"schedule_key": "l"},
    )
    assert status == 200
    assert [offset["error_code"] for offset in offsets] == [None, 40954, None, 40954]
    assert [offset["offset"] for offset in offsets[1:]] == [None, None, None]
    response = await client.post("/mq/v1/topics/orders/messages?delay_ms=60000&schedule_key=k", data=b"x")
    assert response.status == 409


async def test_a_repeat_of_a_keyed_send_is_a_repeat(client: Client) -> None:
    record = {"value": 1, "delay_ms": 60_000, "schedule_key": "k", "msg_id": "m"}
    _, (first,) = await send_keyed(client, record)
    status, (again,) = await send_keyed(client, record)
    assert (status, again["schedule_id"], again["duplicate"]) == (200, first["schedule_id"], True)
    headers = {"Content-Type": "application/vnd.kafka.json.v2+json", "Idempotency-Key": "i"}
    body = {"records": [{"value": 2, "delay_ms": 60_000, "schedule_key": "l"}]}
    answers = [await client.post("/topics/orders", json=body, headers=headers) for _ in range(2)]
    assert [answer.status for answer in answers] == [200, 200]
    one, two = [(await answer.json(content_type=None))["offsets"][0]["schedule_id"] for answer in answers]
    assert one == two


@pytest.mark.parametrize(
    ("fields", "error_code"),
    [
        ({"schedule_key": "k"}, 422),
        ({"schedule_key": "", "delay_ms": 1}, 42251),
        ({"schedule_key": 7, "delay_ms": 1}, 42251),
        ({"schedule_key": "k" * (SCHEDULE_KEY_BYTES_MAX + 1), "delay_ms": 1}, 42251),
        ({"schedule_key": "k" * SCHEDULE_KEY_BYTES_MAX, "delay_ms": 60_000}, None),
        ({"schedule_key": None}, None),
    ],
)
async def test_what_may_be_a_schedule_key(client: Client, fields: dict[str, object], error_code: int | None) -> None:
    status, answer = await send_keyed(client, {"value": 1, **fields})
    assert (answer["error_code"] if status != 200 else answer[0]["error_code"]) == error_code


async def test_a_schedule_key_without_a_delay_refuses_its_record_alone(client: Client) -> None:
    status, answer = await send_keyed(client, {"value": 1}, {"value": 1, "schedule_key": "k"})
    assert (status, [one["error_code"] for one in answer]) == (200, [None, 422])
    assert "needs delay_ms or deliver_at" in answer[1]["error"]
