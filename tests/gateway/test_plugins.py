"""gateway/plugins.py."""

from __future__ import annotations

import sys
from importlib.metadata import entry_points
from pathlib import Path

import pytest

from gateway.plugins import plugins


def test_packages_are_read_once_for_all_groups(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    reads: list[None] = []

    def counted() -> object:
        reads.append(None)
        return entry_points()

    monkeypatch.setattr("gateway.plugins.entry_points", counted)
    package = tmp_path / "two_groups-1.0.dist-info"
    package.mkdir()
    (package / "METADATA").write_text("Metadata-Version: 2.1\nName: two-groups\nVersion: 1.0\n")
    (package / "entry_points.txt").write_text("[test.one]\na = two_groups:A\n[test.two]\nb = two_groups:B\n")
    assert list(plugins("test.one")) == []
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    reads.clear()
    assert [point.value for point in plugins("test.one")] == ["two_groups:A"]
    assert [point.value for point in plugins("test.two")] == ["two_groups:B"]
    assert list(plugins("test.three")) == []
    assert len(reads) == 1
