"""What the caller of one request or socket may do: the seam between every surface and whoever decides.

A route's row says which permission it asks for, and the wrapper of all routes asks it for the topic or group in the
path. What is named elsewhere (topics in a body, a socket's commands) the handler asks for itself, before it does
anything. Lists show only what may be described.
"""

from __future__ import annotations

from enum import Enum
from typing import Protocol

from aiohttp import web


class Permission(Enum):
    """What a principal must be allowed to do."""

    PUBLIC = "public"  # liveness: tells nothing
    DESCRIBE = "describe"
    SEND = "send"
    RECEIVE = "receive"
    CREATE = "create"
    DELETE = "delete"
    OPERATE = "operate"  # what shows or changes the server's inside
    SOCKET = "socket"  # opening one; each op in it is judged by itself


class Access(Protocol):
    """The rights of one principal, as they are now."""

    @property
    def principal(self) -> str:
        """Its name, for logs and rate limits; never a secret."""
        ...

    @property
    def expires_at_ms(self) -> int | None:
        """When these rights end (epoch ms); None: they do not by themselves."""
        ...

    def allows(self, permission: Permission, *, topic: str | None = None, group: str | None = None) -> bool:
        """Whether this may be done to this topic, this group, or, with neither, the server."""
        ...

    def check(self, permission: Permission, *, topic: str | None = None, group: str | None = None) -> None:
        """Raises RequestError 403/40301, which names the permission and the resource, unless it is allowed."""
        ...


class _Open:
    """Everything is allowed: a server without authentication."""

    principal = "anonymous"
    expires_at_ms = None

    def allows(self, permission: Permission, *, topic: str | None = None, group: str | None = None) -> bool:
        return True

    def check(self, permission: Permission, *, topic: str | None = None, group: str | None = None) -> None:
        return None


OPEN: Access = _Open()

_ACCESS = web.RequestKey("mq.access", Access)


def access_of(request: web.BaseRequest) -> Access:
    """The rights of whoever sent a request."""
    access: Access = request.get(_ACCESS, OPEN)
    return access


def grant(request: web.BaseRequest, access: Access) -> None:
    """Remember whose request this is. Called once, before the handler."""
    request[_ACCESS] = access
