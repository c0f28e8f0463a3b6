"""gateway.surfaces.kafka.service: large requests are served a few at a time."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any, cast

import pytest

from gateway.settings.limits import Limits
from gateway.surfaces.http.context import GatewayStats
from gateway.surfaces.kafka import apis, service
from gateway.surfaces.kafka.connection import Answer
from gateway.surfaces.kafka.frames import read_header
from gateway.surfaces.kafka.produce import ProduceRequest
from gateway.surfaces.kafka.schema import Message
from gateway.surfaces.kafka.service import IN_LOOP_BYTES, LARGE_AT_ONCE, PRODUCED_IN_LOOP, Service
from gateway.surfaces.kafka.session import Session
from loadtest.turns.kafka import asked, fetch, produce
from tests.waiting import PATIENCE_S


@pytest.mark.parametrize(
    ("key", "message", "most"),
    [
        (apis.DELETE_GROUPS, {"groups_names": ["g" * 100] * (IN_LOOP_BYTES // 100)}, LARGE_AT_ONCE),
        (apis.DELETE_GROUPS, {"groups_names": ["g" * 100] * 10}, 9),
        (apis.JOIN_GROUP, {
            "group_id": "g", "member_id": "", "session_timeout_ms": 10_000, "protocol_type": "consumer",
            "protocols": [{"name": "range", "metadata": bytes(2 * IN_LOOP_BYTES)}]}, 9),
    ],
)  # fmt: skip
async def test_large_requests_that_wait_for_nobody_are_served_a_few_at_a_time(
    key: int, message: Message, most: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    serving = largest = 0
    all_here = asyncio.Event()

    async def handle(session: Session, version: int, request: Message) -> Message:
        nonlocal serving, largest
        serving += 1
        largest = max(largest, serving)
        if serving == most:
            all_here.set()
        async with asyncio.timeout(PATIENCE_S):
            await all_here.wait()
        await asyncio.sleep(0.05)  # one more than allowed would come now
        serving -= 1
        return {"results": []} if key == apis.DELETE_GROUPS else {"error_code": 25, "members": [], "leader": ""}

    monkeypatch.setitem(service.HANDLERS, key, handle)
    served = Service()
    frame = memoryview(asked(key, message))[4:]
    header = read_header(frame)
    answers = [Answer(len(frame)) for _ in range(9)]
    await asyncio.gather(*(served.serve(cast(Any, None), header, frame, answer) for answer in answers))
    assert largest == most
    assert all(answer.buffers for answer in answers)


@pytest.mark.parametrize("more", [0, 1])
async def test_a_request_of_many_partitions_is_read_beside_the_event_loop(
    more: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However few bytes or many elements they have: of a Produce request the partitions count, as its bytes are
    records."""
    threads: list[bool] = []

    def noted(*asked: Any) -> Any:
        threads.append(threading.current_thread() is threading.main_thread())
        return read(*asked)

    def begun(session: Session, version: int, request: ProduceRequest, done: object) -> Any:
        assert [len(partitions) for _, partitions in request.topics] == [PRODUCED_IN_LOOP + more - 1]
        return SimpleNamespace(begin_in_turns=lambda: asyncio.sleep(0))

    read = service.read_produce
    monkeypatch.setattr(service, "read_produce", noted)
    monkeypatch.setattr(service, "Producing", begun)
    frame = memoryview(produce("orders", bytes(1_000), PRODUCED_IN_LOOP + more - 1))[4:]
    await Service().serve_produce(cast(Any, None), read_header(frame), frame, lambda _: None)
    assert threads == [True, False][: 1 + more]


@pytest.mark.parametrize("is_large", [False, True])
async def test_a_large_fetch_is_read_and_its_response_written_beside_the_event_loop(
    is_large: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    threads: list[bool] = []

    def noted(*asked: Any) -> Any:
        threads.append(threading.current_thread() is threading.main_thread())
        return read(*asked)

    async def answered(*asked: object) -> Iterator[bytes]:
        def write() -> Iterator[bytes]:
            threads.append(threading.current_thread() is threading.main_thread())
            yield b"answer"

        return write()

    read = service.read_fetch
    monkeypatch.setattr(service, "read_fetch", noted)
    monkeypatch.setattr(service.records, "fetch", answered)
    frame = memoryview(fetch("orders", 1_100 if is_large else 10))[4:]
    assert (len(frame) > IN_LOOP_BYTES) is is_large
    answer = Answer(len(frame))
    session: Any = SimpleNamespace(payer="", gateway=SimpleNamespace(stats=GatewayStats(), limits=Limits()))
    await Service().serve(session, read_header(frame), frame, answer)
    assert (answer.buffers, threads) == ([b"answer"], [not is_large] * 2)
