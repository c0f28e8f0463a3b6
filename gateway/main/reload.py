"""Tokens, access rules, keys and certificates: read from files at the start, and again when they change."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from time import monotonic_ns

from gateway.api.trail import SERVER, Trail
from gateway.api.trail_files import Act
from gateway.auth.authenticator import PolicyAuthenticator
from gateway.auth.policy import Policy, PolicyFiles
from gateway.groups.coordinator.origins import Origins
from gateway.main.tls import ServerTls
from gateway.settings.config import GatewayConfig
from store.clock import Clock

log = logging.getLogger(__name__)

RELOAD_INTERVAL_S = 1.0
"""How often tokens, access rules, keys and certificates are looked at for changes."""

IDS_MAX = 10
"""Of tokens that a line of the trail names."""


async def _at_once() -> None:
    """There are no others."""


class AuthReloader:
    """Who may come in, from files that are read again when they change."""

    def __init__(self, config: GatewayConfig, clock: Clock) -> None:
        self._files = PolicyFiles(config.auth)
        self._reloading = asyncio.Lock()  # else of two readings the older one may be the one that stays
        self._policy = policy = self._files.load()
        self.on_change: Callable[[], None] = lambda: None
        """Called when what the files say has begun to hold."""

        self.held_by_all: Callable[[], Awaitable[None]] = _at_once
        """Returns when it holds in the other processes of the server, too."""

        if not policy.tokens and policy.jwt is None:
            log.warning("no credentials exist yet: make a token with 'mq token create', or set auth.jwt_issuer")
        self.authenticator = PolicyAuthenticator(
            policy,
            clock=clock,
            now_ms=lambda: monotonic_ns() // 1_000_000,
            token_in_query=config.auth.token_in_query,
            free_failures=config.auth.free_failures,
            node=config.cluster.node or "",
        )

    def judge_by(self, origins: Origins) -> None:
        """Let rights to dead letters depend on where those came from."""
        self.authenticator.origins_of = origins.of
        origins.on_change = self.authenticator.origins_changed

    async def reload_told(self, trail: Trail) -> None:
        """As `reload`, in all processes of the server, and the trail is told."""
        if (act := await self.reload()) is not None:
            trail.record(act)
            await self.held_by_all()

    async def reload(self) -> Act | None:
        """Let what the files say now hold. Returns what the trail is to say of it, if anything changed."""
        async with self._reloading:
            return await self._reload()

    async def _reload(self) -> Act | None:
        error = self._files.error
        policy = await asyncio.to_thread(self._files.reload)
        if policy is None:
            return None if self._files.error is error else _reloaded("access.reload", self._files.error)
        details = _changes(self._policy, policy)
        self._policy = policy
        self.authenticator.replace(policy)
        self.on_change()
        return _reloaded("access.reload", None, details)


async def reload_forever(auth_reloader: AuthReloader | None, tls: ServerTls | None, trail: Trail) -> None:
    """Look for changed files of rights and certificates until cancelled."""
    while auth_reloader is not None or tls is not None:
        await asyncio.sleep(RELOAD_INTERVAL_S)
        if auth_reloader is not None:
            await auth_reloader.reload_told(trail)
        if tls is not None and (outcome := tls.reload()):
            trail.record(_reloaded("tls.reload", outcome if isinstance(outcome, Exception) else None))


def _reloaded(action: str, error: Exception | None, details: dict[str, object] | None = None) -> Act:
    return Act(
        action=action,
        principal=SERVER,
        outcome="done" if error is None else "failed",
        error=None if error is None else str(error),
        details=details or {},
    )


def _changes(old: Policy, new: Policy) -> dict[str, object]:
    """What one reading has that another had not: by whom a file was changed is not in it, so the trail cannot say."""
    changed = {id_ for id_ in old.tokens.keys() & new.tokens.keys() if old.tokens[id_] != new.tokens[id_]}
    ids = {
        "tokens_added": new.tokens.keys() - old.tokens.keys(),
        "tokens_removed": old.tokens.keys() - new.tokens.keys(),
        "tokens_changed": changed,
    }
    keys = [frozenset() if policy.jwt is None else policy.jwt.key_ids for policy in (old, new)]
    return {
        **{name: sorted(some)[:IDS_MAX] for name, some in ids.items() if some},
        "rules_changed": old.acl != new.acl,
        "keys_changed": keys[0] != keys[1],
    }
