"""gateway/auth/tokens.py"""

from __future__ import annotations

import multiprocessing
import os
import stat
from dataclasses import replace
from pathlib import Path

import orjson
import pytest

from gateway.auth import operator_files
from gateway.auth.tokens import (
    PRINCIPAL_CHARS_MAX,
    TOKEN_CHARS_MAX,
    TOKENS_MAX,
    TokenFileError,
    TokenRecord,
    change_tokens,
    find,
    mint,
    parse_tokens,
    read_tokens,
    token_of,
)

NOW_MS = 1_700_000_000_000


def added(path: Path, principal: str = "billing") -> tuple[str, TokenRecord]:
    token, record = mint(principal, ["reader:topic:orders"], now_ms=NOW_MS)
    change_tokens(path, lambda known: known.update({record.id: record}))
    return token, record


def test_a_token_is_found_by_itself_alone(tmp_path: Path) -> None:
    path = tmp_path / "auth" / "tokens.json"
    token, record = added(path)
    other, _ = added(path)
    known = read_tokens(path)
    assert find(known, token) == record
    assert len(token.rpartition("_")[2]) or token.count("_") >= 2
    for wrong in (token[:-1], token + "a", token[:-1] + ("a" if token[-1] != "a" else "b"), token.upper(), "mq_", "",
                  "mq__", f"mq_{record.id}_", token + "x" * TOKEN_CHARS_MAX, "mq_\udc80",
                  f"mq_{record.id}_{other.split('_', 2)[2]}"):  # fmt: skip
        assert find(known, wrong) is None
    assert find({}, token) is None


def test_the_two_halves_of_a_token_are_a_basic_user_and_password() -> None:
    token, record = mint("a", [], now_ms=NOW_MS)
    secret = token.split("_", 2)[2]
    assert token_of(record.id, secret) == token
    assert token_of("anything", token) == token


def test_the_file_never_holds_a_token_and_is_its_owners_alone(tmp_path: Path) -> None:
    path = tmp_path / "auth" / "tokens.json"
    os.umask(previous := os.umask(0))
    try:
        token, _ = added(path)
    finally:
        os.umask(previous)
    assert token.split("_", 2)[2] not in path.read_text()
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert sorted(entry.name for entry in path.parent.iterdir()) == ["tokens.json", "tokens.json.lock"]


def test_a_change_that_fails_leaves_the_file_as_it_was(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "tokens.json"
    added(path)
    before = path.read_bytes()

    def fails(_: dict[str, TokenRecord]) -> None:
        raise TokenFileError("no")

    with pytest.raises(TokenFileError):
        change_tokens(path, fails)
    assert path.read_bytes() == before

    def no_rename(*_: object) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(operator_files.os, "fsync", no_rename)
        with pytest.raises(OSError, match="No space"):
            added(path)
    assert path.read_bytes() == before
    added(path)  # what the failed change left aside does not stand in the way
    assert len(read_tokens(path)) == 2


def _add_many(path: Path) -> None:
    for _ in range(10):
        added(path)


def test_changes_at_once_lose_none(tmp_path: Path) -> None:
    path = tmp_path / "tokens.json"
    context = multiprocessing.get_context("spawn")
    workers = [context.Process(target=_add_many, args=(path,)) for _ in range(2)]
    for worker in workers:
        worker.start()
    _add_many(path)
    for worker in workers:
        worker.join()
    assert len(read_tokens(path)) == 30


@pytest.mark.parametrize("principal", ["", "a b", "a:b", "jwt:a", "ä", "a\n", "x" * (PRINCIPAL_CHARS_MAX + 1)])
def test_an_illegal_principal_is_refused(principal: str) -> None:
    with pytest.raises(TokenFileError, match="principal"):
        mint(principal, [], now_ms=NOW_MS)


def test_principals_up_to_the_limit_are_fine() -> None:
    assert mint("x" * PRINCIPAL_CHARS_MAX, [], now_ms=NOW_MS)


def test_a_token_that_would_be_useless_is_not_made() -> None:
    with pytest.raises(TokenFileError, match="scope"):
        mint("a", ["owner"], now_ms=NOW_MS)
    with pytest.raises(TokenFileError, match="expired"):
        mint("a", [], now_ms=NOW_MS, expires_ms=NOW_MS)


def row(**changes: object) -> dict[str, object]:
    return {
        "id": "a",
        "principal": "p",
        "sha256": "0" * 64,
        "scopes": [],
        "created_ms": 1,
        "expires_ms": None,
    } | changes


@pytest.mark.parametrize(
    "document",
    [
        b"", b"[]", b"{}", b"null", b'{"format": 2, "tokens": []}', b'{"format": 1}', b'{"format": 1, "tokens": 5}',
        *(
            orjson.dumps({"format": 1, "tokens": [one]})
            for one in (
                5, {}, row(id=1), row(sha256="0"), row(scopes=["x"]), row(scopes="admin"), row(expires_ms="1"),
                row(more=1), row(scopes=[1]),
            )
        ),
    ],
)  # fmt: skip
def test_what_is_no_token_file_is_refused(document: bytes) -> None:
    with pytest.raises(TokenFileError):
        parse_tokens(document)


def test_the_number_of_tokens_has_a_limit(tmp_path: Path) -> None:
    path = tmp_path / "tokens.json"
    _, record = mint("a", [], now_ms=NOW_MS)
    many = {str(number): replace(record, id=str(number)) for number in range(TOKENS_MAX)}
    change_tokens(path, lambda known: known.update(many))
    assert len(read_tokens(path)) == TOKENS_MAX
    with pytest.raises(TokenFileError, match=str(TOKENS_MAX)):
        change_tokens(path, lambda known: known.update({"one more": record}))
    with pytest.raises(TokenFileError, match=str(TOKENS_MAX)):
        parse_tokens(orjson.dumps({"format": 1, "tokens": [row()] * (TOKENS_MAX + 1)}))
