"""One-time tickets: how a browser, which can set no header on a socket or an event stream, says who it is.

A page asks for one with its token (`POST /mq/v1/tickets`) and puts it into the URL. There it may be seen, in logs and
histories, and is worth nothing: it is good once, for TICKET_MS. Tickets are in memory only; that of a node of a cluster
begins with the node's name and a dot.
"""

from __future__ import annotations

import hashlib
import re
import secrets
from collections.abc import Callable

from gateway.auth.access import Access

TICKET_MS = 30_000
TICKETS_MAX = 10_000
"""Tickets waiting to be used."""

_TICKET_BYTES = 32
_OF_NODE = re.compile(r"([a-z0-9-]{1,32})\.[A-Za-z0-9_-]{43}", re.ASCII)


class Tickets:
    """The tickets of one server. `now_ms` is a monotonic clock; `node`: this one of a cluster, empty when alone."""

    def __init__(self, now_ms: Callable[[], int], node: str = "") -> None:
        self._now_ms = now_ms
        self._node = node
        self._waiting: dict[bytes, tuple[int, Access]] = {}

    def issue(self, access: Access) -> str | None:
        """A ticket that carries these rights; None when too many are waiting."""
        now_ms = self._now_ms()
        # All live equally long, so the oldest are the first to go.
        while self._waiting and self._waiting[oldest := next(iter(self._waiting))][0] <= now_ms:
            del self._waiting[oldest]
        if len(self._waiting) >= TICKETS_MAX:
            return None
        ticket = secrets.token_urlsafe(_TICKET_BYTES)
        if self._node:
            ticket = f"{self._node}.{ticket}"
        self._waiting[_key(ticket)] = now_ms + TICKET_MS, access
        return ticket

    def other_node(self, ticket: str) -> str | None:
        """The other node of the cluster whose ticket this looks like; None: it is this server's, or none."""
        found = _OF_NODE.fullmatch(ticket) if self._node else None
        return None if found is None or found[1] == self._node else found[1]

    def redeem(self, ticket: str) -> Access | None:
        """The rights of a ticket, once; None when it is not, or no longer, one."""
        until_ms, access = self._waiting.pop(_key(ticket), (0, None))
        return access if self._now_ms() < until_ms else None


def _key(ticket: str) -> bytes:
    # A look-up by hash takes no longer for a better guess.
    return hashlib.sha256(ticket.encode("utf-8", "surrogateescape")).digest()
