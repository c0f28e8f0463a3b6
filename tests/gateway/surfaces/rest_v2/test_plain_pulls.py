"""gateway.surfaces.rest_v2.plain.V2Pulls: a pull that takes the fast path is answered as it is without it."""

from __future__ import annotations

import asyncio
import re
import socket
from dataclasses import replace

import orjson
import pytest

from gateway.brokers.base import BrokerUnreachable
from gateway.surfaces.http.answer_memory import SMALL_BYTES
from gateway.surfaces.http.answers import PACK_BYTES_MIN
from gateway.surfaces.http.context import Gateway
from gateway.surfaces.rest_v2 import fetch
from store import record_batch
from store.limits import MiB
from store.record_batch import Record
from store.types import OFFSET_MAX, Acks, Append, QueueKey
from tests.clock import FakeClock
from tests.gateway.fake_broker import FakeBroker, fake_gateway
from tests.gateway.security.kit import secured, served
from tests.gateway.surfaces.http import plain_requests
from tests.gateway.surfaces.http.plain_requests import JSON, ONE, ORDINARY, answer, noted, request
from tests.waiting import PATIENCE_S

PATH = "/topics/orders/partitions/0/records"
BATCH_TYPE = "application/vnd.mq.batch"
FIRST_TOPIC_ID = 16


def pull(query: str, *headers: str, accept: str = JSON, path: str = PATH) -> bytes:
    return "\r\n".join(
        [f"GET {path}?{query} HTTP/1.1", "Host: localhost", f"Accept: {accept}", *headers, "", ""]
    ).encode()


def ordinary(sent: bytes) -> bytes:
    """The same request, for aiohttp."""
    return sent.replace(b"\r\n\r\n", f"\r\n{ORDINARY}\r\n\r\n".encode())


async def send(broker: FakeBroker, *values: bytes | None, json_values: bool = True) -> None:
    batch = record_batch.encode([Record(None, value, 7) for value in values])
    queue = QueueKey(FIRST_TOPIC_ID, 0)
    append = Append(queue=queue, batch=batch, record_count=len(values), json_values=json_values)
    await broker.append([append], acks=Acks.FLUSHED)


@pytest.fixture
def taken(monkeypatch: pytest.MonkeyPatch) -> list[int | None]:
    """The offsets of pulls that have taken the fast path."""
    return noted(monkeypatch, lambda meaning, _: meaning.asked.offset)


async def orders(**settings: object) -> tuple[Gateway, FakeBroker]:
    gateway, broker = fake_gateway(FakeClock(), **settings)
    await broker.create_topic("orders", 1)
    return gateway, broker


async def asked(gateway: Gateway, *requests: bytes) -> list[tuple[str, bytes]]:
    """The answers, without what differs from one to the next."""
    return [
        (
            re.sub(r"(?m)^(Date|X-Request-Id|Content-Length): .*$", r"\1: ...", head),
            re.sub(rb'"request_id":"[^"]*"', b"", body),
        )
        for head, body in await plain_requests.asked(gateway, *requests)
    ]


@pytest.mark.parametrize("accept", [JSON, BATCH_TYPE, "application/vnd.kafka.text.v2+json", "application/json", "*/*"])
@pytest.mark.parametrize(
    "query",
    [
        "offset=%d",
        "offset=%d&max_records=2",
        "offset=%d&max_bytes=1",
        "max_bytes=300&offset=%d&end_offset=7",
        "offset=%d&timeout=0&reset=earliest",
        "offset=%d&format=binary",
        "offset=%d&max_bytes=100000000",
    ],
)
async def test_a_pull_is_answered_as_without_the_lane(query: str, accept: str, taken: list[int | None]) -> None:
    gateway, broker = await orders()
    await send(broker, b"1", b'{"a":2}', b"[3]")
    await send(broker, b"no JSON", None, b"\xff", json_values=False)
    await send(broker, b"6", b'"' + b"7" * 500 + b'"', b"8", b"9")
    first = pull(query % 0, accept=accept)
    offsets = [3, 0, 5, 9, 10, 11, 2, OFFSET_MAX, OFFSET_MAX + 1]
    sent = [pull(query % offset, accept=accept) for offset in offsets]
    _, *by_lane = await asked(gateway, first, *sent)
    assert taken == [min(offset, OFFSET_MAX + 1) for offset in offsets]
    counts = gateway.stats.fetched_record_count, gateway.stats.fetched_byte_count
    statuses = gateway.stats.routes["fetch"].statuses
    gateway.stats.fetched_record_count = gateway.stats.fetched_byte_count = 0
    gateway.stats.routes["fetch"].statuses = {}
    _, *by_others = await asked(gateway, ordinary(first), *map(ordinary, sent))
    assert len(taken) == len(offsets)
    assert by_lane == by_others
    assert counts == (gateway.stats.fetched_record_count, gateway.stats.fetched_byte_count)
    assert statuses == gateway.stats.routes["fetch"].statuses
    assert gateway.stats.answers.held_bytes == 0
    assert gateway.stats.answers.open == {}


@pytest.mark.parametrize(
    "sent",
    [
        pull("offset=0&filter=tag:x"),
        pull("offset=0&offset=1"),
        pull("offset=0&oops=1"),
        pull("offset=0&max_records=x"),
        pull("offset=0&timestamp=0"),
        pull("offset=earliest"),
        pull("offset=-1"),
        pull("timestamp=0"),
        pull("offset=0&format=avro"),
        pull("offset=0&access_token=x"),
        pull("offset=0", accept="image/png"),
        pull("offset=0", accept="application/x-ndjson"),
        pull("offset=0", path="/topics/%6frders/partitions/0/records"),
        pull("offset=0", "Origin: http://evil.example"),
        pull("offset=0").replace(b"GET", b"HEAD"),
        request(b"", "Accept: " + JSON, method="GET", target=f"{PATH}?offset=0", content_type=None),
    ],
)
async def test_every_other_pull_takes_the_ordinary_way(sent: bytes, taken: list[int | None]) -> None:
    gateway, broker = await orders()
    await send(broker, b"1")
    async with served(gateway) as port:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        for _ in range(3):
            writer.write(sent)
            head = await reader.readuntil(b"\r\n\r\n")
            length = re.search(rb"Content-Length: (\d+)", head)
            if not sent.startswith(b"HEAD") and length is not None:
                await reader.readexactly(int(length[1]))
            elif length is None:
                await reader.readuntil(b"0\r\n\r\n")
        writer.close()
    assert not taken


@pytest.mark.parametrize("path", ["/topics/none/partitions/0/records", "/topics/orders/partitions/1/records"])
async def test_what_is_not_there_is_refused_as_without_the_lane(path: str, taken: list[int | None]) -> None:
    gateway, _ = await orders()
    first, sent = pull("offset=0", path=path), pull("offset=1", path=path)
    answers = await asked(gateway, first, sent, ordinary(sent))
    assert taken == [1]
    assert [head[9:12] for head, _ in answers] == ["404"] * 3


async def test_a_pull_that_has_to_wait_is_woken(taken: list[int | None]) -> None:
    gateway, broker = await orders()
    async with served(gateway) as port:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        for offset in range(4):
            writer.write(pull(f"offset={offset}&timeout=20000"))
            async with asyncio.timeout(PATIENCE_S):
                while not gateway.stats.long_poll_count:  # noqa: ASYNC110 -- a plain counter
                    await asyncio.sleep(0.01)
            await send(broker, b"%d" % offset)
            head, body = await answer(reader)
            assert f"Mq-Next-Offset: {offset + 1}\r\n" in head
            assert b'"value":%d' % offset in body
        writer.close()
    assert taken == [1, 2, 3]
    assert gateway.stats.routes["fetch"].statuses == {200: 4}


async def polling(gateway: Gateway) -> None:
    async with asyncio.timeout(PATIENCE_S):
        while not gateway.stats.long_poll_count:  # noqa: ASYNC110 -- a plain counter
            await asyncio.sleep(0.01)


async def test_a_wait_ends_with_its_time_or_the_server_as_without_the_lane(taken: list[int | None]) -> None:
    gateway, broker = await orders()
    await send(broker, b"1")
    sent = pull("offset=1&timeout=50")
    by_others, _, by_lane = await asked(gateway, ordinary(sent), sent, sent)
    assert by_lane == by_others
    assert by_lane[1] == b"[]"
    sent = pull("offset=1&timeout=60000")
    async with served(gateway) as port:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        for _ in range(2):
            writer.write(sent)
            await polling(gateway)
            gateway.draining.set()
            assert (await answer(reader))[1] == b"[]"
            gateway.draining.clear()
        writer.close()
    assert taken == [1, 1]
    assert gateway.stats.long_poll_count == 0


async def test_a_wait_ends_with_its_client_and_with_its_rights(taken: list[int | None]) -> None:
    made = await secured({"reader": ["receive:topic:orders"]})
    bearer = f"Authorization: Bearer {made.tokens['reader']}"
    warm, sent = pull("offset=9", bearer), pull("offset=0&timeout=60000", bearer)
    is_by_lane = []
    async with served(made.gateway) as port:
        for end in ("client", "client", "client", "rights"):
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(warm)
            assert (await answer(reader))[0][9:12] == "416"
            taken.clear()
            writer.write(sent)
            await polling(made.gateway)
            if end == "client":
                writer.transport.abort()
            else:
                made.authenticator.replace(replace(made.policy, tokens={}, scopes={}))
                assert (await answer(reader))[0][9:12] == "401"
                made.authenticator.replace(made.policy)
                writer.close()
            async with asyncio.timeout(PATIENCE_S):
                while made.gateway.stats.long_poll_count or made.gateway.stats.connection_count:  # noqa: ASYNC110
                    await asyncio.sleep(0.01)
            is_by_lane.append(taken == [0])
    assert is_by_lane == [False, True, True, True], "the first of a token is for the ordinary way"
    assert made.gateway.stats.answers.held_bytes == 0


@pytest.mark.parametrize("coding", ["gzip, deflate, br", "zstd", "identity", "br"])
async def test_a_large_answer_is_packed_as_without_the_lane(coding: str, taken: list[int | None]) -> None:
    gateway, broker = await orders()
    await send(broker, *[b'"%06d%b"' % (number, b"x" * 100) for number in range(PACK_BYTES_MIN // 100)])
    header = f"Accept-Encoding: {coding}"
    sent = [
        pull("offset=1", header),
        pull("offset=1&max_records=3", header),
        pull("offset=1", header, accept=BATCH_TYPE),
    ]
    for one in sent:
        by_others, _, by_lane = await asked(gateway, ordinary(one), one, one)
        assert by_lane == by_others
    assert len(taken) == len(sent)


async def test_an_answer_in_pieces_is_for_the_ordinary_way() -> None:
    gateway, broker = await orders()
    for _ in range(10):
        await send(broker, *[b'"%b"' % (b"x" * 50_000)] * 20)
    for query in (f"offset=1&max_bytes={9 * MiB}", "offset=1", f"offset=1&max_bytes={MiB}"):
        for accept in (JSON, BATCH_TYPE):
            async with served(gateway) as port:
                bodies = []
                for sent in (pull(query, accept=accept), ordinary(pull(query, accept=accept))):
                    reader, writer = await asyncio.open_connection("127.0.0.1", port)
                    for _ in range(2):
                        writer.write(sent)
                        bodies.append(await whole_body(reader))
                    writer.close()
            assert bodies == [bodies[0]] * 4, (query, accept)
    assert gateway.stats.answers.held_bytes == 0


async def test_what_grows_beyond_one_answer_is_not_rendered_in_vain(
    taken: list[int | None], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Small records become many times as large as they are."""
    gateway, broker = await orders()
    for _ in range(10):
        await send(broker, *[b"1"] * 5_000)
    rendered: list[int] = []
    texts = fetch._texts

    async def noting(gateway: Gateway, pull: fetch._Pull, *args: object) -> object:
        rendered.append(pull.start)
        return await texts(gateway, pull, *args)  # type: ignore[arg-type]

    monkeypatch.setattr(fetch, "_texts", noting)
    async with served(gateway) as port:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        for offset in (0, 1, 45_000):
            rendered.clear()
            writer.write(pull(f"offset={offset}"))
            assert len(orjson.loads(await whole_body(reader))) == 50_000 - offset
            assert len(rendered) == len(set(rendered)), offset
        writer.close()
    assert taken == [1, 45_000]


async def whole_body(reader: asyncio.StreamReader) -> bytes:
    async with asyncio.timeout(PATIENCE_S):
        head = (await reader.readuntil(b"\r\n\r\n")).decode()
        length = re.search(r"Content-Length: (\d+)", head)
        if length is not None:
            return await reader.readexactly(int(length[1]))
        parts = []
        while size := int(await reader.readline(), 16):
            parts.append(await reader.readexactly(size))
            await reader.readexactly(2)
        await reader.readexactly(2)
        return b"".join(parts)


async def test_rights_are_asked_before_and_after_the_read(
    taken: list[int | None], monkeypatch: pytest.MonkeyPatch
) -> None:
    made = await secured({"reader": ["receive:topic:orders"], "sender": ["send:topic:orders"]})
    bearer = {name: f"Authorization: Bearer {token}" for name, token in made.tokens.items()}
    stored = request(ONE, bearer["sender"], target="/topics/orders/partitions/0")
    sent = pull("offset=0", bearer["reader"])
    elsewhere = pull("offset=0", bearer["reader"], path="/topics/other/partitions/0/records")
    answers = await asked(
        made.gateway, stored, sent, sent, sent, elsewhere, elsewhere, pull("offset=0", bearer["sender"])
    )
    assert [head[9:12] for head, _ in answers] == ["200"] * 4 + ["403"] * 3
    assert taken == [0], "the first of a token is for the ordinary way, the next is remembered"
    fetch = made.gateway.consumer.fetch

    async def revoking(*args: object, **options: object) -> object:
        fetched = await fetch(*args, **options)  # type: ignore[arg-type]
        made.authenticator.replace(replace(made.policy, tokens={}, scopes={}))
        return fetched

    async with served(made.gateway) as port:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        for status in ("200", "401", "401"):
            if status == "401":
                monkeypatch.setattr(made.gateway.consumer, "fetch", revoking)
            writer.write(sent)
            assert (await answer(reader))[0][9:12] == status
        writer.close()
    assert taken == [0, 0], "what was read is not told to who has no right to it any more"


async def test_a_broker_that_is_away_is_waited_for_as_without_the_lane(
    taken: list[int | None], monkeypatch: pytest.MonkeyPatch
) -> None:
    gateway, broker = await orders()
    await send(broker, b"1")
    read, failures = broker.read, iter([False, True, True, True])

    async def failing(*args: object, **options: object) -> object:
        if next(failures, False):
            raise BrokerUnreachable("away")
        return await read(*args, **options)  # type: ignore[arg-type]

    monkeypatch.setattr(broker, "read", failing)
    async with served(gateway) as port:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        for _ in range(2):
            writer.write(pull("offset=0"))
            assert (await answer(reader))[0][9:12] == "200"
        writer.close()
    assert taken == [0]
    assert next(failures, None) is None


async def test_a_large_answer_counts_until_its_client_has_taken_it(taken: list[int | None]) -> None:
    gateway, broker = await orders()
    for _ in range(8):
        await send(broker, *[b'"%b"' % (b"x" * 50_000)] * 20)
    answers = gateway.stats.answers
    async with served(gateway) as port:
        client = socket.socket()
        # A fixed size: else the kernel, seeing how fast the first is read, may take the whole second one by itself.
        client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, SMALL_BYTES)
        client.connect(("127.0.0.1", port))
        reader, writer = await asyncio.open_connection(sock=client, limit=SMALL_BYTES)
        for offset in (160, 0, 0):
            writer.write(pull(f"offset={offset}&max_bytes={7 * MiB}", accept=BATCH_TYPE))
            if offset == 160:
                assert await whole_body(reader) == b""
                continue
            async with asyncio.timeout(PATIENCE_S):
                while not answers.held_bytes:  # noqa: ASYNC110 -- a plain counter
                    await asyncio.sleep(0.01)
            await asyncio.sleep(0.1)
            assert answers.held_bytes > 6 * MiB
            if len(taken) == 1:
                assert len(await whole_body(reader)) > 6 * MiB
            else:
                writer.transport.abort()
            async with asyncio.timeout(PATIENCE_S):
                while answers.held_bytes:  # noqa: ASYNC110 -- a plain counter
                    await asyncio.sleep(0.01)
    assert taken == [0, 0]


async def test_without_room_an_answer_is_smaller_as_without_the_lane(taken: list[int | None]) -> None:
    gateway, broker = await orders()
    for _ in range(20):
        await send(broker, *[b'"%b"' % (b"x" * 1_000)] * 20)
    answers = gateway.stats.answers
    full = gateway.limits.answering_bytes_max
    answers.count("another", full)
    for accept in (JSON, BATCH_TYPE):
        sent = pull("offset=1", accept=accept)
        by_others, _, by_lane = await asked(gateway, ordinary(sent), sent, sent)
        assert by_lane == by_others
        assert len(by_lane[1]) < 2 * SMALL_BYTES
    answers.count("another", -full)
    assert answers.held_bytes == 0
    assert len(taken) == 2
