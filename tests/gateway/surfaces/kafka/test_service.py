"""gateway.surfaces.kafka.service: large requests are served a few at a time."""

from __future__ import annotations

import asyncio
from typing import Any, cast

import pytest

from gateway.surfaces.kafka import apis, service
from gateway.surfaces.kafka.connection import Answer
from gateway.surfaces.kafka.frames import read_header
from gateway.surfaces.kafka.schema import Message
from gateway.surfaces.kafka.service import IN_LOOP_BYTES, LARGE_AT_ONCE, Service
from gateway.surfaces.kafka.session import Session
from loadtest.turns.kafka import asked


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

    async def handle(session: Session, version: int, request: Message) -> Message:
        nonlocal serving, largest
        serving += 1
        largest = max(largest, serving)
        await asyncio.sleep(0.05)
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
