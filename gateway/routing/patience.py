"""A read of a node that restarts waits for it.

    it answers again within AWAY_S of the first call that did not reach it    the read is answered
    it does not                                                               BrokerUnreachable: 503, and Retry-After

Whoever asks a broker that has been away for longer is told so at once, so a request that reads many partitions waits
AWAY_S in all. What follows partitions (sockets, event streams, receives of a group) does not wait here, since others
of its partitions can be read: it asks again each AGAIN_S, for as long as it follows.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TypeVar

from gateway.brokers.base import BrokerUnreachable

T = TypeVar("T")

AWAY_S = 5.0
"""How long a read waits for a broker."""

AGAIN_S = 0.5
"""After what time a follower looks again at a partition whose broker was not reached."""

_FIRST_PAUSE_S, _PAUSE_S_MAX = 0.05, 0.5


async def patiently(look: Callable[[], Awaitable[T]], error: BrokerUnreachable) -> T:
    """What a look at a partition answers that has met this error. Raises BrokerUnreachable, and what `look` raises."""
    loop = asyncio.get_running_loop()
    until_s = loop.time() + AWAY_S
    pause_s = _FIRST_PAUSE_S
    while (left_s := min(until_s - loop.time(), AWAY_S - error.away_s)) > 0:
        await asyncio.sleep(min(pause_s, left_s))
        pause_s = min(2 * pause_s, _PAUSE_S_MAX)
        try:
            return await look()
        except BrokerUnreachable as again:
            error = again
    raise error
