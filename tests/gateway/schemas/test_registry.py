"""gateway/schemas/registry.py against a registry over HTTP that does what a test wants."""

from __future__ import annotations

import ssl
import time
from base64 import b64encode
from collections.abc import AsyncIterator
from pathlib import Path

import orjson
import pytest

from gateway.errors import REGISTRY_AWAY, REGISTRY_REFUSES, RequestError
from gateway.schemas.registry import ANSWER_BYTES_MAX, Refused, Registry
from gateway.settings.registry import RegistryConfig
from loadtest.certificates import write_certificate
from loadtest.peers.servers import free_port
from tests.gateway.schemas.fake_registry import AVRO, PROTO, FakeRegistry, serving


@pytest.fixture
async def fake() -> AsyncIterator[FakeRegistry]:
    async with serving() as registry:
        yield registry


@pytest.fixture
async def registry(fake: FakeRegistry) -> AsyncIterator[Registry]:
    async with Registry(RegistryConfig(url=fake.url, timeout_ms=500)) as made:
        yield made


async def test_the_five_questions(fake: FakeRegistry, registry: Registry) -> None:
    made = await registry.register("orders-value", {"schema": AVRO})
    assert made.id == 1
    assert (await registry.by_id(1)).schema == AVRO
    assert (await registry.by_id(1)).schema_type == "AVRO"
    found = await registry.look_up("orders-value", {"schema": AVRO})
    assert (found.id, found.version, found.subject) == (1, 1, "orders-value")
    assert (await registry.by_version("orders-value", 1)).id == 1
    assert (await registry.by_version("orders-value", None)).version == 1
    number = fake.add(PROTO, "PROTOBUF", "p", references=[{"name": "a.proto", "subject": "a", "version": 2}])
    [reference] = (await registry.by_id(number)).references
    assert (reference.name, reference.subject, reference.version) == ("a.proto", "a", 2)


@pytest.mark.parametrize("subject", ["a/b", "../ids", "ä %", "x?y#z"])
async def test_a_subject_of_any_name_is_one_part_of_the_path(
    fake: FakeRegistry, registry: Registry, subject: str
) -> None:
    fake.subjects[subject] = []
    with pytest.raises(Refused):
        await registry.by_version(subject, None)
    assert fake.asked[0].startswith("GET /subjects/")
    assert fake.asked[0].endswith("/versions/latest")


async def test_what_it_does_not_have_or_take_is_refused_in_its_words(registry: Registry) -> None:
    with pytest.raises(Refused, match="Schema not found") as caught:
        await registry.by_id(9)
    assert (caught.value.status, caught.value.error_code) == (404, 40403)
    with pytest.raises(Refused) as caught:
        await registry.register("orders-value", {"schema": "{"})
    assert (caught.value.status, caught.value.error_code) == (422, 42201)


@pytest.mark.parametrize(
    ("status", "body", "code"),
    [
        (500, b"{}", REGISTRY_AWAY),
        (503, b"", REGISTRY_AWAY),
        (429, b"", REGISTRY_AWAY),
        (401, b"", REGISTRY_REFUSES),
        (403, orjson.dumps({"error_code": 40301, "message": "no"}), REGISTRY_REFUSES),
        (302, b"", REGISTRY_REFUSES),
        (404, b"<html>", REGISTRY_REFUSES),  # no registry at this path
        (200, b"<html>", REGISTRY_REFUSES),
        (200, b"[" * 5_000, REGISTRY_REFUSES),
        (200, b"\xff", REGISTRY_REFUSES),
        (200, b'{"schema": 5}', REGISTRY_REFUSES),
    ],
)
async def test_other_answers_say_nothing_of_a_schema(
    fake: FakeRegistry, registry: Registry, status: int, body: bytes, code: int
) -> None:
    fake.status, fake.body = status, body
    with pytest.raises(RequestError) as caught:
        await registry.by_id(1)
    assert caught.value.error_code == code
    assert caught.value.retriable is (code == REGISTRY_AWAY)
    assert "127.0.0.1" not in caught.value.message


@pytest.mark.parametrize("body", [b"{}", b'{"id": 0}', b'{"id": 4294967296}'])
async def test_a_version_needs_an_id(fake: FakeRegistry, registry: Registry, body: bytes) -> None:
    fake.status, fake.body = 200, body
    with pytest.raises(RequestError) as caught:
        await registry.by_version("orders-value", None)
    assert caught.value.error_code == REGISTRY_REFUSES


async def test_an_answer_has_so_many_bytes_and_not_one_more(fake: FakeRegistry, registry: Registry) -> None:
    fake.status = 200
    fake.body = b'{"schema":"%b"}' % (b"x" * (ANSWER_BYTES_MAX - 13))
    assert len(fake.body) == ANSWER_BYTES_MAX
    assert len((await registry.by_id(1)).schema) == ANSWER_BYTES_MAX - 13
    fake.body += b" "
    with pytest.raises(RequestError) as caught:
        await registry.by_id(1)
    assert caught.value.error_code == REGISTRY_REFUSES


async def test_a_slow_registry_is_waited_for_so_long(fake: FakeRegistry, registry: Registry) -> None:
    fake.delay_s = 30.0
    begun_s = time.monotonic()
    with pytest.raises(RequestError) as caught:
        await registry.by_id(1)
    assert caught.value.error_code == REGISTRY_AWAY
    assert caught.value.retriable
    assert time.monotonic() - begun_s < 10.0
    fake.delay_s = 0.0
    fake.add(AVRO)
    assert (await registry.by_id(1)).schema == AVRO  # it is back


async def test_a_registry_that_is_down() -> None:
    async with Registry(RegistryConfig(url=f"http://127.0.0.1:{free_port()}")) as registry:
        with pytest.raises(RequestError) as caught:
            await registry.by_id(1)
    assert caught.value.error_code == REGISTRY_AWAY


async def test_a_registry_behind_tls_is_trusted_by_its_certificate(tmp_path: Path) -> None:
    cert, key = tmp_path / "cert.pem", tmp_path / "key.pem"
    write_certificate(cert, key)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(cert, key)
    async with serving(context) as fake:
        assert fake.url.startswith("https://")
        fake.add(AVRO)
        async with Registry(RegistryConfig(url=fake.url, ca_file=cert)) as registry:
            assert (await registry.by_id(1)).schema == AVRO
        async with Registry(RegistryConfig(url=fake.url)) as registry:  # nobody that the system knows
            with pytest.raises(RequestError) as caught:
                await registry.by_id(1)
        assert caught.value.error_code == REGISTRY_AWAY
        assert len(fake.asked) == 1


async def test_credentials_are_read_for_each_question(fake: FakeRegistry, tmp_path: Path) -> None:
    fake.add(AVRO)
    secret = tmp_path / "secret"
    secret.write_text("first\n")
    async with Registry(RegistryConfig(url=fake.url, user="mq", password_file=secret)) as registry:
        await registry.by_id(1)
        secret.write_text("second")
        await registry.by_id(1)
        secret.unlink()
        with pytest.raises(RequestError) as caught:
            await registry.by_id(1)
        assert caught.value.error_code == REGISTRY_REFUSES
    secret.write_text("t0k3n")
    async with Registry(RegistryConfig(url=fake.url, token_file=secret)) as registry:
        await registry.by_id(1)
    assert fake.authorizations == [
        f"Basic {b64encode(b'mq:first').decode()}",
        f"Basic {b64encode(b'mq:second').decode()}",
        "Bearer t0k3n",
    ]
