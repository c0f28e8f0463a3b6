"""JSON Web Tokens of one issuer, checked with keys from a file (RFC 7519; checking by PyJWT).

One algorithm, chosen by the operator: the token's own `alg` must be that one, so neither "none" nor a public key used
as a shared secret gets anywhere. Keys come from the file alone; a token that names one (`jwk`, `jku`, `x5u`) is not
listened to. `exp`, `iss`, `aud` and `sub` are required.

    algorithm   the key file holds
    HS256       one secret of at least 32 bytes; white space around it does not count
    RS256       public keys in PEM, of at least 2048 bits
    ES256       public keys in PEM, on curve P-256

Several PEM keys in the file: any of them will do, so a new one can be added before the old one goes.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, NamedTuple

from gateway.auth.access import Scope
from gateway.auth.scopes import parse_scopes

# PyJWT and cryptography are loaded by the functions that need them: a tenth of a server's start, for few servers.
if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePublicKey
    from cryptography.hazmat.primitives.asymmetric.rsa import RSAPublicKey

    Key = bytes | RSAPublicKey | EllipticCurvePublicKey

Algorithm = Literal["HS256", "RS256", "ES256"]

JWT_CHARS_MAX = 8190
"""Longer ones would not fit into a header either."""

KEYS_MAX = 8
"""Keys of one file: each is tried."""

SECRET_BYTES_MIN = 32
RSA_BITS_MIN = 2048
SUBJECT_CHARS_MAX = 200
EXPIRES_S_MAX = 253_402_300_799
"""The end of the year 9999: later times are milliseconds by mistake, or nonsense."""

SCOPE_PREFIX = "mq:"
"""Scopes of other services may be in the same claim; ours begin with this."""

PRINCIPAL_PREFIX = "jwt:"
"""An issuer cannot name a principal of a static token: theirs have no colon."""

_PEM = re.compile(rb"-----BEGIN ([A-Z ]+)-----[^-]+-----END \1-----")


class JwtRefused(ValueError):
    """The token is not valid here and now."""


class Claims(NamedTuple):
    """What a valid token says. `key_id` names the key that signed it, as `key_ids` of its verifier does."""

    principal: str
    scopes: tuple[Scope, ...]
    expires_ms: int
    key_id: str


@dataclass(frozen=True, slots=True, kw_only=True)
class JwtVerifier:
    """Checks the tokens of one issuer. Build it with `verifier`."""

    issuer: str
    audience: str
    algorithm: Algorithm
    keys: Sequence[tuple[str, Key]]
    scope_claim: str
    leeway_ms: int

    @property
    def key_ids(self) -> frozenset[str]:
        """Of the keys that tokens may be signed with."""
        return frozenset(key_id for key_id, _ in self.keys)

    def verify(self, token: str) -> Claims:
        """The claims of a token. Raises JwtRefused, whose text never repeats the token."""
        import jwt

        if len(token) > JWT_CHARS_MAX:
            raise JwtRefused("too long")
        reason = "no key"
        for key_id, key in self.keys:
            try:
                claims = jwt.decode(
                    token,
                    key,
                    algorithms=[self.algorithm],
                    issuer=self.issuer,
                    audience=self.audience,
                    leeway=self.leeway_ms / 1000,
                    options={"require": ["exp", "iss", "aud", "sub"]},
                )
                return self._claims(claims, key_id)
            except jwt.InvalidSignatureError:
                reason = "signed with another key"
            except (jwt.PyJWTError, ValueError, OverflowError, RecursionError) as error:
                raise JwtRefused(type(error).__name__) from None
        raise JwtRefused(reason)

    def _claims(self, claims: dict[str, object], key_id: str) -> Claims:
        subject, expires_s = claims["sub"], claims["exp"]
        if not isinstance(subject, str) or not 0 < len(subject) <= SUBJECT_CHARS_MAX or not subject.isprintable():
            raise JwtRefused("illegal sub")
        if not isinstance(expires_s, int | float) or expires_s > EXPIRES_S_MAX:
            raise JwtRefused("illegal exp")
        texts = claims.get(self.scope_claim, "")
        words = texts.split() if isinstance(texts, str) else texts
        if not isinstance(words, list):
            raise JwtRefused(f"illegal {self.scope_claim}")
        ours = [word[len(SCOPE_PREFIX) :] for word in words if isinstance(word, str) and word.startswith(SCOPE_PREFIX)]
        expires_ms = int(expires_s * 1000) + self.leeway_ms
        return Claims(PRINCIPAL_PREFIX + subject, parse_scopes(ours), expires_ms, key_id)


def verifier(
    *, issuer: str, audience: str, algorithm: Algorithm, key_file: bytes, scope_claim: str, leeway_ms: int
) -> JwtVerifier:
    """A verifier with the keys of a key file's content. Raises ValueError, which says what the file lacks."""
    return JwtVerifier(
        issuer=issuer,
        audience=audience,
        algorithm=algorithm,
        keys=[_secret(key_file)] if algorithm == "HS256" else _public_keys(key_file, algorithm),
        scope_claim=scope_claim,
        leeway_ms=leeway_ms,
    )


def _secret(content: bytes) -> tuple[str, Key]:
    secret = content.strip()
    if b"-----BEGIN" in secret:
        raise ValueError("HS256 wants a shared secret, and this is a key in PEM: use RS256 or ES256")
    if len(secret) < SECRET_BYTES_MIN:
        raise ValueError(f"the secret must have at least {SECRET_BYTES_MIN} bytes: try 'openssl rand -hex 32'")
    return _id(secret), secret


def _public_keys(content: bytes, algorithm: Algorithm) -> list[tuple[str, Key]]:
    from cryptography.exceptions import UnsupportedAlgorithm
    from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePublicKey
    from cryptography.hazmat.primitives.asymmetric.rsa import RSAPublicKey
    from cryptography.hazmat.primitives.serialization import load_pem_public_key

    found = list(_PEM.finditer(content))
    if not found:
        raise ValueError(f"{algorithm} wants public keys in PEM (-----BEGIN PUBLIC KEY-----)")
    if len(found) > KEYS_MAX:
        raise ValueError(f"{len(found)} keys; the limit is {KEYS_MAX}")
    keys: list[tuple[str, Key]] = []
    for match in found:
        if b"PRIVATE" in match[1]:
            raise ValueError("this is a private key: it belongs to the issuer; write its public key here")
        try:
            key = load_pem_public_key(match[0])
        except (ValueError, UnsupportedAlgorithm) as error:
            raise ValueError("a key that cannot be read; a certificate? use its public key") from error
        if not _fits(key, algorithm):
            wanted = f"RSA keys of at least {RSA_BITS_MIN} bits" if algorithm == "RS256" else "keys on curve P-256"
            raise ValueError(f"{algorithm} wants {wanted}")
        assert isinstance(key, RSAPublicKey | EllipticCurvePublicKey)
        keys.append((_id(match[0]), key))
    return keys


def _fits(key: object, algorithm: Algorithm) -> bool:
    from cryptography.hazmat.primitives.asymmetric.ec import SECP256R1, EllipticCurvePublicKey
    from cryptography.hazmat.primitives.asymmetric.rsa import RSAPublicKey

    if algorithm == "RS256":
        return isinstance(key, RSAPublicKey) and key.key_size >= RSA_BITS_MIN
    return isinstance(key, EllipticCurvePublicKey) and isinstance(key.curve, SECP256R1)


def _id(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()[:16]
