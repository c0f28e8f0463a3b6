"""What both clients do (clients/behaviours.toml), tried with the Python client against a real server and against the
server in memory: what holds for one must hold for the other, or tests that users write with `mq.testing` mean nothing.

What needs a server that is killed is in tests/e2e/test_python_client.py.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import mq
import pytest
from mq.client import Client
from mq.testing import Fake

from tests.e2e.server import Server

WITHIN_S = 20.0


class Host:
    """Where a client is tried, and how time passes there."""

    def __init__(self, server: Server | None) -> None:
        self.server = server
        self.fake = Fake() if server is None else None
        self.is_real = server is not None
        self._number = 0

    def connect(self, **options: Any) -> Client:
        if self.server is not None:
            return mq.connect(self.server.url, **options)
        assert self.fake is not None
        return Fake(server=self.fake.server, **options)

    async def until(self, is_so: Callable[[], bool] | Callable[[], Awaitable[bool]], what: object = "it") -> None:
        """Let time pass until it is so."""
        clock = asyncio.get_running_loop().time
        end = clock() + WITHIN_S
        while True:
            answer = is_so()
            if answer if isinstance(answer, bool) else await answer:
                return
            assert clock() < end, f"not within {WITHIN_S} s: {what() if callable(what) else what}"
            if self.fake is not None:
                await self.fake.advance("50ms")
            await asyncio.sleep(0.005)

    def topic(self, name: str) -> str:
        self._number += 1
        return f"{name}-{self._number}"


@pytest.fixture(params=["server", "memory"])
async def host(request: pytest.FixtureRequest, real: Server) -> Host:
    return Host(real if request.param == "server" else None)


@pytest.fixture(scope="module")
def real(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """One server for all tests of this file."""
    server = Server(tmp_path_factory.mktemp("python") / "data")
    loop = asyncio.new_event_loop()
    loop.run_until_complete(server.start())
    yield server
    loop.run_until_complete(server.end())
    loop.close()


@pytest.fixture
async def client(host: Host) -> AsyncIterator[Client]:
    async with host.connect() as client:
        yield client


async def collect(messages: Any, count: int) -> list[mq.Message[Any]]:
    async def gathered() -> list[mq.Message[Any]]:
        found: list[mq.Message[Any]] = []
        async for message in messages:
            found.append(message)
            if len(found) == count:
                break
        return found

    return await asyncio.wait_for(gathered(), WITHIN_S)


async def made(client: Client, host: Host, name: str, partitions: int = 1) -> str:
    topic = host.topic(name)
    await client.topics.create(topic, partitions)
    return topic


@pytest.mark.behaviour(1, 2, 3)
@pytest.mark.embedded("a Kafka cluster has one durability, whatever is asked for")
async def test_sends_are_stored_in_order_and_receipts_say_where(client: Client, host: Host) -> None:
    topic = await made(client, host, "order")
    receipts = await asyncio.gather(*(client.send(topic, n) for n in range(2_500)))
    assert [receipt.offset for receipt in receipts] == list(range(2_500))
    assert {receipt.acks for receipt in receipts} == {"flushed"}
    written = await client.send(topic, "w", acks="written")
    assert (written.offset, written.acks) == (2_500, "written")
    messages = await collect(client.read(topic, start="earliest"), 2_501)
    assert [message.value for message in messages] == [*range(2_500), "w"]


@pytest.mark.behaviour(12)
async def test_json_text_bytes_tombstones_keys_and_headers_come_out_as_they_went_in(client: Client, host: Host) -> None:
    topic = await made(client, host, "round")
    values = [{"a": [1, None, "é"]}, "text", 1.5, True, b"\x00\xff", b"\xfe" * 70_000, None, [], "", b""]
    at = datetime(2026, 5, 6, 7, 8, 9, 123_000, tzinfo=UTC)
    for n, value in enumerate(values):
        await client.send(
            topic, value, key=f"k{n}" if n % 2 else b"\xfe", tag="t", timestamp=at,
            headers={"text": "é", "raw": b"\xff", "none": None},
        )  # fmt: skip
    messages = await collect(client.read(topic, start="earliest"), len(values))
    assert [message.value for message in messages[:-1]] == values[:-1]
    assert messages[-1].value_bytes == b""
    assert [message.key for message in messages] == [f"k{n}" if n % 2 else b"\xfe" for n in range(len(values))]
    for message in messages:
        assert message.headers == {"text": "é", "raw": b"\xff", "none": None}
        assert (message.tag, message.timestamp) == ("t", at)
    assert messages[3].id == f"{topic}:0:3"
    raw = await collect(client.read(topic, start="earliest", as_=bytes), 3)
    assert [message.value for message in raw] == ['{"a":[1,null,"é"]}'.encode(), b'"text"', b"1.5"]


@pytest.mark.behaviour(5)
async def test_of_a_list_with_a_bad_record_none_is_stored_and_of_single_sends_only_the_bad_one(
    client: Client, host: Host
) -> None:
    topic = await made(client, host, "bad")
    with pytest.raises(mq.Refused) as caught:
        await client.send_many(topic, [1, mq.Record(2, partition=9), 3])
    assert caught.value.code == 40402
    sends = [client.send(topic, n, partition=9 if n == 1 else None) for n in range(3)]
    done = await asyncio.gather(*sends, return_exceptions=True)
    assert [type(one) for one in done] == [mq.Receipt, mq.Refused, mq.Receipt]
    assert [message.value for message in await collect(client.read(topic, start="earliest"), 2)] == [0, 2]
    with pytest.raises(mq.Refused) as caught:
        await client.send("no-such-topic", 1)
    assert caught.value.code == 40401


async def test_a_record_of_one_msg_id_is_stored_once(client: Client, host: Host) -> None:
    topic = await made(client, host, "ids")
    first, again = [await client.send(topic, n, msg_id="order-77") for n in range(2)]
    assert (again.offset, again.duplicate, first.duplicate) == (first.offset, True, False)


@pytest.mark.behaviour(10, 11)
async def test_delayed_records_are_listed_moved_cancelled_and_fired_with_exact_answers(
    client: Client, host: Host
) -> None:
    topic = await made(client, host, "later")
    schedules = client.schedules
    reader = client.read(topic, start="earliest")
    await reader.ready()
    soon = await client.send(topic, "soon", delay="300ms", key="u1", tag="t")
    assert (soon.offset, soon.schedule_id is not None) == (None, True)
    named = await client.send(topic, {"n": 1}, delay="1h", schedule_key="order-77")
    cancelled, fired, moved = [await client.send(topic, text, delay="1h") for text in ("cancelled", "fired", "moved")]
    assert soon.deliver_at is not None
    assert cancelled.deliver_at is not None
    assert 3590 < (cancelled.deliver_at - soon.deliver_at).total_seconds() < 3610
    listed = {one.schedule_id: one async for one in schedules.list(topic)}
    assert listed.keys() >= {one.schedule_id for one in (named, cancelled, fired, moved)}
    shown = await schedules.get(topic, "order-77")
    assert (shown.schedule_id, shown.schedule_key, shown.value) == (named.schedule_id, "order-77", {"n": 1})
    late = [one async for one in schedules.list(topic, since=shown.deliver_at + timedelta(hours=1))]
    assert late == []
    with pytest.raises(mq.Refused) as caught:
        await client.send(topic, 2, delay="1h", schedule_key="order-77")
    assert caught.value.code == 40954
    assert cancelled.schedule_id is not None
    assert fired.schedule_id is not None
    assert moved.schedule_id is not None
    await schedules.cancel(cancelled.schedule_id)
    again = await schedules.move(moved.schedule_id, delay="200ms")
    assert again.schedule_id not in (None, moved.schedule_id)
    where = await schedules.fire(fired.schedule_id)
    assert (where.partition, where.offset is not None) == (0, True)
    await schedules.move(topic, "order-77", at=datetime.now(UTC) + timedelta(days=300))
    await schedules.cancel(topic, "order-77")
    for wrong, code in (("sNone", 40450), (fired.schedule_id, 40950)):
        with pytest.raises(mq.Refused) as caught:
            await schedules.cancel(wrong)
        assert caught.value.code in (code, 40450 if wrong == "sNone" else code, 40050)
    with pytest.raises(mq.MqError, match="either delay"):
        await schedules.move(topic, "order-77")
    found: list[mq.Message[Any]] = []

    async def follow() -> None:
        async for message in reader:
            found.append(message)

    following = asyncio.ensure_future(follow())
    await host.until(lambda: len(found) == 3, lambda: [message.value for message in found])
    following.cancel()
    by_value = {message.value: message for message in found}
    assert by_value.keys() == {"soon", "fired", "moved"}
    arrived = by_value["soon"]
    assert (arrived.key, arrived.tag, arrived.schedule_id, arrived.deliver_at) == (
        "u1",
        "t",
        soon.schedule_id,
        soon.deliver_at,
    )
    assert arrived.store_timestamp_ms >= (soon.deliver_at_ms or 0)


@pytest.mark.behaviour(47)
async def test_recurring_schedules_send_by_themselves_rest_and_end(client: Client, host: Host) -> None:
    topic = await made(client, host, "again")
    recurring, name = client.recurring, host.topic("tick")
    put = await recurring.put(
        name, topic, {"n": 1}, every="1s", key="k", tag="t", headers={"own": "1"}, partition=0, missed="all"
    )
    assert (put.topic, put.every_ms, put.missed, put.paused, put.last_at) == (topic, 1_000, "all", False, None)
    assert await recurring.put(
        name, topic, {"n": 1}, every="1s", key="k", tag="t", headers={"own": "1"}, partition=0, missed="all"
    ) == put, "the same again changes nothing"  # fmt: skip
    reader = client.read(topic, start="earliest")
    found: list[mq.Message[Any]] = []

    async def follow() -> None:
        async for message in reader:
            found.append(message)

    following = asyncio.ensure_future(follow())
    await host.until(lambda: len(found) >= 2, lambda: found)
    following.cancel()
    for message in found:
        assert (message.value, message.key, message.tag) == ({"n": 1}, "k", "t")
        assert message.headers == {"own": "1", "mq-recurring": name}
        assert message.timestamp == message.deliver_at
    dues_ms = [message.deliver_at_ms or 0 for message in found]
    assert dues_ms == list(range(dues_ms[0], dues_ms[0] + 1_000 * len(dues_ms), 1_000))
    rests = await recurring.pause(name)
    assert (rests.paused, rests.next_at) == (True, None)
    assert rests.delivered_count >= 2
    assert [one.name async for one in recurring.list(topic)] == [name]
    shown = await recurring.get(name)
    assert shown.record is not None
    assert shown.record["value"] == {"n": 1}
    goes_on = await recurring.resume(name)
    assert goes_on.next_at is not None
    assert goes_on.last_at is not None
    assert goes_on.next_at > goes_on.last_at
    daily = await recurring.put(name, topic, b"\xff", cron="30 2 * * *", tz="Europe/Berlin", paused=True)
    assert (daily.cron, daily.tz, daily.every_ms, daily.paused) == ("30 2 * * *", "Europe/Berlin", None, True)
    assert daily.version > put.version
    await recurring.put(host.topic("named"), topic, None, cron="@daily", anchor=None, paused=True)
    for wrong in ({"cron": "60 * * * *"}, {"cron": "@daily", "tz": "Europe/Nowhere"}):
        with pytest.raises(mq.Refused) as caught:
            await recurring.put(name, topic, 1, **wrong)
        assert caught.value.code == 422
    with pytest.raises(mq.MqError, match="either every"):
        await recurring.put(name, topic, 1)
    with pytest.raises(mq.Refused) as caught:
        await recurring.put(name, "no-such-topic", 1, every="1h")
    assert caught.value.code == 40401
    await recurring.delete(name)
    for gone in (recurring.get, recurring.pause, recurring.resume, recurring.delete):
        with pytest.raises(mq.Refused) as caught:
            await gone(name)
        assert caught.value.code == 40452


@pytest.mark.behaviour(23)
async def test_a_reader_goes_on_from_the_cursor_of_another(client: Client, host: Host) -> None:
    topic = await made(client, host, "cursor")
    await client.send_many(topic, list(range(10)))
    reader = client.read(topic, start="earliest")
    assert len(await collect(reader, 4)) == 4
    assert reader.cursor == f"{topic}:0=4"
    rest = await collect(client.read(topic, cursor=reader.cursor), 6)
    assert [message.value for message in rest] == list(range(4, 10))


@pytest.mark.behaviour(25)
async def test_an_offset_out_of_range_is_refused_and_so_is_an_unknown_topic(client: Client, host: Host) -> None:
    topic = await made(client, host, "range")
    for reader, code in ((client.read(topic, cursor=f"{topic}:0=5"), 41601), (client.read("no-such-topic"), 40401)):
        with pytest.raises(mq.Refused) as caught:
            await collect(reader, 1)
        assert caught.value.code == code


@pytest.mark.behaviour(26)
async def test_tags_choose_records(client: Client, host: Host) -> None:
    topic = await made(client, host, "tags")
    await client.send_many(topic, [mq.Record(n, tag="abc"[n % 3]) for n in range(30)])
    found = await collect(client.read(topic, start="earliest", tags=["a", "c"]), 20)
    assert [message.value for message in found] == [n for n in range(30) if n % 3 != 1]
    stream = client.group(f"{topic}-g").stream(topic, start="earliest", tags=["b"])
    assert [message.value for message in await collect(stream, 10)] == list(range(1, 30, 3))


@pytest.mark.behaviour(27)
async def test_a_pattern_takes_in_topics_that_come_later(client: Client, host: Host) -> None:
    topic = await made(client, host, "grow")
    reader = client.read(pattern=f"{topic}.*", start="earliest")
    await reader.ready()
    found: list[Any] = []

    async def follow() -> None:
        async for message in reader:
            found.append(message.value)

    following = asyncio.ensure_future(follow())
    await client.topics.create(f"{topic}-b", 1)
    await client.send(f"{topic}-b", "new")
    await client.send(topic, "old")
    await host.until(lambda: sorted(found) == ["new", "old"], lambda: found)
    following.cancel()


@pytest.mark.behaviour(28, 29)
async def test_caught_up_is_told_once_and_seek_goes_back(client: Client, host: Host) -> None:
    topic = await made(client, host, "seek")
    await client.send_many(topic, list(range(100)))
    told: list[int] = []
    reader = client.read(topic, start="earliest", on_caught_up=lambda: told.append(1))
    iterator = aiter(reader)
    first = [(await anext(iterator)).value for _ in range(100)]
    assert first == list(range(100))
    await host.until(lambda: told == [1])
    await reader.seek({topic: {"0": 90}})
    again = [(await anext(iterator)).value for _ in range(10)]
    assert again == list(range(90, 100))
    await host.until(lambda: told == [1, 1])
    await iterator.aclose()  # type: ignore[attr-defined]


@pytest.mark.behaviour(30)
async def test_a_slow_reader_holds_up_nobody_else_on_the_connection(client: Client, host: Host) -> None:
    topic = await made(client, host, "slow")
    for _ in range(5):
        await client.send_many(topic, list(range(1000)))
    slow = aiter(client.read(topic, start="earliest", credit=100))
    await anext(slow)
    quick = await collect(client.read(topic, start="earliest"), 5_000)
    assert [message.offset for message in quick] == list(range(5_000))
    rest = [(await anext(slow)).offset for _ in range(4_999)]
    assert rest == list(range(1, 5_000))
    await slow.aclose()  # type: ignore[attr-defined]


@pytest.mark.behaviour(31)
async def test_batches_are_frames_and_raw_batches_hold_the_same(client: Client, host: Host) -> None:
    topic = await made(client, host, "batches")
    await client.send_many(topic, [mq.Record({"n": n}, key=f"k{n}", tag="t") for n in range(1000)])
    values: list[Any] = []
    async for batch in client.read(topic, start="earliest").batches():
        assert len({message.partition for message in batch}) == 1
        values += [message.value["n"] for message in batch]
        if len(values) == 1000:
            break
    assert values == list(range(1000))
    if not host.is_real:
        return  # the server in memory has no raw batches, and says so
    records: list[mq.RawRecord] = []
    copy = await made(client, host, "copy")
    reader = client.read(topic, start="earliest")
    async for raw in reader.raw():
        records += raw.records()
        receipts = await client.send_raw(copy, raw.payload, partition=0)
        assert sum(receipt.record_count for receipt in receipts) >= raw.next_offset - raw.offset
        if len(records) == 1000:
            break
    assert reader.cursor == f"{topic}:0=1000"
    assert [(record.offset, record.key, record.value) for record in records] == [
        (n, f"k{n}".encode(), b'{"n":%d}' % n) for n in range(1000)
    ]
    assert {record.headers[0] for record in records} == {("mq-tag", b"t")}
    assert [message.key for message in await collect(client.read(copy, start="earliest"), 1000)] == [
        f"k{n}" for n in range(1000)
    ]


@pytest.mark.behaviour(32, 33)
async def test_a_stream_commits_what_is_done_and_the_next_member_goes_on_there(client: Client, host: Host) -> None:
    topic = await made(client, host, "stream")
    group = client.group(f"{topic}-g")
    await client.send_many(topic, list(range(20)))
    async with group.stream(topic, start="earliest") as stream:
        first = await collect(stream, 5)  # the fifth is in hand when the loop is left
    assert [message.value for message in first] == list(range(5))
    assert await group.lag() == 16
    second = await collect(group.stream(topic), 16)
    assert [message.value for message in second] == list(range(4, 20))


@pytest.mark.behaviour(34)
async def test_two_members_share_a_topic_and_each_record_comes_once_while_one_comes_and_goes(
    client: Client, host: Host
) -> None:
    topic = await made(client, host, "shared", 4)
    counts: dict[int, int] = {}
    revoked: list[bool] = []
    sent = 0

    async def member(name: str, connection: Client) -> None:
        stream = connection.group(f"{topic}-g").stream(
            topic,
            start="earliest",
            member=name,
            commit_interval="100ms",
            on_revoked=lambda partitions, lost: revoked.append(lost),
        )
        async with stream as messages:
            async for message in messages:
                counts[message.value] = counts.get(message.value, 0) + 1
                if message.value % 10 == 0:
                    await asyncio.sleep(0.001)

    async def send(count: int) -> None:
        nonlocal sent
        for _ in range(count):
            await client.send_many(topic, [mq.Record(sent + n, key=f"k{sent + n}") for n in range(10)])
            sent += 10

    one = asyncio.ensure_future(member("one", client))
    await send(10)
    async with host.connect() as other:
        two = asyncio.ensure_future(member("two", other))
        await host.until(lambda: len(revoked) > 0, lambda: counts)
        await send(10)
        await host.until(lambda: len(counts) == sent, lambda: (len(counts), sent))
    await asyncio.wait({two})
    await send(10)
    await host.until(lambda: len(counts) == sent, lambda: (len(counts), sent))
    assert set(counts.values()) == {1}
    assert not any(revoked)
    one.cancel()
    await asyncio.wait({one})


@pytest.mark.behaviour(36)
async def test_a_member_of_the_same_name_takes_up_its_partitions_at_once(client: Client, host: Host) -> None:
    topic = await made(client, host, "member", 2)
    group = client.group(f"{topic}-g")
    await client.send_many(topic, [mq.Record(n, partition=n % 2) for n in range(20)])
    first = await collect(group.stream(topic, start="earliest", member="one"), 20)
    assert sorted(message.value for message in first) == list(range(20))
    await client.send_many(topic, [mq.Record(n, partition=n % 2) for n in range(20, 30)])
    async with host.connect() as other:
        again = await collect(other.group(group.name).stream(topic, member="one"), 11)
    assert sorted(message.value for message in again)[1:] == list(range(20, 30))


@pytest.mark.behaviour(37, 38, 40, 42)
async def test_a_queue_acks_gives_back_with_a_delay_rejects_and_extends(client: Client, host: Host) -> None:
    topic = await made(client, host, "queue")
    group = client.group(f"{topic}-g")
    await client.send_many(topic, ["good", "bad", "slow", "never"])
    attempts: list[tuple[str, int]] = []
    queue = group.queue(topic, lease="5s")

    async def work() -> None:
        async for message in queue:
            attempts.append((message.value, message.attempt))
            match message.value:
                case "good":
                    await message.ack()
                case "bad":
                    await (message.nack("100ms", "again") if message.attempt < 3 else message.ack())
                case "slow":
                    old = message.receipt
                    await message.extend("60s")
                    assert message.receipt != old
                    message.receipt = old  # an extension whose answer was lost does no harm
                    await message.ack()
                case _:
                    await message.reject("no such thing")

    working = asyncio.ensure_future(work())

    async def is_done() -> bool:
        return len(attempts) == 6 and await group.lag() == 0

    await host.until(is_done, lambda: attempts)
    working.cancel()
    await asyncio.wait({working})
    assert [attempt for value, attempt in attempts if value == "bad"] == [1, 2, 3]
    (letter,) = await collect(client.read(f"%DLQ%{group.name}", start="earliest"), 1)
    assert letter.value == "never"
    assert "no such thing" in map(str, letter.headers.values()), letter.headers


@pytest.mark.behaviour(39, 45)
async def test_an_idle_workers_messages_stay_its_own_and_come_again_when_it_goes(client: Client, host: Host) -> None:
    topic = await made(client, host, "leases")
    group = client.group(f"{topic}-g")
    await client.send_many(topic, [1, 2, 3])
    lost: list[Any] = []
    queue = group.queue(topic, lease="1s", on_lost=lost.append)
    first = await queue.get()
    assert first is not None
    others: list[Any] = []
    other = group.queue(topic, lease="1s")

    async def take() -> None:
        async for message in other:
            others.append((message.value, message.attempt))
            await message.ack()

    taking = asyncio.ensure_future(take())
    if host.fake is not None:
        await host.fake.advance("5s")
    else:
        await asyncio.sleep(2.5)
    assert (lost, others) == ([], [])
    await first.ack()
    await queue.aclose()
    await host.until(lambda: len(others) == 2, lambda: others)
    assert sorted(others) == [(2, 2), (3, 2)]
    taking.cancel()
    await asyncio.wait({taking})


@pytest.mark.behaviour(43, 44)
async def test_a_worker_works_off_a_queue_and_stops_when_told(client: Client, host: Host) -> None:
    topic = await made(client, host, "worker", 2)
    group = f"{topic}-g"
    done: list[int] = []

    @mq.worker(topic, group=group, concurrency=16, backoff="50ms")
    async def work(message: mq.Message[int]) -> None:
        await asyncio.sleep(0)
        if message.value % 100 == 0 and message.attempt == 1:
            raise ValueError("once")
        done.append(message.value)

    running = asyncio.ensure_future(work.run(client))
    await client.send_many(topic, list(range(1000)))
    await host.until(lambda: len(done) == 1000, lambda: len(done))
    work.stop()
    await asyncio.wait_for(running, WITHIN_S)
    assert sorted(done) == list(range(1000))
    assert await client.group(group).lag() == 0


async def test_topics_are_created_listed_and_deleted(client: Client, host: Host) -> None:
    topic = await made(client, host, "topics", 3)
    assert topic in await client.topics.list()
    assert (await client.topics.get(topic))["topic"] == topic
    await client.topics.delete(topic)
    assert topic not in await client.topics.list()
    with pytest.raises(mq.Refused) as caught:
        await client.topics.get(topic)
    assert caught.value.code == 40401


async def test_a_group_is_configured_and_forgotten(client: Client, host: Host) -> None:
    topic = await made(client, host, "group")
    group = client.group(f"{topic}-g")
    assert (await group.configure(max_attempts=3))["max_attempts"] == 3
    await collect_none(group.queue(topic))
    await group.delete()
    with pytest.raises(mq.Refused):
        await group.lag()


async def collect_none(queue: mq.Queue[Any]) -> None:
    async with queue:
        pass
