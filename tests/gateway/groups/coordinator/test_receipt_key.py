"""gateway.groups.coordinator.receipt_key: made once, private, kept; a lost one is replaced."""

from __future__ import annotations

import stat
from pathlib import Path

from gateway.groups.coordinator.receipt_key import KEY_BYTES, NAME, load_or_make_key
from store.files import OsFiles


def test_a_key_is_made_once_and_only_its_owner_may_read_it(tmp_path: Path) -> None:
    key = load_or_make_key(tmp_path, OsFiles())
    assert len(key) == KEY_BYTES
    assert load_or_make_key(tmp_path, OsFiles()) == key
    (file,) = tmp_path.glob(f"{NAME}.*")
    assert stat.S_IMODE(file.stat().st_mode) == 0o600


def test_two_servers_have_two_keys(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    assert load_or_make_key(tmp_path / "a", OsFiles()) != load_or_make_key(tmp_path / "b", OsFiles())


def test_a_damaged_key_is_replaced_by_another(tmp_path: Path) -> None:
    key = load_or_make_key(tmp_path, OsFiles())
    (file,) = tmp_path.glob(f"{NAME}.*")
    content = bytearray(file.read_bytes())
    content[-5] ^= 1
    file.write_bytes(content)
    other = load_or_make_key(tmp_path, OsFiles())
    assert other != key
    assert load_or_make_key(tmp_path, OsFiles()) == other
