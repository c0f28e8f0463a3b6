"""Who a caller is: from credentials to rights, once a request or once a socket.

What has been accepted is remembered under the SHA-256 of the credential, so a JWT's signature is checked once; memory
holds no token. The rights behind a remembered credential are looked up again whenever the policy has changed, so a
revoked token ends at the next check of rights, and `watch` tells the owners of open connections.

Failures cost the address they come from (`backoff.py`), and a line in the log now and then.
"""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import NamedTuple, Protocol

from aiohttp import web

from gateway.auth import tokens
from gateway.auth.access import NOBODY, OPEN, Access, Permission, Scope, forbidden
from gateway.auth.address import counted_as
from gateway.auth.backoff import FREE_FAILURES, Backoff
from gateway.auth.credentials import API_KEY, AUTHORIZATION, Headers, Malformed, in_headers, of_browser
from gateway.auth.jwt import JwtRefused
from gateway.auth.policy import Policy
from gateway.auth.scopes import NO_RIGHTS, OriginsOf, Rights
from gateway.auth.tickets import Tickets
from gateway.auth.tokens import TokenRecord
from gateway.errors import RATE_LIMITED, TICKET_ELSEWHERE, TOO_MANY, UNAUTHENTICATED, RequestError
from store.clock import Clock

log = logging.getLogger(__name__)

CACHE_MAX = 10_000
"""Credentials remembered; the one accepted longest ago is forgotten first, and checked again when it comes."""

ANSWERS_MAX = 1_000
"""Answers remembered for one caller: names of topics and groups it asked for."""

FAILURE_LOG_INTERVAL_MS = 10_000
"""How often a line about failed authentication is written; the line counts those in between."""


class Authenticator(Protocol):
    """What the surfaces ask. All methods are quick and wait for nothing."""

    @property
    def is_required(self) -> bool:
        """Whether callers must say who they are."""
        ...

    @property
    def version(self) -> int:
        """Changes with everything that rights depend on."""
        ...

    def access_of_request(self, request: web.BaseRequest) -> Access:
        """The rights of a request; NOBODY without credentials. Raises RequestError 401, 429 after many failures, or 409
        for a ticket of another node."""
        ...

    def known_access(self, headers: Headers) -> Access | None:
        """The rights of a request with these headers when its credential has been accepted before and nothing is to be
        checked or counted; None: ask `access_of_request`."""
        ...

    def access_of_token(self, token: str, address: str) -> Access:
        """The rights of a token. Raises RequestError 401, or 429 after many failures from this address."""
        ...

    def issue_ticket(self, access: Access) -> str:
        """A one-time ticket that carries these rights. Raises RequestError 429."""
        ...

    def rules(self) -> Iterable[tuple[str, Rights]]:
        """Principals and their rights by static tokens and the ACL file; "*": every principal's. What a JWT says of
        its own principal is in none of them. A principal may come more than once."""
        ...


class Anybody:
    """A server without authentication: every client may do everything. Tickets work, so that pages need not differ."""

    is_required = False
    version = 0

    def access_of_request(self, request: web.BaseRequest) -> Access:
        """See `Authenticator.access_of_request`."""
        return OPEN

    def known_access(self, headers: Headers) -> Access | None:
        """See `Authenticator.known_access`."""
        return OPEN

    def access_of_token(self, token: str, address: str) -> Access:
        """See `Authenticator.access_of_token`."""
        return OPEN

    def issue_ticket(self, access: Access) -> str:
        """See `Authenticator.issue_ticket`."""
        return "open"

    def rules(self) -> Iterable[tuple[str, Rights]]:
        """See `Authenticator.rules`."""
        return ()


class _Identity(NamedTuple):
    """An authenticated principal. `expires_ms`: epoch ms."""

    principal: str
    expires_ms: int | None
    token: TokenRecord | None = None
    jwt_key_id: str | None = None
    jwt_scopes: tuple[Scope, ...] = ()


class PolicyAuthenticator:
    """Authentication by the tokens, keys and rules of a policy. `now_ms` is a monotonic clock; `clock` the wall's.
    `node`: this one of a cluster; its tickets say so, and those of another one are refused with its name."""

    is_required = True

    def __init__(
        self,
        policy: Policy,
        *,
        clock: Clock,
        now_ms: Callable[[], int],
        token_in_query: bool = False,
        free_failures: int = FREE_FAILURES,
        node: str = "",
    ) -> None:
        self.failure_count = 0
        """Credentials that were refused."""

        self.version = 0
        """Changes with everything that rights depend on."""

        self.origins_of: OriginsOf = lambda _: None
        """Where dead letters came from. Call `origins_changed` when it answers otherwise than before."""

        self._policy = policy
        self._clock = clock
        self._now_ms = now_ms
        self._token_in_query = token_in_query
        self._callers: dict[bytes, _Caller] = {}  # by the hash of their token
        self._by_header: dict[bytes, _Caller] = {}  # by the hash of the header that has it
        self._watched: dict[_Caller, list[Callable[[], None]]] = {}
        self._backoff = Backoff(free_failures)
        self._tickets = Tickets(now_ms, node)
        self._quiet_until_ms = 0

    def replace(self, policy: Policy) -> None:
        """Let another policy hold from now on, for callers known already too; tell those whose rights it ends."""
        self._policy = policy
        self.version += 1
        for caller in [caller for caller in self._watched if caller.is_over]:
            for on_end in self._watched.pop(caller):
                on_end()

    def origins_changed(self) -> None:
        """Ask `origins_of` again."""
        self.version += 1

    def access_of_request(self, request: web.BaseRequest) -> Access:
        """See Authenticator."""
        headers = request.headers
        known = self.known_access(headers)
        if known is not None:  # what nearly all requests take: nothing is taken apart
            return known
        address = request.remote or ""
        try:
            credential = in_headers(headers)
            if credential is None and request.method == "GET":
                credential = of_browser(
                    headers, request.query if request.query_string else {}, token_in_query=self._token_in_query
                )
        except Malformed as error:
            raise self._refused(str(error), address) from None
        if credential is None:
            return NOBODY
        if credential.is_ticket:
            return self._access_of_ticket(credential.text, address)
        caller = self._caller_of(credential.text, address)
        if (header := headers.get(AUTHORIZATION)) is not None:
            _remember(self._by_header, _key(header), caller)
        return caller

    def known_access(self, headers: Headers) -> Access | None:
        """See Authenticator."""
        header = headers.get(AUTHORIZATION)
        if header is None:
            return None
        known = self._by_header.get(_key(header))
        if known is None or known.is_over or API_KEY in headers or len(headers.getall(AUTHORIZATION, [])) != 1:
            return None
        return known

    def access_of_token(self, token: str, address: str) -> Access:
        """See Authenticator."""
        return self._caller_of(token, address)

    def issue_ticket(self, access: Access) -> str:
        """See Authenticator."""
        ticket = self._tickets.issue(access)
        if ticket is None:
            raise RequestError(TOO_MANY, "Too many tickets wait to be used.", retriable=True, retry_after_ms=1000)
        return ticket

    def rules(self) -> Iterable[tuple[str, Rights]]:
        """See Authenticator."""
        policy = self._policy
        for token_id, record in policy.tokens.items():
            if not self.is_past(record.expires_ms):
                yield record.principal, Rights(policy.scopes[token_id])
        yield from policy.acl.rules().items()

    def rights_of(self, identity: _Identity) -> Rights | None:
        """What a principal may do now; None when its credential is not valid any more (token revoked, key removed)."""
        policy = self._policy
        scopes = identity.jwt_scopes
        if (token := identity.token) is not None:
            now = policy.tokens.get(token.id)
            if now is None or replace(now, scopes=token.scopes) != token:  # revoked, or another one by its id
                return None
            scopes = policy.scopes[token.id]
        elif policy.jwt is None or identity.jwt_key_id not in policy.jwt.key_ids:
            return None
        return policy.acl.rights_of(identity.principal, scopes)

    def is_past(self, time_ms: int | None) -> bool:
        """Whether a wall time is over."""
        return time_ms is not None and self._clock.now_ms() >= time_ms

    def watch(self, caller: _Caller, on_end: Callable[[], None]) -> Callable[[], None]:
        """See Access.watch."""
        self._watched.setdefault(caller, []).append(on_end)

        def stop() -> None:
            watchers = self._watched.get(caller, [])
            if on_end in watchers:
                watchers.remove(on_end)
                if not watchers:
                    del self._watched[caller]

        return stop

    # ------------------------------------------------------------------------------------------------- checking

    def _access_of_ticket(self, ticket: str, address: str) -> Access:
        if (node := self._tickets.other_node(ticket)) is not None:  # nothing was guessed: it is no failure
            raise RequestError(
                TICKET_ELSEWHERE, f"This ticket is of node {node}: use it there, or ask this node for one of its own."
            )
        access = self._tickets.redeem(ticket)
        if access is None:
            raise self._refused("a ticket that is used, too old, or none", address)
        return access

    def _caller_of(self, token: str, address: str) -> _Caller:
        key = _key(token)
        caller = self._callers.get(key)
        if caller is not None and not caller.is_over:
            return caller
        identity = self._identity(token, address)
        if self.is_past(identity.expires_ms):
            raise self._refused("a token that has expired", address)
        caller = _Caller(self, identity)
        _remember(self._callers, key, caller)
        return caller

    def _identity(self, token: str, address: str) -> _Identity:
        """Raises RequestError."""
        policy = self._policy
        if tokens.is_static(token):
            # Even while the address has to wait: this check is quick, and 256 bits cannot be guessed.
            record = tokens.find(policy.tokens, token)
            if record is None:
                raise self._refused("an unknown or revoked token", address)
            return _Identity(record.principal, record.expires_ms, token=record)
        if policy.jwt is None:
            raise self._refused("a token that is none of this server's", address)
        self._check_address(address)
        try:
            claims = policy.jwt.verify(token)
        except JwtRefused as error:
            raise self._refused(f"a JWT that is refused: {error}", address) from None
        return _Identity(claims.principal, claims.expires_ms, jwt_key_id=claims.key_id, jwt_scopes=claims.scopes)

    def _check_address(self, address: str) -> None:
        wait_ms = self._backoff.wait_ms(counted_as(address), self._now_ms())
        if wait_ms:
            raise RequestError(
                RATE_LIMITED,
                "Authentication has failed too often from this address; wait before the next try.",
                retriable=True,
                retry_after_ms=wait_ms,
            )

    def _refused(self, reason: str, address: str) -> RequestError:
        """Count a failure, and say what is told to the caller: 401, or 429 when the address has to wait."""
        now_ms = self._now_ms()
        self.failure_count += 1
        if now_ms >= self._quiet_until_ms:
            self._quiet_until_ms = now_ms + FAILURE_LOG_INTERVAL_MS
            log.warning("authentication failed address=%s reason=%r count=%d", address, reason, self.failure_count)
        try:
            self._check_address(address)
        except RequestError as error:
            return error
        finally:
            self._backoff.failed(counted_as(address), now_ms)
        return unauthenticated(f"These credentials are not accepted: {reason}.")


class _Caller:
    """The rights of one credential: an Access."""

    __slots__ = (
        "_answers",
        "_authenticator",
        "_identity",
        "_rights",
        "_version",
        "expires_at_ms",
        "principal",
        "token_id",
    )

    def __init__(self, authenticator: PolicyAuthenticator, identity: _Identity) -> None:
        self.principal = identity.principal
        self.token_id = None if identity.token is None else identity.token.id
        self.expires_at_ms = identity.expires_ms
        self._authenticator = authenticator
        self._identity = identity
        self._version = -1
        self._rights: Rights | None = None
        self._answers: dict[tuple[Permission, str | None, str | None], bool] = {}

    @property
    def is_over(self) -> bool:
        """Whether nothing is allowed any more: revoked, or expired."""
        return self._current() is NO_RIGHTS

    def allows(self, permission: Permission, *, topic: str | None = None, group: str | None = None) -> bool:
        """See Access."""
        rights = self._current()
        if rights is NO_RIGHTS:
            return False
        question = permission, topic, group
        answer = self._answers.get(question)
        if answer is None:
            if len(self._answers) >= ANSWERS_MAX:
                self._answers.clear()
            answer = rights.allows(permission, topic, group, self._authenticator.origins_of)
            self._answers[question] = answer
        return answer

    def check(self, permission: Permission, *, topic: str | None = None, group: str | None = None) -> None:
        """See Access."""
        if not self.allows(permission, topic=topic, group=group):
            raise forbidden(permission, topic, group)

    def topics(self, permission: Permission) -> tuple[tuple[str, ...], tuple[str, ...]] | None:
        """See Access."""
        return self._current().topics(permission)

    def scopes(self) -> tuple[Sequence[Scope], Sequence[Scope]]:
        """See Access."""
        rights = self._current()
        return rights.allow, rights.deny

    def watch(self, on_end: Callable[[], None]) -> Callable[[], None]:
        """See Access."""
        if self.is_over:
            on_end()
            return lambda: None
        return self._authenticator.watch(self, on_end)

    def _current(self) -> Rights:
        authenticator = self._authenticator
        if self._version != authenticator.version:
            self._version = authenticator.version
            self._rights = authenticator.rights_of(self._identity)
            self._answers.clear()
        rights = self._rights
        if rights is None or (self.expires_at_ms is not None and authenticator.is_past(self.expires_at_ms)):
            return NO_RIGHTS
        return rights


def _key(text: str) -> bytes:
    return hashlib.sha256(text.encode("utf-8", "surrogateescape")).digest()


def _remember(callers: dict[bytes, _Caller], key: bytes, caller: _Caller) -> None:
    callers.pop(key, None)
    callers[key] = caller  # at the end: dicts keep the order of insertion
    if len(callers) > CACHE_MAX:
        del callers[next(iter(callers))]


def unauthenticated(message: str) -> RequestError:
    """The refusal of a caller whose credentials are missing or not valid."""
    return RequestError(UNAUTHENTICATED, message)
