"""store.config: settings that cannot work are refused before anything is opened."""

from __future__ import annotations

from dataclasses import FrozenInstanceError, replace
from pathlib import Path

import pytest

from store.config import StoreConfig
from store.types import Acks


def test_the_defaults_are_the_safe_ones() -> None:
    config = StoreConfig(root=Path("x"))
    assert config.acks is Acks.FLUSHED
    assert config.flush_interval_ms <= 1000


@pytest.mark.parametrize("name", ["extent_bytes", "flush_interval_ms", "checkpoint_interval_ms"])
def test_what_must_be_positive_is_checked(name: str) -> None:
    config = StoreConfig(root=Path("x"))
    for value in (0, -1):
        with pytest.raises(ValueError, match=name):
            replace(config, **{name: value})  # type: ignore[arg-type]


def test_a_config_does_not_change_under_a_running_store() -> None:
    config = StoreConfig(root=Path("x"))
    with pytest.raises(FrozenInstanceError):
        config.extent_bytes = 1  # type: ignore[misc]
