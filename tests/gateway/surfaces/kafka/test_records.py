"""gateway.surfaces.kafka.records: Fetch has no sessions, ids of producers are random. All else of this file:
tests/e2e/test_kafka.py, and test_nodes.py beside this one."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Any, cast

import pytest

from gateway.api.producer import TooLong
from gateway.api.read import Tail
from gateway.api.turns import COUNTED_BYTES, ITEMS_PER_TURN
from gateway.auth.access import NOBODY, OPEN, Access
from gateway.settings.kafka import KafkaListener
from gateway.surfaces.http.answer_memory import Allowance
from gateway.surfaces.kafka import errors
from gateway.surfaces.kafka.apis import APIS, FETCH
from gateway.surfaces.kafka.fetch import FetchRequest, PartitionFetch, read_fetch
from gateway.surfaces.kafka.produce import PartitionRecords, ProduceRequest
from gateway.surfaces.kafka.records import Producing, _at_ends, _read_all, fetch, init_producer_id
from gateway.surfaces.kafka.session import Session
from store import record_batch
from store.limits import MiB
from store.record_batch import HEADER_BYTES, LONG_BYTES, STEP_ITEMS
from store.turns import TURN_S, others_turn, stretches
from store.types import Buffer
from tests.clock import FakeClock
from tests.gateway.fake_broker import fake_gateway
from tests.gateway.surfaces.kafka import oracle
from tests.gateway.surfaces.kafka.test_produce import fetch_request
from tests.waiting import until

SESSIONS_FROM = 7
LONG_COUNT = 400
"""Records of a batch that may have too many headers for one step."""


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


@pytest.mark.parametrize("more", [0, 1])
async def test_behind_the_known_ends_of_a_few_partitions_nothing_is_read(more: int) -> None:
    own, count = session(), ITEMS_PER_TURN + more - 1
    await own.gateway.admin.create_topic("orders", count)
    consumer = own.gateway.consumer

    def asked(*offsets: int) -> FetchRequest:
        partitions = [PartitionFetch(number, -1, offset, MiB) for number, offset in enumerate(offsets)]
        return FetchRequest(0, 1, MiB, -1, [("orders", partitions)])

    assert _at_ends(own, asked(0)) is None, "no end is known"
    tails = [Tail("orders", number, 0) for number in range(count)]
    async with consumer.watching(tails, lambda: None):
        await until(lambda: all(consumer.is_end(*tail) for tail in tails))
        assert _at_ends(own, asked(0, 0)) == await _read_all(own, asked(0, 0), MiB)
        assert _at_ends(own, asked(0, 1)) is None
        assert _at_ends(replace(own, access=NOBODY), asked(0, 0)) is None
        several = asked(*[0] * (count - 1))
        one_more = several._replace(topics=[*several.topics, ("orders", [PartitionFetch(count - 1, -1, 0, MiB)])])
        expected = None if more else await _read_all(own, one_more, MiB)
        assert _at_ends(own, one_more) == expected


@pytest.mark.parametrize(
    ("headers", "damage", "access", "is_begun_at_once"),
    [(0, 0, OPEN, True), (STEP_ITEMS // LONG_COUNT + 1, 0, OPEN, False), (0, 1, OPEN, True), (40, 1, NOBODY, True)],
)
async def test_a_batch_that_may_have_half_a_million_headers_is_begun_at_once_unless_it_takes_several_steps(
    headers: int, damage: int, access: Access, is_begun_at_once: bool
) -> None:
    """One that is damaged, or may not be sent, is found out at once."""
    own = replace(session(), access=access)
    await own.gateway.admin.create_topic("orders", 1)
    record = record_batch.Record(None, bytes(LONG_BYTES // LONG_COUNT), 0, [("h", b"")] * headers)
    batch = record_batch.encode([record] * LONG_COUNT)
    batch[26] ^= damage  # the last offset delta
    assert record_batch.may_be_long(batch)
    answers: list[Iterable[Buffer] | None] = []
    request = ProduceRequest(False, -1, [("orders", [PartitionRecords(0, memoryview(batch))])])
    producing = Producing(own, 9, request, answers.append)
    assert producing.takes_turns is not is_begun_at_once
    if is_begun_at_once:
        producing.begin()
    else:
        await producing.begin_in_turns()
    await until(lambda: answers)
    [buffers] = answers
    assert buffers is not None
    [answer] = oracle.message("ProduceResponse", 9, b"".join(buffers)).responses[0].partition_responses
    expected = errors.TOPIC_AUTHORIZATION_FAILED if access is NOBODY else errors.INVALID_RECORD if damage else 0
    assert answer.error_code == expected


async def test_ids_of_producers_are_random_so_that_no_two_nodes_or_starts_give_the_same() -> None:
    own = session()
    given = [(await init_producer_id(own, 4, {"transactional_id": None}))["producer_id"] for _ in range(1_000)]
    assert len(set(given)) == len(given)
    assert all(0 <= producer_id < 1 << 62 for producer_id in given)
    assert max(given) > 1 << 60  # else they are few: half of all are above
    refused = await init_producer_id(own, 4, {"transactional_id": "mine"})
    assert refused["error_code"] == errors.UNSUPPORTED_VERSION


@pytest.mark.parametrize(("size", "is_counted"), [(COUNTED_BYTES - 1, False), (COUNTED_BYTES, True)])
async def test_in_a_full_turn_a_batch_from_some_size_on_is_begun_in_another(size: int, is_counted: bool) -> None:
    own = session()
    await own.gateway.admin.create_topic("orders", 1)
    some = record_batch.encode([record_batch.Record(None, bytes(size - 2 * HEADER_BYTES), 0)])
    batch = record_batch.encode([record_batch.Record(None, bytes(2 * size - 2 * HEADER_BYTES - len(some)), 0)])
    assert len(batch) == size
    request = ProduceRequest(False, -1, [("orders", [PartitionRecords(0, memoryview(batch))])])
    answers: list[Iterable[Buffer] | None] = []
    producing = Producing(own, 9, request, answers.append)
    checked = own.gateway.producer.checked_at_once
    assert not producing.takes_turns
    stretches().spent(2 * TURN_S)
    assert producing.takes_turns is is_counted
    if is_counted:
        with pytest.raises(TooLong):
            checked("orders", batch)
    else:
        assert checked("orders", batch)[0] == 1
    await others_turn()
    assert not producing.takes_turns
    assert checked("orders", batch)[0] == 1
