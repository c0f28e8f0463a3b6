"""What may be done to what: scopes, and rights made of them. Pure.

A scope is a text, in token files, ACL files, JWTs and on the command line:

    reader:topic:orders         a role or a permission, a kind of resource, and a name,
    send:topic:billing-*        a prefix and "*",
    receive:group:*             or "*" for all
    receive:topic:orders/user/42   the light queue user/42 of a topic; orders/user/* for several, orders for all of them
    operate                     the server's inside: metrics
    audit                       who did what: the trail of admin actions
    access                      who may do what: tokens and rules; a principal grants no more than it has
    admin                       everything

    role      permissions
    reader    describe, receive
    writer    describe, send
    admin     describe, send, receive, create, delete

Denied unless a scope allows it; a denying scope wins over every allowing one. No client may send to a name that begins
with "%": those topics (`%RETRY%`, `%DLQ%`) are written by consumer groups, which believe the headers they find there.

What a group has written is copies of records of other topics. So no scope allows to describe or receive it by its name:
a caller with that right to the group, and to all topics that its dead letters came from, has it to `%DLQ%group`. Where
that is not known, and to `%RETRY%group`, it takes the right to all topics.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Sequence
from typing import NamedTuple

from gateway.auth.access import EVERYTHING, ON_RESOURCES, ON_SERVER, Kind, Permission, Scope
from store.limits import TOPIC_NAME_BYTES_MAX

SCOPES_MAX = 1000
"""Scopes of one principal in one file or token: each is tried for a name that is met for the first time."""

RESERVED_PREFIX = "%"

OriginsOf = Callable[[str], Collection[str] | None]
"""The topics that the dead letters of a group came from; None when that is not known."""

_COPIES = re.compile(r"%(DLQ|RETRY)%(.*)")

ROLES: dict[str, frozenset[Permission]] = {
    "reader": frozenset((Permission.DESCRIBE, Permission.RECEIVE)),
    "writer": frozenset((Permission.DESCRIBE, Permission.SEND)),
    "admin": ON_RESOURCES,
}
_ACTIONS = ROLES | {permission.value: frozenset((permission,)) for permission in ON_RESOURCES}
_PATTERN = re.compile(r"[A-Za-z0-9._%-]*\*?")
_LIGHT_PATTERN = re.compile(r"[A-Za-z0-9._%-]{1,249}/[A-Za-z0-9._%/@+=:~-]{0,255}\*?")
_ANYBODYS = frozenset((Permission.PUBLIC, Permission.SOCKET, Permission.KNOWN))

_WHOLE_SERVER = {
    "admin": EVERYTHING,
    **{permission.value: Scope(frozenset((permission,)), None, "*") for permission in ON_SERVER},
}


def parse_scope(text: str) -> Scope:
    """The scope of a text. Raises ValueError, which says what is wrong with it."""
    if text in _WHOLE_SERVER:
        return _WHOLE_SERVER[text]
    action, _, rest = text.partition(":")
    kind, _, pattern = rest.partition(":")
    if action not in _ACTIONS:
        raise ValueError(
            f"scope {text!r}: begins with none of {', '.join(_ACTIONS)}; or is operate, audit, access or admin alone"
        )
    if kind not in ("topic", "group"):
        raise ValueError(f"scope {text!r}: must go on with :topic:NAME or :group:NAME")
    is_light = kind == "topic" and _LIGHT_PATTERN.fullmatch(pattern)
    if not is_light and (not pattern or len(pattern) > TOPIC_NAME_BYTES_MAX + 1 or not _PATTERN.fullmatch(pattern)):
        raise ValueError(f"scope {text!r}: must end with a name, a prefix and *, or * for all")
    return Scope(_ACTIONS[action], "topic" if kind == "topic" else "group", pattern)


def parse_scopes(texts: Iterable[object]) -> tuple[Scope, ...]:
    """As `parse_scope` for each of at most SCOPES_MAX. Raises ValueError."""
    scopes: list[Scope] = []
    for text in texts:
        if not isinstance(text, str):
            raise ValueError(f"a scope is a text, not {text!r}")
        if len(scopes) == SCOPES_MAX:
            raise ValueError(f"more than {SCOPES_MAX} scopes")
        scopes.append(parse_scope(text))
    return tuple(scopes)


class Rights(NamedTuple):
    """All scopes that hold for one principal."""

    allow: Sequence[Scope] = ()
    deny: Sequence[Scope] = ()

    def allows(
        self,
        permission: Permission,
        topic: str | None,
        group: str | None,
        origins_of: OriginsOf = lambda _: None,
    ) -> bool:
        """Whether this may be done to this topic and this group.

        With neither, OPERATE, AUDIT and ACCESS are about the server; any other permission is held when it is held for
        anything, so a caller that asks that way asks again for each name that turns up.
        """
        if permission in _ANYBODYS:
            return True
        if permission in ON_SERVER:
            return any(permission in scope.permissions for scope in self.allow) and not any(
                permission in scope.permissions for scope in self.deny
            )
        if topic is None and group is None:
            return any(permission in scope.permissions for scope in self.allow)
        return (topic is None or self._on_topic(permission, topic, origins_of)) and (
            group is None or self._on(permission, "group", group)
        )

    def topics(self, permission: Permission) -> tuple[tuple[str, ...], tuple[str, ...]] | None:
        """The topics to which this may be done: patterns that allow it, and those that deny it. None: every topic."""
        allowed, denied = (
            sorted({scope.pattern for scope in scopes if permission in scope.permissions and scope.kind != "group"})
            for scopes in (self.allow, self.deny)
        )
        return None if "*" in allowed and not denied else (tuple(allowed), tuple(denied))

    def _on_topic(self, permission: Permission, topic: str, origins_of: OriginsOf) -> bool:
        """As `_on`; of what a group has written, by the group and by where that came from."""
        if not topic.startswith(RESERVED_PREFIX) or permission not in (Permission.DESCRIBE, Permission.RECEIVE):
            return self._on(permission, "topic", topic)
        is_all = self.topics(permission) is None
        seen: set[str] = set()
        todo = [topic]
        while todo:  # dead letters may be of a group that consumes dead letters
            name = todo.pop()
            if name in seen:
                continue
            seen.add(name)
            if (copies := _COPIES.fullmatch(name)) is None:
                if not self._on(permission, "topic", name):
                    return False
                continue
            if self._denies(permission, "topic", name) or not self._on(permission, "group", copies[2]):
                return False
            if not is_all:
                origins = origins_of(copies[2]) if copies[1] == "DLQ" else None
                if origins is None:
                    return False
                todo += origins
        return True

    def _denies(self, permission: Permission, kind: Kind, name: str) -> bool:
        return any(scope.covers(permission, kind, name) for scope in self.deny)

    def _on(self, permission: Permission, kind: Kind, name: str) -> bool:
        if kind == "topic" and permission is Permission.SEND and name.startswith(RESERVED_PREFIX):
            return False
        if self._denies(permission, kind, name):
            return False
        return any(scope.covers(permission, kind, name) for scope in self.allow)


NO_RIGHTS = Rights()
