"""gateway.routing.detector and .told: who did not answer is asked every two seconds, and nobody else."""

from __future__ import annotations

import asyncio
from typing import cast

import pytest

from gateway.brokers.base import AnswerLost, Broker, BrokerUnreachable
from gateway.routing.detector import PROBE_INTERVAL_S, Detector
from gateway.routing.table import RouteTable, Segment
from gateway.routing.told import told
from store.errors import (
    Corrupt,
    DiskFull,
    Overloaded,
    PartitionLeft,
    SealedQueue,
    StoreError,
    StoreStopped,
    UnknownQueue,
)
from store.types import Bounds, QueueKey
from tests.gateway.fake_broker import FakeTopic
from tests.waiting import until


class Probed:
    """A broker that answers with an error, with bounds, or (None) not at all."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.answer: StoreError | Bounds | None = Bounds(0, 0)
        self.probes: list[QueueKey] = []

    async def bounds(self, queue: QueueKey) -> Bounds:
        self.probes.append(queue)
        if self.answer is None:
            await asyncio.Event().wait()
        if isinstance(self.answer, Bounds):
            return self.answer
        assert self.answer is not None
        raise self.answer


async def test_who_did_not_answer_is_probed_until_it_does() -> None:
    routes = RouteTable()
    a, b = Probed("a"), Probed("b")
    near, far = cast(Broker, a), cast(Broker, b)
    routes.put(FakeTopic("t", 16, 2), near)
    routes.set_chain("t", 1, (Segment(far, QueueKey(16, 1025)),))
    rounds: list[float] = []
    turns: asyncio.Queue[None] = asyncio.Queue()

    async def sleep(delay_s: float) -> None:
        rounds.append(delay_s)
        await turns.get()

    async def turn() -> None:
        turns.put_nowait(None)
        count = len(rounds)
        await until(lambda: len(rounds) > count, pause_s=0.001)

    running = asyncio.create_task(Detector(routes, sleep=sleep).run())
    await until(lambda: rounds)
    await turn()
    assert a.probes == b.probes == []
    routes.failed(near, 0, Overloaded("slow"))
    routes.failed(far, 0, BrokerUnreachable("refused"))
    for answer in (BrokerUnreachable("refused"), AnswerLost("lost"), None):
        b.answer = answer
        await turn()
        assert routes.faults.unreachable() == ["b"]
    b.answer = UnknownQueue("it was deleted there; but it answers")
    await turn()
    assert routes.faults.unreachable() == []
    await turn()
    assert (a.probes, b.probes) == ([], [QueueKey(16, 1025)] * 4)
    assert set(rounds) == {PROBE_INTERVAL_S} == {2.0}
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running


@pytest.mark.parametrize(
    ("error", "is_failed", "is_reachable"),
    [
        (BrokerUnreachable("x"), True, False),
        (AnswerLost("x"), True, False),
        (Overloaded("x"), True, True),
        (DiskFull("x"), True, True),
        (StoreStopped("x"), True, True),
        (SealedQueue("x"), False, True),
        (PartitionLeft("x"), False, True),
        (UnknownQueue("x"), False, True),
        (Corrupt("x", 0, "x"), False, True),
    ],
)
async def test_what_a_send_tells_of_its_broker(error: StoreError, is_failed: bool, is_reachable: bool) -> None:
    routes, broker = RouteTable(), cast(Broker, Probed("a"))

    async def refused() -> None:
        raise error

    with pytest.raises(type(error)):
        await told(routes, broker, refused())
    assert bool(routes.faults) is is_failed
    assert routes.faults.is_reachable("a") is is_reachable
    assert await told(routes, broker, asyncio.sleep(0, "answer")) == "answer"
    assert routes.faults.is_reachable("a")
    assert routes.latency_ms("a") is not None
