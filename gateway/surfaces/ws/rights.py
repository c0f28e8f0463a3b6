"""For how long a socket's rights last: a warning before they end, and the end. Which topics a subscription gets."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

from gateway.auth.access import NOBODY, Access, Permission
from gateway.groups.machines.subscription import Subscription as Pattern
from gateway.routing.base import Routes, TopicView
from gateway.surfaces.ws.protocol import CloseCode
from store.clock import Clock

HELLO_TIMEOUT_S = 5.0
"""How long a client without credentials may take to send them."""

WARNING_MS = 60_000
"""How long before the end a client is told."""

_TIMER_MS_MAX = 86_400_000  # a longer wait is taken in parts: clocks are set, and timers have an end


class Rights:
    """The timers of one socket's rights, from `renew` on. `warn` gets the milliseconds that are left, `close` the code
    to close with."""

    def __init__(
        self, access: Access, clock: Clock, *, warn: Callable[[int], None], close: Callable[[CloseCode], None]
    ) -> None:
        self._clock = clock
        self._warn = warn
        self._close = close
        self._timer: asyncio.TimerHandle | None = None
        self._unwatch: Callable[[], None] | None = None
        self._has_warned = False
        self.access = access

    def renew(self, access: Access) -> None:
        """These are the rights from here on."""
        self.end()
        self.access = access
        self._has_warned = False
        if access is NOBODY:
            loop = asyncio.get_running_loop()
            self._timer = loop.call_later(HELLO_TIMEOUT_S, self._close, CloseCode.UNAUTHORIZED)
            return
        self._unwatch = access.watch(lambda: self._close(CloseCode.UNAUTHORIZED))
        self._look()

    def end(self) -> None:
        """The socket is gone."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._unwatch is not None:
            self._unwatch()
            self._unwatch = None

    def _look(self) -> None:
        """Warn or close if it is time, and look again when it will be."""
        expires_at_ms = self.access.expires_at_ms
        if expires_at_ms is None:
            return
        left_ms = expires_at_ms - self._clock.now_ms()
        if left_ms <= 0:
            self._close(CloseCode.AUTH_EXPIRED)
            return
        if left_ms <= WARNING_MS and not self._has_warned:
            self._has_warned = True
            self._warn(left_ms)
        wait_ms = left_ms if self._has_warned else left_ms - WARNING_MS
        self._timer = asyncio.get_running_loop().call_later(min(wait_ms, _TIMER_MS_MAX) / 1000, self._look)


def wanted_topics(
    routes: Routes, names: Sequence[str], pattern: Pattern | None, access: Callable[[], Access]
) -> list[TopicView]:
    """The topics of these names, or those that match a pattern and may be received from. Raises UnknownQueue."""
    if pattern is None:
        return [routes.topic(name) for name in names]
    rights = access()
    return [
        topic
        for topic in routes.topics()
        if pattern.matches(topic.name) and rights.allows(Permission.RECEIVE, topic=topic.name)
    ]
