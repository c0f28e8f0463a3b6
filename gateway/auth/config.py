"""What an operator may choose about authentication. Secrets are never settings: settings name the files they are in."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from gateway.auth.backoff import FREE_FAILURES
from gateway.auth.jwt import Algorithm

DIRECTORY = "auth"
"""Where the files are in the data directory, unless settings say otherwise."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AuthConfig:
    """Who may come in, and by what."""

    data: Path
    """The server's data directory."""

    enabled: bool = False
    """Require credentials. Off, every client may do everything, and the server listens on loopback only."""

    token_file: Path | None = None
    """Static tokens (`mq token`). None: `auth/tokens.json` in the data directory."""

    acl_file: Path | None = None
    """Rules for principals. None: `auth/acl.toml` in the data directory; without it, tokens alone say what they may."""

    jwt_issuer: str | None = None
    """The `iss` of JWTs that are accepted. None: none are."""

    jwt_audience: str | None = None
    """The `aud` they must have."""

    jwt_algorithm: Algorithm = "RS256"
    """The one algorithm of their signatures."""

    jwt_key_file: Path | None = None
    """Public keys of the issuer, in PEM."""

    jwt_scope_claim: str = "scope"
    """The claim with the scopes: words that begin with `mq:`."""

    jwt_leeway_ms: int = 30_000
    """How far the issuer's clock may be off."""

    free_failures: int = FREE_FAILURES
    """Failures to authenticate after which an address has to wait before the next try. Many, where all clients come
    through one proxy."""

    token_in_query: bool = False
    """Accept `?token=` on GET requests, for clients that can do nothing else. URLs end up in logs."""

    def __post_init__(self) -> None:
        given = [self.jwt_issuer is not None, self.jwt_audience is not None, self.jwt_key_file is not None]
        if any(given) and not all(given):
            raise ValueError("auth.jwt_issuer, auth.jwt_audience and auth.jwt_key_file go together")
        if not 0 <= self.jwt_leeway_ms <= 300_000:
            raise ValueError("auth.jwt_leeway_ms must be between 0 and 300000")
        if self.free_failures < 0:
            raise ValueError("auth.free_failures must be at least 0")

    @property
    def tokens_path(self) -> Path:
        """The file of tokens, chosen or in the data directory."""
        return self.token_file or self.data / DIRECTORY / "tokens.json"

    @property
    def acl_path(self) -> Path:
        """The file of rules, chosen or in the data directory."""
        return self.acl_file or self.data / DIRECTORY / "acl.toml"
