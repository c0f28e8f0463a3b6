"""gateway/surfaces/sse/group_stream.py, on a whole server: event streams that consume in a group."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import orjson
import pytest

from gateway.api.shapes.queries import STREAM_CREDIT_DEFAULT, STREAM_CREDIT_MAX
from gateway.auth.access import OPEN, Permission, forbidden
from gateway.surfaces.sse import topic_stream
from gateway.surfaces.sse.group_stream import PIECE_RECORDS
from tests.gateway.main.test_wiring import config_of, serving
from tests.gateway.surfaces.native.test_groups import Caller
from tests.waiting import PATIENCE_S

Json = dict[str, Any]
PATH = "/mq/v1/topics/orders/sse"


@pytest.fixture
async def caller(tmp_path: Path) -> AsyncIterator[Caller]:
    async with serving(config_of(tmp_path)) as session:
        caller = Caller(session)
        await caller.ok("PUT", "topics/orders", {"partitions": 1})
        yield caller


class Events:
    """The messages of one stream, with `Accept: application/x-ndjson`."""

    def __init__(self, response: aiohttp.ClientResponse) -> None:
        self.response = response

    async def next(self, count: int) -> list[Json]:
        found: list[Json] = []
        async with asyncio.timeout(PATIENCE_S):
            while len(found) < count:
                line = orjson.loads(await self.response.content.readline())
                if "event" not in line:
                    found.append(line)
        return found

    async def quiet(self, seconds: float = 0.2) -> None:
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(seconds):
                await self.next(1)


@asynccontextmanager
async def stream(caller: Caller, query: str) -> AsyncIterator[Events]:
    headers = {"Accept": "application/x-ndjson"}
    async with caller.session.get(f"{PATH}?group=g&{query}", headers=headers) as response:
        assert response.status == 200, await response.text()
        yield Events(response)


async def test_records_are_handed_out_with_receipts_and_settled_by_post(caller: Caller) -> None:
    await caller.send({"value": "YQ=="}, {"value": "Yg=="})
    async with stream(caller, "ack=manual&invisible_ms=60000") as events:
        first, second = await events.next(2)
        assert [first["delivery_attempt"], first["offset"], second["offset"]] == [1, 0, 1]
        assert all(result["ok"] for result in await caller.settle("ack", [first]))
        assert all(result["ok"] for result in await caller.settle("nack", [second], delay_ms=0))
        (again,) = await events.next(1)
        assert (again["offset"], again["delivery_attempt"]) == (1, 2)
        await caller.settle("ack", [again])
        await events.quiet()
    assert (await caller.ok("GET", "groups/g/lag"))["total_lag"] == 0


async def test_a_stream_has_its_credit_out_until_some_are_settled(caller: Caller) -> None:
    await caller.send(*({"value": "YQ=="} for _ in range(6)))
    async with stream(caller, "ack=manual&credit=2&invisible_ms=60000") as events:
        held = await events.next(2)
        await events.quiet()
        extended = await caller.settle("extend", held, invisible_ms=60_000)
        await events.quiet()
        await caller.ok("POST", "groups/g/messages:ack", {"receipts": [extended[0]["new_receipt"]]})
        (third,) = await events.next(1)
        await events.quiet()
        up_to = {"topic": "orders", "partition": 0, "offset": third["offset"]}
        assert await caller.ok("POST", "groups/g/messages:ack", {"up_to": up_to}) == {"acked": 2}
        assert [one["offset"] for one in await events.next(2)] == [3, 4]


async def test_a_lease_that_ends_makes_room_and_the_record_comes_again(caller: Caller) -> None:
    await caller.send({"value": "YQ=="})
    async with stream(caller, "ack=manual&credit=1&invisible_ms=300") as events:
        attempts = [one["delivery_attempt"] for one in await events.next(2)]
    assert attempts == [1, 2]


async def test_records_are_done_when_they_are_sent(caller: Caller) -> None:
    count = PIECE_RECORDS + 5
    await caller.send(*({"value": "YQ=="} for _ in range(count)))
    async with stream(caller, "ack=auto") as events:
        messages = await events.next(count)
        assert [one["offset"] for one in messages] == list(range(count))
        assert not any("receipt" in one for one in messages)
        async with asyncio.timeout(PATIENCE_S):
            while (await caller.ok("GET", "groups/g/lag"))["total_lag"]:  # noqa: ASYNC110 -- another's state
                await asyncio.sleep(0.02)
    assert await caller.receive() == []


async def test_two_streams_share_the_records_and_one_opened_again_goes_on(caller: Caller) -> None:
    got: list[int] = []

    async def take(events: Events) -> None:
        while True:
            got.extend(one["offset"] for one in await events.next(1))

    async with stream(caller, "ack=auto&from=latest") as one, stream(caller, "ack=auto") as other:
        takers = [asyncio.create_task(take(events)) for events in (one, other)]
        for _ in range(4):
            await caller.send({"value": "YQ=="})
        async with asyncio.timeout(PATIENCE_S):
            while len(got) < 4:  # noqa: ASYNC110 -- filled by the takers
                await asyncio.sleep(0.01)
        for taker in takers:
            taker.cancel()
    await caller.send({"value": "Yg=="})
    async with stream(caller, "ack=auto") as events:
        got += [one["offset"] for one in await events.next(1)]
    assert sorted(got) == [0, 1, 2, 3, 4]


@pytest.mark.parametrize("ack", ["manual", "auto"])
async def test_a_rule_that_changes_while_a_stream_waits_ends_it_before_the_next_record(
    caller: Caller, monkeypatch: pytest.MonkeyPatch, ack: str
) -> None:
    is_denied = False

    def check(_: object, permission: Permission, *, topic: str | None = None, group: str | None = None) -> None:
        if is_denied and permission is Permission.RECEIVE:
            raise forbidden(permission, topic, group)

    monkeypatch.setattr(type(OPEN), "check", check)
    async with stream(caller, f"ack={ack}") as events:
        await events.quiet()
        is_denied = True
        await caller.send({"value": "YQ=="})
        async with asyncio.timeout(PATIENCE_S):
            told = orjson.loads(await events.response.content.readline())
            assert (told.get("event"), told.get("error_code")) == ("error", 40301)
            assert await events.response.content.read() == b""
    is_denied = False
    (given_back,) = await caller.receive()
    assert given_back["delivery_attempt"] == 1


async def test_server_sent_events_of_a_group_have_no_ids(caller: Caller) -> None:
    await caller.send({"value": "YQ=="})
    async with caller.session.get(f"{PATH}?group=g&ack=auto") as response:
        assert response.headers["Content-Type"] == "text/event-stream"
        lines = [await response.content.readline() for _ in range(5)]
        assert lines[:3] == [b": connected\n", b"\n", b"event: message\n"]
        assert orjson.loads(lines[3].removeprefix(b"data: "))["offset"] == 0


async def test_a_quiet_stream_says_now_and_then_that_it_is_there(
    caller: Caller, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(topic_stream, "HEARTBEAT_MS", 50)
    for accept, said in (("text/event-stream", b": hb\n"), ("application/x-ndjson", b'{"event":"heartbeat"}\n')):
        async with caller.session.get(f"{PATH}?group=g&ack=manual&credit=1", headers={"Accept": accept}) as response:
            async with asyncio.timeout(PATIENCE_S):
                while await response.content.readline() != said:
                    pass


@pytest.mark.parametrize(
    ("query", "code"),
    [
        ("group=g", 422),
        ("group=g&ack=perhaps", 422),
        ("ack=auto", 422),
        ("credit=5", 422),
        (f"group=g&ack=auto&credit={STREAM_CREDIT_MAX + 1}", 42253),
        ("group=g&ack=auto&credit=0", 42253),
        ("group=g&ack=auto&invisible_ms=0", 42253),
        ("group=g&ack=auto&invisible_ms=43200001", 42253),
        ("group=g&ack=auto&partitions=0", 422),
        ("group=g&ack=auto&format=json", 422),
        ("group=g&ack=auto&reset=latest", 422),
        ("group=g%20&ack=auto", 422),
        ("group=g&ack=auto&topics=nothing", 40401),
    ],
)
async def test_what_a_group_stream_cannot_be_is_refused(caller: Caller, query: str, code: int) -> None:
    async with caller.session.get(f"{PATH}?{query}") as response:
        assert (await response.json())["error_code"] == code
    assert STREAM_CREDIT_DEFAULT <= STREAM_CREDIT_MAX


async def test_the_largest_credit_is_taken(caller: Caller) -> None:
    async with stream(caller, f"ack=manual&credit={STREAM_CREDIT_MAX}") as events:
        await caller.send({"value": "YQ=="})
        assert len(await events.next(1)) == 1


@pytest.mark.parametrize("kind", ["topic", "group", "receive", "fetch"])
async def test_what_waits_for_a_client_that_is_gone_ends_at_once(
    caller: Caller, kind: str, caplog: pytest.LogCaptureFixture
) -> None:
    await caller.ok("POST", "groups/g/messages:receive", {"topics": ["orders"]})
    wait_ms = topic_stream.HEARTBEAT_MS
    method, path, body = {
        "topic": ("GET", PATH, None),
        "group": ("GET", f"{PATH}?group=g&ack=auto", None),
        "receive": ("POST", "/mq/v1/groups/g/messages:receive", {"topics": ["orders"], "wait_ms": wait_ms}),
        "fetch": ("GET", f"/mq/v1/topics/orders/partitions/0/messages/0?timeout={wait_ms}", None),
    }[kind]  # fmt: skip
    gauge = b"mq_long_polls 1.0" if kind in ("receive", "fetch") else b"mq_streams 1.0"

    async def is_there() -> bool:
        async with caller.session.get("/metrics") as page:
            return gauge in (await page.read()).splitlines()

    asking = asyncio.create_task(_ask(caller, method, path, body))
    async with asyncio.timeout(wait_ms / 2000):
        while not await is_there():  # noqa: ASYNC110
            await asyncio.sleep(0.01)
        asking.cancel()
        while await is_there():  # noqa: ASYNC110
            await asyncio.sleep(0.01)
    assert not [record for record in caplog.records if record.levelname == "ERROR"]


async def _ask(caller: Caller, method: str, path: str, body: Json | None) -> None:
    async with caller.session.request(method, path, json=body) as response:
        await response.read()
