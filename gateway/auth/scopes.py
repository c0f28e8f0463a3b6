"""What may be done to what: scopes, and rights made of them. Pure.

A scope is a text, in token files, ACL files, JWTs and on the command line:

    reader:topic:orders         a role or a permission, a kind of resource, and a name,
    send:topic:billing-*        a prefix and "*",
    receive:group:*             or "*" for all
    operate                     the server's inside: metrics
    audit                       who did what: the trail of admin actions
    admin                       everything

    role      permissions
    reader    describe, receive
    writer    describe, send
    admin     describe, send, receive, create, delete

Denied unless a scope allows it; a denying scope wins over every allowing one. Nobody may send to a name that begins
with "%": those topics (`%RETRY%`, `%DLQ%`) are written by consumer groups, which believe the headers they find there.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import Literal, NamedTuple

from gateway.auth.access import Permission
from store.limits import TOPIC_NAME_BYTES_MAX

SCOPES_MAX = 1000
"""Scopes of one principal in one file or token: each is tried for a name that is met for the first time."""

RESERVED_PREFIX = "%"

Kind = Literal["topic", "group"]

ON_RESOURCES = frozenset(
    (Permission.DESCRIBE, Permission.SEND, Permission.RECEIVE, Permission.CREATE, Permission.DELETE)
)
ROLES: dict[str, frozenset[Permission]] = {
    "reader": frozenset((Permission.DESCRIBE, Permission.RECEIVE)),
    "writer": frozenset((Permission.DESCRIBE, Permission.SEND)),
    "admin": ON_RESOURCES,
}
_ACTIONS = ROLES | {permission.value: frozenset((permission,)) for permission in ON_RESOURCES}
_PATTERN = re.compile(r"[A-Za-z0-9._%-]*\*?")


class Scope(NamedTuple):
    """Some permissions on the resources of one kind that a pattern names; `kind` None: on everything."""

    permissions: frozenset[Permission]
    kind: Kind | None
    pattern: str

    def covers(self, permission: Permission, kind: Kind, name: str) -> bool:
        """Whether this scope speaks of this permission on this resource."""
        if permission not in self.permissions or self.kind not in (kind, None):
            return False
        if self.pattern.endswith("*"):
            return name.startswith(self.pattern[:-1])
        return name == self.pattern


_ON_SERVER = frozenset((Permission.OPERATE, Permission.AUDIT))
_WHOLE_SERVER = {
    "admin": Scope(ON_RESOURCES | _ON_SERVER, None, "*"),
    **{permission.value: Scope(frozenset((permission,)), None, "*") for permission in _ON_SERVER},
}


def parse_scope(text: str) -> Scope:
    """The scope of a text. Raises ValueError, which says what is wrong with it."""
    if text in _WHOLE_SERVER:
        return _WHOLE_SERVER[text]
    action, _, rest = text.partition(":")
    kind, _, pattern = rest.partition(":")
    if action not in _ACTIONS:
        raise ValueError(
            f"scope {text!r}: begins with none of {', '.join(_ACTIONS)}; or is operate, audit or admin alone"
        )
    if kind not in ("topic", "group"):
        raise ValueError(f"scope {text!r}: must go on with :topic:NAME or :group:NAME")
    if not pattern or len(pattern) > TOPIC_NAME_BYTES_MAX + 1 or not _PATTERN.fullmatch(pattern):
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

    def allows(self, permission: Permission, topic: str | None, group: str | None) -> bool:
        """Whether this may be done to this topic and this group.

        With neither, OPERATE and AUDIT are about the server; any other permission is held when it is held for anything,
        so whoever asks that way asks again for each name that turns up.
        """
        if permission is Permission.PUBLIC or permission is Permission.SOCKET:
            return True
        if permission in _ON_SERVER:
            return any(permission in scope.permissions for scope in self.allow) and not any(
                permission in scope.permissions for scope in self.deny
            )
        if topic is None and group is None:
            return any(permission in scope.permissions for scope in self.allow)
        return (topic is None or self._on(permission, "topic", topic)) and (
            group is None or self._on(permission, "group", group)
        )

    def _on(self, permission: Permission, kind: Kind, name: str) -> bool:
        if kind == "topic" and permission is Permission.SEND and name.startswith(RESERVED_PREFIX):
            return False
        if any(scope.covers(permission, kind, name) for scope in self.deny):
            return False
        return any(scope.covers(permission, kind, name) for scope in self.allow)


NO_RIGHTS = Rights()
