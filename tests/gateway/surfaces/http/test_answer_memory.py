"""gateway/surfaces/http/answer_memory.py: who gets how much, exactly; and what becomes of those who do not read."""

from __future__ import annotations

import asyncio
import tracemalloc

import pytest
from aiohttp import web

from gateway.errors import OVERLOADED
from gateway.settings.limits import ANSWERING_BYTES_MIN, Limits
from gateway.surfaces.http.answer_memory import (
    MAKING_MAX,
    SMALL_BYTES,
    Allowance,
    AnswerMemory,
    size_of,
)
from gateway.surfaces.http.context import Gateway
from store import record_batch
from store.limits import KiB, MiB
from store.record_batch import Record
from store.types import Acks, Append, QueueKey
from tests.clock import FakeClock
from tests.gateway.conftest import Client
from tests.gateway.fake_broker import FakeBroker, fake_gateway
from tests.gateway.security.kit import served, talk
from tests.waiting import PATIENCE_S

BYTES_MAX = 128 * MiB


@pytest.fixture
def memory() -> AnswerMemory:
    return AnswerMemory()


def allowance(memory: AnswerMemory, payer: str = "a") -> Allowance:
    return Allowance(memory, payer, BYTES_MAX)


@pytest.mark.parametrize(
    ("held", "wanted", "granted"),
    [
        (0, MiB, MiB),
        (0, 8 * MiB, 8 * MiB),
        (0, 8 * MiB + 1, 8 * MiB),
        (56 * MiB, 8 * MiB, MiB),
        (64 * MiB - 8 * SMALL_BYTES, MiB, SMALL_BYTES),
        (64 * MiB, MiB, SMALL_BYTES),
        (80 * MiB, MiB, SMALL_BYTES),
        (80 * MiB, 10, 10),
    ],
)
def test_an_answer_gets_an_eighth_of_what_is_free(memory: AnswerMemory, held: int, wanted: int, granted: int) -> None:
    memory.count("a", held)
    one = allowance(memory)
    assert one.share(wanted) == granted
    assert memory.held_bytes == held
    assert one.reserve(wanted) == one.room_bytes == granted
    assert one.is_ample is (wanted == granted)
    assert memory.held_bytes == held + (granted if granted > SMALL_BYTES else 0)
    one.release()
    assert memory.held_bytes == held


def test_one_caller_leaves_half_to_others_and_all_have_a_bound(memory: AnswerMemory) -> None:
    memory.count("a", BYTES_MAX // 2)
    assert allowance(memory, "a").share(MiB) == SMALL_BYTES
    assert allowance(memory, "b").share(MiB) == MiB
    memory.count("b", BYTES_MAX // 2)
    assert allowance(memory, "c").share(MiB) == SMALL_BYTES


def test_what_is_held_is_exact_and_refused_beyond_the_bound(memory: AnswerMemory) -> None:
    memory.count("a", 63 * MiB)
    one = allowance(memory)
    assert not one.hold(MiB + 1)
    assert (memory.held_bytes, memory.refused_count) == (63 * MiB, 1)
    assert one.hold(MiB)
    assert memory.held_bytes == 64 * MiB
    assert one.hold(SMALL_BYTES + 1), "it has that already"
    assert memory.held_bytes == 63 * MiB + SMALL_BYTES + 1
    assert one.hold(SMALL_BYTES), "and this is not counted"
    assert memory.held_bytes == 63 * MiB
    one.must_send = True
    assert one.hold(9 * MiB)
    assert memory.held_bytes == 72 * MiB
    assert allowance(memory).hold(SMALL_BYTES), "small answers are never refused"
    one.release()
    memory.count("a", -63 * MiB)
    assert (memory.held_bytes, memory._by_payer) == (0, {})


async def test_a_few_at_a_time_make_answers_and_nobody_keeps_the_turn(memory: AnswerMemory) -> None:
    makers = [allowance(memory) for _ in range(MAKING_MAX)]
    for one in makers:
        await one.begin(MiB)
        await one.begin(MiB)  # again: it has its turn
    late = allowance(memory)
    waiting = asyncio.ensure_future(late.begin(MiB))
    await asyncio.sleep(0)
    assert not waiting.done()
    makers[0].made()
    makers[0].release()
    assert await waiting == MiB
    for one in (*makers, late):
        one.release()
    assert (memory.held_bytes, memory.making._value) == (0, MAKING_MAX)


def test_the_size_of_an_answer() -> None:
    assert size_of(web.Response(body=b"abc")) == 3
    assert size_of(web.Response(status=204)) == size_of(web.StreamResponse()) == 0


def test_the_limit_at_n_and_below() -> None:
    assert Limits(answering_bytes_max=ANSWERING_BYTES_MIN).answering_bytes_max == ANSWERING_BYTES_MIN
    with pytest.raises(ValueError, match="answering_bytes_max"):
        Limits(answering_bytes_max=ANSWERING_BYTES_MIN - 1)


# Through HTTP

PATH = "/topics/orders/partitions/0/records?max_bytes=67108864"
JSON = {"Accept": "application/vnd.kafka.json.v2+json", "Accept-Encoding": "identity"}
RAW = {"Accept": "application/vnd.mq.batch"}
PULL = b"GET %s HTTP/1.1\r\nHost: localhost\r\nAccept: %s\r\n\r\n"


async def fill(broker: FakeBroker, count: int, value: bytes) -> None:
    for _ in range(count):
        append = Append(
            queue=QueueKey(16, 0), batch=record_batch.encode([Record(None, value, 7)]), record_count=1, json_values=True
        )
        await broker.append([append], acks=Acks.FLUSHED)


async def until_held(gateway: Gateway, *, at_least: int = 0, at_most: int = BYTES_MAX) -> None:
    async with asyncio.timeout(PATIENCE_S):
        while not at_least <= gateway.stats.answers.held_bytes <= at_most:  # noqa: ASYNC110 -- a plain counter
            await asyncio.sleep(0.01)


@pytest.mark.parametrize("accept", [JSON["Accept"], RAW["Accept"], "application/x-ndjson"])
async def test_who_does_not_read_holds_little_and_is_cut_off(accept: str) -> None:
    gateway, broker = fake_gateway(FakeClock(), ws_write_timeout_ms=400)
    await broker.create_topic("orders", 1)
    await fill(broker, 64, b'"%b"' % (b"x" * 500_000))
    async with served(gateway) as port:
        unread = [await asyncio.open_connection("127.0.0.1", port) for _ in range(12)]
        for _, writer in unread:
            writer.write(PULL % (PATH.encode(), accept.encode()))
        await until_held(gateway, at_least=1)
        answer = await talk(port, b"GET /healthz HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
        assert answer.startswith(b"HTTP/1.1 200 ")
        assert gateway.stats.answers.held_bytes <= gateway.limits.answering_bytes_max // 2
        await until_held(gateway, at_most=0)
        async with asyncio.timeout(PATIENCE_S):
            while not gateway.stats.slow_close_count:  # noqa: ASYNC110 -- a plain counter
                await asyncio.sleep(0.01)
        for _, writer in unread:
            writer.close()
    assert gateway.stats.answers.making._value == MAKING_MAX
    assert not gateway.stats.answers.open


async def test_who_reads_slowly_is_not_cut_off() -> None:
    gateway, broker = fake_gateway(FakeClock(), ws_write_timeout_ms=400)
    await broker.create_topic("orders", 1)
    await fill(broker, 40, b'"%b"' % (b"x" * 500_000))
    async with served(gateway) as port:
        reader, writer = await asyncio.open_connection("127.0.0.1", port, limit=KiB)
        writer.write(PULL.replace(b"\r\n\r\n", b"\r\nConnection: close\r\n\r\n") % (PATH.encode(), b"*/*"))
        size = 0
        while chunk := await reader.read(1 * MiB):
            size += len(chunk)
            if size < 4 * MiB:
                await asyncio.sleep(0.005)
        assert size > 40 * 500_000 * 4 / 3
        assert gateway.stats.slow_close_count == 0
        writer.close()


async def test_while_memory_is_short_answers_get_smaller_and_nothing_is_missed(
    client: Client, gateway: Gateway, broker: FakeBroker
) -> None:
    await fill(broker, 60, b'"%b"' % (b"x" * 20_000))
    gateway.stats.answers.count("others", BYTES_MAX)
    for headers in (JSON, RAW):
        offset, answers = 0, 0
        while offset < 60:
            response = await client.get(f"{PATH}&offset={offset}", headers=headers)
            assert response.status == 200
            body = await response.read()
            assert 0 < len(body) <= SMALL_BYTES
            if headers is JSON:
                shown = await response.json(content_type=None)
                assert [record["offset"] for record in shown] == list(range(offset, offset + len(shown)))
                assert int(response.headers["Mq-Next-Offset"]) == offset + len(shown)
            offset = int(response.headers["Mq-Next-Offset"])
            answers += 1
        assert answers > 5
    lines = (await (await client.get(PATH, headers={"Accept": "application/x-ndjson"})).read()).splitlines()
    assert len(lines) == 60, "a range in lines comes whole all the same"
    gateway.stats.answers.count("others", -BYTES_MAX)
    response = await client.get(PATH, headers=JSON)
    assert (response.headers["Mq-Next-Offset"], len(await response.json(content_type=None))) == ("60", 60)
    assert gateway.stats.answers.held_bytes == 0


async def test_what_cannot_be_smaller_is_refused_and_comes_later(
    client: Client, gateway: Gateway, broker: FakeBroker
) -> None:
    await fill(broker, 1, b'"%b"' % (b"x" * MiB))
    memory = gateway.stats.answers
    memory.count("others", BYTES_MAX)
    for headers in (JSON, RAW, {"Accept": "application/x-ndjson"}):
        response = await client.get(PATH, headers=headers)
        assert (response.status, (await response.json())["error_code"]) == (503, OVERLOADED)
        assert response.headers["Retry-After"] == "1"
    assert memory.refused_count == 3
    memory.count("others", -BYTES_MAX)
    for headers in (JSON, RAW, {"Accept": "application/x-ndjson"}):
        response = await client.get(PATH, headers=headers)
        assert response.status == 200
        assert len(await response.read()) > MiB
    assert memory.held_bytes == 0


async def test_a_send_is_answered_however_long_its_answer(client: Client, gateway: Gateway) -> None:
    gateway.stats.answers.count("others", BYTES_MAX)
    body = {"records": [{"value": 1}] * 5000}
    response = await client.post(
        "/topics/orders", json=body, headers={"Content-Type": "application/vnd.kafka.json.v2+json"}
    )
    assert (response.status, len((await response.json(content_type=None))["offsets"])) == (200, 5000)
    assert gateway.stats.answers.held_bytes == BYTES_MAX


async def test_an_answer_that_was_taken_is_not_kept_by_its_connection(gateway: Gateway, broker: FakeBroker) -> None:
    await fill(broker, 1, b'"%b"' % (b"x" * MiB))
    async with served(gateway) as port:
        reader, writer = await asyncio.open_connection("127.0.0.1", port, limit=2 * MiB)
        tracemalloc.start()
        try:
            for _ in range(2):
                before, _ = tracemalloc.get_traced_memory()
                writer.write(PULL % (PATH.encode(), JSON["Accept"].encode()))
                await reader.readuntil(b"]")
                await until_held(gateway, at_most=0)
                await asyncio.sleep(0.05)
            after, _ = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
        assert before < MiB / 2
        assert after < MiB / 2
        writer.close()


async def test_other_callers_are_served_while_one_has_its_half(gateway: Gateway, broker: FakeBroker) -> None:
    await fill(broker, 3, b'"%b"' % (b"x" * MiB))
    gateway.stats.answers.count("address 127.0.0.1", gateway.limits.answering_bytes_max // 2)
    async with served(gateway) as port:
        for local, status in (("127.0.0.1", 503), ("127.0.0.2", 200)):
            reader, writer = await asyncio.open_connection("127.0.0.1", port, local_addr=(local, 0))
            writer.write(PULL % (PATH.encode(), RAW["Accept"].encode()))
            assert (await reader.readline()).split()[1] == b"%d" % status
            writer.close()
