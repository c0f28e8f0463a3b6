"""gateway/surfaces/http/admission.py: rates over HTTP; who may do what is in tests/gateway/security/test_matrix.py"""

from __future__ import annotations

import aiohttp
import pytest

from gateway.auth.access import NOBODY, OPEN
from gateway.auth.rates import BURST_S
from gateway.settings.config import ConfigError, build
from gateway.settings.limits import Limits
from gateway.surfaces.http.admission import payer_of, rates_of
from gateway.surfaces.http.application import UNMATCHED
from tests.gateway.security.kit import secured, served

JSON = {"Content-Type": "application/vnd.kafka.json.v2+json"}


async def test_a_principal_that_asks_too_often_is_told_when_to_come_back() -> None:
    parts = await secured({"a": ["admin"], "b": ["admin"]}, limits__requests_per_s_max=1)
    async with served(parts.gateway) as port, aiohttp.ClientSession(f"http://127.0.0.1:{port}") as client:

        async def status(name: str, path: str = "/topics") -> tuple[int, str | None]:
            async with client.get(path, headers={"Authorization": f"Bearer {parts.tokens[name]}"}) as response:
                if response.status == 429:
                    assert (await response.json())["error_code"] == 42901
                return response.status, response.headers.get("Retry-After")

        found = [await status("a") for _ in range(int(BURST_S) + 1)]
        assert found == [(200, None)] * int(BURST_S) + [(429, "1")]
        assert await status("b") == (200, None)
        assert await status("a", "/healthz") == (200, None)


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [("GET", "/nope", 404), ("PATCH", "/topics", 405), ("OPTIONS", "/topics/orders", 403), ("POST", "/mq/v1/", 404)],
)
async def test_what_no_route_does_is_charged_like_the_rest(method: str, path: str, status: int) -> None:
    parts = await secured({"a": ["admin"]}, limits__requests_per_s_max=1)
    preflight = {"Origin": "https://elsewhere.example.org", "Access-Control-Request-Method": "POST"}
    async with served(parts.gateway) as port, aiohttp.ClientSession(f"http://127.0.0.1:{port}") as client:
        found = []
        for _ in range(int(BURST_S) + 1):
            async with client.request(method, path, headers=preflight if method == "OPTIONS" else {}) as response:
                found.append((response.status, response.headers.get("Retry-After")))
                if response.status == 429:
                    assert (await response.json())["error_code"] == 42901
    assert found == [(status, None)] * int(BURST_S) + [(429, "1")]
    assert parts.gateway.stats.routes[UNMATCHED].statuses == {status: int(BURST_S), 429: 1}


async def test_bodies_are_charged_by_their_bytes() -> None:
    parts = await secured({"a": ["admin"]}, limits__request_bytes_per_s_max=1000)
    body = b'{"records":[{"value":"%s"}]}' % (b"x" * 3000)
    async with served(parts.gateway) as port, aiohttp.ClientSession(f"http://127.0.0.1:{port}") as client:
        headers = {**JSON, "Authorization": f"Bearer {parts.tokens['a']}"}
        assert (await client.post("/topics/orders", headers=headers, data=body)).status == 200
        response = await client.post("/topics/orders", headers=headers, data=body)
        assert response.status == 429
        assert int(response.headers["Retry-After"]) >= 1
        assert parts.broker.stored_count == 1


def test_no_limit_costs_nothing_and_callers_without_a_name_pay_by_address() -> None:
    assert rates_of(Limits()) is None
    assert rates_of(Limits(requests_per_s_max=1)) is not None
    assert payer_of(OPEN, "192.0.2.1") == payer_of(NOBODY, "192.0.2.1") == "address 192.0.2.1"


@pytest.mark.parametrize(
    ("name", "least"),
    [
        ("requests_per_s_max", 0),
        ("request_bytes_per_s_max", 0),
        ("connections_max", 1),
        ("connections_per_address_max", 0),
    ],
)
def test_limits_have_a_least_value(name: str, least: int) -> None:
    assert getattr(build({"data": "d", f"limits.{name}": least}).limits, name) == least
    with pytest.raises(ConfigError, match=name):
        build({"data": "d", f"limits.{name}": least - 1})
