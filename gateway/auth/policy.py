"""Everything that decides who may do what, as it is now: read from files, and read again when they change.

A `Policy` is a snapshot of the token file, the ACL file and the keys for JWTs. `PolicyFiles` knows the files and
notices when one of them changed.
A file that cannot be read after a change keeps what was read before in force: the operator finds it in the log, and
a typing mistake locks no client out. At the start it is refused.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

from gateway.auth.access import Scope
from gateway.auth.acl import Acl, parse_acl
from gateway.auth.config import AuthConfig
from gateway.auth.jwt import JwtVerifier, verifier
from gateway.auth.operator_files import KEYS_BYTES_MAX, RULES_BYTES_MAX, WatchedFiles, read_file
from gateway.auth.tokens import Tokens, read_tokens

log = logging.getLogger(__name__)

_Content = TypeVar("_Content")


class PolicyError(ValueError):
    """A file of the policy cannot be used. The message names it and says why."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Policy:
    """One reading of all files."""

    tokens: Tokens = field(default_factory=dict)
    scopes: Mapping[str, tuple[Scope, ...]] = field(default_factory=dict)
    """Of the tokens, by id."""

    acl: Acl = field(default_factory=Acl)
    jwt: JwtVerifier | None = None


class PolicyFiles:
    """The files of one server's policy."""

    def __init__(self, config: AuthConfig) -> None:
        self._config = config
        paths = (config.tokens_path, config.acl_path, config.jwt_key_file)
        self._files = WatchedFiles(*(path for path in paths if path is not None))
        self.error: PolicyError | None = None
        """Why the files as they were seen last cannot be used."""

    def load(self) -> Policy:
        """Read everything. Raises PolicyError."""
        config = self._config
        self._files.have_changed()
        tokens = _read("auth.token_file", config.tokens_path, lambda: read_tokens(config.tokens_path))
        acl = _read("auth.acl_file", config.acl_path, self._acl)
        return Policy(
            tokens=tokens,
            scopes={record.id: record.parsed_scopes() for record in tokens.values()},
            acl=acl,
            jwt=self._verifier(),
        )

    def reload(self) -> Policy | None:
        """A new policy if a file has changed since the last look; None if not, or if it cannot be used."""
        if not self._files.have_changed():
            return None
        try:
            policy = self.load()
        except PolicyError as error:
            if self._files.refused(error):
                log.error("access rules not reloaded, the old ones stay in force: %s", error)
                self.error = error
            return None
        self._files.used()
        self.error = None
        log.info("access rules reloaded tokens=%d", len(policy.tokens))
        return policy

    def _acl(self) -> Acl:
        try:
            text = read_file(self._config.acl_path, RULES_BYTES_MAX).decode()
        except FileNotFoundError:
            if self._config.acl_file is None:
                return Acl()
            raise
        return parse_acl(text)

    def _verifier(self) -> JwtVerifier | None:
        config = self._config
        if config.jwt_issuer is None or config.jwt_audience is None or config.jwt_key_file is None:
            return None
        issuer, audience, key_file = config.jwt_issuer, config.jwt_audience, config.jwt_key_file
        return _read(
            "auth.jwt_key_file",
            key_file,
            lambda: verifier(
                issuer=issuer,
                audience=audience,
                algorithm=config.jwt_algorithm,
                key_file=read_file(key_file, KEYS_BYTES_MAX),
                scope_claim=config.jwt_scope_claim,
                leeway_ms=config.jwt_leeway_ms,
            ),
        )


def _read(setting: str, path: Path, read: Callable[[], _Content]) -> _Content:
    try:
        return read()
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else error
        raise PolicyError(f"{setting} {path}: {reason}") from error
