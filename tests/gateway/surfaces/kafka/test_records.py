"""gateway.surfaces.kafka.records: Fetch has no sessions, ids of producers are random. All else of this file:
tests/e2e/test_kafka.py, and test_nodes.py beside this one."""

from __future__ import annotations

from typing import Any, cast

import pytest

from gateway.auth.access import OPEN
from gateway.settings.kafka import KafkaListener
from gateway.surfaces.http.answer_memory import Allowance
from gateway.surfaces.kafka import errors
from gateway.surfaces.kafka.apis import APIS, FETCH
from gateway.surfaces.kafka.fetch import read_fetch
from gateway.surfaces.kafka.records import fetch, init_producer_id
from gateway.surfaces.kafka.session import Session
from tests.clock import FakeClock
from tests.gateway.fake_broker import fake_gateway
from tests.gateway.surfaces.kafka import oracle
from tests.gateway.surfaces.kafka.test_produce import fetch_request

SESSIONS_FROM = 7


def session() -> Session:
    gateway, _ = fake_gateway(FakeClock())
    return Session(gateway, cast(Any, None), "KAFKA", KafkaListener("", "127.0.0.1", 9092), "10.0.0.1", OPEN)


@pytest.mark.parametrize("version", range(SESSIONS_FROM, APIS[FETCH].max_version + 1))
async def test_no_response_begins_a_session_and_a_request_of_one_is_told_that_there_is_none(version: int) -> None:
    own = session()
    for epoch, code, topics in ((-1, errors.NONE, 1), (0, errors.NONE, 1), (1, errors.FETCH_SESSION_ID_NOT_FOUND, 0)):
        request = read_fetch(memoryview(fetch_request(version, epoch)), 0, version)
        allowance = Allowance(own.gateway.stats.answers, own.payer, own.gateway.limits.answering_bytes_max)
        answer = b"".join(map(bytes, await fetch(own, version, request, allowance)))
        found = oracle.message("FetchResponse", version, answer)
        assert (found.error_code, found.session_id, len(found.responses)) == (code, 0, topics)


async def test_ids_of_producers_are_random_so_that_no_two_nodes_or_starts_give_the_same() -> None:
    own = session()
    given = [(await init_producer_id(own, 4, {"transactional_id": None}))["producer_id"] for _ in range(1_000)]
    assert len(set(given)) == len(given)
    assert all(0 <= producer_id < 1 << 62 for producer_id in given)
    assert max(given) > 1 << 60  # else they are few: half of all are above
    refused = await init_producer_id(own, 4, {"transactional_id": "mine"})
    assert refused["error_code"] == errors.UNSUPPORTED_VERSION
