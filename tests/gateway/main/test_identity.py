"""gateway/main/identity.py"""

from __future__ import annotations

from pathlib import Path
from random import Random

from gateway.main.identity import cluster_id
from store.files import OsFiles
from tests.simdisk import SimDisk


def test_a_data_directory_keeps_its_name(tmp_path: Path) -> None:
    files = OsFiles()
    name = cluster_id(tmp_path, files)
    assert name == cluster_id(tmp_path, files)
    other = tmp_path / "other"
    other.mkdir()
    assert cluster_id(other, files) != name
    assert name.isalnum()


def test_a_name_that_was_told_survives_a_power_cut() -> None:
    disk, root = SimDisk(), Path("/data")
    disk.make_dirs(root)
    name = cluster_id(root, disk)
    assert cluster_id(root, disk.crash(Random(1))) == name
