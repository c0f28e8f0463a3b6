"""Tokens and rules as callers send them."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta

from gateway.api.shapes.base import Shape, chars, whole
from gateway.auth.acl import ACL_RULES_MAX
from gateway.auth.scopes import SCOPES_MAX
from gateway.auth.tokens import PRINCIPAL_CHARS_MAX
from gateway.codec.times import TIME_MS_MAX
from store.limits import TOPIC_NAME_BYTES_MAX

SCOPE_CHARS_MAX = TOPIC_NAME_BYTES_MAX + 32
EXPIRES_IN_MS_MAX = 10 * 365 * 86_400_000

Scopes = Annotated[list[Annotated[str, chars(SCOPE_CHARS_MAX)]], Meta(max_length=SCOPES_MAX)]
assert EXPIRES_IN_MS_MAX < TIME_MS_MAX


class NewTokenBody(Shape):
    """A token for a principal. Without scopes it may do what the rules allow the principal."""

    more = {"examples": [{"principal": "billing", "scopes": ["reader:topic:orders"], "expires_in_ms": 7_776_000_000}]}

    principal: Annotated[str, chars(PRINCIPAL_CHARS_MAX, "Letters, digits and `._@-`.")]
    scopes: Scopes = []
    expires_in_ms: Annotated[int, whole(1, EXPIRES_IN_MS_MAX, "For ever by default.")] | None = None


class RuleBody(Shape):
    """One rule."""

    principal: Annotated[str, chars(256, "A token's principal, `jwt:SUBJECT`, or `*` for every principal.")]
    allow: Scopes = []
    deny: Scopes = []


class RulesBody(Shape):
    """All rules, in place of those there are."""

    more = {"examples": [{"rules": [{"principal": "billing", "allow": ["reader:topic:orders"], "deny": []}]}]}

    rules: Annotated[list[RuleBody], Meta(max_length=ACL_RULES_MAX)]
