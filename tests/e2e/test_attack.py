"""`make attack` in its short form: every attack in small numbers against real servers, all of which hold."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import orjson
import pytest

from loadtest.attack.catalogue import ATTACKS
from loadtest.attack.report import CHART, NUMBERS, PAGE
from tests.e2e.server import REPOSITORY

TIMEOUT_S = 300


@pytest.mark.matrix
def test_the_server_holds(tmp_path: Path) -> None:
    out = tmp_path / "out"
    command = [sys.executable, "-m", "loadtest.attack", "--short", "--out", str(out), "--dir", str(tmp_path)]
    done = subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True, timeout=TIMEOUT_S, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    rows = orjson.loads((out / NUMBERS).read_bytes())["rows"]
    assert {row["name"] for row in rows} == {attack.name for attack in ATTACKS if attack.short is not None}
    assert (out / CHART).exists()
    assert (out / PAGE).read_text().count("**failed") == 0
    assert not list(tmp_path.glob("mq-attack-*"))
