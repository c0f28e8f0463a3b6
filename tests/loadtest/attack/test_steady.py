"""The other client's books: what was acknowledged and has not come is lost, and so is a promise that was kept early."""

from __future__ import annotations

import time
from typing import cast

import aiohttp
import pytest

from loadtest.attack import steady as module
from loadtest.attack.steady import Steady


def client() -> Steady:
    """One that has no server."""
    return Steady(cast(aiohttp.ClientSession, None), time.monotonic())


def stored(value: int, *, late_ms: int | None = None) -> dict[str, object]:
    """A record as it is read."""
    due = {} if late_ms is None else {"deliver_at": 1_000, "store_timestamp": 1_000 + late_ms}
    return {"value": value, **due}


async def test_what_was_acknowledged_and_never_came_is_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "PATIENCE_S", 0.1)
    steady = client()
    steady.deliveries.sent([1, 2, 3])
    steady._took([stored(1), stored(3)])
    assert await steady.settle() == "1 of 3 acknowledged records are lost, such as 2"
    steady._took([stored(2)])
    assert await steady.settle() is None


async def test_a_delayed_record_may_be_late_and_not_early() -> None:
    steady = client()
    steady._took([stored(1, late_ms=7), stored(2)])
    assert [point.value for point in steady.late_ms] == [7]
    assert await steady.settle() is None
    steady._took([stored(3, late_ms=-1)])
    assert await steady.settle() == "1 delayed records were early"
