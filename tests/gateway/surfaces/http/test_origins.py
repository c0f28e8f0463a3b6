"""gateway/surfaces/http/origins.py, and what pages get from a served application."""

from __future__ import annotations

from dataclasses import replace

import pytest
from aiohttp.test_utils import TestClient
from aiohttp.web import Application, Request

from gateway.errors import RequestError
from gateway.settings.config import check_origin_text
from gateway.surfaces.http.application import origins_of
from gateway.surfaces.http.context import Gateway
from gateway.surfaces.http.origins import KNOWN_MAX, PREFLIGHT_S, Origins
from tests.clock import FakeClock
from tests.gateway.fake_broker import fake_gateway
from tests.gateway.security.kit import served, talk

APP = "https://app.example"


@pytest.mark.parametrize(
    ("origin", "host", "fine"),
    [
        (None, "localhost:8082", True),
        ("http://localhost:8082", "localhost:8082", True),
        ("http://LOCALHOST:8082", "localhost:8082", True),
        ("http://localhost:9999", "localhost:8082", False),
        ("http://localhost:8082", "127.0.0.1:8082", True),
        ("http://127.0.0.1:8082", "localhost:8082", True),
        ("http://[::1]:8082", "localhost:8082", True),
        ("http://localhost", "127.0.0.1", True),
        ("http://localhost", "[::1]", True),
        ("http://localhost:8082", "127.0.0.1:8083", False),
        ("http://localhost", "127.0.0.1:8082", False),
        ("http://127.0.0.2:8082", "127.0.0.1:8082", False),
        ("http://evil.localhost:8082", "localhost:8082", False),
        (APP, "localhost:8082", True),
        ("http://app.example", "localhost:8082", False),
        ("https://app.example.evil.example", "localhost:8082", False),
        ("https://evil.example", "localhost:8082", False),
        ("null", "localhost:8082", False),
        ("", "localhost:8082", False),
        ("http://[", "localhost:8082", False),
        (None, "127.0.0.1:8082", True),
        (None, "[::1]:8082", True),
        (None, "app.example", True),
        (None, "mq.localhost", True),
        (None, "evil.example:8082", False),
        ("http://evil.example:8082", "evil.example:8082", False),
        (None, "localhost.evil.example", False),
        (None, "[", False),
        (None, "", False),
        (None, None, True),
    ],
)
def test_pages_of_this_server_and_of_listed_origins_are_let_in(
    origin: str | None, host: str | None, fine: bool
) -> None:
    origins = Origins((APP,), frozenset(("app.example",)))
    headers = {name: value for name, value in (("Origin", origin), ("Host", host)) if value is not None}
    for _ in range(2):  # remembered or not, the answer is the same
        if fine:
            origins.check(headers)
        else:
            with pytest.raises(RequestError) as refusal:
                origins.check(headers)
            assert refusal.value.error_code == 40301


@pytest.mark.parametrize("allowed", [(APP,), ("*",)])
def test_octets_that_are_no_text_are_no_origin_and_the_log_can_be_written(
    allowed: tuple[str, ...], caplog: pytest.LogCaptureFixture
) -> None:
    with pytest.raises(RequestError) as refusal:
        Origins(allowed, frozenset(("app.example",))).check({"Origin": "http://\udcff", "Host": "\udcff"})
    assert refusal.value.error_code == 40301
    assert rb"origin=http://\udcff host=\udcff:" in caplog.text.encode()


def test_any_origin_can_be_allowed_and_any_name_answered_to() -> None:
    Origins(("*",), None).check({"Origin": "https://evil.example", "Host": "whatever.example"})


@pytest.mark.parametrize("allowed", [(), ("*",)])
async def test_an_origin_that_is_no_text_is_refused_like_any_other(allowed: tuple[str, ...]) -> None:
    gateway, _ = fake_gateway(FakeClock(), allowed_origins=allowed)
    sent = b"GET /healthz HTTP/1.1\r\nHost: localhost\r\nOrigin: http://\xff\r\nConnection: close\r\n\r\n"
    async with served(gateway) as port:
        assert (await talk(port, sent)).startswith(b"HTTP/1.1 403 ")


def test_a_refused_page_is_logged_once_with_the_setting_that_lets_it_in(caplog: pytest.LogCaptureFixture) -> None:
    origins = Origins((), None)
    headers = {"Origin": "https://shop.example", "Host": "localhost:8082"}
    for _ in range(3):
        with pytest.raises(RequestError):
            origins.check(headers)
        assert origins.preflight_headers(headers, "POST") == {}
    (line,) = caplog.messages
    assert "origin=https://shop.example" in line
    assert "allowed_origins" in line
    for number in range(KNOWN_MAX + 5):
        assert origins.preflight_headers({"Origin": f"https://a{number}", "Host": "b"}, "POST") == {}
    assert len(caplog.messages) == KNOWN_MAX


def test_what_is_remembered_is_bounded() -> None:
    origins = Origins(("*",), None)
    for number in range(KNOWN_MAX + 5):
        origins.check({"Origin": f"http://a{number}", "Host": "b"})
    assert len(origins._known) == KNOWN_MAX


@pytest.mark.parametrize("text", [APP, "http://localhost:3000", "*"])
def test_origins_are_written_as_browsers_write_them(text: str) -> None:
    check_origin_text(text)


@pytest.mark.parametrize(
    "text", ["", "app.example", f"{APP}/", "https://App.example", "https://u:p@a", "ftp://a", "null"]
)
def test_what_would_never_match_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"origin|write"):
        check_origin_text(text)


def test_a_server_that_asks_who_one_is_answers_to_any_name(gateway: Gateway) -> None:
    foreign = {"Host": "mq.example"}
    with pytest.raises(RequestError):
        origins_of(gateway.config).check(foreign)
    origins_of(replace(gateway.config, insecure_no_auth=True)).check(foreign)
    origins_of(replace(gateway.config, auth=replace(gateway.config.auth, enabled=True))).check(foreign)


async def test_a_foreign_page_can_neither_write_nor_read(client: TestClient[Request, Application]) -> None:
    """Not even by a request that needs no preflight."""
    headers = {"Origin": "https://evil.example", "Content-Type": "text/plain"}
    for method, path in (("POST", "/topics/orders"), ("GET", "/topics"), ("GET", "/ws/v1"), ("GET", "/mq/v1/info")):
        response = await client.request(method, path, headers=headers, data=b"x" if method == "POST" else None)
        assert response.status == 403, path
        assert "Access-Control-Allow-Origin" not in response.headers


async def test_a_listed_page_gets_what_its_browser_asks_for(gateway: Gateway) -> None:
    gateway = replace(gateway, config=replace(gateway.config, allowed_origins=(APP,)))
    async with served(gateway) as port:
        head = f"Host: localhost\r\nOrigin: {APP}\r\nConnection: close\r\n"
        answer = (await talk(port, f"GET /topics HTTP/1.1\r\n{head}\r\n".encode())).decode().lower()
        assert "200 ok" in answer
        assert f"access-control-allow-origin: {APP}\r\n" in answer
        assert "x-request-id, retry-after" in answer
        assert "vary: origin\r\n" in answer
        asks = "Access-Control-Request-Method: POST\r\nAccess-Control-Request-Headers: authorization, mq-tag\r\n"
        answer = (await talk(port, f"OPTIONS /topics/orders HTTP/1.1\r\n{head}{asks}\r\n".encode())).decode().lower()
        assert answer.startswith("http/1.1 204")
        assert "access-control-allow-headers: authorization, mq-tag\r\n" in answer
        assert f"access-control-max-age: {PREFLIGHT_S}\r\n" in answer
        assert "post" in answer.partition("access-control-allow-methods:")[2].partition("\r\n")[0]
        head = "Host: localhost\r\nOrigin: https://e.example\r\nConnection: close\r\n"
        foreign = f"OPTIONS /topics/orders HTTP/1.1\r\n{head}{asks}\r\n"
        answer = (await talk(port, foreign.encode())).decode().lower()
        assert answer.startswith("http/1.1 403")
        assert "access-control" not in answer
