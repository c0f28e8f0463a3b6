"""gateway/surfaces/sse/topic_stream.py and streaming.py, through HTTP: nothing lost, nothing twice, wherever a stream
breaks off."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from typing import Any
from unittest.mock import Mock

import orjson
import pytest
from aiohttp import ClientResponse
from aiohttp.test_utils import TestServer, make_mocked_request

from gateway.auth.access import OPEN, Access, Permission
from gateway.codec.cursors import write_cursor
from gateway.errors import RequestError
from gateway.settings.limits import Limits
from gateway.surfaces.http import streaming
from gateway.surfaces.http.context import Gateway
from gateway.surfaces.http.streaming import StreamedAnswer
from gateway.surfaces.rest_v2 import fetch
from gateway.surfaces.sse import topic_stream
from gateway.surfaces.sse.topic_stream import CURSOR_BYTES_MAX, TOPICS_MAX, FollowedPartition
from tests.clock import FakeClock
from tests.gateway.conftest import Client
from tests.gateway.fake_broker import FakeBroker
from tests.gateway.production_server import ProductionServer
from tests.gateway.security.kit import served

PATH = "/mq/v1/topics/orders/sse"
JSON = {"Content-Type": "application/vnd.kafka.json.v2+json"}


@dataclass
class Event:
    """One event, as a browser would see it."""

    name: str
    id: str
    data: dict[str, object]


async def send(client: Client, *values: object, partition: int = 0, topic: str = "orders", **fields: object) -> None:
    records = [{"value": value, **fields} for value in values]
    path = f"/topics/{topic}/partitions/{partition}"
    assert (await client.post(path, json={"records": records}, headers=JSON)).status == 200


@asynccontextmanager
async def stream(client: Client, query: str = "", **headers: str) -> AsyncIterator[ClientResponse]:
    response = await client.get(PATH + query, headers=headers)
    assert response.status == 200, await response.text()
    try:
        yield response
    finally:
        response.close()


async def blocks(response: ClientResponse) -> AsyncIterator[list[str]]:
    """The lines between two blank ones."""
    lines: list[str] = []
    async for line in response.content:
        text = line.decode().rstrip("\n")
        if text:
            lines.append(text)
        else:
            yield lines
            lines = []


async def events(response: ClientResponse) -> AsyncIterator[Event]:
    """Events as WHATWG HTML, 9.2.6 has them made: an id stays until the next one."""
    last_id = ""
    async for lines in blocks(response):
        name, data = "message", []
        for line in lines:
            field, _, value = line.partition(": ")
            if field == "id":
                last_id = value
            elif field == "event":
                name = value
            elif field == "data":
                data.append(value)
        if data:
            yield Event(name, last_id, orjson.loads("\n".join(data)))


async def until_caught_up(response: ClientResponse) -> list[Event]:
    seen = []
    async for event in events(response):
        if event.name == "caught_up":
            return [*seen, event]
        seen.append(event)
    raise AssertionError(f"the stream ended: {seen}")


async def test_records_come_with_the_cursor_behind_them_and_then_caught_up(client: Client) -> None:
    await send(client, 1, 2)
    await send(client, 3, partition=2)
    async with stream(client, "?from=earliest") as response:
        assert response.headers["Content-Type"] == "text/event-stream"
        assert response.headers["Cache-Control"] == "no-store"
        first, second, third, caught_up = await until_caught_up(response)
    assert (
        first.data.items()
        >= {"topic": "orders", "partition": 0, "offset": 0, "value": 1, "message_id": "16-0-0"}.items()
    )
    assert [event.id for event in (first, second, third)] == [
        "orders@16:0=1;orders:1=0;orders:2=0;orders:3=0",
        "orders@16:0=2;orders:1=0;orders:2=0;orders:3=0",
        "orders@16:0=2;orders:1=0;orders:2=1;orders:3=0",
    ]
    assert caught_up.id == third.id


async def test_the_opening_names_the_epoch_and_a_first_cursor(client: Client) -> None:
    await send(client, 1)
    async with stream(client, "?partitions=0") as response:
        opening = await anext(blocks(response))
    assert opening == [": connected epoch=16", "retry: 2000", "id: orders@16:0=1"]


async def take(items: AsyncIterator[list[str]], count: int) -> AsyncIterator[list[str]]:
    async for item in items:
        yield item
        count -= 1
        if not count:
            return


async def test_new_records_arrive_while_it_is_open(client: Client, broker: FakeBroker) -> None:
    async with stream(client, "?partitions=0,1") as response:
        reading = events(response)
        assert (await anext(reading)).name == "caught_up"
        await broker.waiting.wait()
        await send(client, "a", partition=1)
        assert (await anext(reading)).data["value"] == "a"
        await send(client, "b", partition=0)
        event = await anext(reading)
        assert (event.data["value"], event.id) == ("b", "orders@16:0=1;orders:1=1")


@pytest.mark.parametrize("stop_after", range(5))
async def test_a_stream_goes_on_exactly_where_it_broke_off(client: Client, stop_after: int) -> None:
    await send(client, 0, 1, 2)
    await send(client, 3, 4, partition=1)
    seen: list[object] = []
    last_id = ""
    async with stream(client, "?from=earliest&partitions=0,1") as response:
        async for event in events(response):
            if len(seen) == stop_after:
                break
            seen.append(event.data["value"])
            last_id = event.id
    query = "?from=earliest&partitions=0,1" if stop_after == 0 else "?partitions=0,1"
    headers = {"Last-Event-ID": last_id} if last_id else {}
    async with stream(client, query, **headers) as response:
        seen += [event.data["value"] for event in (await until_caught_up(response))[:-1]]
    assert sorted(seen, key=str) == [0, 1, 2, 3, 4]


async def test_other_forms_of_a_cursor(client: Client) -> None:
    await send(client, 0, 1, 2)
    for query in (
        "?last_event_id=orders:0=2",
        "?last_event_id=[{%22topic%22:%22orders%22,%22partition%22:0,%22offset%22:2}]",
    ):
        async with stream(client, query) as response:
            assert [event.data.get("value") for event in await until_caught_up(response)] == [2, None]


async def test_a_partition_that_the_cursor_does_not_know_begins_at_its_beginning(client: Client) -> None:
    await send(client, 0)
    await send(client, 1, partition=1)
    async with stream(client, "", **{"Last-Event-ID": "orders@16:0=1"}) as response:
        assert [event.data.get("value") for event in await until_caught_up(response)] == [1, None]


async def test_from_a_time_on(client: Client, clock: FakeClock) -> None:
    await send(client, 0)
    clock.step(1000)
    await send(client, 1)
    async with stream(client, f"?from={clock.now_ms()}") as response:
        assert [event.data.get("value") for event in await until_caught_up(response)] == [1, None]


async def test_a_filter_leaves_records_out_and_moves_the_cursor_on(client: Client) -> None:
    await send(client, 1, tag="paid")
    await send(client, 2, 3, tag="open")
    async with stream(client, "?from=earliest&partitions=0&filter=tag:paid") as response:
        paid, caught_up = await until_caught_up(response)
    assert (paid.data["value"], caught_up.id) == (1, "orders@16:0=3")


@pytest.mark.parametrize("path", [f"{PATH}?from=earliest", "/topics/orders/partitions/0/records?max_bytes=67108864"])
async def test_of_dozens_that_read_much_at_once_one_has_its_turn(
    client: Client, path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for _ in range(4):
        await send(client, *["x" * 1_000] * 200)
    turn = 0
    rendered: Counter[int] = Counter()

    def noted(render: Callable[..., Any]) -> Callable[..., Any]:
        def render_and_note(*arguments: Any, **named: Any) -> Any:
            rendered[turn] += 1
            return render(*arguments, **named)

        return render_and_note

    async def count() -> None:
        nonlocal turn
        while True:
            await asyncio.sleep(0)
            turn += 1

    monkeypatch.setattr(streaming, "render_records_in_steps", noted(streaming.render_records_in_steps))
    monkeypatch.setattr(fetch, "render_texts_in_steps", noted(fetch.render_texts_in_steps))

    async def read() -> None:
        async with client.get(path) as response:
            assert response.status == 200
            await response.content.readexactly(4 * 200 * 1_000)

    counting = asyncio.ensure_future(count())
    await asyncio.gather(*(read() for _ in range(12)))
    counting.cancel()
    assert rendered.total() >= 12
    assert max(rendered.values()) == 1


async def test_several_topics_and_their_epochs(client: Client, broker: FakeBroker) -> None:
    await broker.create_topic("other", 1)
    await send(client, "o", topic="other")
    await send(client, 1, partition=3)
    async with stream(client, "?from=earliest&topics=other,orders") as response:
        seen = await until_caught_up(response)
    assert {event.data.get("value") for event in seen} == {1, "o", None}
    assert seen[-1].id == "orders@16:0=0;orders:1=0;orders:2=0;orders:3=1;other@17:0=1"


async def test_lines_for_those_who_are_no_browser(client: Client) -> None:
    await send(client, {"a": "b"})
    headers = {"Accept": "application/x-ndjson"}
    async with stream(client, "?from=earliest&partitions=0", **headers) as response:
        lines = [orjson.loads(await response.content.readline()) for _ in range(3)]
    connected, record, caught_up = lines
    assert connected == {"event": "connected", "epochs": {"orders": "16"}, "cursor": "orders@16:0=0"}
    assert (record["value"], record["cursor"], "event" in record) == ({"a": "b"}, "orders@16:0=1", False)
    assert caught_up == {"event": "caught_up", "cursor": "orders@16:0=1"}


async def test_values_with_line_breaks_stay_one_event(client: Client) -> None:
    await client.post("/mq/v1/topics/orders/messages?partition=0", data=b'{"a":\r\n1}')
    await client.post("/mq/v1/topics/orders/messages?partition=0", data=b"x\n\ndata: forged")
    async with stream(client, "?from=earliest&partitions=0") as response:
        first, second, _ = await until_caught_up(response)
    assert first.data["value"] == {"a": 1}
    assert second.data["value_text"] == "x\n\ndata: forged"


async def test_quiet_streams_are_kept_alive_with_their_cursor(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(topic_stream, "HEARTBEAT_MS", 10)
    async with stream(client, "?partitions=0") as response:
        seen = [lines async for lines in take(blocks(response), 4)]
    assert [": hb", "id: orders@16:0=0"] in seen


async def test_a_draining_server_says_goodbye(client: Client, gateway: Gateway) -> None:
    async with stream(client, "?partitions=0") as response:
        reading = events(response)
        await anext(reading)
        gateway.draining.set()
        goaway = await anext(reading)
        assert (goaway.name, goaway.data["reason"], goaway.id) == ("goaway", "shutdown", "orders@16:0=0")
        assert await response.content.read() == b""
    assert gateway.stats.stream_count == 0


async def test_a_topic_that_goes_away_ends_the_stream_with_an_error(client: Client, broker: FakeBroker) -> None:
    async with stream(client, "?partitions=0") as response:
        reading = events(response)
        await anext(reading)
        await broker.waiting.wait()
        await broker.create_topic("a", 1)
        await broker.delete_topic("orders")
        error = await anext(reading)
    assert (error.name, error.data["error_code"]) == ("error", 40401)


async def test_a_topic_that_is_made_again_is_another(client: Client, broker: FakeBroker) -> None:
    await send(client, 1)
    response = await client.get(PATH, headers={"Last-Event-ID": "orders@15:0=0"})
    answer = await response.json()
    assert (response.status, answer["error_code"], answer["details"]["epoch"]) == (409, 40953, "16")
    assert answer["details"]["partitions"][0] == {"partition": 0, "beginning_offset": 0, "end_offset": 1}


async def test_a_cursor_that_retention_has_passed(client: Client, broker: FakeBroker) -> None:
    await send(client, 0, 1, 2)
    broker.min_offsets = dict.fromkeys(broker.entries, 2)
    headers = {"Last-Event-ID": "orders@16:0=0"}
    response = await client.get(PATH, headers=headers)
    assert (response.status, (await response.json())["details"]["beginning_offset"]) == (416, 2)
    async with stream(client, "?reset=earliest", **headers) as response:
        assert [event.data.get("value") for event in await until_caught_up(response)] == [2, None]
    async with stream(client, "?reset=latest", **headers) as response:
        assert len(await until_caught_up(response)) == 1


@pytest.mark.parametrize(
    ("query", "status", "code"),
    [
        ("?from=now", 400, 400),
        ("?partitions=a", 422, 422),
        ("?partitions=4", 404, 40402),
        ("?filter=x", 422, 42252),
        ("?format=xml", 422, 422),
        ("?reset=now", 422, 422),
        ("?last_event_id=x", 400, 40050),
        ("?topics=none", 404, 40401),
        ("?topics=orders2&partitions=0", 422, 422),
        ("?form=json", 422, 422),
        ("?topics=" + ",".join(f"t{number}" for number in range(TOPICS_MAX)), 422, 42253),
    ],
)
async def test_bad_requests_are_told_why(client: Client, query: str, status: int, code: int) -> None:
    response = await client.get(PATH + query)
    assert (response.status, (await response.json())["error_code"]) == (status, code)


def test_the_size_of_a_cursor_is_limited() -> None:
    offset = 10**topic_stream._OFFSET_DIGITS - 1
    followed = [FollowedPartition(f"topic{number // 100}", 10**9, number, offset) for number in range(1000)]
    epochs = {one.topic: str(one.topic_id) for one in followed}

    refusals = set[int]()

    def size(count: int) -> int:
        return len(write_cursor(((one.topic, one.partition, one.offset) for one in followed[:count]), epochs))

    def fits(count: int) -> bool:
        try:
            topic_stream.check_cursor_size((one.topic, 10**9, one.partition) for one in followed[:count])
        except RequestError as error:
            refusals.add(error.error_code)
            return False
        return True

    most = max(count for count in range(1, 1000) if fits(count))
    assert size(most) <= CURSOR_BYTES_MAX < size(most + 2)
    assert not fits(most + 1)
    assert refusals == {42253}


async def test_a_topic_with_too_many_partitions_needs_a_choice(client: Client, broker: FakeBroker) -> None:
    await broker.create_topic("wide", 1000)
    response = await client.get("/mq/v1/topics/wide/sse")
    assert (response.status, (await response.json())["error_code"]) == (422, 42253)
    assert (await client.head("/mq/v1/topics/wide/sse?partitions=0,999")).status == 200


async def test_the_number_of_streams_is_limited(
    gateway: Gateway, aiohttp_client: Callable[[TestServer], object]
) -> None:
    narrow = replace(gateway, limits=Limits(streams_max=1))
    server = ProductionServer(narrow)
    await server.start_server()
    client: Client = await aiohttp_client(server)  # type: ignore[misc]
    async with stream(client, "?partitions=0"):
        response = await client.get(PATH)
        assert (response.status, (await response.json())["error_code"]) == (429, 42950)
        assert "Retry-After" in response.headers
    async with asyncio.timeout(topic_stream.HEARTBEAT_MS / 2000):  # before anything would be written
        while narrow.stats.stream_count:  # noqa: ASYNC110 -- a plain counter
            await asyncio.sleep(0.01)
    async with stream(client, "?partitions=0"):
        pass


async def test_rights_that_end_end_the_stream(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    ends: list[Callable[[], None]] = []

    class Ending:
        principal = "somebody"
        expires_at_ms = None
        is_over = False

        def allows(self, permission: Permission, *, topic: str | None = None, group: str | None = None) -> bool:
            return topic != "secret"

        def check(self, permission: Permission, *, topic: str | None = None, group: str | None = None) -> None:
            if topic == "secret":
                raise RequestError(40301, "no")

        def watch(self, on_end: Callable[[], None]) -> Callable[[], None]:
            ends.append(on_end)
            return lambda: None

    access: Access = Ending()
    monkeypatch.setattr(topic_stream, "access_of", lambda request: access)
    assert (await client.get(PATH + "?topics=secret")).status == 403
    async with stream(client, "?partitions=0") as response:
        reading = events(response)
        await anext(reading)
        ends[0]()
        error = await anext(reading)
        assert (error.name, error.data["error_code"]) == ("error", 40101)
    assert OPEN.expires_at_ms is None


async def test_a_client_that_takes_nothing_is_cut_off_and_others_do_not_notice(
    gateway: Gateway, client: Client
) -> None:
    hasty = replace(gateway, config=replace(gateway.config, ws_write_timeout_ms=200))
    for _ in range(200):
        await send(client, "x" * 100_000)
    async with served(hasty) as port:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(f"GET {PATH}?from=earliest HTTP/1.1\r\nHost: localhost\r\n\r\n".encode())
        async with stream(client, "?from=earliest&partitions=0") as response:
            assert len(await until_caught_up(response)) == 201
        while hasty.stats.stream_count:  # noqa: ASYNC110 -- a plain counter
            await asyncio.sleep(0.01)
        assert (hasty.stats.slow_close_count, hasty.stats.answers.held_bytes) == (1, 0)
        assert reader is not None
        writer.close()


async def test_a_client_that_goes_is_told_to_its_streams_and_to_none_that_has_ended(gateway: Gateway) -> None:
    lost: asyncio.Future[None] = asyncio.Future()
    protocol = Mock(ssl_context=None, peername=None, lost=lambda: lost)
    answer = StreamedAnswer(gateway, make_mocked_request("GET", "/", protocol=protocol))
    told: list[str] = []
    with answer.when_gone(lambda: told.append("ended")):
        pass
    with answer.when_gone(lambda: told.append("open")):
        lost.set_result(None)
        await asyncio.sleep(0)
    with answer.when_gone(lambda: told.append("late")):
        await asyncio.sleep(0)
    assert told == ["open", "late"]
