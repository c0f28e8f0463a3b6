"""gateway/auth/policy.py and gateway/auth/config.py"""

from __future__ import annotations

import errno
import logging
from pathlib import Path
from unittest.mock import Mock

import pytest

from gateway.auth.config import AuthConfig
from gateway.auth.policy import PolicyError, PolicyFiles
from gateway.auth.tokens import change_tokens, mint
from tests.gateway.auth.test_jwt import SECRET

NOW_MS = 1_700_000_000_000


def add_token(path: Path) -> str:
    _, record = mint("billing", ["admin"], now_ms=NOW_MS)
    change_tokens(path, lambda tokens: tokens.update({record.id: record}))
    return record.id


def test_nothing_there_is_nobody_allowed(tmp_path: Path) -> None:
    policy = PolicyFiles(AuthConfig(data=tmp_path)).load()
    assert not policy.tokens
    assert policy.jwt is None


def test_a_change_of_any_file_is_noticed(tmp_path: Path) -> None:
    config = AuthConfig(data=tmp_path)
    files = PolicyFiles(config)
    files.load()
    assert files.reload() is None
    id_ = add_token(config.tokens_path)
    policy = files.reload()
    assert policy is not None
    assert set(policy.tokens) == {id_}
    assert files.reload() is None
    config.acl_path.write_text('[[acl]]\nprincipal = "a"\nallow = ["admin"]\n')
    assert files.reload() is not None
    config.tokens_path.unlink()
    policy = files.reload()
    assert policy is not None
    assert not policy.tokens


def test_a_file_with_a_mistake_leaves_the_old_rules_and_is_read_when_it_is_right(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    config = AuthConfig(data=tmp_path)
    add_token(config.tokens_path)
    files = PolicyFiles(config)
    files.load()
    config.acl_path.write_text("[[acl")
    with caplog.at_level(logging.ERROR):
        assert files.reload() is None
        assert files.reload() is None
    assert caplog.text.count("not reloaded") == 1
    assert str(config.acl_path) in caplog.text
    config.acl_path.write_text("")
    assert files.reload() is not None


def test_a_file_that_could_not_be_read_is_looked_at_again_though_it_is_the_same(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its owner has come later, or there was no file handle left."""
    config = AuthConfig(data=tmp_path)
    id_ = add_token(config.tokens_path)
    files = PolicyFiles(config)
    files.load()
    change_tokens(config.tokens_path, lambda tokens: tokens.pop(id_))
    with monkeypatch.context() as patch, caplog.at_level(logging.ERROR):
        patch.setattr("gateway.auth.policy.read_tokens", Mock(side_effect=OSError(errno.EMFILE, "Too many open files")))
        assert files.reload() is None
        error = files.error
        assert files.reload() is None
        assert files.error is error is not None
    assert caplog.text.count("not reloaded") == 1
    policy = files.reload()
    assert policy is not None
    assert not policy.tokens
    assert files.reload() is None


def test_a_start_with_a_bad_file_is_refused_by_its_name(tmp_path: Path) -> None:
    jwt = {"jwt_issuer": "i", "jwt_audience": "a", "jwt_key_file": tmp_path / "key"}
    with pytest.raises(PolicyError, match=r"auth\.jwt_key_file .*key: No such file"):
        PolicyFiles(AuthConfig(data=tmp_path, **jwt)).load()  # type: ignore[arg-type]
    (tmp_path / "key").write_bytes(SECRET)
    with pytest.raises(PolicyError, match="public keys in PEM"):
        PolicyFiles(AuthConfig(data=tmp_path, **jwt)).load()  # type: ignore[arg-type]
    assert PolicyFiles(AuthConfig(data=tmp_path, jwt_algorithm="HS256", **jwt)).load().jwt  # type: ignore[arg-type]
    with pytest.raises(PolicyError, match=r"auth\.acl_file"):
        PolicyFiles(AuthConfig(data=tmp_path, acl_file=tmp_path / "missing")).load()
    (tmp_path / "tokens").write_bytes(b"{}")
    with pytest.raises(PolicyError, match=r"auth\.token_file"):
        PolicyFiles(AuthConfig(data=tmp_path, token_file=tmp_path / "tokens")).load()


@pytest.mark.parametrize("changes", [{"jwt_issuer": "a"}, {"jwt_audience": "a"}, {"jwt_leeway_ms": 300_001}])
def test_settings_that_make_no_sense_are_refused(changes: dict[str, object]) -> None:
    with pytest.raises(ValueError, match=r"auth\.jwt"):
        AuthConfig(data=Path("d"), **changes)  # type: ignore[arg-type]
