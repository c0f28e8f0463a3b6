"""One row of the route table: what a route is called, who may use it, how large a body it reads."""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass
from enum import Enum

from aiohttp import hdrs, web

from gateway.api.shapes.base import OpenShape
from gateway.auth.access import Permission
from gateway.settings.limits import Limits
from gateway.surfaces.http.context import Gateway
from store.limits import KiB, MiB

Handler = Callable[[Gateway, web.Request, bytes], Awaitable[web.StreamResponse]]
SLASH = "slash"
"""The name of the slash that may follow a path with names in it. One resource for both: to make two took half of the
time of making an application."""

SMALL_BODY_BYTES_MAX = 64 * KiB
LIST_BODY_BYTES_MAX = 4 * MiB
"""10,000 receipts or partitions, with room to spare."""

METHODS = (hdrs.METH_GET, hdrs.METH_POST, hdrs.METH_PUT, hdrs.METH_PATCH, hdrs.METH_DELETE)


class Body(Enum):
    """How much of a request's body a route reads. What a route does not read is drained, not refused."""

    NONE = "none"
    SMALL = "small"
    LIST = "list"
    RECORDS = "records"
    STREAM = "stream"
    """Of any length: the handler reads it piece by piece."""

    def bytes_max(self, limits: Limits) -> int:
        """0 when the body is not read before the handler runs."""
        list_max = min(LIST_BODY_BYTES_MAX, limits.body_bytes_max)
        own = {Body.SMALL: SMALL_BODY_BYTES_MAX, Body.LIST: list_max, Body.RECORDS: limits.body_bytes_max}
        return own.get(self, 0)


Query = type[OpenShape] | None
"""What the query parameters of a route are read into; None: they are not looked at."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One route. `name` labels its metrics."""

    method: str
    path: str
    name: str
    handler: Handler
    permission: Permission
    body: Body = Body.NONE
    query: Query = None
    action: str | None = None
    """What the trail calls it (`topic.create`). None: sending, consuming, or only looking."""

    @property
    def reads_body(self) -> bool:
        """Whether a request's body means anything."""
        return self.body is not Body.NONE

    def body_bytes_max(self, limits: Limits) -> int:
        """The largest body; 0: of any length, as it is read piece by piece."""
        return self.body.bytes_max(limits)

    def __post_init__(self) -> None:
        if not isinstance(self.permission, Permission):
            raise ValueError(f"route {self.method} {self.path} has no permission")
        if self.method != hdrs.METH_GET and self.permission in _ADMINISTERING and self.action is None:
            raise ValueError(f"route {self.method} {self.path} changes what is administered, and names no action")
        if self.method not in METHODS:
            raise ValueError(f"route {self.path} has the unknown method {self.method}")


_ADMINISTERING = frozenset(
    (Permission.CREATE, Permission.DELETE, Permission.OPERATE, Permission.AUDIT, Permission.ACCESS)
)
_PARAMETER = re.compile(r"\{\w+\}")


def check_table(table: Iterable[tuple[str, str]]) -> None:
    """Raises ValueError when two routes, each with its method and path, answer the same requests."""
    seen: set[tuple[str, str]] = set()
    for method, path in table:
        route_key = (method, _PARAMETER.sub("{}", path))
        if route_key in seen:
            raise ValueError(f"two routes for {method} {path}")
        seen.add(route_key)
