"""Tokens, access rules, keys and certificates: read from files at the start, and again when they change."""

from __future__ import annotations

import asyncio
import logging
from time import monotonic_ns

from gateway.auth.authenticator import PolicyAuthenticator
from gateway.auth.policy import PolicyFiles
from gateway.groups.coordinator.origins import Origins
from gateway.main.tls import ServerTls
from gateway.settings.config import GatewayConfig
from store.clock import Clock

log = logging.getLogger(__name__)

RELOAD_INTERVAL_S = 1.0
"""How often tokens, access rules, keys and certificates are looked at for changes."""


class AuthReloader:
    """Who may come in, from files that are read again when they change."""

    def __init__(self, config: GatewayConfig, clock: Clock) -> None:
        self._files = PolicyFiles(config.auth)
        policy = self._files.load()
        if not policy.tokens and policy.jwt is None:
            log.warning("nobody can get in yet: make a token with 'mq token create', or set auth.jwt_issuer")
        self.authenticator = PolicyAuthenticator(
            policy,
            clock=clock,
            now_ms=lambda: monotonic_ns() // 1_000_000,
            token_in_query=config.auth.token_in_query,
            free_failures=config.auth.free_failures,
        )

    def judge_by(self, origins: Origins) -> None:
        """Let rights to dead letters depend on where those came from."""
        self.authenticator.origins_of = origins.of
        origins.on_change = self.authenticator.origins_changed

    async def reload(self) -> None:
        """Let what the files say now hold."""
        policy = await asyncio.to_thread(self._files.reload)
        if policy is not None:
            self.authenticator.replace(policy)


async def reload_forever(auth_reloader: AuthReloader | None, tls: ServerTls | None) -> None:
    """Look for changed files of rights and certificates until cancelled."""
    while auth_reloader is not None or tls is not None:
        await asyncio.sleep(RELOAD_INTERVAL_S)
        if auth_reloader is not None:
            await auth_reloader.reload()
        if tls is not None:
            tls.reload()
