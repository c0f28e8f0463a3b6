"""Idempotency-Key, Mq-Producer and Mq-Sequence: what they may be, and what makes two requests the same."""

from __future__ import annotations

import pytest
from aiohttp import hdrs
from aiohttp.test_utils import make_mocked_request
from multidict import CIMultiDict

from gateway.api.producer import BatchReceipt, RequestIdentity
from gateway.auth.access import OPEN
from gateway.errors import RequestError
from gateway.settings.limits import IDEMPOTENCY_KEY_BYTES_MAX, PRODUCER_NAME_BYTES_MAX
from gateway.surfaces.http.caller import grant
from gateway.surfaces.http.idempotency import SEQUENCE_MAX, mark_replayed, producer_sequence, request_identity
from store.types import NO_FINGERPRINT, Acks, ProducerSequence
from tests.clock import FakeClock
from tests.gateway.fake_broker import fake_gateway
from tests.gateway.security.kit import served, talk

BODY = b'{"records":[{"value":1}]}'


def identity(
    key: str | list[str] | None,
    *,
    path: str = "/topics/t",
    topic_id: int = 16,
    body: bytes | None = BODY,
    **more: str,
) -> RequestIdentity | None:
    headers: CIMultiDict[str] = CIMultiDict({hdrs.CONTENT_TYPE: "application/json"})
    headers.update({name.replace("_", "-"): value for name, value in more.items()})
    for one in [key] if isinstance(key, str) else key or []:
        headers.add("Idempotency-Key", one)
    request = make_mocked_request("POST", path, headers=headers)
    grant(request, OPEN)
    return request_identity(request, topic_id, body)


def sequence(**headers: str) -> ProducerSequence | None:
    sent = CIMultiDict({name.replace("_", "-"): value for name, value in headers.items()})
    request = make_mocked_request("POST", "/topics/t/partitions/0", headers=sent)
    grant(request, OPEN)
    return producer_sequence(request)


def test_without_the_header_there_is_no_identity() -> None:
    assert identity(None) is None
    assert sequence() is None


def test_a_quoted_key_and_a_bare_one_are_the_same() -> None:
    assert identity('"b3c1"') == identity("b3c1") == identity("  b3c1 ")
    assert identity(r'"a\\b"') == identity(r"a\b")
    assert len({identity(key) for key in (r'"a\\b"', r'"a\"b"', '"ab"')}) == 3
    assert identity('"a b"') is not None


def test_a_key_belongs_to_its_path_and_topic() -> None:
    ours = identity("k")
    assert ours is not None
    for other in (identity("k", path="/topics/t/partitions/0"), identity("k", topic_id=17), identity("l")):
        assert other is not None
        assert other.request_id != ours.request_id
        assert other.fingerprint == ours.fingerprint


def test_the_fingerprint_is_of_body_query_and_delay() -> None:
    ours = identity("k")
    assert ours is not None
    others = (
        identity("k", body=BODY + b" "),
        identity("k", path="/topics/t?acks=written"),
        identity("k", mq_delay_ms="5"),
        identity("k", mq_deliver_at="5"),
    )
    assert len({other.fingerprint for other in others if other is not None}) == len(others)
    for other in others:
        assert other is not None
        assert other.request_id == ours.request_id
        assert other.fingerprint != ours.fingerprint
    streamed = identity("k", body=None)
    assert streamed == (ours.request_id, NO_FINGERPRINT, 0)
    assert streamed is not None
    assert streamed.at(7) == (ours.request_id, NO_FINGERPRINT, 7)


@pytest.mark.parametrize(
    ("key", "code"),
    [
        ("", 400),
        ('""', 422),
        ('"a', 400),
        ('a"b', 400),
        ("a b", 400),
        ('"a\\b"', 400),
        ("é", 400),
        (["a", "b"], 400),
        ("k" * (IDEMPOTENCY_KEY_BYTES_MAX + 1), 422),
    ],
)
def test_what_is_no_key_is_refused(key: str | list[str], code: int) -> None:
    with pytest.raises(RequestError) as refusal:
        identity(key)
    assert refusal.value.error_code == code


def test_limits_at_n() -> None:
    assert identity("k" * IDEMPOTENCY_KEY_BYTES_MAX) is not None
    found = sequence(Mq_Producer="p" * PRODUCER_NAME_BYTES_MAX, Mq_Sequence=str(SEQUENCE_MAX))
    assert found is not None
    assert found.sequence == SEQUENCE_MAX


@pytest.mark.parametrize(
    ("headers", "code"),
    [
        ({"Mq_Producer": "p"}, 422),
        ({"Mq_Sequence": "1"}, 422),
        ({"Mq_Producer": "p", "Mq_Sequence": "1", "Idempotency_Key": "k"}, 422),
        ({"Mq_Producer": "", "Mq_Sequence": "1"}, 400),
        ({"Mq_Producer": "p" * (PRODUCER_NAME_BYTES_MAX + 1), "Mq_Sequence": "1"}, 422),
        ({"Mq_Producer": "p", "Mq_Sequence": "-1"}, 400),
        ({"Mq_Producer": "p", "Mq_Sequence": "1.5"}, 400),
        ({"Mq_Producer": "p", "Mq_Sequence": str(SEQUENCE_MAX + 1)}, 400),
    ],
)
def test_what_is_no_numbered_producer_is_refused(headers: dict[str, str], code: int) -> None:
    with pytest.raises(RequestError) as refusal:
        sequence(**headers)
    assert refusal.value.error_code == code


def test_an_answer_is_a_replay_only_when_all_of_it_is() -> None:
    old, new = BatchReceipt(0, 1, 1, Acks.FLUSHED, True), BatchReceipt(0, 2, 1, Acks.FLUSHED)
    for receipts, replayed in (([old, old], "true"), ([old, new], None)):
        headers: CIMultiDict[str] = CIMultiDict()
        mark_replayed(headers, receipts)
        assert headers.get("Idempotent-Replayed") == replayed


async def test_a_content_type_may_have_octets_that_are_no_text() -> None:
    gateway, broker = fake_gateway(FakeClock())
    await broker.create_topic("t", 1)
    head = (
        b"POST /topics/t HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nIdempotency-Key: k\r\n"
        b"Content-Type: application/vnd.kafka.json.v2+json; x=\xff\r\nContent-Length: %d\r\n\r\n"
    )
    async with served(gateway) as port:
        assert (await talk(port, head % len(BODY) + BODY)).startswith(b"HTTP/1.1 200 ")
