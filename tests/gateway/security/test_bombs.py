"""What is small to send and large to take in; and anything at all, where JSON, a query or a header is expected.

Whatever comes, the answer is a refusal or a result, never a 500, and memory and time stay where they were.
"""

from __future__ import annotations

import gzip
import resource
import time
from urllib.parse import quote

import aiohttp
import orjson
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from yarl import URL

from gateway.codec.json_text import parse_json
from gateway.codec.records import Format, open_envelope, parse_records
from gateway.errors import RequestError
from gateway.surfaces.http.context import Gateway
from store.errors import StoreError
from tests.gateway.conftest import Client
from tests.gateway.security.kit import secured, served

JSON = "application/vnd.kafka.json.v2+json"
MiB = 1024 * 1024

BOMBS = {
    "deep lists": b"[" * 100_000,
    "deep lists that end": b"[" * 100_000 + b"]" * 100_000,
    "deep objects": b'{"a":' * 100_000,
    "deep values": b'{"records":[{"value":' + b"[" * 100_000 + b"]" * 100_000 + b"}]}",
    "deep under the limit": b'{"records":[{"value":' + b"[" * 1000 + b"]" * 1000 + b"}]}",
    "a giant number": b'{"records":[{"value":' + b"9" * 1_000_000 + b"}]}",
    "a giant exponent": b'{"records":[{"value":1e999999999}]}',
    "a giant partition": b'{"records":[{"value":1,"partition":' + b"9" * 1000 + b"}]}",
    "a giant delay": b'{"records":[{"value":1,"delay_ms":' + b"9" * 30 + b"}]}",
    "many records": b'{"records":[' + b"{}," * 100_000 + b"{}]}",
    "many equal names": b'{"records":[{' + b'"value":1,' * 100_000 + b'"value":1}]}',
    "many headers": b'{"records":[{"value":1,"headers":[' + b'{"name":"a","value":"YQ=="},' * 10_000 + b"{}]}]}",
    "half a surrogate": b'{"records":[{"value":"\\ud800"}]}',
    "no UTF-8": b'{"records":[{"value":"\xff\xfe"}]}',
    "a NUL": b'{"records":[{"value":"\0"}]}',
    "NaN": b'{"records":[{"value":NaN}]}',
}


@pytest.mark.parametrize("bomb", BOMBS.values(), ids=BOMBS.keys())
async def test_json_bombs_are_answered_quickly_and_in_little_memory(client: Client, bomb: bytes) -> None:
    before_kib, started_s = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, time.process_time()
    response = await client.post("/topics/orders", data=bomb, headers={"Content-Type": JSON})
    assert response.status in (200, 400, 413, 422)
    assert len(await response.read()) < 64_000
    assert time.process_time() - started_s < 2
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before_kib < 64 * 1024


async def test_a_stranger_cannot_make_the_server_inflate_or_parse_anything() -> None:
    parts = await secured({"ann": ["admin"]})
    bomb = gzip.compress(b"0" * (64 * MiB), 9)
    async with served(parts.gateway) as port, aiohttp.ClientSession(f"http://127.0.0.1:{port}") as client:
        before_kib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        for encoding, body in (("gzip", bomb), ("identity", BOMBS["deep lists"])):
            headers = {"Content-Type": JSON, "Content-Encoding": encoding}
            response = await client.post("/topics/orders", data=body, headers=headers)
            assert response.status == 401
        headers = {"Content-Type": JSON, "Content-Encoding": "gzip", "Authorization": f"Bearer {parts.tokens['ann']}"}
        response = await client.post("/topics/orders", data=bomb, headers=headers)
        assert response.status in (400, 413, 415)
        assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before_kib < 32 * 1024


ANYTHING = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**63) | st.floats(allow_nan=False) | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=6), inner, max_size=3),
    max_leaves=8,
)
FIELDS = st.sampled_from(
    [
        "value",
        "key",
        "partition",
        "timestamp",
        "headers",
        "tag",
        "delay_ms",
        "deliver_at",
        "msg_id",
        "message_group",
        "x",
    ]
)
RECORDS = st.lists(st.dictionaries(FIELDS, ANYTHING, max_size=4) | ANYTHING, max_size=3)
ENVELOPES = st.one_of(ANYTHING, st.fixed_dictionaries({"records": RECORDS}))


@settings(max_examples=200, deadline=None)
@given(ENVELOPES, st.sampled_from(list(Format)))
def test_any_json_is_records_or_a_refusal(envelope: object, fmt: Format) -> None:
    try:
        body = orjson.dumps(envelope)
    except TypeError:  # beyond what JSON or orjson writes
        return
    try:
        parse_records(open_envelope(parse_json(body), records_max=10), fmt, raw_keys=False)
    except (RequestError, StoreError) as refusal:
        assert str(refusal)  # noqa: PT017


@settings(max_examples=200, deadline=None)
@given(st.binary(max_size=60) | st.binary(max_size=40).map(lambda tail: b'{"records":[' + tail))
def test_any_bytes_are_records_or_a_refusal(body: bytes) -> None:
    for fmt in Format:
        try:
            parse_records(open_envelope(parse_json(body), records_max=10), fmt, raw_keys=False)
        except (RequestError, StoreError) as refusal:
            assert str(refusal)  # noqa: PT017


PATHS = (
    "/topics/orders/partitions/0/records",
    "/mq/v1/topics/orders/offsets",
    "/mq/v1/topics",
    "/topics/orders/partitions/0/offsets",
)
NAMES = st.sampled_from(["offset", "timeout", "max_bytes", "limit", "format", "filter", "time", "partitions"])
VALUES = (
    st.text(max_size=12) | st.integers(-(2**70), 2**70).map(str) | st.sampled_from(["0", "earliest", "1e5", "٣", "+1"])
)


@settings(max_examples=100, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    st.sampled_from(PATHS), st.lists(st.tuples(NAMES, VALUES), max_size=3), st.text('abc/*;q=0.1,"\\=é ', max_size=20)
)
async def test_any_query_and_accept_header_is_answered(
    gateway: Gateway, path: str, pairs: list[tuple[str, str]], accept: str
) -> None:
    query = "&".join(
        f"{name}={quote(value, safe='', errors='surrogatepass')}" for name, value in pairs if name != "timeout"
    )
    async with served(gateway) as port, aiohttp.ClientSession() as client:
        url = URL(f"http://127.0.0.1:{port}{path}?{query}", encoded=True)
        async with client.get(url, headers={"Accept": accept.strip()}) as response:
            assert response.status < 500, (query, accept, await response.text())
