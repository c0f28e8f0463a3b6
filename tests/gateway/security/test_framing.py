"""What is not quite HTTP, sent byte by byte to a server as `mq serve` runs it.

Each case has a marker request hidden in it: a POST to `/topics/hidden`. A server that reads a message in two ways (as
a proxy before it would read it, and then differently) stores that record. Whatever comes, the answer is one refusal
and the end of the connection, or the one reading that RFC 9112 allows; the marker is never a request; nothing hangs;
no answer names the server's software; and the server goes on.
"""

from __future__ import annotations

import re
from collections.abc import AsyncIterator

import pytest

from gateway.surfaces.http.context import Gateway
from loadtest.attack.malformed import BODY, HIDDEN, HOST, REFUSED, chunk, post
from tests.clock import FakeClock
from tests.gateway.fake_broker import FakeBroker, fake_gateway
from tests.gateway.security.kit import served, talk

HARMLESS: dict[str, tuple[bytes, set[int]]] = {
    "absolute form": (b"GET http://localhost/topics HTTP/1.1\r\n" + HOST + b"Connection: close\r\n\r\n", {200}),
    "absolute form, another host": (
        b"GET http://evil.example/topics HTTP/1.1\r\n" + HOST + b"Connection: close\r\n\r\n", {200, 400, 403, 404}
    ),
    "authority form": (b"CONNECT localhost:80 HTTP/1.1\r\n" + HOST + b"Connection: close\r\n\r\n", {400, 404, 405}),
    "asterisk form": (b"OPTIONS * HTTP/1.1\r\n" + HOST + b"Connection: close\r\n\r\n", {400, 404, 405}),
    "TRACE": (b"TRACE /topics HTTP/1.1\r\n" + HOST + b"Connection: close\r\n\r\n", {405}),
    "no Host": (b"GET /topics HTTP/1.1\r\nConnection: close\r\n\r\n", {200, 400}),
    "two Hosts": (b"GET /topics HTTP/1.1\r\n" + HOST + b"Host: evil.example\r\nConnection: close\r\n\r\n", {400, 403}),
    "a foreign Host": (b"GET /topics HTTP/1.1\r\nHost: evil.example\r\nConnection: close\r\n\r\n", {403}),
    "an unknown expectation": (post(b"Expect: 200-ok\r\nConnection: close\r\nContent-Length: 0\r\n"), {417}),
    "an upgrade to nothing, with a body": (
        post(b"Upgrade: h2c\r\nConnection: Upgrade, close\r\nContent-Length: 25\r\n", BODY), {200, 400}
    ),
    "a compressed body that is none": (
        post(b"Content-Encoding: gzip\r\nConnection: close\r\nContent-Length: 25\r\n", BODY), {400, 413, 415}
    ),
    "traversal": (b"GET /topics/../../etc/passwd HTTP/1.1\r\n" + HOST + b"Connection: close\r\n\r\n", {404}),
    "encoded traversal": (b"GET /topics/%2e%2e%2fx HTTP/1.1\r\n" + HOST + b"Connection: close\r\n\r\n", {404}),
    "an encoded line end": (b"GET /topics/a%0d%0ab HTTP/1.1\r\n" + HOST + b"Connection: close\r\n\r\n", {404}),
    "bytes that are no UTF-8": (b"GET /topics/%ff%fe HTTP/1.1\r\n" + HOST + b"Connection: close\r\n\r\n", {400, 404}),
    "half an escape": (b"GET /topics/%f HTTP/1.1\r\n" + HOST + b"Connection: close\r\n\r\n", {400, 404}),
    "a trailer that is a header": (
        post(b"Transfer-Encoding: chunked\r\nConnection: close\r\n",
             chunk(BODY) + b"0\r\nContent-Length: 5\r\nHost: evil.example\r\n\r\n"), {200, 400}
    ),
    "a chunk extension": (
        post(b"Transfer-Encoding: chunked\r\nConnection: close\r\n", b"19;a=b\r\n" + BODY + b"\r\n0\r\n\r\n"), {200}
    ),
}  # fmt: skip
"""May have one meaning, and has it: one answer of one of these statuses."""


@pytest.fixture
async def parts() -> tuple[Gateway, FakeBroker]:
    gateway, broker = fake_gateway(FakeClock(), body_timeout_ms=500, keepalive_timeout_ms=1000)
    await broker.create_topic("orders", 1)
    await broker.create_topic("hidden", 1)
    return gateway, broker


@pytest.fixture
async def port(parts: tuple[Gateway, FakeBroker]) -> AsyncIterator[int]:
    async with served(parts[0]) as port:
        yield port


def statuses(answer: bytes) -> list[int]:
    return [int(status) for status in re.findall(rb"HTTP/1\.[01] (\d{3})", answer)]


async def check_alive(port: int) -> None:
    answer = await talk(port, b"GET /healthz HTTP/1.1\r\n" + HOST + b"Connection: close\r\n\r\n")
    assert statuses(answer) == [200]


def hidden_count(broker: FakeBroker) -> int:
    topic_id = next(topic.topic_id for name, topic in broker._topics.items() if name == "hidden")
    return sum(append.queue.topic_id == topic_id for append in broker.appends)


def test_there_are_enough_cases() -> None:
    assert len(REFUSED) + len(HARMLESS) >= 40


@pytest.mark.parametrize("sent", REFUSED.values(), ids=REFUSED.keys())
async def test_what_is_not_http_is_refused_once_and_the_connection_ends(
    port: int, parts: tuple[Gateway, FakeBroker], sent: bytes
) -> None:
    answer = await talk(port, sent)
    assert [status // 100 for status in statuses(answer)] == [4], answer[:300]
    assert b"server:" not in answer.lower()
    assert hidden_count(parts[1]) == 0
    await check_alive(port)


@pytest.mark.parametrize(("sent", "allowed"), HARMLESS.values(), ids=HARMLESS.keys())
async def test_what_is_odd_has_one_meaning(
    port: int, parts: tuple[Gateway, FakeBroker], sent: bytes, allowed: set[int]
) -> None:
    answer = await talk(port, sent)
    (status,) = statuses(answer)
    assert status in allowed, answer[:300]
    assert b"server:" not in answer.lower()
    assert b"root:" not in answer
    assert hidden_count(parts[1]) == 0
    await check_alive(port)


@pytest.mark.parametrize("sent", [REFUSED["length and chunked"], REFUSED["a NUL in a value"], b"GARBAGE\r\n\r\n"])
async def test_nothing_behind_a_refused_request_is_read(
    port: int, parts: tuple[Gateway, FakeBroker], sent: bytes
) -> None:
    """Requests before it are answered, those behind it are not: nobody knows where they would begin."""
    good = b"GET /healthz HTTP/1.1\r\n" + HOST + b"\r\n"
    answer = await talk(port, good + good + sent + HIDDEN)
    found = statuses(answer)
    assert found[-1] == 400
    assert set(found[:-1]) <= {200}
    assert hidden_count(parts[1]) == 0


async def test_a_request_that_is_cut_anywhere_is_no_request(port: int, parts: tuple[Gateway, FakeBroker]) -> None:
    whole = HIDDEN
    for end in range(0, len(whole), 7):
        answer = await talk(port, whole[:end], half_close=True, timeout_s=3)
        assert not any(status == 200 for status in statuses(answer)), whole[:end]
    assert hidden_count(parts[1]) == 0
    await check_alive(port)


@pytest.mark.parametrize("path", [b"/topics", b"/healthz"])
async def test_http_0_9_is_not_spoken(port: int, path: bytes) -> None:
    assert await talk(port, b"GET " + path + b"\r\n\r\n") == b""
    await check_alive(port)


async def test_a_malformed_request_is_answered_like_any_other_error(port: int) -> None:
    answer = await talk(port, b"GET / HTTP/1.1\r\nbad header\r\n\r\n")
    head, _, body = answer.partition(b"\r\n\r\n")
    assert b"content-type: application/json" in head.lower()
    assert b"x-request-id:" in head.lower()
    assert b'"error_code":400' in body
    assert b"bad header" not in body
