"""Static bearer tokens and the file that keeps them.

    mq_4f7k2q9xw3bd_<43 characters of base64url>      what a client sends: an id, and 256 random bits

The file has the id and the SHA-256 of the whole token, never the token: it is shown once, when it is made. A fast hash
is right for 256 random bits, which cannot be guessed; it would be wrong for a password. One JSON object:

    {"format": 1, "tokens": [{"id": …, "principal": …, "sha256": …, "scopes": […], "created_ms": …, "expires_ms": …}]}

It is replaced as a whole (written aside, synced, renamed, directory synced), readable by its owner alone. Whoever
changes it holds the lock of the file beside it, so two changes at once lose none.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import re
import secrets
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

import orjson

from gateway.auth.access import Scope
from gateway.auth.operator_files import TOKENS_BYTES_MAX, give_to_owner, locked, read_file, replace_file
from gateway.auth.scopes import parse_scopes

FORMAT = 1
TOKENS_MAX = 10_000
"""Tokens of one file."""

TOKEN_CHARS_MAX = 128
"""A longer text is no static token."""

PRINCIPAL_CHARS_MAX = 100
_PREFIX = "mq_"
_ID_BYTES = 8
_SECRET_BYTES = 32
_PRINCIPAL = re.compile(r"[A-Za-z0-9._@-]+")
_DIRECTORY_MODE = 0o700


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenRecord:
    """What is kept of one token. Times are epoch ms; `expires_ms` None: it does not expire."""

    id: str
    principal: str
    sha256: str
    scopes: tuple[str, ...]
    created_ms: int
    expires_ms: int | None

    def parsed_scopes(self) -> tuple[Scope, ...]:
        """Raises ValueError."""
        return parse_scopes(self.scopes)


Tokens = Mapping[str, TokenRecord]
"""By id."""


class TokenFileError(ValueError):
    """The file cannot be read as a token file, or a change breaks a rule. The message says what to do."""


def mint(
    principal: str, scopes: Iterable[str], *, now_ms: int, expires_ms: int | None = None
) -> tuple[str, TokenRecord]:
    """A new token, and what to keep of it. Raises TokenFileError for an illegal principal, scope or expiry."""
    if len(principal) > PRINCIPAL_CHARS_MAX or not _PRINCIPAL.fullmatch(principal):
        raise TokenFileError(
            f"principal {principal!r}: use at most {PRINCIPAL_CHARS_MAX} letters, digits, '.', '_', '@' or '-'"
        )
    if expires_ms is not None and expires_ms <= now_ms:
        raise TokenFileError("the token would have expired already")
    texts = tuple(scopes)
    try:
        parse_scopes(texts)
    except ValueError as error:
        raise TokenFileError(str(error)) from error
    id_ = base64.b32encode(secrets.token_bytes(_ID_BYTES)).decode().rstrip("=").lower()
    secret = base64.urlsafe_b64encode(secrets.token_bytes(_SECRET_BYTES)).decode().rstrip("=")
    token = f"{_PREFIX}{id_}_{secret}"
    record = TokenRecord(
        id=id_,
        principal=principal,
        sha256=_digest(token),
        scopes=texts,
        created_ms=now_ms,
        expires_ms=expires_ms,
    )
    return token, record


def find(tokens: Tokens, token: str) -> TokenRecord | None:
    """The record of a token, expired or not; None when it is no token of these. Takes as long for a wrong secret."""
    if len(token) > TOKEN_CHARS_MAX or not token.startswith(_PREFIX):
        return None
    record = tokens.get(token[len(_PREFIX) :].partition("_")[0])
    expected = _NOBODYS_DIGEST if record is None else record.sha256
    return record if hmac.compare_digest(_digest(token), expected) else None


def is_static(token: str) -> bool:
    """Whether this looks like one of ours, as opposed to a JWT."""
    return token.startswith(_PREFIX)


def token_of(id_: str, secret: str) -> str:
    """The token of a Basic user and password: its id and its secret, or anything and the whole token."""
    return secret if secret.startswith(_PREFIX) else f"{_PREFIX}{id_}_{secret}"


def _digest(token: str) -> str:
    return hashlib.sha256(token.encode("utf-8", "surrogateescape")).hexdigest()


_NOBODYS_DIGEST = "0" * 64


# ------------------------------------------------------------------------------------------------------- the file


def parse_tokens(content: bytes) -> dict[str, TokenRecord]:
    """The tokens of a file's bytes. Raises TokenFileError."""
    try:
        document = orjson.loads(content)
        version = document["format"]
        if version != FORMAT:
            raise TokenFileError(f"format {version!r} is not {FORMAT}, which this version of mq reads")
        rows = document["tokens"]
        if len(rows) > TOKENS_MAX:
            raise TokenFileError(f"{len(rows)} tokens; the limit is {TOKENS_MAX}")
        records = [_record(row) for row in rows]
    except (orjson.JSONDecodeError, KeyError, TypeError, AttributeError) as error:
        raise TokenFileError(f"not a token file: {error}") from error
    return {record.id: record for record in records}


def _record(row: Mapping[str, object]) -> TokenRecord:
    match row:
        case {
            "id": str(id_),
            "principal": str(principal),
            "sha256": str(sha256),
            "scopes": list(scopes),
            "created_ms": int(created_ms),
            "expires_ms": int() | None as expires_ms,
        } if len(row) == 6 and len(sha256) == 64:
            record = TokenRecord(
                id=id_,
                principal=principal,
                sha256=sha256,
                scopes=tuple(scopes),
                created_ms=created_ms,
                expires_ms=expires_ms,
            )
        case _:
            raise TokenFileError("a token has missing, unknown or illegal fields")
    try:
        record.parsed_scopes()
    except ValueError as error:
        raise TokenFileError(f"token {id_}: {error}") from error
    return record


def read_tokens(path: Path) -> dict[str, TokenRecord]:
    """The tokens of a file; none when there is no such file. Raises TokenFileError, OSError."""
    try:
        content = read_file(path, TOKENS_BYTES_MAX)
    except FileNotFoundError:
        return {}
    except ValueError as error:
        raise TokenFileError(str(error)) from error
    return parse_tokens(content)


def change_tokens(
    path: Path, change: Callable[[dict[str, TokenRecord]], None], *, record: Callable[[], None] = lambda: None
) -> None:
    """Read, change and replace the file; durable on return. Nothing is changed when `change` raises.

    `record` is called when the change is durable, before another may be made. Raises TokenFileError, OSError.
    """
    if not path.parent.exists():
        path.parent.mkdir(parents=True, exist_ok=True, mode=_DIRECTORY_MODE)
        give_to_owner(path.parent, like=path.parent.parent)
    with locked(path):
        tokens = read_tokens(path)
        change(tokens)
        if len(tokens) > TOKENS_MAX:
            raise TokenFileError(f"the file has {TOKENS_MAX} tokens, which is the limit: revoke some")
        document = {"format": FORMAT, "tokens": [asdict(record) for record in tokens.values()]}
        replace_file(path, orjson.dumps(document, option=orjson.OPT_INDENT_2))
        record()
