"""gateway.main.secret_files: secrets that change while a node runs."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from gateway.cluster.etcd import EtcdConfig, EtcdMetadata
from gateway.cluster.peer_auth import Secret
from gateway.main import secret_files
from gateway.main.secret_files import also_file, etcd_files, kept_fresh, secret_of
from gateway.settings.cluster import ClusterConfig
from tests.waiting import until

OLD, NEW, OTHER = b"an old secret of nodes", b"a new secret of nodes", b"nobody's secret of nodes"


@pytest.fixture
def config(tmp_path: Path) -> ClusterConfig:
    (tmp_path / "secret").write_bytes(OLD)
    (tmp_path / "password").write_text("before\n")
    return ClusterConfig(
        node="n1",
        etcd=("http://127.0.0.1:1",),
        secret_file=tmp_path / "secret",
        etcd_user="root",
        etcd_password_file=tmp_path / "password",
    )


def accepted(secret: Secret) -> set[bytes]:
    proofs = {Secret(each).proof(): each for each in (OLD, NEW, OTHER)}
    return {proofs[each.proof()] for each in secret.accepted}


def sends(secret: Secret, text: bytes) -> bool:
    return secret.current.proof() == Secret(text).proof()


async def test_a_secret_is_exchanged_without_a_moment_in_which_one_node_refuses_another(
    config: ClusterConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(secret_files, "RELOAD_INTERVAL_S", 0.01)
    monkeypatch.setattr(secret_files, "FORMER_S", 0.1)
    assert config.secret_file is not None
    etcd = EtcdConfig(endpoints=config.etcd, user="root", password="before")
    secret, metadata = secret_of(config), EtcdMetadata(etcd)
    async with kept_fresh(config, secret, etcd_files(config, metadata, etcd)):
        assert accepted(secret) == {OLD}
        also_file(config).write_bytes(NEW)
        await until(lambda: accepted(secret) == {OLD, NEW}, pause_s=0.01)
        assert sends(secret, OLD)
        config.secret_file.write_bytes(NEW)
        also_file(config).write_bytes(OLD)
        await until(lambda: sends(secret, NEW), pause_s=0.01)
        assert accepted(secret) == {OLD, NEW}
        also_file(config).unlink()
        await until(lambda: accepted(secret) == {NEW}, pause_s=0.01)

        config.secret_file.write_bytes(b"short")  # it cannot be used
        (config.secret_file.parent / "password").write_text("after\n")
        await until(lambda: metadata._password == "after", pause_s=0.01)
        assert accepted(secret) == {NEW}


async def test_what_was_sent_with_is_accepted_for_a_while_when_the_file_is_just_replaced(
    config: ClusterConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(secret_files, "RELOAD_INTERVAL_S", 0.01)
    monkeypatch.setattr(secret_files, "FORMER_S", 0.3)
    assert config.secret_file is not None
    etcd: Any = EtcdConfig(endpoints=config.etcd)
    secret = secret_of(config)
    async with kept_fresh(config, secret, etcd_files(config, EtcdMetadata(etcd), etcd)):
        config.secret_file.write_bytes(OTHER)
        await until(lambda: sends(secret, OTHER), pause_s=0.01)
        assert accepted(secret) == {OLD, OTHER}
        async with asyncio.timeout(5):
            await until(lambda: accepted(secret) == {OTHER}, pause_s=0.01)


def test_a_start_reads_both(config: ClusterConfig) -> None:
    also_file(config).write_bytes(NEW)
    assert accepted(secret_of(config)) == {OLD, NEW}
    also_file(config).write_bytes(b"short")
    with pytest.raises(ValueError, match="at least 16 bytes"):
        secret_of(config)
