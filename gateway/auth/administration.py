"""Tokens and rules changed while the server runs: the files stay the only truth, and hold from the answer on.

    tokens   one is made, shown once, or revoked; each change is as `mq token` makes it, under the same lock
    rules    the file is replaced as a whole, by a caller that has seen it as it is (its tag); its comments stay

A principal grants no more than it has: what a new token or a changed rule allows, its maker must be allowed, by one
scope of their own that covers it, and what they are denied it must deny. To take a denial out of a rule is to grant it.
All of it waits for the disk in a thread. Raises OSError, TokenFileError, ValueError, and what is said beside each.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import NamedTuple

import orjson

from gateway.auth.access import ON_RESOURCES, Kind, Permission, Scope, is_of
from gateway.auth.acl import Acl, Rule, parse_acl, parse_rules
from gateway.auth.config import AuthConfig
from gateway.auth.operator_files import RULES_BYTES_MAX, locked, read_file, replace_file
from gateway.auth.rules_text import rewrite_rules
from gateway.auth.scopes import Rights
from gateway.auth.tokens import TokenRecord, change_tokens, mint, read_tokens
from store.clock import Clock


class TooMuch(Exception):
    """The principal would grant what it does not have. The message names it."""


class Changed(Exception):
    """The file was changed meanwhile."""


class UnknownToken(Exception):
    """There is no token of this id."""


class Tagged(NamedTuple):
    """The rules of a file, and a tag that changes with them."""

    rules: list[Rule]
    tag: str


class AccessFiles:
    """The token file and the rules of one server. `on_change` lets what they say hold; it is awaited before a change
    is answered."""

    def __init__(self, config: AuthConfig, clock: Clock, on_change: Callable[[], Awaitable[None]]) -> None:
        self._config = config
        self._clock = clock
        self._on_change = on_change

    async def tokens(self) -> tuple[list[TokenRecord], str]:
        """All tokens, the oldest first, and a tag that changes with them."""
        found = await asyncio.to_thread(read_tokens, self._config.tokens_path)
        return sorted(found.values(), key=lambda record: (record.created_ms, record.id)), _tag_of(found)

    async def create_token(
        self, maker: Rights, principal: str, scopes: Sequence[str], expires_ms: int | None, *, tag: str | None = None
    ) -> tuple[str, TokenRecord]:
        """A new token, which is nowhere but in this answer, and what is kept of it; durable on return. Raises TooMuch,
        Changed."""

        def create() -> tuple[str, TokenRecord]:
            token, record = mint(principal, scopes, now_ms=self._clock.now_ms(), expires_ms=expires_ms)
            acl = parse_acl(self._rules_text())
            check_grant(acl.rights_of(principal, record.parsed_scopes()), maker)

            def add(tokens: dict[str, TokenRecord]) -> None:
                if tag is not None and tag != _tag_of(tokens):
                    raise Changed
                tokens[record.id] = record

            change_tokens(self._config.tokens_path, add)
            return token, record

        made = await asyncio.to_thread(create)
        await self._on_change()
        return made

    async def revoke_token(self, token_id: str, *, tag: str | None = None) -> None:
        """End a token; durable on return. Raises UnknownToken, Changed."""

        def remove(tokens: dict[str, TokenRecord]) -> None:
            if tag is not None and tag != _tag_of(tokens):
                raise Changed
            if tokens.pop(token_id, None) is None:
                raise UnknownToken

        await asyncio.to_thread(change_tokens, self._config.tokens_path, remove)
        await self._on_change()

    async def rules(self) -> Tagged:
        """The rules of the file, in its order."""
        return await asyncio.to_thread(self._rules)

    async def put_rules(self, maker: Rights, rules: Sequence[Rule], tag: str) -> Tagged:
        """Replace the rules, if they are still those of this tag; durable on return. Raises TooMuch, Changed."""

        def put() -> Tagged:
            self._config.acl_path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            with locked(self._config.acl_path):
                if self._rules().tag != tag:
                    raise Changed
                before = self._rules_text()
                text = rewrite_rules(before, rules)
                if len(text.encode()) > RULES_BYTES_MAX:
                    raise ValueError(f"the rules have more than {RULES_BYTES_MAX} bytes")
                check_rules(parse_acl(before), parse_acl(text), maker)
                replace_file(self._config.acl_path, text.encode())
            return self._rules()

        put_ = await asyncio.to_thread(put)
        await self._on_change()
        return put_

    def _rules_text(self) -> str:
        try:
            return read_file(self._config.acl_path, RULES_BYTES_MAX).decode()
        except FileNotFoundError:
            return ""

    def _rules(self) -> Tagged:
        text = self._rules_text()
        return Tagged(parse_rules(text), hashlib.sha256(text.encode()).hexdigest()[:32])


def check_grant(granted: Rights, maker: Rights) -> None:
    """Raises TooMuch unless its maker has all that is granted."""
    for scope in granted.allow:
        for permission in sorted(scope.permissions, key=lambda one: one.value):
            for kind in _kinds(permission, scope):
                if not _has(maker, permission, kind, scope.pattern, granted.deny):
                    where = "" if kind is None else f" to {kind} {scope.pattern}"
                    raise TooMuch(f"you may not grant what you do not have: {permission.value}{where}")


def check_rules(before: Acl, after: Acl, maker: Rights) -> None:
    """Raises TooMuch unless its maker has all that a change of rules gives to any principal."""
    for principal in before.rules().keys() | after.rules().keys():
        old, new = before.rules().get(principal, Rights()), after.rules().get(principal, Rights())
        known = set(old.allow)
        given = [scope for scope in new.allow if scope not in known]
        kept = set(new.deny)
        given += [scope for scope in old.deny if scope not in kept]
        check_grant(Rights(given, new.deny), maker)


def _kinds(permission: Permission, scope: Scope) -> tuple[Kind | None, ...]:
    if permission not in ON_RESOURCES:
        return (None,)
    return ("topic", "group") if scope.kind is None else (scope.kind,)


def _has(maker: Rights, permission: Permission, kind: Kind | None, pattern: str, denied: Iterable[Scope]) -> bool:
    if kind is None:
        return maker.allows(permission, None, None)

    def speaks(scope: Scope) -> bool:
        return permission in scope.permissions and scope.kind in (kind, None)

    if not any(speaks(scope) and _covers(scope.pattern, pattern) for scope in maker.allow):
        return False
    denials = [scope.pattern for scope in denied if speaks(scope)]
    return all(
        any(_covers(denial, scope.pattern) or _covers(denial, pattern) for denial in denials)
        for scope in maker.deny
        if speaks(scope) and _overlap(scope.pattern, pattern)
    )


def _covers(pattern: str, other: str) -> bool:
    """Whether a pattern matches all that another one does."""
    if pattern.endswith("*"):
        return other.removesuffix("*").startswith(pattern[:-1])
    return is_of(other, pattern)


def _overlap(one: str, other: str) -> bool:
    """Whether there is a name that both match."""
    return _covers(one, other) or _covers(other, one)


def _tag_of(tokens: dict[str, TokenRecord]) -> str:
    rows = [[record.id, record.principal, record.scopes, record.expires_ms] for record in tokens.values()]
    return hashlib.sha256(orjson.dumps(rows)).hexdigest()[:32]
