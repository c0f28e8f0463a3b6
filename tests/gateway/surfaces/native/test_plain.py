"""gateway/surfaces/native/plain.py: receive and ack through the fast path, over the groups of a store, and new topics
are answered as without it. One message that is sent: tests/gateway/surfaces/http/test_fast_path.py."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

import orjson
import pytest

from gateway.api.trail import Trail
from gateway.groups.protocol import LEASE_OVER, Receive, Received
from gateway.surfaces.http.answer_memory import SMALL_BYTES
from gateway.surfaces.http.connection import Client, Connection
from gateway.surfaces.http.context import Gateway
from gateway.surfaces.http.fast_path import FastPath, Plain
from gateway.surfaces.http.plain import BODY_BYTES_MAX
from gateway.surfaces.http.routes import SMALL_BODY_BYTES_MAX
from gateway.surfaces.native.plain import RECEIVE_BYTES_MAX
from store.errors import DiskFull
from store.limits import KiB
from store.types import Buffer
from tests.gateway.fake_broker import fake_gateway
from tests.gateway.groups.coordinator.world import World, world
from tests.gateway.security.kit import Secured, policy_of, secured, served
from tests.gateway.surfaces.http.plain_requests import ORDINARY, answer, request
from tests.simdisk import SimDisk
from tests.waiting import PATIENCE_S, until

VALUES = [b'{"n":%d}' % number for number in range(12)]


class Consumer:
    """A connection to a gateway over a world."""

    def __init__(self, port: int, group: str, *headers: str) -> None:
        self._port = port
        self._group = group
        self._headers = headers

    async def open(self) -> None:
        self.reader, self.writer = await asyncio.open_connection("127.0.0.1", self._port)
        self.writer.write(b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n")
        await answer(self.reader)
        await asyncio.sleep(0.01)  # until aiohttp's task waits for the next one

    def send(self, verb: str, body: bytes, *headers: str) -> None:
        target = f"/mq/v1/groups/{self._group}/messages:{verb}"
        self.writer.write(request(body, *self._headers, *headers, target=target, content_type="application/json"))

    async def ask(self, verb: str, body: bytes, *headers: str) -> tuple[str, bytes]:
        self.send(verb, body, *headers)
        return await answer(self.reader)


@asynccontextmanager
async def served_world(*, values: list[bytes] = VALUES) -> AsyncIterator[tuple[World, Gateway, int]]:
    async with world(values=values) as it:
        gateway, _ = fake_gateway(it.clock)
        gateway = replace(gateway, groups=it.groups, routes_table=it.routes)
        async with served(gateway) as port:
            yield it, gateway, port


@pytest.fixture
def served_bodies(monkeypatch: pytest.MonkeyPatch) -> list[bytes]:
    """The bodies of requests that the fast path has answered, or else given back, behind a dash."""
    bodies: list[bytes] = []
    take = FastPath.take

    def noting(self: FastPath, meaning: Plain, data: bytes, start: int, client: Client) -> bool:
        class Noting:
            remote, is_there, taken, lost = client.remote, client.is_there, client.taken, client.lost

            @staticmethod
            def reply(whole: bytes | Sequence[Buffer] | None) -> None:
                bodies.append((b"-" if whole is None else b"") + data[start:])
                client.reply(whole)

        return take(self, meaning, data, start, Noting())

    monkeypatch.setattr(FastPath, "take", noting)
    return bodies


def receive(**fields: object) -> bytes:
    return orjson.dumps({"topics": ["orders"], **fields})


def receipts_of(body: bytes) -> list[str]:
    return re.findall(r'"receipt":"([^"]+)"', body.decode())


def acked(receipts: list[str]) -> bytes:
    return orjson.dumps({"receipts": receipts})


def shape(head: str, body: bytes) -> tuple[str, bytes]:
    """Without what differs from answer to answer."""
    return (
        re.sub(r"(?m)^(Date|X-Request-Id): .*$", r"\1: ...", head),
        re.sub(rb'"receipt":"r2[^"]*\.([0-9]+)"', rb'"receipt":"\1"', body),
    )


async def test_receives_and_acks_are_answered_as_without_the_fast_path(served_bodies: list[bytes]) -> None:
    async def conversation(*headers: str) -> list[tuple[str, bytes]]:
        async with served_world() as (it, gateway, port):
            consumer = Consumer(port, "g", *headers)
            await consumer.open()
            answers = [await consumer.ask("receive", receive(max_messages=3), "X-Request-Id: mine")]
            receipts = receipts_of(answers[0][1])
            answers.append(await consumer.ask("ack", acked(receipts[:2]), "Accept: application/json"))
            answers.append(await consumer.ask("ack", acked([receipts[0], "none", receipts[2]])))
            answers.append(
                await consumer.ask("receive", receive(max_messages=2, wait_ms=50, consumer="c", max_bytes=9))
            )
            answers.append(await consumer.ask("receive", receive(max_messages=4, attempt_id="a", invisible_ms=1000)))
            answers.append(await consumer.ask("receive", receive(max_messages=4, attempt_id="a", filter="tag:a||b")))
            it.clock.step(2000)
            answers.append(await consumer.ask("ack", acked(receipts_of(answers[-1][1]))))
            answers.append(await consumer.ask("receive", receive(max_messages=20, start="latest")))
            answers.append(await consumer.ask("receive", receive(), "Accept: application/vnd.kafka.v2+json"))
            counts = await it.groups.counts("g")
            stats = gateway.stats
            assert (stats.fetched_record_count, stats.long_poll_count, stats.answers.held_bytes) == (20, 0, 0)
            assert {worker.consumer for worker in gateway.leases.workers("g", it.clock.now_ms())} == {
                "c", "anonymous@127.0.0.1"
            }  # fmt: skip
            routes = {name: stats.routes[name].statuses for name in ("receive", "ack")}
            consumer.writer.close()
            return [*answers, (repr(counts), b""), (repr(routes), b""), (repr(stats.fetched_byte_count), b"")]

    fast = await conversation()
    assert len(served_bodies) == 9
    assert not [body for body in served_bodies if body.startswith(b"-")]
    ordinary = await conversation(ORDINARY)
    assert len(served_bodies) == 9
    assert [shape(*one) for one in fast] == [shape(*one) for one in ordinary]
    assert [len(receipts_of(body)) for _, body in fast[:9]] == [3, 2, 3, 1, 4, 4, 4, 8, 0]
    assert fast[6][1].count(b'"error_code":%d' % LEASE_OVER) == 4


@pytest.mark.parametrize(
    ("verb", "body", "status"),
    [
        ("receive", b"{", "400"),
        ("receive", b"[]", "400"),
        ("receive", b"", "422"),
        ("receive", receive(oops=1), "422"),
        ("receive", receive(max_messages=0), "422"),
        ("receive", orjson.dumps({"topics": ["none"]}), "404"),
        ("receive", receive(max_bytes=RECEIVE_BYTES_MAX + 1), "200"),
        ("receive", receive() + b" " * BODY_BYTES_MAX, "200"),
        ("ack", b"{}", "422"),
        ("ack", b'{"receipts":[]}', "422"),
        ("ack", b'{"receipts":[1]}', "422"),
        ("ack", b'{"up_to":{"topic":"orders","partition":0,"offset":1}}', "200"),
        ("ack", acked(["x"] * 30_000), "422"),
        ("ack", acked(["x"]) + b" " * SMALL_BODY_BYTES_MAX, "200"),
        ("nack", acked(["x"]), "200"),
    ],
)
async def test_the_normal_path_answers_all_else(
    verb: str, body: bytes, status: str, served_bodies: list[bytes]
) -> None:
    async with served_world() as (_, _, port):
        consumer = Consumer(port, "g")
        await consumer.open()
        head, _ = await consumer.ask(verb, body)
        assert head[9:12] == status
        assert not [body for body in served_bodies if not body.startswith(b"-")]
        consumer.writer.close()


async def test_a_record_as_bytes_and_an_illegal_group_are_for_the_normal_path(served_bodies: list[bytes]) -> None:
    async with served_world() as (_, _, port):
        consumer = Consumer(port, "g")
        await consumer.open()
        head, body = await consumer.ask("receive", receive(max_messages=1), "Accept: application/octet-stream")
        assert (head[9:12], body) == ("200", VALUES[0])
        assert (await consumer.ask("receive", receive(), "Accept: image/png"))[0][9:12] == "406"
        assert not served_bodies
        illegal = Consumer(port, "__g")
        await illegal.open()
        for verb, body in (("receive", receive()), ("ack", acked(["x"]))):
            assert (await illegal.ask(verb, body))[0][9:12] == "422"
        assert all(body.startswith(b"-") for body in served_bodies)
        consumer.writer.close()
        illegal.writer.close()


async def test_a_receive_that_finds_nothing_waits_on_the_normal_path(served_bodies: list[bytes]) -> None:
    async with served_world(values=[]) as (it, gateway, port):
        consumer = Consumer(port, "g")
        await consumer.open()
        consumer.send("receive", receive(wait_ms=20_000))
        await until(lambda: gateway.stats.long_poll_count == 1)
        await it.send(b'"late"')
        head, body = await answer(consumer.reader)
        assert head.startswith("HTTP/1.1 200")
        assert b'"value":"late"' in body
        assert served_bodies == [b"-" + receive(wait_ms=20_000)]
        consumer.writer.close()


async def test_acks_that_the_disk_refuses_are_refused_and_done_the_next_time(monkeypatch: pytest.MonkeyPatch) -> None:
    async with served_world() as (it, _, port):
        consumer = Consumer(port, "g")
        await consumer.open()
        _, body = await consumer.ask("receive", receive(max_messages=2))

        async def full(*_: object, **__: object) -> None:
            raise DiskFull("the disk is full")

        monkeypatch.setattr(it.broker, "append", full)
        assert (await consumer.ask("ack", acked(receipts_of(body))))[0][9:12] == "507"
        assert (await consumer.ask("receive", receive(max_messages=2)))[0][9:12] == "507"
        assert (await it.groups.counts("g")).in_flight == 2
        monkeypatch.undo()
        head, result = await consumer.ask("ack", acked(receipts_of(body)))
        assert head[9:12] == "200"
        assert result.count(b'"ok":true') == 2
        assert (await it.groups.counts("g")).in_flight == 0
        consumer.writer.close()


async def test_a_client_that_has_gone_gives_back_what_was_leased_for_it(monkeypatch: pytest.MonkeyPatch) -> None:
    async with served_world() as (it, _, port):
        consumer = Consumer(port, "g")
        await consumer.open()
        begin, held = it.groups.begin_receive, []

        def begin_receive(group: str, asked: Receive, told: Callable[[Received | None], None]) -> bool:
            return begin(group, asked, lambda received: held.append(lambda: told(received)))

        monkeypatch.setattr(it.groups, "begin_receive", begin_receive)
        consumer.send("receive", receive(max_messages=2))
        await until(lambda: bool(held))
        assert it.groups.table.get("g").leased_count(it.clock.now_ms()) == 2
        consumer.writer.transport.abort()
        await asyncio.sleep(0.05)
        held.pop()()
        await until(lambda: it.groups.table.get("g").leased_count(it.clock.now_ms()) == 0)
        monkeypatch.undo()
        other = Consumer(port, "g")
        await other.open()
        _, body = await other.ask("receive", receive(max_messages=2))
        assert b'"offset":0,' in body
        assert body.count(b'"delivery_attempt":1,') == 2
        other.writer.close()


async def test_large_answers_count_until_they_are_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    async with served_world(values=[]) as (it, gateway, port):
        for _ in range(10):
            await it.send(b'"%b"' % (b"x" * 10 * KiB))
        consumer = Consumer(port, "g")
        await consumer.open()
        held: list[int] = []
        go_on = asyncio.Event()

        async def slowly(_: Connection) -> None:
            held.append(gateway.stats.answers.held_bytes)
            await go_on.wait()

        monkeypatch.setattr(Connection, "taken", slowly)
        _, large = await consumer.ask("receive", receive(max_messages=9))
        assert len(large) > SMALL_BYTES
        assert held == [len(large)]
        _, small = await consumer.ask("receive", receive())
        assert held == [len(large)]
        assert (large.count(b'"receipt":'), small.count(b'"receipt":')) == (9, 1)
        assert gateway.stats.answers.held_bytes == len(large)
        go_on.set()
        await until(lambda: not gateway.stats.answers.held_bytes)
        consumer.writer.close()


async def test_rights_are_asked_for_the_group_of_the_target_and_for_the_topics_of_the_body(
    served_bodies: list[bytes],
) -> None:
    scopes = {"p": ["receive:topic:orders", "receive:group:g"], "q": ["receive:topic:orders"], "r": ["receive:group:g"]}
    safe = await secured(scopes)  # type: ignore[arg-type]
    async with world(values=VALUES) as it:
        gateway = replace(safe.gateway, groups=it.groups, routes_table=it.routes, clock=it.clock)
        async with served(gateway) as port:
            statuses = []
            for name in ("p", "q", "r"):
                consumer = Consumer(port, "g", f"Authorization: Bearer {safe.tokens[name]}")
                await consumer.open()
                for _ in range(2):  # the first one is to make the credential known
                    head, _ = await consumer.ask("receive", receive(max_messages=1))
                statuses.append(head[9:12])
                consumer.writer.close()
            assert statuses == ["200", "403", "403"]
            assert served_bodies == [
                receive(max_messages=1),
                *[b"-" + receive(max_messages=1)] * (len(served_bodies) - 1),
            ]
            consumer = Consumer(port, "g", f"Authorization: Bearer {safe.tokens['p']}")
            await consumer.open()
            safe.authenticator.replace(policy_of([]))
            head, _ = await consumer.ask("receive", receive(max_messages=1))
            assert head[9:12] == "401"
            consumer.writer.close()


# Topics that are made


@asynccontextmanager
async def audited_topics(scopes: dict[str, list[str]]) -> AsyncIterator[tuple[Secured, Trail, int]]:
    """A server that asks for tokens and keeps a trail."""
    safe = await secured(scopes)  # type: ignore[arg-type]
    trail = Trail(Path("/data"), SimDisk(), safe.clock, monotonic_s=lambda: 0.0, gather_s=0)
    writing = asyncio.create_task(trail.run())
    try:
        async with served(replace(safe.gateway, trail=trail)) as port:
            yield safe, trail, port
    finally:
        writing.cancel()
        await asyncio.wait([writing])
        await trail.close()


def put(name: str, body: bytes, *headers: str) -> bytes:
    return request(body, *headers, target=f"/mq/v1/topics/{name}", content_type="application/json", method="PUT")


async def test_topics_are_made_answered_and_recorded_as_without_the_fast_path(served_bodies: list[bytes]) -> None:
    sent = [
        ("a", b"{}"),
        ("b", b'{"partitions":3,"retention_ms":5000,"json_keys":"confluent"}'),
        ("c-1", b'{"partitions":null}'),
        ("d", b' {"selector":"key","mq_headers":true} '),
        # the normal path answers these
        ("a", b"{}"),
        ("b", b'{"partitions":4}'),
        ("e", b"{"),
        ("e", b'{"partitions":0}'),
        ("e", b'{"oops":1}'),
        ("e", b'{"selector":"none"}'),
        ("e_e", b'{"partitions":1}'),  # a name that the broker refuses
        ("%66", b'{"partitions":1}'),
        ("g?h=1", b'{"partitions":1}'),
        ("i/", b'{"partitions":1}'),
        ("j", b'{"partitions":1}' + b" " * BODY_BYTES_MAX),
    ]

    async def conversation(*headers: str) -> tuple[list[tuple[str, bytes]], list[dict[str, object]], object, object]:
        async with audited_topics({"p": ["create:topic:*", "describe:topic:*"]}) as (safe, trail, port):
            consumer = Consumer(port, "g", f"Authorization: Bearer {safe.tokens['p']}")
            await consumer.open()
            own = [f"Authorization: Bearer {safe.tokens['p']}", "X-Request-Id: first"]
            consumer.writer.write(put("orders", b'{"partitions":2}', *own))
            await answer(consumer.reader)  # its credential is known from now on
            answers = []
            for number, (name, body) in enumerate(sent):
                own = [f"Authorization: Bearer {safe.tokens['p']}", f"X-Request-Id: r{number}", *headers]
                consumer.writer.write(put(name, body, *own))
                answers.append(await answer(consumer.reader))
            consumer.writer.close()
            topics = [(one.name, one.partitions, one.config) for one in safe.gateway.routes_table.topics()]
            statuses = safe.gateway.stats.routes["create_topic"].statuses
            await trail.close()
            lines = (await trail.page(lambda _: True, cursor=None, limit=100)).rows
            return [shape(*one) for one in answers], lines, topics, statuses

    fast = await conversation()
    assert [body for body in served_bodies if not body.startswith(b"-")] == [body for _, body in sent[:4]]
    count = len(served_bodies)
    ordinary = await conversation(ORDINARY)
    assert len([body for body in served_bodies[count:] if not body.startswith(b"-")]) == 0
    without_token = [[{**line, "token_id": None} for line in lines] for _, lines, _, _ in (fast, ordinary)]
    assert without_token[0] == without_token[1]
    assert (fast[0], *fast[2:]) == (ordinary[0], *ordinary[2:])
    assert [head[9:12] for head, _ in fast[0]] == [
        *["201"] * 4, "200", "409", "400", "422", "422", "422", "422", "201", "201", "201", "201",
    ]  # fmt: skip
    line = next(line for line in fast[1] if line["request_id"] == "r1")
    assert (line["action"], line["principal"], line["outcome"], line["status"]) == ("topic.create", "p", "done", 201)
    assert (line["object"], line["address"]) == ({"topic": "b"}, "127.0.0.1")
    assert line["details"] == {"partitions": 3, "retention_ms": 5000, "json_keys": "confluent"}


async def test_a_topic_is_answered_when_its_line_is_in_the_trail_and_both_name_one_request() -> None:
    async with audited_topics({"p": ["create:topic:a*"], "q": ["describe:topic:*"]}) as (safe, trail, port):
        for name in "pq":
            consumer = Consumer(port, "g")
            await consumer.open()
            for topic in ("a1", f"a2{name}", "b"):
                consumer.writer.write(put(topic, b"{}", f"Authorization: Bearer {safe.tokens[name]}"))
                head, _ = await answer(consumer.reader)
                (line,) = (await trail.page(lambda _: True, cursor=None, limit=1)).rows
                assert head[9:12] == ("403" if name == "q" or topic == "b" else "201")
                if head[9:12] == "201":
                    assert line["object"] == {"topic": topic}
                    assert f"\r\nX-Request-Id: {line['request_id']}\r\n" in head
            consumer.writer.close()
        assert [one.name for one in safe.gateway.routes_table.topics()] == ["a1", "a2p", "orders", "other"]


async def test_a_topic_whose_making_a_stop_cuts_off_is_in_the_trail(monkeypatch: pytest.MonkeyPatch) -> None:
    lanes: list[FastPath] = []
    monkeypatch.setattr(FastPath, "__init__", noted(FastPath.__init__, lanes))
    async with audited_topics({"p": ["create:topic:*"]}) as (safe, trail, port):
        consumer = Consumer(port, "g")
        await consumer.open()
        own = f"Authorization: Bearer {safe.tokens['p']}"
        consumer.writer.write(put("a", b"{}", own))
        await answer(consumer.reader)
        asked = asyncio.Event()

        async def long(*_: object, **__: object) -> None:
            asked.set()
            await asyncio.Event().wait()

        monkeypatch.setattr(safe.broker, "create_topic", long)
        consumer.writer.write(put("b", b"{}", own))
        async with asyncio.timeout(PATIENCE_S):
            await asked.wait()
        (serving,) = lanes[0]._serving
        serving.cancel()
        await asyncio.wait([serving])
        await trail.close()
        (line,) = (await trail.page(lambda _: True, cursor=None, limit=1)).rows
        assert (line["object"], line["outcome"], line["status"]) == ({"topic": "b"}, "unknown", None)
        consumer.writer.close()


def noted(make: Callable[..., None], made: list[FastPath]) -> Callable[..., None]:
    """An `__init__` that keeps what it has made."""

    def init(self: FastPath, *args: object, **options: object) -> None:
        make(self, *args, **options)
        made.append(self)

    return init
