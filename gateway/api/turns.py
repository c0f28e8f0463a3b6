"""A request may name thousands of things, and no other request is served while they are gone through: so they are gone
through a few a turn of the event loop."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Generator, Iterable
from operator import length_hint
from time import monotonic, thread_time
from typing import TypeVar

from store.limits import KiB
from store.turns import others_turn, stretches

T = TypeVar("T")
Result = TypeVar("Result")

STRETCH_S = 0.005
"""What is done of one request between two turns of others, where its parts may take longer than most do."""

COUNTED_BYTES = 4 * KiB
"""Of a batch, from which on the time to check it, 0.2 ms at worst, or to open it counts in its turn (store/turns.py). A
smaller one takes less than the rest of its request, or of its push."""

ITEMS_PER_TURN = 64
ACTS_PER_TURN = 8
"""Of what is tried on disk or leaves a line somewhere, also when it is refused."""


async def in_turns(steps: Generator[None, None, Result], *, is_counted: bool = False) -> Result:
    """What a generator returns, with others' turns between its steps. `is_counted`: its first step counts in this turn,
    and waits for another one where this is full."""
    counting = stretches() if is_counted else None
    if counting is not None and counting.is_full:
        counting = None
        await others_turn()
    began_s = thread_time()
    while True:
        try:
            next(steps)
        except StopIteration as end:
            result: Result = end.value
            return result
        finally:
            if counting is not None:
                counting.spent(thread_time() - began_s)
                counting = None
        await others_turn()


async def aside(work: Callable[[], T], *, is_long: bool) -> T:
    """What is worked out here, or, when it may take long, in a thread, between whose steps the event loop has its
    turns."""
    return await asyncio.to_thread(work) if is_long else work()


async def few_a_turn(items: Iterable[T], *, per_turn: int = ITEMS_PER_TURN) -> AsyncIterator[T]:
    """The items, with others' turns in between: after `per_turn` of them, and where a few took long; where there may be
    many, also before the first ones."""
    is_long = length_hint(items, per_turn + 1) > per_turn
    began_s = monotonic()
    for number, item in enumerate(items):
        if (is_long and number % per_turn == 0) or monotonic() - began_s > STRETCH_S:
            await others_turn()
            began_s = monotonic()
        yield item
