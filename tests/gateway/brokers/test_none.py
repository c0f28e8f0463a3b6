"""The broker of a node without a store takes nothing, and says so."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from gateway.brokers.none import NoBroker
from store import record_batch
from store.errors import BrokerLacks, Overloaded, SealedQueue, StoreError
from store.record_batch import Record
from store.topics import OFFSETS_QUEUE
from store.types import Acks, Append, Boundary, Bounds, QueueKey

QUEUE = QueueKey(16, 0)
APPEND = Append(queue=QUEUE, batch=record_batch.encode([Record(None, b"v", 1)]), record_count=1)

REFUSED: dict[str, tuple[type[StoreError], Callable[[NoBroker], Awaitable[Any]]]] = {
    "append": (SealedQueue, lambda broker: broker.append([APPEND], acks=Acks.FLUSHED)),
    "schedule": (BrokerLacks, lambda broker: broker.schedule(APPEND, acks=Acks.FLUSHED)),
    "read": (Overloaded, lambda broker: broker.read(QUEUE, 0, max_bytes=1)),
    "bounds": (Overloaded, lambda broker: broker.bounds(QUEUE)),
    "first_kept": (Overloaded, lambda broker: broker.first_kept(QUEUE)),
    "offset_for_time": (Overloaded, lambda broker: broker.offset_for_time(QUEUE, 0, Boundary.LOWER)),
    "create_queue": (BrokerLacks, lambda broker: broker.create_queue(QUEUE)),
    "seal_queue": (BrokerLacks, lambda broker: broker.seal_queue(QUEUE)),
    "export_ids": (BrokerLacks, lambda broker: broker.export_ids(QUEUE, into=QUEUE, shift=0, since=0)),
    "import_ids": (BrokerLacks, lambda broker: broker.import_ids(b"")),
    "expire_queue": (BrokerLacks, lambda broker: broker.expire_queue(QUEUE, 1)),
}


@pytest.mark.parametrize("operation", REFUSED)
async def test_it_takes_nothing_and_has_nothing(operation: str) -> None:
    kind, asked = REFUSED[operation]
    with pytest.raises(kind) as raised:
        await asked(NoBroker("n1"))
    assert "node n1 has no store" in str(raised.value)


async def test_logs_of_the_server_are_empty_there() -> None:
    broker = NoBroker("n1")
    assert await broker.bounds(OFFSETS_QUEUE) == Bounds(0, 0)
    assert (broker.name, broker.served_by, broker.ready()) == ("n1", "n1", [])
    broker.watch(16, lambda _: None)()
