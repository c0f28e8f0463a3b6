"""gateway/surfaces/http/fast_path.py, the forms of requests that it knows, and its part of connection.py: what takes
the fast path is answered as it is without the fast path."""

from __future__ import annotations

import asyncio
import re
import ssl
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from random import Random
from types import SimpleNamespace
from typing import Any

import orjson
import pytest
from aiohttp.base_protocol import BaseProtocol
from aiohttp.http_parser import HttpRequestParser, RawRequestMessage

from gateway.api import turn_batches
from gateway.api.producer import Begun, Producer
from gateway.api.turn_batches import BATCH_BYTES_MAX, BATCH_RECORDS_MAX
from gateway.brokers.base import AnswerLost, BrokerUnreachable, PartlyStored
from gateway.codec.records import ProduceRecord
from gateway.errors import READ_ONLY
from gateway.main.listener import fast_path_of
from gateway.main.tls import ServerTls
from gateway.routing import holding
from gateway.settings.tls import TlsConfig
from gateway.surfaces.http.answers import RequestIds
from gateway.surfaces.http.connection import LINES_BYTES, Client, Connection
from gateway.surfaces.http.context import Gateway
from gateway.surfaces.http.fast_path import FastPath, Plain
from gateway.surfaces.http.plain import BODY_BYTES_MAX
from loadtest.certificates import write_certificate
from store import turns
from store.errors import DiskFull, SealedQueue, StoreError, StoreStopped
from store.record_batch import Record, decode, encode
from store.types import Acks, Append, Appended
from tests.clock import FakeClock
from tests.gateway.fake_broker import FakeBroker, fake_gateway
from tests.gateway.security.kit import secured, served
from tests.gateway.surfaces.http.plain_requests import JSON, ONE, ORDINARY, answer, asked, noted, request, warmed
from tests.waiting import PATIENCE_S


@pytest.fixture
def taken(monkeypatch: pytest.MonkeyPatch) -> list[bytes]:
    """The bodies of requests that have taken the fast path."""
    return noted(monkeypatch, lambda _, body: body)


async def orders(**settings: object) -> tuple[Gateway, FakeBroker]:
    gateway, broker = fake_gateway(FakeClock(), **settings)
    await broker.create_topic("orders", 4)
    return gateway, broker


def plain(head: str) -> str:
    """Without what differs from answer to answer."""
    return re.sub(r"(?m)^(Date|X-Request-Id): .*$", r"\1: ...", head)


MESSAGES, LINES, V3 = (
    "/mq/v1/topics/orders/messages", "/mq/v1/topics/orders/messages:batch", "/v3/clusters/unknown/topics/orders/records"
)  # fmt: skip
LINES_TYPE, BATCH_TYPE = "application/x-ndjson", "application/vnd.mq.batch"
BATCH = bytes(encode([Record(b"k", b"v%d" % number, 5, [("h", b"1")]) for number in range(3)]))
TAGGED = bytes(encode([Record(None, b"v", 5, [("mq-tag", b"t")])]))

LANE = [
    request(),
    request(b'{"records":[{"value":"x"}]}', target="/topics/orders/partitions/3"),
    request(b'{"records":[{"value":null,"key":null}]}', target="/topics/orders?acks=written"),
    request(target="/topics/orders/partitions/0?acks=flushed"),
    request(b'{"records":[{"value":"eA==","key":"aw=="}]}', content_type="application/vnd.kafka.binary.v2+json"),
    request(b'{"records":[{"value":"eA=="}]}', content_type="application/json"),
    request(b'{"records":[{"value":"x","key":"k"}]}', content_type="application/vnd.kafka.text.v2+json"),
    request(b'{"records":[{"value":1,"tag":"t","headers":[{"key":"h","text":"v"}],"timestamp":5,"partition":2}]}'),
    request(b'{"records":[{"value":1,"message_group":"g"}],"key_schema_id":null}'),
    request(ONE, "Accept: application/json", "X-Request-Id: mine"),
    request(ONE, "accept: */*", "USER-AGENT: x", "connection: keep-alive", "Authorization: Bearer x"),
    request(ONE, "accept-language: *", "sec-fetch-mode: cors"),
    request(b"x", target=MESSAGES, content_type=None),
    request(b"{}", "X-Request-Id: mine", "Accept: */*", target=MESSAGES),
    request(b"\x00\xff", target=f"{MESSAGES}?key=k%20%C3%BC&tag=t&partition=2&timestamp=7&acks=written"),
    request(b"x", target=f"{MESSAGES}?message_group=g&tombstone=false", content_type="text/plain; charset=utf-8"),
    request(b'{"key":"k","value":{"a":1}}\n', target=LINES, content_type=LINES_TYPE),
    request(b'{"value":1,"tag":"t","timestamp":5}', target=f"{LINES}?acks=written", content_type="application/json"),
    request(b'\n{"key_b64":"aw==","value_text":"x"}\r\n\n', target=LINES, content_type="application/jsonl; x=y"),
    request(b'{"value":null}', "X-Request-Id: mine", "Accept: image/png", target=LINES, content_type=LINES_TYPE),
    request(b'{"value":{"type":"JSON","data":{"a":"}"}}}', target=V3, content_type="application/json"),
    request(b' {"key":{"type":"STRING","data":"k"},"value":{"type":"BINARY","data":"eA=="}}\n', target=f"/kafka{V3}"),
    request(b'{"partition_id":1,"timestamp":"2026-01-01T00:00:00Z","tag":"t"}', target=V3, content_type=None),
    request(b'{"value":{"type":"JSON","data":null}}', target=V3),
    request('{"value":{"data":"\u00fc\\u0000","type":"JSON"}}'.encode(), target=V3),
    request(b'{"value":{"type":"STRING","data":"x"}}', target=V3),
    request(b'{"value":{"type":"JSON"}}', target=V3),
    request(b'{"value":"\\ud83d\\ude00","key":["k"]}', target=LINES, content_type=LINES_TYPE),
    request(BATCH, content_type=BATCH_TYPE),
    request(BATCH, target="/topics/orders/partitions/2?acks=written", content_type=BATCH_TYPE),
    request(TAGGED, "Accept: application/json", content_type=BATCH_TYPE),
]
"""Plain requests."""

LARGE = [
    b'{"records":[%b]}' % b",".join([b'{"value":"%b"}' % (b"x" * 100)] * 500),
    b' { "records" : [%b] } '
    % b", ".join(b'{"value": "%05d\xc3\xbc %b"}' % (at, b"x" * (at % 50)) for at in range(1000)),
    b'{"records":[%b]}' % b",".join([b'{"value":"\\u00fc%b"}' % (b"x" * 200)] * 100),
    b'{"records":[%b]}' % b",".join(b'{"key":"%d","value":{"a" : [%d]}}' % (at, at) for at in range(1000)),
    b'{"records":[%b]}' % b",".join(b'{"value":%d,"key":null}' % at for at in range(1000)),
]
"""Bodies of more than a record may have."""

MANY = [
    request(b'{"records":[{"value":1},{"value":2}]}'),
    request(b'{"records":[{"value":null},{"value":[1]}],"key_schema_id":null}', target="/topics/orders?acks=written"),
    request(b'{"records":[{"key":"%b","value":1},{"value":2,"key":"b"},{"value":3,"key":[1]}]}' % (b"a" * 1024)),
    request(b'{"records":[{"key":"a","value":1},{"key":"b","value":null}]}', target="/topics/orders/partitions/3"),
    request(b'{"records":[{"value":"eA=="},{"value":null}]}', content_type="application/vnd.kafka.binary.v2+json"),
    request(b'{"records":[{"value":"eA==","key":"aw=="}]}'.replace(b"]", b',{"value":"eQ==","key":"aw=="}]'),
            "X-Request-Id: mine", content_type="application/json"),
    request(b'{"records":[{"value":"x"},{"value":"\\n"}]}', "Accept: application/json",
            content_type="application/vnd.kafka.text.v2+json"),
    *(request(body) for body in LARGE),
    request(LARGE[0], target="/topics/orders/partitions/2", content_type="application/vnd.kafka.text.v2+json"),
]  # fmt: skip
"""Plain requests of several records."""

NOT_LANE = [
    request(b'{"records":[{"value":1},{"value":2,"tag":"t"}]}'),
    request(b'{"records":[{"value":1},{"key":null,"value":2}]}'),
    request(b'{"records":[{"value":1},{"value":2}]}', target="/topics/orders/partitions/4"),
    request(b'{"records":[{"key":"%b","value":1},{"key":"","value":2}]}' % (b"a" * 1025)),
    request(b'{"records":[%b]}' % b",".join([b'{"value":%d}' % at for at in range(20_000)])),
    request(LARGE[0].replace(b"x", b"\x00", 1)),
    request(LARGE[0].replace(b"x", b"\xff", 1)),
    request(LARGE[0].replace(b"x", b'"', 1)),
    request(LARGE[0].replace(b"}]", b',"partition":0}]')),
    request(LARGE[0].replace(b"[{", b'[{"partition":0,')),
    request(LARGE[0].replace(b'},{"value"', b'},{"tag":"t","value"', 1)),
    request(LARGE[0] + b"}"),
    request(b'{"records":[{"value":["%b"]}]}' % (b"x" * BODY_BYTES_MAX)),
    request(b'{"records":[{"key":"value","value":["%b"]}]}' % (b"x" * BODY_BYTES_MAX)),
    request(b'{"records":[%b]}' % b",".join([b'{"value":"%b"}' % (b"x" * 300)] * 1000)),
    request(b'{"records":[]}'),
    request(b"[]"),
    request(b"{"),
    request(b""),
    request(b'{"records":[{"value":1,"delay_ms":60000}]}'),
    request(b'{"records":[{"value":1,"deliver_at":1}]}'),
    request(b'{"records":[{"value":1,"msg_id":"m"}]}'),
    request(b'{"records":[{"value":1,"partition":9}]}'),
    request(b'{"records":[{"value":1,"unknown":9}]}'),
    request(b'{"records":[{"value":1,"headers":[{"key":"mq-tag","text":"v"}]}]}'),
    request(target="/topics/none"),
    request(target="/topics/orders/"),
    request(target="/topics/orders/partitions/4"),
    request(target="/topics/%6Frders"),
    request(target="/topics/orders?acks=never"),
    request(target="/topics/orders?acks=written&acks=flushed"),
    request(target="/topics/orders?format=text"),
    request(b"\x00" * 61, content_type=BATCH_TYPE),
    request(BATCH + BATCH, content_type=BATCH_TYPE),
    request(BATCH[:-1], content_type=BATCH_TYPE),
    request(BATCH[:-1] + b"x", content_type=BATCH_TYPE),
    request(bytes(encode([Record(None, b"v", 5, [("mq-attempt", b"1")])])), content_type=BATCH_TYPE),
    request(BATCH, target="/topics/orders?delay_ms=60000", content_type=BATCH_TYPE),
    request(BATCH, target="/topics/orders/partitions/4", content_type=BATCH_TYPE),
    request(b"x", target=f"{MESSAGES}?delay_ms=60000"),
    request(b"x", target=f"{MESSAGES}?msg_id=m"),
    request(b"x", target=f"{MESSAGES}?selector=key"),
    request(b"", target=f"{MESSAGES}?tombstone=true"),
    request(b"x", target=f"{MESSAGES}?tombstone=true"),
    request(b"x", target=f"{MESSAGES}?partition=4"),
    request(b"x", target=f"{MESSAGES}?oops=1"),
    request(b"x", target=f"{MESSAGES}?tag=a&tag=b"),
    request(b"x", "Mq-Header-A: b", target=MESSAGES),
    request(b"x", "Accept: image/png", target=MESSAGES),
    request(b"{}", target=MESSAGES, content_type="application/cloudevents+json"),
    request(b'{"value":1}\n{"value":2}\n', target=LINES, content_type=LINES_TYPE),
    request(b"\n \n", target=LINES, content_type=LINES_TYPE),
    request(b'{"value":1,"oops":2}', target=LINES, content_type=LINES_TYPE),
    request(b'{"value":1,"delay_ms":60000}', target=LINES, content_type=LINES_TYPE),
    request(b'{"value":1}', target=f"{LINES}?receipts=errors", content_type=LINES_TYPE),
    request(b'{"value":1}', target=LINES, content_type="text/plain"),
    request(b'{"value":null}{"value":null}', target=V3),
    request(b'{"value":null}x', target=V3),
    request(b'{"value":{"type":"AVRO","data":1}}', target=V3),
    request(b'{"value":null,"partition_id":4}', target=V3),
    request(b'{"value":{"type":"JSON","data":1,"oops":1}}', target=V3),
    request(b'{"value":{"type":"JSON","data":1}} ,', target=V3),
    request(b'{"value":null}', target=V3.replace("unknown", "another")),
    request(b'{"value":null}', target=V3.replace("orders", "none")),
    request(b'{"value":null}', 'If-Match: "0"', target=V3),
    request(content_type="text/plain"),
    request(content_type=None),
    request(ONE, "Accept: image/png"),
    request(ONE, "Origin: http://evil.example"),
    request(ONE, "Content-Encoding: gzip"),
    request(ONE, 'Idempotency-Key: "k"'),
    request(ONE, "Mq-Producer: p", "Mq-Sequence: 1"),
    request(ONE, "Expect: nothing"),
    request(method="PUT"),
]


@pytest.mark.parametrize("sent", LANE)
async def test_a_plain_request_is_stored_and_answered_as_without_the_lane(sent: bytes, taken: list[bytes]) -> None:
    first = request(ONE, ORDINARY)  # aiohttp's task does not wait yet when a connection's first bytes come
    gateway, broker = await orders()
    _, by_lane = await asked(gateway, first, sent)
    assert len(taken) == 1
    other_gateway, other_broker = await orders()
    head, _, body = sent.partition(b"\r\n\r\n")
    _, by_others = await asked(other_gateway, first, head + f"\r\n{ORDINARY}\r\n\r\n".encode() + body)
    assert len(taken) == 1
    assert plain(by_lane[0]) == plain(by_others[0])
    assert by_lane[1] == by_others[1]
    assert by_lane[0].startswith(
        "HTTP/1.1 201 Created\r\n"
        if MESSAGES.encode() in sent and LINES.encode() not in sent
        else "HTTP/1.1 200 OK\r\n"
    )
    assert ("X-Request-Id: mine\r\n" in by_lane[0]) == (b"mine" in sent)
    assert broker.appends == other_broker.appends
    assert broker.acks == other_broker.acks
    assert gateway.producer.record_counts == other_gateway.producer.record_counts
    assert gateway.producer.record_counts["orders"] == 1 + broker.appends[1].record_count
    assert gateway.producer.byte_count == other_gateway.producer.byte_count
    assert [stats.statuses for stats in gateway.stats.routes.values()] == [
        stats.statuses for stats in other_gateway.stats.routes.values()
    ]


@pytest.mark.parametrize("sent", MANY)
async def test_several_records_are_stored_and_answered_as_without_the_lane(sent: bytes, taken: list[bytes]) -> None:
    first = request(ONE, ORDINARY)
    gateway, broker = await orders()
    head, _, body = sent.partition(b"\r\n\r\n")
    ordinary = head + f"\r\n{ORDINARY}\r\n\r\n".encode() + body
    by_lane = await asked(gateway, first, sent, sent, request(b'{"records":[{"value":1}]}'))
    assert len(taken) == 3
    other_gateway, other_broker = await orders()
    by_others = await asked(other_gateway, first, ordinary, ordinary, request(b'{"records":[{"value":1}]}', ORDINARY))
    assert len(taken) == 3
    assert [(plain(head), body) for head, body in by_lane] == [(plain(head), body) for head, body in by_others]
    assert all(head.startswith("HTTP/1.1 200 OK\r\n") for head, _ in by_lane)
    assert [replace(append, batch=bytes(append.batch)) for append in broker.appends] == [
        replace(append, batch=bytes(append.batch)) for append in other_broker.appends
    ]
    assert broker.acks == other_broker.acks
    assert gateway.producer.record_counts == other_gateway.producer.record_counts
    assert gateway.producer.byte_count == other_gateway.producer.byte_count
    assert [stats.statuses for stats in gateway.stats.routes.values()] == [
        stats.statuses for stats in other_gateway.stats.routes.values()
    ]


async def test_large_bodies_in_a_turn_that_is_full_are_left_to_aiohttp(taken: list[bytes]) -> None:
    gateway, broker = await orders()
    async with served(gateway) as port:
        reader, writer = await warmed(port)
        for is_full in (False, True, False):
            if is_full:
                with pytest.MonkeyPatch.context() as patch:
                    patch.setattr(turns, "TURN_S", -1.0)
                    writer.write(request(LARGE[0]))
                    assert (await answer(reader))[0].startswith("HTTP/1.1 200")
            else:
                writer.write(request(LARGE[0]))
                assert (await answer(reader))[0].startswith("HTTP/1.1 200")
        writer.close()
    assert len(taken) == 2
    assert broker.stored_count == 1 + 3 * 500


@pytest.mark.parametrize(("error", "status"), [(DiskFull("full"), "507"), (StoreStopped("stopped"), "503")])
async def test_several_records_that_are_refused_are_answered_by_the_ordinary_way(
    error: Exception, status: str, taken: list[bytes]
) -> None:
    gateway, broker = await orders()
    async with served(gateway) as port:
        reader, writer = await warmed(port)
        broker.error = error
        writer.write(request(LARGE[0]))
        head, body = await answer(reader)
        assert head[9:12] == status
        assert b'"request_id"' in body
        broker.error = None
        writer.write(request(LARGE[0]))
        assert (await answer(reader))[0].startswith("HTTP/1.1 200")
        writer.close()
    assert len(taken) == 2
    assert broker.stored_count == 1 + 500
    assert gateway.stats.routes["produce"].statuses == {200: 2, int(status): 1}


@pytest.mark.parametrize("error", [AnswerLost("lost"), PartlyStored([None], DiskFull("full")), SealedQueue("sealed")])
async def test_several_records_that_may_be_stored_or_were_held_are_not_sent_again(
    error: StoreError, taken: list[bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    """They are told what the ordinary way would tell of such an error."""
    monkeypatch.setattr(holding, "HOLD_MS", 0)
    gateway, broker = await orders()
    async with served(gateway) as port:
        reader, writer = await warmed(port)
        answers = []
        for sent in (request(LARGE[0]), request(LARGE[0], ORDINARY)):
            called: list[None] = []

            def fail(*_: object, called: list[None] = called, **__: object) -> None:
                called.append(None)
                raise error

            with monkeypatch.context() as patch:
                patch.setattr(broker, "append", fail)
                writer.write(sent)
                answers.append(await answer(reader))
            assert len(called) == 1
        writer.close()
    [(head, body), (ordinary, told)] = answers
    assert len(taken) == 1
    assert _without_ids(head) == _without_ids(ordinary)
    assert body.partition(b'"request_id"')[0] == told.partition(b'"request_id"')[0]
    assert head[9:12] == "503"
    assert broker.stored_count == 1


@pytest.mark.parametrize("sent", NOT_LANE)
async def test_everything_else_takes_the_ordinary_way(sent: bytes, taken: list[bytes]) -> None:
    gateway, broker = await orders()
    _, (head, _) = await asked(gateway, request(ONE, ORDINARY), sent)
    assert not taken
    assert head.startswith("HTTP/1.1 ")
    assert broker.stored_count == 1 + gateway.producer.scheduled_count + sum(
        append.record_count for append in broker.appends[1:]
    )


@pytest.mark.parametrize("settings", [{"access_log": True}, {"limits__requests_per_s_max": 1000}])
async def test_the_lane_is_closed_where_requests_are_logged_or_rates_are_limited(
    settings: dict[str, object], taken: list[bytes]
) -> None:
    secured_ = await secured({"p": ["send:topic:orders"]}, acl=None, **settings)
    bearer = f"Authorization: Bearer {secured_.tokens['p']}"
    answers = await asked(secured_.gateway, *[request(ONE, bearer)] * 3)
    assert all(head.startswith("HTTP/1.1 200") for head, _ in answers)
    assert not taken


async def test_a_body_may_have_the_largest_size_and_not_a_byte_more(taken: list[bytes]) -> None:
    gateway, _ = await orders()
    frame = len(b'{"records":[{"value":""}]}')
    for size, count in ((BODY_BYTES_MAX, 1), (BODY_BYTES_MAX + 1, 1)):
        body = b'{"records":[{"value":"%b"}]}' % (b"x" * (size - frame))
        assert len(body) == size
        answers = await asked(gateway, request(ONE, ORDINARY), request(body))
        assert all(head.startswith("HTTP/1.1 200") for head, _ in answers)
        assert len(taken) == count


@pytest.mark.parametrize("piece_bytes", [1, 7, 100])
async def test_a_request_in_pieces_is_answered_whichever_way_it_takes(piece_bytes: int) -> None:
    gateway, broker = await orders()
    async with served(gateway) as port:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        for _ in range(3):
            sent = request()
            for at in range(0, len(sent), piece_bytes):
                writer.write(sent[at : at + piece_bytes])
                await asyncio.sleep(0)
            assert (await answer(reader))[0].startswith("HTTP/1.1 200")
        writer.close()
    assert broker.stored_count == 3


class SlowBroker:
    """Holds the appends of the fast path until it is told how they end."""

    def __init__(self, broker: FakeBroker, monkeypatch: pytest.MonkeyPatch) -> None:
        self._broker = broker
        self.begun: list[tuple[Sequence[Append], Acks, asyncio.Future[list[Appended]]]] = []
        self.has_begun = asyncio.Event()
        monkeypatch.setattr(broker, "begin_append", self._begin)

    def _begin(self, appends: Sequence[Append], *, acks: Acks) -> asyncio.Future[list[Appended]]:
        outcome: asyncio.Future[list[Appended]] = asyncio.get_running_loop().create_future()
        self.begun.append((appends, acks, outcome))
        self.has_begun.set()
        return outcome

    async def next(self) -> None:
        async with asyncio.timeout(PATIENCE_S):
            await self.has_begun.wait()
        self.has_begun.clear()

    def store(self) -> None:
        appends, acks, outcome = self.begun.pop(0)
        outcome.set_result([self._broker._append(append, acks) for append in appends])

    def fail(self, error: Exception) -> None:
        self.begun.pop(0)[2].set_exception(error)


@pytest.fixture
async def slow(monkeypatch: pytest.MonkeyPatch) -> tuple[Gateway, FakeBroker, SlowBroker]:
    gateway, broker = await orders(keepalive_timeout_ms=200, shutdown_timeout_ms=1000)
    return gateway, broker, SlowBroker(broker, monkeypatch)


Slow = tuple[Gateway, FakeBroker, SlowBroker]


async def test_answers_keep_the_order_of_pipelined_requests(slow: Slow) -> None:
    gateway, broker, held = slow
    async with served(gateway) as port:
        reader, writer = await warmed(port)
        writer.write(request())
        await held.next()
        followers = [
            request(b"{", ORDINARY), request(), b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n", request(b"["),
        ]  # fmt: skip
        for sent in followers:
            writer.write(sent)
            await asyncio.sleep(0.01)
        assert len(held.begun) == 1
        assert broker.stored_count == 1
        held.store()
        answers = [await answer(reader) for _ in range(5)]
        assert [head[9:12] for head, _ in answers] == ["200", "400", "200", "200", "400"]
        assert b'"offset":1' in answers[0][1]
        assert b'"offset":2' in answers[2][1]
        writer.close()


async def test_what_waits_behind_the_lane_may_take_it_in_turn(slow: Slow) -> None:
    gateway, _, held = slow
    async with served(gateway) as port:
        reader, writer = await warmed(port)
        writer.write(request())
        await held.next()
        for _ in range(3):
            writer.write(request())
            await asyncio.sleep(0.01)
            held.store()
            assert (await answer(reader))[0].startswith("HTTP/1.1 200")
            await held.next()
        held.store()
        assert (await answer(reader))[0].startswith("HTTP/1.1 200")
        writer.close()


async def test_what_waits_behind_the_lane_is_bounded(slow: Slow) -> None:
    gateway, _, held = slow
    connections: list[Connection] = []
    made = Connection.connection_made

    def noting(self: Connection, transport: asyncio.BaseTransport) -> None:
        connections.append(self)
        made(self, transport)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Connection, "connection_made", noting)
        async with served(gateway) as port:
            _, writer = await warmed(port)
            writer.write(request())
            await held.next()
            writer.write(b"x" * 20_000_000)
            await asyncio.sleep(0.2)
            assert len(connections[0]._held) <= 1_000_000
            writer.transport.abort()
            held.store()


@pytest.mark.parametrize(("error", "status"), [(DiskFull("full"), "507"), (StoreStopped("stopped"), "503")])
async def test_an_append_that_fails_is_answered_by_the_ordinary_way(slow: Slow, error: Exception, status: str) -> None:
    gateway, broker, held = slow
    async with served(gateway) as port:
        reader, writer = await warmed(port)
        writer.write(request())
        await held.next()
        writer.write(request(ONE, ORDINARY))
        await asyncio.sleep(0.01)
        broker.error = error
        held.fail(error)
        for _ in range(2):
            head, body = await answer(reader)
            assert head[9:12] == status
            assert b'"request_id"' in body
        broker.error = None
        writer.write(request(ONE, ORDINARY))
        assert (await answer(reader))[0].startswith("HTTP/1.1 200")
        writer.close()
    assert broker.stored_count == 2
    assert gateway.stats.routes["produce"].statuses == {200: 2, int(status): 2}


async def test_a_client_that_leaves_takes_nothing_with_it(slow: Slow) -> None:
    gateway, broker, held = slow
    async with served(gateway) as port:
        for end in (held.store, lambda: held.fail(DiskFull("full"))):
            _, writer = await warmed(port)
            writer.write(request())
            await held.next()
            writer.transport.abort()
            async with asyncio.timeout(PATIENCE_S):
                while gateway.stats.connection_count:  # noqa: ASYNC110 -- a plain counter
                    await asyncio.sleep(0.01)
            end()
            await asyncio.sleep(0.01)
    assert broker.stored_count == 3
    assert gateway.producer.record_counts == {"orders": 3}


async def test_a_connection_in_the_lane_is_not_idle(slow: Slow) -> None:
    gateway, _, held = slow
    async with served(gateway) as port:
        reader, writer = await warmed(port)
        writer.write(request())
        await held.next()
        await asyncio.sleep(0.5)  # keep-alive ends after 0.2 s
        held.store()
        assert (await answer(reader))[0].startswith("HTTP/1.1 200")
        async with asyncio.timeout(PATIENCE_S):
            assert await reader.read() == b"", "an idle one is closed"
        writer.close()


async def test_a_shutdown_waits_for_what_is_in_the_lane(slow: Slow) -> None:
    gateway, _, held = slow
    async with served(gateway) as port:
        reader, writer = await warmed(port)
        writer.write(request())
        await held.next()
        asyncio.get_running_loop().call_later(0.1, held.store)
    assert (await answer(reader))[0].startswith("HTTP/1.1 200")
    async with asyncio.timeout(PATIENCE_S):
        assert await reader.read() == b""
    writer.close()


@pytest.mark.parametrize("is_remembered", [True, False])
async def test_what_the_lane_gives_back_while_the_server_stops_is_told_to_go_elsewhere(
    slow: Slow, is_remembered: bool
) -> None:
    gateway, broker, held = slow  # else it gets no answer, and the stop waits for it as long as it may
    async with served(gateway) as port:
        reader, writer = await warmed(port)
        if is_remembered:
            writer.write(request())
            await held.next()
            held.store()
            await answer(reader)
        writer.write(request())
        await held.next()
        asyncio.get_running_loop().call_later(0.1, held.fail, DiskFull("full"))
    head, body = await answer(reader)
    assert (head[9:12], orjson.loads(body)["error_code"]) == ("503", READ_ONLY)
    assert await reader.read() == b""
    writer.close()
    assert broker.stored_count == 1 + is_remembered


async def test_rights_are_asked_for_every_request(taken: list[bytes]) -> None:
    made = await secured({"sender": ["send:topic:orders"], "reader": ["receive:topic:orders"]})
    sender, reader = (request(ONE, f"Authorization: Bearer {made.tokens[name]}") for name in ("sender", "reader"))
    elsewhere = request(ONE, f"Authorization: Bearer {made.tokens['sender']}", target="/topics/other")
    answers = await asked(made.gateway, sender, sender, reader, reader, elsewhere, request(), sender)
    assert [head[9:12] for head, _ in answers] == ["200", "200", "403", "403", "403", "401", "200"]
    assert len(taken) == 2, "the first of a token is for the ordinary way"
    made.authenticator.replace(replace(made.policy, tokens={}, scopes={}))
    (head, _), (again, _) = await asked(made.gateway, sender, sender)
    assert (head[9:12], again[9:12]) == ("401", "401")
    assert len(taken) == 2


async def test_records_that_arrive_together_are_one_batch_a_partition(slow: Slow) -> None:
    """Keyless ones go to one partition; a bad one is refused alone (turn_batches: B1, B3)."""
    gateway, _, held = slow
    async with served(gateway) as port:
        made = [await warmed(port) for _ in range(6)]
        bodies = [b'{"records":[{"value":%d}]}' % number for number in range(4)]
        bodies += [b'{"records":[{"value":4,"oops":1}]}', b'{"records":[{"value":5,"partition":3}]}']
        for (_, writer), body in zip(made, bodies, strict=True):
            writer.write(request(body))
        await held.next()
        head, _ = await answer(made[4][0])
        assert head[9:12] == "422"
        sizes = sorted(append.record_count for appends, _, _ in held.begun for append in appends)
        assert sizes == [1, 4]
        held.store()
        held.store()
        offsets = [(await answer(reader))[1] for number, (reader, _) in enumerate(made) if number != 4]
        assert len(set(offsets)) == 5
        for _, writer in made:
            writer.close()


@pytest.mark.parametrize("at_begin", [True, False])
async def test_each_request_of_a_batch_that_fails_is_answered_by_the_ordinary_way(
    slow: Slow, at_begin: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    gateway, broker, held = slow
    async with served(gateway) as port:
        made = [await warmed(port) for _ in range(4)]
        for round_ in range(2):  # parsed in the first, remembered heads in the second
            broker.error = DiskFull("full")
            if at_begin:
                with monkeypatch.context() as patch:
                    patch.setattr(broker, "begin_append", _refuse)
                    for _, writer in made:
                        writer.write(request())
                    answers = [await answer(reader) for reader, _ in made]
            else:
                for _, writer in made:
                    writer.write(request())
                await held.next()
                held.fail(broker.error)
                answers = [await answer(reader) for reader, _ in made]
            assert [head[9:12] for head, _ in answers] == ["507"] * 4, round_
            broker.error = None
        for _, writer in made:
            writer.close()
    assert broker.stored_count == 4


@pytest.mark.parametrize("error", [AnswerLost("lost"), BrokerUnreachable("away")])
async def test_what_another_node_may_have_stored_or_was_waited_for_is_not_sent_again(
    slow: Slow, error: StoreError, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A batch of records, and a raw batch: each request is told what the ordinary way would tell of such an error."""
    gateway, broker, held = slow
    monkeypatch.setattr(turn_batches, "WAITED_S", 0.0)
    sent = [[request()] * 3, [request(BATCH, content_type=BATCH_TYPE)]]
    async with served(gateway) as port:
        made = [await warmed(port) for _ in range(3)]
        for requests in sent:
            for (_, writer), one in zip(made, requests, strict=False):
                writer.write(one)
            await held.next()
            assert len(held.begun) == 1
            held.fail(error)
            answers = [await answer(reader) for reader, _ in made[: len(requests)]]
            broker.error = error
            made[0][1].write(request(ONE, ORDINARY))
            ordinary, body = await answer(made[0][0])
            broker.error = None
            for head, own in answers:
                assert _without_ids(head) == _without_ids(ordinary)
                assert own.partition(b'"request_id"')[0] == body.partition(b'"request_id"')[0]
                assert head[9:12] == "503"
        for _, writer in made:
            writer.close()
    assert (broker.stored_count, held.begun) == (3, []), "of the warm ones alone"
    assert gateway.stats.routes["produce"].statuses == {200: 3, 503: 6}


async def test_a_broker_that_is_away_at_once_is_left_to_the_normal_path(slow: Slow) -> None:
    gateway, broker, held = slow
    async with served(gateway) as port:
        reader, writer = await warmed(port)
        for sent in (request(), request(BATCH, content_type=BATCH_TYPE)):
            before = broker.stored_count
            writer.write(sent)
            await held.next()
            held.fail(BrokerUnreachable("away"))
            head, _ = await answer(reader)
            assert head[9:12] == "200"
            assert broker.stored_count > before
        writer.close()


def _without_ids(head: str) -> set[str]:
    """The lines of a head, but for those that differ always; the length differs with the request's id."""
    return {
        line
        for line in head.split("\r\n")
        if line and line.split(":")[0] not in ("X-Request-Id", "Date", "Content-Length")
    }


async def test_an_answer_that_cannot_be_given_is_one_connections_alone(
    slow: Slow, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    gateway, _, held = slow
    async with served(gateway) as port:
        made = [await warmed(port) for _ in range(3)]
        reply, broken = Connection.reply, list[Connection]()

        def breaks_once(self: Connection, whole: bytes | None) -> None:
            if not broken:
                broken.append(self)
                raise RuntimeError("broken")
            reply(self, whole)

        monkeypatch.setattr(Connection, "reply", breaks_once)
        for _, writer in made:
            writer.write(request())
        await held.next()
        held.store()
        answered = 0
        for reader, _ in made:
            with suppress(TimeoutError):
                async with asyncio.timeout(0.5):
                    answered += (await answer(reader))[0].startswith("HTTP/1.1 200")
        assert (answered, len(broken)) == (2, 1)
        assert "an answer of the fast path failed" in caplog.text
        for _, writer in made:
            writer.transport.abort()


def _refuse(*_: object, **__: object) -> None:
    raise DiskFull("full")


@pytest.mark.parametrize("sent", LANE)
async def test_a_remembered_head_is_answered_as_one_that_was_parsed(sent: bytes, taken: list[bytes]) -> None:
    gateway, broker = await orders()
    parsed: list[bytes] = []
    feed = Connection._parse

    def noting(self: Connection, data: bytes) -> bool:
        parsed.extend([data] if data else [])
        return feed(self, data)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Connection, "_parse", noting)
        again = sent.replace(b"X-Request-Id: mine", b"X-Request-Id: another-1")
        _, first, second = await asked(gateway, request(ONE, ORDINARY), sent, again)
    assert len(taken) == 2
    assert len(parsed) == (3 if b"?key=" in sent else 2)
    assert ("X-Request-Id: another-1\r\n" in second[0]) == (b"X-Request-Id" in sent)
    assert plain(first[0]) == plain(second[0])
    assert broker.appends[1].record_count == broker.appends[2].record_count


async def test_a_batch_has_a_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    gateway, _ = await orders()
    sizes: list[int] = []
    begin = Producer.begin

    def noting(self: Producer, topic: str, records: Sequence[ProduceRecord], **ways: Any) -> Begun:
        sizes.append(len(records))
        return begin(self, topic, records, **ways)

    monkeypatch.setattr(Producer, "begin", noting)
    lane = fast_path_of(gateway, RequestIds())
    loop = asyncio.get_running_loop()
    parser = HttpRequestParser(BaseProtocol(loop), loop, 2**16)
    [(message, _)], _, _ = parser.feed_data(request(target="/topics/orders/partitions/0"))
    assert isinstance(message, RawRequestMessage)
    meaning = lane.read(message)
    assert meaning is not None
    replies: list[bytes | None] = []
    client: Any = SimpleNamespace(reply=replies.append)
    for _ in range(BATCH_RECORDS_MAX + 1):
        assert lane.take(meaning, ONE, 0, client)
    assert sizes == [BATCH_RECORDS_MAX]
    await asyncio.sleep(0.01)
    assert sizes == [BATCH_RECORDS_MAX, 1]
    assert len(set(replies)) == BATCH_RECORDS_MAX + 1
    large = b'{"records":[{"value":"%b"}]}' % (b"x" * (BODY_BYTES_MAX - 26))
    assert len(large) == BODY_BYTES_MAX
    sizes.clear()
    for _ in range(BATCH_BYTES_MAX // BODY_BYTES_MAX + 1):
        assert lane.take(meaning, large, 0, client)
    await asyncio.sleep(0.01)
    assert sizes == [BATCH_BYTES_MAX // BODY_BYTES_MAX, 1]


async def test_a_revoked_token_ends_remembered_heads() -> None:
    made = await secured({"sender": ["send:topic:orders"]})
    sent = request(ONE, f"Authorization: Bearer {made.tokens['sender']}")
    async with served(made.gateway) as port:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        for status in ("200", "200", "200", "200", "401", "401"):
            if status == "401":
                made.authenticator.replace(replace(made.policy, tokens={}, scopes={}))
            writer.write(sent)
            assert (await answer(reader))[0][9:12] == status
        writer.close()


def _odd(random: Random) -> bytes:
    """A request that is odd in one or two ways, or in none."""
    body = random.choice(
        [ONE, b'{"records":[{"value":1}]}', b'{"records":[{"value":1},{"value":2}]}', b"{", b"", b'{"records":[1]}',
         b'{"records":[{"value":1,"msg_id":"m%d"}]}' % random.randrange(9**9), b'{"value":1}\n', b'{"value":1}\n\r\n{}',
         b'{"value":{"type":"JSON","data":1}}', BATCH, BATCH + BATCH, BATCH[:-1]]
    )  # fmt: skip
    length = str(len(body) + random.choice([0] * 12 + [1, -1]))
    lines = [
        random.choice([f"POST {target} HTTP/1.1" for target in ("/topics/orders", MESSAGES, LINES, V3)] * 3 + [
            "POST /topics/orders/partitions/1 HTTP/1.1", "POST http://localhost/topics/orders HTTP/1.1",
            "POST /topics/%6frders HTTP/1.1", "POST /topics/orders HTTP/1.0", "post /topics/orders HTTP/1.1",
            "POST /topics/orders?acks=written HTTP/1.1", "POST  /topics/orders HTTP/1.1", "POST /topics/orders",
            "GET /topics/orders HTTP/1.1", "POST /topics/orders?acks=x HTTP/1.1", f"POST {MESSAGES}?key=k HTTP/1.1",
            f"POST {MESSAGES}?key=%ff&tag= HTTP/1.1", f"POST {LINES}?acks=written HTTP/1.1",
        ]),
        random.choice(["Host: localhost"] * 5 + ["host: localhost", "HOST: localhost", "Host : localhost"]),
        random.choice([f"Content-Type: {JSON}", f"Content-Type: {BATCH_TYPE}", f"Content-Type: {LINES_TYPE}"] * 3 + [
            f"content-type: {JSON}", "Content-Type: text/plain", "Content-Type: application/json",
        ]),
    ]  # fmt: skip
    lines += random.choice([[f"Content-Length: {length}"]] * 6 + [
        [f"content-length: {length}"], [f"CONTENT-LENGTH: {length}"], ["Content-Length: +5"], [],
        [f"Content-Length: 0{length}"], [f"Content-Length: {length} "],
        [f"Content-Length: {length}", f"Content-Length: {length}"], [f"Content-Length: {length}", "Content-Length: 3"],
        [f"Content-Length: {length}", "Transfer-Encoding: chunked"], ["Transfer-Encoding: chunked"],
    ])  # fmt: skip
    lines += random.choice([[]] * 8 + [
        ["Connection: close"], ["Expect: 100-continue"], ["Upgrade: websocket", "Connection: upgrade"],
        ["X-Odd: 1"], ["Accept: image/png"], [" folded: 1"], ["Connection: keep-alive"], ["X-Request-Id: mine"],
    ])  # fmt: skip
    if "Transfer-Encoding: chunked" in lines:
        body = b"%x\r\n%b\r\n0\r\n\r\n" % (len(body), body) if body else b"0\r\n\r\n"
    return "\r\n".join([*lines, "", ""]).encode() + body


LAST = b"GET /healthz HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"
QUIET_S = 6.0
PAUSE_S = 0.01  # between pieces: so long that what was sent before has been answered, mostly


class _Hearing(asyncio.Protocol):
    """Keeps all that it hears: a reset at the end, after a refusal of what is no HTTP, takes nothing away."""

    def __init__(self) -> None:
        self.heard = b""
        self.over = asyncio.Event()

    def data_received(self, data: bytes) -> None:
        self.heard += data

    def connection_lost(self, _: Exception | None) -> None:
        self.over.set()


async def _all_answers(port: int, pieces: Sequence[bytes]) -> bytes:
    """All that comes back on a connection that is sent these pieces, then its end."""
    loop = asyncio.get_running_loop()
    transport, hearing = await loop.create_connection(_Hearing, "127.0.0.1", port)
    # A connection's first request is never for the fast path.
    for piece in (LAST.replace(b"close", b"keep-alive"), *pieces, LAST):
        if not transport.is_closing():
            transport.write(piece)
            await asyncio.sleep(PAUSE_S)
    with suppress(TimeoutError):  # where LAST was taken for the rest of a body
        async with asyncio.timeout(QUIET_S):
            await hearing.over.wait()
    transport.abort()
    return re.sub(rb"(?m)^(Date|X-Request-Id|Content-Length): .*$|request_id\":\"[^\"]*\"", b"", hearing.heard)


async def test_odd_requests_are_answered_alike_with_the_lane_and_without(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nine hundred requests, some in pieces, some pipelined: the same answers, the same records."""
    random = Random(23)
    conversations = []
    for number in range(200):
        usual = [request(), request(b"x", target=MESSAGES), request(BATCH, content_type=BATCH_TYPE)]
        requests = [random.choice([random.choice(usual), _odd(random)]) for _ in range(random.randrange(1, 9))]
        requests = [sent.replace(b"orders", b"o%05d" % number) for sent in requests]  # a topic of its own
        cut = random.choice([0, 0, 1])
        pieces: list[bytes] = []
        for sent in requests:
            at = random.randrange(1, len(sent)) if cut and random.random() < 0.5 else len(sent)
            pieces += [piece for piece in (sent[:at], sent[at:]) if piece]
        if random.random() < 0.2:
            pieces = [b"".join(pieces)]
        conversations.append(pieces)
    taken, take = 0, FastPath.take

    def counting(self: FastPath, meaning: Plain, data: bytes, start: int, client: Client) -> bool:
        nonlocal taken
        is_taken = take(self, meaning, data, start, client)
        taken += is_taken
        return is_taken

    monkeypatch.setattr(FastPath, "take", counting)
    fast = await _conversations(conversations)
    assert taken > 20
    monkeypatch.setattr(FastPath, "read", lambda *_: None)
    slow_ = await _conversations(conversations)
    for pieces, by_lane, by_others in zip(conversations, fast, slow_, strict=True):
        assert by_lane == by_others, pieces


async def _conversations(all_pieces: Sequence[Sequence[bytes]]) -> list[tuple[bytes, list[Append]]]:
    """What a connection for each of them gets, and what it stores in its own topic. Some at a time: a machine that is
    busy makes none of them wait long."""
    gateway, broker = fake_gateway(FakeClock())
    topics = [await broker.create_topic(f"o{number:05}", 4) for number in range(len(all_pieces))]
    room = asyncio.Semaphore(50)

    async def one(port: int, pieces: Sequence[bytes]) -> bytes:
        async with room:
            return await _all_answers(port, pieces)

    async with served(gateway) as port:
        answers = await asyncio.gather(*(one(port, pieces) for pieces in all_pieces))
    stored: dict[int, list[Append]] = {topic.topic_id: [] for topic in topics}
    for append in broker.appends:
        stored[append.queue.topic_id].append(append)
    return list(zip(answers, stored.values(), strict=True))


@pytest.mark.parametrize("begun", [b"POST /topics/none HTTP/1.1\r\nHost: localhost\r\nX-Begun: ", b"PO"])
async def test_a_remembered_request_inside_of_another_one_is_not_taken(begun: bytes, taken: list[bytes]) -> None:
    """What follows the beginning of a head belongs to that head, even if it looks like a whole request."""
    gateway, broker = await orders()
    async with served(gateway) as port:
        reader, writer = await warmed(port)
        for _ in range(2):
            writer.write(request())
            assert (await answer(reader))[0].startswith("HTTP/1.1 200")
        assert len(taken) == 2
        writer.write(begun)
        await asyncio.sleep(0.05)
        writer.write(request())
        assert (await answer(reader))[0][9:12] in ("400", "404", "415")
        assert len(taken) == 2
        writer.close()
    assert broker.stored_count == 3


async def test_the_body_of_a_remembered_head_may_come_apart(
    taken: list[bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    """As clients send it that write head and body one after the other, and as large bodies come."""
    gateway, broker = await orders()
    parsed: list[bytes] = []
    parse = Connection._parse

    def noting(self: Connection, data: bytes) -> bool:
        parsed.append(data)
        return parse(self, data)

    many = bytes(encode([Record(None, b"%d" % number * 300, 5) for number in range(300)]))
    large = request(many, content_type=BATCH_TYPE)
    async with served(gateway) as port:
        reader, writer = await warmed(port)
        for sent in (request(), large):
            writer.write(sent)
            assert (await answer(reader))[0].startswith("HTTP/1.1 200")
        with monkeypatch.context() as patch:
            patch.setattr(Connection, "_parse", noting)
            for sent in (request(), large):
                body_at = sent.index(b"\r\n\r\n") + 4
                for piece in (sent[:body_at], sent[body_at:-10], sent[-10:]):
                    writer.write(piece)
                    await asyncio.sleep(0.01)
                assert (await answer(reader))[0].startswith("HTTP/1.1 200")
        assert not parsed
        assert taken[-2:] == [ONE, many]
        writer.write(large[:-10])
        await asyncio.sleep(0.02)
        assert gateway.stats.receiving_bytes > len(large) // 2
        writer.write(large[-10:] + request(target="/topics/none") + request())  # pipelined: for aiohttp
        assert [(await answer(reader))[0][9:12] for _ in range(3)] == ["200", "404", "200"]
        assert gateway.stats.receiving_bytes == 0
        writer.close()
    assert broker.stored_count == 1 + 2 + 3 * 300 + 1


async def test_a_body_that_does_not_come_in_time_is_left_to_aiohttp(
    taken: list[bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    gateway, broker = await orders(body_timeout_ms=300)
    monkeypatch.setattr("gateway.main.listener.LINGERING_S", 0.05)
    monkeypatch.setattr("gateway.surfaces.http.connection.BODY_WAIT_S", 0.05)
    async with served(gateway) as port:
        reader, writer = await warmed(port)
        writer.write(request())
        assert (await answer(reader))[0].startswith("HTTP/1.1 200")
        for late_s, status in ((0.15, "200"), (1.0, "408")):
            writer.write(request()[:-5])
            await asyncio.sleep(late_s)
            if status == "200":
                writer.write(request()[-5:])
            assert (await answer(reader))[0][9:12] == status
        assert gateway.stats.receiving_bytes == 0
        writer.transport.abort()
    assert len(taken) == 1
    assert broker.stored_count == 3


async def test_a_body_is_left_to_aiohttp_in_the_order_in_which_it_came(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its time ends while its connection rests, with a later piece held, and what came before has many lines."""
    gateway, broker = await orders()
    connections: list[Connection] = []
    take_in = Connection._take_in

    def noting(self: Connection, data: bytes, *, is_late: bool = False) -> None:
        connections.append(self)
        take_in(self, data, is_late=is_late)

    body = b'{"records":[{"value":[\r\n%b0]}]}' % b"".join(b"1%08d,\r\n" % number for number in range(20_000))
    sent = request(body)
    first, second, third = sent[: 4 * LINES_BYTES], sent[4 * LINES_BYTES : 9 * LINES_BYTES], sent[9 * LINES_BYTES :]
    async with served(gateway) as port:
        reader, writer = await warmed(port)
        monkeypatch.setattr(Connection, "_take_in", noting)
        writer.write(request())
        assert (await answer(reader))[0].startswith("HTTP/1.1 200")
        connection = connections[-1]
        writer.write(first)
        async with asyncio.timeout(PATIENCE_S):
            while connection._coming is None or connection._receiving_bytes < len(first):  # noqa: ASYNC110
                await asyncio.sleep(0.01)
        assert connection.rest()
        connection.data_received(second)
        connection._give_up()
        connection.read_on()
        writer.write(third)
        assert (await answer(reader))[0].startswith("HTTP/1.1 200")
        writer.close()
    last = [entry for entries in broker.entries.values() for entry in entries][-1]
    assert [record.value for record in decode(last.batch)] == [orjson.dumps(orjson.loads(body)["records"][0]["value"])]


async def test_bytes_of_a_body_that_comes_count_and_too_many_are_refused(taken: list[bytes]) -> None:
    gateway, _ = await orders()
    full = gateway.limits.receiving_bytes_max
    async with served(gateway) as port:
        for others, status in ((full - len(request()), "200"), (full, "503")):
            reader, writer = await warmed(port)
            writer.write(request())
            assert (await answer(reader))[0].startswith("HTTP/1.1 200")
            gateway.stats.receiving_bytes = others
            for piece in (request()[:-5], request()[-5:]):
                writer.write(piece)
                await asyncio.sleep(0.02)
            assert (await answer(reader))[0][9:12] == status
            assert gateway.stats.receiving_bytes == others
            writer.close()
        reader, writer = await warmed(port)  # who leaves in the middle of a body takes its bytes along
        gateway.stats.receiving_bytes = 0
        writer.write(request()[:-5])
        await asyncio.sleep(0.02)
        assert gateway.stats.receiving_bytes == len(request()) - 5
        writer.transport.abort()
        async with asyncio.timeout(PATIENCE_S):
            while gateway.stats.receiving_bytes:  # noqa: ASYNC110 -- a plain counter
                await asyncio.sleep(0.01)
    assert len(taken) == 3


async def test_lines_before_a_request_do_not_hide_where_its_body_ends(taken: list[bytes]) -> None:
    """aiohttp passes over empty lines before a request; what follows them is one head and its body nevertheless."""
    gateway, broker = await orders()
    async with served(gateway) as port:
        reader, writer = await warmed(port)
        writer.write(request())
        assert (await answer(reader))[0].startswith("HTTP/1.1 200")
        inner = request()
        lines = f"POST /none HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(inner) + 20}\r\nX-Pad: "
        head = (lines + "x" * (len(inner) - len(lines) - 4) + "\r\n\r\n").encode()
        assert len(head) == len(inner)  # so that what is left of its body is as long as a whole request
        writer.write(b"\r\n\r\n" + head + b"x" * 20)
        await asyncio.sleep(0.02)
        writer.write(inner)
        await asyncio.sleep(0.02)
        writer.write(inner)
        assert [(await answer(reader))[0][9:12] for _ in range(2)] == ["404", "200"]
        writer.close()
    assert broker.stored_count == 3
    assert len(taken) == 2


async def test_the_fast_path_is_open_over_tls(taken: list[bytes], tmp_path: Path) -> None:
    gateway, _ = await orders()
    cert, key = tmp_path / "cert.pem", tmp_path / "key.pem"
    write_certificate(cert, key)
    tls = ServerTls(TlsConfig(cert_file=cert, key_file=key))
    trusting = ssl.create_default_context(cafile=str(cert))
    async with served(gateway, tls=tls) as port:
        reader, writer = await asyncio.open_connection("127.0.0.1", port, ssl=trusting)
        large = request(b'{"records":[{"value":"%b"}]}' % (b"x" * 300_000), target="/topics/orders/partitions/1")
        pull = b"GET /topics/orders/partitions/1/records?offset=%d HTTP/1.1\r\nHost: localhost\r\n\r\n"
        bodies = []
        for sent in (request(ONE, ORDINARY), request(), request(), large, large, pull % 1, pull % 0, pull % 1):
            writer.write(sent)
            head, body = await answer(reader)
            assert head.startswith("HTTP/1.1 200")
            bodies.append(body)
        writer.close()
    assert taken == [ONE, ONE, b"", b""]
    assert len(bodies[6]) > 2 * 300_000
    assert bodies[7] == bodies[5]


async def test_what_follows_an_ordinary_answer_at_once_takes_the_lane(
    taken: list[bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    gateway, _ = await orders()
    following = [request(ONE)]
    finish = Connection.finish_response

    async def finish_and_hear(self: Connection, *args: Any) -> tuple[Any, bool]:
        finished = await finish(self, *args)
        if following:  # a turn of the event loop before aiohttp waits for the next request
            asyncio.get_running_loop().call_soon(self.data_received, following.pop())
        return finished

    monkeypatch.setattr(Connection, "finish_response", finish_and_hear)
    async with served(gateway) as port:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(request(ONE, ORDINARY))
        async with asyncio.timeout(PATIENCE_S):
            statuses = [(await answer(reader))[0].split("\r\n")[0] for _ in range(2)]
        writer.close()
    assert taken == [ONE]
    assert statuses[1] == "HTTP/1.1 200 OK"
