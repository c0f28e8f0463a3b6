"""gateway/surfaces/native/recurring.py, through HTTP, over a real store; and gateway/api/recurring.py."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from aiohttp.test_utils import TestServer

from gateway.api.shapes.recurring import NAME_CHARS_MAX
from gateway.main.admin import BROKER_NAME, LocalAdmin
from gateway.main.application import build_application
from gateway.main.wiring import build_gateway, build_recurring
from gateway.recurring.rule import CRON_CHARS_MAX, EVERY_MS_MAX, EVERY_MS_MIN
from gateway.recurring.service import RecurringSchedules
from gateway.routing.delivery import RoutedPartitions
from gateway.routing.table import RouteTable
from gateway.settings.config import build
from gateway.settings.limits import RECURRING_RECORD_BYTES_MAX, Limits
from gateway.surfaces.native.recurring import RECURRING
from store import Store
from store.files import OsFiles
from tests.clock import START_MS, FakeClock
from tests.gateway.conftest import Client
from tests.gateway.production_server import ProductionServer
from timer.service import TimerService

PATH = "/mq/v1/recurring"
SETTINGS: dict[str, object] = {
    "store.commit_log_file_bytes": 16 * 1024 * 1024,
    "store.extent_bytes": 1024 * 1024,
    "store.disk_floor_bytes": 0,
    "timer.roll_window_ms": 60_000,
    "limits.recurring_max": 5,
}
HOURLY = {"topic": "orders", "record": {"value": 1}, "every_ms": 3_600_000}


@dataclass
class World:
    client: Client
    recurring: RecurringSchedules
    admin: LocalAdmin
    clock: FakeClock

    async def ask(self, method: str, path: str, body: object = None, **options: Any) -> tuple[int, Any]:
        """Status, and the body: of an error its code and message, of an empty answer None."""
        response = await self.client.request(method, PATH + path, json=body, **options)
        if response.status == 204:
            return 204, None
        told = await response.json(content_type=None)
        return response.status, (told["error_code"], told["message"]) if response.status >= 400 else told

    async def pass_ms(self, ms: int) -> None:
        self.clock.step(ms)
        while await self.recurring.step():
            pass

    async def records(self, topic: str = "orders", partition: int = 0) -> list[Any]:
        path = f"/topics/{topic}/partitions/{partition}/records?offset=0"
        answer = await self.client.get(path, headers={"Accept": "application/vnd.kafka.json.v2+json"})
        found: list[Any] = await answer.json(content_type=None)
        return found


@pytest.fixture
async def world(
    tmp_path: Path, clock: FakeClock, aiohttp_client: Callable[[TestServer], Awaitable[Client]]
) -> AsyncIterator[World]:
    """A server with the topics `orders` and `others`, whose recurring schedules fire when a test says so."""
    config = build({"data": tmp_path, **SETTINGS})
    files = OsFiles()
    store = await Store.open(config.store, files=files, clock=clock)
    routes = RouteTable()
    timer = TimerService(config.timer, store, files, clock, partitions=RoutedPartitions(routes, own=BROKER_NAME))
    await timer.start()
    admin = LocalAdmin(store, timer, Limits(), routes)
    await admin.create_topic("orders", 1)
    await admin.create_topic("others", 1)
    gateway, _ = build_gateway(config, store, timer, admin, clock)
    application = build_application(gateway)
    recurring = application[RECURRING] = build_recurring(gateway, store, admin)
    await recurring.start()
    writing = asyncio.create_task(recurring._events.run())
    yield World(await aiohttp_client(ProductionServer(gateway, application)), recurring, admin, clock)
    writing.cancel()
    await asyncio.wait([writing])
    await recurring.close()
    await timer.close()
    await store.close()


async def test_a_recurring_schedule_is_made_shown_fired_and_deleted(world: World) -> None:
    record = {"key": "k", "value": {"sku": 9}, "headers": [{"key": "own", "value": "MQ=="}], "tag": "paid"}
    body = {"topic": "orders", "record": record, "cron": "30 2 * * *", "tz": "Europe/Berlin", "missed": "all"}
    status, made = await world.ask("PUT", "/nightly", body)
    assert status == 201
    assert made == {
        "name": "nightly", "topic": "orders", "every_ms": None, "anchor": None, "cron": "30 2 * * *",
        "tz": "Europe/Berlin", "missed": "all", "paused": False, "version": 1, "next_at": made["next_at"],
        "last_at": None, "last_partition": None, "last_offset": None, "delivered_count": 0, "missed_count": 0,
        "created_at": START_MS, "updated_at": START_MS, "error": None, "record": record,
    }  # fmt: skip
    assert await world.ask("GET", "/nightly") == (200, made)
    assert await world.ask("PUT", "/nightly", body) == (200, made), "the same again changes nothing"
    await world.pass_ms(made["next_at"] - START_MS)
    (sent,) = await world.records()
    assert (sent["key"], sent["value"], sent["tag"]) == ("k", {"sku": 9}, "paid")
    assert sent["deliver_at"] == sent["timestamp"] == made["next_at"]
    assert {"key": "mq-recurring", "value": "bmlnaHRseQ=="} in sent["headers"]
    _, shown = await world.ask("GET", "/nightly")
    assert (shown["last_at"], shown["last_partition"], shown["last_offset"]) == (made["next_at"], 0, 0)
    assert shown["delivered_count"] == 1
    assert await world.ask("DELETE", "/nightly") == (204, None)
    for method, verb in (("GET", ""), ("DELETE", ""), ("POST", ":pause"), ("POST", ":resume")):
        status, told = await world.ask(method, f"/nightly{verb}")
        assert (status, told[0]) == (404, 40452)


async def test_what_is_shown_can_be_put_again(world: World) -> None:
    for record in (
        {"value": None},
        {"key": "k", "value": "text", "partition": 0, "message_group": "g"},
        {"key_b64": "/w==", "value_b64": "/w=="},
        {"value_text": "no { json"},
    ):
        for rule in ({"every_ms": 60_000, "anchor": START_MS - 5_000}, {"cron": "@daily", "tz": "Asia/Tokyo"}):
            _, made = await world.ask("PUT", "/r", {"topic": "orders", "record": record, **rule})
            names = ("topic", "record", "every_ms", "anchor", "cron", "tz", "missed", "paused")
            status, again = await world.ask("PUT", "/r", {name: made[name] for name in names})
            assert (status, again) == (200, made), record


async def test_pause_and_resume_and_a_put_that_says_nothing_of_it(world: World) -> None:
    await world.ask("PUT", "/r", HOURLY)
    status, paused = await world.ask("POST", "/r:pause")
    assert (status, paused["paused"], paused["next_at"]) == (200, True, None)
    assert (await world.ask("PUT", "/r", {**HOURLY, "record": {"value": 2}}))[1]["paused"]
    await world.pass_ms(10 * 3_600_000)
    status, resumed = await world.ask("POST", "/r:resume")
    assert (status, resumed["paused"], resumed["missed_count"]) == (200, False, 0)
    assert resumed["next_at"] == START_MS + 11 * 3_600_000
    assert (await world.ask("PUT", "/r", {**HOURLY, "paused": True}))[1]["paused"]
    assert await world.records() == []


async def test_pages_by_name_and_topic(world: World) -> None:
    for name, topic in (("c", "orders"), ("a", "orders"), ("b", "others"), ("d", "orders")):
        await world.ask("PUT", f"/{name}", {**HOURLY, "topic": topic})
    names, cursor = [], ""
    while cursor is not None:
        _, page = await world.ask("GET", f"?topic=orders&limit=2{cursor and '&cursor=' + cursor}")
        names.append([row["name"] for row in page["recurring"]])
        assert "record" not in page["recurring"][0]
        cursor = page["next_cursor"]
    assert names == [["a", "c"], ["d"]]
    _, page = await world.ask("GET", "?include=record")
    assert [(row["name"], row["record"]) for row in page["recurring"]][1] == ("b", {"key": None, "value": 1})


@pytest.mark.parametrize(
    ("change", "code", "said"),
    [
        ({"every_ms": None}, 422, "one of the two"),
        ({"cron": "@daily"}, 422, "one of the two"),
        ({"every_ms": EVERY_MS_MIN - 1}, 422, "every_ms: must be"),
        ({"every_ms": EVERY_MS_MAX + 1}, 422, "every_ms: must be"),
        ({"tz": "Europe/Berlin"}, 422, "tz: goes with cron"),
        ({"every_ms": None, "cron": "@daily", "tz": "Europe/Nowhere"}, 422, "not a time zone"),
        ({"every_ms": None, "cron": "@daily", "anchor": 0}, 422, "anchor: goes with every_ms"),
        ({"every_ms": None, "cron": "61 * * * *"}, 422, "Bad minute"),
        ({"every_ms": None, "cron": "* " * (CRON_CHARS_MAX // 2) + "*"}, 422, "cron: must be"),
        ({"anchor": "yesterday"}, 422, "anchor:"),
        ({"missed": "none"}, 422, "missed: must be"),
        ({"paused": "yes"}, 422, "paused: must be"),
        ({"more": 1}, 422, "Unrecognized field"),
        ({"topic": "nowhere"}, 40401, "not found"),
        ({"record": 7}, 400, "record: A record must be a JSON object"),
        ({"record": {"value": 1, "delay_ms": 5}}, 422, "record.delay_ms"),
        ({"record": {"value": 1, "timestamp": 5}}, 422, "record.timestamp"),
        ({"record": {"value": 1, "msg_id": "a"}}, 422, "record.msg_id"),
        ({"record": {"value": 1, "partition": 1}}, 40402, "Partition"),
        ({"record": {"value": 1, "more": 5}}, 422, "more"),
        ({"record": {"headers": [{"key": "mq-recurring", "text": "x"}]}}, 42251, "reserved"),
    ],
)
async def test_what_cannot_recur_is_refused_and_nothing_is_there(
    world: World, change: dict[str, object], code: int, said: str
) -> None:
    _, told = await world.ask("PUT", "/r", {**HOURLY, **change})
    assert told[0] == code
    assert said in told[1]
    assert (await world.ask("GET", ""))[1]["recurring"] == []


async def test_limits_at_n_and_one_more(world: World) -> None:
    for length, status in ((NAME_CHARS_MAX, 201), (NAME_CHARS_MAX + 1, 422)):
        assert (await world.ask("PUT", "/" + "n" * length, HOURLY))[0] == status
    assert (await world.ask("PUT", "/no%20blank", HOURLY))[0] == 422
    assert (await world.ask("PUT", "/no:colon", HOURLY))[0] == 404
    for length, status in ((RECURRING_RECORD_BYTES_MAX, 201), (RECURRING_RECORD_BYTES_MAX + 1, 413)):
        record = {"value_text": "\0" * length}
        assert (await world.ask("PUT", f"/b{length}", {**HOURLY, "record": record}))[0] == status
    for every_ms in (EVERY_MS_MIN, EVERY_MS_MAX):
        assert (await world.ask("PUT", f"/e{every_ms}", {**HOURLY, "every_ms": every_ms}))[0] == 201
    cron = "0 0 " + "1,1" + " " * (CRON_CHARS_MAX - len("0 0 1,1* *")) + "* *"
    assert len(cron) == CRON_CHARS_MAX
    body = {"topic": "orders", "record": {"value": 1}, "cron": cron}
    assert (await world.ask("PUT", "/fifth", body))[0] == 201
    status, told = await world.ask("PUT", "/sixth", HOURLY)
    assert (status, told[0]) == (429, 42950)
    assert (await world.ask("PUT", "/fifth", HOURLY))[0] == 200, "what is there may change"


async def test_it_says_why_it_waits(world: World) -> None:
    await world.ask("PUT", "/r", {**HOURLY, "topic": "others"})
    await world.admin.delete_topic("others")
    await world.pass_ms(3_600_000)
    _, shown = await world.ask("GET", "/r")
    assert "does not exist" in shown["error"]
    assert shown["last_at"] is None
    await world.admin.create_topic("others", 1)
    await world.pass_ms(5_000)
    assert (await world.ask("GET", "/r"))[1]["error"] is None
    assert len(await world.records("others")) == 1


async def test_the_anchor_is_kept_while_the_interval_is(world: World) -> None:
    _, made = await world.ask("PUT", "/r", HOURLY)
    assert (made["anchor"], made["next_at"]) == (START_MS, START_MS + 3_600_000)
    world.clock.step(60_000)
    _, kept = await world.ask("PUT", "/r", {**HOURLY, "record": {"value": 2}})
    assert kept["anchor"] == START_MS
    _, anew = await world.ask("PUT", "/r", {**HOURLY, "every_ms": 7_200_000})
    assert anew["anchor"] == START_MS + 60_000
    _, said = await world.ask("PUT", "/r", {**HOURLY, "anchor": "2030-01-01T00:00:00Z"})
    assert said["next_at"] == said["anchor"] == 1_893_456_000_000
