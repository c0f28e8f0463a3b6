"""A request may name thousands of things, and nobody else is served while they are gone through: so they are gone
through a few a turn of the event loop."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable
from typing import TypeVar

T = TypeVar("T")

ITEMS_PER_TURN = 64
ACTS_PER_TURN = 8
"""Of what is tried on disk or leaves a line somewhere, also when it is refused."""


async def few_a_turn(items: Iterable[T], *, per_turn: int = ITEMS_PER_TURN) -> AsyncIterator[T]:
    """The items, with others' turns in between."""
    for number, item in enumerate(items, 1):
        yield item
        if number % per_turn == 0:
            await asyncio.sleep(0)
