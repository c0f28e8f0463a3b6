"""What the caller of one request or socket may do: the seam between every surface and what decides.

A route's row says which permission it asks for, and the wrapper of all routes asks it for the topic or group in the
path. What is named elsewhere (topics in a body, a socket's commands) the handler asks for itself, before it does
anything. Lists show only what may be described.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from enum import Enum
from typing import Literal, NamedTuple, Protocol

from gateway.errors import FORBIDDEN, RequestError


class Permission(Enum):
    """What a principal must be allowed to do."""

    PUBLIC = "public"  # liveness: tells nothing
    DESCRIBE = "describe"
    SEND = "send"
    RECEIVE = "receive"
    CREATE = "create"
    DELETE = "delete"
    OPERATE = "operate"  # what shows or changes the server's inside
    AUDIT = "audit"  # reading who did what
    ACCESS = "access"  # seeing and changing who may do what: tokens and rules
    KNOWN = "known"  # having proved who one is, whatever one may do
    SOCKET = "socket"  # opening one; each op in it is judged by itself

    __hash__ = object.__hash__  # there is one of each; Enum's own hash is a call in Python, for every request


Kind = Literal["topic", "group"]


class Scope(NamedTuple):
    """Some permissions on the resources of one kind that a pattern names; `kind` None: on everything.

    A pattern is a name, or a prefix and "*". A light queue is named `topic/queue`: a scope on a topic speaks of all of
    them, too.
    """

    permissions: frozenset[Permission]
    kind: Kind | None
    pattern: str

    def covers(self, permission: Permission, kind: Kind, name: str) -> bool:
        """Whether this scope speaks of this permission on this resource."""
        if permission not in self.permissions or self.kind not in (kind, None):
            return False
        if self.pattern.endswith("*"):
            return name.startswith(self.pattern[:-1])
        return is_of(name, self.pattern)


def is_of(name: str, owner: str) -> bool:
    """Whether a name is this one, or, where this is a topic's or a group's, of something in it: `orders/user/42` is of
    `orders`, and `orders/user/42/x` another light queue, not of `orders/user/42`."""
    return name == owner or ("/" not in owner and name.startswith(f"{owner}/"))


ON_RESOURCES = frozenset(
    (Permission.DESCRIBE, Permission.SEND, Permission.RECEIVE, Permission.CREATE, Permission.DELETE)
)
ON_SERVER = frozenset((Permission.OPERATE, Permission.AUDIT, Permission.ACCESS))
EVERYTHING = Scope(ON_RESOURCES | ON_SERVER, None, "*")


class Access(Protocol):
    """The rights of one principal, as they are now: a change of tokens or rules shows at the next question."""

    @property
    def principal(self) -> str:
        """Its name, for logs and rate limits; never a secret."""
        ...

    @property
    def token_id(self) -> str | None:
        """The id of the static token that authenticated it; None: another credential did, or none."""
        ...

    @property
    def expires_at_ms(self) -> int | None:
        """When these rights end (epoch ms); None: they do not by themselves."""
        ...

    @property
    def is_over(self) -> bool:
        """Whether these rights have ended: withdrawn, or past their time."""
        ...

    def allows(self, permission: Permission, *, topic: str | None = None, group: str | None = None) -> bool:
        """Whether this may be done to this topic and this group.

        With neither: OPERATE, AUDIT and ACCESS are about the server; any other permission is held when it is held for
        anything at all, so a caller that takes names from elsewhere asks again for each of them.
        """
        ...

    def check(self, permission: Permission, *, topic: str | None = None, group: str | None = None) -> None:
        """Raises RequestError 403/40301, which names the permission and the resource, unless it is allowed."""
        ...

    def topics(self, permission: Permission) -> tuple[tuple[str, ...], tuple[str, ...]] | None:
        """The topics to which this may be done, by the patterns of scopes: those allowed, and those denied of them.
        None: every topic."""
        ...

    def scopes(self) -> tuple[Sequence[Scope], Sequence[Scope]]:
        """What is allowed, and what is denied of that, as it is now."""
        ...

    def watch(self, on_end: Callable[[], None]) -> Callable[[], None]:
        """Call `on_end` on the event loop once, when these rights are withdrawn; at once if they are already.

        What ends by time is for the caller to watch. Returns what stops the watch.
        """
        ...


def forbidden(permission: Permission, topic: str | None, group: str | None) -> RequestError:
    """The refusal of what a caller may not do. The same whether or not there is such a topic or group."""
    names = [f"{kind} {name[:200]}" for kind, name in (("topic", topic), ("group", group)) if name is not None]
    return RequestError(FORBIDDEN, f"Not allowed: {permission.value} {' in '.join(names) or 'here'}.")


class _Everything:
    """Everything is allowed: a server without authentication."""

    principal = "anonymous"
    token_id = None
    expires_at_ms = None
    is_over = False

    def allows(self, permission: Permission, *, topic: str | None = None, group: str | None = None) -> bool:
        return True

    def check(self, permission: Permission, *, topic: str | None = None, group: str | None = None) -> None:
        return None

    def topics(self, permission: Permission) -> tuple[tuple[str, ...], tuple[str, ...]] | None:
        return None

    def scopes(self) -> tuple[Sequence[Scope], Sequence[Scope]]:
        return (EVERYTHING,), ()

    def watch(self, on_end: Callable[[], None]) -> Callable[[], None]:
        return _nothing


class _Nothing:
    """Nothing is allowed: a caller that is not authenticated yet."""

    principal = "nobody"
    token_id = None
    expires_at_ms = None
    is_over = False

    def allows(self, permission: Permission, *, topic: str | None = None, group: str | None = None) -> bool:
        return False

    def check(self, permission: Permission, *, topic: str | None = None, group: str | None = None) -> None:
        raise forbidden(permission, topic, group)

    def topics(self, permission: Permission) -> tuple[tuple[str, ...], tuple[str, ...]] | None:
        return (), ()

    def scopes(self) -> tuple[Sequence[Scope], Sequence[Scope]]:
        return (), ()

    def watch(self, on_end: Callable[[], None]) -> Callable[[], None]:
        return _nothing


def _nothing() -> None:
    return None


OPEN: Access = _Everything()
NOBODY: Access = _Nothing()
